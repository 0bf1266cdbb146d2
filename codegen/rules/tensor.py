"""Lowering of statements on tiles: TMA and wgmma; ``TILE_RULES`` is the table of all.

TMA moves a tile in boxes, one for each slab.  wgmma finds a tile by its descriptor
(``descriptors.py``).  What tcgen05 loads is a row a thread (``rows.py``).

Source: PTX ISA 9: "cp.async.bulk.tensor", "wgmma.mma_async".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinygpu.codegen.kernel.clusters import receivers, signal_at
from tinygpu.codegen.kernel.kernel import KernelCode, Rule
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.kernel.tensor_map import tensor_map_of
from tinygpu.codegen.kernel.trimming import trimmed_map
from tinygpu.codegen.rules import rows
from tinygpu.codegen.rules.descriptors import WGMMA_128B, adds, descriptor, offset
from tinygpu.codegen.rules.exchange import exchange
from tinygpu.codegen.rules.fragments import (
    convert,
    ld_global,
    smem_stage,
    st_global,
    st_shared,
    stmatrix,
)
from tinygpu.codegen.rules.tcgen05 import copy, mma, tmem_load, tmem_store
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Affine, Do, Statement, each

__all__ = ["TILE_RULES", "prepare", "tma"]

_TYPES = ("bf16", "f16", "e4m3")


def tma(
    kernel: KernelCode, do: Do, scope: Scope, *, store: str = "cp.async", how: str = ""
) -> None:
    """cp.async.bulk.tensor, either way: one instruction a slab.

    A ``store`` by "cp.reduce.async" combines the tile with the array, ``how``: ".add", ".min", ...
    """
    (read,) = do.reads
    assert isinstance(read, Access)
    loads = read.buffer.level == "gmem"
    gmem, smem = (read, do.write) if loads else (do.write, read)
    if loads != (do.signal is not None) or len(do.values) > 3:
        raise ProgramError(f"{do}: a load of up to three value modes signals a barrier, no store")
    text, only = kernel.text, ""
    if do.trimmed:
        name, some = trimmed_map(kernel, do, scope)
        only = f"@{some} "
    else:
        name = kernel.map_at(tensor_map_of(do))
    base = text.add(smem_stage(kernel, smem, scope), offset(kernel, smem, scope))
    slabs = int(do.values[2]) if len(do.values) > 2 else 1
    mask = receivers(kernel, do.multicast)
    signal = signal_at(kernel, *do.signal, scope) if do.signal else ""
    for slab in range(slabs):
        moved = [int(s) * slab for s in smem.value[2]] if slab else [0] * len(smem.buffer.shape)
        strides = map(int, smem.buffer.stride)
        far = sum(m * s for m, s in zip(moved, strides, strict=True)) * smem.buffer.type.bytes
        at = text.add(text.add("%smem", base), far)
        rank = len(gmem.origin)
        beyond = [int(s) * slab for s in gmem.value[2]] if slab else [0] * rank
        order = reversed(range(rank))
        place = (_coordinate(kernel, gmem.origin[d], beyond[d], scope) for d in order)
        where = f"{name}, {{{', '.join(place)}}}"
        copy = f"{'cp.async' if loads else store}.bulk.tensor.{rank}d"
        if not loads:
            text.emit(f"{copy}.global.shared::cta{how}.tile.bulk_group [{where}], [{at}]")
            continue
        kind, to = (".multicast::cluster", f", {mask}") if mask else ("", "")
        kind += ".cta_group::2" if do.signal and do.signal[0].home else ""
        text.emit(
            f"{only}{copy}.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            f"{kind} [{at}], [{where}], {signal}{to}"
        )


def _coordinate(kernel: KernelCode, origin: Affine, beyond: int, scope: Scope) -> str:
    """Return a coordinate of gmem, ``beyond`` elements from an origin."""
    known, terms = scope.split(origin)
    known += beyond
    key = ("tma", terms, known)
    return str(kernel.text.once(key, lambda: kernel.addresses.sum(terms, scope, known)))


def _wgmma(kernel: KernelCode, do: Do, scope: Scope) -> None:
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
    a = text.once(("moved", left, left_known), lambda: text.wide_add(left, left_known >> 4))
    b = text.once(("moved", right, right_known), lambda: text.wide_add(right, right_known >> 4))
    more = adds(kernel, do, scope)
    kind = x.buffer.dtype
    if kind not in _TYPES or (width == 1 and not (left_by_k and right_by_k)):
        raise ProgramError(f"{do}: wgmma multiplies {', '.join(_TYPES)}, 8 bits along k only")
    turned = f", {int(not left_by_k)}, {int(not right_by_k)}" if width == 2 else ""
    text.emit(
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{do.values[0]}.f32.{kind}.{kind} "
        f"{{{', '.join(sums)}}}, {a}, {b}, {more}, 1, 1{turned}"
    )


def prepare(kernel: KernelCode, body: tuple[Statement, ...], scope: Scope) -> None:
    """Compute before a loop the masks of the CTAs that its loads are sent to."""
    for statement in each(body):
        if isinstance(statement, Do) and statement.instruction.name == "cp.async.bulk.tensor":
            receivers(kernel, statement.multicast)


def _st_shared(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """st.shared: rows and columns where the buffer has them, else as the threads hold them."""
    rows_here = len(do.write.buffer.shape) == 2 and not do.write.buffer.home
    (st_shared if rows_here else exchange)(kernel, do, scope)


def _by_fragment(of_rows: Rule, otherwise: Rule) -> Rule:
    """Return the rule that is one for rows, another for the fragments of wgmma."""

    def rule(kernel: KernelCode, do: Do, scope: Scope) -> None:
        held = any(access.buffer.fragment == "row" for access in do.accesses)
        (of_rows if held else otherwise)(kernel, do, scope)

    return rule


TILE_RULES: Mapping[str, Rule] = {
    "cp.async.bulk.tensor": tma,
    "cp.async.bulk.tensor.global": tma,
    "wgmma": _wgmma,
    "tcgen05.mma": mma,
    "tcgen05.cp": copy,
    "tcgen05.ld": tmem_load,
    "tcgen05.st": tmem_store,
    "cvt": _by_fragment(rows.convert, convert),
    "ld.global": ld_global,
    "stmatrix": stmatrix,
    "ld.shared": exchange,
    "st.shared": _by_fragment(rows.st_shared, _st_shared),
    "st.global": _by_fragment(rows.st_global, st_global),
}
