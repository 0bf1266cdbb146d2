"""The least entry of a table below a chosen point is that of a walk over every legal point."""

from __future__ import annotations

from itertools import product
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tests.sample import draws
from tinygpu.search.exact import least as module
from tinygpu.search.exact.least import Kept, Least
from tinygpu.search.time.deferred import Deferred, Tables
from tinygpu.space.space import Table

LENGTHS = (3, 2, 4, 2)
ORDERS = st.permutations(range(len(LENGTHS))).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, numbers: st.SearchStrategy[Any], dtype: type) -> tuple[Any, Any]:
    """Some axes, ascending, and an array over them."""
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(LENGTHS) - 1), min_size=1))))
    shape = [LENGTHS[a] for a in axes]
    count = int(np.prod(shape))
    values = draw(st.lists(numbers, min_size=count, max_size=count))
    return axes, np.array(values, dtype).reshape(shape)


LAWS = st.lists(arrays(st.sampled_from((True, True, False)), bool), max_size=4)
NUMBERS = st.one_of(st.integers(-3, 9).map(float), st.just(np.nan))
TABLES = st.lists(arrays(NUMBERS, float), min_size=1, max_size=3)


def walked(table: Deferred, laws: list[Any], most: bool, chosen: dict[int, int]) -> float:
    """Look at every point that agrees with what is chosen and that the laws allow."""
    assert table.table is not None
    found = -np.inf if most else np.inf
    for point in product(*(range(LENGTHS[a]) for a in table.axes)):
        at = dict(zip(table.axes, point, strict=True))
        if any(at[a] != v for a, v in chosen.items() if a in at):
            continue
        asked = ((axes, holds) for axes, holds in laws if set(axes) <= set(table.axes))
        if all(holds[tuple(at[a] for a in axes)] for axes, holds in asked):
            found = (np.fmax if most else np.fmin)(found, table.table[point])
    return float(found)


@pytest.mark.parametrize("small", [0, 8, 1 << 15])
@settings(deadline=None, max_examples=draws(24, 60))
@given(
    tables=TABLES, laws=LAWS, orders=st.lists(ORDERS, min_size=1, max_size=2), most=st.booleans()
)
def test_least_entries_are_those_of_a_walk(
    small: int, tables: list[Any], laws: list[Any], orders: list[Any], most: bool
) -> None:
    """In any order, whatever is kept on the way, and for batches that share what they keep."""
    kept, made = Kept(), Tables(LENGTHS)
    judged = [Table("", axes, holds) for axes, holds in laws]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_SMALL", small)
        for count_of_laws in (len(laws), len(laws) // 2):
            least = Least(judged[:count_of_laws], LENGTHS, kept)
            for (axes, array), order in product(tables, orders):
                table = made.over(axes, array)
                for count in range(len(order) + 1):
                    result = least.of(table, most, order, frozenset(order[:count]))
                    if result is table:
                        assert set(axes) <= set(order[:count])
                        continue
                    left = tuple(a for a in axes if a in order[:count])
                    entries = result.table if isinstance(result, Deferred) else np.array(result)
                    assert entries is not None
                    assert getattr(result, "axes", ()) == left
                    for place in np.ndindex(*(LENGTHS[a] for a in left)):
                        chosen = dict(zip(left, place, strict=True))
                        expected = walked(table, laws[:count_of_laws], most, chosen)
                        assert entries[place] == expected


@pytest.mark.parametrize("others", [(), ((1, 3),), ((2, 3), (2, 3))])
def test_laws_over_other_decisions_change_nothing(others: tuple[tuple[int, ...], ...]) -> None:
    """Batches that share the laws over a table's decisions share what is kept of it."""
    rng, kept, made = np.random.default_rng(0), Kept(), Tables(LENGTHS)
    holds = rng.random((3, 2, 4)) < 0.5
    shared = Table("", (0, 1, 2), holds)
    table, more = (made.over((0, 1, 2), rng.random((3, 2, 4))) for _ in range(2))
    alone = Least([shared], LENGTHS, kept)
    assert alone.of(table, False, (0, 1, 2, 3), frozenset({0})) is not table
    added = [Table("", axes, np.ones([LENGTHS[a] for a in axes], bool)) for axes in others]
    result = Least([shared, *added], LENGTHS, kept).of(more, False, (0, 1, 2, 3), frozenset({0}))
    assert isinstance(result, Deferred)
    assert result.table is not None
    for i in range(LENGTHS[0]):
        assert result.table[i] == walked(more, [((0, 1, 2), holds)], False, {0: i})
