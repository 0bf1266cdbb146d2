"""A term that makes no sense is refused when it is built, by name; what is built has right code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ptx_runs import unchecked as emit
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere import STARTS
from tinygpu.machines.simt import LADDER
from tinygpu.meaning.interpret import check
from tinygpu.term.expression import Constant, value
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import elementwise, matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Axis,
    Barrier,
    Buffer,
    Commit,
    Do,
    Exit,
    Fence,
    For,
    ForTile,
    Immediate,
    Program,
    Role,
    Scalar,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    buffers_of,
    changed,
    registers,
    var,
    walk,
)

COPY = elementwise(value("x") * 1.0, inputs=("x",))
X, Y = Buffer("x", "gmem", "f32", ("i",), (1,)), Buffer("y", "gmem", "f32", ("i",), (1,))
HELD, HALF = registers("held", "f32", 1), registers("half", "f16", 1)
PAIR = registers("pair", "f32", 2)
TILE = Buffer("tile", "smem", "f32", (32,), (1,), 1, 32)
RING = replace(TILE, name="ring", stages=3)
OWN = replace(TILE, name="own", copies=2)
BAR = Barrier("bar")
T, B, ZERO = (32,), var("b", 32), Affine()
MINE = Access(HELD, ((0,),))


def far(buffer: Buffer, origin: Affine = B, **how: Any) -> Access:
    """Each thread's element of an array."""
    return Access(buffer, ((0,),), ((1,),), (origin,), guard=(True,), **how)


def near(buffer: Buffer = TILE, index: Affine = ZERO) -> Access:
    return Access(buffer, ((0,),), ((1,),), index=index)


def do(name: str, write: Access, *reads: Any, **how: Any) -> Do:
    return Do(INSTRUCTIONS[name], write, reads, (1,), T, **how)


LOAD, STORE = do("ld.global", MINE, far(X)), do("st.global", far(Y), MINE)


def hand(*body: Statement, **how: Any) -> Program:
    roles = how.pop("roles", (Role("all", 32, body),))
    used = buffers_of(tuple(s for role in roles for s in role.body))
    buffers = how.pop("buffers", (X, Y, *(b for b in used if b.name not in ("x", "y"))))
    grid = how.pop("grid", (Axis("b", value("i").ceildiv(Constant(32))),))
    trips = how.pop("parameters", (("trips", value("i").ceildiv(Constant(32))),))
    return Program(how.pop("name", "hand"), COPY, buffers, trips, grid, roles, **how)


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "unknown addressing": ("known are pointer, i32, i64", lambda: hand(addressing="i16")),
    "unknown guards": ("did you mean each", lambda: hand(guards="eac")),
    "a raster of nothing": ("raster: 0; it has to be 1", lambda: hand(raster=0)),
    "no CTA on an SM": ("ctas_per_sm: 0;", lambda: hand(ctas_per_sm=0)),
    "no role": ("no role; give it one", lambda: hand(roles=())),
    "a role without threads": ("all's threads: 0", lambda: hand(roles=(Role("all", 0, ()),))),
    "a role without copies": ("copies: 0", lambda: hand(roles=(Role("all", 32, (), 0),))),
    "a cluster of nothing": ("the cluster's r: 0", lambda: hand(cluster=(("r", 0),))),
    "a ring without stages": (
        "tile's stages: 0", lambda: hand(do("st.shared", near(replace(TILE, stages=0)), MINE)),
    ),
    "a barrier without stages": ("bar's stages: 0", lambda: hand(barriers=(Barrier("bar", 0),))),
    "a barrier called as a buffer": (
        "two buffers and barriers share a name",
        lambda: hand(do("st.shared", near(), MINE), barriers=(Barrier("tile"),)),
    ),
    "the extent of the grid": (
        "grid_b, as the code calls",
        lambda: hand(LOAD, parameters=(("grid_b", value("i")),)),
    ),
    "a copy that has no memory of its own": (
        "own has 2 copies, and all, which uses it, 3",
        lambda: hand(roles=(Role("all", 32, (do("st.shared", near(OWN), MINE),), 3, "c"),)),
    ),
    "an unrolled loop without an end": (
        "do not unroll it", lambda: hand(For("k", "trips", (LOAD,), unrolled=True)),
    ),
    "tiles that go back": (
        "step: 0", lambda: hand(ForTile("t", "u", (LOAD,), step=0), barriers=(BAR,)),
    ),
    "vectors of nothing": ("vector: 0", lambda: hand(replace(LOAD, vector=0))),
    "vectors below 0": ("vector: -1", lambda: hand(replace(LOAD, vector=-1))),
    "lanes of nothing": (
        "its lanes' divisor: 0", lambda: hand(replace(LOAD, lanes=(0, 2, 0))),
    ),
    "an unknown variant": (
        "did you mean ex2", lambda: hand(do("mufu", MINE, MINE, variant="exp2")),
    ),
    "another's variant": (
        "variant add; known are ex2", lambda: hand(do("mufu", MINE, MINE, variant="add")),
    ),
    "no variant": ("variant alu; known are max", lambda: hand(do("alu", MINE, MINE, MINE))),
    "too few operands": (
        "2 operands are read; fma takes 3", lambda: hand(do("fma", MINE, MINE, MINE)),
    ),
    "too many operands": ("takes 1", lambda: hand(do("cvt", Access(HALF, ((0,),)), MINE, MINE))),
    "a number that is stored": (
        "set a register to it", lambda: hand(do("st.global", far(Y), Immediate(0.0))),
    ),
    "a register that is memory": (
        "tile is in smem; fma takes registers there",
        lambda: hand(do("fma", MINE, MINE, near(), MINE)),
    ),
    "two types": (
        "convert first", lambda: hand(do("mov", Access(HALF, ((0,),)), MINE)),
    ),
    "lines that a thread leaves out": (
        "only TMA leaves lines out",
        lambda: hand(do("ld.global", MINE, far(X, trimmed=True))),
    ),
    "lanes of one thread": (
        "leave its lanes out",
        lambda: hand(Do(INSTRUCTIONS["cp.async.bulk.tensor"], near(), (far(X),), (8,),
                        lanes=(1, 2, 0))),
    ),
    "a signal of who moves at once": (
        "st.shared has no signal", lambda: hand(do("st.shared", near(), MINE, signal=(BAR, ZERO))),
    ),
    "sums that begin anew": (
        "fma has no fresh", lambda: hand(do("fma", MINE, MINE, MINE, MINE, fresh=ZERO)),
    ),
    "a store to many": (
        "st.shared has no multicast", lambda: hand(do("st.shared", near(), MINE, multicast="r")),
    ),
    "a sum across lanes": (
        "fma has no across", lambda: hand(do("fma", MINE, MINE, MINE, MINE, across=1)),
    ),
    "an unknown fence": ("did you mean wgmma", lambda: Fence("wgmm")),
    "an unknown group": ("did you mean bulk", lambda: Commit("blk")),
    "a wait for an unknown group": ("known are", lambda: WaitGroup(0, "x")),
    "an unknown scope": ("did you mean role", lambda: Sync(1, "roles")),  # type: ignore[arg-type]
    "an unknown event": (
        "did you mean tcgen05",
        lambda: Arrive(BAR, ZERO, after="tcgen5"),
    ),
    "a size on chip": ("i in smem; give a number", lambda: replace(TILE, shape=("i",))),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_when_it_is_built(name: str) -> None:
    message, make = REFUSED[name]
    with pytest.raises(ProgramError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_what_is_wrong_in_some_schedules_alone_is_left_to_the_laws() -> None:
    """Numbers of a space are arrays; a program of it is refused if no schedule of it is right."""
    some: Any = np.array([0, 1])
    none: Any = np.array([0, -1])
    hand(LOAD, raster=some, ctas_per_sm=some)
    hand(replace(LOAD, vector=some))
    with pytest.raises(ProgramError, match="raster"):
        hand(LOAD, raster=none)


# Code that is the term's meaning


def right(program: Program, size: int, arch: str = "sm_90a") -> None:
    """The interpreter finds nothing in the term, and the emulator nothing in its PTX."""
    assert check(program, {"i": size}) == ()
    assert interpret(program, {"i": size}, arch=arch, completions=("late",)).right


ODD, EVEN, NOBODY = (1, 2, 1), (1, 2, 0), (1, 2, 2)
CLEAR, WIDE = do("mov", MINE, Immediate(0.0)), Access(registers("wide", "f64", 1), ((0,),))
BY_LANES: dict[str, tuple[Statement, ...]] = {
    "loads keep what others hold": (
        CLEAR, replace(LOAD, lanes=ODD), replace(LOAD, lanes=EVEN), STORE,
    ),
    "copies": (
        *(do("cp.async", near(), far(X), lanes=lanes) for lanes in (ODD, EVEN)),
        Commit(), WaitGroup(0), Sync(), do("ld.shared", MINE, near()), STORE,
    ),
    "loads from shared memory": (
        LOAD, do("st.shared", near(), MINE), Sync(), CLEAR,
        *(do("ld.shared", MINE, near(), lanes=lanes) for lanes in (ODD, EVEN)), STORE,
    ),
    "arithmetic of nobody": (
        LOAD, replace(CLEAR, lanes=NOBODY),
        do("fma", MINE, MINE, MINE, variant="add", lanes=NOBODY),
        do("alu", MINE, MINE, variant="neg", lanes=NOBODY),
        do("mufu", MINE, MINE, variant="tanh", lanes=NOBODY), STORE,
    ),
    "conversions of nobody": (
        CLEAR, do("cvt", WIDE, MINE), LOAD, do("cvt", MINE, WIDE, lanes=NOBODY), STORE,
    ),
    "a shuffle of other warps": (
        LOAD, do("shfl.sync", MINE, MINE, across=1, lanes=(32, 2, 1)), STORE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_LANES)
def test_lanes_alone_act(name: str) -> None:
    right(hand(*BY_LANES[name]), 40)


@pytest.mark.parametrize(
    "statement",
    [
        do("shfl.sync", MINE, MINE, across=1, lanes=(4, 2, 0)),
        do("ldmatrix", MINE, near(), lanes=ODD),
    ],
)  # fmt: skip
def test_part_of_a_warp_is_refused_where_whole_warps_act(statement: Do) -> None:
    with pytest.raises(ProgramError, match="whole warps"):
        emit(hand(LOAD, statement))


def test_the_threads_of_each_role_and_copy_count_their_own() -> None:
    """Roles beyond the first, copies of them, and memory that each copy has for itself."""
    own = var("c", 32)
    there = Access(OWN, ((0,),), ((-1,),), (Affine(31),))
    second = (
        do("ld.global", MINE, far(X, own + 32)),
        do("st.shared", there, MINE),
        Sync(1, "role"),
        do("ld.shared", MINE, there),
        do("st.global", far(Y, own + 32), MINE),
    )
    first = (do("ld.global", MINE, far(X, Affine())), do("st.global", far(Y, Affine()), MINE))
    for order in (1, -1):
        roles = (Role("first", 32, first), Role("second", 32, second, 2, "c"))[::order]
        right(hand(roles=roles, barriers=(BAR,), grid=(Axis("b", Constant(1)),)), 90)


def test_the_grid_has_a_place_without_a_loop_over_tiles() -> None:
    """In the body of any role, before and after such a loop, and inside."""
    tiles = ForTile("t", "u", (LOAD, STORE))
    other = Role("other", 32, (Sync(),))
    right(hand(roles=(Role("all", 32, (LOAD, STORE, Sync())), other), barriers=(BAR,)), 70)
    right(hand(roles=(other, Role("all", 32, (LOAD, STORE, Sync()))), barriers=(BAR,)), 70)
    right(hand(roles=(Role("all", 32, (LOAD, tiles)), other)[:1], barriers=(BAR,)), 70)
    after = (ForTile("t", "u", (LOAD,)), STORE)
    right(hand(roles=(Role("all", 32, after),), barriers=(BAR,)), 70)


def test_a_role_may_do_nothing() -> None:
    right(hand(roles=(Role("all", 32, (LOAD, STORE)), Role("idle", 32, ())), barriers=(BAR,)), 70)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"name": "my term"}, "its kernel needs a name"),
        ({"roles": (Role("all", 32, (For("k", 3, (LOAD,), start=-1),)),)}, "begins below 0"),
        (
            {"roles": (Role("all", 32, (LOAD, STORE), 2, "c"),)},
            "several roles, and no tiles that they take",
        ),
        ({"cluster": (("r", 2),)}, "a cluster, and no barriers"),
    ],
)
def test_what_has_no_code_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        emit(hand(LOAD, STORE, **how))


def test_a_cluster_of_one_and_a_copy_of_one_have_numbers() -> None:
    at = var("b", 32) + var("r", 7) + var("c", 7)
    load, store = do("ld.global", MINE, far(X, at)), do("st.global", far(Y, at), MINE)
    right(hand(roles=(Role("all", 32, (load, store), 1, "c"),), cluster=(("r", 1),)), 70)


def test_values_that_read_one_another_are_taken_in_order() -> None:
    """r[v + 1] = r[v] + 0 makes all of them the first."""
    row = registers("row", "f32", 5)
    into = Access(row, ((1,), (2,)), origin=(Affine(1),))
    chain = Do(INSTRUCTIONS["fma"], into, (Access(row, ((1,), (2,))), Immediate(0.0)), (2, 2), T,
               variant="add")  # fmt: skip
    first, last = Access(row, ((0,),)), Access(row, ((0,),), origin=(Affine(4),))
    load, store = do("ld.global", first, far(X)), do("st.global", far(Y), last)
    right(hand(load, chain, store), 40)


def test_products_that_add_to_one_anothers_sums_are_refused() -> None:
    """Blocks are multiplied in serpentines, so that each has to have sums of its own."""
    term = MACHINES["ampere"].program(matmul("bf16"), Chosen(STARTS["plain"]))
    product = [s for s, _ in walk(term) if s.needs == "mma.sync"][-1]
    assert isinstance(product, Do)
    a, b, sums = product.reads
    assert isinstance(sums, Access)
    rows = sums.value[-1]
    last = tuple(Affine((product.values[-1] - 1) * step) for step in rows)
    upwards = tuple(-step for step in rows)
    turned = replace(sums, value=(*sums.value[:-1], upwards), origin=last)

    def change(s: Statement) -> Statement:
        return replace(product, reads=(a, b, turned)) if s is product else s

    roles = tuple(replace(r, body=changed(r.body, change)) for r in term.roles)
    with pytest.raises(ProgramError, match="let each add to its own"):
        emit(replace(term, roles=roles), "sm_80")


@pytest.mark.parametrize("guards", ["each", "tile"])
def test_values_may_go_backwards(guards: str) -> None:
    """Behind an Exit, and in tiles that are whole or not."""
    x, y = (Access(b, ((-1,),), ((2,),), (var("b", 64) + 1,), guard=(True,)) for b in (X, Y))
    both = Access(PAIR, ((1,),))
    load = Do(INSTRUCTIONS["ld.global"], both, (x,), (2,), T)
    store = Do(INSTRUCTIONS["st.global"], y, (both,), (2,), T)
    for size in (63, 64, 99, 127, 128):
        grid = (Axis("b", value("i").ceildiv(Constant(64))),)
        right(hand(Exit(x, (2,), T), load, store, guards=guards, grid=grid), size)


def test_an_exit_by_values_of_which_none_is_the_lowest_is_refused() -> None:
    square = elementwise(value("x") * 1.0, inputs=("x",))
    wide = Buffer("x", "gmem", "f32", ("i", "i"), ("i", 1))
    access = Access(wide, ((1, -1),), ((1, 0),), (Affine(), Affine(1)), guard=(True, True))
    term = hand(LOAD, STORE)
    leave = (Role("all", 32, (Exit(access, (2,), T),)),)
    term = replace(term, operation=square, buffers=(wide, Y), roles=leave)
    with pytest.raises(ProgramError, match="none of its values is the lowest"):
        emit(term)


def test_a_parameter_below_0_is_multiplied_by_as_it_is() -> None:
    less = do("fma", MINE, MINE, Scalar("less", size=True), variant="mul")
    term = hand(LOAD, less, less, STORE, parameters=(("less", value("i") - 41),))
    right(term, 40)
    assert interpret(replace(term, specialised=True), {"i": 40}, arch="sm_90a").right


def test_a_rings_index_below_0_is_at_its_stage() -> None:
    """2 k - 1 of three stages: 2, 1, 0, as before the loop."""
    first = Access(X, ((0,),), ((1,),), (Affine(),), guard=(True,))
    body = (
        do("ld.global", MINE, first), do("st.shared", near(RING, Affine(-1)), MINE),
        For("k", "trips", (
            Sync(1), do("ld.shared", MINE, near(RING, var("k", 2) + -1)),
            do("st.global", far(Y, var("k", 32)), MINE), Sync(1),
            do("ld.global", MINE, far(X, var("k", 32) + 32)),
            do("st.shared", near(RING, var("k", 2) + 1), MINE),
        )),
    )  # fmt: skip
    right(hand(*body, grid=(Axis("b", Constant(1)),)), 90)


def test_a_rings_index_that_counts_down_is_refused() -> None:
    loop = For("k", "trips", (do("st.shared", near(RING, var("k", -2) + 9), MINE),))
    with pytest.raises(ProgramError, match="count up"):
        emit(hand(LOAD, loop))


def test_registers_whose_place_a_loop_counts_are_refused() -> None:
    into = Access(PAIR, ((0,),), origin=(var("j"),))
    with pytest.raises(ProgramError, match="unroll the loop"):
        emit(hand(For("j", 2, (do("ld.global", into, far(X)),))))


def test_an_access_without_an_origin_begins_at_0() -> None:
    x, y = (Access(b, ((0,),), ((1,),), guard=(True,)) for b in (X, Y))
    body = do("ld.global", MINE, x), do("st.global", y, MINE)
    for addressing in ("pointer", "i32", "i64"):
        right(hand(*body, grid=(Axis("b", Constant(1)),), addressing=addressing), 30)


@pytest.mark.parametrize("addressing", ["pointer", "i64"])
def test_what_lies_far_from_a_pointer_is_in_a_register_of_its_own(addressing: str) -> None:
    """The number in an address has 32 bits."""
    apart = Access(X, ((1 << 29,),), ((1,),), (B,), guard=(True,))
    load = Do(INSTRUCTIONS["ld.global"], Access(PAIR, ((1,),)), (apart,), (2,), T)
    text = emit(hand(load, addressing=addressing))
    assert f"+{1 << 31}]" not in text
    assert f", {1 << 31};" in text


def test_an_index_that_names_its_variable_twice_turns_once() -> None:
    twice = var("k") + var("k")
    body = (
        For("k", "trips", (
            do("ld.global", MINE, far(X, var("k", 16) + var("k", 16))),
            do("st.shared", near(RING, twice), MINE), Sync(1),
            do("ld.shared", MINE, near(RING, var("k", 2))), Sync(1),
            do("st.global", far(Y, var("k", 32)), MINE), Arrive(BAR, twice), Wait(BAR, twice),
            Arrive(BAR, twice + 1), Wait(BAR, var("k", 2) + 1),
        )),
    )  # fmt: skip
    barrier = replace(BAR, stages=3, arrivals=32)
    bars = tuple(
        replace(s, barrier=barrier) if isinstance(s, Arrive | Wait) else s for s in body[0].body
    )
    term = hand(replace(body[0], body=bars), barriers=(barrier,), grid=(Axis("b", Constant(1)),))
    right(term, 200)


def test_32_bits_hold_what_a_kernel_counts() -> None:
    """Rows fewer than 2^31 B apart; and coordinates that a guard asks for, of a last tile too."""
    device = load_device("h200")

    def holds(law: str, program: Program, **sizes: int) -> bool:
        return all(c.holds for c in LAWS[law].clauses(Case.of(program, sizes, device)))

    wide = MACHINES["simt"].program(matmul(), Chosen(LADDER["naive"]))
    assert holds("integers", wide, m=2, n=(1 << 29) - 1, k=2)
    assert not holds("integers", wide, m=2, n=1 << 29, k=2)
    axis, at = Axis("b", value("i").ceildiv(Constant(40))), var("b", 40)
    for tile, right in ((axis, False), (Axis("b", value("i").ceildiv(Constant(32))), True)):
        load = do("ld.global", MINE, far(X, at if tile is axis else B))
        assert holds("inside", hand(load, grid=(tile,)), i=(1 << 31) - 1) == right


@pytest.mark.parametrize(("origin", "holds"), [(B, True), (B + -1, False), (B + 1, True)])
def test_a_guard_asks_about_the_end_alone(origin: Affine, *, holds: bool) -> None:
    """What lies before an array is outside of it, guarded or not."""
    program = hand(do("ld.global", MINE, far(X, origin)), STORE)
    case = Case.of(program, {"i": 64}, load_device("h200"))
    assert all(clause.holds for clause in LAWS["inside"].clauses(case)) == holds
