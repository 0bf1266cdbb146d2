"""Loads and stores in every state space, with their checks: bounds, alignment, order.

Each function takes addresses of a group's threads, leaves out (and reports) those that are faulty,
and moves ``lanes`` elements a thread.  A generic address goes to the space whose window it is in.

An access of shared memory is *strong* if it is volatile, relaxed, acquire, release or atomic; two
strong ones never race.

Source: PTX ISA 9.0, sections 5.1 (state spaces), 8.8 (causality order) and 9.7.9 (data movement).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import races
from .clocks import PROXIED
from .memory import FRAME, LOCAL, PARAM, SHARED, Part
from .report import Array
from .run import FIRST_SHARED, Group, Run
from .scopes import WEAK, Semantics

__all__ = ["read", "shared_at", "write"]


Found = tuple[Group, Array]


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
    size, own_bytes = run.shared_bytes, run.own_bytes
    own = group.units(run.threads_per_cta)
    cta, inside = _seen(run, own, addresses)
    if size > own_bytes:  # the reserved memory, which has the lowest addresses, is the last here
        behind, reserved = inside + width > own_bytes, (inside < 0) & (inside >= -FIRST_SHARED)
        inside = np.where(reserved, inside + size, np.where(behind, -1, inside))
    if run.cluster > 1:
        reach = run.cluster if remote else 1
        inside = np.where(cta // reach == own // reach, inside, -1)
    align = align or width
    aligned = not (inside & (align - 1)).any()
    if aligned and inside.min() >= 0 and inside.max() + width <= own_bytes:
        return group, cta * size + inside
    outside = (inside < 0) | (inside + width > np.where(inside < own_bytes, own_bytes, size))
    if aligned and not outside.any():
        return group, cta * size + inside
    begin = f"{width} B; the CTA's {own_bytes} B begin at {FIRST_SHARED:#x}"
    found = _without(
        run, group, addresses, outside, "address",
        lambda _, at: f"shared address {at:#x} of {begin}",
    )  # fmt: skip
    if found is not None:
        found = _without(
            run, *found, found[1] & (align - 1) != 0, "alignment",
            lambda _, at: f"shared address {at:#x} is no multiple of {align} B",
        )  # fmt: skip
    return found and shared_at(run, *found, width, remote=remote, align=align)


def place(run: Run, thread: Any, address: Any) -> tuple[Any, Any]:
    """Return the CTA (of the batch) and the offset of shared addresses, as threads see them."""
    return _seen(run, thread // run.threads_per_cta, address)


def _seen(run: Run, own: Any, address: Any) -> tuple[Any, Any]:
    if run.cluster == 1:
        return own, address - FIRST_SHARED
    return own - own % run.cluster + (address >> 24), (address & 0xFFFFFF) - FIRST_SHARED


def _places(
    run: Run, space: str, group: Group, addresses: Array, width: int, *, writes: bool
) -> Iterator[tuple[str, Group, Part]]:
    """Yield whose accesses go where, in which space: for a generic address, its window's."""
    if space == "generic":
        window = addresses >> 40
        names = {SHARED >> 40: "cluster", LOCAL >> 40: "local", PARAM >> 40: "param"}
        known = np.where(np.isin(window, list(names)), window, 0)
        for number in sorted(set(known.tolist()), key=lambda n: [*names, 0].index(n)):
            mask, name = known == number, names.get(number, "global")
            at, here = addresses[mask] - (number << 40), group.where(mask)
            if number and width > 16:
                message = f"{width} B at once at {name} byte {at[0]}; in global memory alone"
                run.find("address", message, who=int(here.threads[0]), address=int(at[0]))
                continue
            yield from _places(run, name, here, at, width, writes=writes)
        return
    if space in ("shared", "cluster"):
        found = shared_at(run, group, addresses, width, remote=space == "cluster")
        if found is not None:
            yield "shared", found[0], Part(None, found[1], run.shared)
        return
    found = _without(
        run, group, addresses, addresses & (width - 1) != 0, "alignment",
        lambda _, at: f"address {at:#x} is no multiple of {width} B",
    )  # fmt: skip
    if found is None:
        return
    here, at = found
    if space == "global":
        parts = run.memory.locate(at, width)
        for part in parts:
            yield space, here if part.which is None else Group(here.threads[part.which]), part
        outside(run, here, at, width, parts)
        return
    what, held, size = "local", run.local, run.code.local_bytes
    if run.code.call_bytes:  # a thread's calls, up to the one that it is in
        size = size + run.code.call_bytes * run.depth[here.index]
    if space == "param":
        what, held, size = "parameter", run.frame, run.code.frame_bytes
        if writes or (at >= FRAME).all():
            at = at - FRAME
        else:
            held, size = run.parameters[None], run.code.parameter_bytes
    found = _without(
        run, here, at, (at < 0) | (at + width > size), "address",
        lambda who, at: f"{who}: {width} B at {what} byte {at}, of which there are {np.max(size)}",
    )  # fmt: skip
    if found is not None:
        row = found[0].threads * held.shape[1] if len(held) > 1 else 0
        yield space, found[0], Part(None, row + found[1], held.reshape(-1))


def outside(run: Run, group: Group, addresses: Array, width: int, parts: list[Part]) -> None:
    """Report the first global address that no allocation holds, if ``parts`` are not all."""
    if sum(len(p.at) for p in parts) == len(addresses):
        return
    for thread, address in zip(group.threads.tolist(), addresses.tolist(), strict=True):
        if not run.memory.locate(np.array([address]), width):
            message = f"{run.warp_name(thread)}: {width} B at {run.memory.nearest(address)}"
            run.find("address", message, thread=thread, address=address)
            return


def read(
    run: Run, space: str, group: Group, addresses: Array, dtype: np.dtype[Any], lanes: int,
    how: Semantics = WEAK,
) -> Iterator[tuple[Group, Array]]:  # fmt: skip
    """Yield the threads that could read, and their values: (n, lanes)."""
    width = dtype.itemsize * lanes
    for where, here, part in _places(run, space, group, addresses, width, writes=False):
        if where == "local":
            _check_local(run, here, part.at, width)
        elif where in ("shared", "global"):
            check(run, here, part, width, how, writes=False)
        cells, index = part.cells(_whole(width))
        yield here, cells[index].view(dtype).reshape(-1, lanes)


def _whole(width: int) -> str:
    """Return the type of accesses of so many bytes, of several elements maybe."""
    return f"u{width}" if width <= 8 else f"V{width}"


def _check_local(run: Run, group: Group, flat: Array, width: int) -> None:
    written = run.local_written.reshape(-1)[flat[:, None] + np.arange(width)]
    if not written.all():
        first = int(np.argmin(written.all(1)))
        thread, at = int(group.threads[first]), int(flat[first]) % run.local.shape[1]
        message = f"reads local byte {at}, which it has not written"
        # bit fields and empty structs are copied so, and the value may not matter
        run.find("uninitialised", message, who=thread, address=at, severity="warning")


def check(
    run: Run, group: Group, part: Part, width: int, how: Semantics = WEAK, *, writes: bool,
    stored: tuple[Array, Array, Array] | None = None,
) -> None:  # fmt: skip
    """Hold generic accesses of shared or global memory against the clocks, as ``races`` does."""
    step = races.check(run, group, part, width, how, writes=writes, stored=stored)
    if run.cluster == 1 or part.start:
        return
    there = part.at // run.shared_bytes
    for n in np.flatnonzero(there != group.units(run.threads_per_cta)).tolist():
        cta, thread = int(there[n]), int(group.threads[n])
        run.remote(cta, thread, run.agents_of(thread)[1], step)  # it must not end before that
        if not run.live_in(cta):
            message = f"touches shared memory of {run.cta_name(cta)}, which has ended"
            run.find("exit", message, who=thread)


def multicast(run: Run, cta: int, mask: int) -> list[int]:
    """Return the CTAs of a cluster that a mask names."""
    if mask >> run.cluster:
        run.find("address", f"multicast to {mask:#x}, a cluster of {run.cluster} CTAs")
    return [cta - cta % run.cluster + r for r in range(run.cluster) if mask >> r & 1]


def hold(run: Run, group: Group, flat: Array, width: int, channel: int, does: str) -> None:
    """Let a channel read bytes at ``flat`` from here on, for a group, by the asynchronous proxy."""
    places = run.inside.places(flat.reshape(-1), width)
    held = np.zeros(int(places.max(initial=-1)) + 1, bool)  # faster than to sort them
    held[places.reshape(-1)] = True
    at = np.flatnonzero(held) * run.inside.width
    races.check(
        run, group, Part(None, at, run.shared), run.inside.width, writes=False, by=PROXIED,
        channels=channel, does=does, every=True,
    )  # fmt: skip


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
    for where, here, part in _places(run, space, group, addresses, width, writes=True):
        whole_group = here.size == group.size
        which: Any = slice(None) if whole_group else np.searchsorted(group.threads, here.threads)
        mine = np.ascontiguousarray(values[which])
        cells, index = part.cells(_whole(width))
        if where == "shared" or (where == "global" and run.races is not None):
            held = cells[index].view(dtype).reshape(-1, lanes)
            check(run, here, part, width, how, writes=True, stored=(index, mine, held))
        if update is None:
            cells[index] = mine.view(cells.dtype)[:, 0]
        else:
            update(*part.cells(dtype), which, mine)
        if where == "local":
            run.local_written.reshape(-1)[part.at[:, None] + np.arange(width)] = True
