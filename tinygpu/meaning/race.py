"""What memory remembers of its accesses, and the findings that follow.

Who knows what is done is a vector clock for each *agent* (some threads of a CTA that run in step).
Agent g knows of what agent h did at h's time u if ``clock[h] >= u``, and of bytes that landed at
mbarrier b in phase p if ``clock[b] > p``.  What threads of one agent did for themselves, others of
it do not know before they are told, so ``clock[g]`` is g's time when it was told last.

A *use* of a stage on chip is done when its ``done`` says so: at once for a plain instruction, at
the ``wait_group`` of an agent for a product, a store or a cp.async, when the phase that its bytes
belong to is over for a TMA load.  Two uses of a cell, not both reads, of which the second is issued
by a thread that does not know that the first is done, are a *race*, whatever came first in this
execution.  Threads of an agent are told apart by the cells that each touches.  The asynchronous
proxy, besides, needs to know of the fence of who wrote, and to overwrite that of who read; tcgen05
of fences of its own.

>>> cells = Shared(Buffer("tile", "smem", "f32", (4,), (1,), 1, 4), {})
>>> one, other = Party(0), Party(1)
>>> cell = np.array([2])
>>> write = Use(None, one, cell, np.array([7]), writes=True, done=[(0, 5)])      # at its time 5
>>> cells.remember(0, write, [5, 0], None)
>>> read = Use(None, other, cell, np.array([8]), writes=False, done=[(1, 3)])
>>> [cell for _, cell, _ in cells.conflicts(0, read, [4, 2])]     # it knows what came until time 4
[2]
>>> list(cells.conflicts(0, read, [5, 2]))
[]

Source: PTX ISA 9, 8 (memory consistency, proxies); vector clocks: Fidge, Mattern, 1988.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np

from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.memory import DType
from tinygpu.numbers import Array, Booleans, Floats, Integers, Number
from tinygpu.term.program import Buffer, Do

__all__ = [
    "UNWRITTEN",
    "Finding",
    "GlobalArray",
    "Kind",
    "Party",
    "Shared",
    "Stages",
    "Use",
]

Cells = Integers | tuple[Integers, ...]
"""Where in a stage."""
Overlaps = dict[tuple[int, int, bool], tuple[Integers, Integers, int | None]]
"""A cell of two arrays of cells, if there is one, by the arrays and who touches them."""

Kind = Literal[
    "race", "deadlock", "stale", "unwritten_read", "unwritten", "out_of_bounds", "written_twice",
    "written_input", "red_not_zeroed", "shuffle", "unwaited", "misaligned", "wrong_result",
    "unfenced", "aliased", "unbalanced", "exited", "code_differs",
]  # fmt: skip
UNWRITTEN = np.iinfo(np.int64).min
_MANY_USES = 24


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: which statement, which CTA and threads, which cell.

    ``other`` is the earlier statement of a race.  ``message`` says all of it in one line.
    """

    kind: Kind
    statement: str
    message: str
    cta: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    cell: str = ""
    other: str = ""

    def __str__(self) -> str:
        """Return the kind and the message."""
        return f"{self.kind}: {self.message}"


@dataclass(slots=True, eq=False)
class Party:
    """Who uses memory: its column in the clocks, and the times of its fences.

    ``fences``: fence.proxy.async; ``before``: tcgen05.fence::before_thread_sync; ``seen``: what it
    knew at its last tcgen05.fence::after_thread_sync.
    """

    number: int
    fences: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    seen: list[int] | None = None


@dataclass(slots=True, eq=False)
class Use:
    """A use of a stage: ``done`` are columns and the times from which they know of it.

    ``threads``: who touches each cell; None if the agent's threads do it together.  ``pipe``: the
    agent whose tcgen05.mma or, if it ``copies``, cp it is; products are done after what that has
    issued before, copies are not.  ``tensor``: it is of a tcgen05.ld or st.
    """

    do: Do
    agent: Party
    cells: Integers
    threads: Integers | None
    writes: bool
    plain: bool = True
    done: list[tuple[int, int]] = field(default_factory=list)
    pipe: Party | None = None
    copies: bool = False
    tensor: bool = False

    def known(self, clock: Sequence[int]) -> bool:
        """Whether who has this clock knows that it is done."""
        for column, time in self.done:  # noqa: SIM110  (a generator takes twice the time)
            if clock[column] >= time:
                return True
        return False

    def done_for(self, agent: Party) -> bool:
        """Whether an agent has seen the end of it itself."""
        return any(column == agent.number for column, _ in self.done)

    def thread_at(self, cell: int) -> int | None:
        """Return a thread that touches a cell; None if they do it together."""
        return None if self.threads is None else int(self.threads[(self.cells == cell).argmax()])

    def fenced(self, fences: list[int], clock: Sequence[int]) -> bool:
        """Whether who has this clock knows of a fence that the agent has made after it."""
        end = next((t for column, t in self.done if column == self.agent.number), None)
        first = len(fences) if end is None else bisect_left(fences, end)
        return first < len(fences) and clock[self.agent.number] >= fences[first]

    def visible(self, clock: Sequence[int]) -> bool:
        """Whether it is done for the asynchronous proxy of who has this clock."""
        return not self.plain or self.fenced(self.agent.fences, clock)


class Stages:
    """Stages on chip: of each cell the value, and the ring index at which it was written."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Poison every cell."""
        self.value = np.full(shape, np.nan)
        self.index = np.full(shape, UNWRITTEN)

    def put(self, stage: int, at: Cells, values: Number, index: int) -> None:
        """Write cells of a stage, at a ring index."""
        self.value[stage][at], self.index[stage][at] = values, index


class Shared(Stages):
    """A ring in shared or tensor memory of one CTA (of one copy), with the uses of each stage.

    ``overlaps`` remembers which arrays of cells meet; rings of one program may share it.
    ``crossed``: the asynchronous proxy has written there.
    """

    def __init__(self, buffer: Buffer, overlaps: Overlaps) -> None:
        """Poison every cell."""
        self.buffer = buffer
        shape = (int(buffer.stages), int(buffer.stage_elements))
        super().__init__(shape)
        self._overlaps = overlaps
        self._writes: list[dict[int | tuple[int, int], Use]] = [{} for _ in range(shape[0])]
        self._reads: list[dict[int | tuple[int, int], Use]] = [{} for _ in range(shape[0])]
        self._most = [_MANY_USES] * shape[0]
        self.crossed = False

    def uses(self) -> Iterator[Use]:
        """Return the uses that are remembered."""
        for stage in (*self._writes, *self._reads):
            yield from stage.values()

    def conflicts(
        self, stage: int, use: Use, clock: Sequence[int]
    ) -> Iterator[tuple[Use, int, str]]:
        """Yield what conflicts with a use by its agent, which has this clock.

        With each a cell of both, and the fence that is missing ("": nothing says it is done).
        """
        agent = use.agent
        others = list(self._writes[stage].values())
        if use.writes:
            others += self._reads[stage].values()
        for other in others:
            if use.pipe is not None and use.pipe is other.pipe and _in_order(other, use):
                continue
            apart, missing = False, ""
            if other.known(clock) or (other.threads is None and other.done_for(agent)):
                missing = _missing_fence(other, use, clock)
                if not missing:
                    continue
            elif other.agent is agent and use.threads is not None and other.threads is not None:
                apart = other.done_for(agent)  # a thread has seen what it did itself
            cell = self._common(other, use, apart=apart)
            if cell is not None:
                yield other, cell, missing

    def twice(self, use: Use) -> int | None:
        """Return a cell that two threads write, or that they write twice together, or None."""
        return self._common(use, use, apart=True)

    def remember(
        self, stage: int, use: Use, clock: Sequence[int], live: Callable[[], Sequence[int]] | None
    ) -> None:
        """Add a use; forget those that nobody can be in a race with any more.

        Who knows of a use knows of those of the same cells by the same threads before it.
        ``live``: what every agent at work knows.
        """
        writes, reads = self._writes[stage], self._reads[stage]
        self.crossed |= use.writes and not use.plain
        if use.writes and use.cells.size >= int(self.buffer.stage_elements):
            for held in (writes, reads):
                for key in [k for k, u in held.items() if u.known(clock)]:
                    del held[key]
        if live is not None and len(writes) + len(reads) >= self._most[stage]:
            least = live()
            for held in (writes, reads):
                done = held is reads and not self.crossed
                for key in [
                    k for k, u in held.items() if u.known(least) and (done or u.visible(least))
                ]:
                    del held[key]
            self._most[stage] = max(_MANY_USES, 2 * (len(writes) + len(reads)))
        name = id(use) if use.pipe else (id(use.cells), use.agent.number)
        (writes if use.writes else reads)[name] = use

    def _common(self, one: Use, other: Use, *, apart: bool) -> int | None:
        """Return a cell of both, or None; ``apart``: that different threads touch."""
        key = (id(one.cells), id(other.cells), apart)
        if key not in self._overlaps:  # the arrays stay there, so that their names do
            found = self._meeting(one, other, apart=apart)
            self._overlaps[key] = (one.cells, other.cells, found)
        return self._overlaps[key][2]

    def _meeting(self, one: Use, other: Use, *, apart: bool) -> int | None:
        size = self.value.shape[1]
        if apart and one.threads is not None and other.threads is not None:
            low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
            np.minimum.at(low, one.cells, one.threads)
            np.maximum.at(high, one.cells, one.threads)
            low, high = low[other.cells], high[other.cells]
            hit = (high >= 0) & ((low != other.threads) | (high != other.threads))
        else:
            times = np.bincount(one.cells, minlength=size)
            hit = times[other.cells] > (1 if apart else 0)
        return int(other.cells[hit.argmax()]) if hit.any() else None


def _in_order(other: Use, use: Use) -> bool:
    """Whether a thread's product is done after what it issued before: copies, the same sums."""
    return not use.copies and (other.copies or (other.writes and use.writes))


def _missing_fence(other: Use, use: Use, clock: Sequence[int]) -> str:
    """Return which fence is missing between two uses of which the first is done, if any."""
    agent = use.agent
    own = other.agent is agent and (other.plain or other.tensor)  # done in program order
    if other.tensor and not own and not other.fenced(other.agent.before, clock):
        return "tcgen05.fence::before_thread_sync behind that, before telling others"
    late = use.tensor or use.pipe is not None
    if late and not own and (agent.seen is None or not other.known(agent.seen)):
        return "tcgen05.fence::after_thread_sync before this, after waiting"
    if not use.plain and not other.visible(clock):
        return "fence.proxy.async after that, before the barrier"
    return ""


class GlobalArray:
    """An operand in global memory: its values in float64, and who stored or added to each cell.

    ``zeroed``: the output is cleared before the launch; else it is poisoned with NaN.  Threads are
    numbered through the whole grid; nothing orders those that touch the same cell.
    """

    def __init__(
        self,
        values: Array,
        dtype: DType,
        *,
        output: bool,
        zeroed: bool,
        algebra: Algebra = FLOATS,
    ) -> None:
        """Hold ``values``, which are of ``dtype`` already."""
        self.shape, self.dtype, self.output, self.zeroed = values.shape, dtype, output, zeroed
        self.algebra = algebra
        self.flat = values.astype(np.float64).ravel()
        self.stored = np.zeros(self.flat.size, np.bool_)
        self.added = np.zeros(self.flat.size, np.bool_)
        self._writer = np.full(self.flat.size, -1)

    @property
    def written(self) -> Booleans:
        """Which cells were stored or added to."""
        return self.stored | self.added

    def unseen(self, address: Integers, thread: Integers) -> tuple[Kind, int] | None:
        """Return why a read of these cells of the output may not see their values, and which."""
        for kind, bad in (
            ("unwritten_read", ~self.written[address]),
            ("race", self._writer[address] != thread),
        ):
            if bad.any():
                return cast("Kind", kind), int(bad.argmax())
        return None

    def store(self, address: Integers, values: Floats, thread: Integers) -> int | None:
        """Write; return the position of an element that was written before, or None."""
        bad = self.written[address]
        self.flat[address], self.stored[address] = values, True
        self._writer[address] = thread
        if bad.any():
            return int(bad.argmax())
        _, first = np.unique(address, return_index=True)
        if first.size == address.size:
            return None
        return int(np.setdiff1d(np.arange(address.size), first)[0])

    def add(self, address: Integers, values: Floats, thread: Integers) -> int | None:
        """Add, rounding each sum; return the position of an element that was stored, or None."""
        bad = self.stored[address]
        left = np.arange(address.size)
        while left.size:
            _, first = np.unique(address[left], return_index=True)
            now = left[first]
            total = self.algebra.operators["add"](self.flat[address[now]], values[now])
            self.flat[address[now]] = self.algebra.round(self.dtype, total)
            left = np.delete(left, first)
        self.added[address] = True
        self._writer[address] = thread
        return int(bad.argmax()) if bad.any() else None
