"""Random legal schedules on a GPU, whether each is right: ``python -m benchmarks.fuzz``.

    python -m benchmarks.fuzz --draw FILE [--count N] [--machines M ..]     (no GPU)
    python -m benchmarks.fuzz --cases FILE [--out DIR] [--processes P]

*Draw* takes ``EACH`` schedules of each of many problems, uniformly from the legal space of a
machine: all types, layouts, epilogues, batched or not, ragged sizes; of five problems one has a k
of a stage or less, and one more tiles than a GPU has SMs.  Each schedule is also judged; one that
is not proved is written down as such and not run.

*Run* builds each, and validates it under a watchdog against the float64 reference: an error is
right where it is at most 1, what rounding allows.  Many processes share the GPU.  It writes
``fuzz.json``: a row for each problem, with what was wrong and the commit that ran.  A run that was
stopped goes on: rows that are there, of a case in FILE, of this emitter and all right, stay.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tinygpu.cli.console import bar
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.run.measure import Campaign, Crew, Options
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError, TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.file import machine_named
from tinygpu.space.space import Space
from tinygpu.term.operation import LAYOUTS, Operation, Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = [
    "accepted",
    "asked_of",
    "drawn",
    "each_done",
    "layout_of",
    "main",
    "problem_of",
    "run",
    "same",
    "summary",
    "words_of",
]

COUNT, EACH, SEED = 20_000, 100, 2611
MACHINES = ("simt", "ampere", "hopper")
TYPES: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "simt": (("f32", None), ("f16", None), ("bf16", None), ("f16", "f32"), ("bf16", "f32"),
             ("f64", None)),
    "ampere": (("bf16", None), ("f16", None), ("tf32", None), ("bf16", "f32"), ("f16", "f32")),
    "hopper": (("bf16", None), ("f16", None), ("e4m3", None), ("bf16", "f32"), ("f16", "f32"),
               ("e4m3", "f16"), ("e4m3", "f32")),
}  # fmt: skip
EPILOGUES: tuple[Mapping[str, Any], ...] = (
    {}, {"scaled": True}, {"bias": True}, {"bias": True, "activation": "relu"},
    {"activation": "gelu"}, {"scaled": True, "bias": True, "activation": "silu"},
)  # fmt: skip
K_MAJOR = ("e4m3",)
"""The types of which wgmma takes inputs with k contiguous alone."""
OPTIONS = Options(rounds=1, burst_seconds=0.001, limit_seconds=30.0, batch=EACH)
_TRIES = 40
_ROW_BYTES = {"simt": (1, 16), "ampere": (4, 16), "hopper": (16, 16)}
"""What rows are a multiple of, in turn: cp.async moves 4 bytes or more, TMA 16."""

Case = dict[str, Any]


def words_of(machine: str, number: int) -> dict[str, Any]:
    """Return what ``matmul`` is called with, of a problem's number.

    >>> words_of("simt", 1)
    {'dtype': 'f16', 'output': None, 'layout': 'nn', 'batched': False}
    """
    types = TYPES[machine]
    rest, at = divmod(number, len(types))
    every = accepted(machine, *types[at])
    return every[7 * rest % len(every)]  # 7 divides no such length: all come


@cache
def accepted(machine: str, dtype: str, output: str | None) -> list[dict[str, Any]]:
    """Return what ``matmul`` may be called with for a machine: every epilogue that it takes."""
    found = []
    layouts = ("nt",) if machine == "hopper" and dtype in K_MAJOR else LAYOUTS
    for epilogue, layout, batched in product(EPILOGUES, layouts, (False, True)):
        words = {"dtype": dtype, "output": output, "layout": layout, "batched": batched}
        with suppress(OperationError):
            machine_named(machine).check(matmul(**words, **epilogue))
            found.append({**words, **epilogue})
    return found


def problem_of(machine: str, number: int, rng: np.random.Generator) -> Problem:
    """Return the problem of a number, of random sizes."""
    words, row = words_of(machine, number), _ROW_BYTES[machine][number % 2]
    operation = matmul(**words)
    most = {"l": 3, "m": 600, "n": 600, "k": 600}
    if number % 5 == 3:
        most["k"] = 64
    elif number % 5 == 4:
        most |= {"m": 2400, "n": 2400}
    step = dict.fromkeys(operation.axes, 1)
    for operand in operation.operands:
        last = operand.axes[-1]
        step[last] = max(step[last], row // DTYPES[operand.dtype].bytes)
    sizes = {
        axis: step[axis] * int(rng.integers(1, max(2, most[axis] // step[axis] + 1)))
        for axis in operation.axes
    }
    return Problem.of(operation, **sizes)


def drawn(name: str, number: int, count: int, seed: int) -> Case:
    """Return ``count`` schedules of a problem of a machine: as data, by what they are made from."""
    rng = np.random.default_rng([seed, MACHINES.index(name), number])
    machine, device = machine_named(name), load_device("h200")
    for _ in range(_TRIES):
        problem = problem_of(name, number, rng)
        space = Space(machine, problem, device)
        if space.count() < count:
            continue
        schedules = space.sample(rng, count)
        found = [(s, verdict(s.program(machine, problem.operation))) for s in schedules]
        return {
            "machine": name, "number": number, "words": words_of(name, number),
            "sizes": dict(problem.sizes),
            "schedules": [dict(s.decisions) for s, v in found if v.legal],
            "unproved": [[dict(s.decisions), str(v)] for s, v in found if not v.legal],
        }  # fmt: skip
    raise TinyGpuError(f"{name}, problem {number}: no shape has {count} legal schedules")


_crew: Crew | None = None


def asked_of(case: Case) -> tuple[Problem, dict[Schedule, Program]]:
    """Return a case's problem, and its schedules with their terms."""
    machine, operation = machine_named(case["machine"]), matmul(**case["words"])
    schedules = [Schedule.of(machine, d) for d in case["schedules"]]
    problem = Problem.of(operation, **case["sizes"])
    return problem, {s: s.program(machine, operation) for s in schedules}


def layout_of(operation: Operation) -> str:
    """Return how the inputs of a matmul lie.

    >>> layout_of(matmul("bf16", layout="tn"))
    'tn'
    """
    a, b = (operation.operand(name).axes[-1] == "k" for name in "ab")
    return ("n" if a else "t") + ("t" if b else "n")


def run(case: Case) -> Case:
    """Build and validate a case's schedules, in a process that keeps its worker."""
    global _crew
    _crew = _crew or Crew(jobs=1)
    problem, programs = asked_of(case)
    with Campaign(problem, options=OPTIONS, crew=_crew) as campaign:
        found = campaign.measure(programs)
    errors = [m.error for m in found if not m.reason]
    return {
        **{name: case[name] for name in ("machine", "number", "words", "sizes", "unproved")},
        "schedules": len(found),
        "wrong": [
            [dict(s.decisions), m.reason] for s, m in zip(programs, found, strict=True) if m.reason
        ],
        "worst_error": float(f"{max(errors, default=0.0):.4g}"),
        "emitter": EMITTER_VERSION,
    }


def same(one: Case, other: Case) -> bool:
    """Whether two are of one problem."""
    return all(one[name] == other[name] for name in ("machine", "number", "words", "sizes"))


def summary(rows: Sequence[Case]) -> dict[str, Any]:
    """Count schedules by machine, and those that are not right or were not proved."""
    count: Counter[str] = Counter()
    for row in rows:
        count[row["machine"]] += row["schedules"]
    return {
        "schedules": sum(count.values()),
        "by_machine": dict(sorted(count.items())),
        "problems": len(rows),
        "wrong": sum(len(row["wrong"]) for row in rows),
        "unproved": sum(len(row["unproved"]) for row in rows),
        "worst_error": max((row["worst_error"] for row in rows), default=0.0),
    }


def each_done(do: Any, each: Sequence[Any], processes: int, title: str) -> Iterator[Any]:
    """Yield what ``do`` returns of each, in the order in which they end."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawned) as pool, bar(title) as progress:
        futures = [pool.submit(do, *one) for one in each]
        for done, future in enumerate(as_completed(futures), 1):
            progress(done, len(futures), "")
            yield future.result()


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, or run what was drawn; exit with 1 if one is not right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw and write, no GPU")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="what --draw wrote")
    parser.add_argument("--count", type=int, default=COUNT, help="schedules in all")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    if (given.draw is None) == (given.cases is None):
        parser.error("one of --draw and --cases")
    words = " ".join(("python -m benchmarks.fuzz", *(arguments or sys.argv[1:])))
    record = provenance(words)
    if given.draw:
        problems = -(-given.count // EACH // len(given.machines))
        each = [(m, n, EACH, SEED) for n in range(problems) for m in given.machines]
        cases = list(each_done(drawn, each, given.processes, f"draw {len(each)} problems"))
        cases.sort(key=lambda c: (c["machine"], c["number"]))
        lines = [json.dumps(case, separators=(",", ":")) for case in cases]
        given.draw.write_text("\n".join(lines) + "\n", encoding="utf-8")
        unproved = sum(len(case["unproved"]) for case in cases)
        sys.stdout.write(f"{sum(len(c['schedules']) for c in cases)} drawn, {unproved} unproved\n")
        return
    path = given.out / "fuzz.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = [row for row in rows if row["emitter"] == EMITTER_VERSION and not row["wrong"]]
    cases = [json.loads(line) for line in given.cases.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if any(same(row, case) for case in cases)]
    wanted = [(case,) for case in cases if not any(same(row, case) for row in rows)]
    for row in each_done(run, wanted, given.processes, f"run {len(wanted)} problems"):
        rows.append({**row, "commit": record["commit"], "date": record["date"]})
        rows.sort(key=lambda r: (r["machine"], r["number"]))
        write_tree(path, {"provenance": record, "summary": summary(rows), "rows": rows})
    found = summary(rows)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if found["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
