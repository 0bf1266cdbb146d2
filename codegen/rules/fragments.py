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
from tinygpu.term.program import Access

__all__ = ["halves", "smem_stage", "swizzled"]


def smem_stage(kernel: KernelCode, access: Access, scope: Scope) -> Number:
    """Return the bytes from ``%smem`` to the stage (and copy) of an access."""
    buffer = access.buffer
    start = kernel.smem_at(buffer.name, buffer.stages, access.index, scope)
    return kernel.addresses.copied(buffer, start)


def halves(kernel: KernelCode, held: list[str]) -> Iterator[str]:
    """Yield 16-bit registers, one an element, as registers that hold two are taken apart."""
    for both in held:
        two = [kernel.text.register("b16") for _ in range(2)]
        kernel.text.emit(f"mov.b32 {{{', '.join(two)}}}, {both}")
        yield from two


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
