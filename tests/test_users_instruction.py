"""An instruction that the package does not have passes all four walks, without an edit to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.fp64_tensor_cores import BLOCKS, DMMA, Doubles
from examples.reduce import REDUCE, SplitK
from tests.hopper_terms import dos, rewritten
from tests.test_interpret import ASYNC, simt
from tinygpu import (
    Choice,
    Kernel,
    Machine,
    Problem,
    Schedule,
    Space,
    check,
    computes,
    elementwise,
    emit,
    load_device,
    matmul,
    rank,
    verdict,
)
from tinygpu.cli import app
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.rules.cp_async import copy
from tinygpu.codegen.rules.load_store import move
from tinygpu.codegen.rules.tma import bulk_tensor
from tinygpu.codegen.run.agreement import require_computes
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.codegen.run.launch import Kernel as Launched
from tinygpu.codegen.run.launch import gpu
from tinygpu.codegen.run.measure import validate
from tinygpu.errors import IllegalScheduleError, MachineError, ProgramError
from tinygpu.isa.fragment import Fragment
from tinygpu.isa.instruction import Instruction, same
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.legality.laws import check_schedule, own_laws
from tinygpu.legality.placement import inside
from tinygpu.legality.reach import Case, Clause, Place
from tinygpu.machines.ampere import STARTS
from tinygpu.search.time.cost import cost
from tinygpu.space.questions import ask
from tinygpu.term.access_map import Affine, Predicate
from tinygpu.term.expression import value
from tinygpu.term.machine import Chosen, Value, instructions
from tinygpu.term.operation import Operand, Operation, Reduction
from tinygpu.term.program import Commit, Do, Program, WaitGroup, walk
from tinygpu.term.schedule import to_json

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
    assert [v.law for v in found] == ["adds_in_f32"]
    assert "parts of k are added in bf16" in found[0].message


def test_an_operator_is_no_instruction() -> None:
    with pytest.raises(MachineError, match="instruction max: that is an operator of alu"):
        instructions("max")


def test_a_machine_has_to_list_it() -> None:
    class Forgetful(SplitK):
        instructions = SplitK.instructions[:-1]

    with pytest.raises(MachineError, match="bulk_group"):
        check_schedule(Schedule.of(Forgetful(), VALUES), Forgetful(), LARGE, H200)


def _mad(kernel: KernelCode, do: Do, scope: Scope) -> None:
    for d, a, b, c in kernel.operands(do, scope):
        kernel.text.emit(f"mad.rn.f32 {d}, {a}, {b}, {c}")


MAD = Instruction(
    "mad.rn",
    reads=("registers",),
    writes=("registers",),
    unit="fma",
    meaning=lambda operators, a, b, c: operators["fma"](a, b, c),
    lower=_mad,
)


class MultiplyAdd(Machine):
    """y = x z + w, each thread some elements, by an instruction of its own."""

    name = "multiply_add"
    operations = ("elementwise",)
    levels = (GMEM, REGISTERS)
    instructions = (*instructions("ld.global", "st.global"), MAD)
    threads, vector = Choice(128, 256), Choice(1, 4)

    def forward(self, k: Kernel) -> None:
        at = "i = (block thread v)"
        k.grid("block")
        k.threads(thread=self.threads)
        k.values(v=self.vector)
        k.store(k.output[at], k.apply(MAD, *(k.load(x[at]) for x in k.inputs)))


def test_one_of_a_thread() -> None:
    """Its meaning is computed by the operators of an algebra, so that ``computes`` asks it too."""
    operation, device = elementwise("x*z + w", inputs=("x", "z", "w")), H200
    problem = Problem.of(operation, i=10_000)
    schedule = Schedule.of(MultiplyAdd(), {"threads": 128, "vector": 4})
    assert check_schedule(schedule, MultiplyAdd(), problem, device) == ()
    term = schedule.program(MultiplyAdd(), operation)
    assert verdict(term).legal
    assert check(term, {"i": 1500}) == ()
    assert computes(term).finding is None
    assert "mad.rn.f32" in emit(term, "sm_90a")
    assert interpret(term, {"i": 1500}, arch="sm_90a").right
    assert float(cost(term, problem.sizes, device).seconds) > 0


LOAD, STORE = (
    replace(INSTRUCTIONS[name], name=f"{name}{hint}", lower=partial(move, hint=hint))
    for name, hint in (("ld.global", ".cg"), ("st.global", ".cs"))
)


class Streams(MultiplyAdd):
    """The same, with loads and stores that are its own."""

    name = "streams"
    instructions = (LOAD, STORE, MAD)
    last = STORE

    def forward(self, k: Kernel) -> None:
        at = "i = (block thread v)"
        k.grid("block")
        k.threads(thread=self.threads)
        k.values(v=self.vector)
        found = k.apply(MAD, *(k.load(x[at], by=LOAD) for x in k.inputs))
        k.store(k.output[at], found, by=self.last)


class Adds(Streams):
    last = replace(STORE, atomic=True)
    instructions = (LOAD, last, MAD)


def test_loads_and_stores_of_a_thread() -> None:
    operation = elementwise("x*z + w", inputs=("x", "z", "w"))
    schedule = Schedule.of(Streams(), {"threads": 128, "vector": 4})
    assert check_schedule(schedule, Streams(), Problem.of(operation, i=10_000), H200) == ()
    term = schedule.program(Streams(), operation)
    assert verdict(term).legal
    assert check(term, {"i": 1500}) == ()
    text = emit(term, "sm_90a")
    assert text.count("ld.global.cg.v4.f32") == 3
    assert "st.global.cs.v4.f32" in text
    assert assemble(text, "sm_90a").spills == 0
    assert interpret(term, {"i": 1500}, arch="sm_90a").right
    assert float(cost(term, {"i": 10_000}, H200).seconds) > 0
    assert not term.zeroed
    assert schedule.program(Adds(), operation).zeroed  # what is added to is cleared


@pytest.mark.parametrize("operator", ["sub", "mul"])
def test_a_wrong_meaning_is_found(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(MAD, meaning=lambda operators, a, b, c: operators[operator](a, c))
    monkeypatch.setitem(globals(), "MAD", wrong)
    monkeypatch.setattr(MultiplyAdd, "instructions", (*MultiplyAdd.instructions[:-1], wrong))
    operation = elementwise("x*z + w", inputs=("x", "z", "w"))
    schedule = Schedule.of(MultiplyAdd(), {"threads": 128, "vector": 1})
    term = schedule.program(MultiplyAdd(), operation)
    assert check(term, {"i": 1501})
    assert computes(term).finding is not None


@pytest.mark.gpu
@pytest.mark.parametrize("parts", [1, 4, 16])
@pytest.mark.parametrize("sizes", [SIZES, {"m": 64, "n": 4096, "k": 16384}], ids=str)
def test_its_kernel_is_right_on_a_gpu(parts: int, sizes: dict[str, int]) -> None:
    """Called several times: what it adds to is cleared before each launch."""
    if gpu().cuda.Device().compute_capability != "90":
        pytest.skip("this GPU has no wgmma")
    kernel = Launched(program(parts=parts, tile_n=128, stages=4))
    for seed in range(3):
        assert validate(kernel, Problem.of(OPERATION, **sizes), seed) <= 1


def test_a_word_that_no_walk_knows_is_refused() -> None:
    for change in ({"unit": "alus"}, {"completion": "soon"}, {"issuer": "lane"}):
        ((field, word),) = change.items()
        with pytest.raises(MachineError, match=f"instruction mad.rn: {field} {word}; known are"):
            replace(MAD, **change)  # type: ignore[arg-type]


def multiply_add(**changes: Any) -> Program:
    """The term of ``MultiplyAdd`` with another instruction."""

    own = replace(MAD, **changes)

    class Own(MultiplyAdd):
        instructions = (*MultiplyAdd.instructions[:-1], own)

        def forward(self, k: Kernel) -> None:
            at = "i = (block thread v)"
            k.grid("block")
            k.threads(thread=self.threads)
            k.values(v=self.vector)
            k.store(k.output[at], k.apply(own, *(k.load(x[at]) for x in k.inputs)))

    operation = elementwise("x*z + w", inputs=("x", "z", "w"))
    return Schedule.of(Own(), {"threads": 128, "vector": 4}).program(Own(), operation)


def emitting(*lines: str) -> Callable[[KernelCode, Do, Scope], None]:
    def lower(kernel: KernelCode, do: Do, scope: Scope) -> None:
        for d, a, b, c in kernel.operands(do, scope):
            for line in lines:
                kernel.text.emit(line.format(d=d, a=a, b=b, c=c))

    return lower


def raising(kernel: KernelCode, do: Do, scope: Scope) -> None:
    raise KeyError("no such register")


LIES = {
    "another operator": (emitting("mul.rn.f32 {d}, {a}, {b}"), "by its code and "),
    "nothing": (emitting(), "y[0] is nan by its code"),
    "operands exchanged": (emitting("mad.rn.f32 {d}, {a}, {c}, {b}"), "by its code and "),
    "large numbers cut off": (
        emitting("mad.rn.f32 {d}, {a}, {b}, {c}", "min.f32 {d}, {d}, 0f42C80000"),
        "is 100 by its code and ",
    ),
    "an exception": (raising, "it has no code: result = mad.rn(x_held, z_held, w_held) x 4: lower"),
}


@pytest.mark.parametrize("name", LIES)
def test_code_that_is_not_its_meaning_is_found(name: str) -> None:
    """By ``check``, by ``computes``, and by what commands ask before they go on."""
    lower, said = LIES[name]
    term = multiply_add(lower=lower)
    found, meant = check(term, {"i": 1500}), computes(term)
    assert verdict(term).legal
    assert [f.kind for f in found] == ["code_differs"]
    assert said in str(found[0])
    assert meant.finding is not None
    assert not meant.proved
    assert "mad.rn(x_held, z_held, w_held)" in str(meant)
    assert "\n" not in f"{found[0]}{meant}"
    with pytest.raises(IllegalScheduleError, match="code_differs"):
        require_computes(term)


def test_code_that_rounds_once_more_is_right() -> None:
    lines = "mul.rn.f32 {d}, {a}, {b}", "add.rn.f32 {d}, {d}, {c}"
    term = multiply_add(lower=emitting(*lines))
    assert check(term, {"i": 1500}) == ()
    assert computes(term).proved


def test_code_that_the_emulator_does_not_know_is_unproved() -> None:
    found = computes(multiply_add(lower=emitting("frobnicate.f32 {d}, {a}, {b}, {c}")))
    assert found.finding is None
    assert not found.proved
    assert "not proved, code of mad.rn is not compared with its meaning: PTX line" in str(found)


def test_another_reduction_than_it_says_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asynchronous, by TMA: it takes the maximum of the parts of k, not their sum."""
    most = replace(REDUCE, lower=partial(bulk_tensor, store="cp.reduce", how=".max"))
    monkeypatch.setattr("examples.reduce.REDUCE", most)
    monkeypatch.setattr(SplitK, "instructions", (*SplitK.instructions[:-1], most))
    term = program(parts=2)
    assert verdict(term).legal
    assert [f.kind for f in check(term, {"m": 64, "n": 64, "k": 256}, seeds=(0,))] == [
        "code_differs"
    ]


def test_a_copy_that_is_said_to_be_over_at_once_is_found() -> None:
    """Its data land after the barrier."""
    early = replace(INSTRUCTIONS["cp.async"], completion="at_once", lower=copy)
    waits = lambda s: () if isinstance(s, Commit | WaitGroup) else s  # noqa: E731
    term = simt(ASYNC)
    lying = dos(rewritten(term, waits), "cp.async", lambda do: replace(do, instruction=early))
    assert verdict(lying).legal
    sizes = {"m": 32, "n": 32, "k": 64}
    assert check(term, sizes, seeds=(0,)) == ()
    (found,) = check(lying, sizes, seeds=(0,))
    assert found.kind == "code_differs"
    assert "copies landing late" in str(found)


MEANINGS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (lambda operators, a, b, c: 1 / 0, "raises ZeroDivisionError: division by zero"),
    "size": (
        lambda operators, a, b, c: operators["fma"](a, b, c) if np.size(a) < 3000 else a,
        "raises TypeError: an expression is no array and has no size",
    ),
    "shape": (lambda operators, a, b, c: a if a.shape[0] else b, "raises AttributeError"),
    "neighbour": (lambda operators, a, b, c: operators["fma"](a, b, np.roll(c, 1)), "TypeError"),
    "function": (lambda operators, a, b, c: np.maximum(a, b), "raises TypeError"),
    "branch": (lambda operators, a, b, c: a if a > 0 else b, "raises TypeError"),
    "constant": (lambda operators, a, b, c: np.float64(1.0), "gives np.float64(1.0), no formula"),
    "operator": (lambda operators, a, b, c: operators["fmad"](a, b, c), "raises KeyError: 'fmad'"),
    "count": (lambda operators, a, b: a, "its meaning of 3 values raises TypeError"),
    "nothing": (lambda operators, a, b, c: None, "gives None, no formula"),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_a_meaning_that_is_no_formula_of_its_values_is_refused(name: str) -> None:
    meaning, said = MEANINGS[name]
    with pytest.raises(MachineError, match=r"instruction mad\.rn: its meaning") as found:
        multiply_add(meaning=meaning)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "meaning",
    [
        lambda operators, a, b, c: a * b + c,
        lambda operators, a, b, c: 0.0 - (np.float64(-1.0) * a * b - c),
        lambda operators, a, b, c: c + 1.0 / (1.0 / (b * a)),
    ],
)
def test_pythons_operators_are_those_of_every_algebra(meaning: Callable[..., Any]) -> None:
    term = multiply_add(meaning=meaning)
    assert computes(term).proved
    assert check(term, {"i": 1500}) == ()


def test_a_meaning_is_asked_once_and_for_all_sizes() -> None:
    calls = []

    def meaning(operators: Any, a: Any, b: Any, c: Any) -> Any:
        calls.append(a)
        return operators["fma"](a, b, c)

    term = multiply_add(meaning=meaning)
    assert computes(term).proved
    assert check(term, {"i": 1500}) == ()
    assert len(calls) == 1


def test_a_meaning_that_nobody_would_read_is_refused() -> None:
    with pytest.raises(MachineError, match="its meaning would not be read"):
        replace(REDUCE, meaning=lambda operators, a: a)


def test_a_law_that_raises_says_so() -> None:
    def law(case: Case, place: Place) -> Iterator[Clause]:
        yield Clause(case.nothing, "")  # type: ignore[attr-defined]

    class Own(MultiplyAdd):
        instructions = (*instructions("ld.global", "st.global"), replace(MAD, laws=(law,)))

        def forward(self, k: Kernel) -> None:
            at = "i = (block thread v)"
            k.grid("block")
            k.threads(thread=self.threads)
            k.values(v=self.vector)
            own = self.instructions[-1]
            k.store(k.output[at], k.apply(own, *(k.load(x[at]) for x in k.inputs)))

    problem = Problem.of(elementwise("x*z + w", inputs=("x", "z", "w")), i=10_000)
    with pytest.raises(MachineError, match=r"instruction mad\.rn: its law law raises Attr"):
        check_schedule(Schedule.of(Own(), {"threads": 128, "vector": 4}), Own(), problem, H200)


OWN = """
from tests.test_users_instruction import *


class Mine(MultiplyAdd):
    own = replace(MAD, lower=emitting("{line}"))
    instructions = (*instructions("ld.global", "st.global"), own)

    def forward(self, k):
        at = "i = (block thread v)"
        k.grid("block")
        k.threads(thread=self.threads)
        k.values(v=self.vector)
        k.store(k.output[at], k.apply(self.own, *(k.load(x[at]) for x in k.inputs)))
"""


@pytest.mark.parametrize("right", [True, False])
def test_the_command_check_asks_for_the_code(right: bool, tmp_path: Path) -> None:
    line = "mad.rn.f32 {d}, {a}, {b}, {c}" if right else "add.rn.f32 {d}, {a}, {b}"
    path, saved = tmp_path / "own.py", tmp_path / "one.json"
    path.write_text(OWN.replace("{line}", line), encoding="utf-8")
    problem = Problem.of(elementwise("x*z + w", inputs=("x", "z", "w")), i=10_000)
    saved.write_text(to_json(Schedule.of(MultiplyAdd(), {"threads": 128, "vector": 4}), problem))
    result = CliRunner().invoke(app, ["check", str(saved), "--machine", f"{path}:Mine"])
    assert result.exit_code == (0 if right else 1), result.output
    assert ("by its code and" in result.output) == (not right)


DOUBLES = matmul("f64", layout="nt")
OF_DOUBLES: Mapping[str, Value] = {**STARTS["plain"], "stages": 3}


def doubles(machine: Machine, **changes: Value) -> Program:
    return Schedule.of(machine, {**OF_DOUBLES, **changes}).program(machine, DOUBLES)


def test_a_warp_product_of_another_shape() -> None:
    """By its fragments alone: laws, proofs, interpreter, time, search, code, emulator."""
    for folder in ("tinygpu", "search", "codegen"):
        for path in (ROOT / folder).rglob("*.py"):
            assert DMMA.name not in path.read_text(encoding="utf-8"), path
    problem, device = Problem.of(DOUBLES, m=4096, n=4096, k=4096), load_device("h100")
    schedule, small = Schedule.of(Doubles(), OF_DOUBLES), {"m": 66, "n": 72, "k": 38}
    assert check_schedule(schedule, Doubles(), problem, device) == ()
    term = doubles(Doubles())
    assert verdict(term).legal
    assert check(term, small) == ()
    assert computes(term).finding is None
    assert computes(term).proved
    assert interpret(term, small, arch="sm_90").right
    text = emit(term, "sm_90")
    assert assemble(text, "sm_90").registers
    assert "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {" in text
    time = cost(term, problem.sizes, device)
    units = {unit: seconds for unit, seconds in time.parts.items() if unit != "power"}
    assert max(units, key=units.__getitem__) == "tensor"
    assert time.bottleneck == "power"  # tensor cores without a pause meet the cap
    # 256 flop a cycle, of which warps reach what they reach of wgmma's rate
    assert 2 * 4096**3 / time.seconds < 132 * 256 * device.clock_hz
    found = rank(Space(Doubles(), problem, device), k=1)
    assert found.best[0].seconds <= time.seconds


@pytest.mark.parametrize(
    "wrong",
    [
        {"d": Fragment("", (16, 8), ((4, 0, 2), (8, 2, 0)), ((2, 0, 1), (2, 1, 0)))},
        {"a": Fragment("", (16, 8), ((4, 0, 2), (8, 1, 0)), ((2, 8, 0), (2, 0, 1)))},
        {"b": Fragment("", (8, 8), ((8, 0, 1), (4, 1, 0)), ((2, 4, 0),))},
    ],
)
def test_blocks_whose_lanes_hold_other_elements_are_found(wrong: dict[str, Any]) -> None:
    """By a law where values count otherwise, else by the values, of the term or of its code."""
    blocks = replace(BLOCKS, **wrong)

    class Wrong(Doubles):
        product = replace(DMMA, blocks=(blocks,))
        instructions = (*(i for i in Doubles.instructions if i is not DMMA), product)

    schedule, problem = Schedule.of(Wrong(), OF_DOUBLES), Problem.of(DOUBLES, m=64, n=64, k=64)
    try:
        broken = check_schedule(schedule, Wrong(), problem, load_device("h100"))
        found = check(doubles(Wrong()), problem.sizes)
    except ProgramError:
        return
    assert broken or found


def test_a_product_of_warps_says_its_blocks() -> None:
    with pytest.raises(MachineError, match="0 blocks on the unit tensor, by each warp"):
        replace(DMMA, blocks=())
    with pytest.raises(MachineError, match="1 blocks on the unit fma"):
        replace(DMMA, unit="fma")
    with pytest.raises(ProgramError, match=r"mma\.sync\.f64 of f32: it multiplies f64"):
        DMMA.blocks_of("f32")
    deep = Fragment("", (16, 16), ((4, 0, 1), (8, 1, 0)), ((2, 8, 0), (2, 0, 4), (2, 0, 8)))
    with pytest.raises(ProgramError, match="one of a kind"):
        replace(BLOCKS, a=deep).steps("a")


def redux(*lines: str, folds: str = "max") -> Instruction:
    """An instruction by which a warp's lanes fold, that emits these lines for each value."""

    def lower(kernel: KernelCode, do: Do, scope: Scope) -> None:
        kernel.each_its_own(do)
        for d, a in kernel.operands(do, scope):
            word = kernel.text.register("b32")
            for line in lines:
                kernel.text.emit(line.format(d=d, a=a, t=word))

    return Instruction(
        "redux.sync.max", ("registers",), ("registers",), "shuffle", types=same("f32"),
        issuer="warp", arch="sm_100a", folds=folds, lower=lower, per_cycle=16,
    )  # fmt: skip


def largest() -> Operation:
    """The largest of each row."""
    x, y = Operand("x", ("i", "j"), "f32"), Operand("y", ("i",), "f32")
    top = Reduction("top", "max", value("x"), ("j",))
    return Operation("largest", ("i", "j"), (x,), y, reductions=(top,), epilogue=value("top"))


class Largest(Machine):
    """A warp a row: a thread's largest, then its warp's."""

    name = "largest"
    operations = ("largest",)
    levels = (GMEM, REGISTERS)
    numeric = True
    redux = redux("redux.sync.max.f32 {d}, {a}, -1")
    instructions = (*instructions("ld.global", "st.global", "alu", "mov"), redux)
    warps, chunks, vector = Choice(1, 2, 4), Choice(1, 2, 8), Choice(1, 4)

    def forward(self, k: Kernel) -> None:
        k.grid("block")
        k.threads(warp=self.warps, lane=32)
        k.values(chunk=self.chunks, v=self.vector)
        held = k.load(k.inputs[0]["i = (block warp), j = (chunk lane v)"], outside=-math.inf)
        top = k.registers("top", "f32")
        k.fill(top, -math.inf)
        k.reduce("max", top, held)
        whole = k.apply(self.redux, top)
        with k.only(lane=0):
            k.store(k.output["i = (block warp)"], whole)


def folding(by: Instruction, **values: int) -> Program:
    class Own(Largest):
        redux = by
        instructions = (*Largest.instructions[:-1], by)

    schedule = Schedule.of(Own(), {"warps": 4, "chunks": 8, "vector": 4, **values})
    return schedule.program(Own(), largest())


def the_fold(program: Program) -> Do:
    (found,) = (s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.folds)
    return found


def replaced(program: Program, do: Do, **changes: Any) -> Program:
    return rewritten(program, lambda s: replace(do, **changes) if s == do else s)


def test_a_warp_folds_by_one_instruction() -> None:
    """Laws, judge, meaning in floats and in the field, code, emulator, search; time by its rate."""
    term, sizes, device = folding(Largest.redux), {"i": 9, "j": 1000}, load_device("b200")
    problem = Problem.of(largest(), i=4096, j=1000)
    found = rank(Space(Largest(), problem, device, fixed={"vector": 4}), k=1)
    assert found.admissible == 3  # a row of 1000 needs 8 chunks of 128
    best = found.best[0]
    assert check_schedule(best.schedule, Largest(), problem, device) == ()
    assert verdict(term).legal
    assert check(term, sizes) == ()
    assert computes(term).finding is None
    assert assemble(emit(term, "sm_100a"), "sm_100a").spills == 0
    assert interpret(term, sizes, arch="sm_100a").right
    slow = folding(replace(Largest.redux, per_cycle=1 / 64))
    assert cost(slow, problem.sizes, device).seconds > cost(term, problem.sizes, device).seconds


@pytest.mark.parametrize("lane", [0, 5])
def test_a_fold_wants_its_whole_warp(lane: int) -> None:
    term = folding(Largest.redux)
    some = replaced(term, the_fold(term), lanes=(1, 32, lane))
    assert check(some, {"i": 9, "j": 1000})
    assert not verdict(some).legal


FOLDS = {
    "another operator": redux("redux.sync.max.f32 {d}, {a}, -1", folds="min"),
    "nothing": redux("mov.b32 {d}, {a}"),
    "of sizes": redux("redux.sync.max.abs.f32 {d}, {a}, -1"),
    "of bits": redux("mov.b32 {t}, {a}", "redux.sync.max.s32 {t}, {t}, -1", "mov.b32 {d}, {t}"),
}


@pytest.mark.parametrize("wrong", FOLDS)
@pytest.mark.parametrize("vector", [1, 4])
def test_a_wrong_fold_is_found(wrong: str, vector: int) -> None:
    """Also where rows have a large number, or all numbers of one sign."""
    assert check(folding(FOLDS[wrong], vector=vector), {"i": 9, "j": 8 * 32 * vector})


def test_what_crosses_lanes_says_how() -> None:
    with pytest.raises(MachineError, match="folds most on the unit shuffle"):
        replace(Largest.redux, folds="most")
    with pytest.raises(MachineError, match="folds max on the unit lsu"):
        replace(Largest.redux, unit="lsu")
    term = folding(Largest.redux)
    do = the_fold(term)
    for by in (do.instruction, replace(do.instruction, folds="", unit="alu")):
        with pytest.raises(ProgramError, match="has no across; leave it out"):
            replaced(term, do, instruction=by, across=16)
    of_each = replace(do.instruction, unit="alu", issuer="thread")
    with pytest.raises(ProgramError, match="has no predicate"):
        replaced(term, do, instruction=of_each, where=Predicate(Affine()))


def small_tiles(case: Case, place: Place) -> Iterator[Clause]:
    """State that a load brings at most 8 KiB.

    load fewer columns (tile_n)
    """
    landed = math.prod(place.do.values) * place.do.write.buffer.type.bytes
    yield Clause(landed <= 8192, "{} brings {} B; 8192 are allowed", (place.do, landed))


BOUNDED = replace(INSTRUCTIONS["cp.async.bulk.tensor"], laws=(small_tiles,))


class Small(SplitK):
    """Its loads are asked by a law of their own, if the builder is told so."""

    instructions = (*(i for i in SplitK.instructions if i.name != BOUNDED.name), BOUNDED)

    def forward(self, k: Kernel) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(k, "tma", partial(k.tma, by=BOUNDED))
            super().forward(k)


def short_rings(case: Case, place: Place) -> Iterator[Clause]:
    """State that a load fills a ring of at most two stages, as long as the product has few CTAs."""
    stages = place.do.write.buffer.stages
    yield Clause(stages <= 2, "{} fills {} stages; 2 are allowed", (place.do, stages))
    yield Clause(case.program.raster == 1, "{}: its tiles are swizzled", (place.do,))


class Rings(SplitK):
    """Its statements differ between structural choices in nothing but what its law reads."""

    instructions = (*Small.instructions[:-1], replace(BOUNDED, laws=(short_rings,)))
    stages = Choice(2, 4, structural=True)
    swizzled = Choice(0, 1, structural=True)

    def forward(self, k: Kernel) -> None:
        if self.swizzled:
            k.launch(raster=4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(k, "tma", partial(k.tma, by=self.instructions[-1]))
            super().forward(k)


def test_a_law_of_ones_own_is_asked_in_each_structural_choice() -> None:
    """Also where a statement looks as it does in another one: what is admissible keeps the law."""
    space = Space(Rings(), LARGE, H200, fixed={"tile_n": 64, "store_n": 32})
    found = {(b.structure["stages"], b.structure["swizzled"]) for b in space.batches()}
    assert found == {(2, 0)}
    assert all(not check_schedule(one, Rings(), LARGE, H200) for one in space)


def test_a_law_of_a_load_of_ones_own_prunes_and_is_named() -> None:
    """In a space, for one schedule and for z3; and a statement by another value is refused."""
    space = Space(Small(), LARGE, H200)
    found = check_schedule(Schedule.of(Small(), {**VALUES, "tile_n": 128}), Small(), LARGE, H200)
    assert [(v.law, "16384 are" in v.message or "16384 B" in v.message) for v in found] == [
        ("small_tiles", True)
    ]
    assert found[0].mend == "load fewer columns (tile_n 128)"
    assert 0 < space.count() == Space(SplitK(), LARGE, H200, fixed={"tile_n": 64}).count()
    why = ask(Space(Small(), LARGE, H200, fixed={"tile_n": 128}))
    assert [r.name for r in why.reasons if r.kind == "law"] == ["small_tiles"]
    assert "at most 8 KiB" in str(why)

    class Untold(SplitK):
        instructions = Small.instructions

    with pytest.raises(MachineError, match="than the machine lists"):
        Untold().term(OPERATION, Chosen(VALUES))
    with pytest.raises(IllegalScheduleError, match="small_tiles: "):
        emit(Small().term(OPERATION, Chosen({**VALUES, "tile_n": 128})))
    with pytest.raises(MachineError, match="law inside; the package has one"):
        own_laws([replace(BOUNDED, laws=(inside,))])
