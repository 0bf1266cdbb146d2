"""The checker alone: what it accepts, what it refuses, what it does not certify.

No test asks the judge.  What is refused as illegal is by construction, or by the tables of faults.
"""

from __future__ import annotations

import ast
import json
import zlib
from collections.abc import Callable
from dataclasses import fields, make_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.async_protocols import (
    BY_THREAD,
    HELD,
    TILE,
    K,
    X,
    Y,
    by_hand,
    chain,
    store_ring,
    two_producers,
)
from tests.async_protocols import _loop as loop
from tests.async_protocols import _program as protocol
from tests.async_protocols import _read as read
from tests.async_protocols import _ring as ring
from tests.edited import edited_certificate, ruling, wrong
from tests.hopper_terms import rebuffered, rewritten
from tests.hostile_terms import index_named_twice
from tests.small_programs import LEAVE, ZERO, small
from tests.test_groups import POINTS
from tests.test_groups import term as grouped
from tests.test_term_text import OPERATIONS, presets, term
from tinygpu.checker import table
from tinygpu.checker.check import check
from tinygpu.checker.make import certified
from tinygpu.checker.outcome import Ruling
from tinygpu.checker.written import verified, written
from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.interpret import check as check_of_meaning
from tinygpu.term.expression import value
from tinygpu.term.fields import KNOWN
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import attention
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Do,
    Elect,
    Fence,
    For,
    ForTile,
    Predicate,
    Program,
    Role,
    Scalar,
    Statement,
    Wait,
    When,
    each,
)  # fmt: skip
from tinygpu.term.program import changed as statements_changed
from tinygpu.term.text import CLASSES

ROOT = Path(__file__).parents[1]
PRESETS = [(name, point) for name in OPERATIONS for point in presets(name)]
READ = Fence("proxy.async")
Body = tuple[Statement, ...]


@cache
def certificate_of(name: str, point: str) -> str:
    certificate, why = certified(term(name, point))
    assert certificate is not None, str(why)
    return written(term(name, point), certificate)


# What is accepted


@pytest.mark.parametrize(("name", "point"), PRESETS)
def test_presets_are_accepted(name: str, point: str) -> None:
    text = certificate_of(name, point)
    found = verified(term(name, point), text)
    assert found.accepted, str(found)
    assert not found.believed
    assert len(zlib.compress(text.encode())) < 200 * 1024


@pytest.mark.parametrize("program", list(by_hand()), ids=lambda p: p.name)
def test_protocols_by_hand_are_accepted(program: Program) -> None:
    assert ruling(program).accepted


@pytest.mark.parametrize("point", POINTS)
def test_groups_are_accepted(point: str) -> None:
    """Tiles look up their trips, rows and group on the device."""
    assert ruling(grouped(point)).accepted


@pytest.mark.parametrize("name", ["fa2", "fa3", "decode"])
def test_attention_of_all_keys_is_accepted(name: str) -> None:
    """With a mask tiles have trips of their own; without one a parameter has them."""
    program = Attention().program(attention(), Chosen(STARTS[name]))
    assert ruling(program).accepted


def test_the_order_of_roles_is_no_matter() -> None:
    for program in (store_ring(2, 2), chain(1, 2, True), two_producers(2, False)):
        assert ruling(replace(program, roles=program.roles[::-1])).accepted


def test_a_stage_of_a_barrier_that_nobody_names() -> None:
    """Every second phase alone, of two stages: right, and a wait for the others hangs."""
    right = index_named_twice()
    assert ruling(right).accepted
    assert not check_of_meaning(right, {"i": 300}, seeds=(0, 1, 2, 3))
    late = rewritten(right, lambda s: replace(s, index=s.index + 1) if isinstance(s, Wait) else s)
    assert ruling(late).word == "refused"
    assert any(f.kind == "deadlock" for f in check_of_meaning(late, {"i": 300}, seeds=(0,)))
    both = rewritten(right, lambda s: replace(s, index=K) if isinstance(s, Wait | Arrive) else s)
    assert ruling(both).accepted


def test_a_users_instruction_is_believed() -> None:
    own = replace(
        INSTRUCTIONS["fma"], name="own.fma", variants=(),
        meaning=lambda ops, a, b, c: ops["fma"](a, b, c),
    )  # fmt: skip

    def one(s: Statement) -> Statement:
        if isinstance(s, Do) and s.variant == "fma" and len(s.reads) == 3:
            return replace(s, instruction=own, variant="")
        return s

    found = ruling(rewritten(term("simt", "shared"), one))
    assert found.accepted
    assert found.believed == ("own.fma",)
    late = replace(own, completion="commit_group", meaning=None, lower=lambda *_: None, types=())
    program = rewritten(
        term("ampere", "ring"),
        lambda s: (
            replace(s, instruction=replace(late, reads=("gmem",), writes=("smem",)))
            if isinstance(s, Do) and s.instruction.name == "cp.async"
            else s
        ),
    )
    assert ruling(program).word == "not certified"


# The room, the table, the fields


def test_the_room_imports_terms_and_errors_alone() -> None:
    allowed = ("tinygpu.checker", "tinygpu.term", "tinygpu.errors", "tinygpu.numbers")  # types
    for path in (ROOT / "tinygpu/checker").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tinygpu"):
                assert (node.module or "").startswith(allowed), (path.name, node.module)


def test_the_table_says_what_the_instructions_say() -> None:
    """It is written apart from ``isa``; where both know an instruction they agree."""
    for name, entry in table.TABLE.items():
        how = INSTRUCTIONS[name]
        assert (how.reads, how.writes, how.issuer) == (entry.reads, entry.writes, entry.issuer)
        assert how.proxy == entry.proxy, name
        assert {*how.types} == {*entry.types}, name


def test_every_field_of_every_part_is_read_or_orders_nothing() -> None:
    """The checker's own list is complete, and an entry that is not read says why."""
    assert {kind: {*rules} for kind, rules in table.FIELDS.items()} == {
        kind: {*names} for kind, names in KNOWN.items()
    }
    for rules in table.FIELDS.values():
        for said in rules.values():
            assert said == "order" or len(said) > 3


@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_an_unknown_field_is_not_certified(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field more, or one that the list lacks: the part is one that the checker does not read."""
    assert all(ruling(one).accepted for one in every_kind())
    old = table.FIELDS[kind]
    lacking = {name: said for name, said in old.items() if name != next(iter(old))}
    monkeypatch.setattr(table, "FIELDS", {**table.FIELDS, kind: lacking})
    table._strange.cache_clear()
    try:
        found = [ruling(one).word for one in every_kind()]
        assert "not certified" in found
    finally:
        table._strange.cache_clear()


@cache
def every_kind() -> tuple[Program, ...]:
    """Programs that have a part of every kind, all accepted or refused by a rule."""
    where = Predicate(Affine(0), (1,), (0,), Affine(1))

    def predicated(s: Statement) -> Statement:
        return replace(s, where=where) if isinstance(s, Do) and s.variant == "add" else s

    def scaled(s: Statement) -> Statement:
        if not (isinstance(s, Do) and s.variant == "add"):
            return s
        return replace(s, reads=(s.reads[0], Scalar("i", size=True)))

    right = store_ring(1, 0)
    return (
        term("hopper", "tma store"), term("simt", "multi-stage"), small(1, (LEAVE, ZERO)),
        rewritten(right, predicated), rewritten(right, scaled),
    )  # fmt: skip


def with_field(part: Any, kind: str) -> Any:
    """The part of a term with each part of a kind of a class that has a field more."""
    if isinstance(part, tuple) and not hasattr(part, "_fields"):
        return tuple(with_field(one, kind) for one in part)
    cls = type(part)
    if cls.__name__ not in KNOWN:
        return part
    inner = {f.name: with_field(getattr(part, f.name), kind) for f in fields(cls)}
    if cls.__name__ == kind:
        cls, inner = more_of(cls), {**inner, "added": 1}
    made = object.__new__(cls)
    for name, one in inner.items():
        object.__setattr__(made, name, one)
    return made


def more_of(cls: Any) -> Any:
    return make_dataclass(cls.__name__, [("added", int, 0)], bases=(cls,), frozen=True)


@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_a_field_that_somebody_adds_is_not_certified(kind: str) -> None:
    """A class with a field more, as who extends the language would make it."""
    lines = [certified(with_field(one, kind))[1] for one in every_kind()]
    assert f"not certified: the checker does not read {kind}.added" in map(str, lines)


def test_all_classes_of_statements_and_accesses_are_known() -> None:
    """What is left are values: which numbers an operation and its sizes are."""
    values = {"Operand", "Index", "Apply", "Reduction", "Groups", "Operation", "Constant", "Value"}
    values |= {"Pages", "Lengths"}
    assert {*CLASSES} - values | {"Instruction"} == {*KNOWN} == {*table.FIELDS}


def test_a_loop_that_begins_where_its_trips_may_end_is_not_certified() -> None:
    late = rewritten(
        store_ring(2, 0),
        lambda s: replace(s, start=3) if isinstance(s, For) and s.var == "k" else s,
    )
    assert ruling(late).word == "not certified"


def at_home(program: Program, home: str) -> Program:
    """The program with all barriers at the first CTA of an axis."""
    home_of = {b.name: replace(b, home=home) for b in program.barriers}

    def one(s: Statement) -> Statement:
        if isinstance(s, Wait | Arrive):
            return replace(s, barrier=home_of[s.barrier.name])
        if isinstance(s, Do) and s.signal:
            return replace(s, signal=(home_of[s.signal[0].name], s.signal[1]))
        return s

    return rewritten(program, one, barriers=tuple(home_of.values()))


def test_a_barrier_with_a_home() -> None:
    """At the CTA itself it is as one without; of another CTA nobody may wait."""
    assert ruling(at_home(term("hopper", "tma store"), "rank_m")).accepted
    far = ruling(at_home(term("hopper", "cluster"), "rank_m"))
    assert far.word != "accepted"
    ranks = term("blackwell", "pair")
    bare = rewritten(
        ranks, lambda s: s.body if isinstance(s, When) and str(s.index) == "pair" else s
    )
    assert bare != ranks
    assert not ruling(bare).accepted


# Tile values


def valued(change: Callable[[str, Any], Any], roles: tuple[str, ...]) -> Program:
    """A term of groups whose tile values are others in some roles."""
    program = grouped("direct")

    def one(s: Statement) -> Statement:
        if not isinstance(s, ForTile):
            return s
        return replace(s, values=tuple((n, change(n, e)) for n, e in s.values))

    made = (
        replace(r, body=statements_changed(r.body, one)) if r.name in roles else r
        for r in program.roles
    )
    return replace(program, roles=tuple(made))


def test_trips_that_differ_or_may_be_negative_are_not_certified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The constructor of terms, which refuses both, is made to say yes."""
    monkeypatch.setattr(Program, "_agree", lambda self: None)

    def less(name: str, e: Any) -> Any:
        return e - 1 if name == "trips" else e

    both = tuple(r.name for r in grouped("direct").roles)
    assert ruling_unread(valued(lambda _, e: e, both)).accepted
    for roles in (both[:1], both):
        assert ruling_unread(valued(less, roles)).word == "not certified"


def times(own: str, name: str, e: Any) -> Any:
    return e * value(own) if name == "trips" else e


def test_trips_by_rank_are_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """CTAs of a cluster, or copies, with trips of their own are out of step."""
    monkeypatch.setattr(Program, "__post_init__", lambda self: None)
    both = tuple(r.name for r in grouped("direct").roles)
    for own in ("rank_m", "w"):
        by_rank = valued(partial(times, own), both)
        assert own in ruling_unread(by_rank).line
        assert ruling_unread(by_rank).word == "not certified"


# Who executes


@pytest.mark.parametrize(
    ("machine", "point", "name"),
    [
        ("ampere", "plain", "ldmatrix"), ("ampere", "plain", "mma.sync"),
        ("hopper", "tma store", "stmatrix"), ("blackwell", "persistent", "tcgen05.ld"),
    ],
)  # fmt: skip
def test_what_a_warp_executes_is_not_one_threads(machine: str, point: str, name: str) -> None:
    one = rewritten(
        term(machine, point),
        lambda s: Elect((s,)) if isinstance(s, Do) and s.instruction.name == name else s,
    )
    found = ruling(one)
    assert found.word == "refused"
    assert found.line.startswith("issuers")


# Faults that were found by hand: order, restarts, windows, types


def loads(order: str) -> Program:
    """One stage is filled by loads in an order: W all of it, C and D its halves."""
    full, empty, into = Barrier("full", 2, 1), Barrier("empty", 2, 32), ring("in", 2)

    def one(part: int, size: int) -> Do:
        source = Access(X, ((1,),), origin=(K * TILE + part * 32,), guard=(True,))
        target = Access(into, ((1,),), origin=(Affine(part * 32),), index=K)
        copy = INSTRUCTIONS["cp.async.bulk.tensor"]
        return Do(copy, target, (source,), (size,), signal=(full, K))

    made = {"W": one(0, 64), "C": one(0, 32), "D": one(1, 32)}
    these = tuple(made[x] for x in order)
    expected = sum(4 * s.values[0] for s in these)
    fill: Body = (Wait(empty, K + -2), Arrive(full, K, bytes=expected), *these)
    out = Access(Y, *BY_THREAD, origin=(K * TILE,), guard=(True,))
    mine = Access(HELD, ((1,),), index=K)
    store = Do(INSTRUCTIONS["st.global"], out, (mine,), (2,), (32,))
    take = (Wait(full, K), read(into), READ, Arrive(empty, K), store)
    return protocol(
        "loads", (into,), (full, empty), Role("loader", 32, (Elect((loop(*fill),)),)),
        Role("worker", 32, (loop(*take),)),
    )  # fmt: skip


@pytest.mark.parametrize("order", ["W", "CD", "DC"])
def test_loads_of_a_stage_that_are_apart_are_accepted(order: str) -> None:
    assert ruling(loads(order)).accepted


@pytest.mark.parametrize("order", ["WC", "CW", "WCD", "WW", "CCD", "CDW"])
def test_loads_of_a_stage_that_overlap_are_a_race(order: str) -> None:
    """A part after the whole, the whole after a part: nothing says which lands last."""
    found = ruling(loads(order))
    assert found.word == "refused"
    assert found.line.startswith("race")


def turns_of_parts(parts: int) -> Program:
    """Parts of the next turn overwrite those of this one, which nobody has waited for."""
    full, empty, into = Barrier("full", 2, 1), Barrier("empty", 2, 32), ring("in", 1)
    size = TILE // parts
    these = []
    for part in range(parts):
        source = Access(X, ((1,),), origin=(K * TILE + part * size,), guard=(True,))
        target = Access(into, ((1,),), origin=(Affine(part * size),))
        copy = INSTRUCTIONS["cp.async.bulk.tensor"]
        these.append(Do(copy, target, (source,), (size,), signal=(full, K)))
    fill: Body = (Wait(empty, K + -2), Arrive(full, K, bytes=4 * TILE), *these)
    return protocol(
        "turns", (into,), (full, empty), Role("loader", 32, (Elect((loop(*fill),)),)),
        Role("worker", 32, (loop(Wait(full, K), Arrive(empty, K)),)),
    )  # fmt: skip


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_two_turns_of_parts_at_one_index_are_a_race(parts: int) -> None:
    assert ruling(turns_of_parts(parts)).line.startswith("race")


def test_parts_of_a_cluster_over_the_whole_are_a_race() -> None:
    """Each CTA loads the whole stage by itself, then the parts of its peers land in it."""
    small = term("hopper", "cluster")

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        if not (isinstance(s, Do) and s.signal and s.write.buffer.name == "smem_a"):
            return s
        rows = int(s.write.buffer.shape[0])
        mode = next(i for i, step in enumerate(s.write.value) if step[0])
        values = (*s.values[:mode], rows, *s.values[mode + 1 :])
        still = replace(s.write, origin=(Affine(), *s.write.origin[1:]))
        return replace(s, values=values, write=still, multicast=""), s

    assert ruling(rewritten(small, one)).word == "refused"


@pytest.mark.parametrize("far", [1, 2, 7])
def test_sums_that_start_anew_late_are_read_unwritten(far: int) -> None:
    """``fresh`` at a later step: the first product adds to registers that nothing wrote."""

    def one(s: Statement) -> Statement:
        if isinstance(s, Do) and s.fresh is not None:
            return replace(s, fresh=s.fresh + -far)
        return s

    found = ruling(rewritten(term("hopper", "plain"), one))
    assert found.word == "refused"
    assert "value" in found.line or "certificate" in found.line


@pytest.mark.parametrize("bound", [1, 3, 5])
def test_a_guard_in_a_prefetch_shows_later(bound: int) -> None:
    """What the first steps alone prefetch is read as of an old index."""

    def one(s: Statement) -> Statement:
        ahead = isinstance(s, When) and s.bound == "trips" and s.index.terms
        return When(Affine(0, (("kt", 1),)), bound, (s,)) if ahead else s

    assert ruling(rewritten(term("simt", "multi-stage"), one)).word == "refused"


@pytest.mark.parametrize(
    ("machine", "point", "name", "dtype"),
    [
        ("simt", "shared", "smem_a", "bf16"), ("simt", "shared", "sums", "f16"),
        ("simt", "shared", "a_fragment", "f16"), ("hopper", "plain", "sums_rounded", "f16"),
        ("hopper", "plain", "smem_a", "f16"), ("hopper", "plain", "sums", "bf16"),
    ],
)  # fmt: skip
def test_types_that_disagree_are_refused(
    machine: str, point: str, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the constructor of terms would let them pass."""
    program = term(machine, point)
    with pytest.raises(ProgramError):
        rebuffered(program, name, dtype=dtype)
    monkeypatch.setattr(Program, "__post_init__", lambda self: None)
    found = ruling_unread(rebuffered(program, name, dtype=dtype))
    assert found.word == "refused"
    assert found.line.startswith("types")


def ruling_unread(program: Program) -> Ruling:
    certificate, why = certified(program)
    return why if certificate is None else check(program, certificate)


def test_global_memory_that_is_read_and_written_is_not_certified() -> None:
    program = rewritten(
        store_ring(1, 0),
        lambda s: (
            replace(s, write=replace(s.write, buffer=X))
            if isinstance(s, Do) and s.write.buffer.name == "y"
            else s
        ),
    )
    assert ruling(program).word == "not certified"


# Certificates that are edited, or of another term


def test_a_certificate_is_of_one_term() -> None:
    text = certificate_of("hopper", "ring")
    found = verified(term("hopper", "plain"), text)
    assert str(found) == "refused: certificate: it is of another term"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"format": NaN}', "[" * 100000, '{"format":1}']
)
def test_what_is_no_certificate_is_refused(text: str) -> None:
    assert verified(term("hopper", "plain"), text).word == "refused"


@pytest.mark.parametrize("field", [f.name for f in fields(Ruling)])
def test_a_ruling_is_read(field: str) -> None:
    assert hasattr(verified(term("simt", "shared"), certificate_of("simt", "shared")), field)


@given(st.data())
def test_no_edited_certificate_of_an_illegal_term_is_accepted(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(wrong()))
    text = edited_certificate(lambda many: data.draw(st.integers(0, many - 1)), case)
    assert not verified(case.program, text).accepted


def test_what_is_left_out_is_an_image_and_checked() -> None:
    """A copy's clock that is left out is filled in from the first copy's."""
    tree = json.loads(certificate_of("hopper", "two consumers"))
    left_out = [row for node in tree["nodes"] for row in node["known"] if row is None]
    assert left_out
    whole = certificate_of("hopper", "plain")
    assert not any(row is None for node in json.loads(whole)["nodes"] for row in node["known"])
    tree["nodes"][0]["known"][0] = None
    assert "left out" in verified(term("hopper", "two consumers"), json.dumps(tree)).line


def test_a_cta_of_a_cluster_is_left_out_as_an_image() -> None:
    """All of a cluster's clocks are those of its first CTA, also of barriers and of groups."""
    program = term("hopper", "cluster")
    one = len({(r.name, i) for r in program.roles for i in range(2 * int(r.copies))})
    for node in json.loads(certificate_of("hopper", "cluster"))["nodes"]:
        assert 0 < sum(row is not None for row in node["known"]) <= one < len(node["known"])
        named = {row for _, _, row in node["messages"]} - {None}
        assert len(named) <= len(node["messages"]) // 2
        assert any(row is None for _, _, rows in node["groups"] for row in rows)


def test_statements_of_all_kinds_are_among_the_presets() -> None:
    kinds = {type(s).__name__ for one in every_kind() for r in one.roles for s in each(r.body)}
    assert {"Do", "Wait", "Arrive", "Fence", "Sync", "Exit", "Commit", "WaitGroup"} <= kinds
