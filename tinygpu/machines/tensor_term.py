"""What terms of tensor-core matmuls have in common: tiles in shared memory, and who loads them.

The product has rows and columns.  ``x`` is the input that has the rows, ``y`` the one that has the
columns.  A tile of x or y lies in shared memory as slabs of 128 B rows, which is what TMA writes
and tensor cores read: dimensions (row, within the slab, slab), along k if k is contiguous in
global memory and along the rows (columns) of the product otherwise.

In a cluster of ``cluster_m x cluster_n`` CTAs those in one column need the same y: each
loads a part and sends it to all; likewise x along a row.

>>> width("bf16"), swizzle_of(128, 2)
(2, (3, 3, 3))

Source: PTX ISA 9, "Tensors" and "Shared Memory Matrix Layout".
"""

from __future__ import annotations

from typing import Any

from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.term.expression import Constant, Expression, value
from tinygpu.term.machine import Requirement
from tinygpu.term.operation import Operand, Operation
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Axis,
    Barrier,
    Buffer,
    Do,
    Elect,
    For,
    ForTile,
    Statement,
    Sync,
    Wait,
    var,
)

__all__ = ["ROW_BYTES", "TensorTerm", "swizzle_of", "tile_requirements", "width"]

ROW_BYTES = 128  # a slab's row: the span of the widest swizzle
_SLICE_BYTES = 32  # spec: the k of one wgmma, of one tcgen05.mma


class TensorTerm:
    """The loading half of a term in the making; ``d`` has the decisions.

    ``full`` and ``empty`` are its barriers; a CTA loads ``rows_here`` rows of x from ``first_row``
    on, and ``columns_here`` columns of y from ``first_column`` on.
    """

    full: Barrier
    empty: Barrier
    first_row: Affine
    first_column: Affine

    def __init__(
        self, operation: Operation, d: Any, *, swap: Any, rows_here: Any, columns_here: Any
    ) -> None:
        self.operation, self.d = operation, d
        a, b = operation.operand("a"), operation.operand("b")
        self.x, self.y = (b, a) if swap else (a, b)
        self.c = operation.output
        self.row_axis, self.column_axis = ("n", "m") if swap else ("m", "n")
        self.rows_here, self.columns_here = rows_here, columns_here
        self.inner = ROW_BYTES // width(a.dtype)
        self.slice = _SLICE_BYTES // width(a.dtype)
        self.slabs = d.tile_k // self.inner
        self.gmem = {
            o.name: Buffer(o.name, "gmem", o.dtype, o.axes, _strides(o)) for o in operation.operands
        }
        self.smem_x = self.tile(self.x, rows_here)
        self.smem_y = self.tile(self.y, columns_here)
        self.n = var("t", "trips") + var("k")
        self.k = var("k", d.tile_k)

    def tile(self, operand: Operand, extent: Any) -> Buffer:
        """Return the ring of an input's tiles in shared memory."""
        d, by_k = self.d, operand.axes[-1] == "k"
        lines, slabs = (extent, self.slabs) if by_k else (d.tile_k, extent // self.inner)
        return Buffer(
            f"smem_{operand.name}", "smem", operand.dtype, (lines, self.inner, slabs),
            (self.inner, 1, lines * self.inner), d.stages, lines * self.inner * slabs,
            swizzle_of(ROW_BYTES, width(operand.dtype)),
        )  # fmt: skip

    def parameters(self) -> tuple[tuple[str, Expression], ...]:
        """Return the leading dimensions and the number of steps."""
        return (
            *(p for o in self.operation.operands for p in _pitches(o)),
            ("trips", value("k").ceildiv(Constant(self.d.tile_k))),
        )

    def grid(self, rows: Any, columns: Any) -> tuple[Axis, ...]:
        """Return the axes of clusters of so many rows and columns, before them of a batch."""
        return (
            *((Axis("bl", value("l")),) if "l" in self.operation.axes else ()),
            Axis("br", value(self.row_axis).ceildiv(Constant(rows))),
            Axis("bc", value(self.column_axis).ceildiv(Constant(columns))),
        )

    def producer(self) -> tuple[Statement, ...]:
        """Fill stages, as far ahead as there are."""
        d = self.d
        bytes_of_stage = self.smem_x.stage_elements * width(self.x.dtype)
        bytes_of_stage = bytes_of_stage + self.smem_y.stage_elements * width(self.y.dtype)
        along_n, along_m = ("rank_n", d.cluster_n), ("rank_m", d.cluster_m)
        load = (
            Wait(self.empty, self.n + -1 * d.stages),
            Arrive(self.full, self.n, bytes_of_stage),
            self.load(self.x, self.smem_x, self.first_row, self.rows_here, along_n),
            self.load(self.y, self.smem_y, self.first_column, self.columns_here, along_m),
        )
        tiles = ForTile("t", "i", (For("k", "trips", load),))
        return (Elect((tiles,)), Sync(scope="cluster"))

    def load(
        self, operand: Operand, smem: Buffer, first: Affine, extent: Any, sent: tuple[str, Any]
    ) -> Do:
        """Load this CTA's part of a tile, and send it along an axis of the cluster."""
        rank, parts = sent
        by_k = operand.axes[-1] == "k"
        part = extent // parts
        here = var(rank, part)
        if by_k:
            values = (self.inner, part, self.slabs)
            source: tuple[Affine, ...] = (first + here, self.k)
            target = (here, Affine(), Affine())
        else:
            values = (self.inner, self.d.tile_k, part // self.inner)
            source = (self.k, first + here)
            target = (Affine(), Affine(), var(rank, part // self.inner))
        steps = ((0, 1), (1, 0), (0, self.inner))
        outside = self.outside(operand, steps, source)
        inside = Access(smem, ((0, 1, 0), (1, 0, 0), (0, 0, 1)), origin=target, index=self.n)
        copy = INSTRUCTIONS["cp.async.bulk.tensor"]
        return Do(copy, inside, (outside,), values, signal=(self.full, self.n), multicast=rank)

    def outside(
        self, operand: Operand, steps: tuple[tuple[Any, ...], ...], origin: tuple[Affine, ...]
    ) -> Access:
        """Return the guarded access to a matrix in global memory, one of a batch of them or not."""
        if operand.axes[0] == "l":
            steps, origin = tuple((0, *s) for s in steps), (var("bl"), *origin)
        guard = (True,) * len(operand.axes)
        return Access(self.gmem[operand.name], steps, origin=origin, guard=guard)


def tile_requirements(
    x: Operand, y: Operand, extents: tuple[Any, Any], d: Any
) -> tuple[Requirement, Requirement, Requirement]:
    """Return what tiles of x and y have to keep: majors, slabs, and a cluster's parts.

    ``extents`` are the rows and the columns of the product that one CTA loads.
    """
    element_bytes = width(x.dtype)
    inner = ROW_BYTES // element_bytes
    rows, columns = extents
    whole = (rows % (8 * d.cluster_n) == 0) & (columns % (8 * d.cluster_m) == 0)
    for operand, part in ((x, rows // d.cluster_n), (y, columns // d.cluster_m)):
        if operand.axes[-1] != "k":
            whole = whole & (part % inner == 0)
    return (
        Requirement(
            "majors",
            element_bytes == 2 or (x.axes[-1] == "k" and y.axes[-1] == "k"),
            "inputs of 8 or 32 bits are read along k",
            "choose the layout nt",
        ),
        Requirement(
            "slabs",
            d.tile_k % inner == 0,
            "a stage holds rows of 128 B along k",
            "raise tile_k",
        ),
        Requirement(
            "parts",
            whole,
            "a CTA's part of a tile that a cluster shares is whole swizzle atoms",
            "lower cluster_m or cluster_n, or choose a wider tile",
        ),
    )


def _strides(operand: Operand) -> tuple[int | str, ...]:
    return (*(name for name, _ in _pitches(operand)[::-1]), 1)


def _pitches(operand: Operand) -> tuple[tuple[str, Expression], ...]:
    """Return the parameters that say how far rows, and matrices of a batch, lie apart."""
    found: tuple[tuple[str, Expression], ...] = ()
    if len(operand.axes) > 1:
        found = ((f"ld_{operand.name}", value(operand.axes[-1])),)
    if len(operand.axes) > 2:
        far = value(f"ld_{operand.name}") * value(operand.axes[-2])
        found = (*found, (f"ls_{operand.name}", far))
    return found


def width(dtype: str) -> int:
    """Return the bytes of an element."""
    return DTYPES[dtype].bytes


def swizzle_of(row_bytes: Any, element_bytes: int) -> tuple[Any, int, int]:
    """Return the swizzle of rows of 16, 32, 64 or 128 B: 16 B pieces by the number of 128 B."""
    bits = sum(row_bytes >= wide for wide in (32, 64, 128))
    return bits, (16 // element_bytes).bit_length() - 1, 3
