"""Rates: for how long what an instruction does keeps a unit, read from its value.

- *matrices*: an 8 x 8 matrix of 16-bit elements, or 8 x 4 of tf32, is 32 words, one a lane, so it
  takes the wavefronts that 32 lanes take which read 4 B each: of the eight rows of 16 B four lanes
  read each.  Up to four matrices are one instruction.
- *mma*: an m16n8k8 of tf32 is half an m16n8k16's work at half of its rate: it takes as long.
- *products into tensor memory* of R rows and N columns (of a pair N, of which a CTA reads half)
  take the longer of their reads of shared memory and, for k of 16 16-bit elements, N / 2 cycles
  with R = 128, or with 64 rows alone; N / 4 with 64 rows in each CTA of a pair.  Half of the lanes
  idle where one CTA has 64 rows.  A first input in tensor memory is not read from shared memory.
- *homes*: what a CTA writes into another CTA of its cluster goes through the network between SMs.
  Each of n CTAs along the axis sends its part to all in turn, and takes as much: of n parts one is
  its own, and the others pass its port.
- *lines of tiles*: a grid rounds up, so tiles may reach beyond an array.  With T tiles of e
  elements along an axis and a size of s, the share s / (T e) of their lines is inside.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.isa.instructions import INSTRUCTIONS
>>> block_cycles(INSTRUCTIONS["mma.sync"].blocks_of("bf16"), load_device("a100"))
2.0

Sources: PTX ISA 9, "ldmatrix", "tcgen05.mma", "Tensor-map"; W. Luo et al., arXiv 2402.13499
(mma.sync); SemiAnalysis, microbench-blackwell.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.isa.fragment import Blocks
from tinygpu.numbers import Number, Truth
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.pattern import wavefronts
from tinygpu.term.access_map import Access
from tinygpu.term.program import Do, Program, select

__all__ = [
    "AT_ONCE", "MMA_LATENCY_CYCLES", "block_cycles", "cluster_latency", "copy_cycles", "fill_rate",
    "home_cycles", "matrices", "mbarrier_latency", "product_cycles", "sectors_of_warp",
    "share_inside", "smem_width", "tma_latency", "touches_smem", "transfer_cycles",
]  # fmt: skip

AT_ONCE = 4  # spec: matrices of one ldmatrix.x4
MMA_LATENCY_CYCLES = 24.0  # published: arXiv 2402.13499
_SHARE = {"sm_90a": 0.65, "sm_90": 0.65}  # published: 494 of 757 TFLOP/s, arXiv 2402.13499
_WRITE_BYTES = 64
_HOME_BYTES_PER_CYCLE = 32.0  # fitted: 112 kernels of an H100, 2026-11-25 (docs/decisions.md)
_TMEM_BYTES_PER_CYCLE = 512  # a guess until measured: 128 B for each of four warps
_CELL_BYTES = 4


def tma_latency(device: Device) -> float:
    """Return the cycles that TMA adds to a load in a loop, over the bare instruction's."""
    return device.tma_latency_cycles * FITTED["tma_latency"]


def mbarrier_latency(device: Device) -> float:
    """Return the cycles of a wait at an mbarrier in a loop, its branch and what follows."""
    return device.mbarrier_latency_cycles * FITTED["mbarrier_latency"]


def cluster_latency(device: Device) -> float:
    """Return the cycles of the way to another CTA of the cluster, while loads go it, too."""
    return device.cluster_latency_cycles * FITTED["cluster_latency"]


def fill_rate(device: Device) -> float:
    """Return the bytes a cycle that come into an SM whose neighbours' come, too."""
    return device.fill_bytes_per_cycle_per_sm * FITTED["fill_share"]


def block_cycles(blocks: Blocks, device: Device) -> float:
    """Return for how many cycles a warp's product of one block keeps an SM's tensor cores busy.

    Where warpgroups multiply from shared memory, warps do not reach the whole rate.
    """
    rate = device.tensor_flop_per_cycle_per_sm * _SHARE.get(device.arch, 1.0)
    return 2 * prod(blocks.shape) / (rate * blocks.rate)


def matrices(do: Do) -> tuple[Number, Number]:
    """Return how many 8 x 8 matrices an ldmatrix statement reads, and the wavefronts of each."""
    (read,) = (r for r in do.reads if isinstance(r, Access))
    count = reduce(lambda a, b: a * b, do.values[1:], 1)

    def step(steps: tuple[Number, ...]) -> Number:
        strides = (s for s in read.buffer.stride if not isinstance(s, str))
        return sum((a * s for a, s in zip(steps, strides, strict=True)), 0)

    pair, group = step(read.value[0]), step(read.thread[1])
    row, along = (pair, group) if do.variant == "trans" else (group, pair)
    width = read.buffer.type.bytes
    each = 4 // width
    lanes, steps = (4, 8), (each * along, row)
    return count, wavefronts(lanes, steps, width, each, read.buffer.swizzle)


def product_cycles(do: Do, device: Device, smem_bytes_per_cycle: Number) -> Mapping[str, Number]:
    """Return how long a product occupies the tensor cores and shared memory's port of its SM."""
    k, inner, outer, ctas, high, blocks = do.values
    rows, columns = high * blocks, inner * outer
    inputs = [r for r in do.reads[:2] if isinstance(r, Access)]
    width = max(r.buffer.type.bytes for r in inputs)
    rows_read = rows * (inputs[0].buffer.level == "smem")
    read = (rows_read + columns) * k * width / smem_bytes_per_cycle
    idle = select((rows == 64) & (ctas == 1), 2, 1)
    flop = 2 * rows * columns * ctas * k * width / 2  # in those of 16-bit inputs
    busy = idle * flop / device.tensor_flop_per_cycle_per_sm
    return {"tensor": np.maximum(busy, read), "smem": read}


def copy_cycles(do: Do, smem_bytes_per_cycle: Number) -> Mapping[str, Number]:
    """Return how long a copy from shared memory to tensor memory occupies both.

    A guess until measured: that it is limited by shared memory, and products wait for it.
    """
    moved = reduce(lambda a, b: a * b, do.values, do.write.buffer.type.bytes)
    return {"tensor": moved / smem_bytes_per_cycle, "smem": moved / smem_bytes_per_cycle}


def transfer_cycles(count: Number, device: Device) -> Number:
    """Return how long ``count`` cells take between tensor memory and registers."""
    return count * _CELL_BYTES / _TMEM_BYTES_PER_CYCLE + device.smem_latency_cycles


def line_writes(line_bytes: Number) -> Number:
    """Return the writes that a line of so many bytes is for L2, in the mean over where it begins.

    L2 takes what lies within 64 B at once.
    """
    return (line_bytes + _WRITE_BYTES - np.gcd(line_bytes, _WRITE_BYTES)) / _WRITE_BYTES


def home_cycles(do: Do, count: Number, extents: Mapping[str, Number]) -> Number:
    """Return the cycles that ``count`` elements a copy take into another CTA of its cluster."""
    buffer, ctas = do.write.buffer, extents[do.write.buffer.home]
    return (ctas - 1) / ctas * count * buffer.type.bytes / _HOME_BYTES_PER_CYCLE


def touches_smem(do: Do) -> bool:
    """Say whether a Do reads or writes shared memory."""
    return any(access.buffer.level == "smem" for access in do.accesses)


def smem_width(do: Do) -> int:
    """Return the bytes of the widest element that a Do reads from shared memory."""
    reads = (r for r in do.reads if isinstance(r, Access))
    return max(r.buffer.type.bytes for r in reads if r.buffer.level == "smem")


def share_inside(do: Do, program: Program, values: Mapping[str, int]) -> Number:
    """Return the share of a load's lines, over all tiles, that lie inside the array."""
    share: Number = 1.0
    extents = {axis.var: axis.extent for axis in program.grid}
    for read in do.reads:
        if not isinstance(read, Access):
            continue
        for size, start in zip(read.buffer.shape, read.origin, strict=True):
            for variable, step in start.terms:
                if variable in extents:
                    each = values[step] if isinstance(step, str) else step
                    covered = each * extents[variable].evaluate(values)
                    whole = values[size] if isinstance(size, str) else size
                    share = share * whole / covered
    return share


def sectors_of_warp(do: Do, values: Mapping[str, int], sector_bytes: int) -> Number:
    """Return the sectors that a warp's move of one vector each straight to or from gmem touches."""
    access = next(a for a in do.accesses if a.buffer.level == "gmem")
    strides = [values[s] if isinstance(s, str) else s for s in access.buffer.stride]
    width, total, left = access.buffer.type.bytes, np.float64(1.0), np.int64(32)
    for extent, steps in zip(do.threads, access.thread, strict=True):
        idle: Truth = bool(do.lanes) | (extent == 1)  # those that take no part
        for step in steps:
            idle = idle & (step == 0)
        lanes, fewer = np.minimum(extent, left), np.maximum(left // np.maximum(extent, 1), 1)
        left = select(idle, left, fewer)
        step = sum((step * stride for step, stride in zip(steps, strides, strict=True)), 0) * width
        near = np.ceil(lanes * step / sector_bytes)
        touched = select(np.asanyarray(step) < sector_bytes, near, lanes)
        total = total * select(idle, 1.0, touched)
    return total
