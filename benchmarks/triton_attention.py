"""Triton's flash attention, forward: each configuration of ``CONFIGURATIONS`` is a peer.

A configuration is its name: queries x keys of a step, stages, warps.

>>> Configuration.of("t128x64_s3_w8")
Configuration(block_m=128, block_n=64, stages=3, warps=8)

Source: T. Dao, "FlashAttention-2", arXiv:2307.08691, section 3; Triton 3.6, ``TensorDescriptor``.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinygpu.errors import OperationError

__all__ = ["CONFIGURATIONS", "Configuration", "attention"]

CONFIGURATIONS: tuple[str, ...] = (
    *("t128x128_s2_w8", "t128x128_s3_w8", "t128x128_s2_w4", "t128x64_s2_w8", "t128x64_s3_w8"),
    *("t128x64_s3_w4", "t128x64_s4_w8", "t64x128_s2_w4", "t64x128_s3_w4", "t64x64_s3_w4"),
    *("t64x64_s4_w4", "t128x32_s4_w8"),
)
"""The best of these, each checked and timed, is what Triton can do here."""
_NAME = re.compile(r"t(\d+)x(\d+)_s(\d+)_w(\d+)")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the kernel is compiled with."""

    block_m: int
    block_n: int
    stages: int
    warps: int

    @staticmethod
    def of(name: str) -> Configuration:
        """Read a name.  Raises OperationError for one that is none."""
        found = _NAME.fullmatch(name)
        if not found:
            raise OperationError(
                f"Triton configuration {name}: no such form; write {CONFIGURATIONS[0]}"
            )
        return Configuration(*map(int, found.groups()))


def attention(
    configuration: Configuration, q: Any, k: Any, v: Any, out: Any, *, causal: bool
) -> Callable[[], None]:
    """Return what enqueues the kernel on PyTorch's current stream and writes ``out``.

    Tensors: q and out [batch, heads, m, d], k and v [batch, kv heads, n, d], dense, of 16 bits.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    kernel = importlib.import_module("benchmarks.triton_attention_kernel").kernel
    one = configuration
    (b, heads, m, d), (kv_heads, n) = q.shape, k.shape[1:3]
    rows = (one.block_m, one.block_n, one.block_n, one.block_m)
    described = [
        TensorDescriptor.from_tensor(x.reshape(-1, x.shape[2], d), [1, block, d])
        for x, block in zip((q, k, v, out), rows, strict=True)
    ]
    launch = kernel[(-(-m // one.block_m), b * heads)]

    def run() -> None:
        launch(
            *described, m, n, heads // kv_heads, math.log2(math.e) / math.sqrt(d), d=d,
            block_m=one.block_m, block_n=one.block_n, causal=causal,
            num_stages=one.stages, num_warps=one.warps,
        )  # fmt: skip

    return run
