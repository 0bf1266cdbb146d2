"""Laws of hopper: each breaks on a term made wrong, and on none of the named points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.hopper_terms import H200, LARGE, LAYOUTS, broken, dos, rebuffered, term
from tests.hopper_wrong import RIGHT, WRONG
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import LAWS, check_schedule, serves
from tinygpu.legality.reach import Case
from tinygpu.legality.role_laws import ROLE_LAWS, entry_registers
from tinygpu.legality.tensor_laws import TENSOR_LAWS
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Access, Do, Program
from tinygpu.term.schedule import Schedule


@pytest.mark.parametrize(("law", "program"), RIGHT)
def test_a_term_at_the_edge_of_a_law_keeps_it(law: str, program: Program) -> None:
    assert law not in broken(program)


@pytest.mark.parametrize("name", LADDER)
def test_ordinary_kernels_keep_the_laws_of_tiles(name: str) -> None:
    problem = {"m": 4096, "n": 4096, "k": 4096}
    program = Simt().program(matmul(), Chosen({**LADDER[name], "pad_a": 0, "swizzle_a": 2}))
    assert not {*ROLE_LAWS, *TENSOR_LAWS} & broken(program, problem).keys()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("start", STARTS)
def test_named_points_break_no_law(start: str, layout: str) -> None:
    wide = start == "swapped" and layout[0] == "t"  # slabs of y are 64 columns wide
    changes: dict[str, Any] = {"tile_n": 64, "store_n": 64} if wide else {}
    assert broken(term(start, layout, **changes)) == {}
    assert broken(term(start, layout, **changes), {"m": 200, "n": 136, "k": 72}) == {}


@pytest.mark.parametrize("start", ["plain", "two consumers", "tma store", "pingpong", "swapped"])
def test_a_schedule_is_checked_whole(start: str) -> None:
    problem = Problem.of(matmul("bf16", layout="nt"), **LARGE)
    schedule = Schedule.of(Hopper(), STARTS[start])
    assert check_schedule(schedule, Hopper(), problem, H200) == ()
    deep = schedule.with_(tile_m=256, tile_n=64, store_n=64, tile_k=128, stages=12)
    if start == "pingpong":
        deep = schedule.with_(stages=12, tile_k=128)
    found = {v.law: str(v) for v in check_schedule(deep, Hopper(), problem, H200)}
    assert found.keys() == {"smem_per_cta", "smem_per_sm"}
    said = "h200 allows 232448 B per CTA; keep less in shared memory (stages 12, tile_k 128"
    assert said in found["smem_per_cta"]


@pytest.mark.parametrize(
    ("law", "message", "program"), WRONG, ids=[f"{w[0]}-{w[1]}" for w in WRONG]
)
def test_a_term_made_wrong_breaks_its_law(law: str, message: str, program: Program) -> None:
    case = Case.of(program, LARGE, H200)
    said = [str(clause) for clause in LAWS[law].clauses(case) if not clause.holds]
    assert any(message in text for text in said), said
    assert all("\n" not in text for text in said)


ELSEWHERE = {"architecture", "grid", "tma_strides", "tma_coordinates", "tma_pages"}
"""Laws of the device and the sizes, tested below; of pages in ``test_attention_paged.py``."""


def test_eight_bits_lie_along_k() -> None:
    """A factor of 16 bits may lie along n, as the bits of wgmma say; one of 8 has no such bits."""
    values = Chosen({**STARTS["plain"], "tile_n": 128, "tile_k": 128})
    program = Hopper().program(matmul("e4m3", None, "nt"), values)
    assert not broken(program)
    turned = rebuffered(program, "smem_b", stride=(1, 128, 128 * 128))
    assert "k steps 128 B" in broken(turned)["wgmma_descriptors"]


def test_every_law_of_tiles_and_roles_has_a_term_that_breaks_it() -> None:
    assert {*ROLE_LAWS, *TENSOR_LAWS} <= {law for law, _, _ in WRONG} | ELSEWHERE


@pytest.mark.parametrize("name", ["a100", "rtx3060"])
def test_other_architectures_have_no_wgmma(name: str) -> None:
    case = Case.of(term("plain"), LARGE, load_device(name))
    said = [str(c) for c in LAWS["architecture"].clauses(case) if not c.holds]
    assert any("wgmma needs sm_90a" in text for text in said)
    assert any("cp.async.bulk.tensor needs sm_90;" in text for text in said)
    assert not any("cvt" in text for text in said)


def test_cp_async_needs_ampere() -> None:
    old = replace(load_device("a100"), arch="sm_75")
    for pipeline, holds in (("none", True), ("cp.async", False)):
        program = Simt().program(matmul(), Chosen({**LADDER["tuned"], "pipeline": pipeline}))
        clauses = LAWS["architecture"].clauses(Case.of(program, LARGE, old))
        assert all(c.holds for c in clauses) == holds


def test_registers_at_entry_are_an_sms_shared_out_in_eights() -> None:
    starts = (
        ("two consumers", 1, 168),
        ("two consumers", 2, 80),
        ("ring", 1, 255),
        ("ring", 2, 200),
    )
    for start, ctas, registers in starts:
        case = Case.of(term(start, ctas_per_sm=ctas), LARGE, H200)
        assert entry_registers(case) == registers


def test_a_grid_ends_at_two_to_the_31() -> None:
    program = term("plain")
    assert "grid" not in broken(program, {"m": 64 << 15, "n": (64 << 16) - 64, "k": 64})
    assert "grid" in broken(program, {"m": 64 << 15, "n": 64 << 16, "k": 64})
    assert "grid" not in broken(program, {"m": 64, "n": 64 * (2**31 - 1), "k": 64})
    pairs = term("cluster")  # 256 x 256
    assert "grid" not in broken(pairs, {"m": 256 << 14, "n": (256 << 16) - 256, "k": 64})
    assert "grid" in broken(pairs, {"m": 256 << 14, "n": 256 << 16, "k": 64})


@pytest.mark.parametrize(
    ("instruction", "name", "by"),
    [("global", "", 2), ("global", "bc", 4), ("global", "chunk", 12), ("", "kt", 4)],
)
def test_a_box_begins_at_a_multiple_of_16_bytes_along_a_line(
    instruction: str, name: str, by: int
) -> None:
    """Moved by its constant (no name) or by a coefficient; what is loaded too."""

    def further(access: Access) -> Access:
        *first, last = access.origin
        terms = tuple((n, int(c) + by * (n == name)) for n, c in last.terms)
        return replace(access, origin=(*first, replace(last + by * (not name), terms=terms)))

    def moved(do: Do) -> Do:
        if instruction:
            return replace(do, write=further(do.write))
        (source,) = do.reads
        assert isinstance(source, Access)
        return replace(do, reads=(further(source),))

    whole = ".".join(filter(None, ("cp.async.bulk.tensor", instruction)))
    assert (
        "along a line it begins at steps of"
        in broken(dos(term("tma store"), whole, moved))["tma_box"]
    )


def test_lines_of_arrays_are_multiples_of_16_bytes() -> None:
    said = [v.law for v in serves(term("plain"), {"m": 64, "n": 64, "k": 100})]
    assert said == ["tma_strides"]
    assert serves(term("plain"), {"m": 7, "n": 66, "k": 104}) == ()
    stored = term("tma store")
    assert [v.law for v in serves(stored, {"m": 7, "n": 66, "k": 104})] == ["tma_strides"]
    assert serves(term("plain"), {"m": 1, "n": 66, "k": 104}) == ()  # one line has no next one
    (short,) = serves(stored, {"m": 1, "n": 66, "k": 104})  # but is stored by pieces of 16 B
    assert "a line has 132 B" in str(short)
    assert serves(stored, {"m": 1, "n": 72, "k": 104}) == ()
    far = {"m": 64, "n": 64, "k": 1 << 31}
    laws = {v.law: v for v in serves(term("plain"), far)}
    assert set(laws) == {"integers", "tma_coordinates"}
    assert "cut the array" in laws["tma_coordinates"].mend


def test_pairs_of_columns_need_even_rows() -> None:
    assert [v.law for v in serves(term("plain"), {"m": 7, "n": 65, "k": 64})] == ["vector_aligned"]
    assert serves(term("swapped"), {"m": 7, "n": 65, "k": 64}) == ()


def test_registers_of_a_tile_are_counted_once_for_all_its_threads() -> None:
    case = Case.of(term("two consumers"), LARGE, H200)
    said = {str(c) for c in LAWS["registers"].clauses(case)}
    assert "sums need 128 registers of a thread at once; h200 allows 255" in said
    assert "sums of 384 resident threads need 32768 registers; h200 has 65536 per SM" in said
