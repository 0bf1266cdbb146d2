"""Attention on a GPU: named points of both machines are right, in both layouts, in a graph."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from tinygpu.codegen.run.launch import Kernel
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES, ampere_attention
from tinygpu.machines.attention import STARTS
from tinygpu.term.operation import Problem, attention
from tinygpu.term.schedule import Schedule

pytestmark = pytest.mark.gpu
POINTS = {
    **{name: ("attention", values) for name, values in STARTS.items()},
    **{f"warps {name}": ("ampere_attention", values)
       for name, values in ampere_attention.STARTS.items()},
}  # fmt: skip
"""A named point's machine and decisions."""
CASES = {
    "full": (2, 4, 4, 256, 256, False),
    "causal": (2, 4, 4, 384, 384, True),
    "ragged": (1, 2, 2, 77, 201, False),
    "ragged causal": (1, 4, 2, 201, 77 + 201, True),
    "grouped": (2, 8, 2, 130, 300, True),
    "rows without keys": (1, 2, 1, 300, 70, True),
    "one of each": (1, 1, 1, 1, 1, True),
}
"""Batches, heads, kv heads, queries, keys, causal."""


@functools.cache
def kernel(point: str, *, causal: bool, lse: bool = False) -> Kernel:
    operation = attention(mask="causal" if causal else "none", lse=lse)
    name, values = POINTS[point]
    program = Schedule.of(MACHINES[name], values).program(MACHINES[name], operation)
    return Kernel(program, arch="sm_90a")


@functools.cache
def operator(point: str, *, causal: bool, lse: bool = False) -> Any:
    short = "".join(c if c.isalnum() else "_" for c in f"{point}_{causal}_{lse}")
    return kernel(point, causal=causal, lse=lse).torch_op(f"tinygpu_test::attention_{short}")


def drawn(torch: Any, case: str, lies: str, d: int) -> tuple[Any, Any, Any]:
    """q, k, v as [b, heads, rows, d], which lie as said."""
    batch, heads, shared, m, n, _ = CASES[case]
    torch.manual_seed(0)

    def one(count: int, rows: int) -> Any:
        shape = (batch, count, rows, d) if lies == "bhsd" else (batch, rows, count, d)
        x = torch.randn(shape, device="cuda").bfloat16()
        return x if lies == "bhsd" else x.transpose(1, 2)

    return one(heads, m), one(shared, n), one(shared, n)


def scores(torch: Any, q: Any, k: Any, *, causal: bool) -> Any:
    """In float64; -inf where no key is seen."""
    times = q.shape[1] // k.shape[1]
    s = q.double() @ k.double().repeat_interleave(times, 1).transpose(2, 3) / math.sqrt(q.shape[3])
    m, n = s.shape[2:]
    if causal:
        last = torch.arange(m, device="cuda")[:, None] + n - m
        s = s.masked_fill(torch.arange(n, device="cuda") > last, -math.inf)
    return s


def wanted(torch: Any, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """In float64; a query that sees no key gives 0."""
    weights = torch.softmax(scores(torch, q, k, causal=causal), 3).nan_to_num(0.0)
    return weights @ v.double().repeat_interleave(q.shape[1] // k.shape[1], 1)


def near(found: Any, right: Any) -> bool:
    return bool(((found.double() - right).abs() <= 0.02 * right.abs().max() + 1e-6).all())


@pytest.mark.parametrize("lies", ["bhsd", "bshd"])
@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_right(point: str, lies: str) -> None:
    torch = pytest.importorskip("torch")
    name, values = POINTS[point]
    d = int(values["depth"])
    ran = 0
    for case, (batch, heads, shared, m, n, causal) in CASES.items():
        operation = attention(mask="causal" if causal else "none")
        sizes = {"l": batch, "h": shared, "g": heads // shared, "m": m, "n": n, "d": d, "e": d}
        problem, schedule = Problem.of(operation, **sizes), Schedule.of(MACHINES[name], values)
        if check_schedule(schedule, MACHINES[name], problem, load_device("h200")):
            continue
        q, k, v = drawn(torch, case, lies, d)
        found = operator(point, causal=causal)(q, k, v)
        assert found.stride() == q.stride() or 1 in q.shape, case
        assert near(found, wanted(torch, q, k, v, causal=causal)), case
        ran += 1
    assert ran


@pytest.mark.parametrize("lies", ["bhsd", "bshd"])
@pytest.mark.parametrize("point", ["fa2", "fa3", "longest first", "wide"])
def test_the_log_sum_exp_is_right(point: str, lies: str) -> None:
    """And o is as without it; -inf for a query that sees no key."""
    torch = pytest.importorskip("torch")
    for case in ("ragged", "grouped", "rows without keys", "one of each"):
        causal = CASES[case][-1]
        q, k, v = drawn(torch, case, lies, 128)
        out, lse = operator(point, causal=causal, lse=True)(q, k, v)
        assert torch.equal(out, operator(point, causal=causal)(q, k, v)), case
        right = torch.logsumexp(scores(torch, q, k, causal=causal), 3)
        assert lse.dtype == torch.float32
        assert torch.equal(torch.isinf(lse), torch.isinf(right)), case
        seen = torch.isfinite(right)
        assert ((lse.double() - right).abs()[seen] < 1e-4).all(), case


@pytest.mark.parametrize("window", [(0, 0), (100, 0), (64, 33), (1000, 1000)])
@pytest.mark.parametrize("point", ["fa2", "fa3", "longest first", "wide"])
def test_a_sliding_window_is_right(point: str, window: tuple[int, int]) -> None:
    """Blocks outside are left out; rows that see no key are 0."""
    torch = pytest.importorskip("torch")
    left, right = window
    operation = attention(mask=f"window:{left}:{right}", lse=True)
    program = Schedule.of(MACHINES["attention"], STARTS[point]).program(
        MACHINES["attention"], operation
    )
    short = "".join(c if c.isalnum() else "_" for c in f"{point}_{left}_{right}")
    op = Kernel(program, arch="sm_90a").torch_op(f"tinygpu_test::window_{short}")
    for case in ("full", "ragged", "grouped", "rows without keys", "one of each"):
        q, k, v = drawn(torch, case, "bshd", 128)
        s = scores(torch, q, k, causal=False)
        m, n = s.shape[2:]
        last = torch.arange(m, device="cuda")[:, None] + n - m
        key = torch.arange(n, device="cuda")
        s = s.masked_fill((key > last + right) | (key < last - left), -math.inf)
        values = v.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
        out, lse = op(q, k, v)
        assert near(out, torch.softmax(s, 3).nan_to_num(0.0) @ values), case
        wanted_lse = torch.logsumexp(s, 3)
        seen = torch.isfinite(wanted_lse)
        assert torch.equal(torch.isfinite(lse), seen), case
        assert ((lse.double() - wanted_lse).abs()[seen] < 1e-4).all(), case


@pytest.mark.parametrize(
    ("depth", "tile_n", "order", "turns"),
    [(192, 112, "SVsMELvOP", "named"), (192, 128, "SsMELOPVv", "none"),
     (256, 80, "SVsMELvOP", "none"), (256, 80, "SsMELOPVv", "none"),
     (256, 64, "SVsMELvOP", "named")],
)  # fmt: skip
def test_wide_heads_are_right(depth: int, tile_n: int, order: str, turns: str) -> None:
    """Blocks of few keys, and of as many dimensions as a product of warpgroups has columns."""
    torch = pytest.importorskip("torch")
    values = {**STARTS["fa2"], "depth": depth, "tile_n": tile_n, "turns": turns,
              "consumer_order": order, "stages_k": 1, "stages_v": 1}  # fmt: skip
    for causal in (False, True):
        operation = attention(mask="causal" if causal else "none", lse=True)
        program = Schedule.of(MACHINES["attention"], values).program(
            MACHINES["attention"], operation
        )
        short = f"{depth}_{tile_n}_{order}_{turns}_{causal}"
        op = Kernel(program, arch="sm_90a").torch_op(f"tinygpu_test::wide_{short}")
        for case in (c for c in CASES if CASES[c][-1] == causal):
            for d in (depth, depth - 24):
                q, k, v = drawn(torch, case, "bshd", d)
                out, lse = op(q, k, v)
                assert near(out, wanted(torch, q, k, v, causal=causal)), (case, d)
                right = torch.logsumexp(scores(torch, q, k, causal=causal), 3)
                seen = torch.isfinite(right)
                assert ((lse.double() - right).abs()[seen] < 1e-4).all(), (case, d)


def test_a_graph_reads_what_arrays_hold_then() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = drawn(torch, "grouped", "bshd", 128)
    op = operator("fa3", causal=True)
    op(q, k, v)  # which loads it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(q, k, v)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    assert near(out, wanted(torch, q, k, v, causal=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PyTorch imports
def test_it_is_compiled() -> None:
    """The operator passes PyTorch's own check; compiled it gives the same, also at other sizes."""
    torch = pytest.importorskip("torch")
    op = operator("fa3", causal=False)
    q, k, v = drawn(torch, "full", "bshd", 128)
    told = torch.library.opcheck(op.default, (q, k, v), {"scale": 0.1})
    assert set(told.values()) == {"SUCCESS"}, told
    compiled = torch.compile(lambda q, k, v: op(q, k, v) * 1, dynamic=True)
    for case in ("full", "ragged"):
        q, k, v = drawn(torch, case, "bshd", 128)
        assert near(compiled(q, k, v), wanted(torch, q, k, v, causal=False)), case
