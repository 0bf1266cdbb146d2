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
from tinygpu.codegen.interpreter.group import Group
from tinygpu.codegen.interpreter.memory import FRAME, LOCAL, PARAM, SHARED
from tinygpu.codegen.interpreter.ordering import WEAK, Semantics, equal_values, transfer
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
                thread=int(group.threads[np.argmax(bad)]),
                address=at,
            )
        crooked = ~bad & (inside & (align - 1) != 0)
        if crooked.any():
            at = int(addresses[np.argmax(crooked)])
            run.find(
                "alignment",
                f"shared address {at:#x} is no multiple of {align} B",
                thread=int(group.threads[np.argmax(crooked)]),
                address=at,
            )
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
    first = int(np.argmax(crooked))
    at = int(addresses[first])
    run.find(
        "alignment",
        f"address {at:#x} is no multiple of {width} B",
        thread=int(group.threads[first]),
        address=at,
    )
    if crooked.all():
        return None
    return group.where(~crooked), addresses[~crooked]


def _inside(
    run: Run, group: Group, addresses: Array, width: int, size: int, what: str
) -> Found | None:
    """Return the threads whose addresses are within ``size`` bytes.  Reports the others."""
    bad = (addresses < 0) | (addresses + width > size)
    if not bad.any():
        return group, addresses
    first = int(np.argmax(bad))
    thread, at = int(group.threads[first]), int(addresses[first])
    run.find(
        "address",
        f"{run.warp_name(thread)}: {width} B at {what} byte {at}, of which there are {size}",
        thread=thread,
        address=at,
    )
    return None if bad.all() else (group.where(~bad), addresses[~bad])


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
) -> list[tuple[Group, Array]]:  # fmt: skip
    """Return the threads that could read, and their values: (n, lanes)."""
    if space == "generic":
        parts = partition(group, addresses)
        return [r for s, g, a in parts for r in read(run, s, g, a, dtype, lanes, how)]
    width = dtype.itemsize * lanes
    if space in ("shared", "cluster"):
        return _read_shared(run, group, addresses, dtype, lanes, how, remote=space == "cluster")
    found = _aligned(run, group, addresses, width)
    if found is None:
        return []
    group, addresses = found
    if space == "local":
        return _read_local(run, group, addresses, dtype, lanes)
    if space == "param":
        return _read_parameters(run, group, addresses, dtype, width)
    results, good = [], 0
    for part in run.memory.locate(addresses, width):
        here = group if part.which is None else Group(group.threads[part.which])
        index = part.index(dtype.itemsize, lanes)
        results.append((here, part.view(dtype)[index].reshape(here.size, lanes)))
        good += here.size
    _outside(run, group, addresses, width, good)
    return results


def _read_local(
    run: Run, group: Group, addresses: Array, dtype: np.dtype[Any], lanes: int
) -> list[tuple[Group, Array]]:
    width = dtype.itemsize * lanes
    found = _inside(run, group, addresses, width, run.code.local_bytes, "local")
    if found is None:
        return []
    group, addresses = found
    written = run.local_written[group.threads[:, None], addresses[:, None] + np.arange(width)]
    if not written.all():
        first = int(np.argmin(written.all(1)))
        thread, at = int(group.threads[first]), int(addresses[first])
        who = run.warp_name(thread)
        message = f"{who} reads local byte {at}, which it has not written"
        run.find("uninitialised", message, thread=thread, address=at)
    index = (addresses // dtype.itemsize)[:, None] + np.arange(lanes)
    return [(group, run.local.view(dtype)[group.threads[:, None], index])]


def _read_parameters(
    run: Run, group: Group, addresses: Array, dtype: np.dtype[Any], width: int
) -> list[tuple[Group, Array]]:
    held, bytes_of = run.parameters, np.arange(width)
    if (addresses >= FRAME).all():
        found = _inside(run, group, addresses - FRAME, width, run.code.frame_bytes, "parameter")
        if found is None:
            return []
        here, at = found
        raw = run.frame[here.threads[:, None], at[:, None] + bytes_of]
        return [(here, np.ascontiguousarray(raw).view(dtype))]
    found = _inside(run, group, addresses, width, run.code.parameter_bytes, "parameter")
    if found is None:
        return []
    here, at = found
    return [(here, held[at[:, None] + bytes_of].view(dtype))]


def _read_shared(
    run: Run, group: Group, addresses: Array, dtype: np.dtype[Any], lanes: int, how: Semantics, *,
    remote: bool,
) -> list[tuple[Group, Array]]:  # fmt: skip
    width = dtype.itemsize * lanes
    found = shared_at(run, group, addresses, width, remote=remote)
    if found is None:
        return []
    group, flat = found
    check_read(run, group, flat, width, how)
    if lanes == 1:
        return [(group, run.shared.view(dtype)[flat // width][:, None])]
    whole = run.shared[: len(run.shared) // width * width].view(dtype).reshape(-1, lanes)
    return [(group, whole[flat // width])]


def _remotely(run: Run, group: Group, flat: Array, step: int) -> None:
    """Note who touches the shared memory of another CTA, which must not end before that."""
    there, own = flat // run.shared_bytes, run.cta_of(group.threads)
    for n in np.flatnonzero(there != own).tolist() if run.cluster > 1 else ():
        cta, thread = int(there[n]), int(group.threads[n])
        run.remote(cta, thread, run.agent_of(thread)[1], step)
        each = run.threads_per_cta
        if not run.live[cta * each : (cta + 1) * each].any():
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
        run.find("uninitialised", message, thread=thread, address=offset)


def check_write(
    run: Run, group: Group, flat: Array, width: int, how: Semantics = WEAK,
    stored: tuple[Array, Array, Array] | None = None,
) -> None:  # fmt: skip
    """Hold generic writes of shared memory against the clocks.

    ``stored`` are the places, what is stored there, and the whole memory: equal values only warn.
    """
    at, rows, step = granules(run, flat, width), run.rows(group)[:, None], run.tick()
    _remotely(run, group, flat, step)
    if not how.strong:
        conflict = run.clocks.write(at, rows, step)
        if conflict is not None:
            at_once, equal = conflict.other_step == step, False
            if stored is not None:
                index, values, data = stored
                equal = equal_values(index, values, data[index], at_once=at_once)
            run.conflict(conflict, "writes", equal=equal)
        return
    if how.updates:
        _fresh(run, group, flat, at, how)
    channels = _strong(run, group)
    order = run.clocks.clocks[ORDER].reshape(-1, run.clocks.agents)
    before = order[rows[:, 0], channels]
    order[rows[:, 0], channels] = np.iinfo(np.int32).max  # strong reads do not race with this
    conflict = run.clocks.write(at, rows, step, strong=True)
    order[rows[:, 0], channels] = before
    run.conflict(conflict, "writes")
    transfer(run, group, flat, step, how, writes=True)


def _strong(run: Run, group: Group) -> Array:
    """Return the channel of each thread's strong reads, one a domain."""
    each = run.cluster * run.threads_per_cta
    domains = group.threads // each
    channels = np.zeros(group.size, np.int64)
    for domain in np.unique(domains).tolist():
        made = run.channel("strong reads", 0, domain * each, asynchronous=False)
        channels[domains == domain] = made
    return channels


Update = Callable[[Array, Array, Array], None]


def write(
    run: Run, space: str, group: Group, addresses: Array, values: Array,
    update: Update | None = None, how: Semantics = WEAK,
) -> None:  # fmt: skip
    """Write values (n, lanes); ``update(data, index, values)`` replaces the plain store."""
    if space == "generic":
        for name, here, at in partition(group, addresses):
            chosen = values[np.isin(group.threads, here.threads)]
            write(run, name, here, at, chosen, update, how)
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
        index = (flat // dtype.itemsize)[:, None] + np.arange(lanes)
        data = run.shared.view(dtype)
        check_write(run, here, flat, width, how, (index, values, data))
        _put(data, index, values, update)
        return
    aligned = _aligned(run, group, addresses, width)
    if aligned is not None and space == "local":
        aligned = _inside(run, *aligned, width, run.code.local_bytes, "local")
    if aligned is not None and space == "param":
        aligned = _inside(
            run, aligned[0], aligned[1] - FRAME, width, run.code.frame_bytes, "parameter"
        )
    if aligned is None:
        return
    here, at = aligned
    if here.size < group.size:
        values = values[np.isin(group.threads, here.threads)]
    if space in ("local", "param"):
        bytes_of = (here.threads[:, None], at[:, None] + np.arange(width))
        held = run.local if space == "local" else run.frame
        if update is not None:
            index = (at // dtype.itemsize)[:, None] + np.arange(lanes)
            flat_index = here.threads[:, None] * (held.shape[1] // dtype.itemsize) + index
            update(held.reshape(-1).view(dtype), flat_index, values)
        else:
            held[bytes_of] = np.ascontiguousarray(values).view(np.uint8)
        if space == "local":
            run.local_written[bytes_of] = True
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
