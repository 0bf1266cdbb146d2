"""A policy learned on landscapes of attention that are no complete boxes (``attention_replay.py``).

``ListedEnv`` is ``tinygpu/Schedule-v0`` on a list of schedules.  An action gives one decision a
value: it leads to the model's best of the schedules with this value that are not evaluated yet.
So nothing is evaluated twice, and every schedule can be met.  A walk begins at the model's best.
It costs ``1 / BUDGET`` an evaluation until one within 1 % of the best is met, which ends it.

An observation has for each action whether its value is chosen now; the log of the prediction that
it leads to over the best one that is left; and the mean log of measured over predicted seconds of
what was evaluated with this value, less that of all: what a surrogate knows, too.

The logits of MaskablePPO are those of the model's softmax plus what a network learns, which is
nothing before training.  It trains on the measured landscapes of other problems, and as often on
``DRAWN`` of each problem that were drawn from the surrogate's prior around the model's predictions:
of the problem itself, too, since these are known before anything is measured.

Source: J. Schulman et al., "Proximal Policy Optimization Algorithms", 2017; S. Huang and S.
Ontanon, "A Closer Look at Invalid Action Masking in Policy Gradient Algorithms", 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.replay import NEAR
from benchmarks.replay_held_out import Listed
from tinygpu.search.environment import Floats, Land, ScheduleEnv
from tinygpu.search.residual import SCALE, embedded
from tinygpu.term.schedule import Schedule

__all__ = ["ListedEnv", "ListedLand", "lands_like", "learned"]

BUDGET, DRAWN, TIMES, SHARP = 32, 64, 3, 20.0
"""Evaluations that cost 1; drawn landscapes of a problem; how often it trains anew; the power of
the softmax."""
_FAR = 1.0
"""The log of a prediction over the best one that stands for more, and for no schedule."""


@dataclass(frozen=True)
class ListedLand(Land):
    """A land whose schedules are in the order of what the model says that they take: ``model``."""

    model: tuple[float, ...] = ()


def land_of(one: Listed, errors: NDArray[np.float64] | None = None) -> ListedLand:
    """Return a landscape as a land, as measured or with these errors of the model's, as logs.

    Errors are in the order of the landscape's schedules.
    """
    every = list(one.seconds)
    order = sorted(range(len(every)), key=lambda i: one.predicted[every[i]])
    model = [one.predicted[every[i]] for i in order]
    times = [one.seconds[every[i]] for i in order]
    if errors is not None:
        times = [p * math.exp(errors[i]) for p, i in zip(model, order, strict=True)]
    seconds = {every[i]: t for i, t in zip(order, times, strict=True)}
    return ListedLand(one.shape, seconds, tuple(model))


def lands_like(one: Listed, count: int, rng: np.random.Generator) -> list[ListedLand]:
    """Draw landscapes from the surrogate's prior: its process around the model's predictions."""
    every: list[Schedule] = list(one.seconds)
    points = embedded(every)
    apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1))
    factor = np.linalg.cholesky(SCALE**2 * np.exp(-apart) + 1e-9 * np.eye(len(every)))
    return [land_of(one, factor @ rng.standard_normal(len(every))) for _ in range(count)]


class ListedEnv(ScheduleEnv):
    """See the module.  ``taught`` are the lands that an episode draws, unless one is named."""

    lands: tuple[ListedLand, ...]

    def __init__(self, lands: Sequence[ListedLand], taught: Sequence[int]) -> None:
        """Have the values of all lands as actions."""
        super().__init__(lands, BUDGET)
        self.taught = list(taught)
        size = 3 * len(self.moves) + len(lands[0].sizes) + 1
        self.observation_space = spaces.Box(-64, 64, (size,), np.float32)
        self.tables = [
            np.array([[point[place] == value for point in land.known]
                      for place, value in self.moves])
            for land in lands
        ]  # fmt: skip

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Evaluate the model's best of a land; one that is drawn is not solved by that."""
        super(ScheduleEnv, self).reset(seed=seed)
        number = (options or {}).get("land")
        while True:
            land = int(self.np_random.choice(self.taught)) if number is None else int(number)
            self.land, self.table = self.lands[land], self.tables[land]
            self.points = list(self.land.known)
            self.model = np.log(self.lands[land].model)
            self.times = np.array(list(self.land.known.values()))
            self.open = np.ones(len(self.points), bool)
            self.count, self.total = (np.zeros(len(self.moves)) for _ in "ct")
            self.met: list[float] = []
            self._evaluate(0)
            if number is not None or not self.solved:
                return self._seen(), {"seconds": self.best}

    @property
    def solved(self) -> bool:
        """Whether a schedule within 1 % of the best was met."""
        return bool(self.best <= NEAR * self.times.min())

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Evaluate the schedule that an action leads to; it costs the same each time."""
        if self.targets[action] >= 0:
            self._evaluate(int(self.targets[action]))
        done = self.solved or not self.open.any()
        return self._seen(), -1 / BUDGET, done, False, {"seconds": self.met[-1]}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which values a schedule has that is not evaluated yet."""
        return np.asarray(self.targets >= 0)

    def _evaluate(self, place: int) -> None:
        """Take a schedule's time; find where each action leads now."""
        self.here, seconds = self.points[place], float(self.times[place])
        self.met.append(seconds)
        self.best, self.open[place] = min(self.met), False
        self.count += self.table[:, place]
        self.total += self.table[:, place] * (math.log(seconds) - self.model[place])
        left = self.table & self.open
        self.targets = np.where(left.any(axis=1), left.argmax(axis=1), -1)  # the model's order

    def _seen(self) -> Floats:
        chosen = [float(self.here[place] == value) for place, value in self.moves]
        least = self.model[self.open].min() if self.open.any() else 0.0
        ahead = np.where(self.targets >= 0, self.model[self.targets] - least, _FAR)
        known = np.maximum(self.count, 1)
        common = self.total.sum() / self.count.sum()
        errors = np.where(self.count > 0, self.total / known - common, 0.0) / SCALE
        sizes = [math.log2(size) / 20 for size in self.land.sizes]
        rest = [*sizes, len(self.met) / BUDGET]
        seen = np.concatenate([chosen, errors, rest, np.minimum(ahead, _FAR)])
        return np.asarray(np.clip(seen, -64, 64), np.float32)


def _policy() -> Any:
    """Return the class of policies whose logits begin as those of the model's softmax."""
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy

    class Prior(MaskableActorCriticPolicy):  # type: ignore[misc,unused-ignore]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.features_extractor.register_forward_pre_hook(self._kept)

        def _kept(self, _: Any, given: tuple[Any, ...]) -> None:
            self.ahead = given[0][:, -self.action_space.n :]

        def _get_action_dist_from_latent(self, latent: Any) -> Any:
            logits = self.action_net(latent) - SHARP * self.ahead
            return self.action_dist.proba_distribution(action_logits=logits)

    return Prior


def _walked(env: ListedEnv, model: Any, number: int, *, sure: bool) -> list[float]:
    """Return the seconds that a walk of a policy meets, in order; it takes what is likeliest."""
    seen, _ = env.reset(options={"land": number})
    while env.open.any():
        action, _ = model.predict(seen, action_masks=env.action_masks(), deterministic=sure)
        seen, *_ = env.step(np.int64(action))
        if env.solved and len(env.met) >= BUDGET:
            break
    return env.met


def _fold(
    job: tuple[int, int], lands: Sequence[Listed], folds: int, steps: int, seeds: int
) -> dict[str, dict[int, list[list[float]]]]:
    """Train without the problems of a fold, and walk on these."""
    import torch
    from sb3_contrib import MaskablePPO

    torch.set_num_threads(1)
    fold, seed = job
    rng = np.random.default_rng([seed, fold])
    mine = [i for i in range(len(lands)) if i % folds != fold]
    every = [land_of(one) for one in lands]
    for one in lands:
        every += lands_like(one, DRAWN, rng)
    drawn = range(len(lands), len(every))
    env = ListedEnv(every, [*drawn, *(mine * (len(drawn) // len(mine)))])
    model = MaskablePPO(
        _policy(), env, seed=seed, n_steps=1024, batch_size=256, gamma=1.0, gae_lambda=0.95,
        ent_coef=0.003, learning_rate=1e-3, policy_kwargs={"net_arch": [64, 64]},
    )  # fmt: skip
    held = [i for i in range(len(lands)) if i % folds == fold]
    found: dict[str, dict[int, list[list[float]]]] = {}

    def walk(name: str) -> None:
        sure = {i: [list(_walked(env, model, i, sure=True))] for i in held}
        some = {i: [list(_walked(env, model, i, sure=False)) for _ in range(seeds)] for i in held}
        found.update({name: sure, f"{name}, drawn": some})

    walk("untrained")
    model.learn(steps)
    walk("policy")
    del found["untrained"]  # its likeliest action is the order of the model
    return found


def learned(
    lands: Sequence[Listed], folds: int, steps: int, seeds: int
) -> dict[str, list[list[list[float]]]]:
    """Return by name the walks on each landscape: of policies trained on the other folds'.

    ``policy`` and ``policy, drawn`` are trained ``TIMES`` times; together they have ``seeds`` walks
    of the latter.
    """
    jobs = [(fold, seed) for fold in range(folds) for seed in range(TIMES)]
    each = partial(_fold, lands=lands, folds=folds, steps=steps, seeds=-(-seeds // TIMES))
    found: dict[str, list[list[list[float]]]] = {}
    with ProcessPoolExecutor() as pool:
        for some in pool.map(each, jobs):
            for name, walks in some.items():
                mine = found.setdefault(name, [[] for _ in lands])
                for number, walk in walks.items():
                    mine[number] += walk
    return found
