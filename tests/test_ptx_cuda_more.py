"""More kernels that nvcc made of CUDA C++ (tests/ptx/cuda_more.cu), in every order."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tinygpu.codegen.emulator import Memory, Module, Report, launch

Array = NDArray[Any]
TEXT = (Path(__file__).parent / "ptx" / "cuda_more.ptx").read_text(encoding="utf-8")
MODULE = Module.parse(TEXT)
BF16 = ml_dtypes.bfloat16

every_order = pytest.mark.parametrize("completion", ["late", "early", "random"])


def run(
    kernel: str, grid: Any, block: Any, *arguments: Any, module: Module = MODULE, **how: Any
) -> Report:
    """Launch with arrays where the kernel takes pointers."""
    memory = Memory()
    given = [memory.allocate(a) if isinstance(a, np.ndarray) else a for a in arguments]
    return launch(module, kernel, grid, block, given, memory, **how)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@every_order
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (50, 77), (1, 70)])
def test_transpose(rows: int, columns: int, completion: str) -> None:
    """A template with padded shared memory, over both edges."""
    x, y = normal(rows, columns), np.full((columns, rows), np.nan, np.float32)
    grid = (-(-columns // 32), -(-rows // 32))
    report = run("transpose", grid, (32, 8), x, y, rows, columns, completion=completion)
    assert report.findings == ()
    np.testing.assert_array_equal(y, x.T)


@every_order
def test_reduce(completion: str) -> None:
    """Dynamic shared memory, 64-bit places, an atomic sum in double precision."""
    x, y = normal(3000), np.zeros(1)
    report = run("reduce", 3, 256, x, y, 3000, completion=completion, smem_bytes=256 * 8)
    assert report.findings == ()
    np.testing.assert_allclose(y, [math.fsum(x)], rtol=1e-12)


def test_reduce_needs_its_memory() -> None:
    """A launch with too little dynamic shared memory is found out."""
    report = run("reduce", 1, 256, normal(300), np.zeros(1), 300, smem_bytes=128 * 8)
    assert "address" in report.kinds


@every_order
@pytest.mark.parametrize(("n", "block"), [(1000, 128), (64, 64), (5000, 1024)])
def test_scan(n: int, block: int, completion: str) -> None:
    """Prefix sums in one pass: blocks wait for flags that others write to global memory."""
    x = np.random.default_rng(1).integers(-99, 99, n).astype(np.int32)
    blocks = -(-n // block)
    y, state = np.zeros_like(x), np.zeros(2 * blocks, np.int32)
    report = run("scan", blocks, block, x, y, state, n, completion=completion)
    assert report.findings == ()
    np.testing.assert_array_equal(y, np.cumsum(x))


@every_order
@pytest.mark.parametrize(("name", "dtype"), [("wmma_half", np.float16), ("wmma_bfloat", BF16)])
def test_wmma(name: str, dtype: Any, completion: str) -> None:
    """Fragments of global memory, filled, changed element by element, and stored."""
    m, n, k = 64, 48, 80
    a, b = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1)
    c = np.full((m, n), np.nan, np.float32)
    report = run(name, (n // 16, m // 32), (32, 2), a, b, c, n, k, completion=completion)
    assert report.findings == ()
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    assert (np.abs(c - (2 * exact + 1)) <= 8 * 2.0**-24 * math.sqrt(k) * size + 1e-6).all()


@every_order
def test_wmma_shared(completion: str) -> None:
    """Another shape, padded rows in shared memory, halves as sums, columns stored."""
    a, b = normal(32, 16, dtype=np.float16), normal(16, 8, dtype=np.float16, seed=1)
    c = np.full((8, 32), np.nan, np.float16)
    assert run("wmma_shared", 1, 32, a, b, c, completion=completion).findings == ()
    exact = a.astype(np.float64) @ b.astype(np.float64) + 0.5
    np.testing.assert_allclose(c.T.astype(np.float64), exact, rtol=2e-3, atol=2e-3)


@every_order
@pytest.mark.parametrize(("m", "n", "k"), [(32, 32, 32), (37, 21, 50), (5, 40, 3)])
def test_pipeline(m: int, n: int, k: int, completion: str) -> None:
    """Copies by cp.async two steps ahead, zeros beyond the edges."""
    a, b, c = normal(m, k), normal(k, n, seed=1), np.full((m, n), np.nan, np.float32)
    grid = (-(-n // 16), -(-m // 16))
    report = run("pipeline", grid, (16, 16), a, b, c, m, n, k, completion=completion)
    assert report.findings == ()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(c - exact).max() <= 1e-5 * math.sqrt(k)


def test_pipeline_without_its_barrier() -> None:
    """Without its __syncthreads the same kernel reads what others still copy."""
    start = TEXT.index(".entry pipeline")
    end = TEXT.index(".entry", start + 1)
    inside = TEXT[start:end].replace("bar.sync \t0;", "")
    assert inside != TEXT[start:end]
    module = Module.parse(TEXT[:start] + inside + TEXT[end:])
    a, b, c = normal(32, 32), normal(32, 32), np.zeros((32, 32), np.float32)
    report = run("pipeline", (2, 2), (16, 16), a, b, c, 32, 32, 32, module=module)
    assert "race" in report.kinds


@every_order
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_barriers(steps: int, completion: str) -> None:
    """cuda::barrier: waits by the state that an arrival returns, a producer and a ring of two."""
    x, y = normal(steps, 96), np.full(96, np.nan, np.float32)
    assert run("barriers", 1, 128, x, y, steps, completion=completion).findings == ()
    np.testing.assert_allclose(y, x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)


def test_barriers_that_expect_too_many() -> None:
    """A barrier that is made for more than arrive: everybody waits, and it says for what."""
    start = TEXT.index(".entry barriers")
    wrong = TEXT[:start] + TEXT[start:].replace("%r33, 128;", "%r33, 129;", 1)
    x, y = normal(2, 96), np.zeros(96, np.float32)
    report = run("barriers", 1, 128, x, y, 2, module=Module.parse(wrong))
    assert "deadlock" in report.kinds
    assert "of 129 arrivals" in report.findings[-1].message


@every_order
def test_bulk(completion: str) -> None:
    """Bulk copies: onto a cuda::barrier by bytes, back in a group."""
    x, y = normal(3, 512), np.full((3, 512), np.nan, np.float32)
    assert run("bulk", 3, 64, x, y, 4, completion=completion).findings == ()
    np.testing.assert_allclose(y, x.astype(np.float64) ** 2 + 4, rtol=1e-6)


@every_order
def test_cluster(completion: str) -> None:
    """Atomic operations on the shared memory of the cluster's other blocks."""
    x = np.random.default_rng(2).normal(128, 30, 4000).astype(np.uint8)
    counts = np.zeros(256, np.int32)
    report = run("cluster", 8, 96, x, counts, len(x), completion=completion)
    assert report.findings == ()
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=256))


def test_cluster_without_its_barriers() -> None:
    """Without cluster barriers blocks race for the bins, and end while others still add to them."""
    start = TEXT.index(".entry cluster")
    end = TEXT.index(".entry", start + 1)
    bare = re.sub(r"barrier\.cluster\.\w+\S*;", "", TEXT[start:end])
    module = Module.parse(TEXT[:start] + bare + TEXT[end:])
    x = np.random.default_rng(2).normal(128, 30, 4000).astype(np.uint8)
    report = run("cluster", 8, 96, x, np.zeros(256, np.int32), len(x), module=module)
    assert report.kinds >= {"race", "exit"}


@every_order
def test_stencil(completion: str) -> None:
    """Seven points in double precision, 64-bit places in three dimensions."""
    nz, ny, nx, c = 5, 13, 37, 0.1
    x, y = normal(nz, ny, nx, dtype=np.float64), np.zeros((nz, ny, nx))
    grid = (-(-nx // 16), -(-ny // 4))
    report = run("stencil", grid, (16, 4), x, y, nx, ny, nz, c, completion=completion)
    assert report.findings == ()
    mid = x[1:-1, 1:-1, 1:-1]
    around = (
        x[1:-1, 1:-1, :-2] + x[1:-1, 1:-1, 2:] + x[1:-1, :-2, 1:-1] + x[1:-1, 2:, 1:-1]
        + x[:-2, 1:-1, 1:-1] + x[2:, 1:-1, 1:-1]
    )  # fmt: skip
    expected = np.zeros_like(x)
    expected[1:-1, 1:-1, 1:-1] = c * (around - 6 * mid) + mid
    np.testing.assert_allclose(y, expected, rtol=1e-13, atol=1e-14)


@every_order
def test_pairs(completion: str) -> None:
    """Two halves or bf16 a register, each rounded once; functions of CUDA's mathematics."""
    n = 200
    x, b = normal(n, 2, dtype=np.float16), normal(n, 2, dtype=BF16, seed=1)
    y, z = np.full((3, n, 2), np.nan, np.float16), np.full((2, n, 2), np.nan, BF16)
    w = np.full(n, np.nan, np.float32)
    assert run("pairs", 2, 128, x, b, y, z, w, n, completion=completion).findings == ()
    h, g = x.astype(np.float64), b.astype(np.float64)
    half, brain = np.float16, BF16
    np.testing.assert_array_equal(
        y[0], np.maximum((h * h + 1).astype(half), (1 - np.abs(h)).astype(half))
    )
    inner = ((h * h).astype(half).astype(np.float64) + 1).astype(half).astype(np.float64)
    np.testing.assert_allclose(y[1].astype(np.float64), 1 / np.sqrt(inner), rtol=2e-3)
    np.testing.assert_array_equal(y[2], np.minimum(-x, (h > 1).astype(half)))
    twice = (g + g).astype(brain).astype(np.float64)
    np.testing.assert_array_equal(z[0], np.maximum((g * g - twice).astype(brain), 0))
    scale = np.stack([np.arange(n).astype(brain).astype(np.float64), np.full(n, -0.5)], 1)
    np.testing.assert_array_equal(z[1], (g * scale).astype(brain))
    for i, ((f0, f1), (e0, e1)) in enumerate(zip(h.tolist(), g.tolist(), strict=True)):
        expected = (
            math.tanh(f0) + math.erf(f1) + math.log1p(abs(e0)) * math.sin(e1)
            + abs(f0) ** e0 + float(np.cbrt(f1)) + math.fmod(e0, 0.75)
        )  # fmt: skip
        assert abs(w[i] - expected) <= 2e-6 * (4 + abs(expected)), i


@every_order
def test_sort(completion: str) -> None:
    """A bitonic network in shared memory; ballots, a match of all lanes, packed survivors."""
    x = normal(256)
    y, packed, count = (
        np.zeros(256, np.float32),
        np.full(256, np.nan, np.float32),
        np.zeros(1, "i4"),
    )
    assert run("sort", 1, 256, x, y, packed, count, completion=completion).findings == ()
    np.testing.assert_array_equal(y, np.sort(x))
    assert count[0] == (x > 0).sum()
    np.testing.assert_array_equal(packed[: count[0]], x[x > 0])
    assert np.isnan(packed[count[0] :]).all()


@every_order
@pytest.mark.parametrize("columns", [8, 100, 384])
def test_layernorm(columns: int, completion: str) -> None:
    """Vectors of four; lanes without a number still take part in the shuffles."""
    x, gain = normal(3, columns), normal(columns, seed=1)
    y = np.full_like(x, np.nan)
    report = run("layernorm", 3, 32, x, y, gain, columns, 1e-5, completion=completion)
    assert report.findings == ()
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, expected * gain, rtol=2e-5, atol=2e-5)
