"""Whole numbers modulo an odd N below 2^26, a product of different primes, in float64.

A product of two is below 2^52 and so exact; of a sum of products the left factors are cut in halves
of 13 bits, so that up to 2^14 products are summed exactly, by BLAS.  NaN is no element and stays.
Minus infinity is no element: a sum with it and a product with what is not 0 are it again.  What
shares a prime with N has no inverse: its reciprocal is NaN.

>>> small = Residues((7, 3))
>>> float(small.add(20.0, 4.0)), float(small.rcp(2.0)), float(small.rcp(14.0))
(3.0, 11.0, nan)

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from tinygpu.isa.algebra import OPERATORS, Operator
from tinygpu.numbers import Floats, Number

__all__ = ["Residues", "hashed"]

_HALF = 2.0**13
_FEW = 4096
_BLOCK = 2**14
_LESS = 2.0**-20  # more than a quotient below 2^28 is wrong by in float64, less than 1


@dataclass(frozen=True, slots=True)
class Residues:
    """The ring of the whole numbers modulo the product of ``primes``; a field if that is one."""

    primes: tuple[int, ...]

    @property
    def modulus(self) -> int:
        """N."""
        return prod(self.primes)

    @property
    def operators(self) -> dict[str, Operator]:
        """Sums, products and quotients, by their names."""
        return {
            "add": self.add, "sub": self.sub, "mul": self.mul, "neg": lambda a: self.sub(0.0, a),
            "rcp": self.rcp, "div": lambda a, b: self.mul(a, self.rcp(b)), "fma": self.fma,
            "rcp0": lambda a: np.where(a == 0, 0.0, self.rcp(a)), "where": OPERATORS["where"],
        }  # fmt: skip

    def reduced(self, x: Number) -> Floats:
        """Return whole numbers below 2^53 modulo N; minus infinity stays, another one is NaN."""
        whole, n = np.asarray(x, np.float64), self.modulus
        if whole.size < _FEW:
            rest: Floats = (whole.astype(np.int64) % n).astype(np.float64)
            strange = not np.isfinite(whole.sum())
        else:
            rest = _rest(np.ascontiguousarray(whole).ravel(), n).reshape(whole.shape)
            strange = bool(np.isnan(rest.sum()))
        if strange:
            rest = np.where(np.isfinite(whole), rest, np.where(whole == -np.inf, whole, np.nan))
        return rest

    def add(self, a: Number, b: Number) -> Floats:
        """Return the sum of two elements, which is below 2 N before it is reduced."""
        total, n = np.asarray(np.add(a, b), np.float64), self.modulus
        if total.size < _FEW:
            return np.where(total >= n, total - n, total)
        over = np.greater_equal(total, n, out=np.empty_like(total))
        over *= n
        return np.subtract(total, over, out=over)

    def sub(self, a: Number, b: Number) -> Floats:
        """Return the difference."""
        return self.reduced(a - b)

    def fma(self, a: Number, b: Number, c: Number) -> Floats:
        """Return a b + c."""
        product = np.asarray(np.multiply(a, b))
        return self.reduced(
            np.add(product, c, out=product if product.shape == np.shape(c) else None)
        )

    def mul(self, a: Number, b: Number) -> Floats:
        """Return the product."""
        return self.reduced(np.multiply(a, b))

    def rcp(self, a: Number) -> Floats:
        """Return the inverse, NaN where there is none."""
        known = np.isfinite(a)
        for prime in self.primes:
            known = known & (np.fmod(a, prime) != 0)
        inverse = self._inverses(np.where(known, a, 1.0).ravel())
        return np.where(known, inverse.reshape(np.shape(a)), np.nan)

    def _inverses(self, a: Floats) -> Floats:
        """Invert half as many products: 1 / x is y / (x y)."""
        if a.size <= 1:
            return np.array([float(pow(int(x), -1, self.modulus)) for x in a])
        half = a.size // 2
        x, y, rest = a[:half], a[half : 2 * half], a[2 * half :]
        both = self._inverses(self.mul(x, y))
        return np.concatenate([self.mul(both, y), self.mul(both, x), self._inverses(rest)])

    def number(self, x: float) -> float:
        """Return what a constant means: a dyadic fraction is the quotient of its two integers."""
        return _image(x, self.modulus)

    def contract(self, form: Callable[[Floats, Floats], Floats], a: Floats, b: Floats) -> Floats:
        """Return ``form(a, b)``, sums of at most 2^14 products."""
        high = np.floor(a * (1.0 / _HALF))
        total = self.reduced(form(high, b))
        total *= _HALF
        total += form(a - high * _HALF, b)
        return self.reduced(total)

    def total(
        self,
        operators: Mapping[str, Operator],
        operator: str,
        array: Floats,
        axes: tuple[int, ...],
    ) -> Floats:
        """Reduce over axes, whose length becomes 1; what is no sum by halves."""
        if operator == "add":
            return self.reduced(np.sum(array, axis=axes, keepdims=True))  # of 2^27 elements at most
        kept = tuple(1 if i in axes else n for i, n in enumerate(array.shape))
        rest = np.moveaxis(array, axes, range(len(axes))).reshape(-1, *(n for n in kept if n > 1))
        while len(rest) > 1:
            half = len(rest) // 2
            paired = operators[operator](rest[:half], rest[half : 2 * half])
            rest = np.concatenate([paired, rest[2 * half :]])
        return np.asarray(rest[0].reshape(kept))


def _rest(x: Floats, modulus: int) -> Floats:
    """Divide block by block, which stay in the cache; a quotient is right, or one too small."""
    rest, many, inverse = np.empty_like(x), np.empty(_BLOCK), 1.0 / modulus
    for first in range(0, x.size, _BLOCK):
        block, left = x[first : first + _BLOCK], rest[first : first + _BLOCK]
        np.multiply(block, inverse, out=left)
        left -= _LESS
        np.floor(left, out=left)
        left *= modulus
        np.subtract(block, left, out=left)
        over = many[: left.size]
        np.greater_equal(left, modulus, out=over)
        over *= modulus
        left -= over
    return rest


@lru_cache(4096)
def _image(x: float, modulus: int) -> float:
    if not np.isfinite(x):
        return float(x)
    above, below = float(x).as_integer_ratio()
    return float(above * pow(below, -1, modulus) % modulus)


def hashed(modulus: int, key: int, least: float, a: Number) -> Floats:
    """Return a pseudorandom function of each element; ``least``: of minus infinity."""
    known = np.isfinite(a)
    x = np.where(known, a, 0.0).astype(np.uint64) + np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(31))) % np.uint64(modulus)
    return np.where(known, x.astype(np.float64), np.where(a == -np.inf, least, np.nan))
