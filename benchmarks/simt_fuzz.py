"""Random legal schedules on a GPU: whether each is right, and its spills were foreseen.

    python -m benchmarks.simt_fuzz [--out DIR] [--sample-only FILE | --schedules FILE]

draws ``COUNT`` schedules of ``simt``, uniformly from the legal space of each of ``SHAPES`` random
shapes: most ragged, up to 300, the rest multiples of 64; fp32, fp16 and bf16, 16-bit products
also with fp32 outputs.  Each is assembled, validated under a watchdog against the float64
reference, and timed once.  The rows (``simt_fuzz.json``) have beside the usual fields what ptxas
reports and what was predicted; an error is right where it is at most 1, what rounding allows.  The
summary counts the wrong ones and holds the predicted spills against the true ones.

The draw needs no GPU: ``--sample-only FILE`` does it elsewhere.  What was measured is kept in
``simt_fuzz.db``, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, load_rows, write_results, write_tree
from benchmarks.registers import confusion, predicted_spill
from tinygpu.codegen.run.build import Built, build_many
from tinygpu.codegen.run.measure import Options, measure
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.machines.simt import Simt
from tinygpu.search.store import Store
from tinygpu.search.time.cost import cost
from tinygpu.search.time.registers import register_estimate
from tinygpu.space.measurement import Measurement, Results
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule, from_json, to_json

__all__ = ["FIELDS", "Case", "draw", "load_cases", "main", "rows_of", "save_cases", "summary"]

COUNT = 500
SHAPES = 25
SEED = 20240
FIELDS = (
    *("reason", "registers", "spill_bytes", "predicted_registers", "predicted_spill"),
    "accumulator",
)
"""The fields of a row beside the usual ones."""
DTYPES = (("f32", None), ("f16", None), ("bf16", None), ("f16", "f32"), ("bf16", "f32"))
ARCH = "sm_90a"
OPTIONS = Options(rounds=1, limit_seconds=30.0)

Case = tuple[Problem, tuple[Schedule, ...]]


def draw(
    seed: int = SEED,
    *,
    shapes: int = SHAPES,
    count: int = COUNT,
    fixed: Mapping[str, Any] | None = None,
) -> list[Case]:
    """Return for each of ``shapes`` problems its share of ``count`` different legal schedules.

    Three of five shapes are ragged.  ``fixed`` narrows decisions, as in ``Space``.
    """
    rng, device = np.random.default_rng(seed), load_device("h200")
    each = count // shapes
    found: list[Case] = []
    while len(found) < shapes:
        number = len(found)
        dtype, output = DTYPES[number % len(DTYPES)]
        ragged = number // len(DTYPES) % 5 < 3
        m, n, k = rng.integers(1, 301, 3) if ragged else 64 * rng.integers(1, 17, 3)
        problem = Problem.of(matmul(dtype, output), m=int(m), n=int(n), k=int(k))
        space = Space(Simt(), problem, device, fixed=fixed)
        if space.count() >= each:
            found.append((problem, tuple(space.sample(rng, each))))
    return found


def save_cases(path: Path, cases: Sequence[Case], command: str) -> None:
    """Write them, each in the form of ``to_json``.  Raises StoreError where that fails."""
    rows = [json.loads(to_json(s, problem)) for problem, schedules in cases for s in schedules]
    write_tree(path, {"provenance": provenance(command), "rows": rows})


def load_cases(path: Path) -> list[Case]:
    """Read what ``save_cases`` wrote.  Raises ScheduleError for what is no schedule."""
    found: dict[Problem, list[Schedule]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        _, problem, schedule = from_json(json.dumps(row), {Simt.name: Simt()})
        found.setdefault(problem, []).append(schedule)
    return [(problem, tuple(schedules)) for problem, schedules in found.items()]


@dataclass(frozen=True, slots=True)
class _Code:
    """What ptxas reported of a schedule, or why there is none."""

    registers: int
    spill_bytes: int
    reason: str = ""


def rows_of(
    case: Case, *, number: int, store: Results | None = None, options: Options = OPTIONS
) -> list[dict[str, Any]]:
    """Assemble, validate and time a case; return its rows.

    Raises LaunchError if no worker can use a GPU.
    """
    problem, schedules = case
    codes = _assembled(problem, schedules)
    found = measure(schedules, Simt(), problem, store=store, options=options)
    return [
        _row(problem, s, code, m, number)
        for s, code, m in zip(schedules, codes, found, strict=True)
    ]


def _assembled(problem: Problem, schedules: Sequence[Schedule]) -> list[_Code]:
    programs = [s.program(Simt(), problem.operation) for s in schedules]
    return [
        _Code(c.cubin.registers, c.cubin.spill_stores_bytes + c.cubin.spill_loads_bytes)
        if isinstance(c, Built)
        else _Code(0, 0, str(c))
        for c in build_many([(program, ARCH, problem.sizes) for program in programs])
    ]


def _row(
    problem: Problem, schedule: Schedule, code: _Code, measured: Measurement, number: int
) -> dict[str, Any]:
    program, device = schedule.program(Simt(), problem.operation), load_device("h200")
    types = [problem.operation.inputs[0].dtype, problem.operation.output.dtype]
    return {
        "group": "fuzz",
        "case": f"shape {number}",
        **problem.sizes,
        "dtype": "->".join(dict.fromkeys(types)),
        "schedule": dict(schedule.decisions),
        "predicted_seconds": float(cost(program, problem.sizes, device).seconds),
        "seconds": measured.seconds,
        "peer": "",
        "peer_seconds": None,
        "error": str(measured.error) if np.isinf(measured.error) else measured.error,
        "reason": measured.reason or code.reason,
        "registers": code.registers,
        "spill_bytes": code.spill_bytes,
        "predicted_registers": round(float(register_estimate(program)), 1),
        "predicted_spill": bool(predicted_spill(program, device)),
        "accumulator": schedule["accumulator"],
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count schedules, those that are not right with the reasons, and spills foreseen."""
    assembled = [r for r in rows if r["registers"]]
    pairs = [(r["predicted_spill"], r["spill_bytes"] > 0) for r in assembled]
    return {
        "schedules": len(rows),
        "shapes": len({(r["m"], r["n"], r["k"], r["dtype"]) for r in rows}),
        "wrong": sum(bool(r["reason"]) for r in rows),
        "reasons": sorted({r["reason"] for r in rows} - {""}),
        "worst error": max((float(r["error"]) for r in rows), default=0.0),
        "spills": confusion(pairs),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the arguments say; write ``simt_fuzz.json``, shape by shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simt_fuzz")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--sample-only", type=Path, metavar="FILE", help="draw and write, no GPU")
    parser.add_argument("--schedules", type=Path, metavar="FILE", help="what --sample-only wrote")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m benchmarks.simt_fuzz", *words))
    try:
        cases = load_cases(given.schedules) if given.schedules else draw()
        if given.sample_only:
            save_cases(given.sample_only, cases, command)
            return
        record = provenance(command)
        old: dict[str, str] | None = {"group": "fuzz"}
        with Store(given.out / "simt_fuzz.db") as store:
            for number, case in enumerate(cases):
                rows = rows_of(case, number=number, store=store)
                write_results("simt_fuzz", rows, record, given.out, instead_of=old, fields=FIELDS)
                old = None
                wrong = sum(bool(row["reason"]) for row in rows)
                sys.stdout.write(f"{case[0].sizes}: {len(rows)} schedules, {wrong} wrong\n")
                sys.stdout.flush()
        found = summary(load_rows("simt_fuzz", given.out))
        told = {"summary": found}
        write_results("simt_fuzz", [], record, given.out, fields=FIELDS, beside=told)
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
