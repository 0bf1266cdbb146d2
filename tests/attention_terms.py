"""A chain of two products in a role: flash attention in FlashAttention-2's order, for sm_90a.

A producer brings q once a tile and rings of k and v by TMA.  A consumer multiplies, takes the row
maximum and the row sum by shuffles of a quad, and gives its rounded sums to the second product as
registers.  No expression of an operation states softmax(q k^T) v yet: ``Attention`` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import apply, value
from tinygpu.term.operation import Operand, Operation, Reduction
from tinygpu.term.program import Program

LOG2_E = math.log2(math.e)


class Attention(Operation):
    """An operation on attention's arrays, whose reference is softmax(q k^T / sqrt d) v.

    The scale lets an error be that of weights rounded to 8 bits, at 1 of ``error_ratio``.
    """

    __slots__ = ()

    def reference(
        self,
        inputs: Mapping[str, Any],
        scalars: Any = None,
        algebra: Algebra = FLOATS,
    ) -> dict[str, NDArray[np.float64]]:
        q, k, v = (inputs[n].astype(np.float64) for n in "qkv")
        s = q @ k.T / math.sqrt(q.shape[1])
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True)
        own = 4 * 2.0**-24 * math.sqrt(math.prod(k.shape))
        return {self.output.name: p @ v, "scale": 2.0**-8 * (p @ np.abs(v)) / own}


def operation(dtype: str = "bf16") -> Operation:
    """Attention of one head; its expressions are another operation's, which nobody asks."""
    q, k, v = map(value, "qkv")
    return Attention(
        "attention",
        ("m", "n", "d", "e"),
        (Operand("q", ("m", "d"), dtype), Operand("k", ("n", "d"), dtype),
         Operand("v", ("n", "e"), dtype)),
        Operand("o", ("m", "e"), "f32"),
        (Reduction("acc", "add", q * k * v, ("n", "d")),),
    )  # fmt: skip


def term(
    *, depth: int = 64, keys: int = 64, stages: int = 2, consumers: int = 1, persistent: int = 1,
    registers: tuple[int, int] = (0, 0), dtype: str = "bf16", of_k: str = "group quad pair",
) -> Program:  # fmt: skip
    """The term: blocks of 64 rows a consumer, ``keys`` columns of scores a step."""

    def forward(k: Kernel) -> None:
        q, keys_in, values_in = k.inputs
        k.launch(persistent=persistent)
        k.grid("bm")
        k.cluster(rank=1)
        k.tile(tm=64 * consumers, tn=keys, td=depth, te=depth)
        at = "m = (bm rank tm), d = td, n = (kt tn), e = te"
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
            scale = LOG2_E / math.sqrt(depth)
            for tile in k.tiles():
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
                    k.set(shift, value("new") * -scale, {"new": new})
                    k.set(shrink, apply("ex2.ftz", value("top") * scale + value("shift")),
                          {"top": top, "shift": shift})  # fmt: skip
                    k.set(top, value("new"), {"new": new})
                    k.set(s, apply("ex2.ftz", value("s") * scale + value("shift")),
                          {"s": s, "shift": shift})  # fmt: skip
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
                k.store(k.output[f"m = (bm rank tm), {rows}, e = te, te = (wide quad both)"], o)
            k.sync("cluster")

    return trace("flash", forward, operation(dtype))
