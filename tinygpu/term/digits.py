"""A product of a warpgroup as one of tiles: the digits of threads and of values together.

Values are (k, pair, half, group, groups of a slab), threads (quad, octet, warp); a row is
16 warp + 8 half + octet, a column 8 group + 2 quad + pair.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tinygpu.term.program import Access, Do, select

__all__ = ["product_of", "together"]


def together(do: Do) -> Do:
    """Return what threads do together as one statement: their digits are values, the slowest."""

    def one(access: Any) -> Any:
        if not isinstance(access, Access):
            return access
        thread = access.thread or ((0,) * len(access.buffer.shape),) * len(do.threads)
        return replace(access, value=(*access.value, *thread), thread=())

    return replace(do, write=one(do.write), reads=tuple(map(one, do.reads)),
                   values=(*do.values, *do.threads), threads=())  # fmt: skip


def product_of(do: Do) -> Do:
    """Return the product on values (k, columns, slabs of columns, rows), its factors alone."""
    x, y = do.reads[:2]
    assert isinstance(x, Access)
    assert isinstance(y, Access)
    k, pair, half, *groups = do.values
    quad, octet, warp = do.threads
    inner, outer = prod(groups[::2]), prod(groups[1::2])
    still = (0,) * len(x.buffer.shape)
    beyond = still  # from a slab of columns to the next: the first mode that moves there
    for extent, steps in reversed([*zip(groups[1::2], y.value[4::2], strict=True)]):
        beyond = tuple(select(extent > 1, s, b) for s, b in zip(steps, beyond, strict=True))
    left = replace(x, value=(x.value[0], still, still, x.thread[1]), thread=())
    right = replace(y, value=(y.value[0], y.value[1], beyond, still), thread=())
    values = (k, pair * quad * inner, outer, octet * half * warp)
    return replace(do, values=values, threads=(), reads=(left, right, *do.reads[2:]))
