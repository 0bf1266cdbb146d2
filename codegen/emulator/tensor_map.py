"""Tensor maps as TMA sees them: decoded, with the moves of their boxes.

A box is moved line by line (the first dimension is contiguous); what lies outside of the tensor is
read as ``fill`` and never written.  In shared memory the box is dense, then swizzled: an XOR of
address bits 4 to 6 with bits 7 to 9, the more of them the wider the swizzle.

In im2col mode a box is a number of pixels, each with some channels.  They follow one another line
by line through images that a corner at each end makes larger or smaller; offsets move them all.

>>> TensorMap(0, "bf16", (100, 64), (256,), (64, 8), swizzle=3).box_bytes
1024

Source: CUDA Driver API, "Tensor Map Object Management"; PTX ISA 9.0, section 5.5 (tensors), which
draws im2col: here as in Triton's tutorial of it, whose examples are tests on a Hopper GPU.
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
_MOST_BOX, _MOST_PIXELS = 256, 1024
_CORNER_BITS = {3: 16, 4: 8, 5: 5}
"""How many bits a corner's numbers and offsets have, by rank."""


def swizzled(addresses: Array, swizzle: int) -> Array:
    """Return where a swizzle puts bytes of shared memory."""
    result: Array = addresses ^ (addresses >> 3 & SWIZZLES[swizzle])
    return result


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor: ``shape`` and ``box`` in elements, innermost first; strides of all but the first.

    ``address`` is one of Memory's; ``fill`` is what is read outside.  A map for im2col has two
    ``corners``, the lower and the upper one, and its ``box`` is channels and pixels.  Raises
    LaunchError for what the driver refuses.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    fill: float = 0.0
    corners: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        rank, width = len(self.shape), self.width
        inner = self.box[0] * width
        span = 16 << self.swizzle
        least, most = (3, (_MOST_BOX, _MOST_PIXELS)) if self.corners else (1, (_MOST_BOX,) * rank)
        limit = 1 << _CORNER_BITS.get(rank, 1) - 1
        faults = {
            f"rank is {least} to 5": not least <= rank <= 5 or len(self.box) != len(most),
            "two corners of the inner dimensions, of 16, 8 or 5 bits": len(self.corners) % 2 == 1
            or any(len(c) != rank - 2 or min(c) < -limit or max(c) >= limit for c in self.corners),
            "a stride for each outer dimension": len(self.strides_bytes) != rank - 1,
            "address is a multiple of 16 B": self.address % 16 != 0,
            "strides are multiples of 16 B": any(s % 16 or s < 0 for s in self.strides_bytes),
            "boxes have 1 to 256 elements a side, or 1 to 1024 pixels": any(
                not 1 <= b <= m for b, m in zip(self.box, most, strict=False)
            ),
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

    def places(
        self, coordinates: Sequence[int], offsets: Sequence[int] = ()
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return each element's address, outermost dimension first, and which of them exist.

        Raises LaunchError if im2col mode has no pixel at the coordinates, or no such offsets.
        """
        if not self.corners:
            starts = enumerate(zip(coordinates, self.box, strict=True))
            index = [np.arange(s, s + b).reshape(-1, *[1] * n) for n, (s, b) in starts]
        else:
            channel, *start, image = coordinates
            lower, upper = self.corners
            spans = [s + u - w for s, u, w in zip(self.shape[1:-1], upper, lower, strict=True)]
            first = [s - w for s, w in zip(start, lower, strict=True)]
            outside = any(not 0 <= f < s for f, s in zip(first, spans, strict=True))
            if outside or max(offsets) >> _CORNER_BITS[len(self.shape)]:
                message = f"no pixel is at {list(coordinates)}, or offsets are too large"
                raise LaunchError(f"{message}: {list(offsets)}")
            for at, span in zip(first[::-1], spans[::-1], strict=True):
                image = image * span + at
            pixel = image + np.arange(self.box[1])[:, None]
            index = [channel + np.arange(self.box[0])]
            for span, low, offset in zip(spans, lower, offsets, strict=True):
                index.append(pixel % span + low + offset)
                pixel = pixel // span
            index.append(pixel)
        addresses, inside = np.array(self.address, np.int64), np.array(True)
        steps = (self.width, *self.strides_bytes)
        for of, size, step in zip(index, self.shape, steps, strict=True):
            addresses, inside = addresses + of * step, inside & (of >= 0) & (of < size)
        return addresses.reshape(-1), inside.reshape(-1)
