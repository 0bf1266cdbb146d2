"""Faulty programs on a GPU: whether they hang or are wrong there, as the judge says.

    python -m benchmarks.hopper_mutants [--out DIR]

Each mutant is one change of a legal term (``tests/async_mutants.py``), rejected by the judge.
It is emitted, assembled and run several times on fresh data in a process of its own under a
watchdog; what comes of it is "hangs", "wrong", "faults", "not assembled" (ptxas saw it) or, where
the hardware forgives, "right".
A fault that depends on timing may need luck to show: the rows say how often each was tried.
"""

from __future__ import annotations

import argparse
import base64
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import FOLDER, write_results
from tests.async_mutants import moved, mutants
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.worker import Worker, serve
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program

__all__ = ["CHOSEN", "FIELDS", "chosen", "main", "outcome_of"]

FIELDS = ("verdict", "outcome", "tries")
SIZES = {"m": 4096, "n": 4096, "k": 512}  # several tiles for each CTA that stays
TRIES = 5
LIMIT_SECONDS = 12.0
CHOSEN: tuple[tuple[str, str], ...] = (
    ("tma store", "drop wait full@"),
    ("tma store", "drop wait empty@"),
    ("tma store", "drop wgmma.wait_group 0"),
    ("tma store", "drop arrive empty@(trips*t + k + -1)"),
    ("tma store", "drop arrive full@"),
    ("tma store", "bytes+ arrive full@"),
    ("tma store", "bytes- arrive full@"),
    ("tma store", "count+ empty"),
    ("tma store", "count- empty"),
    ("tma store", "sooner wait full@"),
    ("tma store", "later wait full@"),
    ("tma store", "drop bar.sync 1 of the role"),
    ("tma store", "drop fence.proxy.async"),
    ("tma store", "stale sums"),
    ("cluster", "near arrive empty@(trips*t + k + -1)"),
    ("cluster", "unsent smem_b"),
    ("cluster", "drop wait empty@"),
    ("pingpong", "drop wait turn@"),
    ("pingpong", "drop arrive turn@"),
    ("persistent", "phase+ wait full@"),
)
"""A named point of the machine, and how the mutant's name begins: the first such is taken."""


def chosen() -> Iterator[tuple[str, str, Program]]:
    """Yield (point, mutant's name, program) of each.  Raises TinyGpuError where there is none."""
    for point, start in CHOSEN:
        program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS[point]))
        every = (*mutants(program), *moved(program))
        found = next(((n, p) for n, p in every if n.startswith(start)), None)
        if found is None:
            raise TinyGpuError(f"mutant {start!r}: {point} has none")
        yield point, *found


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run a mutant in a worker."""
    from tinygpu.codegen.run.launch import Kernel, gpu
    from tinygpu.codegen.run.validation import validate

    if request["do"] == "hello":
        gpu().zeros(1)
        return {}
    program, problem = pickle.loads(base64.b64decode(request["program"]))
    kernel = Kernel(program, sizes=problem.sizes, unchecked=True)  # it is known to be illegal
    return {"errors": [validate(kernel, problem, seed) for seed in range(TRIES)]}


def outcome_of(program: Program, problem: Problem) -> tuple[str, list[float]]:
    """Run a faulty program in a process of its own: what comes of it, and the errors of its runs.

    It "hangs", is "wrong" or "right", "faults" with what was said, or is "not assembled".
    """
    packed = base64.b64encode(pickle.dumps((program, problem))).decode()
    with Worker((sys.executable, "-m", "benchmarks.hopper_mutants", "--serve")) as worker:
        answer = worker.ask({"do": "run", "program": packed}, LIMIT_SECONDS)
    return _outcome(answer), answer.get("errors", [])


def _outcome(answer: dict[str, Any]) -> str:
    said = str(answer.get("failed", ""))
    if said:
        kinds = {"hangs": "hangs", "ptxas": "not assembled"}
        return next((k for word, k in kinds.items() if word in said), f"faults: {said}")
    return "wrong" if max(answer["errors"]) > 1 else "right"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every mutant; write ``hopper_mutants.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_mutants")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    record = provenance(" ".join(("python -m benchmarks.hopper_mutants", *words)))
    try:
        for point, name, program in chosen():
            said = str(verdict(program))
            outcome, errors = outcome_of(program, Problem.of(program.operation, **SIZES))
            row: dict[str, Any] = {
                "group": "main", "case": f"{point}: {name}", **SIZES, "dtype": "bf16",
                "schedule": dict(STARTS[point]), "predicted_seconds": None, "seconds": None,
                "peer": "", "peer_seconds": None, "error": max(errors) if errors else None,
                "verdict": said,
                "outcome": outcome, "tries": TRIES,
            }  # fmt: skip
            write_results("hopper_mutants", [row], record, given.out, fields=FIELDS)
            sys.stdout.write(f"{point}: {name[:60]}: {outcome[:60]} ({row['verdict'][:60]})\n")
            sys.stdout.flush()
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(_answer)
    else:
        main()
