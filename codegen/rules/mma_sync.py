"""Rules of a warp's matrices: ldmatrix and mma.sync.

ldmatrix fetches rows of 16 B: lane r + 8 i has the address of row r of the i-th matrix.  Pairs of
16-bit values stand in the registers that it fills, as mma.sync takes them.

Source: PTX ISA 9, "Warp-level matrix load instruction: ldmatrix", "mma.m16n8k16", "mma.m16n8k8".
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.loops import by_threads
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.codegen.rules.arithmetic import in_any_order
from tinygpu.errors import ProgramError
from tinygpu.isa.fragment import Blocks, Operand
from tinygpu.term.program import Access, Do

__all__ = ["ldmatrix", "mma", "rows_of", "stmatrix", "swizzled_points"]

Point = tuple[Access, tuple[int, ...], NDArray[np.int64]]
Steps = tuple[int, ...]
_ROWS, _LANES = 8, (4, 8)


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
    """Emit a warp's products: blocks row by row, every second backwards to share operands.

    Spelled as mma.sync with the shape and the types of the instruction's blocks.
    """
    a, b, sums = (r for r in do.reads if isinstance(r, Access))
    columns, rows = (int(v) for v in do.values[3:])
    kind, blocks = a.buffer.dtype, do.instruction.blocks_of(a.buffer.dtype)
    if tuple(do.values[:3]) != blocks.values or b.buffer.dtype != kind:
        raise ProgramError(f"{do}: a block is {' * '.join(map(str, blocks.values))} values of one")
    words = [kernel.words(x, do.values, scope) for x in (a, b)]
    held, before = (kernel.cells(x, do.values, scope) for x in (do.write, sums))
    of_a, of_b, of_d = (_registers(blocks, of) for of in ("a", "b", "d"))
    many = prod(blocks.values)
    if not in_any_order([(held[i], before[i]) for i in range(len(held)) if i % many in of_d]):
        raise ProgramError(f"{do}: a block's sums are those of another; let each add to its own")
    m, n, k = blocks.shape
    spelled = f"m{m}n{n}k{k}.row.col.{blocks.into}.{kind}.{kind}.{blocks.into}"
    for row in range(rows):
        order = range(columns)
        for column in reversed(order) if row % 2 else order:
            first = (row * columns + column) * many
            d, c = (", ".join(x[first + i] for i in of_d) for x in (held, before))
            left, right = (
                ", ".join(x[(first + i) // blocks.each] for i in of[:: blocks.each])
                for x, of in zip(words, (of_a, of_b), strict=True)
            )
            kernel.text.emit(
                f"mma.sync.aligned.{spelled} {{{d}}}, {{{left}}}, {{{right}}}, {{{c}}}"
            )


def _registers(blocks: Blocks, operand: Operand) -> list[int]:
    """Return which of a block's values an operand has, each once, in the order of its fragment."""
    digits = np.indices(blocks.values[::-1]).reshape(3, -1)[::-1]
    _, found = np.unique(np.array(blocks.steps(operand)) @ digits, return_index=True)
    return [int(i) for i in found]
