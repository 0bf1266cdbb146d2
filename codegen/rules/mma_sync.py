"""Rules of a warp's matrices: ldmatrix and mma.sync.

ldmatrix fetches rows of 16 B: lane r + 8 i has the address of row r of the i-th matrix.  Pairs of
16-bit values stand in the registers that it fills, as mma.sync takes them.

Source: PTX ISA 9, "Warp-level matrix load instruction: ldmatrix", "mma.m16n8k16", "mma.m16n8k8".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.loops import by_threads
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.rules.arithmetic import in_any_order
from tinygpu.errors import ProgramError
from tinygpu.isa.mma_sync import FRAGMENT_VALUES
from tinygpu.term.program import Access, Do

__all__ = ["ldmatrix", "mma", "rows_of", "stmatrix", "swizzled_points"]

Point = tuple[Access, tuple[int, ...], NDArray[np.int64]]
Steps = tuple[int, ...]
_ROWS, _LANES = 8, (4, 8)
_DEPTH = {"bf16": 16, "f16": 16, "tf32": 8}  # spec: k of the mma of a type


def rows_of(do: Do) -> tuple[Access, tuple[int, ...], int]:
    """Return where the rows of an ldmatrix lie, by lane; the threads' extents; matrices at once.

    Raises ProgramError for values and threads that are no fragments of 8 x 8.
    """
    read = next(a for a in do.accesses if a.buffer.level == "smem")
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
    if do.instruction.name in ("ldmatrix", "stmatrix"):
        access, threads, at_once = rows_of(do)
        read = next(a for a in do.accesses if a.buffer.level == "smem")
        for at in value_coordinates(read, do.values)[:: do.values[0] * at_once]:
            yield access, threads, at
        return
    for access in by_threads(do):
        if access.buffer.level == "smem":
            for at in value_coordinates(access, do.values)[:: do.vector]:
                yield access, do.threads, at


def swizzled_points(do: Do) -> Iterator[Point]:
    """Yield the addresses that a statement makes in swizzled buffers."""
    for access, threads, at in _points(do):
        if access.buffer.level == "smem" and access.buffer.swizzle[0]:
            yield access, threads, at


def ldmatrix(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """ldmatrix: up to four matrices of 8 x 16 B at once; .trans where k is not contiguous."""
    for many, how, mine, where in _matrices(kernel, do, do.write, scope):
        kernel.text.emit(f"ldmatrix.sync.aligned.m8n8.x{many}{how}.shared.b16 {{{mine}}}, {where}")


def stmatrix(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """stmatrix: the other way."""
    (source,) = do.reads
    assert isinstance(source, Access)
    for many, how, mine, where in _matrices(kernel, do, source, scope):
        kernel.text.emit(f"stmatrix.sync.aligned.m8n8.x{many}{how}.shared.b16 {where}, {{{mine}}}")


def _matrices(
    kernel: KernelCode, do: Do, registers: Access, scope: Scope
) -> Iterator[tuple[int, str, str, str]]:
    """Yield how many matrices move at once, how, their registers and a lane's address."""
    held = kernel.words(registers, do.values, scope)
    _, _, at_once = rows_of(do)
    how = ".trans" if do.variant == "trans" else ""
    for i, (access, threads, at) in enumerate(_points(do)):
        mine = ", ".join(held[i * at_once : (i + 1) * at_once])
        yield at_once, how, mine, kernel.address(access, threads, at, scope)


def mma(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """mma.sync.m16n8k16 or k8: blocks row by row, every second backwards to share operands."""
    a, b, sums = (r for r in do.reads if isinstance(r, Access))
    columns, rows = (int(v) for v in do.values[3:])
    kind = a.buffer.dtype
    if tuple(do.values[:3]) != FRAGMENT_VALUES or b.buffer.dtype != kind or kind not in _DEPTH:
        raise ProgramError(f"{do}: mma multiplies blocks of 16 x 8 of {', '.join(_DEPTH)}, of one")
    alone = 1 if a.buffer.type.bytes == 2 else 2  # of tf32 both values of a pair are one register
    left, right = (kernel.words(x, do.values, scope)[::alone] for x in (a, b))
    held, before = (kernel.cells(x, do.values, scope) for x in (do.write, sums))
    if not in_any_order([(held[i], before[i]) for i in range(len(held)) if i % 8 < 4]):
        raise ProgramError(f"{do}: a block's sums are those of another; let each add to its own")
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
