"""Turns that guards tell apart are written out: the kernel does what the guarded loop says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from tests.hopper_terms import rewritten, term
from tests.ptx_runs import unchecked as emit
from tests.sample import all_by_turns, by_turns
from tests.term_threads import Thread
from tests.test_roles import agree, threads_of
from tinygpu.codegen.kernel.peel import Rest, Short, apart, written_out
from tinygpu.codegen.kernel.scope import Scope, TurnRange
from tinygpu.codegen.run.assemble import assemble, every_ptxas
from tinygpu.term.program import (
    Affine,
    Commit,
    Elect,
    Fence,
    For,
    Program,
    Statement,
    Sync,
    When,
    var,
)

Guard = tuple[int, int, int | str]  # known + factor * k < bound
NEAR: tuple[Guard, ...] = ((1, -1, 1), (3, -1, 2), (0, 1, 2), (5, -2, 1), (-1, 2, 3))
FAR: tuple[Guard, ...] = ((1, 1, "trips"), (3, 1, "trips"), (0, 1, "trips"), (-2, 1, "trips"))


def holds(guard: Guard, k: int, trips: int) -> bool:
    known, factor, bound = guard
    return known + factor * k < (trips if isinstance(bound, str) else bound)


def loop(guards: tuple[Guard, ...], start: int = 0) -> For:
    """A loop whose guards stand side by side, one of them deeper."""
    marks = [
        When(Affine(c, (("k", f),)), bound, (Sync(n),)) for n, (c, f, bound) in enumerate(guards)
    ]
    first, *others = marks
    return For("k", "trips", (Elect((For("i", 1, (first,), unrolled=True),)), *others), start=start)


def turns_of(
    found: For, trips: int, first: int, last: int, *, known: bool
) -> Iterator[tuple[int, TurnRange]]:
    """Execute what stands for a loop: each turn, and what is known of it there."""
    start = found.start
    k = start
    for piece in written_out("trips", start, first, last, trips if known else ""):
        match piece:
            case Short(count, short):
                if trips <= count:
                    yield from enumerate(short, k)
                    return
            case Rest(inside):
                while k < trips - last:
                    yield k, inside
                    k += 1
            case TurnRange():
                yield k, piece
                k += 1


def does(
    guards: tuple[Guard, ...], start: int, trips: int, *, known: bool
) -> list[tuple[int, int]]:
    """What is executed where each guard is decided by what is known of the turn."""
    found = loop(guards, start)
    first, last = apart(found, Scope())
    out = []
    for k, turns in turns_of(found, trips, first, last, known=known):
        for n, (c, factor, bound) in enumerate(guards):
            inside = Scope(turns={"k": turns}).below(c, (("k", factor),), bound)
            assert inside is not None, (guards[n], turns)
            out += [(k, n)] if inside else []
    return out


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_what_stands_for_a_loop_does_what_the_loop_does(start: int, known: bool) -> None:
    """For any trips, in order; no guard is left for the running kernel."""
    for guards in [(g,) for g in NEAR + FAR] + list(product(NEAR + FAR, FAR + NEAR)):
        for trips in range(13):
            said = [
                (k, n)
                for k in range(start, trips)
                for n, guard in enumerate(guards)
                if holds(guard, k, trips)
            ]
            assert does(guards, start, trips, known=known) == said, (guards, trips)


def test_no_turn_more_is_written_out() -> None:
    """With a turn less at either end some guard is not the same in the whole loop."""
    for guard in NEAR + FAR:
        c, factor, bound = guard
        first, last = apart(loop((guard,)), Scope())
        assert (first == 0) or (last == 0)
        for less, fewer in ((first - 1, last), (first, last - 1)):
            if less >= 0 and fewer >= 0:
                rest = TurnRange("trips", less, None, fewer + 1)
                assert rest.below(c, factor, bound) is None


def test_guards_that_look_far_stay_branches() -> None:
    """A hundred turns are not written out, and the near guard beside them still is."""
    far: tuple[Guard, ...] = ((100, -1, 1), (100, 1, "trips"), (1, -1, 1), (1, 1, "trips"))
    assert apart(loop(far), Scope()) == (1, 1)
    assert apart(loop(((0, 1, "others"),)), Scope()) == (0, 0)


def guarded(program: Program, when: When) -> Program:
    """A term whose products stand under a guard, with what belongs to them."""

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        if not isinstance(s, For) or s.var != "kt" or not any(isinstance(x, Fence) for x in s.body):
            return s
        ours = tuple(x for x in s.body if isinstance(x, Fence | For | Commit))
        at = s.body.index(ours[0])
        rest = tuple(x for x in s.body[at:] if x not in ours)
        return replace(s, body=(*s.body[:at], replace(when, body=ours), *rest))

    return rewritten(program, change)


ENDS = {
    "from the second turn on": When(var("kt", -1) + 1, 1, ()),
    "from the third turn on": When(var("kt", -1) + 2, 1, ()),
    "but for the last turn": When(var("kt") + 1, "trips", ()),
    "but for the last two turns": When(var("kt") + 2, "trips", ()),
    "in the first turn": When(var("kt"), 1, ()),
}


@pytest.mark.parametrize(
    ("start", "in_flight", "trips"),
    [
        (*of, trips)
        for of, trips in by_turns(
            product(["ring", "persistent", "pingpong", "cluster"], [0, 1, 2]), [1, 5, 3, 2, 5]
        )
    ],
)
def test_a_thread_does_what_the_term_says_at_any_trips(
    start: str, in_flight: int, trips: int
) -> None:
    """Stages and phases are right in turns that are written out, and after them."""
    program = term(start, in_flight=in_flight, tile_n=64, store_n=64, stages=3)
    text = emit(program)
    for number in threads_of(program)[:3:2]:
        thread = Thread(program, {"m": 300, "n": 200, "k": 64 * trips}, number, 0, 1, 2)
        agree(program, text, thread)


@all_by_turns(
    ("trips", [1, 2, 3, 5]),
    ("when", ENDS.values()),
)
def test_products_under_a_guard(when: When, trips: int) -> None:
    """At either end, of few trips too; the guard of the release stands beside it."""
    for start in ("ring", "persistent"):
        program = guarded(term(start, tile_n=64, store_n=64, stages=3), when)
        text = emit(program)
        for number in threads_of(program)[:3:2]:
            thread = Thread(program, {"m": 300, "n": 200, "k": 64 * trips}, number, 0, 1, 2)
            agree(program, text, thread)


def products_alone(program: Program, when: When) -> Program:
    """A term whose products stand under a guard, and what belongs to them does not."""

    def change(s: Statement) -> Statement:
        if not isinstance(s, For) or s.var != "kt" or not any(isinstance(x, Fence) for x in s.body):
            return s
        return replace(s, body=tuple(
            replace(when, body=(x,)) if isinstance(x, For) else x for x in s.body
        ))  # fmt: skip

    return rewritten(program, change)


@pytest.mark.parametrize("when", ENDS.values(), ids=ENDS)
def test_no_branch_stands_around_products(when: When) -> None:
    """Each ptxas that there is takes them without serialising (C7519 with a branch by 13.0)."""
    text = emit(products_alone(term("ring"), when))
    for skipped in re.findall(r"bra (\$skip_\d+);\n(.*?)\n\1:", text, re.DOTALL):
        assert "wgmma" not in skipped[1]  # a release stays a branch
    for ptxas, _ in every_ptxas():
        assert not assemble(text, "sm_90a", ptxas=ptxas).spills
