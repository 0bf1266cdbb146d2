"""Access patterns: what one warp's access costs, for one schedule or for a whole space at once.

Lane l of a warp is thread l of the CTA, and touches the element

    sum_i t_i * step_i,   t_i = (l // (T_0 .. T_{i-1})) mod T_i

of an access with thread extents T and linear steps (coordinates' steps times the buffer's strides).
Extents and steps may be arrays over decisions.  They take few different values, so each different
pattern is counted once (by ``tinygpu.term.access``) and the counts are spread over the arrays.

>>> import numpy as np
>>> wavefronts((32,), (np.array([1, 32, 33]),), 4, 1).tolist()
[1, 32, 1]
>>> lines((32,), (np.array([1, 4092, 4096]),), 4, 1).tolist()
[1, 8, 32]

Source: ``tinygpu/term/access.py`` for what is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby

import numpy as np

from tinygpu.numbers import Integers, Number
from tinygpu.space.sharing import narrowed, remembered
from tinygpu.term.access import SECTOR_BYTES, WARP_LANES, bank_wavefronts
from tinygpu.term.layout import Swizzle

__all__ = ["lines", "wavefronts"]

LINE_BYTES = 128  # spec: CUDA C++ Programming Guide
TAGS = 4  # fitted: lines that L1 looks up in a cycle (4092^3 naive kernels, 32 lines a request)
SETS = 64  # fitted: rows 16 KiB apart crowd one set and come from L2 each time (4096^3)
Count = Callable[[Integers, int], Integers]
"""Count patterns, one a row: vector, swizzle, then extent and step of each thread mode."""


def wavefronts(
    threads: tuple[Number, ...],
    steps: tuple[Number, ...],
    width: int,
    vector: Number,
    swizzle: tuple[Number, Number, Number] = (0, 0, 0),
) -> Number:
    """Return a warp's wavefronts in shared memory; ``vector`` elements of ``width`` B a lane."""
    return _counted(_bank_wavefronts, threads, steps, width, vector, swizzle)


def lines(
    threads: tuple[Number, ...], steps: tuple[Number, ...], width: int, vector: Number
) -> Number:
    """Return the cycles of a warp's access to L1: 128 B or 4 lines in each.

    Lines that crowd one set of the cache are fetched anew each time, one in a cycle.
    """
    return _counted(_lines, threads, steps, width, vector, (0, 0, 0))


def _counted(
    count: Count,
    threads: tuple[Number, ...],
    steps: tuple[Number, ...],
    width: int,
    vector: Number,
    swizzle: tuple[Number, ...],
) -> Number:
    moves = (n for pair in zip(threads, steps, strict=True) for n in pair)
    return remembered(_each_counted_once, count, width, vector, *swizzle, *moves)


def _each_counted_once(count: Count, width: int, *numbers: Number) -> Number:
    """Count each different pattern once: number the patterns, count them, spread the answers."""
    columns = [narrowed(_plain(n)) for n in numbers[:4]]
    below = np.ones((), np.int64)
    for extent, step in zip(numbers[4::2], numbers[5::2], strict=True):
        size = narrowed(np.minimum(_plain(extent), WARP_LANES))
        size = narrowed(np.where(below < WARP_LANES, size, 1))  # beyond the warp: not its affair
        columns.append(size)
        columns.append(narrowed(np.where(size > 1, _plain(step), 0)))
        below = narrowed(np.minimum(below * size, WARP_LANES))
    if all(column.size == 1 for column in columns):
        return _one(count, tuple(column.item() for column in columns), width)
    # those over the same decisions first, then the smaller ones: few arrays get large
    order = sorted(range(len(columns)), key=lambda i: (columns[i].size, columns[i].shape))
    kinds, code = np.zeros((1, 0), np.int64), np.zeros((), np.int64)
    for _, alike in groupby(order, key=lambda i: columns[i].shape):
        inner = np.zeros((1, 0), np.int64), np.zeros((), np.int64)
        for i in alike:
            different, which = _numbered(columns[i])
            inner = _paired(*inner, different[:, None], which)
        kinds, code = _paired(kinds, code, *inner)
    answers = count(kinds[:, np.argsort(order)], width).astype(np.int32)  # half the memory
    return answers.take(code)


def _paired(
    kinds: Integers,
    code: Integers,
    more: Integers,
    which: Integers,
) -> tuple[Integers, Integers]:
    """Return the pairs of kinds that occur, a row each, and the number of each place's pair."""
    met, joint = _numbered(code * len(more) + which)
    return np.column_stack((kinds[met // len(more)], more[met % len(more)])), joint


def _numbered(array: Integers) -> tuple[Integers, Integers]:
    """Return the different values, ascending, and which one each is."""
    least, most = int(array.min()), int(array.max())
    if most - least > 4 * array.size:
        different, which = np.unique(array, return_inverse=True)
        return different, which.reshape(array.shape)
    met = np.zeros(most - least + 1, bool)  # no sort: numbers are many, and of few values
    places = array - least if least else array
    met[places] = True
    return np.flatnonzero(met) + least, (np.cumsum(met) - 1).take(places)


def _plain(number: Number) -> Integers:
    """Return an array of integers, outside of a space's memo."""
    return np.asarray(number, np.int64).view(np.ndarray)


@lru_cache(maxsize=200_000)
def _one(count: Count, row: tuple[int, ...], width: int) -> int:
    return int(count(np.array([row]), width)[0])


def _offsets(rows: Integers) -> Integers:
    """Return the elements that the lanes touch, before a swizzle: (patterns, 32)."""
    lane, total = np.arange(WARP_LANES)[None, :], np.zeros((len(rows), WARP_LANES), np.int64)
    for extent, step in zip(rows.T[4::2, :, None], rows.T[5::2, :, None], strict=True):
        total = total + lane % extent * step
        lane = lane // extent
    return total


def _bank_wavefronts(rows: Integers, width: int) -> Integers:
    at, result = _offsets(rows), np.empty(len(rows), np.int64)
    groups, group = np.unique(rows[:, :4], axis=0, return_inverse=True)
    for number, (vector, *swizzle) in enumerate(groups.tolist()):
        here = group.reshape(-1) == number
        moved = np.asarray(Swizzle(*swizzle)(at[here]), np.int64) if swizzle[0] else at[here]
        bytes_ = min(vector * width, 16)
        result[here] = bank_wavefronts(moved * width // bytes_ * bytes_, bytes_)
    return result


def _lines(rows: Integers, width: int) -> Integers:
    bytes_ = np.minimum(rows[:, :1] * width, 16)
    at = _offsets(rows) * width // bytes_ * bytes_
    at = at - at.min(axis=1, keepdims=True)
    lines, moved = _different(at // LINE_BYTES), _different(at // SECTOR_BYTES)
    row, lane = np.nonzero(lines >= 0)
    crowds = np.bincount(row * SETS + lines[row, lane] % SETS, minlength=len(rows) * SETS)
    crowded = crowds.reshape(len(rows), SETS).max(axis=1)
    found = np.maximum(
        (lines >= 0).sum(axis=1) / TAGS, (moved >= 0).sum(axis=1) * SECTOR_BYTES / LINE_BYTES
    )
    cycles: Integers = np.ceil(found).astype(np.int64)
    return np.maximum(cycles, np.where(crowded > TAGS, crowded, 1))


def _different(numbers: Integers) -> Integers:
    """Return each row's different numbers, which are not negative; -1 for the others."""
    ascending = np.sort(numbers, axis=1)
    ascending[:, 1:][ascending[:, 1:] == ascending[:, :-1]] = -1
    return ascending
