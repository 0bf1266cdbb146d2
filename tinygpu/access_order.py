"""Access order: conditions R (races), F (proxies) and X (exit) of ``tinygpu.conditions``.

Of shared memory any two agents may share a cell of a slot; exempt are the threads of one write
statement, and loads of one index, which are parts of it.  Indices of a ring go up: what touches
index x of a slot is done before what touches the next index there is issued, if either writes; it
is enough to compare neighbours, as each index has a write.  An index is written whole, then read.

Registers belong to one agent (of a product: to both agents of its copy, who hold its sums
together), so one pass over its events suffices: which index a slot holds, and which product is in
flight.

>>> from tinygpu.agents import TILES
>>> from tinygpu.protocol import Act, Crew, One, Protocol, Ring, Touch
>>> from tinygpu.witness import Look
>>> from tinygpu.program import Affine
>>> x = Ring("x", 1, "cta")
>>> put = Act("st", "generic", (Touch(x, Affine(), True),))
>>> get = Act("ld", "generic", (Touch(x, Affine(), False),))
>>> look = Look(Protocol((Crew("all", 128, 1, "", (put, get)),), (), False, ()), {TILES: 1})
>>> from tinygpu.ordering import order
>>> look.order = order(look.agents, ())
>>> memory(look)
>>> print(*look.found.values())
race: all's other threads: st and all: ld (x@0) are unordered; wait between them [tiles=1]

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from tinygpu.agents import Agent
from tinygpu.ordering import Clock, Flight, Order, Place, along, before
from tinygpu.protocol import Act, Kind, Touch
from tinygpu.synchronization import Fence
from tinygpu.witness import Look

__all__ = ["exits", "memory", "registers"]

Cell = tuple[object, ...]
_PROXY = ("load", "store", "product", "mma", "cp")  # they go through the other proxy


@dataclass(slots=True)
class _Access:
    """An access to a slot of shared memory: done when one of ``done`` is passed.

    ``clocks`` are at its issue, of a product by each of its agents: each warp may begin to read.
    """

    place: Place
    touch: Touch
    kind: Kind
    clocks: tuple[Clock, ...]
    done: list[Place]


def _comes(done: list[Place], access: _Access) -> bool:
    """Say whether one of some passes comes before an access, for all who issue it."""
    return all(before(done, clock) for clock in access.clocks)


def memory(look: Look) -> None:
    """R and F of shared memory."""
    cells: dict[Cell, dict[int, list[_Access]]] = defaultdict(lambda: defaultdict(list))
    for cell, index, access in _accesses(look):
        cells[cell][index].append(access)
    for indices in cells.values():
        ordered = sorted(indices)
        for index in ordered:
            _within(look, index, indices[index])
        for low, high in pairwise(ordered):
            for p, q in product(indices[low], indices[high]):
                if p.touch.write or q.touch.write:
                    _follows(look, p, q, f"{p.touch.ring.name}@{low} and @{high}")


def _accesses(look: Look) -> Iterator[tuple[Cell, int, _Access]]:
    for number, agent in enumerate(look.agents):
        for position, event in enumerate(agent.events):
            if not isinstance(event.node, Act):
                continue
            place, kind = (number, position), event.node.kind
            flight = look.order.flights.get(place)
            if flight is not None and flight.places[0] != place:
                continue  # a product is one event of two agents
            issuers = [place] if flight is None else flight.places
            clocks = tuple(look.order.clocks[n][p] for n, p in issuers)
            written = {t.ring.name for t, _, _ in event.cells if t.write}
            for touch, slot, index in event.cells:
                own = (agent.crew.name, agent.copy) if touch.ring.share == "copy" else ()
                if touch.ring.share == "thread":
                    continue
                if kind == "mma":
                    if not touch.write and touch.ring.name in written:
                        continue  # its own sums
                    for cta in along(look.protocol.cluster, agent.cta, event.node.multicast):
                        part = _Access(place, touch, kind, clocks, look.order.flights[place].done)
                        yield (cta, *own, touch.ring.name, slot), index, part
                elif flight is None:
                    at_once = _Access(place, touch, kind, clocks, [place])
                    yield (_cta(look, agent, touch), *own, touch.ring.name, slot), index, at_once
                elif kind == "load":
                    ctas = along(look.protocol.cluster, agent.cta, event.node.multicast)
                    for cta, phase in zip(ctas, flight.phases, strict=True):
                        landed = look.order.passes.get(phase, [])
                        part = _Access(place, touch, kind, clocks, landed)
                        yield (cta, *own, touch.ring.name, slot), index, part
                else:
                    done = flight.done if touch.write else flight.read
                    later = _Access(place, touch, kind, clocks, done)
                    yield (agent.cta, *own, touch.ring.name, slot), index, later


def _cta(look: Look, agent: Agent, touch: Touch) -> int:
    """Return the CTA whose memory an agent touches."""
    home = touch.ring.home if touch.write else ""
    return along(look.protocol.cluster, agent.cta, home)[0]


def _within(look: Look, index: int, accesses: list[_Access]) -> None:
    """Judge the accesses of one index."""
    writes = [a for a in accesses if a.touch.write]
    what = f"{accesses[0].touch.ring.name}@{index}"
    filled = sum(w.touch.part for w in writes)
    for read in (a for a in accesses if not a.touch.write):
        if not writes:
            text = f"{look.name(read.place)} reads {what}, which nobody writes; write that index"
            look.report("unwritten", read.place, read.place, text)
        elif filled < 1:
            text = f"{look.name(read.place)} reads {what}, of which {filled} is loaded; load it all"
            look.report("unwritten", writes[0].place, read.place, text)
        for write in writes:
            _follows(look, write, read, what)
    for one, two in combinations(writes, 2):
        here, there = (look.agents[w.place[0]].cta for w in (one, two))
        if here == there and look.event(one.place) is look.event(two.place):
            if one.touch.overlap:
                text = f"two threads of {look.name(one.place)} write one cell of {what}"
                look.report("race", one.place, two.place, f"{text}; give each its own")
        elif not (_in_order(one, two) or one.kind == two.kind == "load" or _comes(one.done, two)):
            _follows(look, two, one, what)


def _in_order(p: _Access, q: _Access) -> bool:
    """Say whether q is a thread's tcgen05.mma that is done after what it issued before.

    That is what another one adds to, and what a tcgen05.cp writes; nothing orders a tcgen05.cp
    behind the products that read what it overwrites.
    """
    follows = q.kind == "mma" and p.kind in ("mma", "cp") and p.touch.write
    both = q.touch.write or p.kind == "cp"
    return follows and both and p.place[0] == q.place[0] and p.place < q.place


def _follows(look: Look, p: _Access, q: _Access, what: str) -> None:
    """Report that p is not done before q is issued, or that q cannot see what p wrote."""
    if _in_order(p, q):
        return
    if not _comes(p.done, q):
        names = f"{look.name(p.place)} and {look.name(q.place)} ({what})"
        if _comes(q.done, p):
            text = f"{names} come in the wrong order; change an index or a wait"
            look.report("stale", p.place, q.place, text)
        else:
            look.report("race", p.place, q.place, f"{names} are unordered; wait between them")
        return
    _fenced(look, p, q, what)
    crosses = p.touch.write and p.kind in ("generic", "copy") and q.kind in _PROXY
    if crosses and not _comes(_fence(look, p, "proxy.async"), q):
        text = f"{look.name(q.place)} may not see what {look.name(p.place)} wrote ({what})"
        text += "; let every writer execute fence.proxy.async, and then wait for it"
        look.report("proxy", p.place, q.place, text)


def _fence(look: Look, p: _Access, kind: str) -> list[Place]:
    """Return the first fence of a kind that p's own thread executes when p is done."""
    number, position = p.place
    seen = next((at for a, at in p.done if a == number), position)
    fences = look.fences[number, kind]
    later = bisect_right(fences, seen)
    return [(number, fences[later])] if later < len(fences) else []


def _fenced(look: Look, p: _Access, q: _Access, what: str) -> None:
    """F of tensor memory: threads tell one another of tcgen05 instructions through fences."""
    number, position = q.place
    if p.place[0] == number and p.kind not in ("load", "mma", "cp"):
        return  # its own, and done in program order

    def report(mend: str) -> None:
        names = f"{look.name(q.place)} may not see that {look.name(p.place)} is done ({what})"
        look.report("proxy", p.place, q.place, f"{names}; execute {mend}")

    if p.kind in ("take", "put") and not _comes(_fence(look, p, "tcgen05.before"), q):
        report("tcgen05.fence::before_thread_sync before telling it")
    if q.kind in ("mma", "cp", "take", "put"):
        fences = look.fences[number, "tcgen05.after"]
        last = bisect_right(fences, position) - 1
        if last < 0 or not before(p.done, look.order.clocks[number][fences[last]]):
            report("tcgen05.fence::after_thread_sync after waiting for it")


def registers(look: Look) -> None:
    """R and F of registers: each agent's own, and the sums of its copy's products."""
    for number, agent in enumerate(look.agents):
        held: dict[tuple[str, int], int] = {}
        writer: dict[tuple[str, int], Place] = {}
        flying: dict[tuple[str, int], Flight] = {}
        nodes = {id(e.node): e.node for e in agent.events}  # by identity: a hash walks all of them
        acts = [node for node in nodes.values() if isinstance(node, Act)]
        sums = {t.ring.name for a in acts if a.kind == "product" for t in a.touches}
        taken = {t.ring.name for a in acts if a.kind in ("take", "put") for t in a.touches}
        touched: Place | None = (number, 0)  # sums were, since the last wgmma.fence
        for position, event in enumerate(agent.events):
            place, node = (number, position), event.node
            if isinstance(node, Fence) and node.kind == "wgmma":
                touched = None
            if not isinstance(node, Act):
                continue
            if node.kind == "product" and touched is not None:
                text = f"{look.name(place)} needs a wgmma.fence after {look.name(touched)}"
                look.report("proxy", touched, place, f"{text}; put one before it")
                touched = None
            for touch, slot, index in event.cells:
                begins = node.kind == "mma" and touch.write
                if touch.ring.share != "thread" and not begins:
                    continue
                key, what = (touch.ring.name, slot), f"{touch.ring.name}@{index}"
                if begins and not event.fresh and held.get(key) != index:
                    text = f"{look.name(place)} adds to {what}, which it has not begun; let fresh"
                    look.report("unwritten", place, place, f"{text} be 0 at the first product")
                if node.kind == "product":
                    flying[key] = look.order.flights[place]
                elif touch.ring.name in sums | taken:
                    touched = place if touch.ring.name in sums else touched
                    if key in flying and not before(
                        flying[key].done, look.order.clocks[number][position]
                    ):
                        first = flying[key].places[0]
                        text = f"{look.name(place)} touches {what} while {look.name(first)} is in"
                        text += " flight; wait with wgmma.wait_group, or tcgen05.wait, before"
                        look.report("race", first, place, text)
                    if node.kind in ("take", "put"):
                        flying[key] = look.order.flights[place]
                if touch.write:
                    held[key], writer[key] = index, place
                elif not event.fresh and key not in held:
                    text = (
                        f"{look.name(place)} reads {what}, which was not written; write it before"
                    )
                    look.report("unwritten", place, place, text)
                elif not event.fresh and held[key] != index:
                    text = f"{look.name(place)} reads {what}, but its slot holds index {held[key]}"
                    text += f" ({look.name(writer[key])}); change an index"
                    look.report("stale", writer[key], place, text)


def exits(look: Look) -> None:
    """X: nothing is in flight where an agent or a CTA ends.

    Of a store only the reading of its source: what it writes is there when the grid ends.
    """
    graph: Order = look.order
    ends = [(n, len(a.events)) for n, a in enumerate(look.agents)]
    for place, flight in graph.flights.items():
        last = (place[0], ends[place[0]][1] - 1)
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
    finals = [[graph.clocks[n][at] for n, at in ends if look.agents[n].cta == cta]
              for cta in range(look.ctas)]  # fmt: skip
    reaches = [(g, cta, name) for (cta, name, _), c in look.counts.items() for g in c.givers]
    for giver, cta, name in (*reaches, *_written_elsewhere(look)):
        if look.agents[giver[0]].cta == cta:
            continue
        if not any(before([giver], clock) for clock in finals[cta]):
            of_cta = ((n, at - 1) for n, at in ends if at and look.agents[n].cta == cta)
            last = next(of_cta, giver)
            text = f"{look.name(giver)} may reach {name} of CTA {cta} when that has ended"
            look.report("exit", giver, last, f"{text}; end with barrier.cluster")


def _written_elsewhere(look: Look) -> Iterator[tuple[Place, int, str]]:
    """Yield the writes into shared memory of a home: who, into which CTA, which ring."""
    for number, agent in enumerate(look.agents):
        for position, event in enumerate(agent.events):
            for touch in event.node.touches if isinstance(event.node, Act) else ():
                if touch.write and touch.ring.home:
                    yield (number, position), _cta(look, agent, touch), touch.ring.name


def _released_after(look: Look, place: Place, flight: Flight, node: Act) -> bool:
    """Say whether a tcgen05 instruction is done before tensor memory is released.

    That is done in each CTA by its first thread, at its end.
    """
    ctas = along(look.protocol.cluster, look.agents[place[0]].cta, node.multicast)
    graph = look.order
    for cta in ctas:
        first = next(n for n, agent in enumerate(look.agents) if agent.cta == cta)
        if not before(flight.done, graph.clocks[first][len(look.agents[first].events)]):
            return False
    return True
