"""Least entries: what a table is at best below a partly chosen point, illegal entries left out.

A table is reduced over one decision after the other, the last of the order first.  The first time
only its legal entries are looked at, those that no law over some of its decisions excludes: the
laws leave an eighth of a large table or less.  They are found decision by decision, the most bound
ones first, so that few combinations are ever tried.

>>> from tinygpu.search.time.deferred import Tables
>>> from tinygpu.space.space import Table
>>> law = Table("", (0, 1), np.array([[False, True], [False, False], [True, True]]))
>>> table = Tables((3, 2)).of(np.array([[5.0, 7.0], [1.0, 1.0], [9.0, 8.0]]))
>>> least = Least((law,), (3, 2), Kept())
>>> least.of(table, False, (0, 1), frozenset({0})).table.tolist()
[7.0, inf, 8.0]
>>> least.of(table, False, (0, 1), frozenset())
7.0

Source: bucket elimination, with minima for sums (R. Dechter, 1999).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from math import prod

import numpy as np
from numpy.typing import NDArray

from tinygpu.numbers import Booleans, Floats
from tinygpu.search.time.deferred import Deferred
from tinygpu.space.space import Table

__all__ = ["Kept", "Least"]

Places = NDArray[np.int32]
"""Places in a flat array over some axes, ascending."""
_SMALL = 1 << 15
"""Entries of a table that is kept though only others are made of it."""


@dataclass(slots=True)
class Kept:
    """What the batches of a space share: they have most tables and most laws in common."""

    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    legal: dict[tuple[tuple[int, ...], int], Places] = field(default_factory=dict)
    onto: dict[tuple[tuple[int, ...], int, tuple[int, ...]], Places] = field(default_factory=dict)
    reduced: dict[tuple[object, ...], tuple[Deferred | float, Deferred]] = field(
        default_factory=dict
    )


class Least:
    """The least entries of tables under the laws of one batch."""

    def __init__(self, laws: Sequence[Table], lengths: tuple[int, ...], kept: Kept) -> None:
        """Take the tables that say what is legal, and the number of each decision's values."""
        self._laws = [(frozenset(law.axes), law) for law in laws]
        self._lengths, self._kept = lengths, kept
        self._numbers: dict[tuple[int, ...], int] = {}

    def over(self, axes: Sequence[int]) -> list[Table]:
        """Return the laws over some of these axes."""
        every = frozenset(axes)
        return [law for theirs, law in self._laws if theirs <= every]

    def of(
        self, table: Deferred, most: bool, order: Sequence[int], chosen: frozenset[int]
    ) -> Deferred | float:
        """Return the least entry (``most``: the greatest) over all decisions but the chosen.

        These are the first of the order.  What is not a number is left out; where nothing is legal,
        the result is infinite.
        """
        axes = table.axes
        here = chosen.intersection(axes)
        if len(here) == len(axes):
            return table
        key = (id(table), most, self._number(axes), here)
        found = self._kept.reduced.get(key)
        if found is None:
            result = self._reduced(table, most, tuple(a for a in order if a in axes), len(here))
            found = self._kept.reduced[key] = result, table  # whose identity is in the key
        return found[0]

    def _reduced(
        self, table: Deferred, most: bool, order: tuple[int, ...], count: int
    ) -> Deferred | float:
        """Reduce a table: from what one more decision leaves open, if that is small."""
        above = table
        if prod(self._lengths[a] for a in order[: count + 1]) <= _SMALL:
            found = self.of(table, most, order, frozenset(order[: count + 1]))
            assert isinstance(found, Deferred)
            above = found
        kept = tuple(sorted(order[:count]))
        assert above.table is not None
        if above is table:
            values = self._first(table, most, kept)
        else:
            (drop,) = (i for i, axis in enumerate(above.axes) if axis not in kept)
            values = _along(above.table, drop, most)
        return Deferred(table.tables, kept, values) if kept else float(values)

    def _first(self, table: Deferred, most: bool, kept: tuple[int, ...]) -> Floats:
        """Return the least (greatest) of the legal entries for each place over the axes kept."""
        assert table.table is not None
        lengths = [self._lengths[a] for a in kept]
        legal, place = self._legal(table.axes), self._onto(table.axes, kept)
        never = -np.inf if most else np.inf
        entries = (np.fmax if most else np.fmin)(table.table.reshape(-1).take(legal), never)
        found: Floats = np.full(prod(lengths), never)
        (np.maximum if most else np.minimum).at(found, place, entries)
        return found.reshape(lengths)

    def _onto(self, axes: tuple[int, ...], kept: tuple[int, ...]) -> Places:
        """Return the place over the axes kept of each legal place over the axes."""
        key = (axes, self._number(axes), kept)
        if key not in self._kept.onto:
            self._kept.onto[key] = self._projected(self._legal(axes), axes, kept)
        return self._kept.onto[key]

    def _number(self, axes: tuple[int, ...]) -> int:
        """Return the number, in all batches, of the laws over some of these axes."""
        if axes not in self._numbers:
            laws = tuple(sorted(id(law) for law in self.over(axes)))
            numbers = self._kept.numbers
            self._numbers[axes] = numbers.setdefault(laws, len(numbers))
        return self._numbers[axes]

    def _legal(self, axes: tuple[int, ...]) -> Places:
        """Return the places, in an array over the axes, that no law over some of them excludes.

        They stand in an order that depends on nothing but the axes and these laws.
        """
        laws = self.over(axes)
        bound = {axis: sum(axis in law.axes for law in laws) for axis in axes}
        return self._found(tuple(sorted(axes, key=lambda axis: (-bound[axis], axis))))

    def _found(self, axes: tuple[int, ...]) -> Places:
        """Return the legal places over axes that are given in the order of their looking up."""
        if not axes:
            return np.zeros(1, np.int32)
        key = (axes, self._number(tuple(sorted(axes))))
        if key not in self._kept.legal:
            self._kept.legal[key] = self._extended(self._found(axes[:-1]), axes)
        return self._kept.legal[key]

    def _extended(self, places: Places, axes: tuple[int, ...]) -> Places:
        """Extend places over all axes but the last by it."""
        *before, last = axes
        allowed = np.ones((len(places), self._lengths[last]), bool)
        for theirs, holds in self._joined(axes).items():
            others = tuple(axis for axis in theirs if axis != last)
            known = self._projected(places, sorted(before), others)
            allowed &= holds.take(self._with(known, others, last))
        return self._with(places, before, last)[allowed]

    def _projected(self, places: Places, axes: Sequence[int], kept: Sequence[int]) -> Places:
        """Return places over axes, ascending, as places over those that are kept."""
        found, stride = np.zeros_like(places), 1
        for here, alike in groupby(reversed(axes), key=lambda axis: axis in kept):
            length = prod(self._lengths[a] for a in alike)
            outer = places // length
            if here:
                found = found + (places - outer * length) * stride
                stride *= length
            places = outer
        return found

    def _with(self, places: Places, axes: Sequence[int], axis: int) -> Places:
        """Return places over axes with each value of one more: (places, values)."""
        inner = prod(self._lengths[a] for a in axes if a > axis)
        outer, count = places // inner, self._lengths[axis]
        first = places + outer * (inner * (count - 1))
        every: Places = first[..., None] + np.arange(count, dtype=np.int32) * inner
        return every

    def _joined(self, axes: tuple[int, ...]) -> dict[tuple[int, ...], Booleans]:
        """Return the laws over some of the axes that ask for the last, joined where alike."""
        found: dict[tuple[int, ...], Booleans] = {}
        for law in self.over(axes):
            if axes[-1] in law.axes:
                holds = law.holds.view(np.ndarray)
                found[law.axes] = found[law.axes] & holds if law.axes in found else holds
        return found


def _along(values: Floats, axis: int, most: bool) -> Floats:
    """Return the least (greatest) along an axis.

    Whole slices are compared: axes are short, and NumPy's own reduction takes a step an entry.
    """
    parts = values.reshape(prod(values.shape[:axis]), values.shape[axis], -1)
    first, *others = (parts[:, i] for i in range(values.shape[axis]))
    found: Floats = reduce(np.maximum if most else np.minimum, others, first)
    return found.reshape(values.shape[:axis] + values.shape[axis + 1 :])
