"""The machine ``ampere_attention``: softmax(scale q k^T + mask) v by cp.async and mma.sync (sm_80).

A CTA of ``warps`` takes a block of queries of one head, a warp 16 or 32 of them.  Blocks of keys
and values come by cp.async, the last block first, into two rings of stages in shared memory.  A
warp multiplies its queries with a block of keys, keeps each row's maximum and sum within four
lanes, and multiplies the rounded weights with the values: sums of mma.sync lie in registers as its
first factor does.

With ``syncs`` 2 threads meet before each product: the values of a block land while its scores are
made, and the keys of a later one under its softmax.  With 1 they meet once a block.  The first
blocks alone are masked: those that the diagonal or the end of the keys may cut.

Lanes count as in ``ampere``: ``octet`` of 8 rows, ``quad`` of 4 pairs; ``slice`` counts 16 keys,
``deep`` two halves of them, ``part`` 16 steps of the head dimension.

Source: T. Dao, "FlashAttention-2", arXiv:2307.08691; PTX ISA 9, "Warp Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Mapping

from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.machines.attention import FlashAttention, RowStatistics
from tinygpu.term.builder import Array, Kernel, LoopIndex, Tile
from tinygpu.term.machine import Choice, Chosen, Requirement, Value, instructions
from tinygpu.term.operation import Operation
from tinygpu.term.program import select

__all__ = ["STARTS", "AmpereAttention"]

_BLOCK = 16  # spec: PTX ISA, mma.m16n8k16
_VECTOR = 8  # elements of 16 bits that a cp.async copies
_WHOLE = "l = bl, h = bh, g = bg, m = (bm tm), n = (kt tn)"
_ROWS, _KEYS = "tm = (far warp half octet)", "tn = (slice deep quad pair)"
_LINES = "tn = (slice deep octet)"
_ALONG = "td = (part half_k quad word)"


class AmpereAttention(FlashAttention):
    """Flash attention forward by warps' products of 16-bit inputs, fp32 sums and statistics."""

    name = "ampere_attention"
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async", "ldmatrix", "mma.sync", "bar.sync", "shfl.sync", "st.global", "cvt", "fma",
        "alu", "mufu", "mov",
    )  # fmt: skip
    rows_by, keys_by = _ROWS, _KEYS
    copied = "cp.async's vectors"
    spread = ("warps", "warp_rows", "tile_n", "syncs")

    depth = Choice(128, 64, meaning="head dimension that the kernel is for")
    warps = Choice(4, 8, 2, meaning="warps of a CTA")
    warp_rows = Choice(16, 32, meaning="queries of a warp")
    tile_n = Choice(32, 48, 64, 80, 96, 112, 128, meaning="keys in a block")
    stages_k = Choice(1, 2, 3, 4, meaning="blocks of keys in shared memory")
    stages_v = Choice(1, 2, 3, 4, meaning="blocks of values in shared memory")
    syncs = Choice(2, 1, structural=True, meaning="how often threads meet in a block of keys")
    queries = Choice("shared", "registers", structural=True, meaning="where a warp has its queries")
    edges = Choice("guard", "exact", structural=True, meaning="what keeps threads inside")
    order = Choice("straight", "longest", structural=True, meaning="queries that come first")
    together = Choice("kv heads", "group", structural=True, meaning="heads that are neighbours")
    raster = Choice(1, 2, 4, 8, 16, 32, meaning="neighbours visited together")
    ctas_per_sm = Choice(1, 2, 3, 4, meaning="CTAs that registers are limited for")

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        return (
            Requirement(
                "ahead",
                (d.syncs == 2) | ((d.stages_k > 1) & (d.stages_v > 1)),
                "what is loaded while a block is multiplied has a stage of its own",
                "raise stages_k and stages_v, or choose syncs 2",
            ),
            Requirement(
                "unused",
                d.together == "kv heads" or d.raster > 1,
                "a decision about what the kernel does not have stays at its first value",
                "choose together kv heads, or raise raster",
            ),
        )

    @property
    def rows(self) -> int:
        """Queries of a CTA."""
        return self.warps * self.warp_rows

    def forward(self, k: Kernel) -> None:
        """Fill two rings; multiply twice a block; divide by the sum, and store."""
        q, keys, values = k.inputs
        lines, block, wide = {"tm": self.rows}, {"tn": self.tile_n}, {"td": self.depth}
        k.launch(raster=self.raster, ctas_per_sm=self.ctas_per_sm)
        k.grid("bl", *(("bg", "bh") if self.together == "kv heads" else ("bh", "bg")), "bm")
        if self.order == "longest":
            k.walk_down("bm")
        if self.edges == "exact":
            k.unguarded("d", "e")
        k.tile(tm=self.rows, tn=self.tile_n, td=self.depth, te=self.depth)
        with k.role("warps", warps=self.warps):
            k.threads(warp=self.warps, octet=8, quad=4)
            k.values(far=self.warp_rows // _BLOCK, slice=self.tile_n // _BLOCK)
            k.values(part=self.depth // _BLOCK, wide=self.depth // _BLOCK, near=2, deep=2)
            k.values(half_k=2, half=2, pair=2, word=2, both=2)
            self.attend(
                k,
                CopiedTiles(k, q, "d = td", 1, **lines, **wide),
                CopiedTiles(k, keys, "d = td", self.stages_k, **block, **wide),
                CopiedTiles(k, values, "e = te", self.stages_v, **block, te=self.depth),
            )

    def attend(
        self, k: Kernel, ring_q: CopiedTiles, ring_k: CopiedTiles, ring_v: CopiedTiles
    ) -> None:
        """Go through the blocks of keys of each tile of queries."""
        dtype, once, held = k.output.dtype, self.syncs == 1, self.queries == "registers"
        ahead_k, ahead_v = self.stages_k - once, self.stages_v - 1
        lead = select(ahead_k > ahead_v, ahead_k, ahead_v)
        least = select(ahead_k < ahead_v, ahead_k, ahead_v)
        scores = k.registers("scores", "f32", "far", "slice", "deep", "half", "pair")
        weights = k.registers("weights", dtype, "far", "slice", "deep", "half", "pair")
        acc = k.registers("acc", "f32", "far", "wide", "near", "half", "both")
        parts = ["part"] if held else []
        first = k.registers("queries", dtype, "far", *parts, "half", "half_k", "word")
        second = k.registers("keys", dtype, "deep", "half_k", "word")
        third = k.registers("values", dtype, "near", "deep", "pair")
        rows = RowStatistics(k, scores, acc, f"{_WHOLE}, {_ROWS}", by="slice")
        for tile in self.tiles(k):
            rows.begin()
            ring_q.copy(tile)
            for turn in self.steps(k, tile, first=lead):  # as turns before the first would do it
                for ring, ahead in ((ring_v, ahead_v), (ring_k, ahead_k)):
                    with k.when(turn >= lead - ahead):
                        ring.copy_block(turn - (lead - ahead))
                    if ring is ring_k or not once:
                        k.commit()
            if held:
                k.wait_group("cp.async", lead * self.syncs - 1)
                k.sync()
                k.ldmatrix(first, ring_q.tile[tile][f"{_ROWS}, {_ALONG}"])
            for step in self.steps(k, tile):
                k.wait_group("cp.async", least - 1 if once else 2 * ahead_k - 2)
                k.sync()
                ring_v.copy_block(step + ahead_v)
                if once:
                    ring_k.copy_block(step + ahead_k)
                k.commit()
                k.fill(scores, 0.0)
                for _ in k.each("part"):
                    if not held:
                        k.ldmatrix(first, ring_q.tile[tile][f"{_ROWS}, {_ALONG}"])
                    for _ in k.each("slice"):
                        k.ldmatrix(second, ring_k.tile[step][f"{_LINES}, {_ALONG}"])
                        k.mma(scores, first, second)
                if not once:
                    k.wait_group("cp.async", 2 * ahead_v)
                    k.sync()
                    ring_k.copy_block(step + ahead_k)
                    k.commit()
                self.mask(k, scores, step)
                rows.maximise()
                rows.exponentiate()
                rows.add_up()
                rows.rescale()
                k.cast(scores, dtype, into=weights)
                for _ in k.each("slice"):
                    for _ in k.each("wide"):
                        k.ldmatrix(third, ring_v.tile[step][f"{_KEYS}, te = (wide near octet)"])
                        k.mma(acc, weights, third)
            k.wait_group("cp.async", 0)
            rows.end()
            for _ in k.each("far"):  # so that few rounded sums are alive
                k.store(k.output[f"{_WHOLE}, {_ROWS}, e = (wide near quad both)"], acc)


class CopiedTiles:
    """Tiles of an input in shared memory, and how threads copy them."""

    def __init__(self, k: Kernel, array: Array, wide: str, stages: int, **extents: int) -> None:
        self.k, self.array = k, array
        self.tile = k.smem(
            f"smem_{array.name}", array.dtype, stages=stages, swizzle="line", **extents
        )
        self.dealt = k.deal(array.name, vector=_VECTOR, **extents)
        self.whole = f"{_WHOLE}, {wide}, {self.dealt}"

    def copy(self, tile: Tile) -> None:
        """Start to copy what a tile has once."""
        self.k.cp_async(self.tile[tile][self.dealt], self.array[self.whole])

    def copy_block(self, step: LoopIndex) -> None:
        """Start to copy the block of a step, if there is one: the last block of keys first."""
        with self.k.when(step < step.count):
            block = self.array[step.last - step][self.whole]
            self.k.cp_async(self.tile[step][self.dealt], block)


_FA2: Mapping[str, Value] = {
    "depth": 128, "warps": 4, "warp_rows": 32, "tile_n": 64, "stages_k": 1, "stages_v": 1,
    "syncs": 2, "queries": "shared", "edges": "guard", "order": "straight",
    "together": "kv heads", "raster": 1, "ctas_per_sm": 1,
}  # fmt: skip
_FEW = {**_FA2, "warp_rows": 16, "warps": 8}
_EXACT = {**_FA2, "edges": "exact"}
_LONGEST = {**_EXACT, "order": "longest", "raster": 16}
_RING = {**_LONGEST, "stages_k": 2, "stages_v": 2, "syncs": 1}
_HELD = {**_RING, "warp_rows": 16, "warps": 8, "queries": "registers"}
_SMALL = {**_LONGEST, "tile_n": 32, "stages_k": 2, "stages_v": 2}

STARTS: Mapping[str, Mapping[str, Value]] = {
    "fa2": _FA2,
    "more warps": _FEW,
    "exact": _EXACT,
    "longest first": _LONGEST,
    "meet once": _RING,
    "queries held": _HELD,
    "few keys": _SMALL,
}
"""Named points: FlashAttention-2's order and steps beyond; "exact" needs a whole head dimension."""
