"""What executes each entry of the table of forms, by family.

>>> sorted(FAMILIES["Matrices of a warp"])[:2]
['ldmatrix', 'mma.sync']
"""

from __future__ import annotations

from collections.abc import Mapping

from tinygpu.codegen.emulator import (
    arithmetic,
    barriers,
    bulk,
    calls,
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
from tinygpu.codegen.emulator.decoder import Builder

__all__ = ["FAMILIES", "TABLE"]

FAMILIES: Mapping[str, Mapping[str, Builder]] = {
    "Data movement": moves.TABLE,
    "Arithmetic and conversion": arithmetic.TABLE,
    "Comparison, selection, bits": logic.TABLE,
    "Control flow, barriers of threads": {**control.TABLE, **calls.TABLE},
    "Shuffles, votes, matches": warp.TABLE,
    "mbarrier and fences": barriers.TABLE,
    "cp.async": copies.TABLE,
    "Bulk and tensor copies": bulk.TABLE,
    "Matrices of a warp": {**matrices.TABLE, **wmma.TABLE},
    "Matrices of a warpgroup": wgmma.TABLE,
    "Tensor memory": {**tensor_memory.TABLE, **tcgen05.TABLE},
}
"""Each family's builders by entry."""

TABLE: Mapping[str, Builder] = {
    name: builder for family in FAMILIES.values() for name, builder in family.items()
}
"""All of them."""
