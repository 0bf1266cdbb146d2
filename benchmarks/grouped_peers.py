"""Peers of a grouped matmul: ``benchmarks.grouped_peers:torch_grouped``.

    torch_grouped   PyTorch's ``_grouped_mm`` (CUTLASS on an H100): groups known on the device
    cublas_loop     a loop of ``torch.mm`` over the groups, whose ends the host knows already
    triton_..       Triton's tutorial kernel, tile m x n x k, stages and warps by name

All take bf16, a[m,k] and b[g,n,k].  Of a gate each makes one product with gate and b side by side,
as layers do, and then a Triton kernel silu(gate) times up.

Source: PyTorch 2.9, ``torch._grouped_mm``; ``benchmarks/grouped_kernel.py``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.peers import tensors
from tinygpu.errors import OperationError
from tinygpu.term.operation import Problem, grouped_matmul

__all__ = ["cublas_loop", "peers", "torch_grouped"]

Run = Callable[[], Any]
_TRITON = (
    "triton_128x128x64_s3_w8", "triton_128x256x64_s3_w8", "triton_64x128x64_s4_w4",
    "triton_64x256x64_s3_w4", "triton_16x128x128_s4_w4", "triton_32x128x128_s3_w4",
    "triton_128x128x64_s4_w4",
)  # fmt: skip


def peers(problem: Problem) -> tuple[str, ...]:
    """Return the names of the peers for a problem; none if they do not take it."""
    known = problem.operation in (grouped_matmul("bf16"), grouped_matmul("bf16", gate="silu"))
    return ("torch_grouped", "cublas_loop", *_TRITON) if known else ()


def _arrays(
    problem: Problem, inputs: Sequence[Any], output: Any
) -> tuple[Any, Any, Any, Any, Callable[[Any], Any]]:
    """Return a, all weights, the ends, what a product is written to, and what ends it."""
    import torch

    a, *weights, ends, c = tensors(problem, inputs, output)
    if len(weights) == 1:
        return a, weights[0], ends, c, lambda made: made
    up, gate = weights
    gated = importlib.import_module("benchmarks.grouped_kernel").gated
    many, block = c.numel(), 1024

    def end(made: Any) -> Any:
        gated[(-(-many // block),)](made, c, many, c.shape[1], block=block)
        return c

    return a, torch.cat([gate, up], 1), ends, c.new_empty((c.shape[0], 2 * c.shape[1])), end


def torch_grouped(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's grouped product; it allocates its output."""
    import torch

    a, b, ends, _, end = _arrays(problem, inputs, output)
    return lambda: end(torch._grouped_mm(a, b.transpose(1, 2), offs=ends))


def cublas_loop(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """Enqueue a product by cuBLAS for each group that has rows."""
    import torch

    a, b, ends, c, end = _arrays(problem, inputs, output)
    every = [0, *ends.tolist()]
    parts = [
        (a[start:stop], b[group].T, c[start:stop])
        for group, (start, stop) in enumerate(pairwise(every))
        if stop > start
    ]

    def run() -> None:
        for rows, weights, into in parts:
            torch.mm(rows, weights, out=into)
        end(c)

    return run


def _triton(
    name: str, problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """Triton's kernel, on all SMs."""
    import torch

    found = re.fullmatch(r"triton_(\d+)x(\d+)x(\d+)_s(\d+)_w(\d+)", name)
    if found is None:
        raise OperationError(f"Triton configuration {name}: write it as {_TRITON[0]}")
    m, n, k, stages, warps = map(int, found.groups())
    kernel = importlib.import_module("benchmarks.grouped_kernel").kernel
    a, b, ends, c, end = _arrays(problem, inputs, output)
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count

    def run() -> None:
        kernel[(sms,)](
            a, b, c, ends, len(ends), b.shape[1], b.shape[2], block_m=m, block_n=n, block_k=k,
            sms=sms, num_stages=stages, num_warps=warps,
        )  # fmt: skip
        end(c)

    return run


def __getattr__(name: str) -> Any:
    if name.startswith("triton_"):
        return partial(_triton, name)
    raise AttributeError(name)
