"""A prime field in float64: an algebra in which different polynomials differ, almost surely.

Elements are the whole numbers below P = 67108859, the largest prime below 2^26
(``tinygpu.meaning.residues``).  NaN stays what nobody has written.

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

from functools import partial

import numpy as np

from tinygpu.isa.algebra import OPERATORS, Algebra
from tinygpu.isa.memory import DType
from tinygpu.meaning.residues import Residues, hashed
from tinygpu.numbers import Array, Floats, Number

__all__ = ["SAME", "P", "prime_field", "unrounded"]

P = 67_108_859
SAME = {"ex2.ftz": "ex2", "rcp.ftz": "rcp"}
"""Operators that differ from others in rounding only."""
_FIELD = Residues((P,))


def prime_field(seed: int) -> Algebra:
    """Return the field; ``seed`` draws its monoids and its hashes."""
    random = np.random.default_rng(seed)
    operators = _FIELD.operators
    for name in OPERATORS:
        key = int(random.integers(2**63))
        e, s = (float(x) for x in random.integers(1, P, 2))
        if name in ("max", "min"):
            operators[name] = partial(_monoid, e, s, -np.inf if name == "max" else np.inf)
        elif name not in operators:
            operators[name] = partial(hashed, P, key, np.nan if name != "ex2" else 0.0)
    for name, other in SAME.items():
        operators[name] = operators[other]
    for name in ("ceildiv", "le", "lt", "and"):
        del operators[name]  # of integers, whatever the algebra
    total = partial(_FIELD.total, operators)
    return Algebra(
        operators, _FIELD.number, unrounded, _FIELD.contract, total, exact=True, modulus=P
    )


def _monoid(e: float, s: float, identity: float, a: Number, b: Number) -> Floats:
    both = _FIELD.reduced(_FIELD.reduced((a - e) * (b - e)) * s + e)
    return np.where(a == identity, b, np.where(b == identity, a, both))


def unrounded(_: DType, array: Array) -> Floats:
    """Return the array: rounding is the identity of an exact algebra."""
    return np.asarray(array, np.float64)
