"""Order of first inputs in tensor memory: what has to be waited for, and fenced, before and after.

The ISA orders a product behind the copies that its thread issued before, and behind those that add
to the same sums; no copy behind a product.  Each judge finds each fault.

Source: PTX ISA 9, "Memory Consistency Model for 5th generation of TensorCore operations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.async_mutants import mutants
from tests.blackwell_mutants import tensor_mutants
from tests.blackwell_terms import broken, small
from tests.hopper_terms import dos, rebuffered, rewritten
from tests.ptx_runs import run_matmul
from tinygpu.access_order import memory
from tinygpu.agents import TILES
from tinygpu.conditions import hazards
from tinygpu.events import verdict
from tinygpu.interpret import check
from tinygpu.ordering import order
from tinygpu.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Do,
    Elect,
    Fence,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    walk,
)
from tinygpu.protocol import Act, Body, Crew, Kind, Node, One, Protocol, Ring, Touch
from tinygpu.witness import Look

SIZES = {"m": 200, "n": 72, "k": 200}
CP, MMA = "tcgen05.cp", "tcgen05.mma"
SMALL = small("a in tmem")


def the(program: Program, name: str) -> Do:
    found = (s for s, _ in walk(program) if isinstance(s, Do))
    return next(do for do in found if do.instruction.name == name)


def dropped(which: Callable[[Statement], bool]) -> Callable[[Program], Program]:
    return lambda p: rewritten(p, lambda s: () if which(s) else s)


def of_multiplier(program: Program, which: Callable[[Statement], bool]) -> Program:
    """Drop statements of the role that multiplies."""
    bare = dropped(which)(program)
    roles = [
        b if r.name == "multiplier" else r for r, b in zip(program.roles, bare.roles, strict=True)
    ]
    return replace(program, roles=tuple(roles))


def copied_last(program: Program) -> Program:
    """Copy behind the products of a step."""
    copy = the(program, CP)

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, For) and s.var == "slab":
            return s, copy
        return () if s == copy else s

    return rewritten(program, change)


def copied_before_loads(program: Program) -> Program:
    copy = the(program, CP)

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Wait) and s.barrier.name == "full":
            return copy, s
        return () if s == copy else s

    return rewritten(program, change)


def fenced_late(program: Program) -> Program:
    """Fence between the copies and the products, which alone are behind it then."""
    copy, fence = the(program, CP), Fence("tcgen05.after")
    bare = of_multiplier(program, lambda s: s == fence)
    return rewritten(bare, lambda s: (copy, fence) if s == copy else s)


def of_the_step_before(program: Program) -> Program:
    def change(do: Do) -> Do:
        x = do.reads[0]
        assert isinstance(x, Access)
        return replace(do, reads=(replace(x, index=x.index + -1), *do.reads[1:]))

    return dos(program, MMA, change)


def of_sums(program: Program) -> Program:
    """Multiply sums, where they are, without a wait for the products that add to them."""
    sums = the(program, MMA).write
    others = replace(sums, buffer=replace(sums.buffer, name="others", dtype="f32"))
    wide = replace(program, buffers=(*program.buffers, others.buffer))

    def change(do: Do) -> tuple[Do, Do]:
        held, columns, _ = do.reads
        assert isinstance(held, Access)
        x = Access(sums.buffer, held.value, index=sums.index)
        return do, replace(do, write=others, reads=(x, columns, others))

    return dos(wide, MMA, change)


def by_another_thread(program: Program, *, told: bool) -> Program:
    """Copy in a role of its own, which commits; the multiplier, if ``told``, waits for that."""
    copy, stages = the(program, CP), program.barriers[0].stages
    copied, index = Barrier("copied", stages, 1), copy.write.index
    after, full = Fence("tcgen05.after"), program.barriers[0]
    step = (Wait(full, index), after, copy, Arrive(copied, index, after="tcgen05"))
    body = (Elect((ForTile("t", "i", (For("k", "trips", step),)),)), Sync(scope="cluster"))
    wait = (Wait(copied, index), after) if told else ()
    known = replace(program, barriers=(*program.barriers, copied))
    bare = rewritten(known, lambda s: wait if s == copy else s)
    return replace(bare, roles=(*bare.roles, Role("copier", 32, body, 1, "x")))


def commits(name: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, Arrive) and s.barrier.name == name


FAULTS: dict[str, Callable[[Program], Program]] = {
    "no copy": dropped(lambda s: isinstance(s, Do) and s.instruction.name == CP),
    "copied behind the products": copied_last,
    "copied before it is loaded": copied_before_loads,
    "products of the step before": of_the_step_before,
    "one stage too few": lambda p: rebuffered(p, "held_x", stages=1),
    "no commit of a stage": dropped(commits("empty")),
    "no fence before the copies": lambda p: of_multiplier(p, lambda s: isinstance(s, Fence)),
    "a fence behind the copies": fenced_late,
    "sums multiplied unwaited": of_sums,
    "another thread copies": lambda p: by_another_thread(p, told=False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_copy_is_found_both_ways(name: str) -> None:
    program = FAULTS[name](SMALL)
    assert not verdict(program).legal
    found: set[str] = set()
    for seed in range(8):
        found |= {f.kind for f in check(program, {"m": 264, "n": 72, "k": 200}, seeds=(seed,))}
        if found:
            break
    assert found


def test_a_copy_waits_for_products_that_read_what_it_overwrites() -> None:
    """The ring in tensor memory may have more stages than shared memory, but no fewer."""
    found = verdict(rebuffered(SMALL, "held_x", stages=1)).findings
    assert {f.kind for f in found} == {"race"}
    assert any("tcgen05.mma" in f.message and "tcgen05.cp" in f.message for f in found)
    assert verdict(rebuffered(SMALL, "held_x", stages=3)).legal


def test_another_thread_may_copy_and_tell() -> None:
    """Through a commit, a wait and a fence: legal, right, and so is its code."""
    program = by_another_thread(SMALL, told=True)
    assert verdict(program).legal
    assert broken(program) == {}
    assert check(program, SIZES, seeds=(0, 1)) == ()
    outcome = run_matmul(program, SIZES, arch="sm_100a", clusters=1)
    assert outcome.right
    assert outcome.report.findings == ()


@pytest.mark.parametrize(
    ("first", "second", "ordered"),
    [
        (("mma", True), ("mma", True), True),
        (("cp", True), ("mma", False), True),
        (("mma", True), ("mma", False), False),
        (("mma", False), ("cp", True), False),
        (("cp", True), ("cp", True), False),
    ],
)
def test_what_a_thread_issues_is_ordered_as_the_isa_says(
    first: tuple[Kind, bool], second: tuple[Kind, bool], *, ordered: bool
) -> None:
    """PTX ISA 9, "Pipelined tcgen05 Instructions": two that touch one index, no wait."""
    ring = Ring("x", 1, "cta")
    acts = tuple(Act(k, k, (Touch(ring, Affine(), w),)) for k, w in (first, second))
    look = Look(Protocol((Crew("one", 1, 1, "", acts),), (), False, ()), {TILES: 1})
    look.order = order(look.agents, look.images, look.sent)
    memory(look)
    assert ("race" in {f.kind for f in look.found.values()}) == (not ordered)


X, Y = Ring("x", 1, "cta"), Ring("y", 1, "cta")
DONE, NOW = Barrier("done", 1, 128), Affine()
BEFORE, AFTER, END = Fence("tcgen05.before"), Fence("tcgen05.after"), Sync(scope="cluster")
READ, WRITTEN, SUMS = Touch(X, NOW, False), Touch(X, NOW, True), Touch(Y, NOW, True)
PUT, CUT = Act("tcgen05.st", "put", (WRITTEN,)), Act("tcgen05.cp", "cp", (WRITTEN,))
TAKE, ADD = Act("tcgen05.ld", "take", (READ,)), Act("tcgen05.mma", "mma", (READ, SUMS), fresh=NOW)
TOLD, SAID = Arrive(DONE, NOW), Arrive(Barrier("said"), NOW, after="tcgen05")
COPIES = Arrive(Barrier("done"), NOW, after="tcgen05")
BY_REGISTERS = (
    (PUT, WaitGroup(0, "tcgen05.st"), BEFORE, TOLD, Wait(SAID.barrier, NOW), END),
    (One((Wait(DONE, NOW), AFTER, ADD, SAID)), END),
)
BY_COPY = (
    (Wait(COPIES.barrier, NOW), AFTER, TAKE, WaitGroup(0, "tcgen05.ld"), END),
    (One((CUT, COPIES)), END),
)


@pytest.mark.parametrize(
    ("bodies", "dropped", "kinds"),
    [
        (BY_REGISTERS, None, set()),
        (BY_REGISTERS, BY_REGISTERS[0][1], {"race", "exit"}),
        (BY_REGISTERS, BEFORE, {"proxy"}),
        (BY_REGISTERS, AFTER, {"proxy"}),
        (BY_COPY, None, set()),
        (BY_COPY, AFTER, {"proxy"}),
        (BY_COPY, BY_COPY[0][0], {"race", "exit"}),
    ],
)
def test_registers_and_copies_are_waited_for_and_fenced(
    bodies: tuple[Body, Body], dropped: Node | None, kinds: set[str]
) -> None:
    """tcgen05.st before another thread's tcgen05.mma, tcgen05.cp before another's tcgen05.ld."""

    def without(body: Body) -> Body:
        kept = tuple(n for n in body if n is not dropped)
        return tuple(One(without(n.body)) if isinstance(n, One) else n for n in kept)

    group, alone = map(without, bodies)
    crews = (Crew("group", 128, 1, "", group), Crew("alone", 32, 1, "", alone))
    found = hazards(Protocol(crews, (), False, ()), {TILES: 1})
    assert {h.kind for h in found} == kinds, found


def _changed() -> Iterator[tuple[str, Program]]:
    """Mutants of what copies: each names the copy, its memory, or what lets it go on."""
    for name, mutant in (*mutants(SMALL), *tensor_mutants(SMALL)):
        twice = name.startswith(("double sums", "anew"))  # in order, but other sums
        loads = "producer" in name
        if not twice and not loads and (CP in name or "held_x" in name or " full@" in name):
            yield name, mutant


JUDGED = tuple(_changed())


@pytest.mark.parametrize(("name", "program"), JUDGED, ids=[n[:60] for n, _ in JUDGED])
def test_both_judges_agree_on_mutants(name: str, program: Program) -> None:
    found: tuple[object, ...] = ()
    for seed in range(4):
        found = found or check(program, {"m": 264, "n": 40, "k": 184}, seeds=(seed,))
    assert verdict(program).legal == (not found), found


@pytest.mark.parametrize("name", ["one stage too few", "another thread copies", "no copy"])
def test_faulty_code_is_found(name: str) -> None:
    """The PTX interpreter sees it too: races of tensor memory, or nothing written there."""
    program = FAULTS[name](SMALL)
    outcome = run_matmul(program, SIZES, arch="sm_100a", clusters=1)
    assert outcome.report.findings != ()
