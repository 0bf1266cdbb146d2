"""The machine ``ampere_attention``: softmax(scale q k^T + mask) v by cp.async and mma.sync (sm_80).

A CTA of ``warps`` takes a block of queries of one head, a warp 16 or 32 of them.  Blocks of keys
and values come by cp.async, the last block first, into two rings of stages in shared memory.  A
warp multiplies its queries with a block of keys, keeps each row's maximum and sum within four
lanes, and multiplies the rounded weights with the values: sums of mma.sync lie in registers as its
first factor does.

With ``meets`` 2 threads meet before each product: the values of a block land while its scores are
made, and the keys of a later one under its softmax.  With 1 they meet once a block.  The first
blocks alone are masked: those that the diagonal or the end of the keys may cut.

Lanes count as in ``ampere``: ``octet`` of 8 rows, ``quad`` of 4 pairs; ``slice`` counts 16 keys,
``deep`` two halves of them, ``part`` 16 steps of the head dimension.

Source: T. Dao, "FlashAttention-2", arXiv:2307.08691; PTX ISA 9, "Warp Level Matrix Instructions".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.machines.attention import RowStatistics
from tinygpu.term.builder import Array, Held, Kernel, LoopIndex, Tile
from tinygpu.term.expression import Constant, apply, value
from tinygpu.term.machine import Choice, Machine, Requirement, Value, instructions
from tinygpu.term.operation import Operation
from tinygpu.term.program import select

__all__ = ["STARTS", "AmpereAttention"]

_BLOCK = 16  # spec: PTX ISA, mma.m16n8k16
_VECTOR = 8  # elements of 16 bits that a cp.async copies
_WHOLE = "l = bl, h = bh, g = bg, m = (bm tm), n = (kt tn)"
_ROWS, _KEYS = "tm = (far warp half octet)", "tn = (slice deep quad pair)"
_ALONG = "td = (part half_k quad word)"


class AmpereAttention(Machine):
    """Flash attention forward by warps' products of 16-bit inputs, fp32 sums and statistics."""

    name = "ampere_attention"
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async", "ldmatrix", "mma.sync", "bar.sync", "shfl.sync", "st.global", "cvt", "fma",
        "alu", "mufu", "mov",
    )  # fmt: skip
    numeric = True
    operations = ("attention",)
    dtypes = ("bf16", "f16")
    spread = ("warps", "warp_rows", "tile_n", "meets")

    depth = Choice(128, 64, meaning="head dimension that the kernel is for")
    warps = Choice(4, 8, 2, meaning="warps of a CTA")
    warp_rows = Choice(16, 32, meaning="queries of a warp")
    tile_n = Choice(32, 48, 64, 80, 96, 112, 128, meaning="keys in a block")
    stages_k = Choice(1, 2, 3, 4, meaning="blocks of keys in shared memory")
    stages_v = Choice(1, 2, 3, 4, meaning="blocks of values in shared memory")
    meets = Choice(2, 1, structural=True, meaning="how often threads meet in a block of keys")
    queries = Choice("shared", "registers", structural=True, meaning="where a warp has its queries")
    edges = Choice("guard", "exact", structural=True, meaning="what keeps threads inside")
    order = Choice("straight", "longest", structural=True, meaning="queries that come first")
    together = Choice("kv heads", "group", structural=True, meaning="heads that are neighbours")
    raster = Choice(1, 2, 4, 8, 16, 32, meaning="neighbours visited together")
    ctas_per_sm = Choice(1, 2, 3, 4, meaning="CTAs that registers are limited for")

    def requires(self, operation: Operation, choose: Any) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        return (
            Requirement(
                "ahead",
                (d.meets == 2) | ((d.stages_k > 1) & (d.stages_v > 1)),
                "what is loaded while a block is multiplied has a stage of its own",
                "raise stages_k and stages_v, or choose meets 2",
            ),
            Requirement(
                "unused",
                d.together == "kv heads" or d.raster > 1,
                "a decision about what the kernel does not have stays at its first value",
                "choose together kv heads, or raise raster",
            ),
        )

    @property
    def rows(self) -> Any:
        """Queries of a CTA."""
        return self.warps * self.warp_rows

    def forward(self, k: Kernel) -> None:
        """Fill two rings; multiply twice a block; divide by the sum, and store."""
        q, keys, values = k.inputs
        dtype, depth = q.dtype, self.depth
        k.launch(raster=self.raster, ctas_per_sm=self.ctas_per_sm)
        k.grid("bl", *(("bg", "bh") if self.together == "kv heads" else ("bh", "bg")), "bm")
        if self.order == "longest":
            k.walk_down("bm")
        if self.edges == "exact":
            k.unguarded("d", "e")
        k.tile(tm=self.rows, tn=self.tile_n, td=depth, te=depth)
        with k.role("warps", warps=self.warps):
            k.threads(warp=self.warps, octet=8, quad=4)
            k.values(far=self.warp_rows // _BLOCK, slice=self.tile_n // 16, wide=depth // 8,
                     part=depth // 16, deep=2, half_k=2, half=2, pair=2, word=2, both=2)  # fmt: skip
            ring_q = CopiedRing(k, q, 1, tm=self.rows, td=depth)
            ring_k = CopiedRing(k, keys, self.stages_k, tn=self.tile_n, td=depth)
            ring_v = CopiedRing(k, values, self.stages_v, tn=self.tile_n, te=depth)
            whole = self.queries == "registers"
            first = k.registers("queries", dtype, "far", *["part"] * whole, "half", "half_k", "word")
            second = k.registers("keys", dtype, "deep", "half_k", "word")
            third = k.registers("values", dtype, "wide", "deep", "pair")
            scores = k.registers("scores", "f32", "far", "slice", "deep", "half", "pair")
            weights = k.registers("weights", dtype, "far", "slice", "deep", "half", "pair")
            acc = k.registers("acc", "f32", "far", "wide", "half", "both")
            rows = RowStatistics(k, scores, acc)
            once = self.meets == 1
            ahead_k, ahead_v = self.stages_k - once, self.stages_v - 1
            lead = select(ahead_k > ahead_v, ahead_k, ahead_v)
            least = select(ahead_k < ahead_v, ahead_k, ahead_v)

            def load(ring: CopiedRing, step: LoopIndex, *, last: bool) -> None:
                with k.when(step < step.count):
                    ring.load(step, step.last - step)
                if last or not once:
                    k.commit()

            def meet(ahead: Any) -> None:
                k.wait_group("cp.async", least - 1 if once else 2 * ahead)
                k.sync()

            for tile in self.tiles(k):
                rows.begin()
                ring_q.load(tile)
                for step in self.steps(k, tile, first=lead):  # as if steps before the first did it
                    for ring, ahead in ((ring_v, ahead_v), (ring_k, ahead_k)):
                        late = step - (lead - ahead)
                        with k.when(step >= lead - ahead), k.when(late < late.count):
                            ring.load(late, late.last - late)
                        if ring is ring_k or not once:
                            k.commit()
                if whole:
                    k.wait_group("cp.async", lead * (1 if once else 2) - 1)
                    k.sync()
                    k.ldmatrix(first, ring_q.tile[tile][f"{_ROWS}, {_ALONG}"])
                for step in self.steps(k, tile):
                    meet(ahead_k - 1)
                    load(ring_v, step + ahead_v, last=False)
                    if once:
                        load(ring_k, step + ahead_k, last=True)
                    k.fill(scores, 0.0)
                    for _ in k.each("part"):
                        if not whole:
                            k.ldmatrix(first, ring_q.tile[tile][f"{_ROWS}, {_ALONG}"])
                        for _ in k.each("slice"):
                            lines = f"tn = (slice deep octet), {_ALONG}"
                            k.ldmatrix(second, ring_k.tile[step][lines])
                            k.mma(scores, first, second)
                    if not once:
                        meet(ahead_v)
                        load(ring_k, step + ahead_k, last=True)
                    self.mask(k, scores, step)
                    rows.exponentiate()
                    rows.rescale()
                    k.cast(scores, dtype, into=weights)
                    for _ in k.each("slice"):
                        k.ldmatrix(third, ring_v.tile[step][f"{_KEYS}, te = (wide octet)"])
                        k.mma(acc, weights, third)
                k.wait_group("cp.async", 0)
                rows.end()
                k.store(k.output[f"{_WHOLE}, {_ROWS}, e = (wide quad both)"], acc)
