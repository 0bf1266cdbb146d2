"""The machine ``ampere_attention``: attention by cp.async, ldmatrix and mma.sync (sm_80 and later).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.machines.attention import RowStatistics
from tinygpu.term.builder import Held, Kernel, LoopIndex, Tile
from tinygpu.term.expression import Constant, apply, value
from tinygpu.term.machine import Choice, Machine, Requirement, Value, instructions
from tinygpu.term.operation import Operation
from tinygpu.term.program import select

__all__ = ["STARTS", "AmpereAttention"]

_PIECE_BYTES = 16
_WHOLE = "l = bl, h = bh, g = bg, m = (bm tm), n = (kt tn)"
_ROWS = "tm = (far warp half octet)"
_KEYS = "tn = (slice deep quad pair)"


class AmpereAttention(Machine):
    """Flash attention forward by warps' products of 16-bit inputs, fp32 sums and statistics."""

    name, entry = "ampere_attention", "ampere_attention"
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async", "ldmatrix", "mma.sync", "mov", "cvt", "bar.sync", "shfl.sync", "st.global",
        "fma", "alu", "mufu",
    )  # fmt: skip
    numeric = True
    operations = ("attention",)
    dtypes = ("bf16", "f16")

    depth = Choice(128, 64, meaning="head dimension that the kernel is for")
    warps = Choice(4, 8, 2, 1, meaning="warps of a CTA")
    blocks = Choice(1, 2, meaning="blocks of 16 queries that a warp has")
    tile_n = Choice(64, 32, 48, 80, 96, 112, 128, meaning="keys in a block")
    stages_k = Choice(1, 2, 3, 4, meaning="blocks of keys in shared memory")
    stages_v = Choice(1, 2, 3, 4, meaning="blocks of values in shared memory")

    @property
    def rows(self):
        return 16 * self.warps * self.blocks

    def forward(self, k: Kernel) -> None:
        q, keys, values = k.inputs
        k.launch()
        k.grid("bl", "bh", "bg", "bm")
        k.tile(tm=self.rows)
        dtype = k.output.dtype
        ahead_k, ahead_v = self.stages_k, self.stages_v - 1
        lead = select(ahead_k > ahead_v, ahead_k, ahead_v)
        with k.role("warps", warps=self.warps):
            k.threads(warp=self.warps, octet=8, quad=4)
            k.values(far=self.blocks, slice=self.tile_n // 16, wide=self.depth // 8, deep=2,
                     half_k=2, half=2, pair=2, word=2, both=2)
            zero = k.digit("part", self.depth // 16)
            tiles = [k.smem("smem_q", dtype, tm=self.rows, td=self.depth, stages=1, swizzle="line"),
                     k.smem("smem_k", dtype, tn=self.tile_n, td=self.depth, stages=self.stages_k, swizzle="line"),
                     k.smem("smem_v", dtype, tn=self.tile_n, te=self.depth, stages=self.stages_v, swizzle="line")]
            smem_q, smem_k, smem_v = tiles
            vector = 8
            deal_q = k.deal("q", vector=vector, tm=self.rows, td=self.depth)
            deal_k = k.deal("k", vector=vector, tn=self.tile_n, td=self.depth)
            deal_v = k.deal("v", vector=vector, tn=self.tile_n, te=self.depth)
            along = "td = (part half_k quad word)"
            q_held = k.registers("q_fragment", dtype, "far", "half", "half_k", "word")
            k_held = k.registers("k_fragment", dtype, "deep", "half_k", "word")
            v_held = k.registers("v_fragment", dtype, "wide", "deep", "pair")
            scores = k.registers("scores", "f32", "far", "slice", "deep", "half", "pair")
            weights = k.registers("weights", dtype, "far", "slice", "deep", "half", "pair")
            acc = k.registers("acc", "f32", "far", "wide", "half", "both")
            rows = RowStatistics(k, scores, acc)

            def load_k(step: LoopIndex) -> None:
                back = step.last - step
                at = f"{_WHOLE}, d = td, {deal_k}"
                k.cp_async(smem_k[step][deal_k], keys[back][at])

            def load_v(step: LoopIndex) -> None:
                back = step.last - step
                at = f"{_WHOLE}, e = te, {deal_v}"
                k.cp_async(smem_v[step][deal_v], values[back][at])

            for tile in self.tiles(k):
                rows.begin()
                k.cp_async(smem_q[tile][deal_q], q[f"{_WHOLE}, d = td, {deal_q}"])
                for step in self.steps(k, tile, first=lead):
                    with k.when(step >= lead - ahead_v):
                        at = step - (lead - ahead_v)
                        with k.when(at < step.count):
                            load_v(at)
                    k.commit()
                    with k.when(step >= lead - ahead_k):
                        at = step - (lead - ahead_k)
                        with k.when(at < step.count):
                            load_k(at)
                    k.commit()
                for step in self.steps(k, tile):
                    k.wait_group("cp.async", 2 * ahead_k - 2)
                    k.sync()
                    with k.when(step + ahead_v < step.count):
                        load_v(step + ahead_v)
                    k.commit()
                    k.fill(scores, 0.0)
                    for part in k.unrolled("part", self.depth // 16):
                        k.ldmatrix(q_held, smem_q[tile][part][f"{_ROWS}, {along}"])
                        for _ in k.each("slice"):
                            k.ldmatrix(k_held, smem_k[step][part][f"tn = (slice deep octet), {along}"])
                            k.mma(scores, q_held, k_held)
                    k.wait_group("cp.async", 2 * ahead_v)
                    k.sync()
                    with k.when(step + ahead_k < step.count):
                        load_k(step + ahead_k)
                    k.commit()
                    self.mask(k, scores, step)
                    rows.exponentiate()
                    rows.rescale()
                    k.cast(scores, dtype, into=weights)
                    for _ in k.each("slice"):
                        k.ldmatrix(v_held, smem_v[step][f"{_KEYS}, te = (wide octet)"])
                        k.mma(acc, weights, v_held)
                k.wait_group("cp.async", 0)
                rows.end()
                k.store(k.output[f"{_WHOLE}, {_ROWS}, e = (wide quad both)"], acc)

    def tiles(self, k: Kernel) -> Iterator[Tile]:
        """Trace a tile; under a mask each has trips of its own: blocks that its rows see."""
        if k.op.mask is None:
            return k.tiles()
        rows = (value("bm") + Constant(1)) * self.rows
        seen = apply("min", value("n"), rows + (value("n") - value("m")))
        return k.tiles(trips=apply("max", seen, 0).ceildiv(self.tile_n))

    def steps(self, k: Kernel, tile: Tile, first=None) -> Iterator[LoopIndex]:
        """Trace a block of keys of a tile."""
        return k.loop("kt", first=first) if k.op.mask is None else k.loop("kt", trips=tile.trips, first=first)

    def mask(self, k: Kernel, scores: Held, step: LoopIndex) -> None:
        """Set scores to minus infinity that a query does not see, in blocks that may have such."""
        key = k.at(f"n = (kt tn), {_KEYS}", step.last - step)
        query = k.at(f"m = (bm tm), {_ROWS}")
        cut, hidden = 1, key >= k.size("n")
        if k.op.mask is not None:
            cut = -(-(self.rows - 1) // self.tile_n) + 1
            hidden = key > query + (k.size("n") - k.size("m"))
        with k.when(step < cut):
            k.fill(scores, -math.inf, where=hidden)


_PLAIN: Mapping[str, Value] = {
    "depth": 128, "warps": 4, "blocks": 1, "tile_n": 64, "stages_k": 1, "stages_v": 1,
}
STARTS: Mapping[str, Mapping[str, Value]] = {"fa2": _PLAIN}
