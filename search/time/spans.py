"""What a CTA does when: the statements of a timeline, and the uses of a ring's stages."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Span", "StageUse", "Timeline"]


@dataclass(frozen=True, slots=True)
class Span:
    """One statement once: in cycles since the CTA began, on which row, in which iterations.

    Its unit is busy from ``start_cycles`` to ``end_cycles``; its result is there at
    ``ready_cycles``.  ``iteration`` names the loops around it, ``kt=1 kk=3``.
    """

    row: str
    statement: str
    iteration: str
    start_cycles: float
    end_cycles: float
    ready_cycles: float

    @property
    def flies(self) -> bool:
        """Whether it brings something from global memory that is on its way for a while."""
        brings = ("global memory", "cp.async", "copy engine")
        return self.row in brings and self.ready_cycles > self.end_cycles


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a CTA does at first; ``whole``: to its end, and not only the first iterations.

    ``begins``: where each iteration of a loop that is not unrolled (with barriers: the first
    product of each tile) begins, in cycles.
    """

    events: tuple[Span, ...]
    begins: tuple[tuple[str, float], ...]
    cycles: float
    whole: bool

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that occur, in order of first use."""
        return tuple(dict.fromkeys(event.row for event in self.events))


@dataclass(slots=True)
class StageUse:
    """One use of a ring's stage: filled from ``issued`` to ``landed``, read until ``done``."""

    where: str = ""
    issued: float = math.inf
    landed: float = 0.0
    read: float = math.inf
    done: float = 0.0

    def events(self, row: str) -> list[Span]:
        """Return what the stage is, one after the other; what has no end yet is left out."""
        spans = (
            ("filling", self.issued, self.landed),
            ("full", self.landed, self.read),
            ("read", self.read, self.done),
        )
        return [Span(row, what, self.where, a, b, b) for what, a, b in spans if a < b < math.inf]
