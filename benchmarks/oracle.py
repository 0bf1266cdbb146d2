"""Schedules that were drawn, and what they take: the runs that no number of the model is chosen on.

    python -m benchmarks.oracle --draw            # here: what is to be measured
    python -m benchmarks.oracle [--part 0/2]      # on a GPU: measures what is not measured yet

A case is a machine and a shape; it has a file in ``h200/oracle``.  Its schedules are the ``BEST``
that the model thinks fastest, spread over the space as the search's finalists are, and ``UNIFORM``
of the legal space; of the third cases the first ``SOME`` of each.  The model's numbers are chosen
on ``FITTING``: every second of the first cases, all of those that came second, every second of the
third ones, which have other types.  No number is chosen on any run of ``HELD_OUT``.  With
``--again`` a held-out case that was measured is drawn anew: the best of today's model, the ``KEPT``
that were fastest, and the uniform ones that there were.

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
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import current_stream
from tinygpu.codegen.runtime.function import Function
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul

__all__ = [
    "CASES",
    "FITTING",
    "HELD_OUT",
    "ORACLE",
    "as_measured",
    "code_of",
    "decisions_of",
    "draw",
    "main",
    "path_of",
    "problem_of",
    "still",
]

ORACLE = FOLDER / "oracle"
BEST, UNIFORM, FEW, SOME, KEPT = 36, 36, 16, 24, 8
SLICE, SHORT, LONG, LARGE = 0.006, 0.08, 0.3, 200 * 4096 * 4096
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
_MORE = (
    (8, 8192, 2048), (64, 4096, 4096), (100, 3000, 5000), (256, 2048, 4096), (300, 704, 904),
    (384, 1536, 1536), (640, 5120, 1280), (768, 768, 768), (1333, 2056, 1032), (1500, 1500, 1504),
    (2048, 2048, 2048), (4096, 4096, 4096),
)  # fmt: skip
_TYPES = (
    ("bf16", (2, 7168, 7168)), ("f16", (5, 9216, 4096)), ("e4m3", (12, 8192, 8192)),
    ("f16", (40, 5120, 13824)), ("e4m3", (80, 14336, 4096)), ("bf16", (112, 7168, 7168)),
    ("f16", (150, 8192, 8192)), ("e4m3", (224, 4096, 4096)), ("bf16", (448, 9216, 3072)),
    ("f16", (600, 5120, 5120)), ("e4m3", (4096, 4096, 4096)), ("e4m3", (1111, 8192, 4096)),
)  # fmt: skip
_FIRST = (
    *(("hopper", "bf16", "nt", shape) for shape in _HOPPER),
    *(("simt", "f32", "nn", shape) for shape in _OTHERS),
    *(("ampere", "bf16", "nt", shape) for shape in _OTHERS),
)
_THIRD = tuple(("hopper", dtype, "nt", shape) for dtype, shape in _TYPES)
_LATER = (
    ("hopper", "bf16", "nt", (1000, 5120, 5120)), ("hopper", "bf16", "nt", (1, 14336, 4096)),
    ("hopper", "bf16", "nt", (384, 4096, 4096)), ("hopper", "f16", "nt", (40, 5120, 13824)),
    ("hopper", "bf16", "nt", (64, 4096, 11008)),
)  # fmt: skip
"""Held out until a fit of 2026-11-25 used their runs."""
FITTING = (
    *_FIRST[::2],
    *(("simt", "f32", "nn", shape) for shape in _MORE),
    *(("ampere", "bf16", "nt", shape) for shape in _MORE),
    *_THIRD[::2],
    *_LATER,
)
HELD_OUT = tuple(case for case in (*_FIRST[1::2], *_THIRD[1::2]) if case not in _LATER)
CASES = FITTING + HELD_OUT
"""Machine, type of the inputs, layout, (m, n, k)."""


def problem_of(case: Sequence[Any]) -> Problem:
    """Return the problem of a case."""
    _, dtype, layout, shape = case
    return Problem.of(matmul(dtype, layout=layout), **dict(zip("mnk", shape, strict=True)))


def path_of(case: Sequence[Any], folder: Path = ORACLE) -> Path:
    """Return the file of a case."""
    return folder / f"{case[0]}-{'x'.join(map(str, case[3]))}.json"


def draw(case: Sequence[Any], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Draw a case's schedules: values of ``decisions``, the model's best first.

    ``before`` is the case as it was measured, whose fastest and uniform ones are kept.
    """
    from tinygpu.search.exact.best import rank  # which needs z3: a machine that measures has none
    from tinygpu.space.space import Space

    machine = MACHINES[case[0]]
    space = Space(machine, problem_of(case), load_device("h200"))
    share = 1 if case[0] == "hopper" else FEW / BEST
    best = rank(space, round(BEST * share), spread=machine.spread).best
    rng = np.random.default_rng([0, *case[3]])
    names = [name for name, _ in best[0].schedule.decisions]
    rows = [[one.schedule[name] for name in names] for one in best]
    if before is None:
        drawn = [[one[name] for name in names] for one in space.sample(rng, round(UNIFORM * share))]
        if tuple(case) in _THIRD:
            rows, drawn = rows[:SOME], drawn[:SOME]
    else:
        old, drawn = before["schedules"], before["schedules"][before["best"] :]
        fastest = sorted((t, i) for i, t in enumerate(before["first"]) if t is not None)
        rows += [old[i] for _, i in fastest[:KEPT] if old[i] not in rows]
        drawn = [row for row in drawn if row not in rows]
    return {"case": case, "decisions": names, "best": len(rows), "schedules": rows + drawn}


def decisions_of(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the decisions of a file's schedules."""
    return [dict(zip(tree["decisions"], row, strict=True)) for row in tree["schedules"]]


def as_measured(decisions: Mapping[str, Any]) -> bool:
    """Say whether a schedule's code is what was measured: a cluster added k in its first CTA."""
    return int(decisions.get("cluster_k", 1)) == 1


def still(tree: Mapping[str, Any], *, other_code: bool = False) -> dict[str, Any]:
    """Return a file without the schedules that its machine has no more.

    Those that it makes ``other_code`` of are left out, too, unless they are asked for.
    """
    machine, operation = MACHINES[tree["case"][0]], problem_of(tree["case"]).operation
    before = {n: c.before for n, c in machine.decisions().items() if c.before is not None}
    there = [
        i
        for i, one in enumerate(decisions_of(tree))
        if (other_code or as_measured(one))
        and all(r.holds for r in machine.requires(operation, Chosen({**before, **one})))
    ]
    count = len(tree["schedules"])
    columns = {n: c for n, c in tree.items() if isinstance(c, list) and len(c) == count}
    kept = {n: [c[i] for i in there] for n, c in columns.items()}
    return {**tree, **kept, "best": sum(i < tree["best"] for i in there)}


def code_of(case: Sequence[Any], decisions: dict[str, Any], arch: str) -> tuple[Any, ...]:
    """Return a schedule's contract, its code, and ptxas's registers and bytes of spills."""
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
    parser.add_argument("--again", action="store_true", help="draw held-out cases that have times")
    parser.add_argument("--part", default="0/1", help="measure the i-th of n parts of the cases")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    number, parts = map(int, given.part.split("/"))
    if given.draw or given.again:
        for case in (HELD_OUT if given.again else CASES)[number::parts]:
            path, before = path_of(case, given.out), None
            if path.is_file():
                before = json.loads(path.read_text(encoding="utf-8"))
                if not (given.again and "provenance" in before):
                    continue
            write_tree(path, draw(case, before))
            sys.stdout.write(f"{path.stem}\n")
            sys.stdout.flush()
        return
    files = [path_of(case, given.out) for case in CASES[number::parts]]
    every = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    trees = [tree for tree in every if "provenance" not in tree]
    record = provenance("python -m benchmarks.oracle")
    if not trees:
        return
    jobs = [(tree["case"], each) for tree in trees for each in decisions_of(tree)]
    with ProcessPoolExecutor() as pool:
        built = iter(
            list(pool.map(code_of, *zip(*jobs, strict=True), repeat(device_arch()), chunksize=4))
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
