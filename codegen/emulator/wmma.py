"""Matrices of a warp whose places in registers PTX leaves open: wmma.load, wmma.mma, wmma.store.

Here lane L holds the elements L E to L E + E - 1 of a matrix in row-major order, E of them in all
of its registers; if 32 E is more than the matrix has, elements are there twice.  A kernel that
takes another order for granted is outside of PTX's promises, and goes wrong here.

Source: PTX ISA 9.0, section 9.7.14.4 (wmma).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.codegen.emulator import spaces
from tinygpu.codegen.emulator.decoder import Builder, Control, Decoder, Source, together
from tinygpu.codegen.emulator.group import WARP, Group
from tinygpu.codegen.emulator.moves import space_of
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run

__all__ = ["TABLE"]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One operand: its extents, its type, its registers, and how many elements one of them has."""

    rows: int
    columns: int
    dtype: np.dtype[Any]
    names: tuple[str, ...]
    each: int
    bits: str

    @property
    def held(self) -> int:
        """How many elements a lane has."""
        return self.each * len(self.names)

    def values(self, run: Run, group: Group, read: Source) -> Array:
        """Return the matrices of whole warps, as float64: (warps, rows, columns)."""
        flat = read(run, group).view(self.dtype).reshape(group.size // WARP, -1)
        whole = flat[:, : self.rows * self.columns].astype(np.float64)
        result: Array = whole.reshape(-1, self.rows, self.columns)
        return result

    def addresses(self, group: Group, start: Array, pitch: Array | int, *, turned: bool) -> Array:
        """Return the addresses of each thread's elements: (threads, held)."""
        index = (group.threads % WARP)[:, None] * self.held + np.arange(self.held)
        row, column = index // self.columns % self.rows, index % self.columns
        slow, fast = (column, row) if turned else (row, column)
        pitches = np.broadcast_to(np.asarray(pitch, np.int64), (group.size,))[:, None]
        places: Array = start[:, None] + (slow * pitches + fast) * self.dtype.itemsize
        return places


def _matrix(d: Decoder, i: Instruction, which: str, kind: str, text: str) -> _Matrix:
    """Read the operand ``which`` (a, b, c or d) of a ``.m..n..k..``."""
    found = re.search(r"\.m(\d+)n(\d+)k(\d+)", i.opcode)
    if not found:
        raise d.error("no shape .m..n..k.. is named")
    m, n, k = map(int, found.groups())
    rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
    names, dtype = d.listed(text), d.kind(kind)
    width = d.widths[d.register(names[0])]
    each = width // dtype.itemsize
    if not each or WARP * each * len(names) % (rows * columns):
        raise d.error(f"{len(names)} registers of {width} B hold no {rows} x {columns} of {kind}")
    return _Matrix(rows, columns, dtype, names, each, f"b{8 * width}")


def _turned(i: Instruction) -> bool:
    return "col" in i.parts


def _pitch(d: Decoder, i: Instruction, matrix: _Matrix) -> Source:
    """Return the operand that says how far rows (or columns) lie apart, in elements."""
    packed = matrix.rows if _turned(i) else matrix.columns
    return d.source(i.operands[2] if len(i.operands) > 2 else str(packed), "s32")


def _load(d: Decoder, i: Instruction) -> Control:
    space = space_of(d, i)
    matrix = _matrix(d, i, i.parts[2], i.parts[-1], i.operands[0])
    at, pitch = d.address(i.operands[1]), _pitch(d, i, matrix)
    write = d.vector_target(i.operands[0], matrix.bits)
    d.touch(matrix.dtype.itemsize)

    def load(run: Run, here: Group) -> None:
        places = matrix.addresses(here, at(run, here), pitch(run, here), turned=_turned(i))
        held = np.zeros((here.size, matrix.held), matrix.dtype)
        for n in range(matrix.held):
            for part, values in spaces.read(run, space, here, places[:, n], matrix.dtype, 1):
                held[np.isin(here.threads, part.threads), n] = values[:, 0]
        write(run, here, held.view(f"u{matrix.each * matrix.dtype.itemsize}"))

    return together(load)


def _store(d: Decoder, i: Instruction) -> Control:
    space = space_of(d, i)
    matrix = _matrix(d, i, "d", i.parts[-1], i.operands[1])
    at, pitch = d.address(i.operands[0]), _pitch(d, i, matrix)
    read = d.vector(i.operands[1], matrix.bits)
    d.touch(matrix.dtype.itemsize)

    def store(run: Run, here: Group) -> None:
        places = matrix.addresses(here, at(run, here), pitch(run, here), turned=_turned(i))
        held = read(run, here).view(matrix.dtype)
        for n in range(matrix.held):
            spaces.write(run, space, here, places[:, n], held[:, n : n + 1])

    return together(store)


def _mma(d: Decoder, i: Instruction) -> Control:
    shape = next((n for n, p in enumerate(i.parts) if re.fullmatch(r"m\d+n\d+k\d+", p)), 0)
    kinds = tuple(p for p in i.parts[shape + 1 :] if p not in ("rn", "satfinite"))
    if len(kinds) == 2:  # halves, whose types only the sums name
        kinds = (kinds[0], "f16", "f16", kinds[1])
    operands = [
        _matrix(d, i, which, kind, text)
        for which, kind, text in zip("dabc", kinds, i.operands, strict=True)
    ]
    result, a, b, c = operands
    reads = [d.vector(o, m.bits) for o, m in zip(i.operands, operands, strict=True)]
    write = d.vector_target(i.operands[0], result.bits)

    def multiply(run: Run, here: Group) -> None:
        left, right, sums = (
            m.values(run, here, read) for m, read in zip((a, b, c), reads[1:], strict=True)
        )
        exact = left @ right + sums
        if result.dtype.kind == "i":
            limits = np.iinfo(result.dtype)
            number = exact.astype(np.int64)
            exact = np.clip(number, limits.min, limits.max) if "satfinite" in i.parts else number
        total = exact.astype(result.dtype)
        whole = np.ascontiguousarray(total).reshape(here.size, result.held)
        write(run, here, whole.view(f"u{result.each * result.dtype.itemsize}"))

    return together(multiply)


TABLE: Mapping[str, Builder] = {
    **{f"wmma.load.{which}": _load for which in "abc"},
    "wmma.store.d": _store,
    "wmma.mma": _mma,
}
"""This family's builders by entry."""
