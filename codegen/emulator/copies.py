"""cp.async: copies of single threads from global to shared memory, in groups or onto barriers.

Each warp has a channel; a wait makes what it covers known to the warp that waits.

Source: PTX ISA 9.0, section 9.7.9.25.3 (non-bulk asynchronous copies).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tinygpu.codegen.emulator.barriers import arrive, at_barrier, each_barrier
from tinygpu.codegen.emulator.decoder import Action, Builder, Decoder
from tinygpu.codegen.emulator.group import WARP, Group
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.spaces import granules, shared_at
from tinygpu.codegen.emulator.state import Copy, Mbarrier

__all__ = ["TABLE"]


def _channels(run: Run, group: Group) -> Array:
    """Return the channel of each thread's copies, one an agent."""
    units = run.units(group)
    made = [run.channel("cp.async", t // run.unit, t, asynchronous=False) for t in units.tolist()]
    if run.unit == 1:
        return np.array(made)
    return np.array(made)[np.searchsorted(units // WARP, group.threads // WARP)]


def _cp_async(d: Decoder, i: Instruction) -> Action:
    to, of = d.address(i.operands[0]), d.address(i.operands[1])
    size = int(i.operands[2], 0)
    rest = i.operands[3 : len(i.operands) - ("L2::cache_hint" in i.parts)]
    ignores = bool(rest) and d.is_predicate(rest[0])
    taken = d.source(rest[0], "pred" if ignores else "u32") if rest else None
    if size not in ((16,) if "cg" in i.parts else (4, 8, 16)):
        raise d.error(f"{size} B; .cg copies 16, .ca 4, 8 or 16")
    d.touch(size)

    def copy(run: Run, group: Group) -> None:
        found = shared_at(run, group, to(run, group), size)
        if found is None:
            return
        here, flat = found
        source = of(run, here)
        given = taken(run, here) if taken else size
        given = np.where(given, 0, size) if ignores else given
        count = np.broadcast_to(given, (here.size,)).copy()  # the register may change before
        if (source[count > 0] % size).any():
            run.find("alignment", f"a source is no multiple of {size} B")
        channels, step = _channels(run, here)[:, None], run.tick()
        at = granules(run, flat, size)
        conflict = run.clocks.write(at, run.rows(here)[:, None], step, agent=channels)
        run.conflict(conflict, "copies to")
        _check_source(run, here, source, count)

        def move(which: Array) -> None:
            index = np.arange(size)
            inside = index < count[which, None]
            data = run.memory.gather(source[which, None] + index, np.uint8, inside)
            run.shared[flat[which, None] + index] = data

        number = run.committed[here.threads]
        if run.completion == "early":
            move(np.arange(here.size))
        run.state.copies.append(Copy(here, number, step, move, np.ones(here.size, bool)))

    return copy


def _check_source(run: Run, group: Group, addresses: Array, count: Array) -> None:
    """Report a source outside of all allocations."""
    for size in np.unique(count[count > 0]).tolist():
        mask = count == size
        parts = run.memory.locate(addresses[mask], size)
        if sum(len(p.offsets) for p in parts) < int(mask.sum()):
            bad = next(a for a in addresses[mask] if not run.memory.locate(np.array([a]), size))
            run.find("address", f"{size} B at {run.memory.nearest(int(bad))}")


def _commit(d: Decoder, i: Instruction) -> Action:
    def commit(run: Run, group: Group) -> None:
        run.committed[group.index] += 1

    return commit


def _land(run: Run, group: Group, done: Callable[[Copy], Array]) -> int:
    """Perform the group's copies for which ``done`` holds; returns the last one's step."""
    copies = run.state.copies
    mine = np.zeros(len(run.live), bool)
    mine[group.index] = True
    last = -1
    for copy in list(copies):
        which = mine[copy.group.threads] & copy.left & done(copy)
        if not which.any():
            continue
        last = copy.step
        if run.completion != "early":
            copy.move(np.flatnonzero(which))
        copy.left &= ~which
        here = copy.group.where(which)
        channels = _channels(run, here)
        domains, agents = run.agents_of(here.threads)
        run.clocks.completed(domains, agents, channels, copy.step)
        if not copy.left.any():
            copies.remove(copy)
    return last


def _wait_group(d: Decoder, i: Instruction) -> Action:
    pending = int(i.operands[0], 0) if i.operands else -1

    def wait(run: Run, group: Group) -> None:
        run.tick()
        committed = run.committed
        if pending < 0:
            _land(run, group, lambda copy: np.ones(copy.group.size, bool))
        else:
            _land(run, group, lambda copy: copy.number < committed[copy.group.threads] - pending)

    return wait


def _copy_arrive(d: Decoder, i: Instruction) -> Action:
    """cp.async.mbarrier.arrive: an arrival once the thread's copies so far have landed."""
    at, counted = d.address(i.operands[0]), "noinc" in i.parts
    d.touch(8)

    def signal(run: Run, group: Group) -> None:
        step = run.tick()
        for flat, here in each_barrier(run, group, at(run, group), remote=False):
            barrier = at_barrier(run, flat, here, "arrives at")
            if barrier is None:
                continue
            if not counted:
                barrier.pending += here.size

            def land(here: Group = here, barrier: Mbarrier = barrier) -> None:
                _land(run, here, lambda copy: np.full(copy.group.size, copy.step < step))
                clock = run.clocks.snapshot(*run.members(here), step)
                arrive(run, barrier, here.size, clock)

            run.issue(land)

    return signal


TABLE: Mapping[str, Builder] = {
    "cp.async": _cp_async,
    "cp.async.commit_group": _commit,
    "cp.async.wait_group": _wait_group,
    "cp.async.wait_all": _wait_group,
    "cp.async.mbarrier.arrive": _copy_arrive,
}
"""This family's builders by entry."""
