"""How far the time model can be trusted: ``python -m benchmarks.time_model [--out DIR]``.

With ``--report DIR`` it writes only a page of the held-out cases, and its pictures.

Every schedule of ``h200/oracle`` (``oracle.py``) is predicted, which needs no GPU, and held against
its time: the mean of the two visits.  A row of ``time_model.json`` is a machine and a shape; its
``group`` says whether the model's numbers were chosen on it (``fitting``) or not (``held_out``):

    regret_at_n    the least time among the n schedules that the model thinks fastest, over the
                   least of all, less 1
    random_at_n    the same for n schedules of the legal space drawn at random, as expected
    aa_noise       the same for the schedule whose first visit was fastest, by the second visits:
                   what is left where times are measured and nothing is predicted
    kendall_tau    pairs in order less those in disorder, over all, of the schedules that were
                   drawn uniformly; ``kendall_tau_near``: of all within 1.5 of the fastest;
                   ``aa_tau_near``: the same of the first visits and the second ones
    median_abs_error, p90_abs_error    of the magnitudes of log(predicted / measured)
    covered, half_width    the share of times within the predicted interval, of 90 %, and half of
                   the interval over the predicted time (the median)

A tau is None where it is of fewer than ``LEAST`` schedules.
``summaries`` hold geometric means of 1 + regret (less 1) and their 95th percentiles, of the shapes
that were held out; ``fitting`` the same of the others.  ``assembled`` is the same of machines whose
kernels ptxas finds registers for: predicted with the registers and spills that it said, of which
nothing is timed.

``--intervals`` prints ``INTERVALS`` and ``RANKING`` of ``search/time/fitted.py`` anew, from the
fitting cases alone (``calibrated``, ``ranking_noise``), and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.oracle import CASES, HELD_OUT, ORACLE, decisions_of, path_of, problem_of, still
from benchmarks.peers import FOLDER, write_tree
from benchmarks.trust import COUNTS, Evidence, at_random, case_of, tau
from benchmarks.trust_report import model_report, rankings
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import device_of, load_device
from tinygpu.machines import MACHINES
from tinygpu.search.time.breakdown import Breakdown
from tinygpu.search.time.cost import cost
from tinygpu.search.time.launch import Assembled
from tinygpu.term.machine import Chosen
from tinygpu.term.schedule import Schedule

__all__ = [
    "calibrated",
    "evidence_in",
    "load",
    "main",
    "predicted",
    "row_of",
    "summary",
    "whole_row",
]

LEAST, NEAR, FEW_ROWS = 8, 1.5, 64
ASSEMBLED = ("simt", "ampere")
ENOUGH, COVERED, LEVELS = 50, 0.9, np.arange(88.0, 99.5, 0.5).tolist()
"""Schedules that make a regime; the share that an interval is to cover; the levels tried."""
Times = NDArray[np.float64]


def load(folder: Path = ORACLE) -> list[dict[str, Any]]:
    """Return the cases that have times."""
    files = [path_of(case, folder) for case in CASES]
    trees = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    return [still(tree) for tree in trees if "provenance" in tree]


def evidence_in(path: Path) -> Evidence:
    """Return a case's file as evidence."""
    tree = json.loads(path.read_text(encoding="utf-8"))
    machine = MACHINES[tree["case"][0]]
    schedules = [
        Schedule.of(machine, dict(zip(tree["decisions"], row, strict=True)))
        for row in tree["schedules"]
    ]
    found = case_of(
        machine, problem_of(tree["case"]), load_device(device_of(tree["provenance"]["device"])),
        schedules, tree["first"], tree.get("second"), tree.get("best", 0),
    )  # fmt: skip
    assert found is not None, f"{path}: nothing ran"
    return found


def predicted(tree: Mapping[str, Any]) -> Times:
    """Return the predicted seconds of a case's schedules."""
    return np.array([float(one.seconds) for one in breakdowns(tree)])


def breakdowns(tree: Mapping[str, Any], *, assembled: bool = False) -> list[Breakdown]:
    """Return the predictions of a case's schedules, of their terms or of what ptxas made."""
    machine, problem = MACHINES[tree["case"][0]], problem_of(tree["case"])
    device, found = load_device("h200"), list[Breakdown]()
    said = zip(decisions_of(tree), tree["registers"], tree["spills"], strict=True)
    for decisions, registers, spills in said:
        program = machine.program(problem.operation, Chosen(decisions))
        code = Assembled(registers, spills) if assembled else None
        found.append(cost(program, problem.sizes, device, code=code))
    return found


def row_of(
    tree: Mapping[str, Any], model: Times, interval: tuple[Times, Times] | None = None
) -> dict[str, Any]:
    """Return the row of a case; ``interval``: the least and greatest seconds of each schedule."""
    low, high = (model, model) if interval is None else interval
    first, second = (
        np.array([math.nan if t is None else t for t in tree[name]]) for name in ("first", "second")
    )
    there = np.isfinite(first) & np.isfinite(second)
    drawn = (np.arange(len(first)) >= tree["best"])[there]
    first, second, model, low, high = (x[there] for x in (first, second, model, low, high))
    times = np.sqrt(first * second)
    order, least = np.argsort(model, kind="stable"), times.min()
    error = np.abs(np.log(model / times))
    near = times <= NEAR * least
    machine, dtype, layout, shape = tree["case"]
    figures = {
        "seconds": least,
        "predicted": model[order[0]],
        **{f"regret_at_{n}": times[order[:n]].min() / least - 1 for n in COUNTS},
        **{f"random_at_{n}": at_random(times[drawn], n) / least - 1 for n in COUNTS},
        "aa_noise": second[np.argmin(first)] / second.min() - 1,
        "kendall_tau": tau(times[drawn], model[drawn]) if drawn.sum() >= LEAST else None,
        "kendall_tau_near": tau(times[near], model[near]) if near.sum() >= LEAST else None,
        "aa_tau_near": tau(first[near], second[near]) if near.sum() >= LEAST else None,
        "median_abs_error": np.median(error),
        "p90_abs_error": np.percentile(error, 90),
        "covered": ((low <= times) & (times <= high)).mean(),
        "half_width": np.median((high - low) / 2 / model),
    }
    if interval is None:
        del figures["covered"], figures["half_width"]
    return {
        "machine": machine, "dtype": dtype, "layout": layout, "shape": shape,
        "group": "held_out" if (machine, dtype, layout, tuple(shape)) in HELD_OUT else "fitting",
        "schedules": len(times),
        **{n: None if v is None else float(f"{v:.4g}") for n, v in figures.items()},
    }  # fmt: skip


def whole_row(tree: Mapping[str, Any], *, assembled: bool = False) -> dict[str, Any]:
    """Return the row of a case as the model is."""
    found = breakdowns(tree, assembled=assembled)
    low, high = np.array([one.interval for one in found]).T
    return row_of(tree, np.array([float(one.seconds) for one in found]), (low, high))


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of several rows; empty for none."""
    if not rows:
        return {}
    regrets = [f"{kind}_at_{n}" for kind in ("regret", "random") for n in COUNTS] + ["aa_noise"]
    means: dict[str, float] = {}
    for name in regrets:
        logs = np.log1p([row[name] for row in rows])
        means[name] = math.expm1(logs.mean())
        means[f"{name}_p95"] = math.expm1(np.percentile(logs, 95))
    names = ("kendall_tau", "kendall_tau_near", "aa_tau_near", "median_abs_error", "p90_abs_error")
    for name in (*names, "covered", "half_width"):
        known = [row[name] for row in rows if row.get(name) is not None]
        means[name] = float(np.mean(known)) if known else math.nan
    return {"shapes": len(rows), **{name: float(f"{v:.4g}") for name, v in means.items()}}


_PARTS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "hopper": lambda row: row["machine"] == "hopper",
    "hopper, m <= 64": lambda row: row["machine"] == "hopper" and row["shape"][0] <= FEW_ROWS,
    "hopper, m > 64": lambda row: row["machine"] == "hopper" and row["shape"][0] > FEW_ROWS,
    "simt": lambda row: row["machine"] == "simt",
    "ampere": lambda row: row["machine"] == "ampere",
}


def summaries(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the summary of each machine, and of few and many rows."""
    every = list(rows)
    return {name: summary([row for row in every if of(row)]) for name, of in _PARTS.items()}


Errors = Mapping[str, Sequence[tuple[str, float]]]
"""By shape: of each schedule its regime and log(measured / predicted)."""


def errors_of(trees: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[str, float]]]:
    """Return the errors of the fitting cases."""
    found: dict[str, list[tuple[str, float]]] = {}
    for tree in trees:
        machine, dtype, layout, shape = tree["case"]
        if (machine, dtype, layout, tuple(shape)) in HELD_OUT:
            continue
        found[str(tree["case"])] = [
            (one.regime, math.log(math.sqrt(a * b) / float(one.seconds)))
            for one, a, b in zip(breakdowns(tree), tree["first"], tree["second"], strict=True)
            if a is not None and b is not None
        ]
    return found


def quantiles(errors: Errors, level: float) -> dict[str, tuple[float, float]]:
    """Return the shares of the predicted time between which ``level`` percent lie, by regime."""
    by: dict[str, list[float]] = {}
    for regime, error in (pair for some in errors.values() for pair in some):
        by.setdefault(regime, []).append(error)
        by.setdefault(regime.partition(",")[0], []).append(error)
    ends = (50 - level / 2, 50 + level / 2)
    return {
        regime: (math.exp(np.percentile(some, ends[0])), math.exp(np.percentile(some, ends[1])))
        for regime, some in by.items()
        if "," not in regime or len(some) >= ENOUGH
    }


def calibrated(errors: Errors) -> dict[str, tuple[float, float]]:
    """Return the intervals by regime, so wide that they hold on shapes that they are not made of.

    Of each who the least level is taken at which the quantiles of all other shapes cover, in the
    mean over shapes, ``COVERED`` of the times of one.
    """
    found: dict[str, tuple[float, float]] = {}
    every = {regime.partition(",")[0] for some in errors.values() for regime, _ in some}
    for who in sorted(every):
        mine = {
            shape: [pair for pair in some if pair[0].partition(",")[0] == who]
            for shape, some in errors.items()
        }
        mine = {shape: some for shape, some in mine.items() if some}
        for level in LEVELS:
            covered = []
            for shape, some in mine.items():
                others = quantiles({s: e for s, e in mine.items() if s != shape}, level)
                ends = [(others.get(regime) or others[who], error) for regime, error in some]
                covered.append(np.mean([low <= math.exp(e) <= high for (low, high), e in ends]))
            if np.mean(covered) >= COVERED:
                break
        found |= quantiles(mine, level)
    return found


def ranking_noise(cases: Iterable[tuple[str, Times, Times]]) -> dict[str, float]:
    """Return how far the ratio of two predicted times is off, as a logarithm, by who does the work.

    A case is who, and the predicted and the measured seconds of a shape's schedules.  Of all pairs
    that are predicted within ``NEAR`` of the fastest the median counts, and the mean of all shapes.
    """
    found: dict[str, list[float]] = {}
    for who, model, times in cases:
        error = np.log(times / model)[model <= NEAR * model.min()]
        i, j = np.triu_indices(len(error), 1)
        if len(i):
            found.setdefault(who, []).append(float(np.median(np.abs(error[i] - error[j]))))
    return {who: float(np.mean(medians)) for who, medians in found.items()}


def _near_cases(trees: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Times, Times]]:
    """Yield the fitting cases for ``ranking_noise``."""
    for tree in trees:
        machine, dtype, layout, shape = tree["case"]
        if (machine, dtype, layout, tuple(shape)) in HELD_OUT:
            continue
        rows = [
            (one.regime.partition(",")[0], float(one.seconds), math.sqrt(a * b))
            for one, a, b in zip(breakdowns(tree), tree["first"], tree["second"], strict=True)
            if a is not None and b is not None
        ]
        for who in dict.fromkeys(row[0] for row in rows):
            both = np.array([row[1:] for row in rows if row[0] == who])
            yield who, both[:, 0], both[:, 1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict what was measured, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_model")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--intervals", action="store_true", help="print the intervals anew")
    parser.add_argument("--report", type=Path, help="a folder for the report")
    given = parser.parse_args(arguments)
    if given.intervals:
        for regime, (low, high) in calibrated(errors_of(load())).items():
            sys.stdout.write(f'    "{regime}": ({low:.3g}, {high:.3g}),\n')
        for who, noise in ranking_noise(_near_cases(load())).items():
            sys.stdout.write(f'    "{who}": {noise:.3g},\n')
        return
    held = [evidence_in(path_of(case)) for case in HELD_OUT]
    if given.report:
        model_report(held, given.report)
        return
    rows, known, runs = [], [], []
    for tree in load():
        if tree["provenance"] not in runs:
            runs.append(tree["provenance"])
        row = {**whole_row(tree), "run": runs.index(tree["provenance"])}
        rows.append(row)
        if row["machine"] in ASSEMBLED:
            known.append({**whole_row(tree, assembled=True), "run": row["run"]})
        sys.stdout.write(f"{row['machine']} {row['shape']}: regret {row['regret_at_1']:.1%}, of 8 "
                         f"{row['regret_at_8']:.1%}, A/A {row['aa_noise']:.1%}\n")  # fmt: skip
        sys.stdout.flush()
    tree = {
        "provenance": {**runs[-1], "predicted": provenance("python -m benchmarks.time_model")},
        "runs": runs, "rows": rows,
        "summaries": summaries(row for row in rows if row["group"] == "held_out"),
        "fitting": summaries(row for row in rows if row["group"] == "fitting"),
        "assembled": {
            "rows": known,
            **{
                group: {name: of for name, of in summaries(
                    row for row in known if row["group"] == group).items() if of}
                for group in ("held_out", "fitting")
            },
        },
        "rankings": {
            machine: rankings([case for case in held if case.machine == machine])
            for machine in dict.fromkeys(case.machine for case in held)
        },
    }  # fmt: skip
    write_tree(given.out / "time_model.json", tree)


if __name__ == "__main__":
    main()
