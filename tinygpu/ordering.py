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
So reachability needs no search: a *clock* gives for each other agent how many of its events come
before.  A pass takes the maximum of the clocks of what it waits for, and one walk, in which an
agent goes on until it has to wait, visits the graph in topological order; agents that can never go
on wait in a cycle.  p comes before q if q's clock counts p, or, for an operation, a pass that
observed it.  Only passes change an agent's clock, so all events between two of them share one.

Of CTAs that are alike (``tinygpu.images``) only the first ones' agents walk: whenever one takes a
step its images take theirs, and what one of these sends is seen as an image of what it sends.

Source: ``docs/model-concurrency.md``, section "Asynchronous programs"; C. Fidge and F. Mattern on
vector clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from tinygpu.agents import Agent, Event
from tinygpu.clocks import Clock, Flight, Order, join
from tinygpu.contributions import Phase, Place, Sent
from tinygpu.images import Images
from tinygpu.protocol import Act
from tinygpu.synchronization import Arrive, Commit, Fence, Group, Sync, Wait, WaitGroup

__all__ = ["meeters", "order"]

_GROUPS: dict[str, Group] = {
    "copy": "cp.async", "store": "bulk", "take": "tcgen05.ld", "put": "tcgen05.st",
}  # fmt: skip
Key = tuple[object, ...]


def meeters(agent: Agent, sync: Sync) -> Key:
    """Return which of a barrier's groups an agent belongs to."""
    match sync.scope:
        case "cluster":
            return (sync,)
        case "cta":
            return (sync, agent.cta)
        case "role":
            return (sync, agent.cta, agent.crew.name, agent.copy)


def order(agents: tuple[Agent, ...], images: Images, sent: Sent) -> Order:
    """Walk the graph; every wait for an index has the contributions that it needs (balance)."""
    walk = _Walk(agents, images, sent)
    walk.run()
    walk.commits()
    stuck = [(n, walk.at[n]) for n in walk.walking if walk.at[n] < len(agents[n].events)]
    walk.mirror()
    return Order(walk.clocks, walk.flights, walk.passes, stuck)


class _Walk:
    """The state of the walk."""

    def __init__(self, agents: tuple[Agent, ...], images: Images, sent: Sent) -> None:
        self.agents, self.images, self.sent = agents, images, sent
        self.apart = len(agents) // len(images.first)
        self.walking = [n for n, a in enumerate(agents) if images.first[a.cta] == a.cta]
        self.at = [0] * len(agents)
        self.none: Clock = [0] * len(agents)
        self.now: list[Clock] = [self.none for _ in agents]
        self.clocks: list[list[Clock]] = [[] for _ in agents]
        self.flights: dict[Place, Flight] = {}
        self.passes: dict[Phase, list[Place]] = defaultdict(list)
        self.missing: dict[Key, int] = {p: len(c.givers) for p, c in sent.counts.items()}
        self.reached: dict[Key, Clock] = {}
        self.ready = list(self.walking)
        self.waiting: dict[Key, list[int]] = defaultdict(list)
        self.groups: dict[tuple[int, str], list[list[Flight]]] = defaultdict(lambda: [[]])
        self.covered: dict[tuple[int, str, bool], int] = defaultdict(int)
        self.multipliers: set[int] = set()  # by tcgen05.mma or cp
        self.products: dict[int, list[Flight]] = defaultdict(list)
        self.turns: dict[Key, int] = defaultdict(int)
        self.members: dict[Key, int] = {}
        self.met: dict[Key, list[Place]] = defaultdict(list)
        self.moved: dict[int, Callable[[Clock], Clock]] = {
            cta: itemgetter(*(images.agent(n, self.apart, cta) for n in range(len(agents))))
            for cta, first in enumerate(images.first)
            if cta != first
        }

    def run(self) -> None:
        """Go on with each agent until nobody can."""
        while self.ready:
            number = self.ready.pop()
            events, clocks = self.agents[number].events, self.clocks[number]
            for position in range(self.at[number], len(events)):
                if len(clocks) == position:  # it did not wait here before
                    clocks.append(self.now[number])
                event = events[position]
                node = event.node
                blocked = _STEPS[type(node)](self, (number, position), event, node)
                if blocked is not None:
                    self.waiting[blocked].append(number)
                    self.at[number] = position
                    break
            else:
                self.at[number] = len(events)
                clocks.append(self.now[number])

    def after(self, clock: Clock, places: Sequence[Place], *, passed: int) -> Clock:
        """Return a clock that counts some events, too; ``passed`` 0: only what is before them."""
        for number, position in reversed(places):  # the latest are often after the others
            if clock[number] < position + passed:  # else it has counted all before that
                past = self.clock(number, position)
                found = list(past) if clock is self.none else join(clock, past)
                found[number] = position + passed
                clock = found
        return clock

    def clock(self, number: int, position: int) -> Clock:
        """Return the clock at an issue; an image's is that of its first, moved."""
        if clocks := self.clocks[number]:
            return clocks[position]
        cta, agent = divmod(number, self.apart)
        first = self.images.first[cta] * self.apart + agent
        return self.moved[cta](self.clocks[first][position])

    def give(self, key: Key) -> None:
        """Count a contribution; wake who waits for it if it is the last one."""
        self.missing[key] -= 1
        if self.missing[key] <= 0:
            self.ready += self.waiting.pop(key, [])

    def fence(self, place: Place, event: Event, node: Fence) -> None:
        """Take what tells nobody anything."""

    def arrive(self, place: Place, event: Event, node: Arrive) -> None:
        """Tell the phases that get an arrival."""
        for phase in self.sent.phases[place]:
            self.give(phase)

    def wait(self, place: Place, event: Event, node: Wait) -> Key | None:
        """Pass a wait, or return its phase if that lacks a contribution."""
        number = place[0]
        phase = (self.agents[number].cta, node.barrier.name, event.at)
        if event.at < 0:
            return None
        if self.missing.get(phase, 0) > 0:
            return phase
        self.passes[phase].append(place)
        if phase in self.sent.counts:
            if phase not in self.reached:
                givers = self.sent.counts[phase].givers
                self.reached[phase] = self.after(self.none, givers, passed=1)
            self.now[number] = join(self.now[number], self.reached[phase])
        return None

    def sync(self, place: Place, event: Event, node: Sync) -> Key | None:
        """Pass a barrier, or return the meeting if not all have come."""
        number = place[0]
        group = meeters(self.agents[number], node)
        key = (*group, self.turns[number, node])
        if group not in self.members:
            self.members[group] = sum(meeters(self.agents[n], node) == group for n in self.walking)
        if key not in self.missing:
            self.missing[key] = self.members[group]
        come = self.met[key]
        if place not in come:
            come.append(place)
            self.give(key)
        if self.missing[key] > 0:
            return key
        if key not in self.reached:
            ctas = self.images.first if node.scope == "cluster" else ()
            images = [(n % self.apart + cta * self.apart, at) for n, at in come
                      for cta, first in enumerate(ctas) if first == n // self.apart]  # fmt: skip
            self.reached[key] = self.after(self.none, images or come, passed=0)
        self.turns[number, node] += 1
        self.now[number] = join(self.now[number], self.reached[key])
        return None

    def commit(self, place: Place, event: Event, node: Commit) -> None:
        """Close a group."""
        self.groups[place[0], node.group].append([])

    def wait_group(self, place: Place, event: Event, node: WaitGroup) -> Key | None:
        """Pass a wait_group, or return a product that it waits for and that is not issued."""
        number, group = place[0], node.group
        groups = self.groups[number, group]
        if group in ("tcgen05.ld", "tcgen05.st"):
            groups.append([])
        start = self.covered[number, group, node.read]
        newest = max(len(groups) - 1 - max(node.pending, 0), start)
        issues: list[Place] = []
        for i in range(start, newest):
            for flight in groups[i]:
                if flight.missing:
                    return ("product", flight.places[0])
                flight.read.append(place)
                if not node.read:
                    flight.done.append(place)
                if group == "wgmma":
                    issues += [p for p in flight.places if p[0] != number]
        self.now[number] = self.after(self.now[number], issues, passed=1)
        self.covered[number, group, node.read] = newest
        return None

    def act(self, place: Place, event: Event, node: Act) -> None:
        """Issue an operation: it is in flight, unless it is done at once."""
        number, kind = place[0], node.kind
        if kind == "product":
            self.product(place, event)
        elif kind != "generic":
            reach = self.sent.phases.get(place, ())
            flight = self.flights[place] = Flight(event, [place], 0, reach)
            for phase in reach:
                self.give(phase)
            if kind in ("mma", "cp"):
                self.multipliers.add(number)
            elif kind in _GROUPS:
                self.groups[number, _GROUPS[kind]][-1].append(flight)

    def product(self, place: Place, event: Event) -> None:
        """Bring one agent to a product, which is issued when all of its copy have come."""
        number = place[0]
        me = self.agents[number]
        made = self.products[number if me.leader else number - 1]
        turn = self.turns[number,]
        self.turns[number,] = turn + 1
        if turn == len(made):
            made.append(Flight(event, [], min(me.crew.threads, 2)))
        flight = self.flights[place] = made[turn]
        flight.places.append(place)
        flight.missing -= 1
        self.groups[number, "wgmma"][-1].append(flight)
        if not flight.missing:
            self.ready += self.waiting.pop(("product", flight.places[0]), [])

    def commits(self) -> None:
        """Say of each tcgen05.mma and cp which passes observe its end: each agent's first ones."""
        for number in self.multipliers:
            agent = self.agents[number]
            first: dict[int, int] = {}
            for position in reversed(range(self.at[number])):
                node = agent.events[position].node
                if isinstance(node, Arrive) and node.after:
                    for phase in self.sent.phases[number, position]:
                        for other, at in self.passes[phase]:
                            first[other] = min(first.get(other, at), at)
                elif isinstance(node, Act) and node.kind in ("mma", "cp"):
                    flight = self.flights[number, position]
                    flight.done = flight.read = list(first.items())

    def mirror(self) -> None:
        """Give the agents that do not walk the clocks of those that walk for them, moved."""
        for number, clocks in enumerate(self.clocks):
            cta, agent = divmod(number, self.apart)
            last: Clock = ()
            for clock in self.clocks[self.images.first[cta] * self.apart + agent]:
                if cta not in self.moved:
                    break
                if clock is not last:
                    last, moved = clock, self.moved[cta](clock)
                clocks.append(moved)


_STEPS: dict[type, Callable[[_Walk, Place, Event, Any], Key | None]] = {
    Act: _Walk.act, Arrive: _Walk.arrive, Wait: _Walk.wait, Sync: _Walk.sync,
    Commit: _Walk.commit, WaitGroup: _Walk.wait_group, Fence: _Walk.fence,
}  # fmt: skip
