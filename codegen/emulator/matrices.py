"""A warp's small matrices: mma.sync, ldmatrix, stmatrix, and wmma.

With g = lane / 4, q = lane % 4 and E elements a register: register i of A holds row g + 8 (i % 2),
columns E q + 4 E (i / 2) on (of eight rows: row g, columns E q + 4 E i on); register i of B holds
column g, rows E q + 4 E i on; value i of C and D is at row g + 8 (i / 2), column 2 q + i % 2.  Row
r of matrix i in shared memory, 8 x 8, is 16 bytes at the address that lane 8 i + r gives.

Where the elements of wmma are PTX leaves open: here lane L holds the elements L E to L E + E - 1 of
a matrix in row-major order, E of them in all of its registers; if 32 E is more than the matrix has,
elements are there twice.  A kernel that takes another order for granted goes wrong here.

Source: PTX ISA 9.0, section 9.7.14 (mma.sync, ldmatrix, stmatrix, wmma).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import spaces
from .decoder import Builder, Control, Decoder, Source, together
from .moves import space_of
from .parser import Instruction
from .report import Array
from .run import WARP, Group, Run
from .spaces import check_read, check_write, shared_at
from .values import TYPES

__all__ = ["TABLE", "add", "left", "narrowed", "shape_of"]


@functools.cache
def _places(rows: int, registers: tuple[int, int], each: int) -> tuple[Array, ...]:
    """Return rows and columns of A's registers, then rows and columns of B's."""
    lane = np.arange(WARP)[:, None, None]
    i, j = (np.arange(n)[None, :, None] for n in registers)
    e = np.arange(each)[None, None]
    g, q = lane // 4, lane % 4
    down, along = (i % 2, i // 2) if rows == 16 else (0 * i, i)
    a = (g + 8 * down + 0 * e, each * q + e + 4 * each * along)
    return (*a, each * q + e + 4 * each * j, g + 0 * j + 0 * e)


def _gathered(run: Run, group: Group, registers: Sequence[int], kind: str) -> Array:
    """Return registers of whole warps as elements: (warps, 32, registers, each)."""
    held = np.stack([run.registers[r][group.index] for r in registers], 1)
    if kind == "tf32":
        held = held & np.uint32(0xFFFFE000)
    values = np.ascontiguousarray(held).view(TYPES[kind]).astype(np.float64)
    return values.reshape(-1, WARP, len(registers), max(1, 4 // TYPES[kind].itemsize))


def left(run: Run, group: Group, registers: Sequence[int], kind: str, rows: int = 16) -> Array:
    """Return A of whole warps, as their registers hold it: (warps, rows, depth)."""
    each, warps = max(1, 4 // TYPES[kind].itemsize), group.size // WARP
    result = np.zeros((warps, rows, WARP * each * len(registers) // rows))
    row, column, *_ = _places(rows, (len(registers), 0), each)
    result[:, row, column] = _gathered(run, group, registers, kind)
    return result


@functools.cache
def _sums(rows: int, columns: int) -> tuple[Array, Array]:
    lane, n = np.arange(WARP)[:, None], np.arange(rows * columns // WARP)[None]
    return lane // 4 + 8 * (n // 2 % 2), 8 * (n // 4) + 2 * (lane % 4) + n % 2


def narrowed(values: Array, dtype: np.dtype[Any], *, saturates: bool = False) -> Array:
    """Return sums in the type of a result: integers wrap, or are kept to its limits."""
    if dtype.kind == "i":
        limits, values = np.iinfo(dtype), values.astype(np.int64)
        values = np.clip(values, limits.min, limits.max) if saturates else values
    return np.ascontiguousarray(values.astype(dtype))


def add(
    run: Run, group: Group, result: Sequence[int], sums: Sequence[int], product: Array,
    dtype: np.dtype[Any], *, saturates: bool = False,
) -> None:  # fmt: skip
    """Write products (warps, rows, columns) into registers, added to those of ``sums`` if any."""
    values = product[:, *_sums(*product.shape[1:])].reshape(group.size, -1)
    if sums:
        held = np.stack([run.registers[r][group.index] for r in sums], 1)
        values = values + held.view(dtype).astype(np.float64)
    bits = narrowed(values, dtype, saturates=saturates).view(run.registers[result[0]].dtype)
    for n, register in enumerate(result):
        run.registers[register][group.index] = bits[:, n]


def shape_of(i: Instruction) -> list[int]:
    """Return m, n and k of a product."""
    return [int(x) for x in re.findall(r"\.m(\d+)n(\d+)k(\d+)", i.opcode)[0]]


def _mma(d: Decoder, i: Instruction) -> Control:
    rows, _, depth = shape_of(i)
    to, *kinds = i.parts[-4:]
    a_kind, b_kind, _ = kinds
    each = max(1, 4 // TYPES[a_kind].itemsize)
    result, a, b, c = map(d.matrix, i.operands, (to, *kinds))
    needs = (rows * depth // (WARP * each), 8 * depth // (WARP * each))
    sums = rows * 8 * TYPES[to].itemsize // (WARP * d.widths[c[0]])
    if (len(a), len(b)) != needs or len(c) != sums or len(result) != sums:
        raise d.error(f"{len(a)}, {len(b)} and {len(c)} registers; {needs[0]}, {needs[1]}, {sums}")

    def multiply(run: Run, here: Group) -> None:
        right = np.zeros((here.size // WARP, depth, 8))
        _, _, row, column = _places(rows, needs, each)
        right[:, row, column] = _gathered(run, here, b, b_kind)
        product = left(run, here, a, a_kind, rows) @ right
        add(run, here, result, c, product, TYPES[to], saturates="satfinite" in i.parts)

    return together(multiply)


def _count(d: Decoder, i: Instruction) -> int:
    d.touch(16)
    return int(next(p for p in i.parts if re.fullmatch(r"x[124]", p))[1:])


def _rows(run: Run, here: Group, addresses: Array, count: int) -> tuple[Group, Array] | None:
    """Return the lanes that give rows, and these rows' places; None if one of them is bad."""
    mask = here.threads % WARP < 8 * count
    lanes = here.where(mask)
    found = shared_at(run, lanes, addresses[mask], 16)
    if found is None or found[0].size < lanes.size:
        return None
    return found


def _turned(rows: Array) -> Array:
    """Turn 8 x 8 matrices of 16-bit elements, which lie one after the other."""
    halves = rows.view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
    return np.ascontiguousarray(halves).view(np.uint32)


def _ldmatrix(d: Decoder, i: Instruction) -> Control:
    count, turned = _count(d, i), "trans" in i.parts
    write, at = d.vector_target(i.operands[0], "b32"), d.address(i.operands[1])

    def load(run: Run, here: Group) -> None:
        found = _rows(run, here, at(run, here), count)
        if found is None:
            return
        lanes, flat = found
        check_read(run, lanes, flat, 16)
        rows = run.shared.reshape(-1, 16)[flat // 16]
        words = (_turned(rows) if turned else rows.view(np.uint32)).reshape(-1, count, WARP)
        write(run, here, words.swapaxes(1, 2).reshape(here.size, count))

    return together(load)


def _stmatrix(d: Decoder, i: Instruction) -> Control:
    count, turned = _count(d, i), "trans" in i.parts
    at, read = d.address(i.operands[0]), d.vector(i.operands[1], "b32")

    def store(run: Run, here: Group) -> None:
        found = _rows(run, here, at(run, here), count)
        if found is None:
            return
        lanes, flat = found
        words = np.ascontiguousarray(read(run, here).reshape(-1, WARP, count).swapaxes(1, 2))
        cells, index = run.shared.reshape(-1, 16), flat // 16
        stored = (_turned(words) if turned else words).view(np.uint8).reshape(-1, 16)
        check_write(run, lanes, flat, 16, stored=(index, stored, cells[index]))
        cells[index] = stored

    return together(store)


def _movmatrix(d: Decoder, i: Instruction) -> Control:
    """Turn an 8 x 8 matrix of 16-bit elements, two a lane."""
    read, write = d.source(i.operands[1], "b32"), d.target(i.operands[0], "b32")

    def move(run: Run, here: Group) -> None:
        words = np.ascontiguousarray(np.broadcast_to(read(run, here), (here.size,)))
        write(run, here, _turned(words).reshape(-1))

    return together(move)


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
    m, n, k = shape_of(i)
    rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
    names, dtype = d.listed(text), TYPES[kind]
    width = d.widths[d.matrix(text, kind)[0]]
    each = width // dtype.itemsize
    if WARP * each * len(names) % (rows * columns):
        raise d.error(f"{len(names)} registers of {width} B hold no {rows} x {columns} of {kind}")
    return _Matrix(rows, columns, dtype, names, each, f"b{8 * width}")


def _wmma_move(d: Decoder, i: Instruction) -> Control:
    """Load or store a matrix, whose rows (or columns) lie a pitch of elements apart."""
    loads, turned, space = i.parts[1] == "load", "col" in i.parts, space_of(d, i)
    text, where = i.operands[:2] if loads else i.operands[1::-1]
    matrix = _matrix(d, i, i.parts[2], i.parts[-1], text)
    packed = str(matrix.rows if turned else matrix.columns)
    at, pitch = d.address(where), d.source((*i.operands, packed)[2], "s32")
    read, write = d.vector(text, matrix.bits), d.vector_target(text, matrix.bits)
    d.touch(matrix.dtype.itemsize)

    def move(run: Run, here: Group) -> None:
        places = matrix.addresses(here, at(run, here), pitch(run, here), turned=turned).T
        held = read(run, here).view(matrix.dtype)
        for n, place in enumerate(places):
            if not loads:
                spaces.write(run, space, here, place, held[:, n : n + 1])
                continue
            for part, values in spaces.read(run, space, here, place, matrix.dtype, 1):
                held[np.isin(here.threads, part.threads), n] = values[:, 0]
        if loads:
            write(run, here, held.view(f"u{matrix.each * matrix.dtype.itemsize}"))

    return together(move)


def _wmma(d: Decoder, i: Instruction) -> Control:
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
        saturates = "satfinite" in i.parts
        total = narrowed(left @ right + sums, result.dtype, saturates=saturates)
        whole = total.reshape(here.size, result.held)
        write(run, here, whole.view(f"u{result.each * result.dtype.itemsize}"))

    return together(multiply)


TABLE: Mapping[str, Builder] = {
    "mma.sync": _mma,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "movmatrix": _movmatrix,
    **{f"wmma.load.{which}": _wmma_move for which in "abc"},
    "wmma.store.d": _wmma_move,
    "wmma.mma": _wmma,
}
"""This family's builders by entry."""
