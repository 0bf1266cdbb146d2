"""The tensor memory accelerator: one thread moves a tile, to shared memory or from it."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction

__all__ = ["FAMILY"]

FAMILY: tuple[Instruction, ...] = (
    Instruction("cp.async.bulk.tensor", ("gmem",), ("smem",), "tma", "mbarrier",
                issuer="one", arch="sm_90"),
    Instruction("cp.async.bulk.tensor.global", ("smem",), ("gmem",), "tma", "bulk_group",
                issuer="one", arch="sm_90"),
)  # fmt: skip
