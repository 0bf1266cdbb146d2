"""Many processes climb in a space, each in the parts that come to it.

A space is built batch by batch, which for many batches takes longer than the climb in them.  A part
has some of the structural choices, dealt at random, those near the first values of all decisions
first: what a deadline leaves out is not all of one value.  A process draws from the choices of its
parts, one part after another, so that what is found does not depend on how many there are.

    this process: start one, send all parts  ->  ``python -m tinygpu.search.exact.part SOCKET``
    take each part's result                  <-  PartResult, part after part, of its copies

An exact search where the steps of each schedule are followed goes the same way, in all batches.

Source: fork(2); ``process.py`` for what the processes share.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from tinygpu.cores import cores
from tinygpu.deadline import Deadline
from tinygpu.search.exact.branch import Entry, Progress
from tinygpu.search.exact.process import Failed, UnshareableError, started
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem

__all__ = ["PartResult", "PartTask", "climb_in_parts", "parts_of"]

_PARTS, _PROCESSES, _IN_TIME = 16, 16, 4
"""Parts; processes at most; and with a deadline, by which a few that come far find more than many
that do not: in 26 s of CPU 16, 8 and 4 end 0 to 5, 0 to 1 and 0 % above attention's best."""
Structure = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class PartResult:
    """The best of a part or of all, and how many schedules were admissible and scored."""

    entries: list[Entry]
    admissible: int
    scored: int


@dataclass(frozen=True, slots=True)
class PartTask:
    """What is climbed in: a Space's arguments, and the structural choices of each part.

    ``processes`` take the parts in turn.  ``end``: when nothing more is begun (infinite: never), by
    the clock that all processes have.  ``exact``: every part is searched whole.
    """

    machine: Machine
    problem: Problem
    device: Any
    fixed: Mapping[str, Value | tuple[Value, ...]]
    parts: tuple[tuple[Structure, ...], ...]
    k: int
    spread: tuple[str, ...]
    below: float
    end: float
    processes: int
    exact: bool = False


def parts_of(space: Space) -> tuple[tuple[Structure, ...], ...]:
    """Return the structural choices of each part, always the same ones."""
    worth = space.worth
    every = [one for one in space.drawn() if all(one[name] in worth[name] for name in one)]
    first = {name: space.values[name][0] for name in space.structural}
    dealt = [every[i] for i in np.random.default_rng(0).permutation(len(every))]
    dealt.sort(key=lambda one: sum(value != first[name] for name, value in one.items()))
    return tuple(tuple(dealt[i::_PARTS]) for i in range(min(_PARTS, len(dealt))))


def batches_of(space: Space) -> tuple[tuple[Structure, ...], ...]:
    """Return the structural choices of each part, all that have admissible schedules."""
    every = [batch.structure for batch in space.batches()]
    return tuple(tuple(every[i::_PARTS]) for i in range(min(_PARTS, len(every))))


def climb_in_parts(
    space: Space,
    k: int,
    spread: tuple[str, ...],
    below: float,
    progress: Progress | None,
    until: Deadline,
    share: float = 1.0,
    *,
    exact: bool = False,
) -> PartResult:
    """Climb in all parts at once, by a share of the cores; ``exact``: search each of them whole.

    Raises UnshareableError if there is one part, or no other process can be told of this machine,
    and whatever goes wrong in a process.
    """
    parts = batches_of(space) if exact else parts_of(space)
    if len(parts) < 2 or not hasattr(os, "fork"):
        raise UnshareableError
    most = _PROCESSES if until.open else _IN_TIME
    many = min(max(1, int(cores() * share)), len(parts), most)
    entries, admissible, scored = [], 0, 0
    end = inf if until.open else monotonic() + until.left()
    task = PartTask(
        space.machine, space.problem, space.device, space.fixed, parts, k, spread, below, end, many,
        exact,
    )  # fmt: skip
    with started(task) as pipe:
        for done in range(1, len(parts) + 1):
            match pipe.recv():
                case PartResult() as one:
                    entries += one.entries
                    admissible, scored = admissible + one.admissible, scored + one.scored
                case Failed(error, loading):
                    raise UnshareableError if loading else error
            if progress:
                progress(done, len(parts))
    return PartResult(entries, admissible, scored)
