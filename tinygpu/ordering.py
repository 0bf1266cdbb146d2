"""Ordering: the event graph of asynchronous programs, and which event comes before which.

Each event has an *issue* node; what completes later has a *done* node, a wait a *pass* node.  The
edges are:

    program order     from an event (a wait: its pass) to the issue of its agent's next one
    mbarrier          from every contribution to an index of a barrier (arrivals when issued, loads
                      when they have landed) to the pass of every wait for this index
    group             from the done of what the groups older than the newest N hold to the pass of
                      wait_group N; a bulk store has two: its source is read, and all is done
    barriers          from the issue of each member's j-th one to every member's pass of its j-th
    product           a warpgroup's j-th wgmma is issued when both its agents have come to it
    commit            a tcgen05.mma or cp is done at the pass of a wait for a later tcgen05.commit

Every node lies in one agent's order, or is the done of an operation, which only passes observe.
So reachability needs no search: a *clock* gives for each agent how many of its events come
before.  A pass takes the maximum of the clocks of what it waits for, and one walk, in which an
agent goes on until it has to wait, visits the graph in topological order; agents that can never go
on wait in a cycle.  p comes before q if q's clock counts p, or, for an operation, a pass that
observed it.

>>> join((1, 0, 2), (0, 3, 2))
(1, 3, 2)

Source: ``docs/model-concurrency.md``, section "Asynchronous programs"; C. Fidge and F. Mattern on
vector clocks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from tinygpu.agents import Agent, Event
from tinygpu.protocol import Act
from tinygpu.synchronization import Arrive, Commit, Group, Sync, Wait, WaitGroup

__all__ = [
    "Clock",
    "Flight",
    "Order",
    "Phase",
    "Place",
    "along",
    "before",
    "join",
    "meeters",
    "order",
    "phases",
]

_GROUPS: dict[str, Group] = {
    "copy": "cp.async", "store": "bulk", "take": "tcgen05.ld", "put": "tcgen05.st",
}  # fmt: skip
Cluster = tuple[tuple[str, int], ...]
Clock = tuple[int, ...]
Place = tuple[int, int]  # an agent's number, and a position among its events
Phase = tuple[int, str, int]  # a CTA, a barrier of it, an index
Key = tuple[object, ...]


@dataclass(slots=True)
class Flight:
    """An operation that completes later; ``places`` issue it (of a product, both agents).

    ``clock`` is at its issue, for which ``missing`` agents have yet to come.  ``read`` and ``done``
    are the passes of wait_group that observe that its sources are read, and that all is done.
    A load is observed by the waits for its ``phases``, a tcgen05.mma or cp by those for commits
    after it.
    """

    event: Event
    places: list[Place]
    clock: Clock
    missing: int = 0
    phases: tuple[Phase, ...] = ()
    read: list[Place] = field(default_factory=list)
    done: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class Order:
    """The clocks: ``clocks[agent][position]`` at each issue, and one more at an agent's end.

    ``passes``: the waits for each phase.  ``stuck``: where agents stand that can never go on.
    """

    agents: tuple[Agent, ...]
    clocks: list[list[Clock]]
    flights: dict[Place, Flight]
    passes: dict[Phase, list[Place]]
    stuck: list[Place]


def before(passes: list[Place], clock: Clock) -> bool:
    """Say whether one of some passes (or of events done at once) comes before a clock's node."""
    return any(clock[agent] > position for agent, position in passes)


def join(one: Clock, other: Clock) -> Clock:
    """Return the clock of what comes after both."""
    return tuple([a if a > b else b for a, b in zip(one, other, strict=True)])


def phases(cluster: Cluster, cta: int, event: Event) -> tuple[Phase, ...]:
    """Return the phases to which an event of a CTA contributes: none if it does not arrive."""
    node = event.node
    if type(node) is Act:
        if node.signal is None:
            return ()
        reach, barrier = node.multicast, node.signal[0]
    elif type(node) is Arrive:
        reach, barrier = node.to, node.barrier
    else:
        return ()
    name, at = barrier.name, event.at
    return tuple((c, name, at) for c in _homes(cluster, cta, reach, barrier.home))


@lru_cache(4096)
def _homes(cluster: Cluster, cta: int, reach: str, home: str) -> tuple[int, ...]:
    """Return the CTAs whose barrier is told, by one that tells all along an axis, or them all."""
    every = range(prod(extent for _, extent in cluster))
    ctas = every if reach == "cluster" else along(cluster, cta, reach)
    return tuple(along(cluster, c, home)[0] for c in ctas)


@lru_cache(4096)
def along(cluster: Cluster, cta: int, axis: str) -> tuple[int, ...]:
    """Return the CTAs of a cluster along an axis, or several; itself alone, if it is no axis."""
    found: tuple[int, ...] = (cta,)
    stride = 1
    for name, extent in cluster:
        if name in axis.split():
            apart = range(0, extent * stride, stride)
            found = tuple(c - c // stride % extent * stride + far for far in apart for c in found)
        stride *= extent
    return found


def meeters(agent: Agent, sync: Sync) -> Key:
    """Return which of a barrier's groups an agent belongs to."""
    match sync.scope:
        case "cluster":
            return (sync,)
        case "cta":
            return (sync, agent.cta)
        case "role":
            return (sync, agent.cta, agent.crew.name, agent.copy)


def order(agents: tuple[Agent, ...], cluster: Cluster) -> Order:
    """Walk the graph; every wait for an index has the contributions that it needs (balance)."""
    walk = _Walk(agents, cluster)
    walk.run()
    walk.commits()
    stuck = [(n, at) for n, at in enumerate(walk.at) if at < len(agents[n].events)]
    return Order(agents, walk.clocks, walk.flights, walk.passes, stuck)


class _Walk:
    """The state of the walk."""

    def __init__(self, agents: tuple[Agent, ...], cluster: Cluster) -> None:
        self.agents, self.cluster = agents, cluster
        self.none: Clock = (0,) * len(agents)
        self.at = [0] * len(agents)
        self.now = [self.none for _ in agents]
        self.clocks: list[list[Clock]] = [[] for _ in agents]
        self.flights: dict[Place, Flight] = {}
        self.passes: dict[Phase, list[Place]] = defaultdict(list)
        self.missing: dict[Key, int] = defaultdict(int)
        self.reached: dict[Key, Clock] = {}
        self.waiting: dict[Key, list[int]] = defaultdict(list)
        self.groups: dict[tuple[int, str], list[list[Flight]]] = defaultdict(lambda: [[]])
        self.covered: dict[tuple[int, str, bool], int] = defaultdict(int)
        self.products: dict[Key, Flight] = {}
        self.turns: dict[Key, int] = defaultdict(int)
        self.came: set[Place] = set()
        for agent in agents:
            for event in agent.events:
                for phase in phases(cluster, agent.cta, event):
                    self.missing[phase] += 1

    def run(self) -> None:
        """Go on with each agent until nobody can."""
        ready = list(range(len(self.agents)))
        while ready:
            number = ready.pop()
            events = self.agents[number].events
            clocks = self.clocks[number]
            while (position := self.at[number]) < len(events):
                if len(clocks) == position:
                    clocks.append(self.now[number])
                blocked = self.step((number, position), events[position], ready)
                if blocked is not None:
                    self.waiting[blocked].append(number)
                    break
                self.at[number] = position + 1
            else:
                clocks.append(self.now[number])

    def step(self, place: Place, event: Event, ready: list[int]) -> Key | None:
        """Take an event; return what the agent has to wait for first, if anything."""
        number, position = place
        clock = self.now[number]
        after = (*clock[:number], position + 1, *clock[number + 1 :])
        node, cta = event.node, self.agents[number].cta
        if isinstance(node, Act):
            self.act(place, event, node, after, ready)
        elif isinstance(node, Arrive):
            for phase in phases(self.cluster, cta, event):
                self.give(phase, after, ready)
        elif isinstance(node, Wait):
            if event.at >= 0:
                phase = (cta, node.barrier.name, event.at)
                if self.missing[phase] > 0:
                    return phase
                after = join(after, self.reached.get(phase, self.none))
                self.passes[phase].append(place)
        elif isinstance(node, Sync):
            key = self.meeting(place, node)
            if place not in self.came:
                self.came.add(place)
                self.give(key, clock, ready)
            if self.missing[key] > 0:
                return key
            self.turns[number, node] += 1
            after = join(after, self.reached[key])
        elif isinstance(node, Commit):
            self.groups[number, node.group].append([])
        elif isinstance(node, WaitGroup):
            blocked, after = self.wait_group(place, node, after)
            if blocked is not None:
                return blocked
        self.now[number] = after
        return None

    def act(self, place: Place, event: Event, node: Act, after: Clock, ready: list[int]) -> None:
        """Issue an operation: it is in flight, unless it is done at once."""
        number, kind = place[0], node.kind
        if kind == "product":
            self.product(place, event, after, ready)
        elif kind != "generic":
            reach = phases(self.cluster, self.agents[number].cta, event)
            flight = self.flights[place] = Flight(event, [place], self.now[number], 0, reach)
            for phase in reach:
                self.give(phase, after, ready)
            if kind in _GROUPS:
                self.groups[number, _GROUPS[kind]][-1].append(flight)

    def wait_group(self, place: Place, node: WaitGroup, after: Clock) -> tuple[Key | None, Clock]:
        """Pass a wait_group: what it waits for first, if anything, and the clock behind it."""
        number, group = place[0], node.group
        groups = self.groups[number, group]
        if group in ("tcgen05.ld", "tcgen05.st"):
            groups.append([])
        newest = max(len(groups) - 1 - max(node.pending, 0), 0)
        fresh = range(self.covered[number, group, node.read], newest)
        for flight in (f for i in fresh for f in groups[i]):
            if flight.missing:
                return ("product", id(flight)), after
            if group == "wgmma":
                after = join(after, flight.clock)
            flight.read.append(place)
            if not node.read:
                flight.done.append(place)
        self.covered[number, group, node.read] = max(fresh.start, newest)
        return None, after

    def commits(self) -> None:
        """Say of each tcgen05.mma and cp which passes observe its end: each agent's first ones."""
        for number, agent in enumerate(self.agents):
            first: dict[int, int] = {}
            for position in reversed(range(self.at[number])):
                event = agent.events[position]
                if isinstance(event.node, Arrive) and event.node.after:
                    for phase in phases(self.cluster, agent.cta, event):
                        for other, at in self.passes[phase]:
                            first[other] = min(first.get(other, at), at)
                elif isinstance(event.node, Act) and event.node.kind in ("mma", "cp"):
                    flight = self.flights[number, position]
                    flight.done = flight.read = list(first.items())

    def give(self, key: Key, clock: Clock, ready: list[int]) -> None:
        """Count a contribution; wake who waits for it if it is the last one."""
        self.reached[key] = join(self.reached[key], clock) if key in self.reached else clock
        self.missing[key] -= 1
        if self.missing[key] <= 0:
            ready += self.waiting.pop(key, [])

    def product(self, place: Place, event: Event, after: Clock, ready: list[int]) -> None:
        """Bring one agent to a product, which is issued when all of its copy have come."""
        number = place[0]
        me = self.agents[number]
        copy: Key = (me.cta, me.crew.name, me.copy)
        self.turns[number, "product"] += 1
        key = (*copy, self.turns[number, "product"])
        flight = self.products.get(key)
        if flight is None:
            flight = self.products[key] = Flight(event, [], self.none, min(me.crew.threads, 2))
        flight.places.append(place)
        flight.clock = join(flight.clock, after)
        flight.missing -= 1
        self.flights[place] = flight
        self.groups[number, "wgmma"][-1].append(flight)
        if not flight.missing:
            ready += self.waiting.pop(("product", id(flight)), [])

    def meeting(self, place: Place, sync: Sync) -> Key:
        """Return the meeting at a barrier that is an agent's next one there."""
        group = meeters(self.agents[place[0]], sync)
        key = (*group, self.turns[place[0], sync])
        if key not in self.missing:
            self.missing[key] = sum(meeters(a, sync) == group for a in self.agents)
        return key
