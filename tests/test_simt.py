"""The machine ``simt``: its requirements, its named points, its terms on a page."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tinygpu.device import load_device
from tinygpu.errors import OperationError
from tinygpu.laws import check_schedule
from tinygpu.machine import Chosen
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import Problem, matmul
from tinygpu.program import Do, For, walk
from tinygpu.schedule import Schedule

DECISIONS = Simt.decisions()
NUMERIC = tuple(name for name, choice in DECISIONS.items() if not choice.structural)
PIPELINED = {**LADDER["multi-stage"], "pipeline": "cp.async", "stages": 3, "vector_a": 1,
             "issue": 1}  # fmt: skip
BREAKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("warps_m", "tuned", {"tile_m": 8}),
    ("warps_n", "tuned", {"tile_n": 64, "thread_n": 16}),
    ("k_steps", "naive", {"k_step": 2}),
    ("issue_inside", "multi-stage", {"k_step": 4, "tile_k": 8, "issue": 2}),
    ("issue_inside", "tuned", {"issue": 1}),
    ("split_red", "tuned", {"split_k": 2}),
    ("split_red", "tuned", {"combine": "red"}),
    ("chunks", "tuned", {"thread_m": 2}),
    ("chunks", "tuned", {"thread_n": 2}),
    ("unused", "naive", {"pad_a": 4}),
    ("unused", "naive", {"pad_b": 4}),
    ("unused", "tuned", {"pad_a": 0, "swizzle_a": 1}),
    ("unused", "shared", {"pad_a": 4, "swizzle_a": 1}),
    ("unused", "naive", {"a_layout": "mk"}),
    ("unused", "naive", {"pipeline": "register", "stages": 2}),
    ("unused", "tuned", {"stages": 2}),
    ("unused", "multi-stage", {"stages": 3}),
)


def failed(values: dict[str, Any], dtype: str = "f32") -> set[str]:
    required = Simt().requires(matmul(dtype), Chosen(values))
    return {r.name for r in required if not r.holds}


@pytest.mark.parametrize("device", ["a100", "h200", "rtx3060"])
@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_is_legal(name: str, device: str) -> None:
    problem = Problem.of(matmul(), m=4096, n=4096, k=4096)
    schedule = Schedule.of(Simt(), LADDER[name])
    assert check_schedule(schedule, Simt(), problem, load_device(device)) == ()


def test_each_step_of_the_ladder_changes_something() -> None:
    """No two named points are one schedule."""
    assert len({Schedule.of(Simt(), point) for point in LADDER.values()}) == len(LADDER) == 9


@pytest.mark.parametrize(("requirement", "base", "change"), BREAKS)
def test_each_requirement_is_broken_alone(
    requirement: str, base: str, change: dict[str, Any]
) -> None:
    """One change breaks the one requirement that is about it, and the verdict names it."""
    assert failed(dict(LADDER[base])) == set()
    values = {**LADDER[base], **change}
    assert failed(values) == {requirement}
    problem = Problem.of(matmul(), m=4096, n=4096, k=4096)
    found = check_schedule(Schedule.of(Simt(), values), Simt(), problem, load_device("h200"))
    assert {violation.law for violation in found} == {requirement}


def test_narrow_outputs_are_not_summed_in_memory() -> None:
    values = {**LADDER["tuned"], "split_k": 2, "combine": "red"}
    assert failed(values) == set()
    assert failed(values, "f16") == {"red_wide"}


def test_every_requirement_has_a_schedule_that_breaks_it() -> None:
    names = {r.name for r in Simt().requires(matmul(), Chosen(LADDER["naive"]))}
    assert names == {name for name, *_ in BREAKS} | {"red_wide"}


@pytest.mark.parametrize("dtype", ["tf32", "e4m3", "e5m2"])
def test_types_of_tensor_cores_are_not_computed_with(dtype: str) -> None:
    with pytest.raises(OperationError, match="known are f64, f32, f16, bf16"):
        Simt().check(matmul(dtype, "f32"))
    assert failed(dict(LADDER["tuned"]), "f16") == set()


@given(st.data())
def test_requirements_read_arrays_as_they_read_numbers(data: st.DataObject) -> None:
    """One array of values a decision gives what its values give one by one."""
    count = 8
    structural = {
        name: data.draw(st.sampled_from(choice.values), label=name)
        for name, choice in DECISIONS.items()
        if choice.structural
    }
    drawn = {
        name: data.draw(
            st.lists(st.sampled_from(DECISIONS[name].values), min_size=count, max_size=count),
            label=name,
        )
        for name in NUMERIC
    }
    columns = {name: np.array(values) for name, values in drawn.items()}
    together = Simt().requires(matmul(), Chosen(structural | columns))
    for i in range(count):
        row = structural | {name: values[i] for name, values in drawn.items()}
        alone = Simt().requires(matmul(), Chosen(row))
        for every, one in zip(together, alone, strict=True):
            assert bool(np.broadcast_to(every.holds, count)[i]) == bool(one.holds), one.name


@given(st.data())
def test_threads_cover_the_tile(data: st.DataObject) -> None:
    """Threads times sums a thread is the tile, and every sum of a tile is stored once."""
    shape = ("tile_m", "tile_n", "thread_m", "thread_n", "lanes_m", "vector_shared", "order")
    drawn = {name: data.draw(st.sampled_from(DECISIONS[name].values), label=name) for name in shape}
    values: dict[str, Any] = {**LADDER["vectorised"], **drawn}
    assume(not failed(values))
    program = Simt().program(matmul(), Chosen(values))
    per_thread = values["thread_m"] * values["thread_n"]
    assert program.threads * per_thread == values["tile_m"] * values["tile_n"]
    (store,) = (s for s, _ in walk(program) if isinstance(s, Do) and s.write.buffer.name == "c")
    modes = (*zip(store.values, store.write.value, strict=True),
             *zip(store.threads, store.write.thread, strict=True))  # fmt: skip
    rows, columns = np.zeros(1, int), np.zeros(1, int)
    for extent, (row, column) in modes:
        i = np.arange(extent)[:, None]
        rows, columns = (rows + i * row).ravel(), (columns + i * column).ravel()
    tile = np.zeros((values["tile_m"], values["tile_n"]), int)
    np.add.at(tile, (rows, columns), 1)
    assert (tile == 1).all()


@pytest.mark.parametrize("name", DECISIONS)
def test_every_decision_matters(name: str) -> None:
    """Some named point has another term for each value of the decision."""
    bases = [*LADDER.values(), {**LADDER["shared"], "pad_a": 0}, PIPELINED]
    for base in bases:
        points = [{**base, name: value} for value in DECISIONS[name].values]
        legal = [p for p in points if not failed(p)]
        terms = {Simt().program(matmul(), Chosen(p)) for p in legal}
        if len(legal) > 1 and len(terms) == len(legal):
            return
    pairs: dict[str, dict[str, Any]] = {"split_k": {"combine": "red"}, "combine": {"split_k": 2}}
    points = [{**LADDER["tuned"], **pairs.get(name, {}), name: v} for v in DECISIONS[name].values]
    terms = {Simt().program(matmul(), Chosen(p)) for p in points}
    assert len(terms) == len(points)


@pytest.mark.parametrize("name", LADDER)
def test_a_term_fits_on_a_screen(name: str) -> None:
    """At most 48 lines of 100 characters, every buffer and every loop among them."""
    program = Simt().program(matmul(), Chosen(LADDER[name]))
    lines = str(program).splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 100
    for buffer in program.buffers:
        assert any(line.startswith(f"  {buffer.name} ") for line in lines)
    assert sum(" for " in line for line in lines) == sum(
        isinstance(s, For) for s, _ in walk(program)
    )


def test_the_machine_fits_on_a_screen() -> None:
    """Each level, each of at most ten instructions and each decision has its line."""
    text = str(Simt())
    assert len(text.splitlines()) <= 60
    parts = [level.name for level in Simt.levels] + [i.name for i in Simt.instructions]
    for name in (*parts, *DECISIONS):
        assert re.search(rf"^ +\*?{re.escape(name)}\b", text, re.MULTILINE)
    assert len(Simt.instructions) <= 10
    assert set(Simt.graph()) == {level.name for level in Simt.levels}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_other_layouts_are_refused_and_not_read_as_if_they_were_nn(layout: str) -> None:
    """Threads walk along a[m,k] and b[k,n]: a turned input is a mistake, with its mend."""
    operation = matmul("f32", layout=layout)
    if layout == "nn":
        Schedule.of(Simt(), LADDER["tuned"]).program(Simt(), operation)
        return
    with pytest.raises(OperationError, match='choose layout "nn", or a machine that takes others'):
        Schedule.of(Simt(), LADDER["tuned"]).program(Simt(), operation)


@pytest.mark.parametrize("fused", [{"bias": True}, {"scaled": True}, {"batched": True}])
def test_what_it_does_not_fuse_is_refused_with_a_machine_that_does(fused: Any) -> None:
    """An epilogue or a batch names hopper, before any term is built."""
    with pytest.raises(OperationError, match="choose a machine that fuses, as hopper"):
        Schedule.of(Simt(), LADDER["tuned"]).program(Simt(), matmul("f32", **fused))
