"""Sums that CTAs of a cluster share: they add up one tile, each over a part of k.

The CTAs along an axis of the cluster, as ``rank_k``, multiply the same tile, CTA r over the r-th
part of k.  Then those of r > 0 write their sums into shared memory of the CTA of r = 0, all come to
a barrier of the cluster, and that CTA adds the parts to its own sums, in the order of r, and stores
the tile.

**A part** is the sums of a consumer, laid out as its threads hold them, so that no two lanes of a
warp meet a bank twice: 16 B of a thread, then those of the next, then the next 8 columns.  Its
dimensions are the digits of rows and columns in a fragment of wgmma:

    pair     2 neighbouring columns of a thread       quad    the 4 threads that share a row
    half     its row, and the one eight below         row     8 rows of threads
    warp     4 warps of 16 rows                       group   8 columns
    block    64 rows

>>> parts = parts_buffer(64, 16, over="rank_k", ctas=2, copies=1)
>>> parts.shape, parts.stride, parts.home
((2, 2, 4, 8, 4, 2, 1), (1, 2, 4, 16, 128, 512, 1024), 'rank_k')

Source: PTX ISA 9, "mapa", "st.shared::cluster", "Register Fragments" of wgmma; CUDA C++ Programming
Guide, "Distributed Shared Memory".
"""

from __future__ import annotations

from typing import Any

from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term.program import (
    Access,
    Affine,
    Buffer,
    Do,
    For,
    Statement,
    Sync,
    When,
    registers,
    var,
)

__all__ = ["add_parts", "parts_buffer"]

_BLOCK, _GROUP = 64, 8  # spec: rows and columns of a fragment of wgmma
_DIGITS = 7
_PAIR, _HALF, _QUAD, _ROW, _WARP, _COLUMNS, _ROWS = range(_DIGITS)  # dimensions of a part
_MODES = ((_PAIR, (0, 1)), (_QUAD, (0, 2)), (_COLUMNS, (0, _GROUP)), (_ROW, (1, 0)),
          (_HALF, (8, 0)), (_WARP, (16, 0)), (_ROWS, (_BLOCK, 0)))  # fmt: skip
"""Columns and then rows, least first: the dimension of each digit, and its step in the tile."""


def parts_buffer(rows: Any, columns: Any, *, over: str, ctas: Any, copies: Any) -> Buffer:
    """Return where a consumer's parts of ``rows`` x ``columns`` lie: a stage for each r above 0."""
    groups, blocks = columns // _GROUP, rows // _BLOCK
    shape = (2, 2, 4, 8, 4, groups, blocks)
    stride = (1, 2, 4, 16, 128, 512, 512 * groups)
    return Buffer(
        "parts", "smem", "f32", shape, stride, ctas - 1, rows * columns, copies=copies, home=over,
    )  # fmt: skip


def add_parts(
    sums: Buffer, store: tuple[Statement, ...], *, over: str, ctas: Any, copies: Any, turn: Affine
) -> tuple[tuple[Statement, ...], tuple[Buffer, ...]]:
    """Return the statements between a tile's products and its end, and their buffers.

    ``store`` is what is done with the whole sums, by the CTA that has them.
    """
    rows, columns = sums.shape
    parts = parts_buffer(rows, columns, over=over, ctas=ctas, copies=copies)
    others = ctas - 1
    held = Access(sums, tuple(steps for _, steps in _MODES), index=turn)
    mine = _access(parts, turn * others + var(over) + -1)
    send = Do(INSTRUCTIONS["st.shared"], mine, (held,), _values(parts.shape), vector=2)
    part = registers("part", "f32", _BLOCK, _GROUP, fragment="wgmma")
    group, block = var("group"), var("block")
    one = _values((*parts.shape[:_COLUMNS], 1, 1))
    fetched = Access(part, tuple(steps for _, steps in _MODES), index=turn)
    there = _access(parts, turn * others + var("r"), (group, block))
    plain = ((0, 1), (1, 0))
    added = Access(part, plain, index=turn)
    total = Access(sums, plain, origin=(var("block", _BLOCK), var("group", _GROUP)), index=turn)
    body: tuple[Statement, ...] = (
        Do(INSTRUCTIONS["ld.shared"], fetched, (there,), one, vector=2),
        Do(INSTRUCTIONS["fma"], total, (total, added), (_GROUP, _BLOCK), variant="add"),
    )
    for name, trips in (("group", parts.shape[_COLUMNS]), ("block", parts.shape[_ROWS])):
        assert not isinstance(trips, str)
        body = (For(name, trips, body, unrolled=True),)
    adding = For("r", others, body, unrolled=True)
    statements = (
        When(var(over, -1), 0, (send,)),
        Sync(scope="cluster"),
        When(var(over), 1, (adding, *store)),
    )
    return statements, (parts, part)


def _values(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(shape[digit] for digit, _ in _MODES)


def _access(parts: Buffer, index: Affine, first: tuple[Affine, ...] = ()) -> Access:
    """Return the access to all of a part, or from the group and block of ``first`` on."""
    steps = tuple(tuple(int(d == digit) for d in range(_DIGITS)) for digit, _ in _MODES)
    origin = (*(Affine() for _ in range(_COLUMNS)), *first) if first else ()
    return Access(parts, steps, origin=origin, index=index)
