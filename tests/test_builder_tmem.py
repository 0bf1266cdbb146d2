"""The tracing builder: tensor memory, products into it, barriers of a pair, commits that arrive."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.test_builder import DROPPABLE, told, without
from tinygpu import Choice, Machine, Schedule
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.blackwell import Blackwell
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.term.builder import Array, BarrierRing, Kernel
from tinygpu.term.expression import value
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program, walk
from tinygpu.term.tensor_memory import RowLanes, placement

NT = matmul("bf16", layout="nt")
SIZES = {"m": 200, "n": 72, "k": 200}


class Tile(Machine):
    """A pair, or a CTA, has one tile of sums at a time: three roles, and rings of two stages."""

    name = "tile"
    operations = ("matmul",)
    levels, instructions = Blackwell.levels, Blackwell.instructions
    rows, columns = Choice(64, 128), Choice(32, 64)
    pair = Choice(0, 1, structural=True)
    copied = Choice(0, 1, structural=True)

    def forward(self, k: Kernel) -> None:
        """Load, multiply, store."""
        a, b, c = k.arrays
        pair, ctas = ("pair", 2) if self.pair else ("", 1)
        k.launch(persistent=1)
        k.grid("bm", "bn")
        k.cluster(**{pair: 2} if pair else {"rank": 1})
        k.tile(tn=self.columns, col=16)
        m, n = f"m = (bm {pair} tm)", f"n = (bn {pair} part), k = (step tk)"
        x = k.smem("x", a.dtype, tm=self.rows, tk=64, stages=2, swizzle=128)
        y = k.smem("y", b.dtype, part=self.columns // ctas, tk=64, stages=2, swizzle=128)
        sums = k.tmem("sums", "f32", "tm", "tn", stages=1, pair=pair, halves="half")
        kept = k.tmem("kept", a.dtype, "tm", "tk", stages=2) if self.copied else x
        full = k.mbarriers("full", 2, arrivals=ctas, home=pair)
        empty, done = (k.mbarriers(name, s, arrivals=1) for name, s in (("empty", 2), ("done", 1)))
        free = k.mbarriers("free", 1, arrivals=128 * ctas, home=pair)
        with k.role("producer", warps=1):
            with k.elect():
                for _ in k.tiles():
                    for step in k.loop("step"):
                        k.wait(empty[step - 2])
                        k.arrive(full[step], expect=x.stage_bytes + y.stage_bytes)
                        k.tma(x[step], a[f"{m}, {n}"], signal=full[step], trim=False)
                        k.tma(y[step], b[n], signal=full[step], trim=False)
            k.sync("cluster")
        with k.role("multiplier", warps=1):
            with k.elect():
                if self.pair:
                    with k.only(pair=0):
                        self.multiply(k, (kept, x, y, sums), (full, empty, done, free))
                else:
                    self.multiply(k, (kept, x, y, sums), (full, empty, done, free))
            k.sync("cluster")
        with k.role("epilogue", warpgroups=1):
            at = f"{m}, n = (bn tn), tn = (half chunk col)"
            for tile in k.tiles():
                k.wait(done[tile])
                k.fence("tcgen05.after")
                for _ in k.unrolled("chunk", sums.columns // 16):
                    taken = k.tcgen05_ld(sums[tile][at])
                    k.wait_group("tcgen05.ld", 0)
                    k.store(c[at], taken)
                k.fence("tcgen05.before")
                k.arrive(free[tile])
            k.sync("cluster")

    def multiply(
        self, k: Kernel, tiles: tuple[Array, ...], barriers: tuple[BarrierRing, ...]
    ) -> None:
        """Multiply, and commit to the barriers."""
        (kept, x, y, sums), (full, empty, done, free) = tiles, barriers
        for tile in k.tiles():
            k.wait(free[tile - 1])
            for step in k.loop("step"):
                k.wait(full[step])
                k.fence("tcgen05.after")
                if self.copied:
                    k.tcgen05_cp(kept[step], x[step])
                k.tcgen05_mma(sums[tile], kept[step], y[step], fresh=step.first)
                k.arrive(empty[step], to="cluster", after="tcgen05")
            k.arrive(done[tile], to="cluster", after="tcgen05")


def tile(**values: int) -> Program:
    return Schedule.of(Tile(), {"columns": 32, "copied": 0, **values}).program(Tile(), NT)


TERMS: dict[str, Callable[[], Program]] = {
    "128 rows": lambda: tile(rows=128, pair=0),
    "64 rows": lambda: tile(rows=64, pair=0),
    "a copied": lambda: tile(rows=128, pair=0, copied=1),
    "pair": lambda: tile(rows=128, pair=1, columns=64),
    "pair of 64 rows": lambda: tile(rows=64, pair=1),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_is_legal_and_right(name: str) -> None:
    """Ask the judge, both interpreters, and the proof of what it computes."""
    program = TERMS[name]()
    assert verdict(program).legal
    assert check(program, SIZES) == ()
    assert computes(program).finding is None
    assert interpret(program, SIZES, arch="sm_100a", completions=("late",)).right


@pytest.mark.parametrize("name", ["a copied", "pair of 64 rows"])
def test_without_any_one_wait_or_barrier_it_is_illegal(name: str) -> None:
    program = TERMS[name]()
    needless = []
    for number, (statement, _) in enumerate(walk(program)):
        if isinstance(statement, DROPPABLE):
            outcome = verdict(without(program, number)).outcome
            if outcome != "illegal":
                needless.append((outcome, str(statement)))
    assert needless == []


@pytest.mark.parametrize(("rows", "paired"), [(64, False), (64, True), (128, False), (128, True)])
def test_lanes_are_those_of_the_table(rows: int, paired: bool) -> None:
    """Row r of the first column lies in lane r % near + apart * (r // near)."""
    lanes = RowLanes(rows, paired)
    row = np.arange(rows)
    want = row % lanes.near + lanes.apart * (row // lanes.near)
    cells = placement(rows, 32, paired=paired)
    np.testing.assert_array_equal(cells[:, 0, 0], want)
    assert cells[..., 1].max() + 1 == 32 // lanes.halves


def begun(k: Kernel, **more: Any) -> tuple[Array, Array, Array]:
    k.grid("bm", "bn")
    k.cluster(pair=2)
    k.tile(tn=64, col=16)
    x = k.smem("x", "bf16", tm=128, tk=64, stages=2, swizzle=128)
    y = k.smem("y", "bf16", tn=64, stages=2, tk=64, swizzle=128)
    return x, y, k.tmem("sums", "f32", "tm", "tn", stages=1, **more)


def multiplied(k: Kernel, sums: Array, x: Array, y: Array) -> None:
    with k.role("multiplier", warps=1), k.elect():
        for tile in k.tiles():
            for step in k.loop("step", over="k", by=64):
                k.tcgen05_mma(sums[tile], x[step], y[step], fresh=step.first)


def no_pair(k: Kernel) -> None:
    begun(k, pair="bm")


def no_home(k: Kernel) -> None:
    begun(k)
    k.mbarriers("full", 2, arrivals=2, home="bn")


def wide_factor(k: Kernel) -> None:
    x, y, sums = begun(k, pair="pair")
    multiplied(k, sums, x, y)


def sums_on_chip(k: Kernel) -> None:
    x, y, _ = begun(k)
    multiplied(k, x, x, y)


def factor_of_lines(k: Kernel) -> None:
    x, _, sums = begun(k)
    multiplied(k, sums, x, k.smem("z", "bf16", "tn", "tk", stages=2, swizzle="line"))


def everyone_multiplies(k: Kernel) -> None:
    x, y, sums = begun(k)
    with k.role("multiplier", warps=1):
        for tile in k.tiles():
            for step in k.loop("step", over="k", by=64):
                k.tcgen05_mma(sums[tile], x[step], y[step], fresh=step.first)


def everyone_commits(k: Kernel) -> None:
    begun(k)
    done = k.mbarriers("done", 1, arrivals=1)
    with k.role("multiplier", warps=1):
        for tile in k.tiles():
            k.arrive(done[tile], after="tcgen05")


def copies_lines(k: Kernel) -> None:
    _, y, _ = begun(k)
    kept = k.tmem("kept", "bf16", "tm", "tk", stages=2)
    with k.role("multiplier", warps=1), k.elect():
        for tile in k.tiles():
            k.tcgen05_cp(kept[tile], y[tile])


def one_loads(k: Kernel) -> None:
    _, _, sums = begun(k, halves="half")
    with k.role("epilogue", warps=1):
        for tile in k.tiles():
            k.tcgen05_ld(sums[tile]["tn = (half col)"])


def taken(k: Kernel, pattern: str) -> Any:
    _, _, sums = begun(k, halves="half")
    return k.tcgen05_ld(sums[next(k.tiles())][pattern])


def no_halves(k: Kernel) -> None:
    with k.role("epilogue", warpgroups=1):
        taken(k, "tn = col")


def other_pattern(k: Kernel) -> None:
    with k.role("epilogue", warpgroups=1):
        held = taken(k, "tn = (half col)")
        k.store(k.output["m = (bm tm), n = (bn col)"], held)


def computed(k: Kernel) -> None:
    with k.role("epilogue", warpgroups=1):
        k.compute(value("sums"), {"sums": taken(k, "tn = (half col)")})


def later_cta(k: Kernel) -> None:
    begun(k)
    with k.role("multiplier", warps=1), k.only(pair=1):
        pass


def slab_left_out(k: Kernel) -> None:
    k.grid("bm", "bn")
    out = k.smem("out", "bf16", tm=64, col=64, half=2, swizzle="line")
    with k.role("epilogue", warpgroups=1), k.elect():
        k.tma_store(k.output["m = (bm tm), n = (bn col)"], out)


ALONE, ROLE = "and stands in the body of 32 threads", "k.role(.., warpgroups=1)"
MISTAKES: list[tuple[Callable[[Kernel], None], str]] = [
    (no_pair, "tmem: the grid counts bm, not the cluster"),
    (no_home, "mbarriers: the grid counts bn, not the cluster"),
    (
        wide_factor,
        "tcgen05_mma: tm tn += tm tk * tn tk (2 CTAs); it computes tm tn += tm tk * part tk",
    ),
    (sums_on_chip, "tcgen05_mma: x lies not in tensor memory; declare k.tmem"),
    (factor_of_lines, "tcgen05_mma: tiles in shared memory need swizzle=128"),
    (everyone_multiplies, "tcgen05_mma: every thread would issue it; write `with k.elect():`"),
    (everyone_commits, "arrive: the thread that multiplies commits; write `with k.elect():`"),
    (copies_lines, "tcgen05_cp: kept has tm tk; y needs them, and swizzle=128"),
    (one_loads, f"tcgen05_ld: is issued by a warpgroup, {ALONE}; write it in {ROLE}"),
    (
        no_halves,
        "tcgen05_ld: tn of sums has to be (half .. column), as k.tmem declares it with halves=",
    ),
    (other_pattern, "c: its pattern has to have half, tm, col, as taken, and no other values"),
    (computed, "compute: taken lies by lanes; cast and store it"),
    (later_cta, "only: of a cluster the first CTA alone, pair=0"),
    (slab_left_out, "tma_store: out has half, and the pattern of c has not"),
]


@pytest.mark.parametrize(("forward", "said"), MISTAKES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_mistake_is_one_message_with_its_line(
    forward: Callable[[Kernel], None], said: str
) -> None:
    first, *_ = told(forward)
    assert re.fullmatch(rf"test_builder_tmem\.py:\d+: {re.escape(said)}", first)
