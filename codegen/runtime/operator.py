"""Operators: a built kernel, or a bundle of them, as an operator of PyTorch.

An operator computes on CUDA tensors, without a gradient, and works under ``torch.compile``, which
learns the output's shape from a *fake*: the same function on tensors without memory.

Attention takes q [b, heads, m, d], k [b, kv heads, n, d] and v [b, kv heads, n, e], as PyTorch's
``scaled_dot_product_attention``.  Views are enough: a tensor [b, s, heads, d] is transposed and not
copied, and the output lies in memory as q does.

Source: PyTorch, "Custom Operators".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinygpu.codegen.runtime.contract import Argument, Contract
from tinygpu.codegen.runtime.views import TORCH_TYPES
from tinygpu.errors import LaunchError

__all__ = ["torch_operator"]


def torch_operator(name: str, run: Callable[..., Any], contract: Contract) -> Any:
    """Register ``run``, of kernels of this contract, as ``namespace::name``, and return that.

    An attention's ``scale`` is 1 / sqrt(d) where it is not given.
    """
    import torch

    *inputs, output = contract.arguments
    given = [f"float {scalar}" for scalar in contract.scalars]
    call, fake = run, _fake(inputs, output)
    if contract.operation == "attention":
        given = [f"float? {scalar}=None" for scalar in contract.scalars]
        call, fake = _attending(run, scaled="scale" in contract.scalars), _attended
    named = [f"Tensor {argument.name}" for argument in inputs]
    torch.library.define(name, f"({', '.join([*named, *['*'] * bool(given), *given])}) -> Tensor")
    torch.library.impl(name, "CUDA", call)
    torch.library.register_fake(name, fake)
    space, _, short = name.partition("::")
    return getattr(getattr(torch.ops, space), short)


def _fake(inputs: Sequence[Argument], output: Argument) -> Callable[..., Any]:
    """Return what makes an output without memory, by the axes of the inputs."""
    import torch

    def fake(*tensors: Any, **_: float) -> Any:
        sizes: dict[str, Any] = {}
        for argument, tensor in zip(inputs, tensors, strict=True):
            sizes |= zip(argument.axes, tensor.shape, strict=True)
        kind = getattr(torch, TORCH_TYPES.get(output.dtype, "float32"))
        return tensors[0].new_empty([sizes[axis] for axis in output.axes], dtype=kind)

    return fake


def _attended(q: Any, k: Any, v: Any, *, scale: float | None = None) -> Any:
    """Return a new output, whose heads and queries lie as those of q do."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if len(tensor.shape) != 4:
            raise LaunchError(
                f"attention: {name} has {len(tensor.shape)} dimensions; give [b, heads, rows, d]"
            )
    batch, heads, m, _ = q.shape
    if heads % k.shape[1]:
        raise LaunchError(
            f"attention: {heads} heads of q, {k.shape[1]} of k; heads are a multiple of kv heads: "
            "give [b, heads, rows, d], of [b, rows, heads, d] the transpose(1, 2)"
        )
    if q.stride(1) < q.stride(2):
        return q.new_empty((batch, m, heads, v.shape[3])).transpose(1, 2)
    return q.new_empty((batch, heads, m, v.shape[3]))


def _attending(run: Callable[..., Any], *, scaled: bool) -> Callable[..., Any]:
    """Return attention of tensors with all heads in one dimension."""

    def attend(q: Any, k: Any, v: Any, *, scale: float | None = None) -> Any:
        out = _attended(q, k, v)
        heads = k.shape[1], q.shape[1] // k.shape[1]
        scalars = {"scale": 1 / math.sqrt(q.shape[3]) if scale is None else scale} if scaled else {}
        run(q.unflatten(1, heads), k, v, out=out.unflatten(1, heads), **scalars)
        return out

    return attend
