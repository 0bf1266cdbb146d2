"""The environment of Gymnasium: its own checker, masks, rewards; the policy's table."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest

from benchmarks.peers import FOLDER
from tinygpu.devices.device import load_device
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed (.[rl])")
from gymnasium.utils.env_checker import check_env  # noqa: E402

from tinygpu.search.environment import Land, ScheduleEnv  # noqa: E402


@cache
def lands() -> tuple[Land, ...]:
    fixed = {**LADDER["tuned"], "raster": (1, 2, 4), "vector_c": (1, 2, 4), "stages": (1, 2)}
    sizes = ({"m": 256, "n": 256, "k": 64}, {"m": 64, "n": 512, "k": 128})
    device = load_device("h200")
    return tuple(
        Land.predicted(Space(Simt(), Problem.of(matmul(), **some), device, fixed=fixed))
        for some in sizes
    )


def test_gymnasium_finds_and_accepts_it() -> None:
    env = gymnasium.make("tinygpu/Schedule-v0", lands=lands(), budget=9)
    check_env(env.unwrapped, skip_render_check=True)


def test_masks_are_the_legal_moves_and_rewards_the_gain() -> None:
    """A legal move changes one decision, another leaves the schedule; the return is what is won."""
    env = ScheduleEnv(lands(), budget=30)
    rng = np.random.default_rng(0)
    for seed in range(4):
        env.reset(seed=seed, options={"land": seed % 2})
        total, done, steps = 0.0, False, 0
        while not done:
            masks, before = env.action_masks(), env.here
            action = int(rng.integers(len(masks)))
            seen, reward, done, _, info = env.step(np.int64(action))
            differing = sum(a != b for a, b in zip(before, env.here, strict=True))
            assert differing == int(masks[action])
            assert info["seconds"] == env.land.known[env.here]
            assert env.observation_space.contains(seen)
            total, steps = total + reward, steps + 1
        assert total == pytest.approx(math.log(env.first / env.best))
        assert steps == 29  # the first schedule is an evaluation, too


def test_a_walk_by_the_masks_meets_legal_schedules_alone() -> None:
    env = ScheduleEnv(lands(), budget=50)
    for seed in range(2):
        env.reset(seed=seed)
        met = {env.here}
        for _ in range(49):
            env.step(np.int64(env.np_random.choice(np.flatnonzero(env.action_masks()))))
            met.add(env.here)
        assert met <= set(env.land.known)
        assert len(met) > 3


def test_the_table_of_the_policy() -> None:
    """Half of the landscapes are held out; every mean is a ratio; random is what it is."""
    from benchmarks import policy
    from benchmarks.replay import load

    table = json.loads((FOLDER.parent / "policy.json").read_text())
    assert [row["group"] for row in table["rows"]] == ["fitting", "held_out"] * 4
    known = [Land(land.shape, land.seconds) for land in load(every=True)]
    env = ScheduleEnv(known, table["budget"])
    for number, row in enumerate(table["rows"]):
        assert all(0 < row[name] <= 1 for name in ("policy", "changes", "random"))
        ratios = [policy.drawn(env, number, seed) for seed in range(table["seeds"])]
        assert row["random"] == pytest.approx(np.exp(np.log(ratios).mean()), abs=1e-3)
