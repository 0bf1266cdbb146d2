"""Deadlines: the moment by which something ends, passed down to all that takes time.

The clock comes in as an argument, so that a test needs no waiting.

>>> now = [100.0]
>>> whole = Deadline.within(16.0, lambda: now[0])
>>> first = whole.before(10.0)
>>> now[0] += 4.0
>>> whole.left(), first.left(), first.passed(), whole.sooner(5.0).left()
(12.0, 2.0, False, 5.0)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["NEVER", "Deadline"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment, in seconds of a monotonic ``clock``."""

    end: float
    clock: Callable[[], float]

    @staticmethod
    def within(seconds: float, clock: Callable[[], float]) -> Deadline:
        """Return the deadline that is so many seconds from now."""
        return Deadline(clock() + seconds, clock)

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.end - self.clock())

    @property
    def open(self) -> bool:
        """Whether it is never reached."""
        return math.isinf(self.end)

    def passed(self) -> bool:
        """Whether nothing is left."""
        return self.clock() >= self.end

    def before(self, seconds: float) -> Deadline:
        """Return a deadline so many seconds earlier."""
        return Deadline(self.end - seconds, self.clock)

    def sooner(self, seconds: float) -> Deadline:
        """Return this deadline, or the one that is so many seconds from now if that is earlier."""
        return Deadline(min(self.end, self.clock() + seconds), self.clock)


NEVER = Deadline(math.inf, time.monotonic)
"""The deadline that is never reached."""
