"""Loads and stores in every state space, with their checks: bounds, alignment, order.

Each function takes addresses of a group's threads, leaves out (and reports) those that are faulty,
and moves ``lanes`` elements a thread.  A generic address goes to the space whose window it is in.

Source: PTX ISA 9.0, sections 5.1 (state spaces) and 9.7.9 (data movement).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinygpu.codegen.interpreter.clocks import ORDER
from tinygpu.codegen.interpreter.group import WARP, Group
from tinygpu.codegen.interpreter.memory import LOCAL, PARAM, SHARED
from tinygpu.codegen.interpreter.report import Array
from tinygpu.codegen.interpreter.run import FIRST_SHARED, Run

__all__ = ["granules", "partition", "read", "shared_at", "write"]

Found = tuple[Group, Array]


def granules(run: Run, flat: Array, width: int) -> Array:
    """Return the granules of accesses of ``width`` bytes at ``flat``: (n, pieces)."""
    first = flat // run.code.granule
    pieces = max(1, width // run.code.granule)
    return first[..., None] + np.arange(pieces)


def shared_at(
    run: Run, group: Group, addresses: Array, width: int, *, remote: bool = False, align: int = 0
) -> Found | None:
    """Return the threads whose shared addresses are good, and these as offsets in ``run.shared``.

    ``remote`` allows the memory of another CTA of the cluster.  Reports the others.
    """
    size, each = run.shared_bytes, run.threads_per_cta
    cta = group.threads // each
    inside = addresses - FIRST_SHARED
    if run.cluster > 1:
        rank = addresses >> 24
        inside = (addresses & 0xFFFFFF) - FIRST_SHARED
        own = cta % run.cluster
        stray = (rank >= run.cluster) | (rank < 0) | ((rank != own) if not remote else False)
        cta = cta - own + rank
        inside = np.where(stray, -1, inside)
    align = align or width
    if inside.min() < 0 or inside.max() + width > size or (inside & (align - 1)).any():
        bad = (inside < 0) | (inside + width > size)
        if bad.any():
            at = int(addresses[np.argmax(bad)])
            run.find(
                "address",
                f"shared address {at:#x} of {width} B; the CTA's {size} B begin at "
                f"{FIRST_SHARED:#x}",
            )
        crooked = ~bad & (inside & (align - 1) != 0)
        if crooked.any():
            at = int(addresses[np.argmax(crooked)])
            run.find("alignment", f"shared address {at:#x} is no multiple of {align} B")
        good = ~bad & ~crooked
        if not good.any():
            return None
        group, inside, cta = group.where(good), inside[good], cta[good]
    return group, cta * size + inside


def partition(group: Group, addresses: Array) -> list[tuple[str, Group, Array]]:
    """Split generic addresses by window: shared (of the whole cluster) and local ones change."""
    window = addresses >> 40
    found = []
    for space, start in (("cluster", SHARED), ("local", LOCAL), ("param", PARAM), ("global", 0)):
        mask = window == start >> 40
        if space == "global":
            mask = ~np.isin(window, [SHARED >> 40, LOCAL >> 40, PARAM >> 40])
        if mask.any():
            found.append((space, group.where(mask), addresses[mask] - start))
    return found


def _aligned(run: Run, group: Group, addresses: Array, width: int) -> Found | None:
    crooked = addresses & (width - 1) != 0
    if not crooked.any():
        return group, addresses
    at = int(addresses[np.argmax(crooked)])
    run.find("alignment", f"address {at:#x} is no multiple of {width} B")
    if crooked.all():
        return None
    return group.where(~crooked), addresses[~crooked]


def _outside(run: Run, group: Group, addresses: Array, width: int, good: int) -> None:
    """Report the first global address that no allocation holds."""
    if good == len(addresses):
        return
    for i, address in enumerate(addresses.tolist()):
        if not run.memory.locate(np.array([address]), width):
            who = run.warp_name(int(group.threads[i]))
            run.find("address", f"{who}: {width} B at {run.memory.nearest(address)}")
            return


def read(
    run: Run, space: str, group: Group, addresses: Array, dtype: np.dtype[Any], lanes: int
) -> list[tuple[Group, Array]]:
    """Return the threads that could read, and their values: (n, lanes)."""
    if space == "generic":
        parts = partition(group, addresses)
        return [r for s, g, a in parts for r in read(run, s, g, a, dtype, lanes)]
    width = dtype.itemsize * lanes
    if space in ("shared", "cluster"):
        return _read_shared(run, group, addresses, dtype, lanes, remote=space == "cluster")
    found = _aligned(run, group, addresses, width)
    if found is None:
        return []
    group, addresses = found
    if space == "local":
        at = addresses // dtype.itemsize
        index = at[:, None] + np.arange(lanes)
        return [(group, run.local.view(dtype)[group.threads[:, None], index])]
    if space == "param":
        index = addresses[:, None] + np.arange(width)
        return [(group, run.parameters[index].view(dtype))]
    results, good = [], 0
    for part in run.memory.locate(addresses, width):
        here = group if part.which is None else Group(group.threads[part.which])
        index = part.index(dtype.itemsize, lanes)
        results.append((here, part.view(dtype)[index].reshape(here.size, lanes)))
        good += here.size
    _outside(run, group, addresses, width, good)
    return results


def _read_shared(
    run: Run, group: Group, addresses: Array, dtype: np.dtype[Any], lanes: int, *, remote: bool
) -> list[tuple[Group, Array]]:
    width = dtype.itemsize * lanes
    found = shared_at(run, group, addresses, width, remote=remote)
    if found is None:
        return []
    group, flat = found
    check_read(run, group, flat, width)
    if lanes == 1:
        return [(group, run.shared.view(dtype)[flat // width][:, None])]
    whole = run.shared[: len(run.shared) // width * width].view(dtype).reshape(-1, lanes)
    return [(group, whole[flat // width])]


def _remotely(run: Run, group: Group, flat: Array, step: int) -> None:
    """Note who touches the shared memory of another CTA, which must not end before that."""
    there, own = flat // run.shared_bytes, run.cta_of(group.threads)
    for n in np.flatnonzero(there != own).tolist() if run.cluster > 1 else ():
        cta, thread = int(there[n]), int(group.threads[n])
        run.remote(cta, thread, int(run.agents_of(np.array([thread // WARP]))[1][0]), step)
        each = run.threads_per_cta
        if not run.live[cta * each : (cta + 1) * each].any():
            who = run.warp_name(thread)
            run.find("exit", f"{who} touches shared memory of {run.cta_name(cta)}, which has ended")


def check_read(run: Run, group: Group, flat: Array, width: int) -> None:
    """Hold generic reads of shared memory against the clocks."""
    at, rows, step = granules(run, flat, width), run.rows(group)[:, None], run.tick()
    _remotely(run, group, flat, step)
    conflict = run.clocks.read(at, rows, step)
    run.conflict(conflict, "reads")
    fresh = run.clocks.fresh(at)
    if fresh.any():
        i = int(np.argmax(fresh.any(1)))
        offset = int(flat[i]) % run.shared_bytes
        who = run.warp_name(int(group.threads[i]))
        run.find("uninitialised", f"{who} reads shared byte {offset}, which nobody wrote")


def check_write(run: Run, group: Group, flat: Array, width: int) -> None:
    """Hold generic writes of shared memory against the clocks."""
    at, rows, step = granules(run, flat, width), run.rows(group)[:, None], run.tick()
    _remotely(run, group, flat, step)
    conflict = run.clocks.write(at, rows, step)
    run.conflict(conflict, "writes")


def _check_atomic(run: Run, group: Group, flat: Array, width: int) -> None:
    """Atomic operations are in order among themselves; what they left is known to who did them."""
    warps = group.threads // WARP
    steps = np.zeros(group.size, np.int64)
    for warp in group.warp_numbers.tolist():  # each knows of its own, not of those beside it
        steps[warps == warp] = run.tick()
    _remotely(run, group, flat, int(steps.max()))
    channels = np.zeros(group.size, np.int64)
    for domain, _ in run.by_domain(group):
        key = ("atomics", domain)
        if key not in run.state:
            run.state[key] = run.clocks.channel(domain, "an atomic operation", asynchronous=False)
        channels[run.agents_of(warps)[0] == domain] = run.state[key]
    rows, at = run.rows(group), granules(run, flat, width)
    order = run.clocks.clocks[ORDER].reshape(-1, run.clocks.agents)
    order[rows, channels] = np.iinfo(np.int32).max
    conflict = run.clocks.write(at, rows[:, None], steps[:, None], agent=channels[:, None])
    order[rows, channels] = steps
    run.conflict(conflict, "writes")


Update = Callable[[Array, Array, Array], None]


def write(
    run: Run,
    space: str,
    group: Group,
    addresses: Array,
    values: Array,
    update: Update | None = None,
) -> None:
    """Write values (n, lanes); ``update(data, index, values)`` replaces the plain store."""
    if space == "generic":
        for name, here, at in partition(group, addresses):
            write(run, name, here, at, values[np.isin(group.threads, here.threads)], update)
        return
    lanes, dtype = values.shape[1], values.dtype
    width = dtype.itemsize * lanes
    if space in ("shared", "cluster"):
        found = shared_at(run, group, addresses, width, remote=space == "cluster")
        if found is None:
            return
        here, flat = found
        if here.size < group.size:
            values = values[np.isin(group.threads, here.threads)]
        if update is None:
            check_write(run, here, flat, width)
        else:
            _check_atomic(run, here, flat, width)
        index = (flat // dtype.itemsize)[:, None] + np.arange(lanes)
        _put(run.shared.view(dtype), index, values, update)
        return
    aligned = _aligned(run, group, addresses, width)
    if aligned is None:
        return
    here, at = aligned
    if here.size < group.size:
        values = values[np.isin(group.threads, here.threads)]
    if space == "local":
        index = (at // dtype.itemsize)[:, None] + np.arange(lanes)
        run.local.view(dtype)[here.threads[:, None], index] = values
        return
    good = 0
    for part in run.memory.locate(at, width):
        chosen = values if part.which is None else values[part.which]
        index = part.index(dtype.itemsize, lanes).reshape(len(chosen), lanes)
        _put(part.view(dtype), index, chosen, update)
        good += len(chosen)
    _outside(run, here, at, width, good)


def _put(data: Array, index: Array, values: Array, update: Update | None) -> None:
    if update is None:
        data[index] = values
    else:
        update(data, index, values)
