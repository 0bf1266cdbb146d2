from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.registers import Case, confusion, draw, program_of, truth
from tinygpu.device import load_device
from tinygpu.machine import Chosen
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import matmul
from tinygpu.registers import (
    predicted_spill,
    quantities,
    register_estimate,
    register_limit,
    spill_estimate,
)

H200 = load_device("h200")
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "registers.json"
CASES = draw(11, 120, H200)


def columns(cases: list[Case]) -> list[list[Case]]:
    """The cases of one structure each, which one array term can hold."""
    structural = [n for n, c in Simt.decisions().items() if c.structural]
    groups: dict[tuple[object, ...], list[Case]] = {}
    for dtype, values in cases:
        groups.setdefault((dtype, *(values[n] for n in structural)), []).append((dtype, values))
    return list(groups.values())


def test_a_space_at_once_is_each_of_it() -> None:
    """The estimate of an array term is the array of the estimates."""
    joined = 0
    for group in columns(CASES):
        joined += len(group) > 1
        decisions = {
            n: group[0][1][n] if c.structural else np.array([v[n] for _, v in group])
            for n, c in Simt.decisions().items()
        }
        operation = program_of(group[0]).operation
        program = Simt().program(operation, Chosen(decisions))
        each = [program_of(case) for case in group]
        for function in (register_estimate, lambda p: spill_estimate(p, H200)):
            many = np.broadcast_to(function(program), len(group))
            assert many.tolist() == pytest.approx([float(function(p)) for p in each])
        limits = np.broadcast_to(register_limit(program, H200), len(group))
        assert limits.tolist() == [register_limit(p, H200) for p in each]
    assert joined > 20


@given(st.sampled_from(CASES), st.integers(1, 16))
def test_limit(case: Case, ctas: int) -> None:
    """The limit is the largest multiple of 8, at most 255, of which all threads' fit into an SM."""
    program = program_of((case[0], case[1] | {"ctas_per_sm": ctas}))
    limit = int(register_limit(program, H200))
    threads = program.threads * ctas
    assert limit * threads <= H200.registers_per_sm
    assert limit == 255 or (limit % 8 == 0 and (limit + 8) * threads > H200.registers_per_sm)


@settings(max_examples=40)
@given(st.sampled_from(CASES))
def test_spills_are_what_exceeds_the_limit(case: Case) -> None:
    """A spill is predicted exactly if the estimate is over the limit, by the spill estimate."""
    program = program_of(case)
    over = float(register_estimate(program)) - float(register_limit(program, H200))
    assert bool(predicted_spill(program, H200)) == (over > 0)
    assert float(spill_estimate(program, H200)) == pytest.approx(max(over, 0))


def ladder(name: str, **changes: int | str) -> Any:
    return Simt().program(matmul(), Chosen({**LADDER[name], **changes}))


def test_what_is_kept() -> None:
    """Sums are kept; a tile that waits for the sums too, a fragment or a tile passed on is not."""
    assert quantities(ladder("vectorised"))["kept"] == 64
    assert quantities(ladder("warp-tiled"))["kept"] == 64
    ahead = quantities(ladder("multi-stage"))
    assert (ahead["kept"], ahead["ahead"], ahead["waiting"]) == (64 + 8 + 8, 1, 0)
    assert quantities(ladder("tuned"))["waiting"] == 16
    assert quantities(ladder("vectorised", accumulator="f64"))["kept"] == 128


def test_operands_of_the_multiply() -> None:
    """The narrow operand is the smaller fragment; the body has those of every unrolled step."""
    q = quantities(ladder("vectorised", thread_m=4, tile_m=64))
    assert (q["narrow"], q["wide"]) == (4, 8)
    assert sum(q[n] for n in q if n.startswith("body")) == 8 * 12


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_does_not_spill(name: str) -> None:
    """The known ladder of kernels runs without spills, and is predicted to."""
    program = ladder(name)
    assert not predicted_spill(program, H200)
    assert float(register_estimate(program)) >= 16


def test_confusion_counts() -> None:
    """Precision is of what was predicted, recall of what there was."""
    table = confusion([(True, True)] * 3 + [(True, False)] + [(False, True)] * 2 + [(False, False)])
    assert [table[k] for k in list(table)[:4]] == [3, 1, 2, 1]
    assert (table["precision"], table["recall"]) == (0.75, 0.6)


def test_small_sample_against_ptxas() -> None:
    """On a few schedules that the fit has not seen, most spills are foreseen."""
    right = 0
    for case in CASES[:30]:
        found = truth(case)
        assert not isinstance(found, str), found
        right += bool(predicted_spill(program_of(case), H200)) == (found[1] > 0)
    assert right >= 24


def test_recorded_benchmark() -> None:
    """The recorded table counts what its rows say, on a sample of 600 or more."""
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = recorded["rows"]
    assert len(rows) == recorded["sample"]["count"] >= 600
    pairs = [(r["predicted"], r["spilled_bytes"] > 0) for r in rows]
    assert confusion(pairs) == recorded["all"]
    assert recorded["all"]["precision"] > 0.85
    assert recorded["all"]["recall"] > 0.85
