"""The peer that the command line times kernels beside, and whether anything can be timed here.

The peer is cuBLAS: through CuPy (fp32 without TF32), or, for bf16, through PyTorch where that and
this project's benchmarks are at hand.  A measuring worker is told the function's name, and calls it
with the problem, the inputs, the output and the scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tinygpu.errors import LaunchError
from tinygpu.machine import Machine
from tinygpu.operation import Problem

__all__ = ["cublas", "peers_of", "why_no_gpu"]

_TYPES = ("f16", "f32", "f64")
_NEEDS = {"wgmma": "sm_90a", "tcgen05.mma": "sm_100a"}
"""Instructions that one architecture alone has."""


def peers_of(problem: Problem) -> tuple[str, ...]:
    """Return the name of the peer for a problem, or nothing."""
    operation = problem.operation
    types = {operand.dtype for operand in operation.operands}
    plain = operation.name == "matmul" and len(operation.inputs) == 2 and len(types) == 1
    if plain and types <= set(_TYPES):
        return ("tinygpu.cli.peers:cublas",)
    if plain and types == {"bf16"} and find_spec("torch") and _has_benchmarks():
        return ("benchmarks.peers:torch_matmul",)
    return ()


def _has_benchmarks() -> bool:
    """Return whether this project's benchmarks can be imported: they are no part of a wheel."""
    return find_spec("benchmarks") is not None and find_spec("benchmarks.peers") is not None


def cublas(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Callable[[], None]:
    """Return a run of c = a b that writes ``output``."""
    from tinygpu.codegen.launch import gpu

    matmul, (a, b) = gpu().matmul, inputs
    first, second = problem.operation.inputs
    a = a.T if first.axes == ("k", "m") else a
    b = b.T if second.axes == ("n", "k") else b

    def run() -> None:
        matmul(a, b, out=output)

    return run


def why_no_gpu(machine: Machine) -> str:
    """Return why no kernel of a machine can run here, or ""."""
    from tinygpu.codegen.launch import device_arch

    try:
        arch = device_arch()
    except LaunchError as error:
        return str(error)
    needed = {_NEEDS[i.name] for i in machine.instructions if i.name in _NEEDS}
    if needed and arch not in needed:
        return f"GPU: it is {arch}, and kernels of {machine.name} run on {', '.join(needed)} alone"
    return ""
