"""A warpgroup's products from shared memory, and how it stores its sums there."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction, same

__all__ = ["FAMILY"]

_REGISTERS = ("registers",)

FAMILY: tuple[Instruction, ...] = (
    Instruction("wgmma", ("smem", "registers"), _REGISTERS, "tensor", "wgmma_group",
                variants=("fma",), issuer="warpgroup", arch="sm_90a",
                types=(("bf16", "f32"), ("f16", "f32"), ("e4m3", "f32"))),
    Instruction("stmatrix", _REGISTERS, ("smem",), "lsu", issuer="warp", arch="sm_90",
                types=same("bf16", "f16")),
)  # fmt: skip
