"""Ties: times closer than their noise stand together, and none of them wins."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import time_model
from tinygpu.cli.standing import standing
from tinygpu.devices.device import load_device
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.search.explain.explain import compare, outlined
from tinygpu.search.ties import Plainness, median_noise, places, plainness, ranked
from tinygpu.search.time.breakdown import Breakdown
from tinygpu.search.time.fitted import RANKING
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule


def rows(*told: tuple[float, float | None, float]) -> list[dict[str, Any]]:
    """Rows of search.json: the predicted seconds, the measured ones, their spread."""
    return [
        {
            "predicted_seconds": p,
            "parts_seconds": {"power": p, "epilogue": 0.1 * p},
            "seconds": s,
            "spread": spread,
        }
        for p, s, spread in told
    ]


def test_a_tie_is_within_both_noises_of_the_first_that_it_stands_with() -> None:
    """Ties do not run on: each is told against the fastest of its place."""
    times = [1.0, 1.02, 1.04, 1.06]
    assert places(times, [0.015] * 4) == [(1, True), (1, True), (3, True), (3, True)]
    assert places(times, [0.0] * 4) == [(1, False), (2, False), (3, False), (4, False)]
    assert places([1.02, 1.0], [0.0, 0.03]) == [(1, True), (1, True)]  # one noise is enough
    assert places([1.0, 1.0], [0.0, 0.0]) == [(1, True), (1, True)]
    assert places([None, None], [0.1, 0.1]) == [None, None]


plain = st.tuples(st.sampled_from([40.0, 64.0, math.inf]), st.sampled_from([64, 128]), st.text())
raced = st.lists(st.tuples(st.floats(1.0, 1.2) | st.none(), st.floats(0, 0.05), plain), max_size=8)


@given(raced)
def test_places_are_kept_and_within_one_the_rule_decides(
    every: list[tuple[float | None, float, Plainness]],
) -> None:
    seconds, noises, rules = zip(*every, strict=True) if every else ((), (), ())
    found = places(seconds, noises)
    order = ranked(seconds, noises, rules)
    assert sorted(order) == list(range(len(every)))
    for a, b in pairwise(order):
        first, second = found[a], found[b]
        if second is not None:
            assert first is not None
            assert first[0] <= second[0]
        if first is None or (second is not None and first[0] == second[0]):
            assert rules[a] <= rules[b]


@given(st.lists(plain, min_size=1, max_size=6), st.data())
def test_two_runs_of_one_set_name_the_same(rules: list[Plainness], data: st.DataObject) -> None:
    """However the times fall within the noise."""
    runs = st.lists(st.floats(1.0, 1.01), min_size=len(rules), max_size=len(rules))
    one, other = data.draw(runs), data.draw(runs)
    noises = [0.02] * len(rules)
    first, second = (ranked(times, noises, rules)[0] for times in (one, other))
    assert rules[first] == rules[second] == min(rules)


def test_the_plainest_has_few_registers_then_a_small_tile() -> None:
    one = Schedule.of(Hopper(), STARTS["ring"])
    small, wide = plainness(one, 90), plainness(one.with_(tile_n=2 * int(one["tile_n"])), 90)
    assert small[:2] < wide[:2]
    assert plainness(one.with_(tile_n=8), 91) > wide
    assert plainness(one) > plainness(one, 255)  # what is not known is not few
    assert plainness(one, 90) != plainness(one.with_(raster=4), 90)


def test_measured_times_tie_by_their_rounds_and_not_by_the_model() -> None:
    three = (1.0, 2.0, 0.02), (1.0, 2.01, 0.02), (1.0, 2.5, 0.02)
    found, told = standing(rows(*three, (1.0, None, 0.0)))
    assert found == [(1, True), (1, True), (3, False), None]
    assert told.startswith("2 schedules tie for the first place: their measured times")
    assert standing(rows((1.0, 2.0, 0.0), (1.0, 2.01, 0.0)))[1] == ""


@pytest.mark.parametrize("rounds", [25, 101])
def test_half_of_the_medians_are_off_by_more_than_their_noise(rounds: int) -> None:
    """Of normal rounds: what one round is off by says little of the median of many."""
    every = np.random.default_rng(rounds).normal(1.0, 0.03, (4000, rounds))
    low, median, high = np.quantile(every, (0.25, 0.5, 0.75), axis=1)
    noise = np.median([median_noise(s, rounds) for s in (high - low) / median])
    assert np.median(abs(median - 1)) == pytest.approx(noise, rel=0.12)
    scattered = [row | {"rounds": rounds} for row in rows((1, 1.00, 0.06), (1, 1.04, 0.06))]
    assert standing(scattered)[0] == [(1, False), (2, False)]
    assert standing([row | {"rounds": 1} for row in scattered])[0] == [(1, True), (1, True)]


def test_predicted_times_tie_by_what_the_model_errs_between_two() -> None:
    near, far = 1 + 0.9 * RANKING["tiles"], math.exp(1.1 * RANKING["tiles"])
    found, told = standing(rows((1.0, None, 0), (near, None, 0), (far, None, 0)))
    assert found == [(1, True), (1, True), (3, False)]
    assert "their predicted times" in told
    assert Breakdown(1.0, {"tensor": 1.0}).noise == RANKING["warps"]


def test_of_two_that_tie_neither_wins() -> None:
    """A comparison in words says so; of two farther apart one wins, as before."""
    machine, device = Hopper(), load_device("h200")
    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    one = Schedule.of(machine, STARTS["early"])
    both = compare(one, one.with_(early=0), machine, problem, device, outlined)
    assert 0 < abs(math.log(both.a.seconds / both.b.seconds)) < RANKING["tiles"]
    assert both.winner == "neither"
    assert " wins: " not in str(both)
    assert compare(one, one.with_(cluster_n=2), machine, problem, device, outlined).winner == "A"
    assert f"closer than {RANKING['tiles']:.1%}" in str(both)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_model_s_noise_is_the_median_error_of_a_ratio(seed: int) -> None:
    """Errors that all schedules of a shape share do not count, nor do slow schedules."""
    rng = np.random.default_rng(seed)
    model = np.exp(rng.uniform(0, 0.3, 400))
    times = model * np.exp(rng.normal(0.5, 0.03, 400))
    slow = np.array([9.0, 10.0])
    both = np.concatenate([model, slow]), np.concatenate([times, slow * [1, 100]])
    (noise,) = time_model.ranking_noise([("tiles", *both)]).values()
    assert noise == pytest.approx(0.6745 * 0.03 * math.sqrt(2), rel=0.1)
