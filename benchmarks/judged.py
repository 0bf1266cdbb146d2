"""Verdicts on random legal schedules: ``python -m benchmarks.judged [--count N] [--out DIR]``.

Schedules are drawn from the spaces of all machines that have barriers to judge, of several types,
layouts and epilogues.  Every one is legal by the other laws, and the machines are built to be
right, so each has to be proved.  It writes ``judged.json``: a row for each space, with how many
were proved, the CPU time of a verdict (the skeletons of a row are judged once), and what was not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.legality.concurrency.erase import erase
from tinygpu.legality.concurrency.judge import verdict, verdict_of
from tinygpu.machines.file import machine_named
from tinygpu.space.space import Space
from tinygpu.term.operation import Operation, Problem, matmul, rmsnorm, softmax

__all__ = ["main", "row_of"]

SIZE = 4096
Case = tuple[str, str, str, Operation]


def cases() -> Iterator[Case]:
    """Yield machine, device, what it is of, and the operation."""
    for dtype, layout in (("f32", "nn"), ("f32", "tt"), ("f16", "nt"), ("bf16", "tn")):
        yield "simt", "h200", f"matmul {dtype} {layout}", matmul(dtype, layout=layout)
    for dtype, layout in (("bf16", "nn"), ("f16", "nt"), ("tf32", "tn")):
        yield "ampere", "h200", f"matmul {dtype} {layout}", matmul(dtype, layout=layout)
    for dtype, layout in (("bf16", "nt"), ("f16", "tt"), ("e4m3", "nt")):
        yield "hopper", "h200", f"matmul {dtype} {layout}", matmul(dtype, layout=layout)
    fused = matmul("bf16", layout="nt", bias=True, activation="gelu")
    yield "hopper", "h200", "matmul bf16 nt, bias and gelu", fused
    for dtype, layout in (("bf16", "nt"), ("tf32", "nt"), ("e4m3", "nt")):
        yield "blackwell", "b200", f"matmul {dtype} {layout}", matmul(dtype, layout=layout)
    for name, operation in (("rmsnorm", rmsnorm("bf16")), ("softmax", softmax("f32"))):
        yield "rows", "h200", name, operation


def row_of(case: Case, count: int, seed: int) -> dict[str, Any]:
    """Judge schedules of one space."""
    name, device, text, operation = case
    machine = machine_named(name)
    problem = Problem.of(operation, **dict.fromkeys(operation.axes, SIZE))
    space = Space(machine, problem, load_device(device))
    verdict_of.cache_clear()
    proved, kinds, seconds, wrong = 0, set(), [], []
    for schedule in space.sample(np.random.default_rng(seed), count):
        program = schedule.program(machine, operation)
        begun = time.process_time()
        found = verdict(program)
        seconds.append(time.process_time() - begun)
        kinds.add(erase(program))
        proved += found.legal
        if not found.legal:
            wrong.append({"schedule": dict(schedule.decisions), "verdict": str(found)})
    return {
        "machine": name, "operation": text, "schedules": len(seconds), "skeletons": len(kinds),
        "proved": proved, "milliseconds": round(1e3 * sum(seconds) / len(seconds), 2),
        "slowest": round(1e3 * max(seconds), 1), "wrong": wrong,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge all; write ``judged.json``; exit with 1 if one is not proved."""
    from rich.progress import track

    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    parser.add_argument("--count", type=int, default=320, help="schedules of each space")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    record = provenance(" ".join(("python -m benchmarks.judged", *words)))
    every = list(cases())
    rows = [row_of(case, given.count, given.seed) for case in track(every, "judging")]
    write_tree(given.out / "judged.json", {"provenance": record, "rows": rows})
    for row in rows:
        sys.stdout.write(
            "{machine}, {operation}: {proved} of {schedules} proved, {skeletons} skeletons, "
            "{milliseconds} ms, slowest {slowest} ms\n".format(**row)
        )
    if any(row["wrong"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
