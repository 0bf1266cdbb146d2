"""The examples: each is short, runs, and prints a term and its PTX."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from examples.first_machine import Axpb
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.meaning.interpret import check
from tinygpu.term.operation import elementwise
from tinygpu.term.schedule import Schedule

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST_LINES = {
    "first_machine": 45, "elementwise": 55, "rows": 25, "naive_matmul": 50, "transpose": 50,
    "rmsnorm": 65, "softmax": 55, "ring": 70, "cluster": 110,
    "reduce": 115,
}  # fmt: skip


@pytest.mark.parametrize("name", MOST_LINES)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= MOST_LINES[name]


def test_every_example_is_here() -> None:
    others = {"__init__", "llama_block"}  # a client of a bundle: tests/test_gpu_bundle.py
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == {*others, *MOST_LINES}, "an example has a line of MOST_LINES"


@pytest.mark.parametrize("name", MOST_LINES)
def test_runs_as_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run as a script, each prints the term and then its PTX."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.index("program ") < printed.index(".version")
    assert printed.rstrip().endswith("}")


def test_the_first_machine_is_right() -> None:
    """Its term and its PTX compute a*x + b at a ragged size."""
    schedule = Schedule.of(Axpb(), {"vector": 4, "threads": 128})
    program = schedule.program(Axpb(), elementwise("a*x + b"))
    assert check(program, {"i": 1500}) == ()
    assert interpret(program, {"i": 1500}, arch="sm_90a", completions=("late",)).right
