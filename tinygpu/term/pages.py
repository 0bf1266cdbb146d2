"""Pages: inputs whose blocks lie where a table on the device says, as a cache of keys and values.

An input x[l, h, n, d] is *in pages* along n: n is cut into blocks of P, and a block lies in a page
of a pool y[page, h, P, d] that all rows l share:

    x[l, h, n, d] = y[table[l, n // P], h, n % P, d]        0 where that is no page of the pool

An operation, a term and their proofs speak of x.  Where its elements lie is said by its buffer
(``Buffer.pages``), as strides and swizzles are, and asked by whatever touches memory: the
interpreter, the code, a launch.  The coordinates of y are as many as those of x, in their order:
the page is in the place of l.  Pages may be repeated, and be in any order.

The table is of i32 and has a column for each block: n is P times as many.  Its rows lie ``pitch``
apart, a parameter of the term.

>>> pages = Pages("n", "l", 2, "table", ("k",))
>>> pages.stored(("l", "n", "d")), pages.stored(("l", "m"))
(('pages', 2, 'd'), ('l', 'm'))
>>> pool, table = np.arange(8.0).reshape(4, 2, 1), np.array([[3, 0], [0, 7]])
>>> pages.gathered(("l", "n", "d"), pool, table)[..., 0].tolist()
[[6.0, 7.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]

Rows of such a cache are not full: ``Lengths`` is an array of i32 that says how many of n each has.
A mask that compares index(n) with it hides what lies behind.

>>> Lengths("n", "l", "lengths").of({"l": 2, "n": 8})
(8, 8)

Source: W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", arXiv:2309.06180.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.errors import OperationError
from tinygpu.numbers import Array

__all__ = ["POOL", "Lengths", "Pages"]

POOL = "pages"
"""The size that says how many pages the pool has; operations have no such axis."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Inputs in pages of ``size`` along ``axis``: table[rows, block] is the page of a block.

    ``table`` is the name of an array of i32, ``inputs`` are the names of those in pages.
    """

    axis: str
    rows: str
    size: int
    table: str
    inputs: tuple[str, ...]

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise OperationError(
                f"pages of {self.size!r}; give how many of {self.axis} a page has, 1 or more"
            )

    @property
    def pitch(self) -> str:
        """The parameter that says how far rows of the table are apart."""
        return f"ld_{self.table}"

    def stored(self, axes: Sequence[str]) -> tuple[str | int, ...]:
        """Return the dimensions of the pool of an input with these axes."""
        if not {self.axis, self.rows} <= {*axes}:
            return tuple(axes)
        return tuple(POOL if a == self.rows else self.size if a == self.axis else a for a in axes)

    def blocks(self, size: int) -> int:
        """Return how many blocks there are along the axis.  Raises OperationError for a part."""
        if size % self.size:
            raise OperationError(
                f"{self.axis} is {size}, and pages have {self.size}; give a multiple: a row of "
                f"{self.table} has an entry for each whole page"
            )
        return size // self.size

    def places(
        self, axes: Sequence[int | str], at: Sequence[Array], table: Array, many: int
    ) -> tuple[list[Array], Array]:
        """Return where elements lie in a pool of ``many`` pages, and which of them are in one.

        ``at`` has their coordinates along each axis: integers, or arrays that broadcast.
        """
        rows, along = axes.index(self.rows), axes.index(self.axis)
        row, block = np.asarray(at[rows]), np.asarray(at[along]) // self.size
        inside = (row >= 0) & (row < table.shape[0]) & (block >= 0) & (block < table.shape[1])
        entry = table[row.clip(0, table.shape[0] - 1), block.clip(0, table.shape[1] - 1)]
        there = inside & (entry >= 0) & (entry < many)
        found = [*at]
        found[rows], found[along] = np.where(there, entry, 0), np.asarray(at[along]) % self.size
        return found, there

    def gathered(self, axes: Sequence[str], pool: Array, table: Array) -> Array:
        """Return an input with these axes, read through the table: of NumPy or CuPy, as the pool.

        Entries of the table that are no page's number give zeros.
        """
        rows, along = axes.index(self.rows), axes.index(self.axis)
        entries = np.asarray(table, like=pool).astype(np.int64)
        there = (entries >= 0) & (entries < pool.shape[rows])
        paged = np.moveaxis(pool, (rows, along), (0, 1))
        blocks = paged[entries.clip(0, pool.shape[rows] - 1)]  # rows, blocks, within, the rest
        blocks = np.where(there.reshape(*there.shape, *[1] * (blocks.ndim - 2)), blocks, 0)
        whole = blocks.reshape(blocks.shape[0], -1, *blocks.shape[3:])
        return np.moveaxis(whole, (0, 1), (rows, along))


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many of ``axis`` each of ``rows`` has, in an array of i32: from 0 to the axis's size."""

    axis: str
    rows: str
    name: str

    def of(self, sizes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the lengths that ``sizes`` has under their name, or else full ones."""
        given: Sequence[int] | None = sizes.get(self.name)
        return (sizes[self.axis],) * int(sizes[self.rows]) if given is None else tuple(given)

    def require(self, lengths: Sequence[int], most: int) -> None:
        """Raise OperationError for a length that is below 0, or above the size of the axis."""
        for row, length in enumerate(lengths):
            if not 0 <= length <= most:
                raise OperationError(
                    f"{self.name}: {self.rows} {row} has {length}, and there are {most} of "
                    f"{self.axis}; give 0 to {most}"
                )
