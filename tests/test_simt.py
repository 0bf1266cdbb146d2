"""The machine ``simt``: its requirements, its named points, its terms on a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.sample import all_by_turns, by_turns, some
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.interpret import check
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Do, For, walk
from tinygpu.term.schedule import Schedule

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
    ("read_ahead", "multi-stage", {"pipeline": "cp.async+ld.shared", "k_step": 4, "tile_k": 4}),
    ("split_red", "tuned", {"split_k": 2}),
    ("split_red", "tuned", {"combine": "red"}),
    ("chunks", "tuned", {"thread_m": 2}),
    ("chunks", "tuned", {"thread_n": 2}),
    ("turned", "shared", {"b_layout": "nk"}),
    ("unused", "naive", {"pad_a": 4}),
    ("unused", "naive", {"pad_b": 4}),
    ("unused", "tuned", {"pad_a": 0, "swizzle_a": 1}),
    ("unused", "shared", {"pad_a": 4, "swizzle_a": 1}),
    ("unused", "naive", {"a_layout": "mk"}),
    ("unused", "naive", {"pipeline": "register", "stages": 2}),
    ("unused", "tuned", {"stages": 2}),
    ("unused", "tuned", {"edges": "exact", "guards": "tile"}),
    ("unused", "naive", {"guards": "tile"}),
    ("unused", "multi-stage", {"stages": 3}),
)


LAYOUTS = ("nn", "nt", "tn", "tt")
SMALL: dict[str, Any] = {
    **LADDER["multi-stage"], "tile_m": 32, "tile_n": 32, "tile_k": 8, "thread_m": 4, "thread_n": 4,
    "lanes_m": 4, "vector_shared": 4, "vector_a": 1, "vector_b": 1, "vector_c": 1, "pad_a": 0,
    "k_step": 4,
}  # fmt: skip
ALONG: dict[str, tuple[dict[str, Any], ...]] = {  # what may be contiguous in shared memory
    "nn": ({}, {"a_layout": "mk"}),
    "nt": ({}, {"a_layout": "mk"}, {"b_layout": "nk"},
           {"a_layout": "mk", "b_layout": "nk", "vector_shared": 1}),
    "tn": ({},),
    "tt": ({}, {"b_layout": "nk"}),
}  # fmt: skip
PIPELINES: tuple[dict[str, Any], ...] = (
    {"issue": 1},
    {"pipeline": "cp.async", "stages": 3},
    {"pipeline": "cp.async+ld.shared", "stages": 3, "k_step": 2},
    {"pipeline": "none", "stages": 1},
)
WALKS = [
    *((layout, {**along, **pipe}) for layout in LAYOUTS for along in ALONG[layout]
      for pipe in PIPELINES),
    *((layout, {f"{x}_from": "gmem"}) for layout in LAYOUTS for x in "ab"),
]  # fmt: skip


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
    columns: dict[str, Any] = {name: np.array(values) for name, values in drawn.items()}
    together = Simt().requires(matmul(), Chosen(structural | columns))
    for i in range(count):
        row = structural | {name: values[i] for name, values in drawn.items()}
        alone = Simt().requires(matmul(), Chosen(row))
        for every, one in zip(together, alone, strict=True):
            assert bool(np.broadcast_to(every.holds, count)[i]) == bool(one.holds), one.name


@given(st.data())
def test_threads_cover_the_tile(data: st.DataObject) -> None:
    """Threads times sums a thread is the tile, and every sum of a tile is stored once."""
    values: dict[str, Any] = dict(LADDER["vectorised"])

    def draw(name: str, fits: Callable[[Any], bool] = lambda _: True) -> None:
        fitting = [value for value in DECISIONS[name].values if fits(value)]
        values[name] = data.draw(st.sampled_from(fitting), label=name)

    for name in ("thread_m", "thread_n", "lanes_m", "order"):
        draw(name)
    rows = values["lanes_m"] * values["thread_m"]
    columns = 32 // values["lanes_m"] * values["thread_n"]
    draw("vector_shared", lambda v: v <= min(values["thread_m"], values["thread_n"]))
    largest = max(DECISIONS["tile_m"].values), max(DECISIONS["tile_n"].values)
    assume(rows <= largest[0] and columns <= largest[1])
    draw("tile_m", lambda v: v % rows == 0)
    draw("tile_n", lambda v: v % columns == 0)
    assume(not failed(values))
    program = Simt().program(matmul(), Chosen(values))
    per_thread = values["thread_m"] * values["thread_n"]
    assert program.threads * per_thread == values["tile_m"] * values["tile_n"]
    (store,) = (s for s, _ in walk(program) if isinstance(s, Do) and s.write.buffer.name == "c")
    modes = (*zip(store.values, store.write.value, strict=True),
             *zip(store.threads, store.write.thread, strict=True))  # fmt: skip
    down, across = np.zeros(1, int), np.zeros(1, int)
    for extent, (row, column) in modes:
        i = np.arange(extent)[:, None]
        down, across = (down + i * row).ravel(), (across + i * column).ravel()
    tile = np.zeros((values["tile_m"], values["tile_n"]), int)
    np.add.at(tile, (down, across), 1)
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
    terms = {Simt().program(matmul(layout="nt"), Chosen(p)) for p in points}
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_is_legal_in_every_layout(name: str, layout: str) -> None:
    """Where a is given turned, its k is not contiguous in shared memory: "mk" is refused."""
    problem = Problem.of(matmul(layout=layout), m=4096, n=4096, k=4096)
    schedule = Schedule.of(Simt(), LADDER[name])
    found = check_schedule(schedule, Simt(), problem, load_device("h200"))
    turned = layout[0] == "t" and LADDER[name]["a_layout"] == "mk"
    assert {violation.law for violation in found} == ({"turned"} if turned else set())


@pytest.mark.parametrize(("layout", "point"), some(WALKS, 3))
def test_every_walk_of_every_layout_is_the_product(layout: str, point: dict[str, Any]) -> None:
    """No race at any k; NumPy's interleavings and the emitted code give it at ragged sizes."""
    problem = Problem.of(matmul(layout=layout), m=33, n=65, k=17)
    schedule = Schedule.of(Simt(), {**SMALL, **point})
    assert check_schedule(schedule, Simt(), problem, load_device("h200")) == ()
    program = schedule.program(Simt(), problem.operation)
    assert check(program, problem.sizes) == ()
    found = interpret(program, problem.sizes, arch="sm_90a", seed=1)
    assert found.right
    assert found.findings == ()
    assert cost(program, problem.sizes, load_device("h200")).seconds > 0


@pytest.mark.parametrize(("dtype", "layout"), by_turns(["f16", "bf16", "f64"], LAYOUTS))
def test_every_type_goes_in_every_layout(dtype: str, layout: str) -> None:
    """Elements of 16 bits go through registers; sums of f64 in f64; c is whole at the edges."""
    point = {"accumulator": "f64"} if dtype == "f64" else {"guards": "tile"}
    values = {**SMALL, **point, "vector_shared": 2, "k_step": 2}
    program = Schedule.of(Simt(), values).program(Simt(), matmul(dtype, layout=layout))
    assert interpret(program, {"m": 33, "n": 65, "k": 17}, arch="sm_90a", seed=2).right


def test_copies_keep_the_contiguous_dimension_or_move_single_words() -> None:
    """cp.async moves 16 B where shared memory has lines as global memory has, else 4 B."""
    nt = Problem.of(matmul(layout="nt"), m=64, n=64, k=64)
    point = {**SMALL, "pipeline": "cp.async", "stages": 3, "a_layout": "mk", "vector_shared": 1,
             "vector_a": 4, "b_layout": "nk", "vector_b": 4, "tile_k": 16}  # fmt: skip
    device, along = load_device("h200"), Schedule.of(Simt(), point)
    assert check_schedule(along, Simt(), nt, device) == ()
    across = along.with_(b_layout="kn")
    found = {violation.law for violation in check_schedule(across, Simt(), nt, device)}
    assert "vector_contiguous" in found
    assert check_schedule(across.with_(vector_b=1), Simt(), nt, device) == ()
    wide = emit(along.program(Simt(), nt.operation))
    assert len(re.findall(r"cp\.async\.cg\.shared\.global \S+ \S+ 16\b", wide)) > 0
    narrow = emit(across.with_(vector_b=1).program(Simt(), nt.operation))
    assert len(re.findall(r"cp\.async\.ca\.shared\.global \S+ \S+ 4\b", narrow)) > 0


@all_by_turns(
    ("sizes", [(33, 65, 17), (64, 32, 16)]),
    ("change", [{}, {"split_k": 4, "combine": "red"}, {"specialised": 1}]),
)
def test_whole_tiles_are_asked_about_once(
    sizes: tuple[int, int, int], change: dict[str, Any]
) -> None:
    """Each load is there without and with a predicate; where all tiles are known whole, without."""
    m, n, k = sizes
    known_whole = "specialised" in change and sizes == (64, 32, 16)
    program = Simt().program(matmul(), Chosen({**SMALL, "guards": "tile", **change}))
    text = emit(program, sizes={"m": m, "n": n, "k": k})
    found = interpret(program, {"m": m, "n": n, "k": k}, arch="sm_90a", seed=3)
    assert found.right
    assert found.findings == ()
    loads = re.findall(r"^\t(@\S+ )?ld\.global", text, re.M)
    assert len(loads) == (1 if known_whole else 2) * loads.count("") > 0


@pytest.mark.parametrize("fused", [{"bias": True}, {"scaled": True}, {"batched": True}])
def test_what_it_does_not_fuse_is_refused_with_a_machine_that_does(fused: Any) -> None:
    """An epilogue or a batch names hopper, before any term is built."""
    with pytest.raises(OperationError, match="choose a machine that fuses, as hopper"):
        Schedule.of(Simt(), LADDER["tuned"]).program(Simt(), matmul("f32", **fused))


def test_16_bit_sums_do_not_meet_across_ctas() -> None:
    """A 16-bit output is stored once: adding to it would round at every part."""
    device = load_device("h200")
    split = Schedule.of(Simt(), {**LADDER["shared"], "split_k": 4, "combine": "red"})
    for dtype, output, legal in (("f16", None, False), ("f16", "f32", True), ("f32", None, True)):
        problem = Problem.of(matmul(dtype, output), m=64, n=64, k=256)
        broken = [v.law for v in check_schedule(split, Simt(), problem, device)]
        assert (broken == []) == legal, broken
