"""The plan of a CTA's shared memory: where each buffer and each barrier starts.

Rings of one depth share their stages, so that one offset serves them all; the copies of a buffer
lie a whole ring apart; barriers come last.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> plan = smem_plan(Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["plain"])))
>>> plan.start, plan.stage_bytes["smem_a"]
({'smem_a': 0, 'smem_b': 8192, 'full': 32768, 'empty': 32784}, 16384)

Source: ``docs/model.md``, section "Code".
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygpu.term.program import Program

__all__ = ["TMEM_SLOT", "SmemPlan", "smem_plan"]

TMEM_SLOT = "%tmem"
"""The plan's name for the word to which tcgen05.alloc writes an address."""


@dataclass(frozen=True, slots=True)
class SmemPlan:
    """Where each smem buffer and barrier starts, and how far its stages lie apart, in bytes.

    The copies of a buffer lie a whole ring apart.
    """

    start: dict[str, int]
    stage_bytes: dict[str, int]
    total_bytes: int


def smem_plan(program: Program) -> SmemPlan:
    """Lay out shared memory: rings of one depth share their stages, one offset serves them all."""
    start: dict[str, int] = {}
    stage_bytes: dict[str, int] = {}
    total = 0
    rings = [b for b in program.buffers if b.level == "smem" and b.copies == 1]
    for depth in dict.fromkeys(b.stages for b in rings):
        group = [b for b in rings if b.stages == depth]
        stride = 0
        for buffer in group:
            start[buffer.name] = total + stride
            stride += buffer.stage_bytes
        stage_bytes |= {b.name: stride for b in group}
        total += stride * depth
    for buffer in program.buffers:
        if buffer.level == "smem" and buffer.copies > 1:
            start[buffer.name], stage_bytes[buffer.name] = total, buffer.stage_bytes
            total += buffer.bytes
    for barrier in (b for b in program.barriers if not b.named):
        start[barrier.name], stage_bytes[barrier.name] = total, 8
        total += 8 * barrier.stages
    if program.in_tmem:
        start[TMEM_SLOT] = total
        total += 8
    return SmemPlan(start, stage_bytes, total)
