"""Tensor memory: products into it, copies to it, what takes rows out of it."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction, same

__all__ = ["FAMILY"]

FAMILY: tuple[Instruction, ...] = (
    Instruction("tcgen05.mma", ("smem", "tmem"), ("tmem",), "tensor", "tcgen05_commit",
                variants=("fma",), issuer="one", arch="sm_100a",
                types=tuple((t, "f32") for t in ("f16", "bf16", "tf32", "e4m3", "e5m2"))),
    Instruction("tcgen05.cp", ("smem",), ("tmem",), "tmem", "tcgen05_commit",
                issuer="one", arch="sm_100a"),
    Instruction("tcgen05.ld", ("tmem",), ("registers",), "tmem", "tcgen05_wait",
                issuer="warpgroup", arch="sm_100a", types=same("f32", "tf32")),
    Instruction("tcgen05.st", ("registers",), ("tmem",), "tmem", "tcgen05_wait",
                issuer="warpgroup", arch="sm_100a", types=same("f32", "tf32")),
    Instruction("tcgen05.alloc", (), (), "barrier", "barrier", arch="sm_100a"),
    Instruction("tcgen05.commit", (), (), "barrier", "mbarrier", arch="sm_100a"),
    Instruction("tcgen05.fence", (), (), "barrier", arch="sm_100a"),
)  # fmt: skip
