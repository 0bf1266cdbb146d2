"""The judge against every interleaving, and against itself beyond what it has searched."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings

from benchmarks.async_corpus import verdict_at
from tests.ampere_terms import term as ampere
from tests.async_mutants import mutants as async_mutants
from tests.async_protocols import by_hand
from tests.blackwell_terms import small as blackwell
from tests.hopper_terms import term as hopper
from tests.interleavings import faults
from tests.sample import draws
from tests.small_programs import ZERO, copy, get, mine, pipelined, put, small, use
from tests.test_judge_pipelines import PIPELINES, simt
from tinygpu.legality.concurrency.blocks import laid_out
from tinygpu.legality.concurrency.cutoff import Witness, replayed, searched
from tinygpu.legality.concurrency.erase import erase
from tinygpu.legality.concurrency.judge import verdict, verdict_of
from tinygpu.machines import ampere as ampere_machine
from tinygpu.machines import blackwell as blackwell_machine
from tinygpu.machines import hopper as hopper_machine
from tinygpu.machines.simt import LADDER
from tinygpu.term.program import Affine, For, Program, Role, Statement, Sync, WaitGroup, When, var

PLAIN = {
    **{name: simt(name) for name in LADDER},
    **PIPELINES,
    **{f"ampere {name}": ampere(name) for name in ampere_machine.STARTS},
}
SMALL: dict[str, Any] = {
    "stages": 2,
    "in_flight": 1,
    "store_n": 64,
    "tile_n": 64,
    "store_stages": 2,
}


def drawn(seed: int, every: list[tuple[str, Program]], number: int) -> list[tuple[str, Program]]:
    return random.Random(seed).sample(every, number)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_terms_are_legal(name: str) -> None:
    assert verdict(PLAIN[name]).legal


@pytest.mark.parametrize("start", hopper_machine.STARTS)
def test_terms_of_hopper_are_legal(start: str) -> None:
    got = verdict(hopper(start))
    assert got.legal, got


@pytest.mark.parametrize("start", blackwell_machine.STARTS)
def test_terms_of_blackwell_are_legal(start: str) -> None:
    got = verdict(blackwell(start))
    assert got.legal, got


def test_tiles_may_have_trips_of_their_own() -> None:
    got = verdict(hopper("persistent", **SMALL), apart=True)
    assert got.legal, got
    assert "each tile its own" in str(got)


@settings(max_examples=draws(24, 60), deadline=None)
@given(pipelined())
def test_a_run_has_a_fault_if_an_interleaving_has(program: Program) -> None:
    """At each trip count; and the search says what the runs say, from one trip on."""
    found = verdict(program)
    any_fault = False
    for trips in range(5):
        fault = verdict_at(program, Witness((), (("trips", trips),)))
        assert bool(fault) == bool(faults(program, {"trips": trips})), (trips, str(fault))
        any_fault |= trips > 0 and fault is not None
    assert found.outcome != "unproved"
    assert found.legal or found.run is not None
    assert not (found.legal and any_fault)


@settings(max_examples=draws(24, 60), deadline=None)
@given(pipelined())
def test_the_search_decides_every_trip_count(program: Program) -> None:
    """What the search does not find is not found far beyond it."""
    if verdict(program).legal:
        for trips in (1, 6, 11, 16, 17):
            assert verdict_at(program, Witness((), (("trips", trips),))) is None


def test_a_plain_verdict_is_fast() -> None:
    terms = list(PLAIN.values())
    for term in terms:
        verdict(term)
    verdict_of.cache_clear()
    start = time.process_time()
    for term in terms:
        verdict(term)
    assert (time.process_time() - start) / len(terms) < 0.05


def test_roles_meet_at_barriers() -> None:
    def roles(*bodies: tuple[Statement, ...]) -> Program:
        named = tuple(Role(f"role{i}", 32, body) for i, body in enumerate(bodies))
        return replace(small(2, ()), roles=named)

    write, read = (ZERO, put(2, 0)), (get(2, 0),)
    assert verdict(roles((*write, Sync()), (Sync(), *read))).legal
    for wrong in (
        roles(write, read),
        roles((*write, Sync()), read),
        roles((*write, Sync(0), Sync(1)), (Sync(1), Sync(0), *read)),
    ):
        assert verdict(wrong).outcome == "illegal"


def test_a_fault_that_needs_many_tiles() -> None:
    """Two consumers in turn, each with eight buffers: the 17th tile meets the first."""
    few = {**SMALL, "in_flight": 0, "store_stages": 8}
    program = hopper("pingpong", **few)
    assert verdict(program).legal
    name = "pending+ cp.async.bulk.wait_group.read 7"
    wrong = next(p for n, p in async_mutants(program) if n.startswith(name))
    got = verdict(wrong)
    assert got.fault is not None
    assert got.fault.kind == "race"
    assert got.run is not None
    assert len(got.run.tiles) == 17


def test_what_the_theorem_excludes_is_unproved() -> None:
    """Two loops of the same trips, one backwards, a ring used on, a name, a loop in a loop."""
    k = var("kt")
    turn = (put(2, k), Sync(), get(2, k), Sync())
    backwards = (put(2, -1 * k), Sync(), get(2, -1 * k), Sync())
    unknown = (put(2, k + var("m")), Sync(), get(2, k + var("m")), Sync())
    for body in (
        (For("kt", "trips", turn), For("kt", "trips", turn)),
        (For("kt", "trips", backwards),),
        (For("kt", "trips", turn), put(2, 0), Sync(), get(2, 0)),
        (For("kt", "trips", unknown),),
        (For("kt", "trips", (For("t", "rows", turn),)),),
        (For("kt", "trips", (*turn, put(2, 2 * k), Sync(), get(2, 2 * k), Sync())),),
        (For("kt", "trips", (When(2 * k, "trips", turn),)),),
    ):
        got = verdict(small(2, (ZERO, *body)))
        assert got.outcome == "unproved", got
        assert got.doubts


def test_guards_move_the_witness() -> None:
    k = var("kt")
    early = When(k, 7, (Sync(),))  # the first seven iterations have the barrier
    got = verdict(small(1, (ZERO, For("kt", "trips", (early, put(1, k), Sync(), get(1, k))))))
    assert got.run == Witness((), (("trips", 8),))
    far = When(k + 9, "trips", (put(1, k),))  # a second write without a barrier
    got = verdict(small(1, (ZERO, For("kt", "trips", (put(1, k), far, Sync(), get(1, k), Sync())))))
    assert got.run == Witness((), (("trips", 10),))


def test_a_parameter_that_is_no_loops_is_told_apart() -> None:
    late = When(Affine(11), "rows", (use(0),))
    got = verdict(small(1, (ZERO, late)))
    assert got.outcome == "illegal"
    assert got.run == Witness((), (("rows", 12),))


def test_the_age_of_a_copy_is_part_of_the_state() -> None:
    turns = For("kt", "trips", (WaitGroup(30),))
    assert verdict(small(1, (copy(1, 0), turns))).outcome == "illegal"


def test_a_register_that_is_never_written_is_found() -> None:
    assert "unwritten" in str(verdict(small(1, (use(0),))))
    assert verdict(small(1, (get(1, 0, mine()),))).outcome == "illegal"


@cache
def asynchronous() -> tuple[tuple[str, Program], ...]:
    """Mutants of asynchronous programs: small ones of each family."""
    found: list[tuple[str, Program]] = []
    hand = {p.name: p for p in by_hand()}
    for name in ("store ring 2 2", "two producers 2 False", "two rings 1 2", "chain 1 2 True"):
        found += [(f"{name}: {m}", p) for m, p in async_mutants(hand[name])]
    for start in ("ring", "tma store"):
        found += [(f"{start}: {m}", p) for m, p in async_mutants(hopper(start))]
    return tuple(found)


def test_a_legal_program_has_no_fault_beyond_the_search() -> None:
    for name, program in drawn(1, list(asynchronous()), 40):
        if verdict(program).legal:
            plan = laid_out(erase(program))
            for trips in (1, 3, 7, 10):
                assert replayed(plan, Witness((), (("trips", trips),))) is None, (name, trips)


def test_a_search_that_forgets_who_knows_finds_less() -> None:
    """The facts are part of a state: without a bar.sync the search goes on, and finds a race."""
    k = var("kt")
    turn = (put(3, k + 1), Sync(), get(3, k + 1))
    plan = laid_out(erase(small(3, (ZERO, For("kt", "trips", turn)))))
    assert searched(plan).run is None
    plan = laid_out(erase(small(2, (ZERO, For("kt", "trips", (put(2, k + 1), get(2, k + 1)))))))
    assert searched(plan).run is not None
