"""What of the fuzz of hopper needs no GPU: its draws, its rows, and examples of the benchmarks."""

from __future__ import annotations

import doctest
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import hopper_fuzz, hopper_matmul, peers, triton_matmul
from benchmarks.simt_fuzz import save_cases
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.measure import Options
from tinygpu.device import Device, load_device
from tinygpu.laws import LAWS
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.measurement import Measurement, Results, describe
from tinygpu.operation import Problem, matmul
from tinygpu.reach import Case as LawCase
from tinygpu.schedule import Schedule


def broken(schedule: Schedule, problem: Problem) -> set[str]:
    """Return the machine's requirements and the laws of numbers that a schedule breaks."""
    machine, operation = Hopper(), problem.operation
    failed = {r.name for r in machine.requires(operation, schedule.chosen()) if not r.holds}
    if failed:
        return failed
    program = schedule.program(machine, operation)
    case = LawCase.of(program, problem.sizes, load_device("h200"))
    laws = [law for law in LAWS.values() if law.numeric]
    return {law.name for law in laws if not all(c.holds for c in law.clauses(case))}


class Gpu:
    """In the place of ``measure``: seconds by schedule, and what was asked."""

    def __init__(self, seconds: Callable[[Schedule], float | None]) -> None:
        self.seconds = seconds
        self.asked: list[int] = []

    def __call__(
        self,
        given: Sequence[Schedule],
        machine: Hopper,
        problem: Problem,
        *,
        store: Results | None = None,
        options: Options,
    ) -> list[Measurement]:
        self.asked.append(len(given))
        operation, sizes, _ = describe(problem, Schedule("", ()))
        common = Measurement(
            operation=operation, sizes=sizes, schedule="", device="d", driver="r",
            emitter=EMITTER_VERSION,
        )  # fmt: skip
        found = []
        for one in given:
            seconds = self.seconds(one)
            told = {"error": 0.5} if seconds else {"error": math.inf, "reason": "it is wrong"}
            found.append(replace(common, schedule=str(one), seconds=seconds, **told))
        return found


@given(st.integers(0, 2**32), st.integers(0, 200))
def test_random_shapes_suit_tma(seed: int, number: int) -> None:
    """Contiguous extents are multiples of 8; one shape in five has a k of one stage."""
    problem = hopper_fuzz.shape(np.random.default_rng(seed), number)
    for operand in problem.operation.operands:
        assert problem.sizes[operand.axes[-1]] % 8 == 0
    assert problem.sizes["k"] <= (64 if number % 5 == 3 else 600)


def test_random_shapes_have_every_layout_and_type() -> None:
    """16 numbers in a row have all layouts with all types; not all extents are multiples of 8."""
    rng = np.random.default_rng(1)
    problems = [hopper_fuzz.shape(rng, number) for number in range(16)]
    assert len({p.operation for p in problems}) == 16
    assert any(p.sizes["m"] % 8 for p in problems)
    assert any(p.sizes["k"] % 8 for p in problems)


def test_random_schedules_are_of_each_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed decides the draw; schedules differ, mix structures, and are asked about one by one.

    Here the judge is one that refuses a single row of clusters, so as to be quick.
    """

    def refused(s: Schedule, machine: Hopper, problem: Problem, device: Device) -> tuple[str, ...]:
        return ("no",) if s["raster"] == 1 else ()

    monkeypatch.setattr(hopper_fuzz, "check_schedule", refused)
    fixed: dict[str, Any] = {"tile_k": 64, "stages": 2, "in_flight": (0, 1), "raster": (1, 2, 4)}
    cases = hopper_fuzz.draw(3, shapes=2, count=32, fixed=fixed)
    assert cases == hopper_fuzz.draw(3, shapes=2, count=32, fixed=fixed)
    assert cases != hopper_fuzz.draw(4, shapes=2, count=32, fixed=fixed)
    for problem, drawn in cases:
        assert len(set(drawn)) == 16
        kinds = {tuple(s[name] for name in hopper_fuzz.STRUCTURAL) for s in drawn}
        assert len(kinds) == 8
        for schedule in drawn:
            assert not broken(schedule, problem)
            assert schedule["raster"] != 1


def test_fuzz_goes_on_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are there, of the same schedules and emitter, are left alone."""
    good, wrong = (Schedule.of(Hopper(), STARTS[name]) for name in ("ring", "swapped"))
    gpu = Gpu(lambda one: 1e-6 if one == good else None)
    monkeypatch.setattr(hopper_fuzz, "measure", gpu)
    first = Problem.of(matmul("bf16", layout="nt"), m=8, n=8, k=8)
    other = Problem.of(matmul("f16", "f32", "tn"), m=8, n=16, k=3)
    cases = [(first, (good, wrong)), (other, (good,))]
    path = tmp_path / "cases.json"
    save_cases(path, cases, "c")
    assert hopper_fuzz.load_cases(path) == cases
    for asked in (2, 0):
        gpu.asked.clear()
        hopper_fuzz.main(["--out", str(tmp_path), "--schedules", str(path)])
        assert len(gpu.asked) == asked
    tree = json.loads((tmp_path / "hopper_fuzz.json").read_text())
    assert (tree["summary"]["schedules"], tree["summary"]["wrong"]) == (3, 1)
    assert tree["summary"]["reasons"] == ["it is wrong"]
    assert tree["summary"]["structures"]["swap"] == {"0": 2, "1": 1}
    assert [r["layout"] for r in tree["rows"]] == ["nt", "nt", "tn"]
    assert set(tree["rows"][0]) == {*peers.ROW, *hopper_fuzz.FIELDS, "run"}
    changed = [(first, (good,)), (other, (good,))]
    save_cases(path, changed, "c")
    gpu.asked.clear()
    hopper_fuzz.main(["--out", str(tmp_path), "--schedules", str(path)])
    assert len(gpu.asked) == 1
    assert len(peers.load_rows("hopper_fuzz", tmp_path)) == 2
    monkeypatch.setattr(hopper_fuzz, "EMITTER_VERSION", EMITTER_VERSION + 1)
    gpu.asked.clear()
    hopper_fuzz.main(["--out", str(tmp_path), "--schedules", str(path)])
    assert len(gpu.asked) == 2


@pytest.mark.parametrize("module", [triton_matmul, hopper_fuzz, hopper_matmul])
def test_examples_are_true(module: Any) -> None:
    """What a benchmark's docstrings say that Python prints, it prints."""
    failed, attempted = doctest.testmod(module)
    assert (failed, attempted > 0) == (0, True)
