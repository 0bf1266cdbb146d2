"""Laws of hopper: each breaks on a term made wrong, and on none of the named points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.hopper_terms import (
    H200,
    LARGE,
    LAYOUTS,
    broken,
    dos,
    rebuffered,
    rewritten,
    role,
    term,
)
from tinygpu.device import load_device
from tinygpu.laws import LAWS, serves
from tinygpu.machines.hopper import STARTS
from tinygpu.program import (
    Access,
    Arrive,
    Commit,
    Do,
    Elect,
    ForTile,
    Program,
    Statement,
    Sync,
    var,
)
from tinygpu.reach import Case
from tinygpu.role_laws import ROLE_LAWS
from tinygpu.tensor_laws import TENSOR_LAWS

LOAD = "cp.async.bulk.tensor"


def values_of(i: int, extent: int) -> Callable[[Do], Do]:
    return lambda do: replace(do, values=(*do.values[:i], extent, *do.values[i + 1 :]))


def unelected(statement: Statement) -> Statement | tuple[Statement, ...]:
    return statement.body if isinstance(statement, Elect) else statement


def elected(kind: type) -> Callable[[Statement], Statement]:
    return lambda s: Elect((s,)) if isinstance(s, kind) else s


def reversed_roles(program: Program) -> Program:
    return replace(program, roles=program.roles[::-1])


def moved_part(do: Do) -> Do:
    """Take the parts of y from rows that lie twice as far apart as the parts."""
    (source,) = do.reads
    assert isinstance(source, Access)
    if do.multicast != "rank_m":
        return do
    first, *rest = source.origin
    return replace(do, reads=(replace(source, origin=(first + var("rank_m", 128), *rest)),))


def from_row_four(do: Do) -> Do:
    """Let each consumer's block of x start four rows after the one before it."""
    x, *rest = do.reads
    assert isinstance(x, Access)
    return replace(do, reads=(replace(x, origin=(var("w", 4), *x.origin[1:])), *rest))


# A law, what its message says, and a term that breaks it.
WRONG: tuple[tuple[str, str, Program], ...] = (
    ("cluster_size", "4 x 4 has 16 CTAs", term("cluster", cluster_m=4, cluster_n=4)),
    ("issuers", "each thread of producer", rewritten(term("plain"), unelected)),
    ("issuers", "one thread cannot", dos(term("plain"), "wgmma", lambda do: Elect((do,)))),
    ("issuers", "a copy of consumer has 64", role(term("plain"), "consumer", threads=64)),
    ("issuers", "one thread holds no tile", dos(term("plain"), "cvt", lambda do: Elect((do,)))),
    ("collective", "barrier.cluster: one", rewritten(term("plain"), elected(Sync))),
    ("collective", "bulk.commit_group: threads", rewritten(term("tma store"), unelected)),
    ("collective", "wgmma.commit_group: one", rewritten(term("plain"), elected(Commit))),
    ("collective", "consumer starts at thread 32", reversed_roles(term("plain"))),
    (
        "multicast",
        "no axis of the cluster",
        dos(term("cluster"), LOAD, lambda do: replace(do, multicast="rank")),
    ),
    (
        "multicast",
        "is not sent along it",
        dos(term("cluster"), LOAD, lambda do: replace(do, multicast="")),
    ),
    (
        "multicast",
        "send the whole tile",
        dos(term("cluster"), LOAD, lambda do: replace(do, multicast="rank_m")),
    ),
    ("multicast", "elsewhere in gmem", dos(term("cluster"), LOAD, moved_part)),
    (
        "mbarrier",
        "expects 49168 B of a phase, and 49152 B land",
        rewritten(
            term("cluster"),
            lambda s: replace(s, bytes=49168) if isinstance(s, Arrive) and s.bytes else s,
        ),
    ),
    (
        "mbarrier",
        "tells no barrier",
        dos(term("plain"), LOAD, lambda do: replace(do, signal=None)),
    ),
    (
        "mbarrier",
        "counts 0 arrivals",
        replace(
            term("plain"), barriers=tuple(replace(b, arrivals=0) for b in term("plain").barriers)
        ),
    ),
    (
        "mbarrier",
        "1048575 are allowed",
        rewritten(
            term("plain"),
            lambda s: replace(s, bytes=1 << 20) if isinstance(s, Arrive) and s.bytes else s,
        ),
    ),
    ("setmaxnreg", "asks for 20", role(term("cluster"), "producer", registers=20)),
    ("setmaxnreg", "asks for 60", role(term("cluster"), "producer", registers=60)),
    ("setmaxnreg", "asks for 264", role(term("cluster"), "consumer", registers=264)),
    ("setmaxnreg", "no whole warpgroups", role(term("cluster"), "producer", threads=64)),
    (
        "setmaxnreg",
        "384 threads enter with 168",
        role(term("cluster"), "consumer", registers=240),
    ),
    ("accumulators", "need 256 registers", term("ring", tile_m=128, tile_n=256)),
    ("accumulators", "it has 144", role(term("two consumers"), "consumer", registers=144)),
    ("tma_box", "a side of its box has 257", dos(term("plain"), LOAD, values_of(1, 257))),
    ("tma_box", "has 0 elements", dos(term("plain"), LOAD, values_of(1, 0))),
    ("tma_box", "have 104 B, no multiple of 16", dos(term("plain"), LOAD, values_of(0, 52))),
    ("tma_box", "have 64 B, and the swizzle", dos(term("plain"), LOAD, values_of(0, 32))),
    (
        "tma_box",
        "not lie packed",
        rebuffered(term("plain"), "smem_a", stride=(72, 1, 4608), stage_elements=4608),
    ),
    (
        "tma_box",
        "contiguous dimension of a",
        rebuffered(term("plain"), "a", stride=(1, "ld_a")),
    ),
    (
        "tma_box",
        "its swizzle repeats every 1024 B",
        dos(
            term("plain"),
            LOAD,
            lambda do: replace(
                do, write=replace(do.write, origin=(var("t", 0) + 4, *do.write.origin[1:]))
            ),
        ),
    ),
    ("swizzle", "none of the swizzles", rebuffered(term("plain"), "smem_a", swizzle=(3, 4, 3))),
    ("swizzle", "none of the swizzles", rebuffered(term("plain"), "smem_a", swizzle=(3, 3, 4))),
    ("swizzle", "none of the swizzles", rebuffered(term("plain"), "smem_a", swizzle=(4, 3, 3))),
    ("swizzle", "a stage has 8208 B", rebuffered(term("plain"), "smem_a", stage_elements=4104)),
    ("wgmma_shape", "blocks of 32 rows", dos(term("plain"), "wgmma", values_of(3, 32))),
    ("wgmma_shape", "makes 12 columns", dos(term("plain"), "wgmma", values_of(1, 12))),
    ("wgmma_shape", "makes 264 columns", dos(term("plain"), "wgmma", values_of(1, 264))),
    ("wgmma_shape", "takes 16 B of k", dos(term("plain"), "wgmma", values_of(0, 8))),
    ("wgmma_shape", "bf16 by bf16 into f16", rebuffered(term("plain"), "sums", dtype="f16")),
    ("wgmma_shape", "no fragment", rebuffered(term("plain"), "sums", fragment="")),
    (
        "wgmma_shape",
        "do not count rows",
        dos(
            term("plain"),
            "wgmma",
            lambda do: replace(
                do, write=replace(do.write, value=((0, 0), (1, 0), (0, 64), (0, 1)))
            ),
        ),
    ),
    ("wgmma_descriptors", "no swizzle", rebuffered(term("plain"), "smem_b", swizzle=(0, 3, 3))),
    (
        "wgmma_descriptors",
        "rows 144 B",
        rebuffered(term("plain"), "smem_b", stride=(72, 1, 4608)),
    ),
    (
        "wgmma_descriptors",
        "rows of the swizzle have 64 B",
        rebuffered(term("plain"), "smem_b", swizzle=(2, 3, 3)),
    ),
    (
        "wgmma_descriptors",
        "starts at steps of 512 B",
        dos(term("two consumers"), "wgmma", from_row_four),
    ),
    ("fragments", "moves 4", dos(term("plain"), "st.global", lambda do: replace(do, vector=4))),
    ("fragments", "12 along dimension 1", dos(term("plain"), "cvt", values_of(0, 12))),
    ("fragments", "a copy of consumer has 64", role(term("plain"), "consumer", threads=64)),
    (
        "stmatrix",
        "not 8 neighbours",
        dos(term("tma store"), "stmatrix", lambda do: replace(do, variant="trans")),
    ),
    (
        "stmatrix",
        "not 8 neighbours",
        rebuffered(term("tma store"), "smem_c", dtype="f32"),
    ),
    (
        "stmatrix",
        "rows lie 136 B apart",
        rebuffered(term("tma store"), "smem_c", stride=(68, 1)),
    ),
    (
        "fill_tiles",
        "128 elements along dimension 0 of 256",
        replace(term("cluster"), cluster=(("rank_m", 1), ("rank_n", 1))),
    ),
    (
        "store_once",
        "3; 2 copies of consumer",
        rewritten(
            term("pingpong"),
            lambda s: replace(s, step=3) if isinstance(s, ForTile) and s.step == 2 else s,
        ),
    ),
    (
        "store_once",
        "from 0 by 2",
        rewritten(term("pingpong"), lambda s: replace(s, start=0) if isinstance(s, ForTile) else s),
    ),
    (
        "store_once",
        "stored 2 times, once for each w",
        rewritten(
            term("pingpong"),
            lambda s: replace(s, start=0, step=1) if isinstance(s, ForTile) else s,
        ),
    ),
    (
        "barrier_ids",
        "bar.sync 16",
        rewritten(
            term("tma store"), lambda s: replace(s, barrier=15) if isinstance(s, Sync) else s
        ),
    ),
    (
        "barrier_ids",
        "bar.sync 0 of consumer is also one of the CTA",
        rewritten(term("tma store"), lambda s: replace(s, barrier=0) if isinstance(s, Sync) else s),
    ),
    (
        "barrier_ids",
        "bar.sync 2 of consumer is also one of consumer",
        rewritten(
            term("tma store"),
            lambda s: (s, Sync(2, "role")) if isinstance(s, Sync) and s.scope == "role" else s,
        ),
    ),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("start", STARTS)
def test_named_points_break_no_law(start: str, layout: str) -> None:
    wide = start == "swapped" and layout[0] == "t"  # slabs of y are 64 columns wide
    changes: dict[str, Any] = {"tile_n": 64, "store_n": 64} if wide else {}
    assert broken(term(start, layout, **changes)) == {}
    assert broken(term(start, layout, **changes), {"m": 200, "n": 136, "k": 72}) == {}


@pytest.mark.parametrize(
    ("law", "message", "program"), WRONG, ids=[f"{w[0]}-{w[1]}" for w in WRONG]
)
def test_a_term_made_wrong_breaks_its_law(law: str, message: str, program: Program) -> None:
    case = Case.of(program, LARGE, H200)
    said = [str(clause) for clause in LAWS[law].clauses(case) if not clause.holds]
    assert any(message in text for text in said), said
    assert all("\n" not in text for text in said)


ELSEWHERE = {"architecture", "grid", "tma_strides"}
"""Laws of the device and the sizes, tested below."""


def test_every_law_of_tiles_and_roles_has_a_term_that_breaks_it() -> None:
    assert {*ROLE_LAWS, *TENSOR_LAWS} == {
        w[0] for w in WRONG if w[0] in {*ROLE_LAWS, *TENSOR_LAWS}
    } | ELSEWHERE


@pytest.mark.parametrize("name", ["a100", "rtx3060"])
def test_other_architectures_have_no_wgmma(name: str) -> None:
    case = Case.of(term("plain"), LARGE, load_device(name))
    said = [str(c) for c in LAWS["architecture"].clauses(case) if not c.holds]
    assert any("wgmma needs sm_90a" in text for text in said)
    assert any("cp.async.bulk.tensor needs sm_90;" in text for text in said)
    assert not any("cvt" in text for text in said)


def test_a_grid_ends_at_two_to_the_31() -> None:
    program = term("plain")
    assert "grid" not in broken(program, {"m": 64 << 15, "n": (64 << 16) - 64, "k": 64})
    assert "grid" in broken(program, {"m": 64 << 15, "n": 64 << 16, "k": 64})


def test_lines_of_arrays_are_multiples_of_16_bytes() -> None:
    said = [v.law for v in serves(term("plain"), {"m": 64, "n": 64, "k": 100})]
    assert said == ["tma_strides"]
    assert serves(term("plain"), {"m": 7, "n": 66, "k": 104}) == ()
    stored = term("tma store")
    assert [v.law for v in serves(stored, {"m": 7, "n": 66, "k": 104})] == ["tma_strides"]
    assert serves(stored, {"m": 1, "n": 66, "k": 104}) == ()  # one line has no next one
    far = {"m": 64, "n": 64, "k": 1 << 31}
    assert "tma_strides" in [v.law for v in serves(term("plain"), far)]


def test_pairs_of_columns_need_even_rows() -> None:
    assert [v.law for v in serves(term("plain"), {"m": 7, "n": 65, "k": 64})] == ["vector_aligned"]
    assert serves(term("swapped"), {"m": 7, "n": 65, "k": 64}) == ()


def test_registers_of_a_tile_are_counted_once_for_all_its_threads() -> None:
    case = Case.of(term("two consumers"), LARGE, H200)
    said = {str(c) for c in LAWS["registers"].clauses(case)}
    assert "sums need 128 registers of a thread at once; h200 allows 255" in said
    assert "sums of 384 resident threads need 32768 registers; h200 has 65536 per SM" in said
