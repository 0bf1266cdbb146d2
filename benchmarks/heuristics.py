"""nvidia-matmul-heuristics as a ranking of schedules that were measured.

The library ranks kernels of CUTLASS for a shape, without a GPU.  Each of its choices, the best
first, stands for the measured schedule that is nearest to it and not taken yet: by the octaves in
which rows, columns and k of the tile, the cluster and the parts of k differ.  What is left of the
schedules comes last, in no order.  It calls 16-bit inputs ``HSH``, of 8 bits ``QSH``; it knows no
``simt``.

Source: NVIDIA, "nvMatmulHeuristics" (PyPI: nvidia-matmul-heuristics).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from benchmarks.trust import Evidence, Times

__all__ = ["heuristics"]

_ASKED = 256
_BACKENDS = {"hopper": "CUTLASS3", "ampere": "CUTLASS"}
_TYPES = {"f16": "HSH", "bf16": "HSH", "e4m3": "QSH"}


@cache
def _library(machine: str, gpu: str) -> tuple[Any, Any] | None:
    """Return the library's interface for a machine's kernels on a GPU; None where it has none."""
    try:
        import nvMatmulHeuristics as library  # noqa: N813 - the module's own name
    except ImportError:
        return None
    gpus = library.NvMatmulHeuristicsNvidiaGpu.__members__
    known = [one for name, one in gpus.items() if name.lower().startswith(gpu)]
    if machine not in _BACKENDS or not known:
        return None
    return library, library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget[_BACKENDS[machine]],
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=known[0],
    )


def heuristics(case: Evidence) -> Times | None:
    """Return the place of each schedule; None where the library is missing, or has no answer."""
    found = _library(case.machine, case.device.name)
    first, sizes = case.problem.operation.inputs[0], case.problem.sizes
    if found is None or first.dtype not in _TYPES:
        return None
    library, asked = found
    ends = (operand.axes[-1] for operand in case.problem.operation.inputs)
    turned = "".join("N" if end == last else "T" for end, last in zip(ends, "kn", strict=True))
    layout = library.NvMatmulHeuristicsMatmulLayout[f"{turned}_ROW_MAJOR"]
    problem = asked.makeNvMatmulHeuristicsProblem(*(sizes[axis] for axis in "mnk"), layout)
    chosen = [one["kernel"] for one in asked.get(problem, _ASKED, _TYPES[first.dtype])]
    mine = np.log2([_features(dict(one.decisions)) for one in case.schedules])
    places = np.full(len(mine), float(len(mine)))
    for place, one in enumerate(chosen[: len(mine)]):
        theirs = np.log2([one.cta_tile_m, one.cta_tile_n, one.cta_tile_k, one.cluster_m,
                          one.cluster_n, one.split_k, one.stages])  # fmt: skip
        away = np.abs(mine - theirs) @ np.array([4, 4, 1, 2, 2, 4, 0.5])
        places[np.argmin(np.where(places < len(mine), np.inf, away))] = place
    return places if chosen else None


def _features(chosen: dict[str, Any]) -> list[float]:
    """Return tile and cluster by c's rows and columns, parts of k, and stages of a schedule."""
    tile, cluster = (
        [chosen.get(f"{what}_{axis}", 1) for axis in "mn"] for what in ("tile", "cluster")
    )
    if chosen.get("swap"):
        tile, cluster = tile[::-1], cluster[::-1]
    parts = chosen.get("cluster_k", 1) * chosen.get("split_k", 1)
    return [*tile, chosen.get("tile_k", 1), *cluster, parts, chosen.get("stages", 1)]
