"""Shared k: CTAs of a cluster that add up one tile, to every walk, and made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.async_mutants import mutants
from tests.hopper_terms import broken, dos, rebuffered, rewritten
from tests.ptx_runs import run_matmul
from tests.ptx_runs import unchecked as emit
from tests.sample import by_turns, draws
from tinygpu.errors import MachineError, ProgramError, ScheduleError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.meaning.interpret import check, interpret
from tinygpu.term.machine import Choice, Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Access, Do, Fence, For, Program, Statement, Sync, each, walk
from tinygpu.term.schedule import Schedule

SMALL: dict[str, Any] = {
    **STARTS["shared k"], "tile_n": 16, "stages": 2, "in_flight": 0, "store_n": 8,
}  # fmt: skip
TMA: dict[str, Any] = {"epilogue": "tma", "store_n": 8, "store_stages": 2}
POINTS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "two": ("nt", None, {}),
    "four, f32": ("nt", "f32", {"cluster_k": 4, "tile_n": 32, "in_flight": 1, "stages": 3}),
    "pairs of rows": ("nt", None, {"cluster_m": 2, "cluster_k": 2, **TMA}),
    "eight": (
        "tn",
        None,
        {"cluster_n": 2, "cluster_k": 4, "tile_m": 128, "tile_n": 64, "store_n": 16},
    ),
    "two consumers": ("nn", None, {"consumers": 2, "tile_m": 128, "tile_n": 64, **TMA}),
    "turned": ("tt", "f32", {"swap": 1, "tile_n": 64, "store_n": 16, "cluster_k": 4}),
    "eight of k": ("nt", None, {"tile_n": 128, "store_n": 16, "cluster_k": 8}),
    "pairs of eight": (
        "nt",
        None,
        {"cluster_m": 2, "tile_n": 64, "cluster_k": 8, **TMA, "store_n": 8},
    ),
}


@cache
def shared(name: str, **changes: Any) -> Program:
    layout, output, point = POINTS[name]
    operation, chosen = matmul("bf16", output, layout), Chosen({**SMALL, **point, **changes})
    assert all(r.holds for r in Hopper().requires(operation, chosen))
    return Hopper().program(operation, chosen)


def every_k(name: str) -> tuple[int, ...]:
    """From less than a tile for each CTA to more than there are stages; by 8 if k is contiguous."""
    return (8, 136, 64 * 9) if POINTS[name][0] != "tn" else (1, 65, 64 * 9 - 7)


@pytest.mark.parametrize(("name", "seed"), by_turns(POINTS, range(3)))
def test_the_term_is_right_at_any_k(name: str, seed: int) -> None:
    """Also where some of the CTAs have no part of k at all."""
    sizes = {"m": 72, "n": 72, "k": every_k(name)[seed]}
    assert check(shared(name), sizes, seeds=(seed, seed + 5)[: draws(1, 2)]) == ()


@pytest.mark.parametrize("name", POINTS)
def test_it_keeps_all_laws_and_is_proved(name: str) -> None:
    for in_flight in (0, 1, 2):
        program = shared(name, in_flight=in_flight, stages=3)
        assert broken(program) == {}
        found = verdict(program)
        assert found.legal


@pytest.mark.parametrize(("name", "completion"), by_turns(POINTS, ["late", "early", "random"]))
def test_its_code_is_right_at_any_k(name: str, completion: str) -> None:
    program = shared(name)
    text = emit(program)
    for k in every_k(name)[:2]:
        outcome = run_matmul(program, {"m": 72, "n": 40, "k": k}, text=text, completion=completion)
        assert outcome.right
        assert outcome.report.findings == ()


def test_parts_are_added_in_the_order_of_their_ranks() -> None:
    """(((2^24 + 1) + 1) - 2^24) is 0 in fp32, and 2 in any order that takes 2^24 away first."""
    program = shared("four, f32")
    a, b = np.zeros((64, 256)), np.ones((16, 256))
    a[:, [0, 64, 128, 192]] = 2.0**24, 1, 1, -(2.0**24)
    for seed in range(4):
        got = interpret(program, {"m": 64, "n": 16, "k": 256}, {"a": a, "b": b}, seed=seed)
        assert (got.outputs["c"] == 0).all()


def test_older_schedules_share_no_k() -> None:
    """A schedule that was written without this decision is the one that has its first value."""
    older = {n: v for n, v in STARTS["cluster"].items() if n != "cluster_k"}
    assert Schedule.of(Hopper(), older) == Schedule.of(Hopper(), STARTS["cluster"])
    with pytest.raises(ScheduleError, match="decision tile_m: machine hopper needs it"):
        Schedule.of(Hopper(), {n: v for n, v in older.items() if n != "tile_m"})
    with pytest.raises(MachineError, match="before it was 3, not one"):
        Choice(1, 2, before=3)


def test_nothing_is_left_of_it_at_one_cta() -> None:
    program = shared("two", cluster_k=1, store_n=16)
    assert "parts" not in str(program)
    assert "shared::cluster.v4" not in emit(program)


# ways to make it wrong


def unsynchronised(program: Program) -> Program:
    """Without the barrier between the writes and the reads of parts."""
    return rewritten(program, lambda s: () if s == Sync(scope="cluster") else s)


def late(program: Program) -> Program:
    """With that barrier before the writes."""

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        if s == Sync(scope="cluster"):
            return ()
        sends = isinstance(s, For) and s.var == "far" and _sends(s)
        return (Sync(scope="cluster"), s) if sends else s

    found = rewritten(program, change)
    consumer, producer = found.roles
    body = (*producer.body, Sync(scope="cluster"))
    return replace(found, roles=(consumer, replace(producer, body=body)))


def _sends(loop: For) -> bool:
    return any(isinstance(s, Do) and s.instruction.name == "st.shared" for s in each((loop,)))


def unattended(program: Program) -> Program:
    """Without that barrier, and without the reads: nobody waits for what the others send."""
    unread = dos(unsynchronised(program), "ld.shared", lambda do: ())
    return unadded(unread)


def parting(program: Program) -> Program:
    """Without that barrier, and each waits for what it sends itself alone: peers may have left."""

    def change(do: Do) -> Do:
        (part,) = do.reads
        assert isinstance(part, Access)
        own = replace(part.index, constant=0, terms=(*_turns(part), ("rank_k", 1)))
        return replace(do, reads=(replace(part, index=own),))

    return dos(unsynchronised(program), "ld.shared", change)


def _turns(part: Access) -> tuple[tuple[str, int | str], ...]:
    return tuple(term for term in part.index.terms if term[0] == "turn")


def unadded(program: Program) -> Program:
    return dos(program, "fma", lambda do: ())


def unsent(program: Program) -> Program:
    return dos(program, "st.shared", lambda do: ())


def parts_added(first: int, last: int) -> Callable[[Program], Program]:
    """Add some of four parts only, or more than there are."""
    return lambda program: rewritten(
        program,
        lambda s: replace(s, start=first, trips=last) if isinstance(s, For) and s.var == "r" else s,
    )


def twice(program: Program) -> Program:
    """Add each part twice."""
    return dos(program, "fma", lambda do: (do, do))


def to_peers(change: Callable[[int], int]) -> Callable[[Program], Program]:
    """Send slices to others than those whose they are."""
    return lambda program: dos(
        program,
        "st.shared",
        lambda do: replace(do, write=replace(do.write, peer=change(do.write.peer))),
    )


def of_peers(program: Program) -> Program:
    """Send to each peer the slice of the next one."""

    def change(do: Do) -> Do:
        (held,) = do.reads
        assert isinstance(held, Access)
        far, peer, *others = held.origin
        moved = replace(peer, constant=(peer.constant + 1) % 4)
        return replace(do, reads=(replace(held, origin=(far, moved, *others)),))

    return dos(program, "st.shared", change)


def same_slot(program: Program) -> Program:
    """Let all write at the first's index."""

    def change(do: Do) -> Do:
        terms = tuple(t for t in do.write.index.terms if t[0] != "rank_k")
        index = replace(do.write.index, constant=0, terms=terms)
        return replace(do, write=replace(do.write, index=index))

    return dos(program, "st.shared", change)


def at_home(home: str) -> Callable[[Program], Program]:
    return lambda program: rebuffered(program, "parts", home=home)


def all_stored(program: Program) -> Program:
    """Let all CTAs store the first slice."""

    def change(do: Do) -> Do:
        origin = tuple(
            replace(o, terms=tuple(t for t in o.terms if t[0] != "rank_k")) for o in do.write.origin
        )
        return replace(do, write=replace(do.write, origin=origin))

    return dos(program, "st.global", change)


def own_k(program: Program) -> Program:
    """Let all CTAs load the first part of k."""

    def change(do: Do) -> Do:
        (source,) = do.reads
        assert isinstance(source, Access)
        origin = tuple(
            replace(o, terms=tuple(t for t in o.terms if t[0] != "rank_k")) for o in source.origin
        )
        return replace(do, reads=(replace(source, origin=origin),))

    return dos(program, "cp.async.bulk.tensor", change)


WRONG: dict[str, tuple[Callable[[Program], Program], set[str], set[str]]] = {
    # what changes the term, what the interpreter finds, what the judge finds
    "no barrier": (unsynchronised, {"race", "exited", "stale", "unwritten_read"}, {"race"}),
    "barrier before": (late, {"race", "exited", "stale", "unwritten_read"}, {"unwritten"}),
    "nobody stays": (unattended, {"exited"}, {"exit"}),
    "not added": (unadded, {"wrong_result"}, set()),
    "not sent": (unsent, {"unwritten_read"}, {"unwritten"}),
    "one part only": (parts_added(0, 1), {"wrong_result"}, set()),
    "all parts but one": (parts_added(1, 4), {"wrong_result"}, set()),
    "a part too many": (parts_added(0, 5), {"unwritten_read", "stale"}, {"unwritten", "stale"}),
    "added twice": (twice, {"wrong_result"}, set()),
    "to the next peer": (to_peers(lambda p: (p + 1) % 4), {"wrong_result"}, set()),
    "all to one peer": (to_peers(lambda p: 2), {"race", "unwritten_read"}, {"race", "unwritten"}),
    "slices of the next peer": (of_peers, {"wrong_result"}, set()),
    "leaves before peers": (parting, {"exited"}, {"race"}),
    "one slot": (same_slot, {"race", "unwritten_read"}, {"race", "unwritten"}),
    "one slice stored": (all_stored, {"written_twice"}, set()),
    "one part of k": (own_k, {"wrong_result"}, set()),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_made_wrong_is_found(name: str) -> None:
    """By the interpreter in one of some runs; what is of order by the judge."""
    change, seen, known = WRONG[name]
    program = change(shared("four, f32"))
    sizes = {"m": 64, "n": 16, "k": 328}
    runs = ({f.kind for f in check(program, sizes, seeds=(seed,))} for seed in range(8))
    assert any(found & seen for found in runs)
    said = verdict(program)
    assert said.legal == (not known)
    assert said.fault is None or said.fault.kind in known


@pytest.mark.parametrize("dropped", [Fence("proxy.async"), Sync(1, "role")], ids=str)
@pytest.mark.parametrize("name", ["pairs of rows", "two consumers"])
def test_stores_of_the_cta_that_has_the_sums_are_judged(name: str, dropped: Statement) -> None:
    """They stand after the barrier of the sum."""
    whole = shared(name)
    program = rewritten(whole, lambda s: () if s == dropped else s)
    assert verdict(whole).legal
    assert not verdict(program).legal


def without(text: str, *what: str) -> str:
    """The kernel without the last lines that have a text in them."""
    lines = text.splitlines()
    for piece in what:
        del lines[max(i for i, line in enumerate(lines) if piece in line)]
    return "\n".join(lines)


def unmet(text: str) -> str:
    for step in ("arrive.release", "wait.acquire"):
        text = text.replace(f"barrier.cluster.{step}.aligned", "bar.warp.sync -1")
    return text


TEXTS: dict[str, Callable[[str], str]] = {
    "no barrier": unmet,
    "barrier that releases nothing": lambda text: text.replace("arrive.release", "arrive.relaxed"),
    "one part less": lambda text: without(text, "ld.shared.v4"),
    "one value less": lambda text: without(text, "add.rn.f32"),
    "not sent": lambda text: without(text, "st.shared::cluster.v4"),
    "sent home only": lambda text: text.replace("st.shared::cluster.v4", "st.shared.v4"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_code_that_is_made_wrong_is_found(name: str) -> None:
    """In the order that completes late, early, or in one of the random ones."""
    program = shared("four, f32")
    text = TEXTS[name](emit(program))
    assert text != emit(program)
    sizes, seen = {"m": 64, "n": 16, "k": 456}, []  # a part of it for each of the four
    for completion, seed in (("late", 0), ("early", 0), *(("random", s) for s in range(3))):
        outcome = run_matmul(program, sizes, text=text, completion=completion, seed=seed)
        seen.append(bool(outcome.report.findings) or not outcome.right)
    assert any(seen)


@cache
def changed() -> tuple[tuple[str, Program], ...]:
    return tuple(mutants(shared("two")))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_what_the_judge_accepts_no_order_makes_fail(data: st.DataObject) -> None:
    """Of every mutant with one change, at fewer trips than stages and at more."""
    _, program = data.draw(st.sampled_from(changed()))
    if verdict(program).legal:
        for k in (8, 64 * 5):
            kinds = {f.kind for f in check(program, {"m": 64, "n": 16, "k": k}, seeds=(0, 7))}
            assert not kinds & {"race", "deadlock", "stale", "exited", "unbalanced", "unwaited"}


def test_a_peer_is_one_of_the_cluster() -> None:
    """Along the axis that the buffer names."""
    with pytest.raises(ProgramError, match=r"there is no CTA 1 along rank_m; choose one of 1"):
        at_home("rank_m")(shared("four, f32"))
    with pytest.raises(ProgramError, match="there is no CTA 1 along ; choose one of 1"):
        at_home("")(shared("four, f32"))
    with pytest.raises(ProgramError, match=r"there is no CTA 4 along rank_k; choose one of 4"):
        to_peers(lambda p: p + 1)(shared("four, f32"))


def test_only_stores_of_threads_go_to_another_cta() -> None:
    program = rebuffered(shared("pairs of rows"), "smem_c", home="rank_k")
    with pytest.raises(ProgramError, match=r"only st\.shared goes to another CTA"):
        emit(program)


def test_a_part_lies_so_that_no_two_lanes_meet_a_bank() -> None:
    """16 B of a thread, then those of the next: the vectors of eight lanes fill all banks."""
    moves = [s for s, _ in walk(shared("two")) if isinstance(s, Do) and _moves_parts(s)]
    assert {s.instruction.name for s in moves} == {"st.shared", "ld.shared"}
    for do in moves:
        (part,) = (a for a in do.accesses if a.buffer.name == "parts")
        steps = [
            sum(s * int(n) for s, n in zip(each, part.buffer.stride, strict=True))
            for each in part.thread
        ]
        assert list(zip(do.threads, steps, strict=True)) == [(4, 4), (8, 16), (4, 128)]
    assert emit(shared("two")).count("st.shared::cluster.v4.f32") > 0


def _moves_parts(do: Do) -> bool:
    return any(a.buffer.name == "parts" for a in do.accesses)
