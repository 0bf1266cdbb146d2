"""The time of roles with guards, arithmetic in their steps, and several loops in a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hopper_terms import rewritten
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.wgmma import PRODUCTS
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.search.time.cost import cost
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.recursion import Recursion, numbers
from tinygpu.search.time.timeline import timeline
from tinygpu.search.time.work import (
    Event,
    Guard,
    Node,
    StepLoop,
    TimedAgent,
    agents,
    clocked,
    total_work,
)
from tinygpu.term.access_map import Affine
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import attention
from tinygpu.term.program import Program, Statement, When

H200 = load_device("h200")
STEP, LATE = Affine(0, (("kt", 1),)), Affine(1, (("kt", -1),))
"""``kt``, and what is below 1 from the second step on."""


def work(cycles: float) -> Event:
    return Event("work", {"serial": cycles})


def math_of(unit: str, cycles: float, reads: str = "", write: str = "r", **how: Any) -> Event:
    """Arithmetic of a warpgroup that keeps a unit for so many cycles, of 64 values if not said."""
    count = how.pop("count", 64)
    each = {"issue": how.pop("issue", 0.0) / count, unit: cycles / count}
    return Event("math", each, count=count, reads=(reads,) if reads else (), write=write, **how)


def product(cycles: float) -> tuple[Event, Event]:
    done = Event("commit", {}, group=PRODUCTS)
    return Event("product", {"tensor": cycles, "smem": 0.0}), done


GROUP = Event("group", {}, group=PRODUCTS, pending=0)


def agent(*loops: StepLoop, name: str = "a", after: tuple[Node, ...] = ()) -> TimedAgent:
    return TimedAgent(name, "tile", "turn", "w", "trips", warps=4, loops=loops, after=after)


def taken(*found: TimedAgent, steps: int = 1, tiles: int = 1) -> float:
    return float(Recursion(found)(1, tiles, steps, 4, *numbers(found)))


def per_step(*bodies: tuple[Node, ...]) -> float:
    """The cycles from a step to the next, far from the ends."""
    found = [agent(StepLoop((), "kt", body), name=f"a {i}") for i, body in enumerate(bodies)]
    return (taken(*found, steps=1001) - taken(*found, steps=1)) / 1000


@given(st.integers(1, 300))
@example(1)
@example(2)
def test_guards_tell_turns_apart(steps: int) -> None:
    """The first two turns take 100 more, all but the first 10, all but the last 3, and each 1."""
    body = (
        work(1.0),
        Guard(STEP, 2, (work(100.0),)),
        Guard(LATE, 1, (work(10.0),)),
        Guard(Affine(1, (("kt", 1),)), "trips", (work(3.0),)),
    )
    found = agent(StepLoop((), "kt", body))
    expected = steps + 100.0 * min(steps, 2) + 13.0 * (steps - 1)
    assert taken(found, steps=steps) == pytest.approx(expected)


def test_many_turns_apart() -> None:
    """As many first turns as a guard tells apart are followed before the period is looked for."""
    found = agent(StepLoop((), "kt", (work(1.0), Guard(STEP, 70, (work(100.0),)))))
    assert taken(found, steps=500) == pytest.approx(500.0 + 7000.0)
    several = Recursion((found,))(1, 1, np.array([5, 60, 500]), 4, *numbers((found,)))
    assert several == pytest.approx([505.0, 6060.0, 7500.0])


def test_what_the_first_turn_does_is_not_the_later_ones_work() -> None:
    """A unit's work in later steps leaves out what a guard holds at the start."""
    found = agent(StepLoop((), "kt", (Guard(STEP, 1, (math_of("sfu", 1000.0),)), work(10.0))))
    assert taken(found, steps=101) == pytest.approx(2010.0)


@given(
    st.integers(-6, 6), st.integers(-3, 3), st.one_of(st.integers(-6, 9), st.just("trips")),
    st.integers(0, 12),
)  # fmt: skip
def test_a_guard_counts_its_steps(start: int, step: int, bound: int | str, steps: int) -> None:
    """The closed form is the count, and ``late`` what holds far from both ends."""
    guard = Guard(Affine(start, (("kt", step),) if step else ()), bound, ())

    def holds(kt: int, of: int) -> bool:
        return start + step * kt < (of if isinstance(bound, str) else bound)

    assert float(guard.times(steps)) == sum(holds(kt, steps) for kt in range(steps))
    if abs(step) < 2:
        assert guard.late == holds(500, 1000)


@pytest.fixture
def open_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let statements be in the way of others by their units alone."""
    monkeypatch.setitem(cast("dict[str, float]", FITTED), "kept_out", 0.0)


@pytest.mark.usefixtures("open_schedulers")
def test_copies_share_a_unit() -> None:
    """Two copies' work on one unit adds up; on two units it overlaps."""
    one, other = (math_of("sfu", 100.0),), (math_of("fma", 100.0),)
    assert per_step(one) == pytest.approx(100.0)
    assert per_step(one, one) == pytest.approx(200.0)
    assert per_step(one, other) == pytest.approx(100.0)
    assert per_step(one, one, other) == pytest.approx(200.0)
    last = Guard(Affine(1, (("kt", 1),)), "trips", (work(0.0),))
    bodies = [agent(StepLoop((), "kt", (*one, work(0.0), last)), name=n) for n in "ab"]
    assert taken(*bodies, steps=100) == pytest.approx(100 * 200.0)


@given(st.floats(1.0, 200.0), st.floats(1.0, 200.0))
def test_a_statement_keeps_others_out(one: float, other: float) -> None:
    """For a share of its busiest unit's cycles, of the same copy or not; then both go on."""
    share = FITTED["kept_out"]
    both = (math_of("sfu", one, issue=0.1 * one), math_of("fma", other, issue=0.1 * other))
    first, second = sorted((one, other))
    apart = max(first, share * first + second, share * second + first)
    assert taken(agent(StepLoop((), "kt", both))) == pytest.approx(max(one, share * one + other))
    two = [
        agent(StepLoop((), "kt", (math,)), name=name) for name, math in zip("ab", both, strict=True)
    ]
    assert second <= taken(*two) <= apart + 1e-6


def test_points_are_followed_one_by_one() -> None:
    """Those of an array, where copies share units in an order of their own."""
    found = [agent(StepLoop((), "kt", (math_of(u, 100.0), work(w))), name=u)
             for u, w in (("sfu", 20.0), ("sfu", 30.0), ("fma", 150.0))]  # fmt: skip
    leaves = numbers(tuple(found))
    wide = [np.array([n, 2 * n]) if n == 30.0 else n for n in leaves]
    each = [
        Recursion(tuple(found))(1, 1, 50, 4, *(x * n if n == 30.0 else n for n in leaves))
        for x in (1, 2)
    ]
    assert Recursion(tuple(found))(1, 1, 50, 4, *wide) == pytest.approx(each)


@pytest.mark.usefixtures("open_schedulers")
def test_copies_share_issue_slots() -> None:
    """A warp issues every other cycle at most, so that two copies fill the slots and three wait."""
    body = (math_of("fma", 10.0, issue=100.0),)
    alone = 100.0 * FITTED["warp_interval"]
    assert per_step(body) == pytest.approx(alone)
    assert per_step(body, body) == pytest.approx(alone, rel=0.01)
    assert per_step(body, body, body) == pytest.approx(300.0)


def test_a_warp_waits_for_its_own_special_functions() -> None:
    """Alone a copy takes its warps' time; two copies share the unit, where that takes as long."""
    warps, each = 4, 64  # 8 cycles of the unit for an instruction of each warp
    body = (replace(math_of("sfu", 8.0 * each, count=warps * each), unit="sfu"), work(0.0))
    assert per_step(body) == pytest.approx(FITTED["special"] * each)
    assert per_step(body, body) == pytest.approx(16.0 * each)
    both = (body[0], body[0], body[1])
    assert per_step(both) == pytest.approx(2 * FITTED["special"] * each)


def test_a_product_flies_under_arithmetic() -> None:
    """Of the other copy, and of the same one where the wait comes after; else they add."""
    waits = (*product(100.0), GROUP, math_of("sfu", 80.0), work(0.0))
    flies = (*product(100.0), math_of("sfu", 80.0), GROUP)
    assert per_step(waits) == pytest.approx(180.0)
    assert per_step(flies) == pytest.approx(100.0)
    assert per_step(waits, waits) == pytest.approx(200.0)
    assert per_step(flies, flies) == pytest.approx(200.0)
    long = (*product(50.0), GROUP, math_of("sfu", 80.0), work(0.0))
    assert per_step(long, long) == pytest.approx(160.0)  # the unit of both


@pytest.mark.usefixtures("open_schedulers")
def test_a_statement_follows_value_by_value() -> None:
    """As many values overlap; after a sum, or where there are fewer, it starts at the end."""
    first = math_of("fma", 60.0, write="t", latency=4.0)
    assert taken(agent(after=()), agent(StepLoop((), "kt", (first,)))) == 60.0 + 4.0
    for second, cycles in (
        (math_of("sfu", 100.0, "t"), 4.0 + 100.0),
        (math_of("sfu", 10.0, "t"), 60.0 + 4.0),
        (math_of("sfu", 8.0, "t", count=2), 60.0 + 4.0 + 8.0),
        (math_of("sfu", 8.0, "u"), 60.0 + 4.0),
    ):
        assert taken(agent(StepLoop((), "kt", (first, second)))) == pytest.approx(cycles)
    chain = (first, math_of("sfu", 10.0, "t", "u"), math_of("int", 8.0, "u", count=2))
    assert taken(agent(StepLoop((), "kt", chain))) == pytest.approx(64.0 + 8.0)
    busy = agent(StepLoop((), "kt", (math_of("sfu", 100.0),)))
    then = (math_of("sfu", 100.0, write="t"), math_of("fma", 150.0, "t"))  # once sfu is free
    assert taken(busy, agent(StepLoop((), "kt", then))) == pytest.approx(100.0 + 150.0)
    folded = math_of("fma", 60.0, write="t", latency=4.0, folds=True)
    then = (folded, math_of("sfu", 100.0, "t"))
    assert taken(agent(StepLoop((), "kt", then))) == pytest.approx(164.0)


@given(st.integers(1, 60), st.integers(1, 5))
def test_a_tile_of_two_loops(steps: int, tiles: int) -> None:
    """All statements of both loops, and those before, between and after, in sequence."""
    loops = StepLoop((work(5.0),), "kt", (work(10.0),)), StepLoop((work(7.0),), "kv", (work(3.0),))
    found = agent(*loops, after=(work(2.0),))
    assert taken(found, steps=steps, tiles=tiles) == pytest.approx(tiles * (14.0 + 13.0 * steps))


def test_copies_take_turns_at_a_barrier() -> None:
    """A copy that another one wakes waits for it; without an arrival nobody goes on."""

    def at(number: int, other: int) -> TimedAgent:
        body = (
            Event("wait", {"serial": 0.0}, "turn", Affine(number - 1, (("kt", 2),))),
            math_of("sfu" if number else "fma", 100.0),
            work(0.0),
            Event("arrive", {"serial": 0.0}, "turn", Affine(other, (("kt", 2),))),
        )
        return agent(StepLoop((), "kt", body), name=f"a {number}")

    assert taken(at(0, 0), at(1, 1), steps=50) == pytest.approx(100 * 100.0)
    with pytest.raises(ProgramError, match="all agents wait, for phases of turn"):
        taken(at(0, 0), at(1, 0), steps=50)


def test_a_phase_needs_all_its_arrivals() -> None:
    """As many as it says, each of which may count as several, also those before all tiles."""

    def of(many: int, opening: int) -> float:
        told = Event("arrive", {"serial": 0.0}, "go", Affine(0), arrivals=128)
        waits = Event("wait", {"serial": 0.0}, "go", Affine(0), arrivals=many)
        first = agent(StepLoop((), "kt", (work(50.0), told)), name="first")
        other = agent(StepLoop((), "kt", (waits, work(5.0))), name="other")
        early = replace(told, arrivals=opening)
        return taken(
            first,
            replace(other, opening=(early,)),
            agent(StepLoop((), "kt", (math_of("sfu", 1.0),))),
        )

    assert of(129, 1) == pytest.approx(55.0)
    assert of(128, 128) == pytest.approx(50.0)
    with pytest.raises(ProgramError, match="all agents wait, for phases of go"):
        of(130, 1)


def point(mask: str = "none", start: str = "fa3 without turns", **changes: Any) -> Program:
    return Attention().program(attention("bf16", mask=mask), Chosen({**STARTS[start], **changes}))


def sizes(b: int, n: int) -> Mapping[str, int]:
    return {"l": b, "h": 16, "g": 1, "m": n, "n": n, "d": 128, "e": 128}


def test_the_work_of_a_step_of_attention() -> None:
    """128 queries by 128 keys: by hand, from the rates of the units of an SM."""
    found = agents(point(), H200, sizes(2, 4096))
    assert clocked(found)
    assert [a.number for a in found] == [0, 0, 1]
    folds = {str(e.statement).partition("@")[0] for a in found for e in a.body
             if isinstance(e, Event) and e.folds}  # fmt: skip
    assert folds == {"total", *({"apart", "new"} & folds)}
    assert len(folds) > 1
    assert [a.name for a in found] == ["producer", "consumer 0", "consumer 1"]
    step = [total_work(a.body, lambda guard: float(guard.late)) for a in found]
    work_of = {unit: sum(float(s.get(unit, 0.0)) for s in step) for unit in ("tensor", *"xy")}
    # 2 products of 128 x 128 x 128 at 4096 FLOP a cycle
    assert work_of["tensor"] == pytest.approx(2048 / FITTED["tensor_share"])
    one = step[1]
    values, pairs, device = 64 * 128, 64 * 2, H200  # a copy's scores; its statistics, a thread's
    assert one["sfu"] == pytest.approx((values + 2 * pairs) / device.sfu_per_cycle_per_sm)
    fma = 3 * values + 3 * 2 * pairs  # the power, the sum and the rescaling
    assert one["fma"] == pytest.approx(fma / device.fma_f32_per_cycle_per_sm)
    # the maximum: of a row's values in four parts, of those, of a quad's; a sign
    alu = values + (4 + 3 * 2) * pairs
    assert one["int"] == pytest.approx(alu / device.int_per_cycle_per_sm)
    assert one["cvt"] == pytest.approx(values / 2 / device.cvt_16_per_cycle_per_sm)
    assert one["shuffle"] == pytest.approx(2 * 2 * pairs / device.shuffle_per_cycle_per_sm)
    port = 128 * FITTED["smem_share"]  # q and k for the first product, v alone for the second
    assert one["smem"] == pytest.approx((64 + 128 + 128) * 128 * 2 / port)


MEASURED = {
    ("none", "fa2", 8, 4096): 1.902e-3,
    ("none", "fa3 without turns", 2, 16384): 7.05e-3,
    ("none", "tma store", 32, 1024): 4.91e-4,
    ("causal", "queries ahead", 2, 16384): 3.81e-3,
}
"""Seconds on an H100, driver 580.159.04; the model is an H200's, and knows none of them."""


@pytest.mark.parametrize("case", MEASURED)
def test_attention_takes_about_what_was_measured(case: tuple[str, str, int, int]) -> None:
    """Within 15 %."""
    mask, start, b, n = case
    found = cost(point(mask, start), sizes(b, n), H200)
    assert float(found.seconds) == pytest.approx(MEASURED[case], rel=0.15)
    assert found.bottleneck == "power"
    assert found.floor is not None
    assert found.floor <= found.seconds
    assert found.parts["sfu"] > found.parts["issue"] > found.parts["fma"] > found.parts["cvt"]


def test_the_second_product_hides_under_the_softmax() -> None:
    """Two consumers by the order that won beat the plain one, and so does a lone one by another,
    that waits behind its exponentials: it has no other to hide under."""
    two, one = (
        [float(cost(point(start=s, consumers=n), sizes(2, 16384), H200).seconds)
         for s in ("fa2", flying)]
        for n, flying in ((2, "fa3 as compiled"), (1, "fa3 without turns"))
    )  # fmt: skip
    for plain, flying in (two, one):
        assert flying < 0.95 * plain
    for both, alone in zip(two, one, strict=True):
        assert both < alone


def test_a_tile_counts_what_its_guards_hold() -> None:
    """The second product is behind by a step, and comes after all: of as many in all."""
    b, n = 8, 1024
    plain, flying = (cost(point(start=s), sizes(b, n), H200) for s in ("fa2", "fa3 without turns"))
    waves, steps, tiles = -(-b * 16 * n // 128 // 132), n // 128, b * 16 * n // 128
    for found in (plain, flying):
        products = waves * steps * 2048 / FITTED["tensor_share"]
        assert found.parts["tensor"] * H200.clock_hz == pytest.approx(products)
        lines = (2 * steps + 1) * 2 * 128  # of k and v, and of q once
        tma = lines * FITTED["tma_line"]
        assert found.parts["tma"] * H200.clock_hz == pytest.approx(waves * tma)
        moved = tiles * (2 * steps + 1) * 2 * 128 * 128
        rate = H200.l2_bytes_per_cycle * FITTED["tma_l2_rate"]
        writes = tiles * 128 * 128 / 8  # of o, four threads' 16 B each
        cycles = moved / rate + writes * FITTED["l2_write"]
        assert found.parts["l2"] * H200.clock_hz == pytest.approx(cycles)


def test_turns_of_two_consumers_are_followed() -> None:
    """Named barriers, with an arrival before all tiles: they cost their latency alone."""
    free, turns = (
        float(cost(point(start=s), sizes(8, 4096), H200).seconds)
        for s in ("fa3 without turns", "fa3")
    )
    assert free < turns < 1.03 * free


def test_a_slow_unit_becomes_the_bottleneck() -> None:
    """With an eighth of its special functions an SM waits for them."""
    slow = H200.with_values(sfu_per_cycle_per_sm=2.0)
    found = cost(point(), sizes(2, 4096), slow)
    assert found.bottleneck == "sfu"
    assert found.seconds > 2 * cost(point(), sizes(2, 4096), H200).seconds


def test_the_timeline_has_the_units() -> None:
    """Rows of arithmetic units and of each ring; a unit does one thing at a time."""
    line = timeline(point(), sizes(2, 4096), H200, iterations=1)
    assert {"sfu", "fma", "int", "cvt", "tensor cores", "consumer 1"} <= set(line.rows)
    assert {"stage 0 of q_full", "stage 1 of k_full", "stage 1 of v_full"} <= set(line.rows)
    busy = sorted((e.start_cycles, e.statement) for e in line.events if e.row == "sfu")
    assert {name.partition(" of ")[2] for _, name in busy} == {"consumer 0", "consumer 1"}


@pytest.mark.parametrize(
    ("index", "bound"),
    [(Affine(0, (("tile", 1),)), 1), (Affine(0, (("kt", 2),)), "trips")],
    ids=["a tile's number", "half of the steps"],
)
def test_what_is_not_followed_is_refused(index: Affine, bound: int | str) -> None:
    """A guard of more than arrivals that tells apart no steps at either end."""

    def other(statement: Statement) -> Statement:
        if isinstance(statement, When):
            return replace(statement, index=index, bound=bound)
        return statement

    program = rewritten(point(), other)
    with pytest.raises(ProgramError, match="guards more than arrivals"):
        agents(program, H200, sizes(2, 4096))
