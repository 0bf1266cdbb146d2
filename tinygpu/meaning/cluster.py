"""A cluster at work: its CTAs, who acts in them, shared memory, mbarriers, registers.

Each copy of a role is cut into *agents*, threads that run in step: its first thread alone, if
something is done by one thread or the role uses mbarriers, and warps (of more than 8 in a CTA, sets
of them).  Nothing orders agents, nor threads of one agent, but what the term says.  What each knows
is a vector clock (``tinygpu.meaning.race``): a row for each agent, a column for each agent and each
mbarrier.  Waiting passes knowledge on: an arrival leaves what its agent knows at the mbarrier,
which hands it to whoever passes a wait once the phase is over.  A term without mbarriers has none
of their columns; its agents meet at bar.sync, and know everything that was done before.

An mbarrier is the hardware's: arrivals that are pending, a count of bytes, which may be below 0 for
a while, and one bit of the phase.

>>> ring = Mbarrier(arrivals=1, clock=np.zeros(2, np.int64), column=1)
>>> ring.passes(-1), ring.passes(0)
(True, False)
>>> ring.arrive(1, 128, np.array([7, 0])), ring.passes(0)   # one arrival; 128 B are expected
(True, False)
>>> ring.land(128, np.zeros(2, np.int64)); ring.passes(0), ring.clock.tolist()
(True, [7, 1])

Source: PTX ISA 9, 9.7.13.15 (mbarrier) and 8 (memory consistency, proxies).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, assert_never

import numpy as np

from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.memory import DType
from tinygpu.meaning.race import Finding, GlobalArray, Kind, Overlaps, Party, Shared, Stages, Use
from tinygpu.meaning.touched import Toucher
from tinygpu.numbers import Booleans, Floats, Integers
from tinygpu.term.program import (
    Affine,
    Arrive,
    Barrier,
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
    buffers_of,
    counted,
    each,
)

__all__ = [
    "Agent", "Cluster", "Cta", "InFlight", "Landing", "Mbarrier", "Registers", "Run", "Step",
    "Team", "ThreadBarrier", "Tiles", "divided", "place_of", "start_cluster",
]  # fmt: skip

Landing = Literal["late", "random", "early"]
Step = tuple[Do | Exit | Sync | Commit | WaitGroup | Wait | Arrive | Fence, Mapping[str, int]]
Tiles = list[tuple[int, ...]]
_WARP = 32
_MOST_AGENTS = 8


@dataclass(slots=True, eq=False)
class Run:
    """One interpretation: the program, its arrays, what was found, and what recurs."""

    program: Program
    values: Mapping[str, Any]
    scalars: Mapping[str, float]
    arrays: Mapping[str, GlobalArray]
    touch: Toucher
    random: np.random.Generator
    landing: Landing
    algebra: Algebra = FLOATS
    found: dict[Kind, Finding] = field(default_factory=dict)
    known: dict[Hashable, Any] = field(default_factory=dict)
    overlaps: Overlaps = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, int]:
        """Sizes and parameters, without arrays of integers."""
        arrays = {o.name for o in self.program.operation.indices}
        return {name: n for name, n in self.values.items() if name not in arrays}

    def given(self, source: Immediate | Scalar, dtype: DType) -> Floats:
        """Return a constant or an argument of the kernel, as it is in a register of a type."""
        match source:
            case Immediate(number):
                element = self.algebra.number(number)
            case Scalar(name, True):
                element = self.algebra.number(self.values[name])
            case Scalar(name):
                element = self.scalars[name]
            case _:
                assert_never(source)
        rounded: Floats = self.algebra.round(dtype, np.array(element)).astype(np.float64)
        return rounded


@dataclass(slots=True, eq=False)
class Mbarrier:
    """One mbarrier; ``clock`` is what a passed wait knows, its ``column`` counts phases."""

    arrivals: int
    clock: Integers
    column: int
    pending: int = 0
    bytes: int = 0
    phase: int = 0
    gathered: Integers = field(init=False)

    def __post_init__(self) -> None:
        """Begin the first phase."""
        self.pending = self.arrivals
        self.gathered = np.zeros_like(self.clock)

    def passes(self, phase: int) -> bool:
        """``try_wait.parity``: the current phase is of the other parity."""
        return self.phase % 2 != phase % 2

    def arrive(self, count: int, expected_bytes: int, clock: Integers) -> bool:
        """Count arrivals, having expected bytes first.  False: they are more than it takes."""
        self.bytes += expected_bytes
        self.pending -= count
        np.maximum(self.gathered, clock, out=self.gathered)
        fine = self.pending >= 0
        self._turn()
        return fine

    def land(self, landed_bytes: int, clock: Integers) -> None:
        """Count bytes that have landed."""
        self.bytes -= landed_bytes
        np.maximum(self.gathered, clock, out=self.gathered)
        self._turn()

    def _turn(self) -> None:
        if self.pending <= 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.arrivals
            np.maximum(self.clock, self.gathered, out=self.clock)
            self.clock[self.column] = self.phase
            self.gathered[:] = 0


@dataclass(slots=True, eq=False)
class ThreadBarrier:
    """One of a CTA's named barriers: who has arrived in its phase, and who of them waits.

    It counts threads, and is as new when all have come; that counts its phases.
    """

    arrivals: int
    clock: Integers
    here: list[Agent] = field(default_factory=list)
    waiting: list[Agent] = field(default_factory=list)
    phase: int = 0

    @property
    def threads(self) -> int:
        """Threads that have arrived."""
        return sum(agent.threads.size for agent in self.here)

    def arrive(self, agent: Agent, *, waits: bool) -> list[Agent]:
        """Let an agent arrive; return who may go on, if that ends the phase."""
        self.here.append(agent)
        if waits:
            self.waiting.append(agent)
        np.maximum(self.clock, agent.says, out=self.clock)
        if self.threads < self.arrivals:
            return []
        free, self.waiting, self.here = self.waiting, [], []
        for one in free:
            np.maximum(one.clock, self.clock, out=one.clock)
        self.clock[:] = 0
        self.phase += 1
        return free


class Registers(Stages):
    """Registers by stage, each of ``threads`` its own."""

    def __init__(self, buffer: Buffer, threads: int) -> None:
        """Poison every register."""
        self.buffer = buffer
        super().__init__((int(buffer.stages), int(buffer.stage_elements), threads))

    def keep(self, alive: Booleans) -> None:
        """Let the other threads leave."""
        self.value, self.index = self.value[..., alive], self.index[..., alive]


@dataclass(slots=True, eq=False)
class InFlight:
    """An asynchronous operation under way: ``act`` is what it does when it lands.

    ``uses`` are those of memory on chip; ``held`` its registers: name, stage, cells, whether it
    writes them.  ``queue``: what has been issued with it; it is done after all before it there, if
    it is ``ordered``.  ``missing``: agents that have not come to it yet.  ``alone``: it lands even
    if nobody waits for it.  ``read``: the first half of a store.  ``threads``: whose copies it has.
    """

    do: Statement
    act: Callable[[], object]
    uses: Sequence[Use] = ()
    held: Sequence[tuple[str, int, Integers, bool]] = ()
    queue: list[InFlight] | None = None
    ordered: bool = True
    missing: int = 0
    alone: bool = False
    read: Callable[[], None] | None = None
    threads: Integers | None = None

    def __post_init__(self) -> None:
        """Stand in the queue."""
        if self.queue is not None:
            self.queue.append(self)

    @property
    def may_land(self) -> bool:
        """Whether it may be done now."""
        return not self.missing and (
            self.queue is None or not self.ordered or self.queue[0] is self
        )

    def land(self) -> None:
        """Do it."""
        if self.queue is not None:
            self.queue.remove(self)
        self.act()

    def holds(self, name: str, stage: int, cells: Integers, *, writes: bool) -> bool:
        """Whether it uses these registers: writes them, or is in the way of who does."""
        return any(
            (name, stage) == (own, at) and (writes or writing) and bool(np.isin(cells, mine).any())
            for own, at, mine, writing in self.held
        )


@dataclass(slots=True, eq=False)
class Team:
    """A role's copy: its products in order of issue, its agents.

    ``first``: its first thread in the CTA.  ``elects``: the first thread is an agent.  ``late``:
    registers may be in use by what is under way.
    """

    role: Role
    copy: int
    first: int
    elects: bool
    late: bool
    agents: list[Agent] = field(default_factory=list)
    issued: list[InFlight] = field(default_factory=list)
    products: list[InFlight] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Agent(Party):
    """Threads that run in step; ``threads`` are their numbers in the copy, ``key`` stands for them.

    ``ready``: registers that it has not touched since its last wgmma.fence.  ``waits``: of the next
    statement, if it is a wait that was asked: its mbarrier and its phase.
    """

    cta: Cta = field(kw_only=True)
    team: Team = field(kw_only=True)
    threads: Integers = field(kw_only=True)
    registers: dict[str, Registers] = field(kw_only=True)
    steps: Iterator[Step] = field(default_factory=lambda: iter(()))
    next: Step | None = None
    waits: tuple[Mbarrier, int] | None = None
    at: Sync | Wait | None = None
    time: int = 0
    key: int = 0
    issued: int = 0
    open: dict[str, list[InFlight]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, list[list[InFlight]]] = field(default_factory=lambda: defaultdict(list))
    sent: list[InFlight] = field(default_factory=list)
    ready: set[str] = field(default_factory=set)
    queue: list[InFlight] = field(default_factory=list)  # its tcgen05.mma, cp and commits
    opened: dict[object, Use] = field(default_factory=dict)  # uses that no commit covers
    issued_uses: list[Use] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Name the set of threads."""
        self._rename()

    def _rename(self) -> None:
        known = self.cta.cluster.run.known
        self.key = known.setdefault((self.team.role.name, self.threads.tobytes()), len(known))

    @property
    def clock(self) -> Integers:
        """What its threads have been told."""
        row: Integers = self.cta.cluster.known[self.number]
        return row

    @property
    def says(self) -> Integers:
        """What those know whom it tells: what it was told, and what it has done."""
        clock: Integers = self.clock.copy()
        clock[self.number] = self.time
        return clock

    @property
    def first_in_grid(self) -> int:
        """Number, through the whole grid, of its copy's first thread."""
        cluster = self.cta.cluster
        cta = cluster.number * len(cluster.ctas) + self.cta.rank
        return cta * cluster.run.program.threads + self.team.first

    @property
    def leads(self) -> bool:
        """Whether its copy's first thread is one of it."""
        return bool(self.threads.size) and int(self.threads[0]) == 0

    @property
    def alone(self) -> bool:
        """Whether it is the first thread, which acts alone."""
        return self.team.elects and self.leads

    @property
    def done(self) -> bool:
        """Whether it has left."""
        return self.next is None

    @property
    def name(self) -> str:
        """Say who it is."""
        copy = f" {self.team.copy}" if int(self.team.role.copies) > 1 else ""
        name = f"{self.team.role.name}{copy}"
        if self.alone or not self.threads.size:
            return f"{name}'s first thread"
        return f"{name}'s threads from {self.threads[0]} to {self.threads[-1]}"

    def tick(self) -> None:
        """Begin a statement."""
        self.time += 1
        if self.threads.size == 1:
            self.cta.cluster.known[self.number, self.number] = self.time

    def launch(self, do: Do, flight: InFlight) -> None:
        """Put an operation into the group that its statement joins, and let it go."""
        assert do.joins is not None
        self.open[do.joins.name].append(flight)
        self.cta.cluster.launch(flight)

    def under_way(self, group: str) -> list[InFlight]:
        """Its operations of a kind of group that no wait has covered."""
        return [f for g in (*self.groups[group], self.open[group]) for f in g]

    def complete(self, use: Use) -> None:
        """Note that a use is done for this agent from now on."""
        if not use.done_for(self):
            use.done.append((self.number, self.time))

    def keep(self, alive: Booleans) -> None:
        """Let the other threads leave."""
        self.threads = self.threads[alive]
        self._rename()
        for held in self.registers.values():
            held.keep(alive)


@dataclass(slots=True, eq=False)
class Cta:
    """A CTA of a cluster: its ranks, shared memory, mbarriers and agents."""

    cluster: Cluster
    rank: int
    ranks: Mapping[str, int]
    shared: dict[tuple[str, int], Shared]
    barriers: dict[str, list[Mbarrier]]
    named: dict[int, ThreadBarrier] = field(default_factory=dict)
    agents: list[Agent] = field(default_factory=list)

    @property
    def exited(self) -> bool:
        """Whether all its threads have left."""
        return all(a.done for a in self.agents)

    def memory(self, agent: Agent, buffer: Buffer) -> Shared:
        """Return the instance of a shared buffer that an agent uses."""
        return self.shared[buffer.name, agent.team.copy if int(buffer.copies) > 1 else 0]

    def mbarrier(self, barrier: Barrier, index: Affine, env: Mapping[str, int]) -> Mbarrier:
        """Return the mbarrier of a ring that an index means."""
        ring = self.barriers[barrier.name]
        stage: int = index.evaluate(env) % len(ring)
        return ring[stage]

    def named_barrier(
        self, barrier: Barrier, index: Affine, env: Mapping[str, int]
    ) -> ThreadBarrier:
        """Return the named barrier of a ring that an index means."""
        assert barrier.number is not None
        return self.named[int(barrier.number) + index.evaluate(env) % int(barrier.stages)]

    def along(self, axis: str) -> list[Cta]:
        """Return the CTAs of its cluster along an axis, or several; itself, if it is no axis."""
        if not axis or len(self.cluster.ctas) == 1:
            return [self]
        free = axis.split()
        return [
            other
            for other in self.cluster.ctas
            if all(other.ranks[v] == r for v, r in self.ranks.items() if v not in free)
        ]

    def home(self, place: Barrier | Buffer, peer: int = 0) -> Cta:
        """Return the CTA whose mbarrier counts what it tells, whose memory has what it writes."""
        return self.along(place.home)[peer if place.home else 0]

    def reached(self, arrive: Arrive) -> list[Cta]:
        """Return the CTAs at whose mbarriers an arrival counts."""
        ctas = self.cluster.ctas if arrive.to == "cluster" else self.along(arrive.to)
        return [cta.home(arrive.barrier) for cta in ctas]


@dataclass(slots=True, eq=False)
class Cluster:
    """The CTAs of a cluster, what their agents know, and what is under way.

    ``place``: the tile's place in the grid; of a persistent program the cluster's number.
    """

    run: Run
    number: int
    place: tuple[int, ...]
    known: Integers
    ctas: list[Cta] = field(default_factory=list)
    flying: dict[int, InFlight] = field(default_factory=dict)

    @property
    def agents(self) -> list[Agent]:
        """The agents of all CTAs."""
        return [a for cta in self.ctas for a in cta.agents]

    def live(self) -> list[int]:
        """Return what every agent at work knows."""
        rows = [a.number for a in self.agents if not a.done]
        least: list[int] = self.known[rows].min(axis=0).tolist()
        return least

    def launch(self, flight: InFlight) -> None:
        """Let an operation go."""
        self.flying[id(flight)] = flight
        self.hurry()

    def hurry(self) -> None:
        """Land all that may, if operations land early."""
        while self.run.landing == "early" and (ready := self.landing()):
            for flight in ready:
                self.land(flight)

    def landing(self) -> list[InFlight]:
        """Return what may land now."""
        return [f for f in self.flying.values() if f.may_land]

    def land(self, flight: InFlight) -> None:
        """Land one, unless it has landed."""
        if self.flying.pop(id(flight), None) is not None:
            flight.land()

    def find(
        self,
        kind: Kind,
        agent: Agent,
        s: Statement,
        text: str,
        cell: str = "",
        other: str = "",
        *,
        thread: int | None = None,
    ) -> None:
        """Record a finding unless there is one of this kind; ``thread``: which of the copy's."""
        if kind in self.run.found:
            return
        if thread is None:
            thread = int(agent.threads[0]) if agent.threads.size else 0
        many = len(self.ctas) > 1
        cta = (*self.place, agent.cta.rank) if many else self.place
        where = f"cluster {self.place}, CTA {agent.cta.rank}" if many else f"CTA {self.place}"
        who = agent.team.first + thread
        message = f"{self.run.program.name}, {where}, thread {who}, {agent.name}: {s} {text}"
        self.run.found[kind] = Finding(kind, str(s), message, cta, (who,), cell, other)


# The start of a cluster


def start_cluster(run: Run, number: int, tiles: Tiles) -> Cluster:
    """Start the CTAs of a cluster: poisoned memory, fresh mbarriers, agents at their first step."""
    program = run.program
    names, extents = [v for v, _ in program.cluster], [int(n) for _, n in program.cluster]
    ranks = [dict(zip(names, r[::-1], strict=True))
             for r in product(*(range(n) for n in extents[::-1]))]  # fmt: skip
    agents = sum(map(len, _partition(run)))
    stages = sum(int(b.stages) for b in program.barriers if not b.named)
    known = np.zeros((agents * len(ranks), (agents + stages) * len(ranks)), np.int64)
    cluster = Cluster(run, number, (number,) if program.persistent else tiles[0], known)
    column = len(known)
    for rank, own in enumerate(ranks):
        shared = {
            (b.name, copy): Shared(b, run.overlaps)
            for b in program.buffers
            if b.level in ("smem", "tmem")
            for copy in range(int(b.copies))
        }
        cta = Cta(cluster, rank, own, shared, {})
        for b in program.barriers:
            fresh = np.zeros(known.shape[1], np.int64)
            if b.number is not None:
                for s in range(int(b.stages)):
                    cta.named[int(b.number) + s] = ThreadBarrier(int(b.arrivals), fresh.copy())
                continue
            cta.barriers[b.name] = [
                Mbarrier(int(b.arrivals), fresh.copy(), column + s) for s in range(int(b.stages))
            ]
            column += int(b.stages)
        cluster.ctas.append(cta)
    for cta in cluster.ctas:
        _add_agents(cta, tiles)
    return cluster


def _add_agents(cta: Cta, tiles: Tiles) -> None:
    """Add the agents of each copy of each role."""
    cluster, run = cta.cluster, cta.cluster.run
    program, first = run.program, 0
    parts, number = iter(_partition(run)), len(cluster.agents)
    around = {**run.values, **cta.ranks}
    if not program.persistent:
        around |= place_of(program, tiles[0])
    for role in program.roles:
        held = [b for b in buffers_of(role.body) if b.level == "registers"]
        for copy in range(int(role.copies)):
            team = Team(role, copy, first, _elects(role.body), _is_late(role.body))
            env = {**around, role.copy: copy} if role.copy else around
            for mine in next(parts):
                own = {b.name: Registers(b, mine.size) for b in held}
                agent = Agent(number, cta=cta, team=team, threads=mine, registers=own)
                agent.steps = _unfold(role.body, env, tiles, program, leads=agent.leads)
                number += 1
                team.agents.append(agent)
                cta.agents.append(agent)
            first += int(role.threads)
    for agent in cta.agents:
        agent.next = next(agent.steps, None)


def _partition(run: Run) -> list[list[Integers]]:
    """Return the agents' threads, for each copy of each role; the same in every CTA of a run."""
    if "partition" not in run.known:
        roles = run.program.roles
        warps = sum(-(-int(r.threads) // _WARP) * int(r.copies) for r in roles)
        run.known["partition"] = [
            divided(int(r.threads), warps, run.random, first=_elects(r.body))
            for r in roles
            for _ in range(int(r.copies))
        ]
    found: list[list[Integers]] = run.known["partition"]
    return found


def divided(
    threads: int, warps: int, random: np.random.Generator, *, first: bool
) -> list[Integers]:
    """Divide a copy's threads into its first one, if that acts alone, and warps or sets of warps.

    ``warps`` are the CTA's: of more than 8 in all, a copy has sets in proportion.
    """
    own = -(-threads // _WARP)
    sets = own if warps <= _MOST_AGENTS else max(1, _MOST_AGENTS * own // warps)
    drawn = random.permutation(own) if sets < own else np.arange(own)
    lanes = np.arange(_WARP)
    parts = [(np.sort(s)[:, None] * _WARP + lanes).ravel() for s in np.array_split(drawn, sets)]
    parts = sorted((p[(p < threads) & (p >= first)] for p in parts), key=lambda p: p[:1].sum())
    return [p for p in ([np.arange(1)] * first + parts) if p.size]


def _elects(body: tuple[Statement, ...]) -> bool:
    """Whether one thread does something alone, or mbarriers let one thread lag behind."""
    return any(
        isinstance(s, Elect)
        or any(isinstance(use.ring, Barrier) and not use.ring.named for use in s.uses)
        or (isinstance(s, Do) and s.instruction.issuer == "one")
        for s in each(body)
    )


def _is_late(body: tuple[Statement, ...]) -> bool:
    """Whether there are instructions that use registers after they were issued."""
    return any(isinstance(s, Do) and s.joins and s.joins.holds for s in each(body))


def place_of(program: Program, tile: tuple[int, ...]) -> dict[str, int]:
    """Return the grid's variables at a tile."""
    return {a.var: p for a, p in zip(program.grid, tile, strict=True)}


def tiles_of(
    loop: ForTile, env: Mapping[str, int], tiles: Tiles, program: Program
) -> Iterator[dict[str, int]]:
    """Yield what a loop binds in each of its tiles; ``tiles`` are all those of the cluster.

    A tile's values count on: over all tiles before it, and over those of this loop.
    """
    start, step = int(loop.start.evaluate(env)), int(loop.step)
    variables = loop.tile, loop.turn
    running = {counted(v, name): 0 for name in loop.defines for v in variables}
    for t, place in enumerate(tiles):
        here = place_of(program, place)
        values = loop.values_at({**env, **here})
        own = t >= start and (t - start) % step == 0
        if own:
            yield {loop.tile: t, loop.turn: (t - start) // step, **here, **values, **running}
        for name, number in values.items():
            for variable, goes_on in ((loop.tile, True), (loop.turn, own)):
                running[counted(variable, name)] += number * goes_on


def _unfold(
    body: tuple[Statement, ...],
    env: Mapping[str, int],
    tiles: Tiles,
    program: Program,
    *,
    leads: bool,
) -> Iterator[Step]:
    """Yield the statements of an agent in program order, with the variables' values."""
    for s in body:
        inner: list[Mapping[str, int]] = []
        match s:
            case For(var, trips, _, _, start):
                end = env[trips] if isinstance(trips, str) else int(trips)
                inner = [{**env, var: i} for i in range(start, end)]
            case ForTile():
                inner = [{**env, **here} for here in tiles_of(s, env, tiles, program)]
            case When(index, bound):
                if index.evaluate(env) < (env[bound] if isinstance(bound, str) else int(bound)):
                    inner = [env]
            case Elect():
                inner = [env] if leads else []
            case Do() | Exit() | Sync() | Commit() | WaitGroup() | Wait() | Arrive() | Fence():
                yield s, env
                continue
            case _:
                assert_never(s)
        for here in inner:
            yield from _unfold(s.body, here, tiles, program, leads=leads)
