"""CUB's collectives of blocks and warps by nvcc, right, and without the barrier between two uses.

    python -m benchmarks.others.blocks FOLDER [nvcc]
    python -m benchmarks.races_of_others FOLDER

CUB comes with CUDA's toolkit.  ``blocks.cu`` has the kernels.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.others import Launches

__all__ = ["main", "results"]

NEEDLESS = {"scan_raking", "scan_memoize", "sort_merge", "warp_sort"}
"""CUB's code is right without the barrier: a barrier comes first, or threads keep to their own."""
STRONG = {"warp_reduce", "warp_scan"}
"""Accesses are volatile there: without the barrier they are in no order, but no race of PTX's."""

Array = NDArray[Any]


def _sums(rows: Array) -> Array:
    """Return the inclusive sums of rows, and the exclusive ones of their last three bits."""
    a = np.cumsum(rows, 1)
    b = np.cumsum(a & 7, 1) - (a & 7)
    return np.stack([a, b])


def _sorted(rows: Array) -> Array:
    a = np.sort(rows, 1)
    order = np.argsort(-(a & 7), 1, kind="stable")
    return np.stack([a, np.take_along_axis(a, order, 1)])


def _striped(rows: Array) -> Array:
    """Return four items a thread as all of the first, all of the second ...; and so again."""

    def once(a: Array) -> Array:
        return a.reshape(len(a), 4, -1).transpose(0, 2, 1).reshape(a.shape)

    return np.stack([once(rows), once(once(rows) + 1)])


def _differences(x: Array) -> Array:
    return np.append(x[:1], x[1:] - x[:-1])


def _heads(x: Array) -> Array:
    return np.append(1, x[1:] != x[:-1])


def results(x: Array) -> Mapping[str, Array]:
    """Return what each kernel makes of 512 numbers from 0 to 99."""
    some, n = x[:128], np.arange(512)
    moved = np.stack([2 * x, x + 1])
    parts = np.zeros((4, 32), x.dtype)
    parts[:, :24] = some.reshape(4, 32)[:, :24]
    scanned = _sums(parts)
    scanned[:, :, 24:] = 0
    once, scattered = np.empty_like(x), np.empty_like(x)
    once[(3 * n + 5) % 512] = x
    scattered[(5 * n + 3) % 512] = once
    loaded = np.where(n < 500, x, 1) * np.where(n < 12, x, 2)
    reduced, tiles = np.array([some.sum(), (some * some).sum()]), x.reshape(4, 128)
    bits = some // 16
    again = np.roll(some, -40)
    return {
        **dict.fromkeys(("reduce_warps", "reduce_raking", "reduce_commutative"), reduced),
        **dict.fromkeys(("scan_warps", "scan_raking", "scan_memoize"), _sums(some[None])),
        **dict.fromkeys(("sort_radix", "sort_merge"), _sorted(x[None])),
        **dict.fromkeys(("move_transpose", "move_warps", "move_timesliced", "warp_move"), moved),
        **dict.fromkeys(("exchange_warps", "warp_exchange"), _striped(tiles)),
        "exchange": _striped(x[None]),
        "scatter": scattered,
        "load_twice": loaded,
        "discontinuity": np.stack([_heads(bits), _heads(bits & 1)]),
        "difference": np.stack([_differences(some), _differences(_differences(some))]),
        "shuffle": np.stack([again, np.roll(again + 1, -50)]),
        "histogram": np.bincount(x[:256], minlength=100),
        "histogram_sort": np.bincount(x, minlength=100),
        "warp_reduce": np.stack([parts.sum(1), (parts * parts).sum(1)]),
        "warp_scan": scanned,
        "warp_sort": np.concatenate([a.reshape(-1) for a in _sorted(tiles)]),
    }


def main(arguments: Sequence[str]) -> None:
    """Compile both builds and write the list."""
    launches = Launches(Path(arguments[0]))
    nvcc, source = (arguments[1:] or ["nvcc"])[0], Path(__file__).with_suffix(".cu")
    x = np.random.default_rng(0).integers(0, 100, 512).astype(np.int32)
    for racy in (False, True):
        name = "racy" if racy else "right"
        command = [nvcc, "-std=c++17", "-arch=sm_90", "-lineinfo", "-ptx", *["-DRACY"][: int(racy)]]
        output = launches.folder / f"{name}.ptx"
        subprocess.run([*command, str(source), "-o", str(output)], check=True)
        for kernel, made in results(x).items():
            if racy and kernel in STRONG:
                continue
            faulty = racy and kernel not in NEEDLESS
            expected = {} if faulty else {1: made.astype(np.int32)}
            launches.add(output.name, kernel, 1, 128, [x, "s32[1024]"], expected, racy=faulty)


if __name__ == "__main__":
    main(sys.argv[1:])
