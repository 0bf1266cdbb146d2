"""Bulk copies, plain and of tensors' boxes: one thread's, counted on barriers or kept in groups.

A copy owns what it writes, and holds what it reads, from its issue; its channel's clock says from
when on others may touch it: after its group was waited for, or its barrier's phase has completed.

Source: PTX ISA 9.0, sections 9.7.9.25 (bulk and tensor copies) and 5.5 (tensors).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinygpu.codegen.interpreter.barriers import Mbarrier, at_barrier, complete_bytes
from tinygpu.codegen.interpreter.decoder import Action, Builder, Decoder, Source
from tinygpu.codegen.interpreter.group import Group, Pending
from tinygpu.codegen.interpreter.memory import PARAM, SHARED
from tinygpu.codegen.interpreter.moves import decreased, increased
from tinygpu.codegen.interpreter.parser import Instruction, split
from tinygpu.codegen.interpreter.report import Array
from tinygpu.codegen.interpreter.run import FIRST_SHARED, Run
from tinygpu.codegen.interpreter.spaces import check_write, granules, shared_at
from tinygpu.codegen.interpreter.tensor_map import SWIZZLES, TensorMap, swizzled

__all__ = ["TABLE", "BulkGroups", "unfinished"]


@dataclass(slots=True, eq=False)
class BulkGroups:
    """One thread's bulk groups: ``last`` is the step of each group's last copy."""

    channel: int
    open: list[tuple[Pending, int]] = field(default_factory=list)
    groups: deque[list[tuple[Pending, int]]] = field(default_factory=deque)


def _groups(run: Run, thread: int) -> BulkGroups:
    if thread not in run.state.bulk:
        run.state.bulk[thread] = BulkGroups(run.channel("bulk stores", thread, thread))
    return run.state.bulk[thread]


def _bulk_commit(d: Decoder, i: Instruction) -> Action:
    def commit(run: Run, group: Group) -> None:
        for thread in group.threads.tolist():
            mine = _groups(run, thread)
            mine.groups.append(mine.open)
            mine.open = []

    return commit


def _bulk_wait(d: Decoder, i: Instruction) -> Action:
    pending = int(i.operands[0], 0)

    def wait(run: Run, group: Group) -> None:
        run.tick()
        for thread in group.threads.tolist():
            mine = _groups(run, thread)
            while len(mine.groups) > pending:
                for copy, step in mine.groups.popleft():
                    run.finish(copy)
                    domain, agent = run.agent_of(thread)
                    run.clocks.completed(domain, [agent], mine.channel, step)

    return wait


@dataclass(frozen=True, slots=True)
class _Box:
    """The tensor operand ``[map, {coordinates}]``."""

    pointer: Source
    coordinates: tuple[Source, ...]

    def of(self, run: Run, group: Group) -> list[tuple[TensorMap | None, list[int]]]:
        pointers = np.broadcast_to(self.pointer(run, group), (group.size,))
        columns = [np.broadcast_to(c(run, group), (group.size,)) for c in self.coordinates]
        found = []
        for n, pointer in enumerate(pointers.tolist()):
            held = run.tensor_maps.get(pointer - PARAM)
            if held is None:
                run.find("address", f"no tensor map is at {pointer:#x}; it is a .param of 128 B")
            elif len(columns) != len(held.shape):
                run.find("descriptor", f"{len(columns)} coordinates for {held}")
                held = None
            found.append((held, [int(c[n]) for c in columns]))
        return found


def _box(d: Decoder, text: str) -> _Box:
    found = re.fullmatch(r"\[\s*([^,\s]+)\s*,\s*(\{.*\})\s*\]", text)
    if not found:
        raise d.error(f"cannot read the tensor {text!r}")
    coordinates = tuple(d.source(c, "s32") for c in split(found.group(2)[1:-1]))
    return _Box(d.source(found.group(1), "u64"), coordinates)


def _bulk(d: Decoder, i: Instruction) -> Action:
    """Route a bulk copy by its spaces."""
    spaces = [p for p in i.parts if p.split("::")[0] in ("global", "shared")]
    d.touch(16)
    if spaces[0].startswith("shared"):
        return _load(d, i)
    return _store(d, i)


def _targets(run: Run, thread: int, address: int, mask: int | None) -> list[tuple[int, int]]:
    """Return the CTAs (of the batch) that receive, and the offset in their shared memory."""
    own = thread // run.threads_per_cta
    first, rank = own - own % run.cluster, address >> 24
    offset = (address & 0xFFFFFF) - FIRST_SHARED
    if mask is None:
        return [(first + rank if run.cluster > 1 else own, offset)]
    if mask >> run.cluster:
        run.find("address", f"multicast to {mask:#x}, a cluster of {run.cluster} CTAs")
    return [(first + r, offset) for r in range(run.cluster) if mask >> r & 1]


def _load(d: Decoder, i: Instruction) -> Action:
    """Global to shared, or shared to a peer's shared: bytes are counted on a barrier."""
    tensor, multicast = "tensor" in i.parts, "multicast::cluster" in i.parts
    operands = list(i.operands)
    to = d.address(operands[0])
    box = _box(d, operands[1]) if tensor else None
    plain = None if tensor else d.address(operands[1])
    from_shared = sum(p.startswith("shared") for p in i.parts) > 1
    size = None if tensor else d.source(operands.pop(2), "u32")
    bar = d.address(operands[2])
    mask = d.source(operands[3], "u16") if multicast else None
    pair = "cta_group::2" in i.parts

    def load(run: Run, group: Group) -> None:
        masks = np.broadcast_to(mask(run, group), (group.size,)) if mask else None
        addresses, bars = to(run, group), bar(run, group)
        boxes = box.of(run, group) if box else []
        sizes = np.broadcast_to(size(run, group), (group.size,)) if size else None
        starts = plain(run, group) if plain else None
        for n, thread in enumerate(group.threads.tolist()):
            chosen = None if masks is None else int(masks[n])
            fetch: Callable[[], Array]
            if box:
                tensor_map, coordinates = boxes[n]
                if tensor_map is None:
                    continue
                total, how = tensor_map.box_bytes, tensor_map.swizzle
                fetch = _fetch_box(run, tensor_map, coordinates)
            else:
                assert sizes is not None
                assert starts is not None
                total, how = int(sizes[n]), 0
                if not _sixteens(run, thread, total, int(starts[n])):
                    continue
                fetch = _fetch_bytes(run, thread, int(starts[n]), total, from_shared)
            for cta, offset in _targets(run, thread, int(addresses[n]), chosen):
                barrier_at = int(bars[n]) & 0xFFFFFF
                rank = int(bars[n]) >> 24
                own = thread // run.threads_per_cta
                there = cta if chosen is not None else own - own % run.cluster + rank
                if chosen is not None and pair:  # in each pair, the CTA of the barrier's parity
                    there = cta - cta % 2 + rank % 2
                if run.cluster == 1:
                    there = own
                if there != cta and not pair:
                    run.find("barrier", "the barrier is in another CTA than the bytes")
                _fill(
                    run,
                    thread,
                    (cta, offset, total, how),
                    there * run.shared_bytes + barrier_at - FIRST_SHARED,
                    fetch,
                )

    return load


def _sixteens(run: Run, thread: int, total: int, start: int) -> bool:
    """Whether a plain copy's size and address are multiples of 16; else report."""
    if total % 16 == 0 and start % 16 == 0:
        return True
    run.find(
        "alignment", f"{total} B at {start:#x}: multiples of 16 are copied",
        thread=thread, address=start,
    )  # fmt: skip
    return False


def _fetch_box(run: Run, tensor_map: TensorMap, coordinates: list[int]) -> Callable[[], Array]:
    return lambda: tensor_map.load(run.memory, coordinates)


def _fetch_bytes(
    run: Run, thread: int, start: int, total: int, from_shared: bool
) -> Callable[[], Array]:
    if from_shared:
        flat = thread // run.threads_per_cta * run.shared_bytes + (start & 0xFFFFFF) - FIRST_SHARED
        _hold(run, thread, flat + np.arange(0, total, 16), _groups(run, thread).channel, "copies")
        return lambda: run.shared[flat : flat + total].copy()
    addresses = start + np.arange(total)
    if not run.memory.locate(np.array([start]), total):
        run.find("address", f"{total} B at {run.memory.nearest(start)}")
    return lambda: run.memory.gather(addresses, np.uint8, np.ones(total, bool))


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
        each = run.threads_per_cta
        if not run.live[cta * each : (cta + 1) * each].any():
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
    reduction = next((p for p in i.parts if p in _REDUCTIONS), "")
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
            run.issue(_landing(run, (barrier, flat, value, step, issuer), reduction))

    return store


def _landing(
    run: Run, store: tuple[Mbarrier, int, Array, int, Array], reduction: str
) -> Callable[[], None]:
    barrier, flat, value, step, issuer = store

    def land() -> None:
        held = run.shared[flat : flat + value.nbytes].view(value.dtype)
        held[:] = _REDUCTIONS[reduction](held, value) if reduction else value
        complete_bytes(run, barrier, value.nbytes, step, issuer)

    return land


def _st_bulk(d: Decoder, i: Instruction) -> Action:
    """Build st.bulk: zeros."""
    at, size = d.address(i.operands[0]), d.source(i.operands[1], "u64")
    start = 0 if "shared::cta" in i.parts else SHARED
    if i.operands[2] != "0":
        raise d.error("the value that st.bulk stores is 0")
    d.touch(8)

    def store(run: Run, group: Group) -> None:
        sizes = np.broadcast_to(size(run, group), (group.size,))
        addresses = at(run, group) - start
        for n, total in enumerate(sizes.tolist()):
            one = group.where(np.arange(group.size) == n)
            if total % 8 or total < 1:
                run.find("alignment", f"{total} B: a multiple of 8", thread=int(one.threads[0]))
                continue
            found = shared_at(run, one, addresses[n : n + 1], int(total), align=8)
            if found is not None:
                check_write(run, one, found[1], int(total))
                run.shared[int(found[1][0]) :][: int(total)] = 0

    return store


_REDUCTIONS: Mapping[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "inc": increased, "dec": decreased,
}  # fmt: skip


def _store(d: Decoder, i: Instruction) -> Action:
    """Shared to global, plain or reduced: groups of the issuing thread."""
    tensor = "tensor" in i.parts
    box = _box(d, i.operands[0]) if tensor else None
    plain = None if tensor else d.address(i.operands[0])
    of = d.address(i.operands[1])
    size = None if tensor else d.source(i.operands[2], "u32")
    reduction = next((p for p in i.parts if p in _REDUCTIONS), "") if "reduce" in i.parts else ""
    kind = "b8" if tensor or not reduction else i.parts[-1]

    def store(run: Run, group: Group) -> None:
        boxes = box.of(run, group) if box else []
        sources = of(run, group)
        sizes = np.broadcast_to(size(run, group), (group.size,)) if size else None
        starts = plain(run, group) if plain else None
        for n, thread in enumerate(group.threads.tolist()):
            cta = thread // run.threads_per_cta
            offset = (int(sources[n]) & 0xFFFFFF) - FIRST_SHARED
            if box:
                tensor_map, coordinates = boxes[n]
                if tensor_map is None:
                    continue
                total, how, dtype = tensor_map.box_bytes, tensor_map.swizzle, tensor_map.dtype
                if min(coordinates) < 0:
                    run.find("address", f"a store begins at {coordinates}", thread=thread)
                addresses, inside = tensor_map.places(coordinates)
            else:
                assert sizes is not None
                assert starts is not None
                total, how, dtype = int(sizes[n]), 0, kind
                if not _sixteens(run, thread, total, int(starts[n])):
                    continue
                width = d.kind(dtype).itemsize
                addresses = int(starts[n]) + np.arange(0, total, width)
                inside = np.ones(len(addresses), bool)
            if not _fits(run, cta, offset, total, how):
                continue
            mine = _groups(run, thread)
            chunks = cta * run.shared_bytes + offset + np.arange(0, total, 16)
            flat = _swizzle(run, chunks, how)
            step = _hold(run, thread, flat, mine.channel, "stores from")
            put = _put(run, flat, addresses[inside], inside, d.kind(dtype), reduction)
            mine.open.append((run.issue(put), step))

    return store


def _put(
    run: Run, flat: Array, addresses: Array, inside: Array, dtype: np.dtype[Any], reduction: str
) -> Callable[[], None]:
    pc = run.pc

    def put() -> None:
        values = run.shared.reshape(-1, 16)[flat // 16].reshape(-1).view(dtype)[inside]
        good = 0
        for part in run.memory.locate(addresses, dtype.itemsize):
            chosen = values if part.which is None else values[part.which]
            index, data = part.index(dtype.itemsize), part.view(dtype)
            data[index] = _REDUCTIONS[reduction](data[index], chosen) if reduction else chosen
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
