"""Agents: who executes a protocol, and the events of each in program order.

Each copy of a role in each CTA of the cluster is two agents: its first thread, the *leader*, which
also executes what one thread does alone, and the *rest*, one thread that stands for all others.
Two are enough because orders speak of pairs of threads, and the others are alike.

Given numbers of tiles and the parameters' values, an agent's loops unfold into *events*:
a node at values of the loop variables.  Slots are resolved (``cells``); an event of a barrier has
its index as ``at``.  All CTAs share one list, unless the body mentions a cluster rank, and all
copies, unless it mentions the copy.  An agent has its events by the type of their nodes, too, as
most questions are about one type.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> from tinygpu.protocol_extraction import protocol_of
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["plain"]))
>>> agents = unfold(protocol_of(program), {TILES: 1, "trips": 2})
>>> sorted(map(str, agents))
['consumer', "consumer's other threads", 'producer', "producer's other threads"]
>>> print(*next(a for a in agents if str(a) == "producer").events[:3], sep="; ")
wait empty at t=0, i=0, k=0; arrive full at t=0, i=0, k=0; cp.async.bulk.tensor at t=0, i=0, k=0

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeVar, cast

from tinygpu.protocol import (
    Act,
    Body,
    Crew,
    Guard,
    Loop,
    One,
    Order,
    Protocol,
    Tiles,
    Touch,
    names_in,
)
from tinygpu.synchronization import Arrive, Commit, Fence, Sync, Wait, WaitGroup

__all__ = ["TILES", "Agent", "Event", "unfold"]

TILES = "number of tiles"  # of a cluster, among the parameters: no name that a term can have
Sorted = dict[type, list[tuple[int, "Event", Act | Order]]]
T = TypeVar("T", bound=Act | Order)


class Event(NamedTuple):
    """A node at ``values``; ``number``: its place among the leader's events.

    ``cells``: of each touch its slot and index.  ``at``: the index at a barrier.  ``fresh``: of
    a product, that its sums start anew.  ``alone``: the leader's only.

    It is a tuple because a verdict makes tens of thousands, and a frozen dataclass takes thrice as
    long to make.
    """

    node: Act | Order
    values: tuple[tuple[str, int], ...]
    number: int
    cells: tuple[tuple[Touch, int, int], ...] = ()
    at: int = 0
    fresh: bool = False
    alone: bool = False

    def __str__(self) -> str:
        match self.node:
            case Act(name):
                text = name
            case Wait(barrier) | Arrive(barrier):
                text = f"{'wait' if isinstance(self.node, Wait) else 'arrive'} {barrier.name}"
            case _:
                text = str(self.node)
        where = ", ".join(f"{name}={number}" for name, number in self.values)
        return f"{text} at {where}" if where else text


@dataclass(frozen=True, slots=True)
class Agent:
    """A thread, or ``threads`` alike, of a copy of a crew in a CTA."""

    cta: int
    crew: Crew
    copy: int
    leader: bool
    threads: int
    events: tuple[Event, ...]
    by_type: Sorted = field(repr=False, compare=False)
    ctas: int

    def of(self, kind: type[T]) -> list[tuple[int, Event, T]]:
        """Return the events whose node is of a type, each with its position and its node."""
        return cast("list[tuple[int, Event, T]]", self.by_type.get(kind, []))

    def __str__(self) -> str:
        text = self.crew.name + (f" {self.copy}" if self.crew.copies > 1 else "")
        text += f" of CTA {self.cta}" if self.ctas > 1 else ""
        return text if self.leader else f"{text}'s other threads"


def unfold(protocol: Protocol, point: Mapping[str, int]) -> tuple[Agent, ...]:
    """Return all agents of a cluster, with ``point`` giving the parameters and ``TILES``.

    CTAs are numbered with the first cluster variable fastest.
    """
    ranks = [dict(zip((v for v, _ in protocol.cluster), reversed(r), strict=True))
             for r in product(*(range(n) for _, n in reversed(protocol.cluster)))]  # fmt: skip
    known: dict[tuple[int, int, int], tuple[tuple[tuple[Event, ...], Sorted], ...]] = {}
    agents: list[Agent] = []
    named = [_names(crew) for crew in protocol.crews]
    for cta, rank in enumerate(ranks):
        for (number, crew), names in zip(enumerate(protocol.crews), named, strict=True):
            for copy in range(crew.copies):
                key = (number, copy * (crew.copy in names), cta * bool(names & rank.keys()))
                if key not in known:
                    found: list[Event] = []
                    _events(crew.body, {**point, **rank, crew.copy: copy}, (), False, found)
                    known[key] = _sorted(found), _sorted([e for e in found if not e.alone])
                leader, rest = known[key]
                agents.append(Agent(cta, crew, copy, True, 1, *leader, len(ranks)))
                if crew.threads > 1:
                    agents.append(
                        Agent(cta, crew, copy, False, crew.threads - 1, *rest, len(ranks))
                    )
    return tuple(agents)


@lru_cache(4096)
def _names(crew: Crew) -> frozenset[str]:
    """Return the names that a crew's body mentions; each is asked at many points."""
    return frozenset(names_in(crew.body))


def _sorted(events: list[Event]) -> tuple[tuple[Event, ...], Sorted]:
    """Return events as they are, and by the type of their nodes."""
    found: Sorted = defaultdict(list)
    for position, event in enumerate(events):
        found[type(event.node)].append((position, event, event.node))
    return tuple(events), dict(found)


def _events(
    body: Body,
    env: Mapping[str, int],
    values: tuple[tuple[str, int], ...],
    alone: bool,
    out: list[Event],
) -> None:
    """Append the events of a body."""
    for node in body:
        match node:
            case Act():
                cells = []
                for touch in node.touches:
                    x = touch.index.evaluate(env)
                    cells.append((touch, x % touch.ring.stages, x))
                at = node.signal[1].evaluate(env) if node.signal else 0
                anew = node.fresh is not None and node.fresh.evaluate(env) == 0
                out.append(Event(node, values, len(out), tuple(cells), at, anew, alone))
            case Wait() | Arrive():
                at = node.index.evaluate(env)
                out.append(Event(node, values, len(out), (), at, False, alone))
            case Commit() | WaitGroup() | Fence() | Sync():
                out.append(Event(node, values, len(out), (), 0, False, alone))
            case Guard(index, bound, inner):
                if index.evaluate(env) < (env[bound] if isinstance(bound, str) else bound):
                    _events(inner, env, values, alone, out)
            case One(inner):
                _events(inner, env, values, True, out)
            case Loop(var, start, stop, inner):
                for number in range(start, env[stop] if isinstance(stop, str) else stop):
                    _events(inner, {**env, var: number}, (*values, (var, number)), alone, out)
            case Tiles(tile, turn, start, step, inner):
                for i, t in enumerate(range(start.evaluate(env), env[TILES], step)):
                    here = (*values, (tile, t), (turn, i))
                    _events(inner, {**env, tile: t, turn: i}, here, alone, out)
