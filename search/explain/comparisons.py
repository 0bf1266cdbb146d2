"""Comparisons: the text of ``compare`` for every pair of many schedules.

All pairs walk at once: in each round, what they ask for is scored together, over the space of the
values that occur in the schedules.  As in every space, the verdict on a program with
mbarriers is left out (``docs/model.md``, section "Spaces"); the machines' own laws imply it.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> problem, h200 = Problem.of(matmul(), m=4096, n=4096, k=4096), load_device("h200")
>>> three = [Schedule.of(Simt(), LADDER[n]) for n in ("naive", "coalesced", "shared")]
>>> texts = comparisons(three, Simt(), problem, h200)
>>> sorted(texts), texts[0, 1].splitlines()[1].partition(":")[0]
([(0, 1), (0, 2), (1, 2)], 'B wins')

Source: ``explain.py``, whose walk this is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.search.exact.scorer import Scorer, Scorers
from tinygpu.search.explain.explain import Comparison, outlined, seconds_of, walked
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule

__all__ = ["comparisons"]

Times = dict[Schedule, float | None]


def comparisons(
    schedules: Sequence[Schedule], machine: Machine, problem: Problem, device: Device
) -> Mapping[tuple[int, int], str]:
    """Return by (i, j), i < j, what ``compare`` says of schedules i and j, all of them legal."""
    explained = [outlined(schedule, machine, problem, device) for schedule in schedules]
    pairs = list(combinations(range(len(schedules)), 2))
    if machine.numeric:
        seconds = _Scores(schedules, machine, problem, device).of
    else:
        seconds = partial(seconds_of, machine=machine, problem=problem, device=device)
    every = walked([(schedules[i], schedules[j]) for i, j in pairs], seconds)
    return {
        (i, j): str(Comparison(explained[i], explained[j], steps))
        for (i, j), steps in zip(pairs, every, strict=True)
    }


class _Scores:
    """The times of schedules that mix the values of some, many at once."""

    def __init__(
        self, schedules: Sequence[Schedule], machine: Machine, problem: Problem, device: Device
    ) -> None:
        occurring = {
            name: tuple(v for v in choice.values if any(s[name] == v for s in schedules))
            for name, choice in machine.decisions().items()
        }
        self.space = Space(machine, problem, device, fixed=occurring)
        self.scorers = Scorers(self.space)
        self.known: Times = {}

    def of(self, schedules: Iterable[Schedule]) -> Times:
        """Return the times of these, and of those before; None for one that is illegal."""
        by_batch: dict[tuple[Value, ...], list[Schedule]] = {}
        for schedule in schedules:
            if schedule not in self.known:
                self.known[schedule] = None
                structure = tuple(schedule[name] for name in self.space.structural)
                by_batch.setdefault(structure, []).append(schedule)
        for structure, group in by_batch.items():
            scorer = self.scorers.of(dict(zip(self.space.structural, structure, strict=True)))
            if scorer is not None:
                self._score(scorer, group)
        return self.known

    def _score(self, scorer: Scorer, group: Sequence[Schedule]) -> None:
        batch = scorer.batch
        points = np.array(
            [
                [
                    values.index(one[name])
                    for name, values in zip(batch.axes, batch.values, strict=True)
                ]
                for one in group
            ]
        )
        legal = scorer.legal(points)
        seconds = scorer.seconds(points[legal])
        for place, time in zip(np.flatnonzero(legal).tolist(), seconds, strict=True):
            self.known[group[place]] = float(time)
