"""Timelines agree with the predicted path, follow the statements, and read as traces."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere import STARTS
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.time.cost import features
from tinygpu.search.time.recursion import path
from tinygpu.search.time.timeline import Timeline, timeline, trace
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

H200 = load_device("h200")
RING = {**LADDER["multi-stage"], "pipeline": "cp.async", "stages": 3, "a_layout": "mk"}
POINTS = {"simt": {"multi-stage": LADDER["multi-stage"], "ring": RING}, "ampere": STARTS}
RINGS = [(machine, name) for machine, points in POINTS.items() for name in points]


def term(name: str) -> Program:
    return Simt().program(matmul(), Chosen(RING if name == "ring" else LADDER[name]))


def followed(name: str, tiles: int, iterations: int) -> Timeline:
    tile_k = int({**LADDER, "ring": RING}[name]["tile_k"])
    sizes = {"m": 512, "n": 512, "k": tile_k * tiles}
    return timeline(term(name), sizes, H200, iterations=iterations)


def cycles_of(program: Program, sizes: dict[str, int]) -> float:
    """The cycles of one CTA's path, that its time is predicted from."""
    return float(path(features(program, sizes, H200).tree, program.threads / 32))


@given(st.sampled_from(list(LADDER)), st.integers(1, 20))
def test_a_whole_timeline_ends_when_the_path_does(name: str, tiles: int) -> None:
    """Followed to its end, a CTA takes exactly the cycles that its time is predicted from."""
    line = followed(name, tiles, iterations=20)
    sizes = {"m": 512, "n": 512, "k": int(LADDER[name]["tile_k"]) * tiles}
    program = term(name)
    assert line.whole
    assert line.cycles == pytest.approx(cycles_of(program, sizes))


def test_a_ring_agrees_in_the_limit() -> None:
    """Which group of the prologue is waited for first is forgotten in many iterations."""
    program, sizes = term("ring"), {"m": 512, "n": 512, "k": 16 * 200}
    line = timeline(program, sizes, H200, iterations=200)
    assert line.cycles == pytest.approx(cycles_of(program, sizes), rel=0.01)


def test_it_stops_after_the_first_iterations() -> None:
    line = followed("multi-stage", 50, iterations=3)
    assert not line.whole
    assert [name for name, _ in line.begins] == ["kt=0", "kt=1", "kt=2"]
    assert not any("kt=3" in event.iteration for event in line.events)


@pytest.mark.parametrize("name", [*LADDER, "ring"])
def test_a_unit_does_one_thing_at_a_time(name: str) -> None:
    """On the rows of units, bars do not overlap; a result is never there before its end."""
    line = followed(name, 6, iterations=6)
    for row in ("global memory", "shared memory", "fma", "cp.async"):
        spans = sorted((e.start_cycles, e.end_cycles) for e in line.events if e.row == row)
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-6
    assert all(e.start_cycles <= e.end_cycles <= e.ready_cycles for e in line.events)


def test_a_wait_lasts_until_its_group_has_landed() -> None:
    """No fragment is read before the copies of its tile have arrived."""
    line = followed("ring", 6, iterations=6)
    copies = [e for e in line.events if e.row == "cp.async"]
    first_read = min(e.start_cycles for e in line.events if "ld.shared" in e.statement)
    assert first_read >= max(e.ready_cycles for e in copies[:2])


@pytest.mark.parametrize(("machine", "name"), RINGS)
def test_a_stage_is_held_from_its_copies_to_its_last_read(machine: str, name: str) -> None:
    """Who reads shared memory reads a stage that is filled, and that nothing fills meanwhile."""
    decisions = POINTS[machine][name]
    operation = matmul() if machine == "simt" else matmul("bf16", layout="nt")
    program = MACHINES[machine].program(operation, Chosen(dict(decisions)))
    line = timeline(program, {"m": 512, "n": 512, "k": 2048}, H200, iterations=6)
    stages = {row: [e for e in line.events if e.row == row] for row in line.rows if "stage" in row}
    depth = int(decisions["stages"])
    assert list(stages) == [f"stage {n}" for n in range(depth)]
    for events in stages.values():
        for before, after in pairwise(events):
            assert after.start_cycles >= before.end_cycles - 1e-6
    seen = 0
    for event in line.events:
        index = re.search(r"(?:ldmatrix|ld\.shared)\(smem_.@\((.*?)\)", event.statement)
        if not index or event.row.startswith("stage"):
            continue
        loops = {k: int(v) for k, v in (loop.split("=") for loop in event.iteration.split())}
        number = eval(index[1], {}, loops)
        assert any(
            e.statement == "read"
            and e.start_cycles <= event.start_cycles
            and event.end_cycles <= e.end_cycles
            for e in stages[f"stage {number % depth}"]
        )
        seen += 1
    assert seen


def test_the_trace_is_what_viewers_read() -> None:
    """Complete events have times, every begin of a flight has its end, rows are named."""
    line = followed("ring", 6, iterations=3)
    tree = json.loads(json.dumps(trace(line, H200)))
    events = tree["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(line.events)
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in complete)
    begins = {e["id"] for e in events if e["ph"] == "b"}
    assert begins
    assert begins == {e["id"] for e in events if e["ph"] == "e"}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tuple(names.values()) == line.rows
    last = max(e["ts"] + e["dur"] for e in complete)
    assert last == pytest.approx(line.cycles / H200.clock_hz * 1e6)
