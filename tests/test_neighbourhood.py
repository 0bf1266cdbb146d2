"""Single changes are those of brute force, mended where they must be."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import draws
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.neighbourhood import Neighbourhood
from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.expression import value
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, elementwise, matmul
from tinygpu.term.schedule import Schedule

DEVICE = load_device("h200")
OPEN: dict[str, tuple[Value, ...]] = {
    "tile_m": (64, 128, 256),
    "tile_k": (8, 16, 64),
    "lanes_m": (2, 4),
    "vector_a": (1, 4),
    "vector_c": (1, 4),
    "edges": ("guard", "exact"),
    "pipeline": ("none", "cp.async"),
    "stages": (1, 2, 4),
    "ctas_per_sm": (1, 2, 8),
}
"""Decisions of a small space, two of them structural, with illegal combinations."""


@cache
def small() -> tuple[Space, Neighbourhood, dict[Schedule, float]]:
    """A space of simt, its neighbourhood, and all that is legal with its predicted seconds."""
    problem = Problem.of(matmul(), m=256, n=256, k=256)
    space = Space(Simt(), problem, DEVICE, fixed={**LADDER["tuned"], **OPEN})
    legal = {
        s: float(cost(s.program(Simt(), problem.operation), problem.sizes, DEVICE).seconds)
        for s in space
    }
    assert 100 < len(legal) < space.raw / 2
    return space, Neighbourhood(space), legal


def changes(one: Schedule, other: Schedule) -> set[str]:
    """Names of the decisions in which two schedules differ."""
    return {name for name in OPEN if one[name] != other[name]}


def by_force(start: Schedule) -> dict[tuple[str, Value], tuple[int, float]]:
    """By (decision, value): the fewest decisions that change with it, and the least seconds.

    Of those that may change with it none is structural, and there are at most two.
    """
    space, _, legal = small()
    best: dict[tuple[str, Value], tuple[int, float]] = {}
    for schedule, seconds in legal.items():
        differing = changes(start, schedule)
        if len(differing) > 3:
            continue
        for name in differing:
            if not (differing - {name}) & set(space.structural):
                key, found = (name, schedule[name]), (len(differing) - 1, seconds)
                best[key] = min(best.get(key, found), found)
    return best


@settings(max_examples=draws(4, 20))
@given(st.integers(0, 10**6))
def test_single_changes_are_those_of_brute_force(number: int) -> None:
    """Every change that can be mended, with as few further ones as it takes; no other."""
    _, near, legal = small()
    start = list(legal)[number % len(legal)]
    wanted, found = by_force(start), near(start)
    assert len({c.schedule for c in found}) == len(found)
    assert start not in {c.schedule for c in found}
    explained = set()
    for one in found:
        assert one.predicted_seconds == pytest.approx(legal[one.schedule], rel=1e-9)
        differing = changes(start, one.schedule)
        mine = set()
        for key in ((n, one.schedule[n]) for n in differing):
            further, seconds = wanted.get(key, (-1, 0.0))
            if further == len(differing) - 1 and math.isclose(seconds, one.predicted_seconds):
                mine.add(key)
        assert mine, (differing, one)
        explained |= mine
    assert explained == set(wanted)


def test_structural_changes_and_mended_ones_are_among_them() -> None:
    """What the brute force compares is not of one kind only."""
    space, near, legal = small()
    counts = {
        frozenset(changes(start, c.schedule)) for start in list(legal)[:40] for c in near(start)
    }
    assert {len(one) for one in counts} >= {1, 2}
    assert any(one & set(space.structural) for one in counts)
    assert any(one & set(space.structural) and len(one) > 1 for one in counts)


@pytest.mark.parametrize("name", list(OPEN))
def test_one_open_decision_has_its_other_legal_values(name: str) -> None:
    """Where nothing else may change, a change that is illegal alone is none."""
    problem = Problem.of(matmul(), m=256, n=256, k=256)
    values = tuple(Simt().decisions()[name].values)
    space = Space(Simt(), problem, DEVICE, fixed={**LADDER["tuned"], name: values})
    legal = list(space)
    near = Neighbourhood(space)
    for start in legal:
        assert {c.schedule for c in near(start)} == {*legal} - {start}


class Plain(Elementwise):
    """All of its decisions are structural."""

    numeric = False


def test_a_machine_without_numbers_is_changed_too() -> None:
    """Where no decision is a number, a change is one structural decision."""
    operation = elementwise(value("a") * value("x") + value("b"), inputs=("x",))
    problem = Problem.of(operation, i=1 << 20)
    fixed: dict[str, tuple[Value, ...]] = {"vector": (1, 4), "ctas": (0, 132, 528)}
    space = Space(Plain(), problem, DEVICE, fixed=fixed)
    near, legal = Neighbourhood(space), set(space)
    assert space.axes == ()
    assert 10 < len(legal) <= space.raw
    for start in list(legal)[::7]:
        found = {c.schedule: c.predicted_seconds for c in near(start)}
        assert set(found) == {
            s for s in legal if sum(s[n] != start[n] for n in space.structural) == 1
        }
        for schedule, seconds in list(found.items())[::3]:
            program = schedule.program(Plain(), operation)
            assert seconds == pytest.approx(float(cost(program, problem.sizes, DEVICE).seconds))


def test_changes_of_hopper_break_no_law_of_numbers() -> None:
    """Only the concurrency law is left to ``check_schedule``; times are the schedules' own."""
    problem = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)
    start = Schedule.of(Hopper(), STARTS["ring"])
    fixed = {n: v for n, v in STARTS["ring"].items() if n in ("tile_k", "epilogue", "swap")}
    found = Neighbourhood(Space(Hopper(), problem, DEVICE, fixed=fixed))(start)
    assert len(found) > 20
    rng = np.random.default_rng(0)
    for index in rng.choice(len(found), 12, replace=False):
        one = found[index]
        broken = {v.law for v in check_schedule(one.schedule, Hopper(), problem, DEVICE)}
        assert broken <= {"concurrency"}
        program = one.schedule.program(Hopper(), problem.operation)
        seconds = float(cost(program, problem.sizes, DEVICE).seconds)
        assert one.predicted_seconds == pytest.approx(seconds, rel=1e-9)
