"""Bounds: what a program with barriers loses to each limit of a device.

A *limit* is one thing that a device has too little of: L2's rate, the time of a barrier's round
trip, the power.  It costs what its removal saves: the time is predicted again for a device without
the limit, and nothing else changed.  As several limits hold at once, the savings do not add up.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["plain"]))
>>> sizes = {"m": 4096, "n": 4096, "k": 4096}
>>> limits(Timed.of(term, sizes, load_device("h200")))[0].name
'power'

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinygpu.devices.device import Device
from tinygpu.search.explain.causes import Cause, CausePlace
from tinygpu.search.time.breakdown import Breakdown
from tinygpu.search.time.cost import cost
from tinygpu.search.time.pipeline import Stages
from tinygpu.term.program import Program

__all__ = ["LIMITS", "Timed", "launched", "limits", "shares"]

_ENDLESS, _NOTHING = 1e9, 1e-9
"""Factors of a rate, and of a latency, that is no limit."""

LIMITS: Mapping[str, tuple[str, float, tuple[str, ...]]] = {
    "latency of loads": (
        "latency", _NOTHING, ("l2_latency_cycles", "dram_latency_cycles", "tma_latency_cycles"),
    ),
    "round trips of barriers": (
        "latency", _NOTHING,
        ("mbarrier_latency_cycles", "barrier_latency_cycles", "cluster_latency_cycles"),
    ),
    "rate of tensor cores": ("tensor", _ENDLESS, ("tensor_flop_per_cycle_per_sm",)),
    "port of shared memory": ("smem", _ENDLESS, ("smem_bytes_per_cycle_per_sm",)),
    "way from L2 to an SM": ("fill", _ENDLESS, ("fill_bytes_per_cycle_per_sm",)),
    "rate of L2": ("l2", _ENDLESS, ("l2_bytes_per_cycle",)),
    "rate of DRAM": ("dram", _ENDLESS, ("dram_bytes_per_second",)),
    "power": ("power", _ENDLESS, ("tensor_clock_hz",)),
}  # fmt: skip
"""Each limit: the part of the breakdown that shows it, the factor, the device's numbers."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A program with barriers at given sizes on a device, and its time."""

    program: Program
    sizes: Mapping[str, int]
    device: Device
    time: Breakdown

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], device: Device) -> Timed:
        """Predict its time."""
        return Timed(program, sizes, device, cost(program, sizes, device))

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return float(self.time.seconds)


def limits(timed: Timed) -> tuple[Cause, ...]:
    """Return what each limit costs, the most costly first; those that cost nothing are left out."""
    found: list[Cause] = []
    device = timed.device
    for name, (part, factor, fields) in LIMITS.items():
        values = {field: getattr(device, field) for field in fields}
        free = device.with_values(**{f: value * factor for f, value in values.items()})
        saves = timed.seconds - float(cost(timed.program, timed.sizes, free).seconds)
        if saves <= 0:
            continue
        here = ", ".join(f"{field} {value:.4g}" for field, value in values.items())
        place = CausePlace(device.name, here, "no limit", saves)
        found.append(Cause(name, part, saves, saves, (place,)))
    return tuple(sorted(found, key=lambda cause: -cause.saves_seconds))


def shares(timed: Timed) -> dict[str, float]:
    """Return, for each limit, the seconds of the part of the breakdown that shows it."""
    parts = timed.time.parts
    return {name: float(parts[part]) for name, (part, _, _) in LIMITS.items() if part in parts}


def launched(timed: Timed) -> str:
    """Say what is launched: clusters, CTAs, threads, and how many run at once."""
    s = Stages.of(timed.program, timed.sizes, timed.device)
    tiles, at_once, size = int(s.tiles()), int(s.clusters()), int(s.cluster)
    clusters = min(tiles, at_once) if s.persistent else tiles
    of = f" in clusters of {size}" if size > 1 else ""
    return (
        f"{clusters * size} CTAs{of} of {int(s.threads)} threads, {int(s.smem_bytes)} B of shared "
        f"memory, {int(s.resident())} on an SM; {tiles * size} tiles, {at_once * size} at once"
    )
