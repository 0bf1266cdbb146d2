"""The time of programs with barriers: recursion, residence, search."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.hopper_points import TABLES, program_of
from benchmarks.peers import FOLDER, load_rows
from tests.sample import by_turns, some
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.wgmma import PRODUCTS
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.search.exact.best import rank
from tinygpu.search.exact.scorer import Scorer
from tinygpu.search.explain.causes import causes
from tinygpu.search.explain.explain import explain
from tinygpu.search.explain.mends import KINDS, TimeView
from tinygpu.search.time.cost import Placed, cost, features
from tinygpu.search.time.recursion import Recursion, numbers, span_cycles
from tinygpu.search.time.work import Event, Loop, Node, TimedAgent, agents
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

H200 = load_device("h200")
SQUARE = {"m": 4096, "n": 4096, "k": 4096}


def term(name: str, **changes: Any) -> Program:
    return Hopper().program(matmul("bf16", layout="nt"), Chosen({**STARTS[name], **changes}))


def seconds(program: Program, sizes: dict[str, int] = SQUARE, device: Device = H200) -> float:
    return float(cost(program, sizes, device).seconds)


def with_latency(found: tuple[TimedAgent, ...], latency: float) -> tuple[TimedAgent, ...]:
    """Give loads a latency, which the launch decides."""

    def late(node: Node) -> Node:
        if isinstance(node, Event) and node.kind == "load":
            return replace(node, latency=latency)
        return node

    return tuple(a.with_trees(lambda tree: tuple(map(late, tree))) for a in found)


def simulated(found: tuple[TimedAgent, ...], tiles: int, steps: int) -> float:
    """Follow one CTA by events in order of time: each unit serves whoever comes first.

    It knows neither steps in lockstep nor periods: agents are threads of a discrete simulation,
    one for each copy, that block on phases; releases count arrivals.
    """
    heap: list[tuple[float, int, Any]] = []
    free = {"tensor": 0.0, "tma": 0.0, "fill": 0.0, "smem": 0.0}
    phases: dict[tuple[str, int], float] = {}
    counts: dict[tuple[str, int], int] = {}
    needed = {"full": 3, "empty": 1, "turn": 1}  # expect and two loads; a release by each copy
    ends: list[float] = []
    for agent in found:
        if agent.name == "consumer" and agent.step == 1:
            needed["empty"] = int(agent.together)

    def arrive(barrier: str, index: int, at: float) -> None:
        key = (barrier, index)
        counts[key] = counts.get(key, 0) + 1
        phases[key] = max(phases.get(key, 0.0), at)

    def run(agent: TimedAgent, copy: int) -> Any:
        now, groups, done = 0.0, [], 0.0
        first = copy if agent.step > 1 else 0

        def nodes(body: tuple[Node, ...], known: dict[str, Any]) -> Any:
            nonlocal now, done
            for node in body:
                if isinstance(node, Loop) and node.form == "serial":
                    now += float(node.trips * span_cycles(node.body))
                elif isinstance(node, Loop):
                    for i in range(int(node.trips)):
                        yield from nodes(node.body, {**known, node.var: i})
                elif not isinstance(node, Event):
                    bound = known[node.bound] if isinstance(node.bound, str) else node.bound
                    if node.index.evaluate(known) < bound:
                        yield from nodes(node.body, known)
                elif node.kind == "wait":
                    key = (node.barrier, node.index.evaluate(known))
                    while key[1] >= 0 and counts.get(key, 0) < needed[node.barrier]:
                        yield None
                    now = max(now, phases.get(key, 0.0) if key[1] >= 0 else 0.0)
                    now += float(node.cycles["serial"])
                    yield now
                elif node.kind == "arrive":
                    now += float(node.cycles["serial"])
                    arrive(node.barrier, node.index.evaluate(known), now + float(node.latency))
                    yield now
                elif node.kind == "load":
                    now += float(node.cycles["serial"])
                    start = max(free["tma"], now)
                    free["tma"] = start + float(node.cycles["tma"])
                    come = max(free["fill"], start) + float(node.cycles["fill"])
                    free["fill"] = max(come, free["tma"])
                    free["smem"] += float(node.cycles["smem"])
                    landed = free["fill"] + float(node.latency)
                    arrive(node.barrier, node.index.evaluate(known), landed)
                    yield now
                elif node.kind == "product":
                    yield now
                    start = max(now, free["tensor"])
                    free["smem"] = max(free["smem"], start) + float(node.cycles["smem"])
                    free["tensor"] = max(start + float(node.cycles["tensor"]), free["smem"])
                    done = free["tensor"] + float(node.latency)
                elif node.kind == "commit" and node.group == PRODUCTS:
                    groups.append(done)
                elif node.kind == "group" and node.group == PRODUCTS:
                    older = groups[: len(groups) - int(node.pending)]
                    now = max(now, older[-1] if older else 0.0)
                    yield now
                elif node.kind in ("work", "store"):
                    now += float(node.cycles["serial"])

        for turn, tile in enumerate(range(first, tiles, int(agent.step))):
            known = {agent.tile: tile, agent.turn: turn, agent.copy: copy, agent.steps: steps}
            for loop in agent.loops:
                yield from nodes(loop.before, known)
                for step in range(steps):
                    yield from nodes(loop.body, {**known, loop.var: step})
            yield from nodes(agent.after, known)
        ends.append(now)

    order = 0
    for agent in found:
        for copy in range(int(agent.together if agent.step == 1 else agent.step)):
            heapq.heappush(heap, (0.0, order, run(agent, copy)))
            order += 1
    blocked: list[tuple[float, int, Any]] = []
    while heap:
        at, number, thread = heapq.heappop(heap)
        for moved in thread:
            if moved is None:
                blocked.append((at, number, thread))
            else:
                heapq.heappush(heap, (moved, number, thread))
            break
        else:
            moved = 0.0
        if moved is not None:
            for waiting in blocked:
                heapq.heappush(heap, waiting)
            blocked.clear()
    assert not blocked
    return max(ends)


def test_the_recursion_agrees_with_a_simulation() -> None:
    """In lockstep and at a period, it takes as long as event by event: 3 % apart in the mean."""
    rng = np.random.default_rng(5)
    names = ("plain", "ring", "two consumers", "persistent", "pingpong", "swapped")
    errors = []
    for i in range(90):
        stages = int(rng.integers(2, 9))
        in_flight = min(int(rng.integers(0, 3)), stages - 1)
        program = term(names[i % len(names)], stages=stages, in_flight=in_flight)
        found = with_latency(agents(program, H200, SQUARE), float(rng.choice([50, 700, 2500])))
        tiles, steps = int(rng.integers(1, 8)), int(rng.integers(1, 41))
        predicted = float(Recursion(found)(1, tiles, steps, stages, *numbers(found)))
        errors.append(abs(predicted / simulated(found, tiles, steps) - 1))
    assert max(errors) < 0.15
    assert float(np.mean(errors)) < 0.03


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["ring", "two consumers", "cluster", "pingpong"]),
    st.integers(4, 8), st.integers(0, 2), st.floats(100.0, 3000.0), st.integers(1, 6),
    st.integers(1, 120),
)  # fmt: skip
@example("ring", 4, 1, 540.0, 1, 92)  # a turn of four steps, seen in windows of three
def test_more_of_anything_is_not_faster(
    name: str, stages: int, in_flight: int, latency: float, tiles: int, steps: int
) -> None:
    """A longer latency, another tile or step, another CTA on the SM: never less time."""
    program = term(name, stages=stages, in_flight=in_flight)
    found = with_latency(agents(program, H200, SQUARE), latency)
    late = with_latency(found, 2 * latency)

    def cycles(of: tuple[TimedAgent, ...], share: float, tiles: int, steps: int) -> float:
        return float(Recursion(of)(share, tiles, steps, stages, *numbers(of)))

    here = cycles(found, 1, tiles, steps) * (1 - 1e-9)
    assert cycles(late, 1, tiles, steps) >= here
    assert cycles(found, 2, tiles, steps) >= here
    assert cycles(found, 1, tiles + 1, steps) >= here
    assert cycles(found, 1, tiles, steps + 1) >= here


@pytest.mark.parametrize("name", ["ring", "cluster", "pingpong"])
def test_another_step_is_not_faster(name: str) -> None:
    """At no step of a long loop, wherever in its turn the recursion stops following it."""
    steps = np.arange(1, 400)
    for stages, in_flight in ((4, 0), (4, 1), (5, 2), (8, 1)):
        found = agents(term(name, stages=stages, in_flight=in_flight), H200, SQUARE)
        for latency in (300.0, 540.0, 1031.4, 2575.0):
            late = with_latency(found, latency)
            for tiles in (1, 4):
                cycles = np.asarray(Recursion(late)(1, tiles, steps, stages, *numbers(late)))
                assert np.all(np.diff(cycles) >= -1e-9 * cycles[1:])


def test_ctas_share_an_sm() -> None:
    """Two CTAs on an SM take twice as long where a unit is the limit, and less where latency is."""
    for name, unit in (("two consumers", "tensor"), ("ring", "smem")):
        found = with_latency(agents(term(name), H200, SQUARE), 500.0)
        one, two = (Recursion(found)(n, 1, 2000, 4, *numbers(found)) for n in (1, 2))
        assert two == pytest.approx(2 * one, rel=0.01), unit
    far = with_latency(found, 20_000.0)
    one, two = (Recursion(far)(n, 1, 2000, 4, *numbers(far)) for n in (1, 2))
    assert two < 1.3 * one


@pytest.mark.parametrize("name", ["ring", "two consumers", "persistent", "swapped"])
def test_periods_are_as_good_as_steps(name: str) -> None:
    """Going on at the period gives what following every step of every tile gives."""
    for stages, in_flight, latency in ((2, 1, 700.0), (3, 0, 2500.0), (4, 1, 2500.0), (7, 2, 60.0)):
        program = term(name, stages=stages, in_flight=in_flight)
        found = with_latency(agents(program, H200, SQUARE), latency)
        for tiles, steps in ((2, 40), (3, 77), (9, 3)):
            quick = Recursion(found)(1, tiles, steps, stages, *numbers(found))
            whole = Recursion(found)(1, tiles, steps, 128, *numbers(found))  # no ring is as long
            assert quick == pytest.approx(whole, rel=0.02)


def test_the_last_copy_releases() -> None:
    """With a stage to spare for neither, a load waits for the slower of two consumers."""
    found = with_latency(agents(term("two consumers", stages=2, in_flight=0), H200, SQUARE), 700.0)
    here = Recursion(found)(1, 1, 4, 2, *numbers(found))
    assert here == pytest.approx(simulated(found, 1, 4), rel=0.01)


@pytest.mark.parametrize(("name", "steps"), by_turns(STARTS, [1, 5, 64]))
def test_a_space_is_its_schedules(name: str, steps: int) -> None:
    """Arrays over decisions give each schedule the time that its own program has."""
    tile_n = STARTS[name]["tile_n"]
    choices = {"stages": (3, 4), "in_flight": (0, 1, 2), "raster": (1, 8), "tile_k": (64, 128)}
    arrays = {
        key: np.array(values).reshape([-1 if i == j else 1 for j in range(len(choices))])
        for i, (key, values) in enumerate(choices.items())
    }
    sizes = {"m": 1000, "n": 5 * int(tile_n) + 8, "k": 64 * steps}
    together = cost(term(name, **arrays), sizes, H200)
    every = np.broadcast_to(together.seconds, [len(v) for v in choices.values()])
    for index in np.ndindex(every.shape):
        chosen = {key: values[i] for (key, values), i in zip(choices.items(), index, strict=True)}
        assert every[index] == pytest.approx(seconds(term(name, **chosen), sizes), rel=1e-9)


def test_best_is_brute_force() -> None:
    """The exact search finds the least times of all schedules, and its floor is below each."""
    fixed = {
        **STARTS["persistent"], "tile_m": (64, 128), "tile_n": (128, 256), "consumers": (1, 2),
        "stages": some((2, 3, 4), 2), "in_flight": (0, 1), "cluster_m": (1, 2), "raster": (1, 8),
        "store_n": (32, 64), "persistent": (0, 1), "consume": ("cooperative", "pingpong"),
    }  # fmt: skip
    problem = Problem.of(matmul("bf16", layout="nt"), m=2048, n=1536, k=640)
    space = Space(Hopper(), problem, H200, fixed=fixed)
    every = []
    for schedule in space:
        found = cost(schedule.program(space.machine, problem.operation), problem.sizes, H200)
        assert found.floor is not None
        assert 0 < float(found.floor) <= float(found.seconds)
        every.append(float(found.seconds))
    every.sort()
    assert len(every) > 100
    for k in (1, 9):
        assert [r.seconds for r in rank(space, k).best] == pytest.approx(every[:k], rel=1e-9)


def test_bounds_hold() -> None:
    """A bound of chosen decisions is at most the time of every schedule below it."""
    fixed = {
        **STARTS["persistent"], "tile_m": (64, 128), "tile_n": (128, 256), "in_flight": (0, 1, 2),
        "stages": (2, 3, 4), "consumers": (1, 2), "cluster_m": (1, 2, 4), "persistent": (0, 1),
    }  # fmt: skip
    problem = Problem.of(matmul("bf16", layout="nt"), m=1024, n=1536, k=640)
    space = Space(Hopper(), problem, H200, fixed=fixed)
    rng = np.random.default_rng(3)
    for batch in space.batches():
        scorer = Scorer(batch, space)
        points = space.points(batch, rng, 50)
        exact = scorer.seconds(points)
        order = [
            int(i) for i in rng.permutation([i for i, n in enumerate(scorer.lengths) if n > 1])
        ]
        for count in range(len(order) + 1):
            bound = scorer.bound(points, order, count)
            assert (bound <= exact * (1 + 1e-9)).all()
        assert bound == pytest.approx(exact, rel=1e-9)


def test_residence() -> None:
    """Clusters of one and two fill the chip; larger ones do not fit into each GPC."""
    at_once = {
        (1, 1): 132, (2, 1): 66, (2, 2): 30, (4, 2): 15, (4, 4): 7,
    }  # fmt: skip
    for (m, n), clusters in at_once.items():
        found = features(term("cluster", cluster_m=m, cluster_n=n), SQUARE, H200)
        assert int(found.launch.clusters()) == clusters
    two = features(term("swapped", ctas_per_sm=2), SQUARE, H200)
    assert int(two.launch.clusters()) >= 264


@pytest.mark.parametrize(
    ("size", "ctas", "fit", "busiest"),
    [
        (1, 256, 4, 2), (1, 264, 1, 2), (2, 128, 1, 1), (2, 176, 4, 2), (2, 512, 4, 4),
        (4, 64, 1, 1), (4, 120, 1, 1), (4, 128, 1, 2), (4, 128, 4, 2), (4, 256, 7, 3),
        (4, 264, 4, 3), (4, 512, 7, 5), (8, 128, 1, 2), (8, 256, 3, 3), (8, 512, 7, 5),
    ],
)  # fmt: skip
def test_the_busiest_sm(size: int, ctas: int, fit: int, busiest: int) -> None:
    """As an H200 placed clusters of spinning CTAs: the most that an SM had, in all rounds."""
    smem = H200.smem_bytes_per_sm // fit - H200.smem_reserved_bytes_per_cta
    found = features(term("ring"), SQUARE, H200)
    launch = replace(
        found.launch,
        extents=(float(ctas // size),), axes=("br",), cluster=float(size),
        smem_bytes=float(smem), allotted=8192.0, threads=256.0,
    )  # fmt: skip
    place = Placed.of(replace(found, launch=launch))
    assert (place.share, place.waves * place.share) == (min(fit, busiest), busiest)


@pytest.mark.parametrize("row", load_rows("hopper_sizes", FOLDER.parent / "h100"), ids=str)
def test_measured(row: dict[str, Any]) -> None:
    """Two schedules at sizes that nothing was fitted on, alone on an H100: within a tenth."""
    sizes = {axis: row[axis] for axis in "mnk"}
    here = seconds(program_of(row), sizes, load_device("h100"))
    assert here == pytest.approx(row["alone_seconds"], rel=0.1)


@pytest.mark.parametrize("row", load_rows("hopper_stores", FOLDER.parent / "h100"), ids=str)
def test_lines_that_are_stored_cost_l2_each(row: dict[str, Any]) -> None:
    """However narrow: 16 B a line take twice as long as 128 B; alone on an H100, within a fifth."""
    sizes = {axis: row[axis] for axis in "mnk"}
    here = cost(program_of(row), sizes, load_device("h100"))
    assert float(here.seconds) == pytest.approx(row["alone_seconds"], rel=0.2)
    if row["alone_seconds"] > 260e-6 and row["k"] == 512:
        assert here.bottleneck == "l2"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_rows_that_were_measured(name: str) -> None:
    """Each once, in some order, and what was measured beside it."""
    rows = load_rows(name, FOLDER.parent / "h100")
    drawn = [{n: v for n, v in row.items() if not n.startswith("alone_")} for row in rows]
    assert sorted(map(str, drawn)) == sorted(str(dict(row)) for row in TABLES[name].rows)


def test_what_decides() -> None:
    """Named bottlenecks: DRAM for few rows, the power cap for squares; latency without a ring."""
    few = {"m": 16, "n": 4096, "k": 4096}
    assert cost(term("swapped"), few, H200).bottleneck == "dram"
    assert seconds(term("swapped"), few) == pytest.approx(11e-6, rel=0.15)
    assert cost(term("cluster"), SQUARE, H200).bottleneck == "power"
    found = [one.name for one in causes(TimeView.of(term("plain"), SQUARE, H200))]
    assert "latency of loads" in [name for name in found if KINDS[name].shown][:3]
    assert seconds(term("plain")) > 1.5 * seconds(term("cluster"))


def test_multicast_and_depth_help() -> None:
    """A cluster asks L2 for less; a deeper ring hides a longer latency, a single stage less."""
    one, two = (features(term("cluster", cluster_m=n), SQUARE, H200) for n in (1, 2))
    asked = [
        sum(e.fetched_bytes for e in s.agents[0].body if isinstance(e, Event)) for s in (one, two)
    ]
    assert asked[0] == 48 * 1024
    assert 32 * 1024 <= asked[1] < 48 * 1024
    far = H200.with_values(l2_latency_cycles=5000, dram_latency_cycles=5000)
    times = [seconds(term("ring", stages=n), device=far) for n in (2, 3, 4, 6)]
    assert times == sorted(times)[::-1]
    assert times[0] > 2 * times[-1]


def test_limits() -> None:
    """A device without a limit is not slower, and what an explanation names is what holds."""
    timed = TimeView.of(term("cluster"), SQUARE, H200)
    found = causes(timed)
    assert [c.saves_seconds for c in found] == sorted(c.saves_seconds for c in found)[::-1]
    assert found[0].name == "power"
    assert all(0 <= c.saves_seconds < timed.seconds for c in found)
    assert {"rate of tensor cores", "waves and tail", "launch"} <= {c.name for c in found}
    problem = Problem.of(matmul("bf16", layout="nt"), **SQUARE)
    said = str(explain(Schedule.of(Hopper(), STARTS["ring"]), Hopper(), problem, H200))
    for words in ("tensor peak", "port of shared memory", "persistent", "1024 tiles, 132 at once"):
        assert words in said


def test_another_form_is_refused() -> None:
    """A role with two loops over tiles, or none, is no agent."""
    program = term("plain")
    consumer, producer = program.roles
    for body in (consumer.body * 2, consumer.body[1:]):
        odd = replace(program, roles=(replace(consumer, body=body), producer))
        with pytest.raises(ProgramError, match="one loop over tiles"):
            cost(odd, SQUARE, H200)
