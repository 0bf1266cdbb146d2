"""Launch: the grid, how many CTAs are at once on the chip, what moves through L2 and DRAM.

It surrounds what one CTA does, of every machine alike:

- *residence*: a CTA takes registers, shared and tensor memory, threads of an SM; as many fit as the
  scarcest allows.  A cluster lies within one GPC, so clusters of 4 and more leave SMs idle: with
  one CTA on an SM S of them run at once, with r on each r S.
- *waves*: CTAs are spread before they are stacked, so the busiest SM has ceil(clusters / S) of
  them, as many as fit at a time; CTAs that stay do ceil(tiles / at once) tiles each.
- *traffic*: a wave covers a block of tiles, whose shape is the raster's, and needs the parts of
  each operand under that block.  A part comes from DRAM once a wave that needs it, but once in all
  if L2 holds all operands; it comes from L2 once a CTA that needs it.

With R x C tiles, W CTAs a wave and groups of g rows, a wave covers r = min(R, g) rows and
c = min(C, W / g) columns, so an operand indexed by

    rows and columns    is fetched once
    rows alone          C r / W times
    columns alone       R c / W times
    neither             R C / W times           each at least once

Axes before these two count as often as they do not index it, less those that a wave spans together.
What groups of rows index as well counts with the rows of one group; where tiles have steps of
their own and share what they read in them, that comes once, and ``tile_steps`` says what again.

A launch that may start *early* starts its CTAs apart: they fetch more of what they share.

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.numbers import Change, Number
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.registers import RegisterModel
from tinygpu.term.groups import FIRST, GROUP
from tinygpu.term.plan import Term, kernels_of
from tinygpu.term.program import Access, Do, For, Program, buffers_of, select, walk
from tinygpu.term.tensor_memory import COLUMNS, allocated_columns

__all__ = [
    "Assembled", "Fetched", "GridLaunch", "fetches", "latency_of", "never", "operands_of",
    "takes_tiles",
]  # fmt: skip

SPILL_BYTES = 16  # fitted: of a spilled register's stores and loads


@dataclass(frozen=True, slots=True)
class Fetched:
    """An array in global memory: its bytes, the grid axes that index it, if a loop walks it."""

    name: str
    bytes: float
    axes: frozenset[str]
    looped: bool
    groups: Mapping[str, int]  # by an axis that chooses one, which indexes it: how many

    def sharers(self, axis: str, extent: Number) -> Number:
        """Return how many tiles along an axis read the same; a group's last may have no rows."""
        if axis in self.groups:
            return np.maximum(extent / self.groups[axis] - 1, 1.0)
        return 1.0 if axis in self.axes else extent


@dataclass(frozen=True, slots=True)
class Assembled:
    """What the assembler says of a kernel: a thread's registers, and the bytes of its spills."""

    registers: int
    spilled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """A launch: everything about it that time depends on, beside the work of a CTA.

    ``extents`` counts clusters along the grid's axes, ``cluster`` CTAs of one.  ``raster`` and
    ``ctas_wanted`` are given twice: the least and the greatest among the candidates.
    ``ahead`` are the registers that loads in flight hold, ``spills`` those known to be spilled.
    ``allotted`` are the registers of a CTA where its roles say how many they take (0: they do
    not), ``columns`` those of its tensor memory.  ``cleared_bytes`` of the ``outputs`` are set to
    zero by a launch of their own before it.  ``without`` names wastes that are thought away: "tail"
    (SMs have as many CTAs each, every round is full), "dram" and "l2" (bytes move once), "path"
    (it is hidden), "fetch" and "launch" (they take no time).
    """

    device: Device
    axes: tuple[str, ...]
    extents: tuple[Number, ...]
    cluster: Number
    raster: tuple[Number, Number]
    persistent: Number
    early: Number
    threads: Number
    smem_bytes: Number
    registers: RegisterModel
    allotted: Number
    columns: Number
    ctas_wanted: tuple[Number, Number]
    operands: tuple[Fetched, ...]
    outputs: tuple[str, ...]
    cleared_bytes: float = 0.0
    ahead: Number = 0.0
    spills: float | None = None
    without: frozenset[str] = frozenset()

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], device: Device) -> GridLaunch:
        """Account for a launch at these sizes."""
        values = program.parameter_values(sizes)
        operands = operands_of(program, values)
        outputs = tuple(o.name for o in program.operation.outputs)
        tiles = takes_tiles(program)
        return GridLaunch(
            device=device,
            axes=tuple(axis.var for axis in program.grid),
            extents=program.grid_extents(sizes),
            cluster=prod(extent for _, extent in program.cluster),
            raster=(program.raster, program.raster),
            persistent=program.persistent,
            early=program.early,
            threads=program.threads,
            smem_bytes=program.smem_bytes,
            registers=RegisterModel((), (), ()) if tiles else RegisterModel.of(program),
            allotted=_allotted(program) if tiles else 0,
            columns=allocated_columns(program) if program.in_tmem else 0,
            ctas_wanted=(program.ctas_per_sm, program.ctas_per_sm),
            operands=operands,
            outputs=outputs,
            cleared_bytes=sum(o.bytes for o in operands if o.name in outputs and program.zeroed),
        )

    def assembled(self, code: Assembled) -> GridLaunch:
        """Return the launch of code whose registers and spills are known."""
        known = RegisterModel((code.registers,), (code.registers,), ())
        return replace(self, registers=known, spills=code.spilled_bytes / SPILL_BYTES)

    def mapped(self, low: Change, high: Change) -> GridLaunch:
        """Apply ``low`` to what costs time, ``high`` to what saves it."""
        return replace(
            self,
            extents=tuple(map(low, self.extents)),
            cluster=low(self.cluster),
            raster=(low(self.raster[0]), high(self.raster[1])),
            persistent=low(self.persistent),
            early=low(self.early),
            threads=low(self.threads),
            smem_bytes=low(self.smem_bytes),
            registers=self.registers.mapped(low, high),
            ahead=low(self.ahead),
            allotted=low(self.allotted),
            columns=low(self.columns),
            ctas_wanted=(low(self.ctas_wanted[0]), high(self.ctas_wanted[1])),
        )

    def tiles(self) -> Number:
        """Return how many tiles clusters have to do: one each, if they do not stay."""
        return prod(self.extents, start=1.0)

    def resident(self) -> Number:
        """Return how many CTAs fit on an SM, by registers, both memories and threads.

        Of a cluster of more than 8 it is one (measured: H100, kernels with room for two).
        """
        device = self.device
        fits: Number = np.floor(device.registers_per_sm / self._registers())
        fits = np.maximum(fits, self.ctas_wanted[1])  # the assembler is told to make them fit
        smem = self.smem_bytes + device.smem_reserved_bytes_per_cta
        fits = np.minimum(fits, np.floor(device.smem_bytes_per_sm / smem))
        fits = np.minimum(fits, np.floor(device.threads_per_sm / self.threads))
        columns = np.floor(COLUMNS / np.maximum(self.columns, 1))
        one: Number = 1.0
        fits = select(np.greater(self.cluster, 8), one, fits)
        most: Number = np.maximum(np.minimum(fits, np.minimum(columns, device.ctas_per_sm)), 1.0)
        return most

    def _registers(self) -> Number:
        """Return the registers of a CTA."""
        if not never(self.allotted):
            return self.allotted
        unit = self.device.register_allocation_unit
        each: Number = np.ceil((self.registers.registers() + self.ahead) / unit) * unit
        each = np.minimum(each, self.device.registers_per_thread_max)
        return each * self.threads

    def spilled(self) -> Number:
        """Return the registers of a thread for which there is no room."""
        if self.spills is not None:
            return self.spills
        if not self.registers.parts and not never(self.allotted):
            return 0.0
        device, unit = self.device, self.device.register_allocation_unit
        room = device.registers_per_sm / (self.threads * self.ctas_wanted[0])
        room = np.minimum(np.floor(room / unit) * unit, device.registers_per_thread_max)
        spilled: Number = np.maximum(self.registers.registers() - room, 0.0)
        return spilled

    def spread(self) -> Number:
        """Return how many clusters run at once with one CTA on an SM: each lies in one GPC."""
        device, size = self.device, self.cluster
        if isinstance(size, int) and size == 1:
            return device.sms
        of_4, of_8, of_16 = device.clusters_of_4, device.clusters_of_8, device.clusters_of_16
        most = select(np.greater(9, size), of_8 * 8, of_16 * 16)
        large: Number = np.floor(most / size)
        large = select(np.greater(5, size), of_4, large)
        small: Number = np.floor(device.sms / size)
        spread: Number = np.maximum(select(np.greater(3, size), small, large), 1.0)
        return spread

    def clusters(self) -> Number:
        """Return how many clusters run at once."""
        return self.spread() * self.resident()

    def left_over(self) -> Number:
        """Return the room that a launch leaves, over its own, if a second one finds too little."""
        used = np.minimum(self.tiles() / self.clusters(), 1.0)
        return select(used > 0.5, (1 - used) / used, 0.0)

    def clear_seconds(self) -> float:
        """Return the time of the launch that clears the output, in L2 where that has room."""
        if not self.cleared_bytes or "launch" in self.without:
            return 0.0
        device = self.device
        rate = device.l2_bytes_per_cycle * device.clock_hz
        if self.cleared_bytes > FITTED["l2_share"] * device.l2_bytes:
            rate = device.dram_bytes_per_second * FITTED["dram_share"]
        return device.launch_seconds + self.cleared_bytes / rate

    def l2_bytes(self) -> Number:
        """Return the bytes between L2 and the SMs."""
        once = "l2" in self.without
        return sum(o.bytes * (1.0 if once else self._sharers(o)) for o in self.operands)

    def _sharers(self, operand: Fetched) -> Number:
        return prod(map(operand.sharers, self.axes, self.extents), start=1.0)

    def shared_axes(self) -> frozenset[str]:
        """Return the axes of the grid that index what the steps of a tile read."""
        return frozenset[str]().union(*(o.axes for o in self._read_in_steps()))

    def shared_bytes(self) -> float:
        """Return the bytes of what the steps of tiles read."""
        return sum(o.bytes for o in self._read_in_steps())

    def _read_in_steps(self) -> list[Fetched]:
        return [o for o in self.operands if o.looped and o.name not in self.outputs]

    def held(self) -> Number:
        """Return how many of the parts that tiles read in their steps L2 has room for."""
        shared = self.shared_axes()
        each = (e for a, e in zip(self.axes, self.extents, strict=True) if a in shared)
        return prod(each, start=float(self.device.l2_bytes)) / self.shared_bytes()

    def dram_bytes(self, resident: Number, *, by_tile: bool = False) -> tuple[Number, Number]:
        """Return the bytes that come from DRAM, and those that go there.

        ``by_tile``: tiles have steps of their own, so what these read comes once
        (``tile_steps.Refetched`` says what comes again).
        """
        kept = sum(o.bytes for o in self.operands) <= FITTED["l2_share"] * self.device.l2_bytes
        once = "dram" in self.without
        wave = self.spread() * resident
        total: dict[bool, Number] = {False: 0.0, True: 0.0}
        for o in self.operands:
            times: Number = 1.0
            if not (kept or once or (by_tile and o.looped)):
                times = fetches(o, self.axes, self.extents, wave=wave, raster=self.raster)
            moved, stored = o.bytes * times, o.name in self.outputs
            if not (stored or once or never(self.early)):
                moved = moved * (1 + FITTED["apart"] * self.early * (1 - 1 / self._sharers(o)))
            total[stored] = total[stored] + moved
        return total[False], total[True]


def never(number: Number) -> bool:
    """Say whether a number is 0 in every candidate."""
    return isinstance(number, int | float) and not number


def takes_tiles(term: Term) -> bool:
    """Say whether roles do a tile together, statement by statement, and then the next."""
    return any(program.barriers for program in kernels_of(term))


def _allotted(program: Program) -> Number:
    """Return the registers of a CTA: what its roles set, or their share of what holds sums."""
    held: Number = 0
    for role in program.roles:
        for buffer in buffers_of(role.body):
            if buffer.level == "registers":
                many = buffer.stage_elements * buffer.type.bytes / 4 * role.threads
                held = np.maximum(held, many)
    total: Number = 0
    for role in program.roles:
        own = held / role.threads + FITTED["registers"]
        each = select(np.asanyarray(role.registers) > 0, role.registers, own)
        total = total + role.threads * role.copies * each
    return total


def operands_of(program: Program, values: Mapping[str, int]) -> tuple[Fetched, ...]:
    """Return the arrays that a program touches, at these sizes and parameters."""
    found: dict[str, Fetched] = {}
    grid, groups = frozenset(a.var for a in program.grid), program.operation.groups
    choose = grid.intersection(program.tile_values[GROUP].names() if groups else ())
    many = dict.fromkeys(choose, values[groups.axis] if groups else 0)
    for statement, around in walk(program):
        if not isinstance(statement, Do):
            continue
        for access in statement.accesses:
            buffer = access.buffer
            if buffer.level == "gmem" and buffer.name not in found:
                each = (float(values[a] if isinstance(a, str) else a) for a in buffer.shape)
                size = prod(each, start=float(buffer.type.bytes))
                names = {v for o in access.origin for v, _ in o.terms}
                axes = grid & (names | choose if FIRST in names else names)
                looped = any(isinstance(outer, For) for outer in around)
                own = many if GROUP in names else {}
                found[buffer.name] = Fetched(buffer.name, size, axes, looped, own)
    return tuple(found.values())


def fetches(
    operand: Fetched,
    axes: tuple[str, ...],
    extents: tuple[Number, ...],
    *,
    wave: Number,
    raster: tuple[Number, Number],
) -> Number:
    """Return how often an operand comes from DRAM; ``wave`` tiles are done at once."""
    outer: Number = 1.0
    inner: Number = prod(extents[-2:], start=1.0)
    for axis, extent in reversed([*zip(axes[:-2], extents[:-2], strict=True)]):
        alike = operand.sharers(axis, extent)
        outer = outer * np.maximum(alike / np.maximum(wave / inner, 1.0), 1.0)
        inner = inner * extent
    if len(axes) < 2:
        return outer
    rows, columns = map(operand.sharers, axes[-2:], extents[-2:])
    by_row, by_column = (axis in operand.axes for axis in axes[-2:])
    if by_row:
        times = columns * np.minimum(np.minimum(extents[-2], raster[0]) / wave, 1.0)
    elif by_column:
        times = rows * np.minimum(extents[-1] / wave, 1.0 / raster[1])
    else:
        times = rows * columns / wave
    return outer * np.maximum(times, 1.0)


def latency_of(access: Access, around: tuple[For, ...], *, device: Device) -> Number:
    """Return the cycles after which a load's data is there, on average over the iterations.

    An iteration pays the way to DRAM where it is the first to touch a sector: inputs are cold, and
    the CTAs that share a sector ask for it at about the same time.  Along the contiguous dimension
    several iterations share one.
    """
    fresh: Number = 0.0 if around else 1.0
    innermost = len(access.buffer.shape) - 1
    for loop in around:
        for d, origin in enumerate(access.origin):
            steps = [c for v, c in origin.terms if v == loop.var]
            if any(isinstance(c, str) for c in steps):
                fresh = 1.0  # a launch's stride: past all that the CTAs have just touched
                continue
            step = sum((c for c in steps if not isinstance(c, str)), 0)
            if d == innermost:
                reached = np.maximum(step, 0) * access.buffer.type.bytes / device.sector_bytes
                fresh = np.maximum(fresh, np.minimum(reached, 1.0))
            else:
                fresh = np.maximum(fresh, select(np.asanyarray(step) != 0, 1.0, 0.0))
    near, far = device.l1_latency_cycles, device.dram_latency_cycles
    return near + (far - near) * fresh
