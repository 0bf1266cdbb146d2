"""Fragments: how the threads of a warp share out the registers of a tile.

A fragment is a thread-value layout: thread t and register i hold one element (row, column) of the
tile.  Threads and registers count in mixed radix, least significant first, each digit a *mode*
(extent, step in rows, step in columns); a tile larger than the fragment's base repeats it along the
columns first, then along the rows.

>>> mma = FRAGMENTS["mma"]
>>> mma.base, mma.threads
((16, 8), 32)
>>> rows, columns = mma.places((16, 16))
>>> rows[3, :4].tolist(), columns[3, :4].tolist()
([0, 0, 8, 8], [6, 7, 6, 7])

``mma_a`` (rows, steps of k) and ``mma_b`` (columns, steps of k) are the operands of mma.m16n8k16,
``mma_a_tf32`` and ``mma_b_tf32`` those of mma.m16n8k8, and ``mma`` the sums of both.

``Blocks`` says by three fragments what a warp's product is: the shape of one block, and how the
values that a thread has of it count.

>>> half, tf32 = (Blocks(("f16",), "f32", FRAGMENTS["mma_a" + of], FRAGMENTS["mma_b" + of], mma)
...               for of in ("", "_tf32"))
>>> half.shape, half.values, half.steps("a"), half.steps("b"), half.steps("d")
((16, 8, 16), (2, 2, 2), (1, 2, 4), (1, 0, 2), (1, 2, 0))
>>> tf32.shape, tf32.values, tf32.steps("a"), tf32.each
((16, 8, 8), (2, 2, 2), (0, 1, 2), 1)

Source: PTX ISA 9, "Matrix Fragments for mma".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.numbers import Integers

__all__ = ["FRAGMENTS", "Blocks", "Fragment", "Mode", "Operand"]

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

    def places(self, shape: tuple[int, int]) -> tuple[Integers, Integers]:
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


def _digits(modes: tuple[Mode, ...]) -> Integers:
    """Return the (row, column) of each number in mixed radix."""
    total = np.zeros((1, 2), np.int64)
    for extent, row, column in modes:
        step = np.arange(extent)[:, None] * np.array([row, column], np.int64)
        total = (step[:, None, :] + total[None, :, :]).reshape(-1, 2)
    return total


@dataclass(frozen=True, slots=True)
class Blocks:
    """A warp's product D += A B of one block, by who holds what of it.

    ``types``: what the elements of A and B may be, one for both; ``into``: those of D.  ``a`` is a
    fragment of (m, k), ``b`` of (n, k), ``d`` of (m, n).  The values of a thread count *pair* (two
    neighbours along k or n, in A and B in one register), *half* (of the rows), *deep* (of k); an
    operand has those of the three that its fragment has.  ``rate``: the share that it reaches of
    the tensor cores' rate for 16-bit elements.
    """

    types: tuple[str, ...]
    into: str
    a: Fragment
    b: Fragment
    d: Fragment
    rate: float = 1.0

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n and k of a block."""
        return (*self.d.base, self.a.base[1])

    @property
    def values(self) -> tuple[int, int, int]:
        """How many values of a thread pair, half and deep count in one block."""
        extents = {**_named(self.d, of_sums=True), **_named(self.b), **_named(self.a)}
        return extents.get("pair", 1), extents.get("half", 1), extents.get("deep", 1)

    @property
    def each(self) -> int:
        """Elements of A, or of B, that stand in one register."""
        return _named(self.a).get("pair", 1)

    def steps(self, operand: Operand) -> tuple[int, int, int]:
        """Return how many values of a thread further pair, half and deep lead in an operand."""
        found, apart = dict.fromkeys(("pair", "half", "deep"), 0), 1
        for name, extent in _named(
            {"a": self.a, "b": self.b, "d": self.d}[operand], of_sums=operand == "d"
        ).items():
            found[name], apart = apart, apart * extent
        return found["pair"], found["half"], found["deep"]

    def held(self, operand: Operand) -> Integers:
        """Return which element of an operand each value of each lane is: (values, lanes).

        Values count as a statement's do; element (row, column) is row * columns + column.
        """
        fragment = {"a": self.a, "b": self.b, "d": self.d}[operand]
        rows, columns = fragment.places(fragment.base)
        digits = np.indices(self.values[::-1]).reshape(3, -1)[::-1]  # pair fastest
        value = np.array(self.steps(operand)) @ digits
        found: Integers = (rows * fragment.base[1] + columns)[:, value].T
        return found


Operand = Literal["a", "b", "d"]


def _named(fragment: Fragment, *, of_sums: bool = False) -> dict[str, int]:
    """Return the extents of a thread's values by what they count, in their order."""
    found: dict[str, int] = {}
    for extent, row, column in fragment.value_modes:
        name = "half" if row else "pair" if of_sums or column == 1 else "deep"
        if name in found or (row and column):
            raise ProgramError(
                f"fragment {fragment.name}: a thread's values count {fragment.value_modes}; let "
                "each go along rows, along columns by 1, or along columns by more, one of a kind"
            )
        found[name] = extent
    return found


_PAIR: tuple[Mode, ...] = ((2, 0, 1), (2, 8, 0))  # two columns, and the row eight below

FRAGMENTS: Mapping[str, Fragment] = {
    f.name: f
    for f in (
        Fragment("mma", (16, 8), ((4, 0, 2), (8, 1, 0)), _PAIR),
        Fragment("mma_a", (16, 16), ((4, 0, 2), (8, 1, 0)), (*_PAIR, (2, 0, 8))),
        Fragment("mma_b", (8, 16), ((4, 0, 2), (8, 1, 0)), ((2, 0, 1), (2, 0, 8))),
        Fragment("mma_a_tf32", (16, 8), ((4, 0, 1), (8, 1, 0)), ((2, 8, 0), (2, 0, 4))),
        Fragment("mma_b_tf32", (8, 8), ((4, 0, 1), (8, 1, 0)), ((2, 0, 4),)),
    )
}
