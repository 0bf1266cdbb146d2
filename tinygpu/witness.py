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
from dataclasses import dataclass

from tinygpu.agents import Agent, Event, unfold
from tinygpu.clocks import Order
from tinygpu.contributions import Phase, Place, sends
from tinygpu.hazards import Kind
from tinygpu.images import along, images
from tinygpu.protocol import Protocol, Touch
from tinygpu.synchronization import Barrier

__all__ = ["Hazard", "Look"]


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


class Look:
    """The events of one point, and the hazards found.

    With axes along which the cluster is ``even`` (``tinygpu.images``), what first CTAs do, get and
    hold is asked, by their agents, ``walking``, alone.
    """

    def __init__(
        self,
        protocol: Protocol,
        point: Mapping[str, int],
        even: frozenset[str] = frozenset(),
    ) -> None:
        self.protocol = protocol
        self.trips = tuple(point.items())
        self.agents = unfold(protocol, point)
        self.images = images(protocol.cluster, even)
        self.walking = [
            (n, a) for n, a in enumerate(self.agents) if self.images.first[a.cta] == a.cta
        ]
        self.ctas = len(self.images.first)
        self.sent = sends(self.agents, self.images)
        self.order: Order = Order([], {}, {}, [])
        self.found: dict[tuple[str, str, str], Hazard] = {}
        self.waits: dict[Phase, list[Place]] = defaultdict(list)
        self.barriers: dict[str, Barrier] = {}
        self.fences: dict[tuple[int, str], list[int]] = defaultdict(list)

    def touched(self, agent: Agent, touch: Touch) -> int:
        """Return the CTA whose memory an agent touches."""
        home = touch.ring.home if touch.write else ""
        return along(self.protocol.cluster, agent.cta, home)[0]

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
