"""Tensor memory: products into it, copies to it, what takes rows out of it."""

from __future__ import annotations

from dataclasses import replace

from tinygpu.isa.instruction import Instruction, same
from tinygpu.isa.ordering import FenceKind, Group

__all__ = ["AFTER", "BEFORE", "FAMILY", "LOADS", "PRODUCTS", "STORES", "TENSOR_MEMORY"]

TENSOR_MEMORY = "tcgen05"
"""What the names of its instructions begin with."""

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

BEFORE = FenceKind("tcgen05.before", "tcgen05.fence::before_thread_sync", "tcgen05.fence",
                   "before", by="warps")  # fmt: skip
AFTER = FenceKind("tcgen05.after", "tcgen05.fence::after_thread_sync", "tcgen05.fence",
                  "after", by="warps")  # fmt: skip
LOADS = Group("tcgen05.ld", "tcgen05_wait", "tcgen05", needs="tcgen05.ld", by="all",
              into="registers", wait="wait::ld", qualifiers=".sync.aligned", committed=False,
              holds="rows", fence=BEFORE)  # fmt: skip
STORES = replace(LOADS, name="tcgen05.st", needs="tcgen05.st", into="tmem", wait="wait::st")
PRODUCTS = Group("tcgen05", "tcgen05_commit", "tcgen05", "tcgen05.commit", "one", committed=False)
"""Copies too: an arrival sees them done, and no wait."""
