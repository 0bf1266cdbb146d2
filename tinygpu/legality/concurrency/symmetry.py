"""Symmetry: CTAs of a cluster that are alike, of which one stands for all.

A step along an axis takes every CTA to the next one along it, the last to the first.  An axis is
*even* if no index, guard or tile mentions it, and no barrier and no buffer has its home along it.
Then the step maps a run to itself, and what happens in a
CTA happens, moved, in the one whose ranks along even axes are 0: its *first*.

A fact of an agent of a first CTA has an image in each CTA that steps along even axes reach.  These
``shifts`` are numbered; fact f as it is seen s shifts away is bit ``f * shifts + s``.  Seen from a
CTA that is s further on, everything is s further back: ``moved(mask, s)``.

>>> two = Symmetry((("m", 2), ("n", 3)), frozenset("n"))
>>> two.firsts, two.shifts, two.split(3), two.split(5)
(2, 3, (1, 1), (1, 2))
>>> bin(two.moved(0b_010_001, 1))                 # n is 1 further on: 0 becomes 2, 1 becomes 0
'0b1100'

Source: ``docs/model-concurrency.md``, section "CTAs that are alike".
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tinygpu.term.program import Program, Statement, each

__all__ = ["Symmetry", "symmetry_of"]


class Symmetry:
    """The CTAs of a cluster, of which steps along even axes make images."""

    def __init__(self, cluster: tuple[tuple[str, int], ...], even: frozenset[str]) -> None:
        self.cluster = cluster
        self.even = tuple((n, e) for n, e in cluster if n in even)
        self.odd = tuple((n, e) for n, e in cluster if n not in even)
        self.shifts = prod(e for _, e in self.even)
        self.firsts = prod(e for _, e in self.odd)
        size = self.shifts
        self._each, self._most = 0, 0  # one bit for each fact, of so many bits
        self._to = [[self._less(u, s) for u in range(size)] for s in range(size)]

    def ranks(self, first: int) -> dict[str, int]:
        """Return a first CTA's rank along each axis."""
        found = dict.fromkeys((n for n, _ in self.even), 0)
        for name, extent in self.odd:
            first, found[name] = divmod(first, extent)
        return found

    def moves(self, shift: int) -> dict[str, int]:
        """Return by how much a shift moves the rank along each even axis."""
        found = {}
        for name, extent in self.even:
            shift, found[name] = divmod(shift, extent)
        return found

    def split(self, cta: int) -> tuple[int, int]:
        """Return a CTA's first, and by which shift it is away from it."""
        first = shift = 0
        one = other = 1
        for name, extent in self.cluster:
            cta, rank = divmod(cta, extent)
            if (name, extent) in self.even:
                shift, one = shift + one * rank, one * extent
            else:
                first, other = first + other * rank, other * extent
        return first, shift

    def along(self, first: int, reach: str) -> Iterator[tuple[int, int]]:
        """Yield the CTAs (first, shift) along axes, or of the whole cluster, from a first one."""
        names = {n for n, _ in self.cluster} if reach == "cluster" else set(reach.split())
        number, one = [first], 1
        for name, extent in self.odd:
            if name in names:
                number = [
                    n - n // one % extent * one + r * one for n in number for r in range(extent)
                ]
            one *= extent
        shifts, one = [0], 1
        for name, extent in self.even:
            if name in names:
                shifts = [s + r * one for s in shifts for r in range(extent)]
            one *= extent
        return ((n, s) for n in number for s in shifts)

    def at_home(self, first: int, home: str, peer: int) -> int:
        """Return the CTA at ``peer`` along an axis, which is not even."""
        one = 1
        for name, extent in self.odd:
            if name == home:
                return first + (peer - first // one % extent) * one
            one *= extent
        return first

    def moved(self, mask: int, shift: int) -> int:
        """Return a mask as it is seen from a CTA that is ``shift`` further on."""
        if not shift or not mask:
            return mask
        if mask.bit_length() > self._most:
            self._most = 2 * mask.bit_length()
            self._each = sum(1 << i for i in range(0, self._most, self.shifts))
        found = 0
        for u, to in enumerate(self._to[shift]):
            found |= ((mask >> u) & self._each) << to
        return found

    def _less(self, u: int, s: int) -> int:
        found, one = 0, 1
        for _, extent in self.even:
            found += (u // one - s // one) % extent * one
            one *= extent
        return found


def symmetry_of(program: Program) -> Symmetry:
    """Return a program's symmetry."""
    axes = {name for name, extent in program.cluster if extent > 1}
    uneven = {name for role in program.roles for s in each(role.body) for name in _singled(s)}
    return Symmetry(program.cluster, frozenset(axes - uneven))


def _singled(s: Statement) -> Iterator[str]:
    """Yield the names in indices, guards and tiles, and the axes along which CTAs differ."""
    yield from (name for form in s.forms for name, _ in form.terms)
    yield from (use.ring.home for use in s.uses)
