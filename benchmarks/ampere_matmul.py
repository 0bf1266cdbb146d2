"""The mma.sync matmul beside cuBLASLt and Triton: ``python -m benchmarks.ampere_matmul``.

For each case, in one worker process, every candidate schedule and every peer is validated on fresh
data and timed coarsely; the fastest ``FINALISTS`` schedules, PyTorch, and the best three each of
cuBLASLt and Triton are validated and timed again, interleaved, under continuous load.  cuBLASLt
multiplies by wgmma on Hopper; Triton is held to mma.sync (``triton_mma.py``).  A row is the fastest
schedule of the last timing, ``peer`` the fastest of PyTorch and cuBLASLt.

    --parts ...       some cases
    --top N           schedules of the model beside those written by hand
    --list            print the schedules that would be measured; needs no GPU

Rows go to ``ampere_matmul.json``; coarse times are kept in ``ampere_matmul.jsonl``, so that a run
that was stopped goes on.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import cublaslt, triton_mma
from benchmarks.hopper_cases import Case
from benchmarks.peers import FOLDER, write_results
from benchmarks.simt_ladder import kept
from tinygpu.codegen.measure import Options, measure
from tinygpu.codegen.provenance import provenance
from tinygpu.device import load_device
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.laws import check_schedule
from tinygpu.machine import Value
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.measurement import Measurement, Results
from tinygpu.memory import DTYPES
from tinygpu.operation import Problem, matmul
from tinygpu.registers import predicted_spill
from tinygpu.schedule import Schedule
from tinygpu.search.best import rank
from tinygpu.search.cost import cost
from tinygpu.space import Space

__all__ = ["CASES", "FIELDS", "candidates", "compare", "main"]

DEVICE = "h200"
TORCH = "benchmarks.peers:torch_matmul"
CUBLASLT = "benchmarks.cublaslt:"
TRITON = "benchmarks.triton_mma:"
FIELDS = ("triton", "triton_seconds", "clock_mhz", "capped", "spread", "reason")
"""The fields of a row beside the usual ones: Triton's best by mma.sync, the clock while it ran."""
FINALISTS, BEST_PEERS = 8, 3
DISTINCT = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "stages", "epilogue")
COARSE = Options(rounds=3, batch=96, limit_seconds=45.0)
FINE = Options(rounds=21, warm_seconds=0.6, limit_seconds=45.0)

Timed = tuple[Any, Measurement]


def _case(group: str, size: int, dtype: str = "bf16", layout: str = "nt") -> Case:
    part = str(size) if group == "main" else f"{dtype}-{layout}-{size}"
    problem = Problem.of(matmul(dtype, layout=layout), m=size, n=size, k=size)
    return Case(group, part, f"matmul {layout}", problem)


CASES: tuple[Case, ...] = (
    *(_case("main", size) for size in (512, 1024, 2048, 4096, 8192)),
    *(_case("layouts", 4096, layout=layout) for layout in ("nn", "tn", "tt")),
    _case("f16", 4096, "f16"),
    *(_case("tf32", size, "tf32") for size in (1024, 4096)),
    _case("tf32", 4096, "tf32", "nn"),
)
"""Every case, the marks first."""

_TILES: tuple[tuple[int, int, int, int, int], ...] = (
    # tile_m, tile_n, warps_m, warps_n, ctas_per_sm
    (128, 256, 2, 4, 1),
    (256, 128, 4, 2, 1),
    (128, 128, 2, 2, 1),
    (128, 128, 2, 2, 2),
    (128, 128, 2, 4, 1),
    (128, 128, 4, 2, 2),
    (64, 256, 1, 4, 1),
    (256, 64, 4, 1, 1),
    (128, 64, 2, 2, 2),
    (64, 128, 2, 2, 2),
    (64, 64, 2, 2, 3),
)
_DEEP = (  # tile_k, stages, issue
    *((64, 3, 0), (64, 4, 1), (32, 3, 0), (32, 4, 0), (32, 5, 0), (64, 2, 1), (32, 4, 1)),
)


def candidates(problem: Problem, top: int = 12) -> dict[Schedule, float]:
    """Return the legal schedules written by hand and the model's best ``top``, with its seconds.

    Those of which the assembler would spill registers are left out.
    """
    machine, device = Ampere(), load_device(DEVICE)
    edges = "exact" if all(n % 256 == 0 for n in problem.sizes.values()) else "guard"
    tried = [
        Schedule.of(machine, values)
        for values in _by_hand(edges, DTYPES[problem.operation.output.dtype].bytes)
    ]  # fmt: skip
    if top:
        space = Space(machine, problem, device)
        best = rank(space, top, distinct=DISTINCT, exact=False).best
        tried += [found.schedule for found in best]
    found: dict[Schedule, float] = {}
    for schedule in dict.fromkeys(tried):
        if not check_schedule(schedule, machine, problem, device):
            program = schedule.program(machine, problem.operation)
            if not predicted_spill(program, device):
                found[schedule] = float(cost(program, problem.sizes, device).seconds)
    return found


def _by_hand(edges: str, width: int) -> Iterator[Mapping[str, Value]]:
    """Yield schedules for an output of elements of ``width`` bytes; not all fit all inputs."""
    for (tile_m, tile_n, warps_m, warps_n, ctas), (tile_k, stages, issue) in product(_TILES, _DEEP):
        values: dict[str, Value] = {
            **STARTS["ring"], "tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k,
            "warps_m": warps_m, "warps_n": warps_n, "stages": stages, "issue": issue,
            "ctas_per_sm": ctas, "edges": edges, "raster": 8,
        }  # fmt: skip
        yield values
        for raster in (2, 8):
            yield {**values, "epilogue": "smem", "vector_c": 16 // width, "raster": raster}


def compare(case: Case, top: int, algorithms: int, store: Results | None) -> dict[str, Any]:
    """Return the row of a case.  Raises LaunchError if no schedule or no library ran."""
    predicted = candidates(case.problem, top)
    peers = [TORCH, *(f"{CUBLASLT}algorithm_{i}" for i in range(algorithms))]
    peers += [f"{TRITON}{one}" for one in triton_mma.configurations(case.problem)]
    ours, theirs = _measured(case, list(predicted), peers, COARSE, store)
    for name, measurement in theirs:
        if measurement.seconds is None:
            _say(f"{case.part} {name}: {measurement.reason}")
    first = [s for s, _ in _fastest(ours)[:FINALISTS]]
    if not first:
        raise LaunchError(f"{case.part}: none of {len(ours)} schedules ran; {_reasons(ours)}")
    names = [name for name, _ in _fastest(theirs)]
    best = [name for name in names if name == TORCH]
    for prefix in (CUBLASLT, TRITON):
        best += [name for name in names if name.startswith(prefix)][:BEST_PEERS]
    ours, theirs = _measured(case, first, best, FINE, None)
    for name, measurement in (*_fastest(ours), *_fastest(theirs)):
        told = name if isinstance(name, str) else dict(name.decisions)
        _say(f"  {case.part} {measurement.seconds:.4g} s at {measurement.clock_mhz} MHz: {told}")
    mine = _fastest(ours)
    libraries = _fastest([t for t in theirs if not t[0].startswith(TRITON)])
    triton = _fastest([t for t in theirs if t[0].startswith(TRITON)])
    if not mine or not libraries:
        said = _reasons([*ours, *theirs])
        raise LaunchError(f"{case.part}: nothing to compare after the coarse round: {said}")
    schedule, measurement = mine[0]
    error = measurement.error
    return {
        "group": case.group,
        "case": case.name,
        **case.problem.sizes,
        "dtype": case.problem.operation.inputs[0].dtype,
        "schedule": dict(schedule.decisions),
        "predicted_seconds": predicted[schedule],
        "seconds": measurement.seconds,
        "peer": libraries[0][0].rpartition(".")[2],
        "peer_seconds": libraries[0][1].seconds,
        "error": error if math.isfinite(error) else str(error),
        "triton": triton[0][0].rpartition(":")[2] if triton else "",
        "triton_seconds": triton[0][1].seconds if triton else None,
        "clock_mhz": measurement.clock_mhz,
        "capped": measurement.capped,
        "spread": measurement.spread,
        "reason": measurement.reason,
    }


def _measured(
    case: Case,
    schedules: Sequence[Schedule],
    peers: Sequence[str],
    options: Options,
    store: Results | None,
) -> tuple[list[Timed], list[Timed]]:
    found = measure(schedules, Ampere(), case.problem, store=store, peers=peers, options=options)
    mine, theirs = found[: len(schedules)], found[len(schedules) :]
    return list(zip(schedules, mine, strict=True)), list(zip(peers, theirs, strict=True))


def _fastest(timed: Sequence[Timed]) -> list[Timed]:
    """Return those that ran, the fastest first."""
    ran = [(one, m) for one, m in timed if m.seconds is not None]
    return sorted(ran, key=lambda t: t[1].seconds or 0.0)


def _reasons(timed: Sequence[Timed]) -> str:
    return "; ".join(sorted({m.reason for _, m in timed if m.reason}))


def _report(case: Case, row: Mapping[str, Any]) -> str:
    def rate(seconds: float) -> str:
        return f"{case.flops / seconds * 1e-12:.1f}"

    line = f"{row['group']} {case.part}: {rate(row['seconds'])} TFLOP/s, "
    line += f"{row['peer_seconds'] / row['seconds']:.3f} of {row['peer']}"
    line += f" ({rate(row['peer_seconds'])})"
    if row["triton_seconds"]:
        line += f", {row['triton_seconds'] / row['seconds']:.3f} of Triton's {row['triton']}"
        line += f" ({rate(row['triton_seconds'])})"
    line += f", {row['predicted_seconds'] / row['seconds']:.2f} of its time predicted"
    return line + "; " + " ".join(f"{name}={value}" for name, value in row["schedule"].items())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    parts = [case.part for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ampere_matmul")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=parts, metavar="PART", default=parts)
    parser.add_argument("--top", type=int, default=12, help="schedules of the model")
    parser.add_argument("--list", action="store_true", help="print the schedules, no GPU")
    asked = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m benchmarks.ampere_matmul", *words))
    cases = [case for case in CASES if case.part in asked.parts]
    failed: list[str] = []
    try:
        if asked.list:
            for case in cases:
                for schedule, seconds in candidates(case.problem, asked.top).items():
                    chosen = " ".join(f"{n}={v}" for n, v in schedule.decisions)
                    _say(f"{case.part}: {case.flops / seconds * 1e-12:.0f} TFLOP/s, {chosen}")
            return
        counts = cublaslt.count([case.problem for case in cases])
        for case, algorithms in zip(cases, counts, strict=True):
            with kept(asked.out / "ampere_matmul.jsonl") as store:
                try:
                    row = compare(case, asked.top, algorithms, store)
                except LaunchError as error:
                    _say(str(error))
                    failed.append(str(error))
                    continue
            this = {name: row[name] for name in ("group", "case", "dtype", "m", "n", "k")}
            record = provenance(command)  # now: the clock is that of a busy GPU
            write_results("ampere_matmul", [row], record, asked.out, instead_of=this, fields=FIELDS)
            _say(_report(case, row))
    except TinyGpuError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(f"{len(failed)} of {len(cases)} parts failed; the first: {failed[0]}")


if __name__ == "__main__":
    main()
