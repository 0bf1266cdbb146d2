"""The tracing builder: clusters, copies of roles, CTAs that stay, stores by TMA."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from examples.cluster import Cluster
from tests.test_builder import CLUSTER, DROPPABLE, same_code, told, without
from tinygpu import MACHINES, Choice, Machine, Schedule, load_device
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.errors import ProgramError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.hopper import STARTS
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.search.time.cost import cost
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import value
from tinygpu.term.operation import elementwise, matmul
from tinygpu.term.program import Do, Program, walk
from tinygpu.term.statement import each

NT = matmul("bf16", layout="nt")
HOPPER = MACHINES["hopper"]
SIZES = {"m": 264, "n": 136, "k": 200}


class Turns(Machine):
    """Two consumers take tiles in turn: one multiplies while the other stores."""

    name = "turns"
    operations = ("matmul",)
    fuses = False
    levels, instructions = Cluster.levels, Cluster.instructions
    stages = Choice(2, 3, 4)
    in_flight = Choice(0, 1)

    def forward(self, k: Kernel) -> None:
        """Load for both, give the tensor cores from one to the other."""
        a, b, c = k.arrays
        at = "m = (bm rank tm), n = (bn tn), k = (step tk)"
        k.launch(persistent=1)
        k.grid("bm", "bn")
        k.cluster(rank=1, other=1)
        x = k.smem("x", a.dtype, tm=64, tk=64, stages=self.stages, swizzle=128)
        y = k.smem("y", b.dtype, tn=128, tk=64, stages=self.stages, swizzle=128)
        full = k.mbarriers("full", self.stages, arrivals=1)
        empty = k.mbarriers("empty", self.stages, arrivals=1)
        turn = k.mbarriers("turn", 2, arrivals=1)
        with k.role("consumer", warpgroups=1, registers=232, w=2):
            out = k.smem("out", c.dtype, tm=64, col=64, stages=2, swizzle="line")
            k.threads(warp=4, octet=8, quad=4)
            k.values(chunk=2, group=8, half=2, pair=2)
            rows = "tm = (warp half octet)"
            sums = k.registers("sums", "f32", "chunk", "group", "half", "pair")
            for tile in k.tiles(start="w", step=2):
                k.wait(turn[tile - 1])
                for step in k.loop("step", over="k", by=64):
                    with k.when(step < step.count):
                        k.wait(full[step])
                        columns = y[step]["tn = (chunk group quad pair)"]
                        k.wgmma(sums, x[step][rows], columns, fresh=step.first)
                        k.wait_group("wgmma", self.in_flight)
                    with k.when(step >= self.in_flight), k.elect():
                        k.arrive(empty[step - self.in_flight], to="cluster")
                k.sync("role")
                with k.elect():
                    k.arrive(turn[tile])
                k.wait_group("wgmma", 0)
                k.run_on("step", self.in_flight)
                for chunk in k.each("chunk"):
                    with k.elect():
                        k.wait_group("bulk", 1, read=True)
                    k.sync("role")
                    part = out[chunk][f"{rows}, col = (group quad pair)"]
                    k.stmatrix(part, k.cast(sums, c.dtype))
                    k.fence("proxy.async")
                    k.sync("role")
                    with k.elect():
                        k.tma_store(c["m = (bm rank tm), n = (bn chunk col)"], out[chunk])
                        k.commit("bulk")
            with k.elect():
                k.wait_group("bulk", 0, read=True)
            k.sync("cluster")
        with k.role("producer", warpgroups=1, registers=40):
            with k.elect():
                for _ in k.tiles():
                    for step in k.loop("step", over="k", by=64):
                        k.wait(empty[step - self.stages])
                        k.arrive(full[step], expect=x.stage_bytes + y.stage_bytes)
                        k.tma(x[step], a[at], signal=full[step], share="tm by other")
                        k.tma(y[step], b[at], signal=full[step], share="tn by rank")
            k.sync("cluster")


def cluster(**changes: int) -> Program:
    return Schedule.of(Cluster(), {**CLUSTER, **changes}).program(Cluster(), NT)


def turns(in_flight: int) -> Program:
    return Schedule.of(Turns(), {"stages": 4, "in_flight": in_flight}).program(Turns(), NT)


def shipped(start: str, values: dict[str, int]) -> Program:
    values = {"consumers": 2, "early": 0, **values}
    return Schedule.of(HOPPER, {**STARTS[start], **values}).program(HOPPER, NT)


TERMS: dict[str, Callable[[], Program]] = {
    "cluster": cluster,
    "along both": lambda: cluster(cluster_n=2, in_flight=1),
    "one CTA": lambda: cluster(cluster_m=1, in_flight=1, store_stages=1),
    "turns": lambda: turns(0),
    "turns in flight": lambda: turns(1),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_is_legal_and_right(name: str) -> None:
    """Ask the judge, both interpreters, and the proof of what it computes."""
    program = TERMS[name]()
    assert verdict(program).legal
    assert check(program, SIZES) == ()
    assert computes(program).finding is None
    assert interpret(program, SIZES, arch="sm_90a", completions=("late",)).right


def pairs(in_flight: int) -> list[tuple[Program, Program]]:
    """Terms of the builder, and hopper's with the same decisions."""
    values = {**CLUSTER, "in_flight": in_flight}
    other = shipped("cluster", values)
    theirs = {"tile_n": 128, "stages": 4, "in_flight": in_flight, "raster": 1, "store_stages": 2}
    return [
        (cluster(in_flight=in_flight), replace(other, roles=other.roles[::-1])),
        (turns(in_flight), shipped("pingpong", theirs)),
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_the_code_is_that_of_hopper(number: int) -> None:
    """With products in flight but for the order of one sum, as names sort in another way."""
    ours, other = pairs(0)[number]
    same_code(replace(ours, name="kernel"), other)
    ours, other = pairs(1)[number]
    opcodes = [
        Counter(re.findall(r"^\s*(?:@\S+ )?([a-z][\w.:]*)", emit(p), re.M)) for p in (ours, other)
    ]
    apart = (opcodes[0] - opcodes[1]) + (opcodes[1] - opcodes[0])
    assert set(apart) <= {"add.s32", "add.u32", "mad.lo.s32", "mul.lo.s32"}


@pytest.mark.parametrize("in_flight", [0, 1])
def test_the_time_is_that_of_hopper(in_flight: int) -> None:
    for ours, other in pairs(in_flight):
        for sizes in (SIZES, {"m": 8192, "n": 8192, "k": 8192}):
            found, wanted = (cost(p, sizes, load_device("h200")) for p in (ours, other))
            assert found.seconds == wanted.seconds
            assert found.bottleneck == wanted.bottleneck


@pytest.mark.parametrize("name", ["along both", "turns in flight"])
def test_without_any_one_wait_or_barrier_it_is_illegal(name: str) -> None:
    program = TERMS[name]()
    needless = []
    for number, (statement, around) in enumerate(walk(program)):
        if isinstance(statement, DROPPABLE):
            outcome = verdict(without(program, number)).outcome
            if outcome != "illegal":
                needless.append((outcome, str(statement), len(around)))
    assert needless == []


def begun(k: Kernel) -> tuple[Any, Any]:
    k.grid("bm", "bn")
    k.cluster(rank=2)
    x = k.smem("x", "bf16", tm=64, tk=64, stages=2, swizzle=128)
    return x, k.mbarriers("full", 2, arrivals=1)


def nested_tiles(k: Kernel) -> None:
    with k.role("all", warps=1):
        for _ in k.loop("step", over="k", by=64):
            for _ in k.tiles():
                pass


def no_copies(k: Kernel) -> None:
    with k.role("all", warps=1):
        for _ in k.tiles(start="w", step=2):
            pass


def other_share(k: Kernel) -> None:
    x, full = begun(k)
    with k.role("producer", warps=1), k.elect():
        for step in k.loop("step", over="k", by=64):
            at = "m = (bm tm), k = (step tk)"
            k.tma(x[step], k.inputs[0][at], signal=full[step], share="tk by rank")


def no_rank(k: Kernel) -> None:
    x, full = begun(k)
    with k.role("producer", warps=1), k.elect():
        for step in k.loop("step", over="k", by=64):
            at = "m = (bm tm), k = (step tk)"
            k.tma(x[step], k.inputs[0][at], signal=full[step], share="tm by bm")


def everyone_stores(k: Kernel) -> None:
    k.grid("bm", "bn")
    with k.role("consumer", warpgroups=1):
        out = k.smem("out", "bf16", tm=64, tn=64, swizzle="line")
        k.tma_store(k.output["m = (bm tm), n = (bn tn)"], out)


def plain_tile(k: Kernel) -> None:
    k.grid("bm", "bn")
    out = k.smem("out", "bf16", tm=64, tn=64, swizzle=128)
    with k.role("consumer", warpgroups=1), k.elect():
        k.tma_store(k.output["m = (bm tm), n = (bn tn)"], out)


def two_copies(k: Kernel) -> None:
    with k.role("consumer", warpgroups=1, w=2, v=2):
        pass


def products(k: Kernel, rows: str, columns: str, *digits: str) -> Any:
    """Two tiles in shared memory, patterns and registers of a warpgroup."""
    k.threads(warp=4, octet=8, quad=4)
    k.values(group=8, half=2, pair=2, wide=8, both=2)
    x, y = (k.smem(n, "bf16", tk=64, **{d: 64}, swizzle=128) for n, d in (("x", "tm"), ("y", "tn")))
    return k.registers("sums", "f32", *digits), x[rows] if rows else x, y[columns] if columns else y


def no_pattern(k: Kernel) -> None:
    with k.role("consumer", warpgroups=1):
        sums, x, y = products(k, "tm = (warp half octet)", "", "group", "half", "pair")
        k.wgmma(sums, x, y, fresh=True)


def no_k(k: Kernel) -> None:
    with k.role("consumer", warpgroups=1):
        columns = "tn = (group quad pair)"
        sums, _, y = products(k, "", columns, "group", "half", "pair")
        k.wgmma(sums, k.registers("p", "bf16", "half", "wide", "both"), y, fresh=False)


def no_quad(k: Kernel) -> None:
    with k.role("consumer", warpgroups=1):
        k.tile(tk=64)
        columns = "tn = (group quad pair), tk = (wide both)"
        sums, _, y = products(k, "", columns, "group", "half", "pair")
        k.wgmma(sums, k.registers("p", "bf16", "half", "wide", "both"), y, fresh=False)


def one_for_all(k: Kernel) -> None:
    k.threads(lane=32)
    k.values(u=2)
    k.set(k.registers("top", "f32"), value("s"), {"s": k.registers("s", "f32", "u")})


def elected_arithmetic(k: Kernel) -> None:
    with k.role("consumer", warpgroups=1):
        k.threads(thread=128)
        with k.elect():
            k.zeros("top", "f32")


MISTAKES: list[tuple[Callable[[Kernel], None], str]] = [
    (nested_tiles, "tiles: stands in a loop; the tiles are around all loops"),
    (no_copies, "tiles: w counts no copies of a role"),
    (other_share, "tma: share 'tk by rank' is not as \"tm by rank\""),
    (no_rank, "tma: the grid counts bm, not the cluster"),
    (everyone_stores, "tma_store: every thread would issue it; write `with k.elect():`"),
    (plain_tile, "tma_store: out is no tile with the swizzle it needs"),
    (
        no_pattern,
        (
            "wgmma: group half pair += (octet half warp) * (tn); rows are (far half) of the "
            "sums' digits, columns (group pair), fastest last: write patterns as "
            "tm = (far warp half octet)"
        ),
    ),
    (no_k, "wgmma: no digit of p counts tk or tn of y; say how in a pattern of that"),
    (
        no_quad,
        (
            "wgmma: p has half wide both, and (both wide) counts k; they have to be a digit, a "
            "quad and a pair"
        ),
    ),
    (one_for_all, "set: top has no u, which the expression reads; reduce it over u"),
    (elected_arithmetic, "arithmetic of each thread's values: one thread is elected"),
    (two_copies, "role consumer: needs warps= or warpgroups=, outside of other statements"),
]


@pytest.mark.parametrize(("forward", "said"), MISTAKES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_mistake_is_one_message_with_its_line(
    forward: Callable[[Kernel], None], said: str
) -> None:
    first, *_ = told(forward)
    assert re.fullmatch(rf"test_builder_roles\.py:\d+: {re.escape(said)}", first)


def test_ctas_that_stay_say_where_tiles_begin() -> None:
    def forward(k: Kernel) -> None:
        k.launch(persistent=1)
        k.grid("bm", "bn")
        with k.role("all", warps=1):
            k.sync()

    with pytest.raises(ProgramError, match=r"write `for tile in k.tiles"):
        trace("wrong", forward, NT)


def test_a_second_role_that_reads_a_pattern_has_its_own_threads() -> None:
    """No digit of the pattern is a thread's: a place kept for the first role had its 32."""

    def forward(k: Kernel) -> None:
        k.grid("block")
        k.values(v=4)
        at = "i = (block v)"
        for name, warps in (("one", 1), ("two", 2)):
            with k.role(name, warps=warps):
                k.threads(turned=False, **{f"{name}_thread": 32 * warps})
                held = {x.name: k.load(x[at]) for x in k.inputs}
                k.store(k.output[at], k.compute(k.op.epilogue, held))

    roles = trace("twice", forward, elementwise("x + x")).roles
    found = [[s.threads for s in each(role.body) if isinstance(s, Do)] for role in roles]
    assert found == [[(32,), (), (32,)], [(64,), (), (64,)]]
