"""The Triton kernel of ``triton_attention``: it is imported where Triton is, and nowhere else.

    o = softmax(scale q k^T + mask) v,    a program for each block of queries of a head

Arrays come as tensor descriptors (TMA) of [heads, rows, d].  ``group`` query heads share a kv head.
Keys that every query of the block sees come first, without a mask; then those at the edge.  The
causal mask is aligned at the bottom right; the longest blocks start first.

Source: T. Dao, "FlashAttention-2", arXiv:2307.08691, section 3.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["kernel"]


def _over(
    x: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    sums: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    kv_head: tl.tensor,
    rows: tl.tensor,
    last: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    n: tl.tensor,
    scale: tl.tensor,
    d: tl.constexpr,
    block_n: tl.constexpr,
    masked: tl.constexpr,
    causal: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    for at in tl.range(first, end, block_n):
        y = k.load([kv_head, at, 0]).reshape(block_n, d)
        s = tl.dot(x, y.T) * scale
        if masked:
            keys = at + tl.arange(0, block_n)[None, :]
            seen = (keys < n) & (keys <= last + rows[:, None]) if causal else keys < n
            s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None]
        z = v.load([kv_head, at, 0]).reshape(block_n, d)
        sums = tl.dot(p.to(z.dtype), z, sums)
        top = new
    return sums, top, total


_steps = triton.jit(_over)


def _attention(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    o: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    d: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    causal: tl.constexpr,
) -> None:
    head = tl.program_id(1)
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    start = block * block_m
    rows = start + tl.arange(0, block_m)
    x = q.load([head, start, 0]).reshape(block_m, d)
    sums = tl.zeros((block_m, d), dtype=tl.float32)
    top = tl.full((block_m,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((block_m,), dtype=tl.float32)
    last = n - m
    whole = n // block_n * block_n
    end = n
    if causal:
        whole = tl.maximum(tl.minimum(n, last + start + 1), 0) // block_n * block_n
        end = tl.maximum(tl.minimum(n, last + start + block_m), 0)
    sums, top, total = _steps(
        x, k, v, sums, top, total, head // group, rows, last, 0, whole, n, scale,
        d, block_n, False, causal,
    )  # fmt: skip
    sums, top, total = _steps(
        x, k, v, sums, top, total, head // group, rows, last, whole, end, n, scale,
        d, block_n, True, causal,
    )  # fmt: skip
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    o.store([head, start, 0], sums.to(o.dtype).reshape(1, block_m, d))


kernel = triton.jit(_attention, do_not_specialize=["m", "n", "group"])
"""The kernel; one compilation serves every length."""
