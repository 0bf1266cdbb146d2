"""Strategies ask for nothing twice, and find the best of a plane, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tinygpu.cli import app
from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.strategies import STRATEGIES, Domain, Strategy, walk
from tinygpu.term.schedule import Schedule


def pair(x: int, y: int) -> Schedule:
    return Schedule("plane", (("x", x), ("y", y)))


class Plane:
    """Seconds of schedules with two decisions, and what was asked."""

    def __init__(self, size: int, blind: bool = False) -> None:
        self.times = {
            pair(x, y): 1.0 + abs(x - 3) + 0.5 * abs(y - 1) for x in range(size) for y in range(4)
        }
        self.times[pair(0, 0)] = math.inf
        self.blind = blind
        self.asked: list[Schedule] = []

    def candidate(self, schedule: Schedule) -> Candidate:
        return Candidate(schedule, 1.0 if self.blind else min(self.times[schedule], 99.0))

    def near(self, schedule: Schedule) -> list[Candidate]:
        mine = dict(schedule.decisions)
        return [
            self.candidate(other)
            for other in self.times
            if sum(mine[name] != value for name, value in other.decisions) == 1
        ]

    def sample(self, rng: np.random.Generator, number: int) -> list[Candidate]:
        every = list(self.times)
        return [self.candidate(every[int(i)]) for i in rng.integers(len(every), size=number)]

    def evaluate(self, schedules: Sequence[Schedule]) -> list[float]:
        self.asked += schedules
        return [self.times[schedule] for schedule in schedules]

    def domain(self, first: int) -> Domain:
        ranked = sorted(map(self.candidate, self.times), key=lambda c: c.predicted_seconds)
        return Domain(ranked[:first], self.near, self.sample)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("first", [0, 5])
@given(seed=st.integers(0, 1000), budget=st.integers(0, 8), batch=st.integers(1, 5))
def test_nothing_is_asked_twice_and_no_more_than_is_allowed(
    name: str, first: int, seed: int, budget: int, batch: int
) -> None:
    plane, numbers = Plane(5), count()
    steps = STRATEGIES[name](plane.domain(first), np.random.default_rng(seed))
    found = walk(steps, plane.evaluate, go_on=lambda: next(numbers) < budget, batch=batch)
    assert len(plane.asked) == len(set(plane.asked)) <= budget * batch
    assert found == {schedule: plane.times[schedule] for schedule in plane.asked}


@pytest.mark.parametrize("strategy", [s for n, s in STRATEGIES.items() if n != "gaussian"])
@pytest.mark.parametrize("blind", [False, True])
def test_each_finds_the_best_of_a_plane(strategy: Strategy, blind: bool) -> None:
    """From one start or none, and ends when it finds nothing new."""
    plane = Plane(6, blind)
    found = walk(
        strategy(plane.domain(0 if blind else 1), np.random.default_rng(1)), plane.evaluate
    )
    assert min(found, key=found.__getitem__) == pair(3, 1)
    assert len(found) <= len(plane.times)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_seed_is_a_walk(name: str) -> None:
    """The same seed asks for the same schedules in the same order; others for others."""

    def asked(seed: int) -> list[Schedule]:
        plane, numbers = Plane(40), count()
        steps = STRATEGIES[name](plane.domain(2), np.random.default_rng(seed))
        walk(steps, plane.evaluate, go_on=lambda: next(numbers) < 20, batch=1)
        return plane.asked

    assert asked(0) == asked(0)
    assert name == "gaussian" or any(asked(0) != asked(seed) for seed in range(1, 6))


def test_the_first_is_what_a_search_takes() -> None:
    assert next(iter(STRATEGIES)) == "gaussian"


def test_the_command_names_each() -> None:
    said = CliRunner().invoke(app, ["search", "--help"]).output.replace("│", " ").split()
    assert f"What is measured next: {', '.join(STRATEGIES)}." in " ".join(said)
