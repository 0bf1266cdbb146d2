"""What a term computes, traced: what is right is accepted, and each rule, weakened, lets one pass.

No oracle is the checker itself: mutants of meaning are wrong by how they were made, and of other
mutants that it accepts ``computes`` executes small instances.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests import blackwell_terms, hostile_terms
from tests.ampere_terms import term as ampere
from tests.family_mutants import mutants as of_families
from tests.hopper_terms import dos, rewritten, term
from tests.meaning_mutants import drawn, mutants
from tests.sample import draws, some
from tinygpu.checker.elements import FilledCells
from tinygpu.checker.make import certified
from tinygpu.checker.provenance import Provenance
from tinygpu.checker.sums import _Totals, computed
from tinygpu.errors import TinyGpuError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.machines import MACHINES, blackwell, hopper
from tinygpu.machines import ampere as ampere_machine
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.identity import computes
from tinygpu.term.expression import Apply, Constant, value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, attention, grouped_matmul, matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Do,
    Exit,
    For,
    Immediate,
    Program,
    Statement,
    When,
    var,
    walk,
)
from tinygpu.term.statement import changed

MACHINES_OF_SUMS = ("simt", "ampere", "hopper", "blackwell")
PRESETS: dict[str, Callable[[], Program]] = {
    **{f"simt {n}": partial(Simt().program, matmul(), Chosen(v)) for n, v in LADDER.items()},
    **{f"ampere {n}": partial(ampere, n) for n in ampere_machine.STARTS},
    **{f"hopper {n}": partial(term, n) for n in hopper.STARTS},
    **{f"blackwell {n}": partial(blackwell_terms.term, n) for n in blackwell.STARTS},
}
FUSED: tuple[tuple[str, Operation], ...] = (
    ("ampere", matmul("tf32", layout="nt")),
    ("ampere", matmul("f16", layout="nn", bias=True, activation="gelu")),
    ("hopper", matmul("bf16", layout="tn", batched=True, scaled=True, activation="silu")),
    ("hopper", matmul("bf16", layout="nt", gate="silu")),
    ("hopper", matmul("e4m3", "bf16", layout="nt", scales=True)),
)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_accepted(preset: str) -> None:
    ruling = computed(PRESETS[preset]())
    assert str(ruling) == "accepted: c: each element once, of acc over k, each term once"


@pytest.mark.parametrize(("machine", "operation"), FUSED, ids=str)
def test_epilogues_gates_and_scales_are_traced(machine: str, operation: Operation) -> None:
    values = (ampere_machine if machine == "ampere" else hopper).STARTS["ring"]
    values = {**values, "tile_k": 128} if "scale_a" in str(operation) else values
    assert computed(MACHINES[machine].program(operation, Chosen(values))).accepted


@pytest.mark.parametrize("machine", MACHINES_OF_SUMS)
def test_drawn_schedules_are_accepted_and_no_mutant_of_meaning(machine: str) -> None:
    for number, (schedule, operation) in enumerate(drawn(machine, 7, draws(1, 4))):
        assert computed(schedule.program(MACHINES[machine], operation)).accepted, str(schedule)
        for name, mutant in mutants(schedule, operation, np.random.default_rng(number)):
            assert not computed(mutant).accepted, f"{name}: {schedule}"


@pytest.mark.parametrize("machine", ["simt", "ampere"])
def test_what_both_checkers_accept_is_right(machine: str) -> None:
    """Of any change: if order and sums are accepted, small instances find nothing."""
    ((schedule, operation),) = drawn(machine, 3, 1)
    every = list(of_families(schedule.program(MACHINES[machine], operation)))
    accepted = 0
    for _, what, make in some(every, draws(90, 4), 7):
        try:
            mutant = make()
        except TinyGpuError:
            continue
        if computed(mutant).accepted and certified(mutant)[0] is not None:
            accepted += 1
            finding = computes(mutant).finding
            assert finding is None or finding.kind == "misaligned", what  # a law's matter
    assert accepted


@pytest.mark.parametrize("hostile", hostile_terms.MEANING, ids=str)
def test_hostile_terms_are_not_accepted(hostile: hostile_terms.Hostile) -> None:
    try:
        program = hostile.make()
    except TinyGpuError:
        return
    assert not computed(program).accepted


@pytest.mark.parametrize(
    ("machine", "operation", "start"),
    [
        ("hopper", grouped_matmul(), "ring"),
        ("attention", attention(), "fa3"),
    ],
)
def test_other_classes_are_not_certified(machine: str, operation: Operation, start: str) -> None:
    points = importlib.import_module(f"tinygpu.machines.{machine}").STARTS
    values = points[start]
    assert computed(MACHINES[machine].program(operation, Chosen(values))).word == "not certified"


# Each rule, weakened


@contextmanager
def weakened(owner: Any, name: str, new: Any) -> Iterator[None]:
    with mock.patch.object(owner, name, new):
        yield


def needed(program: Program, owner: Any, name: str, new: Any, word: str = "refused") -> None:
    """A wrong term is accepted without a rule, and not with it."""
    assert computes(program).wrong or computes(program).finding is not None
    assert computed(program).word == word, str(computed(program))
    with weakened(owner, name, new):
        assert computed(program).accepted, str(computed(program))


def nothing(*_: Any, **__: Any) -> None:
    return None


def shifted(do: Do, dimension: int, by: Any) -> Do:
    """The same, what it reads of global memory moved."""
    read = do.reads[0]
    assert isinstance(read, Access)
    origin = list(read.origin)
    origin[dimension] = origin[dimension] + by
    return replace(do, reads=(replace(read, origin=tuple(origin)), *do.reads[1:]))


def test_terms_are_counted() -> None:
    def fewer(s: Statement) -> Statement:
        return replace(s, trips=3) if isinstance(s, For) and s.var == "slice" else s

    needed(rewritten(term("plain"), fewer), _Totals, "whole", nothing)


def test_they_are_counted_for_many_steps() -> None:
    def first(do: Do) -> Any:
        return When(var("kt"), 5, (do,))

    program = dos(term("plain"), "wgmma", first)
    needed(program, _Totals, "numbers", lambda _: range(1, 5))


def test_a_mode_that_nobody_moves_along_adds_again() -> None:
    def twice(do: Do) -> Do:
        if do.variant != "fma":
            return do
        still = [replace(a, value=(*a.value, (0,) * len(a.buffer.shape))) for a in do.accesses]
        return replace(do, values=(*do.values, 2), reads=tuple(still[:-1]), write=still[-1])

    program = Simt().program(matmul(), Chosen(LADDER["2-D registers"]))
    wrong = computed(dos(program, "fma", twice))
    assert wrong.word == "refused"
    assert "added twice" in wrong.line


def test_the_factors_have_one_coordinate() -> None:
    def ahead(do: Do) -> Do:
        return shifted(do, 1, 64) if of(do) == "b" else do

    first = Provenance.contracted
    program = dos(term("plain"), "cp.async.bulk.tensor", ahead)

    def alone(self: Provenance, action: Any, axis: str, x: Any, _: Any, *more: Any) -> Any:
        return first(self, action, axis, x, x, *more)

    needed(program, Provenance, "contracted", alone)


def test_a_prologue_loads_its_blocks() -> None:
    def later(s: Statement) -> Statement:
        return shifted(s, 1, 32) if isinstance(s, Do) and s.instruction.name == "cp.async" else s

    def late(s: Statement) -> Statement:
        if isinstance(s, For) and s.var == "kt" and s.unrolled:
            return replace(s, body=changed(s.body, later))
        return s

    program = rewritten(ampere("plain"), late)
    needed(program, Provenance, "prologue", nothing, "not certified")


def of(do: Do) -> str:
    """The array that it reads first."""
    read = do.reads[0]
    assert isinstance(read, Access)
    return read.buffer.name


def test_a_cell_holds_one_element() -> None:
    """Two loads fill the same cells with other rows; who comes last is a matter of order."""

    def again(do: Do) -> Any:
        return (do, shifted(do, 0, 64)) if of(do) == "a" else do

    program = dos(term("plain"), "cp.async.bulk.tensor", again)
    needed(program, FilledCells, "agrees", lambda *_: True, "not certified")


def test_registers_are_written_always_or_not_at_all() -> None:
    """With one step zeros are stored: the sums are rounded where there are more alone."""

    def maybe(do: Do) -> Any:
        zeros = replace(do, instruction=INSTRUCTIONS["mov"], reads=(Immediate(0.0),))
        return (zeros, When(Affine(1), "trips", (do,)))

    program = dos(term("plain"), "cvt", maybe)
    assert computes(program).finding is not None
    assert computed(program).word == "not certified"
    bare = Provenance.act

    def unguarded(self: Provenance, action: Any) -> None:
        with mock.patch.object(action, "guards", ()):
            bare(self, action)

    with weakened(Provenance, "act", unguarded):
        assert computed(program).accepted


def test_an_instruction_with_an_operator_of_its_own_is_not_believed() -> None:
    def negated(do: Do) -> Do:
        return replace(do, instruction=replace(do.instruction, variants=("neg",)), variant="neg")

    assert computed(dos(term("plain"), "cvt", negated)).word == "not certified"


def test_what_is_stored_is_of_its_place() -> None:
    def aside(do: Do) -> Do:
        row, column = do.write.origin
        return replace(do, write=replace(do.write, origin=(row, column + 8)))

    assert computed(dos(term("plain"), "st.global", aside)).line.startswith("store: ")


def test_each_element_is_stored_once() -> None:
    def fewer(s: Statement) -> Statement:
        return replace(s, trips=1) if isinstance(s, For) and s.var == "half" else s

    needed(rewritten(term("plain"), fewer), _Totals, "stored_once", nothing)


def test_arrays_lie_row_by_row() -> None:
    program = term("plain")
    pitches = tuple((n, value("m") if n == "ld_c" else e) for n, e in program.parameters)
    needed(replace(program, parameters=pitches), _Totals, "dense", nothing)


def test_the_steps_reach_the_end_of_the_axis() -> None:
    program = term("plain")
    half = Apply("ceildiv", (value("k"), Constant(128)))
    steps = tuple((n, half if n == "trips" else e) for n, e in program.parameters)
    needed(replace(program, parameters=steps), _Totals, "reaches", lambda *_: True, "not certified")


def test_threads_that_leave_store_nothing_inside() -> None:
    program = Simt().program(matmul(), Chosen(LADDER["naive"]))

    def sooner(s: Statement) -> Statement:
        if not isinstance(s, Exit):
            return s
        row, column = s.access.origin
        return replace(s, access=replace(s.access, origin=(row + 1, column)))

    assert any(isinstance(s, Exit) for s, _ in walk(program))
    needed(rewritten(program, sooner), _Totals, "exit_outside", nothing, "not certified")


def test_lines_of_the_reduced_axis_are_loaded() -> None:
    """A load that leaves out lines leaves what was there: so lines are no steps of a sum."""

    def turned(do: Do) -> Do:
        read = do.reads[0]
        assert isinstance(read, Access)
        return replace(do, reads=(replace(read, value=(*read.value[1::-1], *read.value[2:])),))

    program = dos(term("plain"), "cp.async.bulk.tensor", turned)
    assert computed(program).line.startswith("outside: ")


def test_parts_of_a_sum_are_all_added() -> None:
    """Of CTAs that share the reduced axis each has another part, and all parts are added."""

    def own(do: Do) -> Do:
        read = do.reads[0]
        assert isinstance(read, Access)
        mine = replace(read, index=var("turn", 2)) if read.buffer.name == "parts" else read
        return replace(do, reads=(mine,))

    program = dos(term("shared k"), "ld.shared", own)
    assert computes(program).finding is not None
    assert computed(program).word == "not certified"

    def one_part(s: Statement) -> Statement:
        return replace(s, trips=1) if isinstance(s, For) and s.var == "r" else s

    assert computed(rewritten(term("shared k"), one_part)).word == "not certified"
