"""The tensor memory accelerator: one thread moves a tile, to shared memory or from it.

It moves boxes of at most 256 elements a side.  A tile of more lines is boxes of equal height.

>>> [int(boxes(lines)) for lines in (8, 256, 264, 304)]
[1, 1, 2, 2]
"""

from __future__ import annotations

import numpy as np

from tinygpu.isa.instruction import Instruction
from tinygpu.isa.ordering import Group
from tinygpu.numbers import Number

__all__ = ["BOX_SIDE", "FAMILY", "STORES", "boxes"]

BOX_SIDE = 256  # spec: boxDim

FAMILY: tuple[Instruction, ...] = (
    Instruction("cp.async.bulk.tensor", ("gmem",), ("smem",), "tma", "mbarrier",
                issuer="one", arch="sm_90"),
    Instruction("cp.async.bulk.tensor.global", ("smem",), ("gmem",), "tma", "bulk_group",
                issuer="one", arch="sm_90"),
)  # fmt: skip
STORES = Group("bulk", "bulk_group", "cp.async.bulk", needs="bulk_group", by="one", read=True)


def boxes(lines: Number) -> Number:
    """Return in how many boxes a tile of so many lines is moved: an int, or an array of them."""
    many: Number = np.maximum(-(-lines // BOX_SIDE), 1)
    return many
