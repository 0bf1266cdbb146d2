"""Hostile terms: what is wrong is found by somebody, and what is right stays legal and computes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.hostile_terms import BROKEN, CODE, JUDGE, MEANING, RIGHT, Hostile
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.term.program import Program

ARCH = "sm_90a"


REFUSED = frozenset({
    "raster_below_one", "more_copies_than_the_role_has", "buffer_called_as_a_barrier",
    "sums_by_the_wrong_unit", "parameter_called_as_the_grid", "lanes_of_no_period",
    "fewer_copies_than_the_role_has", "raster_of_nothing", "no_ctas_on_an_sm",
    "unrolled_without_end", "vectors_of_nothing", "vectors_below_one",
    "lines_left_out_by_a_thread", "operator_without_a_name", "maximum_by_fma", "product_of_one",
    "sum_of_nothing", "constant_stored", "shared_memory_as_an_operand", "ring_without_stages",
    "shared_memory_as_long_as_an_axis",
})  # fmt: skip
"""Terms that are refused where they are built."""


def built(hostile: Hostile) -> Program | None:
    """The program, or None if it is one that is refused."""
    if str(hostile) not in REFUSED:
        return hostile.make()
    with pytest.raises(TinyGpuError):
        hostile.make()
    return None


def broken(program: Program, hostile: Hostile) -> list[str]:
    """The laws that it breaks, the judge's apart."""
    device = load_device(hostile.device)
    found: list[str] = []
    with np.errstate(all="ignore"):
        for sizes in hostile.sizes:
            case = Case.of(program, sizes, device)
            numeric = (law for law in LAWS.values() if law.numeric)
            found += [law.name for law in numeric if not all(c.holds for c in law.clauses(case))]
    return found


def of(terms: tuple[Hostile, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("hostile", terms, ids=str)


@of((*MEANING, *JUDGE))
def test_what_is_wrong_is_wrong(hostile: Hostile) -> None:
    program = built(hostile)
    if program is not None:
        assert all(check(program, sizes, seeds=(0, 1)) for sizes in hostile.sizes)


@of(MEANING)
def test_what_is_wrong_is_not_proved(hostile: Hostile) -> None:
    program = built(hostile)
    assert program is None or not computes(program).proved


@of((*MEANING, *JUDGE))
def test_what_is_wrong_is_found(hostile: Hostile) -> None:
    """By the judge, by a law, or because it does not compute its operation."""
    program = built(hostile)
    if program is not None and verdict(program).legal and not broken(program, hostile):
        assert not computes(program).proved


@of(JUDGE)
def test_the_judge_does_not_call_it_legal(hostile: Hostile) -> None:
    program = built(hostile)
    assert program is None or not verdict(program).legal


@of(CODE)
def test_code_computes_what_its_term_means(hostile: Hostile) -> None:
    """Or a term has no code, or is refused before; its meaning is right."""
    program = built(hostile)
    if program is None or not verdict(program).legal or broken(program, hostile):
        return
    for sizes in hostile.sizes:
        try:
            assert not check(program, sizes, seeds=(0,))
            text = emit(program, ARCH, sizes)
        except TinyGpuError:
            continue
        found = interpret(program, sizes, arch=ARCH, text=text, completions=("late",))
        assert found.right, found.findings or found.error


@of(BROKEN)
def test_what_is_no_term_is_refused(hostile: Hostile) -> None:
    """Where it is built, by a law or by the judge; and no walk raises an error of Python's own."""
    program = built(hostile)
    if program is None:
        return
    try:
        if not verdict(program).legal or broken(program, hostile):
            return
        if not computes(program).proved:
            return
        text = emit(program, ARCH, hostile.sizes[0])
    except TinyGpuError:
        return
    (sizes,) = hostile.sizes
    found = interpret(program, sizes, arch=ARCH, text=text, completions=("late",))
    assert found.right, found.findings or found.error
    assert not check(program, sizes, seeds=(0,))


@of(RIGHT)
def test_what_is_right_is_legal_and_computes(hostile: Hostile) -> None:
    program = hostile.make()
    got = verdict(program)
    assert got.legal, got
    assert not broken(program, hostile)
    meaning = computes(program)
    assert meaning.finding is None, meaning
    for sizes in hostile.sizes:
        assert not check(program, sizes, seeds=(0,))
        found = interpret(program, sizes, arch=ARCH, completions=("late",))
        assert found.right, found.findings or found.error
