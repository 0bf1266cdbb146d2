"""Terms whose loops run to tile values: a matmul of blocks, and the protocol of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.warpgroup_terms import computed, held, rounded, scores, tile, weighted, zeroed
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.tiles import ring
from tinygpu.term.access_map import Access, Affine, Buffer, var
from tinygpu.term.builder import Kernel, Tile, trace
from tinygpu.term.expression import Constant, Expression, apply, value
from tinygpu.term.operation import matmul
from tinygpu.term.program import Axis, Program, Role, When
from tinygpu.term.statement import (
    Arrive,
    Barrier,
    Body,
    Commit,
    Do,
    Elect,
    Fence,
    For,
    ForTile,
    Statement,
    Sync,
    Wait,
    WaitGroup,
)

__all__ = ["ALL", "BAND", "CAUSAL", "LOWER", "blocks", "flash", "masked", "write_blocks"]

BLOCK = 64
COLUMNS = value("k").ceildiv(BLOCK)


def at_least(number: float, expression: Expression) -> Expression:
    return apply("max", expression, number)


LOWER = {"trips": apply("min", COLUMNS, value("br"))}
"""Blocks below the diagonal: none in the first tiles."""
ALL = {"trips": COLUMNS}
CAUSAL = {
    "trips": at_least(
        0,
        apply(
            "min", COLUMNS,
            (value("k") - value("m") + (value("br") + 1) * BLOCK).ceildiv(BLOCK),
        ),
    )
}  # fmt: skip
"""Up to the diagonal that ends at the bottom right: with more rows than columns, none at first."""
BEGIN = at_least(0, value("br") - 1)
BAND = {
    "begin": BEGIN,
    "trips": at_least(0, apply("min", COLUMNS, value("br") + 1) - value("begin")),
}
"""The diagonal and the blocks left of it."""


def write_blocks(
    k: Kernel,
    values: Mapping[str, Expression] | None,
    *,
    turns: bool = True,
    persistent: Any = 1,
    stages: Any = 3,
    tile_n: Any = 64,
    raster: Any = 1,
    consumers: Mapping[str, Expression] | None = None,
    to: str = "trips",
) -> None:
    """Write a matmul of blocks of 64: those of a row at which a's are not 0, as tile values say.

    Without ``values`` a parameter says how many.  ``consumers`` have other tile values, and loop
    ``to`` one of them.
    """

    a, b = k.inputs
    k.launch(persistent=persistent, raster=raster)
    k.grid("br", "bc")
    k.cluster(rank_m=1, rank_n=1)
    k.tile(tm=BLOCK, tn=tile_n, tk=BLOCK)
    at = "m = (br rank_m tm), n = (bc rank_n tn), k = (kt tk)"
    left, right = ring(k, a, stages, tm=BLOCK, tk=BLOCK), ring(k, b, stages, tn=tile_n, tk=64)
    full = k.mbarriers("full", stages, arrivals=1)
    empty = k.mbarriers("empty", stages, arrivals=1)

    def steps(tile: Tile, name: str) -> Any:
        if values is None:
            return k.loop("kt")
        begin = tile.begin if "begin" in values else None
        return k.loop("kt", trips=getattr(tile, name), start=begin)

    with k.role("producer", warps=4, registers=40):
        with k.elect():
            for tile in k.tiles(start="", step=1, **(values or {})):
                for step in steps(tile, "trips"):
                    k.wait(empty[step - stages])
                    k.arrive(full[step], expect=left.stage_bytes + right.stage_bytes)
                    k.tma(left[step], a[at], signal=full[step])
                    k.tma(right[step], b[at], signal=full[step])
        k.sync("cluster")
    with k.role("consumer", warpgroups=1, registers=232, w=2 if turns else 1):
        k.threads(warp=4, octet=8, quad=4)
        k.values(group=tile_n // 8, half=2, pair=2)
        rows, columns = "tm = (warp half octet)", "tn = (group quad pair)"
        turn = k.mbarriers("turn", 2, arrivals=1)
        sums = k.registers("sums", "f32", "group", "half", "pair")
        first, after = ("w", 2) if turns else ("", 1)
        own = values if consumers is None else consumers
        for tile in k.tiles(start=first, step=after, **(own or {})):
            if turns:
                k.wait(turn[tile - 1])
            k.fill(sums, 0.0)
            for step in steps(tile, to):
                k.wait(full[step])
                k.wgmma(sums, left[step][rows], right[step][columns], fresh=step + 1)
                k.wait_group("wgmma", 0)
                with k.elect():
                    k.arrive(empty[step])
            if turns:
                k.sync("role")
                with k.elect():
                    k.arrive(turn[tile])
            k.store(k.output[f"{at}, {rows}, {columns}"], k.cast(sums, "bf16"))
        k.sync("cluster")


def blocks(values: Mapping[str, Expression] | None, **how: Any) -> Program:
    """The term that ``write_blocks`` writes."""
    return trace("blocks", lambda k: write_blocks(k, values, **how), matmul("bf16", layout="nt"))


def masked(
    program: Program, sizes: Mapping[str, int], draw: Callable[[tuple[int, int]], NDArray[Any]]
) -> dict[str, NDArray[np.float64]]:
    """Inputs whose product is that of the blocks that the tiles multiply: a is 0 elsewhere."""
    m, n, k = (sizes[axis] for axis in "mnk")
    a, b = draw((m, k)), draw((n, k))
    each = program.values_of_tiles(sizes)
    across = program.grid_extents(sizes)[1]
    kept = np.zeros((m, k), bool)
    for block in range(-(-m // BLOCK)):
        first = each["begin"][block * across] if "begin" in each else 0
        last = first + each["trips"][block * across]
        rows = slice(BLOCK * block, BLOCK * block + BLOCK)
        kept[rows, BLOCK * first : BLOCK * last] = True
    round_ = DTYPES["bf16"].round
    return {"a": round_(a * kept).astype(np.float64), "b": round_(b).astype(np.float64)}


def flash(
    *,
    trips: Expression | None = None,
    stages: int = 2,
    pingpong: bool = True,
    meets: bool = True,
    change: Callable[[str, Body], Body] = lambda _, body: body,
    other: str = "trips",
    start: int = 0,
) -> Program:
    """FlashAttention-3's protocol, its values apart: rings of K and V, Q once a tile.

    The product with V of step k - 1 flies under the softmax of step k; ``pingpong``: consumers
    take turns at products.  Trips are each tile's own.  ``meets``: the threads of a consumer meet
    before it releases Q.  ``change`` gets the bodies of a tile: "tile", "step", "producer";
    the producer loops to ``other`` from ``start``.
    """
    operation = matmul("bf16", layout="nt")
    shapes = {"a": ("m", "k"), "b": ("n", "k"), "c": ("m", "n")}
    gmem = {n: Buffer(n, "gmem", "bf16", ax, (f"ld_{n}", 1)) for n, ax in shapes.items()}
    q, keys, vals = tile("q", 1), tile("keys", stages), tile("vals", stages)
    s, o, p = held("s", "f32"), held("o", "f32"), held("p", "bf16")
    q_full, q_empty = Barrier("q_full", 1, 1), Barrier("q_empty", 1, 2)
    k_full, v_full = (Barrier(n, stages, 1) for n in ("k_full", "v_full"))
    k_empty, v_empty = (Barrier(n, stages, 2) for n in ("k_empty", "v_empty"))
    turn = Barrier("turn", 2, 1)
    t, k, w = var("t"), var("k"), var("w")
    n = var("t", "trips") + k
    last = var("t", "trips") + var("trips") + -1
    twice = var("t", "trips") + var("t", "trips") + 2 * k + w

    def weigh(i: Affine) -> Do:
        return weighted(o, p, vals, (i, t))

    def released(barrier: Barrier, i: Affine) -> Statement:
        return Elect((Arrive(barrier, i),))

    commit, wait = Commit("wgmma"), WaitGroup(0, "wgmma")
    take: Body = (Wait(turn, twice + -1),) if pingpong else ()
    give: Body = (Sync(1, "role"), Elect((Arrive(turn, twice),))) if pingpong else ()
    late = -1 * k + 1
    step: Body = (
        Wait(k_full, n), *take, Fence("wgmma"), scores(s, q, keys, (t, n), Affine()), commit,
        When(late, 1, (Wait(v_full, n + -1), weigh(n + -1))), commit, *give,
        WaitGroup(1, "wgmma"), released(k_empty, n), computed(s, n),
        wait, When(late, 1, (released(v_empty, n + -1),)), rounded(p, s, n), computed(o, t),
    )  # fmt: skip
    tail: Body = (
        Wait(v_full, last), Fence("wgmma"), weigh(last), commit, wait, released(v_empty, last)
    )  # fmt: skip
    meeting: Body = (Sync(1, "role"),) if meets else ()
    whole: Body = (
        Wait(q_full, t), zeroed(o, t), For("k", "trips", change("step", step)),
        When(Affine(), "trips", tail), *meeting, released(q_empty, t),
    )  # fmt: skip

    def load(buffer: Buffer, source: str, index: Affine, barrier: Barrier) -> Do:
        there = ((0, 1), (1, 0), (0, 64))
        read = Access(gmem[source], there, origin=(Affine(), Affine()), guard=(True, True))
        write = Access(buffer, ((0, 1, 0), (1, 0, 0), (0, 0, 1)), index=index)
        copy = INSTRUCTIONS["cp.async.bulk.tensor"]
        return Do(copy, write, (read,), (64, 128, 2), signal=(barrier, index))

    many = 128 * 128 * 2
    loads: Body = (
        Wait(k_empty, n + -stages), Arrive(k_full, n, many), load(keys, "b", n, k_full),
        Wait(v_empty, n + -stages), Arrive(v_full, n, many), load(vals, "b", n, v_full),
    )  # fmt: skip
    fill: Body = (
        Wait(q_empty, t + -1), Arrive(q_full, t, many), load(q, "a", t, q_full),
        For("k", other, loads, start=start),
    )  # fmt: skip
    own = trips or apply("max", apply("min", COLUMNS, value("br")), 0)
    values = (("trips", own), *((("other", own),) if other == "other" else ()))
    end = Sync(scope="cluster")
    consumer = (ForTile("t", "i", change("tile", whole), values=values[:1]), end)
    producer = (Elect((ForTile("t", "i", change("producer", fill), values=values),)), end)
    return Program(
        "flash", operation, (*gmem.values(), q, keys, vals, s, p, o),
        (("ld_a", value("k")), ("ld_b", value("k")), ("ld_c", value("n"))),
        (Axis("br", value("m").ceildiv(Constant(128))),),
        (Role("consumer", 128, consumer, 2, "w", 240), Role("producer", 128, producer, 1, "p", 24)),
        barriers=(q_full, q_empty, k_full, k_empty, v_full, v_empty, *((turn,) * pingpong)),
        cluster=(("rank_m", 1),), persistent=True,
    )  # fmt: skip
