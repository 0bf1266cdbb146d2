"""Steps of tiles: how many each tile of the grid takes, where tiles take different ones.

A loop over steps that runs to a tile value takes in each tile its own.  What all tiles do together
(units, bytes, energy) goes by the *mean*.  A CTA takes every P-th tile in the order of the raster,
where P clusters run at once (in a *snake* every second one from the other end of the P that are
taken together), so clusters have different work; the *busiest* has the most steps, and
among those of as many steps the most tiles.  The recursion follows its tiles, each with its steps.
So the time is the makespan, as far as a CTA with more steps takes longer.

CTAs that stay come *apart*: who has had long tiles is behind.  Tiles that read the same (heads of
attention) are then done at different times, and L2 has to hold what all that are under way read.

Over a space the steps depend on few decisions: there is a table for each *kind* of their values.

>>> busiest(np.array([1, 2, 3, 4, 5]), 2)
(1, 3, 5)
>>> busiest(np.array([5, 4, 3, 2, 1]), 2, snake=True)
(5, 2, 1)

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from tinygpu.numbers import Change, Floats, Integers, Number
from tinygpu.term.expression import Apply, Constant, Expression, apply, value
from tinygpu.term.program import Program, When, walk

__all__ = ["Apart", "TileSteps", "busiest", "share_of_tiles", "steps_of_tiles"]

_MOST_TILES = 1 << 16
_SAMPLES = 32
_Axes = tuple[tuple[str, int, bool], ...]


@dataclass(frozen=True, slots=True)
class TileSteps:
    """What gives the steps of the tiles, as they are taken in order, of each kind of candidate.

    ``kind`` and ``mean`` are numbers, or arrays over a space; ``snake`` is the program's.
    ``skips``: tiles without a step do nothing else, so that they are left out.  ``inputs`` give the
    number of what each tile's steps read: equal for tiles that share it.
    """

    tables: tuple[Callable[[], Integers], ...]
    inputs: tuple[Callable[[], Integers], ...]
    kind: Number
    mean: Number
    snake: bool = False
    skips: bool = False

    def mapped(self, low: Change) -> TileSteps:
        """Apply a function to what differs between candidates."""
        return replace(self, kind=low(self.kind), mean=low(self.mean))

    def busiest(self, kind: int, at_once: int) -> tuple[int, ...]:
        """Return the steps of the tiles of the cluster that has the most."""
        taken = busiest(self.tables[kind](), at_once, snake=self.snake)
        return tuple(filter(None, taken)) or (0,) if self.skips else taken


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """How many times as much comes from DRAM as if CTAs stayed together; elementwise.

    It is a function of whether clusters stay, how many are at once, the kind, and how many of what
    tiles read in their steps L2 has room for.
    """

    own: TileSteps
    singly: ClassVar[bool] = True

    def __call__(self, *of: Number) -> Floats:
        """Return the factor, at least 1."""
        rows = np.stack(np.broadcast_arrays(*of), axis=-1).astype(np.float64)
        each, which = np.unique(rows.reshape(-1, 4), axis=0, return_inverse=True)
        found = np.array(
            [self._of(int(k), int(n), h) if s else 1.0 for s, n, k, h in each.tolist()]
        )
        return found[which].reshape(rows.shape[:-1])

    def _of(self, kind: int, at_once: int, held: float) -> float:
        own = self.own
        together, far = _under_way(own.tables[kind], own.inputs[kind], at_once, snake=own.snake)
        lost = min(max(1 - held / far, 0.0), 1.0)
        return 1 + lost * (max(far / together, 1.0) - 1)


@lru_cache(512)
def _under_way(
    steps: Callable[[], Integers], inputs: Callable[[], Integers], at_once: int, *, snake: bool
) -> tuple[float, float]:
    """Return of how many inputs tiles are under way, in the mean over the launch.

    First where tiles begin in turn, as CTAs get free; then where each CTA has every n-th.
    """
    read = inputs()
    width = max(1, min(at_once, len(read)))
    each = in_rounds(steps() + 1, width, snake=snake)
    ends = np.where(each > 0, each, 0).cumsum(0)
    times = np.linspace(0, ends[-1].min(), _SAMPLES, endpoint=False)[:, None, None]
    now = in_rounds(read, width, snake=snake)[(ends <= times).sum(1), np.arange(width)]
    first = np.arange(_SAMPLES)[:, None] * (len(read) - width) // _SAMPLES
    return _distinct(read[first + np.arange(width)]), _distinct(now)


def _distinct(numbers: Integers) -> float:
    """Return how many different numbers a row has, in the mean."""
    ordered = np.sort(numbers, axis=1)
    return 1 + float((ordered[:, 1:] != ordered[:, :-1]).sum(1).mean())


def in_rounds(steps: Integers, width: int, *, snake: bool = False) -> Integers:
    """Return the tiles of so many clusters, a column each; -1: no tile.

    >>> in_rounds(np.arange(5), 3, snake=True).tolist()
    [[0, 1, 2], [-1, 4, 3]]
    """
    each = np.full((-(-len(steps) // width), width), -1, np.int64)
    each.reshape(-1)[: len(steps)] = steps
    if snake:
        each[1::2] = each[1::2, ::-1]
    return each


def busiest(steps: Integers, at_once: int, *, snake: bool = False) -> tuple[int, ...]:
    """Return the steps of the tiles of the cluster that has the most, if so many run at once."""
    each = in_rounds(steps, max(1, min(at_once, len(steps))), snake=snake)
    many, there = len(each), each >= 0
    first = int((np.where(there, each, 0).sum(0) * (many + 1) + there.sum(0)).argmax())
    return tuple(each[there[:, first], first].tolist())


def share_of_tiles(program: Program, sizes: Mapping[str, int], name: str) -> Number:
    """Return the share of the tiles in which the tile value of this name is above 0."""
    values, above = program.tile_values, ("=above", apply("min", value(name), 1))
    needed = tuple((n, values[n]) for n in _needed(values, name))
    kind, found = _kinds(program, sizes, (*needed, above), 1)
    mean = np.array([own.mean() for _, _, own in found])[kind]
    return mean if kind.shape else float(mean)


def steps_of_tiles(
    program: Program, sizes: Mapping[str, int], name: str, indexed: Container[str]
) -> TileSteps:
    """Return the steps of a program whose loops run to the tile value of this name.

    What the steps read is ``indexed`` by these axes of the grid.  Of more than 65,536 tiles so many
    are followed, evenly spread.
    """
    values = program.tile_values
    needed = tuple((n, values[n]) for n in _needed(values, name))
    kind, found = _kinds(program, sizes, needed, program.raster)
    tables = tuple(
        partial(_table, axes, raster, own, zigzag=program.zigzag) for axes, raster, own in found
    )
    inputs = tuple(
        partial(_inputs, tuple((n, a in indexed) for a, n, _ in axes), raster, program.zigzag)
        for axes, raster, _ in found
    )
    mean = np.array([own.mean() for _, _, own in found])[kind]
    skips = any(isinstance(s, When) and s.above_zero == name for s, _ in walk(program))
    if not kind.shape:
        return TileSteps(tables, inputs, int(kind), float(mean), program.snake, skips)
    return TileSteps(tables, inputs, kind, mean, program.snake, skips)


def _needed(values: Mapping[str, Expression], name: str) -> list[str]:
    """Return the tile values that one depends on, and it, in their order."""
    left, found = [name], {name}
    while left:
        more = {n for n in values[left.pop()].names() if n in values} - found
        found |= more
        left += more
    return [n for n in values if n in found]


def _kinds(
    program: Program, sizes: Mapping[str, int], values: tuple[tuple[str, Expression], ...],
    raster: Number,
) -> tuple[Integers, list[tuple[_Axes, int, Integers]]]:  # fmt: skip
    """Return which kind each candidate is, and of each kind the grid, the raster and the values.

    The last of the ``values`` is given along the axes of the grid: one for all along those that it
    does not depend on.
    """
    read = {n for _, e in values for n in e.names()}
    every = program.parameter_values(sizes).items()
    known: dict[str, Number] = {n: x for n, x in every if n in read} | {"=raster": raster}
    known |= dict(
        zip((f"={a.var}" for a in program.grid), program.grid_extents(sizes), strict=True)
    )
    nodes = [n for _, e in values for n in e.nodes()]
    constants = [n.number for n in nodes if isinstance(n, Constant)]
    varying = [x for x in (*known.values(), *constants) if isinstance(x, np.ndarray)]
    shape = np.broadcast_shapes(*(x.shape for x in varying))
    flat = [np.broadcast_to(x, shape).reshape(-1) for x in varying]
    rows = np.stack(flat, axis=-1) if flat else np.zeros((1, 0), np.int64)
    each, which = np.unique(rows, axis=0, return_inverse=True)
    found, made = [], dict[Hashable, Integers]()
    substituted: dict[tuple[int, ...], tuple[tuple[str, Expression], ...]] = {}
    for row in each:
        here = dict(zip(map(id, varying), row.tolist(), strict=True))
        chosen = tuple(here[id(c)] for c in constants if id(c) in here)
        if chosen not in substituted:
            substituted[chosen] = tuple((n, _with(e, here)) for n, e in values)
        env = {n: here.get(id(x), x) for n, x in known.items()}
        axes = tuple((a.var, max(1, int(env.pop(f"={a.var}"))), a.down) for a in program.grid)
        turned = int(env.pop("=raster"))
        extents = tuple((a, n if a in read else 1) for a, n, _ in axes)
        key = (extents, chosen, *env.items())
        if key not in made:
            made[key] = _each(extents, substituted[chosen], env)
        found.append((axes, turned, made[key]))
    return np.asarray(which).reshape(shape), found


def _table(axes: _Axes, raster: int, own: Integers, *, zigzag: bool) -> Integers:
    """Return the steps of the tiles in order, of one candidate.

    ``axes`` of the grid: variable, extent, and whether it is walked down.  ``own``: the steps along
    the axes.
    """
    places = _places(tuple(extent for _, extent, _ in axes), raster, zigzag=zigzag)
    at = tuple(
        np.zeros_like(place) if own.shape[i] == 1 else extent - 1 - place if down else place
        for i, ((_, extent, down), place) in enumerate(zip(axes, places, strict=True))
    )
    found: Integers = own[at]
    return found


def _inputs(axes: tuple[tuple[int, bool], ...], raster: int, zigzag: bool) -> Integers:
    """Return the number of what each tile reads, of axes' extents, and whether they index it."""
    places = _places(tuple(extent for extent, _ in axes), raster, zigzag=zigzag)
    number = np.zeros(places.shape[1], np.int64)
    for (extent, indexes), place in zip(axes, places, strict=True):
        number = number * extent + place if indexes else number
    return number


@lru_cache(512)
def _places(extents: tuple[int, ...], raster: int, *, zigzag: bool) -> Integers:
    """Return where the tiles stand along each axis, in the order in which they are taken."""
    many = int(np.prod(extents, dtype=np.int64))
    some = np.arange(0, many, -(-many // _MOST_TILES))
    places = np.array(np.unravel_index(some, extents)).reshape(len(extents), len(some))
    return places[:, _in_order(places, extents, raster, zigzag=zigzag)]


def _each(
    axes: tuple[tuple[str, int], ...], values: tuple[tuple[str, Expression], ...],
    known: Mapping[str, Number],
) -> Integers:  # fmt: skip
    """Return the last of tile values at each place of a grid of these extents."""
    extents = tuple(extent for _, extent in axes)
    places = zip((a for a, _ in axes), np.indices(extents), strict=True)
    env: dict[str, Number] = {**known, **dict(places)}
    for one, expression in values:
        env[one] = expression.evaluate(env)
    return np.broadcast_to(np.asarray(env[values[-1][0]], np.int64), extents)


def _with(expression: Expression, here: Mapping[int, int]) -> Expression:
    """Return an expression with the numbers of one candidate."""
    match expression:
        case Constant(number):
            return Constant(here[id(number)]) if id(number) in here else expression
        case Apply(operator, arguments):
            return Apply(operator, tuple(_with(one, here) for one in arguments))
    return expression


def _in_order(places: Integers, extents: tuple[int, ...], raster: int, *, zigzag: bool) -> Integers:
    """Return the tiles' numbers in the order of ``Program.raster``, of places row by row."""
    none = np.zeros((max(0, 2 - len(places)), places.shape[1]), np.int64)
    *outer, row, column = np.concatenate([none, places])
    *around, rows, _ = (1,) * len(none) + extents
    group, groups = row // max(1, raster), -(-rows // max(1, raster))
    if zigzag:
        before = np.ravel_multi_index((*outer, group), (*around, groups))
        left = int(np.prod(around, dtype=np.int64)) * groups - 1 - before
        column = np.where(left % 2, -column, column)
    return np.lexsort((row, column, group, *outer[::-1]))
