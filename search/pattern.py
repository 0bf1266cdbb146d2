"""Access patterns: what one warp's access costs, for one schedule or for a whole space at once.

Lane l of a warp is thread l of the CTA, and touches the element

    sum_i t_i * step_i,   t_i = (l // (T_0 .. T_{i-1})) mod T_i

of an access with thread extents T and linear steps (coordinates' steps times the buffer's strides).
Extents and steps may be arrays over decisions.  They take few different values, so each different
pattern is counted once (by ``tinygpu.access``) and the counts are spread over the arrays.

>>> import numpy as np
>>> wavefronts((32,), (np.array([1, 32, 33]),), 4, 1)
array([ 1, 32,  1])
>>> lines((32,), (np.array([1, 4092, 4096]),), 4, 1)
array([ 1,  8, 32])

Source: ``tinygpu/access.py`` for what is counted.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.access import SECTOR_BYTES, WARP_LANES, bank_wavefronts
from tinygpu.layout import Swizzle
from tinygpu.sharing import remembered

__all__ = ["lines", "wavefronts"]

LINE_BYTES = 128  # spec: CUDA C++ Programming Guide
TAGS = 4  # fitted: lines that L1 looks up in a cycle (4092^3 naive kernels, 32 lines a request)
SETS = 64  # fitted: rows 16 KiB apart crowd one set and come from L2 each time (4096^3)
Numbers = Any
"""An int, or an array of them that broadcasts."""


def wavefronts(
    threads: tuple[Numbers, ...],
    steps: tuple[Numbers, ...],
    width: int,
    vector: Numbers,
    swizzle: tuple[Numbers, Numbers, Numbers] = (0, 0, 0),
) -> Numbers:
    """Return a warp's wavefronts in shared memory; ``vector`` elements of ``width`` B a lane."""
    return _counted(_bank_wavefronts, threads, steps, width, vector, swizzle)


def lines(
    threads: tuple[Numbers, ...], steps: tuple[Numbers, ...], width: int, vector: Numbers
) -> Numbers:
    """Return the cycles of a warp's access to L1: 128 B or 4 lines in each.

    Lines that crowd one set of the cache are fetched anew each time, one in a cycle.
    """
    return _counted(_lines, threads, steps, width, vector, (0, 0, 0))


def _counted(
    count: Any,
    threads: tuple[Numbers, ...],
    steps: tuple[Numbers, ...],
    width: int,
    vector: Numbers,
    swizzle: tuple[Numbers, ...],
) -> Numbers:
    moves = (n for pair in zip(threads, steps, strict=True) for n in pair)
    return remembered(_each_counted_once, count, width, vector, *swizzle, *moves)


def _each_counted_once(count: Any, width: int, *numbers: Numbers) -> Numbers:
    """Count each different pattern once: number the patterns, look each up, spread the answers."""
    columns = [_narrowed(_plain(n)) for n in numbers[:4]]
    below = np.ones((), np.int64)
    for extent, step in zip(numbers[4::2], numbers[5::2], strict=True):
        size = _narrowed(np.minimum(_plain(extent), WARP_LANES))
        size = _narrowed(np.where(below < WARP_LANES, size, 1))  # beyond the warp: not its affair
        columns.append(size)
        columns.append(_narrowed(np.where(size > 1, _plain(step), 0)))
        below = _narrowed(np.minimum(below * size, WARP_LANES))
    key: Any = np.int64(0)
    most = 1
    values: list[NDArray[np.int64]] = []
    for column in columns:
        different, code = np.unique(column, return_inverse=True)
        key = key * len(different) + code.reshape(column.shape)
        most *= len(different)
        values.append(different)
    patterns, where = _numbered(key, most)
    answers = []
    for pattern in patterns.tolist():
        row = []
        for different in reversed(values):
            pattern, code = divmod(pattern, len(different))
            row.append(int(different[code]))
        answers.append(count(tuple(reversed(row)), width))
    if not np.shape(key):
        return answers[0]
    return np.array(answers, np.int64)[where.reshape(np.shape(key))]


def _numbered(key: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the different keys, which are below ``most``, ascending, and which each one is."""
    if most > 4 * np.size(key):
        return np.unique(key, return_inverse=True)
    met = np.zeros(most, bool)  # no sort: keys are many, and of few kinds
    met[key] = True
    return np.flatnonzero(met), (np.cumsum(met) - 1)[key]


def _plain(number: Numbers) -> NDArray[np.int64]:
    """Return an array of integers, outside of a space's memo."""
    return np.asarray(number, np.int64).view(np.ndarray)


def _narrowed(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drop to length 1 every axis along which nothing changes."""
    for axis, length in enumerate(array.shape):
        if length > 1:
            first = array.take([0], axis=axis)
            if (array == first).all():
                array = first
    return array


def _offsets(row: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the elements that the lanes touch, before a swizzle."""
    lane, total = np.arange(WARP_LANES), np.zeros(WARP_LANES, np.int64)
    for extent, step in zip(row[4::2], row[5::2], strict=True):
        total = total + lane % extent * step
        lane = lane // extent
    return total


@lru_cache(maxsize=200_000)
def _bank_wavefronts(row: tuple[int, ...], width: int) -> int:
    vector, (bits, base, shift) = row[0], row[1:4]
    at = _offsets(row)
    if bits:
        at = np.asarray(Swizzle(bits, base, shift)(at), np.int64)
    bytes_ = min(vector * width, 16)
    return int(bank_wavefronts(at * width // bytes_ * bytes_, bytes_))


@lru_cache(maxsize=200_000)
def _lines(row: tuple[int, ...], width: int) -> int:
    bytes_ = min(row[0] * width, 16)
    at = _offsets(row) * width // bytes_ * bytes_
    at = at - at.min()
    lines = np.unique(at // LINE_BYTES)
    moved = np.unique(at // SECTOR_BYTES).size * SECTOR_BYTES / LINE_BYTES
    crowded = int(np.bincount(lines % SETS).max())
    return max(math.ceil(max(lines.size / TAGS, moved)), crowded if crowded > TAGS else 1)
