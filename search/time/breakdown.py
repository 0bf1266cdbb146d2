"""A predicted time, what it is made of, and how its parts are put together.

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tinygpu.search.time.deferred import applied

__all__ = ["RESOLUTION", "Breakdown", "blend", "resolved"]

Numbers = Any
RESOLUTION = 0.002  # of a time's logarithm: far below the model's error


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A predicted time in seconds and what it is made of.

    ``parts`` are the seconds that each unit, the path, L2, DRAM, the launch and the clearing of
    the output before it would take alone; the bottleneck is the largest.  ``floor`` is at most the
    seconds, and monotone in each feature where they are not (None: they are).
    """

    seconds: Numbers
    parts: Mapping[str, Numbers]
    floor: Numbers | None = None

    @property
    def bottleneck(self) -> str:
        """The name of the largest part (of one schedule)."""
        return max(self.parts, key=lambda name: float(self.parts[name]))


def resolved(seconds: Numbers) -> Numbers:
    """Round up to the model's resolution: what it cannot tell apart is equal."""
    return np.exp(np.ceil(np.log(seconds) / RESOLUTION) * RESOLUTION)


def blend(parts: list[Numbers], power: float) -> Numbers:
    """Return (sum of parts^power)^(1/power)."""
    return applied(norm, power, *parts)


def norm(power: float, *parts: Numbers) -> Numbers:
    """Return (sum of parts^power)^(1/power); one function, for each part counts more than once."""
    most = reduce(np.maximum, parts)
    return most * sum((part / most) ** power for part in parts) ** (1 / power)
