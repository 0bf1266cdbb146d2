"""Copies that a thread starts, from global to shared memory."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction
from tinygpu.isa.ordering import Group

__all__ = ["COPIES", "FAMILY"]

FAMILY: tuple[Instruction, ...] = (
    Instruction("cp.async", ("gmem",), ("smem",), "lsu", "commit_group", arch="sm_80"),
)
COPIES = Group("cp.async", "commit_group", "cp.async", needs="commit_group")
