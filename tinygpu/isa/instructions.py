"""All instructions, groups and fences by name; the file of a family has the values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType

from tinygpu.errors import ProgramError
from tinygpu.isa import arithmetic, barriers, cp_async, load_store, mma_sync, tcgen05, tma, wgmma
from tinygpu.isa.instruction import Completion, Instruction
from tinygpu.isa.ordering import FenceKind, Group

__all__ = ["ARRIVALS", "FAMILIES", "FENCES", "GROUPS", "INSTRUCTIONS", "group_of"]

FAMILIES: tuple[ModuleType, ...] = (
    load_store, arithmetic, cp_async, barriers, mma_sync, tma, wgmma, tcgen05,
)  # fmt: skip
INSTRUCTIONS: Mapping[str, Instruction] = {i.name: i for f in FAMILIES for i in f.FAMILY}
GROUPS: Mapping[str, Group] = {
    g.name: g for g in (cp_async.COPIES, wgmma.PRODUCTS, tma.STORES, tcgen05.LOADS, tcgen05.STORES)
}
ARRIVALS: Mapping[str, Group] = {g.name: g for g in (tcgen05.PRODUCTS,)}
FENCES: Mapping[str, FenceKind] = {
    f.name: f for f in (barriers.PROXY, wgmma.FENCE, tcgen05.BEFORE, tcgen05.AFTER)
}


@cache
def group_of(completion: Completion, level: str) -> Group | None:
    """Return the group of what completes so and writes to a level; None: no wait covers it.

    Raises ProgramError for a level that none of several groups writes.
    """
    those = {g.into: g for g in GROUPS.values() if g.completion == completion}
    if those and level not in those and "" not in those:
        raise ProgramError(f"{completion} is of what writes {' or '.join(those)}, not {level}")
    return those.get(level, those.get(""))
