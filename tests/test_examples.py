"""The examples: each assembles, computes what it says at ragged sizes, and prints on a screen."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.elementwise import Elementwise
from examples.rmsnorm import Rows, rmsnorm
from tinygpu.codegen.assemble import assemble
from tinygpu.codegen.emit import emit
from tinygpu.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.events import verdict
from tinygpu.expression import apply, value
from tinygpu.interpret import check
from tinygpu.laws import check_schedule
from tinygpu.machine import Chosen, Machine
from tinygpu.operation import Operation, Problem, elementwise
from tinygpu.program import Access, Do, For, Statement, Sync, buffers_of
from tinygpu.schedule import Schedule

EXAMPLES = Path(__file__).parent.parent / "examples"
SCREEN_LINES = 60
MOST_LINES = {"elementwise": 60, "rmsnorm": 100, "naive_matmul": 30}
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
]
NAMES = [f"{m.name}-{op.output.dtype}" for m, op, _ in CASES]


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


@pytest.mark.parametrize("chosen", ROWS, ids=str)
@pytest.mark.parametrize(("i", "j"), [(1, 256), (5, 132), (9, 4)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rmsnorm_is_its_reference(i: int, j: int, dtype: str, chosen: dict[str, Any]) -> None:
    """Rows of any number, and columns up to what threads hold, are normalised without a race."""
    assert check(Rows().program(rmsnorm(dtype), Chosen(chosen)), {"i": i, "j": j}) == ()


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
    """Event graph and interpreter pass the term, and find the race in each mutant."""
    chosen = rows(4, 1, warps=4, rows=2, teams=1, ctas=ctas)
    program = Rows().program(rmsnorm("f32"), Chosen(chosen))
    sizes = {"i": 20, "j": 512}
    assert verdict(program).legal
    assert check(program, sizes) == ()
    body = edited(program.roles[0].body, edit)
    role = replace(program.roles[0], body=body)
    mutant = replace(program, roles=(role,), buffers=buffers_of(body))
    assert "race" in [f.kind for f in verdict(mutant).findings]
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


@pytest.mark.parametrize("name", MOST_LINES)
def test_an_example_is_short(name: str) -> None:
    """A machine of one operation needs no more lines than that, formatted as all else is."""
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= MOST_LINES[name]
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"__init__", *MOST_LINES}


@pytest.mark.parametrize("name", MOST_LINES)
def test_runs_as_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run as a script, each prints the term and then its PTX."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.index("program ") < printed.index(".version")
    assert printed.rstrip().endswith("}")
