"""The machine ``blackwell``: a matmul by TMA, mbarriers and tcgen05 in tensor memory (sm_100a).

A CTA has a warp that loads, a warp that multiplies and one or two warpgroups that store, side by
side.  Sums are a ring in tensor memory, so that storing a tile overlaps the next one's products.
Two CTAs may work as a pair on one tile: each has half its rows, and loads half its columns of y;
the first one multiplies for both.  See ``docs/tcgen05.md``.  It has not run on such a chip: what
is said here follows the PTX ISA and is assembled, interpreted and judged.

Source: PTX ISA 9, "TensorCore 5th Generation Family Instructions"; NVIDIA CUTLASS; DeepGEMM.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType

from tinygpu.errors import OperationError
from tinygpu.isa.memory import DTYPES, GMEM, L2, REGISTERS, SMEM, TMEM
from tinygpu.machines.tiles import ROW_BYTES, ring, tile_requirements
from tinygpu.term.builder import Array, BarrierRing, Kernel
from tinygpu.term.machine import Choice, Chosen, Machine, Requirement, Value, instructions
from tinygpu.term.operation import ACC, Operation
from tinygpu.term.program import select

__all__ = ["STARTS", "Blackwell"]


class Blackwell(Machine):
    """Matmul by products in tensor memory of 16-bit, 8-bit or tf32 inputs, fp32 sums."""

    name, entry = "blackwell", "blackwell_matmul"
    levels = (GMEM, L2, SMEM, TMEM, REGISTERS)
    instructions = instructions(
        "cp.async.bulk.tensor", "cp.async.bulk.tensor.global", "mbarrier", "tcgen05.alloc",
        "tcgen05.cp", "tcgen05.mma", "tcgen05.commit", "tcgen05.ld", "tcgen05.fence", "cvt",
        "st.shared", "fence.proxy.async", "bar.sync", "barrier.cluster", "st.global",
    )  # fmt: skip
    numeric = True
    operations = ("matmul",)
    spread = ("tile_m", "tile_n", "cta_pair", "a_from", "accumulators", "cluster_m", "cluster_n")
    in_order = MappingProxyType({})
    outputs = MappingProxyType({
        "bf16": ("bf16", "f32"), "f16": ("f16", "f32"), "tf32": ("f32",),
        "e4m3": ("bf16", "f16", "f32"), "e5m2": ("bf16", "f16", "f32"),
    })  # fmt: skip

    tile_m = Choice(64, 128, 256, meaning="rows of the product a CTA, or a pair, computes")
    tile_n = Choice(
        16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256,
        meaning="columns of the product a CTA, or a pair, computes",
    )  # fmt: skip
    tile_k = Choice(32, 64, 128, meaning="steps of k in a stage")
    cta_pair = Choice(0, 1, structural=True, meaning="two CTAs multiply one tile (1)")
    a_from = Choice(
        "smem", "tmem", structural=True, meaning="where products take a: tmem, copied there before"
    )
    stages = Choice(2, 3, 4, 5, 6, 7, 8, 10, 12, meaning="tiles of the inputs in shared memory")
    accumulators = Choice(1, 2, 4, meaning="tiles of sums in tensor memory")
    epilogues = Choice(1, 2, meaning="warpgroups that store")
    cluster_m = Choice(1, 2, 4, meaning="CTAs or pairs of a cluster along the rows: they share y")
    cluster_n = Choice(1, 2, 4, meaning="CTAs or pairs of a cluster along the columns: share x")
    epilogue = Choice("tma", "direct", structural=True, meaning="how sums reach c")
    store_n = Choice(8, 16, 32, 64, 128, meaning="columns taken and stored together")
    store_stages = Choice(1, 2, 4, meaning="chunks of c in shared memory")
    vector_c = Choice(1, 2, 4, 8, meaning="elements of c stored at once")
    raster = Choice(1, 2, 4, 8, 16, 32, meaning="rows of clusters visited together")
    persistent = Choice(0, 1, meaning="CTAs stay for several tiles (1)")
    early = Choice(0, 1, meaning="start while the kernel before ends (1)")

    def check(self, operation: Operation) -> None:
        """Raise OperationError if this machine cannot do the operation."""
        super().check(operation)
        if operation.epilogue != ACC:
            raise OperationError(
                f"machine {self.name}: {operation.name} with an epilogue ({operation.epilogue}); "
                "choose a machine that fuses, as hopper"
            )

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        a, b, c = operation.operand("a"), operation.operand("b"), operation.output
        out = DTYPES[c.dtype].bytes
        ctas = 2 if d.cta_pair else 1
        rows, columns = d.tile_m // ctas, d.tile_n // ctas
        majors, slabs, parts = tile_requirements(a, b, (rows, columns), d, lines=8)
        span = d.store_n * out
        held = select((rows == 64) & (ctas == 2), d.tile_n // 2, d.tile_n)
        return (
            majors,
            Requirement(
                "blocks",
                (rows == 64) | (rows == 128),
                "a CTA has 64 or 128 rows of a product",
                "choose tile_m 64 or 128, of a pair 128 or 256",
            ),
            Requirement(
                "a_from",
                d.a_from == "smem" or ((rows == 128) & (ctas == 1) & (a.axes[-1] == "k")),
                "a lies in tensor memory in 128 rows of one CTA, along k",
                'choose a_from "smem", or tile_m 128 without a pair and a layout n of a',
            ),
            slabs,
            parts,
            Requirement(
                "chunks",
                (held % (d.store_n * d.epilogues) == 0)
                & (((span <= ROW_BYTES) & (span >= 16)) if d.epilogue == "tma" else d.store_n > 0),
                "columns are stored in whole chunks, by TMA of 16 to 128 B a row",
                "choose a store_n that divides tile_n, of at most 64 columns of 16 bits",
            ),
            Requirement(
                "unused",
                (d.vector_c == 1) if d.epilogue == "tma" else (d.store_stages == 1),
                "a decision about what the kernel does not have stays at its first value",
                "choose vector_c 1 with epilogue tma, store_stages 1 with epilogue direct",
            ),
            Requirement(
                "overlap",
                (d.persistent == 1) | (d.accumulators == 1),
                "a CTA with one tile has one accumulator",
                "choose persistent 1 or accumulators 1",
            ),
        )

    def forward(self, k: Kernel) -> None:
        """Let a thread load, another one multiply, and warpgroups store, each a ring ahead."""
        x, y, _ = k.arrays
        batch, (pair, ctas) = "l" in k.op.axes, ("pair", 2) if self.cta_pair else ("", 1)
        rows, columns = self.tile_m // ctas, self.tile_n // ctas  # that a CTA loads
        k.launch(persistent=self.persistent, raster=self.raster, early=self.early)
        k.grid(*["bl"] * batch, "br", "bc")
        if pair:
            k.cluster(pair=2)
        k.cluster(rank_m=self.cluster_m, rank_n=self.cluster_n)
        k.tile(tm=rows, tn=self.tile_n, tk=self.tile_k, part=columns)
        lines = "l = bl," * batch + f"m = (br rank_m {pair} tm)"
        at = f"{lines}, n = (bc rank_n {pair} part), k = (kt tk)"
        smem_x = ring(k, x, self.stages, tm=rows, tk=self.tile_k)
        smem_y = ring(k, y, self.stages, part=columns, tk=self.tile_k)
        sums = k.tmem("sums", "f32", "tm", "tn", stages=self.accumulators, pair=pair, halves="half")
        full = k.mbarriers("full", self.stages, arrivals=ctas, home=pair)
        empty = k.mbarriers("empty", self.stages, arrivals=self.cluster_m * self.cluster_n)
        acc_full = k.mbarriers("acc_full", self.accumulators, arrivals=1)
        takers = 128 * self.epilogues * ctas
        acc_empty = k.mbarriers("acc_empty", self.accumulators, arrivals=takers, home=pair)

        with k.role("epilogue", warpgroups=1, w=self.epilogues):
            self.store(k, f"{lines}, n = (bc rank_n tn)", sums, acc_full, acc_empty)

        with k.role("multiplier", warps=1):
            if self.a_from == "tmem":
                held_x = k.tmem("held_x", x.dtype, "tm", "tk", stages=self.stages)
            first = k.only(pair=0) if pair else nullcontext()  # multiplies for both
            with k.elect(), first:
                for tile in k.tiles():
                    k.wait(acc_empty[tile - self.accumulators])
                    for step in k.loop("kt", over="k", by=self.tile_k):
                        k.wait(full[step])
                        k.fence("tcgen05.after")
                        left = smem_x[step]
                        if self.a_from == "tmem":
                            left = held_x[step]
                            k.tcgen05_cp(left, smem_x[step])
                        k.tcgen05_mma(sums[tile], left, smem_y[step], fresh=step.first)
                        k.arrive(empty[step], to="cluster", after="tcgen05")
                    k.arrive(acc_full[tile], to=pair or "cta", after="tcgen05")
            k.sync("cluster")

        with k.role("producer", warps=1):
            with k.elect():
                for _ in k.tiles():
                    for step in k.loop("kt"):
                        k.wait(empty[step - self.stages])
                        k.arrive(full[step], expect=smem_x.stage_bytes + smem_y.stage_bytes)
                        k.tma(smem_x[step], x[at], signal=full[step], share="tm by rank_n",
                              trim=False)  # fmt: skip
                        k.tma(smem_y[step], y[at], signal=full[step], share="part by rank_m",
                              trim=False)  # fmt: skip
            k.sync("cluster")

    def store(
        self, k: Kernel, at: str, sums: Array, acc_full: BarrierRing, acc_empty: BarrierRing
    ) -> None:
        """Take sums chunk by chunk; store them straight to c, or by shared memory and TMA."""
        c, chunks = k.output, sums.columns // self.epilogues // self.store_n
        k.tile(col=self.store_n)
        at += ", tn = (half w chunk col)"
        if self.epilogue == "tma":
            out = k.smem("smem_c", c.dtype, "tm", "col", "half", stages=self.store_stages,
                         swizzle="line")  # fmt: skip
        for tile in k.tiles():
            k.wait(acc_full[tile])
            k.fence("tcgen05.after")
            for chunk in k.unrolled("chunk", chunks):
                taken = k.tcgen05_ld(sums[tile][at])
                k.wait_group("tcgen05.ld", 0)
                with k.when(chunk >= chunks - 1):  # all is taken
                    k.fence("tcgen05.before")
                    k.arrive(acc_empty[tile])
                rounded = k.cast(taken, c.dtype)
                if self.epilogue == "direct":
                    k.store(c[at], rounded, vector=self.vector_c)
                    continue
                with k.elect():  # until the chunk's place is free
                    k.wait_group("bulk", self.store_stages - 1, read=True)
                k.sync("role")
                k.store(out[chunk], rounded)
                k.fence("proxy.async")
                k.sync("role")
                with k.elect():
                    k.tma_store(c[at], out[chunk])
                    k.commit("bulk")
        if self.epilogue == "tma":
            with k.elect():
                k.wait_group("bulk", 0, read=True)
        k.sync("cluster")


_PLAIN: Mapping[str, Value] = {
    "tile_m": 128, "tile_n": 64, "tile_k": 64, "cta_pair": 0, "a_from": "smem", "stages": 2,
    "accumulators": 1, "epilogues": 1, "cluster_m": 1, "cluster_n": 1, "epilogue": "direct",
    "store_n": 32, "store_stages": 1, "vector_c": 1, "raster": 1, "persistent": 0, "early": 0,
}  # fmt: skip
_SMALL = {**_PLAIN, "tile_m": 64}
_RING = {**_PLAIN, "tile_n": 128, "stages": 4, "vector_c": 8}
_STORE = {**_RING, "epilogue": "tma", "store_n": 64, "store_stages": 2, "vector_c": 1}
_STAY = {**_STORE, "persistent": 1, "accumulators": 2, "raster": 8}
_A_IN_TMEM = {**_STAY, "a_from": "tmem"}
_CLUSTER = {**_STAY, "cluster_m": 2}
_PAIR = {**_STAY, "tile_m": 256, "cta_pair": 1}
_NARROW = {**_PAIR, "tile_m": 128, "store_n": 32}
_WIDE = {**_PAIR, "tile_n": 256, "epilogues": 2, "cluster_n": 2}

STARTS: Mapping[str, Mapping[str, Value]] = {
    "plain": _PLAIN,
    "small": _SMALL,
    "ring": _RING,
    "tma store": _STORE,
    "persistent": _STAY,
    "a in tmem": _A_IN_TMEM,
    "cluster": _CLUSTER,
    "pair": _PAIR,
    "narrow pair": _NARROW,
    "wide pair": _WIDE,
}
"""Named points, from the plainest kernel to pairs in clusters."""
