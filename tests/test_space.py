"""Spaces: counts are exact, samples uniform and legal, batches and schedules agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import SHARED, by_turns, draws, some
from tests.test_solve import narrow
from tinygpu.devices.device import load_device
from tinygpu.errors import IllegalScheduleError, MachineError, ScheduleError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.erase import erase
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.space.batches import waits_at_mbarriers
from tinygpu.space.counting import Factor, Sums
from tinygpu.space.questions import require, why_empty
from tinygpu.space.signature import numbers_of
from tinygpu.space.space import Space
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import Chosen, Requirement, Value
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Body,
    Buffer,
    Commit,
    Do,
    Elect,
    Fence,
    For,
    ForTile,
    Immediate,
    Program,
    Role,
    Statement,
    Sync,
    WaitGroup,
    When,
    registers,
    var,
)  # fmt: skip
from tinygpu.term.schedule import Schedule

H200 = load_device("h200")
LARGE = Problem.of(matmul(), m=4096, n=4096, k=4096)
RAGGED = Problem.of(matmul(), m=37, n=41, k=29)
TUNED = LADDER["tuned"]
NARROW: dict[str, dict[str, Value | tuple[Value, ...]]] = {
    "tiles": {**TUNED, "tile_m": (64, 128), "tile_n": some((64, 128, 256), 2), "lanes_m": (2, 4, 8),
              "thread_m": (4, 8), "vector_shared": (2, 4), "vector_c": (1, 2, 4)},
    "pipelines": {**TUNED, "pipeline": ("none", "register", "cp.async"), "stages": (1, 2, 3),
                  "issue": some((0, 1, 2), 2), "tile_k": some((4, 8, 16), 2), "k_step": (1, 4),
                  "edges": ("guard", "exact", "return"), "pad_a": 0},
    "sources": {**TUNED, "a_from": ("smem", "gmem"), "b_from": ("smem", "gmem"), "pad_a": 0,
                "a_layout": ("km", "mk"), "swizzle_a": (0, 2), "vector_shared": (1, 4),
                "vector_a": (1, 4), "vector_b": (1, 4), "split_k": (1, 4),
                "combine": ("st", "red")},
}  # fmt: skip


def brute(space: Space, problem: Problem) -> set[Schedule]:
    """Every schedule of the product that breaks no law, one by one."""
    found = set()
    for values in product(*space.values.values()):
        schedule = Schedule("simt", tuple(zip(space.values, values, strict=True)))
        if not check_schedule(schedule, space.machine, problem, H200):
            found.add(schedule)
    return found


@pytest.mark.parametrize(("name", "problem"), by_turns(NARROW, [LARGE, RAGGED]))
def test_count_iteration_and_brute_force_agree(name: str, problem: Problem) -> None:
    space = Space(Simt(), problem, H200, fixed=NARROW[name])
    legal = brute(space, problem)
    assert space.count() == len(legal)
    assert set(space) == legal
    assert set(space.sample(np.random.default_rng(1), 10**6)) == legal


def test_something_is_legal_and_something_is_not_in_each() -> None:
    for fixed in NARROW.values():
        space = Space(Simt(), LARGE, H200, fixed=fixed)
        assert 0 < space.count() < space.raw


@pytest.mark.slow
def test_the_whole_space_counts_and_its_samples_are_legal() -> None:
    space = Space(Simt(), LARGE, H200, fixed=SHARED)
    assert space.raw >= 10**8
    assert draws(10**7, 10**9) < space.count() < space.raw
    drawn = space.sample(np.random.default_rng(0), draws(20, 200))
    assert len(set(drawn)) == draws(20, 200)
    for schedule in drawn:
        assert check_schedule(schedule, Simt(), LARGE, H200) == ()


def test_samples_are_uniform() -> None:
    space = Space(Simt(), LARGE, H200, fixed=NARROW["sources"])
    legal = list(space)
    rng = np.random.default_rng(3)
    seen = dict.fromkeys(legal, 0)
    for _ in range(40):
        for schedule in space.sample(rng, len(legal) // 4):
            seen[schedule] += 1
    counts = np.array(list(seen.values()))
    assert abs(counts.mean() - 10) < 0.3
    assert counts.max() < 30
    assert counts.min() > 0


@pytest.mark.parametrize("name", LADDER)
def test_ladder_points_are_of_the_space(name: str) -> None:
    space = Space(Simt(), LARGE, H200, fixed=LADDER[name])
    schedule = Schedule.of(Simt(), LADDER[name])
    assert list(space) == [schedule]
    assert space.contains(schedule)
    assert not space.contains(schedule.with_(tile_k=64))


def test_a_batch_gives_schedules_and_the_tables_say_which_are_legal() -> None:
    space = Space(Simt(), LARGE, H200, fixed=NARROW["pipelines"])
    for batch in space.batches():
        shape = tuple(len(v) for v in batch.values)
        legal = np.ones(shape, bool)
        for table in batch.tables:
            full = [n if i in table.axes else 1 for i, n in enumerate(shape)]
            legal &= table.holds.reshape(full)
        assert legal.sum() == batch.count
        for point in np.argwhere(legal)[:20]:
            assert space.contains(space.schedule(batch, point))
        for point in np.argwhere(~legal)[:20]:
            assert not space.contains(space.schedule(batch, point))


def test_an_empty_space_says_why_with_no_more_than_is_to_blame() -> None:
    of_tiles = (
        "tile_m",
        "tile_n",
        "tile_k",
        "thread_m",
        "thread_n",
        "lanes_m",
        "k_step",
        "vector_a",
        "vector_b",
        "vector_shared",
        "vector_c",
    )
    open_ = {name: Simt.decisions()[name].values for name in (*of_tiles, "raster", "pad_a")}
    few = narrow(Simt, TUNED, **open_)  # a solver looks at all that the machine has
    fixed = {**TUNED, "tile_m": 256, "tile_n": 256, "thread_m": 1, "raster": (1, 2)}
    space = Space(few, LARGE, H200, fixed=fixed)
    assert space.count() == 0
    why = why_empty(space)
    assert "threads" in why or "warps_m" in why or "chunks" in why
    assert "raster" not in why
    assert "pad_a" not in why
    with pytest.raises(IllegalScheduleError, match="no schedule of simt"):
        require(space)
    assert why_empty(Space(Simt(), LARGE, H200, fixed=TUNED)) == ""
    crowded = Space(few, LARGE, H200, fixed={"tile_m": 256, "tile_n": 256, "thread_m": 1})
    assert why_empty(crowded) == (
        "with tile_m = 256, tile_n = 256, thread_m = 1 no schedule of simt for matmul at "
        "m = 4096, n = 4096, k = 4096 on h200 keeps threads"
    )


def test_ragged_sizes_exclude_vectors_from_global_memory() -> None:
    space = Space(Simt(), RAGGED, H200, fixed={**TUNED, "vector_a": (1, 4), "vector_b": (1, 4),
                                               "vector_c": (1, 4)})  # fmt: skip
    assert [(s["vector_a"], s["vector_b"], s["vector_c"]) for s in space] == [(1, 1, 1)]


@pytest.mark.parametrize("name", ["pipelines", "sources"])
def test_terms_of_one_signature_have_one_verdict(name: str) -> None:
    """And few skeletons: what the numbers leave out is of sizes, threads and names."""
    terms: dict[Any, dict[Program, bool]] = {}
    fixed = {**NARROW[name], "split_k": 1, "combine": "st"}
    for schedule in Space(Simt(), LARGE, H200, fixed=fixed):
        program = schedule.program(Simt(), LARGE.operation)
        terms.setdefault(numbers_of(program), {})[erase(program)] = verdict(program).legal
    assert all(set(alike.values()) == {True} for alike in terms.values())
    assert len(terms) > 1


def test_the_types_of_sums_change_no_verdict() -> None:
    def term(**changes: Value) -> Program:
        return Simt().program(LARGE.operation, Chosen({**LADDER["multi-stage"], **changes}))

    sums, early = term(accumulator="f64"), term(pipeline="cp.async", stages=1)
    assert [verdict(program).legal for program in (sums, early)] == [True, False]


def test_registers_that_another_block_reads_are_in_the_signature() -> None:
    """A write that only part of the threads does, or of another index, answers no read."""
    held, x = registers("held", "f32", 1), registers("x", "f32", 1)

    def signature(index: int, lanes: tuple[int, int, int] | None, inside: bool) -> Any:
        put = Do(INSTRUCTIONS["mov"], Access(held, ((0,),)), (Immediate(0.0),), (1,), lanes=lanes)
        read = Access(held, ((0,),), index=Affine(index))
        get = Do(INSTRUCTIONS["mov"], Access(x, ((0,),)), (read,), (1,))
        body = (put, For("i", 1, (get,))) if inside else (put, get)
        role = Role("all", 32, body)
        return numbers_of(Program("p", matmul(), (held, x), (), (), (role,)))

    answered = signature(0, None, False)
    others = [signature(1, None, False), signature(0, (1, 2, 0), False), signature(0, None, True)]
    assert answered not in others
    assert "held" not in str(answered)
    assert all("held" in str(other) for other in others)


@pytest.mark.parametrize("cast", [int, np.int64])
def test_every_number_that_orders_is_in_the_signature(cast: Callable[[int], Any]) -> None:
    """Also where NumPy made it: two terms of one key and numbers get one verdict."""
    ring = Buffer("ring", "smem", "f32", (4,), (1,), 3, 4)
    held = registers("held", "f32", 4)
    into, source = Access(ring, ((1,),), index=var("i")), Access(held, ((1,),))
    moved = Do(INSTRUCTIONS["st.shared"], into, (source,), (4,))

    def signature(*body: Statement) -> Any:
        role = Role("all", 32, (For("i", 9, body), moved_apart))
        return numbers_of(Program("p", matmul(), (ring, held), (), (), (role,)))

    moved_apart = replace(moved, write=Access(ring, ((1,),)))
    pairs: list[list[tuple[Statement, ...]]] = [
        [(When(var("i"), cast(n), (moved,)),) for n in (3, 4)],
        [(When(var("i") + n, 4, (moved,)),) for n in (0, 1)],
        [(For("j", cast(n), (moved, Sync())),) for n in (3, 4)],
        [(For("j", 8, (moved, Sync()), start=cast(n)),) for n in (3, 4)],
        [(Sync(cast(n)),) for n in (0, 1)],
        [(Sync(0, scope),) for scope in ("cta", "role")],
        [(WaitGroup(cast(n)),) for n in (0, 1)],
    ]  # fmt: skip
    for one, other in pairs:
        assert signature(*one) != signature(*other), one
        assert signature(*one) == signature(*one)


@pytest.mark.parametrize(
    ("body", "alone"),
    [
        ((Sync(), Commit(), WaitGroup(0)), False),
        ((For("i", 2, (When(var("i"), 1, (Sync(),)),)),), False),
        ((Elect((Commit(),)),), True),
        ((ForTile("t", "turn", (Commit(),)),), True),
        ((Sync(0, "role"),), True),
        ((Commit("bulk"),), True),
        ((Fence("proxy.async"),), True),
    ],
)
def test_more_than_barriers_and_cp_async_is_judged_one_by_one(body: Body, *, alone: bool) -> None:
    program = Program("p", matmul(), (), (), (), (Role("all", 32, body),), persistent=True)
    assert waits_at_mbarriers(program) is alone


def test_fixed_decisions_are_checked() -> None:
    with pytest.raises(ScheduleError, match=r"tile_q.*did you mean"):
        Space(Simt(), LARGE, H200, fixed={"tile_q": 3})
    with pytest.raises(ScheduleError, match="no value 3"):
        Space(Simt(), LARGE, H200, fixed={"tile_m": 3})
    for name in ("tile_m", "pipeline"):  # of which "none" is a value
        with pytest.raises(ScheduleError, match=f"decision {name}: fixed to no value; give one"):
            Space(Simt(), LARGE, H200, fixed={name: ()})


def test_a_value_that_is_fixed_twice_is_counted_once() -> None:
    space = Space(Simt(), LARGE, H200, fixed={**TUNED, "raster": (1, 2, 1)})
    assert (space.raw, space.count(), len(set(space))) == (2, 2, 2)


@settings(max_examples=draws(24, 60))
@given(st.data())
def test_sums_of_products_against_brute_force(data: st.DataObject) -> None:
    lengths = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    factors = []
    for _ in range(data.draw(st.integers(0, 5))):
        axes = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(lengths)))))))
        factors.append(Factor(axes, rng.random([lengths[a] for a in axes]) < 0.7))
    allowed = np.ones(lengths, bool)
    for factor in factors:
        shape = [n if i in factor.axes else 1 for i, n in enumerate(lengths)]
        allowed &= factor.array.reshape(shape)
    sums = Sums(lengths)
    assert sums.count(factors) == allowed.sum()
    points = {tuple(p) for p in sums.points(factors).tolist()}
    assert points == {tuple(p) for p in np.argwhere(allowed).tolist()}
    if points:
        drawn = {tuple(p) for p in sums.sample(factors, rng, 2000).tolist()}
        assert drawn <= points
        assert len(drawn) > len(points) * 0.8


class Branches(Simt):
    """A numeric machine that branches on one of its numbers."""

    def forward(self, k: Kernel) -> None:
        if self.tile_m > 64:
            k.fence("cta")
        super().forward(k)


class Counts(Simt):
    def forward(self, k: Kernel) -> None:
        for _ in range(self.stages):
            super().forward(k)


class And(Simt):
    def requires(self, operation: Operation, choose: Any) -> tuple[Requirement, ...]:
        return (Requirement("small", choose.tile_m < 64 and choose.tile_n < 64, "", ""),)


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        (Branches(), "if self.tile_m > 64:"),
        (Counts(), "for _ in range(self.stages):"),
        (And(), "choose.tile_m < 64 and choose.tile_n < 64"),
    ],
    ids=["if", "range", "and"],
)
def test_a_numeric_machine_that_branches_is_told_where(machine: Simt, line: str) -> None:
    fixed = {**NARROW["tiles"], "stages": (1, 2)}
    with pytest.raises(MachineError, match=r"machine simt: test_space.py:\d+: .*") as raised:
        Space(machine, LARGE, H200, fixed=fixed).count()
    assert line in str(raised.value)
    assert "declare the decision structural=True" in str(raised.value)
