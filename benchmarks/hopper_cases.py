"""What ``hopper_matmul`` measures: the cases, and the schedules worth a try for each.

A *case* is a problem with its group and its part, the name by which the command line asks for it.
Marks are the group "main": linear layers (layout nt) in bf16, squares and the M x N x K of a
transformer.  Other groups: f16, e4m3, gelu(bias), a batch, k so deep that tiles do not fill the
chip, the other layouts.

``candidates`` writes schedules by hand from the shape: tiles in the order of

    waves of CTAs over the SMs  x  (tile_m tile_n + 64 (tile_m + tile_n)),

arithmetic plus what comes from L2, each with a few clusters, the ring as deep as shared memory
allows.  Where m is small the product is turned (``swap``), so that m is its columns; and some
schedules let CTAs of a cluster share k.
``ranked`` adds the model's own best; a file holds them by part: {part: [{"decisions", ..}, ..]}.

>>> [case.part for case in CASES][:3], len([c for c in CASES if c.group == "main"])
(['512', '1024', '2048'], 25)

Source: NVIDIA CUTLASS 3, ``sm90`` tile shapes and clusters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.peers import write_tree
from tinygpu.codegen.provenance import provenance
from tinygpu.device import Device, load_device
from tinygpu.errors import StoreError
from tinygpu.laws import check_schedule
from tinygpu.machine import Chosen, Value
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.operation import Problem, matmul
from tinygpu.schedule import Schedule
from tinygpu.search.best import rank
from tinygpu.search.cost import cost
from tinygpu.space import Space

__all__ = ["CASES", "Candidate", "Case", "candidates", "load_candidates", "ranked", "save"]

DEVICE = "h200"
MOST = 48
DISTINCT = ("tile_m", "tile_n", "consumers", "consume", "cluster_m", "cluster_n", "cluster_k")
_SQUARES = (512, 1024, 2048, 4096, 8192, 16384)
_ROWS = (16, 64, 128, 256, 512, 1024, 2048, 3500, 8192)
_FEW_ROWS = (16, 128, 512, 2048, 8192)
_TURNED_UP_TO = 256  # rows of c from which it pays to be the columns of the product
_SHARED_UP_TO = 128  # rows of c up to which CTAs share k: there are few tiles
_SHARED_MOST = 24
_L2_WEIGHT = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A problem of a group; ``part`` names it on the command line, ``name`` in the results."""

    group: str
    part: str
    name: str
    problem: Problem

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        sizes = self.problem.sizes
        return 2 * sizes["m"] * sizes["n"] * sizes["k"] * sizes.get("l", 1)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and, where the model ranked it, its predicted seconds."""

    schedule: Schedule
    predicted_seconds: float | None = None


def _case(group: str, m: int, n: int, k: int, dtype: str = "bf16", layout: str = "nt") -> Case:
    size = str(m) if m == n == k else f"{m}x{n}x{k}"
    part = size if group == "main" else f"{dtype}-{layout}-{size}"
    problem = Problem.of(matmul(dtype, layout=layout), m=m, n=n, k=k)
    return Case(group, part, f"matmul {layout}", problem)


_GELU = matmul("bf16", layout="nt", bias=True, activation="gelu")
_BATCH = matmul("bf16", layout="nt", batched=True)

CASES: tuple[Case, ...] = (
    *(_case("main", size, size, size) for size in _SQUARES),
    *(_case("main", m, 4096, 4096) for m in _ROWS),
    *(_case("main", m, 14336, 4096) for m in _FEW_ROWS),
    *(_case("main", m, 4096, 14336) for m in _FEW_ROWS),
    *(_case("f16", size, size, size, "f16") for size in _SQUARES),
    *(_case("e4m3", size, size, size, "e4m3") for size in _SQUARES),
    *(
        Case("bias gelu", f"gelu-{m}", "matmul nt, gelu(bias)", Problem.of(_GELU, m=m, n=n, k=k))
        for m, n, k in ((4096, 4096, 4096), (2048, 14336, 4096))
    ),
    Case("batch", "batch", "matmul nt, 32 of", Problem.of(_BATCH, l=32, m=1024, n=1024, k=1024)),
    *(_case("deep k", m, n, 16384) for m, n in ((512, 512), (256, 1024), (1024, 1024))),
    *(_case("layouts", 4096, 4096, 4096, layout=layout) for layout in ("nn", "tn", "tt")),
)
"""Every case, the marks first."""

_TILES: tuple[tuple[int, int, int, str, int], ...] = (
    # tile_m, tile_n, consumers, consume, ctas_per_sm
    (128, 256, 2, "cooperative", 1),
    (256, 128, 2, "cooperative", 1),
    (128, 192, 2, "cooperative", 1),
    (192, 160, 3, "cooperative", 1),
    (128, 160, 2, "cooperative", 1),
    (128, 128, 2, "cooperative", 1),
    (64, 256, 2, "pingpong", 1),
    (64, 192, 2, "pingpong", 1),
    (128, 128, 2, "pingpong", 1),
    (64, 128, 2, "pingpong", 1),
    (128, 128, 1, "cooperative", 1),
    (64, 256, 1, "cooperative", 1),
    (64, 128, 1, "cooperative", 2),
    (128, 64, 1, "cooperative", 2),
    (64, 64, 1, "cooperative", 2),
)
_TURNED_ROWS = ((64, 1, 1), (64, 1, 2), (128, 2, 1), (128, 1, 1), (256, 2, 1))
_VARIANTS = (
    # cluster_m, cluster_n, raster, early
    (2, 1, 8, 0),
    (1, 2, 8, 0),
    (1, 1, 8, 0),
    (2, 1, 16, 0),
    (2, 1, 8, 1),
    (1, 1, 8, 1),
)
_TURNED_VARIANTS = (
    # cluster_m, epilogue, early
    (1, "tma", 0),
    (1, "direct", 0),
    (2, "tma", 0),
    (1, "tma", 1),
    (1, "direct", 1),
)


def candidates(problem: Problem, most: int = MOST) -> list[Schedule]:
    """Return schedules written by hand for a problem's shape, at most ``most``, all different.

    They keep the machine's requirements and fit shared memory.  Half of them, at most, share k.
    """
    device = load_device(DEVICE)
    shared = min(most // 2, _SHARED_MOST) if problem.sizes["m"] <= _SHARED_UP_TO else 0
    found: dict[Schedule, None] = {}
    for rough, end in ((_rough(problem), most - shared), (_shared(problem), most)):
        for values in sorted(rough, key=lambda values: _estimate(values, problem, device)):
            if len(found) < end and (schedule := _deepest(values, problem, device)):
                found.setdefault(schedule)
    return list(found)


def _shared(problem: Problem) -> Iterator[dict[str, Value]]:
    """Yield decisions that lack the number of stages, of CTAs that share k, for few rows of c."""
    plain, m = STARTS["plain"], problem.sizes["m"]
    turned = [(1, n) for n in (16, 32, 64, 128) if m / 4 <= n < 2 * max(m, 16)]
    whole = [(0, n) for n in (32, 64, 128)] if m > 32 else []
    for (swap, tile_n), cluster_k, tile_k in product((*turned, *whole), (2, 4), (64, 128)):
        for ctas, early, epilogue in ((1, 1, "direct"), (2, 1, "direct"), (1, 0, "tma")):
            yield {
                **plain, "swap": swap, "tile_n": tile_n, "tile_k": tile_k, "cluster_k": cluster_k,
                "ctas_per_sm": ctas, "early": early, **_stored(epilogue, tile_n), "in_flight": 1,
            }  # fmt: skip


def _rough(problem: Problem) -> Iterator[dict[str, Value]]:
    """Yield decisions that lack the number of stages."""
    plain, m = STARTS["plain"], problem.sizes["m"]
    if m <= _TURNED_UP_TO:
        columns = {c for c in _columns() if c >= min(m, 8)}
        fitting = {min(c for c in columns if c >= -(-m // parts)) for parts in (1, 2)}
        for tile_n, rows, tile_k in product(sorted(fitting), _TURNED_ROWS, (64, 128)):
            tile_m, consumers, ctas = rows
            for cluster_m, epilogue, early in _TURNED_VARIANTS:
                values = {
                    **plain, "swap": 1, "tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k,
                    "consumers": consumers, "ctas_per_sm": ctas, "cluster_m": cluster_m,
                    "early": early,
                }  # fmt: skip
                yield {**values, **_stored(epilogue, tile_n), "in_flight": 1}
    tile_k = 64 if problem.operation.operand("a").dtype != "e4m3" else 128
    for tile_m, tile_n, consumers, consume, ctas in _TILES:
        for cluster_m, cluster_n, raster, early in _VARIANTS:
            values = {
                **plain, "tile_m": tile_m, "tile_n": tile_n, "consumers": consumers,
                "consume": consume, "ctas_per_sm": ctas, "cluster_m": cluster_m,
                "cluster_n": cluster_n, "raster": raster, "persistent": 1,
                "early": early, "tile_k": tile_k,
            }  # fmt: skip
            yield {**values, **_stored("tma", tile_n), "in_flight": 1}


def _columns() -> tuple[int, ...]:
    return tuple(int(c) for c in Hopper.tile_n.values)


def _stored(epilogue: str, tile_n: int) -> dict[str, Value]:
    """Return the decisions about the way to c."""
    if epilogue == "direct":
        return {"epilogue": epilogue, "store_n": tile_n, "store_stages": 1}
    store_n = next(n for n in (64, 32, 16, 8) if tile_n % n == 0)
    return {"epilogue": epilogue, "store_n": store_n, "store_stages": 1 if tile_n == store_n else 2}


def _estimate(values: Mapping[str, Any], problem: Problem, device: Device) -> float:
    """Return what the order of ``candidates`` is by; the unit is a multiplication in one SM."""
    rows, columns = ("n", "m") if values["swap"] else ("m", "n")
    high = values["tile_m"] * values["cluster_m"]
    wide = values["tile_n"] * values["cluster_n"]
    clusters = -(-problem.sizes[rows] // high) * -(-problem.sizes[columns] // wide)
    clusters *= problem.sizes.get("l", 1)
    tiles = clusters * values["cluster_m"] * values["cluster_n"] * values["cluster_k"]
    size = values["tile_m"] * values["tile_n"]
    each = size + _L2_WEIGHT * (values["tile_m"] + values["tile_n"])
    return float(-(-tiles // device.sms) * each / values["cluster_k"])


def _deepest(values: Mapping[str, Value], problem: Problem, device: Device) -> Schedule | None:
    """Return the schedule with the most stages that fit; None if it breaks a requirement."""
    machine, operation = Hopper(), problem.operation
    ctas = int(values["ctas_per_sm"])
    share = device.smem_bytes_per_sm // ctas - device.smem_reserved_bytes_per_cta
    for stages in reversed(Hopper.stages.values):
        chosen = {**values, "stages": stages}
        if any(value not in machine.decisions()[name].values for name, value in chosen.items()):
            return None
        if not all(r.holds for r in machine.requires(operation, Chosen(chosen))):
            continue
        schedule = Schedule.of(machine, chosen)
        need = schedule.program(machine, operation).smem_bytes
        if need <= min(share, device.smem_bytes_per_cta_max):
            return schedule
    return None


def ranked(problem: Problem, top: int) -> list[Candidate]:
    """Return the model's ``top`` schedules and those written by hand, the fastest first.

    With ``top`` 0 only those written by hand, in their own order, not predicted.
    """
    by_hand = candidates(problem)
    if not top:
        return [Candidate(schedule) for schedule in by_hand]
    machine, device = Hopper(), load_device(DEVICE)
    space = Space(machine, problem, device)
    best = rank(space, top, distinct=DISTINCT, exact=False).best
    found: dict[Schedule, float] = {}
    for schedule in dict.fromkeys((*(r.schedule for r in best), *by_hand)):
        if not check_schedule(schedule, machine, problem, device):
            program = schedule.program(machine, problem.operation)
            found[schedule] = float(cost(program, problem.sizes, device).seconds)
    return [Candidate(s, found[s]) for s in sorted(found, key=lambda s: found[s])]


def save(path: Path, found: Mapping[str, Sequence[Candidate]], command: str) -> None:
    """Write candidates by part.  Raises StoreError where that fails."""
    parts = {
        part: [
            {"predicted_seconds": c.predicted_seconds, "decisions": dict(c.schedule.decisions)}
            for c in several
        ]
        for part, several in found.items()
    }
    write_tree(path, {"provenance": provenance(command), **parts})


def load_candidates(path: Path) -> dict[str, list[Candidate]]:
    """Read what ``save`` wrote.

    Raises StoreError for a file that is none, ScheduleError for a schedule that is none.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        del tree["provenance"]
        return {
            part: [
                Candidate(Schedule.of(Hopper(), one["decisions"]), one["predicted_seconds"])
                for one in several
            ]
            for part, several in tree.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"schedules {path}: not readable ({error}); rank them again") from None
