"""The verdict on pipelines of shared memory, and on those with one fault."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.async_corpus import verdict_at
from tinygpu.legality.concurrency.erase import erase
from tinygpu.legality.concurrency.judge import verdict, verdict_of
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import (
    Access,
    Buffer,
    Commit,
    Do,
    For,
    Program,
    Statement,
    Sync,
    WaitGroup,
    When,
)


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
    """The verdict is illegal, and its witness can be replayed."""
    got = verdict(program)
    assert not got.legal
    assert got.fault is not None
    assert got.run is not None
    assert got.fault.message
    assert "\n" not in str(got.fault)
    assert verdict_at(program, got.run) == got.fault


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_is_legal_for_every_trip_count(name: str) -> None:
    got = verdict(simt(name))
    assert got.legal, got
    assert got.outcome == "legal", got.reason


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_legal_for_every_trip_count(name: str) -> None:
    got = verdict(PIPELINES[name])
    assert got.legal, got
    assert got.outcome == "legal", got.reason
    assert str(got).startswith("legal: every trips")


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
    key = erase(program)  # a statement of an empty loop is not in it
    mutants = [m for m in each(program, Do, to) if erase(m) != key]
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
    assert got.fault is not None
    assert got.fault.kind == "deadlock"
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
        erase(simt("warp-tiled", tile_m=m, tile_k=k, pad_a=pad, raster=raster))
        for m in (128, 256)
        for k in (16, 32)
        for pad in (0, 4)
        for raster in (1, 8)
    }
    assert len(keys) == 1
    assert erase(PIPELINES["cp.async 3 stages, issue 0"]) not in keys
