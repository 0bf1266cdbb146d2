"""Softmax by rows: a thread's second row finds its maximum beside the weights of the first."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.hopper_terms import rewritten
from tests.sample import some
from tests.test_attention_sass import missing
from tinygpu.codegen.emit import Emitter, emit
from tinygpu.codegen.run.assemble import assemble, sass
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.deadline import NEVER, Deadline
from tinygpu.devices.device import load_device
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.machines.attention import STARTS, Attention, RowStatistics, consumer_orders
from tinygpu.meaning.identity import computes
from tinygpu.search.exact.branch import Search
from tinygpu.search.neighbourhood import Candidate, Neighbourhood
from tinygpu.search.time.timeline import timeline
from tinygpu.search.tuning.climb import _Climb
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.program import Program, Statement, When, var
from tinygpu.term.schedule import Schedule

ZIGZAG = {**STARTS["zigzag"], "softmax": "by rows"}
CAUSAL = Problem.of(attention(mask="causal"), l=4, h=8, g=2, m=2048, n=2048, d=128, e=128)
SMALL: dict[str, Value] = {"depth": 64, "tile_n": 64, "consumers": 1, "queries": "shared"}
SIZES = {"l": 1, "h": 1, "g": 1, "m": 130, "n": 150, "d": 24, "e": 16}


def term(mask: str = "causal", **changed: Value) -> Program:
    chosen = {**ZIGZAG, **SMALL, "order": "longest", "consumer_order": "SVsMvELOP", **changed}
    return Attention().program(attention(mask=mask), Chosen(chosen))


# What it computes


@pytest.mark.parametrize("order", ["SVsMvELOP", *some(consumer_orders().values, 3)])
def test_it_is_legal_and_computes_its_operation(order: str) -> None:
    program = term(consumer_order=order)
    assert verdict(program).legal
    assert computes(program, SIZES)


@pytest.mark.parametrize(("mask", "changed"), [
    ("none", {}), ("causal", {"consumers": 2, "depth": 128, "queries": "registers"}),
    ("window:40:0", {"tile_n": 80}),
])  # fmt: skip
def test_its_code_is_right(mask: str, changed: dict[str, Value]) -> None:
    program = term(mask, **changed)
    sizes = {"l": 1, "h": 1, "g": 2, "m": 70, "n": 200, "d": 40, "e": 24}
    assert emulated(program, sizes, arch="sm_90a", completions=COMPLETIONS[:1]).findings == ()


def test_weights_of_a_row_that_is_left_out_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowStatistics, "exponentiate", lambda _: None)
    assert not computes(term(), SIZES)


def test_a_row_by_the_other_ones_maximum_is_another_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights of the first row are made anew, of weights, where those of the last are due."""

    def first(rows: RowStatistics) -> None:
        for row in rows.k.each(rows.row):
            with rows.k.when(row < 1):
                rows._weigh()

    monkeypatch.setattr(RowStatistics, "exponentiate", first)
    assert not computes(term(), SIZES)


@pytest.mark.parametrize("changed", [{"dtype": "e4m3"}, {"weights": "shared", "tile_n": 192}])
def test_it_wants_weights_of_16_bits_in_registers(changed: dict[str, str]) -> None:
    dtype = changed.pop("dtype", "bf16")
    of = Problem.of(attention(dtype, mask="causal"), **CAUSAL.sizes)
    one = Schedule.of(Attention(), {**ZIGZAG, "queries": "shared", **changed})
    broken = check_schedule(one, Attention(), of, load_device("h100"))
    assert any(str(reason).startswith("by_rows") for reason in broken)


def guarded(change: Callable[[When], When]) -> Program:
    """The term with other guards in the loop over rows."""

    def of(s: Statement) -> Statement:
        names = {name for name, _ in s.index.terms} if isinstance(s, When) else set()
        return change(s) if isinstance(s, When) and names == {"half"} else s

    found = rewritten(term(), of)
    assert found != term()
    return found


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: replace(s, index=var("kt")), "under a guard"),
        (lambda s: replace(s, index=s.index + var("kt")), "under a guard"),
        (lambda s: replace(s, bound=0), "proved"),
    ],
)
def test_a_guard_of_other_turns_is_unproved(change: Callable[[When], When], what: str) -> None:
    """Who reads scores in some steps alone is no part of the proof of the mask.

    A guard that never holds hides nothing: what is computed then is another function.
    """
    program = guarded(change)
    assert what in str(mask_cover(program))
    assert not computes(program, SIZES)


# Its code


def between_rows(text: str) -> list[tuple[str, str]]:
    """The registers that stay behind an earlier row's factor, and that factor's."""
    return re.findall(r"selp\.f32 (%f\d+), (%f\d+), \1,", text)


def test_the_second_maximum_stays_behind_the_first_factor() -> None:
    text = emit(term(), "sm_90a")
    held = between_rows(text)
    assert held
    for _, factor in held:
        assert re.search(rf"ex2\.approx\.ftz\.f32 {factor}, ", text)
    assert not between_rows(emit(term(softmax="at once"), "sm_90a"))


@pytest.mark.skipif(bool(missing()), reason=missing() or "tools are there")
@pytest.mark.parametrize("pinned", [True, False])
def test_ptxas_leaves_it_beside_the_weights(monkeypatch: pytest.MonkeyPatch, pinned: bool) -> None:
    """Half of the maxima stand behind the first exponential; without the pin most move up."""
    if not pinned:
        monkeypatch.setattr(Emitter, "_behind", lambda *_: None)
    program = Schedule.of(Attention(), ZIGZAG).program(Attention(), attention())
    code = assemble(emit(program, "sm_90a"), "sm_90a")
    assert not code.spills
    after = sass(code.bytes).split("WARPGROUP.DEPBAR.LE gsb0, 0x1")[1]
    step = after.split("HGMMA")[0]
    behind = step[step.index("MUFU.EX2") :].count("FMNMX")
    assert (behind >= step.count("FMNMX") // 2) == pinned


# Its time, and what a search begins with


@pytest.mark.parametrize("softmax", ["by rows", "at once"])
def test_the_second_maximum_is_found_while_weights_are_made(softmax: str) -> None:
    one = Schedule.of(Attention(), {**ZIGZAG, "softmax": softmax})
    program = one.program(Attention(), CAUSAL.operation)
    line = timeline(program, CAUSAL.sizes, load_device("h100"), iterations=1)
    mine = sorted((e for e in line.events if e.row == "consumer 0"), key=lambda e: e.start_cycles)
    long = [e for e in mine if e.statement == "mufu" and e.end_cycles - e.start_cycles > 300]
    joined = [e.start_cycles for e in mine if e.statement == "shfl.sync"]
    beside = [any(a.start_cycles <= at < a.end_cycles for a in long) for at in joined]
    assert (sum(beside) >= len(joined) // 3) == (softmax == "by rows")


def schedule(**changed: Value) -> Schedule:
    return Schedule.of(Attention(), {**STARTS["zigzag"], **changed})


def begun(*found: tuple[Schedule, float]) -> list[Candidate]:
    """What a search by measuring begins with, of what a ranking and the crossing found."""
    candidates = [Candidate(one, seconds) for one, seconds in found]
    near = SimpleNamespace(crossed=lambda *_: candidates)
    space = SimpleNamespace(machine=Attention(), problem=CAUSAL)
    looked: dict[Schedule, Future[Any]] = {}
    climb = SimpleNamespace(looked=looked, near={"attention": near}, spaces={"attention": space})
    climb.apart = lambda one: _Climb.apart(cast("_Climb", climb), one)
    climb.faster = lambda name: _Climb.faster(cast("_Climb", climb), name)
    climb.lacks = lambda one: _Climb.lacks(cast("_Climb", climb), one)
    return _Climb.crossed(cast("_Climb", climb), candidates[:1])


def test_where_the_model_ties_a_search_begins_with_what_measured_faster() -> None:
    plain, faster = schedule(softmax="at once", queries="shared"), schedule(softmax="by rows")
    three = schedule(consumers=3, tile_n=80, queries="shared")
    assert begun((three, 1.0), (plain, 1.01), (faster, 1.03))[0].schedule == faster
    assert begun((three, 1.0), (plain, 1.01), (faster, 1.06))[0].schedule == plain
    assert begun((plain, 1.0), (faster, 1.06))[0].schedule == plain
    assert [c.predicted_seconds for c in begun((three, 1.0), (faster, 1.03))] == [1.03, 1.0]
    wide = schedule(consumers=3, stages_k=2, stages_v=3, queries="shared", softmax="at once")
    deep = wide.with_(stages_k=4)
    assert begun((deep, 1.0), (wide, 1.01))[0].schedule == wide
    assert [c.schedule for c in begun((deep, 1.0), (wide, 1.05))] == [deep]


def test_the_best_is_crossed_with_what_measured_faster() -> None:
    space = Space(Attention(), CAUSAL, load_device("h100"))
    one = schedule(softmax="at once", queries="shared", stages_q=1)
    crossed = Neighbourhood(space, NEVER).crossed(one, [])
    kinds = {(c.schedule["queries"], c.schedule["softmax"]) for c in crossed}
    assert ("registers", "by rows") in kinds
    fixed = Space(Attention(), CAUSAL, load_device("h100"), fixed={"softmax": "at once"})
    kept = Neighbourhood(fixed, NEVER).crossed(one, [])
    assert {c.schedule["softmax"] for c in kept} == {"at once"}


def test_the_best_of_a_tile_is_crossed_with_the_rings_that_measured_faster() -> None:
    narrow = Problem.of(CAUSAL.operation, **{**CAUSAL.sizes, "d": 64, "e": 64})
    three = schedule(depth=64, consumers=3, queries="shared", stages_k=4, stages_v=2)
    for fixed, rings in (({}, {(4, 2), (2, 4)}), ({"stages_k": 4}, {(4, 2), (4, 4)})):
        space = Space(Attention(), narrow, load_device("h100"), fixed=fixed)
        found = Neighbourhood(space, NEVER).crossed(three, [])
        assert {(c.schedule["stages_k"], c.schedule["stages_v"]) for c in found} == rings


def test_nothing_is_said_of_what_was_not_counted() -> None:
    """Few queries, wide heads, 8 bits; under a mask pairs of CTAs are what is not taken."""
    said = Attention().measured
    assert said(CAUSAL)[0]["cluster_m"] == 1
    assert "cluster_m" not in said(Problem.of(attention(), **CAUSAL.sizes))[0]
    assert said(Problem.of(attention(), **{**CAUSAL.sizes, "m": 16})) == ()
    assert said(Problem.of(attention(), **{**CAUSAL.sizes, "d": 192, "e": 192})) == ()
    assert said(Problem.of(attention("e4m3"), **CAUSAL.sizes)) == ()


def test_a_search_with_a_deadline_climbs_from_what_measured_faster() -> None:
    """It has it though there is time for little; where a value is fixed to another, it has not."""
    for fixed, there in (({}, True), ({"tile_n": 96}, False)):
        space = Space(Attention(), CAUSAL, load_device("h100"), fixed=fixed)
        faster = space.machine.measured(CAUSAL)[0]
        search = Search(space, 9, ())
        soon = Deadline(4.0, count().__next__)
        search.start(exact=False, until=soon, structures=[], begin=(faster,))
        found = [all(one[n] == v for n, v in faster.items()) for _, _, one in search.entries()]
        assert any(found) == there


@pytest.mark.parametrize(
    ("dtype", "d", "kept"),
    [("bf16", 128, "by rows"), ("bf16", 64, "at once"), ("e4m3", 128, "at once")],
)
def test_a_ranking_keeps_to_one_kind_that_is_legal(dtype: str, d: int, kept: str) -> None:
    of = Problem.of(attention(dtype, mask="causal"), **{**CAUSAL.sizes, "d": d, "e": d})
    space = Space(Attention(), of, load_device("h100"))
    assert space.worth["softmax"] == (kept,)
    assert space.values["softmax"] == ("at once", "by rows")
