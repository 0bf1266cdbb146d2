"""Orders of a loop's body: found from what its parts touch, and each of them proved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from tests.sample import draws, some
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError, ScheduleError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.attention import STARTS, Attention, consumer_orders, orders_in
from tinygpu.meaning.identity import computes
from tinygpu.search.exact.best import rank
from tinygpu.search.exact.orders_smt import fastest
from tinygpu.space.batches import Builder
from tinygpu.space.questions import ask
from tinygpu.space.space import Space
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.orders import LoopPart, Orders, orders_of
from tinygpu.term.program import Program

ORDERS = consumer_orders()
SMALL: dict[str, Value] = {"depth": 64, "tile_n": 64, "consumers": 1}
LATE = STARTS["fa3 without turns"]
CAUSAL = Problem.of(attention(mask="causal"), l=1, h=4, g=2, m=300, n=420, d=64, e=64)


def term(order: str, orders: Orders | None = None, mask: str = "causal") -> Program:
    """A small term in an order, by other dependences if some are given."""
    chosen = Chosen({**LATE, **SMALL, "consumer_order": order})
    if orders is None:
        return Attention().program(attention(mask=mask), chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinygpu.machines.attention.consumer_orders", lambda: orders)
        return Attention().program(attention(mask=mask), chosen)


# Which there are


def in_turn(order: str, late: frozenset[str], steps: int) -> list[tuple[str, int]]:
    """Parts and their steps as they come, some of them a step late."""
    every = [(x, j - (x in late)) for j in range(steps + 1) for x in order]
    return [(x, j) for x, j in every if 0 <= j < steps]


def is_right(order: str, late: frozenset[str]) -> bool:
    """Whether each dependence is kept, from step to step, in the written-out loop."""
    place = {one: i for i, one in enumerate(in_turn(order, late, 4))}
    return all(
        place[a, j] < place[b, j + distance]
        for a, b, distance in ORDERS.dependences
        for j in range(4 - distance)
    )


def lateness() -> Iterator[frozenset[str]]:
    for count in range(len(ORDERS.letters)):
        yield from map(frozenset, combinations(ORDERS.letters[1:], count))


def test_each_order_is_right_in_the_loop_written_out() -> None:
    for order in ORDERS.same:
        assert is_right(order, ORDERS.late(order))


def test_what_is_no_order_is_right_however_late_its_parts_are() -> None:
    drawn = np.random.default_rng(0).permutation([*permutations(ORDERS.letters[1:])])
    others = ("S" + "".join(letters) for letters in drawn)
    wrong = [order for order in others if order not in ORDERS.same][:12]
    assert len(wrong) == 12
    for order in wrong:
        assert not any(is_right(order, late) for late in lateness())
        with pytest.raises(ScheduleError, match="needs it"):
            ORDERS.late(order)


def test_named_points_have_orders_of_the_space() -> None:
    assert ORDERS.values[0] == STARTS["fa2"]["consumer_order"]
    assert {start["consumer_order"] for start in STARTS.values()} <= {*ORDERS.values}
    assert [len(ORDERS.same), len(ORDERS.values)] == [180, 43]


def test_no_part_is_two_steps_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the bound is one step leaves nothing out: a later part finds its cells overwritten."""
    monkeypatch.setattr("tinygpu.term.orders._LATEST", 3)
    assert replace(ORDERS).same == ORDERS.same


def test_one_stands_for_those_that_nothing_tells_apart() -> None:
    """Waits and products of an order come as in the one that stands for it, arithmetic between."""
    fixed = {*ORDERS.letters} - ORDERS.free
    for order, same in ORDERS.same.items():
        if same:
            assert ORDERS.late(order) == ORDERS.late(same)
            runs = [[x for x in o if x in fixed] for o in (order, same)]
            covered = {*"sv"} if order.index("v") - order.index("s") in (1, -1) else set()
            assert runs[0] == runs[1] or covered
            assert ORDERS.same[same] == same


def test_neighbours_lead_to_every_order() -> None:
    seen = {ORDERS.values[0]: None}
    for order in ORDERS.values:
        assert order not in ORDERS.near(order)
        assert all(order in ORDERS.near(other) for other in ORDERS.near(order))
    waiting = [*seen]
    for order in waiting:
        waiting += [other for other in ORDERS.near(order) if not seen.setdefault(other) and
                    other not in waiting]  # fmt: skip
    assert {*waiting} == {*ORDERS.values}


@pytest.mark.parametrize(
    ("mask", "others"),
    [
        ("none", {}),
        ("causal", {"queries": "registers", "turns": "mbarrier", "cluster_m": 2}),
        ("causal", {"softmax": "by rows"}),
        ("window:100:3", {**STARTS["weights through memory"]}),
        ("causal", {**STARTS["decode"]}),
    ],
)
def test_other_decisions_leave_the_orders(mask: str, others: dict[str, Value]) -> None:
    """Parts touch the same cells; only arithmetic on registers may have become more."""
    machine = Attention().chosen(Chosen({**LATE, **others}))
    found = orders_in(machine, attention(mask=mask))
    assert found.letters == ORDERS.letters
    assert found.dependences == ORDERS.dependences
    assert found.free <= ORDERS.free


def test_parts_that_are_not_what_they_say_are_refused() -> None:
    k = Kernel("own", attention())
    machine = Attention().chosen(Chosen(LATE))
    _, ring_k, _ = machine.rings(k)
    with k.role("consumer", warpgroups=1, w=2):
        for _ in machine.tiles(k):
            for step in k.unrolled("own", 2):
                held = {"A": LoopPart(ring_k.wait, ring_k.release)}
                with pytest.raises(ProgramError, match="over at once, and has an end"):
                    orders_of(k, held, step)
    with pytest.raises(ScheduleError, match="the parts are"):
        ORDERS.late("SsMELOPV")


# What is proved of them


@pytest.mark.parametrize("order", some(ORDERS.values, 6))
def test_it_is_legal_and_computes_its_operation(order: str) -> None:
    program = term(order)
    assert verdict(program).legal
    assert computes(program, {"l": 1, "h": 1, "g": 1, "m": 130, "n": 150, "d": 24, "e": 16})


@pytest.mark.parametrize("order", some(ORDERS.values, 4))
def test_its_code_is_right(order: str) -> None:
    sizes = {"l": 1, "h": 1, "g": 2, "m": 70, "n": 200, "d": 40, "e": 24}
    found = emulated(term(order), sizes, arch="sm_90a", completions=COMPLETIONS[:1])
    assert found.findings == ()


@cache
def without() -> dict[str, Orders]:
    """Of each dependence that others do not bring about: the orders, were it not there."""
    found = {}
    for one in sorted(ORDERS.dependences):
        fewer = replace(ORDERS, dependences=ORDERS.dependences - {one})
        if len(fewer.same) > len(ORDERS.same):
            found["{}{}{}".format(*one)] = fewer
    return found


@pytest.mark.parametrize("name", some(sorted(without()), 5))
def test_an_order_that_a_dependence_forbids_is_refused(name: str) -> None:
    """By the judge, or it does not compute attention: no dependence is there in vain."""
    fewer = without()[name]
    new = [o for o in fewer.same if o not in ORDERS.same]
    for order in new[:: max(1, len(new) // 3)]:
        program = term(order, fewer)
        found = verdict(program)
        assert not found.legal or not computes(program), order


# Its space


def space(**fixed: Value | tuple[Value, ...]) -> Space:
    return Space(Attention(), CAUSAL, load_device("h200"), fixed={**LATE, **fixed})


def test_tables_are_those_of_each_order() -> None:
    """Batches of several orders share them; one that is built alone has the same."""
    free = {"tile_n": (64, 128, 176), "stages_k": (1, 2, 3), "stages_v": (1, 2), "depth": (64, 128)}
    orders = some(ORDERS.values, 5)
    whole = space(consumer_order=tuple(ORDERS.values), **free)
    for structure in whole.structures({"consumer_order": tuple(orders)}):
        shared, alone = whole.batch(structure), Builder(whole).batch(structure)
        assert shared
        assert alone
        assert shared.count == alone.count
        assert len(shared.tables) == len(alone.tables)
        for one, other in zip(shared.tables, alone.tables, strict=True):
            assert (one.law, one.axes) == (other.law, other.axes)
            assert np.array_equal(one.holds, other.holds)
        assert shared.structure == structure
        assert str(shared.program) == str(alone.program)


def test_questions_name_an_order() -> None:
    whole = space(consumer_order=tuple(ORDERS.values), tile_n=(64, 128))
    found = ask(whole, 'consumer_order == "SOVsMvELP" and tile_n == 64')
    assert found.outcome == "found"
    assert found.schedule
    assert found.schedule["consumer_order"] == "SOVsMvELP"
    mixed = ask(whole, 'consumer_order == "SOVsMvELP" or smem_bytes < 1')
    assert mixed.schedule
    assert mixed.schedule["consumer_order"] == "SOVsMvELP"
    few = space(consumer_order=("SsMELOPVv", "SVsMELvOP"), tile_n=(64, 128))
    assert ask(few, 'consumer_order == "SOVsMvELP"').outcome == "excluded"
    assert whole.count() == len(ORDERS.values) * few.count() / 2


def test_a_step_of_a_climb_is_one_exchange() -> None:
    whole = space(consumer_order=tuple(ORDERS.values))
    near = whole.beside("consumer_order", "SVsMELvOP", whole.values["consumer_order"])
    assert {*near} == {*ORDERS.near("SVsMELvOP")}
    few = space(consumer_order=("SsMELOPVv", "SOsVMvELP"))
    assert few.beside("consumer_order", "SsMELOPVv", few.values["consumer_order"]) == (
        "SOsVMvELP",
    )  # fmt: skip
    assert [*pairwise(near)]


@pytest.mark.parametrize("seed", range(draws(3, 30)))
def test_z3_and_branch_and_bound_agree(seed: int) -> None:
    """On drawn problems: the same least time, of orders, tiles and rings together."""
    random = np.random.default_rng(seed)

    def one(*values: Value) -> Value:
        return values[int(random.integers(len(values)))]

    mask = ("none", "causal", "window:60:9")[int(random.integers(3))]
    m, n, h = (int(random.integers(*span)) for span in ((1, 700), (1, 900), (1, 5)))
    d = 8 * int(random.integers(1, 17))
    problem = Problem.of(attention(mask=mask), l=1, h=h, g=1, m=m, n=n, d=d, e=d)
    orders = random.permutation([*ORDERS.values])[:4].tolist()
    fixed = {
        **LATE, "consumers": one(1, 2), "epilogue": one("direct", "tma"), "persistent": one(0, 1),
        "consumer_order": tuple(orders), "tile_n": (64, 96, 128), "stages_k": (1, 2),
        "stages_v": one(1, 2), "order": one("straight", "longest"), "depth": (64, 128),
        "producer_order": (("QKV",), ("QKV", "KQKV"), ("KQVK", "QKKV"))[seed % 3],
    }  # fmt: skip
    drawn = Space(Attention(), problem, load_device("h200"), fixed=fixed)
    found, best = fastest(drawn), rank(drawn, 1)
    assert best.proven
    assert found
    assert found[1] == pytest.approx(best.best[0].seconds, rel=1e-12)
    assert drawn.contains(found[0])
