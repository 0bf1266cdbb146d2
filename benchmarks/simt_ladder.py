"""The SGEMM ladder and the best found beside cuBLAS: ``python -m benchmarks.simt_ladder``.

Two groups of rows, each measured beside cuBLAS in one process:

- *ladder*: every named point of ``simt`` at 4096^3;
- *main*: at 2048^3, 4096^3 and 8192^3 the fastest schedule found.  The first ``--top`` of the
  model, an equal number of each structure (pipeline, layout, edges, split), are validated and timed
  coarsely, with what won at other sizes before; then single changes of the fastest of each
  pipeline, step by step (all of these in ``simt_top.json``); the best 8 are timed again, for many
  rounds.  The row is the fastest of that last timing.

cuBLAS is PyTorch's matmul with fp32 products (TF32 off).  ``--parts`` picks what is run: each part
takes minutes, writes its rows when it is done, and replaces what was there of it.  Coarse times
are kept in ``simt_ladder.jsonl``, so that a part that was stopped goes on.

Ranking takes minutes on one core, which a machine with a GPU need not spend: ``--rank-only FILE``
ranks elsewhere (size by size, replacing those sizes in the file), ``--schedules FILE`` reads that.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import FOLDER, load_rows, write_results, write_tree
from tinygpu.codegen.measure import Options, measure
from tinygpu.codegen.provenance import provenance
from tinygpu.device import load_device
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.laws import check_schedule
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.measurement import Measurement, Results
from tinygpu.operation import Problem, matmul
from tinygpu.schedule import Schedule
from tinygpu.search.best import rank
from tinygpu.search.cost import cost
from tinygpu.search.descent import descend, neighbours
from tinygpu.search.store import Store
from tinygpu.space import Space

__all__ = [
    "Candidate",
    "best_found",
    "kept",
    "ladder",
    "load_candidates",
    "main",
    "ranked",
    "save_candidates",
    "square",
]

SIZES = (2048, 4096, 8192)
LADDER_SIZE = 4096
PEER = "benchmarks.peers:torch_matmul"
PEER_NAME = "cuBLAS fp32"
DISTINCT = ("tile_m", "tile_n", "thread_m", "thread_n")
STRUCTURES: tuple[dict[str, int | str], ...] = tuple(
    {"pipeline": pipeline, "a_layout": layout, "edges": edges, "combine": combine}
    for pipeline in ("register", "cp.async")
    for layout in ("km", "mk")
    for edges, combine in (("guard", "st"), ("exact", "st"), ("guard", "red"))
)
DESCENTS = 5
PARTS = ("ladder", *map(str, SIZES))
FINALISTS = 8
COARSE = Options(rounds=3, limit_seconds=60.0)
FINE = Options(rounds=25, limit_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its predicted seconds."""

    schedule: Schedule
    predicted_seconds: float


def square(size: int) -> Problem:
    """Return the fp32 matmul of two square matrices."""
    return Problem.of(matmul(), m=size, n=size, k=size)


def ranked(size: int, top: int) -> list[Candidate]:
    """Return the model's best schedules of each structure, which it cannot tell apart well."""
    found = []
    for structure in STRUCTURES:
        fixed = {"accumulator": "f32", "a_from": "smem", "b_from": "smem", **structure}
        space = Space(Simt(), square(size), load_device("h200"), fixed=fixed)
        best = rank(space, top // len(STRUCTURES), distinct=DISTINCT, exact=False).best
        found += [Candidate(r.schedule, r.seconds) for r in best]
    return sorted(found, key=lambda c: c.predicted_seconds)


def save_candidates(path: Path, found: Mapping[int, Sequence[Candidate]], command: str) -> None:
    """Write candidates by size.  Raises StoreError where that fails."""
    rows = [
        {
            "size": size,
            "predicted_seconds": c.predicted_seconds,
            "schedule": dict(c.schedule.decisions),
        }
        for size, candidates in found.items()
        for c in candidates
    ]
    write_tree(path, {"provenance": provenance(command), "rows": rows})


def load_candidates(path: Path) -> dict[int, list[Candidate]]:
    """Read what ``save_candidates`` wrote.  Raises ScheduleError for a schedule that is none."""
    found: dict[int, list[Candidate]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        one = Candidate(Schedule.of(Simt(), row["schedule"]), float(row["predicted_seconds"]))
        found.setdefault(int(row["size"]), []).append(one)
    return found


@contextmanager
def kept(path: Path) -> Iterator[Results]:
    """Keep measurements in a file of JSON lines: read at first, each new one added at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Store(":memory:") as store, path.open("a+", encoding="utf-8") as file:
        file.seek(0)
        whole = file.read().rpartition("\n")[0]  # a line that was being written is lost
        file.truncate(len(whole.encode()) + bool(whole))
        store.import_lines(io.StringIO(whole))
        yield _Kept(store, file)


class _Kept:
    """A store whose every ``put`` also goes to a file of lines."""

    def __init__(self, store: Store, file: Any) -> None:
        self._store, self._file = store, file
        self.get = store.get

    def put(self, measurement: Measurement) -> None:
        self._store.put(measurement)
        self._file.write(measurement.to_json() + "\n")
        self._file.flush()


def ladder(size: int = LADDER_SIZE, *, options: Options = FINE) -> list[dict[str, Any]]:
    """Measure every named point; return the rows.  Raises LaunchError where cuBLAS did not run."""
    problem, device = square(size), load_device("h200")
    points = {name: Schedule.of(Simt(), values) for name, values in LADDER.items()}
    *ours, theirs = measure(list(points.values()), Simt(), problem, peers=(PEER,), options=options)
    peer_seconds = _seconds(theirs)
    rows = []
    for (name, schedule), m in zip(points.items(), ours, strict=True):
        program = schedule.program(Simt(), problem.operation)
        predicted = float(cost(program, problem.sizes, device).seconds)
        rows.append(_row("ladder", name, size, Candidate(schedule, predicted), m, peer_seconds))
    return rows


def best_found(
    size: int,
    candidates: Sequence[Candidate],
    store: Results,
    *,
    coarse: Options = COARSE,
    fine: Options = FINE,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of the fastest candidate, and one of each candidate's coarse time.

    Raises LaunchError if no candidate is right, or cuBLAS did not run.
    """
    problem, device = square(size), load_device("h200")
    pairs: list[tuple[Candidate, Measurement]] = []
    peers: list[Measurement] = []
    predicted = {c.schedule: c.predicted_seconds for c in candidates}

    def evaluate(schedules: Sequence[Schedule]) -> list[float]:
        *ours, theirs = measure(
            schedules, Simt(), problem, store=store, peers=(PEER,), options=coarse
        )
        peers.append(theirs)
        for schedule, measurement in zip(schedules, ours, strict=True):
            if schedule not in predicted:
                program = schedule.program(Simt(), problem.operation)
                predicted[schedule] = float(cost(program, problem.sizes, device).seconds)
            pairs.append((Candidate(schedule, predicted[schedule]), measurement))
        return [math.inf if m.seconds is None else m.seconds for m in ours]

    def near(schedule: Schedule) -> list[Schedule]:
        return [
            s for s in neighbours(schedule, Simt(), problem, device) if s["accumulator"] == "f32"
        ]

    schedules = [*dict.fromkeys(c.schedule for c in candidates)]
    known = dict(zip(schedules, evaluate(schedules), strict=True))
    for pipeline in dict.fromkeys(s["pipeline"] for s in schedules):
        mine = {s: seconds for s, seconds in known.items() if s["pipeline"] == pipeline}
        known |= descend(mine, near, evaluate, rounds=DESCENTS)
    first = [m for _, m in pairs]
    candidates = [c for c, _ in pairs]
    coarse_peer = peers[0]
    rows = [_row("top", "matmul", size, c, m, coarse_peer.seconds) for c, m in pairs]
    right = sorted((m.seconds, i) for i, m in enumerate(first) if m.seconds is not None)
    if not right:
        raise LaunchError(f"matmul {size}: none of {len(first)} ran; first: {first[0].reason}")
    finalists = [candidates[i] for _, i in right[:FINALISTS]]
    *last, theirs = measure(
        [c.schedule for c in finalists], Simt(), problem, peers=(PEER,), options=fine
    )
    peer_seconds = _seconds(theirs)
    timed = [(m.seconds, i) for i, m in enumerate(last) if m.seconds is not None]
    if not timed:
        raise LaunchError(f"matmul {size}: no finalist ran again; first: {last[0].reason}")
    _, best = min(timed)
    return _row("main", "matmul", size, finalists[best], last[best], peer_seconds), rows


def _winners(folder: Path, size: int) -> list[Candidate]:
    """Return the schedules that won at other sizes, where they are legal at this one."""
    problem, device, found = square(size), load_device("h200"), []
    for row in load_rows("simt_ladder", folder):
        schedule = Schedule.of(Simt(), row["schedule"])
        if row["group"] == "main" and not check_schedule(schedule, Simt(), problem, device):
            program = schedule.program(Simt(), problem.operation)
            seconds = float(cost(program, problem.sizes, device).seconds)
            found.append(Candidate(schedule, seconds))
    return found


def _seconds(peer: Measurement) -> float:
    if peer.seconds is None:
        raise LaunchError(f"{PEER_NAME}: {peer.reason}")
    return peer.seconds


def _row(
    group: str,
    case: str,
    size: int,
    candidate: Candidate,
    measurement: Measurement,
    peer_seconds: float | None,
) -> dict[str, Any]:
    return {
        "group": group,
        "case": case,
        "m": size,
        "n": size,
        "k": size,
        "dtype": "f32",
        "schedule": dict(candidate.schedule.decisions),
        "predicted_seconds": candidate.predicted_seconds,
        "seconds": measurement.seconds,
        "peer": PEER_NAME,
        "peer_seconds": peer_seconds,
        "error": measurement.error,
    }


def _report(row: Mapping[str, Any]) -> None:
    flops = 2 * row["m"] * row["n"] * row["k"]
    if row["seconds"] is None:
        line = "failed"
    else:
        line = f"{flops / row['seconds'] * 1e-12:.2f} TFLOP/s, "
        line += f"{row['peer_seconds'] / row['seconds']:.3f} of {row['peer']}, "
        line += f"{row['predicted_seconds'] / row['seconds']:.2f} of its time predicted"
    sys.stdout.write(f"{row['group']} {row['case']} {row['m']}: {line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and write ``simt_ladder.json`` and ``simt_top.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simt_ladder")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--top", type=int, default=96, help="schedules of the model to measure")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rank-only", type=Path, metavar="FILE", help="rank and write, no GPU")
    parser.add_argument("--schedules", type=Path, metavar="FILE", help="what --rank-only wrote")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m benchmarks.simt_ladder", *words))
    sizes = [int(part) for part in given.parts if part != "ladder"]
    try:
        if given.rank_only:
            found = load_candidates(given.rank_only) if given.rank_only.exists() else {}
            for size in sizes:
                found[size] = ranked(size, given.top)
                save_candidates(given.rank_only, found, command)
            return
        read = load_candidates(given.schedules) if given.schedules else {}
        if "ladder" in given.parts:
            rows = ladder()
            record = provenance(command)  # now: the clock is that of a busy GPU
            write_results("simt_ladder", rows, record, given.out, instead_of={"group": "ladder"})
            for row in rows:
                _report(row)
        for size in sizes:
            candidates = (read[size] if size in read else ranked(size, given.top))[: given.top]
            candidates = [*candidates, *_winners(given.out, size)]
            with kept(given.out / "simt_ladder.jsonl") as store:
                row, top = best_found(size, candidates, store)
            record = provenance(command)
            write_results("simt_top", top, record, given.out, instead_of={"m": size})
            old = {"group": "main", "m": size}
            write_results("simt_ladder", [row], record, given.out, instead_of=old)
            _report(row)
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
