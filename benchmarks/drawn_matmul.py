"""Shapes that nobody tuned for, from the user's own command: ``python -m benchmarks.drawn_matmul``.

    python -m benchmarks.drawn_matmul [--share I/N] [--groups G ..] [--seconds S] [--out DIR]

The shapes of the groups "drawn" and "drawn fp32" follow from a commit's hash, that of the code
(``--commit``, by default what is checked out), so that no code was made for them: m is log-uniform
in 1..16384, n and k in 512..32768, with at most ``MOST_FLOP`` and ``MOST_BYTES``.  Every second one
has multiples of 64, the others what was drawn (but k of bf16 a multiple of 8, as TMA has it).  fp32
has the four layouts in turn.  "deep drawn" has few tiles and long sums: m and n in 64..1024, k in
8192..131072, multiples of 64 and of 8 in turn; there all machines are searched.  "main" and "deep
k" are those of ``hopper_matmul.py``, in an order that is drawn, and "clocks" those at which
cuBLASLt's clock was found to be higher than ours.

Of each shape a process of its own runs

    tinygpu search matmul ... --measure --budget 8 --device D --out FOLDER

timed from outside; its store is empty.  Then its fastest finalist and the model's first choice
stand beside the fastest two of PyTorch, of cuBLASLt's list and of Triton (bf16), in new orders
under one load.  Nothing is chosen by hand.  At the end that finalist and the fastest peer run once
more, each alone, for what its clock is.  A row is written after each shape; ``--seconds`` ends
before a shape that would begin later.

>>> shapes("drawn", "0" * 40, 2)
[(448, 1536, 576), (1, 15072, 22792)]
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hopper_matmul import CASES
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.measure import COARSE, SUSTAINED, Campaign, peer_of
from tinygpu.codegen.run.provenance import provenance
from tinygpu.machines import MACHINES
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

__all__ = ["GROUPS", "main", "shapes", "summary"]

GROUPS = {"drawn": 25, "main": 25, "drawn fp32": 20, "deep k": 3, "clocks": 10,
          "deep drawn": 8}  # fmt: skip
CLOCKS = (
    (6000, 6144, 6144), (1333, 4096, 4096), (10000, 2048, 8192), (900, 2560, 9728),
    (12288, 12288, 12288), (4608, 4608, 4608), (65536, 512, 512), (512, 512, 16384),
    (200, 4096, 11008), (384, 3584, 18944),
)  # fmt: skip
_ALONE = replace(SUSTAINED, rounds=10, burst_seconds=0.05)
MOST_FLOP, MOST_BYTES = 4e12, 8e9
BUDGET, WALL = 8, 18
_LAYOUTS = ("nn", "nt", "tn", "tt")
_TORCH, _LT, _TRITON = (
    "benchmarks.peers",
    "tinygpu.codegen.run.cublaslt",
    "benchmarks.triton_matmul",
)


def shapes(group: str, commit: str, count: int) -> list[tuple[int, int, int]]:
    """Return the (m, n, k) of a group that a commit's hash draws."""
    rng = np.random.default_rng([int(commit[:8], 16), list(GROUPS).index(group)])
    if group == "deep drawn":
        deep = [
            [int(math.exp(rng.uniform(math.log(low), math.log(high)))) // by * by
             for low, high in ((64, 1024), (64, 1024), (8192, 131072))]
            for by in ((64, 8) * count)[:count]
        ]  # fmt: skip
        return [(m, n, k) for m, n, k in deep]
    if "drawn" not in group:
        given = [one.problem.sizes for one in CASES if one.group == group]
        every = CLOCKS if group == "clocks" else [tuple(one[a] for a in "mnk") for one in given]
        return [every[i] for i in rng.permutation(len(every))[:count]]
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        m, n, k = (
            int(math.exp(rng.uniform(math.log(low), math.log(high))))
            for low, high in ((1, 16384), (512, 32768), (512, 32768))
        )
        if len(found) % 2 == 0:  # no edges: m too, from 64 on
            m, n, k = (x if x < 64 else x // 64 * 64 for x in (m, n, k))
        elif group == "drawn":  # 16 B a row, as TMA and every peer here need
            k = k // 8 * 8
        flop, moved = 2.0 * m * n * k, 4.0 * (m * k + n * k + m * n)
        if flop <= MOST_FLOP / (10 if "fp32" in group else 1) and moved <= MOST_BYTES:
            found.append((m, n, k))
    return found


def searched(
    group: str, number: int, shape: Sequence[int], device: str
) -> tuple[dict[str, Any], Problem, list[Schedule]]:
    """Run the command; return what the row has of it, the problem, and the best and the first."""
    fp32 = group == "drawn fp32"
    dtype, layout = ("f32", _LAYOUTS[number % 4]) if fp32 else ("bf16", "nt")
    machines = {"drawn fp32": ("simt",), "deep drawn": ()}.get(group, ("hopper",))
    sizes = dict(zip("mnk", shape, strict=True))
    problem = Problem.of(matmul(dtype, layout=layout), **sizes)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found"
        words = [
            *("search", "matmul", "--dtype", dtype, "--layout", layout),
            *(word for machine in machines for word in ("--machine", machine)),
            *(word for a, size in sizes.items() for word in (f"-{a}", str(size))),
            *("--measure", "--budget", str(BUDGET), "--device", device, "--out", str(out)),
        ]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tinygpu", *words], capture_output=True, text=True, check=False
        )
        row: dict[str, Any] = {
            "group": group, "case": f"{dtype} {layout}", **sizes,
            "wall_seconds": round(time.perf_counter() - start, 2),
        }  # fmt: skip
        if done.returncode:
            return row | {"reason": done.stderr.strip()[-300:]}, problem, []
        tree = json.loads((out / "search.json").read_text(encoding="utf-8"))
    best = tree["best"]
    first = best[tree["model_first"] - 1]
    ran = [one for one in best if one["seconds"]]
    row |= {"evaluations": tree["evaluations"], "schedule": dict(ran[0]["decisions"]),
            "first_schedule": dict(first["decisions"]),
            "predicted_seconds": ran[0]["predicted_seconds"],
            "first_predicted_seconds": first["predicted_seconds"],
            "failed": tree["failed"]}  # fmt: skip
    row |= {"machine": ran[0]["machine"], "first_machine": first["machine"]}
    both = [Schedule.of(MACHINES[one["machine"]], one["decisions"]) for one in (ran[0], first)]
    return row, problem, list(dict.fromkeys(both))


def beside(problem: Problem, both: Sequence[Schedule]) -> dict[str, Any]:
    """Time the best and the first beside the peers, and return the row's columns."""
    programs = {s: s.term(MACHINES[s.machine], problem.operation) for s in both}
    modules = [_TORCH, _LT, *([_TRITON] if problem.operation.inputs[0].dtype != "f32" else [])]
    with Campaign(problem, options=COARSE) as campaign:
        named = [name for module in modules for name in campaign.peers(module)[:11]]
        ran = [m for m in campaign.measure({}, named) if m.seconds]
        ran.sort(key=lambda m: m.seconds or math.inf)
        best: list[str] = []
        for module in modules:
            best += [n for m in ran if (n := peer_of(m)).startswith(f"{module}:")][:2]
        found = campaign.measure(programs, best, options=SUSTAINED, anew=True)
        ran = sorted((m for m in found[len(both) :] if m.seconds), key=lambda m: m.seconds or 0.0)
        one, other = {both[0]: programs[both[0]]}, [peer_of(ran[0])]
        alone = [
            m
            for programs, names in ((one, []), ({}, other))
            for m in campaign.measure(programs, names, options=_ALONE, anew=True)
        ]
    mine = dict(zip(both, found[: len(both)], strict=True))
    peers = {peer_of(m): m for m in found[len(both) :] if m.seconds}
    fastest = min(peers, key=lambda name: peers[name].seconds or math.inf)
    row = {
        "seconds": mine[both[0]].seconds, "first_seconds": mine[both[-1]].seconds,
        "peer": fastest.rpartition(":")[2], "peer_seconds": peers[fastest].seconds,
        "capped": mine[both[0]].capped, "spread": mine[both[0]].spread,
        "reason": mine[both[0]].reason, "first_reason": mine[both[-1]].reason,
        "alone_seconds": [m.seconds for m in alone], "alone_mhz": [m.clock_mhz for m in alone],
    }  # fmt: skip
    for module, name in ((_TORCH, "torch"), (_LT, "cublaslt"), (_TRITON, "triton")):
        times = [m.seconds or math.inf for n, m in peers.items() if n.startswith(f"{module}:")]
        row[f"{name}_seconds"] = min(times, default=None)
    return row


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, of each group, the ratios of the best peer's time to ours: geometric mean, least.

    >>> summary([{"group": "drawn", "seconds": 2.0, "first_seconds": 4.0, "peer_seconds": 2.0,
    ...           "wall_seconds": 9}])[0]["best"]
    1.0
    """
    told = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group and row.get("seconds")]
        line: dict[str, Any] = {"group": group, "rows": len(mine)}
        for name, field in (("best", "seconds"), ("first", "first_seconds")):
            ratios = [row["peer_seconds"] / row[field] for row in mine if row[field]]
            if ratios:
                line[name] = round(float(np.exp(np.mean(np.log(ratios)))), 4)
                line[f"{name}_least"] = round(min(ratios), 4)
        line["wall_most"] = max((row["wall_seconds"] for row in mine), default=None)
        told.append(line)
    return told


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, compare, and write after each shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawn_matmul")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--count", type=int, help="shapes of each group")
    parser.add_argument("--share", default="0/1", help="every N-th shape from I on: I/N")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to begin no more")
    parser.add_argument("--device", default="h100", help="as for search")
    parser.add_argument("--commit", help="the hash that draws; that of the code if not given")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    record = provenance(f"python -m benchmarks.drawn_matmul --groups {' '.join(given.groups)}")
    commit = given.commit or record["commit"]
    share, shares = map(int, given.share.split("/"))
    jobs = [
        (group, number, shape)
        for group in given.groups
        for number, shape in enumerate(shapes(group, commit, given.count or GROUPS[group]))
    ]
    rows: list[dict[str, Any]] = []
    for group, number, shape in jobs[share::shares]:
        if time.monotonic() - began > given.seconds:
            break
        row, problem, both = searched(group, number, shape, given.device)
        if both:
            row |= beside(problem, both)
        rows.append(row)
        tree = {"provenance": record, "drawn_by": commit, "summary": summary(rows), "rows": rows}
        write_tree(given.out / f"drawn_matmul_{share}.json", tree)
        sys.stdout.write(f"{time.monotonic() - began:.0f} s {row}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
