"""Whole kernels, run from their PTX: every named point of simt and hopper.

Legal kernels are right and without findings, at ragged sizes, whenever their asynchronous
operations complete.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from benchmarks.interpreter_speed import POINTS
from tests.ptx_runs import run_matmul, term_of
from tests.sample import all_by_turns, by_turns, draws
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


@all_by_turns(
    ("completion", COMPLETIONS),
    ("name", VARIANTS),
)
def test_variants(name: str, completion: str) -> None:
    """Asynchronous copies, other types of sums, other addresses."""
    point, dtype = VARIANTS[name]
    sizes = {"m": 30, "n": 52, "k": 44}
    program = term_of("simt", point, dtype)
    outcome = run_matmul(program, sizes, completion=completion, seed=3)
    assert outcome.right
    assert outcome.report.findings == ()


@pytest.mark.parametrize(("name", "completion"), by_turns(STARTS, COMPLETIONS))
def test_hopper(name: str, completion: str) -> None:
    """Boxes that reach over every edge, several tiles a CTA, every order of completion."""
    program = term_of("hopper", STARTS[name], "bf16", "nt")
    sizes = {"m": 72, "n": 40, "k": 328} if name == "swapped" else {"m": 200, "n": 264, "k": 328}
    outputs = []
    for seed in range(2 if completion == "random" else 1):
        outcome = run_matmul(program, sizes, clusters=1, completion=completion, seed=seed)
        assert outcome.right
        assert outcome.report.findings == ()
        outputs.append(outcome.output)
    np.testing.assert_array_equal(outputs[0], outputs[-1])


@pytest.mark.parametrize(("layout", "dtype"), by_turns(["nn", "tn", "tt", "nt"], ["bf16", "f16"]))
def test_layouts(layout: str, dtype: str) -> None:
    """Operands along either dimension: descriptors of both majors."""
    program = term_of("hopper", STARTS["cluster"], dtype, layout)
    outcome = run_matmul(program, {"m": 264, "n": 136, "k": 144})
    assert outcome.right
    assert outcome.report.findings == ()


@pytest.mark.parametrize("machine", ["simt", "hopper"])
def test_speed(machine: str) -> None:
    """A tile program of 256 cubed is a matter of a second or two."""
    point = LADDER["shared"] if machine == "simt" else STARTS["pingpong"]
    how = ("f32", "nn") if machine == "simt" else ("bf16", "nt")
    program = term_of(machine, point, *how)
    start = time.process_time()
    outcome = run_matmul(program, {"m": 256, "n": 256, "k": 256})
    assert outcome.right
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("machine", "dtype", "layout", "arch"),
    [
        ("simt", "f32", "nn", "sm_90a"),
        ("ampere", "bf16", "nt", "sm_80"),
        ("hopper", "bf16", "nt", "sm_90a"),
        ("blackwell", "bf16", "nt", "sm_100a"),
    ],
)
def test_threads_as_agents(machine: str, dtype: str, layout: str, arch: str) -> None:
    """A part of the named points is right, and not accused, where each lane is an agent."""
    points = POINTS[machine][0]
    for name in sorted(points)[:: draws(8, 4)]:
        if points[name].get("combine") == "red":
            continue
        program = term_of(machine, points[name], dtype, layout)
        outcome = run_matmul(
            program, {"m": 72, "n": 136, "k": 72}, arch=arch, clusters=1, lanes=True
        )
        assert outcome.report.findings == (), name
        assert outcome.right, name
