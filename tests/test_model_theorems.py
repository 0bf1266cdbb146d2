"""The theorems of docs/model.md that no other file checks, and that what is cited there exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf, prod
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sample import draws
from tinygpu.devices.device import load_device
from tinygpu.legality.reach import exactly_once
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.numbers import Number
from tinygpu.search.time.cost import Features, features, predict
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.recursion import alone, path
from tinygpu.search.time.work import Event, Kind, Loop, Node, Tree, total_work
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul

H200 = load_device("h200")
ROOT = Path(__file__).parent.parent
RING = {**LADDER["multi-stage"], "pipeline": "cp.async", "stages": 3, "a_layout": "mk"}
WIDE = {"m": 4096, "n": 3000, "k": 4096}
FAR = H200.with_values(l2_latency_cycles=50_000, dram_latency_cycles=50_000)
SLOW = H200.with_values(dram_bytes_per_second=10**11)
ROWS = {**LADDER["multi-stage"], "raster": 8, "tile_m": 32, "thread_m": 2}
POINTS = {
    **{name: (point, WIDE, H200) for name, point in LADDER.items()},
    "split": ({**LADDER["tuned"], "split_k": 4, "combine": "red"}, WIDE, H200),
    "ring, bound by latency": ({**RING, "ctas_per_sm": 4}, WIDE, FAR),
    "raster, bound by DRAM": (ROWS, {"m": 8192, "n": 16384, "k": 4096}, SLOW),
}
CYCLES = st.integers(0, 20)
BUFFERS = st.sampled_from("xyz")


@st.composite
def works(draw: st.DrawFn, kind: Kind = "do") -> Event:
    """One statement's work: cycles of some units, what it reads and writes, a latency."""
    each = {unit: draw(CYCLES) for unit in draw(st.sets(st.sampled_from(("fma", "l1", "int"))))}
    reads = tuple(draw(st.sets(BUFFERS)))
    unit = draw(st.sampled_from(("fma", "lsu")))
    count, latency = draw(st.integers(1, 3)), draw(CYCLES) * (50 if kind == "async" else 5)
    return Event(
        kind, {**each, "issue": 1}, count=count, latency=latency, unit=unit, reads=reads,
        write=draw(BUFFERS),
    )  # fmt: skip


def plain(kind: Kind, latency: int = 0, pending: int = 0) -> Event:
    return Event(kind, {"issue": 1}, latency=latency, pending=pending)


@st.composite
def bodies(draw: st.DrawFn) -> Tree:
    """A loop's body: copies of a ring with their wait in front, or none; other work; a barrier."""
    pieces = draw(st.lists(works(), min_size=1, max_size=4))
    if draw(st.booleans()):
        pieces.insert(draw(st.integers(0, len(pieces))), plain("sync", draw(CYCLES)))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 2))):
            pieces.insert(draw(st.integers(0, len(pieces))), draw(works("async")))
        pieces = [plain("group", pending=draw(st.integers(0, 3))), *pieces, plain("commit")]
    return tuple(pieces)


@dataclass(frozen=True)
class Edge:
    """``target`` of iteration n comes ``weight`` after ``source`` of iteration n - ``tokens``."""

    source: str
    target: str
    weight: float
    tokens: int


def event_graph(body: Tree, warps: int) -> tuple[Edge, ...]:
    """The recursion of a loop as edges: by the definitions of docs/model.md, not by cost's code."""
    edges: list[Edge] = []
    fence, pending, ends = "begin", 0, ["begin"]
    unit_of: dict[str, str] = {}
    ready_of: dict[str, tuple[str, float]] = {}
    for i, node in enumerate(body):
        assert isinstance(node, Event)
        start, end = f"start {i}", f"end {i}"
        cycles = {unit: float(n) for unit, n in node.cycles.items()}
        latency = float(node.latency)
        if node.kind == "commit":
            continue
        if node.kind == "group":
            fence, pending = end, int(node.pending)
            edges.append(Edge("begin", end, 0, 0))
        elif node.kind == "sync":
            edges += [Edge(earlier, end, latency, 0) for earlier in (fence, *ends)]
            fence = end
        else:
            edges.append(Edge(fence, start, 0, 0))
            edges += [Edge(*ready_of[name][:1], start, ready_of[name][1], 0)
                      for name in node.reads if name in ready_of]  # fmt: skip
            edges += [Edge(unit_of[u], start, 0, 0)
                      for u in cycles if u in unit_of and u not in ("issue", "int")]  # fmt: skip
            busy = max(float(alone(cycles)), longest(cycles, warps))
            edges.append(Edge(start, end, busy, 0))
            unit_of |= dict.fromkeys(cycles, end)
            if node.kind == "async":
                edges.append(Edge(end, "end 0", latency, pending + 1))
            else:
                ready_of[node.write] = (end if node.unit == "lsu" else start, latency)
        ends.append(end)
    return (*edges, *(Edge(end, "begin", 0, 1) for end in ends))


def longest(cycles: Mapping[str, float], warps: int) -> float:
    """The cycles of the busiest unit; those that warps do not all share are one of four each."""
    whole = ("smem", "l1", "shuffle")
    return max(cycles[u] * (warps if u in whole else 4 * ceil(warps / 4)) for u in cycles)


def run(edges: tuple[Edge, ...], turns: int) -> dict[str, list[float]]:
    """Times of each event in each iteration, by the recursion itself."""
    now = nx.DiGraph((e.source, e.target) for e in edges if not e.tokens)
    order = list(nx.topological_sort(now))
    times: dict[str, list[float]] = {event: [] for event in order}
    for n in range(turns):
        for event in order:
            found = [
                times[e.source][n - e.tokens] + e.weight
                for e in edges
                if e.target == event and n >= e.tokens
            ]
            times[event].append(max(found, default=0.0))
    return times


def cycle_ratio(edges: tuple[Edge, ...]) -> float:
    """The largest weight over tokens of a cycle, from a list of all cycles."""
    joint = nx.DiGraph()
    for e in edges:
        assert not joint.has_edge(e.source, e.target) or not e.tokens
        old = joint.get_edge_data(e.source, e.target, {"weight": -inf})["weight"]
        joint.add_edge(e.source, e.target, weight=max(old, e.weight), tokens=e.tokens)
    best = 0.0
    for cycle in nx.simple_cycles(joint):
        steps = [joint[u][v] for u, v in zip(cycle, (*cycle[1:], cycle[0]), strict=True)]
        best = max(best, sum(s["weight"] for s in steps) / sum(s["tokens"] for s in steps))
    return best


def slope(body: Tree, warps: int) -> float:
    """The cycles by which one more trip of the rolled loop lengthens the predicted path."""
    ten, eleven = (float(path((Loop("k", n, body, "rolled"),), warps)) for n in (10, 11))
    return eleven - ten


@settings(max_examples=draws(60, 150))
@given(bodies(), st.integers(1, 4))
def test_the_period_is_the_largest_cycle_ratio(body: Tree, warps: int) -> None:
    """Times grow by max weight/tokens an iteration: short of it by a constant, no more at last."""
    edges = event_graph(body, warps)
    ratio, total = cycle_ratio(edges), sum(e.weight for e in edges)
    times = run(edges, 400)["begin"]
    for n, time in enumerate(times):
        assert ratio * n - total - 1e-6 <= time <= ratio * n + 1e-6
    tokens = prod(range(1, 1 + max(e.tokens for e in edges)))
    assert times[-1] - times[-1 - tokens] == pytest.approx(ratio * tokens, abs=1e-6)


@settings(max_examples=draws(60, 150))
@given(bodies(), st.integers(1, 4))
def test_the_predicted_period_is_the_ratio(body: Tree, warps: int) -> None:
    """cost's period is the largest ratio; the turn lengthens the path, and no ring."""
    apart = not any(isinstance(p, Event) and p.kind == "sync" for p in body)
    walking = 1 if apart else warps  # without a barrier each warp walks its own chain
    work = {unit: float(n) for unit, n in total_work(body).items()}
    busy = longest(work, warps) if apart else 0.0
    turn = FITTED["turn"]
    ratio, predicted = cycle_ratio(event_graph(body, walking)), slope(body, warps)
    wait = next((p for p in body if isinstance(p, Event) and p.kind == "group"), None)
    if wait is None:
        assert predicted == pytest.approx(max(ratio + turn, busy), abs=1e-6)
        return
    once = run(event_graph(body, walking), 2)["begin"][1]  # of one iteration, nothing in flight
    copies = [
        (i, p.latency) for i, p in enumerate(body) if isinstance(p, Event) and p.kind == "async"
    ]
    first = run(event_graph(body, walking), 1)
    rings = [(first[f"end {i}"][0] + latency) / (wait.pending + 1) for i, latency in copies]
    assert ratio == pytest.approx(max(once, *rings), abs=1e-6)
    assert predicted == pytest.approx(max(once + turn, busy, *rings), abs=1e-6)


@cache
def features_of(point: str) -> Features:
    values, sizes, device = POINTS[point]
    return features(Simt().program(matmul(), Chosen(values)), sizes, device)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Some work, then straight work, loops and unrolled loops in turns."""
    found: list[Node] = [plain("do")]
    for i in range(draw(st.integers(1, 3))):
        body = draw(bodies())
        if draw(st.booleans()):
            inner = Loop("j", draw(st.integers(0, 4)), own(draw(bodies()), f"j{i}"), "unrolled")
            body = (*body[:2], inner, *body)
        match draw(st.sampled_from(("straight", "rolled", "unrolled"))):
            case "straight":
                found += body
            case "rolled":
                found.append(Loop("k", draw(st.integers(0, 9)), body, "rolled"))
            case "unrolled":
                found.append(Loop("k", draw(st.integers(0, 9)), own(body, f"k{i}"), "unrolled"))
    return tuple(found)


def own(body: Tree, mark: str) -> Tree:
    """The body with results of its own: without it, no earlier result is waited for instead."""

    def one(node: Node) -> Node:
        if not isinstance(node, Event):
            return replace(node, body=own(node.body, mark))
        reads = (*node.reads, *(r + mark for r in node.reads))
        return replace(node, write=node.write + mark, reads=reads)

    return tuple(map(one, body))


def eased(found: Features, choose: Callable[[int], float]) -> Features:
    """The features with their i-th number made at most (what saves time: at least) itself."""
    met = iter(range(1 << 30))

    def less(number: Number) -> Number:
        return number * (1 - choose(next(met)))

    def more(number: Number) -> Number:
        return number * (1 + choose(next(met))) + choose(next(met))

    return found.mapped(less, more)


def only(number: int) -> Callable[[int], float]:
    """Ease one number and leave the others."""
    return lambda i: 0.9 * (i == number)


@pytest.mark.parametrize("point", POINTS)
@settings(max_examples=draws(16, 40))
@given(seed=st.integers(0, 1 << 30))
def test_time_is_monotone_in_many_features_at_once(point: str, seed: int) -> None:
    """Whatever costs less and saves more, of a real term, takes no longer."""
    rng = np.random.default_rng(seed)
    shares = 0.99 * rng.random(1 << 12) * (rng.random(1 << 12) < rng.random() ** 2)
    before = features_of(point)
    after = eased(before, lambda i: float(shares[i]))
    assert predict(after).seconds <= predict(before).seconds * (1 + 1e-9)


@pytest.mark.parametrize("point", POINTS)
def test_time_is_monotone_in_each_feature_and_not_constant_in_all(point: str) -> None:
    """Easing one number of a real term never lengthens its time; easing some shortens it."""
    before, numbers = features_of(point), 0

    def count(i: int) -> float:
        nonlocal numbers
        numbers = i + 1
        return 0.0

    eased(before, count)
    assert numbers > 50
    start = float(predict(before).seconds)
    times = [float(predict(eased(before, only(j))).seconds) for j in range(numbers)]
    assert max(times) <= start * (1 + 1e-9)
    assert min(times) < start


@settings(max_examples=draws(80, 200))
@given(trees(), st.integers(0, 1 << 30), st.sampled_from((0.1, 0.5, 1.0)))
def test_time_is_monotone_on_any_tree(tree: Tree, seed: int, often: float) -> None:
    """Monotone as a function, not only on the trees that machines build."""
    rng = np.random.default_rng(seed)
    shares = rng.random(1 << 12) * (rng.random(1 << 12) < often)
    tuned = features_of("tuned")
    before = replace(tuned, agents=(replace(tuned.agents[0], after=tree),))
    after = eased(before, lambda i: 0.9 * float(shares[i]))
    assert float(path(after.tree, 8)) <= float(path(tree, 8)) * (1 + 1e-9)
    none = eased(before, lambda i: float(shares[i] > 0.5))
    assert float(path(none.tree, 8)) <= float(path(tree, 8)) * (1 + 1e-9)
    assert predict(after).seconds <= predict(before).seconds * (1 + 1e-9)


@settings(max_examples=draws(120, 300))
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), max_size=4), st.data())
@example([(2, 1), (2, 1)], None)
def test_modes_cover_once_exactly_if_they_are_a_mixed_radix(
    modes: list[tuple[int, int]], data: st.DataObject | None
) -> None:
    """Each of 0 .. N-1 is met once if and only if every step is the product of what is below."""
    if data is not None and data.draw(st.booleans()):  # few random steps are a mixed radix
        extents = [extent for extent, _ in modes]
        modes = [(extent, prod(extents[:i])) for i, extent in enumerate(extents)]
        modes = data.draw(st.permutations(modes))
    touched = [0]
    for extent, step in modes:
        touched = [x + i * step for x in touched for i in range(extent)]
    holds, count = exactly_once(modes)
    assert count == len(touched)
    assert bool(holds) == (sorted(touched) == list(range(int(count))))
