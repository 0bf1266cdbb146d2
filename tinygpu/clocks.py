"""Clocks: what comes before an event, of every agent a number of its first events.

A *clock* gives for each agent how many of its events come before a node.  What comes after two
nodes has the maximum of their clocks.  An agent's clock changes only where it passes a wait, so
that all its events between two of them share one; that its own earlier events come before an event
is known without, so the entry of its own agent means nothing.

>>> join((1, 0, 2), (0, 3, 2))
[1, 3, 2]
>>> ordered = Order([[(0, 0), (0, 3)], [(0, 0)] * 4], {}, {}, [])
>>> [ordered.before([event], (0, 1)) for event in ((1, 2), (1, 3), (0, 0))]
[True, False, True]

Source: ``docs/model-concurrency.md``, section "Asynchronous programs"; C. Fidge and F. Mattern on
vector clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinygpu.agents import Event
from tinygpu.contributions import Phase, Place

__all__ = ["Clock", "Flight", "Order", "join"]

Clock = Sequence[int]  # shared by events, so never changed


@dataclass(slots=True)
class Flight:
    """An operation that completes later; ``places`` issue it (of a product, both agents).

    ``missing`` agents have yet to come for its issue.  ``read`` and ``done`` are the passes of
    wait_group that observe that its sources are read, and that all is done.  A load is observed by
    the waits for its ``phases``, a tcgen05.mma or cp by those for commits after it.
    """

    event: Event
    places: list[Place]
    missing: int = 0
    phases: tuple[Phase, ...] = ()
    read: list[Place] = field(default_factory=list)
    done: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class Order:
    """The clocks: ``clocks[agent][position]`` at each issue, and one more at an agent's end.

    ``flights`` are those of first CTAs, ``passes`` the waits for each phase of theirs.  ``stuck``:
    where agents stand that can never go on.
    """

    clocks: list[list[Clock]]
    flights: dict[Place, Flight]
    passes: dict[Phase, list[Place]]
    stuck: list[Place]

    def before(self, passes: Sequence[Place], place: Place) -> bool:
        """Say whether one of some passes (or of events done at once) comes before an issue."""
        number, position = place
        clock = self.clocks[number][position]
        for agent, at in passes:
            counted = position if agent == number else clock[agent]
            if at < counted:
                return True
        return False

    def all_before(self, events: Sequence[Place], place: Place) -> bool:
        """Say whether all of some events that are done at once come before an issue."""
        number, position = place
        clock = self.clocks[number][position]
        for agent, at in events:
            counted = position if agent == number else clock[agent]
            if at >= counted:
                return False
        return True


def join(one: Clock, other: Clock) -> list[int]:
    """Return the clock of what comes after both."""
    return [a if a > b else b for a, b in zip(one, other, strict=True)]
