"""Points of hopper, each alone on an H100: ``python -m benchmarks.hopper_points``.

Two tables (bf16, layout nt).  Each row runs without a pause for as many seconds as its table says,
of which the second half counts, so that the clock is the one at which the power cap holds it.  A
row of a file has seconds, clock and power.

    hopper_sizes    two named points at sizes that no number was fitted on
    hopper_stores   how a tile is stored, with few steps a tile: one point, whose epilogue stores
                    lines of 16 to 128 B by TMA, or fragments straight from registers, into bf16
                    and f32; the time model's ``l2_write`` was chosen by these

``tests/test_pipeline.py`` holds the model against both.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clocks import Bench
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import current_stream
from tinygpu.codegen.runtime.function import Function
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program

__all__ = ["TABLES", "Table", "main", "program_of"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """What is measured: rows of a kernel and its m, n and k, and how long each runs."""

    rows: Sequence[Row]
    slice_seconds: float
    seconds: float


_STORED: Row = {
    **STARTS["pingpong"], "tile_m": 128, "tile_n": 192, "tile_k": 64, "stages": 4, "in_flight": 1,
    "cluster_m": 1, "cluster_n": 2, "raster": 8, "store_stages": 1, "early": 0,
}  # fmt: skip
_STORES = (
    *(("bf16", "tma", n) for n in (8, 16, 24, 32, 64)), ("bf16", "direct", 64),
    *(("f32", "tma", n) for n in (8, 16, 32)), ("f32", "direct", 64),
)  # fmt: skip
_SIZES = (
    (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
    (1024, 4096, 4096), (8192, 14336, 4096),
)  # fmt: skip
_FEW_STEPS = ((8192, 12288, 512), (8192, 12288, 2048), (2048, 12288, 512))
TABLES: Mapping[str, Table] = {
    "hopper_sizes": Table(
        [
            {"start": start, "m": m, "n": n, "k": k}
            for m, n, k in _SIZES
            for start in ("cluster", "pingpong")
        ],
        slice_seconds=0.012,
        seconds=2.0,
    ),
    "hopper_stores": Table(
        [
            {"output": output, "epilogue": epilogue, "store_n": columns, "m": m, "n": n, "k": k}
            for output, epilogue, columns in _STORES
            for m, n, k in _FEW_STEPS
        ],
        slice_seconds=0.006,
        seconds=0.5,
    ),
}


def program_of(row: Row) -> Program:
    """Return the term of a row: of a named point, or of ``_STORED`` with a type and an epilogue."""
    if "start" in row:
        point: Row = STARTS[row["start"]]
    else:
        point = {**_STORED, "epilogue": row["epilogue"], "store_n": row["store_n"]}
    output = None if row.get("output", "bf16") == "bf16" else row["output"]
    return Hopper().program(matmul("bf16", output, "nt"), Chosen(point))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both tables; a file is written after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_points")
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "h100", help="folder")
    given = parser.parse_args(arguments)
    record, arch = provenance("python -m benchmarks.hopper_points"), device_arch()
    stream = gpu().cuda.Stream(non_blocking=True)
    with current_stream(stream):
        bench = Bench(stream)
        for name, table in TABLES.items():
            found = []
            for row in table.rows:
                program = program_of(row)
                cubin = assemble(emit(program, arch), arch)
                kernel = Function(contract_of(program, None), cubin.bytes)
                problem = Problem.of(program.operation, **{axis: row[axis] for axis in "mnk"})
                (replay,) = bench.replays(problem, {0: kernel}, table.slice_seconds).values()
                found.append({**row, **bench.alone(replay, table.seconds)})
            write_tree(given.out / f"{name}.json", {"provenance": record, "rows": found})


if __name__ == "__main__":
    main()
