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
)
from tinygpu.codegen.emulator.decoder import Builder
from tinygpu.codegen.emulator.forms import FORMS

__all__ = ["FAMILIES", "TABLE"]

TABLE: Mapping[str, Builder] = {
    entry: builder
    for family in (
        moves, arithmetic, logic, control, calls, warp, barriers, copies, bulk, matrices,
        wgmma, tensor_memory, tcgen05,
    )
    for entry, builder in family.TABLE.items()
}  # fmt: skip
"""What builds each entry."""

FAMILIES: Mapping[str, Mapping[str, Builder]] = {
    family: {f.entry: TABLE[f.entry] for f in FORMS if f.family == family}
    for family in dict.fromkeys(form.family for form in FORMS)
}
"""Each family's builders by entry, as the table of forms has them."""
