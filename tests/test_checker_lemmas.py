"""Each rule of the checker, weakened: a wrong term is then accepted, so the rule is needed.

``docs/proof.md`` names the lemma that each rule stands for.  A term is wrong because the rule that
PTX has is broken in it, said by hand; with the rule as it is the checker refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.async_protocols import (
    BY_THREAD,
    HELD,
    TILE,
    K,
    X,
    Y,
    store_ring,
)
from tests.async_protocols import _program as protocol
from tests.async_protocols import _ring as ring
from tests.blackwell_terms import put_back
from tests.blackwell_terms import small as small_tensor
from tests.hopper_terms import rewritten, term
from tests.small_programs import ZERO, get, put, small
from tinygpu.checker import make
from tinygpu.checker import protocol as protocol_module
from tinygpu.checker.check import ruled
from tinygpu.checker.make import _fixpoint, certified
from tinygpu.checker.outcome import RefusedError, UncertifiedError
from tinygpu.checker.protocol import ALL, Protocol, _meeting, _Scope
from tinygpu.checker.rules import Execution
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import grouped_matmul, matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Do,
    Elect,
    Fence,
    For,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    var,
)  # fmt: skip


def without(program: Program, drop: Callable[[Statement], bool]) -> Program:
    return rewritten(program, lambda s: () if drop(s) else s)


def swapped_wait() -> Program:
    """The loader announces bytes of phase k before it has waited for the one before."""

    def one(s: Statement) -> Statement:
        if isinstance(s, For) and isinstance(s.body[0], Wait) and s.body[0].barrier.name == "empty":
            return replace(s, body=(s.body[1], s.body[0], *s.body[2:]))
        return s

    return rewritten(store_ring(2, 0), one)


def every_second_phase() -> Program:
    """Two workers take every second phase of one stage: the other's phase may pass for theirs."""
    full, empty, into = Barrier("full", 1, 1), Barrier("empty", 1, 32), ring("in", 1)
    copy = INSTRUCTIONS["cp.async.bulk.tensor"]
    held = Access(HELD, ((1,),), index=2 * K)

    def fill(u: int) -> tuple[Statement, ...]:
        at = 2 * K + u
        source = Access(X, ((1,),), origin=(at * TILE,), guard=(True,))
        target = Access(into, ((1,),), index=at)
        load = Do(copy, target, (source,), (TILE,), signal=(full, at))
        return Wait(empty, at + -1), Arrive(full, at, bytes=4 * TILE), load

    def take(u: int) -> tuple[Statement, ...]:
        at = 2 * K + u
        take = Do(
            INSTRUCTIONS["ld.shared"], held, (Access(into, *BY_THREAD, index=at),), (2,), (32,)
        )
        out = Access(Y, *BY_THREAD, origin=(at * TILE,), guard=(True,))
        store = Do(INSTRUCTIONS["st.global"], out, (held,), (2,), (32,))
        return Wait(full, at), take, Fence("proxy.async"), Arrive(empty, at), store

    return protocol(
        "seconds", (into,), (full, empty),
        Role("loader", 32, (Elect((For("k", "trips", (*fill(0), *fill(1))),)),)),
        Role("even", 32, (For("k", "trips", take(0)),)),
        Role("odd", 32, (For("k", "trips", take(1)),)),
    )  # fmt: skip


def spectator() -> Program:
    """Somebody waits for each load and tells nobody: the phase after the next may end before."""
    program = store_ring(2, 0)
    full = next(b for b in program.barriers if b.name == "full")
    watcher = Role("watcher", 32, (For("k", "trips", (Wait(full, K),)),))
    return replace(program, roles=(*program.roles, watcher))


def unsynchronised() -> Program:
    shared = Simt().program(matmul(), Chosen(LADDER["shared"]))
    return without(shared, lambda s: isinstance(s, Sync))


def another_index() -> Program:
    """The worker reads of its slot the index that it held before."""

    def one(s: Statement) -> Statement:
        if not (isinstance(s, Do) and s.instruction.name == "ld.shared"):
            return s
        (source,) = s.reads
        assert isinstance(source, Access)
        return replace(s, reads=(replace(source, index=source.index + -2),))

    return rewritten(store_ring(2, 0), one)


def unwritten_registers() -> Program:
    """A register is written in the first step alone, and of its own step in each."""

    def one(s: Statement) -> Statement:
        first = isinstance(s, Do) and s.instruction.name == "ld.shared"
        return When(K, 1, (s,)) if first else s

    return rewritten(store_ring(2, 0), one)


def sums_that_start_anew() -> Program:
    """The second slice of a product starts anew at step 3, when its sums hold three steps."""

    def one(s: Statement) -> Statement:
        if not (isinstance(s, Do) and s.fresh is not None):
            return s
        forms = ((n, -3 if n == "slice" else by) for n, by in s.fresh.terms)
        return replace(s, fresh=Affine(0, tuple(forms)))

    return rewritten(term("plain"), one)


def same_slot() -> Program:
    """A worker that never tells: the loader fills a slot again that is still read."""
    program = store_ring(2, 0)
    empty = Barrier("empty", 2, 32)

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Arrive) and s.barrier.name == "empty":
            return ()
        if isinstance(s, Wait) and s.barrier.name == "full":
            return s, Arrive(empty, K)
        return s

    return rewritten(program, one)


def one_slot_of_two() -> Program:
    """Of two slots one alone is in use, and a barrier is missing."""
    at = 2 * var("kt")
    return small(2, (ZERO, For("kt", "trips", (put(2, at), get(2, at)))))


def no_trips() -> Program:
    """Behind the loop a stage is released also where the tile had no step."""
    right = Hopper().program(grouped_matmul(), Chosen(STARTS["persistent"]))

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        releases = isinstance(s, When) and s.bound == "trips" and isinstance(s.body[0], Elect)
        return s.body if releases else s

    return rewritten(right, one)


def no_fence() -> Program:
    return without(store_ring(2, 0), lambda s: isinstance(s, Fence))


def no_wgmma_fence() -> Program:
    return without(term("plain"), lambda s: isinstance(s, Fence) and s.kind == "wgmma")


def no_last_wait() -> Program:
    """The last stores are not waited for."""

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        waits = isinstance(s, Elect) and isinstance(s.body[0], WaitGroup)
        return () if waits and s.body == (WaitGroup(0, "bulk", read=True),) else s

    return rewritten(store_ring(2, 2), one)


def negative_pending() -> Program:
    def one(s: Statement) -> Statement:
        return replace(s, pending=-1) if isinstance(s, WaitGroup) and s.pending == 0 else s

    return rewritten(store_ring(2, 1), one)


def unfenced(kind: str, role: str) -> Program:
    """Nothing comes before what a role tells of tensor memory, or after what it is told."""
    right = small_tensor("persistent")
    drops = [r.name for r in right.roles if r.name != role]
    bare = without(right, lambda s: isinstance(s, Fence) and s.kind == kind)
    kept = {r.name: r for r in right.roles if r.name in drops}
    return replace(bare, roles=tuple(kept.get(r.name, r) for r in bare.roles))


def arrives_at_once() -> Program:
    """Stages are released when their products are issued, and not when they are done."""
    return rewritten(
        small_tensor("persistent"), lambda s: replace(s, after="") if isinstance(s, Arrive) else s
    )


def given_back() -> Program:
    """Nobody waits at the end, when tensor memory is given back."""
    return without(small_tensor("pair"), lambda s: isinstance(s, Sync) and s.scope == "cluster")


def stores_by_one() -> Program:
    """One thread of each warpgroup executes what its warps have to."""
    return rewritten(
        term("tma store"),
        lambda s: Elect((s,)) if isinstance(s, Do) and s.instruction.name == "stmatrix" else s,
    )


def one_warp_waits() -> Program:
    """One thread waits for products whose sums all threads hold; bar.sync tells the others."""

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        last = isinstance(s, WaitGroup) and s.group == "wgmma" and s.pending == 0
        return (Elect((s,)), Sync(3, "role")) if last else s

    return rewritten(term("plain"), one)


def overlapping() -> Program:
    """Threads write cells that other threads write too."""
    program = store_ring(2, 2)

    def one(s: Statement) -> Statement:
        if not (isinstance(s, Do) and s.instruction.name == "st.shared"):
            return s
        return replace(s, write=replace(s.write, thread=((1,),)))

    return rewritten(program, one)


# What is weakened


OVER, CONFLICTS = Execution.over, Execution.conflicts
FILL = Execution.fill
TELL = Execution.tell
PRODUCT, LACKS, CONFLICTS_OF = Execution.product, Execution.lacks, Protocol._conflicts_of


def over(where: bool) -> Callable[..., bool]:
    def weak(self: Execution, number: int, barrier: Any, x: int, *, far: bool) -> bool:
        return far is where or OVER(self, number, barrier, x, far=far)

    return weak


def no_proxy(self: Execution, action: Any, one: Any) -> None:
    """Knowing that an access is done is taken for knowing its fence."""
    kept = one.conflicts
    done = {f: c for pairs in self.protocol.fences.values() for c, f in pairs.T.tolist()}
    one.conflicts = np.array([done.get(c, c) for c in kept.tolist()], np.intp)
    try:
        CONFLICTS(self, action, one)
    finally:
        one.conflicts = kept


def may_be_passed(self: Execution, clock: Any, columns: Any, least: int = ALL) -> int | None:
    """Who ends a phase need not know of waits."""
    return LACKS(self, clock, columns, least) if least == ALL else None


def after_all_waits(self: Execution, action: Any, one: Any) -> None:
    """What a thread knows its tensor instructions come after."""
    number = action.actor.number
    if (number, "after") in self.state.groups:
        self.state.groups[number, "after"][0] = self.state.known[number]
    CONFLICTS(self, action, one)


def issued_is_done(self: Execution, number: int) -> Any:
    """Products are taken for done by whoever is told anything."""
    found = TELL(self, number)
    found[self.protocol.committed[number]] = ALL
    return found


def unwaited(self: Execution, action: Any, one: Any) -> None:
    """What a thread did in its own lane of tensor memory is taken for done."""
    kept, one.lane = one.lane, one.lane[:0]
    try:
        CONFLICTS(self, action, one)
    finally:
        one.lane = kept


def untouched(self: Execution, action: Any) -> list[int]:
    self.state.touched[action.actor.number] = False
    return PRODUCT(self, action)


def of_the_next_slot(self: Protocol, ring: Any, others: Any) -> None:
    """What is asked of a slot is asked of its neighbour."""
    CONFLICTS_OF(self, ring, others)
    for _, one in ring.references:
        found = []
        for column in one.conflicts.tolist():
            _, at, residue, _ = self.rules[column]
            found.append(column - residue + (residue + 1) % at.stages)
        one.conflicts = np.array(found, np.intp)


def all_read(self: Execution, action: Any, one: Any) -> None:
    """Sums are taken for read by whoever writes over them."""
    slots = self.state.holds[one.ring.number]
    slots[:] = [held and replace(held, unread=0) for held in slots]
    FILL(self, action, one)


def hearsay(self: Execution, action: Any, one: Any) -> None:
    """What others were told of products is taken for a thread's own wait."""
    number = action.actor.number
    kept = self.state.own[number].copy()
    self.state.own[number] = self.tell(number)
    try:
        CONFLICTS(self, action, one)
    finally:
        self.state.own[number] = kept


@contextmanager
def weakened(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    patches = [mock.patch.object(*change) for change in changes]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def nothing(*_: Any) -> None:
    return None


# The rule's letter and lemma, the term, the change of the checker, the word that it refuses by.
LEMMAS: dict[str, tuple[Callable[[], Program], tuple[tuple[Any, str, Any], ...], str]] = {
    "early": (swapped_wait, ((Execution, "over", over(True)),), "early"),
    "parity_begins": (every_second_phase, ((Execution, "over", over(False)),), "parity"),
    "parity_ends": (spectator, ((Execution, "lacks", may_be_passed),), "parity"),
    "race": (unsynchronised, ((Execution, "conflicts", nothing),), "race"),
    "value": (another_index, ((Execution, "value", nothing),), "value"),
    "value_of_registers": (unwritten_registers, ((Execution, "value", nothing),), "value"),
    "sums": (sums_that_start_anew, ((Execution, "fill", all_read),), "value"),
    "slots": (one_slot_of_two, ((Protocol, "_conflicts_of", of_the_next_slot),), "race"),
    "so_far": (same_slot, ((Execution, "again", nothing),), "proxy"),
    "least": (no_trips, ((protocol_module, "least_of", lambda *_: 1),), "balance"),
    "proxy": (no_fence, ((Execution, "conflicts", no_proxy),), "proxy"),
    "products": (no_wgmma_fence, ((Execution, "product", untouched),), "proxy"),
    "own_wait": (
        one_warp_waits,
        (
            (Execution, "conflicts", hearsay),
            (Execution, "finished", nothing),
            (protocol_module, "aligned", nothing),
        ),
        "issuers",
    ),
    "aligned": (stores_by_one, ((protocol_module, "aligned", nothing),), "issuers"),
    "before": (
        lambda: unfenced("tcgen05.before", "epilogue"),
        ((Execution, "conflicts", no_proxy), (Execution, "end", nothing)),
        "proxy",
    ),
    "after": (
        lambda: unfenced("tcgen05.after", "multiplier"),
        ((Execution, "conflicts", after_all_waits),),
        "race",
    ),
    "own_lanes": (
        lambda: put_back("persistent", wait=False),
        ((Execution, "conflicts", unwaited),),
        "race",
    ),
    "before_of_stores": (
        lambda: put_back("persistent", fence=False),
        ((Execution, "conflicts", no_proxy), (Execution, "end", nothing)),
        "proxy",
    ),
    "commits": (arrives_at_once, ((Execution, "tell", issued_is_done),), "race"),
    "given_back": (given_back, ((Execution, "end", nothing),), "exit"),
    "exit": (no_last_wait, ((Execution, "finished", nothing),), "exit"),
    "induction": (same_slot, ((make, "follows", lambda *_: ""),), "proxy"),
}


@pytest.mark.parametrize("lemma", LEMMAS)
def test_a_rule_that_is_weakened_accepts_a_wrong_term(lemma: str) -> None:
    wrong, changes, word = LEMMAS[lemma]
    program = wrong()
    certificate, ruling = certified(program)
    assert certificate is None
    assert ruling.word == "refused"
    assert ruling.line.startswith(word), ruling.line
    with weakened(*changes):
        certificate, ruling = certified(program)
        assert certificate is not None, str(ruling)


def test_claims_that_do_not_follow_are_refused() -> None:
    """The induction: without ``follows`` the maker's first guess is a certificate of a race."""
    program = same_slot()
    with weakened((make, "follows", lambda *_: "")):
        certificate, _ = certified(program)
    assert certificate is not None
    with pytest.raises(RefusedError, match="certificate: from"):
        ruled(Protocol(program), certificate)
    with mock.patch("tinygpu.checker.check.follows", return_value=""):
        assert ruled(Protocol(program), certificate).accepted


def test_a_threads_own_wait_is_asked_for() -> None:
    """Also if one thread of a warp might wait alone."""
    with weakened((protocol_module, "aligned", nothing)):
        assert certified(one_warp_waits())[1].line.startswith("race")


def test_sums_of_two_agents_are_in_no_order() -> None:
    """PTX adds products of one thread, of one shape and with the same sums, in their order."""
    reader = Protocol(small_tensor("persistent"))
    sums = next(ring for ring in reader.rings if ring.name == "sums")
    product = next(pair for pair in sums.references if pair[1].adds and pair[1].write)
    action, one = product
    others = {
        "itself": product,
        "another agent": (replace(action, actor=replace(action.actor, number=99)), one),
        "other sums": (action, replace(one, cells=one.cells | one.cells << 1)),
    }
    for what, other in others.items():
        first, _ = _meeting([product], [other])
        assert bool(len(first)) == (what != "itself"), what


@pytest.mark.parametrize("start", ["plain", "persistent", "pair", "a in tmem"])
def test_stores_to_tensor_memory_are_certified(start: str) -> None:
    """A thread loads what it has stored in its lane, and the next product comes after both."""
    certificate, ruling = certified(put_back(start))
    assert certificate is not None, str(ruling)
    assert ruled(Protocol(put_back(start)), certificate).accepted
    assert certified(put_back(start, wait=False))[1].line.startswith("race")
    rule = "exit" if start == "plain" else "proxy"  # of one tile, whose products are over
    assert certified(put_back(start, fence=False))[1].line.startswith(rule)


def test_stores_to_other_lanes_are_not_certified() -> None:
    """A thread's wait says nothing of the lanes of others."""

    def turned(s: Statement) -> Statement:
        """Thread 1 stores to lane 64, thread 2 to lane 1, and so on; thread 0 to its own."""
        if not (isinstance(s, Do) and s.instruction.name == "tcgen05.st"):
            return s
        (held,) = s.reads
        assert isinstance(held, Access)
        write = replace(s.write, thread=((64, 0), (1, 0)))
        return replace(s, threads=(2, 64), write=write, reads=(replace(held, thread=((0,),) * 2),))

    program = rewritten(put_back("persistent"), turned)
    assert certified(program)[1].word == "not certified"
    with weakened((_Scope, "_own", lambda *_: True)):
        assert certified(program)[1].accepted


def guarded() -> Program:
    """Stores to shared memory in the first step alone, reads in each."""
    shared = Simt().program(matmul(), Chosen(LADDER["shared"]))

    def one(s: Statement) -> Statement:
        stores = isinstance(s, Do) and s.instruction.name == "st.shared"
        return When(Affine(0, (("kt", 1),)), 1, (s,)) if stores else s

    return rewritten(shared, one)


def test_a_guard_is_decided_at_all_counters_of_a_node() -> None:
    """Nodes that do not tell the first step apart would have it decided by their least one."""
    assert not certified(guarded())[1].accepted
    reader = Protocol(guarded())
    with pytest.raises(UncertifiedError, match="guard"):
        _fixpoint(reader, 0, 1)

    def least(self: Execution, action: Any) -> bool:
        return all(self.ends(guard)[0] < 0 for guard in action.guards)

    with weakened((Execution, "runs", least)):
        assert _fixpoint(Protocol(guarded()), 0, 1).nodes


def test_a_wait_that_leaves_fewer_than_no_groups() -> None:
    certificate, ruling = certified(negative_pending())
    assert certificate is None
    assert ruling.line.startswith("groups")


def test_threads_that_write_one_cell() -> None:
    """``apart``: two threads of one statement at one cell."""
    assert certified(overlapping())[1].line.startswith("race")


def test_an_agent_that_waits_for_ever() -> None:
    """D: a phase that nobody ends, and a meeting that not all come to."""
    lonely = without(store_ring(2, 0), lambda s: isinstance(s, Arrive) and s.bytes > 0)
    assert certified(lonely)[1].word == "refused"
    alone = rewritten(store_ring(2, 2), lambda s: Elect((s,)) if isinstance(s, Sync) else s)
    assert certified(alone)[1].line.startswith("deadlock")


def test_the_right_terms_are_accepted() -> None:
    """The parts of which these terms are made are right: each is accepted as it was."""
    for program in (store_ring(2, 0), store_ring(2, 2), store_ring(2, 1)):
        assert certified(program)[1].accepted
    assert certified(term("plain"))[1].accepted
