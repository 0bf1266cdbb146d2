"""Tiles back and forth: in a snake every second visit of a CTA counts its round from the other end,
in a zigzag every second group of heads has its blocks in the other order."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.attention import problem_of
from benchmarks.attention_cycles import CASES
from tests.ptx_runs import parsed
from tests.sample import all_by_turns
from tinygpu.codegen.emit import emit
from tinygpu.codegen.kernel.ptx import Text
from tinygpu.codegen.kernel.raster import tile_of
from tinygpu.codegen.run.interpretation import execute, unwritten_outputs
from tinygpu.devices.device import load_device
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import interpret
from tinygpu.meaning.turns import raster_of, taken
from tinygpu.search.time.cost import Placed, cost, features
from tinygpu.search.time.tile_steps import (
    Refetched,
    _places,
    busiest,
    in_use,
    steps_of_tiles,
)
from tinygpu.smt import z3_module
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, attention
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

MACHINE, DEVICE = MACHINES["attention"], load_device("h100")
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "h100"


SMALL = {"depth": 64, "tile_n": 64, "consumers": 1}


@cache
def term(mask: str = "causal", point: str = "snake") -> Program:
    return Attention().program(attention(mask=mask), Chosen({**STARTS[point], **SMALL}))


def sizes(m: int, n: int, **others: int) -> dict[str, int]:
    return {"l": 1, "h": 1, "g": 1, "m": m, "n": n, "d": 64, "e": 64, **others}


def right(text: str, here: dict[str, int], clusters: int, point: str = "snake") -> bool:
    """Whether code gives the operation, on so many CTAs."""
    program, random = term(point=point), np.random.default_rng(0)
    shapes = program.operation.shapes(here)
    arrays = {
        o.name: DTYPES[o.dtype].round(random.standard_normal(shapes[o.name]))
        for o in program.operation.inputs
    }
    exact = {name: x.astype(np.float64) for name, x in arrays.items()}
    arrays |= unwritten_outputs(program, shapes)
    report = execute(program, here, arrays, parsed(text), scalars={"scale": 0.125},
                     clusters=clusters)  # fmt: skip
    wanted = program.operation.reference(exact, {"scale": 0.125})["o"]
    near = np.abs(arrays["o"].astype(np.float64) - wanted) < 0.03
    return not report.findings and bool(near.all())


# Each tile exactly once


def test_each_tile_is_one_clusters_for_every_number_of_both() -> None:
    """By z3, of integers without a bound: place = t G + own, where own is c, or G - 1 - c."""
    z3 = z3_module()

    def own(t: Any, c: Any, clusters: Any) -> Any:
        return z3.If(t % 2 == 0, c, clusters - 1 - c)

    def proved(*claims: Any) -> bool:
        solver = z3.Solver()
        solver.set("rlimit", 2_000_000)
        solver.add(*claims)
        return str(solver.check()) == "unsat"

    # t G is a number of its own: equal for equal t, and G apart for neighbours (first, second)
    t, u, c, d, g, n, first, second = z3.Ints("t u c d g n first second")
    cluster = [g >= 1, c >= 0, c < g, d >= 0, d < g, t >= 0, u >= 0]
    rounds = [z3.Implies(t == u, first == second), z3.Implies(t < u, first + g <= second),
              z3.Implies(u < t, second + g <= first)]  # fmt: skip
    here, there = first + own(t, c, g), second + own(u, d, g)
    # two visits at one place are the same visit of the same cluster
    assert proved(*cluster, *rounds, here == there, z3.Or(t != u, c != d))
    # place n of the round that begins at first is some cluster's, who is in the grid
    who = own(t, n - first, g)
    inside = [g >= 1, t >= 0, first <= n, n < first + g]
    assert proved(*inside, z3.Not(z3.And(who >= 0, who < g, first + own(t, who, g) == n)))
    # a cluster that finds no tile in a round finds none after it
    later = second + own(u, c, g)
    assert proved(*cluster, *rounds, t < u, here >= n, later < n)


@given(st.integers(0, 60), st.integers(1, 20), st.booleans())
def test_each_tile_is_taken_once(many: int, clusters: int, snake: bool) -> None:
    tiles: list[tuple[int, ...]] = [(n,) for n in range(many)]
    mine = [taken(tiles, c, clusters, snake=snake) for c in range(clusters)]
    assert sorted(t for own in mine for t in own) == tiles
    for c, own in enumerate(mine):
        for turn, (n,) in enumerate(own):
            assert n // clusters == turn
            assert n % clusters == (clusters - 1 - c if snake and turn % 2 else c)


EXTENTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(EXTENTS, st.integers(1, 6))
def test_a_zigzag_turns_every_second_group_but_the_last(extents: list[int], raster: int) -> None:
    """Groups and rows in them are those of the raster; time has the order of the meaning."""
    here = tuple(extents)
    straight, turned = raster_of(here, raster), raster_of(here, raster, zigzag=True)
    assert sorted(turned) == sorted(straight)
    assert turned == list(map(tuple, _places(here, raster, zigzag=True).T.tolist()))
    of = [(*p[:-2], p[-2] // raster) if len(p) > 1 else () for p in straight]
    groups = list(dict.fromkeys(of))
    for left, group in enumerate(reversed(groups)):
        columns = [p[-1] for p, g in zip(turned, of, strict=True) if g == group]
        assert columns == sorted(columns, reverse=bool(left % 2))


@given(st.data(), st.integers(1, 4))
def test_code_finds_the_tile_of_a_zigzag(data: st.DataObject, raster: int) -> None:
    """Of numbers that are known, and of those that are registers by the emulator below."""
    extents = dict(zip(("bl", "bg", "bh", "bm"), data.draw(st.tuples(*[st.integers(1, 4)] * 4)),
                       strict=True))  # fmt: skip
    program = replace(term(point="zigzag"), raster=raster)
    down = tuple(axis.down for axis in program.grid)
    tiles = raster_of(tuple(extents.values()), raster, down, zigzag=True)
    number = data.draw(st.integers(0, len(tiles) - 1))
    assert tuple(tile_of(program, Text(), extents, number).values()) == tiles[number]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 12))
def test_time_follows_a_cluster_of_the_interpreter(steps: list[int], at_once: int) -> None:
    """The busiest is one of those that the meaning knows, and none has more."""
    width = min(at_once, len(steps))
    tiles: list[tuple[int, ...]] = [(n,) for n in range(len(steps))]
    each = [tuple(steps[n] for (n,) in taken(tiles, c, width, snake=True)) for c in range(width)]
    found = busiest(np.array(steps), at_once, snake=True)
    assert found in each
    assert sum(found) == max(map(sum, each))


def test_loads_that_fall_are_balanced() -> None:
    """Of 64 heads, 32 blocks each, on 132 CTAs: 0.1 % above the mean, where in turn it is 5 %."""
    steps = np.repeat(np.arange(32, 0, -1), 64)
    mean = steps.sum() / 132
    assert sum(busiest(steps, 132, snake=True)) < 1.005 * mean
    assert sum(busiest(steps, 132)) > 1.05 * mean


def test_ctas_that_stay_come_apart() -> None:
    """Of 128 heads, 32 blocks each: 4 heads after another are done by 132 CTAs at a time, in turn
    a third of all heads; L2 that holds all of them, and not 25 as an H100's, loses nothing."""
    program = Attention().program(attention(mask="causal"), Chosen(STARTS["longest first"]))
    here = {"l": 8, "h": 16, "g": 1, "m": 4096, "n": 4096, "d": 128, "e": 128}

    def lost(held: float, *, stays: int = 1, **changes: Any) -> float:
        own = steps_of_tiles(replace(program, **changes), here, "trips", {"bl", "bh"})
        return float(Refetched(own)(stays, 132, 0, held))

    assert lost(25, raster=4) > 4
    assert 1.1 < lost(25, raster=16) < 2
    assert lost(25, raster=4, zigzag=True) < 1.1
    assert lost(128, raster=4) == lost(25, stays=0, raster=4) == 1
    seconds = [
        float(cost(replace(program, raster=4, zigzag=z), here, DEVICE).seconds)
        for z in (False, True)
    ]
    assert seconds[1] < 0.95 * seconds[0]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=40),
       st.integers(1, 7), st.booleans())  # fmt: skip
def test_what_is_in_use_is_counted_moment_by_moment(
    tiles: list[tuple[int, int]], width: int, snake: bool
) -> None:
    """Steps and inputs of tiles, taken in turn by CTAs that stay: here by the sets in use."""
    steps, inputs = (np.array(x, np.int64) for x in zip(*tiles, strict=True))
    used = in_use(lambda: steps, lambda: inputs, width, stays=True, snake=snake)
    order = list(range(len(tiles)))
    moments: dict[int, set[int]] = {}
    clocks = [0] * min(width, len(tiles))
    for turn, first in enumerate(range(0, len(order), len(clocks))):
        here = order[first : first + len(clocks)]
        for place, tile in enumerate(here):
            cta = len(clocks) - 1 - place if snake and turn % 2 else place
            for _ in range(int(steps[tile]) + 1):
                moments.setdefault(clocks[cta], set()).add(int(inputs[tile]))
                clocks[cta] += 1
    whole = max(clocks)
    assert used.many == len(set(inputs.tolist()))
    assert used.at_once == pytest.approx(sum(map(len, moments.values())) / whole)
    idle = 0
    for one in {*inputs.tolist()}:
        there = [t for t, now in moments.items() if one in now]
        idle += whole - min(there) - len(there)
    assert used.unused.sum() * whole == pytest.approx(idle)
    rooms = [round(used.fetched(h), 12) for h in (1e-9, 0.5, 1, 2, 4, 8, 1e9)]
    assert rooms == sorted(rooms, reverse=True)  # sums of other numbers round otherwise
    assert rooms[-1] == 1
    assert rooms[0] <= round(1 + used.every / used.many, 12)


def test_dram_sends_what_an_h100_counted() -> None:
    """Of causal schedules, by Nsight Compute: half within 5 %, all within a factor of 2.6."""
    rows = json.loads((RESULTS / "attention_cycles.json").read_text(encoding="utf-8"))["rows"]
    off = []
    for row in [r for r in rows if r["decisions"] and r["decisions"]["order"] == "zigzag"][::2]:
        one = CASES[row["case"]]
        counted = Schedule.of(MACHINE, row["decisions"])  # older than some decisions
        term = counted.program(MACHINE, problem_of(one).operation)
        launch = features(term, problem_of(one).sizes, DEVICE)
        own = launch.own
        assert own is not None
        place = Placed.of(launch)
        again = float(Refetched(own)(1, int(place.at_once), own.kind, launch.launch.held()))
        queries = float(place.dram_bytes) - launch.launch.shared_bytes()
        sent = queries + again * launch.launch.shared_bytes()
        off.append(abs(math.log(sent / row["dram_bytes"])))
    assert np.median(off) < 0.05
    assert max(off) < math.log(2.6)


# The machine


def test_the_term_says_it() -> None:
    text = str(term())
    assert "grid bm < " in text
    assert " down x bl" in text
    assert "persistent, snake" in text
    assert "snake" not in str(term("causal", "longest first"))
    assert "persistent, zigzag" in str(term(point="zigzag"))


@pytest.mark.parametrize("mask", ["causal", "window:100:30"])
@pytest.mark.parametrize("point", ["snake", "zigzag"])
def test_it_is_legal_and_computes_its_operation(mask: str, point: str) -> None:
    found = verdict(term(mask, point))
    assert found.legal, str(found)
    meant = computes(term(mask, point), sizes(200, 200, h=3, d=16, e=8))
    assert meant, str(meant)


@all_by_turns(
    ("m, n", [(200, 200), (130, 70), (1, 100)]),
    ("clusters", [1, 2, 5]),
)
def test_its_code_is_right(m: int, n: int, clusters: int) -> None:
    """Rounds that are whole and rounds that are not, tiles without keys."""
    assert right(emit(term()), sizes(m, n, h=3), clusters)


@pytest.mark.parametrize(("m", "here"), [(200, {"l": 2, "h": 5}), (1, {"h": 3}), (130, {"l": 3})])
def test_a_zigzags_code_is_right(m: int, here: dict[str, int]) -> None:
    """Groups that are whole and groups that are not."""
    assert right(emit(term(point="zigzag")), sizes(m, m, **here), 2, "zigzag")


def test_code_that_goes_back_otherwise_is_wrong() -> None:
    """Never back, always back, back in even rounds: tiles are left out, or done at other steps."""
    lines = emit(term()).splitlines()
    at = [n for n, line in enumerate(lines) if line.startswith("\tselp.b32")]
    assert len(at) == 2  # a role each
    for n in at:
        head, own, back, even = lines[n].rsplit(" ", 3)
        for pair in ((own, own), (back, back), (back, own)):
            changed = " ".join((head, *pair, even))
            text = "\n".join([*lines[:n], changed, *lines[n + 1 :], ""])
            assert not right(text, sizes(200, 200, h=3), 5), changed


def test_order_does_not_change_the_result() -> None:
    """Straight or back and forth, the same values: bit for bit, also with several clusters."""
    here, random = sizes(200, 200, h=3), np.random.default_rng(0)
    shapes = term().operation.shapes(here)
    arrays = {o.name: random.standard_normal(shapes[o.name]) for o in term().operation.inputs}
    found = [
        interpret(one, here, arrays, scalars={"scale": 0.25}, seed=2)
        for one in (term(), term("causal", "longest first"))
    ]
    assert all(one.findings == () for one in found)
    assert np.array_equal(found[0].outputs["o"], found[1].outputs["o"])


REFUSED: dict[str, dict[str, Value]] = {
    "one tile each": {"persistent": 0},
    "heads in groups": {"raster": 4},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    problem = Problem.of(attention(mask="causal"), **sizes(4096, 4096, h=8, d=128, e=128))
    right = Schedule.of(MACHINE, STARTS["snake"])
    assert not check_schedule(right, MACHINE, problem, DEVICE)
    broken = check_schedule(right.with_(**REFUSED[name]), MACHINE, problem, DEVICE)
    assert [one.law for one in broken] == ["back_and_forth"]
    equal = Problem.of(attention(), **problem.sizes)
    assert [b.law for b in check_schedule(right, MACHINE, equal, DEVICE)] == ["back_and_forth"]
