"""A warpgroup's products from shared memory, and how it stores its sums there."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction

__all__ = ["FAMILY"]

_REGISTERS = ("registers",)

FAMILY: tuple[Instruction, ...] = (
    Instruction("wgmma", ("smem", "registers"), _REGISTERS, "tensor", "wgmma_group",
                variants=("fma",), issuer="warpgroup", arch="sm_90a"),
    Instruction("stmatrix", _REGISTERS, ("smem",), "lsu", issuer="warpgroup", arch="sm_90"),
)  # fmt: skip
