"""Generators of layouts, those that an operation must accept and those that it may refuse."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tinygpu.term.layout import IntTuple, Layout, Swizzle, coalesce

__all__ = [
    "bit_layouts",
    "compact_layouts",
    "composable",
    "layouts",
    "nested",
    "ordered_layouts",
    "swizzles",
    "tilings",
]

EXTENTS = (1, 2, 3, 4, 5, 6, 8)
STRIDES = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 40)


@st.composite
def nested(draw: DrawFn, modes: list[tuple[int, int]]) -> Layout:
    """The layout of these leaves under any nesting."""
    shape: list[IntTuple] = [s for s, _ in modes]
    stride: list[IntTuple] = [d for _, d in modes]
    for _ in range(draw(st.integers(0, 2))):
        i = draw(st.integers(0, len(shape)))
        j = draw(st.integers(i, len(shape)))
        if i < j:
            shape[i:j], stride[i:j] = [tuple(shape[i:j])], [tuple(stride[i:j])]
    if len(shape) == 1 and draw(st.booleans()):
        return Layout(shape[0], stride[0])
    return Layout(tuple(shape), tuple(stride))


@st.composite
def layouts(draw: DrawFn, *, max_modes: int = 4, max_size: int = 200) -> Layout:
    """Any layout: overlaps, broadcasts and gaps included."""
    mode = st.tuples(st.sampled_from(EXTENTS), st.sampled_from(STRIDES))
    modes = draw(st.lists(mode, min_size=1, max_size=max_modes))
    while prod(s for s, _ in modes) > max_size:
        modes.pop()
    return draw(nested(modes))


@st.composite
def ordered_layouts(draw: DrawFn, *, max_modes: int = 3) -> Layout:
    """A layout with a complement: sorted, each stride is a multiple of the extent below it."""
    modes, extent = [], 1
    for _ in range(draw(st.integers(1, max_modes))):
        shape, gap = draw(st.sampled_from(EXTENTS[:5])), draw(st.sampled_from((1, 1, 2, 3)))
        modes.append((shape, gap * extent))
        extent *= gap * shape
    modes += [(2, 0)] * draw(st.integers(0, 1))
    return draw(nested(draw(st.permutations(modes))))


@st.composite
def compact_layouts(draw: DrawFn, *, max_modes: int = 4) -> Layout:
    """A bijection onto [0, size): a permutation of the digits of the identity."""
    modes, extent = [], 1
    for shape in draw(st.lists(st.sampled_from(EXTENTS[:5]), min_size=1, max_size=max_modes)):
        modes.append((shape, extent))
        extent *= shape
    return draw(nested(draw(st.permutations(modes))))


def _refined(draw: DrawFn, layout: Layout) -> list[tuple[int, int]]:
    """The digits of a layout's index, split further: modes (extent, index stride)."""
    digits, index = [], 1
    for s, _ in coalesce(layout).flat_modes:
        step = draw(st.sampled_from([f for f in range(1, s + 1) if s % f == 0]))
        digits += [(step, index), (s // step, index * step)]
        index *= s
    return digits


@st.composite
def composable(draw: DrawFn) -> tuple[Layout, Layout]:
    """(outer, inner) that compose: inner takes digits of outer's index, or the start of one."""
    outer = draw(layouts())
    digits = draw(st.permutations(_refined(draw, outer)))
    taken = [(draw(st.integers(1, s)), d) for s, d in digits[: draw(st.integers(1, 4))]]
    taken = [mode if draw(st.booleans()) else (mode[0], 0) for mode in taken]
    return outer, draw(nested(taken or [(1, 0)]))


@st.composite
def tilings(draw: DrawFn) -> tuple[Layout, Layout]:
    """(layout, tiler) that divide: the tiler takes whole digits of the layout's index."""
    layout = draw(layouts())
    digits = draw(st.permutations(_refined(draw, layout)))
    return layout, draw(nested(digits[: draw(st.integers(1, len(digits)))] or [(1, 0)]))


@st.composite
def swizzles(draw: DrawFn) -> Swizzle:
    """Any swizzle of offsets below 2^12 or so."""
    bits = draw(st.integers(0, 4))
    shift = draw(st.integers(bits, bits + 3)) * draw(st.sampled_from((-1, 1)))
    return Swizzle(bits, draw(st.integers(0, 4)), shift)


@st.composite
def bit_layouts(
    draw: DrawFn, *, min_bits: int = 0, max_bits: int = 9, swizzled: bool = True
) -> Layout:
    """A layout whose index bits go to bits of their own, or to none."""
    bits = draw(st.integers(min_bits, max_bits))
    places = draw(st.permutations(range(12)))[:bits]
    # Mostly the identity or few exchanges of it, so that wide vectors and whole rows come up.
    if draw(st.booleans()):
        places = sorted(places)
    modes: list[tuple[int, int]] = []
    for place in places:
        extends = bool(modes) and modes[-1][1] * modes[-1][0] == 1 << place
        if extends and draw(st.booleans()):
            modes[-1] = (2 * modes[-1][0], modes[-1][1])
        else:
            modes.append((2, draw(st.sampled_from((1, 1, 1, 0))) << place))
    layout: Layout = draw(nested(modes or [(1, 0)]))
    swizzle: SearchStrategy[Swizzle | None] = swizzles() if swizzled else st.none()
    return Layout(layout.shape, layout.stride, draw(st.none() | swizzle))
