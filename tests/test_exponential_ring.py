"""The ring with an exponential: its laws, against Python's whole numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.online_rows import C, online, weighted
from tests.sample import draws
from tinygpu.isa.algebra import FLOATS
from tinygpu.machines import MACHINES, simt
from tinygpu.meaning.exponential_ring import DRAWS, P1, P2, exponential_ring, has_exponential
from tinygpu.meaning.prime_field import P
from tinygpu.term.expression import apply, value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import elementwise, matmul, rmsnorm, softmax

N = P1 * P2
elements = st.integers(0, N - 1)
seeds = st.integers(0, 3)
rings = seeds.map(exponential_ring)


def of(ring: Any, name: str, *arguments: float) -> float:
    with np.errstate(all="ignore"):
        return float(ring.operators[name](*(np.float64(a) for a in arguments)))


def prime(n: int) -> bool:
    return n > 1 and all(n % i for i in range(2, int(n**0.5) + 1))


def test_the_primes_are_the_largest() -> None:
    """Both prime, P1 = 2 P2 + 1, products of two elements exact in float64."""
    found = [
        p for p in range(2, 2**13) if prime(p) and prime(2 * p + 1) and p * (2 * p + 1) < 2**26
    ]
    assert (max(found), 2 * P2 + 1) == (P2, P1)
    assert (N - 1) ** 2 + N - 1 < 2**53
    assert P2**-DRAWS < 1 / P < P2 ** -(DRAWS - 1)  # three draws, and not two, are as rare


@given(rings, elements, elements, elements)
def test_arithmetic_is_that_of_whole_numbers(ring: Any, a: int, b: int, c: int) -> None:
    assert of(ring, "add", a, b) == (a + b) % N
    assert of(ring, "sub", a, b) == (a - b) % N
    assert of(ring, "mul", a, b) == a * b % N
    assert of(ring, "neg", a) == -a % N
    assert of(ring, "fma", a, b, c) == (a * b + c) % N
    if gcd(b, N) == 1:
        assert of(ring, "rcp", b) == pow(b, -1, N)
        assert of(ring, "div", a, b) == a * pow(b, -1, N) % N
    else:
        assert np.isnan(of(ring, "rcp", b))


@given(st.lists(elements | st.integers(0, P2).map(lambda n: n * P1 % N), max_size=30))
def test_what_shares_a_prime_has_no_inverse(numbers: list[int]) -> None:
    """Inverses of many are made together; one that has none spoils no other."""
    found = exponential_ring(0).operators["rcp"](np.array(numbers, np.float64))
    for number, inverse in zip(numbers, found, strict=True):
        assert np.isnan(inverse) if gcd(number, N) > 1 else number * int(inverse) % N == 1


@given(rings, elements, elements)
def test_the_exponential_takes_sums_to_products(ring: Any, a: int, b: int) -> None:
    one, other, both = (of(ring, "ex2", x) for x in (a, b, (a + b) % N))
    assert both == one * other % N
    assert of(ring, "ex2.ftz", a) == one
    assert of(ring, "mul", one, of(ring, "ex2", -a % N)) == 1
    assert of(ring, "ex2", 0) == 1
    assert (one == other) == (a % P2 == b % P2)


@given(rings, elements, elements)
def test_the_logarithm_takes_products_to_sums(ring: Any, a: int, b: int) -> None:
    for x in (a, b):
        assert int(of(ring, "lg2", of(ring, "ex2", x))) % P2 == x % P2
    if a % P1 and b % P1:
        both = of(ring, "lg2", a * b % N)
        assert both == of(ring, "add", of(ring, "lg2", a), of(ring, "lg2", b))
    elif a % N and not a % P1:
        assert np.isnan(of(ring, "lg2", a))


def test_infinity_is_the_exponentials_limit() -> None:
    ring = exponential_ring(0)
    assert of(ring, "ex2", -np.inf) == 0
    assert of(ring, "lg2", 0) == -np.inf
    assert np.isnan(of(ring, "ex2", np.inf))
    assert of(ring, "sub", -np.inf, 5) == -np.inf
    assert np.isnan(of(ring, "sub", -np.inf, -np.inf))
    assert np.isnan(of(ring, "rcp", 0))


@given(rings, st.lists(elements, min_size=1, max_size=9), st.integers(0, 9), st.randoms())
def test_a_maximum_is_the_same_however_it_is_split(
    ring: Any, numbers: list[int], cut: int, random: Any
) -> None:
    """Over blocks, in any order, with or without the identity, as the reduction of all."""
    values = np.array(numbers, np.float64)
    with np.errstate(all="ignore"):
        every = float(ring.total("max", values, (0,))[0])
        random.shuffle(numbers)
        parts = [-np.inf, -np.inf]
        for place, number in enumerate(numbers):
            parts[place < cut] = of(ring, "max", number, parts[place < cut])
        assert of(ring, "max", *parts) == every
        assert float(ring.total("max", np.append(values, -np.inf), (0,))[0]) == every
    assert of(ring, "max", -np.inf, -np.inf) == -np.inf


@given(rings, elements, elements, elements)
def test_each_value_counts_in_a_maximum(ring: Any, a: int, b: int, c: int) -> None:
    """No element absorbs another."""
    same = of(ring, "max", a, b) == of(ring, "max", a, c)
    assert same == (b % P2 == c % P2)


@given(rings, st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**20), 2**20))
def test_constants_are_dyadic_fractions(ring: Any, x: float, n: int) -> None:
    fraction = Fraction(x)
    assert int(ring.number(x)) * fraction.denominator % N == fraction.numerator % N
    assert ring.number(n) == n % N


@given(rings, elements, elements)
def test_a_scale_leaves_the_parentheses(ring: Any, a: int, b: int) -> None:
    """2^(c (x - y)) is 2^(c x - c y), and 2^(c x) / 2^(c y)."""
    c = ring.number(C)
    inside = of(ring, "ex2", of(ring, "mul", of(ring, "sub", a, b), c))
    left, right = (of(ring, "mul", x, c) for x in (a, b))
    assert inside == of(ring, "ex2", of(ring, "sub", left, right))
    assert inside == of(ring, "div", of(ring, "ex2", left), of(ring, "ex2", right))


@given(st.integers(1, 4), st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=draws(8, 20))
def test_products_of_matrices_are_exact(m: int, k: int, seed: int) -> None:
    random, ring = np.random.default_rng(seed), exponential_ring(0)
    a, b = random.integers(N, size=(m, k)), random.integers(N, size=(k, 3))
    a[0, :], b[:, 0] = N - 1, N - 1  # the largest sum
    found = ring.contract(np.matmul, a.astype(np.float64), b.astype(np.float64))
    assert (found == (a.astype(object) @ b.astype(object) % N).astype(np.float64)).all()


@pytest.mark.parametrize("name", [n for n in exponential_ring(0).operators if n != "where"])
def test_nan_is_poison(name: str) -> None:
    ring = exponential_ring(0)
    arguments = [np.full(3, np.nan), np.ones(3), np.ones(3)]
    takes = {"fma": 3, "add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "min": 2}.get(name, 1)
    with np.errstate(all="ignore"):
        assert np.isnan(ring.operators[name](*arguments[:takes])).all()
        assert np.isnan(ring.operators[name](*arguments[:takes][::-1])).all()
    assert set(ring.operators) == set(FLOATS.operators) - {"ceildiv", "le", "lt", "and"}


def test_seeds_draw_other_exponentials_and_maxima() -> None:
    x = np.arange(1.0, 1000.0)
    one, other = (exponential_ring(seed).operators for seed in (0, 1))
    for name in ("ex2", "lg2", "sqrt"):
        assert (one[name](x) != other[name](x)).mean() > 0.99
    assert (one["max"](x, x[::-1]) != other["max"](x, x[::-1])).mean() > 0.99
    assert (one["max"](x, x[::-1]) != one["min"](x, x[::-1])).mean() > 0.99


def test_an_exponential_is_seen_in_operations_and_terms() -> None:
    naive = Chosen(simt.LADDER["naive"])
    assert not has_exponential(simt.Simt().program(matmul(), naive))
    assert has_exponential(simt.Simt().program(matmul(activation="silu"), naive))
    point = Chosen({"vector": 1, "chunks": 1, "warps": 1, "rows": 1, "teams": 1, "ctas": 0})
    assert has_exponential(MACHINES["rows"].program(softmax(), point))
    assert not has_exponential(MACHINES["rows"].program(rmsnorm(), point))
    lines = Chosen({"vector": 1, "unroll": 1, "threads": 32, "ctas": 0})
    plain = elementwise("x + 1")
    term = MACHINES["elementwise"].program(elementwise(apply("ex2", value("x"))), lines)
    assert has_exponential(replace(term, operation=plain))  # of its statements alone
    assert has_exponential(online(weighted()))
