"""``tree``: Monte Carlo tree search over decisions, with the time model as its prior.

A node has given values to the first decisions; its children give one to the next.  Decisions come
in the order of how much of the prediction's variance their values explain, the most first.  A
child's prior is the share that schedules below it have of the model's softmax,

    P(child) = sum over x below of p(x)^-SHARP / the same below its parent,

and its value is the best time found at all over the best below it, to the power ``SHARP``.  Of a
child without one the model's best below it stands for that; its value is at most 1.  A simulation
goes down to one schedule by the largest

    value + EXPLORE P(child) sqrt(visits of the parent) / (1 + visits of the child),

and evaluates it; nothing is evaluated twice.  Both numbers were chosen on the eight landscapes of
matmul (``landscapes.py``), where they need 3.1 evaluations in the mean to come within 1 % of the
best, and others between 10 and 40 by 0.3 and 3 need 2.8 to 4.8; ``gaussian`` needs 4.4.

Source: D. Silver et al., "Mastering the game of Go without human knowledge", 2017 (PUCT).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.strategies import Domain
from tinygpu.search.strategies.walk import Steps
from tinygpu.term.schedule import Schedule

__all__ = ["EXPLORE", "SHARP", "tree"]

SHARP, EXPLORE = 40.0, 1.0


@dataclass(slots=True)
class _Node:
    """What is known below some chosen values: ``left`` schedules are not evaluated yet."""

    weight: float = 0.0
    left: int = 0
    visits: int = 0
    best: float = math.inf
    least: float = math.inf
    children: dict[object, _Node] = field(default_factory=dict)
    schedule: Schedule | None = None

    def add(self, one: Candidate, order: Sequence[str], weight: float) -> None:
        """Add a schedule below this node."""
        node = self
        for name in (*order, ""):
            node.weight += weight
            node.left += 1
            node.least = min(node.least, one.predicted_seconds)
            if name:
                node = node.children.setdefault(one.schedule[name], _Node())
        node.schedule = one.schedule

    def next(self, best: float, explore: float) -> _Node:
        """Return the child of the largest score."""

        def score(child: _Node) -> float:
            below = child.best if child.visits else child.least
            prior = child.weight / self.weight
            going = explore * prior * math.sqrt(self.visits + 1) / (1 + child.visits)
            return float(min(1.0, best / below) ** SHARP) + going

        return max((c for c in self.children.values() if c.left), key=score)


def ordered(every: Sequence[Candidate]) -> list[str]:
    """Return the decisions' names, the one that explains most of the prediction's variance first.

    >>> some = [Schedule("line", (("a", a), ("b", b))) for a in (0, 1) for b in (0, 1)]
    >>> ordered([Candidate(one, 1.0 + one["a"] + 9 * one["b"]) for one in some])
    ['b', 'a']
    """
    logs = np.log([one.predicted_seconds for one in every])

    def explained(name: str) -> float:
        values = [one.schedule[name] for one in every]
        groups = [logs[[v == value for v in values]] for value in dict.fromkeys(values)]
        return float(sum(len(g) * (g.mean() - logs.mean()) ** 2 for g in groups))

    names = [name for name, _ in every[0].schedule.decisions]
    return sorted(names, key=explained, reverse=True)


def tree(domain: Domain, rng: np.random.Generator, *, explore: float = EXPLORE) -> Steps:
    """Ask for the schedule that a simulation ends at, until all are known."""
    every = domain.first
    order, least = ordered(every), min(one.predicted_seconds for one in every)
    root = _Node()
    for one in every:
        root.add(one, order, (least / one.predicted_seconds) ** SHARP)
    while root.left:
        path = [root]
        while path[-1].schedule is None:
            path.append(path[-1].next(root.best, explore))
        wanted = path[-1].schedule
        found = yield [wanted]
        for node in path:
            node.visits, node.left = node.visits + 1, node.left - 1
            node.best = min(node.best, found[wanted])
