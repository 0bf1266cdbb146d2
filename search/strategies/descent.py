"""``descent``: coordinate descent, one decision after the other.

From the best start that is left: all values of one decision, then on from the best of them with the
next decision, in an order drawn anew; when no decision gains, from the next start.

Source: S. Wright, "Coordinate descent algorithms", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.strategies.walk import Domain, Steps
from tinygpu.term.schedule import Schedule

__all__ = ["descent", "starts"]


def starts(domain: Domain, rng: np.random.Generator) -> Iterator[Schedule]:
    """Yield where to start from: the model's best, then schedules drawn at random."""
    yield from (one.schedule for one in domain.first)
    while True:
        yield from (one.schedule for one in domain.sample(rng, 1))


def descent(domain: Domain, rng: np.random.Generator) -> Steps:
    """Ask for all values of one decision of the schedule that is best so far."""
    for here in starts(domain, rng):
        found = yield [here]
        gained = math.isfinite(found[here])
        while gained:
            before = here
            names = sorted({_changed(here, one) for one in domain.near(here)})
            for place in rng.permutation(len(names)).tolist():
                values = [
                    c.schedule for c in domain.near(here) if _changed(here, c) == names[place]
                ]
                found = yield values
                here = min((here, *values), key=found.__getitem__)
            gained = here != before


def _changed(schedule: Schedule, other: Candidate) -> str:
    """Return the first decision that differs."""
    pairs = zip(schedule.decisions, other.schedule.decisions, strict=True)
    return next(name for (name, mine), (_, theirs) in pairs if mine != theirs)
