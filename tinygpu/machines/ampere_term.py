"""The term of the machine ``ampere``: cp.async brings tiles, ldmatrix slices, mma.sync multiplies.

One role.  Tiles of the inputs go round a ring of ``stages`` in shared memory; a warp reads *slices*
of 16 steps of k (8 of tf32) from there into registers, one slice ahead of the products:

    enter    clear the sums; load the first stages; read the first slice of the first of them
    loop     for each tile along k: load the tile that is ``stages - 1`` further; for each slice:
             read the next one and multiply this one; before the last, wait for the next tile
    leave    round and store, straight from the fragments or through shared memory

Everything is said thread by thread.  Lane l = q + 4 g of a warp holds what the fragments of
mma.m16n8k16 give it (``tinygpu.isa.fragment``), so thread modes are (q, g, warps along n, warps
along m) and value modes (pair, half, half of k, blocks): an access to shared or global memory is a
fragment's thread-value layout.  Blocks of 16 rows are dealt out to the warps in turn, so that one
block of each warp is a run of the tile's rows.

A register holds a pair of 16-bit elements, or one of tf32, whose "pairs" have one element.  What of
tf32 does not run along k is no matrix that ldmatrix could turn: each lane loads its own elements.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.ampere import STARTS
>>> from tinygpu.term.operation import matmul
>>> term = AmpereTerm(matmul("bf16", layout="nt"), Chosen(STARTS["plain"]))
>>> print(term.multiply(var("s")))
sums = mma.sync.fma(a_fragment@(2*kt + s), b_fragment@(2*kt + s), sums) x 2*2*2*4*2

Source: PTX ISA 9, "Warp Level Matrix Instructions"; NVIDIA CUTLASS 2, ``mma_multistage``.
"""

from __future__ import annotations

from typing import Any

from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.term.arithmetic import compute
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import ACC, Operand, Operation
from tinygpu.term.program import (
    Access,
    Affine,
    Axis,
    Buffer,
    Commit,
    Do,
    For,
    Immediate,
    Program,
    Role,
    Scalar,
    Statement,
    Sync,
    WaitGroup,
    When,
    accesses_of,
    registers,
    select,
    var,
)

__all__ = ["SLICE_BYTES", "AmpereTerm"]

SLICE_BYTES = 32  # spec: the k of one mma
_PIECE_BYTES = 16  # spec: a row of ldmatrix, and what cp.async moves
_BANKS = 32  # spec: of 4 B
_BLOCK_M, _BLOCK_N = 16, 8  # spec: the rows and columns of one mma
_PLACES = ((0, 1), (8, 0), (0, _BLOCK_N))  # of a thread's sums: pair, half, blocks of columns
_LANES = (4, 8)  # spec: lanes of a warp in a fragment, along its columns and its rows


class AmpereTerm:
    """One term in the making: what its parts have in common; ``d`` has the decisions."""

    def __init__(self, operation: Operation, d: Any) -> None:
        self.operation, self.d = operation, d
        self.a, self.b, self.c = *operation.inputs[:2], operation.output
        self.blocks_m = d.tile_m // (_BLOCK_M * d.warps_m)
        self.warp_n = d.tile_n // d.warps_n
        self.blocks_n = self.warp_n // _BLOCK_N
        width = DTYPES[self.a.dtype].bytes
        self.each = 4 // width  # elements of a register
        self.piece = _PIECE_BYTES // width
        self.depth = SLICE_BYTES // width
        self.slices = d.tile_k // self.depth
        self.warps = 32 * d.warps_m * d.warps_n
        self.lanes = (*_LANES, d.warps_n, d.warps_m)
        self.far = _BLOCK_M * d.warps_m  # rows from one block of a warp to its next
        self.gmem = {
            o.name: Buffer(o.name, "gmem", o.dtype, o.axes, (f"ld_{o.name}", 1)[-len(o.axes) :])
            for o in operation.operands
        }
        self.smem = {"a": self.tile(self.a, d.tile_m), "b": self.tile(self.b, d.tile_n)}
        dtype = self.a.dtype
        self.fragments = {
            "a": registers("a_fragment", dtype, self.blocks_m, 4 * self.each, stages=2),
            "b": registers("b_fragment", dtype, self.blocks_n, 2 * self.each, stages=2),
        }
        self.sums = registers("sums", "f32", self.blocks_m, self.blocks_n, 4)
        self.k = var("bz", "chunk") + var("kt", d.tile_k)
        self.row, self.column = var("bm", d.tile_m), var("bn", d.tile_n)

    def tile(self, operand: Operand, extent: Any) -> Buffer:
        """Return the ring of an input's tiles: rows along its contiguous dimension, swizzled.

        Where lanes load words by themselves, eight neighbours in each of four rows meet four times
        eight banks if 32 B change places.
        """
        lines, wide, piece = extent, self.d.tile_k, self.piece
        if operand.axes[-1] != "k":
            lines, wide = wide, lines
            piece = piece if self.each > 1 else 2 * piece
        return Buffer(
            f"smem_{operand.name}", "smem", operand.dtype, (lines, wide), (wide, 1),
            self.d.stages, lines * wide, _swizzle(wide, piece, _BANKS * self.each),
        )  # fmt: skip

    def program(self) -> Program:
        """Return the term: its buffers are those that its statements use."""
        d = self.d
        body = (*self.enter(), self.main(), *self.leave())
        used = {access.buffer.name: access.buffer for access in accesses_of(body)}
        tiles = value("k").ceildiv(Constant(d.tile_k))
        return Program(
            name="ampere_matmul",
            operation=self.operation,
            buffers=tuple({**self.gmem, **used}.values()),
            parameters=(
                *((f"ld_{o.name}", value(o.axes[-1])) for o in (self.a, self.b, self.c)),
                ("trips", tiles.ceildiv(Constant(d.split_k))),
                ("chunk", value("trips") * Constant(d.tile_k)),
            ),
            grid=(
                Axis("bz", Constant(d.split_k)),
                Axis("bm", value("m").ceildiv(Constant(d.tile_m))),
                Axis("bn", value("n").ceildiv(Constant(d.tile_n))),
            ),
            roles=(Role("all", self.warps, body),),
            raster=d.raster,
            zeroed=d.combine == "red",
            guards=d.guards,
            ctas_per_sm=d.ctas_per_sm,
        )

    def enter(self) -> tuple[Statement, ...]:
        """Clear the sums; load all stages but one; read the first slice of the first."""
        d = self.d
        held = Access(self.sums, ((0, 0, 1), (0, 1, 0), (1, 0, 0)))
        values = (4, self.blocks_n, self.blocks_m)
        zero = Do(INSTRUCTIONS["mov"], held, (Immediate(0.0),), values)
        fill = (When(var("kt"), "trips", self.load(0)), Commit())
        ready = When(var("kt"), "trips", self.read(Affine(), 0))
        first = For("kt", 1, (ready,), unrolled=True)
        fills = For("kt", d.stages + -1, fill, unrolled=True)
        return (zero, fills, WaitGroup(d.stages + -2), Sync(), first)

    def main(self) -> For:
        """Return the loop over k.

        All threads have read the last of the tile before when they pass the loop's barrier, so the
        next iteration may load into its stage.  It does between a slice's reading and multiplying:
        copies to shared memory keep reads from moving up past them.
        """
        d, last = self.d, self.slices + -1
        step = (*self.read(var("s") + 1, 0), self.multiply(var("s")))
        more = When(var("kt") + 1, "trips", self.read(Affine(), 1))
        body = (
            For("s", d.issue, step, unrolled=True),
            *self.read(Affine(d.issue + 1), 0),
            When(var("kt") + d.stages + -1, "trips", self.load(d.stages + -1)),
            Commit(),
            self.multiply(Affine(d.issue)),
            For("s", last, step, unrolled=True, start=d.issue + 1),
            WaitGroup(d.stages + -2),
            Sync(),
            more,
            self.multiply(Affine(last)),
        )
        return For("kt", "trips", body)

    def load(self, ahead: Any) -> tuple[Statement, ...]:
        """Copy the tiles of a and b that are ``ahead`` of this one into their stage."""
        return (
            self.copy(self.a, self.row, self.d.tile_m, ahead),
            self.copy(self.b, self.column, self.d.tile_n, ahead),
        )

    def copy(self, operand: Operand, first: Affine, extent: Any, ahead: Any) -> Do:
        """Copy a tile: threads side by side along the contiguous dimension, then across."""
        d = self.d
        by_k = operand.axes[-1] == "k"
        wide, lines = (d.tile_k, extent) if by_k else (extent, d.tile_k)
        piece = self.piece
        pieces = wide // piece
        side = select(pieces < self.warps, pieces, self.warps)
        rows = self.warps // side
        values = (piece, pieces // side, lines // rows)
        steps = ((0, 1), (0, side * piece), (rows, 0))
        threads = ((0, piece), (1, 0))
        k = self.k + ahead * d.tile_k
        origin = (first, k) if by_k else (k, first)
        guard = (d.edges == "guard",) * 2
        source = Access(self.gmem[operand.name], steps, threads, origin, guard=guard)
        target = Access(self.smem[operand.name], steps, threads, index=var("kt") + ahead)
        copy = INSTRUCTIONS["cp.async"]
        return Do(copy, target, (source,), values, (side, rows), piece)

    def read(self, at: Affine, ahead: int) -> tuple[Statement, ...]:
        """Read slice ``at`` of the tile that is ``ahead`` of this one, of a and of b."""
        return (
            self.slice(self.a, "a", at, ahead),
            self.slice(self.b, "b", at, ahead),
        )

    def slice(self, operand: Operand, name: str, at: Affine, ahead: int) -> Do:
        """Read one slice of an input: all blocks of this warp's rows or columns."""
        by_k, each = operand.axes[-1] == "k", self.each

        def place(mn: Any, k: Any) -> tuple[Any, Any]:
            return (mn, k) if by_k else (k, mn)

        pair, half_k = place(0, 1), place(0, 4 * each)
        values: tuple[Any, ...]
        steps: tuple[tuple[Any, Any], ...]
        held: tuple[tuple[int, int], ...]
        if name == "a":
            values = (each, 2, 2, self.blocks_m)
            steps = (pair, place(8, 0), half_k, place(self.far, 0))
            held = ((0, 1), (0, each), (0, 2 * each), (1, 0))
            warps = (place(0, 0), place(_BLOCK_M, 0))
        else:
            values = (each, 2, self.blocks_n)
            steps = (pair, half_k, place(_BLOCK_N, 0))
            held = ((0, 1), (0, each), (1, 0))
            warps = (place(self.warp_n, 0), place(0, 0))
        source = Access(
            self.smem[name],
            steps,
            (place(0, each), place(1, 0), *warps),
            place(Affine(), at * self.depth),
            var("kt") + ahead,
        )
        index = var("kt", self.slices) + ahead * self.slices + at
        target = Access(self.fragments[name], held, ((0, 0),) * 4, index=index)
        if not by_k and each == 1:
            return Do(INSTRUCTIONS["ld.shared"], target, (source,), values, self.lanes)
        how, vector = ("", each) if by_k else ("trans", 1)
        return Do(
            INSTRUCTIONS["ldmatrix"], target, (source,), values, self.lanes, vector, variant=how
        )

    def multiply(self, at: Affine) -> Do:
        """Add the products of one slice: each block of rows with each block of columns."""
        index = var("kt", self.slices) + at
        each, pair = self.each, self.each - 1  # elements that are not in pairs serve both sums
        of_a = ((0, pair), (0, each), (0, 2 * each), (0, 0), (1, 0))
        of_b = ((0, pair), (0, 0), (0, each), (1, 0), (0, 0))
        a = Access(self.fragments["a"], of_a, index=index)
        b = Access(self.fragments["b"], of_b, index=index)
        sums = Access(self.sums, ((0, 0, 1), (0, 0, 2), (0, 0, 0), (0, 1, 0), (1, 0, 0)))
        values = (2, 2, 2, self.blocks_n, self.blocks_m)
        return Do(INSTRUCTIONS["mma.sync"], sums, (a, b, sums), values, variant="fma")

    def leave(self) -> tuple[Statement, ...]:
        """Store the sums, rounded to c's type, or add them to c: block by block of rows."""
        d = self.d
        if self.operation.epilogue != ACC:
            return self.fused()
        held, values = self.sums, (4, self.blocks_n, self.blocks_m)
        rounding: tuple[Statement, ...] = ()
        if self.c.dtype != "f32":
            held = registers("rounded", self.c.dtype, self.blocks_m, self.blocks_n, 4)
            steps = ((0, 0, 1), (0, 1, 0), (1, 0, 0))
            write, read = Access(held, steps), Access(self.sums, steps)
            rounding = (Do(INSTRUCTIONS["cvt"], write, (read,), values),)
        if d.epilogue == "direct":
            store = INSTRUCTIONS["st.global" if d.combine == "st" else "red.global"]
            every = (2, 2, self.blocks_n, self.blocks_m)
            places = ((0, 0, 1), (0, 0, 2), (0, 1, 0), (1, 0, 0))
            source = Access(held, places, ((0, 0, 0),) * 4)
            along = (*_PLACES, (self.far, 0))
            out = self.output(along, self.fragment_threads(), Affine())
            return (*rounding, Do(store, out, (source,), every, self.lanes, d.vector_c))
        block = For("block", self.blocks_m, self.staged(held), unrolled=True)
        return (*rounding, block)

    def fused(self) -> tuple[Statement, ...]:
        """Make c of a block of each warp's rows, and store it: no more registers at a time."""
        d, block = self.d, var("block")
        values = (2, 2, self.blocks_n)
        steps = ((0, 0, 1), (0, 0, 2), (0, 1, 0))
        acc = Access(self.sums, steps, origin=(block, Affine(), Affine()))
        result = registers("result", self.c.dtype, 1, self.blocks_n, 4)
        reads: dict[str, Access | Scalar] = {"acc": acc}
        loads: tuple[Statement, ...] = ()
        for bias in self.operation.inputs[2:]:
            held = registers("held_bias", bias.dtype, self.blocks_n, 2)
            source = Access(
                self.gmem[bias.name], ((1,), (_BLOCK_N,)), ((2,), (0,), (self.warp_n,), (0,)),
                (self.column,), guard=(d.edges == "guard",),
            )  # fmt: skip
            target = Access(held, ((0, 1), (1, 0)), ((0, 0),) * 4)
            vector = d.vector_c if d.epilogue == "direct" else 2
            load = INSTRUCTIONS["ld.global"]
            loads = (Do(load, target, (source,), (2, self.blocks_n), self.lanes, vector),)
            reads[bias.name] = Access(held, ((0, 1), (0, 0), (1, 0)))
        made = compute(self.operation.epilogue, reads, Access(result, steps), values=values)
        if d.epilogue == "smem":
            stored = self.staged(result, Affine())
        else:
            source = Access(result, steps, ((0, 0, 0),) * 4)
            out = self.output(_PLACES, self.fragment_threads(), var("block", self.far))
            store = INSTRUCTIONS["st.global"]
            stored = (Do(store, out, (source,), values, self.lanes, d.vector_c),)
        return (For("block", self.blocks_m, (*loads, *made, *stored), unrolled=True),)

    def staged(self, held: Buffer, row: Affine | None = None) -> tuple[Statement, ...]:
        """Store a block of each warp's rows through shared memory, in whole lines.

        ``row``: which block of what is held, the loop's own unless it is given.
        """
        d, block = self.d, var("block")
        mine = block if row is None else row
        width = DTYPES[self.c.dtype].bytes
        stage = Buffer(
            "smem_c", "smem", self.c.dtype, (self.far, d.tile_n), (d.tile_n, 1), 2,
            self.far * d.tile_n, _swizzle(d.tile_n, 16 // width, _BANKS * 4 // width),
        )  # fmt: skip
        source = Access(
            held, ((0, 0, 1), (0, 0, 2), (0, 1, 0)), ((0, 0, 0),) * 4,
            (mine, Affine(), Affine()),
        )  # fmt: skip
        put = Access(stage, _PLACES, self.fragment_threads(), index=block)
        pieces = d.tile_n // d.vector_c
        side = select(pieces < self.warps, pieces, self.warps)
        rows = self.warps // side
        values = (d.vector_c, pieces // side, self.far // rows)
        steps = ((0, 1), (0, side * d.vector_c), (rows, 0))
        threads = ((0, d.vector_c), (1, 0))
        line = registers("line", self.c.dtype, *reversed(values))
        places, still = ((0, 0, 1), (0, 1, 0), (1, 0, 0)), ((0, 0, 0),) * 2
        take = Access(stage, steps, threads, index=block)
        keep = Access(line, places, still, index=block)
        out = self.output(steps, threads, var("block", self.far))
        shape, vector = (side, rows), d.vector_c
        return (
            Do(INSTRUCTIONS["st.shared"], put, (source,), (2, 2, self.blocks_n), self.lanes, 2),
            Sync(),
            Do(INSTRUCTIONS["ld.shared"], keep, (take,), values, shape, vector),
            Do(INSTRUCTIONS["st.global"], out, (keep,), values, shape, vector),
        )

    def fragment_threads(self) -> tuple[tuple[Any, Any], ...]:
        """Return how far a step of each thread mode goes in the tile of c."""
        return ((0, 2), (1, 0), (0, self.warp_n), (_BLOCK_M, 0))

    def output(
        self,
        steps: tuple[tuple[Any, Any], ...],
        threads: tuple[tuple[Any, Any], ...],
        row: Affine,
    ) -> Access:
        """Return an access to c, ``row`` rows into this CTA's tile."""
        origin = (self.row + row, self.column)
        guard = (self.d.edges == "guard",) * 2
        return Access(self.gmem[self.c.name], steps, threads, origin, guard=guard)


def _swizzle(wide: Any, piece: int, line: int) -> tuple[Any, int, Any]:
    """Return the swizzle of rows of ``wide`` elements: pieces by the number of the row.

    Rows of a ``line`` (128 B) and more have all its pieces change places; of shorter rows those of
    the two or four rows that share a line take turns.
    """
    base, most = piece.bit_length() - 1, (line // piece).bit_length() - 1
    bits = sum((wide >= piece << i) * 1 for i in range(1, most + 1))
    doublings = sum((wide >= piece << i) * 1 for i in range(1, 9))
    return bits, base, select(doublings > most, doublings, most)
