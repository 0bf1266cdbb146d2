"""Products and matrices of a warp: what 32 threads compute on their registers, or move, together.

A block's product is D = A B + C with A of 16 x 16, B of 16 x 8, C and D of 16 x 8 elements.  A
thread holds 8, 4 and 4 of them, those that the fragments ``mma_a``, ``mma_b`` and ``mma`` give it.
The values of a statement count (pair, half, half of k, blocks of columns, blocks of rows); A moves
along pair, both halves and rows, B along pair, half of k and columns, C along pair, half, columns
and rows, and what an operand doesn't move along finds it again.

Of tf32 a register holds one element and not a pair (``each`` is 1), so that A is 16 x 8 and B 8 x 8
(``mma_a_tf32``, ``mma_b_tf32``): neither moves along pair.

>>> ones = np.ones((2 * 2 * 2, 32))
>>> float(products((2, 2, 2, 1, 1), ones, ones, ones)[0, 0])       # 16 products and the sum
17.0

Source: PTX ISA 9, "Matrix Fragments for mma.m16n8k16 with floating point type", "... m16n8k8".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import ProgramError
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.instruction import Instruction, same

__all__ = ["FAMILY", "FRAGMENT_VALUES", "products"]

_REGISTERS = ("registers",)

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
        arch="sm_80", types=tuple((t, "f32") for t in ("f16", "bf16", "tf32")),
    ),
)  # fmt: skip

FRAGMENT_VALUES = (2, 2, 2)
"""Pair, half, half of k: the values of a thread in one block's product."""

_WARP = 32
Values = NDArray[np.float64]


def products(
    values: tuple[int, ...],
    a: Values,
    b: Values,
    sums: Values,
    *,
    each: int = 2,
    algebra: Algebra = FLOATS,
) -> Values:
    """Return the new sums; all are (values, threads), the threads whole warps in order.

    ``each`` elements of A and B stand in a register: 2 of 16 bits, 1 of 32.  Raises ProgramError
    for values or threads of another form.
    """
    if len(values) != 5 or tuple(map(int, values[:3])) != FRAGMENT_VALUES:
        raise ProgramError(
            f"mma.sync of values {tuple(values)}: it takes 2 * 2 * 2 of a thread in each block; "
            "count pair, half, half of k, columns, rows"
        )
    columns, rows = int(values[3]), int(values[4])
    if a.shape[1] % _WARP:
        raise ProgramError(f"mma.sync by {a.shape[1]} threads: whole warps of {_WARP} execute it")
    # axes: rows, columns, half of k, half, pair, warp, g, q (lane q + 4 g)
    whole = (rows, columns, 2, 2, 2, a.shape[1] // _WARP, 8, 4)
    left, right, before = (x.reshape(whole) for x in (a, b, sums))
    # m = g + 8 half, k = e + each (q + 4 half of k), n = g of b = pair + 2 q of the sums
    matrix_a = left[:, 0, :, :, :each].transpose(0, 4, 2, 5, 1, 6, 3)  # block, warp; half, g; k
    matrix_a = matrix_a.reshape(rows, -1, 16, 8 * each)
    matrix_b = right[0, :, :, 0, :each].transpose(0, 3, 4, 1, 5, 2)
    matrix_b = matrix_b.reshape(columns, -1, 8, 8 * each)

    def form(x: Values, y: Values) -> Values:
        found: Values = np.einsum("rwmk,cwnk->rcwmn", x, y, optimize=True)
        return found

    product = algebra.contract(form, matrix_a, matrix_b)
    split = product.reshape(rows, columns, -1, 2, 8, 4, 2)  # warp, half, g, q, pair
    after = algebra.operators["add"](before[:, :, 0], split.transpose(0, 1, 3, 6, 2, 4, 5))
    result: Values = np.repeat(after[:, :, None], 2, axis=2).reshape(sums.shape)
    return result
