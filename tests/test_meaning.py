"""Whether a term computes its operation, asked in a prime field: named points do, mutants do not.

Each mutant is one change of a term, or the term of another operation under this one's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hopper_terms import rebuffered, rewritten
from tests.sample import draws, some
from tinygpu.isa.algebra import FLOATS
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.meaning.identity import Meaning, computes, instances
from tinygpu.meaning.interpret import check
from tinygpu.meaning.prime_field import P, prime_field
from tinygpu.term.expression import Apply, Constant, Expression, apply, value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import (
    ACC,
    ACTIVATIONS,
    Operation,
    elementwise,
    matmul,
    rmsnorm,
    softmax,
)
from tinygpu.term.program import Access, Affine, Do, For, Program, Statement

NT, RED = matmul("bf16", layout="nt"), matmul("bf16", "f32", "nt")
SCALED = matmul("bf16", layout="nt", scaled=True, bias=True, activation="silu")
POINTS = [
    *(("simt", dict(point), matmul()) for point in simt.LADDER.values()),
    *(("ampere", dict(p), RED if p["combine"] == "red" else NT) for p in ampere.STARTS.values()),
    *(("hopper", dict(point), SCALED) for point in hopper.STARTS.values()),
    *(("blackwell", dict(point), NT) for point in blackwell.STARTS.values()),
]
LINES = {"vector": 2, "unroll": 2, "threads": 128, "ctas": 0}
ROWS = [
    {"vector": 1, "chunks": 1, "warps": 1, "rows": 1, "teams": 1, "ctas": 0},
    {"vector": 2, "chunks": 3, "warps": 4, "rows": 2, "teams": 2, "ctas": 0},
]
PERSISTENT = {"vector": 2, "chunks": 1, "warps": 1, "rows": 1, "teams": 1, "ctas": 132}
SMALL = {"tile_m": 64, "tile_n": 32, "store_n": 16, "stages": 2, "in_flight": 0}

STAGED = {
    **simt.LADDER["multi-stage"], "tile_m": 16, "tile_n": 16, "tile_k": 8, "thread_m": 2,
    "thread_n": 2, "lanes_m": 4, "vector_a": 1, "vector_b": 1, "vector_shared": 2, "vector_c": 1,
    "pad_a": 0, "k_step": 4,
}  # fmt: skip
BASES = {
    "plain": ("simt", simt.LADDER["naive"], matmul()),
    "staged": ("simt", STAGED, matmul()),
    "ampere": ("ampere", {**ampere.STARTS["plain"]}, NT),
    "hopper": ("hopper", {**hopper.STARTS["ring"], **SMALL}, NT),
    "blackwell": ("blackwell", {**blackwell.STARTS["small"]}, NT),
}


def made(machine: str, point: Mapping[str, Any], operation: Operation) -> Program:
    return MACHINES[machine].program(operation, Chosen(dict(point)))


def apart(asked: Meaning) -> bool:
    return all(a != b for a, b in combinations(asked.asked[-1].values(), 2))


@pytest.mark.parametrize(("machine", "point", "operation"), some(POINTS, 3))
def test_named_points_compute_their_operation(
    machine: str, point: Mapping[str, Any], operation: Operation
) -> None:
    """At sizes of which the last differ pairwise; no false alarm."""
    asked = computes(made(machine, point, operation))
    assert asked.finding is None, str(asked)
    assert len(asked.asked) >= 2
    assert apart(asked)
    assert str(asked).startswith("computes its operation: ")


@pytest.mark.parametrize("text", ["a*x + b", "max(x*z, 0) / (a + x)", "x * sigmoid(a*x) * z + b"])
def test_elementwise_terms_compute_their_operation(text: str) -> None:
    assert computes(made("elementwise", LINES, elementwise(text))).finding is None


def test_persistent_lines_compute_their_operation() -> None:
    point = {**LINES, "vector": 1, "unroll": 1, "ctas": 132}
    assert computes(made("elementwise", point, elementwise("a*x + b"))).finding is None


@pytest.mark.parametrize("point", ROWS)
@pytest.mark.parametrize("operation", [rmsnorm(), softmax(), rmsnorm("bf16"), softmax("f16")])
def test_rows_compute_their_operation(point: Mapping[str, Any], operation: Operation) -> None:
    """A maximum over rows that are not full, too: there the identity stands."""
    assert computes(made("rows", point, operation)).finding is None


def test_persistent_rows_compute_their_operation() -> None:
    assert computes(made("rows", PERSISTENT, rmsnorm())).finding is None


@pytest.mark.parametrize(
    ("machine", "operation", "changes"),
    [
        ("hopper", matmul("e4m3", layout="nt", bias=True, activation="gelu", batched=True),
         {"tile_k": 128}),
        ("hopper", matmul("f16", layout="tn", bias=True, activation="relu"), {"tile_n": 64}),
        ("blackwell", matmul("tf32", layout="nt"), {"tile_k": 32}),
    ],
)  # fmt: skip
def test_types_layouts_and_batches_compute_their_operation(
    machine: str, operation: Operation, changes: Mapping[str, int]
) -> None:
    _, point, _ = BASES[machine]
    asked = computes(made(machine, {**point, **changes}, operation))
    assert asked.finding is None, str(asked)
    assert apart(asked)


# Mutants


def reads(name: str, change: Callable[[Access], Access]) -> Callable[[Program], Program]:
    """Change how an operand is read."""

    def statement(s: Statement) -> Statement:
        if not isinstance(s, Do):
            return s
        return replace(
            s,
            reads=tuple(
                change(r) if isinstance(r, Access) and r.buffer.name == name else r for r in s.reads
            ),
        )

    return lambda program: rewritten(program, statement)


def origin(name: str, dimension: int, change: Callable[[Affine], Affine]) -> Any:
    def access(a: Access) -> Access:
        moved = list(a.origin)
        moved[dimension] = change(moved[dimension])
        return replace(a, origin=tuple(moved))

    return reads(name, access)


def scaled(index: Affine, by: int) -> Affine:
    terms = ((name, n * by if isinstance(n, int) else n) for name, n in index.terms)
    return Affine(index.constant, tuple(terms))


def turned(a: Access) -> Access:
    return replace(
        a,
        value=tuple(v[::-1] for v in a.value),
        thread=tuple(t[::-1] for t in a.thread),
        origin=a.origin[::-1],
    )


def of(operation: Callable[[Operation], Operation]) -> Callable[[Program], Program]:
    return lambda program: replace(program, operation=operation(program.operation))


def parameter(name: str, expression: Expression) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        known = dict(program.parameters)
        assert name in known
        return replace(program, parameters=tuple((known | {name: expression}).items()))

    return change


def buffer(name: str, other: str) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        by_name = {b.name: b for b in program.buffers}
        return reads(name, lambda a: replace(a, buffer=by_name[other]))(program)

    return change


def swapped(program: Program) -> Program:
    """Strides of ``a`` exchanged, wherever it is mentioned."""
    (a,) = (b for b in program.buffers if b.name == "a")
    return rebuffered(program, "a", stride=a.stride[::-1])


def from_one(program: Program) -> Program:
    return rewritten(
        program, lambda s: replace(s, start=1) if isinstance(s, For) and s.trips == "trips" else s
    )


def summed(expression: Expression) -> Callable[[Program], Program]:
    return of(lambda o: replace(o, reductions=(replace(o.reductions[0], expression=expression),)))


MUTANTS: Mapping[str, Callable[[Program], Program]] = {
    "the summand is a sum": summed(value("a") + value("b")),
    "the summand is a": summed(value("a")),
    "the summand is a difference": summed(value("a") - value("b")),
    "half of the steps": parameter("trips", (value("k").ceildiv(2)).ceildiv(64)),
    "the first step dropped": from_one,
    "steps of a doubled": origin("a", 1, lambda i: scaled(i, 2)),
    "a shifted by one": origin("a", 1, lambda i: i + 1),
    "a shifted back by one": origin("a", 0, lambda i: i + 1),
    "b from the place of a's rows": origin("b", 0, lambda i: i + 8),
    "b for a": buffer("a", "b"),
    "a for b": buffer("b", "a"),
    "a transposed": reads("a", turned),
    "strides of a exchanged": swapped,
    "ld_a is n": parameter("ld_a", value("n")),
    "ld_c is m": parameter("ld_c", value("m")),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("base", BASES)
def test_mutants_are_found(base: str, name: str) -> None:
    mutant = MUTANTS[name](made(*BASES[base]))
    assert mutant != made(*BASES[base])
    asked = computes(mutant)
    assert asked.finding is not None
    assert str(asked).startswith("does not compute its operation, at m, n, k = ")


@pytest.mark.parametrize("base", BASES)
def test_bases_compute_their_operation(base: str) -> None:
    assert computes(made(*BASES[base])).finding is None


FUSED = {**hopper.STARTS["ring"], **SMALL}
OTHER_AXIS = {"bc": "br", "rank_n": "rank_m"}


def renamed(index: Affine) -> Affine:
    return Affine(index.constant, tuple((OTHER_AXIS.get(v, v), n) for v, n in index.terms))


def from_tile_0(index: Affine) -> Affine:
    return Affine(index.constant, tuple((v, n) for v, n in index.terms if v == "chunk"))


@pytest.mark.parametrize("change", [renamed, from_tile_0], ids=["wrong axis", "tile 0"])
def test_a_bias_from_elsewhere_is_found(change: Callable[[Affine], Affine]) -> None:
    program = made("hopper", FUSED, SCALED)
    asked = computes(origin("bias", 0, change)(program))
    assert asked.finding is not None
    assert asked.finding.kind == "wrong_result"


def test_a_part_of_k_that_is_left_out_is_found() -> None:
    program = made("ampere", {**ampere.STARTS["parts of k"]}, RED)
    fewer = tuple(replace(a, extent=Constant(3)) if a.var == "bz" else a for a in program.grid)
    assert fewer != program.grid
    asked = computes(replace(program, grid=fewer))
    assert asked.finding is not None
    assert asked.finding.kind == "wrong_result"


def as_if(machine: str, point: Mapping[str, Any], done: Operation, asked: Operation) -> Program:
    """The term of one operation under the name of another."""
    return replace(made(machine, point, done), operation=asked)


def ended(operation: Operation, epilogue: Expression) -> Operation:
    return replace(operation, epilogue=epilogue)


ALPHA, BETA, D, BIAS = (value(n) for n in ("alpha", "beta", "d", "bias"))
LINEAR = ALPHA * ACC + BETA * D
PAIR = matmul("bf16", layout="nt", scaled=True)
LONG = matmul("e4m3", layout="nt", bias=True)
X, MEAN = value("x"), value("acc") / (value("j") + 1.0)
NORM = X * apply("rsqrt", MEAN + value("eps")) * value("w")
SILU = ACTIVATIONS["silu"](LINEAR + BIAS)


def off(expression: Expression) -> Expression:
    """The first constant that is no power of 2, changed in its sixth digit."""
    if isinstance(expression, Constant) and abs(np.frexp(expression.number)[0]) != 0.5:
        return Constant(expression.number * (1 + 1e-6))
    if not isinstance(expression, Apply):
        return expression
    return replace(expression, arguments=tuple(map(off, expression.arguments)))


BY_THE_FIELD_ALONE: Mapping[str, tuple[str, Mapping[str, Any], Operation, Operation]] = {
    "alpha and beta": ("hopper", FUSED, ended(PAIR, BETA * ACC + ALPHA * D), PAIR),
    "silu": ("hopper", FUSED, ended(SCALED, off(SILU)), SCALED),
    "a bias of e4m3": ("hopper", {**FUSED, "tile_k": 128}, ended(LONG, ACC * 1.0), LONG),
    "mean over j + 1": ("rows", ROWS[1], ended(rmsnorm("bf16"), NORM), rmsnorm("bf16")),
}


@pytest.mark.parametrize("name", BY_THE_FIELD_ALONE)
def test_the_field_finds_what_floats_do_not(name: str) -> None:
    machine, point, done, wanted = BY_THE_FIELD_ALONE[name]
    program, honest = as_if(machine, point, done, wanted), made(machine, point, wanted)
    asked = computes(program)
    assert asked.finding is not None
    assert asked.finding.kind == "wrong_result"
    assert "written by" in asked.finding.message
    assert computes(honest).finding is None
    sizes = dict(instances(honest)[-1]) | ({"k": 1024} if machine == "hopper" else {})
    assert check(program, sizes, seeds=(0,)) == ()


@pytest.mark.parametrize(
    "epilogue",
    [
        LINEAR + BIAS,
        ACTIVATIONS["gelu"](LINEAR + BIAS),
        ACTIVATIONS["silu"](ALPHA * ACC + BETA * (BETA * D) + BIAS),
        ACTIVATIONS["silu"](LINEAR),
        ACTIVATIONS["silu"](LINEAR) + BIAS,
    ],
    ids=["no activation", "gelu", "beta twice", "no bias", "bias last"],
)
def test_another_epilogue_is_found(epilogue: Expression) -> None:
    asked = computes(as_if("hopper", FUSED, ended(SCALED, epilogue), SCALED))
    assert asked.finding is not None


def test_equal_sizes_hide_a_stride() -> None:
    """So those of an instance differ."""
    mutant = parameter("ld_a", value("n"))(made(*BASES["staged"]))
    assert computes(mutant, {"m": 40, "n": 40, "k": 40}).finding is None
    assert computes(mutant, {"m": 40, "n": 36, "k": 40}).finding is not None
    assert computes(mutant).finding is not None


def test_a_grid_that_is_never_small_is_not_asked() -> None:
    """And it does not say that it computes."""
    asked = computes(
        made("rows", {**PERSISTENT, "ctas": 2112, "warps": 8, "chunks": 16}, rmsnorm())
    )
    assert asked.asked == ()
    assert str(asked).startswith("not asked")
    assert not asked.proved


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_instances_cover_the_window(stages: int) -> None:
    """A ring of s stages, and one step for fragments: trips 1 to 2 s, then sizes that differ."""
    program = made("ampere", {**ampere.STARTS["plain"], "stages": stages}, NT)
    trips = [program.parameter_values(sizes)["trips"] for sizes in instances(program)]
    assert trips == [*range(1, 2 * stages + 1), 2 * stages]
    for sizes in (instances(program)[0], instances(program)[-1]):
        assert program.grid_extents(sizes).count(2) == 2


def test_an_element_its_value_and_who_wrote_it_are_named() -> None:
    asked = computes(MUTANTS["b for a"](made(*BASES["hopper"])))
    assert asked.finding is not None
    assert asked.finding.cell == "c[0, 0]"
    text = str(asked.finding)
    assert "c[0, 0] is " in text
    assert f"(modulo {P}); written by c[" in text
    assert "st.global" in text


# The field

elements = st.integers(0, P - 1)
FIELD = prime_field(0)


def of_field(name: str, *arguments: int | float) -> float:
    return float(FIELD.operators[name](*(np.float64(a) for a in arguments)))


@given(elements, elements, elements)
def test_arithmetic_is_that_of_whole_numbers_modulo_p(a: int, b: int, c: int) -> None:
    assert of_field("add", a, b) == (a + b) % P
    assert of_field("sub", a, b) == (a - b) % P
    assert of_field("mul", a, b) == a * b % P
    assert of_field("neg", a) == -a % P
    assert of_field("fma", a, b, c) == (a * b + c) % P
    if b:
        assert of_field("rcp", b) == pow(b, -1, P)
        assert of_field("div", a, b) == a * pow(b, -1, P) % P
    assert np.isnan(of_field("rcp", 0))


@given(st.integers(1, 4), st.integers(1, 300), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=draws(12, 30))
def test_products_of_matrices_are_exact(m: int, k: int, n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(P, size=(m, k)), random.integers(P, size=(k, n))
    a[0, :], b[:, 0] = P - 1, P - 1  # the largest sum
    found = FIELD.contract(np.matmul, a.astype(np.float64), b.astype(np.float64))
    exact = a.astype(object) @ b.astype(object) % P
    assert (found == exact.astype(np.float64)).all()
    total = FIELD.total("add", a.astype(np.float64), (1,))
    assert (total[:, 0] == a.sum(axis=1) % P).all()


@given(elements, elements, elements)
@settings(max_examples=draws(12, 30))
def test_many_are_as_few(a: int, b: int, c: int) -> None:
    x, y, z = (np.full(2000, n, np.float64) for n in (a, b, c))
    for name in ("fma", "max", "min", "mul", "sub"):
        given_ = (x, y, z) if name == "fma" else (x, y)
        few = FIELD.operators[name](*(n[:5] for n in given_))
        assert (FIELD.operators[name](*given_)[:5] == few).all()


@given(st.lists(elements, max_size=40))
def test_inverses_of_many(numbers: list[int]) -> None:
    found = FIELD.operators["rcp"](np.array(numbers, np.float64))
    for number, inverse in zip(numbers, found, strict=True):
        assert np.isnan(inverse) if number == 0 else inverse == pow(number, -1, P)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**20), 2**20))
def test_constants_are_dyadic_fractions(x: float, n: int) -> None:
    fraction = Fraction(x)
    assert int(FIELD.number(x)) * fraction.denominator % P == fraction.numerator % P
    assert FIELD.number(n) == n % P


@given(st.lists(elements, min_size=1, max_size=9), st.randoms())
def test_a_maximum_takes_each_once_in_any_order(numbers: list[int], random: Any) -> None:
    values = np.array([-np.inf, *numbers], np.float64)
    with np.errstate(all="ignore"):
        once = FIELD.total("max", values, (0,))
        random.shuffle(numbers)
        again = of_field("max", numbers[0], -np.inf)
        for number in numbers[1:]:
            again = of_field("max", number, again)
    assert float(once[0]) == again


@pytest.mark.parametrize("name", FIELD.operators)
def test_nan_is_poison(name: str) -> None:
    """What nobody has written is in no result."""
    arguments = [np.full(3, np.nan), np.ones(3), np.ones(3)]
    takes = {"fma": 3, "add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "min": 2,
             "where": 3}.get(name, 1)  # fmt: skip
    if name == "where":  # a condition, of integers
        arguments.insert(0, np.ones(3))
    with np.errstate(all="ignore"):
        assert np.isnan(FIELD.operators[name](*arguments[:takes])).all()
    assert set(FIELD.operators) == set(FLOATS.operators) - {"ceildiv", "le", "lt", "and"}


def test_hashes_differ_and_ex2_of_minus_infinity_is_0() -> None:
    x = np.arange(1000.0)
    hashes = [FIELD.operators[n](x) for n in ("ex2", "lg2", "sqrt", "rsqrt", "tanh", "sigmoid")]
    for one, other in combinations(hashes, 2):
        assert (one != other).all()
    assert all(len(np.unique(h)) == 1000 and h.min() >= 0 and h.max() < P for h in hashes)
    assert (FIELD.operators["ex2.ftz"](x) == hashes[0]).all()
    assert FIELD.operators["ex2"](np.array([-np.inf])) == 0
    assert (prime_field(1).operators["ex2"](x) != hashes[0]).all()
