"""The rule of wgmma: tiles by descriptors, or its first factor in registers.

Source: PTX ISA 9, "wgmma.mma_async".
"""

from __future__ import annotations

from dataclasses import replace

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.rules.descriptors import WGMMA_FORMS, adds, descriptor, moved
from tinygpu.errors import ProgramError
from tinygpu.term.digits import depth_modes, held_factor, layout_faults, product_of
from tinygpu.term.program import Access, Do

__all__ = ["mma_async", "prepare"]

_TYPES = ("bf16", "f16", "e4m3")


def prepare(kernel: KernelCode, do: Do, scope: Scope, *, turn: bool) -> None:
    """Make a product's descriptors before a loop, or before what a turn of it waits for.

    So little stands between the end of a wait and the first product: each step of an address takes
    a warp some four cycles.  What moves with a loop, but for a ring's stage, is left to the turn.
    """
    if do.instruction.name != "wgmma" or not all(holds for holds, _ in layout_faults(do)):
        return
    tile = product_of(do)
    _, inner, outer, rows = map(int, tile.values)
    for factor, lines in zip(tile.reads[:2], (rows, inner * outer), strict=True):
        assert isinstance(factor, Access)
        terms = [term for origin in factor.origin for term in scope.split(origin)[1]]
        moves = any(name in scope.running for name, _ in terms)
        if factor.buffer.level == "smem" and (turn or not moves):
            descriptor(kernel, tile, factor, lines, scope, forms=WGMMA_FORMS, staged=turn)


def mma_async(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """wgmma.mma_async: one m64 n k16 product, its first factor from shared memory or registers."""
    text = kernel.text
    x, sums_before = do.reads[0], do.reads[2]
    assert isinstance(x, Access)
    for holds, what in layout_faults(do):
        if not holds:
            raise ProgramError(f"{do}: its digits do not count the {what}")
    tile, deep, held = product_of(do), depth_modes(do), held_factor(do)
    k, inner, outer, rows = map(int, tile.values)
    columns, kind, width = inner * outer, x.buffer.dtype, x.buffer.type.bytes
    if k * width != 32 or rows != 64 or columns % 8 or columns > 256:
        raise ProgramError(f"{do}: wgmma multiplies 64 x n x 32 B, n a multiple of 8 up to 256")
    if sums_before != do.write:
        raise ProgramError(f"{do}: wgmma adds to a tile of sums, column by column")
    own = replace(do.write, value=do.write.value[deep:])
    sums = ", ".join(kernel.cells(own, do.values[deep:], scope))
    left, y = tile.reads[:2]
    assert isinstance(left, Access)
    assert isinstance(y, Access)
    right, right_known, right_by_k = descriptor(kernel, tile, y, columns, scope, forms=WGMMA_FORMS)
    left_by_k = True
    if held:
        modes = (*range(deep - 2), deep + 1, deep - 1)  # word, half, deep
        words = replace(held, value=tuple(held.value[i] for i in modes))
        a = f"{{{', '.join(kernel.words(words, (2,) * len(modes), scope))}}}"
    else:
        base, known, left_by_k = descriptor(kernel, tile, left, rows, scope, forms=WGMMA_FORMS)
        a = moved(kernel, base, known)
    b, more = moved(kernel, right, right_known), adds(kernel, do, scope)
    if kind not in _TYPES or (width == 1 and not (left_by_k and right_by_k)):
        raise ProgramError(f"{do}: wgmma multiplies {', '.join(_TYPES)}, 8 bits along k only")
    majors = (right_by_k,) if held else (left_by_k, right_by_k)
    turned = "".join(f", {int(not by_k)}" for by_k in majors) if width == 2 else ""
    text.emit(
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{kind}.{kind} "
        f"{{{sums}}}, {a}, {b}, {more}, 1, 1{turned}"
    )
