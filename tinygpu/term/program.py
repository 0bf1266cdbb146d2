"""The term: one program, read by all four interpretations.

A program is what one CTA does, over a grid.  It has *buffers* (a level, a shape, strides, stages),
*parameters* (expressions of the sizes, known at launch), *roles* (how many warps, and a body) and
*statements*,

    Do, Exit, and For, ForTile, When, Elect with a body          what is done
    Sync, Commit, WaitGroup, Wait, Arrive, Fence                 what comes after what

of ``statement.py``.  Where a value lives, and which value it is, is said by the accesses of a
``Do``: ``access_map.py``.

**Who does it.**  ``Instruction.issuer`` says who executes a ``Do``: each thread on values of its
own ("thread"), a warp's lanes together ("warp"), or one thread (TMA, inside an ``Elect``).  A
role's copy of 128 threads ("warpgroup") multiplies by the digits of its threads and of their
values (``digits.py``), or moves rows of tensor memory, which the buffer's ``fragment`` shares out.

**Numbers.**  Every extent, stride, flag and coefficient is an int; while a whole space is scored it
is an array over the candidates instead (one array axis a decision, so it has the length 1 wherever
it does not depend on one).  Code that builds programs therefore computes with numbers, by
arithmetic and ``select``, but does not branch on them.

>>> from tinygpu.isa.instructions import INSTRUCTIONS
>>> held = Access(registers("held", "f32", 4), ((1,),))
>>> print(Do(INSTRUCTIONS["mov"], held, (Immediate(0.0),), values=(4,)))
held = mov(0.0) x 4

Source: ``docs/model.md``, section "Terms".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from tinygpu.errors import ProgramError, nearest
from tinygpu.numbers import Number, Truth
from tinygpu.term.access_map import (
    Access,
    Affine,
    Buffer,
    Immediate,
    Predicate,
    Scalar,
    counted,
    number_text,
    registers,
    span,
    var,
)
from tinygpu.term.expression import TAKES, Bounds, Expression, Value, alike, bounds, lookups
from tinygpu.term.operation import LARGEST_SIZE, Operation
from tinygpu.term.statement import (
    Arrive,
    Barrier,
    Block,
    Body,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    RingUse,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    changed,
    each,
    walked,
)

__all__ = [
    "Access",
    "Affine",
    "Arrive",
    "Axis",
    "Barrier",
    "Block",
    "Body",
    "Buffer",
    "Commit",
    "Do",
    "Elect",
    "Exit",
    "Fence",
    "For",
    "ForTile",
    "Immediate",
    "Predicate",
    "Program",
    "RingUse",
    "Role",
    "Scalar",
    "Statement",
    "Sync",
    "Wait",
    "WaitGroup",
    "When",
    "buffers_of",
    "changed",
    "counted",
    "each",
    "registers",
    "same_place",
    "same_stage",
    "select",
    "span",
    "var",
    "walk",
    "walked",
]

_N = TypeVar("_N", bool, int, Truth, Number)


Values = Mapping[str, tuple[str, ...]]  # tile values in scope, each with the variables of its loop
_ADDRESSING, _GUARDS = ("pointer", "i32", "i64"), ("each", "tile")
_PREDICATED = ("fma", "alu", "sfu")  # units
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@dataclass(frozen=True, slots=True)
class Role:
    """Warps that run one body: ``copies`` sets of ``threads``, numbered by the variable ``copy``.

    ``registers`` of a thread are asked for by setmaxnreg where the body begins (0: none are).
    """

    name: str
    threads: int
    body: Body
    copies: int = 1
    copy: str = ""
    registers: int = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """A grid axis: its variable and how many CTAs stand along it; ``down``: walked from its end."""

    var: str
    extent: Expression
    down: bool = False

    def __str__(self) -> str:
        return f"{self.var} < {self.extent}{' down' * self.down}"


@dataclass(frozen=True, slots=True)
class Program:
    """A term of a machine.

    ``grid``: axes, slowest first; the last two are walked in groups of ``raster`` along the first
    of them (1: row by row).  ``specialised``: sizes are baked into the code, not parameters.
    ``zeroed``: the output is cleared before the launch.  ``addressing`` of gmem: "pointer"
    (stepped), or "i32"/"i64" (recomputed at each access).  ``guards``: "each" access to gmem asks
    whether it is inside, or a CTA asks first whether the whole "tile" is, and then none does.
    ``ctas_per_sm``: what the registers are limited for (``.minnctapersm``).  ``at_most``: sizes
    beyond which the term would leave elements out, because it covers an axis by statements and not
    by a loop or the grid.
    ``cluster``: the variables of a CTA's rank in its cluster, the first one fastest, and how many
    CTAs there are along each; the grid then counts clusters.  ``persistent``: as many clusters as
    fit the device are launched, and share the tiles (``ForTile``); else one for each tile.
    ``snake``: a cluster's every second tile is counted from the other end of its round.
    ``zigzag``: the last axis is walked back in every second group, so counted that the last group
    is not: tiles in turn differ little then, also from one group to the next.
    ``early``: it may start while the kernel before it ends, and waits for that one's results
    before it reads or writes any (programmatic dependent launch, law ``early``).  Its wait is for
    the kernel before it alone.  So that one has to wait itself before it lets dependents start, as
    every kernel of this project does: after a kernel from elsewhere that triggers without having
    waited, what came earlier still may write.
    """

    name: str
    operation: Operation
    buffers: tuple[Buffer, ...]
    parameters: tuple[tuple[str, Expression], ...]
    grid: tuple[Axis, ...]
    roles: tuple[Role, ...]
    raster: int = 1
    specialised: bool = False
    zeroed: bool = False
    addressing: str = "pointer"
    guards: str = "each"
    ctas_per_sm: int = 1
    at_most: tuple[tuple[str, int], ...] = ()
    barriers: tuple[Barrier, ...] = ()
    cluster: tuple[tuple[str, int], ...] = ()
    persistent: bool = False
    early: bool = False
    snake: bool = False
    zigzag: bool = False

    def __post_init__(self) -> None:
        self._distinct()
        self._fields()
        self._resolve()
        seen: set[int] = set()  # what is declared is mostly used by identity, and often
        clusters = dict(self.cluster)
        for statement, _ in walk(self):
            if fault := _fault(statement):
                raise ProgramError(f"program {self.name}: {statement}: {fault}")
            for access in statement.accesses:
                assert isinstance(statement, (Do, Exit))
                if id(access.buffer) not in seen:
                    self._declares(statement, "buffer", access.buffer, self.buffers)
                    seen.add(id(access.buffer))
                ctas, peer = clusters.get(access.buffer.home, 1), access.peer
                alone = isinstance(peer, int) and not peer  # as most are
                if not alone and (_below(peer, 0) or _below(ctas - 1, peer)):
                    raise ProgramError(
                        f"program {self.name}: {statement}: there is no CTA {access.peer} along "
                        f"{access.buffer.home}; choose one of {number_text(ctas)}"
                    )
                if access.outside and not _loads(statement):
                    raise ProgramError(
                        f"program {self.name}: {statement} gives {access.outside} outside; "
                        "only ld.global of a thread's own values can: others give 0"
                    )
                many = len(access.value), len(access.thread)
                if many != (whole := (len(statement.values), len(statement.threads))):
                    for steps, extents in zip(many, whole, strict=True):
                        if steps and steps != extents:
                            raise ProgramError(
                                f"program {self.name}: {statement}: {access.buffer.name} has steps "
                                f"for {steps} extents, not {extents}; give one for each"
                            )
            if not isinstance(statement, Do) or statement.signal:
                for ring, *_ in statement.uses:
                    if isinstance(ring, Barrier):
                        self._declares(statement, "barrier", ring, self.barriers)

    def _lies(self, buffer: Buffer) -> None:
        """Raise ProgramError unless an array lies in pages where the operation says so."""
        wanted = self.operation.pages_of(buffer.name)
        said = f"in pages of {wanted.size} by {wanted.table}" if wanted else "in one piece"
        if buffer.pages != wanted:
            raise ProgramError(
                f"program {self.name}: {buffer.name} lies {said}, by its operation, and the term "
                "says otherwise; give the buffer the operation's pages"
            )
        if wanted and wanted.pitch not in dict(self.parameters):
            raise ProgramError(
                f"program {self.name}: {buffer.name} lies {said}, and no parameter {wanted.pitch} "
                f"says how far rows of {wanted.table} are apart; add it"
            )

    def _declares(
        self,
        statement: Statement,
        kind: str,
        used: Buffer | Barrier,
        declared: tuple[Buffer, ...] | tuple[Barrier, ...],
    ) -> None:
        """Raise ProgramError unless a buffer or barrier is, in all it says, a declared one."""
        for one in declared:
            if one is used:
                return
            if one.name == used.name:
                if differs := _difference(one, used):
                    raise ProgramError(
                        f"program {self.name}: {statement} uses {kind} {used.name} with {differs}; "
                        f"give the statement the {kind} that the program declares"
                    )
                return
        raise ProgramError(
            f"program {self.name}: {statement} uses {kind} {used.name}, which the program does not "
            f"declare; add it to {kind}s"
        )

    def _distinct(self) -> None:
        """Raise ProgramError for a name that is no identifier, or that two of a kind have."""
        kinds = (
            (
                "buffers and barriers",
                [b.name for b in self.buffers] + [b.name for b in self.barriers],
            ),
            ("roles", [role.name for role in self.roles]),
            ("axes", [a.var for a in self.grid] + [name for name, _ in self.cluster]),
        )
        for kind, names in kinds:
            if len(set(names)) != len(names):
                raise ProgramError(f"program {self.name}: two {kind} share a name in {names}")
        for name in (*kinds[0][1], *kinds[2][1]):
            self._identifier(name)
        for name, _ in self.cluster:
            if name in ("cta", "cluster"):
                raise ProgramError(
                    f"program {self.name}: an axis of the cluster is called {name}, which says "
                    "whom an arrival reaches; call it otherwise, as rank_m"
                )

    def _fields(self) -> None:
        """Raise ProgramError for a word that is unknown, or a number that is too small."""
        for what, word, words in (
            ("addressing", self.addressing, _ADDRESSING),
            ("guards", self.guards, _GUARDS),
        ):
            if isinstance(word, str) and word not in words:
                raise ProgramError(f"program {self.name}: {what} {word}; {nearest(word, words)}")
        if not self.roles:
            raise ProgramError(f"program {self.name}: no role; give it one, whose body it is")
        counts = [("raster", self.raster), ("ctas_per_sm", self.ctas_per_sm)]
        for role in self.roles:
            counts += [
                (f"{role.name}'s threads", role.threads),
                (f"{role.name}'s copies", role.copies),
            ]
        counts += [(f"{b.name}'s stages", b.stages) for b in self.buffers]
        counts += [(f"{b.name}'s stages", b.stages) for b in self.barriers]
        counts += [(f"{b.name}'s copies", b.copies) for b in self.buffers]
        counts += [(f"the cluster's {name}", extent) for name, extent in self.cluster]
        for what, number in counts:
            if _below(number, 1):
                raise ProgramError(f"program {self.name}: {what}: {number}; it has to be 1 or more")
        copied = {b.name for b in self.buffers if not isinstance(b.copies, int) or b.copies > 1}
        for role in self.roles if copied else ():
            for buffer in buffers_of(role.body):
                if buffer.name in copied and np.all(
                    (buffer.copies != 1) & (buffer.copies != role.copies)
                ):
                    raise ProgramError(
                        f"program {self.name}: {buffer.name} has {buffer.copies} copies, and "
                        f"{role.name}, which uses it, {role.copies}; give it as many, or 1 for all"
                    )

    def _identifier(self, name: str) -> None:
        if not _IDENTIFIER.fullmatch(name):
            raise ProgramError(
                f"program {self.name}: {name!r} is no name; a name has letters, digits and _"
            )

    def _resolve(self) -> None:
        """Raise ProgramError for a name that is not in scope, or that is bound twice there.

        A bound, a trip count and a coefficient are ints, or name a size, a parameter or a tile
        value.  A loop may be called as a size, but then the size has no name inside it.
        """
        known, operands = {*self.operation.axes}, {o.name for o in self.operation.operands}
        arrays = {o.name for o in self.operation.indices}

        def need(what: object, names: Iterable[object], among: Collection[str]) -> None:
            for name in names:
                if isinstance(name, str) and name not in among:
                    others = nearest(name, sorted(among))
                    raise ProgramError(f"program {self.name}: {what} names {name!r}; {others}")

        def number(
            what: object, names: Iterable[object], variables: frozenset[str], values: Values
        ) -> None:
            named = [name for name in names if isinstance(name, str)]
            for name in named:
                if name not in known:
                    need(what, (name,), known | values.keys())
            for name in named:
                if name in variables:
                    raise ProgramError(
                        f"program {self.name}: {what} names {name!r}, here a loop's or the grid's "
                        "variable; a bound is an int, a size or a parameter: rename the loop"
                    )

        def look(what: str, expression: Expression, among: Collection[str]) -> None:
            read = [str(node.arguments[0]) for node in lookups(expression)]
            named = [n.name for n in expression.nodes() if isinstance(n, Value)]
            for name in (*read, *(n for n in named if n in arrays)):
                if name not in among or named.count(name) > read.count(name):
                    raise ProgramError(
                        f"program {self.name}: {what} = {expression} reads {name}; a tile value "
                        "looks up elements of an array of integers, and nothing else does"
                    )

        def bind(names: tuple[str, ...], variables: frozenset[str]) -> frozenset[str]:
            for name in names:
                self._identifier(name)
                if name in variables or names.count(name) > 1 or name in parameters:
                    raise ProgramError(
                        f"program {self.name}: a loop over {name} stands where another variable "
                        "has that name, or a parameter; give it its own"
                    )
            return variables.union(names)

        def resolve(body: Body, variables: frozenset[str], values: Values) -> None:
            for statement in body:
                for form in statement.forms:
                    for name, factor in form.terms:
                        if name not in variables and name not in known:
                            need(statement, (name,), known | variables | values.keys())
                        if isinstance(factor, str):
                            number(statement, (factor,), variables, values)
                            if name not in values.get(factor, (name,)):
                                raise ProgramError(
                                    f"program {self.name}: {statement} multiplies {name} by "
                                    f"{factor}, a tile value, which counts tiles alone; multiply "
                                    f"{' or '.join(values[factor])} by it"
                                )
                for name, factor in _placing(statement) if values else ():
                    if isinstance(factor, str) and factor in values:
                        raise ProgramError(
                            f"program {self.name}: {statement}: a place or a predicate has "
                            f"{factor}*{name}, a running number, which counts stages of rings "
                            "alone; take a variable of the grid"
                        )
                if isinstance(statement, Do):
                    if statement.where:
                        bound = [name for name, _ in statement.where.bound.terms]
                        need(f"{statement}: the predicate's bound", bound, known)
                    for read in statement.reads:
                        if isinstance(read, Scalar):
                            among = known if read.size else self.operation.scalars
                            need(statement, (read.name,), among)
                for guard in [g for a in statement.accesses if a.guard for g in a.guard]:
                    if isinstance(guard, str) and guard not in values:
                        raise ProgramError(
                            f"program {self.name}: {statement} is asked whether it is below "
                            f"{guard!r}, no tile value here; give a tile value, True or False"
                        )
                if numbers := statement.numbers:
                    number(statement, numbers, variables, values)
                if isinstance(statement, Do):
                    continue  # it binds nothing and has no body
                inside = bind(statement.binds, variables)
                if not isinstance(statement, ForTile):
                    resolve(statement.body, inside, values)
                    continue
                for name in statement.defines:
                    self._identifier(name)
                    taken_already = name in inside | grid | known | values.keys()
                    if taken_already or statement.defines.count(name) > 1:
                        raise ProgramError(
                            f"program {self.name}: tile value {name} has the name of a size, a "
                            "parameter, a variable or another value; give it its own"
                        )
                given = known | grid | arrays
                for name, expression in statement.values:
                    need(f"tile value {name}", expression.names(), given)
                    look(f"tile value {name}", expression, arrays)
                    given = given | {name}
                own = dict.fromkeys(statement.defines, statement.binds)
                resolve(statement.body, inside | grid, {**values, **own})

        for name, expression in self.parameters:
            need(f"parameter {name}", expression.names(), known)
            look(f"parameter {name}", expression, ())
            self._identifier(name)
            if name in known:
                raise ProgramError(f"program {self.name}: two parameters or sizes are {name}")
            known.add(name)
        for axis in self.grid:
            if f"grid_{axis.var}" in known:
                raise ProgramError(
                    f"program {self.name}: a parameter or size is grid_{axis.var}, as the code "
                    f"calls the extent of the grid's {axis.var}; rename it"
                )
        parameters = {name for name, _ in self.parameters}
        for axis in self.grid:
            need(f"grid axis {axis.var}", axis.extent.names(), known)
            look(f"grid axis {axis.var}", axis.extent, ())
        for buffer in self.buffers:
            need(f"buffer {buffer.name}", (*buffer.shape, *buffer.stride), known)
            if buffer.level == "gmem":
                need("its global memory", (buffer.name,), operands)
                self._lies(buffer)
        grid = bind(tuple(a.var for a in self.grid), frozenset())
        ranks = bind(tuple(name for name, _ in self.cluster), grid) - grid
        taken = isinstance(self.persistent, int) and bool(self.persistent)
        for role in self.roles:
            outside = bind((role.copy,) if role.copy else (), grid | ranks)
            resolve(role.body, outside - grid if taken else outside, {})
        self._agree()

    def _agree(self) -> None:
        """Raise ProgramError for a tile value that differs between loops, or may be negative."""
        defined: dict[str, Expression] = {}
        for loop in self._valued():
            for name, expression in loop.values:
                if not alike(defined.setdefault(name, expression), expression):
                    raise ProgramError(
                        f"program {self.name}: tile value {name} is {expression} in one loop over "
                        f"tiles and {defined[name]} in another; give it one value, or two names"
                    )
        least = self.least_values() if defined else {}
        for name, expression in defined.items():
            if _below(least[name], 0):
                raise ProgramError(
                    f"program {self.name}: tile value {name} = {expression} may be "
                    f"{number_text(least[name])}; it has to be 0 or more: take the maximum with 0"
                )

    def _valued(self) -> Iterator[ForTile]:
        """Yield the loops over tiles that have values."""
        for statement, _ in walk(self):
            if isinstance(statement, ForTile) and statement.values:
                yield statement

    @property
    def tile_values(self) -> dict[str, Expression]:
        """The tile values by name: a name has one expression in all loops over tiles."""
        return {name: one for loop in self._valued() for name, one in loop.values}

    @property
    def takes_tiles(self) -> bool:
        """Whether roles go through tiles, or wait for each other at barriers of their own."""
        return bool(self.barriers) or any(isinstance(s, ForTile) for s, _ in walk(self))

    @property
    def threads(self) -> int:
        """Threads in a CTA."""
        return sum(r.threads * r.copies for r in self.roles)

    @property
    def in_tmem(self) -> bool:
        """Whether a buffer lies in tensor memory."""
        return any(b.level == "tmem" for b in self.buffers)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA's buffers and barriers, and of tensor memory's address."""
        buffers = sum(b.bytes for b in self.buffers if b.level == "smem")
        address = 8 if self.in_tmem else 0
        return buffers + address + sum(8 * b.stages for b in self.barriers if not b.named)

    def parameter_values(
        self, sizes: Mapping[str, int], given: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Evaluate the launch parameters; the sizes are among the result, and groups' ends.

        The ends are those among the sizes, or else even ones.  ``given`` has parameters that are
        known already, as a leading dimension is.  Raises ProgramError for a size that the term does
        not cover.
        """
        for axis, most in self.at_most:
            if np.all(sizes[axis] > most):  # of a space: of every schedule
                raise ProgramError(
                    f"program {self.name}: {axis} is {sizes[axis]}; this term covers at most "
                    f"{most}: choose a schedule that covers more"
                )
        values: dict[str, Any] = dict(sizes)
        if groups := self.operation.groups:
            values[groups.ends] = groups.ends_of(sizes)
        if lengths := self.operation.lengths:
            values[lengths.name] = lengths.of(sizes)
        known = given or {}
        for name, expression in self.parameters:
            values[name] = known[name] if name in known else expression.evaluate(values)
        return values

    def least_values(self) -> dict[str, Number]:
        """Return what each size, parameter and tile value is at least, whatever the sizes.

        It is what the expressions prove, so that a parameter may never be as small; it may be
        negative.
        """
        ends: dict[str, Bounds] = dict.fromkeys(self.operation.axes, (1, LARGEST_SIZE))
        ends |= {o.name: (0, LARGEST_SIZE) for o in self.operation.indices}
        for name, expression in self.parameters:
            ends[name] = bounds(expression, ends)
        places = {a.var: (0, bounds(a.extent, ends)[1] - 1) for a in self.grid}
        found = {name: least for name, (least, _) in ends.items()}
        for name, (least, _) in self.value_bounds({**ends, **places}).items():
            found[name] = least
        return found

    def value_bounds(self, ends: Mapping[str, Bounds]) -> dict[str, Bounds]:
        """Return bounds of each tile value, given those of sizes, parameters and the grid."""
        found: dict[str, Bounds] = {}
        for name, expression in self.tile_values.items():
            found[name] = bounds(expression, {**ends, **found})
        return found

    def values_of_tiles(self, sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """Return each tile value in all tiles, the last axis of the grid fastest."""
        found = self.tile_values
        if not found:
            return {}
        extents = self.grid_extents(sizes)
        places = np.indices(extents).reshape(len(extents), -1)
        known: dict[str, Number] = dict(self.parameter_values(sizes))
        known |= {axis.var: place for axis, place in zip(self.grid, places, strict=True)}
        many = places.shape[1]
        for name, expression in found.items():
            known[name] = np.broadcast_to(expression.evaluate(known), many)
        return {name: np.asarray(known[name]).tolist() for name in found}

    def grid_extents(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return how many CTAs stand along each axis of the grid."""
        values = self.parameter_values(sizes)
        return tuple(axis.extent.evaluate(values) for axis in self.grid)

    def __str__(self) -> str:
        lines = [f"program {self.name}: {self.operation}"]
        lines += [f"  {b}" for b in (*self.buffers, *self.barriers)]
        lines += [f"  {name} = {expression}" for name, expression in self.parameters]
        axes = " x ".join(map(str, self.grid))
        how = ", persistent" * bool(self.persistent) + ", snake" * self.snake
        how += ", zigzag" * self.zigzag
        how += ", early" * bool(self.early)
        lines.append(f"  grid {axes}, raster {number_text(self.raster)}{how}")
        if self.cluster:
            lines.append(
                "  cluster " + " x ".join(f"{v} < {number_text(n)}" for v, n in self.cluster)
            )
        for role in self.roles:
            copies = f" x {number_text(role.copies)} ({role.copy})" if role.copy else ""
            regs = f", {number_text(role.registers)} registers each" if role.registers else ""
            lines.append(f"  {role.name}: {number_text(role.threads)} threads{copies}{regs}")
            lines += _show(role.body, "    ")
        return "\n".join(lines)


def _show(body: Body, indent: str) -> list[str]:
    lines: list[str] = []
    for statement in body:
        lines.append(f"{indent}{statement}{':' * isinstance(statement, Block)}")
        lines += _show(statement.body, indent + "  ")
    return lines


def _difference(declared: Buffer | Barrier, used: Buffer | Barrier) -> str:
    """Return the first field in which two buffers, or barriers, differ; "" if in none."""
    if type(declared) is not type(used):
        return f"type {type(used).__name__}, not {type(declared).__name__}"
    for field in fields(declared):
        one, other = getattr(declared, field.name), getattr(used, field.name)
        if not _same(one, other):
            return f"{field.name} {_texts(other)}, declared with {_texts(one)}"
    return ""


def _texts(value: object) -> str:
    """Return a field's value, numbers over a space as ranges."""
    if isinstance(value, tuple):
        return f"({', '.join(map(number_text, value))})"
    return number_text(value)


def same_place(one: Access, other: Access) -> bool:
    """Say whether two accesses are of the same cells of one stage of a buffer, value by value."""
    parts = (
        (a.buffer.name, a.value, a.thread, *((f.constant, f.terms) for f in (*a.origin, a.index)))
        for a in (one, other)
    )
    return one is other or _same(*parts)


def same_stage(one: Access, other: Access) -> bool:
    """Say whether two accesses are of one stage of a buffer."""
    parts = ((a.buffer.name, a.index.constant, a.index.terms) for a in (one, other))
    return _same(*parts)


def _same(one: Any, other: Any) -> bool:
    """Say whether two parts of a term are equal: ints, arrays over a space, tuples of them."""
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(np.array_equal(one, other))


def _placing(statement: Statement) -> Iterator[tuple[str, int | str]]:
    """Yield the terms that say where in a tile or an array it touches, and what it compares."""
    for form in (*(o for a in statement.accesses for o in a.origin), *statement.compared):
        yield from form.terms


def _below(number: Number, least: int) -> bool:
    """Say whether a number is too small; of a space: in every schedule."""
    return number < least if isinstance(number, int) else bool(np.all(number < least))


def _fault(statement: Statement) -> str:
    """Say what is wrong with a statement by itself; "" if nothing is."""
    counts: tuple[tuple[str, Number, int], ...] = ()
    if isinstance(statement, Do):
        counts = (("vector", statement.vector, 1),)
        if statement.lanes is not None:
            below, extent, residue = statement.lanes
            counts += (
                ("its lanes' divisor", below, 1),
                ("its lanes' extent", extent, 1),
                ("its lanes' residue", residue, 0),
            )
    elif isinstance(statement, ForTile):
        counts = (("step", statement.step, 1),)
    for what, number, least in counts:
        if _below(number, least):
            return f"{what}: {number}; it has to be {least} or more"
    return statement.wrong or (_misused(statement) if isinstance(statement, Do) else "")


def _misused(do: Do) -> str:
    """Say how a statement's operands are none of its instruction's; "" if they are."""
    how = do.instruction
    own = how.lower is not None or how.meaning is not None
    variant = do.variant or how.name
    if how.variants and variant not in how.variants:
        return f"variant {variant}; {nearest(variant, how.variants)}"
    if not own and len(do.reads) != (takes := TAKES[variant] if how.variants else 1):
        return f"{len(do.reads)} operands are read; {variant} takes {takes}"
    if how.reads and not (own or how.variants or isinstance(do.reads[0], Access)):
        return f"{do.reads[0]} is in no register or memory; set a register to it (mov)"
    for access in do.accesses:
        buffer, registers = access.buffer, access.buffer.level == "registers"
        levels = how.writes if access is do.write else how.reads or ("registers",)
        if buffer.level not in levels:
            return (
                f"{buffer.name} is in {buffer.level}; {how.name} takes {' or '.join(levels)} there"
            )
        if registers and any(isinstance(n, int) and n for steps in access.thread for n in steps):
            return f"registers are each thread's own; {buffer.name}'s thread steps have to be 0"
        if access.trimmed and how.unit != "tma":
            return f"{access}: only TMA leaves lines out; guard the access"
        if buffer.pages and (do.write is access or how.unit != "tma" or access.trimmed or own):
            return f"{buffer.name} lies in pages; TMA's loads alone look up in which"
    if not own:
        tensor = how.unit == "tensor" and how.of_tile
        for field, given, meant in (
            ("signal", do.signal is not None, how.completion == "mbarrier"),
            ("fresh", do.fresh is not None, tensor),
            ("multicast", do.multicast != "", how.unit == "tma" or tensor),
        ):
            if given and not meant:
                return f"{how.name} has no {field}; leave it out"
    if isinstance(do.across, int) and do.across and (how.unit != "shuffle" or how.folds):
        return f"{how.name} has no across; leave it out"
    if do.lanes is not None and how.issuer == "one":
        return "one thread issues it; leave its lanes out"
    return _predicated(do) if do.where else ""


def _predicated(do: Do) -> str:
    """Say why a statement cannot have its predicate; "" if it can."""
    how, where = do.instruction, do.where
    assert where is not None
    if (
        do.write.buffer.level != "registers"
        or how.lower
        or how.issuer != "thread"
        or how.crosses
        or how.unit not in _PREDICATED
    ):
        return f"{how.name} has no predicate; fma, alu, mufu and mov on a thread's own registers do"
    if do.write.buffer.dtype not in ("f32", "f64"):
        return f"{do.write.buffer.name} is {do.write.buffer.dtype}; a predicate is of f32 or f64"
    for what, extents, steps in (
        ("values", do.values, where.value), ("threads", do.threads, where.thread),
    ):  # fmt: skip
        if steps and len(steps) != len(extents):
            return f"its predicate has {len(steps)} steps for {len(extents)} extents of {what}"
    return ""


def _loads(statement: Do | Exit) -> bool:
    """Return whether it is a load of each thread's own values."""
    return isinstance(statement, Do) and statement.instruction.loads


def select(condition: Truth, then: _N, otherwise: _N) -> _N:
    """Return ``then`` where the condition holds, else ``otherwise``: ints or arrays."""
    if isinstance(condition, bool | np.bool_):
        return then if condition else otherwise
    return np.where(condition, then, otherwise)  # type: ignore[return-value]  # numbers of a term


def buffers_of(body: Body) -> tuple[Buffer, ...]:
    """Return the buffers that statements use, in order of first use."""
    found = {id(a.buffer): a.buffer for statement in each(body) for a in statement.accesses}
    distinct: list[Buffer] = []
    for b in found.values():
        if not any(b.name == f.name and b == f for f in distinct):
            distinct.append(b)
    return tuple(distinct)


def walk(program: Program) -> Iterator[tuple[Statement, tuple[Block, ...]]]:
    """Yield every statement with the loops and guards around it, outermost first."""
    for role in program.roles:
        yield from walked(role.body)
