"""Validation keeps types that a GPU library may not have by their bits, and reads them exactly."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tinygpu.codegen.run.validation import _narrow, _widen
from tinygpu.isa.memory import DTYPES


@example([0x7F800001])  # a signalling NaN: NumPy reads it, and says that it is invalid
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_fp32_and_bf16_are_read_by_their_bits(numbers: list[int]) -> None:
    """Subnormal numbers, infinities and NaN are what NumPy reads."""
    bits = np.array(numbers, np.uint32)
    single = bits.view(np.float32)
    with np.errstate(invalid="ignore"):
        wide = single.astype(np.float64)
    assert np.array_equal(_widen(single, "f32"), wide, equal_nan=True)
    half = (bits >> np.uint32(16)).astype(np.uint16)
    wide = half.view(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(_widen(half, "bf16"), wide, equal_nan=True)


@given(st.lists(st.floats(-448, 448, width=32), min_size=1, max_size=50))
def test_e4m3_is_rounded_to_nearest_even(numbers: list[float]) -> None:
    """The bits are those of ml_dtypes, and so is what is read back."""
    values = np.array(numbers, np.float32)
    wanted = values.astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(_narrow(values, "e4m3"), wanted.view(np.uint8))
    assert np.array_equal(_widen(wanted.view(np.uint8), "e4m3"), wanted.astype(np.float64))


@given(st.lists(st.floats(-(2.0**15), 2.0**15, width=32), min_size=1, max_size=50))
def test_e5m2_is_rounded_to_nearest_even(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    wanted = values.astype(ml_dtypes.float8_e5m2)
    assert np.array_equal(_narrow(values, "e5m2"), wanted.view(np.uint8))
    assert np.array_equal(_widen(wanted.view(np.uint8), "e5m2"), wanted.astype(np.float64))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_tf32_is_rounded_to_nearest_even(numbers: list[float]) -> None:
    """By the bits, and by arithmetic; the low 13 bits are 0, and rounding again changes none."""
    values = np.array(numbers, np.float32)
    with np.errstate(over="ignore"):
        wanted = DTYPES["tf32"].round(values)
    got = _narrow(values, "tf32")
    assert np.array_equal(got, wanted)
    assert not np.any(got.view(np.uint32) & np.uint32(0x1FFF))
    assert np.array_equal(DTYPES["tf32"].round(got), got)
    near = np.abs(values) < 2.0**126
    assert np.all(
        np.abs(got - values)[near] <= np.maximum(2.0**-11 * np.abs(values[near]), 2.0**-137)
    )
