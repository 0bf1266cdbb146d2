"""A walk: a strategy asks for schedules, is told their seconds, and asks again.

A strategy is a generator: it yields the schedules that it wants to know of and is sent the seconds
of all that are known, infinite for those that failed.  What it knows of the space is a ``Domain``.
So the same strategy walks on a GPU (``search/tuning/climb.py``) and on what was measured once
(``benchmarks/replay.py``), and none is ever told of a schedule that is not legal.

>>> from tinygpu.search.neighbourhood import Candidate
>>> line = [Candidate(Schedule("line", (("x", x),)), 1.0) for x in range(4)]
>>> def all_of(domain, rng):
...     yield [c.schedule for c in domain.first]
>>> walk(all_of(Domain(line, None, None), None), lambda some: [2.0] * len(some), batch=2).values()
dict_values([2.0, 2.0, 2.0, 2.0])
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinygpu.search.neighbourhood import Candidate
from tinygpu.term.schedule import Schedule

__all__ = ["Domain", "Steps", "Strategy", "walk"]

_PATIENCE = 500
"""Steps without a new schedule after which nothing is left that a strategy would ask for."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What a strategy knows: the model's best, single changes, schedules drawn at random.

    ``first`` are the model's, no two alike in more than details, the best first.  ``sample(rng,
    n)`` draws up to n of the legal space.  ``apart`` is what tells schedules apart by more than
    details.  ``pipelined`` are those whose loop a solver chose (``smt.py``).  ``built_at_once`` are
    as many as take as long to build as one.
    """

    first: Sequence[Candidate]
    near: Callable[[Schedule], Sequence[Candidate]]
    sample: Callable[[np.random.Generator, int], Sequence[Candidate]]
    apart: Callable[[Schedule], object] = lambda schedule: schedule
    pipelined: Callable[[], Sequence[Schedule]] = lambda: ()
    built_at_once: int = 1


Steps = Generator[Sequence[Schedule], Mapping[Schedule, float], None]
Strategy = Callable[[Domain, np.random.Generator], Steps]


def walk(
    steps: Steps,
    evaluate: Callable[[Sequence[Schedule]], Sequence[float]],
    *,
    go_on: Callable[[], bool] = lambda: True,
    batch: int = 16,
) -> dict[Schedule, float]:
    """Return seconds by schedule, each evaluated once, as far as ``go_on`` allows.

    ``evaluate`` takes up to ``batch`` schedules at once; before each ``go_on`` is asked.
    """
    found: dict[Schedule, float] = {}
    stale = 0
    try:
        wanted = next(steps)
        while stale < _PATIENCE:
            new = [schedule for schedule in dict.fromkeys(wanted) if schedule not in found]
            stale = 0 if new else stale + 1
            while new:
                if not go_on():
                    return found
                now, new = new[:batch], new[batch:]
                found |= dict(zip(now, evaluate(now), strict=True))
            wanted = steps.send(found)
    except StopIteration:
        pass
    return found
