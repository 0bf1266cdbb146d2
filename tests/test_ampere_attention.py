"""The machine ``ampere_attention``: legal, covered, exact, and its PTX right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.attention_mutants import bases, drawn_mutants, judged, ordering, ran
from tests.hopper_terms import rewritten
from tests.sample import all_by_turns, by_turns, draws
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError
from tinygpu.isa.fragment import Mode
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere_attention import STARTS, AmpereAttention
from tinygpu.meaning.identity import computes
from tinygpu.search.time.cost import cost
from tinygpu.search.time.work import Event, Loop, agents
from tinygpu.term.access_map import Access, Immediate
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.program import Commit, Do, Program, Statement, Sync, WaitGroup, When
from tinygpu.term.schedule import Schedule

MACHINE = AmpereAttention()
SMALL = {"depth": 64, "warps": 2, "warp_rows": 16, "tile_n": 32}
SIZES: dict[str, tuple[int, ...]] = {
    "ragged": (2, 1, 2, 37, 70, 64),
    "even": (1, 2, 1, 64, 64, 64),
    "rows without keys": (1, 1, 2, 70, 37, 64),
    "a head dimension that is padded": (1, 1, 1, 33, 45, 40),
    "one of each": (1, 1, 1, 1, 1, 8),
}
"""l, h, g, m, n, d."""


def sizes(case: str) -> dict[str, int]:
    l, h, g, m, n, d = SIZES[case]  # noqa: E741
    return {"l": l, "h": h, "g": g, "m": m, "n": n, "d": d, "e": d}


@cache
def term(mask: str = "causal", start: str = "fa2", dtype: str = "bf16", **others: Value) -> Program:
    chosen = Chosen({**STARTS[start], **SMALL, **others})
    return MACHINE.program(attention(dtype, mask=mask), chosen)


@all_by_turns(
    ("mask", ["none", "causal"]),
    ("start", STARTS),
)
def test_named_points_are_legal_and_covered(start: str, mask: str) -> None:
    """For every number of tiles, each with its own number of blocks; on all chips from sm_80 on."""
    problem = Problem.of(attention(mask=mask), l=2, h=4, g=2, m=999, n=1234, d=128, e=128)
    schedule = Schedule.of(MACHINE, STARTS[start])
    program = schedule.program(MACHINE, problem.operation)
    assert verdict(program).legal
    assert mask_cover(program)
    for device in map(load_device, ("a100", "h200")):
        assert not check_schedule(schedule, MACHINE, problem, device)
        assert cost(program, problem.sizes, device).seconds > 0
    assert [AmpereAttention.runs_on(arch) for arch in ("sm_75", "sm_80", "sm_89", "sm_90a")] == [
        False, True, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start", "mask"), by_turns(["fa2", "meet once", "queries held"], ["causal", "none"])
)
def test_it_computes_attention(start: str, mask: str) -> None:
    program = term(mask, start, warps=1 if mask == "none" else 2)
    found = computes(program)
    assert found, str(found)
    assert "mask cover proved for every m, n" in str(found)


@pytest.mark.parametrize("case", ["ragged", "rows without keys"])
def test_its_log_sum_exp_is_right(case: str) -> None:
    """In exact arithmetic and by its code; -inf for a query that sees no key."""
    operation = attention(mask="causal", lse=True)
    program = MACHINE.program(operation, Chosen({**STARTS["fa2"], **SMALL}))
    assert verdict(program).legal
    found = computes(program, {**sizes(case), "d": 16, "e": 8})
    assert found, str(found)
    assert interpret(program, sizes(case), arch="sm_80").right


@pytest.mark.parametrize(("case", "mask"), by_turns(SIZES, ["none", "causal"]))
def test_its_ptx_is_right(mask: str, case: str) -> None:
    for start, dtype in (("fa2", "bf16"), ("queries held", "f16")):
        if STARTS[start]["edges"] == "exact" and sizes(case)["d"] != SMALL["depth"]:
            continue
        run = interpret(term(mask, start, dtype), sizes(case), arch="sm_80")
        assert run.right, run


@settings(max_examples=draws(3, 8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["none", "causal"]), st.sampled_from([*SIZES]))
def test_drawn_schedules_are_legal_and_right(seed: int, mask: str, case: str) -> None:
    """What the laws allow is proved by the judge, covers its mask, and runs right."""
    random, here = np.random.default_rng(seed), sizes(case)
    problem = Problem.of(attention(mask=mask), **here)
    for _ in range(60):
        values = {
            name: choice.values[int(random.integers(len(choice.values)))]
            for name, choice in MACHINE.decisions().items()
        }
        values |= {"depth": 64, "warps": int(random.choice([2, 4]))}
        schedule = Schedule.of(MACHINE, values)
        if not check_schedule(schedule, MACHINE, problem, load_device("a100")):
            break
    else:
        return
    program = schedule.program(MACHINE, problem.operation)
    assert verdict(program).legal
    assert mask_cover(program)
    run = interpret(program, here, arch="sm_80", seed=seed % 1000)
    assert run.right, (values, run)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
def test_it_assembles(arch: str) -> None:
    """Without a spill where 16 rows are a warp's; two factors' matrices come four at a time."""
    machine_code = assemble(emit(term("causal", "queries held", depth=128), arch), arch)
    assert not machine_code.spills
    text = emit(term(), arch)
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in text
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in text
    assert "mbarrier" not in text


@pytest.mark.parametrize(
    ("others", "law"),
    [
        ({"syncs": 1, "stages_k": 1, "stages_v": 2}, "ahead"),
        ({"together": "group", "raster": 1}, "unused"),
        ({"warp_rows": 32, "tile_n": 128, "depth": 128}, "registers"),
        ({"tile_n": 128, "stages_k": 4, "stages_v": 4, "depth": 128}, "smem_per_cta"),
        ({"edges": "exact", "depth": 128}, "inside"),
    ],
)
def test_what_cannot_be_breaks_a_law(others: dict[str, Value], law: str) -> None:
    d = 64 if law == "inside" else int(others.get("depth", 64))
    problem = Problem.of(attention(), l=1, h=1, g=1, m=256, n=256, d=d, e=d)
    schedule = Schedule.of(MACHINE, {**STARTS["fa2"], **SMALL, **others})
    broken = {v.law for v in check_schedule(schedule, MACHINE, problem, load_device("a100"))}
    assert law in broken


def test_other_operations_are_refused() -> None:
    with pytest.raises(OperationError, match="with mask none or causal"):
        MACHINE.check(attention(mask="window:3:0"))
    with pytest.raises(OperationError, match=r"as cp\.async's vectors are of 16 B"):
        MACHINE.check_sizes({"d": 100, "e": 128})


# Terms that are wrong


def without(program: Program, kind: type[Statement], number: int) -> Program:
    """The program without its n-th statement of a kind."""
    seen: list[Statement] = []

    def of(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, kind):
            seen.append(s)
            if len(seen) == number + 1:
                return ()
        return s

    found = rewritten(program, of)
    assert len(seen) > number
    return found


@pytest.mark.parametrize(("kind", "number"), [(Sync, 0), (Sync, 1), (WaitGroup, 0), (WaitGroup, 1),
                                              (WaitGroup, 2)])  # fmt: skip
def test_a_dropped_wait_is_found(kind: type[Statement], number: int) -> None:
    """By the judge, which names a race, or copies in flight at the end of a tile without keys."""
    for mask in ("none", "causal")[number == 2 :]:
        found = verdict(without(term(mask), kind, number))
        assert found.outcome == "illegal"
        assert found.fault is not None
        assert found.fault.kind in ("race", "exit", "unwritten")


@pytest.mark.parametrize("number", range(4))
def test_a_group_less_is_found(number: int) -> None:
    """The groups that are counted are then others, before the loop and in it."""
    found = verdict(without(term("causal", "few keys"), Commit, number))
    assert found.outcome == "illegal"


def hidden(program: Program, change: Any) -> Program:
    """The program with another predicate."""

    def of(s: Statement) -> Statement:
        return replace(s, where=change(s.where)) if isinstance(s, Do) and s.where else s

    return rewritten(program, of)


def guarded(program: Program, bound: int) -> Program:
    """The program whose mask is asked in other turns."""

    def of(s: Statement) -> Statement:
        if isinstance(s, When) and any(isinstance(b, Do) and b.where for b in s.body):
            return replace(s, bound=bound)
        return s

    return rewritten(program, of)


def loaded(program: Program, change: Any) -> Program:
    """The program whose copies of keys in the loop come from elsewhere."""

    def of(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.write.buffer.name != "smem_k":
            return s
        (read,) = s.reads
        assert isinstance(read, Access)
        if read.origin[2].constant == first[0]:
            return s
        return replace(s, reads=(replace(read, origin=change(read.origin)),))

    first = [
        r.origin[2].constant
        for s in _copies(program, "smem_k")
        for r in s.reads
        if isinstance(r, Access)
    ]
    return rewritten(program, of)


def _copies(program: Program, ring: str) -> list[Do]:
    found: list[Do] = []

    def of(s: Statement) -> Statement:
        if isinstance(s, Do) and s.write.buffer.name == ring:
            found.append(s)
        return s

    rewritten(program, of)
    return found


MASKED: dict[str, tuple[Callable[[Program], Program], str]] = {
    "one key more": (lambda p: hidden(p, lambda w: replace(w, bound=w.bound + -1)), "wrong"),
    "one key less": (lambda p: hidden(p, lambda w: replace(w, bound=w.bound + 1)), "wrong"),
    "other threads": (
        lambda p: hidden(p, lambda w: replace(w, thread=tuple(reversed(w.thread)))), "wrong",
    ),
    "too few turns": (lambda p: guarded(p, 1), "wrong"),
    "no predicate": (lambda p: hidden(p, lambda w: None), "unproved"),
    "other keys": (
        lambda p: loaded(p, lambda o: (*o[:2], o[2] + 32, *o[3:])), "unproved",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MASKED)
def test_a_wrong_mask_is_found(what: str) -> None:
    change, outcome = MASKED[what]
    wrong = change(term(tile_n=32, warps=4))
    found = mask_cover(wrong)
    assert found.outcome == outcome, found
    assert not computes(wrong)


def test_scores_begin_at_0_in_each_turn() -> None:
    """Else nothing is proved of them, and they are wrong."""

    def of(s: Statement) -> Statement | tuple[Statement, ...]:
        clears = isinstance(s, Do) and s.write.buffer.name == "scores" and not s.where
        return () if clears and isinstance(s, Do) and s.reads == (Immediate(0.0),) else s

    program = rewritten(term(), of)
    assert "does not start anew" in mask_cover(program).reason
    assert not verdict(program).legal


@pytest.mark.parametrize("ring", ["queries", "keys", "values"])
def test_registers_that_are_filled_otherwise_are_not_seen_through(ring: str) -> None:
    """Of another tile's matrices, or twice, nothing is proved."""

    def of(s: Statement) -> Statement | tuple[Statement, ...]:
        return (s, s) if isinstance(s, Do) and s.write.buffer.name == ring else s

    assert mask_cover(rewritten(term(), of)).outcome == "unproved"


@pytest.mark.parametrize("modes", [((2, 0, 8), (2, 8, 0)), ((2, 0, 1), (2, 4, 0))])
def test_products_of_other_fragments_are_not_seen_through(modes: tuple[Mode, ...]) -> None:
    """Their sums count columns, or rows, by another digit of the values."""

    def of(s: Statement) -> Statement:
        if not (isinstance(s, Do) and s.instruction.blocks):
            return s
        own = tuple(replace(b, d=replace(b.d, value_modes=modes)) for b in s.instruction.blocks)
        return replace(s, instruction=replace(s.instruction, blocks=own))

    assert mask_cover(rewritten(term(), of)).outcome == "unproved"


def test_mutants_that_are_legal_do_not_fail() -> None:
    """Of forty about half are illegal; the first legal ones run, and none has a fault."""
    terms = [one for one in bases() if one[0].startswith("ampere_attention, few keys, causal")]
    found: list[tuple[str, Program, str]] = []
    for _, name, program in islice(drawn_mutants(3, terms), 40):
        found.append((name, program, judged(program)["outcome"]))
    outcomes = [outcome for *_, outcome in found]
    assert outcomes.count("illegal") > 10
    for name, program, _ in [one for one in found if one[2] == "legal"][: draws(2, 3)]:
        assert ran(program, orders=ordering(name))["outcome"] in ("survives", "wrong"), name


# Time


def test_tiles_of_threads_take_the_mean_of_their_steps() -> None:
    """Half of the blocks, and a mask in some: a causal term takes a bit more than half as long."""
    device = load_device("a100")
    many = {"l": 4, "h": 16, "g": 1, "m": 4096, "n": 4096, "d": 128, "e": 128}
    chosen = Chosen(STARTS["few keys"])
    full, causal = (
        cost(MACHINE.program(attention(mask=mask), chosen), many, device).seconds
        for mask in ("none", "causal")
    )
    assert 0.5 < causal / full < 0.6


def test_a_guard_counts_in_its_share_of_the_turns() -> None:
    """The mask's comparisons are done in the first blocks of many."""

    def ints(n: int, cut: int) -> float:
        program = guarded(term("none"), cut)
        here = {"l": 1, "h": 1, "g": 1, "m": 64, "n": n, "d": 64, "e": 64}
        (agent,) = agents(program, load_device("a100"), here)
        (loop,) = (n for n in agent.after if isinstance(n, Loop) and n.form == "rolled")
        return float(
            sum(e.cycles.get("int", 0.0) for e in loop.body
                if isinstance(e, Event) and isinstance(e.statement, Do) and e.statement.where)
        )  # fmt: skip

    assert ints(320, 1) == pytest.approx(ints(320, 10) / 10)
    assert ints(320, 20) == ints(320, 10)


def test_it_is_found_by_arch() -> None:
    """On sm_80 it is the one machine of attention, and the other one on no chip but Hopper."""
    can = [n for n, m in MACHINES.items() if "attention" in m.operations and m.runs_on("sm_80")]
    assert can == ["ampere_attention"]
