"""The model's error as a Gaussian process, and a walk by its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import replay
from tinygpu.search import residual
from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.residual import COMMON, NOISE, SCALE, Residual, embedded
from tinygpu.search.strategies import Domain, walk
from tinygpu.search.strategies.gaussian import BATCH, gaussian
from tinygpu.term.schedule import Schedule

VALUES: dict[str, tuple[Any, ...]] = {
    "tile_m": (16, 64, 128, 256), "stages": (2, 3, 7), "swap": (0, 1), "epilogue": ("tma", "direct")
}  # fmt: skip


def schedules(machine: str = "hopper") -> list[Schedule]:
    """Every schedule of four decisions, one of which has names."""
    return [
        Schedule(machine, tuple(zip(VALUES, (m, s, w, e), strict=True)))
        for m in VALUES["tile_m"]
        for s in VALUES["stages"]
        for w in VALUES["swap"]
        for e in VALUES["epilogue"]
    ]


EVERY = schedules()
lands = cache(replay.load)
errors = st.dictionaries(
    st.integers(0, len(EVERY) - 1), st.floats(-COMMON, COMMON), min_size=1, max_size=12
)


@given(errors)
def test_what_was_measured_is_known_up_to_the_noise(known: dict[int, float]) -> None:
    """There the mean is the error and the deviation the noise's, whatever else is known."""
    found = Residual(EVERY).given(known)
    at = list(known)
    assert found.mean[at] == pytest.approx(list(known.values()), abs=COMMON / 4)
    assert (found.deviation[at] <= found.worse * NOISE * 1.001).all()


@given(errors, st.integers(0, len(EVERY) - 1))
def test_what_is_asked_makes_all_surer_and_changes_no_mean(
    known: dict[int, float], asked: int
) -> None:
    """And it is as if the mean had been measured there: two ways to one variance."""
    before = Residual(EVERY).given(known)
    after = before.asked(asked)
    assert (after.mean == before.mean).all()
    assert (after.variance <= before.variance + 1e-12).all()
    if asked not in known:
        both = Residual(EVERY).given({**known, asked: 0.0})
        assert after.variance == pytest.approx(both.variance, abs=1e-9)


def test_nothing_known_is_the_model_itself() -> None:
    found = Residual(EVERY).given({})
    assert (found.mean == 0).all()
    assert found.deviation == pytest.approx(np.full(len(EVERY), SCALE))


def test_the_posterior_is_that_of_the_joint_normal_distribution() -> None:
    """By the textbook's inverse, in place of a factor."""
    points = embedded(EVERY)
    apart = np.sqrt(((points[:, None] - points) ** 2).sum(axis=-1))
    prior = SCALE**2 * np.exp(-apart)
    known = {3: 0.1, 17: -0.05, 30: 0.02}
    at = list(known)
    inverse = np.linalg.inv(prior[np.ix_(at, at)] + NOISE**2 * np.eye(3))
    found = Residual(EVERY).given(known)
    assert found.mean == pytest.approx(prior[:, at] @ inverse @ np.array([*known.values()]))
    inner = np.einsum("ij,jk,ik->i", prior[:, at], inverse, prior[:, at])
    assert found.variance == pytest.approx(SCALE**2 - inner)


@given(st.floats(-2, 2), st.dictionaries(st.integers(0, 47), st.floats(-0.05, 0.05), min_size=3))
def test_a_large_error_that_all_share_is_taken_off(shift: float, known: dict[int, float]) -> None:
    """Of what the machine has far from it that is expected again, of another machine nothing."""
    far = [Schedule(one.machine, (("far", 1), *one.decisions)) for one in EVERY]
    far = [one.with_(tile_m=1 << 20, stages=99) for one in far]
    found = Residual([*EVERY, *far, *schedules("simt")]).given(
        {i: one + shift for i, one in known.items()}
    )
    own, other = np.split(found.mean[len(EVERY) :], 2)
    if abs(shift) > COMMON + 0.06:
        assert own == pytest.approx(np.full(len(EVERY), shift), abs=0.06)
    elif abs(shift) < COMMON - 0.06:
        assert np.abs(own).max() < 0.06
    assert other == pytest.approx(np.zeros(len(EVERY)), abs=1e-9)


def test_errors_beyond_the_scale_leave_more_doubt() -> None:
    small = Residual(EVERY).given({0: 0.05, 40: -0.05})
    large = Residual(EVERY).given({0: 0.5, 40: -0.5})
    assert small.worse == 1.0
    assert (large.deviation > 2 * small.deviation).all()


def test_distances_are_ranks_and_names() -> None:
    """A whole range is 2, another of two values or names 1/4, another machine out of reach."""
    one = Schedule("hopper", (("tile_m", 16), ("stages", 2), ("swap", 0), ("epilogue", "tma")))
    every = [*EVERY, *schedules("simt")]
    points = embedded(every)

    def apart(other: Schedule) -> float:
        return float(np.linalg.norm(points[every.index(one)] - points[every.index(other)]))

    assert apart(one.with_(tile_m=256)) == pytest.approx(2)
    assert apart(one.with_(tile_m=64)) == pytest.approx(2 / 3)
    assert apart(one.with_(stages=3)) == pytest.approx(1)
    assert apart(one.with_(swap=1)) == pytest.approx(1 / 4)
    assert apart(one.with_(epilogue="direct")) == pytest.approx(1 / 4)
    assert apart(Schedule("simt", one.decisions)) == pytest.approx(30)


# The walk.


def walked(
    true: Sequence[float],
    predicted: Sequence[float],
    first: Sequence[int],
    reach: int = 1,
    at_once: int = 1,
) -> tuple[dict[int, float], list[list[int]]]:
    """Walk on the integers; return the seconds by place, and what was asked, batch by batch."""
    size, batches = len(true), list[list[int]]()

    def candidate(x: int) -> Candidate:
        return Candidate(Schedule("line", (("x", x),)), predicted[x])

    def near(schedule: Schedule) -> list[Candidate]:
        x = int(schedule["x"])
        return [candidate(y) for y in range(max(0, x - reach), min(size, x + reach + 1)) if y != x]

    def evaluate(some: Sequence[Schedule]) -> list[float]:
        batches.append([int(one["x"]) for one in some])
        return [true[x] for x in batches[-1]]

    domain = Domain([candidate(x) for x in first], near, lambda *_: (), built_at_once=at_once)
    found = walk(gaussian(domain, np.random.default_rng(0)), evaluate)
    return {int(one["x"]): seconds for one, seconds in found.items()}, batches


times = st.lists(st.floats(0.1, 10) | st.just(math.inf), min_size=1, max_size=30)


@given(times, st.data())
def test_with_a_right_model_it_ends_at_what_no_change_betters(
    true: list[float], data: st.DataObject
) -> None:
    """Each place once, four at a time at most, its seconds returned."""
    predicted = [one if math.isfinite(one) else 1.0 for one in true]
    places = st.integers(0, len(true) - 1)
    first = data.draw(st.lists(places, min_size=1, unique=True))
    reach = data.draw(st.integers(1, 3))
    found, batches = walked(true, predicted, first, reach)
    asked = [x for batch in batches for x in batch]
    assert len(asked) == len(set(asked)) == len(found)
    assert found == {x: true[x] for x in asked}
    assert max(map(len, batches)) <= BATCH
    best = min(found, key=lambda x: found[x])
    if math.isfinite(found[best]):
        around = range(max(0, best - reach), min(len(true), best + reach + 1))
        assert all(true[x] >= found[best] for x in around if math.isfinite(true[x]))


def test_what_cannot_be_faster_is_left() -> None:
    """Twice as slow under the model is beyond all doubt, a tenth is not."""
    predicted = [1.0, 1.1, 2.0, 2.0, 2.0]
    found, batches = walked(predicted, predicted, range(5), 0)
    assert set(found) == {0, 1}
    assert batches[0][0] == 0


def test_what_failed_is_neither_changed_nor_tried_again() -> None:
    true = [2.0, math.inf, 2.0, math.inf, 2.0]
    found, batches = walked(true, [1.0] * 5, [1, 2])
    assert {x for x, seconds in found.items() if seconds == math.inf} == {1, 3}
    assert sum(map(len, batches)) == len(found)
    assert walked([math.inf] * 5, [1.0] * 5, [2])[0] == dict.fromkeys((1, 2, 3), math.inf)


def test_changes_of_the_models_best_are_there_from_the_start() -> None:
    """In the first batch, where there is room for them."""
    _, batches = walked([1.0, 1.0, 0.9, 1.0], [1.0, 1.05, 1.06, 1.07], [0, 3], at_once=16)
    assert batches[0] == [0, 1, 3]


def test_a_large_first_batch_is_the_models_first_and_then_spreads() -> None:
    _, batches = walked([1.0] * 41, [1.0] * 41, range(41), at_once=12)
    assert batches[0][:BATCH] == list(range(BATCH))
    assert min(b - a for a, b in pairwise(sorted(batches[0][BATCH:]))) > 1


def test_a_batch_spreads_where_the_model_cannot_tell() -> None:
    """Of equal predictions the first four come in order; of the next no two are neighbours."""
    _, batches = walked([1.0] * 21, [1.0] * 21, range(21))
    assert batches[0] == [0, 1, 2, 3]
    second = sorted(batches[1])
    assert min(b - a for a, b in pairwise(second)) > 1


def test_it_learns_which_value_is_slow() -> None:
    """One way is 1.3 times as slow as said: after a batch those of the other way come first."""
    every = [
        Schedule("pairs", (("x", x), ("way", way))) for x in range(20) for way in ("st", "red")
    ]
    said = {one: 1.0 + 0.002 * int(one["x"]) + 0.01 * (one["way"] == "st") for one in every}
    asked: list[Schedule] = []

    def evaluate(some: Sequence[Schedule]) -> list[float]:
        asked.extend(some)
        return [said[one] * (1.14 if one["way"] == "red" else 1.0) for one in some]

    domain = Domain([Candidate(one, said[one]) for one in every], lambda _: [], lambda *_: ())
    walk(gaussian(domain, np.random.default_rng(0)), evaluate, go_on=lambda: len(asked) < 16)
    assert [one["way"] for one in asked[4:]].count("st") > 8


def test_it_leaves_a_machine_that_the_model_has_too_fast() -> None:
    """What all of one machine take more than said is not expected of another, which is tried."""
    said = {Schedule("fast", (("x", x),)): 1.0 + 0.001 * x for x in range(30)}
    said |= {Schedule("slow", (("x", x),)): 1.2 + 0.001 * x for x in range(30)}
    asked: list[Schedule] = []

    def evaluate(some: Sequence[Schedule]) -> list[float]:
        asked.extend(some)
        return [said[one] * (1.5 if one.machine == "fast" else 1.0) for one in some]

    domain = Domain([Candidate(*one) for one in said.items()], lambda _: [], lambda *_: ())
    walk(gaussian(domain, np.random.default_rng(0)), evaluate, go_on=lambda: len(asked) < 12)
    assert [one.machine for one in asked[:BATCH]].count("slow") == 1
    assert {one.machine for one in asked[BATCH : 3 * BATCH]} == {"slow"}


def test_the_first_of_a_machine_that_cannot_be_faster_is_not_tried() -> None:
    said = {Schedule("fast", (("x", x),)): 1.0 for x in range(9)} | {Schedule("slow", ()): 1.5}
    asked: list[Schedule] = []

    def evaluate(some: Sequence[Schedule]) -> list[float]:
        asked.extend(some)
        return [said[one] for one in some]

    domain = Domain([Candidate(*one) for one in said.items()], lambda _: [], lambda *_: ())
    walk(gaussian(domain, np.random.default_rng(0)), evaluate)
    assert {one.machine for one in asked} == {"fast"}


def test_what_the_search_has_first_is_in_the_first_batch() -> None:
    """Though others take less by the model."""
    _, batches = walked([1.0] * 21, [1.02, *[1.0] * 20], range(21))
    assert batches[0] == [0, 1, 2, 3]


@pytest.mark.parametrize("start", ["model", "spread"])
def test_it_keeps_its_mark_on_the_recorded_landscapes(start: str) -> None:
    """On every shape the best of 13 is within 1 % of all, and the best of 16 is the best of all."""
    curves = [replay.curve(land, "gaussian", start=start, budget=16) for land in lands()]
    assert len(curves) == 8
    assert min(one[12] for one in curves) >= 0.99
    assert min(one[15] for one in curves) == 1


@pytest.mark.parametrize(("few", "many"), [(0.2, 2.0), (0.4, 2.0), (0.25, 1.5), (0.25, 3.0)])
def test_its_mark_is_no_needle(few: float, many: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances somewhat larger or smaller keep it as well."""
    monkeypatch.setattr(residual, "_OTHER", few)
    monkeypatch.setattr(residual, "_RANGE", many)
    assert min(replay.curve(land, "gaussian", budget=13)[12] for land in lands()) >= 0.99
