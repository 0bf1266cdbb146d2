"""Terms of hopper that break a law, and terms at a law's edge that keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.hopper_terms import dos, rebuffered, rewritten, role, term
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Commit,
    Do,
    Elect,
    For,
    ForTile,
    Program,
    Statement,
    Sync,
    Wait,
    var,
)

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


def twice(do: Do, start: int) -> For:
    """Let a loop repeat a load."""
    return For("z", 2, (do,), start=start)


def halves(do: Do, apart: int) -> Do:
    """Cut the 64 columns of y into two runs of 32, ``apart`` rows of shared memory apart."""
    x, y, sums = do.reads
    assert isinstance(y, Access)
    assert isinstance(sums, Access)
    first, near, far, *rest = do.values[:3], 4, 2, *do.values[5:]
    value = (*y.value[:4], (apart, 0, 0), *y.value[5:])
    fourth = tuple(4 * step for step in sums.value[3])
    held = replace(sums, value=(*sums.value[:4], fourth, *sums.value[5:]))
    return replace(
        do, values=(*first, near, far, *rest), reads=(x, replace(y, value=value), held), write=held
    )


def stepped(which: int, mode: int, step: tuple[int, ...]) -> Callable[[Do], Do]:
    """Let a factor (0, 1) of a product move otherwise along a mode of values."""

    def change(do: Do) -> Do:
        factor = do.reads[which]
        assert isinstance(factor, Access)
        value = (*factor.value[:mode], step, *factor.value[mode + 1 :])
        factors = [*do.reads]
        factors[which] = replace(factor, value=value)
        return replace(do, reads=tuple(factors))

    return change


def turned(do: Do) -> Do:
    """Let the first factor's rows go by warps before octets."""
    x, *rest = do.reads
    assert isinstance(x, Access)
    quad, octet, warp = x.thread
    return replace(do, reads=(replace(x, thread=(quad, warp, octet)), *rest))


def four_columns(do: Do) -> Do:
    """Let a product have the columns of half a group."""
    return replace(do, values=(do.values[0], 1, do.values[2], *(1 for _ in do.values[3:])))


def one_register(do: Do) -> Do:
    """Let both columns of a pair of sums have one register."""
    still = (0,) * len(do.write.buffer.shape)
    held = replace(do.write, value=(do.write.value[0], still, *do.write.value[2:]))
    return replace(do, write=held, reads=(*do.reads[:2], held))


def within_a_piece(do: Do) -> Do:
    """Start slices of y at multiples of 8 B."""
    x, y, sums = do.reads
    assert isinstance(y, Access)
    first, _, slab = y.origin
    return replace(do, reads=(x, replace(y, origin=(first, var("slice", 4), slab)), sums))


def every_other_line(do: Do) -> Do:
    (source,) = do.reads
    assert isinstance(source, Access)
    return replace(do, reads=(replace(source, value=((0, 1), (2, 0), (0, 64))),))


def all_to_one_part(do: Do) -> Do:
    """Let all CTAs that share k store what the first of them stores."""
    rows, columns = do.write.origin
    of_all = tuple(term for term in columns.terms if term[0] != "rank_k")
    return replace(do, write=replace(do.write, origin=(rows, replace(columns, terms=of_all))))


def with_barriers(program: Program, **changes: Any) -> Program:
    """The program with its barriers changed, wherever they are mentioned."""

    def change(s: Statement) -> Statement:
        if isinstance(s, Wait | Arrive):
            return replace(s, barrier=replace(s.barrier, **changes))
        if isinstance(s, Do) and s.signal:
            return replace(s, signal=(replace(s.signal[0], **changes), s.signal[1]))
        return s

    changed = tuple(replace(b, **changes) for b in program.barriers)
    return rewritten(program, change, barriers=changed)


def to_the_first(do: Do) -> Do:
    return replace(do, write=replace(do.write, peer=0))


to_first = dos(term("shared k"), "st.shared", to_the_first)

# A law, what its message says, and a term that breaks it.
WRONG: tuple[tuple[str, str, Program], ...] = (
    ("cluster_size", "4 x 4 x 2 has 32 CTAs", term("shared k", cluster_m=4, cluster_n=4)),
    ("issuers", "each thread of producer", rewritten(term("plain"), unelected)),
    ("issuers", "one thread cannot", dos(term("plain"), "wgmma", lambda do: Elect((do,)))),
    ("issuers", "a copy of consumer has 64", role(term("plain"), "consumer", threads=64)),
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
    ("home", "its home is along rank, no axis", rebuffered(to_first, "parts", home="rank")),
    ("home", "only st.shared", rebuffered(term("shared k"), "smem_a", home="rank_k")),
    (
        "store_once",
        "stored 2 times, once for each rank_k",
        dos(term("shared k"), "st.global", all_to_one_part),
    ),
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
        with_barriers(term("plain"), arrivals=0),
    ),
    ("mbarrier", "counts 1048576 arrivals", with_barriers(term("plain"), arrivals=1 << 20)),
    (
        "mbarrier",
        "and 32768 B land",
        dos(term("plain"), LOAD, lambda do: twice(do, 0)),
    ),
    (
        "mbarrier",
        "expects 524288 B of a phase, and 16384 B land",
        dos(rewritten(term("plain"), unelected), LOAD, lambda do: Elect((do,))),
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
    ("tma_lines", "48 lines begin 64 lines apart", dos(term("plain"), LOAD, values_of(1, 48))),
    ("tma_box", "257 lines are no 2 boxes", dos(term("plain"), LOAD, values_of(1, 257))),
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
        "TMA needs multiples of 128",
        dos(
            term("plain"),
            LOAD,
            lambda do: replace(
                do,
                write=replace(
                    do.write, origin=(do.write.origin[0], var("tile", 0) + 8, do.write.origin[2])
                ),
            ),
        ),
    ),
    ("tma_box", "contiguous dimension of a", dos(term("plain"), LOAD, every_other_line)),
    ("swizzle", "none of the swizzles", rebuffered(term("plain"), "smem_a", swizzle=(3, 4, 3))),
    ("swizzle", "none of the swizzles", rebuffered(term("plain"), "smem_a", swizzle=(3, 3, 4))),
    ("swizzle", "none of the swizzles", rebuffered(term("plain"), "smem_a", swizzle=(4, 3, 3))),
    ("swizzle", "a stage has 8208 B", rebuffered(term("plain"), "smem_a", stage_elements=4104)),
    ("wgmma_shape", "blocks of 32 rows", dos(term("plain"), "wgmma", values_of(2, 1))),
    ("wgmma_shape", "makes 4 columns", dos(term("plain"), "wgmma", four_columns)),
    ("wgmma_shape", "makes 264 columns", dos(term("plain"), "wgmma", values_of(3, 33))),
    ("wgmma_shape", "takes 16 B of k", dos(term("plain"), "wgmma", values_of(0, 8))),
    (
        "wgmma_shape",
        "do not count the rows of the sums",
        dos(term("plain"), "wgmma", stepped(0, 2, (1, 0, 0))),
    ),
    ("wgmma_shape", "do not count the rows of the sums", dos(term("plain"), "wgmma", turned)),
    (
        "wgmma_shape",
        "do not count the columns of the sums",
        dos(term("plain"), "wgmma", stepped(1, 3, (16, 0, 0))),
    ),
    (
        "wgmma_shape",
        "do not count the registers of the sums",
        dos(term("plain"), "wgmma", one_register),
    ),
    (
        "wgmma_shape",
        "do not count the digits pair, half, quad, octet, warp",
        dos(term("plain"), "wgmma", lambda do: replace(do, threads=(4, 4, 8))),
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
    (
        "wgmma_descriptors",
        "k steps 2 B, rows 128 B",
        dos(term("plain"), "wgmma", lambda do: halves(do, 40)),
    ),
    (
        "wgmma_descriptors",
        "k steps 128 B, rows 2 B",
        dos(term("plain", "nn"), "wgmma", values_of(3, 4)),
    ),
    (
        "wgmma_descriptors",
        "k steps 128 B, rows 2 B",
        rebuffered(term("ring", "nn"), "smem_b", stride=(64, 1, 4100)),
    ),
    ("wgmma_descriptors", "steps of 8 B", dos(term("plain"), "wgmma", within_a_piece)),
    (
        "stmatrix_rows",
        "neighbours of its rows lie 64 elements apart",
        dos(term("tma store"), "stmatrix", lambda do: replace(do, variant="trans")),
    ),
    (
        "stmatrix_rows",
        "its rows start 68 elements apart, no multiple of 16 B",
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
        rewritten(
            term("pingpong"), lambda s: replace(s, start=Affine()) if isinstance(s, ForTile) else s
        ),
    ),
    (
        "store_once",
        "stored 2 times, once for each w",
        rewritten(
            term("pingpong"),
            lambda s: replace(s, start=Affine(), step=1) if isinstance(s, ForTile) else s,
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


# A law, and a term at its edge that keeps it.
RIGHT: tuple[tuple[str, Program], ...] = (
    ("cluster_size", term("cluster", cluster_m=4, cluster_n=4)),
    (
        "collective",
        replace(
            term("plain"),
            roles=(*term("plain").roles, replace(term("plain").roles[1], name="another")),
        ),
    ),
    ("mbarrier", with_barriers(term("plain"), arrivals=(1 << 20) - 1, stages=1)),
    ("mbarrier", dos(term("plain"), LOAD, lambda do: twice(do, 1))),
    (
        "setmaxnreg",
        role(role(term("cluster"), "producer", registers=24), "consumer", registers=240),
    ),
    ("accumulators", role(term("two consumers"), "consumer", registers=152)),
    ("multicast", dos(term("plain"), LOAD, lambda do: replace(do, multicast=""))),
    ("wgmma_shape", term("swapped", tile_n=8, store_n=8)),
    (
        "wgmma_descriptors",  # rows of 32 B
        rebuffered(term("plain"), "smem_b", swizzle=(1, 3, 3), stride=(16, 1, 1024)),
    ),
    ("tma_box", dos(term("plain"), LOAD, values_of(1, 1))),
    ("tma_box", dos(term("plain"), LOAD, values_of(1, 256))),
    ("wgmma_descriptors", dos(term("plain"), "wgmma", lambda do: halves(do, 32))),
    ("wgmma_shape", dos(term("plain"), "wgmma", lambda do: halves(do, 32))),
)
