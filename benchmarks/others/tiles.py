"""Kernels by Triton and Gluon for Hopper: tiles, pipelines, and CTAs that wait for one another.

    python -m benchmarks.others.tiles FOLDER
    python -m benchmarks.races_of_others FOLDER

Triton comes by ``pip install triton numpy``.  A kernel here is a plain function; its builds are at
the end, each with its launch and NumPy's results.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# (the compilers read these functions, and their types are the compilers')

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia import hopper

from benchmarks.others import Launches

__all__ = ["main"]


def softmax(x, y, n, block: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * n, tl.arange(0, block)
    most, total = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.float32)
    for first in range(0, n, block):
        part = tl.load(x + row + first + at, mask=first + at < n, other=float("-inf"))
        now = tl.maximum(most, tl.max(part, 0))
        total = total * tl.exp(most - now) + tl.sum(tl.exp(part - now), 0)
        most = now
    for first in range(0, n, block):
        inside = first + at < n
        part = tl.load(x + row + first + at, mask=inside, other=0.0)
        tl.store(y + row + first + at, tl.exp(part - most) / total, mask=inside)


def norm_backward(x, w, dy, dx, dw, lock, n, parts: tl.constexpr, block: tl.constexpr):
    """Make an RMS norm's gradients; rows of one part add to its sum under a lock."""
    row, at = tl.program_id(0), tl.arange(0, block)
    inside = at < n
    v = tl.load(x + row * n + at, mask=inside, other=0.0)
    g = tl.load(dy + row * n + at, mask=inside, other=0.0)
    s = tl.load(w + at, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n + 1e-5)
    h = v * scale
    mean = tl.sum(h * g * s, 0) / n
    tl.store(dx + row * n + at, (g * s - h * mean) * scale, mask=inside)
    part = row % parts
    sums = dw + part * n + at
    while tl.atomic_cas(lock + part, 0, 1) == 1:
        pass
    tl.store(sums, tl.load(sums, mask=inside, other=0.0) + g * h, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock + part, 0)


def last_sums(x, part, count, y, n, block: tl.constexpr, ctas: tl.constexpr):
    """Add up in the CTA that comes last what all have left."""
    me, at = tl.program_id(0), tl.arange(0, block)
    total = tl.sum(tl.load(x + me * block + at, mask=me * block + at < n, other=0.0), 0)
    tl.store(part + me, total)
    if tl.atomic_add(count, 1) == ctas - 1:
        tl.store(y, tl.sum(tl.load(part + tl.arange(0, ctas)), 0))


def chained_scan(x, y, held, flag, block: tl.constexpr):
    """Each CTA waits for the sum of all before it."""
    me, at = tl.program_id(0), tl.arange(0, block)
    part = tl.cumsum(tl.load(x + me * block + at), 0)
    total = tl.sum(tl.load(x + me * block + at), 0)
    before = 0
    if me > 0:
        while tl.atomic_add(flag + me - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(held + me - 1)
    tl.store(held + me, before + total)
    tl.debug_barrier()
    tl.atomic_xchg(flag + me, 1, sem="release")
    tl.store(y + me * block + at, part + before)


def stream_k(a, b, c, held, flag, k, block: tl.constexpr, step: tl.constexpr):
    """Two CTAs share a tile's sums; the second waits for the first one's part."""
    me, tile = tl.program_id(0), tl.program_id(1)
    row, column, at = tile * block + tl.arange(0, block), tl.arange(0, block), tl.arange(0, step)
    sums = tl.zeros((block, block), tl.float32)
    for first in range(me * k // 2, (me + 1) * k // 2, step):
        p = tl.load(a + row[:, None] * k + (first + at)[None, :])
        q = tl.load(b + (first + at)[:, None] * block + column[None, :])
        sums = tl.dot(p, q, sums)
    mine = held + tile * block * block + tl.arange(0, block)[:, None] * block + column[None, :]
    if me == 0:
        tl.store(mine, sums)
        tl.debug_barrier()
        tl.atomic_xchg(flag + tile, 1, sem="release")
    else:
        while tl.atomic_cas(flag + tile, 1, 1, sem="acquire") != 1:
            pass
        sums += tl.load(mine)
        tl.store(c + row[:, None] * block + column[None, :], sums)


def embedding_backward(ids, dy, dw, n, block: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, block)
    tl.atomic_add(
        dw + tl.load(ids + row) * n + at, tl.load(dy + row * n + at, mask=at < n), mask=at < n
    )


def rotary(x, cos, sin, half: tl.constexpr):
    """In place."""
    row, at = tl.program_id(0), tl.arange(0, half)
    p, q = tl.load(x + row * 2 * half + at), tl.load(x + row * 2 * half + half + at)
    c, s = tl.load(cos + row * half + at), tl.load(sin + row * half + at)
    tl.store(x + row * 2 * half + at, p * c - q * s)
    tl.store(x + row * 2 * half + half + at, q * c + p * s)


def top(x, y, block: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, block)
    tl.store(y + row * 8 + tl.arange(0, 8), tl.topk(tl.load(x + row * block + at), 8))


def boxes(a, b, c, k, tiles: tl.constexpr, ctas: tl.constexpr, aside: tl.constexpr):
    """Multiply by tensor maps, in CTAs that take several tiles."""
    for tile in tl.range(tl.program_id(0), tiles, ctas, warp_specialize=aside):
        sums = tl.zeros((128, 128), tl.float32)
        for at in range(0, k, 64):
            sums = tl.dot(a.load([tile * 128, at]), b.load([at, 0]), sums)
        c.store([tile * 128, 0], sums.to(tl.float16))


def attention(q, k, v, o, rows, scale, block: tl.constexpr, aside: tl.constexpr):
    first = tl.program_id(0) * 128
    x = q.load([first, 0])
    most, total = tl.full((128,), float("-inf"), tl.float32), tl.zeros((128,), tl.float32)
    sums = tl.zeros((128, 64), tl.float32)
    for at in tl.range(0, rows, block, warp_specialize=aside):
        score = tl.dot(x, k.load([at, 0]).T) * (scale * 1.4426950408889634)
        now = tl.maximum(most, tl.max(score, 1))
        weight, shrink = tl.exp2(score - now[:, None]), tl.exp2(most - now)
        total = total * shrink + tl.sum(weight, 1)
        sums = tl.dot(weight.to(tl.float16), v.load([at, 0]), sums * shrink[:, None])
        most = now
    o.store([first, 0], (sums / total[:, None]).to(tl.float16))


def described(a, b, c, m, n, k):
    """Multiply by tensor maps that the kernel makes."""
    x = tl.make_tensor_descriptor(a, [m, k], [k, 1], [64, 64])
    y = tl.make_tensor_descriptor(b, [k, n], [n, 1], [64, 64])
    z = tl.make_tensor_descriptor(c, [m, n], [n, 1], [64, 64])
    row, column = tl.program_id(0) * 64, tl.program_id(1) * 64
    sums = tl.zeros((64, 64), tl.float32)
    for at in range(0, k, 64):
        sums = tl.dot(x.load([row, at]), y.load([at, column]), sums)
    z.store([row, column], sums.to(tl.float16))


def pipeline(x, y, z, m, k, ring: gl.constexpr, layout: gl.constexpr):
    """Gluon: TMA fills a ring of stages, wgmma reads it one stage behind."""
    a = hopper.tma.make_tensor_descriptor(x, [m, k], [k, 1], [64, 64], layout)
    b = hopper.tma.make_tensor_descriptor(y, [k, 64], [64, 1], [64, 64], layout)
    c = hopper.tma.make_tensor_descriptor(z, [m, 64], [64, 1], [64, 64], layout)
    p = gl.allocate_shared_memory(gl.float16, [ring, 64, 64], a.layout)
    q = gl.allocate_shared_memory(gl.float16, [ring, 64, 64], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [ring, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(ring):
        hopper.mbarrier.init(full.index(i), count=1)
    hopper.fence_async_shared()
    row = gl.program_id(0) * 64
    steps = k // 64
    for i in gl.static_range(ring - 1):
        hopper.mbarrier.expect(full.index(i), 2 * 64 * 64 * 2)
        hopper.tma.async_load(a, [row, i * 64], full.index(i), p.index(i))
        hopper.tma.async_load(b, [i * 64, 0], full.index(i), q.index(i))
    spread: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    sums = hopper.warpgroup_mma_init(gl.zeros([64, 64], gl.float32, spread))
    for i in range(steps):
        at = i % ring
        hopper.mbarrier.wait(full.index(at), i // ring & 1)
        done = hopper.warpgroup_mma_wait(0, deps=[sums])
        sums = hopper.warpgroup_mma(p.index(at), q.index(at), done, is_async=True)
        ahead = i + ring - 1
        to = ahead % ring
        more = ahead < steps
        hopper.mbarrier.expect(full.index(to), 2 * 64 * 64 * 2, pred=more)
        hopper.tma.async_load(a, [row, ahead * 64], full.index(to), p.index(to), pred=more)
        hopper.tma.async_load(b, [ahead * 64, 0], full.index(to), q.index(to), pred=more)
    done = hopper.warpgroup_mma_wait(0, deps=[sums])
    out = gl.allocate_shared_memory(gl.float16, [64, 64], c.layout)
    out.store(done.to(gl.float16))
    hopper.fence_async_shared()
    hopper.tma.async_store(c, [row, 0], out)
    hopper.tma.store_wait(0)


P, H, N = "*fp32", "*fp16", "*i32"


def _compiled(
    launches: Launches, name: str, function: Any, signature: dict[str, str], *,
    warps: int = 4, stages: int = 3, build: str = "", **tiles: Any,
) -> dict[str, Any]:  # fmt: skip
    """Write a build's PTX; return what a launch of it needs."""
    known = [i for i, (n, s) in enumerate(signature.items()) if s[0] == "*" or n in ("n", "k")]
    is_gluon = function is pipeline
    source = (GluonASTSource if is_gluon else ASTSource)(
        fn=(gluon if is_gluon else triton).jit(function),
        signature=signature | dict.fromkeys(tiles, "constexpr"),
        constexprs=dict(tiles),
        attrs={(i,): [["tt.divisibility", 16]] for i in known},
    )
    options = {"num_warps": warps, "num_stages": stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    (launches.folder / f"{name}.ptx").write_text(made.asm["ptx"])
    return {
        "file": f"{name}.ptx", "kernel": made.metadata.name, "smem_bytes": made.metadata.shared,
        "block": 32 * getattr(made.metadata, "total_num_warps", 0) or 32 * made.metadata.num_warps,
    }  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Compile all and write the list; what the compiler refuses is told."""
    launches, rng = Launches(Path(arguments[0])), np.random.default_rng(0)
    only = arguments[1:]

    def floats(*shape: int, of: Any = np.float32) -> Any:
        return rng.standard_normal(shape).astype(of)

    def add(name, function, signature, grid, given, expected, tolerance=1e-5, held=(), **how):
        if only and name not in only:
            return
        made = _compiled(launches, name, function, signature, **how)
        given = [*given, np.zeros(1 << 14, np.uint8), 0]  # scratch, profile
        launches.add(**made, grid=grid, arguments=given, expected=expected, held=held,
                     tolerance=tolerance)  # fmt: skip
        print(name, made)

    def tensor(n: int, array: Any, box: tuple[int, int]) -> list[Any]:
        rows, columns = array.shape
        fields = {"dtype": "f16", "shape": [columns, rows], "strides_bytes": [2 * columns],
                  "box": [64, box[0]], "swizzle": 3}  # fmt: skip
        return [{"map": f"&{n}", **fields}, rows, columns, columns, 1]

    def desc(*boxes: tuple[int, int]) -> list[str]:
        return [f"tensordesc<fp16[{r}, {c}]>" for r, c in boxes]

    x = floats(3, 700)
    e = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    add("softmax", softmax, {"x": P, "y": P, "n": "i32"}, 3, [x, 0 * x, 700],
        {1: e / e.sum(1, keepdims=True)}, block=256)  # fmt: skip

    x, w, g = floats(6, 100), floats(100), floats(6, 100)
    h = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
    dx = (g * w - h * (h * g * w).mean(1, keepdims=True)) * (h / x)
    dw = np.stack([(g * h)[i::2].sum(0) for i in range(2)])
    add("norm_backward", norm_backward,
        {"x": P, "w": P, "dy": P, "dx": P, "dw": P, "lock": N, "n": "i32"}, 6,
        [x, w, g, 0 * x, 0 * dw, np.zeros(2, np.int32), 100], {3: dx, 4: dw}, 1e-4,
        parts=2, block=128)  # fmt: skip

    x = floats(1000)
    add("last_sums", last_sums, {"x": P, "part": P, "count": N, "y": P, "n": "i32"}, 8,
        [x, np.zeros(8, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32), 1000],
        {3: x.sum(keepdims=True, dtype=np.float64)}, 1e-3, block=128, ctas=8)  # fmt: skip

    n = rng.integers(0, 100, 1024).astype(np.int32)
    add("chained_scan", chained_scan, {"x": N, "y": N, "held": N, "flag": N}, 4,
        [n, 0 * n, np.zeros(4, np.int32), np.zeros(4, np.int32)], {1: np.cumsum(n)},
        block=256)  # fmt: skip

    a, b = floats(128, 256, of=np.float16), floats(256, 64, of=np.float16)
    c = a.astype(np.float64) @ b.astype(np.float64)
    add("stream_k", stream_k, {"a": H, "b": H, "c": P, "held": P, "flag": N, "k": "i32"}, [2, 2],
        [a, b, np.zeros((128, 64), np.float32), np.zeros((2, 64, 64), np.float32),
         np.zeros(2, np.int32), 256], {2: c}, 1e-3, block=64, step=32)  # fmt: skip

    ids, g = rng.integers(0, 3, 8).astype(np.int64), floats(8, 200)
    dw = np.zeros((3, 200))
    np.add.at(dw, ids, g)
    add("embedding_backward", embedding_backward, {"ids": "*i64", "dy": P, "dw": P, "n": "i32"}, 8,
        [ids, g, np.zeros((3, 200), np.float32), 200], {2: dw}, block=256)  # fmt: skip

    x, angle = floats(4, 128), floats(4, 64)
    cos, sin = np.cos(angle), np.sin(angle)
    p, q = x[:, :64], x[:, 64:]
    add("rotary", rotary, {"x": P, "cos": P, "sin": P}, 4, [x, cos, sin],
        {0: np.concatenate([p * cos - q * sin, q * cos + p * sin], 1)}, half=64)  # fmt: skip

    x = floats(3, 512)
    add("top", top, {"x": P, "y": P}, 3, [x, np.zeros((3, 8), np.float32)],
        {1: -np.sort(-x, 1)[:, :8]}, block=512)  # fmt: skip

    a, b = floats(384, 256, of=np.float16), floats(256, 128, of=np.float16)
    c = a.astype(np.float64) @ b.astype(np.float64)
    three = dict(zip("abc", desc((128, 64), (64, 128), (128, 128)), strict=True))
    given = [*tensor(0, a, (128, 64)), *tensor(1, b, (64, 64)), *tensor(2, c, (128, 64)), 256]
    for name, warps, aside in (("boxes", 4, False), ("boxes8", 8, False), ("boxes_aside", 4, True)):
        add(name, boxes, three | {"k": "i32"}, 2, given, {"&2": c}, 3e-2,
            [a, b, np.zeros(c.shape, np.float16)], warps=warps, tiles=3, ctas=2,
            aside=aside)  # fmt: skip

    q, k, v = (floats(256, 64, of=np.float16) for _ in range(3))
    s = q.astype(np.float64) @ k.astype(np.float64).T / 8
    e = np.exp(s - s.max(1, keepdims=True))
    o = e / e.sum(1, keepdims=True) @ v.astype(np.float64)
    four = dict(zip("qkvo", desc((128, 64), (64, 64), (64, 64), (128, 64)), strict=True))
    given = [
        y for i, r in enumerate((128, 64, 64, 128)) for y in tensor(i, q, (r, 64))
    ] + [256, 0.125]  # fmt: skip
    for name, warps, aside in (("attention", 4, False), ("attention8", 8, False),
                               ("attention_aside", 4, True)):  # fmt: skip
        add(name, attention, four | {"rows": "i32", "scale": "fp32"}, 2, given, {"&3": o}, 5e-3,
            [q, k, v, 0 * q], warps=warps, block=64, aside=aside)  # fmt: skip

    a, b = floats(128, 256, of=np.float16), floats(256, 128, of=np.float16)
    c = a.astype(np.float64) @ b.astype(np.float64)
    add("described", described, dict.fromkeys("abc", H) | dict.fromkeys("mnk", "i32"), [2, 2],
        [a, b, np.zeros((128, 128), np.float16), 128, 128, 256], {2: c}, 3e-2)  # fmt: skip

    b = b[:, :64].copy()
    from triton.experimental.gluon.language import NVMMASharedLayout

    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    add("pipeline", pipeline, dict.fromkeys("xyz", H) | {"m": "i32", "k": "i32"}, 2,
        [a, b, np.zeros((128, 64), np.float16), 128, 256], {2: c[:, :64]}, 3e-2,
        ring=3, layout=layout)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
