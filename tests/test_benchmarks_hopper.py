"""What of the fuzz of hopper needs no GPU: its draws, its rows, and examples of the benchmarks."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import hopper_matmul, triton_matmul
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.run.measure import Options
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case as LawCase
from tinygpu.machines.hopper import Hopper
from tinygpu.space.measurement import Measurement, Results, describe
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule


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


@pytest.mark.parametrize("module", [triton_matmul, hopper_matmul])
def test_examples_are_true(module: Any) -> None:
    """What a benchmark's docstrings say that Python prints, it prints."""
    failed, attempted = doctest.testmod(module)
    assert (failed, attempted > 0) == (0, True)
