"""The exact best k of a whole legal space under the time model, and scores of many schedules.

The space is a union of batches, one a structural choice, and a batch a product of numeric decisions
cut down by tables.  The search is branch and bound, all vectorised:

- a node assigns the first j decisions of an order; its bound is the time of the features, each
  minimised over the decisions that are still open (maximised, where more is faster).  The time is
  monotone in its features, so no schedule below the node is faster;
- a node is dropped if a table excludes it, or if its bound is not below the k-th best time known;
- batches are taken in the order of their bounds at the root, each after some random schedules have
  been improved step by step, so that the limit is low from the start.

So the result is that of scoring every schedule, with ties in the order in which they were met.

Source: A. Land and A. Doig, "An Automatic Method of Solving Discrete Programming Problems", 1960.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.schedule import Schedule
from tinygpu.search.cost import Breakdown, Features, cost, features, predict
from tinygpu.space import Batch, Space

__all__ = ["Ranked", "Ranking", "Scorer", "rank"]

Points = NDArray[np.int64]
_CHUNK = 8192
_SAMPLE, _CLIMBERS, _STEPS = 2048, 32, 8


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
    space: Space, k: int = 20, *, progress: Callable[[int, int], None] | None = None
) -> Ranking:
    """Return the k legal schedules with the least predicted time.

    ``progress(done, all)`` counts batches.  Raises IllegalScheduleError if nothing is legal.
    """
    space.require()
    with np.errstate(all="ignore"):
        scorers = [Scorer(batch, space) for batch in space.batches()]
        scorers.sort(key=lambda s: s.root)
        found = _Best(k)
        scored = 0
        for done, scorer in enumerate(scorers):
            if scorer.root < found.limit:
                scored += scorer.search(found)
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


class _Best:
    """The k fastest points met so far."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.seconds = np.empty(0)
        self.where: list[tuple[Scorer, Points]] = []

    @property
    def limit(self) -> float:
        """What a schedule has to beat."""
        return float(self.seconds[-1]) if len(self.seconds) >= self.k else np.inf

    def add(self, scorer: Scorer, points: Points, seconds: NDArray[np.float64]) -> None:
        """Add points, but for those that are there already."""
        order = np.argsort(seconds, kind="stable")[: self.k]
        known = {p.tobytes() for s, p in self.where if s is scorer}
        fresh = [i for i in order if points[i].tobytes() not in known]
        where = [*self.where, *((scorer, points[i].copy()) for i in fresh)]
        all_seconds = np.concatenate([self.seconds, seconds[fresh]])
        kept = np.argsort(all_seconds, kind="stable")[: self.k]
        self.seconds = all_seconds[kept]
        self.where = [where[i] for i in kept]

    def sorted(self) -> list[tuple[float, Scorer, Points]]:
        """Return (seconds, scorer, point), fastest first."""
        return [(float(t), s, p) for t, (s, p) in zip(self.seconds, self.where, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """An array over some axes: one number of the features."""

    axes: tuple[int, ...]
    values: NDArray[Any]


class Scorer:
    """One batch's features, as numbers at points, or as bounds of partly chosen points."""

    def __init__(self, batch: Batch, space: Space) -> None:
        self.batch, self.space = batch, space
        self.lengths = tuple(len(v) for v in batch.values)
        with np.errstate(all="ignore"):
            self.features = features(batch.program, space.problem.sizes, space.device)
        self._masked: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self._reduced: dict[tuple[int, bool, frozenset[int]], _Leaf | float] = {}
        self._allowed: dict[tuple[int, frozenset[int]], _Leaf] = {}
        nothing = np.zeros((1, len(self.lengths)), np.int64)
        self.root = float(np.max(self.bound(nothing, frozenset())))

    def seconds(self, points: Points) -> NDArray[np.float64]:
        """Return the predicted seconds at points, (n, decisions) indices of legal schedules."""
        return self.bound(points, frozenset(range(len(self.lengths))))

    def bound(self, points: Points, chosen: frozenset[int]) -> NDArray[np.float64]:
        """Return a lower bound of the seconds, given the ``chosen`` decisions of each point."""
        result = np.empty(len(points))
        for first in range(0, len(points), _CHUNK):
            part = points[first : first + _CHUNK]
            columns = np.ascontiguousarray(part.T)
            flat: dict[tuple[int, ...], NDArray[np.int64]] = {}
            taken: dict[int, Any] = {}

            def take(number: Any, *, high: bool) -> Any:
                if not isinstance(number, np.ndarray) or number.size == 1:
                    return number.item() if isinstance(number, np.ndarray) else number
                leaf = self._reduce(number, high, chosen)
                if not isinstance(leaf, _Leaf):
                    return leaf
                if id(leaf) not in taken:
                    if leaf.axes not in flat:
                        at: Any = 0
                        for axis in leaf.axes:
                            at = at * self.lengths[axis] + columns[axis]
                        flat[leaf.axes] = at
                    taken[id(leaf)] = leaf.values.ravel()[flat[leaf.axes]]
                return taken[id(leaf)]

            here = self.features.mapped(lambda n: take(n, high=False), lambda n: take(n, high=True))
            result[first : first + _CHUNK] = predict(here).seconds
        return result

    def _reduce(self, number: NDArray[Any], high: bool, chosen: frozenset[int]) -> _Leaf | float:
        """Minimise (maximise) over the open axes, illegal entries left out."""
        axes = tuple(i for i, n in enumerate(number.shape) if n > 1)
        left = chosen & frozenset(axes)
        key = (id(number), high, left)
        if key not in self._reduced:
            values = self._mask(number, axes, high)
            drop = tuple(i for i, axis in enumerate(axes) if axis not in left)
            if drop:
                values = values.max(axis=drop) if high else values.min(axis=drop)
            kept = tuple(a for a in axes if a in left)
            self._reduced[key] = _Leaf(kept, values) if kept else float(values)
        return self._reduced[key]

    def _mask(self, number: NDArray[Any], axes: tuple[int, ...], high: bool) -> NDArray[Any]:
        """Put the worst value where a table over these axes excludes a point."""
        key = (id(number), high)
        if key not in self._masked:
            plain = number.view(np.ndarray)  # without the space's memo
            values = plain.reshape([plain.shape[a] for a in axes]).astype(np.float64)
            worst = -np.inf if high else np.inf
            values = np.where(np.isnan(values), worst, values)
            for table in self.batch.tables:
                if set(table.axes) <= set(axes):
                    shape = [self.lengths[a] if a in table.axes else 1 for a in axes]
                    values = np.where(table.holds.view(np.ndarray).reshape(shape), values, worst)
            self._masked[key] = values, number
        return self._masked[key][0]

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
                self._allowed[i, left] = _Leaf(kept, table.holds.view(np.ndarray).any(axis=drop))
            leaf = self._allowed[i, left]
            inside &= leaf.values[tuple(points[:, a] for a in leaf.axes)]
        return inside

    def legal(self, points: Points) -> NDArray[np.bool_]:
        """Say which points no table excludes."""
        inside = np.ones(len(points), bool)
        for table in self.batch.tables:
            inside &= table.holds.view(np.ndarray)[tuple(points[:, a] for a in table.axes)]
        return inside

    def climb(self, found: _Best, rng: np.random.Generator) -> tuple[int, NDArray[np.float64]]:
        """Improve random schedules by single changes, to know early what a schedule has to beat.

        Return how many were scored, and by how much, on average, each decision moves the time.
        """
        points = self.space.points(self.batch, rng, _SAMPLE)
        seconds = self.seconds(points)
        found.add(self, points, seconds)
        scored = len(points)
        points = points[np.argsort(seconds, kind="stable")[:_CLIMBERS]]
        moves = np.array([(a, v) for a, n in enumerate(self.lengths) for v in range(n)])
        spread = np.zeros(len(self.lengths))
        for step in range(_STEPS):
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
            if step == 0:
                finite = np.where(np.isfinite(table), table, np.nan)
                for axis in range(len(self.lengths)):
                    of_axis = finite[:, moves[:, 0] == axis]
                    ratio = np.nanmax(of_axis, axis=1) / np.nanmin(of_axis, axis=1)
                    spread[axis] = float(np.nanmean(np.log(ratio)))
            best = table.argmin(axis=1)
            points = np.unique(near[best + np.arange(len(points)) * len(moves)], axis=0)
        return scored, spread

    def search(self, found: _Best) -> int:
        """Add this batch's schedules that belong to the best; return how many were scored.

        Decisions with one value left come first, then those that move the time most.
        """
        scored, spread = self.climb(found, np.random.default_rng(0))
        if self.root >= found.limit:
            return scored
        open_axes = [i for i, n in enumerate(self.lengths) if n > 1]
        choices = {i: int(self._values_left(i).sum()) for i in open_axes}
        order = sorted(open_axes, key=lambda i: (choices[i] > 1, -spread[i]))
        nothing = np.zeros((1, len(self.lengths)), np.int64)
        return scored + self._descend(nothing, order, 0, found)

    def _values_left(self, axis: int) -> NDArray[np.bool_]:
        """Say which values of a decision no table alone excludes."""
        points = np.zeros((self.lengths[axis], len(self.lengths)), np.int64)
        points[:, axis] = np.arange(self.lengths[axis])
        return self._inside(points, frozenset({axis}), axis)

    def _descend(self, nodes: Points, order: Sequence[int], level: int, found: _Best) -> int:
        """Branch on the next decision, best nodes first and in parts of bounded size."""
        scored = 0
        while level < len(order) and len(nodes):
            axis = order[level]
            count = self.lengths[axis]
            nodes = np.repeat(nodes, count, axis=0)
            nodes[:, axis] = np.tile(np.arange(count), len(nodes) // count)
            chosen = frozenset(order[: level + 1])
            nodes = nodes[self._inside(nodes, chosen, axis)]
            bounds = self.bound(nodes, chosen)
            scored += len(nodes)
            keep = np.flatnonzero(bounds < found.limit)
            keep = keep[np.argsort(bounds[keep], kind="stable")]
            nodes, bounds = nodes[keep], bounds[keep]
            level += 1
            if len(nodes) > 2 * _CHUNK:  # depth first: better limits, less memory
                for first in range(0, len(nodes), _CHUNK):
                    here = slice(first, first + _CHUNK)
                    part = nodes[here][bounds[here] < found.limit]
                    scored += self._descend(part, order, level, found)
                return scored
        if len(nodes):
            found.add(self, nodes, bounds)
        return scored
