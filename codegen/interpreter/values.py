"""Types, immediates and rounding: PTX's numbers as NumPy's.

Registers hold bits; an instruction's type says how to read them.  ``tf32`` and ``b32`` are read as
``float32`` and ``uint32``; packed types (``f16x2``) as the 32 bits that they are.

>>> immediate("0f3F800000", "f32"), immediate("-1", "u32"), immediate("0x10", "s64")
(np.float32(1.0), np.uint32(4294967295), np.int64(16))

Source: PTX ISA 9.0, sections 4.5 (constants), 5.2 (types), 9.7.3 to 9.7.5 (floating point).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from tinygpu.codegen.interpreter.constants import constant
from tinygpu.codegen.interpreter.report import Array

__all__ = [
    "PACKED", "TYPES", "exactly", "flushed", "fma", "immediate", "narrowed", "products",
    "quotient_of", "root_of", "rounded",
]  # fmt: skip

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
        "e4m3x2": np.uint16, "e5m2x2": np.uint16,
    }.items()
}  # fmt: skip
"""The NumPy type of each PTX type."""
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32", "u16x2": "u16", "s16x2": "s16"}
"""What each half of a packed type is."""

_TINY = float(np.finfo(np.float32).tiny)
_TIE = np.uint64(1 << 28)
_ALONE = 1 << 18  # multiplications that OpenBLAS does in one thread
_BELOW = np.uint64((1 << 29) - 1)
_BITS = 700  # of the root of the least double there are 160 then


def immediate(text: str, kind: str) -> Any:
    """Return a constant as a NumPy scalar of the type.  Raises ValueError if it is none."""
    dtype = TYPES[kind]
    if kind == "b128":
        raise ValueError("128 bits are in registers only")
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        number = np.uint32(int(text[2:], 16)).view(np.float32)
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
    if dtype.kind == "b":
        return np.bool_(value)
    if dtype.kind in "iu":
        bits = value & ((1 << 8 * dtype.itemsize) - 1)
        return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(value)


def rounded(exact: Array, error: Array, mode: str, kind: str) -> Array:
    """Round ``exact + error`` (float64, the error far smaller) to ``kind`` by PTX's ``mode``.

    ``rn`` to nearest, ties to even; ``rz`` towards zero; ``rm`` and ``rp`` down and up.
    """
    dtype = TYPES[kind]
    if mode == "rn":
        if dtype == np.float64:
            return exact
        if np.any(error):
            exact = _odd(exact, error)
        return narrowed(exact, dtype)
    near = narrowed(exact, dtype)
    back = near.astype(np.float64)
    above = (back > exact) | ((back == exact) & (error < 0))
    below = (back < exact) | ((back == exact) & (error > 0))
    up, down = np.nextafter(near, dtype.type(np.inf)), np.nextafter(near, dtype.type(-np.inf))
    toward_zero = np.where(exact > 0, "rm", "rp") if mode == "rz" else mode
    result = np.where((toward_zero == "rm") & above, down, near)
    chosen: Array = np.where((toward_zero == "rp") & below, up, result).astype(dtype)
    return chosen


def _odd(near: Array, error: Array) -> Array:
    """Return of the two numbers around ``near + error`` the one whose last bit is 1.

    A later rounding to fewer bits is then as if it were the only one.
    """
    bits = np.ascontiguousarray(near).view(f"u{near.dtype.itemsize}")
    even = (error != 0) & (bits & 1 == 0) & np.isfinite(near)
    toward = np.where(error > 0, np.inf, -np.inf).astype(near.dtype)
    result: Array = np.where(even, np.nextafter(near, toward), near)
    return result


def narrowed(wide: Array, dtype: np.dtype[Any]) -> Array:
    """Round float64 to nearest, once: the types of ml_dtypes go through float32 by themselves."""
    if dtype.kind != "V" and dtype.itemsize > 1:
        return wide.astype(dtype)
    near = wide.astype(np.float32)
    error = wide - near
    if error.any():  # not finite counts too
        near = _odd(near, np.where(np.isfinite(error), error, 0))
    return near.astype(dtype)


def flushed(values: Any, part: np.dtype[Any]) -> Any:
    """Return the values with subnormal ones as zeros of their sign, as ``.ftz`` does."""
    held = np.ascontiguousarray(values)
    halves = held.view(part) if held.dtype != part else held
    small = np.abs(halves) < np.finfo(part).tiny
    if not small.any():
        return values
    return np.where(small, np.copysign(part.type(0), halves), halves).view(held.dtype)


def fma(a: Array, b: Array, c: Array, mode: str, kind: str) -> Array:
    """Return ``a * b + c`` rounded once."""
    if kind == "f64":
        x, y, z = np.broadcast_arrays(*map(np.atleast_1d, (a, b, c)))
        return _fma64(x, y, z, mode)
    wide = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c = np.asarray(c, np.float64)
    exact = np.atleast_1d(wide + c)
    if mode == "rn" and kind == "f32":
        bits = exact.view(np.uint64) & _BELOW
        if not ((bits == _TIE) | (np.abs(exact) < _TINY)).any():
            return exact.astype(np.float32)
    part = exact - wide
    error = (wide - (exact - part)) + (c - part)
    result = rounded(exact, np.where(np.isfinite(error), error, 0), mode, kind)
    if mode == "rm":  # zero of numbers of both signs is negative then
        result = np.where((exact == 0) & (np.signbit(wide) != np.signbit(c)), -result, result)
    return np.asarray(result)


def _fma64(a: Array, b: Array, c: Array, mode: str) -> Array:
    """Return it of doubles: of both parts of the product where these are safe, else of ratios.

    Source: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008.
    """
    if mode != "rn":
        return exactly(_fma_of, mode, a, b, c)
    product = a * b
    low = _low(a, b, product)
    near, more = _sum(c, low)
    total, left = _sum(product, near)
    both, error = _sum(more, left)
    result: Array = np.asarray(total + _odd(both, error))
    size = np.abs(product)
    safe = (size < 2.0**1000) & (np.abs(c) < 2.0**1000) & (size > 2.0**-900)
    safe &= (np.abs(a) < 2.0**990) & (np.abs(b) < 2.0**990)
    if not safe.all():
        result[~safe] = exactly(_fma_of, mode, *(x[~safe] for x in (a, b, c)))
    return result


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a sum and what its rounding has lost."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def exactly(function: Callable[..., float], mode: str, *given: Array) -> Array:
    """Apply a function of Python's numbers to the doubles of each lane."""
    lanes = zip(*(x.tolist() for x in np.broadcast_arrays(*given)), strict=True)
    return np.array([function(mode, *lane) for lane in lanes], np.float64)


def ratio(value: Fraction, mode: str) -> float:
    """Round a ratio that is not 0 to a double."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    toward_zero = "rm" if value > 0 else "rp"
    toward = toward_zero if mode == "rz" else mode
    if toward == "rm" and near > value:
        return math.nextafter(near, -math.inf)
    return math.nextafter(near, math.inf) if toward == "rp" and near < value else near


def _fma_of(mode: str, a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    if value := Fraction(a) * Fraction(b) + Fraction(c):
        return ratio(value, mode)
    signs = math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c)
    return -0.0 if max(signs) < 0 or (mode == "rm" and min(signs) < 0) else 0.0


def quotient_of(mode: str, a: float, b: float) -> float:
    """Divide, rounded once."""
    if a and b and math.isfinite(a) and math.isfinite(b):
        return ratio(Fraction(a) / Fraction(b), mode)
    return float(np.float64(a) / np.float64(b))


def root_of(mode: str, a: float) -> float:
    """Take the square root, rounded once: of so many bits that only an exact one is a tie."""
    if not 0 < a < math.inf:
        return float(np.sqrt(np.float64(a)))
    top, below = Fraction(a).as_integer_ratio()
    whole = (top << 2 * _BITS) // below  # below is a power of 4, or 2 of them
    root = math.isqrt(whole)
    exact = root * root == whole and (top << 2 * _BITS) % below == 0
    return ratio(Fraction(2 * root + (not exact), 2 << _BITS), mode)


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


def _low(a: Array, b: Array, product: Array) -> Array:
    """Return ``a * b - product`` exactly (Dekker), where nothing overflows."""
    factor = 2.0**27 + 1

    def halves(x: Array) -> tuple[Array, Array]:
        scaled = factor * x
        high = scaled - (scaled - x)
        return high, x - high

    (a1, a2), (b1, b2) = halves(a), halves(b)
    low: Array = a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)
    return low
