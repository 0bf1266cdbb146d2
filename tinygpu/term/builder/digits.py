"""Digits and patterns: who counts a digit, how far it counts, and what a pattern says of it.

A pattern has an equation for each axis, ``"i = (block thread v)"``: the coordinate is the number in
mixed radix, slowest digit first.  So a digit's step along an axis is the product of the extents of
the digits after it.  ``Digits`` has what a term declares and answers the other modules' questions;
``Declarations`` are the calls by which a machine's author declares.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast

import numpy as np

from tinygpu.errors import ProgramError, at_line, nearest
from tinygpu.term import program as term
from tinygpu.term.access_map import number_text
from tinygpu.term.expression import Constant, Expression, value
from tinygpu.term.groups import END, FIRST, slot_values, slots
from tinygpu.term.operation import Operation
from tinygpu.term.program import Affine, select, var

__all__ = [
    "Condition",
    "Declarations",
    "Digit",
    "Digits",
    "LoopIndex",
    "Tile",
    "TileValue",
    "differ",
    "equations_of",
    "error",
    "here",
]

Counter = Literal[
    "the grid",
    "the cluster",
    "copies of a role",
    "threads",
    "values",
    "a loop",
    "a tile",
    "a tile value",
]
_UNREAD: tuple[dict[str, tuple[str, ...]], frozenset[str]] = ({}, frozenset())
_STEPS = {"the grid": "chunk", "the cluster": "share", "a loop": "stride"}
"""What the parameter is called that is the step of a digit, by who counts it."""
_EQUATION = re.compile(r"\s*(\w+)\s*=\s*(?:\(([\w\s]+)\)|(\w+))\s*")
_SKIPPED = (__file__.rpartition("/")[0], contextmanager.__code__.co_filename)


def here() -> tuple[str, int]:
    """Return the file and line that called the builder."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_SKIPPED) and frame.f_back:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def error(text: str, word: str) -> ProgramError:
    """Return an error that shows the user's line, and the word in it."""
    return at_line(here(), text, word)


@dataclass(frozen=True, slots=True)
class Digit:
    """A digit: who counts it, and how far (None: as far as an axis needs)."""

    name: str
    by: Counter
    extent: int | None


@dataclass(frozen=True, slots=True)
class Condition:
    """What ``k.when`` asks: whether an index is less than a bound."""

    index: Affine
    bound: int | str

    def __bool__(self) -> bool:
        raise ProgramError("a loop is traced once: ask its variable by k.when, not by if")


@dataclass(frozen=True, slots=True)
class LoopIndex:
    """A loop's variable, or a number that is counted from it; ``loops`` have to be open.

    The loop runs ``count`` times: a parameter's name, or a number; loops that are written out
    ``around`` it, a tile of a ring has them count on.  ``tiles`` are the variables of the tiles
    around it, all of them and the copy's own.
    """

    affine: Affine
    loops: tuple[str, ...]
    count: int | str = 1
    tiles: tuple[str, str] | None = None
    around: tuple[tuple[str, int], ...] = ()
    digit: str = ""
    """The digit that it is a number of."""

    def use(self, *, own: bool) -> Affine:
        """Which use of a ring it is; with ``own`` of one that each copy of a role has."""
        index, count = self.affine, self.count
        for name, extent in reversed(self.around):
            index, count = var(name, count) + index, count * extent
        return var(self.tiles[own], count) + index if self.tiles else index

    @property
    def first(self) -> LoopIndex:
        """Whether it is 0, for ``fresh``."""
        return self

    @property
    def last(self) -> LoopIndex:
        """The loop's last turn, also when it is over."""
        end = var(self.count) if isinstance(self.count, str) else Affine(self.count)
        end = end + -1
        return replace(self, affine=end, loops=())

    def __add__(self, number: int) -> LoopIndex:
        more = self.affine + number
        return LoopIndex(more, self.loops, self.count, self.tiles, self.around, self.digit)

    def __sub__(self, other: int | LoopIndex) -> LoopIndex:
        if not isinstance(other, LoopIndex):
            return replace(self, affine=self.affine + -1 * other)
        less: Affine = self.affine + -1 * other.affine
        return replace(self, affine=less, loops=self.loops + other.loops)

    def __lt__(self, bound: int | str | TileValue) -> Condition:
        return Condition(self.affine, bound.name if isinstance(bound, TileValue) else bound)

    def __ge__(self, bound: int) -> Condition:
        return Condition(-1 * self.affine + bound, 1)


@dataclass(frozen=True, slots=True)
class TileValue:
    """A number that each tile has for itself; ``k.loop`` runs to it, ``k.when`` asks for it."""

    name: str

    def __lt__(self, number: int) -> Condition:
        return Condition(var(self.name), number)

    def __ge__(self, number: int) -> Condition:
        return Condition(Affine(number + -1), self.name)


@dataclass(frozen=True, slots=True)
class Tile(LoopIndex):
    """A tile's number; its values are attributes, as ``tile.trips``."""

    values: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> TileValue:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self.values:
            known = nearest(name, self.values) if self.values else "give it to k.tiles"
            raise ProgramError(f"tile: no value {name}; {known}")
        return TileValue(name)


@cache
def equations_of(pattern: str) -> tuple[tuple[str, str], ...]:
    """Return the axis and the digits of each equation; no axis, and the text, if it is none."""
    found = []
    for text in pattern.split(","):
        match = _EQUATION.fullmatch(text)
        found.append((match[1], match[2] or match[3]) if match else ("", text.strip()))
    return tuple(found)


def differ(one: int, other: int) -> bool:
    """Say whether two plain ints differ; of decisions' numbers it is for the laws to say."""
    return isinstance(one, int) and isinstance(other, int) and one != other


def _multiple(index: Affine, count: int) -> Affine:
    """Return ``index * count``; what a parameter scales stands there as often."""
    scaled = [(name, factor) for name, factor in index.terms if isinstance(factor, str)]
    others = tuple((n, factor * count) for n, factor in index.terms if not isinstance(factor, str))
    many = scaled * count if scaled else []
    return Affine(index.constant * count, (*many, *others))


class Digits:
    """The digits of a term, and what patterns say of them.

    ``loops`` are the open loops; ``gone_through`` are digits that ``k.each`` goes through.
    Other modules read these, and declare, open and close digits by methods.
    """

    def __init__(self, machine: str, axes: Collection[str]) -> None:
        self._machine, self._axes = machine, axes
        self._digits: dict[str, Digit] = {}
        self.loops: list[str] = []
        self.gone_through: list[str] = []
        self.countings: list[tuple[str, ...]] = []  # of threads, fastest first
        self.turned: dict[tuple[str, ...], bool] = {}  # where the two fastest change places
        self.judged: set[str] = set()  # dimensions that k.tile declares
        self.halves: dict[str, tuple[str, ...]] = {}  # digits of values that are counted in two
        self.one_of: dict[str, tuple[str, int]] = {}  # who counts in a digit's place, if any
        self.down: set[str] = set()  # digits of the grid that are walked from their end
        self._covers: dict[str, tuple[str, int, int]] = {}
        """Of open digits the axis, what one step is, and among how many CTAs it is shared."""
        self._counts: dict[str, str] = {}  # the names of loops' counts
        self._by_tile: set[str] = set()  # loops that run to a tile value
        self.begins: dict[str, str] = {}  # of open loops: the tile value at which they begin
        self.ends: dict[str, str] = {}  # of tile values where rows begin: the one where they end
        self._counted: dict[str, Expression] = {}  # how far digits of the grid count, if no axis is
        self._steps: dict[str, tuple[str, Expression]] = {}  # by digit: parameters that are steps
        self._patterns: dict[Hashable, tuple[dict[str, tuple[str, ...]], frozenset[str]]] = {}

    # who counts

    def declare(self, name: str, by: Counter, extent: int | None) -> None:
        """Declare a digit.  Raises ProgramError where it is declared otherwise."""
        if name in self._axes or not name.isidentifier():
            raise error(f"digit {name}: is an axis, or no name; give it another", name)
        known = self._digits.setdefault(name, new := Digit(name, by, extent))
        if known is new:
            return
        if (known.by, by) != ("a tile", "a tile"):
            raise error(f"digit {name}: {known.by} counts it already", name)
        if known.extent is not extent and np.all(known.extent != extent):
            one, other = number_text(known.extent), number_text(extent)
            text = f"digit {name}: has {one} elements in another tile, here {other}"
            raise error(text, name)

    def require(self, name: str) -> None:
        """Raise ProgramError unless the digit is declared."""
        if name not in self._digits:
            raise error(f"digit {name}: nobody counts it; {nearest(name, self._digits)}", name)

    def require_by(self, what: str, name: str, by: Counter) -> None:
        """Raise ProgramError unless it is that who counts the digit."""
        self.require(name)
        if (other := self.by(name)) != by:
            raise error(f"{what}: {other} counts {name}, not {by}", name)

    def by(self, name: str) -> Counter | None:
        """Return who counts a digit, if anybody does."""
        return self._digits[name].by if name in self._digits else None

    def counted(self, digit: str) -> bool:
        """Say whether each thread, or an instruction, counts it."""
        return self._digits[digit].by in ("values", "a tile") and digit not in self.gone_through

    def extent(self, digit: str) -> int:
        """Return how far a digit counts.  Raises ProgramError for an open one."""
        extent = self._digits[digit].extent
        if extent is None:
            raise error(f"digit {digit}: has no extent; give it one, or use k.unrolled", digit)
        return extent

    def extents(self, digits: Iterable[str]) -> tuple[int, ...]:
        """Return how far each of some digits counts."""
        return tuple([self.extent(digit) for digit in digits])

    def ordered(self, digits: Iterable[str]) -> tuple[str, ...]:
        """Return digits in the order of their declarations."""
        wanted = set(digits)
        return tuple([digit for digit in self._digits if digit in wanted])

    def joined(self, modes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the digits of values that modes count: those that are counted in two, whole."""
        for whole, parts in self.halves.items():
            if set(parts) <= set(modes):
                modes = (*(m for m in modes if m not in parts), whole)
        return modes

    # threads

    @property
    def threads(self) -> tuple[str, ...]:
        """The digits of threads as they are counted first, fastest first."""
        return self.countings[0]

    def counting(self, digits: Collection[str]) -> tuple[str, ...]:
        """Return the digits of threads that a pattern goes by, fastest first."""
        by = (c for c in self.countings if any(d in digits for d in c))
        return next(by, self.threads if self.countings else ())

    def in_turn(self, counting: tuple[str, ...], each: Iterable[Any]) -> tuple[Any, ...]:
        """Return what each digit of threads has, in the order in which they count."""
        found = tuple(each)
        if counting not in self.turned:
            return found
        turned, (fast, slow, *others) = self.turned[counting], found
        if isinstance(fast, tuple):
            pairs = [(select(turned, s, f), select(turned, f, s))
                     for f, s in zip(fast, slow, strict=True)]  # fmt: skip
            first, second = (tuple(each) for each in zip(*pairs, strict=True))
            return (first, second, *others)
        return (select(turned, slow, fast), select(turned, fast, slow), *others)

    def thread_extents(self, digits: Collection[str] = ()) -> tuple[int, ...]:
        """Return how far threads count, in their order, where a pattern has these digits."""
        counting = self.counting(digits)
        return self.in_turn(counting, self.extents(counting))

    def thread(self, digit: str) -> tuple[int, int]:
        """Return how many threads lie between two values of a digit of threads, and its extent."""
        self.require(digit)
        counting = next((c for c in self.countings if digit in c), None)
        if counting is None:
            raise error(f"digit {digit}: {self.by(digit)} counts it, not threads", digit)
        faster = counting[: counting.index(digit)]
        return math.prod(self.extents(faster)), self.extent(digit)

    # loops

    def loop(
        self, name: str, over: str, step: int, trips: TileValue | None, start: TileValue | None
    ) -> str:
        """Declare an open loop; return the parameter, or the tile value, that is its trips."""
        if name not in self._digits:
            self.declare(name, "a loop", None)
        elif self.by(name) != "a loop" or name in self.loops:
            raise error(f"digit {name}: {self.by(name)} counts it already", name)
        if over and over not in self._axes:
            raise error(f"axis {over}: there is none; {nearest(over, self._axes)}", over)
        if over:
            self._cover(name, over, step)
        if trips is None and start is not None:
            text = f"loop {name}: starts at {start.name}, and its trips are no tile value"
            raise error(f"{text}; give both", name)
        if trips is None and name in self._by_tile:
            raise error(f"loop {name}: runs to a tile value elsewhere; give it trips=", name)
        if trips is None:
            return self._counts.setdefault(name, f"{name}_trips" if self._counts else "trips")
        if name in self._counts:
            text = f"loop {name}: runs to a parameter elsewhere"
            raise error(f"{text}; one to a tile value does not", name)
        self._by_tile.add(name)
        self.begins |= {name: start.name} if start else {}
        return trips.name

    @contextmanager
    def opened(self, name: str, where: tuple[str, int]) -> Iterator[None]:
        """Open a loop.  Raises ProgramError if nothing in it says how far its digit goes."""
        self.loops.append(name)
        yield
        self.loops.remove(name)
        self.begins.pop(name, None)
        if name in self.gone_through:
            self.gone_through.remove(name)
        if name not in self._covers and self._digits[name].extent is None:
            text = f"loop {name}: no pattern says how far it goes; give it over=, an axis, and by="
            raise at_line(where, text, name)

    def go_through(self, name: str) -> int:
        """Go through a digit of values, until its loop ends; return how far it counts."""
        self.require(name)
        if self.by(name) != "values" or name in self.gone_through or name in self.halves:
            text = f"each: {name} is no digit of values"
            raise error(f"{text} that are still to be gone through", name)
        self.gone_through.append(name)
        return self.extent(name)

    def written_out(self) -> tuple[tuple[str, int], ...]:
        """Return the open loops that have an extent."""
        each = ((name, self._digits[name].extent) for name in self.loops)
        return tuple((name, extent) for name, extent in each if extent is not None)

    def in_scope(self, index: LoopIndex) -> None:
        """Raise ProgramError if the index is of a loop that has ended."""
        for loop in index.loops:
            if loop not in self.loops:
                raise error(f"{loop}: its loop has ended; use it inside", loop)

    def use_of(self, name: str, at: LoopIndex | tuple[LoopIndex, ...], *, own: bool) -> Affine:
        """Return which use of a ring is meant by numbers, slowest first."""
        first, *others = at if isinstance(at, tuple) else (at,)
        self.in_scope(first)
        index = first.use(own=own)
        for number in others:
            self.in_scope(number)
            if isinstance(number.count, str):
                text = f"{name}: {number.digit} is open; only the first number may be so"
                raise error(text, name)
            index = _multiple(index, number.count) + number.affine
        return index

    # patterns

    def equations(
        self, pattern: str, axes: Iterable[str], given: tuple[str, ...] = ()
    ) -> dict[str, tuple[str, ...]]:
        """Read a pattern for an array of some axes.  Raises ProgramError for unknown names.

        Of digits that are ``given`` the loops need not be open.
        """
        key = (pattern, tuple(axes), given)
        known, loops = self._patterns.get(key, _UNREAD)
        if known and loops.issubset(self.loops):
            return known
        found: dict[str, tuple[str, ...]] = {}
        for axis, digits in equations_of(pattern):
            if not axis:
                raise error(f"{digits!r} is no equation as i = (block thread v)", digits)
            if axis not in self._axes and self.by(axis) != "a tile":
                tiles = [name for name, digit in self._digits.items() if digit.by == "a tile"]
                raise error(f"axis {axis}: there is none; {nearest(axis, (*self._axes, *tiles))}",
                            axis)  # fmt: skip
            if axis in found:
                raise error(f"axis {axis}: has two equations in one pattern", axis)
            found[axis] = tuple(digits.split())
        used, inside = list(axes), []
        for axis in used:
            for digit in self.expanded(found, axis) if axis in found else ():
                self.require(digit)
                if self.by(digit) == "a loop" and digit not in given:
                    inside.append(digit)
                    if digit not in self.loops:
                        raise error(f"digit {digit}: its loop has ended; use it inside", digit)
            used += [digit for digit in found.get(axis, ()) if digit in found]
        for axis in used:
            if axis in found and axis not in self.judged and self.by(axis) == "a tile":
                self._counts_all(axis, found[axis])
        self._patterns[key] = found, frozenset(inside)
        return found

    def expanded(
        self, equations: Mapping[str, tuple[str, ...]], axis: str, inside: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Return an axis's digits; those that have an equation are replaced by its right side."""
        if axis in inside:
            raise error(f"axis {axis}: stands in its own equation", axis)
        found: list[str] = []
        for digit in equations[axis]:
            if digit in equations:
                found += self.expanded(equations, digit, (*inside, axis))
            else:
                found.append(digit)
        return tuple(found)

    def _counts_all(self, axis: str, digits: Iterable[str]) -> None:
        """Raise ProgramError unless the digits count just as far as the tile's dimension."""
        extent, count = self.extent(axis), math.prod(map(self.extent, digits))
        if differ(extent, count):
            has, counted = number_text(extent), number_text(count)
            raise error(f"{axis} has {has} elements, the digits count {counted}", axis)

    def along(
        self, axis: str, equations: Mapping[str, tuple[str, ...]]
    ) -> tuple[dict[str, int | str], int, bool]:
        """Return the digits' steps along an axis, how far they count, and whether one is open.

        Where CTAs share what a loop covers, the loop's step is a parameter if they lie within it
        (they stride), and theirs is one if it lies within them (each has a part).
        """
        digits = equations.get(axis, (axis,))
        begins: dict[str, int | str] = {d: 1 for d in digits if self.by(d) == "a tile value"}
        if begins:
            rest = tuple(d for d in digits if d not in begins)
            inner, step, is_open = self.along(axis, {**equations, axis: rest})
            if is_open or digits[: len(begins)] != (*begins,):
                text = f"axis {axis}: begins at {', '.join(begins)}, a tile value: give it first,"
                raise error(f"{text} and then digits with extents", axis)
            return begins | inner, step, True
        opened = [i for i, d in enumerate(digits) if self._digits[d].extent is None]
        within = digits[opened[-1] + 1 :] if opened else digits
        laid: dict[str, int] = {}

        def lay(digits: tuple[str, ...], step: int) -> int:
            for digit in reversed(digits):
                if digit in equations and digit != axis:
                    lay(equations[digit], step)
                else:
                    name, share = self.one_of.get(digit, (digit, 1))
                    if not isinstance(share, int) or share:
                        laid[name] = laid.get(name, 0) + step * share
                step = step * self.extent(digit)
            return step

        step = lay(within, 1)
        found: dict[str, int | str] = {**laid}
        if not opened:
            return found, step, False
        parts, digit = digits[: opened[-1]], digits[opened[-1]]
        if len(parts) > (self.by(digit) == "a loop") or not all(map(self._fixed, parts)):
            text = f"digit {digit}: covers axis {axis}, so it has to be the slowest there"
            raise error(text, digit)
        strides = self.by(digit) == "a loop"
        sharing = [d for d in within if strides and self._fixed(d) and self.by(d) == "the grid"]
        unit = math.prod(self.extents(d for d in within if d not in sharing))
        self._cover(digit, axis, unit, math.prod(self.extents((*parts, *sharing))))
        found[digit] = self._parameter(digit, Constant(step)) if sharing else step
        if parts and digit not in self._counts:
            text = f"digit {parts[0]}: parts of what {digit} covers are equal, and its trips a tile"
            raise error(f"{text}'s own; let CTAs not share it", parts[0])
        for part in parts:
            found[part] = self._parameter(part, value(self._counts[digit]) * Constant(unit))
        return found, step, True

    def on_chip(self, axis: str, equations: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
        """Return the digits' steps along an axis of a tile on chip, where none has a name."""
        return cast("dict[str, int]", self.along(axis, equations)[0])

    def inside(self, digits: tuple[str, ...], *, is_open: bool) -> bool | str:
        """Say whether digits count no further than the axis: an open one has its whole steps.

        Or up to which tile value they do.
        """
        if begins := [d for d in digits if self.by(d) == "a tile value"]:
            return self.ends.get(begins[0], digits == (begins[0],))
        opened = next((d for d in digits if d in self._covers), "")
        if opened in self._by_tile:
            return False
        if not is_open or self.by(opened) != "a loop":
            return is_open and len(digits) == 1
        _, step, among = self._covers[opened]
        exact = (step == 1) & (among == 1)
        return exact if isinstance(exact, bool) or exact.any() else False

    def _fixed(self, digit: str) -> bool:
        """Say whether CTAs count a digit, so far."""
        known = self._digits[digit]
        return known.by in ("the grid", "the cluster") and known.extent is not None

    def _parameter(self, digit: str, step: Expression) -> str:
        """Return the parameter that is a digit's step."""
        if digit not in self._steps:
            name = _STEPS[self._digits[digit].by]
            taken = [known for known, _ in self._steps.values()]
            self._steps[digit] = (f"{name}_{digit}" if name in taken else name, step)
        return self._steps[digit][0]

    def _cover(self, digit: str, axis: str, step: int, among: int = 1) -> None:
        """Let an open digit go over an axis in steps; it may do so in one way alone."""
        other, before, shared = self._covers.setdefault(digit, (axis, step, among))
        if other != axis or differ(before, step) or differ(shared, among):
            one, two = number_text(step), number_text(before)
            text = f"digit {digit}: covers {axis} in steps of {one}, and {other} in steps of {two}"
            raise error(f"{text}; give it one way", digit)

    def count_slots(self, digit: str, count: Expression, values: Mapping[str, str]) -> None:
        """Let a digit of the grid count as far as an expression says, and tiles have values.

        ``values``: by the name of each the one up to which rows that begin at it reach, or "".
        """
        self.require_by("slots", digit, "the grid")
        self._counted[digit] = count
        for name, end in values.items():
            self.declare(name, "a tile value", None)
            self.ends |= {name: end} if end else {}

    # the term's own

    def grid(self) -> tuple[term.Axis, ...]:
        """Return the axes of the grid."""
        grid = (digit for digit in self._digits.values() if digit.by == "the grid")
        return tuple(term.Axis(d.name, self._count(d), d.name in self.down) for d in grid)

    def cluster(self) -> tuple[tuple[str, int], ...]:
        """Return the digits of the cluster, and how far they count."""
        return tuple((n, self.extent(n)) for n, d in self._digits.items() if d.by == "the cluster")

    def parameters(self) -> tuple[tuple[str, Expression], ...]:
        """Return the parameters that are loops' trips, and those that are steps of digits."""
        loops = [d for d in self._digits.values() if d.name in self._counts and d.extent is None]
        trips = [(self._counts[d.name], self._count(d)) for d in loops]
        return (*trips, *self._steps.values())

    def _count(self, digit: Digit) -> Expression:
        """Return how far a digit counts: as far as its axis needs, if it is open."""
        if digit.extent is not None:
            return Constant(digit.extent)
        if digit.name in self._counted:
            return self._counted[digit.name]
        if digit.name not in self._covers:
            text = f"machine {self._machine}: digit {digit.name}: no pattern has it, so that nobody"
            raise ProgramError(f"{text} knows how far it goes; use it, or give it an extent")
        axis, step, among = self._covers[digit.name]
        count: Expression = value(axis)
        for size in (step, among):
            if not isinstance(size, int) or size != 1:
                count = count.ceildiv(size)
        return count


class Declarations:
    """The calls that declare digits.  ``_digits`` has what is declared; subclasses ask it."""

    def __init__(self, name: str, operation: Operation) -> None:
        self.name, self.op = name, operation
        self._digits = Digits(name, operation.axes)

    def grid(self, *open_digits: str, **fixed: int) -> None:
        """Declare digits that CTAs count, slowest first: open ones, then those with an extent."""
        self._declare("the grid", dict.fromkeys(open_digits))
        self._declare("the grid", fixed)

    def walk_down(self, digit: str) -> None:
        """Let the tiles of a CTA, or the grid's, begin at the end of an axis of the grid."""
        self._digits.require_by("walk_down", digit, "the grid")
        self._digits.down.add(digit)

    def slots(self, digit: str, block: int) -> dict[str, Expression]:
        """Let an open digit of the grid count slots of ``block`` rows of the operation's groups.

        Returns the tile values, for ``k.tiles``; patterns say ``g = which, m = (first row)``.  See
        ``tinygpu.term.groups``.
        """
        groups = self.op.groups
        if groups is None:
            raise error(f"slots: {self.op.name} has no groups", "slots")
        values = slot_values(groups, digit, block)
        ends = {name: END if name == FIRST else "" for name in values}
        self._digits.count_slots(digit, slots(groups, block), ends)
        return values

    def cluster(self, **extents: int) -> None:
        """Declare digits that the CTAs of a cluster count, the first one fastest."""
        self._declare("the cluster", extents)

    def threads(self, *, turned: bool = False, **extents: int) -> None:
        """Declare the digits that the threads of a CTA count, slowest first.

        Where ``turned``, the last two change places.
        """
        self._declare("threads", extents)
        digits = self._digits
        counting = tuple(extents)[::-1] + (digits.threads if digits.countings else ())
        digits.countings[:1] = [counting]
        if turned is not False:
            digits.turned[counting] = turned

    @property
    def thread_count(self) -> int:
        """The threads of a CTA."""
        return math.prod(self._digits.extents(self._digits.threads))

    def recount(self, **extents: int) -> None:
        """Count the same threads in another way: patterns with these digits go by it."""
        self._declare("threads", extents)
        self._digits.countings.append(tuple(extents)[::-1])

    def tile(self, **extents: int) -> None:
        """Declare the dimensions of a tile: patterns say of which digits they are made.

        Whether those count as far is for the laws to say.
        """
        self._declare("a tile", extents)
        self._digits.judged.update(extents)

    def values(self, **extents: int) -> None:
        """Declare digits that each thread counts by itself, slowest first."""
        self._declare("values", extents)

    def _declare(self, by: Counter, extents: Mapping[str, int | None]) -> None:
        for name, extent in extents.items():
            self._digits.declare(name, by, extent)

    def split(self, name: str, slow: str, **fast: int) -> None:
        """Count a digit of values in two, row = (far near): ``split("row", "far", near=4)``."""
        (near, extent), *_ = fast.items()
        self.values(**{slow: self._digits.extent(name) // extent, near: extent})
        self._digits.halves[name] = (slow, near)

    def deal(self, name: str, *, vector: int, **extents: int) -> str:
        """Deal a tile's elements out to the threads, in vectors along its lines, then across.

        Its digits begin with the name; the equations of the dimensions, as tm=64, tk=32, are
        returned.
        """
        (lines, height), (wide, length) = extents.items()
        vectors = length // vector
        side = select(vectors < self.thread_count, vectors, self.thread_count)
        rows = self.thread_count // side
        self.recount(**{f"{name}_line": rows, f"{name}_vector": side})
        down, right = height // rows, vectors // side
        self.values(**{f"{name}_down": down, f"{name}_right": right, f"{name}_one": vector})
        across = f"{name}_right {name}_vector {name}_one"
        return f"{lines} = ({name}_down {name}_line), {wide} = ({across})"

    def digit(self, name: str, count: int) -> LoopIndex:
        """Declare a digit of which statements say the number, and ``k.unrolled``; return its 0.

        The others are ``+ n``: ``tile[step][zero + 1][at]``.
        """
        self._digits.declare(name, "a loop", count)
        return LoopIndex(Affine(), (), count, digit=name)

    def one_of(self, copies: str, **digits: int) -> None:
        """Let copies of a role count along one of some digits; the others have an extent of 1.

        Which one it is may differ from schedule to schedule: ``k.one_of("w", high=2, wide=1)``.
        """
        shared, taken = self.copy(copies).count, False
        for name, extent in digits.items():
            self._digits.declare(name, "copies of a role", extent)
            mine = (extent == shared) & (taken == 0)
            self._digits.one_of[name], taken = (copies, mine * 1), taken | mine
        if np.all((math.prod(digits.values()) != shared) | (taken == 0)):
            text = f"one_of {copies}: {', '.join(digits)}: one of them has to count all copies"
            raise error(text, copies)

    def copy(self, digit: str) -> LoopIndex:
        """Return which copy of its role it is: ``turn[step, k.copy("w") + 1]``."""
        self._digits.require_by("copy", digit, "copies of a role")
        return LoopIndex(var(digit), (), self._digits.extent(digit), digit=digit)
