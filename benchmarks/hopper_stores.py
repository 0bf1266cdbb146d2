"""How a tile is stored, with few steps a tile: ``python -m benchmarks.hopper_stores``.

One point of hopper (``POINT``, bf16, layout nt), whose epilogue stores lines of 16 to 128 B by TMA,
or fragments straight from registers, into bf16 and f32, at ``SIZES``.  Each runs alone without a
pause for half a second, of which the last part counts.  ``h100/hopper_stores.json``: seconds, clock
and power.  The time model's ``l2_write`` was chosen by these; ``tests/test_pipeline.py`` holds it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
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

__all__ = ["POINT", "SIZES", "STORES", "main", "program_of"]

POINT: dict[str, Any] = {
    **STARTS["pingpong"], "tile_m": 128, "tile_n": 192, "tile_k": 64, "stages": 4, "in_flight": 1,
    "cluster_m": 1, "cluster_n": 2, "raster": 8, "store_stages": 1, "early": 0,
}  # fmt: skip
STORES = (
    *(("bf16", "tma", n) for n in (8, 16, 24, 32, 64)), ("bf16", "direct", 64),
    *(("f32", "tma", n) for n in (8, 16, 32)), ("f32", "direct", 64),
)  # fmt: skip
SIZES = ((8192, 12288, 512), (8192, 12288, 2048), (2048, 12288, 512))
SLICE, SECONDS = 0.006, 0.5


def program_of(row: dict[str, Any]) -> Program:
    """Return the term of a row: an output's type, an epilogue, the columns of a store."""
    point = {**POINT, "epilogue": row["epilogue"], "store_n": row["store_n"]}
    output = None if row["output"] == "bf16" else row["output"]
    return Hopper().program(matmul("bf16", output, "nt"), Chosen(point))


def rows() -> Iterator[dict[str, Any]]:
    """Yield what is measured."""
    for output, epilogue, store_n in STORES:
        for m, n, k in SIZES:
            sizes = {"m": m, "n": n, "k": k}
            yield {"output": output, "epilogue": epilogue, "store_n": store_n, **sizes}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_stores")
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "h100", help="folder")
    given = parser.parse_args(arguments)
    stream, found = gpu().cuda.Stream(non_blocking=True), []
    with current_stream(stream):
        bench = Bench(stream)
        for row in rows():
            program, arch = program_of(row), device_arch()
            cubin = assemble(emit(program, arch), arch)
            kernel = Function(contract_of(program, None), cubin.bytes)
            problem = Problem.of(program.operation, **{axis: row[axis] for axis in "mnk"})
            (replay,) = bench.replays(problem, {0: kernel}, SLICE).values()
            found.append({**row, **bench.alone(replay, SECONDS)})
    record = provenance("python -m benchmarks.hopper_stores")
    write_tree(given.out / "hopper_stores.json", {"provenance": record, "rows": found})


if __name__ == "__main__":
    main()
