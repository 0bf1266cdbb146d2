"""Memory levels and data types.

A *level* says who shares it (a thread, a warp, a CTA, the grid), who may address it, its banks and
its granularity.  How much of it a chip has is the device's business, not the level's
(``tinygpu.devices.device``).  A *data type* is its width, its NumPy and PTX names and its unit
roundoff.

>>> print(SMEM)
smem       shared by cta     banks 32 x 4 B
>>> DTYPES["bf16"].bytes, DTYPES["bf16"].roundoff
(2, 0.00390625)

``tf32`` numbers are the fp32 numbers with 10 bits of mantissa: an array of them is one of fp32, and
a kernel that is given others leaves their low 13 bits out, as the hardware does.

>>> float(DTYPES["tf32"].round(np.array(1 + 2.0**-10 + 2.0**-12)))
1.0009765625

Source: CUDA C++ Programming Guide, "Memory Hierarchy"; PTX ISA, "State Spaces".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from tinygpu.numbers import Array, Floats

__all__ = ["ARRAY_DTYPES", "DTYPES", "GMEM", "L1", "L2", "REGISTERS", "SMEM", "TMEM", "DType",
           "Level"]  # fmt: skip

Sharing = Literal["thread", "warp", "warpgroup", "cta", "cluster", "grid"]


@dataclass(frozen=True, slots=True)
class Level:
    """A memory level: ``cached`` levels are passed through, not addressed."""

    name: str
    shared_by: Sharing
    banks: int = 0
    bank_bytes: int = 0
    sector_bytes: int = 0
    cached: bool = False

    def __str__(self) -> str:
        text = f"{self.name:10} shared by {self.shared_by:7}"
        if self.banks:
            text += f" banks {self.banks} x {self.bank_bytes} B"
        if self.sector_bytes:
            text += f" sectors of {self.sector_bytes} B"
        return text + (" (cache)" if self.cached else "")


GMEM = Level("gmem", "grid", sector_bytes=32)
L2 = Level("l2", "grid", sector_bytes=32, cached=True)
L1 = Level("l1", "cta", sector_bytes=32, cached=True)
SMEM = Level("smem", "cta", banks=32, bank_bytes=4)
TMEM = Level("tmem", "cta")
REGISTERS = Level("registers", "thread")


@dataclass(frozen=True, slots=True)
class DType:
    """A data type: width in bytes as it is stored, PTX's arithmetic type, and its unit roundoff."""

    name: str
    bytes: int
    ptx: str
    roundoff: float

    @property
    def numpy(self) -> np.dtype:
        """The NumPy type that holds it (bf16 from ml_dtypes, fp32 for tf32)."""
        return _NUMPY[self.name]

    def round(self, array: Array) -> Array:
        """Round an array to this type, to nearest even."""
        if self.name == "tf32":
            array = _to_tf32(array)
        return np.asarray(array).astype(self.numpy)


def _to_tf32(array: Array) -> Floats:
    """Return the nearest numbers with 11 bits, or fewer below the least normal fp32 number."""
    wide = np.asarray(array, np.float64)
    exponent = np.maximum(np.frexp(wide)[1], -125) - 11
    result: Floats = np.ldexp(np.rint(np.ldexp(wide, -exponent)), exponent)
    return result


DTYPES: Mapping[str, DType] = {
    d.name: d
    for d in (
        DType("f64", 8, "f64", 2.0**-53),
        DType("f32", 4, "f32", 2.0**-24),
        DType("tf32", 4, "tf32", 2.0**-11),
        DType("f16", 2, "f16", 2.0**-11),
        DType("bf16", 2, "bf16", 2.0**-8),
        DType("e4m3", 1, "e4m3", 2.0**-4),
        DType("e5m2", 1, "e5m2", 2.0**-3),
    )
}
ARRAY_DTYPES: Mapping[str, DType] = {**DTYPES, "i32": DType("i32", 4, "s32", 0.0)}
"""Types of a kernel's arrays: also of those that say where something is, as the ends of groups."""
_NUMPY: Mapping[str, np.dtype] = {
    "i32": np.dtype(np.int32),
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "tf32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
