"""Access order: conditions R (races) and F (proxies) of ``tinygpu.conditions``.

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
>>> look.order = order(look.agents, look.images, look.sent)
>>> memory(look)
>>> print(*look.found.values())
race: all's other threads: st and all: ld (x@0) are unordered; wait between them [number of tiles=1]

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations, pairwise

from tinygpu.agents import Agent
from tinygpu.clocks import Flight
from tinygpu.contributions import Place
from tinygpu.images import along
from tinygpu.protocol import Act, Kind, Touch
from tinygpu.witness import Look

__all__ = ["memory", "registers"]

Cell = tuple[object, ...]
_TENSOR = ("mma", "cp", "take", "put")
_PROXY = ("load", "store", "product", "mma", "cp")  # they go through the other proxy


@dataclass(slots=True)
class _Access:
    """An access to a slot of shared memory: done when one of ``done`` is passed.

    ``issues``: by whom, of a product by each of its agents, as each warp may begin to read.
    """

    place: Place
    touch: Touch
    index: int
    kind: Kind
    issues: list[Place]
    done: list[Place]


def _comes(look: Look, done: list[Place], access: _Access) -> bool:
    """Say whether one of some passes comes before an access, for all who issue it."""
    first, last = access.issues[0], access.issues[-1]
    known = look.order.before(done, first)
    return known and (first is last or look.order.before(done, last))


def memory(look: Look) -> None:
    """R and F of shared memory."""
    cells: dict[Cell, dict[int, list[_Access]]] = defaultdict(lambda: defaultdict(list))
    for number, agent in look.walking:
        _add(look, number, agent, cells)
    for indices in cells.values():
        ordered = sorted(indices)
        for index in ordered:
            _within(look, indices[index])
        for low, high in pairwise(ordered):
            for p in indices[low]:
                for q in indices[high]:
                    if p.touch.write or q.touch.write:
                        _follows(look, p, q)


def _add(
    look: Look, number: int, agent: Agent, cells: dict[Cell, dict[int, list[_Access]]]
) -> None:
    """Add an agent's accesses to slots of first CTAs, from where they are seen."""
    cluster, graph, images = look.protocol.cluster, look.order, look.images
    apart = len(look.agents) // look.ctas
    for position, event, node in agent.of(Act):
        place, kind = (number, position), node.kind
        flight = graph.flights.get(place)
        issues = [place] if flight is None else flight.places
        if issues[0] != place:
            continue  # a product is one event of two agents
        for touch, slot, index in event.cells:
            ring = touch.ring
            if ring.share == "thread":
                continue
            own = (agent.crew.name, agent.copy) if ring.share == "copy" else ()
            if flight is None:
                access = _Access(place, touch, index, kind, issues, issues)
                cells[look.touched(agent, touch), own, ring.name, slot][index].append(access)
            elif kind == "load":
                ctas = along(cluster, agent.cta, node.multicast)
                for cta, phase in zip(ctas, flight.phases, strict=True):
                    seen = (images.agent(number, apart, cta), position)
                    landed = graph.passes.get(phase, [])
                    access = _Access(seen, touch, index, kind, [seen], landed)
                    cells[images.first[cta], own, ring.name, slot][index].append(access)
            elif kind == "mma":
                if not touch.write and any(
                    t.write and t.ring.name == ring.name for t in node.touches
                ):
                    continue  # its own sums
                for cta in along(cluster, agent.cta, node.multicast):
                    access = _Access(place, touch, index, kind, issues, flight.done)
                    cells[cta, own, ring.name, slot][index].append(access)
            else:
                done = flight.done if touch.write else flight.read
                access = _Access(place, touch, index, kind, issues, done)
                cells[agent.cta, own, ring.name, slot][index].append(access)


def _within(look: Look, accesses: list[_Access]) -> None:
    """Judge the accesses of one index."""
    writes = [a for a in accesses if a.touch.write]
    reads = [a for a in accesses if not a.touch.write]
    what = _what(accesses[0], accesses[0])
    filled = writes[0].touch.part if writes else 0
    for more in writes[1:]:
        filled += more.touch.part  # a sum of one number costs nothing
    short = bool(reads) and filled < 1
    for read in reads:
        if not writes:
            text = f"{look.name(read.place)} reads {what}, which nobody writes; write that index"
            look.report("unwritten", read.place, read.place, text)
        elif short:
            text = f"{look.name(read.place)} reads {what}, of which {filled} is loaded; load it all"
            look.report("unwritten", writes[0].place, read.place, text)
        for write in writes:
            _follows(look, write, read)
    for one, two in combinations(writes, 2):
        a, b = look.agents[one.place[0]], look.agents[two.place[0]]
        together = (a.cta, a.crew.name, a.copy) == (b.cta, b.crew.name, b.copy)
        if together and look.event(one.place) is look.event(two.place):
            if one.touch.overlap:
                text = f"two threads of {look.name(one.place)} write one cell of {what}"
                look.report("race", one.place, two.place, f"{text}; give each its own")
        elif not (
            _in_order(one, two) or one.kind == two.kind == "load" or _comes(look, one.done, two)
        ):
            _follows(look, two, one)


def _in_order(p: _Access, q: _Access) -> bool:
    """Say whether q is a thread's tcgen05.mma that is done after what it issued before.

    That is what another one adds to, and what a tcgen05.cp writes; nothing orders a tcgen05.cp
    behind the products that read what it overwrites.
    """
    if q.kind != "mma" or p.kind not in ("mma", "cp") or not p.touch.write:
        return False
    both = q.touch.write or p.kind == "cp"
    return both and p.place[0] == q.place[0] and p.place < q.place


def _what(p: _Access, q: _Access) -> str:
    """Return what both touch."""
    both = f"{p.touch.ring.name}@{p.index}"
    return both if p.index == q.index else f"{both} and @{q.index}"


def _follows(look: Look, p: _Access, q: _Access) -> None:
    """Report that p is not done before q is issued, or that q cannot see what p wrote."""
    if _in_order(p, q):
        return
    if not _comes(look, p.done, q):
        names = f"{look.name(p.place)} and {look.name(q.place)} ({_what(p, q)})"
        if _comes(look, q.done, p):
            text = f"{names} come in the wrong order; change an index or a wait"
            look.report("stale", p.place, q.place, text)
        else:
            look.report("race", p.place, q.place, f"{names} are unordered; wait between them")
        return
    if p.kind in _TENSOR or q.kind in _TENSOR:
        _fenced(look, p, q)
    crosses = p.touch.write and p.kind in ("generic", "copy") and q.kind in _PROXY
    if crosses and not _comes(look, _fence(look, p, "proxy.async"), q):
        text = f"{look.name(q.place)} may not see what {look.name(p.place)} wrote ({_what(p, q)})"
        text += "; let every writer execute fence.proxy.async, and then wait for it"
        look.report("proxy", p.place, q.place, text)


def _fence(look: Look, p: _Access, kind: str) -> list[Place]:
    """Return the first fence of a kind that p's own thread executes when p is done."""
    number, position = p.place
    seen = next((at for a, at in p.done if a == number), position)
    fences = look.fences[number, kind]
    later = bisect_right(fences, seen)
    return [(number, fences[later])] if later < len(fences) else []


def _fenced(look: Look, p: _Access, q: _Access) -> None:
    """F of tensor memory: threads tell one another of tcgen05 instructions through fences."""
    number, position = q.place
    if p.place[0] == number and p.kind not in ("load", "mma", "cp"):
        return  # its own, and done in program order

    def report(mend: str) -> None:
        names = f"{look.name(q.place)} may not see that {look.name(p.place)} is done"
        names += f" ({_what(p, q)})"
        look.report("proxy", p.place, q.place, f"{names}; execute {mend}")

    if p.kind in ("take", "put") and not _comes(look, _fence(look, p, "tcgen05.before"), q):
        report("tcgen05.fence::before_thread_sync before telling it")
    if q.kind in _TENSOR:
        fences = look.fences[number, "tcgen05.after"]
        last = bisect_right(fences, position) - 1
        if last < 0 or not look.order.before(p.done, (number, fences[last])):
            report("tcgen05.fence::after_thread_sync after waiting for it")


def registers(look: Look) -> None:
    """R and F of registers: each agent's own, and the sums of its copy's products."""
    for number, agent in look.walking:
        held: dict[tuple[str, int], int] = {}
        writer: dict[tuple[str, int], Place] = {}
        flying: dict[tuple[str, int], Flight] = {}
        acts = agent.of(Act)
        nodes = {id(node): node for _, _, node in acts}.values()  # a hash walks all of a node
        sums = {t.ring.name for a in nodes if a.kind == "product" for t in a.touches}
        taken = {t.ring.name for a in nodes if a.kind in ("take", "put") for t in a.touches}
        touched: Place | None = (number, 0)  # sums were, since the last wgmma.fence
        fences = iter([*look.fences[number, "wgmma"], len(agent.events)])
        fenced = next(fences)
        for position, event, node in acts:
            place = (number, position)
            while fenced < position:
                touched, fenced = None, next(fences)
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
                    if key in flying and not look.order.before(flying[key].done, place):
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
