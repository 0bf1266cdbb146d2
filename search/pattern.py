"""Access patterns: what one warp's access costs, for one schedule or for a whole space at once.

Lane l of a warp is thread l of the CTA, and touches the element

    sum_i t_i * step_i,   t_i = (l // (T_0 .. T_{i-1})) mod T_i

of an access with thread extents T and linear steps (coordinates' steps times the buffer's strides).
Extents and steps may be arrays over decisions.  They take few different values, so each different
pattern is counted once (by ``tinygpu.access``) and the counts are spread over the arrays.

>>> import numpy as np
>>> wavefronts((32,), (np.array([1, 32, 33]),), 4, 1)
array([ 1, 32,  1])
>>> lines((32,), (np.array([1, 4096]),), 4, 1)[0]
array([ 4, 32])

Source: ``tinygpu/access.py`` for what is counted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.access import WARP_LANES, bank_wavefronts, sectors
from tinygpu.layout import Swizzle

__all__ = ["lines", "wavefronts"]

Numbers = Any
"""An int, or an array of them that broadcasts."""


def wavefronts(
    threads: tuple[Numbers, ...],
    steps: tuple[Numbers, ...],
    width: int,
    vector: Numbers,
    swizzle: tuple[Numbers, Numbers, Numbers] = (0, 0, 0),
) -> Numbers:
    """Return the shared-memory wavefronts of a warp's access of ``vector`` elements of ``width`` B."""
    return _counted(_bank_wavefronts, threads, steps, width, vector, swizzle)[0]


def lines(
    threads: tuple[Numbers, ...], steps: tuple[Numbers, ...], width: int, vector: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the 32 B sectors and the 128 B lines that a warp's access touches."""
    found = _counted(_sectors_and_lines, threads, steps, width, vector, (0, 0, 0))
    return found[0], found[1]


def _counted(
    count: Any,
    threads: tuple[Numbers, ...],
    steps: tuple[Numbers, ...],
    width: int,
    vector: Numbers,
    swizzle: tuple[Numbers, ...],
) -> list[Numbers]:
    """Count each different pattern once: number the patterns, look each up, spread the answers."""
    columns: list[NDArray[np.int64]] = [np.asarray(n, np.int64) for n in (vector, *swizzle)]
    below: Numbers = 1
    for extent, step in zip(threads, steps, strict=True):
        alive = np.asarray(below) < WARP_LANES
        columns.append(np.where(alive, np.minimum(extent, WARP_LANES), 1))
        columns.append(np.where(alive & (np.asarray(extent) > 1), step, 0))
        below = below * extent
    key: Any = np.int64(0)
    values: list[NDArray[np.int64]] = []
    for column in map(_narrowed, columns):
        different, code = np.unique(column, return_inverse=True)
        key = key * len(different) + code.reshape(column.shape)
        values.append(different)
    patterns, where = np.unique(key, return_inverse=True)
    rows = []
    for pattern in patterns.tolist():
        row = []
        for different in reversed(values):
            pattern, code = divmod(pattern, len(different))
            row.append(int(different[code]))
        rows.append(count(tuple(reversed(row)), width))
    answers = np.array(rows, np.int64).T
    shape = np.shape(key)
    if not shape:
        return [int(a[0]) for a in answers]
    return [a[where.reshape(shape)] for a in answers]


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
def _bank_wavefronts(row: tuple[int, ...], width: int) -> tuple[int]:
    vector, (bits, base, shift) = row[0], row[1:4]
    at = _offsets(row)
    if bits:
        at = np.asarray(Swizzle(bits, base, shift)(at), np.int64)
    bytes_ = min(vector * width, 16)
    return (int(bank_wavefronts(at * width // bytes_ * bytes_, bytes_)),)


@lru_cache(maxsize=200_000)
def _sectors_and_lines(row: tuple[int, ...], width: int) -> tuple[int, int]:
    bytes_ = min(row[0] * width, 16)
    at = _offsets(row) * width // bytes_ * bytes_
    at = at - at.min()
    return int(sectors(at, bytes_)), int(np.unique(at // 128).size)
