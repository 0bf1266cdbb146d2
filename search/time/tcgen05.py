"""Cycles of tcgen05: products into tensor memory, and what takes them out.

A product of R rows and N columns (of a pair N, of which a CTA reads half) takes the longer of

    N / 2 cycles with R = 128, or with 64 rows alone; N / 4 with 64 rows in each CTA of a pair
    its reads of shared memory

for k of 16 16-bit elements: half of the lanes idle where one CTA has 64 rows.  A first input in
tensor memory is not read from shared memory, but has been copied from there (tcgen05.cp) before.

Source: SemiAnalysis, microbench-blackwell (``umma`` throughput); PTX ISA 9, "tcgen05.mma".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.term.access_map import Access
from tinygpu.term.program import Do, select

__all__ = ["copy_cycles", "product_cycles", "row_sectors", "transfer_cycles"]

Numbers = Any
_TMEM_BYTES_PER_CYCLE = 512  # a guess until measured: 128 B for each of four warps
_CELL_BYTES = 4


def product_cycles(do: Do, device: Device, smem_bytes_per_cycle: Numbers) -> Mapping[str, Numbers]:
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


def copy_cycles(do: Do, smem_bytes_per_cycle: Numbers) -> Mapping[str, Numbers]:
    """Return how long a copy from shared memory to tensor memory occupies both.

    A guess until measured: that it is limited by shared memory, and products wait for it.
    """
    moved: Numbers = do.write.buffer.type.bytes
    for extent in do.values:
        moved = moved * extent
    return {"tensor": moved / smem_bytes_per_cycle, "smem": moved / smem_bytes_per_cycle}


def transfer_cycles(count: Numbers, device: Device) -> Numbers:
    """Return how long ``count`` cells take between tensor memory and registers."""
    return count * _CELL_BYTES / _TMEM_BYTES_PER_CYCLE + device.smem_latency_cycles


def row_sectors(do: Do, count: Numbers, device: Device) -> Numbers:
    """Return the sectors that storing ``count`` elements of rows, a row a thread, touches."""
    each = do.vector * do.write.buffer.type.bytes / device.sector_bytes
    return np.maximum(each, 1) * count / do.vector
