"""Climbs where a time is dear: by single changes of any decision, structural ones too.

Of some machines the steps of each schedule are followed one by one, in order of the clocks
(``Recursion.singly``): a hundredth of a second each, and the bounds, which are those of the units,
leave most schedules in.  So few are followed.  One is drawn of each batch, the one with the least
bound of some; the fastest are climbed from.  A step tries all values of one decision after another
and takes the fastest; what its bound excludes is not followed.  Where no single change helps, pairs
of numeric ones are tried: two rings share the memory, so one has to lose a stage for the other.

The result is not proven.

Source: coordinate descent; S. Wright, "Coordinate descent algorithms", 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.deadline import Deadline
from tinygpu.search.exact.scorer import Points, Scorer

__all__ = ["Place", "climbed"]

Place = tuple[Scorer, Points]
"""A batch's scorer, and the index along each of its numeric decisions."""
Add = Callable[[Scorer, Points, NDArray[np.float64]], Any]
_STARTS = 3


def climbed(drawn: Sequence[Place], add: Add, until: Deadline) -> int:
    """Follow a place drawn of each batch, and climb from the fastest.

    ``add`` takes all that is followed; return how many.  After ``until`` nothing more is followed.
    """
    of = {tuple(scorer.batch.structure.items()): scorer for scorer, _ in drawn}
    followed: set[tuple[Scorer, bytes]] = set()

    def seconds(places: Iterable[Place]) -> list[tuple[float, Place]]:
        found = []
        for scorer, point in places:
            if until.passed():
                break
            each = scorer.seconds(point[None])
            add(scorer, point[None], each)
            followed.add((scorer, point.tobytes()))
            found.append((float(each[0]), (scorer, point)))
        return sorted(found, key=lambda one: one[0])

    def improved(own: float, at: Place, lots: Iterable[Sequence[Place]]) -> tuple[float, Place]:
        """Take the fastest of each lot in turn, if it is faster."""
        for lot in lots:
            near = [p for p in lot if p[0].least(p[1][None])[0] < own]
            own, at = min([(own, at), *seconds(near)], key=lambda one: one[0])
        return own, at

    best = []
    for own, at in seconds(drawn)[:_STARTS]:
        while True:
            before = own
            for number in range(len(at[0].batch.structure) + len(at[0].lengths)):
                own, at = improved(own, at, [list(_beside(of, at, number))])
            if own == before:
                break
        best.append((own, at))
    for own, at in sorted(best, key=lambda one: one[0])[:1]:
        while True:
            before = own
            own, at = improved(own, at, _pairs(at))
            if own == before:
                break
    return len(followed)


def _beside(of: dict[Any, Scorer], at: Place, number: int) -> Iterator[Place]:
    """Yield legal places that differ in one decision: of the structure first, then of the rest."""
    scorer, point = at
    names = tuple(scorer.batch.structure)
    if number < len(names):
        rest = [(n, v) for n, v in scorer.batch.structure.items() if n != names[number]]
        for structure, other in of.items():
            if other is not scorer and all(pair in structure for pair in rest):
                yield from _legal(other, point[None])
        return
    yield from _legal(scorer, _with(scorer, point[None], number - len(names)))


def _pairs(at: Place) -> Iterator[list[Place]]:
    """Yield legal places that differ in two numeric decisions."""
    scorer, point = at
    for one, other in combinations(range(len(scorer.lengths)), 2):
        yield list(_legal(scorer, _with(scorer, _with(scorer, point[None], one), other)))


def _with(scorer: Scorer, points: Points, axis: int) -> Points:
    """Return points with each value of a decision."""
    count = scorer.lengths[axis]
    found = np.repeat(points, count, axis=0)
    found[:, axis] = np.tile(np.arange(count), len(points))
    return found


def _legal(scorer: Scorer, points: Points) -> Iterator[Place]:
    for point in points[scorer.legal(points)]:
        yield scorer, point
