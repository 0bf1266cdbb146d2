"""The environment ``tinygpu/Schedule-v0`` of Gymnasium: a walk on schedules (extra ``rl``).

    import tinygpu.search.environment  # makes it known to Gymnasium
    env = gymnasium.make("tinygpu/Schedule-v0", lands=[Land((512, 512, 512), seconds)])

A *land* has the seconds of each legal schedule of a problem.  A state is a schedule of it, the
first one drawn.  An action gives one decision a value; ``action_masks`` says which of them lead to
another legal schedule, and one that does not leaves the state as it is.  A step is an evaluation.
The reward is log(best seconds before / best seconds after), so an episode's return is the log of
what was gained on the first schedule.  An episode ends after ``budget`` evaluations.

An observation is, all between 0 and 1 or near it: for each decision and value whether it is chosen,
the logs of the sizes over 20, log2 of (seconds here / first) and of (best / first), the share of
the budget that is left.

Source: M. Towers et al., "Gymnasium", 2024; S. Huang and S. Ontanon, "A Closer Look at Invalid
Action Masking in Policy Gradient Algorithms", 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.schedule import Schedule

__all__ = ["Land", "ScheduleEnv"]

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Land:
    """The seconds of every legal schedule of a problem of some sizes."""

    sizes: tuple[int, ...]
    seconds: Mapping[Schedule, float]

    @cached_property
    def known(self) -> dict[tuple[object, ...], float]:
        """The seconds by the values of the decisions."""
        return {tuple(v for _, v in one.decisions): t for one, t in self.seconds.items()}

    @staticmethod
    def predicted(space: Space) -> Land:
        """Return what the time model says of all schedules of a space, which has to be small."""
        problem = space.problem
        terms = {one: one.term(space.machine, problem.operation) for one in space}
        return Land(
            tuple(problem.sizes.values()),
            {s: float(cost(p, problem.sizes, space.device).seconds) for s, p in terms.items()},
        )


class ScheduleEnv(gymnasium.Env[Floats, np.int64]):
    """See the module; ``reset`` draws a land, or takes ``options={"land": number}``."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own field

    def __init__(self, lands: Sequence[Land], budget: int = 32) -> None:
        """Walk on one of ``lands`` an episode; all have the same decisions."""
        self.lands, self.budget = tuple(lands), budget
        every = [point for land in lands for point in land.known]
        columns = [sorted(set(column), key=str) for column in zip(*every, strict=True)]
        self.moves = [(i, v) for i, values in enumerate(columns) for v in values]
        self.action_space = spaces.Discrete(len(self.moves))
        size = len(self.moves) + len(self.lands[0].sizes) + 3
        self.observation_space = spaces.Box(-64, 64, (size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Draw a land, if none is named, and a schedule, which is the first evaluation."""
        super().reset(seed=seed)
        number = (options or {}).get("land", self.np_random.integers(len(self.lands)))
        self.land = self.lands[int(number)]
        points = list(self.land.known)
        self.here = points[int(self.np_random.integers(len(points)))]
        self.first = self.best = self.land.known[self.here]
        self.left = self.budget - 1
        return self._seen(), {"seconds": self.first}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Change one decision, and evaluate."""
        there = self._after(int(action))
        if there in self.land.known:
            self.here = there
        before, seconds = self.best, self.land.known[self.here]
        self.best, self.left = min(before, seconds), self.left - 1
        gained = math.log(before / self.best)
        return self._seen(), gained, self.left <= 0, False, {"seconds": seconds}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions lead to another legal schedule."""
        there = (self._after(i) for i in range(len(self.moves)))
        return np.array([one != self.here and one in self.land.known for one in there])

    def _after(self, action: int) -> tuple[object, ...]:
        place, value = self.moves[action]
        return (*self.here[:place], value, *self.here[place + 1 :])

    def _seen(self) -> Floats:
        chosen = [float(self.here[place] == value) for place, value in self.moves]
        sizes = [math.log2(size) / 20 for size in self.land.sizes]
        ratios = [math.log2(t / self.first) for t in (self.land.known[self.here], self.best)]
        return np.array([*chosen, *sizes, *ratios, self.left / self.budget], np.float32)


# Gymnasium knows an environment once its module is imported; it has no other way since 1.0
gymnasium.register("tinygpu/Schedule-v0", entry_point=f"{__name__}:ScheduleEnv")
