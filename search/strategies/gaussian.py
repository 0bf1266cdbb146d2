"""``gaussian``: what may be fastest, by what a time model says and how sure that is.

The model's error at each schedule is a Gaussian process (``search/residual.py``).  A schedule *may*
take as little as

    b(x) = p(x) exp(mean(x) - DOUBT deviation(x)),

a lower confidence bound of its seconds.  The schedules of the least bounds are evaluated, ``BATCH``
at a time; before anything is known so many are the model's first, among them that of each machine
which may be faster, and beside them as many as are built in the time of one.  Else each of a batch
is chosen as if those before it were known already, so that no two of them ask the same.  What was
evaluated changes both mean and deviation, and the single changes of the best few, at first of the
model's best, become schedules to choose among.  It ends where no bound is below the best found.

Source: N. Srinivas et al., "Gaussian Process Optimization in the Bandit Setting", 2010; T.
Desautels et al., "Parallelizing Exploration-Exploitation Tradeoffs in Gaussian Process Bandit
Optimization", 2014.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.residual import SCALE, Residual
from tinygpu.search.strategies.walk import Domain, Steps
from tinygpu.term.schedule import Schedule

__all__ = ["BATCH", "DOUBT", "WIDER", "gaussian"]

BATCH, DOUBT = 4, 2.0
"""How many are evaluated at once; how many deviations below its mean a bound is."""
WIDER = (3, 6, 12)
"""How many of the best are changed; more where the changes of fewer promise nothing."""


def gaussian(domain: Domain, rng: np.random.Generator) -> Steps:
    """Ask for the few schedules that may be fastest, until none may be faster than the best.

    Those that are changed differ in ``apart``.
    """
    pool = _Pool(domain.first)
    found: Mapping[Schedule, float] = {}
    changed = {one.schedule for one in domain.first[:1]}
    for parent in changed:
        pool.add(domain.near(parent))
    while True:
        wanted: list[Schedule] = []
        for width in WIDER:
            for parent in _best(found, domain.apart, width):
                if parent not in changed:
                    changed.add(parent)
                    pool.add(domain.near(parent))
            if wanted := pool.promising(
                found, BATCH if found else max(BATCH, domain.built_at_once)
            ):
                break
        if not found:
            wanted = list(dict.fromkeys((*_first_of_each(domain.first), *wanted)))[: len(wanted)]
        if not wanted:
            return
        found = yield wanted


def _first_of_each(first: Sequence[Candidate]) -> list[Schedule]:
    """Return what is first, and the first of each further machine that may be faster.

    What the model errs by at one machine says nothing of another.
    """
    best: dict[str, Candidate] = {}
    for one in first:
        best.setdefault(one.schedule.machine, one)
    doubted = math.exp(2 * DOUBT * SCALE)
    most = min((one.predicted_seconds for one in best.values()), default=0.0) * doubted
    return [one.schedule for one in best.values() if one.predicted_seconds < most]


class _Pool:
    """Schedules to choose among."""

    def __init__(self, first: Sequence[Candidate]) -> None:
        self.predicted: dict[Schedule, float] = {}
        self.add(first)

    def add(self, more: Sequence[Candidate]) -> None:
        """Add those that are new; of equal bounds the one that was added first is chosen."""
        for one in more:
            self.predicted.setdefault(one.schedule, one.predicted_seconds)
        self.every = list(self.predicted)
        self.place = {one: i for i, one in enumerate(self.every)}
        self.model = np.log(list(self.predicted.values()))
        self.residual = Residual(self.every)

    def promising(self, found: Mapping[Schedule, float], batch: int) -> list[Schedule]:
        """Return up to ``batch`` schedules of the least bounds below the best that was found.

        Where nothing ran yet: below what the best is at most, by the same doubt.
        """
        at = {self.place[one]: math.log(found[one]) for one in found}
        known = self.residual.given(
            {i: t - float(self.model[i]) for i, t in at.items() if t < math.inf}
        )
        open_ = np.zeros(len(self.every))
        open_[list(at)] = math.inf
        most = self.model + known.mean + DOUBT * known.deviation + open_
        best = min(at.values(), default=math.inf)
        best = best if math.isfinite(best) else float(most.min(initial=math.inf))
        chosen: list[int] = []
        while len(chosen) < min(batch, len(self.every)):
            bounds = self.model + known.mean - DOUBT * known.deviation + open_
            least = int(np.argmin(bounds))
            if not bounds[least] < best:
                break
            chosen.append(least)
            open_[least] = math.inf
            known = known.asked(least) if found or len(chosen) >= BATCH else known
        return [self.every[i] for i in chosen]


def _best(
    found: Mapping[Schedule, float], apart: Callable[[Schedule], object], width: int
) -> list[Schedule]:
    """Return the fastest ``width`` that ran, no two alike in ``apart``."""
    best: dict[object, Schedule] = {}
    for schedule in sorted(found, key=lambda schedule: found[schedule]):
        if math.isfinite(found[schedule]) and len(best) < width:
            best.setdefault(apart(schedule), schedule)
    return list(best.values())
