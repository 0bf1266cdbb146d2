"""The interpreter: a machine's programs give NumPy's result and no finding, mutants are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.mutants import mutants
from tests.sample import all_by_turns, draws, some
from tinygpu.errors import OperationError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.interpret import check, interpret, reduced
from tinygpu.meaning.tolerance import roundings
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import (
    Do,
    For,
    Program,
    Statement,
    When,
)

SMALL: dict[str, Any] = {
    **LADDER["multi-stage"], "tile_m": 16, "tile_n": 16, "tile_k": 8, "thread_m": 2, "thread_n": 2,
    "lanes_m": 4, "vector_a": 2, "vector_b": 2, "vector_shared": 2, "vector_c": 2, "pad_a": 0,
    "k_step": 4,
}  # fmt: skip
REGISTER = {**SMALL, "issue": 1}
NONE = {**SMALL, "pipeline": "none", "stages": 1}
SPLIT = {**NONE, "split_k": 2, "combine": "red", "vector_c": 1}
ASYNC = {**SMALL, "pipeline": "cp.async", "stages": 3, "a_layout": "mk", "issue": 1}
RETURN = {**LADDER["naive"], "tile_m": 8, "tile_n": 8, "lanes_m": 8}


def simt(point: dict[str, Any], dtype: str = "f32") -> Program:
    return Simt().program(matmul(dtype), Chosen(point))


def kinds(program: Program, seeds: tuple[int, ...] = (0, 1, 2), **sizes: int) -> set[str]:
    return {f.kind for f in check(program, sizes, seeds=seeds)}


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_is_clean_and_right_on_ragged_shapes(name: str) -> None:
    seed = list(LADDER).index(name)
    sizes = {"m": 67, "n": 36, "k": 20}
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((67, 20)), random.standard_normal((20, 36))
    result = interpret(simt(dict(LADDER[name])), sizes, {"a": a, "b": b}, seed=seed)
    assert result.findings == ()
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose(result.outputs["c"], a32 @ b32, rtol=1e-4, atol=1e-4)
    assert result.outputs["c"].dtype == np.float32


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("tiles", range(1, 8))
def test_pipelines_of_cp_async_are_clean_at_every_number_of_tiles(stages: int, tiles: int) -> None:
    program = simt({**ASYNC, "stages": stages})
    assert kinds(program, (tiles % 3,), m=17, n=14, k=8 * tiles) == set()
    assert kinds(program, (tiles % 3,), m=16, n=16, k=8 * tiles - 2) == set()


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline_of_no_tile_is_clean(stages: int) -> None:
    """One tile of k in four parts: three of them have none.  Sizes of 0 are refused."""
    program = simt({**ASYNC, "stages": stages, "split_k": 4, "combine": "red"})
    for seed in range(3):
        assert kinds(program, (seed,), m=17, n=14, k=8) == set()
    with pytest.raises(OperationError, match="size k is 0"):
        kinds(program, (0,), m=17, n=14, k=0)


@all_by_turns(
    ("dtype", ["f32", "f16", "bf16"]),
    ("accumulator", ["f32", "f64", "f32+f64"]),
    ("point", [NONE, SPLIT]),
)
def test_narrow_types_and_wide_sums_are_right(
    dtype: str, accumulator: str, point: dict[str, Any]
) -> None:
    """Parts that are added up in 16 bits are not: the operation rounds once."""
    program = simt({**point, "accumulator": accumulator}, dtype)
    rounds = point is SPLIT and dtype != "f32"
    found = {"wrong_result"} if rounds else set()
    assert kinds(program, (1,), m=17, n=18, k=26) == found
    assert bool(roundings(program)) == rounds


@given(st.data())
@settings(max_examples=draws(10, 25))
def test_any_small_schedule_that_its_machine_allows_is_clean(data: st.DataObject) -> None:
    """Requirements hold, copies and vectors fit their tiles: then nothing is found."""

    def draw(name: str, *values: Any) -> Any:
        choices = values or Simt.decisions()[name].values
        return data.draw(st.sampled_from(choices), label=name)

    d: dict[str, Any] = dict(LADDER["tuned"]) | {"pad_a": 0}
    for name in ("thread_m", "thread_n", "vector_a", "vector_b"):
        d[name] = draw(name, 1, 2, 4)
    d["lanes_m"] = draw("lanes_m", 2, 4, 8)
    d["tile_m"] = d["lanes_m"] * d["thread_m"] * draw("warps_m", 1, 2)
    d["tile_n"] = 32 // d["lanes_m"] * d["thread_n"] * draw("warps_n", 1, 2)
    d |= {"tile_k": draw("tile_k", 4, 8), "k_step": draw("k_step"), "order": draw("order")}
    for name in ("a_from", "b_from"):
        d[name] = draw(name)
    smem_a, smem_b = d["a_from"] == "smem", d["b_from"] == "smem"
    d["pipeline"] = draw("pipeline") if smem_a or smem_b else "none"
    d["stages"] = {"none": 1, "register": 2}.get(d["pipeline"]) or draw("stages", 2, 3, 4)
    d["issue"] = draw("issue") if d["pipeline"] != "none" else 0
    if smem_a:
        d["a_layout"] = "mk" if d["pipeline"].startswith("cp.async") else draw("a_layout")
        d["pad_a"] = draw("pad_a")
        if d["a_layout"] == "mk" and not d["pad_a"]:
            d["swizzle_a"] = draw("swizzle_a", 0, d["tile_k"] // 8)
    elif d["k_step"] % d["vector_a"]:
        d["vector_a"] = 1
    d["pad_b"] = draw("pad_b") if smem_b else 0
    d["vector_shared"] = draw("vector_shared", 1, min(2, d["thread_m"], d["thread_n"]))
    if not smem_b and d["vector_shared"] % d["vector_b"]:
        d["vector_b"] = 1
    d["vector_c"] = draw("vector_c", 1, d["vector_shared"])
    d["split_k"] = draw("split_k", 1, 2)
    d["combine"] = "red" if d["split_k"] > 1 else "st"
    d |= {"accumulator": draw("accumulator"), "edges": draw("edges", "exact", "guard")}
    assume(all(r.holds for r in Simt().requires(matmul(), Chosen(d))))
    program = simt(d)
    for s in _dos(program.roles[0].body):
        if s.write.buffer.level == "smem":
            tile = int(np.prod([int(n) for n in s.write.buffer.shape]))
            assume(int(np.prod(s.values)) * program.threads == tile)
    sizes = reduced(Problem.of(matmul(), m=512, n=512, k=512), program)
    assert check(program, sizes, seeds=(data.draw(st.integers(0, 5)),)) == ()


def _dos(body: tuple[Statement, ...]) -> list[Do]:
    found: list[Do] = []
    for s in body:
        match s:
            case For() | When():
                found += _dos(s.body)
            case Do():
                found.append(s)
            case _:
                pass
    return found


HARMLESS = ("double ", "vector", "pending-1", "always", "bound+1", "move cp.async.commit")
"""Mutants that may be right: narrower vectors, more waiting, loads of which guards leave none."""


PROLOGUE = {"m": 16, "n": 16, "k": 2}
"""One tile of k, not full: what stands before the loop is all there is."""


@pytest.mark.parametrize(
    ("point", "sizes", "harmless"),
    [
        (REGISTER, ({"m": 17, "n": 14, "k": 26}, PROLOGUE), ()),
        (ASYNC, ({"m": 17, "n": 14, "k": 34}, PROLOGUE), ()),
        (SPLIT, ({"m": 17, "n": 14, "k": 22},), ()),
        (RETURN, ({"m": 9, "n": 7, "k": 3},), ("unguard",)),  # Exit has left none outside
    ],
    ids=["register", "cp.async", "split", "return"],
)
def test_every_mutant_but_the_harmless_is_found(
    point: dict[str, Any], sizes: tuple[dict[str, int], ...], harmless: tuple[str, ...]
) -> None:
    program = simt(point)
    count = 0
    for name, mutant in some(mutants(program), 3):
        found = any(check(mutant, s, seeds=(seed,)) for seed, s in enumerate(sizes))
        assert found or name.startswith((*HARMLESS, *harmless)), name
        count += found
    assert count >= draws(4, 15)


def test_a_small_instance_has_ragged_tiles_where_guards_allow() -> None:
    problem = Problem.of(matmul(), m=4096, n=4096, k=4096)
    ragged = reduced(problem, simt(ASYNC))
    assert ragged == {"m": 25, "n": 26, "k": 38}  # 3 + 2 tiles of k, the last one of 6
    exact = reduced(problem, simt({**ASYNC, "edges": "exact"}))
    assert exact == {"m": 32, "n": 32, "k": 40}
    assert reduced(problem, simt(RETURN)) == {"m": 13, "n": 13, "k": 3}
    added = reduced(problem, simt({**SPLIT, "vector_b": 1, "vector_c": 2}))
    assert added["n"] == 26  # red adds whole vectors, where the chip can
    tiny = reduced(Problem.of(matmul(), m=1, n=4096, k=7), simt(NONE))
    assert (tiny["m"], tiny["k"]) == (1, 7)
