"""Plans on a GPU: right for drawn points, on several streams, as a PyTorch operator, captured."""

from __future__ import annotations

import pytest

from tests.test_plans import OPERATIONS, SPLIT, schedule
from tests.test_rmsnorm_matmul import OPERATIONS as NORMED
from tests.test_rmsnorm_matmul import plan as normed
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.run.validation import validate
from tinygpu.term.operation import Problem

pytestmark = pytest.mark.gpu
TMA = {"epilogue": "tma", "store_n": 32, "store_stages": 2, "early": 1}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("parts", [2, 3, 16])
@pytest.mark.parametrize("changes", [{}, TMA])
def test_points_are_right(name: str, parts: int, changes: dict[str, object]) -> None:
    operation = OPERATIONS[name]
    problem = Problem.of(operation, m=200, n=328, k=384 * 16)
    kernel = Kernel(schedule(parts, **changes).term(SPLIT, operation), sizes=problem.sizes)
    assert validate(kernel, problem, 0) <= 1


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("point", ["ring", "cluster", "pingpong"])
def test_a_norm_and_a_product_are_right(name: str, point: str) -> None:
    changes = {"store_n": 32} if name == "f16 to f32" and point != "ring" else {}
    for seed, sizes in enumerate(({"m": 1, "n": 264, "k": 4096}, {"m": 300, "n": 520, "k": 1160})):
        problem = Problem.of(NORMED[name], **sizes)
        kernel = Kernel(normed(name, point, **changes), sizes=problem.sizes)
        assert validate(kernel, problem, seed) <= 1


def test_streams_have_memory_of_their_own_and_a_graph_may_hold_it() -> None:
    """Calls on two streams at once, and a graph of the caller's, give what one alone gives."""
    torch = pytest.importorskip("torch")
    kernel = Kernel(schedule(8, **TMA).term(SPLIT, OPERATIONS["nt"]))
    torch.manual_seed(0)
    pairs = [[torch.randn((256, 16384), device="cuda").bfloat16() for _ in "ab"] for _ in range(2)]
    alone = [kernel(*pair) for pair in pairs]
    for one, (a, b) in zip(alone, pairs, strict=True):
        assert (one.float() - (a.float() @ b.float().T)).abs().max() < 8
    streams = [torch.cuda.Stream() for _ in pairs]
    for _ in range(50):
        torch.cuda.synchronize()
        found = []
        for stream, pair in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                found.append(kernel(*pair))
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, alone))
    out, graph = torch.empty_like(alone[0]), torch.cuda.CUDAGraph()
    with torch.cuda.stream(streams[0]):
        kernel(*pairs[0], out=out)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=streams[0]):
        kernel(*pairs[0], out=out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, alone[0])


def test_it_is_an_operator() -> None:
    torch = pytest.importorskip("torch")
    op = Kernel(schedule(4).term(SPLIT, OPERATIONS["nt"])).torch_op("plans::product")
    a, b = (torch.randn((128, 4096), device="cuda").bfloat16() for _ in "ab")
    assert (op(a, b).float() - (a.float() @ b.float().T)).abs().max() < 4
