"""The Triton kernel of ``triton_matmul``: it is imported where Triton is, and nowhere else.

    c[m, n] = sum over k of a[m, k] * b,    b as [n, k] or, if not ``b_by_k``, as [k, n]

All three come as tensor descriptors (TMA).  Programs take every ``programs``-th tile; tiles are
visited in groups of ``group`` rows.  With ``halves`` a tile is stored in two parts, which takes
half the shared memory.  The next tile's loads overlap a tile's store (``flatten``); Triton's own
warp specialisation does not compile for this kernel on sm_90.

Source: Triton 3.6, tutorials, "Persistent Matmul".
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["kernel"]


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
    group: tl.constexpr,
    b_by_k: tl.constexpr,
    halves: tl.constexpr,
) -> None:
    rows = tl.cdiv(m, block_m)
    columns = tl.cdiv(n, block_n)
    steps = tl.cdiv(k, block_k)
    in_group = group * columns
    first, programs = tl.program_id(0), tl.num_programs(0)
    for tile in tl.range(first, rows * columns, programs, flatten=True):
        first_row = tile // in_group * group
        height = min(rows - first_row, group)
        at_m = (first_row + tile % in_group % height) * block_m
        at_n = tile % in_group // height * block_n
        sums = tl.zeros((block_m, block_n), dtype=tl.float32)
        for step in range(steps):
            x = a.load([at_m, step * block_k])
            if b_by_k:
                sums = tl.dot(x, b.load([at_n, step * block_k]).T, sums)
            else:
                sums = tl.dot(x, b.load([step * block_k, at_n]), sums)
        if halves:
            both = tl.permute(tl.reshape(sums, (block_m, 2, block_n // 2)), (0, 2, 1))
            left, right = tl.split(both)
            c.store([at_m, at_n], left.to(c.dtype))
            c.store([at_m, at_n + block_n // 2], right.to(c.dtype))
        else:
            c.store([at_m, at_n], sums.to(c.dtype))


kernel = triton.jit(_matmul, do_not_specialize=["m", "n", "k"])
"""The kernel; one compilation serves every size."""
