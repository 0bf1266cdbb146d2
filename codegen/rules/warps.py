"""Code of programs in which a warp works together: ldmatrix, mma.sync, registers that hold pairs.

A 16-bit value of a thread stands in half of a 32-bit register, its neighbour in the other half, as
the instructions take them; one of tf32 in a register of its own.  ``PAIR_RULES`` has the rules of
pairs and of a warp's instructions; all else goes by the ordinary ones.

ldmatrix fetches rows of 16 B: lane r + 8 i has the address of row r of the i-th matrix.

Source: PTX ISA 9, "Warp-level matrix load instruction: ldmatrix", "mma.m16n8k16", "mma.m16n8k8".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.kernel.kernel import KernelCode, Rule
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.rules.lowering import outside
from tinygpu.errors import ProgramError
from tinygpu.isa.mma_sync import FRAGMENT_VALUES
from tinygpu.term.program import Access, Do

__all__ = ["PAIR_RULES", "rows_of", "swizzled_points"]

Point = tuple[Access, tuple[int, ...], NDArray[np.int64]]
Steps = tuple[int, ...]
_ROWS, _LANES = 8, (4, 8)
_DEPTH = {"bf16": 16, "f16": 16, "tf32": 8}  # spec: k of the mma of a type


def rows_of(do: Do) -> tuple[Access, tuple[int, ...], int]:
    """Return where the rows of an ldmatrix lie, by lane; the threads' extents; matrices at once.

    Raises ProgramError for values and threads that are no fragments of 8 x 8.
    """
    (read,) = do.reads
    assert isinstance(read, Access)
    pair, *matrices = read.value
    turned = do.variant == "trans"
    quad, group, *warps = read.thread
    each = 4 // read.buffer.type.bytes
    next_lane = tuple(each * step for step in pair)
    row, along = (pair, group) if turned else (group, pair)
    inner = sum(s * int(t) for s, t in zip(along, read.buffer.stride, strict=True))
    first = (int(do.values[0]), tuple(do.threads[:2]), quad)
    if first != (each, _LANES, next_lane) or inner != 1 or (turned and each == 1):
        raise ProgramError(
            f"{do}: ldmatrix gives lane q + 4 g the 4 B q of row g, of rows of 16 B of neighbours"
        )
    extents = [int(v) for v in do.values[1:]]
    lanes: list[tuple[int, Steps]] = []
    for extent, steps in zip(extents, matrices, strict=True):
        if extent % 2 == 0 and len(lanes) < 2:
            lanes.append((2, steps))
        if extent != 2:
            break
    at_once = 2 ** len(lanes)
    still = tuple(0 for _ in pair)
    lanes += [(2, still)] * (2 - len(lanes))
    access = Access(
        read.buffer, (), (row, *(steps for _, steps in lanes), *warps), read.origin, read.index
    )
    return access, (_ROWS, 2, 2, *do.threads[2:]), at_once


def _points(do: Do) -> Iterator[Point]:
    """Yield each address that a statement makes in shared memory: access, threads, coordinates."""
    if do.instruction.name == "ldmatrix":
        access, threads, at_once = rows_of(do)
        (read,) = do.reads
        assert isinstance(read, Access)
        for at in value_coordinates(read, do.values)[:: do.values[0] * at_once]:
            yield access, threads, at
        return
    for access in do.accesses:
        if access.buffer.level == "smem":
            for at in value_coordinates(access, do.values)[:: do.vector]:
                yield access, do.threads, at


def swizzled_points(do: Do) -> Iterator[Point]:
    """Yield the addresses that a statement makes in swizzled buffers."""
    for access, threads, at in _points(do):
        if access.buffer.level == "smem" and access.buffer.swizzle[0]:
            yield access, threads, at


def _ldmatrix(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ldmatrix: up to four matrices of 8 x 16 B at once; .trans where k is not contiguous."""
    held = kernel.words(do.write, do.values, scope)
    _, _, at_once = rows_of(do)
    turned = ".trans" if do.variant == "trans" else ""
    for i, (access, threads, at) in enumerate(_points(do)):
        mine = ", ".join(held[i * at_once : (i + 1) * at_once])
        where = kernel.address(access, threads, at, scope)
        kernel.text.emit(
            f"ldmatrix.sync.aligned.m8n8.x{at_once}{turned}.shared.b16 {{{mine}}}, {where}"
        )


def _mma(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """mma.sync.m16n8k16 or k8: blocks row by row, every second backwards to share operands."""
    a, b, sums = (r for r in do.reads if isinstance(r, Access))
    columns, rows = (int(v) for v in do.values[3:])
    kind = a.buffer.dtype
    if tuple(do.values[:3]) != FRAGMENT_VALUES or b.buffer.dtype != kind or kind not in _DEPTH:
        raise ProgramError(f"{do}: mma multiplies blocks of 16 x 8 of {', '.join(_DEPTH)}, of one")
    alone = 1 if a.buffer.type.bytes == 2 else 2  # of tf32 both values of a pair are one register
    left, right = (kernel.words(x, do.values, scope)[::alone] for x in (a, b))
    held, before = (kernel.cells(x, do.values, scope) for x in (do.write, sums))
    for row in range(rows):
        order = range(columns)
        for column in reversed(order) if row % 2 else order:
            first = (row * columns + column) * 8
            d, c = (", ".join(x[first : first + 4]) for x in (held, before))
            pairs = left[first // 2 : first // 2 + 4]
            others = right[first // 2 : first // 2 + 4 : 2]
            kernel.text.emit(
                f"mma.sync.aligned.m16n8k{_DEPTH[kind]}.row.col.f32.{kind}.{kind}.f32 "
                f"{{{d}}}, {{{', '.join(pairs)}}}, {{{', '.join(others)}}}, {{{c}}}"
            )


def _convert(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32: two sums to one register; or halves to f32."""
    (source,) = do.reads
    assert isinstance(source, Access)
    if do.write.buffer.dtype == "f32":
        wide, halves = kernel.cells(do.write, do.values, scope), kernel.halves
        for target, half in zip(wide, halves(source, do.values, scope), strict=True):
            if source.buffer.dtype == "f16":
                kernel.text.emit(f"cvt.f32.f16 {target}, {half}")
            else:
                kernel.text.emit(f"mov.b32 {target}, {{{kernel.zero16()}, {half}}}")
        return
    if source.buffer.dtype != "f32":
        raise ProgramError(f"{do}: pairs are converted from f32, halves to it")
    wide = kernel.cells(source, do.values, scope)
    kind = do.write.buffer.dtype
    for i, target in enumerate(kernel.pairs(do.write, do.values, scope)):
        kernel.text.emit(f"cvt.rn.{kind}x2.f32 {target}, {wide[2 * i + 1]}, {wide[2 * i]}")


def _move(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """Move whole pairs, or single values where ``vector`` is 1."""
    (source,) = do.reads
    assert isinstance(source, Access)
    loads = do.write.buffer.level == "registers"
    memory, held = (source, do.write) if loads else (do.write, source)
    space = "global" if memory.buffer.level == "gmem" else "shared"
    places = value_coordinates(memory, do.values)
    words = do.vector // 2
    kind = "b32" if words else "b16"
    whole = kernel.pairs(held, do.values, scope) if words or loads else []
    if words:
        parts = whole
    elif loads:
        parts = [kernel.text.register("b16") for _ in places]
    else:
        parts = list(kernel.halves(held, do.values, scope))
    for i, at in enumerate(places[:: do.vector]):
        guard = kernel.guard(do, memory, at, scope)
        mine = parts[i * words : (i + 1) * words] if words else parts[i : i + 1]
        if loads and guard is not True:
            for part in mine:
                kernel.text.emit(f"mov.{kind} {part}, {outside(memory, kind)}")
        if guard is False:
            continue
        listed = f"{{{', '.join(mine)}}}" if len(mine) > 1 else mine[0]
        how = f".v{len(mine)}" * (len(mine) > 1) + (".b32" if words else ".b16")
        where = kernel.address(memory, do.threads, at, scope)
        prefix = f"@{guard} " if isinstance(guard, str) else ""
        ends = f"{listed}, {where}" if loads else f"{where}, {listed}"
        kernel.text.emit(f"{prefix}{'ld' if loads else 'st'}.{space}{how} {ends}")
    if loads and not words:
        for i, pair in enumerate(whole):
            kernel.text.emit(f"mov.b32 {pair}, {{{parts[2 * i]}, {parts[2 * i + 1]}}}")


PAIR_RULES: Mapping[str, Rule] = {
    "ldmatrix": _ldmatrix,
    "mma.sync": _mma,
    "cvt": _convert,
    "ld.global": _move,
    "ld.shared": _move,
    "st.shared": _move,
    "st.global": _move,
}
"""The rules of statements with 16-bit registers."""
