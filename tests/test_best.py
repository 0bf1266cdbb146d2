"""The exact search is brute force over the whole legal space, only faster."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.sample import some
from tinygpu.devices.device import load_device
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.exact.best import Ranking, rank
from tinygpu.search.exact.branch import Search
from tinygpu.search.exact.scorer import Scorer
from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

DEVICE = load_device("h200")
SPACES: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    (
        (512, 384, 256),
        {**LADDER["multi-stage"], "tile_m": some((32, 64, 128), 2), "thread_m": (4, 8),
         "lanes_m": (2, 4, 8), "tile_k": (8, 16), "issue": some((0, 1, 2), 2), "raster": (1, 4),
         "ctas_per_sm": (1, 2), "pad_a": (0, 4)},
    ),
    (
        (1000, 999, 77),
        {**LADDER["naive"], "tile_m": (8, 32), "tile_n": (32, 64), "lanes_m": some((1, 4, 32), 2),
         "order": ("n", "m"), "addressing": ("pointer", "i64"), "thread_n": (1, 2),
         "accumulator": ("f32", "f64", "f32+f64"), "edges": ("guard", "return"),
         "split_k": (1, 4), "combine": ("st", "red")},
    ),
    (
        (256, 256, 4096),
        {**LADDER["tuned"], "pipeline": ("none", "register", "cp.async"), "stages": (1, 2, 3),
         "a_layout": ("km", "mk"), "vector_a": (1, 4), "split_k": (1, 8), "pad_a": (0, 4),
         "combine": ("st", "red"), "tile_k": some((8, 16, 32), 2), "vector_c": (1, 4)},
    ),
]  # fmt: skip


def space_of(case: int) -> Space:
    (m, n, k), fixed = SPACES[case]
    return Space(Simt(), Problem.of(matmul(), m=m, n=n, k=k), DEVICE, fixed=fixed)


def brute(space: Space) -> list[float]:
    """Every legal schedule's seconds, one program at a time."""
    sizes, operation = space.problem.sizes, space.problem.operation
    programs = (s.program(space.machine, operation) for s in space)
    return [float(cost(p, sizes, DEVICE).seconds) for p in programs]


@pytest.mark.parametrize("case", range(len(SPACES)))
def test_best_is_brute_force(case: int) -> None:
    """The k least times are those of scoring each legal schedule by itself."""
    space = space_of(case)
    every, schedules = sorted(brute(space)), set[Schedule]()
    assert len(every) == space.count() > 100
    for k in (1, 7, 60):
        found = rank(space, k)
        assert [r.seconds for r in found.best] == pytest.approx(every[:k], rel=1e-9)
        assert len({r.schedule for r in found.best}) == k
        assert found.admissible == len(every)
        schedules |= {r.schedule for r in found.best}
    assert all(map(space.contains, schedules))


@pytest.mark.parametrize("k", [1, 2, 9])
def test_batches_of_one_schedule_have_its_time(k: int) -> None:
    """Where no number is open there is nothing to branch on, and a time all the same."""
    fixed = {**LADDER["tuned"], "accumulator": ("f32", "f64", "f32+f64"), "edges": "guard",
             "a_layout": ("km", "mk"), "vector_shared": 1, "k_step": 1}  # fmt: skip
    space = Space(Simt(), Problem.of(matmul(), m=512, n=512, k=512), DEVICE, fixed=fixed)
    assert all(batch.count == 1 for batch in space.batches())
    search = Search(space, k, ())
    search.start()
    search.finish()
    want = sorted(brute(space))[:k]
    assert sorted(s for _, s, _ in search.entries()) == pytest.approx(want, rel=1e-9)


@cache
def ranked() -> tuple[Space, Ranking]:
    space = space_of(0)
    return space, rank(space, 60)


@pytest.mark.parametrize("below", [1.0, 1.02, 0.9])
def test_what_takes_too_long_is_left_out(below: float) -> None:
    """Of what takes less than ``below`` nothing is lost, and nothing else is found."""
    space, best = ranked()
    most = best.best[9].seconds * below
    found = rank(space, 60, below=most)
    assert [r.seconds for r in found.best] == [r.seconds for r in best.best if r.seconds < most]
    assert found.admissible == best.admissible


@pytest.mark.parametrize("case", range(len(SPACES)))
def test_bounds_hold(case: int) -> None:
    """A bound of chosen decisions is at most the time of every schedule below it."""
    space = space_of(case)
    rng = np.random.default_rng(3)
    with np.errstate(all="ignore"):
        for batch in space.batches():
            scorer = Scorer(batch, space)
            points = space.points(batch, rng, 50)
            exact = scorer.seconds(points)
            order = list(rng.permutation([i for i, n in enumerate(scorer.lengths) if n > 1]))
            last = np.zeros(len(points))
            for count in range(len(order) + 1):
                bound = scorer.bound(points, order, count)
                assert (bound <= exact * (1 + 1e-9)).all()
                assert (bound >= last * (1 - 1e-9)).all()
                last = bound
            assert last == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("case", range(len(SPACES)))
def test_a_bound_beside_points_is_that_of_all_decisions_but_one(case: int) -> None:
    """Illegal values beside a point do not count; they would often be faster."""
    space = space_of(case)
    with np.errstate(all="ignore"):
        for batch in space.batches():
            scorer = Scorer(batch, space)
            points = space.points(batch, np.random.default_rng(5), 20)
            axes = [i for i, n in enumerate(scorer.lengths) if n > 1]
            for axis in axes:
                order = [*(a for a in axes if a != axis), axis]
                bound = scorer.bound(points, order, len(axes) - 1)
                assert scorer.beside(points, axis).tolist() == bound.tolist()


@pytest.mark.parametrize("case", range(len(SPACES)))
def test_decisions_come_in_the_order_of_their_looseness(case: int) -> None:
    """Their mean over the batches in which they are open; what is open in none comes last."""
    space = space_of(case)
    with np.errstate(all="ignore"):
        scorers = [Scorer(batch, space) for batch in space.batches()]
        loose = [s.looseness(space.points(s.batch, np.random.default_rng(1), 9)) for s in scorers]
    for scorer, row in zip(scorers, loose, strict=True):
        left = [scorer.values_left(axis) for axis in range(len(scorer.lengths))]
        assert np.isnan(row).tolist() == [n == 1 for n in left]
        assert (row[~np.isnan(row)] <= 1 + 1e-9).all()
        order = scorer.order(loose)
        assert sorted(order) == [axis for axis, n in enumerate(scorer.lengths) if n > 1]
        rows = [[r[axis] for r in loose if r[axis] == r[axis]] for axis in order]
        means = [sum(here) / len(here) if here else 1.0 for here in rows]
        assert means == pytest.approx(sorted(means))


@pytest.mark.parametrize("case", range(len(SPACES)))
def test_climbing_says_that_it_proves_nothing(case: int) -> None:
    """It finds legal schedules, none faster than the best, and does not call them proven."""
    space = space_of(case)
    best, met = rank(space, 5), rank(space, 5, exact=False)
    assert (best.proven, met.proven) == (True, False)
    assert all(space.contains(r.schedule) for r in met.best)
    for better, worse in zip(best.best, met.best, strict=True):
        assert better.seconds <= worse.seconds * (1 + 1e-9)


def test_spread() -> None:
    """With a spread, each combination appears once, with its best time."""
    space = space_of(0)
    names = ("tile_m", "tile_k")
    found = rank(space, 4, spread=names).best
    keys = [tuple(r.schedule[n] for n in names) for r in found]
    assert len(set(keys)) == len(keys) == 4
    for ranked, (tile_m, tile_k) in zip(found, keys, strict=True):
        fixed = {**SPACES[0][1], "tile_m": tile_m, "tile_k": tile_k}
        best = rank(Space(Simt(), space.problem, DEVICE, fixed=fixed), 1).best[0]
        assert ranked.seconds == pytest.approx(best.seconds, rel=1e-9)
