"""Coverage of the certificates of order: ``python -m benchmarks.certified [--count N] [--seed S]``.

All presets of each machine and N schedules drawn from its legal space get a certificate, which is
written, read back and checked.  A row a case: how many are accepted, not certified, refused;
the longest time and the mean of making one and of verifying one, with the term read and the file
parsed; the largest file, as it is and compressed by zlib.  Reasons of what is not accepted follow.
"""

from __future__ import annotations

import argparse
import importlib
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tinygpu.checker.make import certified
from tinygpu.checker.written import verified, written
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, Problem, attention, grouped_matmul, matmul, softmax
from tinygpu.term.program import Program

__all__ = ["CASES", "main", "terms"]

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


def terms(name: str, count: int, seed: int) -> Iterator[Program]:
    """Yield the terms of a case's presets and of schedules drawn from its space."""
    machine, operation, sizes, device = CASES[name]
    module = importlib.import_module(f"tinygpu.machines.{machine}")
    points = getattr(module, "LADDER", None) or getattr(module, "STARTS", {})
    for values in points.values():
        yield MACHINES[machine].program(operation, Chosen(values))
    if count:
        space = Space(MACHINES[machine], Problem.of(operation, **sizes), load_device(device))
        for schedule in space.sample(np.random.default_rng(seed), count):
            yield schedule.program(MACHINES[machine], operation)


def row(name: str, programs: Iterator[Program]) -> tuple[str, Counter[str]]:
    """Return a case's line, and the reasons of what is not accepted."""
    words: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    making, checking, sizes, packed = [], [], [0], [0]
    for program in programs:
        start = time.perf_counter()
        certificate, ruling = certified(program)
        making.append(time.perf_counter() - start)
        if certificate is not None:
            text = written(program, certificate)
            sizes.append(len(text))
            packed.append(len(zlib.compress(text.encode(), 9)))
            start = time.perf_counter()
            ruling = verified(program, text)
            checking.append(time.perf_counter() - start)
        ctas = int(np.prod([int(n) for _, n in program.cluster]))
        words[f"{ruling.word}{' in clusters' * (ctas > 1)}"] += 1
        if not ruling.accepted:
            reasons[f"{ruling.word}: {ruling.line[:160]}"] += 1
    times = "; ".join(
        f"{what} {max(some, default=0):.2f} s, mean {np.mean(some or [0]):.2f} s"
        for what, some in (("make", making), ("verify", checking))
    )
    counts = ", ".join(f"{many} {word}" for word, many in sorted(words.items()))
    most = f"{max(sizes) / 1024:.0f} KB, {max(packed) / 1024:.1f} KB compressed"
    return f"{name}: {counts}; {times}; {most}", reasons


def main(words: list[str] | None = None) -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=CASES, action="append")
    given = parser.parse_args(words)
    for name in given.machine or CASES:
        line, reasons = row(name, terms(name, given.count, given.seed))
        print(line)
        for reason, many in reasons.most_common(3):
            print(f"  {many} x {reason}")


if __name__ == "__main__":
    main()
