"""Branch and bound over the batches of a space.

A node assigns the first j decisions of an order; its bound is at most the time of each schedule
below it.  A node is dropped if a table excludes it, or if its bound is not below the k-th best time
known.  Before, some random schedules are improved step by step, so that the limit is low from the
start: ``Search.start``, then ``Search.finish``.

Source: A. Land and A. Doig, "An Automatic Method of Solving Discrete Programming Problems", 1960.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from tinygpu.deadline import NEVER, Deadline
from tinygpu.numbers import Floats, Number
from tinygpu.search.exact.scorer import Points, Scorer, Scorers
from tinygpu.search.exact.steps import Climb, Place
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.schedule import Schedule

__all__ = ["Entry", "Key", "Progress", "Search"]

Key = tuple[tuple[Value, ...], bytes]
"""What tells schedules apart: structural values, and the numeric decisions' indices."""
Entry = tuple[Key, float, Schedule]
Progress = Callable[[int, int], None]

_PART = 8192
_FEW = 1024
"""Nodes whose bounds take less time than the steps to them: decide more before looking."""
_PATIENCE = 1_000_000
_FOLLOWED = 400
"""Schedules up to which a space is searched whole, though each is followed singly."""
_SHARED = 100
"""Schedules from which on two processes follow them sooner than one, in spite of their start."""
_DRAWING_SHARE = 0.4
"""Of a deadline, what is for building batches and drawing from them."""
_DRAWN, _STARTS, _STARTS_OF_A_PART = 24, 5, 2
"""Draws that are followed where that is dear: those of the least bounds; how many are climbed from.
"""
_SAMPLE, _CLIMBS, _CLIMBERS, _STEPS = 64, 3, 16, 10


class Search:
    """The search for the k best of a space, no two alike in ``spread`` (if none: in all decisions).

    ``scored`` counts what was given a time, or a bound if partly chosen, ``climbed`` those of
    batches that are not searched: too many, and too dear.
    """

    def __init__(
        self,
        space: Space,
        k: int,
        spread: tuple[str, ...],
        below: float = np.inf,
        every: Scorers | None = None,
    ) -> None:
        """Know nothing yet; what takes ``below`` seconds or more is of no interest.

        Searches of one space work less if they share ``every`` scorer.
        """
        self.space, self.every = space, every or Scorers(space)
        self.found = _Best(k, spread, below)
        self.scorers: list[Scorer] = []
        self.loose: dict[Scorer, Floats] = {}
        self.scored = self.climbed = 0

    def start(
        self,
        *,
        exact: bool = True,
        progress: Progress | None = None,
        until: Deadline = NEVER,
        structures: Sequence[Mapping[str, Value]] | None = None,
        begin: Sequence[Mapping[str, Value]] = (),
    ) -> int:
        """Draw from every batch, and climb in the most promising ones (without exact, in all).

        ``structures``: the structural choices that it draws from, all if none are given; where a
        time is dear it climbs to others, too, first of all from values that ``begin`` names.
        Nothing is begun that would not end by ``until``, of which a share is for the draws, if it
        took as long as what was done before it.  Returns how many schedules are admissible in the
        batches that it drew from.
        """
        space, found, rng = self.space, self.found, np.random.default_rng(0)
        with np.errstate(all="ignore"):
            admissible = 0
            promises = {}
            drawn: dict[Hashable, tuple[float, Place]] = {}
            many = not exact or space.count() > _FOLLOWED
            climb = Climb(self.every, found.add, until)
            for values in begin if many else ():
                climb.from_the_fastest(self._places(values, rng), 1)
            drawing = until if until.open else until.sooner(_DRAWING_SHARE * until.left())
            began = until.clock()
            starts = _STARTS if structures is None else _STARTS_OF_A_PART
            every = structures is None
            if structures is None:
                structures = space.drawn() if many else space.structures()
            for structure in structures:
                scorer = self.every.of(structure)
                if scorer is not None:
                    admissible += scorer.batch.count
                    points = space.points(scorer.batch, rng, _SAMPLE)
                    if many and scorer.dear:
                        _draw(drawn, scorer, points)
                    else:
                        seconds = self._seconds(scorer, points)
                        promises[scorer] = found.add(scorer, points, seconds)
                        self.scored += len(points)
                if drawing.left() < (took := until.clock() - began):
                    break
                began += took
            least = sorted(drawn.values(), key=lambda one: one[0])[:_DRAWN]
            climb.from_the_fastest([place for _, place in least], starts)
            self.climbed = climb.followed
            self.scored += self.climbed
            self.scorers = sorted(promises, key=lambda scorer: promises[scorer])
            began = until.clock()
            whole = exact and any(scorer.dear for scorer in self.scorers)  # each is followed anyway
            climbs = 0 if whole else _CLIMBS if exact else None
            for done, scorer in enumerate(self.scorers[:climbs], 1):
                scored, ends = _climb(scorer, found, rng)
                self.scored += scored
                if exact:
                    self.loose[scorer] = scorer.looseness(ends[:4])
                if progress:
                    progress(done, len(self.scorers))
                if until.left() < (took := until.clock() - began):
                    break
                began += took
        self.every.forget()
        return space.count() if every and exact else admissible

    def follows_all(self) -> bool:
        """Whether it follows the steps of so many schedules that other processes are worth it."""
        space = self.space
        if not _SHARED <= space.count() <= _FOLLOWED:
            return False
        scorer = self.every.of(space.batches()[0].structure)
        return scorer is not None and scorer.dear

    def pairs(self, schedule: Schedule) -> int:
        """Climb by pairs of changes from a schedule, if its steps are followed one by one.

        Returns how many were followed.
        """
        space, found = self.space, self.found
        scorer = self.every.of({n: schedule[n] for n in space.structural})
        assert scorer is not None
        point = np.array([space.values[n].index(schedule[n]) for n in space.axes], np.int64)
        climb = Climb(self.every, found.add, NEVER)
        with np.errstate(all="ignore"):
            if scorer.dear:
                climb.by_pairs((scorer, point))
        return climb.followed

    def _places(self, values: Mapping[str, Value], rng: np.random.Generator) -> list[Place]:
        """Return a place with some values, of the least bound, where a time is dear; or none."""
        space = self.space
        if any(value not in space.values[name] for name, value in values.items()):
            return []
        scorer = self.every.of({n: values.get(n, space.worth[n][0]) for n in space.structural})
        if scorer is None or not scorer.dear:
            return []
        points = space.points(scorer.batch, rng, 8 * _SAMPLE)
        for axis, name in enumerate(space.axes):
            if name in values:
                points[:, axis] = space.values[name].index(values[name])
        points = points[scorer.legal(points)]
        order = np.argsort(scorer.least(points), kind="stable") if len(points) else ()
        return [(scorer, points[first]) for first in order[:1]]

    def _seconds(self, scorer: Scorer, points: Points) -> Floats:
        """Return the seconds of points that may be among the best, a bound of the others'."""
        seconds = scorer.least(points)
        near = seconds < self.found.limit
        seconds[near] = scorer.seconds(points[near])
        return seconds

    def finish(self, progress: Progress | None = None) -> None:
        """Search every batch."""
        with np.errstate(all="ignore"):
            for done, scorer in enumerate(self.scorers, 1):
                self._search(scorer)
                if progress:
                    progress(done, len(self.scorers))

    def entries(self) -> list[Entry]:
        """Return the best schedules known."""
        return [
            (key, seconds, self.space.schedule(scorer.batch, point))
            for key, (seconds, scorer, point) in self.found.found.items()
        ]

    def _search(self, scorer: Scorer) -> None:
        """Add a batch's schedules that belong to the best.

        Where the common order proves to be a poor one, go on with one made for this batch, from the
        ends of climbs in it; either may be poor, so they take turns, with more patience each time.
        """
        nothing = np.zeros((1, len(scorer.lengths)), np.int64)
        orders = [scorer.order([*self.loose.values()])]
        for turn in count():
            descent = _Descent(scorer, self.found, orders[turn % 2], _PATIENCE * 2**turn)
            ended = descent.below(nothing, 0)
            self.scored += descent.scored
            if ended:
                break
            if scorer not in self.loose:
                climbed, ends = _climb(scorer, self.found, np.random.default_rng(0))
                self.scored += climbed
                self.loose[scorer] = scorer.looseness(ends[:4])
            orders.append(scorer.order([self.loose[scorer]]))


class _Best:
    """The k fastest points met so far, no two alike in ``spread`` (if none: in all decisions)."""

    def __init__(self, k: int, spread: tuple[str, ...], below: float) -> None:
        self.k, self.spread = k, spread
        self.found: dict[Key, tuple[float, Scorer, Points]] = {}
        self.limit = below  # what a schedule has to beat

    def add(self, scorer: Scorer, points: Points, seconds: Floats) -> float:
        """Add points; return the least seconds of all."""
        order = np.argsort(seconds, kind="stable")
        order = order[seconds[order] < self.limit]
        of_points, of_structure = _key(scorer, self.spread)
        _, first = np.unique(points[order][:, of_points], axis=0, return_index=True)
        for i in order[np.sort(first)][: self.k]:
            key = (of_structure, points[i, of_points].tobytes())
            if key not in self.found or seconds[i] < self.found[key][0]:
                self.found[key] = float(seconds[i]), scorer, points[i].copy()
        self._keep()
        return float(seconds.min(initial=np.inf))

    def _keep(self) -> None:
        kept = sorted(self.found.items(), key=lambda item: item[1][0])[: self.k]
        self.found = dict(kept)
        if len(kept) == self.k:
            self.limit = kept[-1][1][0]

    def limits(self, scorer: Scorer, nodes: Points, chosen: frozenset[int]) -> Number:
        """Return what each node has to beat: the limit, or what is known of its combination."""
        axes, structure = _key(scorer, self.spread)
        if not self.spread or not chosen.issuperset(a for a in axes if scorer.lengths[a] > 1):
            return self.limit
        rows, where = np.unique(nodes[:, axes], axis=0, return_inverse=True)
        known = [self.found.get((structure, row.tobytes()), (np.inf,))[0] for row in rows]
        limits: Number = np.minimum(np.array(known)[where.reshape(-1)], self.limit)
        return limits


def _draw(drawn: dict[Hashable, tuple[float, Place]], scorer: Scorer, points: Points) -> None:
    """Keep of the batch, and of what schedules differ in, the point of the least bound."""
    of_points, of_structure = _key(scorer, scorer.space.machine.spread)
    bounds = scorer.least(points)
    for i in np.argsort(bounds, kind="stable"):
        for key in ((of_structure, points[i, of_points].tobytes()), scorer):
            if key not in drawn or bounds[i] < drawn[key][0]:
                drawn[key] = float(bounds[i]), (scorer, points[i])


def _key(scorer: Scorer, spread: tuple[str, ...]) -> tuple[list[int], tuple[Value, ...]]:
    """Return the positions of the numeric decisions of ``spread``, the values of its others."""
    batch = scorer.batch
    structure = tuple(v for n, v in batch.structure.items() if not spread or n in spread)
    axes = [i for i, n in enumerate(batch.axes) if not spread or n in spread]
    return axes, structure


def _climb(scorer: Scorer, found: _Best, rng: np.random.Generator) -> tuple[int, Points]:
    """Improve random schedules by single changes, to know early what a schedule has to beat.

    Return how many were scored, and the ends of the climbs, fastest first.
    """
    points = scorer.space.points(scorer.batch, rng, 8 * _SAMPLE)
    seconds = scorer.seconds(points)
    found.add(scorer, points, seconds)
    scored = len(points)
    first = np.argsort(seconds, kind="stable")[:_CLIMBERS]
    points, own = points[first], seconds[first]
    moves = np.array([(a, v) for a, n in enumerate(scorer.lengths) for v in range(n)])
    ends = points[:0]
    for _ in range(_STEPS if len(moves) else 0):
        near = np.repeat(points, len(moves), axis=0)
        near[np.arange(len(near)), np.tile(moves[:, 0], len(points))] = np.tile(
            moves[:, 1], len(points)
        )
        legal = np.flatnonzero(scorer.legal(near))
        scored += len(legal)
        below = np.maximum(own, found.limit)[legal // len(moves)]
        legal = legal[scorer.least(near[legal]) <= below]  # others are no step, nor the best
        seconds = np.full(len(near), np.inf)
        seconds[legal] = scorer.seconds(near[legal])
        found.add(scorer, near[legal], seconds[legal])
        best = seconds.reshape(len(points), len(moves)).argmin(axis=1)
        best += np.arange(len(points)) * len(moves)
        moved = near[best]
        ended = (moved == points).all(axis=1)
        ends = np.concatenate([ends, points[ended]])
        points, first = np.unique(moved[~ended], axis=0, return_index=True)
        own = seconds[best[~ended][first]]
        if not len(points):
            break
    ends = np.unique(np.concatenate([ends, points]), axis=0)
    return scored, ends[np.argsort(scorer.seconds(ends), kind="stable")]


@dataclass(slots=True)
class _Descent:
    """Branch and bound in one batch: an order of its decisions, the nodes scored and allowed."""

    scorer: Scorer
    found: _Best
    order: Sequence[int]
    most: int
    scored: int = 0

    def below(self, nodes: Points, level: int) -> bool:
        """Branch on the next decision, best nodes first and in parts of bounded size.

        Return False if more nodes were scored than a good order needs.
        """
        scorer, found, order = self.scorer, self.found, self.order
        bounds = np.zeros(len(nodes))
        while level < len(order) and len(nodes):
            before = len(nodes)
            while level < len(order) and len(nodes):
                axis = order[level]
                count = scorer.lengths[axis]
                if len(nodes) > before and len(nodes) * count > _FEW:
                    break
                nodes = np.repeat(nodes, count, axis=0)
                nodes[:, axis] = np.tile(np.arange(count), len(nodes) // count)
                level += 1
                chosen = frozenset(order[:level])
                nodes = nodes[scorer.allows(nodes, chosen, axis)]
            every = level == len(order)
            bounds = scorer.least(nodes) if every else scorer.bound(nodes, order, level)
            self.scored += len(nodes)
            if self.scored > self.most:
                return False
            keep = np.flatnonzero(bounds < found.limits(scorer, nodes, chosen))
            keep = keep[np.argsort(bounds[keep], kind="stable")]
            nodes, bounds = nodes[keep], bounds[keep]
            if len(nodes) > 2 * _PART and level < len(order):  # better limits, less memory
                for first in range(0, len(nodes), _PART):
                    here = slice(first, first + _PART)
                    if not self.below(nodes[here][bounds[here] < found.limit], level):
                        return False
                return True
        chosen = frozenset(order)
        for first in range(0, len(nodes), _PART):  # the times of some spare others theirs
            here = slice(first, first + _PART)
            some = nodes[here][bounds[here] < found.limits(scorer, nodes[here], chosen)]
            found.add(scorer, some, scorer.seconds(some))
        return True
