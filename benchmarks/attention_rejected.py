"""Faulty terms of attention on a GPU: whether they hang or are wrong there, as the judge says.

    python -m benchmarks.attention_rejected FILE --write        (no GPU)
    python -m benchmarks.attention_rejected FILE [--out DIR]

*Write* makes the mutants that are ``CHOSEN``, has each rejected by the judge, and assembles it.  On
the card only launches remain.  Each mutant is loaded and launched ``TRIES`` times in a process of
its own under a watchdog, one mutant at a time: a kernel that hangs delays no other.  The processes
start beside each other before that, and run the unchanged kernel, which has to be right: so nothing
that takes its time at first is taken for a hang.  ``attention_rejected.json`` is written after each
mutant.

What comes of one is "hangs", "faults", "wrong", "not assembled" or, where the hardware forgives,
"right".  Chosen are those whose fault has to be seen, and how.

Source: ``benchmarks/attention_drawn.py`` compares; ``tests/async_mutants.py`` has the mutants.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.attention_drawn import assembled, problem, ratio
from benchmarks.attention_mutants import changes
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.worker import Worker, serve
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = ["CHOSEN", "main", "outcome_of", "summary", "written"]

WORDS: dict[str, Any] = {
    "dtype": "bf16",
    "mask": "causal",
    "sizes": {"l": 2, "h": 4, "g": 1, "m": 4096, "n": 4096, "d": 128, "e": 128},
}
"""Several tiles for each CTA that stays, several turns of each ring."""
CHOSEN: tuple[tuple[str, str, str, str], ...] = (
    ("fa3", "drop arrive k_full@", "hangs", "no phase of the keys begins"),
    ("fa3", "drop arrive k_empty@", "hangs", "no stage of the keys is free again"),
    ("fa3", "bytes+ arrive v_full@", "hangs", "more bytes are awaited than land"),
    ("fa3", "count+ q_empty", "hangs", "the second block of queries awaits a third consumer"),
    ("fa3", "drop bar.arrive turn@(trips", "hangs", "nobody gives the turn on"),
    ("fa3", "drop wait k_full@", "wrong", "keys are read before they land"),
    ("fa3", "drop wait v_full@", "wrong", "values are read before they land"),
    ("fa3", "later read 1 acc@", "wrong", "the values of the next block are read"),
    ("fa3", "never anew scores@", "wrong", "scores are added to what the register held"),
    ("tma store", "drop fence.proxy.async", "wrong", "the store reads shared memory as it was"),
)
"""A named point, how the mutant's name begins (the first such is taken), what has to be seen."""
TRIES = 3
LIMIT_SECONDS, START_SECONDS = 8.0, 60.0
_STARTING = 4

Row = dict[str, Any]


def written(point: str, start: str, expected: str, reason: str) -> Row:
    """Return a mutant as data: its name, what the judge says of it, its code.

    Raises TinyGpuError if there is none, or the judge does not reject it.
    """
    found = next(((n, p) for n, p in changes(_term(point)) if n.startswith(start)), None)
    if found is None:
        raise TinyGpuError(f"mutant {start!r}: {point} has none")
    name, program = found
    said = verdict(program)
    if said.outcome != "illegal":
        raise TinyGpuError(f"mutant {start!r} of {point}: it is {said.outcome}, not illegal")
    row = {"case": f"{point}: {name}", "expected": expected, "because": reason,
           "verdict": str(said)}  # fmt: skip
    try:
        return {**row, "code": assembled(program, problem(WORDS), unchecked=True)}
    except TinyGpuError as error:
        return {**row, "code": "", "refused": str(error)}


def _term(point: str) -> Program:
    return Schedule.of(MACHINES["attention"], STARTS[point]).program(
        MACHINES["attention"], problem(WORDS).operation
    )


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Launch a kernel in a worker."""
    if request["do"] == "hello":
        return {}
    return {"ratios": [ratio(request["code"], WORDS) for _ in range(TRIES)]}


def outcome_of(answer: Row) -> str:
    """Return what an answer of a worker says: hangs, faults, wrong or right."""
    said = str(answer.get("failed", ""))
    if said:
        return "hangs" if "it hangs" in said else "faults"
    return "right" if all(each <= 1 for each in answer["ratios"]) else "wrong"


def _ready(right: str) -> tuple[Worker, str]:
    """Start a worker and run what is right; return it with what comes of that."""
    worker = Worker((sys.executable, "-m", "benchmarks.attention_rejected", "--serve"))
    answer = worker.ask({"do": "run", "code": right}, START_SECONDS)
    return worker, "right" if outcome_of(answer) == "right" else str(answer)


def _launched(right: str, mutants: Sequence[Row]) -> Iterator[Row]:
    """Launch mutants, one after the other, each in a process of its own.

    Raises TinyGpuError if the unchanged kernel does not run there.
    """
    with ThreadPoolExecutor(_STARTING) as pool:
        ready = pool.map(_ready, [right] * len(mutants))
        for row, (worker, control) in zip(mutants, ready, strict=True):
            with worker:
                if control != "right":
                    raise TinyGpuError(f"the unchanged kernel, before {row['case']}: {control}")
                told = {name: value for name, value in row.items() if name != "code"}
                if not row["code"]:
                    yield {**told, "outcome": "not assembled"}
                    continue
                answer = worker.ask({"do": "run", "code": row["code"]}, LIMIT_SECONDS)
                yield {**told, "outcome": outcome_of(answer), "said": answer}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Count what became of mutants; name those of which nothing was seen."""
    outcomes = [row["outcome"] for row in rows]
    return {
        "mutants": len(rows),
        "outcomes": {one: outcomes.count(one) for one in sorted({*outcomes})},
        "as_expected": sum(row["outcome"] == row["expected"] for row in rows),
        "not_seen": [row["case"] for row in rows if row["outcome"] == "right"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the mutants; or launch them, and exit with 1 if the fault of one is not seen."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_rejected")
    parser.add_argument("file", type=Path, help="the mutants and their code")
    parser.add_argument("--write", action="store_true", help="make and assemble them, no GPU")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    if given.write:
        right = assembled(_term("fa3"), problem(WORDS))
        with ProcessPoolExecutor(os.cpu_count()) as several:
            mutants = list(several.map(written, *zip(*CHOSEN, strict=True)))
        write_tree(given.file, {"right": right, "mutants": mutants})
        sys.stdout.write(f"{sum(bool(m['code']) for m in mutants)} of {len(mutants)} assembled\n")
        return
    record = provenance("python -m benchmarks.attention_rejected FILE")
    made = json.loads(given.file.read_text(encoding="utf-8"))
    done: list[Row] = []
    for row in _launched(made["right"], made["mutants"]):
        done.append(row)
        told = {"provenance": record, "summary": summary(done), "tries": TRIES, "words": WORDS}
        write_tree(given.out / "attention_rejected.json", {**told, "mutants": done})
        sys.stdout.write(f"{row['case'][:60]}: {row['outcome']} ({row['expected']} expected)\n")
        sys.stdout.flush()
    if summary(done)["not_seen"]:
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(_answer)
    else:
        main()
