"""Coordinate descent on measured times: from good schedules, the best single change at a time.

A model ranks schedules but cannot tell the last few percent apart; those are the assembler's.  So
all legal schedules that differ in one decision from the best known are evaluated, and it moves to
the fastest, until none is faster or the rounds are over.

Source: S. Wright, "Coordinate descent algorithms", 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tinygpu.device import Device
from tinygpu.laws import check_schedule
from tinygpu.machine import Machine
from tinygpu.operation import Problem
from tinygpu.schedule import Schedule

__all__ = ["descend", "neighbours"]


def neighbours(
    schedule: Schedule, machine: Machine, problem: Problem, device: Device
) -> tuple[Schedule, ...]:
    """Return the legal schedules that differ in one decision."""
    changed = (
        schedule.with_(**{name: value})
        for name, choice in machine.decisions().items()
        for value in choice.values
        if value != schedule[name]
    )
    return tuple(s for s in changed if not check_schedule(s, machine, problem, device))


def descend(
    known: Mapping[Schedule, float],
    near: Callable[[Schedule], Sequence[Schedule]],
    evaluate: Callable[[Sequence[Schedule]], Sequence[float]],
    *,
    rounds: int = 3,
) -> dict[Schedule, float]:
    """Return ``known`` with what else was evaluated: seconds by schedule, infinite for failures.

    ``near(schedule)`` gives the changes to try; ``evaluate`` takes many schedules at once.
    """
    found = dict(known)
    for _ in range(rounds):
        best = min(found, key=lambda s: found[s])
        fresh = [s for s in near(best) if s not in found]
        if not fresh:
            break
        found |= dict(zip(fresh, evaluate(fresh), strict=True))
        if min(found, key=lambda s: found[s]) == best:
            break
    return found
