"""The last accesses of each granule of a memory: what the rules of races are asked about.

A *stamp* says which *party* accessed a granule, in which scope (0: a weak access) and at which
step; 0 says that nobody did.  In global memory a party is an agent of the whole grid; of weak
writes the last one is kept, of reads and of strong writes the last one, the last of another party
than this, and the last of another CTA.  In shared memory a party is an agent of the cluster; the
last read of each is kept, and the first write.  Reads are only listed until somebody writes, for
most memory is read or written: of global memory the last two million of an array.

>>> grid = Grid(units=4, each=2, cluster=1, width=4)
>>> last = Accesses(grid, granules=2, width=4)
>>> for party in (2, 1):
...     last.note("read", np.array([1]), stamps(np.array([party]), 0, step=7))
>>> (last.kept["read"][:, 1] % 4).tolist()
[1, 2, 2]
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from .clocks import EARLIER
from .report import Array

__all__ = ["PARTY", "Accesses", "Grid", "scope_in", "stamps", "step_in"]

_PARTY_BITS, _SCOPE_BITS = 28, 2
PARTY = (1 << _PARTY_BITS) - 1
_MOST_LISTED = 1 << 21


def stamps(parties: Any, scope: int, *, step: int) -> Any:
    """Return what parties leave behind."""
    return parties + (((step << _SCOPE_BITS) + scope) << _PARTY_BITS)


def scope_in(stamp: Any) -> Any:
    """Return the scope of an access."""
    return stamp >> _PARTY_BITS & (1 << _SCOPE_BITS) - 1


def step_in(stamp: Any) -> Any:
    """Return the step of an access."""
    return stamp >> _PARTY_BITS + _SCOPE_BITS


class Accesses:
    """The last accesses of each granule of an allocation, or (no ``grid``) of shared memory.

    ``kept`` has the stamps by what was done: (which of the last, granules).
    """

    def __init__(self, grid: Grid | None, granules: int, width: int) -> None:
        self.grid, self.granules, self.width = grid, granules, width
        self.kept: dict[str, Array] = {}
        self._did: dict[str, Array] = {}
        self.listed: deque[tuple[Array, int, Any]] = deque()
        self._many = 0

    def places(self, at: Array, width: int) -> Array:
        """Return the granules of accesses of ``width`` bytes: (n, pieces)."""
        pieces = np.arange(max(1, width // self.width))
        return (at // self.width + pieces[:, None]).T  # the long way inside, which is faster

    def last(self, what: str, places: Array) -> Array:
        """Return the stamps of all that are kept: (which of the last, *places)."""
        if what == "read" and self.grid is None:
            who = np.flatnonzero(self._did[what])
            return np.asarray(self.kept[what][who.reshape(-1, *(1,) * places.ndim), places])
        return np.asarray(self.kept[what][:, places])

    def first(self, places: Array) -> Array:
        """Return the stamps of the first writes of shared memory."""
        return np.asarray(self._slots("first", 1)[0, places])

    def did(self, what: str, agents: int) -> Array:
        """Return which of so many agents of a cluster did so."""
        held = self._did.setdefault(what, np.zeros(agents, bool))
        if len(held) < agents:
            held = self._did[what] = np.pad(held, (0, agents - len(held)))
        return held

    def list_reads(self, at: Array, width: int, left: Any) -> None:
        """Note reads of ``width`` bytes when that is needed."""
        self.listed.append((at, width, left))
        self._many += at.size
        if self._many > _MOST_LISTED and self.grid is None:
            self.settle()
        while self._many > _MOST_LISTED:
            self._many -= self.listed.popleft()[0].size

    def forget(self, step: int) -> None:
        """Drop the listed reads up to a step."""
        while self.listed and np.max(step_in(self.listed[0][2])) <= step:
            self._many -= self.listed.popleft()[0].size

    def settle(self) -> None:
        """Note the reads that are listed."""
        if self.listed:
            at = [self.places(at, width) for at, width, _ in self.listed]
            left = [np.broadcast_to(np.reshape(stamp, (-1, 1)), places.shape).reshape(-1)
                    for places, (*_, stamp) in zip(at, self.listed, strict=True)]  # fmt: skip
            places = np.concatenate([p.reshape(-1) for p in at])
            self.note("read", places, np.concatenate(left))
            self.listed.clear()
            self._many = 0

    def _slots(self, what: str, slots: int) -> Array:
        """Return the stamps of accesses, of which so many are kept; made, or more, when needed."""
        held = self.kept.get(what)
        if held is None or len(held) < slots:
            more = self.kept[what] = np.zeros((slots, self.granules), np.int64)
            if held is not None:  # other rows are untouched, and take no memory
                who = np.flatnonzero(self._did[what][: len(held)])
                more[0], more[who] = held[0], held[who]
        return self.kept[what]

    def note(self, what: str, places: Array, left: Array) -> None:
        """Keep the last accesses, later ones behind earlier ones."""
        if what == "write":
            self._slots(what, 1)[0, places] = left
            return
        if what == "read" and self.grid is None:  # agent 0 reads nothing: the last of all
            kept = self._slots(what, len(self._did[what]))
            kept[left & PARTY, places] = left
            kept[0, places] = left
            return
        last, other, far = self._slots(what, 3)
        before = last[places]
        last[places] = left
        now = last[places]
        for stamp in (before, left):
            apart = (stamp != 0) & ((stamp ^ now) & PARTY != 0)
            if not apart.any():
                continue
            other[places[apart]] = stamp[apart]
            if self.grid is not None:
                about = self.grid.about
                apart &= about(stamp & PARTY)[0] != about(now & PARTY)[0]
                far[places[apart]] = stamp[apart]

    def note_first(self, places: Array, left: Array) -> None:
        """Keep the first writes."""
        first = self._slots("first", 1)[0]
        fresh = first[places] == 0
        if fresh.any():
            first[places[fresh]] = left[fresh]


class Grid:
    """What all batches of a launch share: who is who, the steps, and what was accessed.

    ``width`` is the least of an access to global memory.  What the kernel ``before`` accessed
    counts as one party's, which no fence of a proxy is needed for.
    """

    def __init__(
        self, units: int, each: int, cluster: int, width: int, before: Grid | None = None
    ) -> None:
        self.units, self.each, self.cluster = units, each, cluster
        self.width: int = min(width, before.width) if before else width
        self.names: list[str] = []
        self.log = [-1]  # so that steps begin with 1
        self.cells: dict[int, Any] = {}  # of scopes.py, by address
        self.accesses: dict[int, Accesses] = {}
        self.maps: dict[int, dict[int, int]] = {}  # who fenced a tensor map, and the stamp
        self._channels: dict[tuple[int, int], int] = {}
        self._about = np.zeros((3, 16), int)
        if before is not None:
            self._follow(before)

    def about(self, parties: Any) -> tuple[Array, Array, Array]:
        """Return of parties their CTA (a cluster's first), agent, and if they are asynchronous."""
        channels, among = parties >= self.units, self.each * self.cluster
        ctas, agents, ways = self._about[:, np.where(channels, parties - self.units, 0)]
        ctas = np.where(channels, ctas, parties // self.each)
        return ctas, np.where(channels, agents, parties % among + 1), channels & (ways > 0)

    def _follow(self, before: Grid) -> None:
        party = self.party((EARLIER, 0), "the kernel before", asynchronous=True)
        for start, held in before.accesses.items():
            held.settle()
            wide = held.width // self.width
            mine = self.accesses[start] = Accesses(self, held.granules * wide, self.width)
            for what, kept in held.kept.items():
                mine.kept[what] = np.repeat(np.where(kept > 0, party, 0), wide, axis=1)

    def party(self, key: tuple[int, int], name: str, *, asynchronous: bool) -> int:
        """Return the party of a channel: a domain's (of the grid) agent."""
        if key not in self._channels:
            number = self._channels[key] = len(self.names)
            if number == self._about.shape[1]:
                self._about = np.hstack([self._about, self._about])
            self._about[:, number] = key[0] * self.cluster, key[1], asynchronous
            self.names.append(name)
        return self.units + self._channels[key]

    def of(self, start: int, size: int) -> Accesses:
        """Return the accesses of the allocation that begins at an address."""
        if start not in self.accesses:
            self.accesses[start] = Accesses(self, -(-size // self.width), self.width)
        return self.accesses[start]
