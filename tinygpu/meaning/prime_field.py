"""A prime field in float64: an algebra in which different polynomials differ, almost surely.

Elements are the whole numbers below P = 67108859, the largest prime below 2^26.  A product of two
is below 2^52 and so exact in float64; of a sum of products the left factors are cut in halves of 13
bits, so that up to 2^14 products are summed exactly, by BLAS.  NaN stays what nobody has written.

Sums, products and quotients are the field's; rounding is the identity; a constant, a dyadic
fraction, is the quotient of its two integers.  ``max`` and ``min`` are commutative monoids with a
random e and s, (x - e)(y - e) s + e: each value counts exactly once, in any order.  Every other
function is a hash.  Minus infinity is no element: it is the identity of ``max``, a sum with it and
a product with what is not 0 are it again, and its ``ex2`` is 0.

>>> field = prime_field(0)
>>> half = field.number(0.5)
>>> float(field.operators["add"](half, half)), float(field.operators["rcp"](half))
(1.0, 2.0)

If two functions are different polynomials of degree d, they agree at a random place with a
probability of at most d / P.

Source: J. Schwartz, "Fast Probabilistic Algorithms for Verification of Polynomial Identities",
JACM 27(4), 1980; ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.isa.algebra import OPERATORS, Algebra
from tinygpu.isa.memory import DType

__all__ = ["P", "prime_field"]

P = 67_108_859
_HALF = 2.0**13
_INVERSE = 1.0 / P
_FEW = 4096
_BLOCK = 2**14
_LESS = 2.0**-20  # more than a quotient below 2^27 is wrong by in float64, less than 1
_SAME = {"ex2.ftz": "ex2", "rcp.ftz": "rcp"}  # they differ in rounding only
Array = NDArray[np.float64]


def prime_field(seed: int) -> Algebra:
    """Return the field; ``seed`` draws its monoids and its hashes."""
    random = np.random.default_rng(seed)
    operators: dict[str, Callable[..., Any]] = {
        "add": _add, "sub": _sub, "mul": _mul, "neg": lambda a: _sub(0.0, a), "rcp": _rcp,
        "div": lambda a, b: _mul(a, _rcp(b)),
        "fma": _fma, "rcp0": lambda a: np.where(a == 0, 0.0, _rcp(a)),
        "where": OPERATORS["where"],
    }  # fmt: skip
    for name in OPERATORS:
        key = int(random.integers(2**63))
        e, s = (float(x) for x in random.integers(1, P, 2))
        if name in ("max", "min"):
            operators[name] = partial(_monoid, e, s, -np.inf if name == "max" else np.inf)
        elif name not in operators:
            operators[name] = partial(_hash, key, np.nan if name != "ex2" else 0.0)
    for name, other in _SAME.items():
        operators[name] = operators[other]
    for name in ("ceildiv", "le", "lt", "and"):
        del operators[name]  # of integers, whatever the algebra
    total = partial(_total, operators)
    return Algebra(operators, _number, _unrounded, _contract, total, exact=True)


def _reduced(x: Any) -> Array:
    """Return whole numbers below 2^53 modulo P; minus infinity stays, another infinity is NaN."""
    whole = np.asarray(x, np.float64)
    if whole.size < _FEW:
        rest: Array = (whole.astype(np.int64) % P).astype(np.float64)
        strange = not np.isfinite(whole.sum())
    else:
        rest = _rest(np.ascontiguousarray(whole).ravel()).reshape(whole.shape)
        strange = bool(np.isnan(rest.sum()))
    if strange:
        rest = np.where(np.isfinite(whole), rest, np.where(whole == -np.inf, whole, np.nan))
    return rest


def _rest(x: Array) -> Array:
    """Divide block by block, which stay in the cache; a quotient is right, or one too small."""
    rest, many = np.empty_like(x), np.empty(_BLOCK)
    for first in range(0, x.size, _BLOCK):
        block, left = x[first : first + _BLOCK], rest[first : first + _BLOCK]
        np.multiply(block, _INVERSE, out=left)
        left -= _LESS
        np.floor(left, out=left)
        left *= P
        np.subtract(block, left, out=left)
        over = many[: left.size]
        np.greater_equal(left, P, out=over)
        over *= P
        left -= over
    return rest


def _add(a: Any, b: Any) -> Array:
    """Return the sum of two elements, which is below 2 P."""
    total = np.asarray(np.add(a, b), np.float64)
    if total.size < _FEW:
        return np.where(total >= P, total - P, total)
    over = np.greater_equal(total, P, out=np.empty_like(total))
    over *= P
    return np.subtract(total, over, out=over)


def _sub(a: Any, b: Any) -> Array:
    return _reduced(a - b)


def _fma(a: Any, b: Any, c: Any) -> Array:
    product = np.asarray(np.multiply(a, b))
    return _reduced(np.add(product, c, out=product if product.shape == np.shape(c) else None))


def _mul(a: Any, b: Any) -> Array:
    return _reduced(np.multiply(a, b))


def _rcp(a: Any) -> Array:
    """Return the inverse; of 0 there is none."""
    known = np.isfinite(a) & (a != 0)
    inverse = _inverses(np.where(known, a, 1.0).ravel())
    return np.where(known, inverse.reshape(np.shape(a)), np.nan)


def _inverses(a: Array) -> Array:
    """Invert half as many products: 1 / x is y / (x y)."""
    if a.size <= 1:
        return np.array([float(pow(int(x), -1, P)) for x in a])
    half = a.size // 2
    x, y, rest = a[:half], a[half : 2 * half], a[2 * half :]
    both = _inverses(_mul(x, y))
    return np.concatenate([_mul(both, y), _mul(both, x), _inverses(rest)])


def _monoid(e: float, s: float, identity: float, a: Any, b: Any) -> Array:
    both = _reduced(_reduced((a - e) * (b - e)) * s + e)
    return np.where(a == identity, b, np.where(b == identity, a, both))


def _hash(key: int, least: float, a: Any) -> Array:
    """Return a pseudorandom function of each element; ``least``: of minus infinity."""
    known = np.isfinite(a)
    x = np.where(known, a, 0.0).astype(np.uint64) + np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(31))) % np.uint64(P)
    return np.where(known, x.astype(np.float64), np.where(a == -np.inf, least, np.nan))


@lru_cache(4096)
def _number(x: float) -> float:
    if not np.isfinite(x):
        return float(x)
    above, below = float(x).as_integer_ratio()
    return float(above * pow(below, -1, P) % P)


def _unrounded(_: DType, array: Any) -> Array:
    return np.asarray(array, np.float64)


def _contract(form: Callable[[Any, Any], Any], a: Any, b: Any) -> Array:
    high = np.floor(a * (1.0 / _HALF))
    total = _reduced(form(high, b))
    total *= _HALF
    total += form(a - high * _HALF, b)
    return _reduced(total)


def _total(
    operators: dict[str, Callable[..., Any]], operator: str, array: Any, axes: tuple[int, ...]
) -> Array:
    """Reduce; a maximum by halves, as its products are not."""
    if operator == "add":
        return _reduced(np.sum(array, axis=axes, keepdims=True))  # of 2^27 elements at most
    kept = tuple(1 if i in axes else n for i, n in enumerate(array.shape))
    rest = np.moveaxis(array, axes, range(len(axes))).reshape(-1, *(n for n in kept if n > 1))
    while len(rest) > 1:
        half = len(rest) // 2
        paired = operators[operator](rest[:half], rest[half : 2 * half])
        rest = np.concatenate([paired, rest[2 * half :]])
    return np.asarray(rest[0].reshape(kept))
