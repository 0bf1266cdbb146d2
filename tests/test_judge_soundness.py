"""Terms that an earlier judge called legal and proved, and that fail: none is legal.

The numbers are those of the list of faults of soundness.  Each is a family, not a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.async_protocols import TILE, _load, _program, _ring
from tests.blackwell_terms import small as blackwell
from tests.hopper_terms import dos, rebuffered, rewritten, term
from tests.small_programs import MANY, ZERO, at, get, mine, put, small
from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.judge import Verdict, verdict
from tinygpu.term.expression import Constant, value
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Buffer,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    Immediate,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    registers,
    var,
)


def refused(make: Callable[[], Program]) -> Verdict | None:
    """A program that cannot be built, or is not legal."""
    try:
        program = make()
    except ProgramError:
        return None
    got = verdict(program)
    assert not got.legal, got
    return got


def guarded(program: Program, kind: type[Statement], text: str, axis: str) -> Program:
    """The program with some statements executed by the first CTA along an axis alone."""

    def change(s: Statement) -> Statement:
        return When(var(axis), 1, (s,)) if isinstance(s, kind) and text in str(s) else s

    return rewritten(program, change)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Fence, "proxy.async"), (Commit, "bulk"), (WaitGroup, "read 1"), (WaitGroup, "read 0")],
)
@pytest.mark.parametrize("machine", ["hopper", "blackwell"])
def test_1_guards_by_rank(machine: str, kind: type[Statement], text: str) -> None:
    """A CTA that leaves out what its stores need."""
    if machine == "hopper":
        program = term("cluster", tile_n=64, store_n=32, stages=2)
    else:
        program = blackwell("cluster")
    assert verdict(program).legal
    got = refused(lambda: guarded(program, kind, text, "rank_m"))
    assert got is not None
    assert got.outcome == "illegal"


def test_2_home_rings_need_the_clusters_barrier() -> None:
    """What another CTA wrote is read after barrier.cluster only."""
    program = term("shared k")
    assert verdict(program).legal

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        inner = isinstance(s, Sync) and s.scope == "cluster"
        return () if inner else s

    got = refused(lambda: rewritten(program, change))
    assert got is not None
    assert got.outcome == "illegal"


def test_2_home_rings_that_a_bulk_store_sends() -> None:
    """Nor is a home ring a store's own."""
    program = term("shared k", output="f32")
    parts = next(b for b in program.buffers if b.name == "parts")
    send = INSTRUCTIONS["cp.async.bulk.tensor.global"]
    c = next(b for b in program.buffers if b.name == "c")

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Sync) and s.scope == "cluster":
            return ()
        if isinstance(s, Do) and s.instruction.name == "ld.shared":
            store = Do(send, Access(c), (Access(parts, index=s.accesses[0].index),), ())
            fence = Fence("proxy.async")
            role = Sync(1, "role")
            return (fence, role, Elect((store, Commit("bulk"), WaitGroup(0, "bulk", read=True))))
        return s

    got = refused(lambda: rewritten(program, change))
    assert got is not None
    assert got.outcome == "illegal"


BAD_NAMES: dict[str, Callable[[], Program]] = {
    "a guard's bound is a variable": lambda: small(
        1, (ZERO, For("kt", "trips", (When(Affine(1000), "kt", (get(1, 0),)),)))
    ),
    "a trip count is a variable": lambda: small(
        1, (ZERO, put(1, 0), For("kt", "trips", (For("j", "kt", (get(1, 0),), start=1000),)))
    ),
    "a guard's bound is a tile": lambda: rewritten(
        term("persistent"),
        lambda s: (s, When(Affine(6), "t", (When(var("k", -1), -5, (Sync(),)),)))
        if isinstance(s, Commit) and s.group == "wgmma" else s,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_3_bounds_that_name_variables(name: str) -> None:
    refused(BAD_NAMES[name])


def renamed(program: Program, old: str, new: str) -> Program:
    """The program with a parameter's name changed everywhere."""

    def form(index: Affine) -> Affine:
        put = {old: new}
        terms = tuple((put.get(n, n), put.get(c, c) if isinstance(c, str) else c)
                      for n, c in index.terms)  # fmt: skip
        return Affine(index.constant, terms)

    def access(a: Any) -> Any:
        if not isinstance(a, Access):
            return a
        return replace(a, index=form(a.index), origin=tuple(map(form, a.origin)))

    def change(s: Statement) -> Statement:
        match s:
            case Do():
                signal = (s.signal[0], form(s.signal[1])) if s.signal else None
                return replace(
                    s, write=access(s.write), reads=tuple(map(access, s.reads)), signal=signal,
                    fresh=form(s.fresh) if s.fresh else None,
                )  # fmt: skip
            case Wait() | Arrive():
                return replace(s, index=form(s.index))
            case For(trips=name) if name == old:
                return replace(s, trips=new)
            case When(index=index, bound=bound):
                return replace(s, index=form(index), bound=new if bound == old else bound)
            case _:
                return s

    parameters = tuple((new if n == old else n, e) for n, e in program.parameters)
    changed = rewritten(
        replace(program, parameters=(*program.parameters, *parameters[-1:])), change
    )
    return replace(changed, parameters=parameters)


def test_4_a_parameter_called_tiles() -> None:
    """No name is magic: pingpong without its barrier deadlocks, whatever trips are called."""
    program = renamed(term("pingpong"), "trips", "tiles")
    assert verdict(program).legal
    bare = rewritten(program, lambda s: () if isinstance(s, Sync) and s.scope == "role"
                     and s is not None else s)  # fmt: skip
    got = verdict(bare)
    assert got.outcome == "illegal", got


def test_4_a_variable_with_a_ranks_name() -> None:
    """A dummy loop over ``rank_m`` hides no guard on the rank."""
    program = term("cluster")

    def first_alone(s: Statement) -> Statement:
        if isinstance(s, Arrive) and s.barrier.name == "empty":
            return When(var("rank_m"), 1, (s,))
        return s

    wrong = rewritten(program, first_alone)
    assert verdict(wrong).outcome == "illegal"
    dummy = For("rank_m", 2, (Elect((Commit("cp.async"),)),))

    def hidden() -> Program:
        roles = tuple(replace(r, body=(dummy, *r.body)) for r in wrong.roles)
        return replace(wrong, roles=roles)

    refused(hidden)


def test_5_declared_barriers_are_those_that_are_used() -> None:
    program = term("plain")
    every: tuple[dict[str, Any], ...] = ({"arrivals": 2}, {"stages": 1})
    for changes in every:
        changed = tuple(replace(b, **changes) for b in program.barriers)
        refused(lambda changed=changed: replace(program, barriers=changed))  # type: ignore[misc]
    buffers = tuple(replace(b, stages=1) if b.name == "smem_a" else b for b in program.buffers)
    refused(lambda: replace(program, buffers=buffers))


STORAGE: dict[str, Callable[[], Program]] = {
    "stages overlap": lambda: rebuffered(term("plain"), "smem_a", stage_elements=2048),
    "two elements at one place": lambda: rebuffered(term("plain"), "smem_a", stride=(0, 1, 4096)),
    "too little is reserved": lambda: replace(
        small(1, (ZERO,)),
        buffers=(*small(1, ()).buffers, Buffer("tile", "smem", "f32", (32, 32), (33, 1), 1, 32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORAGE)
def test_6_overlapping_storage(name: str) -> None:
    refused(STORAGE[name])


def test_7_products_without_a_barrier_in_the_term() -> None:
    """wgmma is in flight, fenced and waited for, in whatever term it stands."""
    program = term("plain")
    consumer = next(r for r in program.roles if r.name == "consumer")
    product = next(s for s in _all(consumer.body) if isinstance(s, Do)
                   and s.instruction.name == "wgmma")  # fmt: skip
    x, y, sums = (replace(r, index=Affine(), origin=()) for r in product.reads
                      if isinstance(r, Access))  # fmt: skip
    alone = replace(product, reads=(x, y, sums), write=sums, fresh=Affine())
    stored = registers("stored", x.buffer.dtype, 1)
    fill = [
        Do(
            INSTRUCTIONS["st.shared"],
            Access(a.buffer, ((0, 0, 0),), ((0, 0, 1),)),
            (Access(stored),),
            (1,),
            (128,),
        )
        for a in (x, y)
    ]
    take = next(s for s in _all(consumer.body) if isinstance(s, Do)
                and s.instruction.name == "cvt")  # fmt: skip
    read = replace(take, reads=tuple(replace(r, index=Affine(), origin=()) for r in take.reads
                                     if isinstance(r, Access)),
                   write=replace(take.write, index=Affine(), origin=()))  # fmt: skip
    right: tuple[Statement, ...] = (
        Do(INSTRUCTIONS["mov"], Access(stored), (Immediate(0.0),)),
        *fill, Fence("proxy.async"), Sync(), Fence("wgmma"), alone, Commit("wgmma"),
        WaitGroup(0, "wgmma"), read,
    )  # fmt: skip

    def of(body: tuple[Statement, ...]) -> Program:
        role = Role("all", 128, body)
        bare = replace(
            program, buffers=(*program.buffers, stored), roles=(role,), barriers=(), cluster=(),
            persistent=False,
        )  # fmt: skip
        return rewritten(bare, _whole)

    assert verdict(of(right)).legal, verdict(of(right))
    for i, s in enumerate(right):
        if isinstance(s, Fence | Commit | WaitGroup | Sync):
            got = verdict(of((*right[:i], *right[i + 1 :])))
            assert got.outcome == "illegal", s


def _whole(s: Statement) -> Statement:
    """A store of a whole stage by 128 threads, each its own row or rows."""
    if isinstance(s, Do) and s.instruction.name == "st.shared":
        rows, columns, slabs = map(int, s.write.buffer.shape)
        each = rows // 128 if rows > 128 else 1
        parts = 128 // rows if rows < 128 else 1
        write = replace(
            s.write,
            value=((0, 1, 0), (1, 0, 0), (0, 0, 1)),
            thread=((0, columns // parts, 0), (each, 0, 0)),
        )
        return replace(
            s, write=write, values=(columns // parts, each, slabs), threads=(parts, 128 // parts)
        )
    return s


def _all(body: tuple[Statement, ...]) -> list[Statement]:
    found: list[Statement] = []
    for s in body:
        found.append(s)
        found += _all(getattr(s, "body", ()))
    return found


def test_8_iterations_of_a_loop_that_overlap() -> None:
    """Cell t + j of iteration j is another thread's in the next."""
    j = var("j")
    write = replace(at(1, 0), origin=(j,))
    shifted = Do(INSTRUCTIONS["st.shared"], write, (mine(),), (1,), (32,))
    got = refused(lambda: small(1, (ZERO, For("j", 2, (shifted,)))))
    assert got is not None
    assert got.outcome == "illegal"
    assert verdict(small(1, (ZERO, For("j", 2, (put(1, 0),))))).legal  # each thread its own again


def test_8_in_a_term_with_barriers() -> None:
    """So in a role of a term with mbarriers."""
    program = term("tma store")

    def change(s: Statement) -> Statement:
        if isinstance(s, Do) and s.instruction.name == "stmatrix":
            own = replace(s.write, value=((1, 0),), thread=((1, 0),), origin=(var("j"), Affine()))
            still = ((0,) * len(s.accesses[0].buffer.shape),)
            held = Access(s.accesses[0].buffer, still, still)
            plain = Do(INSTRUCTIONS["st.shared"], own, (held,), (1,), (32,))
            return For("j", 2, (plain,))
        return s

    got = refused(lambda: rewritten(program, change))
    assert got is not None
    assert got.outcome == "illegal"


def test_copies_and_ctas_are_other_threads() -> None:
    """What CTAs write at two indices of one stage is no part of one write."""
    program = term("shared k")
    parts = next(b for b in program.buffers if b.name == "parts")

    def change(do: Do) -> Do:
        terms = tuple((n, 2 if n == "rank_k" else c) for n, c in do.write.index.terms)
        return replace(do, write=replace(do.write, index=Affine(0, terms)))

    assert parts.home == "rank_k"
    assert parts.stages == 2
    got = refused(lambda: dos(program, "st.shared", change))
    assert got is not None
    assert got.outcome == "illegal"


def test_9_one_of_two_roles_leaves_before_a_barrier() -> None:
    leave = Exit(Access(MANY, ((0, 0),), ((0, 0),), (Affine(), Affine())), (1,), (32,))
    base = small(1, ())
    one, two = (leave, Sync()), (Sync(),)
    program = replace(base, roles=(Role("a", 32, one), Role("b", 32, two)))
    got = refused(lambda: program)
    assert got is not None
    assert got.outcome == "illegal"


def test_9_a_parameter_that_shrinks_with_the_sizes() -> None:
    """``2 - k`` is 1 at k = 1, and 0 at k = 2."""
    k = var("kt")
    base = small(1, (ZERO, For("kt", "trips", (put(1, k), Sync()))))
    late = replace(
        base,
        roles=(replace(base.roles[0], body=(*base.roles[0].body, get(1, var("trips") + -1))),),
    )
    assert verdict(late).legal  # from one trip on
    shrinks = replace(late, parameters=(("trips", Constant(2) - value("k")), ("rows", value("m"))))
    assert not verdict(shrinks).legal


def test_9_partial_writes_of_registers() -> None:
    """A fragment that is written by half before its product's result is read."""
    program = term("tma store")

    def change(s: Statement) -> Statement:
        if isinstance(s, Do) and s.instruction.name == "cvt":
            first, *rest = s.values
            return replace(s, values=(first // 2, *rest))
        return s

    got = refused(lambda: rewritten(program, change))
    assert got is not None
    assert got.outcome == "illegal"


def test_threads_that_told_the_first_thread_only() -> None:
    """Not in the list: two of the other threads of a role, of which neither knows the other.

    Each tells the first thread that it has written, and the first thread has told all that it has
    itself.  Today's judges ask of the first thread and one other, and call this proved.
    """
    threads, k = 96, var("kt")
    x = Buffer("x", "smem", "f32", (threads,), (1,), 1, threads)
    told, done = Barrier("told", 1, threads), Barrier("done", 1, 1)
    held = mine(k)
    zero = Do(INSTRUCTIONS["mov"], held, (Immediate(0.0),), (1,), (threads,))
    own = Access(x, ((1,),), ((1,),), index=k)
    write = Do(INSTRUCTIONS["st.shared"], own, (held,), (1,), (threads,))
    mirrored = Access(x, ((1,),), ((-1,),), (Affine(threads - 1),), k)
    read = Do(INSTRUCTIONS["ld.shared"], held, (mirrored,), (1,), (threads,))

    def of(*body: Statement) -> Program:
        base = small(1, ())
        buffers = tuple(x if b.name == "x" else b for b in base.buffers)
        role = Role("all", threads, (For("kt", "trips", (zero, *body, Sync(1, "role"))),))
        return replace(base, buffers=buffers, roles=(role,), barriers=(told, done))

    first = Elect((Arrive(done, k),))
    wrong = of(write, first, Arrive(told, k), Elect((Wait(told, k),)), Wait(done, k), read)
    got = verdict(wrong)
    assert got.fault is not None
    assert got.fault.kind == "race"
    right = of(write, Arrive(told, k), Elect((Wait(told, k), Arrive(done, k))), Wait(done, k), read)
    assert verdict(right).legal, verdict(right)


def test_tensor_memory_is_given_back_when_all_threads_are_done_with_it() -> None:
    """The first thread gives it back: it has to be told what the other threads of its role took."""
    program = blackwell("plain")
    assert verdict(program).legal
    first, *others = program.roles
    early = replace(first, body=(first.body[-1], *first.body[:-1]))
    got = verdict(replace(program, roles=(early, *others)))
    assert got.fault is not None
    assert got.fault.kind == "exit"


def test_an_exit_beside_mbarriers_is_unproved() -> None:
    program = term("plain")
    leave = Exit(Access(program.buffers[2]), (), ())
    first, *others = program.roles
    early = replace(program, roles=(replace(first, body=(leave, *first.body)), *others))
    assert verdict(early).outcome != "legal"


def test_statements_that_fill_parts_may_fill_the_same() -> None:
    """Two writes of one half do not make a whole; one of each half does."""
    k, wide = var("kt"), Buffer("x", "smem", "f32", (64,), (1,), 1, 64)

    def half(at: int) -> Access:
        return Access(wide, ((1,),), ((1,),), (Affine(at),), k)

    def put_half(at: int) -> Do:
        return Do(INSTRUCTIONS["st.shared"], half(at), (mine(),), (1,), (32,))

    read = Do(INSTRUCTIONS["ld.shared"], mine(), (half(32),), (1,), (32,))
    for first, second in ((0, 0), (0, 32)):
        body = (put_half(first), Sync(), put_half(second), Sync(), read, Sync())
        base = small(1, (ZERO,))
        buffers = tuple(wide if b.name == "x" else b for b in base.buffers)
        role = replace(base.roles[0], body=(ZERO, For("kt", "trips", body)))
        got = verdict(replace(base, buffers=buffers, roles=(role,)))
        assert got.outcome == ("unproved" if first == second else "legal"), got


def test_a_loop_below_zero_and_a_parameter_of_any_name() -> None:
    k = var("kt")
    before = (When(k, 0, (put(1, 0), get(1, 0))),)
    assert not verdict(small(1, (ZERO, For("kt", "trips", before, start=-2)))).legal
    turn = For("kt", "i", (put(1, 0), Sync()))
    base = small(1, ())
    role = replace(base.roles[0], body=(ZERO, turn, Sync(), get(1, 0)))
    never = replace(base, parameters=(("i", value("k") - 1),), roles=(role,))
    assert verdict(never).outcome == "illegal"  # at k = 1


def test_two_loads_of_a_whole_stage_race() -> None:
    zero, full, ring = Affine(), Barrier("full", 1, 1), _ring("in", 1)
    expect = Elect((Arrive(full, zero, bytes=8 * TILE),))
    load = Elect((_load(ring, full, at=zero),))
    role = Role("all", 32, (expect, load, load, Wait(full, zero)))
    assert verdict(_program("x", (ring,), (full,), role)).outcome == "illegal"
