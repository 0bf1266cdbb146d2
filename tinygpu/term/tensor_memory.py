"""Tensor memory: 128 lanes of 512 columns, 32 bits a cell, one for each SM (sm_100).

Where the element (row, column) of a product lies is fixed by its shape.  With R rows in a CTA, N
columns in all, and in a pair of CTAs as many rows again in the other one:

    one CTA, R = 128    "D"    lane row                     column c
    one CTA, R = 64     "F"    lane row % 16 + 32 (row//16)  column c    (half of the lanes)
    pair,    R = 128    "A"    lane row                     column c
    pair,    R = 64     "B"    lane row + 64 (2c // N)       column c % (N/2)

The first input of a product may lie there too (R = 128, one CTA): lane row, and along the columns
k, as many elements a column as 32 bits hold, the first in the low bits.

A CTA gets columns by tcgen05.alloc: a power of two, at least 32; all of its buffers lie in one
allocation, one after another, the stages of a ring side by side.  A warp can read and write only
the 32 lanes 32 (w mod 4) .., w its number in the CTA.

>>> place = placement(64, 32, paired=True)
>>> place[3].tolist()[14:18]                    # row 3: columns 14 to 17 as (lane, column)
[[3, 14], [3, 15], [67, 0], [67, 1]]

Source: PTX ISA 9, "Tensor Memory", "Data Path Layout Organization".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tinygpu.numbers import Integers, Number
from tinygpu.term.program import Buffer, Do, Program, select

__all__ = [
    "COLUMNS", "LANES", "RowLanes", "allocated_columns", "columns_of", "first_columns",
    "placement", "used_columns",
]  # fmt: skip

LANES, COLUMNS = 128, 512  # spec
_CELL_BYTES = 4  # spec
_LEAST = 32  # spec: columns of an allocation


def placement(rows: int, columns: int, *, paired: bool) -> Integers:
    """Return (lane, column) of each element: (rows of one CTA, columns, 2)."""
    row, column = (np.asarray(x) for x in np.indices((rows, columns)))
    if rows == LANES // 2 and paired:
        half = columns // 2
        row, column = row + 64 * (column // half), column % half
    elif rows == LANES // 2:
        row = row % 16 + 32 * (row // 16)
    return np.stack((row, column), axis=-1)


@dataclass(frozen=True, slots=True)
class RowLanes:
    """Which lanes ``rows`` of a CTA have: numbers, or tables of a space.

    ``near`` rows have neighbouring lanes, the next rows (or the other half of the columns, where
    there are two ``halves``) those ``apart`` lanes further on.

    >>> [(x.near, x.apart, x.halves) for x in map(RowLanes, (128, 64, 64), (False, False, True))]
    [(64, 64, 1), (16, 32, 1), (64, 64, 2)]
    """

    rows: int
    paired: bool

    @property
    def near(self) -> int:
        """Return how many rows have neighbouring lanes."""
        return LANES // 2 if self.paired else select(self.rows == LANES // 2, 16, LANES // 2)

    @property
    def apart(self) -> int:
        """Return how far the next ones lie from those."""
        return LANES // 2 if self.paired else select(self.rows == LANES // 2, 32, LANES // 2)

    @property
    def halves(self) -> int:
        """Return in how many parts the columns lie, each in lanes of its own."""
        return select(self.rows == LANES // 2, 2, 1) if self.paired else 1

    def of(self, do: Do) -> Do:
        """Return a statement by the threads that have these lanes: near, none, further on."""
        near, apart = self.near, self.apart
        full = apart // near
        lanes = None if isinstance(full, int) and full == 1 else (near, full, 0)
        return replace(do, threads=(near, full, LANES // apart), lanes=lanes)


def columns_of(buffer: Buffer) -> Number:
    """Return the columns of a stage of a buffer in tensor memory."""
    return -(-buffer.extents[1] * buffer.type.bytes // _CELL_BYTES)


def used_columns(program: Program) -> Number:
    """Return the columns that a program's buffers have in all."""
    return sum(columns_of(b) * b.stages for b in program.buffers if b.level == "tmem")


def allocated_columns(program: Program) -> Number:
    """Return the columns that are allocated: the least power of two that is enough."""
    used, most = used_columns(program), _LEAST
    found: Number = 2 * COLUMNS
    for columns in (COLUMNS, COLUMNS // 2, COLUMNS // 4, COLUMNS // 8, most):
        found = select(used <= columns, columns, found)
    return found


def first_columns(program: Program) -> Mapping[str, int]:
    """Return the column of the allocation at which each buffer starts."""
    found: dict[str, int] = {}
    next_column = 0
    for buffer in program.buffers:
        if buffer.level == "tmem":
            found[buffer.name] = next_column
            next_column += int(columns_of(buffer)) * int(buffer.stages)
    return found
