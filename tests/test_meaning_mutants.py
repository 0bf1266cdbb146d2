"""Mutants of meaning are found, and schedules that machines offer raise no false alarm: a sample.

``python -m benchmarks.meaning`` asks many more.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.meaning_mutants import drawn, mutants
from tests.sample import draws, some
from tests.test_cli import tinygpu
from tests.test_meaning import BASES, made
from tinygpu.errors import OperationError
from tinygpu.machines import MACHINES, simt
from tinygpu.meaning.assumptions import ASSUMPTIONS, ends, unproved, window
from tinygpu.meaning.canonical import canonical_run
from tinygpu.meaning.identity import computes, instances, summary
from tinygpu.meaning.interpret import interpret
from tinygpu.meaning.prime_field import P, prime_field
from tinygpu.term.expression import value
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Access, Affine, Do, For, Program, When
from tinygpu.term.schedule import Schedule, to_json


@pytest.mark.parametrize("machine", ["simt", "ampere", "hopper", "blackwell"])
def test_a_sample_of_mutants_is_found(machine: str) -> None:
    for number, (schedule, operation) in enumerate(drawn(machine, 7, 1)):
        honest = computes(schedule.program(MACHINES[machine], operation))
        assert honest.finding is None, str(honest)
        every = mutants(schedule, operation, np.random.default_rng(number))
        for name, mutant in some(every, 3):
            found = computes(mutant)
            # where sizes take too long, the outcome says so; what is seen at them alone is missed
            assert found.finding is not None or found.left_out, f"{name}: {schedule}"


@pytest.mark.parametrize("machine", ["rows", "elementwise"])
def test_a_sample_of_schedules_raises_no_alarm(machine: str) -> None:
    for schedule, operation in drawn(machine, 7, draws(1, 3)):
        assert computes(schedule.program(MACHINES[machine], operation)).finding is None


# One run is enough


@pytest.mark.parametrize("base", BASES)
def test_the_canonical_run_gives_what_the_interpreter_gives(base: str) -> None:
    """Of a legal term, at every order that the interpreter tries."""
    program = made(*BASES[base])
    sizes = instances(program)[-1]
    random, shapes = np.random.default_rng(0), program.operation.shapes(sizes)
    inputs = {
        o.name: random.integers(P, size=shapes[o.name]).astype(float)
        for o in program.operation.inputs
    }
    field = prime_field(0)
    outputs, findings, _ = canonical_run(program, sizes, inputs, {}, field)
    assert findings == ()
    for seed in range(2):
        run = interpret(program, sizes, inputs, seed=seed, algebra=field)
        assert np.array_equal(run.outputs["c"], outputs["c"])


# The theorem and what it assumes


def statement(program: Program, change: object) -> Program:
    from tests.hopper_terms import rewritten

    return rewritten(program, change)  # type: ignore[arg-type]  # a function of one statement


STAGED = made(*BASES["staged"])


def test_the_assumptions_have_names_and_hold_of_the_bases() -> None:
    assert [a.name for a in ASSUMPTIONS] == ["proved", "affine", "steps", "carried", "guards"]
    for base in BASES:
        program = made(*BASES[base])
        assert unproved(program) == "", base


def test_each_assumption_is_asked() -> None:
    """A term that breaks one is told which; that need not be wrong."""

    def twice(o: Affine) -> Affine:
        terms = ((v, c * 2 if v == "kt" and isinstance(c, int) else c) for v, c in o.terms)
        return Affine(o.constant, tuple(terms))

    def further(s: object) -> object:  # k steps twice as far: steps
        if not isinstance(s, Do):
            return s
        reads = tuple(
            replace(r, origin=tuple(map(twice, r.origin)))
            if isinstance(r, Access) and r.buffer.name == "a"
            else r
            for r in s.reads
        )
        return replace(s, reads=reads)

    assert unproved(statement(STAGED, further)).startswith("steps: ")

    def half(s: object) -> object:  # a guard that is no distance: guards
        if isinstance(s, When) and s.bound == "trips":
            return replace(
                s, index=Affine(s.index.constant, tuple((v, 2) for v, _ in s.index.terms))
            )
        return s

    asked = {a.name: a.broken for a in ASSUMPTIONS}
    assert "is no distance" in asked["guards"](statement(STAGED, half))
    pitch = tuple((dict(STAGED.parameters) | {"ld_a": value("n")}).items())
    assert unproved(replace(STAGED, parameters=pitch)).startswith("affine: a has the stride ld_a")
    parts = made("simt", {**simt.LADDER["shared"], "split_k": 2, "combine": "red"}, matmul())
    assert unproved(parts).startswith("affine: ")

    def again(s: object) -> object:  # the sums are cleared within the loop: carried
        if isinstance(s, For) and s.trips == "trips":
            clear = next(d for d in STAGED.roles[0].body if isinstance(d, Do))
            return replace(s, body=(clear, *s.body))
        return s

    assert "touches the sums" in asked["carried"](statement(STAGED, again))


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_what_the_window_proves_holds_beyond(stages: int) -> None:
    """The theorem: a term that is proved by trips up to s + q + 1 computes at more trips."""
    _, point, operation = BASES["staged"]
    copies = {"pipeline": "cp.async", "stages": stages, "issue": 0}
    program = made("simt", {**point, **copies}, operation)
    assert computes(program).proved
    start, end = window(program)
    assert (start, end) == (stages - 1, stages - 1)
    for trips in (start + end + 2, start + end + 5):
        sizes = {"m": 32, "n": 16, "k": 8 * trips}
        assert computes(program, sizes).finding is None


@pytest.mark.parametrize("trips", [1, 2, 3, 4, 5])
def test_a_fault_at_one_step_shows_within_the_window(trips: int) -> None:
    """A step left out where ``kt = trips - 1`` alone: its guard widens the window to reach it."""

    def skip(s: object) -> object:
        if isinstance(s, For) and s.trips == "trips":
            before = When(Affine(1 - trips, (("kt", 1),)), 0, s.body)
            after = When(Affine(trips - 1, (("kt", -1),)), 0, s.body)
            return replace(s, body=(before, after))
        return s

    mutant = statement(made(*BASES["plain"]), skip)
    assert computes(mutant).finding is not None


def test_ends_follow_where_they_are_guarded() -> None:
    assert ends(STAGED) == ""
    assert "leave" in ends(made("simt", simt.LADDER["naive"], matmul()))


def test_a_summary_says_each_kind_once() -> None:
    proved = computes(STAGED)
    text = summary([proved, computes(STAGED), computes(STAGED, {"m": 4, "n": 3, "k": 5})])
    assert text.startswith("whether they compute their operation: 2 proved for every m, n, k; 1 ")


# Fault 11: a schedule file that asks for something else


@pytest.mark.parametrize(
    "change",
    [{"combine": "a"}, {"combine": ["add", "a", "b"]}, {"reduced": []}, {"epilogue": "a"}],
)
def test_a_file_that_asks_for_another_operation_is_one_clear_error(
    change: dict[str, object], tmp_path: Path
) -> None:
    problem = Problem.of(matmul(), m=512, n=512, k=512)
    tree = json.loads(to_json(Schedule.of(MACHINES["simt"], simt.LADDER["shared"]), problem))
    tree["operation"] |= change
    path = tmp_path / "other.json"
    path.write_text(json.dumps(tree))
    result = tinygpu("check", path)
    assert result.exit_code != 0
    assert result.output.count("error: ") == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize("machine", ["simt", "ampere", "hopper", "blackwell"])
def test_machines_match_what_is_summed_and_not_the_name(machine: str) -> None:
    operation = matmul("f32" if machine == "simt" else "bf16", layout="nt")
    (acc,) = operation.reductions
    for summand in (value("a") + value("b"), value("a")):
        other: Operation = replace(operation, reductions=(replace(acc, expression=summand),))
        with pytest.raises(OperationError, match="is no matmul"):
            MACHINES[machine].check(other)
