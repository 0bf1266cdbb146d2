"""Steps of tiles: how many each tile of the grid takes, where tiles take different ones.

A loop over steps that runs to a tile value takes in each tile its own.  What all tiles do together
(units, bytes, energy) goes by the *mean*.  A CTA takes every P-th tile in the order of the raster,
where P clusters run at once (in a *snake* every second one from the other end of the P that are
taken together), so clusters have different work; the *busiest* has the most steps, and
among those of as many steps the most tiles.  The recursion follows its tiles, each with its steps.
So the time is the makespan, as far as a CTA with more steps takes longer.

Tiles read the same *inputs* (heads of attention): some at once, others later, as who has had long
tiles is behind.  L2 holds those used last, and an input that it no longer holds comes from DRAM
again (P. Denning's working set: what is used within a time, and the time in which as much is used
as there is room for).

Over a space the steps depend on few decisions: there is a table for each *kind* of their values.

>>> busiest(np.array([1, 2, 3, 4, 5]), 2)
(1, 3, 5)
>>> busiest(np.array([5, 4, 3, 2, 1]), 2, snake=True)
(5, 2, 1)

Source: ``docs/model.md``, section "Time"; P. Denning, "The working set model for program behavior",
1968.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from tinygpu.numbers import Change, Floats, Integers, Number
from tinygpu.search.time.fitted import FITTED
from tinygpu.term.expression import Apply, Constant, Expression, apply, value
from tinygpu.term.program import Program, When, walk

__all__ = ["InUse", "Refetched", "TileSteps", "busiest", "share_of_tiles", "steps_of_tiles"]

_MOST_TILES = 1 << 16
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
class Refetched:
    """How many times what steps read comes from DRAM, where once is enough; elementwise.

    It is a function of whether clusters stay, how many are at once, the kind, and how many of what
    tiles read in their steps L2 has room for.
    """

    own: TileSteps
    singly: ClassVar[bool] = True

    def __call__(self, *of: Number) -> Floats:
        """Return the number, at least 1."""
        rows = np.stack(np.broadcast_arrays(*of), axis=-1).astype(np.float64)
        each, which = np.unique(rows.reshape(-1, 4), axis=0, return_inverse=True)
        found = np.array([self._of(bool(s), int(n), int(k), h) for s, n, k, h in each.tolist()])
        return found[which].reshape(rows.shape[:-1])

    def _of(self, stays: bool, at_once: int, kind: int, held: float) -> float:
        own = self.own
        used = in_use(own.tables[kind], own.inputs[kind], at_once, stays=stays, snake=own.snake)
        return used.fetched(held)


@dataclass(frozen=True, slots=True, eq=False)
class InUse:
    """Which of ``many`` inputs tiles use, and when, over a launch.

    ``at_once``: how many are in use, in the mean.  ``unused``: each time an input is in nobody's
    use, in shares of the launch, the shortest first; ``parts``: how much of it is read behind that,
    0 after its last use.  ``every``: what all tiles read, each for itself, in inputs.
    """

    many: int
    at_once: float
    unused: Floats
    parts: Floats
    every: float

    def fetched(self, held: float) -> float:
        """Return how often each comes from DRAM if L2 has room for so many, those used last.

        What is unused for less than a time is there; that time is such that as many are used in it
        as there is room for, of which ``l2_held`` counts: the rest of what tiles read and write
        goes through.  Where more are in use at once, a share of all that is read is lost.

        >>> InUse(2, 1.0, np.array([0.2, 0.6]), np.array([1.0, 0.5]), 4.0).fetched(2.0)
        1.25
        """
        shorter, more = np.cumsum(self.unused), np.arange(len(self.unused))[::-1]
        room = FITTED["l2_held"] * held
        there = self.at_once + shorter + more * self.unused <= room
        again = self.parts[~there].sum()
        lost = max(0.0, 1 - held / self.at_once)
        return float(1 + (again + lost * max(self.every - self.many - again, 0.0)) / self.many)


@lru_cache(512)
def in_use(
    steps: Callable[[], Integers], inputs: Callable[[], Integers], at_once: int, *,
    stays: bool, snake: bool,
) -> InUse:  # fmt: skip
    """Follow the tiles, whose steps take as long in all of them.

    Clusters that do not stay begin the tiles in turn, as fast as all together end them.
    """
    taking, read = steps() + 1, inputs()
    width = max(1, min(at_once, len(read)))
    if stays:
        rounds = in_rounds(taking, width, snake=snake)
        there = rounds > 0
        ends, taking = np.where(there, rounds, 0).cumsum(0)[there], rounds[there]
        read = in_rounds(read, width, snake=snake)[there]
    else:
        ends = (np.cumsum(taking) - taking) / width + taking
    order = np.lexsort((ends - taking, read))
    ends, taking, read = ends[order], taking[order], read[order]
    begins, whole = ends - taking, float(ends.max())
    first = np.append(True, read[1:] != read[:-1])
    last = np.append(first[1:], True)
    far = np.cumsum(first) * 2 * whole  # so that each input's tiles come after those of another
    until = np.maximum.accumulate(ends + far) - far
    unused = np.where(first, 0.0, begins - np.append(0.0, until[:-1]))
    parts, idle = (taking - 1) / max(1, int(taking.max()) - 1), unused > 0
    around = until[last] - begins[first]  # from first to last use
    all_unused = np.append(unused[idle], whole - until[last]) / whole
    shortest = np.argsort(all_unused, kind="stable")
    return InUse(
        int(first.sum()),
        float(around.sum() - unused[idle].sum()) / whole,
        all_unused[shortest],
        np.append(parts[idle], np.zeros(int(last.sum())))[shortest],
        float(parts.sum()),
    )


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
