"""Happens-before: who may touch which bytes of shared memory, and through which proxy.

*Agents* are warps (or single threads) and *channels*: a channel is a queue of asynchronous
operations that complete in order (the loads onto one mbarrier, one warpgroup's products, one
thread's bulk stores).  Whatever touches shared memory or synchronises has a step, a number that
only grows.  A clock says for each agent up to
which of its steps everything is ordered before what its holder does next; release and
acquire join clocks.  An access is free of races if the last write of each granule (and, for a
write, each agent's last read) is within the clock of whoever accesses it.

There are eight clocks: ``ORDER``; ``PROXIED``, what a fence.proxy.async lies behind, which is what
an access through the asynchronous proxy may know of generic writes; ``FENCED``, the same of global
memory; ``INITS``, what a fence.mbarrier_init has published of barriers' initialisation; ``TENSOR``,
see tcgen05.py; ``LIFE``, what even relaxed barriers tell of, which is enough to end; ``SC``, what
a fence.sc of the GPU's scope lies behind, and ``SEEN``, what the next one makes known (scopes.py).

Of other domains little is known, mostly nothing: row ``FAR`` has, as its first number, which of
``Clocks.afar`` it is.  What goes from domain to domain is *knowledge*: clocks by domain, counted
over the grid, which nobody changes any more.

>>> clocks = Clocks(domains=1, units=2)
>>> clocks.acquire(0, [2], clocks.snapshot(0, [1], 7))  # agents count from 1
>>> clocks.clocks[ORDER, 0, 2, 1], clocks.clocks[ORDER, 0, 1, 2]
(np.int32(7), np.int32(-1))

Source: PTX ISA 9.0, section 8 (memory consistency model: causality order, proxies); Flanagan and
Freund, "FastTrack", PLDI 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .report import Array

__all__ = [
    "ALL_BEFORE", "EARLIER", "FAR", "FENCED", "INITS", "LIFE", "ORDER", "PROXIED", "RESERVED", "SC",
    "SEEN", "TENSOR", "Clocks", "Knowledge", "merged",
]  # fmt: skip

ORDER, PROXIED, FENCED, INITS, TENSOR, LIFE, SC, SEEN, FAR = range(9)
_KINDS = 9
Knowledge = Mapping[int, Array]
EARLIER = -1
"""The domain that stands for all of the kernel before, in knowledge."""
ALL_BEFORE: Knowledge = {EARLIER: np.ones((_KINDS, 1), np.int32)}
RESERVED = 0
"""The agent that owns live mbarriers: nobody's clock ever knows it."""
_ALWAYS = np.iinfo(np.int32).max
_SPARE = 24


def _union(a: Array, b: Array) -> Array:
    """Return the union of two clocks: one of them, if it has all that the other has."""
    if a is b:
        return a
    small, big = sorted((a, b), key=lambda clock: clock.shape[1])
    over = np.maximum(small, big[:, : small.shape[1]])
    if (over == big[:, : small.shape[1]]).all():
        return big
    return small if small.shape == big.shape and (over == small).all() else np.hstack(
        [over, big[:, small.shape[1] :]]
    )  # fmt: skip


def merged(a: Knowledge, b: Knowledge) -> Knowledge:
    """Return the union of what is known: one of the two, if it has all that the other has.

    >>> a, b = {0: np.array([[3, 1]])}, {0: np.array([[3, 2]]), 1: np.array([[7]])}
    >>> merged(a, b) is b
    True
    """
    if a is b:
        return a
    union = {**a, **{d: _union(a[d], clock) if d in a else clock for d, clock in b.items()}}
    for one in (b, a):
        if len(one) == len(union) and all(one[d] is clock for d, clock in union.items()):
            return one
    return union


class Clocks:
    """Clocks of all agents of each domain (a cluster).

    ``first`` is the number in the grid of the first domain.
    """

    def __init__(self, *, domains: int, units: int, first: int = 0) -> None:
        self.domains, self.units, self.first = domains, units, first
        self.afar: list[Knowledge] = [{}]
        self._numbers: dict[object, int] = {}
        self.agents = 1 + units + _SPARE
        self.used = [1 + units] * domains
        self.names: dict[tuple[int, int], str] = {}
        self.clocks = np.full((_KINDS, domains, self.agents, self.agents), -1, np.int32)
        self._own()
        self.asynchronous = np.zeros((domains, self.agents), bool)

    def _own(self) -> None:
        """Whatever an agent did itself is ordered before what it does next."""
        i = np.arange(self.agents)
        self.clocks[ORDER, :, i, i] = _ALWAYS

    def rows(self, domain: Array | int, agent: Array) -> Array:
        """Return the rows of agents' clocks, counted over the domains."""
        return np.asarray(domain * self.agents + agent)

    def channel(self, domain: int, name: str, *, asynchronous: bool) -> int:
        """Return a new agent."""
        if self.used[domain] == self.agents:
            self._grow(self.agents)
        agent = self.used[domain]
        self.used[domain] += 1
        self.names[domain, agent] = name
        self.asynchronous[domain, agent] = asynchronous
        return agent

    def _grow(self, more: int) -> None:
        self.clocks = np.pad(
            self.clocks, ((0, 0), (0, 0), (0, more), (0, more)), constant_values=-1
        )
        self.asynchronous = np.pad(self.asynchronous, ((0, 0), (0, more)))
        self.agents += more
        self._own()

    # Clocks move between agents and barriers.

    def nothing(self) -> Array:
        """Return a clock that knows nothing: (clocks, agents)."""
        return np.full((_KINDS, self.agents), -1, np.int32)

    def publish(self, domain: int, clock: Array) -> Knowledge:
        """Return what a clock knows, for agents of any domain."""
        own = clock.copy()
        own[FAR] = -1
        return {**self.afar[max(0, clock[FAR, 0])], self.first + domain: own}

    def recall(self, domain: int, knowledge: Knowledge) -> Array:
        """Return a domain's clock of what was published."""
        own = knowledge.get(self.first + domain)
        clock = self.nothing() if own is None else own.copy()
        if own is None or len(knowledge) > 1:
            clock[FAR, 0] = self._numbered(id(knowledge), knowledge)
        return clock

    def learn(self, domain: int, agents: Sequence[int], knowledge: Knowledge) -> None:
        """Let agents know what was published."""
        self.acquire(domain, agents, self.recall(domain, knowledge))

    def _numbered(self, key: object, knowledge: Knowledge) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.afar)
            self.afar.append(knowledge)  # which lives on, so that its id is its own
        return self._numbers[key]

    def _together(self, numbers: Iterable[int]) -> int:
        """Return which of ``afar`` has what several of them have."""
        known, *others = sorted({-1, *numbers}, reverse=True)
        for n in (n for n in others if n > 0):
            key = known, n
            if key not in self._numbers:
                both = merged(self.afar[n], self.afar[known])
                same = next((m for m in key if self.afar[m] is both), 0)
                self._numbers[key] = same or self._numbered(id(both), both)
            known = self._numbers[key]
        return known

    def snapshot(self, domain: int, agents: Sequence[int], step: int) -> Array:
        """Return what these agents know together, their own steps so far included."""
        known: Array = self.clocks[:, domain, agents].max(1)
        if len(self.afar) > 1:
            known[FAR, 0] = self._together(self.clocks[FAR, domain, agents, 0].tolist())
        known[ORDER, agents] = step
        known[TENSOR] = -1  # each thread's own
        known[LIFE] = np.maximum(known[LIFE], known[ORDER])
        return known

    def join(self, into: Array, clock: Array) -> Array:
        """Return the union of two clocks, which may be older than the last channel."""
        if into.shape[1] < clock.shape[1]:
            into, clock = clock.copy(), into
        far = self._together((int(into[FAR, 0]), int(clock[FAR, 0])))
        np.maximum(into[:, : clock.shape[1]], clock, out=into[:, : clock.shape[1]])
        into[FAR, 0] = far
        return into

    def acquire(self, domain: int, agents: Sequence[int], clock: Array) -> None:
        """Let agents know what a clock knows."""
        known = self.clocks[:FAR, domain, agents, : clock.shape[1]]
        self.clocks[:FAR, domain, agents, : clock.shape[1]] = np.maximum(known, clock[:FAR, None])
        if (far := int(clock[FAR, 0])) > 0:
            mine: Array = self.clocks[FAR, domain, agents, 0]
            self.clocks[FAR, domain, agents, 0] = [self._together((n, far)) for n in mine.tolist()]
        self.clocks[ORDER, domain, agents, agents] = _ALWAYS

    def barrier(self, domains: Array, agents: Array, step: int) -> None:
        """Join the clocks of agents (n of each of ``domains``, the same) at a barrier of all."""
        for domain in domains.tolist() if len(self.afar) > 1 else ():
            far = self._together(self.clocks[FAR, domain, agents, 0].tolist())
            self.clocks[FAR, domain, agents, 0] = far
        block = np.ix_(np.array([ORDER, PROXIED, FENCED, INITS, LIFE, SC, SEEN]), domains, agents)
        known = self.clocks[block].max(2)
        known[ORDER][:, agents] = step
        self.clocks[block] = known[:, :, None]
        self.clocks[ORDER][np.ix_(domains, agents, agents)] = step
        self.clocks[ORDER][domains[:, None], agents, agents] = _ALWAYS

    def completed(
        self, domain: Array | int, agents: Array | Sequence[int], channel: Array | int, step: int
    ) -> None:
        """Let agents know that a channel is done up to ``step``."""
        known = self.clocks[ORDER, domain, agents, channel]
        self.clocks[ORDER, domain, agents, channel] = np.maximum(known, step)

    def came(self, domain: int, agents: Sequence[int], step: int) -> None:
        """Let agents know that all of them have come to a step, which orders nothing."""
        block = LIFE, domain, np.array(agents)[:, None], agents
        self.clocks[block] = np.maximum(self.clocks[block], step)

    def fence(self, domain: int, agents: Sequence[int], step: int, clock: int) -> None:
        """Add all that these agents know to a clock: ``PROXIED``, ``FENCED``, ``INITS``, ``SC``."""
        known = self.clocks[ORDER, domain, agents].copy()
        known[np.arange(len(agents)), agents] = step
        self.clocks[clock, domain, agents] = np.maximum(self.clocks[clock, domain, agents], known)
        for agent in agents if clock in (FENCED, SC) else ():
            self._add_afar(domain, agent, ORDER, clock)

    def _add_afar(self, domain: int, agent: int, of: int, to: int) -> None:
        """Add what a clock knows of other domains to another one."""
        if (number := int(self.clocks[FAR, domain, agent, 0])) > 0:
            far = {d: c.copy() for d, c in self.afar[number].items()}
            for c in far.values():
                c[to] = np.maximum(c[to], c[of])
            self.clocks[FAR, domain, agent, 0] = self._numbered((of, to, number), far)

    def behind_fences(self, domain: int, agent: int) -> Knowledge:
        """Return what lies behind a fence.sc, as what who reads a store of this agent has seen."""
        mine = self.clocks[:, domain, agent]
        found = {**self.afar[max(0, mine[FAR, 0])], self.first + domain: mine}
        made: dict[int, Array] = {}
        for d, clock in found.items():
            if (clock[SC] >= 0).any():
                made[d] = np.full_like(clock, -1)
                made[d][SEEN] = clock[SC]
        return made

    def know_seen(self, domain: int, agent: int) -> None:
        """Let an agent know what it has seen of others' fence.sc."""
        known = self.clocks[:, domain, agent]
        known[ORDER] = np.maximum(known[ORDER], known[SEEN])
        self._add_afar(domain, agent, SEEN, ORDER)
