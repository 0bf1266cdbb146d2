"""Launch: a term as a function of GPU arrays.

    kernel = Kernel(program)
    c = kernel(a, b)

A kernel is emitted and assembled and its waits are checked when it is made, and it is loaded on a
device at its first call there.  What a call does says ``runtime/function.py``; one whose arrays are
known costs the host a few microseconds, and ``prepare`` spares what is left of the looking up:

    launch = kernel.prepare(a, b, out=c)
    launch()

Arrays are CuPy arrays, PyTorch tensors, or have ``__cuda_array_interface__``; the result is of the
kind of the first.  The launch goes to the caller's current stream (of PyTorch if a tensor is among
the arrays, of CuPy otherwise) and returns before the kernel is done.  A stream that is captured
into a CUDA graph may be one; the kernel has to be loaded then: call or prepare it before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import Cubin, assemble, check_waits
from tinygpu.codegen.runtime.function import Function, Launch, device_arch, gpu, load
from tinygpu.errors import LaunchError, OperationError
from tinygpu.term.plan import Term

__all__ = ["Kernel", "Launch", "device_arch", "gpu", "load"]


class Kernel(Function):
    """A term that runs; see the module's text.  ``ptx`` and ``cubin`` are its code."""

    def __init__(
        self,
        program: Term,
        *,
        arch: str | None = None,
        sizes: Mapping[str, int] | None = None,
        unchecked: bool = False,
        debug: bool = False,
    ) -> None:
        """Emit and assemble, for the current device unless ``arch`` names another.

        ``sizes`` are needed by a specialised program; ``unchecked`` is that of ``emit``.  With
        ``debug`` each call reads the groups' ends, or rows' lengths, back first, and raises
        LaunchError unless ends ascend to the last row, and lengths are from 0 to what there is,
        which a kernel takes for granted.  Raises IllegalScheduleError,
        ProgramError, AssemblyError, and LaunchError if no ``arch`` is given and there is no GPU.
        """
        self.program, self.debug = program, debug
        self.arch = arch or device_arch()
        self.ptx: str = emit(program, self.arch, sizes, unchecked=unchecked)
        self.cubin: Cubin = assemble(self.ptx, self.arch)
        check_waits(self.cubin)
        super().__init__(contract_of(program, sizes), self.cubin.bytes)

    def start(self, arrays: tuple[Any, ...], scalars: Mapping[str, Any]) -> Any:
        """Return what starts it on these arrays, as every function does."""
        groups, lengths = self.program.operation.groups, self.program.operation.lengths
        if self.debug and (groups or lengths):
            operands = self.program.operation.operands
            named = dict(zip((o.name for o in operands), arrays, strict=True))
            sizes = self.program.operation.sizes({n: tuple(x.shape) for n, x in named.items()})
            try:
                if groups:
                    groups.require(named[groups.ends].tolist(), sizes)
                if lengths:
                    lengths.require(named[lengths.name].tolist(), sizes[lengths.axis])
            except OperationError as error:
                raise LaunchError(f"{self.program.name}: {error}") from None
        return super().start(arrays, scalars)
