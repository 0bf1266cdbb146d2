"""The machine ``ampere``: a matmul by cp.async, ldmatrix and mma.sync (sm_80 and later).

A CTA of ``warps_m x warps_n`` warps computes a tile of c.  Tiles of the inputs go round a ring of
``stages`` in shared memory; a warp reads *slices* of 16 steps of k (8 of tf32) from there into
registers, one slice ahead of the products.

What lanes hold is said by digits, as the fragments of ``product`` have it, which is mma.sync: lane
4 ``group`` + ``quad``, and in each lane ``pair`` (of columns), ``half`` (of 16 rows), ``half_k``,
and ``word``: what of k is in one register, a pair of 16-bit elements or one of tf32.  Blocks of 16
rows are dealt out to the warps in turn, so that one block of each warp (``far_m``) is a run of the
tile's rows.  A machine that inherits may have another ``product``, of other blocks.

What of tf32 does not run along k is no matrix that ldmatrix could turn: each lane loads its own
elements, and where eight neighbours in each of four rows meet four times eight banks, 32 B change
places.

Source: PTX ISA 9, "Warp Level Matrix Instructions"; NVIDIA CUTLASS 2, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tinygpu.errors import OperationError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES, GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.term.builder import Array, Held, Kernel, LoopIndex
from tinygpu.term.machine import Choice, Chosen, Machine, Requirement, Value, instructions
from tinygpu.term.operation import ACC, Operation

__all__ = ["STARTS", "Ampere"]

_PIECE_BYTES = 16  # spec: what ldmatrix and cp.async move as one
_ROWS = "tm = (far_m high), high = (warp_m half group)"


class Ampere(Machine):
    """Matmul by warps' products of inputs of 16 bits or tf32, fp32 sums."""

    name, entry = "ampere", "ampere_matmul"
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async", "ldmatrix", "mma.sync", "mov", "cvt", "bar.sync", "st.shared", "ld.shared",
        "st.global", "red.global", "ld.global", "fma", "alu", "mufu",
    )  # fmt: skip
    product = INSTRUCTIONS["mma.sync"]
    numeric = True
    operations = ("matmul",)
    spread = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "split_k")
    in_order = MappingProxyType({"split_k": 1, "combine": "st"})
    outputs = MappingProxyType({"bf16": ("bf16", "f32"), "f16": ("f16", "f32"), "tf32": ("f32",)})

    tile_m = Choice(32, 64, 128, 256, meaning="rows of c a CTA computes")
    tile_n = Choice(32, 64, 128, 256, meaning="columns of c a CTA computes")
    tile_k = Choice(32, 64, 128, meaning="steps of k in a stage")
    warps_m = Choice(1, 2, 4, meaning="warps along the rows of a tile")
    warps_n = Choice(1, 2, 4, meaning="warps along the columns of a tile")
    stages = Choice(2, 3, 4, 5, 6, meaning="tiles of the inputs in shared memory")
    issue = Choice(0, 1, 2, meaning="slices multiplied before the next tile's loads issue")
    epilogue = Choice("direct", "smem", structural=True, meaning="how sums reach c")
    vector_c = Choice(1, 2, 4, 8, meaning="elements stored at once")
    split_k = Choice(1, 2, 4, 8, 16, meaning="parts of k that CTAs share")
    combine = Choice("st", "red", structural=True, meaning="whether sums are stored or added")
    edges = Choice("guard", "exact", structural=True, meaning="what keeps threads inside")
    guards = Choice(
        "each", "tile", before="each", meaning="what asks whether it is inside: accesses, or tiles"
    )
    raster = Choice(1, 2, 4, 8, 16, 32, meaning="rows of tiles that CTAs visit together")
    ctas_per_sm = Choice(1, 2, 3, 4, meaning="CTAs that registers are limited for")

    def check(self, operation: Operation) -> None:
        """Raise OperationError if this machine cannot do the operation."""
        super().check(operation)
        if "l" in operation.axes or operation.scalars:
            raise OperationError(
                f"machine {self.name}: {operation.name} with a batch, or scaled and added to; it "
                "fuses a bias and an activation; choose a machine that fuses more, as hopper"
            )

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        a, c = operation.inputs[0], operation.output
        blocks = self.product.blocks_of(a.dtype)
        (rows, columns, depth), sums = blocks.shape, blocks.into
        direct = d.epilogue == "direct"
        return (
            Requirement(
                "blocks",
                (d.tile_m % (rows * d.warps_m) == 0) & (d.tile_n % (2 * columns * d.warps_n) == 0),
                f"a warp multiplies blocks of {rows} rows and {2 * columns} columns",
                "raise tile_m or tile_n, or lower warps_m or warps_n",
            ),
            Requirement(
                "issue_inside",
                d.issue < d.tile_k // depth - 1,
                "loads issue among a tile's slices, before the last",
                "lower issue, or raise tile_k",
            ),
            Requirement(
                "split_red",
                (d.split_k > 1) == (d.combine == "red"),
                "parts of k meet by red, and only they do",
                'choose combine "red" exactly if split_k is more than 1',
            ),
            Requirement(
                "red_wide",
                d.combine == "st" or (c.dtype == sums and direct),
                f"parts of k meet in an {sums} output, straight from the sums",
                f'choose combine "st", or an {sums} output and epilogue "direct"',
            ),
            Requirement(
                "split_plain",
                d.combine == "st" or operation.epilogue == ACC,
                "what is fused is of whole sums, not of parts of k",
                'choose split_k 1 and combine "st"',
            ),
            Requirement(
                "unused",
                (d.guards == "each") | (d.edges == "guard"),
                "a decision about what the kernel does not have stays at its first value",
                'choose guards "each"',
            ),
            Requirement(
                "stored",
                (d.vector_c <= 2)
                if direct
                else (d.vector_c >= 2) & (d.vector_c * DTYPES[c.dtype].bytes <= 16),
                "sums are stored by pairs at most, and lines by pairs at least and 16 B at most",
                "choose vector_c 2",
            ),
        )

    def forward(self, k: Kernel) -> None:
        """Fill a ring of tiles; walk k, a slice ahead of the products; store."""
        a, b = k.inputs[:2]
        self.declare(k)
        blocks = self.product.blocks_of(a.dtype)
        slices = self.tile_k // blocks.shape[2]
        zero, last, ahead = k.digit("slice", slices), slices - 1, self.stages - 1
        sums = k.zeros("sums", blocks.into, "far_m", "far_n", "half", "pair")
        along_k = "tk = (slice half_k quad word)"
        x = self.factor(k, a, {"tm": self.tile_m}, f"{_ROWS}, {along_k}", "far_m", "half")
        y = self.factor(k, b, {"tn": self.tile_n}, f"tn = (warp_n far_n group), {along_k}", "far_n")

        def load(step: LoopIndex) -> None:
            for factor in (x, y):
                factor.load(step)

        def read(step: LoopIndex, number: LoopIndex) -> None:
            for factor in (x, y):
                factor.read(step, number)

        def multiply(step: LoopIndex, number: LoopIndex) -> None:
            k.mma(sums, x.held[step, number], y.held[step, number], by=self.product)

        def multiplied(step: LoopIndex, start: int, stop: int) -> None:
            for number in k.unrolled("slice", slices, start=start, stop=stop):
                read(step, number + 1)
                multiply(step, number)

        for step in k.loop("kt", first=ahead):
            with k.when(step < step.count):
                load(step)
            k.commit()
        k.wait_group("cp.async", ahead - 1)
        k.sync()
        for step in k.loop("kt", first=1):
            with k.when(step < step.count):
                read(step, zero)
        for step in k.loop("kt"):
            multiplied(step, 0, self.issue)
            # All threads have read the last of the tile before when they pass the loop's barrier,
            # so its stage may be filled: between a slice's reading and its products, as copies to
            # shared memory keep reads from moving up past them.
            read(step, zero + self.issue + 1)
            with k.when(step + ahead < step.count):
                load(step + ahead)
            k.commit()
            multiply(step, zero + self.issue)
            multiplied(step, self.issue + 1, last)
            k.wait_group("cp.async", ahead - 1)
            k.sync()
            with k.when(step + 1 < step.count):
                read(step + 1, zero)
            multiply(step, zero + last)
        self.store(k, sums)

    def declare(self, k: Kernel) -> None:
        """Say who counts what: CTAs tiles, warps blocks of them, lanes what fragments give them."""
        blocks = self.product.blocks_of(k.inputs[0].dtype)
        rows, columns, _ = blocks.shape
        pair, half, deep = blocks.values
        k.launch(raster=self.raster, ctas_per_sm=self.ctas_per_sm, guards=self.guards)
        k.grid(bz=self.split_k)
        k.grid("bm", "bn")
        k.tile(tm=self.tile_m, tn=self.tile_n, tk=self.tile_k, high=rows * self.warps_m)
        k.threads(warp_m=self.warps_m, warp_n=self.warps_n, group=8, quad=4)
        k.values(far_m=self.tile_m // (rows * self.warps_m))
        k.values(far_n=self.tile_n // self.warps_n // columns)
        k.values(half_k=deep, half=half, pair=pair, word=blocks.each)
        if self.edges == "exact":
            k.unguarded("m", "n", "k")

    def factor(
        self, k: Kernel, array: Array, lines: Mapping[str, int], at: str, *digits: str
    ) -> StagedInput:
        """Declare an input's tiles, along its contiguous axis, and a ring of two slices of them."""
        name, width, by_k = array.name, DTYPES[array.dtype].bytes, array.axes[-1] == "k"
        extents = {**lines, "tk": self.tile_k} if by_k else {"tk": self.tile_k, **lines}
        matrices = width == 2 or (by_k and width == 4)
        tile = k.smem(
            f"smem_{name}", array.dtype, stages=self.stages, swizzle="line",
            piece=_PIECE_BYTES if matrices else 2 * _PIECE_BYTES, **extents,
        )  # fmt: skip
        dealt = k.deal(name, vector=_PIECE_BYTES // width, **extents)
        dealt = f"m = (bm tm), n = (bn tn), k = (bz kt tk), {dealt}"
        held = k.registers(f"{name}_fragment", array.dtype, *digits, "half_k", "word", stages=2)
        return StagedInput(k, array, tile, dealt, held, at, matrices)

    def store(self, k: Kernel, sums: Held) -> None:
        """Store from the fragments or by whole lines; what is fused, a block of rows at a time."""
        c, vector, direct = k.output, self.vector_c, self.epilogue == "direct"
        fused = k.op.epilogue != ACC
        at = f"{_ROWS}, m = (bm tm), n = (bn tn), tn = (warp_n far_n quad pair)"
        if direct and not fused:
            k.store(c[at], sums, vector=vector, add=self.combine == "red")
            return
        if not direct:
            rows = self.product.blocks_of(k.inputs[0].dtype).shape[0]
            extents = {"high": rows * self.warps_m, "tn": self.tile_n}
            out = k.smem("smem_c", c.dtype, stages=2, swizzle="line", **extents)
            dealt = k.deal("c", vector=vector, **extents)
        rounded = sums if fused else k.cast(sums, c.dtype)
        for block in k.each("far_m"):
            if fused:  # a block at a time, so that no more registers are alive than the sums have
                wide = vector if direct else 2
                held = {x.name: k.load(x[at], vector=wide) for x in k.inputs[2:]}
                rounded = k.compute(k.op.epilogue, {**held, "acc": sums}, c.dtype)
            if direct:
                k.store(c[at], rounded, vector=vector)
                continue
            k.store(out[block][at], rounded, vector=2)
            k.sync()
            line = k.load(out[block][dealt], vector=vector)
            k.store(c[f"m = (bm tm), tm = (far_m high), n = (bn tn), {dealt}"], line, vector=vector)


@dataclass(frozen=True, slots=True)
class StagedInput:
    """An input: its tiles, how they are dealt out to the threads, and the slices in registers."""

    k: Kernel
    array: Array
    tile: Array
    dealt: str
    held: Held
    at: str
    matrices: bool

    def load(self, step: LoopIndex) -> None:
        """Start to copy a tile into its stage."""
        self.k.cp_async(self.tile[step][self.dealt], self.array[step][self.dealt])

    def read(self, step: LoopIndex, number: LoopIndex) -> None:
        """Read a slice of a tile: all blocks of this warp's rows or columns."""
        part, held = self.tile[step][number][self.at], self.held[step, number]
        if self.matrices:
            self.k.ldmatrix(held, part)
        else:
            self.k.load(part, into=held)


_PLAIN: Mapping[str, Value] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 32, "warps_m": 2, "warps_n": 2, "stages": 2, "issue": 0,
    "epilogue": "direct", "vector_c": 2, "split_k": 1, "combine": "st", "edges": "guard",
    "guards": "each", "raster": 1, "ctas_per_sm": 1,
}  # fmt: skip
_RING = {**_PLAIN, "tile_m": 128, "tile_n": 128, "stages": 4, "raster": 8}
_DEEP = {**_RING, "tile_k": 64, "stages": 3}
_WIDE = {**_DEEP, "tile_n": 256, "warps_n": 4}
_LINES = {**_WIDE, "epilogue": "smem", "vector_c": 8}
_EXACT = {**_LINES, "edges": "exact"}
_PAIR = {**_RING, "ctas_per_sm": 2}
_PARTS = {**_RING, "split_k": 4, "combine": "red", "raster": 1}

STARTS: Mapping[str, Mapping[str, Value]] = {
    "plain": _PLAIN,
    "ring": _RING,
    "deep": _DEEP,
    "wide": _WIDE,
    "lines": _LINES,
    "exact": _EXACT,
    "two on an SM": _PAIR,
    "parts of k": _PARTS,
}
"""Named points; "parts of k" needs an f32 output, "exact" sizes that are multiples of the tile."""
