"""Strategies and a learned policy on landscapes of attention.

    python -m benchmarks.attention_replay       # without a GPU: prints the rows, and writes them

The landscapes are those of ``attention_landscapes.py``; no strategy and no number of the model was
chosen on them.  Each walk chooses among the schedules of a problem that have times, the mean of two
visits, and is told these; nothing is evaluated twice.

    random      in an order drawn anew, ``SEEDS`` times
    model       in the order of the time model's predictions
    gaussian    that with a Gaussian process of the model's errors: what ``search --measure`` takes
    corrected   *model* and *gaussian* with predictions times what other problems' were wrong by at
                schedules like these (``corrected``)
    tree        Monte Carlo tree search with the model as prior (``tree_search.py``)
    policy      MaskablePPO (``attention_policy.py``; ``pip install sb3-contrib``), trained on the
                problems of the other ``FOLDS``, three times: its likeliest action; *drawn* draws
                its actions, and *untrained* draws them from the model's softmax alone

A row of ``h100/attention_replay.json`` is a strategy: for each problem the *evaluations* until a
schedule within 1 % of the best was met, the mean over the seeds; a walk that ends before counts all
schedules of the problem, and ``ended`` says how many did.  ``mean`` and ``worst`` are over the
problems, ``mean_wide`` and ``worst_wide`` the same for 5 %; ``best_at`` has the best possible time
over the best so far after ``MARKS``, geometric means.  ``noise`` of a problem is the median of how
far the two visits of a schedule are apart.  The row ``by the other visit`` is no strategy: it takes
schedules in the order of one visit and is judged by the other, both ways; its worst is of either.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attention_landscapes import FILE, MACHINE
from benchmarks.oracle import decisions_of
from benchmarks.peers import write_tree
from benchmarks.replay import NEAR, Ratios
from benchmarks.replay_held_out import Listed
from benchmarks.tree_search import tree
from tinygpu.codegen.run.provenance import provenance
from tinygpu.search.residual import embedded
from tinygpu.search.strategies import STRATEGIES, Strategy, walk
from tinygpu.term.schedule import Schedule

__all__ = [
    "FOLDS",
    "MARKS",
    "SEEDS",
    "by_the_other_visit",
    "corrected",
    "load",
    "main",
    "met",
    "row_of",
]

SEEDS, FOLDS, MARKS, WIDE = 100, 4, (1, 4, 8, 16, 32), 1.05
WALKS: Mapping[str, tuple[Strategy, str, int]] = {
    "random": (STRATEGIES["random"], "blind", SEEDS),
    "model": (STRATEGIES["model"], "model", 1),
    "gaussian": (STRATEGIES["gaussian"], "model", 1),
    "tree": (tree, "model", 1),
}
"""What walks, from which start, and with how many seeds: one where nothing is drawn."""
OWN = 0.25
"""The variance of an error that a problem has for itself, over that of what all have."""


def load(file: Path = FILE) -> Iterator[tuple[Listed, str, float]]:
    """Yield the landscapes that were timed, each with its mask and noise."""
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        if "first" not in case:
            continue
        visits = np.array([case["first"], case["second"]], float)
        seconds, apart = np.exp(np.log(visits).mean(axis=0)), np.ptp(np.log(visits), axis=0)
        schedules = [Schedule(MACHINE, tuple(one.items())) for one in decisions_of(case)]
        there = np.flatnonzero(np.isfinite(seconds)).tolist()
        sizes = case["words"]["sizes"]
        yield (
            Listed(
                (sizes["l"] * sizes["h"] * sizes["g"], sizes["n"], sizes["d"]),
                {schedules[i]: float(seconds[i]) for i in there},
                {schedules[i]: float(case["predicted"][i]) for i in there},
            ),
            case["words"]["mask"],
            float(np.nanmedian(apart)),
        )


def met(land: Listed, strategy: Strategy, start: str, seed: int) -> list[float]:
    """Return the seconds that a walk meets, in order."""
    found: list[float] = []

    def evaluate(schedules: Sequence[Schedule]) -> list[float]:
        times = [land.seconds[schedule] for schedule in schedules]
        found.extend(times)
        return times

    steps = strategy(land.domain(start, seed), np.random.default_rng(seed))
    walk(steps, evaluate, go_on=lambda: len(found) < len(land.seconds))
    return found


def corrected(lands: Sequence[Listed], number: int) -> Listed:
    """Return a landscape with predictions that other folds' problems correct.

    Their errors, each problem's median taken off, are a Gaussian process over schedules, with the
    distances of ``search/residual.py`` and a part ``OWN`` that each problem has for itself.
    """
    others = [one for i, one in enumerate(lands) if i % FOLDS != number % FOLDS]
    known = [schedule for one in others for schedule in one.seconds]
    errors = []
    for one in others:
        logs = np.log([one.seconds[s] / one.predicted[s] for s in one.seconds])
        errors += (logs - np.median(logs)).tolist()
    mine = lands[number]
    points = embedded([*known, *mine.seconds])
    apart = np.sqrt(((points[:, None] - points[None, : len(known)]) ** 2).sum(axis=-1))
    alike = np.exp(-apart)
    weights = np.linalg.solve(alike[: len(known)] + OWN * np.eye(len(known)), errors)
    off = np.exp(alike[len(known) :] @ weights)
    told = {s: mine.predicted[s] * float(x) for s, x in zip(mine.seconds, off, strict=True)}
    return Listed(mine.shape, mine.seconds, told)


def row_of(name: str, lands: Sequence[Listed], walks: Sequence[Sequence[Sequence[float]]]) -> Any:
    """Return the row of a strategy, of the seconds that its walks met on each landscape."""
    counts: dict[float, list[float]] = {NEAR: [], WIDE: []}
    ended, curves = 0, list[Ratios]()
    for land, some in zip(lands, walks, strict=True):
        least, every = min(land.seconds.values()), len(land.seconds)
        for near, found in counts.items():
            firsts = [_first(one, near * least) for one in some]
            ended += firsts.count(None) if near == NEAR else 0
            found.append(round(float(np.mean([first or every for first in firsts])), 1))
        padded = [[*one, *[math.inf] * max(MARKS)][: max(MARKS)] for one in some]
        curves.append(least / np.minimum.accumulate(np.array(padded), axis=1))
    logs = np.stack([np.log(curve).mean(axis=0) for curve in curves]).mean(axis=0)
    return {
        "strategy": name, "seeds": len(walks[0]), "evaluations": counts[NEAR],
        "mean": round(float(np.mean(counts[NEAR])), 1), "worst": max(counts[NEAR]), "ended": ended,
        "mean_wide": round(float(np.mean(counts[WIDE])), 1), "worst_wide": max(counts[WIDE]),
        "best_at": {n: round(float(np.exp(logs[n - 1])), 4) for n in MARKS},
    }  # fmt: skip


def _first(times: Sequence[float], most: float) -> int | None:
    """Return after how many evaluations a time of at most this was met."""
    return next((i for i, t in enumerate(times, 1) if t <= most), None)


def by_the_other_visit(file: Path = FILE) -> Any:
    """Return the row of an order by one visit, told and judged by the other: what noise leaves."""
    lands, walks = list[Listed](), list[list[list[float]]]()
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        for told, other in (("first", "second"), ("second", "first")):
            schedules = [Schedule(MACHINE, tuple(one.items())) for one in decisions_of(case)]
            order = sorted(range(len(schedules)), key=lambda i: case[told][i])
            seconds = dict(zip(schedules, case[other], strict=True))
            lands.append(Listed((1, 1, 1), seconds, {}))
            walks.append([[case[other][i] for i in order]])
    row = row_of("by the other visit", lands, walks)
    pairs = np.reshape(row["evaluations"], (-1, 2)).mean(axis=1)
    return {**row, "seeds": 2, "evaluations": pairs.tolist()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay all; print the rows and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_replay")
    parser.add_argument("--out", type=Path, default=FILE.parent, help="folder of the table")
    parser.add_argument("--steps", type=int, default=60_000, help="evaluations to learn from")
    given = parser.parse_args(arguments)
    from benchmarks.attention_policy import learned  # which needs sb3-contrib

    source = json.loads(FILE.read_text(encoding="utf-8"))
    lands, masks, noise = zip(*load(), strict=True)
    walks: dict[str, list[list[list[float]]]] = {
        name: [[met(land, strategy, start, seed) for seed in range(seeds)] for land in lands]
        for name, (strategy, start, seeds) in WALKS.items()
    }
    better = [corrected(lands, i) for i in range(len(lands))]
    for name in ("model", "gaussian"):
        strategy, start, _ = WALKS[name]
        walks[f"{name}, corrected"] = [[met(land, strategy, start, 0)] for land in better]
    walks |= learned(lands, FOLDS, given.steps, SEEDS)
    rows = [by_the_other_visit(), *(row_of(name, lands, some) for name, some in walks.items())]
    for row in rows:
        sys.stdout.write(f"{row}\n")
    told = {
        "provenance": provenance("python -m benchmarks.attention_replay"),
        "landscapes": source["provenance"], "steps": given.steps,
        "problems": [
            {"heads": land.shape[0], "n": land.shape[1], "d": land.shape[2], "mask": mask,
             "schedules": len(land.seconds), "seconds": min(land.seconds.values()),
             "noise": round(off, 4)}
            for land, mask, off in zip(lands, masks, noise, strict=True)
        ],
    }  # fmt: skip
    write_tree(given.out / "attention_replay.json", {**told, "rows": rows})


if __name__ == "__main__":
    main()
