"""Named barriers: two warps take turns by bar.sync and bar.arrive.

The small term computes y = 2 x: worker w of two has the tiles 2 k + w, and both use one tile of
shared memory, each in its turn.  The other one is FlashAttention-3's protocol, with its turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.ptx_runs import parsed, unchecked
from tests.warpgroup_terms import computed, held, rounded, scores, tile, weighted, zeroed
from tinygpu.codegen.run.interpretation import execute
from tinygpu.devices.device import load_device
from tinygpu.errors import IllegalScheduleError, ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, require_sound
from tinygpu.legality.reach import Case
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check, interpret
from tinygpu.search.time.work import _Accountant
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import Constant, value
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
    changed,
    registers,
    var,
    walk,
)

TILE = 64
DOUBLE = elementwise(value("x") * Constant(2.0), inputs=("x",))
X, Y = (Buffer(n, "gmem", "f32", ("i",), (1,)) for n in "xy")
SCRATCH = Buffer("scratch", "smem", "f32", (TILE,), (1,), 1, TILE)
HELD = registers("held", "f32", 2)
MINE = Access(HELD, ((1,),))
K, W = var("k"), var("w")
TURN = Barrier("turn", 2, 64, number=3)
STEP = 2 * K + W
NEIGHBOURS, APART = (((1,),), ((2,),)), (((32,),), ((1,),))
AT = (TILE * STEP,)

Body = tuple[Statement, ...]
FIRST: Statement = When(-1 * W + 1, 1, (Arrive(TURN, Affine()),))
LOAD = Do(INSTRUCTIONS["ld.global"], MINE,
          (Access(X, *NEIGHBOURS, origin=AT, guard=(True,)),), (2,), (32,))  # fmt: skip
TAKE, GIVE = Wait(TURN, STEP), Arrive(TURN, STEP + 1)
PUT = Do(INSTRUCTIONS["st.shared"], Access(SCRATCH, *NEIGHBOURS, index=STEP), (MINE,), (2,), (32,))
GET = Do(INSTRUCTIONS["ld.shared"], MINE, (Access(SCRATCH, *APART, index=STEP),), (2,), (32,))
TWICE = Do(INSTRUCTIONS["fma"], MINE, (MINE, MINE), (2,), (32,), variant="add")
STORE = Do(INSTRUCTIONS["st.global"], Access(Y, *APART, origin=AT, guard=(True,)),
           (MINE,), (2,), (32,))  # fmt: skip
MEET = Sync(1, "role")
LOOP: Body = (LOAD, TAKE, PUT, MEET, GET, GIVE, TWICE, STORE)
SIZES = {"i": 5 * TILE - 3}


def turns(loop: Body = LOOP, before: Body = (FIRST,), turn: Barrier = TURN) -> Program:
    trips = (("trips", value("i").ceildiv(Constant(2 * TILE))),)

    def of(s: Statement) -> Statement:
        return replace(s, barrier=turn) if isinstance(s, Wait | Arrive) else s

    body = changed((*before, For("k", "trips", loop)), of)
    return Program(
        "turns", DOUBLE, (X, Y, SCRATCH, HELD), trips, (Axis("b", Constant(1)),),
        (Role("worker", 32, body, 2, "w"),), barriers=(turn,),
    )  # fmt: skip


def moved(loop: Body, what: Statement, by: int) -> Body:
    at = loop.index(what)
    rest = [*loop[:at], *loop[at + 1 :]]
    rest.insert(at + by, what)
    return tuple(rest)


def put(loop: Body, old: Statement, *new: Statement) -> Body:
    return tuple(n for s in loop for n in (new if s is old else (s,)))


def emulated(program: Program, seed: int = 0) -> tuple[set[str], bool]:
    """Return what the emulator finds in the PTX, and whether the output is right."""
    x = np.random.default_rng(seed).standard_normal(SIZES["i"]).astype(np.float32)
    arrays = {"x": x, "y": np.full_like(x, np.nan)}
    report = execute(program, SIZES, arrays, parsed(unchecked(program)), seed=seed)
    return {f.kind for f in report.findings}, bool((arrays["y"] == 2 * x).all())


def test_two_warps_take_turns() -> None:
    program = turns()
    assert verdict(program).outcome == "legal"
    assert verdict(program, apart=True).outcome == "legal"
    assert computes(program, SIZES).finding is None
    require_sound(program, "sm_90a", SIZES)
    x = np.random.default_rng(1).standard_normal(SIZES["i"]).astype(np.float32)
    for seed in range(12):
        result = interpret(program, SIZES, {"x": x}, seed=seed)
        assert result.findings == ()
        np.testing.assert_array_equal(result.outputs["y"], 2 * x)
    assert emulated(program) == (set(), True)


EARLY = When(-1 * W + 1, 1, (Arrive(TURN, Affine()), Arrive(TURN, Affine())))
MUTANTS: dict[str, Callable[[], Program]] = {
    "no first turn": lambda: turns(before=()),
    "the first turn twice": lambda: turns(before=(EARLY,)),
    "both give the first turn": lambda: turns(before=FIRST.body),
    "the first turn is the other's": lambda: turns(
        before=(When(-1 * W + 1, 1, (Arrive(TURN, Affine(1)),)),)
    ),
    "no arrival": lambda: turns(put(LOOP, GIVE)),
    "an arrival twice": lambda: turns(put(LOOP, GIVE, GIVE, GIVE)),
    "an arrival before the turn": lambda: turns(moved(LOOP, GIVE, -4)),
    "an arrival before the tile is read": lambda: turns(moved(LOOP, GIVE, -2)),
    "an arrival at one's own": lambda: turns(put(LOOP, GIVE, Arrive(TURN, STEP + 2))),
    "an arrival a phase early": lambda: turns(put(LOOP, GIVE, Arrive(TURN, STEP + 3))),
    "an arrival of a phase that is over": lambda: turns(put(LOOP, GIVE, Arrive(TURN, STEP + -1))),
    "no wait": lambda: turns(put(LOOP, TAKE)),
    "a wait twice": lambda: turns(put(LOOP, TAKE, TAKE, TAKE)),
    "a wait for the other's turn": lambda: turns(put(LOOP, TAKE, Wait(TURN, STEP + 1))),
    "a wait for an index below 0": lambda: turns(put(LOOP, TAKE, Wait(TURN, STEP + -2))),
    "too few are counted": lambda: turns(turn=replace(TURN, arrivals=32)),
    "too many are counted": lambda: turns(turn=replace(TURN, arrivals=96)),
    "one thread gives": lambda: turns(put(LOOP, GIVE, Elect((GIVE,)))),
    "one barrier for both": lambda: turns(turn=replace(TURN, stages=1)),
}
MUTANTS["each arrives twice, and is counted so"] = lambda: turns(
    put(LOOP, GIVE, GIVE, GIVE), before=(EARLY,), turn=replace(TURN, arrivals=96)
)
SAME_CODE = {"an arrival a phase early", "an arrival of a phase that is over"}
SAME_CODE |= {"a wait for an index below 0"}
"""A wrong name for what is done: bar.sync has no parity, so the code is that of the right term."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_protocol_is_found(name: str) -> None:
    program = MUTANTS[name]()
    assert verdict(program).outcome == "illegal"
    assert check(program, SIZES, seeds=tuple(range(4)))
    with pytest.raises(IllegalScheduleError):
        require_sound(program, "sm_90a", SIZES)
    found = any(emulated(program, seed)[0] for seed in range(4))
    assert found != (name in SAME_CODE)


def meeting(*, giver: Body, taker: Body, first: Body = (), more: int = 64) -> Program:
    """Two warps that only meet: no values."""
    barriers = replace(MEETING, arrivals=more), BACK

    def of(s: Statement) -> Statement:
        if isinstance(s, Wait | Arrive) and s.barrier.name == MEETING.name:
            return replace(s, barrier=barriers[0])
        return s

    trips = (("trips", value("i")),)
    return Program(
        "meeting", DOUBLE, (X, Y), trips, (Axis("b", Constant(1)),),
        (
            Role("giver", 32, changed((*first, For("k", "trips", giver)), of)),
            Role("taker", 32, changed((For("k", "trips", taker),), of)),
        ),
        barriers=barriers,
    )  # fmt: skip


MEETING, BACK = Barrier("there", 1, 64, number=1), Barrier("back", 1, 64, number=2)


def test_two_roles_that_only_wait_meet() -> None:
    program = meeting(giver=(Wait(MEETING, K),), taker=(Wait(MEETING, K),))
    assert verdict(program).outcome == "legal"
    few = meeting(giver=(Wait(MEETING, K),), taker=(Wait(MEETING, K),), more=32)
    assert verdict(few).outcome == "illegal"


def test_who_has_arrived_is_part_of_the_state() -> None:
    """The giver arrives for k + 1 at the end of turn k, and again at the beginning of the next."""
    taker = (Wait(MEETING, K), Arrive(BACK, K))
    once = meeting(giver=(Arrive(MEETING, K), Wait(BACK, K)), taker=taker)
    assert verdict(once).outcome == "legal"
    twice = meeting(
        giver=(Arrive(MEETING, K), Wait(BACK, K), Arrive(MEETING, K + 1)), taker=taker,
        first=(Arrive(MEETING, Affine()),), more=96,
    )  # fmt: skip
    judged = verdict(twice)
    assert judged.outcome == "illegal"
    assert "again" in str(judged)


def test_all_threads_of_a_copy_arrive() -> None:
    """One thread cannot arrive for its warp, also where just so many are counted."""
    one = When(-1 * W + 1, 1, (Elect((Arrive(TURN, Affine()),)),))
    program = turns(put(LOOP, GIVE, Elect((GIVE,))), (one,), replace(TURN, arrivals=33))
    judged = verdict(program)
    assert judged.outcome == "illegal"
    assert "some threads of a copy" in str(judged)


def test_the_last_numbers_are_used() -> None:
    assert emulated(turns(turn=replace(TURN, number=14))) == (set(), True)


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (replace(TURN, number=15), "turn has numbers 15 to 16; a CTA has barriers 0 to 15"),
        (replace(TURN, number=0), "turn, numbers 0 to 1, has one of those of the CTA"),
        (replace(TURN, number=2), "turn, numbers 2 to 3, has one of those of worker"),
        (replace(TURN, arrivals=48), "turn counts 48 threads; whole warps arrive"),
        (
            replace(TURN, arrivals=96),
            "turn counts 96 threads; whole warps arrive: a multiple of 32",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_numbers_and_counts_are_those_of_a_cta(turn: Barrier, says: str) -> None:
    case = Case.of(turns(turn=turn), SIZES, None)
    assert says in " ".join(str(c) for c in LAWS["barrier_ids"].clauses(case) if not c.holds)


def test_a_number_that_two_groups_meet_at_is_illegal() -> None:
    judged = verdict(turns(turn=replace(TURN, number=2)))
    assert judged.outcome == "illegal"
    assert "joins other threads" in str(judged)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: turns(turn=replace(TURN, home="w")),
        lambda: turns(put(LOOP, GIVE, replace(GIVE, bytes=16))),
        lambda: turns(put(LOOP, GIVE, replace(GIVE, to="cluster"))),
        lambda: turns(put(LOOP, GIVE, replace(GIVE, after="tcgen05"))),
        lambda: turns(put(LOOP, LOAD, replace(LOAD, signal=(TURN, STEP)))),
    ],
    ids=["home", "bytes", "cluster", "commit", "signal"],
)
def test_what_a_named_barrier_cannot_do_is_refused(wrong: Callable[[], Program]) -> None:
    with pytest.raises(ProgramError, match="named barrier"):
        wrong()


def by_builder(first: int = 1, more: int = 1) -> Program:
    def forward(k: Kernel) -> None:
        turn = k.named_barriers("turn", 2, threads=256, number=3)
        with k.role("worker", warpgroups=1, w=2):
            w = k.copy("w")
            with k.when(w >= first):
                k.arrive(turn[w - 1])
            for _ in k.tiles():
                for step in k.loop("kt", over="k", by=64):
                    k.wait(turn[step, w])
                    k.arrive(turn[step, w + more])

    return trace("turns", forward, matmul("bf16"))


def test_the_builder_lets_copies_take_turns() -> None:
    program = by_builder()
    loop = next(s for s, _ in walk(program) if isinstance(s, For))
    assert [str(s) for s in loop.body] == [
        "bar.sync turn@(trips*tile + trips*tile + 2*kt + w)",
        "bar.arrive turn@(trips*tile + trips*tile + 2*kt + w + 1)",
    ]
    assert verdict(program).outcome == "legal"
    for wrong in (by_builder(first=2), by_builder(first=0), by_builder(more=0)):
        assert verdict(wrong).outcome == "illegal"


def test_a_copy_is_of_a_role() -> None:
    k = Kernel("turns", matmul("bf16"))
    k.grid("block")
    with pytest.raises(ProgramError, match="the grid counts block"):
        k.copy("block")


def test_a_wait_at_a_named_barrier_takes_as_long_as_bar_sync_and_the_last_to_come() -> None:
    program, device = turns(), load_device("h200")
    role = program.roles[0]
    account = _Accountant(program, device, SIZES, role, True, 1)
    arrives, waits = account.event(TAKE, ())
    assert (arrives.kind, waits.kind) == ("arrive", "wait")
    assert waits.cycles["serial"] == device.barrier_latency_cycles
    assert {arrives.barrier, waits.barrier} == {"turn"}


# FlashAttention-3

TILES, Q_BYTES, KV_BYTES = 128, 128 * 128 * 2, 128 * 128 * 2
T = var("t")
N = Affine(0, (("t", "trips"), ("k", 1)))  # the step, through all tiles
LAST = Affine(-1, (("t", "trips"), ("trips", 1)))
TWO_N = Affine(0, (("t", "trips"), ("t", "trips"), ("k", 2)))
GROUPS = Barrier("turn", 2, 256, number=4)
TAKE_IT, GIVE_IT = Wait(GROUPS, TWO_N + W), Arrive(GROUPS, TWO_N + W + 1)
BEGIN = When(-1 * W + 1, 1, (Arrive(GROUPS, Affine()),))
MATMUL = matmul("bf16", layout="nt")
A, B, C = (
    Buffer(n, "gmem", "bf16", axes, (f"ld_{n}", 1))
    for n, axes in (("a", ("m", "k")), ("b", ("n", "k")), ("c", ("m", "n")))
)


def fa3(
    take: Body = (TAKE_IT,), give: Body = (GIVE_IT,), first: Body = (BEGIN,),
    turn: Barrier = GROUPS, depth: int = 2, given: str = "after the product",
) -> Program:  # fmt: skip
    """FlashAttention-3's order: the product with V of step k - 1 flies under the softmax of k.

    A group issues a step's product of Q and K in its turn, and then gives it to the other group.
    """
    copy = INSTRUCTIONS["cp.async.bulk.tensor"]
    q, keys, values = tile("q", 1), tile("keys", depth), tile("values", depth)
    s, p, o = held("s", "f32"), held("p", "bf16"), held("o", "f32")
    qf, qe, kf, ke, vf, ve = (
        Barrier(f"{n}_{how}", 1 if n == "q" else depth, arrivals)
        for n in "qkv" for how, arrivals in (("full", 1), ("empty", 2))
    )  # fmt: skip

    def product_pv(index: Affine) -> Do:
        return weighted(o, p, values, (index, T))

    def free(barrier: Barrier, index: Affine) -> Statement:
        return Elect((Arrive(barrier, index),))

    later = When(-1 * K + 1, 1, (Wait(vf, N + -1), product_pv(N + -1)))
    meet = (*take, Fence("wgmma"), scores(s, q, keys, (T, N), Affine()), Commit("wgmma"))
    given_at = {"before the product": (*give, *meet), "after the product": (*meet, *give)}[given]
    step = (
        Wait(kf, N), *given_at, later, Commit("wgmma"),
        WaitGroup(1, "wgmma"), free(ke, N), computed(s, N),
        WaitGroup(0, "wgmma"), When(-1 * K + 1, 1, (free(ve, N + -1),)),
        rounded(p, s, N), computed(o, T),
    )  # fmt: skip
    tail = (
        Wait(vf, LAST), Fence("wgmma"), product_pv(LAST), Commit("wgmma"), WaitGroup(0, "wgmma"),
        free(ve, LAST), free(qe, T),
    )  # fmt: skip
    all_of_it = (Wait(qf, T), zeroed(o, T), For("k", "trips", step), When(Affine(), "trips", tail))
    end = Sync(scope="cluster")
    consumer = (*first, ForTile("t", "i", all_of_it), end)

    def load(buffer: Buffer, source: Buffer, index: Affine, full: Barrier) -> Do:
        given = Access(source, ((0, 1), (1, 0), (0, 64)), guard=(True, True))
        target = Access(buffer, ((0, 1, 0), (1, 0, 0), (0, 0, 1)), index=index)
        return Do(copy, target, (given,), (64, 128, 2), signal=(full, index))

    fill = For("k", "trips", (
        Wait(ke, N + -depth), Arrive(kf, N, KV_BYTES), load(keys, B, N, kf),
        Wait(ve, N + -depth), Arrive(vf, N, KV_BYTES), load(values, B, N, vf),
    ))  # fmt: skip
    fill_q = (Wait(qe, T + -1), Arrive(qf, T, Q_BYTES), load(q, A, T, qf))
    producer = (Elect((ForTile("t", "i", (*fill_q, fill)),)), end)

    def of(statement: Statement) -> Statement:
        if isinstance(statement, Wait | Arrive) and statement.barrier.named:
            return replace(statement, barrier=turn)
        return statement

    roles = (
        Role("consumer", 128, changed(consumer, of), 2, "w", 240),
        Role("producer", 128, producer, 1, "p", 24),
    )
    parameters = (
        ("ld_a", value("k")), ("ld_b", value("k")), ("ld_c", value("n")),
        ("trips", value("k").ceildiv(Constant(64))),
    )  # fmt: skip
    return Program(
        "fa3", MATMUL, (A, B, C, q, keys, values, s, p, o), parameters,
        (Axis("br", value("m").ceildiv(Constant(TILES))),), roles,
        barriers=(qf, qe, kf, ke, vf, ve, turn), cluster=(("rank_m", 1),), persistent=True,
    )  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("apart", [False, True], ids=["all tiles alike", "each tile its own"])
def test_the_turns_of_flash_attention_3_are_legal_for_all_trips(depth: int, apart: bool) -> None:
    judged = verdict(fa3(depth=depth), apart=apart)
    assert judged.outcome == "legal", str(judged)


WRONG: dict[str, Callable[[], Program]] = {
    "no turn is given": lambda: fa3(give=()),
    "a turn is given twice": lambda: fa3(give=(GIVE_IT, GIVE_IT)),
    "a turn is given before one has it": lambda: fa3(
        take=(), give=(GIVE_IT, TAKE_IT),
    ),
    "turns are given before the product": lambda: fa3(given="before the product"),
    "one gives oneself the turn": lambda: fa3(give=(Arrive(GROUPS, TWO_N + W + 2),)),
    "a turn of the step before": lambda: fa3(give=(Arrive(GROUPS, TWO_N + W + -1),)),
    "nobody is first": lambda: fa3(first=()),
    "both are first": lambda: fa3(first=(Arrive(GROUPS, Affine()),)),
    "one group is counted": lambda: fa3(turn=replace(GROUPS, arrivals=128)),
    "three groups are counted": lambda: fa3(turn=replace(GROUPS, arrivals=384)),
    "one thread gives": lambda: fa3(give=(Elect((GIVE_IT,)),)),
    "nobody takes turns": lambda: fa3(take=()),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_turns_of_flash_attention_3_are_illegal(name: str) -> None:
    for apart in (False, True):
        judged = verdict(WRONG[name](), apart=apart)
        assert judged.outcome == "illegal", str(judged)
