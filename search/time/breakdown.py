"""A predicted time, what it is made of, how sure it is, and how its parts are put together.

Of schedules that were measured on an H200, with one bottleneck and done in one way, nine in ten
took a time within an ``interval`` around the predicted one (``INTERVALS`` of ``fitted.py``).

>>> one = Breakdown(1e-3, {"dram": 1e-3, "issue": 1e-4})
>>> low, high = one.interval
>>> one.regime, low < 1e-3 < high
('threads, dram', True)

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tinygpu.numbers import Number
from tinygpu.search.time.deferred import applied
from tinygpu.search.time.fitted import INTERVALS, RANKING

__all__ = ["RESOLUTION", "Breakdown", "added", "blend", "resolved"]

RESOLUTION = 0.002  # of a time's logarithm: far below the model's error


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A predicted time in seconds and what it is made of.

    ``parts`` are the seconds that each unit, the path, L2, DRAM, the launch and the clearing of
    the output before it would take alone; the bottleneck is the largest.  ``floor`` is at most the
    seconds, and monotone in each feature where they are not (None: they are).
    """

    seconds: Number
    parts: Mapping[str, Number]
    floor: Number | None = None

    @property
    def bottleneck(self) -> str:
        """The name of the largest part (of one schedule)."""
        return max(self.parts, key=lambda name: float(self.parts[name]))

    @property
    def regime(self) -> str:
        """Who does the work (of one schedule), and its bottleneck.

        "tiles": roles a tile at a time; "warps": those that multiply together; or "threads".
        """
        names = {"epilogue": "tiles", "tensor": "warps"}
        who = next((name for part, name in names.items() if part in self.parts), "threads")
        return f"{who}, {self.bottleneck}"

    @property
    def interval(self) -> tuple[float, float]:
        """The seconds (of one schedule) between which nine in ten of its regime were measured."""
        regime, seconds = self.regime, float(self.seconds)
        low, high = INTERVALS.get(regime) or INTERVALS[regime.partition(",")[0]]
        return seconds * low, seconds * high

    @property
    def noise(self) -> float:
        """The error (a logarithm) of this time over another's that half of all pairs exceed."""
        return RANKING[self.regime.partition(",")[0]]


def added(found: Sequence[Breakdown]) -> Breakdown:
    """Return the breakdown of kernels one after another."""
    names = dict.fromkeys(name for one in found for name in one.parts)
    parts = {name: sum((one.parts.get(name, 0.0) for one in found), 0.0) for name in names}
    floors = [one.seconds if one.floor is None else one.floor for one in found]
    floor = None if all(one.floor is None for one in found) else sum(floors)
    return Breakdown(sum(one.seconds for one in found), parts, floor)


def resolved(seconds: Number) -> Number:
    """Round up to the model's resolution: what it cannot tell apart is equal."""
    found: Number = np.exp(np.ceil(np.log(seconds) / RESOLUTION) * RESOLUTION)
    return found


def blend(parts: list[Number], power: float) -> Number:
    """Return (sum of parts^power)^(1/power)."""
    return applied(norm, power, *parts)


def norm(power: float, *parts: Number) -> Number:
    """Return (sum of parts^power)^(1/power); one function, for each part counts more than once."""
    most = reduce(np.maximum, parts)
    return most * sum((part / most) ** power for part in parts) ** (1 / power)
