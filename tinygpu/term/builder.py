"""The tracing builder: a machine is written as ``forward(self, k)``, whose calls append statements.

A *digit* counts from 0.  Its declaration says who counts it, a pattern says where it goes:

    k.grid("bm", "bn")             CTAs          k.threads(warp=8, lane=32)    threads
    k.values(u=4, v=8)             each thread   for step in k.loop("step")    a loop
    k.smem("x", "f32", tm=64, ..)  the dimensions of a tile in shared memory
    k.tmem("sums", "f32", ..)      a tile in tensor memory, of known digits
    k.cluster(rank_m=2)            the CTAs of a cluster
    k.role("consumer", .., w=2)    copies of a role

``x["i = (block thread v)"]`` writes each axis of x in digits, slowest first, as einops does: the
coordinate is the number in mixed radix.  Slowest first too are keywords of declarations.

- An array reads the equations of its own axes alone, so that one pattern serves all operands.
- The slowest digit of an axis may be open (a grid's or loop's without an extent): it covers the
  axis, however long it is.  An axis without one bounds the size.
- CTAs may share out what a loop covers: they stride in ``"i = (turn block u thread v)"``, and each
  has one part of k in ``"k = (part step)"``.  The steps that follow are parameters.
- A dimension of a tile is a digit; ``"m = (bm tm), tm = (warp row)"`` is one equation in another.
  A dimension of a tile that its pattern does not name is counted whole, by each thread.
- Registers keep the digits of their load, and arithmetic goes by digits' names.
- Where the last digit of the contiguous dimension is a thread's own, it moves in vectors of up to
  16 B.
- ``full[step]`` and ``x[step]`` are *uses*: use n of a ring of s stages has stage n mod s.  They go
  on from tile to tile (``k.tiles``): a ring of all roles by tiles, one of a copy by its own turns.

>>> from tinygpu.term.operation import elementwise
>>> def forward(k):
...     k.grid("block")
...     k.threads(thread=128)
...     k.values(v=4)
...     at = "i = (block thread v)"
...     held = {x.name: k.load(x[at]) for x in k.inputs}
...     k.store(k.output[at], k.compute(k.op.epilogue, held))
>>> for statement in trace("scale", forward, elementwise("a*x")).roles[0].body:
...     print(statement)
x_held = ld.global(x[512*block]) x 4 by 4
result = fma.mul(a, x_held) x 4
y[512*block] = st.global(result) x 4 by 4

Source: einops (A. Rogozhnikov, 2022) for patterns; ``docs/tutorial/builder.md``.
"""

from __future__ import annotations

import linecache
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from tinygpu.errors import ProgramError, nearest, require_kind
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.term import program as term
from tinygpu.term.access_map import Operand, Predicate, number_text
from tinygpu.term.arithmetic import compute
from tinygpu.term.beyond import beyond_trips, within_trips
from tinygpu.term.expression import Constant, Expression, apply, value
from tinygpu.term.operation import REDUCERS, Operation
from tinygpu.term.program import Access, Affine, Buffer, Program, Statement, registers, select, var
from tinygpu.term.statement import FenceKind, Group, Scope
from tinygpu.term.tensor_memory import LANES, RowLanes

__all__ = [
    "Array",
    "BarrierRing",
    "BarrierUse",
    "Below",
    "Condition",
    "Coordinate",
    "Held",
    "Kernel",
    "LoopIndex",
    "Number",
    "Piece",
    "Tile",
    "TileValue",
    "trace",
]

Number = Any
"""An int, or while a space is scored an array over its schedules: compute with it, no branches."""

_VECTOR_BYTES = 16  # spec: PTX ISA, "ld"
_SLAB_BYTES = 128  # the widest swizzle
_SLICE_BYTES, _PAIR = 32, 2  # spec: PTX ISA, a product's k in bytes; neighbours in a register
_ZERO = Affine()
_NOWHERE: Mapping[str, Affine] = MappingProxyType({})
_UNREAD: tuple[dict[str, tuple[str, ...]], frozenset[str]] = ({}, frozenset())
_WARP, _WARPGROUP, _REGISTER_BYTES = 32, 128, 4
_TMA_STORE = INSTRUCTIONS["cp.async.bulk.tensor.global"]
_SPACES = {"gmem": "global", "smem": "shared"}
_EQUATION = re.compile(r"\s*(\w+)\s*=\s*(?:\(([\w\s]+)\)|(\w+))\s*")

Counter = Literal[
    "the grid", "the cluster", "copies of a role", "threads", "values", "a loop", "a tile"
]
_MOVING = ("the grid", "the cluster", "copies of a role", "a loop")
_STEPS = {"the grid": "chunk", "the cluster": "share", "a loop": "stride"}
"""What the parameter is called that is the step of a digit, by who counts it."""
_SHARE = re.compile(r"\s*(\w+) by (\w+)\s*")


@dataclass(frozen=True, slots=True)
class Digit:
    """A digit: who counts it, and how far (None: as far as an axis needs)."""

    name: str
    by: Counter
    extent: Number | None


@dataclass(frozen=True, slots=True)
class Condition:
    """What ``k.when`` asks: whether an index is less than a bound."""

    index: Affine
    bound: Number

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
    count: Number = 1
    tiles: tuple[str, str] | None = None
    around: tuple[tuple[str, Number], ...] = ()
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
        named = isinstance(self.count, str)
        end = var(self.count) + -1 if named else Affine(self.count + -1)
        return replace(self, affine=end, loops=())

    def __add__(self, number: Number) -> LoopIndex:
        more = self.affine + number
        return LoopIndex(more, self.loops, self.count, self.tiles, self.around, self.digit)

    def __sub__(self, other: Number | LoopIndex) -> LoopIndex:
        if not isinstance(other, LoopIndex):
            return replace(self, affine=self.affine + -1 * other)
        less: Affine = self.affine + -1 * other.affine
        return replace(self, affine=less, loops=self.loops + other.loops)

    def __lt__(self, bound: Number | TileValue) -> Condition:
        return Condition(self.affine, bound.name if isinstance(bound, TileValue) else bound)

    def __ge__(self, bound: Number) -> Condition:
        return Condition(-1 * self.affine + bound, 1)


@dataclass(frozen=True, slots=True)
class TileValue:
    """A number that each tile has for itself; ``k.loop`` runs to it, ``k.when`` asks for it."""

    name: str

    def __ge__(self, number: Number) -> Condition:
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


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Registers with a value for each of their digits (slowest first).

    Of a ring ``held[step, s]`` is a use: the numbers of several digits count on, slowest first.
    """

    kernel: Kernel
    buffer: Buffer
    dimensions: tuple[str, ...]
    index: Affine | None = None
    """Which value of a ring it is."""
    ring: bool = False

    @property
    def digits(self) -> tuple[str, ...]:
        """Its dimensions but for those that ``k.each`` goes through."""
        gone = self.kernel.gone_through
        return tuple(d for d in self.dimensions if d not in gone) if gone else self.dimensions

    @property
    def name(self) -> str:
        """The name of the registers."""
        return self.buffer.name

    def __getitem__(self, at: LoopIndex | tuple[LoopIndex, ...]) -> Held:
        if isinstance(at, str):
            text = f"{self.name}: registers take no pattern; k.each goes through a digit"
            raise self.kernel.error(text, self.name)
        index = self.kernel.counted_on(self, at)
        return Held(self.kernel, self.buffer, self.dimensions, index, self.ring)


@dataclass(frozen=True, slots=True)
class Piece:
    """What a pattern picks of an array or of a tile.

    ``stage`` is the use of a ring of tiles, or of an array what its loop's digit counts instead.
    ``tile[step][s + 1][at]``: at ``s + 1`` of the digit that s is a number of.
    """

    array: Array
    equations: Mapping[str, tuple[str, ...]]
    stage: LoopIndex | None = None
    numbers: tuple[LoopIndex, ...] = ()

    def __getitem__(self, at: str | LoopIndex) -> Piece:
        kernel = self.array.kernel
        if isinstance(at, LoopIndex):
            kernel.in_scope(at)
            return Piece(self.array, self.equations, self.stage, (*self.numbers, at))
        given = tuple([number.digit for number in self.numbers])
        equations = kernel.equations(at, self.array.axes, given)
        return Piece(self.array, equations, self.stage, self.numbers)


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An operand in global memory, or a tile (or ring of tiles) in shared or tensor memory.

    ``axes`` are the axes of an operand, or the digits that a tile's dimensions are.  A swizzled
    tile lies as slabs of ``slab`` elements of its last dimension, one after the other.
    """

    kernel: Kernel
    buffer: Buffer
    axes: tuple[str, ...]
    slab: int = 0
    ring: bool = False
    own: bool = False
    """Whether each copy of a role has one of its own."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.buffer.name

    @property
    def dtype(self) -> str:
        """The name of its data type."""
        return self.buffer.dtype

    @property
    def columns(self) -> Number:
        """The columns of a tile in tensor memory that lie in one lane."""
        return self.buffer.shape[1]

    @property
    def stage_bytes(self) -> Number:
        """The bytes of one tile."""
        return self.buffer.stage_bytes

    def __getitem__(self, at: str | LoopIndex) -> Piece:
        if isinstance(at, str):
            return Piece(self, self.kernel.equations(at, self.axes))
        self.kernel.in_scope(at)
        if not self.ring and self.buffer.level != "gmem":
            raise self.kernel.error(f"{self.name} has no stages; give k.smem its stages", self.name)
        return Piece(self, {}, at)


def _piece(part: Piece | Array) -> Piece:
    """Return a part; an array stands for all of it."""
    return part if isinstance(part, Piece) else Piece(part, {})


@dataclass(frozen=True, slots=True)
class BarrierUse:
    """Use number ``index`` of a ring of barriers."""

    barrier: term.Barrier
    index: Affine


@dataclass(frozen=True, slots=True, eq=False)
class BarrierRing:
    """A ring of barriers: ``ring[step]`` is a use; of mbarriers, uses before the first are over.

    ``ring[step, w]``: the numbers of several digits count on, slowest first.
    """

    kernel: Kernel
    barrier: term.Barrier

    def __getitem__(self, at: LoopIndex | tuple[LoopIndex, ...]) -> BarrierUse:
        return BarrierUse(self.barrier, self.kernel.use_of(self.barrier.name, at, own=False))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of each digit, one a dimension; the last digit of the contiguous one; guarded axes.

    And how threads count there: their digits' extents and steps.
    """

    steps: Mapping[str, tuple[Number, ...]]
    last: str
    guard: tuple[Number, ...]
    threads: tuple[Number, ...]
    strides: tuple[tuple[Number, ...], ...]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A sum of coordinates along axes, sizes and numbers: ``k.at("n = (kt tn)") - k.size("n")``.

    ``parts``: along which axis and digits, and how often each counts.  Compared with another one
    it is a condition on each value: ``k.fill(s, -inf, where=k.at(..) >= k.size("n"))``.
    """

    kernel: Kernel
    parts: tuple[tuple[Piece, int], ...]
    rest: Affine

    def __add__(self, other: Coordinate | int) -> Coordinate:
        if not isinstance(other, Coordinate):
            return replace(self, rest=self.rest + other)
        return Coordinate(self.kernel, self.parts + other.parts, self.rest + other.rest)

    __radd__ = __add__

    def __neg__(self) -> Coordinate:
        parts = tuple((part, -often) for part, often in self.parts)
        return Coordinate(self.kernel, parts, -1 * self.rest)

    def __sub__(self, other: Coordinate | int) -> Coordinate:
        return self + -other

    def __rsub__(self, other: int) -> Coordinate:
        return -self + other

    def __lt__(self, other: Coordinate | int) -> Below:
        return Below(self - other)

    def __le__(self, other: Coordinate | int) -> Below:
        return Below(self - other - 1)

    def __gt__(self, other: Coordinate | int) -> Below:
        return Below(-(self - other))

    def __ge__(self, other: Coordinate | int) -> Below:
        return Below(-(self - other) - 1)


@dataclass(frozen=True, slots=True)
class Below:
    """The condition that a coordinate is below 0."""

    number: Coordinate

    def __bool__(self) -> bool:
        raise ProgramError("each value is asked by itself: give the condition to k.fill, not to if")


@cache
def _equations(pattern: str) -> tuple[tuple[str, str], ...]:
    """Return the axis and the digits of each equation; no axis, and the text, if it is none."""
    found = []
    for text in pattern.split(","):
        match = _EQUATION.fullmatch(text)
        found.append((match[1], match[2] or match[3]) if match else ("", text.strip()))
    return tuple(found)


def _across(array: Array, axis: str, step: Number) -> tuple[Number, ...]:
    """Return a slabbed tile's step of so many elements along an axis, in its three dimensions."""
    if array.axes[-1] != axis:
        return (step, 0, 0)
    return (0, select(step < array.slab, step, 0), step // array.slab)


def _differ(one: Number, other: Number) -> bool:
    """Say whether two plain ints differ; of decisions' numbers it is for the laws to say."""
    return isinstance(one, int) and isinstance(other, int) and one != other


def _multiple(index: Affine, count: Number) -> Affine:
    """Return ``index * count``; what a parameter scales stands there as often."""
    scaled = [(name, factor) for name, factor in index.terms if isinstance(factor, str)]
    others = tuple((n, factor * count) for n, factor in index.terms if not isinstance(factor, str))
    many = scaled * count if scaled else []
    return Affine(index.constant * count, (*many, *others))


def _not(exact: Number) -> Number:
    return not exact if isinstance(exact, bool) else exact == 0


class Kernel:
    """One term in the making; see the module's text."""

    def __init__(self, name: str, operation: Operation) -> None:
        require_kind("kernel: name", name, str, ProgramError)
        require_kind("kernel: operation", operation, Operation, ProgramError)
        self.name, self.op = name, operation
        self._pitches: list[tuple[str, Expression]] = []
        arrays = []
        for o in operation.operands:
            stride: list[int | str] = [1]
            for back, axis in enumerate(reversed(o.axes[1:])):
                kind = "ld" if back == 0 else f"ls{back if back > 1 else ''}"
                pitch = f"{kind}_{o.name}"
                inner = stride[0] if isinstance(stride[0], str) else None
                self._pitches.append((pitch, value(inner) * value(axis) if inner else value(axis)))
                stride.insert(0, pitch)
            buffer = Buffer(o.name, "gmem", o.dtype, o.axes, tuple(stride))
            arrays.append(Array(self, buffer, o.axes))
        self.arrays = tuple(arrays)
        count = len(operation.inputs)
        self.inputs, self.outputs = self.arrays[:count], self.arrays[count:]
        self.output = self.outputs[0]
        self._written = {axis for o in operation.outputs for axis in o.axes}
        self._digits: dict[str, Digit] = {}
        self._judged: set[str] = set()  # dimensions that k.tile declares
        self._order: dict[str, int] = {}
        self._covers: dict[str, tuple[str, Number, Number]] = {}
        """Of open digits the axis, what one step is, and among how many CTAs it is shared."""
        self._counts: dict[str, str] = {}  # the names of loops' counts
        self._begins: dict[str, str] = {}  # of open loops: the tile value at which they begin
        self._down: set[str] = set()  # digits of the grid that are walked from their end
        self._by_tile: set[str] = set()  # loops that run to a tile value
        self._steps: dict[str, tuple[str, Expression]] = {}  # by digit: parameters that are steps
        self._bounds: dict[str, Number] = {}  # sizes that no open digit covers
        self._inside: dict[str, tuple[str, ...]] = {}  # equations that an Exit keeps inside
        self._guarded = dict.fromkeys(operation.axes, True)
        self._countings: list[tuple[str, ...]] = []  # of threads, fastest first
        self._turned: dict[tuple[str, ...], Number] = {}  # where the two fastest change places
        self._split: dict[str, tuple[str, ...]] = {}  # digits of values that are counted in two
        self._one_of: dict[str, tuple[str, Number]] = {}  # who counts in a digit's place, if any
        self._lanes: dict[str, tuple[RowLanes, str, str]] = {}
        """Of a digit of rows in tensor memory the lanes, the digit of halves, and the pair."""
        self._patterns: dict[Any, tuple[dict[str, tuple[str, ...]], frozenset[str]]] = {}
        self._places: dict[tuple[str, int], _Steps] = {}
        self._modes_of: dict[tuple[Any, ...], tuple[_Steps, tuple[str, ...]]] = {}
        self._ways: dict[tuple[Any, ...], Any] = {}  # of places, how threads and values go
        self._owned: dict[tuple[Any, ...], Any] = {}  # of registers, how values go
        self._left = ""  # the array whose outside threads leave
        self._zeroed = False
        self._open_loops: list[str] = []
        self._on_chip: list[Buffer] = []
        self._first_own = 0  # of those, the first that copies of a role have each
        self._barriers: list[term.Barrier] = []
        self._roles: list[tuple[bool, term.Role]] = []  # those of warpgroups come first
        self._body: list[Statement] = []
        self._names: dict[str, int] = {}
        self._scratch: dict[tuple[str, ...], Held] = {}
        self._role = ""  # that is being written
        self._role_threads: Number = 0
        self._copies: Number = 1
        self._tiles: tuple[str, str] | None = None
        self._tiled = False  # whether the role says where its tiles begin
        self._options: dict[str, Number] = {}
        self._elected = False
        self._only: tuple[Number, Number, Number] | None = None
        self.gone_through: list[str] = []  # digits of values, by k.each
        self._broken: ProgramError | None = None

    # who counts

    def grid(self, *open_digits: str, **fixed: Number) -> None:
        """Declare digits that CTAs count, slowest first: open ones, then those with an extent."""
        for name in open_digits:
            self._declare(name, "the grid", None)
        for name, extent in fixed.items():
            self._declare(name, "the grid", extent)

    def walk_down(self, digit: str) -> None:
        """Let the tiles of a CTA, or the grid's, begin at the end of an axis of the grid."""
        self._known(digit)
        if (by := self._digits[digit].by) != "the grid":
            raise self.error(f"walk_down: {by} counts {digit}, not the grid", digit)
        self._down.add(digit)

    def cluster(self, **extents: Number) -> None:
        """Declare digits that the CTAs of a cluster count, the first one fastest."""
        for name, extent in extents.items():
            self._declare(name, "the cluster", extent)

    def launch(
        self, *, persistent: Number = 0, raster: Number = 1, ctas_per_sm: Number = 1,
        early: Number = 0, snake: bool = False, specialised: Number = 0,
        addressing: Number = "pointer", guards: Number = "each",
    ) -> None:  # fmt: skip
        """Say how the kernel is launched; see ``tinygpu.term.program.Program``."""
        self._options = {
            "persistent": persistent, "raster": raster, "ctas_per_sm": ctas_per_sm, "early": early,
            "snake": snake, "specialised": specialised, "addressing": addressing, "guards": guards,
        }  # fmt: skip

    def threads(self, *, turned: Number = False, **extents: Number) -> None:
        """Declare the digits that the threads of a CTA count, slowest first.

        Where ``turned``, the last two change places.
        """
        for name, extent in extents.items():
            self._declare(name, "threads", extent)
        counting = tuple(extents)[::-1] + (self._countings[0] if self._countings else ())
        self._countings[:1] = [counting]
        if turned is not False:
            self._turned[counting] = turned

    @property
    def thread_count(self) -> Number:
        """The threads of a CTA."""
        return math.prod(self._extents(self._countings[0]))

    def recount(self, **extents: Number) -> None:
        """Count the same threads in another way: patterns with these digits go by it."""
        for name, extent in extents.items():
            self._declare(name, "threads", extent)
        self._countings.append(tuple(extents)[::-1])

    def tile(self, **extents: Number) -> None:
        """Declare the dimensions of a tile: patterns say of which digits they are made.

        Whether those count as far is for the laws to say.
        """
        for name, extent in extents.items():
            self._declare(name, "a tile", extent)
            self._judged.add(name)

    def values(self, **extents: Number) -> None:
        """Declare digits that each thread counts by itself, slowest first."""
        for name, extent in extents.items():
            self._declare(name, "values", extent)

    def split(self, name: str, slow: str, **fast: Number) -> None:
        """Count a digit of values in two, row = (far near): ``split("row", "far", near=4)``."""
        (near, extent), *_ = fast.items()
        self._declare(slow, "values", self._extent(name) // extent)
        self._declare(near, "values", extent)
        self._split[name] = (slow, near)

    def deal(self, name: str, *, vector: Number, **extents: Number) -> str:
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

    def digit(self, name: str, count: Number) -> LoopIndex:
        """Declare a digit of which statements say the number, and ``k.unrolled``; return its 0.

        The others are ``+ n``: ``tile[step][zero + 1][at]``.
        """
        self._declare(name, "a loop", count)
        return LoopIndex(Affine(), (), count, digit=name)

    def unguarded(self, *axes: str) -> None:
        """Let accesses not ask whether they are inside along some axes: laws see to it.

        The array whose outside threads leave (``leave_outside``) is asked for all the same.
        """
        self._guarded |= dict.fromkeys(axes, False)
        self._places.clear()

    def loop(
        self, name: str, *, over: str = "", by: Number = 1, first: Number | None = None,
        trips: TileValue | None = None, start: TileValue | None = None,
    ) -> Iterator[LoopIndex]:  # fmt: skip
        """Trace a loop's body once.  It covers the axis in whose pattern it stands, or ``over``.

        With ``first`` = n its first n turns are written out, and no more done.  With ``trips`` =
        ``tile.trips`` it runs so often in a tile; with ``start`` = ``tile.begin`` patterns count
        its digit from there on, and the variable itself, as indices of rings do, from 0.
        """
        if name not in self._digits:
            self._declare(name, "a loop", None)
        elif self._digits[name].by != "a loop" or name in self._open_loops:
            raise self.error(f"digit {name}: {self._digits[name].by} counts it already", name)
        if over and over not in self.op.axes:
            raise self.error(f"axis {over}: there is none; {nearest(over, self.op.axes)}", over)
        if over:
            self._cover(name, over, by)
        if trips is not None:
            return self._loop_in_tile(name, trips, start, first)
        if start is not None:
            text = f"loop {name}: starts at {start.name}, and its trips are no tile value"
            raise self.error(f"{text}; give both", name)
        if name in self._by_tile:
            raise self.error(f"loop {name}: runs to a tile value elsewhere; give it trips=", name)
        self._counts.setdefault(name, f"{name}_trips" if self._counts else "trips")
        return self._loop(name, self._counts[name], self._where(), first)

    def _loop_in_tile(
        self, name: str, trips: TileValue, start: TileValue | None, first: Number | None
    ) -> Iterator[LoopIndex]:
        if name in self._counts:
            text = f"loop {name}: runs to a parameter elsewhere"
            raise self.error(f"{text}; one to a tile value does not", name)
        self._by_tile.add(name)
        self._begins |= {name: start.name} if start else {}
        yield from self._loop(name, trips.name, self._where(), first)
        self._begins.pop(name, None)

    def unrolled(
        self, name: str, count: Number, *, start: Number = 0, stop: Number | None = None
    ) -> Iterator[LoopIndex]:
        """Trace a body that is written out ``count`` times, or those from ``start`` to ``stop``."""
        known = self._digits.get(name)
        if name in self._open_loops or not known or known.by != "a loop":
            self._declare(name, "a loop", count)
        return self._loop(name, count, self._where(), count if stop is None else stop, start)

    def _loop(
        self, name: str, count: Number, where: tuple[str, int], written: Number | None,
        start: Number = 0,
    ) -> Iterator[LoopIndex]:  # fmt: skip
        around, self._body = self._body, []
        outer = self._written_out() if self._tiles else ()
        self._open_loops.append(name)
        try:
            yield LoopIndex(var(name), (name,), count, self._tiles, outer, name)
        except GeneratorExit:
            text = f"loop {name}: its body left by break or return; it is traced once, use k.when"
            self._broken = self._broken or self._error_at(where, text, "")
            raise
        self._open_loops.remove(name)
        trips = count if written is None else written
        if name not in self._covers and self._digits[name].extent is None:
            text = f"loop {name}: no pattern says how far it goes; give it over=, an axis, and by="
            raise self._error_at(where, text, name)
        body, self._body = tuple(self._body), around
        self._body.append(term.For(name, trips, body, written is not None, start))

    def run_on(self, name: str, turns: Number) -> None:
        """Do here what a loop before, of a parameter's trips, leaves undone: ``turns`` more of it.

        What stands there ``when(step < step.count)`` is not done again; what it does n steps late,
        ``when(step >= n)``, is done for the last n steps where ``turns`` is n.
        """
        at, loop = next(
            ((i, s) for i, s in enumerate(self._body) if isinstance(s, term.For) and s.var == name),
            (-1, None),
        )
        if loop is None or not isinstance(loop.trips, str):
            raise self.error(f"run_on {name}: no loop of this name and a parameter's trips", name)
        beyond = f"{name}_on"
        self._declare(beyond, "a loop", turns)
        self._body[at] = replace(loop, body=within_trips(loop))
        self._body.append(term.For(beyond, turns, beyond_trips(loop, beyond), unrolled=True))

    def each(self, name: str) -> Iterator[LoopIndex]:
        """Trace a body for one value of a digit of values after another: written out, as a loop."""
        self._known(name)
        if self._digits[name].by != "values" or name in self.gone_through or name in self._split:
            text = f"each: {name} is no digit of values"
            raise self.error(f"{text} that are still to be gone through", name)
        self.gone_through.append(name)
        extent = self._extent(name)
        yield from self._loop(name, extent, self._where(), extent)
        self.gone_through.remove(name)

    def _written_out(self) -> tuple[tuple[str, Number], ...]:
        """Return the loops around that have an extent."""
        each = ((name, self._digits[name].extent) for name in self._open_loops)
        return tuple((name, extent) for name, extent in each if extent is not None)

    def tiles(self, *, start: str = "", step: Number = 1, **values: Expression) -> Iterator[Tile]:
        """Trace what is done for each tile of a CTA: one, or with ``persistent`` several.

        Copies that take tiles in turn begin at the digit ``start`` and go on by ``step``.
        ``values``: numbers of each tile, none below 0, as expressions of the grid's digits, the
        sizes and the values before them: ``trips=(value("br") + 1).ceildiv(2)``.
        """
        self._in_role("tiles")
        if self._tiles or self._open_loops:
            raise self.error("tiles: stands in a loop; the tiles are around all loops", "tiles")
        if start and (start not in self._digits or self._digits[start].by != "copies of a role"):
            raise self.error(f"tiles: {start} counts no copies of a role", start)
        for name, expression in values.items():
            require_kind(f"tiles: {name}", expression, Expression, ProgramError)
        return self._each_tile(var(start) if start else Affine(), step, tuple(values.items()))

    def _each_tile(
        self, start: Affine, step: Number, values: tuple[tuple[str, Expression], ...]
    ) -> Iterator[Tile]:
        around, self._body = self._body, []
        self._tiles = ("tile", "turn")
        yield Tile(var("tile"), (), values=tuple(name for name, _ in values))
        self._tiles, self._tiled = None, True
        body, self._body = tuple(self._body), around
        self._body.append(term.ForTile("tile", "turn", body, start, step, values))

    # memory

    def smem(
        self, name: str, dtype: str, *digits: str, pad: Number = 0, stages: Number | None = None,
        swizzle: int | str | tuple[Number, Number, Number] = 0, piece: int = 16, **extents: Number,
    ) -> Array:  # fmt: skip
        """Declare a tile in shared memory, its last dimension contiguous; ``stages`` make a ring.

        Its dimensions are new digits, as tm=64, or known ones, by name.  ``pad`` elements follow
        each line.  ``swizzle`` = 128: slabs of 128 B, as TMA and wgmma take them; "line": one slab,
        or as many as a third dimension counts, whose pieces of ``piece`` bytes change places by the
        number of the line, or of the 128 B, if a line has a power of two of them; or (bits, base,
        shift) of ``tinygpu.term.layout.Swizzle``.
        What is declared in a role each of its copies has for itself.
        """
        for digit in digits:
            self._known(digit)
            extents[digit] = self._extent(digit)
        if not extents:
            raise self.error(f"tile {name}: no dimensions; give them as tm=64, tk=32", name)
        for digit, extent in extents.items():
            self._declare(digit, "a tile", extent)
        tiled, ranks = swizzle in (_SLAB_BYTES, "line"), (2, 3) if swizzle == "line" else (2,)
        if swizzle and (len(extents) not in ranks or not (tiled or isinstance(swizzle, tuple))):
            text = f"tile {name}: swizzle {swizzle} of {len(extents)} dimensions"
            raise self.error(f'{text}; it is 128 or "line", of two dimensions', "swizzle")
        each, shape = DTYPES[dtype].bytes, tuple(extents.values())
        slab = _SLAB_BYTES // each if swizzle == _SLAB_BYTES else 0
        if slab:
            shape = (shape[0], slab, shape[1] // slab)
        pitches: list[Number] = [1]
        size: Number = shape[-1] + pad
        for extent in reversed(shape[:-1]):
            pitches.insert(0, size)
            size = size * extent
        pattern: tuple[Number, Number, Number]
        pattern = swizzle if isinstance(swizzle, tuple) else (0, 0, 0)
        if tiled:
            most = (_SLAB_BYTES // piece).bit_length() - 1
            wider = [(shape[1] * each >= piece << i) * 1 for i in range(1, 9)]
            shift = select(sum(wider) > most, sum(wider), most)
            row = shape[1] * each
            bits = select(row & (row - 1) == 0, sum(wider[:most]), 0)
            pattern = (bits, (piece // each).bit_length() - 1, shift)
        if tiled and len(shape) == 3:  # slabs, one after the other
            pitches, size = [shape[1], 1, shape[0] * shape[1]], math.prod(shape)
        buffer = Buffer(
            self._free(name), "smem", dtype, shape, tuple(pitches), 1 if stages is None else stages,
            size, pattern, copies=self._copies,
        )  # fmt: skip
        self._on_chip.append(buffer)
        self._first_own += not self._role
        return Array(self, buffer, tuple(extents), slab, stages is not None, bool(self._role))

    def tmem(
        self, name: str, dtype: str, rows: str, columns: str, *, stages: Number, pair: str = "",
        halves: str = "",
    ) -> Array:  # fmt: skip
        """Declare a ring of tiles in tensor memory: the sums of products, or their first factor.

        Rows go by lanes, as ``tinygpu.term.tensor_memory`` says; ``pair`` counts two CTAs that
        multiply together, and have as many rows each.  Columns that are loaded are said as
        tn = (half .. column): ``halves`` names the digit half, which counts to 2 where 64 rows of
        a pair have columns in two halves of the lanes, and else to 1.
        """
        for digit in (rows, columns):
            self._known(digit)
        if pair:
            self._in_cluster("tmem", pair)
        lanes = RowLanes(self._extent(rows), bool(pair))
        if halves:
            self._declare(halves, "a tile", lanes.halves)
        self._lanes.setdefault(rows, (lanes, halves, pair))
        wide = self._extent(columns) // lanes.halves
        buffer = Buffer(
            self._free(name), "tmem", dtype, (LANES, wide), (wide, 1), stages, LANES * wide
        )
        self._on_chip.append(buffer)
        self._first_own += not self._role
        return Array(self, buffer, (rows, columns), ring=True)

    def mbarriers(
        self, name: str, stages: Number, *, arrivals: Number, home: str = ""
    ) -> BarrierRing:
        """Declare a ring of mbarriers, each use of which ``arrivals`` complete.

        CTAs that the digit ``home`` counts use those of the first of them.
        """
        if home:
            self._in_cluster("mbarriers", home)
        barrier = term.Barrier(self._free(name), stages, arrivals, home)
        self._barriers.append(barrier)
        return BarrierRing(self, barrier)

    def named_barriers(
        self, name: str, stages: Number, *, threads: Number, number: Number
    ) -> BarrierRing:
        """Declare a ring of named barriers, ``number`` and those after it, of so many threads.

        ``k.wait`` of a use is bar.sync by all threads of the role's copy, ``k.arrive`` bar.arrive;
        ``threads`` are those of both.  Numbers of ``k.sync("role")`` begin at 1, one for each copy.
        """
        barrier = term.Barrier(self._free(name), stages, threads, number=number)
        self._barriers.append(barrier)
        return BarrierRing(self, barrier)

    def one_of(self, copies: str, **digits: Number) -> None:
        """Let copies of a role count along one of some digits; the others have an extent of 1.

        Which one it is may differ from schedule to schedule: ``k.one_of("w", high=2, wide=1)``.
        """
        shared, taken = self._extent(copies), False
        self.copy(copies)
        for name, extent in digits.items():
            self._declare(name, "copies of a role", extent)
            mine = (extent == shared) & (taken == 0)
            self._one_of[name], taken = (copies, mine * 1), taken | mine
        if np.all((math.prod(digits.values()) != shared) | (taken == 0)):
            text = f"one_of {copies}: {', '.join(digits)}: one of them has to count all copies"
            raise self.error(text, copies)

    def copy(self, digit: str) -> LoopIndex:
        """Return which copy of its role it is: ``turn[step, k.copy("w") + 1]``."""
        self._known(digit)
        if (by := self._digits[digit].by) != "copies of a role":
            raise self.error(f"copy: {by} counts {digit}, not copies of a role", digit)
        return LoopIndex(var(digit), (), self._extent(digit), digit=digit)

    def registers(self, name: str, dtype: str, *digits: str, stages: Number | None = None) -> Held:
        """Declare registers with a value for each of the digits, of each thread.

        ``stages`` make a ring.
        """
        for digit in digits:
            self._known(digit)
        ordered = self._ordered(digits)
        if wrong := [d for d in ordered if not self.counted(d)]:
            by = self._digits[wrong[0]].by
            raise self.error(f"digit {wrong[0]}: {by} counts it, not each thread", wrong[0])
        shape = tuple(self._digits[d].extent for d in ordered) or (1,)
        many = 1 if stages is None else stages
        buffer = registers(self._free(name), dtype, *shape, stages=many)
        return Held(self, buffer, ordered, ring=stages is not None)

    def _rows(self, name: str, dtype: str, *digits: str) -> Held:
        """Declare registers for columns of lanes: each thread of a warpgroup has its own."""
        shape = (LANES, self._extent(digits[-1]))
        buffer = registers(self._free(name), dtype, *shape, fragment="row")
        return Held(self, buffer, digits, index=self._part())

    def _into(self, into: str, name: str, dtype: str, *digits: str) -> Held:
        """Return new registers, or those that are used over and over under the name ``into``."""
        if not into:
            return self.registers(name, dtype, *digits)
        key = (into, dtype, *digits)
        if key not in self._scratch:
            self._scratch[key] = self.registers(into, dtype, *digits)
        return self._scratch[key]

    # moves

    def load(
        self, part: Piece | Array, *, outside: float = 0.0, vector: Number | None = None,
        into: str | Held = "", by: Instruction | None = None,
    ) -> Held:  # fmt: skip
        """Load into registers; what lies outside of the array is ``outside``.

        ``by``: another instruction of a thread that loads, such as one with a hint for caches.
        Loads ``into`` registers of one name use the same ones, if they hold the same digits.
        """
        part = _piece(part)
        self._each_thread("a load")
        place = self._place(part)
        modes = self._modes(place)
        digits, dtype = self._joined(modes), part.array.dtype
        if isinstance(into, Held):
            held = self._fitting(into, part, digits)
        else:
            held = self._into(into, f"{part.array.name}_held", dtype, *digits)
            held = replace(held, index=self._turns(part))
        by = by or INSTRUCTIONS[f"ld.{_SPACES[part.array.buffer.level]}"]
        there = self._access(part, place, modes, outside)
        wide = self._vector(part, place, vector)
        self._do(by, held, there, modes, place, vector=wide)
        return held

    def ldmatrix(self, into: Held, part: Piece) -> None:
        """Read matrices of 8 x 8 from shared memory into registers, a warp at a time.

        The pattern says what each lane gets: along the tile's lines it ends in a quad of lanes and
        their own pair, or with a group of 8 lanes, and then the matrices are turned (.trans).
        """
        self._each_thread("ldmatrix")
        place = self._place(part)
        modes = self._modes(place)
        held = self._fitting(into, part, modes)
        if part.array.buffer.level != "smem":
            raise self.error(f"ldmatrix: {part.array.name} is not in shared memory", "ldmatrix")
        how = "" if self.counted(place.last) else "trans"
        there, wide = self._access(part, place, modes), self._vector(part, place, None)
        self._do(INSTRUCTIONS["ldmatrix"], held, there, modes, place, vector=wide, variant=how)

    def stmatrix(self, part: Piece, held: Held) -> None:
        """Store matrices of 8 x 8 to shared memory: ``ldmatrix`` the other way."""
        self._each_thread("stmatrix")
        place = self._place(part)
        modes = self._modes(place)
        how = "" if self.counted(place.last) else "trans"
        there = self._access(part, place, modes)
        wide = self._vector(part, place, None)
        self._do(INSTRUCTIONS["stmatrix"], there, held, modes, place, vector=wide, variant=how)

    def _fitting(self, held: Held, part: Piece, modes: tuple[str, ...]) -> Held:
        """Return registers that a part is loaded into.  Raises ProgramError if it has no place."""
        array = part.array
        if {*held.digits} != {*self._joined(modes)} or held.buffer.dtype != array.dtype:
            text = f"{held.name} has {held.buffer.dtype} by {' '.join(held.digits) or 'no digit'}"
            here = f"{array.dtype} by {' '.join(modes) or 'no digit'}"
            raise self.error(f"{text}, {array.name} is read as {here}", held.name)
        return held

    def cp_async(self, to: Piece, part: Piece, *, vector: Number | None = None) -> None:
        """Copy from global to shared memory by cp.async; ``k.commit()`` ends a group of such."""
        self._each_thread("cp_async")
        place, there = self._place(part), self._place(to)
        modes = self._modes(place)
        source, target = self._access(part, place, modes), self._access(to, there, modes)
        wide = self._vector(part, place, vector)
        self._do(INSTRUCTIONS["cp.async"], target, source, modes, place, vector=wide)

    def store(
        self, part: Piece | Array, held: Held, *, vector: Number | None = None, add: bool = False,
        by: Instruction | None = None,
    ) -> None:  # fmt: skip
        """Store registers, rounded to the array's type, or ``add`` them to a cleared array.

        ``by``: another instruction of a thread that stores or adds.
        """
        part = _piece(part)
        if held.buffer.fragment == "row":
            self._store_lanes(part, held, vector)
            return
        self._each_thread("a store")
        place = self._place(part)
        modes = self._modes(place)
        if extra := sorted(set(held.digits) - set(self._joined(modes))):
            text = f"{held.name} has a value for each {extra[0]}, and {part.array.name} one for all"
            raise self.error(text, extra[0])
        held = self.cast(held, part.array.dtype)
        name = "red.global" if add else f"st.{_SPACES[part.array.buffer.level]}"
        by = by or INSTRUCTIONS[name]
        self._zeroed = self._zeroed or by.atomic
        wide = self._vector(part, place, vector)
        there = self._access(part, place, modes)
        self._do(by, there, held, modes, place, vector=wide, lanes=self._only)

    def leave_outside(self, part: Piece) -> None:
        """Let threads leave whose elements are outside; the others' accesses need no guard."""
        self._each_thread("an exit")
        if self._open_loops:
            raise self.error("leave_outside: stands in a loop; write it before", "leave_outside")
        place = self._place(part)
        modes = self._modes(place)
        access = replace(self._access(part, place, modes), guard=(True,) * len(part.array.axes))
        threads = place.threads
        self._body.append(term.Exit(access, self._extents(modes), threads))
        self._left = part.array.name
        self._places.clear()
        for axis in part.array.axes:  # a thread with several elements may have one outside
            digits = self._expanded(part.equations, axis)
            if all(self._digits[d].by in ("the grid", "threads") for d in digits):
                self._inside[axis] = digits

    def tma(
        self, tile: Piece | Array, part: Piece, *, signal: BarrierUse, share: str = "",
        trim: bool = True,
    ) -> None:  # fmt: skip
        """Copy a tile from global memory by TMA; its bytes land at the barrier ``signal``.

        With ``share`` = "tm by rank_n" each of the CTAs that rank_n counts loads a part of tm, and
        sends it to all of them.  Of a tile's lines those beyond the array's end are left out
        (``trim``), if no sum goes over them; else zeros are loaded.
        """
        tile = _piece(tile)
        array, place = tile.array, self._place(part)
        self._elects("tma", array, part, array.slab)
        lines, wide = array.axes
        slab, extents, rank = (
            array.slab,
            dict(zip(array.axes, self._extents(array.axes), strict=True)),
            "",
        )
        here, shared = Affine(), ""
        if share:
            match = _SHARE.fullmatch(share)
            row = lines if part.array.axes[-2] in self._written else wide
            if not match or match[1] not in (lines, row) or match[2] not in self._digits:
                raise self.error(f'tma: share {share!r} is not as "{row} by rank"', "share")
            shared, rank = match.groups()
            self._in_cluster("tma", rank)
            extents[shared] = extents[shared] // self._extent(rank)
            here = var(rank, extents[shared])
        trimmed = trim and part.array.axes[-2] in self._written
        before = (0,) * (len(part.array.axes) - 2)  # a batch's
        access = replace(self._access(part, place, ()), thread=())
        moved = [*access.origin[:-2], *(
            o + here if digit == shared else o
            for o, digit in zip(access.origin[-2:], array.axes, strict=True)
        )]  # fmt: skip
        steps = tuple((*before, *each) for each in ((0, 1), (1, 0), (0, slab)))
        there = replace(
            access, value=steps, origin=tuple(moved), guard=(True,) * len(moved), trimmed=trimmed
        )
        to = (here, Affine(), Affine())
        if shared == wide:
            to = (Affine(), Affine(), var(rank, extents[wide] // slab))
        within, index = ((0, 1, 0), (1, 0, 0), (0, 0, 1)), self._whole(tile)
        inside = Access(array.buffer, within, origin=to, index=index)
        values = (slab, extents[lines], extents[wide] // slab)
        copy = INSTRUCTIONS["cp.async.bulk.tensor"]
        landing = (signal.barrier, signal.index)
        self._body.append(term.Do(copy, inside, (there,), values, signal=landing, multicast=rank))

    def tma_store(
        self,
        part: Piece,
        tile: Piece | Array,
        *,
        by: Instruction = INSTRUCTIONS["cp.async.bulk.tensor.global"],
    ) -> None:
        """Copy a tile to global memory by TMA; ``k.commit("bulk")`` ends a group of such.

        ``by``: another instruction that takes a tile from shared memory, such as one that adds.
        """
        tile = _piece(tile)
        array, place = tile.array, self._place(part)
        self._elects("tma_store", array, part, not array.slab and len(array.axes) in (2, 3))
        row, column, *slabs = array.axes
        if any(digit not in place.steps for digit in slabs):
            text = f"tma_store: {array.name} has {slabs[0]}, and the pattern of {part.array.name}"
            raise self.error(f"{text} has not", part.array.name)
        modes, guard = (column, row, *slabs), (True,) * len(part.array.axes)
        there = replace(self._access(part, place, modes), thread=(), guard=guard)
        within = ((0, 1, 0), (1, 0, 0), (0, 0, 1)) if slabs else ((0, 1), (1, 0))
        read = Access(array.buffer, within, index=self._whole(tile))
        self._zeroed = self._zeroed or by.atomic
        self._body.append(term.Do(by, there, (read,), self._extents(modes)))

    def _elects(self, what: str, array: Array, part: Piece, swizzled: object) -> None:
        """Raise ProgramError unless one thread copies a tile of an array."""
        self._issues(what)
        if not swizzled or len(part.array.axes) < 2:
            raise self.error(
                f"{what}: {array.name} is no tile with the swizzle it needs", array.name
            )
        for axis, digit in zip(part.array.axes[-2:], array.axes[:2], strict=True):
            *others, last = self._expanded(part.equations, axis)
            if last != digit or any(self.counted(d) and d not in array.axes[2:] for d in others):
                text = f"{what}: {part.array.name}'s axis {axis} has to end in {digit}, as the tile"
                raise self.error(f"{text} {array.name} has it", part.array.name)

    # arithmetic

    def compute(
        self, expression: Expression, reads: Mapping[str, Held], dtype: str = "f32", *,
        name: str = "result", into: str = "",
    ) -> Held:  # fmt: skip
        """Compute an expression of registers, scalars and sizes, for each digit that it reads.

        It is computed in f32, and then rounded to ``dtype``.
        """
        used = self._used(expression, reads)
        if lanes := [h.name for h in used.values() if h.buffer.fragment]:
            raise self.error(f"compute: {lanes[0]} lies by lanes; cast and store it", "compute")
        digits = self._ordered({d for h in used.values() for d in h.digits})
        result = self._into(into, name, dtype, *digits)
        if all(h.index for h in used.values()):  # of a ring, and so one of it
            result = replace(result, index=next((h.index for h in used.values()), None))
        self._compute(expression, used, result, digits)
        return result

    def apply(
        self, instruction: Instruction, *reads: Held, dtype: str = "f32", name: str = "result"
    ) -> Held:
        """Apply an instruction of a thread to registers, for each digit that they have."""
        self._each_thread(instruction.name)
        digits = self._ordered({d for held in reads for d in held.digits})
        result, modes = self.registers(name, dtype, *digits), digits[::-1]
        sources = tuple(self._own(held, modes) for held in reads)
        write, values = self._own(result, modes), self._extents(modes)
        self._body.append(term.Do(instruction, write, sources, values))
        return result

    def set(
        self, into: Held, expression: Expression, reads: Mapping[str, Held] | None = None
    ) -> None:
        """Set registers to an expression of registers, scalars and sizes, at each of their digits.

        An expression that also reads ``into`` collects over the digits that ``into`` has not, in
        their order.  Raises ProgramError for another one of such digits, whose last value would be
        kept.
        """
        used = self._used(expression, reads or {})
        digits = {*into.digits, *(d for held in used.values() for d in held.digits)}
        more = sorted(digits - {*into.digits})
        if more and all(held.buffer is not into.buffer for held in used.values()):
            text = f"set: {into.name} has no {', '.join(more)}, which the expression reads"
            raise self.error(f"{text}; reduce it over {', '.join(more)}", into.name)
        self._compute(expression, used, into, self._ordered(digits))

    def reduce(
        self, operator: str, into: Held, of: Held | Expression,
        reads: Mapping[str, Held] | None = None,
    ) -> None:  # fmt: skip
        """Set ``into`` to operator(into, of), over all digits that it has not."""
        if operator not in REDUCERS:
            raise self.error(f"reduction {operator}; {nearest(operator, REDUCERS)}", operator)
        known = dict(reads or {})
        if isinstance(of, Held):
            known = {".more": of}
        expression: Expression = value(".more") if isinstance(of, Held) else of
        self.set(into, apply(operator, value(".into"), expression), {".into": into, **known})

    def add(
        self, into: Held, of: Held | Expression, reads: Mapping[str, Held] | None = None
    ) -> None:
        """Add to ``into``, over all digits that it has not."""
        self.reduce("add", into, of, reads)

    def butterfly(self, operator: str, held: Held, *, over: str) -> None:
        """Reduce over a digit of threads of one warp, by shuffles; all of them get the result."""
        apart, lanes = self._thread(over)
        if not isinstance(lanes, int) or not isinstance(apart, int) or lanes * apart > _WARP:
            raise self.error(f"butterfly: {over} counts threads of more than one warp", over)
        far = self._into("far", "", held.buffer.dtype, *held.digits)
        modes = held.digits[::-1]
        mask = lanes // 2
        while mask:
            self._do(INSTRUCTIONS["shfl.sync"], far, held, modes, None, across=mask * apart)
            self.reduce(operator, held, far)
            mask //= 2

    def zeros(self, name: str, dtype: str, *digits: str) -> Held:
        """Declare registers and clear them."""
        held = self.registers(name, dtype, *digits)
        self.fill(held, 0.0)
        return held

    def fill(self, held: Held, number: float, *, where: Below | None = None) -> None:
        """Set every value, or those of which a condition on coordinates holds: a mask."""
        self.set(held, Constant(number))
        if where is not None:
            last = self._body[-1]
            assert isinstance(last, term.Do)
            threads = self._thread_extents(self._counting(()))
            asked = self._predicate(where, held.digits[::-1])
            self._body[-1] = replace(last, threads=threads, where=asked)

    def at(self, pattern: str, *numbers: LoopIndex) -> Coordinate:
        """Return the coordinate along an axis of the operation: ``k.at("n = (kt block col)")``.

        With a number, as ``step.last - step``, at that one of the digit that it is a number of.
        """
        axes = tuple([axis for axis, _ in _equations(pattern) if axis in self.op.axes])
        if len(axes) != 1:
            text = f"at: {pattern!r} has {len(axes)} axes of the operation; one is a coordinate"
            raise self.error(text, "at")
        buffer = Buffer(f"coordinate of {axes[0]}", "gmem", "f32", axes, (1,))
        part = Piece(Array(self, buffer, axes), self.equations(pattern, axes), numbers=numbers)
        return Coordinate(self, ((part, 1),), _ZERO)

    def size(self, axis: str) -> Coordinate:
        """Return the size of an axis, which coordinates are compared with."""
        if axis not in self.op.axes:
            raise self.error(f"axis {axis}: there is none; {nearest(axis, self.op.axes)}", axis)
        return Coordinate(self, (), var(axis))

    def _predicate(self, where: Below, modes: tuple[str, ...]) -> Predicate:
        """Return a condition on the values of ``modes``, by all threads."""
        counting = self._counting(())
        origin, rest = _ZERO, where.number.rest
        value: list[Number] = [0] * len(modes)
        thread: list[Number] = [0] * len(counting)
        for part, often in where.number.parts:
            place = self._place(part)
            strange = [d for d in place.steps if self.counted(d) and d not in modes]
            if strange:
                text = f"where: the condition moves with {strange[0]}, and the registers have not"
                raise self.error(f"{text} that digit", strange[0])
            access = self._access(part, place, modes)
            if place.threads != self._thread_extents(counting):
                raise self.error("where: its threads count otherwise than the first k.threads", "")
            value = [old + often * step for old, (step,) in zip(value, access.value, strict=True)]
            thread = [
                old + often * step for old, (step,) in zip(thread, access.thread, strict=True)
            ]
            origin = origin + often * access.origin[0]
        origin, bound = origin + rest.constant, -1 * Affine(0, rest.terms)
        return Predicate(origin, tuple(value), tuple(thread), bound)

    def cast(self, held: Held, dtype: str, *, into: str | Held = "") -> Held:
        """Round to a type; what has the type already is returned as it is.

        ``into``: registers of that type by the same digits, or the name of some.
        """
        if held.buffer.dtype == dtype:
            return held
        if isinstance(into, Held):
            if {*into.digits} != {*held.digits} or into.buffer.dtype != dtype:
                text = f"{into.name} has {into.buffer.dtype} by {' '.join(into.digits)}"
                here = f"{dtype} by {' '.join(held.digits)}"
                raise self.error(f"{text}, {held.name} is rounded to {here}", into.name)
            rounded = into
        elif held.buffer.fragment:
            rounded = self._rows(into or "rounded", dtype, *held.digits)
        else:
            rounded = self._into(into, f"{held.name}_rounded", dtype, *held.digits)
            rounded = replace(rounded, index=held.index)
        read, values = self._in_full(held)
        write, _ = self._in_full(rounded)
        self._body.append(term.Do(INSTRUCTIONS["cvt"], write, (read,), values))
        return rounded

    def mma(self, sums: Held, x: Held, y: Held) -> None:
        """Add a warp's products of slices by mma.sync, by the names of the registers' digits.

        ``sums`` has blocks of rows, blocks of columns, a half (of 16 rows) and a pair of columns; x
        blocks of rows, half, half of k, word (what of k is in one register); y blocks of columns,
        half of k, word.
        """
        self._each_thread("mma")
        rows, along = (tuple(d for d in x.digits if (d in y.digits) == both) for both in (0, 1))
        columns = tuple(d for d in y.digits if d not in x.digits)
        pair = tuple(d for d in sums.digits if d not in (*rows, *columns))
        counts = tuple(map(len, (rows, columns, along, pair)))
        if set(sums.digits) != {*rows, *columns, *pair} or counts != (2, 1, 2, 1):
            got = " * ".join(" ".join(held.digits) for held in (x, y))
            text = f"mma: {' '.join(sums.digits)} += {got}; it computes"
            text += " far near half pair += far half deep word * near deep word"
            raise self.error(text, "mma")
        modes = (*pair, rows[1], along[0], *columns, rows[0])
        # what fills a register alone serves both of a pair of sums
        first = along[1] if DTYPES[x.buffer.dtype].bytes < _REGISTER_BYTES else ""
        left, right = (self._own(held, (first, *modes[1:])) for held in (x, y))
        total, multiply = self._own(sums, modes), INSTRUCTIONS["mma.sync"]
        reads, values = (left, right, total), self._extents(modes)
        self._body.append(term.Do(multiply, total, reads, values, variant="fma"))

    def wgmma(
        self, sums: Held, x: Held | Piece | Array, y: Piece | Array, *, fresh: LoopIndex | bool
    ) -> None:
        """Add the product of two tiles, by the digits of the sums; where ``fresh`` is 0, set it.

        Patterns say how digits count: x["tm = (.. warp half octet)"] the rows, y["tn = (.. group
        quad pair)"] the columns.  x may lie in registers, 16-bit values by rows and two digits of
        k; y's pattern then says how those count k, with the quad of threads: "tk = (group quad
        pair)".  ``fresh`` True sets the sums, False adds to them.
        """
        self._warpgroup("wgmma")
        self._each_thread("wgmma")
        x, y = x if isinstance(x, Held) else _piece(x), _piece(y)
        slab, threads = y.array.slab, self._countings[0]
        if not slab or (isinstance(x, Piece) and x.array.slab != slab):
            raise self.error("wgmma: both tiles need swizzle=128", "wgmma")
        if isinstance(fresh, LoopIndex):
            self.in_scope(fresh)
        row_axis, depth, column_axis = self._factors(x, y)
        columns, along = (self._along(axis, y.equations)[0] for axis in (column_axis, depth))
        if isinstance(x, Piece):
            rows = self._along(row_axis, x.equations)[0]
        else:
            rows = dict.fromkeys((d for d in x.digits[::-1] if d not in along), 0)
        half, far, pair, groups = self._of_sums(sums, rows, columns)
        step, many = _SLICE_BYTES * slab // _SLAB_BYTES, self._extent(depth)
        slices, slabs = slab // step, many // slab
        still, more = (0, 0, 0), len(groups) * 2
        if isinstance(x, Piece):
            counts, of_k = [step], [_across(y.array, depth, 1)]
            left = Access(
                x.array.buffer,
                (_across(x.array, depth, 1), still, _across(x.array, row_axis, rows[half]),
                 *(still,) * more),
                tuple(_across(x.array, row_axis, rows.get(d, 0)) for d in threads),
                self._origin(x.array, {row_axis: {**self._moving(rows), "block": rows.get(far, 0)},
                                       depth: {"slab": slab, "slice": step}}),
                self._stage(x),
            )  # fmt: skip
        else:
            word, deep, quad = self._of_depth(x, along, (half, far))
            counts = [self._extent(word), self._extent(quad), _PAIR]
            of_k = [_across(y.array, depth, along[d]) for d in (word, quad, deep)]
            if y.array.axes[-1] != depth:  # a line for each of k, as many as there are
                slices, slabs = -(-many // step), 1
            own = self._own(x, (word, "", deep, "", half, *("",) * more), len(threads))
            at = var("slab", slab * _PAIR // step) + var("slice", _PAIR)
            left = replace(own, origin=self._part_of(x, {far: var("block"), deep: at}))
        each = (self._in_slabs(y.array, column_axis, columns[d], d) for d in groups)
        modes = [mode for both in each for mode in both]
        right = Access(
            y.array.buffer,
            (*of_k, _across(y.array, column_axis, columns[pair]), still, *(s for _, s, _ in modes)),
            tuple(_across(y.array, column_axis, columns.get(d, 0)) for d in threads),
            self._origin(y.array, {column_axis: self._moving(columns),
                                   depth: {"slab": slab, "slice": step}}),
            self._stage(y),
        )  # fmt: skip
        own = self._own(sums, (*("",) * len(counts), pair, half, *groups), len(threads))
        first, steps = len(counts) + _PAIR, (times for *_, times in modes)
        twice = (step for step in own.value[first:] for _ in range(2))
        values = (tuple(n * s for s in step) for n, step in zip(steps, twice, strict=True))
        total = replace(
            own, value=(*own.value[:first], *values),
            origin=self._part_of(sums, {far: var("block")}),
        )  # fmt: skip
        anew = None
        if fresh is not False:
            anew = (fresh.affine if isinstance(fresh, LoopIndex) else Affine()) + var("slab")
            anew = anew + var("slice")
        extents = (*counts, *self._extents((pair, half)), *(n for n, *_ in modes))
        body: Statement = term.Do(
            INSTRUCTIONS["wgmma"], total, (left, right, total), extents, self._extents(threads),
            variant="fma", fresh=anew,
        )  # fmt: skip
        blocks = self._extent(far) if far else 1
        for name, count in (("block", blocks), ("slice", slices), ("slab", slabs)):
            body = term.For(name, count, (body,), unrolled=True)
        self._body += [term.Fence("wgmma"), body, term.Commit("wgmma")]

    def _factors(self, x: Held | Piece, y: Piece) -> tuple[str, str, str]:
        """Return the axes of a product: its rows (none in registers), its sum's, its columns."""
        if isinstance(x, Piece):
            rows, depth = self._by_k(x, y)
            columns, other = self._by_k(y, x)
            if depth == other and not {depth} & {*x.equations, *y.equations}:
                return rows, depth, columns
            got = f"{' '.join(x.array.axes)} * {' '.join(y.array.axes)}"
            raise self.error(f"wgmma: {got}; it multiplies tm tk * tn tk, all of tk", "wgmma")
        own = {*x.digits}
        for depth, columns in (y.array.axes, y.array.axes[::-1]):
            if own & {*self._along(depth, y.equations)[0]}:
                return "", depth, columns
        text = f"wgmma: no digit of {x.name} counts {' or '.join(y.array.axes)} of {y.array.name}"
        raise self.error(f"{text}; say how in a pattern of that", "wgmma")

    def _of_sums(
        self, sums: Held, rows: Mapping[str, Number], columns: Mapping[str, Number]
    ) -> tuple[str, str, str, list[str]]:
        """Return the digits of sums: half, far (or none), pair, groups, fastest first."""
        down, across = (list(filter(self.counted, digits)) for digits in (rows, columns))
        half, far = (*down, "", "")[:2]
        pair, *groups = (*across, *[""] * (not across))
        if {*sums.digits} != {*down, *across} or not half or not groups or len(down) > 2:
            got = f"{' '.join(sums.digits)} += ({' '.join(rows)}) * ({' '.join(columns)})"
            text = f"wgmma: {got}; rows are (far half) of the sums' digits, columns (group pair)"
            raise self.error(f"{text}, fastest last: write patterns as tm = (far warp half octet)",
                             "wgmma")  # fmt: skip
        return half, far, pair, groups

    def _of_depth(
        self, x: Held, along: Mapping[str, Number], rows: tuple[str, ...]
    ) -> tuple[str, str, str]:
        """Return the digits that count k in registers: word, deep, and the quad of threads."""
        digits = list(filter(self.counted, along))
        quads = [d for d in along if self._digits[d].by == "threads"]
        if len(digits) != 2 or len(quads) != 1 or {*x.digits} != {*digits, *filter(None, rows)}:
            text = f"wgmma: {x.name} has {' '.join(x.digits)}, and ({' '.join(along)}) counts k"
            raise self.error(f"{text}; they have to be a digit, a quad and a pair", "wgmma")
        return digits[0], digits[1], quads[0]

    def _moving(self, steps: Mapping[str, Number]) -> dict[str, Number]:
        """Return the steps of digits that neither threads nor an instruction count."""
        return {d: s for d, s in steps.items()
                if not self.counted(d) and self._digits[d].by != "threads"}  # fmt: skip

    def _origin(self, array: Array, axes: Mapping[str, Mapping[str, Number]]) -> tuple[Affine, ...]:
        """Return where a slabbed tile's part begins, by the steps of variables along its axes."""
        found = [Affine()] * 3
        for axis, steps in axes.items():
            for name, step in steps.items():
                for d, one in enumerate(_across(array, axis, step)):
                    if not isinstance(one, int) or one:
                        found[d] = found[d] + var(name, one)
        return tuple(found)

    def _part_of(self, held: Held, known: Mapping[str, Affine]) -> tuple[Affine, ...]:
        """Return where a part of registers begins: at ``known``, and where ``k.each`` is."""
        gone = self.gone_through
        return tuple(known.get(d) or (var(d) if d in gone else Affine()) for d in held.dimensions)

    def _in_slabs(
        self, array: Array, axis: str, step: Number, digit: str
    ) -> list[tuple[Number, tuple[Number, ...], Number]]:
        """Return a digit as two modes, in a slab and beyond: extent, way, steps of the digit."""
        extent, near = self._extent(digit), self._extent(digit)
        if array.axes[-1] == axis:
            room = select(step < array.slab, array.slab // step, 1)
            near = select(extent < room, extent, room)
        if isinstance(near, int) and near < 1:
            raise self.error(f"digit {digit}: has no elements; it needs one at least", digit)
        ways = (_across(array, axis, step), _across(array, axis, step * near))
        beyond = extent // select(np.less(near, 1), 1, near)  # 0: of a point that is not legal
        return [(near, ways[0], 1), (beyond, ways[1], near)]

    def tcgen05_mma(self, sums: Piece, x: Piece, y: Piece, *, fresh: LoopIndex) -> None:
        """Add the product of two tiles, tm tn += tm tk * part tk; where ``fresh`` is 0, set it.

        x lies in shared memory, or in tensor memory as the sums do.  Of a pair each CTA has its
        rows of x and sums, and one of two parts of y's columns; the first multiplies for both.
        """
        self._issues("tcgen05_mma")
        rows, depth = self._by_k(x, y)
        columns, other = self._by_k(y, x)
        total, (lanes, _, pair) = sums.array.axes, self._in_lanes(sums, "tcgen05_mma")
        part, parts = self._extent(columns), 2 if pair else 1
        differ = _differ(part * parts, self._extent(total[1]))
        if (depth, rows) != (other, total[0]) or differ:
            got = f"{' '.join(total)} += {rows} {depth} * {columns} {other} ({parts} CTAs)"
            text = f"tcgen05_mma: {got}; it computes tm tn += tm tk * part tk"
            raise self.error(text, "tcgen05_mma")
        in_tmem, slab = x.array.buffer.level == "tmem", y.array.slab
        if not slab or (x.array.slab != slab and not in_tmem):
            raise self.error("tcgen05_mma: tiles in shared memory need swizzle=128", "tcgen05_mma")
        self.in_scope(fresh)
        step, near = _SLICE_BYTES * slab // _SLAB_BYTES, lanes.near
        within, at, still = var("slice", step), var("slab"), ((0, 0, 0),) * 3
        along = var("slab", slab) + within
        wide, of_y, from_y = self._second(y, columns, Affine())
        of_x: tuple[tuple[Number, ...], ...] = ((0, 1, 0), *still, (1, 0, 0), (near, 0, 0))
        from_x: tuple[Affine, ...] = (Affine(), within, at)
        if in_tmem:
            of_x, from_x = tuple(each[:2] for each in of_x), (Affine(), along)
        elif x.array.axes[-1] == rows:  # a slab has those of all near lanes
            of_x = ((1, 0, 0), *still, (0, 1, 0), (0, near % slab, near // slab))
            from_x = (along, Affine(), Affine())
        folded = lanes.halves == 2
        half = (select(folded, LANES // 2, 0), select(folded, 0, part))
        into = Access(
            sums.array.buffer, ((0, 0), (0, 1), (0, wide), half, (1, 0), (lanes.apart, 0)),
            index=self._whole(sums),
        )  # fmt: skip
        left = Access(x.array.buffer, of_x, origin=from_x, index=self._whole(x))
        right = Access(y.array.buffer, (*of_y, *still), origin=from_y, index=self._whole(y))
        values = (step, wide, part // wide, parts, near, self._extent(rows) // near)
        body: Statement = term.Do(
            INSTRUCTIONS["tcgen05.mma"], into, (left, right, into), values, variant="fma",
            multicast=pair, fresh=fresh.affine + at + var("slice"),
        )  # fmt: skip
        for name, count in (("slice", slab // step), ("slab", self._extent(depth) // slab)):
            body = term.For(name, count, (body,), unrolled=True)
        self._body.append(body)

    def tcgen05_cp(self, to: Piece, tile: Piece) -> None:
        """Copy a swizzled tile that lies along k to tensor memory, for ``tcgen05_mma``."""
        self._issues("tcgen05_cp")
        self._in_lanes(to, "tcgen05_cp")
        slab, (rows, depth) = tile.array.slab, to.array.axes
        if not slab or {*tile.array.axes} != {rows, depth}:
            text = f"tcgen05_cp: {to.array.name} has {rows} {depth}; {tile.array.name} needs them,"
            raise self.error(f"{text} and swizzle=128", "tcgen05_cp")
        step = _SLICE_BYTES * slab // _SLAB_BYTES
        into = ((0, 1), (1, 0), (0, step), (0, slab))
        of = ((0, 1, 0), (1, 0, 0), (0, step, 0), (0, 0, 1))
        write = Access(to.array.buffer, into, index=self._whole(to))
        read = Access(tile.array.buffer, of, index=self._whole(tile))
        values = (step, self._extent(rows), slab // step, self._extent(depth) // slab)
        self._body.append(term.Do(INSTRUCTIONS["tcgen05.cp"], write, (read,), values))

    def tcgen05_ld(self, part: Piece, *, name: str = "taken") -> Held:
        """Load columns of sums in tensor memory: each thread of a warpgroup those of its lane."""
        self._warpgroup("tcgen05_ld")
        _, half, _ = self._in_lanes(part, "tcgen05_ld")
        array, (rows, columns) = part.array, part.array.axes
        first, *others = self._expanded({columns: (columns,), **part.equations}, columns)
        if first != half or not others or any(map(self.counted, others[:-1])):
            text = f"tcgen05_ld: {columns} of {array.name} has to be ({half or 'halves'} .. column)"
            raise self.error(f"{text}, as k.tmem declares it with halves=", array.name)
        *others, column = others
        origin, step = Affine(), self._extent(column)
        for digit in reversed(others):
            origin, step = var(digit, step) + origin, step * self._extent(digit)
        held = self._rows(name, array.dtype, half, rows, column)
        write, values = self._in_full(held)
        read = Access(array.buffer, write.value, (), (Affine(), origin), self._stage(part))
        self._body.append(term.Do(INSTRUCTIONS["tcgen05.ld"], write, (read,), values))
        return held

    def _issues(self, what: str) -> None:
        if not self._elected:
            text = f"{what}: every thread would issue it; write `with k.elect():`"
            raise self.error(text, what)

    def _in_lanes(self, tile: Piece, what: str) -> tuple[RowLanes, str, str]:
        """Return where a tile's rows lie in tensor memory, its digit of halves, and the pair."""
        if tile.array.buffer.level != "tmem":
            name = tile.array.name
            raise self.error(f"{what}: {name} lies not in tensor memory; declare k.tmem", name)
        return self._lanes[tile.array.axes[0]]

    def _second(
        self, y: Piece, columns: str, before: Affine
    ) -> tuple[Number, tuple[tuple[Number, ...], ...], tuple[Affine, ...]]:
        """Return the columns in one slab of a product's second factor, its steps, its origin."""
        slab = y.array.slab
        within = var("slice", _SLICE_BYTES * slab // _SLAB_BYTES)
        if y.array.axes[-1] == columns:
            along = var("slab", slab) + within
            return slab, ((1, 0, 0), (0, 1, 0), (0, 0, 1)), (along, Affine(), before)
        wide = self._extent(columns)
        return wide, ((0, 1, 0), (1, 0, 0), (wide, 0, 0)), (before, within, var("slab"))

    def _by_k(self, one: Piece, other: Piece) -> tuple[str, str]:
        """Return the digit of a factor's rows or columns, and the one that both factors have."""
        own, both = one.array.axes
        return (both, own) if own in other.array.axes else (own, both)

    def cluster_sum(self, sums: Held, *, over: str, slices: str) -> Held:
        """Add up a tile's sums over CTAs of a cluster, and return the slice that is this CTA's.

        Each slice, one value of the digit ``slices``, goes through shared memory of the CTA with
        its number, in the order in which threads hold it: 16 B of a thread, then those of the next,
        so that no two lanes of a warp meet a bank twice.  Pieces of 16 B go to one CTA after the
        other, so that no CTA has to take what all send at once.  Parts are added by rank.
        """
        self._warpgroup("cluster_sum")
        self._in_cluster("cluster_sum", over)
        threads, turn, ctas = self._countings[0], self._turn(), int(self._extent(over))
        if slices not in sums.digits or self._extent(slices) != ctas:
            text = f"cluster_sum: {sums.name} has no slice for each of the {ctas} CTAs of {over}"
            raise self.error(text, slices)
        kept = tuple(d for d in sums.digits if d != slices)
        pair, half, *slow = kept[::-1]
        digits = (pair, half, *threads, *slow)
        shape, strides = self._extents(digits), [math.prod(self._extents(digits[:i]))
                                                 for i in range(len(digits))]  # fmt: skip
        parts = Buffer(self._free("parts"), "smem", "f32", shape, tuple(strides), ctas,
                       math.prod(shape), copies=self._copies, home=over)  # fmt: skip
        self._on_chip.insert(self._first_own, parts)
        part = self.registers("part", "f32", half, pair)
        values = self._extents((pair, half))

        def move(by: str, held: Access, number: Affine, peer: int = 0) -> None:
            value, thread = (tuple(tuple(int(d == e) for e in digits) for d in each)
                             for each in ((pair, half), threads))  # fmt: skip
            origin = tuple(var(d) if d in self.gone_through else Affine() for d in digits)
            there = Access(parts, value, thread, origin, turn * ctas + number, peer=peer)
            ends = (there, held) if by == "st.shared" else (held, there)
            self._body.append(term.Do(INSTRUCTIONS[by], ends[0], (ends[1],), values,
                                      self._extents(threads), vector=_PAIR * _PAIR))  # fmt: skip

        def own(held: Held, known: Mapping[str, Affine] = _NOWHERE) -> Access:
            access = self._own(held, (pair, half), len(threads))
            return replace(access, origin=self._part_of(held, known))

        def piecewise(do: Callable[[], None], left: Sequence[str]) -> None:
            for _ in self.each(left[-1]) if left else (None,):
                piecewise(do, left[:-1]) if left else do()

        def send() -> None:
            for peer in range(ctas):
                move("st.shared", own(sums, {slices: Affine(peer)}), var(over), peer)

        def add() -> None:
            around, self._body = self._body, []
            move("ld.shared", own(part), var("r"))
            self.add(added, part)
            body, self._body = tuple(self._body), around
            self._body.append(term.For("r", ctas, body, unrolled=True))

        piecewise(send, slow)
        self.sync("cluster")
        added = self.zeros("added", "f32", *kept)
        piecewise(add, slow)
        return added

    # order

    def sync(self, scope: Scope = "cta") -> None:
        """Let all threads of the CTA (or the role) wait for each other."""
        if self._elected or self._only:
            text = "sync: some threads would wait for all"
            raise self.error(f"{text}; leave k.elect() or k.only(..) first", "sync")
        self._body.append(term.Sync(1, scope) if scope == "role" else term.Sync(scope=scope))

    def wait(self, use: BarrierUse) -> None:
        """Wait until a use is complete."""
        self._in_role("wait")
        self._body.append(term.Wait(use.barrier, use.index))

    def arrive(
        self, use: BarrierUse, *, expect: Number = 0, to: str = "cta",
        after: Literal["", "tcgen05"] = "",
    ) -> None:  # fmt: skip
        """Arrive at a use; it then is complete when ``expect`` bytes have landed, too.

        ``to`` = "cluster", or digits of it as "rank_m": in each CTA that they count.  ``after`` =
        "tcgen05" (tcgen05.commit): not now, but when the thread's products so far are done.
        """
        self._in_role("arrive")
        if after and not self._elected:
            text = "arrive: the thread that multiplies commits"
            raise self.error(f"{text}; write `with k.elect():`", "arrive")
        self._body.append(term.Arrive(use.barrier, use.index, expect, to, after))

    def fence(self, scope: FenceKind) -> None:
        """Order what the threads did before what another proxy does."""
        self._body.append(term.Fence(scope))

    def commit(self, group: Group = "cp.async") -> None:
        """End a group, for which ``wait_group`` waits."""
        self._body.append(term.Commit(group))

    def wait_group(self, group: Group, pending: Number, *, read: bool = False) -> None:
        """Wait until all but the newest ``pending`` groups are done."""
        self._body.append(term.WaitGroup(pending, group, read))

    # who acts

    @contextmanager
    def role(
        self, name: str, *, warps: Number = 0, warpgroups: Number = 0, registers: Number = 0,
        **copies: Number,
    ) -> Iterator[None]:  # fmt: skip
        """Give warps a body of their own.  Roles of warpgroups come first in the CTA.

        A digit as ``w=2`` makes copies of it.  ``registers`` of a thread (0: as they come).
        """
        if self._countings:
            text = f"role {name}: k.threads has the CTA's threads; write it in the roles"
            raise self.error(text, name)
        count = warps * _WARP + warpgroups * _WARPGROUP
        if np.any(count <= 0) or self._role or self._body or len(copies) > 1:
            text = f"role {name}: needs warps= or warpgroups=, outside of other statements"
            raise self.error(text, name)
        for digit, extent in copies.items():
            self._declare(digit, "copies of a role", extent)
            self._copies = extent
        self._role, self._role_threads, self._tiled = name, count, False
        yield
        body = tuple(self._body)
        match body:
            case _ if self._tiled:
                pass
            case [term.Elect(body=inner)]:
                body = (term.Elect((term.ForTile("tile", "turn", inner),)),)
            case _:
                body = (term.ForTile("tile", "turn", body),)
        role = term.Role(name, count, body, self._copies, "".join(copies), registers)
        self._roles.append((bool(np.all(warpgroups > 0)), role))
        self._role, self._role_threads, self._copies, self._body = "", 0, 1, []
        self._countings.clear()

    @contextmanager
    def elect(self) -> Iterator[None]:
        """Give the body to the first thread of the role alone."""
        self._in_role("elect")
        if self._elected:
            raise self.error("elect: one thread is elected already", "elect")
        around, self._body = self._body, []
        self._elected = True
        yield
        self._elected = False
        around.append(term.Elect(tuple(self._body)))
        self._body = around

    @contextmanager
    def when(self, condition: Condition) -> Iterator[None]:
        """Do the body where the condition holds."""
        if not isinstance(condition, Condition):
            raise self.error(f"when: {condition} is no condition on a loop's variable", "when")
        around, self._body = self._body, []
        yield
        around.append(term.When(condition.index, condition.bound, tuple(self._body)))
        self._body = around

    @contextmanager
    def only(self, **digits: int) -> Iterator[None]:
        """Let only threads with one value of a digit do the body's stores, as lane=0.

        Of a digit of the cluster: let only its CTA 0 do the body, as pair=0.
        """
        if len(digits) != 1:
            raise self.error("only: takes one digit, as lane=0", "only")
        (name, residue), *_ = digits.items()
        if name in self._digits and self._digits[name].by == "the cluster":
            if residue:
                raise self.error(f"only: of a cluster the first CTA alone, {name}=0", name)
            with self.when(Condition(var(name), 1)):
                yield
            return
        self._only = (*self._thread(name), residue)
        yield
        self._only = None

    # patterns

    def equations(
        self, pattern: str, axes: Iterable[str], given: tuple[str, ...] = ()
    ) -> dict[str, tuple[str, ...]]:
        """Read a pattern for an array of some axes.  Raises ProgramError for unknown names.

        Of digits that are ``given`` the loops need not be open.
        """
        key = (pattern, tuple(axes), given)
        known, loops = self._patterns.get(key, _UNREAD)
        if known and loops.issubset(self._open_loops):
            return known
        found: dict[str, tuple[str, ...]] = {}
        for axis, digits in _equations(pattern):
            if not axis:
                raise self.error(f"{digits!r} is no equation as i = (block thread v)", digits)
            if axis not in self.op.axes and not self._is_tile(axis):
                tiles = filter(self._is_tile, self._digits)
                near = nearest(axis, (*self.op.axes, *tiles))
                raise self.error(f"axis {axis}: there is none; {near}", axis)
            if axis in found:
                raise self.error(f"axis {axis}: has two equations in one pattern", axis)
            found[axis] = tuple(digits.split())
        used, inside = list(axes), []
        for axis in used:
            for digit in self._expanded(found, axis) if axis in found else ():
                self._known(digit)
                if self._digits[digit].by == "a loop" and digit not in given:
                    inside.append(digit)
                    if digit not in self._open_loops:
                        raise self.error(f"digit {digit}: its loop has ended; use it inside", digit)
            used += [digit for digit in found.get(axis, ()) if digit in found]
        for axis in used:
            if axis in found and axis not in self._judged and self._is_tile(axis):
                self._counts_all(axis, found[axis])
        self._patterns[key] = found, frozenset(inside)
        return found

    def counted_on(self, held: Held, at: LoopIndex | tuple[LoopIndex, ...]) -> Affine:
        """Return which value of a ring of registers is meant by numbers, slowest first."""
        if not held.ring:
            text = f"{held.name} has no stages; give k.registers its stages"
            raise self.error(text, held.name)
        return self.use_of(held.name, at, own=True)

    def use_of(self, name: str, at: LoopIndex | tuple[LoopIndex, ...], *, own: bool) -> Affine:
        """Return which use of a ring is meant by numbers, slowest first."""
        first, *others = at if isinstance(at, tuple) else (at,)
        self.in_scope(first)
        index = first.use(own=own)
        for number in others:
            self.in_scope(number)
            if isinstance(number.count, str):
                text = f"{name}: {number.digit} is open; only the first number may be so"
                raise self.error(text, name)
            index = _multiple(index, number.count) + number.affine
        return index

    def in_scope(self, index: LoopIndex) -> None:
        """Raise ProgramError if the index is of a loop that has ended."""
        for loop in index.loops:
            if loop not in self._open_loops:
                raise self.error(f"{loop}: its loop has ended; use it inside", loop)

    def _expanded(
        self, equations: Mapping[str, tuple[str, ...]], axis: str, inside: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Return an axis's digits; those that have an equation are replaced by its right side."""
        if axis in inside:
            raise self.error(f"axis {axis}: stands in its own equation", axis)
        found: list[str] = []
        for digit in equations[axis]:
            if digit in equations:
                found += self._expanded(equations, digit, (*inside, axis))
            else:
                found.append(digit)
        return tuple(found)

    def _counts_all(self, axis: str, digits: Iterable[str]) -> None:
        """Raise ProgramError unless the digits count just as far as the tile's dimension."""
        extent, count = self._extent(axis), math.prod(map(self._extent, digits))
        if _differ(extent, count):
            has, counted = number_text(extent), number_text(count)
            text = f"{axis} has {has} elements, the digits count {counted}"
            raise self.error(text, axis)

    def _place(self, part: Piece) -> _Steps:
        """Return the step of each digit in each dimension."""
        array, rank = part.array, len(part.array.axes)
        key = (array.name, id(part.equations) if part.equations else 0)  # patterns are kept
        if key in self._places:
            return self._places[key]
        steps: dict[str, list[Number]] = {}
        exact, last = [], ""
        for dimension, axis in enumerate(array.axes):
            if axis in part.equations:
                digits = self._expanded(part.equations, axis)
            elif array.buffer.level == "gmem":
                raise self.error(f"{array.name} has axis {axis}; the pattern has none", array.name)
            else:
                digits = (axis,)
            along, step, is_open = self._along(axis, part.equations)
            for digit, mine in along.items():
                steps.setdefault(digit, [0] * rank)[dimension] = mine
            if array.buffer.level == "gmem" and not is_open:
                known = self._bounds.get(axis, step)
                self._bounds[axis] = select(known < step, known, step)
            left = array.name == self._left
            exact.append(self._is_exact(axis, digits, is_open, guarded=left))
            last = digits[-1] if digits else ""
        counting = self._counting(steps)
        found = {d: self._in_dimensions(array, d, tuple(s)) for d, s in steps.items()}
        still = (0,) * len(array.buffer.shape)
        strides = self._in_turn(counting, [found.get(d, still) for d in counting])
        guard = tuple(map(_not, exact)) if array.buffer.level == "gmem" else ()
        place = _Steps(found, last, guard, self._thread_extents(counting), strides)
        self._places[key] = place
        return place

    def _in_dimensions(
        self, array: Array, digit: str, steps: tuple[Number, ...]
    ) -> tuple[Number, ...]:
        """Return a digit's steps along an array's axes in the dimensions of its buffer.

        Raises ProgramError for a digit that counts on from one slab of a tile to the next.
        """
        if not array.slab:
            return steps
        down, along = steps
        within = isinstance(along, int) and along % array.slab
        if within and np.any(along * self._extent(digit) > array.slab):
            text = f"digit {digit}: goes on in further slabs of {array.name}"
            raise self.error(f"{text}; count it in two, as k.split does", digit)
        return (down, *_across(array, array.axes[-1], along)[1:])

    def _is_exact(
        self, axis: str, digits: tuple[str, ...], is_open: bool, *, guarded: bool
    ) -> Number:
        """Say whether all that the digits count lies inside of an array."""
        unguarded = not guarded and not self._guarded.get(axis, True)
        if unguarded or self._inside.get(axis) == digits:
            return True
        opened = next((d for d in digits if d in self._covers), "")
        if opened in self._by_tile:
            return False
        if not is_open or self._digits[opened].by != "a loop":
            return is_open and len(digits) == 1
        _, step, among = self._covers[opened]
        exact = (step == 1) & (among == 1)
        return exact if isinstance(exact, bool) or exact.any() else False

    def _along(
        self, axis: str, equations: Mapping[str, tuple[str, ...]]
    ) -> tuple[dict[str, Number | str], Number, bool]:
        """Return the digits' steps along an axis, how far they count, and whether one is open.

        Where CTAs share what a loop covers, the loop's step is a parameter if they lie within it
        (they stride), and theirs is one if it lies within them (each has a part).
        """
        digits = equations.get(axis, (axis,))
        opened = [i for i, d in enumerate(digits) if self._digits[d].extent is None]
        within = digits[opened[-1] + 1 :] if opened else digits
        found: dict[str, Number | str] = {}

        def lay(digits: tuple[str, ...], step: Number) -> Number:
            for digit in reversed(digits):
                if digit in equations and digit != axis:
                    lay(equations[digit], step)
                else:
                    name, share = self._one_of.get(digit, (digit, 1))
                    if not isinstance(share, int) or share:
                        found[name] = found.get(name, 0) + step * share
                step = step * self._extent(digit)
            return step

        step = lay(within, 1)
        if not opened:
            return found, step, False
        parts, digit = digits[: opened[-1]], digits[opened[-1]]
        if len(parts) > (self._digits[digit].by == "a loop") or not all(map(self._fixed, parts)):
            outer = digits[opened[-1]] if parts else digit
            text = f"digit {outer}: covers axis {axis}, so it has to be the slowest there"
            raise self.error(text, outer)
        sharing = [d for d in within if self._fixed(d) and self._digits[digit].by == "a loop"]
        unit = math.prod(self._extents(d for d in within if d not in sharing))
        self._cover(digit, axis, unit, math.prod(self._extents((*parts, *sharing))))
        found[digit] = self._parameter(digit, Constant(step)) if sharing else step
        if parts and digit not in self._counts:
            text = f"digit {parts[0]}: parts of what {digit} covers are equal, and its trips a tile"
            raise self.error(f"{text}'s own; let CTAs not share it", parts[0])
        for part in parts:
            found[part] = self._parameter(part, value(self._counts[digit]) * Constant(unit))
        return found, step, True

    def _fixed(self, digit: str) -> bool:
        """Say whether CTAs count a digit, so far."""
        return (
            self._digits[digit].by in ("the grid", "the cluster")
            and self._digits[digit].extent is not None
        )

    def _parameter(self, digit: str, step: Expression) -> str:
        """Return the parameter that is a digit's step."""
        if digit not in self._steps:
            name = _STEPS[self._digits[digit].by]
            taken = [known for known, _ in self._steps.values()]
            self._steps[digit] = (f"{name}_{digit}" if name in taken else name, step)
        return self._steps[digit][0]

    def _cover(self, digit: str, axis: str, step: Number, among: Number = 1) -> None:
        """Let an open digit go over an axis in steps; it may do so in one way alone."""
        if digit not in self._covers:
            self._covers[digit] = (axis, step, among)
        other, before, shared = self._covers[digit]
        if other != axis or _differ(before, step) or _differ(shared, among):
            one, two = number_text(step), number_text(before)
            text = f"digit {digit}: covers {axis} in steps of {one}, and {other} in steps of {two}"
            raise self.error(f"{text}; give it one way", digit)

    def _access(
        self, part: Piece, place: _Steps, modes: tuple[str, ...], outside: float = 0.0
    ) -> Access:
        """Return the access by threads and by the values of ``modes``."""
        buffer, zero = part.array.buffer, (0,) * len(part.array.buffer.shape)
        key = (id(place), modes, *self.gone_through)
        if key not in self._ways:
            values = tuple([place.steps.get(d, zero) for d in modes])
            moving = [
                (digit, dimension, step)
                for digit, steps in reversed([*place.steps.items()])  # slowest first: laws read so
                if self._digits[digit].by in _MOVING or digit in self.gone_through
                for dimension, step in enumerate(steps)
                if not isinstance(step, int) or step
            ]
            self._ways[key] = place, values, moving
        _, values, moving = self._ways[key]
        ahead = (part.stage,) if part.stage and buffer.level == "gmem" else ()
        numbers = {number.digit: number.affine for number in (*ahead, *part.numbers)}
        for number in part.numbers:
            if number.digit not in place.steps:
                text = f"{buffer.name}: at {number.affine} of {number.digit}, which no axis has"
                raise self.error(text, buffer.name)
        origin = [_ZERO for _ in zero]
        for digit, dimension, step in moving:
            if digit in numbers and not isinstance(step, str):
                more = numbers[digit] * step
            else:
                more = var(digit, step)
            if digit in self._begins:
                more = more + var(self._begins[digit], step)
            origin[dimension] = origin[dimension] + more
        stage = _ZERO if buffer.level == "gmem" else self._stage(part)
        return Access(buffer, values, place.strides, tuple(origin), stage, place.guard, outside)

    def _turns(self, part: Piece) -> Affine | None:
        """Return which value is loaded of a ring's tile: the loops inside its own count on."""
        if part.stage is None:
            return None
        index = part.stage.affine
        begun = [i for i, loop in enumerate(self._open_loops) if loop in part.stage.loops]
        for loop in self._open_loops[begun[-1] + 1 :] if begun else ():
            index = index * self._extent(loop) + var(loop)
        return index

    def _store_lanes(self, part: Piece, held: Held, vector: Number | None) -> None:
        """Store what a warpgroup took from tensor memory: each thread columns of its lane."""
        self._warpgroup("the store of lanes")
        place, digits = self._place(part), held.digits
        if {d for d in place.steps if self.counted(d)} != {*digits}:
            text = f"{part.array.name}: its pattern has to have {', '.join(digits)}, as"
            raise self.error(f"{text} {held.name}, and no other values", part.array.name)
        read, values = self._in_full(self.cast(held, part.array.dtype))
        half, rows, column = (place.steps[d] for d in digits)
        lanes, wide = self._lanes[digits[1]][0], replace(place, last=digits[-1])
        further = tuple(
            select(lanes.halves == 2, h, r * lanes.near) for h, r in zip(half, rows, strict=True)
        )
        there = Access(part.array.buffer, (column, rows, further), index=self._stage(part))
        if part.array.buffer.level == "gmem":
            guard = (True,) * len(part.array.axes)
            there = replace(self._access(part, place, ()), value=there.value, guard=guard)
        store = INSTRUCTIONS[f"st.{_SPACES[part.array.buffer.level]}"]
        vector = self._vector(part, wide, vector)
        self._body.append(term.Do(store, there, (read,), values, vector=vector))

    def _turn(self) -> Affine:
        """Return the index of what a copy has once a tile: its turn."""
        return var(self._tiles[True]) if self._tiles else Affine()

    def _part(self) -> Affine:
        """Return the index of what a copy has once a part of a tile."""
        if not self._tiles:
            return Affine()
        last = LoopIndex(Affine(), (), 1, self._tiles, self._written_out())
        return last.use(own=True)

    def _stage(self, part: Piece) -> Affine:
        """Return which use of a ring of tiles is meant."""
        if part.stage:
            return part.stage.use(own=part.array.own)
        name = part.array.name
        if part.array.ring:
            raise self.error(f"{name} is a ring of stages; say which, as {name}[step]", name)
        return Affine()

    def _whole(self, tile: Piece) -> Affine:
        """Return the use of a tile that is taken as a whole."""
        if tile.equations:
            name = tile.array.name
            raise self.error(f"{name}: TMA and wgmma take whole tiles; drop the pattern", name)
        return self._stage(tile)

    def _is_tile(self, name: str) -> bool:
        return name in self._digits and self._digits[name].by == "a tile"

    def counted(self, digit: str) -> bool:
        """Say whether each thread, or an instruction, counts it."""
        return self._digits[digit].by in ("values", "a tile") and digit not in self.gone_through

    def _modes(self, place: _Steps) -> tuple[str, ...]:
        """Return the digits that each thread counts, fastest first; the vector's before them."""
        key = (id(place), *self.gone_through)
        if key not in self._modes_of:
            modes = self._ordered(filter(self.counted, place.steps))[::-1]
            first = tuple(d for d in modes if d == place.last)
            self._modes_of[key] = place, (*first, *(d for d in modes if d != place.last))
        return self._modes_of[key][1]

    def _vector(self, part: Piece, place: _Steps, vector: Number | None) -> Number:
        if vector is not None:
            return vector
        if not self.counted(place.last):
            return 1
        most = _VECTOR_BYTES // DTYPES[part.array.dtype].bytes
        extent = self._extent(place.last)
        return select(extent > most, most, extent)

    # digits

    def _declare(self, name: str, by: Counter, extent: Number | None) -> None:
        if name in self.op.axes or not name.isidentifier():
            raise self.error(f"digit {name}: is an axis, or no name; give it another", name)
        known = self._digits.get(name)
        if known and (known.by, by) != ("a tile", "a tile"):
            raise self.error(f"digit {name}: {known.by} counts it already", name)
        if known and known.extent is not extent and np.all(known.extent != extent):
            one, other = number_text(known.extent), number_text(extent)
            text = f"digit {name}: has {one} elements in another tile, here {other}"
            raise self.error(text, name)
        self._order.setdefault(name, len(self._order))
        self._digits[name] = known or Digit(name, by, extent)

    def _known(self, name: str) -> None:
        if name not in self._digits:
            raise self.error(f"digit {name}: nobody counts it; {nearest(name, self._digits)}", name)

    def _ordered(self, digits: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(digits), key=self._order.__getitem__))

    def _extent(self, digit: str) -> Number:
        extent = self._digits[digit].extent
        if extent is None:
            raise self.error(f"digit {digit}: has no extent; give it one, or use k.unrolled", digit)
        return extent

    def _extents(self, digits: Iterable[str]) -> tuple[Number, ...]:
        return tuple([self._extent(digit) for digit in digits])

    def _counting(self, digits: Collection[str]) -> tuple[str, ...]:
        """Return the digits of threads that a pattern goes by, fastest first."""
        for counting in self._countings:
            if any(d in digits for d in counting):
                return counting
        return self._countings[0] if self._countings else ()

    def _in_turn(self, counting: tuple[str, ...], each: Iterable[Any]) -> tuple[Any, ...]:
        """Return what each digit of threads has, in the order in which they count."""
        found = tuple(each)
        if counting not in self._turned:
            return found
        turned, (fast, slow, *others) = self._turned[counting], found
        if isinstance(fast, tuple):
            pairs = [(select(turned, s, f), select(turned, f, s))
                     for f, s in zip(fast, slow, strict=True)]  # fmt: skip
            first, second = (tuple(each) for each in zip(*pairs, strict=True))
            return (first, second, *others)
        return (select(turned, slow, fast), select(turned, fast, slow), *others)

    def _thread_extents(self, counting: tuple[str, ...]) -> tuple[Number, ...]:
        return self._in_turn(counting, self._extents(counting))

    def _thread(self, digit: str) -> tuple[Number, Number]:
        """Return how many threads lie between two values of a digit of threads, and its extent."""
        self._known(digit)
        counting = next((c for c in self._countings if digit in c), None)
        if counting is None:
            by = self._digits[digit].by
            raise self.error(f"digit {digit}: {by} counts it, not threads", digit)
        faster = counting[: counting.index(digit)]
        return math.prod(self._extents(faster)), self._extent(digit)

    # statements

    def _do(
        self, by: Instruction, write: Access | Held, read: Access | Held, modes: tuple[str, ...],
        place: _Steps | None, **more: Any,
    ) -> None:  # fmt: skip
        """Append a statement of all threads; ``place`` says how they count."""
        threads = place.threads if place else self._thread_extents(self._counting(()))
        to, of = (
            self._own(one, modes, len(threads)) if isinstance(one, Held) else one
            for one in (write, read)
        )
        values = self._extents(modes)
        self._body.append(term.Do(by, to, (of,), values, threads, **more))

    def _own(self, held: Held, modes: tuple[str, ...], threads: int = 0) -> Access:
        """Return the access to registers at each digit of the modes."""
        rank = len(held.buffer.shape)
        if held.ring and held.index is None:
            text = f"{held.name} is a ring; say which value, as {held.name}[step]"
            raise self.error(text, held.name)
        key = (held.dimensions, modes, *self.gone_through)
        if key not in self._owned:
            known: dict[str, tuple[Number, ...]] = {}
            for place, digit in enumerate(held.dimensions):
                before, after = (0,) * place, (0,) * (rank - place - 1)
                known[digit] = (*before, 1, *after)
                if digit in self._split:
                    slow, near = self._split[digit]
                    known[near] = known[digit]
                    known[slow] = (*before, self._extent(near), *after)
            self._owned[key] = tuple([known.get(mode, (0,) * rank) for mode in modes])
        steps, origin = self._owned[key], self._part_of(held, {}) if self.gone_through else ()
        index = self._turn() if held.index is None else held.index
        return Access(held.buffer, steps, ((0,) * rank,) * threads, origin, index)

    def _in_full(self, held: Held) -> tuple[Access, tuple[Number, ...]]:
        """Return the access to all of it, fastest first, and how far each of its modes goes."""
        if not held.buffer.fragment:
            modes = held.digits[::-1]
            return self._own(held, modes), self._extents(modes)
        _, rows, column = held.digits
        lanes = self._lanes[rows][0]
        steps = ((0, 1), (1, 0), (lanes.apart, 0))
        further = self._extent(rows) // lanes.near * lanes.halves
        access = Access(held.buffer, steps, index=held.index or Affine())
        return access, (self._extent(column), lanes.near, further)

    def _joined(self, modes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the digits of values that modes count: those that are counted in two, whole."""
        for whole, parts in self._split.items():
            if set(parts) <= set(modes):
                modes = (*(m for m in modes if m not in parts), whole)
        return modes

    def _used(self, expression: Expression, reads: Mapping[str, Held]) -> dict[str, Held]:
        """Return the registers that an expression reads.  Raises ProgramError for others."""
        known = (*reads, *self.op.scalars, *self.op.axes)
        for name in expression.names():
            if name not in known:
                raise self.error(f"{expression} reads {name}; {nearest(name, known)}", name)
        return {name: reads[name] for name in dict.fromkeys(expression.names()) if name in reads}

    def _compute(
        self, expression: Expression, reads: Mapping[str, Held], write: Held, digits: Iterable[str]
    ) -> None:
        self._each_thread("arithmetic")
        modes = tuple(digits)[::-1]
        sources: dict[str, Operand] = {
            name: term.Scalar(name, size=name in self.op.axes)
            for name in (*self.op.axes, *self.op.scalars)
        }
        sources |= {name: self._own(held, modes) for name, held in reads.items()}
        to, values = self._own(write, modes), self._extents(modes)
        dtype = "f64" if write.buffer.dtype == "f64" else "f32"
        name = self._free("t") + "_"
        self._body += compute(expression, sources, to, values=values, dtype=dtype, name=name)

    def _free(self, name: str) -> str:
        """Return the name, or one made of it that nothing has yet."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else self._free(f"{name}{count}")

    def _each_thread(self, what: str) -> None:
        if self._only and what != "a store":
            raise self.error(f"{what}: k.only is for stores; move it out", "")
        if not self._countings:
            whose = "role" if self._role else "CTA"
            text = f"{what}: nobody declared the {whose}'s threads; write k.threads"
            raise self.error(text, "")
        if self._elected:
            raise self.error(f"{what} of each thread's values: one thread is elected", "")

    def _warpgroup(self, what: str) -> None:
        if np.any(self._role_threads != _WARPGROUP) or self._elected:
            who = "one thread" if self._elected else f"{self._role_threads or 'all'} threads"
            text = f"{what}: is issued by a warpgroup, and stands in the body of {who}"
            raise self.error(f"{text}; write it in k.role(.., warpgroups=1)", what)

    def _in_cluster(self, what: str, digit: str) -> None:
        self._known(digit)
        if (by := self._digits[digit].by) != "the cluster":
            raise self.error(f"{what}: {by} counts {digit}, not the cluster", digit)

    def _in_role(self, what: str) -> None:
        if not self._role:
            raise self.error(f"{what}: stands outside of a role; write it in k.role(..)", what)

    # lines

    def error(self, text: str, word: str) -> ProgramError:
        """Return an error that shows the user's line, and the word in it."""
        return self._error_at(self._where(), text, word)

    def _where(self) -> tuple[str, int]:
        """Return the file and line that called the builder."""
        frame = sys._getframe(1)
        skipped = (__file__, contextmanager.__code__.co_filename)
        while frame.f_code.co_filename in skipped and frame.f_back:
            frame = frame.f_back
        return frame.f_code.co_filename, frame.f_lineno

    def _error_at(self, where: tuple[str, int], text: str, word: str) -> ProgramError:
        file, number = where
        message = f"{file.rpartition('/')[2]}:{number}: {text}"
        if source := linecache.getline(file, number).strip():
            message += f"\n    {source}"
            places = [m.start() for m in re.finditer(rf"\b{re.escape(word)}\b", source)]
            if word and places:
                message += f"\n    {' ' * places[-1]}{'^' * len(word)}"
        return ProgramError(message)

    def program(self) -> Program:
        """Return the term that was traced.  Raises ProgramError for what is not finished."""
        if self._broken:
            raise self._broken
        if self._roles and self._body:
            text = f"machine {self.name}: {self._body[0]} stands outside of its roles"
            raise ProgramError(f"{text}; write it in one")
        if np.any(self._options.get("persistent", 0)) and not self._tiled:
            text = f"machine {self.name}: persistent CTAs have several tiles"
            raise ProgramError(f"{text}; write `for tile in k.tiles():` in each role")
        roles = tuple(role for _, role in sorted(self._roles, key=lambda one: not one[0]))
        if not roles:
            roles = (
                term.Role("all", math.prod(self._extents(self._countings[0])), tuple(self._body)),
            )
        digits = self._digits.values()
        grid = tuple(
            term.Axis(d.name, self._trips(d), d.name in self._down)
            for d in digits
            if d.by == "the grid"
        )
        loops = [d for d in digits if d.name in self._counts and d.extent is None]
        trips = tuple((self._counts[d.name], self._trips(d)) for d in loops)
        cluster = tuple((d.name, self._extent(d.name)) for d in digits if d.by == "the cluster")
        used = term.buffers_of(tuple(s for role in roles for s in role.body))
        arrays = [a.buffer for a in self.arrays if any(a.buffer is b for b in used)]
        held = [b for b in used if b.level == "registers"]
        at_most = tuple(self._bounds.items())
        return Program(
            self.name, self.op, (*arrays, *self._on_chip, *held),
            (*self._pitches, *trips, *self._steps.values()),
            grid, roles, at_most=at_most, barriers=tuple(self._barriers),
            cluster=cluster, zeroed=self._zeroed, **self._options,
        )  # fmt: skip

    def _trips(self, digit: Digit) -> Expression:
        """Return how far a digit counts: as far as its axis needs, if it is open."""
        if digit.extent is not None:
            return Constant(digit.extent)
        if digit.name not in self._covers:
            text = f"machine {self.name}: digit {digit.name}: no pattern has it, so that nobody"
            raise ProgramError(f"{text} knows how far it goes; use it, or give it an extent")
        axis, step, among = self._covers[digit.name]
        count: Expression = value(axis)
        for size in (step, among):
            if not isinstance(size, int) or size != 1:
                count = count.ceildiv(size)
        return count


def trace(name: str, forward: Callable[[Kernel], None], operation: Operation) -> Program:
    """Return the term that ``forward`` traces."""
    kernel = Kernel(name, operation)
    forward(kernel)
    return kernel.program()
