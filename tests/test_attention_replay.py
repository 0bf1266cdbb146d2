"""Replay of attention's landscapes: the tree, the policy's environment, and the recorded rows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks import attention_replay
from benchmarks.attention_landscapes import FILE
from benchmarks.attention_replay import (
    FOLDS,
    WALKS,
    by_the_other_visit,
    corrected,
    load,
    met,
    row_of,
)
from benchmarks.replay_held_out import Listed
from benchmarks.tree_search import tree
from tinygpu.term.schedule import Schedule

VALUES = [(a, b, c) for a in range(4) for b in range(3) for c in ("x", "y")]
EVERY = [Schedule("attention", tuple(zip("abc", some, strict=True))) for some in VALUES]


def landscape(error: float = 0.0, wrong: tuple[str, object] = ("c", "x")) -> Listed:
    """Return one whose model is wrong by ``error``, a logarithm, where a decision has a value."""
    model = {s: 1e-3 * (1 + a + 0.1 * b) for s, (a, b, _) in zip(EVERY, VALUES, strict=True)}
    off = {s: math.exp(error * (s[wrong[0]] == wrong[1])) for s in EVERY}
    return Listed((1, 2, 3), {s: t * off[s] for s, t in model.items()}, model)


def test_the_tree_meets_each_once_and_the_best_of_a_right_model_at_once() -> None:
    right = landscape()
    found = met(right, tree, "model", 0)
    assert sorted(found) == sorted(right.seconds.values())
    assert found[0] == min(found)


def test_the_tree_stays_where_it_found_the_best() -> None:
    """A model that knows nothing, and one value that is fast: once it is met, it is kept to."""
    blind = dict.fromkeys(EVERY, 1e-3)
    seconds = {s: t * (1 - 0.8 * (s["a"] == 2)) for s, t in landscape().seconds.items()}
    land = Listed((1, 2, 3), seconds, blind)
    fast = {t for s, t in seconds.items() if s["a"] == 2}
    found = met(land, tree, "model", 0)
    first = next(i for i, t in enumerate(found) if t in fast)
    assert first < 6
    assert set(found[first : first + 6]) == fast


def test_a_row_counts_all_where_a_walk_ends_before() -> None:
    land = landscape()
    best = min(land.seconds.values())
    walks = [[[2 * best, 1.005 * best, best]], [[2 * best]]]
    row = row_of("some", [land, land], walks)
    assert row["evaluations"] == [2, len(EVERY)]
    assert row["mean_wide"] == row["mean"]
    assert (row["mean"], row["worst"], row["ended"]) == ((2 + len(EVERY)) / 2, len(EVERY), 1)
    assert row["best_at"][1] == pytest.approx(0.5)
    assert row["best_at"][4] == pytest.approx(math.sqrt(0.5), abs=1e-4)


def test_the_environment_evaluates_each_once_from_the_models_best_on() -> None:
    """Its checker accepts it; an action leads to the model's best with its value."""
    pytest.importorskip("gymnasium", reason="gymnasium is not installed (.[rl])")
    from gymnasium.utils.env_checker import check_env

    from benchmarks.attention_policy import ListedEnv, land_of, lands_like

    drawn = lands_like(landscape(), 2, np.random.default_rng(0))
    env = ListedEnv([land_of(landscape(0.5)), *drawn], [1, 2])
    check_env(env, skip_render_check=True)
    env.reset(options={"land": 0})
    assert env.met == [1e-3 * math.exp(0.5)]
    rng, done = np.random.default_rng(0), False
    while not done:
        allowed = np.flatnonzero(env.action_masks())
        action = int(rng.choice(allowed))
        place, value = env.moves[action]
        left = [i for i in np.flatnonzero(env.open) if env.points[i][place] == value]
        seen, reward, done, _, _ = env.step(np.int64(action))
        assert env.here == env.points[min(left)]
        assert env.observation_space.contains(seen)
        assert reward < 0
    assert min(env.met) <= 1.01e-3
    assert len(env.met) == np.count_nonzero(~env.open)


def test_the_recorded_rows_are_what_is_found_now() -> None:
    """Of what draws nothing; the policy was trained where its library is."""
    table = json.loads((FILE.parent / "attention_replay.json").read_text())
    lands = [land for land, _, _ in load()]
    assert len(lands) >= 8
    assert [one["schedules"] for one in table["problems"]] == [len(x.seconds) for x in lands]
    rows = {row["strategy"]: row for row in table["rows"]}
    assert {"random", "policy"} <= set(rows)
    for name, (strategy, start, seeds) in WALKS.items():
        if seeds == 1:
            here = row_of(name, lands, [[met(land, strategy, start, 0)] for land in lands])
            assert here["evaluations"] == rows[name]["evaluations"]
    assert rows["random"]["seeds"] == attention_replay.SEEDS
    noise = json.loads(json.dumps(by_the_other_visit()))
    assert noise["evaluations"] == rows["by the other visit"]["evaluations"]


def test_other_problems_correct_a_prediction_that_is_wrong_everywhere() -> None:
    """One value is slow on all problems: the model's order comes to it last when it is told."""
    lands = [landscape(0.5)] * FOLDS
    better = corrected(lands, 0)
    for c, off in (("x", 1.0), ("y", 0.0)):
        logs = [
            math.log(better.predicted[s] / t) for s, t in lands[0].predicted.items() if s["c"] == c
        ]
        assert max(logs) - min(logs) < 0.2
        assert np.mean(logs) == pytest.approx(0.5 * off - 0.25, abs=0.1)
    assert corrected([lands[0], *[landscape()] * (FOLDS - 1)], 0).predicted == pytest.approx(
        lands[0].predicted
    )
