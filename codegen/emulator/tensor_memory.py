"""Tensor memory: 128 lanes by 512 columns of 32 bits a CTA; its allocation, loads and stores.

An address is lane << 16 | column.  A warp reaches the 32 lanes of its rank in its warpgroup. Order
is held by the clocks of shared memory, one granule a column of 32 lanes: ``TENSOR`` is what a
thread knew when it last executed tcgen05.fence::after_thread_sync, and that is what its accesses
may build on.  That a warp's own loads and stores are done, tcgen05.wait tells the warp alone; its
next fence::before_thread_sync lets it tell others.  Registers that a load fills belong to it until
the wait.

Source: PTX ISA 9.0, sections 9.7.16.1 to 9.7.16.8 (tcgen05: tensor memory, ld, st, alloc).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

import numpy as np

from tinygpu.codegen.emulator.clocks import ORDER, TENSOR, Conflict
from tinygpu.codegen.emulator.decoder import (
    Action,
    Builder,
    Control,
    Decoder,
    each_thread,
    together,
)
from tinygpu.codegen.emulator.group import WARP, Group
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.spaces import check_write, shared_at
from tinygpu.codegen.emulator.state import COLUMNS, TensorMemory

__all__ = ["TABLE", "access", "tensor_memory"]

_QUARTERS = 4


def tensor_memory(run: Run, cta: int) -> TensorMemory:
    """Return the tensor memory of a CTA of the batch."""
    return run.state.tensor.setdefault(cta, TensorMemory())


def access(
    run: Run, cta: int, quarters: Array, columns: tuple[int, int], rows: Array, channel: int,
    *, writes: bool, own: bool = True,
) -> int:  # fmt: skip
    """Note an access of ``columns`` (first, number); returns its step.

    ``own``: operations of the same channel are in order anyway.
    """
    step = run.tick()
    first, number = columns
    who = run.name(int(rows[0]) // run.clocks.agents, int(rows[0]) % run.clocks.agents)
    if not tensor_memory(run, cta).owns(first, number):
        run.find(
            "tensor memory", f"{who}: columns {first} to {first + number - 1} are not allocated"
        )
        if first + number > COLUMNS:
            return step
    base = len(run.clocks.write_step) - run.ctas * _QUARTERS * COLUMNS
    at = base + (cta * _QUARTERS + quarters[:, None]) * COLUMNS + first + np.arange(number)
    clocks = run.clocks
    flat = clocks.clocks[TENSOR].reshape(-1, clocks.agents)
    before = flat[rows, channel].copy()
    if own:
        flat[rows, channel] = np.iinfo(np.int32).max
    note = clocks.write if writes else clocks.read
    found = note(at.reshape(1, -1), rows[:, None], step, agent=channel, by=TENSOR)
    flat[rows, channel] = before
    if found is not None:
        _report(run, cta, found, who, "writes" if writes else "reads")
    elif not writes and clocks.fresh(at).any():
        run.find("uninitialised", f"{who} reads tensor memory that nobody wrote")
    return step


def _report(run: Run, cta: int, found: Conflict, who: str, does: str) -> None:
    domain = cta // run.cluster
    other = run.name(domain, found.other)
    column = found.granule % COLUMNS
    run.find(
        found.kind,
        f"{who} {does} column {column} of the tensor memory of {run.cta_name(cta)}, which {other} "
        f"{found.what} with no completion and tcgen05.fence::after_thread_sync between",
        other=run.log[found.other_step],
    )


_SHAPES = {"32x32b": (1, 1), "16x32bx2": (1, 1), "16x64b": (1, 2), "16x128b": (2, 4),
           "16x256b": (4, 8)}  # fmt: skip
"""How many registers of a thread, and how many columns, each repetition has."""


@functools.cache
def _cells(shape: str, times: int) -> tuple[Array, Array]:
    """Return lane and column of each thread's registers: (32, registers).

    Of ``16x32bx2`` the upper half of the warp begins elsewhere, at columns that count from there.
    """
    t = np.arange(WARP)[:, None]
    each, wide = _SHAPES[shape]
    r = np.arange(each * times)[None]
    part, turn = r % each, r // each
    if shape == "32x32b":
        return t + 0 * r, r + 0 * t
    if shape == "16x32bx2":
        return t % 16 + 0 * r, r + 0 * t
    if shape == "16x64b":
        return t // 4 + 8 * (t % 2) + 0 * r, t // 2 % 2 + wide * turn
    if shape == "16x128b":
        return t // 4 + 8 * part, t % 4 + wide * turn
    return t // 4 + 8 * (part // 2), 2 * (t % 4) + part % 2 + wide * turn


def _channel(run: Run, warp: int, loads: bool) -> int:
    return run.channel("tcgen05.ld" if loads else "tcgen05.st", warp, warp * WARP)


def _own(run: Run, warp: int) -> list[bool]:
    """Say of loads and of stores, which the warp has issued."""
    return [loads for loads in (True, False) if (warp, loads) in run.state.tensor_steps]


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
        starts.append(int(i.operands[2 if loads else 1], 0))
        columns = columns + starts[1] * (np.arange(WARP)[:, None] >= 16)
    if len(listed) != lanes.shape[1]:
        raise d.error(f"{len(listed)} registers; {shape}.x{times} has {lanes.shape[1]}")
    registers = [d.register(r) for r in listed]

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
                run.find(
                    "tensor memory",
                    f"{run.warp_name(threads.start)} reaches lanes {32 * quarter} to "
                    f"{32 * quarter + 31}; got {lane}",
                )
                continue
            channel = _channel(run, warp, loads)  # before rows, which count agents as they are
            rows = run.rows(_warp(warp))[:: run.unit]
            for start in starts:
                run.state.tensor_steps[warp, loads] = access(
                    run, cta, np.array([quarter]), (column + start, wide), rows, channel,
                    writes=not loads, own=not loads,
                )  # fmt: skip
            if column + columns.min() < 0 or column + columns.max() >= COLUMNS:
                continue  # which access has reported
            cells = tensor_memory(run, cta).cells
            if loads:
                filled = run.state.loading.setdefault(warp, {})
                filled.update(dict.fromkeys(registers, run.pc))
                values = cells[lane + lanes, column + columns]
                for n, register in enumerate(registers):
                    run.registers[register][threads] = values[:, n]
            else:
                held = np.stack([run.registers[r][threads] for r in registers], 1)
                cells[lane + lanes, column + columns] = held

    return together(move)


def _wait(d: Decoder, i: Instruction) -> Control:
    loads = "wait::ld" in i.parts

    def wait(run: Run, here: Group) -> None:
        run.tick()
        for warp in here.warp_numbers.tolist():
            step = run.state.tensor_steps.get((warp, loads), -1)
            channel = _channel(run, warp, loads)
            domain, agents = run.members(_warp(warp))
            known = run.clocks.clocks[TENSOR, domain, agents, channel]
            run.clocks.clocks[TENSOR, domain, agents, channel] = np.maximum(known, step)
            if loads:
                run.state.loading.pop(warp, None)

    return together(wait)


def _alloc(d: Decoder, i: Instruction) -> Control:
    at, number = d.address(i.operands[0]), d.source(i.operands[1], "u32")
    d.touch(4)

    def allocate(run: Run, group: Group) -> Group | None:
        here = run.together(group, WARP)
        if here is None:
            return None
        going, pc = [], run.pc
        leaders = Group(here.threads[::WARP])
        for thread, address, columns in each_thread(run, leaders, at, number):
            warp, memory = _warp(thread // WARP), tensor_memory(run, thread // run.threads_per_cta)
            if columns < 32 or columns > COLUMNS or columns & (columns - 1):
                run.find("tensor memory", f"{columns} columns; a power of two from 32 to 512 is")
                continue
            if memory.closed:
                run.find("tensor memory", "an allocation after relinquish_alloc_permit")
            take = _take(run, memory, warp, address, columns, pc)
            say = f"for {columns} columns of tensor memory, of which {{}} are taken".format
            if run.poll(warp, pc, take, functools.partial(say, memory.allocated)):
                going.append(warp.threads)
        return Group(np.concatenate(going)) if going else None

    return Control(allocate, WARP)


def _take(
    run: Run, memory: TensorMemory, warp: Group, address: int, columns: int, pc: int
) -> Callable[[], bool]:
    def take() -> bool:
        start = memory.free(columns)
        if start is None:
            return False
        memory.allocated[start] = columns
        one = Group(warp.threads[:1])
        run.pc = pc
        found = shared_at(run, one, np.array([address]), 4)
        if found is not None:
            check_write(run, found[0], found[1], 4)
            run.shared.view(np.uint32)[found[1] // 4] = start
        return True

    return take


def _dealloc(d: Decoder, i: Instruction) -> Control:
    at, number = d.source(i.operands[0], "u32"), d.source(i.operands[1], "u32")

    def free(run: Run, here: Group) -> None:
        for thread, start, columns in each_thread(run, Group(here.threads[::WARP]), at, number):
            cta = thread // run.threads_per_cta
            memory = tensor_memory(run, cta)
            if memory.allocated.get(start) != columns:
                run.find(
                    "tensor memory", f"no allocation of {columns} columns begins at {start:#x}"
                )
                continue
            channel = _channel(run, thread // WARP, False)  # before rows, as above
            rows = run.rows(_warp(thread // WARP))[:: run.unit]
            span = (start, columns)
            access(run, cta, np.arange(_QUARTERS), span, rows, channel, writes=True)
            del memory.allocated[start]

    return together(free)


def _relinquish(d: Decoder, i: Instruction) -> Action:
    def close(run: Run, group: Group) -> None:
        for cta in np.unique(run.cta_of(group.threads)).tolist():
            tensor_memory(run, cta).closed = True

    return close


def _fence(d: Decoder, i: Instruction) -> Action:
    after = "fence::after_thread_sync" in i.parts

    def fence(run: Run, group: Group) -> None:
        for thread in run.units(group).tolist():
            domain, agent = run.agent_of(thread)
            if after:
                known = run.clocks.clocks[:, domain, agent]
                np.maximum(known[ORDER], known[TENSOR], out=known[TENSOR])
                continue
            warp = thread // WARP
            channels = [_channel(run, warp, loads) for loads in _own(run, warp)]
            known = run.clocks.clocks[:, domain, agent]  # after channels, which may make it anew
            known[ORDER, channels] = known[TENSOR, channels]

    return fence


def unfinished(run: Run) -> None:
    """Report tensor memory that is still allocated when all threads have ended."""
    for cta, held in run.state.tensor.items():
        if held.allocated:
            name = run.cta_name(cta)
            run.find("tensor memory", f"{name} ended with columns {held.allocated} allocated")


TABLE: Mapping[str, Builder] = {
    "tcgen05.alloc": _alloc,
    "tcgen05.dealloc": _dealloc,
    "tcgen05.relinquish_alloc_permit": _relinquish,
    "tcgen05.ld": _ld_st,
    "tcgen05.st": _ld_st,
    "tcgen05.wait::ld": _wait,
    "tcgen05.wait::st": _wait,
    "tcgen05.fence::before_thread_sync": _fence,
    "tcgen05.fence::after_thread_sync": _fence,
}
"""This family's builders by entry."""
