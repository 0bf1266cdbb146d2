"""Scores: the predicted seconds of many schedules of one batch, and bounds of partly chosen ones.

A *point* is an index along each numeric decision of the batch.  Its time is exact: that of the
schedule's own program.  The *bound* of a point's first decisions of an order is at most the time
of every legal schedule that agrees with it in them: each table is reduced to its least entry
(greatest, where more is faster) over the decisions that are open, illegal entries left out.

Source: ``docs/model.md``, theorem "monotone, so branch and bound is exact".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from operator import and_

import numpy as np

from tinygpu.numbers import Booleans, Floats, Integers
from tinygpu.search.exact.least import Kept, Least
from tinygpu.search.time.cost import cost
from tinygpu.search.time.deferred import (
    Deferred,
    DeferredStep,
    LookedUp,
    Tables,
    at,
    dear,
    steps_of,
)
from tinygpu.space.space import Batch, Space
from tinygpu.term.machine import Value

__all__ = ["Points", "Scorer", "Scorers"]

Points = Integers
_DIGITS = 9
"""Of how loose a decision is: beyond them two are equal, and come in the machine's order."""
_CHUNK = 16384
"""Points at once: their intermediate results stay in a core's cache."""


class Scorers:
    """The scorers of a space, each made when its structural choice is asked for.

    Its batches have most tables in common.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.tables = Tables(space.sums.lengths)
        self.least = Kept()
        self.allowed: dict[tuple[int, frozenset[int]], tuple[tuple[int, ...], Booleans]] = {}
        self._made: dict[tuple[Value, ...], Scorer | None] = {}

    def of(self, structure: Mapping[str, Value]) -> Scorer | None:
        """Return the scorer of a structural choice, None if nothing of it is admissible."""
        key = tuple(structure[name] for name in self.space.structural)
        if key not in self._made:
            batch = self.space.batch(structure)
            self._made[key] = Scorer(batch, self.space, self) if batch else None
        return self._made[key]

    def forget(self) -> None:
        """Drop what only the features asked for."""
        self.tables.forget()
        self.space.forget()


class Scorer:
    """The time of one batch's schedules, and where they are legal."""

    def __init__(self, batch: Batch, space: Space, shared: Scorers | None = None) -> None:
        """Predict the batch's term; scorers of one space work less if they share."""
        self.batch, self.space = batch, space
        self.lengths = tuple(len(v) for v in batch.values)
        self.shared = shared or Scorers(space)
        of = self.shared.tables.of
        with np.errstate(all="ignore"):
            sizes, device = space.problem.sizes, space.device
            predicted = cost(batch.program, sizes, device, of=of)
        self.time, self.floor = predicted.seconds, predicted.floor
        self._least = Least(batch.tables, self.lengths, self.shared.least)
        self._known: dict[bytes, float] = {}

    @cached_property
    def _exact(self) -> tuple[DeferredStep, ...]:
        return steps_of(self.time) if self.floor is not None else self._bounded

    @cached_property
    def _bounded(self) -> tuple[DeferredStep, ...]:
        return steps_of(self.time if self.floor is None else self.floor, bounded=True)

    @cached_property
    def _legal(self) -> tuple[DeferredStep, ...]:
        return steps_of(self._conjunction())

    @cached_property
    def dear(self) -> bool:
        """Whether the steps of points are followed one by one, a hundredth of a second each."""
        return any(dear(step.function) for step in self._exact)

    def seconds(self, points: Points) -> Floats:
        """Return the predicted seconds at points, (n, decisions) indices of legal schedules."""
        if not self.dear:
            return self._seconds(points)
        keys = [point.tobytes() for point in points]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        self._known |= zip((keys[i] for i in new), self._seconds(points[new]).tolist(), strict=True)
        return np.array([self._known[key] for key in keys], np.float64)

    def _seconds(self, points: Points) -> Floats:
        with np.errstate(all="ignore"):
            return self._at(self._exact, points, _itself)

    def least(self, points: Points) -> Floats:
        """Return a lower bound of the seconds at points, made without following their steps."""
        with np.errstate(all="ignore"):
            return self._at(self._bounded, points, _itself)

    def bound(self, points: Points, order: Sequence[int], count: int) -> Floats:
        """Return a lower bound of the seconds, given the first ``count`` decisions of the order."""
        if count == len(order):
            return self.seconds(points)
        chosen = frozenset(order[:count])

        def reduced(table: Deferred, most: bool) -> Deferred | float:
            return self._least.of(table, most, order, chosen)

        return self._at(self._bounded, points, reduced)

    def legal(self, points: Points) -> Booleans:
        """Say which points no table excludes."""
        if not self._legal:
            return np.ones(len(points), bool)
        columns = np.ascontiguousarray(points.T)
        return np.asarray(at(self._legal, columns, _itself))

    def allows(self, points: Points, chosen: frozenset[int], last: int) -> Booleans:
        """Say which points no table excludes, whatever the open decisions; ``last`` is new."""
        inside = np.ones(len(points), bool)
        for table in self.batch.tables:
            if last not in table.axes:
                continue
            key = id(table), chosen & frozenset(table.axes)
            if key not in self.shared.allowed:
                drop = tuple(i for i, a in enumerate(table.axes) if a not in chosen)
                kept = tuple(a for a in table.axes if a in chosen)
                free = np.asarray(table.holds.view(np.ndarray).any(axis=drop))
                self.shared.allowed[key] = kept, free
            kept, allowed = self.shared.allowed[key]
            inside &= allowed[tuple(points[:, a] for a in kept)]
        return inside

    def order(self, loose: Sequence[Floats]) -> list[int]:
        """Order the decisions: first those that loosen the bound most, where they are open.

        The bound of full points is loose as well, in some batches more: that is of no decision.
        """
        with np.errstate(all="ignore"):
            own = [row / np.nanmax(row) for row in loose if not np.isnan(row).all()]
        mean = np.ma.masked_invalid(own or [np.ones(len(self.lengths))]).mean(axis=0).filled(1.0)
        axes = [axis for axis, length in enumerate(self.lengths) if length > 1]
        return sorted(axes, key=lambda axis: round(float(mean[axis]), _DIGITS))

    def looseness(self, points: Points) -> Floats:
        """Return by which factor the bound falls where a decision is open; NaN: none is.

        No single change improves ``points``, so how far the bound falls is looseness alone.
        """
        exact, found = self.seconds(points), np.full(len(self.lengths), np.nan)
        for axis in range(len(self.lengths)):
            if self.values_left(axis) > 1:
                found[axis] = np.mean(self.beside(points, axis) / exact)
        return found

    def values_left(self, axis: int) -> int:
        """Return how many values of a decision no table alone excludes."""
        points = np.zeros((self.lengths[axis], len(self.lengths)), np.int64)
        points[:, axis] = np.arange(self.lengths[axis])
        return int(self.allows(points, frozenset({axis}), axis).sum())

    def beside(self, points: Points, axis: int) -> Floats:
        """Return the bounds of points of which one decision is open.

        Few entries are looked at, where ``bound`` reduces whole tables.
        """
        columns = np.ascontiguousarray(points.T)
        legal: dict[tuple[int, ...], Booleans] = {}

        def along(axes: tuple[int, ...]) -> tuple[Integers, ...]:
            """Return indices of (points, values of the open decision)."""
            every = np.arange(self.lengths[axis])[None, :]
            return tuple(every if a == axis else columns[a][:, None] for a in axes)

        def reduced(table: Deferred, most: bool) -> Deferred | Floats:
            if axis not in table.axes:
                return table
            assert table.table is not None
            if table.axes not in legal:
                tables = self._least.over(table.axes)
                here = [t.holds.view(np.ndarray)[along(t.axes)] for t in tables]
                legal[table.axes] = reduce(and_, here, np.ones((len(points), 1), bool))
            values = table.table[along(table.axes)]
            never = -np.inf if most else np.inf
            entries = np.where(legal[table.axes], values, never)
            return np.asarray((np.fmax if most else np.fmin).reduce(entries, axis=1, initial=never))

        return np.asarray(at(self._bounded, columns, reduced))

    def _at(
        self,
        steps: tuple[DeferredStep, ...],
        points: Points,
        looked_up: Callable[[Deferred, bool], LookedUp],
    ) -> Floats:
        result = np.empty(len(points))
        for first in range(0, len(points), _CHUNK):
            columns = np.ascontiguousarray(points[first : first + _CHUNK].T)
            result[first : first + _CHUNK] = at(steps, columns, looked_up)
        return result

    def _conjunction(self) -> Deferred | bool:
        """Join the batch's tables, to few that are as large as tables get."""
        groups: list[Deferred] = []
        for table in sorted(self.batch.tables, key=lambda t: t.axes):
            one = self.shared.tables.over(table.axes, table.holds)
            for i, group in enumerate(groups):
                both = group & one
                if both.table is not None:
                    groups[i] = both
                    break
            else:
                groups.append(one)
        return reduce(and_, groups) if groups else True


def _itself(table: Deferred, most: bool) -> Deferred:
    return table
