"""One statement at work: a ``Do`` by some threads of a CTA, on NumPy arrays.

An *agent* is one warp or more that run in step: a set of threads, their registers, their copies in
flight and the statements that they have still to do.  NumPy works on all threads and values of a
``Do`` at once, shape (values, threads); where a value reads a register that an earlier one writes,
the statement is cut there, since values are taken in order.

Every cell on chip holds, beside its value, the ring index at which it was written.  What a read
finds there is compared with the index that it asks for: another one is *stale*, none is unwritten.
Numbers are held in float64 and rounded to the type of the buffer after every instruction.

A ``cp.async`` reads at its issue and lands at once, at the wait that covers it, or in between.

Source: ``docs/model.md``, section "Terms"; PTX ISA 9.0, 9.7.9.25 (cp.async), 9.7.13 (bar.sync).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from tinygpu.algebra import FLOATS, Algebra
from tinygpu.memory import DType
from tinygpu.program import (
    Access,
    Buffer,
    Commit,
    Do,
    Exit,
    Immediate,
    Program,
    Scalar,
    Statement,
    Sync,
    WaitGroup,
)
from tinygpu.race import UNWRITTEN, Cells, Conflict, Finding, GlobalArray, Integers, Kind
from tinygpu.touched import Touched, Toucher, extent
from tinygpu.warp_matrix import products

__all__ = ["Agent", "Copy", "Cta", "Landing", "Run", "Step", "execute"]

Landing = Literal["late", "random", "early"]
Step = tuple[Do | Exit | Sync | Commit | WaitGroup, Mapping[str, int]]
Values = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Run:
    """One interpretation: the program, its arrays, and what was found, first of each kind."""

    program: Program
    values: Mapping[str, int]
    scalars: Mapping[str, float]
    arrays: Mapping[str, GlobalArray]
    touch: Toucher
    random: np.random.Generator
    landing: Landing
    algebra: Algebra = FLOATS
    found: dict[Kind, Finding] = field(default_factory=dict)
    statements: list[Do] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    cuts: dict[tuple[object, ...], list[int]] = field(default_factory=dict)

    def number(self, do: Do) -> int:
        """Return a statement's number: what cells remember of who touched them."""
        if id(do) not in self.numbers:
            self.numbers[id(do)] = len(self.statements)
            self.statements.append(do)
        return self.numbers[id(do)]

    def given(self, source: Immediate | Scalar, dtype: DType) -> Values:
        """Return a constant or an argument of the kernel, as it is in a register of a type."""
        match source:
            case Immediate(number):
                element = self.algebra.number(number)
            case Scalar(name, True):
                element = self.algebra.number(self.values[name])
            case Scalar(name):
                element = self.scalars[name]
            case _:
                assert_never(source)
        rounded: Values = self.algebra.round(dtype, np.array(element)).astype(np.float64)
        return rounded


@dataclass(slots=True, eq=False)
class Copy:
    """A cp.async in flight: flat cells, threads and values."""

    do: Do
    cells: Cells
    offset: Integers
    thread: Integers
    value: Values
    index: int
    landed: bool = False

    def land(self) -> None:
        """Write what was read."""
        if not self.landed:
            self.cells.value[self.offset], self.cells.index[self.offset] = self.value, self.index
            self.landed = True


@dataclass(slots=True, eq=False)
class Agent:
    """Threads that run in step; ``start`` is their role's first thread."""

    threads: Integers
    start: int
    steps: Iterator[Step]
    held: dict[str, Values]
    index: dict[str, Integers]
    copies: list[Copy] = field(default_factory=list)
    groups: list[list[Copy]] = field(default_factory=list)
    at: Sync | None = None
    done: bool = False
    key: bytes = b""

    def __post_init__(self) -> None:
        """Name the set of threads."""
        self.key = self.threads.tobytes()

    def keep(self, alive: NDArray[np.bool_]) -> None:
        """Let the other threads leave."""
        self.threads = self.threads[alive]
        self.key = self.threads.tobytes()
        self.held = {n: a[:, alive] for n, a in self.held.items()}
        self.index = {n: a[:, alive] for n, a in self.index.items()}


@dataclass(slots=True, eq=False)
class Cta:
    """A CTA: its place in the grid, its shared memory, its agents, the barriers it has passed."""

    run: Run
    place: tuple[int, ...]
    first_thread: int
    smem: dict[str, Cells]
    agents: list[Agent]
    epoch: int = 0

    def find(
        self, kind: Kind, s: Statement, thread: int, text: str, cell: str = "", other: str = ""
    ) -> None:
        """Record a finding unless there is one of this kind."""
        head = f"{self.run.program.name}, CTA {self.place}, thread {thread}: {s}"
        finding = Finding(kind, str(s), f"{head} {text}", self.place, (thread,), cell, other)
        self.run.found.setdefault(kind, finding)


def execute(cta: Cta, agent: Agent, do: Do, env: Mapping[str, int]) -> None:
    """Execute a Do by an agent's threads, at the loop variables' values ``env``."""
    threads, mine, key = agent.threads, np.arange(agent.threads.size), agent.key
    if do.lanes is not None:
        below, period, residue = do.lanes
        mine = np.flatnonzero((threads - agent.start) // below % period == residue)
        threads = threads[mine]
        key += bytes(str(do.lanes), "ascii")
    if threads.size and extent(do.values):
        part = _Part(cta, agent, do, env, threads, mine, key)
        for low, high in pairwise(part.cuts()):
            part.execute(low, high)


@dataclass(slots=True, eq=False)
class _Part:
    """A Do by some threads of an agent: ``mine`` are their positions in it."""

    cta: Cta
    agent: Agent
    do: Do
    env: Mapping[str, int]
    threads: Integers
    mine: Integers
    key: bytes

    def cuts(self) -> list[int]:
        """Return where the values have to be cut: before a read of what the same part writes."""
        do, size = self.do, extent(self.do.values)
        same = [
            r
            for r in do.reads
            if isinstance(r, Access)
            and r.buffer.level == "registers"
            and r.buffer.name == do.write.buffer.name
        ]
        together = do.instruction.name == "mma.sync"
        if not same or do.write.buffer.level != "registers" or together:
            return [0, size]
        columns = [self._columns(access) for access in (do.write, *same)]
        known = (id(do), *(tuple(c[[0, -1]].tolist()) for c in columns))
        if known not in self.cta.run.cuts:
            edges, written = [0], set[int]()
            for v, (target, *sources) in enumerate(
                zip(*(c.tolist() for c in columns), strict=True)
            ):
                if not written.isdisjoint(sources):
                    edges.append(v)
                    written = set()
                written.add(target)
            self.cta.run.cuts[known] = [*edges, size]
        return self.cta.run.cuts[known]

    def execute(self, low: int, high: int) -> None:
        """Read, compute, round and write the values from ``low`` to ``high``."""
        do, algebra = self.do, self.cta.run.algebra
        arguments = [self._read(r, low, high) for r in do.reads]
        if do.instruction.name == "mma.sync":
            each = 4 // do.accesses[0].buffer.type.bytes
            result = products(do.values, *arguments, each=each, algebra=algebra)
        else:
            name = do.variant or do.instruction.name
            result = do.instruction.semantics(name, *arguments, algebra=algebra)
        rounded = algebra.round(do.write.buffer.type, np.asarray(result)).astype(np.float64)
        if do.instruction.unit == "shuffle":
            rounded = self._shuffled(rounded)
        self._write(np.broadcast_to(rounded, (high - low, self.threads.size)), low, high)

    def _read(self, source: Access | Immediate | Scalar, low: int, high: int) -> Any:
        match source:
            case Immediate() | Scalar():
                return self.cta.run.given(source, self.do.write.buffer.type)
            case Access():
                if source.buffer.level == "registers":
                    return self._from_registers(source, low, high)
                if source.buffer.level == "smem":
                    return self._from_smem(source)
                return self._from_gmem(source)
            case _:
                assert_never(source)

    def _columns(self, access: Access) -> Integers:
        """Return the register of each value."""
        numbers = self.threads - self.agent.start
        touched = self.cta.run.touch.on_chip(self.do, access, numbers, self.key, self.env)
        self._faults(touched)
        stage = access.index.evaluate(self.env) % int(access.buffer.stages)
        columns: Integers = touched.cell[:, 0] + stage * int(access.buffer.stage_elements)
        return columns

    def _from_registers(self, access: Access, low: int, high: int) -> Values:
        columns, name = self._columns(access)[low:high], access.buffer.name
        whole = self.mine.size == self.agent.threads.size
        where: Any = columns if whole else np.ix_(columns, self.mine)
        index = self.agent.index[name][where]
        bad = index != access.index.evaluate(self.env)
        if bad.any():
            value, thread = np.unravel_index(int(bad.argmax()), bad.shape)
            self._stale(access, int(index[value, thread]), int(columns[value]), int(thread))
        held: Values = self.agent.held[name][where]
        return held

    def _from_smem(self, access: Access) -> Values:
        touched, cells, thread = self._smem(access)
        offset = self._offset(access, touched)
        self._race(access, cells.read(offset, thread, self.cta.epoch, self._node()), offset, thread)
        index = cells.index[offset]
        bad = index != access.index.evaluate(self.env)
        if bad.any():
            at = int(bad.argmax())
            position = int(np.searchsorted(self.threads, thread[at]))
            self._stale(access, int(index[at]), int(offset[at]), position)
        return _scatter(cells.value[offset], touched, np.nan)

    def _from_gmem(self, access: Access) -> Values:
        touched, array = self._gmem(access), self.cta.run.arrays[access.buffer.name]
        address = touched.cell[touched.taken]
        if array.output and (seen := array.unseen(address, self._grid_threads(touched))):
            kind, at = seen
            text = "reads of the output what another thread writes, or none; keep it in registers"
            thread = int(self._threads_of(touched)[at])
            self.cta.find(kind, self.do, thread, text, f"{access.buffer.name}[{address[at]}]")
        outside = self.cta.run.algebra.number(access.outside)
        return _scatter(array.flat[address], touched, outside)

    def _write(self, values: Values, low: int, high: int) -> None:
        access = self.do.write
        index = access.index.evaluate(self.env)
        if access.buffer.level == "registers":
            columns = self._columns(access)[low:high]
            where = np.ix_(columns, self.mine)
            if self.mine.size == self.agent.threads.size:
                self.agent.held[access.buffer.name][columns] = values
                self.agent.index[access.buffer.name][columns] = index
            else:
                self.agent.held[access.buffer.name][where] = values
                self.agent.index[access.buffer.name][where] = index
        elif access.buffer.level == "smem":
            self._to_smem(access, values, index)
        else:
            self._to_gmem(access, values)

    def _to_smem(self, access: Access, values: Values, index: int) -> None:
        touched, cells, thread = self._smem(access)
        offset, kept = self._offset(access, touched), values[touched.taken]
        if self.do.instruction.completion == "commit_group":
            conflict = cells.issue(offset, thread, self.cta.epoch, self._node())
            copy = Copy(self.do, cells, offset, thread, kept, index)
            if self.cta.run.landing == "early":
                copy.land()
            self.agent.copies.append(copy)
        else:
            conflict = cells.write(offset, thread, self.cta.epoch, self._node())
            cells.value[offset], cells.index[offset] = kept, index
        self._race(access, conflict, offset, thread)

    def _to_gmem(self, access: Access, values: Values) -> None:
        touched, array = self._gmem(access), self.cta.run.arrays[access.buffer.name]
        address, kept = touched.cell[touched.taken], values[touched.taken]
        if not address.size:
            return
        threads = self._threads_of(touched)
        if not array.output:
            text = f"writes the input {access.buffer.name}; write the output"
            self.cta.find("written_input", self.do, int(threads[0]), text)
            return
        numbers = self._grid_threads(touched)
        if self.do.instruction.atomic:
            if not array.zeroed:
                text = "adds to an output that nobody cleared; set zeroed"
                self.cta.find("red_not_zeroed", self.do, int(threads[0]), text)
            again = array.add(address, kept, numbers)
        else:
            again = array.store(address, kept, numbers)
        if again is not None:
            cell = f"{access.buffer.name}[{address[again]}]"
            text = f"writes {cell}, which is written already; let one thread store it, or all add"
            self.cta.find("written_twice", self.do, int(threads[again]), text, cell)

    def _shuffled(self, values: Values) -> Values:
        """Return the values of the lanes whose number differs by ``across``."""
        partner = self.threads ^ int(self.do.across)
        at = np.searchsorted(self.threads, partner).clip(0, self.threads.size - 1)
        lost = (self.threads[at] != partner) | (partner // 32 != self.threads // 32)
        if lost.any():
            thread, other = (int(x[lost.argmax()]) for x in (self.threads, partner))
            text = f"reads thread {other}, which is not there; let all lanes of a warp take part"
            self.cta.find("shuffle", self.do, thread, text)
        return np.where(lost, np.nan, np.broadcast_to(values, (len(values), at.size))[:, at])

    def _node(self) -> int:
        return self.cta.run.number(self.do)

    def _smem(self, access: Access) -> tuple[Touched, Cells, Integers]:
        numbers = self.threads - self.agent.start
        touched = self.cta.run.touch.on_chip(self.do, access, numbers, self.key, self.env)
        self._faults(touched)
        return touched, self.cta.smem[access.buffer.name], self._threads_of(touched)

    def _gmem(self, access: Access) -> Touched:
        numbers = self.threads - self.agent.start
        touched = self.cta.run.touch.gmem(self.do, access, numbers, self.key, self.env)
        self._faults(touched)
        return touched

    def _offset(self, access: Access, touched: Touched) -> Integers:
        buffer: Buffer = access.buffer
        stage = access.index.evaluate(self.env) % int(buffer.stages)
        offset: Integers = touched.cell[touched.taken] + stage * int(buffer.stage_elements)
        return offset

    def _threads_of(self, touched: Touched) -> Integers:
        threads: Integers = np.broadcast_to(self.threads, touched.cell.shape)[touched.taken]
        return threads

    def _grid_threads(self, touched: Touched) -> Integers:
        return self._threads_of(touched) + self.cta.first_thread

    def _faults(self, touched: Touched) -> None:
        for fault in touched.faults:
            thread = fault.thread + self.agent.start
            self.cta.find(fault.kind, self.do, thread, fault.text, fault.cell)

    def _stale(self, access: Access, found: int, cell: int, position: int) -> None:
        want, name = access.index.evaluate(self.env), f"{access.buffer.name}[{cell}]"
        thread = int(self.threads[position])
        if found == UNWRITTEN:
            text = f"reads {name} at index {want}, which nobody has written; write it before"
            self.cta.find("unwritten_read", self.do, thread, text, name)
        else:
            text = f"reads {name} at index {want}, but there is {found}; add a stage or wait"
            self.cta.find("stale", self.do, thread, text, name)

    def _race(
        self, access: Access, conflict: Conflict | None, offset: Integers, thread: Integers
    ) -> None:
        if conflict is None:
            return
        mine, other = int(thread[conflict.position]), self.cta.run.statements[conflict.node]
        cell = f"{access.buffer.name}[{int(offset[conflict.position])}]"
        kind: Kind = "race"
        text = f"touches {cell}, as thread {conflict.thread} does: {other}; put bar.sync between"
        if mine == conflict.thread and other.instruction.completion == "commit_group":
            kind = "unwaited"
            text = f"touches {cell}, where its own copy may be in flight: {other}; wait for it"
        self.cta.find(kind, self.do, mine, text, cell, str(other))


def _scatter(values: Values, touched: Touched, default: float) -> Values:
    """Put values where they were taken."""
    if touched.every:
        return values.reshape(touched.cell.shape)
    result = np.full(touched.cell.shape, default)
    result[touched.taken] = values
    return result
