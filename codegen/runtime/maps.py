"""Tensor maps, encoded: what TMA has to know of an array, in the driver's 128 bytes.

Source: CUDA Driver API, "Tensor Map Object Management" (cuTensorMapEncodeTiled).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tinygpu.codegen.runtime.driver import call
from tinygpu.codegen.runtime.views import WIDTHS
from tinygpu.errors import KernelError

__all__ = ["MappedArray", "TensorMap", "encode", "mapped_array", "pitches_bytes"]

_MAP_BYTES = 128
_MAP_TYPES = {
    "e4m3": 0,
    "e5m2": 0,
    "f16": 6,
    "f32": 7,
    "tf32": 7,
    "f64": 8,
    "bf16": 9,
}  # spec: CUtensorMapDataType
_SWIZZLES = {0: "no", 1: "32B", 2: "64B", 3: "128B"}
_L2_PROMOTION_256B = 3  # spec: CUtensorMapL2promotion


class TensorMap(NamedTuple):
    """A map of the array ``buffer``: ``box`` in elements, contiguous dimension first.

    The dimensions that a box does not move along, as a batch's, are 1 in it.  ``rest``: the box has
    only the lines that are left of the array where whole boxes of so many lines end.  ``ragged``: a
    box ends at any line (see ``mapped_array``).  ``apart``: lines are two dimensions, of so many
    neighbours and of every one that lies so far apart; 0: they are one.
    """

    buffer: str
    dtype: str
    box: tuple[int, ...]
    swizzle: int
    rest: bool = False
    ragged: bool = False
    apart: int = 0

    def __str__(self) -> str:
        box = " x ".join(map(str, self.box))
        what = "the rest of boxes" if self.rest else "ragged boxes" if self.ragged else "boxes"
        lie = f", lines {self.apart} apart" if self.apart else ""
        return f"{self.buffer}: {what} of {box}{lie}, {_SWIZZLES[self.swizzle]} swizzle"


def pitches_bytes(width: int, shape: Sequence[int], strides_bytes: Sequence[int]) -> list[int]:
    """Return the steps of a map's dimensions but the innermost, innermost first.

    ``width`` is an element's bytes; ``shape`` and ``strides_bytes`` have the contiguous dimension
    last.  Where there is one line, the distance to the next is free: a multiple of 16 B.

    >>> pitches_bytes(2, (3, 8), (16, 2)), pitches_bytes(2, (1, 5), (10, 2))
    ([16], [16])
    """
    lengths = [int(s) for s in reversed(shape)]
    pitches = [int(s) for s in reversed(strides_bytes)][1:]
    for d in range(1, len(lengths)):
        if lengths[d] == 1:
            below = pitches[d - 2] if d > 1 else width
            pitches[d - 1] = -(-lengths[d - 1] * below // 16) * 16
    return pitches


class MappedArray(NamedTuple):
    """An array as a map sees it: all but the address innermost first, lengths and box in elements.

    ``pitches`` are the steps of all dimensions but the innermost, in bytes.
    """

    address: int
    lengths: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]


def mapped_array(
    tensor_map: TensorMap, address: int, width: int, shape: Sequence[int],
    strides_bytes: Sequence[int],
) -> MappedArray:  # fmt: skip
    """Return an array as a map sees it; ``width`` is an element's bytes, the last stride is that.

    Of a ragged map the lines are two dimensions of one pitch P, of H and of all lines and one more,
    for boxes of H lines; and the address is H lines before the array's.  The box of coordinates
    (H - r, first + r) is that of the lines from ``first`` on, of which only r are inside: those of
    which the first coordinate is below H.  So a box may end at any line, and no other map is made.

    >>> rest = TensorMap("a", "bf16", (64, 128), 3, rest=True)
    >>> mapped_array(rest, 0, 2, (300, 4096), (8192, 2)).box
    (64, 44)
    >>> mapped_array(rest._replace(rest=False, ragged=True), 2**40, 2, (300, 64), (128, 2))
    MappedArray(address=1099511611392, lengths=(64, 128, 301), pitches=(128, 128), box=(64, 128, 1))

    Of a map whose lines lie ``apart`` they are two dimensions: one of neighbours, one of steps.

    >>> split = TensorMap("k", "e4m3", (128, 2, 32), 3, apart=4)
    >>> mapped_array(split, 0, 1, (256, 128), (128, 1))
    MappedArray(address=0, lengths=(128, 4, 64), pitches=(128, 512), box=(128, 2, 32))

    Raises KernelError where they are no whole number of steps.

    Source: Triton, "ragged TMA", for two dimensions of one pitch.
    """
    lengths = tuple(int(s) for s in reversed(shape))
    pitches = tuple(pitches_bytes(width, shape, strides_bytes))
    inner, lines, *others = tensor_map.box
    if step := tensor_map.apart:
        first, many, *more = lengths
        near, *further = pitches
        if many % step:
            raise KernelError(
                f"{tensor_map.buffer}: {many} lines, loaded {step} at a time; pad them to a "
                f"multiple of {step}"
            )
        lengths, pitches = (first, step, many // step, *more), (near, step * near, *further)
        return MappedArray(address, lengths, pitches, tensor_map.box)
    if tensor_map.ragged:
        first, many, *more = lengths
        apart, *further = pitches
        lengths, pitches = (first, lines, many + 1, *more), (apart, apart, *further)
        return MappedArray(address - lines * apart, lengths, pitches, (inner, lines, 1, *others))
    rest = lengths[1] % lines if tensor_map.rest else 0
    return MappedArray(address, lengths, pitches, (inner, rest or lines, *others))


def encode(
    tensor_map: TensorMap, pointer: int, shape: Sequence[int], strides: Sequence[int]
) -> bytes:
    """Encode a map of an array; returns 128 bytes that a launch takes as one argument.

    ``strides`` count elements, the last is 1.  Raises KernelError for what the driver refuses.
    """
    width = WIDTHS[tensor_map.dtype]
    array = mapped_array(tensor_map, pointer, width, shape, [int(s) * width for s in strides])
    rank = len(array.lengths)
    if odd := [p for p in (pointer, *array.pitches) if p % 16]:
        raise KernelError(
            f"{tensor_map.buffer}: TMA needs an address and rows that are multiples of 16 B apart, "
            f"got {odd[0]}; pad the rows, or use the machine simt"
        )
    raw = np.zeros(2 * _MAP_BYTES, np.uint8)
    start = -raw.ctypes.data % _MAP_BYTES
    held = raw[start : start + _MAP_BYTES]
    small = ctypes.c_uint32 * rank
    call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(held.ctypes.data),
        ctypes.c_int(_MAP_TYPES[tensor_map.dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(array.address),
        (ctypes.c_uint64 * rank)(*array.lengths),
        (ctypes.c_uint64 * rank)(*array.pitches, 0),
        small(*array.box),
        small(*(1,) * rank),
        ctypes.c_int(0),
        ctypes.c_int(tensor_map.swizzle),
        ctypes.c_int(_L2_PROMOTION_256B),
        ctypes.c_int(0),
        way_out="check the array's address, shape and strides",
    )
    return held.tobytes()
