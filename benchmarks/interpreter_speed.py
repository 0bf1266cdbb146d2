"""How fast the PTX interpreter is, on one core: ``python -m benchmarks.interpreter_speed``.

Each named point of each machine multiplies 256 x 256 x 256, and is checked; asynchronous operations
complete late.  Each has a process of its own, held on one core: a row has its CPU and wall time of
emitting, parsing and running, warps' instructions, and the process's peak resident memory, of which
``imports`` is what it takes before.  ``load`` is the machine's load before the first and after the
last row; CPU time depends little on it, wall time much.  ``rate`` is how many instructions of warps
a second (of CPU time) the launch alone of a tiled product of 1024 x 1024 x 1024 has.

It writes ``interpreter_speed.json``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peak_mib
from benchmarks.peers import FOLDER, write_tree
from benchmarks.speed import cpu
from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.run.interpretation import execute, interpret, unwritten_outputs
from tinygpu.codegen.run.provenance import provenance
from tinygpu.errors import ProgramError, TinyGpuError
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul

__all__ = ["POINTS", "SIZES", "main", "measured", "points", "rate"]

SIZES = {"m": 256, "n": 256, "k": 256}
POINTS = {
    "simt": (simt.LADDER, "f32", "nn", "sm_90a"),
    "hopper": (hopper.STARTS, "bf16", "nt", "sm_90a"),
    "ampere": (ampere.STARTS, "bf16", "nt", "sm_80"),
    "blackwell": (blackwell.STARTS, "bf16", "nt", "sm_100a"),
}
"""Each machine's points, the type and layout of their product, and their architecture."""


def points() -> Iterator[tuple[str, str]]:
    """Yield each machine and point."""
    for machine, (named, *_) in POINTS.items():
        for name in named:
            yield machine, name


def measured(machine: str, point: str) -> dict[str, Any]:
    """Return the row of a point.  Raises ProgramError if its kernel is wrong."""
    named, dtype, layout, arch = POINTS[machine]
    before = peak_mib()
    wall, seconds = time.perf_counter(), time.process_time()
    output = "f32" if named[point].get("combine") == "red" else None  # bf16 cannot be added to
    operation = matmul(dtype, output, layout)
    program = MACHINES[machine].program(operation, Chosen(named[point]))
    found = interpret(program, SIZES, arch=arch, completions=("late",))
    wall, seconds = time.perf_counter() - wall, time.process_time() - seconds
    if not found.right:
        raise ProgramError(f"{machine} {point}: interpreted wrong, error {found.error:.2f}")
    return {
        "machine": machine,
        "point": point,
        "cpu_seconds": round(seconds, 3),
        "wall_seconds": round(wall, 3),
        "instructions": found.instructions,
        "peak_mib": round(peak_mib()),
        "imports_mib": round(before),
    }


def rate(size: int = 1024) -> dict[str, Any]:
    """Return how fast the SIMT point ``tuned`` runs, which multiplies cubes of ``size``."""
    sizes, operation = dict.fromkeys("mnk", size), matmul("f32")
    program = MACHINES["simt"].program(operation, Chosen(simt.LADDER["tuned"]))
    module = Module.parse(emit(program, "sm_90a", sizes, unchecked=True))
    rng, shapes = np.random.default_rng(0), operation.shapes(sizes)
    arrays = {o.name: rng.standard_normal(shapes[o.name], np.float32) for o in operation.inputs}
    arrays |= unwritten_outputs(program, shapes)
    seconds = time.process_time()
    report = execute(program, sizes, arrays, module)
    seconds = time.process_time() - seconds
    issued = sum(report.instruction_counts.values())
    if report.findings:
        raise ProgramError(f"simt tuned: {report.findings[0]}")
    return {
        "machine": "simt", "point": "tuned", "size": size, "instructions": issued,
        "cpu_seconds": round(seconds, 3), "million_a_second": round(issued / seconds / 1e6, 2),
    }  # fmt: skip


def _on_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every point and write ``interpreter_speed.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interpreter_speed")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    load, rows = [round(os.getloadavg()[0], 2)], []
    fresh = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(
            1, mp_context=fresh, initializer=_on_one_core, max_tasks_per_child=1
        ) as pool:
            for row in pool.map(measured, *zip(*points(), strict=True)):
                rows.append(row)
                sys.stdout.write(
                    f"{row['machine']} {row['point']}: {row['cpu_seconds']} s, {row['peak_mib']} "
                    f"MiB of which {row['imports_mib']} before\n"
                )
            fastest = pool.submit(rate).result()
        sys.stdout.write(f"{fastest['million_a_second']} M instructions of warps a second\n")
        load.append(round(os.getloadavg()[0], 2))
        record = provenance(" ".join(("python -m benchmarks.interpreter_speed", *words)))
        tree = {"provenance": {**record, "cpu": cpu(), "load": load}, "sizes": SIZES, "rows": rows}
        tree["rate"] = fastest
        write_tree(given.out / "interpreter_speed.json", tree)
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
