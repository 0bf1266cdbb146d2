"""Racy kernels of others, and right ones: what the PTX interpreter tells of them.

    python -m benchmarks.races_of_others FOLDER [--indigo INPUTS] [--out FILE] [--limit 60]

FOLDER has PTX and ``launches.json``, a list of launches: ``file``, ``kernel`` (or "" for the only
one), ``grid``, ``block``, ``arguments`` (as ``tinygpu ptx --arg`` takes them: numbers, ``.npy``
files, ``f32[8]``) and ``racy``.  A kernel that has several launches is found racy if one shows it.
With ``--indigo`` the launches are those of Indigo's microbenchmarks instead: a name with ``Bug`` is
racy (``boundsBug`` is none of these, and left out), INPUTS are its graphs.

To make it for Indigo 1.3 as HiRace's artifact (SC 2024) has it, outside of this project:

    git clone https://github.com/JohnJacobsonIII/HiRace-Artifact-SC24 hirace
    mkdir ptx; cd hirace/indigo
    for f in $(find indigo_sources -name "*.cu" ! -name "*boundsBug*"); do
      nvcc -arch=sm_90a -lineinfo -ptx -Iindigo_include $f -o ../../ptx/$(basename $f .cu).ptx
    done; cd ../..
    python -m benchmarks.races_of_others ptx --indigo hirace/indigo/input

Each kernel runs with threads as agents, in the orders late and random:2, in a process that is
killed after ``--limit`` seconds.  An error or a warning of a race counts, for equal values that are
stored at once are races by these suites.  The file has a row a kernel; recall and false alarms are
printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import write_tree
from tinygpu.codegen.emulator.checking import argument, check, orders
from tinygpu.codegen.run.provenance import provenance
from tinygpu.errors import TinyGpuError

__all__ = ["indigo", "listed", "main", "summary", "told"]

Launch = Mapping[str, Any]


def listed(folder: Path) -> Iterator[Launch]:
    """Yield the launches of a folder's list, with their arguments read."""
    for row in json.loads((folder / "launches.json").read_text(encoding="utf-8")):
        given = [argument(str(folder / a) if str(a).endswith(".npy") else str(a))
                 for a in row["arguments"]]  # fmt: skip
        yield {"kernel": "", **row, "file": str(folder / row["file"]), "arguments": given}


def _graph(path: Path) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Read a graph: where the neighbours of each node begin, and the neighbours."""
    words = np.fromfile(path, np.int32)
    nodes, edges = int(words[0]), int(words[1])
    begins, neighbours = words[2 : 3 + nodes], words[3 + nodes : 3 + nodes + edges]
    return begins.copy(), neighbours.copy()


def indigo(folder: Path, inputs: Path) -> Iterator[Launch]:
    """Yield the launches of Indigo's kernels on each graph: of 64 threads, as many as it needs."""
    for file in sorted(folder.glob("*.ptx")):
        if "boundsBug" in file.stem:
            continue
        for path in sorted(inputs.glob("*.egr")):
            begins, neighbours = _graph(path)
            nodes, rng = len(begins) - 1, np.random.default_rng(0)
            size = max(nodes, len(neighbours), 1)
            data = [rng.integers(0, most, size).astype(np.int32) for most in (nodes, size)]
            for one in data:
                one[0] = 0
            each = 1 if "_block" in file.stem else 2 if "_warp" in file.stem else 64
            yield {
                "file": str(file), "kernel": "", "grid": -(-nodes // each), "block": 64,
                "arguments": [begins, neighbours, *data, nodes], "racy": "Bug" in file.stem,
                "input": path.stem,
            }  # fmt: skip


def told(launch: Launch) -> dict[str, Any]:
    """Return what is found in a launch: kinds of errors and of warnings, or why it is not run."""
    arguments = {str(n): a for n, a in enumerate(launch["arguments"])}
    try:
        found = check(
            Path(launch["file"]).read_text(encoding="utf-8"), launch["kernel"], launch["grid"],
            launch["block"], arguments, orders=orders("late,random:2"), lanes=True,
        )  # fmt: skip
    except TinyGpuError as error:
        return {"refused": str(error)[:160]}
    kinds: dict[str, Any] = {}
    for finding in found.findings:
        kinds.setdefault(finding.severity, set()).add(finding.kind)
    return {severity: sorted(names) for severity, names in kinds.items()}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many racy kernels were found, and how many right ones accused."""
    racy, right = ([r for r in rows if r["racy"] == is_racy] for is_racy in (True, False))
    found = [r for r in racy if r["told"]]
    return {
        "kernels": len(rows), "racy": len(racy), "found": len(found),
        "recall": round(len(found) / max(1, len(racy)), 4),
        "false_alarms": sum(r["told"] for r in right),
        "not_run": sum(bool(r["not_run"]) for r in rows),
    }  # fmt: skip


def _races(row: Mapping[str, Any]) -> bool:
    return "race" in (*row.get("error", ()), *row.get("warning", ()))


class _Limited:
    """A process that checks launches; killed, and made anew, when one takes too long."""

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None

    def run(self, launch: Launch, limit: float) -> dict[str, Any]:
        """Check a launch, if that takes no longer than a limit in seconds."""
        self.pool = self.pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            return self.pool.submit(told, launch).result(limit)
        except TimeoutError:
            self.end()
            return {"refused": f"longer than {limit} s"}

    def end(self) -> None:
        """Kill the process."""
        for process in multiprocessing.active_children():
            process.kill()
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool = None


def main(arguments: Sequence[str] | None = None) -> None:
    """Check all launches; print the summary and write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.races_of_others")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--indigo", type=Path, help="Indigo's graphs; the list is not read")
    parser.add_argument("--out", type=Path, default=Path("races_of_others.json"))
    parser.add_argument("--limit", type=float, default=60, help="seconds of one launch")
    given = parser.parse_args(arguments)
    launches = indigo(given.folder, given.indigo) if given.indigo else listed(given.folder)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    limited = _Limited()
    for launch in launches:
        file = Path(launch["file"]).stem
        row = rows.setdefault(
            (file, launch["kernel"]),
            {"kernel": file, "racy": launch["racy"], "told": False, "not_run": "", "found": []},
        )
        if row["racy"] and row["told"]:
            continue  # one input has shown it
        found = limited.run(launch, given.limit)
        row["not_run"] = row["not_run"] or found.get("refused", "")
        row["told"] = row["told"] or _races(found)
        row["found"].append([launch.get("input", ""), found])
    limited.end()
    total = summary([*rows.values()])
    inputs = f" --indigo {given.indigo.name}" if given.indigo else ""
    record = provenance(f"python -m benchmarks.races_of_others {given.folder.name}{inputs}")
    write_tree(given.out, {"provenance": record, "summary": total, "rows": [*rows.values()]})
    sys.stdout.write(f"{json.dumps(total)}\n")


if __name__ == "__main__":
    main()
