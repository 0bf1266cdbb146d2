"""How fast tinyGPU itself is, on a CPU: ``python -m benchmarks.speed [--out DIR]``.

Measured without a GPU, for the fp32 matmul at 4096^3 on the machine ``simt`` and for the bf16 one
(layout nt) on ``hopper``; rows are named by the machine:

- a cold ``tinygpu search matmul``, a new process, which proves its best, with a second one where
  there are two cores: wall time, CPU time of both and peak resident memory of the larger;
- building the space;
- emitting PTX, ms a schedule (ptxas not counted);
- the concurrency verdict: ms a schedule over a sample of the space, where many share a skeleton
  with one before, and ms for each new one: the mean and the worst;
- of ``simt``, schedules scored a second by the time model, over random schedules of the whole legal
  space shared by processes on all cores (``scoring.py``): with the making of the tables that this
  needs, and without.

It writes ``speed.json``: rows of name, value and unit.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peak_mib
from benchmarks.peers import FOLDER, write_tree
from benchmarks.scoring import rates
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.provenance import provenance
from tinygpu.cores import cores
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.erase import erase
from tinygpu.legality.concurrency.judge import verdict, verdict_of
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.simt import Simt
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Program

__all__ = ["Row", "child", "cpu", "emitting", "main", "measured", "verdicts"]

SIZE = 4096
EMITTED = 400
POINTS = 1 << 20
CASES: tuple[tuple[Machine, Operation, tuple[str, ...], int], ...] = (
    (Simt(), matmul(), (), 400),
    (Hopper(), matmul("bf16", layout="nt"), ("--dtype", "bf16", "--layout", "nt"), 3000),
)
"""Machines with an operation, its words on the command line, and how many verdicts to ask for."""

Row = dict[str, Any]


def emitting(programs: Sequence[Program], space: Space) -> list[Row]:
    """Emit the PTX of programs."""
    seconds = _seconds(lambda: [emit(p, "sm_90a", space.problem.sizes) for p in programs])
    return [_row("PTX, per schedule", 1e3 * seconds / len(programs), "ms")]


def verdicts(programs: Sequence[Program]) -> list[Row]:
    """Decide programs one after the other, as a search does; those that are the first of a kind."""
    verdict_of.cache_clear()
    seconds: list[float] = []
    first: dict[Program, float] = {}
    for program in programs:
        begun = time.perf_counter()
        verdict(program)
        seconds.append(time.perf_counter() - begun)
        first.setdefault(erase(program), seconds[-1])
    return [
        _row("verdict, per schedule over a sample", 1e3 * sum(seconds) / len(seconds), "ms"),
        _row("verdict, per new skeleton", 1e3 * sum(first.values()) / len(first), "ms"),
        _row("verdict, slowest new skeleton", 1e3 * max(first.values()), "ms"),
        _row("skeletons in the sample", len(first), ""),
        _row("schedules in the sample", len(seconds), ""),
    ]


def measured(
    machine: Machine, operation: Operation, words: Sequence[str], verdict_count: int
) -> list[Row]:
    """Return the rows of a machine, named by it."""
    sizes = dict.fromkeys("mnk", SIZE)
    command = (sys.executable, "-m", "tinygpu", "search", "matmul", "--machine", machine.name)
    sized = (word for axis, size in sizes.items() for word in (f"-{axis}", str(size)))
    rows = child((*command, *sized, *words), "cold search of matmul")
    space = Space(machine, Problem.of(operation, **sizes), load_device("h200"))
    rows.append(_row("space, built and counted", _seconds(space.count), "s"))
    rows.append(_row("legal schedules", space.count(), ""))
    drawn = space.sample(np.random.default_rng(1), verdict_count)
    programs = [s.program(machine, operation) for s in drawn]
    rows += emitting(programs[:EMITTED], space) + verdicts(programs)
    return [{**row, "name": f"{machine.name}: {row['name']}"} for row in rows]


def child(command: Sequence[str], name: str) -> list[Row]:
    """Run a command in a new process.  Raises TinyGpuError with its last words if it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = (said.strip().splitlines() or ["nothing"])[-1]
        raise TinyGpuError(f"{name}: status {process.returncode}, it said: {last}")
    return [
        _row(f"{name}, wall time", seconds, "s"),
        _row(f"{name}, CPU time", usage.ru_utime + usage.ru_stime, "s"),
        _row(f"{name}, peak resident memory", peak_mib(usage), "MiB"),
    ]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _row(name: str, value: float, unit: str) -> Row:
    return {"name": name, "value": float(f"{value:.4g}"), "unit": unit}


def cpu() -> str:
    """Return the CPU's name and how many of its cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {cores()} cores"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write ``speed.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        rows = [row for case in CASES for row in measured(*case)]
        with_tables, ready, together = rates(POINTS, SIZE)
        rows += [
            _row("simt: schedules scored, tables made too", with_tables, "1/s"),
            _row("simt: schedules scored", ready, "1/s"),
            _row("simt: scoring, peak resident memory of all processes", together, "MiB"),
            _row("cores", cores(), ""),
        ]
        rows.append(_row("this process, peak resident memory", peak_mib(), "MiB"))
        record = provenance(" ".join(("python -m benchmarks.speed", *words)))
        write_tree(given.out / "speed.json", {"provenance": {**record, "cpu": cpu()}, "rows": rows})
    except TinyGpuError as error:
        sys.exit(str(error))
    for row in rows:
        sys.stdout.write(f"{row['name']}: {row['value']:g} {row['unit']}\n")


if __name__ == "__main__":
    main()
