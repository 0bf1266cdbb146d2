"""Tensor maps: what TMA has to know of an array, derived from the term.

A statement that moves a tile between gmem and shared memory moves it in *boxes*: one for each value
of its last value mode (the slabs), each of (contiguous extent) x (lines).  Box, swizzle and array
make a tensor map of 128 bytes, which the driver encodes and the kernel takes as a parameter.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["persistent"]))
>>> for tensor_map in tensor_maps(term):
...     print(tensor_map)
c: boxes of 64 x 64, 128B swizzle
a: boxes of 64 x 128, 128B swizzle
b: boxes of 64 x 256, 128B swizzle

Source: CUDA Driver API, "Tensor Map Object Management" (cuTensorMapEncodeTiled).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinygpu.codegen import driver
from tinygpu.errors import LaunchError, ProgramError
from tinygpu.memory import DTYPES
from tinygpu.program import Access, Do, Program, walk

__all__ = [
    "TensorMap",
    "encode",
    "pitches_bytes",
    "tensor_map_of",
    "tensor_maps",
]

_BYTES = 128
_TYPES = {
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


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A map of the array ``buffer``: ``box`` in elements, contiguous dimension first.

    The dimensions that a box does not move along, as a batch's, are 1 in it.
    """

    buffer: str
    dtype: str
    box: tuple[int, ...]
    swizzle: int

    def __str__(self) -> str:
        box = " x ".join(map(str, self.box))
        return f"{self.buffer}: boxes of {box}, {_SWIZZLES[self.swizzle]} swizzle"


def tensor_map_of(do: Do) -> TensorMap:
    """Return the map that a TMA statement needs.  Raises ProgramError where no box fits it."""
    (source,) = do.reads
    assert isinstance(source, Access)
    gmem, smem = (source, do.write) if source.buffer.level == "gmem" else (do.write, source)
    extents = [int(v) for v in do.values[:2]]
    for access in (gmem, smem):
        first, second = (list(map(int, s)) for s in access.value[:2])
        strides = [s if isinstance(s, int) else 0 for s in access.buffer.stride]
        along = [i for i, s in enumerate(first) if s]
        if len(extents) != 2 or along != [strides.index(1)] or first[along[0]] != 1:
            raise ProgramError(f"{do}: value mode 0 has to run along the contiguous dimension")
        if sum(map(abs, second)) != 1 or second[along[0]]:
            raise ProgramError(f"{do}: value mode 1 has to run along another dimension, by 1")
    width = smem.buffer.type.bytes
    bits, base, shift = (int(x) for x in smem.buffer.swizzle)
    pitch = smem.buffer.stride[[int(s) for s in smem.value[1]].index(1)]
    if int(pitch) != extents[0]:
        raise ProgramError(f"{do}: rows of {extents[0]} elements land {pitch} apart")
    if bits and (16 << bits != extents[0] * width or (base, shift) != (_log2(16 // width), 3)):
        raise ProgramError(f"{do}: swizzle {smem.buffer.swizzle} is none of TMA's for its rows")
    box = [1] * len(gmem.buffer.shape)
    for extent, steps in zip(extents, gmem.value, strict=False):
        box[[bool(s) for s in steps].index(True)] = extent
    return TensorMap(gmem.buffer.name, gmem.buffer.dtype, tuple(box[::-1]), bits)


def tensor_maps(program: Program) -> tuple[TensorMap, ...]:
    """Return the program's maps, in order of first use: the order of the kernel's parameters."""
    found = (
        tensor_map_of(s)
        for s, _ in walk(program)
        if isinstance(s, Do) and s.instruction.unit == "tma"
    )
    return tuple(dict.fromkeys(found))


def _log2(number: int) -> int:
    return number.bit_length() - 1


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


def encode(
    tensor_map: TensorMap, pointer: int, shape: Sequence[int], strides: Sequence[int]
) -> bytes:
    """Encode a map of an array; returns 128 bytes that a launch takes as one argument.

    ``strides`` count elements, the last is 1.  Raises LaunchError for what the driver refuses.
    """
    width, rank = DTYPES[tensor_map.dtype].bytes, len(shape)
    lengths = [int(s) for s in reversed(shape)]
    pitches = pitches_bytes(width, shape, [int(s) * width for s in strides])
    if odd := [p for p in (pointer, *pitches) if p % 16]:
        raise LaunchError(
            f"{tensor_map.buffer}: TMA needs an address and rows that are multiples of 16 B apart, "
            f"got {odd[0]}; pad the rows, or use the machine simt"
        )
    raw = np.zeros(2 * _BYTES, np.uint8)
    start = -raw.ctypes.data % _BYTES
    held = raw[start : start + _BYTES]
    small = ctypes.c_uint32 * rank
    driver.call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(held.ctypes.data),
        ctypes.c_int(_TYPES[tensor_map.dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * rank)(*lengths),
        (ctypes.c_uint64 * rank)(*pitches, 0),
        small(*tensor_map.box),
        small(*(1,) * rank),
        ctypes.c_int(0),
        ctypes.c_int(tensor_map.swizzle),
        ctypes.c_int(_L2_PROMOTION_256B),
        ctypes.c_int(0),
        way_out="check the array's address, shape and strides",
    )
    return held.tobytes()
