from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.errors import OperationError, ScheduleError
from tinygpu.machines import MACHINES
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.expression import value
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Operation, Problem, elementwise, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule, from_json, to_json

SIMT = Simt()
NAIVE = Schedule.of(SIMT, LADDER["naive"])
PROBLEM = Problem.of(matmul("f32"), m=64, n=96, k=32)


class Nothing(Machine):
    """A machine without decisions, for an operation with an expression."""

    name = "nothing"
    levels = ()
    instructions = ()

    def program(self, operation: Operation, choose: Any) -> Program:
        raise AssertionError("no term is asked for here")


@given(st.fixed_dictionaries({n: st.sampled_from(c.values) for n, c in SIMT.decisions().items()}))
def test_json_round_trip(values: dict[str, int | str]) -> None:
    """from_json(to_json(x)) = x, for every schedule."""
    schedule = Schedule.of(SIMT, values)
    machine, problem, read = from_json(to_json(schedule, PROBLEM), MACHINES)
    assert (machine.name, problem, read) == ("simt", PROBLEM, schedule)
    assert hash(read) == hash(schedule)


def test_json_keeps_expressions() -> None:
    """An operation of the user's own comes back equal, constants and scalars included."""
    y = elementwise(value("a") * value("x") + 2.5, inputs=("x",))
    problem = Problem.of(y, i=1000)
    schedule = Schedule.of(Nothing(), {})
    assert from_json(to_json(schedule, problem), {"nothing": Nothing()})[1:] == (problem, schedule)


def test_order_does_not_matter() -> None:
    """A schedule is a function: the order in which it is written is not part of it."""
    backwards = dict(reversed(list(LADDER["naive"].items())))
    assert Schedule.of(SIMT, backwards) == NAIVE


@pytest.mark.parametrize("rung", LADDER)
def test_program(rung: str) -> None:
    """Every rung builds a term."""
    assert Schedule.of(SIMT, LADDER[rung]).program(SIMT, matmul("f32")).threads % 32 == 0


def without(name: str) -> dict[str, int | str]:
    return {n: v for n, v in LADDER["naive"].items() if n != name}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({**LADDER["naive"], "tile": 3}, "decision tile: not one of simt's; known are tile_m"),
        ({**LADDER["naive"], "tile_m": 3}, "decision tile_m: no value 3; known are 8, 16, 32"),
        ({**LADDER["naive"], "pipeline": "cp_async"}, "did you mean cp.async?"),
        ({**LADDER["naive"], "stages": True}, "decision stages: no value True"),
        (without("order"), "decision order: machine simt needs it; choose one of n, m"),
    ],
)
def test_bad_values(values: dict[str, int | str], says: str) -> None:
    """Each error names what was got, what there is, and the way out."""
    with pytest.raises(ScheduleError) as error:
        Schedule.of(SIMT, values)
    assert says in str(error.value)


def test_bad_changes() -> None:
    """with_ refuses an unknown decision at once, an unknown value when the term is built."""
    assert NAIVE.with_(tile_m=64)["tile_m"] == 64
    with pytest.raises(ScheduleError, match="did you mean stages"):
        NAIVE.with_(stage=2)
    with pytest.raises(ScheduleError, match="did you mean stages"):
        NAIVE["stage"]
    with pytest.raises(ScheduleError, match="tile_m: no value 7"):
        NAIVE.with_(tile_m=7).program(SIMT, matmul("f32"))
    with pytest.raises(ScheduleError, match="given machine nothing"):
        NAIVE.program(Nothing(), matmul("f32"))


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(to_json(NAIVE, PROBLEM)), **fields})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not complete JSON"),
        (to_json(NAIVE, PROBLEM)[:200], "may be truncated: write it again"),
        ("[1, 2]", "give a file that tinygpu wrote"),
        (changed(format="onnx"), "give a file that tinygpu wrote"),
        (changed(version=99), "version 99; this tinygpu reads version 1"),
        (changed(machine="smt"), "; did you mean simt?"),
        (changed(machine=["simt"]), 'machine is ["simt"]; give text'),
        (changed(decisions={**LADDER["naive"], "tile": 1}), "decision tile: not one of simt's"),
        (changed(decisions={}), "decision tile_m: machine simt needs it"),
        (changed(decisions=3), "decisions is 3; give an object"),
        (changed(sizes={"m": 64, "n": 96}), "size k: not given; give m, n, k"),
        (changed(sizes={"m": 0, "n": 96, "k": 3}), "size m is 0"),
        (changed(operation={}), "operation: field name is missing"),
        (changed(operation="matmul"), 'operation is "matmul"; give an object'),
        (changed(**{"two\nlines": float("nan")}), r"two\nlines is nan; give a finite number"),
    ],
)
def test_bad_files(text: str, says: str) -> None:
    """Whatever a file holds, the error is one line that says what to do."""
    with pytest.raises(ScheduleError) as error:
        from_json(text, MACHINES)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@given(st.integers(0, len(to_json(NAIVE, PROBLEM)) - 1))
def test_truncated_anywhere(length: int) -> None:
    """A file cut anywhere is refused, never read as something else."""
    with pytest.raises(ScheduleError):
        from_json(to_json(NAIVE, PROBLEM)[:length], MACHINES)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"m": 4, "n": 4}, "size k: not given; give m, n, k"),
        ({"m": 4, "n": 4, "k": 4, "l": 4}, "size l: no such axis; give m, n, k"),
        ({"m": 4, "n": 4, "k": 4.5}, "size k is 4.5; every size is an int"),
        ({"m": "4", "n": 4, "k": 4}, "size m is '4'; every size is an int"),
        ({"m": True, "n": 4, "k": 4}, "size m is True; every size is an int"),
        ({"m": 0, "n": 4, "k": 4}, "size m is 0; every size has to be at least 1"),
    ],
)
def test_sizes_are_ints_of_the_axes(sizes: dict[str, Any], told: str) -> None:
    """What is missing, unknown or no whole number is a mistake, and no size by chance."""
    with pytest.raises(OperationError, match=told):
        Problem.of(matmul(), **sizes)


def test_the_order_in_which_sizes_are_given_does_not_matter() -> None:
    assert Problem.of(matmul(), k=3, m=1, n=2) == Problem.of(matmul(), m=1, n=2, k=3)
