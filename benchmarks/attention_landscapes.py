"""Landscapes of attention: schedules of eight problems that were drawn, timed on a GPU.

    python -m benchmarks.attention_landscapes --draw              # here: problems and schedules
    python -m benchmarks.attention_landscapes [--out DIR]         # on a GPU, 420 s at most

The problems are drawn with ``SEED``: as many queries as keys, 512 to 8,192 of them; 16 to 64 query
heads, in half of the problems several on a kv head; head dimensions 64 and 128; with and without
the causal mask.  Batches are as many as keep a launch below ``FLOPS``.

The schedules of a problem are of three ``kinds``, ``MOST`` in all: the model's *best* of each
spread, as a ranking of ``RANKING_SECONDS`` meets them; single changes *near* the first ``CHANGED``
of these, half of them the model's best and half drawn; and ``RANDOM`` that are drawn uniformly from
all legal ones.  Each is judged: what is not proved is left out.  ``predicted`` has the model's
seconds as they were then.

A problem is timed in a process of its own under a watchdog, after all kernels have been built by
all cores.  Inputs are normal and rotate through sets that exceed twice the L2.  A kernel is right
at ``ROWS`` queries of one head before it is timed; else it has no times, and ``wrong`` says why.
Each is visited twice, each time in an order drawn anew, and runs alone without a pause for
``VISIT`` seconds, of which the second half counts.  The file is written after each problem.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.attention import reference
from benchmarks.attention_drawn import Words, built, problem
from benchmarks.clocks import Bench
from benchmarks.oracle import decisions_of
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.launch import gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import captured, current_stream
from tinygpu.codegen.run.worker import Worker, serve
from tinygpu.codegen.runtime.function import Function
from tinygpu.deadline import Deadline
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines import MACHINES
from tinygpu.search.time.cost import cost
from tinygpu.term.operation import Problem

__all__ = ["FILE", "MACHINE", "drawn", "main", "problems", "timed"]

FILE = FOLDER.parent / "h100" / "attention_landscapes.json"
MACHINE, DEVICE = "attention", "h100"
SEED, COUNT, FLOPS = 1127, 8, 2.0**38
MOST, BEST, CHANGED, RANDOM, RANKING_SECONDS = 84, 20, 4, 34, 20.0
SLICE, VISIT, ROWS = 0.006, 0.05, 24
LIMIT_SECONDS, BUILD_SECONDS = 75.0, 200.0
"""What a problem may take, and what building is taken to at most."""


def problems(seed: int) -> list[Words]:
    """Return words of ``COUNT`` problems.

    >>> [(w["mask"], w["sizes"]["d"]) for w in problems(0)][:4]
    [('none', 64), ('none', 128), ('causal', 64), ('causal', 128)]
    """
    rng, found = np.random.default_rng(seed), list[Words]()
    for number in range(COUNT):
        mask, d = ("none", "causal")[number // 2 % 2], (64, 128)[number % 2]
        n = 64 * round(2 ** rng.uniform(3, 7))
        heads = 16 * int(rng.integers(1, 5))
        group = int(rng.choice((2, 4, 8))) if number >= COUNT // 2 else 1
        each = 4 * heads * n * n * d / (2 if mask == "causal" else 1)
        sizes = {"l": max(1, int(FLOPS / each)), "h": heads // group, "g": group}
        found.append({"dtype": "bf16", "mask": mask,
                      "sizes": {**sizes, "m": n, "n": n, "d": d, "e": d}})  # fmt: skip
    return found


def drawn(seed: int, number: int) -> dict[str, Any]:
    """Draw a problem's schedules, the model's best of each spread first."""
    from tinygpu.search.exact.best import rank  # which needs z3: a machine that measures has none
    from tinygpu.search.neighbourhood import Neighbourhood
    from tinygpu.space.space import Space

    machine, words = MACHINES[MACHINE], problems(seed)[number]
    of, rng = problem(words), np.random.default_rng([seed, number])
    space = Space(machine, of, load_device(DEVICE))
    soon = Deadline.within(RANKING_SECONDS, time.monotonic)
    ranking = rank(space, BEST, spread=machine.spread, exact=False, until=soon)
    best, near = [one.schedule for one in ranking.best], Neighbourhood(space)
    changes = sorted(
        (one for parent in best[:CHANGED] for one in near(parent)),
        key=lambda one: one.predicted_seconds,
    )
    others = [s for s in dict.fromkeys(one.schedule for one in changes) if s not in best]
    half = (MOST - RANDOM - len(best)) // 2
    rest = [others[half:][int(i)] for i in rng.permutation(len(others[half:]))]
    kinds = dict.fromkeys(best, "best")
    kinds |= dict.fromkeys([*others[:half], *rest[: MOST - RANDOM - len(best) - half]], "near")
    for one in space.sample(rng, RANDOM):
        kinds.setdefault(one, "random")
    names = [name for name, _ in best[0].decisions]
    tree: dict[str, Any] = {"words": words, "decisions": names, "schedules": [], "kinds": [],
                            "predicted": [], "unproved": []}  # fmt: skip
    for one, kind in kinds.items():
        row, term = [one[name] for name in names], one.term(machine, of.operation)
        if not (said := verdict(term)).legal:
            tree["unproved"].append([row, str(said)])
            continue
        tree["schedules"].append(row)
        tree["kinds"].append(kind)
        tree["predicted"].append(_short(float(cost(term, of.sizes, space.device).seconds)))
    return tree


def _short(value: float) -> float:
    return float(f"{value:.4g}")


class Arrays:
    """Sets of inputs and an output of a problem, and what the first set's output has to be."""

    def __init__(self, of: Problem) -> None:
        """Draw normal inputs; take the reference of ``ROWS`` queries of one head."""
        sizes = of.sizes
        self.scale = 1 / math.sqrt(sizes["d"])
        shapes = {o.name: tuple(sizes[axis] for axis in o.axes) for o in of.operation.inputs}
        each = 2 * sum(math.prod(shape) for shape in shapes.values())
        count = max(1, math.ceil(2 * load_device(DEVICE).l2_bytes / each))
        random = gpu().random.default_rng(0)
        self.sets = [
            [
                _bf16(random.standard_normal(math.prod(shape), dtype=np.float32)).reshape(shape)
                for shape in shapes.values()
            ]
            for _ in range(count)
        ]
        self.kept: list[Any] = []
        self.out = gpu().empty([sizes[axis] for axis in of.operation.outputs[0].axes], np.uint16)
        rng = np.random.default_rng(0)
        self.head = tuple(int(rng.integers(sizes[axis])) for axis in "lhg")
        self.rows = np.unique(rng.integers(sizes["m"], size=ROWS))
        q, k, v = (_f64(x[self.head[: len(x.shape) - 2]].get()) for x in self.sets[0])
        shown = np.full(len(self.rows), sizes["n"])
        if of.operation.mask is not None:
            shown = self.rows + 1 + sizes["n"] - sizes["m"]
        self.wanted, self.allowed = reference(q[self.rows], k, v, shown)

    def error(self, kernel: Function) -> float:
        """Return a kernel's worst error over what is allowed; infinite for a NaN anywhere."""
        self.out.fill(0xFFFF)
        kernel(*self.sets[0], out=self.out, scale=self.scale)
        if bool(((self.out & np.uint16(0x7FFF)) > np.uint16(0x7F80)).any()):
            return math.inf
        off = np.abs(_f64(self.out[self.head].get())[self.rows] - self.wanted) / self.allowed
        return float(off.max())

    def replay(self, kernel: Function, stream: Any) -> tuple[Any, int, int]:
        """Capture a slice of a kernel's launches, which take the sets in turn; keep it loaded."""
        each = [kernel.prepare(*one, out=self.out, scale=self.scale) for one in self.sets]
        self.kept.append(each)
        return captured(partial(_turn, each), stream, SLICE, len(each))


def _turn(each: Sequence[Any], number: int) -> None:
    each[number % len(each)]()


def _bf16(values: Any) -> Any:
    """Round fp32 values to the bits of bf16, to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _f64(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def timed(words: Words, codes: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the columns of a problem: seconds of two visits, None where there are none."""
    end = time.monotonic() + seconds
    stream, order = gpu().cuda.Stream(non_blocking=True), np.random.default_rng(0)
    wrong: dict[int, str] = {}
    replays: dict[int, Any] = {}
    with current_stream(stream):
        arrays, bench = Arrays(problem(words)), Bench(stream)
        for number, code in enumerate(codes):
            if not code or time.monotonic() > end:
                continue
            kernel = Function(*pickle.loads(base64.b64decode(code)))
            try:
                if not (off := arrays.error(kernel)) <= 1:
                    wrong[number] = f"an error of {off:.3g} of what is allowed"
                    continue
                replays[number] = arrays.replay(kernel, stream)
            except TinyGpuError as error:
                wrong[number] = str(error)
        visits: dict[str, list[float | None]] = {}
        for visit in ("first", "second"):
            visits[visit] = [None] * len(codes)
            for number in order.permutation(list(replays)).tolist():
                if time.monotonic() < end:
                    found = bench.alone(replays[number], VISIT)
                    visits[visit][number] = _short(found["alone_seconds"])
    return {**visits, "wrong": list(wrong.items())}


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Time a problem in a worker; at "hello" the context is made, which takes seconds."""
    if request["do"] == "hello":
        gpu().zeros(1)
        return {}
    return timed(request["words"], request["codes"], request["seconds"])


def _built(job: tuple[Words, Mapping[str, Any]]) -> tuple[str, str]:
    return built(*job)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what is not drawn yet; or time all problems."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_landscapes")
    parser.add_argument("--draw", action="store_true", help="draw, and time nothing")
    parser.add_argument("--seed", type=int, default=SEED, help="of the problems, to draw others")
    parser.add_argument("--file", type=Path, default=FILE, help="what was drawn")
    parser.add_argument("--out", type=Path, default=FILE.parent, help="folder of what is timed")
    parser.add_argument("--seconds", type=float, default=420.0, help="after which nothing begins")
    given = parser.parse_args(arguments)
    end = time.monotonic() + given.seconds
    cases: list[dict[str, Any]] = []
    if given.file.is_file():
        cases = json.loads(given.file.read_text(encoding="utf-8"))["cases"]
    if given.draw:
        record = provenance(f"python -m benchmarks.attention_landscapes --draw --seed {given.seed}")
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            for case in pool.map(partial(drawn, given.seed), range(len(cases), COUNT)):
                cases.append(case)
                write_tree(given.file, {"drawn": record, "cases": cases})
                _say(f"{case['words']}: {len(case['schedules'])} schedules")
        return
    drawn_by = json.loads(given.file.read_text(encoding="utf-8"))["drawn"]
    told = {"provenance": provenance("python -m benchmarks.attention_landscapes"),
            "drawn": drawn_by}  # fmt: skip
    jobs = [(case["words"], one) for case in cases for one in decisions_of(case)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        codes = iter(list(pool.map(_built, jobs, chunksize=4, timeout=BUILD_SECONDS)))
    _say(f"{len(jobs)} kernels, {end - time.monotonic():.0f} s left")
    command = (sys.executable, "-m", "benchmarks.attention_landscapes", "--serve")
    for case in cases:
        mine = list(islice(codes, len(case["schedules"])))
        case["refused"] = [[i, why] for i, (_, why) in enumerate(mine) if why]
        seconds = min(LIMIT_SECONDS, end - time.monotonic())
        if seconds > 0:
            with Worker(command) as worker:
                request = {"do": "time", "words": case["words"], "codes": [c for c, _ in mine]}
                case |= worker.ask({**request, "seconds": seconds - 10}, seconds + 10)
        write_tree(given.out / FILE.name, {**told, "cases": cases})
        count = sum(second is not None for second in case.get("second", ()))
        _say(f"{case['words']}: {count} of {len(mine)} timed {case.get('failed', '')}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(_answer)
    else:
        main()
