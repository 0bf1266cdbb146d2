"""One run of a legal term, all CTAs at once: what it computes, and not whether it may.

A legal term computes the same in every run (``docs/model.md``, section "Meaning"), so one is
enough.  In the *canonical run* all CTAs, all copies of a role and all threads execute a statement
together, as one operation on arrays of the shape (values, threads, instances); an *instance* is a
copy of a role in a CTA.  Copies land at once, and whoever waits finds what it waits for: of a term
of one role because its threads run in program order, of one with mbarriers because all writes of a
ring index come before its reads.  So rings have a stage for each index here, and a role runs to its
end before those that read what it writes.  Where barriers order two writes of one cell at one
index, there is no such run.

Nothing is looked for that legality says: no race, no deadlock.  Raises ``NotCanonicalError`` where
the order cannot be found, or a value is read that was not written: ``tinygpu.meaning.interpret``
takes such a term.

>>> from tinygpu.isa.algebra import FLOATS
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul(), Chosen(LADDER["shared"]))
>>> inputs = {"a": np.ones((33, 7)), "b": np.ones((7, 40))}
>>> output, findings, _ = canonical_run(program, {"m": 33, "n": 40, "k": 7}, inputs, {}, FLOATS)
>>> output["c"].shape, float(output["c"].min()), float(output["c"].max()), findings
((33, 40), 7.0, 7.0, ())

Source: ``docs/model.md``, section "Meaning"; the law R of ``docs/model-concurrency.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod
from typing import Any, assert_never, cast

import numpy as np

from tinygpu.errors import TinyGpuError
from tinygpu.isa.algebra import Algebra
from tinygpu.isa.memory import DTYPES
from tinygpu.isa.mma_sync import products
from tinygpu.isa.wgmma import joined, rows_of
from tinygpu.meaning.cluster import Run
from tinygpu.meaning.execution import folded, is_warps
from tinygpu.meaning.interpret import looked_up, unwritten
from tinygpu.meaning.race import Cells, Finding, GlobalArray, Kind
from tinygpu.meaning.touched import OnChip, Touched, Toucher, compared, coordinates, extent
from tinygpu.meaning.turns import tiles_of
from tinygpu.numbers import Array, Booleans, Floats, Integers, Number
from tinygpu.term.digits import depth_modes, held_factor, spans, together
from tinygpu.term.pages import POOL
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Buffer,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Immediate,
    Program,
    Role,
    Scalar,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    counted,
    each,
    walk,
)

__all__ = ["NotCanonicalError", "canonical_run"]

Env = Mapping[str, int | Integers]
_ONE = np.zeros(1, np.int64)
_FLAT = 3  # dimensions: values, threads, instances


class NotCanonicalError(TinyGpuError):
    """The term has no canonical run: its meaning is asked of the interpreter."""


def canonical_run(
    program: Program,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    scalars: Mapping[str, float],
    algebra: Algebra,
    on_chip: OnChip | None = None,
) -> tuple[dict[str, Floats], tuple[Finding, ...], str]:
    """Return the outputs; what was found: writes outside, twice, or never; and what tiles share.

    That is a buffer of which a tile touches an index that another tile has touched, "" if none.
    ``inputs`` and ``scalars`` are elements of the algebra already.  ``on_chip``: what earlier runs
    of this very program found, to which this one adds.
    """
    operation, values = program.operation, program.parameter_values(sizes)
    values |= looked_up(operation, inputs)
    arrays = {
        o.name: GlobalArray(
            algebra.round(DTYPES[o.dtype], inputs[o.name]),
            DTYPES[o.dtype],
            output=False,
            zeroed=False,
        )
        for o in operation.inputs
    }
    shapes = operation.shapes(sizes)
    for out in operation.outputs:
        empty = np.full(shapes[out.name], 0.0 if program.zeroed else np.nan)
        arrays[out.name] = GlobalArray(
            empty, DTYPES[out.dtype], output=True, zeroed=program.zeroed, algebra=algebra
        )
    random = np.random.default_rng(0)
    run = Run(program, values, scalars, arrays, Toucher(values, on_chip), random, "early", algebra)
    grid = _grid_of(program, sizes)
    memory: dict[tuple[str, int], Floats] = {}
    written: dict[tuple[str, int], Booleans] = {}
    touched: dict[tuple[str, int], Integers] = {}
    shared = ""
    with np.errstate(all="ignore"):
        for role in _in_order(program):
            work = _Work(run, grid, role, memory, written, touched)
            work.statements(role.body, _everyone(run, grid, role))
            shared = shared or work.shared
    rounded: dict[str, Floats] = {}
    lost: list[Finding] = []
    for out in operation.outputs:
        array = arrays[out.name]
        rounded[out.name] = algebra.round(array.dtype, array.flat).reshape(shapes[out.name])
        lost += unwritten(program, out.name, array)
    return rounded, (*run.found.values(), *lost), shared


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """The CTAs: each one's cluster and ranks; the tiles in order, and which a cluster has."""

    ctas: int
    many: int
    cluster: Integers
    ranks: Mapping[str, Integers]
    places: Mapping[str, Integers]
    tiles: Mapping[str, Integers]
    rounds: Integers
    count: Integers
    persistent: bool

    def along(self, axis: str) -> list[Integers]:
        """Return for each member of a set of CTAs along an axis who that is, of every CTA."""
        free = axis.split()
        alike = np.ones((self.ctas, self.ctas), np.bool_)
        for one, numbers in {"": self.cluster, **self.ranks}.items():
            if one not in free:
                alike &= numbers[:, None] == numbers[None, :]
        return list(np.nonzero(alike)[1].reshape(self.ctas, -1).T)


def _grid_of(program: Program, sizes: Mapping[str, int]) -> _Grid:
    """Launch every CTA; of a persistent term so few that each has two tiles or more, if it can."""
    extents = program.grid_extents(sizes)
    tiles = tiles_of(program, sizes)
    steps = [int(s.step) for s, _ in walk(program) if isinstance(s, ForTile)]
    persistent = bool(program.persistent)
    clusters = max(1, len(tiles) // (2 * max(steps, default=1))) if persistent else len(tiles)
    names, wide = [v for v, _ in program.cluster], [int(n) for _, n in program.cluster]
    ranks = np.array([r[::-1] for r in product(*(range(n) for n in wide[::-1]))], np.int64)
    ranks = ranks.reshape(prod(wide), len(names))
    cluster = np.repeat(np.arange(clusters), len(ranks))
    rows = np.array(tiles, np.int64).reshape(len(tiles), len(extents))
    by_name = {a.var: rows[:, d] for d, a in enumerate(program.grid)}
    rounds = np.arange(-(-len(tiles) // clusters) * clusters).reshape(-1, clusters)
    if program.snake:
        rounds[1::2] = rounds[1::2, ::-1]
    return _Grid(
        ctas=cluster.size,
        many=len(tiles),
        cluster=cluster,
        ranks={n: np.tile(ranks[:, d], clusters) for d, n in enumerate(names)},
        places={} if persistent else {n: x[cluster] for n, x in by_name.items()},
        tiles=by_name,
        rounds=rounds,
        count=(rounds < len(tiles)).sum(axis=0)[cluster],
        persistent=persistent,
    )


def _in_order(program: Program) -> list[Role]:
    """Return the roles, each after those that write what it reads."""
    if len(program.roles) > 1 and not program.barriers:
        raise NotCanonicalError(f"{program.name}: several roles, ordered by bar.sync")
    writes, reads = {}, {}
    for role in program.roles:
        written: set[str] = set()
        read: set[str] = set()
        for use in (use for statement in each(role.body) for use in statement.uses):
            if isinstance(use.ring, Buffer) and use.ring.level in ("smem", "tmem"):
                (written if use.how == "write" else read).add(use.ring.name)
        writes[role.name], reads[role.name] = written, read
    left, found = list(program.roles), []
    while left:
        ready = [
            r for r in left if not any(writes[o.name] & reads[r.name] for o in left if o is not r)
        ]
        if not ready:
            raise NotCanonicalError(f"{program.name}: roles that read what each other writes")
        found.append(ready[0])
        left.remove(ready[0])
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Instances that execute a statement together: which, and their variables' values.

    A value is an int where all have the same, else an array.  ``leader``: only their first thread.
    """

    who: Integers
    env: Env
    whole: bool
    leader: bool = False

    def part(self, chosen: Integers | Booleans, **more: Number) -> _Group:
        """Return those that are chosen, by a mask or by numbers."""
        env = {n: x[chosen] if isinstance(x, np.ndarray) else x for n, x in self.env.items()}
        env = {n: _one(x) for n, x in (env | more).items()}
        return _Group(self.who[chosen], env, False, self.leader)

    def bind(self, **more: Number) -> _Group:
        """Give variables values."""
        env = {**self.env, **{n: _one(x) for n, x in more.items()}}
        return _Group(self.who, env, self.whole, self.leader)


def _run_of(cells: Integers) -> slice | Integers:
    """Return cells that follow one another as a slice, of which NumPy makes no copy."""
    first, last = int(cells[0]), int(cells[-1]) + 1
    if last - first == cells.size and (cells == np.arange(first, last)).all():
        return slice(first, last)
    return cells


def _one(x: Number) -> int | Integers:
    """Return an int for an array of equal numbers."""
    if isinstance(x, np.ndarray):
        first = x[0]
        return int(first) if (x == first).all() else x
    return int(x)


def _everyone(run: Run, grid: _Grid, role: Role) -> _Group:
    copies = int(role.copies)
    who = np.arange(grid.ctas * copies)
    per_cta = {**grid.ranks, **grid.places}
    env = {n: _one(np.tile(x, copies)) for n, x in per_cta.items()}
    if role.copy:
        env[role.copy] = _one(who // grid.ctas)
    return _Group(who, {**run.numbers, **env}, True)


@dataclass(slots=True, eq=False)
class _Work:
    """A role at work in all CTAs.  ``memory``: stages on chip by name and ring index.

    ``written``: which of their cells somebody has written, in a term with barriers.
    ``touched``: for each instance of a stage the tile that used it first.
    """

    run: Run
    grid: _Grid
    role: Role
    memory: dict[tuple[str, int], Floats]
    written: dict[tuple[str, int], Booleans]
    touched: dict[tuple[str, int], Integers]
    shared: str = ""
    tile: int = 0
    held: dict[tuple[str, int], Floats] = field(default_factory=dict)
    alive: Booleans | None = None
    places: dict[tuple[int, int, bool], Any] = field(default_factory=dict)
    narrow: dict[tuple[int, int], Do] = field(default_factory=dict)
    wholes: dict[int, tuple[Do, tuple[tuple[int, ...], tuple[int, ...]]]] = field(
        default_factory=dict
    )
    cut: dict[tuple[object, ...], list[int]] = field(default_factory=dict)
    tags: dict[str, Integers] = field(default_factory=dict)

    @property
    def instances(self) -> int:
        """How many there are."""
        return self.grid.ctas * int(self.role.copies)

    @property
    def threads(self) -> int:
        """Threads of an instance."""
        return int(self.role.threads)

    def find(self, kind: Kind, do: Statement, text: str) -> None:
        """Record a finding unless there is one of this kind."""
        finding = Finding(kind, str(do), f"{self.run.program.name}: {do} {text}")
        self.run.found.setdefault(kind, finding)

    def statements(self, body: tuple[Statement, ...], group: _Group) -> None:
        """Execute statements in program order."""
        for s in body:
            match s:
                case For(var, trips, inner, _, start):
                    end = group.env[trips] if isinstance(trips, str) else int(trips)
                    for i in range(start, int(np.max(end))):
                        mine = group if np.all(end > i) else group.part(np.flatnonzero(end > i))
                        self.statements(inner, mine.bind(**{var: i}))
                case ForTile():
                    self.tiles(s, group)
                case When(index, bound, inner):
                    limit = group.env[bound] if isinstance(bound, str) else int(bound)
                    holds = index.evaluate(group.env) < limit
                    if np.all(holds):
                        self.statements(inner, group)
                    elif np.any(holds):
                        self.statements(inner, group.part(np.asarray(holds)))
                case Elect(inner):
                    leader = _Group(group.who, group.env, group.whole, leader=True)
                    self.statements(inner, leader)
                case Do():
                    for part in self.alike(s, group):
                        self.execute(s, part)
                case Exit():
                    self.leave(s, group)
                case Sync() | Commit() | WaitGroup() | Wait() | Arrive() | Fence():
                    pass
                case _:
                    assert_never(s)

    def tiles(self, loop: ForTile, group: _Group) -> None:
        """Execute the body for each tile, together for those that are at the same one."""
        start = loop.start.evaluate(group.env)
        own = group.who % self.grid.ctas
        count, rounds = self.grid.count[own], self.grid.rounds
        found = loop.values_at({**self.run.values, **self.grid.tiles})
        values = {n: np.full(self.grid.many, x, np.int64) for n, x in found.items()}
        before = {name: np.zeros(self.grid.many, np.int64) for name in values}
        taken = {name: np.zeros(group.who.size, np.int64) for name in values}
        for name, of in before.items():
            for earlier, later in pairwise(rounds):
                there = later < self.grid.many
                of[later[there]] = (of + values[name])[earlier[there]]
        turn = 0
        while True:
            tile = np.broadcast_to(start + turn * int(loop.step), group.who.shape)
            if not (tile < count).any():
                return
            for t in np.unique(tile[tile < count]).tolist():
                chosen = np.flatnonzero((tile == t) & (tile < count))
                place = rounds[t, self.grid.cluster[own[chosen]]]
                at = {n: x[place] for n, x in self.grid.tiles.items()}
                more = {loop.tile: t, loop.turn: turn, **at}
                for name, number in values.items():
                    more |= {name: number[place], counted(loop.tile, name): before[name][place]}
                    more[counted(loop.turn, name)] = taken[name][chosen]
                    taken[name][chosen] += number[place]
                self.tile = t
                if chosen.size == group.who.size:
                    self.statements(loop.body, group.bind(**more))
                else:
                    self.statements(loop.body, group.part(chosen, **more))
            turn += 1

    def alike(self, do: Do, group: _Group) -> Iterator[_Group]:
        """Divide a group where it uses different places on chip."""
        wanted: list[Affine] = [] if do.fresh is None else [do.fresh]
        for access in do.accesses:
            if access.buffer.level != "gmem":
                wanted += [access.index, *access.origin]
        varying = [x for a in wanted if isinstance(x := _one(a.evaluate(group.env)), np.ndarray)]
        if not varying:
            yield group
            return
        _, kinds = np.unique(np.stack(varying), axis=1, return_inverse=True)
        kinds = kinds.ravel()
        for kind in range(int(kinds.max()) + 1):
            yield group.part(np.flatnonzero(kinds == kind))

    def leave(self, s: Exit, group: _Group) -> None:
        """Let threads leave."""
        _, taken = self.gmem(s, s.access, group, tile=False)
        if self.alive is None:
            self.alive = np.ones((self.threads, self.instances), np.bool_)
        inside = np.broadcast_to(taken, (len(taken), self.threads, group.who.size)).any(axis=0)
        self.alive[:, group.who] &= inside

    # A statement

    def execute(self, do: Do, group: _Group) -> None:
        """Execute a Do: a product of tiles, or a move or an operator of values."""
        if not extent(do.values):
            return
        if do.instruction.unit == "tensor" and do.instruction.proxy == "async":
            self.multiply(do, group)
        else:
            self.plain(do, group)

    def plain(self, do: Do, group: _Group) -> None:
        """Read, compute, round and write, by all threads, on all values."""
        tile = do.of_tile
        mine = self.mine(do, group, tile)
        if not mine.size:
            return
        algebra, size = self.run.algebra, extent(do.values)
        for low, high in pairwise(self.cuts(do, group, tile, size)):
            modes = _modes(do, low, high)
            arguments = [self.read(do, r, group, mine, tile, low, high, modes) for r in do.reads]
            if do.instruction.warp_product:
                result: Number = self.warps(do, arguments)
            else:
                result = do.result(*arguments, algebra=algebra)
            rounded = algebra.round(do.write.buffer.type, np.asarray(result))
            rounded = rounded.astype(np.float64, copy=False)
            if modes and rounded.ndim:
                wide = np.broadcast_to(rounded, (*modes, *rounded.shape[-2:]))
                rounded = wide.reshape(-1, *rounded.shape[-2:])
            if do.instruction.crosses:
                rounded = self.shuffled(do, rounded, mine)
            self.write(do, rounded, group, mine, tile, low, high)

    def mine(self, do: Do, group: _Group, tile: bool) -> Integers:
        """Return the threads that take part."""
        if tile:
            return _ONE
        numbers = np.arange(1 if group.leader else self.threads)
        if do.lanes is not None:
            below, period, residue = do.lanes
            numbers = numbers[numbers // below % period == residue]
        return numbers

    def cuts(self, do: Do, group: _Group, tile: bool, size: int) -> list[int]:
        """Return where the values have to be cut: before a read of what the same part writes."""
        if do.write.buffer.level != "registers" or do.instruction.warp_product:
            return [0, size]
        same = [
            r
            for r in do.reads
            if isinstance(r, Access)
            and r.buffer.level == "registers"
            and r.buffer.name == do.write.buffer.name
        ]
        if not same:
            return [0, size]
        cells = [self.cells(do, a, group, tile).cell[:, 0] for a in (do.write, *same)]
        known = (id(do), *(tuple(c[[0, -1]].tolist()) for c in cells))
        if known not in self.cut:
            edges, written = [0], set[int]()
            for v, (target, *sources) in enumerate(zip(*(c.tolist() for c in cells), strict=True)):
                if not written.isdisjoint(sources):
                    edges.append(v)
                    written = set()
                written.add(target)
            self.cut[known] = [*edges, size]
        return self.cut[known]

    def warps(self, do: Do, arguments: list[Floats]) -> Floats:
        """Multiply in the warps of all instances."""
        threads, many = arguments[0].shape[1:]
        flat = [x.transpose(0, 2, 1).reshape(len(x), -1) for x in arguments]
        blocks = do.instruction.blocks_of(do.accesses[0].buffer.dtype)
        found = products(blocks, do.values, *flat, algebra=self.run.algebra)
        return found.reshape(-1, many, threads).transpose(0, 2, 1)

    def shuffled(self, do: Do, values: Floats, mine: Integers) -> Floats:
        """Return what lanes get of one another: the values of those ``across``, or a fold."""
        if do.instruction.folds:
            if not is_warps(mine):
                raise NotCanonicalError(f"{do}: a lane that takes no part")
            held = np.broadcast_to(values, (len(values), mine.size, values.shape[2]))
            return folded(do, held.swapaxes(1, 2), self.run.algebra).swapaxes(1, 2)
        partner = mine ^ int(do.across)
        at = np.searchsorted(mine, partner).clip(0, mine.size - 1)
        if (mine[at] != partner).any() or (partner // 32 != mine // 32).any():
            raise NotCanonicalError(f"{do}: a lane that takes no part")
        every: Floats = np.broadcast_to(values, (len(values), mine.size, values.shape[2]))[:, at]
        return every

    # Where values are

    def cells(self, do: Do, access: Access, group: _Group, tile: bool) -> Touched:
        """Return the cells on chip, of one stage; the group's origins agree."""
        numbers = _ONE if tile else np.arange(1 if group.leader else self.threads)
        key = "tile" if tile else (self.role.name, group.leader)
        touched = self.run.touch.on_chip(do, access, numbers, key, _plain(group.env, access))
        for fault in touched.faults:
            self.find(fault.kind, do, fault.text)
        return touched

    def rows(self, access: Access, group: _Group, *, writes: bool) -> Integers:
        """Return which instance of a shared buffer each instance of the group uses."""
        buffer, own = access.buffer, group.who % self.grid.ctas
        if writes and buffer.home:
            own = self.grid.along(buffer.home)[access.peer][own]
        if int(buffer.copies) > 1:
            own = own + group.who // self.grid.ctas * self.grid.ctas
        return own

    def stage(self, access: Access, group: _Group, *, writes: bool) -> Floats:
        """Return a stage of a buffer: (cells, .., instances of it)."""
        buffer, index = access.buffer, _index(access, group)
        key = (buffer.name, index)
        registers = buffer.level == "registers"
        held = self.held if registers else self.memory
        if self.grid.persistent:
            self.note(key, group, access, writes=writes)
        if key in held:
            return held[key]
        if not writes:
            raise NotCanonicalError(f"{buffer.name} is read at index {index}, which is not written")
        shape: tuple[int, ...] = (int(buffer.stage_elements), self.grid.ctas * int(buffer.copies))
        if registers:
            shape = (int(buffer.stage_elements), self.threads, self.instances)
        if len(self.run.program.roles) == 1:  # else others read them later
            held.pop((buffer.name, index - int(buffer.stages)), None)
        held[key] = np.full(shape, np.nan)
        return held[key]

    def note(self, key: tuple[str, int], group: _Group, access: Access, *, writes: bool) -> None:
        """Remember which tile uses a stage, and find another that does."""
        buffer, registers = access.buffer, access.buffer.level == "registers"
        name = (f"{self.role.name}: {key[0]}", key[1]) if registers else key
        many = self.instances if registers else self.grid.ctas * int(buffer.copies)
        first = self.touched.setdefault(name, np.full(many, -1))
        rows = group.who if registers else self.rows(access, group, writes=writes)
        if ((first[rows] >= 0) & (first[rows] != self.tile)).any():
            self.shared = self.shared or key[0]
        first[rows] = self.tile

    def read(
        self,
        do: Do,
        source: Access | Immediate | Scalar,
        group: _Group,
        mine: Integers,
        tile: bool,
        low: int,
        high: int,
        modes: tuple[int, ...],
    ) -> Floats:
        """Return an operand as (values, threads, instances), 1 where it is the same for all.

        With ``modes``, those of the values, it is (modes, threads, instances), and a mode along
        which a register stays has the length 1.
        """
        found = self.fetched(do, source, group, mine, tile, low, high, modes)
        if not modes or np.ndim(found) != _FLAT or len(found) == 1:
            return found
        return found.reshape(*modes, *found.shape[1:])

    def fetched(
        self,
        do: Do,
        source: Access | Immediate | Scalar,
        group: _Group,
        mine: Integers,
        tile: bool,
        low: int,
        high: int,
        modes: tuple[int, ...],
    ) -> Floats:
        """Return an operand as ``read`` does, or flat."""
        match source:
            case Immediate() | Scalar():
                return self.run.given(source, do.write.buffer.type)
            case Access(buffer=Buffer(level="gmem")):
                address, taken = self.gmem(do, source, group, tile=tile)
                if not tile and address.shape[1] > mine.size:
                    address = address[:, mine]
                    taken = taken[:, mine] if taken.shape[1] > 1 else taken
                array = self.run.arrays[source.buffer.name]
                if array.output:
                    raise NotCanonicalError(f"{do}: it reads the output")
                if taken.all():
                    return array.flat[address]
                outside: Number = self.run.algebra.number(source.outside)
                if source.trimmed:
                    outside = np.where(self.left(do, source, group), np.nan, outside)
                return np.where(taken, array.flat[np.where(taken, address, 0)], outside)
            case Access(buffer=Buffer(level="registers")):
                stage = self.stage(source, group, writes=False)
                column = self.cells(do, source, group, tile).cell[low:high, 0]
                shape: tuple[int, ...] = column.shape
                if modes:
                    steps = [any(step) for step in source.value[: len(modes)]][::-1]
                    column = column.reshape(modes)[tuple(slice(None if s else 1) for s in steps)]
                    shape, column = column.shape, column.ravel()
                found = stage[_run_of(column)]
                if modes:
                    found = found.reshape(*shape, *found.shape[1:])
                if mine.size < self.threads:
                    found = found[..., mine, :]
                return found if group.whole else found[..., group.who]
            case Access():
                stage = self.stage(source, group, writes=False)
                touched = self.cells(do, source, group, tile)
                cell = touched.cell if tile or touched.cell.shape[1] == 1 else touched.cell[:, mine]
                rows = self.rows(source, group, writes=False)
                found = stage[cell]
                same = rows.size == stage.shape[1] and (rows == np.arange(rows.size)).all()
                return found if same else found[..., rows]
            case _:
                raise AssertionError(source)

    def write(
        self,
        do: Do,
        values: Floats,
        group: _Group,
        mine: Integers,
        tile: bool,
        low: int,
        high: int,
    ) -> None:
        """Write values, which are broadcast."""
        access, many = do.write, group.who.size
        buffer = access.buffer
        if buffer.level == "gmem":
            self.store(do, values, group, mine, tile)
            return
        stage = self.stage(access, group, writes=True)
        touched = self.cells(do, access, group, tile)
        if buffer.level == "registers":
            column = touched.cell[low:high, 0]
            if do.where is not None:
                kept = np.broadcast_to(values, (high - low, mine.size, many))
                holds = self.holds(do, group, mine)[low:high]
                one, other, last = np.nonzero(np.broadcast_to(holds, kept.shape))
                stage[column[one], mine[other], group.who[last]] = kept[one, other, last]
            elif group.whole and mine.size == self.threads:
                stage[_run_of(column)] = values
            else:
                stage[np.ix_(column, mine, group.who)] = values
            return
        cell = touched.cell if tile or touched.cell.shape[1] == 1 else touched.cell[:, mine]
        kept = np.broadcast_to(values, (*cell.shape, many))
        rows = self.rows(access, group, writes=True)
        targets = [rows]
        if do.multicast and do.instruction.completion == "mbarrier":
            targets = [other[rows] for other in self.grid.along(do.multicast)]
        for target in targets:
            self.once(do, access, cell, target, group)
            if target.size == stage.shape[1] and (target == np.arange(target.size)).all():
                self.put(stage, cell, kept, mine, group)
            else:
                alive = self.living(mine, group)
                if alive is None:
                    stage[cell[..., None], target] = kept
                else:
                    one, other, last = np.nonzero(np.broadcast_to(alive, kept.shape))
                    stage[cell[one, other], target[last]] = kept[one, other, last]

    def once(self, do: Do, access: Access, cell: Integers, target: Integers, group: _Group) -> None:
        """Ask that nobody has written these cells before, where barriers say who comes first."""
        if not self.run.program.barriers:
            return
        key = (access.buffer.name, _index(access, group))
        if key not in self.written:
            self.written[key] = np.zeros(self.memory[key].shape, np.bool_)
        mine = cell[..., None], target
        if np.unique(target).size < target.size or self.written[key][mine].any():
            text = "an index is written twice, in an order that barriers say"
            raise NotCanonicalError(f"{do}: {text}")
        self.written[key][mine] = True

    def holds(self, do: Do, group: _Group, mine: Integers) -> Booleans:
        """Return where a statement's predicate holds: (values, threads, instances or 1)."""
        where = do.where
        assert where is not None
        number = compared(do, mine)[..., None] + np.asarray(where.origin.evaluate(group.env))
        found: Booleans = number < np.asarray(where.bound.evaluate(group.env))
        return found

    def put(
        self, stage: Floats, cell: Integers, kept: Floats, mine: Integers, group: _Group
    ) -> None:
        """Write the same cells of every instance of a buffer, except by threads that have left."""
        alive = self.living(mine, group)
        if alive is None:
            stage[cell] = kept
        else:
            stage[cell] = np.where(alive, kept, stage[cell])

    def living(self, mine: Integers, group: _Group) -> Booleans | None:
        """Return which threads have not left, None if all."""
        if self.alive is None:
            return None
        alive = self.alive[np.ix_(mine, group.who)]
        return None if alive.all() else alive[None]

    # Global memory

    def gmem(
        self, do: Do | Exit, access: Access, group: _Group, *, tile: bool
    ) -> tuple[Integers, Booleans]:
        """Return addresses, and which of them a guard leaves: (values, threads, instances)."""
        buffer = access.buffer
        key = (id(do), id(access), group.leader)
        if key not in self.places:
            numbers = _ONE if tile else np.arange(1 if group.leader else self.threads)
            place = coordinates(access, do.values, do.threads, numbers)
            strides = [self.number(n) for n in buffer.stride]
            base = sum((p * s for p, s in zip(place, strides, strict=True)), _ONE[:, None])
            reach = [(int(p.min()), int(p.max())) for p in place]
            self.places[key] = place, strides, base[..., None], reach
        place, strides, base, reach = self.places[key]
        sizes = [self.number(n) for n in buffer.shape]
        origin = [o.evaluate(group.env) for o in access.origin] or [0] * len(sizes)
        there, room = None, prod(sizes)
        address: Any
        if pages := buffer.pages:
            at = [p[..., None] + np.asarray(o) for p, o in zip(place, origin, strict=True)]
            table, many = self.run.values[pages.table], self.number(POOL)
            at, there = pages.places(buffer.shape, at, table, many)
            address = sum((a * s for a, s in zip(at, strides, strict=True)), np.zeros(1, np.int64))
            room = prod(map(self.number, pages.stored(tuple(map(str, buffer.shape)))))
        else:
            address = base + sum(
                (np.asarray(o) * s for o, s in zip(origin, strides, strict=True)),
                np.zeros(1, np.int64),
            )
        taken, inside = np.ones((1, 1, 1), np.bool_), np.ones((1, 1, 1), np.bool_)
        guards = access.guard or (False,) * len(sizes)
        parts = zip(place, reach, origin, sizes, guards, strict=True)
        for along, (low, high), start, size, guard in parts:
            first = np.asarray(start)
            if low + int(first.min()) < 0 or high + int(first.max()) >= size:
                here = along[..., None] + first
                inside = inside & (here >= 0) & (here < size)
                if guard is True:
                    taken = taken & (here < size)
            if isinstance(guard, str):
                taken = taken & (along[..., None] + first < np.asarray(group.env[guard]))
        vector = 1 if isinstance(do, Exit) else int(do.vector)
        if vector > 1 and len(taken) > 1 and len(taken) % vector == 0:
            taken = np.repeat(taken[::vector], vector, axis=0)
        if there is not None:
            taken = taken & there
        wild = (address < 0) | (address >= room)
        bad = taken & (~inside | wild)
        if bad.any():
            if self.alive is not None:
                bad = bad & self.alive[: bad.shape[1], group.who][None]
            if bad.any() and not isinstance(do, Exit):
                self.find("out_of_bounds", do, f"touches {buffer.name} outside of it; guard it")
            taken = taken & inside & ~wild
        every = (*base.shape[:2], group.who.size)
        return np.broadcast_to(address, every), np.broadcast_to(taken, every)

    def left(self, do: Do, access: Access, group: _Group) -> Booleans:
        """Return which elements are of lines that a trimmed load leaves out, as ``gmem`` does."""
        line = access.value[1].index(1)
        place = self.places[id(do), id(access), group.leader][0][line]
        first = np.asarray(access.origin[line].evaluate(group.env))
        outside: Booleans = place[..., None] + first >= self.number(access.buffer.shape[line])
        return outside

    def number(self, name: int | str) -> int:
        """Return a size, a parameter or a number."""
        return self.run.values[name] if isinstance(name, str) else int(name)

    def store(self, do: Do, values: Floats, group: _Group, mine: Integers, tile: bool) -> None:
        """Store to the output, or add."""
        array = self.run.arrays[do.write.buffer.name]
        if not array.output:
            self.find("written_input", do, f"writes the input {do.write.buffer.name}")
            return
        address, taken = self.gmem(do, do.write, group, tile=tile)
        if not tile and address.shape[1] > mine.size:
            address, taken = address[:, mine], taken[:, mine]
        if (alive := self.living(mine, group)) is not None:
            taken = taken & alive
        values = np.broadcast_to(values, address.shape)
        if taken.all():
            address, values = address.ravel(), values.ravel()
        else:
            address, values = address[taken], values[taken]
        algebra = self.run.algebra
        if do.instruction.atomic:
            if not array.zeroed:
                self.find("red_not_zeroed", do, "adds to an output that nobody cleared")
            total = np.bincount(address, weights=values, minlength=array.flat.size)
            # a sum of elements is none yet; a product is reduced
            array.flat = algebra.round(
                array.dtype, algebra.operators["fma"](total, 1.0, array.flat)
            )
            twice = array.stored[address]
            array.added[address] = True
        else:
            tag = self.tags.setdefault(do.write.buffer.name, np.zeros(array.flat.size, np.int64))
            order = np.arange(address.size)
            tag[address] = order
            twice = array.written[address] | (tag[address] != order)
            array.flat[address], array.stored[address] = values, True
        if twice.any():
            cell = f"{do.write.buffer.name}[{address[int(twice.argmax())]}]"
            self.find("written_twice", do, f"writes {cell}, which is written already")

    # Products of tiles

    def multiply(self, do: Do, group: _Group) -> None:
        """Multiply tiles, and add to the sums."""
        x, y = do.reads[:2]
        assert isinstance(x, Access)
        assert isinstance(y, Access)
        if do.threads:
            self.multiply_by_threads(do, group)
            return
        algebra, write = self.run.algebra, do.write
        on_chip = write.buffer.level != "registers"
        ctas = self.grid.along(do.multicast) if on_chip and do.multicast else [None]
        second = np.concatenate([self.factor(do, y, group, of) for of in ctas], axis=1)
        anew = do.fresh is not None and do.fresh.evaluate(group.env) == 0
        narrow = self.narrowed(do, write)
        cells = self.cells(narrow, write, group, True).cell[:, 0]
        if on_chip:
            self.alone(do)
        for of in ctas:
            first = self.factor(do, x, group, of)
            total = algebra.contract(np.matmul, first, second.transpose(0, 2, 1))
            total = total.reshape(len(total), -1).T
            if len(total) != len(cells):
                raise NotCanonicalError(f"{do}: factors that share modes besides the sum's")
            stage = self.stage(write, group, writes=anew)
            columns = group.who
            if on_chip:
                columns = self.rows(write, group, writes=False)
                columns = columns if of is None else of[columns]
            if not anew:
                before = stage[cells] if columns.size == stage.shape[1] and group.whole else None
                if before is None:
                    before = stage[cells[:, None], columns]
                total = algebra.operators["add"](total, before)
            total = algebra.round(write.buffer.type, total)
            if columns.size == stage.shape[1] and group.whole:
                stage[cells] = total
            else:
                stage[cells[:, None], columns] = total

    def alone(self, do: Do) -> None:
        """Ask that one copy of one role writes the sums: others might come first, or later."""
        name = do.write.buffer.name
        writers = {
            role.name
            for role in self.run.program.roles
            for s in each(role.body)
            if isinstance(s, Do) and s.write.buffer.name == name
        }
        if len(writers) > 1 or (int(self.role.copies) > 1 and int(do.write.buffer.copies) == 1):
            raise NotCanonicalError(f"{do}: several roles or copies write {name}")

    def multiply_by_threads(self, do: Do, group: _Group) -> None:
        """Multiply in the threads of a role, each the values that its digits give it."""
        if id(do) not in self.wholes:
            self.wholes[id(do)] = together(do), spans(do)
        whole, shapes = self.wholes[id(do)]
        algebra, write, held = self.run.algebra, do.write, held_factor(do)
        anew = do.fresh is not None and do.fresh.evaluate(group.env) == 0
        x, y = whole.accesses[:2]
        depth = prod(map(int, do.values[: depth_modes(do)]))
        if held:
            first = rows_of(self.held_values(do, held, group))
        else:
            first = self.factor(whole, x, group, None, depth)
        second = self.factor(whole, y, group, None, depth)
        flat = algebra.contract(np.matmul, first, second.transpose(0, 2, 1))
        cells = self.cells(self.narrowed(do, write), write, group, True).cell[:, 0]
        total = joined(flat, *shapes).reshape(len(flat), self.threads, -1).transpose(2, 1, 0)
        stage = self.stage(write, group, writes=anew)
        where: Cells | slice = np.ix_(cells, np.arange(self.threads), group.who)
        if group.whole:
            where = _run_of(cells)
        if not anew:
            total = algebra.operators["add"](total, stage[where])
        stage[where] = algebra.round(write.buffer.type, total)

    def held_values(self, do: Do, held: Access, group: _Group) -> Floats:
        """Return what threads hold of a factor: (values, threads, instances)."""
        cells = self.cells(self.narrowed(do, held), held, group, True).cell[:, 0]
        found = self.stage(held, group, writes=False)[cells]
        return found if group.whole else found[..., group.who]

    def factor(
        self, do: Do, read: Access, group: _Group, of: Integers | None, depth: int = 0
    ) -> Floats:
        """Return a factor as (instances, rows or columns, k), in CTAs ``of`` or in its own.

        ``depth``: the steps of k, if several modes count them.
        """
        narrow = self.narrowed(do, read)
        touched = self.cells(narrow, read, group, True)
        stage = self.stage(read, group, writes=False)
        found = stage[touched.cell[:, 0]]
        if read.buffer.level == "registers":
            found = found if group.whole else found[:, group.who]
        else:
            rows = self.rows(read, group, writes=False)
            found = found[:, rows if of is None else of[rows]]
        deep = depth or int(do.values[0])
        if not depth and int(narrow.values[0]) != deep:
            raise NotCanonicalError(f"{do}: a factor that does not move along the sum's mode")
        return np.ascontiguousarray(found.reshape(-1, deep, found.shape[1]).transpose(2, 0, 1))

    def narrowed(self, do: Do, access: Access) -> Do:
        """Return the Do on the values of the modes along which an access moves."""
        key = (id(do), id(access))
        if key not in self.narrow:
            modes = zip(do.values, access.value, strict=True)
            self.narrow[key] = replace(do, values=tuple(v if any(s) else 1 for v, s in modes))
        return self.narrow[key]


def _modes(do: Do, low: int, high: int) -> tuple[int, ...]:
    """Return the value modes of a part of an operator's values, slowest first; () if flat.

    A part has modes where it is all of the fastest ones: it begins at a multiple of its length.
    """
    modes: list[int] = []
    many = high - low
    if low % many == 0 and do.instruction.variants and not do.instruction.warp_product:
        for size in do.values:
            if prod(modes) == many:
                break
            modes.insert(0, int(size))
    return tuple(modes) if len(modes) > 1 and prod(modes) == many else ()


def _index(access: Access, group: _Group) -> int:
    return int(np.ravel(access.index.evaluate(group.env))[0])


def _plain(env: Env, access: Access) -> Mapping[str, int]:
    """Return the variables of an origin as ints; they are combined to equal numbers at least."""
    names = [n for o in access.origin for n, _ in o.terms]
    if not any(isinstance(env[n], np.ndarray) for n in names):
        return cast("Mapping[str, int]", env)  # by all that it reads
    return {n: int(np.ravel(x)[0]) if isinstance(x, np.ndarray) else x for n, x in env.items()}
