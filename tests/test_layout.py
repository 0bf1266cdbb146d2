"""Layouts and swizzles: the sum of their digits, on ints as on arrays."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.term.layout import Layout, LayoutError, Swizzle

modes = st.tuples(st.sampled_from((1, 2, 3, 4, 5)), st.sampled_from((0, 1, 2, 3, 4, 5, 8, 12, 40)))


@st.composite
def swizzles(draw: st.DrawFn) -> Swizzle:
    """Any swizzle of offsets below 2^12 or so."""
    bits = draw(st.integers(0, 4))
    shift = draw(st.integers(bits, bits + 3)) * draw(st.sampled_from((-1, 1)))
    return Swizzle(bits, draw(st.integers(0, 4)), shift)


def swizzled(swizzle: Swizzle, x: int) -> int:
    """The definition: bit base + shift + i is added to bit base + i, or the other way round."""
    result = x
    for i in range(swizzle.bits):
        source = swizzle.base + max(0, swizzle.shift) + i
        if x >> source & 1:
            result ^= 1 << (source - swizzle.shift)
    return result


@given(st.lists(modes, min_size=1, max_size=4), st.none() | swizzles())
def test_a_layout_is_the_sum_of_its_digits(
    each: list[tuple[int, int]], swizzle: Swizzle | None
) -> None:
    """layout(i) = swizzle(sum c_j d_j), the leftmost digit fastest: by index, digits, arrays."""
    shape, stride = (tuple(one) for one in zip(*each, strict=True))
    layout, expected = Layout(shape, stride, swizzle), list[int]()
    for backwards in product(*map(range, reversed(shape))):
        digits = backwards[::-1]
        offset = sum(c * d for c, d in zip(digits, stride, strict=True))
        expected.append(swizzled(swizzle, offset) if swizzle else offset)
        assert layout(digits) == expected[-1]
    assert [layout(i) for i in range(layout.size)] == expected
    assert np.array_equal(layout(np.arange(layout.size)), expected)
    every = tuple(one.reshape(-1, order="F") for one in np.indices(shape))
    assert np.array_equal(layout(every), expected)


@given(swizzles(), st.integers(0, 1 << 14), st.integers(0, 1 << 14))
def test_a_swizzle_is_a_linear_involution(swizzle: Swizzle, x: int, y: int) -> None:
    """s(s(x)) = x and s(x ^ y) = s(x) ^ s(y), bit by bit as defined, on ints as on arrays."""
    assert swizzle(x) == swizzled(swizzle, x)
    assert swizzle(swizzle(x)) == x
    assert swizzle(x ^ y) == swizzle(x) ^ swizzle(y)
    assert swizzle(np.array([x, y])).tolist() == [swizzle(x), swizzle(y)]


def test_the_swizzles_of_tensor_maps() -> None:
    """Sw<3,4,3>, <2,4,3> and <1,4,3> are a ^ ((a >> 3) & 0x70), 0x30 and 0x10 (PTX ISA)."""
    a = np.arange(4096)
    for bits, mask in ((3, 0x70), (2, 0x30), (1, 0x10)):
        assert np.array_equal(Swizzle(bits, 4, 3)(a), a ^ ((a >> 3) & mask))


def test_it_is_written_as_cute_does() -> None:
    """Modes left to right, the swizzle behind."""
    assert str(Layout((4, 8), (8, 1))) == "(4,8):(8,1)"
    assert str(Layout((4, 8), (8, 1), Swizzle(2, 0, 3))) == "(4,8):(8,1) o Sw<2,0,3>"


def test_what_is_no_layout() -> None:
    """Shapes below 1, negative strides, strides without a shape and idle swizzles."""
    for shape, stride in (((0,), (1,)), ((2,), (-1,)), ((2, 3), (1,)), ((2,), (1, 2))):
        with pytest.raises(LayoutError, match=r"needs? "):
            Layout(shape, stride)
    for fields in ((3, 0, 2), (-1, 0, 1), (1, -1, 1)):
        with pytest.raises(LayoutError, match="swizzle"):
            Swizzle(*fields)


def test_what_is_no_coordinate() -> None:
    """A coordinate outside the layout, or of more or fewer parts."""
    layout = Layout((4, 6), (1, 4))
    for coord in (-1, 24, np.array([0, 24]), (4, 0), (0, 6), (0, -1), (0, 0, 0), (0,)):
        with pytest.raises(LayoutError, match="coordinate"):
            layout(coord)
