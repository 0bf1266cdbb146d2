"""Attention at head dimensions of more than 128: a thread holds up to 128 sums of its rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import interpret
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.program import Do, For, Program, Statement, walk
from tinygpu.term.schedule import Schedule

MACHINE, DEVICE = MACHINES["attention"], load_device("h200")
POINTS: dict[int, dict[str, Value]] = {
    192: {"depth": 192, "tile_n": 112, "stages_k": 1, "stages_v": 1},
    256: {"depth": 256, "tile_n": 80, "stages_k": 1, "stages_v": 1},
}


@cache
def term(depth: int, point: str = "fa3 without turns", mask: str = "causal") -> Program:
    chosen = Chosen({**STARTS[point], **POINTS[depth], "consumers": 1, "turns": "none"})
    return Attention().program(attention(mask=mask), chosen)


def sizes(d: int, e: int, m: int = 66, n: int = 90) -> dict[str, int]:
    return {"l": 1, "h": 1, "g": 1, "m": m, "n": n, "d": d, "e": e}


@pytest.mark.parametrize("depth", POINTS)
@pytest.mark.parametrize("consumers", [1, 2])
def test_it_keeps_the_laws(depth: int, consumers: int) -> None:
    """In FlashAttention-2's and 3's order, by turns and without."""
    problem = Problem.of(attention(mask="causal", lse=True), **sizes(depth, depth, 2048, 2048))
    for point in ("fa2", "fa3 without turns", "fa3", "tma store"):
        values = {**STARTS[point], **POINTS[depth], "consumers": consumers}
        values["turns"] = values["turns"] if consumers == 2 else "none"
        if point == "tma store" and depth == 256 and consumers == 2:
            values["tile_n"] = 64  # two chunks of the output lie beside the rings
        assert not check_schedule(Schedule.of(MACHINE, values), MACHINE, problem, DEVICE), point


@pytest.mark.parametrize("depth", POINTS)
def test_what_a_thread_cannot_hold_is_refused(depth: int) -> None:
    """Three consumers have 160 registers a thread, two 240."""
    problem = Problem.of(attention(), **sizes(depth, depth))
    for consumers, tile_n in ((3, 64), (2, 192)):
        values = {**STARTS["fa2"], **POINTS[depth], "consumers": consumers, "tile_n": tile_n}
        found = check_schedule(Schedule.of(MACHINE, values), MACHINE, problem, DEVICE)
        assert "statistics" in [v.law for v in found], found


def test_the_widest_is_256() -> None:
    for axis in "de":
        with pytest.raises(OperationError, match=f"{axis} is 264; .* and at most 256; pad"):
            MACHINE.check_sizes({**sizes(256, 256), axis: 264})
    MACHINE.check_sizes(sizes(256, 256))


@pytest.mark.parametrize(("depth", "d", "e"), [(192, 192, 136), (256, 200, 256)])
def test_the_interpreter_gives_what_numpy_gives(depth: int, d: int, e: int) -> None:
    """The dimensions of scores and of values may differ, and fill no block."""
    random, here = np.random.default_rng(0), sizes(d, e)
    operation = attention(mask="causal")
    arrays = {
        o.name: DTYPES["bf16"].round(random.standard_normal(operation.shapes(here)[o.name]))
        for o in operation.inputs
    }
    run = interpret(term(depth), here, arrays, scalars={"scale": d**-0.5})
    assert run.findings == ()
    q, k, v = (x.astype(float).reshape(-1, x.shape[-1]) for x in arrays.values())
    s = q @ k.T * d**-0.5
    s[np.arange(90) > np.arange(66)[:, None] + 24] = -np.inf
    p = np.exp(s - s.max(1, keepdims=True))
    wanted = p @ v / p.sum(1, keepdims=True)
    assert np.abs(run.outputs["o"].reshape(66, e) - wanted).max() < 0.03


@pytest.mark.parametrize("depth", POINTS)
def test_the_term_is_legal_and_computes_its_operation(depth: int) -> None:
    assert verdict(term(depth)).outcome == "legal"
    found = computes(term(depth), sizes(depth - 8, depth - 16))
    assert found, str(found)


@pytest.mark.parametrize("depth", POINTS)
def test_its_code_is_right(depth: int) -> None:
    found = emulated(term(depth), sizes(depth, depth - 8), arch="sm_90a", completions=("late",))
    assert found.findings == ()
    assert found.error < 0.6


@pytest.mark.parametrize("depth", POINTS)
def test_a_slab_that_is_left_out_is_found(depth: int) -> None:
    """Of the scores, of 64 dimensions each."""
    from tests.hopper_terms import rewritten

    def of(s: Statement) -> Statement:
        if isinstance(s, For) and s.var == "slab" and s.trips == depth // 64:
            return replace(s, trips=depth // 64 - 1)
        return s

    program = rewritten(term(depth), of)
    assert program != term(depth)
    assert not computes(program, sizes(depth, 64))


def test_sums_of_256_columns_are_one_product() -> None:
    """wgmma's widest; ptxas gives all of them registers."""
    wide = [s for s, _ in walk(term(256)) if isinstance(s, Do) and s.write.buffer.name == "acc"
            and s.instruction.unit == "tensor"]  # fmt: skip
    assert wide
    text = emit(term(256), "sm_90a")
    assert "m64n256k16" in text
    cubin = assemble(text, "sm_90a")
    assert not cubin.spills
    assert "C75" not in cubin.messages
