"""The conditions under which an asynchronous program is legal, at given trip counts.

    B  balance   a phase that is waited for, or not the last, has its barrier's arrivals exactly,
                 and the bytes expected are those that land
    D  deadlock  the graph is acyclic, and members of a barrier come to it equally often
    E  early     every contribution to a phase comes after all of the phase before
    A  parity    a wait is issued after the phase before is complete, and passes before the next is
    R  race      of each slot: read after the writes of the index, overwritten after its last read
                 (*stale*: the order is the other way round; *unwritten*: nobody writes the index);
                 sums are touched after their products are done
    F  proxy     a generic write reaches the asynchronous proxy through its own thread's later
                 fence; products follow a wgmma.fence after what else touched their registers;
                 tcgen05 instructions follow what others did through tcgen05.fence on both sides
    X  exit      what is in flight is done before its agent ends; nobody arrives at a barrier, or
                 writes into shared memory, of a CTA that may have ended

B comes first: without it the graph's edges mean nothing.  Then D: without it there are no orders.
Of CTAs that are alike one is asked (``tinygpu.images``); if that finds something, all of them are.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> from tinygpu.protocol_extraction import protocol_of
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["pingpong"]))
>>> hazards(protocol_of(program), {"number of tiles": 3, "trips": 2})
()

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tinygpu.access_order import memory, registers
from tinygpu.contributions import Count, Phase, Place
from tinygpu.exit_order import exits
from tinygpu.images import even_axes
from tinygpu.ordering import meeters, order
from tinygpu.protocol import Act, Protocol
from tinygpu.synchronization import Arrive, Fence, Sync, Wait, WaitGroup
from tinygpu.witness import Hazard, Look

__all__ = ["Hazard", "hazards"]


def hazards(
    protocol: Protocol, point: Mapping[str, int], *, observed: bool = False
) -> tuple[Hazard, ...]:
    """Return what may go wrong at these numbers of tiles and trips: the first of each kind.

    ``observed`` asks more of A: a wait comes after a pass of one for the phase before.
    """
    even = even_axes(protocol)
    found = _found(Look(protocol, point, even), observed=observed)
    if found and even:
        found = _found(Look(protocol, point), observed=observed)
    return found


def _found(look: Look, *, observed: bool) -> tuple[Hazard, ...]:
    """Ask the conditions one after the other."""
    for first in (_balance, _meetings, _deadlock):
        first(look)
        if look.found:
            return tuple(look.found.values())
    _phases(look, observed=observed)
    for condition in (memory, registers, exits):
        condition(look)
    return tuple(look.found.values())


def _balance(look: Look) -> None:
    """B: compare what every phase gets with what it needs."""
    for number, agent in look.walking:
        for position, event, wait in agent.of(Wait):
            look.barriers[wait.barrier.name] = wait.barrier
            look.waits[agent.cta, wait.barrier.name, event.at].append((number, position))
        for position, _, fence in agent.of(Fence):
            look.fences[number, fence.kind].append(position)
        for _, _, arrive in agent.of(Arrive):
            look.barriers[arrive.barrier.name] = arrive.barrier
        for _, _, act in agent.of(Act):
            if act.signal:
                look.barriers[act.signal[0].name] = act.signal[0]
        for position, _, group in agent.of(WaitGroup):
            if group.pending < 0:
                place = (number, position)
                text = f"{look.name(place)} leaves fewer than 0 groups pending"
                look.report("group", place, place, f"{text}; raise the stages or the count")
    last: dict[tuple[int, str, int], int] = {}
    for cta, name, index in look.sent.counts:
        slot = (cta, name, index % look.barriers[name].stages)
        last[slot] = max(last.get(slot, index), index)
    asked = {(c, n, i) for c, n, i in look.waits if i >= 0}
    inner = {
        (cta, name, index)
        for (cta, name, slot), end in last.items()
        for index in range(slot, end, look.barriers[name].stages)
    }
    exact = asked | inner
    wrong = [p for p in {*exact, *look.sent.counts} if not _is_balanced(look, p, p in exact)]
    for phase in sorted(wrong):
        _unbalanced(look, phase, phase in exact)


def _is_balanced(look: Look, phase: Phase, exact: bool) -> bool:
    """Say whether a phase gets what it needs, or, if not ``exact``, no more arrivals than that."""
    _, name, index = phase
    count, arrivals = look.sent.counts.get(phase) or Count(), look.barriers[name].arrivals
    right = count.arrivals == arrivals and count.expected == count.landed
    return index >= 0 and (right or (not exact and count.arrivals <= arrivals))


def _unbalanced(look: Look, phase: Phase, exact: bool) -> None:
    """Report what a phase gets too much or too little of."""
    _, name, index = phase
    count, barrier = look.sent.counts.get(phase, Count()), look.barriers[name]
    givers, waits = count.givers, look.waits.get(phase, [])
    first = (givers or waits or look.sent.counts[min(look.sent.counts)].givers)[0]
    second = (waits or givers or [first])[0]
    which = f"phase {index // barrier.stages} of {name}[{index % barrier.stages}]"
    which += f" of CTA {phase[0]}" if look.ctas > 1 else ""
    if index < 0:
        text = f"{look.name(first)} arrives at {which}, before the first; raise its index"
        look.report("balance", first, second, text)
    elif count.arrivals > barrier.arrivals or (exact and count.arrivals != barrier.arrivals):
        text = f"{which} gets {count.arrivals} arrivals, and needs {barrier.arrivals}"
        text += f" ({look.name(second)}); change the arrivals or the barrier's count"
        look.report("balance", first, second, text)
    else:
        text = f"{which} expects {count.expected} B, and {count.landed} B land"
        text += f" ({look.name(second)}; in loads or a common divisor); expect what the loads land"
        look.report("balance", first, second, text)


def _meetings(look: Look) -> None:
    """D: the members of each barrier come to it equally often, and no two share a number."""
    users: dict[tuple[int, int], dict[tuple[object, ...], Place]] = defaultdict(dict)
    groups: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(dict)
    for number, agent in look.walking:
        places: dict[Sync, list[int]] = defaultdict(list)
        for position, _, sync in agent.of(Sync):
            places[sync].append(position)
        for sync, at in places.items():
            group = meeters(agent, sync)
            groups[group][number] = at
            if sync.scope != "cluster":
                named = sync.barrier + agent.copy * (sync.scope == "role")
                users[agent.cta, named].setdefault(group, (number, at[0]))
    for (_, number), meeting in users.items():
        if len(meeting) > 1:
            one, two = list(meeting.values())[:2]
            text = f"bar.sync {number} joins other threads in {look.name(one)} than in "
            look.report("deadlock", one, two, f"{text}{look.name(two)}; choose another number")
    for group, come in groups.items():
        most = max(come, key=lambda n: len(come[n]))
        joins = look.event((most, come[most][0])).node
        for other, you in look.walking:
            times = len(come.get(other, ()))
            if isinstance(joins, Sync) and meeters(you, joins) == group and times < len(come[most]):
                place = (most, come[most][times])
                text = f"{look.name(place)} waits for {you}, which comes {times} times"
                look.report("deadlock", place, place, f"{text}; let both come equally often")


def _deadlock(look: Look) -> None:
    """D: nobody is stuck."""
    look.order = order(look.agents, look.images, look.sent)
    stuck = look.order.stuck
    for first, second in zip(stuck, stuck[1:] + stuck[:1], strict=True):
        text = f"{look.name(first)} waits in a circle with {look.name(second)}"
        look.report("deadlock", first, second, f"{text}; let one of them wait later")
    for place, flight in look.order.flights.items():
        if flight.missing and not stuck:
            text = f"{look.name(place)} is not issued by all threads; take it out of one thread's"
            look.report("deadlock", place, place, text)


def _complete(look: Look, phase: Phase, place: Place, *, issued: bool) -> bool:
    """Say whether a phase is complete before an event is issued.

    ``issued``: or at least all contributions to it are, and are arrivals.  If none for p + 1 is
    issued before all for p are, p is not complete before all for p are issued, in whatever order
    they come to a barrier of another CTA.
    """
    if look.order.before(look.order.passes.get(phase, ()), place):
        return True
    count = look.sent.counts.get(phase)
    if count is None or (count.lands if issued else count.later):
        return False
    return look.order.all_before(count.givers, place)


def _phases(look: Look, *, observed: bool) -> None:
    """E and A: contributions and waits meet the phase that they mean."""
    graph, counts = look.order, look.sent.counts
    for (cta, name, index), count in counts.items():
        past = (cta, name, index - look.barriers[name].stages)
        for giver in count.givers if past[2] >= 0 else ():
            if not _complete(look, past, giver, issued=True):
                other = counts[past].givers[-1]
                text = f"{look.name(giver)} may count in the phase of {look.name(other)}"
                text += f", {name}@{past[2]}; wait for that first"
                look.report("early", other, giver, text)
    for (cta, name, index), places in look.waits.items():
        barrier = look.barriers[name]
        past, next_ = (cta, name, index - barrier.stages), (cta, name, index + barrier.stages)
        for place in places:
            if index < -barrier.stages or (past[2] >= 0 and not (
                graph.before(graph.passes.get(past, ()), place)
                if observed else _complete(look, past, place, issued=False)
            )):  # fmt: skip
                text = f"{look.name(place)} may pass on the parity of an older phase, {name}@"
                text += f"{past[2]}, or wait for it; wait for that phase before"
                look.report("parity", place, place, text)
            after = counts.get(next_)
            if after is None or after.arrivals < barrier.arrivals or next_[2] < 0:
                continue
            if not any(graph.before((place,), giver) for giver in after.givers):
                giver = after.givers[-1]
                text = f"{look.name(place)} may come when {name}@{next_[2]} is over, too "
                text += f"({look.name(giver)}), and hang; let that wait for it"
                look.report("parity", place, giver, text)
