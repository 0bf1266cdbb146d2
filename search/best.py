"""The exact best k of a whole legal space under the time model, and scores of many schedules.

The space is a union of batches, one a structural choice, and a batch a product of numeric decisions
cut down by tables.  The search is branch and bound, all vectorised:

- a node assigns the first j decisions of an order; its bound is the time of the features, each
  minimised over the decisions that are still open (maximised, where more is faster).  The time is
  monotone in its features, so no schedule below the node is faster;
- a node is dropped if a table excludes it, or if its bound is not below the k-th best time known;
- before, some random schedules are improved step by step, so that the limit is low from the start.

So the result is that of scoring every schedule.

Source: A. Land and A. Doig, "An Automatic Method of Solving Discrete Programming Problems", 1960.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.schedule import Schedule
from tinygpu.search.cost import Breakdown, cost, features, predict
from tinygpu.space import Batch, Space

__all__ = ["Ranked", "Ranking", "Scorer", "rank"]

Points = NDArray[np.int64]
_CHUNK = 8192
_PATIENCE = 100_000
_SAMPLE, _CLIMBS, _CLIMBERS, _STEPS = 64, 6, 16, 10


@dataclass(frozen=True, slots=True)
class Ranked:
    """A schedule with its predicted seconds and their breakdown."""

    seconds: float
    schedule: Schedule
    breakdown: Breakdown


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best schedules, fastest first, and how many there were: in all, legal, scored."""

    best: tuple[Ranked, ...]
    raw: int
    legal: int
    scored: int


def rank(
    space: Space,
    k: int = 20,
    *,
    distinct: tuple[str, ...] = (),
    exact: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Ranking:
    """Return the k legal schedules with the least predicted time.

    With ``distinct`` decisions, return only the best for each combination of their values:
    schedules that differ in more than details.  Without ``exact``, return the best met by improving
    random schedules of each batch: quick, and not proven.  ``progress(done, all)`` counts batches.
    Raises IllegalScheduleError if nothing is legal.
    """
    space.require()
    with np.errstate(all="ignore"):
        tables = _Tables()
        scorers = [Scorer(batch, space, tables) for batch in space.batches()]
        found = _Best(k, distinct)
        scored = 0
        rng = np.random.default_rng(0)
        for scorer in scorers:
            points = space.points(scorer.batch, rng, _SAMPLE)
            scorer.promise = found.add(scorer, points, scorer.seconds(points))
            scored += len(points)
        scorers.sort(key=lambda s: s.promise)
        order = list(range(len(scorers[0].lengths)))
        for done, scorer in enumerate(scorers[: _CLIMBS if exact else None]):
            here, points = scorer.climb(found, rng)
            scored += here
            if exact and scorer is found.sorted()[0][1]:
                order = scorer.order(points[:4])
            if progress and not exact:
                progress(done + 1, len(scorers))
        for done, scorer in enumerate(scorers if exact else ()):
            scored += scorer.search(found, order)
            if progress:
                progress(done + 1, len(scorers))
    best = []
    for _, scorer, point in found.sorted():
        schedule = space.schedule(scorer.batch, point)
        program = schedule.program(space.machine, space.problem.operation)
        breakdown = cost(program, space.problem.sizes, space.device)
        best.append(Ranked(float(breakdown.seconds), schedule, breakdown))
    best.sort(key=lambda r: r.seconds)
    return Ranking(tuple(best), space.raw, space.count(), scored)


class _OutOfPatienceError(Exception):
    """More nodes were scored than a good order of the decisions needs."""


class _Best:
    """The k fastest points met so far, no two alike in ``distinct`` decisions (all, if none)."""

    def __init__(self, k: int, distinct: tuple[str, ...]) -> None:
        self.k, self.distinct = k, distinct
        self.found: dict[tuple[Any, ...], tuple[float, Scorer, Points]] = {}
        self.limit = np.inf  # what a schedule has to beat

    def add(self, scorer: Scorer, points: Points, seconds: NDArray[np.float64]) -> float:
        """Add points; return the least seconds of all."""
        order = np.argsort(seconds, kind="stable")
        order = order[seconds[order] < self.limit]
        of_points, of_structure = scorer.key(self.distinct)
        _, first = np.unique(points[order][:, of_points], axis=0, return_index=True)
        for i in order[np.sort(first)][: self.k]:
            key = (of_structure, points[i, of_points].tobytes())
            if key not in self.found or seconds[i] < self.found[key][0]:
                self.found[key] = float(seconds[i]), scorer, points[i].copy()
        kept = sorted(self.found.items(), key=lambda item: item[1][0])[: self.k]
        self.found = dict(kept)
        if len(kept) == self.k:
            self.limit = kept[-1][1][0]
        return float(seconds.min(initial=np.inf))

    def limits(self, scorer: Scorer, nodes: Points, chosen: frozenset[int]) -> Any:
        """Return what each node has to beat: the limit, or what is known of its combination."""
        axes, structure = scorer.key(self.distinct)
        if not self.distinct or not chosen.issuperset(a for a in axes if scorer.lengths[a] > 1):
            return self.limit
        rows, where = np.unique(nodes[:, axes], axis=0, return_inverse=True)
        known = [self.found.get((structure, row.tobytes()), (np.inf,))[0] for row in rows]
        return np.minimum(np.array(known)[where.reshape(-1)], self.limit)

    def sorted(self) -> list[tuple[float, Scorer, Points]]:
        """Return (seconds, scorer, point), fastest first."""
        return sorted(self.found.values(), key=lambda item: item[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """An array over some axes: one number of the features."""

    axes: tuple[int, ...]
    values: NDArray[Any]


def _leaf(number: NDArray[Any]) -> _Leaf:
    """Drop the axes of length 1, and the space's memo."""
    axes = tuple(i for i, n in enumerate(number.shape) if n > 1)
    return _Leaf(axes, number.view(np.ndarray).reshape([number.shape[a] for a in axes]))


class _Tables:
    """Features masked and reduced, shared by the batches of a space: they have most in common."""

    def __init__(self) -> None:
        self.joined: dict[tuple[Any, ...], tuple[NDArray[np.bool_], Any]] = {}
        self.reduced: dict[tuple[Any, ...], tuple[_Leaf | float, Any]] = {}


class Scorer:
    """One batch's features, as numbers at points, or as bounds of partly chosen points.

    Decisions are chosen in the given order: bounds are of prefixes of it.
    """

    def __init__(self, batch: Batch, space: Space, tables: _Tables | None = None) -> None:
        self.batch, self.space = batch, space
        self.lengths = tuple(len(v) for v in batch.values)
        self.tables = tables or _Tables()
        with np.errstate(all="ignore"):
            self.features = features(batch.program, space.problem.sizes, space.device)
        self._allowed: dict[tuple[int, frozenset[int]], _Leaf] = {}
        self._legal: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.promise = np.inf
        self._left = _PATIENCE

    def key(self, distinct: tuple[str, ...]) -> tuple[list[int], tuple[Any, ...]]:
        """Return the positions of the distinct numeric decisions, the values of the others."""
        structure = tuple(
            v for n, v in self.batch.structure.items() if not distinct or n in distinct
        )
        axes = [i for i, n in enumerate(self.batch.axes) if not distinct or n in distinct]
        return axes, structure

    def seconds(self, points: Points) -> NDArray[np.float64]:
        """Return the predicted seconds at points, (n, decisions) indices of legal schedules."""
        return self._predicted(points, lambda number, _: _leaf(number))

    def bound(self, points: Points, order: Sequence[int], count: int) -> NDArray[np.float64]:
        """Return a lower bound of the seconds, given the first ``count`` decisions of the order."""
        at = tuple(order)
        return self._predicted(points, lambda number, high: self._reduced(number, high, at, count))

    def _predicted(
        self, points: Points, leaf_of: Callable[[NDArray[Any], bool], _Leaf | float]
    ) -> NDArray[np.float64]:
        result = np.empty(len(points))
        for first in range(0, len(points), _CHUNK):
            columns = np.ascontiguousarray(points[first : first + _CHUNK].T)
            result[first : first + _CHUNK] = self._chunk(columns, leaf_of)
        return result

    def _chunk(
        self, columns: Points, leaf_of: Callable[[NDArray[Any], bool], _Leaf | float]
    ) -> Any:
        flat: dict[tuple[int, ...], NDArray[np.int64]] = {}
        taken: dict[tuple[int, bool], Any] = {}

        def take(number: Any, *, high: bool) -> Any:
            if not isinstance(number, np.ndarray):
                return number
            key = (id(number), high)
            if key not in taken:
                leaf = leaf_of(number, high)
                if not isinstance(leaf, _Leaf):
                    taken[key] = leaf
                    return leaf
                if leaf.axes not in flat:
                    at: Any = 0
                    for axis in leaf.axes:
                        at = at * self.lengths[axis] + columns[axis]
                    flat[leaf.axes] = at
                taken[key] = leaf.values.ravel()[flat[leaf.axes]]
            return taken[key]

        here = self.features.mapped(lambda n: take(n, high=False), lambda n: take(n, high=True))
        return predict(here).seconds

    def _reduced(
        self, number: NDArray[Any], high: bool, order: tuple[int, ...], count: int
    ) -> _Leaf | float:
        """Minimise (maximise) over the open decisions, illegal entries left out."""
        axes = tuple(i for i, n in enumerate(number.shape) if n > 1)
        legal = self._legal_tables(axes)
        left = frozenset(order[:count]) & frozenset(axes)
        key = (id(number), high, legal, left)
        if key in self.tables.reduced:
            return self.tables.reduced[key][0]
        result: _Leaf | float
        if len(left) == len(axes):
            values = _leaf(number).values.astype(np.float64)
            worst = -np.inf if high else np.inf
            values[np.isnan(values) | ~self._joined(axes, legal)] = worst
            result = _Leaf(axes, values) if axes else float(values)
        else:  # from what one more decision leaves open
            more = next(i for i in range(count, len(order)) if order[i] in axes)
            above = self._reduced(number, high, order, more + 1)
            assert isinstance(above, _Leaf)
            drop = above.axes.index(order[more])
            values = above.values.max(axis=drop) if high else above.values.min(axis=drop)
            kept = above.axes[:drop] + above.axes[drop + 1 :]
            result = _Leaf(kept, values) if kept else float(values)
        self.tables.reduced[key] = result, number
        return result

    def _legal_tables(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """Name the tables over some of these axes."""
        if axes not in self._legal:
            inside = (t for t in self.batch.tables if set(t.axes) <= set(axes))
            self._legal[axes] = tuple(sorted(id(t) for t in inside))
        return self._legal[axes]

    def _joined(self, axes: tuple[int, ...], legal: tuple[int, ...]) -> NDArray[np.bool_]:
        """Join the tables over some of these axes."""
        key = (axes, legal)
        if key not in self.tables.joined:
            joined = np.ones([self.lengths[a] for a in axes], bool)
            for table in self.batch.tables:
                if set(table.axes) <= set(axes):
                    shape = [self.lengths[a] if a in table.axes else 1 for a in axes]
                    joined &= table.holds.view(np.ndarray).reshape(shape)
            self.tables.joined[key] = joined, self.batch.tables
        return self.tables.joined[key][0]

    def _inside(self, points: Points, chosen: frozenset[int], last: int) -> NDArray[np.bool_]:
        """Say which points no table excludes, whatever the open decisions; ``last`` is new."""
        inside = np.ones(len(points), bool)
        for i, table in enumerate(self.batch.tables):
            if last not in table.axes:
                continue
            left = chosen & frozenset(table.axes)
            if (i, left) not in self._allowed:
                drop = tuple(j for j, a in enumerate(table.axes) if a not in left)
                kept = tuple(a for a in table.axes if a in left)
                any_legal = np.asarray(table.holds.view(np.ndarray).any(axis=drop))
                self._allowed[i, left] = _Leaf(kept, any_legal)
            leaf = self._allowed[i, left]
            inside &= leaf.values[tuple(points[:, a] for a in leaf.axes)]
        return inside

    def legal(self, points: Points) -> NDArray[np.bool_]:
        """Say which points no table excludes."""
        inside = np.ones(len(points), bool)
        for table in self.batch.tables:
            inside &= table.holds.view(np.ndarray)[tuple(points[:, a] for a in table.axes)]
        return inside

    def climb(self, found: _Best, rng: np.random.Generator) -> tuple[int, Points]:
        """Improve random schedules by single changes, to know early what a schedule has to beat.

        Return how many were scored, and the ends of the climbs, fastest first.
        """
        points = self.space.points(self.batch, rng, 8 * _SAMPLE)
        seconds = self.seconds(points)
        found.add(self, points, seconds)
        scored = len(points)
        points = points[np.argsort(seconds, kind="stable")[:_CLIMBERS]]
        moves = np.array([(a, v) for a, n in enumerate(self.lengths) for v in range(n)])
        for _ in range(_STEPS if len(moves) else 0):
            near = np.repeat(points, len(moves), axis=0)
            near[np.arange(len(near)), np.tile(moves[:, 0], len(points))] = np.tile(
                moves[:, 1], len(points)
            )
            legal = self.legal(near)
            seconds = np.full(len(near), np.inf)
            seconds[legal] = self.seconds(near[legal])
            scored += int(legal.sum())
            found.add(self, near[legal], seconds[legal])
            table = seconds.reshape(len(points), len(moves))
            best = table.argmin(axis=1)
            points = np.unique(near[best + np.arange(len(points)) * len(moves)], axis=0)
        return scored, points[np.argsort(self.seconds(points), kind="stable")]

    def search(self, found: _Best, order: Sequence[int]) -> int:
        """Add this batch's schedules that belong to the best; return how many were scored.

        Where the order proves to be a poor one, go on with one made for this batch.
        """
        nothing = np.zeros((1, len(self.lengths)), np.int64)
        if self.bound(nothing, order, 0).max() >= found.limit:
            return 0
        self._left = _PATIENCE
        try:
            return self._descend(nothing, order, 0, found)
        except _OutOfPatienceError:
            self._left = 1 << 62
            scored, points = self.climb(found, np.random.default_rng(0))
            own = sorted(self.order(points[:4]), key=lambda i: self._values_left(i) > 1)
            return _PATIENCE + scored + self._descend(nothing, own, 0, found)

    def _values_left(self, axis: int) -> int:
        """Return how many values of a decision no table alone excludes."""
        points = np.zeros((self.lengths[axis], len(self.lengths)), np.int64)
        points[:, axis] = np.arange(self.lengths[axis])
        return int(self._inside(points, frozenset({axis}), axis).sum())

    def order(self, points: Points) -> list[int]:
        """Order the decisions: first those that loosen the bound most.

        No single change improves ``points``, so how far the bound falls is looseness alone.
        """
        axes = [i for i, n in enumerate(self.lengths) if n > 1]
        exact = self.seconds(points)
        loose = {}
        for axis in axes:
            last = [*(a for a in axes if a != axis), axis]
            loose[axis] = float(np.mean(self.bound(points, last, len(axes) - 1) / exact))
        return sorted(axes, key=lambda axis: loose[axis])

    def _descend(self, nodes: Points, order: Sequence[int], level: int, found: _Best) -> int:
        """Branch on the next decision, best nodes first and in parts of bounded size."""
        scored = 0
        bounds = self.bound(nodes, order, level)
        while level < len(order) and len(nodes):
            axis = order[level]
            count = self.lengths[axis]
            nodes = np.repeat(nodes, count, axis=0)
            nodes[:, axis] = np.tile(np.arange(count), len(nodes) // count)
            chosen = frozenset(order[: level + 1])
            nodes = nodes[self._inside(nodes, chosen, axis)]
            bounds = self.bound(nodes, order, level + 1)
            scored += len(nodes)
            self._left -= len(nodes)
            if self._left < 0:
                raise _OutOfPatienceError
            keep = np.flatnonzero(bounds < found.limits(self, nodes, chosen))
            keep = keep[np.argsort(bounds[keep], kind="stable")]
            nodes, bounds = nodes[keep], bounds[keep]
            level += 1
            if len(nodes) > 2 * _CHUNK and level < len(
                order
            ):  # depth first: better limits, less memory
                for first in range(0, len(nodes), _CHUNK):
                    here = slice(first, first + _CHUNK)
                    part = nodes[here][bounds[here] < found.limit]
                    scored += self._descend(part, order, level, found)
                return scored
        if len(nodes):
            found.add(self, nodes, bounds)
        return scored
