"""Matmuls beside their peers: what ``tinygpu search --measure`` finds, case by case.

For each case the model's best of every spread are ranked, and ``tinygpu.search.tuning.climb.tune``
searches from them with a budget; its finalists stand beside the best two of each module of peers
(PyTorch, cuBLASLt, Triton) round robin under sustained load.  Nothing is chosen by hand.

A row is the fastest finalist.  ``place`` is the place of its spread in the model's ranking (none:
not among the ``RANKED`` first), ``evaluations`` counts what was measured on the way.  ``peer`` is
the fastest of PyTorch and cuBLASLt, ``triton`` of Triton.  A schedule that starts ``early``, before
the launch ahead of it ends, gains what no peer here can; ``seconds_in_order`` is of the fastest
that does not.  ``first_seconds`` is of the model's first choice, which needs no measurement.

    --parts ...     some cases; --missing: those that have no row yet
    --seconds N     the budget of a case
    --share I/N     every N-th case from I on: processes for each GPU of a host, each with an
                    --out of its own; those of one GPU take turns to measure
    --merge DIR ..  take over the rows of such folders

Rows go to ``NAME.json``; what is measured on the way is kept in ``NAME.db``, so that a run that was
stopped goes on.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import FOLDER, load_rows, load_runs, write_results
from tinygpu.codegen.run.measure import peer_of
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, StoreError, TinyGpuError
from tinygpu.search.exact.best import rank
from tinygpu.search.neighbourhood import Candidate
from tinygpu.search.store import Store
from tinygpu.search.tuning.climb import CUBLASLT, Effort, Tuned, climb
from tinygpu.space.measurement import Measurement, Results
from tinygpu.space.space import Space
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem, matmul

__all__ = ["FIELDS", "Case", "case", "main", "row_of", "run", "summary"]

DEVICE = "h200"
TORCH = "benchmarks.peers"
FIELDS = (
    *("place", "evaluations", "settled", "seconds_in_order", "first_seconds"),
    *("triton", "triton_seconds"),
    *("clock_mhz", "peer_clock_mhz", "peer_error", "capped", "spread"),
)
"""The fields of a row beside the usual ones."""
RANKED = 96
"""Schedules of the model, one for each spread."""
_ALL_PEERS = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A problem of a group; ``part`` names it on the command line, ``name`` in the results."""

    group: str
    part: str
    name: str
    problem: Problem

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(size for _, size in self.problem.extents)


def case(group: str, m: int, n: int, k: int, dtype: str, layout: str = "nt") -> Case:
    """Return the case of a plain matmul."""
    size = str(m) if m == n == k else f"{m}x{n}x{k}"
    part = size if group == "main" else f"{dtype}-{layout}-{size}"
    problem = Problem.of(matmul(dtype, layout=layout), m=m, n=n, k=k)
    return Case(group, part, f"matmul {layout}", problem)


def run(
    one: Case,
    machine: Machine,
    modules: Sequence[str],
    *,
    store: Results | None,
    effort: Effort,
    fixed: Mapping[str, Value | tuple[Value, ...]] | None = None,
) -> dict[str, Any]:
    """Search for a case; return its row.  Raises LaunchError if nothing can be compared."""
    space = Space(machine, one.problem, load_device(DEVICE), fixed=fixed)
    ranked = rank(space, RANKED, spread=machine.spread, exact=False).best
    first = [Candidate(r.schedule, r.seconds) for r in ranked]

    def tell(done: int, _: int | None, best: float) -> None:
        took = time.monotonic() - began
        _say(f"{one.part}: {took:.0f} s, {done} evaluated, {best * 1e6:.2f} us")

    with _turn():
        began = time.monotonic()
        found = climb(
            [space], first, store=store, effort=effort, peers=(TORCH, CUBLASLT, *modules),
            most_peers=_ALL_PEERS, tell=tell,
        )  # fmt: skip
    spreads = [_spread(machine, r.schedule) for r in ranked]
    return row_of(one, machine, found, spreads)


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other process of this benchmark measures on this GPU: one ranks meanwhile."""
    name = f"tinygpu-benchmark-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"
    with Path(tempfile.gettempdir(), name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def row_of(
    one: Case, machine: Machine, found: Tuned, spreads: Sequence[tuple[Value, ...]]
) -> dict[str, Any]:
    """Return the row of what was found; ``spreads`` in the order of the model."""
    candidate, mine = found.finalists[0]
    triton = [m for m in found.peers if "triton" in peer_of(m)]
    libraries = [m for m in found.peers if m not in triton]
    if mine.seconds is None or not libraries:
        raise LaunchError(f"{one.part}: nothing to compare: {mine.reason or 'no library ran'}")
    in_order = [
        m.seconds
        for c, m in found.finalists
        if m.seconds
        and not c.schedule.program(machine, one.problem.operation).early
    ]  # fmt: skip
    mine_spread = _spread(machine, candidate.schedule)
    return {
        "group": one.group,
        "case": one.name,
        **{axis: one.problem.sizes[axis] for axis in "mnk"},
        "dtype": one.problem.operation.inputs[0].dtype,
        "schedule": dict(candidate.schedule.decisions),
        "predicted_seconds": candidate.predicted_seconds,
        "seconds": mine.seconds,
        "peer": _short(libraries[0]),
        "peer_seconds": libraries[0].seconds,
        "error": mine.error,
        "place": spreads.index(mine_spread) + 1 if mine_spread in spreads else None,
        "evaluations": len(found.evaluated),
        "settled": found.settled,
        "seconds_in_order": min(in_order, default=None),
        "first_seconds": found.first_seconds,
        "triton": _short(triton[0]) if triton else "",
        "triton_seconds": triton[0].seconds if triton else None,
        "clock_mhz": mine.clock_mhz,
        "peer_clock_mhz": libraries[0].clock_mhz,
        "peer_error": libraries[0].error,
        "capped": mine.capped,
        "spread": mine.spread,
    }


def _spread(machine: Machine, schedule: Any) -> tuple[Value, ...]:
    return tuple(schedule[name] for name in machine.spread)


def _short(peer: Measurement) -> str:
    """Return a peer's name without the package: ``cublaslt algorithm_3``."""
    module, _, function = peer_of(peer).partition(":")
    return f"{module.rpartition('.')[2]} {function}".removeprefix("peers ")


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return, by group, the geometric means and the worst of the ratios to the peers.

    A ratio is the peer's time over ours: above 1 we are faster.  "all": the fastest of all peers.
    """
    found: dict[str, Any] = {}
    for row in rows:
        if not row["seconds"] or not row["peer_seconds"]:
            continue
        theirs = {"library": row["peer_seconds"], "triton": row.get("triton_seconds")}
        theirs["all"] = min(t for t in theirs.values() if t)
        shape = f"{row['m']}x{row['n']}x{row['k']}"
        of = found.setdefault(row["group"], {})
        for name, seconds in theirs.items():
            if seconds:
                of.setdefault(name, {})[f"{row['case']} {shape}"] = seconds / row["seconds"]
        for field, name in (("seconds_in_order", "in order"), ("first_seconds", "first choice")):
            if row.get(field):
                ratio = theirs["all"] / row[field]
                of.setdefault(f"all, {name}", {})[f"{row['case']} {shape}"] = ratio
    return {
        group: {
            name: {
                "shapes": len(ratios),
                "geometric mean": round(statistics.geometric_mean(ratios.values()), 4),
                "worst": round(min(ratios.values()), 4),
                "worst shape": min(ratios, key=lambda shape: ratios[shape]),
            }
            for name, ratios in peers.items()
        }
        for group, peers in found.items()
    }


def main(
    name: str,
    machine: Machine,
    cases: Sequence[Case],
    arguments: Sequence[str] | None = None,
    *,
    peers: Sequence[str] = (),
    fixed: Mapping[str, Value] | None = None,
) -> None:
    """Do what the command line of ``benchmarks.NAME`` says."""
    parts = [one.part for one in cases]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=parts, metavar="PART", default=parts)
    parser.add_argument("--missing", action="store_true", help="only parts that have no row yet")
    parser.add_argument("--seconds", type=float, default=60.0, help="the budget of a case")
    parser.add_argument("--share", type=_share, default="0/1", help="every N-th case, as 0/4")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="DIR", help="take over rows")
    asked = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join((f"python -m benchmarks.{name}", *_told(words)))
    chosen = [one for one in cases if one.part in asked.parts][asked.share]
    failed: list[str] = []
    try:
        record = {}
        for folder in asked.merge or ():
            record = _merge(name, folder, asked.out)
        if asked.missing:
            there = {_identity(row) for row in load_rows(name, asked.out)}
            chosen = [one for one in chosen if _identity_of(one) not in there]
        for one in () if asked.merge else chosen:
            asked.out.mkdir(parents=True, exist_ok=True)
            with Store(asked.out / f"{name}.db") as store:
                try:
                    effort = Effort(seconds=asked.seconds, finalists=10)
                    row = run(one, machine, peers, store=store, effort=effort, fixed=fixed)
                except LaunchError as error:
                    _say(str(error))
                    failed.append(str(error))
                    continue
            record = _record(command)  # now: the clock is that of a busy GPU
            old = {f: row[f] for f in ("group", "case", "dtype", "m", "n", "k")}
            write_results(name, [row], record, asked.out, instead_of=old, fields=FIELDS)
            _say(_text(one, row))
        told = summary(load_rows(name, asked.out))
        record = record or _record(command)
        write_results(name, [], record, asked.out, fields=FIELDS, beside={"summary": told})
        for group, of_group in told.items():
            for peer, one_summary in of_group.items():
                _say(f"{group}, {peer}: " + ", ".join(f"{k} {v}" for k, v in one_summary.items()))
    except TinyGpuError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(f"{len(failed)} of {len(chosen)} parts failed; the first: {failed[0]}")


def _told(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the folder of its results."""
    kept = list(words)
    if "--out" in kept:
        del kept[kept.index("--out") : kept.index("--out") + 2]
    return kept


def _share(text: str) -> slice:
    """Read I/N, as argparse asks for it."""
    mine, _, of = text.partition("/")
    if not 0 <= int(mine) < int(of):
        raise ValueError(text)
    return slice(int(mine), None, int(of))


def _merge(name: str, folder: Path, out: Path) -> dict[str, Any]:
    """Take over the rows of another folder, each with its run; return that of the last.

    Raises StoreError without any.
    """
    rows, runs = load_runs(name, folder)
    if not rows:
        raise StoreError(f"results {folder / name}.json: there are no results; measure them first")
    for numbered in rows:
        row = {field: value for field, value in numbered.items() if field != "run"}
        old = {f: row[f] for f in ("group", "case", "dtype", "m", "n", "k")}
        write_results(name, [row], runs[numbered["run"]], out, instead_of=old, fields=FIELDS)
    return dict(runs[rows[-1]["run"]])


def _text(one: Case, row: Mapping[str, Any]) -> str:
    def rate(seconds: float) -> str:
        return f"{one.flops / seconds * 1e-12:.1f}"

    line = f"{row['group']} {one.part}: {rate(row['seconds'])} TFLOP/s, "
    line += f"{row['peer_seconds'] / row['seconds']:.3f} of {row['peer']}"
    line += f" ({rate(row['peer_seconds'])})"
    if row["seconds_in_order"] not in (None, row["seconds"]):
        line += f", in order {row['peer_seconds'] / row['seconds_in_order']:.3f}"
    if row["first_seconds"]:
        line += f", first choice {row['peer_seconds'] / row['first_seconds']:.3f}"
    if row["triton_seconds"]:
        line += f", {row['triton_seconds'] / row['seconds']:.3f} of {row['triton']}"
    line += f", {row['predicted_seconds'] / row['seconds']:.2f} of its time predicted"
    line += f", place {row['place']}, {row['evaluations']} evaluations"
    line += ", settled" * row["settled"] + f", {row['clock_mhz']} MHz" + " capped" * row["capped"]
    return f"{line}; " + " ".join(f"{n}={v}" for n, v in row["schedule"].items())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _record(command: str) -> dict[str, Any]:
    """Return the provenance of a run, with the versions of the peers."""

    def versions() -> Iterator[tuple[str, str]]:
        for package in ("torch", "triton", "nvidia-cublas"):
            try:
                yield package, importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                yield package, "none"

    return {**provenance(command), **dict(versions())}


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[f] for f in ("group", "case", "dtype", "m", "n", "k"))


def _identity_of(one: Case) -> tuple[Any, ...]:
    dtype = one.problem.operation.inputs[0].dtype
    return (one.group, one.name, dtype, *(one.problem.sizes[axis] for axis in "mnk"))
