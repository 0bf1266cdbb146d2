"""A policy learned by reinforcement, beside random: ``python -m benchmarks.policy``.

MaskablePPO of sb3-contrib (not a dependency: ``pip install sb3-contrib``) learns to walk
(``tinygpu/Schedule-v0``) on every second of the complete landscapes, and on what the time model
predicts of the same schedules at ``MODELLED``, other shapes.  Then it walks on all landscapes with
``SEEDS`` seeds each.  Beside it walk, from the same first schedules and for as many evaluations,
single changes drawn from the legal ones, and schedules drawn from the whole space.  A row of
``policy.json`` is a landscape: ``group``, and for each of the three best possible time over best
found, the geometric mean over the seeds, after ``BUDGET`` evaluations, and ``wins``: of how many
seeds the policy found a faster schedule than the drawn ones.

Source: J. Schulman et al., "Proximal Policy Optimization Algorithms", 2017.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.landscapes import LANDSCAPES
from benchmarks.peers import FOLDER, write_tree
from benchmarks.replay import load, modelled
from tinygpu.codegen.run.provenance import provenance
from tinygpu.search.environment import Land, ScheduleEnv
from tinygpu.term.schedule import Schedule

__all__ = ["main", "walked"]

SEEDS, BUDGET, STEPS = 20, 32, 150_000
MODELLED = (
    (2, 6144, 4096), (8, 4096, 8192), (24, 8192, 4096), (32, 10240, 4096), (48, 4096, 14336),
    (96, 4096, 4096), (192, 8192, 4096), (384, 4096, 8192), (512, 6144, 4096), (900, 4096, 4096),
    (1536, 5120, 4096), (3072, 4096, 4096),
)  # fmt: skip
Policy = Callable[[ScheduleEnv, Any, np.random.Generator], int]


def walked(env: ScheduleEnv, number: int, seed: int, policy: Policy) -> float:
    """Return the best possible time over the best that a walk finds."""
    seen, _ = env.reset(seed=seed, options={"land": number})
    rng, done = np.random.default_rng(seed), False
    while not done:
        seen, _, done, _, _ = env.step(np.int64(policy(env, seen, rng)))
    return min(env.land.seconds.values()) / env.best


def drawn(env: ScheduleEnv, number: int, seed: int) -> float:
    """Return the same for the first schedule and others drawn uniformly, each once."""
    env.reset(seed=seed, options={"land": number})
    times = np.array(list(env.land.seconds.values()))
    others = np.random.default_rng(seed).permutation(times)[: env.budget - 1]
    return float(times.min() / min(env.first, others.min()))


def legal(env: ScheduleEnv, seen: Any, rng: np.random.Generator) -> int:
    """Return a legal single change, drawn."""
    return int(rng.choice(np.flatnonzero(env.action_masks())))


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, walk, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the table")
    parser.add_argument("--steps", type=int, default=STEPS, help="evaluations to learn from")
    given = parser.parse_args(arguments)
    from sb3_contrib import MaskablePPO

    lands = [Land(land.shape, land.seconds) for land in load(every=True)]
    box = json.loads((LANDSCAPES / "schedules.json").read_text(encoding="utf-8"))
    names = box["decisions"]
    schedules = [Schedule("hopper", tuple(zip(names, r, strict=True))) for r in box["schedules"]]
    more = [
        Land(shape, dict(zip(schedules, times.tolist(), strict=True)))
        for shape, times in zip(MODELLED, modelled(box, MODELLED), strict=True)
    ]
    env = ScheduleEnv(lands, BUDGET)
    start = time.process_time()
    school = ScheduleEnv([*lands[::2], *more], BUDGET)
    model = MaskablePPO(
        "MlpPolicy", school, seed=0, n_steps=1024, batch_size=256,
        gamma=0.97, ent_coef=0.01, learning_rate=5e-4,
    )  # fmt: skip
    model.learn(given.steps)
    spent = time.process_time() - start

    def learned(env: ScheduleEnv, seen: Any, rng: np.random.Generator) -> int:
        action, _ = model.predict(seen, action_masks=env.action_masks(), deterministic=False)
        return int(action)

    rows = []
    for number, land in enumerate(lands):
        walks = {
            "policy": [walked(env, number, seed, learned) for seed in range(SEEDS)],
            "changes": [walked(env, number, seed, legal) for seed in range(SEEDS)],
            "random": [drawn(env, number, seed) for seed in range(SEEDS)],
        }
        means = {n: round(math.exp(np.log(ratios).mean()), 4) for n, ratios in walks.items()}
        wins = sum(p > r for p, r in zip(walks["policy"], walks["random"], strict=True))
        group = "held_out" if number % 2 else "fitting"
        rows.append({"shape": land.sizes, "group": group, **means, "wins": wins})
        sys.stdout.write(f"{rows[-1]}\n")
    tree = {
        "provenance": provenance("python -m benchmarks.policy"), "steps": given.steps,
        "budget": BUDGET, "seeds": SEEDS, "learning_seconds": round(spent), "rows": rows,
    }  # fmt: skip
    write_tree(given.out / "policy.json", tree)


if __name__ == "__main__":
    main()
