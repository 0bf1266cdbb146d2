from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import gf2_layouts, layouts, swizzles
from tinygpu.term.access import bank_wavefronts, sectors, widest_vector
from tinygpu.term.gf2 import (
    Gf2Matrix,
    gf2_bank_wavefronts,
    gf2_sectors,
    gf2_widest_vector,
    kernel,
    rank,
    to_gf2,
)
from tinygpu.term.layout import (
    Layout,
    LayoutError,
    Swizzle,
    compose,
    is_injective,
    row_major,
)

MATRICES = st.lists(st.integers(0, 255), max_size=8).map(lambda c: Gf2Matrix(tuple(c)))
WIDTHS = st.sampled_from((1, 2, 4, 8, 16))


def is_linear(layout: Layout) -> bool:
    """Whether f(i ^ j) = f(i) ^ f(j), tried on all pairs."""
    f = layout.offsets().tolist()
    return all(f[i ^ j] == f[i] ^ f[j] for i in range(layout.size) for j in range(layout.size))


@given(gf2_layouts())
def test_the_matrix_is_the_layout(layout: Layout) -> None:
    """to_gf2(f)(i) = f(i) for every index i, swizzles included."""
    matrix = to_gf2(layout)
    assert [matrix(i) for i in range(layout.size)] == layout.offsets().tolist()


@given(layouts(max_size=64), st.none() | swizzles())
def test_a_layout_is_a_matrix_if_and_only_if_it_is_linear(
    layout: Layout, swizzle: Swizzle | None
) -> None:
    """With power-of-two shapes, to_gf2 refuses exactly the layouts that are not linear."""
    layout = Layout(layout.shape, layout.stride, swizzle)
    powers = all(s.bit_count() == 1 for s, _ in layout.flat_modes)
    if powers and is_linear(layout):
        matrix = to_gf2(layout)
        assert [matrix(i) for i in range(layout.size)] == layout.offsets().tolist()
    else:
        with pytest.raises(LayoutError, match="powers of two" if not powers else "not linear"):
            to_gf2(layout)


@given(MATRICES, MATRICES.filter(lambda m: len(m.columns) == 8), st.integers(0), st.integers(0))
def test_matrices_compose(inner: Gf2Matrix, outer: Gf2Matrix, i: int, j: int) -> None:
    """(A B)(i) = A(B(i)) and A(i ^ j) = A(i) ^ A(j)."""
    i, j = (k % (1 << len(inner.columns)) for k in (i, j))
    assert (outer @ inner)(i) == outer(inner(i))
    assert inner(i ^ j) == inner(i) ^ inner(j)


@given(gf2_layouts(max_bits=6, swizzled=False), st.none() | swizzles())
def test_composition_of_layouts_is_of_matrices(inner: Layout, swizzle: Swizzle | None) -> None:
    """to_gf2(compose(f, g)) = to_gf2(f) to_gf2(g)."""
    outer = Layout((64, 64), (64, 1), swizzle)
    assert to_gf2(compose(outer, inner)) == to_gf2(outer) @ to_gf2(inner)


@given(MATRICES)
def test_rank_and_kernel_enumerate(matrix: Gf2Matrix) -> None:
    """2^rank values are taken; the kernel's basis spans the indices that map to 0, once each."""
    indices = range(1 << len(matrix.columns))
    assert len({matrix(i) for i in indices}) == 1 << matrix.rank
    basis = kernel(matrix)
    span = Gf2Matrix(basis)
    assert len(basis) == rank(basis) == len(matrix.columns) - matrix.rank
    assert {span(k) for k in range(1 << len(basis))} == {i for i in indices if matrix(i) == 0}


@given(gf2_layouts(max_bits=8))
def test_full_rank_is_injective(layout: Layout) -> None:
    """A layout is injective if and only if its matrix has full column rank."""
    assert is_injective(layout) == (to_gf2(layout).rank == len(to_gf2(layout).columns))


@given(gf2_layouts(min_bits=5), WIDTHS)
def test_wavefronts_are_a_rank(layout: Layout, width: int) -> None:
    """gf2_bank_wavefronts is what bank_wavefronts counts, at every step of the access."""
    access = layout.in_bytes(width)
    counted = bank_wavefronts(access.offsets().reshape(-1, 32), width)
    assert set(counted.tolist()) == {gf2_bank_wavefronts(to_gf2(access), width)}


@given(gf2_layouts(min_bits=5), WIDTHS, st.sampled_from((32, 64, 128)))
def test_sectors_are_a_rank(layout: Layout, width: int, sector_bytes: int) -> None:
    """gf2_sectors is what sectors counts, at every step of the access."""
    access = layout.in_bytes(width)
    counted = sectors(access.offsets().reshape(-1, 32), width, sector_bytes=sector_bytes)
    rank_says = gf2_sectors(to_gf2(access), width, sector_bytes=sector_bytes)
    assert set(counted.tolist()) == {rank_says}


@given(
    gf2_layouts(max_bits=8), gf2_layouts(max_bits=4, swizzled=False), st.sampled_from((1, 2, 4, 8))
)
def test_the_widest_vector_is_a_submatrix(
    memory: Layout, values: Layout, element_bytes: int
) -> None:
    """gf2_widest_vector is what widest_vector finds, the value mode being the last one."""
    for layout in (memory, values):
        bits = layout[-1].size.bit_length() - 1
        widest = gf2_widest_vector(to_gf2(layout), bits, element_bytes)
        assert widest == widest_vector(layout, element_bytes)


def test_known_closed_forms() -> None:
    """A column of a 32 x 32 tile takes 32 wavefronts, swizzled 1, and its transpose 4 sectors."""
    column = row_major(32, 32).in_bytes(4)
    assert gf2_bank_wavefronts(to_gf2(column), 4) == 32
    assert gf2_sectors(to_gf2(column), 4) == 32
    swizzled = to_gf2(Layout((32, 32), (32, 1), Swizzle(5, 0, 5)).in_bytes(4))
    assert gf2_bank_wavefronts(swizzled, 4) == 1
    transpose = to_gf2(row_major(32, 32))
    assert gf2_bank_wavefronts(swizzled @ transpose, 4) == 1
    assert gf2_sectors(swizzled @ transpose, 4) == 4
    assert gf2_bank_wavefronts(to_gf2(Layout(32, 128, Swizzle(3, 4, 3))), 16) == 4
    assert gf2_widest_vector(to_gf2(row_major(32, 4)), 2, 4) == 16


def test_a_matrix_prints_its_rows() -> None:
    """A matrix prints as offset bits, highest first, by index bits, lowest leftmost."""
    assert str(to_gf2(Layout((2, 4), (4, 1)))) == "1..\n..1\n.1."
    assert str(Gf2Matrix(())) == ""


def test_what_has_no_closed_form() -> None:
    """Misaligned or too small accesses, and indices and bits out of range, raise LayoutError."""
    warp = to_gf2(Layout(32, 4))
    calls: tuple[Callable[[], int], ...] = (
        lambda: gf2_bank_wavefronts(warp, 8),
        lambda: gf2_bank_wavefronts(warp, 3),
        lambda: gf2_bank_wavefronts(to_gf2(Layout(16, 4)), 4),
        lambda: gf2_sectors(warp, 4, sector_bytes=2),
        lambda: gf2_sectors(warp, 4, sector_bytes=48),
        lambda: gf2_widest_vector(warp, 6, 4),
        lambda: warp(32),
        lambda: warp(-1),
    )
    for call in calls:
        with pytest.raises(LayoutError):
            call()
