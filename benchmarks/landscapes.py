"""Complete landscapes: every legal schedule of a box, timed at several shapes on a GPU.

    python -m benchmarks.landscapes --draw           # here: the schedules of the box
    python -m benchmarks.landscapes [--part 0/2]     # on a GPU: the shapes that have no times yet

The box is ``BOX``, a choice of ``hopper``'s decisions; its schedules are the same at all ``SHAPES``
and are assembled once, as their kernels take every shape.  At each shape they run one after the
other in an order drawn anew, each alone and without a pause for ``SHORT`` seconds (``LONG`` where a
launch is long), of which the second half counts.  A file of ``h200/landscapes`` has the seconds of
each schedule of ``schedules.json``, None where it does not take the shape.

``replay.py`` walks on them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.clocks import Bench
from benchmarks.oracle import code_of, decisions_of, problem_of
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.timing import current_stream
from tinygpu.codegen.runtime.function import Function
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES

if TYPE_CHECKING:
    from tinygpu.space.space import Space

__all__ = ["BOX", "LANDSCAPES", "SHAPES", "case_of", "main", "space_of"]

LANDSCAPES = FOLDER / "landscapes"
SLICE, SHORT, LONG, LARGE = 0.003, 0.024, 0.042, 512 * 4096 * 4096
BOX: dict[str, Any] = {
    "tile_m": (64, 128, 256), "tile_n": (16, 64, 128, 192, 256), "tile_k": 64, "consumers": (1, 2),
    "consume": "cooperative", "stages": (3, 4, 6), "in_flight": 1, "cluster_m": 1,
    "cluster_n": (1, 2), "cluster_k": (1, 2), "swap": (0, 1), "epilogue": ("tma", "direct"),
    "store_n": 64, "store_stages": 1, "raster": 8, "persistent": (0, 1), "ctas_per_sm": 1,
    "early": (0, 1),
}  # fmt: skip
SHAPES = (
    (1, 8192, 4096), (16, 4096, 12288), (64, 6144, 6144), (128, 10240, 4096),
    (256, 4096, 8192), (640, 4096, 4096), (1280, 5120, 3072), (2048, 6144, 4096),
)  # fmt: skip


def case_of(shape: Sequence[int]) -> tuple[Any, ...]:
    """Return the case of a shape, as ``oracle.py`` has them."""
    return "hopper", "bf16", "nt", tuple(shape)


def space_of(shape: Sequence[int]) -> Space:
    """Return the box at a shape."""
    from tinygpu.space.space import Space  # which needs z3: a machine that measures has none

    return Space(MACHINES["hopper"], problem_of(case_of(shape)), load_device("h200"), fixed=BOX)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the box at the shapes that have no file; a file is written after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.landscapes")
    parser.add_argument("--out", type=Path, default=LANDSCAPES, help="folder of the results")
    parser.add_argument("--draw", action="store_true", help="write the schedules only")
    parser.add_argument("--part", default="0/1", help="the i-th of n parts of the shapes")
    given = parser.parse_args(arguments)
    if given.draw:
        both = [dict(one.decisions) for one in space_of(SHAPES[0])]
        rows = [list(one.values()) for one in both]
        drawn = {"decisions": list(both[0]), "schedules": rows}
        record = provenance("python -m benchmarks.landscapes --draw")
        write_tree(given.out / "schedules.json", {"provenance": record, **drawn})
        return
    number, parts = map(int, given.part.split("/"))
    files = {shape: given.out / f"{'x'.join(map(str, shape))}.json" for shape in SHAPES}
    left = [shape for shape in SHAPES[number::parts] if not files[shape].is_file()]
    if not left:
        return
    record = provenance("python -m benchmarks.landscapes")
    jobs = decisions_of(json.loads((given.out / "schedules.json").read_text(encoding="utf-8")))
    with ProcessPoolExecutor() as pool:
        cases = repeat(case_of(left[0]))
        codes = list(pool.map(code_of, cases, jobs, repeat(device_arch()), chunksize=8))
    stream, order = gpu().cuda.Stream(non_blocking=True), np.random.default_rng(0)
    with current_stream(stream):
        bench = Bench(stream)
        kernels = {i: Function(contract, code) for i, (contract, code, *_) in enumerate(codes)}
        for shape in left:
            seconds = LONG if np.prod(shape) >= LARGE else SHORT
            replays = bench.replays(problem_of(case_of(shape)), kernels, SLICE)
            times: list[float | None] = [None] * len(codes)
            for i in order.permutation(list(replays)).tolist():
                times[i] = float(f"{bench.alone(replays[i], seconds)['alone_seconds']:.4g}")
            write_tree(files[shape], {"provenance": record, "shape": shape, "seconds": times})
            sys.stdout.write(f"{files[shape].stem}: {len(times)} schedules\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
