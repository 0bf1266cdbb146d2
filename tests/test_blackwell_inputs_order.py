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
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.meaning.interpret import check
from tinygpu.term.program import (
    Access,
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
    walk,
)

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


def by_another_thread(program: Program, *, told: bool) -> Program:
    """Copy in a role of its own, which commits; the multiplier, if ``told``, waits for that."""
    copy, stages = the(program, CP), program.barriers[0].stages
    copied, index = Barrier("copied", stages, 1), copy.write.index
    after, full = Fence("tcgen05.after"), program.barriers[0]
    step = (Wait(full, index), after, copy, Arrive(copied, index, after="tcgen05"))
    body = (Elect((ForTile("tile", "turn", (For("kt", "trips", step),)),)), Sync(scope="cluster"))
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
    fault = verdict(rebuffered(SMALL, "held_x", stages=1)).fault
    assert fault is not None
    assert fault.kind == "race"
    assert "tcgen05.cp" in fault.message
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
