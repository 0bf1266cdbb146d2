"""The event graph's verdict against every interleaving, the graph itself and longer trip counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.interleavings import faults
from tests.small_programs import (
    LEAVE,
    PAIR,
    ZERO,
    at,
    copy,
    get,
    mine,
    pipelined,
    put,
    small,
    use,
)
from tinygpu.errors import ProgramError
from tinygpu.events import (
    Event,
    graph,
    skeleton_of,
    unfold,
    verdict,
    verdict_of,
)
from tinygpu.hazards import scan
from tinygpu.instruction import INSTRUCTIONS
from tinygpu.program import (
    Access,
    Affine,
    Commit,
    Do,
    For,
    Program,
    Role,
    Statement,
    Sync,
    WaitGroup,
    When,
    var,
)
from tinygpu.window import window


@settings(max_examples=150)
@given(pipelined())
def test_the_pass_agrees_with_every_interleaving(program: Program) -> None:
    """At each trip count: legal if and only if no interleaving of two threads goes wrong."""
    skeleton = skeleton_of(program)
    for trips in range(4):
        found = scan(skeleton, {"trips": trips})
        seen = faults(program, {"trips": trips})
        assert bool(found) == bool(seen), (trips, [str(f) for f in found], seen)
        if not any(f.kind in ("race", "deadlock") for f in found):
            assert "race" not in seen
            assert "deadlock" not in seen


@settings(max_examples=150)
@given(pipelined())
def test_the_box_decides_every_trip_count(program: Program) -> None:
    """The theorem: what the box does not find is not found far outside it."""
    skeleton = skeleton_of(program)
    box = window(skeleton)
    assert not box.doubt
    upper = dict(box.most).get("trips", 0)
    outside = any(scan(skeleton, {"trips": t}) for t in range(upper + 1, upper + 14))
    if outside:
        assert not verdict_of(skeleton).legal


def apart(found: nx.DiGraph) -> bool:
    """Whether two accesses that conflict are not ordered: the definition, pair by pair."""
    accesses = [e for e in found if not e.done and found.nodes[e]["instance"].cells]

    def done(e: Event) -> Event:
        late = replace(e, done=True)
        return late if late in found else e

    after = {e: nx.descendants(found, done(e)) | {done(e)} for e in accesses}
    for p, q in combinations(accesses, 2):
        same = (p.role, p.thread) == (q.role, q.thread)
        if (p.role, p.position) == (q.role, q.position):
            continue
        for c in found.nodes[p]["instance"].cells:
            for d in found.nodes[q]["instance"].cells:
                if c.key != d.key or not (c.touch.write or d.touch.write):
                    continue
                if c.touch.ring.private and not same:
                    continue
                if q not in after[p] and p not in after[q]:
                    return True
    return False


@settings(max_examples=60)
@given(pipelined(), st.integers(0, 3))
def test_the_pass_decides_the_graph(program: Program, trips: int) -> None:
    """The pass reports a race if and only if the graph leaves a conflicting pair without order."""
    found = graph(program, {"trips": trips})
    assert nx.is_directed_acyclic_graph(found)
    races = [f for f in scan(skeleton_of(program), {"trips": trips}) if f.kind == "race"]
    assert bool(races) == apart(found)


def test_the_generator_draws_both_legal_and_illegal_programs() -> None:
    """Neither side of the tests above is empty."""
    seen: set[bool] = set()

    @settings(max_examples=200, derandomize=True)
    @given(pipelined())
    def draw(program: Program) -> None:
        seen.add(verdict(program).legal)

    draw()
    assert seen == {True, False}


def roles(*bodies: tuple[Statement, ...]) -> Program:
    named = tuple(Role(f"role{i}", 32, body) for i, body in enumerate(bodies))
    return replace(small(2, ()), roles=named)


def test_roles_meet_at_barriers() -> None:
    """A value goes from role to role by a barrier that both have; otherwise it races or hangs."""
    write, read = (ZERO, put(2, 0)), (get(2, 0),)
    assert verdict(roles((*write, Sync()), (Sync(), *read))).legal
    assert {f.kind for f in verdict(roles(write, read)).findings} >= {"race"}
    hangs = roles((*write, Sync()), read)
    assert "deadlock" in {f.kind for f in verdict(hangs).findings}
    crossed = roles((*write, Sync(0), Sync(1)), (Sync(1), Sync(0), *read))
    assert "deadlock" in {f.kind for f in verdict(crossed).findings}
    assert not nx.is_directed_acyclic_graph(graph(crossed, {}))
    assert nx.is_directed_acyclic_graph(graph(roles((*write, Sync()), (Sync(), *read)), {}))


def test_what_the_theorem_excludes_is_checked_up_to_a_bound() -> None:
    """Unproved, never legal: two loops, one backwards, a ring used on, a name, two speeds."""
    k = var("kt")
    turn = (put(2, k), Sync(), get(2, k), Sync())
    backwards = (put(2, -1 * k), Sync(), get(2, -1 * k), Sync())
    unknown = (put(2, k + var("m")), Sync(), get(2, k + var("m")), Sync())
    excluded: list[tuple[Statement, ...]] = [
        (For("kt", "trips", turn), For("kt", "trips", turn)),
        (For("kt", "trips", backwards),),
        (For("kt", "trips", turn), put(2, 0), Sync(), get(2, 0)),
        (For("kt", "trips", unknown),),
        (For("kt", "trips", (For("t", "rows", turn),)),),
        (For("kt", "trips", (*turn, put(2, 2 * k), Sync(), get(2, 2 * k), Sync())),),
    ]
    for body in excluded:
        got = verdict(small(2, (ZERO, *body)))
        assert got.outcome == "unproved", got
        assert not got.legal
        assert "checked up to" in str(got)
    assert verdict(small(2, (ZERO, For("kt", "trips", turn)))).legal


def test_guards_near_the_start_move_the_window() -> None:
    """A fault that needs more than seven trips lies inside the box."""
    k = var("kt")
    early = When(k, 7, (Sync(),))  # the first seven iterations have the barrier
    got = verdict(small(1, (ZERO, For("kt", "trips", (early, put(1, k), Sync(), get(1, k))))))
    assert not got.legal
    assert got.findings[0].trips == (("trips", 8),)


def test_guards_near_the_end_move_the_window() -> None:
    """So does a fault in what only the iterations far from the end do."""
    k = var("kt")
    far = When(k + 9, "trips", (put(1, k),))  # a second write without a barrier
    got = verdict(small(1, (ZERO, For("kt", "trips", (put(1, k), far, Sync(), get(1, k), Sync())))))
    assert not got.legal
    assert got.findings[0].trips == (("trips", 10),)


def test_the_age_of_a_copy_is_part_of_the_state() -> None:
    """A wait that covers a copy only after thirty turns: the box reaches beyond them."""
    turns = For("kt", "trips", (Commit(), WaitGroup(30)))
    box = window(skeleton_of(small(1, (copy(1, 0), turns))))
    assert not box.doubt
    assert dict(box.most)["trips"] > 30


def test_trip_counts_that_a_guard_outside_the_loop_names_are_in_the_box() -> None:
    """A fault after the loop, of twelve trips and more, or of another parameter's."""
    k = var("kt")
    turn = For("kt", "trips", (put(1, k), Sync(), get(1, k), Sync()))
    for name in ("trips", "rows"):
        late = When(Affine(11), name, (ZERO, Sync(7)))
        assert dict(window(skeleton_of(small(1, (ZERO, turn, late)))).most)[name] >= 12
        bad = When(Affine(11), name, (use(0),))
        got = verdict(small(1, (ZERO, turn, bad)))
        assert [f.kind for f in got.findings] == ["unwritten"]
        assert dict(got.findings[0].trips)[name] == 12


def test_a_loop_that_repeats_itself_needs_two_trips() -> None:
    """A second turn may meet the first one's write; a third is like the second."""
    races = For("c", "rows", (get(1, 0), put(1, 0)))
    got = verdict(small(1, (ZERO, put(1, 0), Sync(), races)))
    assert not got.unmet
    assert dict(got.window.most) == {"rows": 2}
    assert [f.trips for f in got.findings] == [(("rows", 1),), (("rows", 2),), (("rows", 2),)]


def test_a_copy_reaches_its_own_thread_by_a_wait_and_others_by_a_barrier() -> None:
    fetch = (copy(1, 0), Commit())
    assert verdict(small(1, (*fetch, WaitGroup(0), Sync(), get(1, 0)))).legal
    for body in (
        (*fetch, WaitGroup(0), get(1, 0)),
        (*fetch, Sync(), WaitGroup(0), get(1, 0)),
        (*fetch, Sync(), get(1, 0), WaitGroup(0)),
        (copy(1, 0), WaitGroup(0), Commit(), Sync(), get(1, 0), WaitGroup(0)),
    ):
        assert [f.kind for f in verdict(small(1, body)).findings] == ["race"]
        assert "race" in faults(small(1, body), {})


def test_a_copy_outlives_no_thread() -> None:
    """Neither at the end nor where some threads leave."""
    fetch = (copy(1, 0), Commit())
    for body in (fetch, (*fetch, LEAVE, WaitGroup(0)), (copy(1, 0), WaitGroup(0))):
        assert [f.kind for f in verdict(small(1, body)).findings] == ["exit"]
        assert faults(small(1, body), {}) == {"exit"}
    assert verdict(small(1, (*fetch, WaitGroup(0), LEAVE))).legal


def test_a_wait_leaves_no_less_than_nothing_pending() -> None:
    assert [f.kind for f in verdict(small(1, (WaitGroup(-1),))).findings] == ["group"]


def test_a_partial_write_does_not_refresh_a_stage() -> None:
    """Half a stage of index 1 over index 0: a read of index 1 may see index 0."""
    half = replace(at(1, 1), thread=((0,),))
    one = Do(INSTRUCTIONS["st.shared"], half, (mine(),), (1,), (32,), lanes=(1, 32, 0))
    got = verdict(small(1, (ZERO, put(1, 0), Sync(), one, Sync(), get(1, 1))))
    assert [f.kind for f in got.findings] == ["stale"]
    assert verdict(small(1, (ZERO, put(1, 0), Sync(), put(1, 1), Sync(), get(1, 1)))).legal


def test_what_the_extraction_leaves_out_hides_no_fault() -> None:
    """A read is dropped, or a loop cut, only where that is sure: faults that look like less."""
    wide, narrow = ((1,),), ((0,),)

    def fetch(index: int, steps: tuple[tuple[int, ...], ...], extent: int, **more: Any) -> Do:
        to = Access(PAIR, steps, ((0,),), index=Affine(index))
        return Do(INSTRUCTIONS["ld.shared"], to, (at(1, 0),), (extent,), (32,), **more)

    source = Access(PAIR, wide, ((0,),), index=Affine(0))
    look = Do(INSTRUCTIONS["cvt"], mine(), (source,), (1,), (32,))
    ready, c = (put(1, 0), Sync()), var("c")
    whole, other = fetch(0, wide, 2), fetch(2, wide, 2)
    shifted = replace(put(1, 1), write=replace(at(1, 1), origin=(Affine(1),)))
    last = When(3 + -1 * c, 1, (look,))
    cases: list[tuple[str, tuple[Statement, ...]]] = [
        ("", (*ready, whole, look)),
        ("", (*ready, other, whole, look)),
        ("stale", (*ready, whole, For("c", 1, (other,)), look)),
        ("stale", (*ready, whole, fetch(2, narrow, 1), look)),
        ("stale", (*ready, other, fetch(0, narrow, 1), look)),
        ("stale", (*ready, other, fetch(0, wide, 2, lanes=(1, 32, 0)), look)),
        ("stale", (*ready, whole, For("c", 3, (look, other)))),
        ("unwritten", (*ready, For("c", 4, (last,)))),
        ("stale", (*ready, shifted, Sync(), get(1, 1))),
    ]
    for kind, body in cases:
        found = verdict(small(1, (ZERO, *body))).findings
        assert {f.kind for f in found} == ({kind} if kind else set()), body


def test_unfolding_needs_every_parameter() -> None:
    with pytest.raises(ProgramError, match="trips"):
        unfold(small(1, (For("kt", "trips", (Sync(),)),)), {})
