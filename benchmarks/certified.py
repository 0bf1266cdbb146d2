"""Coverage of the certificates: ``python -m benchmarks.certified [--count N] [--seed S]``.

All presets of each machine and N schedules drawn from its legal space get a certificate of order,
which is written, read back and checked, and then what they compute is checked, by all cores that
the process may use, until ``--seconds`` are over.  Two lines a case: how many are accepted, not
certified, refused; the longest time and the mean of making and of verifying one, with the term read
and the file parsed, and of checking meaning, in seconds of a core; the largest file, as it is and
compressed by zlib.  Reasons of what is not accepted follow.  ``--out`` has a row for each schedule.
Schedules are drawn ``EACH`` at a time, each time with the seed and a number.

On a machine with many cores::

    python -m benchmarks.certified --count 20000 --seconds 14400 --out rows.jsonl
"""

from __future__ import annotations

import argparse
import importlib
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.each_core import rows
from tinygpu.checker.make import certified
from tinygpu.checker.sums import computed
from tinygpu.checker.written import verified, written
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.operation import Operation, Problem, attention, grouped_matmul, matmul, softmax
from tinygpu.term.schedule import Schedule

__all__ = ["CASES", "main"]

Job = tuple[str, int, int, int]
"""A case, a seed, a number and how many are drawn; 0: all presets instead."""
EACH = 10

_TENSOR, _SQUARE = matmul("bf16", layout="nt"), {"m": 4096, "n": 4096, "k": 4096}
_HEADS = {"l": 2, "h": 8, "g": 2, "m": 2048, "n": 2048, "d": 128, "e": 128}
CASES: dict[str, tuple[str, Operation, dict[str, int], str]] = {
    "simt": ("simt", matmul(), _SQUARE, "h100"),
    "ampere": ("ampere", _TENSOR, _SQUARE, "h100"),
    "hopper": ("hopper", _TENSOR, _SQUARE, "h100"),
    "groups": ("hopper", grouped_matmul(), {"g": 8, **_SQUARE}, "h100"),
    "rows": ("rows", softmax(), {"i": 512, "j": 3000}, "h100"),
    "blackwell": ("blackwell", _TENSOR, _SQUARE, "b200"),
    "attention": ("attention", attention(mask="causal"), _HEADS, "h100"),
    "ampere_attention": ("ampere_attention", attention(mask="causal"), _HEADS, "h100"),
}
"""A machine, its operation, and the sizes and device of the space drawn from."""


def jobs(name: str, count: int, seed: int) -> Iterator[Job]:
    """Yield jobs for a case's presets and for so many schedules drawn from its space."""
    yield name, seed, 0, 0
    for number in range(0, count, EACH):
        yield name, seed, number, min(EACH, count - number)


@cache
def space_of(name: str) -> Space:
    """Return the space of a case."""
    machine, operation, sizes, device = CASES[name]
    return Space(MACHINES[machine], Problem.of(operation, **sizes), load_device(device))


def certify_all(job: Job) -> list[dict[str, Any]]:
    """Return the rows of a job's schedules."""
    name, seed, number, count = job
    machine = CASES[name][0]
    if not count:
        module = importlib.import_module(f"tinygpu.machines.{machine}")
        points = getattr(module, "LADDER", None) or getattr(module, "STARTS", {})
        return [certify(name, n, Schedule(machine, tuple(v.items()))) for n, v in points.items()]
    drawn = space_of(name).sample(np.random.default_rng([seed, number]), count)
    return [certify(name, str(number + i), one) for i, one in enumerate(drawn)]


def certify(name: str, which: str, schedule: Schedule) -> dict[str, Any]:
    """Return a schedule's row: what is said of its certificate, its meaning, seconds and bytes."""
    row: dict[str, Any] = {"case": name, "which": which, "schedule": str(schedule)}
    try:
        program = schedule.program(MACHINES[CASES[name][0]], CASES[name][1])
    except ProgramError as error:  # a machine may have no term of a schedule for groups
        return {**row, "ctas": 1, "word": "no term", "line": str(error)[:160]}
    row["ctas"] = int(np.prod([int(n) for _, n in program.cluster]))
    start = time.process_time()
    certificate, ruling = certified(program)
    row["make"] = time.process_time() - start
    if certificate is not None:
        text = written(program, certificate)
        packed = len(zlib.compress(text.encode(), 9))
        start = time.process_time()
        ruling = verified(program, text)
        row |= {"verify": time.process_time() - start, "bytes": len(text), "packed": packed}
    start = time.process_time()
    sums = computed(program)
    row |= {"sums": time.process_time() - start, "meaning": sums.word, "why": sums.line[:160]}
    return {**row, "word": ruling.word, "line": ruling.line[:160]}


def summary(name: str, found: list[dict[str, Any]]) -> str:
    """Return a case's line, and those of what is not accepted."""
    words = Counter(f"{row['word']}{' in clusters' * (row['ctas'] > 1)}" for row in found)
    times = "; ".join(
        f"{what} {max(some, default=0):.2f} s, mean {np.mean(some or [0]):.2f} s"
        for what in ("make", "verify", "sums")
        for some in ([row[what] for row in found if what in row],)
    )
    counts = ", ".join(f"{many} {word}" for word, many in sorted(words.items()))
    size, packed = (max((row.get(k, 0) for row in found), default=0) for k in ("bytes", "packed"))
    most = f"{size / 1024:.0f} KB, {packed / 1024:.1f} KB compressed"
    reasons = Counter(f"{r['word']}: {r['line']}" for r in found if r["word"] != "accepted")
    more = [f"  {many} x {reason}" for reason, many in reasons.most_common(3)]
    meant = Counter(f"{row.get('meaning')}" for row in found)
    lines = [f"{name}: {counts}; {times}; {most}", *more]
    lines.append(
        f"  meaning: {', '.join(f'{many} {word}' for word, many in sorted(meant.items()))}"
    )
    whys = Counter(f"{r['meaning']}: {r['why']}" for r in found if r.get("why") and
                   r["meaning"] != "accepted")  # fmt: skip
    return "\n".join([*lines, *(f"    {many} x {why}" for why, many in whys.most_common(2))])


def main(words: list[str] | None = None) -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=CASES, action="append")
    parser.add_argument("--seconds", type=float, default=86400)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    cases = given.machine or list(CASES)
    turns = zip_longest(*(jobs(name, given.count, given.seed) for name in cases))
    every = (job for job in chain.from_iterable(turns) if job is not None)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for row in rows(certify_all, every, seconds=given.seconds, out=given.out):
        found[row["case"]].append(row)
    for name in cases:
        print(summary(name, found[name]))


if __name__ == "__main__":
    main()
