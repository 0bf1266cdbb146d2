"""The interpreter: right programs give NumPy's result and no finding, wrong ones are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.mutants import mutants, rewritten
from tinygpu.errors import OperationError, ProgramError
from tinygpu.expression import Constant, apply, value
from tinygpu.instruction import INSTRUCTIONS
from tinygpu.interpret import check, interpret, reduced
from tinygpu.machine import Chosen
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.memory import DTYPES
from tinygpu.operation import Operand, Operation, Problem, elementwise, matmul, reduce
from tinygpu.program import (
    Access,
    Affine,
    Axis,
    Buffer,
    Commit,
    Do,
    Exit,
    For,
    Immediate,
    Program,
    Role,
    Scalar,
    Statement,
    Sync,
    WaitGroup,
    When,
    registers,
    var,
)
from tinygpu.race import Cells, GlobalArray

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
@pytest.mark.parametrize("tiles", range(8))
def test_pipelines_of_cp_async_are_clean_at_every_number_of_tiles(stages: int, tiles: int) -> None:
    program = simt({**ASYNC, "stages": stages})
    assert kinds(program, (tiles % 3,), m=17, n=14, k=8 * tiles) == set()
    if tiles:
        assert kinds(program, (tiles % 3,), m=16, n=16, k=8 * tiles - 2) == set()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("accumulator", ["f32", "f64", "f32+f64"])
@pytest.mark.parametrize("point", [NONE, SPLIT], ids=["store", "red"])
def test_narrow_types_and_wide_sums_are_right(
    dtype: str, accumulator: str, point: dict[str, Any]
) -> None:
    program = simt({**point, "accumulator": accumulator}, dtype)
    assert kinds(program, (1,), m=17, n=18, k=26) == set()


@given(st.data())
@settings(max_examples=25)
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
        d["a_layout"] = "mk" if d["pipeline"] == "cp.async" else draw("a_layout")
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
    for name, mutant in mutants(program):
        found = any(check(mutant, s, seeds=(seed,)) for seed, s in enumerate(sizes))
        assert found or name.startswith((*HARMLESS, *harmless)), name
        count += found
    assert count >= 15


# Programs that no machine makes: one CTA of 64 threads copies x to y.

X, Y = Buffer("x", "gmem", "f32", ("i",), (1,)), Buffer("y", "gmem", "f32", ("i",), (1,))
HELD = registers("held", "f32", 1)
HERE = Access(HELD, ((0,),))
TILE = Buffer("tile", "smem", "f32", (64,), (1,), 2, 64)
T = 64


def at(buffer: Buffer, *, step: int = 1, index: Any = None) -> Access:
    guard = (True,) if buffer.level == "gmem" else ()
    access = Access(buffer, ((0,),), ((step,),), guard=guard)
    return access if index is None else replace(access, index=index)


def do(name: str, write: Access, *reads: Any, **how: Any) -> Do:
    return Do(INSTRUCTIONS[name], write, reads, (1,), (T,), **how)


LOAD, STORE = do("ld.global", HERE, at(X)), do("st.global", at(Y), HERE)
PUT, GET = do("st.shared", at(TILE), HERE), do("ld.shared", HERE, at(TILE))
ASYNC_PUT = do("cp.async", at(TILE), at(X))
COPY = elementwise(value("x") * 1.0, inputs=("x",))


def program(*body: Statement, operation: Operation = COPY, **how: Any) -> Program:
    buffers = how.pop("buffers", (X, Y, HELD, TILE))
    roles = how.pop("roles", (Role("all", T, body),))
    return Program("hand", operation, buffers, (), (Axis("b", Constant(1)),), roles, **how)


def test_a_copy_by_hand_is_clean() -> None:
    for body in ((LOAD, STORE), (LOAD, PUT, Sync(), GET, STORE), (LOAD, PUT, GET, STORE)):
        assert kinds(program(*body), i=50) == set()
    awaited = (ASYNC_PUT, Commit(), WaitGroup(0), GET, STORE)
    assert kinds(program(*awaited), i=50) == set()
    assert kinds(program(do("mov", HERE, Immediate(0.0)), LOAD, STORE), i=64) == set()


HALF = Do(
    INSTRUCTIONS["ld.shared"], HERE, (Access(TILE, ((0,),), ((0,),)),), (1,), (T,)
)  # all read cell 0


LOAD_32, STORE_32 = replace(LOAD, threads=(32,)), replace(STORE, threads=(32,))

WRONG: dict[str, tuple[set[str], Callable[[], Program]]] = {
    "no barrier": ({"race"}, lambda: program(LOAD, PUT, HALF, LOAD, STORE)),
    "all write one cell": (
        {"race"},
        lambda: program(LOAD, do("st.shared", at(TILE, step=0), HERE), STORE),
    ),
    "exit before a barrier": (
        {"deadlock"},
        lambda: program(Exit(at(X), (1,), (T,)), LOAD, Sync(), STORE),
    ),
    "two barriers at once": (
        {"deadlock"},
        lambda: program(
            roles=(Role("a", 32, (Sync(0), Sync(1))), Role("b", 32, (Sync(1), Sync(0))))
        ),
    ),
    "one role waits alone": (
        {"deadlock"},
        lambda: program(roles=(Role("a", 32, (Sync(),)), Role("b", 32, (LOAD,)))),
    ),
    "another index": (
        {"stale"},
        lambda: program(
            LOAD, PUT, Sync(), do("ld.shared", HERE, at(TILE, index=var("b", 1) + 2)), STORE
        ),
    ),
    "another stage": (
        {"unwritten_read"},
        lambda: program(
            LOAD, PUT, Sync(), do("ld.shared", HERE, at(TILE, index=1 + var("b"))), STORE
        ),
    ),
    "register never set": ({"unwritten_read"}, lambda: program(STORE)),
    "no store": ({"unwritten"}, lambda: program(LOAD)),
    "two stores": ({"written_twice"}, lambda: program(LOAD, STORE, STORE)),
    "store and add": (
        {"written_twice"},
        lambda: program(LOAD, STORE, do("red.global", at(Y), HERE), zeroed=True),
    ),
    "no guard": (
        {"out_of_bounds"},
        lambda: program(do("ld.global", HERE, replace(at(X), guard=())), STORE),
    ),
    "beyond the tile": (
        {"out_of_bounds"},
        lambda: program(LOAD, do("st.shared", at(TILE, step=2), HERE), STORE),
    ),
    "before the start": (
        {"out_of_bounds"},
        lambda: program(do("ld.global", HERE, replace(at(X), origin=(Affine(-1),))), STORE),
    ),
    "before the tile": (
        {"out_of_bounds"},
        lambda: program(
            LOAD, do("st.shared", replace(at(TILE), origin=(Affine(-1),)), HERE), STORE
        ),
    ),
    "a leading dimension too long": (
        {"out_of_bounds"},
        lambda: rewritten(program(LOAD, STORE), X, replace(X, stride=(2,))),
    ),
    "a tile larger than its stage": (
        {"out_of_bounds"},
        lambda: rewritten(program(LOAD, PUT, STORE), TILE, replace(TILE, stride=(2,))),
    ),
    "one statement stores twice": (
        {"written_twice"},
        lambda: program(
            roles=(Role("all", 32, (LOAD_32, replace(STORE_32, write=at(Y, step=0)))),)
        ),
    ),
    "input overwritten": (
        {"written_input"},
        lambda: program(LOAD, STORE, do("st.global", at(X), HERE)),
    ),
    "added to poison": (
        {"red_not_zeroed", "wrong_result"},
        lambda: program(LOAD, do("red.global", at(Y), HERE)),
    ),
    "no wait": ({"unwaited"}, lambda: program(ASYNC_PUT, Commit(), GET, LOAD, STORE)),
    "never committed": ({"unwaited"}, lambda: program(ASYNC_PUT, WaitGroup(0), LOAD, STORE)),
    "read in the epoch of the wait": (
        {"race"},
        lambda: program(ASYNC_PUT, Commit(), WaitGroup(0), HALF, LOAD, STORE),
    ),
    "half a warp shuffles": (
        {"shuffle"},
        lambda: program(LOAD, STORE, do("shfl.sync", HERE, HERE, across=16, lanes=(16, 2, 0))),
    ),
    "wrong arithmetic": (
        {"wrong_result"},
        lambda: program(LOAD, do("fma", HERE, HERE, Immediate(1.001), variant="mul"), STORE),
    ),
    "reads the output": (
        {"unwritten_read"},
        lambda: program(do("ld.global", HERE, at(Y)), LOAD, STORE),
    ),
    "reads another's output": (
        {"race"},
        lambda: program(LOAD, STORE, do("ld.global", HERE, replace(at(Y), thread=((0,),)))),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_kind_of_finding_has_its_cause(name: str) -> None:
    expected, make = WRONG[name]
    found = kinds(make(), i=50)
    assert expected <= found
    assert found - expected <= {"wrong_result", "unwritten", "unwritten_read", "stale"}


def test_the_causes_cover_every_kind_but_misaligned() -> None:
    assert set().union(*(expected for expected, _ in WRONG.values())) == {
        "race", "deadlock", "stale", "unwritten_read", "unwritten", "out_of_bounds",
        "written_twice", "written_input", "red_not_zeroed", "shuffle", "unwaited", "wrong_result",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("step", "count", "found"),
    [
        (4, 64, set()),
        (4, 62, {"out_of_bounds"}),
        (5, 80, {"misaligned"}),
        (2, 64, {"misaligned"}),
    ],
)
def test_vectors_are_aligned_runs_and_not_cut_by_a_guard(
    step: int, count: int, found: set[str]
) -> None:
    held = registers("four", "f32", 4)
    there = Access(X, ((1,),), ((step,),), guard=(True,))
    load = Do(INSTRUCTIONS["ld.global"], Access(held, ((1,),)), (there,), (4,), (16,), 4)
    made = program(load, buffers=(X, Y, held), roles=(Role("all", 16, (load,)),))
    assert kinds(made, i=count) - {"unwritten", "wrong_result"} == found


def test_a_finding_says_statement_cta_thread_and_cell() -> None:
    (race, *_) = (f for f in check(WRONG["no barrier"][1](), {"i": 50}) if f.kind == "race")
    assert race.statement == str(HALF)
    assert race.other == str(PUT)
    assert race.cta == (0,)
    assert race.cell == "tile[0]"
    assert str(race).startswith("race: hand, CTA (0,), thread ")
    assert "\n" not in str(race)


def test_copies_land_late_early_and_at_random_by_the_seed() -> None:
    """Without its wait a copy is seen only where it lands at once."""
    made = program(ASYNC_PUT, Commit(), GET, STORE, WaitGroup(0))
    seen = ["unwritten_read" in kinds(made, (seed,), i=64) for seed in range(3)]
    assert seen[0]
    assert not seen[2]
    assert all(kinds(made, (seed,), i=64) >= {"unwaited"} for seed in range(3))


def test_who_runs_first_is_the_seeds_choice() -> None:
    """Two warps store to the same cell; the later one's value stays."""
    clash = do("st.shared", replace(at(TILE), thread=((0,),)), HERE)
    made = program(LOAD, clash, Sync(), HALF, STORE)
    x = np.arange(64.0)
    results = {float(interpret(made, {"i": 64}, {"x": x}, seed=s).outputs["y"][0]) for s in (0, 2)}
    assert len(results) == 2


def test_values_are_taken_in_order_where_they_depend_on_each_other() -> None:
    """acc += x[v] over v sums; the sum of a row through shuffles is the operation's."""
    i, j = ("i", "j"), 64
    rows = Buffer("x", "gmem", "f32", i, ("j", 1))
    out = Buffer("y", "gmem", "f32", ("i",), (1,))
    many, acc, far = (
        registers("many", "f32", 2),
        registers("acc", "f32", 1),
        registers("far", "f32", 1),
    )
    there = Access(rows, ((0, 32),), ((0, 1),), (var("b"), var("b", 0)), guard=(True, True))
    total = Access(acc, ((0,),))
    fma, one = INSTRUCTIONS["fma"], (1,)
    body: list[Statement] = [
        Do(INSTRUCTIONS["ld.global"], Access(many, ((1,),)), (there,), (2,), (32,)),
        Do(INSTRUCTIONS["mov"], total, (Immediate(0.0),), one),
        Do(fma, total, (total, Access(many, ((1,),))), (2,), variant="add"),
    ]
    for mask in (16, 8, 4, 2, 1):
        body.append(Do(INSTRUCTIONS["shfl.sync"], Access(far, ((0,),)), (total,), one, across=mask))
        body.append(Do(fma, total, (total, Access(far, ((0,),))), one, variant="add"))
    scaled = (total, Scalar("s"))
    body.append(Do(fma, total, scaled, one, variant="mul"))
    body.append(Do(fma, total, (total, Scalar("j", size=True)), one, variant="add"))
    put = Access(out, ((0,),), ((0,),), (var("b"),), guard=(True,))
    body.append(Do(INSTRUCTIONS["st.global"], put, (total,), one, (32,), lanes=(1, 32, 0)))
    operation = reduce(
        value("x"), value("acc") * value("s") + value("j"),
        inputs=(Operand("x", i, "f32"),), output=Operand("y", ("i",), "f32"),
    )  # fmt: skip
    made = Program(
        "rows", operation, (rows, out, many, acc, far), (), (Axis("b", value("i")),),
        (Role("all", 32, tuple(body)),),
    )  # fmt: skip
    assert check(made, {"i": 3, "j": j}) == ()
    for n in range(len(body)):
        less = (*body[:n], *body[n + 1 :])
        assert check(replace(made, roles=(Role("all", 32, less),)), {"i": 3, "j": j}), body[n]


@pytest.mark.parametrize(
    "statement",
    [
        WaitGroup(-1),
        do("ld.shared", HERE, at(X)),
        do("st.global", at(TILE), HERE),
        do("fma", HERE, Access(registers("wide", "f64", 1), ((0,),)), HERE, variant="add"),
        do("fma", HERE, HERE, HERE, variant="sum"),
        do("mov", replace(HERE, thread=((1,),)), Immediate(0.0)),
        Do(INSTRUCTIONS["ld.global"], HERE, (at(X),), (1,), (32,)),
        Do(INSTRUCTIONS["ld.global"], HERE, (at(X),), (1, 1), (T,)),
    ],
    ids=["pending", "level", "target", "dtype", "variant", "registers", "threads", "modes"],
)
def test_a_term_that_makes_no_sense_is_refused(statement: Statement) -> None:
    buffers = (X, Y, HELD, TILE, registers("wide", "f64", 1))
    with pytest.raises(ProgramError):
        check(program(statement, buffers=buffers), {"i": 64})


def test_inputs_of_the_wrong_shape_and_missing_scalars_are_refused() -> None:
    with pytest.raises(OperationError, match=r"has shape \(3,\)"):
        interpret(program(LOAD, STORE), {"i": 64}, {"x": np.zeros(3)})
    scaled = replace(COPY, scalars=("s",))
    with pytest.raises(OperationError, match="no scalar s"):
        interpret(program(LOAD, STORE, operation=scaled), {"i": 64}, {"x": np.zeros(64)})


def test_a_small_instance_has_ragged_tiles_where_guards_allow() -> None:
    problem = Problem.of(matmul(), m=4096, n=4096, k=4096)
    ragged = reduced(problem, simt(ASYNC))
    assert ragged == {"m": 25, "n": 26, "k": 38}  # 3 + 2 tiles of k, the last one of 6
    exact = reduced(problem, simt({**ASYNC, "edges": "exact"}))
    assert exact == {"m": 32, "n": 32, "k": 40}
    assert reduced(problem, simt(RETURN)) == {"m": 13, "n": 13, "k": 3}
    added = reduced(problem, simt({**SPLIT, "vector_b": 1, "vector_c": 2}))
    assert added["n"] == 25  # red adds one by one, so c needs no whole vectors
    tiny = reduced(Problem.of(matmul(), m=1, n=4096, k=7), simt(NONE))
    assert (tiny["m"], tiny["k"]) == (1, 7)


def test_a_vector_of_every_other_element_is_misaligned() -> None:
    held = registers("two", "f32", 2)
    there = Access(X, ((2,),), ((4,),), guard=(True,))
    load = Do(INSTRUCTIONS["ld.global"], Access(held, ((1,),)), (there,), (2,), (16,), 2)
    made = program(load, buffers=(X, Y, held), roles=(Role("all", 16, (load,)),))
    assert "misaligned" in kinds(made, i=64)
    single = replace(made, roles=(Role("all", 16, (replace(load, vector=1),)),))
    assert "misaligned" not in kinds(single, i=64)


def test_a_thread_with_one_element_inside_stays() -> None:
    two = registers("two", "f32", 2)
    x, y = (Access(b, ((32,),), ((1,),), guard=(True,)) for b in (X, Y))
    held, threads = Access(two, ((1,),)), (32,)
    load = Do(INSTRUCTIONS["ld.global"], held, (x,), (2,), threads)
    store = Do(INSTRUCTIONS["st.global"], y, (held,), (2,), threads)
    body = (Exit(x, (2,), threads), load, store)
    made = program(buffers=(X, Y, two), roles=(Role("all", 32, body),))
    assert kinds(made, i=50) == set()
    assert kinds(made, i=20) == set()


def test_threads_and_lanes_count_from_the_start_of_their_role() -> None:
    body = tuple(replace(s, lanes=(32, 2, 0)) for s in (LOAD_32, STORE_32))
    roles = (Role("idle", 32, ()), Role("copy", 32, body))
    assert kinds(program(roles=roles), i=32) == set()


def test_every_instruction_rounds_to_the_type_it_writes() -> None:
    tenth = do("fma", HERE, HERE, Immediate(0.1), variant="mul")
    back = do("fma", HERE, HERE, Immediate(10.0), variant="mul")
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    got = interpret(program(LOAD, tenth, back, STORE), {"i": 64}, {"x": x}).outputs["y"]
    np.testing.assert_array_equal(got, x * np.float32(0.1) * np.float32(10))


def test_sums_in_memory_round_each_time() -> None:
    cell = GlobalArray(np.zeros(1), DTYPES["bf16"], output=True, zeroed=True)
    same = np.zeros(3, np.int64)
    assert cell.add(same, np.array([256.0, 1.0, 1.0]), np.arange(3)) is None
    assert cell.flat[0] == 256


def test_where_the_reference_is_no_number_any_result_is_right() -> None:
    root = elementwise(apply("sqrt", value("x")), inputs=("x",))
    made = program(LOAD, do("mufu", HERE, HERE, variant="sqrt"), STORE, operation=root)
    assert kinds(made, i=64) == set()


OPERATIONS = st.tuples(
    st.sampled_from(("read", "write", "issue")),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=3, unique=True),
    st.booleans(),
)


TWO_READERS = [("read", [(0, thread)], False) for thread in (0, 1)]


@given(st.lists(OPERATIONS, max_size=12))
@example([*TWO_READERS, ("write", [(0, 0)], False)])
@example([*TWO_READERS, ("write", [(0, 1)], False)])
def test_cells_find_a_race_exactly_where_pairs_of_accesses_show_one(
    operations: list[tuple[str, list[tuple[int, int]], bool]],
) -> None:
    """Against the whole history; a barrier follows where the flag is set, waits just before it."""
    cells, epoch = Cells(2), 0
    history: list[tuple[int, int, int, str]] = []  # cell, thread, epoch, what
    flying: list[tuple[Any, Any]] = []
    for node, (what, touched, barrier) in enumerate(operations):
        offset, thread = np.array(touched).T
        conflict = {"read": cells.read, "write": cells.write, "issue": cells.issue}[what](
            offset, thread, epoch, node
        )
        history += [(c, t, epoch, what) for c, t in touched]
        expected = any(
            a[0] == b[0] and a[2] == b[2] and {a[3], b[3]} != {"read"}
            and (a[1] != b[1] or (a[3] == "issue" and i < j))
            for i, a in enumerate(history)
            for j, b in enumerate(history)
            if i != j
        )  # fmt: skip
        assert (conflict is not None) == expected
        if expected:
            return
        if what == "issue":
            flying.append((offset, thread))
        if barrier:
            for settled in flying:
                cells.settle(*settled, epoch, node)
            flying, epoch = [], epoch + 1
