"""Strategies compared on complete landscapes, without a GPU: ``python -m benchmarks.replay``.

Every schedule of a box was timed at several shapes (``landscapes.py``).  A strategy walks on such a
landscape as it would on a GPU, and is told the recorded seconds.  There are three ``STARTS``: from
the time model's ranking of all; from its best of each spread, as a search starts; and blind, where
it sees no prediction and its first schedules are drawn.  Each walk is repeated with ``SEEDS``
seeds, but those of ``SURE``, which draw nothing from a ranking.  A row of ``replay.json``, which is
printed as well, is a strategy with a start:

    evaluations    after how many a schedule within 1 % of the best was met, the median over all
                   walks; None where half of them did not meet one within ``BUDGET``
    worst          the same at the landscape where the median is largest
    area           the mean over the first ``AREA`` evaluations of the best possible time over the
                   best so far
    best_at        this ratio after 1, 4, 16 and 64 evaluations, as geometric means
    least_at_16    this ratio after 16 evaluations at the landscape where it is least
    seconds        of this process for a walk of ``BUDGET`` evaluations, the mean: what choosing
                   costs, beside compiling and measuring

Two neighbours differ in one decision.  ``model`` starts from the ranking of all alone, ``random``
blind alone.
``--plot`` draws the ratio against the evaluations.  ``--strategy NAME`` prints the rows of one.
``--export DIR`` writes the landscapes for Kernel Tuner: cache files, on which its strategies run
(``tune_cache``), and results in the format T4 of the auto-tuning
community.  Their times are in milliseconds.

Source: Kernel Tuner 1.5, ``util.process_cache``, ``schema/T4/1.0.0``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit_hopper import Bank, predicted, terms
from benchmarks.landscapes import LANDSCAPES, SHAPES, space_of
from benchmarks.oracle import as_measured
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.strategies import STRATEGIES, Domain, walk
from tinygpu.search.strategies.smt import pipeline
from tinygpu.term.schedule import Schedule

__all__ = [
    "Landscape",
    "curve",
    "kernel_tuner_cache",
    "load",
    "main",
    "plot",
    "row_of",
    "t4_results",
    "table",
]

SEEDS, BUDGET, AREA, NEAR = 20, 200, 50, 1.01
MARKS = (1, 4, 16, 64)
STARTS, SURE = ("model", "spread", "blind"), ("gaussian", "model")
ONLY = {"model": "model", "random": "blind"}
"""The one start of a strategy that has one."""
_SPENT = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
Ratios = NDArray[np.float64]


@dataclass(frozen=True)
class Landscape:
    """The seconds of all schedules of a box at a shape, measured and predicted."""

    shape: tuple[int, int, int]
    seconds: Mapping[Schedule, float]
    predicted: Mapping[Schedule, float]

    @cached_property
    def neighbours(self) -> dict[Schedule, list[Schedule]]:
        """By schedule those that differ from it in one decision."""
        alike: dict[Any, list[Schedule]] = defaultdict(list)
        for one in self.seconds:
            for i in range(len(one.decisions)):
                alike[i, one.decisions[:i], one.decisions[i + 1 :]].append(one)
        found: dict[Schedule, list[Schedule]] = {one: [] for one in self.seconds}
        for group in alike.values():
            for one in group:
                found[one] += [other for other in group if other is not one]
        return found

    @cached_property
    def pipelined(self) -> list[Schedule]:
        """The schedule of the loop that z3 chose, if it is in this box."""
        found = pipeline(space_of(self.shape))
        return [found[1]] if found and found[1] in self.seconds else []

    def domain(self, start: str, seed: int) -> Domain:
        """Return what a strategy may know of it."""
        every, blind = list(self.seconds), start == "blind"
        spread = MACHINES[every[0].machine].spread

        def candidate(schedule: Schedule) -> Candidate:
            return Candidate(schedule, 1.0 if blind else self.predicted[schedule])

        def apart(schedule: Schedule) -> object:
            return tuple(schedule[name] for name in spread)

        def near(schedule: Schedule) -> list[Candidate]:
            return [candidate(one) for one in self.neighbours[schedule]]

        def sample(rng: np.random.Generator, count: int) -> list[Candidate]:
            return [candidate(every[int(i)]) for i in rng.integers(len(every), size=count)]

        if blind:
            first = sample(np.random.default_rng([seed, 1]), 8)
        else:
            first = [candidate(one) for one in sorted(every, key=self.predicted.__getitem__)]
        if start == "spread":
            best: dict[object, Candidate] = {}
            for one in first:
                best.setdefault(apart(one.schedule), one)
            first = list(best.values())
            return Domain(first, near, sample, apart, lambda: self.pipelined)
        return Domain(first, near, sample, pipelined=lambda: self.pipelined)


def modelled(box: Mapping[str, Any], shapes: Sequence[tuple[int, int, int]]) -> Ratios:
    """Return the predicted seconds of a box's schedules, of shape (shapes, schedules)."""
    rows = tuple(map(tuple, box["schedules"]))
    banks = [Bank(tuple(box["decisions"]), shape, rows, np.zeros(len(rows))) for shape in shapes]
    device, some = load_device("h200"), terms(banks[0])
    return np.asarray([np.exp(predicted(some, bank, device)) for bank in banks])


def load(folder: Path = LANDSCAPES, *, every: bool = False) -> list[Landscape]:
    """Return the landscapes that were measured, with what the model predicts of them.

    Without ``every`` kernels whose code is another now are left out: the model predicts today's.
    """
    box = json.loads((folder / "schedules.json").read_text(encoding="utf-8"))
    rows = box["schedules"]
    schedules = [Schedule("hopper", tuple(zip(box["decisions"], r, strict=True))) for r in rows]
    model = modelled(box, SHAPES)
    found = []
    for shape, times in zip(SHAPES, model, strict=True):
        file = folder / f"{'x'.join(map(str, shape))}.json"
        seconds = json.loads(file.read_text(encoding="utf-8"))["seconds"]
        known = [
            i
            for i, second in enumerate(seconds)
            if second is not None and (every or as_measured(dict(schedules[i].decisions)))
        ]
        found.append(
            Landscape(
                shape,
                {schedules[i]: seconds[i] for i in known},
                {schedules[i]: float(times[i]) for i in known},
            )
        )
    return found


def curve(
    land: Landscape, name: str, *, start: str = "model", seed: int = 0, budget: int = BUDGET
) -> Ratios:
    """Return the best possible time over the best so far, after 1 to ``budget`` evaluations."""
    met: list[float] = []

    def evaluate(schedules: Sequence[Schedule]) -> list[float]:
        times = [land.seconds[schedule] for schedule in schedules]
        met.extend(times)
        return times

    steps = STRATEGIES[name](land.domain(start, seed), np.random.default_rng(seed))
    walk(steps, evaluate, go_on=lambda: len(met) < budget)
    met += [met[-1]] * (budget - len(met))  # it ended: nothing better comes
    best = np.minimum.accumulate(met[:budget])
    return np.asarray(min(land.seconds.values()) / best)


def row_of(
    name: str, start: str, curves: Sequence[Ratios], seconds: float | None = None
) -> dict[str, Any]:
    """Return the row of a strategy, of its curves: one array of (seeds, budget) a landscape."""
    reached = [np.where((c >= 1 / NEAR).any(1), (c >= 1 / NEAR).argmax(1) + 1, math.inf)
               for c in curves]  # fmt: skip
    medians = [float(np.median(one)) for one in reached]
    every = np.concatenate(curves)

    def known(count: float) -> float | None:
        return count if math.isfinite(count) else None

    return {
        "strategy": name,
        "start": start,
        "evaluations": known(float(np.median(np.concatenate(reached)))),
        "worst": known(max(medians)),
        "area": round(float(every[:, :AREA].mean()), 4),
        "best_at": {n: round(float(np.exp(np.log(every[:, n - 1]).mean())), 4) for n in MARKS},
        "least_at_16": round(min(float(one[:, 15].min()) for one in curves), 4),
        "seconds": seconds,
    }


def plot(curves: Mapping[tuple[str, str], Sequence[Ratios]], path: Path) -> None:
    """Draw the mean ratio of each strategy against the evaluations."""
    from matplotlib import pyplot

    figure, every = pyplot.subplots(1, 3, figsize=(14, 4.5), layout="constrained")
    for (name, start), found in curves.items():
        mean, color = np.concatenate(found).mean(axis=0), f"C{list(STRATEGIES).index(name)}"
        axes = every[STARTS.index(start)]
        axes.plot(np.arange(1, len(mean) + 1), mean, label=name, color=color)
    titles = ("from the model's ranking", "from its best of each spread", "blind")
    for axes, title in zip(every, titles, strict=True):
        axes.set(title=title, xlabel="schedules evaluated", xscale="log")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    every[0].set_ylabel("best possible time / best so far")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def replayed(
    lands: Sequence[Landscape],
    seeds: int = SEEDS,
    told: Callable[[str], object] = lambda line: None,
    spent: dict[tuple[str, str], float] | None = None,
    only: Sequence[str] = tuple(STRATEGIES),
) -> dict[tuple[str, str], list[Ratios]]:
    """Return the curves of every strategy from every start that it has.

    ``spent`` gets the seconds of this process for one walk of each.
    """
    for land in lands:
        _ = land.neighbours, land.pipelined  # which are of the landscape, and no strategy's cost
    found: dict[tuple[str, str], list[Ratios]] = {}
    for start in STARTS:
        for name in (one for one in only if ONLY.get(one, start) == start):
            begun = time.process_time()
            walks = 1 if name in SURE and start != "blind" else seeds
            found[name, start] = [
                np.stack([curve(land, name, start=start, seed=seed) for seed in range(walks)])
                for land in lands
            ]
            if spent is not None:
                each = (time.process_time() - begun) / (walks * len(lands))
                spent[name, start] = float(f"{each:.2g}")
            told(f"{name}, {start}\n")
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as text, a column a field."""
    every = [{**row, "best_at": " ".join(f"{x:.3f}" for x in row["best_at"].values())}
             for row in rows]  # fmt: skip
    lines = [list(every[0]), *([str(value) for value in row.values()] for row in every)]
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, wide, strict=True)).rstrip() + "\n"
        for line in lines
    )


def kernel_tuner_cache(land: Landscape) -> dict[str, Any]:
    """Return a landscape as Kernel Tuner's cache file."""
    names = [name for name, _ in next(iter(land.seconds)).decisions]
    values = {
        name: sorted({s[name] for s in land.seconds}, key=lambda v: (str(type(v)), v))
        for name in names
    }
    return {
        "device_name": "NVIDIA H200", "kernel_name": "tinygpu_matmul", "problem_size": land.shape,
        "tune_params_keys": names, "tune_params": values, "objective": ["time"],
        "cache": {
            ",".join(str(value) for _, value in one.decisions): {
                **dict(one.decisions), "time": 1e3 * seconds, "times": [1e3 * seconds],
                **dict.fromkeys(_SPENT, 0.0),
            }
            for one, seconds in land.seconds.items()
        },
    }  # fmt: skip


def t4_results(land: Landscape) -> dict[str, Any]:
    """Return a landscape as results in the format T4."""
    results = [
        {
            "configuration": dict(one.decisions), "objectives": ["time"],
            "times": {"runtimes": [1e3 * seconds]}, "invalidity": "correct", "correctness": 1,
            "measurements": [{"name": "time", "value": 1e3 * seconds, "unit": "ms"}],
        }
        for one, seconds in land.seconds.items()
    ]  # fmt: skip
    return {"schema_version": "1.0.0", "results": results, "metadata": {"timeunit": "milliseconds"}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay every strategy on every landscape; print the table and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the table")
    parser.add_argument("--plot", type=Path, help="a file for the picture")
    parser.add_argument(
        "--strategy", choices=tuple(STRATEGIES), help="print the rows of one, and write nothing"
    )
    parser.add_argument("--export", type=Path, help="a folder for Kernel Tuner's files alone")
    given = parser.parse_args(arguments)
    lands, spent = load(), dict[tuple[str, str], float]()
    if given.export:
        given.export.mkdir(parents=True, exist_ok=True)
        for land in lands:
            name = "x".join(map(str, land.shape))
            write_tree(given.export / f"{name}.cache.json", kernel_tuner_cache(land))
            write_tree(given.export / f"{name}.t4.json", t4_results(land))
        return
    only = (given.strategy,) if given.strategy else tuple(STRATEGIES)
    curves = replayed(lands, told=sys.stderr.write, spent=spent, only=only)
    rows = [row_of(*key, found, spent[key]) for key, found in curves.items()]
    sys.stdout.write(table(rows))
    if given.strategy:
        return
    record = provenance("python -m benchmarks.replay")
    write_tree(given.out / "replay.json", {"provenance": record, "rows": rows})
    if given.plot:
        plot(curves, given.plot)


if __name__ == "__main__":
    main()
