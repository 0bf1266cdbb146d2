"""What the interpreter understands: every instruction by family, by the beginning of its opcode.

An instruction belongs to the longest entry whose dotted parts begin its opcode; what none begins is
an error that names it.

>>> entry("cp.async.bulk.wait_group.read"), entry("cp.async.ca.shared.global"), entry("tex.2d")
('cp.async.bulk.wait_group', 'cp.async', '')
>>> len(FAMILIES["Matrices of a warp"]), sorted(FAMILIES["Matrices of a warp"])[:2]
(6, ['ldmatrix', 'mma.sync'])
"""

from __future__ import annotations

from collections.abc import Mapping

from tinygpu.codegen.interpreter import (
    arithmetic,
    barriers,
    bulk,
    control,
    copies,
    logic,
    matrices,
    moves,
    tcgen05,
    tensor_memory,
    warp,
    wgmma,
    wmma,
)
from tinygpu.codegen.interpreter.decoder import Builder

__all__ = ["FAMILIES", "TABLE", "entry"]

FAMILIES: Mapping[str, Mapping[str, Builder]] = {
    "Data movement": moves.TABLE,
    "Arithmetic and conversion": arithmetic.TABLE,
    "Comparison, selection, bits": logic.TABLE,
    "Control flow, barriers of threads": control.TABLE,
    "Shuffles, votes, matches": warp.TABLE,
    "mbarrier and fences": barriers.TABLE,
    "cp.async": copies.TABLE,
    "Bulk and tensor copies": bulk.TABLE,
    "Matrices of a warp": {**matrices.TABLE, **wmma.TABLE},
    "Matrices of a warpgroup": wgmma.TABLE,
    "Tensor memory": {**tensor_memory.TABLE, **tcgen05.TABLE},
}
"""Each family's builders by the beginning of their opcodes."""

TABLE: Mapping[str, Builder] = {
    name: builder for family in FAMILIES.values() for name, builder in family.items()
}
"""All of them."""


def entry(opcode: str, table: Mapping[str, Builder] = TABLE) -> str:
    """Return the longest entry that begins an opcode, or nothing."""
    parts = opcode.split(".")
    starts = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((start for start in starts if start in table), "")
