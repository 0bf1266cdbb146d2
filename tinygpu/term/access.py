"""What a warp's access to shared memory costs: wavefronts.

An access is the byte offsets of a warp's lanes, (..., 32), all lanes reading or writing
``access_bytes`` there; a lane whose offset is -1 is inactive and counts for nothing.

*Shared memory* has 32 banks of 4 B, and word w (bytes 4w to 4w + 3) lies in bank w mod 32.  Lanes
that touch one word share it.  An access takes as many *wavefronts* as the largest number of
distinct words that it touches in one bank.  This holds for accesses of up to 4 B and of 16 B; one
of 8 B is served so only if lanes 2i and 2i + 1 touch the same place, else as two half warps, one
after the other.

>>> from tinygpu.term.layout import Layout, Swizzle
>>> rows = np.arange(32)
>>> for pitch in (32, 33):                         # a column of f32, the rows `pitch` words apart
...     print(pitch, bank_wavefronts(4 * pitch * rows, 4))
32 32
33 1
>>> tile = Layout((32, 32), (32, 1), Swizzle(5, 0, 5))  # (row, column), unpadded but swizzled
>>> print(bank_wavefronts(4 * tile((rows, 7)), 4))
1

Source: CUDA C++ Programming Guide, "Shared Memory"; wide accesses: measured on an H200
(docs/decisions.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tinygpu.term.layout import Integers, LayoutError

__all__ = [
    "BANKS",
    "BANK_BYTES",
    "INACTIVE",
    "SECTOR_BYTES",
    "WARP_LANES",
    "bank_wavefronts",
]

WARP_LANES, BANKS, BANK_BYTES = 32, 32, 4  # spec: CUDA C++ Programming Guide, "Shared Memory"
SECTOR_BYTES = 32  # spec: Best Practices Guide, "Coalesced Access to Global Memory"
ACCESS_BYTES = (1, 2, 4, 8, 16)  # spec: PTX ISA, "ld"
INACTIVE = -1


def bank_wavefronts(byte_offsets_of_lanes: Integers, access_bytes: int) -> NDArray[np.int64]:
    """Return how many wavefronts a warp's shared-memory access takes: (..., 32) -> (...).

    Raises LayoutError unless there are 32 lanes, each aligned to 1, 2, 4, 8 or 16 B, or inactive.
    """
    offsets = _checked(byte_offsets_of_lanes, access_bytes)
    if offsets.ndim == 0 or offsets.shape[-1] != WARP_LANES:
        raise LayoutError(f"bank_wavefronts: shape {offsets.shape}; needs (..., {WARP_LANES})")
    units = (offsets // max(BANK_BYTES, access_bytes)).reshape(-1, WARP_LANES)
    if access_bytes == 2 * BANK_BYTES:
        even, odd = units[:, ::2], units[:, 1::2]
        paired = ((even == odd) | (even == INACTIVE) | (odd == INACTIVE)).all(axis=-1)
        halves = _distinct(units.reshape(-1, WARP_LANES // 2), 2).reshape(-1, 2).sum(axis=-1)
        wavefronts = np.where(paired, _distinct(units, 2), halves)
    else:
        wavefronts = _distinct(units, max(1, access_bytes // BANK_BYTES))
    return wavefronts.reshape(offsets.shape[:-1])


def _distinct(units: NDArray[np.int64], words: int) -> NDArray[np.int64]:
    """Return the most distinct units of ``words`` words that each row touches in one place.

    Aligned accesses of w words touch the same w banks or none in common, so whole units count.
    """
    columns = BANKS // words
    units = np.sort(units, axis=-1)
    row, lane = np.nonzero(_is_new(units))
    column = row * columns + units[row, lane] % columns
    counts = np.bincount(column, minlength=len(units) * columns).reshape(len(units), columns)
    most: NDArray[np.int64] = counts.max(axis=-1)
    return most


def _checked(byte_offsets: Integers, access_bytes: int) -> NDArray[np.int64]:
    if access_bytes not in ACCESS_BYTES:
        raise LayoutError(f"access of {access_bytes} B; allowed are {ACCESS_BYTES}")
    offsets = np.asarray(byte_offsets, np.int64)
    # A negative offset keeps its sign bit under the mask, and so is caught too.
    wrong = offsets & (np.iinfo(np.int64).min | (access_bytes - 1))
    if np.any(wrong) and np.any(wrong[offsets != INACTIVE]):
        raise LayoutError(
            f"access of {access_bytes} B: needs offsets >= 0 that it divides, or {INACTIVE}"
        )
    return offsets


def _is_new(ascending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first of each run of equal values in a row, inactive ones excepted."""
    new = np.empty(ascending.shape, np.bool_)
    np.not_equal(ascending[..., :1], INACTIVE, out=new[..., :1])
    np.not_equal(ascending[..., 1:], ascending[..., :-1], out=new[..., 1:])
    return new
