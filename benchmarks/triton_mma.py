"""A Triton matmul held to mma.sync, a configuration a peer: ``triton_mma:t128x256x64_s3_w8_g8``.

On Hopper Triton multiplies by wgmma unless its environment variable ``DISABLE_MMA_V3`` is set while
it compiles; what it made is looked at, and a kernel that has wgmma, or no mma.sync, is refused.
Tiles come by pointers and cp.async; fp32 numbers are multiplied as tf32.  Names are those of
``triton_matmul``, without its last two options.

>>> from tinygpu.term.operation import Problem, matmul
>>> problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
>>> len(configurations(problem)) >= 12
True

Source: Triton 3.6, ``lib/Dialect/TritonGPU/Transforms`` (AccelerateMatmul).
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.peers import tensors
from benchmarks.triton_matmul import Configuration
from tinygpu.errors import OperationError
from tinygpu.isa.memory import DTYPES
from tinygpu.term.operation import Problem

__all__ = ["configurations", "held_to_mma", "peers"]

_SWITCH = "DISABLE_MMA_V3"
_LARGE: tuple[str, ...] = (
    "t128x256x64_s3_w8_g8",
    "t128x256x32_s4_w8_g8",
    "t128x256x32_s3_w8_g8",
    "t256x128x64_s3_w8_g8",
    "t256x128x32_s4_w8_g8",
    "t128x128x64_s3_w4_g8",
    "t128x128x64_s4_w4_g8",
    "t128x128x32_s4_w4_g8",
    "t128x128x32_s5_w4_g8",
    "t128x128x64_s3_w8_g8",
    "t128x128x32_s4_w8_g8",
    "t64x256x32_s4_w4_g8",
    "t256x64x32_s4_w4_g8",
)
_SMALL: tuple[str, ...] = (
    "t64x64x64_s4_w4_g8",
    "t64x128x64_s4_w4_g8",
    "t128x64x64_s4_w4_g8",
    "t32x64x128_s4_w4_g8",
    "t64x32x128_s4_w4_g8",
)
_FEW_ELEMENTS = 2048 * 2048
_SMEM_BYTES = 232448  # spec: a CTA's on an H200

Run = Callable[[], Any]


def configurations(problem: Problem) -> tuple[Configuration, ...]:
    """Return the configurations to try; none if the kernel does not fit the problem.

    It takes a as [m, k], b in either layout.
    """
    sizes, (first, second) = problem.sizes, problem.operation.inputs
    if first.axes != ("m", "k") or first.dtype not in ("bf16", "f16", "tf32"):
        return ()
    if second.dtype != first.dtype:
        return ()
    names = _SMALL + _LARGE if sizes["m"] * sizes["n"] <= _FEW_ELEMENTS else _LARGE
    found = (Configuration.of(name) for name in names)
    width = DTYPES[first.dtype].bytes
    return tuple(
        c for c in found if c.stages * (c.tile_m + c.tile_n) * c.tile_k * width <= _SMEM_BYTES
    )


def peers(problem: Problem) -> tuple[str, ...]:
    """Return the names of the configurations."""
    return tuple(map(str, configurations(problem)))


@contextmanager
def held_to_mma() -> Iterator[None]:
    """Set Triton's switch while a kernel is compiled; it is asked for when a kernel is new."""
    old = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        if old is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = old


def _matmul(
    configuration: Configuration,
    problem: Problem,
    inputs: Sequence[Any],
    output: Any,
    scalars: Mapping[str, float],
) -> Run:
    """Return what enqueues the kernel on PyTorch's current stream; it is a peer."""
    kernel = importlib.import_module("benchmarks.triton_mma_kernel").kernel
    first, second = problem.operation.inputs
    if first.axes != ("m", "k"):
        raise OperationError(f"{problem.operation}: this peer takes a as [m, k]")
    size, one = problem.sizes, configuration
    given = tensors(problem, inputs, output)
    launch = kernel[(one.programs(size["m"], size["n"], sms=0),)]

    def run() -> Any:
        return launch(
            *given, size["m"], size["n"], size["k"],
            block_m=one.tile_m, block_n=one.tile_n, block_k=one.tile_k, group=one.group,
            b_by_k=second.axes == ("n", "k"), whole_k=size["k"] % one.tile_k == 0,
            num_stages=one.stages, num_warps=one.warps,
        )  # fmt: skip

    with held_to_mma():
        text = run().asm["ptx"]
    if "mma.sync" not in text or "wgmma" in text:
        raise OperationError(f"{one}: Triton multiplies by other instructions than mma.sync")

    def again() -> None:
        run()

    return again


def __getattr__(name: str) -> Callable[..., Run]:
    """Return the peer of a configuration's name."""
    try:
        one = Configuration.of(name)
    except OperationError:
        raise AttributeError(f"module {__name__} has no {name}") from None
    if one.halves or one.stay:
        raise AttributeError(f"module {__name__} has no {name}: its programs take one whole tile")
    return functools.partial(_matmul, one)
