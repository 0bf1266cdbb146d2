"""The last accesses of global memory: what outlives a batch of clusters.

A *party* is an agent of the whole grid, and a *stamp* says who accessed a granule, in which scope
(0: a weak access) and at which step; 0 says that nobody did.  Of weak writes the last one is kept;
of reads and of strong writes the last one, the last of another party than this, and the last of
another CTA.  Reads are only listed until somebody writes, for most arrays are read or written: the
last two million of an array.

>>> grid = Grid(units=4, each=2, cluster=1, width=4)
>>> last = Accesses(grid, granules=2)
>>> for party in (2, 1):
...     last.note("read", np.array([1]), stamps(np.array([party]), 0, step=7))
>>> [kept[1] % 4 for kept in last.kept["read"]]
[np.int64(1), np.int64(2), np.int64(2)]
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from .clocks import EARLIER
from .report import Array
from .run import Cell, Run

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
    """The last accesses of each granule of one allocation."""

    def __init__(self, grid: Grid, granules: int) -> None:
        self.grid, self.granules, self.width = grid, granules, grid.width
        self.kept: dict[str, list[Array]] = {}
        self._listed: deque[tuple[Array, int, Any]] = deque()
        self._many = 0

    def places(self, at: Array, width: int) -> Array:
        """Return the granules of accesses of ``width`` bytes: (n, pieces)."""
        first = at // self.width
        return first[:, None] + np.arange(max(1, width // self.width))

    def list_reads(self, at: Array, width: int, left: Any) -> None:
        """Note reads of ``width`` bytes when that is needed."""
        self._listed.append((at, width, left))
        self._many += at.size
        while self._many > _MOST_LISTED:
            self._many -= self._listed.popleft()[0].size

    def settle(self) -> None:
        """Note the reads that are listed."""
        if self._listed:
            at = [self.places(at, width) for at, width, _ in self._listed]
            left = [np.broadcast_to(np.reshape(stamp, (-1, 1)), places.shape).reshape(-1)
                    for places, (*_, stamp) in zip(at, self._listed, strict=True)]  # fmt: skip
            places = np.concatenate([p.reshape(-1) for p in at])
            self.note("read", places, np.concatenate(left))
            self._listed.clear()
            self._many = 0

    def note(self, what: str, places: Array, left: Array) -> None:
        """Keep the last accesses, later ones behind earlier ones."""
        if what not in self.kept:
            self.kept[what] = [np.zeros(self.granules, np.int64) for _ in range(3)]
        last, other, far = self.kept[what]
        before = last[places]
        last[places] = left
        now = last[places]
        for stamp in (before, left):
            apart = (stamp != 0) & ((stamp ^ now) & PARTY != 0)
            if not apart.any():
                continue
            other[places[apart]] = stamp[apart]
            apart &= self.grid.about(stamp & PARTY)[0] != self.grid.about(now & PARTY)[0]
            far[places[apart]] = stamp[apart]


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
        self.cells: dict[int, Cell] = {}
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
        party = self._party((EARLIER, 0), "the kernel before", asynchronous=True)
        for start, held in before.accesses.items():
            held.settle()
            wide = held.width // self.width
            mine = self.accesses[start] = Accesses(self, held.granules * wide)
            for what, kept in held.kept.items():
                mine.kept[what] = [np.repeat(np.where(s > 0, party, 0), wide) for s in kept]

    def _party(self, key: tuple[int, int], name: str, *, asynchronous: bool) -> int:
        if key not in self._channels:
            number = self._channels[key] = len(self.names)
            if number == self._about.shape[1]:
                self._about = np.hstack([self._about, self._about])
            self._about[:, number] = key[0] * self.cluster, key[1], asynchronous
            self.names.append(name)
        return self.units + self._channels[key]

    def channel(self, run: Run, domain: int, agent: int) -> int:
        """Return the party that a channel is."""
        key, way = (run.clocks.first + domain, agent), bool(run.clocks.asynchronous[domain, agent])
        return self._party(key, run.name(domain, agent), asynchronous=way)

    def of(self, start: int, size: int) -> Accesses:
        """Return the accesses of the allocation that begins at an address."""
        if start not in self.accesses:
            self.accesses[start] = Accesses(self, -(-size // self.width))
        return self.accesses[start]
