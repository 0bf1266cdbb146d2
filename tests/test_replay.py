"""Strategies replayed on complete landscapes: what is recorded, and what the table says of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import landscapes, replay
from benchmarks.peers import FOLDER
from tinygpu.machines import MACHINES
from tinygpu.search.strategies import STRATEGIES


@cache
def lands() -> list[replay.Landscape]:
    return replay.load()


def test_landscapes_are_complete() -> None:
    """Schedules of the box as it was have times at every shape; most are legal still."""
    assert [land.shape for land in lands()] == list(landscapes.SHAPES)
    for land in lands()[::3]:
        today = set(landscapes.space_of(land.shape))
        assert len(today & set(land.seconds)) > 0.75 * len(land.seconds)
        assert len(land.seconds) >= 900


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
    first, again = (replay.curve(land, name, seed=3, budget=60) for _ in range(2))
    assert (first == again).all()
    assert (np.diff(first) >= 0).all()
    assert 0 < first[0] <= first[-1] <= 1
    if name not in ("random", "smt"):
        fastest = min(land.predicted, key=land.predicted.__getitem__)
        assert first[0] == min(land.seconds.values()) / land.seconds[fastest]


def test_the_table_is_of_these_landscapes() -> None:
    """The rows that no seed decides are what the code as it is finds; one reaches 99 % in ten."""
    rows = json.loads((FOLDER.parent / "replay.json").read_text())["rows"]
    assert {(row["strategy"], row["start"]) for row in rows} == {
        (name, start)
        for name in STRATEGIES
        for start in replay.STARTS
        if replay.ONLY.get(name, start) == start
    }
    (mine,) = (row for row in rows if row["strategy"] == "model")
    curves = [replay.curve(land, "model")[None] for land in lands()]
    here = json.loads(json.dumps(replay.row_of("model", "model", curves)))
    for field in ("worst", "area", "best_at", "least_at_16"):
        assert here[field] == pytest.approx(mine[field], abs=0.002)
    assert min(row["evaluations"] or 1e9 for row in rows) <= 10


def test_the_table_has_a_line_for_each_row() -> None:
    rows = json.loads((FOLDER.parent / "replay.json").read_text())["rows"]
    head, *lines = replay.table(rows).splitlines()
    assert head.split() == list(rows[0])
    assert [line.split()[:2] for line in lines] == [[r["strategy"], r["start"]] for r in rows]


def test_from_its_spreads_a_start_has_no_two_alike() -> None:
    """The model's best of each, and all else by single changes."""
    land = lands()[4]
    some, every = (land.domain(start, 0).first for start in ("spread", "model"))
    spreads = [tuple(c.schedule[name] for name in MACHINES["hopper"].spread) for c in every]
    assert len(some) == len(set(spreads)) < len(every) / 5
    assert some[0] == every[0]
    assert list(some) == [every[spreads.index(one)] for one in dict.fromkeys(spreads)]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    curves = replay.replayed(lands()[:1], seeds=1)
    replay.plot(curves, tmp_path / "replay.png")
    assert (tmp_path / "replay.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore:None of the tunable parameters specify thread block")
def test_kernel_tuner_walks_on_what_is_exported(tmp_path: Path) -> None:
    """Its own loader takes the cache file and a strategy of its own runs; T4 by its own schema."""
    reason = "kernel-tuner is not installed (pip install kernel-tuner)"
    pytest.importorskip("kernel_tuner", reason=reason)
    from jsonschema import validate
    from kernel_tuner import tune_cache
    from kernel_tuner.file_utils import output_file_schema

    land = lands()[0]
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(replay.kernel_tuner_cache(land)))
    found, _ = tune_cache(
        path, strategy="random_sample", strategy_options={"max_fevals": 40}, quiet=True
    )
    assert len(found) >= 40
    known = {tuple(map(str, dict(s.decisions).values())): t for s, t in land.seconds.items()}
    names = [name for name, _ in next(iter(land.seconds)).decisions]
    for one in found:
        assert one["time"] == 1e3 * known[tuple(str(one[name]) for name in names)]
    _, schema = output_file_schema("results")
    validate(replay.t4_results(land), schema)


def test_what_is_exported_is_the_landscape(tmp_path: Path) -> None:
    """Each schedule once, by its values in the order of the keys, in milliseconds."""
    land = lands()[2]
    tree = json.loads(json.dumps(replay.kernel_tuner_cache(land)))
    assert len(tree["cache"]) == len(land.seconds)
    for key, row in tree["cache"].items():
        assert key == ",".join(str(row[name]) for name in tree["tune_params_keys"])
        assert all(row[name] in values for name, values in tree["tune_params"].items())
    assert min(row["time"] for row in tree["cache"].values()) == 1e3 * min(land.seconds.values())
    replay.main(["--export", str(tmp_path)])
    assert len(list(tmp_path.glob("*.cache.json"))) == len(list(tmp_path.glob("*.t4.json"))) == 8
