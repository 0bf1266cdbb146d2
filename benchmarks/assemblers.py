"""The same schedules by each assembler that is there: ``python -m benchmarks.assemblers``.

    python -m benchmarks.assemblers [--out DIR]     # on a GPU with two ptxas, 2 min

The schedules are the fastest that ``drawn_matmul`` found, one a shape, and the model's first: what
a user's command made.  Each is assembled by the oldest and by the newest ptxas that is found, and
both codes run in turns, in new orders under one load (``codegen/run/timing.py``), on inputs that
exceed twice the L2.

``assemblers.json``: a row a schedule, with seconds, registers and bytes of spills by each version.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.clocks import argument_sets
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import assemble, every_ptxas
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import current_stream, time_interleaved
from tinygpu.codegen.runtime.function import Function
from tinygpu.errors import AssemblyError
from tinygpu.machines import MACHINES
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

__all__ = ["jobs_of", "main"]

RESULTS = FOLDER.parent / "h100"
ROUNDS, BURST_SECONDS = 12, 0.01
Job = tuple[Problem, Schedule]


def jobs_of(rows: Sequence[Mapping[str, Any]]) -> list[Job]:
    """Return what rows of ``drawn_matmul`` found and chose first, each once."""
    found: dict[tuple[Any, ...], Job] = {}
    for row in rows:
        dtype, layout = row["case"].split()
        problem = Problem.of(
            matmul(dtype, layout=layout), **{name: int(row[name]) for name in "mnk"}
        )
        for which in ("schedule", "first_schedule"):
            chosen = row[which]
            machine = next(m for m in MACHINES.values() if set(m.decisions()) == set(chosen))
            schedule = Schedule(machine.name, tuple(chosen.items()))
            found[dtype, layout, *problem.sizes.values(), schedule] = problem, schedule
    return list(found.values())


def _built(job: Job, arch: str, ptxas: Path) -> tuple[Any, ...]:
    """Return a job's contract, cubin, registers and spills by one assembler."""
    problem, schedule = job
    program = schedule.program(MACHINES[schedule.machine], problem.operation)
    sizes = problem.sizes if program.specialised else None
    cubin = assemble(emit(program, arch, sizes), arch, ptxas=ptxas)
    spills = cubin.spill_stores_bytes + cubin.spill_loads_bytes
    return contract_of(program, sizes), cubin.bytes, cubin.registers, spills


def _row(job: Job, built: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Time the codes of one schedule in turns."""
    problem, schedule = job
    sets, runs = argument_sets(problem), {}
    for version, (contract, code, *_) in built.items():
        kernel = Function(contract, code)
        each = [kernel.prepare(*data.inputs, out=out.array) for data, out in sets]
        runs[version] = partial(_next, each)
    times = time_interleaved(
        runs, rounds=ROUNDS, burst_seconds=BURST_SECONDS, least_launches=len(sets), warm_seconds=0.2
    )
    by = {
        version: {
            "seconds": times[version].seconds,
            "spread": times[version].spread,
            "registers": registers,
            "spills": spills,
        }
        for version, (_, _, registers, spills) in built.items()
    }
    return {"operation": str(problem.operation), **problem.sizes, "schedule": str(schedule), **by}


def _next(each: Sequence[Any], number: int) -> None:
    each[number % len(each)]()


def main(arguments: Sequence[str] | None = None) -> None:
    """Build with both, and measure; the file is written after each schedule."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assemblers")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    every = every_ptxas()
    if len(every) < 2:
        raise AssemblyError(f"ptxas: {every[0][1]} alone is there; two are compared")
    path = RESULTS / "drawn_matmul.json"
    jobs = jobs_of(json.loads(path.read_text(encoding="utf-8"))["rows"])
    codes: dict[str, list[tuple[Any, ...]]] = {}
    with ProcessPoolExecutor() as pool:
        for ptxas, version in (every[-1], every[0]):
            made = pool.map(_built, jobs, repeat(device_arch()), repeat(ptxas), chunksize=2)
            codes[version] = list(made)
    record, rows = provenance("python -m benchmarks.assemblers"), []
    stream = gpu().cuda.Stream(non_blocking=True)
    with current_stream(stream):
        for number, job in enumerate(jobs):
            rows.append(_row(job, {version: of[number] for version, of in codes.items()}))
            write_tree(
                given.out / "assemblers.json",
                {"provenance": record, "versions": list(codes), "rows": rows},
            )
            old, new = (rows[-1][version]["seconds"] for version in codes)
            sys.stdout.write(f"{job[0].sizes} {old / new:.3f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
