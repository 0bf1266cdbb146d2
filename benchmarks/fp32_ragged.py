"""fp32 matmuls at ragged sizes: the order of chosen schedules beside cuBLAS.

    python -m benchmarks.fp32_ragged --out DIR --draw  # without a GPU: writes the schedules
    python -m benchmarks.fp32_ragged --out DIR         # on a GPU: measures them, 100 s on 16 cores

A shape's schedules are points like the kernels of cuBLAS, each with every pipeline that copies
without registers (``FAMILIES``), changes of one of them (``CHANGES``), and the ``BEST`` that the
model puts first.  All of a shape and PyTorch's matmul (cuBLAS, no tf32) are timed in turns
(``codegen/run/timing.py``) on inputs that exceed twice the L2, and one run of each is checked.

``fp32_ragged.json``, kept in ``h100``: a row a schedule and shape, with what the model said, of its
term and with ptxas's registers; the file is written after each shape.

Source: the profiler's names of cuBLAS's kernels at these shapes (H100, 2026-11-25).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clocks import argument_sets
from benchmarks.peers import torch_matmul, write_tree
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import current_stream, time_interleaved
from tinygpu.codegen.runtime.function import Function
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.machines.simt import Simt
from tinygpu.search.time.cost import cost
from tinygpu.search.time.launch import Assembled
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, matmul

__all__ = ["SHAPES", "drawn", "main", "points"]

SHAPES = (
    (4000, 4000, 4000), (3000, 3000, 3000), (1000, 1000, 1000), (5000, 300, 2000),
    (2047, 2049, 511), (2500, 1300, 3000),
)  # fmt: skip
BEST, ROUNDS, BURST_SECONDS = 10, 6, 0.012
_ROUNDOFF = 2.0**-24
_ALL: Mapping[str, Value] = {
    "tile_k": 8, "order": "n", "a_from": "smem", "b_from": "smem", "a_layout": "km",
    "b_layout": "kn", "pad_a": 4, "pad_b": 0, "swizzle_a": 0, "vector_a": 1, "vector_shared": 4,
    "k_step": 1, "stages": 3, "issue": 1, "split_k": 1, "combine": "st", "accumulator": "f32",
    "edges": "guard", "guards": "tile", "raster": 8, "addressing": "pointer", "specialised": 1,
    "ctas_per_sm": 1,
}  # fmt: skip
FIXED = {name: _ALL[name] for name in ("a_from", "b_from", "a_layout", "b_layout", "accumulator")}
"""Of what the model may choose: what it chooses anyway at these shapes."""
_TILE = ("tile_m", "tile_n", "thread_m", "thread_n", "lanes_m")
FAMILIES: Mapping[str, tuple[int, ...]] = {
    "256x128": (256, 128, 16, 8, 4), "128x256": (128, 256, 8, 16, 8),
    "128x128": (128, 128, 8, 8, 4), "128x128 of 4 warps": (128, 128, 8, 16, 8),
    "64x128 of 2 warps": (64, 128, 8, 16, 8),
    "128x64": (128, 64, 8, 8, 8), "64x128": (64, 128, 8, 8, 4), "64x64": (64, 64, 8, 4, 8),
    "64x64 of 2 warps": (64, 64, 8, 8, 4),
}  # fmt: skip
"""Tiles, rows and columns a thread, and lanes along m."""
PIPELINES: Mapping[str, Mapping[str, Value]] = {
    "copies": {"pipeline": "cp.async"},
    "fragments": {"pipeline": "cp.async+ld.shared"},
    "fragments, guards each": {"pipeline": "cp.async+ld.shared", "guards": "each"},
}
_EACH = PIPELINES["fragments, guards each"]
CHANGES: Mapping[str, Mapping[str, Value]] = {
    "issue 0": {**_EACH, "issue": 0},
    "tile_k 16": {**_EACH, "tile_k": 16},
    "tile_k 16, issue 0": {**_EACH, "tile_k": 16, "issue": 0},
    "lanes m": {**_EACH, "order": "m"},
    "lanes m, tile_k 16": {**_EACH, "order": "m", "tile_k": 16},
    "split 2": {**_EACH, "split_k": 2, "combine": "red"},
    "split 2, tile_k 16": {**_EACH, "split_k": 2, "combine": "red", "tile_k": 16},
    "split 4": {**_EACH, "split_k": 4, "combine": "red"},
    "split 4, tile_k 16": {**_EACH, "split_k": 4, "combine": "red", "tile_k": 16},
}


def points(shape: Sequence[int]) -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield names and decisions of the points like cuBLAS's kernels, and of changes of one.

    >>> len(dict(points((4000, 4000, 4000))))
    36
    """
    m, n, _ = shape
    wide: dict[str, Value] = {"vector_b": _vector(n), "vector_c": _vector(n)}
    base = "128x128" if m * n >= 2000 * 2000 else "64x64 of 2 warps"
    for name, tile in FAMILIES.items():
        of_tile = {**_ALL, **wide, **dict(zip(_TILE, tile, strict=True))}
        for way, more in PIPELINES.items():
            yield f"{name}, {way}", {**of_tile, **more}
        for change, more in CHANGES.items() if name == base else ():
            yield f"{name}, {change}", {**of_tile, **more}


def _vector(size: int) -> int:
    """Return the most elements of a row that can move at once, at most 4."""
    return math.gcd(size, 4)


def drawn(shape: Sequence[int]) -> dict[str, dict[str, Value]]:
    """Return the schedules of a shape by their names, those that are legal."""
    from tinygpu.search.exact.best import rank
    from tinygpu.space.space import Space

    space = Space(Simt(), _problem(shape), load_device("h200"), fixed=FIXED)
    best = rank(space, BEST, spread=Simt.spread, exact=False).best
    found = {f"model {i}": dict(one.schedule.decisions) for i, one in enumerate(best, 1)}
    for name, decisions in points(shape):
        program = Simt().program(space.problem.operation, Chosen(decisions))
        try:
            emit(program, space.device.arch, space.problem.sizes)
        except TinyGpuError as error:
            sys.stdout.write(f"{shape} {name}: {error}\n")
            continue
        found[name] = decisions
    return found


def _problem(shape: Sequence[int]) -> Problem:
    return Problem.of(matmul("f32"), **dict(zip("mnk", shape, strict=True)))


def _built(shape: Sequence[int], decisions: dict[str, Value], arch: str) -> tuple[Any, ...]:
    """Return a schedule's contract, cubin and row."""
    problem, device = _problem(shape), load_device("h200")
    program = Simt().program(problem.operation, Chosen(decisions))
    sizes = problem.sizes if program.specialised else None
    cubin = assemble(emit(program, arch, sizes), arch)
    spills = cubin.spill_stores_bytes + cubin.spill_loads_bytes
    known = Assembled(cubin.registers, spills)
    row = {
        "shape": list(shape),
        "decisions": decisions,
        "registers": cubin.registers,
        "spills": spills,
        "predicted_seconds": float(cost(program, problem.sizes, device).seconds),
        "assembled_seconds": float(cost(program, problem.sizes, device, code=known).seconds),
    }
    return contract_of(program, sizes), cubin.bytes, row


def _measured(
    shape: Sequence[int], kernels: Mapping[str, Function], rows: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Time a shape's kernels and cuBLAS in turns; return the rows, cuBLAS's first."""
    sets = argument_sets(_problem(shape))
    runs: dict[str, Any] = {}
    for name, kernel in kernels.items():
        each = [kernel.prepare(*data.inputs, out=out.array) for data, out in sets]
        runs[name] = partial(_next, each)
        data, out = sets[0]
        out.poison()
        each[0]()
        rows[name]["error"] = data.worst(out, _ROUNDOFF)
    peers = [torch_matmul(data.problem, data.inputs, out.array, {}) for data, out in sets]
    runs["cuBLAS"] = partial(_next, peers)
    times = time_interleaved(
        runs, rounds=ROUNDS, burst_seconds=BURST_SECONDS, least_launches=len(sets), warm_seconds=0.5
    )
    found: list[dict[str, Any]] = []
    for name in sorted(times, key=lambda name: (name != "cuBLAS", times[name].seconds)):
        one = times[name]
        told = {"seconds": one.seconds, "spread": one.spread, "clock_mhz": one.clock_mhz}
        beside = {"of_cublas": times["cuBLAS"].seconds / one.seconds, "capped": one.capped}
        found.append({"name": name, **rows.get(name, {"shape": list(shape)}), **told, **beside})
    return found


def _next(each: Sequence[Any], number: int) -> None:
    each[number % len(each)]()


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the schedules, or measure them; the file is written after each shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp32_ragged")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is written")
    parser.add_argument("--draw", action="store_true", help="draw schedules, and measure nothing")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "fp32_ragged_schedules.json"
    if given.draw:
        with ProcessPoolExecutor(2) as pool:
            found = pool.map(drawn, SHAPES)
            write_tree(path, dict(zip(("x".join(map(str, s)) for s in SHAPES), found, strict=True)))
        return
    named = json.loads(path.read_text(encoding="utf-8"))
    jobs = [
        (shape, name, decisions)
        for shape in SHAPES
        for name, decisions in named["x".join(map(str, shape))].items()
    ]
    record = provenance("python -m benchmarks.fp32_ragged")
    shapes, _, chosen = zip(*jobs, strict=True)
    with ProcessPoolExecutor() as pool:
        built = list(pool.map(_built, shapes, chosen, [device_arch()] * len(jobs)))
    rows: list[dict[str, Any]] = []
    stream = gpu().cuda.Stream(non_blocking=True)
    with current_stream(stream):
        for shape in SHAPES:
            mine = {job[1]: one for job, one in zip(jobs, built, strict=True) if job[0] == shape}
            kernels = {name: Function(*one[:2]) for name, one in mine.items()}
            rows += _measured(shape, kernels, {name: one[2] for name, one in mine.items()})
            write_tree(given.out / "fp32_ragged.json", {"provenance": record, "rows": rows})
            for row in [row for row in rows if row["shape"] == list(shape)][:8]:
                seconds = row["seconds"] * 1e6
                sys.stdout.write(f"{shape} {seconds:.1f} us {row['of_cublas']:.3f} {row['name']}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
