"""Attention's second output, the log-sum-exp: its meaning, its term, its code and its launch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.fake_gpu import Array, Gpu
from tests.hopper_terms import rewritten
from tests.sample import all_by_turns
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.codegen.run.launch import Kernel
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, OperationError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention, RowStatistics
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import interpret
from tinygpu.meaning.tolerance import error_ratio, narrowing, ratio_of
from tinygpu.term.expression import apply, parse, value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operand, Operation, Problem, Reduction, attention, matmul
from tinygpu.term.program import Do, Program
from tinygpu.term.schedule import Schedule, from_json, to_json

MASKS: dict[str, Callable[[int, int], bool]] = {
    "none": lambda i, j: True,
    "causal": lambda i, j: j <= i,
    "window:3:1": lambda i, j: i - 3 <= j <= i + 1,
}
DEVICE = load_device("h200")
SMALL = {"depth": 64, "tile_n": 64, "consumers": 1}
SIZES = {"l": 1, "h": 1, "g": 2, "m": 70, "n": 66, "d": 16, "e": 8}
RUN = {"l": 1, "h": 1, "g": 1, "m": 100, "n": 70, "d": 64, "e": 64}
"""Rows without keys under a causal mask; the last block of keys is cut."""


@cache
def term(point: str = "fa3 without turns", mask: str = "causal", dtype: str = "bf16") -> Program:
    chosen = Chosen({**STARTS[point], **SMALL, "turns": "none"})
    return Attention().program(attention(dtype, mask=mask, lse=True), chosen)


def drawn(sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    operation, random = attention(), np.random.default_rng(seed)
    shapes = operation.shapes(sizes)
    return {
        o.name: DTYPES["bf16"].round(random.standard_normal(shapes[o.name])).astype(np.float64)
        for o in operation.inputs
    }


def by_rows(arrays: dict[str, Any], mask: str, scale: float) -> Any:
    """Log of the sum of exp, row by row, of the keys that are seen."""
    q, k = arrays["q"], arrays["k"]
    m, n = q.shape[3], k.shape[2]
    found = np.full(q.shape[:4], -np.inf)
    for place in np.ndindex(*q.shape[:4]):
        keys = [j for j in range(n) if MASKS[mask](place[3] + n - m, j)]
        if keys:
            scores = k[place[0], place[1], keys] @ q[place] * scale
            found[place] = scores.max() + math.log(np.exp(scores - scores.max()).sum())
    return found


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("m", "n"), [(5, 9), (9, 5), (6, 6), (1, 1)])
def test_it_is_the_log_of_the_sum_of_exponentials(mask: str, m: int, n: int) -> None:
    """-inf where no key is seen; errors are relative to a number that is at least it."""
    arrays = drawn({"l": 2, "h": 2, "g": 2, "m": m, "n": n, "d": 8, "e": 4})
    operation = attention(mask=mask, lse=True)
    assert [str(o) for o in operation.outputs] == ["o[l,h,g,m,e] bf16", "lse[l,h,g,m] f32"]
    found = operation.reference(arrays, {"scale": 0.7})
    wanted = by_rows(arrays, mask, 0.7)
    assert np.allclose(found["lse"], wanted, atol=1e-12)
    seen = np.isfinite(wanted)
    assert (found["scale of lse"][seen] >= np.abs(wanted[seen])).all()
    assert np.array_equal(found["o"], attention(mask=mask).reference(arrays, {"scale": 0.7})["o"])


def test_minus_infinity_is_right_where_it_is_meant_alone() -> None:
    want = np.array([-np.inf, -np.inf, -np.inf, -np.inf, 1.0, 1.0])
    got = np.array([-np.inf, 0.0, np.inf, np.nan, -np.inf, 1.0])
    ratio = error_ratio(got, want, np.ones(6), depth=1, roundoff=2.0**-24, dtype="f32")
    assert ratio.tolist() == [0.0, np.inf, np.inf, np.inf, np.inf, 0.0]


@all_by_turns(
    ("point", ["fa2", "fa3 without turns", "tma store"]),
    ("mask", ["none", "causal"]),
)
def test_the_term_is_legal_and_computes_both(point: str, mask: str) -> None:
    """The ring has a logarithm: log-sum-exp is exact there, as the maximum cancels in it."""
    program = term(point, mask)
    assert verdict(program).outcome == "legal"
    found = computes(program, SIZES)
    assert found, str(found)
    assert found.exponential is not None
    assert found.exponential > 0.99


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_interpreter_gives_what_numpy_gives(mask: str, dtype: str) -> None:
    arrays = drawn(RUN)
    run = interpret(term("fa2", mask, dtype), RUN, arrays, scalars={"scale": 0.25})
    assert run.findings == ()
    wanted = by_rows(arrays, mask, 0.25)
    assert np.array_equal(np.isinf(run.outputs["lse"]), np.isinf(wanted))
    seen = np.isfinite(wanted)
    assert np.abs(run.outputs["lse"][seen] - wanted[seen]).max() < 1e-5


@all_by_turns(
    ("point", ["fa3 without turns", "tma store"]),
    ("mask", ["none", "causal"]),
    ("order", COMPLETIONS),
)
def test_its_code_is_right(point: str, mask: str, order: str) -> None:
    """By the emulator, whatever the order of what is asynchronous; the logarithm is lg2.approx."""
    found = emulated(term(point, mask), RUN, arch="sm_90a", completions=(order,))
    assert found.findings == ()
    assert found.error < 0.5


def test_only_what_is_on_its_way_widens_its_bound() -> None:
    """Weights are rounded for o; the sum that the logarithm is of adds them in f32."""
    assert narrowing(term()) == {"o": DTYPES["bf16"].roundoff, "lse": 0.0}


AT = "l = bl, h = bh, g = bg, m = (bm tm), tm = (w warp half octet)"
LN2 = math.log(2)
LOGARITHM = value("top") * value("factor") + apply("lg2", value("total"))


def storing(expression: Any, *, quad: int | None = 0, at: str = AT) -> Callable[[Any], None]:
    def store(self: Any) -> None:
        k = self.k
        known = {"top": self.top, "factor": self.factor, "total": self.total}
        k.set(self.new, expression, {n: known[n] for n in expression.names()})
        if quad is None:
            k.store(k.outputs[1][at], self.new)
            return
        with k.only(quad=quad):
            k.store(k.outputs[1][at], self.new)

    return store


MUTANTS = {
    "in base 2": storing(LOGARITHM),
    "without the maximum": storing(apply("lg2", value("total")) * LN2),
    "maximum that is not scaled": storing((value("top") + apply("lg2", value("total"))) * LN2),
    "the logarithm in base 2 alone": storing(
        value("top") * value("factor") * LN2 + apply("lg2", value("total"))
    ),
    "the sum without its logarithm": storing(
        (value("top") * value("factor") + value("total")) * LN2
    ),
    "halves of rows exchanged": storing(LOGARITHM * LN2, at=AT.replace("half octet", "octet half")),
    "nothing": lambda self: None,
}


def changed(monkeypatch: pytest.MonkeyPatch, store: Callable[[Any], None]) -> Program:
    monkeypatch.setattr(RowStatistics, "store_logarithm", store)
    return Attention().program(attention(lse=True), Chosen({**STARTS["fa2"], **SMALL}))


def test_the_mutants_begin_with_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also stored by another thread of the quad, all of which have the sum."""
    for quad in (0, 3):
        program = changed(monkeypatch, storing(LOGARITHM * LN2, quad=quad))
        assert computes(program, SIZES), quad


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_logarithm_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = computes(changed(monkeypatch, MUTANTS[name]), SIZES)
    assert found.wrong
    assert found.finding is not None
    assert found.finding.cell.startswith("lse["), str(found)


@pytest.mark.parametrize("name", [n for n in MUTANTS if n != "nothing"])
def test_floats_find_it_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, sizes = changed(monkeypatch, MUTANTS[name]), {**RUN, "m": 64}
    arrays, scalars = drawn(sizes), {"scale": 0.25}
    run = interpret(program, sizes, arrays, scalars=scalars)
    reference = program.operation.reference(arrays, scalars)
    ratios = ratio_of(program, arrays, scalars, outputs=run.outputs, reference=reference)
    assert ratios["o"].max() < 1 < 100 < ratios["lse"].max()


def test_a_sum_of_one_thread_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logarithm before the quad's sums are joined."""

    def end(self: Any) -> None:
        k = self.k
        self.store_logarithm()
        k.butterfly("add", self.total, over="quad")
        k.set(self.total, apply("rcp0", value("x")), {"x": self.total})
        k.set(self.acc, value("x") * value("by"), {"x": self.acc, "by": self.total})

    monkeypatch.setattr(RowStatistics, "end", end)
    found = computes(changed(monkeypatch, storing(LOGARITHM * LN2)), SIZES)
    assert found.finding is not None
    assert found.finding.cell.startswith("lse[")


def refusals(monkeypatch: pytest.MonkeyPatch, store: Callable[[Any], None]) -> list[str]:
    monkeypatch.setattr(RowStatistics, "store_logarithm", store)
    machine = MACHINES["attention"]
    problem = Problem.of(attention(lse=True), **RUN)
    schedule = Schedule.of(machine, {**STARTS["fa2"], **SMALL})
    return [str(v) for v in check_schedule(schedule, machine, problem, DEVICE)]


def test_laws_ask_that_each_element_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads that store the same, and none that does, are refused, as by the interpreter."""
    assert not refusals(monkeypatch, storing(LOGARITHM * LN2))
    every = storing(LOGARITHM * LN2, quad=None)
    assert any(text.startswith("store_once") for text in refusals(monkeypatch, every))
    none = refusals(monkeypatch, MUTANTS["nothing"])
    assert any("lse is never stored" in text for text in none), none
    program = changed(monkeypatch, every)
    run = interpret(program, RUN, drawn(RUN), scalars={"scale": 0.25})
    assert run.findings


def test_a_dropped_store_is_unwritten() -> None:
    def without(s: Any) -> Any:
        return () if isinstance(s, Do) and s.write.buffer.name == "lse" else s

    program = rewritten(term("fa2"), without)
    run = interpret(program, RUN, drawn(RUN), scalars={"scale": 0.25})
    assert [f.kind for f in run.findings][:1] == ["unwritten"]


# its launch


def test_a_file_has_it() -> None:
    machine = MACHINES["attention"]
    problem = Problem.of(attention(mask="causal", lse=True), **RUN)
    text = to_json(Schedule.of(machine, STARTS["fa2"]), problem)
    assert from_json(text, MACHINES)[1] == problem
    plain = Problem.of(attention(mask="causal"), **RUN)
    assert '"further"' not in to_json(Schedule.of(machine, STARTS["fa2"]), plain)


def test_a_call_makes_two_arrays(fake: Gpu) -> None:
    """Or takes a tuple; what shares memory is refused."""
    kernel = Kernel(term("fa2"), arch="sm_90a")
    assert (kernel.contract.outputs, [a.name for a in kernel.contract.inputs]) == (2, [*"qkv"])
    assert kernel.contract == type(kernel.contract).of(kernel.contract.tree())
    shapes = kernel.program.operation.shapes({**RUN, "d": 64, "e": 64})
    q, k, v = (Array(shapes[name], np.uint16) for name in "qkv")
    o, lse = kernel(q, k, v, scale=0.5)
    assert (o.shape, lse.shape, lse.dtype) == (shapes["o"], shapes["lse"], np.float32)
    assert kernel(q, k, v, out=(o, lse), scale=0.5) == (o, lse)
    for out in (o, (o,), (o, lse, lse)):
        with pytest.raises(LaunchError, match="give a tuple of 2 arrays: o, lse"):
            kernel(q, k, v, out=out, scale=0.5)
    pointers = [*(x.pointer for x in (q, k, v)), o.data.ptr, lse.data.ptr]
    assert [launched.arguments(kernel)[1] for launched in fake.launched()] == [pointers] * 2
    same = Array(shapes["lse"], at=o.data.ptr)
    with pytest.raises(LaunchError, match="shares memory with o"):
        kernel(q, k, v, out=(o, same), scale=0.5)


def test_an_operation_says_what_its_outputs_are() -> None:
    x, y = Operand("x", ("i", "j"), "f32"), Operand("y", ("i",), "f32")
    sums = (Reduction("acc", "add", value("x"), ("j",)),)

    def made(*further: Any) -> Operation:
        return Operation("own", ("i", "j"), (x,), y, sums, further=further)

    two = made((Operand("z", ("i",), "f32"), parse("acc * 2")))
    assert str(two).endswith("; z[i] f32 = (acc * 2.0)")
    found = two.reference({"x": np.ones((2, 3))})
    assert (found["y"].tolist(), found["z"].tolist()) == ([3, 3], [6, 6])
    wrong = {
        "y is named twice": (Operand("y", ("i",), "f32"), parse("acc")),
        "axis k is not the operation's": (Operand("z", ("k",), "f32"), parse("acc")),
        "has to have the axes i, j, in this order": (Operand("z", ("j", "i"), "f32"), parse("acc")),
        "has the axis i, which": (Operand("z", ("j",), "f32"), parse("acc")),
        "names 'b'": (Operand("z", ("i",), "f32"), parse("b")),
        "give (operand, epilogue)": (Operand("z", ("i",), "f32"),),
        "epilogue": (Operand("z", ("i",), "f32"), 3.0),
    }
    for text, pair in wrong.items():
        with pytest.raises(OperationError, match=re.escape(text)):
            made(pair)


def test_other_machines_write_one_output() -> None:
    further = ((Operand("z", ("m", "n"), "bf16"), value("acc")),)
    operation = replace(matmul("bf16"), further=further)
    for name in ("simt", "ampere", "hopper", "blackwell"):
        with pytest.raises(OperationError, match="with 2 outputs; it writes one"):
            MACHINES[name].check(operation)


def test_its_contract_has_it_last() -> None:
    arguments = contract_of(term("fa2")).arguments
    assert [(a.name, a.dtype, a.axes) for a in arguments[3:]] == [
        ("o", "bf16", tuple("lhgme")), ("lse", "f32", tuple("lhgm")),
    ]  # fmt: skip
