"""Lowering of statements on tiles: TMA, wgmma, and what a warpgroup does with fragments.

A tile in registers is held as ``tinygpu.fragment`` says; a thread's registers of a fragment stand
in that order, two 16-bit elements to a register.  ``TILE_RULES`` is the table.

Source: PTX ISA 9: "cp.async.bulk.tensor", "wgmma.mma_async", "Matrix Descriptor", "stmatrix".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tinygpu.codegen.ptx import Scalar as Number
from tinygpu.codegen.scope import Scope
from tinygpu.codegen.tensor_map import tensor_map_of
from tinygpu.errors import ProgramError
from tinygpu.fragment import FRAGMENTS
from tinygpu.program import Access, Block, Do, Statement

if TYPE_CHECKING:
    from tinygpu.codegen.roles import RoleKernel

__all__ = ["TILE_RULES", "prepare"]

Rule = Callable[["RoleKernel", Do, Scope], None]
_ATOM_BYTES = 1024  # spec: eight rows of 128 B, the period of the widest swizzle
_SWIZZLE_128B = 1 << 62
_TYPES = {"bf16": "bf16", "f16": "f16"}


def _offset(
    kernel: RoleKernel, access: Access, scope: Scope, place: tuple[int, ...] = ()
) -> Number:
    """Return the bytes from a stage's start to the access's origin (and a place), not swizzled."""
    text, width = kernel.text, access.buffer.type.bytes
    total: Number = 0
    known = 0
    for d, stride in enumerate(map(int, access.buffer.stride)):
        here, terms = scope.split(access.origin[d]) if access.origin else (0, ())
        known += (here + (place[d] if place else 0)) * stride * width
        for name, coefficient in terms:
            step = kernel.addresses.integer(coefficient)
            total = text.multiply_add(
                kernel.addresses.variable(name, scope), text.multiply(step, stride * width), total
            )
    return text.add(total, known)


def _stage(kernel: RoleKernel, access: Access, scope: Scope) -> Number:
    """Return the bytes from ``%smem`` to the stage (and copy) of an access."""
    buffer, text = access.buffer, kernel.text
    start = kernel.smem_at(buffer.name, buffer.stages, access.index, scope)
    if buffer.copies > 1:
        start = text.multiply_add(kernel.copy, buffer.stages * buffer.stage_bytes, start)
    return start


def _tma(kernel: RoleKernel, do: Do, scope: Scope) -> None:
    """cp.async.bulk.tensor, either way: one instruction a slab."""
    (read,) = do.reads
    assert isinstance(read, Access)
    loads = read.buffer.level == "gmem"
    gmem, smem = (read, do.write) if loads else (do.write, read)
    text, name = kernel.text, kernel.map_of(do)
    tensor_map_of(do)
    base = text.add(_stage(kernel, smem, scope), _offset(kernel, smem, scope))
    slabs = int(do.values[2]) if len(do.values) > 2 else 1
    receivers = _receivers(kernel, do) if loads else []
    signal = kernel.barrier_at(*do.signal, scope)[0] if do.signal else ""
    for slab in range(slabs):
        moved = [int(s) * slab for s in smem.value[2]] if slab else [0] * len(smem.buffer.shape)
        strides = map(int, smem.buffer.stride)
        far = sum(m * s for m, s in zip(moved, strides, strict=True)) * smem.buffer.type.bytes
        at = text.add(text.add("%smem", base), far)
        coordinates = []
        for d in reversed(range(2)):
            known, terms = scope.split(gmem.origin[d])
            known += int(gmem.value[2][d]) * slab if slab else 0
            key = ("tma", terms, known)

            def make(terms: object = terms, known: int = known) -> Number:
                return kernel.addresses.sum(terms, scope, known)  # type: ignore[arg-type]

            coordinates.append(str(text.once(key, make)))
        where = f"{name}, {{{', '.join(coordinates)}}}"
        if not loads:
            text.emit(
                f"cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [{where}], [{at}]"
            )
            continue
        kind = ".multicast::cluster" if receivers else ""
        mask = f", {receivers[0]}" if receivers else ""
        text.emit(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            f"{kind} [{at}], [{where}], {signal}{mask}"
        )


def _receivers(kernel: RoleKernel, do: Do) -> list[str]:
    """Return the register with the mask of the CTAs that a load is sent to; none: its own alone."""
    text, below, mask = kernel.text, 1, 0
    extents = dict(kernel.program.cluster)
    if extents.get(do.multicast, 1) == 1:
        return []
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

    return [str(text.once(("mask", do.multicast), make))]


def _major(do: Do, access: Access) -> bool:
    """Return whether an operand of wgmma lies along k; check that its descriptor describes it.

    The canonical layouts: rows of 128 B, 128B-swizzled, in slabs.  Along k, eight rows (an atom)
    follow one another; along m or n, a slab has a row for each k.
    """
    buffer, width = access.buffer, access.buffer.type.bytes
    inner = 128 // width
    lines = int(buffer.shape[0])
    want = ((inner, 1, lines * inner), (3, (16 // width).bit_length() - 1, 3))
    got = (tuple(map(int, buffer.stride)), tuple(map(int, buffer.swizzle)))
    if got != want or buffer.stage_bytes % _ATOM_BYTES:
        raise ProgramError(f"{do}: {buffer} is no tile of 128 B rows that wgmma can read")
    steps = [tuple(map(int, s)) for s in access.value]
    by_k = steps[0] == (0, 1, 0)
    if not by_k and steps[0] != (1, 0, 0):
        raise ProgramError(f"{do}: {buffer.name}: k has to run along a row or from row to row")
    lengths = [int(v) for v in do.values]
    place = [0, 0, 0]
    for extent, step in zip(lengths[1:], steps[1:], strict=True):
        line = (1, 0, 0) if by_k else (0, 1, 0)
        wide = (0, 0, 1)
        moves = extent > 1 and any(step)
        if moves and step not in (line, wide) and not (by_k and step[1:] == (0, 0)):
            raise ProgramError(f"{do}: {buffer.name}: a tile's rows have to be neighbours")
        for d in range(3):
            place[d] += (extent - 1) * step[d]
    if by_k and place[2]:
        raise ProgramError(f"{do}: {buffer.name}: rows of several slabs are no tile of wgmma")
    return by_k


def _descriptor(kernel: RoleKernel, do: Do, access: Access, scope: Scope) -> tuple[str, int, bool]:
    """Return a descriptor's base register, the constant to add, and whether k is contiguous."""
    text, buffer = kernel.text, access.buffer
    by_k = _major(do, access)
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
    slot, _ = kernel.position(access.buffer.stages, access.index, scope)
    if isinstance(slot, int):
        return slot * kernel.addresses.plan.stage_bytes[access.buffer.name]
    return slot


def _wgmma(kernel: RoleKernel, do: Do, scope: Scope) -> None:
    """wgmma.mma_async: one m64 n k16 product from shared memory."""
    text = kernel.text
    x, y = do.reads[:2]
    assert isinstance(x, Access)
    assert isinstance(y, Access)
    width = x.buffer.type.bytes
    columns = int(do.values[1]) * int(do.values[2])
    if int(do.values[0]) * width != 32 or int(do.values[3]) != 64 or columns % 8 or columns > 256:
        raise ProgramError(f"{do}: wgmma multiplies 64 x n x 32 B, n a multiple of 8 up to 256")
    sums = _cells(kernel, do.write, (columns, 64), scope)
    left, left_known, left_by_k = _descriptor(kernel, do, x, scope)
    right, right_known, right_by_k = _descriptor(kernel, do, y, scope)
    a = text.once(("moved", left, left_known), lambda: text.wide_add(left, left_known >> 4))
    b = text.once(("moved", right, right_known), lambda: text.wide_add(right, right_known >> 4))
    adds = _adds(kernel, do, scope)
    kind = _TYPES[x.buffer.dtype]
    turned = f", {int(not left_by_k)}, {int(not right_by_k)}"
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


def _cells(kernel: RoleKernel, access: Access, extents: tuple[int, int], scope: Scope) -> list[str]:
    """Return a thread's registers of a part (columns, rows) of a tile, in fragment order."""
    buffer = access.buffer
    fragment = FRAGMENTS[buffer.fragment]
    known = [scope.split(o) for o in access.origin] if access.origin else [(0, ()), (0, ())]
    if any(t for _, t in known):
        raise ProgramError(f"{access}: a fragment's registers need an origin that is known")
    high, wide = fragment.base
    (row, _), (column, _) = known
    columns, rows = extents
    if row % high or column % wide or rows % high or columns % wide:
        raise ProgramError(f"{access}: no whole parts of the fragment {fragment.name}")
    width = buffer.type.bytes
    each = 4 * width // 4 if width < 4 else 4  # registers of a base: four values
    across = int(buffer.shape[1]) // wide
    kind = "f32" if buffer.dtype == "f32" else "b32"
    if buffer.dtype not in ("f32", "f16", "bf16"):
        raise ProgramError(f"{access}: no fragment of {buffer.dtype}")
    found = []
    for block in range(row // high, (row + rows) // high):
        for group in range(column // wide, (column + columns) // wide):
            for i in range(each):
                key = (buffer.name, 0, (block * across + group) * each + i)
                if key not in kernel._cells:
                    kernel._cells[key] = kernel.text.register(kind)
                found.append(kernel._cells[key])
    return found


def _shape(do: Do) -> tuple[int, int]:
    columns, rows = (int(v) for v in do.values)
    return columns, rows


def _cvt(kernel: RoleKernel, do: Do, scope: Scope) -> None:
    """cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32: two sums to one register."""
    (read,) = do.reads
    assert isinstance(read, Access)
    wide = _cells(kernel, read, _shape(do), scope)
    narrow = _cells(kernel, do.write, _shape(do), scope)
    kind = do.write.buffer.dtype
    if read.buffer.dtype != "f32" or kind not in ("f16", "bf16"):
        raise ProgramError(f"{do}: a fragment is converted from f32 to f16 or bf16")
    for i, target in enumerate(narrow):
        kernel.text.emit(f"cvt.rn.{kind}x2.f32 {target}, {wide[2 * i + 1]}, {wide[2 * i]}")


def _lane(kernel: RoleKernel) -> tuple[Number, Number]:
    """Return this thread's warp in its role's copy, and its lane."""
    text = kernel.text
    warp = text.once(("warp", kernel.local), lambda: text.divide(kernel.local, 32))
    lane = text.once(("lane", kernel.local), lambda: text.modulo(kernel.local, 32))
    return warp, lane


def _swizzled(kernel: RoleKernel, access: Access, line: Number, column: Number) -> Number:
    """Return the bytes of an element of a row (``line``), ``column`` known to stay inside it.

    The row's bits choose which 16 B pieces change places: the result is linear in what is XORed to
    the column, so that a known part of the column may be XORed in later.
    """
    text, buffer = kernel.text, access.buffer
    width, pitch = buffer.type.bytes, int(buffer.stride[0])
    bits, base, shift = (int(x) for x in buffer.swizzle)
    if not bits:
        return text.multiply(column, width)
    mask = ((1 << bits) - 1) << (base + shift)

    def make() -> Number:
        linear = text.multiply(line, pitch)
        masked = text.register("u32")
        text.emit(f"and.b32 {masked}, {linear}, {mask}")
        moved = text.exclusive_or(column, text.divide(masked, 1 << shift))
        return text.multiply(moved, width)

    return text.once(("swizzled", line, column, pitch, bits), make)


def _stmatrix(kernel: RoleKernel, do: Do, scope: Scope) -> None:
    """stmatrix: four (two) 8 x 8 matrices of a warp's 16 rows at once."""
    (read,) = do.reads
    assert isinstance(read, Access)
    text, buffer = kernel.text, do.write.buffer
    columns, rows = _shape(do)
    held = _cells(kernel, read, (columns, rows), scope)
    turned = do.variant == "trans"
    warp, lane = _lane(kernel)
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
    column_bytes = text.once((*key, "column"), lambda: _swizzled(kernel, do.write, line, column))
    stage = _stage(kernel, do.write, scope)
    base = text.add(text.add("%smem", row_bytes), stage)
    groups = columns // 8
    at_once = 2 if groups % 2 == 0 else 1  # groups of 8 columns
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
            suffix = ".trans" if turned else ""
            text.emit(
                f"stmatrix.sync.aligned.m8n8.x{len(mine)}{suffix}.shared.b16 "
                f"[{at}+{known}], {{{', '.join(mine)}}}"
            )


def _st_shared(kernel: RoleKernel, do: Do, scope: Scope) -> None:
    """st.shared.v2.f32: two neighbours of a row."""
    (read,) = do.reads
    assert isinstance(read, Access)
    text, buffer = kernel.text, do.write.buffer
    columns, rows = _shape(do)
    held = _cells(kernel, read, (columns, rows), scope)
    if buffer.dtype != "f32" or tuple(map(int, do.write.value[0])) != (0, 1):
        raise ProgramError(f"{do}: only rows of f32 are stored this way; use stmatrix")
    warp, lane = _lane(kernel)
    pitch = int(buffer.stride[0])
    line = text.multiply_add(warp, 16, text.divide(lane, 4))
    column = text.multiply(text.modulo(lane, 4), 2)
    stage = _stage(kernel, do.write, scope)
    for half in (0, 8):
        here = text.add(line, half)
        bytes_there = _swizzled(kernel, do.write, here, column)
        base = text.add(text.multiply_add(here, pitch * 4, "%smem"), stage)
        for block in range(rows // 64):
            for group in range(columns // 8):
                first = (block * (columns // 8) + group) * 4 + half // 4
                at = text.add(base, text.exclusive_or(bytes_there, group * 32))
                pair = ", ".join(held[first : first + 2])
                text.emit(f"st.shared.v2.f32 [{at}+{block * 64 * pitch * 4}], {{{pair}}}")


def _st_global(kernel: RoleKernel, do: Do, scope: Scope) -> None:
    """st.global: pairs of neighbours, or single elements where c is turned or its rows are odd."""
    (read,) = do.reads
    assert isinstance(read, Access)
    text, access, buffer = kernel.text, do.write, do.write.buffer
    columns, rows = _shape(do)
    held = _cells(kernel, read, (columns, rows), scope)
    width = buffer.type.bytes
    turned = tuple(map(int, access.value[0])) == (1, 0)
    across, down = (0, 1) if turned else (1, 0)  # c's dimension of columns, of rows
    warp, lane = _lane(kernel)
    row = text.multiply_add(warp, 16, text.divide(lane, 4))
    column = text.multiply(text.modulo(lane, 4), 2)
    first = []
    for d, mine in ((down, row), (across, column)):
        known, terms = scope.split(access.origin[d])
        first.append(text.add(kernel.addresses.sum(terms, scope, mine), known))
    strides = [kernel.addresses.integer(s) for s in buffer.stride]
    sizes = [kernel.addresses.integer(s) for s in buffer.shape]
    pointer: Number = kernel.addresses.pointers[buffer.name]
    for here, d in zip(first, (down, across), strict=True):
        pointer = text.wide_multiply_add(here, text.multiply(strides[d], width), pointer)
    row_left = text.subtract(sizes[down], first[0])
    column_left = text.subtract(sizes[across], first[1])
    down_bytes = text.multiply(strides[down], width)
    for block in range(rows // 64):
        for half in range(2):
            far = block * 64 + half * 8
            inside = text.less(far, row_left)
            line = text.wide_multiply_add(down_bytes, far, pointer)
            for group in range(columns // 8):
                at = (block * (columns // 8) + group) * 4 + half * 2
                _pair(kernel, do, held, at, (line, text.multiply(strides[across], width)),
                      group * 8, (inside, column_left))  # fmt: skip


def _pair(
    kernel: RoleKernel,
    do: Do,
    held: list[str],
    at: int,
    place: tuple[Number, Number],
    column: int,
    inside: tuple[str | bool, Number],
) -> None:
    """Store two neighbouring sums of a row, if they are inside."""
    text, width = kernel.text, do.write.buffer.type.bytes
    line, step = place
    also = inside[0] if isinstance(inside[0], str) else None
    if int(do.vector) == 2:
        guard = text.less(column + 1, inside[1], also)
        where = text.wide_multiply_add(step, column, line)
        value = held[at // 2] if width == 2 else f"{{{held[at]}, {held[at + 1]}}}"
        kind = "b32" if width == 2 else "v2.f32"
        text.emit(f"@{guard} st.global.{kind} [{where}], {value}")
        return
    values = held[at : at + 2]
    if width == 2:
        values = [text.register("b16") for _ in range(2)]
        text.emit(f"mov.b32 {{{', '.join(values)}}}, {held[at // 2]}")
    for i, value in enumerate(values):
        guard = text.less(column + i, inside[1], also)
        where = text.wide_multiply_add(step, column + i, line)
        text.emit(f"@{guard} st.global.{'b16' if width == 2 else 'f32'} [{where}], {value}")


def prepare(kernel: RoleKernel, body: tuple[Statement, ...], scope: Scope) -> None:
    """Compute before a loop what its statements share: descriptors, masks."""
    for statement in body:
        if isinstance(statement, Block):
            prepare(kernel, statement.body, scope)
        elif isinstance(statement, Do) and statement.instruction.name == "cp.async.bulk.tensor":
            _receivers(kernel, statement)


TILE_RULES: Mapping[str, Rule] = {
    "cp.async.bulk.tensor": _tma,
    "cp.async.bulk.tensor.global": _tma,
    "wgmma": _wgmma,
    "cvt": _cvt,
    "stmatrix": _stmatrix,
    "st.shared": _st_shared,
    "st.global": _st_global,
}
