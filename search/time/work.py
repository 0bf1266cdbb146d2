"""Work: what each statement of a term asks of each unit of an SM.

``account(program, launch, sizes)`` walks the term once and returns a tree of the same shape: a
``Work`` for a statement, a ``Repeat`` for a loop.  A piece says for how many cycles of an SM one
warp's doing of the statement keeps each *unit* busy, and after how many cycles its result can be
used.  Numbers may be arrays over the decisions of a space; each depends on few of them.

Units: ``issue`` (the schedulers' slots), ``fma``, ``fp64``, ``int``, ``cvt``, ``sfu``, ``shuffle``,
``smem`` (wavefronts of shared memory, or what it returns) and ``l1`` (lines of global memory),
which are stages of one load/store pipe, and ``tensor`` (what warps multiply together).

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np

from tinygpu.devices.device import adds_vectors
from tinygpu.errors import ProgramError
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.pattern import lines, wavefronts
from tinygpu.search.time.traffic import GridLaunch, latency_of
from tinygpu.search.time.warps import AT_ONCE, MMA_LATENCY_CYCLES, MMA_VALUES, matrices, mma_cycles
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    select,
)

__all__ = ["UNITS", "Repeat", "Tree", "Work", "account", "mapped", "returned"]

UNITS = ("issue", "fma", "fp64", "int", "cvt", "sfu", "shuffle", "smem", "l1", "tensor")
Numbers = Any
WARP = 32
RETURNED_BYTES_PER_CYCLE = 256  # fitted: from shared memory to registers of an SM (fit_runs.json)


@dataclass(frozen=True, slots=True)
class Work:
    """One statement (None: a loop's end): one warp's cycles of each unit, its result's latency.

    ``count`` instructions, each of which takes ``each[unit]`` cycles: their product is kept apart
    until it is needed, for over a space it depends on more decisions than either.
    """

    statement: Statement | None
    kind: str
    reads: tuple[str, ...]
    write: str
    unit: str
    count: Numbers
    each: Mapping[str, Numbers]
    latency: Numbers = 0
    pending: Numbers = 0

    def cycles(self) -> dict[str, Numbers]:
        """Return the cycles of each unit."""
        return {unit: self.count * cycles for unit, cycles in self.each.items()}


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop from ``start``; ``rolled`` ones start each iteration after the last one's issues."""

    var: str
    trips: Numbers
    body: tuple[Work | Repeat, ...]
    rolled: bool
    start: Numbers = 0


Tree = tuple[Work | Repeat, ...]


def account(program: Program, launch: GridLaunch, sizes: Mapping[str, int]) -> Tree:
    """Return the work of the first role, statement by statement."""
    return _Accountant(program, launch, sizes).body(program.roles[0].body, ())


def mapped(tree: Tree, low: Callable[[Any], Any], high: Callable[[Any], Any]) -> Tree:
    """Apply ``low`` to every number that costs time, ``high`` to those that save it."""
    return tuple(
        replace(
            node,
            count=low(node.count),
            each={u: low(c) for u, c in node.each.items()},
            latency=low(node.latency),
            pending=high(node.pending),
        )
        if isinstance(node, Work)
        else replace(node, trips=low(node.trips), body=mapped(node.body, low, high))
        for node in tree
    )


class _Accountant:
    def __init__(self, program: Program, launch: GridLaunch, sizes: Mapping[str, int]) -> None:
        self.program, self.launch, self.device = program, launch, launch.device
        self.values = program.parameter_values(sizes)
        self.runs: dict[str, tuple[tuple[Numbers, ...], Numbers]] = {}  # of loads to registers

    def body(self, body: tuple[Statement, ...], around: tuple[For, ...]) -> Tree:
        found: list[Work | Repeat] = []
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
                    rolled = not statement.unrolled
                    found.append(Repeat(statement.var, trips, inner, rolled, statement.start))
                case When():
                    found += self.body(statement.body, around)
                case Sync():
                    found.append(self.plain(statement, "sync"))
                case Commit():
                    found.append(self.plain(statement, "commit"))
                case WaitGroup(pending):
                    piece = self.plain(statement, "wait")
                    found.append(replace(piece, pending=pending))
                case Exit():
                    found.append(self.plain(statement, "do"))
                case Wait() | Arrive() | Fence() | ForTile() | Elect():
                    raise ProgramError(
                        f"program {self.program.name}: {type(statement).__name__} is not timed "
                        "statement by statement; search.time.cost.cost times the whole program"
                    )
                case _:
                    assert_never(statement)
        return tuple(found)

    def number(self, number: int | str) -> Numbers:
        return self.values[number] if isinstance(number, str) else number

    def plain(self, statement: Statement, kind: str) -> Work:
        latency = self.device.barrier_latency_cycles if kind == "sync" else 0
        return Work(statement, kind, (), "", "issue", 1, {"issue": self.issue(1)}, latency)

    def issue(self, instructions: Numbers) -> Numbers:
        """Return the cycles in which the schedulers issue a warp's instructions."""
        return instructions / (
            self.device.warp_schedulers_per_sm * self.device.issue_per_cycle_per_scheduler
        )

    def loop_end(self, loop: For) -> Work:
        each = {"issue": self.issue(1), "int": WARP / self.device.int_per_cycle_per_sm}
        return Work(None, "do", (), "", "issue", FITTED["loop"], each)

    def piece(self, do: Do, around: tuple[For, ...]) -> Work:
        """Return the work of one statement by its unit: one rule a unit."""
        device = self.device
        count: Numbers = 1
        for extent in do.values:
            count = count * extent
        each: dict[str, Numbers] = {"issue": self.issue(1)}
        latency = 0.0
        types = {a.buffer.dtype for a in do.accesses}
        match do.instruction.unit:
            case "fma" if do.write.buffer.dtype == "f64":
                each["fp64"] = WARP / device.fma_f64_per_cycle_per_sm
                latency = device.fma_f64_latency_cycles
            case "fma":
                run = do.values[0] if do.values else 1
                reads = 1 + FITTED["fma_operands"] * (1 + 8 / run) / 2 + self.apart(do)
                each["fma"] = reads * (WARP / device.fma_f32_per_cycle_per_sm)
                latency = device.fma_latency_cycles
            case "cvt":
                wide = "f64" in types
                rate = device.cvt_f64_per_cycle_per_sm if wide else device.cvt_16_per_cycle_per_sm
                each["fp64" if wide else "cvt"] = WARP / rate
                latency = 2 * device.fma_latency_cycles
            case "alu":
                latency = device.fma_latency_cycles
            case "sfu":
                each["sfu"] = WARP / device.sfu_per_cycle_per_sm
                latency = 4 * device.fma_latency_cycles
            case "shuffle":
                each["shuffle"] = WARP / device.shuffle_per_cycle_per_sm
                latency = device.smem_latency_cycles
            case "lsu" if do.instruction.name == "ldmatrix":
                count, each["smem"] = matrices(do)
                each["issue"] = self.issue(1 / AT_ONCE)
                latency = device.smem_latency_cycles
            case "lsu":
                return self.move(do, count, around)
            case "tensor" if do.instruction.issuer == "warp":
                count = count / MMA_VALUES
                each["tensor"] = mma_cycles(device)
                latency = MMA_LATENCY_CYCLES
            case "barrier":
                pass
            case "tma" | "tensor" | "tmem":
                raise ProgramError(
                    f"program {self.program.name}: {do.instruction.name} is not timed by itself; "
                    "tinygpu.search.time.cost.cost times the whole program, which needs a barrier"
                )
            case unit:
                assert_never(unit)
        return self.finish(do, count, each, latency)

    def apart(self, do: Do) -> Numbers:
        """Return what an FMA loses where operands that follow one another share a register bank.

        A vector's elements stand in neighbouring registers; the FMAs walk across the vectors where
        those run along k.
        """
        lost: Numbers = 0.0
        for read in do.reads:
            if isinstance(read, Access) and read.buffer.name in self.runs:
                along, vector = self.runs[read.buffer.name]
                walked = next((steps for steps in read.value if any(steps)), along)
                if walked != along:
                    lost = lost + select(np.asanyarray(vector) > 1, FITTED["fma_apart"], 0.0)
        return lost

    def finish(self, do: Do, count: Numbers, each: dict[str, Numbers], latency: Numbers) -> Work:
        # of a ring in registers another stage is read than is written: nothing waits for that
        waits = (a.buffer for a in do.accesses[:-1])
        reads = tuple(b.name for b in waits if b.level != "registers" or np.all(b.stages == 1))
        kind = "async" if do.instruction.completion == "commit_group" else "do"
        unit = do.instruction.unit
        return Work(do, kind, reads, do.write.buffer.name, unit, count, each, latency)

    def move(self, do: Do, count: Numbers, around: tuple[For, ...]) -> Work:
        """Return the work of a load or store: wavefronts, lines, index arithmetic, guards."""
        device = self.device
        each: dict[str, Numbers] = {}
        whole = not do.instruction.atomic or adds_vectors(device.arch, do.write.buffer.dtype)
        vector: Numbers = do.vector if whole else 1
        extra: Numbers = 0.0
        latency: Numbers = 0.0
        for access in do.accesses:
            level, width = access.buffer.level, access.buffer.type.bytes
            steps = _linear(access, self.values)
            if level == "smem":
                if access is not do.write:
                    vector = merged(access, steps, do.vector, around)
                swizzle = access.buffer.swizzle
                each["smem"] = wavefronts(do.threads, steps, width, vector, swizzle)
                if access is not do.write:
                    each["smem"] = np.maximum(each["smem"], returned(width, vector))
                latency = latency + device.smem_latency_cycles
                extra = extra + select(np.asanyarray(swizzle[0]) > 0, FITTED["swizzle"], 0.0)
            elif level == "gmem":
                each["l1"] = lines(do.threads, steps, width, vector)
                extra = extra + self.indices(access)
                if access is not do.write:
                    latency = latency + latency_of(access, around, device=device)
                    if do.instruction.completion == "commit_group":
                        latency = latency * FITTED["last_copy"]
        if do.instruction.atomic:
            each["l1"] = FITTED["red"] * WARP * vector
        if do.write.buffer.level == "registers" and do.write.value:
            self.runs[do.write.buffer.name] = do.write.value[0], vector
        each["issue"] = self.issue(1.0 + extra)
        each["int"] = extra * (WARP / device.int_per_cycle_per_sm)
        return self.finish(do, count / vector, each, latency)

    def indices(self, access: Access) -> Numbers:
        """Return the integer instructions of one access to gmem: its address and its guards.

        Of whole tiles that are asked about as such the accesses ask nothing.
        """
        how = np.asanyarray(self.program.addressing)
        wide = select(how == "i32", FITTED["index_i32"], FITTED["index_i64"])
        each = select(how == "pointer", FITTED["index_pointer"], wide)
        known = np.asanyarray(self.program.specialised) != 0
        each = each * select(known, FITTED["index_known"], 1.0)
        guards: Numbers = 0.0
        whole: Numbers = 1.0
        for d, (guarded, origin) in enumerate(zip(access.guard, access.origin, strict=False)):
            moving = any(not _of_grid(name, self.program) for name, _ in origin.terms)
            cost = FITTED["guard"] if moving else FITTED["guard_fixed"]
            guards = guards + select(np.asanyarray(guarded) != 0, cost, 0.0)
            size, tile = self.number(access.buffer.shape[d]), 1
            for _, step in origin.terms:
                tile = tile if isinstance(step, str) else np.maximum(tile, step)
            whole = whole * ((size // tile) / -(-size // tile))
        each_asks = np.asanyarray(self.program.guards) == "each"
        return each + guards * select(each_asks, 1.0, 1.0 - whole)


def returned(width: int, vector: Numbers) -> Numbers:
    """Return the cycles in which a warp's load from shared memory reaches its registers."""
    return WARP * width * vector / RETURNED_BYTES_PER_CYCLE


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
        for origin, stride in zip(access.origin, strides, strict=bool(access.origin)):
            step = steps_of(origin, loop.var)
            here = here | ((step == vector) & (stride == 1))
        if not np.any(here):
            continue
        moves: list[Numbers] = [*strides, *steps]
        for wide in (2, 4, 8):
            if wide > widest:
                break
            fits = here & (loop.trips * vector >= wide) & (vector < wide)
            fits = fits & (access.buffer.swizzle[0] == 0)
            for move in moves:
                fits = fits & ((move % wide == 0) | (move == 1))
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
