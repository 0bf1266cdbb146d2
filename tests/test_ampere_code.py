"""The PTX of the machine ampere, run by an interpreter of its own, gives the product."""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ptx_warps import run_cta
from tinygpu.codegen.emit import emit, integer_values
from tinygpu.machine import Chosen
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.operation import matmul
from tinygpu.program import Program

SMALL = {"tile_m": 64, "tile_n": 64}


def product(program: Program, text: str, sizes: dict[str, int]) -> tuple[Any, Any]:
    """Return what the PTX computes, and the product in float64; the output begins as 3 or 0."""
    random = np.random.default_rng(sum(sizes.values()))
    a, b, c = program.operation.operands
    dtypes = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
    given = [
        random.standard_normal([sizes[x] for x in o.axes]).astype(dtypes[o.dtype]) for o in (a, b)
    ]
    out = np.full((sizes["m"], sizes["n"]), 0 if program.zeroed else 3, dtypes[c.dtype])
    integers = list(integer_values(program, sizes).values())
    for cta in range(prod(program.grid_extents(sizes))):
        run_cta(text, cta, program.threads, [*given, out], integers)
    wide = [x.astype(np.float64) for x in given]
    left = wide[0] if a.axes == ("m", "k") else wide[0].T
    right = wide[1] if b.axes == ("k", "n") else wide[1].T
    return out.astype(np.float64), left @ right


def term(name: str, layout: str, **changes: Any) -> Program:
    """Return the term of a start on small tiles."""
    decisions = {**STARTS[name], **({} if name == "plain" else SMALL), **changes}
    output = "f32" if decisions["combine"] == "red" else "bf16"
    return Ampere().program(matmul("bf16", output, layout), Chosen(decisions))


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("name", [n for n in STARTS if n != "exact"])
def test_the_code_of_every_start_multiplies(name: str, layout: str) -> None:
    """Ragged sizes, all layouts: what is outside counts as 0 and is not stored."""
    program = term(name, layout, **({"warps_n": 2} if name in ("wide", "lines") else {}))
    got, want = product(program, emit(program, "sm_80"), {"m": 72, "n": 104, "k": 200})
    np.testing.assert_allclose(got, want, rtol=0.01, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "layout", "sizes"),
    [
        ({"tile_n": 128, "warps_n": 4, "tile_k": 128}, "nt", (64, 128, 384)),
        ({"tile_m": 128, "warps_m": 4, "tile_n": 32, "warps_n": 1}, "nn", (130, 40, 96)),
        ({"tile_m": 32, "warps_m": 1, "tile_n": 256, "warps_n": 4}, "tn", (32, 264, 40)),
        ({"tile_n": 32, "warps_n": 1, "epilogue": "smem", "vector_c": 4}, "nt", (70, 36, 8)),
        ({"vector_c": 1, "tile_k": 64, "issue": 1}, "nt", (17, 19, 72)),
        ({"stages": 5, "tile_k": 64, "issue": 2, "raster": 2}, "tt", (136, 200, 584)),
    ],
)
def test_other_schedules(changes: Any, layout: str, sizes: tuple[int, int, int]) -> None:
    """Tiles of other widths have other swizzles; the last stages may be empty; odd rows of c."""
    program = term("plain", layout, **changes)
    got, want = product(program, emit(program, "sm_80"), dict(zip("mnk", sizes, strict=True)))
    np.testing.assert_allclose(got, want, rtol=0.01, atol=0.1)
