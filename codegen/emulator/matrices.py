"""A warp's small matrices: mma.sync, ldmatrix, stmatrix, and wmma.

With g = lane / 4, q = lane % 4 and E elements a register: register i of A holds row g + 8 (i % 2),
columns E q + 4 E (i / 2) on (of eight rows: row g, columns E q + 4 E i on); register i of B holds
column g, rows E q + 4 E i on; value i of C and D is at row g + 8 (i / 2), column 2 q + i % 2.  Row
r of matrix i in shared memory, 8 x 8, is 16 bytes at the address that lane 8 i + r gives.

A sparse A holds two of each four elements of a row (of tf32: one of two), a *chunk*, laid out as a
dense matrix of half its depth.  Metadata have four bits a chunk.  Lane 4 g + T f + c / 4, where T
lanes of four give some and f is the selector, has those of chunk c of row g, from bit 4 (c % 4) on,
and 16 bits above those of row g + 8; with elements of 8 bits lane 4 g + r / 8 + 2 (c / 8) has those
of row r = g or g + 8, from bit 4 (c % 8) on.  Scales of A's row r are bytes of lane
4 g + 2 t + r / 8, those of B's column g of lane 4 g + t, where t is the thread that is selected.

Where the elements of wmma are PTX leaves open: here lane L holds the elements L E to L E + E - 1 of
a matrix in row-major order, E of them in all of its registers; if 32 E is more than the matrix has,
elements are there twice.  A kernel that takes another order for granted goes wrong here.

Source: PTX ISA 9.0, section 9.7.14 (mma.sync, ldmatrix, stmatrix, wmma); it draws the metadata's
lanes, which are here as CUTLASS 4 has them for wgmma and sm_120 (``ELayout``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import spaces
from .decoder import Act, Builder, Control, Decoder, operation, together
from .memory import Part
from .moves import space_of
from .parser import Instruction
from .report import Array
from .run import WARP, Group, Run
from .spaces import shared_at
from .values import TYPES, numbers

__all__ = ["TABLE", "WarpMatrix", "dense", "fragment", "narrowed", "shape_of", "sparsity"]

_CODES = {"e2m1": (2, 15), "e2m3": (0, 63), "e3m2": (0, 63)}
"""Where a byte has an element of 4 or 6 bits: its lowest bit, and a mask."""


@functools.cache
def _places(rows: int, count: int, each: int) -> tuple[Array, Array]:
    """Return row and column of each of a lane's elements, ``each`` side by side: (32, count)."""
    lane, n = np.arange(WARP)[:, None], np.arange(count)[None]
    piece, beside, halves = n // each, n % each, rows // 8
    row, column = lane // 4 + 8 * (piece % halves), each * (lane % 4) + beside
    return row, column + 4 * each * (piece // halves)


def _each(kind: str) -> int:
    """Return how many elements a register has."""
    return 8 if kind == "e2m1x2" else max(1, 4 // TYPES[kind].itemsize)


@dataclass(frozen=True, slots=True)
class WarpMatrix:
    """What registers of a warp hold of a matrix: row and column of each element, (32, count)."""

    registers: tuple[int, ...]
    kind: str
    shape: tuple[int, int]
    row: Array
    column: Array

    @property
    def needs(self) -> int:
        """How many registers the matrix takes."""
        return self.shape[0] * self.shape[1] // (WARP * _each(self.kind))

    def raw(self, run: Run, group: Group) -> Array:
        """Return the registers themselves: (threads, registers)."""
        return np.stack([run.registers[r][group.index] for r in self.registers], 1)

    def elements(self, run: Run, group: Group) -> Array:
        """Return the elements of whole warps as float64: (warps, 32, count)."""
        held = self.raw(run, group)
        if self.kind in _CODES:
            low, mask = _CODES[self.kind]
            held = held.view(np.uint8) >> low & mask
        return numbers(held, self.kind).reshape(-1, *self.row.shape)

    def read(self, run: Run, group: Group) -> Array:
        """Return the matrices of whole warps: (warps, rows, columns)."""
        values = self.elements(run, group)
        result = np.zeros((len(values), *self.shape))
        result[:, self.row, self.column] = values
        return result

    def put(self, run: Run, group: Group, values: Array) -> None:
        """Write elements in their type: (threads, count)."""
        bits = np.ascontiguousarray(values).view(run.registers[self.registers[0]].dtype)
        for n, register in enumerate(self.registers):
            run.registers[register][group.index] = bits[:, n]

    def write(
        self, run: Run, group: Group, values: Array, plus: WarpMatrix | None, *,
        saturates: bool = False,
    ) -> None:  # fmt: skip
        """Write matrices (warps, rows, columns), to which one of the same places is added."""
        sums = values[:, self.row, self.column]
        if plus is not None:
            sums = sums + plus.elements(run, group)
        narrow = narrowed(sums, TYPES[self.kind], saturates=saturates)
        self.put(run, group, narrow.reshape(group.size, -1))


def fragment(d: Decoder, text: str, kind: str, shape: tuple[int, int], each: int = 0) -> WarpMatrix:
    """Return the registers of a matrix: ``each`` elements, else a register's, are side by side."""
    registers = tuple(d.matrix(text, kind))
    count = len(registers) * _each(kind)
    return WarpMatrix(registers, kind, shape, *_places(shape[0], count, each or _each(kind)))


def narrowed(values: Array, dtype: np.dtype[Any], *, saturates: bool = False) -> Array:
    """Return sums in the type of a result: integers wrap, or are kept to its limits."""
    if dtype.kind == "i":
        limits, values = np.iinfo(dtype), values.astype(np.int64)
        values = np.clip(values, limits.min, limits.max) if saturates else values
    return np.ascontiguousarray(values.astype(dtype))


def shape_of(i: Instruction) -> list[int]:
    """Return m, n and k of a product."""
    return [int(x) for x in re.findall(r"\.m(\d+)n(\d+)k(\d+)", i.opcode)[0]]


def _scaled(
    d: Decoder, i: Instruction, text: str, ids: str, kind: str, *, of_a: bool
) -> Callable[[Run, Group], Array | None]:
    """Return what reads the scales of A's rows or B's columns: (warps, 16 or 8, scales of each)."""
    word, chosen = d.source(text, "b32"), d.vector(ids, "u16")
    count = next((int(p[-2]) for p in i.parts if p.startswith("scale_vec")), 0)
    count = count or (1 if "kind::mxf8f6f4" in i.parts else 2)
    row = np.arange(16 if of_a else 8)
    lanes = 4 * (row % 8) + row // 8

    def scales(run: Run, here: Group) -> Array | None:
        selects = chosen(run, here).reshape(-1, WARP, 2).astype(np.int64)
        byte, thread = selects[:, 0, :1], selects[:, 0, 1:]
        bad = (selects != selects[:, :1]).any() or (byte % count).any() or (byte > 4 - count).any()
        words = np.broadcast_to(word(run, here), (here.size,)).reshape(-1, WARP)
        if not bad and (thread < (2 if of_a else 4)).all():
            held = np.take_along_axis(words, lanes + thread * (2 if of_a else 1), 1)
            codes = (held[..., None] >> (8 * (byte + np.arange(count)))[:, None] & 255).astype("u1")
            if kind != "ue4m3" or codes.max() < 128:
                return numbers(codes, kind)
        run.find("descriptor", f"{ids} selects no scales of .{kind} for {count} a row")
        return None

    return scales


def sparsity(
    d: Decoder, texts: Sequence[str], kind: str, depth: int, *, ordered: bool
) -> Callable[[Run, Group], Array | None]:  # fmt: skip
    """Return what reads where a sparse A's elements stand in rows of ``depth``.

    ``texts`` are its metadata, a word a thread, and its selector.  Places are (warps, 16,
    depth / 2); None, and a finding, if the metadata mean nothing.  Raises ProgramError for a
    selector that the shape does not have.
    """
    words, width, wide = d.source(texts[0], "b32"), TYPES[kind].itemsize, 2 if kind == "tf32" else 4
    selector = d.number(texts[1], range(1 if width == 1 else 128 // (depth * width)))
    row, chunk = np.arange(16)[:, None], np.arange(depth // wide)[None]
    if width == 1:
        lane, low = 4 * (row % 8) + row // 8 + 2 * (chunk // 8), 4 * (chunk % 8) + 0 * row
    else:
        lane = 4 * (row % 8) + selector * (chunk.size // 4) + chunk // 4
        low = 4 * (chunk % 4) + 16 * (row // 8)

    def columns(run: Run, group: Group) -> Array | None:
        held = np.broadcast_to(words(run, group), (group.size,)).reshape(-1, WARP)
        codes = held[:, lane] >> low & 15
        first, second = codes & 3, codes >> 2
        good = first < second if ordered else first != second
        places = np.stack([first, second], -1)
        if kind == "tf32":
            good, places = (codes == 4) | (codes == 14), codes[..., None] >> 3
        if not good.all():
            warp, r, c = np.argwhere(~good)[0].tolist()
            says = f"row {r}, chunk {c}: {codes[warp, r, c]:#06b} is no metadata of .{kind}"
            run.find("descriptor", says, who=int(group.threads[warp * WARP]))
            return None
        found: Array = wide * chunk[..., None] + places.astype(np.int64)
        return found.reshape(len(codes), 16, -1)

    return columns


def dense(stored: Array, columns: Array) -> Array:
    """Return a sparse A (warps, 16, depth / 2) with its zeros."""
    result = np.zeros((*stored.shape[:-1], 2 * stored.shape[-1]))
    np.put_along_axis(result, columns, stored, -1)
    return result


def _mma(d: Decoder, i: Instruction) -> Control:
    rows, _, depth = shape_of(i)
    to, *kinds = (p for p in i.parts if p in TYPES)
    packed = any(p.startswith("kind::mxf4") for p in i.parts)
    a_kind, b_kind = (k + "x2" * packed for k in kinds[:2])
    sparse, rest = i.parts[1].startswith("sp"), list(i.operands[4:])
    result, sums = (fragment(d, i.operands[n], to, (rows, 8), each=2) for n in (0, 3))
    a = fragment(d, i.operands[1], a_kind, (rows, depth >> sparse))
    b = fragment(d, i.operands[2], b_kind, (8, depth))
    given = (a, b, sums, result)
    if any(len(held.registers) != held.needs for held in given):
        have = "{}, {} and {} registers".format(*(len(held.registers) for held in given))
        raise d.error(f"{have}; {a.needs}, {b.needs}, {sums.needs}")
    if sparse:
        columns = sparsity(d, rest, a_kind, depth, ordered="sp::ordered_metadata" in i.parts)
        rest = rest[2:]
    scales = [
        _scaled(d, i, text, ids, kinds[3], of_a=text is rest[0])
        for text, ids in zip(rest[::2], rest[1::2], strict=True)
    ]

    def multiply(run: Run, here: Group) -> None:
        held, right = a.read(run, here), b.read(run, here).swapaxes(1, 2)
        if sparse:
            places = columns(run, here)
            if places is None:
                return
            held = dense(held, places)
        for n, read in enumerate(scales):
            scale = read(run, here)
            if scale is None:
                return
            wide = np.repeat(scale, depth // scale.shape[2], 2)
            held, right = (held, right * wide.swapaxes(1, 2)) if n else (held * wide, right)
        result.write(run, here, held @ right, sums, saturates="satfinite" in i.parts)

    return together(multiply)


def _turned(rows: Array) -> Array:
    """Turn 8 x 8 matrices of 16-bit elements, which lie one after the other."""
    halves = rows.view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
    return np.ascontiguousarray(halves).view(np.uint32)


def _rows(d: Decoder, i: Instruction) -> Control:
    """Load or store 8 x 8 matrices; lanes give where their rows of 16 B are: ldmatrix, stmatrix."""
    loads, turned = i.parts[0] == "ldmatrix", "trans" in i.parts
    count = int(next(p for p in i.parts if re.fullmatch(r"x[124]", p))[1:])
    text, where = i.operands if loads else i.operands[::-1]
    held: Any = (d.vector_target if loads else d.vector)(text, "b32")
    at = d.address(where)
    d.touch(16)

    def move(run: Run, here: Group) -> None:
        mask = here.threads % WARP < 8 * count
        lanes = here.where(mask)
        found = shared_at(run, lanes, at(run, here)[mask], 16)
        if found is None or found[0].size < lanes.size:
            return
        cells, index = run.shared.reshape(-1, 16), found[1] // 16
        part = Part(None, found[1], run.shared)
        if loads:
            spaces.check(run, lanes, part, 16, writes=False)
            rows = cells[index]
            words = (_turned(rows) if turned else rows.view(np.uint32)).reshape(-1, count, WARP)
            held(run, here, words.swapaxes(1, 2).reshape(here.size, count))
            return
        words = np.ascontiguousarray(held(run, here).reshape(-1, WARP, count).swapaxes(1, 2))
        stored = (_turned(words) if turned else words).view(np.uint8).reshape(-1, 16)
        spaces.check(run, lanes, part, 16, writes=True, stored=(index, stored, cells[index]))
        cells[index] = stored

    return together(move)


def _movmatrix(run: Run, here: Group, i: Instruction, write: Act, words: Array) -> None:
    """Turn an 8 x 8 matrix of 16-bit elements, two a lane."""
    write(here, _turned(np.ascontiguousarray(words)).reshape(-1))


def _whole(d: Decoder, i: Instruction, which: str, kind: str, text: str) -> WarpMatrix:
    """Read the operand ``which`` (a, b, c or d) of wmma's ``.m..n..k..``."""
    m, n, k = shape_of(i)
    rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
    registers = tuple(d.matrix(text, kind))
    count = len(registers) * _each(kind)
    if WARP * count % (rows * columns):
        raise d.error(f"{len(registers)} registers hold no {rows} x {columns} of {kind}")
    index = np.arange(WARP * count).reshape(WARP, count)
    row, column = index // columns % rows, index % columns
    return WarpMatrix(registers, kind, (rows, columns), row, column)


def _wmma_move(d: Decoder, i: Instruction) -> Control:
    """Load or store a matrix, whose rows (or columns) lie a pitch of elements apart."""
    loads, turned, space = i.parts[1] == "load", "col" in i.parts, space_of(d, i)
    text, where = i.operands[:2] if loads else i.operands[1::-1]
    matrix = _whole(d, i, i.parts[2], i.parts[-1], text)
    slow, fast = (matrix.column, matrix.row) if turned else (matrix.row, matrix.column)
    packed, dtype = str(matrix.shape[0 if turned else 1]), TYPES[matrix.kind]
    at, pitch = d.address(where), d.source((*i.operands, packed)[2], "s32")
    d.touch(dtype.itemsize)

    def move(run: Run, here: Group) -> None:
        lane = here.threads % WARP
        pitches = np.broadcast_to(np.asarray(pitch(run, here), np.int64), (here.size,))[:, None]
        places = at(run, here)[:, None] + (slow[lane] * pitches + fast[lane]) * dtype.itemsize
        held = matrix.raw(run, here).view(dtype)
        for n, place in enumerate(places.T):
            if not loads:
                spaces.write(run, space, here, place, held[:, n : n + 1])
                continue
            for part, values in spaces.read(run, space, here, place, dtype, 1):
                held[np.isin(here.threads, part.threads), n] = values[:, 0]
        if loads:
            matrix.put(run, here, held)

    return together(move)


def _wmma(d: Decoder, i: Instruction) -> Control:
    shape = next((n for n, p in enumerate(i.parts) if re.fullmatch(r"m\d+n\d+k\d+", p)), 0)
    kinds = tuple(p for p in i.parts[shape + 1 :] if p not in ("rn", "satfinite", "row", "col"))
    if len(kinds) == 2:  # halves, whose types only the sums name
        kinds = (kinds[0], "f16", "f16", kinds[1])
    result, a, b, sums = (
        _whole(d, i, which, kind, text)
        for which, kind, text in zip("dabc", kinds, i.operands, strict=True)
    )

    def multiply(run: Run, here: Group) -> None:
        product = a.read(run, here) @ b.read(run, here)
        result.write(run, here, product, sums, saturates="satfinite" in i.parts)

    return together(multiply)


TABLE: Mapping[str, Builder] = {
    **dict.fromkeys(("mma.sync", "mma.sp.sync", "mma.sp::ordered_metadata.sync"), _mma),
    **dict.fromkeys(("ldmatrix", "stmatrix"), _rows),
    "movmatrix": operation(_movmatrix, unit=WARP),
    **{f"wmma.load.{which}": _wmma_move for which in "abc"},
    "wmma.store.d": _wmma_move,
    "wmma.mma": _wmma,
}
"""This family's builders by entry."""
