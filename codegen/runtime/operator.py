"""Operators: a built kernel, or a bundle of them, as an operator of PyTorch.

An operator computes on CUDA tensors, without a gradient, and works under ``torch.compile``, which
learns the output's shape from a *fake*: the same function on tensors without memory.

Attention takes q [b, heads, m, d], k [b, kv heads, n, d] and v [b, kv heads, n, e], as PyTorch's
``scaled_dot_product_attention``; of e4m3 v [b, kv heads, e, n], and scales [b, kv heads] follow.
Views are enough: a tensor [b, s, heads, d] is transposed and not copied, and the output lies in
memory as q does.  With lse [b, heads, m] it returns (o, lse).  In pages k is [pages, kv heads, keys
of one, d] and v alike, and the table [b, blocks] follows; then the lengths [b], if the kernel takes
them.

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

    inputs, outputs = contract.inputs, contract.arguments[-contract.outputs :]
    given = [f"float {scalar}" for scalar in contract.scalars]
    call, fake = run, _fake(inputs, outputs)
    if contract.operation == "attention":
        given = [f"float? {scalar}=None" for scalar in contract.scalars]
        call = _attending(run, inputs, outputs, scaled="scale" in contract.scalars)
        fake = _attended(inputs, outputs)
    named = [f"Tensor {argument.name}" for argument in inputs]
    made = "Tensor" if contract.outputs == 1 else f"({', '.join(['Tensor'] * contract.outputs)})"
    torch.library.define(name, f"({', '.join([*named, *['*'] * bool(given), *given])}) -> {made}")
    torch.library.impl(name, "CUDA", call)
    torch.library.register_fake(name, fake)
    space, _, short = name.partition("::")
    return getattr(getattr(torch.ops, space), short)


def _fake(inputs: Sequence[Argument], outputs: Sequence[Argument]) -> Callable[..., Any]:
    """Return what makes outputs without memory, by the axes of the inputs."""
    import torch

    def fake(*tensors: Any, **_: float) -> Any:
        sizes: dict[Any, Any] = {}
        for argument, tensor in zip(inputs, tensors, strict=True):
            sizes |= zip(argument.axes, tensor.shape, strict=True)
        kinds = [getattr(torch, TORCH_TYPES.get(o.dtype, "float32")) for o in outputs]
        return _joined([
            tensors[0].new_empty([sizes[axis] for axis in o.axes], dtype=kind)
            for o, kind in zip(outputs, kinds, strict=True)
        ])  # fmt: skip

    return fake


def _joined(outputs: Sequence[Any]) -> Any:
    """Return what an operator returns: its output, or a tuple of several."""
    return tuple(outputs) if outputs[1:] else outputs[0]


def _attended(inputs: Sequence[Argument], outputs: Sequence[Argument]) -> Callable[..., Any]:
    """Return what makes new outputs; heads and queries of the first lie as those of q do."""
    import torch

    kinds = [getattr(torch, TORCH_TYPES[o.dtype]) for o in outputs]
    wide = inputs[2].axes.index("e")

    def fake(q: Any, k: Any, v: Any, *_: Any, scale: float | None = None) -> Any:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if len(tensor.shape) != 4:
                raise LaunchError(
                    f"attention: {name} has {len(tensor.shape)} dimensions; "
                    "give [b, heads, rows, d]"
                )
        batch, heads, m, _ = q.shape
        if heads % k.shape[1]:
            raise LaunchError(
                f"attention: {heads} heads of q, {k.shape[1]} of k; heads are a multiple of kv "
                "heads: give [b, heads, rows, d], of [b, rows, heads, d] the transpose(1, 2)"
            )
        if q.stride(1) < q.stride(2):
            shape = (batch, m, heads, v.shape[wide])
            first = q.new_empty(shape, dtype=kinds[0]).transpose(1, 2)
        else:
            first = q.new_empty((batch, heads, m, v.shape[wide]), dtype=kinds[0])
        rest = [q.new_empty((batch, heads, m), dtype=kind) for kind in kinds[1:]]
        return _joined([first, *rest])

    return fake


def _attending(
    run: Callable[..., Any], inputs: Sequence[Argument], outputs: Sequence[Argument], *,
    scaled: bool,
) -> Callable[..., Any]:  # fmt: skip
    """Return attention of tensors with all heads in one dimension."""
    attended = _attended(inputs, outputs)

    def attend(q: Any, k: Any, v: Any, *more: Any, scale: float | None = None) -> Any:
        found = attended(q, k, v)
        heads = k.shape[1], q.shape[1] // k.shape[1]
        scalars = {"scale": 1 / math.sqrt(q.shape[3]) if scale is None else scale} if scaled else {}
        grouped = [o.unflatten(1, heads) for o in (found if outputs[1:] else (found,))]
        run(q.unflatten(1, heads), k, v, *more, out=_joined(grouped), **scalars)
        return found

    return attend
