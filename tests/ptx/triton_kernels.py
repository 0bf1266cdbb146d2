"""The sources of tests/ptx/triton_*.ptx, which Triton 3.9 made of them; it needs no GPU for that.

    python tests/ptx/triton_kernels.py

Matmuls of bf16 with fp32 sums, every edge masked: for sm_80 (mma.sync), for sm_90 (wgmma) by
pointers (cp.async) and by tensor descriptors (TMA), and attention, whose second product takes its
left operand from registers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

LOG2_E = tl.constexpr(1.4426950408889634)


def _matmul(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
) -> None:
    row = tl.program_id(0) * block_m + tl.arange(0, block_m)
    column = tl.program_id(1) * block_n + tl.arange(0, block_n)
    step = tl.arange(0, block_k)
    sums = tl.zeros((block_m, block_n), tl.float32)
    for at in range(0, k, block_k):
        here = at + step
        in_a = (row[:, None] < m) & (here[None, :] < k)
        in_b = (here[:, None] < k) & (column[None, :] < n)
        x = tl.load(a + row[:, None] * k + here[None, :], mask=in_a, other=0.0)
        y = tl.load(b + here[:, None] * n + column[None, :], mask=in_b, other=0.0)
        sums = tl.dot(x, y, sums)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], sums.to(tl.bfloat16), mask=inside)


def _boxes(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    k: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
) -> None:
    row, column = tl.program_id(0) * block_m, tl.program_id(1) * block_n
    sums = tl.zeros((block_m, block_n), tl.float32)
    for at in range(0, k, block_k):
        sums = tl.dot(a.load([row, at]), b.load([at, column]), sums)
    c.store([row, column], sums.to(tl.bfloat16))


def _attention(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    o: tl.tensor,
    rows: tl.tensor,
    scale: tl.tensor,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0) * block + tl.arange(0, block)
    at = tl.arange(0, width)
    x = tl.load(q + row[:, None] * width + at[None, :], mask=row[:, None] < rows, other=0.0)
    most = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    sums = tl.zeros((block, width), tl.float32)
    for first in range(0, rows, block):
        other = first + tl.arange(0, block)
        inside = other[:, None] < rows
        y = tl.load(k + other[:, None] * width + at[None, :], mask=inside, other=0.0)
        score = tl.dot(x, y.T) * (scale * LOG2_E)
        score = tl.where(other[None, :] < rows, score, float("-inf"))
        now = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp2(score - now[:, None])
        shrink = tl.exp2(most - now)
        total = total * shrink + tl.sum(weight, 1)
        z = tl.load(v + other[:, None] * width + at[None, :], mask=inside, other=0.0)
        sums = tl.dot(weight.to(tl.bfloat16), z, sums * shrink[:, None])
        most = now
    out = (sums / total[:, None]).to(tl.bfloat16)
    tl.store(o + row[:, None] * width + at[None, :], out, mask=row[:, None] < rows)


def _compiled(function: Any, arch: int, signature: dict[str, str], **tiles: int) -> str:
    """Return PTX; pointers and strides are taken as multiples of 16, as a launch sees them."""
    names = signature | dict.fromkeys(tiles, "constexpr")
    known = [i for i, (n, s) in enumerate(signature.items()) if s[0] == "*" or n in ("n", "k")]
    source = ASTSource(
        fn=triton.jit(function),
        signature=names,
        constexprs=dict(tiles),
        attrs={(i,): [["tt.divisibility", 16]] for i in known},
    )
    options = {"num_warps": 4, "num_stages": 3}
    target = GPUTarget("cuda", arch, 32)
    text: str = triton.compile(source, target=target, options=options).asm["ptx"]
    return text


def main() -> None:
    """Write the PTX files beside this one."""
    triton.knobs.compilation.disable_line_info = True
    three = dict.fromkeys("abc", "*bf16")
    tiles = {"block_m": 64, "block_n": 64, "block_k": 32}
    sizes = dict.fromkeys("mnk", "i32")
    boxes = {"a": "[64, 64]", "b": "[64, 128]", "c": "[64, 128]"}
    described = {x: f"tensordesc<bf16{box}>" for x, box in boxes.items()}
    wide = {"block_m": 64, "block_n": 128, "block_k": 64}
    four = dict.fromkeys("qkvo", "*bf16") | {"rows": "i32", "scale": "fp32"}
    made = {
        "triton_sm80": _compiled(_matmul, 80, three | sizes, **tiles),
        "triton_sm90": _compiled(_matmul, 90, three | sizes, **tiles),
        "triton_sm90_boxes": _compiled(_boxes, 90, described | {"k": "i32"}, **wide),
        "triton_sm80_attention": _compiled(_attention, 80, four, width=64, block=64),
        "triton_sm90_attention": _compiled(_attention, 90, four, width=64, block=64),
    }
    for name, text in made.items():
        Path(__file__).with_name(f"{name}.ptx").write_text(text.strip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
