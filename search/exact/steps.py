"""Climbs where a time is dear: by single changes of any decision, structural ones too.

Of some machines the steps of each schedule are followed one by one, in order of the clocks
(``Recursion.singly``): a hundredth of a second each, and the bounds, which are those of the units,
leave most schedules in.  So few are followed.  Some are drawn, and of those that are alike in what
schedules differ in (``Machine.spread``) the one with the least bound is followed; the fastest are
climbed from.  A step tries all values of one decision after another
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
_STARTS = 5


def climbed(scorers: Sequence[Scorer], drawn: Sequence[Place], add: Add, until: Deadline) -> int:
    """Follow what was drawn, and climb from the fastest.

    ``add`` takes all that is followed; return how many.  After ``until`` nothing more is followed.
    """
    of = {tuple(scorer.batch.structure.items()): scorer for scorer in scorers}
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

    def climb(own: float, at: Place) -> tuple[float, Place]:
        """Improve a place until no single change does."""
        while True:
            before = own
            for number in range(_decisions(at)):
                own, at = improved(own, at, [_beside(of, at, number)])
            if own == before:
                return own, at

    ends = [climb(*one) for one in seconds(drawn)[:_STARTS]]
    for own, at in sorted(ends, key=lambda one: one[0])[:1]:
        while True:
            before = own
            own, at = improved(own, at, _pairs(of, at))
            if own == before:
                break
            own, at = climb(own, at)
    return len(followed)


def _decisions(at: Place) -> int:
    scorer, point = at
    return len(scorer.batch.structure) + len(point)


def _beside(of: dict[Any, Scorer], at: Place, number: int) -> list[Place]:
    """Return legal places that differ in one decision: of the structure first, then of the rest."""
    return [place for place in _changed(of, at, number) if _legal(place)]


def _pairs(of: dict[Any, Scorer], at: Place) -> Iterator[list[Place]]:
    """Yield legal places that differ in two numeric decisions."""
    for one, other in combinations(range(len(at[0].batch.structure), _decisions(at)), 2):
        both = (p for near in _changed(of, at, one) for p in _changed(of, near, other))
        yield [place for place in both if _legal(place)]


def _changed(of: dict[Any, Scorer], at: Place, number: int) -> Iterator[Place]:
    """Yield places with other values of a decision, legal or not."""
    scorer, point = at
    names = tuple(scorer.batch.structure)
    if number < len(names):
        rest = [(n, v) for n, v in scorer.batch.structure.items() if n != names[number]]
        for structure, other in of.items():
            if other is not scorer and all(pair in structure for pair in rest):
                yield other, point
        return
    axis = number - len(names)
    for value in range(scorer.lengths[axis]):
        if value != point[axis]:
            changed = point.copy()
            changed[axis] = value
            yield scorer, changed


def _legal(at: Place) -> bool:
    scorer, point = at
    return bool(scorer.legal(point[None])[0])
