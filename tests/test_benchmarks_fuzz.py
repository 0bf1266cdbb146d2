"""The fuzz of all machines: what it draws, what it writes, how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fuzz
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.isa.memory import DTYPES
from tinygpu.term.operation import LAYOUTS, matmul


@given(st.sampled_from(fuzz.MACHINES), st.integers(0, 400), st.integers(0, 2**32))
def test_random_problems_suit_their_machine(name: str, number: int, seed: int) -> None:
    problem = fuzz.problem_of(name, number, np.random.default_rng(seed))
    assert problem.sizes["k"] <= (64 if number % 5 == 3 else 600)
    for operand in problem.operation.operands:
        row = problem.sizes[operand.axes[-1]] * DTYPES[operand.dtype].bytes
        assert name == "simt" or row % (16 if name == "hopper" else 4) == 0


@pytest.mark.parametrize("name", fuzz.MACHINES)
def test_all_types_layouts_and_epilogues_come(name: str) -> None:
    types = fuzz.TYPES[name]
    words = [fuzz.words_of(name, number) for number in range(len(types) * 48)]
    every = [str(w) for pair in types for w in fuzz.accepted(name, *pair)]
    assert {str(w) for w in words} == set(every)
    assert len(every) >= len(types) * (len(LAYOUTS) if name != "hopper" else 12)
    for w in words:
        matmul(**w)


def test_a_draw_is_decided_by_its_seed_and_proved() -> None:
    case = fuzz.drawn("ampere", 5, 4, 1)
    assert case == fuzz.drawn("ampere", 5, 4, 1)
    assert case["sizes"] != fuzz.drawn("ampere", 5, 4, 2)["sizes"]
    assert len(case["schedules"]) == 4
    assert case["unproved"] == []


def test_runs_go_on_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was right is not run again; what was wrong is, and makes the run fail."""
    path, asked, bad = tmp_path / "cases.jsonl", [], {1}
    fields = ("machine", "number", "words", "sizes", "unproved")
    cases = [
        {"machine": "simt", "number": n, "words": {}, "sizes": {}, "schedules": [{}] * 3,
         "unproved": []} for n in range(3)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))

    def run(case: Any) -> Any:
        asked.append(case["number"])
        wrong = [[{}, "it is wrong"]] if case["number"] in bad else []
        more = {"schedules": 3, "wrong": wrong, "worst_error": 0.5, "emitter": EMITTER_VERSION}
        return {**{name: case[name] for name in fields}, **more}

    monkeypatch.setattr(fuzz, "run", run)
    monkeypatch.setattr(fuzz, "each_done", lambda do, each, *_: [fuzz.run(*one) for one in each])
    words = ["--cases", str(path), "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        fuzz.main(words)
    tree = json.loads((tmp_path / "fuzz.json").read_text())
    assert (tree["summary"]["schedules"], tree["summary"]["wrong"]) == (9, 1)
    bad.clear()
    fuzz.main(words)
    assert asked == [0, 1, 2, 1]
    tree = json.loads((tmp_path / "fuzz.json").read_text())
    assert (tree["summary"]["schedules"], tree["summary"]["wrong"]) == (9, 0)
    assert [row["number"] for row in tree["rows"]] == [0, 1, 2]
