"""Tensor maps: what TMA has to know of an array, derived from the term.

A statement that moves a tile between gmem and shared memory moves it in *boxes*: one for each value
of its last value mode (the slabs), each of (contiguous extent) x (lines), or several as high
where a box has not so many lines.  Box, swizzle and array make a tensor map, which
``runtime/maps.py`` encodes and the kernel takes as a parameter.  A load that leaves out lines has a
second map, for the last lines (``trimming.py``); a store that ends at a tile value a ragged one.
Where lines of a box lie apart in the array, those of the map are two dimensions.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["persistent"]))
>>> for tensor_map in tensor_maps(term):
...     print(tensor_map)
c: boxes of 64 x 64, 128B swizzle
a: boxes of 64 x 128, 128B swizzle
a: the rest of boxes of 64 x 128, 128B swizzle
b: boxes of 64 x 256, 128B swizzle
b: the rest of boxes of 64 x 256, 128B swizzle

Source: CUDA Driver API, "Tensor Map Object Management" (cuTensorMapEncodeTiled).
"""

from __future__ import annotations

from dataclasses import replace

from tinygpu.codegen.runtime.maps import TensorMap
from tinygpu.errors import ProgramError
from tinygpu.term.digits import box_lines, lines_apart, neighbours
from tinygpu.term.program import Access, Do, Program, walk

__all__ = ["TensorMap", "ragged_line", "tensor_map_of", "tensor_maps"]


def tensor_map_of(do: Do) -> TensorMap:
    """Return the map that a TMA statement needs.  Raises ProgramError where no box fits it."""
    (source,) = do.reads
    assert isinstance(source, Access)
    gmem, smem = (source, do.write) if source.buffer.level == "gmem" else (do.write, source)
    if neighbours(do):
        return _with_apart(do, gmem, smem)
    extents = [int(v) for v in do.values[:2]]
    extents[1:] = [int(box_lines(do)) for _ in extents[1:]]
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
    if do.trimmed and gmem.value[1][len(box) - 2] != 1:
        raise ProgramError(f"{do}: only lines along the last dimension but one can be left out")
    return TensorMap(
        gmem.buffer.name, gmem.buffer.dtype, tuple(box[::-1]), bits, ragged=ragged_line(gmem) != ""
    )


def _with_apart(do: Do, gmem: Access, smem: Access) -> TensorMap:
    """Return the map of a load whose lines lie apart: that of its neighbours, a dimension more."""
    step, near, far = int(lines_apart(do, gmem)), int(neighbours(do)), int(do.values[1])
    along, *_ = (d for d, s in enumerate(gmem.value[3]) if s)
    wrong = far != int(box_lines(do)) or do.trimmed or along != len(gmem.value[3]) - 2
    wrong |= any(s != step * n for s, n in zip(gmem.value[1], gmem.value[3], strict=True))
    pitch = [sum(int(s) * int(p) for s, p in zip(way, smem.buffer.stride, strict=True))
             for way in smem.value]  # fmt: skip
    wrong |= pitch[1] != near * pitch[3]
    if wrong:
        raise ProgramError(f"{do}: lines of one box lie at equal steps along the last dimension "
                           "but one, neighbours packed beside one another")  # fmt: skip
    neighbour = replace(
        do,
        values=(do.values[0], near, do.values[2]),
        write=replace(smem, value=tuple(smem.value[i] for i in (0, 3, 2))),
        reads=(replace(gmem, value=tuple(gmem.value[i] for i in (0, 3, 2))),),
    )
    plain = tensor_map_of(neighbour)
    inner, lines, *others = plain.box
    return plain._replace(box=(inner, lines, far, *others), apart=step)


def ragged_line(gmem: Access) -> str:
    """Return the tile value at which a store's lines end; "" if that is where the array ends.

    Raises ProgramError where it is not the lines, or not of the last dimension but one.
    """
    named = [(d, guard) for d, guard in enumerate(gmem.guard) if isinstance(guard, str)]
    if not named:
        return ""
    ((dimension, end),) = named
    if dimension != len(gmem.guard) - 2 or gmem.value[1][dimension] != 1:
        raise ProgramError(f"{gmem}: TMA ends at {end} along its lines alone, next to the last")
    return end


def tensor_maps(program: Program) -> tuple[TensorMap, ...]:
    """Return the program's maps, in order of first use: the order of the kernel's parameters."""
    found: dict[TensorMap, None] = {}
    for s, _ in walk(program):
        if isinstance(s, Do) and s.instruction.unit == "tma":
            one = tensor_map_of(s)
            found[one] = None
            if s.trimmed:
                found[one._replace(rest=True)] = None
    return tuple(found)


def _log2(number: int) -> int:
    return number.bit_length() - 1
