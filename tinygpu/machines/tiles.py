"""What matmuls by tensor cores have in common: tiles of the inputs in shared memory.

The product has rows and columns.  ``x`` is the input that has the rows, ``y`` the one that has the
columns.  A tile of x or y lies in shared memory as slabs of 128 B rows, which is what TMA writes
and tensor cores read: along k if k is contiguous in global memory, and along the rows (columns) of
the product otherwise.

In a cluster of ``cluster_m x cluster_n`` CTAs those in one column need the same y: each
loads a part and sends it to all; likewise x along a row.  Along k a part is any whole lines of
128 B: TMA takes the swizzle from addresses, not from where its box begins.

Source: PTX ISA 9, "Tensors" and "Shared Memory Matrix Layout".
"""

from __future__ import annotations

from tinygpu.isa.memory import DTYPES
from tinygpu.term.builder import Array, Kernel
from tinygpu.term.machine import Chosen, Requirement
from tinygpu.term.operation import Operand

__all__ = ["ROW_BYTES", "ring", "tile_requirements"]

ROW_BYTES = 128  # a slab's row: the span of the widest swizzle


def ring(k: Kernel, operand: Array, stages: int, **extents: int) -> Array:
    """Return a ring of an input's tiles; ``extents``: of its rows (or columns), and of k."""
    if operand.axes[-1] != "k":
        extents = dict(reversed(extents.items()))
    return k.smem(f"smem_{operand.name}", operand.dtype, stages=stages, swizzle=128, **extents)


def tile_requirements(
    x: Operand, y: Operand, extents: tuple[int, int], d: Chosen, *, lines: int
) -> tuple[Requirement, Requirement, Requirement]:
    """Return what tiles of x and y have to keep: majors, slabs, and a cluster's parts.

    ``extents`` are the rows and the columns of the product that one CTA loads; along k a part of
    them is a multiple of so many ``lines``.
    """
    element_bytes = DTYPES[x.dtype].bytes
    inner = ROW_BYTES // element_bytes
    rows, columns = extents
    whole = (rows % (lines * d.cluster_n) == 0) & (columns % (lines * d.cluster_m) == 0)
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
            "a CTA's part of a tile that a cluster shares is whole lines along k, else whole slabs",
            "lower cluster_m or cluster_n, or choose a wider tile",
        ),
    )
