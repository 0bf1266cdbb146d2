"""Machines of one pass over memory beside PyTorch's kernels: what both such benchmarks share.

``compare`` measures the legal schedules among those given, validates each, times them interleaved
with the peers, and returns rows: one for each schedule (group "space"), and the fastest schedule
against every peer (group "main").  ``m`` is the size i, ``n`` the size j or 1.

Each row has the time that the model predicts for the device file ``h200``.  With ``--predict``
nothing is measured: the stored rows are predicted anew, and the file says so under ``predictions``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.peers import FOLDER, load_rows, write_results, write_tree
from tinygpu.codegen.run.measure import Options, measure
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, StoreError, TinyGpuError
from tinygpu.legality.laws import check_schedule
from tinygpu.search.time.cost import cost
from tinygpu.space.measurement import Measurement
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule

__all__ = ["Case", "compare", "predict_again", "predicted", "run", "schedules"]

DEVICE = "h200"


@dataclass(frozen=True, slots=True)
class Case:
    """A problem by its name in the results, its peers and its scalars."""

    name: str
    problem: Problem
    peers: tuple[str, ...]
    scalars: Mapping[str, float] = field(default_factory=dict)


def schedules(
    machine: Machine, problem: Problem, choices: Mapping[str, Sequence[int]], device: str = DEVICE
) -> list[Schedule]:
    """Return the legal schedules in the product of ``choices``."""
    rates = load_device(device)
    every = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
    found = (Schedule.of(machine, values) for values in every)
    return [s for s in found if not check_schedule(s, machine, problem, rates)]


def predicted(schedule: Schedule, machine: Machine, problem: Problem) -> float:
    """Return the seconds that the model predicts on an H200."""
    program = schedule.program(machine, problem.operation)
    return float(cost(program, problem.sizes, load_device(DEVICE)).seconds)


def run(
    name: str,
    machine: Machine,
    cases: Sequence[Case],
    candidates: Callable[[Problem], Sequence[Schedule]],
    arguments: Sequence[str] | None = None,
) -> None:
    """Do what the command line says: measure every case, or predict the stored rows."""
    command = f"python -m benchmarks.{name}"
    parser = argparse.ArgumentParser(prog=command)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--predict", action="store_true", help="predict stored rows; needs no GPU")
    given = parser.parse_args(arguments)
    try:
        if given.predict:
            sys.stdout.write(predict_again(name, machine, cases, given.out) + "\n")
            return
        record: dict[str, Any] = {}
        for case in cases:
            rows = compare(case, machine, candidates(case.problem))
            record = record or provenance(command)  # now: the clock is that of a busy GPU
            write_results(name, rows, record, given.out)
    except TinyGpuError as error:
        sys.exit(str(error))


def predict_again(name: str, machine: Machine, cases: Sequence[Case], folder: Path = FOLDER) -> str:
    """Fill the predictions of stored rows; return how far they are off, in a line.

    Raises StoreError for a row of no case, and where there are no rows.
    """
    known = {_identity(case): case.problem for case in cases}
    rows = load_rows(name, folder)
    for row in rows:
        problem = known.get(tuple(row[f] for f in ("case", "dtype", "m", "n")))
        if problem is None:
            raise StoreError(f"results {name}: row of {row['case']} {row['m']} is of no case here")
        schedule = Schedule.of(machine, row["schedule"])
        row["predicted_seconds"] = predicted(schedule, machine, problem)
    ratios = sorted(
        r["predicted_seconds"] / r["seconds"]
        for r in rows
        if r["group"] == "space" and r["seconds"]
    )
    if not ratios:
        raise StoreError(f"results {name}: no measured row in {folder}; measure on a GPU first")
    path = folder / f"{name}.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    record = provenance(f"python -m benchmarks.{name} --predict")
    told = {f: record[f] for f in ("commit", "date", "command")}
    tree["predictions"] = {"added": "later than the runs, by the model alone", **told}
    tree["rows"] = [
        {**old, "predicted_seconds": row["predicted_seconds"]}
        for old, row in zip(tree["rows"], rows, strict=True)
    ]
    first = ("provenance", "predictions")
    write_tree(path, {f: tree[f] for f in (*first, *(f for f in tree if f not in first))})
    far = sum(abs(ratio - 1) > 0.3 for ratio in ratios)
    return (
        f"{name}: predicted / measured {ratios[0]:.2f} to {ratios[-1]:.2f}, "
        f"median {ratios[len(ratios) // 2]:.2f}; {far} of {len(ratios)} off by more than 30 %"
    )


def compare(case: Case, machine: Machine, candidates: Sequence[Schedule]) -> list[dict[str, Any]]:
    """Return the rows of a case.  Raises LaunchError where no candidate ran, or no peer."""
    options = Options(scalars=case.scalars, batch=len(candidates), limit_seconds=180.0)
    found = measure(candidates, machine, case.problem, peers=case.peers, options=options)
    ours = list(zip(candidates, found[: len(candidates)], strict=True))
    theirs = list(zip(case.peers, found[len(candidates) :], strict=True))
    timed = [(m.seconds, s, m) for s, m in ours if m.seconds is not None]
    if not timed or all(m.seconds is None for _, m in theirs):
        reasons = {m.reason for m in found if m.seconds is None}
        raise LaunchError(f"{case.name}: nothing to compare: {'; '.join(sorted(reasons))}")
    seconds, best, measurement = min(timed, key=lambda t: t[0])
    rows = [_row(case, machine, s, m) for s, m in ours]
    main = {**_row(case, machine, best, measurement), "group": "main"}
    for peer, m in theirs:
        rows.append({**main, "peer": peer.rpartition(":")[2], "peer_seconds": m.seconds})
    _report(case, best, seconds, ((p, m.seconds) for p, m in theirs))
    return rows


def _identity(case: Case) -> tuple[str, str, int, int]:
    sizes = case.problem.sizes
    return case.name, case.problem.operation.output.dtype, sizes["i"], sizes.get("j", 1)


def _row(case: Case, machine: Machine, schedule: Schedule, measured: Measurement) -> dict[str, Any]:
    name, dtype, m, n = _identity(case)
    return {
        "group": "space",
        "case": name,
        "m": m,
        "n": n,
        "k": 1,
        "dtype": dtype,
        "schedule": dict(schedule.decisions),
        "predicted_seconds": predicted(schedule, machine, case.problem),
        "seconds": measured.seconds,
        "peer": "",
        "peer_seconds": None,
        "error": measured.error,
    }


def _report(
    case: Case, best: Schedule, seconds: float, peers: Iterable[tuple[str, float | None]]
) -> None:
    moved = case.problem.operation.bytes(case.problem.sizes)
    dtype = case.problem.operation.output.dtype
    line = f"{case.name} {dtype}: {seconds * 1e6:.1f} us, {moved / seconds * 1e-12:.2f} TB/s"
    for peer, theirs in peers:
        ratio = f"{theirs / seconds:.3f}" if theirs else "failed"
        line += f"; {peer.rpartition(':')[2]} {ratio}"
    sys.stdout.write(f"{line}; {best}\n")
