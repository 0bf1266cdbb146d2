"""Facts: what agents know of one another, one bit each.

What gets done (a write, a read, an arrival, the passing of a wait) is a *fact*.  An agent knows
some facts, and so does each message under way: the phase of a barrier, the meeting at a bar.sync, a
product.  A set of facts is an int.  Whoever arrives puts what it knows into the message, whoever
passes takes it out.  A comes before B if and only if B's agent knows A when it begins B.

An agent that stands for several threads (``many``) knows two sets: ``own``, what its thread did
itself, and ``known``, what it was told.  What the *other* threads did is known only by being told.

Facts of one agent between two of its messages are known together, so they share a bit, its
*epoch*.  A write has a second bit, which its own thread's next ``fence.proxy.async`` gives it.

What is held is written down here, what is asked in ``conditions``:

    Agent   what it knows; groups of copies, products and stores that it has not waited for
    Slot    a stage of a ring: the indices that it holds; who wrote and read it since, what the
            first of the writes had to follow
    Phases  a stage of a barrier: the phase that is open, the one before, the one before that

``State.frozen`` writes a state down relative to the counters, and ``State.thawed`` begins from one.
Facts that nobody asks about are left out, and those that all who may ask know; of two facts, one of
which is known wherever the other one is and asked nowhere else, only the other is kept.  Facts have
no names in what is written: a fact is the set of places that ask about it or know it.

Source: C. Fidge and F. Mattern on vector clocks; ``docs/model-concurrency.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.legality.concurrency.blocks import Cells, Counter, LaidOut, Op, Spot

__all__ = ["Agent", "Facts", "Flight", "Frozen", "Group", "Phases", "Slot", "State"]

_OLD = -(1 << 60)  # an index that nobody asks for again


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state, written down relative to the counters.

    A fact is the set of the places that ask about it, of ``asks``, or do not know it, of the
    others: if it is part of another one, whatever it misses the other one misses, too.
    """

    shape: tuple[tuple[Any, ...], ...]
    facts: tuple[int, ...]
    asks: int
    places: int

    def only(self, facts: tuple[int, ...]) -> Frozen:
        """Return the state with no other facts."""
        return replace(self, facts=facts)


class Facts:
    """Facts that have been seen in states of one shape, but for those that are part of others."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._others: list[int] = []  # of each that is kept what it lacks

    def added(self, facts: Iterable[int]) -> tuple[int, ...]:
        """Add facts; return those that are new."""
        fresh = [fact for fact in facts if fact not in self._seen]
        self._seen.update(fresh)
        new = [fact for fact in fresh if 0 not in map(fact.__and__, self._others)]
        lacking = [~fact for fact in new]
        kept = [one for one in self._others if 0 not in map((~one).__and__, lacking)]
        self._others = kept + lacking
        return tuple(new)


@dataclass(slots=True)
class Flight:
    """A product that ``missing`` agents of a copy have not issued yet; ``told`` what they knew."""

    bit: int
    missing: set[int]
    told: int = 0


@dataclass(slots=True)
class Group:
    """What is under way together: facts that a wait for it gives.

    ``own`` to the thread that waits, ``told`` to all of its copy; ``later`` what its next fence
    then gives.  ``due`` are those for which it has to wait before it ends.
    """

    own: int = 0
    told: int = 0
    later: int = 0
    due: int = 0
    flights: list[Flight] = field(default_factory=list)

    def join(self, other: Group) -> None:
        """Take in another group."""
        self.own, self.told = self.own | other.own, self.told | other.told
        self.later, self.due = self.later | other.later, self.due | other.due
        self.flights += other.flights

    def masks(self) -> tuple[int, int, int]:
        """Return its facts; its products are issued."""
        told = self.told
        for flight in self.flights:
            told |= flight.bit | flight.told
        return self.own, told, self.later


@dataclass(slots=True)
class Agent:
    """What an agent knows and has under way.

    Of each kind there are always as many groups as waits tell apart, the newest last.
    """

    many: bool
    known: int = 0
    own: int = 0
    epoch: int = 0
    fenced: int = 0  # the second bit of the epoch's writes
    unfenced: int = 0  # what the next fence gives
    groups: dict[str, list[Group]] = field(default_factory=dict)
    open: dict[str, Group] = field(default_factory=dict)
    touched: bool = True  # registers of products, since the last wgmma.fence
    left: bool = False
    multiplied: int = 0  # products of its own, by tcgen05
    batch: int = 0  # that of the next commit
    mine: int = 0  # what else it did, where tcgen05 instructions ask
    untold: int = 0  # what the next before_thread_sync gives
    after: int = 0  # what it knew at its last after_thread_sync

    @property
    def all(self) -> int:
        """What its thread knows."""
        return self.known | self.own

    def under_way(self) -> Iterator[Group]:
        """Yield all groups that it may not have waited for."""
        for kind, groups in self.groups.items():
            yield from groups
            yield self.open[kind]


@dataclass(slots=True)
class Slot:
    """A stage of a ring."""

    held: tuple[int | None, ...] = (None,)
    filling: int = 0
    pieces: tuple[tuple[Cells, Fraction], ...] = ()
    writes: int = 0
    crossing: int = 0  # the same, for those who come through the other proxy
    before: int = 0  # what the first of the writes had to follow
    reads: int = 0
    behind: int = 0  # the same, for who overwrites through the other proxy: their fences
    told: int = 0  # of a write by tcgen05.st: its thread has told of it
    tensor: int = 0  # of the reads by tcgen05.ld: their threads have
    token: object = None
    loads: bool = False
    last: str = ""


@dataclass(slots=True)
class Phases:
    """A stage of a barrier; ``index`` is of the open phase.

    ``who``: a bit for each agent that has arrived, of a named barrier.
    """

    index: int
    arrivals: int = 0
    who: int = 0
    expected: int = 0
    landed: int = 0
    message: int = 0
    issued: int = 0
    late: bool = False
    loads: bool = False
    past: int = 0  # the fact that the phase before is over
    past_message: int = 0
    past_issued: int = 0
    past_late: bool = False
    past_loads: bool = False
    past_passes: int = 0
    unseen: bool = False  # loads of the phase before, for which nobody has waited
    older: int = 0
    older_issued: int = 0
    older_late: bool = False
    last: str = ""


class State:
    """A state of the pass."""

    def __init__(self, plan: LaidOut) -> None:
        self.plan = plan
        self.symmetry = plan.symmetry
        self.shifts = plan.symmetry.shifts
        self.facts = 0
        self.names: dict[int, str] | None = None
        self.agents = [Agent(a.threads > 1) for a in plan.agents]
        for agent, kinds in zip(self.agents, plan.grouped, strict=True):
            agent.open = {kind: Group() for kind in kinds}
            agent.groups = {
                kind: [Group() for _ in range(plan.pending.get(kind, 0) + 1)] for kind in kinds
            }
        self.rings: list[list[Slot]] = [[] for _ in plan.places]
        self.barriers: list[list[Phases]] = [[] for _ in plan.places]
        for p in plan.places:  # what was before is like what will be, but for its facts
            if p.level == "barrier":
                self.barriers[p.number] = [
                    Phases(i, past_late=p.late, past_loads=p.loaded, older_late=p.late)
                    for i in range(p.stages)
                ]
            else:
                self.rings[p.number] = [Slot(loads=p.loaded) for _ in range(p.stages)]
        self.sent = [0] * plan.symmetry.firsts  # what has to be known in a CTA before its end
        self.held = [0] * plan.symmetry.firsts  # and by its first thread

    def fact(self, name: str = "") -> int:
        """Return a new fact, as its own CTA sees it."""
        bit = 1 << (self.shifts * self.facts)
        self.facts += 1
        if self.names is not None:
            self.names[bit] = name
        return bit

    def epoch(self, number: int, op: Op) -> int:
        """Return the bit of what an agent does at once."""
        agent = self.agents[number]
        if not agent.epoch or self.names is not None:
            name = f"{self.plan.agents[number]}: {op}" if self.names is not None else ""
            agent.epoch = self.fact(name)
            agent.fenced = 0
            self.learn(agent, agent.epoch)
        return agent.epoch

    def learn(self, agent: Agent, facts: int) -> None:
        """Let an agent's thread do or find out something by itself."""
        if agent.many:
            agent.own |= facts
        else:
            agent.known |= facts
        if self.plan.tensor:
            agent.mine |= facts

    def tell(self, agent: Agent) -> int:
        """Return what goes into an agent's message, and close its epoch."""
        agent.epoch = agent.fenced = 0
        return agent.known | agent.own

    def common(self) -> list[int]:
        """Return of each place what all who touch it know."""
        found = []
        for place in self.plan.places:
            every = -1
            for number, shift, tensor in place.askers:
                agent = self.agents[number]
                seen = agent.after | agent.mine if tensor else agent.known
                every &= self.symmetry.moved(seen, shift)
                if not every:
                    break
            found.append(0 if every == -1 else every)
        return found

    def frozen(self, moved: Mapping[Counter, int]) -> Frozen:
        """Write the state down, relative to counters that have moved."""
        shape: list[tuple[Any, ...]] = []
        needs: list[int] = []
        knows: list[int] = []
        common = self.common()
        for place, ring, stages in zip(self.plan.places, self.rings, self.barriers, strict=True):
            by = sum(factor * moved.get(c, 0) for c, factor in place.pace.items())
            low = place.lowest if place.moves else _OLD  # what is less nobody asks for again
            seen = ~common[place.number]
            for i in range(place.stages):
                at = (i + by) % place.stages
                if ring:
                    slot = ring[at]
                    held = {max((_OLD if x is None else x) - by, low - 1) for x in slot.held}
                    filling = slot.filling - by if slot.pieces else 0
                    shape.append((tuple(sorted(held)), filling, slot.pieces, slot.loads))
                    needs += [getattr(slot, name) & seen for name in _asked(place)]
                else:
                    p = stages[at]
                    p.past_passes &= ~p.message
                    index = max(p.index - by, low - place.stages - 1)
                    shape.append((index, *(getattr(p, name) for name in _COUNTS)))
                    needs += [getattr(p, name) & seen for name in _PHASES]
                    knows += [p.message, p.past_message & seen]
        for sent, held_ in zip(self.sent, self.held, strict=True):
            needs += [sent, held_]
        for agent in self.agents:
            agent.own &= ~agent.known
            shape.append((agent.touched, agent.left))
            for group in agent.under_way():
                needs.append(group.due)
                knows += group.masks()
            knows += [getattr(agent, name) for name in _KNOWN]
        facts = self._columns(needs, knows)
        return Frozen(tuple(shape), facts, len(needs), len(needs) + len(knows))

    def _columns(self, needs: list[int], knows: list[int]) -> tuple[int, ...]:
        """Return the facts that are asked about, each as the places that have it."""
        if not self.facts:
            return ()
        bits = _bits([*needs, *knows], self.facts * self.shifts)
        bits = bits.reshape(len(bits), self.facts, self.shifts)
        live = bits[: len(needs)].any(axis=(0, 2))
        turned = bits[:, live].transpose(1, 0, 2)
        rows = turned.reshape(len(turned), len(bits) * self.shifts)
        rows[:, len(needs) * self.shifts :] ^= 1
        first = {number: i for i, number in enumerate(_numbers(rows))}
        facts = sorted(first)
        words = _words(rows[[first[c] for c in facts]])
        part = ~(words[:, None] & ~words).any(axis=2)
        spare = part.sum(axis=1) > 1  # it is part of another one than itself
        return tuple(f for f, out in zip(facts, spare.tolist(), strict=True) if not out)

    @staticmethod
    def thawed(plan: LaidOut, frozen: Frozen) -> State:
        """Return a state that goes on from what was written down."""
        state = State(plan)
        state.facts, places, size = len(frozen.facts), frozen.places, state.shifts
        bits = _bits(frozen.facts, places * size).reshape(state.facts, places, size)
        turned = bits.transpose(1, 0, 2).reshape(places, state.facts * size)
        turned[frozen.asks :] ^= 1
        take = iter(_numbers(turned) if state.facts else [0] * places).__next__
        parts = iter(frozen.shape)
        for place, ring, stages in zip(plan.places, state.rings, state.barriers, strict=True):
            for slot in ring:
                slot.held, slot.filling, slot.pieces, slot.loads = next(parts)
                for name in _asked(place):
                    setattr(slot, name, take())
            for p in stages:
                p.index, *counts = next(parts)
                for name, count in zip(_COUNTS, counts, strict=True):
                    setattr(p, name, count)
                for name in _PHASES:
                    setattr(p, name, take())
        for i in range(len(state.sent)):
            state.sent[i], state.held[i] = take(), take()
        for agent in state.agents:
            for group in agent.under_way():
                group.due = take()
        for stages in state.barriers:
            for p in stages:
                p.message, p.past_message = take(), take()
        for agent in state.agents:
            agent.touched, agent.left = next(parts)
            for group in agent.under_way():
                group.own, group.told, group.later = take(), take(), take()
            for name in _KNOWN:
                setattr(agent, name, take())
        return state


_PHASES = ("issued", "past", "past_issued", "past_passes", "older", "older_issued")
_COUNTS = (
    "arrivals", "who", "expected", "landed", "late", "loads", "past_late", "past_loads", "unseen",
    "older_late",
)  # fmt: skip
_KNOWN = ("known", "own", "unfenced", "multiplied", "batch", "mine", "untold", "after")


def _asked(place: Spot) -> tuple[str, ...]:
    """Return which facts of a stage somebody may ask about."""
    if place.private:
        return ("writes",)
    crossing = ("crossing", "before", "behind") if place.crossed else ()
    return ("writes", "reads", *crossing, *(("told", "tensor") if place.level == "tmem" else ()))


def _bits(masks: Sequence[int], width: int) -> NDArray[np.uint8]:
    """Return masks as rows of bits, the lowest first."""
    size = (width + 7) // 8
    data = b"".join([mask.to_bytes(size, "little") for mask in masks])
    rows = np.frombuffer(data, np.uint8).reshape(len(masks), size)
    return np.unpackbits(rows, axis=1, count=width, bitorder="little")


def _words(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return rows of bits as words of 64."""
    packed = np.packbits(bits, axis=1)
    words = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), np.uint8)
    words[:, : packed.shape[1]] = packed
    return words.view(np.uint64)


def _numbers(bits: NDArray[np.uint8]) -> list[int]:
    """Return rows of bits as masks."""
    packed = np.packbits(bits, axis=1, bitorder="little")
    size = packed.shape[1]
    data = packed.tobytes()
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size or 1)]
