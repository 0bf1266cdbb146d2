"""Clusters of a grid at work: one after another, their agents in turn; what is under way lands.

Between the points that the term orders, hardware may do anything in any order.  A *strategy* picks
which agent is next: leaders first, the others first, any, or one agent starved for as long as the
rest can go on.  What is under way lands as early as it may, as late as it may (when nobody can go
on, or at the wait that covers it), or at random, out of order unless it is ordered.  When nobody
can go on and nothing is under way, those that wait do so for ever: a deadlock.

A bar.sync counts threads that have left as missing, barrier.cluster does not (PTX).  Of a
persistent program one to three clusters are launched, by the seed.

Source: ``docs/model.md``, section "Meaning"; PTX ISA 9, 9.7.13 (barriers), 9.7.9.25 (groups).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal, assert_never

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.meaning.cluster import Agent, Cluster, InFlight, Run, Tiles, start_cluster
from tinygpu.meaning.execution import in_warps
from tinygpu.meaning.race import Finding
from tinygpu.meaning.transfers import arrive, released, start
from tinygpu.numbers import Booleans, Integers
from tinygpu.term.program import Arrive, Commit, Do, Exit, Fence, Program, Sync, Wait, WaitGroup

__all__ = ["STRATEGIES", "Strategy", "Turns", "raster_of", "run_grid", "taken",
           "tiles_of"]  # fmt: skip

Strategy = Literal["starve", "others", "leaders", "any"]
STRATEGIES: tuple[Strategy, ...] = ("starve", "others", "leaders", "any")
_LANDS_NEXT = 0.3
_MOST_NAMED = 6
_MOST_CLUSTERS = 3


def run_grid(run: Run, seed: int) -> None:
    """Run every cluster of the grid, in random order; stop at a deadlock."""
    program = run.program
    sizes = {a: run.values[a] for a in program.operation.axes}
    tiles = tiles_of(program, sizes)
    clusters = len(tiles)
    if program.persistent:
        clusters = min(clusters, 1 + seed % _MOST_CLUSTERS)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    for number in run.random.permutation(clusters).tolist():
        mine = taken(tiles, number, clusters, snake=program.snake)
        Turns(start_cluster(run, number, mine), strategy).run()
        if "deadlock" in run.found:
            return


def tiles_of(program: Program, sizes: Mapping[str, int]) -> Tiles:
    """Return the places of a program's grid in the order in which it is walked."""
    down = tuple(axis.down for axis in program.grid)
    return raster_of(program.grid_extents(sizes), int(program.raster), down, zigzag=program.zigzag)


def taken(tiles: Tiles, number: int, clusters: int, *, snake: bool) -> Tiles:
    """Return the tiles of a cluster among ``clusters``, in its order.

    >>> [taken(range(8), number, 3, snake=True) for number in range(3)]
    [[0, 5, 6], [1, 4, 7], [2, 3]]
    """
    found: list[tuple[int, ...]] = []
    for first in range(0, len(tiles), clusters):
        back = snake and len(found) % 2
        at = first + (clusters - 1 - number if back else number)
        found += tiles[at : at + 1]
    return found


def raster_of(
    extents: tuple[int, ...], raster: int, down: tuple[bool, ...] = (), *, zigzag: bool = False
) -> Tiles:
    """Return the grid's places in the order in which it is walked.

    >>> raster_of((3, 2), 1, zigzag=True)
    [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]
    """
    down = down or (False,) * len(extents)
    *outer, rows, columns = (1,) * (2 - len(extents)) + extents
    groups = list(product(*(range(n) for n in outer), range(0, rows, raster)))
    places = [
        (*o, row, column)
        for left, (*o, first) in zip(reversed(range(len(groups))), groups, strict=True)
        for column in range(columns)[:: -1 if zigzag and left % 2 else 1]
        for row in range(first, min(first + raster, rows))
    ]
    if not extents:
        return [()]
    ends = [n - 1 if back else 0 for n, back in zip(extents, down, strict=True)]
    return [
        tuple(abs(end - x) for end, x in zip(ends, p[-len(extents) :], strict=True)) for p in places
    ]


class Turns:
    """A cluster's agents, taking turns as a strategy says."""

    def __init__(self, cluster: Cluster, strategy: Strategy) -> None:
        """Rank the agents: the first that can goes on, so the last is starved."""
        self.cluster, self.strategy, self.random = cluster, strategy, cluster.run.random
        order = self.random.permutation(len(cluster.agents)).tolist()
        self.ranked = [cluster.agents[i] for i in order]
        if strategy in ("leaders", "others"):  # first threads first, or last
            last = strategy == "others"
            self.ranked.sort(key=lambda a: int(a.threads[0]), reverse=last)

    def run(self) -> None:
        """Run to the end, or until nobody can go on."""
        cluster = self.cluster
        while True:
            if cluster.run.landing == "random" and self.random.random() < _LANDS_NEXT:
                self._land(cluster.landing())
            if agent := self._following():
                self._step(agent)
            elif not self._land([f for f in cluster.landing() if f.alone]):
                break
        if stuck := [a for a in cluster.agents if not a.done]:
            self._deadlock(stuck)
        else:
            self._finish()

    def _following(self) -> Agent | None:
        """Return who is next, or None if nobody can go on."""
        if self.strategy != "any":
            return next((a for a in self.ranked if self._ready(a)), None)
        ready = [a for a in self.ranked if self._ready(a)]
        return ready[int(self.random.integers(len(ready)))] if ready else None

    def _land(self, flights: Sequence[InFlight]) -> bool:
        if flights:
            self.cluster.land(flights[int(self.random.integers(len(flights)))])
        return bool(flights)

    def _ready(self, agent: Agent) -> bool:
        if agent.next is None or agent.at is not None:
            return False
        statement, env = agent.next
        if lanes := _together(agent):
            return all(
                a.next is not None and a.next[0] is statement and a.next[1] == env for a in lanes
            )
        match statement:
            case Wait(barrier, index) if not barrier.named:
                if agent.waits is None:  # asked at every turn until it passes
                    phase = index.evaluate(env) // int(barrier.stages)
                    agent.waits = agent.cta.mbarrier(barrier, index, env), phase
                return agent.waits[0].passes(agent.waits[1])
            case WaitGroup(pending, group):
                groups = agent.groups[group]
                return all(not p.missing for g in groups[: _covered(groups, pending)] for p in g)
            case _:
                return True

    def _step(self, agent: Agent) -> None:
        """Execute the agent's next statement."""
        assert agent.next is not None
        statement, env = agent.next
        agent.tick()
        if lanes := _together(agent):
            assert isinstance(statement, Do)
            in_warps(lanes, statement, env)
            for lane in lanes:
                self._advance(lane)
            return
        match statement:
            case Do():
                start(agent, statement, env)
            case Exit():
                self._exit(agent, statement, env)
            case Sync():
                agent.at = statement
                self._meet(agent)
                return
            case Commit(group):
                agent.groups[group].append(agent.open[group])
                agent.open[group] = []
            case WaitGroup():
                self._wait_group(agent, statement)
            case Wait() | Arrive() if statement.barrier.named:
                self._at_named(agent, statement, env)
                return
            case Wait():
                self._wait(agent, statement, env)
            case Arrive():
                arrive(agent, statement, env)
            case Fence():
                match statement.how.orders:
                    case "proxy":
                        agent.fences.append(agent.time)
                    case "registers":
                        agent.ready = set(agent.registers)
                    case "before":
                        agent.before.append(agent.time)
                    case "after":
                        agent.seen = agent.clock.tolist()
                    case never:
                        assert_never(never)
            case _:
                assert_never(statement)
        self._advance(agent)

    def _exit(self, agent: Agent, leave: Exit, env: Mapping[str, int]) -> None:
        """Let threads leave of which no element is inside."""
        run = self.cluster.run
        if run.program.barriers:
            raise ProgramError(f"{leave}: threads of a role's copy leave together; guard")
        touched = run.touch.gmem(leave, leave.access, agent.threads, agent.key, env)
        inside: Booleans = np.asarray(touched.taken.any(axis=0))
        if not inside.all():
            self._unwaited(agent, agent.threads[~inside])
            agent.keep(inside)
            agent.steps = agent.steps if inside.any() else iter(())

    def _unwaited(self, agent: Agent, leaving: Integers) -> None:
        """Find what is under way of threads that leave."""
        for kind in dict.fromkeys((*agent.groups, *agent.open)):
            for flight in agent.under_way(kind):
                if flight.read and flight.uses[0].done:
                    continue  # a store may go on
                whose = leaving if flight.threads is None else flight.threads
                lost = np.isin(whose, leaving)
                if lost.any():
                    text = "is under way when its thread leaves; commit and wait for it"
                    thread = int(whose[lost.argmax()])
                    self.cluster.find("unwaited", agent, flight.do, text, thread=thread)

    def _advance(self, agent: Agent) -> None:
        agent.at, agent.next, agent.waits = None, next(agent.steps, None), None
        if agent.next is not None:
            return
        self._unwaited(agent, agent.threads)
        if agent is agent.cta.agents[0]:
            released(agent)
        waiting = [a for a in self.cluster.agents if _door(a) == ("cluster",)]
        if waiting:
            self._meet(waiting[0])

    def _meet(self, agent: Agent) -> None:
        """Let agents on if all that a barrier waits for are there."""
        here = self._beside(agent)
        if sum(a.threads.size for a in here) != self._wanted(agent):
            return
        if _door(agent) == ("cluster",):  # releases what was sent before
            for other in here:
                for flight in other.sent:
                    self.cluster.land(flight)
                other.sent = []
        rows = [a.number for a in here]
        self.cluster.known[rows] = np.max([a.says for a in here], axis=0)
        for other in here:
            other.at = None
        for other in here:
            self._advance(other)

    def _beside(self, agent: Agent) -> list[Agent]:
        """Return who stands at the barrier at which an agent stands."""
        door = _door(agent)
        return [a for a in self.cluster.agents if a.at is not None and _door(a) == door]

    def _wanted(self, agent: Agent) -> int:
        """Return how many threads the barrier at which an agent stands waits for."""
        assert isinstance(agent.at, Sync)
        match agent.at.scope:
            case "role":
                return int(agent.team.role.threads)
            case "cluster" if len(self.cluster.ctas) > 1:
                return sum(a.threads.size for a in self.cluster.agents if not a.done)
            case "cta" | "cluster":
                return int(self.cluster.run.program.threads)
            case _:
                assert_never(agent.at.scope)

    def _wait_group(self, agent: Agent, wait: WaitGroup) -> None:
        """Land what the wait covers; of stores, with ``read``, only the reading."""
        groups = agent.groups[wait.group]
        if not wait.how.committed:
            groups.append(agent.open[wait.group])
            agent.open[wait.group] = []
        covered = _covered(groups, wait.pending)
        for flight in [f for g in groups[:covered] for f in g]:
            if flight.read and wait.read:
                flight.read()
            else:
                while flight.queue and not flight.may_land and flight in flight.queue:
                    self.cluster.land(flight.queue[0])
                self.cluster.land(flight)
            for use in flight.uses:
                agent.complete(use)
        if not wait.read:
            del groups[:covered]

    def _wait(self, agent: Agent, wait: Wait, env: Mapping[str, int]) -> None:
        barrier = agent.cta.mbarrier(wait.barrier, wait.index, env)
        phase = wait.index.evaluate(env) // int(wait.barrier.stages)
        if barrier.phase <= phase:
            text = f"passes for phase {phase} in phase {barrier.phase}, of the other parity; wait"
            text += " for the phase before first"
            self.cluster.find("aliased", agent, wait, text)
        np.maximum(agent.clock, barrier.clock, out=agent.clock)

    def _at_named(self, agent: Agent, s: Wait | Arrive, env: Mapping[str, int]) -> None:
        """Arrive at a named barrier; let those on who wait there, if that ends its phase."""
        barrier = agent.cta.named_barrier(s.barrier, s.index, env)
        phase, threads = s.index.evaluate(env) // int(s.barrier.stages), agent.threads.size
        text = ""
        if agent in barrier.here:
            text = "arrives again before the phase in which it has arrived is complete; wait for it"
        elif barrier.phase != phase:
            text = f"means phase {phase} and counts in phase {barrier.phase}; wait for those before"
        if text:
            self.cluster.find("aliased", agent, s, text)
        if barrier.threads + threads > barrier.arrivals:
            text = f"brings {barrier.threads + threads} threads to a phase of {barrier.arrivals}"
            self.cluster.find("unbalanced", agent, s, f"{text}; count them")
        if isinstance(s, Wait):
            agent.at = s
        for one in barrier.arrive(agent, waits=isinstance(s, Wait)):
            self._advance(one)
        if isinstance(s, Arrive):
            self._advance(agent)

    def _deadlock(self, stuck: list[Agent]) -> None:
        """Say who waits for what."""
        waits = [f"{a.name} of CTA {a.cta.rank}: {self._lacking(a)}" for a in stuck[:_MOST_NAMED]]
        first = stuck[0]
        assert first.next is not None
        text = f"waits for ever, nothing is under way: {'; '.join(waits)}"
        self.cluster.find("deadlock", first, first.next[0], text)

    def _lacking(self, agent: Agent) -> str:
        """Say what an agent waits for that is not there."""
        assert agent.next is not None
        statement, env = agent.next
        if isinstance(statement, Wait) and statement.barrier.named:
            named = agent.cta.named_barrier(statement.barrier, statement.index, env)
            return f"{statement} has {named.threads} of {named.arrivals} threads"
        if isinstance(statement, Wait):
            barrier = agent.cta.mbarrier(statement.barrier, statement.index, env)
            index, stages = statement.index.evaluate(env), int(statement.barrier.stages)
            return (
                f"{statement} is phase {index // stages} of stage {index % stages}, which is in "
                f"phase {barrier.phase}: {barrier.pending} arrivals and {barrier.bytes} B missing"
            )
        if isinstance(statement, Sync):
            have = sum(a.threads.size for a in self._beside(agent))
            return f"{statement} has {have} of {self._wanted(agent)} threads"
        return f"{statement} of products that the others have not issued"

    def _finish(self) -> None:
        """Land what is left, and look at the mbarriers."""
        cluster, program = self.cluster, self.cluster.run.program
        while flights := cluster.landing():
            self._land(flights)
        for cta in cluster.ctas:
            for name, ring in cta.barriers.items():
                for stage, barrier in enumerate(ring):
                    if barrier.bytes:
                        text = (
                            f"{program.name}, cluster {cluster.place}, CTA {cta.rank}: {name}, "
                            f"stage {stage}, ends with {barrier.bytes} B expected that have not "
                            "landed (below 0: not expected); expect what is loaded"
                        )
                        place = (*cluster.place, cta.rank)
                        finding = Finding("unbalanced", name, text, place)
                        cluster.run.found.setdefault("unbalanced", finding)


def _together(agent: Agent) -> list[Agent]:
    """Return who has to come to what lanes do together next: those with threads of the same warps.

    The first thread of a role may act alone, and the others with it.  Else nobody has to.
    """
    statement = agent.next[0] if agent.next and agent.team.elects else None
    how = statement.instruction if isinstance(statement, Do) else None
    if how is None or not (how.crosses or how.warp_product):
        return []
    warps = set((agent.threads // 32).tolist())
    return [a for a in agent.team.agents if warps & set((a.threads // 32).tolist())]


def _covered(groups: Sequence[object], pending: int) -> int:
    return max(0, len(groups) - int(pending))


def _door(agent: Agent) -> tuple[object, ...] | None:
    """Return which barrier an agent waits at: named ones are a CTA's, whoever uses them."""
    match agent.at:
        case None | Wait():
            return None
        case Sync(scope="cluster"):
            return ("cluster",)
        case Sync(barrier, "role"):
            return (agent.cta.rank, int(barrier) + agent.team.copy)
        case Sync(barrier):
            return (agent.cta.rank, int(barrier))
