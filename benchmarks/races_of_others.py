"""Racy kernels of others, and right ones: what the PTX interpreter tells of them.

    python -m benchmarks.races_of_others FOLDER [--order late,random:2] [--limit 60] [--jobs 1]
    python -m benchmarks.races_of_others FOLDER --indigo INPUTS [--extent 1024 256]

FOLDER has PTX and ``launches.json``, a list of launches: ``file``, ``kernel`` (or "" for the only
one), ``grid``, ``block``, ``cluster``, ``smem_bytes``, ``arguments`` and ``racy``.  An argument is
as ``tinygpu ptx --arg`` takes it (a number, a ``.npy`` file, ``f32[8]``), or a tensor map or a
structure with addresses of arrays in ``held``: {"map": "&0", "dtype": "f16", ...} as in TensorMap,
{"fields": [["u64", "&1"], ["s32", 5]]}.  ``expected`` has results by argument ("2", "&1").  A
kernel that has several launches is found racy if one shows it.  ``benchmarks/others`` makes lists.

With ``--indigo`` the launches are those of Indigo's microbenchmarks: a name with ``Bug`` is racy
(``boundsBug`` is none of these, and left out), INPUTS are its graphs.  They are Indigo 1.3 as
HiRace's artifact (SC 2024, github.com/JohnJacobsonIII/HiRace-Artifact-SC24) has it in ``indigo``,
each source as PTX of its name for sm_90a.  The artifact launches 1024 CTAs of 256 threads.

Threads are agents.  A launch runs in a process that is killed after ``--limit`` seconds.  An error
or a warning of a race counts, for equal values that are stored at once are races by these suites;
what else is told of right kernels is ``other_findings``.  Each folder is a part of the file, with a
row a kernel; recall and false alarms are printed, and counted apart for each of Indigo's graphs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import write_tree
from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch
from tinygpu.codegen.emulator.checking import Order, argument, orders
from tinygpu.codegen.emulator.values import TYPES
from tinygpu.codegen.run.provenance import provenance
from tinygpu.errors import TinyGpuError

__all__ = ["indigo", "listed", "main", "summary", "told"]

Array = NDArray[Any]
Launch = Mapping[str, Any]


def listed(folder: Path) -> Iterator[Launch]:
    """Yield the launches of a folder's list, with their arrays read."""

    def read(value: object) -> Any:
        if not isinstance(value, str) or value.startswith("&"):
            return value
        return argument(str(folder / value) if value.endswith(".npy") else value)

    for row in json.loads((folder / "launches.json").read_text(encoding="utf-8")):
        yield {
            "kernel": "", **row, "file": str(folder / row["file"]),
            "arguments": [read(a) for a in row["arguments"]],
            "held": [read(a) for a in row.get("held", ())],
            "expected": {at: read(a) for at, a in row.get("expected", {}).items()},
        }  # fmt: skip


def _graph(path: Path) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Read a graph: where the neighbours of each node begin, and the neighbours."""
    words = np.fromfile(path, np.int32)
    nodes, edges = int(words[0]), int(words[1])
    begins, neighbours = words[2 : 3 + nodes], words[3 + nodes : 3 + nodes + edges]
    return begins.copy(), neighbours.copy()


def indigo(folder: Path, inputs: Path, extent: tuple[int, int] | None = None) -> Iterator[Launch]:
    """Yield the launches of Indigo's kernels on each graph.

    ``extent`` has CTAs and their threads; without it CTAs have 64, and there are as many as needed.
    """
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
            grid, block = extent or (-(-nodes // each), 64)
            yield {
                "file": str(file), "kernel": "", "grid": grid, "block": block,
                "arguments": [begins, neighbours, *data, nodes], "racy": "Bug" in file.stem,
                "input": path.stem,
            }  # fmt: skip


def _given(value: Any, addresses: Sequence[int]) -> Any:
    """Return an argument as ``launch`` takes it; "&0" is where the first array of ``held`` lies."""
    if isinstance(value, str):
        return addresses[int(value[1:])]
    if not isinstance(value, dict):
        return value
    if "fields" in value:
        parts = [np.array(_given(v, addresses), TYPES[kind]) for kind, v in value["fields"]]
        return b"".join(part.tobytes() for part in parts)
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    return TensorMap(_given(fields.pop("map"), addresses), **fields)


def _run(launched: Launch, module: Module, order: Order) -> tuple[Report, dict[str, Array]]:
    """Run a launch in one order; return what was found, and the arrays afterwards."""
    memory = Memory()
    arrays = {f"&{n}": a.copy() for n, a in enumerate(launched.get("held", ()))}
    addresses = [memory.allocate(array, name) for name, array in arrays.items()]
    given = []
    for n, value in enumerate(launched["arguments"]):
        if isinstance(value, np.ndarray):
            arrays[str(n)] = value.copy()
            given.append(memory.allocate(arrays[str(n)], str(n)))
        else:
            given.append(_given(value, addresses))
    report = launch(
        module, launched["kernel"] or next(iter(module.parsed.kernels)), launched["grid"],
        launched["block"], given, memory, cluster=launched.get("cluster", 1), seed=order.seed,
        completion=order.completion, smem_bytes=launched.get("smem_bytes", 0), lanes=True,
    )  # fmt: skip
    return report, arrays


def told(launched: Launch, order: str = "late,random:2") -> dict[str, Any]:
    """Return what is found in a launch: kinds of errors and of warnings, or why it is not run.

    Where results are expected, ``wrong`` has the arrays that differ, in any order; ``texts`` has
    the first findings of a kernel that is not racy, to be read.
    """
    tolerance, expected = launched.get("tolerance", 0.0), launched.get("expected", {})
    kinds: dict[str, set[str]] = {}
    texts: dict[str, None] = {}
    try:
        module = Module.parse(Path(launched["file"]).read_text(encoding="utf-8"))
        for one in orders(order):
            report, arrays = _run(launched, module, one)
            for finding in report.findings:
                kinds.setdefault(finding.severity, set()).add(finding.kind)
                texts[str(finding)[:300]] = None
            for at, wanted in expected.items():
                got = arrays[at].reshape(-1)[: wanted.size].astype(np.float64)
                flat = wanted.reshape(-1).astype(np.float64)
                if not np.allclose(got, flat, rtol=tolerance, atol=tolerance):
                    kinds.setdefault("wrong", set()).add(at)
    except TinyGpuError as error:
        return {"refused": str(error)[:160]}
    result: dict[str, Any] = {key: sorted(names) for key, names in kinds.items()}
    return result if launched["racy"] or not texts else {**result, "texts": [*texts][:6]}


def _races(found: Mapping[str, Any]) -> bool:
    return "race" in (*found.get("error", ()), *found.get("warning", ()))


def _counted(racy: Mapping[Any, bool], found: Sequence[tuple[Any, Mapping[str, Any]]]) -> Any:
    """Count kernels: whether they are racy, and what each of their launches told."""
    races = {name for name, one in found if _races(one)}
    refused = {name for name, one in found if "refused" in one}
    wrong = {name for name, one in found if "wrong" in one}
    findings = {name for name, one in found if {"error", "warning"} & {*one}}
    faulty = {name for name, is_racy in racy.items() if is_racy}
    return {
        "kernels": len(racy), "racy": len(faulty), "found": len(races & faulty),
        "recall": round(len(races & faulty) / max(1, len(faulty)), 4),
        "false_alarms": len(races - faulty),
        "other_findings": len(findings - races - faulty),
        "wrong": len(wrong - faulty), "not_run": len(refused),
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many racy kernels were found and right ones accused, in all and by input."""
    racy = {n: row["racy"] for n, row in enumerate(rows)}
    told = [(n, name, found) for n, row in enumerate(rows) for name, found in row["found"]]
    total: dict[str, Any] = _counted(racy, [(n, found) for n, _, found in told])
    if inputs := sorted({name for _, name, _ in told if name}):
        total["inputs"] = {
            one: _counted(racy, [(n, found) for n, name, found in told if name == one])
            for one in inputs
        }
    return total


def _serve(end: Connection, order: str) -> None:
    with suppress(EOFError):  # at the end
        while True:
            end.send(told(end.recv(), order))


class _Limited(threading.local):
    """A thread's process that checks launches; killed, and made anew, when one takes too long."""

    process: SpawnProcess | None = None

    def run(self, launched: Launch, order: str, limit: float) -> dict[str, Any]:
        """Check a launch, if that takes no longer than a limit in seconds."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.end, other = context.Pipe()
            self.process = context.Process(target=_serve, args=(other, order), daemon=True)
            self.process.start()
            other.close()
        self.end.send(launched)
        if self.end.poll(limit):
            found: dict[str, Any] = self.end.recv()
            return found
        self.process.kill()
        self.process = None
        return {"refused": f"longer than {limit:g} s"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Check all launches; print the summary and write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.races_of_others")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--indigo", type=Path, help="Indigo's graphs; the list is not read")
    parser.add_argument("--extent", type=int, nargs=2, help="CTAs and threads of Indigo's kernels")
    parser.add_argument("--out", type=Path, default=Path("races_of_others.json"))
    parser.add_argument("--order", default="late,random:2")
    parser.add_argument("--limit", type=float, default=60, help="seconds of one launch")
    parser.add_argument("--jobs", type=int, default=1, help="launches at once")
    words = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(words)
    launches = (
        indigo(given.folder, given.indigo, given.extent) if given.indigo else listed(given.folder)
    )
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    limited = _Limited()

    def one(launched: Launch) -> dict[str, Any]:
        return limited.run(launched, given.order, given.limit)

    with ThreadPoolExecutor(given.jobs) as pool:
        for launched, found in [(x, pool.submit(one, x)) for x in launches]:
            file = Path(launched["file"]).stem
            named = f"{file}: {launched['kernel']}" if launched["kernel"] else file
            row = {"kernel": named, "racy": launched["racy"], "found": []}
            row = rows.setdefault((file, launched["kernel"]), row)
            row["found"].append([launched.get("input", ""), found.result()])
    total = summary([*rows.values()])
    command = " ".join(("python -m benchmarks.races_of_others", *words))
    tree = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    part = {"provenance": provenance(command), "summary": total, "rows": [*rows.values()]}
    write_tree(given.out, {**tree, given.folder.name: part})
    sys.stdout.write(f"{json.dumps(total)}\n")


if __name__ == "__main__":
    main()
