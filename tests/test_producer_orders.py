"""Orders of a producer's loads: which there are, which of others would wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import numpy as np
import pytest

from tests.hopper_terms import rewritten
from tests.sample import some
from tests.test_orders import ORDERS, in_turn, space
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.devices.device import load_device
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.search.exact.best import rank
from tinygpu.search.explain.explain import compare, outlined
from tinygpu.space.batches import Builder
from tinygpu.space.questions import ask
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.program import For, Program, Statement, When
from tinygpu.term.schedule import Schedule
from tinygpu.term.text import parse, text_of

CHOICE = Attention.producer_order
SMALL: dict[str, Value] = {"depth": 64, "tile_n": 64, "consumers": 1}
WORDS = [
    "".join(before) + loop
    for also in ("", "K", "V", "KV")
    for before in permutations("Q" + also)
    for loop in ("KV", "VK")
]
"""Orders that the machine can trace: up to one block of keys and of values before the loop."""
LATENESS = ("SsMELOPVv", "SVsMELvOP", "SOVsMvELP")
STAGES = [*product((1, 2, 3), (1, 2, 3))]


def term(word: str, mask: str = "causal", **others: Value) -> Program:
    chosen = {**STARTS["fa3 without turns"], **SMALL, **others, "producer_order": word}
    return Attention().program(attention(mask=mask), Chosen(chosen))


# Which there are


def loads(word: str, steps: int) -> tuple[tuple[str, int], ...]:
    """What a producer loads for a tile, one after the other: letters and their steps."""
    before, loop = word[:-2], word[-2:]
    begun = [(x, before[:i].count(x)) for i, x in enumerate(before)]
    every = begun + [(x, j + before.count(x)) for j in range(steps) for x in loop]
    return tuple((x, j) for x, j in every if j < steps)


def used(order: str, steps: int) -> dict[tuple[str, int], int]:
    """The places in a consumer's loop, written out, at which it waits for each load."""
    parts = in_turn(order, ORDERS.late(order), steps)
    waits = {"S": "K", "V": "V"}
    found = {(waits[x], j): at for at, (x, j) in enumerate(parts) if x in waits}
    return {("Q", 0): found["K", 0], **found}


def test_they_are_all_that_load_nothing_ahead_of_what_every_consumer_needs_earlier() -> None:
    """Found from the orders of a consumer, all steps alike; each counted once, however spelled."""
    steps = 5
    places = [used(order, steps) for order in ORDERS.values]
    first = [(a, b) for a, b in permutations(places[0], 2) if all(at[a] < at[b] for at in places)]
    begun = ("".join(x) for n in range(6) for x in product("QKV", repeat=n) if x.count("Q") == 1)
    found = set()
    for before, loop in product(begun, ("KV", "VK")):
        sequence = loads(before + loop, steps)
        at = {load: place for place, load in enumerate(sequence)}
        alike = len({at["K", j + 1] < at["V", j] for j in range(steps - 1)}) == 1
        if alike and all(at[a] < at[b] for a, b in first):
            found.add(sequence)
    assert {loads(word, steps) for word in CHOICE.values} == found
    assert len(CHOICE.values) == len(found) == 4


def test_files_without_the_decision_have_todays_order() -> None:
    assert CHOICE.values[0] == CHOICE.before == "QKV"
    assert {start["producer_order"] for start in STARTS.values()} == {"QKV"}


# What is proved of them


def waits_for_ever(word: str, order: str, stages: dict[str, int], trips: int) -> bool:
    """Whether a producer and a consumer of three tiles stop: rings and waits, and no more."""
    loading, using = list[tuple[str, int]](), list[tuple[str, int, bool]]()
    for tile in range(3):
        at = {"Q": tile, "K": trips * tile, "V": trips * tile}
        loading += [(x, at[x] + j) for x, j in loads(word, trips)]
        parts = in_turn(order, ORDERS.late(order), trips)
        ring = {"S": ("K", False), "s": ("K", True), "V": ("V", False), "v": ("V", True)}
        steps = [(ring[x][0], at[ring[x][0]] + j, ring[x][1]) for x, j in parts if x in ring]
        using += [("Q", tile, False), *steps, ("Q", tile, True)]
    there, free = set[tuple[str, int]](), set[tuple[str, int]]()
    while loading or using:
        before = len(loading), len(using)
        while loading and (
            (loading[0][1] < stages[loading[0][0]])
            or (loading[0][0], loading[0][1] - stages[loading[0][0]]) in free
        ):
            there.add(loading.pop(0))
        while using and (using[0][2] or using[0][:2] in there):
            ring_, number, releases = using.pop(0)
            if releases:
                free.add((ring_, number))
        if before == (len(loading), len(using)):
            return True
    return False


@pytest.mark.parametrize("word", some(WORDS, 6) + some(CHOICE.values, 2))
def test_the_judge_refuses_those_that_wait_for_ever(word: str) -> None:
    """At each depth of the rings, and nothing else; those of the space are proved."""
    for order, (keys, values) in product(LATENESS, some(STAGES, 3)):
        stages = {"Q": 1, "K": keys, "V": values}
        stops = any(waits_for_ever(word, order, stages, trips) for trips in range(1, 7))
        program = term(word, consumer_order=order, stages_k=keys, stages_v=values)
        outcome = verdict(program).outcome
        assert (outcome == "illegal") == stops, (order, stages)
        assert outcome == "legal" or word not in CHOICE.values


def test_no_order_of_the_space_waits_for_ever() -> None:
    """Nor with any order of a consumer, by the rings alone."""
    for word, order, (keys, values) in product(CHOICE.values, ORDERS.values, STAGES):
        stages = {"Q": 1, "K": keys, "V": values}
        assert not any(waits_for_ever(word, order, stages, trips) for trips in (1, 2, 3, 5))


@pytest.mark.parametrize("word", some(WORDS, 4) + some(CHOICE.values, 2))
def test_its_code_is_right_or_stops(word: str) -> None:
    """The emulator, which knows no terms, says of the code what the judge says of the term."""
    sizes = {"l": 1, "h": 1, "g": 2, "m": 70, "n": 330, "d": 40, "e": 24}
    for order, (keys, values) in product(LATENESS[:2], ((1, 1), (2, 1), (1, 2))):
        program = term(word, consumer_order=order, stages_k=keys, stages_v=values)
        found = emulated(program, sizes, arch="sm_90a", completions=COMPLETIONS[:1])
        stops = {one.kind for one in found.findings}
        illegal = verdict(program).outcome == "illegal"
        assert stops == ({"deadlock"} if illegal else set()), (order, keys, values)


OTHERS: list[tuple[str, dict[str, Value]]] = [
    ("causal", {"queries": "registers", "consumers": 2, "order": "zigzag"}),
    ("window:60:9", {"stages_k": 1, "stages_v": 3}),
    ("none", {**STARTS["decode"], **SMALL}),
    ("none", {**STARTS["decode, 8 queries"], **SMALL}),
]


@pytest.mark.parametrize("word", CHOICE.values)
@pytest.mark.parametrize(("mask", "others"), some(OTHERS, 2))
def test_it_computes_its_operation(mask: str, others: dict[str, Value], word: str) -> None:
    program = term(word, mask, **others)
    assert verdict(program).legal
    assert mask_cover(program)
    assert computes(program, {"l": 1, "h": 1, "g": 2, "m": 130, "n": 150, "d": 24, "e": 16})


# Others that are wrong


def unguarded(statement: Statement) -> Statement | tuple[Statement, ...]:
    """Keys are loaded ahead in the last step, too."""
    if isinstance(statement, When) and statement.bound == "trips" and statement.index.constant:
        return statement.body
    return statement


def not_begun(statement: Statement) -> Statement | tuple[Statement, ...]:
    """The first block is not loaded."""
    begun = isinstance(statement, For) and statement.var == "kt" and statement.unrolled
    return () if begun else statement


def begun_always(statement: Statement) -> Statement | tuple[Statement, ...]:
    """A block is loaded for a tile that has none."""
    if isinstance(statement, When) and isinstance(statement.body[0], For):
        return statement.body
    return statement


@pytest.mark.parametrize("word", CHOICE.values[1:])
@pytest.mark.parametrize("change", [unguarded, not_begun, begun_always])
def test_another_protocol_is_refused(
    change: Callable[[Statement], Statement | tuple[Statement, ...]], word: str
) -> None:
    assert not verdict(rewritten(term(word), change)).legal


@pytest.mark.parametrize("word", CHOICE.values[1:])
def test_another_block_is_not_covered_and_computes_something_else(word: str) -> None:
    """The block of the step itself, where that of the next is loaded."""
    text = text_of(term(word))
    assert text.count("constant=-128,") == 1
    wrong = parse(text.replace("constant=-128,", "constant=-64,"))
    assert verdict(wrong).legal
    assert not mask_cover(wrong)
    assert not computes(wrong)


# Its space


def test_tables_are_those_of_each_order() -> None:
    whole = space(producer_order=CHOICE.values, tile_n=(64, 128), stages_k=(1, 2), depth=(64, 128))
    for structure in whole.structures():
        shared, alone = whole.batch(structure), Builder(whole).batch(structure)
        assert shared
        assert alone
        assert shared.count == alone.count
        for one, other in zip(shared.tables, alone.tables, strict=True):
            assert (one.law, one.axes) == (other.law, other.axes)
            assert np.array_equal(one.holds, other.holds)
        assert str(shared.program) == str(alone.program)


@pytest.mark.parametrize("mask", ["causal", "window:60:9"])
def test_laws_say_the_same_where_tiles_have_no_keys(mask: str) -> None:
    sizes = {"l": 1, "h": 4, "g": 1, "m": 563, "n": 21, "d": 64, "e": 64}
    problem, machine = Problem.of(attention(mask=mask), **sizes), Attention()
    for word in CHOICE.values:
        schedule = Schedule.of(machine, {**STARTS["fa3 without turns"], "producer_order": word})
        assert not check_schedule(schedule, machine, problem, load_device("h200"))


def test_questions_name_an_order() -> None:
    whole = space(producer_order=CHOICE.values, tile_n=(64, 128))
    found = ask(whole, 'producer_order == "KQKV" and tile_n == 64')
    assert found.schedule
    assert found.schedule["producer_order"] == "KQKV"
    assert whole.count() == 4 * space(tile_n=(64, 128)).count()
    few = space(producer_order=("QKV", "QKKV"))
    assert ask(few, 'producer_order == "KQKV"').outcome == "excluded"


def test_the_best_is_explained_by_its_order() -> None:
    """With one stage of each ring a consumer that multiplies late needs the next keys first."""
    whole = space(producer_order=CHOICE.values, stages_k=1, stages_v=1, consumers=1)
    found = rank(whole, 4)
    assert found.proven
    best, today = found.best[0], next(
        one for one in found.best if one.schedule["producer_order"] == "QKV"
    )  # fmt: skip
    assert best.schedule["producer_order"] in ("QKKV", "KQKV")
    assert best.seconds < today.seconds
    machine, problem = whole.machine, whole.problem
    told = compare(today.schedule, best.schedule, machine, problem, whole.device, outlined)
    changed = ("producer_order", "QKV", best.schedule["producer_order"])
    assert [step.changes for step in told.steps] == [(changed,)]


def test_the_environment_has_the_orders() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed (.[rl])")
    from tinygpu.search.environment import Land, ScheduleEnv

    walk = ScheduleEnv([Land.predicted(space(producer_order=CHOICE.values))])
    named = list(STARTS["fa2"]).index("producer_order")
    assert {value for at, value in walk.moves if at == named} == {*CHOICE.values}
    walk.reset(seed=0)
    assert sum(walk.action_masks()) == len(CHOICE.values) - 1
