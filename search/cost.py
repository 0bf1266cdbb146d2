"""Time: the (max, +) interpretation of a term, and what surrounds a tile.

Two bounds, each computed from the term's work (``work.py``), are blended:

- *throughput*: an SM runs ``n = ceil(CTAs / SMs)`` CTAs, each of which keeps every unit busy for a known
  number of cycles; the units overlap, but not perfectly;
- *path*: one CTA alone takes as long as the longest chain through its statements.  The recursion
  over the term is in (max, +): a statement starts when what it reads is there and its unit is free, a
  barrier when all before it have issued.  A loop's body is run twice and extrapolated by its period,
  which a ``cp.async`` ring bounds from below by latency over depth, the weight over the tokens of that
  cycle.  As many CTAs as fit on an SM walk their paths side by side.

DRAM and L2 bound the whole launch.  The blend is (sum x^p)^(1/p): monotone in each, so that a lower
bound of the parts is one of the whole, which the exact search needs.

>>> from tinygpu.device import load_device
>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import matmul
>>> sizes = {"m": 4096, "n": 4096, "k": 4096}
>>> naive = cost(Simt().program(matmul(), Chosen(LADDER["naive"])), sizes, load_device("h200"))
>>> naive.bottleneck
'l1'

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygpu.device import Device
from tinygpu.program import Program
from tinygpu.search.fitted import FITTED
from tinygpu.search.traffic import Traffic
from tinygpu.search.work import UNITS, Piece, Repeat, account, mapped

__all__ = ["Breakdown", "Features", "cost", "features", "predict"]

Numbers = Any
INSTRUCTION_BYTES = 16  # spec: since Volta


@dataclass(frozen=True, slots=True)
class Features:
    """All that the time depends on; each number depends on few decisions."""

    tree: tuple[Piece | Repeat, ...]
    work: Mapping[str, Numbers]
    ctas: Numbers
    resident: Numbers
    l2_seconds: Numbers
    dram_seconds: Numbers
    device: Device

    def mapped(self, f: Any) -> Features:
        """Apply ``f`` to every number."""
        return replace(
            self,
            tree=mapped(self.tree, f),
            work={u: f(w) for u, w in self.work.items()},
            ctas=f(self.ctas),
            resident=f(self.resident),
            l2_seconds=f(self.l2_seconds),
            dram_seconds=f(self.dram_seconds),
        )


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A predicted time in seconds and what it is made of.

    ``parts`` are the seconds that each unit, the path, L2, DRAM and the launch would take alone;
    the bottleneck is the largest.
    """

    seconds: Numbers
    parts: Mapping[str, Numbers]

    @property
    def bottleneck(self) -> str:
        """The name of the largest part (of one schedule)."""
        return max(self.parts, key=lambda name: float(self.parts[name]))


def cost(program: Program, sizes: Mapping[str, int], device: Device) -> Breakdown:
    """Predict the time of one program, or of a space's array program."""
    return predict(features(program, sizes, device))


def features(program: Program, sizes: Mapping[str, int], device: Device) -> Features:
    """Return what the time depends on, as numbers or factored arrays."""
    traffic = Traffic.of(program, sizes, device)
    tree = account(program, sizes, device)
    hertz = device.clock_hz
    return Features(
        tree,
        total_work(tree) | {"fetch": fetch(tree, device, program.threads // 32)},
        traffic.ctas,
        traffic.resident,
        traffic.l2_bytes() / (device.l2_bytes_per_cycle * hertz),
        traffic.dram_bytes() / (device.dram_bytes_per_second * FITTED["dram_share"]),
        device,
    )


def total_work(tree: tuple[Piece | Repeat, ...]) -> dict[str, Numbers]:
    """Return the cycles for which one CTA keeps each unit busy."""
    found: dict[str, Numbers] = {}
    for node in tree:
        if isinstance(node, Piece):
            for unit, cycles in node.cycles.items():
                found[unit] = found.get(unit, 0.0) + cycles
        else:
            for unit, cycles in total_work(node.body).items():
                found[unit] = found.get(unit, 0.0) + cycles * node.trips
    return {unit: found[unit] for unit in UNITS if unit in found}


def fetch(tree: tuple[Piece | Repeat, ...], device: Device, warps: Numbers) -> Numbers:
    """Return the cycles in which a CTA's instructions arrive, where a loop outgrows the caches."""
    slots = device.warp_schedulers_per_sm * device.issue_per_cycle_per_scheduler
    total: Numbers = 0.0
    for node in tree:
        if isinstance(node, Repeat):
            issue = total_work(node.body).get("issue", 0.0)
            code_bytes = issue * slots / warps * INSTRUCTION_BYTES
            outgrown = node.rolled & (code_bytes > FITTED["code_bytes"])
            total = total + node.trips * issue * FITTED["fetch"] * outgrown
    return total


def predict(f: Features) -> Breakdown:
    """Return the time of each candidate."""
    device = f.device
    hertz = device.clock_hz
    count = np.ceil(f.ctas / device.sms)
    resident = np.minimum(f.resident, count)
    parts: dict[str, Numbers] = {u: count * w / hertz for u, w in f.work.items()}
    # shared memory and L1 are one pipe
    pipe = parts.get("smem", 0.0) + parts.get("l1", 0.0)
    units = [w for u, w in parts.items() if u not in ("smem", "l1")] + [pipe]
    throughput = blend(units, FITTED["unit_power"])
    rounds = np.ceil(count / resident)
    alone = rounds * path(f.tree) / hertz
    seconds = blend([throughput, alone, f.l2_seconds, f.dram_seconds], FITTED["blend_power"])
    parts |= {"latency": alone, "l2": f.l2_seconds, "dram": f.dram_seconds}
    parts["launch"] = device.launch_seconds
    return Breakdown(seconds + device.launch_seconds, parts)


def blend(parts: list[Numbers], power: float) -> Numbers:
    """Return (sum of parts^power)^(1/power)."""
    total: Numbers = 0.0
    for part in parts:
        total = total + np.asarray(part, np.float64) ** power
    return total ** (1 / power)


@dataclass(slots=True)
class _Clock:
    """When things are free: issue, all that was issued, each unit, each buffer in registers."""

    now: Numbers
    last: Numbers
    units: dict[str, Numbers]
    ready: dict[str, Numbers]
    flight: Numbers


def path(tree: tuple[Piece | Repeat, ...]) -> Numbers:
    """Return the cycles that one CTA takes alone on an SM.

    Only maxima and sums of the tree's numbers occur: it is monotone in each.
    """
    clock = _Clock(0.0, 0.0, {}, {}, 0.0)
    _walk(tree, clock)
    return clock.last


def _walk(tree: tuple[Piece | Repeat, ...], clock: _Clock) -> None:
    for node in tree:
        if isinstance(node, Piece):
            _piece(node, clock)
        elif node.rolled:
            _rolled(node, clock)
        else:
            _unrolled(node, clock)


def _piece(piece: Piece, clock: _Clock) -> None:
    if piece.kind in ("commit", "wait"):
        return  # a wait's cost is its ring's, in _rolled
    if piece.kind == "sync":
        clock.now = clock.last = clock.last + piece.latency
        return
    start = clock.now
    for name in piece.reads:
        if name in clock.ready:
            start = np.maximum(start, clock.ready[name])
    busy = piece.alone
    for unit, cycles in piece.cycles.items():
        if unit not in ("issue", "int"):
            start = np.maximum(start, clock.units.get(unit, 0.0))
        busy = np.maximum(busy, cycles)
    end = start + busy
    for unit in piece.cycles:
        clock.units[unit] = end
    clock.last = np.maximum(clock.last, end)
    if piece.kind == "async":
        clock.flight = np.maximum(clock.flight, piece.latency)
    else:
        clock.ready[piece.write] = (end if piece.unit == "lsu" else start) + piece.latency


def _rolled(loop: Repeat, clock: _Clock) -> None:
    """A loop with a branch: nothing moves across it, so an iteration's time is its period.

    A ring of copies bounds the period by the copies' latency over the groups in flight: weight over
    tokens of the cycle that leads from a copy through its wait to the copy that reuses its slot.
    """
    inner = _Clock(0.0, 0.0, {}, {}, clock.flight)
    _walk(loop.body, inner)
    period = inner.last
    for node in loop.body:
        if isinstance(node, Piece) and node.kind == "wait":
            period = np.maximum(period, inner.flight / (node.pending + 1.0))
    clock.now = clock.last = clock.last + loop.trips * period
    clock.units.clear()
    clock.ready.clear()


def _unrolled(loop: Repeat, clock: _Clock) -> None:
    """An unrolled loop: the first time through its chain, then at the pace of its busiest unit."""
    some = np.asarray(loop.trips) > 0
    pace: Numbers = sum((p.alone for p in loop.body if isinstance(p, Piece)), 0.0)
    for cycles in total_work(loop.body).values():
        pace = np.maximum(pace, cycles)
    more = np.maximum(loop.trips - 1.0, 0.0) * pace
    after = _Clock(clock.now, clock.last, dict(clock.units), dict(clock.ready), clock.flight)
    _walk(loop.body, after)
    clock.now = np.where(some, after.now, clock.now)
    clock.flight = after.flight
    clock.last = np.where(some, after.last + more, clock.last)
    for mine, theirs in ((clock.units, after.units), (clock.ready, after.ready)):
        for name, end in theirs.items():
            before = mine.get(name, 0.0)
            moved = end is not before
            mine[name] = np.where(some, end + more, before) if moved else before
