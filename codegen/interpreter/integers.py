"""Integer arithmetic beyond one register: carries, dot products of bytes, fields of bits.

Each thread has one carry flag.  An addition with ``.cc`` sets it to the carry out, a subtraction to
that of ``a + ~b + 1``, so that 1 is no borrow: nvcc's 128-bit division adds after it subtracts.

Source: PTX ISA 9.0, sections 9.7.1 (dp4a, dp2a, bmsk, szext, fns) and 9.7.2 (extended precision).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygpu.codegen.interpreter.decoder import Action, Decoder
from tinygpu.codegen.interpreter.group import Group
from tinygpu.codegen.interpreter.parser import Instruction
from tinygpu.codegen.interpreter.report import Array
from tinygpu.codegen.interpreter.run import Run

__all__ = ["bit_field_mask", "dot", "find_nth", "sign_extend", "with_carry"]


def with_carry(d: Decoder, i: Instruction) -> Action:
    """Build add, sub and mad with ``.cc``, and addc, subc and madc."""
    name, kind = i.parts[0], i.parts[-1]
    takes, sets, subtracts = name.endswith("c"), "cc" in i.parts, name.startswith("sub")
    bits = 8 * d.kind(kind).itemsize
    raw = d.kind(f"u{bits}")
    reads = [d.source(text, kind) for text in i.operands[1:]]
    write = d.target(i.operands[0], kind)
    half = bits if "hi" in i.parts else 0
    ones = (1 << bits) - 1

    def act(run: Run, group: Group) -> None:
        values = [np.broadcast_to(read(run, group), (group.size,)) for read in reads]
        if len(values) == 3:
            wide = values[0].astype(object) * values[1].astype(object)
            values = [(wide >> half & ones).astype(raw), values[2]]
        a, b = (v.astype(raw) for v in values)
        carried = run.carry[group.index] if takes else np.bool_(subtracts)
        taken = (carried != subtracts).astype(raw)
        if subtracts:
            result = a - b - taken
            out = (a < b) | ((a == b) & (taken > 0))
        else:
            result = a + b + taken
            out = (result < a) | ((result == a) & (taken > 0))
        if sets:
            run.carry[group.index] = out != subtracts
        write(run, group, result.view(d.kind(kind)))

    return act


def dot(d: Decoder, i: Instruction) -> Action:
    """Build dp4a and dp2a: products of bytes (or halves by bytes), added to c."""
    from_a, from_b = (d.kind(p[0] + "8") for p in i.parts[-2:])
    kind = "u32" if from_a.kind == from_b.kind == "u" else "s32"
    four, upper = i.parts[0] == "dp4a", "hi" in i.parts
    if not four:
        from_a = np.dtype(f"{from_a.kind}2")
    reads = [
        d.source(text, k) for text, k in zip(i.operands[1:], ("u32", "u32", kind), strict=True)
    ]
    write = d.target(i.operands[0], kind)

    def act(run: Run, group: Group) -> None:
        a, b, c = (np.broadcast_to(read(run, group), (group.size,)) for read in reads)
        left, right = (
            np.ascontiguousarray(v).view(t).reshape(group.size, -1).astype(np.int64)
            for v, t in ((a, from_a), (b, from_b))
        )
        if not four:
            right = right[:, 2:] if upper else right[:, :2]
        write(run, group, (c.astype(np.int64) + (left * right).sum(1)).astype(d.kind(kind)))

    return act


def _integers(d: Decoder, i: Instruction, function: Any, kinds: tuple[str, ...], to: str) -> Action:
    """Build an action of int64 values, one a thread."""
    reads = [d.source(text, kind) for text, kind in zip(i.operands[1:], kinds, strict=True)]
    write, dtype = d.target(i.operands[0], to), d.kind(to)

    def act(run: Run, group: Group) -> None:
        given = [np.broadcast_to(r(run, group), (group.size,)).astype(np.int64) for r in reads]
        write(run, group, function(*given).astype(dtype))

    return act


def bit_field_mask(d: Decoder, i: Instruction) -> Action:
    """Build bmsk: ``b`` ones from bit ``a`` on."""
    clamps = "clamp" in i.parts

    def mask(a: Array, b: Array) -> Array:
        start = np.minimum(a, 32) if clamps else a & 31
        width = np.minimum(b, 32) if clamps else b & 31
        ones: Array = (1 << width) - 1 << start
        return ones & 0xFFFFFFFF

    return _integers(d, i, mask, ("u32", "u32"), "u32")


def sign_extend(d: Decoder, i: Instruction) -> Action:
    """Build szext: the lower ``b`` bits, extended."""
    kind, clamps = i.parts[-1], "clamp" in i.parts

    def extend(a: Array, b: Array) -> Array:
        width = np.minimum(b, 32) if clamps else b & 31
        field = (a & 0xFFFFFFFF) & (1 << width) - 1
        if kind == "u32":
            return field
        top = (field >> np.maximum(width - 1, 0) & 1) * (width > 0)
        extended: Array = field - (top << width)
        return extended

    return _integers(d, i, extend, (kind, "u32"), kind)


def find_nth(d: Decoder, i: Instruction) -> Action:
    """Build fns: the place of the n-th one from a base on, upwards or (n below 0) downwards."""

    def find(a: Array, base: Array, offset: Array) -> Array:
        result = np.full(a.shape, 0xFFFFFFFF)
        for n, (mask, start, number) in enumerate(zip(a, base, offset, strict=True)):
            step = -1 if number < 0 else 1
            ones = [b for b in range(int(start), 32 if step > 0 else -1, step) if mask >> b & 1]
            if number == 0:
                ones = ones if mask >> start & 1 else []
            which = abs(int(number)) - (number != 0)
            if which < len(ones):
                result[n] = ones[which]
        return result

    return _integers(d, i, find, ("u32", "u32", "s32"), "u32")
