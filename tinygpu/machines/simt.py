"""The machine ``simt``: a matmul by the ordinary cores of any NVIDIA GPU.

A CTA computes a tile of c: ``tile_m x tile_n``, in steps of ``tile_k`` along k.  Its warps stand in
a grid over the tile, the 32 lanes of a warp in a grid ``lanes_m x (32 / lanes_m)`` over the warp's
part, and a thread holds ``thread_m x thread_n`` sums.  A thread's rows and columns come in chunks
(``vector_shared`` wide) that lie a whole warp's chunk apart, so that neighbouring lanes read
neighbouring words.  Each input comes through shared memory or straight from global memory, where
either of its dimensions may be the contiguous one.

The known ladder of SGEMM kernels are points of this space (``LADDER``).  Source: S. Boehm, "How to
Optimize a CUDA Matmul Kernel for cuBLAS-like Performance"; CUTLASS, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.term.builder import Array, Held, Kernel, LoopIndex, Piece
from tinygpu.term.machine import Choice, Chosen, Machine, Requirement, Value, instructions
from tinygpu.term.operation import Operation
from tinygpu.term.program import select

__all__ = ["LADDER", "Simt"]


class Simt(Machine):
    """Matmul on the ordinary cores: fp32, fp16 or bf16 inputs, fp32 or fp64 sums."""

    name, entry = "simt", "simt_matmul"
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        "ld.global", "cp.async", "st.shared", "ld.shared", "fma", "cvt", "mov", "bar.sync",
        "st.global", "red.global",
    )  # fmt: skip
    numeric = True
    operations = ("matmul",)
    spread = ("tile_m", "tile_n", "thread_m", "thread_n", "a_layout", "pipeline", "split_k")
    in_order = MappingProxyType({"split_k": 1, "combine": "st", "accumulator": "f32"})
    dtypes = ("f64", "f32", "f16", "bf16")
    fuses = False

    tile_m = Choice(8, 16, 32, 64, 128, 256, meaning="rows of c a CTA computes")
    tile_n = Choice(8, 16, 32, 64, 128, 256, meaning="columns of c a CTA computes")
    tile_k = Choice(1, 4, 8, 16, 32, 64, meaning="steps of k between barriers")
    thread_m = Choice(1, 2, 4, 8, 16, meaning="rows a thread computes")
    thread_n = Choice(1, 2, 4, 8, 16, meaning="columns a thread computes")
    lanes_m = Choice(1, 2, 4, 8, 16, 32, meaning="lanes of a warp along m")
    order = Choice("n", "m", meaning="which way lanes count first")
    a_from = Choice("smem", "gmem", structural=True, meaning="where fragments of a come from")
    b_from = Choice("smem", "gmem", structural=True, meaning="where fragments of b come from")
    a_layout = Choice("km", "mk", structural=True, meaning="a in shared memory: m or k contiguous")
    b_layout = Choice(
        "kn", "nk", structural=True, before="kn", meaning="b in shared memory: n or k contiguous"
    )
    pad_a = Choice(0, 4, 8, meaning="elements added to each line of a in shared memory")
    pad_b = Choice(0, 4, 8, meaning="elements added to each line of b in shared memory")
    swizzle_a = Choice(0, 1, 2, 3, meaning="bits of XOR swizzle of a in shared memory")
    vector_a = Choice(1, 2, 4, 8, meaning="elements a thread moves at once from gmem, a")
    vector_b = Choice(1, 2, 4, 8, meaning="elements a thread moves at once from gmem, b")
    vector_shared = Choice(1, 2, 4, 8, meaning="elements read at once from shared memory")
    vector_c = Choice(1, 2, 4, meaning="elements stored at once")
    k_step = Choice(1, 2, 4, meaning="steps of k in a fragment")
    pipeline = Choice(
        "none", "register", "cp.async", "cp.async+ld.shared", structural=True,
        meaning="which loads overlap the sums",
    )  # fmt: skip
    stages = Choice(1, 2, 3, 4, 5, meaning="tiles of a and b in shared memory")
    issue = Choice(0, 1, 2, meaning="fragments summed before the next tile's loads issue")
    split_k = Choice(1, 2, 4, 8, 16, 32, 64, 128, 256, meaning="parts of k that CTAs share")
    combine = Choice("st", "red", structural=True, meaning="how sums reach c")
    accumulator = Choice(
        "f32", "f64", "f32+f64", structural=True, meaning="type of product and sum"
    )
    edges = Choice(
        "guard", "exact", "return", structural=True, meaning="what keeps threads inside the arrays"
    )
    guards = Choice(
        "each", "tile", before="each", meaning="what asks whether it is inside: accesses, or tiles"
    )
    raster = Choice(1, 2, 4, 8, 16, meaning="rows of tiles that CTAs visit together")
    addressing = Choice("pointer", "i32", "i64", meaning="how global addresses are made")
    specialised = Choice(0, 1, meaning="sizes in the code (1) or parameters (0)")
    ctas_per_sm = Choice(1, 2, 3, 4, 5, 6, 8, 16, meaning="CTAs that registers are limited for")

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        smem = (d.a_from == "smem", d.b_from == "smem")
        lanes_n = 32 // d.lanes_m
        across = turned(operation, d)
        by_k = {o.name: o.axes[-1] == "k" for o in operation.inputs}
        along_k = {name: by_k[name] != across[name] for name in by_k}
        return (
            Requirement(
                "warps_m",
                (d.tile_m % (d.lanes_m * d.thread_m)) == 0,
                "warps fill the tile along m: tile_m is a multiple of lanes_m * thread_m",
                "raise tile_m or lower lanes_m or thread_m",
            ),
            Requirement(
                "warps_n",
                (d.tile_n % (lanes_n * d.thread_n)) == 0,
                "warps fill the tile along n: tile_n is a multiple of (32 / lanes_m) * thread_n",
                "raise tile_n or lanes_m, or lower thread_n",
            ),
            Requirement(
                "k_steps",
                (d.tile_k % d.k_step) == 0,
                "fragments fill the tile along k: tile_k is a multiple of k_step",
                "raise tile_k or lower k_step",
            ),
            Requirement(
                "issue_inside",
                (d.issue * d.k_step < d.tile_k) & ((d.issue == 0) | (d.pipeline != "none")),
                "loads issue among a tile's fragments, and after some only in a pipeline",
                "choose issue 0",
            ),
            Requirement(
                "read_ahead",
                (d.pipeline != "cp.async+ld.shared")
                | (((d.issue + 1) * d.k_step < d.tile_k) & all(smem)),
                "fragments from shared memory are read before the sums of those before, and loads "
                "issue between",
                'lower issue or k_step, raise tile_k, or choose pipeline "cp.async"',
            ),
            Requirement(
                "split_red",
                (d.split_k > 1) == (d.combine == "red"),
                "parts of k meet by red, and only they do",
                'choose combine "red" exactly if split_k is more than 1',
            ),
            Requirement(
                "red_wide",
                d.combine == "st" or operation.output.dtype in ("f32", "f64"),
                "parts of k meet in an output of 32 bits or more: fewer round at every part",
                'choose combine "st", or an f32 output',
            ),
            Requirement(
                "chunks",
                (along_k["a"] or d.vector_shared <= d.thread_m)
                & (along_k["b"] or d.vector_shared <= d.thread_n),
                "a thread's rows and columns come in whole chunks of vector_shared",
                "lower vector_shared",
            ),
            Requirement(
                "turned",
                not any(across[name] and not by_k[name] for name in by_k),
                "k is contiguous in shared memory only where it is in global memory",
                'choose a_layout "km" or b_layout "kn"',
            ),
            Requirement(
                "unused",
                ((d.pad_a == 0) | smem[0])
                & ((d.swizzle_a == 0) | (smem[0] and d.a_layout == "mk"))
                & ((d.pad_a == 0) | (d.swizzle_a == 0))
                & (smem[0] or d.a_layout == "km")
                & (smem[1] or d.b_layout == "kn")
                & ((d.vector_shared == 1) | (not all(along_k.values())))
                & ((d.pad_b == 0) | smem[1])
                & (any(smem) or (d.pipeline == "none"))
                & ((d.guards == "each") | (d.edges != "exact" and all(smem)))
                & ((d.stages == 1) | (d.pipeline != "none"))
                & ((d.stages == 2) | (d.pipeline != "register")),
                "a decision about what the kernel does not have stays at its first value",
                "set pads, swizzles, layout and stages of an unused path to their first value",
            ),
        )

    def forward(self, k: Kernel) -> None:
        """Clear the sums; walk k in one of three pipelines; store."""
        a, b, c = k.arrays
        (acc,) = k.op.reductions
        self.declare(k)
        at = (
            "m = (bm tm), tm = (warp_m wm), wm = (far_m lane_m near_m),"
            "n = (bn tn), tn = (warp_n wn), wn = (far_n lane_n near_n),"
            "k = (bz kt tk), tk = (kk ks)"
        )
        if self.edges == "return":
            k.leave_outside(c[at])
        product = "f64" if self.accumulator == "f64" else "f32"
        sums = k.zeros("sums", "f32" if self.accumulator == "f32" else "f64", "row", "col")
        copies = [
            self.staged(k, x) for x, way in ((a, self.a_from), (b, self.b_from)) if way == "smem"
        ]
        tiles = {copy.x.name: copy.tile for copy in copies}

        def multiply(held: Mapping[str, Held]) -> None:
            """Add the products of a fragment of a and one of b."""
            wide = {x: k.cast(h, product, into=f"{x}_wide") for x, h in held.items()}
            if self.accumulator == "f32+f64":
                products = k.compute(acc.expression, wide, into="products")
                k.add(sums, k.cast(products, "f64", into="widened"))
            else:
                k.add(sums, acc.expression, wide)

        def fragments(step: LoopIndex, start: int = 0, stop: int | None = None) -> None:
            """Read one fragment of a and of b after another, and add its products."""
            for _ in k.unrolled("kk", self.tile_k // self.k_step, start=start, stop=stop):
                multiply({x.name: self.fragment(k, tiles.get(x.name, x)[step][at]) for x in (a, b)})

        if self.pipeline == "none" or not copies:
            for step in k.loop("kt"):
                for copy in copies:
                    copy.load(step)
                for copy in copies:
                    copy.deposit(step)
                if copies:
                    k.sync()
                fragments(step)
                if copies:
                    k.sync()
        elif self.pipeline == "register":  # the next tile is held in registers meanwhile
            for step in k.loop("kt", first=1):
                with k.when(step < step.count):
                    for copy in copies:
                        copy.load(step)
                    for copy in copies:
                        copy.deposit(step)
                k.sync()
            for step in k.loop("kt"):
                fragments(step, stop=self.issue)
                with k.when(step + 1 < step.count):
                    for copy in copies:
                        copy.load(step + 1)
                fragments(step, start=self.issue)
                with k.when(step + 1 < step.count):
                    for copy in copies:
                        copy.deposit(step + 1)
                k.sync()
        else:  # cp.async fills a ring of tiles
            ahead = self.stages - 1
            for step in k.loop("kt", first=ahead):
                with k.when(step < step.count):
                    for copy in copies:
                        copy.start(step)
                k.commit()

            def issue(step: LoopIndex) -> None:
                with k.when(step + ahead < step.count):
                    for copy in copies:
                        copy.start(step + ahead)
                k.commit()

            if self.pipeline == "cp.async":
                for step in k.loop("kt"):
                    k.wait_group("cp.async", ahead - 1)
                    k.sync()
                    fragments(step, stop=self.issue)
                    issue(step)
                    fragments(step, start=self.issue)
            else:  # and a fragment is read before the sums of the one before
                count = self.tile_k // self.k_step
                zero, last = k.digit("kk", count), count - 1
                ring = {
                    x.name: k.registers(f"{x.name}_fragment", x.dtype, digit, "ks", stages=2)
                    for x, digit in ((a, "row"), (b, "col"))
                }

                def read(step: LoopIndex, number: LoopIndex) -> None:
                    for x in (a, b):
                        part = tiles.get(x.name, x)[step][number][at]
                        self.fragment(k, part, ring[x.name][step, number])

                def multiplied(step: LoopIndex, number: LoopIndex) -> None:
                    multiply({x: held[step, number] for x, held in ring.items()})

                def walked(step: LoopIndex, start: int, stop: int) -> None:
                    for number in k.unrolled("kk", count, start=start, stop=stop):
                        read(step, number + 1)
                        multiplied(step, number)

                k.wait_group("cp.async", ahead - 1)
                k.sync()
                for step in k.loop("kt", first=1):
                    with k.when(step < step.count):
                        read(step, zero)
                for step in k.loop("kt"):
                    walked(step, 0, self.issue)
                    # reads do not move up past copies to shared memory
                    read(step, zero + self.issue + 1)
                    issue(step)
                    multiplied(step, zero + self.issue)
                    walked(step, self.issue + 1, last)
                    k.wait_group("cp.async", ahead - 1)
                    k.sync()
                    with k.when(step + 1 < step.count):
                        read(step + 1, zero)
                    multiplied(step, zero + last)
        k.store(c[at], sums, vector=self.vector_c, add=self.combine == "red")

    def declare(self, k: Kernel) -> None:
        """Say who counts what: CTAs tiles, warps and lanes parts of a tile, threads rows of it."""
        along_k, lanes_n = self.along_k(k.op), 32 // self.lanes_m
        k.launch(
            raster=self.raster, ctas_per_sm=self.ctas_per_sm, specialised=self.specialised,
            addressing=self.addressing, guards=self.guards,
        )  # fmt: skip
        k.grid(bz=self.split_k)
        k.grid("bm", "bn")
        k.tile(tm=self.tile_m, tn=self.tile_n, tk=self.tile_k)
        k.tile(wm=self.lanes_m * self.thread_m, wn=lanes_n * self.thread_n)
        # no warps where a requirement fails: 1, so that the term's other numbers stay plain
        warps_m = self.tile_m // (self.lanes_m * self.thread_m)
        warps_n = self.tile_n // (lanes_n * self.thread_n)
        k.threads(
            warp_m=select(warps_m > 0, warps_m, 1), warp_n=select(warps_n > 0, warps_n, 1),
            lane_m=self.lanes_m, lane_n=lanes_n, turned=self.order == "m",
        )  # fmt: skip
        k.values(ks=self.k_step, row=self.thread_m, col=self.thread_n)
        k.split("row", "far_m", near_m=1 if along_k["a"] else self.vector_shared)
        k.split("col", "far_n", near_n=1 if along_k["b"] else self.vector_shared)
        if self.edges != "guard":
            k.unguarded("m", "n")
        if self.edges == "exact":
            k.unguarded("k")

    def along_k(self, operation: Operation) -> dict[str, bool]:
        """Return which inputs are read along k: in shared memory, or else in global memory."""
        across = turned(operation, self)
        return {o.name: (o.axes[-1] == "k") != across[o.name] for o in operation.inputs}

    def fragment(self, k: Kernel, part: Piece, into: Held | None = None) -> Held:
        """Read a fragment, in vectors, from shared memory or from global memory."""
        along_k, name = self.along_k(k.op), part.array.name[-1]
        if part.array.buffer.level == "smem":
            vector = self.k_step if along_k[name] else self.vector_shared
        else:
            vector = self.vector_a if name == "a" else self.vector_b
        return k.load(part, vector=vector, into=into or f"{name}_fragment")

    def staged(self, k: Kernel, x: Array) -> TileCopy:
        """Declare an input's tiles in shared memory, and how threads copy to them."""
        name, by_k, is_a = x.name, x.axes[-1] == "k", x.name == "a"
        extents = {"tm" if is_a else "tn": self.tile_m if is_a else self.tile_n, "tk": self.tile_k}
        vector = self.vector_a if is_a else self.vector_b
        lines, wide = extents if by_k else [*extents][::-1]  # in global memory
        along = self.along_k(k.op)[name]
        shape = extents if along else dict([*extents.items()][::-1])
        tile = k.smem(
            f"smem_{name}", x.dtype, pad=self.pad_a if is_a else self.pad_b, stages=self.stages,
            swizzle=self.swizzle() if is_a and along else 0, **shape,
        )  # fmt: skip
        dealt = k.deal(name, vector=vector, **{d: extents[d] for d in (lines, wide)})
        at = f"m = (bm tm), n = (bn tn), k = (bz kt tk), {dealt}"
        return TileCopy(k, x, tile, at, vector, 1 if along != by_k else vector)

    def swizzle(self) -> tuple[int, int, int]:
        """XOR the chunk of 4 elements (16 B of fp32) with the row, ``swizzle_a`` bits of it."""
        log_k = sum((self.tile_k >> i) > 1 for i in range(8))
        return (self.swizzle_a, 2, select(log_k - 2 < self.swizzle_a, self.swizzle_a, log_k - 2))


@dataclass(slots=True)
class TileCopy:
    """How a CTA's threads copy an input's tiles: side by side along its lines, then across."""

    k: Kernel
    x: Array
    tile: Array
    at: str
    vector: int
    stored: int
    held: Held | None = None

    def load(self, step: LoopIndex) -> None:
        """Load a tile into registers."""
        self.held = self.k.load(
            self.x[step][self.at], vector=self.vector, into=f"{self.x.name}_held"
        )

    def deposit(self, step: LoopIndex) -> None:
        """Store it into shared memory."""
        assert self.held is not None
        self.k.store(self.tile[step][self.at], self.held, vector=self.stored)

    def start(self, step: LoopIndex) -> None:
        """Start to copy a tile, without registers."""
        self.k.cp_async(self.tile[step][self.at], self.x[step][self.at], vector=self.vector)


def turned(operation: Operation, d: Simt | Chosen) -> dict[str, bool]:
    """Return which inputs lie in shared memory along the other dimension than in global memory."""
    return {
        o.name: source == "smem" and (layout[-1] == "k") != (o.axes[-1] == "k")
        for o, source, layout in zip(
            operation.inputs, (d.a_from, d.b_from), (d.a_layout, d.b_layout), strict=True
        )
    }


_NAIVE: Mapping[str, Value] = {
    "tile_m": 32, "tile_n": 32, "tile_k": 1, "thread_m": 1, "thread_n": 1, "lanes_m": 32,
    "order": "m", "a_from": "gmem", "b_from": "gmem", "a_layout": "km", "b_layout": "kn",
    "pad_a": 0, "pad_b": 0, "swizzle_a": 0, "vector_a": 1, "vector_b": 1, "vector_shared": 1,
    "vector_c": 1, "k_step": 1, "pipeline": "none", "stages": 1, "issue": 0, "split_k": 1,
    "combine": "st", "accumulator": "f32", "edges": "return", "guards": "each", "raster": 1,
    "addressing": "i32", "specialised": 0, "ctas_per_sm": 1,
}  # fmt: skip
_COALESCED = {**_NAIVE, "order": "n", "lanes_m": 1}
_SHARED = {**_COALESCED, "a_from": "smem", "b_from": "smem", "a_layout": "mk", "tile_k": 32,
           "edges": "guard", "addressing": "pointer"}  # fmt: skip
_LINE = {**_SHARED, "tile_m": 64, "tile_n": 64, "tile_k": 8, "thread_m": 8}
_SQUARE = {**_LINE, "tile_m": 128, "tile_n": 128, "thread_n": 8, "lanes_m": 2}
_VECTOR = {**_SQUARE, "a_layout": "km", "vector_a": 4, "vector_b": 4, "vector_shared": 4,
           "vector_c": 4}  # fmt: skip
_TUNED = {**_VECTOR, "tile_k": 16, "pad_a": 4, "raster": 8, "ctas_per_sm": 2}
_WARPS = {**_TUNED, "lanes_m": 4}
_STAGES = {**_WARPS, "pipeline": "register", "stages": 2}

LADDER: Mapping[str, Mapping[str, Value]] = {
    "naive": _NAIVE,
    "coalesced": _COALESCED,
    "shared": _SHARED,
    "1-D registers": _LINE,
    "2-D registers": _SQUARE,
    "vectorised": _VECTOR,
    "tuned": _TUNED,
    "warp-tiled": _WARPS,
    "multi-stage": _STAGES,
}
"""The named points: each changes what its name says of the one before it."""
