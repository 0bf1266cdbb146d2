"""Asynchronous copies: of single threads (cp.async), in bulk, of tensors' boxes.

``cp.async`` has a channel each warp: a wait makes what it covers known to the warp that waits.  A
bulk copy is one thread's, counted on a barrier or kept in groups.  It owns what it writes, and
holds what it reads, from its issue; its channel's clock says from when on others may touch it:
after its group was waited for, or its barrier's phase has completed.

Source: PTX ISA 9.0, sections 9.7.9.25 (copies, bulk and tensor copies) and 5.5 (tensors).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import races
from .atomics import UPDATES
from .barriers import arrive, at_barrier, barriers_at, complete_bytes
from .clocks import FENCED, ORDER, PROXIED
from .decoder import Action, Builder, Decoder, commits, each_thread, operation, waits
from .errors import LaunchError
from .map_objects import map_at
from .memory import Part
from .moves import hint
from .parser import Instruction, split
from .report import Array
from .run import FIRST_SHARED, Group, Mbarrier, Run, one_of
from .scopes import GPU, WEAK, Semantics
from .spaces import check, hold, multicast, outside, place, shared_at
from .tensor_map import swizzled
from .values import TYPES

__all__ = ["TABLE", "send", "unfinished"]


def _channels(run: Run, group: Group) -> Array:
    """Return the channel of each thread's copies, one an agent."""
    units, back = np.unique(group.threads // run.unit, return_inverse=True)
    made = [run.channel("cp.async", u, u * run.unit, asynchronous=False) for u in units.tolist()]
    return np.array(made)[back]


def _cp_async(d: Decoder, i: Instruction) -> Action:
    to, of = d.address(i.operands[0]), d.address(i.operands[1])
    size = d.number(i.operands[2], (16,) if "cg" in i.parts else (4, 8, 16))
    rest = i.operands[3 : len(i.operands) - ("L2::cache_hint" in i.parts)]
    ignores = bool(rest) and d.kernel.registers.get(rest[0]) == "pred"
    taken = d.source(rest[0], "pred" if ignores else "u32") if rest else None
    d.touch(size)
    d.touch(size, "global")

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
        channels, own = _channels(run, here), Part(None, flat, run.shared)
        races.check(run, here, own, size, writes=True, channels=channels, does="copies to")
        for taken_bytes in np.unique(count[count > 0]).tolist():
            mask = count == taken_bytes
            parts, readers = run.memory.locate(source[mask], taken_bytes), here.where(mask)
            outside(run, readers, source[mask], taken_bytes, parts)
            for part in parts:
                chosen = slice(None) if part.which is None else part.which
                those = Group(readers.threads[chosen])
                mine = channels[mask][chosen]
                races.check(run, those, part, taken_bytes, writes=False, channels=mine)

        def move(which: Array) -> None:
            index = np.arange(size)
            inside = index < count[which, None]
            data = run.memory.gather(source[which, None] + index, np.uint8, inside)
            run.shared[flat[which, None] + index] = data

        early = run.completion == "early"
        if early:
            move(np.arange(here.size))
        run.keep("cp.async", here, channels, (lambda which: None) if early else move)

    return copy


def _copy_arrive(run: Run, group: Group, i: Instruction, addresses: Array) -> None:
    """cp.async.mbarrier.arrive: an arrival once the thread's copies so far have landed."""
    step = run.tick()
    for barrier, here in barriers_at(run, group, addresses, "arrives at", i):
        if "noinc" not in i.parts:
            barrier.pending += here.size

        def land(here: Group = here, barrier: Mbarrier = barrier) -> None:
            run.land("cp.async", here, lambda copy: copy.step < step)
            clock = run.clocks.snapshot(*run.members(here), step)
            arrive(run, barrier, here.size, clock)

        run.issue(land)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one thread's copy has in global memory: its elements' addresses, which of them exist."""

    total: int
    swizzle: int
    dtype: np.dtype[Any]
    addresses: Array
    inside: Array
    fill: float = 0.0
    coordinates: tuple[int, ...] = ()
    start: int = 0
    torn: int = 0  # bytes of a line's last piece of 16 B, where the line ends in it

    def of_global(self, run: Run) -> Iterator[Part]:
        """Yield what there is of it, by allocation."""
        return iter(run.memory.locate(self.addresses[self.inside], self.dtype.itemsize))

    def load(self, run: Run) -> Array:
        """Return the bytes, with ``fill`` for what does not exist."""
        bits = np.dtype(f"u{self.dtype.itemsize}")
        values = run.memory.gather(self.addresses, bits, self.inside)
        if self.fill:
            values[~self.inside] = np.full(1, self.fill).astype(self.dtype).view(bits)[0]
        return values.view(np.uint8)


def _parts(
    d: Decoder, text: str, size: str, kind: str, offsets: str = ""
) -> Callable[[Run, Group], Iterator[_Part | None]]:
    """Return what reads each thread's part: ``[map, {coordinates}]``, or an address and a size.

    ``offsets`` are there in im2col mode alone.
    """
    if found := re.fullmatch(r"\[\s*([^,\s]+)\s*,\s*(\{.*\})\s*\]", text):
        pointer = d.source(found.group(1), "u64")
        coordinates = [d.source(c, "s32") for c in split(found.group(2)[1:-1])]
        rank = len(coordinates)
        if offsets:
            coordinates += [d.source(o, "u16") for o in d.listed(offsets)]
            if len(coordinates) != 2 * rank - 2:
                raise d.error(f"{offsets}: {rank} coordinates have {rank - 2} offsets")
        return lambda run, group: (
            _boxed(run, rank, *given) for given in each_thread(run, group, pointer, *coordinates)
        )
    if not size:
        raise d.error(f"cannot read the tensor {text!r}")
    start, count, dtype = d.address(text), d.source(size, "u32"), TYPES[kind]
    return lambda run, group: (
        _plain(run, dtype, *given) for given in each_thread(run, group, start, count)
    )


def _boxed(run: Run, rank: int, thread: int, pointer: int, *given: int) -> _Part | None:
    """Return the part of a map: ``rank`` coordinates are given, then offsets of im2col mode."""
    held = map_at(run, thread, pointer)
    if held is None:
        return None
    coordinates, offsets = given[:rank], given[rank:]
    if len(coordinates) != len(held.shape):
        run.find("descriptor", f"{len(coordinates)} coordinates for {held}")
        return None
    if bool(offsets) != bool(held.corners):
        run.find("descriptor", f"the mode is not that of {held}", thread=thread)
        return None
    if past := coordinates[0] * held.width % 16:  # the GPU stops: an illegal instruction
        at = f"a box begins at {list(coordinates)}, {past} B after a multiple of 16 along a line"
        run.find("alignment", at, thread=thread)
    try:
        dtype, places = TYPES[held.dtype], held.places(coordinates, offsets)
    except LaunchError as error:
        run.find("address", str(error), thread=thread)
        return None
    ends = 0 < held.shape[0] - coordinates[0] < held.box[0] and places[1].any()
    torn = held.shape[0] * held.width % 16 if ends else 0
    return _Part(held.box_bytes, held.swizzle, dtype, *places, held.fill, coordinates, torn=torn)


def _plain(run: Run, dtype: np.dtype[Any], thread: int, start: int, total: int) -> _Part | None:
    """Return a plain copy's part, whose size and address are multiples of 16; else report."""
    if total % 16 or start % 16:
        message = f"{total} B at {start:#x}: multiples of 16 are copied"
        run.find("alignment", message, thread=thread, address=start)
        return None
    if total > run.own_bytes:
        message = f"{total} B, and a CTA's shared memory has {run.own_bytes}"
        run.find("address", message, thread=thread, address=start)
        return None
    addresses = start + np.arange(0, total, dtype.itemsize)
    return _Part(total, 0, dtype, addresses, np.ones(len(addresses), bool), start=start)


def _bulk(d: Decoder, i: Instruction) -> Action:
    """Route a bulk copy by its spaces."""
    spaces = [p for p in i.parts if p.split("::")[0] in ("global", "shared")]
    d.touch(16)
    d.touch(16, "global")
    if spaces[0].startswith("shared"):
        return _load(d, i)
    return _store(d, i)


def _load(d: Decoder, i: Instruction) -> Action:
    """Global to shared, or shared to a peer's shared: bytes are counted on a barrier."""
    tensor = "tensor" in i.parts
    operands = list(i.operands)
    to, size = d.address(operands[0]), "" if tensor else operands.pop(2)
    offsets = operands.pop(3) if "im2col" in i.parts else ""
    parts = _parts(d, operands[1], size, "b8", offsets)
    from_shared = sum(p.startswith("shared") for p in i.parts) > 1
    bar = d.address(operands[2])
    mask = d.source(operands[3], "u16") if "multicast::cluster" in i.parts else None
    pair = "cta_group::2" in i.parts

    def load(run: Run, group: Group) -> None:
        given = each_thread(run, group, to, bar, mask)
        for (thread, address, bar_at, chosen), part in zip(given, parts(run, group), strict=True):
            if part is None:
                continue
            fetch: Callable[[], Array] | None = functools.partial(part.load, run)
            if not tensor:
                fetch = _fetch(run, thread, part, from_shared=from_shared)
            if fetch is None:
                continue
            bar_cta, bar_offset = place(run, thread, bar_at)
            own, offset = place(run, thread, address)
            for cta in multicast(run, own, chosen) if mask else [own]:
                there = cta if mask else bar_cta
                if mask and pair:  # in each pair, the CTA of the barrier's parity
                    there = cta - cta % 2 + bar_cta % run.cluster % 2
                if there != cta and not pair:
                    run.find("barrier", "the barrier is in another CTA than the bytes")
                barrier_at = there * run.shared_bytes + bar_offset
                _fill(run, thread, (cta, offset), part, barrier_at, fetch)

    return load


def _fetch(
    run: Run, thread: int, part: _Part, *, from_shared: bool
) -> Callable[[], Array] | None:  # fmt: skip
    """Return what reads a plain copy's bytes; None, and a finding, where there are none."""
    start, total = part.start, part.total
    if from_shared:
        own = thread // run.threads_per_cta, place(run, thread, start)[1]
        read, channel = _chunks(run, own, part), run.channel("bulk stores", thread, thread)
        if read is None:
            return None
        hold(run, one_of(thread), read, 16, channel, "copies")
        return lambda: run.shared.reshape(-1, 16)[read // 16].reshape(-1)
    if not run.memory.locate(np.array([start]), total):
        run.find("address", f"{total} B at {run.memory.nearest(start)}")
    return functools.partial(part.load, run)


def _fill(
    run: Run, thread: int, to: tuple[int, int], part: _Part, barrier_at: int,
    fetch: Callable[[], Array],
) -> None:  # fmt: skip
    """Issue one copy into one CTA's shared memory."""
    (cta, _), who = to, run.warp_name(thread)
    flat = _chunks(run, to, part)
    if flat is None:
        return
    barrier = at_barrier(run, barrier_at, one_of(thread), "loads onto", proxy=True)
    if barrier is None:
        return

    def land() -> None:
        if not run.live_in(cta):
            run.find("exit", f"a load of {who} lands in {run.cta_name(cta)}, which has ended")
        run.shared.reshape(-1, 16)[flat // 16] = fetch().reshape(-1, 16)

    for found in part.of_global(run):
        races.check(
            run, one_of(thread), found, part.dtype.itemsize, writes=False, by=FENCED,
            channels=barrier.channel,
        )  # fmt: skip
    send(run, thread, flat, 16, barrier, land, "loads into", by=PROXIED)


def send(
    run: Run, thread: int, flat: Array, width: int, barrier: Mbarrier, land: Callable[[], None],
    does: str, *, by: int = ORDER, how: Semantics = WEAK,
) -> None:  # fmt: skip
    """Issue a write of one CTA's shared memory, whose bytes a barrier counts."""
    one, channel, part = one_of(thread), barrier.channel, Part(None, flat, run.shared)
    # what another CTA's barrier releases is known to whoever waits there
    step = races.check(
        run, one, part, width, how, writes=True, by=by, channels=channel, does=does, every=True
    )
    issuer = run.clocks.snapshot(*run.members(one), step)
    run.remote(int(flat[0]) // run.shared_bytes, thread, channel, step)

    def landed() -> None:
        land()
        complete_bytes(run, barrier, len(flat) * width, step, issuer)

    run.issue(landed)


def _chunks(run: Run, at: tuple[int, int], part: _Part) -> Array | None:
    """Return where 16-byte chunks lie in a CTA's shared memory; report what does not fit there.

    The swizzle is of the address, not of the array's offset.
    """
    (cta, offset), align = at, 128 if part.swizzle else 16
    if offset < 0 or offset + part.total > run.own_bytes or not 0 <= cta < run.ctas:
        run.find("address", f"{part.total} B at shared byte {offset} of {run.own_bytes}")
        return None
    if (offset + FIRST_SHARED) % align:
        run.find("alignment", f"shared byte {offset} is no multiple of {align} B")
        return None
    inside = offset + FIRST_SHARED + np.arange(0, part.total, 16)
    chunks: Array = swizzled(inside, part.swizzle) - FIRST_SHARED + cta * run.shared_bytes
    return chunks


def _st_async(d: Decoder, i: Instruction) -> Action:
    """Build st.async and red.async: a few bytes to a CTA's shared memory, counted on a barrier."""
    kind = i.parts[-1]
    to, bar = (d.shared_address(i.operands[n]) for n in (0, 2))
    read = d.vector(i.operands[1], kind)
    total = len(d.listed(i.operands[1])) * TYPES[kind].itemsize
    reduction = next((p for p in i.parts if p in UPDATES), "")
    d.touch(min(total, 8))

    def store(run: Run, group: Group) -> None:
        values = read(run, group)
        found = shared_at(run, group, to(run, group), total, remote=True)
        bars = shared_at(run, group, bar(run, group), 8, remote=True)
        if found is None or bars is None:
            return
        mine = dict(zip(*(x.tolist() for x in (bars[0].threads, bars[1])), strict=True))
        for thread, flat in zip(found[0].threads.tolist(), found[1].tolist(), strict=True):
            barrier = at_barrier(run, mine.get(thread, -1), one_of(thread), "stores onto")
            if barrier is None:
                continue
            if barrier.cta != flat // run.shared_bytes:
                run.find("barrier", "the barrier is in another CTA than the bytes", thread=thread)
            value = values[np.searchsorted(group.threads, thread)]
            held = run.shared[flat : flat + total].view(value.dtype)

            def land(held: Array = held, value: Array = value) -> None:
                held[:] = UPDATES[reduction](held, value) if reduction else value

            how = Semantics(GPU if reduction else 0)
            send(run, thread, np.array([flat]), total, barrier, land, "stores to", how=how)

    return store


def _st_bulk(
    run: Run, group: Group, i: Instruction, addresses: Array, sizes: Array, zero: int
) -> None:  # fmt: skip
    """Write zeros: st.bulk."""
    given = zip(group.threads.tolist(), addresses, sizes.tolist(), strict=True)
    for thread, address, total in given:
        one = one_of(thread)
        if total % 8 or not 1 <= total <= run.own_bytes:
            message = f"{total} B: a multiple of 8, and {run.own_bytes} at most"
            run.find("alignment", message, thread=thread)
            continue
        found = shared_at(run, one, np.array([address]), total, align=8)
        if found is not None:
            check(run, one, Part(None, found[1], run.shared), total, writes=True)
            run.shared[int(found[1][0]) :][:total] = zero


def _store(d: Decoder, i: Instruction) -> Action:
    """Shared to global, plain or reduced: groups of the issuing thread."""
    tensor = "tensor" in i.parts
    reduction = next((p for p in i.parts if p in UPDATES), "") if "reduce" in i.parts else ""
    kind = "b8" if tensor or not reduction else i.parts[-1]
    parts = _parts(d, i.operands[0], "" if tensor else i.operands[2], kind)
    of = d.address(i.operands[1])

    def store(run: Run, group: Group) -> None:
        given = each_thread(run, group, of)
        for (thread, source), part in zip(given, parts(run, group), strict=True):
            if part is None:
                continue
            cta, offset = thread // run.threads_per_cta, place(run, thread, source)[1]
            if min(part.coordinates, default=0) < 0:
                where = list(part.coordinates)
                run.find("address", f"a store begins at {where}", thread=thread)
            if part.torn:
                message = f"a line ends {part.torn} B after a multiple of 16; whole ones are stored"
                run.find("address", message, thread=thread)
            flat = _chunks(run, (cta, offset), part)
            if flat is not None:
                _put(run, thread, flat, part, reduction)

    return store


def _put(run: Run, thread: int, flat: Array, part: _Part, reduction: str) -> None:
    """Issue one store of what is at chunks of shared memory."""
    pc, dtype = run.pc, part.dtype
    addresses = part.addresses[part.inside]

    def put() -> None:
        values = run.shared.reshape(-1, 16)[flat // 16].reshape(-1).view(dtype)[part.inside]
        good = 0
        for held in run.memory.locate(addresses, dtype.itemsize):
            chosen = values if held.which is None else values[held.which]
            data, index = held.cells(dtype)
            data[index] = UPDATES[reduction](data[index], chosen) if reduction else chosen
            good += len(chosen)
        if good < len(addresses):
            run.find("address", "a bulk store goes outside of all allocations", pc=pc)

    one, channel = one_of(thread), run.channel("bulk stores", thread, thread)
    hold(run, one, flat, 16, channel, "stores from")
    written = run.channel("bulk stores' writes", thread, thread)
    how = Semantics(GPU if reduction else 0)
    for found in part.of_global(run):
        races.check(run, one, found, dtype.itemsize, how, writes=True, by=FENCED, channels=written)
    pending = run.issue(put)
    run.keep("bulk stores", one, channel, lambda _: run.finish(pending))
    run.keep("bulk stores' writes", one, written, lambda _: run.finish(pending))


def unfinished(run: Run) -> None:
    """Report bulk stores that still read shared memory when their thread has ended."""
    for thread in dict.fromkeys(int(one.group.threads[0]) for one in run.issued["bulk stores"]):
        run.find("exit", "ended without waiting for its bulk stores", who=thread)


TABLE: Mapping[str, Builder] = {
    "cp.async": _cp_async,
    "cp.async.commit_group": commits("cp.async"),
    **dict.fromkeys(("cp.async.wait_group", "cp.async.wait_all"), waits("cp.async")),
    "cp.async.mbarrier.arrive": operation(_copy_arrive, touches=8),
    **{f"cp.{way}.bulk{of}": _bulk for way in ("async", "reduce.async") for of in ("", ".tensor")},
    **dict.fromkeys(("cp.async.bulk.prefetch", "cp.async.bulk.prefetch.tensor"), hint),
    "cp.async.bulk.commit_group": commits("bulk stores", "bulk stores' writes"),
    "cp.async.bulk.wait_group": waits("bulk stores", "bulk stores' writes"),
    **dict.fromkeys(("st.async", "red.async"), _st_async),
    "st.bulk": operation(_st_bulk, touches=8),
}
"""This family's builders by entry."""
