"""Many processes climb in a space, each in the parts that come to it.

A space is built batch by batch, which for many batches takes longer than the climb in them.  A part
has one value of a few structural decisions: of those with most values, as many as make ``_PARTS``
parts.  It is drawn from and climbed in by a process that builds nothing else, so that what it finds
does not depend on how many processes there are.  Parts are dealt in an order in which the last
value of one decision comes after all first values: what a deadline leaves out is not all of one.

    this process: start one, send all parts  ->  ``python -m tinygpu.search.exact.part SOCKET``
    take each part's result                  <-  PartResult, part after part, of its copies

Source: fork(2); ``process.py`` for what the processes share.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from time import monotonic
from typing import Any

from tinygpu.cores import cores
from tinygpu.deadline import Deadline
from tinygpu.search.exact.branch import Entry, Progress
from tinygpu.search.exact.process import Failed, UnshareableError, started
from tinygpu.space.space import Space
from tinygpu.term.machine import Value

__all__ = ["PartResult", "PartTask", "climb_in_parts", "parts_of"]

_PARTS, _PROCESSES = 12, 16
Fixed = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartResult:
    """The best of a part or of all, and how many schedules were admissible and scored."""

    entries: list[Entry]
    admissible: int
    scored: int


@dataclass(frozen=True, slots=True)
class PartTask:
    """What is climbed in: a Space's arguments, and what each part fixes of it.

    ``processes`` take the parts in turn.  ``end``: when nothing more is begun (infinite: never), by
    the clock that all processes have.
    """

    machine: Any
    problem: Any
    device: Any
    parts: tuple[Fixed, ...]
    k: int
    spread: tuple[str, ...]
    below: float
    end: float
    processes: int


def parts_of(space: Space) -> tuple[Fixed, ...]:
    """Return what each part fixes, the first values of all decisions first."""
    several = [name for name in space.structural if len(space.values[name]) > 1]
    ordered = sorted(several, key=lambda name: -len(space.values[name]))
    chosen: list[str] = []
    while ordered and prod(len(space.values[name]) for name in chosen) < _PARTS:
        chosen.insert(0, ordered.pop(0))
    every: list[tuple[Value, ...]] = list(product(*(space.values[name] for name in chosen)))
    return tuple(
        {**space.fixed, **{name: (value,) for name, value in zip(chosen, values, strict=True)}}
        for values in every
    )


def climb_in_parts(
    space: Space,
    k: int,
    spread: tuple[str, ...],
    below: float,
    progress: Progress | None,
    until: Deadline,
    share: float = 1.0,
) -> PartResult:
    """Climb in all parts at once, by a share of the cores.

    Raises UnshareableError if there is one part, or no other process can be told of this machine,
    and whatever goes wrong in a process.
    """
    parts = parts_of(space)
    if len(parts) < 2 or not hasattr(os, "fork"):
        raise UnshareableError
    many = min(max(1, int(cores() * share)), len(parts), _PROCESSES)
    entries, admissible, scored = [], 0, 0
    end = inf if until.open else monotonic() + until.left()
    task = PartTask(space.machine, space.problem, space.device, parts, k, spread, below, end, many)
    with started(task, "tinygpu.search.exact.part") as pipe:
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
