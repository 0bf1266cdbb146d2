"""Descriptors: how tensor cores are told where a tile lies in shared memory.

A *matrix descriptor* has 64 bits: where the tile starts (bits 0 to 13), how far slabs (16 to 29)
and eight rows (32 to 45) lie apart, all in units of 16 B, and the swizzle (wgmma 62 and 63,
tcgen05 61 to 63, with bit 46 set).  K-major tiles of one slab do not use the distance of slabs.

Source: PTX ISA 9: "Matrix Descriptor Format" (wgmma), "Shared Memory Descriptor" (tcgen05).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Affine, Do

__all__ = ["TCGEN05_FORMS", "WGMMA_FORMS", "adds", "descriptor", "moved", "offset", "smem_stage"]

_ROWS = 8  # spec: of an atom, the period of a swizzle
WGMMA_FORMS = {128: 1 << 62, 64: 2 << 62, 32: 3 << 62}
TCGEN05_FORMS = {128: 1 << 46 | 2 << 61}
"""What a descriptor says of the format, by the bytes of a row: swizzled as wide."""


def smem_stage(kernel: KernelCode, access: Access, scope: Scope) -> Number:
    """Return the bytes from ``%smem`` to the stage (and copy) of an access."""
    buffer = access.buffer
    start = kernel.smem_at(buffer.name, buffer.stages, access.index, scope)
    return kernel.addresses.copied(buffer, start)


def offset(kernel: KernelCode, access: Access, scope: Scope) -> Number:
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


def _row_bytes(access: Access) -> int:
    """Return the bytes of a row of a slab; 0 of what lies in none."""
    _, row, *slabs = (*access.buffer.shape, 0)
    return int(row) * access.buffer.type.bytes if len(slabs) == 2 else 0


def _major(do: Do, access: Access, rows: int, forms: Mapping[int, int]) -> bool:
    """Return whether an operand lies along k; check that its descriptor describes it.

    The canonical layouts: rows as long as their swizzle, in slabs.  Along k, eight rows (an atom)
    follow one another; along m or n, a slab has a row of 128 B for each k.
    """
    buffer, width = access.buffer, access.buffer.type.bytes
    row = _row_bytes(access)
    inner, bits = row // width, (row // 16).bit_length() - 1
    want = ((inner, 1, int(buffer.shape[0]) * inner), (bits, (16 // width).bit_length() - 1, 3))
    got = (tuple(map(int, buffer.stride)), tuple(map(int, buffer.swizzle)))
    if got != want or row not in forms or buffer.stage_bytes % (_ROWS * row):
        rows_of = " or ".join(map(str, forms))
        raise ProgramError(
            f"{do}: {buffer} is no tile of {rows_of} B rows that tensor cores can read"
        )
    along_k = tuple(map(int, access.value[0]))
    by_k = along_k == (0, 1, 0)
    if not by_k and (along_k != (1, 0, 0) or row != 128):
        raise ProgramError(f"{do}: {buffer.name}: k has to run along a row or from row to row")
    modes = zip(do.values[1:], access.value[1:], strict=True)
    values = (1, *(int(extent) if any(steps) else 1 for extent, steps in modes))
    line = np.arange(rows)
    zero = np.zeros_like(line)
    places = (line, zero, zero) if by_k else (zero, line % inner, line // inner)
    if not np.array_equal(value_coordinates(access, values), np.stack(places, axis=-1)):
        raise ProgramError(f"{do}: {buffer.name}: its rows have to be {rows} neighbours")
    return by_k


def descriptor(
    kernel: KernelCode,
    do: Do,
    access: Access,
    rows: int,
    scope: Scope,
    *,
    forms: Mapping[int, int],
    staged: bool = True,
) -> tuple[str, int, bool]:
    """Return a descriptor's base register, the bytes to add, and whether k is contiguous.

    ``forms`` are one of the formats above; not ``staged``, it is that of a ring's first stage.
    Raises ProgramError for what no descriptor can say.
    """
    text, buffer = kernel.text, access.buffer
    by_k = _major(do, access, rows, forms)
    leading = 1 if by_k else int(buffer.stride[2]) * buffer.type.bytes >> 4
    row = _row_bytes(access)
    fixed = forms[row] | (_ROWS * row >> 4) << 32 | leading << 16
    moving = [scope.split(o) for o in access.origin] if access.origin else []
    known = sum(
        here * int(s) * buffer.type.bytes
        for (here, _), s in zip(moving, buffer.stride, strict=False)
    )
    terms = tuple(t for _, t in moving)

    def start() -> Number:
        bytes_there = text.subtract(offset(kernel, access, scope), known)
        first = kernel.addresses.copied(buffer, kernel.addresses.plan.start[buffer.name])
        at = text.add("%smem", text.add(bytes_there, first))
        low, wide = text.register("u32"), text.register("u64")
        text.emit(f"and.b32 {low}, {at}, 0x3ffff")  # an address of a cluster has the rank above
        text.emit(f"shr.u32 {low}, {low}, 4")
        text.emit(f"cvt.u64.u32 {wide}, {low}")
        text.emit(f"or.b64 {wide}, {wide}, {fixed:#x}")
        return wide

    base = text.once(("descriptor", buffer.name, terms), start)
    slot = _slot(kernel, access, scope) if staged else 0
    if isinstance(slot, int):
        return str(base), known + slot, by_k

    def at() -> Number:
        return text.wide_multiply_add(
            slot, kernel.addresses.plan.stage_bytes[buffer.name] >> 4, base
        )

    return str(text.once(("descriptor at", base, slot), at)), known, by_k


def moved(kernel: KernelCode, base: str, known: int) -> str:
    """Return a descriptor so many bytes further on."""
    text = kernel.text
    return str(text.once(("moved", base, known), lambda: text.wide_add(base, known >> 4)))


def _slot(kernel: KernelCode, access: Access, scope: Scope) -> Number:
    """Return the stage's number in a register, or its distance in bytes where it is known."""
    slot, _ = kernel.rings.position(access.buffer.stages, access.index, scope)
    if isinstance(slot, int):
        return slot * kernel.addresses.plan.stage_bytes[access.buffer.name]
    return slot


def adds(kernel: KernelCode, do: Do, scope: Scope) -> str:
    """Return the predicate that sums are added to, not started."""
    text = kernel.text
    known, terms = scope.split(do.fresh) if do.fresh is not None else (1, ())
    if known > 0 or scope.below(known, terms, 1) is False:
        known, terms = 1, ()
    elif scope.below(known, terms, 1):
        known, terms = 0, ()

    def make() -> Number:
        adds = text.register("pred")
        here = kernel.addresses.sum(terms, scope, known) if terms else known
        if isinstance(here, int):
            how = "ne" if here else "eq"
            text.emit(f"setp.{how}.u32 {adds}, {int(here != 0)}, {int(here == 0)}")
        else:
            text.emit(f"setp.ne.u32 {adds}, {here}, 0")
        return adds

    return str(text.once(("adds", terms, bool(known)), make))
