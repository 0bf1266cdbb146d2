"""The mbarrier family: phases, pending arrivals, bytes to come, and what each phase publishes.

A phase completes when no arrival and no byte is pending; then its parity turns.  ``try_wait`` is
run as a wait: its threads sleep until the phase completes.  An arrival gives its agents' clocks to
the phase, a load's completion gives its channel; a successful wait takes them all.

Source: PTX ISA 9.0, section 9.7.13.15 (mbarrier).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tinygpu.codegen.emulator.clocks import INITS, LIFE, ORDER, PROXIED, RESERVED
from tinygpu.codegen.emulator.decoder import Action, Builder, Control, Decoder
from tinygpu.codegen.emulator.group import Group, Waiter
from tinygpu.codegen.emulator.memory import SHARED
from tinygpu.codegen.emulator.moves import space_of
from tinygpu.codegen.emulator.ordering import fence as order
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.spaces import granules, shared_at
from tinygpu.codegen.emulator.state import Mbarrier

__all__ = ["TABLE", "arrive", "at_barrier", "complete_bytes", "each_barrier"]

_MOST_BYTES = (1 << 20) - 1  # spec: "Tx-count"
_BYTES = 8


def at_barrier(
    run: Run, flat: int, group: Group, does: str, *, proxy: bool = False
) -> Mbarrier | None:
    """Return the live barrier there, its initialisation known to all of the group; else report."""
    barrier = run.state.mbarriers.get(flat)
    if barrier is None:
        at, thread = flat % run.shared_bytes, int(group.threads[0])
        run.find(
            "barrier", f"{run.warp_name(thread)} {does} shared byte {at}: no mbarrier is there",
            thread=thread, address=at,
        )  # fmt: skip
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
    run: Run, group: Group, addresses: Array, *, remote: bool
) -> list[tuple[int, Group]]:
    """Return each barrier's offset in ``run.shared``, and the threads that name it."""
    found = shared_at(run, group, addresses, _BYTES, remote=remote)
    if found is None:
        return []
    here, flat = found
    if (flat == flat[0]).all():
        return [(int(flat[0]), here)]
    return [(int(at), here.where(flat == at)) for at in np.unique(flat)]


def _where(d: Decoder, text: str, i: Instruction) -> tuple[Callable[[Run, Group], Array], bool]:
    """Return how the barrier's address is read, and whether it may be another CTA's."""
    at, space = d.address(text), space_of(d, i)
    d.touch(_BYTES)
    if space == "generic":
        return lambda run, group: at(run, group) - SHARED, True
    return at, space == "cluster"


def _init(d: Decoder, i: Instruction) -> Action:
    at, remote = _where(d, i.operands[0], i)
    count = d.source(i.operands[1], "u32")

    def init(run: Run, group: Group) -> None:
        counts = np.broadcast_to(count(run, group), (group.size,))
        step = run.tick()
        for flat, here in each_barrier(run, group, at(run, group), remote=remote):
            thread = int(here.threads[0])
            if flat in run.state.mbarriers or here.size > 1:
                made = run.state.mbarriers.get(flat, "mbarrier")
                run.find("barrier", f"{made} is made again", thread=thread)
            expected = int(counts[group.threads == thread][0])
            if not 1 <= expected <= _MOST_BYTES:
                run.find("barrier", f"an mbarrier of {expected} arrivals; 1 to {_MOST_BYTES} are")
            domain, agent = run.agent_of(thread)
            cta, offset = divmod(flat, run.shared_bytes)
            name = f"the loads onto the mbarrier at shared byte {offset}"
            at_granules = granules(run, np.array([flat]), _BYTES)
            conflict = run.clocks.write(at_granules, run.rows(here)[:1, None], step)
            run.conflict(conflict, "makes an mbarrier in")
            run.clocks.write_agent[at_granules] = RESERVED
            run.clocks.write_step[at_granules] = step
            channel = run.clocks.channel(domain, name, asynchronous=True)
            nothing = run.clocks.nothing
            run.state.mbarriers[flat] = Mbarrier(
                cta, offset, expected, channel, agent, step, nothing(), nothing(), expected
            )

    return init


def _inval(d: Decoder, i: Instruction) -> Action:
    at, remote = _where(d, i.operands[0], i)

    def invalidate(run: Run, group: Group) -> None:
        step = run.tick()
        for flat, here in each_barrier(run, group, at(run, group), remote=remote):
            if at_barrier(run, flat, here, "invalidates") is not None:
                del run.state.mbarriers[flat]
                cells = granules(run, np.array([flat]), _BYTES)
                run.clocks.write_agent[cells] = run.agent_of(int(here.threads[0]))[1]
                run.clocks.write_step[cells] = step

    return invalidate


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
    barrier.pending = barrier.expected
    barrier.released = run.clocks.join(barrier.released, barrier.clock)
    barrier.clock = run.clocks.nothing()
    waiters, barrier.waiters = barrier.waiters, []
    for parity, waiter, resume in waiters:
        if _passed(barrier, parity):
            resume()
            run.wake(id(waiter))
        else:
            barrier.waiters.append((parity, waiter, resume))


def _passed(barrier: Mbarrier, parity: int) -> bool:
    return barrier.phase & 1 != parity


def _arrive(d: Decoder, i: Instruction) -> Action:
    """Arrive, with or without a count, and with bytes to expect; expect_tx alone too."""
    parts = i.parts
    arrives = parts[1].startswith("arrive")
    expects, drops = "expect_tx" in parts, "arrive_drop" in parts
    operands = list(i.operands)
    state = (
        d.target(operands.pop(0), "b64") if arrives and not operands[0].startswith("[") else None
    )
    at, remote = _where(d, operands[0], i)
    number = d.source(operands[1], "u32") if len(operands) > 1 else None
    relaxed = "relaxed" in parts

    def act(run: Run, group: Group) -> None:
        numbers = np.broadcast_to(number(run, group) if number else 1, (group.size,))
        step = run.tick()
        for flat, here in each_barrier(run, group, at(run, group), remote=remote):
            barrier = at_barrier(run, flat, here, "arrives at")
            if barrier is None:
                continue
            _gone(run, barrier)
            for thread in run.units(here).tolist():
                run.remote(barrier.cta, thread, run.agent_of(thread)[1], step)
            mine = numbers[np.isin(group.threads, here.threads)]
            total = int(mine.sum())
            if state is not None:
                state(run, here, _tokens(barrier, np.ones_like(mine) if expects else mine))
            if "complete_tx" in parts:
                barrier.bytes -= total
                _turn(run, barrier)
                continue
            if expects:
                barrier.bytes += total
                if abs(barrier.bytes) > _MOST_BYTES:
                    run.find("barrier", f"{barrier}: at most {_MOST_BYTES} B are counted")
            if not arrives:
                continue
            counts = np.ones_like(mine) if expects else mine
            if "noComplete" in parts and counts.sum() >= barrier.pending:
                run.find("barrier", f"arrivals with .noComplete complete the {barrier}")
            barrier.expected -= int(counts.sum()) if drops else 0
            if counts.sum() <= barrier.pending:  # all in one phase: together
                _arrive_as(run, barrier, here, counts, step, relaxed=relaxed)
                continue
            for thread in run.units(here).tolist():  # each with what it knows itself
                own = here.threads // run.unit == thread // run.unit
                _arrive_as(run, barrier, here.where(own), counts[own], step, relaxed=relaxed)

    return act


def _arrive_as(
    run: Run, barrier: Mbarrier, group: Group, counts: Array, step: int, *, relaxed: bool
) -> None:
    """Let a group arrive, and note when a thread does so twice with no wait between."""
    domain, agents = run.members(group)
    known = run.clocks.clocks[[ORDER, LIFE], domain].max(0)
    for thread in group.threads.tolist():
        agent = run.agent_of(thread)[1]
        own = thread // run.threads_per_cta == barrier.cta  # others may know by a barrier there
        again = own and barrier.last.get(thread) == barrier.phase - 1
        if again and any(known[agent, a] < s for a, s in barrier.before.items() if a != agent):
            run.find(
                "barrier",
                f"{run.warp_name(thread)} arrives again at the {barrier}, and has not seen the "
                "phase complete in which it arrived before: both may count in one",
                other=barrier.lines[thread],
                thread=thread,
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


def _gone(run: Run, barrier: Mbarrier) -> None:
    """Report the use of a barrier whose CTA has ended."""
    if not run.live_in(barrier.cta):
        run.find("exit", f"{run.cta_name(barrier.cta)} has ended, and its {barrier} is still used")


def _wait(d: Decoder, i: Instruction) -> Control:
    """try_wait sleeps until the phase is complete, test_wait only looks.

    The phase is given by its parity, or by an arrival's state, which here is its number.
    """
    tests = "test_wait" in i.parts
    write = d.target(i.operands[0], "pred")
    at, remote = _where(d, i.operands[1], i)
    parity = d.source(i.operands[2], "u32" if "parity" in i.parts else "u64")
    relaxed = "relaxed" in i.parts

    def wait(run: Run, group: Group) -> Group | None:
        parities = np.broadcast_to(parity(run, group), (group.size,))
        pc, going = run.pc, []
        for flat, there in each_barrier(run, group, at(run, group), remote=remote):
            mine = parities[np.isin(group.threads, there.threads)] & 1
            for bit in np.unique(mine).tolist():
                here = there.where(mine == bit)
                barrier = at_barrier(run, flat, here, "waits at")
                if barrier is None:
                    write(run, here, np.ones(here.size, bool))
                    going.append(here.threads)
                    continue
                own = run.cta_of(here.threads)
                if (own != barrier.cta).any():
                    thread = int(here.threads[0])
                    run.find("barrier", f"{run.warp_name(thread)} waits at a remote one",
                             thread=thread)  # fmt: skip
                resume = _resume(run, barrier, here, write, relaxed)
                if _passed(barrier, bit):
                    resume()
                    going.append(here.threads)
                elif tests:
                    write(run, here, np.zeros(here.size, bool))
                    going.append(here.threads)
                else:
                    waiter = Waiter(pc + 1, here, _says(barrier, bit))
                    run.wait(waiter)
                    barrier.waiters.append((bit, waiter, resume))
        return Group(np.sort(np.concatenate(going))) if going else None

    return Control(wait)


def _resume(
    run: Run, barrier: Mbarrier, group: Group, write: Callable[[Run, Group, Array], None],
    relaxed: bool,
) -> Callable[[], None]:  # fmt: skip
    def resume() -> None:
        write(run, group, np.ones(group.size, bool))
        clock = barrier.released
        if relaxed:
            clock = clock.copy()
            clock[[ORDER, PROXIED]] = -1
        run.clocks.acquire(*run.members(group), clock)

    return resume


def _says(barrier: Mbarrier, parity: int) -> Callable[[], str]:
    return lambda: f"for parity {parity} of the {barrier}"


def _fence(d: Decoder, i: Instruction) -> Action:
    """Fences: of proxies, of barriers' initialisation, or of all, for relaxed arrivals after it."""
    proxy = "proxy" in i.parts and any(p.startswith("async") for p in i.parts)
    proxy &= "global" not in i.parts  # of shared memory it says nothing
    inits = "mbarrier_init" in i.parts

    def fence(run: Run, group: Group) -> None:
        step = run.tick()
        for domain, agents in run.by_domain(group):
            for clock in [PROXIED] * proxy + [INITS] * inits:
                run.clocks.fence(domain, agents, step, clock)
        if "proxy" not in i.parts and not inits:
            order(run, group, step)

    return fence


def unfinished(run: Run) -> None:
    """Report barriers that still expect bytes when all threads have ended."""
    for barrier in list(run.state.mbarriers.values()):
        if barrier.bytes:
            run.find("exit", f"{run.cta_name(barrier.cta)} ended with its {barrier}")


TABLE: Mapping[str, Builder] = {
    "mbarrier.init": _init,
    "mbarrier.inval": _inval,
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive_drop": _arrive,
    "mbarrier.complete_tx": _arrive,
    "mbarrier.expect_tx": _arrive,
    "mbarrier.try_wait": _wait,
    "mbarrier.test_wait": _wait,
    "fence": _fence,
    "fence.proxy": _fence,
    "membar.proxy": _fence,
    "membar": _fence,
}
"""This family's builders by entry."""
