"""Traffic: the grid of a launch, how many CTAs fit on an SM, what moves through L2 and DRAM.

CTAs run in *waves* of as many as fit on the chip.  A wave covers a block of tiles, whose shape is
the raster's, and needs the parts of each operand under that block.  A part comes from DRAM once a
wave that needs it, but once in all if L2 holds all operands; it comes from L2 once a CTA that needs
it.

With R x C tiles, W CTAs a wave and groups of g rows, a wave covers r = min(R, g) rows and
c = min(C, W / g) columns, so an operand indexed by

    rows and columns    is fetched once
    rows alone          C r / W times
    columns alone       R c / W times
    neither             R C / W times           each at least once

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.registers import RegisterModel
from tinygpu.term.program import Access, Do, For, Program, select, walk

__all__ = ["Fetched", "GridLaunch", "fetches", "latency_of", "operands_of"]

Numbers = Any
"""A number, or an array of them that broadcasts."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An array in global memory: its bytes, the grid axes that index it, if a loop walks it."""

    name: str
    bytes: float
    axes: frozenset[str]
    looped: bool


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """A launch: everything about it that time depends on, beside the work of a CTA.

    ``raster`` and ``ctas_wanted`` are given twice: the least and the greatest among the candidates.
    ``cleared_bytes`` of the output are set to zero by a launch of their own before it.
    """

    device: Device
    axes: tuple[str, ...]
    extents: tuple[Numbers, ...]
    raster: tuple[Numbers, Numbers]
    threads: Numbers
    smem_bytes: Numbers
    registers: RegisterModel
    ctas_wanted: tuple[Numbers, Numbers]
    operands: tuple[Fetched, ...]
    cleared_bytes: float = 0.0

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], device: Device) -> GridLaunch:
        """Account for a launch at these sizes."""
        values = program.parameter_values(sizes)
        operands = operands_of(program, values)
        output = program.operation.output.name
        cleared = sum(o.bytes for o in operands if o.name == output and program.zeroed)
        return GridLaunch(
            device,
            tuple(axis.var for axis in program.grid),
            program.grid_extents(sizes),
            (program.raster, program.raster),
            program.threads,
            program.smem_bytes,
            RegisterModel.of(program),
            (program.ctas_per_sm, program.ctas_per_sm),
            operands,
            cleared,
        )

    def mapped(self, low: Callable[[Any], Any], high: Callable[[Any], Any]) -> GridLaunch:
        """Apply ``low`` to what costs time, ``high`` to what saves it."""
        return replace(
            self,
            extents=tuple(map(low, self.extents)),
            raster=(low(self.raster[0]), high(self.raster[1])),
            threads=low(self.threads),
            smem_bytes=low(self.smem_bytes),
            registers=self.registers.mapped(low, high),
            ctas_wanted=(low(self.ctas_wanted[0]), high(self.ctas_wanted[1])),
        )

    def ctas(self) -> Numbers:
        """Return how many CTAs the grid has."""
        total: Numbers = 1.0
        for extent in self.extents:
            total = total * extent
        return total

    def resident(self) -> Numbers:
        """Return how many CTAs fit on an SM, by registers, shared memory and threads."""
        device, unit = self.device, self.device.register_allocation_unit
        registers = np.ceil(self.registers.registers() / unit) * unit
        registers = np.minimum(registers, device.registers_per_thread_max)
        # the assembler is told to make ctas_wanted fit
        fits = np.floor(device.registers_per_sm / (registers * self.threads))
        fits = np.maximum(fits, self.ctas_wanted[1])
        smem = self.smem_bytes + device.smem_reserved_bytes_per_cta
        fits = np.minimum(fits, np.floor(device.smem_bytes_per_sm / smem))
        fits = np.minimum(fits, np.floor(device.threads_per_sm / self.threads))
        return np.maximum(np.minimum(fits, device.ctas_per_sm), 1.0)

    def spilled(self) -> Numbers:
        """Return the registers of a thread for which there is no room."""
        device, unit = self.device, self.device.register_allocation_unit
        room = device.registers_per_sm / (self.threads * self.ctas_wanted[0])
        room = np.minimum(np.floor(room / unit) * unit, device.registers_per_thread_max)
        return np.maximum(self.registers.registers() - room, 0.0)

    def clear_seconds(self) -> float:
        """Return the time of the launch that clears the output, in L2 where that has room."""
        if not self.cleared_bytes:
            return 0.0
        device = self.device
        rate = device.l2_bytes_per_cycle * device.clock_hz
        if self.cleared_bytes > FITTED["l2_share"] * device.l2_bytes:
            rate = device.dram_bytes_per_second * FITTED["dram_share"]
        return device.launch_seconds + self.cleared_bytes / rate

    def l2_bytes(self) -> Numbers:
        """Return the bytes between L2 and the SMs."""
        total: Numbers = 0.0
        for operand in self.operands:
            again: Numbers = 1.0
            for axis, extent in zip(self.axes, self.extents, strict=True):
                if axis not in operand.axes:
                    again = again * extent
            total = total + operand.bytes * again
        return total

    def dram_bytes(self, resident: Numbers) -> Numbers:
        """Return the bytes between DRAM and L2."""
        if sum(o.bytes for o in self.operands) <= FITTED["l2_share"] * self.device.l2_bytes:
            return sum(o.bytes for o in self.operands)
        wave = self.device.sms * resident
        total: Numbers = 0.0
        for o in self.operands:
            times = fetches(o, self.axes, self.extents, wave=wave, raster=self.raster)
            total = total + o.bytes * times
        return total


def operands_of(program: Program, values: Mapping[str, int]) -> tuple[Fetched, ...]:
    """Return the arrays that a program touches, at these sizes and parameters."""
    found: dict[str, Fetched] = {}
    grid = {axis.var for axis in program.grid}
    for statement, around in walk(program):
        if not isinstance(statement, Do):
            continue
        for access in statement.accesses:
            buffer = access.buffer
            if buffer.level == "gmem" and buffer.name not in found:
                size = float(buffer.type.bytes)
                for axis in buffer.shape:
                    size *= float(values[axis] if isinstance(axis, str) else axis)
                names = {v for o in access.origin for v, _ in o.terms}
                looped = any(isinstance(outer, For) for outer in around)
                found[buffer.name] = Fetched(buffer.name, size, frozenset(names & grid), looped)
    return tuple(found.values())


def fetches(
    operand: Fetched,
    axes: tuple[str, ...],
    extents: tuple[Numbers, ...],
    *,
    wave: Numbers,
    raster: tuple[Numbers, Numbers],
) -> Numbers:
    """Return how often an operand comes from DRAM; ``wave`` tiles are done at once."""
    outer: Numbers = 1.0
    for axis, extent in zip(axes[:-2], extents[:-2], strict=True):
        if axis not in operand.axes:
            outer = outer * extent
    if len(axes) < 2:
        return outer
    rows, columns = extents[-2:]
    by_row, by_column = (axis in operand.axes for axis in axes[-2:])
    if by_row and by_column:
        return outer
    if by_row:
        times = columns * np.minimum(rows, raster[0]) / wave
    elif by_column:
        times = rows * np.minimum(columns / wave, 1.0 / raster[1])
    else:
        times = rows * columns / wave
    return outer * np.maximum(times, 1.0)


def latency_of(access: Access, around: tuple[For, ...], *, device: Device) -> Numbers:
    """Return the cycles after which a load's data is there, on average over the iterations.

    An iteration pays the way to DRAM where it is the first to touch a sector: inputs are cold, and
    the CTAs that share a sector ask for it at about the same time.  Along the contiguous dimension
    several iterations share one.
    """
    fresh: Numbers = 0.0 if around else 1.0
    innermost = len(access.buffer.shape) - 1
    for loop in around:
        for d, origin in enumerate(access.origin):
            steps = [c for v, c in origin.terms if v == loop.var]
            if any(isinstance(c, str) for c in steps):
                fresh = 1.0  # a launch's stride: past all that the CTAs have just touched
                continue
            step: Numbers = sum(steps, 0)
            if d == innermost:
                reached = np.maximum(step, 0) * access.buffer.type.bytes / device.sector_bytes
                fresh = np.maximum(fresh, np.minimum(reached, 1.0))
            else:
                fresh = np.maximum(fresh, select(np.asanyarray(step) != 0, 1.0, 0.0))
    near, far = device.l1_latency_cycles, device.dram_latency_cycles
    return near + (far - near) * fresh
