"""Rows: how 128 threads store what tcgen05.ld has given them.

In the fragment "row" thread t has lane t.  A statement's values are (columns, lanes, lanes): lane
l + apart * b has, in memory, l steps of value mode 1 and b steps of value mode 2; where modes do
not meet a lane (l beyond the mode's extent), its thread does nothing.  A thread's registers of a
row stand in order, two 16-bit elements to a register.

Source: PTX ISA 9: "tcgen05.ld", "cvt", "st".
"""

from __future__ import annotations

from collections.abc import Iterator

from tinygpu.codegen.kernel.kernel import HELD, KernelCode
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.rules.descriptors import smem_stage
from tinygpu.errors import ProgramError
from tinygpu.term.program import Access, Buffer, Do

__all__ = ["halves", "row_registers", "st_global", "st_shared"]

_VECTOR_BYTES = 16
_LANES = 128


def row_registers(kernel: KernelCode, buffer: Buffer) -> list[str]:
    """Return a thread's registers of a row."""
    if buffer.fragment != "row" or buffer.dtype not in HELD or int(buffer.stages) != 1:
        raise ProgramError(f"{buffer.name}: rows of f32, f16 or bf16 in one stage are held")
    count = int(buffer.shape[1]) * buffer.type.bytes // 4
    return [kernel.cell(buffer.name, i, HELD[buffer.dtype]) for i in range(count)]


def _lane(kernel: KernelCode, do: Do) -> tuple[list[str], Number, Number, str | bool]:
    """Return what a store reads, this thread's l and b, and whether it has such a lane."""
    (held,) = do.reads
    assert isinstance(held, Access)
    columns, low, blocks = (int(v) for v in do.values)
    along, across, further = (tuple(map(int, s)) for s in held.value)
    apart = further[0] if blocks > 1 else _LANES
    legal = (along, across, further[1]) == ((0, 1), (1, 0), 0) and apart * blocks == _LANES
    if not legal or low > apart or columns != int(held.buffer.shape[1]) or held.origin:
        raise ProgramError(f"{do}: whole rows are stored, lane by lane")
    text = kernel.text
    inner = text.once(("lane", kernel.local, apart), lambda: text.modulo(kernel.local, apart))
    block = text.once(("block", kernel.local, apart), lambda: text.divide(kernel.local, apart))
    if blocks == 1:
        inner, block = kernel.local, 0
    mine = text.less(inner, low) if low < apart else True
    return row_registers(kernel, held.buffer), inner, block, mine


def st_shared(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """st.shared: a row in pieces of 16 B, where the swizzle puts them."""
    held, inner, block, mine = _lane(kernel, do)
    text, access, buffer = kernel.text, do.write, do.write.buffer
    along, across, further = (tuple(map(int, s)) for s in access.value)
    width, pitch = buffer.type.bytes, int(buffer.stride[0])
    row_bytes = int(do.values[0]) * width
    if (along, across) != ((0, 1, 0), (1, 0, 0)) or access.origin or row_bytes % _VECTOR_BYTES:
        raise ProgramError(f"{do}: rows of whole 16 B pieces are stored to rows of a tile")
    line = text.multiply_add(block, further[0], inner)
    beyond = further[2] * int(buffer.stride[2]) * width
    base = text.add(
        text.multiply_add(line, pitch * width, "%smem"), smem_stage(kernel, access, scope)
    )
    base = text.multiply_add(block, beyond, base)
    first = _swizzled(kernel, access, line, 0)
    kind = HELD[buffer.dtype]
    prefix = "" if mine is True else f"@{mine} "
    for piece in range(row_bytes // _VECTOR_BYTES):
        at = text.add(base, text.exclusive_or(first, piece * _VECTOR_BYTES))
        four = ", ".join(held[4 * piece : 4 * piece + 4])
        text.emit(f"{prefix}st.shared.v4.{kind} [{at}], {{{four}}}")


def st_global(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """st.global: a row by vectors, those that are inside."""
    held, inner, block, mine = _lane(kernel, do)
    text, access, addresses = kernel.text, do.write, kernel.addresses
    buffer, vector = access.buffer, int(do.vector)
    along, across, further = (tuple(map(int, s)) for s in access.value)
    width, last = buffer.type.bytes, len(buffer.shape) - 1
    if along[last] != 1 or any(along[:last]) or int(do.values[0]) % vector:
        raise ProgramError(f"{do}: a row's columns are neighbours in global memory")
    pointer: Number = addresses.pointers[buffer.name]
    inside: str | bool = mine
    left: Number = 0
    for d, origin in enumerate(access.origin):
        known, terms = scope.split(origin)
        here = text.multiply_add(block, further[d], text.multiply(inner, across[d]))
        here = text.add(addresses.sum(terms, scope, here), known)
        pitch = text.multiply(addresses.integer(buffer.stride[d]), width)
        pointer = text.wide_multiply_add(here, pitch, pointer)
        size = addresses.integer(buffer.shape[d])
        if d == last:
            left = text.subtract(size, here)
        else:
            inside = text.less(here, size, inside if isinstance(inside, str) else None)
    words = max(1, vector * width // 4)
    many = f".v{words}" if words > 1 else ""
    kind = "f32" if width == 4 else "b32" if vector > 1 else "b16"
    values = list(halves(kernel, held)) if kind == "b16" else held
    for i in range(0, len(values), words):
        column = i * vector // words
        guard = text.less(column + vector - 1, left, inside if isinstance(inside, str) else None)
        listed = ", ".join(values[i : i + words])
        listed = f"{{{listed}}}" if words > 1 else listed
        text.emit(f"@{guard} st.global{many}.{kind} [{pointer}+{column * width}], {listed}")


def halves(kernel: KernelCode, held: list[str]) -> Iterator[str]:
    """Yield 16-bit registers, one an element, as registers that hold two are taken apart."""
    for both in held:
        two = [kernel.text.register("b16") for _ in range(2)]
        kernel.text.emit(f"mov.b32 {{{', '.join(two)}}}, {both}")
        yield from two


def _swizzled(kernel: KernelCode, access: Access, line: Number, column: Number) -> Number:
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
