"""Gates: silu(a gate) times a b by one kernel with two sums, of a matmul and of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.sample import by_turns, draws
from tests.test_groups import POINTS as OF_GROUPS
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
from tinygpu.term.operation import (
    ACTIVATIONS,
    Operation,
    Problem,
    grouped_matmul,
    is_matmul,
    matmul,
)
from tinygpu.term.program import Access, Do, Program, Statement, changed
from tinygpu.term.schedule import Schedule, from_json, to_json
from tinygpu.term.text import parse, text_of

HOPPER, H100 = MACHINES["hopper"], load_device("h100")
_NARROW = {"tile_n": 128, "store_n": 64}
POINTS: Mapping[str, Mapping[str, Any]] = {
    "plain": STARTS["plain"],
    "tma store": {**STARTS["tma store"], **_NARROW},
    "cluster": {**STARTS["cluster"], **_NARROW},
    "in turn": {**STARTS["pingpong"], **_NARROW},
    "swapped": STARTS["swapped"],
}
SIZES = {"m": 200, "n": 264, "k": 136}


def term(point: str, operation: Operation) -> Program:
    return Schedule.of(HOPPER, POINTS[point]).program(HOPPER, operation)


@pytest.mark.parametrize("gate", ACTIVATIONS)
def test_the_reference_is_an_activation_times_a_product(gate: str) -> None:
    rng = np.random.default_rng(0)
    a, b, w = (rng.standard_normal(shape) for shape in ((5, 7), (7, 3), (7, 3)))
    found = matmul("f32", gate=gate).reference({"a": a, "b": b, "gate": w})["c"]
    x = a @ w
    wanted = {
        "relu": np.maximum(x, 0),
        "silu": x / (1 + np.exp(-x)),
        "gelu": x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    }[gate]
    assert np.allclose(found, wanted * (a @ b), rtol=1e-6, atol=1e-9)


def test_it_counts_both_products() -> None:
    gated, plain = (matmul("bf16", gate=gate) for gate in ("silu", ""))
    assert gated.flops(SIZES) == 2 * plain.flops(SIZES)
    assert is_matmul(gated)
    assert is_matmul(grouped_matmul(gate="gelu"))
    mixed = replace(gated, reductions=gated.reductions[::-1])
    assert not is_matmul(mixed)


@pytest.mark.parametrize("point", POINTS)
def test_a_gate_is_proved_for_every_size(point: str) -> None:
    program = term(point, matmul("bf16", layout="nt", gate="silu"))
    assert verdict(program).legal
    assert str(computes(program)).startswith("computes its operation: proved for every m, n, k")
    assert not check(program, {**SIZES, "m": draws(136, 200), "n": draws(136, 264)})


@pytest.mark.parametrize(
    ("point", "completion"), by_turns(["direct", "by tma", "in turn", "swapped"], COMPLETIONS)
)
def test_groups_have_gates(point: str, completion: str) -> None:
    values = {**OF_GROUPS[point]}
    if values["tile_n"] == 256:
        values |= {"tile_n": 128, "store_n": min(values["store_n"], 128)}
    sizes = {"g": 3, "m": 300, "n": 264, "k": 136}
    operation = grouped_matmul(gate="silu")
    problem = Problem.of(operation, **sizes, ends=(129, 129, 300))
    schedule = Schedule.of(HOPPER, values)
    assert not check_schedule(schedule, HOPPER, problem, H100)
    program = schedule.program(HOPPER, operation)
    assert computes(program)
    found = emulate(program, problem.sizes, arch="sm_90a", completions=(completion,))
    assert found.error <= 1
    assert not found.findings
    assert from_json(to_json(schedule, problem), MACHINES)[1] == problem
    assert parse(text_of(program)) == program


def test_gates_of_e4m3_are_scaled() -> None:
    operation = grouped_matmul("e4m3", scales=True, gate="silu")
    assert [o.name for o in operation.inputs] == ["a", "b", "gate", "scale_a", "scale_b",
                                                  "scale_gate"]  # fmt: skip
    sizes = {"g": 3, "m": 300, "n": 144, "k": 160}
    orders = COMPLETIONS[: draws(1, 3)]
    for point in ("cluster", "swapped"):  # swapped, scale_a is read where its group begins
        schedule = Schedule.of(HOPPER, {**POINTS[point], "tile_k": 128})
        assert not check_schedule(schedule, HOPPER, Problem.of(operation, **sizes), H100)
        program = schedule.program(HOPPER, operation)
        assert verdict(program).legal
        assert computes(program, sizes)
        assert emulate(program, sizes, arch="sm_90a", completions=orders).right


def _products(program: Program, of: Callable[[Do], Do]) -> Program:
    """Edit each product."""

    def each(s: Statement) -> Statement:
        return of(s) if isinstance(s, Do) and s.instruction.name == "wgmma" else s

    roles = tuple(replace(role, body=changed(role.body, each)) for role in program.roles)
    return replace(program, roles=roles)


def test_products_that_change_places_are_found() -> None:
    """Each product into the other's sums: legal, and another operation."""
    program = term("tma store", matmul("bf16", layout="nt", gate="silu"))
    found = list[Do]()

    def noted(product: Do) -> Do:
        found.append(product)
        return product

    _products(program, noted)
    first, second = found
    sums = {first.write: second.write, second.write: first.write}

    def swapped(s: Do) -> Do:
        reads = (sums.get(r, r) if isinstance(r, Access) else r for r in s.reads)
        return replace(s, write=sums[s.write], reads=tuple(reads))

    wrong = _products(program, swapped)
    assert wrong != program
    assert verdict(wrong).legal
    assert not computes(wrong)


def test_both_sums_count_in_registers_and_in_time() -> None:
    problem = {gate: Problem.of(matmul("bf16", layout="nt", gate=gate), m=4096, n=4096, k=4096)
               for gate in ("", "silu")}  # fmt: skip
    wide = Schedule.of(HOPPER, STARTS["persistent"])  # 128 registers of sums, of a gate 256
    assert not check_schedule(wide, HOPPER, problem[""], H100)
    assert "accumulators" in {v.law for v in check_schedule(wide, HOPPER, problem["silu"], H100)}
    narrow = Schedule.of(HOPPER, POINTS["cluster"])
    assert not check_schedule(narrow, HOPPER, problem["silu"], H100)
    plain, gated = (
        float(cost(narrow.program(HOPPER, p.operation), p.sizes, H100).seconds)
        for p in problem.values()
    )
    assert 1.6 < gated / plain < 2.2


def test_what_has_no_gate_says_so() -> None:
    gated = matmul("bf16", layout="nt", gate="silu")
    for name in ("ampere", "simt", "blackwell", "hopper_split"):
        with pytest.raises(OperationError, match=f"machine {name}: matmul with a gate"):
            MACHINES[name].check(gated)
    with pytest.raises(OperationError, match="gate swish; known are"):
        matmul("bf16", gate="swish")
    for more in ({"bias": True}, {"scaled": True}, {"activation": "relu"}):
        with pytest.raises(OperationError, match="give it alone"):
            matmul("bf16", gate="silu", **more)
    shared = Schedule.of(HOPPER, STARTS["shared k"])
    found = check_schedule(shared, HOPPER, Problem.of(gated, m=64, n=64, k=4096), H100)
    assert "gate" in {v.law for v in found}
