"""Evidence from a GPU: the sanitizer and its controls, the winners, runs that no fit has seen."""

from __future__ import annotations

import pytest

from benchmarks.hopper_bottleneck import SHAPES, winner
from benchmarks.hopper_sanitizer import CONTROLS, TOOLS, controls, said
from benchmarks.peers import FOLDER, load_rows
from tinygpu.devices.device import load_device
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.hopper import Hopper
from tinygpu.search.time.cost import cost
from tinygpu.term.operation import matmul
from tinygpu.term.schedule import Schedule


@pytest.mark.parametrize(
    ("code", "text", "want"),
    [
        (0, "========= ERROR SUMMARY: 0 errors\n", "clean"),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", "clean"),
        (9, "========= Barrier error detected.\n========= ERROR SUMMARY: 3 errors\n", "faults"),
        (9, "========= Error: Race reported\n========= RACECHECK SUMMARY: 2 hazards\n", "faults"),
        (255, "Unable to load the injection library\n", "refused"),
        (1, "Traceback\n========= ERROR SUMMARY: 0 errors\n", "refused"),
        (0, "", "refused"),
    ],
)  # fmt: skip
def test_what_the_tool_says(code: int, text: str, want: str) -> None:
    assert said(code, text)[0] == want


def test_controls_are_rejected() -> None:
    found = list(controls())
    assert len(found) == len(CONTROLS)
    for tool, _, program, _, _ in found:
        assert tool in TOOLS
        assert not verdict(program).legal


def test_winners_are_recorded() -> None:
    for shape in SHAPES:
        schedule, problem = winner(shape)
        assert tuple(problem.sizes[axis] for axis in "mnk") == shape
        assert schedule.machine == "hopper"


def test_the_model_meets_runs_that_it_was_not_fitted_to() -> None:
    """Of fp16 and fp8, whose products take half as long: within 15 % of the times measured."""
    rows = [r for r in load_rows("hopper_matmul", FOLDER) if r["group"] in ("f16", "e4m3")]
    assert len(rows) == 12
    for row in rows:
        operation = matmul(row["group"], layout="nt")
        values = {"cluster_k": 1, **row["schedule"]}
        program = Schedule.of(Hopper(), values).program(Hopper(), operation)
        sizes = {axis: row[axis] for axis in "mnk"}
        predicted = float(cost(program, sizes, load_device("h200")).seconds)
        assert predicted == pytest.approx(row["seconds"], rel=0.15), row["case"]
