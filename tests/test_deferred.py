"""Deferred arithmetic is NumPy's at every point, and its bounds are bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import draws
from tinygpu.devices.device import load_device
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.time import deferred
from tinygpu.search.time.cost import features
from tinygpu.search.time.deferred import Deferred, Tables, applied, at, steps_of
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul

LENGTHS = (3, 1, 4, 2)


def added(*parts: Any) -> Any:
    return sum(parts)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Any, Any]:
    """The same expression of tables and of arrays, never negative."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    tables = Tables(LENGTHS)
    known: list[tuple[Any, Any]] = [(2.5, 2.5)]
    for _ in range(4):
        shape = [n if rng.random() < 0.4 else 1 for n in LENGTHS]
        array = rng.integers(1, 9, shape).astype(float)
        known.append((tables.of(array), array))
    for _ in range(draw(st.integers(1, 8))):
        (a, x), (b, y), (c, z) = (draw(st.sampled_from(known)) for _ in range(3))
        match draw(st.integers(0, 6)):
            case 0:
                known.append((a + b, x + y))
            case 1:
                known.append((np.maximum(a - b, 0.5), np.maximum(x - y, 0.5)))
            case 2:
                known.append((a * b, x * y))
            case 3:
                known.append((a / (b + 1.0), x / (y + 1.0)))
            case 4:
                known.append((9.0 + np.maximum(-0.5 * np.minimum(a, b), -9.0),
                              9.0 + np.maximum(-0.5 * np.minimum(x, y), -9.0)))  # fmt: skip
            case 5:
                known.append((a + c * (b > 4.0), x + z * (np.asarray(y) > 4.0)))
            case 6:
                known.append((applied(added, a, b, c), added(x, y, z)))
    return known[-1]


@pytest.mark.parametrize("most", [1, 6, 1 << 15], ids=["points", "both", "tables"])
@settings(max_examples=draws(24, 60))
@given(st.data())
def test_deferred_arithmetic_and_its_bounds(most: int, data: st.DataObject) -> None:
    """Whatever is made as a table; bounds over any open axes, none of them looser than needed."""
    before, deferred._MOST = deferred._MOST, most
    try:
        number, array = data.draw(expressions())
    finally:
        deferred._MOST = before
    points = np.stack(np.unravel_index(np.arange(24), LENGTHS))
    every = np.broadcast_to(np.asarray(array, float), LENGTHS).ravel()
    if not isinstance(number, Deferred):
        assert (every == number).all()
        return
    assert at(steps_of(number), points, lambda table, _: table) == pytest.approx(every)
    open_axes = data.draw(st.sets(st.sampled_from(range(4))))

    def reduced(table: Deferred, greatest: bool) -> Deferred | float:
        drop = tuple(i for i, a in enumerate(table.axes) if a in open_axes)
        kept = tuple(a for a in table.axes if a not in open_axes)
        assert table.table is not None
        values = table.table.max(axis=drop) if greatest else table.table.min(axis=drop)
        return Deferred(table.tables, kept, values) if kept else float(values)

    bounds = np.broadcast_to(at(steps_of(number, bounded=True), points, reduced), 24)
    grid = every.reshape(LENGTHS)
    least = np.broadcast_to(grid.min(axis=tuple(open_axes), keepdims=True), LENGTHS).ravel()
    assert (bounds <= least * (1 + 1e-12)).all()
    if not open_axes or number.table is not None:
        assert bounds == pytest.approx(least)


def test_equal_arithmetic_is_done_once() -> None:
    tables = Tables((3, 4))
    x: Any = tables.of(np.arange(3.0)[:, None])
    y: Any = tables.of(np.arange(4.0)[None, :])
    assert x * y + 1.0 is x * y + 1.0
    assert x * y is not y * x
    assert len(steps_of(x * y + 1.0)) == 1


def test_a_table_has_no_decision_on_which_nothing_depends() -> None:
    """What is small can be computed with as a table, and more laws are over its decisions alone."""
    tables = Tables((3, 4, 2))
    number = np.broadcast_to(np.arange(4.0)[:, None], (3, 4, 2))
    of: Any = tables.of  # tables stand for arrays
    assert of(number).axes == (1,)
    assert tables.of(number) is tables.of(number)
    assert tables.of(np.full((3, 1, 2), 7)) == 7
    assert of(np.array([[[np.nan]], [[np.nan]], [[np.nan]]])).axes == (0,)


def test_a_term_made_again_has_the_same_arrays() -> None:
    """Else the batches of a space share no table, and need gigabytes."""
    fixed = {**LADDER["multi-stage"], "tile_m": (64, 128), "vector_a": (1, 4), "pad_a": (0, 4),
             "addressing": ("pointer", "i32", "i64"), "specialised": (0, 1),
             "ctas_per_sm": (1, 2), "k_step": (1, 2), "issue": (0, 1)}  # fmt: skip
    problem = Problem.of(matmul(), m=4096, n=4096, k=4096)
    space = Space(Simt(), problem, load_device("h200"), fixed=fixed)
    (batch,) = space.batches()

    def numbers() -> list[Any]:
        met: list[Any] = []

        def meet(number: Any) -> Any:
            met.append(number)
            return number

        program = space.machine.program(problem.operation, batch.chosen)
        with np.errstate(all="ignore"):
            features(program, problem.sizes, space.device).mapped(meet, meet)
        return [x for x in met if isinstance(x, np.ndarray)]

    first, second = numbers(), numbers()
    assert len(first) > 100
    assert all(x is y for x, y in zip(first, second, strict=True))
