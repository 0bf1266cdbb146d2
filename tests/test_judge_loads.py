"""Loads of a stage in parts: they join where their cells are disjoint, and race where they meet.

The interpreter is the second side: it shares no code with the judge.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.async_protocols import BY_THREAD, HELD, READ, TWICE, X, Y, _loop, _program, _read, _ring
from tests.async_protocols import K as STEP
from tests.hopper_terms import rewritten, term
from tests.ptx_runs import run_matmul
from tinygpu import check, computes, verdict
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.laws import LAWS, require_sound
from tinygpu.legality.reach import Case
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Do,
    Elect,
    Program,
    Role,
    Statement,
    Wait,
)

LOAD = INSTRUCTIONS["cp.async.bulk.tensor"]
SIZES = {"i": 64 * 5}
FULL, EMPTY = Barrier("full", 2, 1), Barrier("empty", 2, 32)


def load(at: int, size: int, off: int = 0) -> Do:
    """Load ``size`` elements to ``at`` of a stage of 64, from ``off`` beyond their own."""
    source = Access(X, ((1,),), origin=(STEP * 64 + at + off,), guard=(True,))
    target = Access(_ring("in", 2), ((1,),), origin=(Affine(at),), index=STEP)
    return Do(LOAD, target, (source,), (size,), signal=(FULL, STEP))


def ring(*loads: Do) -> Program:
    """y = 2 x, by loads of one turn into a stage."""
    landing = sum(4 * s.values[0] for s in loads)
    fill: tuple[Statement, ...] = (
        Wait(EMPTY, STEP + -2),
        Arrive(FULL, STEP, bytes=landing),
        *loads,
    )
    out = Access(Y, *BY_THREAD, origin=(STEP * 64,), guard=(True,))
    mine = Access(HELD, ((1,),), index=STEP)
    store = Do(INSTRUCTIONS["st.global"], out, (mine,), (2,), (32,))
    take = (Wait(FULL, STEP), _read(_ring("in", 2)), READ, Arrive(EMPTY, STEP), TWICE, store)
    roles = Role("loader", 32, (Elect((_loop(*fill),)),)), Role("worker", 32, (_loop(*take),))
    return _program("loads", (_ring("in", 2),), (FULL, EMPTY), *roles)


WHOLE, FIRST, SECOND = load(0, 64), load(0, 32), load(32, 32)
OVERLAPPING = {
    "whole, then a part": (WHOLE, FIRST),
    "a part, then whole": (FIRST, WHOLE),
    "whole, then both parts": (WHOLE, FIRST, SECOND),
    "wrong rows, then right ones": (load(0, 64, 64), FIRST, SECOND),
    "a part twice": (load(0, 32, 64), FIRST, SECOND),
    "parts that meet": (load(0, 40), load(24, 40)),
    "three pieces, the last over the first": (load(0, 16), load(16, 48), load(8, 16)),
    "whole, twice": (WHOLE, WHOLE),
}
DISJOINT = {
    "whole": (WHOLE,),
    "two parts": (FIRST, SECOND),
    "the second first": (SECOND, FIRST),
    "three pieces": (load(0, 16), load(48, 16), load(16, 32)),
    "four": tuple(load(16 * i, 16) for i in range(4)),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_loads_that_meet_are_a_race(name: str) -> None:
    program = ring(*OVERLAPPING[name])
    assert verdict(program).outcome == "illegal"
    assert {f.kind for f in check(program, SIZES, seeds=tuple(range(6)))} & {"race"}
    assert not computes(program, SIZES)


@pytest.mark.parametrize("name", DISJOINT)
def test_loads_of_disjoint_cells_are_legal(name: str) -> None:
    program = ring(*DISJOINT[name])
    assert verdict(program).legal
    assert check(program, SIZES) == ()
    case = Case.of(program, SIZES, None)
    assert all(clause.holds for clause in LAWS["fill_tiles"].clauses(case))


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_turn_of_parts_follows_the_turn_before(parts: int, stages: int) -> None:
    """All turns fill the same stage: with two stages of the barriers nothing orders them."""
    full, empty = Barrier("full", stages, 1), Barrier("empty", stages, 32)
    into, size = _ring("in", 1), 64 // parts

    def part(number: int) -> Do:
        source = Access(X, ((1,),), origin=(STEP * 64 + number * size,), guard=(True,))
        target = Access(into, ((1,),), origin=(Affine(number * size),))
        return Do(LOAD, target, (source,), (size,), signal=(full, STEP))

    fill: tuple[Statement, ...] = (
        Wait(empty, STEP + -stages),
        Arrive(full, STEP, bytes=256),
        *map(part, range(parts)),
    )
    held = Access(HELD, ((1,),))
    read = Do(INSTRUCTIONS["ld.shared"], held, (Access(into, *BY_THREAD),), (2,), (32,))
    out = Access(Y, *BY_THREAD, origin=(STEP * 64,), guard=(True,))
    store = Do(INSTRUCTIONS["st.global"], out, (held,), (2,), (32,))
    twice = Do(INSTRUCTIONS["fma"], held, (held, held), (2,), (32,), variant="add")
    take = (Wait(full, STEP), read, READ, Arrive(empty, STEP), twice, store)
    roles = Role("loader", 32, (Elect((_loop(*fill),)),)), Role("worker", 32, (_loop(*take),))
    program = _program("turns", (into,), (full, empty), *roles)
    found = check(program, SIZES, seeds=tuple(range(6)))
    assert verdict(program).legal == (stages == 1) == (not found)


def split(shift: int = 0) -> Program:
    """Hopper's ``plain``, whose rows of a come by two loads, the second one ``shift`` higher up."""

    def halves(s: Statement) -> Any:
        if not isinstance(s, Do) or s.write.buffer.name != "smem_a" or not s.signal:
            return s
        (source,) = s.reads
        assert isinstance(source, Access)
        deep, rows, *rest = s.values
        first = replace(s, values=(deep, rows // 2, *rest))
        down = rows // 2 - shift
        there = replace(first.write, origin=(first.write.origin[0] + down, *first.write.origin[1:]))
        here = replace(source, origin=(source.origin[0] + down, *source.origin[1:]))
        return (first, replace(first, write=there, reads=(here,)))

    return rewritten(term("plain", tile_n=64, stages=2), halves)


def test_a_split_load_of_hopper_is_legal_proved_and_right() -> None:
    program, sizes = split(), {"m": 64, "n": 64, "k": 136}
    require_sound(program, "sm_90a", sizes)
    assert computes(program).proved
    run = run_matmul(program, sizes)
    assert run.right
    assert not run.report.findings


def test_halves_that_share_rows_race() -> None:
    assert verdict(split(8)).fault is not None
    assert {f.kind for f in check(split(8), {"m": 64, "n": 64, "k": 200})} & {"race", "unwritten"}


def whole_beside_parts(name: str) -> Program:
    """Hopper's ``cluster``, in which each CTA also loads a whole stage by itself."""
    extra = 0

    def both(s: Statement) -> Any:
        nonlocal extra
        if not isinstance(s, Do) or not s.signal or s.write.buffer.name != name:
            return s
        (source,) = s.reads
        assert isinstance(source, Access)
        along = s.multicast
        dimension = next(i for i, o in enumerate(s.write.origin) if o.terms)
        mode = next(i for i, steps in enumerate(s.write.value) if steps[dimension])
        values = list(s.values)
        values[mode] = int(s.write.buffer.shape[dimension])
        extra = 2 * values[0] * values[1]
        write, read = (
            replace(a, origin=tuple(Affine(o.constant, tuple(t for t in o.terms if t[0] != along))
                                    for o in a.origin))
            for a in (s.write, source)
        )  # fmt: skip
        return (replace(s, values=tuple(values), write=write, reads=(read,), multicast=""), s)

    loaded = rewritten(term("cluster", tile_n=64, store_n=32, stages=2), both)
    return rewritten(
        loaded,
        lambda s: replace(s, bytes=s.bytes + extra) if isinstance(s, Arrive) and s.bytes else s,
    )


@pytest.mark.parametrize("name", ["smem_a", "smem_b"])
def test_parts_of_a_cluster_do_not_join_a_whole_load(name: str) -> None:
    program = whole_beside_parts(name)
    assert verdict(program).outcome == "illegal"
    assert "race" in {f.kind for f in check(program, {"m": 256, "n": 64, "k": 136}, seeds=(0, 1))}
