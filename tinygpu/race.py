"""What memory remembers of its accesses, and the findings that follow.

Threads of a CTA are ordered by nothing but ``bar.sync``, in which all of them take part.  So a thread
stands in an *epoch*, the number of barriers that it has passed, and two accesses by different threads
are ordered if and only if their epochs differ: this is what vector clocks come to.  Lanes of a warp
are different threads.  A cell of shared memory remembers its last write and two readers of the last
epoch in which it was read; of three or more readers two are enough to convict any writer.

A ``cp.async`` writes at some time between its issue and the ``wait_group`` that covers it.  Between the
two its cell is *pending* and belongs to nobody; the wait turns it into a write by that thread in the
epoch of the wait.  Accesses that are scheduled before the issue are checked then, those between find
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
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "UNWRITTEN",
    "Cells",
    "Conflict",
    "Finding",
    "Findings",
    "GlobalArray",
    "Integers",
    "Kind",
    "StopInterpretation",
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
    "wrong_result",
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
        return f"{self.kind}: {self.message}"


class StopInterpretation(Exception):  # noqa: N818 - control flow, not an error
    """Raised to end an interpretation at once."""


class Findings:
    """The first finding of each kind, in the order in which they were met."""

    def __init__(self, *, stop: bool = False) -> None:
        self.stop = stop
        self.first: dict[Kind, Finding] = {}

    def wants(self, kind: Kind) -> bool:
        """Return whether a finding of this kind is new."""
        return kind not in self.first

    def add(self, finding: Finding) -> None:
        """Record it.  Raises StopInterpretation if the first finding is to end the run."""
        self.first.setdefault(finding.kind, finding)
        if self.stop:
            raise StopInterpretation


@dataclass(frozen=True, slots=True)
class Conflict:
    """Which of the elements given is in a race, and with whom: a thread and its statement's number."""

    position: int
    thread: int
    node: int


class Cells:
    """The cells of one shared buffer in one CTA.

    All methods take flat offsets with, for each, the thread that touches it.
    """

    def __init__(self, elements: int) -> None:
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
    """An operand in global memory: its values in float64, and for the output who wrote each cell."""

    def __init__(
        self,
        values: NDArray[Any],
        stride: tuple[int, ...],
        *,
        output: bool = False,
        zeroed: bool = False,
    ) -> None:
        self.shape, self.stride = values.shape, stride
        self.flat = values.astype(np.float64).ravel()
        self.output, self.zeroed = output, zeroed
        self.stored = np.zeros(self.flat.size, np.bool_)
        self.added = np.zeros(self.flat.size, np.bool_)

    def store(self, address: Integers, values: NDArray[np.float64]) -> int | None:
        """Write; return the position of an element that was written before, or None."""
        bad = self.stored[address] | self.added[address]
        self.flat[address], self.stored[address] = values, True
        if bad.any():
            return int(bad.argmax())
        _, first = np.unique(address, return_index=True)
        if first.size == address.size:
            return None
        return int(np.setdiff1d(np.arange(address.size), first)[0])

    def add(self, address: Integers, values: NDArray[np.float64], dtype: np.dtype[Any]) -> int | None:
        """Add, rounding each sum; return the position of an element that was stored, or None."""
        bad = self.stored[address]
        left = np.arange(address.size)
        while left.size:
            _, first = np.unique(address[left], return_index=True)
            now = left[first]
            total = self.flat[address[now]] + values[now]
            self.flat[address[now]] = total.astype(dtype).astype(np.float64)
            left = np.delete(left, first)
        self.added[address] = True
        return int(bad.argmax()) if bad.any() else None
