"""An instruction that the package does not have passes all four walks, without an edit to it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from examples.reduce import REDUCE, SplitK
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
    verdict,
)
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.rules.load_store import move
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.codegen.run.launch import Kernel as Launched
from tinygpu.codegen.run.launch import gpu
from tinygpu.codegen.run.measure import validate
from tinygpu.errors import MachineError
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.legality.laws import check_schedule
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import instructions
from tinygpu.term.program import Do, Program

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
