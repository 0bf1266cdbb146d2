"""Residual: what a time model is wrong by at each schedule, as a Gaussian process.

With s(x) the measured and p(x) the predicted seconds of schedule x, the process is of

    r(x) = log s(x) - log p(x),    r ~ GP(0, SCALE^2 exp(-|x - y|)),

known where it was measured, up to NOISE.  Its mean is 0 far from all that was measured: there the
model is believed, and what is unknown is not called slow because what is known is.  Only an error
of more than COMMON that the known ones of a machine share, by generalised least squares, is one of
its rates', another device's or clock's, and is taken off first; it says nothing of other machines.

A schedule is a point (``embedded``).  A decision with three numbers or more, as a tile's edge, is
one coordinate, the rank of its value among those that occur, from 0 to 2; one with two or with
names, as an early start, differs by 1/4 or not at all: it changes what the model is wrong by far
less.  Schedules of two machines are so far apart that they tell nothing of one another.

>>> places = [Schedule("line", (("x", x), ("way", "st"))) for x in range(3)]
>>> known = Residual(places).given({0: 0.1})
>>> known.mean.round(3).tolist(), known.deviation.round(3).tolist()
([0.099, 0.036, 0.013], [0.01, 0.093, 0.099])

Source: C. Rasmussen and C. Williams, "Gaussian Processes for Machine Learning", 2006, algorithm 2.1
and section 4.2 (the exponential kernel); the numbers: ``docs/measuring.md``, section "Searched".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tinygpu.term.schedule import Schedule

__all__ = ["COMMON", "NOISE", "SCALE", "Posterior", "Residual", "embedded"]

SCALE, NOISE, COMMON = 0.1, 0.01, 0.15
"""What the model is usually wrong by, a measurement, and at most all together, as logarithms."""
_RANGE, _OTHER, _FOREIGN = 2.0, 0.25, 30.0
"""How far apart the least and the largest number are, two values of few, and two machines."""
Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Posterior:
    """The process at all points, given some: ``mean`` and ``variance``, of shape (points,).

    ``rows`` are those of the Cholesky factor's inverse times the covariances, of shape (given,
    points): what a further point is conditioned by.
    """

    points: Points
    mean: Points
    variance: Points
    rows: Points = field(repr=False)
    worse: float = 1.0

    @property
    def deviation(self) -> Points:
        """The standard deviation at all points."""
        return np.asarray(self.worse * np.sqrt(self.variance))

    def asked(self, index: int) -> Posterior:
        """Return it as it is once point ``index`` is known, if that is what the mean says.

        Then the mean stays, and all are surer.
        """
        with_it = _covariance(self.points[index : index + 1], self.points)[0]
        row = with_it - self.rows[:, index] @ self.rows
        row /= np.sqrt(self.variance[index] + NOISE**2)
        variance = np.maximum(self.variance - row**2, 0.0)
        return replace(self, variance=variance, rows=np.vstack([self.rows, row]))


class Residual:
    """The process at schedules."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.points = embedded(schedules)
        self.machines = np.array([schedule.machine for schedule in schedules])

    def given(self, known: Mapping[int, float]) -> Posterior:
        """Return what is known of all, given r of some, by their place."""
        at = list(known)
        across = _covariance(self.points[at], self.points)
        factor = np.linalg.cholesky(across[:, at] + NOISE**2 * np.eye(len(at)))
        errors = np.array(list(known.values()), float)
        rows, error = (np.linalg.solve(factor, x) for x in (across, errors))
        shared = np.zeros(len(self.points))
        for machine in np.unique(self.machines[at]):
            own = self.machines == machine
            one = np.linalg.solve(factor, own[at].astype(float))
            common = float(one @ error) / max(float(one @ one), 1e-300)
            if abs(common) > COMMON:
                error -= common * one
                shared[own] = common
        variance = np.maximum(SCALE**2 - (rows**2).sum(axis=0), 0.0)
        worse = max(1.0, float(np.sqrt(error @ error / max(1, len(at)))))
        return Posterior(self.points, shared + error @ rows, variance, rows, worse)


def embedded(schedules: Sequence[Schedule]) -> Points:
    """Return schedules as points of shape (schedules, coordinates), whose distance is Euclid's."""
    columns: list[NDArray[np.float64]] = []
    half = np.sqrt(0.5)  # two that differ in a name differ in two coordinates
    machines = [schedule.machine for schedule in schedules]
    columns += [_FOREIGN * half * _is(machines, name) for name in sorted(set(machines))]
    chosen = [dict(schedule.decisions) for schedule in schedules]
    for name in sorted({name for one in chosen for name in one}):
        values = [one.get(name) for one in chosen]
        numbers = sorted({value for value in values if isinstance(value, int)})
        if len(numbers) > 1:
            far = _RANGE if len(numbers) > 2 else _OTHER
            rank = {value: far * i / (len(numbers) - 1) for i, value in enumerate(numbers)}
            columns.append(
                np.array([rank.get(v, 0.0) if isinstance(v, int) else 0.0 for v in values])
            )
        for said in sorted({value for value in values if isinstance(value, str)}):
            columns.append(_OTHER * half * _is(values, said))
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0))


def _is(values: Sequence[object], one: object) -> NDArray[np.float64]:
    return np.array([float(value == one) for value in values])


def _covariance(a: Points, b: Points) -> Points:
    """Return the covariances of r at points, of shape (a, b)."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * (a @ b.T)
    return np.asarray(SCALE**2 * np.exp(-np.sqrt(np.maximum(squares, 0.0))))
