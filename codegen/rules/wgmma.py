"""Rules of wgmma, which finds its tiles by descriptors, and of stmatrix, which stores its sums.

Source: PTX ISA 9, "wgmma.mma_async", "stmatrix".
"""

from __future__ import annotations

import numpy as np

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.rules.descriptors import WGMMA_128B, adds, descriptor, moved
from tinygpu.codegen.rules.fragments import (
    PLAIN,
    at_its_start,
    held_tile,
    lane_of,
    smem_stage,
    swizzled,
)
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Do

__all__ = ["mma_async", "stmatrix"]

_TYPES = ("bf16", "f16", "e4m3")
_TURNED = PLAIN[::-1]


def mma_async(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """wgmma.mma_async: one m64 n k16 product from shared memory."""
    text = kernel.text
    x, y, sums_before = do.reads
    assert isinstance(x, Access)
    assert isinstance(y, Access)
    width = x.buffer.type.bytes
    columns = int(do.values[1]) * int(do.values[2])
    if int(do.values[0]) * width != 32 or int(do.values[3]) != 64 or columns % 8 or columns > 256:
        raise ProgramError(f"{do}: wgmma multiplies 64 x n x 32 B, n a multiple of 8 up to 256")
    places = value_coordinates(do.write, (1, *map(int, do.values[1:])))
    in_order = np.stack((np.arange(64 * columns) // columns, np.arange(64 * columns) % columns), -1)
    if sums_before != do.write or not np.array_equal(places, in_order):
        raise ProgramError(f"{do}: wgmma adds to a tile of sums, column by column")
    sums = kernel.cells(do.write, (columns, 64), scope)
    left, left_known, left_by_k = descriptor(kernel, do, x, 64, scope, form=WGMMA_128B)
    right, right_known, right_by_k = descriptor(kernel, do, y, columns, scope, form=WGMMA_128B)
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


def stmatrix(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """stmatrix: four (two) 8 x 8 matrices of a warp's 16 rows at once."""
    held, (columns, rows) = held_tile(kernel, do, scope)
    text, buffer = kernel.text, do.write.buffer
    turned = do.variant == "trans"
    at_its_start(do, do.write, scope)
    if buffer.type.bytes != 2 or tuple(do.write.value) != (_TURNED if turned else PLAIN):
        raise ProgramError(f"{do}: stmatrix stores rows of 16-bit elements, .trans their columns")
    warp, lane = lane_of(kernel)
    pitch, width = int(buffer.stride[0]), buffer.type.bytes
    low, high = text.modulo(lane, 8), text.divide(lane, 16)
    middle = text.modulo(text.divide(lane, 8), 2)
    if turned:
        line = text.multiply_add(high, 8, low)
        column = text.multiply_add(warp, 16, text.multiply(middle, 8))
    else:
        line = text.multiply_add(warp, 16, text.multiply_add(middle, 8, low))
        column = text.multiply(high, 8)
    key = ("stmatrix", buffer.name, turned)
    row_bytes = text.once((*key, "row"), lambda: text.multiply(line, pitch * width))
    column_bytes = text.once((*key, "column"), lambda: swizzled(kernel, do.write, line, column))
    stage = smem_stage(kernel, do.write, scope)
    base = text.add(text.add("%smem", row_bytes), stage)
    groups = columns // 8
    at_once = 2 if groups % 2 == 0 else 1  # groups of 8 columns
    suffix = ".trans" if turned else ""
    for block in range(rows // 64):
        for group in range(0, groups, at_once):
            first = (block * groups + group) * 2
            mine = held[first : first + 2 * at_once]
            if turned:
                known, here = group * 8 * pitch * width, column_bytes
            else:
                known = block * 64 * pitch * width
                here = text.exclusive_or(column_bytes, group * 8 * width)
            at = text.add(base, here)
            text.emit(
                f"stmatrix.sync.aligned.m8n8.x{len(mine)}{suffix}.shared.b16 "
                f"[{at}+{known}], {{{', '.join(mine)}}}"
            )
