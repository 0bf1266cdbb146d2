"""Types of operands: what a statement takes and is given agree, and where a term rounds is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.ampere_terms import term as ampere
from tests.blackwell_terms import term as blackwell
from tests.hopper_terms import rebuffered
from tests.hopper_terms import term as hopper
from tinygpu import Choice, Kernel, Machine, check, computes, elementwise, emit, matmul
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.errors import MachineError, ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere import STARTS as AMPERE
from tinygpu.machines.blackwell import STARTS as BLACKWELL
from tinygpu.machines.hopper import STARTS as HOPPER
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.identity import summary
from tinygpu.meaning.tolerance import roundings
from tinygpu.term.machine import Chosen, Value, instructions
from tinygpu.term.operation import rmsnorm, softmax
from tinygpu.term.program import Program


def simt(dtype: str = "f32", output: str | None = None, **changes: Value) -> Program:
    return Simt().program(matmul(dtype, output), Chosen({**LADDER["shared"], **changes}))


WRONG: dict[str, tuple[Callable[[], Program], str, str, str]] = {
    "sums": (simt, "sums", "bf16", "a_fragment is f32, sums bf16; fma takes f32, f64: convert"),
    "stored": (simt, "smem_a", "bf16", "a_held is f32, smem_a bf16; st.shared takes one type"),
    "loaded": (simt, "a_fragment", "f16", "smem_a is f32, a_fragment f16; ld.shared takes one"),
    "held": (simt, "a_held", "f16", "a is f32, a_held f16; ld.global takes one type for all"),
    "16 bits": (lambda: hopper("plain"), "sums_rounded", "f16", "is f16, c bf16; st.global"),
    "not rounded": (lambda: hopper("plain"), "sums_rounded", "f32", "sums_rounded is f32, c bf16"),
    "wgmma": (lambda: hopper("plain"), "sums", "f16", "sums f16; wgmma takes bf16 to f32, f16 to"),
    "one of two": (lambda: hopper("plain"), "smem_a", "f16", "smem_a is f16, smem_b bf16; wgmma"),
    "stmatrix": (lambda: hopper("tma store"), "smem_c", "f32", "smem_c f32; stmatrix takes bf16"),
    "mma.sync": (lambda: ampere("ring"), "sums", "f16", "a_fragment is bf16, sums f16; mma.sync"),
    "tf32": (lambda: ampere("ring", dtype="tf32"), "b_fragment", "f32", "b_fragment f32; ld"),
    "tcgen05.mma": (
        lambda: blackwell("pair"),
        "sums",
        "bf16",
        "sums is bf16, taken f32; tcgen05.ld",
    ),
    "tcgen05.cp": (lambda: blackwell("a in tmem"), "held_x", "f16", "held_x f16; tcgen05.cp takes"),
    "tcgen05": (
        lambda: blackwell("ring"),
        "smem_a",
        "f32",
        "smem_a is f32, sums f32; tcgen05.mma",
    ),
    "tcgen05.ld": (lambda: blackwell("ring"), "taken", "bf16", "taken bf16; tcgen05.ld takes f32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_term_of_types_that_disagree_is_not_built(name: str) -> None:
    made, buffer, dtype, message = WRONG[name]
    program = made()
    with pytest.raises(ProgramError) as found:
        rebuffered(program, buffer, dtype=dtype)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


PRESETS: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "simt": LADDER, "ampere": AMPERE, "hopper": HOPPER, "blackwell": BLACKWELL,
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_every_type_of_a_shipped_machine_is_built_and_rounds_once(name: str) -> None:
    machine, epilogues = MACHINES[name], (None, "gelu") if name in ("ampere", "hopper") else (None,)
    pairs = [(dtype, dtype) for dtype in machine.dtypes]
    pairs += [(dtype, output) for dtype, those in machine.outputs.items() for output in those]
    for dtype, output in pairs:
        for epilogue in epilogues:
            operation = matmul(dtype, output, "nt", activation=epilogue or "")
            for point in PRESETS[name].values():
                program = machine.program(operation, Chosen(point))
                wide = (program.zeroed and output != "f32") or dtype == "f64"
                assert wide or roundings(program) == ()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rows_and_elements_of_every_type_are_built_and_round_once(dtype: str) -> None:
    machine = MACHINES["rows"]
    middle = {n: c.values[len(c.values) // 2] for n, c in machine.decisions().items()}
    for operation in (softmax(dtype), rmsnorm(dtype)):
        assert roundings(machine.program(operation, Chosen(middle))) == ()
    machine = MACHINES["elementwise"]
    middle = {n: c.values[len(c.values) // 2] for n, c in machine.decisions().items()}
    operation = elementwise("tanh(x) * a + x", inputs=("x",), dtype=dtype)
    assert roundings(machine.program(operation, Chosen(middle))) == ()


class Through(Machine):
    """An elementwise kernel that passes its result through a type."""

    name = "through"
    operations = ("elementwise",)
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "st.global", "fma", "alu", "cvt", "mov")
    threads = Choice(128)
    way: tuple[str, ...] = ()

    def forward(self, k: Kernel) -> None:
        at = "i = (block thread v)"
        k.grid("block")
        k.threads(thread=self.threads)
        k.values(v=2)
        held = {x.name: k.load(x[at]) for x in k.inputs}
        wide = "f64" if k.output.dtype == "f64" else "f32"
        y = k.compute(k.op.combine, held, wide, name="y_held")
        for number, dtype in enumerate((*self.way, k.output.dtype)):
            y = k.cast(y, dtype, into=f"y{number}")
        k.store(k.output[at], y)


def through(*way: str, dtype: str = "f32") -> Program:
    machine = Through()
    machine.way = way
    operation = elementwise("a*x + w", inputs=("x", "w"), dtype=dtype)
    return machine.program(operation, Chosen({"threads": 128}))


@pytest.mark.parametrize(
    ("way", "dtype", "named"),
    [
        (("f16", "f32"), "f32", "f16: y0 = cvt(y_held)"),
        (("f16", "f32"), "bf16", "f16: y0 = cvt(y_held)"),
        (("f16",), "bf16", "f16: y0 = cvt(y_held)"),  # it rounds twice
        (("f32",), "f64", "f32: y0 = cvt(y_held)"),
    ],
)
def test_a_rounding_on_the_way_is_named(way: tuple[str, ...], dtype: str, named: str) -> None:
    """A prime field does not see it; floats do where it is more than what is allowed."""
    program = through(*way, dtype=dtype)
    found = computes(program)
    assert found.finding is None
    assert f"; up to rounding to {named}" in str(found)
    assert f", up to rounding to {named}" in summary([found])
    assert [f.kind for f in check(program, {"i": 500})] == ["wrong_result"] * (dtype != "bf16")


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_a_rounding_at_the_end_is_the_operations_own(dtype: str) -> None:
    """Its code is right too, in every type: a scalar argument is converted to f64."""
    program = through(dtype=dtype)
    assert "rounding" not in str(computes(program))
    assert check(program, {"i": 500}) == ()
    assert interpret(program, {"i": 500}, arch="sm_90a").right


def test_sums_of_16_bits_in_global_memory_assemble_and_are_said_to_round() -> None:
    program = simt("bf16", split_k=2, combine="red")
    text = emit(program, "sm_90a")
    assert "red.global.add.noftz.bf16" in text
    assert assemble(text, "sm_90a").spills == 0
    assert "up to rounding to bf16: sums_rounded" in str(computes(program))


def test_a_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(MachineError, match="instruction fma: types f23; known are f64, f32"):
        replace(INSTRUCTIONS["fma"], types=(("f23", "f32"),))
