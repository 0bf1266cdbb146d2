"""What a state of the search consists of: without any one component the search says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from tests.async_mutants import mutants
from tests.async_protocols import TILE, _load, _program, _ring, by_hand
from tests.blackwell_mutants import tensor_mutants
from tests.blackwell_terms import small as blackwell
from tests.hopper_terms import rewritten
from tests.hopper_terms import term as hopper
from tests.small_programs import MANY, ZERO, at, copy, get, put, small
from tests.test_judge_pipelines import PIPELINES
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency import facts
from tinygpu.legality.concurrency.blocks import LaidOut, Spot, laid_out
from tinygpu.legality.concurrency.cutoff import searched
from tinygpu.legality.concurrency.erase import erase
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Commit,
    Do,
    Elect,
    Fence,
    For,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    var,
)

K = var("kt")
Body = tuple[Statement, ...]


def programs() -> Iterator[Program]:
    """Programs in which blocks leave something of each kind to the next ones."""
    hand = {p.name: p for p in by_hand()}
    rings = hand["store ring 2 2"], hand["chain 1 2 True"], hand["two producers 2 False"]
    yield from rings
    yield hopper("tma store", stages=2)
    yield hopper("persistent", stages=2)
    yield from (blackwell("plain"), blackwell("persistent"))
    yield PIPELINES["cp.async 3 stages, issue 0"]
    for program in rings:
        yield from (p for n, p in mutants(program) if n.startswith(("drop", "pending+", "alone")))
    for name, mutant in tensor_mutants(blackwell("persistent")):
        if name.startswith(("drop", "before", "after", "at-once")):
            yield mutant
    late = rewritten(hopper("tma store"), lambda s: () if s == Fence("wgmma") else s)
    yield late
    turn = For("kt", "trips", (get(1, 0), When(K + 1, "trips", (Sync(),))))
    yield small(1, (ZERO, put(1, 0), turn))
    yield small(1, (ZERO, For("kt", "trips", (put(1, K), Sync(), get(1, K)))))
    yield small(1, (copy(1, 0), Commit(), For("kt", "trips", (Commit(), WaitGroup(3)))))


def apart() -> Iterator[Program]:
    """Programs with a loop between what belongs together: a block begins in the midst of it."""
    zero, full, ring = Affine(), Barrier("full", 1, 1), _ring("in", 1)
    idle = For("k", "trips", (Fence("wgmma"),))
    expect = Elect((Arrive(full, zero, bytes=4 * TILE),))
    load = Elect((_load(ring, full, at=zero),))
    for one, two in ((expect, load), (load, expect)):
        yield _program(
            "apart", (ring,), (full,), Role("all", 32, (one, idle, two, Wait(full, zero)))
        )
    yield _program("unseen", (ring,), (full,), Role("all", 32, (expect, load, idle)))
    both = Barrier("both", 1, 64)
    here = Arrive(both, zero)
    yield _program("both", (), (both,), Role("all", 32, (here, idle, here, Wait(both, zero))))
    yield from phases()
    fill, out = put(1, 0), replace(at(1, 0), thread=())
    target = Access(MANY, ((1, 0),), origin=(Affine(), Affine()), guard=(True, True))
    send = Do(INSTRUCTIONS["cp.async.bulk.tensor.global"], target, (out,), (32,))
    sent = Elect((send, Commit("bulk"), WaitGroup(0, "bulk", read=True)))
    turn = For("kt", "trips", (WaitGroup(0),))
    for fence in ((Fence("proxy.async"),), ()):
        yield small(1, (ZERO, fill, turn, *fence, Sync(), sent))


def phases() -> Iterator[Program]:
    """Faults at barriers for which two blocks have to be seen together."""
    idle, one, k = For("k", "trips", (Fence("wgmma"),)), Affine(1), var("k")
    both, mine = Barrier("both", 1, 2), Barrier("mine", 1, 1)

    def two(name: str, barrier: Barrier, first: Body, second: Body) -> Program:
        return _program(name, (), (barrier,), Role("a", 32, first), Role("b", 32, second))

    def here(x: Affine, barrier: Barrier = both) -> Elect:
        return Elect((Arrive(barrier, x),))

    def loop(s: Statement) -> Body:
        return (For("k", "trips", (s,)),)

    yield two("early", both, loop(here(k)), loop(here(k)))
    yield two("later", both, (here(Affine()), idle), (idle, here(Affine()), here(one)))
    yield two("passed", mine, loop(here(k, mine)), loop(Wait(mine, k)))
    yield two("older", mine, (here(Affine(), mine), here(one, mine), idle), (idle, Wait(mine, one)))


@cache
def plans() -> tuple[LaidOut, ...]:
    found = (laid_out(erase(p)) for p in (*programs(), *apart()))
    return tuple(plan for plan in found if not plan.failed and not plan.shared)


def said() -> list[tuple[bool, str]]:
    return [(found.run is None, found.doubt) for found in map(searched, plans())]


@cache
def whole() -> list[tuple[bool, str]]:
    return said()


@pytest.mark.parametrize("name", ["known", "own", "multiplied", "unfenced"])
def test_what_agents_know(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = whole()
    monkeypatch.setattr(facts, "_KNOWN", tuple(n for n in facts._KNOWN if n != name))
    assert said() != full


@pytest.mark.parametrize("table", ["_PHASES", "_COUNTS"])
def test_what_a_phase_has(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of these alone; the others have not been missed in any program that was tried."""
    full, names = whole(), getattr(facts, table)
    needed = {
        "_PHASES": ("issued", "past_issued", "past_passes", "older_issued"),
        "_COUNTS": ("arrivals", "expected", "landed", "unseen"),
    }
    for name in needed[table]:
        monkeypatch.setattr(facts, table, tuple(n for n in names if n != name))
        assert said() != full, name


@pytest.mark.parametrize("name", ["writes", "reads"])
def test_what_a_slot_remembers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full, asked = whole(), facts._asked

    def fewer(place: Spot) -> tuple[str, ...]:
        return tuple(n for n in asked(place) if n != name)

    monkeypatch.setattr(facts, "_asked", fewer)
    assert said() != full


def test_both_outcomes_are_among_them() -> None:
    assert {legal for legal, _ in whole()} == {True, False}
