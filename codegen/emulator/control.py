"""Control flow and barriers of threads: branches, ends, named barriers, cluster barriers.

A named barrier joins the clocks of all who arrive, and gives them to those who wait.

Source: PTX ISA 9.0, sections 9.7.12 (control flow) and 9.7.13.1 to 9.7.13.4 (barriers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tinygpu.codegen.emulator.decoder import Builder, Control, Decoder
from tinygpu.codegen.emulator.group import WARP, Group, Waiter
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.state import ClusterBarrier, NamedBarrier

__all__ = ["TABLE", "end"]

_NAMED = 16


def _bra(d: Decoder, i: Instruction) -> Control:
    to = d.target_of_branch(i.operands[0])

    def jump(run: Run, group: Group) -> None:
        run.push(to, group)

    return Control(jump)


def _brx(d: Decoder, i: Instruction) -> Control:
    """Branch by an index into a list of labels."""
    index, name = d.source(i.operands[0], "u32"), i.operands[1]
    if name not in d.kernel.targets:
        raise d.error(f"no list of labels (.branchtargets) is called {name}")
    to = [d.target_of_branch(label) for label in d.kernel.targets[name]]

    def jump(run: Run, group: Group) -> None:
        chosen = np.broadcast_to(index(run, group), (group.size,))
        for n in np.unique(chosen).tolist():
            here = group.where(chosen == n)
            if n < len(to):
                run.push(to[n], here)
                continue
            run.find("address", f"index {n} into a list of {len(to)} labels")
            end(run, here)

    return Control(jump)


def _exit(d: Decoder, i: Instruction) -> Control:
    return Control(end)


def _trap(d: Decoder, i: Instruction) -> Control:
    def trap(run: Run, group: Group) -> None:
        thread = int(group.threads[0])
        run.find("trap", f"{run.warp_name(thread)} gave up", thread=thread)
        end(run, group)

    return Control(trap)


Result = Callable[[Run, Group, Array], None]


def _bar(d: Decoder, i: Instruction) -> Control:
    """bar.sync, bar.arrive and bar.red, under both of their names."""
    parts = i.parts
    aligned = parts[0] == "bar" or "aligned" in parts
    arrives = "arrive" in parts
    reduces = next((p for p in ("popc", "and", "or") if p in parts), "") if "red" in parts else ""
    operands = list(i.operands)
    if reduces:
        kind = "u32" if reduces == "popc" else "pred"
        write, vote = d.target(operands.pop(0), kind), d.source(operands.pop(), "pred")
    number = d.source(operands[0], "u32")
    count = d.source(operands[1], "u32") if len(operands) > 1 else None

    def sync(run: Run, group: Group) -> Group | None:
        complete = run.together(group, WARP) if aligned else group
        if complete is None:
            return None
        step, pc = run.tick(), run.pc
        numbers = np.broadcast_to(number(run, complete), (complete.size,))
        counts = np.broadcast_to(count(run, complete) if count else 0, (complete.size,))
        if numbers.max() >= _NAMED:
            run.find("barrier", f"barrier {numbers.max()}; a CTA has 0 to {_NAMED - 1}")
            return complete
        if (counts % WARP).any():
            run.find("barrier", f"a count of {counts.max()} threads is no multiple of {WARP}")
        if not arrives and not reduces and _all_at_once(run, complete, numbers, counts, step):
            return complete
        ballot = vote(run, complete) if reduces else None
        going: list[Array] = []
        for here in _parts(run, complete, numbers, counts, aligned=aligned):
            mask = np.isin(complete.threads, here.threads)
            cta, which = int(run.cta_of(here.threads[:1])[0]), int(numbers[mask][0])
            waiter = Waiter(pc + 1, here, _describe(run, cta, which))
            barrier = run.state.named.setdefault((cta, which), NamedBarrier())
            _arrive(run, barrier, here, int(counts[mask][0]), step)
            warps = set(here.warp_numbers.tolist())
            if aligned and barrier.joined & warps:
                run.find(
                    "barrier",
                    f"{run.warp_name(int(here.threads[0]))} arrives twice before it completes",
                    thread=int(here.threads[0]),
                )
            barrier.joined |= warps
            barrier.arrived += here.warps * WARP if aligned and barrier.counted else here.size
            if arrives:
                going.append(here.threads)
            else:
                barrier.waiters.append(waiter)
                run.wait(waiter)
            if ballot is not None:
                barrier.votes.append((waiter, np.broadcast_to(ballot, (complete.size,))[mask]))
            if barrier.arrived > barrier.expected:
                run.find(
                    "barrier",
                    f"{barrier.arrived} threads are at barrier {which}, which expects "
                    f"{barrier.expected}",
                    thread=int(here.threads[0]),
                )
            if barrier.arrived >= barrier.expected:
                if reduces:
                    _reduce(run, barrier, reduces, write)
                _release(run, run.state.named.pop((cta, which)))
        return Group(np.sort(np.concatenate(going))) if going else None

    return Control(sync, WARP)


def _parts(
    run: Run, group: Group, numbers: Array, counts: Array, *, aligned: bool
) -> Iterator[Group]:
    """Split those who arrive by CTA and barrier, and by warp where a barrier counts them."""
    keys = run.cta_of(group.threads) * _NAMED + numbers
    if counts.any() and aligned:
        keys = keys * len(run.live) + group.threads // WARP
    for key in np.unique(keys).tolist():
        yield group.where(keys == key)


def _describe(run: Run, cta: int, which: int) -> Callable[[], str]:
    def say() -> str:
        barrier = run.state.named[cta, which]
        return f"at barrier {which}, where {barrier.arrived} of {barrier.expected} arrived"

    return say


def _all_at_once(run: Run, group: Group, numbers: Array, counts: Array, step: int) -> bool:
    """Do the common case, for many CTAs in one go: all live threads of whole CTAs meet."""
    each = run.threads_per_cta
    ctas = np.unique(run.cta_of(group.threads))
    live = run.live.reshape(-1, each)[ctas]
    if group.size != live.sum() or (numbers != numbers[0]).any() or run.cluster > 1:
        return False
    if counts[0] and not (live.sum(1) == counts[0]).all():
        return False
    if any((int(cta), int(numbers[0])) in run.state.named for cta in ctas):
        return False
    if not (live == live[0]).all():
        return False
    units = np.flatnonzero(live[0].reshape(-1, run.unit).any(1))
    run.clocks.barrier(ctas, units + 1, step)
    return True


def _arrive(run: Run, barrier: NamedBarrier, group: Group, expected: int, step: int) -> None:
    """Take the clocks of those who arrive, and how many are expected (0: all of the CTA)."""
    clock = run.clocks.snapshot(*run.members(group), step)
    barrier.clock = clock if barrier.clock is None else run.clocks.join(barrier.clock, clock)
    if barrier.expected and expected and barrier.expected != expected:
        run.find("barrier", f"barrier with counts {barrier.expected} and {expected}")
    cta = int(run.cta_of(group.threads[:1])[0])
    everyone = run.live_in(cta)
    barrier.expected, barrier.counted = expected or everyone, bool(expected)


def _reduce(run: Run, barrier: NamedBarrier, how: str, write: Result) -> None:
    ballots = np.concatenate([ballot for _, ballot in barrier.votes])
    result = {"popc": ballots.sum(), "and": ballots.all(), "or": ballots.any()}[how]
    for waiter, _ in barrier.votes:
        write(run, waiter.group, np.full(waiter.group.size, result))


def _release(run: Run, barrier: NamedBarrier) -> None:
    for waiter in barrier.waiters:
        assert barrier.clock is not None
        run.clocks.acquire(*run.members(waiter.group), barrier.clock)
        run.wake(id(waiter))


def end(run: Run, group: Group) -> None:
    """End threads; barriers of all threads go on without them."""
    run.exit(group)
    for cta in np.unique(run.cta_of(group.threads)).tolist():
        everyone = run.live_in(cta)
        if not everyone and run.cluster > 1:
            _check_exit(run, cta)
        domain = cta // run.cluster
        if domain in run.state.clusters:
            _cluster_turn(run, domain, _cluster_state(run, domain))
        for key in [k for k in run.state.named if k[0] == cta]:
            barrier = run.state.named[key]
            if barrier.arrived >= everyone > 0 and barrier.waiters and not barrier.counted:
                _release(run, run.state.named.pop(key))


def _check_exit(run: Run, cta: int) -> None:
    """Report what other CTAs may still do to the shared memory of one that ends."""
    each = run.threads_per_cta
    domain, agents = run.members(Group(np.arange(cta * each, (cta + 1) * each)))
    known = run.clocks.knows(domain, agents)
    for agent, step in run.state.remote.get(cta, {}).items():
        if known[agent] < step:
            run.find(
                "exit",
                f"{run.cta_name(cta)} ends, and nothing says that {run.name(domain, agent)} is "
                "done with its shared memory",
                other=run.log[step],
            )


def _cluster_state(run: Run, domain: int) -> ClusterBarrier:
    if domain not in run.state.clusters:
        threads = run.cluster * run.threads_per_cta
        run.state.clusters[domain] = ClusterBarrier(
            np.zeros(threads, bool), np.zeros(threads, bool), run.clocks.nothing(),
            run.clocks.nothing(),
        )  # fmt: skip
    return run.state.clusters[domain]


def _cluster(d: Decoder, i: Instruction) -> Control:
    waits = "wait" in i.parts

    def barrier(run: Run, group: Group) -> Group | None:
        complete = run.together(group, WARP) if "aligned" in i.parts else group
        if complete is None:
            return None
        step, pc = run.tick(), run.pc
        each = run.cluster * run.threads_per_cta
        domains, going = complete.threads // each, []
        for domain in np.unique(domains).tolist():
            state = _cluster_state(run, domain)
            here = complete.where(domains == domain)
            _, agents = run.members(here)
            _in_turn(run, state.owed, here, here.threads - domain * each, waits=waits)
            if waits:
                if state.arrived[here.threads - domain * each].any():
                    waiter = Waiter(pc + 1, here, _cluster_says(run, domain))
                    run.wait(waiter)
                    state.waiters.append(waiter)
                else:
                    run.clocks.acquire(domain, agents, state.released)
                    going.append(here.threads)
                continue
            relaxed = "relaxed" in i.parts
            clock = run.released(domain, agents, step, relaxed=relaxed)
            state.arrived[here.threads - domain * each] = True
            state.clock = run.clocks.join(state.clock, clock)
            _cluster_turn(run, domain, state)
        if not waits:
            return complete
        return Group(np.concatenate(going)) if going else None

    return Control(barrier, WARP)


def _in_turn(run: Run, owed: Array, group: Group, at: Array, *, waits: bool) -> None:
    """Threads arrive, then wait: who waits has to have arrived, as it waits for itself too."""
    if (owed[at] != waits).any():
        does = "waits, and has not arrived" if waits else "arrives again, and has not waited"
        thread = int(group.threads[(owed[at] != waits).argmax()])
        run.find(
            "barrier", f"{run.warp_name(thread)} {does} at the cluster's barrier", thread=thread
        )
    owed[at] = not waits


def _cluster_says(run: Run, domain: int) -> Callable[[], str]:
    def say() -> str:
        state = _cluster_state(run, domain)
        each = run.cluster * run.threads_per_cta
        live = run.live[domain * each : (domain + 1) * each]
        return f"at the cluster's barrier, where {state.arrived.sum()} of {live.sum()} arrived"

    return say


def _cluster_turn(run: Run, domain: int, state: ClusterBarrier) -> None:
    """Let the phase complete when all threads that live have arrived."""
    each = run.cluster * run.threads_per_cta
    live = run.live[domain * each : (domain + 1) * each]
    if not state.arrived.any() or not (state.arrived | ~live).all():
        return
    state.arrived[:] = False
    state.released = run.clocks.join(state.released, state.clock)
    for waiter in state.waiters:
        run.clocks.acquire(*run.members(waiter.group), state.released)
        run.wake(id(waiter))
    state.waiters = []


TABLE: Mapping[str, Builder] = {
    "bra": _bra,
    "brx.idx": _brx,
    "exit": _exit,
    "trap": _trap,
    "brkpt": _trap,
    "bar": _bar,
    "barrier": _bar,
    "barrier.cluster": _cluster,
}
"""This family's builders by entry."""
