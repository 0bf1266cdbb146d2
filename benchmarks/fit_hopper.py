"""Refit the time of programs with barriers to measured runs: ``python -m benchmarks.fit_hopper``.

The runs are ``h200/hopper_bank.json``: 865 schedules of ``hopper`` on 25 shapes (bf16, layout nt),
22323 times of short bursts and 472 sustained ones.  A burst of 2 ms is over before the power cap
answers, so its clock is that of the schedules that were timed in the 60 ms before it.  With r the
rate of a burst in TFLOP/s and q the mean rate of the time before it (weights exp(-t / 60 ms)),

    sustained seconds = seconds of the burst  x  exp(HEAT (max(r, COOL) - max(q, COOL)))

brings the bursts from 9 % to 4.5 % (rms) of the sustained times of the same schedules.

The model's numbers (``search/time/fitted.py`` from ``tma_issue`` on, and those of the device in
``OF_DEVICE``) are chosen mainly on the cases of ``oracle.py`` that are not held out, whose times
are settled, and on a part of the bank: every second of its shapes that are not held out (a fifth
is), and two thirds of the schedules.  With the loss of some shapes

    mean over shapes of  sum of w min(|log(predicted / measured)|, 1) / sum of w
    w = exp(-2 log(measured / fastest))

it is that of the cases, a tenth of that of the bank, and twice the mean of what the errors of
``SUSTAINED`` are above 8.5 %: one schedule at six shapes.  Each number keeps its ``BOUNDS``,
outside of which it would not be what its name says.  They are chosen number by number, as
``benchmarks/fit.py`` does (``--rounds``, 90 s each on one core).  New numbers
go to standard output, to be copied; the table of errors too, and with ``--write`` to
``results/hopper_model.json``.

>>> bank = load_bank()
>>> bank.log_seconds.shape, len(bank.shapes_held_out)
((25, 865), 5)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit import refit
from benchmarks.oracle import FITTING, path_of
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import StoreError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.search.time.cost import cost
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.trust import tau
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

__all__ = [
    "SUSTAINED",
    "Bank",
    "figures",
    "load_bank",
    "numbers",
    "predicted",
    "table",
    "terms",
    "total_loss",
]

Times = NDArray[np.float64]
Numbers = Mapping[str, float]
HEAT, COOL, MEMORY_SECONDS, BURST_SECONDS = 0.00045, 250.0, 0.06, 0.002
SUSTAINED_WEIGHT = 3.0
OF_DEVICE = (
    "tensor_clock_hz", "tma_latency_cycles", "mbarrier_latency_cycles", "cluster_latency_cycles",
)  # fmt: skip
"""Numbers of the device that only these runs determine."""
NAMES = tuple(FITTED)[tuple(FITTED).index("tma_issue") :]
"""Numbers about statements of whole tiles."""
NOT_FITTED = ("registers", "tmem_epilogue")
"""Numbers that hardly any of these runs depends on."""
BOUNDS = {
    "smem_share": (0.7, 1.0), "epilogue": (1.0, 20.0), "landing": (0.5, 1.2), "early": (0.3, 1.0),
    "tma_dram_share": (0.8, 0.96), "power_share": (0.2, 0.6), "arrive": (15.0, 40.0),
    "proxy_fence": (20.0, 150.0), "product_end": (60.0, 200.0), "multicast": (0.5, 1.0),
}  # fmt: skip
SUSTAINED = (
    ((1024, 1024, 1024), 156), ((2048, 2048, 2048), 600), ((4096, 4096, 4096), 658),
    ((8192, 8192, 8192), 610), ((1024, 4096, 4096), 633), ((8192, 14336, 4096), 601),
)  # fmt: skip
"""Shapes, and TFLOP/s of ``STARTS["cluster"]`` on an H200 without a pause (2026-11-21)."""
OF_BANK, OF_SUSTAINED, ALLOWED = 0.1, 2.0, 0.085
FEW = (1, 8, 16)


@dataclass(frozen=True)
class Bank:
    """Measured schedules: sustained seconds as logarithms, shape (shapes, schedules); NaN: none.

    ``rows`` are the schedules' values of ``decisions``; ``log_runs`` has each run's own times.
    """

    decisions: tuple[str, ...]
    shapes: tuple[tuple[int, int, int], ...]
    rows: tuple[tuple[Any, ...], ...]
    log_seconds: Times
    log_runs: tuple[Times, ...]

    @cached_property
    def shapes_held_out(self) -> tuple[int, ...]:
        """Every fifth shape, in order of its work."""
        work = sorted(range(len(self.shapes)), key=lambda i: (math.prod(self.shapes[i]), i))
        return tuple(work[2::5])

    @cached_property
    def schedules_held_out(self) -> NDArray[np.bool_]:
        """A third of the schedules, drawn once."""
        return np.random.default_rng(0).random(len(self.rows)) < 1 / 3


def load_bank(folder: Path = FOLDER) -> Bank:
    """Read the runs.  Raises StoreError where the file is missing or odd."""
    path = folder / "hopper_bank.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        shapes = tuple((m, n, k) for m, n, k in tree["shapes"])
        choices = Hopper.decisions()
        newer = [n for n in choices if n not in tree["decisions"] and choices[n].before is not None]
        before = tuple(choices[n].before for n in newer)
        rows = tuple((*row, *before) for row in tree["schedules"])
        each, weights = [], []
        for run in tree["runs"]:
            burst = run["kind"] == "burst"
            logs = np.full((len(shapes), len(rows)), np.nan)
            for i, shape in enumerate(shapes):
                times = [row for row in run["times"] if row[0] == i]
                seconds = np.array([row[2] for row in times]) * 1e-6
                heat = _heat(seconds, shape) if burst and times else 0.0
                logs[i, [row[1] for row in times]] = np.log(seconds) + heat
            each.append(logs)
            weights.append(np.isfinite(logs) * (1.0 if burst else SUSTAINED_WEIGHT))
        known, weight = np.nan_to_num(np.stack(each)), np.stack(weights)
        with np.errstate(invalid="ignore"):
            means = (known * weight).sum(axis=0) / weight.sum(axis=0)
        return Bank((*tree["decisions"], *newer), shapes, rows, means, tuple(each))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise StoreError(f"runs {path}: not readable ({error}); it is in the repository") from None


def _heat(seconds: Times, shape: tuple[int, int, int]) -> Times:
    """Return by how much the clock of bursts, in order, differs from a sustained one, as logs."""
    rates = np.maximum(2 * math.prod(shape) / seconds * 1e-12, COOL)
    kept = np.exp(-np.maximum(seconds, BURST_SECONDS) / MEMORY_SECONDS)
    before, recent = np.zeros(len(rates)), float(rates.mean())
    for _ in range(2):  # what is timed first follows the round that was thrown away
        for i, (rate, share) in enumerate(zip(rates, kept, strict=True)):
            before[i] = recent
            recent = recent * share + rate * (1 - share)
    return HEAT * (rates - before)


def terms(bank: Bank, of: NDArray[np.bool_]) -> list[tuple[NDArray[np.int64], Program]]:
    """Return terms of many schedules each: one for each choice of the structural decisions."""
    choices = Hopper.decisions()
    structural = [i for i, n in enumerate(bank.decisions) if choices[n].structural]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i in np.flatnonzero(of):
        groups.setdefault(tuple(bank.rows[i][j] for j in structural), []).append(int(i))
    found = []
    for members in groups.values():
        chosen = {
            name: bank.rows[members[0]][j]
            if j in structural
            else np.array([bank.rows[i][j] for i in members])
            for j, name in enumerate(bank.decisions)
        }
        program = Hopper().program(matmul("bf16", layout="nt"), Chosen(chosen))
        found.append((np.array(members), program))
    return found


def predicted(
    of: Sequence[tuple[NDArray[np.int64], Program]],
    shapes: Sequence[tuple[int, int, int]],
    count: int,
    device: Device,
) -> Times:
    """Return the logarithms of predicted seconds, shape (shapes, count); NaN for no term's."""
    found = np.full((len(shapes), count), np.nan)
    for i, shape in enumerate(shapes):
        sizes = dict(zip("mnk", shape, strict=True))
        for members, program in of:
            time = cost(program, sizes, device)
            found[i, members] = np.log(time.seconds)
    return found


@contextmanager
def numbers(values: Numbers) -> Iterator[Device]:
    """Let the model use these numbers for a while; yield the device that has those of its own."""
    used = cast("dict[str, float]", FITTED)
    before = dict(used)
    used.update({n: v for n, v in values.items() if n in before})
    mine: dict[str, Any] = {n: v for n, v in values.items() if n not in before}
    try:
        yield load_device("h200").with_values(**mine)
    finally:
        used.update(before)


def figures(measured: Times, model: Times) -> dict[str, float]:
    """Return how well one shape's schedules are predicted, both of shape (schedules,), as logs.

    ``median`` and ``p90`` are of the errors' magnitudes, ``tau`` is Kendall's (pairs in order, less
    those in disorder, over all), ``top n`` the least measured time among the n that the model
    thinks fastest, over the least of all.
    """
    there = np.isfinite(measured) & np.isfinite(model)
    measured, model = measured[there], model[there]
    error = np.abs(model - measured)
    order = np.argsort(model, kind="stable")
    found = {
        "median": float(np.median(error)),
        "p90": float(np.percentile(error, 90)),
        "tau": tau(measured, model),
    }
    for n in FEW:
        found[f"top {n}"] = math.exp(measured[order[:n]].min() - measured.min())
    return found


def table(bank: Bank, model: Times) -> list[dict[str, Any]]:
    """Return rows of figures: of each shape and split, and their means (geometric, of ``top n``).

    A split is what was held out: nothing, schedules, or the shape (then of all schedules).  The
    rows ``a run by another`` hold the second run of bursts against the first, as a model of it.
    """
    held = bank.schedules_held_out
    rows: list[dict[str, Any]] = []
    first, second = bank.log_runs[:2]
    for i in sorted(range(len(bank.shapes)), key=lambda i: math.prod(bank.shapes[i])):
        parts = {"nothing": ~held, "schedules": held}
        if i in bank.shapes_held_out:
            parts = {"shape": np.ones(len(held), bool)}
        name = "x".join(map(str, bank.shapes[i]))
        measured = bank.log_seconds[i]
        for split, of in parts.items():
            rows.append({"held out": split, "shape": name, **figures(measured[of], model[i, of])})
        again = figures(second[i], first[i])
        rows.append({"held out": "a run by another", "shape": name, **again})
    for split in dict.fromkeys(row["held out"] for row in rows):
        mine = [row for row in rows if row["held out"] == split]
        mean: dict[str, Any] = {"held out": split, "shape": "all"}
        for field in list(mine[0])[2:]:
            values = np.array([row[field] for row in mine])
            top = field.startswith("top")
            mean[field] = float(np.exp(np.log(values).mean()) if top else values.mean())
        rows.append(mean)
    return [{n: round(v, 4) if isinstance(v, float) else v for n, v in r.items()} for r in rows]


def bank_of(case: Mapping[str, Any]) -> Bank:
    """Return a case of the oracle as a bank of one shape."""
    visits = np.array([case["first"], case["second"]], dtype=float)
    logs = np.log(visits).mean(axis=0, keepdims=True)
    shape = tuple(case["case"][3])
    return Bank(tuple(case["decisions"]), (shape,), tuple(map(tuple, case["schedules"])), logs, ())


Loss = Callable[[Numbers], float]


def _loss(bank: Bank, shapes: Sequence[int], of: NDArray[np.bool_]) -> Loss:
    """Return the loss of numbers on these shapes and schedules."""
    measured = bank.log_seconds[list(shapes)][:, of]
    found, sizes = terms(bank, of), [bank.shapes[i] for i in shapes]

    def loss(values: Numbers) -> float:
        with numbers(values) as device:
            model = predicted(found, sizes, len(of), device)[:, of]
        there = np.isfinite(measured) & np.isfinite(model)
        known = np.where(there, measured, np.inf)
        weights = np.exp(-2 * (known - known.min(axis=1, keepdims=True)))
        error = np.minimum(np.abs(np.where(there, model - measured, 0.0)), 1.0)
        return float(((weights * error).sum(axis=1) / weights.sum(axis=1)).mean())

    return loss


def _sustained(values: Numbers) -> float:
    """Return by how much the errors at ``SUSTAINED`` are too large, in the mean."""
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
    too_large = []
    with numbers(values) as device:
        for shape, tflops in SUSTAINED:
            sizes = dict(zip("mnk", shape, strict=True))
            seconds = float(cost(program, sizes, device).seconds)
            error = abs(math.log(2 * math.prod(shape) / seconds / (tflops * 1e12)))
            too_large.append(max(error - ALLOWED, 0.0))
    return float(np.mean(too_large))


def total_loss(bank: Bank) -> Loss:
    """Return the loss that is made small: of the oracle's cases, the bank, and ``SUSTAINED``."""
    order = sorted(range(len(bank.shapes)), key=lambda i: math.prod(bank.shapes[i]))
    some = [i for i in order if i not in bank.shapes_held_out][::2]
    of_bank = _loss(bank, some, ~bank.schedules_held_out)
    files = [path_of(case) for case in FITTING if case[0] == "hopper"]
    banks = [bank_of(json.loads(file.read_text(encoding="utf-8"))) for file in files]
    each = [_loss(one, (0,), np.ones(len(one.rows), bool)) for one in banks]

    def loss(values: Numbers) -> float:
        if any(not least <= values[name] <= most for name, (least, most) in BOUNDS.items()):
            return math.inf
        mean = sum(one(values) for one in each) / len(each)
        return mean + OF_BANK * of_bank(values) + OF_SUSTAINED * _sustained(values)

    return loss


def main(arguments: Sequence[str] | None = None) -> None:
    """Refit if asked, and print the numbers and the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_hopper")
    parser.add_argument("--rounds", type=int, default=0, help="passes over the numbers")
    parser.add_argument("--write", action="store_true", help="write results/hopper_model.json")
    given = parser.parse_args(arguments)
    words = " ".join(sys.argv[1:] if arguments is None else arguments)
    device = load_device("h200")
    values = {
        **{name: FITTED[name] for name in NAMES},
        **{name: getattr(device, name) for name in OF_DEVICE},
    }
    try:
        bank = load_bank()
        if given.rounds:
            names = [name for name in values if name not in NOT_FITTED]
            values = refit(total_loss(bank), values, names=names, rounds=given.rounds)
        for name, value in values.items():
            sys.stdout.write(f"{name}: {value:.3g}\n")
        with numbers(values) as tried:
            found = terms(bank, np.ones(len(bank.rows), bool))
            rows = table(bank, predicted(found, bank.shapes, len(bank.rows), tried))
        for row in rows:
            sys.stdout.write("  ".join(f"{n} {v}" for n, v in row.items()) + "\n")
        if given.write:
            record = provenance(f"python -m benchmarks.fit_hopper {words}")
            write_tree(FOLDER.parent / "hopper_model.json", {"provenance": record, "rows": rows})
    except StoreError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
