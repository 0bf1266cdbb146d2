"""Machines of one pass over memory beside PyTorch's kernels: what both such benchmarks share.

``compare`` measures the legal schedules among those given, validates each, times them interleaved
with the peers, and returns rows: one for each schedule (group "space"), and the fastest schedule
against every peer (group "main").  ``m`` is the size i, ``n`` the size j or 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tinygpu.codegen.measure import Options, measure
from tinygpu.device import load_device
from tinygpu.errors import LaunchError
from tinygpu.laws import check_schedule
from tinygpu.machine import Machine
from tinygpu.operation import Problem
from tinygpu.schedule import Schedule

__all__ = ["Case", "compare", "schedules"]


@dataclass(frozen=True, slots=True)
class Case:
    """A problem by its name in the results, its peers and its scalars."""

    name: str
    problem: Problem
    peers: tuple[str, ...]
    scalars: Mapping[str, float] = field(default_factory=dict)


def schedules(
    machine: Machine, problem: Problem, choices: Mapping[str, Sequence[int]], device: str = "h200"
) -> list[Schedule]:
    """Return the legal schedules in the product of ``choices``."""
    rates = load_device(device)
    every = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
    found = (Schedule.of(machine, values) for values in every)
    return [s for s in found if not check_schedule(s, machine, problem, rates)]


def compare(case: Case, machine: Machine, candidates: Sequence[Schedule]) -> list[dict[str, Any]]:
    """Return the rows of a case.  Raises LaunchError where no candidate ran, or no peer."""
    options = Options(scalars=case.scalars, batch=len(candidates), limit_seconds=180.0)
    found = measure(candidates, machine, case.problem, peers=case.peers, options=options)
    ours = list(zip(candidates, found[: len(candidates)], strict=True))
    theirs = list(zip(case.peers, found[len(candidates) :], strict=True))
    timed = [(m.seconds, s, m) for s, m in ours if m.seconds is not None]
    if not timed or all(m.seconds is None for _, m in theirs):
        reasons = {m.reason for m in found if m.seconds is None}
        raise LaunchError(f"{case.name}: nothing to compare: {'; '.join(sorted(reasons))}")
    seconds, best, measurement = min(timed, key=lambda t: t[0])
    rows = [_row(case, "space", s, m.seconds, error=m.error) for s, m in ours]
    for peer, m in theirs:
        name = peer.rpartition(":")[2]
        rows.append(
            _row(case, "main", best, seconds, peer=name, theirs=m.seconds, error=measurement.error)
        )
    _report(case, best, seconds, ((p, m.seconds) for p, m in theirs))
    return rows


def _row(
    case: Case,
    group: str,
    schedule: Schedule,
    seconds: float | None,
    *,
    peer: str = "",
    theirs: float | None = None,
    error: float,
) -> dict[str, Any]:
    sizes = case.problem.sizes
    return {
        "group": group,
        "case": case.name,
        "m": sizes["i"],
        "n": sizes.get("j", 1),
        "k": 1,
        "dtype": case.problem.operation.output.dtype,
        "schedule": dict(schedule.decisions),
        "predicted_seconds": None,
        "seconds": seconds,
        "peer": peer,
        "peer_seconds": theirs,
        "error": error,
    }


def _report(
    case: Case, best: Schedule, seconds: float, peers: Iterable[tuple[str, float | None]]
) -> None:
    moved = case.problem.operation.bytes(case.problem.sizes)
    dtype = case.problem.operation.output.dtype
    line = f"{case.name} {dtype}: {seconds * 1e6:.1f} us, {moved / seconds * 1e-12:.2f} TB/s"
    for peer, theirs in peers:
        ratio = f"{theirs / seconds:.3f}" if theirs else "failed"
        line += f"; {peer.rpartition(':')[2]} {ratio}"
    sys.stdout.write(f"{line}; {best}\n")
