"""Single changes: the neighbourhood of a schedule, in which strategies walk (``strategies/``).

A *single change* gives one decision another value.  Where that alone is illegal, the fewest further
decisions change with it, the model's choice among equals: a wider tile with a stage less.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> problem = Problem.of(matmul(), m=256, n=256, k=256)
>>> fixed = {**LADDER["tuned"], "raster": (4, 8), "vector_c": (2, 4)}
>>> near = Neighbourhood(Space(Simt(), problem, load_device("h200"), fixed=fixed))
>>> for one in near(Schedule.of(Simt(), LADDER["tuned"])):
...     print(one.schedule["raster"], one.schedule["vector_c"])
8 2
4 4
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tinygpu.deadline import NEVER, Deadline
from tinygpu.search.exact.scorer import Points, Scorers
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.schedule import Schedule

__all__ = ["Candidate", "Neighbourhood"]

_FURTHER = 2
"""Decisions that may change with another, where that alone is illegal."""
_CROSSED = 24
"""Most schedules that are crossed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its predicted seconds."""

    schedule: Schedule
    predicted_seconds: float


class Neighbourhood:
    """The single changes of a space's schedules; batches that they need are built once."""

    def __init__(self, space: Space, until: Deadline = NEVER) -> None:
        """Build nothing yet; after ``until`` some changes are left out."""
        self.space, self.until = space, until
        own = Space(space.machine, space.problem, space.device, fixed=space.fixed)
        self._every = Scorers(own)  # another thread may build batches of the space

    def __call__(self, schedule: Schedule) -> list[Candidate]:
        """Return the best legal schedule of each single change that can be mended."""
        space = self.space
        own = tuple(schedule[name] for name in space.structural)
        at = [space.values[name].index(schedule[name]) for name in space.axes]
        here = np.array(at, np.int64)
        found = list(self._changed(own, here, list(_singles(here, space.sums.lengths))))
        for i, name in enumerate(space.structural):
            for value in space.beside(name, own[i], space.values[name]):
                if not self.until.passed():
                    found += self._changed((*own[:i], value, *own[i + 1 :]), here, [()])
        best: dict[Schedule, Candidate] = {}
        for one in found:
            best.setdefault(one.schedule, one)
        return [one for one in best.values() if one.schedule != schedule]

    def crossed(self, schedule: Schedule, others: Sequence[Schedule]) -> list[Candidate]:
        """Return a schedule with what others choose where schedules of the model tie.

        These are the decisions of ``Machine.apart`` beyond its spread: with every value of one that
        others have, in their order, every one of the next.  Where values measured faster together
        with its tile, it is crossed with these too.
        """
        space, machine = self.space, self.space.machine
        bases = [schedule]
        for faster in machine.measured(space.problem):
            if all(schedule[name] == faster.get(name, schedule[name]) for name in machine.spread):
                own = {name: value for name, value in faster.items() if value in space.values[name]}
                bases.append(schedule.with_(**own))
        bases = list(dict.fromkeys(bases))
        tied = [name for name in machine.apart if name not in machine.spread]
        seen = [list(dict.fromkeys(one[name] for one in (*bases, *others))) for name in tied]
        found: list[Candidate] = []
        for values in product(*seen) if tied else ():
            if self.until.passed() or len(found) >= _CROSSED:
                break
            for one in (base.with_(**dict(zip(tied, values, strict=True))) for base in bases):
                structure = tuple(one[name] for name in space.structural)
                here = np.array([space.values[n].index(one[n]) for n in space.axes], np.int64)
                found += self._changed(structure, here, [()])
        return found

    def _changed(
        self,
        structure: tuple[Value, ...],
        here: NDArray[np.int64],
        changes: Sequence[tuple[int, int] | tuple[()]],
    ) -> Iterator[Candidate]:
        """Yield, for each change of numeric decisions, the best legal point with few more."""
        scorer = self._every.of(dict(zip(self.space.structural, structure, strict=True)))
        if scorer is None:
            return
        open_changes = list(changes)
        for further in range(_FURTHER + 1):
            left = []
            for change in open_changes:
                points = _with(here, change, further, scorer.lengths)
                legal = points[scorer.legal(points)]
                if not len(legal):
                    left.append(change)
                    continue
                seconds = scorer.seconds(legal)
                best = int(np.argmin(seconds))
                schedule = self.space.schedule(scorer.batch, legal[best])
                yield Candidate(schedule, float(seconds[best]))
            open_changes = left


def _singles(here: NDArray[np.int64], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield every (axis, other value)."""
    for axis, length in enumerate(lengths):
        yield from ((axis, value) for value in range(length) if value != here[axis])


def _with(
    here: NDArray[np.int64],
    change: tuple[int, int] | tuple[()],
    further: int,
    lengths: Sequence[int],
) -> Points:
    """Return the points at which ``change`` and exactly ``further`` other decisions differ."""
    start, taken = here.copy(), -1
    if change:
        taken, start[change[0]] = change
        taken = change[0]
    points = start[None, :]
    last = np.full(1, -1)
    for _ in range(further):
        grown, lasts = [points[:0]], [last[:0]]  # where no other decision is open: none
        for axis, value in _singles(here, lengths):
            if axis == taken:
                continue
            some = points[last < axis].copy()  # in ascending order: no set of changes twice
            some[:, axis] = value
            grown.append(some)
            lasts.append(np.full(len(some), axis))
        points, last = np.concatenate(grown), np.concatenate(lasts)
    return points
