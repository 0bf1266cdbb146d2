"""The search by measuring: from the model's spread of schedules, by single changes, to the best.

A model knows the good neighbourhood and not the best place in it.  So schedules that differ in more
than details are evaluated first.  Then all legal single changes of the best few, the most promising
first, until none of those that may still gain is left, or the budget is spent.

What a change promises is the time of the schedule that it changes, as evaluated, times what the
model says that the change does, times what was learned of the model's error: a ridge regression of
log(evaluated / predicted) on the values of the decisions.  Where the model is wrong about a value,
it is often as wrong about it elsewhere.

A *single change* gives one decision another value.  Where that alone is illegal, the fewest further
decisions change with it, the model's choice among equals: a wider tile with a stage less.

>>> from tinygpu.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import Problem, matmul
>>> problem = Problem.of(matmul(), m=256, n=256, k=256)
>>> fixed = {**LADDER["tuned"], "raster": (4, 8), "vector_c": (2, 4)}
>>> near = Neighbourhood(Space(Simt(), problem, load_device("h200"), fixed=fixed))
>>> for one in near(Schedule.of(Simt(), LADDER["tuned"])):
...     print(one.schedule["raster"], one.schedule["vector_c"])
8 2
4 4

Source: S. Wright, "Coordinate descent algorithms", 2015; A. Hoerl and R. Kennard, "Ridge
Regression", 1970.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinygpu.machine import Value
from tinygpu.schedule import Schedule
from tinygpu.search.scorer import Points, Scorer
from tinygpu.space import Space

__all__ = ["WIDER", "Candidate", "Neighbourhood", "climb"]

WIDER = ((3, 1.06), (6, 1.1), (12, 1.15))
"""How many of the best are changed, and what a change may promise, in multiples of the best."""
_RIDGE = 1.0
"""What is added to the square of each decision's value: one evaluation's worth of doubt."""
_FURTHER = 2
"""Decisions that may change with another, where that alone is illegal."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its predicted seconds."""

    schedule: Schedule
    predicted_seconds: float


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
    """Return seconds by schedule, infinite for those that failed.

    The first ``spread`` of ``first`` are evaluated in any case, the others if they promise enough.
    ``near`` gives the single changes of a schedule.  ``evaluate`` takes up to ``batch`` schedules
    at once.  The best few that differ in ``apart`` are changed, as far as a change promises nearly
    as little as the best; where that is exhausted, more of them and by more (``WIDER``).  Before
    each batch ``go_on`` is asked.
    """
    predicted = {c.schedule: c.predicted_seconds for c in first}
    later = [c.schedule for c in first[spread:]]
    found: dict[Schedule, float] = {}
    changes: dict[Schedule, Sequence[Candidate]] = {}
    waiting = [c.schedule for c in first[:spread]]
    while waiting and go_on():
        now = waiting[:batch]
        found |= dict(zip(now, evaluate(now), strict=True))
        waiting = waiting[batch:]  # first all of those that are spread
        if waiting:
            continue
        learned = _Learned(found, predicted)
        for width, reach in WIDER:
            promised = {s: predicted[s] * learned.factor(s) for s in later if s not in found}
            for parent in _best(found, apart, width):
                if parent not in changes:
                    changes[parent] = near(parent)
                    predicted |= {c.schedule: c.predicted_seconds for c in changes[parent]}
                of_parent = found[parent] / (predicted[parent] * learned.factor(parent))
                for child in (c.schedule for c in changes[parent] if c.schedule not in found):
                    seconds = of_parent * predicted[child] * learned.factor(child)
                    promised[child] = min(promised.get(child, math.inf), seconds)
            most = reach * min(found.values())
            good = (schedule for schedule, seconds in promised.items() if seconds < most)
            waiting = sorted(good, key=lambda schedule: promised[schedule])[:batch]
            if waiting:
                break
    return found


class _Learned:
    """What evaluations say of the model's error, by the values of the decisions."""

    def __init__(
        self, found: Mapping[Schedule, float], predicted: Mapping[Schedule, float]
    ) -> None:
        """Fit; schedules that failed say nothing."""
        ran = [s for s in found if math.isfinite(found[s])]
        named = {(s.machine, *one) for s in ran for one in s.decisions}
        self.columns = {one: i for i, one in enumerate(sorted(named, key=str))}
        self.weights: NDArray[np.float64] = np.zeros(len(self.columns))
        self.mean = 0.0
        if ran:
            errors = np.array([math.log(found[s] / predicted[s]) for s in ran])
            self.mean = float(errors.mean())
            rows = np.stack([self._row(s) for s in ran])
            normal = rows.T @ rows + _RIDGE * np.eye(len(self.weights))
            self.weights = np.asarray(np.linalg.solve(normal, rows.T @ (errors - self.mean)), float)

    def factor(self, schedule: Schedule) -> float:
        """Return what to multiply a prediction by."""
        return math.exp(self.mean + float(self._row(schedule) @ self.weights))

    def _row(self, schedule: Schedule) -> NDArray[np.float64]:
        row = np.zeros(len(self.columns))
        for one in schedule.decisions:
            if (column := self.columns.get((schedule.machine, *one))) is not None:
                row[column] = 1.0
        return row


def _best(
    found: Mapping[Schedule, float], apart: Callable[[Schedule], object], width: int
) -> list[Schedule]:
    """Return the fastest ``width`` that ran, no two alike in ``apart``."""
    best: dict[object, Schedule] = {}
    for schedule in sorted(found, key=lambda schedule: found[schedule]):
        if math.isfinite(found[schedule]) and len(best) < width:
            best.setdefault(apart(schedule), schedule)
    return list(best.values())


class Neighbourhood:
    """The single changes of a space's schedules; batches that they need are built once."""

    def __init__(self, space: Space) -> None:
        """Build nothing yet."""
        self.space = space
        self._scorers: dict[tuple[Value, ...], Scorer | None] = {}

    def __call__(self, schedule: Schedule) -> list[Candidate]:
        """Return the best legal schedule of each single change that can be mended."""
        space = self.space
        own = tuple(schedule[name] for name in space.structural)
        at = [space.values[name].index(schedule[name]) for name in space.axes]
        here = np.array(at, np.int64)
        found = list(self._changed(own, here, list(_singles(here, space.sums.lengths))))
        for i, name in enumerate(space.structural):
            for value in space.values[name]:
                if value != own[i]:
                    found += self._changed((*own[:i], value, *own[i + 1 :]), here, [()])
        best: dict[Schedule, Candidate] = {}
        for one in found:
            best.setdefault(one.schedule, one)
        return [one for one in best.values() if one.schedule != schedule]

    def _changed(
        self,
        structure: tuple[Value, ...],
        here: NDArray[np.int64],
        changes: Sequence[tuple[int, int] | tuple[()]],
    ) -> Iterator[Candidate]:
        """Yield, for each change of numeric decisions, the best legal point with few more."""
        scorer = self._scorer(structure)
        if scorer is None:
            return
        open_changes = list(changes)
        for further in range(_FURTHER + 1):
            left = []
            for change in open_changes:
                points = _with(here, change, further, scorer.lengths)
                legal = points[scorer.legal(points)]
                if not len(legal):
                    left.append(change)
                    continue
                seconds = scorer.seconds(legal)
                best = int(np.argmin(seconds))
                schedule = self.space.schedule(scorer.batch, legal[best])
                yield Candidate(schedule, float(seconds[best]))
            open_changes = left

    def _scorer(self, structure: tuple[Value, ...]) -> Scorer | None:
        """Return the scorer of a structural choice; None if nothing of it is legal."""
        if structure not in self._scorers:
            space = self.space
            fixed = {**space.fixed, **dict(zip(space.structural, structure, strict=True))}
            part = Space(space.machine, space.problem, space.device, fixed=fixed)
            batches = part.batches()
            self._scorers[structure] = Scorer(batches[0], part) if batches else None
        return self._scorers[structure]


def _singles(here: NDArray[np.int64], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield every (axis, other value)."""
    for axis, length in enumerate(lengths):
        yield from ((axis, value) for value in range(length) if value != here[axis])


def _with(
    here: NDArray[np.int64],
    change: tuple[int, int] | tuple[()],
    further: int,
    lengths: Sequence[int],
) -> Points:
    """Return the points at which ``change`` and exactly ``further`` other decisions differ."""
    start, taken = here.copy(), -1
    if change:
        taken, start[change[0]] = change
        taken = change[0]
    points = start[None, :]
    last = np.full(1, -1)
    for _ in range(further):
        grown, lasts = [points[:0]], [last[:0]]  # where no other decision is open: none
        for axis, value in _singles(here, lengths):
            if axis == taken:
                continue
            some = points[last < axis].copy()  # in ascending order: no set of changes twice
            some[:, axis] = value
            grown.append(some)
            lasts.append(np.full(len(some), axis))
        points, last = np.concatenate(grown), np.concatenate(lasts)
    return points
