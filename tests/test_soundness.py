"""Families of terms that were once called legal, and fail: rejected when built, illegal, unproved.

Each family of ``docs/model-concurrency.md``, section "Three outcomes", has a generator of its own,
drawn by a seed.  Where a term's fault can be computed, or run, the test does so, and asks that no
faulty one is legal; and some right one of the family is, so that nothing is refused for its form.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.async_mutants import mutants
from tests.async_protocols import BY_THREAD, DOUBLE, HELD, MINE, TILE, by_hand
from tests.blackwell_terms import small as blackwell_small
from tests.hopper_terms import rewritten, term
from tests.mutants import rewritten as with_buffer
from tests.sample import SOAK
from tests.small_programs import LEAVE, ZERO, at, get, put, small
from tinygpu.cli import app
from tinygpu.codegen.emit import emit
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import IllegalScheduleError, MachineError, ProgramError, TinyGpuError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.blocks import TILES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, check_schedule, serves
from tinygpu.legality.reach import Case
from tinygpu.legality.storage_laws import STORAGE_LAWS
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere import STARTS as AMPERE
from tinygpu.machines.hopper import STARTS as HOPPER
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.interpret import check
from tinygpu.search.exact.best import rank
from tinygpu.space.space import Space
from tinygpu.term.expression import Apply, Constant, Expression, bounds, value
from tinygpu.term.layout import Layout
from tinygpu.term.machine import Chosen, Machine, used_instructions
from tinygpu.term.operation import (
    ACTIVATIONS,
    Problem,
    attention,
    matmul,
    rmsnorm,
    rmsnorm_matmul,
    softmax,
)
from tinygpu.term.plan import kernels_of
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Block,
    Buffer,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    registers,
    var,
    walk,
)
from tinygpu.term.schedule import Schedule, to_json

H200, B200 = load_device("h200"), load_device("b200")
K = var("k")


@cache
def protocols() -> tuple[Program, ...]:
    return tuple(by_hand())


def bodied(program: Program, role: int, body: tuple[Statement, ...]) -> Program:
    """The program with another body of a role."""
    roles = list(program.roles)
    roles[role] = replace(roles[role], body=body)
    return replace(program, roles=tuple(roles))


def renamed(program: Program, old: str, new: str) -> Program:
    """The program with a parameter, or a variable, called otherwise."""

    def change(part: Any) -> Any:
        if isinstance(part, str):
            return new if part == old else part
        if isinstance(part, tuple):
            return tuple(map(change, part))
        if isinstance(part, Affine):
            return Affine(part.constant, change(part.terms))
        if isinstance(part, Access):
            return replace(part, origin=change(part.origin), index=change(part.index))
        if isinstance(part, Block | Do | Wait | Arrive | Exit):
            return replace(part, **{f.name: change(getattr(part, f.name)) for f in fields(part)})
        return part

    return replace(
        program,
        roles=tuple(replace(r, body=change(r.body)) for r in program.roles),
        parameters=tuple((new if n == old else n, e) for n, e in program.parameters),
    )


def outcome(make: Callable[..., Program], *given: Any) -> str:
    """The verdict's outcome, or "rejected" where the program cannot be built or described."""
    try:
        return verdict(make(*given)).outcome
    except ProgramError:
        return "rejected"


# 1 and 2: what some CTAs leave out, and what goes to another CTA, is no part


def ordered_stores(program: Program) -> Iterator[tuple[str, Program]]:
    """Each statement that orders stores, under a guard by rank."""
    kinds = (Fence, Commit, WaitGroup, Sync)
    places = [s for s, _ in walk(program) if isinstance(s, kinds)]
    axis = next(name for name, extent in program.cluster if extent > 1)
    for number in range(len(places)):
        seen = iter(range(len(places)))

        def change(s: Statement, seen: Iterator[int] = seen, number: int = number) -> Statement:
            if isinstance(s, kinds) and next(seen) == number:
                return When(var(axis), 1, (s,))
            return s

        if "bulk" in str(places[number]) or "proxy" in str(places[number]):
            yield str(places[number]), rewritten(program, change)


@pytest.mark.parametrize("machine", ["hopper", "blackwell"])
def test_a_guard_by_rank_around_what_orders_stores_is_seen(machine: str) -> None:
    """Store parts drop no guard: every fence, commit and wait of a bulk store is needed by all."""
    hopper = term("cluster", tile_n=64, store_n=32, stages=2)
    whole = hopper if machine == "hopper" else blackwell_small("cluster")
    assert verdict(whole).legal
    found = [(name, outcome(replace, mutant)) for name, mutant in ordered_stores(whole)]
    assert len(found) >= 3
    assert not [name for name, said in found if said == "legal"]


def test_the_interpreter_agrees_about_guards_by_rank() -> None:
    whole = term("cluster", tile_n=64, store_n=32, stages=2)
    unfenced = next(mutant for name, mutant in ordered_stores(whole) if "proxy" in name)
    found = check(unfenced, {"m": 256, "n": 64, "k": 136}, seeds=(0, 1, 2))
    assert "unfenced" in {finding.kind for finding in found}


# 3: bounds


def names_bound(program: Program, number: random.Random) -> Program:
    """A statement of a loop, under a guard, in a loop or at an index that names its variable."""
    loops = [s for s, _ in walk(program) if isinstance(s, For) and isinstance(s.trips, str)]
    loop = number.choice(loops)
    inner = number.choice(loop.body)
    c = number.choice((0, 3, 1000))
    wrong: Statement = number.choice((
        When(Affine(c), loop.var, (inner,)),
        When(var(loop.var), loop.var, (inner,)),
        For("jj", loop.var, (inner,), start=c),
        When(var(loop.var, loop.var), 5, (inner,)),
    ))  # fmt: skip
    done: list[bool] = []

    def change(s: Statement) -> Statement:
        if s is inner and not done:
            done.append(True)
            return wrong
        return s

    return rewritten(program, change)


@pytest.mark.parametrize("seed", range(40))
def test_a_bound_names_no_variable(seed: int) -> None:
    """Whatever the loop is called: as nothing else, or as a size."""
    number = random.Random(seed)
    program = number.choice((
        small(1, (ZERO, For("kt", "trips", (put(1, 0), Sync(), get(1, 0), Sync())))),
        number.choice(protocols()),
    ))  # fmt: skip
    loop = next(s.var for s, _ in walk(program) if isinstance(s, For) and isinstance(s.trips, str))
    size = program.operation.axes[0]
    program = number.choice((program, renamed(program, loop, size)))
    with pytest.raises(ProgramError, match="names"):
        names_bound(program, number)


# 4: names


@pytest.mark.parametrize("new", ["tiles", "pair"])
def test_no_parameter_has_a_magic_name(new: str) -> None:
    """A verdict does not depend on what a parameter is called."""
    number = random.Random(4)
    some = number.sample([p for q in protocols()[:24] for _, p in mutants(q)], 24)
    some += [p for n, p in mutants(term("pingpong", stages=2, in_flight=0)) if "drop bar" in n]
    for program in some:
        assert outcome(renamed, program, "trips", new) == outcome(replace, program)
    assert TILES not in new
    with pytest.raises(ProgramError, match="is no name"):
        renamed(program, "trips", TILES)


@pytest.mark.parametrize("start", ["cluster", "pingpong", "shared k"])
def test_a_name_is_bound_once(start: str) -> None:
    """A loop over a rank, copy, tile, parameter or another loop's variable is rejected."""
    program = term(start)
    taken = [name for name, _ in (*program.cluster, *program.parameters)]
    taken += [n for s, _ in walk(program) if isinstance(s, ForTile) for n in (s.tile, s.turn)]
    for number, role in enumerate(program.roles):
        for name in (*taken, role.copy):
            idle = For(name, 2, (Elect((Commit("cp.async"),)),))

            def within(s: Statement, idle: For = idle) -> Statement:
                return replace(s, body=(idle, *s.body)) if isinstance(s, ForTile) else s

            assert outcome(rewritten, program, within) == "rejected", name
        if "rank_m" in taken:
            first = For("rank_m", 2, (Elect((Commit("cp.async"),)),))
            assert outcome(bodied, program, number, (first, *role.body)) == "rejected"


def test_two_of_a_kind_share_no_name() -> None:
    program = term("plain")
    every: tuple[dict[str, Any], ...] = (
        {"barriers": (*program.barriers, program.barriers[0])},
        {"buffers": (*program.buffers, program.buffers[0])},
        {"roles": (*program.roles, program.roles[0])},
        {"cluster": (*program.cluster, program.cluster[0])},
        {"cluster": (("cluster", 1), *program.cluster)},
        {"parameters": (*program.parameters, ("a b", Constant(1)))},
    )
    for changes in every:
        with pytest.raises(ProgramError):
            replace(program, **changes)


# 5: declarations


def declared(program: Program) -> Iterator[tuple[str, Callable[[], Program]]]:
    """Each number that a barrier or a buffer declares, one more than its statements say."""
    for kind in ("barriers", "buffers"):
        every = getattr(program, kind)
        for i, one in enumerate(every):
            for field in fields(one):
                old = getattr(one, field.name)
                if isinstance(old, int):
                    new: Any = old + 1
                elif isinstance(old, tuple) and old and isinstance(old[0], int):
                    new = (old[0] + 1, *old[1:])
                else:
                    continue
                changed = (*every[:i], replace(one, **{field.name: new}), *every[i + 1 :])
                given: dict[str, Any] = {kind: changed}
                yield f"{one.name} {field.name}", partial(replace, program, **given)


@pytest.mark.parametrize("start", ["plain", "cluster", "shared k", "pingpong"])
def test_a_statement_uses_what_is_declared(start: str) -> None:
    count = 0
    for name, make in declared(term(start)):
        with pytest.raises(ProgramError, match="declare"):
            make()
        count += 1
        assert name
    assert count > 20


@pytest.mark.parametrize("group", ["cp.async", "wgmma", "tcgen05.ld", "bulk"])
def test_only_bulk_groups_are_waited_for_until_they_are_read(group: Any) -> None:
    """No other wait_group has .read: the judge would ignore it, the interpreter not wait."""
    make = partial(small, 1, (ZERO, put(1, 0), Sync(), get(1, 0), WaitGroup(0, group, read=True)))
    if group == "bulk":
        make()
        return
    with pytest.raises(ProgramError, match="of a bulk copy alone"):
        make()


# 6: storage


def drawn_buffer(number: np.random.Generator) -> Buffer:
    """A buffer of a few dimensions, whose strides are right, padded, or anything."""
    shape = tuple(int(x) for x in number.integers(1, 9, number.integers(1, 4)))
    order = number.permutation(len(shape))
    stride, size = [0] * len(shape), 1
    for d in order:
        stride[d] = size
        size = size * shape[d] + int(number.choice((0, 0, 0, 1, 3)))
    if number.random() < 0.5:
        d = int(number.integers(len(shape)))
        stride[d] = max(0, stride[d] + int(number.integers(-3, 3)))
    bits = int(number.choice((0, 0, 1, 2)))
    swizzle = (bits, int(number.integers(0, 3)), int(number.choice((-1, 1))) * max(bits, 2))
    each = max(1, size + int(number.choice((-4, -1, 0, 0, 8, 64))))
    return Buffer(
        "x", "smem", "f32", shape, tuple(stride), int(number.integers(1, 4)), each, swizzle
    )


def test_cells_are_apart_and_inside() -> None:
    """What the law allows has an offset for each coordinate, and all within a stage."""
    number, allowed, right = np.random.default_rng(6), 0, 0
    for _ in range(600):
        buffer = drawn_buffer(number)
        program = replace(small(1, ()), buffers=(buffer,))
        case = Case.of(program, {"m": 1, "n": 1, "k": 1}, None)
        holds = all(c.holds for c in STORAGE_LAWS["storage"].clauses(case))
        layout: Layout = buffer.layout
        offsets = np.asarray([layout(i) for i in range(prod(map(int, buffer.shape)))])
        fine = len(set(offsets.tolist())) == len(offsets) and offsets.max() < buffer.stage_elements
        assert fine or not holds, buffer
        allowed, right = allowed + holds, right + fine
    assert allowed > 0.7 * right > 90


def test_what_is_written_is_reserved() -> None:
    """A 32 x 32 tile in 32 elements; stages that overlap; a layout with a stride of 0."""
    program = Simt().program(matmul(), Chosen(LADDER["tuned"]))
    sizes = {"m": 256, "n": 256, "k": 64}
    for buffer in program.buffers:
        if buffer.level != "smem":
            continue
        for changes in (
            {"stage_elements": 32},
            {"stage_elements": buffer.stage_elements // 2},
            {"stride": (0, *buffer.stride[1:])},
            {"stride": (*buffer.stride[:-1], 0)},
        ):
            wrong = replace(buffer, **changes)
            case = Case.of(with_buffer(program, buffer, wrong), sizes, H200)
            assert not all(c.holds for c in LAWS["storage"].clauses(case)), changes


def test_no_access_starts_before_its_buffer() -> None:
    program = small(1, (ZERO, put(1, 0), Sync(), get(1, 0)))
    before = replace(at(1, 0), origin=(Affine(-1),))
    back = replace(at(1, 0), thread=((-1,),), origin=(Affine(30),))
    for access in (before, back):
        read = replace(get(1, 0), reads=(access,))
        case = Case.of(small(1, (ZERO, put(1, 0), Sync(), read)), {"m": 1, "n": 1, "k": 1}, H200)
        assert any("count from 0" in str(c) for c in LAWS["inside"].clauses(case) if not c.holds)
    case = Case.of(program, {"m": 1, "n": 1, "k": 1}, H200)
    assert all(c.holds for c in LAWS["inside"].clauses(case))


# 7: products without barriers


def products(number: random.Random) -> Program:
    """Stores to shared memory, a product of it and its sums, with some of what orders them."""
    plain = term("plain", stages=2)
    held = registers("held", "bf16", 32)
    source = Access(held, ((1,),), ((0,), (0,)))
    zero = Do(INSTRUCTIONS["mov"], source, ZERO.reads, (32,), (64, 2))
    rings = {b.name: replace(b, stages=1) for b in plain.buffers if b.level == "smem"}
    (multiply,) = [s for s, _ in walk(plain) if isinstance(s, Do) and s.instruction.name == "wgmma"]
    still = tuple(
        replace(a, buffer=rings.get(a.buffer.name, a.buffer), index=Affine(), origin=())
        for a in multiply.reads
        if isinstance(a, Access)
    )
    product_ = replace(multiply, reads=still, write=still[-1], fresh=Affine())
    sums = [s for s, _ in walk(plain) if isinstance(s, Do) and s.instruction.name == "cvt"]
    (taken,) = sums[0].reads
    assert isinstance(taken, Access)
    use = replace(sums[0], reads=(replace(taken, index=Affine(), origin=()),))
    use = replace(use, write=replace(use.write, index=Affine(), origin=()))
    stores: list[Statement] = [zero]
    for ring in rings.values():
        across = Access(ring, ((0, 1, 0),), ((1, 0, 0), (0, 32, 0)))
        stores.append(Do(INSTRUCTIONS["st.shared"], across, (source,), (32,), (64, 2)))
    before: tuple[Statement, ...] = (Fence("proxy.async"), Sync(), Fence("wgmma"))
    after: tuple[Statement, ...] = (Commit("wgmma"), WaitGroup(0, "wgmma"))
    dropped = number.choice([s for s in (*before, *after) if s != Sync()])
    order = [s for s in (*before, product_, *after) if s is not dropped]
    body = (*stores, *order, use)
    gmem = [b for b in plain.buffers if b.level == "gmem"]
    buffers = (*gmem, *rings.values(), held, still[-1].buffer, use.write.buffer)
    return replace(plain, buffers=buffers, barriers=(), cluster=(), roles=(Role("all", 128, body),))


def test_a_product_without_a_barrier_needs_its_order() -> None:
    """Without its fences, commit or wait it is illegal."""
    for seed in range(16):
        program = products(random.Random(seed))
        assert verdict(program).outcome == "illegal"


# 8: loops of writes


def written_in_a_loop(steps: tuple[int, int], extents: tuple[int, int]) -> Program:
    """A worker that writes ring z, at cell steps[0] thread + steps[1] j, for j below extents[0]."""
    base = next(p for p in protocols() if p.name == "store ring 2 0")
    cells = 31 * steps[0] + (extents[0] - 1) * steps[1] + 1
    z = Buffer("z", "smem", "f32", (cells,), (1,), 2, cells)
    one = replace(HELD, name="one", shape=(1,), stride=(1,), stage_elements=1)
    zero = Do(INSTRUCTIONS["mov"], Access(one, ((0,),), index=K), (ZERO.reads[0],), (1,), (32,))
    target = Access(z, ((0,),), ((steps[0],),), (var("j", steps[1]),), index=K)
    source = Access(one, ((0,),), ((0,),), index=K)
    write = Do(INSTRUCTIONS["st.shared"], target, (source,), (1,), (32,))
    read = Do(INSTRUCTIONS["ld.shared"], source, (replace(target, origin=()),), (1,), (32,))
    more = (Sync(1, "role"), zero, For("j", extents[0], (write,)), Sync(1, "role"), read)
    body = tuple(
        replace(s, body=(*s.body, *more)) if isinstance(s, For) else s for s in base.roles[1].body
    )
    roles = (base.roles[0], replace(base.roles[1], body=body))
    return replace(base, roles=roles, buffers=(*base.buffers, z, one))


def test_a_loop_is_collapsed_only_where_its_writes_are_apart() -> None:
    """Two threads share a cell in two iterations: not legal; each has its own, of all: legal."""
    number, seen = random.Random(8), set()
    cases = [((1, 32), (2, 0)), ((1, 1), (2, 0)), ((2, 1), (2, 0)), ((1, 0), (3, 0))]
    cases += [((number.randint(0, 4), number.randint(0, 40)), (number.randint(1, 4), 0))
              for _ in range(40)]  # fmt: skip
    for steps, extents in cases:
        owners: dict[int, set[int]] = {}
        for t, j in product(range(32), range(extents[0])):
            owners.setdefault(steps[0] * t + steps[1] * j, set()).add(t)
        shared = any(len(threads) > 1 for threads in owners.values())
        got = verdict(written_in_a_loop(steps, extents))
        assert not (got.legal and shared), (steps, extents, str(got))
        if not shared and len(owners) == max(owners) + 1:
            assert got.legal, (steps, extents, str(got))
            seen.add(False)
        seen.add(shared)
    assert seen == {True, False}


def test_the_interpreter_sees_a_loop_that_races() -> None:
    assert {f.kind for f in check(written_in_a_loop((1, 1), (2, 0)), {"i": 2 * TILE})} >= {"race"}
    assert not check(written_in_a_loop((1, 32), (2, 0)), {"i": 2 * TILE})


# 9: roles that leave, least values, registers in parts


def test_one_of_two_roles_does_not_leave_before_a_barrier() -> None:
    whole = replace(LEAVE, access=replace(LEAVE.access, thread=((0, 0),)))
    for seed in range(20):
        number = random.Random(seed)
        bodies: list[list[Statement]] = [[ZERO, Sync(), ZERO, Sync()], [Sync(), ZERO, Sync()]]
        body = number.choice(bodies)
        body.insert(number.randrange(len(body)), number.choice((whole, LEAVE)))
        roles = tuple(Role(f"role{i}", 32, tuple(b)) for i, b in enumerate(bodies))
        got = verdict(replace(small(1, ()), roles=roles))
        assert not got.legal
    assert verdict(replace(small(1, ()), roles=(Role("a", 32, (ZERO, Sync(), whole)),))).legal


def drawn_expression(number: random.Random, names: tuple[str, ...], depth: int = 3) -> Expression:
    if not depth or number.random() < 0.2:
        return number.choice((value(number.choice(names)), Constant(number.randint(1, 5))))
    operator = number.choice(("add", "sub", "mul", "ceildiv", "max", "min", "neg"))
    left = drawn_expression(number, names, depth - 1)
    right = drawn_expression(number, names, depth - 1)
    if operator == "ceildiv":
        right = Constant(number.randint(1, 5))
    return Apply(operator, (left,) if operator == "neg" else (left, right))


def test_bounds_enclose() -> None:
    """An expression of sizes lies within its bounds at all sizes tried."""
    number, tight = random.Random(9), 0
    for _ in range(500):
        expression = drawn_expression(number, ("m", "k"))
        low, high = bounds(expression, {"m": (1, 6), "k": (1, 6)})
        values = [expression.evaluate({"m": m, "k": k})
                  for m, k in product(range(1, 7), repeat=2)]  # fmt: skip
        assert low <= min(values)
        assert max(values) <= high
        tight += low == min(values)
    assert tight > 200


def test_a_loop_of_trips_that_may_be_negative_turns_no_time() -> None:
    """So what is proved of it is proved of trips that are 0 there."""
    number, found = random.Random(10), set()
    for _ in range(60):
        trips = drawn_expression(number, ("i",))
        base = number.choice(protocols()[:20])
        got = verdict(replace(base, parameters=(("trips", trips),)))
        low = min(trips.evaluate({"i": i}) for i in (*range(1, 40), 2**31 - 1))
        least = Apply("max", (trips, Constant(0)))
        assert got.outcome == verdict(replace(base, parameters=(("trips", least),))).outcome
        found.add((got.outcome, low < 0))
    assert {("legal", False), ("legal", True)} <= found


def test_registers_written_in_parts_are_not_whole() -> None:
    """A part of a thread's registers is read into, all of them are used."""
    for seed in range(10):
        number = random.Random(seed)
        base = number.choice([p for p in protocols() if p.name.startswith("store ring")])

        def part(s: Statement, lanes: bool = seed % 2 == 0) -> Statement:
            if not (isinstance(s, Do) and s.instruction.name == "ld.shared"):
                return s
            return replace(s, lanes=(1, 32, 0)) if lanes else replace(s, values=(1,))

        mutant = rewritten(base, part)
        assert not verdict(mutant).legal
        if seed < 2:
            assert check(mutant, {"i": 2 * TILE}, seeds=(0,))
        assert verdict(base).legal


# 10: early starts


def test_an_early_start_has_code_that_waits() -> None:
    """Of every machine, before anything is read; on chips that let it."""
    sizes, a100 = {"m": 256, "n": 256, "k": 64}, load_device("a100")
    terms = [Simt().program(matmul(), Chosen(v)) for v in LADDER.values()]
    terms += [MACHINES["ampere"].program(matmul("bf16"), Chosen(AMPERE["ring"])), term("early")]
    for program in terms:
        early = replace(program, early=True)
        for chip, holds in ((H200, True), (a100, False)):
            clauses = LAWS["early"].clauses(Case.of(early, sizes, chip))
            assert all(c.holds for c in clauses) == holds
        lines = emit(early, "sm_90a", sizes, unchecked=True).splitlines()
        (waits,) = (i for i, line in enumerate(lines) if "griddepcontrol.wait" in line)
        reads = [i for i, line in enumerate(lines)
                 if "ld.global" in line or "cp.async" in line or "st.global" in line]  # fmt: skip
        assert waits < min(reads)
        assert "griddepcontrol" not in emit(replace(program, early=False), "sm_90a", sizes,
                                            unchecked=True)  # fmt: skip


# 12: sizes, memory, lists of instructions


@pytest.mark.parametrize("machine", ["simt", "ampere"])
def test_sizes_beyond_31_bits_break_a_law(machine: str) -> None:
    values = LADDER["tuned"] if machine == "simt" else AMPERE["ring"]
    operation = matmul("f32" if machine == "simt" else "bf16")
    program = MACHINES[machine].program(operation, Chosen(values))
    for axis in operation.axes:
        for far in (2**31, 2**32, 2**32 + 64, 2**40):
            sizes = {"m": 64, "n": 64, "k": 64, axis: far}
            assert "integers" in {v.law for v in serves(program, sizes)}
    assert "integers" not in {v.law for v in serves(program, {"m": 64, "n": 64, "k": 2**20})}


def test_arrays_fit_the_device() -> None:
    program = Simt().program(matmul(), Chosen(LADDER["tuned"]))
    for bits in range(10, 22):
        sizes = {"m": 2**bits, "n": 2**bits, "k": 2**bits}
        (clause,) = LAWS["device_memory"].clauses(Case.of(program, sizes, H200))
        assert clause.holds == (3 * 4 * 4**bits <= H200.dram_bytes)


def test_a_machine_uses_what_it_lists() -> None:
    """Without an instruction in its list, a machine's terms that need it are an error."""
    for machine, operation, values in (
        (Simt(), matmul(), LADDER["tuned"]),
        (MACHINES["ampere"], matmul("bf16", layout="nt"), AMPERE["ring"]),
        (MACHINES["hopper"], matmul("bf16", layout="nt"), dict(_start("hopper"))),
        (MACHINES["blackwell"], matmul("bf16", layout="nt"), dict(_start("blackwell"))),
    ):
        device = B200 if machine.name == "blackwell" else H200
        problem = Problem.of(operation, m=4096, n=4096, k=4096)
        used = {name for name, _ in used_instructions(machine.program(operation, Chosen(values)))}
        for one in machine.instructions:
            rest = tuple(i for i in machine.instructions if i is not one)
            less: Machine = type("Less", (type(machine),), {"instructions": rest})()
            schedule = Schedule.of(less, values)
            if one.name in used:
                with pytest.raises(MachineError, match="none of its instructions"):
                    check_schedule(schedule, less, problem, device)
            else:
                assert less.term(operation, Chosen(values)).name
        assert len(used) > 4


def _start(machine: str) -> dict[str, Any]:
    from tinygpu.machines import blackwell, hopper

    return dict((hopper if machine == "hopper" else blackwell).STARTS["plain"])


# three outcomes


def test_the_grids_variable_in_an_index_is_unproved() -> None:
    base = protocols()[0]

    def change(s: Statement) -> Statement:
        return replace(s, index=s.index + var("b")) if isinstance(s, Wait) else s

    got = verdict(rewritten(base, change))
    assert got.outcome == "unproved"
    assert "names b" in got.reason


OWN = """
from dataclasses import replace
from tinygpu.machines.simt import Simt
from tinygpu.term.program import For, Sync

class Again(Simt):
    name = "again"

    def program(self, operation, choose):
        made = super().program(operation, choose)
        (role,) = made.roles
        again = For("again", "trips", (Sync(),))
        return replace(made, roles=(replace(role, body=(*role.body, again)),))
"""


def test_what_is_unproved_is_never_said_to_be_legal(tmp_path: Path) -> None:
    """By ``check``, with status 1, and by ``search``, which has nothing to offer."""
    own, file = tmp_path / "own.py", tmp_path / "schedule.json"
    own.write_text(OWN)
    problem = Problem.of(matmul(), m=256, n=256, k=256)
    schedule = Schedule("again", tuple(LADDER["tuned"].items()))
    file.write_text(to_json(schedule, problem, device="h200"))
    runner, machine = CliRunner(), ("--machine", f"{own}:Again")
    said = runner.invoke(app, ["check", str(file), *machine])
    assert said.exit_code == 1
    assert said.stdout.startswith("unproved: ")
    assert "two loops over trips" in said.stdout
    assert "legal" not in said.stdout
    tree = runner.invoke(app, ["check", str(file), "--json", *machine]).stdout
    assert '"outcome": "unproved"' in tree
    assert '"legal": false' in tree
    fixed = [f"--fix={n}={v}" for n, v in LADDER["tuned"].items()]
    sizes = ["-m", "256", "-n", "256", "-k", "256"]
    found = runner.invoke(app, ["search", "matmul", *sizes, *machine, *fixed])
    assert found.exit_code, found.stdout


class Unready(Hopper):
    """A machine whose steps may be fewer than none, as far as its expression says."""

    name = "unready"

    def program(self, operation: Any, choose: Any) -> Program:
        made = super().program(operation, choose)
        once = value("k").ceildiv(Constant(choose.tile_k))
        steps = ("trips", once * Constant(2) - once)
        return replace(made, parameters=(*(p for p in made.parameters if p[0] != "trips"), steps))


def test_a_search_offers_nothing_unproved() -> None:
    """Of terms with mbarriers the verdict is asked at the end, and says why nothing is left.

    Steps that are not proved to be there are taken to be none, at which the sums are unwritten.
    """
    problem = Problem.of(matmul("bf16", layout="nt"), m=256, n=256, k=256)
    values = {n: v for n, v in HOPPER["ring"].items() if n not in ("raster", "stages")}
    assert rank(Space(Hopper(), problem, H200, fixed=values), 3).best
    space = Space(Unready(), problem, H200, fixed=values)
    assert space.count()
    with pytest.raises(IllegalScheduleError, match=r"concurrency: .*; so are all"):
        rank(space, 3)


# what the machines build


def drawn(machine: Machine, problem: Problem, device: Device) -> list[Schedule]:
    """Random schedules: of a random part of the space, at a soak of all of it.

    The part has one value of each structural decision, its first one or another, and three of each
    other.
    """
    rng = np.random.default_rng(12)
    space = Space(machine, problem, device)
    if SOAK:
        return list(space.sample(rng, 3))
    for _ in range(99):
        fixed = {
            n: space.values[n][:1] if c.structural and rng.random() < 0.5
            else tuple(
                rng.permutation(np.array(space.values[n], object))[: 1 if c.structural else 3]
            )
            for n, c in machine.decisions().items()
        }  # fmt: skip
        with suppress(IllegalScheduleError):
            if found := list(Space(machine, problem, device, fixed=fixed).sample(rng, 1)):
                return found
    raise AssertionError(f"{machine.name}: no part that was drawn has a schedule")


@pytest.mark.parametrize("name", MACHINES)
def test_what_machines_build_is_proved(name: str) -> None:
    """Random schedules of every machine, of its operations and types."""
    machine, device = MACHINES[name], B200 if name == "blackwell" else H200
    kinds = [("f32", "nn")] if name == "simt" else [("bf16", "nn"), ("e4m3", "nt"), ("tf32", "nt")]
    operations = [matmul(dtype, layout=layout) for dtype, layout in kinds]
    tried = 0
    rows = rmsnorm("f32"), softmax("bf16"), attention("bf16"), rmsnorm_matmul("bf16")
    for operation in (*operations, *rows, DOUBLE):
        try:
            machine.check(operation)
        except TinyGpuError:
            continue
        sizes = {axis: 128 if axis in "de" else 4096 for axis in operation.axes}
        sizes |= {axis: 2 for axis in "lhg" if axis in sizes and operation.name == "attention"}
        for schedule in drawn(machine, Problem.of(operation, **sizes), device):
            assert verdict(schedule.term(machine, operation)).legal, schedule
            tried += 1
    assert tried


def test_by_hand_all_are_proved() -> None:
    assert {verdict(p).outcome for p in protocols()} == {"legal"}
    assert DOUBLE.axes == ("i",)
    assert MINE.buffer is HELD
    assert BY_THREAD


def test_epilogues_use_what_machines_list() -> None:
    """Scales, biases and activations, of all machines that fuse them."""
    operations = [
        matmul("bf16", layout="nt", scaled=scaled, bias=bias, activation=activation)
        for scaled, bias, activation in product((False, True), (False, True), sorted(ACTIVATIONS))
    ]
    for name, start in (("hopper", HOPPER["tma store"]), ("ampere", AMPERE["plain"])):
        for operation in operations:
            if name == "hopper" or "alpha" not in operation.scalars:
                assert kernels_of(MACHINES[name].term(operation, Chosen(start)))
