"""The rule of cp.async.  Source: PTX ISA 9, "cp.async"."""

from __future__ import annotations

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope, value_coordinates
from tinygpu.term.program import Access, Do

__all__ = ["copy"]


def copy(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """cp.async: 16 B past L1, 4 and 8 B through it; a guard shrinks the source to nothing."""
    source = do.reads[0]
    assert isinstance(source, Access)
    size = do.vector * source.buffer.type.bytes
    cache = "cg" if size == 16 else "ca"
    targets = value_coordinates(do.write, do.values)
    sources = value_coordinates(source, do.values)
    for first in range(0, len(targets), do.vector):
        guard = kernel.guard(do, source, sources[first], scope)
        to = kernel.address(do.write, do.threads, targets[first], scope)
        at = kernel.address(source, do.threads, sources[first], scope)
        ignored = ""
        if guard is not True:
            bytes_read = kernel.text.register("u32")
            taken = f"selp.b32 {bytes_read}, {size}, 0, {guard}" if guard else ""
            kernel.text.emit(taken or f"mov.b32 {bytes_read}, 0")
            ignored = f", {bytes_read}"
        kernel.text.emit(f"cp.async.{cache}.shared.global {to}, {at}, {size}{ignored}")
