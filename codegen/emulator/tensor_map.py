"""Tensor maps as TMA sees them: decoded, with the moves of their boxes.

A box is moved line by line (the first dimension is contiguous); what lies outside of the tensor is
read as ``fill`` and never written.  In shared memory the box is dense, then swizzled: an XOR of
address bits 4 to 6 with bits 7 to 9, the more of them the wider the swizzle.

>>> TensorMap(0, "bf16", (100, 64), (256,), (64, 8), swizzle=3).box_bytes
1024

Source: CUDA Driver API, "Tensor Map Object Management"; PTX ISA 9.0, section 5.5 (tensors).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import LaunchError
from .report import Array
from .values import TYPES

__all__ = ["SWIZZLES", "TensorMap", "swizzled"]

SWIZZLES = {0: 0, 1: 0x10, 2: 0x30, 3: 0x70}
"""The address bits that each swizzle changes: none, 32 B, 64 B, 128 B."""
_MOST_BOX = 256


def swizzled(addresses: Array, swizzle: int) -> Array:
    """Return where a swizzle puts bytes of shared memory."""
    result: Array = addresses ^ (addresses >> 3 & SWIZZLES[swizzle])
    return result


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor: ``shape`` and ``box`` in elements, innermost first; strides of all but the first.

    ``address`` is one of Memory's; ``fill`` is what is read outside.  Raises LaunchError for what
    the driver refuses.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    fill: float = 0.0

    def __post_init__(self) -> None:
        rank, width = len(self.shape), self.width
        inner = self.box[0] * width
        span = 16 << self.swizzle
        faults = {
            "rank is 1 to 5": not 1 <= rank <= 5 or len(self.box) != rank,
            "a stride for each outer dimension": len(self.strides_bytes) != rank - 1,
            "address is a multiple of 16 B": self.address % 16 != 0,
            "strides are multiples of 16 B": any(s % 16 or s < 0 for s in self.strides_bytes),
            "boxes have 1 to 256 elements a side": any(not 1 <= b <= _MOST_BOX for b in self.box),
            "a box's lines are multiples of 16 B": inner % 16 != 0,
            "a box's lines fit the swizzle": self.swizzle > 0 and inner > span,
        }
        for law, broken in faults.items():
            if broken:
                raise LaunchError(f"tensor map: {law}; got {self}")

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return TYPES[self.dtype].itemsize

    @property
    def box_bytes(self) -> int:
        """Bytes of a box, whatever part of it is outside."""
        return int(np.prod(self.box)) * self.width

    def places(self, coordinates: Sequence[int]) -> tuple[Array, Array]:
        """Return each element's address, outermost dimension first, and which of them exist."""
        shape = tuple(reversed(self.box))
        addresses = np.full(shape, self.address, np.int64)
        inside = np.ones(shape, bool)
        for n, start in enumerate(coordinates):
            index = np.arange(start, start + self.box[n])
            step = self.width if n == 0 else self.strides_bytes[n - 1]
            view = [1] * len(shape)
            view[len(shape) - 1 - n] = -1
            addresses += (index * step).reshape(view)
            inside &= ((index >= 0) & (index < self.shape[n])).reshape(view)
        return addresses.reshape(-1), inside.reshape(-1)
