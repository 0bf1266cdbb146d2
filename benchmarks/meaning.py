"""Whether terms compute their operation: seeded schedules and their mutants, counted.

For each machine random legal schedules of each of its operations are asked, which shall compute it,
and mutants of them (``tests/meaning_mutants.py``), which shall not.  It needs no GPU:

    python -m benchmarks.meaning --schedules 8 --seed 0

writes ``meaning.json``: for each machine how many schedules were proved, tested and not asked, the
false alarms, and for each family of mutants how many were found, missed and not asked.
A mutant may be missed because sizes that take too long are left out, which the outcome says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.meaning_mutants import OPERATIONS, drawn, mutants
from tinygpu.codegen.run.provenance import provenance
from tinygpu.machines import MACHINES
from tinygpu.meaning.identity import Meaning, computes

__all__ = ["asked_of", "main"]

FOLDER = Path(__file__).parent / "results"


def asked_of(machine: str, schedules: int, seed: int) -> dict[str, Any]:
    """Ask random schedules of a machine, and their mutants; return the counts."""
    outcomes, families, alarms, missed = Counter[str](), dict[str, Counter[str]](), [], []
    seconds = []
    for number, (schedule, operation) in enumerate(drawn(machine, seed, schedules)):
        program = schedule.program(MACHINES[machine], operation)
        began = time.process_time()
        honest = computes(program)
        seconds.append(time.process_time() - began)
        outcomes[_outcome(honest)] += 1
        if honest.finding is not None:
            alarms.append(f"{operation}; {schedule}; {honest}")
        random = np.random.default_rng((seed, number))
        for family, mutant in mutants(schedule, operation, random):
            found = computes(mutant)
            word = {"wrong": "found", "not asked": "not asked"}.get(_outcome(found), "missed")
            if word == "missed" and found.left_out:
                word = "missed, as sizes are left out"
            families.setdefault(family, Counter())[word] += 1
            if word.startswith("missed"):
                missed.append(f"{family}; {operation}; {schedule}; {found}")
    return {
        "machine": machine,
        "schedules": dict(outcomes),
        "false_alarms": alarms,
        "mutants": {family: dict(counts) for family, counts in families.items()},
        "missed": missed,
        "cpu_seconds_median": statistics.median(seconds),
        "cpu_seconds_most": max(seconds),
    }


def _outcome(found: Meaning) -> str:
    if found.finding is not None:
        return "wrong"
    if not found.asked:
        return "not asked"
    return "proved" if found.proved else "tested"


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask every machine; write ``meaning.json`` after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.meaning")
    parser.add_argument("--schedules", type=int, default=8, help="of each machine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=OPERATIONS, action="append", help="else all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the result")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    record = provenance(" ".join(("python -m benchmarks.meaning", *words)))
    rows = []
    for machine in given.machine or OPERATIONS:
        row = asked_of(machine, given.schedules, given.seed)
        rows.append(row)
        given.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"provenance": record, "rows": rows}, indent=1)
        (given.out / "meaning.json").write_text(text + "\n", encoding="utf-8")
        counts = Counter[str]()
        for family in row["mutants"].values():
            counts.update(family)
        sys.stdout.write(
            f"{machine}: {row['schedules']}, {len(row['false_alarms'])} false alarms; mutants "
            f"{dict(counts)}; {row['cpu_seconds_median']:.2f} s of CPU a schedule, at most "
            f"{row['cpu_seconds_most']:.2f}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
