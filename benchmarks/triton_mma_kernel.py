"""The Triton kernel of ``triton_mma``: it is imported where Triton is, and nowhere else.

    c[m, n] = sum over k of a[m, k] * b,    b as [n, k] or, if not ``b_by_k``, as [k, n]

Tiles are loaded by pointers, which Triton turns into cp.async; rows beyond m and columns beyond n
are loaded from the first ones instead, steps beyond k only if there are some.  Programs are visited
in groups of ``group`` rows of tiles.

Source: Triton, tutorials, "Matrix Multiplication".
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
    whole_k: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    columns = tl.cdiv(n, block_n)
    in_group = group * columns
    first_row = tile // in_group * group
    height = min(tl.cdiv(m, block_m) - first_row, group)
    at_m = (first_row + tile % in_group % height) * block_m
    at_n = tile % in_group // height * block_n
    rows = (at_m + tl.arange(0, block_m)) % m
    cols = (at_n + tl.arange(0, block_n)) % n
    steps = tl.arange(0, block_k)
    at_a = a + rows[:, None] * k + steps[None, :]
    if b_by_k:
        at_b = b + cols[None, :] * k + steps[:, None]
    else:
        at_b = b + steps[:, None] * n + cols[None, :]
    sums = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in range(tl.cdiv(k, block_k)):
        if whole_k:
            x = tl.load(at_a)
            y = tl.load(at_b)
        else:
            left = k - step * block_k
            x = tl.load(at_a, mask=steps[None, :] < left, other=0.0)
            y = tl.load(at_b, mask=steps[:, None] < left, other=0.0)
        sums = tl.dot(x, y, sums)
        at_a += block_k
        at_b += block_k if b_by_k else block_k * n
    out_m = at_m + tl.arange(0, block_m)
    out_n = at_n + tl.arange(0, block_n)
    inside = (out_m[:, None] < m) & (out_n[None, :] < n)
    tl.store(c + out_m[:, None] * n + out_n[None, :], sums.to(c.dtype.element_ty), mask=inside)


kernel = triton.jit(_matmul)
"""The kernel; Triton looks at the sizes to see what is a multiple of 16."""
