"""Arithmetic, comparison, conversion and logic of registers: one NumPy expression each.

Single-precision results are rounded once (``fma`` through float64, mended where that rounds twice);
``.approx`` functions are computed exactly, then rounded.

Source: PTX ISA 9.0, sections 9.7.1 to 9.7.8.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinygpu.codegen.interpreter.decoder import Action, Builder, Decoder, Source
from tinygpu.codegen.interpreter.integers import with_carry
from tinygpu.codegen.interpreter.parser import Instruction
from tinygpu.codegen.interpreter.report import Array
from tinygpu.codegen.interpreter.values import (
    PACKED,
    exactly,
    flushed,
    fma,
    narrowed,
    quotient_of,
    root_of,
    rounded,
)

__all__ = ["TABLE", "apply", "by_type", "packed", "plain", "read"]

_MODES = ("rn", "rz", "rm", "rp")


def apply(d: Decoder, i: Instruction, function: Callable[..., Any]) -> Action:
    """Return ``first operand = function(the others)``, in the form's types; ``.ftz`` is of all."""
    to, *kinds = d.kinds
    reads = [read(d, i, text, kind) for text, kind in zip(i.operands[1:], kinds, strict=True)]
    write = d.target(i.operands[0], to)
    if _flushes(i, to):
        plain, part = function, d.kind(PACKED.get(to, to))
        function = lambda *given: flushed(plain(*given), part)  # noqa: E731 (a closure)
    if len(reads) == 2:
        first, second = reads
        return lambda run, group: write(run, group, function(first(run, group), second(run, group)))
    return lambda run, group: write(run, group, function(*(read(run, group) for read in reads)))


def by_type(make: Callable[[Instruction, np.dtype[Any]], Callable[..., Any]]) -> Builder:
    """Return the builder of a function that is made for an instruction's type, or its halves."""

    def build(d: Decoder, i: Instruction) -> Action:
        kind = i.parts[-1]
        part = d.kind(PACKED.get(kind, kind))
        function = make(i, part)
        return apply(d, i, packed(function, part) if kind in PACKED else function)

    return build


def _flushes(i: Instruction, kind: str) -> bool:
    flushed = ("f32",) if i.parts[0] == "cvt" else ("f32", "f16")
    return "ftz" in i.parts and PACKED.get(kind, kind) in flushed


def read(d: Decoder, i: Instruction, text: str, kind: str) -> Source:
    """Return the function that reads an operand, subnormal numbers as zero with ``.ftz``."""
    source = d.source(text, kind)
    if not _flushes(i, kind):
        return source
    part = d.kind(PACKED.get(kind, kind))
    return lambda run, group: flushed(source(run, group), part)


def packed(function: Callable[..., Array], part: np.dtype[Any]) -> Callable[..., Array]:
    """Apply a function to both halves of packed registers."""
    whole = np.dtype(f"u{2 * part.itemsize}")

    def both(*given: Array) -> Array:
        wide = np.broadcast_arrays(*given)
        halves = [np.ascontiguousarray(w).view(part) for w in wide]
        return np.ascontiguousarray(function(*halves)).astype(part).view(whole)

    return both


def _mode(i: Instruction) -> str:
    return next((m for m in i.parts if m in _MODES), "rn")


def _saturated(i: Instruction, function: Callable[..., Array]) -> Callable[..., Array]:
    if "sat" not in i.parts:
        return function
    # -0 + 0 is 0
    return lambda *given: np.clip(np.nan_to_num(function(*given), nan=0.0), 0, 1) + 0


def _kind(i: Instruction) -> str:
    """Return the type of a number, or of a half of two."""
    return PACKED.get(i.parts[-1], i.parts[-1])


def _binary(name: str) -> Builder:
    plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]

    def make(i: Instruction, dtype: np.dtype[Any]) -> Callable[..., Any]:
        mode, sign = _mode(i), -1.0 if name == "sub" else 1.0
        if dtype.kind in "iu":
            return _product(i, dtype) if name == "mul" else _limited(i, dtype, plain)

        def directed(a: Array, b: Array) -> Array:
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            if name == "mul":
                return fma(x, y, np.copysign(0.0, x) * np.copysign(1.0, y), mode, _kind(i))
            return fma(y, np.full_like(y, sign), x, mode, _kind(i))

        return _saturated(i, plain if mode == "rn" else directed)

    return _carrying(by_type(make))


def _carrying(plain: Builder) -> Builder:
    return lambda d, i: with_carry(d, i) if "cc" in i.parts else plain(d, i)


def _limited(i: Instruction, dtype: np.dtype[Any], plain: Any) -> Callable[[Array, Array], Array]:
    """Return integer addition or subtraction, with ``.sat`` kept to the type's limits."""
    if "sat" not in i.parts:
        return lambda a, b: plain(a, b)
    limits = np.iinfo(dtype)

    def limited(a: Array, b: Array) -> Array:
        wide = plain(a.astype(np.int64), b.astype(np.int64))
        kept: Array = np.clip(wide, limits.min, limits.max).astype(dtype)
        return kept

    return limited


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


_LOW: Callable[[Array, Array], Array] = np.multiply


def _product(i: Instruction, dtype: np.dtype[Any]) -> Callable[..., Array]:
    """Return mul, mul24, mad and mad24 of integers."""
    product = _LOW
    if i.parts[0].endswith("24"):
        product = _product24(i, dtype)
    elif "wide" in i.parts:
        product = functools.partial(_wide, dtype=dtype)
    elif "hi" in i.parts:
        product = functools.partial(_upper, dtype=dtype)
    if i.parts[0].startswith("mul"):
        return product
    plus = _limited(i, dtype, np.add)
    return lambda a, b, c: plus(product(a, b), c)


def _product24(i: Instruction, dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    """Multiply the lower 24 bits; ``.lo`` are the lower 32 of the 48 bits, ``.hi`` the upper."""
    shift = 16 if "hi" in i.parts else 0

    def product(a: Array, b: Array) -> Array:
        x, y = (np.asarray(v).astype(np.int64) & 0xFFFFFF for v in (a, b))
        if dtype.kind == "i":
            x, y = (v - ((v & 0x800000) << 1) for v in (x, y))
        return (x * y >> shift).astype(dtype)

    return product


def _fma(i: Instruction, dtype: np.dtype[Any]) -> Callable[..., Array]:
    if dtype.kind in "iu":
        return _product(i, dtype)
    mode, kind = _mode(i), _kind(i)

    def once(a: Array, b: Array, c: Array) -> Array:
        result = fma(a, b, c, mode, kind)
        return _positive(result) if "relu" in i.parts else result

    return _saturated(i, once)


def _positive(a: Array) -> Array:
    """Return what is above 0, and NaN, as it is, and 0 for all else."""
    return np.where(a <= 0, a.dtype.type(0), a)


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
    return np.divide if mode == "rn" else lambda a, b: _quotient(a, b, mode, i.parts[-1])


def _left(a: Array, b: Array, c: Array) -> Array:
    """Return ``a - b * c``, rounded once, 0 where something is not finite."""
    left = fma(-b, c, a, "rn", "f64")
    return np.where(np.isfinite(left), left, 0)


def _quotient(a: Array, b: Array, mode: str, kind: str) -> Array:
    x, y = (np.atleast_1d(np.asarray(v, np.float64)) for v in (a, b))
    x, y = np.broadcast_arrays(x, y)
    if kind == "f64" and mode != "rn":
        return exactly(quotient_of, mode, x, y)
    quotient = x / y
    error = _left(x, quotient, y) * np.where(np.signbit(y), -1.0, 1.0)
    return rounded(quotient, error, mode, kind)


def _root(a: Array, mode: str, kind: str) -> Array:
    x = np.atleast_1d(np.asarray(a, np.float64))
    if kind == "f64" and mode != "rn":
        return exactly(root_of, mode, x)
    root = np.sqrt(x)
    return rounded(root, _left(x, root, root), mode, kind)


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
        kind = i.parts[-1]
        if name in ("abs", "neg", "not", "cnot"):
            return plain
        if name in ("sqrt", "rcp") and "approx" not in i.parts:
            mode, one = _mode(i), np.ones(1)
            if name == "sqrt":
                return lambda a: _root(a, mode, kind)
            return lambda a: _quotient(one, a, mode, kind)

        def through(a: Array) -> Array:
            result = plain(np.asarray(a, np.float64))
            if kind == "f64":  # .approx has the upper half of the bits
                bits = np.atleast_1d(result).view(np.uint64) & np.uint64(0xFFFFFFFF << 32)
                return bits.view(np.float64)
            return narrowed(result, part)

        return through

    return by_type(make)


def _testp(i: Instruction, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    tiny = np.finfo(dtype).tiny
    tests: Mapping[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }
    return tests[i.parts[1]]


def plain(function: Callable[..., Any]) -> Builder:
    """Return the builder of ``first operand = function(the others)``."""
    return lambda d, i: apply(d, i, function)


_TO_INTEGER: Mapping[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


def _converted(d: Decoder, i: Instruction, of: str, to: str) -> Callable[[Array], Array]:
    source, target = d.kind(of), d.kind(to)
    integral = next((m for m in i.parts if m in _TO_INTEGER), "")
    floats = ("f16", "bf16", "f32", "f64", "tf32", "e4m3", "e5m2")
    mode = _mode(i)
    if of in floats and to not in floats:
        limits = np.iinfo(target)
        turn, bits = _TO_INTEGER[integral or "rzi"], 8 * target.itemsize
        nothing = 1 << (bits - 1) if of == "f64" or bits == 64 else 0  # measured on an H200
        nan = np.array(nothing, f"u{target.itemsize}").view(target)

        def to_integer(a: Array) -> Array:
            whole = turn(np.asarray(a, np.float64))
            low, high = float(limits.min), float(limits.max)
            inside = np.clip(np.nan_to_num(whole, nan=0.0), low, high)
            result = np.where(inside >= high, limits.max, inside.astype(target))
            result = np.where(inside <= low, limits.min, result).astype(target)
            return np.where(np.isnan(whole), nan, result)

        return to_integer
    if of in floats:

        def to_float(a: Array) -> Array:
            wide = np.atleast_1d(np.asarray(a, np.float64))
            if integral:
                wide = _TO_INTEGER[integral](wide)
            if to == "tf32":
                return _to_tf32(i, wide.astype(np.float32))
            if "satfinite" in i.parts:
                most = {"e4m3": 448.0, "e5m2": 57344.0}.get(to) or float(np.finfo(target).max)
                wide = np.clip(wide, -most, most)
            result = rounded(wide, np.zeros(1), mode, to)
            if "relu" in i.parts:
                result = _positive(result)
            if target.itemsize == 1:  # all NaN are one
                result = np.where(np.isnan(wide), np.uint8(0x7F), result.view(np.uint8))
                return result.astype(np.uint8).view(target)
            return _saturated(i, lambda x: x)(result)

        return to_float
    if to in floats:
        if mode == "rn" and target.kind == "f" and target.itemsize > 2:
            return _saturated(i, lambda a: a.astype(target))

        def integer_to_float(a: Array) -> Array:
            whole = np.atleast_1d(a)
            high = whole >> 32 << 32 if source.itemsize == 8 else whole * 0
            top, low = high.astype(np.float64), (whole - high).astype(np.float64)
            wide = top + low
            return rounded(wide, low - (wide - top), mode, to)

        return _saturated(i, integer_to_float)
    if "sat" in i.parts:
        limits = np.iinfo(target)
        low, high = max(limits.min, np.iinfo(source).min), min(limits.max, np.iinfo(source).max)
        return lambda a: np.clip(a, low, high).astype(target)
    return lambda a: a.astype(target)


def _to_tf32(i: Instruction, a: Array) -> Array:
    """Round to ten bits of fraction: ``rna`` ties away from zero, ``rn`` to even, ``rz`` none."""
    if "relu" in i.parts:
        a = _positive(a)
    bits = a.view(np.uint32)
    more = {"rna": 0x1000, "rz": 0}.get(_tf32_mode(i))
    step = np.uint32(more) if more is not None else np.uint32(0xFFF) + (bits >> 13 & 1)
    result = np.where(np.isfinite(a), bits + step, bits) & np.uint32(0xFFFFE000)
    if "satfinite" in i.parts:
        over = (result & 0x7FFFFFFF) == 0x7F800000
        result = np.where(over, (result & 0x80000000) | 0x7F7FE000, result).astype(np.uint32)
    return result.view(np.float32)


def _tf32_mode(i: Instruction) -> str:
    return next(m for m in ("rna", "rn", "rz") if m in i.parts)


def _cvt(d: Decoder, i: Instruction) -> Action:
    to, of = i.parts[-2:]
    d.kinds = (to, *d.kinds[1:])  # tf32, where the form says its register's b32
    if to not in ("f16x2", "bf16x2", "e4m3x2", "e5m2x2"):
        return apply(d, i, _converted(d, i, of, to))
    part, inner = to[:-2], of.removesuffix("x2")
    dtype, whole, convert = d.kind(part), d.kind(to), _converted(d, i, inner, part)

    def pack(*given: Array) -> Array:
        """Convert two halves of one register, or two registers, of which the last is the lower."""
        parts = [np.ascontiguousarray(np.atleast_1d(v)).view(d.kind(inner)) for v in given]
        if len(parts) == 2:
            parts = [np.stack(np.broadcast_arrays(*map(np.atleast_1d, given[::-1])), -1)]
        return np.ascontiguousarray(convert(parts[0])).astype(dtype).view(whole).reshape(-1)

    return apply(d, i, pack)


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
    "testp": by_type(_testp),
    "cvt": _cvt,
    **dict.fromkeys(("mul24", "mad24"), by_type(_product)),
    **dict.fromkeys(("addc", "subc", "madc"), with_carry),
}
"""This family's builders by entry."""
