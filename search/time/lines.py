"""Lines of whole tiles in global memory: which lie inside an array, which sectors a store touches.

A grid rounds up, so tiles may reach beyond an array.  Over all tiles of an axis, with T tiles of e
elements and a size of s, the share s / (T e) of their lines is inside.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> from tinygpu.term.program import Do, walk
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
>>> a, b = [s for s, _ in walk(term) if isinstance(s, Do) and s.signal]
>>> sizes = term.parameter_values({"m": 16, "n": 1024, "k": 64})
>>> share_inside(a, term, sizes), share_inside(b, term, sizes)
(0.125, 1.0)

Source: PTX ISA 9, "Tensor-map": accesses outside are filled with zeros; sectors: CUDA C++ Best
Practices Guide, "Coalesced Access".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.isa.fragment import FRAGMENTS
from tinygpu.term.access_map import Access
from tinygpu.term.program import Do, Program, select

__all__ = ["sectors_of_warp", "share_inside"]

Numbers = Any


def share_inside(do: Do, program: Program, values: Mapping[str, int]) -> Numbers:
    """Return the share of a load's lines, over all tiles, that lie inside the array."""
    share: Numbers = 1.0
    extents = {axis.var: axis.extent for axis in program.grid}
    for read in do.reads:
        if not isinstance(read, Access):
            continue
        for size, start in zip(read.buffer.shape, read.origin, strict=True):
            for variable, step in start.terms:
                if variable in extents:
                    covered = step * extents[variable].evaluate(values)
                    whole = values[size] if isinstance(size, str) else size
                    share = share * whole / covered
    return share


def sectors_of_warp(do: Do, values: Mapping[str, int], sector_bytes: int) -> Numbers:
    """Return the sectors that a warp's move of a fragment straight to or from gmem touches.

    Raises ProgramError if what it moves is no fragment.
    """
    access = next(a for a in do.accesses if a.buffer.level == "gmem")
    strides = [values[s] if isinstance(s, str) else s for s in access.buffer.stride]
    column, row = (
        sum((step * stride for step, stride in zip(steps, strides, strict=True)), 0)
        for steps in access.value
    )
    width = access.buffer.type.bytes
    total: Numbers = 1.0
    for extent, rows, columns in FRAGMENTS[_fragment(do)].thread_modes[:2]:  # a warp's lanes
        step_bytes = (rows * row + columns * column) * width
        near = np.ceil(extent * step_bytes / sector_bytes)
        total = total * select(np.asanyarray(step_bytes) < sector_bytes, near, extent)
    return total


def _fragment(do: Do) -> str:
    names = {access.buffer.fragment for access in do.accesses} - {""}
    if len(names) != 1:
        raise ProgramError(f"{do}: moves no fragment; the time model needs one to know its lines")
    return names.pop()
