"""What only a Hopper GPU can tell: that every named point and many decisions are right on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from benchmarks.host_overhead import Run, captured
from tests.hopper_terms import LAYOUTS, broken
from tinygpu.codegen.run.launch import Kernel, gpu
from tinygpu.codegen.run.measure import validate
from tinygpu.errors import LaunchError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Program

Changes = Mapping[str, Value]
on_gpu = pytest.mark.gpu
SHAPES = ((256, 512, 256), (8, 8, 8), (200, 136, 72), (1032, 776, 200))  # contiguous ones by 8
ODD = ((1, 256, 64), (77, 264, 136), (301, 520, 1000))  # odd m: no layout with m contiguous
AS_IT_IS: Changes = MappingProxyType({})
DIRECT: Changes = {"epilogue": "direct", "store_stages": 1}
DECISIONS: tuple[tuple[str, Changes], ...] = (
    ("ring", {"in_flight": 0}),
    ("ring", {"in_flight": 2}),
    ("ring", {"tile_k": 128, "stages": 3}),
    ("ring", {"ctas_per_sm": 2, "tile_n": 64, "store_n": 64}),
    ("ring", {"tile_m": 64, "tile_n": 256, "store_n": 256, "stages": 3}),
    ("ring", {"early": 1}),
    ("plain", {"persistent": 1, "ctas_per_sm": 2}),
    ("two consumers", {"swap": 1, "tile_n": 128, "store_n": 128}),
    ("two consumers", {"tile_m": 256, "tile_n": 128, "store_n": 128}),
    ("two consumers", {"consumers": 3, "tile_m": 192, "tile_n": 128, "store_n": 128}),
    ("tma store", {"store_n": 8, "tile_n": 192}),
    ("tma store", {"store_n": 16, "store_stages": 4, "tile_n": 128}),
    ("tma store", {"store_n": 32, "store_stages": 1}),
    ("tma store", {"swap": 1, "store_n": 8, "tile_n": 128}),
    ("tma store", {"swap": 1, "store_n": 64}),
    ("tma store", {"consumers": 1, "tile_m": 64, "in_flight": 2}),
    ("persistent", {"in_flight": 0, "raster": 1}),
    ("persistent", {"in_flight": 2, "raster": 32}),
    ("persistent", {"swap": 1, "tile_n": 128}),
    ("persistent", {"tile_k": 128, "tile_n": 128, "stages": 3}),
    ("persistent", {**DIRECT, "store_n": 256}),
    ("cluster", {"cluster_m": 1, "cluster_n": 2}),
    ("cluster", {"cluster_n": 2}),
    ("cluster", {"cluster_m": 4}),
    ("cluster", {"cluster_m": 4, "in_flight": 2, "tile_n": 256, "stages": 3}),
    ("cluster", {"persistent": 0, "raster": 1}),
    ("cluster", {"swap": 1, "cluster_n": 2, "tile_n": 128}),
    ("cluster", {"tile_k": 128, "tile_n": 128, "stages": 3, "in_flight": 0}),
    ("cluster", {"consumers": 1, "tile_m": 64, "tile_n": 128}),
    ("cluster", {**DIRECT, "store_n": 256, "early": 1}),
    ("pingpong", {"in_flight": 0}),
    ("pingpong", {"in_flight": 2, "store_n": 32}),
    ("pingpong", {"tile_m": 128, "tile_n": 128}),
    ("pingpong", {"swap": 1, "tile_n": 128}),
    ("pingpong", {"cluster_m": 2, "cluster_n": 2}),
    ("pingpong", {"cluster_m": 2, "early": 1}),
    ("swapped", {"tile_n": 8, "store_n": 8}),
    ("swapped", {"cluster_m": 2, "persistent": 1}),
    ("swapped", {"consumers": 2, "tile_m": 128, "in_flight": 2}),
    ("shared k", {"cluster_k": 4, "store_n": 16}),
    ("shared k", {"cluster_k": 4, "store_n": 16, "in_flight": 0, "tile_k": 128, "stages": 2}),
    ("shared k", {"cluster_k": 4, "tile_n": 32, "store_n": 8, "swap": 1, "early": 1}),
    ("shared k", {"cluster_k": 8, "tile_n": 256, "store_n": 32, "stages": 3}),
    ("shared k", {"cluster_k": 8, "store_n": 8, "swap": 1}),
    ("shared k", {"cluster_k": 8, "cluster_m": 2, "tile_n": 128, "store_n": 16}),
    ("shared k", {"cluster_k": 4, "cluster_m": 2, "cluster_n": 2, "store_n": 16}),
    ("shared k", {"cluster_n": 4, "tile_m": 256, "consumers": 2}),
    ("shared k", {"cluster_m": 2, "tile_n": 128, "store_n": 64, "in_flight": 2}),
    ("shared k", {"cluster_m": 2, "cluster_k": 4, "swap": 1, "tile_n": 128, "store_n": 32}),
    ("shared k", {"consumers": 2, "tile_m": 128, "epilogue": "tma", "store_stages": 2,
                  "store_n": 16}),
    ("shared k", {"consumers": 3, "tile_m": 192, "epilogue": "tma", "store_n": 32, "swap": 1}),
    ("shared k", {"ctas_per_sm": 2, "cluster_k": 4, "store_n": 16, "raster": 4}),
)  # fmt: skip


def point(start: str, changes: Changes = AS_IT_IS) -> Chosen:
    return Chosen({**STARTS[start], **changes})


def holds(operation: Operation, chosen: Chosen) -> bool:
    return all(r.holds for r in Hopper().requires(operation, chosen))


def program_of(operation: Operation, start: str, changes: Changes = AS_IT_IS) -> Program:
    return Hopper().program(operation, point(start, changes))


def right(operation: Operation, program: Program, *shapes: tuple[int, int, int]) -> None:
    kernel = Kernel(program)
    for number, (m, n, k) in enumerate(shapes):
        problem = Problem.of(operation, m=m, n=n, k=k)
        assert validate(kernel, problem, seed=number) <= 1, (m, n, k)


def same(got: Any, a: Any, b: Any) -> bool:
    """Whether c is a times b, within what 16-bit outputs and fp32 sums allow (all float64)."""
    wanted, scale = a @ b, abs(a) @ abs(b)
    bound = 4 * 2.0**-24 * math.sqrt(a.shape[1]) * scale + 2.0**-7 * abs(wanted)
    return bool((abs(got - wanted) <= bound).all())


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def hopper(request: pytest.FixtureRequest) -> None:
    """wgmma is of compute capability 9.0 alone."""
    if request.node.get_closest_marker("gpu") and gpu().cuda.Device().compute_capability != "90":
        pytest.skip("this GPU is no Hopper")


@pytest.mark.parametrize(("start", "changes"), DECISIONS, ids=str)
def test_the_decisions_are_legal(start: str, changes: Changes) -> None:
    """What the tests below run keeps the requirements and the laws that have arithmetic."""
    operation = matmul("bf16", layout="nt")
    requirements = Hopper().requires(operation, point(start, changes))
    assert [r.name for r in requirements if not r.holds] == []
    assert broken(program_of(operation, start, changes)) == {}


POINTS = [
    (start, layout)
    for start in STARTS
    for layout in LAYOUTS
    if holds(matmul("bf16", layout=layout), point(start))
]


def test_only_swapped_points_lack_a_layout() -> None:
    """A narrow turned tile takes no a that is contiguous along m; every other point takes all."""
    left_out = {(s, x) for s in STARTS for x in LAYOUTS} - set(POINTS)
    assert left_out == {("swapped", "tn"), ("swapped", "tt")}


@on_gpu
@pytest.mark.parametrize(("start", "layout"), POINTS)
def test_named_points(start: str, layout: str) -> None:
    """Every named point is right in every layout that it takes, on whole and ragged shapes."""
    operation = matmul("bf16", layout=layout)
    shapes = (*SHAPES, *(ODD if layout[0] == "n" else ()))
    right(operation, program_of(operation, start), *shapes)


@on_gpu
@pytest.mark.parametrize(("start", "changes"), DECISIONS, ids=str)
def test_decisions(start: str, changes: Changes) -> None:
    """Decisions that no named point takes are right too, in each layout that they take."""
    for layout in LAYOUTS:
        operation = matmul("bf16", layout=layout)
        if holds(operation, point(start, changes)):
            shapes = SHAPES[1:] if layout != "nt" else (*SHAPES, *ODD)
            right(operation, program_of(operation, start, changes), *shapes)


@on_gpu
@pytest.mark.parametrize("start", ["plain", "swapped", "cluster", "pingpong", "shared k"])
@pytest.mark.parametrize(("dtype", "output"), [("f16", None), ("bf16", "f32"), ("f16", "f32")])
def test_types(start: str, dtype: str, output: str | None) -> None:
    """f16, and sums that are stored as they are, by rows, by columns and by TMA."""
    operation = matmul(dtype, output, "nt")
    narrow = {"store_n": 32} if output and STARTS[start]["epilogue"] == "tma" else {}
    right(operation, program_of(operation, start, narrow), *SHAPES, *ODD)


@on_gpu
@pytest.mark.parametrize("k", [1, 7, 63, 64, 65, 129])
@pytest.mark.parametrize("start", ["plain", "cluster", "pingpong", "shared k"])
def test_any_k(start: str, k: int) -> None:
    """k is contiguous in no input of the layout tn, so it is anything from 1."""
    operation = matmul("bf16", layout="tn")
    right(operation, program_of(operation, start, {"in_flight": 2, "stages": 3}), (136, 264, k))


@on_gpu
@pytest.mark.parametrize("start", ["persistent", "cluster", "pingpong"])
def test_many_tiles(start: str) -> None:
    """CTAs that stay take several tiles, and the last of them ragged."""
    operation = matmul("bf16", layout="nt")
    right(operation, program_of(operation, start), (5000, 4104, 136), (16384, 264, 64))


@on_gpu
@pytest.mark.parametrize("start", ["plain", "cluster", "early"])
def test_tensors(torch: Any, start: str) -> None:
    """Tensors give a tensor, on PyTorch's stream; parts of larger ones need no copy."""
    kernel = Kernel(program_of(matmul("bf16", layout="nt"), start))
    a = torch.randn(300, 512, device="cuda").bfloat16()
    b = torch.randn(520, 512, device="cuda").bfloat16()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        c = kernel(a, b)
    side.synchronize()
    assert type(c) is torch.Tensor
    assert (c.dtype, tuple(c.shape)) == (torch.bfloat16, (300, 520))
    assert same(c.double(), a.double(), b.double().T)
    x, y = a[3:200, 64:264], b[8:, 128:328]
    board = torch.full((200, 1024), 7.0, device="cuda", dtype=torch.bfloat16)
    out = board[1:198, 16:528]
    assert kernel(x, y, out=out) is out
    assert same(out.double(), x.double(), y.double().T)
    board[1:198, 16:528] = 7.0
    assert bool((board == 7.0).all())


@on_gpu
def test_arrays() -> None:
    """CuPy arrays of f16, and bf16 as its bits."""
    cupy = gpu()
    drawn = np.random.default_rng(0).standard_normal((2, 264, 264)).astype(np.float16)
    a, b = (cupy.asarray(x) for x in drawn)
    c = Kernel(program_of(matmul("f16", layout="nn"), "tma store"))(a, b)
    assert (type(c), c.dtype) == (cupy.ndarray, np.float16)
    assert same(c.astype(np.float64), a.astype(np.float64), b.astype(np.float64))
    one = cupy.full((64, 64), 0x3F80, np.uint16)
    c = Kernel(program_of(matmul("bf16", layout="nt"), "plain"))(one, one)
    assert c.dtype == np.uint16
    assert bool((c == 0x4280).all())  # 64


@on_gpu
def test_wrong_arguments() -> None:
    """They are refused before a launch, and the next call is right."""
    cupy, kernel = gpu(), Kernel(program_of(matmul("f16", layout="nt"), "plain"))
    a = cupy.ones((64, 68), np.float16)
    with pytest.raises(LaunchError, match="a moves 8 elements at once, but ld_a is 68"):
        kernel(a, a)
    assert bool((kernel(a[:, :64].copy(), a[:, :64].copy()) == 64).all())


def chain(torch: Any, kernel: Kernel, x: Any, weights: Any, between: Any, steps: int) -> Any:
    """x times each weight in turn, through two arrays."""
    for i in range(steps):
        x = kernel(x, weights[i % len(weights)], out=between[i % len(between)])
    return x


@on_gpu
@pytest.mark.parametrize("start", ["cluster", "pingpong", "plain", "shared k"])
@pytest.mark.parametrize("captured", [False, True], ids=["stream", "graph"])
def test_early_kernels_in_a_chain(torch: Any, start: str, *, captured: bool) -> None:
    """Each reads what the one before wrote, and overwrites what the one before that read."""
    operation, steps, size = matmul("bf16", layout="nt"), 24, 1024
    late, early = (Kernel(program_of(operation, start, {"early": e})) for e in (0, 1))
    scale = size**-0.5  # what a random matrix makes longer by
    weights = [(torch.randn(size, size, device="cuda") * scale).bfloat16() for _ in range(3)]
    first = torch.randn(size, size, device="cuda").bfloat16()
    wanted_at, between = ([torch.empty_like(first) for _ in range(2)] for _ in range(2))
    wanted = chain(torch, late, first, weights, wanted_at, steps).clone()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        chain(torch, early, first, weights, between, 2)  # loads the kernel
        stream.synchronize()
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                got = chain(torch, early, first, weights, between, steps)
        for _ in range(10):
            for array in between:
                array.fill_(math.nan)
            if captured:
                graph.replay()
            else:
                got = chain(torch, early, first, weights, between, steps)
            stream.synchronize()
            assert bool((got == wanted).all())
    assert bool(torch.isfinite(wanted).all())


@on_gpu
@pytest.mark.parametrize("start", STARTS)
def test_a_graph_replays(torch: Any, start: str) -> None:
    """A captured launch reads its inputs anew at each replay."""
    kernel = Kernel(program_of(matmul("bf16", layout="nt"), start))
    a = torch.empty(264, 136, device="cuda", dtype=torch.bfloat16)
    b = torch.empty(520, 136, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(264, 520, device="cuda", dtype=torch.bfloat16)
    launch = kernel.prepare(a, b, out=c)
    runs: tuple[Run, ...] = (lambda: kernel(a, b, out=c), launch)
    for run in (*(captured("PyTorch", run) for run in runs), *runs):
        for _ in range(3):
            a.normal_()
            b.normal_()
            c.fill_(math.nan)
            run()
            torch.cuda.synchronize()
            assert same(c.double(), a.double(), b.double().T)
