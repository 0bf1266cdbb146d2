"""The peer that the command line times kernels beside: cuBLAS, through CuPy.

Named ``tinygpu.cli.peers:cublas`` to a measuring worker, which calls it with the problem, the
inputs, the output and the scalars.  CuPy keeps to the inputs' type: fp32 without TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinygpu.operation import Problem

__all__ = ["cublas", "has_cublas"]

_TYPES = ("f16", "f32", "f64")


def has_cublas(problem: Problem) -> bool:
    """Return whether ``cublas`` does this problem: one type, and CuPy has that type."""
    operation = problem.operation
    types = {operand.dtype for operand in operation.operands}
    return operation.name == "matmul" and len(types) == 1 and types <= set(_TYPES)


def cublas(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Callable[[], None]:
    """Return a run of c = a b that writes ``output``."""
    from tinygpu.codegen.launch import gpu

    matmul, (a, b) = gpu().matmul, inputs

    def run() -> None:
        matmul(a, b, out=output)

    return run
