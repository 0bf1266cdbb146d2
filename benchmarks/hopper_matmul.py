"""The Hopper matmul beside cuBLASLt, PyTorch and Triton: ``python -m benchmarks.hopper_matmul``.

For each case (``hopper_cases.py``), in one worker process:

1. every candidate schedule and every peer is validated on fresh data and timed coarsely: PyTorch's
   matmul, each algorithm of cuBLASLt's heuristic list, each Triton configuration (``peers_of``);
2. the ``FINALISTS`` fastest schedules, PyTorch, and the best two each of cuBLASLt and Triton are
   validated and timed again, interleaved, after ``WARM_SECONDS`` of continuous load, so that the
   clock is what the power cap allows.

A row is the fastest of that last timing; ``peer`` is the fastest of PyTorch and cuBLASLt.  A
schedule that starts ``early``, before the launch ahead of it ends, gains what no peer here can;
``seconds_in_order`` is of the fastest that does not.  A peer that fails is told of and left out.

    --rank FILE       write schedules, the model's best and those by hand; needs no GPU
    --schedules FILE  measure those; else only those written by hand
    --parts ...       some cases; --missing: those that have no row yet
    --peers-only      the peers alone, each with its TFLOP/s: a test of the peers themselves

Rows go to ``hopper_matmul.json``, coarse ones to ``hopper_coarse.json``, part by part.  Coarse
times are kept in ``hopper_matmul.jsonl``, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import cublaslt, triton_matmul
from benchmarks.hopper_cases import (
    CASES,
    Candidate,
    Case,
    candidates,
    load_candidates,
    ranked,
    save,
)
from benchmarks.peers import FOLDER, load_rows, write_results
from benchmarks.simt_ladder import kept
from tinygpu.codegen.measure import Options, measure
from tinygpu.codegen.provenance import provenance
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.machines.hopper import Hopper
from tinygpu.measurement import Measurement, Results
from tinygpu.operation import Problem
from tinygpu.schedule import Schedule

__all__ = ["FIELDS", "compare", "main", "peers_of", "summary"]

TORCH = "benchmarks.peers:torch_matmul"
CUBLASLT = "benchmarks.cublaslt:"
TRITON = "benchmarks.triton_matmul:"
FIELDS = (
    *("seconds_in_order", "triton", "triton_seconds"),
    *("clock_mhz", "peer_clock_mhz", "peer_error", "capped", "spread", "reason"),
)
"""The fields of a row beside the usual ones: Triton's best, the clocks while they ran."""
FINALISTS = 8
BEST_PEERS = 2
WARM_SECONDS = 0.6
PEER_ERROR = 8.0  # libraries take gelu from tanh.approx, and are off by 4 times what we are allowed
COARSE = Options(rounds=3, batch=128, limit_seconds=45.0, peer_error=PEER_ERROR)
FINE = replace(COARSE, rounds=31, batch=24, warm_seconds=WARM_SECONDS)

Timed = tuple[str, Measurement]


def peers_of(problem: Problem, algorithms: int) -> tuple[str, ...]:
    """Return the peers of a problem, of which cuBLASLt has ``algorithms``."""
    return (
        TORCH,
        *(f"{CUBLASLT}algorithm_{i}" for i in range(algorithms)),
        *(f"{TRITON}{one}" for one in triton_matmul.configurations(problem)),
    )


def compare(
    case: Case,
    given: Sequence[Candidate],
    peers: Sequence[str],
    store: Results,
    *,
    coarse: Options = COARSE,
    fine: Options = FINE,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of a case, and those of everything that was timed coarsely.

    Raises LaunchError if no candidate is right, or neither PyTorch nor cuBLASLt ran.
    """
    predicted = {c.schedule: c.predicted_seconds for c in given}
    schedules = list(predicted)
    ours, theirs = _measured(case, schedules, peers, coarse, store)
    rows = [_row("top", case, m, s, predicted[s]) for s, m in ours]
    rows += [_peer_row(case, name, m) for name, m in theirs]
    right = [s for s, _ in _fastest(ours)]
    in_order = [s for s in right if not s["early"]]
    first = list(dict.fromkeys((*right[:FINALISTS], *in_order[:1])))
    if not first:
        reason = ours[0][1].reason if ours else "there is none to try"
        raise LaunchError(f"{case.part}: none of {len(ours)} schedules ran; first: {reason}")
    ours, theirs = _measured(case, first, _best_peers(theirs), fine, None)
    libraries = _fastest([t for t in theirs if not t[0].startswith(TRITON)])
    triton = _fastest([t for t in theirs if t[0].startswith(TRITON)])
    best = _fastest(ours)
    if not best or not libraries:
        said = "; ".join(sorted({m.reason for _, m in (*ours, *theirs) if m.reason}))
        raise LaunchError(f"{case.part}: nothing to compare after the coarse round: {said}")
    schedule, measurement = best[0]
    peer, peer_measurement = libraries[0]
    row = _row(case.group, case, measurement, schedule, predicted[schedule])
    row |= {
        "seconds_in_order": next((m.seconds for s, m in best if not s["early"]), None),
        "peer": _short(peer),
        "peer_seconds": peer_measurement.seconds,
        "peer_clock_mhz": peer_measurement.clock_mhz,
        "peer_error": peer_measurement.error,
    }
    if triton:
        row |= {"triton": _short(triton[0][0]), "triton_seconds": triton[0][1].seconds}
    return row, rows


def _measured(
    case: Case,
    schedules: Sequence[Schedule],
    peers: Sequence[str],
    options: Options,
    store: Results | None,
) -> tuple[list[tuple[Schedule, Measurement]], list[Timed]]:
    progress = _progress(case.part)
    found = measure(
        schedules, Hopper(), case.problem,
        store=store, peers=peers, options=options, progress=progress,
    )  # fmt: skip
    mine, theirs = found[: len(schedules)], found[len(schedules) :]
    return list(zip(schedules, mine, strict=True)), list(zip(peers, theirs, strict=True))


def _best_peers(timed: Sequence[Timed]) -> list[str]:
    """Return PyTorch and the best of cuBLASLt and of Triton, as far as they ran."""
    names = [name for name, _ in _fastest(timed)]
    chosen = [name for name in names if name == TORCH]
    for prefix in (CUBLASLT, TRITON):
        chosen += [name for name in names if name.startswith(prefix)][:BEST_PEERS]
    return chosen


def _fastest(timed: Sequence[tuple[Any, Measurement]]) -> list[tuple[Any, Measurement]]:
    """Return those that ran, the fastest first."""
    ran = [(one, m) for one, m in timed if m.seconds is not None]
    return sorted(ran, key=lambda t: t[1].seconds or 0.0)


def _short(peer: str) -> str:
    """Return a peer's name without the package: ``cublaslt algorithm_3``."""
    module, _, function = peer.partition(":")
    return f"{module.rpartition('.')[2]} {function}".removeprefix("peers ")


def _row(
    group: str,
    case: Case,
    measurement: Measurement,
    schedule: Schedule | None = None,
    predicted_seconds: float | None = None,
) -> dict[str, Any]:
    error = measurement.error
    return {
        "group": group,
        "case": case.name,
        **{axis: case.problem.sizes[axis] for axis in "mnk"},
        "dtype": case.problem.operation.output.dtype,
        "schedule": dict(schedule.decisions) if schedule else {},
        "predicted_seconds": predicted_seconds,
        "seconds": measurement.seconds if schedule else None,
        "peer": "",
        "peer_seconds": None,
        "error": error if math.isfinite(error) else str(error),
        "seconds_in_order": None,
        "triton": "",
        "triton_seconds": None,
        "clock_mhz": measurement.clock_mhz,
        "peer_clock_mhz": 0,
        "peer_error": None,
        "capped": measurement.capped,
        "spread": measurement.spread,
        "reason": measurement.reason,
    }


def _peer_row(case: Case, peer: str, measurement: Measurement) -> dict[str, Any]:
    row = _row("peers", case, measurement)
    return {**row, "peer": _short(peer), "peer_seconds": measurement.seconds}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the geometric means of the ratios to the peer and to Triton, and the worst shapes.

    A ratio is the peer's time over ours: above 1 we are faster.  Rows of the group "main" count.
    """
    found: dict[str, Any] = {}
    for name, field, mine in (
        ("peer", "peer_seconds", "seconds"),
        ("peer, in order", "peer_seconds", "seconds_in_order"),
        ("triton", "triton_seconds", "seconds"),
    ):
        ratios = {
            f"{r['m']}x{r['n']}x{r['k']}": r[field] / r[mine]
            for r in rows
            if r["group"] == "main" and r[field] and r[mine]
        }
        if ratios:
            logs = [math.log(ratio) for ratio in ratios.values()]
            worst = min(ratios, key=lambda shape: ratios[shape])
            found[name] = {
                "shapes": len(ratios),
                "geometric mean": round(math.exp(sum(logs) / len(logs)), 4),
                "worst": round(ratios[worst], 4),
                "worst shape": worst,
            }
    return found


def _progress(part: str) -> Callable[[int, int], None]:
    """Return what says now and then how far a part is."""

    def tell(done: int, every: int) -> None:
        if done == every or done % 16 == 0:
            _say(f"{part}: {done} of {every}")

    return tell


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _report(case: Case, row: Mapping[str, Any]) -> None:
    def rate(seconds: float) -> str:
        return f"{case.flops / seconds * 1e-12:.1f}"

    line = f"{row['group']} {case.part}: {rate(row['seconds'])} TFLOP/s, "
    line += f"{row['peer_seconds'] / row['seconds']:.3f} of {row['peer']}"
    line += f" ({rate(row['peer_seconds'])})"
    if row["seconds_in_order"] not in (None, row["seconds"]):
        line += f", in order {row['peer_seconds'] / row['seconds_in_order']:.3f}"
    if row["triton_seconds"]:
        line += f", {row['triton_seconds'] / row['seconds']:.3f} of {row['triton']}"
        line += f" ({rate(row['triton_seconds'])})"
    if row["predicted_seconds"]:
        line += f", {row['predicted_seconds'] / row['seconds']:.2f} of its time predicted"
    if row["clock_mhz"]:
        line += f", {row['clock_mhz']} MHz" + " capped" * row["capped"]
    chosen = row["schedule"]
    _say(line + "; " + " ".join(f"{name}={value}" for name, value in chosen.items()))


def _tell_peers(case: Case, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the peers, the fastest first, each with its TFLOP/s or why there are none."""
    for row in sorted(rows, key=lambda r: r["peer_seconds"] or math.inf):
        if row["peer_seconds"]:
            rate = case.flops / row["peer_seconds"] * 1e-12
            said = f"{rate:.1f} TFLOP/s, error {row['error']:.2f}"
        else:
            said = f"failed: {row['reason']}"
        _say(f"{case.part} {row['peer']}: {said}")


def _record(command: str) -> dict[str, Any]:
    """Return the provenance of a run, with the versions of the peers."""
    versions = {}
    for package in ("torch", "triton", "nvidia-cublas"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    return {**provenance(command), **versions}


def _algorithms(cases: Sequence[Case]) -> list[int]:
    """Return how many algorithms cuBLASLt has for each case; 0 where it cannot be used."""
    try:
        return cublaslt.count([case.problem for case in cases])
    except LaunchError as error:
        _say(f"left out: {error}")
        return [0] * len(cases)


def _run(
    cases: Sequence[Case],
    given: Mapping[str, Sequence[Candidate]],
    out: Path,
    command: str,
    *,
    peers_only: bool,
) -> Iterator[str]:
    """Measure cases and write their rows; yield what went wrong."""
    for case, algorithms in zip(cases, _algorithms(cases), strict=True):
        peers = peers_of(case.problem, algorithms)
        this = {"case": case.name, **{axis: case.problem.sizes[axis] for axis in "mnk"}}
        this["dtype"] = case.problem.operation.output.dtype
        with kept(out / "hopper_matmul.jsonl") as store:
            try:
                if peers_only:
                    theirs = _measured(case, (), peers, COARSE, store)[1]
                    coarse = [_peer_row(case, name, m) for name, m in theirs]
                    _tell_peers(case, coarse)
                else:
                    schedules = given.get(case.part) or [
                        Candidate(s) for s in candidates(case.problem)
                    ]
                    row, coarse = compare(case, schedules, peers, store)
            except LaunchError as error:
                _say(str(error))
                yield str(error)
                continue
        record = _record(command)  # now: the clock is that of a busy GPU
        mine = {"group": "peers", **this} if peers_only else this
        write_results("hopper_coarse", coarse, record, out, instead_of=mine, fields=FIELDS)
        if not peers_only:
            old = {"group": case.group, **this}
            write_results("hopper_matmul", [row], record, out, instead_of=old, fields=FIELDS)
            _report(case, row)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    parts = [case.part for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_matmul")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=parts, metavar="PART", default=parts)
    parser.add_argument("--missing", action="store_true", help="only parts that have no row yet")
    parser.add_argument("--peers-only", action="store_true", help="measure and check the peers")
    parser.add_argument("--rank", type=Path, metavar="FILE", help="rank and write, no GPU")
    parser.add_argument("--top", type=int, default=24, help="schedules of the model to rank")
    parser.add_argument("--schedules", type=Path, metavar="FILE", help="what --rank wrote")
    asked = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m benchmarks.hopper_matmul", *words))
    cases = [case for case in CASES if case.part in asked.parts]
    try:
        if asked.rank:
            found = load_candidates(asked.rank) if asked.rank.exists() else {}
            for case in cases:
                found[case.part] = ranked(case.problem, asked.top)
                save(asked.rank, found, command)
                _say(f"{case.part}: {len(found[case.part])} schedules")
            return
        given = load_candidates(asked.schedules) if asked.schedules else {}
        if asked.missing:
            there = {_identity(row) for row in load_rows("hopper_matmul", asked.out)}
            cases = [case for case in cases if _identity_of(case) not in there]
        failed = list(_run(cases, given, asked.out, command, peers_only=asked.peers_only))
        told = summary(load_rows("hopper_matmul", asked.out))
        if not asked.peers_only:
            beside = {"summary": told}
            record = _record(command)
            write_results("hopper_matmul", [], record, asked.out, fields=FIELDS, beside=beside)
        for name, one in told.items():
            _say(f"against {name}: " + ", ".join(f"{k} {v}" for k, v in one.items()))
    except TinyGpuError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(f"{len(failed)} of {len(cases)} parts failed; the first: {failed[0]}")


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[f] for f in ("group", "case", "dtype", "m", "n", "k"))


def _identity_of(case: Case) -> tuple[Any, ...]:
    dtype = case.problem.operation.output.dtype
    return (case.group, case.name, dtype, *(case.problem.sizes[axis] for axis in "mnk"))


if __name__ == "__main__":
    main()
