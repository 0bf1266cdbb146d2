"""Work: what each statement of a term asks of each unit of an SM.

``account(program, sizes, device)`` walks the term once and returns a tree of the same shape: a
``Piece`` for a statement, a ``Repeat`` for a loop.  A piece says for how many cycles the statement,
done once by all warps of a CTA, keeps each *unit* busy, and after how many cycles its result can be
used.  Numbers may be arrays over the decisions of a space; each depends on few of them.

Units: ``issue`` (the schedulers' slots), ``fma``, ``fp64``, ``int``, ``cvt``, ``sfu``, ``shuffle``,
``smem`` (wavefronts of shared memory) and ``l1`` (lines of global memory); the last two are stages of
one load/store pipe.

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np

from tinygpu.device import Device
from tinygpu.program import (
    Access,
    Affine,
    Commit,
    Do,
    Exit,
    For,
    Program,
    Statement,
    Sync,
    WaitGroup,
    When,
    select,
)
from tinygpu.search.fitted import FITTED
from tinygpu.search.pattern import lines, wavefronts
from tinygpu.search.traffic import Traffic

__all__ = ["UNITS", "Piece", "Repeat", "account", "mapped"]

UNITS = ("issue", "fetch", "fma", "fp64", "int", "cvt", "sfu", "shuffle", "smem", "l1")
Numbers = Any
WARP = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement: cycles of each unit for the whole CTA, latency of its result, in cycles.

    ``alone``: the cycles in which one warp can issue it, however many others there are.
    """

    text: str
    kind: str
    reads: tuple[str, ...]
    write: str
    unit: str
    cycles: Mapping[str, Numbers]
    latency: Numbers = 0
    alone: Numbers = 0
    pending: Numbers = 0


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop of ``trips``; ``rolled`` ones start each iteration after the last one's issues."""

    var: str
    trips: Numbers
    body: tuple[Piece | Repeat, ...]
    rolled: bool


def account(
    program: Program, sizes: Mapping[str, int], device: Device
) -> tuple[Piece | Repeat, ...]:
    """Return the work of the first role, statement by statement."""
    return _Accountant(program, sizes, device).body(program.roles[0].body, ())


def mapped(tree: tuple[Piece | Repeat, ...], f: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Apply ``f`` to every number of a tree."""
    return tuple(
        replace(
            node,
            cycles={u: f(c) for u, c in node.cycles.items()},
            latency=f(node.latency),
            alone=f(node.alone),
            pending=f(node.pending),
        )
        if isinstance(node, Piece)
        else replace(node, trips=f(node.trips), body=mapped(node.body, f))
        for node in tree
    )


class _Accountant:
    def __init__(self, program: Program, sizes: Mapping[str, int], device: Device) -> None:
        self.program, self.device = program, device
        self.values = program.parameter_values(sizes)
        self.warps = program.threads // WARP
        self.traffic = Traffic.of(program, sizes, device)

    def body(
        self, body: tuple[Statement, ...], around: tuple[For, ...]
    ) -> tuple[Piece | Repeat, ...]:
        found: list[Piece | Repeat] = []
        for statement in body:
            match statement:
                case Do():
                    found.append(self.piece(statement, around))
                case For():
                    trips = self.number(statement.trips) - statement.start
                    trips = np.maximum(trips, 0)
                    inner = self.body(statement.body, (*around, statement))
                    if not statement.unrolled:
                        inner = (*inner, self.loop_end(statement))
                    found.append(Repeat(statement.var, trips, inner, not statement.unrolled))
                case When():
                    found += self.body(statement.body, around)
                case Sync():
                    found.append(self.plain("bar.sync", "sync"))
                case Commit():
                    found.append(self.plain("cp.async.commit_group", "commit"))
                case WaitGroup(pending):
                    piece = self.plain("cp.async.wait_group", "wait")
                    found.append(replace(piece, pending=pending))
                case Exit():
                    found.append(self.plain("exit", "do"))
                case _:
                    assert_never(statement)
        return tuple(found)

    def number(self, number: int | str) -> Numbers:
        return self.values[number] if isinstance(number, str) else number

    def plain(self, text: str, kind: str) -> Piece:
        latency = self.device.barrier_latency_cycles if kind == "sync" else 0
        return Piece(text, kind, (), "", "issue", {"issue": self.issue(1)}, latency)

    def issue(self, instructions: Numbers) -> Numbers:
        """Return the cycles in which all warps' schedulers issue so many instructions a warp."""
        rate = self.device.warp_schedulers_per_sm * self.device.issue_per_cycle_per_scheduler
        return self.warps * instructions / rate

    def rate(self, instructions: Numbers, per_cycle: float) -> Numbers:
        """Return the cycles of so many instructions a warp at a thread-level rate."""
        return self.warps * instructions * (WARP / per_cycle)

    def loop_end(self, loop: For) -> Piece:
        extra = FITTED["loop"]
        cycles = {
            "issue": self.issue(extra),
            "int": self.rate(extra, self.device.int_per_cycle_per_sm),
        }
        return Piece(f"loop {loop.var}", "do", (), "", "issue", cycles)

    def piece(self, do: Do, around: tuple[For, ...]) -> Piece:
        """Return the work of one statement by its unit: one rule a unit."""
        device = self.device
        count: Numbers = 1
        for extent in do.values:
            count = count * extent
        unit, cycles, latency = do.instruction.unit, {}, 0.0
        narrow = {a.buffer.dtype for a in do.accesses}
        match unit:
            case "fma":
                wide = do.write.buffer.dtype == "f64"
                run = do.values[0] if do.values else 1
                if wide:
                    cycles["fp64"] = self.rate(count, device.fma_f64_per_cycle_per_sm)
                    latency = device.fma_f64_latency_cycles
                else:
                    reads = 1 + FITTED["fma_operands"] * (1 + 8 / run) / 2
                    cycles["fma"] = self.rate(count * reads, device.fma_f32_per_cycle_per_sm)
                    latency = device.fma_latency_cycles
            case "cvt":
                per_cycle = (
                    device.cvt_f64_per_cycle_per_sm
                    if "f64" in narrow
                    else device.cvt_16_per_cycle_per_sm
                )
                cycles["cvt"] = self.rate(count, per_cycle)
                latency = 2 * device.fma_latency_cycles
            case "alu":
                latency = device.fma_latency_cycles
            case "sfu":
                cycles["sfu"] = self.rate(count, device.sfu_per_cycle_per_sm)
                latency = 4 * device.fma_latency_cycles
            case "shuffle":
                cycles["shuffle"] = self.rate(count, device.shuffle_per_cycle_per_sm)
                latency = device.smem_latency_cycles
            case "lsu":
                return self.move(do, count, around)
            case "barrier":
                pass
            case _:
                assert_never(unit)
        cycles["issue"] = self.issue(count)
        return self.finish(do, unit, cycles, latency)

    def finish(self, do: Do, unit: str, cycles: dict[str, Numbers], latency: Numbers) -> Piece:
        reads = tuple(a.buffer.name for a in do.accesses[:-1])
        kind = "async" if do.instruction.completion == "commit_group" else "do"
        alone = cycles["issue"] / self.issue(1) * FITTED["warp_interval"]
        return Piece(str(do), kind, reads, do.write.buffer.name, unit, cycles, latency, alone)

    def move(self, do: Do, count: Numbers, around: tuple[For, ...]) -> Piece:
        """Return the work of a load or store: wavefronts, lines, index arithmetic, guards."""
        device = self.device
        cycles: dict[str, Numbers] = {}
        requests = count / do.vector
        extra: Numbers = 0.0
        latency: Numbers = 0.0
        for access in do.accesses:
            level, width = access.buffer.level, access.buffer.type.bytes
            if level == "smem":
                steps = _linear(access, self.values)
                vector = do.vector
                if access is not do.write:
                    vector = merged(access, steps, do.vector, around)
                requests = count / vector
                per = wavefronts(do.threads, steps, width, vector, access.buffer.swizzle)
                cycles["smem"] = self.warps * requests * per
                latency = latency + device.smem_latency_cycles
                bits = access.buffer.swizzle[0]
                extra = extra + select(np.asarray(bits) > 0, FITTED["swizzle"], 0.0) * requests
            elif level == "gmem":
                vector = 1 if do.instruction.atomic else do.vector
                requests = count / vector
                touched, tags = lines(do.threads, _linear(access, self.values), width, vector)
                bandwidth = device.sector_bytes / device.l1_bytes_per_cycle_per_sm
                cycles["l1"] = self.warps * requests * np.maximum(tags, touched * bandwidth)
                extra = extra + self.indices(access) * requests
                if access is not do.write:
                    latency = latency + self.traffic.latency(access, around)
        cycles["issue"] = self.issue(requests + extra)
        if np.any(np.asarray(extra) > 0):
            cycles["int"] = self.rate(extra, device.int_per_cycle_per_sm)
        return self.finish(do, "lsu", cycles, latency)

    def indices(self, access: Access) -> Numbers:
        """Return the integer instructions of one access to gmem: its address and its guards."""
        how = np.asarray(self.program.addressing)
        each = np.select(
            [how == "pointer", how == "i32"],
            [FITTED["index_pointer"], FITTED["index_i32"]],
            FITTED["index_i64"],
        )
        guards: Numbers = 0.0
        for guarded, origin in zip(access.guard, access.origin, strict=False):
            moving = any(not _of_grid(name, self.program) for name, _ in origin.terms)
            cost = FITTED["guard"] if moving else FITTED["guard_fixed"]
            guards = guards + select(np.asarray(guarded) != 0, cost, 0.0)
        return each[()] + guards


def merged(access: Access, steps: tuple[Numbers, ...], vector: Numbers, around: Any) -> Numbers:
    """Return the width at which the assembler reads shared memory.

    Neighbouring reads of an unrolled loop become one of up to 16 B where alignment is plain.
    """
    widest = 16 // access.buffer.type.bytes
    strides = access.buffer.stride
    for loop in around:
        if not loop.unrolled:
            continue
        here: Numbers = False
        for origin, stride in zip(access.origin, strides, strict=True):
            step = steps_of(origin, loop.var)
            here = here | ((np.asarray(step) == vector) & (np.asarray(stride) == 1))
        moves: list[Numbers] = [*strides, *steps]
        for wide in (2, 4, 8):
            if wide > widest:
                break
            fits = here & (np.asarray(loop.trips) * vector >= wide) & (np.asarray(vector) < wide)
            fits = fits & (np.asarray(access.buffer.swizzle[0]) == 0)
            for move in moves:
                fits = fits & ((np.asarray(move) % wide == 0) | (np.asarray(move) == 1))
            vector = select(fits, wide, vector)
    return vector


def _of_grid(name: str, program: Program) -> bool:
    return any(axis.var == name for axis in program.grid)


def _linear(access: Access, values: Mapping[str, Numbers]) -> tuple[Numbers, ...]:
    """Return each thread mode's step in elements, leading dimensions at their values."""
    strides = [values[s] if isinstance(s, str) else s for s in access.buffer.stride]
    return tuple(
        sum((step * s for step, s in zip(steps, strides, strict=True)), 0)
        for steps in access.thread
    )


def steps_of(origin: Affine, name: str) -> Numbers:
    """Return the coefficient of a variable in an index."""
    return sum((c for v, c in origin.terms if v == name and not isinstance(c, str)), 0)


def prod(numbers: tuple[Numbers, ...]) -> Numbers:
    """Return a product of numbers or arrays."""
    return math.prod(numbers) if numbers else 1
