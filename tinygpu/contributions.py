"""Contributions: which events complete which phases of mbarriers.

A phase is an index of a CTA's barrier.  It gets arrivals and the bytes that they expect, and bytes
that loads let land there; an event may contribute to phases of several CTAs, by a multicast or an
arrival at the whole cluster.  Of CTAs that are alike (``tinygpu.images``) only those that stand for
the others are asked: what they send to another CTA is seen as going to its first, from an image of
the sender.

>>> from tinygpu.agents import unfold
>>> from tinygpu.access_map import var
>>> from tinygpu.images import even_axes, images
>>> from tinygpu.protocol import Crew, Protocol
>>> tell = Arrive(Barrier("x", 1, 2), var("t"), to="m")
>>> pair = Protocol((Crew("all", 1, 1, "", (tell,)),), (("m", 2),), False, (("t", 0),))
>>> agents = unfold(pair, {"t": 3})
>>> for cluster in (images(pair.cluster), images(pair.cluster, even_axes(pair))):
...     print({phase: count.givers for phase, count in sends(agents, cluster).counts.items()})
{(0, 'x', 3): [(0, 0), (1, 0)], (1, 'x', 3): [(0, 0), (1, 0)]}
{(0, 'x', 3): [(0, 0), (1, 0)]}

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter

from tinygpu.agents import Agent
from tinygpu.images import Images, homes
from tinygpu.protocol import Act
from tinygpu.synchronization import Arrive, Barrier

__all__ = ["Count", "Phase", "Place", "Sent", "sends"]

Place = tuple[int, int]  # an agent's number, and a position among its events
Phase = tuple[int, str, int]  # a CTA, a barrier of it, an index
_Told = tuple[int, int, Act | Arrive, Barrier, str]  # a position, an index, and where it goes
_position = itemgetter(0)


@dataclass(slots=True)
class Count:
    """What a phase gets: arrivals, bytes expected and landed, and from whom."""

    arrivals: int = 0
    expected: int = 0
    landed: int = 0
    givers: list[Place] = field(default_factory=list)
    later: bool = False  # some of it completes later than it is issued
    lands: bool = False  # some of it are a load's bytes


@dataclass(slots=True)
class Sent:
    """What phases of first CTAs get, and the phases to which each event of theirs contributes."""

    counts: dict[Phase, Count]
    phases: dict[Place, tuple[Phase, ...]]


def sends(agents: tuple[Agent, ...], images: Images) -> Sent:
    """Return what the agents of first CTAs contribute to phases.

    What goes to another CTA is seen as going to its first, from an image of the agent.
    """
    counts: dict[Phase, Count] = defaultdict(Count)
    phases: dict[Place, tuple[Phase, ...]] = {}
    apart = len(agents) // len(images.first)
    for number, agent in enumerate(agents):
        cta, threads = agent.cta, agent.threads
        if images.first[cta] != cta:
            continue
        acts: list[_Told] = [
            (p, e.at, n, n.signal[0], n.multicast) for p, e, n in agent.of(Act) if n.signal
        ]
        arrivals: list[_Told] = [(p, e.at, n, n.barrier, n.to) for p, e, n in agent.of(Arrive)]
        targets: dict[tuple[str, str], list[tuple[int, int]]] = {}  # CTAs, and who is seen to send
        for position, index, node, barrier, reach in sorted([*acts, *arrivals], key=_position):
            key = (reach, barrier.home)
            if key not in targets:
                to = homes(images.cluster, cta, reach, barrier.home)
                targets[key] = [(images.first[c], images.agent(number, apart, c)) for c in to]
            told = []
            for home, giver in targets[key]:
                phase = (home, barrier.name, index)
                told.append(phase)
                count = counts[phase]
                count.givers.append((giver, position))
                if isinstance(node, Act):
                    count.landed += node.bytes * threads
                    count.later = count.lands = True
                else:
                    count.arrivals += threads
                    count.expected += node.bytes * threads
                    away = (reach != "cta" or barrier.home) and agent.ctas > 1
                    count.later = count.later or bool(away or node.after)
            phases[number, position] = tuple(told)
    return Sent(dict(counts), phases)
