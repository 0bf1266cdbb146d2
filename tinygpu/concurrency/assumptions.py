"""Assumptions: what the cutoff theorem needs of a program, a law for each.

Most are read while the program is laid out (``blocks``): names are bound once and trip counts are
parameters; loops of unknown length can be laid beside one another; guards are distances to a loop's
ends; indices of a ring move alike and forwards; tiles are taken in turn.  Two more are read from
the program as it was written, before its maps are erased:

    declared   a statement's barriers and buffers are the ones that the program declares
    storage    a stage of a buffer holds its whole layout, no two elements at one place

>>> from dataclasses import replace
>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import matmul
>>> program = Simt().program(matmul("f32"), Chosen(LADDER["shared"]))
>>> assumptions(program)
()
>>> small = replace(program.buffers[-1], shape=(4, 2), stride=(2, 1), stage_elements=7)
>>> print(*stored((small,)))
storage: a stage of b_fragment reserves 7 elements, and its layout has 8; reserve them

Source: ``docs/one-judge.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tinygpu.errors import TinyGpuError
from tinygpu.program import Arrive, Buffer, Do, Exit, Program, Wait, walk

__all__ = ["assumptions", "stored"]


def assumptions(program: Program) -> tuple[str, ...]:
    """Return what does not hold, of what is read from the program as it was written."""
    return (*_declared(program), *stored(program.buffers))


def _declared(program: Program) -> Iterable[str]:
    """State that a name stands for one barrier, or buffer, with one number of stages."""
    barriers = {b.name: b for b in program.barriers}
    buffers = {b.name: b for b in program.buffers}
    failed: dict[str, None] = {}
    for statement, _ in walk(program):
        used = [statement.barrier] if isinstance(statement, Wait | Arrive) else []
        if isinstance(statement, Do) and statement.signal:
            used.append(statement.signal[0])
        for barrier in used:
            if barrier is not barriers[barrier.name] and barrier != barriers[barrier.name]:
                failed[f"declared: {statement} uses {barrier}, and declared is "
                       f"{barriers[barrier.name]}; use that"] = None  # fmt: skip
        for access in statement.accesses if isinstance(statement, Do | Exit) else ():
            b = access.buffer
            if b is not buffers[b.name] and b != buffers[b.name]:
                failed[f"declared: {statement} uses another {b.name} than is declared; "
                       "use that"] = None  # fmt: skip
    return failed


def stored(buffers: Iterable[Buffer]) -> Iterable[str]:
    """State that a stage holds its layout, and that the layout gives each element a place."""
    found = []
    for b in buffers:
        if b.level == "gmem":
            continue
        shape, stride = tuple(map(int, b.shape)), tuple(map(int, b.stride))
        text = _storage(b.level, shape, stride, tuple(map(int, b.swizzle)), int(b.stage_elements))
        if text:
            found.append(f"storage: a stage of {b.name} {text}")
    return found


@lru_cache(4096)
def _storage(
    level: str,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    swizzle: tuple[int, ...],
    reserved: int,
) -> str:
    """Return what is wrong with a stage's layout; tensor memory's is its own columns."""
    if level == "tmem":
        return ""
    buffer = Buffer("x", "smem", "f32", shape, stride, swizzle=(swizzle[0], swizzle[1], swizzle[2]))
    try:
        places = np.asarray(buffer.layout(tuple(np.indices(shape)))).ravel()
    except TinyGpuError as error:
        return f"has no layout: {error}"
    if not places.size:
        return ""
    last = int(places.max()) + 1
    if int(places.min()) < 0 or last > reserved:
        return f"reserves {reserved} elements, and its layout has {last}; reserve them"
    if np.bincount(places, minlength=last).max() > 1:
        return "has two elements at one place; give its layout other strides"
    return ""
