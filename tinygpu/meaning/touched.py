"""Which cells an access touches, by the definition of the term: for the interpreter.

Thread t and value v of an access touch the coordinate ``origin + thread steps + value steps``.  On
chip, the buffer's layout makes it an offset, and ``index mod stages`` picks the stage; in gmem the
strides are leading dimensions.  What an instruction cannot do is a *fault* here: an element outside
the buffer that no guard takes away, and a vector that is not a run of cells, does not start at a
multiple of its length, or lies across a guard's edge (one predicate serves a whole vector).

>>> from tinygpu.term.program import registers
>>> held = Access(registers("held", "f32", 2, 4), value=((0, 1), (1, 0)))
>>> coordinates(held, (4, 2), (), np.arange(1))[:, :, 0].tolist()
[[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3]]

Source: ``docs/model.md``, section "Terms".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.meaning.race import Kind
from tinygpu.numbers import Booleans, Integers
from tinygpu.term.pages import POOL
from tinygpu.term.program import Access, Do, Exit

__all__ = ["CellFault", "OnChip", "Touched", "Toucher", "compared", "coordinates", "extent"]


@dataclass(frozen=True, slots=True)
class CellFault:
    """What is wrong with an access: the kind, the thread, the coordinate or cell, in words."""

    kind: Kind
    thread: int
    cell: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """Cells as (values, threads); ``taken`` tells which of them are touched at all.

    ``left``: those of lines that a trimmed load leaves out.
    """

    cell: Integers
    taken: Booleans
    every: bool
    faults: tuple[CellFault, ...] = ()
    left: Booleans | bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """What of a gmem access depends on no loop: (dimensions, values, threads), and its bounds."""

    place: Integers
    low: list[int]
    high: list[int]


def extent(values: tuple[int, ...]) -> int:
    """Return how many values a thread has."""
    return prod(int(v) for v in values)


def coordinates(
    access: Access, values: tuple[int, ...], threads: tuple[int, ...], numbers: Integers
) -> Integers:
    """Return coordinates without the origin, for threads ``numbers`` of the role.

    Shape (dimensions, values, threads).  Raises ProgramError where steps and extents disagree.
    """
    rank = len(access.buffer.shape)
    place = np.zeros((rank, extent(values), numbers.size), np.int64)
    _add(place, access, access.value, values, np.arange(extent(values))[:, None])
    if any(any(steps) for steps in access.thread):
        if numbers.size and int(numbers.max()) >= extent(threads):
            raise ProgramError(
                f"access {access}: its extents {tuple(threads)} are {extent(threads)} threads, the "
                f"role has {int(numbers.max()) + 1} or more; give every thread a place"
            )
        _add(place, access, access.thread, threads, numbers[None, :])
    return place


def _add(
    place: Integers,
    access: Access,
    steps: tuple[tuple[int, ...], ...],
    extents: Sequence[int],
    rest: Integers,
) -> None:
    if len(steps) != len(extents):
        raise ProgramError(
            f"access {access}: {len(steps)} steps, extents {tuple(extents)}; give one for each"
        )
    for step, size in zip(steps, extents, strict=True):
        for d, distance in enumerate(step):
            if distance:
                place[d] += rest % size * distance
        rest = rest // size


def compared(do: Do, numbers: Integers) -> Integers:
    """Return what a predicate compares, origin apart, for threads ``numbers``: (values, threads).

    Raises ProgramError where threads lie beyond the extents.
    """
    where = do.where
    assert where is not None
    found = np.zeros((extent(do.values), numbers.size), np.int64)
    digits = [(np.arange(extent(do.values))[:, None], do.values, where.value)]
    if any(where.thread):
        if numbers.size and int(numbers.max()) >= extent(do.threads):
            raise ProgramError(
                f"{do}: its extents {tuple(do.threads)} are {extent(do.threads)} threads, the role "
                f"has {int(numbers.max()) + 1} or more; give every thread a place"
            )
        digits.append((numbers[None, :], do.threads, where.thread))
    for rest, extents, steps in digits:
        for size, step in zip(extents, steps, strict=bool(steps)):
            found = found + rest % size * step
            rest = rest // size
    return found


OnChip = dict[tuple[object, ...], Touched]
"""What accesses of one program touch on chip, by all that this depends on: not by its sizes."""


class Toucher:
    """The cells of a program's accesses at given parameters, remembered where they recur."""

    def __init__(self, values: Mapping[str, Any], on_chip: OnChip | None = None) -> None:
        """Take the sizes and parameters, and what runs of the program at other sizes found."""
        self._values = values
        self._on_chip: OnChip = {} if on_chip is None else on_chip
        self._places: dict[tuple[object, ...], _Places] = {}

    def on_chip(
        self, do: Do, access: Access, numbers: Integers, key: object, env: Mapping[str, int]
    ) -> Touched:
        """Return the cells of one stage of a buffer on chip; registers: by thread 0 of ``numbers``.

        ``key`` stands for ``numbers``.
        """
        origin = tuple(o.evaluate(env) for o in access.origin)
        held = access.buffer.level == "registers"
        mine, whose = (numbers[:1], numbers[:1].tobytes()) if held else (numbers, key)
        steps = (access.buffer.name, access.value, access.thread)
        known = (*steps, do.values, do.threads, do.vector, whose, origin)
        if known not in self._on_chip:
            self._on_chip[known] = self._in_stage(do, access, mine, origin)
        return self._on_chip[known]

    def _in_stage(
        self, do: Do, access: Access, numbers: Integers, origin: tuple[int, ...]
    ) -> Touched:
        buffer = access.buffer
        place = coordinates(access, do.values, do.threads, numbers)
        if origin:
            place += np.array(origin)[:, None, None]
        taken = np.ones(place.shape[1:], np.bool_)
        for along, size in zip(place, buffer.shape, strict=True):
            taken &= (along >= 0) & (along < int(size))
        cell = np.asarray(buffer.layout(tuple(np.where(taken, along, 0) for along in place)))
        taken &= cell < int(buffer.stage_elements)
        faults = _outside(access, taken, place, numbers)
        if buffer.level == "smem":
            faults += _vectors(access, _vector(do), cell, taken, numbers)
        return Touched(np.where(taken, cell, 0), taken, bool(taken.all()), faults)

    def gmem(
        self, do: Do | Exit, access: Access, numbers: Integers, key: object, env: Mapping[str, int]
    ) -> Touched:
        """Return the elements of an operand; a guard takes away those outside."""
        buffer = access.buffer
        places = self._gmem_places(do, access, numbers, key)
        origin = [o.evaluate(env) for o in access.origin] or [0] * len(buffer.shape)
        sizes = [self._number(n) for n in buffer.shape]
        guards = access.guard or (False,) * len(sizes)
        limits = [env[g] if isinstance(g, str) else n for g, n in zip(guards, sizes, strict=True)]
        strides = [self._number(n) for n in buffer.stride]
        address = np.full(places.place.shape[1:], 0, np.int64)
        at: list[Integers] = [p + start for p, start in zip(places.place, origin, strict=True)]
        there, room = None, prod(sizes)
        if pages := buffer.pages:
            at, there = pages.places(
                buffer.shape, at, self._values[pages.table], self._number(POOL)
            )
            room = prod(map(self._number, pages.stored(tuple(map(str, buffer.shape)))))
        for along, stride in zip(at, strides, strict=True):
            address += along * stride
        taken = np.ones(address.shape, np.bool_)
        faults: tuple[CellFault, ...] = ()
        left: Booleans | bool = False
        vector = _vector(do)
        if any(
            low + start < 0 or high + start >= min(size, limit)
            for low, high, start, size, limit in zip(
                places.low, places.high, origin, sizes, limits, strict=True
            )
        ):
            inside = taken.copy()
            parts = zip(places.place, origin, sizes, guards, limits, strict=True)
            for along, start, size, guard, limit in parts:
                here = along + start
                inside &= (here >= 0) & (here < size)
                if guard:
                    taken &= here < limit
            if vector > 1 and len(taken) % vector == 0:
                taken = np.repeat(taken[::vector], vector, axis=0)
            sure = taken & inside
            absolute = places.place + np.array(origin)[:, None, None]
            if access.trimmed:
                line = access.value[1].index(1)
                left = absolute[line] >= sizes[line]
            faults = _outside(access, sure | ~taken, absolute, numbers)
            taken = sure
        if there is not None:
            taken = taken & there
        wild = taken & ((address < 0) | (address >= room))
        if wild.any():
            faults += _outside(access, ~wild, address[None], numbers)
            taken = taken & ~wild
        faults += _vectors(access, vector, address, taken, numbers)
        return Touched(address, taken, bool(taken.all()), faults, left)

    def _gmem_places(
        self, do: Do | Exit, access: Access, numbers: Integers, key: object
    ) -> _Places:
        known = (id(do), id(access), key)
        if known not in self._places:
            place = coordinates(access, do.values, do.threads, numbers)
            flat = place.reshape(len(place), -1)
            low, high = (
                (flat.min(axis=1).tolist(), flat.max(axis=1).tolist()) if flat.size else ([], [])
            )
            self._places[known] = _Places(place, low or [0] * len(place), high or [0] * len(place))
        return self._places[known]

    def _number(self, name: int | str) -> int:
        if isinstance(name, str) and name not in self._values:
            raise ProgramError(f"{name}: no size or parameter; known are {', '.join(self._values)}")
        return int(self._values[name] if isinstance(name, str) else name)


def _vector(do: Do | Exit) -> int:
    """How many values one instruction moves."""
    return 1 if isinstance(do, Exit) else int(do.vector)


def _outside(
    access: Access, fine: Booleans, place: Integers, numbers: Integers
) -> tuple[CellFault, ...]:
    if fine.all():
        return ()
    value, thread = np.unravel_index(int((~fine).argmax()), fine.shape)
    at = f"{access.buffer.name}[{', '.join(str(p) for p in place[:, value, thread])}]"
    shape = ", ".join(map(str, access.buffer.shape))
    text = f"touches {at}, outside of [{shape}]; guard it, or let sizes be multiples"
    return (CellFault("out_of_bounds", int(numbers[thread]), at, text),)


def _vectors(
    access: Access, vector: int, cell: Integers, taken: Booleans, numbers: Integers
) -> tuple[CellFault, ...]:
    """Return the first vector that is no aligned run of cells."""
    if vector == 1 or not len(cell):
        return ()
    if len(cell) % vector:
        text = f"moves {len(cell)} values in vectors of {vector}; choose a vector that divides them"
        return (CellFault("misaligned", int(numbers[0]), access.buffer.name, text),)
    split = cell.reshape(-1, vector, cell.shape[1])
    runs = (split == split[:, :1] + np.arange(vector)[None, :, None]).all(axis=1)
    bad = taken[::vector] & ((split[:, 0] % vector != 0) | ~runs)
    if not bad.any():
        return ()
    value, thread = np.unravel_index(int(bad.argmax()), bad.shape)
    cells = split[value, :, thread].tolist()
    at = f"{access.buffer.name}[{cells[0]}]"
    text = f"moves a vector of cells {cells}; it has to be a run from a multiple of {vector}"
    return (CellFault("misaligned", int(numbers[thread]), at, text),)
