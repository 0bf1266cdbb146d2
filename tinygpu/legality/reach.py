"""Reach: which coordinates an access touches, over its values, threads, loops and the grid.

An access is a sum of *modes*: along dimension d its coordinate is

    origin + sum over modes of i * step,    0 <= i < extent

with one mode for each value extent, thread extent, loop around it, grid axis, rank in the cluster
and copy of the role.  Two facts decide everything that laws ask:

* the last coordinate is the origin plus ``(extent - 1) * step`` summed;
* the modes meet each of 0 .. N-1 exactly once if and only if, sorted by step, every step is the
  product of the extents before it (a mixed radix), and N is the product of all.

>>> exactly_once([(4, 1), (8, 16), (4, 4)])          # 4 * 4 = 16: digits of a mixed radix
(True, 128)
>>> exactly_once([(4, 1), (8, 8)])                   # leaves gaps
(False, 32)

Numbers are ints, or arrays over a space: nothing branches on them.

Source: mixed radix numerals; CuTe's "complement" of a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.errors import ProgramError
from tinygpu.isa.instruction import Instruction
from tinygpu.numbers import Number, Truth
from tinygpu.term.operation import Groups
from tinygpu.term.plan import Plan, Term, steps_of
from tinygpu.term.program import (
    Access,
    Affine,
    Block,
    Body,
    Do,
    Elect,
    Exit,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    When,
    same_stage,
    select,
    walked,
)

__all__ = [
    "Case",
    "Clause",
    "Context",
    "Place",
    "Range",
    "exactly_once",
    "first_origin",
    "last_origin",
    "moves",
    "origin_of",
    "product",
    "structural_key",
]


@dataclass(frozen=True, slots=True)
class Range:
    """The values ``first .. last`` of a variable; ``exact`` unless a guard was not understood."""

    first: Number
    last: Number
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """A statement where it stands: the variables' ranges there, its role.

    ``loops`` name what repeats it for one tile: loops, ranks of the cluster, and copies of the role
    that take no tiles of their own.  ``tiles`` are the loops over tiles around it, ``elected`` says
    that one thread of the copy executes it.  ``beside``: the statements of the same body that
    write the same buffer in shared memory at the same index.  ``to_values``: the loops around it
    that run to a tile value; ``counts``: those from 0 to a number with a name, and the name.
    ``room``: by a loop's variable and the name of a number how many more than the variable the
    number is at least, by loops and guards.
    """

    do: Do
    ranges: Mapping[str, Range]
    loops: tuple[str, ...]
    role: Role
    exits: tuple[Exit, ...]
    tiles: tuple[ForTile, ...] = ()
    elected: bool = False
    beside: tuple[Do, ...] = ()
    to_values: tuple[str, ...] = ()
    counts: tuple[tuple[str, str], ...] = ()
    room: tuple[tuple[str, str, Number], ...] = ()

    @property
    def key(self) -> Hashable:
        """What its clauses may depend on: all of it but the bodies of what is around it."""
        role = replace(self.role, body=())
        tiles = tuple(replace(t, body=()) for t in self.tiles)
        own = (getattr(self, name) for name in _PLACE_FIELDS)
        return structural_key((tuple(self.ranges.items()), role, tiles, *own))


product: Callable[[Iterable[Number]], Number] = prod
"""The product, of arrays over a space as well; 1 if there are none."""
_PLACE_FIELDS = tuple(f.name for f in fields(Place) if f.name not in ("ranges", "role", "tiles"))


def structural_key(part: Any, number: Callable[[Number], Hashable] | None = None) -> Hashable:
    """Return what is equal for equal parts of terms, hashable; an array stands for itself alone.

    All fields count, and what it does not know stands for itself, too: whoever keeps a key keeps
    the part.  ``number`` says what stands for an int or an array.
    """
    kind: type = part.__class__
    if number is not None and (kind is int or isinstance(part, np.ndarray | np.integer)):
        return number(part)
    if kind in _HASHABLE:
        key: Hashable = part
        return key
    if kind is tuple:
        return tuple([structural_key(one, number) for one in part])
    if kind not in _FIELDS:
        known = is_dataclass(part) and not isinstance(part, type)
        _FIELDS[kind] = tuple(f.name for f in fields(part)) if known else None
    names = _FIELDS[kind]
    if names is None:
        return kind, id(part)
    return kind, *[structural_key(getattr(part, name), number) for name in names]


_HASHABLE = frozenset((int, str, float, bool, type(None), Instruction))
_FIELDS: dict[type, tuple[str, ...] | None] = {}


@dataclass(frozen=True, slots=True)
class Context:
    """What a law of one statement may read beside the statement's place.

    ``paired``: whether a product of the term is one of a pair of CTAs.  The clauses of a place are
    those of every place with this key in a context with this one.
    """

    sizes: Mapping[str, int]
    device: Device | None
    parameters: Mapping[str, Number]
    grid: Mapping[str, Number]
    cluster: tuple[tuple[str, Number], ...]
    outputs: tuple[str, ...]
    zeroed: Truth
    paired: bool
    groups: Groups | None = None

    @property
    def key(self) -> Hashable:
        """What tells contexts of one space apart."""
        own = (*self.parameters.items(), *self.grid.items())
        return structural_key(
            (own, self.cluster, self.outputs, self.zeroed, self.paired, self.groups)
        )

    @property
    def chip(self) -> Device:
        """The device; laws that depend on sizes alone are judged without one."""
        assert self.device is not None
        return self.device

    def number(self, name_or_number: Number | str) -> Number:
        """Return a number, or the parameter of that name."""
        if isinstance(name_or_number, str):
            return self.parameters[name_or_number]
        return name_or_number

    def size(self, access: Access, dimension: int) -> Number:
        """Return the extent of a buffer's dimension."""
        return self.number(access.buffer.shape[dimension])


@dataclass(frozen=True, slots=True)
class Case:
    """What laws judge: a term, and in its ``context`` the sizes it is for and the device.

    ``statements`` are those of the term, each with its role and the blocks around it; ``syncs`` the
    barriers with a number among them.  ``cuts``: of a plan, an array, an axis of it that is cut,
    its size, and into how many parts.
    """

    program: Program
    places: tuple[Place, ...]
    statements: tuple[tuple[Role, Statement, tuple[Block, ...]], ...]
    syncs: tuple[tuple[Sync, Role], ...]
    waits_after_exit: tuple[str, ...]
    context: Context
    cuts: tuple[tuple[str, str, int, int], ...] = ()

    @staticmethod
    def every(term: Term, sizes: Mapping[str, int], device: Device | None) -> tuple[Case, ...]:
        """Return the case of each kernel; what a plan cuts is with the first."""
        if not isinstance(term, Program | Plan):
            raise ProgramError(f"program() gave {term!r}; it has to return a Program")
        first, *others = (Case.of(program, own, device) for program, own in steps_of(term, sizes))
        cuts = dict.fromkeys(term.cuts(sizes)) if isinstance(term, Plan) else ()
        return replace(first, cuts=tuple(cuts)), *others

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], device: Device | None) -> Case:
        """Work out the parameters, the grid and each statement's ranges once."""
        parameters: dict[str, Number] = dict(sizes)
        for name, expression in program.parameters:
            parameters[name] = expression.evaluate(parameters)
        extents = [axis.extent.evaluate(parameters) for axis in program.grid]
        grid = dict(zip((axis.var for axis in program.grid), extents, strict=True))
        outside = {name: Range(0, extent - 1) for name, extent in grid.items()}
        tiles = Range(0, product(grid.values()) - 1, exact=False)
        ends = {n: (number, number) for n, number in parameters.items()}
        ends |= {name: (0, extent - 1) for name, extent in grid.items()}
        if groups := program.operation.groups:
            ends[groups.ends] = (0, sizes[groups.rows])
        if lengths := program.operation.lengths:
            ends[lengths.name] = (0, sizes[lengths.axis])
        for name, (least, most) in program.value_bounds(ends).items():
            outside[name] = Range(least, most, exact=False)
        outside |= {name: Range(0, extent - 1) for name, extent in program.cluster}
        ranks = tuple(name for name, _ in program.cluster)
        places: list[Place] = []
        statements: list[tuple[Role, Statement, tuple[Block, ...]]] = []
        syncs: list[tuple[Sync, Role]] = []
        late: dict[str, None] = {}
        for role in program.roles:
            exits: tuple[Exit, ...] = ()
            left = False
            bound = outside
            if role.copy:
                bound = outside | {role.copy: Range(0, role.copies - 1)}
            for statement, around in walked(role.body):
                statements.append((role, statement, around))
                if isinstance(statement, Exit):
                    exits = (*exits, statement) if not around else exits
                    left = True
                elif isinstance(statement, Sync):
                    if statement.scope != "cluster":
                        syncs.append((statement, role))
                    if left:
                        late[role.name] = None
                elif isinstance(statement, Do):
                    if left and _by_warps(statement):
                        late[role.name] = None
                    ranges = _ranges(bound, around, parameters, tiles)
                    turns = tuple(s for s in around if isinstance(s, ForTile))
                    apart = any(role.copy == name for s in turns for name, _ in s.start.terms)
                    copies = (role.copy,) if role.copy and not apart else ()
                    loops = tuple(s.var for s in around if isinstance(s, For))
                    own = {name for s in turns for name in s.defines}
                    fors = [s for s in around if isinstance(s, For) and isinstance(s.trips, str)]
                    elected = any(isinstance(s, Elect) for s in around)
                    loops = (*loops, *ranks, *copies)
                    body = around[-1].body if around else role.body
                    places.append(
                        Place(
                            statement,
                            ranges,
                            loops,
                            role,
                            exits,
                            turns,
                            elected,
                            _beside(statement, body),
                            tuple(s.var for s in fors if s.trips in own),
                            tuple((s.var, str(s.trips)) for s in fors if s.start == 0),
                            _room(around),
                        )
                    )
        return Case(
            program,
            tuple(places),
            tuple(statements),
            tuple(syncs),
            tuple(late),
            Context(
                sizes,
                device,
                parameters,
                grid,
                program.cluster,
                tuple(operand.name for operand in program.operation.outputs),
                program.zeroed,
                any(p.do.multicast for p in places if p.do.instruction.unit == "tensor"),
                program.operation.groups,
            ),
        )


def _by_warps(do: Do) -> bool:
    """Whether the threads of a warp, or of several, have to come to a statement together."""
    return do.instruction.issuer == "warpgroup" or do.instruction.of_warps


def _beside(do: Do, body: Body) -> tuple[Do, ...]:
    """Return the other statements of a body that write the same buffer at the same index."""
    if do.write.buffer.level != "smem":
        return ()
    others = (other for other in body if isinstance(other, Do) and other is not do)
    return tuple(other for other in others if same_stage(other.write, do.write))


def _ranges(
    outside: Mapping[str, Range],
    around: Sequence[Block],
    parameters: Mapping[str, Number],
    tiles: Range,
) -> dict[str, Range]:
    """Return the ranges of the variables within some blocks; ``tiles`` is that of their numbers."""
    ranges = dict(outside)

    def most(number: Number | str) -> tuple[Number, bool]:
        """Return a number, or the most that a tile value is, and whether that is all tiles'."""
        if not isinstance(number, str):
            return number, True
        if number in parameters:
            return parameters[number], True
        return outside[number].last, False

    for statement in around:
        match statement:
            case For(name, trips, _, _, start):
                end, known = most(trips)
                ranges[name] = Range(start, end - 1, known)
            case When(Affine(constant, ((name, 1),)), bound) if name in ranges:
                end, known = most(bound)
                limit, old = end - 1 - constant, ranges[name]
                end = select(limit < old.last, limit, old.last)
                ranges[name] = Range(old.first, end, old.exact and known)
            case When(Affine(least, ()), str(name)) if name in ranges:
                ranges[name] = replace(ranges[name], first=least + 1)  # what counts is 0 or more
            case When(index):
                for name, _ in index.terms:
                    if name in ranges:
                        old = ranges[name]
                        ranges[name] = Range(old.first, old.last, exact=False)
            case _:
                ranges |= dict.fromkeys(statement.binds, tiles)
    return ranges


def _room(around: Sequence[Block]) -> tuple[tuple[str, str, Number], ...]:
    """Return how far variables stay below numbers with a name, by loops to them and guards."""
    found: dict[tuple[str, str], Number] = {}
    for statement in around:
        match statement:
            case For(name, str(bound)):
                found[name, bound] = 1
            case When(Affine(constant, ((name, 1),)), str(bound)):
                known = found.get((name, bound), constant + 1)
                found[name, bound] = select(known < constant + 1, constant + 1, known)
    return tuple((*names, least) for names, least in found.items())


def moves(number: Number) -> bool:
    """Return False for a step that is the int 0, whatever was chosen."""
    return not (isinstance(number, int) and number == 0)


def origin_of(
    context: Context, access: Access, dimension: int
) -> tuple[Number, list[tuple[str, Number]]]:
    """Return the constant and each variable's coefficient of an access's origin."""
    if not access.origin:
        return 0, []
    affine = access.origin[dimension]
    summed: dict[str, Number] = {}
    for name, coefficient in affine.terms:
        factor = context.number(coefficient)
        summed[name] = summed[name] + factor if name in summed else factor
    return affine.constant, [(n, c) for n, c in summed.items() if moves(c)]


def _counted_up(
    place: Place, constant: Number, terms: Sequence[tuple[str, Number]]
) -> tuple[Number, dict[str, Number]]:
    """Return an origin in which loops count up: step * (trips - 1 - k) takes the values step * k.

    >>> from types import SimpleNamespace
    >>> _counted_up(SimpleNamespace(counts=(("k", "trips"),)), -8, [("trips", 8), ("k", -8)])
    (0, {'k': 8})
    """
    steps = dict(terms)
    for name, trips in place.counts:
        step = steps.get(name, 0)
        if moves(step) and np.all(step < 0) and np.all(steps.get(trips, 0) == -step):
            constant = constant - step
            steps[name] = -step
            del steps[trips]
    return constant, steps


def last_origin(
    context: Context, place: Place, access: Access, dimension: int
) -> tuple[Number, Number | None]:
    """Return an origin's largest coordinate and its last variable's step (None if it has none).

    Coefficients are not negative.
    """
    total, steps = _counted_up(place, *origin_of(context, access, dimension))
    step: Number | None = None
    for name, coefficient in steps.items():
        if name in place.ranges:
            total = total + coefficient * place.ranges[name].last
            step = coefficient
        elif name in context.parameters:
            total = total + coefficient * context.parameters[name]
    return total, step


def first_origin(context: Context, place: Place, access: Access, dimension: int) -> Number:
    """Return an origin's smallest coordinate; loops without an iteration do not count."""
    total, terms = origin_of(context, access, dimension)
    steps = dict(terms)
    for name, bound, least in place.room:
        step = steps.get(name, 0)
        if moves(step) and np.all(step < 0) and np.all(steps.get(bound, 0) == -step):
            total = total - step * least
            del steps[name], steps[bound]
    for name, coefficient in steps.items():
        span = place.ranges.get(name)
        ends = (span.first, span.last) if span else (context.parameters.get(name, 0),) * 2
        total = total + coefficient * select(coefficient < 0, ends[1], ends[0])
    return total


def exactly_once(modes: Sequence[tuple[Number, Number]]) -> tuple[Truth, Number]:
    """Return whether modes (extent, step) are a mixed radix, and how many they count.

    A mode with step 0 does not count.
    """
    holds: Truth = True
    count: Number = 1
    for i, (extent, step) in enumerate(modes):
        below: Number = 1
        for j, (other_extent, other_step) in enumerate(modes):
            if j != i:
                under = (other_step < step) if j > i else (other_step <= step)
                below = below * select(under & (other_step > 0), other_extent, 1)
        holds = holds & ((extent == 1) | (step == 0) | (step == below))
        count = count * select(step > 0, extent, 1)
    return holds, count


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition of a law: whether it holds, and what to say where it does not.

    ``text`` is a format string for ``values``, which are filled in only to report a violation.
    ``unproved``: that nothing is known to be wrong, but that it is not proved to be right.
    """

    holds: Truth
    text: str
    values: tuple[object, ...] = ()
    unproved: bool = False

    def __str__(self) -> str:
        """Fill the text in."""
        return self.text.format(*self.values)
