"""Bulk copies, plain and of tensors' boxes: one thread's, counted on barriers or kept in groups.

A copy owns what it writes, and holds what it reads, from its issue; its channel's clock says from
when on others may touch it: after its group was waited for, or its barrier's phase has completed.

Source: PTX ISA 9.0, sections 9.7.9.25 (bulk and tensor copies) and 5.5 (tensors).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.codegen.emulator.atomics import UPDATES
from tinygpu.codegen.emulator.barriers import at_barrier, complete_bytes
from tinygpu.codegen.emulator.decoder import Action, Builder, Decoder, each_thread
from tinygpu.codegen.emulator.group import Group
from tinygpu.codegen.emulator.memory import PARAM, SHARED
from tinygpu.codegen.emulator.parser import Instruction, split
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import FIRST_SHARED, Run
from tinygpu.codegen.emulator.spaces import check_write, granules, place, shared_at
from tinygpu.codegen.emulator.state import Groups, Issued, Mbarrier
from tinygpu.codegen.emulator.tensor_map import SWIZZLES, TensorMap, swizzled
from tinygpu.codegen.emulator.values import TYPES

__all__ = ["TABLE", "unfinished"]


def _groups(run: Run, thread: int) -> Groups:
    if thread not in run.state.bulk:
        run.state.bulk[thread] = Groups(run.channel("bulk stores", thread, thread))
    return run.state.bulk[thread]


def _bulk_commit(d: Decoder, i: Instruction) -> Action:
    def commit(run: Run, group: Group) -> None:
        for thread in group.threads.tolist():
            _groups(run, thread).commit()

    return commit


def _bulk_wait(d: Decoder, i: Instruction) -> Action:
    pending = int(i.operands[0], 0)

    def wait(run: Run, group: Group) -> None:
        run.tick()
        for thread in group.threads.tolist():
            run.finish_groups(_groups(run, thread), pending, Group(np.array([thread])))

    return wait


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

    def load(self, run: Run) -> Array:
        """Return the bytes, with ``fill`` for what does not exist."""
        bits = np.dtype(f"u{self.dtype.itemsize}")
        values = run.memory.gather(self.addresses, bits, self.inside)
        if self.fill:
            values[~self.inside] = np.full(1, self.fill).astype(self.dtype).view(bits)[0]
        return values.view(np.uint8)


def _parts(
    d: Decoder, text: str, size: str, kind: str
) -> Callable[[Run, Group], Iterator[_Part | None]]:
    """Return what reads each thread's part: ``[map, {coordinates}]``, or an address and a size."""
    if found := re.fullmatch(r"\[\s*([^,\s]+)\s*,\s*(\{.*\})\s*\]", text):
        pointer = d.source(found.group(1), "u64")
        coordinates = [d.source(c, "s32") for c in split(found.group(2)[1:-1])]
        return lambda run, group: (
            _boxed(run, *given) for given in each_thread(run, group, pointer, *coordinates)
        )
    if not size:
        raise d.error(f"cannot read the tensor {text!r}")
    start, count, dtype = d.address(text), d.source(size, "u32"), d.kind(kind)
    return lambda run, group: (
        _plain(run, dtype, *given) for given in each_thread(run, group, start, count)
    )


def _boxed(run: Run, thread: int, pointer: int, *coordinates: int) -> _Part | None:
    held: TensorMap | None = run.tensor_maps.get(pointer - PARAM)
    if held is None:
        run.find("address", f"no tensor map is at {pointer:#x}; it is a .param of 128 B")
        return None
    if len(coordinates) != len(held.shape):
        run.find("descriptor", f"{len(coordinates)} coordinates for {held}")
        return None
    dtype, places = TYPES[held.dtype], held.places(coordinates)
    return _Part(held.box_bytes, held.swizzle, dtype, *places, held.fill, coordinates)


def _plain(run: Run, dtype: np.dtype[Any], thread: int, start: int, total: int) -> _Part | None:
    """Return a plain copy's part, whose size and address are multiples of 16; else report."""
    if total % 16 or start % 16:
        run.find(
            "alignment", f"{total} B at {start:#x}: multiples of 16 are copied",
            thread=thread, address=start,
        )  # fmt: skip
        return None
    addresses = start + np.arange(0, total, dtype.itemsize)
    return _Part(total, 0, dtype, addresses, np.ones(len(addresses), bool), start=start)


def _bulk(d: Decoder, i: Instruction) -> Action:
    """Route a bulk copy by its spaces."""
    spaces = [p for p in i.parts if p.split("::")[0] in ("global", "shared")]
    d.touch(16)
    if spaces[0].startswith("shared"):
        return _load(d, i)
    return _store(d, i)


def _targets(run: Run, thread: int, address: int, mask: int | None) -> list[tuple[int, int]]:
    """Return the CTAs (of the batch) that receive, and the offset in their shared memory."""
    cta, offset = place(run, thread, address)
    first = cta - cta % run.cluster
    if mask is None:
        return [(cta, offset)]
    if mask >> run.cluster:
        run.find("address", f"multicast to {mask:#x}, a cluster of {run.cluster} CTAs")
    return [(first + r, offset) for r in range(run.cluster) if mask >> r & 1]


def _load(d: Decoder, i: Instruction) -> Action:
    """Global to shared, or shared to a peer's shared: bytes are counted on a barrier."""
    tensor, multicast = "tensor" in i.parts, "multicast::cluster" in i.parts
    operands = list(i.operands)
    to, size = d.address(operands[0]), "" if tensor else operands.pop(2)
    parts = _parts(d, operands[1], size, "b8")
    from_shared = sum(p.startswith("shared") for p in i.parts) > 1
    bar = d.address(operands[2])
    mask = d.source(operands[3], "u16") if multicast else None
    pair = "cta_group::2" in i.parts

    def load(run: Run, group: Group) -> None:
        given = each_thread(run, group, to, bar, mask)
        for (thread, address, bar_at, chosen), part in zip(given, parts(run, group), strict=True):
            if part is None:
                continue
            fetch: Callable[[], Array] = functools.partial(part.load, run)
            if not tensor:
                fetch = _fetch(run, thread, part, from_shared=from_shared)
            bar_cta, bar_offset = place(run, thread, bar_at)
            for cta, offset in _targets(run, thread, address, chosen if multicast else None):
                there = cta if multicast else bar_cta
                if multicast and pair:  # in each pair, the CTA of the barrier's parity
                    there = cta - cta % 2 + bar_cta % run.cluster % 2
                if there != cta and not pair:
                    run.find("barrier", "the barrier is in another CTA than the bytes")
                barrier_at = there * run.shared_bytes + bar_offset
                _fill(run, thread, (cta, offset, part.total, part.swizzle), barrier_at, fetch)

    return load


def _fetch(run: Run, thread: int, part: _Part, *, from_shared: bool) -> Callable[[], Array]:
    start, total = part.start, part.total
    if from_shared:
        flat = thread // run.threads_per_cta * run.shared_bytes + place(run, thread, start)[1]
        _hold(run, thread, flat + np.arange(0, total, 16), _groups(run, thread).channel, "copies")
        return lambda: run.shared[flat : flat + total].copy()
    if not run.memory.locate(np.array([start]), total):
        run.find("address", f"{total} B at {run.memory.nearest(start)}")
    return functools.partial(part.load, run)


def _fill(
    run: Run,
    thread: int,
    target: tuple[int, int, int, int],
    barrier_at: int,
    fetch: Callable[[], Array],
) -> None:
    """Issue one copy into one CTA's shared memory."""
    cta, offset, total, how = target
    who = run.warp_name(thread)
    if not _fits(run, cta, offset, total, how):
        return
    one = Group(np.array([thread]))
    barrier = at_barrier(run, barrier_at, one, "loads onto", proxy=True)
    if barrier is None:
        return
    chunks = cta * run.shared_bytes + offset + np.arange(0, total, 16)
    flat = _swizzle(run, chunks, how)
    step = run.tick()
    rows = run.rows(one)
    at = granules(run, flat, 16).reshape(-1)
    issuer = run.clocks.snapshot(*run.members(one), step)
    # what another CTA's barrier releases is known to whoever waits there
    conflict = run.clocks.write(at, rows, step, proxy=True, agent=barrier.channel)
    run.conflict(conflict, "loads into")
    run.remote(cta, thread, barrier.channel, step)

    def land() -> None:
        if not run.live_in(cta):
            run.find("exit", f"a load of {who} lands in {run.cta_name(cta)}, which has ended")
        run.shared.reshape(-1, 16)[flat // 16] = fetch().reshape(-1, 16)
        complete_bytes(run, barrier, total, step, issuer)

    run.issue(land)


def _fits(run: Run, cta: int, offset: int, total: int, how: int) -> bool:
    align = {0: 16, 1: 128, 2: 128, 3: 128}[how]
    if offset < 0 or offset + total > run.shared_bytes or not 0 <= cta < run.ctas:
        run.find("address", f"{total} B at shared byte {offset} of {run.shared_bytes}")
        return False
    if (offset + FIRST_SHARED) % align:
        run.find("alignment", f"shared byte {offset} is no multiple of {align} B")
        return False
    return True


def _swizzle(run: Run, chunks: Array, how: int) -> Array:
    """Return where 16-byte chunks lie: the swizzle is of the address, not of the array's offset."""
    if not SWIZZLES[how]:
        return chunks
    inside = chunks % run.shared_bytes
    moved: Array = chunks - inside + swizzled(inside + FIRST_SHARED, how) - FIRST_SHARED
    return moved


def _hold(run: Run, thread: int, flat: Array, channel: int, does: str) -> int:
    """Note that a channel reads chunks of shared memory from here on."""
    step = run.tick()
    at = granules(run, flat, 16).reshape(-1)
    rows = run.rows(Group(np.array([thread])))
    conflict = run.clocks.read(at, rows, step, proxy=True, agent=channel)
    run.conflict(conflict, does)
    return step


def _st_async(d: Decoder, i: Instruction) -> Action:
    """Build st.async and red.async: a few bytes to a CTA's shared memory, counted on a barrier."""
    kind = i.parts[-1]
    to, bar = d.address(i.operands[0]), d.address(i.operands[2])
    read = d.vector(i.operands[1], kind)
    total = len(d.listed(i.operands[1])) * d.kind(kind).itemsize
    reduction = next((p for p in i.parts if p in UPDATES), "")
    d.touch(min(total, 8))
    generic = SHARED if "shared::cluster" not in i.parts else 0

    def store(run: Run, group: Group) -> None:
        values = read(run, group)
        found = shared_at(run, group, to(run, group) - generic, total, remote=True)
        if found is None:
            return
        bars = shared_at(run, group, bar(run, group) - generic, 8, remote=True)
        if bars is None:
            return
        mine, places = dict(zip(*(x.tolist() for x in (bars[0].threads, bars[1])), strict=True)), []
        for thread, flat in zip(found[0].threads.tolist(), found[1].tolist(), strict=True):
            one = Group(np.array([thread]))
            barrier = at_barrier(run, mine.get(thread, -1), one, "stores onto", proxy=False)
            if barrier is None:
                continue
            if barrier.cta != flat // run.shared_bytes:
                run.find("barrier", "the barrier is in another CTA than the bytes", thread=thread)
            step, at = run.tick(), granules(run, np.array([flat]), total)
            issuer = run.clocks.snapshot(*run.members(one), step)
            conflict = run.clocks.write(
                at, run.rows(one)[:, None], step, agent=barrier.channel, strong=bool(reduction)
            )
            run.conflict(conflict, "stores to")
            run.remote(barrier.cta, thread, barrier.channel, step)
            value = values[np.searchsorted(group.threads, thread)]
            places.append((barrier, flat, value, step, issuer))
        for barrier, flat, value, step, issuer in places:
            held = run.shared[flat : flat + total].view(value.dtype)

            def land(
                barrier: Mbarrier = barrier, held: Array = held, value: Array = value,
                step: int = step, issuer: Array = issuer,
            ) -> None:  # fmt: skip
                held[:] = UPDATES[reduction](held, value) if reduction else value
                complete_bytes(run, barrier, total, step, issuer)

            run.issue(land)

    return store


def _st_bulk(d: Decoder, i: Instruction) -> Action:
    """Build st.bulk: zeros."""
    at, size = d.address(i.operands[0]), d.source(i.operands[1], "u64")
    start = 0 if "shared::cta" in i.parts else SHARED
    if i.operands[2] != "0":
        raise d.error("the value that st.bulk stores is 0")
    d.touch(8)

    def store(run: Run, group: Group) -> None:
        for thread, address, total in each_thread(run, group, at, size):
            one = Group(np.array([thread]))
            if total % 8 or total < 1:
                run.find("alignment", f"{total} B: a multiple of 8", thread=thread)
                continue
            found = shared_at(run, one, np.array([address - start]), total, align=8)
            if found is not None:
                check_write(run, one, found[1], total)
                run.shared[int(found[1][0]) :][:total] = 0

    return store


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
            if not _fits(run, cta, offset, part.total, part.swizzle):
                continue
            mine = _groups(run, thread)
            chunks = cta * run.shared_bytes + offset + np.arange(0, part.total, 16)
            flat = _swizzle(run, chunks, part.swizzle)
            step = _hold(run, thread, flat, mine.channel, "stores from")
            put = _put(run, flat, part, reduction)
            mine.open.append(Issued(run.issue(put), run.pc, step))

    return store


def _put(run: Run, flat: Array, part: _Part, reduction: str) -> Callable[[], None]:
    pc, dtype = run.pc, part.dtype
    addresses = part.addresses[part.inside]

    def put() -> None:
        values = run.shared.reshape(-1, 16)[flat // 16].reshape(-1).view(dtype)[part.inside]
        good = 0
        for held in run.memory.locate(addresses, dtype.itemsize):
            chosen = values if held.which is None else values[held.which]
            index, data = held.index(dtype.itemsize), held.view(dtype)
            data[index] = UPDATES[reduction](data[index], chosen) if reduction else chosen
            good += len(chosen)
        if good < len(addresses):
            run.find("address", "a bulk store goes outside of all allocations", pc=pc)

    return put


def unfinished(run: Run) -> None:
    """Report bulk stores that still read shared memory when their thread has ended."""
    for thread, mine in run.state.bulk.items():
        if mine.open or any(mine.groups):
            message = f"{run.warp_name(thread)} ended without waiting for its bulk stores"
            run.find("exit", message, thread=thread)


def _prefetch(d: Decoder, i: Instruction) -> Action:
    return lambda run, group: None


TABLE: Mapping[str, Builder] = {
    "cp.async.bulk": _bulk,
    "cp.async.bulk.tensor": _bulk,
    "cp.async.bulk.prefetch": _prefetch,
    "cp.async.bulk.prefetch.tensor": _prefetch,
    "cp.async.bulk.commit_group": _bulk_commit,
    "cp.async.bulk.wait_group": _bulk_wait,
    "cp.reduce.async.bulk": _bulk,
    "st.async": _st_async,
    "red.async": _st_async,
    "st.bulk": _st_bulk,
    "cp.reduce.async.bulk.tensor": _bulk,
}
"""This family's builders by entry."""
