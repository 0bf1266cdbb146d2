"""Laws: each kills something, names its mend, and says the same of ints and of arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.mutants import rewritten
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import IllegalScheduleError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.laws import LAWS, Law, check_schedule, named, require_legal, serves
from tinygpu.legality.reach import Case, exactly_once
from tinygpu.legality.role_laws import ROLE_LAWS
from tinygpu.legality.tensor_laws import TENSOR_LAWS
from tinygpu.legality.tmem_laws import TMEM_LAWS
from tinygpu.legality.warp_laws import WARP_LAWS
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.plan import one_kernel
from tinygpu.term.program import (
    Access,
    Affine,
    Do,
    Predicate,
    Program,
    Role,
    Statement,
    Sync,
    registers,
    var,
    walk,
)
from tinygpu.term.schedule import Schedule

H200 = load_device("h200")
LARGE = Problem.of(matmul(), m=4096, n=4096, k=4096)
TUNED = Schedule.of(Simt(), LADDER["tuned"])

# A law, and the decisions changed in "tuned" (or the sizes, or the device) that break it.
BREAKS: dict[str, tuple[dict[str, Value], Problem, Device]] = {
    "whole_extents": ({"tile_k": 1, "vector_a": 4}, LARGE, H200),
    "threads": ({"tile_m": 256, "tile_n": 256, "thread_m": 4, "thread_n": 4}, LARGE, H200),
    "residency": ({"ctas_per_sm": 16}, LARGE, H200),
    "smem_per_cta": ({}, LARGE, H200.with_values(smem_bytes_per_cta_max=16384)),
    "smem_per_sm": ({}, LARGE, H200.with_values(smem_bytes_per_sm=32768)),
    "registers": ({"thread_m": 16, "thread_n": 16, "lanes_m": 4, "ctas_per_sm": 8}, LARGE, H200),
    "vector_width": ({"vector_b": 8}, LARGE, H200),
    "vector_contiguous": ({"vector_shared": 1, "vector_c": 4}, LARGE, H200),
    "vector_aligned": ({}, Problem.of(matmul(), m=64, n=64, k=37), H200),
    "inside": ({"edges": "exact"}, Problem.of(matmul(), m=100, n=128, k=64), H200),
    "fill_tiles": ({"tile_k": 4, "tile_n": 64, "lanes_m": 8}, LARGE, H200),
    "index_width": ({"addressing": "i32"}, Problem.of(matmul(), m=65536, n=32768, k=64), H200),
    "integers": ({}, Problem.of(matmul(), m=8, n=8, k=2**31 - 1), H200),
    "device_memory": ({}, Problem.of(matmul(), m=2**19, n=2**19, k=64), H200),
    "exit_last": ({"edges": "return"}, LARGE, H200),
    "concurrency": (
        {"pipeline": "cp.async", "a_layout": "mk", "vector_shared": 1, "vector_c": 1, "stages": 1},
        LARGE,
        H200,
    ),
}
ENGLISH = {"threads", "raster", "order", "pipeline", "warps", "rows", "chunks"}
OTHERS = {**ROLE_LAWS, **TENSOR_LAWS, **WARP_LAWS, **TMEM_LAWS}
TERMS: dict[str, Callable[[Program], Program]] = {
    "covered_sizes": lambda p: replace(p, at_most=(("m", 64),)),
    "early": lambda p: replace(p, early=True),
    "storage": lambda p: rewritten(
        p, p.buffers[-1], replace(p.buffers[-1], stage_elements=p.buffers[-1].stage_elements - 1)
    ),
    "barrier_ids": lambda p: _with(p, Sync(16)),
    "predicates": lambda p: _with(p, _far(p)),
}


def _far(program: Program) -> Statement:
    """Return a statement whose predicate compares what no 32 bits hold."""
    dos = (s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.name == "mov")
    return replace(next(dos), where=Predicate(Affine(1 << 31)))


def _with(program: Program, statement: Statement) -> Program:
    (role,) = program.roles
    return replace(program, roles=(replace(role, body=(*role.body, statement)),))


@pytest.mark.parametrize("law", [n for n in LAWS if n not in OTHERS])
def test_every_law_breaks_somewhere_and_names_its_mend(law: str) -> None:
    if law in BREAKS:
        changes, problem, device = BREAKS[law]
        schedule = TUNED.with_(**changes)
        found = {v.law: v for v in check_schedule(schedule, Simt(), problem, device)}
        assert law in found, sorted(found)
        message = str(found[law])
        assert message.startswith(f"{law}: ")
        assert "\n" not in message
        assert found[law].mend in message
        with pytest.raises(IllegalScheduleError):
            require_legal(schedule, Simt(), problem, device)
    elif law == "even_cuts":
        split = MACHINES["hopper_split"]
        chosen = Schedule.of(split, {**STARTS["ring"], "split_k": 3, "add_vector": 1})
        cut, whole = ({**LARGE.sizes, "k": k} for k in (4096, 4104))
        term = chosen.term(split, matmul("bf16", layout="nt"))
        for sizes, holds in ((cut, False), (whole, True)):
            case, *_ = Case.every(term, sizes, H200)
            assert all(c.holds for c in LAWS[law].clauses(case)) == holds
    elif law == "store_once":
        program = Simt().program(matmul(), Chosen(LADDER["naive"]))
        case = Case.of(_stored_twice(program), LARGE.sizes, H200)
        assert not all(c.holds for c in LAWS[law].clauses(case))
        assert all(c.holds for c in LAWS[law].clauses(Case.of(program, LARGE.sizes, H200)))
    else:
        program = Simt().program(matmul(), Chosen(LADDER["tuned"]))
        assert all(c.holds for c in LAWS[law].clauses(Case.of(program, LARGE.sizes, H200)))
        chip = load_device("a100") if law == "early" else H200
        case = Case.of(TERMS[law](program), LARGE.sizes, chip)
        assert not all(c.holds for c in LAWS[law].clauses(case))


def _stored_twice(program: Program) -> Program:
    """Let two neighbouring lanes store the same column."""
    (role,) = program.roles
    *before, store = role.body
    assert isinstance(store, Do)
    first, *rest = store.write.thread
    overlapping = replace(store.write, thread=((0, 0), *rest))
    assert first != (0, 0)
    body = (*before, replace(store, write=overlapping))
    return replace(program, roles=(replace(role, body=body),))


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_every_law_says_what_it_states_and_where_that_is_from(law: Law) -> None:
    assert law.sentence.startswith("States that ")
    assert law.source
    assert law.mend


@pytest.mark.parametrize("name", LADDER)
def test_ladder_points_are_legal(name: str) -> None:
    schedule = Schedule.of(Simt(), LADDER[name])
    assert check_schedule(schedule, Simt(), LARGE, H200) == ()
    assert one_kernel(require_legal(schedule, Simt(), LARGE, H200)).threads % 32 == 0


def test_a_message_is_one_line_with_subject_got_allowed_and_way_out() -> None:
    schedule = TUNED.with_(pipeline="cp.async", stages=4, tile_k=64, a_layout="mk", pad_a=8,
                           vector_shared=1, vector_c=1, ctas_per_sm=1)  # fmt: skip
    first, *_ = check_schedule(schedule, Simt(), LARGE, H200)
    assert str(first) == (
        "smem_per_cta: smem_a, smem_b, 4 stages, need 278528 B; h200 allows 232448 B per CTA; "
        "keep less in shared memory (stages 4, tile_k 64, tile_m 128, tile_n 128)"
    )


def test_a_requirement_of_the_machine_is_a_law_too() -> None:
    (violation,) = check_schedule(TUNED.with_(issue=1), Simt(), LARGE, H200)
    assert violation.law == "issue_inside"
    assert "issue (1) 0" in violation.mend


def test_serves_asks_what_depends_on_sizes_and_nothing_else() -> None:
    program = require_legal(TUNED, Simt(), LARGE, H200)
    assert serves(program, {"m": 1, "n": 4, "k": 8}) == ()
    assert [v.law for v in serves(program, {"m": 64, "n": 64, "k": 37})] == ["vector_aligned"]
    exact = require_legal(TUNED.with_(edges="exact"), Simt(), LARGE, H200)
    assert [v.law for v in serves(exact, {"m": 100, "n": 128, "k": 64})] == ["inside"]
    assert serves(exact, {"m": 256, "n": 128, "k": 32}) == ()


def test_threads_that_an_exit_removed_do_not_leave_the_arrays() -> None:
    naive = one_kernel(require_legal(Schedule.of(Simt(), LADDER["naive"]), Simt(), LARGE, H200))
    assert serves(naive, {"m": 37, "n": 41, "k": 29}) == ()
    (role,) = naive.roles
    stays = replace(naive, roles=(replace(role, body=role.body[1:]),))
    assert [v.law for v in serves(stays, {"m": 37, "n": 41, "k": 29})] == ["inside"]
    rows = {**LADDER["naive"], "thread_m": 2, "tile_m": 64}
    pairs = Simt().program(matmul(), Chosen(rows))
    assert [v.law for v in serves(pairs, {"m": 37, "n": 41, "k": 29})] == ["inside"]


@pytest.mark.parametrize(
    ("modes", "holds"),
    [
        ([(4, 1), (8, 4)], True),
        ([(8, 4), (4, 1)], True),
        ([(2, 1), (2, 1)], False),
        ([(4, 2), (2, 1)], True),
        ([(4, 3), (2, 1)], False),
        ([(1, 77), (5, 1)], True),
        ([(2, 2)], False),
    ],
)
def test_exactly_once_is_what_counting_says(modes: list[tuple[int, int]], holds: bool) -> None:
    touched = [0]
    for extent, step in modes:
        touched = [x + i * step for x in touched for i in range(extent)]
    count = len(touched)
    assert (sorted(touched) == list(range(count))) == holds
    assert bool(exactly_once(modes)[0]) == holds


def test_a_sum_that_is_too_large_for_a_thread_names_itself() -> None:
    big = registers("sums", "f64", 16, 16)
    whole = Access(big, ((0, 1), (1, 0)))
    zero = Do(INSTRUCTIONS["fma"], whole, (whole, whole), (16, 16), variant="add")
    program = Simt().program(matmul(), Chosen(LADDER["naive"]))
    (role,) = program.roles
    wider = replace(
        program,
        buffers=(*(b for b in program.buffers if b.name != "sums"), big),
        roles=(Role("all", role.threads, (zero,)),),
    )
    clauses = list(LAWS["registers"].clauses(Case.of(wider, LARGE.sizes, H200)))
    assert not clauses[0].holds
    assert "512 registers" in str(clauses[0])
    assert str(var("k")) == "k"


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_advice_names_decisions_of_the_machine_alone(law: Law) -> None:
    """A machine of the user's without the shipped machines' decisions is told of none of them."""
    decisions = {name for machine in MACHINES.values() for name in machine.decisions()}
    said = named(law.mend, {})
    words = set(re.findall(r"\w+", said)) - ENGLISH
    assert not words & decisions, said
    assert "(" not in said


def test_a_mend_names_decisions_that_there_are() -> None:
    """In parentheses: a machine is told of those that it has, and a misspelt one of none."""
    known = {name for machine in MACHINES.values() for name in machine.decisions()}
    listed = re.compile(r' \((\w+(?: "[^(),]*)?(?:, \w+(?: "[^(),]*)?)*)\)')
    for law in LAWS.values():
        for group in listed.findall(law.mend):
            assert {part.split(" ")[0] for part in group.split(", ")} <= known, law.name
