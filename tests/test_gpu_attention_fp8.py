"""Attention of e4m3 on a GPU: named points are right, in both layouts, with scales, validated."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.run.validation import validate
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS
from tinygpu.term.operation import Problem, attention
from tinygpu.term.schedule import Schedule

pytestmark = pytest.mark.gpu
MACHINE = MACHINES["attention"]
CASES = {
    "full": (2, 4, 4, 256, 256, "none"),
    "causal": (2, 4, 4, 384, 384, "causal"),
    "ragged": (1, 2, 2, 77, 208, "none"),
    "ragged causal": (1, 4, 2, 201, 288, "causal"),
    "grouped": (2, 8, 2, 130, 304, "causal"),
    "rows without keys": (1, 2, 1, 300, 80, "causal"),
    "window": (1, 4, 2, 300, 400, "window:100:7"),
    "one query": (3, 8, 1, 1, 2000, "none"),
    "few keys": (1, 1, 1, 1, 16, "causal"),
}
"""Batches, heads, kv heads, queries, keys, mask."""


def problem_of(case: str, d: int, *, lse: bool = False, scales: bool = False) -> Problem:
    batch, heads, shared, m, n, mask = CASES[case]
    operation = attention("e4m3", mask=mask, lse=lse, scales=scales)
    return Problem.of(operation, l=batch, h=shared, g=heads // shared, m=m, n=n, d=d, e=d)


POINTS = [
    name
    for name, values in STARTS.items()
    if not check_schedule(Schedule.of(MACHINE, {**values}), MACHINE,
                          problem_of("causal" if "z" in name or "snake" in name else "full", 128),
                          load_device("h100"))
]  # fmt: skip
"""Named points that are legal for 8 bits."""


@functools.cache
def kernel(point: str, mask: str, depth: int, *, lse: bool, scales: bool) -> Kernel:
    operation = attention("e4m3", mask=mask, lse=lse, scales=scales)
    wide: dict[str, int | str] = {"depth": depth, "epilogue": "tma"} if depth > 128 else {}
    schedule = Schedule.of(MACHINE, {**STARTS[point], **wide})
    return Kernel(schedule.program(MACHINE, operation), arch="sm_90a")


@functools.cache
def operator(point: str, mask: str, depth: int, *, lse: bool, scales: bool) -> Any:
    short = "".join(c if c.isalnum() else "_" for c in f"{point}_{mask}_{depth}_{lse}_{scales}")
    op = kernel(point, mask, depth, lse=lse, scales=scales)
    return op.torch_op(f"tinygpu_test::attention_e4m3_{short}")


def drawn(torch: Any, case: str, lies: str, d: int) -> tuple[Any, Any, Any]:
    """q, k as [b, heads, rows, d], which lie as said; v as [b, heads, d, keys]."""
    batch, heads, shared, m, n, _ = CASES[case]
    torch.manual_seed(0)

    def one(count: int, rows: int) -> Any:
        shape = (batch, count, rows, d) if lies == "bhsd" else (batch, rows, count, d)
        x = torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)
        return x if lies == "bhsd" else x.transpose(1, 2)

    v = torch.randn((batch, shared, d, n), device="cuda").to(torch.float8_e4m3fn)
    return one(heads, m), one(shared, n), v


def scores(torch: Any, case: str, q: Any, k: Any) -> Any:
    """In float64; -inf where no key is seen."""
    times, mask = q.shape[1] // k.shape[1], CASES[case][-1]
    s = q.double() @ k.double().repeat_interleave(times, 1).transpose(2, 3) / math.sqrt(q.shape[3])
    m, n = s.shape[2:]
    last = torch.arange(m, device="cuda")[:, None] + n - m
    key = torch.arange(n, device="cuda")
    if mask != "none":
        left, right = map(int, mask.split(":")[1:]) if ":" in mask else (n + m, 0)
        s = s.masked_fill((key > last + right) | (key < last - left), -math.inf)
    return s


def near(torch: Any, found: Any, s: Any, v: Any) -> bool:
    """Each element within what rounding allows, and all of them in the mean within a share of it.

    Weights round by 2^-4 at most, with signs of their own; sums of 8-bit products have about 13
    bits; the result rounds to bf16.
    """
    weights = torch.softmax(s, 3).nan_to_num(0.0)
    values = v.double().transpose(2, 3).repeat_interleave(s.shape[1] // v.shape[1], 1)
    right = weights @ values
    noise = (weights**2 @ values**2).sqrt()
    off = (found.double() - right).abs()
    allowed = 4 * 2.0**-4 * noise + 2.0**-8 * right.abs() + 2.0**-10 * (weights @ values.abs())
    mean = off.square().mean().sqrt() <= 0.04 * noise.square().mean().sqrt() + 1e-6
    return bool((off <= allowed + 1e-6).all()) and bool(mean)


@pytest.mark.parametrize("lies", ["bhsd", "bshd"])
@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_right(point: str, lies: str) -> None:
    """And its log-sum-exp."""
    torch = pytest.importorskip("torch")
    ran = 0
    for case in CASES:
        problem, mask = problem_of(case, 128), CASES[case][-1]
        if check_schedule(Schedule.of(MACHINE, {**STARTS[point]}), MACHINE, problem,
                          load_device("h100")):  # fmt: skip
            continue
        q, k, v = drawn(torch, case, lies, 128)
        out, lse = operator(point, mask, 128, lse=True, scales=False)(q, k, v)
        assert out.dtype == torch.bfloat16
        s = scores(torch, case, q, k)
        assert near(torch, out, s, v), case
        right = torch.logsumexp(s, 3)
        seen = torch.isfinite(right)
        assert torch.equal(torch.isfinite(lse), seen), case
        assert ((lse.double() - right).abs()[seen] < 0.03).all(), case
        ran += 1
    assert ran


@pytest.mark.parametrize("tile_n", [64, 96, 160, 192])
def test_other_blocks_of_keys_are_right(tile_n: int) -> None:
    """Their values lie in lines of 64 or 32 B."""
    torch = pytest.importorskip("torch")
    for case in ("full", "grouped", "window"):
        operation = attention("e4m3", mask=CASES[case][-1])
        schedule = Schedule.of(MACHINE, {**STARTS["fa3"], "tile_n": tile_n})
        made = Kernel(schedule.program(MACHINE, operation), arch="sm_90a")
        q, k, v = drawn(torch, case, "bshd", 128)
        op = made.torch_op(f"tinygpu_test::attention_e4m3_{tile_n}_{case}")
        assert near(torch, op(q, k, v), scores(torch, case, q, k), v), case


@pytest.mark.parametrize("case", ["full", "grouped", "window"])
def test_scales_of_heads_are_right(case: str) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = drawn(torch, case, "bshd", 128)
    each = [torch.rand(k.shape[:2], device="cuda") + 0.5 for _ in range(3)]
    out = operator("fa3", CASES[case][-1], 128, lse=False, scales=True)(q, k, v, *each)
    times = q.shape[1] // k.shape[1]
    wide = [x.double().repeat_interleave(times, 1)[..., None, None] for x in each]
    s = scores(torch, case, q, k) * wide[0] * wide[1]
    assert near(torch, out.double() / wide[2], s, v)


@pytest.mark.parametrize("depth", [128, 256])
def test_other_head_dimensions_are_right(depth: int) -> None:
    """The widest, and those that fill a tile in part."""
    torch = pytest.importorskip("torch")
    for d in (depth, depth - 48, 16):
        for case in ("full", "grouped"):
            q, k, v = drawn(torch, case, "bhsd", d)
            values = "fa2" if depth == 256 else "early"
            op = operator(values, CASES[case][-1], depth, lse=False, scales=False)
            assert near(torch, op(q, k, v), scores(torch, case, q, k), v), (case, d)


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("case", ["full", "grouped", "window", "one query"])
def test_it_is_validated(case: str, scales: bool) -> None:
    """On every kind of inputs, by the rule that all kernels are held to."""
    point = "decode" if case == "one query" else "fa3"
    found = kernel(point, CASES[case][-1], 128, lse=True, scales=scales)
    assert validate(found, problem_of(case, 128, lse=True, scales=scales), 0) <= 1
