"""Storage: each coordinate of a buffer has a cell of its own, and a stage holds all of them.

A buffer on chip maps coordinates to c_0 d_0 + c_1 d_1 + .., c_i below the extent e_i, then through
its swizzle.  Sort the strides.  If each is larger than all that the smaller ones reach,

    d_i > sum over d_j < d_i of (e_j - 1) d_j,      for e_i > 1,

no two coordinates have one offset; a swizzle is one to one, and keeps offsets below the next
multiple of 2 ** (base + bits).  Stages lie ``stage_elements`` apart, so they are apart, and lie in
what is reserved, if that is not less than where the last offset ends.  The condition is sufficient:
a layout that interleaves, but is one to one all the same, is refused.

>>> from tinygpu.term.access_map import Buffer
>>> padded = Buffer("x", "smem", "f32", (32, 32), (33, 1), 2, 32 * 33)
>>> [clause.holds for clause in cells(padded)]
[True, True, True]
>>> short = Buffer("x", "smem", "f32", (32, 32), (33, 1), 1, 32)
>>> print(next(clause for clause in cells(short) if not clause.holds))
x reaches over 1055 elements, and a stage of it has 32

Source: ``docs/model.md``, section "Layouts".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tinygpu.legality.law import Law
from tinygpu.legality.reach import Case, Clause, moves
from tinygpu.numbers import Number
from tinygpu.term.program import Buffer, select

__all__ = ["STORAGE_LAWS", "cells", "storage"]


def storage(case: Case) -> Iterator[Clause]:
    """Check that a buffer's coordinates have cells of their own, inside of what it reserves."""
    for buffer in case.program.buffers:
        if buffer.level != "gmem":
            yield from cells(buffer)


def cells(buffer: Buffer) -> Iterator[Clause]:
    """Yield a buffer's clauses: one for each dimension, and one for the reach of all."""
    reach: Number = 1
    modes = list(zip(buffer.extents, buffer.pitch, strict=True))
    for i, (extent, stride) in enumerate(modes):
        reach = reach + (extent - 1) * stride
        below: Number = 0
        for j, (other, step) in enumerate(modes):
            if j != i:
                under = (step < stride) if j > i else (step <= stride)
                below = below + select(under, (other - 1) * step, 0)
        text = "{} steps {} along dimension {}, and what steps less reaches {}: cells are shared"
        holds = (extent == 1) | (stride > below)
        yield Clause(holds, text, (buffer.name, stride, i, below))
    bits, base, shift = buffer.swizzle
    if moves(bits):
        block = 2 ** (base + bits + select(shift < 0, -1 * shift, 0))
        reach = select(bits == 0, reach, (reach + block - 1) // block * block)
    text = "{} reaches over {} elements, and a stage of it has {}"
    yield Clause(reach <= buffer.stage_elements, text, (buffer.name, reach, buffer.stage_elements))


STORAGE_LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            "storage",
            "States that each coordinate of a buffer on chip has a cell of its own, and that what "
            "is reserved for a stage holds them all, apart from other stages.",
            "docs/model.md, Layouts",
            "give strides that count the elements below them, and stage_elements that hold the "
            "last one",
            of_case=storage,
        ),
    )
}
"""Laws of where buffers lie; part of ``tinygpu.legality.laws.LAWS``."""
