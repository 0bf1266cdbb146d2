"""The space of hopper: what its tables, a solver and one schedule at a time say is the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.hopper_terms import H200, LARGE, LAYOUTS, broken
from tests.sample import draws, some
from tests.test_solve import narrow
from tinygpu.devices.device import load_device
from tinygpu.legality.reach import Case, Place
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.space.questions import prove, why_empty
from tinygpu.space.space import Space
from tinygpu.term.digits import product_of
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import Access, Program
from tinygpu.term.schedule import Schedule

SMALL = {"m": 200, "n": 136, "k": 72}
NARROW: dict[str, dict[str, Any]] = {
    "tiles": {**STARTS["cluster"], "tile_m": some((64, 128, 256), 2), "tile_n": (8, 64, 256),
              "tile_k": (64, 128), "stages": (2, 4), "consumers": (1, 2), "cluster_n": (1, 2, 4),
              "cluster_m": some((1, 2, 4), 2), "store_n": (8, 64)},
    "pingpong": {**STARTS["pingpong"], "tile_m": (64, 128), "tile_n": (64, 96, 256),
                 "consumers": (1, 2, 3), "stages": (2, 5), "in_flight": (0, 1, 2),
                 "store_n": (16, 32, 64), "store_stages": (1, 4), "persistent": (0, 1)},
    "small rows": {**STARTS["swapped"], "tile_m": (64, 128, 192, 256), "tile_n": (8, 16, 64, 256),
                   "store_n": (8, 16, 64, 256), "consumers": (1, 2, 3), "stages": (2, 12),
                   "ctas_per_sm": (1, 2), "cluster_n": (1, 2)},
    "shared k": {**STARTS["shared k"], "tile_m": (64, 128, 256), "tile_n": (8, 64, 128, 256),
                 "store_n": (8, 32, 128), "consumers": (1, 2), "cluster_m": (1, 4),
                 "cluster_k": (1, 2, 4, 8), "persistent": (0, 1), "stages": (4, 12)},
}  # fmt: skip


def legal_by_one(space: Space, problem: Problem) -> set[Schedule]:
    """Every schedule of the product that keeps requirements and laws, one at a time."""
    found = set()
    for values in product(*space.values.values()):
        chosen = Chosen(dict(zip(space.values, values, strict=True)))
        if all(r.holds for r in Hopper().requires(problem.operation, chosen)):
            program = Hopper().program(problem.operation, chosen)
            if not broken(program, problem.sizes):
                found.add(Schedule("hopper", tuple(zip(space.values, values, strict=True))))
    return found


@pytest.mark.parametrize(
    ("name", "layout", "sizes"),
    some(
        ((name, *of) for name in NARROW for of in (("nt", LARGE), ("nn", SMALL), ("tt", SMALL))), 4
    ),
)
def test_a_space_is_its_legal_schedules(name: str, layout: str, sizes: dict[str, int]) -> None:
    problem = Problem.of(matmul("bf16", layout=layout), **sizes)
    space = Space(Hopper(), problem, H200, fixed=NARROW[name])
    legal = legal_by_one(space, problem)
    assert 0 < len(legal) < space.raw
    assert space.count() == len(legal)
    assert set(space) == legal


@pytest.mark.parametrize("layout", some(LAYOUTS, 3))
def test_the_whole_space_is_large_and_has_the_named_points(layout: str) -> None:
    space = Space(Hopper(), Problem.of(matmul("bf16", layout=layout), **LARGE), H200)
    assert space.raw > 10**8
    assert 10**5 < space.count() < 10**8
    for start, values in STARTS.items():
        narrow = Space(Hopper(), space.problem, H200, fixed=values)
        assert narrow.count() == (start != "swapped" or layout[0] == "n")
    for schedule in space.sample(np.random.default_rng(0), 40):
        assert broken(schedule.program(Hopper(), space.problem.operation)) == {}


@pytest.mark.parametrize(
    ("operation", "sizes", "device", "fixed", "why"),
    [
        (matmul("bf16"), {**SMALL, "k": 60}, "h200", {}, "tma_strides"),
        (matmul("bf16"), {**SMALL, "n": 60}, "h200", {}, "tma_strides"),
        (matmul("bf16"), SMALL, "a100", {}, "architecture"),
        (
            matmul("bf16"),
            SMALL,
            "h200",
            {"cluster_m": 4, "cluster_n": 4, "cluster_k": 2},
            "cluster_size",
        ),
    ],
)
def test_an_empty_space_names_its_law(
    operation: Operation,
    sizes: dict[str, int],
    device: str,
    fixed: dict[str, Value | tuple[Value, ...]],
    why: str,
) -> None:
    problem = Problem.of(operation, **sizes)
    few = narrow(Hopper, STARTS["cluster"], tile_n=(64, 256), cluster_m=(1, 4), stages=(2, 4))
    machine = Hopper() if fixed else few  # a solver looks at all that the machine has
    space = Space(machine, problem, load_device(device), fixed=fixed)
    assert why_empty(space).endswith(f" keeps {why}")


def test_a_proof_and_the_tables_agree() -> None:
    problem = Problem.of(matmul("bf16", layout="nt"), **LARGE)
    fixed: dict[str, Value | tuple[Value, ...]] = {
        **{n: STARTS["cluster"][n] for n in ("consume", "swap", "epilogue")},
        "cluster_k": 2, "persistent": 0, "raster": 1, "stages": 4,
    }  # fmt: skip
    space = Space(Hopper(), problem, H200, fixed=fixed)
    proof = prove(space, "cluster_m * cluster_n <= 8")
    assert (proof.outcome, proof.laws, proof.count) == ("proved", ("cluster_size",), space.count())
    refuted = prove(space, "cluster_m * cluster_n <= 4").schedule
    assert refuted is not None
    assert space.contains(refuted)


def coordinates(access: Access, values: tuple[int, ...], env: dict[str, int]) -> NDArray[np.int64]:
    """The coordinates of each value, (values, dimensions): value mode 0 fastest."""
    rank = len(access.buffer.shape)
    origin = [o.evaluate(env) for o in access.origin] or [0] * rank
    total = np.array(origin, np.int64)[None, :]
    for extent, steps in zip(values, access.value, strict=True):
        step = np.arange(extent)[:, None, None] * np.array(steps, np.int64)
        total = (step + total[None]).reshape(-1, rank)
    return total


class Variables(dict[str, int]):
    """Variables of which those that nobody has set are 0."""

    def __missing__(self, name: str) -> int:
        return 0


def places(program: Program, instruction: str) -> list[Place]:
    case = Case.of(program, LARGE, H200)
    return [p for p in case.places if p.do.instruction.name == instruction]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[dict[str, Any], Program]:
    """Terms of hopper with its requirements about shapes, however much shared memory they need."""
    operation = matmul(
        "bf16", draw(st.sampled_from(["bf16", "f32"])), draw(st.sampled_from(LAYOUTS))
    )
    values: dict[str, Any] = {
        **STARTS["persistent"],
        "tile_m": draw(st.sampled_from([64, 128, 256])),
        "tile_n": draw(st.sampled_from([64, 128, 192, 256])),
        "tile_k": draw(st.sampled_from([64, 128])),
        "consumers": draw(st.sampled_from([1, 2])),
        "cluster_m": draw(st.sampled_from([1, 2, 4])),
        "cluster_n": draw(st.sampled_from([1, 2])),
        "swap": draw(st.sampled_from([0, 1])),
        "store_n": draw(st.sampled_from([8, 16, 32, 64])),
        "epilogue": draw(st.sampled_from(["tma", "tma", "direct"])),
        "consume": draw(st.sampled_from(["cooperative", "pingpong"])),
        "cluster_k": draw(st.sampled_from([1, 1, 2, 4, 8])),
    }
    if values["epilogue"] == "direct":
        wide = values["tile_n"] // values["cluster_k"]
        values |= {"store_n": wide & -wide, "store_stages": 1}
    wrong = {r.name for r in Hopper().requires(operation, Chosen(values)) if not r.holds}
    part = values["tile_n"] // values["cluster_k"]
    assume("shared_k" not in wrong or part & (part - 1) == 0)  # 48 columns lie in two slabs of 64
    assume(wrong <= {"accumulators", "turns", "shared_k"})
    return values, Hopper().program(operation, Chosen(values))


@given(schedules())
@settings(max_examples=draws(15, 30))
def test_a_clusters_parts_make_each_tile_once(drawn: tuple[dict[str, Any], Program]) -> None:
    """Count what lands in one CTA, from all that send to it, and where it comes from."""
    _, program = drawn
    extents = dict(program.cluster)
    for do in (p.do for p in places(program, "cp.async.bulk.tensor")):
        (source,) = do.reads
        assert isinstance(source, Access)
        for mine in product(*(range(n) for n in extents.values())):
            pairs = []
            for sender in range(extents[do.multicast]):
                env = Variables({**dict(zip(extents, mine, strict=True)), do.multicast: sender})
                at, what = (coordinates(x, do.values, env) for x in (do.write, source))
                pairs.append(np.concatenate([at, what], axis=1))
            landed = np.concatenate(pairs)
            line, inner, slab, row, column = landed.T
            shape = tuple(map(int, do.write.buffer.shape))
            cells = np.ravel_multi_index((line, inner, slab), shape)
            assert (np.sort(cells) == np.arange(np.prod(shape))).all()
            assert (row - row.min() == line).all()
            assert (column - column.min() == slab * shape[1] + inner).all()


@given(schedules())
@settings(max_examples=draws(20, 40))
def test_descriptors_say_where_each_element_lies(drawn: tuple[dict[str, Any], Program]) -> None:
    """Compare the canonical layouts of PTX with the accesses of each product."""
    _, program = drawn
    for do in (product_of(p.do) for p in places(program, "wgmma")):
        k, inner, outer, rows = do.values
        a, b, _ = do.reads
        for access, modes in ((a, (rows, 1)), (b, (inner, outer))):
            assert isinstance(access, Access)
            across = access.value[3:4] if access is a else access.value[1:3]
            got = address(access, (k, *modes[: len(across)]), (access.value[0], *across))
            i, j = np.meshgrid(np.arange(modes[0] * modes[1]), np.arange(k), indexing="ij")
            by_k = i // 8 * 1024 + i % 8 * 128 + j * 2
            far = 0 if access is a else 2 * int(np.dot(access.value[2], access.buffer.stride))
            by_row = i // 64 * far + i % 64 * 2 + j // 8 * 1024 + j % 8 * 128
            assert (got == by_k).all() or (got == by_row).all()


def address(
    access: Access, extents: tuple[int, ...], steps: tuple[tuple[int, ...], ...]
) -> NDArray[np.int64]:
    """Bytes from the first element on before the swizzle: (rows or columns, k)."""
    strides = np.array(access.buffer.stride, np.int64) * 2
    total = np.zeros((1, 1), np.int64)
    for extent, step in zip(extents[1:], steps[1:], strict=True):
        new = np.arange(extent)[:, None, None] * int(np.dot(step, strides))
        total = (new + total[None]).reshape(-1, 1)
    return total + np.arange(extents[0])[None, :] * int(np.dot(steps[0], strides))


@given(schedules())
@settings(max_examples=draws(12, 25))
def test_every_element_of_c_is_stored_once(drawn: tuple[dict[str, Any], Program]) -> None:
    """Walk over CTAs, copies, blocks and chunks of one cluster's tile."""
    values, program = drawn
    tile = [values["tile_m"] * values["cluster_m"], values["tile_n"] * values["cluster_n"]]
    rows, columns = tile[::-1] if values["swap"] else tile
    case = Case.of(program, {"m": rows, "n": columns, "k": 64}, H200)
    assert list(case.context.grid.values()) == [1, 1]
    (place,) = [p for p in case.places if p.do.write.buffer.name == "c"]
    free = {n for origin in place.do.write.origin for n, c in origin.terms if c}
    ranges = {n: range(int(place.ranges[n].first), int(place.ranges[n].last) + 1) for n in free}
    seen = np.zeros((rows, columns), int)
    for each in product(*ranges.values()):
        env = Variables(zip(ranges, each, strict=True))
        write = place.do.write
        every = replace(write, value=(*write.value, *write.thread))
        at = coordinates(every, (*place.do.values, *place.do.threads), env)
        np.add.at(seen, (at[:, 0], at[:, 1]), 1)
    assert (seen == 1).all()
