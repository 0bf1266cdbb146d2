"""Cycles of attention's schedules, counted by Nsight Compute, beside cuDNN and FlashAttention-3.

    python -m benchmarks.attention_cycles [--parts NAME ..] [--out DIR]   # on a GPU, 40 s a case
    python -m benchmarks.attention_cycles --predicted                     # anywhere: 40 s

Under the power cap two visits of 50 ms differ by 2 to 4 %, as much as is to be won.  Cycles do not
hang on the clock: two runs are within 1 %, and say beside it what the tensor cores, L2 and DRAM
did.  What they leave out is power, so the fewest cycles need not be the least time:
``docs/attention.md``.

Each case is profiled in a process of its own: every kernel runs twice, and then once under
``ncu --clock-control none``, which leaves the card's settings alone.  ``CHANGES`` are of the point
"zigzag", at each of ``CASES``; at ``ORDERS_AT`` all orders of a consumer, too.

``--predicted`` holds the time model, without the power cap, against these cycles, and as it is
against the times of ``attention_landscapes.py`` and of e4m3 (``attention.py``).  A line is a case:
what is lost by the model's first and by the best of its first eight, rank correlation and
correlation, the median of log(predicted / measured), and that of its size.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attention import CASES as TIMED
from benchmarks.attention import Candidate, Case, Data, drawn, fa3, own, problem_of, sdpa
from benchmarks.attention_drawn import problem
from benchmarks.oracle import decisions_of
from benchmarks.peers import FOLDER, write_tree
from benchmarks.trust import Times, regret_at
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, consumer_orders
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule

__all__ = ["CASES", "CHANGES", "changed", "counted", "line_of", "main", "measured", "ran",
           "recorded", "traced", "variants"]  # fmt: skip

CASES: Mapping[str, Case] = {
    one.part: one
    for one in (
        Case("cycles", 16, 16, 1, 2048, 2048, 128, causal=True),
        Case("cycles", 8, 16, 1, 4096, 4096, 128, causal=True),
        Case("cycles", 4, 16, 1, 8192, 8192, 128, causal=True),
        Case("cycles", 2, 16, 1, 16384, 16384, 128, causal=True),
        Case("cycles", 4, 16, 1, 8192, 8192, 128, causal=False),
        Case("cycles", 8, 32, 1, 4096, 4096, 64, causal=True),
        Case("cycles", 8, 32, 1, 4096, 4096, 64, causal=False),
    )
}
ORDERS_AT = "b4_h16x1_8192x8192_d128_causal"

_BEST = "SVsMvELOP"
_SHARED: Mapping[str, Value] = {"consumer_order": _BEST, "queries": "shared", "stages_q": 2}
_THREE: Mapping[str, Value] = {
    "consumer_order": "SVsMEvLOP",
    "queries": "shared",
    "consumers": 3,
    "tile_n": 80,
    "stages_v": 4,
}
_TILES = (64, 80, 96, 112, 128, 144, 160)
CHANGES: Mapping[str, Mapping[str, Value]] = {
    "queries in registers": {"consumer_order": _BEST},
    "pair": {"consumer_order": _BEST, "cluster_m": 2},
    "in turn": {"consumer_order": _BEST, "turns": "named"},
    "FA3's source": {"consumer_order": "SVsMELvOP"},
    "queries in memory": _SHARED,
    "queries in memory, pair": {**_SHARED, "cluster_m": 2},
    "three consumers": _THREE,
    "three consumers, pair": {**_THREE, "cluster_m": 2},
    **{f"three consumers, {n} keys": {**_THREE, "tile_n": n} for n in (64, 96, 112, 128)},
    **{f"three consumers, 128 keys, rings of {k} and {v}": {
        **_THREE, "tile_n": 128, "stages_k": k, "stages_v": v}
        for k, v in ((2, 2), (2, 3), (3, 3), (4, 2))},
    **{f"{n} keys": {**_SHARED, "stages_q": 1, "tile_n": n} for n in _TILES},
    "176 keys": {**_SHARED, "stages_q": 1, "tile_n": 176, "epilogue": "direct"},
    "one tile each": {"consumer_order": _BEST, "persistent": 0, "order": "longest"},
    **{f"raster {r}": {"consumer_order": _BEST, "raster": r} for r in (1, 2, 8)},
    "loads KQVK": {"consumer_order": _BEST, "producer_order": "KQVK"},
    "loads QKKV": {"consumer_order": _BEST, "producer_order": "QKKV"},
    "loads KQKV": {"consumer_order": _BEST, "producer_order": "KQKV"},
    "by rows": {"consumer_order": _BEST, "softmax": "by rows"},
    "by rows, raster 1": {"consumer_order": _BEST, "softmax": "by rows", "raster": 1},
    "by rows, pair": {"consumer_order": _BEST, "softmax": "by rows", "cluster_m": 2},
    "by rows, 144 keys": {**_SHARED, "stages_q": 1, "softmax": "by rows", "tile_n": 144},
}  # fmt: skip
"""Schedules as changes of the point "zigzag", whose raster is 4."""

METRICS = {
    "sm__cycles_elapsed.max": "cycles",
    "gpu__time_duration.sum": "nanoseconds",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor_percent",
    "lts__t_bytes.sum": "l2_bytes",
    "dram__bytes_read.sum": "dram_bytes",
    "smsp__inst_executed.sum": "instructions",
}
"""What Nsight Compute counts, and what a row calls it."""
_LIMIT_SECONDS = 75.0
_CORES = 12
_RESULTS, _DEVICE, _COOL = FOLDER.parent / "h100", "h100", 1e12


def changed(part: str, change: Mapping[str, Value]) -> dict[str, Value]:
    """Return the decisions of the point "zigzag" with a change, as they are at a case."""
    one = CASES[part]
    straight: dict[str, Value] = {} if one.causal else {"order": "straight"}
    return {**STARTS["zigzag"], "depth": one.d, **straight, **change}


def variants(part: str) -> dict[str, dict[str, Value]]:
    """Return the decisions of the schedules that are counted at a case, by name: the legal."""
    of, device, machine = problem_of(CASES[part]), load_device(_DEVICE), MACHINES["attention"]
    found = {name: changed(part, change) for name, change in CHANGES.items()}
    for name, values in [*found.items()]:
        if check_schedule(Schedule.of(machine, values), machine, of, device):
            del found[name]
    if part == ORDERS_AT:
        base = {**STARTS["zigzag"], "raster": 2}
        found |= {f"order {o}": {**base, "consumer_order": o} for o in consumer_orders().values}
    return found


def counted(text: str) -> list[dict[str, float]]:
    """Return what ``ncu --csv`` counted, a row each kernel, but for what fills arrays.

    >>> head = '"ID","Kernel Name","Metric Name","Metric Value"'
    >>> counted(head + chr(10) + '"0","attend","sm__cycles_elapsed.max","1,024"')
    [{'cycles': 1024.0}]
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines):
        if "elementwise" not in row["Kernel Name"]:
            number = float(row["Metric Value"].replace(",", ""))
            rows.setdefault(row["ID"], {})[METRICS[row["Metric Name"]]] = number
    return list(rows.values())


def _inside(part: str) -> None:
    """Run each kernel twice, and once for the profiler; print the names of those that ran."""
    from tinygpu.codegen.run.launch import Kernel

    one = CASES[part]
    problem = problem_of(one)

    def built(item: tuple[str, Mapping[str, Value]]) -> tuple[str, Any]:
        name, values = item
        try:
            program = MACHINES["attention"].program(problem.operation, Chosen(values))
            return name, partial(own, Kernel(program, sizes=problem.sizes), one)
        except TinyGpuError as error:
            sys.stderr.write(f"{name}: {error}\n")
            return name, None

    with ThreadPoolExecutor(_CORES) as pool:
        found = dict(pool.map(built, variants(part).items()))
    found |= {"FlashAttention-3": partial(fa3, one), "cuDNN": partial(sdpa, "CUDNN_ATTENTION", one)}
    ran(found, drawn(one)[0])


def ran(found: Mapping[str, Candidate | None], data: Data) -> None:
    """Run each twice, and once for the profiler; print the names of those that ran."""
    import torch

    names = []
    for name, candidate in found.items():
        if candidate is None:
            continue
        try:
            run = candidate(data)
            run()
            run()
            torch.cuda.synchronize()
        except Exception as error:  # a library may refuse in any way; who asks, says so
            sys.stderr.write(f"{name}: {error}\n")
            continue
        torch.cuda.profiler.start()
        run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        names.append(name)
    sys.stdout.write(f"ran {json.dumps(names)}\n")


def traced(module: str, part: str, own: Iterable[str]) -> tuple[list[dict[str, Any]], str]:
    """Count a case in a process of its own; return a row each kernel, and what it printed.

    Raises LaunchError where Nsight Compute counts something else, or one of its ``own`` kernels,
    by name, did not run; peers may refuse.
    """
    words = (
        *("ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv"),
        *("--print-units", "base", "--metrics", ",".join(METRICS)),
        *(sys.executable, "-m", module, "--inside", part),
    )
    run = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS)
    names = [json.loads(x[4:]) for x in run.stdout.splitlines() if x.startswith("ran ")]
    rows = counted(run.stdout)
    sys.stderr.write(run.stderr)  # of what refused
    if run.returncode or not names or len(names[0]) != len(rows):
        raise LaunchError(f"{part}: ncu: {(run.stderr.strip() or run.stdout).splitlines()[-1:]}")
    if missing := sorted({*own} - {*names[0]}):
        raise LaunchError(f"{part}: {', '.join(missing)} did not run")
    return [{"name": name, **row} for name, row in zip(names[0], rows, strict=True)], run.stdout


def _profiled(part: str) -> list[dict[str, Any]]:
    """Return the rows of a case."""
    every = variants(part)
    rows, _ = traced("benchmarks.attention_cycles", part, every)
    return [{"case": part, "decisions": every.get(row["name"]), **row} for row in rows]


def recorded(
    name: str, parts: Sequence[str], out: Path, rows_of: Callable[[str], list[dict[str, Any]]]
) -> None:
    """Count all cases into a file of this name, and exit with 1 if one failed."""
    record = provenance(f"python -m benchmarks.{name} --parts " + " ".join(parts))
    rows, failed = list[dict[str, Any]](), 0
    for part in parts:
        try:
            rows += rows_of(part)
        except (LaunchError, OSError, subprocess.TimeoutExpired) as error:
            sys.stderr.write(f"{error}\n")
            failed += 1
        write_tree(out / f"{name}.json", {"provenance": record, "rows": rows})
        for row in rows:
            if row["case"] == part:
                sys.stdout.write(
                    f"{part} {row['name']}: {row['cycles'] / 1e6:.3f} M cycles, "
                    f"tensor cores {row['tensor_percent']:.1f} %, "
                    f"DRAM {row['dram_bytes'] / 1e9:.2f} GB{os.linesep}"
                )
    sys.exit(bool(failed))


Measured = tuple[str, Problem, Mapping[str, Value], float, bool]
"""A case's name, what it computes, a schedule, its seconds, and whether these are of cycles."""


def measured(folder: Path = _RESULTS) -> Iterator[Measured]:
    """Yield what was counted, and what was timed, of schedules that the machine still has."""
    trees = (json.loads((folder / f"attention_{name}.json").read_text(encoding="utf-8"))
             for name in ("cycles", "searched", "landscapes", "landscapes_fresh"))  # fmt: skip
    cycles, searched, *landscapes = trees
    for row in cycles["rows"]:
        if row["decisions"]:
            name = row["case"] + ", orders" * row["name"].startswith("order ")
            seconds = row["cycles"] / load_device(_DEVICE).clock_hz
            yield name, problem_of(CASES[row["case"]]), row["decisions"], seconds, True
    for fresh, case in ((n, case) for n, tree in enumerate(landscapes) for case in tree["cases"]):
        of = problem(case["words"])
        name = f"{'fresh ' * fresh}landscape {case['words']['mask']} {dict(of.sizes)}"
        times = zip(decisions_of(case), case["first"], case["second"], strict=True)
        yield from ((name, of, one, (a * b) ** 0.5, False) for one, a, b in times if a and b)
    cases = {one.part: one for one in TIMED}
    for row in searched["rows"]:
        for name, one in row["decisions"].items() if row["dtype"] == "e4m3" else ():
            chosen = {decision: value for decision, value in one.items() if decision != "machine"}
            yield row["case"], problem_of(cases[row["case"]]), chosen, row["points"][name], False


def _predicted(one: Measured) -> float:
    _, of, chosen, _, cycles = one
    device = load_device(_DEVICE)
    if cycles:
        device = device.with_values(tensor_clock_hz=_COOL)
    machine = MACHINES["attention"]
    term = Schedule.of(machine, chosen).program(machine, of.operation)
    return float(cost(term, of.sizes, device).seconds)


def line_of(name: str, model: Times, times: Times) -> str:
    """Return a case's line.

    >>> line_of("some", np.array([2.0, 1.0, 3.0]), np.array([2.0, 2.5, 4.0]))
    'some: 3, regret 25.0 %, of 8 0.0 %, rank 0.50, r 0.72, bias -0.288, error 0.288'
    """
    ranks = [(x[:, None] > x).sum(1) + (x[:, None] == x).sum(1) / 2 for x in (model, times)]
    rank, r = np.corrcoef(ranks)[0, 1], np.corrcoef(model, times)[0, 1]
    error, (first, eight) = np.log(model / times), (regret_at(times, model, n) for n in (1, 8))
    return (
        f"{name}: {len(times)}, regret {100 * first:.1f} %, of 8 {100 * eight:.1f} %, "
        f"rank {rank:.2f}, r {r:.2f}, bias {np.median(error):.3f}, "
        f"error {np.median(np.abs(error)):.3f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and write a file; exit with 1 for a case that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_cycles")
    parser.add_argument("--parts", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--predicted", action="store_true", help="judge the time model")
    parser.add_argument("--inside", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside:
        _inside(given.inside)
        return
    if given.predicted:
        cases: dict[str, list[tuple[float, float]]] = {}
        for one in measured():
            cases.setdefault(one[0], []).append((_predicted(one), one[3]))
        for name, pairs in cases.items():
            sys.stdout.write(line_of(name, *np.array(pairs).T) + "\n")
        return
    recorded("attention_cycles", given.parts, given.out, _profiled)


if __name__ == "__main__":
    main()
