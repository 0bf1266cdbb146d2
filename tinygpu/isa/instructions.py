"""All instructions by name, family by family; the file of a family has the values."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from tinygpu.isa import arithmetic, barriers, cp_async, load_store, mma_sync, tcgen05, tma, wgmma
from tinygpu.isa.instruction import Instruction

__all__ = ["FAMILIES", "INSTRUCTIONS"]

FAMILIES: tuple[ModuleType, ...] = (
    load_store, arithmetic, cp_async, barriers, mma_sync, tma, wgmma, tcgen05,
)  # fmt: skip
INSTRUCTIONS: Mapping[str, Instruction] = {i.name: i for f in FAMILIES for i in f.FAMILY}
