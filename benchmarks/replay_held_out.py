"""The search's strategy beside the model's order on what it was not chosen on.

    python -m benchmarks.replay_held_out      # without a GPU: prints the table, and writes it

What was recorded for other ends, and is no complete box: a walk chooses among the schedules that
have times, by the model's ranking of them.  There are no single changes: all are there at first.

    simt top    ``h200/simt_top.json``: the best of an earlier model, fp32, three cubes
    oracle      ``h200/oracle``, the held-out cases: the model's best and as many of all
    drawn       ``h100/landscapes``, if it was measured (``drawn_landscapes.py``)

The distances of ``search/residual.py`` were chosen on the eight landscapes of ``landscapes.py``;
these tables were seen afterwards.  A row of the file is a source and a strategy, ``model`` or
``gaussian``: its ``shapes``, the mean number of ``schedules``, ``evaluations`` and ``worst`` as
``replay.py`` has them, and the best possible time over the best so far after 8, 16 and 32
evaluations: ``best_at``, geometric means, and ``least_at``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks import time_model
from benchmarks.drawn_landscapes import CASES, DRAWN
from benchmarks.oracle import HELD_OUT, decisions_of, path_of, still
from benchmarks.peers import FOLDER, write_tree
from benchmarks.replay import NEAR, Landscape, curve, table
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.search.time.cost import cost
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

__all__ = ["drawn", "main", "oracle", "row_of", "simt_top"]

MARKS, BUDGET = (8, 16, 32), 64


class Listed(Landscape):
    """Schedules without single changes."""

    neighbours: ClassVar[Any] = defaultdict(list)
    pipelined: ClassVar[Any] = ()


def simt_top(folder: Path = FOLDER) -> list[Landscape]:
    """Return the fp32 schedules that ran, predicted by today's model."""
    machine, device = MACHINES["simt"], load_device("h200")
    found: list[Landscape] = []
    choices = machine.decisions()

    def shape(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return row["m"], row["n"], row["k"]

    rows = json.loads((folder / "simt_top.json").read_text(encoding="utf-8"))["rows"]
    ran = sorted((row for row in rows if row["seconds"]), key=shape)
    for at, group in groupby(ran, key=shape):
        problem = Problem.of(matmul(), **dict(zip("mnk", at, strict=True)))
        seconds, model = dict[Schedule, float](), dict[Schedule, float]()
        for row in group:
            told = {name: row["schedule"].get(name, c.before) for name, c in choices.items()}
            one = Schedule("simt", tuple(told.items()))
            program = one.program(machine, problem.operation)
            seconds[one] = row["seconds"]
            model[one] = float(cost(program, problem.sizes, device).seconds)
        found.append(Listed(at, seconds, model))
    return found


def oracle(machine: str) -> list[Landscape]:
    """Return the held-out cases of a machine: the mean of both visits."""
    held = [case for case in HELD_OUT if case[0] == machine]
    files = [path_of(case) for case in held]
    return [*_of_files([file for file in files if file.is_file()])]


def drawn(machine: str, folder: Path = DRAWN) -> list[Landscape]:
    """Return the drawn cases of a machine that were measured."""
    files = [path_of(case, folder) for case in CASES if case[0] == machine]
    return [*_of_files([file for file in files if file.is_file()])]


def _of_files(files: Sequence[Path]) -> Iterator[Landscape]:
    """Yield files of two visits; what has no times yet is left out."""
    for file in files:
        tree = json.loads(file.read_text(encoding="utf-8"))
        if "first" not in tree:
            continue
        tree = still(tree)
        visits = np.array([tree["first"], tree["second"]], float)
        seconds = np.exp(np.log(visits).mean(axis=0))
        told = {"registers": [0] * len(seconds), "spills": [0] * len(seconds), **tree}
        model, machine = time_model.predicted(told), tree["case"][0]
        schedules = [Schedule(machine, tuple(one.items())) for one in decisions_of(tree)]
        there = [i for i in range(len(schedules)) if math.isfinite(seconds[i])]
        yield Listed(
            tuple(tree["case"][3]),
            {schedules[i]: float(seconds[i]) for i in there},
            {schedules[i]: float(model[i]) for i in there},
        )


def row_of(source: str, strategy: str, lands: Sequence[Landscape]) -> dict[str, Any]:
    """Return the row of a strategy on a source."""
    curves = np.stack([curve(one, strategy, budget=BUDGET) for one in lands])
    met = curves >= 1 / NEAR
    reached = np.where(met.any(axis=1), met.argmax(axis=1) + 1, math.inf)

    def known(count: float) -> float | None:
        return count if math.isfinite(count) else None

    return {
        "source": source,
        "strategy": strategy,
        "shapes": len(lands),
        "schedules": round(float(np.mean([len(one.seconds) for one in lands]))),
        "evaluations": known(float(np.median(reached))),
        "worst": known(float(reached.max())),
        "best_at": {n: round(float(np.exp(np.log(curves[:, n - 1]).mean())), 4) for n in MARKS},
        "least_at": {n: round(float(curves[:, n - 1].min()), 4) for n in MARKS},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay both strategies on every source; print the table and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_held_out")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the table")
    given = parser.parse_args(arguments)
    sources = {
        "simt top": simt_top(),
        **{f"oracle, {name}": oracle(name) for name in ("hopper", "simt", "ampere")},
        **{f"drawn, {name}": drawn(name) for name in ("hopper", "simt")},
    }
    rows = [
        row_of(source, strategy, lands)
        for source, lands in sources.items()
        for strategy in ("model", "gaussian")
        if lands
    ]
    sys.stdout.write(table([{**row, "least_at": list(row["least_at"].values())} for row in rows]))
    record = provenance("python -m benchmarks.replay_held_out")
    write_tree(given.out / "replay_held_out.json", {"provenance": record, "rows": rows})


if __name__ == "__main__":
    main()
