"""Comparison and selection; bits, fields of bits, and bytes of integers.

Source: PTX ISA 9.0, sections 9.7.1 (bits, dp4a), 9.7.6 (comparison), 9.7.8 (logic) and
9.7.18 (video: SIMD).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .arithmetic import apply, of_parts, of_type, packed, plain, read
from .atomics import RUNNING
from .decoder import Action, Builder, Decoder
from .parser import Instruction
from .report import Array
from .run import Group, Run
from .values import PACKED, TYPES

__all__ = ["TABLE"]

_TESTS: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
_LOGIC = {name: RUNNING[name] for name in ("and", "or", "xor")}


def _test(i: Instruction) -> Callable[[Array, Array], Array]:
    """Return the comparison: with a ``u`` at its end it holds for NaN too, else ``ne`` does not.

    Packed types compare what their halves are.
    """
    name, kind = i.parts[1], PACKED.get(i.parts[-1], i.parts[-1])
    if name in ("num", "nan"):
        ordered = name == "num"
        return lambda a, b: (np.isnan(a) | np.isnan(b)) != ordered
    if name == "ne" and (TYPES[kind].kind == "f" or kind == "bf16"):
        return lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)
    if name in _TESTS:
        return _TESTS[name]
    inner = _TESTS[name[:-1]]
    return lambda a, b: inner(a, b) | np.isnan(a) | np.isnan(b)


def _setp(d: Decoder, i: Instruction) -> Action:
    """Compare; the second predicate is the other result, or that of the upper halves."""
    kind, test = i.parts[-1], _test(i)
    part = TYPES[PACKED[kind]] if kind in PACKED else None
    first, second = (read(d, i, o, kind) for o in i.operands[1:3])
    writes = [d.target(o.strip(), "pred") for o in i.operands[0].split("|")]
    join = _LOGIC.get(i.parts[2])
    third = d.source(i.operands[3], "pred") if join else None

    def compare(run: Run, group: Group) -> None:
        a, b = first(run, group), second(run, group)
        if part is None:
            holds = test(a, b)
            results = [holds, ~holds]
        else:
            words = (np.broadcast_to(v, (group.size,)) for v in (a, b))
            halves = (np.ascontiguousarray(w).view(part).reshape(-1, 2) for w in words)
            results = list(test(*halves).T)
        for write, result in zip(writes, results, strict=False):
            write(run, group, join(result, third(run, group)) if join and third else result)

    return compare


def _set(d: Decoder, i: Instruction) -> Action:
    to, of = i.parts[-2:]
    if of in PACKED:
        part, compare = TYPES[PACKED[of]], _test(i)
        true = part.type(1.0) if to in PACKED else np.uint16(0xFFFF).view(part)
        halves = packed(lambda a, b: np.where(compare(a, b), true, part.type(0)), part)
        return apply(d, i, halves)
    test, dtype = _test(i), TYPES[to]
    yes = np.array(-1).astype(dtype)[()] if dtype.kind in "iu" else dtype.type(1.0)
    join, no = _LOGIC.get(i.parts[2]), dtype.type(0)
    if join is None:
        return apply(d, i, lambda a, b: np.where(test(a, b), yes, no))
    joined = lambda a, b, p: np.where(join(test(a, b), p), yes, no)  # noqa: E731 (a closure)
    return apply(d, i, joined)


def _shift(i: Instruction, dtype: np.dtype[Any], a: Array, by: Array) -> Any:
    bits = 8 * dtype.itemsize
    inside = np.minimum(by, bits - 1).astype(dtype)
    if i.parts[0] == "shl":
        return np.where(by < bits, a << inside, 0)
    moved = a >> inside
    return moved if dtype.kind == "i" else np.where(by < bits, moved, 0)


def _shf(i: Instruction, low: Array, high: Array, by: Array) -> Any:
    n = ((by & 31) if "wrap" in i.parts else np.minimum(by, 32)).astype(np.uint64)
    both = (np.asarray(high).astype(np.uint64) << np.uint64(32)) | np.asarray(low)
    return (both >> (np.uint64(32) - n if "l" in i.parts else n)).astype(np.uint32)


def _lop3(d: Decoder, i: Instruction) -> Action:
    table = d.number(i.operands[4], range(256))

    def look(a: Array, b: Array, c: Array, _: Array) -> Array:
        result = np.zeros_like(np.broadcast_arrays(a, b, c)[0])
        for n in range(8):
            if table >> n & 1:
                x, y, z = (v if n >> s & 1 else ~v for v, s in ((a, 2), (b, 1), (c, 0)))
                result = result | (x & y & z)
        return result

    return apply(d, i, look)


_SELECTIONS: Mapping[str, list[list[int]]] = {
    "f4e": [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]],
    "b4e": [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]],
    "rc8": [[0] * 4, [1] * 4, [2] * 4, [3] * 4],
    "ecl": [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]],
    "ecr": [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]],
    "rc16": [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]],
}
"""The bytes that each mode of prmt takes, from the highest, by the control's lower two bits."""


def _prmt(i: Instruction, a: Array, b: Array, control: Array) -> Array:
    both = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | np.asarray(a)
    result = np.zeros(np.broadcast_shapes(np.shape(both), np.shape(control)), np.uint32)
    mode = next((m for m in _SELECTIONS if m in i.parts), "")
    for n in range(4):
        if mode:
            taken = np.array([row[3 - n] for row in _SELECTIONS[mode]])
            pick = taken[control & 3].astype(np.uint64)
            sign = np.zeros_like(pick)
        else:
            nibble = (control >> np.uint32(4 * n)) & 15
            pick, sign = (nibble & 7).astype(np.uint64), nibble >> 3
        byte = (both >> (np.uint64(8) * pick)) & np.uint64(255)
        byte = np.where(sign != 0, np.where(byte > 127, 255, 0), byte).astype(np.uint32)
        result |= byte << np.uint32(8 * n)
    return result


def _bfe(_: Instruction, dtype: np.dtype[Any], a: Array, start: Array, length: Array) -> Array:
    at, n = (_place(v, dtype) for v in (start, length))
    wide = np.asarray(a).astype(f"{dtype.kind}8")
    spare = (64 - np.minimum(n, 64)).astype(wide.dtype)
    field: Array = wide >> at.astype(wide.dtype) << spare >> spare
    return field.astype(dtype)


def _bfi(_: Instruction, dtype: np.dtype[Any], a: Array, b: Array, *field: Array) -> Array:
    at, n = (_place(v, dtype).astype(np.uint64) for v in field)
    mask = ((np.uint64(1) << n) - np.uint64(1)) << at
    put: Array = (np.asarray(a).astype(np.uint64) << at & mask) | (b & ~mask)
    return put.astype(dtype)


def _place(given: Array, dtype: np.dtype[Any]) -> Array:
    """Return a field's place or length.

    PTX restricts it to 0 to 255; sm_90 takes its last 8 bits in 32-bit fields, all in 64-bit ones.
    """
    return np.minimum(given, 255) if dtype.itemsize == 8 else np.asarray(given) & 255


def _leading(a: Array, bits: int) -> Any:
    """How many zeros stand before the first one."""
    wide = np.asarray(a).astype(np.uint64)
    for shift in (1, 2, 4, 8, 16, 32):
        wide = wide | (wide >> np.uint64(shift))
    return (bits - np.bitwise_count(wide)).astype(np.uint32)


def _bfind(i: Instruction, dtype: np.dtype[Any], a: Array) -> Array:
    bits = 8 * dtype.itemsize
    raw = np.where(a < 0, ~a, a).astype(f"u{dtype.itemsize}")
    before = _leading(raw, bits)
    found = before if "shiftamt" in i.parts else bits - 1 - before
    return np.where(raw == 0, np.uint32(0xFFFFFFFF), found)


def _reversed(a: Array) -> Any:
    raw = np.ascontiguousarray(np.atleast_1d(a)).view(np.uint8).reshape(-1, a.dtype.itemsize)
    bits = np.unpackbits(raw, axis=1, bitorder="little")[:, ::-1]
    return np.packbits(bits, axis=1, bitorder="little").view(a.dtype)[:, 0]


def _parts(a: Array, b: Array, *types: np.dtype[Any]) -> list[Array]:
    """Return the bytes or halves of two registers: (n, parts) each."""
    given = np.broadcast_arrays(*map(np.atleast_1d, (a, b)))
    return [
        np.ascontiguousarray(v).view(t).reshape(len(v), -1).astype(np.int64)
        for v, t in zip(given, types, strict=True)
    ]


def dot(i: Instruction, a: Array, b: Array, c: Array) -> Array:
    """Return dp4a and dp2a: products of bytes (or halves by bytes), added to c."""
    four, (from_a, from_b) = i.parts[0] == "dp4a", (TYPES[p[0] + "8"] for p in i.parts[-2:])
    left, right = _parts(a, b, from_a if four else np.dtype(f"{from_a.kind}2"), from_b)
    if not four:
        right = right[:, 2:] if "hi" in i.parts else right[:, :2]
    total: Array = np.asarray(c).astype(np.int64) + (left * right).sum(1)
    return total


_SIMD: Mapping[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add, "vsub": np.subtract, "vmin": np.minimum, "vmax": np.maximum,
    "vabsdiff": lambda a, b: np.abs(a - b),
}  # fmt: skip


def simd(i: Instruction, a: Array, b: Array, c: Array) -> Array:
    """Return vadd4, vsub2 and their kin: bytes (or halves) each; ``add``: their sum and c."""
    size = 4 // int(i.parts[0][-1])
    to, *of = (np.dtype(f"{part[0].replace('s', 'i')}{size}") for part in i.parts[1:4])
    made = _SIMD[i.parts[0][:-1]](*_parts(a, b, *of))
    if "add" in i.parts:
        total: Array = (np.asarray(c).astype(np.int64) + made.sum(1)).astype(np.int32)
        return total
    if "sat" in i.parts:
        made = np.clip(made, np.iinfo(to).min, np.iinfo(to).max)
    return np.ascontiguousarray(made.astype(to)).view(np.int32)[:, 0]


def _within(i: Instruction, given: Array) -> Array:
    """Return a place or a length in 32 bits: kept to them, or its last five bits."""
    wide = np.asarray(given).astype(np.int64)
    return np.minimum(wide, 32) if "clamp" in i.parts else wide & 31


def bit_field_mask(i: Instruction, a: Array, b: Array) -> Array:
    """Return bmsk: ``b`` ones from bit ``a`` on."""
    ones: Array = ((1 << _within(i, b)) - 1 << _within(i, a)) & 0xFFFFFFFF
    return ones


def sign_extend(i: Instruction, dtype: np.dtype[Any], a: Array, b: Array) -> Array:
    """Return szext: the lower ``b`` bits, extended."""
    width = _within(i, b)
    field: Array = (np.asarray(a).astype(np.int64) & 0xFFFFFFFF) & (1 << width) - 1
    if dtype.kind == "u":
        return field
    top = (field >> np.maximum(width - 1, 0) & 1) * (width > 0)
    extended: Array = field - (top << width)
    return extended


def find_nth(*given: Array) -> Array:
    """Return the place of the n-th one from a base on, upwards or (n below 0) downwards: fns."""
    masks, bases, numbers = np.broadcast_arrays(*map(np.atleast_1d, given))
    bases = np.minimum(bases, 32)  # a base beyond the bits: PTX leaves open what there is
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


TABLE: Mapping[str, Builder] = {
    **{name: plain(function) for name, function in _LOGIC.items()},
    "setp": _setp,
    "set": _set,
    "selp": plain(lambda a, b, p: np.where(p, a, b)),
    "slct": plain(lambda a, b, c: np.where(c >= 0, a, b)),
    **dict.fromkeys(("shl", "shr"), of_type(_shift)),
    "shf": of_parts(_shf),
    "lop3": _lop3,
    "prmt": of_parts(_prmt),
    "bfe": of_type(_bfe),
    "bfi": of_type(_bfi),
    "popc": plain(lambda a: np.bitwise_count(a).astype(np.uint32)),
    "clz": plain(lambda a: _leading(a, 8 * a.dtype.itemsize)),
    "bfind": of_type(_bfind),
    "brev": plain(_reversed),
    "bmsk": of_parts(bit_field_mask),
    "szext": of_type(sign_extend),
    "fns": plain(find_nth),
    **dict.fromkeys(("dp4a", "dp2a"), of_parts(dot)),
    **{f"{name}{n}": of_parts(simd) for name in _SIMD for n in (2, 4)},
}
"""This family's builders by entry."""
