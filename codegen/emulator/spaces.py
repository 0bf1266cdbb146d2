"""Loads and stores in every state space, with their checks: bounds, alignment, order.

Each function takes addresses of a group's threads, leaves out (and reports) those that are faulty,
and moves ``lanes`` elements a thread.  A generic address goes to the space whose window it is in.

Source: PTX ISA 9.0, sections 5.1 (state spaces) and 9.7.9 (data movement).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.codegen.emulator.clocks import ORDER
from tinygpu.codegen.emulator.group import WARP, Group
from tinygpu.codegen.emulator.memory import FRAME, LOCAL, PARAM, SHARED
from tinygpu.codegen.emulator.ordering import WEAK, Semantics, equal_values, transfer
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import FIRST_SHARED, Run

__all__ = ["granules", "read", "shared_at", "write"]

Found = tuple[Group, Array]


def granules(run: Run, flat: Array, width: int) -> Array:
    """Return the granules of accesses of ``width`` bytes at ``flat``: (n, pieces)."""
    first = flat // run.code.granule
    pieces = max(1, width // run.code.granule)
    return first[..., None] + np.arange(pieces)


def _without(
    run: Run, group: Group, at: Array, bad: Array, kind: str, say: Callable[[str, int], str]
) -> Found | None:
    """Leave out threads whose accesses are bad; report the first of them."""
    if not bad.any():
        return group, at
    first = int(np.argmax(bad))
    thread, address = int(group.threads[first]), int(at[first])
    run.find(kind, say(run.warp_name(thread), address), thread=thread, address=address)
    return None if bad.all() else (group.where(~bad), at[~bad])


def shared_at(
    run: Run, group: Group, addresses: Array, width: int, *, remote: bool = False, align: int = 0
) -> Found | None:
    """Return the threads whose shared addresses are good, and these as offsets in ``run.shared``.

    ``remote`` allows the memory of another CTA of the cluster.  Reports the others.
    """
    size, cta = run.shared_bytes, run.cta_of(group.threads)
    inside = addresses - FIRST_SHARED
    if run.cluster > 1:
        rank = addresses >> 24
        inside = (addresses & 0xFFFFFF) - FIRST_SHARED
        own = cta % run.cluster
        stray = (rank >= run.cluster) | (rank < 0) | ((rank != own) if not remote else False)
        cta = cta - own + rank
        inside = np.where(stray, -1, inside)
    align = align or width
    if inside.min() >= 0 and inside.max() + width <= size and not (inside & (align - 1)).any():
        return group, cta * size + inside
    begin = f"{width} B; the CTA's {size} B begin at {FIRST_SHARED:#x}"
    found = _without(
        run, group, addresses, (inside < 0) | (inside + width > size), "address",
        lambda _, at: f"shared address {at:#x} of {begin}",
    )  # fmt: skip
    if found is not None:
        found = _without(
            run, *found, found[1] & (align - 1) != 0, "alignment",
            lambda _, at: f"shared address {at:#x} is no multiple of {align} B",
        )  # fmt: skip
    return found and shared_at(run, *found, width, remote=remote, align=align)


def place(run: Run, thread: int, address: int) -> tuple[int, int]:
    """Return the CTA (of the batch) and the offset of a shared address, as a thread sees it."""
    own, rank = thread // run.threads_per_cta, address >> 24
    cta = own - own % run.cluster + rank if run.cluster > 1 else own
    return cta, (address & 0xFFFFFF) - FIRST_SHARED


@dataclass(frozen=True, slots=True)
class _Place:
    """Accesses that are good: whose, and at which bytes of which memory."""

    space: str
    group: Group
    memory: Array
    at: Array

    def cells(self, width: int) -> tuple[Array, Array]:
        """Return the memory in cells of an access' ``width``, and which ones are accessed."""
        whole = self.memory[: len(self.memory) // width * width]
        return whole.view(f"u{width}" if width <= 8 else f"V{width}"), self.at // width

    def values(self, dtype: np.dtype[Any], lanes: int) -> Array:
        """Return what is there: (n, lanes)."""
        cells, index = self.cells(dtype.itemsize * lanes)
        return cells[index].view(dtype).reshape(-1, lanes)


def _places(
    run: Run, space: str, group: Group, addresses: Array, width: int, *, writes: bool
) -> Iterator[_Place]:
    """Yield where a group's accesses go; a generic address to the space whose window it is in."""
    if space == "generic":
        window = addresses >> 40
        names = {SHARED >> 40: "cluster", LOCAL >> 40: "local", PARAM >> 40: "param"}
        known = np.where(np.isin(window, list(names)), window, 0)
        for number in sorted(set(known.tolist()), key=lambda n: [*names, 0].index(n)):
            mask, name = known == number, names.get(number, "global")
            at = addresses[mask] - (number << 40)
            yield from _places(run, name, group.where(mask), at, width, writes=writes)
        return
    if space in ("shared", "cluster"):
        found = shared_at(run, group, addresses, width, remote=space == "cluster")
        if found is not None:
            yield _Place("shared", found[0], run.shared, found[1])
        return
    found = _without(
        run, group, addresses, addresses & (width - 1) != 0, "alignment",
        lambda _, at: f"address {at:#x} is no multiple of {width} B",
    )  # fmt: skip
    if found is None:
        return
    here, at = found
    if space == "global":
        good = 0
        for part in run.memory.locate(at, width):
            which = here if part.which is None else Group(here.threads[part.which])
            good += which.size
            yield _Place(space, which, part.data, part.offsets)
        _outside(run, here, at, width, good)
        return
    what, held, size = "local", run.local, run.code.local_bytes
    if space == "param":
        what, held, size = "parameter", run.frame, run.code.frame_bytes
        if writes or (at >= FRAME).all():
            at = at - FRAME
        else:
            held, size = run.parameters[None], run.code.parameter_bytes
    found = _without(
        run, here, at, (at < 0) | (at + width > size), "address",
        lambda who, at: f"{who}: {width} B at {what} byte {at}, of which there are {size}",
    )  # fmt: skip
    if found is not None:
        row = found[0].threads * held.shape[1] if len(held) > 1 else 0
        yield _Place(space, found[0], held.reshape(-1), row + found[1])


def _outside(run: Run, group: Group, addresses: Array, width: int, good: int) -> None:
    """Report the first global address that no allocation holds."""
    if good == len(addresses):
        return
    for i, address in enumerate(addresses.tolist()):
        if not run.memory.locate(np.array([address]), width):
            thread = int(group.threads[i])
            message = f"{run.warp_name(thread)}: {width} B at {run.memory.nearest(address)}"
            run.find("address", message, thread=thread, address=address)
            return


def read(
    run: Run, space: str, group: Group, addresses: Array, dtype: np.dtype[Any], lanes: int,
    how: Semantics = WEAK,
) -> Iterator[tuple[Group, Array]]:  # fmt: skip
    """Yield the threads that could read, and their values: (n, lanes)."""
    width = dtype.itemsize * lanes
    for place in _places(run, space, group, addresses, width, writes=False):
        if place.space == "shared":
            check_read(run, place.group, place.at, width, how)
        elif place.space == "local":
            _check_local(run, place, width)
        yield place.group, place.values(dtype, lanes)


def _check_local(run: Run, place: _Place, width: int) -> None:
    written = run.local_written.reshape(-1)[place.at[:, None] + np.arange(width)]
    if not written.all():
        first = int(np.argmin(written.all(1)))
        thread, at = int(place.group.threads[first]), int(place.at[first]) % run.local.shape[1]
        message = f"{run.warp_name(thread)} reads local byte {at}, which it has not written"
        # bit fields and empty structs are copied so, and the value may not matter
        run.find("uninitialised", message, thread=thread, address=at, severity="warning")


def _remotely(run: Run, group: Group, flat: Array, step: int) -> None:
    """Note who touches the shared memory of another CTA, which must not end before that."""
    there, own = flat // run.shared_bytes, run.cta_of(group.threads)
    for n in np.flatnonzero(there != own).tolist() if run.cluster > 1 else ():
        cta, thread = int(there[n]), int(group.threads[n])
        run.remote(cta, thread, run.agent_of(thread)[1], step)
        if not run.live_in(cta):
            who = run.warp_name(thread)
            message = f"{who} touches shared memory of {run.cta_name(cta)}, which has ended"
            run.find("exit", message, thread=thread)


def check_read(run: Run, group: Group, flat: Array, width: int, how: Semantics = WEAK) -> None:
    """Hold generic reads of shared memory against the clocks."""
    at, rows, step = granules(run, flat, width), run.rows(group)[:, None], run.tick()
    _remotely(run, group, flat, step)
    if how.strong:
        channels = _strong(run, group)
        conflict = run.clocks.read(at, rows, step, agent=channels[:, None], strong=True)
    else:
        conflict = run.clocks.read(at, rows, step)
    run.conflict(conflict, "reads")
    _fresh(run, group, flat, at, how)
    if how.strong:
        transfer(run, group, flat, step, how, writes=False)


def _fresh(run: Run, group: Group, flat: Array, at: Array, how: Semantics) -> None:
    """Report reads of what nobody wrote; strong ones also of what was first written unordered."""
    clocks = run.clocks
    fresh = clocks.unsure(at, run.rows(group)[:, None]) if how.strong else clocks.fresh(at)
    if fresh.any():
        i = int(np.argmax(fresh.any(1)))
        offset, thread = int(flat[i]) % run.shared_bytes, int(group.threads[i])
        never = clocks.fresh(at[i]).any()
        why = "which nobody wrote" if never else "and nothing orders its first write before"
        message = f"{run.warp_name(thread)} reads shared byte {offset}, {why}"
        severity = "error" if how.strong else "warning"  # a plain load's value may not matter
        run.find("uninitialised", message, thread=thread, address=offset, severity=severity)


def check_write(
    run: Run, group: Group, flat: Array, width: int, how: Semantics = WEAK,
    stored: tuple[Array, Array, Array] | None = None,
) -> None:  # fmt: skip
    """Hold generic writes of shared memory against the clocks.

    ``stored`` are the places, what is stored there, and what is there: equal values only warn.
    """
    at, rows, step = granules(run, flat, width), run.rows(group)[:, None], run.tick()
    _remotely(run, group, flat, step)
    if not how.strong:
        conflict = run.clocks.write(at, rows, step)
        if conflict is not None:
            at_once = conflict.other_step == step
            equal = stored is not None and equal_values(*stored, at_once=at_once)
            if not (equal and at_once and stored and _of_one_warp(group, stored[0])):
                run.conflict(conflict, "writes", equal=equal)
        return
    if how.updates and not how.replaces:
        _fresh(run, group, flat, at, how)
    channels = _strong(run, group)
    order = run.clocks.clocks[ORDER].reshape(-1, run.clocks.agents)
    before = order[rows[:, 0], channels]
    order[rows[:, 0], channels] = np.iinfo(np.int32).max  # strong reads do not race with this
    conflict = run.clocks.write(at, rows, step, strong=True)
    order[rows[:, 0], channels] = before
    run.conflict(conflict, "writes")
    transfer(run, group, flat, step, how, writes=True)


def _of_one_warp(group: Group, index: Array) -> bool:
    """Whether each place is of one warp: one of its lanes' stores is done, by the CUDA guide."""
    warps = group.threads // WARP
    places = len(np.unique(index))
    return len(np.unique(np.stack([index, warps]), axis=1)[0]) == places


def _strong(run: Run, group: Group) -> Array:
    """Return the channel of each thread's strong reads, one a domain."""
    each = run.cluster * run.threads_per_cta
    domains = group.threads // each
    channels = np.zeros(int(domains[-1]) + 1, np.int64)
    for domain in domains[np.flatnonzero(np.diff(domains, prepend=-1))].tolist():
        channels[domain] = run.channel("strong reads", 0, domain * each, asynchronous=False)
    return np.asarray(channels[domains])


Update = Callable[[Array, Array, Any, Array], None]


def write(
    run: Run, space: str, group: Group, addresses: Array, values: Array,
    update: Update | None = None, how: Semantics = WEAK,
) -> None:  # fmt: skip
    """Write values (n, lanes).

    Instead of the plain store, ``update(data, first, which, values)`` changes the memory as an
    array of elements, from the ``first`` one of each thread on; ``which`` are these threads.
    """
    lanes, dtype = values.shape[1], values.dtype
    width = dtype.itemsize * lanes
    for place in _places(run, space, group, addresses, width, writes=True):
        here = place.group
        whole_group = here.size == group.size
        which: Any = slice(None) if whole_group else np.searchsorted(group.threads, here.threads)
        mine = np.ascontiguousarray(values[which])
        cells, index = place.cells(width)
        if place.space == "shared":
            held = place.values(dtype, lanes)
            check_write(run, here, place.at, width, how, (index, mine, held))
        if update is None:
            cells[index] = mine.view(cells.dtype)[:, 0]
        else:
            whole = len(place.memory) // dtype.itemsize * dtype.itemsize
            update(place.memory[:whole].view(dtype), place.at // dtype.itemsize, which, mine)
        if place.space == "local":
            run.local_written.reshape(-1)[place.at[:, None] + np.arange(width)] = True
