"""Selection: a few kernels for many shapes, and the rule that says which one serves a shape.

``times[i, j]`` is what kernel j takes at shape i, in seconds; infinite where it is illegal or was
not measured.  A *slowdown* is a time over the fastest kernel's at that shape.  Two aims: the
"mean", which is the weighted geometric mean of the slowdowns, or the "worst".

>>> times = np.array([[1.0, 2.0, 1.1], [2.0, 1.0, 1.1], [3.0, 1.0, 1.1]])
>>> found = choose(times, 1)
>>> found.kernels, round(found.slowdown, 3), round(found.bound, 3)
((2,), 1.1, 1.1)
>>> choose(times, 2).served
(0, 1, 1)

Choosing k kernels of many is the k-median problem.  ``choose`` adds and swaps kernels greedily, and
bounds what any k kernels can reach by Lagrangian relaxation; the least worst slowdown it finds by
covering all shapes, by branches.  Each choice says how far it may be from the best one.
``intervals`` is optimal: shapes in order, cut into at most k runs of one kernel each, by dynamic
programming.

Source: Daskin and Maass, "The p-Median Problem", 2015 (greedy, exchange, Lagrangian bound);
Minieka, "The m-Center Problem", 1970 (covers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import ScheduleError

__all__ = ["AIMS", "KernelSet", "choose", "intervals", "slowdowns", "smooth"]

AIMS = ("mean", "worst")
_ROUNDS = 400
_NODES = 20_000
_ILLEGAL = 1e3
"""The logarithm of the slowdown of what cannot run: more than any that can."""
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """Kernels that were chosen, and which of them serves each shape.

    ``slowdown`` is their aim's value, and no other choice of as many has one below ``bound``.
    """

    kernels: tuple[int, ...]
    served: tuple[int, ...]
    slowdown: float
    bound: float


def slowdowns(times: Times) -> Times:
    """Return every kernel's slowdown at every shape.

    Raises ScheduleError for a shape that no kernel serves.
    """
    best = times.min(axis=1, keepdims=True)
    if not np.isfinite(best).all():
        raise ScheduleError(
            f"shape {int(np.flatnonzero(~np.isfinite(best))[0]) + 1}: none of {times.shape[1]} "
            "kernels runs it; add a machine whose kernels do"
        )
    ratios: Times = times / best
    return ratios


def choose(
    times: Times,
    count: int,
    weights: Sequence[float] | None = None,
    *,
    aim: str = "mean",
) -> KernelSet:
    """Choose at most ``count`` kernels.

    Raises ScheduleError where no such choice serves every shape.
    """
    loss, share = _losses(times, weights)
    chosen, bound = list[int](), 0.0
    if aim == "worst":  # the fewest that serve all within a limit, and then those that help most
        chosen, bound = _covered(loss, count)

    def values(base: Times) -> list[Times]:
        """Return what each kernel would make of it, first what counts most; ``base``: the loss."""
        least = np.minimum(base[:, None], loss)
        parts = [share @ least, least.max(axis=0)]
        return [
            (least >= _ILLEGAL).sum(axis=0).astype(float),
            *(parts if aim == "mean" else parts[::-1]),
        ]

    def value(kernels: Sequence[int]) -> tuple[float, ...]:
        return tuple(float(part[kernels[0]]) for part in values(_least(loss, kernels)))

    while len(chosen) < min(count, loss.shape[1]):
        ranked = np.lexsort(values(_least(loss, chosen))[::-1])
        chosen.append(next(int(j) for j in ranked if j not in chosen))
    chosen = _swapped(loss, chosen, values)
    if value(chosen)[0]:  # swapping one by one did not come to a choice that serves all
        cover, _ = _cover(loss < _ILLEGAL, count)
        if not cover:
            raise ScheduleError(f"--kernels {count}: too few to serve every shape; give more")
        chosen = _swapped(loss, cover, values)
    served = tuple(int(chosen[j]) for j in loss[:, chosen].argmin(axis=1))
    used = tuple(sorted({*served}))
    found = value(used)[1]
    if aim == "mean":
        bound = _median_bound(loss, share, count, found)
    return KernelSet(used, served, math.exp(found), math.exp(min(bound, found)))


def intervals(
    times: Times,
    count: int,
    weights: Sequence[float] | None = None,
    *,
    aim: str = "mean",
) -> KernelSet:
    """Cut shapes, which are in order, into at most ``count`` runs of one kernel each: optimally.

    Raises ScheduleError where no such cut serves every shape.
    """
    loss, share = _losses(times, weights)
    shapes = loss.shape[0]
    cost = np.full((shapes, shapes + 1), np.inf)  # of the run from i to before j
    best = np.zeros((shapes, shapes + 1), int)
    for i in range(shapes):
        run = np.where(loss[i:] < _ILLEGAL, loss[i:] * share[i:, None], _ILLEGAL)
        summed = run.cumsum(axis=0) if aim == "mean" else np.maximum.accumulate(loss[i:], axis=0)
        best[i, i + 1 :] = summed.argmin(axis=1)
        cost[i, i + 1 :] = summed.min(axis=1)
    reached = np.full((count + 1, shapes + 1), np.inf)
    reached[:, 0] = 0.0
    came = np.zeros((count + 1, shapes + 1), int)
    for runs in range(1, count + 1):
        for j in range(1, shapes + 1):
            before = reached[runs - 1, :j]
            ways = before + cost[:j, j] if aim == "mean" else np.maximum(before, cost[:j, j])
            came[runs, j] = int(ways.argmin())
            reached[runs, j] = ways[came[runs, j]]
    if reached[count, shapes] >= _ILLEGAL:
        raise ScheduleError(f"--kernels {count}: too few intervals to serve every shape; give more")
    served: list[int] = []
    runs, end = count, shapes
    while end:
        start = int(came[runs, end])
        served[:0] = [int(best[start, end])] * (end - start)
        runs, end = runs - 1, start
    slowdown = math.exp(float(reached[count, shapes]))
    return KernelSet(tuple(sorted(set(served))), tuple(served), slowdown, slowdown)


def smooth(
    times: Times,
    kernels: Sequence[int],
    default: int,
    weights: Sequence[float] | None = None,
    *,
    penalty: float = 0.002,
) -> tuple[int, ...]:
    """Say which of some kernels serves each shape, in order, with no switch that gains nothing.

    A switch costs ``penalty`` (a slowdown, of one shape).  A kernel that is slower than the default
    does not serve in its place.
    """
    loss, share = _losses(times[:, list(kernels)], weights)
    own = list(kernels).index(default)
    barred = loss > loss[:, [own]]
    barred[:, own] = False
    allowed = np.where(barred, np.inf, loss) * (share * len(share))[:, None]
    shapes = len(allowed)
    total, came = allowed[0], np.zeros(allowed.shape, int)
    for i in range(1, shapes):
        stay, switch = total, float(total.min()) + penalty
        came[i] = np.where(stay <= switch, np.arange(len(kernels)), int(total.argmin()))
        total = np.minimum(stay, switch) + allowed[i]
    at = int(total.argmin())
    served = [at]
    for i in range(shapes - 1, 0, -1):
        at = int(came[i, at])
        served.insert(0, at)
    return tuple(int(kernels[j]) for j in served)


def _losses(times: Times, weights: Sequence[float] | None) -> tuple[Times, Times]:
    """Return the logarithms of the slowdowns, and the shapes' shares of all weight."""
    loss = np.log(slowdowns(times))
    loss[~np.isfinite(loss)] = _ILLEGAL
    given = np.ones(len(times)) if weights is None else np.asarray(weights, float)
    return loss, given / given.sum()


def _swapped(loss: Times, chosen: list[int], values: Callable[[Times], list[Times]]) -> list[int]:
    """Exchange a kernel for another as long as that helps: each time the best such exchange."""
    at = tuple(float(part[chosen[0]]) for part in values(_least(loss, chosen)))
    while True:
        ways: list[tuple[tuple[float, ...], int, int]] = []
        for i in range(len(chosen)):
            parts = values(_least(loss, chosen[:i] + chosen[i + 1 :]))
            for part in parts:
                part[chosen] = math.inf
            best = int(np.lexsort(parts[::-1])[0])
            ways.append((tuple(float(part[best]) for part in parts), i, best))
        if not ways or not _less(min(ways)[0], at):
            return chosen
        at, i, best = min(ways)
        chosen = [*chosen[:i], best, *chosen[i + 1 :]]


def _least(loss: Times, kernels: Sequence[int]) -> Times:
    """Return the least loss at each shape; of no kernels, infinite."""
    least: Times = loss[:, list(kernels)].min(axis=1, initial=math.inf)
    return least


def _less(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether it is less, by more than rounding."""
    for mine, theirs in zip(a, b, strict=True):
        if abs(mine - theirs) > 1e-12:
            return mine < theirs
    return False


def _median_bound(loss: Times, share: Times, count: int, found: float) -> float:
    """Bound the mean of any ``count`` kernels from below, by subgradients of the Lagrangian.

    With u the price of serving a shape, serving all costs at least the sum of u, less what the
    ``count`` best kernels save: of kernel j the sum of max(0, u - cost).
    """
    cost = loss * share[:, None]
    price = np.partition(cost, min(1, cost.shape[1] - 1), axis=1)[:, min(1, cost.shape[1] - 1)]
    best, step = -math.inf, 2.0
    for _ in range(_ROUNDS):
        saved = np.maximum(0.0, price[:, None] - cost)
        most = np.argsort(-saved.sum(axis=0), kind="stable")[:count]
        bound = float(price.sum() - saved[:, most].sum())
        if bound > best + 1e-15:
            best = bound
        else:
            step *= 0.97
        slope = 1.0 - (saved[:, most] > 0).sum(axis=1)
        if not slope.any() or best >= found:
            break
        price = np.maximum(0.0, price + step * max(found - bound, 1e-12) / (slope @ slope) * slope)
    return best


def _covered(loss: Times, count: int) -> tuple[list[int], float]:
    """Return at most ``count`` kernels whose worst loss is least, and a bound of what any reach."""
    limits = np.unique(loss)
    low, high, bound = 0, len(limits) - 1, 0.0
    best = [int(loss.max(axis=0).argmin())]
    while low < high:
        middle = (low + high) // 2
        cover, whole = _cover(loss <= limits[middle], count)
        if cover:
            best, high = cover, middle
        else:
            low = middle + 1
            if whole:
                bound = max(bound, float(limits[low]))
    return best, bound


def _cover(within: NDArray[np.bool_], count: int) -> tuple[list[int], bool]:
    """Return at most ``count`` kernels that serve all shapes, if any, and whether all were tried.

    It branches on the shape that the fewest kernels serve.
    """
    left = _NODES

    def search(open_shapes: NDArray[np.bool_], chosen: list[int]) -> list[int] | None:
        nonlocal left
        if not open_shapes.any():
            return chosen
        left -= 1
        gain = within[open_shapes].sum(axis=0)
        if (
            left < 0
            or len(chosen) == count
            or gain.max() * (count - len(chosen)) < len(within[open_shapes])
        ):
            return None
        hardest = np.flatnonzero(open_shapes)[within[open_shapes].sum(axis=1).argmin()]
        for j in sorted(np.flatnonzero(within[hardest]), key=lambda j: -gain[j]):
            found = search(open_shapes & ~within[:, j], [*chosen, int(j)])
            if found:
                return found
        return None

    return search(np.ones(len(within), bool), []) or [], left >= 0
