"""Trust: how far predicted times are right about measured ones, and how far a choice by them is.

A *case* is a problem on a device with schedules of one machine: their measured seconds, and what
the model predicts.  ``regret_at(times, scores, n)`` is the least time among the n schedules with
the smallest scores, over the least of all, less 1; scores that are equal are taken in random order,
as expected.  Two rankings stand beside the model's:

    random      all scores equal: n schedules drawn
    roofline    the larger of the arithmetic over the device's rate and of the bytes over DRAM's or
                L2's bandwidth, of whole tiles, each of which reads its rows and columns

>>> times = np.array([4.0, 2.0, 1.0, 3.0])
>>> float(regret_at(times, times, 1)), float(regret_at(times, -times, 2))
(0.0, 2.0)
>>> float(regret_at(times, np.ones(4), 1)), tau(times, times), tau(times, -times)
(1.5, 1.0, -1.0)

Source: M. Kendall, "A New Measure of Rank Correlation", 1938; S. Williams et al., "Roofline", 2009.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinygpu.devices.device import Device
from tinygpu.isa.memory import DTYPES
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule

__all__ = [
    "COUNTS",
    "Evidence",
    "at_random",
    "by_regime",
    "case_of",
    "habits",
    "regret_at",
    "roofline",
    "tau",
]

COUNTS = (1, 2, 4, 8, 16)
"""How many schedules are measured where a regret is told."""
NEAR, FEW_ROWS, SHORT = 1.5, 64, 60e-6
"""Times the fastest that is near it; rows that are few; seconds before power may hold a clock."""
_LEAST = 8
Times = NDArray[np.float64]


def tau(measured: Times, model: Times) -> float:
    """Return Kendall's tau: pairs in order, less those in disorder, over all, ties among them."""
    i, j = np.triu_indices(len(measured), 1)
    return float((np.sign(measured[i] - measured[j]) * np.sign(model[i] - model[j])).mean())


def at_random(measured: Times, count: int) -> float:
    """Return the expected least of ``count`` of these times (all, if there are fewer)."""
    times, count = np.sort(measured), min(count, len(measured))
    total = math.comb(len(times), count)
    ways = [math.comb(len(times) - 1 - i, count - 1) for i in range(len(times))]
    return float(sum(t * (way / total) for t, way in zip(times, ways, strict=True)))


def regret_at(times: Times, scores: Times, count: int) -> float:
    """Return what is lost where the ``count`` of the smallest scores are measured."""
    last = np.sort(scores)[min(count, len(scores)) - 1]
    sure, tied = times[scores < last], times[scores == last]
    least = np.minimum(tied, sure.min(initial=math.inf))
    return at_random(least, min(count, len(scores)) - len(sure)) / float(times.min()) - 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """Schedules of a machine for a problem, measured and predicted.

    ``again`` are seconds of a second visit (or none are known), ``drawn`` which schedules were
    drawn from the legal space and not chosen, ``named`` the model's bottlenecks.
    """

    machine: str
    problem: Problem
    device: Device
    schedules: tuple[Schedule, ...]
    times: Times
    again: Times | None
    drawn: NDArray[np.bool_]
    predicted: Times
    named: tuple[str, ...]

    @property
    def label(self) -> str:
        """The sizes, as m x n x k."""
        return " x ".join(map(str, self.problem.sizes.values()))

    @property
    def errors(self) -> Times:
        """log(measured / predicted): above 0 where the model promised too much."""
        return np.log(self.mean / self.predicted)

    @property
    def mean(self) -> Times:
        """The geometric mean of both visits."""
        return self.times if self.again is None else np.sqrt(self.times * self.again)

    @property
    def order(self) -> Times:
        """The places of the schedules by the model; of equal ones the first that was listed."""
        return np.argsort(np.argsort(self.predicted, kind="stable"), kind="stable").astype(float)

    @property
    def noise(self) -> float | None:
        """The A/A floor: what the fastest by the first visits loses by the second ones."""
        if self.again is None:
            return None
        return float(self.again[np.argmin(self.times)] / self.again.min() - 1)

    def tau(self, near: bool = False) -> float | None:
        """Return tau over what was drawn, or over what is near the fastest; None of too few."""
        among = self.mean <= NEAR * self.mean.min() if near else self.drawn
        return tau(self.mean[among], self.predicted[among]) if among.sum() >= _LEAST else None

    def regimes(self) -> list[list[str]]:
        """Return for each schedule the regimes that it is in: rows, length, bottleneck."""
        few = (
            f"m <= {FEW_ROWS}" if self.problem.sizes.get("m", 1 << 30) <= FEW_ROWS else "more rows"
        )
        lengths = ("60 us or more" if t >= SHORT else "under 60 us" for t in self.mean)
        return [[few, length, f"waits for {n}"]
                for length, n in zip(lengths, self.named, strict=True)]  # fmt: skip


def case_of(
    machine: Machine,
    problem: Problem,
    device: Device,
    schedules: Sequence[Schedule],
    times: Sequence[float | None],
    again: Sequence[float | None] | None = None,
    chosen: int = 0,
) -> Evidence | None:
    """Predict what was measured; the first ``chosen`` were not drawn.  None if nothing ran.

    A schedule that the machine has no more is left out.
    """
    both = np.array([times, times if again is None else again], float)  # None becomes nan
    there = [
        i
        for i in np.flatnonzero(np.isfinite(both).all(0)).tolist()
        if all(r.holds for r in machine.requirements(problem.operation, schedules[i].chosen()))
    ]
    mine = tuple(schedules[i] for i in there)
    if not mine:
        return None
    found = [cost(machine.term(problem.operation, s.chosen()), problem.sizes, device) for s in mine]
    return Evidence(
        machine.name, problem, device, mine, both[0, there],
        None if again is None else both[1, there], np.array(there) >= chosen,
        np.array([float(one.seconds) for one in found]), tuple(one.bottleneck for one in found),
    )  # fmt: skip


def roofline(case: Evidence) -> Times:
    """Return the roofline's seconds of each schedule of a matmul (see above)."""
    device, operation, sizes = case.device, case.problem.operation, case.problem.sizes
    m, n, k = (sizes[axis] for axis in "mnk")
    width = DTYPES[operation.inputs[0].dtype].bytes
    plain = 2 * device.fma_f32_per_cycle_per_sm
    tensor = device.tensor_flop_per_cycle_per_sm * 2 / width
    rate = device.sms * device.clock_hz * (plain if case.machine == "simt" else tensor)
    least = operation.bytes(sizes) / device.dram_bytes_per_second
    found = []
    for one in case.schedules:
        chosen = dict(one.decisions)
        high, wide = (int(chosen.get(f"tile_{axis}", 1)) for axis in "mn")
        along, shared = (int(chosen.get(f"cluster_{axis}", 1)) for axis in "mn")  # by multicast
        if chosen.get("swap"):
            high, wide, along, shared = wide, high, shared, along
        down, across = math.ceil(m / high), math.ceil(n / wide)
        flops = 2 * down * high * across * wide * k
        moved = width * k * (m * across / shared + n * down / along)
        l2 = moved / (device.l2_bytes_per_cycle * device.clock_hz)
        found.append(max(flops / rate, least, l2))
    return np.array(found)


def by_regime(cases: Sequence[Evidence]) -> dict[str, Times]:
    """Return the errors of the schedules in each regime, the most schedules first."""
    errors: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        for regimes, error in zip(case.regimes(), case.errors, strict=True):
            for name in ("all", *regimes):
                errors[name].append(float(error))
    return {name: np.array(errors[name]) for name in sorted(errors, key=lambda n: -len(errors[n]))}


def habits(cases: Sequence[Evidence], least: int = 12) -> dict[tuple[str, str, object], float]:
    """Return by machine, decision and value how far its mean error is from that of the others.

    A value counts that at least ``least`` schedules have; each case's own mean is taken off first.
    """
    sums: dict[tuple[str, str, object], list[float]] = defaultdict(list)
    for case in cases:
        for one, error in zip(case.schedules, case.errors - case.errors.mean(), strict=True):
            for name, value in one.decisions:
                sums[case.machine, name, value].append(float(error))
    kinds: dict[tuple[str, str], set[object]] = defaultdict(set)
    for machine, name, setting in sums:
        kinds[machine, name].add(setting)
    return {
        key: float(np.mean(errors))
        for key, errors in sums.items()
        if len(errors) >= least and len(kinds[key[:2]]) > 1
    }
