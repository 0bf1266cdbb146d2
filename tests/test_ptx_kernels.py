"""Whole kernels, run from their PTX: every named point of each machine, and kernels by hand.

Legal kernels are right and without findings, at ragged sizes, whenever their asynchronous
operations complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ptx_runs import run_matmul, term_of
from tinygpu.codegen.interpreter import Memory, Module, Report, TensorMap, launch
from tinygpu.machines.hopper import STARTS
from tinygpu.machines.simt import LADDER

COMPLETIONS = ("late", "early", "random")
SMALL: dict[str, Any] = {
    **LADDER["multi-stage"], "tile_m": 16, "tile_n": 16, "tile_k": 8, "thread_m": 2, "thread_n": 2,
    "lanes_m": 4, "vector_a": 2, "vector_b": 2, "vector_shared": 2, "vector_c": 2, "pad_a": 0,
    "k_step": 4,
}  # fmt: skip
PLAIN = {**SMALL, "pipeline": "none", "stages": 1}
ASYNC = {**SMALL, "pipeline": "cp.async", "stages": 3, "a_layout": "mk", "issue": 1}
RED = {**PLAIN, "split_k": 2, "combine": "red", "vector_c": 1}
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "cp.async": (ASYNC, "f32"),
    "cp.async, swizzled": ({**ASYNC, "tile_k": 16, "swizzle_a": 2}, "f32"),
    "cp.async of f16": (ASYNC, "f16"),
    "red": (RED, "f32"),
    "f64": ({**PLAIN, "accumulator": "f64"}, "f32"),
    "f32+f64": ({**SMALL, "accumulator": "f32+f64"}, "bf16"),
    "i64": ({**SMALL, "addressing": "i64"}, "f32"),
    "f16": ({**SMALL, "accumulator": "f64"}, "f16"),
}


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder(name: str) -> None:
    """Tiles that reach over every edge; nothing depends on the seed."""
    for m, n, k in ((100, 76, 52), (4, 132, 20)):
        outcome = run_matmul(term_of("simt", LADDER[name]), {"m": m, "n": n, "k": k})
        assert outcome.right
        assert outcome.report.findings == ()


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, completion: str) -> None:
    """Asynchronous copies, other types of sums, other addresses."""
    point, dtype = VARIANTS[name]
    sizes = {"m": 30, "n": 52, "k": 44}
    program = term_of("simt", point, dtype)
    outcome = run_matmul(program, sizes, completion=completion, seed=3)
    assert outcome.right
    assert outcome.report.findings == ()


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("name", STARTS)
def test_hopper(name: str, completion: str) -> None:
    """Boxes that reach over every edge, several tiles a CTA, every order of completion."""
    program = term_of("hopper", STARTS[name], "bf16", "nt")
    outputs = []
    for seed in range(2 if completion == "random" else 1):
        outcome = run_matmul(
            program, {"m": 200, "n": 264, "k": 328}, clusters=1, completion=completion, seed=seed
        )
        assert outcome.right
        assert outcome.report.findings == ()
        outputs.append(outcome.output)
    np.testing.assert_array_equal(outputs[0], outputs[-1])


@pytest.mark.parametrize("layout", ["nn", "tn", "tt", "nt"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_layouts(layout: str, dtype: str) -> None:
    """Operands along either dimension: descriptors of both majors."""
    program = term_of("hopper", STARTS["cluster"], dtype, layout)
    outcome = run_matmul(program, {"m": 264, "n": 136, "k": 144})
    assert outcome.right
    assert outcome.report.findings == ()


HANDMADE: dict[str, tuple[tuple[int, int, int], int, int]] = {
    "sm80_mma": ((128, 128, 160), 3 * 16384, 0),
    "sm90_cluster": ((256, 512, 448), 1023 + 229376 + 64, 64),
    "sm100_one": ((128, 128, 192), 1024 + 32768 + 64, 64),
    "sm100_pair": ((256, 256, 576), 1024 + 196608 + 256, 64),
}
"""Kernels by hand: sizes, bytes of shared memory, and a box's columns where TMA loads."""


def handmade(name: str, text: str = "", **how: Any) -> tuple[Report, bool]:
    """Run a kernel of tests/ptx, or another text of it; returns also whether it is right."""
    (m, n, k), smem_bytes, box = HANDMADE[name]
    text = text or (Path(__file__).parent / "ptx" / f"{name}.ptx").read_text(encoding="utf-8")
    rng, memory = np.random.default_rng(1), Memory()
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    wide = name != "sm90_cluster"
    c = np.full((m, n), np.nan, np.float32 if wide else ml_dtypes.bfloat16)
    places = [memory.allocate(x, label) for x, label in ((a, "a"), (b, "b"), (c, "c"))]
    maps = [
        TensorMap(at, "bf16", (x.shape[1], x.shape[0]), (2 * x.shape[1],), (64, rows), 3)
        for at, x, rows in zip(places, (a, b, c), (128, 128, 64), strict=True)
    ]
    grid: Any = (n // 128, m // 128)
    given: list[Any] = [*(maps[:2] if box else places[:2]), places[2], n, k]
    if name == "sm90_cluster":
        grid, given = 2, [*maps, m, n, k]
    elif name == "sm100_pair":
        grid = (2 * (m // 256), n // 256)
    module = Module.parse(text)
    [kernel] = module.parsed.kernels.values()
    block = kernel.directives["reqntid"]
    report = launch(module, kernel.name, grid, block, given, memory, smem_bytes=smem_bytes, **how)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    error = np.abs(c.astype(np.float64) - exact).max() / np.abs(exact).max()
    return report, bool(error < (1e-6 if wide else 1e-2))


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("name", HANDMADE)
def test_by_hand(name: str, completion: str) -> None:
    """mma.sync, wgmma in a cluster, tcgen05 of one CTA and of a pair; most ran on silicon."""
    report, right = handmade(name, completion=completion)
    assert right
    assert report.findings == ()


@pytest.mark.parametrize("machine", ["simt", "hopper"])
def test_speed(machine: str) -> None:
    """A tile program of 256 cubed is a matter of a second or two."""
    import time

    point = LADDER["shared"] if machine == "simt" else STARTS["pingpong"]
    how = ("f32", "nn") if machine == "simt" else ("bf16", "nt")
    program = term_of(machine, point, *how)
    start = time.process_time()
    outcome = run_matmul(program, {"m": 256, "n": 256, "k": 256})
    assert outcome.right
    assert time.process_time() - start < 10
