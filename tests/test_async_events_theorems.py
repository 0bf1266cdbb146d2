"""The theorems on asynchronous programs, each against something slower.

Clocks against paths in an explicit graph; the points that decide against boxes around them.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import product
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.async_mutants import mutants
from tinygpu.agents import TILES, Agent, unfold
from tinygpu.conditions import hazards
from tinygpu.contributions import sends
from tinygpu.events import concurrency_key, verdict
from tinygpu.images import images
from tinygpu.machine import Chosen
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.operation import matmul
from tinygpu.ordering import order
from tinygpu.program import Affine, Program, var
from tinygpu.protocol import Act, Crew, Guard, Loop, Protocol, Ring, Tiles, Touch
from tinygpu.synchronization import Arrive, Barrier, Commit, Sync, Wait, WaitGroup
from tinygpu.tile_window import tile_window

PERSISTENT = ("persistent", "pingpong")


@cache
def hopper(start: str, **changes: Any) -> Program:
    return Hopper().program(matmul("bf16", layout="nt"), Chosen({**STARTS[start], **changes}))


def protocol(start: str, **changes: Any) -> Protocol:
    key = concurrency_key(hopper(start, **changes))
    assert isinstance(key, Protocol)
    return key


@cache
def faulty(start: str) -> tuple[tuple[str, Program], ...]:
    small = {"stages": 2, "in_flight": 1, "store_n": 64, "tile_n": 64, "store_stages": 2}
    return tuple(mutants(hopper(start, **small if start in PERSISTENT else {})))


def paths(agents: tuple[Agent, ...], found: Protocol) -> nx.DiGraph:
    """The event graph with all its nodes and edges, built from the events by the rules alone."""
    graph = nx.DiGraph()
    gives: dict[Any, list[Any]] = defaultdict(list)
    asks: dict[Any, list[Any]] = defaultdict(list)
    products: dict[Any, list[Any]] = defaultdict(list)
    told = sends(agents, images(found.cluster)).phases
    for number, agent in enumerate(agents):
        last: Any = None
        groups: dict[str, list[list[Any]]] = defaultdict(lambda: [[]])
        syncs: dict[Any, int] = defaultdict(int)
        multiplied = 0
        for position, event in enumerate(agent.events):
            node, issue, passed = event.node, (number, position, 0), (number, position, 1)
            graph.add_edge(issue, passed)
            if last:
                graph.add_edge(last, issue)
            last = passed
            for phase in told.get((number, position), ()):
                gives[phase].append(passed)  # no wait: it is done when issued
            match node:
                case Act(kind="product"):
                    mine = (agent.cta, agent.crew.name, agent.copy, multiplied)
                    multiplied += 1
                    products[mine].append(passed)
                    groups["wgmma"][-1].append(mine)
                case Act(kind="store"):
                    groups["bulk"][-1].append((number, position))
                case Commit(group):
                    groups[group].append([])
                case Wait(barrier):
                    asks[agent.cta, barrier.name, event.at].append(passed)
                case WaitGroup(pending, group):
                    older = groups[group][: max(0, len(groups[group]) - 1 - pending)]
                    for flight in (f for g in older for f in g):
                        graph.add_edge(("done", flight), passed)
                case Sync(scope=scope):
                    key: Any = (node, None if scope == "cluster" else agent.cta)
                    if scope == "role":
                        key = (*key, agent.crew.name, agent.copy)
                    turn = (key, syncs[key])
                    syncs[key] += 1
                    graph.add_edge(issue, ("all", turn))
                    graph.add_edge(("all", turn), passed)
                case _:
                    pass
    for flight, issues in products.items():
        for issue in issues:
            graph.add_edge(issue, ("done", flight))
    for phase, passes in asks.items():
        for given_, passed in product(gives[phase], passes):
            graph.add_edge(given_, passed)
    return graph


@pytest.mark.parametrize(
    ("start", "tiles"), [("ring", 1), ("tma store", 1), ("persistent", 2), ("pingpong", 3)]
)
@pytest.mark.parametrize("trips", [1, 3])
def test_clocks_are_paths(start: str, tiles: int, trips: int) -> None:
    """An event comes before another's issue by their clocks if and only if a path leads there."""
    found = protocol(start)
    agents = unfold(found, {TILES: tiles, "trips": trips})
    graph = paths(agents, found)
    assert nx.is_directed_acyclic_graph(graph)
    every = images(found.cluster)
    ordered = order(agents, every, sends(agents, every))
    places = [(n, p) for n, a in enumerate(agents) for p in range(len(a.events))]
    for one in places[::5]:
        reached = nx.descendants(graph, (*one, 1)) | {(*one, 1)}
        for two in places:
            assert ordered.before([one], two) == ((*two, 0) in reached), (one, two)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_points_decide_every_number_of_tiles_and_trips(data: Any) -> None:
    """Whatever is illegal at some numbers, in or beyond the window, is illegal by the verdict."""
    start = data.draw(st.sampled_from(("ring", *PERSISTENT)))
    name, program = data.draw(st.sampled_from(faulty(start)))
    got = verdict(program)
    key = concurrency_key(program)
    assert isinstance(key, Protocol)
    most = dict(tile_window(key)[0].most)
    trips = data.draw(st.integers(1, most["trips"] + 4))
    beyond = most[TILES] + 3 if key.persistent else 1
    tiles = data.draw(st.integers(0, beyond))
    if hazards(key, {TILES: tiles, "trips": trips}):
        assert not got.legal, (name, tiles, trips)


@pytest.mark.parametrize("start", PERSISTENT)
def test_fewer_tiles_have_no_faults_of_their_own(start: str) -> None:
    """What is illegal with some tiles is illegal with more: a run is a part of a longer one."""
    for name, program in faulty(start)[::6]:
        key = concurrency_key(program)
        assert isinstance(key, Protocol)
        for trips in (1, 2, 5):
            legal = [not hazards(key, {TILES: t, "trips": trips}) for t in range(6)]
            assert legal == sorted(legal, reverse=True), (name, trips)


@pytest.mark.parametrize("start", PERSISTENT)
def test_every_window_over_steps_occurs(start: str) -> None:
    """For each number of trips the most tiles turn the rings twice, and end inside a third tile."""
    for stages in (2, 5):
        _, points = tile_window(protocol(start, stages=stages))
        for trips in range(1, 2 * stages + 3):
            tiles = max(p[TILES] for p in points if p["trips"] == trips)
            assert tiles * trips >= 2 * stages + 2 * trips


def small(*, release: int, bound: int | str = "trips", step: int = 1) -> Protocol:
    """A producer and a consumer over one ring of two stages, without the machine."""
    full, empty = Barrier("full", 2, 1), Barrier("empty", 2, 128)
    ring, n = Ring("x", 2, "cta"), step * var("k")
    load = Act("load", "load", (Touch(ring, n, True),), (full, n), "", 1)
    read = Act("read", "generic", (Touch(ring, n, False),))
    give = (Wait(empty, n + -2), Arrive(full, n, 1), load)
    take = (Wait(full, n), read, Guard(var("k") + 0, bound, (Arrive(empty, n + release),)))
    crews = (
        Crew("producer", 1, 1, "", (Loop("k", 0, "trips", give),)),
        Crew("consumer", 128, 1, "", (Loop("k", 0, "trips", take),)),
    )
    return Protocol(crews, (), False, (("trips", 1),))


def test_a_small_ring() -> None:
    box, points = tile_window(small(release=0))
    assert not box.doubt
    assert not any(hazards(small(release=0), p) for p in points)
    assert any(hazards(small(release=1), p) for p in points)


@pytest.mark.parametrize(
    ("term", "doubt"),
    [
        (small(release=0, step=2), "neither steps nor tiles"),
        (small(release=-3), "looks ahead"),
    ],
)
def test_what_the_theorem_excludes_is_in_doubt(term: Protocol, doubt: str) -> None:
    box, points = tile_window(term)
    assert doubt in box.doubt
    assert points


def test_tiles_that_are_taken_unevenly_are_in_doubt() -> None:
    body = (Tiles("t", "i", Affine(1), 2, ()),)
    term = Protocol((Crew("all", 128, 1, "w", body),), (), True, ())
    assert "takes tiles" in tile_window(term)[0].doubt
