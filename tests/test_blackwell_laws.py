"""Laws of tensor memory: each kept by the named points, and broken by a term made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.blackwell_terms import FORMS, LARGE, broken, term
from tests.hopper_terms import dos, rebuffered, rewritten, role
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.legality.tmem_laws import TMEM_LAWS
from tinygpu.machines.blackwell import STARTS, Blackwell
from tinygpu.machines.hopper import STARTS as HOPPER
from tinygpu.machines.hopper import Hopper
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Do,
    Elect,
    Program,
    Statement,
    Sync,
    WaitGroup,
    When,
    var,
)

MMA, LD, CP = "tcgen05.mma", "tcgen05.ld", "tcgen05.cp"


def resized(i: int, extent: int) -> Callable[[Do], Do]:
    return lambda do: replace(do, values=(*do.values[:i], extent, *do.values[i + 1 :]))


def stepped(do: Do, i: int, steps: tuple[int, int]) -> Do:
    """Change where a product's sums lie, as it reads and as it writes them."""
    moved = replace(do.write, value=(*do.write.value[:i], steps, *do.write.value[i + 1 :]))
    return replace(do, write=moved, reads=(*do.reads[:2], moved))


def input_stepped(do: Do, i: int, steps: tuple[int, int, int]) -> Do:
    x = do.reads[0]
    assert isinstance(x, Access)
    moved = replace(x, value=(*x.value[:i], steps, *x.value[i + 1 :]))
    return replace(do, reads=(moved, *do.reads[1:]))


def lane_up(do: Do) -> Do:
    (read,) = do.reads
    assert isinstance(read, Access)
    lane, column = read.origin
    return replace(do, reads=(replace(read, origin=(lane + 32, column)),))


def held_apart(do: Do) -> Do:
    return replace(do, write=replace(do.write, value=((2,),)))


def unguarded(s: Statement) -> Statement | tuple[Statement, ...]:
    return s.body if isinstance(s, When) and s.index == var("pair") else s


def elected(s: Statement) -> Statement:
    return Elect((s,)) if isinstance(s, WaitGroup) and s.group == "tcgen05.ld" else s


def committed_by_all(s: Statement) -> Statement | tuple[Statement, ...]:
    return s.body if isinstance(s, Elect) else s


def committed_elsewhere(program: Program) -> Program:
    commit = Arrive(program.barriers[1], Affine(0), after="tcgen05")
    body = next(r for r in program.roles if r.name == "producer").body
    return role(program, "producer", body=(Elect((commit,)), *body))


def unended(program: Program, name: str) -> Program:
    body = next(r for r in program.roles if r.name == name).body
    assert isinstance(body[-1], Sync)
    return role(program, name, body=body[:-1])


def mixed(program: Program) -> Program:
    """Let a second product be of one CTA."""
    return dos(program, MMA, lambda do: (do, replace(do, multicast="")))


def tiled(do: Do, steps: tuple[int, ...]) -> Do:
    """Change how far the tiles that a copy takes lie apart."""
    (read,) = do.reads
    assert isinstance(read, Access)
    return replace(do, reads=(replace(read, value=(*read.value[:2], steps, read.value[3])),))


def written(do: Do, steps: tuple[int, int]) -> Do:
    """Change where a copy puts them: rows 8 columns on, or tiles in other lanes."""
    value = do.write.value
    if steps[0]:
        return replace(do, write=replace(do.write, value=(*value[:2], steps, value[3])))
    return replace(do, write=replace(do.write, value=(value[0], steps, *value[2:])))


def begun(do: Do, lane: int, column: int) -> Do:
    return replace(do, write=replace(do.write, origin=(Affine(lane), Affine(column))))


def turned(do: Do) -> Do:
    (read,) = do.reads
    assert isinstance(read, Access)
    first, second, *rest = read.value
    return replace(do, reads=(replace(read, value=(second, first, *rest)),))


def flattened(do: Do) -> Do:
    (read,) = do.reads
    assert isinstance(read, Access)
    one = replace(read, value=read.value[:1])
    write = replace(do.write, value=do.write.value[:1])
    return replace(do, values=do.values[:1], reads=(one,), write=write)


def row_taken(do: Do, steps: tuple[int, int]) -> Do:
    x = do.reads[0]
    assert isinstance(x, Access)
    moved = replace(x, value=(*x.value[:4], steps, x.value[5]))
    return replace(do, reads=(moved, *do.reads[1:]))


def both_in_tmem(do: Do) -> Do:
    return replace(do, reads=(do.reads[0], do.reads[0], do.reads[2]))


PAIR = term("pair")
COPIED = term("a in tmem")
WRONG: tuple[tuple[str, str, Program], ...] = (
    ("tmem_columns", "have 1024 columns", term("persistent", tile_n=256, accumulators=4)),
    ("tmem_columns", "2 CTAs on an SM", replace(term("wide pair"), ctas_per_sm=2)),
    ("tmem_columns", "128 lanes of whole", rebuffered(PAIR, "sums", shape=(64, 128))),
    (
        "tmem_columns",
        "128 lanes of whole",
        rebuffered(COPIED, "held_x", shape=(128, 63), stride=(63, 1)),
    ),
    ("tmem_columns", "have 576 columns", term("a in tmem", stages=10, tile_n=128)),
    ("tcgen05_cp", "takes 64 B of 128 rows", dos(COPIED, CP, resized(0, 32))),
    ("tcgen05_cp", "takes 32 B of 64 rows", dos(COPIED, CP, resized(1, 64))),
    ("tcgen05_cp", "swizzled by 128", rebuffered(COPIED, "smem_a", swizzle=(2, 3, 3))),
    ("tcgen05_cp", "tiles along k", dos(COPIED, CP, turned)),
    ("tcgen05_cp", "two are a tile", dos(COPIED, CP, flattened)),
    ("tcgen05_cp", "products of pairs", dos(COPIED, MMA, lambda d: replace(d, multicast="pair"))),
    ("tcgen05_cp", "not from shared", dos(COPIED, CP, lambda d: replace(d, reads=(d.write,)))),
    ("tcgen05_cp", "lie 8 B apart", dos(COPIED, CP, lambda d: tiled(d, (0, 4, 0)))),
    ("tcgen05_cp", "lie 2064 B apart", dos(COPIED, CP, lambda d: tiled(d, (16, 8, 0)))),
    ("tcgen05_cp", "a row a lane", dos(COPIED, CP, lambda d: written(d, (0, 8)))),
    ("tcgen05_cp", "a row a lane", dos(COPIED, CP, lambda d: written(d, (1, 16)))),
    ("tcgen05_cp", "no whole column", dos(COPIED, CP, lambda d: begun(d, 0, 1))),
    ("tcgen05_cp", "no whole column", dos(COPIED, CP, lambda d: begun(d, 16, 0))),
    ("tcgen05_first_input", "64 rows of 1", dos(COPIED, MMA, resized(4, 32))),
    (
        "tcgen05_first_input",
        "128 rows of 2",
        replace(
            dos(COPIED, MMA, lambda d: replace(d, multicast="rank_m")),
            cluster=(("rank_m", 2), ("rank_n", 1)),
        ),
    ),
    ("tcgen05_first_input", "a row a lane", dos(COPIED, MMA, lambda d: row_taken(d, (2, 0)))),
    ("tcgen05_first_input", "second input is in tmem", dos(COPIED, MMA, both_in_tmem)),
    ("tcgen05_shape", "multiplies 96 rows", dos(term("ring"), MMA, resized(4, 48))),
    ("tcgen05_shape", "makes 24 columns", dos(term("ring"), MMA, resized(1, 24))),
    ("tcgen05_shape", "makes 320 columns", dos(term("ring"), MMA, resized(1, 320))),
    ("tcgen05_shape", "takes 64 B of k", dos(term("ring"), MMA, resized(0, 32))),
    ("tcgen05_shape", "columns of 2 CTAs, and 1", dos(term("ring"), MMA, resized(3, 2))),
    ("tcgen05_shape", "do not lie", dos(term("small"), MMA, lambda d: stepped(d, 5, (16, 0)))),
    ("tcgen05_shape", "do not lie", dos(term("ring"), MMA, lambda d: stepped(d, 5, (32, 0)))),
    (
        "tcgen05_shape",
        "do not lie",
        dos(term("narrow pair"), MMA, lambda d: stepped(d, 3, (0, 64))),
    ),
    ("tcgen05_descriptors", "swizzled by 128", rebuffered(PAIR, "smem_b", swizzle=(2, 3, 3))),
    (
        "tcgen05_descriptors",
        "rows 256 B",
        dos(term("ring"), MMA, lambda d: input_stepped(d, 4, (2, 0, 0))),
    ),
    (
        "tcgen05_descriptors",
        "elements of 1 B do not lie along k",
        Blackwell().program(matmul("e4m3", "f32", "tt"), Chosen({**STARTS["ring"], "tile_k": 128})),
    ),
    ("tmem_lanes", "is given others", dos(term("ring"), LD, lane_up)),
    ("tmem_lanes", "is given others", dos(term("ring"), LD, held_apart)),
    ("tmem_lanes", "moves 24 columns", dos(term("ring"), LD, resized(0, 24))),
    ("cta_pairs", "alone executes it", rewritten(PAIR, unguarded)),
    ("cta_pairs", "cta_group", mixed(PAIR)),
    ("cta_pairs", "first axis", replace(PAIR, cluster=(("rank_m", 1), ("rank_n", 1), ("pair", 2)))),
    (
        "cta_pairs",
        "first axis; pair has 4",
        replace(PAIR, cluster=(("pair", 4), ("rank_m", 1), ("rank_n", 1))),
    ),
    ("tcgen05_collective", "the thread that", rewritten(term("ring"), committed_by_all)),
    ("tcgen05_collective", "producer does not", committed_elsewhere(term("ring"))),
    ("tcgen05_collective", "one thread alone", rewritten(term("ring"), elected)),
    ("tmem_lifetime", "epilogue ends without", unended(term("ring"), "epilogue")),
    ("tmem_lifetime", "barrier of the cluster", unended(PAIR, "multiplier")),
)


@pytest.mark.parametrize(("start", "layout"), FORMS)
def test_named_points_break_no_law(start: str, layout: str) -> None:
    assert broken(term(start, layout)) == {}
    assert broken(term(start, layout), {"m": 200, "n": 136, "k": 72}) == {}


@pytest.mark.parametrize(
    ("law", "message", "program"), WRONG, ids=[f"{w[0]}-{w[1]}" for w in WRONG]
)
def test_a_term_made_wrong_breaks_its_law(law: str, message: str, program: Program) -> None:
    case = Case.of(program, LARGE, load_device("b200"))
    said = [str(clause) for clause in LAWS[law].clauses(case) if not clause.holds]
    assert any(message in text for text in said), said
    assert all("\n" not in text for text in said)


def test_every_law_is_broken_by_some_term() -> None:
    assert {law for law, _, _ in WRONG} == set(TMEM_LAWS)


@pytest.mark.parametrize("start", ["plain", "cluster"])
def test_ordinary_kernels_keep_the_laws_of_tensor_memory(start: str) -> None:
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(HOPPER[start]))
    case = Case.of(program, LARGE, load_device("h200"))
    assert all(c.holds for law in TMEM_LAWS.values() for c in law.clauses(case))


def test_architectures_have_the_one_or_the_other() -> None:
    """tcgen05 is sm_100a's, wgmma sm_90a's."""
    old = Case.of(term("ring"), LARGE, load_device("h200"))
    said = [str(c) for c in LAWS["architecture"].clauses(old) if not c.holds]
    assert any("tcgen05.mma needs sm_100a; h200 is sm_90a" in text for text in said)
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(HOPPER["plain"]))
    new = Case.of(program, LARGE, load_device("b200"))
    said = [str(c) for c in LAWS["architecture"].clauses(new) if not c.holds]
    assert any("wgmma needs sm_90a" in text for text in said)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("blocks", {"tile_m": 256}),
        ("a_from", {"a_from": "tmem", "tile_m": 64}),
        ("a_from", {"a_from": "tmem", "tile_m": 256, "cta_pair": 1}),
        ("parts", {"tile_n": 16, "cluster_m": 4, "store_n": 16, "vector_c": 8}),
        ("chunks", {"store_n": 128, "tile_n": 64}),
        ("unused", {"store_stages": 2}),
        ("overlap", {"accumulators": 2}),
        ("slabs", {"tile_k": 32}),
    ],
)
def test_requirements_say_what_does_not_agree(name: str, changes: dict[str, int]) -> None:
    operation = matmul("bf16", layout="nt")
    good = Blackwell().requires(operation, Chosen(STARTS["ring"]))
    bad = Blackwell().requires(operation, Chosen({**STARTS["ring"], **changes}))
    assert all(r.holds for r in good)
    assert name in [r.name for r in bad if not r.holds]
