"""The PTX interpreter on kernels of others, on faulty ones and their twins, and on broken texts.

    python -m benchmarks.ptx_corpus [--parts kernels,faults,dropped,fuzz] [--texts 10000]

It writes ``benchmarks/results/ptx_corpus.json``; a part that is not run keeps what is there.

* ``kernels``: what nvcc and Triton made (``tests/ptx_corpus*.py``): right results, findings, names
  of what is refused.
* ``faults``: 210 faulty kernels and their twins (``tests/ptx_faults.py``) in the default orders: a
  fault counts where a finding of its kind has its line, a twin where there is any finding.
* ``dropped``: correct kernels with one synchronisation taken out, at every place
  (``tests/ptx_dropped.py``).
* ``fuzz``: kernels with tokens lost, doubled, swapped or replaced (``tests/ptx_fuzz.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tests import ptx_corpus, ptx_corpus_late, ptx_corpus_triton, ptx_dropped, ptx_faults
from tests.ptx_fuzz import mutated
from tests.test_ptx_twins import TWINS
from tinygpu.codegen.emulator import Memory, Module, Report, launch
from tinygpu.codegen.run.provenance import provenance
from tinygpu.errors import TinyGpuError

__all__ = ["PARTS", "main"]

Tree = dict[str, Any]


def _told(name: str, run: Callable[[], tuple[Report, str]]) -> Tree:
    """Run a kernel; say whether it is right, what was found, or what was refused."""
    try:
        report, wrong = run()
    except TinyGpuError as error:
        return {"name": name, "refused": str(error)[:160]}
    errors = {f.kind for f in report.findings if f.severity == "error"}
    warnings = {f.kind for f in report.findings} - errors
    row: Tree = {"name": name, "right": not wrong}
    return (
        row
        | ({"errors": sorted(errors)} if errors else {})
        | ({"warnings": sorted(warnings)} if warnings else {})
    )


def _nvcc(case: ptx_corpus.Case) -> tuple[Report, str]:
    report, before, after = ptx_corpus.run(case)
    return report, ptx_corpus.wrong(case, before, after)


def _triton(build: str) -> tuple[Report, str]:
    report, before, after = ptx_corpus_triton.run(build)
    case = ptx_corpus_triton.CASES[build.rpartition("_")[0]]
    return report, ptx_corpus_triton.wrong(case, before, after)


def _counted(rows: Sequence[Tree]) -> Tree:
    return {
        "kernels": len(rows),
        "right": sum(bool(r.get("right")) for r in rows),
        "wrong": sum(r.get("right") is False for r in rows),
        "refused": sum("refused" in r for r in rows),
        "without a finding": sum(
            bool(r.get("right")) and not r.get("errors") and not r.get("warnings") for r in rows
        ),
        "told of": [r for r in rows if not r.get("right") or r.get("errors") or r.get("warnings")],
    }


def kernels(_: argparse.Namespace) -> Tree:
    """Run all kernels of others."""
    early = [_told(n, partial(_nvcc, c)) for n, c in ptx_corpus.CASES.items()]
    late = [_told(n, partial(_nvcc, c)) for n, c in ptx_corpus_late.CASES.items()]
    builds = [_told(b, partial(_triton, b)) for b in ptx_corpus_triton.BUILDS]
    return {"nvcc": _counted(early), "nvcc, kept apart": _counted(late), "Triton": _counted(builds)}


def faults(_: argparse.Namespace) -> Tree:
    """Check every faulty kernel and its twin."""
    families: dict[str, Tree] = {}
    for fault in ptx_faults.FAULTS:
        row = families.setdefault(fault.family, {"faults": 0, "found": 0, "alarms": 0})
        row["faults"] += 1
        row["found"] += ptx_faults.found(fault)
        twin, _lines = ptx_faults.checked(fault, faulty=False)
        row["alarms"] += bool(twin.findings or twin.differing)
    total = {k: sum(row[k] for row in families.values()) for k in ("faults", "found", "alarms")}
    return {"families": families, **total}


def dropped(_: argparse.Namespace) -> Tree:
    """Take out each synchronisation of each kernel."""
    places, silent, unexplained = 0, [], []
    for name in ptx_dropped.KERNELS:
        for line, text in ptx_dropped.places(name):
            places += 1
            if not ptx_dropped.silent(name, line):
                continue
            reason = ptx_dropped.reason(name, line)
            silent.append({"kernel": name, "line": line, "text": text, "reason": reason})
            if not reason:
                unexplained.append(f"{name} line {line}")
    return {"kernels": len(ptx_dropped.KERNELS), "places": places, "told": places - len(silent),
            "silent": silent, "unexplained": unexplained}  # fmt: skip


def fuzz(given: argparse.Namespace) -> Tree:
    """Parse and run broken texts; an error of the project's is fine, another exception is not."""
    texts = [t.text(faulty=f)[0] for t in TWINS.values() for f in (True, False)]
    texts += [f.text(faulty=True)[0] for f in ptx_faults.FAULTS[::7]]
    refused, tracebacks, slowest = 0, [], 0.0
    for seed in range(given.texts):
        memory = Memory()
        arrays = [memory.allocate(np.zeros(1024, np.uint32)) for _ in range(2)]
        start = time.process_time()
        try:
            module = Module.parse(mutated(texts[seed % len(texts)], seed))
            name = next(iter(module.parsed.kernels), "k")
            launch(module, name, 1, 64, arrays, memory, limit=20_000,
                   completion=("late", "early", "random")[seed % 3])  # fmt: skip
        except TinyGpuError:
            refused += 1
        except Exception as error:
            tracebacks.append(f"{seed}: {error!r}"[:160])
        slowest = max(slowest, time.process_time() - start)
    done = given.texts - refused - len(tracebacks)
    return {"texts": given.texts, "refused": refused, "run": done, "tracebacks": tracebacks,
            "slowest_seconds": round(slowest, 2)}  # fmt: skip


PARTS: Mapping[str, Callable[[argparse.Namespace], Tree]] = {
    "kernels": kernels, "faults": faults, "dropped": dropped, "fuzz": fuzz,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and write what they tell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ptx_corpus")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    given = parser.parse_args(arguments)
    path = given.out / "ptx_corpus.json"
    tree: Tree = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    words = sys.argv[1:] if arguments is None else arguments
    for part in given.parts.split(","):
        start = time.process_time()
        made = PARTS[part](given)
        command = " ".join(("python -m benchmarks.ptx_corpus", *words))
        seconds = round(time.process_time() - start, 1)
        tree[part] = {"provenance": provenance(command), "cpu_seconds": seconds, **made}
        sys.stdout.write(f"{part}: {seconds} s\n")
        write_tree(path, tree)


if __name__ == "__main__":
    main()
