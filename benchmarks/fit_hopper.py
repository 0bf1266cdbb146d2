"""Refit the time of statements of whole tiles: ``python -m benchmarks.fit_hopper``.

    python -m benchmarks.fit_hopper [--rounds N] [--cards h100 h200] [--write NAME]

The runs are the cases of ``hopper`` in ``h100/oracle`` and ``h200/oracle``
(``benchmarks/oracle.py``): each kernel alone until its clock is its own.  The model is told of a
card what its device file has, which is what micro-kernels measure; the numbers are the same for all
cards.  So what is fitted on one card (``--cards``) is judged on the other, too.

With the loss of a case

    sum of w min(|log(predicted / measured)|, 1) / sum of w,    w = exp(-2 log(measured / fastest))

it is the mean over cards of the mean over their cases of ``FITTING``.  Each number keeps its
``BOUNDS``, outside of which it would not be what its name says.  They are chosen number by number,
as ``benchmarks/fit.py`` does.  New numbers go to standard output, to be copied; the table of errors
too, and with ``--write`` it takes the place of what has that name in ``results/hopper_model.json``.

Source: S. Wright, "Coordinate descent algorithms", 2015.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit import refit
from benchmarks.oracle import FITTING, HELD_OUT, path_of, still
from benchmarks.peers import FOLDER, write_tree
from benchmarks.trust import tau
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import StoreError
from tinygpu.machines.hopper import Hopper
from tinygpu.search.time.cost import cost
from tinygpu.search.time.fitted import FITTED
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

__all__ = ["CARDS", "Bank", "figures", "load_bank", "numbers", "predicted", "table", "terms",
           "total_loss"]  # fmt: skip

Times = NDArray[np.float64]
Numbers = Mapping[str, float]
CARDS = ("h100", "h200")
NAMES = tuple(FITTED)[tuple(FITTED).index("tma_issue") :]
"""Numbers about statements of whole tiles."""
NOT_FITTED = ("registers", "tmem_epilogue")
"""Numbers that hardly any of these runs depends on."""
BOUNDS = {
    "smem_share": (0.7, 1.0), "tma_dram_share": (0.8, 1.0), "tensor_share": (0.85, 1.0),
    "epilogue": (1.0, 20.0), "landing": (0.4, 1.2), "early": (0.3, 1.0), "l2_misses": (0.3, 1.2),
    "arrive": (15.0, 40.0), "proxy_fence": (20.0, 150.0), "product_end": (60.0, 200.0),
    "multicast": (0.3, 1.0), "tile_power": (4.0, 60.0), "late": (0.0, 2.0), "apart": (0.0, 0.6),
    "fill_share": (0.3, 1.0), "next": (20.0, 600.0), "tma_latency": (2.0, 8.0),
    "mbarrier_latency": (1.5, 4.0), "cluster_latency": (1.0, 3.0), "prologue": (500.0, 2000.0),
    "loaded_latency": (1.0, 1.5), "dram_seconds": (5e-7, 1.3e-6), "tma_l2_rate": (1.8, 2.5),
}  # fmt: skip
FEW = (1, 8)


@dataclass(frozen=True)
class Bank:
    """Measured schedules of one case: seconds as logarithms, of shape (schedules,); NaN: none.

    ``rows`` are the schedules' values of ``decisions``.
    """

    decisions: tuple[str, ...]
    shape: tuple[int, int, int]
    rows: tuple[tuple[Any, ...], ...]
    log_seconds: Times
    dtype: str = "bf16"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the problem."""
        return dict(zip("mnk", self.shape, strict=True))


@cache
def load_bank(card: str, *, held_out: bool) -> tuple[Bank, ...]:
    """Read a card's cases that are held out, or those that are not.

    Raises StoreError where a file is missing or odd.
    """
    found = []
    for case in HELD_OUT if held_out else FITTING:
        if case[0] != "hopper":
            continue
        path = path_of(case, FOLDER.parent / card / "oracle")
        try:
            tree = still(json.loads(path.read_text(encoding="utf-8")))
            visits = np.array([tree["first"], tree["second"]], dtype=float)
            choices = Hopper.decisions()
            newer = [
                n for n in choices if n not in tree["decisions"] and choices[n].before is not None
            ]
            before = tuple(choices[n].before for n in newer)
            names = (*tree["decisions"], *newer)
            rows = tuple((*row, *before) for row in tree["schedules"])
            _, dtype, _, (m, n, k) = tree["case"]
            means = np.log(visits).mean(axis=0)
            found.append(Bank(names, (m, n, k), rows, means, dtype))
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise StoreError(
                f"runs {path}: not readable ({error}); it is in the repository"
            ) from None
    return tuple(found)


def terms(bank: Bank) -> list[tuple[NDArray[np.int64], Program]]:
    """Return terms of many schedules each: one for each choice of the structural decisions."""
    choices = Hopper.decisions()
    structural = [i for i, n in enumerate(bank.decisions) if choices[n].structural]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(bank.rows):
        groups.setdefault(tuple(row[j] for j in structural), []).append(i)
    found = []
    for members in groups.values():
        chosen = {
            name: bank.rows[members[0]][j]
            if j in structural
            else np.array([bank.rows[i][j] for i in members])
            for j, name in enumerate(bank.decisions)
        }
        program = Hopper().program(matmul(bank.dtype, layout="nt"), Chosen(chosen))
        found.append((np.array(members), program))
    return found


def predicted(of: Sequence[tuple[NDArray[np.int64], Program]], bank: Bank, device: Device) -> Times:
    """Return the logarithms of predicted seconds, of shape (schedules,)."""
    found = np.full(len(bank.rows), np.nan)
    for members, program in of:
        found[members] = np.log(cost(program, bank.sizes, device).seconds)
    return found


@contextmanager
def numbers(values: Numbers) -> Iterator[None]:
    """Let the model use these numbers for a while."""
    used = cast("dict[str, float]", FITTED)
    before = dict(used)
    used.update(values)
    try:
        yield
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


def table(name: str, card: str) -> list[dict[str, Any]]:
    """Return rows of figures of a card's held-out cases, and their mean.

    That is geometric of ``top n``.  ``name`` says what the numbers were fitted on.
    """
    rows: list[dict[str, Any]] = []
    for bank in load_bank(card, held_out=True):
        found = figures(bank.log_seconds, predicted(terms(bank), bank, load_device(card)))
        shape = "x".join(map(str, bank.shape))
        rows.append({"fitted on": name, "card": card, "shape": shape, **found})
    mean: dict[str, Any] = {"fitted on": name, "card": card, "shape": "all"}
    for field in list(rows[0])[3:]:
        values = np.array([row[field] for row in rows])
        top = field.startswith("top")
        mean[field] = float(np.exp(np.log(values).mean()) if top else values.mean())
    rows.append(mean)
    return [{n: round(v, 4) if isinstance(v, float) else v for n, v in r.items()} for r in rows]


def total_loss(cards: Sequence[str]) -> Callable[[Numbers], float]:
    """Return the loss that is made small."""
    every = [
        (load_device(card), [(bank, terms(bank)) for bank in load_bank(card, held_out=False)])
        for card in cards
    ]

    def of_case(bank: Bank, model: Times) -> float:
        there = np.isfinite(bank.log_seconds) & np.isfinite(model)
        measured = bank.log_seconds[there]
        weights = np.exp(-2 * (measured - measured.min()))
        error = np.minimum(np.abs(model[there] - measured), 1.0)
        return float((weights * error).sum() / weights.sum())

    def loss(values: Numbers) -> float:
        if any(not least <= values[name] <= most for name, (least, most) in BOUNDS.items()):
            return math.inf
        with numbers(values):
            return float(
                np.mean([
                    np.mean([of_case(bank, predicted(of, bank, device)) for bank, of in cases])
                    for device, cases in every
                ])
            )  # fmt: skip

    return loss


def main(arguments: Sequence[str] | None = None) -> None:
    """Refit if asked, and print the numbers and the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_hopper")
    parser.add_argument("--rounds", type=int, default=0, help="passes over the numbers")
    parser.add_argument("--cards", nargs="+", choices=CARDS, default=CARDS, help="to fit on")
    parser.add_argument("--numbers", type=Path, help="a file of numbers to start from")
    parser.add_argument("--write", metavar="NAME", help="write results/hopper_model.json")
    given = parser.parse_args(arguments)
    words = " ".join(sys.argv[1:] if arguments is None else arguments)
    values = {name: FITTED[name] for name in NAMES}
    path = FOLDER.parent / "hopper_model.json"
    try:
        if given.numbers:
            values |= json.loads(given.numbers.read_text(encoding="utf-8"))
        if given.rounds:
            names = [name for name in values if name not in NOT_FITTED]
            values = refit(total_loss(given.cards), values, names=names, rounds=given.rounds)
        for name, value in values.items():
            sys.stdout.write(f"{name}: {value:.3g}\n")
        with numbers(values):
            rows = [row for card in CARDS for row in table(given.write or "", card)]
        for row in rows:
            sys.stdout.write("  ".join(f"{n} {v}" for n, v in row.items()) + "\n")
        if given.write:
            tree = json.loads(path.read_text(encoding="utf-8"))
            kept = [row for row in tree["rows"] if row["fitted on"] != given.write]
            record = provenance(f"python -m benchmarks.fit_hopper {words}")
            write_tree(path, {"provenance": record, "rows": kept + rows})
    except (OSError, StoreError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
