"""Few kernels for many shapes: ``python -m benchmarks.dispatch``; writes ``dispatch.json``.

What ``tinygpu dispatch`` does, step by step, on several experiments (``--parts``):

- *hints fp32*, *hints bf16*: square problems, a kernel for each hint in 64..4096 step 64, each the
  model's first few measured at its hint.  Three of them (hints 64, 256, 4096), chosen by the
  nearest hint, against every single kernel at every size: the published experiment.
- *4096*: N = K = 4096, about 64 values of M from 1 to 8192, for 1 to 12 kernels and every rule.
- *llama*: the four linear layers of an 8B Llama in one bundle, the same M.

All candidates are measured twice at every shape, beside cuBLASLt's algorithms: a choice is made
from the first measurement and scored on the second, against the fastest candidate of each shape
there.  "oracle": the fastest of each shape by the first measurement, scored on the second: what
noise alone costs.  ``geomean_vs_peer``: cuBLASLt's best at each shape over the kernel's time.

Source: ``docs/dispatch.md``; the published experiment: PyTorch, pull requests 156628 and 163090.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tinygpu.cli.console import bar
from tinygpu.cli.dispatch import Dispatch
from tinygpu.cli.shapes import LAYERS, sampled
from tinygpu.codegen.run.bundle import bundle_parts, write_bundle
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import label, load_device
from tinygpu.errors import ScheduleError, TinyGpuError
from tinygpu.search.selection import choose, intervals, slowdowns
from tinygpu.search.tuning.dispatching import Fleet, Times, ranked_at, served_of, timed_by
from tinygpu.search.tuning.shape import Shape, matmul_shape
from tinygpu.term.operation import matmul

__all__ = ["PARTS", "main"]

COUNTS = (1, 2, 3, 4, 6, 8, 12)
HINTS = (64, 256, 4096)
STEP = 64
ROWS = sampled(1, 8192, 64)
PARTS = ("hints fp32", "hints bf16", "4096", "llama")
_BUNDLE = {"4096": 8, "llama": 16}


def layers(part: str) -> list[Shape]:
    """Return the shapes of a part with layers."""
    if part == "4096":
        return [matmul_shape(m, 4096, 4096) for m in ROWS]
    return [matmul_shape(m, n, k, 1.0, name) for name, (_, n, k) in LAYERS.items() for m in ROWS]


def dispatch(part: str, out: Path) -> Dispatch:
    """Return a part's shapes and machine, as the command would take them."""
    dtype, layout, machine = "bf16", "nt", "hopper"
    if part == "hints fp32":
        dtype, layout, machine = "f32", "nn", "simt"
    if part.startswith("hints"):
        shapes = [matmul_shape(s, s, s) for s in range(STEP, 4096 + STEP, STEP)]
    else:
        shapes = layers(part)
    operation = matmul(dtype, layout=layout)
    return Dispatch(operation, shapes, {machine: machine}, "h200", "", out / "dispatch.db")


def served(part: str, one: Dispatch, out: Path, seconds: float, most: int) -> dict[str, Any]:
    """Choose kernels for a part's shapes; return rows and what was measured."""
    shapes = one.shapes
    one.find(seconds, _BUNDLE[part], most)
    one.time()
    jobs = [
        replace(
            one.job(shape, schedules=tuple(one.schedules), peers=tuple(timed.peers)),
            store=out / "dispatch again.db",
        )
        for shape, timed in zip(shapes, one.timed, strict=True)
    ]
    with bar(f"{part}: measure again") as progress:
        again = timed_by(one.fleet, jobs, progress)
    second = np.array([a.seconds for a in again])
    peers = np.array([min(a.peers.values()) for a in again])
    every = list(range(len(shapes)))

    def row(rule: str, kernels: int, by: Sequence[int], bound: float | None) -> dict[str, Any]:
        slow, mine = slowdowns(second)[every, list(by)], second[every, list(by)]
        return {
            "experiment": part,
            "rule": rule,
            "kernels": kernels,
            "geomean_slowdown": math.exp(float(np.log(slow).mean())),
            "worst_slowdown": float(slow.max()),
            "geomean_vs_peer": math.exp(float(np.log(peers / mine).mean())),
            "bound_in_sample": bound,
        }

    oracle = [int(j) for j in one.times.argmin(axis=1)]
    rows = [row("oracle", one.times.shape[1], oracle, None)]
    fewest = next(n for n in range(1, len(one.schedules) + 1) if _serve_all(one.times, n))
    for count in (n for n in (*COUNTS, *((16,) if part == "llama" else ())) if n >= fewest):
        for aim in ("mean", "worst"):
            one.choose(count, aim)
            own = one.times[:, one.kernels]
            for rule, table in one.tables.items():
                by = [one.kernels[j] for j in served_of(table, shapes, own)]
                name = rule if aim == "mean" else f"{rule}, worst"
                rows.append(row(name, count, by, one.choice.bound))
        one.choose(count, "mean")
        first = [one.kernels[int(j)] for j in one.times[:, one.kernels].argmin(axis=1)]
        rows.append(row("first call", count, first, None))
        if part == "4096":
            cut = intervals(one.times, count)
            rows.append(row("intervals of any kernels", count, cut.served, cut.bound))
    one.choose(_BUNDLE[part], "mean")
    one.again = [
        replace(a, seconds=(*(a.seconds[j] for j in one.kernels), min(a.seconds))) for a in again
    ]
    record = {"provenance": provenance(f"python -m benchmarks.dispatch --parts {part}")}
    manifest = {**record, **one.tree(label(load_device("h200")), "measured", "mean")}
    write_bundle(out / f"bundle_{part}", bundle_parts(one.members("sm_90a", "h200"), manifest))
    return {
        "rows": rows,
        "measured": {
            "shapes": [[*s.sizes.values()] for s in shapes],
            "kernels": [json.dumps(dict(s.decisions), sort_keys=True) for s in one.schedules],
            "first": one.times.tolist(),
            "second": second.tolist(),
            "predicted": one.predicted.tolist(),
            "peers": [{k.rpartition(":")[2]: t for k, t in a.peers.items()} for a in again],
        },
    }


def _serve_all(times: Times, count: int) -> bool:
    """Whether so many of the kernels can serve every shape."""
    try:
        choose(times, count)
    except ScheduleError:
        return False
    return True


def hints(part: str, one: Dispatch) -> dict[str, Any]:
    """Measure the kernel of every hint at every size; return rows and the table of hints."""
    shapes = one.shapes
    sizes = [shape.size for shape in shapes]
    with Fleet(0) as fleet, bar(f"{part}: search") as progress:
        found = []
        for of in fleet.each(ranked_at, [one.job(shape) for shape in shapes], progress):
            if isinstance(of, TinyGpuError):
                raise of
            found.append([schedule for schedule, _ in of])
    jobs = [one.job(s, schedules=tuple(f), peers=()) for s, f in zip(shapes, found, strict=True)]
    with bar(f"{part}: measure at hints") as progress:
        at_hint = timed_by(one.fleet, jobs, progress)
    best = [f[int(np.argmin(t.seconds))] for f, t in zip(found, at_hint, strict=True)]
    every = list(dict.fromkeys(best))
    jobs = [one.job(s, schedules=tuple(every), peers=(), anew=True) for s in shapes]
    with bar(f"{part}: measure everywhere") as progress:
        timed = timed_by(one.fleet, jobs, progress)
    own = [every.index(b) for b in best]
    return hints_scored(part, sizes, np.array([t.seconds for t in timed])[:, own])


def hints_scored(part: str, sizes: Sequence[int], times: Times) -> dict[str, Any]:
    """Return rows and the table of hints, of ``times`` by runtime size and by hint.

    A size whose nearest hint's kernel is illegal there takes the nearest that is legal.
    """
    three = [sizes.index(h) for h in HINTS]

    def nearest(row: int) -> int:
        legal = [i for i in three if math.isfinite(times[row, i])]
        return min(legal, key=lambda i: abs(math.log2(sizes[i] / sizes[row])))

    every = range(len(sizes))
    multi = times[every, [nearest(row) for row in every]]
    gain = times / multi[:, None]
    right = np.isfinite(times)
    oracle = times.min(axis=1)
    row = {
        "experiment": part,
        "rule": "nearest",
        "kernels": 3,
        "geomean_slowdown": math.exp(float(np.log(multi / oracle).mean())),
        "worst_slowdown": float((multi / oracle).max()),
        "geomean_vs_peer": None,
        "bound_in_sample": None,
        "mean_gain": float((gain[right] - 1).mean()),
        "pairs": int(right.sum()),
    }
    choice = choose(times, 3)
    chosen = times[every, list(choice.served)]
    better = {
        **row,
        "rule": "measured",
        "geomean_slowdown": choice.slowdown,
        "worst_slowdown": float((chosen / oracle).max()),
        "bound_in_sample": choice.bound,
        "mean_gain": float((times / chosen[:, None])[right].mean() - 1),
    }
    table = [[float(times[r, h]) for r in three] for h in three]
    return {
        "rows": [row, better],
        "table": {
            "hints": HINTS,
            "single_seconds": table,
            "multi_seconds": [float(multi[r]) for r in three],
        },
        "measured": {"sizes": sizes, "seconds": times.tolist()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run parts and add them to ``dispatch.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatch")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=0.0, help="of climbing at a shape")
    parser.add_argument("--candidates", type=int, default=40)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for part in given.parts:
        command = f"python -m benchmarks.dispatch --parts {part!r}"
        try:
            with dispatch(part, given.out) as one:
                if part.startswith("hints"):
                    found = hints(part, one)
                else:
                    effort = given.seconds, given.candidates
                    command += " --seconds {:g} --candidates {}".format(*effort)
                    found = served(part, one, given.out, *effort)
        except TinyGpuError as error:
            sys.exit(str(error))
        add(part, found, command, given.out)
        sys.stdout.writelines(f"{line}\n" for line in said(found["rows"]))
        sys.stdout.flush()


def add(part: str, found: dict[str, Any], command: str, folder: Path) -> None:
    """Put a part's rows in the place of its old ones; its measurements go to a file beside."""
    path, run = folder / "dispatch.json", provenance(command)
    tree: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    parts = [(r, tree["runs"][r["run"]]) for r in tree.get("rows", ()) if r["experiment"] != part]
    parts += [(row, run) for row in found["rows"]]
    runs: list[Any] = []
    for _, of in parts:
        if of not in runs:
            runs.append(of)
    rows = [{**row, "run": runs.index(of)} for row, of in parts]
    tables = {**tree.get("tables", {}), **({part: found["table"]} if "table" in found else {})}
    write_tree(path, {"provenance": run, "runs": runs, "tables": tables, "rows": rows})
    beside = folder / "dispatch" / f"{part.replace(' ', '_')}.json"
    write_tree(beside, {"provenance": run, **found["measured"]})


def said(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each row."""
    for row in rows:
        line = f"{row['experiment']}, {row['kernels']} kernels, {row['rule']}: "
        line += f"mean {row['geomean_slowdown']:.4f}, worst {row['worst_slowdown']:.3f}"
        if row["geomean_vs_peer"]:
            line += f", {row['geomean_vs_peer']:.3f} of cuBLASLt"
        if "mean_gain" in row:
            line += f", gain {row['mean_gain']:+.2%} over {row['pairs']} pairs"
        yield line


if __name__ == "__main__":
    main()
