"""The search where the steps of each schedule are followed one by one: few are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.sample import some
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS
from tinygpu.search.exact import branch
from tinygpu.search.exact.best import Ranking, rank
from tinygpu.search.exact.scorer import Scorer
from tinygpu.search.time.cost import cost, features, predict
from tinygpu.search.time.recursion import Following, Recursion
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.schedule import Schedule

MACHINE, H200 = MACHINES["attention"], load_device("h200")
FULL = Problem.of(attention(), l=1, h=3, g=1, m=512, n=512, d=128, e=128)
CAUSAL = Problem.of(attention(mask="causal"), l=1, h=4, g=2, m=300, n=420, d=64, e=64)
SAME: Mapping[str, Value | tuple[Value, ...]] = {
    "consumers": 2, "order": "longest", "together": "group", "raster": 16, "persistent": 1,
    "early": 1, "cluster_m": 1, "queries": "shared", "weights": "registers", "softmax": "at once",
    "consumer_order": ("SsMELOPVv", "SVsMELvOP", "SVsMvELOP", "SOVsMELvP", "SOVsMvELP"),
    "producer_order": "QKV",
}  # fmt: skip
SPACES = {
    "full": (FULL, {**SAME, "depth": 128, "tile_n": 128, "turns": ("none", "named")}),
    "causal": (CAUSAL, {**SAME, "depth": 64, "stages_q": 1, "stages_v": 2, "turns": "none"}),
    "loads": (CAUSAL, {
        **SAME, "depth": 64, "stages_q": 1, "stages_v": 2, "turns": "none", "epilogue": "direct",
        "consumer_order": ("SsMELOPVv", "SVsMELvOP"),
        "producer_order": ("QKV", "KQVK", "QKKV", "KQKV"),
    }),
}  # fmt: skip
"""Small enough to follow all schedules: rings and orders, and tiles of keys."""


@cache
def space(name: str) -> Space:
    problem, fixed = SPACES[name]
    return Space(MACHINE, problem, H200, fixed=fixed)


def climbed(name: str, monkeypatch: pytest.MonkeyPatch) -> Ranking:
    monkeypatch.setattr(branch, "_FOLLOWED", 0)
    return rank(space(name), 1)


@pytest.mark.parametrize("name", some(SPACES, 2, 1))
def test_the_climb_ends_at_the_best_of_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every = rank(space(name), 1)
    assert every.proven
    found = climbed(name, monkeypatch)
    assert found.best[0].seconds == every.best[0].seconds
    assert not found.proven
    assert 0 < found.scored < found.admissible == every.admissible


def test_all_are_followed_where_they_are_few() -> None:
    """The proven best has the least time of all schedules, each by its own term."""
    fixed = {**SPACES["full"][1], "stages_q": 1, "consumer_order": "SsMELOPVv"}
    one = Space(MACHINE, FULL, H200, fixed=fixed)
    times = [cost(s.program(MACHINE, FULL.operation), FULL.sizes, H200).seconds for s in one]
    assert 4 < len(times) < 60
    assert rank(one, 1).best[0].seconds == pytest.approx(min(times), rel=1e-12)


def test_only_points_that_are_asked_for_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table of followed times is made, and no point is followed twice."""
    followed: list[int] = []
    call = Recursion.__call__

    def counted(self: Recursion, *numbers: Any) -> object:
        found = call(self, *numbers)
        followed.append(int(np.size(found)))
        return found

    monkeypatch.setattr(Recursion, "__call__", counted)
    (batch, *_) = space("full").batches()
    scorer = Scorer(batch, space("full"))
    assert scorer.dear
    assert not followed
    points = space("full").points(batch, np.random.default_rng(0), 3)
    first = scorer.seconds(points)
    assert sum(followed) == len(points)
    assert (scorer.seconds(points) == first).all()
    assert sum(followed) == len(points)
    assert (scorer.least(points) <= first).all()
    assert sum(followed) == len(points)


@pytest.mark.parametrize("blocks", [11, 16, 19])
def test_a_tail_that_is_thought_away_goes_on_at_the_period(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of tiles and of steps take as much of the time between whole ones."""
    followed: list[int] = []
    steps = Following.steps

    def counted(self: Following, here: Any, number: int, some: Any) -> Any:
        followed.append(len(some))
        return steps(self, here, number, some)

    monkeypatch.setattr(Following, "steps", counted)
    point = {**STARTS["tma store"], "order": "longest", "raster": 16}
    problem = Problem.of(
        attention(mask="causal"), l=1, h=16, g=1, m=128 * blocks, n=128 * blocks, d=128, e=128
    )
    program = Schedule.of(MACHINE, point).program(MACHINE, problem.operation)
    whole = features(program, problem.sizes, H200)
    even = replace(whole, launch=replace(whole.launch, without=frozenset({"tail"})))
    turns = 16 * blocks / H200.sms
    assert turns != round(turns)
    assert turns / math.ceil(turns) / 2 < predict(even).seconds / predict(whole).seconds < 1
    assert sum(followed) < 1000
