"""Calibration's second part: kernels whose times are made up, by the model with other numbers."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tests.fake_gpu import Card
from tests.sample import some
from tinygpu.cli import app, calibrating
from tinygpu.cli.calibrating import FITTED_NUMBERS, Group, Timed, groups_of, refined, timings
from tinygpu.codegen.run import calibrate
from tinygpu.codegen.run.measure import Options
from tinygpu.deadline import Deadline
from tinygpu.devices.device import DEVICES, Device, Errors, load_device
from tinygpu.errors import LaunchError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.search.time.cost import cost
from tinygpu.term.operation import Problem

H100 = load_device("h100")
NAMES = {"elementwise", "hopper", "rows"}
FAKE = """
from tinygpu.codegen.run.worker import serve

def answer(request):
    if request["do"] == "hello":
        return {"arch": "sm_90a", "device": "made up", "driver": "580.1"}
    if request["do"] == "validate":
        return {"error": 0.5} if len(request["name"]) % 3 else {"failed": "it is wrong"}
    timing = {"seconds": 1e-4, "spread": 0.01, "rounds": 3, "clock_mhz": 0, "capped": False}
    return {"timings": {name: timing | {"error": 0.5} for name in request["kernels"]}}

serve(answer)
"""


@cache
def drawn() -> tuple[Group, ...]:
    """Some kernels of three machines, which wait for the launch, DRAM and tensor cores."""
    rng, found = np.random.default_rng(0), []
    for name in sorted(NAMES):
        operation, shapes = calibrating._SHAPES[name]
        problem = Problem.of(operation, **shapes[-1])
        some = calibrating._drawn(MACHINES[name], problem, H100, rng)
        found.append(Group(MACHINES[name], problem, tuple(some)))
    return tuple(found)


def timed(truth: Device, noise: float = 0.0) -> list[Timed]:
    """The times of kernels on a card that is as the model says, with these numbers."""
    rng, found = np.random.default_rng(1), []
    for group in drawn():
        for program in map(group.program, group.schedules):
            seconds = float(cost(program, group.problem.sizes, truth).seconds)
            seconds *= math.exp(rng.normal(0, noise)) if noise else 1.0
            found.append(Timed(group.machine.name, program, group.problem.sizes, seconds))
    return found


@pytest.mark.parametrize(
    ("name", "machines"),
    some(
        [
            ("h100", {"simt", "ampere", "hopper", "elementwise", "rows"}),
            ("rtx4090", {"simt", "ampere", "elementwise", "rows"}),
        ],
        2,
    ),
)
def test_what_is_drawn_is_legal_and_of_every_machine_that_runs(
    name: str, machines: set[str]
) -> None:
    """In the first round of groups, whose kernels all differ."""
    device = load_device(name)
    groups = list(islice(groups_of(device, np.random.default_rng(0)), len(machines)))
    assert {group.machine.name for group in groups} == machines
    schedules = [s for group in groups for s in group.schedules]
    assert len(set(schedules)) == len(schedules) > 4 * len(groups)
    for group in groups:
        for s in group.schedules[:2]:
            assert not check_schedule(s, group.machine, group.problem, device)


def test_numbers_that_are_off_are_found() -> None:
    """A twentieth off: the held-out error falls, and the source has both numbers."""
    moved = {"tensor_clock_hz": 0.95, "dram_bytes_per_second": 1.05, "launch_seconds": 1.05}
    truth = H100.with_values(**{f: getattr(H100, f) * x for f, x in moved.items()})
    found = refined(H100, timed(truth, noise=0.002), np.random.default_rng(2))
    fitted = {f for f, n in found.numbers if n.kind == "fitted"}
    assert "dram_bytes_per_second" in fitted <= set(FITTED_NUMBERS)
    for field in fitted:
        assert getattr(found, field) == pytest.approx(getattr(truth, field), rel=0.03)
        assert f"by the micro-kernel {getattr(H100, field):.6g} (" in found.provenance[field].source
        assert "whose held-out error fell from " in found.provenance[field].source
    assert {m for m, _ in found.errors} == NAMES
    assert all(e.median < 0.02 and abs(e.bias) < 0.02 and e.count >= 4 for _, e in found.errors)


def test_numbers_that_are_right_stay() -> None:
    """Nothing can fall: the errors are said, and are none."""
    found = refined(H100, timed(H100), np.random.default_rng(2))
    assert found.provenance == H100.provenance
    assert all(e.median == 0 for _, e in found.errors)


def test_no_number_leaves_a_tenth_and_errors_have_their_sign() -> None:
    """Kernels twice as fast as the model says: it is told, not fitted away."""
    fast = [Timed(t.machine, t.program, t.sizes, t.seconds / 2) for t in timed(H100)]
    found = refined(H100, fast, np.random.default_rng(2))
    for field in FITTED_NUMBERS:
        assert 0.9 <= getattr(found, field) / getattr(H100, field) <= 1.1 + 1e-9
    assert all(0.4 < e.bias <= e.median <= math.log(2) + 1e-9 for _, e in found.errors)


def test_too_few_kernels_say_nothing() -> None:
    few = [one for one in timed(H100) if one.machine == "rows"][:7]
    assert refined(H100, few, np.random.default_rng(0)) == H100
    assert refined(H100, [], np.random.default_rng(0)) == H100


def test_kernels_are_built_and_timed_and_wrong_ones_left_out(tmp_path: Path) -> None:
    """Through builders and a worker as on a GPU; no kernel starts after the deadline."""
    (tmp_path / "fake.py").write_text(FAKE)
    options = Options(worker=(sys.executable, str(tmp_path / "fake.py")), limit_seconds=60.0)
    group = next(g for g in drawn() if g.machine.name == "elementwise")
    done: list[int] = []
    found = list(timings([group], options=options, progress=done.append))
    assert 0 < len(found) <= len(group.schedules)
    assert done == [len(found)]
    assert {t.seconds for t in found} == {1e-4}
    over = Deadline.within(0.0, time.monotonic)
    assert list(timings([group], options=options, until=over)) == []
    nobody = Options(worker=(sys.executable, "-c", "raise SystemExit('no GPU here')"))
    with pytest.raises(LaunchError, match="no GPU here"):
        list(timings([group], options=nobody))


def test_what_fails_while_building_is_raised(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    options = Options(worker=(sys.executable, str(tmp_path / "fake.py")), limit_seconds=60.0)

    def groups() -> Iterator[Group]:
        raise LaunchError("drawing failed")
        yield

    with pytest.raises(LaunchError, match="drawing failed"):
        list(timings(groups(), options=options))


def said(monkeypatch: pytest.MonkeyPatch, *words: object, ran: Any = None) -> Result:
    """The command on a made-up card, where random kernels are those that ``ran`` gives."""
    Card(monkeypatch).library(None)
    monkeypatch.setattr(calibrate, "calibrate", lambda say, date, name: H100)
    monkeypatch.setattr(calibrating, "timings", lambda groups, **_: ran())
    return CliRunner().invoke(app, ["calibrate", *map(str, words)])


def test_the_command_writes_errors_and_tells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.json"
    shown = said(monkeypatch, "-o", path, ran=lambda: timed(H100, noise=0.05))
    assert shown.exit_code == 0, shown.output
    found = load_device(path)
    assert {m for m, _ in found.errors} == NAMES
    assert "random kernels that were held out" in shown.stdout
    assert all(str(e) in shown.stdout for _, e in found.errors)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.json"]


def test_an_interrupt_keeps_what_micro_kernels_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    path = tmp_path / "mine.json"
    shown = said(monkeypatch, "-o", path, ran=stopped)
    assert shown.exit_code == 130
    assert f"interrupted: {path} has the micro-kernels' numbers" in shown.stderr
    assert load_device(path) == H100


def test_quick_says_what_error_to_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the nearest shipped device that was held against kernels."""
    path = tmp_path / "mine.json"
    errors = {"simt": Errors(math.log(1.1), 0.0, 9)}
    known: Mapping[str, Device] = {
        name: Device.of(name, d.arch, d.provenance, errors if name == "h200" else {})
        for name in DEVICES
        if (d := load_device(name))
    }
    monkeypatch.setattr(calibrating, "load_device", known.__getitem__)
    shown = said(monkeypatch, "-o", path, "--quick")
    assert shown.exit_code == 0, shown.output
    assert "expect errors as h200 has (median, held out): simt 10.0 %" in shown.stdout
    assert load_device(path) == H100


def test_a_card_on_which_nothing_runs_and_a_file_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = said(monkeypatch, "-o", tmp_path / "mine.json", ran=list)
    assert shown.exit_code == 0
    assert "too few random kernels ran" in shown.stdout
    assert "errors" not in json.loads((tmp_path / "mine.json").read_text())
    (tmp_path / "file").write_text("")
    shown = said(monkeypatch, "-o", tmp_path / "file" / "mine.json", ran=list)
    assert shown.exit_code != 0
