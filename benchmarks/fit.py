"""Refit the time model's numbers to measured runs: ``python -m benchmarks.fit [--rounds N]``.

The runs are those that the numbers of ``search/time/fitted.py`` were chosen on: the cases of
``simt`` and ``ampere`` of ``oracle.py`` that are not held out (those that spill apart), 308 fp32
matmuls (``fit_runs.json``: the named ladder, random schedules and fast ones, none of which spills)
and the variants of ``slow_kernel.json``.  Of the last two the registers are those that ptxas used,
so that the estimate of registers is not fitted along; clearing an output before reds was not timed.

With r the predicted over the measured time of a run and w its weight, what is made small is

    loss = sum of w min(|log r|, 1)

A case has the weight 1 in all, over the number of cases; in it a schedule's falls with its time to
the power of 1.5.  Each other group (ladder, random, fast, slow) has 0.6 over their number in all.

number by number: each is tried a step larger and a step smaller, and the step grows where that
helps and shrinks where it does not.  Errors before and after go to standard error; to standard
output goes the text of ``fitted.py`` with the new numbers, and nothing is written.  The loss is
that of the runs it was fitted on: it says nothing of others.

Source: S. Wright, "Coordinate descent algorithms", 2015.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.oracle import FITTING, decisions_of, path_of, problem_of
from benchmarks.peers import FOLDER, load_rows
from benchmarks.slow_kernel import PROBLEM, variants
from tinygpu.devices.device import load_device
from tinygpu.errors import StoreError
from tinygpu.machines import MACHINES
from tinygpu.machines.simt import Simt
from tinygpu.search.time import fitted
from tinygpu.search.time.cost import features, predict
from tinygpu.search.time.launch import Assembled
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = [
    "NAMES",
    "Run",
    "errors",
    "fitted_text",
    "load_cases",
    "load_runs",
    "numbers",
    "refit",
    "told",
]

NAMES = (
    *("unit_power", "blend_power", "warp_interval", "turn", "guard", "guard_fixed"),
    *("swizzle", "index_pointer", "index_i64", "beside"),
    *("loads_in_flight", "last_copy", "l2_rate", "start"),
)
"""The numbers that these runs determine; the others were measured by themselves."""
OF_ORACLE, OF_OTHERS, SLOW = 1.0, 0.6, 1.5
FIRST_STEP, GROWTH, SHRINKAGE = 1.35, 1.1, 0.6
Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A measured kernel; ``registers`` are ptxas's, None where the estimate has to do.

    ``whole``: a clear before it was timed with it.
    """

    group: str
    program: Program
    sizes: Mapping[str, int]
    registers: int | None
    seconds: float
    weight: float = 1.0
    whole: bool = False


def load_runs(folder: Path = FOLDER) -> list[Run]:
    """Read the measured runs.  Raises StoreError where a file of them is missing or odd."""
    path = folder / "fit_runs.json"
    found: list[Run] = []
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["decisions"]
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"runs {path}: not readable ({error}); it is in the repository") from None
    for row in load_rows("fit_runs", folder):
        schedule = Schedule.of(Simt(), dict(zip(names, row["schedule"], strict=True)))
        program = schedule.program(Simt(), matmul(row["dtype"]))
        sizes = {axis: row[axis] for axis in ("m", "n", "k")}
        found.append(Run(row["group"], program, sizes, row["registers"], row["seconds"]))
    slow = {row["case"]: row["seconds"] for row in load_rows("slow_kernel", folder)}
    known = [v for v in variants() if slow.get(v.name) is not None]
    found += [Run("slow", v.program, PROBLEM.sizes, None, slow[v.name]) for v in known]
    groups = Counter(run.group for run in found)
    each = {group: OF_OTHERS / len(groups) / count for group, count in groups.items()}
    return [replace(run, weight=each[run.group]) for run in found]


def load_cases() -> list[Run]:
    """Read the runs of the oracle's cases that are not held out, those that spill apart."""
    found: list[Run] = []
    cases = [case for case in FITTING if case[0] in ("simt", "ampere")]
    for case in cases:
        tree = json.loads(path_of(case).read_text(encoding="utf-8"))
        machine, problem = MACHINES[case[0]], problem_of(case)
        rows = zip(decisions_of(tree), tree["first"], tree["second"], tree["spills"], strict=True)
        some = [(d, math.sqrt(a * b)) for d, a, b, spills in rows if a is not None and not spills]
        total = sum(seconds**-SLOW for _, seconds in some)
        for decisions, seconds in some:
            program = machine.program(problem.operation, Chosen(decisions))
            weight = OF_ORACLE / len(cases) * seconds**-SLOW / total
            found.append(
                Run(case[0], program, problem.sizes, None, seconds, weight=weight, whole=True)
            )
    return found


@contextmanager
def numbers(values: Numbers) -> Iterator[None]:
    """Let the model use these numbers for a while."""
    used = cast("dict[str, float]", fitted.FITTED)
    before = dict(used)
    used.update(values)
    try:
        yield
    finally:
        used.update(before)


def errors(runs: Sequence[Run], values: Numbers) -> NDArray[np.float64]:
    """Return the logarithm of predicted over measured time of each run, shape (runs,)."""
    device, found = load_device("h200"), []
    with numbers(values):
        for run in runs:
            code = None if run.registers is None else Assembled(run.registers)
            of = features(run.program, run.sizes, device, code)
            if not run.whole:
                of = replace(of, launch=replace(of.launch, cleared_bytes=0.0))
            found.append(float(predict(of).seconds) / run.seconds)
    ratios: NDArray[np.float64] = np.log(found)
    return ratios


def refit(
    loss: Callable[[Numbers], float], start: Numbers, *, names: Sequence[str], rounds: int
) -> dict[str, float]:
    """Return numbers of no greater loss, found by steps along one number at a time."""
    best, least = dict(start), loss(start)
    steps = dict.fromkeys(names, FIRST_STEP)
    for _ in range(rounds):
        for name in names:
            for factor in (steps[name], 1 / steps[name]):
                tried = {**best, name: best[name] * factor}
                here = loss(tried)
                if here < least:
                    best, least = tried, here
                    steps[name] **= GROWTH
                    break
            else:
                steps[name] **= SHRINKAGE
    return best


def fitted_text(values: Numbers) -> str:
    """Return the text of ``search/time/fitted.py`` with other numbers, to three digits."""
    text = Path(fitted.__file__).read_text(encoding="utf-8")
    for name, value in values.items():
        if value != fitted.FITTED[name]:
            text = re.sub(rf'("{name}"): [^,]+,', rf"\1: {float(f'{value:.3g}')!r},", text)
    return text


def told(runs: Sequence[Run], found: NDArray[np.float64]) -> str:
    """Say how far each group of runs is off, a line each."""
    lines = []
    for group in dict.fromkeys(run.group for run in runs):
        mine = np.exp([e for e, run in zip(found, runs, strict=True) if run.group == group])
        off = np.abs(mine - 1)
        lines.append(
            f"  {group}: {len(mine)} runs, predicted / measured {mine.min():.2f} to "
            f"{mine.max():.2f}, off by {off.mean():.1%} in the mean, {np.median(off):.1%} in the "
            "median"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Refit, and print the errors and the proposed text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit")
    parser.add_argument("--rounds", type=int, default=4, help="passes over the numbers")
    given = parser.parse_args(arguments)
    try:
        runs = load_runs() + load_cases()
    except StoreError as error:
        sys.exit(str(error))
    weights = np.array([run.weight for run in runs])

    def loss(values: Numbers) -> float:
        return float(weights @ np.minimum(np.abs(errors(runs, values)), 1.0))

    def report(when: str, values: Numbers) -> None:
        sys.stderr.write(f"{when}: loss {loss(values):.4f}\n{told(runs, errors(runs, values))}\n")
        sys.stderr.flush()

    report("before", fitted.FITTED)
    found = refit(loss, fitted.FITTED, names=NAMES, rounds=given.rounds)
    report("after", found)
    sys.stdout.write(fitted_text(found))


if __name__ == "__main__":
    main()
