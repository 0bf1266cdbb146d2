"""A term as agents and their actions, each with what it touches and the columns of a clock.

**Agents.**  Each copy of a role in each CTA is two agents: its first thread, which also executes
what stands under ``Elect``, and one that stands for its other threads; without an ``Elect`` it is
one agent for all.  **Parts.**  An agent's body is cut into

    start   before the loop over tiles
    head    in it, before the loop over steps; of a term without a loop over tiles: before that
    loop    one turn of the loop over steps, whose length is not known
    tail    in the loop over tiles, behind the loop over steps
    end     behind the loop over tiles

An agent that lacks a loop does all of the rest behind it, or before it if the certificate says so
(``early``).  **Actions.**  Loops of constant trips are unrolled, ranks and copies put in.  What is
left of an action's position is its part and how often the part was entered: the *turn* of its
part.  ``loop`` counts steps through all tiles, ``head`` and ``tail`` count tiles, ``start`` and
``end`` happen once.

**Rings.**  Whatever has stages (shared memory of a CTA, or of a copy; registers of an agent; a
barrier of a CTA) has a *pace*: by how much its indices move with each step, each tile, each tile
that its copy takes.  It is the same for all that touch it, so that an index less what its ring has
moved, the *offset*, is the same at each turn.

**Columns.**  A clock has a column for each fact that somebody may ask for, and for each residue of
its index: an action is done, its accesses are behind a fence of its thread, a phase of a barrier
is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import inf, lcm, prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinygpu.checker.cells import box, placed, sound_storage
from tinygpu.checker.outcome import refuse, uncertified
from tinygpu.checker.table import (
    ALIGNED,
    ARRIVALS,
    GROUPS,
    UNCOMMITTED,
    Entry,
    entry_of,
    require_fields,
    require_types,
)
from tinygpu.numbers import Array, Integers
from tinygpu.term.expression import Apply, Constant, Expression, Value
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Buffer,
    Commit,
    Do,
    Elect,
    Exit,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    each,
    walk,
)

__all__ = [
    "ALL",
    "NONE",
    "PARTS",
    "Action",
    "Actor",
    "Image",
    "PacedRing",
    "Phased",
    "Protocol",
    "Reference",
]  # fmt: skip

Part = Literal["start", "head", "loop", "tail", "end"]
PARTS: tuple[Part, ...] = ("start", "head", "loop", "tail", "end")
NONE, ALL = -1_000_000, 1_000_000
"""Lags below and above all others: nothing is known, and all that was done so far."""
_MOST = 10_000
"""No offset and no pace is more."""
Clock = NDArray[np.int32]
Columns = NDArray[np.intp] | list[int]
Site = tuple[*tuple[int, ...], tuple[tuple[str, int], ...]]
"""Where a statement stands in its body, and the constant loops' values there."""
_Bodies = dict["Part", list[tuple[tuple[int, ...], Statement]]]
_Guards = tuple[tuple[int, int, int], ...]
_Turn = tuple[Mapping[str, int], _Guards, tuple[tuple[str, int], ...]]
Image = tuple[int, NDArray[np.intp]] | None
"""Of whose clock one may be the image, and from which column each lag is; None: of none."""


class Pace(NamedTuple):
    """By how much an index moves with a step, a tile, a tile that its copy takes; None: open."""

    step: int | None
    tile: int | None
    turn: int | None

    def with_(self, other: Pace) -> Pace | None:
        """Return what two paces agree on, or None."""
        found = []
        for a, b in zip(self, other, strict=True):
            if a is not None and b is not None and a != b:
                return None
            found.append(b if a is None else a)
        return Pace(*found)


_OPEN = Pace(None, None, None)


@dataclass(frozen=True, slots=True)
class Actor:
    """An agent: ``count`` threads from ``first`` on of a copy (``team``) of a role in a CTA."""

    number: int
    name: str
    team: str
    cta: tuple[int, ...]
    role: Role
    copy: int
    first: int
    count: int
    env: Mapping[str, int]

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True)
class PacedRing:
    """A ring of memory; ``through``: something touches it through the asynchronous proxy."""

    number: int
    name: str
    buffer: Buffer
    cta: tuple[int, ...]
    stages: int
    cells: int
    pace: Pace = _OPEN
    takes: tuple[int, int] = (0, 1)
    through: bool = False
    references: list[tuple[Action, Reference]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What it is called in every CTA."""
        return self.buffer.name


@dataclass(slots=True)
class Phased:
    """A barrier of a CTA; ``over``: the columns that say which phases are over, by residue.

    ``used``: the residues of all phases that somebody names, at any counters.  ``waited`` and
    ``arrived``: by residue, the columns of its waits and of its arrivals.
    """

    number: int
    name: str
    barrier: Barrier
    cta: tuple[int, ...]
    stages: int
    pace: Pace = _OPEN
    takes: tuple[int, int] = (0, 1)
    over: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    waits: list[tuple[Action, int]] = field(default_factory=list)
    arrivals: list[tuple[Action, int]] = field(default_factory=list)
    counts_bytes: bool = False
    waited: list[NDArray[np.intp]] = field(default_factory=list)
    arrived: list[NDArray[np.intp]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What it is called in every CTA."""
        return self.name

    @property
    def far(self) -> bool:
        """Whether some arrivals come from another CTA, and so later than their threads go on."""
        return any(action.actor.cta != self.cta for action, _ in self.arrivals)


_NOTHING = np.zeros(0, np.intp)


@dataclass(slots=True)
class Reference:
    """An access to a ring: which cells, at which offset.  ``adds``: the sums of a product.

    ``own``: thread t touches lane t of tensor memory alone.  ``columns``, ``fenced``: what says,
    by residue, that it is done, and behind a fence.  ``conflicts``: the columns of all that
    conflicts with it, at its residue; ``lane``: of what its own threads did in their own lanes.
    """

    ring: PacedRing
    offset: int
    cells: int
    write: bool
    adds: bool = False
    own: bool = False
    columns: list[int] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    conflicts: NDArray[np.intp] = field(default_factory=lambda: _NOTHING)
    lane: NDArray[np.intp] = field(default_factory=lambda: _NOTHING)

    @property
    def mark(self) -> int:
        """The column of this turn."""
        return self.columns[self.offset % self.ring.stages]


@dataclass(slots=True)
class Action:
    """A statement at values of constant loops, by one agent."""

    number: int
    actor: Actor
    part: Part
    site: Site
    statement: Statement
    guards: _Guards
    fresh: tuple[int, int, int] | None = None
    entry: Entry | None = None
    references: list[Reference] = field(default_factory=list)
    told: list[tuple[Phased, int]] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    again: NDArray[np.intp] = field(default_factory=lambda: _NOTHING)

    @property
    def mark(self) -> int:
        """The column of this turn, of a wait or an arrival."""
        return self.columns[self.told[0][1] % len(self.columns)]

    @property
    def done(self) -> str:
        """When it is done; an arrival after products is as they are."""
        if self.entry is not None:
            return self.entry.done
        after = isinstance(self.statement, Arrive) and self.statement.after
        return "committed" if after else "now"

    @property
    def touched(self) -> list[int]:
        """The columns of its accesses."""
        return sorted({c for one in self.references for c in one.columns})

    def __str__(self) -> str:
        return f"{self.actor}: {self.statement} [{self.part}{_at(self.site)}]"


def _at(site: Site) -> str:
    values = [f" {name}={n}" for name, n in site[-1] if name]
    return "".join(values)


class Protocol:
    """What a checker derives from a term; raises UncertifiedError where it is of another class."""

    def __init__(self, program: Program, *, early: bool = False) -> None:
        require_fields(program)
        self.program, self.early = program, early
        self.believed: set[str] = set()
        self.tiled = bool(program.persistent)
        self.param, self.least = self._parameter()
        self.actors = list(self._actors())
        self.teams: dict[str, list[int]] = {}
        self.ctas: dict[tuple[int, ...], list[int]] = {}
        for a in self.actors:
            self.teams.setdefault(a.team, []).append(a.number)
            self.ctas.setdefault(a.cta, []).append(a.number)
        self.rings: list[PacedRing] = []
        self.barriers: list[Phased] = []
        self._known: dict[Hashable, Any] = {}
        self._bodies: dict[int, tuple[_Bodies, ForTile | None, For | None]] = {}
        self.tiles_of: dict[int, tuple[int, int]] = {}
        self.actions: list[Action] = []
        self.todo: dict[Part, list[list[Action]]] = {
            part: [[] for _ in self.actors] for part in PARTS
        }
        self.period = 1
        self.first: int | None = None
        for actor in self.actors:
            self._cut(actor)
        for actor in self.actors:
            self._expand(actor)
        self._steps_left()
        self._require_rendezvous()
        self._columns()
        self._conflicts()
        self._groups()
        self._moves()
        self._used()

    # Agents and parts.

    def _parameter(self) -> tuple[str, int]:
        """Return the name of the trips that are not known, and how many they are at least."""
        trips = {
            s.trips
            for role in self.program.roles
            for s in each(role.body)
            if isinstance(s, For) and isinstance(s.trips, str)
        }
        if len(trips) > 1:
            uncertified(f"loops to {' and '.join(sorted(trips))}")
        for name in trips:
            least = least_of(self.program, name)
            if least < 0:
                uncertified(f"{name} may be below 0, as far as is known")
            return name, int(least)
        return "", 0

    def _actors(self) -> Iterator[Actor]:
        ranks = [range(int(extent)) for _, extent in self.program.cluster]
        ctas = [tuple(reversed(r)) for r in product(*reversed(ranks))]
        number = 0
        for cta in ctas:
            where = f"@{'.'.join(map(str, cta))}" if len(ctas) > 1 else ""
            for role in self.program.roles:
                threads = int(role.threads)
                here = dict(zip((name for name, _ in self.program.cluster), cta, strict=True))
                splits = threads > 1 and any(isinstance(s, Elect) for s in each(role.body))
                for copy in range(int(role.copies)):
                    env = {**here, role.copy: copy} if role.copy else here
                    team = f"{role.name}{copy if int(role.copies) > 1 else ''}{where}"
                    parts = ((team, 0, 1), (f"{team}'s others", 1, threads - 1))
                    for name, first, count in parts if splits else ((team, 0, threads),):
                        yield Actor(number, name, team, cta, role, copy, first, count, env)
                        number += 1

    def _cut(self, actor: Actor) -> None:
        """Cut an agent's body into parts."""
        role = actor.role
        tiles = any(isinstance(s, ForTile) for r in self.program.roles for s in each(r.body))
        bodies: _Bodies = {p: [] for p in PARTS}
        place: list[Part] = ["start" if self.tiled and tiles else "head"]
        tile: ForTile | None = None
        loop: For | None = None

        def holds(s: Statement) -> bool:
            return any(
                isinstance(t, ForTile) or (isinstance(t, For) and isinstance(t.trips, str))
                for t in (s, *each(s.body))
            )

        def go(body: tuple[Statement, ...], path: tuple[int, ...]) -> None:
            nonlocal tile, loop
            for i, s in enumerate(body):
                here = (*path, i)
                if not holds(s):
                    bodies[place[0]].append((here, s))
                elif isinstance(s, Elect):
                    if actor.first == 0:
                        go(s.body, here)
                elif isinstance(s, When) and (low := _decided(s, actor.env)) is not None:
                    if low:
                        go(s.body, here)
                elif isinstance(s, ForTile):
                    if tile is not None:
                        uncertified("two loops over tiles")
                    tile = s
                    if self.tiled:
                        place[0] = "head"
                    go(s.body, here)
                    if self.tiled and place[0] == "head" and not self.early:
                        bodies["tail"], bodies["head"] = bodies["head"], []
                    if self.tiled:
                        place[0] = "end"
                elif isinstance(s, For):
                    if loop is not None or place[0] != "head":
                        uncertified("two loops over steps, or one outside of the tiles")
                    if self.first not in (None, int(s.start)) or int(s.start) < 0:
                        uncertified(f"a loop of {s.trips} from {s.start}")
                    self.first = int(s.start)
                    loop = s
                    if any(holds(t) for t in s.body):
                        uncertified("a loop of unknown length in another")
                    bodies["loop"] += [((*here, j), t) for j, t in enumerate(s.body)]
                    place[0] = "tail"
                else:
                    uncertified(f"a loop of unknown length in {s}")

        go(role.body, ())
        if not self.early:
            if place[0] == "start":
                bodies["end"], bodies["start"] = bodies["start"], []
            if place[0] == "head":
                bodies["tail"], bodies["head"] = bodies["head"], []
        self._bodies[actor.number] = (bodies, tile, loop)

    def _expand(self, actor: Actor) -> None:
        """Unroll an agent's parts to actions."""
        bodies, tile, loop = self._bodies[actor.number]
        context = _Scope(self, actor, tile, loop)
        self.period = lcm(self.period, context.step)
        for part in PARTS:
            for place in context.places(part, bodies[part]):
                self.todo[part][actor.number].append(context.action(place))

    def _steps_left(self) -> None:
        """Count steps and not trips, where loops begin at another number than 0."""
        first = self.first or 0
        if self.least < first:
            uncertified(f"{self.param} may be {self.least}, and a loop begins at {first}")
        self.least -= first

    def takes(self, actor: Actor, residue: int) -> bool:
        """Say whether an agent takes the tiles of a residue."""
        first, step = self.tiles_of[actor.number]
        return residue % step == first

    def steps_by(self, actor: Actor) -> str:
        """Return the variable of an agent's loop over steps, "" if it has none."""
        *_, loop = self._bodies[actor.number]
        return "" if loop is None else loop.var

    # Rings.

    def ring(self, actor: Actor, buffer: Buffer, cta: tuple[int, ...]) -> PacedRing:
        """Return a ring of memory as an agent touches it in a CTA."""
        if buffer.level == "registers":
            key: tuple[Hashable, ...] = (buffer.name, actor.number)
        else:
            own = (actor.role.name, actor.copy) if int(buffer.copies) > 1 else ()
            key = (buffer.name, cta, *own)
        if key not in self._known:
            name = f"{actor}'s " * (buffer.level == "registers") + buffer.name
            if not sound_storage(buffer):
                refuse(f"storage: two cells of {buffer.name} have one place, or lie outside")
            cells = prod(int(n) for n in buffer.shape)
            found = PacedRing(len(self.rings), name, buffer, cta, int(buffer.stages), cells)
            self.rings.append(found)
            self._known[key] = found
        ring: PacedRing = self._known[key]
        return ring

    def phased(self, barrier: Barrier, cta: tuple[int, ...]) -> Phased:
        """Return a barrier of a CTA."""
        key = ("barrier", barrier.name, cta)
        if key not in self._known:
            many = int(barrier.arrivals)
            if (many % 32 if barrier.named else not 1 <= many < 1 << 20) or many < 1:
                refuse(f"balance: {barrier.name} counts {many} arrivals")
            found = Phased(len(self.barriers), barrier.name, barrier, cta, int(barrier.stages))
            self.barriers.append(found)
            self._known[key] = found
        one: Phased = self._known[key]
        return one

    def along(self, cta: tuple[int, ...], axes: str) -> list[tuple[int, ...]]:
        """Return the CTAs along axes of the cluster, or of all of it, from this one on."""
        names = [name for name, _ in self.program.cluster]
        told = set(names) if axes == "cluster" else set(axes.split())
        if strange := told - set(names):
            uncertified(f"{min(strange)} is no axis of the cluster")
        ranges = [
            [(rank + i) % int(extent) for i in range(int(extent) if name in told else 1)]
            for (name, extent), rank in zip(self.program.cluster, cta, strict=True)
        ]
        return list(product(*ranges))

    def _require_rendezvous(self) -> None:
        """Refuse a number of bar.sync at which two groups of threads meet (D)."""
        groups: dict[tuple[tuple[int, ...], int], set[str]] = {}
        for action in self.actions:
            s, a = action.statement, action.actor
            if isinstance(s, Sync) and s.scope != "cluster":
                number = int(s.barrier) + (a.copy if s.scope == "role" else 0)
                group = a.team if s.scope == "role" else "all"
                groups.setdefault((a.cta, number), set()).add(group)
            if isinstance(s, Wait | Arrive) and s.barrier.named:
                for i in range(int(s.barrier.stages)):
                    at = (a.cta, int(s.barrier.number or 0) + i)
                    groups.setdefault(at, set()).add(f"barrier {s.barrier.name}")
        for (_, number), met in groups.items():
            if not 0 <= number < 16:
                refuse(f"deadlock: there is no bar.sync {number}")
            if len(met) > 1:
                refuse(f"deadlock: {' and '.join(sorted(met))} meet at bar.sync {number}")

    # Columns.

    def _columns(self) -> None:
        """Give each fact a column, with how it moves with a step and with a tile."""
        self.rules: list[tuple[Action | None, PacedRing | Phased, int, str]] = []
        for ring in self.rings:
            smem = ring.buffer.level == "smem"
            ring.through = smem and any(_proxy(a) == "async" for a, _ in ring.references)
        for action in self.actions:
            s = action.statement
            if isinstance(s, Wait | Arrive):
                place, _ = action.told[0]
                far = any(place.cta != action.actor.cta for place, _ in action.told)
                late = far or action.done == "committed"
                if isinstance(s, Wait) or late or not place.counts_bytes:
                    action.columns = self._by_residue(action, place)
            elif action.entry is not None:
                self._columns_of(action, action.entry)
        for barrier in self.barriers:
            barrier.over = self._by_residue(None, barrier, "over")
            for kind, some in (("waited", barrier.waits), ("arrived", barrier.arrivals)):
                told = [action.columns for action, _ in some if action.columns]
                found = np.array(told, np.intp).reshape(-1, barrier.stages).T
                setattr(barrier, kind, list(found))
        for action in self.actions:
            again = {
                columns[one.offset % one.ring.stages]
                for one in action.references
                for columns in (one.columns, one.fenced)
                if columns
            }
            action.again = _listed(again)

    def _columns_of(self, action: Action, entry: Entry) -> None:
        """Give columns to what may be asked of an instruction; a product's are its warpgroup's."""
        who = action.actor.team if entry.done == "multiplied" else action.actor.number
        for one in action.references:
            private = one.ring.buffer.level == "registers"
            if private and entry.done == "now":
                continue
            ring = one.ring
            alike: tuple[Hashable, ...] = (ring.stages, ring.pace, one.offset % ring.stages)
            if entry.done == "landed" or ring.stages == 1:
                alike = (ring.number,) if entry.done == "landed" else ()
            key = ("columns", who, action.part, action.site, *alike)
            one.columns = self._shared(key, action, ring)
            generic = ring.through and entry.proxy == "generic" and not private
            if generic or (ring.buffer.level == "tmem" and entry.done in UNCOMMITTED):
                one.fenced = self._shared((*key, "fenced"), action, ring, "fenced")

    def _shared(
        self, key: tuple[Hashable, ...], action: Action, ring: PacedRing, what: str = ""
    ) -> list[int]:
        """Return the columns of a key, as many as a ring has stages."""
        if key not in self._known:
            self._known[key] = self._by_residue(action, ring, what)
        columns: list[int] = self._known[key]
        return columns

    def _by_residue(
        self, action: Action | None, ring: PacedRing | Phased, what: str = ""
    ) -> list[int]:
        """Return new columns, one for each residue of an index."""
        self.rules += [(action, ring, r, what) for r in range(ring.stages)]
        return list(range(len(self.rules) - ring.stages, len(self.rules)))

    @property
    def width(self) -> int:
        """How many columns a clock has."""
        return len(self.rules)

    @cached_property
    def names(self) -> list[str]:
        """What each column is called."""
        return [self._name(*rule) for rule in self.rules]

    def _name(self, action: Action | None, ring: PacedRing | Phased, r: int, what: str) -> str:
        name, here = "phases", None
        if action is not None:
            name, here = f"{action.actor}: {_path(action.site)}", action.actor.cta
        where = _cta(ring.cta) if ring.cta != here else ""
        return f"{name} at {ring.name}{where} {r} {what}".strip()

    def _moves(self) -> None:
        """Say from which column each takes its lag with a step or a tile, less how much."""
        self.moves: dict[tuple[str, int], tuple[NDArray[np.intp], Clock]] = {}
        every: list[PacedRing | Phased] = [*self.rings, *self.barriers]
        numbers = {id(ring): i for i, ring in enumerate(every)}
        whose, residue, stages = (
            np.array([(numbers[id(ring)], r, ring.stages) for _, ring, r, _ in self.rules], np.intp)
            .reshape(-1, 3).T
        )  # fmt: skip
        for kind in ("step", "tile"):
            for tile in range(self.period):  # the columns of its residues are neighbours
                by = np.array([moved(ring, kind, tile) for ring in every], np.int32)[whose]
                source = np.arange(self.width) + (residue + by) % stages - residue
                self.moves[kind, tile] = (source, by)

    def _used(self) -> None:
        """Find which residues of a barrier's phases are named."""
        for action in self.actions:
            for barrier, offset in action.told:
                barrier.used.add(offset % barrier.stages)
        for b in self.barriers:
            for kind, tile in [*self.moves] * b.stages:
                b.used |= {(r + moved(b, kind, tile)) % b.stages for r in b.used}

    def _groups(self) -> None:
        """Say how many groups each agent's waits tell apart, and which registers products use."""
        self.groups: dict[tuple[int, str], int] = {}
        self.sums: list[set[int]] = [set() for _ in self.actors]
        for action in self.actions:
            s, number = action.statement, action.actor.number
            if isinstance(s, Commit | WaitGroup):
                most = int(s.pending) if isinstance(s, WaitGroup) else 0
                key = (number, GROUPS.get(s.group, s.group))
                self.groups[key] = max(self.groups.get(key, 0), most)
            elif action.done in GROUPS.values():
                self.groups.setdefault((number, action.done), 0)
            if action.entry is not None and action.entry.tensor:
                self.groups[number, "after"] = -1  # one clock: what it comes after
            if action.done == "multiplied":
                own = (r.ring for r in action.references if r.ring.buffer.level == "registers")
                self.sums[number].update(ring.number for ring in own)
        self._lists()

    def _lists(self) -> None:
        """List the columns of fences, and of what is asked for together.

        ``sent``: what reaches a CTA from others, or later than its thread goes on; ``shared``: what
        all agents of a CTA know at its end.
        """
        fences: dict[tuple[int, bool, str], set[tuple[int, int]]] = {
            (a.number, each_, kind): set()
            for a in self.actors for each_ in (False, True) for kind in ("before", "proxy")
        }  # fmt: skip
        sent, shared = ({cta: set[int]() for cta in self.ctas} for _ in range(2))
        for action in self.actions:
            committed = action.done == "committed"
            for one in action.references:
                level, cta = one.ring.buffer.level, one.ring.cta
                if one.fenced:
                    each_ = action.entry is not None and action.entry.issuer == "thread"
                    key = (action.actor.number, each_, "before" if level == "tmem" else "proxy")
                    fences[key].update(zip(one.columns, one.fenced, strict=True))
                if committed or level == "tmem":
                    shared[cta].update(one.fenced or one.columns)
                if one.write and level == "smem" and (committed or cta != action.actor.cta):
                    sent[cta].update(one.columns)
            for place, _ in action.told:
                if committed or place.cta != action.actor.cta:
                    sent[place.cta].update(action.columns)
        self.fences = {
            key: np.array(sorted(some), np.intp).reshape(-1, 2).T for key, some in fences.items()
        }
        self.sent = {cta: _listed(some) for cta, some in sent.items()}
        self.shared = {cta: _listed(some) for cta, some in shared.items()}
        self.products, self.committed = self._done("multiplied"), self._done("committed")
        self.grouped, self.landed = self._done(*GROUPS.values()), self._done("landed")

    def _done(self, *how: str) -> list[NDArray[np.intp]]:
        """List the columns of what each agent does that is done in these ways."""
        found: list[set[int]] = [set() for _ in self.actors]
        for action in self.actions:
            if action.done in how:
                found[action.actor.number].update(action.columns, action.touched)
        return [_listed(some) for some in found]

    # Images.

    def images(self) -> list[Image]:
        """Return of which agent's clock each agent's may be the image; see ``written``.

        The first copy in the first CTA of the cluster stands for the others.
        """
        first = {(a.role.name, a.first): a.number for a in reversed(self.actors)
                 if a.copy == 0 and not any(a.cta)}  # fmt: skip
        return [
            self._image(first[a.role.name, a.first], a.cta, a.role.name, a.copy)
            for a in self.actors
        ]

    def barrier_images(self) -> list[Image]:
        """Return of which barrier's messages each barrier's may be images."""
        first = {b.key: b.number for b in self.barriers if not any(b.cta)}
        return [self._image(first[b.key], b.cta, "", 0) for b in self.barriers]

    def _image(self, number: int, cta: tuple[int, ...], role: str, copy: int) -> Image:
        """Return from which column each is, if all is seen from this CTA and copy; None: no map."""
        key = ("image", cta, role if copy else "", copy)
        if key not in self._known:
            one, other = self._seen(tuple(0 for _ in cta), "", 0), self._seen(cta, role, copy)
            first, second = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
            source = np.zeros(len(one), np.intp)
            source[second] = first
            alike = np.array_equal(one[first], other[second])
            self._known[key] = source if alike and (copy or any(cta)) else None
        source = self._known[key]
        return None if source is None else (number, source)

    def _seen(self, cta: tuple[int, ...], role: str, copy: int) -> Integers:
        """Return a number for each column that says what it is about.

        Ranks are counted from those of the CTA on, and the copy's number and the first's exchanged.
        """
        if ("about",) not in self._known:
            self._known["about",] = self._about()
        kinds, roles, copies, *ranks = self._known["about",]
        swapped = (roles == role) & ((copies == 0) | (copies == copy))
        found = kinds * (1 + int(copies.max(initial=0))) + np.where(swapped, copy - copies, copies)
        extents = [int(n) for _, n in self.program.cluster]
        for every in ranks:
            for axis, (extent, mine) in enumerate(zip(extents, cta, strict=True)):
                found = found * extent + (every[:, axis] - mine) % extent
        return np.asarray(found)

    def _about(self) -> tuple[Array, ...]:
        """Return for each column its kind, role and copy, and the CTAs who acts and what is hit."""
        kinds: dict[Hashable, int] = {}
        rows = []
        for action, ring, residue, what in self.rules:
            a = None if action is None else action.actor
            role, copy = ("", 0) if a is None else (a.role.name, a.copy)
            site = () if a is None or action is None else (a.first, action.part, action.site)
            kind = (role, site, ring.key, residue, what)
            number = kinds.setdefault(kind, len(kinds))
            rows.append((number, role, copy, ring.cta if a is None else a.cta, ring.cta))
        parts = list(zip(*rows, strict=True)) or [()] * 5
        shape = (len(rows), len(self.program.cluster))
        return (
            np.array(parts[0], np.int64),
            np.array(parts[1], np.str_),
            np.array(parts[2], np.int64),
            np.array(parts[3], np.int64).reshape(shape),
            np.array(parts[4], np.int64).reshape(shape),
        )

    # Conflicts.

    def _conflicts(self) -> None:
        """Find what each reference to memory has to know of the others of its ring."""
        for ring in self.rings:
            others = ring.references
            if ring.buffer.level == "registers":  # a thread's own, in its order, if done now
                others = [pair for pair in others if pair[0].done != "now"]
            if others:
                self._conflicts_of(ring, others)

    def _conflicts_of(self, ring: PacedRing, others: list[tuple[Action, Reference]]) -> None:
        """Note the columns of all ``others`` that each reference of a ring conflicts with.

        A warp's statement writes the cells of all its threads together, for each of its agents.  A
        thread's copy to tensor memory is done before products that it issues later.  What a thread
        did in its own lane there it has waited for itself; all others it knows by their fences.
        """
        mine, stages = ring.references, ring.stages
        first, second = _meeting(mine, others)
        sites: dict[Hashable, int] = {}
        (here, one, alone), (there, two, _) = (
            np.array([
                (sites.setdefault((a.actor.team, a.site), len(sites)), a.number,
                 r.write and _issuer(a) == "warp")
                for a, r in some
            ]).T
            for some in (mine, others)
        )  # fmt: skip
        writes = np.array([r.write for _, r in others])[second] & (alone[first] > 0)
        kept = ~(writes & (here[first] == there[second]) & (one[first] != two[second]))
        adds = np.array([a.actor.number if _is(a, "adds") else -1 for a, _ in mine])
        copies = np.array([a.actor.number if _is(a, "ahead") else -2 for a, _ in others])
        kept &= adds[first] != copies[second]
        first, second = first[kept], second[kept]
        none = [-1] * stages
        done = np.array([r.columns or none for _, r in others], np.intp)
        fenced = np.array([r.fenced or none for _, r in others], np.intp)
        lanes, theirs = (
            np.array([a.actor.number if r.own else none for a, r in some])
            for some, none in ((mine, -1), (others, -2))
        )
        own = lanes[first] == theirs[second]
        tensor = ring.buffer.level == "tmem"
        through = np.array([tensor or _proxy(a) == "async" for a, _ in mine])[first] & ~own
        through &= np.array([bool(r.fenced) for _, r in others])[second]
        residue = np.array([r.offset % stages for _, r in mine])[first]
        column = np.where(through, fenced[second, residue], done[second, residue])
        assert (column >= 0).all()
        for what, some in (("conflicts", ~own), ("lane", own)):
            pairs = np.unique(first[some] * self.width + column[some])
            ends = np.searchsorted(pairs, np.arange(len(mine) + 1) * self.width)
            for (_, reference), start, end in zip(mine, ends[:-1], ends[1:], strict=True):
                setattr(reference, what, pairs[start:end] % self.width)


def _meeting(
    mine: list[tuple[Action, Reference]], others: list[tuple[Action, Reference]]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the places of pairs that touch one cell, of which one writes.

    But for one agent's products of one shape with the same sums, which PTX adds in order.
    """
    cells: dict[int, int] = {}
    shapes: dict[Hashable, int] = {}

    def numbered(pair: tuple[Action, Reference]) -> tuple[int, int, int]:
        (action, one), shape = pair, -1
        if one.adds and isinstance(action.statement, Do):
            to = action.statement
            key = (action.done, action.actor.number, to.values, to.write.value, one.cells)
            shape = shapes.setdefault(key, len(shapes))
        return cells.setdefault(one.cells, len(cells)), one.write, shape

    (here, writes, sums), (there, written, added) = (
        np.array([numbered(pair) for pair in some]).T for some in (mine, others)
    )
    meet = np.array([[bool(a & b) for b in cells] for a in cells])
    found = meet[here[:, None], there] & ((writes[:, None] | written) > 0)
    first, second = np.nonzero(found & ((sums[:, None] != added) | (added < 0)))
    return first, second


def _listed(columns: set[int]) -> NDArray[np.intp]:
    return np.array(sorted(columns), np.intp)


def _issuer(action: Action) -> str:
    return "" if action.entry is None else action.entry.issuer


def _is(action: Action, what: str) -> bool:
    return bool(getattr(action.entry, what, False))


def _proxy(action: Action) -> str:
    return "generic" if action.entry is None else action.entry.proxy


def _path(site: Site) -> str:
    *path, values = site
    return ".".join(map(str, path)) + "".join(f" {name}{n}" for name, n in values)


def _cta(cta: tuple[int, ...]) -> str:
    return f"@{'.'.join(map(str, cta))}" if any(cta) else ""


def moved(ring: PacedRing | Phased, kind: str, tile: int) -> int:
    """Return by how much a ring's indices move with a step, or a tile of a residue."""
    if kind == "step":
        return ring.pace.step or 0
    first, every = ring.takes
    mine = tile % every == first
    return (ring.pace.tile or 0) + (ring.pace.turn or 0) * mine


def least_of(program: Program, name: str) -> float:
    """Return what a size, a parameter or a tile value is at least; -inf: that is not known.

    A tile value has one expression, of the tile and of what is the same in all CTAs of a cluster.
    """
    known = dict(program.parameters)
    grid = {axis.var for axis in program.grid}
    for s, _ in walk(program):
        for value, expression in s.values if isinstance(s, ForTile) else ():
            if known.setdefault(value, expression) != expression:
                uncertified(f"{value} is another number in another loop over tiles")
    if name not in known:
        uncertified(f"trips {name}, no size and no parameter")
    axes, own = program.operation.axes, {axis for axis, _ in program.cluster}
    own |= {role.copy for role in program.roles}

    def least(e: Expression) -> float:
        match e:
            case Constant(number) if number == int(number):
                return int(number)
            case Value(inner) if inner in own:
                uncertified(f"{name} depends on {inner}")
            case Value(inner) if inner in known:
                return least(known[inner])
            case Value(inner) if inner in axes or inner in grid:
                return int(inner in axes)
            case Apply("ceildiv", (top, Constant(n))) if n > 0:
                found = least(top)
                return -(-found // int(n)) if found > -inf else found
            case Apply("add" | "mul" | "max" | "min" as how, parts):
                every = [least(p) for p in parts]
                if how == "mul" and min(every) < 0:
                    return -inf
                return float(_FOLDS[how](every))
            case Apply(_, parts):
                for part in parts:
                    least(part)
        return -inf

    return least(Value(name))


_FOLDS: Mapping[str, Callable[[list[float]], float]] = {
    "add": sum, "mul": prod, "max": max, "min": min
}  # fmt: skip


def aligned(s: Statement) -> bool:
    """Say whether all threads of a warp have to execute a statement together."""
    if isinstance(s, Do):
        return bool(s.across) or s.instruction.issuer in ("warp", "warpgroup")
    return getattr(s, "group", getattr(s, "kind", "")) in ALIGNED


def _decided(when: When, env: Mapping[str, int]) -> bool | None:
    """Say whether a guard on ranks, copies and constant loops holds; None: it is another."""
    names = {name for name, _ in when.index.terms}
    if isinstance(when.bound, str) or not names <= env.keys():
        return None
    return int(when.index.evaluate(dict(env))) < int(when.bound)


class _Touch(NamedTuple):
    """An access to a ring, in whichever CTA: see ``Reference``."""

    access: Access
    pace: Pace
    offset: int
    cells: int
    write: bool
    adds: bool
    own: bool


class _Touched(NamedTuple):
    """An instruction's entry, where it starts anew, its accesses, where its bytes are counted."""

    entry: Entry
    fresh: tuple[int, int, int] | None
    reads: list[_Touch | None]
    write: _Touch | None
    signal: tuple[Pace, int] | None


@dataclass(frozen=True, slots=True)
class _Place:
    """A statement at values of constant loops, for all agents of a kind.

    ``names``: the ranks and copies on which it depends; ``known``: what was found, by their values.
    """

    part: Part
    site: Site
    statement: Statement
    guards: _Guards
    values: Mapping[str, int]
    names: list[str]
    known: dict[tuple[int, ...], Any] = field(default_factory=dict)


class _Scope:
    """The variables of one agent, and its statements as actions."""

    def __init__(
        self, protocol: Protocol, actor: Actor, tile: ForTile | None, loop: For | None
    ) -> None:
        self.protocol, self.actor, self.loop = protocol, actor, loop
        program = protocol.program
        self.env = actor.env
        self.tile, self.turn = (tile.tile, tile.turn) if tile else ("", "")
        self.start, self.step = 0, 1
        if tile is not None:
            self.step = int(tile.step)
            moving = [name for name, _ in tile.start.terms if name not in self.env]
            if moving:
                uncertified(f"tiles from {tile.start}")
            self.start = int(tile.start.evaluate(self.env))
            if not 0 <= self.start < self.step or (self.step > 1 and not protocol.tiled):
                uncertified(f"tiles from {self.start} by {self.step}")
        protocol.tiles_of[actor.number] = (self.start, self.step)
        self.grid = {axis.var for axis in program.grid}

    def places(self, part: Part, body: list[tuple[tuple[int, ...], Statement]]) -> list[_Place]:
        """Return where the statements of a part stand, constant loops unrolled.

        They are the same for all agents of one kind, for whom the guards ask about the same.
        """
        a, known = self.actor, self.protocol._known
        asked = ("asked", id(a.role))
        if asked not in known:
            guards = [s.index.terms for s in each(a.role.body) if isinstance(s, When)]
            known[asked] = sorted({name for terms in guards for name, _ in terms} & self.env.keys())
        env = {name: self.env[name] for name in known[asked]}
        key = ("places", part, id(a.role), a.first, id(self.loop), self.tile, self.turn, self.step,
               *env.values())  # fmt: skip
        if key not in known:
            known[key] = [one for path, s in body for one in self._unrolled(s, part, path, env)]
        found: list[_Place] = known[key]
        return found

    def _unrolled(
        self, s: Statement, part: Part, path: tuple[int, ...], env: Mapping[str, int],
        guards: _Guards = (), values: tuple[tuple[str, int], ...] = (), *,
        elected: bool = False,
    ) -> Iterator[_Place]:  # fmt: skip
        """Yield where a statement stands; ``elected``: one thread alone comes to it."""
        turns: list[_Turn] = []
        match s:
            case Elect(body):
                turns, elected = [(env, guards, values)] * (self.actor.first == 0), True
            case When(index, bound, body):
                holds = _decided(s, env)
                more = () if holds is not None else (self._guard(index, bound, env, part),)
                turns = [(env, (*guards, *more), values)] * (holds is not False)
            case For(var, trips, body, _, start):
                every = range(int(start), int(trips))
                turns = [({**env, var: n}, guards, (*values, (var, n))) for n in every]
            case Do() if s.lanes is not None and not self._runs(s):
                return
            case _:
                if elected and aligned(s):
                    refuse(f"issuers: {self.actor}: {s} by one thread of its warp")
                names = {name for form in s.forms for name, _ in form.terms}
                own = sorted(names & self.env.keys())
                yield _Place(part, (*path, values), s, guards, dict(values), own)
                return
        for turn in turns:
            for i, t in enumerate(body):
                yield from self._unrolled(t, part, (*path, i), *turn, elected=elected)

    def action(self, place: _Place) -> Action:
        """Return what the agent does at a place."""
        p, a, s = self.protocol, self.actor, place.statement
        made = Action(len(p.actions), a, place.part, place.site, s, place.guards)
        here = tuple([self.env[name] for name in place.names])
        if here not in place.known:  # what follows depends on these ranks and copies alone
            env = {**dict(zip(place.names, here, strict=True)), **place.values}
            if isinstance(s, Do):
                place.known[here] = self._touched(made, s, env)
            elif isinstance(s, Wait | Arrive):
                place.known[here] = self._place(s.index, env, place.part)
        if isinstance(s, Do):
            self._do(made, s, place.known[here])
        elif isinstance(s, Wait | Arrive):
            ctas = [a.cta]
            if isinstance(s, Arrive) and s.to != "cta":
                ctas = p.along(a.cta, s.to)
            if isinstance(s, Arrive) and s.after:
                if s.after not in ARRIVALS or s.barrier.named or int(s.bytes):
                    uncertified(f"{made}: an arrival after {s.after}")
                if a.count != 1:
                    refuse(f"issuers: {made} by each of {a.count} threads; one commits")
            for cta in ctas:
                self._tell(made, s.barrier, place.known[here], cta)
        elif isinstance(s, Exit) and len(p.actors) > 1:
            uncertified("Exit beside other agents")
        p.actions.append(made)
        return made

    def _runs(self, s: Do) -> bool:
        below, extent, residue = (int(n) for n in s.lanes or (1, 1, 0))
        threads = range(self.actor.first, self.actor.first + self.actor.count)
        return any(t // below % extent == residue for t in threads)

    def _tell(
        self, made: Action, barrier: Barrier, at: tuple[Pace, int], cta: tuple[int, ...]
    ) -> None:
        if barrier.home:
            axes = [name for name, _ in self.protocol.program.cluster]
            if barrier.home not in axes or barrier.named:
                uncertified(f"{made}: no home {barrier.home}")
            cta = tuple(0 if n == barrier.home else r for n, r in zip(axes, cta, strict=True))
        place = self.protocol.phased(barrier, cta)
        if isinstance(made.statement, Wait) and place.cta != self.actor.cta:
            refuse(f"deadlock: {made} waits for a barrier of another CTA")
        if any(place is other for other, _ in made.told) and isinstance(made.statement, Arrive):
            uncertified(f"{made} arrives at a home twice")
        pace, offset = at
        self._agree(place, pace, made)
        made.told.append((place, offset))
        match made.statement:
            case Wait():
                place.waits.append((made, offset))
            case Arrive(bytes=expected):
                place.arrivals.append((made, offset))
                place.counts_bytes |= bool(int(expected))
            case _:
                place.counts_bytes = True

    def _agree(self, ring: PacedRing | Phased, pace: Pace, *what: object) -> None:
        if ring.pace != pace:
            both = ring.pace.with_(pace)
            if both is None:
                uncertified(*what, f"moves otherwise than others at {ring.name}")
            ring.pace = both
        if pace.turn:
            if isinstance(ring, Phased) or ring.takes not in ((0, 1), (self.start, self.step)):
                uncertified(*what, f"turns of several copies at {ring.name}")
            ring.takes = (self.start, self.step)

    def _touched(self, made: Action, s: Do, env: Mapping[str, int]) -> _Touched:
        """Return what an instruction touches, whichever CTA's it is."""
        p, a = self.protocol, self.actor
        entry, own = entry_of(s)
        if own:
            p.believed.add(s.instruction.name)
        require_types(s, entry)
        whole, before = int(a.role.threads), 0
        for role in p.program.roles[: p.program.roles.index(a.role)]:
            before += int(role.threads) * int(role.copies)
        if entry.issuer == "one" and a.count != 1:
            refuse(f"issuers: {a}: {s} by each of {a.count} threads; one issues it")
        if entry.issuer == "warpgroup" and (whole != 128 or before % 128):
            refuse(f"issuers: {a}: {s} by {whole} threads from {before} on, no warpgroup")
        if entry.issuer == "warp" and (whole % 32 or before % 32):
            refuse(f"issuers: {a}: {s} by {whole} threads from {before} on, no whole warps")
        if s.lanes is not None and (s.across or entry.issuer == "warp" or entry.done == "put"):
            uncertified(f"{s}: by some lanes of a warp")
        made.entry = entry
        fresh = None if s.fresh is None else self._linear(s.fresh, env, made.part)
        reads = []
        for i, read in enumerate(s.reads):
            if isinstance(read, Access):
                sums = entry.adds and i == 2
                if sums and read != s.write:
                    uncertified(f"{s} adds to other registers than it writes")
                reads.append(self._touch(made, s, read, env, write=False, adds=sums))
        if s.where is not None:
            reads.append(self._touch(made, s, s.write, env, write=False, adds=False))
        adds = entry.adds and s.signal is None
        write = self._touch(made, s, s.write, env, write=True, adds=adds)
        signal = None if s.signal is None else self._place(s.signal[1], env, made.part)
        return _Touched(entry, fresh, reads, write, signal)

    def _do(self, made: Action, s: Do, found: _Touched) -> None:
        """Note an instruction and its accesses to rings."""
        p, a, entry = self.protocol, self.actor, found.entry
        made.entry, made.fresh = entry, found.fresh
        ctas = [a.cta]
        if entry.done == "committed" and s.multicast:  # a pair, which multiplies together
            ctas = p.along(a.cta, s.multicast)
            if len(ctas) != 2 or any(cta < a.cta for cta in ctas):
                uncertified(f"{made}: products of {len(ctas)} CTAs, by {a}")
        for read in found.reads:
            for cta in ctas:
                self._refer(made, read, cta)
        if s.signal is None:
            for cta in ctas:
                self._refer(made, found.write, cta)
            if entry.done == "landed":
                refuse(f"balance: {made}: its bytes land at no barrier")
            return
        if entry.done != "landed" or found.signal is None:
            uncertified(f"{s}: a signal of what lands at no barrier")
        for to in p.along(a.cta, s.multicast):
            self._refer(made, found.write, to)
            self._tell(made, s.signal[0], found.signal, to)

    def _refer(self, made: Action, touch: _Touch | None, cta: tuple[int, ...]) -> None:
        """Note an access to a ring of a CTA, or of that at home."""
        if touch is None:
            return
        access, a = touch.access, self.actor
        if access.buffer.home and touch.write:
            axes = [name for name, _ in self.protocol.program.cluster]
            cta = tuple(
                int(access.peer) if name == access.buffer.home else rank
                for name, rank in zip(axes, a.cta, strict=True)
            )
            if cta not in self.protocol.ctas:
                uncertified(f"{made}: there is no CTA {cta}")
        ring = self.protocol.ring(a, access.buffer, cta)
        self._agree(ring, touch.pace, made, access)
        if touch.cells:
            one = Reference(ring, *touch[2:])
            made.references.append(one)
            ring.references.append((made, one))

    def _touch(
        self, made: Action, s: Do, access: Access, env: Mapping[str, int], *, write: bool,
        adds: bool,
    ) -> _Touch | None:  # fmt: skip
        """Return how an access touches its ring; None: it is to global memory."""
        p, buffer = self.protocol, access.buffer
        assert made.entry is not None
        levels = made.entry.writes if write else (made.entry.reads or ("registers",))
        if buffer.level not in (*levels, *(made.entry.writes if s.where else ())):
            uncertified(f"{s}: {buffer.name} is in {buffer.level}")
        if buffer.level == "gmem":
            p._known.setdefault(("gmem", buffer.name, write), True)
            if p._known.get(("gmem", buffer.name, not write)):
                uncertified(f"global memory {buffer.name} is read and written")
            return None
        if buffer.level not in ("smem", "registers", "tmem"):
            uncertified(f"{buffer.name} in {buffer.level}")
        pace, offset = self._place(access.index, env, made.part)
        cells = self._cells(made, s, access, env, write=write)
        if made.entry.done == "landed" and cells.bit_count() != prod(map(int, s.values)):
            uncertified(f"{s}: it writes a cell twice, or none")
        own = self._own(s, access, env) and made.entry.done in UNCOMMITTED
        return _Touch(access, pace, offset, cells, write, adds, own)

    def _own(self, s: Do, access: Access, env: Mapping[str, int]) -> bool:
        """Say whether thread t of a warpgroup touches cells of lane t of tensor memory alone."""
        if access.buffer.level != "tmem" or not access.thread or not s.threads:
            return False
        origin = self._constant(access.origin[0], env, s) if access.origin else 0
        below, plain = 1, origin == 0 and not any(int(step[0]) for step in access.value)
        for extent, step in zip(map(int, s.threads), access.thread, strict=True):
            plain &= extent == 1 or int(step[0]) == below
            below *= extent
        return plain and below == int(self.actor.role.threads)

    def _cells(
        self, made: Action, s: Do, access: Access, env: Mapping[str, int], *, write: bool
    ) -> int:
        """Return the cells that the agent's threads touch, or the team's where they do together."""
        a, buffer = self.actor, access.buffer
        assert made.entry is not None
        private, issuer = buffer.level == "registers", made.entry.issuer
        shape = tuple(int(n) for n in buffer.shape)
        values = tuple(int(n) for n in s.values)
        threads = tuple(int(n) for n in s.threads)
        thread = access.thread if threads else ()
        own = self._own(s, access, env)
        if made.entry.done == "put" and write and not own:
            uncertified(f"{s}: its threads have other lanes than their own")
        each_ = own or issuer == "thread"
        first, count = (a.first, a.count) if each_ else (0, int(a.role.threads))
        lanes = s.lanes
        if private or issuer == "one":
            thread, threads, first, count = (), (), 0, 1
        if private:
            self._require_lanes(buffer, s)
            lanes = None
        if thread and prod(threads) != int(a.role.threads):
            uncertified(f"{s}: its threads are not those of {a.role.name}")
        value = access.value or tuple((0,) * len(shape) for _ in values)
        found = box(shape, value, values, thread, threads, lanes, first, count)
        if found is None:
            return 0
        if write and not found.apart and not private and count > 1:
            refuse(f"race: {made}: two threads write one cell of {buffer.name}")
        origin = [self._constant(o, env, s) for o in access.origin] or [0] * len(shape)
        cells = placed(found, shape, tuple(origin))
        if cells is None:
            refuse(f"bounds: {made}: {access} reaches outside of a stage")
        return cells

    def _require_lanes(self, buffer: Buffer, s: Do) -> None:
        """Require that registers which some lanes write are touched by these lanes alone."""
        role = self.actor.role
        key = ("lanes", role.name, buffer.name)
        known = self.protocol._known
        if key not in known:
            dos = [t for t in each(role.body) if isinstance(t, Do)]
            writes = {t.lanes for t in dos if t.write.buffer.name == buffer.name}
            touch = {t.lanes for t in dos for a in (*t.accesses,) if a.buffer.name == buffer.name}
            known[key] = writes == {None} or len(touch) == 1
        if not known[key]:
            uncertified(f"{s}: {buffer.name} is touched by other lanes elsewhere")

    def _constant(self, form: Affine, env: Mapping[str, int], s: Statement) -> int:
        total = int(form.constant)
        for name, factor in form.terms:
            if isinstance(factor, str) or name not in env:
                uncertified(f"{s}: a place in a stage depends on {name}")
            total += int(factor) * env[name]
        return total

    def _parts(self, form: Affine, env: Mapping[str, int]) -> tuple[int, dict[str, int]]:
        """Return a form's constant, and its factors of k, trips, trips * tile, tile and turn."""
        constant = int(form.constant)
        found = dict.fromkeys(("k", "trips", "before", "tile", "turn"), 0)
        param, first = self.protocol.param, self.protocol.first or 0
        for name, factor in form.terms:
            tile = name == self.tile or (name == self.turn and self.step == 1)
            if isinstance(factor, str):
                if factor != param or not tile:
                    uncertified(f"an index with {factor} * {name}")
                found["before"] += 1
                found["tile"] += first  # by so many trips more than steps, in each tile
            elif name in env:
                constant += int(factor) * env[name]
            elif self.loop is not None and name == self.loop.var:
                found["k"] += int(factor)
                constant += first * int(factor)
            elif name == param:
                found["trips"] += int(factor)
                constant += first * int(factor)
            elif tile:
                found["tile"] += int(factor)
            elif name == self.turn:
                found["turn"] += int(factor)
            else:
                uncertified(f"an index with {name}")
        return constant, found

    def _place(self, form: Affine, env: Mapping[str, int], part: Part) -> tuple[Pace, int]:
        """Return the pace and the offset of an index."""
        constant, f = self._parts(form, env)
        if not self.protocol.tiled:
            f["before"] = f["tile"] = f["turn"] = 0
            tile: int | None = None
            turn: int | None = None
        else:
            tile, turn = (f["tile"], f["turn"]) if part != "start" else (None, None)
        step: int | None
        match part:
            case "loop":
                step = f["k"]
                if f["trips"] or (self.protocol.tiled and f["before"] != step):
                    uncertified(f"an index {form} in a loop over steps")
            case "tail":
                step = f["trips"]
                if f["k"] or (self.protocol.tiled and f["before"] != step):
                    uncertified(f"an index {form} behind a loop over steps")
            case "head" if self.protocol.tiled:
                step = f["before"]
                if f["k"] or f["trips"]:
                    uncertified(f"an index {form} before a loop over steps")
            case _:
                step = None if part in ("start", "head") else 0
                if f["k"] or f["trips"] or f["before"]:
                    uncertified(f"an index {form} outside of the loops")
        if any(n is not None and not 0 <= n <= _MOST for n in (step, tile, turn)):
            uncertified(f"an index {form} that moves back, or far")
        if abs(constant) > _MOST:
            uncertified(f"an index {form}")
        return Pace(step, tile, turn), constant

    def _linear(
        self, form: Affine, env: Mapping[str, int], part: Part, less: str = ""
    ) -> tuple[int, int, int]:
        """Return a form as (constant, factor of the steps done, factor of the steps left)."""
        constant, f = self._parts(form, env)
        if less:
            f["trips"] -= 1
            constant -= self.protocol.first or 0
        if self.protocol.tiled and (f["before"] or f["tile"] or f["turn"]):
            uncertified(f"{form} is compared, and depends on the tile")
        if f["trips"] and part in ("start", "end"):
            uncertified(f"{form} is compared outside of the loops")
        return constant, f["k"] + f["trips"], f["trips"]

    def _guard(
        self, index: Affine, bound: int | str, env: Mapping[str, int], part: Part
    ) -> tuple[int, int, int]:
        """Return the form that has to be below 0."""
        if isinstance(bound, str):
            if bound != self.protocol.param:
                uncertified(f"a guard {index} < {bound}")
            return self._linear(index, env, part, less=bound)
        constant, done, left = self._linear(index, env, part)
        return constant - int(bound), done, left
