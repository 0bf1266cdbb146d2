"""The machine blackwell: its terms, the layout of their sums, their code."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.blackwell_terms import B200, LAYOUTS, small, term
from tests.hopper_terms import dos, rebuffered
from tests.ptx_runs import unchecked as emit
from tests.sample import all_by_turns
from tinygpu.codegen.kernel.scope import value_coordinates
from tinygpu.codegen.rules.tcgen05 import cta_group, instruction_descriptor
from tinygpu.codegen.run.assemble import assemble
from tinygpu.errors import ProgramError
from tinygpu.machines.blackwell import STARTS, Blackwell
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Access, Do, Program, walk
from tinygpu.term.tensor_memory import LANES, allocated_columns, placement, used_columns


def _mma(program: Program) -> Do:
    found = (s for s, _ in walk(program) if isinstance(s, Do))
    return next(s for s in found if s.instruction.name == "tcgen05.mma")


@pytest.mark.parametrize("start", STARTS)
def test_a_term_fits_on_a_screen(start: str) -> None:
    assert len(str(term(start)).splitlines()) <= 75


@given(st.sampled_from([64, 128]), st.integers(1, 16), st.booleans())
def test_sums_lie_in_cells_of_their_own(rows: int, groups: int, paired: bool) -> None:
    """Elements of a product are in different cells; a pair of 64 rows uses all lanes."""
    columns = 16 * groups
    cells = placement(rows, columns, paired=paired).reshape(-1, 2)
    assert len(np.unique(cells, axis=0)) == rows * columns
    lanes, wide = cells.max(axis=0) + 1
    assert lanes <= LANES
    assert wide == (columns // 2 if paired and rows == 64 else columns)


@pytest.mark.parametrize("start", STARTS)
def test_products_lie_where_the_hardware_has_them(start: str) -> None:
    """The term's access maps, mode by mode, are the table of ``tensor_memory``."""
    do = _mma(term(start))
    _, inner, outer, halves, high, blocks = do.values
    lies = value_coordinates(do.write, (1, *do.values[1:]))
    want = placement(high * blocks, inner * outer * halves, paired=halves == 2)
    np.testing.assert_array_equal(lies, want.reshape(-1, 2))


def test_columns_are_allocated_by_powers_of_two() -> None:
    for n, accumulators, want in ((16, 1, 32), (48, 2, 128), (256, 2, 512), (96, 4, 512)):
        program = term("persistent", tile_n=n, accumulators=accumulators, store_n=16)
        assert used_columns(program) == n * accumulators
        assert allocated_columns(program) == want


def test_descriptors_are_those_of_the_architecture() -> None:
    """Worked values: bf16 into f32, 128 x 128 of one CTA and 256 x 256 of a pair."""
    assert instruction_descriptor("bf16", 128, 128) == 0x08200490
    assert instruction_descriptor("bf16", 256, 256) == 0x10400490
    assert instruction_descriptor("f16", 64, 8) == 1 << 4 | 1 << 17 | 4 << 24
    turned = instruction_descriptor("bf16", 128, 128, rows_major=(True, False))
    assert turned ^ 0x08200490 == 1 << 15


@pytest.mark.parametrize(
    ("dtype", "kind", "bits"),
    [("f16", "f16", 0), ("tf32", "tf32", 2), ("e4m3", "f8f6f4", 0), ("e5m2", "f8f6f4", 1)],
)
def test_types_have_their_kinds(dtype: str, kind: str, bits: int) -> None:
    """Each assembles; the descriptor says the type of both inputs."""
    program = Blackwell().program(
        matmul(dtype, layout="nt"), Chosen({**STARTS["ring"], "tile_k": 128, "vector_c": 1})
    )
    text = emit(program, "sm_100a")
    assert set(re.findall(r"kind::(\w+)", text)) == {kind}
    assert instruction_descriptor(dtype, 128, 128) == 0x08200010 | bits << 7 | bits << 10
    assert "0 bytes spill stores" in assemble(text, "sm_100a").messages


@all_by_turns(
    ("layout", LAYOUTS),
    ("start", ["small", "ring", "cluster", "narrow pair", "wide pair"]),
)
def test_code_assembles_without_spills(start: str, layout: str) -> None:
    program = term(start, layout)
    text = emit(program, "sm_100a")
    cubin = assemble(text, "sm_100a")
    assert "0 bytes spill stores, 0 bytes spill loads" in cubin.messages
    assert "C75" not in cubin.messages
    groups = set(re.findall(r"cta_group::(\d)", text))
    assert groups == {str(cta_group(program))}


def test_code_says_what_the_term_says() -> None:
    """The frame follows from the buffers; each statement has its instruction."""
    text = emit(term("wide pair"), "sm_100a")
    for line in (
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32",
        "tcgen05.relinquish_alloc_permit.cta_group::2",
        "tcgen05.dealloc.cta_group::2",
        "tcgen05.mma.cta_group::2.kind::f16",
        "tcgen05.ld.sync.aligned.32x32b.x64.b32",
        "tcgen05.wait::ld.sync.aligned",
        "mbarrier.arrive.expect_tx.shared::cluster.b64",
        "complete_tx::bytes.multicast::cluster.cta_group::2",
        "arrive::one.shared::cluster.multicast::cluster.b64",
    ):
        assert line in text, line
    assert text.count("\ttcgen05.mma.") == 4  # 64 steps of k, 16 a product


def _descriptor_constants(text: str) -> set[int]:
    return {int(x, 16) for x in re.findall(r"or\.b64 \S+ \S+ (0x[0-9a-f]+)", text)}


def test_matrix_descriptors_say_how_tiles_lie() -> None:
    """K-major: rows of 128 B, eight of them 1024 B apart; MN-major: slabs a tile apart, too."""
    k_major = 2 << 61 | 1 << 46 | 1024 >> 4 << 32 | 1 << 16
    assert _descriptor_constants(emit(term("ring"), "sm_100a")) == {k_major}
    slab = 64 * 128  # 64 steps of k, 128 B each
    mn_major = 2 << 61 | 1 << 46 | 1024 >> 4 << 32 | slab >> 4 << 16
    assert _descriptor_constants(emit(term("ring", "tn"), "sm_100a")) == {mn_major}


def test_what_has_no_code_is_refused() -> None:
    def moved(do: Do) -> Do:
        steps = (*do.write.value[:4], (1, 0), (32, 0))
        sums = Access(do.write.buffer, steps, index=do.write.index)
        return replace(do, write=sums, reads=(*do.reads[:2], sums))

    def turned(do: Do) -> Do:
        (source,) = do.accesses[:-1]
        return replace(do, reads=(replace(source, thread=source.thread[::-1]),))

    with pytest.raises(ProgramError, match="do not lie in the lanes"):
        emit(dos(term("ring"), "tcgen05.mma", moved), "sm_100a")
    with pytest.raises(ProgramError, match="none of TMA"):
        emit(rebuffered(term("ring"), "smem_a", swizzle=(2, 3, 3)), "sm_100a")
    with pytest.raises(ProgramError, match="of their own lanes"):
        emit(dos(term("ring"), "tcgen05.ld", turned), "sm_100a")


def test_a_space_is_counted_and_drawn_from() -> None:
    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    fixed: dict[str, Value | tuple[Value, ...]] = {
        "epilogue": "tma",
        "tile_k": 64,
        "early": 0,
        "vector_c": 1,
        "raster": 8,
    }
    space = Space(Blackwell(), problem, B200, fixed=fixed)
    assert 0 < space.count() < space.raw
    drawn = space.sample(np.random.default_rng(1), 4)
    for schedule in drawn:
        program = schedule.program(Blackwell(), problem.operation)
        assert allocated_columns(program) <= 512
        assert space.contains(schedule)
        assemble(emit(program, "sm_100a"), "sm_100a")


def test_small_terms_are_the_ones_that_are_interpreted() -> None:
    for start in STARTS:
        assert small(start).buffers[3].stages == 2
