"""A cluster at work: who knows what is done, shared memory, mbarriers, registers of a tile.

Each copy of a role is two *agents*: its first thread, the *leader*, and the others.  Nothing orders
them but what the term says.  Knowledge is a vector clock: a row for each agent, a column for each
agent and each mbarrier.  Agent g knows of what agent h did at h's time u if ``known[g, h] >= u``,
and of bytes that landed at mbarrier b in phase p if ``known[g, b] > p``.  Waiting passes knowledge
on: an arrival leaves what its agent knows at the mbarrier, which hands it to whoever passes a wait
once the phase is over.

A *use* of shared memory is done when its ``done`` says so: at once for a plain instruction, at the
``wait_group`` of an agent for a product, a store or a cp.async, when the phase that its bytes
belong to is over for a TMA load.  Two uses of a cell, not both reads, of which the second is
issued by an agent that does not know that the first is done, are a race, whatever came first in
this execution.  The asynchronous proxy, besides, needs to know of the writer's fence.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import ProgramError
from tinygpu.execution import Run
from tinygpu.fragment import FRAGMENTS
from tinygpu.program import (
    Arrive,
    Buffer,
    Commit,
    Do,
    Exit,
    Fence,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
)
from tinygpu.race import UNWRITTEN, Finding, Integers, Kind
from tinygpu.synchronization import Group

__all__ = [
    "Agent",
    "Cluster",
    "Cta",
    "Flight",
    "Mbarrier",
    "Registers",
    "Shared",
    "Step",
    "Team",
    "Use",
]

Step = tuple[Do | Exit | Sync | Commit | WaitGroup | Wait | Arrive | Fence, Mapping[str, int]]
_MANY_USES = 24
_GROUPS: tuple[Group, ...] = ("cp.async", "wgmma", "bulk", "tcgen05.ld", "tcgen05.st")


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
class Use:
    """A use of shared memory: ``done`` are columns and the times from which they know of it.

    ``pipe``: the agent whose tcgen05.mma or, if it ``copies``, cp it is; products are done after
    what that has issued before, copies are not.  ``tensor``: it is of a tcgen05.ld or st.
    """

    do: Do
    cells: Integers
    agent: int
    writes: bool
    plain: bool
    done: list[tuple[int, int]]
    fenced: int | None = None
    pipe: Agent | None = None
    copies: bool = False
    tensor: bool = False

    def known(self, clock: Integers) -> bool:
        """Whether an agent with this clock knows that it is done."""
        return any(clock[column] >= time for column, time in self.done)

    def visible(self, clock: Integers) -> bool:
        """Whether the asynchronous proxy sees it."""
        if not (self.plain and self.writes):
            return True
        return self.fenced is not None and bool(clock[self.agent] >= self.fenced)


class Shared:
    """A ring in shared or tensor memory of one CTA (of one copy): values, ring indices, uses."""

    def __init__(self, buffer: Buffer) -> None:
        """Poison every cell."""
        self.buffer = buffer
        self.value = np.full(int(buffer.elements), np.nan)
        self.index = np.full(int(buffer.elements), UNWRITTEN)
        self.uses: list[list[Use]] = [[] for _ in range(int(buffer.stages))]
        self._mark = np.zeros(int(buffer.elements), np.bool_)

    def common(self, one: Integers, other: Integers) -> int | None:
        """Return a cell of both, or None."""
        self._mark[one] = True
        hit = self._mark[other]
        self._mark[one] = False
        return int(other[hit.argmax()]) if hit.any() else None

    def twice(self, cells: Integers) -> bool:
        """Whether a cell occurs twice."""
        self._mark[cells] = True
        different = int(np.count_nonzero(self._mark))
        self._mark[cells] = False
        return different < cells.size

    def remember(self, stage: int, use: Use, clock: Integers, live: Integers) -> None:
        """Add a use; forget those that nobody can be in a race with any more.

        ``live``: what every agent at work knows.
        """
        uses = self.uses[stage]
        whole = use.writes and use.cells.size == int(self.buffer.stage_elements)
        if whole or len(uses) >= _MANY_USES:
            uses = [
                u
                for u in uses
                if not ((whole and u.known(clock)) or (u.known(live) and u.visible(live)))
            ]
        uses.append(use)
        self.uses[stage] = uses


class Registers:
    """Registers of a copy: of a tile if the buffer is a fragment, else of each thread."""

    def __init__(self, buffer: Buffer, threads: int) -> None:
        """Poison every register; ``owner``: the thread that holds each cell of a fragment."""
        self.buffer = buffer
        self.owner: Integers | None = None
        self.size = int(buffer.elements)
        if buffer.fragment:
            if FRAGMENTS[buffer.fragment].threads != threads:
                raise ProgramError(
                    f"{buffer.name}: fragment {buffer.fragment} is of "
                    f"{FRAGMENTS[buffer.fragment].threads} threads, a copy of the role has "
                    f"{threads}; give the role as many"
                )
            self.owner = _owners(buffer)
        else:
            self.size *= threads
        self.value = np.full(self.size, np.nan)
        self.index = np.full(self.size, UNWRITTEN)


def _owners(buffer: Buffer) -> Integers:
    """Return the thread that holds each cell of a stage."""
    shape = (int(buffer.shape[0]), int(buffer.shape[1]))
    rows, columns = FRAGMENTS[buffer.fragment].places(shape)
    owner = np.full(int(buffer.stage_elements), -1)
    cells = np.asarray(buffer.layout((rows, columns)))
    owner[cells] = np.arange(len(rows))[:, None]
    return owner


class Flight(Protocol):
    """An asynchronous operation under way: it may land now, or has to wait for another."""

    @property
    def may_land(self) -> bool:
        """Whether it may be done now."""

    def land(self) -> None:
        """Do it."""


@dataclass(slots=True, eq=False)
class Team:
    """A role's copy: its registers, its products in order of issue, and its agents."""

    role: Role
    copy: int
    first: int
    registers: dict[str, Registers]
    agents: list[Agent] = field(default_factory=list)
    issued: list[Any] = field(default_factory=list)
    products: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Agent:
    """The leader of a team, or the others; ``threads`` are their numbers in the copy."""

    number: int
    cta: Cta
    team: Team
    leader: bool
    threads: Integers
    steps: Iterator[Step]
    next: Step | None = None
    at: Sync | None = None
    issued: int = 0
    open: dict[Group, list[Any]] = field(default_factory=lambda: {g: [] for g in _GROUPS})
    groups: dict[Group, list[list[Any]]] = field(default_factory=lambda: {g: [] for g in _GROUPS})
    sent: list[Flight] = field(default_factory=list)
    fenced: set[str] = field(default_factory=set)
    unfenced: list[Use] = field(default_factory=list)
    queue: list[Any] = field(default_factory=list)  # its tcgen05.mma, cp and commits
    opened: dict[object, Use] = field(default_factory=dict)  # uses that no commit covers
    issued_uses: list[Use] = field(default_factory=list)
    untold: list[Use] = field(default_factory=list)  # done, and no tcgen05.fence since
    seen: Integers | None = None  # what it knew at its last tcgen05.fence

    @property
    def clock(self) -> Integers:
        """What it knows."""
        row: Integers = self.cta.cluster.known[self.number]
        return row

    @property
    def time(self) -> int:
        """How many statements it has executed."""
        return int(self.clock[self.number])

    @property
    def first_in_grid(self) -> int:
        """Number, through the whole grid, of its copy's first thread."""
        cluster = self.cta.cluster
        cta = cluster.number * len(cluster.ctas) + self.cta.rank
        return cta * cluster.run.program.threads + self.team.first

    def under_way(self, group: Group) -> list[Any]:
        """Its operations of a kind of group that no wait has covered."""
        return [f for g in (*self.groups[group], self.open[group]) for f in g]

    def complete(self, use: Use) -> None:
        """Note that a use is done for this agent from now on; a plain write wants a fence."""
        if any(column == self.number for column, _ in use.done):
            return
        use.done.append((self.number, self.time))
        if use.writes and use.plain:
            self.unfenced.append(use)
        if use.tensor:
            self.untold.append(use)

    @property
    def done(self) -> bool:
        """Whether it has left."""
        return self.next is None

    @property
    def name(self) -> str:
        """Say who it is."""
        copy = f" {self.team.copy}" if int(self.team.role.copies) > 1 else ""
        return f"{self.team.role.name}{copy}" + ("'s first thread" if self.leader else "'s others")


@dataclass(slots=True, eq=False)
class Cta:
    """A CTA of a cluster: its ranks, shared memory, mbarriers and agents."""

    cluster: Cluster
    rank: int
    ranks: Mapping[str, int]
    shared: dict[tuple[str, int], Shared]
    barriers: dict[str, list[Mbarrier]]
    agents: list[Agent] = field(default_factory=list)

    @property
    def exited(self) -> bool:
        """Whether all its threads have left."""
        return all(a.done for a in self.agents)

    def memory(self, agent: Agent, buffer: Buffer) -> Shared:
        """Return the instance of a shared buffer that an agent uses."""
        return self.shared[buffer.name, agent.team.copy if int(buffer.copies) > 1 else 0]


@dataclass(slots=True, eq=False)
class Cluster:
    """The CTAs of a cluster, what their agents know, and what is under way."""

    run: Run
    number: int
    known: NDArray[np.int64]
    narrowed: dict[tuple[int, int], Do]
    ctas: list[Cta] = field(default_factory=list)
    flying: list[Flight] = field(default_factory=list)

    @property
    def agents(self) -> list[Agent]:
        """The agents of all CTAs."""
        return [a for cta in self.ctas for a in cta.agents]

    @property
    def live(self) -> Integers:
        """What every agent at work knows."""
        rows = [a.number for a in self.agents if not a.done]
        least: Integers = self.known[rows].min(axis=0)
        return least

    def launch(self, flight: Flight) -> None:
        """Let an operation go."""
        self.flying.append(flight)
        self.hurry()

    def hurry(self) -> None:
        """Land all that may, if operations land early."""
        while self.run.landing == "early" and (ready := [f for f in self.flying if f.may_land]):
            for flight in ready:
                self.land(flight)

    def land(self, flight: Flight) -> None:
        """Land one, unless it has landed."""
        if any(flight is f for f in self.flying):
            self.flying = [f for f in self.flying if f is not flight]
            flight.land()

    def find(
        self, kind: Kind, agent: Agent, s: Statement, text: str, cell: str = "", other: str = ""
    ) -> None:
        """Record a finding unless there is one of this kind."""
        cta, team = (self.number, agent.cta.rank), agent.team
        head = f"{self.run.program.name}, cluster {cta[0]}, CTA {cta[1]}, {agent.name}: {s}"
        thread = team.first + int(agent.threads[0])
        finding = Finding(kind, str(s), f"{head} {text}", cta, (thread,), cell, other)
        self.run.found.setdefault(kind, finding)
