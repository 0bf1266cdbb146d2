"""Counting: how many points satisfy a conjunction of tables, and uniform samples of them.

Over finite axes a *factor* is an array over some of them; the number of points at which all 0/1
factors are 1 is a sum of products, and sums move inside products (variable elimination).  First the
axes that most factors share are joined into *rows*, the combinations that those factors allow: laws
about tiles and threads together leave few of the many combinations.  Then the others are summed out
one at a time.  Run backwards with random choices, the same sums draw uniform samples.

>>> equal = Factor((0, 1), np.eye(3, dtype=bool))
>>> small = Factor((1, 2), np.array([[True, True], [True, False], [False, False]]))
>>> sums = Sums((3, 3, 2))
>>> sums.count((equal, small))
3
>>> sorted(map(tuple, sums.sample((equal, small), np.random.default_rng(0), 500).tolist()))[0]
(0, 0, 0)

Results are kept by the identity of the factors, so conjunctions that share factors share work.

Source: R. Dechter, "Bucket elimination", 1999.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tinygpu.numbers import Array, Integers

__all__ = ["Factor", "Sums"]

_M = TypeVar("_M")
_ROWS_MOST = 1 << 12
_ROW = -1
_SMALL = 2000
_KEY_BOUND = 1 << 62


class Weighing(Protocol):
    """Anything with axes, ascending, and an array over them: a Factor, a space's Table."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The positions of its axes."""

    @property
    def array(self) -> Array:
        """Its values."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """An array over the axes, in ascending order.

    Axis -1, then the first, stands for the rows: row r is entry ``index[r]`` of it, so that rows
    that are alike are worked on once.
    """

    axes: tuple[int, ...]
    array: Array
    index: NDArray[np.integer] | None = None

    def at(self, row: Integers, columns: tuple[Integers, ...]) -> Array:
        """Return the values at rows and indices along the other axes."""
        if self.index is None:
            return np.asarray(self.array[columns])
        return np.asarray(self.array[(self.index[row], *columns)])


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The joined axes and, one row a combination, an index along each."""

    axes: tuple[int, ...]
    index: Integers


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The rows, each axis that was summed out with its factors, the points for each row."""

    rows: _Rows
    steps: tuple[tuple[int, tuple[Factor, ...]], ...]
    weights: Array
    free: tuple[int, ...]


class Sums:
    """Sums of products over axes of the given lengths."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        """Take the lengths of the axes, which factors name by position."""
        self.lengths = lengths
        self._kept: dict[tuple[object, ...], tuple[Any, object]] = {}
        self._order: tuple[int, ...] = ()

    def count(self, factors: Sequence[Weighing]) -> int:
        """Return how many points all factors allow."""
        plan = self._plan(factors)
        return int(plan.weights.sum(dtype=object)) * prod(self.lengths[a] for a in plan.free)

    def sample(self, factors: Sequence[Weighing], rng: np.random.Generator, n: int) -> Integers:
        """Return ``n`` points, (n, axes) indices, each uniform among those that are allowed."""
        plan = self._plan(factors)
        points = np.zeros((n, len(self.lengths)), np.int64)
        if n == 0:
            return points
        weights = plan.weights.astype(float)
        row = rng.choice(len(weights), size=n, p=weights / weights.sum())
        points[:, plan.rows.axes] = plan.rows.index[row]
        for axis, factors_here in reversed(plan.steps):
            weights_here: Array = np.ones((n, self.lengths[axis]))
            for factor in factors_here:
                columns = tuple(
                    np.arange(self.lengths[a])[None, :] if a == axis else points[:, a, None]
                    for a in factor.axes
                    if a != _ROW
                )
                weights_here = weights_here * factor.at(row[:, None], columns)
            steps = np.cumsum(weights_here, axis=1)
            drawn = rng.random(n) * steps[:, -1]
            points[:, axis] = (drawn[:, None] >= steps).sum(axis=1)
        for axis in plan.free:
            points[:, axis] = rng.integers(self.lengths[axis], size=n)
        return points

    def points(self, factors: Sequence[Weighing]) -> Integers:
        """Return every point that all factors allow, (points, axes) indices."""
        plan = self._plan(factors)
        row = np.flatnonzero(plan.weights)
        points = np.zeros((len(row), len(self.lengths)), np.int64)
        points[:, plan.rows.axes] = plan.rows.index[row]
        for axis in (*(a for a, _ in reversed(plan.steps)), *plan.free):
            length = self.lengths[axis]
            row, points = np.repeat(row, length), np.repeat(points, length, axis=0)
            points[:, axis] = np.tile(np.arange(length), len(points) // length)
            for factor in (f for a, fs in plan.steps if a == axis for f in fs):
                columns = tuple(points[:, a] for a in factor.axes if a != _ROW)
                kept = factor.at(row, columns) > 0
                row, points = row[kept], points[kept]
        return points

    def _once(self, key: tuple[object, ...], kept: object, make: Callable[[], _M]) -> _M:
        """Return what was made under the key before; ``kept`` are the objects that it names."""
        if key not in self._kept:
            self._kept[key] = (make(), kept)
        made: _M = self._kept[key][0]
        return made

    def _plan(self, factors: Sequence[Weighing]) -> _Plan:
        key = ("plan", *sorted(map(id, factors)))
        return self._once(key, tuple(factors), partial(self._make_plan, factors))

    def _make_plan(self, factors: Sequence[Weighing]) -> _Plan:
        shadows = [shadow for f in factors for shadow in self._shadows(f)]
        factors = self._merged((*factors, *shadows))
        rows = self._rows(factors)
        rest = [
            self._once(("gather", id(rows), id(f)), (rows, f), partial(_gather, rows, f))
            for f in factors
            if not f.axes or not set(f.axes) <= set(rows.axes)
        ]
        left = {a for f in rest for a in f.axes} - {_ROW}
        free = set(range(len(self.lengths))) - left - set(rows.axes)
        steps = []
        while left:
            costs = {a: self._width(rest, a) for a in left}
            axis = min(sorted(left), key=lambda a: costs[a])
            mine = [f for f in rest if axis in f.axes]
            key = ("sum", axis, *sorted(map(id, mine)))
            message = self._once(key, tuple(mine), partial(_sum_out, mine, axis))
            steps.append((axis, tuple(mine)))
            rest = [f for f in rest if axis not in f.axes] + [message]
            left.remove(axis)
        weights: Array = np.ones(len(rows.index), np.int64)
        for factor in rest:
            every = np.arange(len(rows.index))
            weights = weights * factor.at(every, ())
        return _Plan(rows, tuple(steps), weights, tuple(sorted(free)))

    def _width(self, factors: Sequence[Weighing], axis: int) -> int:
        """Return the size of the product of the factors over an axis."""
        together = {a for f in factors if axis in f.axes for a in f.axes} - {_ROW}
        return prod(self.lengths[a] for a in together)

    def _rows(self, factors: Sequence[Weighing]) -> _Rows:
        """Join axes, the most shared first, as long as there are few combinations."""
        if not self._order:
            shared = {a: sum(f.array.size for f in factors if a in f.axes) for f in factors
                      for a in f.axes}  # fmt: skip
            self._order = tuple(sorted(shared, key=lambda a: (-shared[a], a)))
        alone: dict[int, Array] = {}
        for factor in factors:
            if len(factor.axes) == 1:
                (axis,) = factor.axes
                alone[axis] = alone.get(axis, True) & (factor.array > 0)
        settled = sorted(a for a, allowed in alone.items() if allowed.sum() <= 1)
        rows: _Rows = self._once(("none",), (), lambda: _Rows((), np.zeros((1, 0), np.int64)))
        for axis in (*settled, *(a for a in self._order if a not in settled)):
            if len(rows.index) * self.lengths[axis] > _ROWS_MOST:
                break
            axes = {*rows.axes, axis}
            inside = [f for f in factors if axis in f.axes and set(f.axes) <= axes]
            key = ("rows", id(rows), axis, *sorted(map(id, inside)))
            rows = self._once(key, (rows, *inside), partial(self._join, rows, axis, inside))
        return rows

    def _merged(self, factors: Sequence[Weighing]) -> tuple[Weighing, ...]:
        """Multiply factors over the same axes."""
        groups: dict[tuple[int, ...], list[Weighing]] = {}
        for factor in factors:
            groups.setdefault(factor.axes, []).append(factor)

        def merged(axes: tuple[int, ...], group: Sequence[Weighing]) -> Weighing:
            if len(group) == 1:
                return group[0]
            array = group[0].array
            for factor in group[1:]:
                array = array * factor.array
            return Factor(axes, array)

        return tuple(
            self._once(
                ("merge", *sorted(map(id, group))),
                tuple(group),
                partial(merged, axes, group),
            )
            for axes, group in groups.items()
        )

    def _shadows(self, factor: Weighing) -> tuple[Factor, ...]:
        """Return what a small factor implies for each of its axes alone."""
        if factor.array.size > _SMALL or len(factor.axes) < 2:
            return ()

        def make() -> tuple[Factor, ...]:
            found = []
            for position, axis in enumerate(factor.axes):
                others = tuple(i for i in range(len(factor.axes)) if i != position)
                allowed = np.asarray(factor.array.any(axis=others))
                if not allowed.all():
                    found.append(Factor((axis,), allowed))
            return tuple(found)

        return self._once(("shadow", id(factor)), factor, make)

    def _join(self, rows: _Rows, axis: int, inside: Sequence[Weighing]) -> _Rows:
        length = self.lengths[axis]
        index = np.concatenate(
            [
                np.repeat(rows.index, length, axis=0),
                np.tile(np.arange(length), len(rows.index))[:, None],
            ],
            axis=1,
        )
        axes = (*rows.axes, axis)
        allowed = np.ones(len(index), bool)
        for factor in inside:
            allowed &= factor.array[tuple(index[:, axes.index(a)] for a in factor.axes)]
        return _Rows(axes, index[allowed])


def _gather(rows: _Rows, factor: Weighing) -> Factor:
    """Take the rows' combinations along the joined axes of a factor."""
    outside = [i for i, a in enumerate(factor.axes) if a not in rows.axes]
    inside = [i for i, a in enumerate(factor.axes) if a in rows.axes]
    if not inside:
        return Factor(factor.axes, factor.array)
    moved = factor.array.transpose(*inside, *outside)
    at = tuple(rows.index[:, rows.axes.index(factor.axes[i])] for i in inside)
    flat = np.ravel_multi_index(at, moved.shape[: len(inside)])
    axes = (_ROW, *(factor.axes[i] for i in outside))
    shape = moved.shape[len(inside) :]
    return _alike(axes, moved.reshape(-1, *shape), flat)


def _alike(axes: tuple[int, ...], array: Array, index: Integers) -> Factor:
    """Merge the entries of the first axis that are equal."""
    row = prod(array.shape[1:])  # not -1: there may be no entry at all
    flat = np.ascontiguousarray(array.reshape(len(array), row))
    if flat.dtype == bool:
        flat = np.packbits(flat, axis=1)
    words = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).reshape(-1)
    _, first, same = np.unique(words, return_index=True, return_inverse=True)
    return Factor(axes, array[first], same[index].astype(np.int32))


def _sum_out(factors: Sequence[Factor], axis: int) -> Factor:
    """Return the sum along the axis of the product of the factors."""
    axes = tuple(sorted({a for f in factors for a in f.axes}))
    kinds: Integers | None = None
    bound = 1
    for factor in factors:
        if factor.index is None:
            continue
        if kinds is None:
            kinds = np.zeros(len(factor.index), np.int64)
        if bound * len(factor.array) >= _KEY_BOUND:
            kinds = np.unique(kinds, return_inverse=True)[1]
            bound = len(kinds)
        kinds = kinds * len(factor.array) + factor.index
        bound *= len(factor.array)
    first = None
    if kinds is not None:
        _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
    joint: Array = np.array(True)
    *others, widest = sorted(factors, key=lambda f: f.array.size)
    for factor in others:
        joint = joint * _spread(factor, axes, first)
    slices = np.moveaxis(_spread(widest, axes, first), axes.index(axis), 0)
    summed: Array = np.zeros((), np.int64)  # slice by slice: the whole product would be large
    for i, here in enumerate(slices):
        summed = summed + (joint.take(i, axes.index(axis)) if others else joint) * here
    rest = tuple(a for a in axes if a != axis)
    return Factor(rest, summed) if kinds is None else _alike(rest, summed, kinds)


def _spread(factor: Factor, axes: tuple[int, ...], kinds: Integers | None) -> Array:
    """Return a factor's array with a length of 1 where it lacks an axis, at kinds of rows."""
    array = factor.array
    if factor.index is not None and kinds is not None:
        array = array[factor.index[kinds]]
    shape = iter(array.shape)
    return array.reshape([next(shape) if axis in factor.axes else 1 for axis in axes])
