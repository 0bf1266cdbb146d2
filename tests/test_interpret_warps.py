"""Warps of one role, and lanes of one warp: the interpreter finds that nothing orders them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.family_mutants import mutants as family_mutants
from tests.hopper_terms import broken, rewritten, term
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.meaning.cluster import divided
from tinygpu.meaning.interpret import check
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import elementwise
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Axis,
    Barrier,
    Buffer,
    Do,
    Elect,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    registers,
    var,
)

T = 96
X, Y = (Buffer(n, "gmem", "f32", ("i",), (1,)) for n in "xy")
IN, MID = (Buffer(n, "smem", "f32", (T,), (1,), 1, T) for n in ("in", "mid"))
HELD, SEEN = registers("held", "f32", 1), registers("seen", "f32", 1)
FULL = Barrier("full")
MINE = Access(HELD, ((0,),))
AT = (var("b", T),)
LOAD = Do(
    INSTRUCTIONS["cp.async.bulk.tensor"], Access(IN, ((1,),)),
    (Access(X, ((1,),), origin=AT, guard=(True,)),), (T,), signal=(FULL, Affine()),
)  # fmt: skip


def do(name: str, write: Access, read: Access, **how: Any) -> Do:
    return Do(INSTRUCTIONS[name], write, (read,), (1,), (T,), **how)


def cell(buffer: Buffer, offset: int = 0) -> Access:
    return Access(buffer, ((0,),), ((1,),), origin=(Affine(offset),))


GET, PUT = do("ld.shared", MINE, cell(IN)), do("st.shared", cell(MID), MINE)
STORE = do("st.global", Access(Y, ((0,),), ((1,),), AT, guard=(True,)), MINE)
FAR = do("ld.shared", Access(SEEN, ((0,),)), cell(MID, 32), lanes=(32, 3, 1))
NEAR = do("ld.shared", Access(SEEN, ((0,),)), cell(MID, 16), lanes=(16, 6, 2))
OVER = do("st.shared", cell(MID, 32), MINE, lanes=(32, 3, 1))
MEET = Sync(1, "role")


def kinds(*body: Statement) -> set[str]:
    loader = Role("loader", 32, (Elect((Arrive(FULL, Affine(), bytes=4 * T), LOAD)),))
    worker = Role("worker", T, (Wait(FULL, Affine()), GET, PUT, *body, STORE, Elect(())))
    made = Program(
        "copy", elementwise(value("x"), inputs=("x",)), (X, Y, IN, MID, HELD, SEEN), (),
        (Axis("b", value("i").ceildiv(Constant(T))),), (loader, worker), barriers=(FULL,),
    )  # fmt: skip
    return {f.kind for f in check(made, {"i": 2 * T - 8}, seeds=tuple(range(4)))}


@pytest.mark.parametrize("other", [FAR, NEAR, OVER], ids=["warp reads", "lane reads", "overwrites"])
def test_threads_of_a_role_are_ordered_by_its_barrier_alone(other: Do) -> None:
    """Warp 1 and warp 2, of which neither has the role's first thread, or lanes of warp 1."""
    assert kinds(MEET, other) == set()
    assert "race" in kinds(other)
    assert "race" in kinds(MEET, other, MEET, PUT, other)


def test_a_thread_needs_no_barrier_for_what_it_did_itself() -> None:
    again = do("ld.shared", Access(SEEN, ((0,),)), cell(MID))
    assert kinds(again, PUT, again) == set()


def test_an_mbarrier_orders_threads_of_one_role_too() -> None:
    """All of them arrive, and all wait: each knows what the others wrote."""
    done = Barrier("done", arrivals=T)
    loader = Role("loader", 32, (Elect((Arrive(FULL, Affine(), bytes=4 * T), LOAD)),))

    def found(*between: Statement) -> set[str]:
        worker = Role("worker", T, (Wait(FULL, Affine()), GET, PUT, *between, FAR, STORE))
        made = Program(
            "copy", elementwise(value("x"), inputs=("x",)), (X, Y, IN, MID, HELD, SEEN), (),
            (Axis("b", value("i").ceildiv(Constant(T))),), (loader, worker), barriers=(FULL, done),
        )  # fmt: skip
        return {f.kind for f in check(made, {"i": T})}

    assert found(Arrive(done, Affine()), Wait(done, Affine())) == set()
    assert "race" in found(Arrive(done, Affine()))
    assert "race" in found()


@pytest.mark.parametrize("dropped", [0, 1])
def test_the_staging_tile_of_a_hopper_term_needs_both_barriers(dropped: int) -> None:
    """Before stmatrix, that the store before has read it; behind, that all warps have written."""
    right = term("tma store", tile_m=64, tile_n=16, store_n=8, consumers=1, store_stages=1)
    sizes = {"m": 64, "n": 16, "k": 72}
    assert check(right, sizes) == ()
    seen = 0

    def without(s: Statement) -> Statement | tuple[Statement, ...]:
        nonlocal seen
        if s == MEET:
            seen += 1
            return () if seen - 1 == dropped else s
        return s

    wrong = rewritten(right, without)
    assert seen == 2
    (race,) = (f for f in check(wrong, sizes) if f.kind == "race")
    assert race.cell.startswith("smem_c[")
    assert {race.statement, race.other} & {str(s) for s in _stores(right)}


def _stores(program: Program) -> list[Do]:
    found: list[Do] = []

    def note(s: Statement) -> Statement:
        if isinstance(s, Do) and "smem_c" in (s.write.buffer.name, s.accesses[0].buffer.name):
            found.append(s)
        return s

    rewritten(program, note)
    return found


def test_a_tile_is_written_by_the_threads_that_hold_it() -> None:
    """Each warp of a warpgroup writes its rows; another warp that writes them too is in a race."""
    right = term("tma store", tile_m=64, tile_n=16, store_n=8, consumers=1, store_stages=1)

    def twice(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Do) and s.write.buffer.name == "smem_c":
            moved = replace(s.write, origin=(s.write.origin or (Affine(), Affine())))
            here = replace(moved, value=_shifted(moved.value), thread=_shifted(moved.thread))
            return s, replace(s, write=here, vector=1)
        return s

    assert "race" in {f.kind for f in check(rewritten(right, twice), {"m": 64, "n": 16, "k": 72})}


def _shifted(each: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The same tile with its columns stored in one place: rows of all warps meet there."""
    return tuple(tuple(0 for _ in steps) for steps in each)


@pytest.mark.parametrize(("threads", "warps"), [(1, 1), (32, 1), (128, 4), (128, 12), (512, 16)])
@pytest.mark.parametrize("first", [False, True])
def test_agents_are_a_partition_of_a_copys_threads(threads: int, warps: int, first: bool) -> None:
    parts = divided(threads, warps, np.random.default_rng(3), first=first)
    assert sorted(np.concatenate(parts).tolist()) == list(range(threads))
    assert all(part.size for part in parts)
    assert all(a[0] < b[0] for a, b in pairwise(parts))
    if first:
        assert parts[0].tolist() == [0]
    for part in parts[first:]:
        assert all(
            np.isin(np.arange(max(first, 32 * w), min(threads, 32 * w + 32)), part).all()
            for w in set((part // 32).tolist())
        )


@pytest.mark.parametrize("where", ["read 2 value 1 in one place", "write value 1 in one place"])
def test_sums_that_share_a_cell_are_no_product(where: str) -> None:
    """A product whose sums lie in fewer cells than it has, or are read elsewhere: a law."""
    program = term("ring", tile_n=64, store_n=32, stages=2)
    found = [m for _, text, m in family_mutants(program) if f"{where}: sums@(turn) = wgmma" in text]
    assert "wgmma_shape" in broken(found[0]())
