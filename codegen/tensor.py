"""Lowering of statements on tiles: TMA and wgmma; ``TILE_RULES`` is the table of all.

TMA moves a tile in boxes, one for each slab.  wgmma finds a tile by its *descriptor*, 64 bits:
where it starts (bits 0 to 13), how far slabs (16 to 29) and eight rows (32 to 45) lie apart, all
in units of 16 B, and the swizzle (62, 63).

Source: PTX ISA 9: "cp.async.bulk.tensor", "wgmma.mma_async", "Matrix Descriptor Format".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tinygpu.codegen.fragments import (
    cells,
    convert,
    ld_global,
    smem_stage,
    st_global,
    st_shared,
    stmatrix,
)
from tinygpu.codegen.ptx import Scalar as Number
from tinygpu.codegen.scope import Scope, value_coordinates
from tinygpu.errors import ProgramError
from tinygpu.program import Access, Affine, Block, Do, Statement

if TYPE_CHECKING:
    from tinygpu.codegen.roles import RoleKernel

__all__ = ["TILE_RULES", "prepare"]

Rule = Callable[["RoleKernel", Do, Scope], None]
_ATOM_BYTES = 1024  # spec: eight rows of 128 B, the period of the widest swizzle
_SWIZZLE_128B = 1 << 62
_TYPES = ("bf16", "f16", "e4m3")


def _offset(kernel: RoleKernel, access: Access, scope: Scope) -> Number:
    """Return the bytes from a stage's start to the access's origin, not swizzled."""
    text, width = kernel.text, access.buffer.type.bytes
    total: Number = 0
    known = 0
    origins = access.origin or (Affine(),) * len(access.buffer.shape)
    for origin, stride in zip(origins, map(int, access.buffer.stride), strict=True):
        here, terms = scope.split(origin)
        known += here * stride * width
        for name, coefficient in terms:
            step = kernel.addresses.integer(coefficient)
            total = text.multiply_add(
                kernel.addresses.variable(name, scope), text.multiply(step, stride * width), total
            )
    return text.add(total, known)


def _tma(kernel: RoleKernel, do: Do, scope: Scope) -> None:
    """cp.async.bulk.tensor, either way: one instruction a slab."""
    (read,) = do.reads
    assert isinstance(read, Access)
    loads = read.buffer.level == "gmem"
    gmem, smem = (read, do.write) if loads else (do.write, read)
    if loads != (do.signal is not None) or len(do.values) > 3:
        raise ProgramError(f"{do}: a load of up to three value modes signals a barrier, no store")
    text, name = kernel.text, kernel.map_of(do)
    base = text.add(smem_stage(kernel, smem, scope), _offset(kernel, smem, scope))
    slabs = int(do.values[2]) if len(do.values) > 2 else 1
    mask = _receivers(kernel, do)
    signal = kernel.barrier_at(*do.signal, scope)[0] if do.signal else ""
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
        copy = f"cp.async.bulk.tensor.{rank}d"
        if not loads:
            text.emit(f"{copy}.global.shared::cta.tile.bulk_group [{where}], [{at}]")
            continue
        kind, to = (".multicast::cluster", f", {mask}") if mask else ("", "")
        text.emit(
            f"{copy}.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            f"{kind} [{at}], [{where}], {signal}{to}"
        )


def _coordinate(kernel: RoleKernel, origin: Affine, beyond: int, scope: Scope) -> str:
    """Return a coordinate of gmem, ``beyond`` elements from an origin."""
    known, terms = scope.split(origin)
    known += beyond
    key = ("tma", terms, known)
    return str(kernel.text.once(key, lambda: kernel.addresses.sum(terms, scope, known)))


def _receivers(kernel: RoleKernel, do: Do) -> str:
    """Return the register with the mask of the CTAs that a load is sent to; "": its own alone."""
    text, below, mask = kernel.text, 1, 0
    extents = dict(kernel.program.cluster)
    if extents.get(do.multicast, 1) == 1:
        return ""
    base: Number = 0
    for name, extent in kernel.program.cluster:
        if name == do.multicast:
            mask = sum(1 << (below * i) for i in range(extent))
        else:
            base = text.multiply_add(kernel.addresses.variables[name], below, base)
        below *= extent

    def make() -> Number:
        wide, narrow = text.register("u32"), text.register("b16")
        text.emit(f"mov.u32 {wide}, {mask}")
        if base != 0:
            text.emit(f"shl.b32 {wide}, {wide}, {base}")
        text.emit(f"cvt.u16.u32 {narrow}, {wide}")
        return narrow

    return str(text.once(("mask", do.multicast), make))


def _major(do: Do, access: Access, rows: int) -> bool:
    """Return whether an operand of wgmma lies along k; check that its descriptor describes it.

    The canonical layouts: rows of 128 B, 128B-swizzled, in slabs.  Along k, eight rows (an atom)
    follow one another; along m or n, a slab has a row for each k.
    """
    buffer, width = access.buffer, access.buffer.type.bytes
    inner = 128 // width
    want = ((inner, 1, int(buffer.shape[0]) * inner), (3, (16 // width).bit_length() - 1, 3))
    got = (tuple(map(int, buffer.stride)), tuple(map(int, buffer.swizzle)))
    if got != want or buffer.stage_bytes % _ATOM_BYTES:
        raise ProgramError(f"{do}: {buffer} is no tile of 128 B rows that wgmma can read")
    along_k = tuple(map(int, access.value[0]))
    by_k = along_k == (0, 1, 0)
    if not by_k and along_k != (1, 0, 0):
        raise ProgramError(f"{do}: {buffer.name}: k has to run along a row or from row to row")
    modes = zip(do.values[1:], access.value[1:], strict=True)
    values = (1, *(int(extent) if any(steps) else 1 for extent, steps in modes))
    row = np.arange(rows)
    zero = np.zeros_like(row)
    places = (row, zero, zero) if by_k else (zero, row % inner, row // inner)
    if not np.array_equal(value_coordinates(access, values), np.stack(places, axis=-1)):
        raise ProgramError(f"{do}: {buffer.name}: its rows have to be {rows} neighbours")
    return by_k


def _descriptor(
    kernel: RoleKernel, do: Do, access: Access, rows: int, scope: Scope
) -> tuple[str, int, bool]:
    """Return a descriptor's base register, the bytes to add, and whether k is contiguous."""
    text, buffer = kernel.text, access.buffer
    by_k = _major(do, access, rows)
    leading = 1 if by_k else int(buffer.stride[2]) * buffer.type.bytes >> 4
    fixed = _SWIZZLE_128B | (_ATOM_BYTES >> 4) << 32 | leading << 16
    moving = [scope.split(o) for o in access.origin] if access.origin else []
    known = sum(
        here * int(s) * buffer.type.bytes
        for (here, _), s in zip(moving, buffer.stride, strict=False)
    )
    terms = tuple(t for _, t in moving)

    def start() -> Number:
        bytes_there = text.subtract(_offset(kernel, access, scope), known)
        at = text.add("%smem", text.add(bytes_there, kernel.addresses.plan.start[buffer.name]))
        low, wide = text.register("u32"), text.register("u64")
        text.emit(f"and.b32 {low}, {at}, 0x3ffff")  # an address of a cluster has the rank above
        text.emit(f"shr.u32 {low}, {low}, 4")
        text.emit(f"cvt.u64.u32 {wide}, {low}")
        text.emit(f"or.b64 {wide}, {wide}, {fixed:#x}")
        return wide

    base = text.once(("descriptor", buffer.name, terms), start)
    slot = _slot(kernel, access, scope)
    if isinstance(slot, int):
        return str(base), known + slot, by_k

    def staged() -> Number:
        return text.wide_multiply_add(
            slot, kernel.addresses.plan.stage_bytes[buffer.name] >> 4, base
        )

    return str(text.once(("descriptor at", base, slot), staged)), known, by_k


def _slot(kernel: RoleKernel, access: Access, scope: Scope) -> Number:
    """Return the stage's number in a register, or its distance in bytes where it is known."""
    slot, _ = kernel.rings.position(access.buffer.stages, access.index, scope)
    if isinstance(slot, int):
        return slot * kernel.addresses.plan.stage_bytes[access.buffer.name]
    return slot


def _wgmma(kernel: RoleKernel, do: Do, scope: Scope) -> None:
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
    sums = cells(kernel, do.write, (columns, 64), scope)
    left, left_known, left_by_k = _descriptor(kernel, do, x, 64, scope)
    right, right_known, right_by_k = _descriptor(kernel, do, y, columns, scope)
    a = text.once(("moved", left, left_known), lambda: text.wide_add(left, left_known >> 4))
    b = text.once(("moved", right, right_known), lambda: text.wide_add(right, right_known >> 4))
    adds = _adds(kernel, do, scope)
    kind = x.buffer.dtype
    if kind not in _TYPES or (width == 1 and not (left_by_k and right_by_k)):
        raise ProgramError(f"{do}: wgmma multiplies {', '.join(_TYPES)}, 8 bits along k only")
    turned = f", {int(not left_by_k)}, {int(not right_by_k)}" if width == 2 else ""
    text.emit(
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{do.values[0]}.f32.{kind}.{kind} "
        f"{{{', '.join(sums)}}}, {a}, {b}, {adds}, 1, 1{turned}"
    )


def _adds(kernel: RoleKernel, do: Do, scope: Scope) -> str:
    """Return the predicate that sums are added to, not started."""
    text = kernel.text
    known, terms = scope.split(do.fresh) if do.fresh is not None else (1, ())
    if known > 0:
        terms = ()

    def make() -> Number:
        adds = text.register("pred")
        here = kernel.addresses.sum(terms, scope, known) if terms else known
        if isinstance(here, int):
            text.emit(
                f"setp.{'ne' if here else 'eq'}.u32 {adds}, {1 if here else 0}, {0 if here else 1}"
            )
        else:
            text.emit(f"setp.ne.u32 {adds}, {here}, 0")
        return adds

    return str(text.once(("adds", terms, bool(known)), make))


def prepare(kernel: RoleKernel, body: tuple[Statement, ...], scope: Scope) -> None:
    """Compute before a loop the masks of the CTAs that its loads are sent to."""
    for statement in body:
        if isinstance(statement, Block):
            prepare(kernel, statement.body, scope)
        elif isinstance(statement, Do) and statement.instruction.name == "cp.async.bulk.tensor":
            _receivers(kernel, statement)


TILE_RULES: Mapping[str, Rule] = {
    "cp.async.bulk.tensor": _tma,
    "cp.async.bulk.tensor.global": _tma,
    "wgmma": _wgmma,
    "cvt": convert,
    "ld.global": ld_global,
    "stmatrix": stmatrix,
    "st.shared": st_shared,
    "st.global": st_global,
}
