"""An instruction that the package does not have passes all four walks, without an edit to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.reduce import REDUCE, SplitK
from tinygpu import (
    Kernel,
    Problem,
    Schedule,
    Space,
    check,
    computes,
    emit,
    load_device,
    matmul,
    verdict,
)
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.errors import MachineError
from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.legality.laws import check_schedule
from tinygpu.search.time.cost import cost
from tinygpu.term.program import Program

ROOT = Path(__file__).parent.parent
H200 = load_device("h200")
OPERATION = matmul("bf16", "f32", layout="nt")
LARGE = Problem.of(OPERATION, m=64, n=4096, k=16384)
SIZES = {"m": 72, "n": 136, "k": 328}
VALUES = {"tile_n": 64, "stages": 2, "parts": 2, "store_n": 32}
SCHEDULE = Schedule.of(SplitK(), VALUES)
TMA_STORE = INSTRUCTIONS["cp.async.bulk.tensor.global"]


def program(**values: int) -> Program:
    return Schedule.of(SplitK(), {**VALUES, **values}).program(SplitK(), OPERATION)


def test_the_package_does_not_know_it() -> None:
    """But for the emulator, which takes anybody's PTX."""
    assert REDUCE.name not in INSTRUCTIONS
    for folder in ("tinygpu", "search", "codegen"):
        for path in (ROOT / folder).rglob("*.py"):
            if "emulator" not in path.parts:
                assert REDUCE.name not in path.read_text(encoding="utf-8"), path


def test_its_space_is_legal_and_proved() -> None:
    """As tables, and one by one."""
    space = Space(SplitK(), LARGE, H200)
    drawn = space.sample(np.random.default_rng(0), 12)
    assert len(drawn) == 12
    for schedule in drawn:
        assert check_schedule(schedule, SplitK(), LARGE, H200) == ()
        assert verdict(schedule.program(SplitK(), OPERATION)).legal


@pytest.mark.parametrize("parts", [1, 4])
def test_it_computes_its_operation(parts: int) -> None:
    term = program(parts=parts)
    assert term.zeroed
    assert check(term, SIZES) == ()
    assert computes(term).finding is None


def test_its_code_assembles_and_is_right() -> None:
    """By ptxas, and in the emulator, which does what PTX says of it."""
    term = program()
    assert assemble(emit(term, "sm_90a"), "sm_90a").spills == 0
    assert interpret(term, SIZES, arch="sm_90a").right


def test_its_time_is_predicted() -> None:
    """Where k is deep and tiles are few, parts are faster; what they add takes time too."""
    seconds = {
        n: float(cost(program(parts=n, tile_n=128, stages=4), LARGE.sizes, H200).seconds)
        for n in (1, 4)
    }
    assert seconds[4] < seconds[1]


def test_that_it_adds_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stored instead would store each element several times."""
    changed = replace(REDUCE, atomic=False)
    monkeypatch.setattr("examples.reduce.REDUCE", changed)
    monkeypatch.setattr(SplitK, "instructions", (*SplitK.instructions[:-1], changed))
    assert "store_once" in {v.law for v in check_schedule(SCHEDULE, SplitK(), LARGE, H200)}


def test_its_completion_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What groups of bulk copies observe goes through the async proxy, and needs the fence."""
    monkeypatch.setattr(Kernel, "fence", lambda *_: None)
    term = program()
    assert not verdict(term).legal
    assert check(term, SIZES)


def test_a_law_of_its_own_is_asked() -> None:
    problem = Problem.of(matmul("bf16", layout="nt"), m=64, n=4096, k=16384)
    found = check_schedule(SCHEDULE, SplitK(), problem, H200)
    assert [v.law for v in found] == ["instruction"]
    assert "parts of k are added in bf16" in found[0].message


def test_a_machine_has_to_list_it() -> None:
    class Forgetful(SplitK):
        instructions = SplitK.instructions[:-1]

    with pytest.raises(MachineError, match="bulk_group"):
        check_schedule(Schedule.of(Forgetful(), VALUES), Forgetful(), LARGE, H200)
