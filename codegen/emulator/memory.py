"""Global memory: NumPy arrays at invented 64-bit addresses, every access checked.

An allocation keeps the array that it was given: what a kernel writes is in that array afterwards.
Allocations lie apart, so that an address just outside of one is outside of all.

>>> import numpy as np
>>> memory = Memory()
>>> numbers = np.arange(4, dtype=np.float32)
>>> at = memory.allocate(numbers, "numbers")
>>> [part] = memory.locate(np.array([at + 8]), 4)
>>> part.cells(np.float32)
(array([0., 1., 2., 3.], dtype=float32), array([2]))

Source: PTX ISA 9.0, section 5.1 (state spaces); windows of generic addresses are this file's own.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .errors import LaunchError
from .report import Array

__all__ = ["FRAME", "FUNCTION", "LOCAL", "PARAM", "SHARED", "Memory", "Part"]

FUNCTION, PARAM, LOCAL, SHARED = 0x7A << 40, 0x7B << 40, 0x7C << 40, 0x7D << 40
"""Where generic addresses of these spaces begin; each window spans 2^32 bytes."""
FRAME = 1 << 24
"""Where the parameters of functions begin, behind those of the kernel."""
_FIRST = 0x7F << 40
_APART = 1 << 16
_ALIGN = 256  # what cudaMalloc gives


@dataclass(frozen=True, slots=True)
class Part:
    """Accesses inside one memory: which of the given ones (None: all), and at which bytes of it.

    ``start`` is the address of an allocation (0 of another memory).
    """

    which: Array | None
    at: Array
    data: Array
    start: int = 0

    def cells(self, dtype: DTypeLike) -> tuple[Array, Array]:
        """Return the memory in elements, without a last incomplete one, and which are accessed."""
        width = np.dtype(dtype).itemsize
        return self.data[: len(self.data) // width * width].view(dtype), self.at // width


class Memory:
    """The allocations of a device."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._data: list[Array] = []
        self._names: list[str] = []
        self._next = _FIRST
        self.last: Any = None  # the Grid of the last launch, if its accesses were checked

    def allocate(self, array: Array, name: str = "") -> int:
        """Return the address of an array, which has to be contiguous; its memory is shared."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise LaunchError(f"{name or 'array'}: not contiguous or read-only; give a copy of it")
        start = self._next
        flat = array.reshape(-1).view(np.uint8)
        self._starts.append(start)
        self._ends.append(start + flat.size)
        self._data.append(flat)
        self._names.append(name or f"allocation {len(self._names)}")
        self._next = (start + flat.size + _APART + _ALIGN - 1) // _ALIGN * _ALIGN
        return start

    def nearest(self, address: int) -> str:
        """Say where an address lies: ``"12 B past the end of a"``."""
        if not self._starts:
            return f"{address:#x}, and nothing is allocated"
        i = max(0, bisect.bisect_right(self._starts, address) - 1)
        start, end, name = self._starts[i], self._ends[i], self._names[i]
        if address < start:
            return f"{start - address} B before {name}"
        if address < end:
            return f"byte {address - start} of {name}, which has {end - start} B"
        return f"{address - end} B past the end of {name}, which has {end - start} B"

    def locate(self, addresses: Array, width: int) -> list[Part]:
        """Split accesses of ``width`` bytes by allocation; those outside of all are left out."""
        if not addresses.size or not self._starts:
            return []
        low, high = int(addresses.min()), int(addresses.max())
        i = bisect.bisect_right(self._starts, low) - 1
        if i >= 0 and high + width <= self._ends[i]:
            start = self._starts[i]
            return [Part(None, addresses - start, self._data[i], start)]
        owner = np.searchsorted(np.array(self._starts), addresses, "right") - 1
        inside = (owner >= 0) & (addresses + width <= np.array(self._ends)[owner])
        parts = []
        for i in np.unique(owner[inside]):
            which = np.flatnonzero(inside & (owner == i))
            start = self._starts[i]
            parts.append(Part(which, addresses[which] - start, self._data[i], start))
        return parts

    def gather(self, addresses: Array, dtype: Any, inside: Array) -> Array:
        """Read one element at each address where ``inside``; zero elsewhere and outside of all."""
        result = np.zeros(addresses.shape, dtype)
        flat, which = result.reshape(-1), np.flatnonzero(inside)
        width = result.itemsize
        for part in self.locate(addresses.reshape(-1)[which], width):
            chosen = which if part.which is None else which[part.which]
            cells, index = part.cells(dtype)
            flat[chosen] = cells[index]
        return result
