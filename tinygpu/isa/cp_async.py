"""Copies that a thread starts, from global to shared memory."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction

__all__ = ["FAMILY"]

FAMILY: tuple[Instruction, ...] = (
    Instruction("cp.async", ("gmem",), ("smem",), "lsu", "commit_group", arch="sm_80"),
)
