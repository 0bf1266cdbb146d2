"""The one judge against today's two: ``python -m benchmarks.judge_agreement [--share 0.1]``.

Programs are the right terms of all machines, those by hand, and their mutants, of which ``--share``
is drawn with ``--seed``.  Each is asked for its verdict, and at points (tiles, trips), where the
new judge passes over one run and the old one over one graph.

    plain       terms of ``simt`` and ``ampere``; mutants of ``tests/mutants.py``
    barriers    those by hand and of ``hopper``; mutants of ``tests/async_mutants.py``
    tensor      small terms of ``blackwell``; mutants of ``tests/blackwell_mutants.py``, too

Where the judges differ the interpreter may be asked (``--interpret``): what it makes fail by its
order is illegal.  The reasons of all known differences are in ``docs/decisions.md``.  It writes
``judge_agreement.json``, with the seed, the counts and each difference.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.async_corpus import Case, changed, programs
from benchmarks.peers import FOLDER, write_tree
from tests.ampere_terms import term as ampere
from tests.async_mutants import moved
from tests.async_mutants import mutants as async_mutants
from tests.blackwell_mutants import tensor_mutants
from tests.blackwell_terms import small as blackwell
from tests.mutants import mutants
from tinygpu.agents import TILES
from tinygpu.codegen.provenance import provenance
from tinygpu.concurrency.cutoff import Run
from tinygpu.concurrency.judge import verdict as judge
from tinygpu.concurrency.judge import verdict_at
from tinygpu.conditions import hazards
from tinygpu.errors import TinyGpuError
from tinygpu.events import skeleton_of, verdict
from tinygpu.hazards import scan
from tinygpu.interpret import check
from tinygpu.machine import Chosen
from tinygpu.machines import ampere as ampere_machine
from tinygpu.machines import blackwell as blackwell_machine
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import matmul
from tinygpu.program import Program
from tinygpu.protocol_extraction import is_asynchronous, protocol_of

__all__ = ["corpora", "main", "row_of"]

Sizes = dict[str, int]
Found = Iterator[tuple[str, Program, Sequence[tuple[int, int, Any]]]]


def _plain() -> Found:
    terms = {name: Simt().program(matmul("f32"), Chosen(LADDER[name])) for name in LADDER}
    for stages in (2, 3, 4, 5):
        values = {"pipeline": "cp.async", "stages": stages, "vector_a": 4, "issue": stages % 2}
        point = Chosen({**LADDER["multi-stage"], **values})
        terms[f"cp.async {stages}"] = Simt().program(matmul("f32"), point)
    terms |= {name: ampere(name) for name in ampere_machine.STARTS}
    points = [(1, k, {"m": 130, "n": 130, "k": 40}) for k in (1, 2, 3, 6)]
    for name, program in terms.items():
        for change, mutant in (("unchanged", program), *mutants(program)):
            yield f"{name}: {change}", mutant, points


def _barriers() -> Found:
    case: Case
    for case in programs():
        for change, mutant in changed(case):
            yield f"{case.name}: {change}", mutant, case.points


def _tensor() -> Found:
    points = [(t, k, {"m": 392 if t > 1 else 100, "n": 72, "k": 64 * k - 8})
              for t, k in ((1, 1), (1, 3), (3, 2), (2, 4))]  # fmt: skip
    for start in blackwell_machine.STARTS:
        program = blackwell(start)
        every = (*async_mutants(program), *moved(program), *tensor_mutants(program))
        for change, mutant in (("unchanged", program), *every):
            few = points if mutant.persistent else points[:2]
            yield f"{start}: {change}", mutant, few


def corpora() -> dict[str, Found]:
    """Return the programs of each corpus, each with its points."""
    return {"plain": _plain(), "barriers": _barriers(), "tensor": _tensor()}


def _old_at(program: Program, tiles: int, trips: int) -> bool:
    """Say whether today's judges find something at a point."""
    if not is_asynchronous(program):
        skeleton = skeleton_of(program)
        return bool(scan(skeleton, dict.fromkeys(("trips", "rows"), trips)))
    protocol = protocol_of(program)
    return bool(hazards(protocol, {TILES: tiles, **{n: trips for n, _ in protocol.parameters}}))


def _new_at(program: Program, tiles: int, trips: int) -> bool:
    once = tuple((name, trips) for name, _ in program.parameters)
    return verdict_at(program, Run((once,) * tiles if program.persistent else (), once)) is not None


def row_of(found: Found, share: float, seed: int, *, interpret: bool = False) -> dict[str, Any]:
    """Ask the judges about a share of programs; return counts, times and differences."""
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    differ: list[dict[str, str]] = []
    seconds = old_seconds = slowest = 0.0
    for name, program, points in found:
        if not name.endswith(": unchanged") and draw.random() >= share:
            continue
        try:
            start = time.process_time()
            old = verdict(program)
            old_seconds += time.process_time() - start
            graph = [_old_at(program, t, k) for t, k, _ in points]
        except TinyGpuError as error:
            counts["refused by the old"] += 1
            differ.append({"program": name, "old": str(error), "new": judge(program).outcome})
            continue
        start = time.process_time()
        new = judge(program)
        taken = time.process_time() - start
        seconds, slowest = seconds + taken, max(slowest, taken)
        said = old.outcome
        runs = [_new_at(program, t, k) for t, k, _ in points]
        counts["programs"] += 1
        counts["points"] += len(points)
        counts[f"{said}, {new.outcome}"] += 1
        counts["points where they differ"] += sum(a != b for a, b in zip(graph, runs, strict=True))
        counts["legal, and a run fails"] += new.legal and any(runs)
        if said != new.outcome or graph != runs:
            told = {"program": name, "old": str(old), "new": str(new),
                    "points": f"old {graph}, new {runs}"}  # fmt: skip
            if interpret:
                told["interpreter"] = ", ".join(sorted(_failures(program, points)))
            differ.append(told)
    counts["milliseconds a program"] = round(1e3 * seconds / max(counts["programs"], 1))
    counts["of the old"] = round(1e3 * old_seconds / max(counts["programs"], 1))
    counts["of the slowest"] = round(1e3 * slowest)
    return {"counts": dict(counts), "differ": differ}


def _failures(program: Program, points: Sequence[tuple[int, int, Any]]) -> set[str]:
    """Return what the interpreter finds at a few seeds."""
    found: set[str] = set()
    for _, _, sizes in points:
        found |= {str(f.kind) for f in check(program, sizes, seeds=(0, 3, 6))}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask about a share of each corpus; write ``judge_agreement.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_agreement")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    parser.add_argument("--share", type=float, default=0.1, help="of the mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", action="append", choices=["plain", "barriers", "tensor"])
    parser.add_argument("--interpret", action="store_true", help="ask about differences")
    chosen = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    record = provenance(" ".join(("python -m benchmarks.judge_agreement", *words)))
    path = chosen.out / "judge_agreement.json"
    tree = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": {}}
    for name, found in corpora().items():
        if not chosen.corpus or name in chosen.corpus:
            row = row_of(found, chosen.share, chosen.seed, interpret=chosen.interpret)
            asked = {"provenance": record, "share": chosen.share, "seed": chosen.seed}
            tree["rows"][name] = {**asked, **row}
            write_tree(path, tree)
            sys.stdout.write(f"{name}: {json.dumps(row['counts'])}\n")


if __name__ == "__main__":
    main()
