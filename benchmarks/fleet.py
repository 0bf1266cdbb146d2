"""What further GPUs are worth where a search measures: ``python -m benchmarks.fleet``.

The same schedules of ``hopper`` (every third of ``landscapes/schedules.json``) are measured by a
fleet of one worker, then of all GPUs of this host, each time with no kernel known; and again with
all kernels assembled before.  ``efficiency`` is the time of one worker over that of all, divided by
their number.  ``agreement`` is the median of the ratios of a schedule's seconds in both: what two
GPUs differ by after they are held against the reference kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.oracle import decisions_of
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.fleet import FleetCampaign, fleet, gpus_here
from tinygpu.codegen.run.measure import COARSE
from tinygpu.codegen.run.provenance import provenance
from tinygpu.cores import cores
from tinygpu.machines.hopper import Hopper
from tinygpu.space.measurement import Measurement
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = ["main", "row"]

SIZES = {"m": 4096, "n": 4096, "k": 4096}
STEP = 3


def chosen(folder: Path = FOLDER) -> dict[Schedule, Program]:
    """Return the schedules that are measured, and their terms."""
    tree = json.loads((folder / "landscapes" / "schedules.json").read_text(encoding="utf-8"))
    operation, machine = matmul("bf16", layout="nt"), Hopper()
    found = [Schedule.of(machine, values) for values in decisions_of(tree)[::STEP]]
    return {one: one.program(machine, operation) for one in found}


def measured(
    programs: dict[Schedule, Program], gpus: Sequence[str]
) -> tuple[float, list[Measurement]]:
    """Measure all on workers of their own; return the seconds that it took, the start apart."""
    problem = Problem.of(matmul("bf16", layout="nt"), **SIZES)
    with fleet(gpus=gpus) as client, FleetCampaign(problem, client, options=COARSE) as campaign:
        first = dict([next(iter(programs.items()))])
        campaign.measure(first)  # a worker begins with CuPy and the reference in float64
        client.wait_for_workers(len(gpus))
        began = time.monotonic()
        found = campaign.measure(programs)
        return time.monotonic() - began, found


def row(what: str, one: float, every: float, pairs: Sequence[tuple[Measurement, Measurement]],
        gpus: int) -> dict[str, Any]:  # fmt: skip
    """Return the row of a comparison."""
    ratios = [b.seconds / a.seconds for a, b in pairs if a.seconds and b.seconds]
    return {
        "kernels": what,
        "schedules": len(pairs),
        "right": len(ratios),
        "gpus": gpus,
        "one_seconds": one,
        "all_seconds": every,
        "efficiency": one / every / gpus,
        "agreement": statistics.median(ratios),
        "apart_by_3_percent": sum(abs(ratio - 1) > 0.03 for ratio in ratios),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on one and on all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet")
    parser.add_argument("--out", type=Path, default=FOLDER / "fleet.json", help="the results")
    given = parser.parse_args(arguments)
    gpus, programs = gpus_here(), chosen()
    rows, found = [], {}
    with tempfile.TemporaryDirectory() as cache:
        for what in ("none is assembled yet", "all are assembled"):
            for number in (1, len(gpus)):
                of = f"{cache}/{number}"
                os.environ["XDG_CACHE_HOME"] = of  # each fleet has a cache of its own
                found[number] = measured(programs, gpus[:number])
                sys.stdout.write(f"{what}, {number} GPUs: {found[number][0]:.1f} s\n")
                sys.stdout.flush()
            (one, mine), (every, theirs) = found[1], found[len(gpus)]
            rows.append(row(what, one, every, list(zip(mine, theirs, strict=True)), len(gpus)))
    record = provenance("python -m benchmarks.fleet")
    write_tree(given.out, {"provenance": record, "cores": cores(), "rows": rows})
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
