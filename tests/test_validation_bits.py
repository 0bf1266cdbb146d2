"""Validation keeps types that a GPU library may not have by their bits, and reads them exactly."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.codegen.validation import _narrow, _widen


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_fp32_and_bf16_are_read_by_their_bits(numbers: list[int]) -> None:
    """Subnormal numbers, infinities and NaN are what NumPy reads."""
    bits = np.array(numbers, np.uint32)
    single = bits.view(np.float32)
    assert np.array_equal(_widen(single, "f32"), single.astype(np.float64), equal_nan=True)
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
