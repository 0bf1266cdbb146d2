from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.time.rates import sectors_of_warp
from tinygpu.term.access import INACTIVE, bank_wavefronts
from tinygpu.term.layout import Layout, LayoutError, Swizzle
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Do, walk

LANES = np.arange(32)
WIDTHS = st.sampled_from((1, 2, 4, 8, 16))


def wavefronts_one_by_one(offsets: list[int], access_bytes: int) -> int:
    """The definition: the most distinct words in a bank; 8 B in half warps unless lanes pair up."""

    def most(lanes: list[int]) -> int:
        words: list[set[int]] = [set() for _ in range(32)]
        for offset in lanes:
            for byte in range(offset, offset + access_bytes) if offset >= 0 else ():
                words[byte // 4 % 32].add(byte // 4)
        return max(map(len, words))

    pairs = zip(offsets[::2], offsets[1::2], strict=True)
    if access_bytes == 8 and any(a != b and min(a, b) >= 0 for a, b in pairs):
        return most(offsets[:16]) + most(offsets[16:])
    return most(offsets)


@st.composite
def accesses(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """(warps of 32 byte offsets, access_bytes), with inactive lanes, collisions and conflicts."""
    width = draw(WIDTHS)
    span = draw(st.sampled_from((1, 4, 40, 400)))
    step = draw(st.sampled_from((1, 1, 8, 32, 33)))
    offset = st.integers(0, span).map(lambda x: x * step * width) | st.just(INACTIVE)
    warp = st.lists(offset, min_size=32, max_size=32)
    return draw(st.lists(warp, min_size=1, max_size=3)), width


@given(accesses())
def test_costs_are_their_definitions(access: tuple[list[list[int]], int]) -> None:
    """Wavefronts count words a bank; inactive lanes count for nothing."""
    warps, width = access
    offsets = np.array(warps)
    assert bank_wavefronts(offsets, width).tolist() == [
        wavefronts_one_by_one(warp, width) for warp in warps
    ]


@given(accesses())
def test_leading_axes_are_independent(access: tuple[list[list[int]], int]) -> None:
    """cost(x)[i, j] = cost(x[i, j]) for any leading axes, of length 0 too; inputs stay as is."""
    offsets = np.array(access[0])
    before = offsets.copy()
    alone = [int(bank_wavefronts(warp, access[1])) for warp in offsets]
    assert bank_wavefronts(offsets[:, None], access[1]).tolist() == [[c] for c in alone]
    assert bank_wavefronts(offsets[:0], access[1]).shape == (0,)
    assert np.array_equal(offsets, before)


CONFLICTS = [
    ("row", 4 * LANES, 4, 1),
    ("row backwards", 4 * LANES[::-1], 4, 1),
    ("broadcast", 0 * LANES, 4, 1),
    ("two rows of one column", 128 * (LANES % 2), 4, 2),
    ("every second word", 8 * LANES, 4, 2),
    ("column", 128 * LANES, 4, 32),
    ("column, padded by a word", 132 * LANES, 4, 1),
    ("column, swizzled", 4 * Layout((32, 32), (32, 1))((LANES, LANES ^ 5)), 4, 1),
    ("bytes of a word together", LANES, 1, 1),
    ("halves of a word together", 2 * LANES, 2, 1),
    ("column of halves", 64 * LANES, 2, 16),
    ("row of 8 B", 8 * LANES, 8, 2),
    ("broadcast of 8 B", 0 * LANES, 8, 1),
    ("column of 8 B", 128 * LANES, 8, 32),
    ("column of 8 B, padded by one", 136 * LANES, 8, 2),
    ("every second 8 B", 16 * LANES, 8, 4),
    ("row of 16 B", 16 * LANES, 16, 4),
    ("column of 16 B", 128 * LANES, 16, 32),
    ("column of 16 B, padded by one", 144 * LANES, 16, 4),
    ("column of 16 B, swizzled", Swizzle(3, 4, 3)(128 * LANES), 16, 4),
    ("column of 16 B in rows of 64 B", 64 * LANES, 16, 16),
    ("the same, swizzled", Swizzle(2, 4, 3)(64 * LANES), 16, 4),
    ("no lane", 0 * LANES - 1, 4, 0),
    ("one lane", np.where(LANES == 7, 64, INACTIVE), 16, 1),
    ("half a column", np.where(LANES < 16, 128 * LANES, INACTIVE), 4, 16),
    ("half a row of 16 B", np.where(LANES < 16, 16 * LANES, INACTIVE), 16, 2),
]


@pytest.mark.parametrize(
    ("offsets", "access_bytes", "wavefronts"),
    [case[1:] for case in CONFLICTS],
    ids=[case[0] for case in CONFLICTS],
)
def test_known_bank_conflicts(
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]], access_bytes: int, wavefronts: int
) -> None:
    """The textbook accesses take the wavefronts that the textbook says."""
    assert bank_wavefronts(offsets, access_bytes) == wavefronts


# cycles of a warp's ld.shared on an H200, 132 CTAs of 512 threads, 16 loads unrolled (2026-11-21)
MEASURED = [
    (4 * LANES, 4, 1.03),
    (8 * LANES % 256, 4, 2.03),
    (8 * LANES, 8, 2.03),
    (8 * (LANES // 2), 8, 1.10),
    (8 * (LANES // 4), 8, 1.11),
    (8 * (LANES % 16), 8, 2.03),
    (8 * (LANES % 8), 8, 2.03),
    (16 * LANES, 16, 4.03),
    (16 * (LANES // 2), 16, 2.03),
    (16 * (LANES % 16), 16, 2.03),
    (16 * (LANES // 4), 16, 1.03),
    (16 * (LANES % 8), 16, 1.03),
    (16 * (LANES % 2), 16, 1.03),
    (512 * (LANES % 2), 16, 2.03),
    (512 * (LANES // 16), 16, 2.03),
    (64 * (LANES // 8), 16, 2.03),
    (64 * (LANES % 4), 16, 2.03),
    (80 * (LANES % 8), 16, 1.03),
    (80 * (LANES // 4), 16, 1.03),
    (144 * LANES % 4096, 16, 4.03),
    (128 * (LANES % 8), 16, 8.03),
    (128 * (LANES // 4), 16, 8.03),
]


@pytest.mark.parametrize(("offsets", "access_bytes", "cycles"), MEASURED)
def test_wavefronts_are_cycles(
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]], access_bytes: int, cycles: float
) -> None:
    """An H200 takes a cycle a wavefront."""
    assert bank_wavefronts(offsets, access_bytes) == pytest.approx(cycles, rel=0.11)


def test_a_transposed_tile_conflicts_until_it_is_padded_or_swizzled() -> None:
    """Reading a 32 x 32 tile down its columns: 32 wavefronts, and 1 with a pad or a swizzle."""
    for stride, swizzle, wavefronts in ((32, None, 32), (33, None, 1), (32, Swizzle(5, 0, 5), 1)):
        memory = Layout((32, 32), (1, stride), swizzle)  # (column, row) -> element
        offsets = 4 * np.asarray(
            memory((LANES[:, None], LANES))
        )  # each step a column, its rows by the lanes
        assert bank_wavefronts(offsets, 4).tolist() == [wavefronts] * 32


def test_what_is_no_access() -> None:
    """Misaligned, negative (but for -1), odd-sized or not 32-wide accesses raise LayoutError."""
    for offsets, width in (
        (4 * LANES + 2, 4),
        (8 * LANES + 4, 8),
        (0 * LANES - 4, 4),
        (0 * LANES - 2, 1),
        (4 * LANES, 3),
        (4 * LANES, 32),
        (np.zeros((), np.int64), 4),
    ):
        with pytest.raises(LayoutError, match=r"needs|allowed"):
            bank_wavefronts(offsets, width)
    with pytest.raises(LayoutError, match="32"):
        bank_wavefronts(4 * LANES[:16], 4)


@pytest.mark.parametrize("lanes", [None, (1, 4, 0)])
def test_sectors_of_a_space_are_those_of_each_schedule(lanes: tuple[int, int, int] | None) -> None:
    """Digits that take no part in one may take part in another: steps of 0, extents of 1."""
    term = Simt().program(matmul(), Chosen(LADDER["tuned"]))
    store = next(s for s, _ in walk(term) if isinstance(s, Do) and s.write.buffer.level == "gmem")
    first, moved = np.array([[0], [4], [128]]), np.array([[1, 4, 32]])

    def of(step: Any, extent: Any) -> Do:
        access = replace(store.write, thread=((0, 4), (0, step), (16, 0)))
        return replace(store, write=access, threads=(8, extent, 4), lanes=lanes)

    values = {"ld_c": 4096}
    found = np.broadcast_to(sectors_of_warp(of(first, moved), values, 32), (3, 3))
    for (i, j), many in np.ndenumerate(found):
        one = of(int(first[i, 0]), int(moved[0, j]))
        assert many == sectors_of_warp(one, values, 32)
