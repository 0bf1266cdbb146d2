"""A warp's small matrices: mma.sync, ldmatrix, stmatrix.

With g = lane / 4, q = lane % 4 and E elements a register: register i of A holds row g + 8 (i % 2),
columns E q + 4 E (i / 2) on (of eight rows: row g, columns E q + 4 E i on); register i of B holds
column g, rows E q + 4 E i on; value i of C and D is at row g + 8 (i / 2), column 2 q + i % 2.  Row
r of matrix i in shared memory, 8 x 8, is 16 bytes at the address that lane 8 i + r gives.

Source: PTX ISA 9.0, section 9.7.14 (mma.sync, ldmatrix, stmatrix).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygpu.codegen.emulator.decoder import Builder, Control, Decoder, together
from tinygpu.codegen.emulator.group import WARP, Group
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.spaces import check_read, check_write, shared_at
from tinygpu.codegen.emulator.values import TYPES

__all__ = ["TABLE", "add", "left"]


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


def add(
    run: Run, group: Group, result: Sequence[int], sums: Sequence[int], product: Array,
    dtype: np.dtype[Any], *, saturates: bool = False,
) -> None:  # fmt: skip
    """Write products (warps, rows, columns) into registers, added to those of ``sums`` if any."""
    values = product[:, *_sums(*product.shape[1:])].reshape(group.size, -1)
    if sums:
        held = np.stack([run.registers[r][group.index] for r in sums], 1)
        values = values + held.view(dtype).astype(np.float64)
    if dtype.kind == "i":
        limits, values = np.iinfo(dtype), values.astype(np.int64)
        values = np.clip(values, limits.min, limits.max) if saturates else values
    bits = np.ascontiguousarray(values.astype(dtype)).view(run.registers[result[0]].dtype)
    for n, register in enumerate(result):
        run.registers[register][group.index] = bits[:, n]


def _mma(d: Decoder, i: Instruction) -> Control:
    rows, _, depth = map(int, re.findall(r"\.m(\d+)n(\d+)k(\d+)", i.opcode)[0])
    to, a_kind, b_kind, _ = i.parts[-4:]
    each = max(1, 4 // d.kind(a_kind).itemsize)
    result, a, b, c = ([d.register(r) for r in d.listed(o)] for o in i.operands[:4])
    needs = (rows * depth // (WARP * each), 8 * depth // (WARP * each))
    sums = rows * 8 * d.kind(to).itemsize // (WARP * d.widths[c[0]])
    if (len(a), len(b)) != needs or len(c) != sums or len(result) != sums:
        raise d.error(f"{len(a)}, {len(b)} and {len(c)} registers; {needs[0]}, {needs[1]}, {sums}")

    def multiply(run: Run, here: Group) -> None:
        right = np.zeros((here.size // WARP, depth, 8))
        _, _, row, column = _places(rows, needs, each)
        right[:, row, column] = _gathered(run, here, b, b_kind)
        product = left(run, here, a, a_kind, rows) @ right
        add(run, here, result, c, product, d.kind(to), saturates="satfinite" in i.parts)

    return together(multiply)


def _count(d: Decoder, i: Instruction) -> int:
    if "m8n8" not in i.parts or "b16" not in i.parts:
        raise d.error("m8n8 matrices of b16 are run")
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
        if turned:
            halves = rows.view(np.uint16).reshape(-1, count, 8, 8).swapaxes(2, 3)
            rows = np.ascontiguousarray(halves).view(np.uint8)
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(-1, count, WARP)
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
        words = read(run, here).reshape(-1, WARP, count).swapaxes(1, 2)
        rows = np.ascontiguousarray(words).reshape(-1, count, 8, 4)
        if turned:
            halves = rows.view(np.uint16).swapaxes(2, 3)
            rows = np.ascontiguousarray(halves).view(np.uint32)
        cells, index = run.shared.reshape(-1, 16), flat // 16
        stored = rows.view(np.uint8).reshape(-1, 16)
        check_write(run, lanes, flat, 16, stored=(index, stored, cells[index]))
        cells[index] = stored

    return together(store)


def _movmatrix(d: Decoder, i: Instruction) -> Control:
    """Turn an 8 x 8 matrix of 16-bit elements, two a lane."""
    read, write = d.source(i.operands[1], "b32"), d.target(i.operands[0], "b32")

    def move(run: Run, here: Group) -> None:
        words = np.broadcast_to(read(run, here), (here.size,))
        halves = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
        write(run, here, np.ascontiguousarray(halves).view(np.uint32).reshape(-1))

    return together(move)


TABLE: Mapping[str, Builder] = {
    "mma.sync": _mma,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "movmatrix": _movmatrix,
}
"""This family's builders by entry."""
