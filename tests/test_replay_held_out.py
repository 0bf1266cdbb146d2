"""The search on what it was not chosen on: sources, rows, and shapes that a seed drew."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import drawn_landscapes, replay_held_out
from benchmarks.drawn_landscapes import CASES, MOST, _code, drawn_shapes
from benchmarks.oracle import HELD_OUT, decisions_of, path_of, problem_of
from benchmarks.peers import FOLDER
from tests.sample import some
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.simt import LADDER
from tinygpu.term.schedule import Schedule


def test_a_seed_draws_shapes_from_few_rows_to_many() -> None:
    """The same each time; each of hopper's in its quarter of three octaves."""
    assert drawn_shapes(1) == drawn_shapes(1) != drawn_shapes(2)
    for seed in range(20):
        *tensor, first, second = drawn_shapes(seed)
        assert [one[0] for one in (*tensor, first, second)] == ["hopper"] * 4 + ["simt"] * 2
        for quarter, (_, _, _, (m, n, k)) in enumerate(tensor):
            assert 8**quarter <= m <= 8 ** (quarter + 1)
            assert {n % 1024, k % 1024} == {0}


@pytest.mark.parametrize("case", some(CASES[1::3], 2), ids=str)
def test_what_is_drawn_keeps_the_laws(
    case: tuple[str, str, str, tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No schedule twice, and numbers break no law; the judge is asked where they are built."""
    monkeypatch.setattr(drawn_landscapes, "RANKING_SECONDS", 1.0)
    tree = drawn_landscapes.drawn_schedules(case)
    every = [Schedule(case[0], tuple(one.items())) for one in decisions_of(tree)]
    assert tuple(tree["case"][3]) == case[3]
    assert 100 <= len(every) == len(set(every)) <= MOST
    for one in every[:: len(every) // 4]:
        said = check_schedule(one, MACHINES[case[0]], problem_of(case), load_device("h200"))
        assert {violation.law for violation in said} <= {"concurrency"}


def test_what_is_refused_has_no_code() -> None:
    case = ("simt", "f32", "nn", (64, 64, 64))
    assert len(_code(case, dict(LADDER["naive"]), "sm_90a")) == 4
    assert _code(case, {**LADDER["naive"], "thread_m": 64, "thread_n": 64}, "sm_90a") == ()


def test_rows_are_of_what_was_recorded() -> None:
    """The mean of two visits; and the rows of one source are what the code as it is finds."""
    lands = replay_held_out.oracle("simt")
    held = [case for case in HELD_OUT if case[0] == "simt"]
    assert [land.shape for land in lands] == [case[3] for case in held]
    tree = json.loads(path_of(held[0]).read_text())
    one = Schedule("simt", tuple(decisions_of(tree)[5].items()))
    wanted = math.sqrt(tree["first"][5] * tree["second"][5])
    assert lands[0].seconds[one] == pytest.approx(wanted)
    rows = json.loads((FOLDER.parent / "replay_held_out.json").read_text())["rows"]
    for strategy in ("model", "gaussian"):
        (known,) = (
            row for row in rows if (row["source"], row["strategy"]) == ("oracle, simt", strategy)
        )
        here = json.loads(json.dumps(replay_held_out.row_of("oracle, simt", strategy, lands)))
        assert here["shapes"] == known["shapes"]
        for field in ("best_at", "least_at"):
            assert here[field] == pytest.approx(known[field], abs=0.01)
