"""The machine ``hopper``: a matmul by TMA, mbarriers and wgmma (sm_90a).

A CTA has a producer, which loads tiles of the inputs into a ring of stages in shared memory, and
one to three consumer warpgroups, which multiply from there and store.
CTAs of a cluster may share what they load, or a tile's k, so that few tiles fill the chip.

Source: PTX ISA 9; NVIDIA CUTLASS 3 and P. Mohan, "Outperforming cuBLAS on H100".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import ClassVar

from tinygpu.isa.memory import DTYPES, GMEM, L2, REGISTERS, SMEM
from tinygpu.machines.tiles import ROW_BYTES, ring, tile_requirements
from tinygpu.term.builder import Held, Kernel
from tinygpu.term.expression import Expression, apply, value
from tinygpu.term.groups import END, FIRST
from tinygpu.term.machine import Choice, Chosen, Machine, Measured, Requirement, Value, instructions
from tinygpu.term.operation import ACC, Operation
from tinygpu.term.program import select

__all__ = ["STARTS", "Hopper"]


_MOST_SUMS = Measured(
    ("ctas_per_sm", "consumers"),
    {(1, 1): 216, (1, 2): 200, (1, 3): 96, (2, 1): 128, (2, 2): 48, (2, 3): 32},
    "ptxas 13.0: the most with which it does not serialise products (C7511); of the registers that "
    "a thread enters with a product's own, columns / 2, and about 26 more are there from the start",
)
"""Registers of sums of a consumer's thread."""


class Hopper(Machine):
    """Matmul by warpgroup products of 16-bit (or 8-bit) inputs, fp32 sums."""

    name, entry = "hopper", "hopper_matmul"
    levels = (GMEM, L2, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async.bulk.tensor", "cp.async.bulk.tensor.global", "mbarrier", "wgmma", "cvt",
        "stmatrix", "fence.proxy.async", "bar.sync", "barrier.cluster", "st.global", "st.shared",
        "ld.shared", "fma", "ld.global", "alu", "mufu", "mov",
    )  # fmt: skip
    numeric = True
    operations: ClassVar[tuple[str, ...]] = ("matmul", "grouped")
    gates: ClassVar[bool] = True
    spread: ClassVar[tuple[str, ...]] = (
        "tile_m",
        "tile_n",
        "consumers",
        "consume",
        "cluster_m",
        "cluster_n",
        "cluster_k",
    )
    in_order: ClassVar[Mapping[str, Value] | None] = MappingProxyType({"cluster_k": 1})
    outputs = MappingProxyType(
        {"bf16": ("bf16", "f32"), "f16": ("f16", "f32"), "e4m3": ("bf16", "f16", "f32")}
    )

    tile_m = Choice(64, 128, 192, 256, meaning="rows of the product a CTA computes")
    tile_n = Choice(
        *range(8, 257, 8), *range(272, 321, 16), meaning="columns of the product a CTA computes"
    )
    tile_k = Choice(64, 128, meaning="steps of k in a stage")
    consumers = Choice(1, 2, 3, meaning="warpgroups that multiply")
    consume = Choice(
        "cooperative", "pingpong", structural=True, meaning="consumers share tiles, or take turns"
    )
    stages = Choice(2, 3, 4, 5, 6, 7, 8, 10, 12, meaning="tiles of the inputs in shared memory")
    in_flight = Choice(0, 1, 2, meaning="groups of products in flight when a stage is released")
    cluster_m = Choice(1, 2, 4, meaning="CTAs of a cluster along the rows: they share y")
    cluster_n = Choice(1, 2, 4, meaning="CTAs of a cluster along the columns: they share x")
    cluster_k = Choice(
        1, 2, 4, 8, structural=True, before=1,
        meaning="CTAs of a cluster that share the terms of a sum, each stores a part",
    )  # fmt: skip
    swap = Choice(0, 1, structural=True, meaning="the product's rows are c's columns (1)")
    epilogue = Choice("tma", "direct", structural=True, meaning="how sums reach c")
    store_n = Choice(
        *(8, 16, 24, 32, 40, 56, 64, 104, 128, 152, 256),
        meaning="columns stored together",
    )  # powers of two, and 8 times a prime: what widths by 8 divide into
    store_stages = Choice(1, 2, 4, meaning="chunks of c in shared memory")
    raster = Choice(1, 2, 4, 8, 16, 32, meaning="rows of clusters visited together")
    persistent = Choice(0, 1, meaning="CTAs stay for several tiles (1)")
    ctas_per_sm = Choice(1, 2, meaning="CTAs that registers are limited for")
    early = Choice(0, 1, meaning="start while the kernel before ends (1)")

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        a, b, c = operation.operand("a"), operation.operand("b"), operation.output
        out = DTYPES[c.dtype].bytes
        turns = d.consume == "pingpong"
        high, wide = (1, 1) if turns else side_by_side(d)
        rows, columns = d.tile_m // high, d.tile_n // wide
        x, y = (b, a) if d.swap else (a, b)
        majors, slabs, parts = tile_requirements(x, y, (d.tile_m, d.tile_n), d, lines=1)
        products = len(operation.reductions)
        held = rows // 64 * columns // 2 * products
        span, stored = (64 if d.swap else d.store_n) * out, columns // d.cluster_k
        packed = (span & (span - 1) == 0) & (span >= 16) & (span <= ROW_BYTES)
        packed = packed | (span % 32 == 16)
        return (
            majors,
            Requirement(
                "blocks",
                (rows % 64 == 0)
                & (d.tile_m == rows * high)
                & (columns % (8 if y.axes[-1] == "k" else 64) == 0)
                & (d.tile_n == columns * wide),
                "each consumer multiplies blocks of 64 rows, of two side by side all of them with "
                "whole groups of 8 columns, 64 if these do not lie along k",
                "raise tile_m, lower consumers, or choose another tile_n",
            ),
            slabs,
            parts,
            Requirement(
                "accumulators",
                held <= _MOST_SUMS.at(d),
                "sums leave a consumer's threads registers to work with",
                "lower tile_n or tile_m, or raise consumers",
            ),
            Requirement(
                "turns",
                (d.consumers == 2) & (d.persistent == 1) if turns else d.consumers >= 1,
                "two consumers take turns on the tiles of CTAs that stay",
                "choose persistent 1 and consumers 2, or consume cooperative",
            ),
            Requirement(
                "chunks",
                (columns % (d.store_n * d.cluster_k) == 0)
                & (packed if d.epilogue == "tma" else d.store_n > 0),
                "columns are stored in whole chunks, by TMA in rows that have a swizzle or are an "
                "odd number of 16 B long, so that eight of them meet no bank twice",
                "choose a store_n that divides a consumer's columns over cluster_k, of 16 bits 8, "
                "16, 32, 64 or an odd multiple of 8",
            ),
            Requirement(
                "stored",
                d.epilogue == "direct" or not d.swap or out == 2,
                "stmatrix turns chunks of 16-bit elements",
                "choose epilogue direct, or swap 0",
            ),
            Requirement(
                "unused",
                (
                    d.epilogue == "tma"
                    or (
                        (d.store_stages == 1)
                        & (stored % (2 * d.store_n) != 0)
                        & (d.store_n & (d.store_n - 1) == 0)
                    )
                )
                & ((d.persistent == 0) | (d.ctas_per_sm == 1) | (d.consumers == 1)),
                "a decision about what the kernel does not have stays at its first value",
                "with epilogue direct choose store_stages 1, as store_n the largest power of two",
            ),
            Requirement(
                "shared_k",
                d.cluster_k == 1 or (not turns and d.persistent == 0),
                "CTAs that share k have one tile, and all of their consumers add to it",
                "choose persistent 0 and consume cooperative, or cluster_k 1",
            ),
            Requirement(
                "gate",
                products == 1 or d.cluster_k == 1,
                "CTAs that share k have one sum to add",
                "choose cluster_k 1",
            ),
            Requirement(
                "groups",
                operation.groups is None
                or (d.cluster_k == 1)
                & (
                    (d.epilogue == "direct")
                    | (columns // d.store_n * (rows // 64 if d.swap else 1) % d.store_stages == 0)
                ),
                "CTAs share no k, as each tile of groups has its own number of steps; and a tile "
                "uses each place of the stored chunks as often, as short ones use none",
                "choose cluster_k 1, and a number of chunks that store_stages divides",
            ),
            Requirement(
                "in_flight",
                d.in_flight < d.stages,
                "fewer groups of products are in flight than there are stages",
                "lower in_flight",
            ),
        )

    def forward(self, k: Kernel) -> None:
        """Let a producer fill a ring of stages; let consumers multiply from it, and store."""
        a, *weights = k.inputs[: len(k.op.reductions) + 1]  # of a gate two
        # x has the rows of the products, y their columns
        xs, ys = (weights, [a]) if self.swap else ([a], weights)
        turns, shared_k, batch = self.consume == "pingpong", self.cluster_k > 1, "l" in k.op.axes
        rows, columns = ("n", "m") if self.swap else ("m", "n")
        k.launch(persistent=self.persistent, raster=self.raster, ctas_per_sm=self.ctas_per_sm,
                 early=self.early)  # fmt: skip
        k.grid(*["bl"] * batch, "br", "bc")
        grouped, values = k.op.groups is not None, dict[str, Expression]()
        k.cluster(rank_m=self.cluster_m, rank_n=self.cluster_n)
        if shared_k:
            k.cluster(rank_k=self.cluster_k)
        k.tile(tm=self.tile_m, tn=self.tile_n, tk=self.tile_k)
        place = {rows: "br rank_m tm", columns: "bc rank_n tn"}
        if grouped:  # a tile's rows of c are in a slot of the groups, which begins where it says
            slot, *rest = place["m"].split()
            lines = self.tile_n * self.cluster_n if self.swap else self.tile_m * self.cluster_m
            values, place["m"] = k.slots(slot, lines), f"first {' '.join(rest)}"
            steps = value("k").ceildiv(self.tile_k)
            left = apply("max", value(END) - value(FIRST), 0)
            values["trips"] = steps * apply("min", left, 1)
        at = "l = bl," * batch + "g = which," * grouped
        at += "".join(f"{axis} = ({digits})," for axis, digits in place.items())
        at += "k = (rank_k kt tk)" if shared_k else "k = (kt tk)"
        smem_x = [ring(k, x, self.stages, tm=self.tile_m, tk=self.tile_k) for x in xs]
        smem_y = [ring(k, y, self.stages, tn=self.tile_n, tk=self.tile_k) for y in ys]
        expected = sum(held.stage_bytes for held in (*smem_x, *smem_y))
        full = k.mbarriers("full", self.stages, arrivals=1)
        releases = select(turns, 1, self.consumers) * self.cluster_m * self.cluster_n
        empty = k.mbarriers("empty", self.stages, arrivals=releases)
        receivers = "rank_m rank_n" if shared_k else "cluster"  # of what a CTA loads

        few, many = self.consumers == 3, (self.consumers > 1) & (self.ctas_per_sm == 1)
        # a warp is enough, but registers can be given away by whole warpgroups only
        loaders = select(self.consumers > 1, 4, 1)
        with k.role("producer", warps=loaders, registers=select(many, select(few, 32, 40), 0)):
            with k.elect():
                for tile in k.tiles(start="", step=1, **values):
                    for step in k.loop("kt", trips=tile.trips if grouped else None):
                        k.wait(empty[step - self.stages])
                        k.arrive(full[step], expect=expected)
                        for held, x in zip(smem_x, xs, strict=True):
                            k.tma(held[step], x[at], signal=full[step], share="tm by rank_n")
                        for held, y in zip(smem_y, ys, strict=True):
                            k.tma(held[step], y[at], signal=full[step], share="tn by rank_m")
            k.sync("cluster")  # nobody leaves while others still send here

        with k.role("consumer", warpgroups=1, registers=select(many, select(few, 160, 232), 0),
                    w=self.consumers):  # fmt: skip
            own, wide, w_m, w_n = self.tile_m, self.tile_n, "", ""
            if not turns:
                along, across = side_by_side(self)
                k.one_of("w", w_m=along, w_n=across)
                own, wide, w_m, w_n = own // along, wide // across, "w_m ", "w_n "
            high = 64 if self.swap else own  # rows stored together
            k.tile(high=high, col=self.store_n)
            k.threads(warp=4, octet=8, quad=4)
            k.values(far=own // 64)
            if shared_k:
                k.values(peer=self.cluster_k)
            k.values(chunk=wide // self.cluster_k // self.store_n, group=self.store_n // 8,
                     half=2, pair=2)  # fmt: skip
            row = "far warp half octet"
            mine, part = f"tm = ({w_m}{row})", "rank_k " * shared_k
            cols = f"tn = ({w_n}{'peer ' * shared_k}chunk group quad pair)"
            if turns:
                turn = k.mbarriers("turn", self.consumers, arrivals=1)
            copied = f"tm = ({w_m}{'far ' * self.swap}high), tn = ({w_n}{part}chunk col)"
            whole = f"{at}, {mine}, tn = ({w_n}{part}chunk group quad pair)"
            store = TileStore(self, k, whole, f"{at}, {copied}")
            digits = "far", *["peer"] * shared_k, "chunk", "group", "half", "pair"
            names = {r.name: "sums" if r.name == "acc" else r.name for r in k.op.reductions}
            sums = {r: k.registers(name, "f32", *digits) for r, name in names.items()}
            products = list(zip(sums.values(), smem_x * len(ys), smem_y * len(xs), strict=True))
            first, after = ("w", self.consumers) if turns else ("", 1)
            for tile in k.tiles(start=first, step=after, **values):
                if turns:
                    k.wait(turn[tile - 1])
                for step in k.loop("kt", trips=tile.trips if grouped else None):
                    with k.when(step < step.count):
                        k.wait(full[step])
                        for total, x, y in products:
                            k.wgmma(total, x[step][mine], y[step][cols], fresh=step.first)
                        k.wait_group("wgmma", self.in_flight * len(products))
                    with k.when(step >= self.in_flight), k.elect():
                        k.arrive(empty[step - self.in_flight], to=receivers)
                if turns:
                    k.sync("role")  # all threads have had their turn
                    with k.elect():
                        k.arrive(turn[tile])
                k.wait_group("wgmma", 0)
                k.run_on("kt", self.in_flight)  # what is left to release
                added = dict(sums)
                if shared_k:
                    added["acc"] = k.cluster_sum(sums["acc"], over="rank_k", slices="peer")
                with k.when(tile.trips >= 1) if grouped else nullcontext():
                    store.tile(added)
            if self.epilogue == "tma":
                with k.elect():
                    k.wait_group("bulk", 0, read=True)
            if not shared_k:  # else the sum's barrier was the last: nobody touches another CTA
                k.sync("cluster")


def side_by_side(d: Hopper | Chosen) -> tuple[int, int]:
    """Return how many consumers stand along the rows of a tile, and along its columns.

    Two stand along the columns where their rows would be no blocks of 64, or a product would be
    wider than 256.  Elsewhere that only costs: products of half the columns read the rows twice.
    """
    turned = (d.consumers == 2) & ((d.tile_m % 128 != 0) | (d.tile_n > 256))
    return select(turned, 1, d.consumers), select(turned, 2, 1)


class TileStore:
    """How a consumer stores a tile of c: by chunks of columns; if swapped, of rows too."""

    def __init__(self, machine: Hopper, k: Kernel, at: str, copied: str) -> None:
        self.machine, self.k, self.c, self.at = machine, k, k.output, at
        self.copied = copied
        if machine.epilogue == "tma":
            lines = ("col", "high") if machine.swap else ("high", "col")
            self.out = k.smem("smem_c", self.c.dtype, *lines, stages=machine.store_stages,
                              swizzle="line")  # fmt: skip

    def tile(self, sums: Mapping[str, Held]) -> None:
        """Store chunk by chunk: straight to c, or through shared memory and by TMA."""
        if self.machine.epilogue == "direct":
            self.direct(sums)
        else:
            self.through_shared(sums)

    def direct(self, sums: Mapping[str, Held]) -> None:
        """Store from the sums' threads, those of their elements that are inside."""
        k, machine, c = self.k, self.machine, self.c
        # An epilogue's steps are registers too: 8 columns at a time.  Else one row of c after
        # another: sectors of one row are neighbours in L2.
        by = "" if machine.swap else "half"
        by = "group" if k.op.epilogue != ACC else by
        for _ in k.each("far"):
            for _ in k.each("chunk"):
                for _ in k.each(by) if by else (None,):
                    k.store(c[self.at], self.finished(sums))

    def through_shared(self, sums: Mapping[str, Held]) -> None:
        """Store whole chunks by TMA."""
        k, machine, c = self.k, self.machine, self.c
        store = k.stmatrix if DTYPES[c.dtype].bytes == 2 else k.store
        part = f"high = ({'far ' * (not machine.swap)}warp half octet), col = (group quad pair)"
        for _ in k.each("far") if machine.swap else (None,):
            for chunk in k.each("chunk"):
                with k.elect():  # until the chunk's place is free
                    k.wait_group("bulk", machine.store_stages - 1, read=True)
                k.sync("role")
                for _ in (None,) if machine.swap else k.each("far"):  # 64 rows at a time
                    store(self.out[chunk][part], self.finished(sums))
                k.fence("proxy.async")
                k.sync("role")
                with k.elect():
                    k.tma_store(c[self.copied], self.out[chunk])
                    k.commit("bulk")

    def finished(self, sums: Mapping[str, Held]) -> Held:
        """Make elements of c of sums, by the operation's epilogue."""
        k, c = self.k, self.c
        if k.op.epilogue == ACC:
            return k.cast(sums["acc"], c.dtype)
        others, digits = k.inputs[len(sums) + 1 :], sums["acc"].digits
        if "group" not in digits:
            held = {x.name: k.load(x[self.at]) for x in others}
            return k.compute(k.op.epilogue, {**held, **sums}, c.dtype)
        made = k.registers("made", c.dtype, *digits)
        for _ in k.each("group"):
            held = {x.name: k.load(x[self.at]) for x in others}
            k.set(made, k.op.epilogue, {**held, **sums})
        return made


_PLAIN: Mapping[str, Value] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 64, "consumers": 1,
    "consume": "cooperative",
    "stages": 2, "in_flight": 0, "cluster_m": 1, "cluster_n": 1, "cluster_k": 1, "swap": 0,
    "epilogue": "direct", "store_n": 64, "store_stages": 1, "raster": 1, "persistent": 0,
    "ctas_per_sm": 1, "early": 0,
}  # fmt: skip
_RING = {**_PLAIN, "tile_m": 128, "tile_n": 128, "stages": 4, "in_flight": 1, "store_n": 128}
_TWO = {**_RING, "tile_n": 256, "consumers": 2, "store_n": 256}
_STORE = {**_TWO, "epilogue": "tma", "store_n": 64, "store_stages": 2}
_STAY = {**_STORE, "persistent": 1, "raster": 8}
_CLUSTER = {**_STAY, "cluster_m": 2}
_TURNS = {**_STAY, "tile_m": 64, "consume": "pingpong", "stages": 4}
_EARLY = {**_CLUSTER, "early": 1}
_SHARED = {**_RING, "tile_m": 64, "tile_n": 64, "cluster_k": 2, "store_n": 32}
_TURNED = {**_RING, "swap": 1, "tile_m": 64, "tile_n": 16, "stages": 8, "store_n": 16}

STARTS: Mapping[str, Mapping[str, Value]] = {
    "plain": _PLAIN,
    "ring": _RING,
    "two consumers": _TWO,
    "tma store": _STORE,
    "persistent": _STAY,
    "cluster": _CLUSTER,
    "early": _EARLY,
    "pingpong": _TURNS,
    "swapped": _TURNED,
    "shared k": _SHARED,
}
"""Named points, each a step of the known ladder of Hopper kernels."""
