"""The benchmark of the host's part of a call, as far as it needs no GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import host_overhead
from benchmarks.host_overhead import BURST, CALLS, SAMPLES, Case, Run, cases, host_seconds, rows_of
from benchmarks.peers import load_rows
from tests.fake_gpu import CupyArray, installed
from tinygpu.codegen.run import validation
from tinygpu.codegen.run.launch import Kernel
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.term.operation import Problem

CASES = cases()
SMALL = [
    replace(c, problem=Problem.of(c.problem.operation, **dict.fromkeys(c.problem.sizes, 16)))
    for c in CASES
]


class Library:
    """NumPy in CuPy's place, with a device that has nothing to wait for."""

    def __init__(self) -> None:
        self.drained = 0
        self.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(synchronize=self._drain))

    def _drain(self) -> None:
        self.drained += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class Right:
    """A kernel that computes on NumPy arrays, the operation's reference, and adds ``wrong``."""

    wrong = 0.0

    def __init__(self, program: Any) -> None:
        self.program = program

    def __call__(self, *inputs: Any, out: Any, **scalars: float) -> None:
        operation = self.program.operation
        exact = {
            o.name: validation._widen(x, o.dtype)
            for o, x in zip(operation.inputs, inputs, strict=True)
        }
        found = operation.reference(exact, scalars)[operation.output.name] + self.wrong
        out[...] = validation._narrow(found.astype(np.float32), operation.output.dtype)

    def prepare(self, *inputs: Any, out: Any, **scalars: float) -> Run:
        return lambda: self(*inputs, out=out, **scalars)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    for module in (host_overhead, validation):
        monkeypatch.setattr(module, "gpu", lambda: library)
    monkeypatch.setattr(host_overhead, "Kernel", Right)
    monkeypatch.setattr(host_overhead, "tensors", lambda p, inputs, output: (*inputs, output))
    monkeypatch.setattr(host_overhead, "captured", lambda name, run: run)
    monkeypatch.setattr(host_overhead, "peer_of", lambda *a: ("a peer", lambda: None))
    monkeypatch.setattr(host_overhead, "host_seconds", lambda run, drain: run() or 3e-6)
    return library


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_are_legal_and_start(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps the laws of its problem on the device, and both ways of a call start it."""
    assert not check_schedule(case.schedule, case.machine, case.problem, load_device("h200"))
    fake = installed(monkeypatch)
    kernel = Kernel(case.schedule.program(case.machine, case.problem.operation), arch="sm_90a")
    operation, sizes = case.problem.operation, case.problem.sizes
    types = {"f32": np.float32, "bf16": np.uint16}
    *inputs, out = (
        CupyArray(tuple(sizes[axis] for axis in o.axes), types[o.dtype]) for o in operation.operands
    )
    kernel(*inputs, out=out, **case.scalars)
    kernel.prepare(*inputs, out=out, **case.scalars)()
    first, second = fake.launched()
    assert first == second
    assert fake.driver.replays == (0 if "early" in case.name else 1)
    assert len(fake.of("clear")) == (2 if "split" in case.name else 0)
    assert len(fake.of("encode")) == (5 if "hopper" in case.name else 0)
    assert first.attributes == (((6, 1),) if "early" in case.name else ())


def test_a_time_is_the_hosts_alone() -> None:
    """The least of samples; what draining takes does not count, and no burst fills the queue."""
    now, pending, most, runs = 0.0, 0, 0, 0

    def run() -> None:
        nonlocal now, pending, most, runs
        runs += 1
        now += 100e-6 if runs <= CALLS else 2e-6  # the first sample is slow
        pending += 1
        most = max(most, pending)

    def drain() -> None:
        nonlocal now, pending
        now += 1.0
        pending = 0

    assert host_seconds(run, drain, clock=lambda: now) == pytest.approx(2e-6)
    assert (runs, most, pending) == (SAMPLES * CALLS, BURST, 0)


def test_rows_say_what_holds(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right and fast enough: eager and replayed, each library; else a row says that it is not."""
    for case in (SMALL[0], SMALL[2], SMALL[-1]):
        rows = list(rows_of(case))
        assert [(r["group"], r["library"]) for r in rows] == [
            ("call", "CuPy"), ("prepared", "CuPy"), ("call", "PyTorch"), ("prepared", "PyTorch"),
        ]  # fmt: skip
        assert all(r["holds"] and 0 <= max(r["error"], r["replay_error"]) <= 1 for r in rows)
        assert {r["seconds"] for r in rows} == {3e-6}
        assert [r["allowed_seconds"] for r in rows] == [10e-6, 4e-6] * 2
    assert library.drained > 0
    monkeypatch.setattr(host_overhead, "host_seconds", lambda run, drain: run() or 5e-6)
    assert [r["holds"] for r in rows_of(SMALL[0])] == [True, False] * 2
    monkeypatch.setattr(host_overhead, "captured", lambda name, run: lambda: None)
    rows = list(rows_of(SMALL[0]))
    assert all(r["error"] <= 1 < r["replay_error"] and not r["holds"] for r in rows)
    monkeypatch.setattr(Right, "wrong", 1.0)
    assert all(r["error"] > 1 and not r["holds"] for r in rows_of(SMALL[0]))


def test_the_command_writes_rows_and_fails_where_one_does_not_hold(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    floor = {**host_overhead._row("driver", "an empty kernel", "the driver"), "seconds": 2e-6}
    monkeypatch.setattr(host_overhead, "driver_row", lambda: {**floor, "holds": True})
    monkeypatch.setattr(host_overhead, "cases", lambda: SMALL[:2])
    host_overhead.main(["--out", str(tmp_path)])
    rows = load_rows("host_overhead", tmp_path)
    assert len(rows) == 1 + 2 * 2 * 2
    tree = json.loads((tmp_path / "host_overhead.json").read_text())
    assert tree["provenance"]["command"] == "python -m benchmarks.host_overhead"
    assert "prepared simt, CuPy: 3.00 us, a peer 3.00 us\n" in capsys.readouterr().out
    monkeypatch.setattr(host_overhead, "host_seconds", lambda run, drain: run() or 11e-6)
    with pytest.raises(SystemExit, match="8 of 9 rows do not hold"):
        host_overhead.main(["--out", str(tmp_path)])
    assert "DOES NOT HOLD: at most 4 us" in capsys.readouterr().out
    assert len(load_rows("host_overhead", tmp_path)) == 9
