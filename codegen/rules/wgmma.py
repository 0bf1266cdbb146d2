"""Rules of wgmma, which finds its tiles by descriptors, and of stmatrix, which stores its sums.

Source: PTX ISA 9, "wgmma.mma_async", "stmatrix".
"""

from __future__ import annotations

from dataclasses import replace

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.rules.descriptors import WGMMA_128B, adds, descriptor, moved
from tinygpu.errors import ProgramError
from tinygpu.term.digits import product_of
from tinygpu.term.program import Access, Do

__all__ = ["mma_async"]

_TYPES = ("bf16", "f16", "e4m3")


def mma_async(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """wgmma.mma_async: one m64 n k16 product from shared memory."""
    text = kernel.text
    x, y, sums_before = do.reads
    assert isinstance(x, Access)
    assert isinstance(y, Access)
    width = x.buffer.type.bytes
    tile = product_of(do)
    columns = int(tile.values[1]) * int(tile.values[2])
    if int(do.values[0]) * width != 32 or columns % 8 or columns > 256:
        raise ProgramError(f"{do}: wgmma multiplies 64 x n x 32 B, n a multiple of 8 up to 256")
    if sums_before != do.write:
        raise ProgramError(f"{do}: wgmma adds to a tile of sums, column by column")
    once = replace(do.write, value=do.write.value[1:])
    sums = kernel.cells(once, do.values[1:], scope)
    x, y = tile.reads[:2]
    left, left_known, left_by_k = descriptor(kernel, tile, x, 64, scope, form=WGMMA_128B)
    right, right_known, right_by_k = descriptor(kernel, tile, y, columns, scope, form=WGMMA_128B)
    a, b = moved(kernel, left, left_known), moved(kernel, right, right_known)
    more = adds(kernel, do, scope)
    kind = x.buffer.dtype
    if kind not in _TYPES or (width == 1 and not (left_by_k and right_by_k)):
        raise ProgramError(f"{do}: wgmma multiplies {', '.join(_TYPES)}, 8 bits along k only")
    turned = f", {int(not left_by_k)}, {int(not right_by_k)}" if width == 2 else ""
    text.emit(
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{do.values[0]}.f32.{kind}.{kind} "
        f"{{{', '.join(sums)}}}, {a}, {b}, {more}, 1, 1{turned}"
    )
