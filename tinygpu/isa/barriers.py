"""What threads wait at, and the fence between proxies; statements stand for them."""

from __future__ import annotations

from tinygpu.isa.instruction import Instruction
from tinygpu.isa.ordering import FenceKind

__all__ = ["FAMILY", "PROXY"]

FAMILY: tuple[Instruction, ...] = (
    Instruction("bar.sync", (), (), "barrier", "barrier"),
    Instruction("mbarrier", (), (), "barrier", "mbarrier", arch="sm_90"),
    Instruction("barrier.cluster", (), (), "barrier", "barrier", arch="sm_90"),
    Instruction("fence.proxy.async", (), (), "barrier", arch="sm_90"),
)
PROXY = FenceKind("proxy.async", "fence.proxy.async", "fence.proxy.async", "proxy",
                  qualifiers=".shared::cta")  # fmt: skip
