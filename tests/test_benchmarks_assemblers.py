"""What ``benchmarks/assemblers.py`` times are the schedules that a user's command found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import assemblers
from tinygpu.errors import AssemblyError
from tinygpu.machines import MACHINES


def test_each_schedule_is_one_of_its_machine_and_comes_once() -> None:
    tree = json.loads((assemblers.RESULTS / "drawn_matmul.json").read_text(encoding="utf-8"))
    jobs = assemblers.jobs_of(tree["rows"])
    assert len(tree["rows"]) <= len(jobs) <= 2 * len(tree["rows"])
    assert len({(str(p), str(s)) for p, s in jobs}) == len(jobs)
    for problem, schedule in jobs[::8]:
        schedule.program(MACHINES[schedule.machine], problem.operation)


def test_one_assembler_is_compared_with_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(assemblers, "every_ptxas", lambda: ((tmp_path / "ptxas", "13.0.88"),))
    with pytest.raises(AssemblyError, match=r"13\.0\.88 alone"):
        assemblers.main(["--out", str(tmp_path)])
