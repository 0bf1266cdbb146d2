"""It measures what promises most, nothing twice; single changes are those of brute force."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.neighbourhood import Candidate, Neighbourhood
from tinygpu.search.strategies import Domain, walk
from tinygpu.search.strategies.learned import learned
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

# A landscape on the integers: a schedule of a machine "line" whose one decision is its place.


def place(x: int) -> Schedule:
    return Schedule("line", (("x", x),))


def at(schedule: Schedule) -> int:
    return int(schedule["x"])


class Line:
    """Predicted and true seconds by place, and what was asked, batch by batch."""

    def __init__(self, predicted: Sequence[float], true: Sequence[float], reach: int = 1) -> None:
        self.predicted, self.true, self.reach = predicted, true, reach
        self.batches: list[list[int]] = []
        self.changed: list[int] = []

    def candidate(self, x: int) -> Candidate:
        return Candidate(place(x), self.predicted[x])

    def near(self, schedule: Schedule) -> list[Candidate]:
        x = at(schedule)
        self.changed.append(x)
        inside = range(max(0, x - self.reach), min(len(self.true), x + self.reach + 1))
        return [self.candidate(other) for other in inside if other != x]

    def evaluate(self, schedules: Sequence[Schedule]) -> list[float]:
        self.batches.append([at(s) for s in schedules])
        return [self.true[at(s)] for s in schedules]


def always() -> bool:
    return True


def climb(
    first: Sequence[Candidate],
    near: Callable[[Schedule], Sequence[Candidate]],
    evaluate: Callable[[Sequence[Schedule]], Sequence[float]],
    *,
    go_on: Callable[[], bool],
    spread: int = 32,
    apart: Callable[[Schedule], object] = lambda schedule: schedule,
    batch: int = 16,
) -> dict[Schedule, float]:
    """Walk as ``learned`` wants."""
    rng = np.random.default_rng(0)
    steps = learned(Domain(first, near, lambda *_: (), apart), rng, spread=spread, batch=batch)
    return walk(steps, evaluate, go_on=go_on, batch=batch)


times = st.lists(st.floats(0.1, 10) | st.just(math.inf), min_size=1, max_size=30)


@given(times, st.data())
def test_the_climb_ends_where_no_change_promises_more(
    true: list[float], data: st.DataObject
) -> None:
    """Of a right model: each place once, its seconds returned, an optimum at the end."""
    size = len(true)
    predicted = [s if math.isfinite(s) else 1.0 for s in true]
    line = Line(predicted, true, data.draw(st.integers(1, 3)))
    first = data.draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
    batch = data.draw(st.integers(1, 5))
    found = climb(
        [line.candidate(x) for x in first],
        line.near,
        line.evaluate,
        go_on=always,
        batch=batch,
    )
    asked = [x for one in line.batches for x in one]
    assert len(asked) == len(set(asked)) == len(found)
    assert found == {place(x): true[x] for x in asked}
    assert asked[: len(first)] == first  # those that are spread, before any change
    assert max(map(len, line.batches)) <= batch
    assert len(line.changed) == len(set(line.changed))
    best = min(found, key=lambda s: found[s])
    if math.isfinite(found[best]):
        assert all(true[at(c.schedule)] >= found[best] for c in line.near(best))
    else:
        assert line.changed == []  # a schedule that failed is not changed


@pytest.fixture
def widen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set how many of the best are changed, and how much a change may promise."""
    module = import_module("tinygpu.search.strategies.learned")
    return lambda *steps: monkeypatch.setattr(module, "WIDER", steps)


def test_the_most_promising_change_is_measured_first(widen: Callable[..., None]) -> None:
    """It promises its parent's measured time, times what the model says of the change.

    And times what was learned of the model: place 0 took twice as long as predicted, 1 did not.
    """
    predicted = [2.0, 1.0, 1.9, 2.5, 9.0]
    true = [4.0, 1.0, 1.9, 1.0, 1.0]
    line = Line(predicted, true, reach=4)
    widen((3, 1.06))
    climb([line.candidate(0)], line.near, line.evaluate, go_on=always, batch=1)
    assert line.batches == [[0], [1]]  # then the best is 1.0, and 2 promises more than 1.9
    line = Line(predicted, true, reach=4)
    widen((3, 2.3))
    climb([line.candidate(0)], line.near, line.evaluate, go_on=always, batch=1)
    assert line.batches == [[0], [1], [2]]


def test_the_spread_is_measured_and_of_the_others_what_promises(
    widen: Callable[..., None],
) -> None:
    """The first ``spread`` in any case; one value that was slow there is slow in the others."""

    def pair(a: int, b: int) -> Schedule:
        return Schedule("pairs", (("a", a), ("b", b)))

    first = [Candidate(pair(a, b), 1.0 + 0.01 * b) for b in range(8) for a in (0, 1)]
    batches: list[list[Schedule]] = []

    def evaluate(schedules: Sequence[Schedule]) -> list[float]:
        batches.append(list(schedules))
        return [(1.0 + 0.01 * int(s["b"])) * (3.0 if s["a"] else 1.0) for s in schedules]

    widen((3, 1.25))
    found = climb(first, lambda schedule: [], evaluate, go_on=always, spread=6, batch=4)
    assert [len(one) for one in batches] == [4, 2, 4, 1]
    assert [*batches[0], *batches[1]] == [c.schedule for c in first[:6]]
    assert set(found) == {c.schedule for c in first[:6]} | {pair(0, b) for b in range(3, 8)}


def test_several_that_are_apart_are_changed(widen: Callable[..., None]) -> None:
    """The best few, of those that are alike only the fastest."""
    true = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    for width, wanted in ((1, {0}), (2, {0, 3}), (9, {0, 3, 6})):
        line = Line(true, true)
        first = [line.candidate(x) for x in range(8)]
        widen((width, 1.08))
        climb(
            first, line.near, line.evaluate, go_on=always, apart=lambda schedule: at(schedule) // 3
        )
        assert set(line.changed) == wanted


def test_where_the_best_are_exhausted_more_are_changed(widen: Callable[..., None]) -> None:
    """The next step is taken only then, and the first again as soon as something is found."""
    #        0    1    2    3    4    5    6    7
    true = [9.0, 1.0, 9.0, 9.0, 1.5, 1.2, 0.7, 9.0]
    predicted = [9.0, 1.0, 9.0, 9.0, 1.5, 1.2, 1.6, 9.0]
    line = Line(predicted, true)
    widen((1, 1.06), (2, 1.3))
    first = [line.candidate(x) for x in (1, 4)]
    climb(first, line.near, line.evaluate, go_on=always, batch=2)
    assert line.changed[:2] == [1, 4]  # those beside 1 promise nothing, so 4 is changed
    assert line.batches[:2] == [[1, 4], [5]]
    line = Line(predicted, true)
    widen((1, 1.06))
    climb([line.candidate(x) for x in (1, 4)], line.near, line.evaluate, go_on=always, batch=2)
    assert (line.changed, line.batches) == ([1], [[1, 4]])


@given(st.integers(0, 6))
def test_it_stops_when_told(batches: int) -> None:
    """Before each batch it asks; what it has is returned."""
    numbers = count()
    line = Line([1.0 / (1 + x) for x in range(40)], [1.0 / (1 + x) for x in range(40)])
    found = climb(
        [line.candidate(0)], line.near, line.evaluate, go_on=lambda: next(numbers) < batches
    )
    assert len(line.batches) == len(found) == batches


def test_what_failed_is_infinite() -> None:
    """It is returned so, and neither changed nor tried again."""
    line = Line([1.0] * 5, [2.0, math.inf, 2.0, math.inf, 2.0])
    found = climb([line.candidate(x) for x in (1, 2)], line.near, line.evaluate, go_on=always)
    assert {at(s) for s, seconds in found.items() if seconds == math.inf} == {1, 3}
    assert line.changed == [2]


# Single changes.


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


@settings(max_examples=20)
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


def test_a_climb_on_the_model_finds_the_best_of_a_small_space() -> None:
    """From every tenth schedule, with all that promises more: what no change improves."""
    _, near, legal = small()

    def evaluate(schedules: Sequence[Schedule]) -> list[float]:
        return [legal[s] for s in schedules]

    known: dict[Schedule, list[Candidate]] = {}

    def cached(schedule: Schedule) -> list[Candidate]:
        return known.setdefault(schedule, near(schedule))

    near_of: Callable[[Schedule], list[Candidate]] = cached
    starts = list(legal)[::10]
    found = climb([Candidate(s, legal[s]) for s in starts], near_of, evaluate, go_on=always)
    best = min(found, key=lambda s: found[s])
    assert found[best] <= min(c.predicted_seconds for c in near(best)) * (1 + 1e-9)
    assert found[best] == pytest.approx(min(legal.values()))
