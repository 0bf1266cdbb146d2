"""Landscapes of shapes that were drawn, which no strategy was chosen on.

    python -m benchmarks.drawn_landscapes --out DIR --draw  # here: shapes and schedules
    python -m benchmarks.drawn_landscapes --out DIR         # on a GPU, 150 s at most: their seconds

The shapes are drawn with ``SEED``: four for ``hopper`` (bf16, layout nt) and two for ``simt``
(fp32).  The schedules of a shape are what a search may meet there: the model's best of ``SPREADS``
spreads, as a ranking of ``RANKING_SECONDS`` meets them, and single changes of the first
``CHANGED`` of them, drawn, ``MOST`` in all.  All kernels
are assembled on all cores before the first is timed.  Each is visited twice, each time in an order
drawn anew, and runs alone without a pause for ``VISIT`` seconds, of which the second half counts.
A case's file is written after each visit of its schedules; after ``--seconds`` nothing more is
begun.

A file has the seconds of both visits of each schedule, None where the judge or ptxas refuses it,
where it does not take the shape, and where it was not reached.  ``replay_held_out.py`` walks on
those that are kept in ``h100/landscapes``: none yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clocks import Bench
from benchmarks.oracle import code_of, decisions_of, path_of, problem_of
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import current_stream
from tinygpu.codegen.runtime.function import Function
from tinygpu.deadline import Deadline
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.machines import MACHINES

__all__ = ["CASES", "DRAWN", "drawn_schedules", "drawn_shapes", "main"]

DRAWN = FOLDER.parent / "h100" / "landscapes"
SEED, MOST, SPREADS, CHANGED, RANKING_SECONDS = 30, 200, 64, 6, 20.0
SLICE, VISIT = 0.003, 0.012
Case = tuple[str, str, str, tuple[int, int, int]]


def drawn_shapes(seed: int) -> tuple[Case, ...]:
    """Return four cases of ``hopper``, few rows to many, and two of ``simt``."""
    rng = np.random.default_rng(seed)
    found: list[Case] = []
    for quarter in range(4):
        m, (n, k) = round(2 ** (3 * (quarter + rng.random()))), rng.integers(3, 15, 2) * 1024
        found.append(("hopper", "bf16", "nt", (m, int(n), int(k))))
    for _ in range(2):
        m, n, k = (int(x) * 8 for x in 2 ** rng.uniform(4, 8.5, 3))
        found.append(("simt", "f32", "nn", (m, n, k)))
    return tuple(found)


CASES = drawn_shapes(SEED)


def drawn_schedules(case: Sequence[Any]) -> dict[str, Any]:
    """Draw a case's schedules: values of ``decisions``, the model's best of each spread first."""
    from tinygpu.search.exact.best import rank  # which needs z3: a machine that measures has none
    from tinygpu.search.neighbourhood import Neighbourhood
    from tinygpu.space.space import Space

    machine = MACHINES[case[0]]
    space = Space(machine, problem_of(case), load_device("h200"))
    soon = Deadline.within(RANKING_SECONDS, time.monotonic)
    ranking = rank(space, SPREADS, spread=machine.spread, exact=False, until=soon)
    best = [one.schedule for one in ranking.best]
    near = Neighbourhood(space)
    changes = dict.fromkeys(one.schedule for parent in best[:CHANGED] for one in near(parent))
    others = [one for one in changes if one not in best]
    order = np.random.default_rng([SEED, *case[3]]).permutation(len(others)).tolist()
    rows = [*best, *(others[i] for i in order[: MOST - len(best)])]
    names = [name for name, _ in best[0].decisions]
    return {"case": case, "decisions": names, "schedules": [[s[n] for n in names] for s in rows]}


def _code(case: Sequence[Any], decisions: dict[str, Any], arch: str) -> tuple[Any, ...]:
    """Return a schedule's contract and code, or nothing if it is refused."""
    try:
        return code_of(case, decisions, arch)
    except TinyGpuError:
        return ()


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, or time all cases; a file is written after each visit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawn_landscapes")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is written")
    parser.add_argument("--draw", action="store_true", help="draw what has no file, time nothing")
    parser.add_argument("--seconds", type=float, default=140.0, help="after which nothing begins")
    given = parser.parse_args(arguments)
    end = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    if given.draw:
        for case in CASES:
            if not (path := path_of(case, given.out)).is_file():
                write_tree(path, drawn_schedules(case))
                sys.stdout.write(f"{path.stem}\n")
                sys.stdout.flush()
        return
    files = [path_of(case, given.out) for case in CASES]
    trees = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    record = provenance("python -m benchmarks.drawn_landscapes")
    jobs = [(tree["case"], each) for tree in trees for each in decisions_of(tree)]
    with ProcessPoolExecutor() as pool:
        every = pool.map(_code, *zip(*jobs, strict=True), repeat(device_arch()), chunksize=4)
        built = iter(list(every))
    sys.stdout.write(f"{len(jobs)} kernels, {end - time.monotonic():.0f} s left\n")
    stream, order = gpu().cuda.Stream(non_blocking=True), np.random.default_rng(0)
    with current_stream(stream):
        bench = Bench(stream)
        for tree in trees:
            codes = list(islice(built, len(tree["schedules"])))
            kernels = {i: Function(*code[:2]) for i, code in enumerate(codes) if code}
            replays = bench.replays(problem_of(tree["case"]), kernels, SLICE)
            tree |= {visit: [None] * len(codes) for visit in ("first", "second")}
            for visit in ("first", "second"):
                for i in order.permutation(list(replays)).tolist():
                    if time.monotonic() < end:
                        seconds = bench.alone(replays[i], VISIT)["alone_seconds"]
                        tree[visit][i] = float(f"{seconds:.4g}")
                path = path_of(tree["case"], given.out)
                write_tree(path, {"provenance": record, **tree})
            sys.stdout.write(f"{path.stem}, {end - time.monotonic():.0f} s left\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
