"""Exit order: condition X of ``tinygpu.conditions``.  Nothing is in flight where an agent ends.

Of a store that is the reading of its source: what it writes is there when the grid ends.  Tensor
memory is released at the end of each CTA's first thread.  Nobody arrives at a barrier, or writes
into shared memory, of another CTA that may have ended.

>>> from tinygpu.access_map import var
>>> from tinygpu.ordering import order
>>> from tinygpu.protocol import Crew, Protocol, Ring, Touch
>>> send = Act("send", "store", (Touch(Ring("x", 1, "cta"), var("x", 0), write=False),))
>>> look = Look(Protocol((Crew("one", 1, 1, "", (send,)),), (), False, (("x", 0),)), {"x": 0})
>>> look.order = order(look.agents, look.images, look.sent)
>>> exits(look)
>>> print(*look.found.values())
exit: one: send is not waited for before its thread ends; wait for it [x=0]

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from collections.abc import Iterator

from tinygpu.clocks import Flight
from tinygpu.contributions import Place
from tinygpu.images import along
from tinygpu.protocol import Act
from tinygpu.witness import Look

__all__ = ["exits"]


def exits(look: Look) -> None:
    """X: look at what each agent has in flight, then at what goes to other CTAs."""
    graph = look.order
    ends = {n: len(a.events) for n, a in look.walking}
    ctas = [agent.cta for agent in look.agents]
    for place, flight in graph.flights.items():
        last = (place[0], ends[place[0]] - 1)
        node = flight.event.node
        if isinstance(node, Act) and node.kind in ("mma", "cp", "take", "put"):
            seen = _released_after(look, place, flight, node)
        elif flight.phases:
            seen = all(graph.passes.get(phase) for phase in flight.phases)
        else:
            stores = isinstance(node, Act) and node.kind == "store"
            seen = any(a == place[0] for a, _ in (flight.read if stores else flight.done))
        if not seen:
            text = f"{look.name(place)} is not waited for before its thread ends"
            look.report("exit", place, last, f"{text}; wait for it")
    finals = [[(n, at) for n, at in ends.items() if ctas[n] == cta] for cta in range(look.ctas)]
    arrivals = [(g, cta, name) for (cta, name, _), c in look.sent.counts.items() for g in c.givers
                if ctas[g[0]] != cta]  # fmt: skip
    for giver, cta, name in (*arrivals, *_written_elsewhere(look)):
        if not any(graph.before([giver], end) for end in finals[cta]):
            of_cta = ((n, at - 1) for n, at in finals[cta] if at)
            last = next(of_cta, giver)
            text = f"{look.name(giver)} may reach {name} of CTA {cta} when that has ended"
            look.report("exit", giver, last, f"{text}; end with barrier.cluster")


def _written_elsewhere(look: Look) -> Iterator[tuple[Place, int, str]]:
    """Yield the writes into shared memory of another CTA: who, into which, which ring."""
    for number, agent in look.walking:
        for position, _, node in agent.of(Act):
            for touch in node.touches:
                if touch.write and touch.ring.home:
                    cta = look.touched(agent, touch)
                    if cta != agent.cta:
                        yield (number, position), cta, touch.ring.name


def _released_after(look: Look, place: Place, flight: Flight, node: Act) -> bool:
    """Say whether a tcgen05 instruction is done before tensor memory is released.

    That is done in each CTA by its first thread, at its end.
    """
    ctas = along(look.protocol.cluster, look.agents[place[0]].cta, node.multicast)
    graph = look.order
    for cta in ctas:
        first = next(n for n, agent in enumerate(look.agents) if agent.cta == cta)
        if not graph.before(flight.done, (first, len(look.agents[first].events))):
            return False
    return True
