"""A warp's small matrices: mma.sync, ldmatrix, stmatrix.

With g = lane / 4, q = lane % 4 and E elements a register: register i of A holds row g + 8 (i % 2),
columns E q + 4 E (i / 2) on; register i of B holds column g, rows E q + 4 E i on; value i of C and
D is at row g + 8 (i / 2), column 2 q + i % 2.  Row r of matrix i in shared memory, 8 x 8, is 16
bytes at the address that lane 8 i + r gives.

Source: PTX ISA 9.0, section 9.7.14 (mma.sync, ldmatrix, stmatrix).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import numpy as np

from tinygpu.codegen.interpreter.decoder import Builder, Control, Decoder
from tinygpu.codegen.interpreter.group import WARP, Group
from tinygpu.codegen.interpreter.parser import Instruction
from tinygpu.codegen.interpreter.report import Array
from tinygpu.codegen.interpreter.run import Run
from tinygpu.codegen.interpreter.spaces import check_read, check_write, shared_at
from tinygpu.codegen.interpreter.values import TYPES

__all__ = ["TABLE"]

_SHAPES = {"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"}


@functools.cache
def _places(registers: int, each: int) -> tuple[Array, Array, Array, Array]:
    """Return rows and columns of A's registers, then columns and rows of B's half of them."""
    lane = np.arange(WARP)[:, None, None]
    i, e = np.arange(registers)[None, :, None], np.arange(each)[None, None]
    g, q = lane // 4, lane % 4
    a_row = g + 8 * (i % 2) + 0 * e
    a_column = each * q + e + 4 * each * (i // 2)
    j = i[:, : registers // 2]
    return a_row, a_column, g + 0 * j + 0 * e, each * q + e + 4 * each * j


def _gathered(run: Run, group: Group, registers: list[int], kind: str) -> Array:
    """Return registers of whole warps as elements: (warps, 32, registers, each)."""
    held = np.stack([run.registers[r][group.index] for r in registers], 1)
    if kind == "tf32":
        held = held & np.uint32(0xFFFFE000)
    values = np.ascontiguousarray(held).view(TYPES[kind]).astype(np.float64)
    return values.reshape(-1, WARP, len(registers), 4 // TYPES[kind].itemsize)


def _mma(d: Decoder, i: Instruction) -> Control:
    parts = i.parts
    shape = next((p for p in parts if p in _SHAPES), "")
    if not shape or "row" not in parts or "col" not in parts:
        raise d.error(f"this shape is not run; {', '.join(sorted(_SHAPES))} (row.col) are")
    to, a_kind, b_kind, c_kind = (("b8" if p == "u8" else p) for p in parts[-4:])
    a_kind, b_kind = (k.replace("b8", "u8") for k in (a_kind, b_kind))
    depth = int(re.findall(r"k(\d+)", shape)[0])
    each = 4 // d.kind(a_kind).itemsize
    result, a, b, c = ([d.register(r) for r in d.listed(o)] for o in i.operands[:4])
    if len(a) != 4 * depth // (8 * each) or len(b) * 2 != len(a):
        raise d.error(f"{len(a)} and {len(b)} registers hold no {shape} of {a_kind}")
    if to not in ("f32", "s32", "f16") or c_kind != to:
        raise d.error(f"results of type {to} are not run")

    def multiply(run: Run, group: Group) -> Group | None:
        here = run.together(group, WARP)
        if here is None:
            return None
        a_row, a_column, b_column, b_row = _places(len(a), each)
        warps = here.size // WARP
        left, right = np.zeros((warps, 16, depth)), np.zeros((warps, depth, 8))
        left[:, a_row, a_column] = _gathered(run, here, a, a_kind)
        right[:, b_row, b_column] = _gathered(run, here, b, b_kind)
        product = left @ right
        lane, n = np.arange(WARP)[:, None], np.arange(4)[None]
        values = product[:, lane // 4 + 8 * (n // 2), 2 * (lane % 4) + n % 2].reshape(-1, 4)
        dtype = {"f32": np.float32, "s32": np.int32, "f16": np.float16}[to]
        held = np.stack([run.registers[r][here.index] for r in c], 1)
        total = values + np.ascontiguousarray(held).view(dtype).astype(np.float64)
        bits = np.ascontiguousarray(total.astype(dtype)).view(np.uint32)
        for n_register, register in enumerate(result):
            run.registers[register][here.index] = bits[:, n_register]
        return here

    return Control(multiply, WARP)


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
    targets, at = d.targets(i.operands[0], "b32"), d.address(i.operands[1])

    def load(run: Run, group: Group) -> Group | None:
        here = run.together(group, WARP)
        if here is None:
            return None
        found = _rows(run, here, at(run, here), count)
        if found is None:
            return here
        lanes, flat = found
        check_read(run, lanes, flat, 16)
        rows = run.shared.reshape(-1, 16)[flat // 16]
        if turned:
            halves = rows.view(np.uint16).reshape(-1, count, 8, 8).swapaxes(2, 3)
            rows = np.ascontiguousarray(halves).view(np.uint8)
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(-1, count, WARP)
        for n, write in enumerate(targets):
            write(run, here, words[:, n].reshape(-1))
        return here

    return Control(load, WARP)


def _stmatrix(d: Decoder, i: Instruction) -> Control:
    count, turned = _count(d, i), "trans" in i.parts
    at, sources = d.address(i.operands[0]), d.sources(i.operands[1], "b32")

    def store(run: Run, group: Group) -> Group | None:
        here = run.together(group, WARP)
        if here is None:
            return None
        found = _rows(run, here, at(run, here), count)
        if found is None:
            return here
        lanes, flat = found
        check_write(run, lanes, flat, 16)
        words = np.stack([s(run, here).reshape(-1, WARP) for s in sources], 1)
        rows = np.ascontiguousarray(words).reshape(-1, count, 8, 4)
        if turned:
            halves = rows.view(np.uint16).swapaxes(2, 3)
            rows = np.ascontiguousarray(halves).view(np.uint32)
        run.shared.reshape(-1, 16)[flat // 16] = rows.view(np.uint8).reshape(-1, 16)
        return here

    return Control(store, WARP)


def _movmatrix(d: Decoder, i: Instruction) -> Control:
    """Turn an 8 x 8 matrix of 16-bit elements, two a lane."""
    read, write = d.source(i.operands[1], "b32"), d.target(i.operands[0], "b32")

    def move(run: Run, group: Group) -> Group | None:
        here = run.together(group, WARP)
        if here is None:
            return None
        words = np.broadcast_to(read(run, here), (here.size,))
        halves = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
        write(run, here, np.ascontiguousarray(halves).view(np.uint32).reshape(-1))
        return here

    return Control(move, WARP)


TABLE: Mapping[str, Builder] = {
    "mma.sync": _mma,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "movmatrix": _movmatrix,
}
"""This family's builders by entry."""
