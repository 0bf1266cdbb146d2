"""Where schedules stand: their places by time, those that tie together, and by what noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tinygpu.search.ties import median_noise, places
from tinygpu.search.time.breakdown import Breakdown

__all__ = ["breakdown_of", "standing"]


def breakdown_of(row: Mapping[str, Any]) -> Breakdown:
    """Return the prediction of a row of ``search.json``."""
    return Breakdown(row["predicted_seconds"], row["parts_seconds"])


def standing(rows: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[int, bool] | None], str]:
    """Return the rows' places and whether they are shared, and in words which share the first.

    The times are the measured ones where there are some, else the predicted ones.
    """
    measured = any(row.get("seconds") for row in rows)
    if measured:
        noises = [median_noise(row.get("spread", 0.0), row.get("rounds", 1)) for row in rows]
        found = places([row.get("seconds") for row in rows], noises)
        why = "closer than the medians of their rounds are known"
    else:
        noises = [breakdown_of(row).noise for row in rows]
        found = places(
            [row["predicted_seconds"] for row in rows], [one / math.sqrt(2) for one in noises]
        )
        why = f"closer than the model tells two schedules apart ({100 * max(noises):.1f} %)"
    first = sum(one is not None and one == (1, True) for one in found)
    kind = "measured" if measured else "predicted"
    return found, f"{first} schedules tie for the first place: their {kind} times are {why}" * bool(
        first
    )
