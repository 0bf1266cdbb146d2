"""Special registers: what a thread may ask of itself and of the launch.

Source: PTX ISA 9.0, section 10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .report import Array
from .run import FIRST_SHARED, Run, split

__all__ = ["CLOCKS", "SPECIAL", "special"]


def _inside(run: Run) -> Array:
    return np.arange(run.ctas * run.threads_per_cta) % run.threads_per_cta


def _cta(run: Run) -> Array:
    """Return every thread's CTA, numbered cluster by cluster."""
    return np.arange(run.ctas * run.threads_per_cta) // run.threads_per_cta + run.first_cta


def _clusters(run: Run) -> list[int]:
    return [g // c for g, c in zip(run.grid, run.cluster_shape, strict=True)]


def _cluster(run: Run) -> Array:
    return _cta(run) // run.cluster


def _rank(run: Run) -> Array:
    return _cta(run) % run.cluster


def _lane(run: Run) -> Array:
    return _inside(run) % 32


def _window(run: Run) -> Array:
    """Return where shared memory begins: in a cluster, addresses have the CTA's rank on top."""
    return _rank(run) << 24 if run.cluster > 1 else _rank(run) * 0


def _total(run: Run) -> int:
    """Return the bytes of shared memory as they are allocated: in pieces of 128 or 256."""
    unit = 256 if re.match("sm_[3-7]", run.code.target) else 128
    return -(-(run.code.static_bytes + run.dynamic_bytes) // unit) * unit


def _reserved(at: int) -> Callable[[Run], Array]:
    return lambda run: _window(run) + at


_RESERVED = {"begin": 0, "end": 288, "cap": FIRST_SHARED, "0": 0, "1": 0}
"""The reserved shared memory, as of sm_90: ptxas has ``begin``, ``0`` and ``cap`` as numbers there,
the driver gives the others (read on an H100, driver 580.159.04).  What sm_80 has behind the CTA's
own memory is here at the beginning too."""
_ZEROS = ("gridid", "current_graph_exec", *(f"envreg{n}" for n in (0, *range(3, 32))))
_THREE: Mapping[str, Callable[[Run], Array | Sequence[int]]] = {
    "tid": lambda run: split(_inside(run), run.block),
    "ctaid": lambda run: run.place(_cta(run)),
    "clusterid": lambda run: split(_cluster(run), _clusters(run)),
    "cluster_ctaid": lambda run: split(_rank(run), run.cluster_shape),
    "ntid": lambda run: run.block,
    "nctaid": lambda run: run.grid,
    "nclusterid": _clusters,
    "cluster_nctaid": lambda run: run.cluster_shape,
}
"""Registers of three numbers."""


def _axis(name: str, axis: int) -> Callable[[Run], Array | int]:
    return lambda run: _THREE[name](run)[axis]


def _bit(run: Run) -> Array:
    """Return each thread's bit of its warp's mask."""
    return np.uint64(1) << _lane(run).astype(np.uint64)


SPECIAL: Mapping[str, Callable[[Run], Any]] = {
    **{f"%{name}.{c}": _axis(name, axis) for name in _THREE for axis, c in enumerate("xyz")},
    "%is_explicit_cluster": lambda run: run.cluster > 1,
    "%cluster_ctarank": _rank,
    "%cluster_nctarank": lambda run: run.cluster,
    "%laneid": _lane,
    "%warpid": lambda run: _inside(run) // 32,
    "%nwarpid": lambda run: run.threads_per_cta // 32,
    "%smid": _cta,
    "%nsmid": lambda run: run.grid[0] * run.grid[1] * run.grid[2],
    "%aggr_smem_size": lambda run: run.code.static_bytes + run.dynamic_bytes + FIRST_SHARED,
    **{f"%reserved_smem_offset_{name}": _reserved(at) for name, at in _RESERVED.items()},
    **{f"%{name}": lambda run: 0 for name in _ZEROS},
    "%envreg1": lambda run: run.workspace >> 32,  # what grid.sync of nvcc counts in
    "%envreg2": lambda run: run.workspace & 0xFFFFFFFF,
    "%lanemask_eq": _bit,
    "%lanemask_lt": lambda run: _bit(run) - np.uint64(1),
    "%lanemask_le": lambda run: 2 * _bit(run) - np.uint64(1),
    "%lanemask_gt": lambda run: ~(2 * _bit(run) - np.uint64(1)),
    "%lanemask_ge": lambda run: ~(_bit(run) - np.uint64(1)),
    "%dynamic_smem_size": lambda run: run.dynamic_bytes,
    "%total_smem_size": _total,
    "smem window": _window,
}  # fmt: skip
"""Each special register's value for every thread of a run, but for those that change."""
CLOCKS = {"%clock": 0, "%clock64": 0, "%globaltimer": 0, "%globaltimer_lo": 0, "%clock_hi": 32,
          "%globaltimer_hi": 32, **{f"%pm{n}": 0 for n in range(8)}}  # fmt: skip
"""Registers that only grow, and by how many bits they are shifted: they tell no time, but
``nanosleep`` and whatever lies between two reads makes a difference that is positive."""


def special(run: Run, name: str) -> Array:
    """Return a special register of all threads, as 64-bit integers."""
    found = run.special.get(name)
    if found is None:
        total = run.ctas * run.threads_per_cta
        found = run.special[name] = np.full(total, SPECIAL[name](run), np.uint64)
    return found
