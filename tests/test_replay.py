"""Strategies replayed on complete landscapes: what is recorded, and what the table says of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import landscapes, replay
from benchmarks.peers import FOLDER
from tinygpu.search.strategies import STRATEGIES


@cache
def lands() -> list[replay.Landscape]:
    return replay.load()


def test_landscapes_are_complete() -> None:
    """Every legal schedule of the box has a time at every shape."""
    assert [land.shape for land in lands()] == list(landscapes.SHAPES)
    for land in lands()[::3]:
        assert set(land.seconds) == set(landscapes.space_of(land.shape))
        assert len(land.seconds) >= 1000


def test_neighbours_differ_in_one_decision() -> None:
    land = lands()[0]
    some = list(land.seconds)[::200]
    for one in some:
        differing = [
            sum(a != b for a, b in zip(one.decisions, other.decisions, strict=True))
            for other in land.seconds
        ]
        assert len(land.neighbours[one]) == differing.count(1)
        assert all(one in land.neighbours[other] for other in land.neighbours[one])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_curve_rises_to_the_best(name: str) -> None:
    """It never falls, is 1 where the best was met, and is the same for the same seed."""
    land = lands()[1]
    first, again = (replay.curve(land, name, blind=False, seed=3, budget=60) for _ in range(2))
    assert (first == again).all()
    assert (np.diff(first) >= 0).all()
    assert 0 < first[0] <= first[-1] <= 1
    if name != "random":
        fastest = min(land.predicted, key=land.predicted.__getitem__)
        assert first[0] == min(land.seconds.values()) / land.seconds[fastest]


def test_the_table_is_of_these_landscapes() -> None:
    """The rows that no seed decides are what the code as it is finds; one reaches 99 % in ten."""
    rows = json.loads((FOLDER.parent / "replay.json").read_text())["rows"]
    assert {(row["strategy"], row["start"]) for row in rows} == {
        (name, start)
        for name in STRATEGIES
        for start in ("model", "blind")
        if (name, start) not in (("model", "blind"), ("random", "model"))
    }
    (mine,) = (row for row in rows if row["strategy"] == "model")
    curves = [replay.curve(land, "model", blind=False, seed=0)[None] for land in lands()]
    here = json.loads(json.dumps(replay.row_of("model", False, curves)))
    for field in ("worst", "area", "best_at"):
        assert here[field] == pytest.approx(mine[field], abs=0.002)
    assert min(row["evaluations"] or 1e9 for row in rows) <= 10


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    curves = replay.replayed(lands()[:1], seeds=1)
    replay.plot(curves, tmp_path / "replay.png")
    assert (tmp_path / "replay.png").stat().st_size > 10_000
