"""Products and matrices of a warp: what 32 threads compute on their registers, or move, together.

A product of one block, D = A B + C, is said by its ``Blocks`` (``fragment.py``): its shape, and
which elements each lane holds.  Of 16-bit types it is m16 n8 k16, of tf32 m16 n8 k8.  The values of
a statement count (pair, half, deep, blocks of columns, blocks of rows); A moves along rows, B along
columns, the sums along both, and what an operand doesn't move along finds it again.

>>> ones = np.ones((2 * 2 * 2, 32))
>>> float(products(OF_HALVES, (2, 2, 2, 1, 1), ones, ones, ones)[0, 0])   # 16 products and the sum
17.0

Source: PTX ISA 9, "Matrix Fragments for mma.m16n8k16 with floating point type", "... m16n8k8".
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Literal

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.fragment import FRAGMENTS, Blocks
from tinygpu.isa.instruction import Instruction, same
from tinygpu.numbers import Floats, Integers

__all__ = ["FAMILY", "products"]

_REGISTERS = ("registers",)
_WARP = 32

OF_HALVES = Blocks(("f16", "bf16"), "f32", FRAGMENTS["mma_a"], FRAGMENTS["mma_b"], FRAGMENTS["mma"])
_OF_TF32 = Blocks(
    ("tf32",), "f32", FRAGMENTS["mma_a_tf32"], FRAGMENTS["mma_b_tf32"], FRAGMENTS["mma"], rate=0.5
)

FAMILY: tuple[Instruction, ...] = (
    Instruction(
        "ldmatrix", ("smem",), _REGISTERS, "lsu", "scoreboard", issuer="warp", arch="sm_75"
    ),
    Instruction(
        "stmatrix", _REGISTERS, ("smem",), "lsu", issuer="warp", arch="sm_90",
        types=same("bf16", "f16"),
    ),
    Instruction(
        "mma.sync", _REGISTERS, _REGISTERS, "tensor", variants=("fma",), issuer="warp",
        arch="sm_80", blocks=(OF_HALVES, _OF_TF32),
    ),
)  # fmt: skip


def products(
    blocks: Blocks,
    values: tuple[int, ...],
    a: Floats,
    b: Floats,
    sums: Floats,
    *,
    algebra: Algebra = FLOATS,
) -> Floats:
    """Return the new sums; all are (values, threads), the threads whole warps in order.

    Raises ProgramError for values or threads of another form.
    """
    if len(values) != 5 or tuple(map(int, values[:3])) != blocks.values:
        raise ProgramError(
            f"a warp's product of values {tuple(values)}: it takes "
            f"{' * '.join(map(str, blocks.values))} of a thread in each block; count pair, half, "
            "half of k, columns, rows"
        )
    columns, rows = int(values[3]), int(values[4])
    if a.shape[1] % _WARP:
        raise ProgramError(f"a product by {a.shape[1]} threads: whole warps of {_WARP} execute it")
    whole = (rows, columns, prod(blocks.values), a.shape[1] // _WARP, _WARP)
    left, right, before = (x.reshape(whole) for x in (a, b, sums))
    m, n, k = blocks.shape

    def matrix(of: Literal["a", "b"], held: Floats, lines: int) -> Floats:
        flat = held.transpose(0, 2, 1, 3).reshape(len(held), whole[3], -1)
        found: Floats = flat[..., _holders(blocks, of)].reshape(*flat.shape[:2], lines, k)
        return found

    def form(x: Floats, y: Floats) -> Floats:
        found: Floats = np.einsum("rwmk,cwnk->rcwmn", x, y, optimize=True)
        return found

    product = algebra.contract(form, matrix("a", left[:, 0], m), matrix("b", right[0], n))
    mine = product.reshape(rows, columns, whole[3], m * n)[..., _held_sums(blocks)]
    result: Floats = algebra.operators["add"](before, mine.transpose(0, 1, 3, 2, 4))
    return result.reshape(sums.shape)


@cache
def _held_sums(blocks: Blocks) -> Integers:
    """Return which element of D each value of each lane is."""
    return blocks.held("d")


@cache
def _holders(blocks: Blocks, operand: Literal["a", "b"]) -> Integers:
    """Return which value and lane (value * 32 + lane) holds each element of an operand."""
    found: Integers = np.unique(blocks.held(operand), return_index=True)[1]
    return found
