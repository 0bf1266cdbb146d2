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
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.errors import LaunchError, ProgramError
from tinygpu.memory import DTYPES
from tinygpu.program import Access, Do, Program, walk

__all__ = [
    "TensorMap",
    "active_clusters",
    "early_launch",
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
_CLUSTER_DIMENSION = 4  # spec: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_EARLY = 6  # spec: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


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


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else str(code)
        raise LaunchError(f"{name}: {reason}; check the array's address, shape and strides")


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
) -> np.ndarray[Any, Any]:
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
    _call(
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
    )
    return held.view(f"V{_BYTES}")


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_uint32 * 16),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("sizes", ctypes.c_uint32 * 7),  # grid, block, bytes of shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


def active_clusters(function: int, cluster: int, threads: int, smem_bytes: int) -> int:
    """Return how many clusters of a loaded function are resident on the device at once."""
    attribute = _Attribute(id=_CLUSTER_DIMENSION)
    attribute.value[:3] = (cluster, 1, 1)
    config = _Config(attributes=ctypes.pointer(attribute), count=1)
    config.sizes[:] = (cluster, 1, 1, threads, 1, 1, smem_bytes)
    found = ctypes.c_int()
    _call(
        "cuOccupancyMaxActiveClusters",
        ctypes.byref(found),
        ctypes.c_void_p(function),
        ctypes.byref(config),
    )
    return found.value


def early_launch(
    function: int, grid: int, threads: int, smem_bytes: int, arguments: Sequence[Any]
) -> Callable[[int], None]:
    """Return a launch that may start before the kernel before it on the stream has ended.

    ``arguments`` are NumPy scalars or arrays of one element.  Raises LaunchError where the driver
    refuses.
    """
    held = [np.ascontiguousarray(a).reshape(1) for a in arguments]
    pointers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
    attribute = _Attribute(id=_EARLY)
    attribute.value[0] = 1
    config = _Config(attributes=ctypes.pointer(attribute), count=1)
    config.sizes[:] = (grid, 1, 1, threads, 1, 1, smem_bytes)

    def launch(stream: int) -> None:
        config.stream = stream
        assert held  # the driver reads them at each launch
        _call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(function), pointers, None)

    return launch
