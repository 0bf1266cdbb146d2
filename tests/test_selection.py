"""Selection: what is chosen is held against all that could be, on instances small enough."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sample import draws
from tinygpu.errors import ScheduleError
from tinygpu.search import selection
from tinygpu.search.selection import AIMS, KernelSet, choose, intervals, slowdowns, smooth

Times = NDArray[np.float64]
INF = math.inf
SECONDS = st.one_of(st.sampled_from([1.0, 1.0, 1.1, 2.0, INF]), st.floats(1e-6, 1e-2))


@st.composite
def instances(
    draw: st.DrawFn, most_shapes: int = 6, most_kernels: int = 5
) -> tuple[Times, list[float]]:
    """Times of few kernels at few shapes, some illegal, each shape served; and weights."""
    shapes = draw(st.integers(1, most_shapes))
    kernels = draw(st.integers(1, most_kernels))
    row = st.lists(SECONDS, min_size=kernels, max_size=kernels).filter(lambda r: min(r) < INF)
    times = np.array(draw(st.lists(row, min_size=shapes, max_size=shapes)))
    weight = st.sampled_from([1.0, 1.0, 3.0, 1e-7, 1e7])
    return times, draw(st.lists(weight, min_size=shapes, max_size=shapes))


def value(times: Times, served: Sequence[int], weights: Sequence[float], aim: str) -> float:
    """The aim's value by its definition; infinite where a kernel is illegal."""
    losses = [math.log(row[j] / min(row)) for row, j in zip(times, served, strict=True)]
    if aim == "worst":
        return math.exp(max(losses))
    if INF in losses:
        return INF
    return math.exp(sum(w * x for w, x in zip(weights, losses, strict=True)) / sum(weights))


def best_of(
    times: Times, kernels: Sequence[int], weights: Sequence[float], aim: str
) -> tuple[float, list[int]]:
    """What a set of kernels reaches, and its fastest kernel at each shape."""
    served = [min(kernels, key=row.__getitem__) for row in times]
    return value(times, served, weights, aim), served


def sets(times: Times, count: int) -> Iterator[tuple[int, ...]]:
    """All sets of at most as many kernels."""
    for size in range(1, count + 1):
        yield from combinations(range(times.shape[1]), size)


def optimum(times: Times, count: int, weights: Sequence[float], aim: str) -> float:
    return min((best_of(times, s, weights, aim)[0] for s in sets(times, count)), default=INF)


def optimal(found: KernelSet) -> bool:
    """Whether none is better, as it says itself."""
    return found.slowdown <= found.bound * (1 + 1e-9)


# Kernels of which a swap of one leads nowhere, and a weight that hides what is illegal.
HIDDEN = (np.array([[1.0, 2.0, INF], [INF, 1.0, 1.0], [1.0, 2.0, 1.0]]), [1.0, 1e-7, 1.0])
TRAP = (
    np.array(
        [
            [1.0 if row in kernel else INF for kernel in ((0, 1, 2, 3), (4, 5), (0, 4), (2, 5, 6),
             (1, 3, 6), (1, 2, 7), (3, 7), (0, 5, 6, 7))]
            for row in range(8)
        ]
    ),
    [1.0] * 8,
)  # fmt: skip


@settings(max_examples=draws(48, 120))
@given(instances(), st.integers(1, 4), st.sampled_from(AIMS))
@example(HIDDEN, 1, "mean")
@example(HIDDEN, 2, "mean")
@example(TRAP, 3, "mean")
@example(TRAP, 3, "worst")
def test_a_choice_lies_between_its_bound_and_what_it_says(
    instance: tuple[Times, list[float]], count: int, aim: str
) -> None:
    """bound <= optimum <= slowdown; the value is its kernels'; no choice is missed."""
    times, weights = instance
    wanted = optimum(times, count, weights, aim)
    if wanted == INF:
        with pytest.raises(ScheduleError, match=f"--kernels {count}: too few"):
            choose(times, count, weights, aim=aim)
        return
    found = choose(times, count, weights, aim=aim)
    assert len(found.kernels) <= count
    assert found.kernels == tuple(sorted({*found.served}))
    assert math.isclose(found.slowdown, value(times, found.served, weights, aim), rel_tol=1e-9)
    reached = best_of(times, found.kernels, weights, aim)[0]
    assert math.isclose(found.slowdown, reached, rel_tol=1e-9)  # each shape has its fastest
    assert found.bound <= wanted * (1 + 1e-9)
    assert wanted <= found.slowdown * (1 + 1e-9)
    assert found.bound <= found.slowdown
    if aim == "worst":
        assert math.isclose(found.slowdown, wanted, rel_tol=1e-9)
        assert optimal(found)
    if optimal(found):
        assert math.isclose(found.slowdown, wanted, rel_tol=1e-8)


@given(instances(), st.integers(1, 4), st.sampled_from(AIMS))
def test_choosing_is_repeatable(instance: tuple[Times, list[float]], count: int, aim: str) -> None:
    """The same kernels at each call, whatever the unit of time or of weight; the times are kept."""
    times, weights = instance
    assume(optimum(times, count, weights, aim) < INF)
    before = times.copy()
    found = choose(times, count, weights, aim=aim)
    assert found == choose(times, count, weights, aim=aim)
    scaled = choose(times * 1024, count, [4 * w for w in weights], aim=aim)
    assert scaled == found
    assert (times == before).all()


def test_as_many_kernels_as_there_are_slow_nothing_down() -> None:
    """And the choice is proven; one that the others cover is not among it."""
    times = np.array([[1.0, 2.0, 1.5], [2.0, 1.0, 1.5], [1.0, 3.0, 1.5]])
    for aim in AIMS:
        found = choose(times, 3, aim=aim)
        assert (found.kernels, found.served, found.slowdown) == ((0, 1), (0, 1, 0), 1.0)
        assert optimal(found)


def test_weights_say_which_shape_counts() -> None:
    """The mean goes to the heavy shape's kernel, the worst does not care."""
    times = np.array([[1.0, 3.0], [2.0, 1.0]])
    assert choose(times, 1, [1, 9]).kernels == (1,)
    assert choose(times, 1, [9, 1]).kernels == (0,)
    assert choose(times, 1, [1, 9], aim="worst").kernels == (0,)
    assert choose(times, 1, [1, 3]).slowdown == pytest.approx(3**0.25)


def test_the_bound_closes_the_gap_of_many_kernels() -> None:
    """200 shapes on a line, 40 kernels: within 2% of what any 4 can reach."""
    at, best = np.linspace(0, 1, 200)[:, None], np.linspace(0, 1, 40)[None]
    found = choose(np.exp(np.abs(at - best)), 4)
    assert len(found.kernels) == 4
    assert found.bound <= found.slowdown <= 1.02 * found.bound


def test_a_search_that_is_cut_short_still_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no branch allowed the worst is not proven, and its bound stays below the best."""
    rng = np.random.default_rng(0)
    times = rng.uniform(1, 2, (12, 8))
    exact = choose(times, 3, aim="worst")
    monkeypatch.setattr(selection, "_NODES", 0)
    found = choose(times, 3, aim="worst")
    assert found.bound <= exact.slowdown <= found.slowdown
    assert not optimal(found)


def cuts(shapes: int, kernels: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to serve shapes in at most as many runs."""
    for served in product(range(kernels), repeat=shapes):
        if sum(a != b for a, b in pairwise(served)) < count:
            yield served


@settings(max_examples=draws(32, 80))
@given(instances(5, 3), st.integers(1, 4), st.sampled_from(AIMS))
@example(HIDDEN, 1, "mean")
@example(HIDDEN, 2, "mean")
def test_intervals_are_the_best_cut(
    instance: tuple[Times, list[float]], count: int, aim: str
) -> None:
    """Against all cuts; what it says it reaches is what it serves."""
    times, weights = instance
    wanted = min(value(times, s, weights, aim) for s in cuts(len(times), len(times[0]), count))
    if wanted == INF:
        with pytest.raises(ScheduleError, match=f"--kernels {count}: too few intervals"):
            intervals(times, count, weights, aim=aim)
        return
    found = intervals(times, count, weights, aim=aim)
    assert found.served in {*cuts(len(times), len(times[0]), count)}
    assert found.kernels == tuple(sorted({*found.served}))
    assert math.isclose(found.slowdown, wanted, rel_tol=1e-9)
    assert math.isclose(value(times, found.served, weights, aim), wanted, rel_tol=1e-9)
    assert found.bound == found.slowdown
    assert found == intervals(times, count, weights, aim=aim)


@settings(max_examples=draws(32, 80))
@given(instances(5, 4), st.sampled_from([0.0, 0.002, 0.05, 0.3]), st.data())
def test_smoothing_is_the_best_of_all_ways(
    instance: tuple[Times, list[float]], penalty: float, data: Any
) -> None:
    """No shape is slower than by the default; losses and penalties together are least."""
    times, weights = instance
    whole = [j for j in range(times.shape[1]) if np.isfinite(times[:, j]).all()]
    assume(whole)
    default = data.draw(st.sampled_from(whole))
    others = data.draw(st.sets(st.integers(0, times.shape[1] - 1)))
    kernels = data.draw(st.permutations(sorted({default, *others})))
    served = smooth(times, kernels, default, weights, penalty=penalty)
    assert {*served} <= {*kernels}
    own = times[:, kernels]
    fastest = own.min(axis=1)
    scale = [w * len(weights) / sum(weights) for w in weights]

    def price(ways: Sequence[int]) -> float:
        losses = [math.log(times[i, j] / fastest[i]) for i, j in enumerate(ways)]
        switches = sum(a != b for a, b in pairwise(ways))
        return sum(s * x for s, x in zip(scale, losses, strict=True)) + penalty * switches

    allowed = [[j for j in kernels if row[j] <= row[default]] for row in times]
    assert all(j in here for j, here in zip(served, allowed, strict=True))
    assert math.isclose(price(served), min(map(price, product(*allowed))), abs_tol=1e-9)
    if penalty == 0 and min(scale) > 1e-3:
        assert [times[i, j] for i, j in enumerate(served)] == pytest.approx(fastest, rel=1e-9)


def test_a_switch_that_gains_little_is_not_made() -> None:
    """0.1% at one shape is no reason for a switch there and back, 10% is."""
    times = np.array([[1.0, 2.0], [1.001, 1.0], [1.0, 2.0], [1.1, 1.0], [1.0, 2.0]])
    assert smooth(times, (0, 1), 0) == (0, 0, 0, 1, 0)
    assert smooth(times, (0, 1), 0, penalty=0.0) == (0, 1, 0, 1, 0)
    assert smooth(times, (0,), 0) == (0,) * 5
    once = np.array([[1.0, 2.0], [1.1, 1.0]])  # it gains log 1.1, which is 0.0953
    assert smooth(once, (0, 1), 0, penalty=0.095) == (0, 1)
    assert smooth(once, (0, 1), 0, penalty=0.096) == (0, 0)


@pytest.mark.parametrize("row", [0, 2])
def test_a_shape_that_no_kernel_runs_is_named(row: int) -> None:
    times = np.ones((3, 2))
    times[row] = INF
    said = f"shape {row + 1}: none of 2 kernels runs it; add a machine whose kernels do"
    for do in (slowdowns, lambda t: choose(t, 2), lambda t: intervals(t, 2)):
        with pytest.raises(ScheduleError) as error:
            do(times)
        assert str(error.value) == said
