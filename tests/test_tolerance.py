"""When an output is right: ulps against NumPy's, and errors just inside and just outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.isa.memory import DTYPES
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.tolerance import error_ratio, roundoff, ulp
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul

FINITE = st.floats(-1e30, 1e30)


def ratio(got: float, want: float, **how: Any) -> float:
    how = {"depth": 1, "roundoff": 2.0**-24, "dtype": "f32", **how}
    scale = np.array([how.pop("scale", 0.0)])
    return float(error_ratio(np.array([got]), np.array([want]), scale, **how)[0])


@given(FINITE, st.sampled_from(("f64", "f32", "f16")))
def test_ulp_is_numpys_spacing_at_numbers_of_the_type(number: float, dtype: str) -> None:
    held = DTYPES[dtype].numpy.type(np.clip(number, -6e4, 6e4))
    expected = np.spacing(np.abs(held))
    assert ulp(np.array([held], np.float64), dtype)[0] == np.float64(expected)


@given(FINITE, st.sampled_from(tuple(DTYPES)))
def test_the_rounded_reference_is_right_in_every_type(number: float, dtype: str) -> None:
    with np.errstate(over="ignore"):
        if dtype == "e4m3":  # it has no infinity: what is beyond its numbers is none
            number = float(np.clip(number, -448, 448))
        rounded = DTYPES[dtype].round(np.array(number)).astype(np.float64)
    assert ratio(float(rounded), number, dtype=dtype, roundoff=DTYPES[dtype].roundoff) <= 0.5


@given(st.floats(1e-3, 1e3), st.integers(1, 10_000), st.floats(1e-2, 1e4))
def test_the_bound_is_4_u_sqrt_depth_scale_plus_an_ulp(
    want: float, depth: int, scale: float
) -> None:
    allowed = 4 * 2.0**-24 * depth**0.5 * scale + float(ulp(np.array([want]), "f32")[0])
    inside = ratio(want + 0.99 * allowed, want, depth=depth, scale=scale)
    outside = ratio(want - 1.01 * allowed, want, depth=depth, scale=scale)
    assert inside < 1 < outside


@pytest.mark.parametrize("got", [np.nan, np.inf, -np.inf])
def test_no_number_is_wrong_and_so_is_an_infinite_one(got: float) -> None:
    assert ratio(got, 1.0) == np.inf
    assert ratio(got, np.nan) == np.inf


def test_overflow_is_right_where_the_reference_overflows_with_its_sign() -> None:
    half: dict[str, Any] = {"dtype": "f16", "roundoff": DTYPES["f16"].roundoff}
    assert ratio(np.inf, 65520.0, **half) == 0  # the least number that rounds to infinity
    assert ratio(np.inf, 65519.0, **half) == np.inf
    assert ratio(-np.inf, 65520.0, **half) == np.inf
    assert ratio(-np.inf, -1e9, **half) == 0


def test_a_long_sum_in_fp32_is_right_and_one_in_fp16_is_not() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 64, 1024))
    for held in (np.float32, np.float16):
        a, b = a.astype(held).astype(np.float64), b.astype(held).astype(np.float64)
        want, scale = (a * b).sum(axis=1), np.abs(a * b).sum(axis=1)
        got = np.zeros(64, held)
        for i in range(1024):
            got = (got + a[:, i] * b[:, i]).astype(held)
        worst = error_ratio(got, want, scale, depth=1024, roundoff=2.0**-24, dtype="f32").max()
        assert (worst <= 1) == (held is np.float32)


@pytest.mark.parametrize(
    ("accumulator", "combine", "dtype", "expected"),
    [
        ("f32", "st", "f32", "f32"),
        ("f64", "st", "f32", "f64"),
        ("f32+f64", "st", "f32", "f32"),
        ("f32", "st", "bf16", "f32"),
        ("f64", "red", "f32", "f32"),
        ("f32", "red", "bf16", "f32"),
    ],
)
def test_roundoff_is_that_of_the_narrowest_arithmetic(
    accumulator: str, combine: str, dtype: str, expected: str
) -> None:
    """Products, sums and red count, but never for more than fp32; conversions do not."""
    split = 2 if combine == "red" else 1
    point = {**LADDER["tuned"], "split_k": split, "combine": combine, "accumulator": accumulator}
    program = Simt().program(matmul(dtype), Chosen(point))
    assert roundoff(program) == DTYPES[expected].roundoff
