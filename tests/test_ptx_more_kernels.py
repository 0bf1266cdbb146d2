"""Whole kernels on other tensor cores, run from their PTX: ampere, blackwell, some by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ptx_runs import run_matmul, term_of
from tests.sample import all_by_turns, by_turns, draws
from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch
from tinygpu.machines import ampere, blackwell

COMPLETIONS = ("late", "early", "random")
OTHERS = [
    *(("ampere", n, p) for n, p in ampere.STARTS.items() if n != "parts of k"),
    *(("blackwell", n, p) for n, p in blackwell.STARTS.items()),
]


@pytest.mark.parametrize(
    ("machine", "point", "completion"),
    [pytest.param(m, p, c, id=f"{m} {n} {c}") for (m, n, p), c in by_turns(OTHERS, COMPLETIONS)],
)
def test_ampere_and_blackwell(machine: str, point: dict[str, Any], completion: str) -> None:
    """mma.sync behind cp.async, tcgen05 behind TMA; over the edges where the code guards them."""
    program = term_of(machine, point, "bf16", "nt")
    whole = {"m": 256, "n": 256, "k": 256}
    exact = point.get("edges", "guard") == "exact"
    sizes = whole if exact else {"m": 264, "n": draws(168, 328), "k": 168}
    outcome = run_matmul(program, sizes, arch="sm_100a", clusters=1, completion=completion)
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


@all_by_turns(
    ("completion", COMPLETIONS),
    ("name", HANDMADE),
)
def test_by_hand(name: str, completion: str) -> None:
    """mma.sync, wgmma in a cluster, tcgen05 of one CTA and of a pair; most ran on silicon."""
    report, right = handmade(name, completion=completion)
    assert right
    assert report.findings == ()
