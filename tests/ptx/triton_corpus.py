"""The sources of tests/ptx/corpus_triton.json.xz: what Triton 3.9 makes of kernels for three GPUs.

    python tests/ptx/triton_corpus.py

It needs no GPU.  Each build has its PTX, its threads a CTA and its bytes of dynamic shared memory.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"
# ruff: noqa: E501, RUF059, B905, C420 (a build is a line)

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def add_masked(x, y, z, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    a = tl.load(x + at, mask=at < n)
    tl.store(z + at, a * 2 + tl.load(y + at, mask=at < n), mask=at < n)


def softmax(x, y, n, block: tl.constexpr):
    at = tl.arange(0, block)
    row = tl.program_id(0) * n
    v = tl.load(x + row + at, mask=at < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row + at, e / tl.sum(e, 0), mask=at < n)


def layer_norm(x, w, y, n, eps, block: tl.constexpr):
    at = tl.arange(0, block)
    row = tl.program_id(0) * n
    v = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    d = tl.where(at < n, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, 0) / n + eps)
    tl.store(y + row + at, (d * scale * tl.load(w + at, mask=at < n)).to(tl.float16), mask=at < n)


@triton.jit
def _welford(m1, s1, n1, m2, s2, n2):
    n = n1 + n2
    d = m2 - m1
    r = tl.where(n == 0, 0.0, n2 / n)
    return m1 + d * r, s1 + s2 + d * d * n1 * r, n


def welford(x, y, block: tl.constexpr):
    v = tl.load(x + tl.program_id(0) * block + tl.arange(0, block))
    m, s, n = tl.reduce((v, v * 0, v * 0 + 1), 0, _welford)
    tl.store(y + 2 * tl.program_id(0), m)
    tl.store(y + 2 * tl.program_id(0) + 1, s / n)


@triton.jit
def _recur(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


def scans(a, b, y, s, block: tl.constexpr):
    at = tl.arange(0, block)
    p, q = tl.associative_scan((tl.load(a + at), tl.load(b + at)), 0, _recur)
    tl.store(y + at, q)
    tl.store(s + at, tl.cumsum(tl.load(b + at), 0, reverse=True))


def sorts(x, y, k, block: tl.constexpr):
    at = tl.arange(0, block)
    v = tl.load(x + at)
    tl.store(y + at, tl.sort(v))
    tl.store(k + tl.arange(0, 8), tl.topk(v, 8))


def histograms(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    h = tl.histogram(tl.load(x + at, mask=at < n, other=0.0), 64, mask=at < n)
    tl.atomic_add(y + tl.arange(0, 64), h)


def atomics(x, y, f, lock, block: tl.constexpr):
    at = tl.arange(0, block)
    v = tl.load(x + tl.program_id(0) * block + at)
    tl.atomic_max(y + at % 16, v)
    tl.atomic_xor(y + 16 + at % 8, v)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(f + at, tl.load(f + at) * 2 + v)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def transposes(x, y, m, n, bm: tl.constexpr, bn: tl.constexpr):
    r = tl.program_id(0) * bm + tl.arange(0, bm)
    c = tl.program_id(1) * bn + tl.arange(0, bn)
    inside = (r[:, None] < m) & (c[None, :] < n)
    v = tl.load(x + r[:, None] * n + c[None, :], mask=inside)
    tl.store(y + c[:, None] * m + r[None, :], v.T, mask=inside.T)


def cross_entropy(x, label, loss, grad, n, block: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
    t = tl.load(label + row)
    m = tl.max(v, 0)
    s = tl.sum(tl.exp(v - m), 0)
    tl.store(loss + row, tl.log(s) + m - tl.load(x + row * n + t).to(tl.float32))
    g = tl.exp(v - m) / s - tl.where(at == t, 1.0, 0.0)
    tl.store(grad + row * n + at, g, mask=at < n)


def activations(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    v = tl.load(x + at, mask=at < n)
    g = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    tl.store(y + at, g + tl.sigmoid(v) * tl.cos(v) - tl.rsqrt(1 + v * v), mask=at < n)


def gathers(ids, table, y, width, block: tl.constexpr):
    row = tl.load(ids + tl.program_id(0))
    at = tl.arange(0, block)
    v = tl.load(table + row.to(tl.int64) * width + at, mask=at < width, other=0.0)
    tl.store(y + tl.program_id(0) * width + at, v, mask=at < width)


def arg_reduce(x, y, m, block_m: tl.constexpr, block_n: tl.constexpr):
    r = tl.arange(0, block_m)
    v = tl.load(x + r[:, None] * block_n + tl.arange(0, block_n)[None, :])
    tl.store(y + r, tl.argmax(v, 1))
    tl.store(m + tl.arange(0, block_n), tl.min(v, 0))


def rearranged(x, y, block: tl.constexpr):
    v = tl.load(x + tl.arange(0, block))
    a, b = tl.split(tl.reshape(v, (block // 2, 2)))
    w = tl.interleave(tl.flip(b, 0), a)
    tl.store(
        y + tl.arange(0, block), tl.ravel(tl.permute(tl.reshape(w, (4, block // 8, 2)), (1, 2, 0)))
    )


def quantized(x, q, s, n, block: tl.constexpr):
    at = tl.arange(0, block)
    row = tl.program_id(0) * n
    v = tl.load(x + row + at, mask=at < n, other=0.0)
    scale = tl.max(tl.abs(v), 0) / 127
    tl.store(s + tl.program_id(0), scale)
    tl.store(q + row + at, tl.extra.cuda.libdevice.rint(v / scale).to(tl.int8), mask=at < n)


def adam(p, g, m, v, n, rate, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    d = tl.load(g + at, mask=inside).to(tl.float32)
    a = 0.9 * tl.load(m + at, mask=inside) + 0.1 * d
    b = 0.99 * tl.load(v + at, mask=inside) + 0.01 * d * d
    tl.store(m + at, a, mask=inside)
    tl.store(v + at, b, mask=inside)
    tl.store(p + at, tl.load(p + at, mask=inside) - rate * a / (tl.sqrt(b) + 1e-8), mask=inside)


def dropped(x, y, n, seed, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    keep = tl.rand(seed, at) > 0.5
    tl.store(y + at, tl.where(keep, 2 * tl.load(x + at, mask=at < n), 0.0), mask=at < n)


def matmul(a, b, c, m, n, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):
    row = tl.program_id(0) * bm + tl.arange(0, bm)
    column = tl.program_id(1) * bn + tl.arange(0, bn)
    step = tl.arange(0, bk)
    sums = tl.zeros((bm, bn), c.dtype.element_ty if c.dtype.element_ty == tl.int32 else tl.float32)
    for at in range(0, k, bk):
        x = tl.load(
            a + row[:, None] * k + (at + step)[None, :], mask=(at + step)[None, :] < k, other=0.0
        )
        y = tl.load(
            b + (at + step)[:, None] * n + column[None, :], mask=(at + step)[:, None] < k, other=0.0
        )
        sums = tl.dot(x, y, sums, out_dtype=sums.dtype)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], sums.to(c.dtype.element_ty), mask=inside)


def split_k(a, b, c, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):
    r, q = tl.arange(0, bm), tl.arange(0, bn)
    step = tl.program_id(0) * bk + tl.arange(0, bk)
    x = tl.load(a + r[:, None] * k + step[None, :])
    y = tl.load(b + step[:, None] * bn + q[None, :])
    tl.atomic_add(c + r[:, None] * bn + q[None, :], tl.dot(x, y), sem="relaxed")


def causal(q, k, v, o, rows, scale, width: tl.constexpr, block: tl.constexpr):
    first = tl.program_id(0) * block
    r, at = first + tl.arange(0, block), tl.arange(0, width)
    x = tl.load(q + r[:, None] * width + at[None, :])
    most = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    sums = tl.zeros((block, width), tl.float32)
    for begin in range(0, first + block, block):
        s = begin + tl.arange(0, block)
        y = tl.load(k + s[:, None] * width + at[None, :])
        score = tl.where(r[:, None] >= s[None, :], tl.dot(x, y.T) * scale, float("-inf"))
        now = tl.maximum(most, tl.max(score, 1))
        p = tl.exp2((score - now[:, None]) * 1.4426950408889634)
        less = tl.exp2((most - now) * 1.4426950408889634)
        z = tl.load(v + s[:, None] * width + at[None, :])
        sums = tl.dot(p.to(tl.float16), z, sums * less[:, None])
        total = total * less + tl.sum(p, 1)
        most = now
    tl.store(o + r[:, None] * width + at[None, :], (sums / total[:, None]).to(tl.float16))


def boxed(a, b, c, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):
    row, column = tl.program_id(0) * bm, tl.program_id(1) * bn
    sums = tl.zeros((bm, bn), tl.float32)
    for at in range(0, k, bk):
        sums = tl.dot(a.load([row, at]), b.load([column, at]).T, sums)
    c.store([row, column], tl.maximum(sums, 0).to(tl.float16))


def persistent(a, b, c, m, n, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):
    tiles = tl.cdiv(m, bm) * tl.cdiv(n, bn)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column = tile // tl.cdiv(n, bn) * bm, tile % tl.cdiv(n, bn) * bn
        sums = tl.zeros((bm, bn), tl.float32)
        for at in range(0, k, bk):
            sums = tl.dot(a.load([row, at]), b.load([at, column]), sums)
        c.store([row, column], sums.to(tl.float16))


def described(x, y, m, n, bm: tl.constexpr, bn: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [m, n], [n, 1], [bm, bn])
    b = tl.make_tensor_descriptor(y, [m, n], [n, 1], [bm, bn])
    at = [tl.program_id(0) * bm, tl.program_id(1) * bn]
    b.store(at, a.load(at) + 1)


P = "*fp32"
H = {"a": "*fp16", "b": "*fp16", "c": "*fp16"}
N3 = {"m": "i32", "n": "i32", "k": "i32"}
TILE = {"bm": 64, "bn": 64, "bk": 32}


def _boxes(*rows):
    return {x: f"tensordesc<fp16[{r}, {c}]>" for x, (r, c) in zip("abc", rows)}


BUILDS = {
    "add": (add_masked, {"x": P, "y": P, "z": P, "n": "i32"}, {"block": 256}, (80, 100)),
    "softmax": (softmax, {"x": P, "y": P, "n": "i32"}, {"block": 512}, (80, 90)),
    "layer_norm": (layer_norm, {"x": "*bf16", "w": P, "y": "*fp16", "n": "i32", "eps": "fp32"}, {"block": 512}, (80, 90)),
    "welford": (welford, {"x": P, "y": P}, {"block": 1024}, (90,)),
    "scans": (scans, {"a": P, "b": P, "y": P, "s": P}, {"block": 512}, (80, 100)),
    "sorts": (sorts, {"x": "*i32", "y": "*i32", "k": "*i32"}, {"block": 256}, (80, 90)),
    "histograms": (histograms, {"x": "*i32", "y": "*i32", "n": "i32"}, {"block": 256}, (90,)),
    "atomics": (atomics, {"x": "*i32", "y": "*i32", "f": "*i32", "lock": "*i32"}, {"block": 128}, (80, 100)),
    "transposes": (transposes, {"x": "*fp16", "y": "*fp16", "m": "i32", "n": "i32"}, {"bm": 32, "bn": 64}, (80, 90)),
    "cross_entropy": (cross_entropy, {"x": "*bf16", "label": "*i64", "loss": P, "grad": P, "n": "i32"}, {"block": 256}, (90, 100)),
    "activations": (activations, {"x": P, "y": P, "n": "i32"}, {"block": 256}, (80,)),
    "gathers": (gathers, {"ids": "*i32", "table": P, "y": P, "width": "i32"}, {"block": 128}, (90,)),
    "arg_reduce": (arg_reduce, {"x": P, "y": "*i32", "m": P}, {"block_m": 32, "block_n": 64}, (80, 100)),
    "rearranged": (rearranged, {"x": "*i32", "y": "*i32"}, {"block": 256}, (90,)),
    "quantized": (quantized, {"x": P, "q": "*i8", "s": P, "n": "i32"}, {"block": 256}, (80,)),
    "adam": (adam, {"p": P, "g": "*bf16", "m": P, "v": P, "n": "i32", "rate": "fp32"}, {"block": 128}, (100,)),
    "dropped": (dropped, {"x": P, "y": P, "n": "i32", "seed": "i32"}, {"block": 128}, (90,)),
    "matmul_fp16": (matmul, H | N3, TILE, (80, 90, 100)),
    "matmul_tf32": (matmul, {"a": P, "b": P, "c": P} | N3, TILE, (80, 90)),
    "matmul_int8": (matmul, {"a": "*i8", "b": "*i8", "c": "*i32"} | N3, {"bm": 64, "bn": 64, "bk": 64}, (80,)),
    "matmul_fp8": (matmul, {"a": "*fp8e4nv", "b": "*fp8e4nv", "c": P} | N3, {"bm": 64, "bn": 64, "bk": 64}, (90, 100)),
    "split_k": (split_k, {"a": "*bf16", "b": "*bf16", "c": P, "k": "i32"}, {"bm": 32, "bn": 32, "bk": 64}, (80,)),
    "causal": (causal, {x: "*fp16" for x in "qkvo"} | {"rows": "i32", "scale": "fp32"}, {"width": 64, "block": 64}, (80, 90, 100)),
    "boxed": (boxed, _boxes((128, 64), (64, 64), (128, 64)) | {"k": "i32"}, {"bm": 128, "bn": 64, "bk": 64}, (90, 100)),
    "persistent": (persistent, _boxes((64, 64), (64, 64), (64, 64)) | N3, {"bm": 64, "bn": 64, "bk": 64}, (90,)),
    "described": (described, {"x": P, "y": P, "m": "i32", "n": "i32"}, {"bm": 32, "bn": 32}, (90,)),
}  # fmt: skip


def main():
    """Write the builds beside this file."""
    triton.knobs.compilation.disable_line_info = True
    made: dict[str, Any] = {}
    for name, (function, signature, tiles, targets) in BUILDS.items():
        known = [i for i, (n, s) in enumerate(signature.items()) if s[0] == "*" or n in ("n", "k")]
        whole = name in (
            "add",
            "softmax",
            "layer_norm",
            "cross_entropy",
            "activations",
            "transposes",
        )
        source = ASTSource(
            fn=triton.jit(function),
            signature=signature | dict.fromkeys(tiles, "constexpr"),
            constexprs=dict(tiles),
            attrs={(i,): [["tt.divisibility", 16]] for i in known if not whole or i < 2},
        )
        for arch in targets:
            options = {"num_warps": 4, "num_stages": 3}
            built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
            made[f"{name}_sm{arch}"] = {
                "kernel": built.metadata.name,
                "threads": 32 * built.metadata.num_warps,
                "shared": built.metadata.shared,
                "ptx": built.asm["ptx"],
            }
            print(
                name, arch, len(built.asm["ptx"]), built.metadata.shared, built.metadata.num_warps
            )
    text = json.dumps(made).encode()
    Path(__file__).with_name("corpus_triton.json.xz").write_bytes(lzma.compress(text, preset=9))


if __name__ == "__main__":
    main()
