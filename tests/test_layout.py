from __future__ import annotations

from collections.abc import Iterator
from itertools import product as cartesian

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.strategies import (
    compact_layouts,
    composable,
    layouts,
    nested,
    ordered_layouts,
    swizzles,
    tilings,
)
from tinygpu.term.layout import (
    IntTuple,
    Layout,
    LayoutError,
    Swizzle,
    coalesce,
    column_major,
    complement,
    compose,
    divide,
    inverse,
    is_injective,
    is_surjective_onto,
    join,
    left_inverse,
    product,
    row_major,
)


def values(layout: Layout) -> list[int]:
    """The offsets by the definition: every digit counted up, the leftmost fastest."""
    digits = [[c * d for c in range(s)] for s, d in layout.flat_modes]
    sums = [sum(terms) for terms in cartesian(*reversed(digits))]
    return sums if layout.swizzle is None else [swizzled(layout.swizzle, x) for x in sums]


def swizzled(swizzle: Swizzle, x: int) -> int:
    """A swizzle by the definition: bit by bit."""
    y = x
    for i in range(swizzle.base, swizzle.base + swizzle.bits):
        source, target = i + max(0, swizzle.shift), i - min(0, swizzle.shift)
        source, target = (source, i) if swizzle.shift >= 0 else (i, target)
        y ^= (x >> source & 1) << target
    return y


def natural(shape: IntTuple) -> Iterator[tuple[IntTuple, int]]:
    """Every fully nested coordinate of a shape with its flat index."""
    if not isinstance(shape, tuple):
        yield from ((i, i) for i in range(shape))
        return
    for index, coords in enumerate(cartesian(*(list(natural(s)) for s in reversed(shape)))):
        yield tuple(c for c, _ in reversed(coords)), index


@given(layouts(), st.none() | swizzles())
def test_a_layout_is_the_sum_of_its_digits(layout: Layout, swizzle: Swizzle | None) -> None:
    """layout(i) = swizzle(sum c_j d_j), for an int, an array and a nested coordinate alike."""
    layout = Layout(layout.shape, layout.stride, swizzle)
    expected = values(layout)
    assert layout.offsets().tolist() == expected
    assert [layout(i) for i in range(layout.size)] == expected
    assert [layout(c) for c, _ in natural(layout.shape)] == expected
    assert layout.cosize == max(expected) + 1


@given(layouts(), layouts(), st.integers(0), st.integers(0))
def test_join_adds(f: Layout, g: Layout, i: int, j: int) -> None:
    """join(f, g)((i, j)) = f(i) + g(j), and a mode is the layout where the others are 0."""
    joined = join(f, g)
    i, j = i % f.size, j % g.size
    assert joined((i, j)) == f(i) + g(j)
    assert joined[0](i) == joined((i, 0)) == f(i)
    assert joined[-1](j) == joined((0, j)) == g(j)
    rows, columns = np.arange(f.size)[:, None], np.arange(g.size)
    assert np.array_equal(joined((rows, columns)), np.add.outer(f.offsets(), g.offsets()))


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


@given(layouts(), swizzles(), st.sampled_from((1, 2, 4, 8)))
def test_bytes_are_elements_scaled(layout: Layout, swizzle: Swizzle, element_bytes: int) -> None:
    """layout.in_bytes(e)(i) = e layout(i), swizzled or not."""
    layout = Layout(layout.shape, layout.stride, swizzle)
    assert np.array_equal(
        layout.in_bytes(element_bytes).offsets(), element_bytes * layout.offsets()
    )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_major_orders(shape: list[int]) -> None:
    """row_major and column_major number the elements as NumPy's C and Fortran order do."""
    indices = np.indices(shape).reshape(len(shape), -1)
    by_row = np.ravel_multi_index(tuple(indices), tuple(shape), order="C")
    by_column = np.ravel_multi_index(tuple(indices), tuple(shape), order="F")
    assert np.array_equal(row_major(*shape)(tuple(indices)), by_row)
    assert np.array_equal(column_major(*shape)(tuple(indices)), by_column)


@given(layouts(), swizzles())
def test_coalesce_keeps_the_function(layout: Layout, swizzle: Swizzle) -> None:
    """coalesce(f)(i) = f(i), with no modes of extent 1 and none that could merge."""
    for f in (layout, Layout(layout.shape, layout.stride, swizzle)):
        g = coalesce(f)
        assert values(g) == values(f)
        assert len(g.flat_modes) <= len(f.flat_modes)
        assert coalesce(g) == g


@given(layouts(max_modes=3, max_size=12), layouts(max_modes=3, max_size=12))
def test_coalesce_is_a_normal_form(f: Layout, g: Layout) -> None:
    """f = g as functions if and only if coalesce(f) = coalesce(g)."""
    assert (values(f) == values(g)) == (coalesce(f) == coalesce(g))


def assert_composed(outer: Layout, inner: Layout, composed: Layout) -> None:
    table = values(outer)
    assert values(composed) == [table[i] for i in values(inner)]
    for c, _ in natural(inner.shape):
        assert composed(c) == table[inner(c)]


@given(layouts(), layouts(max_size=60), st.none() | swizzles())
def test_compose_is_composition_or_an_error(f: Layout, g: Layout, swizzle: Swizzle | None) -> None:
    """compose(f, g)(c) = f(g(c)) for all coordinates c of g, or LayoutError."""
    f = Layout(f.shape, f.stride, swizzle)
    try:
        composed = compose(f, g)
    except LayoutError:
        return
    assert_composed(f, g, composed)


@given(composable(), st.none() | swizzles())
def test_compose_takes_digits(pair: tuple[Layout, Layout], swizzle: Swizzle | None) -> None:
    """compose never refuses an inner layout whose leaves walk distinct digits of the outer one."""
    outer, inner = pair
    outer = Layout(outer.shape, outer.stride, swizzle)
    assert_composed(outer, inner, compose(outer, inner))


@given(compact_layouts(), compact_layouts(), st.data())
def test_compose_is_associative(f: Layout, g: Layout, data: st.DataObject) -> None:
    """(f g) h = f (g h) wherever both sides are layouts."""
    h = data.draw(composable())[1]
    try:
        left, right = compose(compose(f, g), h), compose(f, compose(g, h))
    except LayoutError:
        assume(False)
        return
    assert values(left) == values(right)


def test_compose_refuses_what_is_not_a_layout() -> None:
    """A carry between modes, a count that breaks one and an offset past the end are errors."""
    for outer, inner in (
        (Layout((2, 2), (1, 5)), Layout((2, 2), (1, 1))),
        (Layout((6, 2), (8, 2)), Layout(4, 2)),
        (Layout((4, 3), (1, 7)), Layout(6, 1)),
        (Layout(8, 1), Layout(9, 1)),
        (Layout(8, 1), Layout(2, 8)),
        (Layout(1, 0), Layout(2, 1)),
        (Layout(16, 1), Layout(16, 1, Swizzle(2, 0, 2))),
    ):
        with pytest.raises(LayoutError, match="compose"):
            compose(outer, inner)


@given(ordered_layouts(), st.integers(1, 300))
def test_complement_decomposes_uniquely(layout: Layout, size: int) -> None:
    """Every n < size is a + b in one way: a an offset of f, b one of its ordered complement."""
    rest = complement(layout, size)
    b = values(rest)
    assert b == sorted(set(b))
    assert coalesce(rest) == rest
    sums = [x + y for x in set(values(layout)) for y in b]
    assert len(set(sums)) == len(sums)
    assert set(range(size)) <= set(sums)


@given(layouts(), st.integers(1, 100))
def test_complement_is_one_or_an_error(layout: Layout, size: int) -> None:
    """complement never returns what is none: sums are distinct and cover [0, size)."""
    try:
        rest = complement(layout, size)
    except LayoutError:
        return
    sums = [x + y for x in set(values(layout)) for y in values(rest)]
    assert len(set(sums)) == len(sums)
    assert set(range(size)) <= set(sums)


@given(tilings(), st.none() | swizzles())
def test_divide_reorders(pair: tuple[Layout, Layout], swizzle: Swizzle | None) -> None:
    """divide(f, t)((i, j)) = f(t(i) + rest(j)), which visits every element of f once."""
    layout, tiler = pair
    layout = Layout(layout.shape, layout.stride, swizzle)
    divided, rest = divide(layout, tiler), complement(tiler, layout.size)
    table = values(layout)
    assert divided.rank == 2
    assert values(divided) == [table[t + r] for r in values(rest) for t in values(tiler)]
    assert sorted(values(divided)) == sorted(table)


@given(layouts(), layouts(max_size=30))
def test_divide_is_defined_or_an_error(layout: Layout, tiler: Layout) -> None:
    """divide(f, t)((i, j)) = f(t(i) + rest(j)) for any pair, or LayoutError."""
    try:
        divided = divide(layout, tiler)
    except LayoutError:
        return
    table, rest = values(layout), complement(tiler, layout.size)
    assert values(divided) == [table[t + r] for r in values(rest) for t in values(tiler)]


@given(ordered_layouts(max_modes=2), layouts(max_modes=2, max_size=12), st.none() | swizzles())
def test_product_repeats(block: Layout, tiler: Layout, swizzle: Swizzle | None) -> None:
    """product(b, t)((i, j)) = swizzle(b(i) + rest(t(j))), and distinct t(j) disjoint copies."""
    try:
        result = product(Layout(block.shape, block.stride, swizzle), tiler)
    except LayoutError:
        assume(False)
        return
    rest = values(complement(block, block.size * tiler.cosize))
    sums = [b + rest[t] for t in values(tiler) for b in values(block)]
    assert values(result) == [x if swizzle is None else swizzled(swizzle, x) for x in sums]
    assert len(set(sums)) == len(set(values(block))) * len(set(values(tiler)))


@given(compact_layouts(), compact_layouts())
def test_product_of_compact_layouts_is_compact(block: Layout, tiler: Layout) -> None:
    """A product of bijections onto [0, m) and [0, n) exists and is one onto [0, m n)."""
    result = product(block, tiler)
    assert sorted(values(result)) == list(range(block.size * tiler.size))


@given(layouts())
def test_inverse_is_a_right_inverse(layout: Layout) -> None:
    """f(inverse(f)(k)) = k for every k that inverse(f) takes."""
    right = inverse(layout)
    assert [layout(i) for i in values(right)] == list(range(right.size))


@given(compact_layouts())
def test_inverse_of_a_bijection(layout: Layout) -> None:
    """The inverse of a bijection is both: g(f(i)) = i and f(g(k)) = k for all i and k."""
    g = inverse(layout)
    assert g.size == layout.size
    assert [g(k) for k in values(layout)] == list(range(layout.size))
    assert [layout(i) for i in values(g)] == list(range(layout.size))
    assert coalesce(inverse(g)) == coalesce(layout)


@given(ordered_layouts())
def test_left_inverse_undoes(layout: Layout) -> None:
    """left_inverse(f)(f(i)) = i, or f is not injective and it raises LayoutError."""
    if len(set(values(layout))) < layout.size:
        with pytest.raises(LayoutError, match="not injective"):
            left_inverse(layout)
    else:
        g = left_inverse(layout)
        assert [g(k) for k in values(layout)] == list(range(layout.size))


@given(layouts(), swizzles(), st.integers(0, 200))
def test_predicates_enumerate(layout: Layout, swizzle: Swizzle, n: int) -> None:
    """is_injective and is_surjective_onto say what a count of the offsets says."""
    for f in (layout, Layout(layout.shape, layout.stride, swizzle)):
        offsets = values(f)
        assert is_injective(f) == (len(set(offsets)) == len(offsets))
        for m in (n, f.size, f.cosize, len(set(offsets))):
            assert is_surjective_onto(f, m) == (set(offsets) == set(range(m)))


@given(compact_layouts(), st.data())
def test_compact_layouts_are_bijections(layout: Layout, data: st.DataObject) -> None:
    """A permutation of the identity's digits, nested in any way, is a bijection onto [0, size)."""
    again = data.draw(nested(list(layout.flat_modes)))
    assert values(again) == values(layout)
    assert is_injective(again)
    assert is_surjective_onto(again, again.size)


CUTE = [
    (coalesce(Layout((2, (1, 6)), (1, (6, 2)))), "12:1"),
    (compose(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))), "((2,2),3):((24,2),8)"),
    (compose(Layout(20, 2), Layout((5, 4), (4, 1))), "(5,4):(8,2)"),
    (compose(Layout((10, 2), (16, 4)), Layout((5, 4), (1, 5))), "(5,(2,2)):(16,(80,4))"),
    (complement(Layout(4, 1), 24), "6:4"),
    (complement(Layout(6, 4), 24), "4:1"),
    (complement(Layout((4, 6), (1, 4)), 24), "1:0"),
    (complement(Layout(4, 2), 24), "(2,3):(1,8)"),
    (complement(Layout((2, 4), (1, 6)), 24), "3:2"),
    (complement(Layout((2, 2), (1, 6)), 24), "(3,2):(2,12)"),
    (divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2)), "((2,2),(2,3)):((4,1),(2,8))"),
    (product(Layout((2, 2), (4, 1)), Layout(6, 1)), "((2,2),(2,3)):((4,1),(2,8))"),
    (
        product(Layout((2, 2), (4, 1)), Layout((4, 2), (2, 1))),
        "((2,2),(4,2)):((4,1),(8,2))",
    ),
]


@pytest.mark.parametrize(("layout", "printed"), CUTE, ids=[printed for _, printed in CUTE])
def test_cute(layout: Layout, printed: str) -> None:
    """The examples of CuTe's 02_layout_algebra.md come out as it prints or defines them."""
    assert str(layout) == printed


def test_what_is_no_layout() -> None:
    """Shapes below 1, negative strides, different nestings and idle swizzles raise LayoutError."""
    for shape, stride in ((0, 1), (2, -1), ((2, 3), (1,)), ((2, 3), 1), (2, (1,))):
        with pytest.raises(LayoutError, match=r"needs? "):
            Layout(shape, stride)
    for fields in ((3, 0, 2), (-1, 0, 1), (1, -1, 1)):
        with pytest.raises(LayoutError, match="swizzle"):
            Swizzle(*fields)
    with pytest.raises(LayoutError, match="2\\^k"):
        Layout(8, 1, Swizzle(1, 0, 1)).in_bytes(3)


def test_what_is_no_coordinate() -> None:
    """A coordinate outside the layout, or of another structure, raises LayoutError."""
    layout = Layout((4, (2, 3)), (1, (4, 8)))
    for coord in (-1, 24, np.array([0, 24]), (4, 0), (0, 6), (0, (0, 3)), (0, 0, 0), ((0, 0), 0)):
        with pytest.raises(LayoutError, match="coordinate"):
            layout(coord)


def test_what_needs_no_swizzle() -> None:
    """join, complement and the inverses of a swizzled layout are no layouts: LayoutError."""
    layout = Layout(16, 1, Swizzle(2, 0, 2))
    for operation in (join, inverse, left_inverse, lambda f: complement(f, 16)):
        with pytest.raises(LayoutError, match="swizzled"):
            operation(layout)
