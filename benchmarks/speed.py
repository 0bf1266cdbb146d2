"""How fast tinyGPU itself is, on a CPU: ``python -m benchmarks.speed [--out DIR]``.

Measured for the fp32 matmul at 4096^3 on the machine ``simt``, one process, no GPU:

- schedules scored a second by the time model, on all cores, over random schedules of the whole
  legal space: with the making of the tables that this needs, and without;
- a cold ``tinygpu search matmul``, a new process, which proves its best: wall time, CPU time and
  peak resident memory;
- emitting PTX, ms a schedule (ptxas not counted);
- the concurrency verdict: ms a schedule over a sample of the space, where most share a skeleton
  with one before, and ms for each new skeleton;
- building the space, and the peak resident memory of this process.

It writes ``speed.json``: rows of name, value and unit.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.emit import emit
from tinygpu.codegen.provenance import provenance
from tinygpu.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.events import skeleton_of, verdict, verdict_of
from tinygpu.machines.simt import Simt
from tinygpu.operation import Problem, matmul
from tinygpu.program import Program
from tinygpu.search.scorer import Scorer, Shared
from tinygpu.space import Space

__all__ = ["Row", "child", "cpu", "emitting", "main", "scoring", "verdicts"]

SIZE = 4096
SAMPLE = 400
POINTS = 1 << 20
SEARCH = (
    *(sys.executable, "-m", "tinygpu", "search", "matmul", "--machine", "simt"),
    *(word for axis in "mnk" for word in (f"-{axis}", str(SIZE))),
)

Row = dict[str, Any]


def scoring(space: Space, points: int = POINTS) -> list[Row]:
    """Score random schedules of every batch, in proportion to its size."""
    rng = np.random.default_rng(0)
    batches = space.batches()
    shares = np.array([float(b.count) for b in batches])
    counts = rng.multinomial(points, shares / shares.sum())
    chosen = [(b, space.points(b, rng, int(n))) for b, n in zip(batches, counts, strict=True) if n]
    shared = Shared(space)
    scorers: list[Scorer] = []

    def score() -> None:
        for scorer, (_, drawn) in zip(scorers, chosen, strict=True):
            scorer.seconds(drawn)

    made = _seconds(lambda: scorers.extend(Scorer(b, space, shared) for b, _ in chosen))
    first, again = _seconds(score), _seconds(score)
    return [
        _row("schedules scored, tables made too", points / (made + first), "1/s"),
        _row("schedules scored", points / again, "1/s"),
    ]


def emitting(programs: Sequence[Program], space: Space) -> list[Row]:
    """Emit the PTX of programs."""
    seconds = _seconds(lambda: [emit(p, "sm_90a", space.problem.sizes) for p in programs])
    return [_row("PTX, per schedule", 1e3 * seconds / len(programs), "ms")]


def verdicts(programs: Sequence[Program]) -> list[Row]:
    """Decide programs, as a search does, and each of their skeletons from nothing."""
    verdict_of.cache_clear()
    over = _seconds(lambda: [verdict(p) for p in programs])
    skeletons = list(dict.fromkeys(map(skeleton_of, programs)))
    verdict_of.cache_clear()
    anew = _seconds(lambda: [verdict_of(s) for s in skeletons])
    return [
        _row("verdict, per schedule over a sample", 1e3 * over / len(programs), "ms"),
        _row("verdict, per new skeleton", 1e3 * anew / len(skeletons), "ms"),
        _row("skeletons in the sample", len(skeletons), ""),
        _row("schedules in the sample", len(programs), ""),
    ]


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
        _row(f"{name}, peak resident memory", usage.ru_maxrss * _RSS_UNIT / 2**20, "MiB"),
    ]


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # spec: getrusage(2), bytes or KiB


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
    return f"{name}, {os.cpu_count()} cores"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write ``speed.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        rows = child(SEARCH, "cold search of matmul")
        problem = Problem.of(matmul(), m=SIZE, n=SIZE, k=SIZE)
        space = Space(Simt(), problem, load_device("h200"))
        rows.append(_row("space, built and counted", _seconds(space.count), "s"))
        rows += [_row("legal schedules", space.count(), ""), *scoring(space)]
        drawn = space.sample(np.random.default_rng(1), SAMPLE)
        programs = [s.program(Simt(), problem.operation) for s in drawn]
        rows += emitting(programs, space) + verdicts(programs)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / 2**20
        rows.append(_row("this process, peak resident memory", peak, "MiB"))
        record = provenance(" ".join(("python -m benchmarks.speed", *words)))
        write_tree(given.out / "speed.json", {"provenance": {**record, "cpu": cpu()}, "rows": rows})
    except TinyGpuError as error:
        sys.exit(str(error))
    for row in rows:
        sys.stdout.write(f"{row['name']}: {row['value']:g} {row['unit']}\n")


if __name__ == "__main__":
    main()
