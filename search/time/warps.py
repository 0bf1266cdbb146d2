"""Work of what a warp does together: the wavefronts of ldmatrix, the tensor core's cycles of mma.

An 8 x 8 matrix of 16-bit elements, or 8 x 4 of tf32, is 32 words, one a lane, so it takes the
wavefronts that 32 lanes take which read 4 B each: of the eight rows of 16 B four lanes read each.
Up to four matrices are one instruction.  An m16n8k8 of tf32 is half an m16n8k16's work at half of
its rate, so it takes as long.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.ampere import STARTS
>>> from tinygpu.machines.ampere_term import AmpereTerm
>>> from tinygpu.term.operation import matmul
>>> from tinygpu.term.program import var
>>> term = AmpereTerm(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
>>> read_a, read_b = term.read(var("s"), 0)
>>> [int(x) for x in matrices(read_a)], [int(x) for x in matrices(read_b)]   # how many, wavefronts
([16, 1], [16, 1])
>>> mma_cycles(load_device("a100"))
2.0

Source: PTX ISA 9, "ldmatrix"; W. Luo et al., arXiv 2402.13499 (mma.sync on an H800).
"""

from __future__ import annotations

from typing import Any

from tinygpu.devices.device import Device
from tinygpu.search.time.pattern import wavefronts
from tinygpu.term.program import Access, Do

__all__ = ["AT_ONCE", "MMA_LATENCY_CYCLES", "MMA_VALUES", "matrices", "mma_cycles"]

Numbers = Any
AT_ONCE = 4  # spec: matrices of one ldmatrix.x4
MMA_VALUES = 8  # spec: pair, half, half of k: what a statement counts in one mma
MMA_LATENCY_CYCLES = 24.0  # published: arXiv 2402.13499
_FLOP = 2 * 16 * 8 * 16
_SHARE = {"sm_90a": 0.65, "sm_90": 0.65}  # published: 494 of 757 TFLOP/s, arXiv 2402.13499


def mma_cycles(device: Device) -> float:
    """Return for how many cycles one mma.m16n8 of either type keeps an SM's tensor cores busy.

    Where there is wgmma, mma.sync does not reach the whole rate.
    """
    rate = device.tensor_flop_per_cycle_per_sm * _SHARE.get(device.arch, 1.0)
    return _FLOP / rate


def matrices(do: Do) -> tuple[Numbers, Numbers]:
    """Return how many 8 x 8 matrices an ldmatrix statement reads, and the wavefronts of each."""
    (read,) = (r for r in do.reads if isinstance(r, Access))
    count: Numbers = 1
    for extent in do.values[1:]:
        count = count * extent

    def step(steps: tuple[Numbers, ...]) -> Numbers:
        strides = (s for s in read.buffer.stride if not isinstance(s, str))
        return sum((a * s for a, s in zip(steps, strides, strict=True)), 0)

    pair, group = step(read.value[0]), step(read.thread[1])
    row, along = (pair, group) if do.variant == "trans" else (group, pair)
    width = read.buffer.type.bytes
    each = 4 // width
    lanes, steps = (4, 8), (each * along, row)
    return count, wavefronts(lanes, steps, width, each, read.buffer.swizzle)
