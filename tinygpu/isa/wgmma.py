"""Products of a warpgroup (sm_90a).

A product is D += A B, A of 64 rows and 32 B of k, B of 8 to 256 columns, by 128 threads.  Threads
count (quad, octet, warp), each holds the sums of (pair, half, groups of 8 columns), fastest first:

    row     16 warp + 8 half + octet          column  8 group + 2 quad + pair

A of 16 or 8 bits may lie in registers.  Thread ``lane`` of each four then holds, for its rows, the
steps of k that (word, lane, deep) count: k = 8 deep + 2 lane + word, of 8 bits k = 16 deep + 4 lane
+ word.  So the sums of one product, rounded to 16 bits, are A of the next, where a group of 8
columns is half of 16 steps of k.  Of 8 bits the four of a word are two pairs of two groups: the
columns 8 (2 deep + duo) + 2 quad + pair are the steps 16 deep + 4 quad + 2 duo + pair.

>>> import numpy as np
>>> held = np.arange(8.0 * 128).reshape(8, 128, 1)
>>> matrix = rows_of(held)
>>> matrix.shape, matrix[0, 2, :4].tolist()      # octet 1: thread 4 has steps 0 and 1 of k
((1, 64, 16), [4.0, 132.0, 5.0, 133.0])

Source: PTX ISA 9, "wgmma.mma_async", "Register Fragments".
"""

from __future__ import annotations

from tinygpu.errors import ProgramError
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.ordering import FenceKind, Group
from tinygpu.numbers import Floats

__all__ = [
    "COLUMN_STEPS", "FAMILY", "FENCE", "PRODUCTS", "ROW_STEPS", "THREADS", "joined", "rows_of",
]  # fmt: skip

_REGISTERS = ("registers",)

FAMILY: tuple[Instruction, ...] = (
    Instruction("wgmma", ("smem", "registers"), _REGISTERS, "tensor", "wgmma_group",
                variants=("fma",), issuer="warpgroup", arch="sm_90a",
                types=(("bf16", "f32"), ("f16", "f32"), ("e4m3", "f32"))),
)  # fmt: skip
PRODUCTS = Group("wgmma", "wgmma_group", "wgmma", needs="wgmma_group", by="all",
                 qualifiers=".sync.aligned", holds="sums")  # fmt: skip
FENCE = FenceKind("wgmma", "wgmma.fence", "wgmma", "registers", "all", ".sync.aligned")

THREADS = (4, 8, 4)
"""Quad, octet, warp: the threads of a warpgroup, fastest first."""
ROW_STEPS, COLUMN_STEPS = (0, 8, 0, 1, 16), (1, 0, 2, 0, 0)
"""Rows and columns of the sums between two values of pair, half, quad, octet, warp."""


def rows_of(held: Floats) -> Floats:
    """Return A, (instances, rows, steps of k), of what threads hold: (values, threads, instances).

    A thread's values count word, deep, half; rows count half, octet, warp, as sums' digits do.
    A word counts 2 of 16 bits, 4 of 8.  Raises ProgramError for other values.
    """
    quad, octet, warp = THREADS
    word = held.shape[0] // 4
    if held.shape[:2] not in ((8, quad * octet * warp), (16, quad * octet * warp)):
        raise ProgramError(
            f"wgmma: A of {held.shape[0]} values of {held.shape[1]} threads; it takes 2 * 2 * 2 "
            "of each of 128, of 8 bits 4 * 2 * 2; count word, deep, half"
        )
    digits = held.reshape(2, 2, word, warp, octet, quad, -1)  # half, deep, word
    turned = digits.transpose(6, 3, 4, 0, 1, 5, 2)
    return turned.reshape(held.shape[2], 64, 8 * word)


def joined(flat: Floats, rows: tuple[int, ...], columns: tuple[int, ...]) -> Floats:
    """Return a product, (.., rows, columns), by the modes that either factor moves along.

    ``rows`` and ``columns``: how far each mode goes in A and in B, 1 where it does not move along.
    Raises ProgramError for a mode of both.
    """
    before, many = flat.shape[:-2], len(rows)
    if any(r > 1 and c > 1 for r, c in zip(rows, columns, strict=True)):
        raise ProgramError("wgmma: A and B move along one mode besides k; give each its own")
    first = len(before)
    order = [first + i + many * j for i in range(many) for j in (0, 1)]
    turned = flat.reshape(*before, *rows, *columns).transpose(*range(first), *order)
    return turned.reshape(*before, *(r * c for r, c in zip(rows, columns, strict=True)))
