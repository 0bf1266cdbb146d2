"""RMSNorm and a matmul as a plan of two kernels: each row's factor, and a product times it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.sample import all_by_turns, draws
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulate
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.search.time.cost import cost
from tinygpu.term.expression import value
from tinygpu.term.operation import Problem, matmul, rmsnorm_matmul
from tinygpu.term.plan import Plan
from tinygpu.term.program import Do, Statement, changed
from tinygpu.term.schedule import Schedule

MACHINE, H100 = MACHINES["hopper_rmsnorm"], load_device("h100")
OWN = {"early": 1, "norm_warps": 4, "norm_chunks": 2}
OPERATIONS = {
    "nt": rmsnorm_matmul(),
    "nn": rmsnorm_matmul(layout="nn"),
    "f16 to f32": rmsnorm_matmul("f16", "f32"),
}


def schedule(point: str = "cluster", **changes: Any) -> Schedule:
    return Schedule.of(MACHINE, {**STARTS[point], **OWN, **changes})


def plan(name: str = "nt", point: str = "cluster", **changes: Any) -> Plan:
    built = schedule(point, **changes).term(MACHINE, OPERATIONS[name])
    assert isinstance(built, Plan)
    return built


def test_the_reference_is_a_norm_and_a_product() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 24)), rng.standard_normal((7, 24))
    found = rmsnorm_matmul("f32").reference({"a": a, "b": b}, {"eps": 0.25})["c"]
    normed = a / np.sqrt((a * a).mean(1, keepdims=True) + 0.25)
    assert np.allclose(found, normed @ b.T, rtol=1e-12)


@all_by_turns(
    ("name", OPERATIONS),
    ("point", ["ring", "cluster", "pingpong", "swapped"]),
    ("order", COMPLETIONS),
)
def test_plans_are_right(name: str, point: str, order: str) -> None:
    if name == "f16 to f32" and point in ("cluster", "pingpong"):
        changes: dict[str, Any] = {"store_n": 32}
    else:
        changes = {"tile_n": 64, "store_n": 64} if (name, point) == ("nn", "swapped") else {}
    if (name, point) == ("nn", "swapped"):
        changes |= {"tile_m": 64}
    sizes = {"m": draws(136, 200), "n": draws(136, 264), "k": draws(648, 1160)}
    problem = Problem.of(OPERATIONS[name], **sizes)
    broken = check_schedule(schedule(point, **changes), MACHINE, problem, H100)
    built = plan(name, point, **changes)
    assert not broken, broken
    assert verdict(built).legal
    assert computes(built)
    assert emulate(built, problem.sizes, arch="sm_90a", completions=(order,)).right


@pytest.mark.parametrize("seed", range(draws(2, 60)))
def test_drawn_plans_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = {"m": int(rng.integers(1, 300)), "n": 8 * int(rng.integers(1, 40)),
             "k": 8 * int(rng.integers(1, 200))}  # fmt: skip
    own: dict[str, Any] = {
        "norm_warps": int(rng.choice([1, 2, 4, 8])),
        "norm_chunks": int(rng.choice([1, 2, 4])),
    }
    assert emulate(plan(**own), sizes, arch="sm_90a", seed=seed).right


@pytest.mark.parametrize("lanes", [16, 8, 4, 2, 1])
def test_a_shuffle_across_other_lanes_is_found(lanes: int) -> None:
    def of(s: Statement) -> Statement:
        other = 16 if lanes == 1 else 1
        return replace(s, across=other) if isinstance(s, Do) and s.across == lanes else s

    norm, multiply = plan().steps
    roles = tuple(replace(role, body=changed(role.body, of)) for role in norm.program.roles)
    wrong = replace(plan(), steps=(replace(norm, program=replace(norm.program, roles=roles)),
                                   multiply))  # fmt: skip
    assert wrong != plan()
    assert verdict(wrong).legal
    assert not computes(wrong)


def test_a_plan_without_the_factor_is_found() -> None:
    built = plan()
    program = Schedule.of(MACHINES["hopper"], STARTS["cluster"]).program(
        MACHINES["hopper"], matmul("bf16", layout="nt")
    )
    step = built.steps[1]
    uses = tuple(use for use in step.uses if use.operand != "norm")
    wrong = replace(built, steps=(built.steps[0], replace(step, program=program, uses=uses)))
    assert not computes(wrong)


def test_time_adds_a_norm_to_a_product() -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    product = Schedule.of(MACHINES["hopper"], {**STARTS["cluster"], "early": 1})
    alone = product.program(MACHINES["hopper"], matmul("bf16", layout="nt"))
    both, one = (float(cost(t, sizes, H100).seconds) for t in (plan(), alone))
    reading = 4096 * 4096 * 2 / 3e12
    assert reading < both - one < 4 * reading


def test_what_is_none_is_refused() -> None:
    """Rows of a lie along k; another epilogue or sum of that name is another operation."""
    plain = rmsnorm_matmul()
    squares, acc = plain.reductions
    for other in (
        rmsnorm_matmul(layout="tn"),
        replace(plain, epilogue=plain.epilogue * 2.0),
        replace(plain, reductions=(replace(squares, expression=value("a")), acc)),
        replace(matmul("bf16", layout="nt"), name="rmsnorm_matmul"),
    ):
        with pytest.raises(OperationError, match="it does rmsnorm_matmul"):
            MACHINE.check(other)
    with pytest.raises(OperationError, match="it multiplies bf16 to bf16 or f32"):
        MACHINE.check(rmsnorm_matmul("f32"))


def test_the_interpreter_runs_it() -> None:
    assert not check(plan(), {"m": 130, "n": 72, "k": 520})
