"""The raster: which tile a CTA does, from its number in the launch.

Axes count as digits do, the last one fastest; the last two are walked in groups of ``raster`` rows,
down each column of the group, so that CTAs that run together share what they read.  An axis that
is walked down counts from its end, as the tiles with most to do come first then; in a *zigzag*
every second group walks its columns back.

>>> from tinygpu.term.operation import matmul
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> program = Simt().program(matmul(), Chosen(LADDER["naive"]))
>>> text = Text()
>>> tile_of(program, text, {"bz": 1, "bm": 4, "bn": 8}, 13)
{'bz': 0, 'bm': 1, 'bn': 5}

Source: ``docs/model.md``, section "Code"; Triton, tutorials, "Matrix Multiplication".
"""

from __future__ import annotations

from collections.abc import Mapping

from tinygpu.codegen.kernel.ptx import Scalar, Text
from tinygpu.term.program import Program

__all__ = ["tile_of"]


def tile_of(
    program: Program, text: Text, extents: Mapping[str, Scalar], linear: Scalar
) -> dict[str, Scalar]:
    """Return the grid's variables of a linear number; ``extents`` are those of its axes."""
    found = _upwards(program, text, extents, linear)
    if program.zigzag and len(program.grid) > 1:
        found |= _turned(program, text, extents, found)
    down = [axis.var for axis in program.grid if axis.down]
    ends = {name: text.subtract(extents[name], 1) for name in down}
    return found | {name: text.subtract(ends[name], found[name]) for name in down}


def _turned(
    program: Program, text: Text, extents: Mapping[str, Scalar], found: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """Return the last axis's variable, counted from its end in every second group of rows."""
    *outer, row, column = (axis.var for axis in program.grid)
    number: Scalar = 0
    many: Scalar = 1
    for name in outer:
        number = text.multiply_add(number, extents[name], found[name])
        many = text.multiply(many, extents[name])
    groups = text.divide(text.add(extents[row], program.raster - 1), program.raster)
    number = text.multiply_add(number, groups, text.divide(found[row], program.raster))
    left = text.subtract(text.subtract(text.multiply(many, groups), 1), number)
    here = found[column]
    back = text.subtract(text.subtract(extents[column], 1), here)
    even = text.less(text.modulo(left, 2), 1)
    if isinstance(even, bool):
        return {column: here if even else back}
    turned = text.register("u32")
    text.emit(f"selp.b32 {turned}, {here}, {back}, {even}")
    return {column: turned}


def _upwards(
    program: Program, text: Text, extents: Mapping[str, Scalar], linear: Scalar
) -> dict[str, Scalar]:
    """Return the grid's variables where each axis is walked from 0 on."""
    axes = [axis.var for axis in program.grid]
    if len(axes) < 2:
        return dict.fromkeys(axes, linear)
    rest, found = linear, dict[str, Scalar]()
    for i, name in enumerate(axes[:-2]):
        inner = extents[axes[i + 1]]
        for faster in axes[i + 2 :]:
            inner = text.multiply(inner, extents[faster])
        if extents[name] == 1:
            found[name] = 0
            continue
        found[name] = text.divide(rest, inner)
        rest = text.subtract(rest, text.multiply(found[name], inner))
    rows, columns = (extents[name] for name in axes[-2:])
    if program.raster == 1:
        row = text.divide(rest, columns)
        column = text.subtract(rest, text.multiply(row, columns))
    else:
        group_ctas = text.multiply(columns, program.raster)
        group = text.divide(rest, group_ctas)
        first = text.multiply(group, program.raster)
        here = text.minimum(text.subtract(rows, first), program.raster)
        inside = text.subtract(rest, text.multiply(group, group_ctas))
        column = text.divide(inside, here)
        row = text.add(first, text.subtract(inside, text.multiply(column, here)))
    return found | {axes[-2]: row, axes[-1]: column}
