"""Groups: the lemma of slots, the operation, and the terms that deal groups out to tiles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_gpu import CupyArray, Gpu
from tests.ptx_runs import unchecked
from tests.sample import SOAK, all_by_turns, draws
from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.emulator import TensorMap as Emulated
from tinygpu.codegen.run.arguments import contract_of, dense
from tinygpu.codegen.run.interpretation import COMPLETIONS, execute, unwritten_outputs
from tinygpu.codegen.run.interpretation import interpret as emulate
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.runtime.contract import check as check_arguments
from tinygpu.codegen.runtime.maps import TensorMap, mapped_array
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, OperationError, ProgramError
from tinygpu.isa.algebra import FLOATS
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, check_schedule, require_legal
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.meaning.identity import computes
from tinygpu.meaning.inputs import drawn, drawn_ends
from tinygpu.meaning.interpret import check, interpret
from tinygpu.search.time.cost import cost, features
from tinygpu.search.time.launch import fetches
from tinygpu.search.time.tile_steps import share_of_tiles, steps_of_tiles
from tinygpu.search.tuning.shape import ends_of
from tinygpu.space.space import Space
from tinygpu.term.expression import Apply, Constant, apply, bounds, value
from tinygpu.term.groups import (
    END,
    FIRST,
    GROUP,
    slot_values,
    slots,
)
from tinygpu.term.operation import Groups, Operation, Problem, grouped_matmul, matmul
from tinygpu.term.program import Do, ForTile, Program, Statement, changed
from tinygpu.term.schedule import Schedule, from_json, to_json
from tinygpu.term.text import parse, text_of

OF = Groups("g", "m", "ends")
DIRECT = {**STARTS["persistent"], "epilogue": "direct", "store_n": 256, "store_stages": 1}
POINTS: Mapping[str, Mapping[str, Any]] = {
    "direct": DIRECT,
    "by tma": STARTS["persistent"],
    "cluster": STARTS["cluster"],
    "in turn": {**STARTS["pingpong"], "early": 1},
    "one tile each": {**STARTS["ring"]},
    "swapped": STARTS["swapped"],
    "swapped, by tma": {**STARTS["pingpong"], "tile_m": 64, "tile_n": 64, "swap": 1,
                        "store_n": 16, "store_stages": 1},
}  # fmt: skip
SIZES = {"g": 3, "m": 300, "n": 264, "k": 136}
RUN = (SIZES, {"g": 2, "m": 256, "n": 256, "k": 64}, {"g": 7, "m": 40, "n": 64, "k": 72})
H100 = load_device("h100")
HOPPER = MACHINES["hopper"]


def term(point: str, operation: Operation | None = None) -> Program:
    return Schedule.of(HOPPER, POINTS[point]).program(HOPPER, operation or grouped_matmul())


def ends_over(rows: int, count: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw the ends of so many groups of all rows."""
    inner = st.lists(st.integers(0, rows), min_size=count - 1, max_size=count - 1)
    return inner.map(lambda each: (*sorted(each), rows))


@st.composite
def groups(draw: st.DrawFn) -> tuple[int, tuple[int, ...], int]:
    """Draw rows, ends, and a block."""
    rows, count = draw(st.integers(1, 400)), draw(st.integers(1, 9))
    return rows, draw(ends_over(rows, count)), draw(st.integers(1, 130))


@given(groups())
@settings(max_examples=draws(100, 400), deadline=None)
def test_each_row_is_in_one_slot(drawn: tuple[int, tuple[int, ...], int]) -> None:
    rows, ends, block = drawn
    sizes = {"g": len(ends), "m": rows}
    met = np.zeros(rows, np.int64)
    every = slot_values(OF, "bs", block)
    for slot in range(int(slots(OF, block).evaluate(sizes))):
        known: dict[str, Any] = {**sizes, "ends": ends, "bs": slot}
        for name, expression in every.items():
            known[name] = expression.evaluate(known)
        group, first, end = known[GROUP], known[FIRST], known[END]
        here = range(first, min(first + block, end))
        begin = (0, *ends)[group]
        assert all(begin <= row < ends[group] for row in here)
        met[here.start : max(here.stop, here.start)] += 1
    assert (met == 1).all()


@given(groups())
@settings(max_examples=draws(50, 100), deadline=None)
def test_bounds_hold_and_arrays_are_each_of_them(drawn: tuple[int, tuple[int, ...], int]) -> None:
    rows, ends, block = drawn
    sizes = {"g": len(ends), "m": rows}
    count = int(slots(OF, block).evaluate(sizes))
    limits: dict[str, tuple[Any, Any]] = {n: (x, x) for n, x in sizes.items()}
    limits |= {"bs": (0, count - 1), "ends": (0, rows)}
    known: dict[str, Any] = {**sizes, "ends": ends, "bs": np.arange(count)}
    blocks: dict[str, Any] = {**sizes, "ends": ends, "bs": count // 2}
    several: Any = np.array([block, block + 3])  # as over a space
    varied = slot_values(OF, "bs", several)
    for name, expression in slot_values(OF, "bs", block).items():
        known[name] = expression.evaluate(known)
        limits[name] = bounds(expression, limits)
        blocks[name] = varied[name].evaluate(blocks)
        for slot in range(count):
            one = expression.evaluate({**{n: x[slot] if isinstance(x, np.ndarray) else x
                                          for n, x in known.items()}, "ends": ends})  # fmt: skip
            assert one == known[name][slot]
            assert limits[name][0] <= one <= limits[name][1]
        assert blocks[name][0] == known[name][count // 2]
    assert limits[FIRST] == (0, rows)


def reference(inputs: Mapping[str, Any], finish: Callable[[Any], Any]) -> Any:
    found = []
    for i, (start, end) in enumerate(pairwise((0, *inputs["ends"]))):
        sums = inputs["a"][start:end] @ inputs["b"][i].T
        found.append(finish(sums + inputs["bias"][i]))
    return np.concatenate(found)


@pytest.mark.parametrize("seed", range(6))
def test_the_operation_is_a_product_for_each_group(seed: int) -> None:
    operation, sizes = grouped_matmul("f32", bias=True), {"g": 5, "m": 23, "n": 7, "k": 6}
    inputs = drawn(operation, sizes, "normal", np.random.default_rng(seed).standard_normal)
    found = operation.reference(inputs)
    assert np.allclose(found["c"], reference(inputs, lambda x: x))
    assert (found["scale of c"] > 0).all()


def test_flops_and_bytes_are_those_of_the_rows() -> None:
    sizes = {"g": 8, "m": 64, "n": 32, "k": 16}
    assert grouped_matmul().flops(sizes) == matmul("bf16").flops(sizes)
    more = 7 * 32 * 16 * 2 + 8 * 4
    assert grouped_matmul().bytes(sizes) == matmul("bf16").bytes(sizes) + more


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ((3, 2, 10), "group 1 ends at 2, before it begins, at 3"),
        ((3, 5, 9), "the last group ends at 9, and m is 10"),
        ((3, 10), "2 ends; there are 3 groups"),
    ],
)
def test_ends_that_are_none_are_refused(ends: tuple[int, ...], why: str) -> None:
    with pytest.raises(OperationError, match=re.escape(why)):
        Problem.of(grouped_matmul(), g=3, m=10, n=8, k=8, ends=ends)
    with pytest.raises(OperationError, match="it has no groups"):
        Problem(matmul(), (("m", 1), ("n", 1), ("k", 1)), (1,))


def test_groups_that_are_none_are_refused() -> None:
    plain = grouped_matmul()
    for groups, why in (
        (Groups("m", "m", "ends"), "m is an output's axis, or reduced"),
        (Groups("k", "m", "ends"), "k is an output's axis, or reduced"),
        (Groups("g", "k", "ends"), "groups: k is no axis"),
        (Groups("g", "n", "ends"), "an input has rows and g"),
    ):
        with pytest.raises(OperationError, match=why):
            replace(plain, groups=groups)
    with pytest.raises(OperationError, match=r"g is not|lacks g"):
        replace(plain, groups=None)


def test_a_lookup_reads_an_array_by_its_name() -> None:
    with pytest.raises(OperationError, match="is no array's name"):
        apply("element", Constant(3), value("g"))
    with pytest.raises(OperationError, match="no array ends is given"):
        apply("element", value("ends"), Constant(0)).evaluate({"g": 1})
    wanted = apply("element", value("ends"), value("i"))
    assert [wanted.evaluate({"ends": (4, 9), "i": i}, FLOATS) for i in (-1, 0, 1)] == [0, 4, 9]


@pytest.mark.parametrize("point", POINTS)
def test_terms_are_legal_and_keep_the_laws(point: str) -> None:
    problem = Problem.of(grouped_matmul(), g=8, m=4096, n=4096, k=4096)
    assert verdict(term(point)).legal
    assert not check_schedule(Schedule.of(HOPPER, POINTS[point]), HOPPER, problem, H100)


@pytest.mark.parametrize("point", ["direct", "by tma", "swapped"])
def test_terms_compute_the_operation(point: str) -> None:
    found = computes(term(point))
    assert found
    assert "each tile's own" in found.unproved
    assert not check(term(point), SIZES if SOAK else {"g": 2, "m": 140, "n": 136, "k": 136})


@all_by_turns(("point", POINTS), ("seed", range(len(RUN))), ("order", COMPLETIONS))
def test_code_gives_the_operation(point: str, seed: int, order: str) -> None:
    operation = grouped_matmul(bias=True, activation="silu")
    found = emulate(
        term(point, operation), RUN[seed], arch="sm_90a", seed=seed, completions=(order,)
    )
    assert found.error <= 1
    assert not found.findings


@pytest.mark.parametrize("point", ["direct", "cluster"])
def test_sums_of_e4m3_are_scaled_by_rows_and_columns(point: str) -> None:
    operation = grouped_matmul("e4m3", scales=True, bias=True, activation="silu")
    assert "((acc * scale_a) * scale_b) + bias" in str(operation)
    values = {**POINTS[point], "tile_k": 128}
    sizes = {"g": 3, "m": 300, "n": 144, "k": 160}
    assert not check_schedule(
        Schedule.of(HOPPER, values), HOPPER, Problem.of(operation, **sizes), H100
    )
    program = Schedule.of(HOPPER, values).program(HOPPER, operation)
    assert verdict(program).legal
    assert computes(program, sizes)
    assert emulate(program, sizes, arch="sm_90a").right


def _edited(program: Program, of: Callable[[Statement], Statement]) -> Program:
    roles = tuple(replace(role, body=changed(role.body, of)) for role in program.roles)
    return replace(program, roles=roles)


def _valued(name: str, change: Callable[[Any], Any]) -> Callable[[Program], Program]:
    def of(s: Statement) -> Statement:
        if not isinstance(s, ForTile):
            return s
        return replace(s, values=tuple((n, change(e) if n == name else e) for n, e in s.values))

    return lambda program: _edited(program, of)


def _unguarded(program: Program) -> Program:
    def of(s: Statement) -> Statement:
        if not isinstance(s, Do) or END not in s.write.guard:
            return s
        return replace(s, write=replace(s.write, guard=(True,) * len(s.write.guard)))

    return _edited(program, of)


def _fewer_slots(program: Program) -> Program:
    first, *others = program.grid
    return replace(program, grid=(replace(first, extent=first.extent - 1), *others))


def _of_64(node: Any) -> Any:
    match node:
        case Apply(operator, arguments):
            return Apply(operator, tuple(map(_of_64, arguments)))
        case Constant(128):
            return Constant(64)
    return node


WRONG: Mapping[str, tuple[str, Callable[[Program], Program]]] = {
    "slots of half the rows": ("direct", _valued(GROUP, _of_64)),
    "a block before": ("direct", _valued(FIRST, lambda e: apply("max", e - 64, 0))),
    "a row less": ("direct", _valued(END, lambda e: apply("max", e - 1, 0))),
    "rows of the next group": ("direct", _unguarded),
    "a slot less": ("direct", _fewer_slots),
    "rows of the next group, by tma": ("by tma", _unguarded),
    "a row less, by tma": ("by tma", _valued(END, lambda e: apply("max", e - 1, 0))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_term_breaks_the_law_of_stores_and_computes_something_else(name: str) -> None:
    point, change = WRONG[name]
    program = change(term(point))
    problem = Problem.of(program.operation, g=8, m=4096, n=4096, k=4096)
    laws = [law for law in _broken(program, problem) if law == "store_once"]
    assert laws, name
    sizes: dict[str, Any] = {"g": 2, "m": 300, "n": 264, "k": 72}
    ends = (1 if name == "a slot less" else 100, 300)
    normal = np.random.default_rng(0).standard_normal
    inputs = drawn(program.operation, sizes | {"ends": ends}, "normal", normal)
    assert interpret(program, sizes, inputs).findings


def _broken(program: Program, problem: Problem) -> list[str]:
    case = Case.of(program, problem.sizes, H100)
    return [
        law.name
        for law in LAWS.values()
        for clause in law.clauses(case)
        if not np.all(clause.holds)
    ]


@given(st.integers(1, 300), st.integers(1, 128), st.data())
@settings(max_examples=200, deadline=None)
def test_a_ragged_box_ends_at_any_line(rows: int, lines: int, data: st.DataObject) -> None:
    """The map's two coordinates of lines meet those from the first on, as many as are left."""
    first = data.draw(st.integers(0, rows))
    left = data.draw(st.integers(0, min(lines, rows - first)))
    pitch, address = 96, 2**20
    ragged = TensorMap("c", "bf16", (32, lines), 0, ragged=True)
    there = mapped_array(ragged, address, 2, (rows, 40), (pitch, 2))
    seen_by_tma = Emulated(there.address, "bf16", there.lengths, there.pitches, there.box)
    places, inside = seen_by_tma.places((16, lines - left, first + left))
    line, column = np.divmod(places[inside] - address, pitch)
    wanted = {(i, 2 * j) for i in range(first, first + left) for j in range(16, 40)}
    assert {*zip(line.tolist(), column.tolist(), strict=True)} == wanted
    assert inside.sum() == len(wanted)


@pytest.mark.parametrize("point", ["by tma", "swapped, by tma"])
def test_threads_store_no_rows_where_tma_does(point: str) -> None:
    text = emit(term(point), "sm_90a", SIZES)
    assert "cp.async.bulk.tensor.3d.global" in text
    assert "st.global" not in text


WALKS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "as it is": ("setp.ge.u32", lambda line: line),
    "one slot too many": ("setp.ge.u32", lambda line: line.replace(".ge.", ".gt.")),
    "no rows before": ("+-4]", lambda _: ""),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_wrong_walk_over_the_groups_is_seen(name: str) -> None:
    what, change = WALKS[name]
    point = {**DIRECT, "tile_n": 128, "store_n": 128, "raster": 4}
    program = Schedule.of(HOPPER, point).program(HOPPER, grouped_matmul())
    sizes = {"g": 6, "m": 600, "n": 384, "k": 64}
    lines = emit(program, "sm_90a", sizes, unchecked=True).splitlines()
    assert any(what in line for line in lines)
    text = "\n".join(change(line) if what in line else line for line in lines)
    operation, normal = program.operation, np.random.default_rng(3).standard_normal
    known: dict[str, Any] = sizes | {"ends": (100, 217, 217, 440, 500, 600)}
    inputs = drawn(operation, known, "normal", normal)
    rounded = {o.name: DTYPES[o.dtype].round(inputs[o.name]) for o in operation.inputs}
    outputs = unwritten_outputs(program, operation.shapes(sizes))
    arrays = {**rounded, "ends": inputs["ends"], **outputs}
    execute(program, sizes, arrays, Module.parse(text), clusters=5)  # which turn back, too
    wanted = operation.reference({**{n: x.astype(float) for n, x in rounded.items()},
                                  "ends": inputs["ends"]})["c"]  # fmt: skip
    off = np.abs(outputs["c"].astype(float) - wanted).max()
    assert (off > 1 or math.isnan(off)) == (name != "as it is")


def test_a_launch_takes_ends_of_i32() -> None:
    problem = Problem.of(grouped_matmul(), **SIZES)
    contract, views = contract_of(term("direct"), problem.sizes), dense(problem)
    assert check_arguments(contract, views)["grid_br"] == 300 // 128 + 3
    views[2] = replace(views[2], dtype="f32")
    with pytest.raises(LaunchError, match="dtype f32, the kernel takes i32"):
        check_arguments(contract, views)


@pytest.mark.parametrize(("ends", "complaint"), [
    ((100, 90, 300), "group 1 ends at 90, before it begins, at 100"),
    ((100, 200, 299), "the last group ends at 299, and m is 300"),
    ((100, 100, 300), ""),
])  # fmt: skip
def test_a_debugged_kernel_reads_the_ends_first(
    fake: Gpu, ends: tuple[int, ...], complaint: str
) -> None:
    class Ends(CupyArray):
        def tolist(self) -> list[int]:
            return [*ends]

    Ends.__module__, Ends.__name__ = CupyArray.__module__, CupyArray.__name__
    arrays = [CupyArray(shape, np.float16) for shape in ((300, 64), (3, 64, 64), (300, 64))]
    a, b, c = arrays
    kernel = Kernel(term("direct", grouped_matmul("f16")), arch="sm_90a", debug=True)
    if complaint:
        with pytest.raises(LaunchError, match=complaint):
            kernel(a, b, Ends((3,), np.int32), out=c)
    else:
        kernel(a, b, Ends((3,), np.int32), out=c)
    assert len(fake.launched()) == (not complaint)


@pytest.mark.parametrize("expression", [
    value("ends"), value("ends") + apply("element", value("ends"), 1),
    apply("element", value("br"), value(GROUP)), apply("element", value("m"), value("ends")),
], ids=str)  # fmt: skip
def test_a_lookup_reads_an_array_and_nothing_else_does(expression: Any) -> None:
    with pytest.raises(ProgramError, match="looks up elements of an array of integers"):
        _valued(END, lambda _: expression)(term("direct"))


def test_no_parameter_looks_up_elements() -> None:
    for looked, said in ((value("m"), "reads m"), (value("ends"), "names 'ends'")):
        more = (("more", apply("element", looked, 1)),)
        with pytest.raises(ProgramError, match=f"parameter more.* {said}"):
            replace(term("direct"), parameters=(*term("direct").parameters, *more))


@pytest.mark.parametrize("name", ["nobody", "m", "br", "ends", "ld_c"])
def test_a_guard_names_a_tile_value(name: str) -> None:
    def of(s: Statement) -> Statement:
        if not isinstance(s, Do) or END not in s.write.guard:
            return s
        guard = tuple(name if g == END else g for g in s.write.guard)
        return replace(s, write=replace(s.write, guard=guard))

    with pytest.raises(ProgramError, match=f"below '{name}', no tile value here"):
        _edited(term("direct"), of)


def test_another_index_of_a_lookup_has_no_code() -> None:
    program = _valued(END, lambda _: apply("element", value("ends"), value("br")))(term("direct"))
    with pytest.raises(ProgramError, match="no code"):
        unchecked(program, "sm_90a", SIZES)


def test_time_goes_by_the_ends() -> None:
    operation, sizes = grouped_matmul(), {"g": 16, "m": 16384, "n": 4096, "k": 2048}
    program = term("by tma", operation)
    even, skewed = (
        cost(program, Problem.of(operation, **sizes, ends=ends_of(how, OF, sizes)).sizes, H100)
        for how in ("even", "zipf")
    )
    plain = Schedule.of(HOPPER, POINTS["by tma"]).program(HOPPER, matmul("bf16", layout="nt"))
    dense_time = cost(plain, {a: sizes[a] for a in "mnk"}, H100).seconds
    assert dense_time <= even.seconds < skewed.seconds < 2 * dense_time
    assert share_of_tiles(program, sizes, "trips") == 128 / (128 + 16)
    assert set(steps_of_tiles(program, sizes, "trips", ()).busiest(0, 16)) == {32}


@pytest.mark.parametrize("raster", [1, 4, 8])
@pytest.mark.parametrize("rows", [128, 1024, 2048])
def test_weights_come_once_a_wave_that_reads_them(rows: int, raster: int) -> None:
    at_once, columns, (groups, block) = 128, 16, (8, 128)
    sizes = {"g": groups, "m": groups * rows, "n": columns * 256, "k": 2048}
    program = replace(term("by tma"), raster=raster)
    launch = features(program, Problem.of(grouped_matmul(), **sizes).sizes, H100).launch
    weights = next(o for o in launch.operands if o.name == "b")
    told = fetches(weights, launch.axes, launch.extents, wave=at_once, raster=launch.raster)
    tiles = [
        (row // (rows // block), column)
        for first in range(0, groups * rows // block, raster)
        for column in range(columns)
        for row in range(first, min(first + raster, groups * rows // block))
    ]
    read = sum(len({*tiles[i : i + at_once]}) for i in range(0, len(tiles), at_once))
    assert told == pytest.approx(read / (groups * columns), rel=0.25)


def test_a_space_has_the_groups_laws() -> None:
    problem = Problem.of(grouped_matmul(), g=8, m=2048, n=2048, k=1024)
    space = Space(HOPPER, problem, H100)
    for schedule in space.sample(np.random.default_rng(3), draws(4, 40)):
        assert dict(schedule.decisions)["cluster_k"] == 1
        require_legal(schedule, HOPPER, problem, H100)
        assert verdict(schedule.program(HOPPER, problem.operation)).legal


def test_files_have_groups() -> None:
    problem = Problem.of(grouped_matmul(bias=True), **SIZES, ends=(1, 1, 300))
    schedule = Schedule.of(HOPPER, POINTS["direct"])
    _, again, same = from_json(to_json(schedule, problem), MACHINES)
    assert (again, same) == (problem, schedule)
    program = term("by tma")
    assert parse(text_of(program)) == program


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_drawn_ends_are_ends(rows: int, count: int, seed: int) -> None:
    sizes = {"g": count, "m": rows}
    normal = np.random.default_rng(seed).standard_normal(count)
    OF.require(drawn_ends(OF, sizes, normal).tolist(), sizes)
    for how in ("even", "zipf"):
        OF.require(ends_of(how, OF, sizes), sizes)


def test_an_operation_of_that_name_and_another_form_is_refused() -> None:
    other = replace(grouped_matmul(), groups=Groups("g", "m", "offs"))
    with pytest.raises(OperationError, match="is no matmul"):
        Hopper().check(other)
