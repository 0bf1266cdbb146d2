"""The event graph's verdict: against every interleaving, faults, and longer trip counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.interleavings import faults
from tinygpu.errors import ProgramError
from tinygpu.events import (
    Event,
    concurrency_key,
    graph,
    skeleton_of,
    unfold,
    verdict,
    verdict_of,
)
from tinygpu.expression import Constant, value
from tinygpu.hazards import scan
from tinygpu.instruction import INSTRUCTIONS
from tinygpu.machine import Chosen
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import matmul
from tinygpu.program import (
    Access,
    Affine,
    Axis,
    Buffer,
    Commit,
    Do,
    Exit,
    For,
    Immediate,
    Program,
    Role,
    Statement,
    Sync,
    WaitGroup,
    When,
    registers,
    var,
)
from tinygpu.window import window

MANY = Buffer("a", "gmem", "f32", ("m", "k"), ("k", 1))
HELD = registers("held", "f32", 1)
KEPT = registers("kept", "f32", 1, stages=2)
PAIR = registers("pair", "f32", 2, stages=2)


def simt(point: str, **changes: Any) -> Program:
    return Simt().program(matmul("f32"), Chosen({**LADDER[point], **changes}))


def pipelines() -> dict[str, Program]:
    """The programs with shared memory: the ladder's, and cp.async at each depth."""
    found = {name: simt(name) for name in LADDER if LADDER[name]["a_from"] == "smem"}
    for stages in (2, 3, 4, 5):
        for issue in (0, 1):
            name = f"cp.async {stages} stages, issue {issue}"
            found[name] = simt(
                "multi-stage", pipeline="cp.async", stages=stages, issue=issue, vector_a=4
            )
    return found


PIPELINES = pipelines()


def rebuilt(body: tuple[Statement, ...], change: Any) -> tuple[Statement, ...]:
    """The body with ``change(statement)``'s statements in the place of each."""
    out: list[Statement] = []
    for s in body:
        inner = replace(s, body=rebuilt(s.body, change)) if isinstance(s, For | When) else s
        out += change(s, inner)
    return tuple(out)


def changed(program: Program, kind: type, place: int, to: Any) -> Program | None:
    """The program with the place-th statement of a kind replaced, or None if it has no such."""
    seen = -1

    def change(s: Statement, inner: Statement) -> list[Statement]:
        nonlocal seen
        if not isinstance(s, kind):
            return [inner]
        seen += 1
        return to(inner) if seen == place else [inner]

    role = program.roles[0]
    body = rebuilt(role.body, change)
    return replace(program, roles=(replace(role, body=body),)) if seen >= place else None


def each(program: Program, kind: type, to: Any) -> Iterator[Program]:
    """A mutant for each statement of a kind."""
    place = 0
    while (mutant := changed(program, kind, place, to)) is not None:
        yield mutant
        place += 1


def restaged(program: Program, by: int) -> Program:
    """The program with ``by`` stages more in shared memory."""

    def buffer(b: Buffer) -> Buffer:
        return replace(b, stages=b.stages + by) if b.level == "smem" else b

    def access(x: Any) -> Any:
        return replace(x, buffer=buffer(x.buffer)) if isinstance(x, Access) else x

    def change(s: Statement, inner: Statement) -> list[Statement]:
        if isinstance(inner, Do):
            reads = tuple(access(r) for r in inner.reads)
            return [replace(inner, write=access(inner.write), reads=reads)]
        return [inner]

    role = program.roles[0]
    return replace(
        program,
        buffers=tuple(buffer(b) for b in program.buffers),
        roles=(replace(role, body=rebuilt(role.body, change)),),
    )


def rejected(program: Program) -> None:
    """The verdict is illegal, and its first finding has a witness that can be replayed."""
    got = verdict(program)
    assert not got.legal
    first = got.findings[0]
    assert first.message
    assert "\n" not in str(first)
    again = scan(got.skeleton, dict(first.trips))
    assert first in again
    for witness in (first.first, first.second):
        assert witness in [i for role in unfold(program, dict(first.trips)) for i in role]


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_is_legal_for_every_trip_count(name: str) -> None:
    got = verdict(simt(name))
    assert got.legal, got
    assert got.proved, got.window.doubt


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_legal_for_every_trip_count(name: str) -> None:
    got = verdict(PIPELINES[name])
    assert got.legal, got
    assert got.proved, got.window.doubt
    stages = max(b.stages for b in PIPELINES[name].buffers if b.level == "smem")
    assert dict(got.window.most)["trips"] >= 2 * stages + 2


@pytest.mark.parametrize("name", PIPELINES)
def test_every_barrier_is_needed(name: str) -> None:
    """Without any one bar.sync the program is rejected, and the message says what is missing."""
    mutants = list(each(PIPELINES[name], Sync, lambda _: []))
    assert mutants
    for mutant in mutants:
        rejected(mutant)
        assert "bar.sync" in str(verdict(mutant))


@pytest.mark.parametrize("name", PIPELINES)
def test_every_commit_and_wait_is_needed(name: str) -> None:
    program = PIPELINES[name]
    mutants = [
        *each(program, Commit, lambda _: []),
        *each(program, WaitGroup, lambda _: []),
        *each(program, WaitGroup, lambda w: [WaitGroup(w.pending + 1)]),
    ]
    assert bool(mutants) == name.startswith("cp.async")
    for mutant in mutants:
        rejected(mutant)


@pytest.mark.parametrize("name", [n for n in PIPELINES if "stage" in n])
def test_one_stage_too_few_races_and_one_too_many_does_not(name: str) -> None:
    rejected(restaged(PIPELINES[name], -1))
    assert verdict(restaged(PIPELINES[name], 1)).legal


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("name", PIPELINES)
def test_an_index_off_by_one_is_found(name: str, by: int) -> None:
    def off(x: Any) -> Any:
        if isinstance(x, Access) and x.buffer.level == "smem":
            return replace(x, index=x.index + by)
        return x

    def to(do: Do) -> list[Statement]:
        return [replace(do, write=off(do.write), reads=tuple(map(off, do.reads)))]

    program = PIPELINES[name]
    key = concurrency_key(program)  # a statement of an empty loop is not in it
    mutants = [m for m in each(program, Do, to) if concurrency_key(m) != key]
    assert len(mutants) >= 4
    for mutant in mutants:
        rejected(mutant)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_store_whose_threads_collide_or_leave_gaps_is_found(name: str) -> None:
    """All threads writing the first thread's cells: two of them race."""

    def to(do: Do) -> list[Statement]:
        if do.write.buffer.level != "smem":
            return [do]
        still = tuple((0,) * len(steps) for steps in do.write.thread)
        return [replace(do, write=replace(do.write, thread=still))]

    program = PIPELINES[name]
    for mutant in each(program, Do, to):
        if mutant != program:
            rejected(mutant)
            assert "two threads" in str(verdict(mutant))


def test_a_thread_that_leaves_before_a_barrier_deadlocks() -> None:
    program = simt("shared", edges="return")
    got = verdict(program)
    assert [f.kind for f in got.findings] == ["deadlock"]
    assert verdict(simt("naive")).legal  # it leaves, and has no barrier


def test_a_verdict_is_fast() -> None:
    program = PIPELINES["cp.async 5 stages, issue 1"]
    verdict_of.cache_clear()
    start = time.process_time()
    verdict(program)
    assert time.process_time() - start < 1.0
    start = time.process_time()
    for _ in range(20):
        verdict(program)
    assert (time.process_time() - start) / 20 < 0.01


def test_schedules_that_differ_in_sizes_share_a_skeleton() -> None:
    keys = {
        concurrency_key(simt("warp-tiled", tile_m=m, tile_k=k, pad_a=pad, raster=raster))
        for m in (128, 256)
        for k in (16, 32)
        for pad in (0, 4)
        for raster in (1, 8)
    }
    assert len(keys) == 1
    assert concurrency_key(PIPELINES["cp.async 3 stages, issue 0"]) not in keys


def small(stages: int, body: tuple[Statement, ...], *, threads: int = 32) -> Program:
    """A program around one shared ring ``x``."""
    buffers = (MANY, ring(stages), HELD, KEPT, PAIR)
    return Program(
        "small",
        matmul("f32"),
        buffers,
        (("trips", value("k")),),
        (Axis("b", Constant(1)),),
        (Role("all", threads, body),),
    )


def ring(stages: int) -> Buffer:
    return Buffer("x", "smem", "f32", (32,), (1,), stages, 32)


def at(stages: int, index: Affine | int) -> Access:
    where = index if isinstance(index, Affine) else Affine(index)
    return Access(ring(stages), ((1,),), ((1,),), index=where)


def mine(index: Affine | int = 0, buffer: Buffer = HELD) -> Access:
    where = index if isinstance(index, Affine) else Affine(index)
    return Access(buffer, ((0,),), ((0,),), index=where)


def put(stages: int, index: Affine | int) -> Do:
    return Do(INSTRUCTIONS["st.shared"], at(stages, index), (mine(),), (1,), (32,))


def get(stages: int, index: Affine | int, to: Access | None = None) -> Do:
    return Do(INSTRUCTIONS["ld.shared"], to or mine(), (at(stages, index),), (1,), (32,))


def copy(stages: int, index: Affine | int) -> Do:
    source = Access(MANY, ((0, 1),), ((1, 0),), (Affine(), Affine()), guard=(True, True))
    return Do(INSTRUCTIONS["cp.async"], at(stages, index), (source,), (1,), (32,))


def use(index: Affine | int) -> Do:
    return Do(INSTRUCTIONS["cvt"], mine(), (mine(index, KEPT),), (1,), (32,))


ZERO = Do(INSTRUCTIONS["mov"], mine(), (Immediate(0.0),), (1,), (32,))
LEAVE = Exit(Access(MANY, ((0, 1),), ((1, 0),), (Affine(), Affine())), (1,), (32,))


KINDS = ("put", "get", "copy", "sync", "commit", "wait", "guard", "keep", "use", "loop")


@st.composite
def atoms(draw: DrawFn, stages: int, k: Affine, reach: int) -> Statement:
    """One statement, about as often of each kind as a pipeline has it."""
    d = draw(st.integers(0, reach))
    kind = draw(st.sampled_from(KINDS))
    match kind:
        case "put":
            return put(stages, k + d)
        case "get":
            return get(stages, k + d)
        case "copy":
            return copy(stages, k + d)
        case "sync":
            return Sync()
        case "commit":
            return Commit()
        case "wait":
            return WaitGroup(draw(st.integers(0, 2)))
        case "guard":
            return When(k + d, "trips", (draw(st.sampled_from([put, get, copy]))(stages, k + d),))
        case "keep":
            return get(stages, k, mine(k + d, KEPT))
        case "use":
            return use(k + d)
        case _:
            return For("kk", 3, (get(stages, k), use(k)), unrolled=True)


@st.composite
def pipelined(draw: DrawFn) -> Program:
    """A pipeline of drawn depth, distances and places, with a few statements dropped or added."""
    stages = draw(st.integers(1, 3))
    ahead = draw(st.integers(0, stages))
    copies = draw(st.booleans())
    k, move = var("kt"), copy if copies else put
    guarded = draw(st.booleans())

    def load(d: int) -> tuple[Statement, ...]:
        inner = (move(stages, k + d),)
        return (When(k + d, "trips", inner),) if guarded else inner

    groups: tuple[Statement, ...] = (Commit(),) if copies else ()
    fill: list[Statement] = [*load(0), *groups]
    parts: list[tuple[Statement, ...]] = [
        (WaitGroup(draw(st.integers(0, stages))),) if copies else (),
        (Sync(),),
        (get(stages, k), *((get(stages, k, mine(k, KEPT)), use(k)) if draw(st.booleans()) else ())),
        (*load(ahead), *groups),
    ]
    if draw(st.booleans()):
        parts[2], parts[3] = parts[3], parts[2]
    if draw(st.booleans()):
        parts.append((Sync(),))
    loop = [s for part in parts for s in part]
    for _ in range(draw(st.integers(0, 2))):
        if loop and draw(st.sampled_from([True, False])):
            loop.pop(draw(st.integers(0, len(loop) - 1)))
        else:
            loop.insert(draw(st.integers(0, len(loop))), draw(atoms(stages, k, stages)))
    tail: tuple[Statement, ...] = (WaitGroup(0), Sync()) if draw(st.booleans()) else ()
    if draw(st.integers(0, 9)) == 0:
        fill.append(Sync())
    enter = (LEAVE,) if draw(st.integers(0, 9)) == 0 else ()
    return small(
        stages,
        (
            *enter,
            ZERO,
            For("kt", ahead, tuple(fill), unrolled=True),
            For("kt", "trips", tuple(loop)),
            *tail,
        ),
    )


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
    """Legal, but never proved: two loops, one backwards, a ring used on, a name, two speeds."""
    k = var("kt")
    turn = (put(2, k), Sync(), get(2, k), Sync())
    backwards = (put(2, -1 * k), Sync(), get(2, -1 * k), Sync())
    unknown = (put(2, k + var("bm")), Sync(), get(2, k + var("bm")), Sync())
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
        assert got.legal, got
        assert not got.proved
        assert "checked up to" in str(got)
    assert verdict(small(2, (ZERO, For("kt", "trips", turn)))).proved


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
    assert got.proved
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
        unfold(simt("shared"), {})
