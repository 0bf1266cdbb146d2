"""Small asynchronous terms, written by hand: what is found in them, and in what words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.meaning.cluster import Mbarrier
from tinygpu.meaning.interpret import check, interpret
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import elementwise
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Axis,
    Barrier,
    Buffer,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    registers,
    var,
)

TILE = 64
DOUBLE = elementwise(value("x") * Constant(2.0), inputs=("x",))
X, Y = (Buffer(n, "gmem", "f32", ("i",), (1,)) for n in "xy")
IN, OUT = (Buffer(n, "smem", "f32", (TILE,), (1,), 1, TILE) for n in ("in", "out"))
HELD = registers("held", "f32", 2)
FULL = Barrier("full")
AT = (var("b", TILE),)
SIZES = {"i": 3 * TILE - 8}

MINE = Access(HELD, ((1,),))
LOAD = Do(
    INSTRUCTIONS["cp.async.bulk.tensor"], Access(IN, ((1,),)),
    (Access(X, ((1,),), origin=AT, guard=(True,)),), (TILE,), signal=(FULL, Affine()),
)  # fmt: skip
EXPECT = Arrive(FULL, Affine(), bytes=4 * TILE)
READ = Do(INSTRUCTIONS["ld.shared"], MINE, (Access(IN, ((1,),), ((2,),)),), (2,), (32,))
TWICE = Do(INSTRUCTIONS["fma"], MINE, (MINE, MINE), (2,), (32,), variant="add")
WRITE = Do(INSTRUCTIONS["st.shared"], Access(OUT, ((1,),), ((2,),)), (MINE,), (2,), (32,))
STORE = Do(
    INSTRUCTIONS["cp.async.bulk.tensor.global"],
    Access(Y, ((1,),), origin=AT, guard=(True,)), (Access(OUT, ((1,),)),), (TILE,),
)  # fmt: skip
SEND = Elect((STORE, Commit("bulk"), WaitGroup(0, "bulk", read=True)))
LOADER: tuple[Statement, ...] = (Elect((EXPECT, LOAD)),)
WORKER: tuple[Statement, ...] = (
    Wait(FULL, Affine()), READ, TWICE, WRITE, Fence("proxy.async"), Sync(1, "role"), SEND,
)  # fmt: skip


def program(
    worker: tuple[Statement, ...] = WORKER, loader: tuple[Statement, ...] = LOADER, **more: Any
) -> Program:
    grid = (Axis("b", value("i").ceildiv(Constant(TILE))),)
    roles = (Role("loader", 32, loader), Role("worker", 32, worker))
    more = {"barriers": (FULL,), **more}
    return Program("twice", DOUBLE, (X, Y, IN, OUT, HELD), (), grid, roles, **more)


def kinds(term: Program, seeds: range = range(12), size: int = SIZES["i"]) -> set[str]:
    return {f.kind for f in check(term, {"i": size}, seeds=tuple(seeds))}


def without(body: tuple[Statement, ...], *dropped: Statement) -> tuple[Statement, ...]:
    return tuple(s for s in body if not any(s is d for d in dropped))


def test_a_load_and_a_store_are_right_at_every_seed() -> None:
    x = np.random.default_rng(0).standard_normal(SIZES["i"]).astype(np.float32)
    for seed in range(12):
        result = interpret(program(), SIZES, {"x": x}, seed=seed)
        assert result.findings == ()
        np.testing.assert_array_equal(result.outputs["y"], 2 * x)


@pytest.mark.parametrize(
    ("dropped", "kind"),
    [
        (WORKER[0], "race"),
        (WORKER[3], "unwritten_read"),
        (WORKER[4], "unfenced"),
        (WORKER[5], "race"),
        (WORKER[6], "unwritten"),
    ],
    ids=["wait", "write", "fence", "sync", "store"],
)
@pytest.mark.parametrize("seed", range(12))
def test_what_is_dropped_is_found_whoever_runs_first(
    dropped: Statement, kind: str, seed: int
) -> None:
    """In a single CTA, so that there are seeds at which its load lands before anyone reads."""
    assert kind in kinds(program(without(WORKER, dropped)), range(seed, seed + 1), TILE - 8)


def test_a_race_names_both_statements() -> None:
    (race,) = (f for f in check(program(WORKER[1:]), SIZES) if f.kind == "race")
    assert {race.statement, race.other} == {str(READ), str(LOAD)}
    assert race.cell.startswith("in[")


@pytest.mark.parametrize(("expected", "missing"), [(272, "0 arrivals and 16 B"), (240, "-16 B")])
def test_a_deadlock_says_who_lacks_what(expected: int, missing: str) -> None:
    """Bytes that do not agree keep the phase open."""
    loader = (Elect((Arrive(FULL, Affine(), bytes=expected), LOAD)),)
    (deadlock,) = (f for f in check(program(loader=loader), SIZES) if f.kind == "deadlock")
    assert missing in deadlock.message
    assert "worker's first thread of CTA 0: wait full@(0) is phase 0 of stage 0" in deadlock.message


def test_loads_that_nobody_waits_for_outlive_their_cta() -> None:
    found = kinds(program(loader=(Elect((EXPECT, LOAD)),), worker=WORKER[1:]))
    assert "exited" in found


def test_stores_that_nobody_waits_for_are_found() -> None:
    for left in ((STORE,), (STORE, Commit("bulk")), (STORE, Commit("bulk"), WaitGroup(1, "bulk"))):
        assert "unwaited" in kinds(program((*WORKER[:-1], Elect(left))), range(3))


def test_arrivals_beyond_the_count_are_found() -> None:
    """While its bytes are under way a phase takes no more arrivals than it has."""
    late = (Elect((EXPECT, LOAD, Arrive(FULL, Affine()))),)
    assert "unbalanced" in kinds(program(loader=late), range(12))


def test_a_wait_on_the_other_parity_passes_at_once_and_is_found() -> None:
    """Phase 1 has the parity of phase -1, which is over from the start."""
    worker = (Wait(FULL, Affine(1)), *WORKER[1:])
    assert {"aliased", "race"} <= kinds(program(worker))


def test_cp_async_lands_at_its_wait_and_wants_a_fence_like_any_write() -> None:
    """One role copies to the stage that TMA stores: the copy's thread waits, then fences."""
    copy = Do(
        INSTRUCTIONS["cp.async"], Access(OUT, ((1,),), ((2,),)),
        (Access(X, ((1,),), ((2,),), origin=AT, guard=(True,)),), (2,), (32,), vector=2,
    )  # fmt: skip
    good = (copy, Commit(), WaitGroup(0), Fence("proxy.async"), Sync(1, "role"), SEND)

    def found(body: tuple[Statement, ...]) -> set[str]:
        term = Program(
            "copy", elementwise(value("x"), inputs=("x",)), (X, Y, OUT), (),
            (Axis("b", value("i").ceildiv(Constant(TILE))),), (Role("all", 32, body),),
        )  # fmt: skip
        return kinds(term, range(6))

    assert found(good) == set()
    assert "unfenced" in found((*good[:2], good[3], good[2], *good[4:]))
    assert "race" in found((copy, Commit(), Fence("proxy.async"), Sync(1, "role"), SEND))
    assert "unwaited" in found((copy, Commit(), Fence("proxy.async"), Sync(1, "role"), SEND))


def test_what_no_asynchronous_program_has_is_refused() -> None:
    leave = Exit(Access(Y, ((1,),), ((2,),), origin=AT, guard=(True,)), (2,), (32,))
    with pytest.raises(ProgramError, match="leave together"):
        check(program((leave, *WORKER)), SIZES)


@given(st.lists(st.sampled_from(["arrive", "expect", "land"]), max_size=40), st.integers(1, 3))
def test_an_mbarrier_is_over_when_arrivals_and_bytes_are_there(
    events: list[str], count: int
) -> None:
    """Against a count of everything since the phase began; a wait tells parities apart only."""
    barrier = Mbarrier(count, np.zeros(1, np.int64), 0)
    phase, arrived, awaited = 0, 0, 0
    for event in events:
        none = np.zeros(1, np.int64)
        if event == "land":
            barrier.land(16, none)
            awaited -= 16
        else:
            arrived += 1
            awaited += 16 * (event == "expect")
            assert barrier.arrive(1, 16 * (event == "expect"), none) == (arrived <= count)
        if arrived >= count and awaited == 0:
            phase, arrived = phase + 1, 0
        assert barrier.phase == phase == barrier.clock[0]
        assert barrier.passes(phase - 1)
        assert not barrier.passes(phase)
        assert barrier.passes(phase + 1)
