"""``learned``: single changes of the best, by what they promise and what was learned of the model.

A model knows the good neighbourhood and not the best place in it.  So schedules that differ in more
than details are evaluated first.  Then all legal single changes of the best few, the most promising
first, until none of those that may still gain is left.

What a change promises is the time of the schedule that it changes, as evaluated, times what the
model says that the change does, times what was learned of the model's error: a ridge regression of
log(evaluated / predicted) on the values of the decisions.  Where the model is wrong about a value,
it is often as wrong about it elsewhere.

Source: S. Wright, "Coordinate descent algorithms", 2015; A. Hoerl and R. Kennard, "Ridge
Regression", 1970.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.strategies.walk import Domain, Steps
from tinygpu.term.schedule import Schedule

__all__ = ["WIDER", "learned"]

WIDER = ((3, 1.06), (6, 1.1), (12, 1.15))
"""How many of the best are changed, and what a change may promise, in multiples of the best."""
_RIDGE = 1.0
"""What is added to the square of each decision's value: one evaluation's worth of doubt."""


def learned(
    domain: Domain, rng: np.random.Generator, *, spread: int = 32, batch: int = 16
) -> Steps:
    """Ask for the first ``spread``, then for up to ``batch`` of what promises most.

    The others of the first are asked for if they promise enough.  The best few that differ in
    ``apart`` are changed, as far as a change promises nearly as little as the best; where that is
    exhausted, more of them and by more (``WIDER``).
    """
    predicted = {c.schedule: c.predicted_seconds for c in domain.first}
    later = [c.schedule for c in domain.first[spread:]]
    changes: dict[Schedule, Sequence[Candidate]] = {}
    waiting = [c.schedule for c in domain.first[:spread]]
    while waiting:
        found = yield waiting
        known = _Learned(found, predicted)
        for width, reach in WIDER:
            promised = {s: predicted[s] * known.factor(s) for s in later if s not in found}
            for parent in _best(found, domain.apart, width):
                if parent not in changes:
                    changes[parent] = domain.near(parent)
                    predicted |= {c.schedule: c.predicted_seconds for c in changes[parent]}
                of_parent = found[parent] / (predicted[parent] * known.factor(parent))
                for child in (c.schedule for c in changes[parent] if c.schedule not in found):
                    seconds = of_parent * predicted[child] * known.factor(child)
                    promised[child] = min(promised.get(child, math.inf), seconds)
            most = reach * min(found.values())
            good = (schedule for schedule, seconds in promised.items() if seconds < most)
            waiting = sorted(good, key=lambda schedule: promised[schedule])[:batch]
            if waiting:
                break


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
