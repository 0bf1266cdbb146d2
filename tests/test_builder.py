"""The tracing builder: terms of the examples, the algebra of digits, and its messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.cluster import Cluster
from examples.elementwise import Elementwise
from examples.first_machine import Axpb
from examples.naive_matmul import Naive
from examples.ring import Ring
from examples.rmsnorm import RMSNorm
from examples.softmax import Softmax
from examples.transpose import TRANSPOSE, Transpose
from tests.ptx_runs import unchecked as emit
from tests.sample import draws
from tinygpu import MACHINES, Machine, Operation, Problem, Schedule, Space, load_device
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.errors import MachineError, ProgramError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.hopper import STARTS
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import elementwise, matmul, rmsnorm, softmax
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Block,
    Commit,
    Do,
    Fence,
    Program,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    walk,
)

NT = matmul("bf16", layout="nt")
RING = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "stages": 2, "in_flight": 0}
CLUSTER = {"tile_m": 128, "tile_n": 64, "tile_k": 64, "stages": 2, "in_flight": 0, "cluster_m": 2,
           "cluster_n": 1, "store_n": 32, "store_stages": 2, "raster": 1}  # fmt: skip
ROWS = {"vector": 4, "chunks": 2, "warps": 4, "rows": 2, "teams": 2}
GATED = elementwise("x * sigmoid(a*x) * z", dtype="bf16")

Case = tuple[Machine, Operation, dict[str, Any], dict[str, int]]
CASES: dict[str, Case] = {
    "axpb": (Axpb(), elementwise("a*x + b"), {"vector": 4, "threads": 128}, {"i": 1500}),
    "elementwise": (
        Elementwise(), GATED, {"vector": 8, "unroll": 2, "threads": 128, "ctas": 0}, {"i": 5000}
    ),
    "striding": (
        Elementwise(), GATED, {"vector": 2, "unroll": 1, "threads": 128, "ctas": 132}, {"i": 34100}
    ),
    "transpose": (Transpose(), TRANSPOSE, {"warps": 8, "pad": 1}, {"i": 50, "j": 70}),
    "naive": (Naive(), matmul("f32"), {"tx": 32, "ty": 8}, {"m": 20, "n": 50, "k": 33}),
    "rmsnorm": (RMSNorm(), rmsnorm("bf16"), ROWS, {"i": 5, "j": 700}),
    "one warp": (RMSNorm(), rmsnorm("f32"), {**ROWS, "warps": 1}, {"i": 3, "j": 204}),
    "softmax": (Softmax(), softmax("f32"), {"vector": 2, "chunks": 4, "warps": 2},
                {"i": 5, "j": 202}),
    "ring": (Ring(), NT, RING, {"m": 72, "n": 136, "k": 328}),
    "cluster": (Cluster(), NT, CLUSTER, {"m": 264, "n": 136, "k": 200}),
    "deep ring": (Ring(), NT, {**RING, "stages": 3, "in_flight": 1}, {"m": 64, "n": 72, "k": 456}),
}  # fmt: skip


def built(name: str) -> Program:
    machine, operation, values, _ = CASES[name]
    return Schedule.of(machine, values).program(machine, operation)


@pytest.mark.parametrize("name", CASES)
def test_a_term_is_legal_and_right(name: str) -> None:
    """Ask the judge, both interpreters, and the proof of what it computes."""
    program, sizes = built(name), CASES[name][3]
    assert verdict(program).legal
    assert check(program, sizes) == ()
    assert computes(program).finding is None
    assert interpret(program, sizes, arch="sm_90a", completions=("late",)).right


def same_code(program: Program, other: Program) -> None:
    """Compare PTX apart from names and comments."""

    def plain(program: Program) -> list[str]:
        names: dict[str, str] = {}
        lines = [line.split("//")[0].strip() for line in emit(program).splitlines()]
        named = rf"%[A-Za-z_]\w*|\$\w+|\b[nps]_\w+|\b{program.name}\b"
        return [
            re.sub(named, lambda m: names.setdefault(m[0], f"@{len(names)}"), x) for x in lines if x
        ]

    assert plain(program) == plain(other)


@pytest.mark.parametrize(
    ("name", "shipped", "more"),
    [
        ("elementwise", "elementwise", {}),
        ("rmsnorm", "rows", {"ctas": 0}),
        ("one warp", "rows", {"ctas": 0}),
        ("softmax", "rows", {"ctas": 0, "warps": 1, "rows": 1, "teams": 2}),
    ],
)
def test_the_code_is_that_of_the_shipped_machine(
    name: str, shipped: str, more: dict[str, int]
) -> None:
    _, operation, values, _ = CASES[name]
    other = Schedule.of(MACHINES[shipped], {**values, **more})
    same_code(built(name), other.program(MACHINES[shipped], operation))


def without_cluster(part: Any) -> Any:
    """Return a term without a CTA's rank in its cluster, and without the cluster's barrier."""
    if isinstance(part, Affine):
        return replace(part, terms=tuple(t for t in part.terms if not t[0].startswith("rank_")))
    if isinstance(part, tuple):
        return tuple(without_cluster(p) for p in part if p != Sync(scope="cluster"))
    if isinstance(part, Block | Do) or type(part).__name__ in ("Role", "Access"):
        made = {f.name: without_cluster(getattr(part, f.name)) for f in fields(part)}
        return replace(part, **({**made, "multicast": ""} if isinstance(part, Do) else made))
    return part


@pytest.mark.parametrize("stages", [2, 4])
def test_the_rings_code_is_that_of_hopper(stages: int) -> None:
    """Of hopper's without its cluster of one CTA."""
    values = {"tile_m": 128, "tile_n": 128, "tile_k": 128, "stages": stages, "in_flight": 0}
    hopper = MACHINES["hopper"]
    shipped = Schedule.of(hopper, {**STARTS["ring"], **values}).program(hopper, NT)
    shipped = replace(shipped, roles=without_cluster(shipped.roles), cluster=())
    same_code(Schedule.of(Ring(), values).program(Ring(), NT), shipped)


def without(program: Program, number: int) -> Program:
    """Return the term without its statement number ``number``, in the order of ``walk``."""
    count = iter(range(1 << 20))

    def kept(body: tuple[Statement, ...]) -> Iterator[Statement]:
        for statement in body:
            drop = next(count) == number
            if isinstance(statement, Block):
                statement = replace(statement, body=tuple(kept(statement.body)))
            if not drop:
                yield statement

    return replace(
        program, roles=tuple(replace(role, body=tuple(kept(role.body))) for role in program.roles)
    )


def told(forward: Callable[[Kernel], None]) -> list[str]:
    """Return the lines of what is said of a mistake."""
    with pytest.raises(ProgramError) as caught:
        trace("wrong", forward, NT)
    return str(caught.value).splitlines()


DROPPABLE = Sync | Wait | Arrive | WaitGroup | Fence | Commit
DROPPED = [
    (name, number)
    for name in ("transpose", "rmsnorm", "ring", "deep ring")
    for number, (statement, _) in enumerate(walk(built(name)))
    if isinstance(statement, DROPPABLE)
]


def needless(name: str, number: int) -> bool:
    """Say whether it is the last wait for products of a ring that leaves none in flight."""
    statement, around = list(walk(built(name)))[number]
    return name == "ring" and isinstance(statement, WaitGroup) and len(around) == 1


@pytest.mark.parametrize(("name", "number"), DROPPED)
def test_without_any_one_wait_or_barrier_it_is_illegal(name: str, number: int) -> None:
    wanted = "legal" if needless(name, number) else "illegal"
    assert verdict(without(built(name), number)).outcome == wanted


@pytest.mark.parametrize(
    "name", ["elementwise", "transpose", "naive", "rmsnorm", "softmax", "ring", "cluster"]
)
def test_a_space_has_the_terms_of_its_schedules(name: str) -> None:
    """Laws over tables of decisions agree with those of one schedule."""
    machine, operation, _, sizes = CASES[name]
    problem, device = Problem.of(operation, **sizes), load_device("h200")
    space = Space(machine, problem, device)
    decisions = machine.decisions()
    rng = np.random.default_rng(0)
    legal = 0
    for _ in range(20):
        values = {n: c.values[rng.integers(len(c.values))] for n, c in decisions.items()}
        schedule = Schedule.of(machine, values)
        found = not check_schedule(schedule, machine, problem, device)
        legal += found
        assert found == space.contains(schedule), schedule
    assert legal


# digits


@st.composite
def patterns(draw: st.DrawFn) -> tuple[list[tuple[str, str, int]], str]:
    """Digits as (name, who counts it, extent), and a pattern of them, the grid's slowest."""
    count = draw(st.integers(1, 3))
    digits = [("t0", "threads", 32)]
    for n in range(count):
        kind = draw(st.sampled_from(["threads", "values"]))
        digits.append((f"{kind[0]}{n + 1}", kind, draw(st.sampled_from([1, 2, 3, 4]))))
    order = draw(st.permutations([name for name, _, _ in digits]))
    return digits, f"i = (block {' '.join(order)})"


@settings(max_examples=draws(24, 60), deadline=None)
@given(patterns())
def test_a_pattern_is_a_number_in_mixed_radix(case: tuple[list[tuple[str, str, int]], str]) -> None:
    """Each (thread, value) of the access touches the element that enumerating the digits says."""
    digits, pattern = case
    order = pattern[len("i = (block ") : -1].split()
    extent = {name: size for name, _, size in digits}

    def forward(k: Kernel) -> None:
        k.grid("block")
        for name, kind, size in digits:
            getattr(k, kind)(**{name: size})
        k.store(k.output[pattern], k.load(k.inputs[0][pattern]))

    program = trace("copy", forward, elementwise("x"))
    load = program.roles[0].body[0]
    assert isinstance(load, Do)
    (there,), tile = load.reads, prod(extent.values())
    assert isinstance(there, Access)
    assert str(there) == f"x[{tile}*block]"
    threads = [name for name, kind, _ in digits if kind == "threads"]
    values = [name for name, kind, _ in digits if kind == "values"]
    modes = [
        *zip(load.threads, there.thread, strict=True),
        *zip(load.values, there.value, strict=True),
    ]
    got = np.zeros((1,), int)
    for size, (step,) in modes:
        got = (got[:, None] + np.arange(size) * step).reshape(-1)
    assert sorted(got) == list(range(tile))  # every element once
    # by name: thread digits count slowest first over t
    for t in range(prod(load.threads)):
        rest, digit = t, dict.fromkeys(values, 0)
        for name in reversed(threads):
            rest, digit[name] = divmod(rest, extent[name])
        wanted = 0
        for name in order:
            wanted = wanted * extent[name] + digit[name]
        rest, mine = t, 0
        for size, (step,) in zip(load.threads, there.thread, strict=True):
            rest, here = divmod(rest, size)
            mine += here * step
        assert mine == wanted
    assert check(program, {"i": 2 * tile + int(load.vector)}) == ()


@pytest.mark.parametrize(
    ("at", "origin", "parameters"),
    [
        ("i = (turn block thread v)", "x[stride*turn + 128*block]",
         {"trips": "ceildiv(ceildiv(i, 128), 3)", "stride": "384"}),
        ("i = (block turn thread v)", "x[chunk*block + 128*turn]",
         {"trips": "ceildiv(ceildiv(i, 128), 3)", "chunk": "(trips * 128)"}),
    ],
)  # fmt: skip
def test_ctas_share_what_a_loop_covers(at: str, origin: str, parameters: dict[str, str]) -> None:
    """They stride, or each has a part; what a part holds beyond the end is guarded."""

    def forward(k: Kernel) -> None:
        k.grid(block=3)
        k.threads(thread=32)
        k.values(v=4)
        for _ in k.loop("turn"):
            held = {x.name: k.load(x[at]) for x in k.inputs}
            k.store(k.output[at], k.compute(k.op.epilogue, held))

    program = trace("shares", forward, elementwise("a*x"))
    assert {name: str(e) for name, e in program.parameters} == parameters
    load = next(s for s, _ in walk(program) if isinstance(s, Do))
    assert isinstance(load.reads[0], Access)
    assert str(load.reads[0]) == origin
    assert load.reads[0].guard == (True,)
    assert not check(program, {"i": 1000})
    assert verdict(program).legal


def test_threads_that_count_in_two_ways() -> None:
    """A tile is stored by lines and read by columns, in another number of threads each way."""

    def forward(k: Kernel) -> None:
        x, y = k.arrays
        k.grid("block")
        k.tile(element=128)
        k.threads(thread=32)
        k.recount(slow=4, fast=8)
        k.values(r=4, c=4)
        k.split("r", "far", near=2)
        tile = k.smem("tile", x.dtype, "element")
        k.store(tile["element = (c slow fast)"], k.load(x["i = (block c slow fast)"]))
        k.sync()
        at = "i = (block element), element = (far thread near)"
        held = {x.name: k.load(tile[at])}
        assert held[x.name].digits == ("r",)
        k.store(y[at], k.compute(k.op.epilogue, held))

    program = trace("ways", forward, elementwise("a*x"))
    dos = [s for s, _ in walk(program) if isinstance(s, Do) and s.threads]
    assert [do.threads for do in dos] == [(8, 4), (8, 4), (32,), (32,)]
    assert not check(program, {"i": 1000})
    assert verdict(program).legal


def test_an_axis_without_an_open_digit_bounds_the_size() -> None:
    program = built("rmsnorm")
    assert program.at_most == (("j", 4 * 32 * 2 * 4),)


def test_a_composed_dimension() -> None:
    """``tm = (w row)`` in ``m = (bm tm)`` is the same as writing it out."""

    def forward(pattern: str) -> Callable[[Kernel], None]:
        def inner(k: Kernel) -> None:
            k.grid("b")
            k.threads(w=4, lane=32)
            k.values(row=2)
            k.smem("tile", "f32", tm=256)
            k.store(k.output[pattern], k.load(k.inputs[0][pattern]))

        return inner

    copy = elementwise("x")
    one = trace("copy", forward("i = (b tm), tm = (w lane row)"), copy)
    other = trace("copy", forward("i = (b w lane row)"), copy)
    assert str(one) == str(other)


# messages


def transposed(pattern: str) -> Callable[[Kernel], None]:
    def forward(k: Kernel) -> None:
        k.grid("bi", "bj")
        k.threads(warp=8, lane=32)
        k.values(r=4)
        k.load(k.inputs[0][pattern])

    return forward


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("j = (bj r warp), i = (bi lan)", ("digit lan: nobody counts it; known are bi, bj, warp, "
         "lane, r; did you mean lane?")),
        ("j = (bj r warp), ii = (bi lane)", ("axis ii: there is none; known are i, j; did you mean "
         "i?")),
        ("j = (bj r warp)", "x has axis i; the pattern has none"),
        ("j = bj r warp, i = bi", "'j = bj r warp' is no equation as i = (block thread v)"),
        ("j = (bj r warp), j = bi", "axis j: has two equations in one pattern"),
        ("j = (r bj warp), i = bi", "digit bj: covers axis j, so it has to be the slowest there"),
        ("j = (bi r warp), i = (bi lane)", ("digit bi: covers i in steps of 32, and j in steps of "
         "32; give it one way")),
    ],
)  # fmt: skip
def test_a_wrong_pattern_is_one_message_with_its_line(pattern: str, said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        trace("wrong", transposed(pattern), TRANSPOSE)
    where, line, *caret = str(caught.value).splitlines()
    assert re.fullmatch(rf"test_builder\.py:\d+: {re.escape(said)}", where)
    assert line == "    k.load(k.inputs[0][pattern])"
    assert caret in ([], ["           " + line.strip()]) or caret[0].strip("^ ") == ""


def test_the_caret_stands_below_the_word() -> None:
    def forward(k: Kernel) -> None:
        k.grid("block")
        k.threads(thread=128)
        k.load(k.inputs[0]["i = (block thred)"])

    with pytest.raises(ProgramError) as caught:
        trace("wrong", forward, elementwise("x"))
    _, line, caret = str(caught.value).splitlines()
    assert line[caret.index("^") :].startswith("thred")
    assert caret.count("^") == len("thred")


def no_stages(k: Kernel) -> None:
    tile = k.smem("tile", "bf16", tm=64, tk=64)
    with k.role("all", warps=1):
        for step in k.loop("step", over="k"):
            tile[step]


def ended(k: Kernel) -> None:
    full = k.mbarriers("full", 2, arrivals=1)
    with k.role("all", warps=1):
        for step in k.loop("step", over="k"):
            k.wait(full[step])
        k.wait(full[step])


def ended_digit(k: Kernel) -> None:
    k.threads(lane=32)
    for _ in k.loop("step", over="k"):
        pass
    k.load(k.inputs[0]["m = lane, k = step"])


def no_length(k: Kernel) -> None:
    for _ in k.loop("step"):
        pass


def left(k: Kernel) -> None:
    for _ in k.loop("step", over="k"):
        break


def tiles(k: Kernel) -> tuple[Any, Any, Any]:
    k.grid("bm", "bn")
    x = k.smem("x", "bf16", tm=64, tk=64, stages=2, swizzle=128)
    y = k.smem("y", "bf16", tn=64, tk=64, stages=2, swizzle=128)
    return x, y, k.mbarriers("full", 2, arrivals=1)


def everyone(k: Kernel) -> None:
    x, _, full = tiles(k)
    with k.role("producer", warps=1):
        for step in k.loop("step", over="k", by=64):
            k.tma(x[step], k.inputs[0]["m = (bm tm), k = (step tk)"], signal=full[step])


def other_tile(k: Kernel) -> None:
    x, _, full = tiles(k)
    with k.role("producer", warps=1), k.elect():
        for step in k.loop("step", over="k", by=64):
            k.tma(x[step], k.inputs[0]["m = (bm tn), k = (step tk)"], signal=full[step])


def one_warp(k: Kernel) -> None:
    x, y, _ = tiles(k)
    with k.role("consumer", warps=1):
        sums = k.registers("sums", "f32")
        for step in k.loop("step", over="k", by=64):
            k.wgmma(sums, x[step], y[step], fresh=step.first)


def one_thread(k: Kernel) -> None:
    with k.role("all", warps=1), k.elect():
        k.sync()


def a_load(k: Kernel) -> None:
    k.grid("bm")
    with k.role("all", warps=1):
        k.load(k.inputs[0]["m = bm, k = bm"])


def too_few(k: Kernel) -> None:
    k.threads(w=3, lane=32)
    k.values(row=21)
    tile = k.smem("tile", "f32", tm=64)
    k.load(tile["tm = (w row)"])


def no_stage(k: Kernel) -> None:
    k.threads(lane=32)
    x = k.smem("x", "f32", rows=32, stages=2)
    k.load(x["rows = lane"])


def a_part(k: Kernel) -> None:
    x, _, full = tiles(k)
    with k.role("producer", warps=1), k.elect():
        for step in k.loop("step", over="k", by=64):
            at = "m = (bm tm), k = (step tk)"
            k.tma(x[step]["tm = tm"], k.inputs[0][at], signal=full[step])


def no_role(k: Kernel) -> None:
    with k.elect():
        pass


def late_exit(k: Kernel) -> None:
    k.grid("bm", "bn")
    k.threads(lane=32)
    for _ in k.loop("step", over="k"):
        k.leave_outside(k.output["m = bm, n = (bn lane)"])


def two_lengths(k: Kernel) -> None:
    k.smem("x", "f32", tk=64)
    k.smem("y", "f32", tk=32)


def two_ways(k: Kernel) -> None:
    for by in (32, 64):
        for _ in k.loop("step", over="k", by=by):
            pass


def an_only(k: Kernel) -> None:
    k.threads(lane=32)
    sums = k.zeros("sums", "f32")
    with k.only(lane=0):
        k.fill(sums, 0.0)


def wide(k: Kernel) -> None:
    k.grid("bm", "bn")
    k.threads(lane=32)
    k.values(v=4)
    sums = k.zeros("sums", "f32", "v")
    k.store(k.output["m = bm, n = (bn lane)"], sums)


def rolled(k: Kernel) -> None:
    k.threads(lane=32)
    tile = k.smem("tile", "f32", row=256)
    for _ in k.loop("chunk", over="k"):
        k.load(tile["row = (chunk lane)"])


MISTAKES: list[tuple[Callable[[Kernel], None], str, str]] = [
    (no_stages, "tile has no stages; give k.smem its stages", "tile[step]"),
    (ended, "step: its loop has ended; use it inside", "k.wait(full[step])"),
    (ended_digit, "digit step: its loop has ended; use it inside",
     'k.load(k.inputs[0]["m = lane, k = step"])'),
    (no_length, "loop step: no pattern says how far it goes; give it over=, an axis, and by=",
     'for _ in k.loop("step"):'),
    (left, "loop step: its body left by break or return; it is traced once, use k.when",
     'for _ in k.loop("step", over="k"):'),
    (everyone, "tma: every thread would issue it; write `with k.elect():`",
     'k.tma(x[step], k.inputs[0]["m = (bm tm), k = (step tk)"], signal=full[step])'),
    (other_tile, "tma: a's axis m has to end in tm, as the tile x has it",
     'k.tma(x[step], k.inputs[0]["m = (bm tn), k = (step tk)"], signal=full[step])'),
    (one_warp, ("wgmma: is issued by a warpgroup, and stands in the body of 32 threads; "
     "write it in k.role(.., warpgroups=1)"), "k.wgmma(sums, x[step], y[step], fresh=step.first)"),
    (one_thread, "sync: some threads would wait for all; leave k.elect() or k.only(..) first",
     "k.sync()"),
    (a_load, "a load: nobody declared the role's threads; write k.threads",
     'k.load(k.inputs[0]["m = bm, k = bm"])'),
    (too_few, "tm has 64 elements, the digits count 63", 'k.load(tile["tm = (w row)"])'),
    (no_stage, "x is a ring of stages; say which, as x[step]",
     'k.load(x["rows = lane"])'),
    (a_part, "axis tm: stands in its own equation",
     'k.tma(x[step]["tm = tm"], k.inputs[0][at], signal=full[step])'),
    (no_role, "elect: stands outside of a role; write it in k.role(..)", "with k.elect():"),
    (late_exit, "leave_outside: stands in a loop; write it before",
     'k.leave_outside(k.output["m = bm, n = (bn lane)"])'),
    (two_lengths, "digit tk: has 64 elements in another tile, here 32",
     'k.smem("y", "f32", tk=32)'),
    (two_ways, "digit step: covers k in steps of 64, and k in steps of 32; give it one way",
     'for _ in k.loop("step", over="k", by=by):'),
    (an_only, "arithmetic: k.only is for stores; move it out", "k.fill(sums, 0.0)"),
    (wide, "sums has a value for each v, and c one for all",
     'k.store(k.output["m = bm, n = (bn lane)"], sums)'),
    (rolled, "digit chunk: has no extent; give it one, or use k.unrolled",
     'k.load(tile["row = (chunk lane)"])'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("forward", "said", "line"), MISTAKES, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_mistake_is_one_message_with_its_line(
    forward: Callable[[Kernel], None], said: str, line: str
) -> None:
    first, second, *_ = told(forward)
    assert re.fullmatch(rf"test_builder\.py:\d+: {re.escape(said)}", first)
    assert second == f"    {line}"


def test_a_machine_that_says_nothing() -> None:
    class Silent(Machine):
        name = "silent"
        levels = ()
        instructions = ()

    with pytest.raises(MachineError, match=r"machine silent: says nothing; write forward"):
        Silent().program(elementwise("x"), Chosen({}))


def test_a_grid_that_no_pattern_uses() -> None:
    def forward(k: Kernel) -> None:
        k.grid("block")
        k.threads(lane=32)

    with pytest.raises(ProgramError, match="digit block: no pattern has it"):
        trace("idle", forward, elementwise("x"))


def test_decisions_are_values_while_a_term_is_traced_and_choices_else() -> None:
    machine = Elementwise()
    built("elementwise")
    assert getattr(machine, "threads") is Elementwise.threads  # noqa: B009 - its type is int


def test_a_branch_on_a_loops_variable_is_refused() -> None:
    def forward(k: Kernel) -> None:
        for step in k.loop("step", over="i"):
            if step < 2:
                k.sync()

    with pytest.raises(ProgramError, match=r"ask its variable by k\.when, not by if"):
        trace("wrong", forward, elementwise("x"))
