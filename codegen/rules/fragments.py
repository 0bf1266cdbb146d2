"""Fragments: how a warpgroup loads what lies beside a tile of wgmma, and stores it.

A tile in registers is shared out as ``tinygpu.isa.fragment`` says; a thread's registers of a
fragment stand in that order, two 16-bit elements to a register.

Source: PTX ISA 9: "ld", "st", and the register fragments of "wgmma.mma_async".
"""

from __future__ import annotations

from collections.abc import Iterator

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Do

__all__ = [
    "PLAIN", "at_its_start", "halves", "held_tile", "lane_of", "ld_global", "smem_stage",
    "st_global", "st_shared", "swizzled",
]  # fmt: skip

PLAIN = ((0, 1), (1, 0))  # columns, then rows, of a tile


def smem_stage(kernel: KernelCode, access: Access, scope: Scope) -> Number:
    """Return the bytes from ``%smem`` to the stage (and copy) of an access."""
    buffer = access.buffer
    start = kernel.smem_at(buffer.name, buffer.stages, access.index, scope)
    return kernel.addresses.copied(buffer, start)


def ld_global(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ld.global: what a tile has beside it, as a bias; what all rows share is loaded once."""
    (source,) = do.reads
    assert isinstance(source, Access)
    columns, rows = (int(v) for v in do.values)
    held = kernel.cells(do.write, (columns, rows), scope)
    text, addresses, width = kernel.text, kernel.addresses, source.buffer.type.bytes
    across, down = (tuple(map(int, s)) for s in source.value)
    row, column = _first(kernel)
    pointer: Number = addresses.pointers[source.buffer.name]
    left: list[Number] = []
    for d, origin in enumerate(source.origin):
        known, terms = scope.split(origin)
        mine = text.add(text.multiply(row, down[d]), text.multiply(column, across[d]))
        here = text.add(addresses.sum(terms, scope, mine), known)
        pitch = text.multiply(addresses.integer(source.buffer.stride[d]), width)
        pointer = text.wide_multiply_add(here, pitch, pointer)
        left.append(text.subtract(addresses.integer(source.buffer.shape[d]), here))
    pitches = [text.multiply(addresses.integer(s), width) for s in source.buffer.stride]

    def load(targets: list[str], at: tuple[int, int]) -> None:
        """Load one register, or a pair, at some rows and columns from the thread's first."""
        where, inside = pointer, None
        for d, pitch in enumerate(pitches):
            far = at[0] * down[d] + at[1] * across[d]
            where = text.wide_add(where, text.wide_product(pitch, far))
            if down[d] or across[d]:
                reach = far + across[d] * (int(do.vector) - 1)
                inside = str(text.less(reach, left[d], inside))
        kind = "f32" if width == 4 else "b32" if int(do.vector) == 2 else "b16"
        for target in targets:
            text.emit(f"mov.{kind} {target}, {'0f00000000' if kind == 'f32' else 0}")
        many = f"{{{', '.join(targets)}}}" if len(targets) > 1 else targets[0]
        vector = f".v{len(targets)}" if len(targets) > 1 else ""
        text.emit(f"@{inside} ld.global{vector}.{kind} {many}, [{where}]")

    each, groups = width // 2, columns // 8  # registers of a pair
    for block in range(rows // 64):
        for half in range(2):
            for group in range(groups):
                first = ((block * groups + group) * 2 + half) * each
                targets, at = held[first : first + each], (block * 64 + half * 8, group * 8)
                if not any(down) and (block or half):
                    for target, known_one in zip(targets, held[group * 2 * each :], strict=False):
                        text.emit(f"mov.b32 {target}, {known_one}")
                elif int(do.vector) == 2:
                    load(targets, at)
                elif width == 4:
                    for i, target in enumerate(targets):
                        load([target], (at[0], at[1] + i))
                else:
                    halves = [text.register("b16") for _ in range(2)]
                    for i, part in enumerate(halves):
                        load([part], (at[0], at[1] + i))
                    text.emit(f"mov.b32 {targets[0]}, {{{', '.join(halves)}}}")


def at_its_start(do: Do, access: Access, scope: Scope) -> None:
    """Raise ProgramError unless a tile is stored from the first row and column of a stage."""
    if any(scope.split(origin) != (0, ()) for origin in access.origin):
        raise ProgramError(
            f"{do}: a tile is stored from the start of a stage; leave its origin out"
        )


def st_shared(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """st.shared.v2.f32: two neighbours of a row."""
    held, (columns, rows) = held_tile(kernel, do, scope)
    at_its_start(do, do.write, scope)
    text, buffer = kernel.text, do.write.buffer
    if buffer.dtype != "f32" or tuple(do.write.value) != PLAIN:
        raise ProgramError(f"{do}: only rows of f32 are stored this way; use stmatrix")
    pitch, groups = int(buffer.stride[0]), columns // 8
    line, column = _first(kernel)
    stage = smem_stage(kernel, do.write, scope)
    for half in (0, 1):
        here = text.add(line, 8 * half)
        bytes_there = swizzled(kernel, do.write, here, column)
        base = text.add(text.multiply_add(here, pitch * 4, "%smem"), stage)
        for block in range(rows // 64):
            for group in range(groups):
                first = (block * groups + group) * 4 + 2 * half
                at = text.add(base, text.exclusive_or(bytes_there, group * 32))
                pair = ", ".join(held[first : first + 2])
                text.emit(f"st.shared.v2.f32 [{at}+{block * 64 * pitch * 4}], {{{pair}}}")


def st_global(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """st.global: pairs of neighbours, or single elements where c is turned or its rows are odd."""
    held, (columns, rows) = held_tile(kernel, do, scope)
    text, access, buffer = kernel.text, do.write, do.write.buffer
    width, pairs = buffer.type.bytes, int(do.vector) == 2
    across, down = (_only(do, steps) for steps in access.value)
    turned = across < down
    if pairs and turned:
        raise ProgramError(f"{do}: a fragment's rows are stored by pairs, its columns one by one")
    row, column = _first(kernel)
    mine: dict[int, Number] = {down: row, across: column}
    first = []
    for d, origin in enumerate(access.origin):
        known, terms = scope.split(origin)
        first.append(text.add(kernel.addresses.sum(terms, scope, mine.get(d, 0)), known))
    strides = [kernel.addresses.integer(s) for s in buffer.stride]
    sizes = [kernel.addresses.integer(s) for s in buffer.shape]
    pointer: Number = kernel.addresses.pointers[buffer.name]
    for here, stride in zip(first, strides, strict=True):
        pointer = text.wide_multiply_add(here, text.multiply(stride, width), pointer)
    row_left = text.subtract(sizes[down], first[down])
    column_left = text.subtract(sizes[across], first[across])
    down_bytes = text.multiply(strides[down], width)
    across_bytes = text.multiply(strides[across], width)

    def store(kind: str, where: Number, reach: int, inside: str | bool, value: str) -> None:
        """Store a value if the columns up to ``reach`` beyond the first are inside."""
        guard = text.less(reach, column_left, inside if isinstance(inside, str) else None)
        text.emit(f"@{guard} st.global.{kind} [{where}], {value}")

    def moved(where: Number, columns: int) -> Number:
        """Return a place that is some columns further, two distances serving all of a row."""
        if isinstance(across_bytes, int):
            return text.wide_add(where, columns * across_bytes)
        far = ("columns", across_bytes, columns)
        return text.wide_add(
            where, text.once(far, lambda: text.wide_product(across_bytes, columns))
        )

    for block in range(rows // 64):
        for half in range(2):
            far = block * 64 + half * 8
            inside = text.less(far, row_left)
            line = where = text.wide_multiply_add(down_bytes, far, pointer)
            for group in range(columns // 8):
                i, at = (block * (columns // 8) + group) * 4 + half * 2, group * 8
                if not turned:
                    where = moved(line, at)
                elif group:
                    where = moved(where, 7)
                if pairs:
                    both = held[i // 2] if width == 2 else f"{{{held[i]}, {held[i + 1]}}}"
                    store("b32" if width == 2 else "v2.f32", where, at + 1, inside, both)
                    continue
                two = held[i : i + 2]
                if width == 2:
                    two = [text.register("b16") for _ in range(2)]
                    text.emit(f"mov.b32 {{{', '.join(two)}}}, {held[i // 2]}")
                kind = "b16" if width == 2 else "f32"
                store(kind, where, at, inside, two[0])
                where = moved(where, 1)
                store(kind, where, at + 1, inside, two[1])


def _only(do: Do, steps: tuple[int, ...]) -> int:
    """Return the one dimension along which a value mode moves, by 1."""
    moved = [d for d, step in enumerate(steps) if int(step)]
    if len(moved) != 1 or int(steps[moved[0]]) != 1:
        raise ProgramError(f"{do}: a tile's columns and rows run along one dimension each, by 1")
    return moved[0]


def halves(kernel: KernelCode, held: list[str]) -> Iterator[str]:
    """Yield 16-bit registers, one an element, as registers that hold two are taken apart."""
    for both in held:
        two = [kernel.text.register("b16") for _ in range(2)]
        kernel.text.emit(f"mov.b32 {{{', '.join(two)}}}, {both}")
        yield from two


def held_tile(kernel: KernelCode, do: Do, scope: Scope) -> tuple[list[str], tuple[int, int]]:
    """Return the registers that a statement reads, and how many (columns, rows) they are."""
    (read,) = do.reads
    assert isinstance(read, Access)
    columns, rows = (int(v) for v in do.values)
    if read.buffer.fragment != "wgmma" or kernel.role.threads != 128 or rows % 64:
        raise ProgramError(
            f"{do}: rows in 64s, held as wgmma holds them by 128 threads, are stored"
        )
    if tuple(read.value) != PLAIN:
        raise ProgramError(f"{do}: {read} has to be read by columns and rows, from left and top")
    return kernel.cells(read, (columns, rows), scope), (columns, rows)


def lane_of(kernel: KernelCode) -> tuple[Number, Number]:
    """Return this thread's warp in its role's copy, and its lane."""
    text = kernel.text
    warp = text.once(("warp", kernel.local), lambda: text.divide(kernel.local, 32))
    lane = text.once(("lane", kernel.local), lambda: text.modulo(kernel.local, 32))
    return warp, lane


def _first(kernel: KernelCode) -> tuple[Number, Number]:
    """Return row and column of this thread's first value in a fragment of wgmma."""
    text = kernel.text
    warp, lane = lane_of(kernel)
    row = text.multiply_add(warp, 16, text.divide(lane, 4))
    return row, text.multiply(text.modulo(lane, 4), 2)


def swizzled(kernel: KernelCode, access: Access, line: Number, column: Number) -> Number:
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

    return text.once(("swizzled", line, column, pitch, bits, width), make)
