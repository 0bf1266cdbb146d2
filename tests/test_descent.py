"""Coordinate descent finds what single changes can reach, and nothing twice."""

from __future__ import annotations

from collections.abc import Sequence

from tinygpu.search.descent import descend, neighbours

from tinygpu.device import load_device
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import Problem, matmul
from tinygpu.schedule import Schedule
from tinygpu.search.cost import cost

PROBLEM = Problem.of(matmul(), m=512, n=512, k=512)
DEVICE = load_device("h200")


def near(schedule: Schedule) -> tuple[Schedule, ...]:
    return neighbours(schedule, Simt(), PROBLEM, DEVICE)


def test_neighbours_differ_in_one_decision() -> None:
    """Each neighbour is another legal schedule, one decision away."""
    start = Schedule.of(Simt(), LADDER["tuned"])
    found = near(start)
    assert len(found) > 10
    for other in found:
        assert sum(a != b for a, b in zip(start.decisions, other.decisions, strict=True)) == 1


def test_descent_ends_where_no_change_helps() -> None:
    """From a slow start the time falls, every schedule is evaluated once, the end is an optimum."""
    asked: list[Schedule] = []

    def evaluate(schedules: Sequence[Schedule]) -> list[float]:
        asked.extend(schedules)
        programs = (s.program(Simt(), PROBLEM.operation) for s in schedules)
        return [float(cost(p, PROBLEM.sizes, DEVICE).seconds) for p in programs]

    start = Schedule.of(Simt(), LADDER["2-D registers"])
    known = dict(zip([start], evaluate([start]), strict=True))
    found = descend(known, near, evaluate, rounds=30)
    best = min(found, key=lambda s: found[s])
    assert len(asked) == len(set(asked)) == len(found)
    assert found[best] < 0.9 * known[start]
    assert all(found[s] >= found[best] for s in near(best))
