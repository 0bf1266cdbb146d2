"""``computes`` asks as many trips as guards, bounds and restarts tell apart, or says unproved.

Each term here is wrong at sizes that are larger than those that were asked before, so that it was
called proved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.hopper_terms import rewritten, term
from tinygpu import computes, emit, verdict
from tinygpu.codegen.run.agreement import require_computes
from tinygpu.codegen.run.launch import Kernel
from tinygpu.errors import IllegalScheduleError
from tinygpu.legality.laws import require_sound
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning import identity
from tinygpu.meaning.assumptions import unproved, window
from tinygpu.meaning.identity import Meaning
from tinygpu.term.expression import Expression, value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Do,
    Program,
    Role,
    Scalar,
    Statement,
    Sync,
    When,
    registers,
    var,
)


def simt(rung: str) -> Program:
    return Simt().program(matmul(), Chosen(LADDER[rung]))


def restarted(far: int) -> Program:
    """Sums that start anew at step ``far``, too: a restart is a guard."""

    def later(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.fresh is None:
            return s
        terms = tuple((n, -far if n == "slice" else c) for n, c in s.fresh.terms)
        return replace(s, fresh=replace(s.fresh, terms=terms))

    return rewritten(term("plain", stages=2, tile_n=64), later)


def prefetching(bound: int) -> Program:
    """A prefetch that reads one row further from step ``bound`` on: seen a ring's length later."""

    def moved(s: Statement) -> Any:
        if not isinstance(s, When) or s.bound != "trips" or "kt" not in dict(s.index.terms):
            return s
        out: list[Statement] = []
        for one in s.body:
            read = one.reads[0] if isinstance(one, Do) else None
            if isinstance(one, Do) and isinstance(read, Access) and read.buffer.name == "a":
                origin = (read.origin[0] + 1, *read.origin[1:])
                bad = replace(one, reads=(replace(read, origin=origin),))
                late = When(var("kt", -1), 1 - bound, (bad,))
                out += [When(var("kt"), bound, (one,)), late]
            else:
                out.append(one)
        return tuple(out)

    return rewritten(simt("multi-stage"), moved)


@pytest.mark.parametrize("far", [2, 3, 7])
def test_sums_that_start_anew_late_are_found(far: int) -> None:
    program = restarted(far)
    assert verdict(program).legal
    assert window(program)[0] > far
    found = computes(program)
    assert found.finding is not None
    assert found.finding.kind == "wrong_result"


@pytest.mark.parametrize("bound", [2, 3, 5])
def test_a_guard_in_a_prefetch_shows_later(bound: int) -> None:
    program = prefetching(bound)
    assert verdict(program).legal
    start, end = window(program)
    assert start + end >= bound + 2
    assert computes(program).finding is not None


def test_a_restart_beyond_what_can_be_asked_is_unproved() -> None:
    found = computes(restarted(400))
    assert not found.proved
    assert "take too long" in str(found) or found.finding is not None


def with_parameter(program: Program, expression: Expression) -> Program:
    return replace(program, parameters=(*program.parameters, ("far", expression)))


def test_what_the_window_cannot_see_is_unproved() -> None:
    """Names of parameters in places, sizes as numbers, two axes of the grid along one dimension."""
    shared = simt("shared")

    def store(s: Statement) -> Statement:
        if isinstance(s, Do) and s.write.buffer.name == "c":
            origin = (s.write.origin[0] + Affine(0, (("far", 1),)), *s.write.origin[1:])
            return replace(s, write=replace(s.write, origin=origin))
        return s

    beyond = with_parameter(shared, value("m") - 24)
    assert "moves with far" in unproved(rewritten(beyond, store))

    def counted(s: Statement) -> Statement:
        if isinstance(s, Do) and s.instruction.name == "mov":
            return replace(s, reads=(Scalar("k", size=True),))
        return s

    assert "reads the size k" in unproved(rewritten(shared, counted))


def test_a_sum_that_reads_another_sum_is_unproved() -> None:
    """A chain of sums brings what it holds one step further each time, as far as it is long."""
    shared = simt("shared")
    extra = registers("extra", "f32", 1)
    one = Access(extra, ((0,),))

    def chained(s: Statement) -> Any:
        if not isinstance(s, Do) or (s.variant or s.instruction.name) != "fma":
            return s
        flat = replace(s, reads=(s.write, replace(one, value=((0,),) * len(s.values))),
                       variant="add")  # fmt: skip
        return (s, flat)

    wrong = rewritten(shared, chained, buffers=(*shared.buffers, extra))
    assert not computes(wrong).proved


# A net under the proof


def test_a_proved_term_is_run_at_three_larger_sizes() -> None:
    program = simt("shared")
    found = computes(program)
    assert found.proved
    assert 1 <= found.larger <= 3
    assert str(found).endswith(f"; {found.larger} larger")
    deepest = max(sizes["k"] for sizes in found.asked)
    assert all(sizes["k"] > deepest - 32 for sizes in identity._larger(program))
    assert identity._larger(program) == identity._larger(program)


def test_the_net_finds_what_a_window_that_is_too_small_lets_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the window of old the larger sizes are what is left."""
    program = restarted(2)
    monkeypatch.setattr(identity, "window", lambda _: (1, 0))
    identity._computes.cache_clear()
    found = computes(program)
    identity._computes.cache_clear()
    assert found.finding is not None
    assert found.asked[-1]["k"] > 64 * 2


# What is illegal does not compute


def racy() -> Program:
    return rewritten(simt("shared"), lambda s: () if isinstance(s, Sync) else s)


@pytest.mark.parametrize("sizes", [None, {"m": 32, "n": 32, "k": 64}])
def test_an_illegal_term_is_not_said_to_compute(sizes: dict[str, int] | None) -> None:
    found = computes(racy(), sizes)
    assert not found
    assert found.wrong
    assert not found.proved
    assert "computes its operation" not in str(found)
    assert "race" in str(found)
    if sizes is None:
        with pytest.raises(IllegalScheduleError, match="race"):
            require_computes(racy())


def test_a_legal_term_that_computes_is_true() -> None:
    assert computes(simt("shared"))
    assert not Meaning(simt("shared"), (), None, unproved="nobody asked")


# emit refuses


def hangs() -> Program:
    """Three consumers of 240 registers each: setmaxnreg waits for ever."""
    program = term("two consumers", stages=2)
    roles: list[Role] = [
        replace(r, copies=3, registers=240) if r.name == "consumer" else r for r in program.roles
    ]
    return replace(program, roles=tuple(roles))


def test_emit_refuses_what_a_law_or_the_judge_refuses() -> None:
    with pytest.raises(IllegalScheduleError, match=r"race.*unchecked=True"):
        emit(racy())
    with pytest.raises(IllegalScheduleError, match="setmaxnreg"):
        require_sound(hangs(), "sm_90a")
    with pytest.raises(IllegalScheduleError, match=r"architecture.*sm_80"):
        emit(term("plain"), "sm_80")
    with pytest.raises(IllegalScheduleError, match="race"):
        Kernel(racy(), arch="sm_90a")
    assert "bar.sync" not in emit(racy(), unchecked=True)
    assert Kernel(racy(), arch="sm_90a", unchecked=True).cubin.registers > 0


def test_emit_asks_laws_of_sizes_where_they_are_given() -> None:
    vectors = simt("vectorised")
    emit(vectors)
    with pytest.raises(IllegalScheduleError, match="vector_aligned"):
        emit(vectors, "sm_90a", {"m": 64, "n": 63, "k": 64})
