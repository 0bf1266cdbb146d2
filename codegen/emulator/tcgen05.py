"""The fifth generation of tensor cores: tensor memory, tcgen05.mma, cp and commit.

Tensor memory are 128 lanes by 512 columns of 32 bits a CTA; an address is lane << 16 | column.  A
warp reaches the 32 lanes of its rank in its warpgroup.  Order is held by the clocks of shared
memory, one granule a column of 32 lanes: ``TENSOR`` is what a thread knew when it last executed
tcgen05.fence::after_thread_sync, and that is what its accesses may build on.  That a warp's own
loads and stores are done, tcgen05.wait tells the warp alone; its next fence::before_thread_sync
lets it tell others.  Registers that a load fills belong to it until the wait.

A thread's products and copies are performed in order, which the ISA promises of a product after
products or copies, but not of a copy: one that overwrites what earlier products read has to wait
for them like any other thread.  ``commit`` lets barriers know when those before it are done.  In a
pair the even CTA's thread issues; each CTA has half of A's rows, of B's rows and of D.

Scales are bytes of tensor memory, the same in each quarter of its lanes: that of A's row or B's
column r is in lane r % 32, column r / 32, at the byte that the instruction descriptor says, or in
several from there on.

Source: PTX ISA 9.0, section 9.7.16 (tcgen05).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import races
from .barriers import arrive, at_barrier
from .clocks import LIFE, ORDER, TENSOR
from .decoder import Action, Builder, Control, Decoder, each_thread, operation, together
from .descriptors import NARROW, elements, matrix_at
from .matrices import narrowed
from .memory import Part
from .parser import Instruction
from .report import Array
from .run import COLUMNS, WARP, Group, Run, TensorMemory, one_of
from .spaces import check, hold, multicast, place, shared_at
from .values import TYPES, numbers, products

__all__ = ["TABLE", "access"]

_QUARTERS = 4


def access(
    run: Run, cta: int, quarters: Array, columns: tuple[int, int], group: Group, channel: int,
    *, writes: bool, own: bool = True,
) -> int:  # fmt: skip
    """Note an access of ``columns`` (first, number) for a group; returns its step.

    ``own``: operations of the same channel are in order anyway.
    """
    first, number = columns
    who = run.name(*divmod(int(run.rows(group)[0]), run.clocks.agents))
    if not run.tensor[cta].owns(first, number):
        run.find(
            "tensor memory", f"{who}: columns {first} to {first + number - 1} are not allocated"
        )
        if first + number > COLUMNS:
            return run.tick()
    base = run.inside.granules - run.ctas * _QUARTERS * COLUMNS
    at = base + (cta * _QUARTERS + quarters[:, None]) * COLUMNS + first + np.arange(number)
    if not writes and (run.inside.first(at) == 0).any():
        run.find("uninitialised", f"{who} reads tensor memory that nobody wrote")
    width = run.inside.width
    part = Part(None, at.reshape(-1) * width, run.shared)
    return races.check(
        run, group, part, width, writes=writes, by=TENSOR, channels=channel, every=True,
        in_order=own,
    )  # fmt: skip


_SHAPES: Mapping[str, tuple[int, int, Callable[[Array, Array], tuple[Any, Any]]]] = {
    "32x32b": (1, 1, lambda t, part: (t, 0)),
    "16x32bx2": (1, 1, lambda t, part: (t % 16, 0)),
    "16x64b": (1, 2, lambda t, part: (t // 4 + 8 * (t % 2), t // 2 % 2)),
    "16x128b": (2, 4, lambda t, part: (t // 4 + 8 * part, t % 4)),
    "16x256b": (4, 8, lambda t, part: (t // 4 + 8 * (part // 2), 2 * (t % 4) + part % 2)),
}
"""How many registers of a thread, and how many columns, each repetition has; lane and column of a
thread's register there.  Of ``16x32bx2`` the upper half of the warp begins elsewhere, at columns
that count from there."""


@functools.cache
def _cells(shape: str, times: int) -> tuple[Array, Array]:
    """Return lane and column of each thread's registers: (32, registers)."""
    each, wide, place = _SHAPES[shape]
    turn, part = np.divmod(np.arange(each * times)[None], each)
    lane, column = place(np.arange(WARP)[:, None], part)
    lanes, columns = np.broadcast_arrays(lane + 0 * turn, column + wide * turn)
    return lanes, columns


def _channel(run: Run, warp: int, loads: bool) -> int:
    return run.channel("tcgen05.ld" if loads else "tcgen05.st", warp, warp * WARP)


def _warp(warp: int) -> Group:
    return Group(np.arange(warp * WARP, (warp + 1) * WARP))


def _ld_st(d: Decoder, i: Instruction) -> Control:
    loads = i.parts[1] == "ld"
    shape = next(p for p in i.parts if p in _SHAPES)
    times = int(next(p for p in i.parts if re.fullmatch(r"x\d+", p))[1:])
    lanes, columns = _cells(shape, times)
    wide, starts = int(columns.max()) + 1, [0]
    at = d.address(i.operands[1 if loads else 0])
    listed = d.listed(i.operands[0 if loads else -1])
    if shape == "16x32bx2":
        starts.append(d.number(i.operands[2 if loads else 1], range(COLUMNS)))
        columns = columns + starts[1] * (np.arange(WARP)[:, None] >= 16)
    if len(listed) != lanes.shape[1]:
        raise d.error(f"{len(listed)} registers; {shape}.x{times} has {lanes.shape[1]}")
    registers = d.matrix(i.operands[0 if loads else -1], "b32")

    def move(run: Run, here: Group) -> None:
        addresses = at(run, here)
        for first in range(0, here.size, WARP):
            threads = slice(int(here.threads[first]), int(here.threads[first]) + WARP)
            warp = threads.start // WARP
            address, cta = int(addresses[first]), threads.start // run.threads_per_cta
            lane, column = address >> 16, address & 0xFFFF
            if (addresses[first : first + WARP] != address).any():
                run.find("tensor memory", "the warp's threads give different addresses")
            quarter = warp % 4
            allowed = (32 * quarter,) if shape == "32x32b" else (32 * quarter, 32 * quarter + 16)
            if lane not in allowed:
                reach = f"reaches lanes {32 * quarter} to {32 * quarter + 31}; got {lane}"
                run.find("tensor memory", reach, who=threads.start)
                continue
            channel = _channel(run, warp, loads)
            for start in starts:
                run.tensor_steps[warp, loads] = access(
                    run, cta, np.array([quarter]), (column + start, wide), _warp(warp), channel,
                    writes=not loads, own=not loads,
                )  # fmt: skip
            if column + columns.min() < 0 or column + columns.max() >= COLUMNS:
                continue  # which access has reported
            cells = run.tensor[cta].cells
            if loads:
                filled = run.loading.setdefault(warp, {})
                filled.update(dict.fromkeys(registers, run.pc))
                values = cells[lane + lanes, column + columns]
                for n, register in enumerate(registers):
                    run.registers[register][threads] = values[:, n]
            else:
                held = np.stack([run.registers[r][threads] for r in registers], 1)
                cells[lane + lanes, column + columns] = held

    return together(move)


def _wait(run: Run, here: Group, i: Instruction) -> None:
    run.tick()
    loads = "wait::ld" in i.parts
    for warp in here.warp_numbers.tolist():
        step = run.tensor_steps.get((warp, loads), -1)
        channel = _channel(run, warp, loads)
        domain, agents = run.members(_warp(warp))
        known = run.clocks.clocks[TENSOR, domain, agents, channel]
        run.clocks.clocks[TENSOR, domain, agents, channel] = np.maximum(known, step)
        if loads:
            run.loading.pop(warp, None)


def _alloc(run: Run, here: Group, i: Instruction, addresses: Array, numbers: Array) -> None:
    for thread, address, columns in _each_warp(here, addresses, numbers):
        warp, memory = _warp(thread // WARP), run.tensor[thread // run.threads_per_cta]
        if columns < 32 or columns > COLUMNS or columns & (columns - 1):
            run.find("tensor memory", f"{columns} columns; a power of two from 32 to 512 is")
            continue
        if memory.closed:
            run.find("tensor memory", "an allocation after relinquish_alloc_permit")
        take = functools.partial(_take, run, run.pc, memory, thread, address, columns)
        say = f"for {columns} columns of tensor memory, of which {{}} are taken".format
        run.poll(warp, take, functools.partial(say, memory.allocated))


def _each_warp(here: Group, *given: Array) -> Iterator[tuple[int, ...]]:
    """Yield the first thread of each warp, with its values."""
    return zip(*(values[::WARP].tolist() for values in (here.threads, *given)), strict=True)


def _take(run: Run, pc: int, memory: TensorMemory, thread: int, address: int, columns: int) -> bool:
    start = memory.free(columns)
    if start is None:
        return False
    memory.allocated[start], run.pc = columns, pc
    found = shared_at(run, one_of(thread), np.array([address]), 4)
    if found is not None:
        check(run, found[0], Part(None, found[1], run.shared), 4, writes=True)
        run.shared.view(np.uint32)[found[1] // 4] = start
    return True


def _dealloc(run: Run, here: Group, i: Instruction, starts: Array, numbers: Array) -> None:
    for thread, start, columns in _each_warp(here, starts, numbers):
        cta = thread // run.threads_per_cta
        memory = run.tensor[cta]
        if memory.allocated.get(start) != columns:
            message = f"no allocation of {columns} columns begins at {start:#x}"
            run.find("tensor memory", message)
            continue
        warp, channel = _warp(thread // WARP), _channel(run, thread // WARP, False)
        span = (start, columns)
        access(run, cta, np.arange(_QUARTERS), span, warp, channel, writes=True)
        del memory.allocated[start]


def _relinquish(run: Run, group: Group, i: Instruction) -> None:
    for cta in np.unique(group.threads // run.threads_per_cta).tolist():
        run.tensor[cta].closed = True


def _fence(run: Run, group: Group, i: Instruction) -> None:
    for thread in run.units(group).tolist():
        domain, agent = run.agents_of(thread)
        if "fence::after_thread_sync" in i.parts:
            known = run.clocks.clocks[:, domain, agent]
            np.maximum(known[ORDER], known[TENSOR], out=known[TENSOR])
            continue
        warp = thread // WARP
        own = [loads for loads in (True, False) if (warp, loads) in run.tensor_steps]
        channels = [_channel(run, warp, loads) for loads in own]
        known = run.clocks.clocks[:, domain, agent]  # after channels, which may make it anew
        known[ORDER, channels] = known[TENSOR, channels]


def unfinished(run: Run) -> None:
    """Report tensor memory that is still allocated when all threads have ended."""
    for cta, held in run.tensor.items():
        if held.allocated:
            left = f"{run.cta_name(cta)} ended with columns {held.allocated} allocated"
            run.find("tensor memory", left)


_KINDS: Mapping[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "f4": {1: "e2m1x2"},
    "i8": {0: "u8", 1: "s8"},
}
_A_COLUMNS = 8  # spec: of A in tensor memory, whose elements of 32 B are packed
_RESULTS = {0: "f16", 1: "f32", 2: "s32"}


@dataclass(frozen=True, slots=True)
class _Shape:
    """What an instruction descriptor says."""

    m: int
    n: int
    result: str
    a: str
    b: str
    signs: tuple[int, int]
    turned: tuple[bool, bool]
    scales: int = 0
    first: tuple[int, int] = (0, 0)

    @property
    def depth(self) -> int:
        return 32 // TYPES[self.a].itemsize


def _shape(
    run: Run, kind: str, bits: int, scales: int, *, pair: bool, from_tensor: bool
) -> _Shape | None:  # fmt: skip
    names = _KINDS[kind.removeprefix("mx").removesuffix("nvf4")]
    a, b, result = names.get(bits >> 7 & 7), names.get(bits >> 10 & 7), _RESULTS.get(bits >> 4 & 3)
    n, m = (bits >> 17 & 63) << 3, (bits >> 24 & 31) << 4
    allowed = [128, 256] if pair else [64, 128]
    first, reserved = (bits >> 29 & 3, bits >> 4 & 3), 7
    if scales:
        result, m, allowed, reserved = "f32", (bits >> 27 & 3) << 7, [128], 0x8700004F
        if any(f % scales or f + scales > 4 for f in first) or (bits >> 23 & 1) != (scales < 4):
            run.find("descriptor", f"{bits:#x}: a type or places of scales that {kind} has not")
            return None
    least = 16 if not scales and (pair or m == 128) else 8
    if a is None or b is None or result is None or bits & reserved:
        run.find("descriptor", f"{bits:#x}: these types of kind {kind} are not run")
        return None
    if m not in allowed or n % least or not least <= n <= 256:
        run.find("descriptor", f"{bits:#x}: {m} x {n} is no shape of this instruction")
        return None
    turned = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
    small = (*NARROW, "e2m1x2")
    if (a in small and (turned[0] or from_tensor)) or (b in small and turned[1]):
        run.find("descriptor", f"{bits:#x}: 4 and 6 bits are run from shared memory, K-major")
        return None
    signs = (-1 if bits >> 13 & 1 else 1, -1 if bits >> 14 & 1 else 1)
    return _Shape(m, n, result, a, b, signs, turned, scales, first)


def _queue(run: Run, thread: int) -> tuple[tuple[str, int], int]:
    """Return a thread's queue, and its channel."""
    return ("tcgen05", thread), run.channel("tcgen05 operations", thread, thread)


def _ctas(run: Run, thread: int, pair: bool) -> list[int]:
    """Return the CTAs that take part, the even one first."""
    cta = thread // run.threads_per_cta
    if not pair:
        return [cta]
    rank = cta % run.cluster
    if rank % 2 or run.cluster % 2:
        run.find("tensor memory", "an operation of a pair that the even CTA does not issue")
    even = cta - rank % 2
    return [even, min(even + 1, run.ctas - 1)]


def _places(shape: _Shape, ctas: int, lane: int) -> tuple[Array, Array]:
    """Return lane and column of each CTA's results: (rows, columns) of its part of D."""
    m, n = np.arange(shape.m // ctas)[:, None], np.arange(shape.n)[None]
    lanes, columns = m, n
    if shape.m == 64:
        lanes = m % 16 + 32 * (m // 16) + lane
    elif shape.m == 128 and ctas == 2:
        lanes, columns = m + 64 * (n >= shape.n // 2), n % (shape.n // 2)
    return lanes + 0 * columns, columns + 0 * lanes


def _mma(d: Decoder, i: Instruction) -> Action:
    kind = next(p.split("::")[1] for p in i.parts if p.startswith("kind::"))
    pair = "cta_group::2" in i.parts
    to = d.address(i.operands[0])
    from_tensor = i.operands[1].startswith("[")
    a_at = d.address(i.operands[1]) if from_tensor else d.source(i.operands[1], "u64")
    b_at, bits = d.source(i.operands[2], "u64"), d.source(i.operands[3], "u32")
    accumulates = d.source(i.operands[-1], "pred")
    scale_at = [d.address(o) for o in i.operands[4:-1]]
    several = 2 if {"scale_vec::2X", "block32"} & set(i.parts) else 4
    scales = len(scale_at) and {"mxf8f6f4": 1, "mxf4": 2}.get(kind, several)
    d.touch(8)

    def mma(run: Run, group: Group) -> None:
        if (np.diff(group.threads // WARP) == 0).any():
            run.find("divergence", "one thread issues, not several of a warp")
        given = each_thread(run, group, bits, to, a_at, b_at, accumulates, *scale_at)
        for thread, described, target, a, b, adds, *of in given:
            shape = _shape(run, kind, described, scales, pair=pair, from_tensor=from_tensor)
            if shape is not None:
                _issue(run, thread, shape, (target, a, b, *of), bool(adds), pair, from_tensor)

    return mma


def _issue(
    run: Run, thread: int, shape: _Shape, given: tuple[int, ...], adds: bool, pair: bool,
    from_tensor: bool,
) -> None:  # fmt: skip
    target, a, b, *scaled = given
    ctas = _ctas(run, thread, pair)
    key, channel = _queue(run, thread)
    one, half = one_of(thread), len(ctas)
    lane, column = target >> 16, target & 0xFFFF
    if lane and (shape.m != 64 or lane != 16):
        run.find("tensor memory", f"results begin at lane {lane}")
        return
    if any(address >> 16 for address in scaled):
        run.find("tensor memory", "scales begin at another lane than 0")
        return
    operands = []
    for cta in ctas:
        named = [(b, shape.b, (shape.n // half, shape.depth), shape.turned[1])]
        if not from_tensor:
            named.insert(0, (a, shape.a, (shape.m // half, shape.depth), shape.turned[0]))
        found = [matrix_at(run, cta, *each, tcgen05=True) for each in named]
        good = [f for f in found if f is not None]
        if len(good) < len(found):
            return
        flat = np.concatenate([g.reshape(-1) for g in good])
        hold(run, one, flat, 1, channel, "multiplies")
        operands.append(good)
    lanes, columns = _places(shape, half, lane)
    quarters, span = np.unique(lanes // 32), (column, int(columns.max()) + 1)
    sizes = [-(-rows // WARP) for rows in (shape.m, shape.n)]
    parts = list(zip(scaled, sizes, strict=False))
    for cta in ctas:
        if adds:
            access(run, cta, quarters, span, one, channel, writes=False)
        if from_tensor:
            access(run, cta, quarters, (a & 0xFFFF, _A_COLUMNS), one, channel, writes=False)
        for part in parts:
            access(run, cta, np.arange(_QUARTERS), part, one, channel, writes=False)
        run.tensor_last[thread] = access(run, cta, quarters, span, one, channel, writes=True)
    taken = (a & 0xFFFF) + _A_COLUMNS if from_tensor else 0
    if max(column + span[1], taken, *map(sum, parts)) > COLUMNS:
        return  # which access has reported
    pc, dtype = run.pc, TYPES[shape.result]
    bits = np.dtype(f"u{dtype.itemsize}")  # which are in the lower half of a cell, or all of it

    def perform() -> None:
        lefts = [
            _from_tensor(run, cta, a, shape, half) if from_tensor
            else elements(run, good[0], shape.a)
            for cta, good in zip(ctas, operands, strict=True)
        ]  # fmt: skip
        rights = [elements(run, good[-1], shape.b) for good in operands]
        left, right = np.concatenate(lefts), np.concatenate(rights)
        if scaled:
            left = left * _scales(run, ctas[0], scaled[0], shape, left.shape, 0, pc)
            right = right * _scales(run, ctas[0], scaled[1], shape, right.shape, 1, pc)
        product = products(left * shape.signs[0], right * shape.signs[1])
        for cta, part in zip(ctas, np.split(product, half), strict=True):
            cells, at = run.tensor[cta].cells, (lanes, column + columns)
            old = cells[at].astype(bits).view(dtype).astype(np.float64)
            cells[at] = narrowed(part + old if adds else part, dtype).view(bits)

    run.issue(perform, key)


def _scales(
    run: Run, cta: int, address: int, shape: _Shape, of: tuple[int, ...], which: int, pc: int
) -> Array:
    """Return the scale of each element of A (0) or B (1)."""
    rows, depth = of
    words = run.tensor[cta].cells[:, address : address - (-rows // WARP)]
    quarters = words.reshape(_QUARTERS, WARP, -1).swapaxes(1, 2).reshape(_QUARTERS, -1)[:, :rows]
    bits = quarters[0][:, None] >> 8 * (shape.first[which] + np.arange(shape.scales)) & 255
    if (quarters != quarters[0]).any() or (shape.scales == 4 and bits.max() > 127):
        run.find("tensor memory", "scales that differ in quarters of the lanes, or below 0", pc=pc)
    kind = "ue4m3" if shape.scales == 4 else "ue8m0"
    return np.repeat(numbers(bits.astype(np.uint8), kind), depth // shape.scales, 1)


def _from_tensor(run: Run, cta: int, address: int, shape: _Shape, half: int) -> Array:
    """Return A's rows of one CTA: one a lane, packed in columns of 32 bits."""
    column = address & 0xFFFF
    rows = shape.m // half
    lanes = np.arange(rows) if rows != 64 else np.arange(64) % 16 + 32 * (np.arange(64) // 16)
    return numbers(run.tensor[cta].cells[lanes, column : column + _A_COLUMNS], shape.a)


_COPIES = {"128x256b": (128, 8), "128x128b": (128, 4), "4x256b": (4, 8), "32x128b": (32, 4)}


def _cp(d: Decoder, i: Instruction) -> Action:
    shape = next(p for p in i.parts if p in _COPIES)
    rows_of, words = _COPIES[shape]
    pair = "cta_group::2" in i.parts
    to, of = d.address(i.operands[0]), d.source(i.operands[1], "u64")
    d.touch(8)

    def copy(run: Run, group: Group) -> None:
        for thread, target, given in each_thread(run, group, to, of):
            key, channel = _queue(run, thread)
            one, column = one_of(thread), target & 0xFFFF
            for cta in _ctas(run, thread, pair):
                at = matrix_at(run, cta, given, "b32", (rows_of, words), False, tcgen05=True)
                if at is None:
                    continue
                hold(run, one, at, 1, channel, "copies")
                quarters = np.arange(1 if rows_of == 4 else 4)
                step = access(
                    run, cta, quarters, (column, words), one, channel, writes=True, own=False
                )
                run.tensor_last[thread] = step
                if column + words <= COLUMNS:  # else access has reported it
                    run.issue(functools.partial(_copied, run, cta, at, column), key)

    return copy


def _copied(run: Run, cta: int, at: Array, column: int) -> None:
    words = run.shared.view(np.uint32)[at // 4]
    if len(words) == 32:
        words = np.tile(words, (4, 1))
    run.tensor[cta].cells[: len(words), column : column + words.shape[1]] = words


def _commit(
    run: Run, group: Group, i: Instruction, addresses: Array, masks: Array | None = None
) -> None:  # fmt: skip
    chosen = np.zeros(group.size, int) if masks is None else masks
    given = zip(group.threads.tolist(), addresses.tolist(), chosen.tolist(), strict=True)
    for thread, address, mask in given:
        step = run.tick()
        key, channel = _queue(run, thread)
        cta, offset = place(run, thread, address)
        domain, mine = run.members(one := one_of(thread))
        clock = run.clocks.snapshot(domain, mine, -1)  # what they built on
        clock[LIFE, mine] = step
        clock[ORDER, channel] = run.tensor_last.get(thread, -1)
        for there in [cta] if masks is None else multicast(run, cta, mask):
            flat = there * run.shared_bytes + offset
            barrier = at_barrier(run, flat, one, "commits to", proxy=True)
            if barrier is not None:
                run.remote(there, thread, channel, int(clock[ORDER, channel]))
                run.issue(functools.partial(arrive, run, barrier, 1, clock), key)


TABLE: Mapping[str, Builder] = {
    "tcgen05.alloc": operation(_alloc, touches=4, unit=WARP),
    "tcgen05.dealloc": operation(_dealloc, unit=WARP),
    "tcgen05.relinquish_alloc_permit": operation(_relinquish),
    **dict.fromkeys(("tcgen05.ld", "tcgen05.st"), _ld_st),
    **{f"tcgen05.wait::{what}": operation(_wait, unit=WARP) for what in ("ld", "st")},
    **{f"tcgen05.fence::{when}_thread_sync": operation(_fence) for when in ("before", "after")},
    "tcgen05.mma": _mma,
    "tcgen05.cp": _cp,
    "tcgen05.commit": operation(_commit, touches=8),
}
"""This family's builders by entry."""
