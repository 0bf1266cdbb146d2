"""A ring with an exponential: an algebra in which a rescaled sum equals the one that is not.

Elements are the whole numbers modulo N = P1 P2 = 65923903 (``tinygpu.meaning.residues``), that is
pairs of residues modulo P1 = 11483 and P2 = 5741.  P2 divides P1 - 1, so there is a g of order P2
modulo P1, and

    E(x) = (g^(x mod P2) mod P1, 1),    E(x + y) = E(x) E(y),    E(0) = 1,    E(-infinity) = 0

is ``ex2``.  So ``ex2(c x - c y)`` is ``ex2(c x) / ex2(c y)``, and a maximum that is subtracted
cancels, as it does in numbers.  But ``ex2(1)`` is g and not 2: a term that trades a factor 2 for an
addend of the exponent is not found equal.

``lg2`` is (0, D) with D the discrete logarithm modulo P1 in the subgroup of g: lg2(x y) is
lg2(x) + lg2(y), and lg2(E(x)) is x modulo P2.  So a logarithm of a rescaled sum is exact there.

``max`` and ``min`` are (0, f(f'(x) + f'(y))) modulo P1 and P2, with a random permutation f and its
inverse f', and minus infinity (infinity for ``min``) for an identity of what they give.  Addition
is associative and commutative, so they are, and no element absorbs another.  So the maximum of a
row is the same function of it however the row is split, and each value counts exactly once: where
the maximum does not cancel, a value that is left out shows, which an idempotent function, as the
maximum of representatives is, would show in one row of n.  What takes a value twice may only use
the maximum where it cancels: in quotients of sums, and in max + lg2(sum).  (The field's monoid
absorbs at e: for a row of n that has a chance of n / P2 here.)

>>> ring = exponential_ring(0)
>>> e, add, mul = (ring.operators[name] for name in ("ex2", "add", "mul"))
>>> bool(e(add(3.0, 4.0)) == mul(e(3.0), e(4.0))), float(e(0.0))
(True, 1.0)

*Chance.*  Where an element of two functions differs, let it be a polynomial in inputs x and in
exponentials y = E(c x), of degree d.  Modulo P1, x is uniform in the field, y in the subgroup of
P2 elements, and as y depends on x modulo P2 alone, both are independent: by Schwartz's lemma the
difference is 0 with a probability of at most d / P2.  ``DRAWS`` random inputs make that
(d / P2)^3, which for d up to 53 is less than the d / P of the field.

*Inverses.*  One element in 3829 has none (1 / P1 + 1 / P2): there the operation is no number, and
nothing is compared.  Modulo P2 a sum of n exponentials is n, modulo P1 it is 0 once in P1 times.

P2 is the largest number such that it and 2 P2 + 1 are prime and N is below 2^26.

Source: J. Schwartz, JACM 27(4), 1980; ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import numpy as np

from tinygpu.isa.algebra import OPERATORS, Algebra, Operator
from tinygpu.meaning.prime_field import SAME, unrounded
from tinygpu.meaning.residues import Residues, hashed
from tinygpu.numbers import Floats, Integers, Number
from tinygpu.term.expression import Apply, Expression
from tinygpu.term.formula import formula
from tinygpu.term.operation import Operation
from tinygpu.term.program import Do, Program, walk

__all__ = ["DRAWS", "P1", "P2", "exponential_ring", "has_exponential"]

P1, P2 = 11_483, 5_741
DRAWS = 3
"""Random inputs, so that a wrong element passes as rarely as in the field."""
_RING = Residues((P1, P2))
_N = _RING.modulus
_OF_1 = P2 * pow(P2, -1, P1)  # 1 modulo P1, 0 modulo P2
_OF_2 = P1 * pow(P1, -1, P2)
_SQUARE = 4  # of order P2, as every square but 1


@lru_cache(64)
def exponential_ring(seed: int) -> Algebra:
    """Return the ring; ``seed`` draws g, the groups and the hashes of other functions."""
    random = np.random.default_rng(seed)
    powers = _powers(pow(_SQUARE, int(random.integers(1, P2)), P1))
    operators: dict[str, Operator] = {
        **_RING.operators,
        "ex2": partial(_exponential, _joined(powers, np.ones(P2, np.int64))),
        "lg2": partial(_logarithm, _logarithms(powers)),
        "max": _group(random, -np.inf), "min": _group(random, np.inf),
    }  # fmt: skip
    for name in OPERATORS:
        key = int(random.integers(2**63))
        if name not in operators:
            operators[name] = partial(hashed, _N, key, np.nan)
    for name, other in SAME.items():
        operators[name] = operators[other]
    for name in ("ceildiv", "le", "lt", "and"):
        del operators[name]  # of integers, whatever the algebra

    def total(operator: str, array: Floats, axes: tuple[int, ...]) -> Floats:
        found = _RING.total(operators, operator, array, axes)
        if operator == "add":
            return found
        # of a single element, too
        return np.asarray(operators[operator](-np.inf, found))

    return Algebra(
        operators, _RING.number, unrounded, _RING.contract, total, exact=True, modulus=_N
    )


def _powers(g: int) -> Integers:
    """Return the powers of g modulo P1 from 0 to P2 - 1."""
    found = np.ones(P2, np.int64)
    for i in range(1, P2):
        found[i] = found[i - 1] * g % P1
    return found


def _logarithms(powers: Integers) -> Floats:
    """Return lg2 of the residues modulo P1, NaN of 0: half the logarithm of the square."""
    found = np.full(P1, np.nan)
    exponents = np.empty(P1, np.int64)
    exponents[powers] = np.arange(P2)
    units = np.arange(1, P1)
    half = exponents[units * units % P1] * pow(2, -1, P2) % P2
    found[1:] = _joined(np.zeros_like(half), half)
    return found


def _joined(first: Integers, second: Integers) -> Floats:
    """Return the elements that are these modulo P1 and P2."""
    found: Floats = ((first * _OF_1 + second * _OF_2) % _N).astype(np.float64)
    return found


def _exponential(powers: Floats, a: Number) -> Floats:
    known = np.isfinite(a)
    found = powers[np.where(known, a, 0.0).astype(np.int64) % P2]
    return np.where(known, found, np.where(a == -np.inf, 0.0, np.nan))


def _logarithm(logarithms: Floats, a: Number) -> Floats:
    known = np.isfinite(a)
    found = logarithms[np.where(known, a, 0.0).astype(np.int64) % P1]
    return np.where(known & (a != 0), found, np.where(a == 0, -np.inf, np.nan))


def _group(random: np.random.Generator, identity: float) -> Callable[[Number, Number], Floats]:
    """Return a commutative group modulo P2, with an identity besides."""
    there = random.permutation(P2)
    here = np.argsort(there)

    def both(a: Number, b: Number) -> Floats:
        first, last = np.isfinite(a), np.isfinite(b)
        x, y = (np.where(np.isfinite(z), z, 0.0).astype(np.int64) % P2 for z in (a, b))
        one, other = a == identity, b == identity
        second = np.where(one, y, np.where(other, x, here[(there[x] + there[y]) % P2]))
        right = (first | one) & (last | other)
        found = np.where(right, _joined(np.zeros_like(second), second), np.nan)
        return np.where(one & other, identity, found)

    return both


def has_exponential(program: Program) -> bool:
    """Whether the operation or a statement of the term computes an exponential."""
    statements = [s for s, _ in walk(program) if isinstance(s, Do)]
    formulas = [formula(s.instruction, len(s.reads)) for s in statements if s.instruction.meaning]
    used = {s.variant or s.instruction.name for s in statements}
    used |= {
        node.operator
        for expression in (*_expressions(program.operation), *formulas)
        for node in expression.nodes()
        if isinstance(node, Apply)
    }
    return any(SAME.get(name, name) == "ex2" for name in used)


def _expressions(operation: Operation) -> Iterator[Expression]:
    yield from (reduction.expression for reduction in operation.reductions)
    yield from (epilogue for _, epilogue in operation.results)
