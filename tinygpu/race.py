"""What memory remembers of its accesses, and the findings that follow.

Threads of a CTA are ordered by nothing but ``bar.sync``, in which all of them take part.  So a
thread stands in an *epoch*, the number of barriers that it has passed, and two accesses by two
threads are ordered if and only if their epochs differ: this is what vector clocks come to.  Lanes
of a warp are different threads.  A cell of shared memory remembers its last write and two readers
of the last epoch in which it was read; of three or more, two are enough to convict any writer.

A ``cp.async`` writes at some time between its issue and the ``wait_group`` that covers it.  Between
the two its cell is *pending* and belongs to nobody; the wait turns it into a write by that thread,
in the epoch of the wait.  Accesses scheduled before the issue are checked then, those between find
the cell pending, later ones find the write: every pair is checked, whatever the interleaving.

>>> cells = Cells(4)
>>> zero, one = np.array([0]), np.array([1])
>>> cells.write(zero, np.array([7]), 0, 0) is None          # cell 0, thread 7, epoch 0
True
>>> cells.read(zero, np.array([8]), 0, 1)                   # thread 8 in the same epoch
Conflict(position=0, thread=7, node=0)
>>> cells.read(zero, np.array([8]), 1, 1) is None           # and in the next
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from tinygpu.algebra import FLOATS, Algebra
from tinygpu.memory import DType

__all__ = [
    "UNWRITTEN",
    "Cells",
    "Conflict",
    "Finding",
    "GlobalArray",
    "Integers",
    "Kind",
]

Integers = NDArray[np.int64]
Kind = Literal[
    "race",
    "deadlock",
    "stale",
    "unwritten_read",
    "unwritten",
    "out_of_bounds",
    "written_twice",
    "written_input",
    "red_not_zeroed",
    "shuffle",
    "unwaited",
    "misaligned",
    "wrong_result",
    "unfenced",
    "aliased",
    "unbalanced",
    "exited",
]
UNWRITTEN = np.iinfo(np.int64).min


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


@dataclass(frozen=True, slots=True)
class Conflict:
    """Which of the elements given is in a race, and with whom: thread, statement."""

    position: int
    thread: int
    node: int


class Cells:
    """The cells of one shared buffer in one CTA.

    All methods take flat offsets with, for each, the thread that touches it.
    """

    def __init__(self, elements: int) -> None:
        """Poison every cell."""
        self.value = np.full(elements, np.nan)
        self.index = np.full(elements, UNWRITTEN, np.int64)
        self._write_epoch, self._read_epoch = (np.full(elements, -1) for _ in range(2))
        self._writer, self._write_node = (np.full(elements, -1) for _ in range(2))
        self._reader, self._read_node = (np.full((2, elements), -1) for _ in range(2))
        self._pending, self._pending_node = (np.full(elements, -1) for _ in range(2))
        self._flying = 0

    def read(self, offset: Integers, thread: Integers, epoch: int, node: int) -> Conflict | None:
        """Record reads; return the first that races with a write."""
        conflict = self._against_writes(offset, thread, epoch)
        fresh = self._read_epoch[offset] != epoch
        new = offset[fresh]
        self._reader[0, new], self._reader[1, new] = thread[fresh], -1
        self._read_node[0, new], self._read_epoch[new] = node, epoch
        second = self._reader[0, offset] != thread
        self._reader[1, offset[second]] = thread[second]
        self._read_node[1, offset[second]] = node
        return conflict

    def write(self, offset: Integers, thread: Integers, epoch: int, node: int) -> Conflict | None:
        """Record writes; return the first that races with a read or another write."""
        conflict = self._against_all(offset, thread, epoch)
        self._writer[offset], self._write_epoch[offset] = thread, epoch
        self._write_node[offset] = node
        return conflict or self._among_themselves(self._writer, offset, thread, node)

    def issue(self, offset: Integers, thread: Integers, epoch: int, node: int) -> Conflict | None:
        """Record that asynchronous writes may land from now on; return the first that races."""
        conflict = self._against_all(offset, thread, epoch)
        self._pending[offset], self._pending_node[offset] = thread, node
        self._flying += 1
        return conflict or self._among_themselves(self._pending, offset, thread, node)

    def settle(self, offset: Integers, thread: Integers, epoch: int, node: int) -> None:
        """Record that asynchronous writes are done, for ``thread`` and no other, in this epoch."""
        self._pending[offset] = -1
        self._writer[offset], self._write_epoch[offset] = thread, epoch
        self._write_node[offset] = node
        self._flying -= 1

    def _against_writes(self, offset: Integers, thread: Integers, epoch: int) -> Conflict | None:
        bad = (self._write_epoch[offset] == epoch) & (self._writer[offset] != thread)
        if bad.any():
            at = int(bad.argmax())
            cell = offset[at]
            return Conflict(at, int(self._writer[cell]), int(self._write_node[cell]))
        if self._flying and (pending := self._pending[offset] >= 0).any():
            at = int(pending.argmax())
            cell = offset[at]
            return Conflict(at, int(self._pending[cell]), int(self._pending_node[cell]))
        return None

    def _against_all(self, offset: Integers, thread: Integers, epoch: int) -> Conflict | None:
        if conflict := self._against_writes(offset, thread, epoch):
            return conflict
        now = self._read_epoch[offset] == epoch
        for reader, node in zip(self._reader, self._read_node, strict=True):
            bad = now & (reader[offset] != thread) & (reader[offset] >= 0)
            if bad.any():
                at = int(bad.argmax())
                return Conflict(at, int(reader[offset[at]]), int(node[offset[at]]))
        return None

    @staticmethod
    def _among_themselves(
        last: Integers, offset: Integers, thread: Integers, node: int
    ) -> Conflict | None:
        """Two threads of one statement: all but the last to be recorded see another's name."""
        bad = last[offset] != thread
        if not bad.any():
            return None
        at = int(bad.argmax())
        return Conflict(at, int(last[offset[at]]), node)


class GlobalArray:
    """An operand in global memory: its values in float64, and who stored or added to each cell.

    ``zeroed``: the output is cleared before the launch; else it is poisoned with NaN.  Threads are
    numbered through the whole grid; nothing orders those that touch the same cell.
    """

    def __init__(
        self,
        values: NDArray[Any],
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
    def written(self) -> NDArray[np.bool_]:
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

    def store(self, address: Integers, values: NDArray[np.float64], thread: Integers) -> int | None:
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

    def add(self, address: Integers, values: NDArray[np.float64], thread: Integers) -> int | None:
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
