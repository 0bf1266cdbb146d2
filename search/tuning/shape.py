"""A shape that a bundle of kernels serves: sizes by axis, one of which its rules cut.

Where an operation has groups of rows, the host does not know their ends, so a rule cannot see them:
a shape then has *routings*, ways in which its rows may fall into groups, and what a kernel takes at
the shape is the mean over them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tinygpu.errors import OperationError
from tinygpu.term.operation import Groups, Operation, Problem

__all__ = ["Shape", "ends_of", "matmul_shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that a bundle serves, by axis, how much they count, and whose they are.

    ``along``: the axis whose sizes a rule cuts into intervals.  ``routings``: of an operation with
    groups, how rows fall into them, as ``ends_of`` reads it, and how much each of these counts.
    """

    extents: tuple[tuple[str, int], ...]
    along: str
    weight: float = 1.0
    layer: str = ""
    routings: tuple[tuple[str, float], ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by their axes."""
        return dict(self.extents)

    @property
    def size(self) -> int:
        """The size along the axis of the rules."""
        return self.sizes[self.along]

    @property
    def at(self) -> tuple[int, ...]:
        """The sizes of the other axes."""
        return tuple(size for axis, size in self.extents if axis != self.along)

    def moved(self, size: int) -> Shape:
        """Return the shape with another size along the axis of the rules."""
        return replace(self, extents=tuple((self.sizes | {self.along: size}).items()))

    def problems(self, operation: Operation) -> list[tuple[Problem, float]]:
        """Return the operation at the shape, once for each routing, and the routing's share.

        Raises OperationError for a routing that does not fit the sizes.
        """
        groups, sizes = operation.groups, self.sizes
        if groups is None or not self.routings:
            return [(Problem.of(operation, **sizes), 1.0)]
        total = sum(weight for _, weight in self.routings)
        every = ((ends_of(text, groups, sizes, scaled=True), w) for text, w in self.routings)
        return [(Problem.of(operation, **sizes, **{groups.ends: e}), w / total) for e, w in every]


def matmul_shape(m: int, n: int, k: int, weight: float = 1.0, layer: str = "") -> Shape:
    """Return a shape of a matmul, along m."""
    return Shape((("m", m), ("n", n), ("k", k)), "m", weight, layer)


def ends_of(
    text: str, groups: Groups, sizes: Mapping[str, int], *, scaled: bool = False
) -> tuple[int, ...]:
    """Return the ends of groups whose rows are said: even, zipf, or a number for each.

    Zipf: group i has rows in proportion to 1 / (i + 1), rounded so that all rows are there.  The
    numbers add up to all rows, or, if ``scaled``, are in proportion to the groups' rows.  Raises
    OperationError.

    >>> ends_of("zipf", Groups("g", "m", "ends"), {"g": 4, "m": 100})
    (48, 72, 88, 100)
    >>> ends_of("2,0,6", Groups("g", "m", "ends"), {"g": 3, "m": 100}, scaled=True)
    (25, 25, 100)
    """
    count, rows = sizes[groups.axis], sizes[groups.rows]
    if text == "even":
        return groups.even(sizes)
    if text == "zipf":
        parts = [sum(1 / (j + 1) for j in range(i + 1)) for i in range(count)]
        return tuple(round(rows * part / parts[-1]) for part in parts)
    if not re.fullmatch(r"\d{1,10}(,\d{1,10})*", text):
        raise OperationError(f"--groups {text}: give even, zipf, or rows of each as 512,0,1536")
    ends = tuple(itertools.accumulate(map(int, text.split(","))))
    if scaled and ends[-1]:
        ends = tuple(rows * end // ends[-1] for end in ends)
    groups.require(ends, sizes)
    return ends
