"""Matrices in shared memory as wgmma and tcgen05 find them: through a 64-bit descriptor.

The address of element (row, k), T being the elements in 16 B and S those in a swizzled line:

- K-major, plain: cores of 8 rows by 16 B; ``LBO`` to the next along k, ``SBO`` to the next 8 rows;
- K-major, swizzled: lines of S along k; ``SBO`` from 8 rows to the next 8;
- MN-major, plain: cores of 8 k by 16 B; ``SBO`` to the next T rows, ``LBO`` to the next 8 k;
- MN-major, swizzled: lines of S rows for a k; ``LBO`` to the next S rows, ``SBO`` to the next 8 k;

then the swizzle, an XOR of the address' bits.  Sixteen elements of 4 or 6 bits lie packed at the
beginning of 16 B, the first one lowest, and count as elements of 8 bits.

>>> int(offsets(0, 16, 1024, 3, False, rows=9, columns=16, width=2)[8, 8])
1040

Source: PTX ISA 9.0, sections 9.7.15.5 (wgmma matrix descriptor) and 9.7.16.4 (tcgen05's).
"""

from __future__ import annotations

import functools

import numpy as np

from .report import Array
from .run import FIRST_SHARED, Run
from .tensor_map import swizzled
from .values import TYPES, numbers

__all__ = ["NARROW", "elements", "matrix_at", "offsets"]

_WGMMA = {0: 0, 1: 3, 2: 2, 3: 1}
_TCGEN05 = {0: 0, 2: 3, 4: 2, 6: 1}
_WHOLE = 1024
NARROW = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
"""How many bits types of less than 8 have."""


@functools.lru_cache(256)
def offsets(
    start: int, lbo: int, sbo: int, swizzle: int, mn_major: bool, *, rows: int, columns: int,
    width: int,
) -> Array:  # fmt: skip
    """Return the byte address of each element, ``start`` being below 1024: (rows, columns)."""
    r, k = np.arange(rows)[:, None], np.arange(columns)[None]
    line = 16 << swizzle
    if not mn_major:
        along = k * width
        if swizzle:
            at = r % 8 * line + r // 8 * sbo + along
        else:
            at = r % 8 * 16 + r // 8 * sbo + along // 16 * lbo + along % 16
    else:
        held = line // width
        inner = k % 8 * line + r % held * width
        far, near = (lbo, sbo) if swizzle else (sbo, lbo)
        at = r // held * far + k // 8 * near + inner
    result: Array = swizzled(start + at, swizzle)
    result.setflags(write=False)
    return result


def matrix_at(
    run: Run, cta: int, bits: int, kind: str, shape: tuple[int, int], mn_major: bool,
    *, tcgen05: bool = False,
) -> Array | None:  # fmt: skip
    """Return each element's offset in ``run.shared``: (rows, columns); reports what is outside."""
    table, field = (_TCGEN05, bits >> 61) if tcgen05 else (_WGMMA, bits >> 62)
    if field not in table or bits >> 49 & 7:
        run.find("descriptor", f"{bits:#x}: this swizzle or base offset is not run")
        return None
    if tcgen05 and bits >> 46 & 7 != 1:
        run.find("descriptor", f"{bits:#x}: bits 46 to 48 are 1 in a descriptor of tcgen05")
    start, lbo, sbo = ((bits >> s & 0x3FFF) << 4 for s in (0, 16, 32))
    width, (rows, columns) = TYPES[kind].itemsize, shape
    at = offsets(
        start % _WHOLE, lbo, sbo, table[field], mn_major, rows=rows, columns=columns, width=width
    )
    inside = at + (start - start % _WHOLE - FIRST_SHARED)
    if inside.min() < 0 or inside.max() + width > run.own_bytes:
        reach = f"{bits:#x} reaches shared bytes {inside.min()} to {inside.max()}"
        run.find("descriptor", f"{reach} of {run.own_bytes}")
        return None
    result: Array = inside + cta * run.shared_bytes
    return result


def elements(run: Run, at: Array, kind: str) -> Array:
    """Return the elements at offsets of ``run.shared``, as float64."""
    if kind in NARROW:
        size = NARROW[kind]
        blocks = np.unpackbits(run.shared[at].reshape(-1, 16), axis=1, bitorder="little")
        codes = np.packbits(blocks[:, : 16 * size].reshape(-1, size), axis=1, bitorder="little")
        return numbers(codes, kind).reshape(at.shape)
    width = TYPES[kind].itemsize
    return numbers(run.shared.view(f"u{width}")[at // width], kind)
