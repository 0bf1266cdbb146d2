"""Groups of threads, and what they wait for.

A group's threads stand at one instruction; their numbers are sorted, and registers are indexed by a
slice where these have no gap.

>>> group = Group(np.array([32, 33, 34, 70]))
>>> group.size, group.warps, group.where(group.threads < 40).index
(4, 2, slice(32, 35, None))

Source: PTX ISA 9.0, section 3.1 (threads, warps, CTAs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.codegen.emulator.report import Array

__all__ = ["WARP", "WARPGROUP", "Group", "Pending", "Waiter"]

WARP, WARPGROUP = 32, 128


class Group:
    """Threads that stand at one instruction: their sorted numbers, and how registers index them."""

    __slots__ = ("_warps", "index", "size", "threads")

    def __init__(self, threads: Array) -> None:
        self.threads = threads
        self.size = len(threads)
        first, last = int(threads[0]), int(threads[-1])
        self.index: Any = slice(first, last + 1) if last - first + 1 == self.size else threads
        self._warps = 0

    @property
    def warps(self) -> int:
        """How many warps it has a thread of."""
        if not self._warps:
            self._warps = len(self.warp_numbers)
        return self._warps

    @property
    def warp_numbers(self) -> Array:
        """The warps that it has a thread of."""
        warps = self.threads // WARP
        keep = np.ones(self.size, bool)
        keep[1:] = warps[1:] != warps[:-1]
        return warps[keep]

    def where(self, mask: Array) -> Group:
        """Return the part where the mask holds, which must not be empty."""
        return self if mask.all() else Group(self.threads[mask])


@dataclass(slots=True, eq=False)
class Pending:
    """An asynchronous operation that has been issued: ``queue`` keeps those that stay in order."""

    perform: Callable[[], None]
    line: str
    queue: object = None
    done: bool = False


@dataclass(slots=True, eq=False)
class Waiter:
    """Threads that wait: for what, and where they go on."""

    pc: int
    group: Group
    describe: Callable[[], str]
