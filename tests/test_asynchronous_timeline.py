"""Timelines of programs with barriers: the predicted cycles, one thing at a time, ring order."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.cli.timeline_picture import asynchronous_figure
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.machines.blackwell import STARTS as POINTS
from tinygpu.machines.blackwell import Blackwell
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.search.time.cost import Placed, features
from tinygpu.search.time.recursion import Recursion, numbers
from tinygpu.search.time.timeline import Timeline, timeline, trace
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

H200 = load_device("h200")
CHIPS = {"hopper": (STARTS, H200), "blackwell": (POINTS, load_device("b200"))}
EVERY = [(machine, name) for machine, (points, _) in CHIPS.items() for name in points]


def term(name: str, **changes: Any) -> Program:
    chosen = Chosen({**STARTS[name], **changes})
    return Hopper().program(matmul("bf16", layout="nt"), chosen)


def sizes_of(name: str, steps: int) -> dict[str, int]:
    return {"m": 4096, "n": 4096, "k": 64 * steps * int(STARTS[name]["cluster_k"])}


def followed(name: str, steps: int, tiles: int = 4, **changes: Any) -> Timeline:
    return timeline(term(name, **changes), sizes_of(name, steps), H200, iterations=tiles)


def predicted(name: str, steps: int, tiles: int) -> float:
    stages = features(term(name), sizes_of(name, steps), H200)
    place = Placed.of(stages)
    count = min(tiles, int(place.turns))
    found = Recursion(place.agents)(
        place.share, count, stages.steps, stages.stages, *numbers(place.agents)
    )
    return float(np.max(found))


def spans(line: Timeline, row: str, *kinds: str) -> list[tuple[float, float]]:
    found = [e for e in line.events if e.row == row and (not kinds or e.statement in kinds)]
    return sorted((e.start_cycles, e.end_cycles) for e in found)


@given(st.sampled_from(list(STARTS)), st.integers(1, 8), st.integers(1, 3))
def test_it_ends_when_the_recursion_does(name: str, steps: int, tiles: int) -> None:
    """A few steps and tiles are followed by both one by one: the same cycles."""
    assert followed(name, steps, tiles).cycles == pytest.approx(predicted(name, steps, tiles))


@pytest.mark.parametrize("name", STARTS)
def test_long_tiles_are_cut_and_take_as_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut is one bar a row; it ends as if every step had been followed."""
    line = followed(name, 200)
    assert not line.whole
    with monkeypatch.context() as patched:
        patched.setattr("tinygpu.search.time.timeline._STEPS", 200)
        assert line.cycles == pytest.approx(followed(name, 200).cycles)
    assert line.cycles == pytest.approx(predicted(name, 200, 4), rel=0.05)
    cuts = [e for e in line.events if e.statement.endswith("more steps")]
    shown = {e.iteration for e in line.events if e.statement == "wgmma"}
    steps = len({where for where in shown if where.startswith("tile=0 ")})
    assert {int(e.statement.split()[0]) for e in cuts} == {200 - steps}
    assert (200 - steps) % int(STARTS[name]["stages"]) == 0  # the ring goes on where it was
    assert max(e.end_cycles for e in line.events) <= line.cycles + 1


@pytest.mark.parametrize("steps", [6, 100])
@pytest.mark.parametrize("name", STARTS)
def test_one_thing_at_a_time(name: str, steps: int) -> None:
    """Tensor cores, the copy engine and each stage do one thing at a time."""
    line = followed(name, steps)
    stages = [f"stage {n}" for n in range(int(STARTS[name]["stages"]))]
    assert set(stages[:steps]) < set(line.rows)
    for row in ("tensor cores", "copy engine", *stages):
        for (_, end), (start, _) in pairwise(spans(line, row)):
            assert start >= end - 1e-6, row


@pytest.mark.parametrize("steps", [6, 100])
@pytest.mark.parametrize(("machine", "name"), EVERY)
def test_a_stage_is_read_as_long_as_products_do(machine: str, name: str, steps: int) -> None:
    """Until wgmma's group was waited for, or tcgen05.mma's commit came; the trace says the same."""
    point, chip = CHIPS[machine]
    term = MACHINES[machine].program(matmul("bf16", layout="nt"), Chosen(dict(point[name])))
    sizes = {"m": 4096, "n": 4096, "k": 64 * steps * int(point[name].get("cluster_k", 1))}
    line = timeline(term, sizes, chip, iterations=3)
    for row in (row for row in line.rows if row.startswith("stage")):
        for (_, end), (start, _) in pairwise(spans(line, row)):
            assert start >= end - 1e-6, row
    reads = {e.iteration: e for e in line.events if e.statement == "read"}
    products = [e for e in line.events if e.row == "tensor cores" and e.iteration]
    assert {e.iteration for e in products} <= reads.keys()
    for product in products:
        read = reads[product.iteration]
        assert read.start_cycles <= product.start_cycles < product.end_cycles <= read.end_cycles
    shown = [e for e in trace(line, chip)["traceEvents"] if e.get("cat", "").startswith("stage")]
    found = {(e["cat"], e["name"], round(e["ts"], 6), round(e["dur"], 6)) for e in shown}
    micro = 1e6 / chip.clock_hz
    for e in (e for e in line.events if e.row.startswith("stage")):
        start, cycles = e.start_cycles * micro, (e.end_cycles - e.start_cycles) * micro
        assert (e.row, e.statement, round(start, 6), round(cycles, 6)) in found


def test_what_other_ctas_do_is_told_apart() -> None:
    """Two CTAs of an SM share its tensor cores: a product is followed by the other one's."""
    line = followed("plain", 6)
    own = spans(line, "tensor cores", "wgmma of consumer")
    others = spans(line, "tensor cores", "other CTAs")
    assert [end for _, end in own] == [start for start, _ in others]
    waits = spans(line, "consumer", "wait full")[1:]
    for (_, end), (start, _) in zip(own, waits, strict=False):
        assert start >= end  # a consumer waits for its own product alone


@pytest.mark.parametrize("name", STARTS)
def test_a_stage_is_filled_then_full_then_read(name: str) -> None:
    """Each use goes through its three states without a pause, and uses come in the ring's order."""
    line = followed(name, 20)
    for n in range(int(STARTS[name]["stages"])):
        mine = [e for e in line.events if e.row == f"stage {n}"]
        for event, after in pairwise(mine):
            if event.statement != "read":
                assert after.iteration == event.iteration
                assert after.start_cycles == pytest.approx(event.end_cycles)
        steps = [e.iteration for e in mine if e.statement == "read"]
        assert steps[0] == f"tile=0 kt={n}"
        assert len(steps) == len(set(steps)) > 1


def test_the_ring_bounds_what_is_in_flight() -> None:
    """The producer runs ahead by as many stages as there are, and not further."""
    for stages in (2, 4):
        line = followed("ring", 40, stages=stages)
        fills = sorted(e.start_cycles for e in line.events if e.statement == "filling")
        first_read = min(e.start_cycles for e in line.events if e.statement == "read")
        assert sum(start < first_read for start in fills) == stages


def test_consumers_take_turns() -> None:
    """Ping-pong: tile t is consumer t mod 2's, which stores it while the other multiplies."""
    line = followed("pingpong", 12)
    products = [e for e in line.events if e.row == "tensor cores"]
    for event in products:
        tile = int(event.iteration.split()[0].removeprefix("tile="))
        assert event.statement == f"wgmma of consumer {tile % 2}"
    store = min(spans(line, "consumer 0", "epilogue"))
    other = [e for e in products if e.statement.endswith("1")]
    assert any(e.start_cycles < store[1] and e.end_cycles > store[0] for e in other)
    assert [name for name, _ in line.begins] == ["tile 0", "tile 1", "tile 2", "tile 3"]


def test_its_trace_has_flights_and_rows() -> None:
    line = followed("cluster", 12)
    events = json.loads(json.dumps(trace(line, H200)))["traceEvents"]
    begins = {e["id"]: e["ts"] for e in events if e["ph"] == "b"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "e"}
    assert begins.keys() == ends.keys() != set()
    assert all(ends[i] > begins[i] for i in begins)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tuple(names.values()) == line.rows


def test_the_picture_shows_every_row_and_tile() -> None:
    """Above all rows, below who computes; a mark at each tile's first product."""
    line = followed("pingpong", 40)
    upper, lower = asynchronous_figure(line, H200, "title").axes
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in (upper, lower)]
    assert tuple(names[0]) == line.rows
    assert names[1] == ["tensor cores", "consumer 0", "consumer 1"]
    assert [t.get_text() for t in lower.texts if t.get_text().startswith("tile")] == [
        "tile 0", "tile 1", "tile 2", "tile 3",
    ]  # fmt: skip
    assert upper.get_xlim()[1] < lower.get_xlim()[1]


def test_the_picture_shows_the_epilogue_of_blackwell() -> None:
    """Its warpgroups store while the next tile is multiplied: they stand below the tensor cores."""
    program = Blackwell().program(matmul("bf16", layout="nt"), Chosen(dict(POINTS["pair"])))
    sizes = {"m": 4096, "n": 4096, "k": 1024}
    line = timeline(program, sizes, load_device("b200"), iterations=2)
    _, lower = asynchronous_figure(line, load_device("b200"), "title").axes
    names = [label.get_text() for label in lower.get_yticklabels()]
    assert names == [row for row in line.rows if row.startswith(("tensor", "epilogue"))]
    assert len(names) > 1


@pytest.mark.parametrize("name", STARTS)
def test_a_stage_is_filled_when_both_loads_have_landed(name: str) -> None:
    """The copy engine takes as long for each box; the later of a step's two fills the stage."""
    line = followed(name, 20)
    loads = [e for e in line.events if e.row == "copy engine"]
    assert len({round(e.end_cycles - e.start_cycles, 3) for e in loads}) <= 2
    landed: dict[str, float] = {}
    for event in loads:
        landed[event.iteration] = max(landed.get(event.iteration, 0.0), event.ready_cycles)
    filled = {e.iteration: e.end_cycles for e in line.events if e.statement == "filling"}
    assert filled == pytest.approx(landed)


def test_consumers_of_one_tile_share_the_tensor_cores() -> None:
    """Each step's product is the first's part and then the second's; the second ends last."""
    line = followed("cluster", 12)
    parts = zip(
        spans(line, "tensor cores"),
        spans(line, "consumer 0", "wgmma"),
        spans(line, "consumer 1", "wgmma"),
        strict=True,
    )
    for whole, first, second in parts:
        assert (first[0], second[1]) == pytest.approx(whole)
        assert first[1] == pytest.approx(second[0])
    ends = [max(spans(line, f"consumer {n}", "epilogue"))[1] for n in (0, 1)]
    assert ends[0] < ends[1] <= line.cycles
    assert ends[1] == pytest.approx(line.cycles, abs=200)


@pytest.mark.parametrize("name", STARTS)
def test_no_use_of_a_stage_lasts_through_a_cut(name: str) -> None:
    """What is in the ring when steps are left out moves on with them."""
    line = followed(name, 1000)
    cut = min(e.end_cycles - e.start_cycles for e in line.events if e.statement.endswith("steps"))
    uses = [e for e in line.events if e.row.startswith("stage")]
    assert max(e.end_cycles - e.start_cycles for e in uses) < cut / 4
