"""Attention in pages on a GPU: pages, tables, lengths and strides are right against float64."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from tinygpu.codegen.run.launch import Kernel
from tinygpu.errors import LaunchError
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS
from tinygpu.term.operation import attention
from tinygpu.term.schedule import Schedule

pytestmark = pytest.mark.gpu
POINTS: dict[str, dict[str, Any]] = {
    "decode": {},
    "alone": {"split_kv": 1},
    "eight parts": {"split_kv": 8, "tile_n": 64},
    "drafts": {"pack_gqa": 8},
    "one head": {"pack_gqa": 0},
    "odd tile": {"tile_n": 80},
}
"""What differs from the point "decode"."""
PREFILL = ("fa3", "longest first", "pair multicast", "wide", "zigzag", "queries in registers")


@functools.cache
def operator(point: str, page: int, *, lengths: bool = False, mask: str = "none") -> Any:
    values = {**STARTS["decode"], **POINTS[point]} if point in POINTS else STARTS[point]
    operation = attention(pages=page, lengths=lengths, mask=mask)
    program = Schedule.of(MACHINES["attention"], values).program(MACHINES["attention"], operation)
    named = "".join(c if c.isalnum() else "_" for c in f"{point}_{page}_{lengths}_{mask}")
    return Kernel(program, arch="sm_90a").torch_op(f"tinygpu_test::paged_{named}")


def drawn(
    torch: Any, batch: int, heads: int, shared: int, m: int, blocks: int, page: int, d: int = 128
) -> dict[str, Any]:
    """Tensors as an engine has them, k and v [pages, keys, kv heads, d]; more pages than blocks."""
    torch.manual_seed(batch + blocks)
    many = batch * blocks + 3
    q = torch.randn(batch, m, heads, d, device="cuda").bfloat16().transpose(1, 2)
    pools = torch.randn(2, many, page, shared, d, device="cuda").bfloat16().transpose(2, 3)
    table = torch.randperm(many, device="cuda")[: batch * blocks].reshape(batch, blocks)
    return {"q": q, "k": pools[0], "v": pools[1], "table": table.int()}


def wanted(
    torch: Any, q: Any, k: Any, v: Any, table: Any, lengths: Any = None, *, causal: bool = False
) -> Any:
    """In float64, from pages that are put side by side; outside of the pool there are zeros."""
    there = (table >= 0) & (table < len(k))

    def whole(pool: Any) -> Any:
        blocks = pool.double()[table.long().clamp(0, len(pool) - 1)]
        blocks = blocks * there[:, :, None, None, None]
        x = blocks.transpose(1, 2).flatten(2, 3)
        return x.repeat_interleave(q.shape[1] // x.shape[1], 1)

    s = q.double() @ whole(k).transpose(2, 3) / math.sqrt(q.shape[3])
    m, n = s.shape[2:]
    if lengths is None:
        lengths = torch.full((len(q),), n, device="cuda")
    keys, rows = torch.arange(n, device="cuda"), torch.arange(m, device="cuda")
    hidden = (keys >= lengths.long()[:, None, None]).expand(-1, m, -1)
    if causal:
        hidden = hidden | (keys > rows[:, None] + (lengths.long() - m)[:, None, None])
    s = s.masked_fill(hidden[:, None], -math.inf)
    return torch.softmax(s, 3).nan_to_num(0.0) @ whole(v)


def near(found: Any, right: Any) -> bool:
    return bool(((found.double() - right).abs() <= 0.02 * right.abs().max() + 1e-6).all())


@pytest.mark.parametrize("page", [16, 48, 64, 128, 256])
@pytest.mark.parametrize("point", POINTS)
def test_decoding_is_right(point: str, page: int) -> None:
    """Any number of sequences, heads and pages, of which the last CTAs may have none."""
    torch = pytest.importorskip("torch")
    op, m = operator(point, page), {"drafts": 8, "one head": 5}.get(point, 1)
    for batch, heads, shared, keys in ((1, 8, 1, 64), (3, 16, 2, 640), (8, 64, 8, 4096)):
        given = drawn(torch, batch, heads, shared, m, -(-keys // page), page)
        assert near(op(**given), wanted(torch, **given)), (batch, heads, shared, keys)


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("page", [16, 64, 256])
@pytest.mark.parametrize("point", ["decode", "eight parts", "drafts", "one head"])
def test_lengths_are_right(point: str, page: int, mask: str) -> None:
    """From none to all; behind a length lie numbers that would be seen, and no page's number."""
    torch = pytest.importorskip("torch")
    op, m = operator(point, page, lengths=True, mask=mask), 1 if point == "decode" else 4
    for batch, heads, shared, keys in ((1, 8, 1, 300), (9, 16, 2, 1000), (5, 8, 8, 70)):
        given = drawn(torch, batch, heads, shared, m, -(-keys // page), page)
        most = given["table"].shape[1] * page
        lengths = torch.randint(0, most + 1, (batch,), device="cuda", dtype=torch.int32)
        lengths[0], lengths[-1] = min(1, most), most if batch == 1 else 0
        behind = torch.arange(given["table"].shape[1], device="cuda") * page >= lengths[:, None]
        given["table"][behind] = torch.tensor(-7, dtype=torch.int32, device="cuda")
        given["k"] *= 4
        given["lengths"] = lengths
        right = wanted(torch, **given, causal=mask == "causal")
        assert near(op(**given), right), (batch, heads, shared, keys)


@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize("point", PREFILL)
def test_many_queries_are_right(point: str, page: int) -> None:
    torch = pytest.importorskip("torch")
    for mask in ("none", "causal") if STARTS[point]["order"] == "straight" else ("causal",):
        op = operator(point, page, lengths=True, mask=mask)
        given = drawn(torch, 3, 4, 2, 200, -(-700 // page), page)
        given["lengths"] = torch.tensor([0, 333, 700], dtype=torch.int32, device="cuda")
        assert near(op(**given), wanted(torch, **given, causal=mask == "causal")), mask


def test_tables_are_as_engines_have_them() -> None:
    """Pages that sequences share, one for all, none at all, and rows of a wider table."""
    torch = pytest.importorskip("torch")
    op, given = operator("decode", 64), drawn(torch, 4, 16, 2, 1, 10, 64)
    wide = torch.zeros(4, 50, dtype=torch.int32, device="cuda")
    given["table"] = wide[:, 7:17]
    for entries in ([[1] * 10] * 4, [[5, 2, 9, 2, 0, 1, 3, 4, 8, 6]] * 4, [[-1, 3] * 5] * 4,
                    [[10**6, -(10**6)] * 5] * 4):  # fmt: skip
        given["table"].copy_(torch.tensor(entries, dtype=torch.int32))
        assert near(op(**given), wanted(torch, **given))


def test_a_graph_sees_a_table_that_changes() -> None:
    torch = pytest.importorskip("torch")
    op, given = operator("decode", 64), drawn(torch, 4, 16, 2, 1, 10, 64)
    op(**given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(**given)
    given["table"].copy_(given["table"].flip(1).roll(1, 0))
    graph.replay()
    torch.cuda.synchronize()
    assert near(out, wanted(torch, **given))


def test_wrong_arrays_are_refused() -> None:
    torch = pytest.importorskip("torch")
    op, given = operator("decode", 64), drawn(torch, 4, 16, 2, 1, 10, 64)
    for name, wrong, why in (
        ("table", given["table"].long(), "table: dtype .*int64, the kernel takes i32"),
        ("table", given["table"][:3].contiguous(), "axis l is 4, but table has shape"),
        ("table", given["table"].t().contiguous().t(), "table: stride"),
        ("k", given["k"][:, :, :32], "with 64 there"),
        ("v", given["v"][1:], "axis pages is"),
    ):
        with pytest.raises(LaunchError, match=why):
            op(**{**given, name: wrong})
