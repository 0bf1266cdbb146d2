"""Two named points of hopper at sizes that no number was fitted on: ``-m benchmarks.hopper_sizes``.

Each runs alone without a pause for two seconds (bf16, layout nt), of which the second half counts,
so that the clock is the one at which the power cap holds it.  ``h100/hopper_sizes.json``: seconds,
clock and power of each point and size.  ``tests/test_pipeline.py`` holds the model against them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clocks import Bench
from benchmarks.oracle import code_of, problem_of
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import current_stream
from tinygpu.codegen.runtime.function import Function
from tinygpu.machines.hopper import STARTS

__all__ = ["POINTS", "SIZES", "main"]

POINTS = ("cluster", "pingpong")
SIZES = (
    (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
    (1024, 4096, 4096), (8192, 14336, 4096),
)  # fmt: skip
SLICE, SECONDS = 0.012, 2.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_sizes")
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "h100", help="folder")
    given = parser.parse_args(arguments)
    stream, rows = gpu().cuda.Stream(non_blocking=True), []
    with current_stream(stream):
        bench = Bench(stream)
        for m, n, k in SIZES:
            case = ("hopper", "bf16", "nt", (m, n, k))
            for start in POINTS:
                kernel = Function(*code_of(case, dict(STARTS[start]), device_arch())[:2])
                (replay,) = bench.replays(problem_of(case), {0: kernel}, SLICE).values()
                found = bench.alone(replay, SECONDS)
                rows.append({"start": start, "m": m, "n": n, "k": k, **found})
    record = provenance("python -m benchmarks.hopper_sizes")
    write_tree(given.out / "hopper_sizes.json", {"provenance": record, "rows": rows})


if __name__ == "__main__":
    main()
