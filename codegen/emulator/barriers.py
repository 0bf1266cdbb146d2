"""Barriers: of a CTA's threads (named ones), of clusters, and mbarriers with their phases.

A named or a cluster's barrier joins the clocks of all who arrive, and gives them to those who wait.
Who arrives at a named one has to know that the phase before is complete, else it may count in that.

A phase of an mbarrier completes when no arrival and no byte is pending; then its parity turns.
``try_wait`` is run as a wait: its threads sleep until the phase completes.  An arrival gives its
agents' clocks to the phase, a load's completion gives its channel; a successful wait takes them
all.

Source: PTX ISA 9.0, sections 9.7.13.1 to 9.7.13.4 (barriers) and 9.7.13.15 (mbarrier).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .accesses import stamps
from .clocks import FAR, FENCED, INITS, LIFE, ORDER, PROXIED, RESERVED, SC, SEEN
from .decoder import Act, Builder, Control, Decoder, bound, operation, together
from .memory import Part
from .parser import Instruction
from .races import check, fence_map
from .report import Array
from .run import WARP, ClusterBarrier, Group, Mbarrier, NamedBarrier, Run, Waiter, one_of
from .scopes import fence as order
from .spaces import shared_at

__all__ = ["TABLE", "arrive", "at_barrier", "barriers_at", "complete_bytes", "end"]

_NAMED = 16
_MOST_BYTES = (1 << 20) - 1  # spec: "Tx-count"
_BYTES = 8


def _by_warps(act: Act) -> Builder:
    """Return the builder of what whole warps do together if it is aligned, else whoever comes."""

    def build(d: Decoder, i: Instruction) -> Control:
        return together(bound(d, i, act)) if _aligned(i) else Control(bound(d, i, act), WARP)

    return build


def _aligned(i: Instruction) -> bool:
    return i.parts[0] == "bar" or "aligned" in i.parts


def _bar(run: Run, complete: Group, i: Instruction, *given: Any) -> None:
    """bar.sync, bar.arrive and bar.red, under both of their names."""
    arrives, aligned, step = "arrive" in i.parts, _aligned(i), run.tick()
    reduces = next((p for p in ("popc", "and", "or") if p in i.parts), "")
    write, *rest, ballot = given if reduces else (None, *given, None)
    numbers, counts = (*rest, np.zeros(complete.size, int))[:2]
    if numbers.max() >= _NAMED:
        run.find("barrier", f"barrier {numbers.max()}; a CTA has 0 to {_NAMED - 1}")
        return
    if (counts % WARP).any():
        why, size = f"counts {counts.max()} threads", int(np.prod(run.block))
        right = run.right(run.pc, 1 + bool(reduces), size, f"{why}, the CTA has {size}")
        message = f"a count of {counts.max()} threads is no multiple of {WARP}"
        run.find("barrier", message, numbers=(right,))
    if not arrives and not reduces and _all_at_once(run, complete, numbers, counts, step):
        return
    for here in _parts(run, complete, numbers, counts, aligned=aligned):
        mask = np.isin(complete.threads, here.threads)
        cta, which = int(here.threads[0]) // run.threads_per_cta, int(numbers[mask][0])
        barrier = run.named.setdefault((cta, which), NamedBarrier(run.clocks.nothing()))
        say = "at barrier {1}, where {0.arrived} of {0.expected} arrived".format
        says = functools.partial(say, barrier, which)
        waiter = Waiter(run.pc + 1, here, says, barrier=barrier)
        clock, expected = run.clocks.snapshot(*run.members(here), step), int(counts[mask][0])
        barrier.clock = run.clocks.join(barrier.clock, clock)
        if barrier.expected and expected and barrier.expected != expected:
            run.find("barrier", f"barrier with counts {barrier.expected} and {expected}")
        barrier.expected, barrier.counted = expected or run.live_in(cta), bool(expected)
        _known_to_be_open(run, (cta, which), barrier, here, step)
        warps = set(here.warp_numbers.tolist())
        if aligned and barrier.joined & warps:
            run.find("barrier", "arrives twice before it completes", who=int(here.threads[0]))
        barrier.joined |= warps
        barrier.arrived += here.warps * WARP if aligned and barrier.counted else here.size
        if not arrives:
            barrier.waiters.append(waiter)
            run.wait(waiter)
        if reduces:
            barrier.votes.append(ballot[mask])
            waiter.resume = functools.partial(_reduce, barrier, here, reduces, write)
        if barrier.arrived > barrier.expected:
            run.find(
                "barrier",
                f"{barrier.arrived} threads are at barrier {which}, which expects "
                f"{barrier.expected}",
                thread=int(here.threads[0]),
            )
        if barrier.arrived >= barrier.expected:
            _complete(run, (cta, which))


def _parts(
    run: Run, group: Group, numbers: Array, counts: Array, *, aligned: bool
) -> Iterator[Group]:
    """Split those who arrive by CTA and barrier, and by warp where a barrier counts them."""
    keys = group.threads // run.threads_per_cta * _NAMED + numbers
    if counts.any() and aligned:
        keys = keys * len(run.live) + group.threads // WARP
    for key in np.unique(keys).tolist():
        yield group.where(keys == key)


def _all_at_once(run: Run, group: Group, numbers: Array, counts: Array, step: int) -> bool:
    """Do the common case, for many CTAs in one go: all live threads of whole CTAs meet."""
    each = run.threads_per_cta
    ctas = np.unique(group.threads // run.threads_per_cta)
    live = run.live.reshape(-1, each)[ctas]
    together = group.size == live.sum() and (numbers == numbers[0]).all() and run.cluster == 1
    counted = not counts[0] or (live.sum(1) == counts[0]).all()
    begun = any((int(cta), int(numbers[0])) in run.named for cta in ctas)
    if not (together and counted and (live == live[0]).all()) or begun:
        return False
    units = np.flatnonzero(live[0].reshape(-1, run.unit).any(1))
    run.clocks.barrier(ctas, units + 1, step)
    return True


def _known_to_be_open(
    run: Run, key: tuple[int, int], barrier: NamedBarrier, group: Group, step: int
) -> None:
    """Report who arrives and does not know that the phase before is complete."""
    domain, agents = run.members(group)
    before = run.named_before.get(key, {})
    known = run.clocks.clocks[[ORDER, LIFE], domain].max(0)
    late = [a for a, s in before.items() if (known[[n for n in agents if n != a], a] < s).any()]
    if late:
        run.find(
            "barrier",
            f"arrives at barrier {key[1]}, and nothing says that its phase before is complete: "
            "this may count in that",
            other=run.log[before[late[0]]],
            who=int(group.threads[0]),
        )
    barrier.marks.update(dict.fromkeys(agents, step))


def _complete(run: Run, key: tuple[int, int]) -> None:
    """End a phase of a named barrier: who waits goes on."""
    barrier = run.named.pop(key)
    run.named_before[key] = barrier.marks
    run.release(barrier.waiters, barrier.clock)


def _reduce(barrier: NamedBarrier, group: Group, how: str, write: Act) -> None:
    ballots = np.concatenate(barrier.votes)
    result = {"popc": ballots.sum(), "and": ballots.all(), "or": ballots.any()}[how]
    write(group, np.full(group.size, result))


def end(run: Run, group: Group) -> None:
    """End threads; barriers of all threads go on without them, and warps that waited for them."""
    run.gone.append(group.threads)
    run.live[group.index] = False
    for pc in list(run.parked):
        run.push(pc, run.parked.pop(pc))
    run.choices += 1
    for cta in np.unique(group.threads // run.threads_per_cta).tolist():
        everyone = run.live_in(cta)
        if not everyone and run.cluster > 1:
            _check_exit(run, cta)
        domain = cta // run.cluster
        if domain in run.clusters:
            _cluster_turn(run, domain, run.clusters[domain])
        for key in [k for k in run.named if k[0] == cta]:
            barrier = run.named[key]
            if barrier.arrived >= everyone > 0 and barrier.waiters and not barrier.counted:
                _complete(run, key)


def _check_exit(run: Run, cta: int) -> None:
    """Report what other CTAs may still do to the shared memory of one that ends."""
    each = run.threads_per_cta
    domain, agents = run.members(Group(np.arange(cta * each, (cta + 1) * each)))
    known = run.clocks.snapshot(domain, agents, -1)[LIFE]
    for agent, step in run.touched.get(cta, {}).items():
        if known[agent] < step:
            run.find(
                "exit",
                f"{run.cta_name(cta)} ends, and nothing says that {run.name(domain, agent)} is "
                "done with its shared memory",
                other=run.log[step],
            )


def _cluster(run: Run, complete: Group, i: Instruction) -> None:
    step, each = run.tick(), run.cluster * run.threads_per_cta
    waits, relaxed = "wait" in i.parts, "relaxed" in i.parts
    domains = complete.threads // each
    for domain in np.unique(domains).tolist():
        if domain not in run.clusters:
            (arrived, owed), nothing = np.zeros((2, each), bool), run.clocks.nothing
            run.clusters[domain] = ClusterBarrier(arrived, owed, nothing(), nothing())
        state, here = run.clusters[domain], complete.where(domains == domain)
        _, agents = run.members(here)
        at = here.threads - domain * each
        if (wrong := state.owed[at] != waits).any():  # who waits waits for itself too
            does = "waits, and has not arrived" if waits else "arrives again, and has not waited"
            thread = int(here.threads[wrong.argmax()])
            run.find("barrier", f"{does} at the cluster's barrier", who=thread)
        state.owed[at] = not waits
        if not waits:
            clock = run.released(domain, agents, step, relaxed=relaxed)
            state.arrived[at] = True
            state.clock = run.clocks.join(state.clock, clock)
            _cluster_turn(run, domain, state)
        elif state.arrived[at].any():
            waiter = Waiter(run.pc + 1, here, functools.partial(_cluster_says, run, domain))
            run.wait(waiter)
            state.waiters.append(waiter)
        else:
            run.clocks.acquire(domain, agents, state.released)


def _cluster_says(run: Run, domain: int) -> str:
    arrived = run.clusters[domain].arrived
    live = run.live.reshape(-1, len(arrived))[domain]
    return f"at the cluster's barrier, where {arrived.sum()} of {live.sum()} arrived"


def _cluster_turn(run: Run, domain: int, state: ClusterBarrier) -> None:
    """Let the phase complete when all threads that live have arrived."""
    live = run.live.reshape(-1, len(state.arrived))[domain]
    if not state.arrived.any() or not (state.arrived | ~live).all():
        return
    state.arrived[:] = False
    state.released = run.clocks.join(state.released, state.clock)
    waiters, state.waiters = state.waiters, []
    run.release(waiters, state.released)


def at_barrier(
    run: Run, flat: int, group: Group, does: str, *, proxy: bool = False
) -> Mbarrier | None:
    """Return the live barrier there, its initialisation known to all of the group; else report."""
    barrier = run.mbarriers.get(flat)
    if barrier is None:
        at, thread = flat % run.shared_bytes, int(group.threads[0])
        message = f"{does} shared byte {at}: no mbarrier is there"
        run.find("barrier", message, who=thread, address=at)
        return None
    units = run.units(group)
    domains, agents = run.agents_of(units)
    clocks = run.clocks.clocks[:, domains, agents, barrier.made_by]
    unknown = np.maximum(clocks[PROXIED if proxy else ORDER], clocks[INITS]) < barrier.made_at
    if unknown.any():
        need = (
            "a fence of its initialisation" if proxy else "anything that orders its initialisation"
        )
        first = int(np.argmax(unknown))
        run.find(
            "proxy" if proxy else "race",
            f"{run.name(int(domains[first]), int(agents[first]))} {does} {barrier} without {need}",
            other=run.log[barrier.made_at],
            thread=int(units[first]),
            address=barrier.offset,
            severity="error" if (clocks[ORDER] < barrier.made_at).any() else "warning",
        )
    return barrier


def each_barrier(
    run: Run, group: Group, addresses: Array, i: Instruction
) -> list[tuple[int, Group]]:
    """Return each barrier's offset in ``run.shared``, and the threads that name it.

    It may be another CTA's, if the instruction does not say that it is of its own.
    """
    own = {"shared", "shared::cta"} & set(i.parts)
    found = shared_at(run, group, addresses, _BYTES, remote=not own)
    if found is None:
        return []
    here, flat = found
    if (flat == flat[0]).all():
        return [(int(flat[0]), here)]
    return [(int(at), here.where(flat == at)) for at in np.unique(flat)]


def barriers_at(
    run: Run, group: Group, addresses: Array, does: str, i: Instruction
) -> Iterator[tuple[Mbarrier, Group]]:
    """Yield each live barrier there, and the threads that name it; report where there is none."""
    for flat, here in each_barrier(run, group, addresses, i):
        barrier = at_barrier(run, flat, here, does)
        if barrier is not None:
            yield barrier, here


def _init(run: Run, group: Group, i: Instruction, addresses: Array, counts: Array) -> None:
    step = run.tick()
    for flat, here in each_barrier(run, group, addresses, i):
        thread = int(here.threads[0])
        if flat in run.mbarriers or here.size > 1:
            made = run.mbarriers.get(flat, "mbarrier")
            run.find("barrier", f"{made} is made again", thread=thread)
        expected = int(counts[group.threads == thread][0])
        if not 1 <= expected <= _MOST_BYTES:
            run.find("barrier", f"an mbarrier of {expected} arrivals; 1 to {_MOST_BYTES} are")
        domain, agent = run.agents_of(thread)
        cta, offset = divmod(flat, run.shared_bytes)
        name = f"the loads onto the mbarrier at shared byte {offset}"
        part = Part(None, np.array([flat]), run.shared)
        check(run, one_of(thread), part, _BYTES, writes=True, does="makes an mbarrier in")
        _own(run, flat, RESERVED, step)
        channel = run.clocks.channel(domain, name, asynchronous=True)
        nothing = run.clocks.nothing
        run.mbarriers[flat] = Mbarrier(
            cta, offset, expected, channel, agent, step, nothing(), nothing(), expected
        )


def _own(run: Run, flat: int, agent: int, step: int) -> None:
    """Let an agent have written an mbarrier's bytes."""
    run.inside.did("write", run.clocks.agents)[agent] = True
    places = run.inside.places(np.array([flat]), _BYTES)
    run.inside.note("write", places, stamps(agent, 0, step=step))


def _inval(run: Run, group: Group, i: Instruction, addresses: Array) -> None:
    step = run.tick()
    for barrier, here in barriers_at(run, group, addresses, "invalidates", i):
        flat = barrier.cta * run.shared_bytes + barrier.offset
        del run.mbarriers[flat]
        _own(run, flat, run.agents_of(int(here.threads[0]))[1], step)


def arrive(run: Run, barrier: Mbarrier, count: int, clock: Array) -> None:
    """Take arrivals with what those who arrive know."""
    while count:
        taken = min(count, barrier.pending)
        if not taken:
            run.find("barrier", f"{count} arrivals too many at {barrier}")
            return
        barrier.clock = run.clocks.join(barrier.clock, clock)
        barrier.pending -= taken
        count -= taken
        _turn(run, barrier)


def complete_bytes(
    run: Run, barrier: Mbarrier, number: int, step: int, issuer: Array | None = None
) -> None:
    """Take the bytes of a load that was issued at ``step``, when its issuer knew that."""
    channel = run.clocks.nothing()
    if issuer is not None:  # that it has come tells of what let it be issued, and orders nothing
        channel[LIFE, : issuer.shape[1]] = issuer[LIFE]
    channel[ORDER, barrier.channel] = step
    barrier.clock = run.clocks.join(barrier.clock, channel)
    barrier.bytes -= number
    _turn(run, barrier)


def _turn(run: Run, barrier: Mbarrier) -> None:
    if barrier.pending or barrier.bytes:
        return
    barrier.phase += 1
    barrier.before, barrier.marks = barrier.marks, {}
    barrier.said = {}
    barrier.pending = barrier.expected
    barrier.released = run.clocks.join(barrier.released, barrier.clock)
    barrier.clock = run.clocks.nothing()
    known, lanes = barrier.released[[ORDER, LIFE]].max(0), WARP // run.unit
    for agent, (step, pc) in barrier.passed.items():
        first = 1 + (agent - 1) // lanes * lanes  # one lane of a warp speaks for all
        if known[first : first + lanes].max() < step:
            name = run.name(barrier.cta // run.cluster, agent)
            run.find(
                "barrier",
                f"{name} may come too late for a phase of the {barrier}: nothing says that it has "
                "waited when the next one completes; it then sleeps for one more, or for ever",
                pc=pc,
                other=run.pc,
                address=barrier.offset,
                severity="warning",
            )
    barrier.passed = {}
    waiters, barrier.waiters = barrier.waiters, []
    for parity, waiter in waiters:
        if _passed(barrier, parity):
            run.wake(waiter)
        else:
            barrier.waiters.append((parity, waiter))


def _passed(barrier: Mbarrier, parity: int) -> bool:
    return barrier.phase & 1 != parity


def _arrive(run: Run, group: Group, i: Instruction, *given: Any) -> None:
    """Arrive, with or without a count, and with bytes to expect; expect_tx alone too."""
    parts, step = i.parts, run.tick()
    arrives, expects = parts[1].startswith("arrive"), "expect_tx" in parts
    state, addresses, *rest = given if arrives else (None, *given)
    numbers = rest[0] if rest else np.ones(group.size, np.uint32)
    for barrier, here in barriers_at(run, group, addresses, "arrives at", i):
        if not run.live_in(barrier.cta):
            cta = run.cta_name(barrier.cta)
            run.find("exit", f"{cta} has ended, and its {barrier} is still used")
        for thread in run.units(here).tolist():
            run.remote(barrier.cta, thread, run.agents_of(thread)[1], step)
        mine = numbers[np.isin(group.threads, here.threads)]
        total, counts = int(mine.sum()), np.ones_like(mine) if expects else mine
        if state is not None:
            state(here, _tokens(barrier, counts))
        if "complete_tx" in parts:
            barrier.bytes -= total
            _turn(run, barrier)
            continue
        if expects:
            barrier.said.setdefault(run.pc, []).extend(mine.tolist())
            barrier.bytes += total
            if abs(barrier.bytes) > _MOST_BYTES:
                run.find("barrier", f"{barrier}: at most {_MOST_BYTES} B are counted")
        if not arrives:
            continue
        if "noComplete" in parts and counts.sum() >= barrier.pending:
            run.find("barrier", f"arrivals with .noComplete complete the {barrier}")
        barrier.expected -= int(counts.sum()) if "arrive_drop" in parts else 0
        units, relaxed = here.threads // run.unit, "relaxed" in parts
        if counts.sum() <= barrier.pending:  # all in one phase: together
            units = units * 0
        for unit in dict.fromkeys(units.tolist()):  # else each with what it knows itself
            own = units == unit
            _arrive_as(run, barrier, here.where(own), counts[own], step, relaxed=relaxed)


def _arrive_as(
    run: Run, barrier: Mbarrier, group: Group, counts: Array, step: int, *, relaxed: bool
) -> None:
    """Let a group arrive, and note when a thread does so twice with no wait between."""
    domain, agents = run.members(group)
    known = run.clocks.clocks[[ORDER, LIFE], domain].max(0)
    for thread in group.threads.tolist():
        agent = run.agents_of(thread)[1]
        own = thread // run.threads_per_cta == barrier.cta  # others may know by a barrier there
        again = own and barrier.last.get(thread) == barrier.phase - 1
        if again and any(known[agent, a] < s for a, s in barrier.before.items() if a != agent):
            run.find(
                "barrier",
                f"arrives again at the {barrier}, and has not seen the phase complete in which it "
                "arrived before: both may count in one",
                other=barrier.lines[thread],
                who=thread,
                address=barrier.offset,
            )
        barrier.last[thread] = barrier.phase
        barrier.lines[thread] = run.pc
    barrier.marks.update(dict.fromkeys(agents, step))
    clock = run.released(domain, agents, step, relaxed=relaxed)
    arrive(run, barrier, int(counts.sum()), clock)


def _tokens(barrier: Mbarrier, numbers: Array) -> Array:
    """Return the phase that each arrival counts in, when they come one after the other."""
    before = np.cumsum(numbers, dtype=np.int64) - numbers - barrier.pending
    later = np.where(before < 0, 0, 1 + before // barrier.expected)
    tokens: Array = (barrier.phase + later).astype(np.uint64)
    return tokens


def _wait(
    run: Run, group: Group, i: Instruction, write: Act, addresses: Array,
    parities: Array, *_: Array,
) -> None:  # fmt: skip
    """try_wait sleeps until the phase is complete, test_wait only looks.

    The phase is given by its parity, or by an arrival's state, which here is its number.
    """
    relaxed = "relaxed" in i.parts
    run.tick()
    write(group, np.ones(group.size, bool))  # which those who sleep find when they wake
    for barrier, there in barriers_at(run, group, addresses, "waits at", i):
        if (there.threads // run.threads_per_cta != barrier.cta).any():
            run.find("barrier", "waits at a remote one", who=int(there.threads[0]))
        mine = parities[np.isin(group.threads, there.threads)] & 1
        for bit in np.unique(mine).tolist():
            here = there.where(mine == bit)
            resume = functools.partial(_acquire, run, barrier, here, run.pc, relaxed=relaxed)
            if _passed(barrier, bit):
                resume()
            elif "test_wait" in i.parts:
                write(here, np.zeros(here.size, bool))
            else:
                say = functools.partial("for parity {} of the {}".format, bit, barrier)
                waiter = Waiter(run.pc + 1, here, say, resume, barrier)
                run.wait(waiter)
                barrier.waiters.append((bit, waiter))


def _acquire(run: Run, barrier: Mbarrier, group: Group, pc: int, *, relaxed: bool) -> None:
    clock = barrier.released
    domain, agents = run.members(group)
    barrier.passed |= dict.fromkeys(agents, (len(run.log) - 1, pc))
    if relaxed:
        clock = clock.copy()
        clock[[ORDER, PROXIED, FENCED, SC, SEEN, FAR]] = -1
    run.clocks.acquire(domain, agents, clock)


def _fence(run: Run, group: Group, i: Instruction, *maps: Array) -> None:
    """Fence proxies, barriers' initialisation, maps, or all, for relaxed arrivals after it."""
    if maps:
        fence_map(run, group, maps[0])
        return
    step, parts = run.tick(), i.parts
    proxy = "proxy" in parts and any(p.startswith("async") for p in parts)
    clocks = [PROXIED] * (proxy and "global" not in parts)
    clocks += [FENCED] * (proxy and not any("shared" in p for p in parts))
    clocks += [INITS] * ("mbarrier_init" in parts)
    for domain, agents in run.by_domain(group):
        for clock in clocks:
            run.clocks.fence(domain, agents, step, clock)
    if "proxy" not in parts and "mbarrier_init" not in parts:
        order(run, group, step, i)


def unfinished(run: Run) -> None:
    """Report barriers that still expect bytes when all threads have ended."""
    for barrier in list(run.mbarriers.values()):
        if barrier.bytes:
            run.find("exit", f"{run.cta_name(barrier.cta)} ended with its {barrier}")


TABLE: Mapping[str, Builder] = {
    **dict.fromkeys(("bar", "barrier"), _by_warps(_bar)),
    "barrier.cluster": _by_warps(_cluster),
    "mbarrier.init": operation(_init, touches=_BYTES),
    "mbarrier.inval": operation(_inval, touches=_BYTES),
    **{
        f"mbarrier.{does}": operation(_arrive, touches=_BYTES)
        for does in ("arrive", "arrive_drop", "complete_tx", "expect_tx")
    },
    "mbarrier.try_wait": operation(_wait, touches=_BYTES, unit=1),
    "mbarrier.test_wait": operation(_wait, touches=_BYTES, unit=1),
    **dict.fromkeys(("fence", "fence.proxy", "membar.proxy", "membar"), operation(_fence)),
}
"""This family's builders by entry."""
