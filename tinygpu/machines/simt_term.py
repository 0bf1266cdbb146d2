"""The term of the machine ``simt``: a tile of c by loads, a loop over k, and stores.

The parts, in order: ``enter`` clears the sums, ``main`` walks k in one of three pipelines (none;
the next tile held in registers; ``cp.async`` into a ring of tiles), ``leave`` stores.  In the loop
a tile's ``fragment`` is read and its products added; ``load`` and ``deposit`` move tiles.

Threads count along four modes: the two of a warp's lanes, warps along n, warps along m.  Values
count along columns or rows within a chunk, then from chunk to chunk.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER
>>> from tinygpu.term.operation import matmul
>>> print(*map(str, SimtTerm(matmul(), Chosen(LADDER["naive"])).enter()), sep="; ")
exit if c[32*bm, 32*bn] is outside; sums = mov(0.0) x 1*1

Source: S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance".
"""

from __future__ import annotations

from typing import Any

from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import Operand, Operation
from tinygpu.term.program import (
    Access,
    Affine,
    Axis,
    Buffer,
    Commit,
    Do,
    Exit,
    For,
    Immediate,
    Program,
    Role,
    Statement,
    Sync,
    WaitGroup,
    When,
    accesses_of,
    registers,
    select,
    var,
)

__all__ = ["SimtTerm", "turned"]


class SimtTerm:
    """One term in the making: what its parts have in common; ``d`` has the decisions."""

    def __init__(self, operation: Operation, d: Any) -> None:
        self.operation, self.d = operation, d
        a, b, c = operation.operands
        self.smem = {"a": d.a_from == "smem", "b": d.b_from == "smem"}
        self.by_k = {o.name: o.axes[-1] == "k" for o in (a, b)}
        self.turned = turned(operation, d)
        self.warp_m, self.lanes_n = d.lanes_m * d.thread_m, 32 // d.lanes_m
        self.warp_n = self.lanes_n * d.thread_n
        warps_m, warps_n = d.tile_m // self.warp_m, d.tile_n // self.warp_n
        # none where a requirement fails: 1, so that the term's other numbers stay plain
        self.warps_m, self.warps_n = (
            select(warps_m > 0, warps_m, 1),
            select(warps_n > 0, warps_n, 1),
        )
        self.threads = 32 * self.warps_m * self.warps_n
        self.by_m = d.order == "m"
        self.lanes = (
            select(self.by_m, d.lanes_m, self.lanes_n),
            select(self.by_m, self.lanes_n, d.lanes_m),
            self.warps_n,
            self.warps_m,
        )
        self.along_k = {name: self.by_k[name] != self.turned[name] for name in self.by_k}
        self.chunk_m, self.chunk_n = (
            1 if self.along_k[name] else d.vector_shared for name in ("a", "b")
        )
        self.steps = d.tile_k // d.k_step
        sum_type = "f32" if d.accumulator == "f32" else "f64"
        self.product = "f64" if d.accumulator == "f64" else "f32"
        self.gmem = {
            o.name: Buffer(o.name, "gmem", o.dtype, o.axes, (f"ld_{o.name}", 1)) for o in (a, b, c)
        }
        self.tiles = {"a": self.tile(a, d.tile_m, d.pad_a), "b": self.tile(b, d.tile_n, d.pad_b)}
        self.a = registers("a_fragment", a.dtype, d.k_step, d.thread_m)
        self.b = registers("b_fragment", b.dtype, d.k_step, d.thread_n)
        self.wide_a = registers("a_wide", self.product, d.k_step, d.thread_m)
        self.wide_b = registers("b_wide", self.product, d.k_step, d.thread_n)
        self.sums = registers("sums", sum_type, d.thread_m, d.thread_n)
        self.products = registers("products", "f32", d.k_step, d.thread_m, d.thread_n)
        self.widened = registers("widened", "f64", d.k_step, d.thread_m, d.thread_n)
        self.rounded = registers("rounded", c.dtype, d.thread_m, d.thread_n)
        self.k = var("bz", "chunk") + var("kt", d.tile_k)

    def place(self, name: str, mn: Any, k: Any) -> tuple[Any, Any]:
        """Return a coordinate of an input, by m (of b: n) and k, in the order of its dimensions."""
        return (mn, k) if self.by_k[name] else (k, mn)

    def tile(self, operand: Operand, extent: Any, pad: Any) -> Buffer:
        """Return an input's tiles in shared memory: lines along k or across it, padded."""
        d, name = self.d, operand.name
        along, lines = (d.tile_k, extent) if self.along_k[name] else (extent, d.tile_k)
        pitch = along + pad
        strides = self.place(name, pitch, 1) if self.along_k[name] else self.place(name, 1, pitch)
        swizzle = _swizzle(d) if name == "a" and self.along_k[name] else (0, 0, 0)
        return Buffer(
            f"smem_{name}", "smem", operand.dtype, self.place(name, extent, d.tile_k), strides,
            d.stages, pitch * lines, swizzle,
        )  # fmt: skip

    def program(self) -> Program:
        """Return the term: its buffers are those that its statements use."""
        d = self.d
        ceil_k = value("k").ceildiv(Constant(d.tile_k))
        body = (*self.enter(), *self.main(), *self.leave())
        used = {access.buffer.name: access.buffer for access in accesses_of(body)}
        return Program(
            name="simt_matmul",
            operation=self.operation,
            buffers=tuple({**self.gmem, **used}.values()),
            parameters=(
                *((f"ld_{o.name}", value(o.axes[-1])) for o in self.operation.operands),
                ("trips", ceil_k.ceildiv(Constant(d.split_k))),
                ("chunk", value("trips") * Constant(d.tile_k)),
            ),
            grid=(
                Axis("bz", Constant(d.split_k)),
                Axis("bm", value("m").ceildiv(Constant(d.tile_m))),
                Axis("bn", value("n").ceildiv(Constant(d.tile_n))),
            ),
            roles=(Role("all", self.threads, body),),
            raster=d.raster,
            specialised=d.specialised,
            zeroed=d.combine == "red",
            addressing=d.addressing,
            guards=d.guards,
            ctas_per_sm=d.ctas_per_sm,
        )

    def enter(self) -> tuple[Statement, ...]:
        """Let threads that have nothing to do leave; clear the sums of the others."""
        d = self.d
        zero = Do(
            INSTRUCTIONS["mov"],
            Access(self.sums, ((0, 1), (1, 0))),
            (Immediate(0.0),),
            (d.thread_n, d.thread_m),
        )
        if d.edges != "return":
            return (zero,)
        c, values = self.output()
        return (Exit(c, values, self.lanes), zero)

    def main(self) -> tuple[Statement, ...]:
        """Return the loop over k, with what its pipeline needs before it."""
        d = self.d
        inside = 0 if d.pipeline == "none" else d.issue
        first = For("kk", inside, self.fragment(), unrolled=True)
        rest = For("kk", self.steps, self.fragment(), unrolled=True, start=inside)
        if d.pipeline == "none":
            loads = self.load(0)
            sync = (Sync(),) if loads else ()
            return (For("kt", "trips", (*loads, *self.deposit(0), *sync, rest, *sync)),)
        if d.pipeline == "register":
            ahead, more = 1, var("kt") + 1
            enter = (When(more + -1, "trips", (*self.load(0), *self.deposit(0))), Sync())
            loop: tuple[Statement, ...] = (
                first,
                When(more, "trips", self.load(ahead)),
                rest,
                When(more, "trips", self.deposit(ahead)),
                Sync(),
            )
            return (For("kt", 1, enter, unrolled=True), For("kt", "trips", loop))
        ahead = d.stages + -1
        fill = (When(var("kt"), "trips", self.load(0)), Commit())
        loop = (
            WaitGroup(d.stages + -2),
            Sync(),
            first,
            When(var("kt") + ahead, "trips", self.load(ahead)),
            Commit(),
            rest,
        )
        return (For("kt", ahead, fill, unrolled=True), For("kt", "trips", loop))

    def load(self, ahead: int) -> tuple[Statement, ...]:
        """From global memory, ``ahead`` tiles from this one: to registers, or by cp.async."""
        return tuple(self.copy(x, ahead)[0] for x in self.through_smem())

    def deposit(self, ahead: int) -> tuple[Statement, ...]:
        """From registers to shared memory."""
        if self.d.pipeline == "cp.async":
            return ()
        return tuple(self.copy(x, ahead)[1] for x in self.through_smem())

    def through_smem(self) -> tuple[str, ...]:
        """Return the inputs that come through shared memory."""
        return tuple(name for name, smem in self.smem.items() if smem)

    def copy(self, operand: str, ahead: int) -> tuple[Statement, ...]:
        """Move a tile: threads side by side along the contiguous dimension, then across."""
        d = self.d
        is_a, smem = operand == "a", self.tiles[operand]
        vector = d.vector_a if is_a else d.vector_b
        across, along = self.place(operand, d.tile_m if is_a else d.tile_n, d.tile_k)
        vectors = along // vector
        side = select(vectors < self.threads, vectors, self.threads)
        rows = self.threads // side
        values = (vector, vectors // side, across // rows)
        threads = (side, rows)

        def steps(inner: int, outer: int) -> tuple[int, int]:
            return (outer, inner)  # both tiles have their contiguous dimension last

        value_steps = (steps(1, 0), steps(side * vector, 0), steps(0, rows))
        thread_steps = (steps(vector, 0), steps(0, 1))
        k = self.k + ahead * d.tile_k
        first = var("bm", d.tile_m) if is_a else var("bn", d.tile_n)
        origin = self.place(operand, first, k)
        source = Access(
            self.gmem[operand], value_steps, thread_steps, origin, guard=self.guard(operand)
        )
        index = var("kt") + ahead
        target = Access(smem, value_steps, thread_steps, index=index)
        if d.pipeline == "cp.async":
            do = Do(INSTRUCTIONS["cp.async"], target, (source,), values, threads, vector)
            return (do,)
        held = registers(f"{operand}_held", smem.dtype, *reversed(values))
        hold = Access(held, ((0, 0, 1), (0, 1, 0), (1, 0, 0)), ((0, 0, 0),) * 2, index=index)
        wide = 1 if self.turned[operand] else vector
        return (
            Do(INSTRUCTIONS["ld.global"], hold, (source,), values, threads, vector),
            Do(INSTRUCTIONS["st.shared"], target, (hold,), values, threads, wide),
        )

    def guard(self, operand: str) -> tuple[bool, bool]:
        """Return which dimensions of an operand may reach beyond its end."""
        d = self.d
        m = d.edges == "guard"
        k = (d.edges != "exact") & ((d.tile_k > 1) | (d.combine == "red"))
        return (m, m) if operand == "c" else self.place(operand, m, k)

    def fragment(self) -> tuple[Statement, ...]:
        """Read one fragment of a and of b, and add its products."""
        d = self.d
        index = var("kt", self.steps) + var("kk")
        lane_m, lane_n = self.lane_steps()
        return (
            self.read("a", self.a, (*lane_m, 0, self.warp_m), index),
            self.read("b", self.b, (*lane_n, self.warp_n, 0), index),
            *self.widen(self.a, self.wide_a, d.thread_m, index),
            *self.widen(self.b, self.wide_b, d.thread_n, index),
            *self.sum(index),
        )

    def lane_steps(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return how far each of a warp's two thread modes goes along m, and along n."""
        lane_m = (select(self.by_m, self.chunk_m, 0), select(self.by_m, 0, self.chunk_m))
        lane_n = (select(self.by_m, 0, self.chunk_n), select(self.by_m, self.chunk_n, 0))
        return lane_m, lane_n

    def read(self, name: str, held: Buffer, threads: tuple[Any, ...], index: Affine) -> Do:
        """Read a fragment of an input, from a tile in shared memory or from global memory."""
        d, kk, is_a = self.d, var("kk", self.d.k_step), name == "a"
        chunk, far, width = (
            (self.chunk_m, d.lanes_m * self.chunk_m, d.thread_m)
            if is_a
            else (self.chunk_n, self.lanes_n * self.chunk_n, d.thread_n)
        )
        values: Any = (chunk, width // chunk, d.k_step)
        steps: Any = (self.place(name, 1, 0), self.place(name, far, 0), self.place(name, 0, 1))
        places: Any = ((0, 1), (0, chunk), (1, 0))
        if self.along_k[name]:
            values = (d.k_step, width)
            steps = (self.place(name, 0, 1), self.place(name, far, 0))
            places = ((1, 0), (0, 1))
        write = Access(held, places, ((0, 0),) * 4, index=index)
        moves = tuple(self.place(name, step, 0) for step in threads)
        if self.smem[name]:
            at = self.place(name, Affine(), kk)
            source = Access(self.tiles[name], steps, moves, at, var("kt"))
            vector = d.k_step if self.along_k[name] else chunk
            return Do(INSTRUCTIONS["ld.shared"], write, (source,), values, self.lanes, vector)
        first = var("bm", d.tile_m) if is_a else var("bn", d.tile_n)
        at = self.place(name, first, self.k + kk)
        source = Access(self.gmem[name], steps, moves, at, guard=self.guard(name))
        vector = d.vector_a if is_a else d.vector_b
        return Do(INSTRUCTIONS["ld.global"], write, (source,), values, self.lanes, vector)

    def widen(self, narrow: Buffer, wide: Buffer, width: int, index: Any) -> tuple[Statement, ...]:
        """Convert a fragment to the type of the products, if it has another."""
        if narrow.dtype == wide.dtype:
            return ()
        steps = ((0, 1), (1, 0))
        write, read = Access(wide, steps, index=index), Access(narrow, steps, index=index)
        return (Do(INSTRUCTIONS["cvt"], write, (read,), (width, self.d.k_step)),)

    def sum(self, index: Any) -> tuple[Statement, ...]:
        """Add the products of the fragments: one fma, or mul, cvt and add."""
        d = self.d
        a = self.a if self.a.dtype == self.product else self.wide_a
        b = self.b if self.b.dtype == self.product else self.wide_b
        a_read = Access(a, ((0, 0), (0, 1), (1, 0)), index=index)
        b_read = Access(b, ((0, 1), (0, 0), (1, 0)), index=index)
        sums = Access(self.sums, ((0, 1), (1, 0), (0, 0)))
        values = (d.thread_n, d.thread_m, d.k_step)
        fma = INSTRUCTIONS["fma"]
        if d.accumulator != "f32+f64":
            return (Do(fma, sums, (a_read, b_read, sums), values, variant="fma"),)
        steps = ((0, 0, 1), (0, 1, 0), (1, 0, 0))
        product = Access(self.products, steps, index=index)
        widened = Access(self.widened, steps, index=index)
        return (
            Do(fma, product, (a_read, b_read), values, variant="mul"),
            Do(INSTRUCTIONS["cvt"], widened, (product,), values),
            Do(fma, sums, (sums, widened), values, variant="add"),
        )

    def output(self) -> tuple[Access, tuple[int, ...]]:
        """Where a thread's sums belong in c: values (columns, chunks, rows, chunks)."""
        d = self.d
        far_m, far_n = d.lanes_m * self.chunk_m, self.lanes_n * self.chunk_n
        c_steps = ((0, 1), (0, far_n), (1, 0), (far_m, 0))
        lane_m, lane_n = self.lane_steps()
        threads = (
            (lane_m[0], lane_n[0]),
            (lane_m[1], lane_n[1]),
            (0, self.warp_n),
            (self.warp_m, 0),
        )
        origin = (var("bm", d.tile_m), var("bn", d.tile_n))
        access = Access(self.gmem["c"], c_steps, threads, origin, guard=self.guard("c"))
        if d.edges == "return":
            access = Access(self.gmem["c"], c_steps, threads, origin, guard=(True, True))
        values = (
            self.chunk_n,
            d.thread_n // self.chunk_n,
            self.chunk_m,
            d.thread_m // self.chunk_m,
        )
        return access, values

    def leave(self) -> tuple[Statement, ...]:
        """Store the sums, rounded to c's type, or add them to c."""
        d = self.d
        c, values = self.output()
        places = ((0, 1), (0, self.chunk_n), (1, 0), (self.chunk_m, 0))
        source = self.sums
        convert: tuple[Statement, ...] = ()
        if self.sums.dtype != self.rounded.dtype:
            plain = ((0, 1), (1, 0))
            write, read = Access(self.rounded, plain), Access(self.sums, plain)
            convert = (Do(INSTRUCTIONS["cvt"], write, (read,), (d.thread_n, d.thread_m)),)
            source = self.rounded
        store = INSTRUCTIONS["st.global" if d.combine == "st" else "red.global"]
        held = Access(source, places, ((0, 0),) * 4)
        return (*convert, Do(store, c, (held,), values, self.lanes, d.vector_c))


def turned(operation: Operation, d: Any) -> dict[str, bool]:
    """Return which inputs lie in shared memory along the other dimension than in global memory."""
    return {
        o.name: source == "smem" and (layout[-1] == "k") != (o.axes[-1] == "k")
        for o, source, layout in zip(
            operation.inputs, (d.a_from, d.b_from), (d.a_layout, d.b_layout), strict=True
        )
    }


def _swizzle(d: Any) -> tuple[int, int, int]:
    """XOR the chunk of 4 elements (16 B of fp32) with the row, ``swizzle_a`` bits of it."""
    log_k = sum((d.tile_k >> i) > 1 for i in range(8))
    return (d.swizzle_a, 2, select(log_k - 2 < d.swizzle_a, d.swizzle_a, log_k - 2))
