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

__all__ = ["TensorMap", "box_of", "encode", "pitches_bytes"]

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
    only the lines that are left of the array where whole boxes of so many lines end.
    """

    buffer: str
    dtype: str
    box: tuple[int, ...]
    swizzle: int
    rest: bool = False

    def __str__(self) -> str:
        box = " x ".join(map(str, self.box))
        what = "the rest of boxes" if self.rest else "boxes"
        return f"{self.buffer}: {what} of {box}, {_SWIZZLES[self.swizzle]} swizzle"


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


def box_of(tensor_map: TensorMap, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the box of an array's map, contiguous dimension first.

    >>> box_of(TensorMap("a", "bf16", (64, 128), 3, rest=True), (300, 4096))
    (64, 44)
    """
    inner, lines, *others = tensor_map.box
    rest = shape[-2] % lines if tensor_map.rest else 0
    return (inner, rest or lines, *others)


def encode(
    tensor_map: TensorMap, pointer: int, shape: Sequence[int], strides: Sequence[int]
) -> bytes:
    """Encode a map of an array; returns 128 bytes that a launch takes as one argument.

    ``strides`` count elements, the last is 1.  Raises KernelError for what the driver refuses.
    """
    width, rank = WIDTHS[tensor_map.dtype], len(shape)
    lengths = [int(s) for s in reversed(shape)]
    pitches = pitches_bytes(width, shape, [int(s) * width for s in strides])
    if odd := [p for p in (pointer, *pitches) if p % 16]:
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
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * rank)(*lengths),
        (ctypes.c_uint64 * rank)(*pitches, 0),
        small(*box_of(tensor_map, shape)),
        small(*(1,) * rank),
        ctypes.c_int(0),
        ctypes.c_int(tensor_map.swizzle),
        ctypes.c_int(_L2_PROMOTION_256B),
        ctypes.c_int(0),
        way_out="check the array's address, shape and strides",
    )
    return held.tobytes()
