"""A chain of two products in a role: flash attention in FlashAttention-2's order, for sm_90a.

A producer brings q once a tile and rings of k and v by TMA.  A consumer multiplies, takes the row
maximum and the row sum by shuffles of a quad, and gives its rounded sums to the second product as
registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.hopper_terms import rewritten
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import apply, value
from tinygpu.term.operation import attention
from tinygpu.term.program import ForTile, Program, Statement

LOG2_E = math.log2(math.e)


def term(
    *, depth: int = 64, keys: int = 64, stages: int = 2, consumers: int = 1, persistent: int = 1,
    registers: tuple[int, int] = (0, 0), dtype: str = "bf16", of_k: str = "group quad pair",
) -> Program:  # fmt: skip
    """The term: blocks of 64 rows a consumer, ``keys`` columns of scores a step."""

    def forward(k: Kernel) -> None:
        q, keys_in, values_in = k.inputs
        k.launch(persistent=persistent)
        k.grid("bl", "bh", "bg", "bm")
        k.cluster(rank=1)
        k.tile(tm=64 * consumers, tn=keys, td=depth, te=depth)
        head = "l = bl, h = bh, g = bg"
        at = f"{head}, m = (bm rank tm), d = td, n = (kt tn), e = te"
        sq = k.smem("sq", dtype, "tm", "td", stages=1, swizzle=128)
        sk = k.smem("sk", dtype, "tn", "td", stages=stages, swizzle=128)
        sv = k.smem("sv", dtype, "tn", "te", stages=stages, swizzle=128)
        q_full, q_empty = k.mbarriers("qf", 1, arrivals=1), k.mbarriers("qe", 1, arrivals=consumers)
        k_full, v_full = (k.mbarriers(f"{n}f", stages, arrivals=1) for n in "kv")
        k_empty, v_empty = (k.mbarriers(f"{n}e", stages, arrivals=consumers) for n in "kv")
        with k.role("producer", warps=4, registers=registers[0]):
            with k.elect():
                for tile in k.tiles():
                    k.wait(q_empty[tile - 1])
                    k.arrive(q_full[tile], expect=sq.stage_bytes)
                    k.tma(sq[tile], q[at], signal=q_full[tile], trim=False)
                    for step in k.loop("kt"):
                        for full, empty, ring, array in (
                            (k_full, k_empty, sk, keys_in), (v_full, v_empty, sv, values_in),
                        ):  # fmt: skip
                            k.wait(empty[step - stages])
                            k.arrive(full[step], expect=ring.stage_bytes)
                            k.tma(ring[step], array[at], signal=full[step])
            k.sync("cluster")
        with k.role("consumer", warpgroups=1, registers=registers[1], w=consumers):
            k.threads(warp=4, octet=8, quad=4)
            k.values(group=keys // 8, wide=depth // 8, half=2, pair=2, both=2)
            rows = "tm = (w warp half octet)"
            s = k.registers("s", "f32", "group", "half", "pair")
            o = k.registers("acc", "f32", "wide", "half", "both")
            top, total = (k.registers(n, "f32", "half") for n in ("top", "total"))
            new, shift, shrink = (k.registers(n, "f32", "half") for n in ("new", "shift", "shrink"))
            factor = k.registers("factor", "f32")
            for tile in k.tiles():
                k.set(factor, value("scale") * LOG2_E)
                k.fill(top, -math.inf)
                k.fill(total, 0.0)
                k.fill(o, 0.0)
                k.wait(q_full[tile])
                for step in k.loop("kt"):
                    k.wait(k_full[step])
                    k.wgmma(s, sq[tile][rows], sk[step]["tn = (group quad pair)"], fresh=True)
                    k.wait_group("wgmma", 0)
                    with k.elect():
                        k.arrive(k_empty[step])
                    k.set(new, value("top"), {"top": top})
                    k.reduce("max", new, s)
                    k.butterfly("max", new, over="quad")
                    k.set(shift, -(value("new") * value("by")), {"new": new, "by": factor})
                    k.set(shrink, apply("ex2.ftz", value("top") * value("by") + value("shift")),
                          {"top": top, "by": factor, "shift": shift})  # fmt: skip
                    k.set(top, value("new"), {"new": new})
                    k.set(s, apply("ex2.ftz", value("s") * value("by") + value("shift")),
                          {"s": s, "by": factor, "shift": shift})  # fmt: skip
                    k.set(total, value("total") * value("by"), {"total": total, "by": shrink})
                    k.add(total, s)
                    k.set(o, value("o") * value("by"), {"o": o, "by": shrink})
                    p = k.cast(s, dtype, into="p")
                    k.wait(v_full[step])
                    k.wgmma(o, p, sv[step][f"tn = ({of_k}), te = (wide quad both)"], fresh=False)
                    k.wait_group("wgmma", 0)
                    with k.elect():
                        k.arrive(v_empty[step])
                k.sync("role")
                with k.elect():
                    k.arrive(q_empty[tile])
                k.butterfly("add", total, over="quad")
                k.set(total, apply("rcp", value("total")), {"total": total})
                k.set(o, value("o") * value("total"), {"o": o, "total": total})
                to = f"{head}, m = (bm rank tm), {rows}, e = te, te = (wide quad both)"
                k.store(k.output[to], o)
            k.sync("cluster")

    return trace("flash", forward, attention(dtype))


def tile_value(name: str, change: Callable[[Any], Any]) -> Callable[[Program], Program]:
    """Change a tile value where it is made."""

    def of(s: Statement) -> Statement:
        if not isinstance(s, ForTile):
            return s
        return replace(s, values=tuple((n, change(e) if n == name else e) for n, e in s.values))

    return lambda program: rewritten(program, of)
