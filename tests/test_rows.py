"""The machines ``elementwise`` and ``rows``: kernels compute what they say at ragged sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.sample import SOAK, by_turns
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError, ProgramError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.rows import Rows
from tinygpu.meaning.interpret import check
from tinygpu.search.exact.best import rank
from tinygpu.space.space import Space
from tinygpu.term.expression import apply, parse, value
from tinygpu.term.machine import Chosen, Machine
from tinygpu.term.operation import (
    Operand,
    Operation,
    Problem,
    Reduction,
    elementwise,
    matmul,
    reduce,
    rmsnorm,
    softmax,
)
from tinygpu.term.program import Access, Do, For, Statement, Sync, buffers_of
from tinygpu.term.schedule import Schedule

SCREEN_LINES = 80
X, Z, A, B = (value(n) for n in "xzab")
GATED = X * apply("sigmoid", A * X) * Z + B
ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")


def lines(vector: int, unroll: int, threads: int, ctas: int) -> dict[str, Any]:
    return {"vector": vector, "unroll": unroll, "threads": threads, "ctas": ctas}


def rows(
    vector: int, chunks: int, *, warps: int, rows: int, teams: int, ctas: int
) -> dict[str, Any]:
    return {
        "vector": vector, "chunks": chunks, "warps": warps,
        "rows": rows, "teams": teams, "ctas": ctas,
    }  # fmt: skip


def gated(dtype: str) -> Operation:
    return elementwise(GATED, inputs=("x", "z"), dtype=dtype)


CASES: list[tuple[Machine, Operation, dict[str, Any]]] = [
    (Elementwise(), elementwise(A * X + B, inputs=("x",)), lines(4, 8, 256, 0)),
    (Elementwise(), gated("f32"), lines(4, 4, 128, 1056)),
    (Elementwise(), gated("bf16"), lines(8, 4, 256, 528)),
    (Elementwise(), gated("f16"), lines(8, 2, 1024, 0)),
    (Rows(), rmsnorm("f32"), rows(4, 4, warps=8, rows=1, teams=1, ctas=0)),
    (Rows(), rmsnorm("bf16"), rows(8, 2, warps=16, rows=2, teams=1, ctas=264)),
    (Rows(), rmsnorm("f16"), rows(8, 8, warps=2, rows=1, teams=4, ctas=0)),
    (Rows(), softmax("f32"), rows(4, 4, warps=8, rows=1, teams=1, ctas=0)),
    (Rows(), softmax("bf16"), rows(8, 2, warps=16, rows=2, teams=1, ctas=264)),
]
NAMES = [f"{op.name}-{op.output.dtype}" for _, op, _ in CASES]


@pytest.mark.parametrize(("machine", "operation", "chosen"), CASES, ids=NAMES)
def test_assembles_without_spills(
    machine: Machine, operation: Operation, chosen: dict[str, Any]
) -> None:
    """ptxas takes every kernel for three generations and keeps all values in registers."""
    program = Schedule.of(machine, chosen).program(machine, operation)
    assert len(str(program).splitlines()) <= SCREEN_LINES
    for arch in ARCHITECTURES:
        assert not assemble(emit(program, arch), arch).spills, arch


@pytest.mark.parametrize(("machine", "operation", "chosen"), CASES, ids=NAMES)
def test_keeps_the_laws(machine: Machine, operation: Operation, chosen: dict[str, Any]) -> None:
    """No schedule shown breaks a law, at ragged sizes as at even ones."""
    for i, j in ((1, 8), (1000, 4096)):
        sizes = {"i": 8 * i, "j": j} if "j" in operation.axes else {"i": 8 * i}
        problem = Problem.of(operation, **sizes)
        schedule = Schedule.of(machine, chosen)
        assert check_schedule(schedule, machine, problem, load_device("h200")) == ()


@pytest.mark.parametrize("i", [1, 4, 511, 512, 1500])
@pytest.mark.parametrize("ctas", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_elementwise_is_its_reference(i: int, ctas: int, dtype: str) -> None:
    """Every element is right and written once, tails included, strided or not."""
    vector = 4 if i % 4 == 0 else 1
    program = Elementwise().program(gated(dtype), Chosen(lines(vector, 2, 32, ctas)))
    assert check(program, {"i": i}) == ()


ROWS = [
    rows(4, 2, warps=1, rows=1, teams=1, ctas=0),
    rows(2, 1, warps=4, rows=1, teams=1, ctas=2),
    rows(1, 4, warps=2, rows=2, teams=2, ctas=0),
    rows(4, 1, warps=2, rows=4, teams=1, ctas=2),
]


@pytest.mark.parametrize(
    ("i", "j", "operation", "chosen"),
    [
        (*sizes, operation, chosen)
        for (sizes, operation), chosen in by_turns(
            product(
                [(1, 256), (5, 132), (9, 4)], [rmsnorm("f32"), rmsnorm("bf16"), softmax("f32")]
            ),
            ROWS,
        )
    ],
)
def test_rows_are_their_reference(
    i: int, j: int, operation: Operation, chosen: dict[str, Any]
) -> None:
    """Rows of any number, and columns up to what threads hold, are normalised without a race."""
    assert check(Rows().program(operation, Chosen(chosen)), {"i": i, "j": j}) == ()


@pytest.mark.parametrize(("dtype", "chosen"), by_turns(["f32", "bf16", "f16"], ROWS[:2]))
def test_softmax_by_both_interpreters(dtype: str, chosen: dict[str, Any]) -> None:
    """The term and its PTX give softmax, also where a row fills no tile and where it is long."""
    program = Rows().program(softmax(dtype), Chosen(chosen))
    assert verdict(program).legal
    for sizes in ({"i": 3, "j": 256}, {"i": 5, "j": 36}):
        assert check(program, sizes) == ()
        found = interpret(program, sizes, arch="sm_90a", completions=("late",))
        assert found.right, found.findings


def test_softmax_is_stable() -> None:
    """Numbers whose exponentials overflow give the numbers of softmax, which sum to 1."""
    x = np.array([[1000.0, 999.0, -1000.0], [-5000.0, -5000.0, -5000.0]])
    y = softmax().reference({"x": x})["y"]
    assert y.sum(axis=1) == pytest.approx([1, 1])
    assert y[1] == pytest.approx([1 / 3] * 3)
    assert y[0, 0] / y[0, 1] == pytest.approx(math.e)


def test_what_lies_beyond_a_row_has_no_part_in_it() -> None:
    """With 0 there, and not -infinity, both interpreters find every sum of softmax wrong."""

    def zero(statement: Statement) -> Statement:
        if not isinstance(statement, Do):
            return statement
        reads = (replace(r, outside=0.0) if isinstance(r, Access) else r for r in statement.reads)
        return replace(statement, reads=tuple(reads))

    program = Rows().program(softmax(), Chosen(ROWS[0]))
    role = replace(program.roles[0], body=edited(program.roles[0].body, zero))
    mutant = replace(program, roles=(role,))
    sizes = {"i": 2, "j": 20}
    assert "wrong_result" in [f.kind for f in check(mutant, sizes)]
    assert not interpret(mutant, sizes, arch="sm_90a", completions=("late",)).right
    assert check(mutant, {"i": 2, "j": 256}) == ()


def test_only_a_load_may_give_another_number_outside() -> None:
    """cp.async, TMA and stores cannot: the term is refused when it is built."""
    program = Rows().program(softmax(), Chosen(ROWS[0]))
    store = program.roles[0].body[-1]
    assert isinstance(store, Do)
    wrong = replace(store, write=replace(store.write, outside=-math.inf))
    role = replace(program.roles[0], body=(*program.roles[0].body[:-1], wrong))
    with pytest.raises(ProgramError, match="others give 0"):
        replace(program, roles=(role,))


def rowwise(summand: str, epilogue: str, earlier: tuple[Reduction, ...] = ()) -> Operation:
    x, y = (Operand(name, ("i", "j"), "f32") for name in "xy")
    return reduce(parse(summand), parse(epilogue), inputs=(x,), output=y, earlier=earlier)


LEAST = Reduction("top", "max", parse("0 - x"), ("j",))


def test_reductions_of_ones_own() -> None:
    """A sum, and a sum of what a sum before it gave: the variance, without a kernel of its own."""
    mean = Reduction("total", "add", value("x"), ("j",))
    for operation in (
        rowwise("abs(x)", "x / acc"),
        rowwise("x * x", "(x - total / j) * rsqrt(acc)", (mean,)),
        rowwise("max(x, 0)", "(x - top) * acc", (Reduction("top", "max", parse("x - 1"), ("j",)),)),
    ):
        program = Rows().program(operation, Chosen(ROWS[3]))
        assert check(program, {"i": 9, "j": 60}) == ()


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (rowwise("x + 1", "x / acc"), "beyond a row's end"),
        (rowwise("x", "x - acc + top", (LEAST,)), "beyond a row's end"),
        (matmul(), "known are rmsnorm, softmax, reduce"),
        (softmax("f64"), r"x\[i,j\] f64; known are f32, f16, bf16"),
    ],
)
def test_what_rows_cannot_do_is_refused(operation: Operation, said: str) -> None:
    with pytest.raises(OperationError, match=said):
        Rows().check(operation)


@pytest.mark.parametrize(
    ("machine", "problem"),
    [
        (Rows, Problem.of(softmax("bf16"), i=4100, j=1000)),
        (Elementwise, Problem.of(elementwise("a*x + b"), i=1000004)),
    ],
)
def test_a_space_of_numbers_is_that_of_single_schedules(
    machine: type[Machine], problem: Problem
) -> None:
    """Scored at once, a space has the schedules and times that it has one by one."""

    class OneByOne(machine):  # type: ignore[misc, valid-type]
        numeric = False

    fixed: dict[str, Any] = {"ctas": (0, 264), "vector": (2, 4)}
    fixed |= {"warps": (1, 4), "chunks": (4, 8)} if machine is Rows else {}
    fixed |= {} if SOAK or machine is not Rows else {"rows": (1, 2), "teams": (1, 4)}
    both = [
        rank(Space(m, problem, load_device("h200"), fixed=fixed), 10**4)
        for m in (machine(), OneByOne())
    ]
    assert both[0].admissible == both[1].admissible > 10
    times = [{one.schedule.decisions: one.seconds for one in found.best} for found in both]
    assert times[0] == pytest.approx(times[1])


def edited(body: tuple[Statement, ...], edit: Callable[[Statement], Any]) -> tuple[Statement, ...]:
    """Replace each statement by what ``edit`` gives; None drops it."""
    kept = []
    for statement in body:
        if isinstance(statement, For):
            kept.append(replace(statement, body=edited(statement.body, edit)))
        elif (new := edit(statement)) is not None:
            kept.append(new)
    return tuple(kept)


def in_one_stage(access: Any) -> Any:
    if isinstance(access, Access) and access.buffer.level == "smem":
        return replace(access, buffer=replace(access.buffer, stages=1))
    return access


def one_stage(statement: Statement) -> Statement:
    if not isinstance(statement, Do):
        return statement
    reads = tuple(map(in_one_stage, statement.reads))
    return replace(statement, write=in_one_stage(statement.write), reads=reads)


def no_barrier(statement: Statement) -> Statement | None:
    return None if isinstance(statement, Sync) else statement


@pytest.mark.parametrize(("ctas", "edit"), [(0, no_barrier), (2, no_barrier), (2, one_stage)])
def test_the_barrier_and_the_second_stage_are_needed(ctas: int, edit: Any) -> None:
    """Judge and interpreter pass the term, and find the race in each mutant."""
    chosen = rows(4, 1, warps=4, rows=2, teams=1, ctas=ctas)
    program = Rows().program(rmsnorm("f32"), Chosen(chosen))
    sizes = {"i": 20, "j": 512}
    assert verdict(program).legal
    assert check(program, sizes) == ()
    body = edited(program.roles[0].body, edit)
    role = replace(program.roles[0], body=body)
    mutant = replace(program, roles=(role,), buffers=buffers_of(body))
    fault = verdict(mutant).fault
    assert fault is not None
    assert fault.kind == "race"
    assert "race" in [f.kind for f in check(mutant, sizes)]


def test_rows_that_do_not_fit_are_refused() -> None:
    """A row longer than the registers hold is an error, not a wrong sum."""
    program = Rows().program(rmsnorm("f32"), Chosen(ROWS[0]))
    assert program.parameter_values({"i": 3, "j": 256})["ld_x"] == 256
    with pytest.raises(ProgramError, match="j is 260; this term covers at most 256"):
        program.parameter_values({"i": 3, "j": 260})


def test_inputs_are_loaded_before_any_is_used() -> None:
    """All loads of a tile stand before the first arithmetic, so that they overlap."""
    program = Elementwise().program(gated("f32"), Chosen(lines(4, 4, 256, 0)))
    text = emit(program)
    assert text.rindex("ld.global.v4.f32") < text.index("mul.rn.f32")
    assert text.count("ld.global.v4.f32") == 8
