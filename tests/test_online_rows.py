"""Online softmax: right terms are found right, missing rescalings and others are found.

The ring proves the arithmetic, floats show that a maximum is subtracted, and the tolerance, which
knows what bf16 weights may add up to, is well above right results and far below mutants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.online_rows import MUTANTS, C, online, weighted
from tinygpu.errors import ProgramError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.rows import Rows
from tinygpu.meaning import identity
from tinygpu.meaning.canonical import canonical_run
from tinygpu.meaning.exponential_ring import DRAWS, P1, P2
from tinygpu.meaning.identity import computes
from tinygpu.meaning.inputs import KINDS, PLANTED, RISE, drawn, kinds
from tinygpu.meaning.interpret import check, wrong_result
from tinygpu.meaning.prime_field import P
from tinygpu.meaning.tolerance import between, narrowing, ratio_of, roundings
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, matmul, rmsnorm, softmax

WEIGHTED = weighted()
SIZES = {"i": 5, "e": 4, "j": 150}


@pytest.mark.parametrize("logarithm", [False, True])
def test_the_right_term_is_right(logarithm: bool) -> None:
    """In the ring, in floats and under interleavings; the outcome says how sure that is."""
    found = computes(online(weighted(logarithm=logarithm)))
    assert found, str(found)
    assert found.exponential is not None
    assert found.exponential > 0.99
    assert f"at {found.exponential:.2%} of the elements" in str(found)
    assert f"once in {float(P2**DRAWS):.0e} times" in str(found)
    assert "normal, rising, planted" in str(found)
    sizes = {a: n for a, n in SIZES.items() if a in found.program.operation.axes}
    assert check(found.program, sizes, seeds=(0,)) == ()


@pytest.mark.parametrize("change", MUTANTS)
def test_a_mutant_is_wrong_in_the_ring(change: str) -> None:
    found = computes(online(WEIGHTED, change=change))
    assert found.finding is not None
    assert "modulo 65923903" in found.finding.message


def test_a_mask_that_is_forgotten_at_the_end_is_wrong() -> None:
    found = computes(online(WEIGHTED, outside=0.0))
    assert found.finding is not None
    assert found.asked[-1]["j"] % 64


def test_exact_numbers_do_not_miss_the_maximum_and_rising_floats_do() -> None:
    """Without one the function is the same, and the sum overflows."""
    found = computes(online(WEIGHTED, change="no maximum"))
    assert found.finding is not None
    assert "(in floats, rising inputs)" in found.finding.message
    assert check(online(WEIGHTED, change="no maximum"), SIZES, seeds=(0,))


def test_the_share_of_numbers_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many elements have no inverse, the outcome says so and proves nothing."""
    plain = wrong_result

    def few(*arguments: Any) -> Any:
        return plain(*arguments)[0], 0.5

    monkeypatch.setattr(identity, "wrong_result", few)
    found = computes(online(weighted(logarithm=True)), draws=4)  # of which no outcome is kept
    assert found.exponential == 0.5
    assert not found.proved
    assert "50.00% of the elements" in str(found)


def test_each_size_is_drawn_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a wrong element passes as rarely as in the field."""
    plain, asked = canonical_run, list[int]()

    def counted(*arguments: Any) -> Any:
        asked.append(arguments[4].modulus)
        return plain(*arguments)

    monkeypatch.setattr(identity, "canonical_run", counted)
    for draws in (1, 5):
        asked.clear()
        found = computes(online(WEIGHTED), draws=draws)
        assert asked.count(P1 * P2) == max(draws, DRAWS) * len(found.asked)
        assert asked[0] == P
        assert asked[-3:] == [0] * len(KINDS)


def test_softmax_in_rows_needs_no_ring() -> None:
    """A term that treats ex2 as its operation does is right for every function ex2."""
    point = {"vector": 1, "chunks": 2, "warps": 1, "rows": 2, "teams": 1, "ctas": 0}
    found = computes(Rows().program(softmax(), Chosen(point)))
    assert found
    assert found.exponential is None


# Registers that are set


def test_a_value_that_would_be_lost_is_refused() -> None:
    """Registers without a digit take a value of it only where they collect."""

    def forward(k: Kernel) -> None:
        k.threads(lane=32)
        k.values(part=2)
        k.grid("bi")
        held = k.load(k.inputs[0]["i = bi, j = (part lane)"])
        one = k.registers("one", "f32")
        k.set(one, value("x"), {"x": held})

    with pytest.raises(ProgramError, match="set: one has no part, which the expression reads"):
        trace("lost", forward, weighted(logarithm=True))


# Inputs


def test_kinds_are_those_of_a_maximum() -> None:
    assert kinds(softmax()) == kinds(WEIGHTED) == KINDS
    assert kinds(matmul()) == kinds(rmsnorm()) == ("normal",)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_compared_is_not_normal(kind: str) -> None:
    """Rising grows along the axis, planted has one high element a row, each place in turn."""
    sizes = {"i": 6, "e": 3, "j": 6}
    made = drawn(WEIGHTED, sizes, kind, np.random.default_rng(0).standard_normal)
    plain = drawn(WEIGHTED, sizes, "normal", np.random.default_rng(0).standard_normal)
    assert (made["v"] == plain["v"]).all()
    x = plain["x"]
    if kind == "rising":
        assert np.allclose(made["x"], abs(x) * RISE * np.arange(1, 7) / 6)
    if kind == "planted":
        high = np.argwhere(made["x"] != x)
        assert high.tolist() == [[i, (i + 1) % 6] for i in range(6)]
        assert np.allclose((made["x"] - x).sum(axis=1), PLANTED)


# Tolerance


BF16 = weighted("bf16")
ROUNDS = online(BF16, rounded="bf16")
COUNT, BLOCK = 256, 64


def flash(inputs: Mapping[str, NDArray[Any]], seen: NDArray[np.bool_], change: str) -> Any:
    """Return the online result in fp32 with bf16 weights, by blocks of columns."""
    f32 = np.float32
    x = np.where(seen, inputs["x"], -np.inf).astype(f32)
    v = inputs["v"].astype(f32)
    top, total = np.full((len(x), 1), -np.inf, f32), np.zeros((len(x), 1), f32)
    sums = np.zeros((len(x), v.shape[1]), f32)
    starts = [*range(0, x.shape[1], BLOCK)]
    starts = starts[1:] if change == "first" else starts
    starts = starts[:-1] if change == "last" else starts
    for turn, start in enumerate(starts):
        part = x[:, start : start + BLOCK]
        new = np.maximum(top, part.max(axis=1, keepdims=True))
        base = np.where(np.isinf(new), f32(0), new)
        p, shrink = (np.exp2(((y - base) * f32(C)).astype(f32)) for y in (part, top))
        lost = np.ones_like(shrink) if turn == 1 else shrink
        total = total * (lost if change == "total" else shrink) + p.sum(axis=1, keepdims=True)
        narrow = DTYPES["bf16"].round(p).astype(f32)
        sums = sums * (lost if change == "sums" else shrink) + narrow @ v[start : start + BLOCK]
        top = new
    return sums / np.where(total == 0, f32(1), total)


def masked(kind: str, shift: int = 0) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """Return inputs of a kind, in bf16, with -infinity where a causal mask is."""
    made = drawn(BF16, {"i": COUNT, "e": 8, "j": COUNT}, kind,
                 np.random.default_rng(1).standard_normal)  # fmt: skip
    held = {n: DTYPES["bf16"].round(x).astype(np.float64) for n, x in made.items()}
    seen = np.tri(COUNT, k=shift, dtype=bool)
    return held, seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["total", "sums", "first", "last", "mask + 1", "mask - 1"])
def test_right_results_are_within_half_the_bound_and_mutants_far_beyond(
    kind: str, change: str
) -> None:
    """Measured: right results reach 0.40 of it, the mildest mutant 25 times it."""
    held, seen = masked(kind)
    exact = held | {"x": np.where(seen, held["x"], -np.inf)}
    reference = BF16.reference(exact)
    shift = {"mask + 1": 1, "mask - 1": -1}.get(change, 0)
    with np.errstate(all="ignore"):
        worst = [
            float(
                ratio_of(ROUNDS, exact, {}, outputs={"y": output}, reference=reference)["y"].max()
            )
            for output in (flash(held, seen, ""), flash(held, masked(kind, shift)[1], change))
        ]
    assert worst[0] < 0.5
    assert worst[1] > 10


def test_only_a_term_that_rounds_between_stages_gains() -> None:
    held, _ = masked("normal")
    full = online(BF16)
    assert narrowing(full) == {"y": 0}
    assert narrowing(ROUNDS) == {"y": DTYPES["bf16"].roundoff}
    outputs, reference = {"y": flash(held, np.ones_like(held["x"], bool), "")}, BF16.reference(held)
    assert ratio_of(ROUNDS, held, {}, outputs=outputs, reference=reference)["y"].max() < 0.5
    assert ratio_of(full, held, {}, outputs=outputs, reference=reference)["y"].max() > 5


def test_an_input_that_is_rounded_is_no_stage() -> None:
    """It is named, and gains nothing."""
    program = online(WEIGHTED, change="narrow inputs")
    assert [text.split(":")[0] for text in roundings(program)] == ["bf16"]
    assert narrowing(program) == {"y": 0}


def test_what_lies_between_stages_is_the_root_sum_of_squares() -> None:
    """Of the weights times v, and of the weights, by the slope of the quotient."""
    held, _ = masked("normal")
    p = np.exp2((held["x"] - held["x"].max(axis=1, keepdims=True)) * C)
    total, v = p.sum(axis=1, keepdims=True), held["v"]
    mean = p @ v / total
    first = np.sqrt((p * p) @ (v * v)) / total
    second = np.abs(mean) * np.sqrt((p * p).sum(axis=1, keepdims=True)) / total
    assert np.allclose(between(BF16, held, {})["y"], first + second, rtol=1e-4)


@pytest.mark.parametrize("operation", [matmul(), rmsnorm()])
def test_sums_of_inputs_have_no_stage_before_them(operation: Operation) -> None:
    random = np.random.default_rng(0)
    sizes = dict.fromkeys(operation.axes, 8)
    inputs = {n: random.standard_normal(s) for n, s in operation.shapes(sizes).items()}
    inputs.pop(operation.output.name)
    scalars = dict.fromkeys(operation.scalars, 0.5)
    assert between(operation, inputs, scalars) == {}


def test_the_bound_in_the_term() -> None:
    """A term that rounds its weights is right; one that also loses a rescaling is not."""
    found = computes(ROUNDS)
    assert found, str(found)
    assert "up to rounding to bf16: narrow = cvt(p)" in str(found)
    assert not computes(online(BF16, rounded="bf16", change="total is not rescaled"))
    assert math.isclose(narrowing(ROUNDS)["y"], 2.0**-8)
