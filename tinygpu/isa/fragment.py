"""Fragments: how the threads of a warp, or of tcgen05.ld, share out the registers of a tile.

A fragment is a thread-value layout: thread t and register i hold one element (row, column) of the
tile.  Threads and registers count in mixed radix, least significant first, each digit a *mode*
(extent, step in rows, step in columns); a tile larger than the fragment's base repeats it along the
columns first, then along the rows.  In "row", what tcgen05.ld.32x32b loads, thread t has lane t.

>>> mma = FRAGMENTS["mma"]
>>> mma.base, mma.threads, mma.per_thread((16, 256))
((16, 8), 32, 128)
>>> rows, columns = mma.places((16, 16))
>>> rows[3, :4].tolist(), columns[3, :4].tolist()
([0, 0, 8, 8], [6, 7, 6, 7])

``mma_a`` (rows, steps of k) and ``mma_b`` (columns, steps of k) are the operands of mma.m16n8k16,
``mma_a_tf32`` and ``mma_b_tf32`` those of mma.m16n8k8, and ``mma`` the sums of both.

Source: PTX ISA 9, "Matrix Fragments for mma", "tcgen05.ld".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import ProgramError

__all__ = ["FRAGMENTS", "Fragment"]

Mode = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A thread-value layout; see the module's text."""

    name: str
    base: tuple[int, int]
    thread_modes: tuple[Mode, ...]
    value_modes: tuple[Mode, ...]

    @property
    def threads(self) -> int:
        """Threads that hold a tile together."""
        return prod(extent for extent, _, _ in self.thread_modes)

    def per_thread(self, shape: tuple[Any, Any]) -> Any:
        """Return the elements of a tile of this shape that one thread holds."""
        return shape[0] * shape[1] // self.threads

    def places(self, shape: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row and the column of each thread's values, both (threads, values).

        Raises ProgramError unless the shape is a multiple of the base.
        """
        if any(s % b for s, b in zip(shape, self.base, strict=True)):
            high, wide = self.base
            raise ProgramError(
                f"fragment {self.name}: a tile of {shape[0]} x {shape[1]} is no whole number of "
                f"{high} x {wide}; choose a multiple"
            )
        rows, columns = (s // b for s, b in zip(shape, self.base, strict=True))
        repeats = ((columns, 0, self.base[1]), (rows, self.base[0], 0))
        thread, value = _digits(self.thread_modes), _digits((*self.value_modes, *repeats))
        both = thread[:, None, :] + value[None, :, :]
        return both[..., 0], both[..., 1]


def _digits(modes: tuple[Mode, ...]) -> NDArray[np.int64]:
    """Return the (row, column) of each number in mixed radix."""
    total = np.zeros((1, 2), np.int64)
    for extent, row, column in modes:
        step = np.arange(extent)[:, None] * np.array([row, column], np.int64)
        total = (step[:, None, :] + total[None, :, :]).reshape(-1, 2)
    return total


_PAIR: tuple[Mode, ...] = ((2, 0, 1), (2, 8, 0))  # two columns, and the row eight below

FRAGMENTS: Mapping[str, Fragment] = {
    f.name: f
    for f in (
        Fragment("mma", (16, 8), ((4, 0, 2), (8, 1, 0)), _PAIR),
        Fragment("mma_a", (16, 16), ((4, 0, 2), (8, 1, 0)), (*_PAIR, (2, 0, 8))),
        Fragment("mma_b", (8, 16), ((4, 0, 2), (8, 1, 0)), ((2, 0, 1), (2, 0, 8))),
        Fragment("mma_a_tf32", (16, 8), ((4, 0, 1), (8, 1, 0)), ((2, 8, 0), (2, 0, 4))),
        Fragment("mma_b_tf32", (8, 8), ((4, 0, 1), (8, 1, 0)), ((2, 0, 4),)),
        Fragment("row", (128, 1), ((128, 1, 0),), ()),
    )
}
