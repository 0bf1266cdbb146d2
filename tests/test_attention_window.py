"""Attention under a sliding window: tiles begin and end at blocks of their own; both edges cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.attention_terms import tile_value
from tests.hopper_terms import rewritten
from tests.hostile_attention import base
from tests.sample import all_by_turns, some
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.devices.device import load_device
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes, instances
from tinygpu.meaning.interpret import interpret, tile_of
from tinygpu.search.time.cost import cost
from tinygpu.term.expression import Constant, apply, value
from tinygpu.term.machine import Chosen
from tinygpu.term.machine import Value as Choosable
from tinygpu.term.operation import Problem, attention, window_of
from tinygpu.term.program import (
    Affine,
    Arrive,
    Do,
    Elect,
    Program,
    Statement,
    Wait,
    When,
    var,
    walked,
)
from tinygpu.term.schedule import Schedule

SMALL = {"depth": 64, "tile_n": 64, "consumers": 1, "turns": "none"}
WINDOWS = ["window:0:0", "window:70:0", "window:40:25", "window:0:100", "window:200:3"]
SIZES = [(100, 230), (130, 70), (64, 64), (1, 300)]
MACHINE, DEVICE = MACHINES["attention"], load_device("h200")


@cache
def term(mask: str, point: str = "fa3 without turns", **others: Choosable) -> Program:
    return Attention().program(attention(mask=mask), Chosen({**STARTS[point], **SMALL, **others}))


def sizes(m: int, n: int, **others: int) -> dict[str, int]:
    return {"l": 1, "h": 1, "g": 1, "m": m, "n": n, "d": 64, "e": 64, **others}


def by_numpy(arrays: Mapping[str, Any], left: int, right: int, scale: float) -> Any:
    q, k, v = (arrays[name][0, 0] for name in "qkv")
    (m, n), q = (q.shape[1], k.shape[0]), q[0]
    last = np.arange(m)[:, None] + n - m
    seen = (last - left <= np.arange(n)) & (np.arange(n) <= last + right)
    s = np.where(seen, q @ k.T * scale, -np.inf)
    top = np.where(seen.any(1, keepdims=True), s.max(1, keepdims=True), 0.0)
    weights = np.exp(s - top)
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0) @ v


def test_its_edges_are_read_off_the_mask() -> None:
    for mask in WINDOWS:
        assert mask == "window:{}:{}".format(*window_of(attention(mask=mask)))
    assert window_of(attention()) == (None, None)
    assert window_of(attention(mask="causal")) == (None, 0)


@all_by_turns(
    ("mask", WINDOWS),
    ("consumers", [1, 2]),
    ("tile_n", [64, 176]),
)
def test_it_is_legal_and_its_mask_is_covered(mask: str, consumers: int, tile_n: int) -> None:
    """For every number of tiles and trips; for all m and n."""
    program = term(mask, consumers=consumers, tile_n=tile_n)
    assert verdict(program).outcome == "legal"
    assert str(mask_cover(program)) == "mask cover proved for every m, n"


@pytest.mark.parametrize("point", some(STARTS, 2))
def test_named_points_keep_the_laws(point: str) -> None:
    d = min(128, int(STARTS[point]["depth"]))
    problem = Problem.of(attention(mask="window:1000:0"), **sizes(4096, 4096, h=8, d=d, e=d))
    assert not check_schedule(Schedule.of(MACHINE, STARTS[point]), MACHINE, problem, DEVICE)
    program = Schedule.of(MACHINE, STARTS[point]).program(MACHINE, problem.operation)
    assert mask_cover(program)


@all_by_turns(
    ("m, n", SIZES),
    ("mask", WINDOWS),
)
def test_the_interpreter_gives_what_numpy_gives(mask: str, m: int, n: int) -> None:
    """Also where rows see no key, where there is one row, and where blocks are cut by both."""
    random, here = np.random.default_rng(0), sizes(m, n)
    operation = attention(mask=mask)
    arrays = {
        o.name: DTYPES["bf16"].round(random.standard_normal(operation.shapes(here)[o.name]))
        for o in operation.inputs
    }
    run = interpret(term(mask), here, arrays, scalars={"scale": 0.25})
    assert run.findings == ()
    left, right = window_of(operation)
    assert left is not None
    assert right is not None
    wanted = by_numpy({name: x.astype(float) for name, x in arrays.items()}, left, right, 0.25)
    assert np.abs(run.outputs["o"][0, 0, 0] - wanted).max() < 0.03


@all_by_turns(
    ("mask", WINDOWS[1:4]),
    ("m, n", SIZES[:2]),
    ("order", COMPLETIONS),
)
def test_its_code_is_right(mask: str, m: int, n: int, order: str) -> None:
    found = emulated(term(mask, "tma store"), sizes(m, n), arch="sm_90a", completions=(order,))
    assert found.findings == ()
    assert found.error < 0.6


def test_it_computes_its_operation() -> None:
    found = computes(term("window:40:25", "fa2"), sizes(70, 200, g=2, d=16, e=8))
    assert found, str(found)


@pytest.mark.parametrize(("left", "blocks"), [(0, 1), (64, 2), (65, 3), (640, 11), (10_000, 17)])
def test_blocks_outside_are_left_out(left: int, blocks: int) -> None:
    """Of 1,088 keys; a tile of 64 rows whose first has the last block's first key for its last."""
    program = term(f"window:{left}:0")
    values = program.values_of_tiles(sizes(1088, 1088))
    assert values["trips"][-1] == blocks
    assert values["begin"][-1] == 17 - blocks
    assert values["trips"][0] == 1


@pytest.mark.parametrize("mask", ["window:100:0", "window:30:7"])
def test_a_block_that_is_seen_whole_has_no_predicate(mask: str) -> None:
    """Predicates stand under guards on the distance to the loop's ends, of two turns each."""
    body = [found for role in term(mask).roles for found in walked(role.body)]
    guards = [
        [str(b) for b in around if isinstance(b, When)][-1]
        for s, around in body
        if isinstance(s, Do) and s.where is not None
    ]
    right = ["when kt < 2"] * (1 if mask.endswith(":0") else 2)
    assert guards == [*right, "when trips + -1*kt + -1 < 2"]


def test_the_grid_says_how_wide_a_tile_is() -> None:
    """Where a tile begins changes with each row, and with none of the grid."""
    assert [tile_of(term("window:40:0"), a) for a in "mn"] == [(64, True), (64, True)]


def test_sizes_that_differ_end_for_small_ones() -> None:
    """Batches and heads of two each, guarded by a store through TMA."""
    for mask in ("causal", "window:200:3"):
        for at in instances(term(mask, "tma store"))[-1:]:
            assert len({*at.values()}) == len(at)


def test_time_is_that_of_what_is_seen() -> None:
    """A window of all keys takes what a causal mask does, an eighth of the keys a fraction."""
    here = sizes(8192, 8192, h=16, d=128, e=128)

    def seconds(mask: str) -> float:
        operation = attention(mask=mask)
        program = Schedule.of(MACHINE, STARTS["fa3"]).program(MACHINE, operation)
        return float(cost(program, here, DEVICE).seconds)

    causal = seconds("causal")
    assert causal <= seconds("window:8192:0") < 1.05 * causal
    assert 0.15 * causal < seconds("window:1024:0") < 0.45 * causal


# Mutants


def predicate(edge: int, by: int) -> Callable[[Program], Program]:
    """Let the predicate of an edge, in their order, hide a key more or less."""

    def change(program: Program) -> Program:
        seen: list[Statement] = []

        def of(s: Statement) -> Statement:
            if not isinstance(s, Do) or s.where is None:
                return s
            seen.append(s)
            if len(seen) != edge + 1:
                return s
            return replace(s, where=replace(s.where, origin=s.where.origin + by))

        return rewritten(program, of)

    return change


def guard(edge: int, change: Callable[[When], Statement | tuple[Statement, ...]]) -> Any:
    """Change the guard around the predicates of an edge, in their order."""

    def of_program(program: Program) -> Program:
        seen: list[Statement] = []

        def of(s: Statement) -> Statement | tuple[Statement, ...]:
            if not isinstance(s, When) or not any(isinstance(b, Do) and b.where for b in s.body):
                return s
            seen.append(s)
            return change(s) if len(seen) == edge + 1 else s

        return rewritten(program, of)

    return of_program


MUTANTS = {
    "begins a block late": tile_value("begin", lambda e: e + 1),
    "begins a block early": tile_value("begin", lambda e: apply("max", e - 1, 0)),
    "begins at the first block": tile_value("begin", lambda _: Constant(0)),
    "a block too few": tile_value("trips", lambda e: apply("max", e - 1, 0)),
    "a block too many": tile_value("trips", lambda e: e + 1),
    "rows of the tile before": tile_value(
        "begin", lambda _: (apply("max", (value("bm") - 1) * 64, 0) + 1).ceildiv(64) - 1
    ),
    "right edge hides one less": predicate(0, 1),
    "right edge hides one more": predicate(0, -1),
    "the end of the keys hides one less": predicate(1, 1),
    "the end of the keys hides one more": predicate(1, -1),
    "left edge hides one less": predicate(2, 1),
    "left edge hides one more": predicate(2, -1),
    "right edge in one block": guard(0, lambda w: replace(w, bound=1)),
    "left edge in one block": guard(1, lambda w: replace(w, bound=1)),
    "left edge at the other end": guard(1, lambda w: replace(w, index=var("kt"))),
    "no left edge": guard(1, lambda w: ()),
    "no right edge": guard(0, lambda w: ()),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_window_is_not_proved_and_computes_something_else(name: str) -> None:
    """By z3 for all sizes; a run at the counterexample's sizes says the same."""
    program = MUTANTS[name](term("window:40:25", "fa2"))
    found = mask_cover(program)
    assert found.outcome == "wrong", found
    if name == "begins a block early":  # the last block is left out instead
        assert found.at
    at = sizes(max(65, found.at["m"]), max(90, found.at["n"]), d=16, e=8)
    if found.at["m"] <= 400 and found.at["n"] <= 400:
        at = sizes(found.at["m"], found.at["n"], d=16, e=8)
    assert not computes(program, at), (found, at)


# The judge: guards on how many turns are left


def split(which: Callable[[Statement], bool], near: int, far: int) -> Program:
    """Do a statement where more than ``far`` turns are left, and again in the last ``near``."""
    trips, kt = var("trips"), var("kt")

    def of(s: Statement) -> Statement | tuple[Statement, ...]:
        if not which(s):
            return s
        early = When(kt + far, "trips", (s,))
        late = When(trips + -1 * kt, near + 1, (s,))
        return (early, late)

    found = rewritten(base(), of)
    assert found != base()
    return found


def releases(ring: str) -> Callable[[Statement], bool]:
    def of(s: Statement) -> bool:
        inner = s.body[0] if isinstance(s, Elect) and len(s.body) == 1 else None
        return isinstance(inner, Arrive) and str(inner).startswith(
            f"arrive {ring}@(trips*tile + kt)"
        )

    return of


def waits(ring: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, Wait) and str(s).startswith(f"wait {ring}@(trips*tile + kt")


SPLIT = {
    "release of keys": releases("k_empty"),
    "wait for keys": waits("k_full"),
    "the producer's wait": waits("k_empty"),
}


@all_by_turns(
    ("which", SPLIT),
    ("turns", [1, 2, 3]),
)
def test_a_statement_in_two_parts_is_whole(which: str, turns: int) -> None:
    """What is not in the last turns and what is in them: together each turn, and so legal."""
    assert verdict(split(SPLIT[which], turns, turns)).outcome == "legal"


@all_by_turns(
    ("which", SPLIT),
    ("near, far", [(1, 2), (0, 1), (2, 4)]),
)
def test_a_turn_without_it_is_illegal(which: str, near: int, far: int) -> None:
    assert verdict(split(SPLIT[which], near, far)).outcome == "illegal"


@pytest.mark.parametrize(("near", "far"), [(2, 1), (1, 0), (3, 2)])
def test_a_turn_with_two_releases_is_illegal(near: int, far: int) -> None:
    assert verdict(split(SPLIT["release of keys"], near, far)).outcome == "illegal"


def test_both_parts_are_what_they_were_when_run() -> None:
    """The interpreter and the code take the guard for what the judge does."""
    program = split(SPLIT["release of keys"], 2, 2)
    assert computes(program, sizes(70, 200, d=16, e=8))
    found = emulated(program, sizes(70, 200), arch="sm_90a", completions=("late",))
    assert found.findings == ()
    assert found.error < 0.6


def test_a_guard_on_other_trips_is_unproved() -> None:
    """Fail closed: the turns that are left of no loop around it."""

    for form in (var("trips") + -2 * var("kt"), var("begin") + -1 * var("kt")):

        def other(w: When, form: Affine = form) -> When:
            return replace(w, index=form)

        program = guard(1, other)(term("window:40:25"))
        assert verdict(program).outcome == "unproved", form
