"""The machine blackwell at work: what it computes, what is legal, and mutants that are not.

The judge and the interpreter share no code; each judges every mutant that is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.async_mutants import mutants
from tests.blackwell_terms import LAYOUTS, built, small, term
from tests.hopper_terms import dos, rebuffered, rewritten
from tests.sample import all_by_turns
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.blackwell import STARTS
from tinygpu.meaning.interpret import check
from tinygpu.term.program import (
    Arrive,
    Do,
    Fence,
    Program,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
)

SIZES = {"m": 200, "n": 72, "k": 200}


@pytest.mark.parametrize("start", STARTS)
def test_named_points_are_right_at_ragged_sizes(start: str) -> None:
    assert check(small(start), SIZES, seeds=(0, 1)) == ()


@all_by_turns(
    ("layout", LAYOUTS),
    ("start", ["small", "pair", "narrow pair"]),
)
def test_every_layout_is_right(start: str, layout: str) -> None:
    program = term(start, layout, stages=2)
    assert check(program, {"m": 136, "n": 136, "k": 72}, seeds=(3,)) == ()


@pytest.mark.parametrize("sizes", [{"m": 1, "n": 8, "k": 8}, {"m": 300, "n": 40, "k": 64}])
def test_little_is_right(sizes: dict[str, int]) -> None:
    for start in ("plain", "wide pair"):
        assert check(small(start), sizes, seeds=(0, 1)) == ()


def test_f32_results_are_stored_both_ways() -> None:
    for epilogue, vector, stages in (("tma", 1, 2), ("direct", 4, 1)):
        chunks = {"store_n": 16, "vector_c": vector, "store_stages": stages, "tile_n": 32}
        program = built({**STARTS["pair"], **chunks, "epilogue": epilogue}, output="f32")
        assert check(program, {"m": 72, "n": 40, "k": 72}, seeds=(0,)) == ()


@pytest.mark.parametrize("name", ["tcgen05.ld", "cvt", "st.global"])
@pytest.mark.parametrize("lanes", [None, (16, 2, 1), (32, 2, 0)])
def test_of_64_rows_only_lanes_that_have_one_are_used(
    name: str, lanes: tuple[int, int, int] | None
) -> None:
    """What others took, rounded or stored was not there: for the judge and for the interpreter."""
    program = term("small")
    assert verdict(program).legal
    wrong = dos(program, name, lambda do: replace(do, lanes=lanes))
    assert not verdict(wrong).legal
    assert check(wrong, SIZES, seeds=(0,))


@pytest.mark.parametrize("start", STARTS)
def test_named_points_are_legal_for_every_number_of_tiles_and_trips(start: str) -> None:
    found = verdict(term(start))
    assert found.legal, found
    assert "every " in found.by, found


def without(
    kind: type[Statement], which: Callable[[Statement], bool]
) -> Callable[[Program], Program]:
    return lambda p: rewritten(p, lambda s: () if isinstance(s, kind) and which(s) else s)


def fence(kind: str, role: str) -> Callable[[Program], Program]:
    """Drop the tcgen05.fence of a role."""

    def change(program: Program) -> Program:
        bare = rewritten(program, lambda s: () if isinstance(s, Fence) and s.kind == kind else s)
        roles = [b if r.name == role else r for r, b in zip(program.roles, bare.roles, strict=True)]
        return replace(program, roles=tuple(roles))

    return change


def arrival(name: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, Arrive) and s.barrier.name == name


def waiting(name: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, Wait) and s.barrier.name == name


def anywhere(s: Statement) -> bool:
    return True


def plain_commits(program: Program) -> Program:
    """Arrive when products are issued, not when they are done."""
    return rewritten(program, lambda s: replace(s, after="") if isinstance(s, Arrive) else s)


def early_release(program: Program) -> Program:
    """Give the accumulator back before its last chunk is in registers."""

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        return () if isinstance(s, WaitGroup) and s.group == "tcgen05.ld" else s

    bare = rewritten(program, change)
    wait = WaitGroup(0, "tcgen05.ld")
    return rewritten(bare, lambda s: (s, wait) if isinstance(s, When) and len(s.body) == 2 else s)


def never_fresh(program: Program) -> Program:
    def change(do: Do) -> Do:
        assert do.fresh is not None
        return replace(do, fresh=do.fresh + 1)

    return dos(program, "tcgen05.mma", change)


def ended_early(program: Program) -> Program:
    """Let the warp that gives tensor memory back not wait for the others."""
    first, *others = program.roles
    end = tuple(s for s in first.body if not isinstance(s, Sync))
    rest = [replace(r, body=tuple(s for s in r.body if not isinstance(s, Sync))) for r in others]
    return replace(program, roles=(replace(first, body=end), *rest))


FAULTS: dict[str, tuple[str, Callable[[Program], Program]]] = {
    "no commit of a stage": ("persistent", without(Arrive, arrival("empty"))),
    "no commit of sums": ("persistent", without(Arrive, arrival("acc_full"))),
    "no release of sums": ("persistent", without(Arrive, arrival("acc_empty"))),
    "no wait for sums": ("persistent", without(Wait, waiting("acc_full"))),
    "no wait for an accumulator": ("persistent", without(Wait, waiting("acc_empty"))),
    "no wait for a stage": ("pair", without(Wait, waiting("full"))),
    "no wait for loads": ("persistent", without(WaitGroup, lambda s: "tcgen05" in str(s))),
    "commits at once": ("persistent", plain_commits),
    "released before it is taken": ("persistent", early_release),
    "no fence before products": ("pair", fence("tcgen05.after", "multiplier")),
    "no fence before loads": ("pair", fence("tcgen05.after", "epilogue")),
    "no fence behind loads": ("pair", fence("tcgen05.before", "epilogue")),
    "sums never begun": ("persistent", never_fresh),
    "one accumulator too few": ("persistent", lambda p: rebuffered(p, "sums", stages=1)),
    "nobody waits at the end": ("pair", ended_early),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_program_is_found_both_ways(name: str) -> None:
    start, change = FAULTS[name]
    program = change(small(start))
    assert not verdict(program).legal
    found: set[str] = set()
    for seed in range(8):
        found |= {f.kind for f in check(program, {"m": 392, "n": 72, "k": 200}, seeds=(seed,))}
        if found:
            break
    assert found


def _changed(program: Program) -> Iterator[tuple[str, Program]]:
    """Mutants of what blackwell adds: the roles that multiply and take, their barriers."""
    for name, mutant in mutants(program):
        ordinary = "producer" in name or "bulk" in name or "bar.sync" in name or "smem" in name
        if not ordinary:
            yield name, mutant


JUDGED = [(n, m) for n, m in _changed(small("persistent"))][::13]


@pytest.mark.parametrize(("name", "program"), JUDGED, ids=[n[:60] for n, _ in JUDGED])
def test_both_judges_agree_on_mutants(name: str, program: Program) -> None:
    sizes = {"m": 3 * 128 - 8, "n": 72, "k": 3 * 64 - 8}
    found: tuple[object, ...] = ()
    for seed in range(6):
        found = found or check(program, sizes, seeds=(seed,))
    assert verdict(program).legal == (not found), found


def test_a_home_barrier_is_waited_for_at_home_only() -> None:
    """The other CTA's mbarrier of that name gets no arrivals."""
    program = rewritten(
        small("pair"), lambda s: s.body if isinstance(s, When) and str(s.index) == "pair" else s
    )
    assert not verdict(program).legal
