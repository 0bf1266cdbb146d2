"""The sanitizer's runs: what its output means, and controls that really are faulty."""

from __future__ import annotations

import pytest

from benchmarks.hopper_bottleneck import SHAPES, winner
from benchmarks.hopper_sanitizer import CONTROLS, TOOLS, controls, said
from tinygpu.events import verdict


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
