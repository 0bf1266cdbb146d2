r"""The term of the machine ``blackwell``: loads, products in tensor memory, stores, side by side.

    producer    one thread: for each tile, for each k: wait for an empty stage, load x and y
    multiplier  one thread: for each tile: wait for an empty accumulator; for each k: wait for a
                full stage, multiply, and let the stage be released when that is done (commit); then
                let the accumulator be taken when all is done (commit)
                With a_from "tmem" it first copies the stage of x to one of as many in tensor
                memory, and takes it from there: when the stage may be loaded again, that may be
                copied over, for the same products have read it.
    epilogue    one or two warpgroups: wait for a full accumulator; chunk by chunk take it into
                registers, round and store it; release it after the last chunk is taken

Accumulators are a ring in tensor memory, so that storing a tile overlaps the next one's products.
Tensor memory has 128 lanes; which lane and column an element of the product lies in is said by the
access maps, with R rows a CTA:

    one CTA,  R = 128       lane = row,                        column = column
    one CTA,  R = 64        lane = row % 16 + 32 (row // 16),  column = column
    pair,     R = 128       lane = row,                        column = column
    pair,     R = 64        lane = row + 64 half,              column = column % (tile_n / 2)

A *pair* of CTAs multiplies one tile: each has half its rows of x, and half (0 or 1) of its columns
of y; the first CTA's multiplier issues for both, waits for what both have loaded (barriers whose
``home`` is the pair) and tells both when it is done.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.blackwell import STARTS
>>> from tinygpu.term.operation import matmul
>>> term = BlackwellTerm(matmul("bf16", layout="nt"), Chosen(STARTS["pair"])).program()
>>> print(*term.barriers, sep="\n")
full     mbarrier  2 arrivals x 4 stages, at pair 0
empty    mbarrier  1 arrivals x 4 stages
acc_full mbarrier  1 arrivals x 2 stages
acc_empty mbarrier  256 arrivals x 2 stages, at pair 0

Source: PTX ISA 9, "TensorCore 5th Generation Family Instructions", "Data Path Layout Organization".
"""

from __future__ import annotations

from typing import Any

from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.machines.tensor_term import TensorTerm, swizzle_of, width
from tinygpu.term.operation import Operation
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Barrier,
    Buffer,
    Commit,
    Do,
    Elect,
    Fence,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    registers,
    select,
    var,
)

__all__ = ["LANES", "BlackwellTerm"]

LANES = 128  # spec: of tensor memory
_WARP, _WARPGROUP = 32, 128


class BlackwellTerm(TensorTerm):
    """One term in the making: what its parts have in common; ``d`` has the decisions."""

    def __init__(self, operation: Operation, d: Any) -> None:
        self.paired = d.cta_pair == 1
        self.ctas = 2 if self.paired else 1
        self.rows = d.tile_m // self.ctas
        columns = d.tile_n // self.ctas
        super().__init__(operation, d, swap=0, rows_here=self.rows, columns_here=columns)
        home = "pair" if self.paired else ""
        taken = _WARPGROUP * d.epilogues * self.ctas
        self.full = Barrier("full", d.stages, self.ctas, home)
        self.empty = Barrier("empty", d.stages, d.cluster_m * d.cluster_n)
        self.acc_full = Barrier("acc_full", d.accumulators, 1)
        self.acc_empty = Barrier("acc_empty", d.accumulators, taken, home)
        small = self.rows == 64
        self.folded = small & self.paired  # the columns' halves lie in different lanes
        self.high = 64 if self.paired else select(small, 16, 64)  # rows in neighbouring lanes
        self.apart = 64 if self.paired else select(small, 32, 64)  # lanes from those to the next
        self.acc_columns = select(self.folded, d.tile_n // 2, d.tile_n)
        self.sums = Buffer(
            "sums", "tmem", "f32", (LANES, self.acc_columns), (self.acc_columns, 1),
            d.accumulators, LANES * self.acc_columns,
        )  # fmt: skip
        self.held_x = Buffer(
            "held_x", "tmem", self.x.dtype, (LANES, d.tile_k), (d.tile_k, 1), d.stages,
            LANES * d.tile_k,
        )  # fmt: skip
        tile_row = var("br", d.tile_m * d.cluster_m) + var("rank_m", d.tile_m)
        self.tile_column = var("bc", d.tile_n * d.cluster_n) + var("rank_n", d.tile_n)
        self.first_row = tile_row + (var("pair", self.rows) if self.paired else 0)
        self.first_column = self.tile_column + (var("pair", columns) if self.paired else 0)

    def program(self) -> Program:
        """Return the term: its buffers are those that its statements use."""
        d = self.d
        epilogue, held = self.epilogue()
        if d.a_from == "tmem":
            held = (self.held_x, *held)
        buffers = (*self.gmem.values(), self.smem_x, self.smem_y, self.sums, *held)
        pair = (("pair", 2),) if self.paired else ()
        return Program(
            name="blackwell_matmul",
            operation=self.operation,
            buffers=buffers,
            parameters=self.parameters(),
            grid=self.grid(d.tile_m * d.cluster_m, d.tile_n * d.cluster_n),
            roles=(
                Role("epilogue", _WARPGROUP, epilogue, d.epilogues, "w"),
                Role("multiplier", _WARP, self.multiplier(), 1, "q"),
                Role("producer", _WARP, self.producer(), 1, "p"),
            ),
            raster=d.raster,
            barriers=(self.full, self.empty, self.acc_full, self.acc_empty),
            cluster=(*pair, ("rank_m", d.cluster_m), ("rank_n", d.cluster_n)),
            persistent=d.persistent,
            early=d.early,
        )

    def multiplier(self) -> tuple[Statement, ...]:
        """Multiply, as far ahead as stages and accumulators allow."""
        step = (
            Wait(self.full, self.n),
            Fence("tcgen05.after"),
            *self.multiply(),
            Arrive(self.empty, self.n, to="cluster", after="tcgen05"),
        )
        both = "pair" if self.paired else "cta"
        tile = (
            Wait(self.acc_empty, var("t") + -1 * self.d.accumulators),
            For("k", "trips", step),
            Arrive(self.acc_full, var("t"), to=both, after="tcgen05"),
        )
        tiles: Statement = ForTile("t", "i", tile)
        if self.paired:
            tiles = When(var("pair"), 1, (tiles,))
        return (Elect((tiles,)), Sync(scope="cluster"))

    def copied(self) -> Do:
        """Copy a stage of x, which lies along k, to tensor memory: 32 B of all rows at a time."""
        slices = self.inner // self.slice
        into = Access(self.held_x, ((0, 1), (1, 0), (0, self.slice), (0, self.inner)), index=self.n)
        steps = ((0, 1, 0), (1, 0, 0), (0, self.slice, 0), (0, 0, 1))
        tile = Access(self.smem_x, steps, index=self.n)
        values = (self.slice, LANES, slices, self.slabs)
        return Do(INSTRUCTIONS["tcgen05.cp"], into, (tile,), values)

    def multiply(self) -> tuple[Statement, ...]:
        """Add the products of one stage: for each slice of k."""
        d, high = self.d, self.high
        columns = d.tile_n // self.ctas
        by_k = self.y.axes[-1] == "k"
        wide = columns if by_k else self.inner  # columns of one slab
        values = (self.slice, wide, columns // wide, self.ctas, high, self.rows // high)
        slab, within = var("slab"), var("slice", self.slice)
        k_line = var("slab", self.inner) + within
        still = (0, 0, 0)
        x_origin: tuple[Affine, ...]
        y_origin: tuple[Affine, ...]
        if self.x.axes[-1] == "k":
            x_steps = ((0, 1, 0), still, still, still, (1, 0, 0), (high, 0, 0))
            x_origin = (Affine(), within, slab)
        else:
            further = (0, select(high == 16, 16, 0), select(high == 16, 0, 1))
            x_steps = ((1, 0, 0), still, still, still, (0, 1, 0), further)
            x_origin = (k_line, Affine(), Affine())
        if by_k:
            y_steps = ((0, 1, 0), (1, 0, 0), (wide, 0, 0), still, still, still)
            y_origin = (Affine(), within, slab)
        else:
            y_steps = ((1, 0, 0), (0, 1, 0), (0, 0, 1), still, still, still)
            y_origin = (k_line, Affine(), Affine())
        half = (select(self.folded, 64, 0), select(self.folded, 0, columns))
        sums = Access(
            self.sums,
            ((0, 0), (0, 1), (0, wide), half, (1, 0), (self.apart, 0)),
            index=var("t"),
        )
        x = Access(self.smem_x, x_steps, origin=x_origin, index=self.n)
        first: tuple[Statement, ...] = ()
        if d.a_from == "tmem":
            none = (0, 0)
            origin = (Affine(), var("slab", self.inner) + within)
            x_rows = ((0, 1), none, none, none, (1, 0), (high, 0))
            x = Access(self.held_x, x_rows, origin=origin, index=self.n)
            first = (self.copied(),)
        product = Do(
            INSTRUCTIONS["tcgen05.mma"],
            sums,
            (
                x,
                Access(self.smem_y, y_steps, origin=y_origin, index=self.n),
                sums,
            ),
            values,
            variant="fma",
            multicast="pair" if self.paired else "",
            fresh=var("k") + slab + var("slice"),
        )
        slices = For("slice", self.inner // self.slice, (product,), unrolled=True)
        return (*first, For("slab", self.slabs, (slices,), unrolled=True))

    def epilogue(self) -> tuple[tuple[Statement, ...], tuple[Buffer, ...]]:
        """Return the statements that take and store accumulators, and the buffers they need.

        Each copy of the role has its part of the columns, in chunks of ``store_n``.
        """
        d, high = self.d, self.high
        mine = self.acc_columns // d.epilogues
        chunks = mine // d.store_n
        ordinal = var("i", chunks) + var("chunk")
        own = var("w", mine) + var("chunk", d.store_n)
        blocks = select(self.folded, 2, self.rows // high)
        values = (d.store_n, high, blocks)
        lanes = ((0, 1), (1, 0), (self.apart, 0))
        taken = registers("taken", "f32", LANES, d.store_n, fragment="row")
        held = Access(taken, lanes, index=ordinal)
        sums = Access(self.sums, lanes, origin=(Affine(), own), index=var("t"))
        last = var("chunk", -1) + chunks
        release = (Fence("tcgen05.before"), Arrive(self.acc_empty, var("t"), to="cta"))
        body: tuple[Statement, ...] = (
            Do(INSTRUCTIONS["tcgen05.ld"], held, (sums,), values),
            WaitGroup(0, "tcgen05.ld"),
            When(last, 2, release),
        )
        buffers: tuple[Buffer, ...] = (taken,)
        if self.c.dtype != "f32":
            rounded = registers("rounded", self.c.dtype, LANES, d.store_n, fragment="row")
            narrow = Access(rounded, lanes, index=ordinal)
            body = (*body, Do(INSTRUCTIONS["cvt"], narrow, (held,), values))
            held, buffers = narrow, (*buffers, rounded)
        store, staged = self.store(held, values, own, ordinal)
        chunk = For("chunk", chunks, (*body, *store), unrolled=True)
        tile = (Wait(self.acc_full, var("t")), Fence("tcgen05.after"), chunk)
        end = (Elect((WaitGroup(0, "bulk", read=True),)),) if d.epilogue == "tma" else ()
        return (ForTile("t", "i", tile), *end, Sync(scope="cluster")), (*buffers, *staged)

    def store(
        self, held: Access, values: tuple[Any, Any, Any], own: Affine, ordinal: Affine
    ) -> tuple[tuple[Statement, ...], tuple[Buffer, ...]]:
        """Store a chunk of rows straight to c, or by way of shared memory, one box a half."""
        d, high = self.d, self.high
        folded = self.folded
        block = (select(folded, 0, high), select(folded, d.tile_n // 2, 0))
        place = (self.first_row, self.tile_column + own)
        if d.epilogue == "direct":
            out = self.outside(self.c, ((0, 1), (1, 0), block), place)
            store = Do(INSTRUCTIONS["st.global"], out, (held,), values, vector=d.vector_c)
            return (store,), ()
        rows, halves = self.rows, select(folded, 2, 1)
        each = width(self.c.dtype)
        staged = Buffer(
            "smem_c", "smem", self.c.dtype, (rows, d.store_n, halves),
            (d.store_n, 1, rows * d.store_n), d.store_stages, rows * d.store_n * halves,
            swizzle_of(d.store_n * each, each), copies=d.epilogues,
        )  # fmt: skip
        further = (select(folded, 0, high), 0, select(folded, 1, 0))
        write = Access(staged, ((0, 1, 0), (1, 0, 0), further), index=ordinal)
        read = Access(staged, ((0, 1, 0), (1, 0, 0), (0, 0, 1)), index=ordinal)
        boxes = ((0, 1), (1, 0), (0, select(folded, d.tile_n // 2, 0)))
        out = self.outside(self.c, boxes, place)
        send = INSTRUCTIONS["cp.async.bulk.tensor.global"]
        return (
            Elect((WaitGroup(d.store_stages + -1, "bulk", read=True),)),
            Sync(1, "role"),
            Do(INSTRUCTIONS["st.shared"], write, (held,), values, vector=16 // each),
            Fence("proxy.async"),
            Sync(1, "role"),
            Elect((Do(send, out, (read,), (d.store_n, rows, halves)), Commit("bulk"))),
        ), (staged,)
