"""Climbs where a time is dear: by single changes of any decision, structural ones too.

Of some machines the steps of each schedule are followed one by one, in order of the clocks
(``Recursion.singly``): a hundredth of a second each, and the bounds, which are those of the units,
leave most schedules in.  So few are followed.  Some are drawn, and of those that are alike in what
schedules differ in (``Machine.spread``) the one with the least bound is followed; the fastest are
climbed from.  A step tries all values of one decision after another
and takes the fastest; what its bound excludes is not followed.  Where no single change helps, pairs
of numeric ones are tried: two rings share the memory, so one has to lose a stage for the other; and
of orders, as a producer's is for a consumer's.

The result is not proven.

Source: coordinate descent; S. Wright, "Coordinate descent algorithms", 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from tinygpu.deadline import Deadline
from tinygpu.numbers import Floats
from tinygpu.search.exact.scorer import Points, Scorer, Scorers

__all__ = ["Climb", "Place"]

Place = tuple[Scorer, Points]
"""A batch's scorer, and the index along each of its numeric decisions."""
Add = Callable[[Scorer, Points, Floats], object]


class Climb:
    """A climb in the batches of a space; a structural choice is built when it comes to it.

    ``add`` takes all that is followed, and ``followed`` counts it.  After ``until`` nothing more
    is.
    """

    def __init__(self, every: Scorers, add: Add, until: Deadline) -> None:
        self.every, self.add, self.until = every, add, until
        self._followed: set[tuple[Scorer, bytes]] = set()

    @property
    def followed(self) -> int:
        """How many schedules it followed."""
        return len(self._followed)

    def from_the_fastest(self, drawn: Sequence[Place], starts: int) -> None:
        """Follow what was drawn, and climb from the fastest ones."""
        for one in self._seconds(drawn)[:starts]:
            self._climb(*one)

    def by_pairs(self, at: Place) -> None:
        """Climb from where no single change helps."""
        own = self._seconds([at])[0][0]
        while True:
            before = own
            own, at = self._improved(own, at, _pairs(self.every, at))
            if own == before:
                break
            own, at = self._climb(own, at)

    def _seconds(self, places: Iterable[Place]) -> list[tuple[float, Place]]:
        found = []
        for scorer, point in places:
            if self.until.passed():
                break
            each = scorer.seconds(point[None])
            self.add(scorer, point[None], each)
            self._followed.add((scorer, point.tobytes()))
            found.append((float(each[0]), (scorer, point)))
        return sorted(found, key=lambda one: one[0])

    def _improved(
        self, own: float, at: Place, lots: Iterable[Sequence[Place]]
    ) -> tuple[float, Place]:
        """Take the fastest of each lot in turn, if it is faster."""
        for lot in lots:
            near = [p for p in lot if p[0].least(p[1][None])[0] < own]
            own, at = min([(own, at), *self._seconds(near)], key=lambda one: one[0])
        return own, at

    def _climb(self, own: float, at: Place) -> tuple[float, Place]:
        """Improve a place until no single change does."""
        while True:
            before = own
            for number in range(_decisions(at)):
                if self.until.passed():
                    return own, at
                own, at = self._improved(own, at, [_beside(self.every, at, number)])
            if own == before:
                return own, at


def _decisions(at: Place) -> int:
    scorer, point = at
    return len(scorer.batch.structure) + len(point)


def _beside(every: Scorers, at: Place, number: int) -> list[Place]:
    """Return legal places that differ in one decision: of the structure first, then of the rest."""
    return [place for place in _changed(every, at, number) if _legal(place)]


def _pairs(every: Scorers, at: Place) -> Iterator[list[Place]]:
    """Yield legal places that differ in two numeric decisions, or in two orders."""
    names = [*at[0].batch.structure]
    orders = combinations([names.index(name) for name in every.space.orders], 2)
    for one, other in (*orders, *combinations(range(len(names), _decisions(at)), 2)):
        both = (p for near in _changed(every, at, one) for p in _changed(every, near, other))
        yield [place for place in both if _legal(place)]


def _changed(every: Scorers, at: Place, number: int) -> Iterator[Place]:
    """Yield places with other values of a decision, legal or not."""
    scorer, point = at
    structure = scorer.batch.structure
    names, worth = tuple(structure), every.space.worth
    if number < len(names):
        name = names[number]
        for value in every.space.beside(name, structure[name], worth[name]):
            if (other := every.of({**structure, name: value})) is not None:
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
