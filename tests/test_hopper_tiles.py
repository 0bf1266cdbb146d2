"""Tiles of hopper of any width that wgmma has: by 8 columns, and two consumers side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hopper_terms import H200, broken, dos, term
from tests.ptx_runs import run_matmul, unchecked
from tests.sample import draws, some
from tinygpu.codegen.kernel.tensor_map import tensor_maps
from tinygpu.errors import ProgramError
from tinygpu.isa.tma import boxes
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.hopper import Hopper, side_by_side
from tinygpu.meaning.identity import computes
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.work import agents, total_work
from tinygpu.space.space import Space
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Access, Do, Program, walk

WIDE: dict[str, Any] = {"tile_m": 64, "tile_n": 304, "consumers": 2, "stages": 3, "store_n": 8}
ODD = tuple(n for n in map(int, Hopper.tile_n.values) if n % 16 or n > 256)


def do_of(program: Program, instruction: str, buffer: str) -> Do:
    """The statement of an instruction that writes, or else reads, a buffer."""
    found = [s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.name == instruction]
    return next(do for do in found if buffer in {a.buffer.name for a in do.accesses})


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Program, dict[str, int]]:
    """A legal schedule of a new width, and sizes that are no multiples of its tile."""
    dtype, layout = draw(st.sampled_from([("bf16", "nt"), ("f16", "nn"), ("e4m3", "nt")]))
    operation = matmul(dtype, layout=layout, bias=draw(st.booleans()))
    sizes = {"m": draw(st.integers(1, 40)) * 8, "n": draw(st.integers(1, 40)) * 16, "k": 160}
    width = draw(st.sampled_from(ODD))
    few: dict[str, int | str | tuple[int | str, ...]] = {
        "tile_n": width,
        "tile_m": (64, 128),
        "cluster_k": (1, 2),
        "raster": 1,
    }
    space = Space(Hopper(), Problem.of(operation, **sizes), H200, fixed=few)
    (schedule,) = space.sample(np.random.default_rng(draw(st.integers(0, 10**6))), 1)
    return schedule.program(Hopper(), operation), sizes


@given(drawn())
@settings(max_examples=draws(3, 6), deadline=None)
def test_a_drawn_schedule_of_a_new_width_is_right(case: tuple[Program, dict[str, int]]) -> None:
    """The judge, ``computes`` and the PTX interpreter agree."""
    program, sizes = case
    assert verdict(program).legal
    assert computes(program)
    if len(program.operation.inputs) == 2:
        outcome = run_matmul(program, sizes, clusters=1)
        assert outcome.right
        assert outcome.report.findings == ()


@pytest.mark.parametrize("changes", some([
    {"tile_n": 104, "store_n": 104}, {"tile_n": 168, "store_n": 56},
    {"tile_n": 152, "store_n": 152, "cluster_m": 2}, {"tile_n": 24, "store_n": 24, "cluster_m": 4},
    {**WIDE, "store_n": 152}, {**WIDE, "cluster_m": 2}, {"tile_n": 40, "swap": 1, "store_n": 40},
    {**WIDE, "tile_m": 128, "swap": 1, "store_n": 152, "store_stages": 1},
], 2))  # fmt: skip
def test_kernels_of_new_widths(changes: dict[str, Any]) -> None:
    """Chunks without a swizzle, parts of 6 or 76 lines, two boxes a tile: right at ragged sizes."""
    program = term("persistent", **changes)
    assert broken(program) == {}
    assert verdict(program).legal
    outcome = run_matmul(program, {"m": 200, "n": 328, "k": 200}, clusters=1)
    assert outcome.right
    assert outcome.report.findings == ()


def test_more_lines_than_a_box_has_are_boxes_of_equal_height() -> None:
    program = term("two consumers", **WIDE)
    assert {str(m) for m in tensor_maps(program) if m.buffer == "b"} == {
        "b: boxes of 64 x 152, 128B swizzle",
        "b: the rest of boxes of 64 x 152, 128B swizzle",
    }
    text = unchecked(program)
    assert text.count("cp.async.bulk.tensor.2d.shared") == 3  # one of a, two of b
    shared = unchecked(term("two consumers", **WIDE, cluster_m=2))
    assert shared.count("cp.async.bulk.tensor.2d.shared") == 2


@given(st.integers(1, 2000))
def test_boxes_are_the_fewest(lines: int) -> None:
    assert (boxes(lines) - 1) * 256 < lines <= boxes(lines) * 256


@pytest.mark.parametrize(("high", "why"), [(257, "no 2 boxes"), (304, ""), (260, "")])
def test_the_law_of_boxes(high: int, why: str) -> None:
    """257 lines are no two boxes of equal height; 260 are."""

    def change(do: Do) -> Do:
        return replace(do, values=(do.values[0], high, *do.values[2:]))

    found = broken(dos(term("plain"), "cp.async.bulk.tensor", change)).get("tma_box", "")
    assert (why in found) if why else not found


def test_a_box_begins_at_any_line_and_at_no_part_of_one() -> None:
    def change(do: Do) -> Do:
        line, inner, slab = do.write.origin
        return replace(do, write=replace(do.write, origin=(line, inner + 8, slab)))

    found = broken(dos(term("plain"), "cp.async.bulk.tensor", change))
    assert "multiples of 128" in found["tma_box"]
    assert "tma_box" not in broken(term("cluster", tile_n=152, store_n=152, stages=3))


@given(st.sampled_from([64, 128, 192, 256]), st.sampled_from(Hopper.tile_n.values),
       st.sampled_from([1, 2, 3]))  # fmt: skip
def test_consumers_stand_along_rows_or_along_columns(high: int, wide: int, consumers: int) -> None:
    chosen = Chosen({"tile_m": high, "tile_n": wide, "consumers": consumers})
    rows, columns = side_by_side(chosen)
    assert rows * columns == consumers
    assert columns == 1 or high % 128 or wide > 256


def of_products(program: Program) -> tuple[Access, Access]:
    do = do_of(program, "wgmma", "sums")
    x, y = do.reads[:2]
    assert isinstance(x, Access)
    assert isinstance(y, Access)
    return x, y


def test_consumers_side_by_side_have_all_rows_and_columns_of_their_own() -> None:
    for changes, rows, columns in (
        ({"tile_m": 128, "tile_n": 256}, 64, 0), (WIDE, 0, 152), ({**WIDE, "tile_m": 192}, 0, 152),
    ):  # fmt: skip
        x, y = of_products(term("two consumers", **{"store_n": 8, **changes}))
        assert dict(x.origin[0].terms).get("w", 0) == rows
        assert dict(y.origin[0].terms).get("w", 0) == columns


def test_a_consumer_that_reads_the_other_ones_columns_is_wrong() -> None:
    """The same half for both: ``computes`` and the judge's laws see it."""

    def change(do: Do) -> Do:
        y = do.reads[1]
        assert isinstance(y, Access)
        line = replace(y.origin[0], terms=tuple(t for t in y.origin[0].terms if t[0] != "w"))
        return replace(do, reads=(do.reads[0], replace(y, origin=(line, *y.origin[1:])),
                                  do.reads[2]))  # fmt: skip

    right = term("two consumers", **WIDE)
    assert computes(right)
    assert not computes(dos(right, "wgmma", change))


def work(program: Program) -> dict[str, float]:
    """Cycles of a step of one consumer's products, by unit."""
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    consumer = next(a for a in agents(program, H200, sizes) if a.name.startswith("consumer"))
    (steps,) = consumer.loops
    each = total_work(steps.body, lambda guard: float(guard.late))
    return {unit: float(cycles) for unit, cycles in each.items()}


@given(st.sampled_from(range(72, 257, 8)))
@settings(max_examples=draws(6, 12), deadline=None)
def test_products_take_time_by_their_columns(columns: int) -> None:
    """Of 64 rows, at 4096 FLOP a cycle from 72 columns on: no step is rounded up to 16."""
    one = work(term("ring", tile_m=64, tile_n=columns, store_n=8, consumers=1))
    busy = 64 * columns * 64 * 2 / (4096 * FITTED["tensor_share"])
    port = H200.smem_bytes_per_cycle_per_sm * FITTED["smem_share"]
    assert one["tensor"] == pytest.approx(max(busy, (64 + columns) * 128 / port))


def test_consumers_side_by_side_read_the_rows_twice() -> None:
    """Each reads all of A and half of B: 2 (64 + 128) lines a step, not 64 + 256."""
    port = H200.smem_bytes_per_cycle_per_sm * FITTED["smem_share"]
    both = work(term("two consumers", tile_m=64, tile_n=256, store_n=8))
    alone = work(term("ring", tile_m=64, tile_n=256, store_n=8, consumers=1))
    assert both["smem"] == pytest.approx((64 + 128) * 128 / port)
    assert alone["smem"] == pytest.approx((64 + 256) * 128 / port)


@pytest.mark.parametrize("each", [(2, 2), (1, 1), (3, 1)])
def test_one_digit_counts_all_copies(each: tuple[int, int]) -> None:
    def forward(k: Kernel) -> None:
        k.grid("br", "bc")
        k.tile(tm=64, tn=64, tk=64)
        with k.role("worker", warps=1, w=2):
            k.one_of("w", high=each[0], wide=each[1])

    with pytest.raises(ProgramError, match="one of them has to count all copies"):
        trace("wrong", forward, matmul("bf16"))
