"""Arithmetic, comparison, conversion and logic of registers: one NumPy expression each.

Single-precision results are rounded once (``fma`` through float64, mended where that rounds twice);
``.approx`` functions are computed exactly, then rounded.

Each thread has one carry flag.  An addition with ``.cc`` sets it to the carry out, a subtraction to
that of ``a + ~b + 1``, so that 1 is no borrow: nvcc's 128-bit division adds after it subtracts.

Source: PTX ISA 9.0, sections 9.7.1 to 9.7.5 and 9.7.9.22 (cvt).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .decoder import Act, Action, Builder, Decoder, Source, operation
from .parser import Instruction
from .report import Array
from .run import Group, Run
from .values import PACKED, TYPES, flushed, fma, numbers, quotient, root, rounded

__all__ = ["TABLE", "apply", "by_type", "of_parts", "of_type", "packed", "plain", "read"]

_MODES = ("rn", "rz", "rm", "rp", "rna")
_FLOATS = ("f16", "bf16", "f32", "f64", "tf32", "e4m3", "e5m2", "e2m1", "e2m3", "e3m2")
_LOW: Callable[[Array, Array], Array] = np.multiply


def apply(d: Decoder, i: Instruction, function: Callable[..., Any]) -> Action:
    """Return ``first operand = function(the others)``, in the form's types; ``.ftz`` is of all."""
    to, *kinds = d.kinds
    reads = [read(d, i, text, kind) for text, kind in zip(i.operands[1:], kinds, strict=True)]
    write = d.target(i.operands[0], to)
    if _flushes(i, to):
        plain, part = function, TYPES[PACKED.get(to, to)]
        function = lambda *given: flushed(plain(*given), part)  # noqa: E731 (a closure)
    if len(reads) == 2:
        first, second = reads
        return lambda run, group: write(run, group, function(first(run, group), second(run, group)))
    return lambda run, group: write(run, group, function(*(read(run, group) for read in reads)))


def by_type(make: Callable[[Instruction, np.dtype[Any]], Callable[..., Any]]) -> Builder:
    """Return the builder of a function that is made for an instruction's type, or its halves."""

    def build(d: Decoder, i: Instruction) -> Action:
        kind = i.parts[-1]
        if kind in ("f16", "bf16") and i.parts[-2] == "f32":  # of mixed precision
            wide = make(replace(i, opcode=i.opcode.rpartition(".")[0]), TYPES["f32"])
            return apply(d, i, lambda *given: wide(*(np.float32(a) for a in given)))
        part = TYPES[PACKED.get(kind, kind)]
        function = make(i, part)
        return apply(d, i, packed(function, part) if kind in PACKED else function)

    return build


def of_parts(function: Callable[..., Any]) -> Builder:
    """Return the builder of ``first operand = function(instruction, *the others)``."""
    return lambda d, i: apply(d, i, functools.partial(function, i))


def of_type(function: Callable[..., Any]) -> Builder:
    """Return the builder of ``first operand = function(instruction, type, *the others)``."""
    return by_type(lambda i, part: functools.partial(function, i, part))


def _flushes(i: Instruction, kind: str) -> bool:
    flushes = ("f32",) if i.parts[0] == "cvt" else ("f32", "f16", "bf16")
    return "ftz" in i.parts and PACKED.get(kind, kind) in flushes


def read(d: Decoder, i: Instruction, text: str, kind: str) -> Source:
    """Return the function that reads an operand, subnormal numbers as zero with ``.ftz``."""
    source = d.source(text, kind)
    if not _flushes(i, kind):
        return source
    part = TYPES[PACKED.get(kind, kind)]
    return lambda run, group: flushed(source(run, group), part)


def packed(function: Callable[..., Array], part: np.dtype[Any]) -> Callable[..., Array]:
    """Apply a function to both halves of packed registers."""
    whole = np.dtype(f"u{2 * part.itemsize}")

    def both(*given: Array) -> Array:
        wide = np.broadcast_arrays(*given)
        halves = [np.ascontiguousarray(w).view(part) for w in wide]
        return np.ascontiguousarray(function(*halves)).astype(part).view(whole)

    return both


def _with_carry(run: Run, group: Group, i: Instruction, write: Act, *values: Array) -> None:
    """Do add, sub and mad with ``.cc``, and addc, subc and madc."""
    dtype, name = values[-1].dtype, i.parts[0]
    raw, subtracts = np.dtype(f"u{dtype.itemsize}"), name.startswith("sub")
    if len(values) == 3:
        first, second, third = values
        upper = "hi" in i.parts
        values = (_upper(first, second, dtype) if upper else first * second, third)
    a, b = (v.astype(raw) for v in values)
    carried = run.carry[group.index] if name.endswith("c") else np.bool_(subtracts)
    taken = (carried != subtracts).astype(raw)
    if subtracts:
        result = a - b - taken
        out = (a < b) | ((a == b) & (taken > 0))
    else:
        result = a + b + taken
        out = (result < a) | ((result == a) & (taken > 0))
    if "cc" in i.parts:
        run.carry[group.index] = out != subtracts
    write(group, result.view(dtype))


with_carry = operation(_with_carry)


def _mode(i: Instruction) -> str:
    return next((m for m in i.parts if m in _MODES), "rn")


def _limited(i: Instruction, function: Callable[..., Array]) -> Callable[..., Array]:
    """Keep numbers from 0 to 1 with ``.sat``, which makes 0 of NaN, from 0 on with ``.relu``."""

    def limited(*given: Array) -> Array:
        result = function(*given)
        zero, one = result.dtype.type(0), result.dtype.type(1)
        if "relu" in i.parts:
            result = np.where(result <= 0, zero, result)
        else:
            result = np.where(result > 0, np.minimum(result, one), zero)
        return result

    return limited if {"sat", "relu"} & set(i.parts) else function


def _kind(i: Instruction) -> str:
    """Return the type of a number, or of a half of two."""
    return PACKED.get(i.parts[-1], i.parts[-1])


def _binary(name: str) -> Builder:
    plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]

    def make(i: Instruction, dtype: np.dtype[Any]) -> Callable[..., Any]:
        mode = _mode(i)
        if dtype.kind in "iu":
            return _product(i, dtype) if name == "mul" else _kept(i, dtype, plain)
        if mode == "rn" and not (name == "mul" and "ftz" in i.parts):
            return _limited(i, plain)
        once, zero, sign = _once(i), 0.0 if mode == "rm" else -0.0, 1.0 if name == "add" else -1.0
        if name == "mul":  # whose zero has the product's sign
            return lambda a, b: once(a, b, zero)
        return lambda a, b: once(b, sign, a)

    return _carrying(by_type(make))


def _carrying(plain: Builder) -> Builder:
    return lambda d, i: with_carry(d, i) if "cc" in i.parts else plain(d, i)


def _kept(i: Instruction, dtype: np.dtype[Any], plain: Any) -> Callable[[Array, Array], Array]:
    """Return integer addition or subtraction, with ``.sat`` kept to the type's limits."""
    if "sat" not in i.parts:
        return lambda a, b: plain(a, b)
    limits = np.iinfo(dtype)

    def kept(a: Array, b: Array) -> Array:
        wide = plain(a.astype(np.int64), b.astype(np.int64))
        inside: Array = np.clip(wide, limits.min, limits.max).astype(dtype)
        return inside

    return kept


def _wide(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    double = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
    product: Array = a.astype(double) * b.astype(double)
    return product


def _upper(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return the upper half of a product."""
    if dtype.itemsize < 8:
        upper: Array = (_wide(a, b, dtype) >> 8 * dtype.itemsize).astype(dtype)
        return upper
    x, y = (np.asarray(v).astype(np.uint64) for v in (a, b))
    low, s = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> s, y & low, y >> s
    middle = (x0 * y0 >> s) + (x1 * y0 & low) + (x0 * y1 & low)
    high: Array = x1 * y1 + (x1 * y0 >> s) + (x0 * y1 >> s) + (middle >> s)
    if dtype.kind == "i":
        high = high - np.where(np.asarray(a) < 0, y, 0) - np.where(np.asarray(b) < 0, x, 0)
    return high.view(dtype)


def _product(i: Instruction, dtype: np.dtype[Any]) -> Callable[..., Array]:
    """Return mul, mul24, mad and mad24 of integers."""
    product = _LOW
    if i.parts[0].endswith("24"):
        product = functools.partial(_product24, i, dtype)
    elif "wide" in i.parts:
        product = functools.partial(_wide, dtype=dtype)
    elif "hi" in i.parts:
        product = functools.partial(_upper, dtype=dtype)
    if i.parts[0].startswith("mul"):
        return product
    plus = _kept(i, dtype, np.add)
    return lambda a, b, c: plus(product(a, b), c)


def _product24(i: Instruction, dtype: np.dtype[Any], a: Array, b: Array) -> Array:
    """Multiply the lower 24 bits; ``.lo`` are the lower 32 of the 48 bits, ``.hi`` the upper."""
    x, y = (np.asarray(v).astype(np.int64) & 0xFFFFFF for v in (a, b))
    if dtype.kind == "i":
        x, y = (v - ((v & 0x800000) << 1) for v in (x, y))
    return (x * y >> (16 if "hi" in i.parts else 0)).astype(dtype)


def _fma(i: Instruction, dtype: np.dtype[Any]) -> Callable[..., Array]:
    if dtype.kind in "iu":
        return _product(i, dtype)
    return _once(i)


def _once(i: Instruction) -> Callable[..., Array]:
    """Return ``a * b + c``, rounded as an instruction says."""
    mode, kind = _mode(i), _kind(i)
    flush = _flushes(i, kind)
    return _limited(i, lambda a, b, c: fma(a, b, c, mode, kind, flush=flush))


def _divided(a: Array, b: Array) -> Array:
    """Return the quotient towards zero; what PTX leaves open (a divisor of 0) is all ones."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    if b.dtype.kind == "u":
        return np.where(b == 0, b.dtype.type(np.iinfo(b.dtype).max), a // safe)
    bits = np.dtype(f"u{b.dtype.itemsize}")  # the least number has no absolute value of its type
    quotient = (np.abs(a).view(bits) // np.abs(safe).view(bits)).view(b.dtype)
    return np.where(b == 0, -1, np.where((a < 0) != (b < 0), -quotient, quotient))


def _div(i: Instruction, dtype: np.dtype[Any]) -> Callable[..., Array]:
    if dtype.kind != "f":
        return _divided
    mode = _mode(i)
    return np.divide if mode == "rn" else lambda a, b: quotient(a, b, mode, i.parts[-1])


def _least(name: str) -> Builder:
    quiet, loud, zero = {
        "min": (np.fmin, np.minimum, np.bitwise_or),
        "max": (np.fmax, np.maximum, np.bitwise_and),
    }[name]

    def make(i: Instruction, part: np.dtype[Any]) -> Callable[..., Any]:
        if part.kind in "iu":
            return (lambda a, b: np.maximum(loud(a, b), 0)) if "relu" in i.parts else loud
        plain = loud if "NaN" in i.parts else quiet
        bits = np.dtype(f"u{part.itemsize}")

        def two(a: Array, b: Array) -> Array:
            result = np.atleast_1d(plain(a, b))
            nothing = (result == 0) & (a == b)
            if nothing.any():  # -0 is less than +0
                signed = zero(*(np.broadcast_to(v, result.shape).copy().view(bits) for v in (a, b)))
                result = np.where(nothing, signed.view(part), result)
            return result

        def several(*given: Array) -> Array:
            numbers = [np.abs(v) for v in given] if "abs" in i.parts else given
            result = functools.reduce(two, numbers)
            if "xorsign" in i.parts:
                negative = np.signbit(given[0]) ^ np.signbit(given[1])
                return np.where(negative, -result, result)
            return result

        return several

    return by_type(make)


_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "neg": np.negative,
    "not": np.invert,
    "cnot": lambda a: (a == 0).astype(a.dtype),
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "rcp": lambda a: 1 / a,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def _unary(name: str) -> Builder:
    plain = _UNARY[name]

    def make(i: Instruction, part: np.dtype[Any]) -> Callable[..., Any]:
        kind = _kind(i)
        if name in ("abs", "neg", "not", "cnot"):
            return plain
        mode = next((m for m in i.parts if m in _MODES), "")
        if mode == "rn":
            return plain
        if mode:
            return lambda a: root(a, mode, kind) if name == "sqrt" else quotient(1, a, mode, kind)

        def through(a: Array) -> Array:
            result = plain(np.asarray(a, np.float64))
            if kind == "f64" and "ftz" in i.parts:  # the upper half of the bits
                bits = np.atleast_1d(result).view(np.uint64) & np.uint64(0xFFFFFFFF << 32)
                return bits.view(np.float64)
            return rounded(result, 0, "rn", kind)

        return through

    return by_type(make)


_CLASSES: Mapping[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (np.abs(a) < np.finfo(a.dtype).tiny) & (a != 0),
}


def plain(function: Callable[..., Any]) -> Builder:
    """Return the builder of ``first operand = function(the others)``."""
    return lambda d, i: apply(d, i, function)


_TO_INTEGER: Mapping[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


def _converter(i: Instruction, of: str, to: str) -> Callable[[Array], Array]:
    convert = functools.partial(_converted, i, of, to)
    return _limited(i, convert) if to in _FLOATS else convert


def _converted(i: Instruction, of: str, to: str, a: Array) -> Array:
    source, target = TYPES[of], TYPES[to]
    if of not in _FLOATS and to not in _FLOATS:
        if "sat" in i.parts:
            types = np.iinfo(source), np.iinfo(target)
            a = np.clip(a, max(t.min for t in types), min(t.max for t in types))
        return a.astype(target)
    mode, integral = _mode(i), next((m for m in i.parts if m in _TO_INTEGER), "")
    if of not in _FLOATS:
        if mode == "rn" and target.kind == "f" and target.itemsize > 2:
            return a.astype(target)
        whole = np.atleast_1d(a)
        high = whole >> 32 << 32 if source.itemsize == 8 else whole * 0
        top, low = high.astype(np.float64), (whole - high).astype(np.float64)
        total = top + low
        return rounded(total, low - (total - top), mode, to)
    wide = np.asarray(a, np.float64)
    if to in _FLOATS:
        wide = _TO_INTEGER[integral](wide) if integral else wide
        return rounded(np.atleast_1d(wide), 0, mode, to, bounded="satfinite" in i.parts)
    limits, whole = np.iinfo(target), _TO_INTEGER[integral or "rzi"](wide)
    nothing = np.array(limits.min or limits.max // 2 + 1, target)
    if of != "f64" and target.itemsize < 8:
        nothing = target.type(0)
    least, most = target.type(limits.min), target.type(limits.max)
    inside = np.where(whole >= float(most), most, whole.astype(target))
    inside = np.where(whole <= float(least), least, inside)
    return np.where(np.isnan(whole), nothing, inside)


def _cvt(d: Decoder, i: Instruction) -> Action:
    to, of = i.parts[-2:]
    d.kinds = (to, *d.kinds[1:])  # tf32, where the form says its register's b32
    if not to.endswith("x2"):
        return apply(d, i, _converter(i, of, to))
    part, inner = to[:-2], of.removesuffix("x2")
    dtype, whole, convert = TYPES[part], TYPES[to], _converter(i, inner, part)

    def pack(*given: Array) -> Array:
        """Convert two halves of one register, or two registers, of which the last is the lower."""
        halves = [numbers(np.atleast_1d(v), of) for v in given[::-1]]
        values = np.stack(np.broadcast_arrays(*halves), -1) if len(halves) == 2 else halves[0]
        made = np.ascontiguousarray(convert(values)).astype(dtype)
        if to == "e2m1x2":
            codes = made.view(np.uint8).reshape(-1, 2)
            return codes[:, 0] | codes[:, 1] << 4
        return made.view(whole).reshape(-1)

    return apply(d, i, pack)


def _cvt_pack(i: Instruction, a: Array, b: Array, c: Any = 0) -> Array:
    """Keep two numbers to a type's limits; the first is the upper one, and c stands above both."""
    size = int(i.parts[3][1:])
    low = -1 << size - 1 if i.parts[3][0] == "s" else 0
    fields = (np.clip(v, low, low + (1 << size) - 1) & (1 << size) - 1 for v in (a, b))
    upper, lower = (f.astype(np.int64) for f in fields)
    word: Array = lower | upper << size | np.asarray(c).astype(np.int64) << 2 * size
    return word.astype(np.uint32)


TABLE: Mapping[str, Builder] = {
    **{name: _binary(name) for name in ("add", "sub", "mul")},
    **{name: _least(name) for name in ("min", "max")},
    **{name: _unary(name) for name in _UNARY},
    "mad": _carrying(by_type(_fma)),
    "fma": by_type(_fma),
    "div": by_type(_div),
    "rem": plain(lambda a, b: a - b * _divided(a, b).astype(a.dtype)),
    "sad": plain(lambda a, b, c: c + np.where(a < b, b - a, a - b).astype(c.dtype)),
    "copysign": plain(lambda a, b: np.copysign(b, a)),
    "testp": by_type(lambda i, dtype: _CLASSES[i.parts[1]]),
    "cvt": _cvt,
    "cvt.pack": of_parts(_cvt_pack),
    **dict.fromkeys(("mul24", "mad24"), by_type(_product)),
    **dict.fromkeys(("addc", "subc", "madc"), with_carry),
}
"""This family's builders by entry."""
