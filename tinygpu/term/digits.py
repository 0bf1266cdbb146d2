"""The digits of a warpgroup's product, and of a copy by TMA: who counts what in a ``Do``.

Values count k, then pair, half and groups of 8 columns; each digit of groups in two, within a slab
of the second factor and from slab to slab.  Of a first factor in registers several modes count k:
word, lane and deep, word as two modes where it counts four.  Threads count quad, octet, warp.
``tinygpu.isa.wgmma`` has the layout.

Values of a copy by TMA count the elements of a slab's line, lines, slabs.  A fourth mode counts
``neighbours``: lines that follow one another in the array, too, where the second mode counts lines
that lie ``apart`` there.  In the tile all of them lie packed.

Source: PTX ISA 9, "wgmma.mma_async", "Register Fragments".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.isa.tma import boxes
from tinygpu.isa.wgmma import COLUMN_STEPS, ROW_STEPS, THREADS
from tinygpu.numbers import Number, Truth
from tinygpu.term.program import Access, Do, select

__all__ = [
    *("box_lines", "depth_modes", "held_factor", "layout_faults", "lines_apart", "neighbours"),
    *("product_of", "spans", "together"),
]

_O = TypeVar("_O")
_PAIR, _HALF = 2, 2
_DEPTHS = {2: ((2, 1), (4, 2), (2, 8)), 1: ((2, 1), (2, 2), (4, 4), (2, 16))}
"""Of k in registers, by an element's bytes: extent and steps of each digit: word, lane, deep."""


def together(do: Do) -> Do:
    """Return what threads do together as one statement: their digits are values, the slowest."""

    def one(access: _O) -> _O | Access:
        if not isinstance(access, Access):
            return access
        thread = access.thread or ((0,) * len(access.buffer.shape),) * len(do.threads)
        return replace(access, value=(*access.value, *thread), thread=())

    return replace(
        do,
        write=one(do.write),
        reads=tuple(map(one, do.reads)),
        values=(*do.values, *do.threads),
        threads=(),
    )


def box_lines(do: Do) -> Number:
    """Return the lines of a box by which TMA moves a tile: all of the tile's, or an equal part.

    Of lines that lie in pages they divide a page.
    """
    lines = do.values[1] // boxes(do.values[1])
    for read in do.reads:
        if isinstance(read, Access) and (pages := read.buffer.pages):
            along = read.value[1][read.buffer.shape.index(pages.axis)]
            lines = select(along != 0, np.gcd(lines, pages.size), lines)
    return lines


def neighbours(do: Do) -> int:
    """Return how many lines follow one another in the array where others lie apart; else 0."""
    return do.values[3] if len(do.values) > 3 else 0


def lines_apart(do: Do, gmem: Access) -> Number:
    """Return how many lines of the array lie from one of ``neighbours`` to the next."""
    return _dot(gmem.value[1], gmem.value[3])


def held_factor(do: Do) -> Access | None:
    """Return the first factor if it lies in registers."""
    first = do.reads[0]
    return first if isinstance(first, Access) and first.buffer.level == "registers" else None


def depth_modes(do: Do) -> int:
    """Return how many of a product's first values count k."""
    return len(_depth_digits(held)) if (held := held_factor(do)) else 1


def _depth_digits(held: Access) -> tuple[tuple[int, int], ...]:
    """Return extent and steps of the digits that count k of a first factor in registers."""
    return _DEPTHS[min(held.buffer.type.bytes, 2)]


def spans(do: Do) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how far each digit but those of k goes in A and in B, slowest first; 1: not along it.

    Of A in registers each four threads hold the same rows.  Raises ProgramError for a factor that
    does not move along k.
    """
    whole, deep = together(do), depth_modes(do)
    for factor in whole.accesses[held_factor(do) is not None : 2]:
        if any(
            int(n) > 1 and not any(s)
            for n, s in zip(do.values[:deep], factor.value[:deep], strict=True)
        ):
            raise ProgramError(f"{do}: {factor.buffer.name} does not move along k")
    rows, columns = (
        [int(n) if any(steps) else 1 for n, steps in zip(whole.values, r.value, strict=True)][deep:]
        for r in whole.accesses[:2]
    )
    if held_factor(do):
        rows[-len(do.threads) :] = [1, *map(int, do.threads[1:])]
    return tuple(rows[::-1]), tuple(columns[::-1])


def product_of(do: Do) -> Do:
    """Return the product on values (k, columns, slabs of columns, rows), its factors alone.

    A factor in registers stays as it is.
    """
    x, y = do.reads[:2]
    assert isinstance(x, Access)
    assert isinstance(y, Access)
    deep = depth_modes(do)
    pair, half, *groups = do.values[deep:]
    quad, octet, warp = do.threads
    inner, outer = prod(groups[::2]), prod(groups[1::2])
    still = (0,) * len(y.buffer.shape)
    beyond = still  # from a slab of columns to the next: the first mode that moves there
    for extent, steps in reversed([*zip(groups[1::2], y.value[deep + 3 :: 2], strict=True)]):
        beyond = tuple(select(extent > 1, s, b) for s, b in zip(steps, beyond, strict=True))
    left = x
    if deep == 1:
        left = replace(x, value=(x.value[0], still, still, x.thread[1]), thread=())
    right = replace(y, value=(y.value[0], y.value[deep], beyond, still), thread=())
    values = (prod(do.values[:deep]), pair * quad * inner, outer, octet * half * warp)
    return replace(do, values=values, threads=(), reads=(left, right, *do.reads[2:]))


def layout_faults(do: Do) -> Iterator[tuple[Truth, str]]:
    """Yield of each digit whether it counts as the instruction lays out, and what it does not.

    Reads ints, and arrays over a space.
    """
    x, y = do.reads[:2]
    assert isinstance(x, Access)
    assert isinstance(y, Access)
    deep = depth_modes(do)
    extents, wanted = (*do.values[deep : deep + 2], *do.threads), (_PAIR, _HALF, *THREADS)
    counted: Truth = len(do.threads) == len(THREADS)
    for extent, want in zip(extents, wanted, strict=False):
        counted = counted & (extent == want)
    yield counted, "digits pair, half, quad, octet, warp"
    if counted is False:
        return
    groups = do.values[deep + 2 :]
    own = replace(do.write, value=do.write.value[deep:])
    yield _apart(own, do.values[deep:]), "registers of the sums"
    eights, count = [], 8
    for extent in groups:
        eights.append(count)
        count = count * extent
    columns = _steps(y, deep, _line(y, 0))
    yield _equal(columns, (*COLUMN_STEPS, *eights), (*extents, *groups)), "columns of the sums"
    if deep == 1:
        rows = _steps(x, deep, _line(x, 0))
        yield (
            _equal(rows, (*ROW_STEPS, *(0 for _ in groups)), (*extents, *groups)),
            "rows of the sums",
        )
        return
    counts = _depth_digits(x)
    along_k = [_dot(step, _depth(y)) for step in y.value[:deep]]
    holds = _equal(along_k, [step for _, step in counts], [extent for extent, _ in counts])
    for extent, (want, _) in zip(do.values[:deep], counts, strict=True):
        holds = holds & (extent == want)
    yield holds, "steps of k that threads hold"
    yield x.buffer.type.bytes <= 2, "16 or 8 bits of a first factor in registers"
    word, lane = 4 // min(x.buffer.type.bytes, 2), deep - 2  # a register's elements; a mode
    pitch = [_dot(step, x.buffer.pitch) for step in (*x.value, *x.thread)]
    moves: Truth = pitch[lane] == 0
    for mode in range(lane):
        moves = moves & (pitch[mode] == 1 << mode)
    for step in (pitch[lane + 1], pitch[deep + 1]):
        moves = moves & (step % word == 0) & (step != 0)
    for step in (pitch[deep], *pitch[deep + 2 :]):
        moves = moves & (step == 0)
    yield moves, "pairs of a first factor in registers"


def _apart(access: Access, extents: tuple[Number, ...]) -> Truth:
    """Return whether each value has a register of its own, the modes one within another."""
    pitches = [_dot(step, access.buffer.pitch) for step in access.value]
    holds: Truth = True
    for i, (one, many) in enumerate(zip(pitches, extents, strict=True)):
        holds = holds & ((one > 0) | (many == 1))
        for other, count in zip(pitches[:i], extents[:i], strict=True):
            beyond = (one >= other * count) | (other >= one * many)
            holds = holds & (beyond | (many == 1) | (count == 1))
    return holds


def _depth(y: Access) -> tuple[Number, ...]:
    """Return of a swizzled tile what a step in each dimension is in k, by the first mode of k."""
    by_k = y.value[0][1] != 0
    return (select(by_k, 0, 1), select(by_k, 1, 0), select(by_k, y.buffer.extents[1], 0))


def _line(access: Access, mode: int) -> tuple[Number, ...]:
    """Return of a swizzled tile what a step in each dimension is in rows, or in columns."""
    by_k = access.value[mode][1] != 0
    return (select(by_k, 1, 0), select(by_k, 0, 1), select(by_k, 0, access.buffer.extents[1]))


def _steps(access: Access, deep: int, weights: tuple[Number, ...]) -> list[Number]:
    """Return the steps of pair, half, the digits of threads, and groups."""
    pair, half, *groups = access.value[deep:]
    return [_dot(steps, weights) for steps in (pair, half, *access.thread, *groups)]


def _dot(steps: tuple[Number, ...], weights: tuple[Number, ...]) -> Number:
    return sum((s * w for s, w in zip(steps, weights, strict=True)), 0)


def _equal(got: Sequence[Number], want: Sequence[Number], extents: Sequence[Number]) -> Truth:
    holds: Truth = True
    for one, other, extent in zip(got, want, extents, strict=True):
        holds = holds & ((one == other) | (extent == 1))
    return holds
