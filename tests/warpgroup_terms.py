"""Statements of a warpgroup that holds 64 rows of 128 columns, by digits of its threads.

A row is (warp, half, octet), a column (group, quad, pair): a thread has 16 x 2 x 2 registers.
"""

from __future__ import annotations

from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term.access_map import Access, Affine, Buffer, Immediate, registers
from tinygpu.term.statement import Do

__all__ = ["computed", "held", "rounded", "scores", "tile", "weighted", "zeroed"]

_THREADS = (4, 8, 4)  # quad, octet, warp
_EACH = (2, 2, 16)
_ALL = ((0, 0, 1), (0, 1, 0), (1, 0, 0))  # pair, half, group
_NONE = (0, 0, 0)
_SAME = (_NONE,) * 3
_WGMMA = INSTRUCTIONS["wgmma"]


def held(name: str, dtype: str) -> Buffer:
    """Registers of one tile."""
    return registers(name, dtype, 16, 2, 2)


def tile(name: str, stages: int) -> Buffer:
    """128 x 128 elements of bf16 in shared memory, in two slabs of 128 B."""
    return Buffer(name, "smem", "bf16", (128, 64, 2), (64, 1, 8192), stages, 16384, (3, 3, 3))


def _each(buffer: Buffer, index: Affine) -> Access:
    return Access(buffer, _ALL, index=index)


def zeroed(to: Buffer, index: Affine) -> Do:
    """Set registers to 0."""
    return Do(INSTRUCTIONS["mov"], _each(to, index), (Immediate(0.0),), _EACH)


def computed(to: Buffer, index: Affine) -> Do:
    """Compute registers from themselves."""
    each = _each(to, index)
    return Do(INSTRUCTIONS["fma"], each, (each, each, each), _EACH, variant="fma")


def rounded(to: Buffer, of: Buffer, index: Affine) -> Do:
    """Round registers."""
    return Do(INSTRUCTIONS["cvt"], _each(to, index), (_each(of, index),), _EACH)


def scores(to: Buffer, x: Buffer, y: Buffer, index: tuple[Affine, Affine], fresh: Affine) -> Do:
    """Multiply 64 rows of x with 128 of y, 16 elements of each.

    ``index``: that of x, and that of y and the sums.
    """
    sums = Access(to, (_NONE, *_ALL), _SAME, index=index[1])
    rows = Access(
        x, ((0, 1, 0), _NONE, (8, 0, 0), _NONE), (_NONE, (1, 0, 0), (16, 0, 0)), index=index[0]
    )
    columns = Access(
        y, ((0, 1, 0), (1, 0, 0), _NONE, (8, 0, 0)), ((2, 0, 0), _NONE, _NONE), index=index[1]
    )
    return Do(_WGMMA, sums, (rows, columns, sums), (16, *_EACH), _THREADS, variant="fma",
              fresh=fresh)  # fmt: skip


def weighted(to: Buffer, p: Buffer, y: Buffer, index: tuple[Affine, Affine]) -> Do:
    """Add 16 columns of p, from registers, times 16 rows of y.

    ``index``: that of p and y, and that of the sums.
    """
    summed = (_NONE,) * 3
    sums = Access(to, (*summed, *_ALL, (8, 0, 0)), _SAME, index=index[1])
    factor = Access(
        p, ((0, 0, 1), _NONE, (1, 0, 0), _NONE, (0, 1, 0), _NONE, _NONE), _SAME, index=index[0]
    )
    columns = Access(
        y, ((1, 0, 0), (2, 0, 0), (8, 0, 0), (0, 1, 0), _NONE, (0, 8, 0), (0, 0, 1)),
        ((0, 2, 0), _NONE, _NONE), index=index[0],
    )  # fmt: skip
    return Do(_WGMMA, sums, (factor, columns, sums), (2, 4, 2, 2, 2, 8, 2), _THREADS,
              variant="fma")  # fmt: skip
