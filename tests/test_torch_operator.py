"""Operators of PyTorch without PyTorch: attention by views, in both layouts; the kernel takes them.

Tensors are NumPy's, with the methods of PyTorch's that are used.  tests/test_gpu_attention.py has
the same on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fake_gpu import Card
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.runtime.contract import Contract, check
from tinygpu.codegen.runtime.operator import torch_operator
from tinygpu.codegen.runtime.views import View
from tinygpu.errors import LaunchError
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS
from tinygpu.machines.hopper import STARTS as HOPPER
from tinygpu.machines.simt import LADDER
from tinygpu.term.operation import attention, grouped_matmul, matmul
from tinygpu.term.schedule import Schedule


class Tensor:
    """A tensor on NumPy's arrays."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    def stride(self, d: int) -> int:
        return int(self.array.strides[d] // self.array.itemsize)

    def transpose(self, a: int, b: int) -> Tensor:
        return Tensor(self.array.swapaxes(a, b))

    def unflatten(self, d: int, sizes: tuple[int, int]) -> Tensor:
        shape, strides = self.shape, self.array.strides
        step = strides[d]
        found = np.lib.stride_tricks.as_strided(
            self.array,
            (*shape[:d], *sizes, *shape[d + 1 :]),
            (*strides[:d], sizes[1] * step, step, *strides[d + 1 :]),
        )
        return Tensor(found)

    def new_empty(self, shape: Any, **_: Any) -> Tensor:
        return Tensor(np.full(tuple(shape), np.nan))


@pytest.fixture
def torch(card: Card) -> Any:
    """What the operator asks of PyTorch; ``registered`` keeps it."""
    kept: dict[str, Any] = {}
    library = SimpleNamespace(
        define=lambda name, schema: kept.update(schema=schema),
        impl=lambda name, place, call: kept.update(call=call, place=place),
        register_fake=lambda name, fake: kept.update(fake=fake),
    )
    fake = SimpleNamespace(
        library=library,
        registered=kept,
        bfloat16="bfloat16",
        float16="float16",
        float32="float32",
        ops=SimpleNamespace(mine=SimpleNamespace(attention="the operator", linear="the operator")),
    )
    card.torch(fake)
    return fake


def contract(mask: str = "none", *, lse: bool = False) -> Contract:
    machine = MACHINES["attention"]
    program = Schedule.of(machine, STARTS["fa3"]).program(machine, attention(mask=mask, lse=lse))
    return contract_of(program, None)


def running(mask: str, seen: list[Any]) -> Callable[..., None]:
    """What a kernel does, with the check of what it takes."""

    def run(*inputs: Any, out: Any, **scalars: float) -> None:
        views = [
            View(1 << 20, "bf16", t.shape, tuple(t.stride(d) for d in range(len(t.shape))), 0)
            for t in (*inputs, out)
        ]
        check(contract(mask), views)
        seen.append((views, scalars))
        arrays = dict(zip("qkv", (t.array for t in inputs), strict=True))
        out.array[...] = attention(mask=mask).reference(arrays, scalars)["o"]

    return run


def drawn(rows: int, heads: int, last: str, seed: int, d: int = 64) -> Tensor:
    """A tensor [2, heads, rows, d] that lies as bhsd, bshd, or as a part of packed heads."""
    random = np.random.default_rng(seed)
    if last == "bhsd":
        return Tensor(random.standard_normal((2, heads, rows, d)))
    if last == "bshd":
        return Tensor(random.standard_normal((2, rows, heads, d))).transpose(1, 2)
    return Tensor(random.standard_normal((2, rows, 3, heads, d))[:, :, 1]).transpose(1, 2)


@pytest.mark.parametrize("lies", ["bhsd", "bshd", "packed"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_attention_by_views(torch: Any, mask: str, lies: str) -> None:
    """Attention of 6 heads on 2, the scale 1 / sqrt(d) or what is given; nothing is copied."""
    seen: list[Any] = []
    op = torch_operator("mine::attention", running(mask, seen), contract(mask))
    assert op == "the operator"
    assert torch.registered["schema"] == (
        "(Tensor q, Tensor k, Tensor v, *, float? scale=None) -> Tensor"
    )
    assert torch.registered["place"] == "CUDA"
    q, k, v = drawn(5, 6, lies, 0), drawn(7, 2, lies, 1), drawn(7, 2, lies, 2)
    for scale in (None, 0.5):
        out = torch.registered["call"](q, k, v, scale=scale)
        s = q.array @ k.array.repeat(3, 1).swapaxes(2, 3) * (scale or 1 / math.sqrt(64))
        hidden = np.arange(7) > np.arange(5)[:, None] + 2
        p = np.exp(np.where(hidden & (mask == "causal"), -np.inf, s))
        wanted = p / p.sum(3, keepdims=True) @ v.array.repeat(3, 1)
        assert np.allclose(out.array, wanted)
        assert (out.stride(1) < out.stride(2)) == (lies != "bhsd"), "it lies as q does"
        fake = torch.registered["fake"](q, k, v, scale=scale)
        assert (fake.shape, fake.array.strides) == (out.shape, out.array.strides)
    for views, _ in seen:
        assert [v.shape for v in views] == [
            (2, 2, 3, 5, 64), (2, 2, 7, 64), (2, 2, 7, 64), (2, 2, 3, 5, 64)
        ]  # fmt: skip
    assert [scalars["scale"] for _, scalars in seen] == [1 / 8, 0.5]


@pytest.mark.parametrize("lies", ["bhsd", "bshd"])
def test_attention_returns_its_log_sum_exp(torch: Any, lies: str) -> None:
    """In fp32 [b, heads, m], as a second tensor; it lies densely, however q does."""
    told, operation = contract(lse=True), attention(lse=True)

    def run(*inputs: Any, out: Any, **scalars: float) -> None:
        views = [
            View(number << 20, dtype, t.shape, tuple(t.stride(d) for d in range(len(t.shape))), 0)
            for number, (t, dtype) in enumerate(
                zip((*inputs, *out), ["bf16"] * 4 + ["f32"], strict=True), 1
            )
        ]
        check(told, views)
        found = operation.reference(
            dict(zip("qkv", (t.array for t in inputs), strict=True)), scalars
        )
        out[0].array[...], out[1].array[...] = found["o"], found["lse"]

    torch_operator("mine::attention", run, told)
    assert torch.registered["schema"] == (
        "(Tensor q, Tensor k, Tensor v, *, float? scale=None) -> (Tensor, Tensor)"
    )
    q, k, v = drawn(5, 6, lies, 0), drawn(7, 2, lies, 1), drawn(7, 2, lies, 2)
    out, lse = torch.registered["call"](q, k, v)
    s = q.array @ k.array.repeat(3, 1).swapaxes(2, 3) / 8
    assert np.allclose(lse.array, np.log(np.exp(s).sum(3)))
    assert np.allclose(out.array, np.exp(s - lse.array[..., None]) @ v.array.repeat(3, 1))
    fakes = torch.registered["fake"](q, k, v)
    for fake, real in zip(fakes, (out, lse), strict=True):
        assert (fake.shape, fake.array.strides) == (real.shape, real.array.strides)
    assert lse.array.flags.c_contiguous


def test_heads_and_ranks_that_cannot_be(torch: Any) -> None:
    """The kernel and the fake refuse them alike."""
    torch_operator("mine::attention", running("none", []), contract())
    k = drawn(7, 2, "bhsd", 1)
    for run in (torch.registered["call"], torch.registered["fake"]):
        with pytest.raises(LaunchError, match="5 heads of q, 2 of k; heads are a multiple of kv"):
            run(drawn(5, 5, "bhsd", 0), k, k)
        with pytest.raises(LaunchError, match=r"q has 5 dimensions; give \[b, heads, rows, d\]"):
            run(drawn(5, 6, "bhsd", 0).unflatten(1, (2, 3)), k, k)


def test_a_head_dimension_that_is_strided_is_refused(torch: Any) -> None:
    torch_operator("mine::attention", running("none", []), contract())
    turned = drawn(64, 2, "bhsd", 0).transpose(2, 3)
    with pytest.raises(LaunchError, match=r"stride 64 in dimension .*; copy it with"):
        torch.registered["call"](turned, turned, turned)


def test_groups_ends_are_an_input(torch: Any) -> None:
    """They give the number of groups alone; the output has the rows of a."""
    machine = MACHINES["hopper"]
    program = Schedule.of(machine, HOPPER["persistent"]).program(machine, grouped_matmul(bias=True))
    torch_operator("mine::linear", lambda *a, **b: None, contract_of(program, None))
    schema = "(Tensor a, Tensor b, Tensor bias, Tensor ends) -> Tensor"
    assert torch.registered["schema"] == schema
    shapes = ((30, 16), (4, 24, 16), (4, 24), (4,))
    inputs = (Tensor(np.zeros(shape)) for shape in shapes)
    assert torch.registered["fake"](*inputs).shape == (30, 24)


def test_other_operations_keep_their_form(torch: Any) -> None:
    machine = MACHINES["simt"]
    program = Schedule.of(machine, LADDER["naive"]).program(machine, matmul())
    made = torch_operator("mine::linear", lambda *a, **b: None, contract_of(program, None))
    assert made == "the operator"
    assert torch.registered["schema"] == "(Tensor a, Tensor b) -> Tensor"
    a, b = Tensor(np.zeros((3, 4))), Tensor(np.zeros((4, 5)))
    assert torch.registered["fake"](a, b).shape == (3, 5)
