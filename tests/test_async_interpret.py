"""The interpreter of asynchronous programs: hopper's are right, and every mutant is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tinygpu.interpret import check, interpret, reduced
from tinygpu.machine import Chosen
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.operation import Problem, matmul
from tinygpu.program import (
    Access,
    Arrive,
    Do,
    Elect,
    For,
    ForTile,
    Program,
    Statement,
    Wait,
    WaitGroup,
    When,
)

LAYOUTS = ("nn", "nt", "tn", "tt")
SMALL: dict[str, Any] = {
    **STARTS["tma store"], "tile_m": 64, "tile_n": 64, "consumers": 1, "stages": 3, "store_n": 32,
}  # fmt: skip
TURNS: dict[str, Any] = {
    **SMALL, "consumers": 2, "consume": "pingpong", "persistent": 1, "raster": 2,
}  # fmt: skip
CLUSTER: dict[str, Any] = {**SMALL, "cluster_m": 2, "persistent": 1, "store_stages": 1}


def hopper(
    point: dict[str, Any], layout: str = "nt", dtype: str = "bf16", output: str | None = None
) -> Program:
    operation = matmul(dtype, output, layout)
    assert all(r.holds for r in Hopper().requires(operation, Chosen(point)))
    return Hopper().program(operation, Chosen(point))


def allowed(point: dict[str, Any], layout: str, output: str | None = None) -> bool:
    return all(r.holds for r in Hopper().requires(matmul("bf16", output, layout), Chosen(point)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("start", STARTS)
def test_every_start_is_right_on_ragged_sizes(start: str, layout: str) -> None:
    """The result is NumPy's, and nothing is found; contiguous extents are multiples of 8."""
    point = dict(STARTS[start])
    if not allowed(point, layout):
        assert start == "swapped" and layout[0] == "t"  # a slab of 64 m's is wider than its tile
        return
    seed = list(STARTS).index(start) + LAYOUTS.index(layout)
    sizes = {"m": 200, "n": 136, "k": 72}
    operation = matmul("bf16", layout=layout)
    random, shapes = np.random.default_rng(seed), operation.shapes(sizes)
    a, b = (random.integers(-4, 5, shapes[name]).astype(np.float64) for name in "ab")
    result = interpret(hopper(point, layout), sizes, {"a": a, "b": b}, seed=seed)
    assert result.findings == ()
    exact = (a.T if layout[0] == "t" else a) @ (b.T if layout[1] == "t" else b)
    np.testing.assert_allclose(result.outputs["c"].astype(np.float64), exact, rtol=2.0**-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("cluster_m", "cluster_n"), [(2, 1), (1, 2), (2, 2)])
def test_clusters_are_clean(cluster_m: int, cluster_n: int, seed: int) -> None:
    """CTAs send each other tiles; the last clusters stick out of c in both directions."""
    point = {**CLUSTER, "tile_m": 128, "cluster_m": cluster_m, "cluster_n": cluster_n}
    assert check(hopper(point), {"m": 264, "n": 72, "k": 136}, seeds=(seed,)) == ()


@pytest.mark.parametrize("in_flight", [0, 1, 2])
@pytest.mark.parametrize("k", [8, 64, 72, 264])
def test_pingpong_is_clean_however_many_products_are_in_flight(in_flight: int, k: int) -> None:
    """From one trip, fewer than products in flight, to more than there are stages."""
    program = hopper({**TURNS, "in_flight": in_flight})
    sizes = {"m": 300, "n": 72, "k": k}
    assert check(program, sizes, seeds=(in_flight, in_flight + 3)) == ()


@given(st.data())
@settings(max_examples=25)
def test_any_small_schedule_that_its_machine_allows_is_clean(data: st.DataObject) -> None:
    """At reduced sizes, which TMA can take, whatever is chosen."""

    def draw(name: str, *values: Any) -> Any:
        return data.draw(st.sampled_from(values or Hopper.decisions()[name].values), label=name)

    point = dict(STARTS["plain"])
    for name in ("consume", "in_flight", "swap", "epilogue", "persistent", "consumers"):
        point[name] = draw(name)
    for name, values in {
        "tile_m": (64, 128), "tile_n": (16, 64), "stages": (2, 3), "cluster_m": (1, 2),
        "cluster_n": (1, 2), "store_n": (16, 64), "store_stages": (1, 2), "raster": (1, 2),
    }.items():  # fmt: skip
        point[name] = draw(name, *values)
    layout, output = draw("layout", *LAYOUTS), draw("output", "bf16", "f32")
    assume(allowed(point, layout, output))
    program = hopper(point, layout, output=output)
    problem = Problem.of(matmul("bf16", output, layout), m=512, n=512, k=512)
    assert check(program, reduced(problem, program), seeds=(data.draw(st.integers(0, 11)),)) == ()


def test_reduced_sizes_can_be_loaded_by_tma() -> None:
    """The contiguous axis of an input is a multiple of 16 B, whichever it is."""
    for layout, axes in (("nt", "k"), ("nn", "kn"), ("tn", "mn"), ("tt", "mk")):
        operation = matmul("bf16", layout=layout)
        sizes = reduced(Problem.of(operation, m=4096, n=4096, k=4096), hopper(SMALL, layout))
        assert all(sizes[a] % 8 == 0 for a in axes)
        assert sizes["m"] > 64 and sizes["n"] > 64 and sizes["k"] > 4 * 64


Body = tuple[Statement, ...]
Block = For | ForTile | When | Elect


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Each statement dropped, done twice or moved, each number of order off by one."""
    for r, role in enumerate(program.roles):
        for name, body in _bodies(role.body):
            roles = (*program.roles[:r], replace(role, body=body), *program.roles[r + 1 :])
            yield f"{role.name}: {name}", replace(program, roles=roles)
    for b in program.barriers:
        for by in (1, -1) if b.arrivals > 1 else (1,):
            changed = replace(b, arrivals=b.arrivals + by)
            barriers = tuple(changed if o is b else o for o in program.barriers)
            yield f"arrivals{by:+} {b.name}", replace(program, barriers=barriers)


def _bodies(body: Body) -> Iterator[tuple[str, Body]]:
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        for name, instead in _changes(s):
            yield name, (*before, *instead, *after)
        if not isinstance(s, For | ForTile):
            yield f"drop {_short(s)}", (*before, *after)
            yield f"double {_short(s)}", (*before, s, s, *after)
            if after:
                yield f"later {_short(s)}", (*before, after[0], s, *after[1:])
        if isinstance(s, Block):
            for name, inner in _bodies(s.body):
                yield name, (*before, replace(s, body=inner), *after)


def _short(s: Statement) -> str:
    match s:
        case When() | Elect():
            return f"{type(s).__name__.lower()} {_short(s.body[0])}"
        case Do():
            return s.instruction.name
    return str(s)


def _changes(s: Statement) -> Iterator[tuple[str, Body]]:
    match s:
        case Do():
            for by in (1, -1):
                if s.write.buffer.level != "gmem":
                    write = replace(s.write, index=s.write.index + by)
                    yield f"write{by:+} {_short(s)}", (replace(s, write=write),)
                for i, r in enumerate(s.reads):
                    if isinstance(r, Access) and r.buffer.level != "gmem":
                        reads = (*s.reads[:i], replace(r, index=r.index + by), *s.reads[i + 1 :])
                        yield f"read {i} {by:+} {_short(s)}", (replace(s, reads=reads),)
                if s.signal:
                    signal = (s.signal[0], s.signal[1] + by)
                    yield f"signal{by:+} {_short(s)}", (replace(s, signal=signal),)
            if s.fresh:
                yield "always add", (replace(s, fresh=None),)
                yield "late anew", (replace(s, fresh=s.fresh + -1),)
        case Wait(_, index) | Arrive(_, index):
            for by in (1, -1):
                yield f"index{by:+} {s}", (replace(s, index=index + by),)
            if isinstance(s, Arrive) and s.bytes:
                yield f"bytes+ {s}", (replace(s, bytes=s.bytes + 128),)
                yield f"bytes- {s}", (replace(s, bytes=s.bytes - 128),)
            if isinstance(s, Arrive) and s.to == "cluster":
                yield f"to own {s}", (replace(s, to="cta"),)
        case WaitGroup(pending):
            yield f"pending+1 {s}", (replace(s, pending=pending + 1),)
        case When(index):
            yield f"sooner {_short(s)}", (replace(s, index=index + -1),)
            yield f"unguarded {_short(s)}", s.body
        case Elect(body):
            yield f"by all {_short(s)}", body
        case _:
            pass


HARMLESS = (
    "producer: index+1 wait empty",  # two stages do
    "producer: double wait", "consumer: double wait",
    "producer: later arrive full",  # bytes may land before they are expected
    "consumer: later wait full", "consumer: double wgmma.fence",
    "consumer: double wgmma.commit_group", "consumer: double wgmma.wait_group",
    "consumer: later elect arrive turn",
    "consumer: double cp.async.bulk", "consumer: double elect cp.async.bulk",
    "consumer: by all cp.async.bulk.wait_group",  # of others, which have no groups
    "consumer: by all elect", "consumer: double bar.sync", "consumer: later bar.sync",
    "consumer: double cvt", "consumer: double stmatrix", "consumer: double fence",
    "consumer: unguarded elect", "consumer: sooner elect",
    "consumer: later elect cp.async.bulk.wait_group",
)  # fmt: skip


@pytest.mark.parametrize(
    ("point", "sizes", "harmless"),
    [
        (TURNS, ({"m": 312, "n": 64, "k": 72}, {"m": 192, "n": 64, "k": 264}), ("x",)),
        (CLUSTER, ({"m": 256, "n": 72, "k": 264},), ("x",)),
    ],
    ids=["pingpong", "cluster"],
)
def test_every_mutant_but_the_harmless_is_found(
    point: dict[str, Any], sizes: tuple[dict[str, int], ...], harmless: tuple[str, ...]
) -> None:
    program, missed, count = hopper(point), [], 0
    for name, mutant in mutants(program):
        found = any(check(mutant, s, seeds=(seed,)) for s in sizes for seed in (0, 1))
        count += found
        if not found and not name.startswith((*HARMLESS, *harmless)):
            missed.append(name)
    assert missed == []
    assert count >= 90
