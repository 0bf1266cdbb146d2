"""A Triton matmul, each configuration a peer: ``benchmarks.triton_matmul:t64x128x64_s4_w4_g8``.

A configuration is its name: tile m x n x k, stages, warps, rows of tiles visited together, then
``halves`` (a tile is stored in two parts) and ``stay`` (one program for each SM takes several
tiles; else one program a tile).  ``configurations`` picks those worth a try for a problem: the
best of them, each validated and timed as every candidate is, is what Triton can do.

>>> one = Configuration.of("t128x256x64_s4_w8_g8_halves_stay")
>>> one.tile_n, one.stages, one.halves, str(one)
(256, 4, True, 't128x256x64_s4_w8_g8_halves_stay')

Source: Triton 3.6, tutorials, "Persistent Matmul".
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import tensors
from tinygpu.errors import OperationError
from tinygpu.term.operation import Problem

__all__ = ["Configuration", "configurations", "peers"]

_NAME = re.compile(r"t(\d+)x(\d+)x(\d+)_s(\d+)_w(\d+)_g(\d+)(_halves)?(_stay)?")
_LARGE: tuple[str, ...] = (
    "t128x256x64_s3_w8_g8_stay",
    "t128x256x64_s4_w8_g8_halves_stay",
    "t128x256x64_s4_w8_g16_halves_stay",
    "t128x256x64_s4_w8_g4_halves_stay",
    "t128x256x64_s3_w8_g8",
    "t256x128x64_s3_w8_g8_stay",
    "t256x128x64_s4_w8_g8_halves_stay",
    "t128x128x64_s4_w8_g8_stay",
    "t128x128x64_s4_w4_g8_stay",
    "t128x128x64_s5_w8_g8_stay",
    "t128x128x128_s3_w8_g8_halves_stay",
    "t128x128x64_s3_w4_g8",
    "t128x128x64_s4_w8_g8",
)
_MIDDLE: tuple[str, ...] = (
    "t64x256x64_s4_w4_g8_stay",
    "t64x128x64_s4_w4_g8",
    "t64x128x128_s4_w4_g8",
    "t64x128x64_s5_w4_g8_stay",
    "t64x64x128_s4_w4_g8",
    "t64x64x64_s5_w4_g8",
    "t128x64x64_s4_w4_g8",
    "t128x64x128_s4_w8_g8",
)
_SMALL: tuple[str, ...] = (
    "t16x32x128_s5_w4_g1",
    "t16x64x128_s4_w4_g1",
    "t16x64x128_s5_w4_g1",
    "t16x128x128_s4_w4_g1",
    "t16x128x128_s3_w8_g1",
    "t32x64x128_s4_w4_g1",
    "t32x128x128_s4_w4_g1",
    "t64x32x128_s4_w4_g1",
    "t64x64x128_s5_w4_g1",
    "t64x128x64_s4_w4_g1",
    "t64x128x128_s3_w4_g1",
    "t64x256x64_s4_w4_g1",
)
_FEW_ROWS, _FEW_ELEMENTS = 64, 2048 * 2048

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the kernel is compiled and launched with; ``str`` gives its name."""

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps: int
    group: int
    halves: bool = False
    stay: bool = False

    @staticmethod
    def of(name: str) -> Configuration:
        """Read a name.  Raises OperationError for one that is none."""
        found = _NAME.fullmatch(name)
        if not found:
            raise OperationError(f"Triton configuration {name}: write it as {_LARGE[0]}")
        *numbers, halves, stay = found.groups()
        m, n, k, stages, warps, group = map(int, numbers)
        return Configuration(m, n, k, stages, warps, group, bool(halves), bool(stay))

    def __str__(self) -> str:
        """Return the name."""
        name = f"t{self.tile_m}x{self.tile_n}x{self.tile_k}"
        name += f"_s{self.stages}_w{self.warps}_g{self.group}"
        return name + "_halves" * self.halves + "_stay" * self.stay

    def programs(self, m: int, n: int, sms: int) -> int:
        """Return how many programs to launch for an output of m x n."""
        tiles = -(-m // self.tile_m) * -(-n // self.tile_n)
        return min(tiles, sms) if self.stay else tiles


def configurations(problem: Problem) -> tuple[Configuration, ...]:
    """Return the configurations to try: at least 12; none if the kernel does not fit the problem.

    It takes a as [m, k], b in either layout, and rows of multiples of 16 bytes.
    """
    sizes, operation = problem.sizes, problem.operation
    first, second = operation.operand("a"), operation.operand("b")
    if len(operation.inputs) > 2:
        return ()
    inner = {o.axes[-1] for o in problem.operation.operands}
    if first.axes != ("m", "k") or any(sizes[axis] % 8 for axis in inner):
        return ()
    if first.dtype not in ("bf16", "f16") or second.dtype != first.dtype:
        return ()
    if sizes["m"] <= _FEW_ROWS:
        names = _SMALL
    elif sizes["m"] * sizes["n"] <= _FEW_ELEMENTS:
        names = _MIDDLE + _LARGE
    else:
        names = _LARGE + _MIDDLE[:2]
    return tuple(Configuration.of(name) for name in names)


def peers(problem: Problem) -> tuple[str, ...]:
    """Return the names of the configurations."""
    return tuple(map(str, configurations(problem)))


def _matmul(
    configuration: Configuration,
    problem: Problem,
    inputs: Sequence[Any],
    output: Any,
    scalars: Mapping[str, float],
) -> Run:
    """Return what enqueues the kernel on PyTorch's current stream; it is a peer."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    kernel = importlib.import_module("benchmarks.triton_kernel").kernel
    first, second = problem.operation.inputs
    if first.axes != ("m", "k"):
        raise OperationError(f"{problem.operation}: this peer takes a as [m, k]")
    size, one = problem.sizes, configuration
    b_by_k = second.axes == ("n", "k")
    blocks = (
        [one.tile_m, one.tile_k],
        [one.tile_n, one.tile_k] if b_by_k else [one.tile_k, one.tile_n],
        [one.tile_m, one.tile_n // (2 if one.halves else 1)],
    )
    given = tensors(problem, inputs, output)
    described = [TensorDescriptor.from_tensor(x, b) for x, b in zip(given, blocks, strict=True)]
    sms = torch.cuda.get_device_properties(given[0].device).multi_processor_count
    launch = kernel[(one.programs(size["m"], size["n"], sms),)]

    def run() -> None:
        launch(
            *described, size["m"], size["n"], size["k"],
            block_m=one.tile_m, block_n=one.tile_n, block_k=one.tile_k, group=one.group,
            b_by_k=b_by_k, halves=one.halves, num_stages=one.stages, num_warps=one.warps,
        )  # fmt: skip

    return run


def __getattr__(name: str) -> Callable[..., Run]:
    """Return the peer of a configuration's name."""
    if not _NAME.fullmatch(name):
        raise AttributeError(f"module {__name__} has no {name}")
    return functools.partial(_matmul, Configuration.of(name))
