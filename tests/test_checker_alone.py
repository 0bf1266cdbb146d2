"""The checker alone, when the judge is made to say yes: faults that concern the order.

Each family stands for a fault that was once called legal: sums that start anew late, loads of a
stage that overlap, guards that show steps later, types that disagree, and those of
``tests/test_soundness.py``.  Which numbers are loaded from global memory is no matter of the order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.edited import ruling
from tests.hopper_terms import rebuffered, rewritten, term
from tests.small_programs import LEAVE, ZERO, get, put, small
from tests.test_checker import loads, ruling_unread, turns_of_parts
from tests.test_soundness import ordered_stores, products, protocols, written_in_a_loop
from tests.test_term_text import term as preset
from tinygpu.legality.concurrency import judge
from tinygpu.legality.concurrency.judge import Verdict, verdict
from tinygpu.machines.hopper import STARTS
from tinygpu.term.expression import Apply, Constant, value
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Do,
    For,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    When,
    var,
)  # fmt: skip


@pytest.fixture(autouse=True)
def yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge calls every term legal."""
    monkeypatch.setattr(judge, "verdict_of", lambda *_, **__: Verdict("legal", "made to say so"))
    monkeypatch.setattr(judge, "assumptions", lambda _: ())


def refused(program: Program, rule: str = "") -> None:
    """Require that the checker refuses what the judge calls legal, by a rule."""
    assert verdict(program).legal
    found = ruling(program)
    assert found.word == "refused", str(found)
    assert found.line.startswith(rule), found.line


# Restarts


def anew(program: Program, far: int) -> Program:
    """Of each slice but the first the product starts anew at step far * slice."""

    def one(s: Statement) -> Statement:
        if not (isinstance(s, Do) and s.fresh is not None):
            return s
        forms = ((n, -far if n == "slice" else by) for n, by in s.fresh.terms)
        return replace(s, fresh=Affine(s.fresh.constant, tuple(forms)))

    return rewritten(program, one)


@pytest.mark.parametrize("far", [2, 3, 7, 20])
def test_sums_of_a_slice_that_start_anew_late(far: int) -> None:
    refused(anew(term("plain", stages=2, tile_n=64), far), "value")


@pytest.mark.parametrize("start", [s for s in STARTS if s not in ("ring", "two consumers")])
def test_sums_of_every_start_that_start_anew_late(start: str) -> None:
    plain = start == "shared k"
    program = term(start, stages=2) if plain else term(start, stages=2, tile_n=64)
    late = anew(program, 6)
    assert late != program
    refused(late, "value")


# Loads that overlap


@pytest.mark.parametrize("order", ["WC", "CW", "WCD", "WW", "CCD", "CDW"])
def test_parts_and_wholes(order: str) -> None:
    refused(loads(order), "race")


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_two_turns_of_parts(parts: int) -> None:
    refused(turns_of_parts(parts), "race")


@pytest.mark.parametrize("name", ["smem_a", "smem_b"])
def test_a_whole_stage_and_the_parts_of_peers(name: str) -> None:
    """Each CTA also loads the whole stage, of its own rows; the bytes are expected."""
    more = []

    def whole(s: Statement) -> Statement | tuple[Statement, ...]:
        if not (isinstance(s, Do) and s.signal and s.write.buffer.name == name):
            return s
        (source,) = s.reads
        assert isinstance(source, Access)
        ranked = [any(n.startswith("rank") for n, _ in o.terms) for o in s.write.origin]
        at = ranked.index(True)
        mode = next(i for i, step in enumerate(s.write.value) if step[at])
        values = list(s.values)
        values[mode] = int(s.write.buffer.shape[at])
        origins = [
            tuple(Affine(o.constant, tuple(t for t in o.terms if t[0] != s.multicast)) for o in a)
            for a in (s.write.origin, source.origin)
        ]
        more.append(2 * values[0] * values[1])
        target = replace(s.write, origin=origins[0])
        rows = replace(source, origin=origins[1])
        return replace(s, values=tuple(values), write=target, reads=(rows,), multicast=""), s

    program = rewritten(term("cluster", tile_n=64, store_n=32, stages=2), whole)

    def expected(s: Statement) -> Statement:
        bytes_ = isinstance(s, Arrive) and s.bytes
        return replace(s, bytes=s.bytes + more[0]) if bytes_ and isinstance(s, Arrive) else s

    refused(rewritten(program, expected), "race")


@pytest.mark.parametrize("halves", [False, True])
def test_a_stage_loaded_twice(halves: bool) -> None:
    """The whole of other rows, then the whole again, or its halves."""

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Arrive) and s.bytes:
            return replace(s, bytes=s.bytes + 64 * 64 * 2)
        if not (isinstance(s, Do) and s.signal and s.write.buffer.name == "smem_a"):
            return s
        (source,) = s.reads
        assert isinstance(source, Access)
        rows, columns = source.origin
        other = replace(s, reads=(replace(source, origin=(rows + 64, columns)),))
        if not halves:
            return other, s
        half = replace(s, values=(64, 32, 1))
        step = s.write.value[1]
        begins = s.write.origin or (Affine(),) * len(step)
        shifted = tuple(o + 32 * by for o, by in zip(begins, step, strict=True))
        write = replace(s.write, origin=shifted)
        read = replace(source, origin=(rows, columns + 32))
        return other, half, replace(half, write=write, reads=(read,))

    refused(rewritten(term("plain", stages=2, tile_n=64), one), "race")


# Windows and types


@pytest.mark.parametrize("bound", [1, 3, 5, 9])
def test_a_guard_in_a_prefetch(bound: int) -> None:
    """Only the first steps prefetch; what comes later reads an old index."""

    def one(s: Statement) -> Statement:
        ahead = isinstance(s, When) and s.bound == "trips" and s.index.terms
        return When(var("kt"), bound, (s,)) if ahead else s

    refused(rewritten(preset("simt", "multi-stage"), one))


@pytest.mark.parametrize(
    ("machine", "point", "names", "dtype"),
    [
        ("simt", "shared", ("smem_a",), "bf16"), ("simt", "shared", ("sums",), "bf16"),
        ("simt", "shared", ("smem_a", "a_held"), "bf16"), ("simt", "shared", ("sums",), "f16"),
        ("simt", "shared", ("a_fragment",), "f16"), ("simt", "shared", ("a_held",), "tf32"),
        ("hopper", "plain", ("sums_rounded",), "f16"), ("hopper", "plain", ("sums",), "f16"),
        ("hopper", "plain", ("smem_a",), "f16"), ("hopper", "plain", ("sums_rounded",), "f32"),
    ],
)  # fmt: skip
def test_types(
    machine: str, point: str, names: tuple[str, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constructor of terms is made to say yes, too."""
    program = preset(machine, point)
    monkeypatch.setattr(Program, "__post_init__", lambda self: None)
    for name in names:
        program = rebuffered(program, name, dtype=dtype)
    assert verdict(program).legal
    found = ruling_unread(program)
    assert found.word == "refused"
    assert found.line.startswith("types"), found.line


# The older families


def test_a_guard_by_rank_around_what_orders_stores() -> None:
    whole = term("cluster", tile_n=64, store_n=32, stages=2)
    assert ruling(whole).accepted
    for _, mutant in ordered_stores(whole):
        refused(mutant)


def test_products_without_a_barrier() -> None:
    for seed in range(16):
        refused(products(random.Random(seed)))


def test_loops_of_writes() -> None:
    """Two threads share a cell in two iterations, or in one."""
    for steps, extents in (((1, 1), (2, 0)), ((1, 31), (2, 0)), ((0, 1), (2, 0))):
        refused(written_in_a_loop(steps, extents), "race")
    assert ruling(written_in_a_loop((1, 32), (2, 0))).accepted
    assert ruling(written_in_a_loop((2, 1), (2, 0))).accepted


def leaving() -> Iterator[Program]:
    """Of two roles some threads leave, or one leaves as a whole, before a barrier of both."""
    whole = replace(LEAVE, access=replace(LEAVE.access, thread=((0, 0),)))
    for leave in (whole, LEAVE):
        for at in range(3):
            body: list[Statement] = [Sync(), ZERO, Sync()]
            body.insert(at, leave)
            roles = (Role("a", 32, tuple(body)), Role("b", 32, (Sync(), ZERO, Sync())))
            yield replace(small(1, ()), roles=roles)


def test_roles_that_leave_before_a_barrier() -> None:
    """Two roles and an exit are of no class that is certified; one role is refused."""
    for program in leaving():
        assert not ruling(program).accepted
    refused(small(1, (LEAVE, ZERO, put(1, 0), Sync(), get(1, 0))), "deadlock")


@pytest.mark.parametrize("lanes", [False, True])
def test_registers_written_in_parts(lanes: bool) -> None:
    def part(s: Statement) -> Statement:
        if not (isinstance(s, Do) and s.instruction.name == "ld.shared"):
            return s
        return replace(s, lanes=(1, 32, 0)) if lanes else replace(s, values=(1,))

    for base in protocols():
        if base.name.startswith("store ring"):
            program = rewritten(base, part)
            assert verdict(program).legal
            assert not ruling(program).accepted


def test_the_grids_variable_in_an_index() -> None:
    def one(s: Statement) -> Statement:
        return replace(s, index=s.index + var("b")) if isinstance(s, Wait) else s

    found = ruling(rewritten(protocols()[0], one))
    assert found.word == "not certified"


def test_trips_that_may_be_none() -> None:
    """What only a loop writes is read behind it, and the loop may turn no time."""
    program = small(1, (ZERO, For("kt", "trips", (put(1, 0), Sync())), get(1, 0)))
    none = Apply("min", (value("k"), Constant(0)))
    refused(replace(program, parameters=(("trips", none),)), "value")
    negative = Apply("sub", (value("k"), Constant(5)))
    assert ruling(replace(program, parameters=(("trips", negative),))).word == "not certified"
    assert ruling(program).accepted
