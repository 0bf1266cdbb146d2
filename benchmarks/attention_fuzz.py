"""Random legal schedules of attention on a GPU, and terms that the judge rejects.

    python -m benchmarks.attention_fuzz --draw FILE [--count N]     (no GPU)
    python -m benchmarks.attention_fuzz --cases FILE [--out DIR]
    python -m benchmarks.attention_fuzz --mutants [--out DIR]

*Draw* takes ``EACH`` schedules of each of many problems, uniformly from the legal space: full and
causal, ragged or even lengths, one query or one key, 1 to 8 query heads on a kv head.
Each is also judged; what is not proved is written down as such and not run.

*Run* builds each and validates it in a process under a watchdog against the float64 reference, as
``benchmarks/fuzz.py`` does.  ``attention_fuzz.json`` has a row for each problem, with what hung or
was wrong, and a summary; a run that was stopped goes on.

*Mutants* are changes of a named point (``tests/async_mutants.py``) that the judge rejects, of every
kind of fault in turn; each runs several times in a process of its own under a watchdog, and hangs,
faults, is wrong or, where the hardware forgives, right.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import hopper_mutants
from benchmarks.attention import Case as Shape
from benchmarks.attention import points, problem_of
from benchmarks.fuzz import each_done
from benchmarks.peers import FOLDER, write_tree
from tests.async_mutants import moved, mutants
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.run.measure import Campaign, Crew, Options
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.worker import lost
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = ["drawn", "main", "problem", "rejected", "run", "summary", "words_of"]

COUNT, EACH, SEED, MUTANTS = 500, 10, 2911, 10
OPTIONS = Options(rounds=1, burst_seconds=0.001, limit_seconds=30.0, batch=EACH)
MASKS = ("none", "causal")
HEADS = ((1, 1), (2, 4), (1, 8), (3, 1))
"""kv heads, and query heads of each."""
DTYPES = ("bf16", "f16")
_TRIES, _DEVICE = 40, "h200"
MUTANT_SHAPE = Shape("mutants", 2, 4, 1, 4096, 4096, 128, True)
"""Several tiles for each CTA that stays."""

Row = dict[str, Any]


def words_of(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return what a problem is made of: type, mask and sizes.

    >>> words_of(6, np.random.default_rng(0))["mask"]
    'causal'
    """
    h, g = HEADS[number % len(HEADS)]
    m, n = (int(rng.integers(1, 700)) for _ in "mn")
    match number % 6:
        case 3:
            m = n = 256 * int(rng.integers(1, 5))
        case 4:
            m = 1
        case 5:
            n = int(rng.integers(1, 9))
    d = (128, 64)[number // 2 % 2]
    return {
        "dtype": DTYPES[number // 3 % 2],
        "mask": MASKS[number % len(MASKS)],
        "sizes": {"l": int(rng.integers(1, 4)), "h": h, "g": g, "m": m, "n": n, "d": d, "e": d},
    }


def problem(words: Mapping[str, Any]) -> Problem:
    """Return the problem of such words."""
    attention = importlib.import_module("tinygpu.term.operation").attention
    return Problem.of(attention(words["dtype"], mask=words["mask"]), **words["sizes"])


def drawn(number: int, count: int, seed: int) -> Row:
    """Return ``count`` legal schedules of a problem, as data."""
    rng = np.random.default_rng([seed, number])
    machine, device = MACHINES["attention"], load_device(_DEVICE)
    for _ in range(_TRIES):
        words = words_of(number, rng)
        of = problem(words)
        space = Space(machine, of, device)
        if space.count() < count:
            continue
        found = [(s, verdict(s.program(machine, of.operation))) for s in space.sample(rng, count)]
        return {
            "number": number, "words": words,
            "schedules": [dict(s.decisions) for s, v in found if v.legal],
            "unproved": [[dict(s.decisions), str(v)] for s, v in found if not v.legal],
        }  # fmt: skip
    raise TinyGpuError(f"attention, problem {number}: no sizes have {count} legal schedules")


def run(row: Row, crew: Crew) -> Row:
    """Build and validate a problem's schedules."""
    machine, of = MACHINES["attention"], problem(row["words"])
    schedules = [Schedule.of(machine, d) for d in row["schedules"]]
    programs = {s: s.program(machine, of.operation) for s in schedules}
    with Campaign(of, options=OPTIONS, crew=crew) as campaign:
        found = campaign.measure(programs)
    bad = [(s, m.reason) for s, m in zip(programs, found, strict=True) if m.reason]
    errors = [m.error for m in found if not m.reason]
    return {
        **{name: row[name] for name in ("number", "words", "unproved")},
        "schedules": len(found),
        "hangs": [[dict(s.decisions), why] for s, why in bad if lost(why)],
        "wrong": [[dict(s.decisions), why] for s, why in bad if not lost(why)],
        "worst_error": float(f"{max(errors, default=0.0):.4g}"),
        "emitter": EMITTER_VERSION,
    }


def summary(rows: Sequence[Row], changed: Sequence[Row]) -> dict[str, Any]:
    """Count schedules by mask, those that are not right, and what became of the mutants."""
    masks: dict[str, int] = {}
    for row in rows:
        mask = row["words"]["mask"]
        masks[mask] = masks.get(mask, 0) + row["schedules"]
    outcomes: dict[str, int] = {}
    for one in changed:
        kind = one["outcome"].partition(":")[0]
        outcomes[kind] = outcomes.get(kind, 0) + 1
    return {
        "schedules": sum(masks.values()),
        "by_mask": masks,
        "problems": len(rows),
        "hangs": sum(len(row["hangs"]) for row in rows),
        "wrong": sum(len(row["wrong"]) for row in rows),
        "unproved": sum(len(row["unproved"]) for row in rows),
        "worst_error": max((row["worst_error"] for row in rows), default=0.0),
        "mutants": outcomes,
    }


def rejected(programs: Mapping[str, Program], count: int) -> list[tuple[str, Program, str]]:
    """Return mutants that the judge rejects: name, term, what it says; kinds of fault in turn."""
    lots: dict[str, list[tuple[str, Program, str]]] = {}
    for point, program in programs.items():
        for name, mutant in (*mutants(program), *moved(program)):
            found = verdict(mutant)
            if found.outcome == "illegal" and found.fault is not None:
                here = lots.setdefault(found.fault.kind, [])
                if all(
                    name.split(" ")[:2] != old.split(": ")[1].split(" ")[:2] for old, *_ in here
                ):
                    here.append((f"{point}: {name}", mutant, str(found)))
    kinds = {kind: iter(lot) for kind, lot in sorted(lots.items())}
    chosen: list[tuple[str, Program, str]] = []
    while kinds and len(chosen) < count:
        for kind in list(kinds):
            one = next(kinds[kind], None)
            if one is None:
                del kinds[kind]
            elif len(chosen) < count:
                chosen.append(one)
    return chosen


def _mutants(count: int) -> Iterator[Row]:
    """Run rejected mutants, each in a process of its own."""
    of = problem_of(MUTANT_SHAPE)
    for name, program, said in rejected(points(of), count):
        outcome, errors = hopper_mutants.outcome_of(program, of)
        yield {"case": name, "verdict": said, "outcome": outcome, "errors": errors}


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, run what was drawn, or run mutants; exit with 1 if a legal one is not right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_fuzz")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--draw", type=Path, metavar="FILE", help="draw and write, no GPU")
    what.add_argument("--cases", type=Path, metavar="FILE", help="run what --draw wrote")
    what.add_argument("--mutants", action="store_true", help="run rejected mutants")
    parser.add_argument(
        "--count", type=int, help=f"{COUNT} schedules, or {MUTANTS} mutants, in all"
    )
    parser.add_argument("--processes", type=int, default=2, help="which draw")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    if given.draw:
        each = [(n, EACH, SEED) for n in range(-(-(given.count or COUNT) // EACH))]
        cases = list(each_done(drawn, each, given.processes, f"draw {len(each)} problems"))
        cases.sort(key=lambda c: c["number"])
        lines = [json.dumps(case, separators=(",", ":")) for case in cases]
        given.draw.write_text("\n".join(lines) + "\n", encoding="utf-8")
        unproved = sum(len(case["unproved"]) for case in cases)
        sys.stdout.write(f"{sum(len(c['schedules']) for c in cases)} drawn, {unproved} unproved\n")
        return
    record = provenance(" ".join(("python -m benchmarks.attention_fuzz", *words)))
    path = given.out / "attention_fuzz.json"
    tree = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows, changed = tree.get("rows", []), tree.get("mutants", [])

    def write() -> None:
        rows.sort(key=lambda r: r["number"])
        told = {"provenance": record, "summary": summary(rows, changed)}
        write_tree(path, {**told, "rows": rows, "mutants": changed})

    beside = {name: record[name] for name in ("commit", "date", "device")}
    if given.mutants:
        changed.clear()
        for one in _mutants(given.count or MUTANTS):
            changed.append({**one, **beside})
            write()
            sys.stdout.write(f"{one['case'][:70]}: {one['outcome'][:60]}\n")
        return
    cases = [json.loads(line) for line in given.cases.read_text(encoding="utf-8").splitlines()]
    kept = [
        row
        for row in rows
        if row["emitter"] == EMITTER_VERSION
        and not row["wrong"] + row["hangs"]
        and any(row["number"] == c["number"] and row["words"] == c["words"] for c in cases)
    ]
    rows[:] = kept
    there = {row["number"] for row in kept}
    with Crew() as crew:
        for case in (c for c in cases if c["number"] not in there):
            rows.append({**run(case, crew), **beside})
            write()
    found = summary(rows, changed)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if found["wrong"] or found["hangs"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
