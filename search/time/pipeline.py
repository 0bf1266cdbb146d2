"""Time of programs with barriers: CTAs of agents, and what surrounds them.

What one CTA takes is the recursion's affair (``recursion.py``).  Around it:

- *residence*: clusters that run at once.  A cluster lies within one GPC, so clusters of 4 and more
  leave SMs idle: with one CTA on an SM S of them run at once, with r on each r S; ``share`` CTAs
  of an SM slow each other's units down.
- *tiles*: with W clusters at once, CTAs that stay do ceil(tiles / W) tiles each, in one round;
  others do one: the busiest SM ceil(tiles / S) of them, ``share`` at a time.
- *loads*: a load lands as fast as the slowest of the way into the SM (all that lands), the SM's
  part of L2's rate (what this CTA asks for: multicast asks once) and its part of DRAM's.
- *early starts* hide the prologue, but CTAs then start apart, and fetch more of what they share; a
  launch that leaves the next one room for a part of its clusters takes longer (``late``);
- *DRAM* needs bytes in flight: those of all rings, as far as they come from it;
- *power* goes with the clock to 1 / g (``power_share`` g = 0.4), and the clock falls until the cap
  is met: with c seconds at the highest clock, in which energy for p seconds is used, it takes
  c^(1 - g) max(c, p)^g.  Energy is that of tensor cores, shared memory, L2's and DRAM's
  bytes; tensor cores alone, without a pause, meet the cap at ``tensor_clock_hz``.

The parts of the breakdown are what each unit would take alone; ``latency`` is what remains of the
recursion beyond the longest of them: waits that nothing hides.  Without it the time is a bound that
is monotone in each number, as branch and bound wants it.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> stages = Stages.of(term, {"m": 8192, "n": 8192, "k": 8192}, load_device("h200"))
>>> predict_stages(stages).bottleneck
'power'

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.search.time.asynchronous import Event, Node, TimedAgent, agents
from tinygpu.search.time.breakdown import Breakdown, blend, resolved
from tinygpu.search.time.deferred import applied
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.fitted_pipeline import PIPELINE
from tinygpu.search.time.recursion import Recursion, numbers, of_agent, span_cycles, unit_cycles
from tinygpu.search.time.traffic import Fetched, fetches, operands_of
from tinygpu.term.program import Program, select
from tinygpu.term.tensor_memory import COLUMNS, allocated_columns, uses_tensor_memory

__all__ = ["Placed", "Stages", "predict_stages"]

Numbers = Any
LATE_POWER = 2.0  # fitted: of the room that is left, in what a late start costs
FLYING_POWER = 4.0  # fitted: how sharply DRAM slows down where too few bytes are in flight


@dataclass(frozen=True, slots=True)
class Stages:
    """All that the time of a program with barriers depends on; each number on few decisions.

    ``extents`` counts clusters along the grid's axes, ``cluster`` CTAs of one; ``stages`` are of
    the ring of steps, ``registers`` those of a CTA's threads, ``columns`` of tensor memory.
    """

    device: Device
    agents: tuple[TimedAgent, ...]
    axes: tuple[str, ...]
    extents: tuple[Numbers, ...]
    cluster: Numbers
    raster: Numbers
    persistent: Numbers
    early: Numbers
    steps: Numbers
    stages: Numbers
    threads: Numbers
    smem_bytes: Numbers
    registers: Numbers
    columns: Numbers
    ctas_wanted: Numbers
    operands: tuple[Fetched, ...]
    output: str

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], device: Device) -> Stages:
        """Account for a program with barriers.  Raises ProgramError for roles of another form."""
        values = program.parameter_values(sizes)
        found = agents(program, device, sizes)
        stages = max((b.stages for b in program.barriers), key=np.max)
        size: Numbers = 1
        for _, extent in program.cluster:
            size = size * extent
        held: Numbers = 0
        for buffer in program.buffers:
            if buffer.level == "registers":
                held = np.maximum(held, buffer.stage_elements * buffer.type.bytes / 4)
        registers: Numbers = 0
        for role in program.roles:
            own = held / role.threads + PIPELINE["registers"]
            registers = registers + role.threads * role.copies * select(
                np.asanyarray(role.registers) > 0, role.registers, own
            )
        columns = allocated_columns(program) if uses_tensor_memory(program) else 0
        return Stages(
            device, found, tuple(axis.var for axis in program.grid), program.grid_extents(sizes),
            size, program.raster, program.persistent, program.early, values[found[0].steps], stages,
            program.threads, program.smem_bytes, registers, columns,
            program.ctas_per_sm, operands_of(program, values), program.operation.output.name,
        )  # fmt: skip

    def mapped(self, of: Callable[[Any], Any]) -> Stages:
        """Apply a function to every number."""
        return replace(
            self,
            agents=tuple(of_agent(a, of) for a in self.agents),
            extents=tuple(map(of, self.extents)),
            cluster=of(self.cluster),
            raster=of(self.raster),
            persistent=of(self.persistent),
            early=of(self.early),
            steps=of(self.steps),
            stages=of(self.stages),
            threads=of(self.threads),
            smem_bytes=of(self.smem_bytes),
            registers=of(self.registers),
            columns=of(self.columns),
            ctas_wanted=of(self.ctas_wanted),
        )

    def tiles(self) -> Numbers:
        """Return how many tiles clusters have to do."""
        return reduce(lambda a, b: a * b, self.extents, 1.0)

    def resident(self) -> Numbers:
        """Return how many CTAs fit on an SM, by registers, both memories and threads."""
        device = self.device
        fits = np.maximum(np.floor(device.registers_per_sm / self.registers), self.ctas_wanted)
        smem = self.smem_bytes + device.smem_reserved_bytes_per_cta
        fits = np.minimum(fits, np.floor(device.smem_bytes_per_sm / smem))
        fits = np.minimum(fits, np.floor(COLUMNS / np.maximum(self.columns, 1)))
        fits = np.minimum(fits, np.floor(device.threads_per_sm / self.threads))
        return np.maximum(np.minimum(fits, device.ctas_per_sm), 1.0)

    def spread(self) -> Numbers:
        """Return how many clusters run at once with one CTA on an SM: each lies in one GPC."""
        device, size = self.device, self.cluster
        of_4, of_8 = device.clusters_of_4, device.clusters_of_8
        large = select(np.greater(5, size), of_4, np.floor(of_8 * 8 / size))
        small = np.floor(device.sms / size)
        return np.maximum(select(np.greater(3, size), small, large), 1.0)

    def clusters(self) -> Numbers:
        """Return how many clusters run at once."""
        return self.spread() * self.resident()

    def left_over(self) -> Numbers:
        """Return the room that a launch leaves, over its own, if a second one finds too little."""
        used = np.minimum(self.tiles() / self.clusters(), 1.0)
        return select(used > 0.5, (1 - used) / used, 0.0)


@dataclass(frozen=True, slots=True)
class Placed:
    """A CTA among the others of the chip.

    Its clusters do ``tiles`` in ``waves``; a CTA does ``turns`` of them and has 1 / ``share`` of an
    SM.  ``agents`` know how long their loads take in the busy chip; the bytes are those of the
    whole launch.  ``dram_slow``: how much longer DRAM takes, as too few bytes are in flight.
    """

    agents: tuple[TimedAgent, ...]
    tiles: Numbers
    waves: Numbers
    share: Numbers
    turns: Numbers
    asked_bytes: Numbers
    dram_bytes: Numbers
    stored_bytes: Numbers
    dram_slow: Numbers

    @staticmethod
    def of(s: Stages) -> Placed:
        """Place the CTAs on the device and let their loads share L2 and DRAM."""
        device = s.device
        tiles, spread, fits = s.tiles(), s.spread(), s.resident()
        at_once, busiest = spread * fits, np.ceil(tiles / spread)
        share = np.minimum(busiest, fits)
        rounds = np.maximum(busiest / fits, 1.0)
        waves = select(s.persistent == 1, np.ceil(tiles / at_once), rounds)
        active = np.minimum(tiles, spread) * s.cluster
        l2_rate, dram_rate = _rates(device)
        asked = s.steps * tiles * s.cluster * _asked(s.agents)
        from_dram, stored = _dram_bytes(s, at_once)
        missed = np.minimum(from_dram / asked, 1.0)
        flying = s.stages * _asked(s.agents) * np.minimum(tiles, at_once) * s.cluster
        short = PIPELINE["dram_in_flight"] / (flying * missed)
        slow = (1 + short**FLYING_POWER) ** (1 / FLYING_POWER)
        per_byte = np.maximum(1 / l2_rate, missed * device.clock_hz / dram_rate * slow) * active
        latency = device.l2_latency_cycles + device.tma_latency_cycles
        latency = latency + missed * (device.dram_latency_cycles - device.l2_latency_cycles)
        latency = latency * PIPELINE["loaded_latency"]
        return Placed(
            tuple(_with_loads(agent, per_byte, latency) for agent in s.agents),
            tiles, waves, share, select(s.persistent == 1, waves, 1.0),
            asked, from_dram, stored, slow,
        )  # fmt: skip


def predict_stages(s: Stages) -> Breakdown:
    """Return the time of each candidate."""
    device = s.device
    place = Placed.of(s)
    waves, share = place.waves, place.share
    turns, rounds, timed = place.turns, select(s.persistent == 1, 1.0, waves), place.agents
    asked, from_dram, stored = place.asked_bytes, place.dram_bytes, place.stored_bytes
    l2_rate, dram_rate = _rates(device)
    path = applied(Recursion(timed), share, turns, s.steps, s.stages, *numbers(timed))
    start = PIPELINE["prologue"] + PIPELINE["cluster_start"] * (s.cluster - 1)
    prologue = start * (1 - PIPELINE["early"] * s.early)
    prologue = prologue + PIPELINE["cluster_stays"] * np.minimum(s.cluster - 1, 1)
    path = rounds * (path + PIPELINE["store_end"]) + (rounds - 1) * PIPELINE["next"] + prologue

    def alone(unit: str, of: tuple[TimedAgent, ...]) -> Numbers:
        cycles = sum((_work(agent, s.steps, unit) for agent in of), 0.0)
        return waves * share * cycles / device.clock_hz

    parts = {unit: alone(unit, s.agents) for unit in ("tensor", "smem", "tma", "fill")}
    units, fill = reduce(np.maximum, parts.values()), alone("fill", timed)
    longest = np.maximum(units, fill)
    after = reduce(np.maximum, (span_cycles(a.after) / a.step for a in s.agents))
    parts["epilogue"] = waves * after / device.clock_hz
    parts["latency"] = np.maximum(path / device.clock_hz - longest, 0.0)
    energy = _energy(s, place)

    def capped(seconds: Numbers) -> Numbers:
        share = PIPELINE["power_share"]
        return seconds ** (1 - share) * np.maximum(seconds, energy) ** share

    parts["power"] = longest ** (1 - PIPELINE["power_share"]) * energy ** PIPELINE["power_share"]
    parts["l2"] = (asked + stored) / (l2_rate * device.clock_hz)
    dram = (from_dram + stored) / dram_rate
    parts["dram"] = dram * place.dram_slow
    parts["launch"] = device.launch_seconds

    def together(seconds: Numbers, dram: Numbers, late: Numbers) -> Numbers:
        bounds = [capped(seconds), dram]
        return resolved(blend(bounds, PIPELINE["blend_power"]) * late + device.launch_seconds)

    late = 1 + PIPELINE["late"] * s.early * s.left_over() ** LATE_POWER
    found = together(longest + parts["latency"], parts["dram"], late)
    # neither of these two is monotone: the bytes in flight save time, and room costs it
    floor = together(np.maximum(units, fill / place.dram_slow), dram, 1.0)
    return Breakdown(found, parts, floor)


def _energy(s: Stages, place: Placed) -> Numbers:
    """Return the seconds in which the power cap lets the energy through, at the highest clock.

    Tensor cores alone need so much that their clock falls to ``tensor_clock_hz``.
    """
    device, share = s.device, PIPELINE["power_share"]
    tensor, smem = (
        sum((_work(agent, s.steps, unit) for agent in s.agents), 0.0) for unit in ("tensor", "smem")
    )
    cycles = place.tiles * s.cluster * (tensor + PIPELINE["smem_power"] * smem)
    cycles = cycles + PIPELINE["l2_power"] * place.asked_bytes
    cycles = cycles + PIPELINE["dram_power"] * (place.dram_bytes + place.stored_bytes)
    cycles = cycles / device.sms
    excess = (device.clock_hz / device.tensor_clock_hz) ** (1 / share)
    return cycles * (excess / device.clock_hz)


def _rates(device: Device) -> tuple[float, float]:
    """Return what L2 gives, in bytes a cycle, and DRAM, in bytes a second."""
    l2 = device.l2_bytes_per_cycle * PIPELINE["l2_share"]
    return l2, device.dram_bytes_per_second * PIPELINE["dram_share"]


def _with_loads(agent: TimedAgent, per_byte: Numbers, latency: Numbers) -> TimedAgent:
    """Say how long loads take: they come as fast as the slowest part of their way."""

    def timed(node: Node) -> Node:
        if not isinstance(node, Event):
            return replace(node, body=tuple(map(timed, node.body)))
        if node.kind != "load":
            return node
        fill = np.maximum(node.cycles["fill"], node.fetched_bytes * per_byte)
        return replace(node, cycles={**node.cycles, "fill": fill}, latency=latency)

    return replace(agent, body=tuple(map(timed, agent.body)))


def _asked(all_agents: tuple[TimedAgent, ...]) -> Numbers:
    """Return the bytes that a CTA asks L2 for in a step."""
    total: Numbers = 0.0
    for agent in all_agents:
        for node in agent.body:
            if isinstance(node, Event):
                total = total + node.fetched_bytes
    return total


def _work(agent: TimedAgent, steps: Numbers, unit: str) -> Numbers:
    """Return the cycles of a unit that one tile takes, all copies' together."""
    return agent.together * (steps * unit_cycles(agent.body, unit) + unit_cycles(agent.after, unit))


def _dram_bytes(s: Stages, at_once: Numbers) -> tuple[Numbers, Numbers]:
    """Return the bytes that come from DRAM, and those that go there."""
    loaded = [o for o in s.operands if o.name != s.output]
    stored = sum(o.bytes for o in s.operands if o.name == s.output)
    kept = sum(o.bytes for o in s.operands) <= FITTED["l2_share"] * s.device.l2_bytes
    total: Numbers = 0.0
    for operand in loaded:
        times = (
            1.0
            if kept
            else fetches(operand, s.axes, s.extents, wave=at_once, raster=(s.raster, s.raster))
        )
        sharers: Numbers = 1.0
        for axis, extent in zip(s.axes, s.extents, strict=True):
            sharers = sharers * (1.0 if axis in operand.axes else extent)
        apart = PIPELINE["apart"] * s.early * (1 - 1 / sharers)
        total = total + operand.bytes * times * (1 + apart)
    return total, stored
