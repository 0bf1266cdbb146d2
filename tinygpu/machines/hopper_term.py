"""The term of the machine ``hopper``: one producer, and consumers that multiply and store.

The product has rows and columns: those of c, or with ``swap`` its columns and rows, so that a small
m can be the columns.  ``x`` is the input that has the rows, ``y`` the one that has the columns.

    producer     for each tile, for each k: wait for an empty stage, expect its bytes, load x and y
    consumers    for each tile, for each k: wait for a full stage, multiply, release an older stage;
                 then round, write to shared memory or straight to c, and store

Consumers share a tile's rows ("cooperative") or take tiles in turn ("pingpong"), in which case one
multiplies while the other stores.  Loading is what ``tensor_term.py`` says.  With ``cluster_k``
above 1 CTAs share a tile's k: ``hopper_parts.py``.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS
>>> from tinygpu.term.operation import matmul
>>> HopperTerm(matmul("bf16", layout="nt"), Chosen(STARTS["plain"])).program().barriers[0].name
'full'

Source: PTX ISA 9, "Asynchronous Warpgroup Level Matrix Instructions" and "Tensors"; CUTLASS 3.
"""

from __future__ import annotations

from typing import Any

from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.machines.hopper_parts import add_parts
from tinygpu.machines.tensor_term import ROW_BYTES, TensorTerm, swizzle_of, width
from tinygpu.term.arithmetic import compute
from tinygpu.term.expression import Constant, Expression, value
from tinygpu.term.operation import ACC, Operation
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
    Scalar,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    registers,
    select,
    var,
)

__all__ = ["ROW_BYTES", "HopperTerm"]

_WARP, _WARPGROUP = 32, 128
_BLOCK = 64  # spec: the rows of one wgmma


class HopperTerm(TensorTerm):
    """One term in the making: what its parts have in common; ``d`` has the decisions."""

    trims = True

    def __init__(self, operation: Operation, d: Any) -> None:
        super().__init__(operation, d, swap=d.swap, rows_here=d.tile_m, columns_here=d.tile_n)
        self.taking_turns = d.consume == "pingpong"
        self.rows = d.tile_m if self.taking_turns else d.tile_m // d.consumers
        release = select(self.taking_turns, 1, d.consumers) * d.cluster_m * d.cluster_n
        # a warp is enough, but registers can be given away by whole warpgroups only
        self.loaders = select(d.consumers > 1, _WARPGROUP, _WARP)
        self.full = Barrier("full", d.stages, 1)
        self.empty = Barrier("empty", d.stages, release)
        self.turn = Barrier("turn", d.consumers, 1)
        self.sums = registers("sums", "f32", self.rows, d.tile_n, fragment="wgmma")
        self.first_row = var("br", d.tile_m * d.cluster_m) + var("rank_m", d.tile_m)
        self.first_column = var("bc", d.tile_n * d.cluster_n) + var("rank_n", d.tile_n)
        self.own_row = var("w", 0 if self.taking_turns else self.rows)
        self.shared_k = d.cluster_k > 1
        self.receivers = "rank_m rank_n" if self.shared_k else "cluster"  # of what a CTA loads
        if self.shared_k:
            self.k = self.k + var("rank_k", "share")

    def program(self) -> Program:
        """Return the term: its buffers are those that its statements use."""
        d = self.d
        store, staged = self.store()
        if self.shared_k:
            store, parts = add_parts(self.sums, store, d)
            staged = (*parts, *staged)
        consumer = self.consumer(store)
        buffers = (*self.gmem.values(), self.smem_x, self.smem_y, *staged, self.sums)
        along_k = (("rank_k", d.cluster_k),) if self.shared_k else ()
        barriers = (self.full, self.empty, *((self.turn,) if self.taking_turns else ()))
        return Program(
            name="hopper_matmul",
            operation=self.operation,
            buffers=buffers,
            parameters=self.parameters(),
            grid=self.grid(d.tile_m * d.cluster_m, d.tile_n * d.cluster_n),
            roles=(
                Role("consumer", _WARPGROUP, consumer, d.consumers, "w", self.registers()[1]),
                Role("producer", self.loaders, self.producer(), 1, "p", self.registers()[0]),
            ),
            raster=d.raster,
            ctas_per_sm=d.ctas_per_sm,
            barriers=barriers,
            cluster=(("rank_m", d.cluster_m), ("rank_n", d.cluster_n), *along_k),
            persistent=d.persistent,
            early=d.early,
        )

    def parameters(self) -> tuple[tuple[str, Expression], ...]:
        """Return the leading dimensions and the steps; of shared k also a CTA's part of it."""
        if not self.shared_k:
            return super().parameters()
        d = self.d
        steps = value("k").ceildiv(Constant(d.tile_k)).ceildiv(Constant(d.cluster_k))
        others = tuple(p for p in super().parameters() if p[0] != "trips")
        return (*others, ("trips", steps), ("share", value("trips") * Constant(d.tile_k)))

    def registers(self) -> tuple[Any, Any]:
        """Return the registers of a producer's and of a consumer's thread; 0: as they come."""
        few, many = self.d.consumers == 3, (self.d.consumers > 1) & (self.d.ctas_per_sm == 1)
        return select(many, select(few, 32, 40), 0), select(many, select(few, 160, 232), 0)

    def consumer(self, store: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Multiply, then store.

        With shared k the barrier before the parts are added is the cluster's last: after it nobody
        touches another CTA.
        """
        d = self.d
        behind = d.in_flight
        last = var("t", "trips") + var("trips") + -1
        done = Elect((Arrive(self.empty, self.n + -1 * behind, to=self.receivers),))
        step = (
            Wait(self.full, self.n),
            Fence("wgmma"),
            *self.multiply(),
            Commit("wgmma"),
            WaitGroup(behind, "wgmma"),
            When(var("k", -1) + behind, 1, (done,)),
        )
        rest = Elect((Arrive(self.empty, last + var("j", -1), to=self.receivers),))
        tile = (
            *((Wait(self.turn, var("t") + -1),) if self.taking_turns else ()),
            For("k", "trips", step),
            *(self.give_turn() if self.taking_turns else ()),
            WaitGroup(0, "wgmma"),
            For("j", behind, (When(var("j"), "trips", (rest,)),), unrolled=True),
            *store,
        )
        if self.taking_turns:
            tiles = ForTile("t", "i", tile, var("w"), d.consumers)
        else:
            tiles = ForTile("t", "i", tile)
        end = (Elect((WaitGroup(0, "bulk", read=True),)),) if d.epilogue == "tma" else ()
        return (tiles, *end, *(() if self.shared_k else (Sync(scope="cluster"),)))

    def give_turn(self) -> tuple[Statement, ...]:
        """Let the next consumer multiply, once all threads of this one have had their turn.

        Without the barrier some may still have to wait for it, if no group of products is done yet
        (trips <= in_flight), when the next consumer gives it back.
        """
        return (Sync(1, "role"), Elect((Arrive(self.turn, var("t")),)))

    def multiply(self) -> tuple[Statement, ...]:
        """Add the products of one stage: for each slice of k, for each 64 rows."""
        d = self.d
        row = self.own_row + var("block", _BLOCK)
        wide = d.tile_n if self.y.axes[-1] == "k" else self.inner  # columns of one slab
        values = (self.slice, wide, d.tile_n // wide, _BLOCK)
        slab, within = var("slab"), var("slice", self.slice)
        x_origin: tuple[Affine, ...]
        y_origin: tuple[Affine, ...]
        if self.x.axes[-1] == "k":
            x_steps = ((0, 1, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0))
            x_origin = (row, within, slab)
        else:
            x_steps = ((1, 0, 0), (0, 0, 0), (0, 0, 0), (0, 1, 0))
            blocks = var("w", 0 if self.taking_turns else self.rows // _BLOCK) + var("block")
            x_origin = (var("slab", self.inner) + within, Affine(), blocks)
        if self.y.axes[-1] == "k":
            y_steps = ((0, 1, 0), (1, 0, 0), (wide, 0, 0), (0, 0, 0))
            y_origin = (Affine(), within, slab)
        else:
            y_steps = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))
            y_origin = (var("slab", self.inner) + within, Affine(), Affine())
        sums = Access(
            self.sums,
            ((0, 0), (0, 1), (0, wide), (1, 0)),
            origin=(var("block", _BLOCK), Affine()),
            index=var("i"),
        )
        product = Do(
            INSTRUCTIONS["wgmma"],
            sums,
            (
                Access(self.smem_x, x_steps, origin=x_origin, index=self.n),
                Access(self.smem_y, y_steps, origin=y_origin, index=self.n),
                sums,
            ),
            values,
            variant="fma",
            fresh=var("k") + slab + var("slice"),
        )
        blocks_loop = For("block", self.rows // _BLOCK, (product,), unrolled=True)
        slices = For("slice", self.inner // self.slice, (blocks_loop,), unrolled=True)
        return (For("slab", self.slabs, (slices,), unrolled=True),)

    def store(self) -> tuple[tuple[Statement, ...], tuple[Buffer, ...]]:
        """Return the statements that store a tile's sums, and the buffers that they need.

        The tile goes in chunks of ``store_n`` columns; transposed, of 64 rows too.
        """
        d = self.d
        rows = _BLOCK if d.swap else self.rows
        chunks = d.tile_n // d.store_n
        ordinal = var("i", chunks * (self.rows // rows)) + var("block", chunks) + var("chunk")
        row, column = var("block", rows), var("chunk", d.store_n)
        values = (d.store_n, rows)
        plain = ((0, 1), (1, 0))
        turned = ((1, 0), (0, 1))
        sums = Access(self.sums, plain, origin=(row, column), index=var("i"))
        at = {self.row_axis: self.first_row + self.own_row + row,
              self.column_axis: self.first_column + column}  # fmt: skip
        body, buffers, held = self.finish(sums, ordinal, at, values)
        place = tuple(at[axis] for axis in ("m", "n"))
        steps = turned if d.swap else plain
        if d.epilogue == "direct":
            out = self.outside(self.c, steps, place)
            vector = 1 if d.swap else 2
            body = (*body, Do(INSTRUCTIONS["st.global"], out, (held,), values, vector=vector))
        else:
            wide, high = (rows, d.store_n) if d.swap else (d.store_n, rows)
            each = width(self.c.dtype)
            staged = Buffer(
                "smem_c", "smem", self.c.dtype, (high, wide), (wide, 1), d.store_stages,
                high * wide, swizzle_of(wide * each, each), copies=d.consumers,
            )  # fmt: skip
            write = Access(staged, steps, index=ordinal)
            read = Access(staged, plain, index=ordinal)
            out = self.outside(self.c, plain, place)
            move = INSTRUCTIONS["stmatrix" if width(self.c.dtype) == 2 else "st.shared"]
            send = INSTRUCTIONS["cp.async.bulk.tensor.global"]
            body = (
                Elect((WaitGroup(d.store_stages + -1, "bulk", read=True),)),
                Sync(1, "role"),
                *body,
                Do(move, write, (held,), values, variant="trans" if d.swap else ""),
                Fence("proxy.async"),
                Sync(1, "role"),
                Elect((Do(send, out, (read,), (wide, high)), Commit("bulk"))),
            )
            buffers = (*buffers, staged)
        loop = For("chunk", chunks, body, unrolled=True)
        return (For("block", self.rows // rows, (loop,), unrolled=True),), buffers

    def finish(
        self, sums: Access, ordinal: Affine, at: dict[str, Affine], values: tuple[Any, Any]
    ) -> tuple[tuple[Statement, ...], tuple[Buffer, ...], Access]:
        """Return what turns a chunk of sums into a chunk of c, its buffers, and the result.

        ``at`` has the first row and column of the chunk by the name of the axis.
        """
        operation, plain = self.operation, ((0, 1), (1, 0))
        columns, rows = values
        if self.c.dtype == "f32" and operation.epilogue == ACC:
            return (), (), sums

        def tile(name: str, dtype: str) -> Access:
            held = registers(name, dtype, rows, columns, fragment="wgmma")
            return Access(held, plain, index=ordinal)

        result = tile("rounded", self.c.dtype)
        if operation.epilogue == ACC:
            return (Do(INSTRUCTIONS["cvt"], result, (sums,), values),), (result.buffer,), result
        reads: dict[str, Access | Scalar] = {n: Scalar(n) for n in operation.scalars}
        reads["acc"] = sums
        loads: list[Statement] = []
        for operand in operation.inputs:
            if operand.name in operation.combine.names():
                continue
            held = tile(f"held_{operand.name}", operand.dtype)
            along = (self.column_axis, self.row_axis)
            source = Access(
                self.gmem[operand.name],
                tuple(tuple(int(axis == mine) for mine in operand.axes) for axis in along),
                origin=tuple(at.get(axis, var("bl")) for axis in operand.axes),
                guard=(True,) * len(operand.axes),
            )
            vector = 2 if operand.axes[-1] == self.column_axis else 1
            load = INSTRUCTIONS["ld.global"]
            loads.append(Do(load, held, (source,), values, vector=vector))
            reads[operand.name] = held
        made = compute(operation.epilogue, reads, result, values=values, fragment="wgmma")
        used = {a.buffer.name: a.buffer for s in (*loads, *made) if isinstance(s, Do)
                for a in s.accesses if a.buffer.level == "registers"}  # fmt: skip
        del used[self.sums.name]
        return (*loads, *made), tuple(used.values()), result
