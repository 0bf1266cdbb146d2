"""Loops that z3 pipelines: what it finds keeps the rules, nothing takes less, in seconds."""

from __future__ import annotations

import time
from itertools import pairwise, permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import draws
from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.search.strategies.smt import FIXED, _loop, pipeline
from tinygpu.space.solve import Pipeline, Variant, pipelined
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul

ISSUE = 1
STATEMENTS = {
    "load": ("fill", ("producer", "consumer"), ISSUE),
    "wait": ("", ("consumer",), ISSUE),
    "multiply": ("tensor", ("consumer",), ISSUE),
}


def rules(latency: int) -> tuple[list[tuple[str, str, int, str]], tuple[list[str], str, int]]:
    after = [("load", "wait", latency, "landed"), ("wait", "multiply", ISSUE, "waited")]
    return after, (["load"], "multiply", 0)


def kept(found: Pipeline, statements: Any, after: Any, ring: Any) -> None:
    """Assert each rule of a loop on the numbers of a pipeline, by following many steps of it."""
    times, busy, turn = found.times, found.variant.busy, found.interval
    assert found.stages <= found.variant.stages
    for a, b, cycles, _ in after:
        assert times[b] >= times[a] + busy.get(a, 0) + cycles
    fills, frees, cycles = ring
    for one in fills:
        assert times[one] + found.stages * turn >= times[frees] + busy.get(frees, 0) + cycles
    for what, spans in (
        ("unit", [(s[0], n, busy.get(n, 0)) for n, s in statements.items() if s[0]]),
        ("role", [(found.roles[n], n, max(1, s[2])) for n, s in statements.items()]),
    ):
        for name in {one[0] for one in spans}:
            taken = [
                (times[n] + i * turn, times[n] + i * turn + length)
                for of, n, length in spans
                if of == name
                for i in range(40)
            ]
            taken.sort()
            assert all(end <= start for (_, end), (start, _) in pairwise(taken)), (what, name)


def fewest(variants: list[Variant], latency: int) -> int:
    """Return the fewest cycles by trying all times: the loads' start is 0."""
    best = 10**9
    for variant in variants:
        load, mma = variant.busy["load"], variant.busy["multiply"]
        for turn in range(max(load, mma, 1), 40):
            if turn * variant.work >= best:
                break
            start = load + latency  # the wait at the earliest, or up to a turn later
            for wait, later, alone in product(range(turn), range(turn), (True, False)):
                at = start + wait
                multiply = at + ISSUE + later
                mine = [at % turn, multiply % turn] + ([] if alone else [0])
                apart = all(a != b for a, b in permutations(mine, 2))
                if apart and variant.stages * turn >= multiply + mma:
                    best = turn * variant.work
                    break
    return best


@settings(max_examples=draws(10, 25), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 9),
)
def test_nothing_takes_fewer_cycles(rows: list[tuple[int, int, int, int]], latency: int) -> None:
    """Against all times of small loops; one cycle less has a core, each rule of which is needed."""
    variants = [
        Variant((("tile_m", i),), {"load": load, "multiply": mma}, stages, work)
        for i, (load, mma, stages, work) in enumerate(rows)
    ]
    after, ring = rules(latency)
    found = pipelined(STATEMENTS, after, ring, variants)
    assert found is not None
    kept(found, STATEMENTS, after, ring)
    assert found.proven
    assert found.interval * found.variant.work == fewest(variants, latency)
    assert found.interval == 1 or found.core


@pytest.mark.parametrize("name", ["hopper", "blackwell"])
@pytest.mark.parametrize("m", [4096, 300])
def test_a_matmul_takes_under_ten_seconds(name: str, m: int) -> None:
    """Its tile, order, distances, stages and roles are proven; the schedule of them is legal."""
    device = load_device({"hopper": "h200", "blackwell": "b200"}[name])
    problem = Problem.of(matmul("bf16", layout="nt"), m=m, n=4096, k=4096)
    space = Space(MACHINES[name], problem, device)
    start = time.perf_counter()
    both = pipeline(space)
    assert time.perf_counter() - start < 10
    assert both is not None
    found, schedule = both
    product_ = "wgmma" if name == "hopper" else "tcgen05.mma"
    kept(found, *_loop(space, product_))
    assert found.proven
    assert set(found.core) & {"unit tensor", "unit fill"}
    assert schedule["stages"] == found.stages
    assert all(schedule[n] == value for n, value in found.variant.decisions)
    check_schedule(schedule, space.machine, problem, device)
    if m == 4096:  # the units of large tiles are the bound, and loads have a role of their own
        assert found.core == ("unit tensor",)
        assert found.interval == max(found.variant.busy.values())
        assert found.roles["load x"] == "producer"


def test_stages_that_do_not_fit_are_to_blame() -> None:
    """With two stages a long latency is not hidden, and the core says why."""
    after, ring = rules(latency=30)
    few = Variant((), {"load": 2, "multiply": 4}, 2, 1)
    found = pipelined(STATEMENTS, after, ring, [few])
    assert found is not None
    assert found.interval == 19  # (2 + 30 + 1 + 4 cycles) / 2 stages
    assert "stages fit shared memory" in found.core
    assert "landed" in found.core
    assert "unit tensor" not in found.core


def test_machines_without_such_a_loop_have_none() -> None:
    problem = Problem.of(matmul(), m=64, n=64, k=64)
    assert pipeline(Space(MACHINES["simt"], problem, load_device("h200"))) is None
    assert set(FIXED) == {"hopper", "blackwell"}
