"""The laws against the interpreter, by family: ``python -m benchmarks.families [--out DIR]``.

Terms of the four machines, each changed in one place (``tests/family_mutants.py``: guards, scopes,
declarations, storage, loops, exits, names; ``tests/meaning_mutants.py``: meaning), are asked of all
laws, the judge and ``computes``, and of the interpreter, which shares no code with them, at a few
sizes and seeds.  What the interpreter makes fail must not be legal.

    rejected      it cannot be built
    illegal       a law says no, or that it is unproved, and the interpreter makes it fail
    legal         neither finds anything
    missed        the interpreter makes it fail, or refuses it, and every law holds: one is wrong
    false alarm   a law says no, or unproved, and no seed makes it fail

It writes ``families.json``, a row for each family of a term, and goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz import each_done
from benchmarks.peers import FOLDER, write_tree
from tests import ampere_terms, blackwell_terms, family_mutants, hopper_terms
from tests.meaning_mutants import FAMILIES as MEANING
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError, TinyGpuError
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.machines.blackwell import STARTS as BLACKWELL
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

__all__ = ["OUTCOMES", "TERMS", "broken", "changed", "main", "outcome", "row_of"]

Sizes = Mapping[str, int]
OUTCOMES = ("rejected", "illegal", "legal", "missed", "false alarm")
EACH = 24
"""Mutants of a family that are taken of a term, drawn by its name."""
FEW, MANY = (0, 1, 4), (2, 3, 5, 7)


def _simt(point: str, layout: str = "nn", dtype: str = "f32") -> Program:
    return Simt().program(matmul(dtype, layout=layout), Chosen(LADDER[point]))


def _hopper(start: str, **changes: int) -> Program:
    return hopper_terms.term(start, "nt", None, stages=2, **changes)


_RAGGED: Sizes = {"m": 40, "n": 36, "k": 20}
TERMS: Mapping[str, tuple[Callable[[], Program], str, tuple[Sizes, ...]]] = {
    **{
        f"ampere {start}": (
            partial(ampere_terms.term, start), "h200", ({"m": 144, "n": 136, "k": 200},)
        )
        for start in ("plain", "ring", "deep", "lines", "parts of k")
    },
    **{
        f"hopper {start}": (
            partial(_hopper, start, tile_n=64, store_n=32), "h200",
            ({"m": 256, "n": 128, "k": 200}, {"m": 128, "n": 64, "k": 64}),
        )
        for start in ("plain", "ring", "cluster", "swapped", "tma store")
    },
    **{
        f"hopper {start}": (partial(_hopper, start), "h200", ({"m": 384, "n": 256, "k": 200},))
        for start in ("pingpong", "shared k")
    },
    **{
        f"blackwell {start}": (
            partial(blackwell_terms.small, start), "b200", ({"m": 256, "n": 64, "k": 200},)
        )
        for start in BLACKWELL
    },
    **{f"simt {point}": (partial(_simt, point), "h200", (_RAGGED,)) for point in LADDER},
    "simt shared tt f16": (partial(_simt, "shared", "tt", "f16"), "h200", (_RAGGED,)),
}  # fmt: skip
"""Terms by name: how they are made, their device, the sizes at which they are interpreted."""


def broken(program: Program, sizes: Sequence[Sizes], device: str) -> str:
    """Return the first law that a term breaks, or "": concurrency last, and then its meaning."""
    chip = load_device(device)
    with np.errstate(all="ignore"):
        for law in sorted(LAWS.values(), key=lambda law: not law.numeric):
            for here in sizes:
                for clause in law.clauses(Case.of(program, here, chip)):
                    if not np.all(clause.holds):
                        return law.name + (" (unproved)" if clause.unproved else "")
    return "computes" if computes(program).wrong else ""


def outcome(
    make: Callable[[], Program], sizes: Sequence[Sizes], device: str
) -> tuple[str, str, str]:
    """Return a mutant's outcome, the law that it breaks, what the interpreter finds."""
    try:
        program = make()
        law = broken(program, sizes, device)
    except TinyGpuError as error:
        return "rejected", type(error).__name__, ""
    for seeds in (FEW, MANY):
        for here in sizes:
            try:
                found = check(program, here, seeds=seeds)
            except ProgramError as error:
                return ("illegal" if law else "missed"), law, f"refused: {error}"[:320]
            if found:
                return ("illegal" if law else "missed"), law, str(found[0])[:320]
        if not law:
            return "legal", "", ""
    return "false alarm", law, ""


def changed(name: str) -> dict[str, list[tuple[str, Callable[[], Program]]]]:
    """Return a term's mutants that are taken, and itself, by family."""
    program = TERMS[name][0]()
    every: dict[str, list[tuple[str, Callable[[], Program]]]] = {}
    for family, text, make in family_mutants.mutants(program):
        every.setdefault(family, []).append((text, make))
    found = {"itself": [("", TERMS[name][0])]}
    for family, changes in every.items():
        drawn = random.Random(f"{name} {family}").sample(changes, min(EACH, len(changes)))
        found[family] = drawn
    number = np.random.default_rng(len(name))
    for text, change in MEANING.items():
        other = change(program, number)
        if other is not None and other != program:
            found.setdefault("meaning", []).append((text, partial(replace, other)))
    return found


def row_of(name: str, family: str) -> dict[str, Any]:
    """Ask a family of a term; return counts, and what was missed or alarmed."""
    _, device, sizes = TERMS[name]
    count: Counter[str] = Counter()
    told: dict[str, list[str]] = {"missed": [], "false alarm": []}
    alarms: Counter[str] = Counter()
    for text, mutant in changed(name)[family]:
        word, law, found = outcome(mutant, sizes, device)
        count[word] += 1
        if word in told:
            told[word].append(f"{text}: {law or found}")
        if word == "false alarm":
            alarms[law] += 1
    return {"term": name, "family": family, "counts": dict(count), "alarms": dict(alarms), **told}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the outcomes, in all and by family."""
    families: dict[str, Counter[str]] = {}
    alarms: Counter[str] = Counter()
    for row in rows:
        families.setdefault(row["family"], Counter()).update(row["counts"])
        alarms.update({f"{row['family']}: {law}": n for law, n in row["alarms"].items()})
    total = sum(families.values(), Counter[str]())
    return {
        "terms": len({row["term"] for row in rows}),
        "mutants": total.total(),
        **{word: total[word] for word in OUTCOMES},
        "by_family": {f: {w: c[w] for w in OUTCOMES if c[w]} for f, c in sorted(families.items())},
        "alarms": dict(alarms.most_common()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask all terms; write ``families.json``; exit with 1 if one was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families")
    parser.add_argument("--out", type=Path, default=FOLDER.parent, help="folder of the results")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args(arguments)
    record = provenance(" ".join(("python -m benchmarks.families", *(arguments or sys.argv[1:]))))
    path = given.out / "families.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    known = {(row["term"], row["family"]) for row in rows}
    each = [(name, family) for name in TERMS for family in changed(name)]
    wanted = [one for one in each if one not in known]
    for row in each_done(row_of, wanted, given.jobs, f"{len(wanted)} families of terms"):
        rows.append({**row, "commit": record["commit"], "date": record["date"]})
        rows.sort(key=lambda row: each.index((row["term"], row["family"])))
        write_tree(path, {"provenance": record, "summary": summary(rows), "rows": rows})
    found = summary(rows)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if found["missed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
