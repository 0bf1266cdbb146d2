"""Memory and registers: buffers, parts of them, and what loads, stores and computes.

A declaration returns a handle, an ``Array`` or ``Held``.  ``array[pattern]`` is a ``Piece``: its
digits have steps in each dimension of the buffer.  Digits of threads and of values go by these
steps; grid and loops say where the piece begins; an axis that digits may leave has a guard.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygpu.errors import ProgramError, nearest
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.term import program as term
from tinygpu.term.access_map import Operand, Predicate
from tinygpu.term.arithmetic import compute
from tinygpu.term.builder.digits import Digits, LoopIndex, TileValue, equations_of, error
from tinygpu.term.builder.scopes import Scopes
from tinygpu.term.expression import Constant, Expression, apply, value
from tinygpu.term.operation import REDUCERS, Operation
from tinygpu.term.program import Access, Affine, Buffer, registers, select, var
from tinygpu.term.tensor_memory import RowLanes

__all__ = [
    "Arithmetic",
    "Array",
    "Below",
    "Coordinate",
    "DataMovement",
    "Held",
    "Piece",
    "across",
    "fitting",
    "piece_of",
]

_VECTOR_BYTES = 16  # spec: PTX ISA, "ld"
_SLAB_BYTES = 128  # the widest swizzle
_WARP = 32
_ZERO = Affine()
_MOVING = ("the grid", "the cluster", "copies of a role", "a loop", "a tile value")
_SPACES = {"gmem": "global", "smem": "shared"}


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Registers with a value for each of their digits (slowest first).

    Of a ring ``held[step, s]`` is a use: the numbers of several digits count on, slowest first.
    """

    declared: Digits
    buffer: Buffer
    dimensions: tuple[str, ...]
    index: Affine | None = None
    """Which value of a ring it is."""
    ring: bool = False
    lanes: RowLanes | None = None
    """Where rows lie that are held as tensor memory has them."""

    @property
    def digits(self) -> tuple[str, ...]:
        """Its dimensions but for those that ``k.each`` goes through."""
        gone = self.declared.gone_through
        return tuple(d for d in self.dimensions if d not in gone) if gone else self.dimensions

    @property
    def name(self) -> str:
        """The name of the registers."""
        return self.buffer.name

    def __getitem__(self, at: LoopIndex | tuple[LoopIndex, ...]) -> Held:
        if isinstance(at, str):
            text = f"{self.name}: registers take no pattern; k.each goes through a digit"
            raise error(text, self.name)
        if not self.ring:
            raise error(f"{self.name} has no stages; give k.registers its stages", self.name)
        return replace(self, index=self.declared.use_of(self.name, at, own=True))


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
        digits = self.array.declared
        if isinstance(at, LoopIndex):
            digits.in_scope(at)
            return Piece(self.array, self.equations, self.stage, (*self.numbers, at))
        if not isinstance(at, str):
            text = f"{self.array.name}[{at!r}]: a pattern, or the number of a digit; k.unrolled"
            raise error(f"{text} and k.digit give numbers", self.array.name)
        given = tuple([number.digit for number in self.numbers])
        equations = digits.equations(at, self.array.axes, given)
        return Piece(self.array, equations, self.stage, self.numbers)

    @property
    def use(self) -> Affine:
        """Which use of a ring of tiles it is of."""
        if self.stage:
            return self.stage.use(own=self.array.own)
        if self.array.ring:
            name = self.array.name
            raise error(f"{name} is a ring of stages; say which, as {name}[step]", name)
        return Affine()

    @property
    def whole_use(self) -> Affine:
        """Which use it is of, of a tile that is taken as a whole."""
        if self.equations:
            name = self.array.name
            raise error(f"{name}: TMA and wgmma take whole tiles; drop the pattern", name)
        return self.use


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An operand in global memory, or a tile (or ring of tiles) in shared or tensor memory.

    ``axes`` are the axes of an operand, or the digits that a tile's dimensions are.  A swizzled
    tile lies as slabs of ``slab`` elements of its last dimension, one after the other.
    """

    declared: Digits
    buffer: Buffer
    axes: tuple[str, ...]
    slab: int = 0
    ring: bool = False
    own: bool = False
    """Whether each copy of a role has one of its own."""

    @property
    def slabbed(self) -> bool:
        """Whether it lies in slabs."""
        return not isinstance(self.slab, int) or self.slab > 0

    @property
    def name(self) -> str:
        """Its name."""
        return self.buffer.name

    @property
    def dtype(self) -> str:
        """The name of its data type."""
        return self.buffer.dtype

    @property
    def columns(self) -> int:
        """The columns of a tile in tensor memory that lie in one lane."""
        return self.buffer.extents[1]

    @property
    def stage_bytes(self) -> int:
        """The bytes of one tile."""
        return self.buffer.stage_bytes

    def __getitem__(self, at: str | LoopIndex) -> Piece:
        if isinstance(at, str):
            return Piece(self, self.declared.equations(at, self.axes))
        self.declared.in_scope(at)
        if not self.ring and self.buffer.level != "gmem":
            raise error(f"{self.name} has no stages; give k.smem its stages", self.name)
        return Piece(self, {}, at)


def piece_of(part: Piece | Array) -> Piece:
    """Return a part; an array stands for all of it."""
    return part if isinstance(part, Piece) else Piece(part, {})


def fitting(held: Held, dtype: str, digits: tuple[str, ...], what: str) -> Held:
    """Return registers.  Raises ProgramError if they have no place for values of some digits."""
    if {*held.digits} != {*digits} or held.buffer.dtype != dtype:
        text = f"{held.name} has {held.buffer.dtype} by {' '.join(held.digits) or 'no digit'}"
        raise error(f"{text}, {what} {dtype} by {' '.join(digits) or 'no digit'}", held.name)
    return held


def across(array: Array, axis: str, step: int) -> tuple[int, ...]:
    """Return a slabbed tile's step of so many elements along an axis, in its three dimensions."""
    if array.axes[-1] != axis:
        return (step, 0, 0)
    return (0, select(step < array.slab, step, 0), step // array.slab)


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Steps of each digit, one a dimension; the last digit of the contiguous one; guarded axes.

    And how threads count there: their digits' extents and steps.
    """

    steps: Mapping[str, tuple[int, ...]]
    last: str
    guard: tuple[bool | str, ...]
    threads: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A sum of coordinates along axes, sizes and numbers: ``k.at("n = (kt tn)") - k.size("n")``.

    ``parts``: along which axis and digits, and how often each counts.  Compared with another one
    it is a condition on each value: ``k.fill(s, -inf, where=k.at(..) >= k.size("n"))``.
    """

    parts: tuple[tuple[Piece, int], ...]
    rest: Affine

    def __add__(self, other: Coordinate | int) -> Coordinate:
        if not isinstance(other, Coordinate):
            return replace(self, rest=self.rest + other)
        return Coordinate(self.parts + other.parts, self.rest + other.rest)

    __radd__ = __add__

    def __neg__(self) -> Coordinate:
        return Coordinate(tuple((part, -often) for part, often in self.parts), -1 * self.rest)

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


class DataMovement(Scopes):
    """Buffers and registers, and what moves between them.

    Subclasses declare by ``_free``, ``_lay_out``, ``registers`` and ``_rows``; they ask where
    a piece lies (``_place``, ``_access``, ``_vector``) and where registers do (``_own``,
    ``_in_full``), and append by ``_do`` what all threads do.
    """

    def __init__(self, name: str, operation: Operation) -> None:
        super().__init__(name, operation)
        self._pitches: list[tuple[str, Expression]] = []
        arrays = []
        for o in (*operation.inputs, *operation.outputs):
            stride: list[int | str] = [1]
            for back, axis in enumerate(reversed(operation.stored(o)[1:])):
                kind = "ld" if back == 0 else f"ls{back if back > 1 else ''}"
                pitch = f"{kind}_{o.name}"
                inner = stride[0] if isinstance(stride[0], str) else None
                size = value(axis) if isinstance(axis, str) else Constant(axis)
                self._pitches.append((pitch, value(inner) * size if inner else size))
                stride.insert(0, pitch)
            pages = operation.pages_of(o.name)
            buffer = Buffer(o.name, "gmem", o.dtype, o.axes, tuple(stride), pages=pages)
            arrays.append(Array(self._digits, buffer, o.axes))
        if pages := operation.pages:
            self._pitches.append((pages.pitch, value(pages.axis).ceildiv(pages.size)))
        self.arrays = tuple(arrays)
        count = len(operation.inputs)
        self.inputs, self.outputs = self.arrays[:count], self.arrays[count:]
        self.output = self.outputs[0]
        self._names: dict[str, int] = {}
        self._on_chip: list[Buffer] = []
        self._first_own = 0  # of those, the first that copies of a role have each
        self._scratch: dict[tuple[str, ...], Held] = {}
        self._bounds: dict[str, int] = {}  # sizes that no open digit covers
        self._inside: dict[str, tuple[str, ...]] = {}  # equations that an Exit keeps inside
        self._guarded = dict.fromkeys(operation.axes, True)
        self._left = ""  # the array whose outside threads leave
        self._places: dict[tuple[str, int, str], _Place] = {}
        self._modes_of: dict[tuple[Hashable, ...], tuple[str, ...]] = {}
        self._ways: dict[tuple[Hashable, ...], Any] = {}  # of places, how threads and values go
        self._owned: dict[
            tuple[Hashable, ...], tuple[tuple[int, ...], ...]
        ] = {}  # of registers, how values go

    # buffers

    def smem(
        self, name: str, dtype: str, *digits: str, pad: int = 0, stages: int | None = None,
        swizzle: int | str | tuple[int, int, int] = 0, piece: int = 16,
        slab_bytes: int = _SLAB_BYTES, **extents: int,
    ) -> Array:  # fmt: skip
        """Declare a tile in shared memory, its last dimension contiguous; ``stages`` make a ring.

        Its dimensions are new digits, as tm=64, or known ones, by name.  ``pad`` elements follow
        each line.  ``swizzle`` = 128: slabs of 128 B, as TMA and wgmma take them, or of
        ``slab_bytes``, 32 or 64, with the swizzle of such lines; "line": one slab, or as many
        as a third dimension counts, whose pieces of ``piece`` bytes change places by the
        number of the line, or of the 128 B, if a line has a power of two of them; or (bits, base,
        shift) of ``tinygpu.term.layout.Swizzle``.
        What is declared in a role each of its copies has for itself.
        """
        for digit in digits:
            self._digits.require(digit)
            extents[digit] = self._digits.extent(digit)
        if not extents:
            raise error(f"tile {name}: no dimensions; give them as tm=64, tk=32", name)
        self._declare("a tile", extents)
        tiled, ranks = swizzle in (_SLAB_BYTES, "line"), (2, 3) if swizzle == "line" else (2,)
        if swizzle and (len(extents) not in ranks or not (tiled or isinstance(swizzle, tuple))):
            text = f"tile {name}: swizzle {swizzle} of {len(extents)} dimensions"
            raise error(f'{text}; it is 128 or "line", of two dimensions', "swizzle")
        each, shape = DTYPES[dtype].bytes, tuple(extents.values())
        slab: int = 0
        if swizzle == _SLAB_BYTES:
            slab = slab_bytes // each
            shape = (shape[0], slab, shape[1] // slab)
        pitches: list[int] = [1]
        size: int = shape[-1] + pad
        for extent in reversed(shape[:-1]):
            pitches.insert(0, size)
            size = size * extent
        pattern: tuple[int, int, int]
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
        self._lay_out(buffer)
        own = bool(self._role)
        return Array(self._digits, buffer, tuple(extents), slab, stages is not None, own)

    def registers(self, name: str, dtype: str, *digits: str, stages: int | None = None) -> Held:
        """Declare registers with a value for each of the digits, of each thread.

        ``stages`` make a ring.
        """
        for digit in digits:
            self._digits.require(digit)
        ordered = self._digits.ordered(digits)
        if wrong := [d for d in ordered if not self._digits.counted(d)]:
            by = self._digits.by(wrong[0])
            raise error(f"digit {wrong[0]}: {by} counts it, not each thread", wrong[0])
        shape = self._digits.extents(ordered) or (1,)
        many = 1 if stages is None else stages
        buffer = registers(self._free(name), dtype, *shape, stages=many)
        return Held(self._digits, buffer, ordered, ring=stages is not None)

    def _rows(self, name: str, dtype: str, digits: tuple[str, ...], lanes: RowLanes) -> Held:
        """Declare registers for columns of lanes: each thread of a warpgroup has its own."""
        buffer = registers(self._free(name), dtype, self._digits.extent(digits[-1]))
        return Held(self._digits, buffer, digits, index=self._part(), lanes=lanes)

    def _into(self, into: str, name: str, dtype: str, *digits: str) -> Held:
        """Return new registers, or those that are used over and over under the name ``into``."""
        if not into:
            return self.registers(name, dtype, *digits)
        key = (into, dtype, *digits)
        if key not in self._scratch:
            self._scratch[key] = self.registers(into, dtype, *digits)
        return self._scratch[key]

    def _free(self, name: str) -> str:
        """Return the name, or one made of it that nothing has yet."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else self._free(f"{name}{count}")

    def _lay_out(self, buffer: Buffer, *, last: bool = True) -> None:
        """Lay out a buffer on the chip: the last, or before those that copies of a role have."""
        self._on_chip.insert(len(self._on_chip) if last else self._first_own, buffer)
        self._first_own += last and not self._role

    # moves

    def load(
        self, part: Piece | Array, *, outside: float = 0.0, vector: int | None = None,
        into: str | Held = "", by: Instruction | None = None,
    ) -> Held:  # fmt: skip
        """Load into registers; what lies outside of the array is ``outside``.

        ``by``: another instruction of a thread that loads, such as one with a hint for caches.
        Loads ``into`` registers of one name use the same ones, if they hold the same digits.
        """
        part = piece_of(part)
        self._each_thread("a load")
        place, modes = self._placed(part)
        digits, dtype = self._digits.joined(modes), part.array.dtype
        if isinstance(into, Held):
            held = fitting(into, dtype, digits, f"{part.array.name} is read as")
        else:
            held = self._into(into, f"{part.array.name}_held", dtype, *digits)
            held = replace(held, index=self._turns(part))
        by = by or INSTRUCTIONS[f"ld.{_SPACES[part.array.buffer.level]}"]
        there = self._access(part, place, modes, outside)
        self._do(by, held, there, modes, place, vector=self._vector(part, place, vector))
        return held

    def cp_async(self, to: Piece, part: Piece, *, vector: int | None = None) -> None:
        """Copy from global to shared memory by cp.async; ``k.commit()`` ends a group of such."""
        self._each_thread("cp_async")
        (place, modes), there = self._placed(part), self._place(to)
        source, target = self._access(part, place, modes), self._access(to, there, modes)
        wide = self._vector(part, place, vector)
        self._do(INSTRUCTIONS["cp.async"], target, source, modes, place, vector=wide)

    def store(
        self, part: Piece | Array, held: Held, *, vector: int | None = None, add: bool = False,
        by: Instruction | None = None,
    ) -> None:  # fmt: skip
        """Store registers, rounded to the array's type, or ``add`` them to a cleared array.

        ``by``: another instruction of a thread that stores or adds.
        """
        part = piece_of(part)
        if held.lanes:
            self._store_lanes(part, held, held.lanes, vector)
            return
        self._each_thread("a store")
        place, modes = self._placed(part)
        if extra := sorted(set(held.digits) - set(self._digits.joined(modes))):
            text = f"{held.name} has a value for each {extra[0]}, and {part.array.name} one for all"
            raise error(text, extra[0])
        held = self.cast(held, part.array.dtype)
        name = "red.global" if add else f"st.{_SPACES[part.array.buffer.level]}"
        wide = self._vector(part, place, vector)
        there, by = self._access(part, place, modes), by or INSTRUCTIONS[name]
        self._do(by, there, held, modes, place, vector=wide, lanes=self._only)

    def _store_lanes(self, part: Piece, held: Held, lanes: RowLanes, vector: int | None) -> None:
        """Store what a warpgroup took from tensor memory: each thread columns of its lane."""
        self._warpgroup("the store of lanes")
        place, digits = self._place(part), held.digits
        if {d for d in place.steps if self._digits.counted(d)} != {*digits}:
            text = f"{part.array.name}: its pattern has to have {', '.join(digits)}, as"
            raise error(f"{text} {held.name}, and no other values", part.array.name)
        read, values = self._in_full(self.cast(held, part.array.dtype))
        half, rows, column = (place.steps[d] for d in digits)
        further = tuple(
            select(lanes.halves == 2, h, r * lanes.near) for h, r in zip(half, rows, strict=True)
        )
        by = (rows, (0,) * len(rows), further)
        there = Access(part.array.buffer, (column,), by, index=part.use)
        if part.array.buffer.level == "gmem":
            guard = (True,) * len(part.array.axes)
            there = replace(self._access(part, place, ()), value=(column,), thread=by, guard=guard)
        store = INSTRUCTIONS[f"st.{_SPACES[part.array.buffer.level]}"]
        vector = self._vector(part, replace(place, last=digits[-1]), vector)
        self._append(lanes.of(term.Do(store, there, (read,), values, vector=vector)))

    def cast(self, held: Held, dtype: str, *, into: str | Held = "") -> Held:
        """Round to a type; what has the type already is returned as it is.

        ``into``: registers of that type by the same digits, or the name of some.
        """
        if held.buffer.dtype == dtype:
            return held
        if isinstance(into, Held):
            rounded = fitting(into, dtype, held.digits, f"{held.name} is rounded to")
        elif held.lanes:
            rounded = self._rows(into or "rounded", dtype, held.digits, held.lanes)
        else:
            rounded = self._into(into, f"{held.name}_rounded", dtype, *held.digits)
            rounded = replace(rounded, index=held.index)
        read, values = self._in_full(held)
        write, _ = self._in_full(rounded)
        move = term.Do(INSTRUCTIONS["cvt"], write, (read,), values)
        self._append(held.lanes.of(move) if held.lanes else move)
        return rounded

    def leave_outside(self, part: Piece) -> None:
        """Let threads leave whose elements are outside; the others' accesses need no guard."""
        self._each_thread("an exit")
        if self._digits.loops:
            raise error("leave_outside: stands in a loop; write it before", "leave_outside")
        place, modes = self._placed(part)
        access = replace(self._access(part, place, modes), guard=(True,) * len(part.array.axes))
        self._append(term.Exit(access, self._digits.extents(modes), place.threads))
        self._left = part.array.name
        self._places.clear()
        for axis in part.array.axes:  # a thread with several elements may have one outside
            digits = self._digits.expanded(part.equations, axis)
            if all(self._digits.by(d) in ("the grid", "threads") for d in digits):
                self._inside[axis] = digits

    def unguarded(self, *axes: str) -> None:
        """Let accesses not ask whether they are inside along some axes: laws see to it.

        The array whose outside threads leave (``leave_outside``) is asked for all the same.
        """
        self._guarded |= dict.fromkeys(axes, False)
        self._places.clear()

    # where a piece lies

    def _place(self, part: Piece) -> _Place:
        """Return the step of each digit in each dimension."""
        array, rank = part.array, len(part.array.axes)
        key = (array.name, id(part.equations) if part.equations else 0, self._role)  # all are kept
        if key in self._places:
            return self._places[key]
        steps: dict[str, list[Any]] = {}  # ints; in gmem a step may be a parameter's name
        exact, in_gmem = [], array.buffer.level == "gmem"
        digits: tuple[str, ...] = ()
        for dimension, axis in enumerate(array.axes):
            if axis in part.equations:
                digits = self._digits.expanded(part.equations, axis)
            elif in_gmem:
                raise error(f"{array.name} has axis {axis}; the pattern has none", array.name)
            else:
                digits = (axis,)
            along, step, is_open = self._digits.along(axis, part.equations)
            for digit, mine in along.items():
                steps.setdefault(digit, [0] * rank)[dimension] = mine
            if in_gmem and not is_open:
                known = self._bounds.get(axis, step)
                self._bounds[axis] = select(known < step, known, step)
            guarded = self._guarded.get(axis, True) or array.name == self._left
            exact.append(
                not guarded
                or self._inside.get(axis) == digits
                or self._digits.inside(digits, is_open=is_open)
            )
        counting = self._digits.counting(steps)
        found = {d: self._in_dimensions(array, d, tuple(s)) for d, s in steps.items()}
        still = (0,) * len(array.buffer.shape)
        strides = self._digits.in_turn(counting, [found.get(d, still) for d in counting])
        guards = (e if isinstance(e, str) else not e if isinstance(e, bool) else e == 0
                  for e in exact)  # fmt: skip
        guard = tuple(guards) if in_gmem else ()
        threads, last = self._digits.thread_extents(steps), digits[-1] if digits else ""
        place = self._places[key] = _Place(found, last, guard, threads, strides)
        return place

    def _placed(self, part: Piece) -> tuple[_Place, tuple[str, ...]]:
        """Return a part's place, and its modes: the digits that each thread counts.

        Modes are ordered fastest first; the vector's is before the others.
        """
        place = self._place(part)
        key = (place, *self._digits.gone_through)
        if key not in self._modes_of:
            modes = self._digits.ordered(filter(self._digits.counted, place.steps))[::-1]
            first = tuple(d for d in modes if d == place.last)
            self._modes_of[key] = (*first, *(d for d in modes if d != place.last))
        return place, self._modes_of[key]

    def _in_dimensions(self, array: Array, digit: str, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Return a digit's steps along an array's axes in the dimensions of its buffer.

        Raises ProgramError for a digit that counts on from one slab of a tile to the next.
        """
        if not array.slabbed:
            return steps
        down, along = steps
        within = isinstance(along, int) and isinstance(array.slab, int) and along % array.slab
        if within and np.any(along * self._digits.extent(digit) > array.slab):
            text = f"digit {digit}: goes on in further slabs of {array.name}"
            raise error(f"{text}; count it in two, as k.split does", digit)
        return (down, *across(array, array.axes[-1], along)[1:])

    def _access(
        self, part: Piece, place: _Place, modes: tuple[str, ...], outside: float = 0.0
    ) -> Access:
        """Return the access by threads and by the values of ``modes``."""
        buffer, zero = part.array.buffer, (0,) * len(part.array.buffer.shape)
        key = (place, modes, *self._digits.gone_through)
        if key not in self._ways:
            values = tuple([place.steps.get(d, zero) for d in modes])
            moving = [
                (digit, dimension, step)
                for digit, steps in reversed([*place.steps.items()])  # slowest first: laws read so
                if self._digits.by(digit) in _MOVING or digit in self._digits.gone_through
                for dimension, step in enumerate(steps)
                if not isinstance(step, int) or step
            ]
            self._ways[key] = values, moving
        values, moving = self._ways[key]
        ahead = (part.stage,) if part.stage and buffer.level == "gmem" else ()
        numbers = {number.digit: number.affine for number in (*ahead, *part.numbers)}
        for number in part.numbers:
            if number.digit not in place.steps:
                text = f"{buffer.name}: at {number.affine} of {number.digit}, which no axis has"
                raise error(text, buffer.name)
        origin = [_ZERO for _ in zero]
        for digit, dimension, step in moving:
            if digit in numbers and not isinstance(step, str):
                more = numbers[digit] * step
            else:
                more = var(digit, step)
            if digit in self._digits.begins:
                more = more + var(self._digits.begins[digit], step)
            origin[dimension] = origin[dimension] + more
        use = _ZERO if buffer.level == "gmem" else part.use
        return Access(buffer, values, place.strides, tuple(origin), use, place.guard, outside)

    def _turns(self, part: Piece) -> Affine | None:
        """Return which value is loaded of a ring's tile: the loops inside its own count on."""
        if part.stage is None:
            return None
        index, loops = part.stage.affine, self._digits.loops
        begun = [i for i, loop in enumerate(loops) if loop in part.stage.loops]
        for loop in loops[begun[-1] + 1 :] if begun else ():
            index = index * self._digits.extent(loop) + var(loop)
        return index

    def _vector(self, part: Piece, place: _Place, vector: int | None) -> int:
        if vector is not None:
            return vector
        last = (
            d for d, steps in place.steps.items() if not isinstance(steps[-1], int) or steps[-1]
        )
        if not self._digits.counted(place.last) or "a tile value" in map(self._digits.by, last):
            return 1  # where a tile value says an axis begins, elements may lie anywhere
        most = _VECTOR_BYTES // DTYPES[part.array.dtype].bytes
        extent = self._digits.extent(place.last)
        return select(extent > most, most, extent)

    # where registers lie

    def _do(
        self, by: Instruction, write: Access | Held, read: Access | Held, modes: tuple[str, ...],
        place: _Place | None, **more: Any,
    ) -> None:  # fmt: skip
        """Append a statement of all threads; ``place`` says how they count."""
        threads = place.threads if place else self._digits.thread_extents()
        to, of = (
            self._own(one, modes, len(threads)) if isinstance(one, Held) else one
            for one in (write, read)
        )
        self._append(term.Do(by, to, (of,), self._digits.extents(modes), threads, **more))

    def _own(
        self, held: Held, modes: tuple[str, ...], threads: int = 0,
        at: Mapping[str, Affine] | None = None,
    ) -> Access:  # fmt: skip
        """Return the access to registers at each digit of the modes.

        It begins ``at`` some digits' places, and where ``k.each`` is.
        """
        rank, gone, halves = len(held.buffer.shape), self._digits.gone_through, self._digits.halves
        if held.ring and held.index is None:
            raise error(f"{held.name} is a ring; say which value, as {held.name}[step]", held.name)
        key = (held.dimensions, modes, *gone)
        if key not in self._owned:
            known: dict[str, tuple[int, ...]] = {}
            for place, digit in enumerate(held.dimensions):
                before, after = (0,) * place, (0,) * (rank - place - 1)
                known[digit] = (*before, 1, *after)
                if digit in halves:
                    slow, near = halves[digit]
                    known[near] = known[digit]
                    known[slow] = (*before, self._digits.extent(near), *after)
            self._owned[key] = tuple([known.get(mode, (0,) * rank) for mode in modes])
        steps, origin = self._owned[key], tuple[Affine, ...]()
        if gone or at is not None:
            here = {**{d: var(d) for d in gone}, **(at or {})}
            origin = tuple([here.get(d, _ZERO) for d in held.dimensions])
        index = self._turn() if held.index is None else held.index
        return Access(held.buffer, steps, ((0,) * rank,) * threads, origin, index)

    def _in_full(self, held: Held) -> tuple[Access, tuple[int, ...]]:
        """Return the access to all of it, fastest first, and how far each of its modes goes."""
        if not held.lanes:
            modes = held.digits[::-1]
            return self._own(held, modes), self._digits.extents(modes)
        access = Access(held.buffer, ((1,),), ((0,),) * 3, index=held.index or Affine())
        return access, self._digits.extents(held.digits[-1:])


class Arithmetic(DataMovement):
    """Arithmetic of registers, value by value; it has no state of its own."""

    def compute(
        self, expression: Expression, reads: Mapping[str, Held], dtype: str = "f32", *,
        name: str = "result", into: str = "",
    ) -> Held:  # fmt: skip
        """Compute an expression of registers, scalars and sizes, for each digit that it reads.

        It is computed in f32, and then rounded to ``dtype``.
        """
        used = self._used(expression, reads)
        if lanes := [h.name for h in used.values() if h.lanes]:
            raise error(f"compute: {lanes[0]} lies by lanes; cast and store it", "compute")
        digits = self._digits.ordered({d for h in used.values() for d in h.digits})
        result = self._into(into, name, dtype, *digits)
        if all(h.index for h in used.values()):  # of a ring, and so one of it
            result = replace(result, index=next((h.index for h in used.values()), None))
        self._append(*self._computed(expression, used, result, digits))
        return result

    def apply(
        self, instruction: Instruction, *reads: Held, dtype: str = "f32", name: str = "result"
    ) -> Held:
        """Apply an instruction of a thread to registers, for each digit that they have."""
        self._each_thread(instruction.name)
        digits = self._digits.ordered({d for held in reads for d in held.digits})
        result, modes = self.registers(name, dtype, *digits), digits[::-1]
        sources = tuple(self._own(held, modes) for held in reads)
        write, values = self._own(result, modes), self._digits.extents(modes)
        self._append(term.Do(instruction, write, sources, values))
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
            raise error(f"{text}; reduce it over {', '.join(more)}", into.name)
        self._append(*self._computed(expression, used, into, self._digits.ordered(digits)))

    def reduce(
        self, operator: str, into: Held, of: Held | Expression,
        reads: Mapping[str, Held] | None = None,
    ) -> None:  # fmt: skip
        """Set ``into`` to operator(into, of), over all digits that it has not."""
        if operator not in REDUCERS:
            raise error(f"reduction {operator}; {nearest(operator, REDUCERS)}", operator)
        known = dict(reads or {})
        if isinstance(of, Held):
            known, of = {".more": of}, value(".more")
        self.set(into, apply(operator, value(".into"), of), {".into": into, **known})

    def add(
        self, into: Held, of: Held | Expression, reads: Mapping[str, Held] | None = None
    ) -> None:
        """Add to ``into``, over all digits that it has not."""
        self.reduce("add", into, of, reads)

    def butterfly(self, operator: str, held: Held, *, over: str) -> None:
        """Reduce over a digit of threads of one warp, by shuffles; all of them get the result."""
        apart, lanes = self._digits.thread(over)
        if not isinstance(lanes, int) or not isinstance(apart, int) or lanes * apart > _WARP:
            raise error(f"butterfly: {over} counts threads of more than one warp", over)
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
        digits = self._digits.ordered(held.digits)
        *others, move = self._computed(Constant(number), {}, held, digits)
        if where is not None:
            asked = self._predicate(where, held.digits[::-1])
            move = replace(move, threads=self._digits.thread_extents(), where=asked)
        self._append(*others, move)

    def at(self, pattern: str, *numbers: LoopIndex) -> Coordinate:
        """Return the coordinate along an axis of the operation: ``k.at("n = (kt block col)")``.

        With a number, as ``step.last - step``, at that one of the digit that it is a number of.
        """
        axes = tuple([axis for axis, _ in equations_of(pattern) if axis in self.op.axes])
        if len(axes) != 1:
            text = f"at: {pattern!r} has {len(axes)} axes of the operation; one is a coordinate"
            raise error(text, "at")
        buffer = Buffer(f"coordinate of {axes[0]}", "gmem", "f32", axes, (1,))
        equations = self._digits.equations(pattern, axes)
        part = Piece(Array(self._digits, buffer, axes), equations, numbers=numbers)
        return Coordinate(((part, 1),), Affine())

    def size(self, axis: str | TileValue) -> Coordinate:
        """Return an axis's size, or a tile's own number, which coordinates are compared with."""
        if isinstance(axis, TileValue):
            return Coordinate((), var(axis.name))
        if axis not in self.op.axes:
            raise error(f"axis {axis}: there is none; {nearest(axis, self.op.axes)}", axis)
        return Coordinate((), var(axis))

    def _predicate(self, where: Below, modes: tuple[str, ...]) -> Predicate:
        """Return a condition on the values of ``modes``, by all threads."""
        threads = self._digits.thread_extents()
        origin, rest = _ZERO, where.number.rest
        value: list[int] = [0] * len(modes)
        thread: list[int] = [0] * len(threads)
        for part, often in where.number.parts:
            place = self._place(part)
            strange = [d for d in place.steps if self._digits.counted(d) and d not in modes]
            if strange:
                text = f"where: the condition moves with {strange[0]}, and the registers have not"
                raise error(f"{text} that digit", strange[0])
            access = self._access(part, place, modes)
            if place.threads != threads:
                raise error("where: its threads count otherwise than the first k.threads", "")
            value = [old + often * step for old, (step,) in zip(value, access.value, strict=True)]
            thread = [
                old + often * step for old, (step,) in zip(thread, access.thread, strict=True)
            ]
            origin = origin + often * access.origin[0]
        sizes = tuple(term for term in rest.terms if term[0] in self.op.axes)
        own = tuple(term for term in rest.terms if term not in sizes)  # tiles' numbers
        origin, bound = origin + Affine(rest.constant, own), -1 * Affine(0, sizes)
        return Predicate(origin, tuple(value), tuple(thread), bound)

    def _used(self, expression: Expression, reads: Mapping[str, Held]) -> dict[str, Held]:
        """Return the registers that an expression reads.  Raises ProgramError for others."""
        known = (*reads, *self.op.scalars, *self.op.axes)
        for name in expression.names():
            if name not in known:
                raise error(f"{expression} reads {name}; {nearest(name, known)}", name)
        return {name: reads[name] for name in dict.fromkeys(expression.names()) if name in reads}

    def _computed(
        self, expression: Expression, reads: Mapping[str, Held], write: Held, digits: Iterable[str]
    ) -> tuple[term.Do, ...]:
        """Return the statements that compute an expression for each of some digits."""
        self._each_thread("arithmetic")
        modes = tuple(digits)[::-1]
        sources: dict[str, Operand] = {
            name: term.Scalar(name, size=name in self.op.axes)
            for name in (*self.op.axes, *self.op.scalars)
        }
        sources |= {name: self._own(held, modes) for name, held in reads.items()}
        to, values = self._own(write, modes), self._digits.extents(modes)
        dtype = "f64" if write.buffer.dtype == "f64" else "f32"
        name = self._free("t") + "_"
        return compute(expression, sources, to, values=values, dtype=dtype, name=name)
