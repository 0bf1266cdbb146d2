"""Arithmetic within a step: followed by the clock, beside other copies', until it is periodic."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from benchmarks.attention_cycles import CASES, _predicted
from benchmarks.peers import FOLDER
from tests.sample import some
from tinygpu.devices.device import load_device
from tinygpu.machines.attention import STARTS, Attention, consumer_orders
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.recursion import Following, Recursion, numbers
from tinygpu.search.time.work import Event, Guard, Loop, TimedAgent, Tree, agents
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention

H100 = load_device("h100")
LONG = Problem.of(attention(), l=8, h=32, g=1, m=4096, n=4096, d=64, e=64)
STEPS = 90
BASE: dict[str, Value] = {**STARTS["zigzag"], "depth": 64, "order": "straight", "queries": "shared"}


def made(**changed: Value) -> tuple[TimedAgent, ...]:
    """Return the agents of a schedule of attention."""
    program = Attention().program(LONG.operation, Chosen({**BASE, **changed}))
    return agents(program, H100, LONG.sizes)


def period(found: tuple[TimedAgent, ...]) -> float:
    few, many = (Recursion(found)(1, 1, steps, 4, *numbers(found)) for steps in (60, 120))
    return float(many - few) / 60


def drawn() -> list[dict[str, Value]]:
    rng, orders = np.random.default_rng(32), list(consumer_orders().values)
    names: dict[str, tuple[Value, ...]] = {
        "consumers": (1, 2, 3), "consumer_order": tuple(orders), "tile_n": (64, 96, 128),
        "stages_k": (1, 2, 3, 4), "stages_v": (1, 2, 3, 4), "softmax": ("at once", "by rows"),
    }  # fmt: skip
    return [
        {name: values[int(rng.integers(len(values)))] for name, values in names.items()}
        for _ in range(16)
    ]


@pytest.mark.parametrize(
    "changed", some(drawn(), 8), ids=lambda one: "-".join(map(str, one.values()))
)
def test_many_steps_are_some_and_then_periods(changed: dict[str, Value]) -> None:
    """Those that rest at the end of what was followed leave no mark on the period."""
    found = made(**changed)
    whole = Following(found, 1.0, 4.0, 1).followed(1, [(STEPS, STEPS)], 1)
    by_period = Recursion(found)(1, 1, STEPS, 4, *numbers(found))
    assert float(by_period) == pytest.approx(float(whole), rel=1e-3)


def arithmetic(tree: Tree) -> list[Event]:
    """Return the statements of arithmetic of a step far from both ends, as often as they are."""
    found: list[Event] = []
    for node in tree:
        match node:
            case Event():
                found += [node] * (node.kind == "math")
            case Guard():
                found += node.late * arithmetic(node.body)
            case Loop():
                found += int(node.trips) * arithmetic(node.body)
    return found


@pytest.mark.parametrize("order", ["SVsMvELOP", "SVsMELvOP", "SOVsMEvLP"])
@pytest.mark.parametrize("consumers", [2, 3])
def test_what_keeps_all_other_arithmetic_out_goes_one_by_one(
    consumers: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a step takes at least the busiest units of all statements; and never less for it."""
    found = made(consumers=consumers, consumer_order=order)
    every = [event for one in found for loop in one.loops for event in arithmetic(loop.body)]
    busy = sum(float(max(event.cycles.values())) for event in every)
    monkeypatch.setitem(FITTED, "kept_out", 0.0)
    least = period(found)
    monkeypatch.setitem(FITTED, "kept_out", 1.0)
    assert period(found) >= max(busy * (1 - 1e-9), least)
    assert least < busy or consumers == 2  # of which the chain of one takes longer


def test_cycles_of_two_and_three_consumers_are_as_counted() -> None:
    """At d 64, where exponentials and products take as long, neither is favoured."""
    errors: dict[int, list[float]] = defaultdict(list)
    for row in rows("d64"):
        if row["decisions"] and row["decisions"]["tile_n"] >= 96:
            errors[row["decisions"]["consumers"]].append(error(row))
    assert {2, 3} <= set(errors)
    for consumers in (2, 3):
        assert abs(np.mean(errors[consumers])) < 0.03


def test_weights_before_the_wait_for_values_take_longer() -> None:
    """FlashAttention-3's source order is counted to take 6 to 10 % more than its compiled one."""
    by_name = {(row["case"], row["name"]): row for row in rows("")}
    for case in CASES:
        compiled, source = (
            by_name[case, name] for name in ("queries in registers", "FA3's source")
        )
        counted = source["cycles"] / compiled["cycles"]
        said = counted * math.exp(error(source) - error(compiled))
        assert counted > 1.05
        assert said > 1.03


def rows(part: str) -> list[dict[str, Any]]:
    path = FOLDER.parent / "h100" / "attention_cycles.json"
    every = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in every if part in row["case"] and "order" not in row["name"]]


def error(row: dict[str, Any]) -> float:
    """Return the logarithm of predicted over counted cycles."""
    from benchmarks.attention import problem_of

    seconds = row["cycles"] / H100.clock_hz
    one = (row["name"], problem_of(CASES[row["case"]]), row["decisions"], seconds, True)
    return math.log(_predicted(one) / seconds)
