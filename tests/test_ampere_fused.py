"""What the machine ampere fuses after a product: a bias and an activation, in all four walks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as choices
from typing import Any

import numpy as np
import pytest

from benchmarks.interpreter_agreement import Data, run
from tests.hopper_terms import H200, LARGE, broken
from tests.ptx_runs import unchecked as emit
from tests.sample import all_by_turns, by_turns
from tinygpu.codegen.run.assemble import assemble
from tinygpu.errors import OperationError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.meaning.interpret import check
from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Do, For, Program
from tinygpu.term.schedule import Schedule

SMALL: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2}
FUSED: dict[str, dict[str, Any]] = {
    "bias": {"bias": True},
    "relu": {"bias": True, "activation": "relu"},
    "gelu": {"activation": "gelu"},
    "silu": {"bias": True, "activation": "silu"},
}
POINTS: dict[str, dict[str, Any]] = {
    "pairs": {**STARTS["plain"], **SMALL},
    "odd": {**STARTS["plain"], **SMALL, "vector_c": 1},
    "lines": {**STARTS["lines"], **SMALL, "vector_c": 4},
}


def operation_of(fused: str, dtype: str = "bf16", layout: str = "nt") -> Operation:
    return matmul(dtype, layout=layout, **FUSED[fused])


def right(operation: Operation, point: dict[str, Any], text: str = "", n: int = 104) -> bool:
    """Say whether the code computes the operation and nothing is found against it."""
    problem = Problem.of(operation, m=72, n=n, k=200)
    schedule = Schedule.of(Ampere(), point)
    data = Data.of((problem, schedule), 1)
    text = text or emit(data.program, "sm_80")
    output, report = run(text, data.program, data.inputs, problem.sizes)
    return report.findings == () and data.over(output.astype(np.float64), data.wanted, 200) <= 1


@all_by_turns(
    ("fused", FUSED),
    ("point", POINTS),
)
def test_it_is_legal_and_means_the_operation(fused: str, point: str) -> None:
    operation = operation_of(fused)
    program = Ampere().program(operation, Chosen(POINTS[point]))
    problem = Problem.of(operation, m=72, n=88, k=176)
    schedule = Schedule.of(Ampere(), POINTS[point])
    assert check_schedule(schedule, Ampere(), problem, H200) == ()
    assert verdict(program).legal
    n = 87 if point == "odd" else 88
    assert check(program, {"m": 72, "n": n, "k": 176}, seeds=(0,)) == ()


@pytest.mark.parametrize(
    ("point", "fused", "dtype"),
    [(*of, dtype) for of, dtype in by_turns(choices(POINTS, FUSED), ["bf16", "f16", "tf32"])],
)
def test_its_code_computes_it(fused: str, dtype: str, point: str) -> None:
    operation = operation_of(fused, dtype, "nn" if point == "odd" else "nt")
    n = 104 if point != "odd" or dtype == "tf32" else 96
    assert right(operation, POINTS[point], n=n)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32"])
def test_an_odd_bias_is_loaded_one_by_one_and_ends_with_its_array(dtype: str) -> None:
    operation = operation_of("bias", dtype)
    text = emit(Ampere().program(operation, Chosen(POINTS["odd"])), "sm_80")
    loads = [line for line in text.splitlines() if " ld.global" in line and "//" not in line]
    assert loads
    assert all(line.strip().startswith("@%p") and ".v2" not in line for line in loads)
    lines = text.splitlines()
    for load in loads:  # what is outside is 0, not what the register held
        register = load.partition(".")[2].split()[1].rstrip(",")
        before = lines[: lines.index(load)]
        assert any("mov." in line and f" {register}, 0" in line for line in before)
    assert right(operation, POINTS["odd"], n=103)
    wild = "\n".join(
        line.partition(" ")[2] if line in loads else line for line in text.splitlines()
    )
    assert not right(operation, POINTS["odd"], wild, n=103)


@pytest.mark.parametrize(
    ("old", "new"), [("add.rn.f32", "sub.rn.f32"), ("max.f32", "min.f32"), (", 0;", ", 1;")]
)
def test_code_that_is_made_wrong_is_found(old: str, new: str) -> None:
    operation = operation_of("relu", "f16")
    text = emit(Ampere().program(operation, Chosen(POINTS["pairs"])), "sm_80")
    assert old in text
    assert right(operation, POINTS["pairs"], text)
    assert not right(operation, POINTS["pairs"], text.replace(old, new))


def test_a_statement_that_is_dropped_is_missed() -> None:
    """Without the bias's load, registers are read that nothing wrote."""
    program = Ampere().program(operation_of("bias"), Chosen(POINTS["pairs"]))
    (role,) = program.roles
    *before, block = role.body
    assert isinstance(block, For)
    load, *rest = block.body
    assert isinstance(load, Do)
    assert load.instruction.name == "ld.global"
    assert check(without(program, (*before, replace(block, body=tuple(rest)))), SIZES) != ()
    assert check(without(program, role.body), SIZES) == ()


SIZES = {"m": 40, "n": 40, "k": 64}


def without(program: Program, body: tuple[Any, ...]) -> Program:
    return replace(program, roles=(replace(program.roles[0], body=body),))


def test_large_tiles_assemble_without_spills_and_take_longer() -> None:
    for name, fused in (("lines", "gelu"), ("wide", "silu")):
        plain, whole = (
            Ampere().program(operation, Chosen(STARTS[name]))
            for operation in (matmul("bf16", layout="nt"), operation_of(fused))
        )
        assert not assemble(emit(whole, "sm_80"), "sm_80").spills
        before, after = (cost(p, LARGE, H200).seconds for p in (plain, whole))
        assert before < after < 1.1 * before


def test_a_space_is_its_legal_schedules() -> None:
    """Parts of k do not meet after what is fused; c's types and edges are as ever."""
    fixed: Any = {
        **STARTS["lines"], "tile_n": (32, 256), "warps_n": (1, 4), "tile_k": 32, "stages": (2, 4),
        "vector_c": (1, 2, 8), "epilogue": ("direct", "smem"), "split_k": (1, 4),
        "combine": ("st", "red"), "edges": ("guard", "exact"),
    }  # fmt: skip
    operation = matmul("bf16", "f32", "nt", bias=True, activation="relu")
    problem = Problem.of(operation, **LARGE)
    space = Space(Ampere(), problem, H200, fixed=fixed)
    legal = set()
    for values in choices(*space.values.values()):
        chosen = dict(zip(space.values, values, strict=True))
        if all(r.holds for r in Ampere().requires(operation, Chosen(chosen))) and not broken(
            Ampere().program(operation, Chosen(chosen)), problem.sizes
        ):
            legal.add(Schedule("ampere", tuple(chosen.items())))
    assert 0 < len(legal) < space.raw
    assert {schedule["combine"] for schedule in legal} == {"st"}
    assert set(space) == legal


def test_parts_of_k_and_what_is_fused_exclude_one_another() -> None:
    """The first reason says so, before a law says that c is stored several times."""
    operation = matmul("bf16", "f32", "nt", bias=True)
    schedule = Schedule.of(Ampere(), STARTS["parts of k"])
    (violation,) = check_schedule(schedule, Ampere(), Problem.of(operation, **LARGE), H200)
    assert violation.law == "split_plain"


@pytest.mark.parametrize("more", [{"batched": True}, {"scaled": True}])
def test_what_the_machine_does_not_fuse_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(OperationError, match="choose a machine that fuses more"):
        Ampere().check(matmul("bf16", layout="nt", **more))
    Ampere().check(operation_of("silu"))
