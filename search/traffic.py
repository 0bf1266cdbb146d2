"""Traffic: what a launch moves through L2 and DRAM, and how far away a load's data is.

CTAs run in *waves* of as many as fit on the chip.  A wave covers a block of tiles (its shape is the
raster's), so of an operand it needs the parts under that block, once from DRAM if L2 can hold what
the wave needs at a time, and again in every wave unless L2 holds the whole operand between.

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.device import Device
from tinygpu.program import Access, Do, For, Program, select, span, walk

__all__ = ["Traffic"]

Numbers = Any
L2_SHARE = 0.7  # fitted: the part of L2 that data survives in until it is used again


@dataclass(frozen=True, slots=True)
class Traffic:
    """A launch's traffic in bytes, its grid, and what decides where data is found."""

    program: Program
    device: Device
    values: Mapping[str, Any]
    ctas: Numbers
    resident: Numbers
    registers: Numbers

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], device: Device) -> Traffic:
        """Account for a launch at these sizes."""
        from tinygpu.registers import register_estimate, register_limit

        values = program.parameter_values(sizes)
        ctas: Numbers = 1
        for extent in program.grid_extents(sizes):
            ctas = ctas * extent
        unit = device.register_allocation_unit
        wanted = np.minimum(register_estimate(program), register_limit(program, device))
        registers = np.ceil(wanted / unit) * unit
        smem = program.smem_bytes + device.smem_reserved_bytes_per_cta
        fits = [
            device.registers_per_sm // (registers * program.threads),
            device.smem_bytes_per_sm // smem,
            device.threads_per_sm // program.threads,
        ]
        resident: Numbers = device.ctas_per_sm
        for number in fits:
            resident = np.minimum(resident, number)
        return Traffic(program, device, values, ctas, np.maximum(resident, 1), registers)

    def number(self, number: int | str) -> Numbers:
        return self.values[number] if isinstance(number, str) else number

    def operand_bytes(self, name: str) -> float:
        """Return an operand's size."""
        buffer = next(b for b in self.program.buffers if b.name == name)
        total = float(buffer.type.bytes)
        for axis in buffer.shape:
            total *= float(self.number(axis))
        return total

    def gathered(self) -> dict[str, tuple[Numbers, Numbers]]:
        """Return for each operand the bytes that all CTAs fetch, and those that all waves need."""
        found: dict[str, tuple[Numbers, Numbers]] = {}
        axes = [a.var for a in self.program.grid]
        extents = dict(zip(axes, self.program.grid_extents(self.values), strict=True))
        wave = np.minimum(self.device.sms * self.resident, self.ctas)
        covered = self._covered(axes, extents, wave)
        waves = self.ctas / wave
        for statement, around in walk(self.program):
            if not isinstance(statement, Do):
                continue
            for access in statement.accesses:
                if access.buffer.level != "gmem" or access.buffer.name in found:
                    continue
                size = self.operand_bytes(access.buffer.name)
                names = {v for o in access.origin for v, _ in o.terms}
                again: Numbers = 1.0  # how many CTAs fetch each part
                parts: Numbers = 1.0  # how many parts of the operand a wave covers
                for axis in axes:
                    if axis in names:
                        parts = parts * covered[axis] / extents[axis]
                    else:
                        again = again * extents[axis]
                looped = any(isinstance(f, For) for f in around)
                found[access.buffer.name] = (
                    size * (again if looped else 1.0),
                    np.minimum(waves * parts, again) * size,
                )
        return found

    def _covered(
        self, axes: list[str], extents: Mapping[str, Numbers], wave: Numbers
    ) -> dict[str, Numbers]:
        """Return how many tiles along each axis a wave covers."""
        covered: dict[str, Numbers] = {}
        left = wave
        if len(axes) >= 2:
            rows, columns = extents[axes[-2]], extents[axes[-1]]
            group = np.minimum(self.program.raster, rows)
            columns_here = np.minimum(columns, np.maximum(left / group, 1.0))
            rows_here = np.minimum(rows, np.maximum(left / columns_here, 1.0))
            covered[axes[-1]], covered[axes[-2]] = columns_here, rows_here
            left = np.maximum(left / (columns_here * rows_here), 1.0)
        elif axes:
            covered[axes[-1]] = np.minimum(extents[axes[-1]], left)
            left = 1.0
        for axis in reversed(axes[:-2]):
            covered[axis] = np.minimum(extents[axis], left)
            left = np.maximum(left / covered[axis], 1.0)
        return covered

    def dram_bytes(self) -> Numbers:
        """Return the bytes from and to DRAM."""
        gathered = self.gathered()
        sizes = {name: self.operand_bytes(name) for name in gathered}
        kept = sum(sizes.values()) <= L2_SHARE * self.device.l2_bytes
        total: Numbers = 0.0
        for name, (_, waves) in gathered.items():
            total = total + (sizes[name] if kept else np.maximum(waves, sizes[name]))
        return total

    def l2_bytes(self) -> Numbers:
        """Return the bytes between L2 and the SMs."""
        return sum((fetched for fetched, _ in self.gathered().values()), 0.0)

    def latency(self, access: Access, around: tuple[For, ...]) -> Numbers:
        """Return the cycles after which a load's data is there, on average over the iterations.

        An iteration pays the way to L2, or to DRAM, if it is the first to touch a sector; along the
        contiguous dimension several iterations share one.
        """
        device = self.device
        sizes = [self.operand_bytes(b.name) for b in self.program.buffers if b.level == "gmem"]
        kept = sum(sizes) <= L2_SHARE * device.l2_bytes
        far = device.l2_latency_cycles if kept else device.dram_latency_cycles
        fresh: Numbers = 0.0
        innermost = len(access.buffer.shape) - 1
        for loop in around:
            for d, origin in enumerate(access.origin):
                step: Numbers = sum((c for v, c in origin.terms if v == loop.var), 0)
                if d == innermost:
                    bytes_ = np.maximum(step, 0) * access.buffer.type.bytes
                    fresh = np.maximum(fresh, np.minimum(bytes_ / device.sector_bytes, 1.0))
                else:
                    fresh = np.maximum(fresh, select(np.asarray(step) != 0, 1.0, 0.0))
        if not around:
            fresh = 1.0
        near = device.l1_latency_cycles
        return near + (far - near) * fresh
