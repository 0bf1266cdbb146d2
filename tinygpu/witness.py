"""Witnesses: a hazard, and the events at one point of trip counts among which it was found.

>>> from tinygpu.agents import Event
>>> from tinygpu.synchronization import Sync
>>> event = Event(Sync(), (("k", 1),), 0)
>>> print(Hazard("deadlock", "nobody comes", (("trips", 2),), ("a", event), ("b", event)))
deadlock: nobody comes [trips=2]

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tinygpu.agents import Event, unfold
from tinygpu.hazards import Kind
from tinygpu.ordering import Order, Phase, Place
from tinygpu.protocol import Protocol
from tinygpu.synchronization import Barrier

__all__ = ["Count", "Hazard", "Look"]


@dataclass(frozen=True, slots=True)
class Hazard:
    """A fault with its witness: the trip counts, and two events with their agents' names."""

    kind: Kind
    message: str
    trips: tuple[tuple[str, int], ...]
    first: tuple[str, Event]
    second: tuple[str, Event]

    def __str__(self) -> str:
        at = ", ".join(f"{name}={number}" for name, number in self.trips)
        return f"{self.kind}: {self.message} [{at}]"


@dataclass(slots=True)
class Count:
    """What a phase gets: arrivals, bytes expected and landed, and from whom."""

    arrivals: int = 0
    expected: int = 0
    landed: int = 0
    givers: list[Place] = field(default_factory=list)
    later: bool = False  # some of it completes later than it is issued
    lands: bool = False  # some of it are a load's bytes


class Look:
    """The events of one point, and the hazards found."""

    def __init__(self, protocol: Protocol, point: Mapping[str, int]) -> None:
        self.protocol = protocol
        self.trips = tuple(point.items())
        self.agents = unfold(protocol, point)
        self.order: Order = Order(self.agents, [], {}, {}, [])
        self.found: dict[tuple[str, str, str], Hazard] = {}
        self.counts: dict[Phase, Count] = defaultdict(Count)
        self.waits: dict[Phase, list[Place]] = defaultdict(list)
        self.barriers: dict[str, Barrier] = {}
        self.fences: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.ctas = max((a.cta for a in self.agents), default=0) + 1

    def event(self, place: Place) -> Event:
        """Return the event at a place."""
        return self.agents[place[0]].events[place[1]]

    def name(self, place: Place) -> str:
        """Return the event with its agent and trip counts."""
        return f"{self.agents[place[0]]}: {self.event(place)}"

    def report(self, kind: Kind, first: Place, second: Place, message: str) -> None:
        """Record a hazard; of one kind between two statements the first is kept."""
        one, two = self.event(first), self.event(second)
        key = (kind, str(one.node), str(two.node))
        if key not in self.found:
            names = str(self.agents[first[0]]), str(self.agents[second[0]])
            self.found[key] = Hazard(kind, message, self.trips, (names[0], one), (names[1], two))
