"""Refitting the time model: the search, what it reads, and what it prints."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fit
from benchmarks.peers import FOLDER, load_rows
from tests.sample import some
from tinygpu.devices.device import load_device
from tinygpu.errors import StoreError
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.machines.simt import Simt
from tinygpu.search.time.cost import cost
from tinygpu.search.time.fitted import FITTED
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.schedule import Schedule

H200 = load_device("h200")


@cache
def runs() -> list[fit.Run]:
    """The measured runs: their terms take seconds, which a worker without these tests saves."""
    return fit.load_runs()


def test_the_runs_are_those_that_the_numbers_come_from() -> None:
    """308 matmuls and the slow kernels; the committed numbers keep their errors as stated."""
    groups = [run.group for run in runs()]
    assert {g: groups.count(g) for g in groups} == {
        "ladder": 9, "random": 99, "fast": 200, "slow": 22
    }  # fmt: skip
    off = np.abs(np.exp(fit.errors(runs()[::5], {})) - 1)
    assert off.mean() < 0.15
    assert off.max() < 1.0


def test_recorded_times_of_reds_are_without_the_launch_that_clears() -> None:
    """A call's time has it; the runs were measured without."""
    run = min((run for run in runs() if run.program.zeroed), key=lambda run: run.seconds)
    call = cost(run.program, run.sizes, H200)
    assert call.parts["clear"] > H200.launch_seconds
    known = fit.Run(run.group, run.program, run.sizes, None, run.seconds)
    assert fit.errors([known], {})[0] < math.log(float(call.seconds) / run.seconds)


@pytest.mark.parametrize("size", some([2048, 4096, 8192], 3, 2))
def test_the_model_ranks_the_fast_schedules(size: int) -> None:
    """Of what was measured of the model's older choices, the fastest is among its first twelve."""
    rows = [row for row in load_rows("simt_top", FOLDER) if row["m"] == size]
    predicted = []
    for row in rows:
        program = Schedule.of(Simt(), row["schedule"]).program(Simt(), matmul())
        predicted.append(float(cost(program, {"m": size, "n": size, "k": size}, H200).seconds))
    measured = np.array([row["seconds"] for row in rows])
    order = np.argsort(predicted, kind="stable")
    assert measured[order[:12]].min() < 1.03 * measured.min()
    assert measured[order[0]] < 1.15 * measured.min()


def test_a_cold_ring_of_two_stages_waits_for_memory() -> None:
    """1000 cubed: 18.9 us were measured with two stages; with four a tile is there in time."""
    point = {**STARTS["deep"], "tile_m": 64, "stages": 2, "guards": "tile"}
    sizes = {"m": 1000, "n": 1000, "k": 1000}

    def seconds(**changes: Any) -> float:
        program = Ampere().program(matmul("bf16", layout="nt"), Chosen({**point, **changes}))
        return float(cost(program, sizes, H200).seconds)

    assert seconds(stages=4) < 0.85 * seconds()
    assert seconds() < seconds(guards="each")


def test_numbers_count_and_are_put_back() -> None:
    """Each number that is fitted changes the time of some run; afterwards it is as before."""
    some, before = runs()[:100:2] + runs()[-4:], dict(FITTED)
    plain = fit.errors(some, {})
    for name in fit.NAMES:
        assert (fit.errors(some, {name: FITTED[name] / 3}) != plain).any(), name
        assert dict(FITTED) == before
    with suppress(ZeroDivisionError), fit.numbers({"turn": 0.0}):
        assert FITTED["turn"] == 0.0
        raise ZeroDivisionError
    assert dict(FITTED) == before


def test_registers_that_ptxas_used_take_the_place_of_the_estimate() -> None:
    """A run with few registers known is not the same as one with many."""
    run = min(runs()[:300], key=lambda r: r.registers or 255)
    assert run.registers is not None
    many = fit.Run(run.group, run.program, run.sizes, 255, run.seconds)
    assert fit.errors([many], {})[0] > fit.errors([run], {})[0] + 0.05


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0))
def test_the_search_finds_a_minimum_and_never_gets_worse(x: float, y: float) -> None:
    """On a bowl in the logarithms it comes near; numbers that are not named stay."""

    def loss(v: fit.Numbers) -> float:
        return math.log(v["a"] / x) ** 2 + math.log(v["b"] / y) ** 2

    start = {"a": 1.0, "b": 1.0, "c": 7.0}
    last = loss(start)
    for rounds in (1, 5, 40):
        found = fit.refit(loss, start, names=("a", "b"), rounds=rounds)
        assert loss(found) <= last
        assert found["c"] == 7.0
        last = loss(found)
    assert last < 0.01


def test_the_proposed_text_has_the_numbers() -> None:
    """Unchanged numbers give the file itself; changed ones are in it, to three digits."""
    path = Path(fit.__file__).parent.parent / "search" / "time" / "fitted.py"
    assert fit.fitted_text(FITTED) == path.read_text()
    space: dict[str, dict[str, float]] = {}
    exec(fit.fitted_text({**FITTED, "turn": 31.4159, "guard": 2e-5}), space)
    assert space["FITTED"] == {**FITTED, "turn": 31.4, "guard": 2e-5}


def test_the_command_writes_nothing_but_its_proposal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors before and after on standard error; without rounds the text is the file's."""
    few = [runs()[n] for n in (0, 20, 150, -1)]
    monkeypatch.setattr(fit, "load_runs", lambda: few)
    monkeypatch.setattr(fit, "load_cases", list)
    fit.main(["--rounds", "1"])
    printed = capsys.readouterr()
    losses = [float(line.split()[-1]) for line in printed.err.splitlines() if ": loss" in line]
    assert losses[1] < losses[0]
    assert printed.out.startswith('"""Fitted numbers')
    assert "slow: 1 runs" in printed.err


def test_runs_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    """No file, or one without its decisions."""
    with pytest.raises(StoreError, match=r"fit_runs\.json: not readable"):
        fit.load_runs(tmp_path)
    (tmp_path / "fit_runs.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(StoreError, match="decisions"):
        fit.load_runs(tmp_path)
