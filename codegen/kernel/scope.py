"""What is known of an index while emitting: the values of unrolled loops, and of each value mode.

A *scope* has the loop variables around a statement.  It splits an affine index into a number, from
the constants and the unrolled loops, and the terms that only the running kernel knows.

>>> from tinygpu.term.program import var
>>> Scope(static={"kk": 2}, running={"kt": "%r0"}).split(var("kt", 8) + var("kk", 4) + 1)
(9, (('kt', 8),))

Source: ``docs/model.md``, section "Code".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tinygpu.term.program import Access, Affine, For, Statement, When

__all__ = ["Scope", "Terms", "TurnRange", "value_coordinates"]

Terms = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class TurnRange:
    """Turns k of a loop: ``low <= k <= high`` and ``near <= trips - k <= far``; None: any number.

    >>> last = TurnRange("trips", 2, near=1, far=1)
    >>> last.below(-1, 1, 1), last.below(1, 1, "trips")
    (False, False)
    """

    trips: int | str
    low: int
    high: int | None = None
    near: int = 1
    far: int | None = None

    def below(self, known: int, factor: int, bound: int | str) -> bool | None:
        """Say whether ``known + factor * k < bound`` in each turn, or in none; None: it varies."""
        least: int | None  # of what the left side lacks
        most: int | None
        if bound == self.trips and factor == 1:
            least, most = self.near - known, None if self.far is None else self.far - known
        elif isinstance(bound, int):
            first = bound - known - factor * self.low
            last = None if self.high is None else bound - known - factor * self.high
            least, most = (last, first) if factor > 0 else (first, last)
        else:
            return None
        if least is not None and least > 0:
            return True
        return False if most is not None and most <= 0 else None

    def __str__(self) -> str:
        k = f"k = {self.low}" if self.high == self.low else f"k >= {self.low}"
        left = f"= {self.near}" if self.far == self.near else f">= {self.near}"
        return f"{k}, trips - k {left}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Loop variables: unrolled ones are known, the others live in registers.

    So do the running numbers of tile values, under the names that ``counted`` gives them.
    ``turns``: in which turns of a running loop this is.
    """

    static: dict[str, int] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    turns: dict[str, TurnRange] = field(default_factory=dict)

    def within(self, block: Statement) -> Iterator[Scope]:
        """Yield the scope of a block's body: one for each iteration if it is unrolled."""
        if not isinstance(block, For):
            yield self
        elif not block.unrolled:
            yield replace(self, running={**self.running, block.var: block.var})
        else:
            for i in range(block.start, int(block.trips)):
                yield replace(self, static={**self.static, block.var: i})

    def laid_out(self, block: Statement) -> Iterator[Scope]:
        """Yield those of ``within`` whose code stands in line: of guards and unrolled loops."""
        if isinstance(block, When) or (isinstance(block, For) and block.unrolled):
            yield from self.within(block)

    def split(self, affine: Affine) -> tuple[int, Terms]:
        """Return the known part of an affine index and what is left of its terms.

        A variable has one term of a number, and others of parameters.
        """
        known, factors = affine.constant, dict[str, int]()
        terms: list[tuple[str, int | str]] = []
        for name, coefficient in affine.terms:
            if isinstance(coefficient, str):
                terms.append((name, coefficient))
            elif name in self.static:
                known += coefficient * self.static[name]
            else:
                factors[name] = factors.get(name, 0) + coefficient
        terms += [(name, factor) for name, factor in factors.items() if factor != 0]
        return known, tuple(sorted(terms, key=str))

    def below(self, known: int, terms: Terms, bound: int | str) -> bool | None:
        """Say whether ``known + terms < bound`` in each of these turns, or in none; else None."""
        match terms:
            case ((name, int(factor)),) if name in self.turns:
                return self.turns[name].below(known, factor, bound)
        return None

    def where(self, known: int, terms: Terms, bound: int | str) -> Scope:
        """Return the scope in which ``known + terms < bound`` is known, of a distance to an end."""
        match terms:
            case ((name, 1),) if name in self.turns and bound == self.turns[name].trips:
                turn = self.turns[name]
                near = replace(turn, near=max(turn.near, known + 1))
                return replace(self, turns={**self.turns, name: near})
        return self


def value_coordinates(access: Access, values: tuple[int, ...]) -> NDArray[np.int64]:
    """Return each value's coordinates, apart from origin and thread: (values, dimensions)."""
    rank = len(access.buffer.shape)
    result = np.zeros((1, rank), np.int64)
    for extent, steps in zip(values, access.value, strict=True):
        mode = np.arange(extent)[:, None] * np.array(steps, np.int64)
        result = (mode[:, None, :] + result[None]).reshape(-1, rank)
    return result
