"""Scoring on all cores: ``python -m benchmarks.scoring`` is one of the processes that share it.

Random schedules of the whole legal space are shared by their batches, the largest dealt first; each
process has the scorers of its own.
All begin at one word of the first process, and its clock runs until the last has ended: once with
the making of the tables, and once more with the tables ready.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import IO, Any

import numpy as np

from benchmarks.memory import peak_mib
from tinygpu.cores import cores
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.exact.scorer import Scorer, Scorers
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul

__all__ = ["main", "rates"]


def rates(points: int, size: int, point: str = "") -> tuple[float, float, float]:
    """Score ``points`` schedules of the fp32 matmul at size^3, shared among all cores.

    ``point`` of the ladder narrows the space.  Return schedules a second with the tables made too,
    schedules a second with the tables ready, and the peak memory of all processes together, MiB.
    Raises TinyGpuError if a process ends early.
    """
    count = cores()
    command = (sys.executable, "-m", "benchmarks.scoring", str(size), point)
    with ExitStack() as opened:
        processes = []
        for number in range(count):
            process = subprocess.Popen(
                (*command, str(points), str(number), str(count)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            opened.enter_context(process)
            opened.callback(process.kill)
            processes.append(process)
        _all(processes)
        seconds = []
        for _ in range(2):
            begun = perf_counter()
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            peaks = _all(processes)
            seconds.append(perf_counter() - begun)
        return points / seconds[0], points / seconds[1], sum(peaks)


def _all(processes: Sequence[subprocess.Popen[str]]) -> list[float]:
    """Wait for a line of each process: a number."""
    said = []
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise TinyGpuError(f"scoring: a process ended with status {process.wait()}")
        said.append(float(json.loads(line)))
    return said


def main(arguments: Sequence[str], words: IO[str]) -> None:
    """Draw every ``count``-th batch's share of the points; at each of two words, score them.

    Print the peak memory, when they are drawn and after each scoring.
    """
    size, point, every, number, count = arguments
    fixed: dict[str, Any] = {**LADDER[point], "raster": (1, 2, 4)} if point else {}
    problem = Problem.of(matmul(), m=int(size), n=int(size), k=int(size))
    space = Space(Simt(), problem, load_device("h200"), fixed=fixed)
    rng = np.random.default_rng(0)
    batches = sorted(space.batches(), key=lambda batch: -batch.count)
    legal = np.array([float(batch.count) for batch in batches])
    counts = rng.multinomial(int(every), legal / legal.sum())
    mine = list(zip(batches, counts, strict=True))[int(number) :: int(count)]
    drawn = [(b, space.points(b, rng, int(n)).astype(np.int8)) for b, n in mine if n]
    scorers: list[Scorer] = []
    _say()
    words.readline()
    shared = Scorers(space)
    scorers += [Scorer(batch, space, shared) for batch, _ in drawn]
    for last in (False, True):
        for scorer, (_, points) in zip(scorers, drawn, strict=True):
            scorer.seconds(points.astype(np.int64))
        _say()
        if not last:
            words.readline()


def _say() -> None:
    print(json.dumps(peak_mib()), flush=True)


if __name__ == "__main__":
    gc.disable()  # as a search does: it keeps nearly all that it makes
    main(sys.argv[1:], sys.stdin)
