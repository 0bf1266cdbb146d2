"""The interpreter of asynchronous programs: what is right gives NumPy's result and no finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.sample import by_turns, draws
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.meaning.interpret import check, interpret, reduced
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Block, Fence, Program, Statement

LAYOUTS = ("nn", "nt", "tn", "tt")
SMALL: dict[str, Any] = {
    **STARTS["tma store"], "tile_m": 64, "tile_n": 16, "consumers": 1, "stages": 3, "store_n": 8,
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


@pytest.mark.parametrize(("start", "layout"), by_turns(STARTS, LAYOUTS))
def test_every_start_is_right_on_ragged_sizes(start: str, layout: str) -> None:
    """The result is NumPy's, and nothing is found; contiguous extents are multiples of 8."""
    point = dict(STARTS[start])
    if not allowed(point, layout):
        assert (start, layout[0]) == ("swapped", "t")  # a slab of 64 m's is wider than its tile
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


@pytest.mark.parametrize("seed", range(draws(2, 4)))
@pytest.mark.parametrize(("cluster_m", "cluster_n"), [(2, 1), (1, 2), (2, 2)])
def test_clusters_are_clean(cluster_m: int, cluster_n: int, seed: int) -> None:
    """CTAs send each other tiles; the last clusters stick out of c in both directions."""
    point = {**CLUSTER, "tile_m": 128, "cluster_m": cluster_m, "cluster_n": cluster_n}
    assert check(hopper(point), {"m": 264, "n": 72, "k": 136}, seeds=(seed,)) == ()


@pytest.mark.parametrize(("in_flight", "k"), by_turns([0, 1, 2], [8, 64, 72, 264]))
def test_pingpong_is_clean_however_many_products_are_in_flight(in_flight: int, k: int) -> None:
    """From one trip, fewer than products in flight, to more than there are stages."""
    program = hopper({**TURNS, "in_flight": in_flight})
    sizes = {"m": 300, "n": 72, "k": k}
    assert check(program, sizes, seeds=(in_flight, in_flight + 3)) == ()


@given(st.data())
@settings(max_examples=draws(4, 12))
def test_any_small_schedule_that_its_machine_allows_is_clean(data: st.DataObject) -> None:
    """At reduced sizes, which TMA can take, whatever is chosen."""

    def draw(name: str, *values: Any) -> Any:
        return data.draw(st.sampled_from(values or Hopper.decisions()[name].values), label=name)

    layout, output = draw("layout", *LAYOUTS), draw("output", "bf16", "f32")
    point = {**STARTS["plain"], "stages": 3, "store_n": 16}
    for name in ("consume", "in_flight", "epilogue", "persistent", "early"):
        point[name] = draw(name)
    for name in ("cluster_m", "cluster_n", "consumers", "store_stages", "raster", "swap"):
        point[name] = draw(name, *Hopper.decisions()[name].values[:2])
    if point["consume"] == "pingpong":
        point |= {"consumers": 2, "persistent": 1}
    if point["epilogue"] == "tma" and output == "f32":
        point["swap"] = 0
    point["tile_m"] = 64 * draw("blocks", 1, 2) if point["consume"] == "pingpong" else 128
    point["tile_n"] = draw("tile_n", 16, 64 * point["cluster_m"])
    if point["epilogue"] == "direct":
        point |= {"store_stages": 1, "store_n": point["tile_n"]}
    assume(allowed(point, layout, output))
    program = hopper(point, layout, output=output)
    problem = Problem.of(matmul("bf16", output, layout), m=512, n=512, k=512)
    assert check(program, reduced(problem, program), seeds=(data.draw(st.integers(0, 11)),)) == ()


def test_registers_touched_since_the_last_wgmma_fence_are_found() -> None:
    """One fence, before all tiles, is enough for the first of them only."""
    program = hopper({**SMALL, "persistent": 1, "in_flight": 0})
    role = program.roles[0]
    body = (Fence("wgmma"), *_unfenced(role.body))
    once = replace(program, roles=(replace(role, body=body), *program.roles[1:]))
    assert check(once, {"m": 64, "n": 16, "k": 136}) == ()
    assert {f.kind for f in check(once, {"m": 200, "n": 16, "k": 136})} == {"unfenced"}


def _unfenced(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple(
        replace(s, body=_unfenced(s.body)) if isinstance(s, Block) else s
        for s in body
        if s != Fence("wgmma")
    )


def test_reduced_sizes_can_be_loaded_by_tma() -> None:
    """The contiguous axis of an input is a multiple of 16 B, whichever it is."""
    for layout, axes in (("nt", "k"), ("nn", "kn"), ("tn", "mn"), ("tt", "mk")):
        operation = matmul("bf16", layout=layout)
        program = hopper({**SMALL, "tile_n": 64}, layout)
        sizes = reduced(Problem.of(operation, m=4096, n=4096, k=4096), program)
        assert all(sizes[a] % 8 == 0 for a in axes)
        assert min(sizes["m"], sizes["n"], sizes["k"] // 4) > 64
