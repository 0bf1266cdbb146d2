"""Types, immediates and rounding: PTX's numbers as NumPy's.

Registers hold bits; an instruction's type says how to read them.  ``tf32`` and ``b32`` are read as
``float32`` and ``uint32``; packed types (``f16x2``) as the 32 bits that they are.  A constant is an
integer expression with the operators of C, in 64 bits.

>>> immediate("0f3F800000", "f32"), immediate("-1", "u32"), immediate("0x10", "s64")
(np.float32(1.0), np.uint32(4294967295), np.int64(16))
>>> constant("(1 + 2 * 3)"), constant("-7 / 2"), constant("1 << 4 | 3"), constant("2 > 1 ? 8 : 9")
(7, -3, 19, 8)
>>> constant("WARP_SZ * 2"), constant("!0 + ~0U"), constant("%r1") is None
(64, 0, True)

Source: PTX ISA 9.0, sections 4.5 (constants), 5.2 (types), 9.7.3 to 9.7.5 (floating point).
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from .report import Array

__all__ = [
    "PACKED", "TYPES", "constant", "flushed", "fma", "immediate", "numbers", "products", "quotient",
    "root", "rounded", "single", "typed", "wrapped",
]  # fmt: skip

_TOKEN = re.compile(
    r"(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?|WARP_SZ|\.[su]64|<<|>>|[<>=!]=|&&|\|\||[-+*/%&|^~!<>?:()])"
)


_LEVELS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b),
     ">": lambda a, b: int(a > b), ">=": lambda a, b: int(a >= b)},
    {"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(Fraction(a, b)),  # towards zero
     "%": lambda a, b: a - b * int(Fraction(a, b))},
)  # fmt: skip


def constant(text: str) -> int | None:
    """Return the value of an integer constant expression, None if the text is none."""
    tokens = _TOKEN.findall(text)
    if not tokens or len(tokens) > 256 or "".join(tokens) != "".join(text.split()):
        return None
    try:
        value = _choice(tokens)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return None if tokens else value


def wrapped(value: int) -> int:
    """Return an integer's lower 64 bits, with a sign."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _choice(tokens: list[str]) -> int:
    value = _binary(tokens, 0)
    if tokens[:1] != ["?"]:
        return value
    tokens.pop(0)
    yes = _choice(tokens)
    if tokens.pop(0) != ":":
        raise ValueError("a choice without its second part")
    no = _choice(tokens)
    return yes if value else no


def _binary(tokens: list[str], level: int) -> int:
    if level == len(_LEVELS):
        return _unary(tokens)
    value = _binary(tokens, level + 1)
    while tokens and tokens[0] in _LEVELS[level]:
        value = wrapped(_LEVELS[level][tokens.pop(0)](value, _binary(tokens, level + 1)))
    return value


def _unary(tokens: list[str]) -> int:
    token = tokens.pop(0)
    if token == "(":
        if tokens[0] in (".s64", ".u64"):
            tokens.pop(0)
            if tokens.pop(0) != ")":
                raise ValueError("a cast without its end")
            return _unary(tokens)
        value = _choice(tokens)
        if tokens.pop(0) != ")":
            raise ValueError("a parenthesis without its end")
        return value
    signs: Mapping[str, Callable[[int], int]] = {
        "-": operator.neg, "+": operator.pos, "~": operator.invert, "!": lambda a: int(not a),
    }  # fmt: skip
    if token in signs:
        return wrapped(signs[token](_unary(tokens)))
    if token == "WARP_SZ":
        return 32
    digits = token.rstrip("U")
    value = int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)
    if value >> 64:
        raise ValueError("a constant has 64 bits")
    return value


TYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "pred": bool, "b128": "V16",
        **{f"{p}{w}": f"{k}{w // 8}" for p, k in (("u", "u"), ("b", "u"), ("s", "i"))
           for w in (8, 16, 32, 64)},
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
        "tf32": np.float32, "f16x2": np.uint32, "bf16x2": np.uint32, "f32x2": np.uint64,
        "u16x2": np.uint32, "s16x2": np.uint32,
        "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
        **dict.fromkeys(("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2"), np.uint16), "e2m1x2": np.uint8,
        "e2m1": ml_dtypes.float4_e2m1fn, "e2m3": ml_dtypes.float6_e2m3fn,
        "e3m2": ml_dtypes.float6_e3m2fn, "ue8m0": ml_dtypes.float8_e8m0fnu,
        "ue4m3": ml_dtypes.float8_e4m3fn,
    }.items()
}  # fmt: skip
"""The NumPy type of each PTX type; one of 4 or 6 bits is a byte that ends with them."""
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32", "u16x2": "u16", "s16x2": "s16"}
"""What each half of a packed type is."""

_FINFO: Callable[[np.dtype[Any]], Any] = ml_dtypes.finfo
_ALONE = 1 << 18  # multiplications that OpenBLAS does in one thread
_UNDER, _MIDDLE = 35, np.iinfo(np.int64).min  # the 29 bits that float32 has not: 1, then zeros
_LEAST = 1 << 24  # the bits of the least normal number of float32, without its sign
_NO = -5000  # zero's exponent
_APART = 300  # powers of 2 between two numbers of whose lesser only the sign counts


def immediate(text: str, kind: str) -> Any:
    """Return a constant as a NumPy scalar of the type.  Raises ValueError if it is none."""
    dtype = TYPES[kind]
    if kind == "b128":
        raise ValueError("128 bits are in registers only")
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        number = np.uint32(int(text[2:], 16)).view(np.float32)
        if dtype.itemsize != 4 and dtype.kind in "iub":
            raise ValueError(f"{text} has 4 B")
        return number.view(dtype) if dtype.itemsize == 4 else number.astype(dtype)
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        return np.uint64(int(text[2:], 16)).view(np.float64 if dtype.kind == "f" else dtype)
    if re.fullmatch(r"[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?", text):
        if dtype.kind in "iu":
            raise ValueError(f"{text} is no integer")
        return dtype.type(float(text))
    value = constant(text)
    if value is None:
        raise ValueError(f"{text} is no constant")
    return typed(value, dtype)[()]


def typed(number: Any, dtype: np.dtype[Any]) -> Array:
    """Return a number in a type: an integer's lower bits."""
    if dtype.kind not in "iu":
        return np.asarray(number).astype(dtype)
    bits = int(number) & ((1 << 8 * dtype.itemsize) - 1)
    return np.array(bits, f"u{dtype.itemsize}").view(dtype)


def numbers(bits: Array, kind: str) -> Array:
    """Return what bits are in a type, along the last axis, as float64; two e2m1 are in a byte."""
    if kind == "tf32":
        bits = bits & np.uint32(0xFFFFE000)
    if kind == "e2m1x2":
        held = np.ascontiguousarray(bits).view(np.uint8)
        bits = np.stack([held & 15, held >> 4], -1).reshape(*held.shape[:-1], -1)
    values = np.ascontiguousarray(bits).view(TYPES[kind.removesuffix("x2")])
    return np.asarray(values.astype(np.float64))


@functools.cache
def _format(kind: str) -> tuple[int, int, float]:
    """Return a type's bits of precision, its least number's exponent, and its greatest number."""
    if kind == "tf32":
        return 11, -136, float.fromhex("0x1.ffcp127")
    info = _FINFO(TYPES[kind])
    return info.nmant + 1, info.minexp - info.nmant, float(info.max)


def rounded(
    exact: Array, error: Any, mode: str, kind: str, scale: Any = 0,
    *, flush: bool = False, bounded: bool = False,
) -> Array:  # fmt: skip
    """Round ``(exact + error) * 2**scale`` to ``kind`` by PTX's ``mode``, once.

    ``exact`` is the number of float64 next to the sum, so that of the error the sign counts alone:
    it is the last of 62 bits.  ``rn`` rounds to nearest, ties to even, ``rna`` ties away from zero;
    ``rz`` towards zero; ``rm`` and ``rp`` down and up.  NaN has all bits but its sign.  ``flush``
    makes zero of what is below the normal numbers once it is rounded to as many bits as they have:
    so an H200 flushes an fma of f16 that else rounds up to the least normal number.  ``bounded``
    makes the greatest number of what is greater.
    """
    dtype, (precision, least, most) = TYPES[kind], _format(kind)
    if bounded:
        exact = np.clip(exact, -most, most)
        if kind in ("e2m1", "e2m3", "e3m2"):  # which have no NaN
            exact = np.nan_to_num(exact, nan=most)
    if mode == "rn" and kind != "tf32" and np.ndim(scale) == 0 and not (flush or np.any(error)):
        narrow = exact if dtype.char in "efd" else exact.astype(np.float32)
        if (narrow == exact).all():
            return narrow.astype(dtype)
    finite, negative = np.isfinite(exact), np.signbit(exact)
    fraction, exponent = np.frexp(np.where(finite, np.abs(exact), 0))
    away = np.nan_to_num(np.sign(error) * np.sign(exact)).astype(np.int64)
    bits = (fraction * 2.0**62).astype(np.int64) + away
    top = exponent - (bits < 1 << 61) + scale
    unit = top - precision if flush else np.maximum(top - precision, least)
    drop = np.minimum(unit - exponent - scale + 62, 63).astype(np.int64)
    kept, half = bits >> drop, np.int64(1) << (drop - 1)
    rest = bits - (kept << drop)
    nearest, out = mode in ("rn", "rna"), {"rm": negative, "rp": ~negative}.get(mode, False)
    tie = kept & 1 if mode == "rn" else 1
    size = np.ldexp(kept + (rest + tie > half if nearest else out & (rest > 0)), unit)
    size = np.where(size > most, np.where(nearest | out, np.inf, most), size)
    if flush:
        size = np.where(size < 2.0 ** (least + precision - 1), 0, size)
    result = np.copysign(np.where(finite, size, np.abs(exact)), exact).astype(dtype)
    nothing = np.array(np.iinfo(f"i{dtype.itemsize}").max).astype(f"i{dtype.itemsize}").view(dtype)
    return np.where(np.isnan(exact), nothing, result)


def flushed(values: Any, part: np.dtype[Any]) -> Any:
    """Return the values with subnormal ones as zeros of their sign, as ``.ftz`` does."""
    held = np.ascontiguousarray(values)
    halves = held.view(part) if held.dtype != part else held
    small = np.abs(halves) < _FINFO(part).tiny
    if not small.any():
        return values
    return np.where(small, np.copysign(part.type(0), halves), halves).view(held.dtype)


def fma(a: Any, b: Any, c: Any, mode: str, kind: str, *, flush: bool = False) -> Array:
    """Return ``a * b + c`` rounded once; in float64 of fractions, as their exponents are apart."""
    if (mode, kind) == ("rn", "f32") and (near := single(a, b, c)) is not None:
        return near
    x, y, z = (np.atleast_1d(np.asarray(v, np.float64)) for v in (a, b, c))
    scale: Any = 0
    low: Any = 0.0
    if kind == "f64":
        (x, ex), (y, ey), (z, ez) = map(np.frexp, (x, y, z))
        both, alone = np.where(x * y == 0, _NO, ex + ey), np.where(z == 0, _NO, ez)
        low = _low(x, y)
        gap = np.clip(alone - both, -_APART, _APART)
        z, scale = np.ldexp(z, gap), np.where(gap == _APART, alone - _APART, both)
    product = x * y
    plain = product + z
    if mode == "rm":
        minus = (plain == 0) & (np.signbit(product) | np.signbit(z))
        plain = np.where(minus, -0.0, plain)
    rest, less = _sum(z, low)
    total, left = _sum(product, rest)
    total, error = _sum(total, _odd(*_sum(left, less)))
    usual = np.isfinite(total) & (total != 0)
    return rounded(np.where(usual, total, plain), error, mode, kind, scale, flush=flush)


def single(a: Any, b: Any, c: Any) -> Array | None:
    """Return ``a * b + c`` of float32, rounded twice; None where that may not be as once.

    The product is exact in float64.  Only a sum in the middle between two numbers of float32 may
    have been rounded to there, and below the normal numbers the middles are elsewhere.
    """
    sums = np.atleast_1d(np.asarray(a, np.float64) * b)
    sums = sums + c if np.size(c) > np.size(sums) else np.add(sums, c, out=sums)
    if (sums.view(np.int64) << _UNDER).min() == _MIDDLE:
        return None
    result = sums.astype(np.float32)
    sizes = result.view(np.uint32) << 1
    small = sizes.min() <= _LEAST and (sizes - 1).min() < _LEAST  # zeros are exact
    return None if small else result


def quotient(a: Any, b: Array, mode: str, kind: str) -> Array:
    """Return ``a / b`` rounded once."""
    (x, ex), (y, ey) = (np.frexp(np.atleast_1d(np.asarray(v, np.float64))) for v in (a, b))
    near = x / y
    error = fma(-near, y, x, "rn", "f64") * np.where(np.signbit(y), -1, 1)
    return rounded(near, error, mode, kind, ex - ey)


def root(a: Array, mode: str, kind: str) -> Array:
    """Return the square root rounded once."""
    x, exponent = np.frexp(np.atleast_1d(np.asarray(a, np.float64)))
    x = np.ldexp(x, exponent & 1)
    near = np.sqrt(x)
    return rounded(near, fma(-near, near, x, "rn", "f64"), mode, kind, exponent >> 1)


def products(a: Array, b: Array) -> Array:
    """Return ``a @ b.T`` of float64, in parts so small that BLAS starts no threads for one.

    Its threads wait for each other by spinning; where others use the cores that costs 30 times the
    product of 256 x 16 and 16 x 256.
    """
    result = np.empty((len(a), len(b)))
    most = max(8, _ALONE // max(1, a.size))
    for first in range(0, len(b), most):
        np.matmul(a, b[first : first + most].T, out=result[:, first : first + most])
    return result


def _sum(a: Any, b: Any) -> tuple[Array, Array]:
    """Return the nearest number to ``a + b`` and what it lacks (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _low(a: Array, b: Array) -> Array:
    """Return what ``a * b`` lacks (Dekker), where nothing overflows."""
    factor = 2.0**27 + 1

    def halves(x: Array) -> tuple[Array, Array]:
        scaled = factor * x
        high = scaled - (scaled - x)
        return high, x - high

    (a1, a2), (b1, b2) = halves(a), halves(b)
    low: Array = a2 * b2 - (((a * b - a1 * b1) - a2 * b1) - a1 * b2)
    return low


def _odd(near: Array, error: Array) -> Array:
    """Return of the two numbers around ``near + error`` the one whose last bit is 1.

    A later rounding to fewer bits is then as if it were the only one (Boldo and Melquiond).
    """
    bits = np.ascontiguousarray(near).view(np.int64)
    even = (error != 0) & (bits & 1 == 0) & np.isfinite(near)
    toward = np.where(error > 0, np.inf, -np.inf)
    result: Array = np.where(even, np.nextafter(near, toward), near)
    return result
