"""Time: the (max, +) interpretation of a term, and what surrounds a tile.

Two bounds, each computed from the term's work (``work.py``), are blended:

- *throughput*: an SM runs ``n = ceil(CTAs / SMs)`` CTAs, each of which keeps every unit busy for a
  known number of cycles; the units overlap, but not perfectly;
- *path*: one CTA alone takes as long as the longest chain through its statements.  The recursion
  over the term is in (max, +): a statement starts when what it reads is there and its unit is free,
  a barrier when all before it have issued.  A loop's body is run twice and extrapolated by its
  period, which a ``cp.async`` ring bounds from below by latency over depth, the weight over the
  tokens of that cycle.  As many CTAs as fit on an SM walk their paths side by side.

DRAM and L2 bound the whole launch.  The blend is (sum x^p)^(1/p): monotone in each, so that a lower
bound of the parts is one of the whole, which the exact search needs.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> sizes = {"m": 4096, "n": 4096, "k": 4096}
>>> naive = cost(Simt().program(matmul(), Chosen(LADDER["naive"])), sizes, load_device("h200"))
>>> naive.bottleneck
'l1'

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.search.time.breakdown import Breakdown, blend, resolved
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.pipeline import Stages, predict_stages
from tinygpu.search.time.traffic import GridLaunch
from tinygpu.search.time.work import WARP, Repeat, Tree, Work, account, mapped
from tinygpu.term.program import Program, select

__all__ = ["Features", "combined", "cost", "features", "occupied", "pace", "predict"]

Numbers = Any
INSTRUCTION_BYTES = 16  # spec: since Volta
SUBCORES = 4  # spec: of an SM, since Volta
WHOLE = frozenset(("smem", "l1", "shuffle", "fetch"))
"""Units that all warps of an SM share; every sub-core has its own part of the others."""


@dataclass(frozen=True, slots=True)
class Features:
    """All that the time depends on; each number depends on few decisions."""

    tree: Tree
    launch: GridLaunch

    def mapped(self, low: Callable[[Any], Any], high: Callable[[Any], Any]) -> Features:
        """Apply ``low`` to every number that costs time, ``high`` to those that save it."""
        launch = self.launch.mapped(low, high)
        return replace(self, tree=mapped(self.tree, low, high), launch=launch)


def cost(
    program: Program,
    sizes: Mapping[str, int],
    device: Device,
    *,
    of: Callable[[Numbers], Numbers] = lambda number: number,
) -> Breakdown:
    """Predict the time of a program, of whose numbers ``of`` makes what to compute with."""
    if program.barriers:
        return predict_stages(Stages.of(program, sizes, device).mapped(of))
    return predict(features(program, sizes, device).mapped(of, of))


def features(program: Program, sizes: Mapping[str, int], device: Device) -> Features:
    """Return what the time depends on, as numbers or factored arrays."""
    launch = GridLaunch.of(program, sizes, device)
    return Features(account(program, launch, sizes), launch)


def predict(f: Features) -> Breakdown:
    """Return the time of each candidate.

    It is monotone: with features that are each at most (for what saves time, at least) those of a
    candidate, it gives a lower bound of the candidate's time.
    """
    launch, device = f.launch, f.launch.device
    warps = np.ceil(launch.threads / WARP)
    count = np.ceil(launch.ctas() / device.sms)
    capacity = launch.resident()
    work = total_work(f.tree)
    work["fetch"] = fetch(f.tree, device)
    busy = occupied(work, count * warps)
    parts: dict[str, Numbers] = {unit: cycles / device.clock_hz for unit, cycles in busy.items()}
    rounds = np.ceil(np.maximum(count / capacity, 1.0))
    parts["latency"] = rounds * path(f.tree, warps) / device.clock_hz
    l2_rate = device.l2_bytes_per_cycle * device.clock_hz * FITTED["l2_rate"]
    parts["l2"] = launch.l2_bytes() / l2_rate
    dram_rate = device.dram_bytes_per_second * FITTED["dram_share"]
    parts["dram"] = launch.dram_bytes(capacity) / dram_rate
    parts["spills"] = parts["issue"] * FITTED["spill"] * launch.spilled()
    parts["launch"] = device.launch_seconds + FITTED["start"] / device.clock_hz
    parts["clear"] = launch.clear_seconds()
    return Breakdown(combined(parts), parts)


def combined(parts: Mapping[str, Numbers]) -> Numbers:
    """Return the time that parts, in seconds, make up together; monotone in each."""
    # shared memory and L1 are stages of one pipe
    pipe = parts.get("smem", 0.0) + parts.get("l1", 0.0)
    apart = ("smem", "l1", "latency", "l2", "dram", "spills", "launch", "clear")
    units = [seconds for name, seconds in parts.items() if name not in apart]
    throughput = blend([*units, pipe], FITTED["unit_power"])
    bounds = [throughput, parts["latency"], parts["l2"], parts["dram"]]
    seconds = blend(bounds, FITTED["blend_power"])
    return resolved(seconds + parts["spills"] + parts["launch"] + parts["clear"])


def total_work(tree: Tree) -> dict[str, Numbers]:
    """Return the cycles for which one warp's work keeps each unit busy."""
    found: dict[str, Numbers] = {}
    for node in tree:
        if isinstance(node, Work):
            here = node.cycles()
        else:
            here = {unit: cycles * node.trips for unit, cycles in total_work(node.body).items()}
        for unit, cycles in here.items():
            found[unit] = found[unit] + cycles if unit in found else cycles
    return found


def fetch(tree: Tree, device: Device) -> Numbers:
    """Return the cycles in which instructions arrive, where a loop outgrows the caches."""
    slots = device.warp_schedulers_per_sm * device.issue_per_cycle_per_scheduler
    total: Numbers = 0.0
    for node in tree:
        if isinstance(node, Repeat) and node.rolled:
            issue = total_work(node.body).get("issue", 0.0)
            outgrown = issue * slots * INSTRUCTION_BYTES > FITTED["code_bytes"]
            total = total + node.trips * issue * FITTED["fetch"] * outgrown
    return total


@dataclass(slots=True)
class _Clock:
    """When things are free: issue, all that was issued, each unit, each buffer in registers.

    ``landed``: when the asynchronous copies that were issued have landed.
    """

    warps: Numbers
    now: Numbers
    last: Numbers
    units: dict[str, Numbers]
    ready: dict[str, Numbers]
    landed: Numbers


def path(tree: Tree, warps: Numbers) -> Numbers:
    """Return the cycles that one CTA takes alone on an SM.

    Only maxima and sums of the tree's numbers occur: it is monotone in each.
    """
    clock = _Clock(warps, 0.0, 0.0, {}, {}, 0.0)
    _walk(tree, clock)
    return clock.last


def occupied(cycles: Mapping[str, Numbers], warps: Numbers) -> dict[str, Numbers]:
    """Return for how many cycles so many warps keep each unit of an SM busy, from one warp's.

    A warp runs on one sub-core, and has no use of the others' parts of a unit.
    """
    even = np.ceil(warps / SUBCORES) * SUBCORES
    return {unit: each * (warps if unit in WHOLE else even) for unit, each in cycles.items()}


def alone(cycles: Mapping[str, Numbers]) -> Numbers:
    """Return the cycles in which one warp issues its instructions, whatever the others do."""
    return cycles["issue"] * (4 * FITTED["warp_interval"])


def _walk(tree: Tree, clock: _Clock) -> None:
    for node in tree:
        if isinstance(node, Work):
            _piece(node, clock)
        elif node.rolled:
            _rolled(node, clock)
        else:
            _unrolled(node, clock)


def _piece(piece: Work, clock: _Clock) -> None:
    if piece.kind in ("commit", "wait"):
        return  # a wait's cost is its ring's, in _rolled
    if piece.kind == "sync":
        clock.now = clock.last = clock.last + piece.latency
        return
    start = clock.now
    for name in piece.reads:
        if name in clock.ready:
            start = np.maximum(start, clock.ready[name])
    cycles = piece.cycles()
    for unit in cycles:
        if unit not in ("issue", "int") and unit in clock.units:
            start = np.maximum(start, clock.units[unit])
    most = reduce(np.maximum, occupied(cycles, clock.warps).values())
    end = start + np.maximum(most, alone(cycles))
    for unit in cycles:
        clock.units[unit] = end
    clock.last = np.maximum(clock.last, end)
    if piece.kind == "async":
        clock.landed = np.maximum(clock.landed, end + piece.latency)
    else:
        clock.ready[piece.write] = (end if piece.unit == "lsu" else start) + piece.latency


def _rolled(loop: Repeat, clock: _Clock) -> None:
    """Walk a loop with a branch: nothing moves across it, so an iteration's time is its period.

    A ring of copies bounds the period by weight over tokens of the cycle that leads from a copy
    through its wait to the copy that reuses its slot: the way from the wait to the next copies and
    their latency, over the groups in flight.  The first copies, before the loop, land in full.
    """
    inner = _Clock(clock.warps if together(loop) else 1.0, 0.0, 0.0, {}, {}, 0.0)
    _walk(loop.body, inner)
    period = inner.last + FITTED["turn"]
    if not together(
        loop
    ):  # warps drift apart: each walks its own chain, while the others use the units
        for cycles in occupied(total_work(loop.body), clock.warps).values():
            period = np.maximum(period, cycles)
    for i, node in enumerate(loop.body):
        if isinstance(node, Work) and node.kind == "wait":
            clock.last = np.maximum(clock.last, clock.landed)
            ring = _Clock(inner.warps, 0.0, 0.0, {}, {}, 0.0)
            _walk((*loop.body[i + 1 :], *loop.body[:i]), ring)
            period = np.maximum(period, ring.landed / (node.pending + 1.0))
    clock.now = clock.last = clock.last + loop.trips * period
    clock.units.clear()
    clock.ready.clear()


def together(loop: Repeat) -> bool:
    """Whether a barrier in a loop's body keeps the warps of a CTA together."""
    return any(isinstance(p, Work) and p.kind == "sync" for p in loop.body)


def pace(loop: Repeat, warps: Numbers) -> Numbers:
    """Return the cycles from one step of an unrolled loop to the next.

    Its busiest unit sets it, or its loads: the assembler moves few of them up past earlier steps.
    """
    work = total_work(loop.body)
    cycles = reduce(np.maximum, occupied(work, warps).values(), alone(work))
    return np.maximum(cycles, waits(loop))


def waits(loop: Repeat) -> Numbers:
    """Return the cycles for which a step waits for its loads from global memory.

    The assembler loads into registers that it has just read, so that few are in flight together.
    """
    loads = (p for p in loop.body if isinstance(p, Work) and "l1" in p.each and p.kind == "do")
    return sum((p.count * p.latency for p in loads), 0.0) / FITTED["loads_in_flight"]


def _unrolled(loop: Repeat, clock: _Clock) -> None:
    """Walk an unrolled loop: once through its chain, then at its pace."""
    some = loop.trips > 0
    step = pace(loop, clock.warps)
    more = np.maximum(loop.trips - 1.0, 0.0) * step + waits(loop)
    after = replace(clock, units=dict(clock.units), ready=dict(clock.ready))
    _walk(loop.body, after)
    clock.now = select(some, after.now, clock.now)
    clock.landed = select(some, after.landed, clock.landed)
    clock.last = select(some, after.last + more, clock.last)
    for mine, theirs in ((clock.units, after.units), (clock.ready, after.ready)):
        for name, end in theirs.items():
            before = mine.get(name, 0.0)
            moved = end is not before
            mine[name] = select(some, end + more, before) if moved else before
