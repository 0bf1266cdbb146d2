"""How well ``search/time/registers.py`` foresees ptxas: the fit of its weights, and their worth.

    python -m benchmarks.registers [--ptxas PATH] [--cache FILE]

draws legal schedules of ``simt`` for random shapes (``SAMPLES``), emits and assembles each in two
processes, fits the weights to them, and holds the spills that they predict against what ptxas
reports (a spill: any byte in local memory) on the schedules of ``simt_fuzz``, which are not of the
fit.  It writes ``results/registers.json``, from which ``WEIGHTS`` of ``search/time/registers.py``
are copied.  Rows are kept in FILE, so that a run that was stopped goes on.

A spill is a comparison of the need with a limit, so the weights are those of a logistic regression
whose threshold is the limit: each assembly says that its schedule spills under a limit, or does
not.  Of some schedules the least limit is found by bisection (``.maxnreg``), which says it twice.

What no fit here foresees: where ptxas could use more registers than it has, it now and then fills
them with early loads and puts a few values that the loop does not change into local memory, though
far fewer registers would do.  Such a spill is mostly below 64 B and may be gone under a lower
limit, so bisection then finds one of several borders.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from tinygpu.codegen.emit import EMITTER_VERSION, emit
from tinygpu.codegen.run.assemble import Cubin, assemble, cache_folder, find_ptxas, ptxas_version
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import Device, load_device
from tinygpu.machines.simt import Simt
from tinygpu.numbers import Number
from tinygpu.search.time.register_quantities import (
    BENDS,
    KINDS,
    amounts,
    piece,
    piece_name,
    worth,
)
from tinygpu.search.time.registers import register_estimate
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule, from_json, to_json

__all__ = [
    "Case",
    "case_of",
    "confusion",
    "draw",
    "fitted",
    "main",
    "predicted_spill",
    "predictions",
    "program_of",
    "quantities",
    "register_limit",
    "table",
    "truth",
]

Case = tuple[Problem, Schedule]
Row = dict[str, Any]
Weights = dict[str, tuple[float, ...]]
Matrix = NDArray[np.float64]

SAMPLES = ((191, 30, 900, True), (91, 40, 1200, False))
"""Seeds, shapes, schedules, and whether to bisect; ``HELD_OUT`` are the fuzz's."""
HELD_OUT = (20240, 25, 500, False)
ARCH = "sm_90a"
DTYPES = (("f32", None), ("f16", None), ("bf16", None), ("f16", "f32"), ("bf16", "f32"))
SLACK, SLACK_REGISTERS = 0.06, 16  # how blurred a limit is: a share of it and some registers more
RIDGE, RIDGE_KIND = 1e-5, 1e-3  # towards 0 for all kinds of arithmetic, towards all for each


def draw(
    seed: int, shapes: int, count: int, fixed: Mapping[str, Value] | None = None
) -> list[Case]:
    """Return ``count`` legal schedules, an equal share for each of random shapes.

    ``fixed``: decisions that all of them share.
    """
    rng, device = np.random.default_rng(seed), load_device("h200")
    found: list[list[Case]] = []
    while len(found) < shapes:
        dtype, output = DTYPES[len(found) % len(DTYPES)]
        ragged = len(found) // len(DTYPES) % 5 < 3
        m, n, k = rng.integers(1, 301, 3) if ragged else 64 * rng.integers(1, 17, 3)
        problem = Problem.of(matmul(dtype, output), m=int(m), n=int(n), k=int(k))
        space = Space(Simt(), problem, device, fixed=fixed or {})
        if space.count() >= count // shapes:
            found.append([(problem, s) for s in space.sample(rng, count // shapes)])
    return [case for cases in found for case in cases]


def program_of(case: Case) -> Program:
    """Build the term of a case."""
    problem, schedule = case
    return schedule.program(Simt(), problem.operation)


def quantities(program: Program) -> dict[str, Number]:
    """Return what the estimate is affine in, cut at its bends."""
    found: dict[str, Number] = {}
    for name, addends in amounts(program).items():
        amount, low = sum(map(worth, addends), 0.0), 0
        for high in BENDS.get(name, ()):
            found[piece_name(name, high)] = piece(amount, low, high)
            low = high
        if name not in BENDS:
            found[name] = amount
    return found


def register_limit(program: Program, device: Device) -> int:
    """Return the registers a thread may have, given ``ctas_per_sm`` of the program.

    A scheduler has its own part of the registers, and the warps are dealt out to the schedulers.
    """
    schedulers = device.warp_schedulers_per_sm
    warps = program.threads * program.ctas_per_sm // 32
    warps = max(-(-warps // schedulers), 1)  # of the scheduler that has most
    shared = device.registers_per_sm // schedulers // (warps * 32)
    unit = device.register_allocation_unit
    return min(int(shared) // unit * unit, int(device.registers_per_thread_max))


def predicted_spill(program: Program, device: Device) -> bool:
    """Say whether the need exceeds the limit: the assembler will use local memory."""
    return float(register_estimate(program)) > register_limit(program, device)


def truth(case: Case, *, bisect: bool = False, ptxas: Path | None = None) -> Row:
    """Assemble a case; return a row: the schedule, registers, spilled bytes.

    ``spills_at`` and ``fits_at`` are the limits nearest each other that were found to be too low
    and not; None where there is none.  Raises AssemblyError.
    """
    program = program_of(case)
    limit = register_limit(program, load_device("h200"))
    text = emit(program, ARCH, case[0].sizes)
    own = assemble(text, ARCH, ptxas=ptxas)
    low, high = (limit, None) if own.spills else (None, own.registers)
    if bisect:
        low, high = _least(text, program.threads, low, high, ptxas)
    return {
        "case": json.loads(to_json(case[1], case[0])),
        "registers": own.registers,
        "spilled_bytes": own.spill_stores_bytes + own.spill_loads_bytes,
        "spills_at": low,
        "fits_at": high,
    }


def _least(
    text: str, threads: int, low: int | None, high: int | None, ptxas: Path | None
) -> tuple[int | None, int | None]:
    """Narrow the limits between which spills begin, to some per cent."""

    def at(limit: int) -> Cubin:
        plain = re.sub(r"\.minnctapersm \d+\n", "", text)
        limited = re.sub(r"(\.maxntid .*\n)", rf"\1.maxnreg {limit}\n", plain)
        return assemble(limited, ARCH, ptxas=ptxas)

    if high is None:
        most = at(min(255, 65536 // threads // 8 * 8))
        if most.spills:
            return low, None
        high = most.registers
    below = low or 16
    while high - below > max(2, 0.04 * high):
        middle = (below + high) // 2
        found = at(middle)
        if found.spills:
            low = below = middle
        else:
            high = min(middle, max(found.registers, below + 1))
    return low, high


def confusion(pairs: Sequence[tuple[bool, bool]]) -> dict[str, float]:
    """Count (predicted, true) spills; precision and recall are 1 where nothing could be wrong."""
    both = sum(p and t for p, t in pairs)
    only_predicted = sum(p and not t for p, t in pairs)
    only_true = sum(t and not p for p, t in pairs)
    return {
        "predicted and spilled": both,
        "predicted only": only_predicted,
        "spilled only": only_true,
        "neither": len(pairs) - both - only_predicted - only_true,
        "precision": round(both / (both + only_predicted), 4) if both + only_predicted else 1.0,
        "recall": round(both / (both + only_true), 4) if both + only_true else 1.0,
    }


def fitted(rows: Sequence[Row]) -> Weights:
    """Return the weights: for each piece of a quantity what it adds, of each kind."""
    table = _Table(rows)
    return {
        name: tuple(round(float(f"{w:.3g}"), 3) + 0.0 for w in line)
        for name, line in zip(table.names, _separating(table), strict=True)
    }


class _Table:
    """The rows as arrays: quantities (rows, pieces), what was chosen and what ptxas said."""

    def __init__(self, rows: Sequence[Row]) -> None:
        device = load_device("h200")
        programs = [program_of(case_of(row)) for row in rows]
        found = [quantities(p) for p in programs]
        self.names = list(found[0])
        self.x = np.array([list(f.values()) for f in found], float)
        self.limit = np.array([register_limit(p, device) for p in programs], float)
        self.used = np.array([r["registers"] for r in rows], float)
        self.spills = np.array([r["spilled_bytes"] > 0 for r in rows])
        self.alone = np.array([p.ctas_per_sm == 1 for p in programs])
        self.kind = np.array([KINDS.index(str(_decision(r, "accumulator"))) for r in rows])
        # alone, ptxas may choose to spill a little and run more CTAs: no fact about the need
        self.chosen = self.alone & self.spills & (self.used < self.limit - 8)
        self.rows = rows


def case_of(row: Row) -> Case:
    """Read the case of a row."""
    _, problem, schedule = from_json(json.dumps(row["case"]), {Simt.name: Simt()})
    return problem, schedule


def _decision(row: Row, name: str) -> Any:
    return row["case"]["decisions"][name]


def _separating(t: _Table) -> Matrix:
    """Fit the need: (pieces, kinds)."""
    index, limits, spilled = [], [], []
    for i, row in enumerate(t.rows):
        for name, truth in (("spills_at", 1.0), ("fits_at", 0.0)):
            if row[name] is not None and not t.chosen[i]:
                index.append(i)
                limits.append(row[name])
                spilled.append(truth)
    at, limit, spilling = np.array(index), np.array(limits, float), np.array(spilled)
    common = _logistic(t.x[at], limit, spilling, np.zeros(t.x.shape[1]), RIDGE)
    kinds = []
    for kind in range(len(KINDS)):
        mine = t.kind[at] == kind
        kinds.append(_logistic(t.x[at][mine], limit[mine], spilling[mine], common, RIDGE_KIND))
    return np.array(kinds).T


def _logistic(x: Matrix, limit: Matrix, spilled: Matrix, prior: Matrix, ridge: float) -> Matrix:
    """Newton's method for P(spill) = 1 / (1 + exp((limit - x w) / blur))."""
    size = np.sqrt((x**2).mean(0))
    size[size < 1e-9] = 1.0
    z, blur = x / size, SLACK * (limit + SLACK_REGISTERS)
    start = prior * size

    def loss(w: Matrix) -> float:
        over = (z @ w - limit - 0.5) / blur
        miss = np.logaddexp(0, np.where(spilled > 0, -over, over)).mean()
        return float(miss + ridge / 2 * ((w - start) ** 2).sum())

    w = start.copy()
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip((z @ w - limit - 0.5) / blur, -40, 40)))
        slope = z.T @ ((p - spilled) / blur) / len(z) + ridge * (w - start)
        bend = (z * (np.maximum(p * (1 - p), 1e-4) / blur**2)[:, None]).T @ z / len(z)
        step, share = np.linalg.solve(bend + ridge * np.eye(len(w)), slope), 1.0
        while share > 1e-4 and loss(w - share * step) > loss(w):
            share /= 2
        if loss(w) - loss(w - share * step) < 1e-8:
            break
        w = w - share * step
    result: Matrix = w / size
    return result


def predictions(weights: Mapping[str, tuple[float, ...]], rows: Sequence[Row]) -> list[Row]:
    """Return for each row what weights predict of it, beside what ptxas said."""
    device = load_device("h200")
    found = []
    for row in rows:
        program = program_of(case_of(row))
        need = float(register_estimate(program, weights))
        limit = register_limit(program, device)
        found.append(
            {
                "accumulator": _decision(row, "accumulator"),
                "need": round(need, 1),
                "limit": limit,
                "predicted": need > limit,
                "registers": row["registers"],
                "spilled_bytes": row["spilled_bytes"],
            }
        )
    return found


def table(rows: Sequence[Row], least_bytes: int = 1) -> dict[str, float]:
    """Return the confusion table of predictions; a spill has ``least_bytes`` or more."""
    return confusion([(bool(r["predicted"]), r["spilled_bytes"] >= least_bytes) for r in rows])


def collected(sample: tuple[int, int, int, bool], ptxas: Path, cache: Path) -> list[Row]:
    """Return the rows of a sample: those in the cache, and the others assembled."""
    seed, shapes, count, bisect = sample
    name = f"{seed}-{shapes}-{count}-{EMITTER_VERSION}-{ptxas_version(ptxas)}.jsonl"
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows: list[Row] = [json.loads(line) for line in lines]
    if len(rows) >= count:
        return rows
    cases = draw(seed, shapes, count)[len(rows) :]
    with ProcessPoolExecutor(2) as pool, path.open("a", encoding="utf-8") as file:
        found = pool.map(partial(truth, bisect=bisect, ptxas=ptxas), cases, chunksize=2)
        for row in track(found, f"seed {seed}", total=len(cases)):
            file.write(json.dumps(row) + "\n")
            file.flush()
            rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Assemble the samples, fit, and write what the weights are worth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.registers")
    parser.add_argument("--ptxas", type=Path, help="a ptxas other than the one found")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "registers")
    given = parser.parse_args(arguments)
    on_path = shutil.which("ptxas")
    ptxas = given.ptxas or (Path(on_path) if on_path else find_ptxas())
    rows = [row for sample in SAMPLES for row in collected(sample, ptxas, given.cache)]
    held_out = collected(HELD_OUT, ptxas, given.cache)
    weights = fitted(rows)
    found = predictions(weights, held_out)
    record = {
        "provenance": {
            **provenance("python -m benchmarks.registers"),
            "ptxas": ptxas_version(ptxas),
        },
        "sample": {"fit": SAMPLES, "held out": HELD_OUT, "arch": ARCH, "emitter": EMITTER_VERSION},
        "held out": table(found),
        "by accumulator": {
            kind: table([r for r in found if r["accumulator"] == kind]) for kind in KINDS
        },
        "counting as spills only 64 B and more": table(found, 64),
        "of the fit": table(predictions(weights, rows)),
        "weights": weights,
    }
    path = Path(__file__).parent / "results" / "registers.json"
    lines = json.dumps({**record, "rows": []}, indent=1).removesuffix("[]\n}")
    lines = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", lines)
    listed = ",\n  ".join(map(json.dumps, found))
    path.write_text(f"{lines}[\n  {listed}\n ]\n}}\n", encoding="utf-8")
    for name, numbers in weights.items():
        sys.stdout.write(f'    "{name}": ({", ".join(f"{w:g}" for w in numbers)}),\n')
    sys.stdout.write(json.dumps(record["held out"], indent=2) + "\n")


if __name__ == "__main__":
    main()
