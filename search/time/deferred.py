"""Deferred: arithmetic on tables, done once where that is small and at points where it is not.

Over a space a number is a *table* over the few decisions that it depends on.  An operation on
tables gives a table over all of their decisions: it is made, once for equal operands, while it has
few entries.  Beyond that the operation is kept, as a node of a graph, and its *steps* are done at
points only: look each table up, apply each function.

With ``bounded`` steps, tables are looked up by their least or their greatest entries below a partly
chosen point: the least where the result grows with the table, the greatest where it falls.  So the
result is a lower bound, and the less loose, the more arithmetic was done in tables.  It needs every
function to grow or fall in each argument (``_GROWS``), with factors and divisors that are not
negative.

>>> tables = Tables((300, 400, 2))
>>> x, y, z = (tables.of(np.arange(float(n)).reshape([n if i == j else 1 for j in range(3)]))
...            for i, n in enumerate((300, 400, 2)))
>>> (x + z).table is None, (x + y + z).table is None
(False, True)
>>> at(steps_of(x + y * z), np.array([[7], [5], [1]]), lambda t, _: t)
array([12.])

Source: partial evaluation (Jones, Gomard and Sestoft, 1993); hash consing (Ershov, 1958).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tinygpu.isa.algebra import Operator
from tinygpu.numbers import Array, Integers, Number
from tinygpu.space.sharing import narrowed

__all__ = ["Deferred", "DeferredStep", "LookedUp", "Tables", "applied", "at", "dear", "steps_of"]

_MOST = 1 << 15
"""Entries of a table that arithmetic makes: as many as stay in a core's cache beside others."""

_GROWS: Mapping[Callable[..., object], tuple[bool, ...]] = {
    np.add: (True, True),
    np.subtract: (True, False),
    np.multiply: (True, True),
    np.divide: (True, False),
    np.maximum: (True, True),
    np.minimum: (True, True),
    np.greater: (True, False),
    np.where: (True, True, True),  # of a condition with which a time grows
}
"""Whether a result grows (or else falls) with each argument; all others grow in all."""


class Tables:
    """What was made of the numbers of a space with decisions of these lengths."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self._made: dict[tuple[object, ...], tuple[Any, object]] = {}

    def of(self, number: Number) -> Number:
        """Return an array with one axis a decision as a table; a plain number as it is."""
        if not isinstance(number, np.ndarray):
            return number
        key = ("of", id(number))
        if key not in self._made:
            array = narrowed(number.view(np.ndarray))
            axes = tuple(i for i, n in enumerate(array.shape) if n > 1)
            self._made[key] = self.over(axes, array) if axes else array.item(), number
        made: Number = self._made[key][0]  # NumPy's functions take a table for an array
        return made

    def over(self, axes: tuple[int, ...], array: Array) -> Deferred:
        """Return an array over some axes, ascending, as a table."""
        key = ("table", id(array))
        if key not in self._made:
            table = array.view(np.ndarray).reshape([self.lengths[a] for a in axes])
            self._made[key] = Deferred(self, axes, table), array
        made: Deferred = self._made[key][0]
        return made

    def apply(self, function: Operator, inputs: tuple[object, ...]) -> Deferred:
        """Apply an elementwise function: now, if its table is small, or at points."""
        key = (
            function,
            *[id(x) if isinstance(x, Deferred) else (x.__class__, x) for x in inputs],
        )
        if key not in self._made:
            operands = [x for x in inputs if isinstance(x, Deferred)]
            axes = tuple(sorted({a for x in operands for a in x.axes}))
            table = None
            small = prod(self.lengths[a] for a in axes) <= _MOST and not dear(function)
            if small and all(x.table is not None for x in operands):
                table = function(*(self._aligned(x, axes) for x in inputs))
            self._made[key] = Deferred(self, axes, table, function, inputs), inputs
        made: Deferred = self._made[key][0]
        return made

    def forget(self) -> None:
        """Drop what was made; tables and steps that are in use stay as they are."""
        self._made.clear()

    def _aligned(self, x: object, axes: tuple[int, ...]) -> object:
        if not isinstance(x, Deferred):
            return x
        assert x.table is not None
        return x.table.reshape([self.lengths[a] if a in x.axes else 1 for a in axes])


class Deferred(NDArrayOperatorsMixin):
    """A table over axes, or a function that is still to be applied to others."""

    def __init__(
        self,
        tables: Tables,
        axes: tuple[int, ...],
        table: Array | None,
        function: Operator = np.asarray,
        inputs: tuple[object, ...] = (),
    ) -> None:
        """Use ``Tables.of``, and arithmetic."""
        self.tables, self.axes, self.table = tables, axes, table
        self.function, self.inputs = function, inputs

    def __add__(self, other: object) -> Deferred:
        """Add at once: NumPy's way to ``__array_ufunc__`` takes longer than all else here."""
        return self.tables.apply(np.add, (self, other))

    def __mul__(self, other: object) -> Deferred:
        """Multiply at once."""
        return self.tables.apply(np.multiply, (self, other))

    def __array_ufunc__(self, ufunc: Operator, method: str, *inputs: object, **more: object) -> Any:
        """Apply NumPy's elementwise functions."""
        if method != "__call__" or more:
            return NotImplemented
        return self.tables.apply(ufunc, inputs)

    def __array_function__(self, function: Operator, types: object, inputs: Any, more: Any) -> Any:
        """Apply ``np.where``, which ``select`` uses."""
        if function is not np.where or more:
            return NotImplemented
        return self.tables.apply(function, inputs)


def dear(function: Callable[..., object]) -> bool:
    """Say whether a function takes its points one by one: it is applied where it is needed."""
    return bool(getattr(function, "singly", False))


def applied(function: Callable[..., Number], *inputs: object) -> Number:
    """Apply an elementwise function that grows in all arguments; on deferred ones, as one step."""
    tables = next((x.tables for x in inputs if isinstance(x, Deferred)), None)
    return function(*inputs) if tables is None else cast("Number", tables.apply(function, inputs))


@dataclass(frozen=True, slots=True, eq=False)
class DeferredStep:
    """Look a table up (its greatest entries, if ``most``), or apply a function.

    An argument is the number of an earlier step and None, or -1 and a constant; ``done`` are the
    steps whose results nothing needs after this one.
    """

    table: Deferred | None
    most: bool
    function: Operator = np.asarray
    arguments: tuple[tuple[int, object], ...] = ()
    done: tuple[int, ...] = ()


def steps_of(number: object, *, bounded: bool = False) -> tuple[DeferredStep, ...]:
    """Return what to do at points for a number, operands first, itself last."""
    found: dict[tuple[int, bool], int] = {}
    steps: list[tuple[Deferred | None, bool, Operator, tuple[tuple[int, object], ...]]] = []
    last: dict[int, int] = {}  # the step that needs a result last

    def visit(x: object, most: bool) -> tuple[int, object]:
        if not isinstance(x, Deferred):
            return -1, x
        key = (id(x), most)
        if key not in found:
            if x.table is not None:
                steps.append((x, most, np.asarray, ()))
            else:
                grows = _grows(x) if bounded else (True,) * len(x.inputs)
                turned = (most if up else not most for up in grows)
                arguments = tuple(map(visit, x.inputs, turned))
                last.update((i, len(steps)) for i, _ in arguments if i >= 0)
                steps.append((None, most, x.function, arguments))
            found[key] = len(steps) - 1
        return found[key], None

    if visit(number, False)[0] < 0:  # a batch of one schedule has nothing but constants
        steps.append((None, False, np.asarray, ((-1, number),)))
    done: dict[int, list[int]] = {}
    for i, at_last in last.items():
        done.setdefault(at_last, []).append(i)
    return tuple(DeferredStep(*step, tuple(done.get(i, ()))) for i, step in enumerate(steps))


def _grows(x: Deferred) -> tuple[bool, ...]:
    grows = _GROWS.get(x.function, (True,) * len(x.inputs))
    if x.function is np.multiply:
        factors = [f for f in x.inputs if isinstance(f, float | int | np.number | np.ndarray)]
        if factors and factors[0] < 0:
            return (False, False)
    return grows


LookedUp = Deferred | Array | float
"""What stands for a table: another, the values at the points, or one number for all."""


def at(
    steps: tuple[DeferredStep, ...],
    columns: Integers,
    looked_up: Callable[[Deferred, bool], LookedUp],
) -> Array:
    """Do steps at points: ``columns`` has a row a decision, a column a point.

    ``looked_up(table, most)`` gives the table in its place, or a number if nothing of it is left,
    or the values at the points.
    """
    flat: dict[tuple[int, ...], Integers] = {}
    results: list[Array | float | None] = []
    for step in steps:
        if step.table is None:
            results.append(step.function(*[results[i] if i >= 0 else x for i, x in step.arguments]))
            for i in step.done:  # the next results take its place in the core's cache
                results[i] = None
            continue
        here = looked_up(step.table, step.most)
        if not isinstance(here, Deferred):
            results.append(here)
            continue
        if here.axes not in flat:
            place = columns[here.axes[0]]
            for axis in here.axes[1:]:
                place = place * here.tables.lengths[axis] + columns[axis]
            flat[here.axes] = place
        assert here.table is not None
        results.append(here.table.take(flat[here.axes]))
    last = results[-1]
    return last if isinstance(last, np.ndarray) and last.ndim else np.full(columns.shape[1:], last)
