"""Random legal schedules of ``hopper`` on a GPU: whether each is right.

    python -m benchmarks.hopper_fuzz [--out DIR] [--sample-only FILE | --schedules FILE]

draws ``COUNT`` schedules for ``SHAPES`` random shapes: all layouts, bf16 and f16, with 16-bit and
fp32 outputs.  Contiguous extents are multiples of 8, as TMA wants; others are anything from 1.  Of
five shapes one has a k of a stage or less, and one more tiles than SMs, so that CTAs that stay take
several.  Each shape's schedules are an equal number of each structure (who consumes, how sums reach
c, which side is the rows), uniformly from the legal ones.

Each schedule is validated under a watchdog against the float64 reference, and timed once.  An error
is right where it is at most 1.  The summary counts the wrong ones, with their reasons.

The draw needs no GPU: ``--sample-only FILE`` does it elsewhere.  A run that was stopped goes on:
shapes whose rows are there, of this emitter, are left out, and what was measured of the others is
kept in ``hopper_fuzz.db``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, load_rows, write_results
from benchmarks.simt_fuzz import Case, save_cases
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.measure import Options, measure
from tinygpu.codegen.provenance import provenance
from tinygpu.device import Device, load_device
from tinygpu.errors import TinyGpuError
from tinygpu.laws import check_schedule
from tinygpu.machine import Value
from tinygpu.machines.hopper import Hopper
from tinygpu.measurement import Measurement, Results
from tinygpu.operation import Operation, Problem, matmul
from tinygpu.schedule import Schedule, from_json
from tinygpu.search.store import Store
from tinygpu.space import Space

__all__ = ["FIELDS", "draw", "layout_of", "load_cases", "main", "rows_of", "shape", "summary"]

COUNT = 1000
SHAPES = 50
SEED = 90210
FIELDS = ("reason", "layout", "emitter")
"""The fields of a row beside the usual ones."""
TYPES = (("bf16", None), ("f16", None), ("bf16", "f32"), ("f16", "f32"))
LAYOUTS = ("nt", "nn", "tn", "tt")
STRUCTURAL = ("consume", "swap", "epilogue")
OPTIONS = Options(rounds=1, limit_seconds=30.0)


def shape(rng: np.random.Generator, number: int) -> Problem:
    """Return the problem of a number: its types and layout follow from that, its sizes are drawn.

    >>> print(shape(np.random.default_rng(0), 5).operation)
    matmul: c[m,n] f16 = sum over k of (a[m,k] f16 * b[k,n] f16)
    """
    layout = LAYOUTS[number % len(LAYOUTS)]
    dtype, output = TYPES[number // len(LAYOUTS) % len(TYPES)]
    operation = matmul(dtype, output, layout)
    most = {"m": 600, "n": 600, "k": 600}
    if number % 5 == 3:
        most["k"] = 64
    elif number % 5 == 4:
        most |= {"m": 2400, "n": 2400}
    contiguous = {operand.axes[-1] for operand in operation.operands}
    sizes = {}
    for axis, limit in most.items():
        step = 8 if axis in contiguous else 1
        sizes[axis] = step * int(rng.integers(1, limit // step + 1))
    return Problem.of(operation, **sizes)


def draw(
    seed: int = SEED,
    *,
    shapes: int = SHAPES,
    count: int = COUNT,
    fixed: Mapping[str, Value | tuple[Value, ...]] | None = None,
) -> list[Case]:
    """Return for each of ``shapes`` problems its share of ``count`` different legal schedules.

    ``fixed`` narrows decisions, as in ``Space``.
    """
    rng, device = np.random.default_rng(seed), load_device("h200")
    found = []
    for number in range(shapes):
        problem = shape(rng, number)
        schedules = _schedules(problem, count // shapes, rng, device, fixed or {})
        found.append((problem, tuple(schedules)))
    return found


def _schedules(
    problem: Problem,
    count: int,
    rng: np.random.Generator,
    device: Device,
    fixed: Mapping[str, Value | tuple[Value, ...]],
) -> list[Schedule]:
    """Return ``count`` legal schedules, of each structure in turn.

    A space leaves the judge to ``check_schedule``, so that each one drawn is asked about.
    """
    choices = Hopper.decisions()
    each: list[list[Schedule]] = []
    for values in product(*(choices[name].values for name in STRUCTURAL)):
        structure = dict(zip(STRUCTURAL, values, strict=True))
        space = Space(Hopper(), problem, device, fixed={**fixed, **structure})
        if space.count():
            each.append(space.sample(rng, count))
    found: list[Schedule] = []
    for schedule in (one for turn in zip_longest(*each) for one in turn if one is not None):
        if len(found) < count and not check_schedule(schedule, Hopper(), problem, device):
            found.append(schedule)
    return found


def load_cases(path: Path) -> list[Case]:
    """Read what ``save_cases`` wrote.  Raises ScheduleError for what is no schedule."""
    found: dict[Problem, list[Schedule]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        _, problem, schedule = from_json(json.dumps(row), {Hopper.name: Hopper()})
        found.setdefault(problem, []).append(schedule)
    return [(problem, tuple(schedules)) for problem, schedules in found.items()]


def layout_of(operation: Operation) -> str:
    """Return how the inputs of a matmul lie.

    >>> layout_of(matmul("bf16", layout="tn"))
    'tn'
    """
    a, b = (operation.operand(name).axes[-1] == "k" for name in "ab")
    return ("n" if a else "t") + ("t" if b else "n")


def rows_of(
    case: Case, *, number: int, store: Results | None = None, options: Options = OPTIONS
) -> list[dict[str, Any]]:
    """Validate and time a case; return its rows.  Raises LaunchError if no worker can use a GPU."""
    problem, schedules = case
    found = measure(schedules, Hopper(), problem, store=store, options=options)
    return [_row(problem, s, m, number) for s, m in zip(schedules, found, strict=True)]


def _row(
    problem: Problem, schedule: Schedule, measured: Measurement, number: int
) -> dict[str, Any]:
    first = problem.operation.inputs[0]
    types = [first.dtype, problem.operation.output.dtype]
    return {
        "group": "fuzz",
        "case": f"shape {number}",
        **problem.sizes,
        "dtype": "->".join(dict.fromkeys(types)),
        "schedule": dict(schedule.decisions),
        "predicted_seconds": None,
        "seconds": measured.seconds,
        "peer": "",
        "peer_seconds": None,
        "error": measured.error if math.isfinite(measured.error) else str(measured.error),
        "reason": measured.reason,
        "layout": layout_of(problem.operation),
        "emitter": measured.emitter,
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count schedules and shapes, and those that are not right, with the reasons."""
    return {
        "schedules": len(rows),
        "shapes": len({(r["m"], r["n"], r["k"], r["dtype"], r["layout"]) for r in rows}),
        "wrong": sum(bool(r["reason"]) for r in rows),
        "reasons": sorted({r["reason"] for r in rows} - {""}),
        "worst error": max((float(r["error"]) for r in rows), default=0.0),
        "structures": {
            name: {
                str(value): sum(r["schedule"][name] == value for r in rows)
                for value in Hopper.decisions()[name].values
            }
            for name in STRUCTURAL
        },
    }


def _there(rows: Sequence[Mapping[str, Any]], case: Case, number: int) -> bool:
    """Say whether a case's rows are there: of this emitter, and of just these schedules."""
    problem, schedules = case
    mine = [
        r["schedule"]
        for r in rows
        if r["case"] == f"shape {number}"
        and r["emitter"] == EMITTER_VERSION
        and problem.sizes == {axis: r[axis] for axis in problem.sizes}
    ]
    return mine == [dict(schedule.decisions) for schedule in schedules]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the arguments say; write ``hopper_fuzz.json``, shape by shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_fuzz")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--sample-only", type=Path, metavar="FILE", help="draw and write, no GPU")
    parser.add_argument("--schedules", type=Path, metavar="FILE", help="what --sample-only wrote")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m benchmarks.hopper_fuzz", *words))
    try:
        cases = load_cases(given.schedules) if given.schedules else draw()
        if given.sample_only:
            save_cases(given.sample_only, cases, command)
            return
        record = provenance(command)
        known = load_rows("hopper_fuzz", given.out)
        with Store(given.out / "hopper_fuzz.db") as store:
            for number, case in enumerate(cases):
                if _there(known, case, number):
                    continue
                rows = rows_of(case, number=number, store=store)
                old = {"group": "fuzz", "case": f"shape {number}"}
                write_results("hopper_fuzz", rows, record, given.out, instead_of=old, fields=FIELDS)
                wrong = sum(bool(row["reason"]) for row in rows)
                sys.stdout.write(f"{case[0].sizes}: {len(rows)} schedules, {wrong} wrong\n")
                sys.stdout.flush()
        found = summary(load_rows("hopper_fuzz", given.out))
        told = {"summary": found}
        write_results("hopper_fuzz", [], record, given.out, fields=FIELDS, beside=told)
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
