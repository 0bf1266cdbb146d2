"""Schedules that were drawn, and what they take: the runs that no number of the model is chosen on.

    python -m benchmarks.oracle --draw            # here: what is to be measured
    python -m benchmarks.oracle [--part 0/2]      # on a GPU: measures what is not measured yet

A case is a machine and a shape; it has a file in ``h200/oracle``.  Its schedules are the ``BEST``
that the model thinks fastest, spread over the space as the search's finalists are, and ``UNIFORM``
of the legal space.  The model is fitted to no run at any of these shapes: every case is held out.
The committed cases were drawn at c21d75adb006, whose time model is not today's (``decisions.md``).

Each schedule is visited twice, each round in an order of its own, drawn anew.  A visit runs one
kernel for ``LONG`` seconds (``SHORT`` where the work is too small to meet the power cap) without a
pause, and its second half counts, so that clock and heat are the kernel's own and not those of the
one before.  What the two visits differ by is the noise, A/A.  A clear that a kernel's sums need is
a part of its time.

Columns of a file, one entry a schedule, None where the schedule does not take the shape:
``first`` and ``second`` in seconds a call, ``hz`` the clock, ``watts``, ``registers`` and
``spills`` in bytes, of ptxas.

Source: for the clock after a visit see ``clocks.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clocks import Bench
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.arguments import contract_of
from tinygpu.codegen.assemble import assemble
from tinygpu.codegen.emit import emit
from tinygpu.codegen.launch import device_arch, gpu
from tinygpu.codegen.provenance import provenance
from tinygpu.codegen.runtime.function import Function
from tinygpu.codegen.timing import current_stream
from tinygpu.device import load_device
from tinygpu.machine import Chosen
from tinygpu.machines import MACHINES
from tinygpu.operation import Problem, matmul

__all__ = ["CASES", "ORACLE", "decisions_of", "draw", "main", "path_of", "problem_of"]

ORACLE = FOLDER / "oracle"
BEST, UNIFORM, FEW = 36, 36, 16
SLICE, SHORT, LONG, LARGE = 0.006, 0.06, 0.15, 512 * 4096 * 4096
COLUMNS = ("first", "second", "hz", "watts")

_HOPPER = (
    (1, 5120, 5120), (1, 14336, 4096), (4, 5120, 5120), (8, 8192, 8192), (13, 28672, 4096),
    (16, 5120, 13824), (24, 6144, 4096), (32, 11008, 4096), (48, 8192, 8192), (64, 4096, 11008),
    (77, 12288, 4096),
    (96, 5120, 5120), (128, 8192, 8192), (160, 4096, 14336), (200, 6144, 4096), (256, 11008, 4096),
    (320, 5120, 13824), (384, 4096, 4096), (512, 8192, 8192), (700, 4096, 11008), (768, 6144, 4096),
    (1000, 5120, 5120), (1024, 8192, 8192), (1333, 4096, 4096), (1536, 11008, 4096),
    (2048, 5120, 5120), (2048, 8192, 8192), (3000, 5120, 5120), (4096, 5120, 13824),
    (4096, 12288, 4096), (6144, 6144, 6144), (8192, 5120, 5120),
)  # fmt: skip
_OTHERS = (
    (16, 4096, 4096), (128, 4096, 4096), (512, 512, 512), (777, 1000, 2000), (1000, 1000, 1000),
    (1024, 4096, 1024), (2304, 2304, 2304), (3000, 3000, 3000),
)  # fmt: skip
CASES = (
    *(("hopper", "bf16", "nt", shape) for shape in _HOPPER),
    *(("simt", "f32", "nn", shape) for shape in _OTHERS),
    *(("ampere", "bf16", "nt", shape) for shape in _OTHERS),
)
"""Machine, type of the inputs, layout, (m, n, k)."""


def problem_of(case: Sequence[Any]) -> Problem:
    """Return the problem of a case."""
    _, dtype, layout, shape = case
    return Problem.of(matmul(dtype, layout=layout), **dict(zip("mnk", shape, strict=True)))


def path_of(case: Sequence[Any], folder: Path = ORACLE) -> Path:
    """Return the file of a case."""
    return folder / f"{case[0]}-{'x'.join(map(str, case[3]))}.json"


def draw(case: Sequence[Any], seed: int = 0) -> dict[str, Any]:
    """Draw a case's schedules: values of ``decisions``, the model's best first."""
    from tinygpu.search.best import rank  # which needs z3: a machine that measures has none
    from tinygpu.space import Space

    machine = MACHINES[case[0]]
    space = Space(machine, problem_of(case), load_device("h200"))
    share = 1 if case[0] == "hopper" else FEW / BEST
    best = rank(space, round(BEST * share), spread=machine.spread).best
    rng = np.random.default_rng([seed, *case[3]])
    both = [one.schedule for one in best] + space.sample(rng, round(UNIFORM * share))
    names = [name for name, _ in both[0].decisions]
    rows = [[dict(one.decisions)[name] for name in names] for one in both]
    return {"case": case, "decisions": names, "best": len(best), "schedules": rows}


def decisions_of(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the decisions of a file's schedules."""
    return [dict(zip(tree["decisions"], row, strict=True)) for row in tree["schedules"]]


def _code(case: Sequence[Any], decisions: dict[str, Any], arch: str) -> tuple[Any, ...]:
    machine = MACHINES[case[0]]
    problem = problem_of(case)
    program = machine.program(problem.operation, Chosen(decisions))
    sizes = problem.sizes if program.specialised else None
    cubin = assemble(emit(program, arch, sizes), arch)
    spills = cubin.spill_stores_bytes + cubin.spill_loads_bytes
    return contract_of(program, sizes), cubin.bytes, cubin.registers, spills


def measured(bench: Bench, case: Sequence[Any], codes: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the columns of a case."""
    problem = problem_of(case)
    seconds = LONG if math.prod(case[3]) >= LARGE else SHORT
    kernels = {i: Function(contract, code) for i, (contract, code, *_) in enumerate(codes)}
    replays = bench.replays(problem, kernels, SLICE)
    columns: dict[str, list[Any]] = {name: [None] * len(codes) for name in COLUMNS}
    order = np.random.default_rng(0)
    for name in ("first", "second"):
        for number in order.permutation(list(replays)).tolist():
            found = bench.alone(replays[number], seconds)
            columns[name][number] = _short(found["alone_seconds"])
            columns["hz"][number] = _short(found["alone_hz"])
            columns["watts"][number] = _short(found["alone_watts"])
    registers, spills = ([code[i] for code in codes] for i in (2, 3))
    return {**columns, "registers": registers, "spills": spills}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, or measure what has no times yet; a file is written after each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.oracle")
    parser.add_argument("--out", type=Path, default=ORACLE, help="folder of the results")
    parser.add_argument("--draw", action="store_true", help="draw schedules, and measure nothing")
    parser.add_argument("--part", default="0/1", help="measure the i-th of n parts of the cases")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    number, parts = map(int, given.part.split("/"))
    if given.draw:
        for case in CASES[number::parts]:
            if not path_of(case, given.out).is_file():
                write_tree(path_of(case, given.out), draw(case))
                sys.stdout.write(f"{path_of(case).stem}\n")
                sys.stdout.flush()
        return
    every = [json.loads(path_of(case).read_text(encoding="utf-8")) for case in CASES[number::parts]]
    trees = [tree for tree in every if "provenance" not in tree]
    record = provenance("python -m benchmarks.oracle")
    if not trees:
        return
    jobs = [(tree["case"], each) for tree in trees for each in decisions_of(tree)]
    with ProcessPoolExecutor() as pool:
        built = iter(
            list(pool.map(_code, *zip(*jobs, strict=True), repeat(device_arch()), chunksize=4))
        )
    stream = gpu().cuda.Stream(non_blocking=True)
    with current_stream(stream):
        bench = Bench(stream)
        for tree in trees:
            codes = list(islice(built, len(tree["schedules"])))
            columns = measured(bench, tree["case"], codes)
            path = path_of(tree["case"], given.out)
            write_tree(path, {"provenance": record, **tree, **columns})
            sys.stdout.write(f"{path.stem}: {len(codes)} schedules\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
