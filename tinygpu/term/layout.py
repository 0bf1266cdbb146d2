"""Layouts: functions from coordinates to offsets.

A layout ``shape:stride`` with modes ``s_j:d_j`` and the flat index ``i = c_0 + s_0 (c_1 + s_1 (c_2
+ ...))``, leftmost mode fastest, is the function

    layout(i) = swizzle(c_0 d_0 + c_1 d_1 + c_2 d_2 + ...),      0 <= i < s_0 s_1 s_2 ...

where ``swizzle`` is the identity unless one is given.  A stride of 0 is a broadcast.  Where a
warp's lanes touch a layout decides coalescing and bank conflicts (``tinygpu.term.access``).

>>> memory = Layout((2, 6), (6, 1))                    # (r, c) lies at 6 r + c
>>> print(memory, memory((1, 4)), memory(9))
(2,6):(6,1) 10 10
>>> Layout((4, 4), (4, 1), Swizzle(2, 0, 2))((np.arange(4), 1))
array([ 1,  4, 11, 14])

Source: CUTLASS, ``media/docs/cpp/cute/01_layout.md``, without nested modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import TinyGpuError

__all__ = ["Coordinate", "Integers", "Layout", "LayoutError", "Swizzle"]

Integers: TypeAlias = NDArray[np.integer]
Coordinate: TypeAlias = "int | Integers | tuple[int | Integers, ...]"
Offsets: TypeAlias = NDArray[np.int64]


class LayoutError(TinyGpuError, ValueError):
    """A layout that is no layout, or a coordinate that it has not."""


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``x -> x ^ ((x & mask) >> shift)``, the mask being ``bits`` ones from ``base + shift`` up.

    A negative shift moves the bits from ``base`` up to ``base - shift``.  An involution, and linear
    over GF(2).  Raises LayoutError unless ``|shift| >= bits``.  Source: CUTLASS, ``swizzle.hpp``.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        """Check that no bit is moved onto one that is read."""
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise LayoutError(f"swizzle {self}: needs bits >= 0, base >= 0 and |shift| >= bits")

    def __str__(self) -> str:
        """Return CuTe's spelling."""
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    @overload
    def __call__(self, offset: int) -> int: ...
    @overload
    def __call__(self, offset: Integers) -> Offsets: ...
    def __call__(self, offset: int | Integers) -> int | Offsets:
        """Swizzle a non-negative offset, or an array of them."""
        x: int | Offsets
        x = np.asarray(offset, np.int64) if isinstance(offset, np.ndarray) else offset
        masked = x & ((1 << self.bits) - 1) << (self.base + max(0, self.shift))
        moved = masked >> self.shift if self.shift >= 0 else masked << -self.shift
        return x ^ moved


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout; see the module's definition.  Offsets count elements.

    Raises LayoutError unless there is a stride >= 0 for each mode, whose shape is >= 1.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    swizzle: Swizzle | None = None

    def __post_init__(self) -> None:
        """Check that it is a layout."""
        if len(self.shape) != len(self.stride):
            raise LayoutError(f"layout {self}: shape and stride need as many modes")
        for s, d in zip(self.shape, self.stride, strict=True):
            if s < 1 or d < 0:
                raise LayoutError(f"layout {self}: mode {s}:{d}; needs shape >= 1, stride >= 0")

    def __str__(self) -> str:
        """Return CuTe's spelling, as in ``(4,8):(8,1) o Sw<2,0,3>``."""
        shape, stride = (f"({','.join(map(str, each))})" for each in (self.shape, self.stride))
        return f"{shape}:{stride}" + (f" o {self.swizzle}" if self.swizzle else "")

    @overload
    def __call__(self, coord: int | tuple[int, ...]) -> int: ...
    @overload
    def __call__(self, coord: Coordinate) -> int | Offsets: ...
    def __call__(self, coord: Coordinate) -> int | Offsets:
        """Return the offset(s) at a flat index, or at a tuple with one coordinate for each mode.

        Arrays broadcast against each other.  Raises LayoutError for as many coordinates as there
        are not modes, and for one out of range.
        """
        extents, each = (
            (self.shape, coord) if isinstance(coord, tuple) else ((self.size,), (coord,))
        )
        if len(each) != len(extents):
            raise LayoutError(f"coordinate of {len(each)} parts for a layout of shape {extents}")
        for c, s in zip(each, extents, strict=True):
            if isinstance(c, np.ndarray):
                low, high = (int(c.min()), int(c.max())) if c.size else (0, 0)
            else:
                low = high = c
            if low < 0 or high >= s:
                raise LayoutError(f"coordinate {low} to {high}: mode {s} takes [0, {s})")
        digits = each if isinstance(coord, tuple) else self._digits(coord)
        parts = (self._at(c) * d for c, d in zip(digits, self.stride, strict=True))
        offset = sum(parts, start=0)
        return self.swizzle(offset) if self.swizzle else offset

    def _digits(self, index: int | Integers) -> list[int | Offsets]:
        rest, digits = self._at(index), list[int | Offsets]()
        for s in self.shape:
            digits.append(rest % s)
            rest = rest // s
        return digits

    @staticmethod
    def _at(coordinate: int | Integers) -> int | Offsets:
        if isinstance(coordinate, np.ndarray):
            return np.asarray(coordinate, np.int64)
        return coordinate

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return prod(self.shape)
