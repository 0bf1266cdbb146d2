"""Hostile terms: each is made by reading which field a walk does not look at.

``MEANING``  wrong by the interpreter, at the sizes given; grouped by the walk that overlooks it
``JUDGE``    wrong in what the judge decides: a race, or a value that nobody wrote
``CODE``     right by the interpreter, and what the emitted PTX may compute otherwise
``BROKEN``   no term at all, which has to be said as an error of the package's own
``RIGHT``    right, and near to one of those; it has to stay legal and proved

A docstring says which walk overlooks what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tests.ampere_terms import term as ampere
from tests.async_protocols import DOUBLE, X, Y
from tests.blackwell_terms import small as blackwell
from tests.hopper_terms import rebuffered, rewritten
from tests.hopper_terms import term as hopper
from tinygpu.isa.instructions import INSTRUCTIONS as I
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.expression import Apply, Constant, apply, parse, value
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
    Elect,
    Exit,
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
    When,
    registers,
    var,
)

__all__ = ["BROKEN", "CODE", "JUDGE", "MEANING", "RIGHT", "Hostile"]

Body = tuple[Statement, ...]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Hostile:
    """A term: how it is made, and sizes at which its fault shows (or it is right)."""

    make: Callable[[], Program]
    sizes: tuple[Sizes, ...]
    device: str = "h200"

    def __str__(self) -> str:
        return self.make.__name__


# What they are made of

AT_0 = Affine()
K, B, U = var("k"), var("b"), var("u")
BY_THREAD = ((1,),), ((2,),)
HELD, MORE = registers("held", "f32", 2), registers("more", "f32", 2)
M = Access(HELD, ((1,),))
BAR = Barrier("bar", 1, 32)
ARRIVE, WAIT = Arrive(BAR, AT_0), Wait(BAR, AT_0)
IDLE = Role("idle", 32, (ARRIVE, WAIT))


def of(array: Buffer, *, step: int = 64, maps: Any = BY_THREAD, beyond: Affine = AT_0) -> Access:
    """Two neighbours of each thread in a tile of 64, guarded."""
    values, threads = maps
    return Access(array, values, threads, (var("b", step) + beyond,), guard=(True,))


def instruction(name: str, write: Access, *reads: Any, values: int = 2, **more: Any) -> Do:
    return Do(I[name], write, reads, (values,), (32,), **more)


LOAD, STORE = instruction("ld.global", M, of(X)), instruction("st.global", of(Y), M)
TWICE = instruction("fma", M, M, M, variant="add")


def shared(name: str = "kept", **more: Any) -> Buffer:
    given: dict[str, Any] = {"stages": 1, "stage_elements": 64, **more}
    return Buffer(name, "smem", "f32", (64,), (1,), **given)


def put(ring: Buffer, maps: Any = BY_THREAD, **more: Any) -> Do:
    return instruction("st.shared", Access(ring, *maps), M, **more)


def get(ring: Buffer, maps: Any = BY_THREAD, to: Access = M) -> Do:
    return instruction("ld.shared", to, Access(ring, *maps))


def doubling(*roles: Role, tile: int = 64, **more: Any) -> Program:
    """y = 2 x, in tiles that CTAs take along ``b``."""
    own = dict(more)
    buffers = (X, Y, own.pop("held", HELD), *own.pop("buffers", ()))
    grid = own.pop("grid", (Axis("b", value("i").ceildiv(Constant(tile))),))
    return Program("hostile", DOUBLE, buffers, own.pop("parameters", ()), grid, roles, **own)


def alone(*body: Statement, **more: Any) -> Program:
    """One role of a warp, without mbarriers."""
    return doubling(Role("all", 32, body), **more)


def working(*body: Statement, **more: Any) -> Role:
    return Role("worker", 32, (ForTile("t", "u", body),), **more)


def roles(*parts: Role, **more: Any) -> Program:
    """Roles with an mbarrier."""
    return doubling(*parts, barriers=(BAR,), **more)


@cache
def naive() -> Program:
    """A matmul in tiles of 8 x 4, a step of k each iteration, all in registers."""
    values = {"tile_m": 8, "tile_n": 4, "lanes_m": 8, "edges": "guard", "addressing": "pointer"}
    return Simt().program(matmul(), Chosen({**LADDER["naive"], **values}))


@cache
def tiled() -> Program:
    """A matmul in tiles of 4 x 32 x 32 through shared memory."""
    values = {"tile_m": 4, "tile_n": 32, "tile_k": 32}
    return Simt().program(matmul(), Chosen({**LADDER["shared"], **values}))


def beyond(size: str, most: int) -> Apply:
    """What a size is beyond ``most``: 0 wherever it is small."""
    return apply("max", value(size) - Constant(most), Constant(0))


def with_far(program: Program, expression: Apply) -> Program:
    return replace(program, parameters=(*program.parameters, ("far", expression)))


def named(name: str, change: Callable[[Do], Any]) -> Callable[[Statement], Any]:
    return lambda s: change(s) if isinstance(s, Do) and s.instruction.name == name else s


def shifted(access: Any, dimension: int, by: Affine) -> Any:
    origin = tuple(o + by if d == dimension else o for d, o in enumerate(access.origin))
    return replace(access, origin=origin)


def loop_body(program: Program) -> tuple[Body, For, Body]:
    """What stands before the loop of ``trips``, the loop, what stands behind it."""
    body = program.roles[0].body
    at = next(i for i, s in enumerate(body) if isinstance(s, For) and isinstance(s.trips, str))
    loop = body[at]
    assert isinstance(loop, For)
    return body[:at], loop, body[at + 1 :]


def with_body(program: Program, *body: Statement) -> Program:
    return replace(program, roles=(replace(program.roles[0], body=body),))


def still(register: Buffer, values: tuple[int, ...]) -> Access:
    """One register for all values."""
    return Access(register, tuple((0,) * len(register.shape) for _ in values))


# What meaning/assumptions.py does not look at


def store_by_a_parameter() -> Program:
    """``_affine`` and ``_grid`` ask for grid axes and coefficients; an origin names a parameter."""
    to = named("st.global", lambda s: replace(s, write=shifted(s.write, 0, var("far"))))
    return rewritten(with_far(naive(), beyond("m", 24)), to)


def load_by_a_parameter() -> Program:
    """``_steps`` sums up coefficients of looped variables, and passes by a parameter's."""

    def change(s: Do) -> Do:
        (read,) = s.reads
        assert isinstance(read, Access)
        return replace(s, reads=(shifted(read, 1, var("far")),)) if read.buffer.name == "b" else s

    return rewritten(with_far(naive(), beyond("m", 24)), named("ld.global", change))


def load_before_the_array() -> Program:
    """Law inside passes by what is guarded, and a guard looks at the array's end alone."""

    def change(s: Do) -> Do:
        (read,) = s.reads
        return replace(s, reads=(shifted(read, 0, var("far", -1)),))

    return rewritten(with_far(naive(), beyond("k", 8)), named("ld.global", change))


def read_of_shared_memory_by_a_parameter() -> Program:
    """``_steps`` looks at global memory alone, the judge at no read's origin."""

    def change(s: Do) -> Do:
        (read,) = s.reads
        assert isinstance(read, Access)
        moved = shifted(read, 0, var("far")) if read.buffer.name == "smem_a" else read
        return replace(s, reads=(moved,))

    far = apply("min", beyond("n", 96), Constant(1))
    return rewritten(with_far(tiled(), far), named("ld.shared", change))


def parameter_as_a_number() -> Program:
    """The theorem looks at accesses; a Scalar is a parameter that is 0 where it is asked."""

    def change(s: Do) -> Any:
        sums = s.reads[0]
        assert isinstance(sums, Access)
        add = replace(s, instruction=I["fma"], write=sums, variant="add", vector=1)
        return replace(add, reads=(sums, Scalar("far", size=True))), s

    return rewritten(with_far(naive(), beyond("k", 10)), named("st.global", change))


def _chained(links: int, *, factor: bool) -> Program:
    """sums += d3; d3 += d2; d2 += d1; d1 += a: what is wrong shows ``links`` steps later."""
    kept = [registers(f"d{i}", "f32", 1, 1) for i in range(links)]

    def change(s: Statement) -> Any:
        if isinstance(s, Do) and s.instruction.name == "mov":
            return s, *(replace(s, write=still(b, s.values)) for b in kept)
        if not isinstance(s, Do) or s.instruction.name != "fma":
            return s
        chain = [s.write, *(still(b, s.values) for b in kept)]
        out: list[Do] = [s]
        for to, source in zip(chain, [*chain[1:], s.reads[0]], strict=True):
            reads = (source, Immediate(1.0), to) if factor else (to, source)
            out.append(replace(s, write=to, reads=reads, variant="" if factor else "add"))
        return tuple(out)

    return rewritten(naive(), change, buffers=(*naive().buffers, *kept))


def chain_of_sums() -> Program:
    """``_history`` lets pass whatever adds, also what adds another of the sums."""
    return _chained(4, factor=False)


def chain_of_factors() -> Program:
    """The same by fma, whose factor another of the sums is."""
    return _chained(3, factor=True)


def chain_in_one_buffer() -> Program:
    """The same, each of the sums in a register of one buffer, and longer than sizes are drawn."""
    links = 14

    def change(s: Statement) -> Any:
        if not isinstance(s, Do) or s.write.buffer.name != "sums":
            return s
        if s.instruction.name == "mov":
            every = Access(s.write.buffer, ((0, 1), (0, 0)))
            return replace(s, write=every, values=(links + 1, 1))
        at = [replace(s.write, origin=(AT_0, Affine(i))) for i in range(links + 1)]
        sources = (*at[1:], s.reads[0])
        return s, *(
            replace(s, write=to, reads=(source, Immediate(1.0), to))
            for to, source in zip(at, sources, strict=True)
        )

    wide = (1, links + 1)
    sums = rebuffered(naive(), "sums", shape=wide, stride=wide[::-1], stage_elements=links + 1)
    return rewritten(sums, change)


def copies_below_the_trips() -> Program:
    """``_looped`` takes a role's copy for a step; ``window`` counts loops alone."""
    program = naive()
    store = program.roles[0].body[-1]
    assert isinstance(store, Do)
    sums = store.reads[0]
    assert isinstance(sums, Access)
    spoil = replace(store, instruction=I["mov"], write=sums, reads=(Immediate(7.0),), vector=1)
    late = When(Affine(3, (("copy", -1),)), 1, (When(var("copy"), "trips", (spoil, store)),))
    body = (When(var("copy"), 1, program.roles[0].body), late)
    role = replace(program.roles[0], copies=4, copy="copy", body=body)
    return replace(program, roles=(role,))


def two_axes_of_rows() -> Program:
    """``_grid`` asks each axis of the grid alone; two of them walk along the rows."""

    def moved(a: Any) -> Any:
        if not isinstance(a, Access) or a.buffer.level != "gmem" or a.buffer.shape[0] != "m":
            return a
        return shifted(a, 0, var("wide", 32))

    def change(s: Statement) -> Statement:
        if not isinstance(s, Do):
            return s
        return replace(s, write=moved(s.write), reads=tuple(map(moved, s.reads)))

    wide = Axis("wide", value("m").ceildiv(Constant(32)))
    return rewritten(naive(), change, grid=(wide, *naive().grid))


def steps_in_registers() -> Program:
    """Step k stands in register k of two: ``_steps`` does not look at what is on chip."""

    def change(s: Statement) -> Any:
        if not isinstance(s, Do):
            return s
        if s.write.buffer.name == "a_fragment":
            whole = replace(s.write, value=((0, 1), *s.write.value[1:]), origin=())
            clear = replace(s, instruction=I["mov"], write=whole, reads=(Immediate(0.0),))
            clear = replace(clear, values=(2, *s.values[1:]))
            return clear, replace(s, write=replace(s.write, origin=(AT_0, var("kt"))))
        if s.instruction.name == "fma" and isinstance(s.reads[0], Access):
            first = replace(s.reads[0], origin=(AT_0, var("kt")))
            return replace(s, reads=(first, *s.reads[1:]))
        return s

    wide = rebuffered(naive(), "a_fragment", shape=(1, 2), stride=(2, 1), stage_elements=2)
    return rewritten(wide, change)


def turns_in_registers() -> Program:
    """Turn u stands in registers 2 u and 2 u + 1 of four: two tiles a cluster are asked."""
    four = registers("held", "f32", 4)
    mine = Access(four, ((1,),), origin=(U * 2,), index=U)
    body = (
        instruction("mov", Access(four, ((1,),), index=U), Immediate(0.0), values=4),
        replace(LOAD, write=mine),
        instruction("fma", mine, mine, mine, variant="add"),
        replace(STORE, reads=(mine,)),
    )
    return roles(working(*body), IDLE, held=four, persistent=True)


def raster_below_one() -> Program:
    """``computes`` sets the raster to 1, and no law asks for it."""
    return replace(alone(LOAD, TWICE, STORE), raster=-1)


def first_steps_left_out() -> Program:
    """Two steps are peeled, and the loop begins at the fourth."""
    before, loop, after = loop_body(naive())
    peeled = For("kt", 2, (When(var("kt"), "trips", loop.body),), unrolled=True)
    return with_body(naive(), *before, peeled, replace(loop, start=3), *after)


def _two_writers(*, late: Body, early: Body, copies: bool) -> Program:
    """Two roles, or copies of one, write one stage; who waits for the other stands first."""
    ring, one, two = shared(), Barrier("one", 1, 32), Barrier("two", 1, 32)
    last: Body = (Wait(one, AT_0), *late, put(ring), Arrive(two, AT_0))
    first: Body = (*early, put(ring), Arrive(one, AT_0))
    reader = (Wait(two, AT_0), get(ring), TWICE, STORE)
    parts = [(name, (ForTile("t", "u", body),)) for name, body in
             (("late", last), ("early", first), ("reader", reader))]  # fmt: skip
    every = [Role(name, 32, body) for name, body in parts]
    if copies:
        c = var("c")
        both: Body = (When(Affine(1) + c * -1, 1, last), When(c, 1, first))
        every = [Role("both", 32, (ForTile("t", "u", both),), copies=2, copy="c"), every[2]]
    return doubling(*every, buffers=(ring,), barriers=(one, two))


CLEAR = instruction("mov", M, Immediate(0.0))


def roles_that_write_in_another_order() -> Program:
    """The canonical run takes the roles as they stand, and the barriers say otherwise."""
    return _two_writers(late=(CLEAR,), early=(LOAD,), copies=False)


def roles_of_which_one_writes_no_number() -> Program:
    """A cell that is NaN is taken for one that nobody has written; the field has no 1 / 0."""
    late = (CLEAR, instruction("mufu", M, M, variant="rcp"))
    return _two_writers(late=late, early=(LOAD,), copies=False)


def nothing_to_compare_with() -> Program:
    """What the operation makes NaN passes, and in the field that is what floats make infinite."""
    nowhere = elementwise(parse("max(x, rcp(x - x))"), inputs=("x",))
    return replace(alone(LOAD, TWICE, STORE), operation=nowhere)


def copies_that_write_in_another_order() -> Program:
    """The same of two copies of a role, whose statements it takes as they stand."""
    return _two_writers(late=(CLEAR,), early=(LOAD,), copies=True)


def reads_what_others_store() -> Program:
    """The judge erases global memory: a thread reads what another one has stored."""
    other = instruction("ld.global", M, of(Y, maps=(((1,),), ((-2,),)), beyond=Affine(62)))
    return alone(LOAD, TWICE, STORE, other)


def stores_over_it() -> Program:
    """Law store_once asks each statement alone: the second store writes the whole output again."""
    return alone(LOAD, STORE, TWICE, STORE)


def shuffles_behind_an_exit() -> Program:
    """Whoever has left is no partner: the canonical run asks him all the same."""
    swap = instruction("shfl.sync", M, M, across=1)
    return alone(Exit(of(Y), (2,), (32,)), LOAD, swap, swap, TWICE, STORE)


def writes_an_input() -> Program:
    """No law asks who writes an input."""
    return alone(LOAD, TWICE, STORE, instruction("st.global", of(X), M))


def lanes_that_lack_a_partner() -> Program:
    """The judge erases lanes: a butterfly of which one half takes part at a time."""
    swap = instruction("shfl.sync", M, M, across=1)
    halves = (replace(swap, lanes=(1, 2, r)) for r in (0, 1))
    return alone(LOAD, swap, *halves, TWICE, STORE)


# What the judge does not look at


def one_thread_stores() -> Program:
    """``erase`` counts all threads of the role for what stands in an Elect."""
    ring = shared()
    body = (LOAD, Elect((put(ring),)), Sync(1, "role"), get(ring), TWICE, STORE)
    return roles(working(*body), IDLE, buffers=(ring,))


def one_thread_copies() -> Program:
    """The same by cp.async."""
    ring = shared()
    copy = instruction("cp.async", Access(ring, *BY_THREAD), of(X))
    body = (Elect((copy, Commit(), WaitGroup(0))), Sync(1, "role"), get(ring), TWICE, STORE)
    return roles(working(*body), IDLE, buffers=(ring,))


def one_thread_loads() -> Program:
    """Registers of one thread, read by all."""
    return roles(working(Elect((LOAD,)), ARRIVE, WAIT, TWICE, STORE))


def other_half_of_a_tile() -> Program:
    """Groups of columns are read that nobody wrote."""

    def change(s: Statement) -> Any:
        if isinstance(s, Do) and s.instruction.name == "cvt":
            return replace(s, values=(2, 4))
        if isinstance(s, Do) and s.instruction.name == "st.global":
            (read,) = s.reads
            assert isinstance(read, Access)
            half = replace(read, origin=(Affine(4), AT_0))
            return replace(s, values=(2, 4), reads=(half,), write=shifted(s.write, 1, Affine(32)))
        return s

    return rewritten(hopper("plain", stages=2, tile_n=64), change)


def half_of_a_tile_written() -> Program:
    """As many cells are written as the largest read has, and two reads have twice as many."""

    def change(s: Statement) -> Any:
        if isinstance(s, Do) and s.instruction.name == "cvt":
            return replace(s, values=(2, 4))
        if isinstance(s, Do) and s.instruction.name == "st.global":
            (read,) = s.reads
            assert isinstance(read, Access)
            return tuple(
                replace(
                    s,
                    values=(2, 4),
                    reads=(replace(read, origin=(Affine(far // 8), AT_0)),),
                    write=shifted(s.write, 1, Affine(far)),
                )
                for far in (0, 32)
            )
        return s

    return rewritten(hopper("plain", stages=2, tile_n=64), change)


def columns_that_nobody_multiplied() -> Program:
    """A write to tensor memory fills it all, whichever columns it is of."""
    program = blackwell("plain")
    sums = next(b for b in program.buffers if b.level == "tmem")
    wide = int(sums.shape[1])
    program = rebuffered(
        program, sums.name, shape=(128, 2 * wide), stride=(2 * wide, 1), stage_elements=256 * wide
    )

    def change(s: Do) -> Do:
        return replace(s, reads=(shifted(s.reads[0], 1, Affine(wide)),))

    return rewritten(program, named("tcgen05.ld", change))


def boxes_of_one_statement() -> Program:
    """Turns of one load are taken to be of different cells; these share half of theirs."""
    ring, full, empty = shared(stages=2), Barrier("full", 2, 1), Barrier("empty", 2, 32)
    part = var("p", 16)
    source = Access(X, ((1,),), origin=(K * 64 + part,), guard=(True,))
    target = Access(ring, ((1,),), origin=(part,), index=K)
    load = Do(I["cp.async.bulk.tensor"], target, (source,), (48,), signal=(full, K))
    fill = (Wait(empty, K + -2), Arrive(full, K, bytes=2 * 4 * 48), For("p", 2, (load,)))
    mine = Access(HELD, ((1,),), index=K)
    read = instruction("ld.shared", mine, Access(ring, *BY_THREAD, index=K))
    out = instruction("st.global", Access(Y, *BY_THREAD, origin=(K * 64,), guard=(True,)), mine)
    double = instruction("fma", mine, mine, mine, variant="add")
    take = (Wait(full, K), read, Arrive(empty, K), double, out)
    return doubling(
        Role("loader", 32, (Elect((For("k", "trips", fill),)),)),
        Role("worker", 32, (For("k", "trips", take),)),
        buffers=(ring,),
        barriers=(full, empty),
        parameters=(("trips", value("i").ceildiv(Constant(64))),),
        grid=(Axis("b", Constant(1)),),
    )


# What the code does not look at, or takes otherwise


def second_role_moves_its_own() -> Program:
    """A thread's place is made of its number in the CTA, not in the role's copy."""
    return roles(Role("first", 32, (ARRIVE,)), working(WAIT, LOAD, TWICE, STORE))


def _copies(copies: int, buffer_copies: int) -> Program:
    """Each copy of a role turns its tile around in shared memory of its own, twice."""
    ring, own = shared(copies=buffer_copies), var("c", 64)
    load = instruction("ld.global", M, of(X, step=64 * copies, beyond=own))
    store = instruction("st.global", of(Y, step=64 * copies, beyond=own), M)
    sync, turned = Sync(1, "role"), get(ring, (((32,),), ((1,),)))
    back = (sync, put(ring, (((32,),), ((1,),))), sync, get(ring))
    body = (load, put(ring), sync, turned, *back, TWICE, store)
    worker = working(*body, copies=copies, copy="c")
    return roles(worker, IDLE, buffers=(ring,), tile=64 * copies)


def copies_move_their_own() -> Program:
    """Copies of a role, each with a tile: their threads are numbered on and on."""
    own = var("c", 64)
    load = instruction("ld.global", M, of(X, step=128, beyond=own))
    store = instruction("st.global", of(Y, step=128, beyond=own), M)
    worker = working(load, TWICE, store, copies=2, copy="c")
    return roles(worker, IDLE, tile=128)


def copies_of_shared_memory() -> Program:
    """ld.shared and st.shared of a thread's own values know no copies of a buffer."""
    return _copies(2, 2)


def more_copies_than_the_role_has() -> Program:
    """Nobody compares a buffer's copies with the role's."""
    return _copies(2, 3)


def fewer_copies_than_the_role_has() -> Program:
    """Two copies of the role have no shared memory."""
    return _copies(4, 2)


def buffer_called_as_a_barrier() -> Program:
    """The plan of shared memory has one place for a name; names are compared within a kind."""
    ring = shared(BAR.name)
    return roles(working(LOAD, put(ring), ARRIVE, WAIT, get(ring), TWICE, STORE), buffers=(ring,))


def values_in_order() -> Program:
    """r[v + 1] = r[v] + 0: values are taken in order, and fma walks every second run backwards."""
    five = registers("r", "f32", 5)

    def at(place: int) -> Access:
        return Access(five, ((0,),), origin=(Affine(place),))

    def of_one(array: Buffer) -> Access:
        return Access(array, ((1,),), ((1,),), origin=(var("b", 32),), guard=(True,))

    ahead, behind = (Access(five, ((1,), (2,)), origin=(Affine(place),)) for place in (1, 0))
    body = (
        instruction("mov", Access(five, ((1,),)), Immediate(0.0), values=5),
        instruction("ld.global", at(0), of_one(X), values=1),
        Do(I["fma"], ahead, (behind, Immediate(0.0)), (2, 2), (32,), variant="add"),
        instruction("fma", at(4), at(4), Immediate(2.0), values=1, variant="mul"),
        instruction("st.global", of_one(Y), at(4), values=1),
    )
    return alone(*body, tile=32, held=five)


def leaves_by_its_first_value() -> Program:
    """An Exit's code asks of the first value, which is the last one here."""
    turned = (((-1,),), ((2,),))
    x, y = (of(array, maps=turned, beyond=Affine(1)) for array in (X, Y))
    leave = Exit(y, (2,), (32,))
    return alone(leave, replace(LOAD, reads=(x,)), TWICE, replace(STORE, write=y))


def whole_tiles_counted_backwards() -> Program:
    """Where no thread has to ask, the last element is taken to be the origin and all steps."""
    turned = of(X, maps=(((-1,),), ((2,),)), beyond=Affine(1))
    mine = Access(HELD, ((-1,),), origin=(Affine(1),))
    return alone(instruction("ld.global", mine, turned), TWICE, STORE, guards="tile")


def sums_by_the_wrong_unit() -> Program:
    """mufu has no addition; its code takes what it does not know for tanh."""
    return alone(LOAD, instruction("mufu", M, M, M, variant="add"), STORE)


def parameter_called_as_the_grid() -> Program:
    """The kernel calls the grid's extents grid_bm; here the trips have that name."""
    before, loop, after = loop_body(tiled())
    parameters = tuple(
        ("grid_bm", e)
        if n == "trips"
        else (n, value("grid_bm") * Constant(32) if n == "chunk" else e)
        for n, e in tiled().parameters
    )
    body = (*before, replace(loop, trips="grid_bm"), *after)
    (role,) = tiled().roles
    return replace(
        tiled(), parameters=parameters, roles=(replace(role, body=body),), specialised=True
    )


def number_below_zero() -> Program:
    """Two parameters that cancel, converted to floats: one of them is negative."""

    def change(s: Do) -> Any:
        sums = s.reads[0]
        assert isinstance(sums, Access)
        add = replace(s, instruction=I["fma"], write=sums, variant="add", vector=1)
        names = ("under", "over")
        return *(replace(add, reads=(sums, Scalar(n, size=True))) for n in names), s

    known = (("under", value("k") - Constant(4)), ("over", Constant(4) - value("k")))
    program = replace(naive(), parameters=(*naive().parameters, *known))
    return rewritten(program, named("st.global", change))


def _every_second_index(first: int) -> Program:
    """A ring of three stages at indices 2 k + ``first``, filled a step ahead."""
    ring, other = shared(stages=3), (((32,),), ((1,),))
    ahead = Access(MORE, ((1,),))

    def index(step: Affine) -> Affine:
        return step * 2 + first

    def fill(step: Affine) -> Body:
        source = Access(X, *BY_THREAD, origin=(step * 64,), guard=(True,))
        target = Access(ring, *BY_THREAD, index=index(step))
        return instruction("ld.global", ahead, source), instruction("st.shared", target, ahead)

    read = instruction("ld.shared", M, Access(ring, *other, index=index(K)))
    out = instruction("st.global", Access(Y, *other, origin=(K * 64,), guard=(True,)), M)
    loop = (Sync(), read, When(K + 1, "trips", fill(K + 1)), TWICE, out)
    return alone(
        *fill(AT_0),
        For("k", "trips", loop),
        buffers=(MORE, ring),
        parameters=(("trips", value("i").ceildiv(Constant(64))),),
        grid=(Axis("b", Constant(1)),),
    )


def ring_below_zero() -> Program:
    """A stage is the rest of an index without a sign, and the first index is -3."""
    return _every_second_index(-3)


def _register_of_a_step(*, unrolled: bool) -> Program:
    """Load x[2 t + j] into register j."""
    j = var("j")
    source = Access(X, ((0,),), ((2,),), origin=(var("b", 64) + j,), guard=(True,))
    load = instruction("ld.global", Access(HELD, ((0,),), origin=(j,)), source, values=1)
    return alone(For("j", 2, (load,), unrolled=unrolled), TWICE, STORE)


def register_of_a_running_step() -> Program:
    """What a running loop adds to a register's origin is dropped."""
    return _register_of_a_step(unrolled=False)


def lanes_that_compute() -> Program:
    """What computes on registers has no lanes in its code: odd ones by 1/2 and 2, even by 1."""
    scale = Access(MORE, ((1,),))
    by_scale = instruction("fma", M, M, scale, variant="mul")

    def scaled(first: float, then: float, residue: int) -> Body:
        some = instruction("mov", scale, Immediate(then), lanes=(1, 2, residue))
        return instruction("mov", scale, Immediate(first)), some, by_scale

    body = (*scaled(2.0, 1.0, 0), *scaled(1.0, 0.5, 1))
    return alone(LOAD, TWICE, *body, STORE, buffers=(MORE,))


def lanes_of_no_period() -> Program:
    """Lanes by threads // 0: NumPy says 0, and PTX does not."""
    return alone(LOAD, TWICE, replace(STORE, lanes=(0, 2, 0)))


def lanes_of_a_second_role() -> Program:
    """Lanes are counted in the CTA: of the second role's warp all are of another residue."""
    store = replace(STORE, lanes=(32, 2, 0))
    return roles(Role("first", 32, (ARRIVE,)), working(WAIT, LOAD, TWICE, store))


def index_named_twice() -> Program:
    """An index k + k: the emitted ring turns by one an iteration."""
    ring, full, other = shared(stages=2), Barrier("full", 2, 32), (((32,),), ((1,),))
    source = Access(X, *BY_THREAD, origin=(K * 64,), guard=(True,))
    body = (
        instruction("ld.global", M, source),
        instruction("st.shared", Access(ring, *BY_THREAD, index=K), M),
        Arrive(full, K * 2),
        Wait(full, K + K),
        instruction("ld.shared", M, Access(ring, *other, index=K)),
        TWICE,
        instruction("st.global", Access(Y, *other, origin=(K * 64,), guard=(True,)), M),
    )
    return doubling(
        working(For("k", "trips", body)),
        buffers=(ring,),
        barriers=(full,),
        parameters=(("trips", value("i").ceildiv(Constant(64))),),
        grid=(Axis("b", Constant(1)),),
    )


def copied_by_some_lanes() -> Program:
    """Half of a warp copies four each; what the other half's code copies is zeros, over them."""
    ring, four = shared(), (((1,),), ((4,), (0,)))
    source = Access(X, *four, origin=(var("b", 64),), guard=(True,))
    target, lanes = Access(ring, *four), (16, 2, 0)
    copy = Do(I["cp.async"], target, (source,), (4,), (16, 2), lanes=lanes)
    return alone(copy, Commit(), WaitGroup(0), Sync(), get(ring), TWICE, STORE, buffers=(ring,))


def loaded_by_odd_and_even_lanes() -> Program:
    """Whom lanes leave out keeps what it has; its code clears the registers first."""
    clear = instruction("mov", M, Immediate(0.0))
    return alone(clear, *(replace(LOAD, lanes=(1, 2, r)) for r in (0, 1)), TWICE, STORE)


def _boxes(lines: int) -> Program:
    """Load the rows of x in two boxes, which leave out those that lie outside."""

    def change(s: Do) -> Any:
        (source,) = s.reads
        assert isinstance(source, Access)
        if s.write.buffer.name != "smem_a":
            return s
        parts = ((0, lines), (lines, 64 - lines))
        return tuple(
            replace(
                s,
                values=(s.values[0], many, *s.values[2:]),
                write=replace(s.write, origin=(Affine(first), AT_0, AT_0)),
                reads=(shifted(source, 0, Affine(first)),),
            )
            for first, many in parts
        )

    program = hopper("plain", stages=2, tile_n=64)
    return rewritten(program, named("cp.async.bulk.tensor", change))


def boxes_that_begin_between() -> Program:
    """One map serves the last lines of all boxes if they begin at multiples of their lines."""
    return _boxes(48)


def product_into_one_column() -> Program:
    """Two blocks of columns add to one place: once by its meaning, and one after the other."""

    def change(s: Do) -> Any:
        def column(number: int) -> Do:
            def moved(a: Any) -> Any:
                step = a.value[3]
                origin = a.origin or (AT_0,) * len(step)
                return replace(
                    a,
                    value=(*a.value[:3], (0,) * len(step), a.value[4]),
                    origin=tuple(o + int(n) * number for o, n in zip(origin, step, strict=True)),
                )

            values = (*s.values[:3], 2, s.values[4])
            return replace(s, values=values, write=moved(s.write), reads=tuple(map(moved, s.reads)))

        return tuple(column(number) for number in range(int(s.values[3])))

    return rewritten(ampere("plain"), named("mma.sync", change))


def halves_by_stmatrix() -> Program:
    """Two halves of a chunk, each from an origin of its own."""

    def change(s: Do) -> Any:
        (read,) = s.reads

        def half(first: int) -> Do:
            assert isinstance(read, Access)
            reads = (replace(read, origin=(Affine(first // 8), AT_0, AT_0)),)
            right = replace(s.write, origin=(s.write.origin[0], Affine(first)))
            return replace(s, values=(2, 2, 4), write=right, reads=reads)

        return half(0), Sync(1, "role"), half(32)

    program = hopper("tma store", tile_n=64, stages=2, store_n=64)
    return rewritten(program, named("stmatrix", change))


# No terms


def variable_of_the_grid_in_a_role() -> Program:
    """A program with mbarriers has the grid's variables in a ForTile alone."""
    return roles(Role("all", 32, (ARRIVE, WAIT, LOAD, TWICE, STORE)))


def copies_without_barriers() -> Program:
    """A program without mbarriers has one role, and its code no copies."""
    program = copies_move_their_own()
    worker = program.roles[0]
    loop = worker.body[0]
    assert isinstance(loop, ForTile)
    return replace(program, roles=(replace(worker, body=loop.body),), barriers=())


def cluster_without_barriers() -> Program:
    """A program without mbarriers has code for no ranks."""
    own = var("r", 64)
    load = instruction("ld.global", M, of(X, step=128, beyond=own))
    store = instruction("st.global", of(Y, step=128, beyond=own), M)
    return alone(load, TWICE, store, tile=128, cluster=(("r", 2),))


def raster_of_nothing() -> Program:
    return replace(alone(LOAD, TWICE, STORE), raster=0)


def no_ctas_on_an_sm() -> Program:
    return replace(alone(LOAD, TWICE, STORE), ctas_per_sm=0)


def name_of_two_words() -> Program:
    return replace(alone(LOAD, TWICE, STORE), name="two words")


def unrolled_without_end() -> Program:
    """A loop of a parameter's trips cannot be unrolled."""
    before, loop, after = loop_body(tiled())
    return with_body(tiled(), *before, replace(loop, unrolled=True), *after)


def vectors_of_nothing() -> Program:
    return alone(LOAD, TWICE, replace(STORE, vector=0))


def vectors_below_one() -> Program:
    return alone(LOAD, TWICE, replace(STORE, vector=-1))


def role_without_a_body() -> Program:
    return roles(working(ARRIVE, WAIT, LOAD, TWICE, STORE), Role("idle", 32, ()))


def operand_without_an_origin() -> Program:
    def change(s: Do) -> Do:
        (read,) = s.reads
        assert isinstance(read, Access)
        return replace(s, reads=(replace(read, origin=()),)) if read.buffer.name == "b" else s

    return rewritten(naive(), named("ld.global", change))


def lines_left_out_by_a_thread() -> Program:
    """Only TMA leaves out lines."""
    (read,) = LOAD.reads
    assert isinstance(read, Access)
    return alone(replace(LOAD, reads=(replace(read, trimmed=True),)), TWICE, STORE)


def operator_without_a_name() -> Program:
    return alone(LOAD, TWICE, instruction("alu", M, M), STORE)


def maximum_by_fma() -> Program:
    """``fma`` has no maximum."""
    largest = instruction("fma", M, M, M, variant="max")
    return alone(LOAD, TWICE, largest, STORE)


def product_of_one() -> Program:
    return alone(LOAD, instruction("fma", M, M, M), STORE)


def sum_of_nothing() -> Program:
    return alone(LOAD, TWICE, instruction("cvt", M), STORE)


def constant_stored() -> Program:
    """st.shared of a constant: it has a meaning, and no code."""
    ring = shared()
    fill = instruction("st.shared", Access(ring, *BY_THREAD), Immediate(0.0))
    return alone(LOAD, TWICE, fill, STORE, buffers=(ring,))


def shared_memory_as_an_operand() -> Program:
    """No law asks whether an instruction takes operands of shared memory."""
    two = Buffer("kept", "smem", "f32", (2,), (1,), 1, 2)
    fill = instruction(
        "st.shared", Access(two, ((1,),), ((0,),)), Access(MORE, ((1,),)), lanes=(1, 32, 0)
    )
    return alone(
        LOAD,
        instruction("mov", Access(MORE, ((1,),)), Immediate(2.0)),
        fill,
        Sync(),
        instruction("fma", M, M, Access(two, ((1,),)), variant="mul"),
        STORE,
        buffers=(MORE, two),
    )


def ring_without_stages() -> Program:
    return rebuffered(tiled(), "smem_a", stages=0)


def shared_memory_as_long_as_an_axis() -> Program:
    return rebuffered(tiled(), "smem_a", shape=("m", 32))


# Right ones


def plain_doubling() -> Program:
    return alone(LOAD, TWICE, STORE)


def two_sums() -> Program:
    """Each sum adds to itself alone; they are added behind the loop."""
    other = registers("others", "f32", 1, 1)

    def change(s: Statement) -> Any:
        if not isinstance(s, Do):
            return s
        if s.instruction.name == "mov":
            return s, replace(s, write=replace(s.write, buffer=other))
        if s.instruction.name == "fma":
            its = replace(s.write, buffer=other)
            return s, replace(s, write=its, reads=(*s.reads[:2], its))
        if s.instruction.name == "st.global":
            sums = s.reads[0]
            assert isinstance(sums, Access)
            both = replace(s, instruction=I["fma"], write=sums, vector=1)
            add = replace(both, reads=(sums, replace(sums, buffer=other)), variant="add")
            return add, replace(both, reads=(sums, Immediate(0.5)), variant="mul"), s
        return s

    return rewritten(naive(), change, buffers=(*naive().buffers, other))


def first_step_peeled() -> Program:
    before, loop, after = loop_body(naive())
    peeled = For("kt", 1, loop.body, unrolled=True)
    return with_body(naive(), *before, peeled, replace(loop, start=1), *after)


def first_step_peeled_under_a_guard() -> Program:
    before, loop, after = loop_body(naive())
    peeled = For("kt", 1, (When(var("kt"), "trips", loop.body),), unrolled=True)
    return with_body(naive(), *before, peeled, replace(loop, start=1), *after)


def one_thread_fills() -> Program:
    """One thread writes all cells by itself, which is no race."""
    ring, zeros = shared(), registers("zeros", "f32", 64)
    mine = Access(zeros, ((1,),))
    clear = Do(I["mov"], mine, (Immediate(0.0),), (64,))
    fill = Do(I["st.shared"], Access(ring, ((1,),)), (mine,), (64,))
    more = Access(MORE, ((1,),))
    body = (
        Elect((clear, fill)), Sync(1, "role"), get(ring, to=more), LOAD,
        instruction("fma", M, M, more, variant="add"), TWICE, STORE,
    )  # fmt: skip
    return roles(working(*body), IDLE, buffers=(zeros, MORE, ring))


def persistent_ring() -> Program:
    """A stage for each second tile."""
    ring = shared(stages=2)
    mine, there = Access(HELD, ((1,),), index=U), Access(ring, *BY_THREAD, index=U)
    body = (
        replace(LOAD, write=mine),
        instruction("st.shared", there, mine),
        Sync(1, "role"),
        instruction("ld.shared", mine, there),
        instruction("fma", mine, mine, mine, variant="add"),
        replace(STORE, reads=(mine,)),
    )
    return roles(working(*body), IDLE, buffers=(ring,), persistent=True)


def copied_by_all() -> Program:
    """cp.async by all threads of a role."""
    ring = shared()
    copy = instruction("cp.async", Access(ring, *BY_THREAD), of(X))
    body = (copy, Commit(), WaitGroup(0), Sync(1, "role"), get(ring), TWICE, STORE)
    return roles(working(*body), IDLE, buffers=(ring,))


def register_of_an_unrolled_step() -> Program:
    return _register_of_a_step(unrolled=True)


def every_second_index() -> Program:
    return _every_second_index(0)


def the_later_role_stands_first() -> Program:
    """What the reader gets is written by the role that waits for the other."""
    return _two_writers(late=(LOAD,), early=(CLEAR,), copies=False)


def boxes_of_half_a_tile() -> Program:
    return _boxes(32)


def ranks_of_a_cluster() -> Program:
    """Each CTA of a cluster has a tile of its own."""
    own = var("r", 64)
    load = instruction("ld.global", M, of(X, step=128, beyond=own))
    store = instruction("st.global", of(Y, step=128, beyond=own), M)
    worker = working(ARRIVE, WAIT, load, TWICE, store)
    return roles(worker, tile=128, cluster=(("r", 2),))


def ring_of_one_index() -> Program:
    """Every step writes index 0 again, when the reader has read it."""
    ring, full, empty = shared(), Barrier("full", 1, 32), Barrier("empty", 1, 32)
    source, target = (Access(a, *BY_THREAD, origin=(K * 64,), guard=(True,)) for a in (X, Y))
    fill = (Wait(empty, K + -1), instruction("ld.global", M, source), put(ring), Arrive(full, K))
    store = instruction("st.global", target, M)
    take = (Wait(full, K), get(ring), Arrive(empty, K), TWICE, store)
    return doubling(
        *(
            working(For("k", "trips", fill)),
            replace(working(For("k", "trips", take)), name="taker"),
        ),
        buffers=(ring,),
        barriers=(full, empty),
        parameters=(("trips", value("i").ceildiv(Constant(64))),),
        grid=(Axis("b", Constant(1)),),
    )


SMALL, ODD = {"m": 8, "n": 4, "k": 2}, {"m": 9, "n": 7, "k": 11}
TILE = {"m": 4, "n": 33, "k": 40}
I100 = ({"i": 100},)

MEANING: tuple[Hostile, ...] = (
    Hostile(store_by_a_parameter, ({"m": 32, "n": 4, "k": 3},)),
    Hostile(load_by_a_parameter, ({"m": 32, "n": 8, "k": 3},)),
    Hostile(load_before_the_array, ({"m": 8, "n": 4, "k": 11},)),
    Hostile(read_of_shared_memory_by_a_parameter, ({"m": 4, "n": 97, "k": 4},)),
    Hostile(parameter_as_a_number, ({"m": 8, "n": 4, "k": 16},)),
    Hostile(chain_of_sums, ({"m": 8, "n": 4, "k": 9},)),
    Hostile(chain_of_factors, ({"m": 8, "n": 4, "k": 9},)),
    Hostile(chain_in_one_buffer, ({"m": 8, "n": 4, "k": 20},)),
    Hostile(copies_below_the_trips, ({"m": 8, "n": 4, "k": 5},)),
    Hostile(two_axes_of_rows, ({"m": 44, "n": 4, "k": 3},)),
    Hostile(steps_in_registers, ({"m": 8, "n": 4, "k": 5},)),
    Hostile(turns_in_registers, ({"i": 576},)),
    Hostile(raster_below_one, I100),
    Hostile(first_steps_left_out, (ODD,)),
    Hostile(roles_that_write_in_another_order, I100),
    Hostile(copies_that_write_in_another_order, I100),
    Hostile(roles_of_which_one_writes_no_number, I100),
    Hostile(nothing_to_compare_with, I100),
    Hostile(reads_what_others_store, I100),
    Hostile(stores_over_it, I100),
    Hostile(writes_an_input, I100),
    Hostile(shuffles_behind_an_exit, ({"i": 97},)),
    Hostile(lanes_that_lack_a_partner, I100),
)

JUDGE: tuple[Hostile, ...] = (
    Hostile(one_thread_stores, I100),
    Hostile(one_thread_copies, I100),
    Hostile(one_thread_loads, I100),
    Hostile(other_half_of_a_tile, ({"m": 64, "n": 64, "k": 64},)),
    Hostile(half_of_a_tile_written, ({"m": 64, "n": 64, "k": 64},)),
    Hostile(columns_that_nobody_multiplied, ({"m": 128, "n": 32, "k": 64},), device="b200"),
    Hostile(boxes_of_one_statement, ({"i": 192},)),
)

CODE: tuple[Hostile, ...] = (
    Hostile(second_role_moves_its_own, I100),
    Hostile(copies_move_their_own, I100),
    Hostile(copies_of_shared_memory, I100),
    Hostile(more_copies_than_the_role_has, I100),
    Hostile(buffer_called_as_a_barrier, I100),
    Hostile(values_in_order, I100),
    Hostile(leaves_by_its_first_value, ({"i": 99},)),
    Hostile(whole_tiles_counted_backwards, ({"i": 127},)),
    Hostile(sums_by_the_wrong_unit, I100),
    Hostile(parameter_called_as_the_grid, (TILE,)),
    Hostile(number_below_zero, (SMALL,)),
    Hostile(ring_below_zero, ({"i": 300},)),
    Hostile(register_of_a_running_step, I100),
    Hostile(lanes_that_compute, I100),
    Hostile(lanes_of_no_period, I100),
    Hostile(lanes_of_a_second_role, I100),
    Hostile(index_named_twice, ({"i": 300},)),
    Hostile(copied_by_some_lanes, I100),
    Hostile(loaded_by_odd_and_even_lanes, I100),
    Hostile(boxes_that_begin_between, ({"m": 72, "n": 64, "k": 64},)),
    Hostile(product_into_one_column, ({"m": 64, "n": 64, "k": 32},)),
    Hostile(halves_by_stmatrix, ({"m": 64, "n": 64, "k": 64},)),
)

BROKEN: tuple[Hostile, ...] = (
    Hostile(fewer_copies_than_the_role_has, I100),
    Hostile(variable_of_the_grid_in_a_role, I100),
    Hostile(copies_without_barriers, I100),
    Hostile(cluster_without_barriers, I100),
    Hostile(raster_of_nothing, I100),
    Hostile(no_ctas_on_an_sm, I100),
    Hostile(name_of_two_words, I100),
    Hostile(unrolled_without_end, (TILE,)),
    Hostile(vectors_of_nothing, I100),
    Hostile(vectors_below_one, I100),
    Hostile(role_without_a_body, I100),
    Hostile(operand_without_an_origin, (ODD,)),
    Hostile(lines_left_out_by_a_thread, I100),
    Hostile(operator_without_a_name, I100),
    Hostile(maximum_by_fma, I100),
    Hostile(product_of_one, I100),
    Hostile(sum_of_nothing, I100),
    Hostile(constant_stored, I100),
    Hostile(shared_memory_as_an_operand, I100),
    Hostile(ring_without_stages, (TILE,)),
    Hostile(shared_memory_as_long_as_an_axis, (TILE,)),
)

RIGHT: tuple[Hostile, ...] = (
    Hostile(plain_doubling, I100),
    Hostile(naive, (ODD,)),
    Hostile(tiled, (TILE,)),
    Hostile(two_sums, (ODD,)),
    Hostile(first_step_peeled, (ODD, {"m": 8, "n": 4, "k": 1})),
    Hostile(first_step_peeled_under_a_guard, (ODD, {"m": 8, "n": 4, "k": 1})),
    Hostile(one_thread_fills, I100),
    Hostile(persistent_ring, ({"i": 300},)),
    Hostile(copied_by_all, I100),
    Hostile(register_of_an_unrolled_step, I100),
    Hostile(every_second_index, ({"i": 300},)),
    Hostile(the_later_role_stands_first, I100),
    Hostile(ring_of_one_index, ({"i": 200},)),
    Hostile(boxes_of_half_a_tile, ({"m": 72, "n": 64, "k": 64},)),
    Hostile(ranks_of_a_cluster, ({"i": 300},)),
)
