"""The interpreter on programs that no machine makes: each finding has its cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.mutants import rewritten
from tinygpu.errors import OperationError, ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.meaning.interpret import check, interpret
from tinygpu.meaning.race import GlobalArray
from tinygpu.term.expression import Constant, apply, value
from tinygpu.term.operation import Operand, Operation, elementwise, reduce
from tinygpu.term.program import (
    Access,
    Affine,
    Axis,
    Buffer,
    Commit,
    Do,
    Exit,
    Immediate,
    Program,
    Role,
    Scalar,
    Statement,
    Sync,
    WaitGroup,
    registers,
    var,
)


def kinds(program: Program, seeds: tuple[int, ...] = (0, 1, 2), **sizes: int) -> set[str]:
    return {f.kind for f in check(program, sizes, seeds=seeds)}


# One CTA of 64 threads copies x to y.

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
    "waited for as another group": (
        {"unwaited"},
        lambda: program(ASYNC_PUT, Commit("bulk"), WaitGroup(0, "bulk"), GET, STORE),
    ),
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
    results = {float(interpret(made, {"i": 64}, {"x": x}, seed=s).outputs["y"][0]) for s in (1, 2)}
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
