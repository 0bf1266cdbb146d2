"""Integer arithmetic beyond one register: carries, dot products of bytes, fields of bits.

Each thread has one carry flag.  An addition with ``.cc`` sets it to the carry out, a subtraction to
that of ``a + ~b + 1``, so that 1 is no borrow: nvcc's 128-bit division adds after it subtracts.

Source: PTX ISA 9.0, sections 9.7.1 (dp4a, dp2a, bmsk, szext, fns), 9.7.2 (extended precision)
and 9.7.18 (video: SIMD).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinygpu.codegen.emulator.decoder import Action, Decoder
from tinygpu.codegen.emulator.group import Group
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.values import TYPES

__all__ = ["bit_field_mask", "dot", "find_nth", "sign_extend", "simd", "with_carry"]


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


def _parts(a: Array, b: Array, *types: np.dtype[Any]) -> list[Array]:
    """Return the bytes or halves of two registers: (n, parts) each."""
    given = np.broadcast_arrays(*map(np.atleast_1d, (a, b)))
    return [
        np.ascontiguousarray(v).view(t).reshape(len(v), -1).astype(np.int64)
        for v, t in zip(given, types, strict=True)
    ]


def dot(i: Instruction, dtype: np.dtype[Any]) -> Callable[[Array, Array, Array], Array]:
    """Return dp4a and dp2a: products of bytes (or halves by bytes), added to c."""
    from_a, from_b = (TYPES[p[0] + "8"] for p in i.parts[-2:])
    four, upper = i.parts[0] == "dp4a", "hi" in i.parts
    if not four:
        from_a = np.dtype(f"{from_a.kind}2")

    def products(a: Array, b: Array, c: Array) -> Array:
        left, right = _parts(a, b, from_a, from_b)
        if not four:
            right = right[:, 2:] if upper else right[:, :2]
        total: Array = np.asarray(c).astype(np.int64) + (left * right).sum(1)
        return total

    return products


def simd(i: Instruction) -> Callable[[Array, Array, Array], Array]:
    """Return vadd4, vsub2 and their kin: bytes (or halves) each; ``add``: their sum and c."""
    name, each = i.parts[0][:-1], i.parts[0][-1] == "4"
    to, *of = (np.dtype(f"{part[0].replace('s', 'i')}{1 if each else 2}") for part in i.parts[1:4])
    acts: Mapping[str, Callable[[Array, Array], Array]] = {
        "vadd": np.add, "vsub": np.subtract, "vmin": np.minimum, "vmax": np.maximum,
        "vabsdiff": lambda a, b: np.abs(a - b),
    }  # fmt: skip

    def lanes(a: Array, b: Array, c: Array) -> Array:
        made = acts[name](*_parts(a, b, *of))
        if "add" in i.parts:
            total: Array = (np.asarray(c).astype(np.int64) + made.sum(1)).astype(np.int32)
            return total
        if "sat" in i.parts:
            made = np.clip(made, np.iinfo(to).min, np.iinfo(to).max)
        return np.ascontiguousarray(made.astype(to)).view(np.int32)[:, 0]

    return lanes


def bit_field_mask(i: Instruction, dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    """Return bmsk: ``b`` ones from bit ``a`` on."""
    clamps = "clamp" in i.parts

    def mask(a: Array, b: Array) -> Array:
        start, width = (np.minimum(v, 32) if clamps else v & 31 for v in _wide(a, b))
        ones: Array = ((1 << width) - 1 << start) & 0xFFFFFFFF
        return ones

    return mask


def _wide(*given: Array) -> list[Array]:
    return [np.asarray(v).astype(np.int64) for v in given]


def sign_extend(i: Instruction, dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    """Return szext: the lower ``b`` bits, extended."""
    clamps = "clamp" in i.parts

    def extend(given: Array, bits: Array) -> Array:
        a, b = _wide(given, bits)
        width = np.minimum(b, 32) if clamps else b & 31
        field: Array = (a & 0xFFFFFFFF) & (1 << width) - 1
        if dtype.kind == "u":
            return field
        top = (field >> np.maximum(width - 1, 0) & 1) * (width > 0)
        extended: Array = field - (top << width)
        return extended

    return extend


def find_nth(*given: Array) -> Array:
    """Return the place of the n-th one from a base on, upwards or (n below 0) downwards: fns."""
    masks, bases, numbers = np.broadcast_arrays(*map(np.atleast_1d, given))
    result = np.full(masks.shape, 0xFFFFFFFF)
    for n, (mask, start, number) in enumerate(zip(masks, bases, numbers, strict=True)):
        step = -1 if number < 0 else 1
        ones = [b for b in range(int(start), 32 if step > 0 else -1, step) if mask >> b & 1]
        if number == 0:
            ones = ones if mask >> start & 1 else []
        which = abs(int(number)) - (number != 0)
        if which < len(ones):
            result[n] = ones[which]
    return result
