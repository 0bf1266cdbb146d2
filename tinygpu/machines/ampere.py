"""The machine ``ampere``: a matmul by cp.async, ldmatrix and mma.sync (sm_80 and later).

A CTA of ``warps_m x warps_n`` warps computes a tile of c; see ``ampere_term.py``.

Source: PTX ISA 9, "Warp Level Matrix Instructions"; NVIDIA CUTLASS 2, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tinygpu.errors import OperationError
from tinygpu.isa.memory import DTYPES, GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.machines.ampere_term import SLICE_BYTES, AmpereTerm
from tinygpu.term.machine import Choice, Machine, Requirement, Value, instructions
from tinygpu.term.operation import ACC, Operation
from tinygpu.term.program import Program

__all__ = ["STARTS", "Ampere"]


class Ampere(Machine):
    """Matmul by warps' products of inputs of 16 bits or tf32, fp32 sums."""

    name = "ampere"
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async", "ldmatrix", "mma.sync", "mov", "cvt", "bar.sync", "st.shared", "ld.shared",
        "st.global", "red.global", "ld.global", "fma", "alu", "mufu",
    )  # fmt: skip
    numeric = True
    operations = ("matmul",)
    spread = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "split_k")
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

    def requires(self, operation: Operation, choose: Any) -> tuple[Requirement, ...]:
        """Return what this machine's decisions have to agree on."""
        d = choose
        a, c = operation.inputs[0], operation.output
        direct = d.epilogue == "direct"
        return (
            Requirement(
                "blocks",
                (d.tile_m % (16 * d.warps_m) == 0) & (d.tile_n % (16 * d.warps_n) == 0),
                "a warp multiplies blocks of 16 rows and 16 columns",
                "raise tile_m or tile_n, or lower warps_m or warps_n",
            ),
            Requirement(
                "issue_inside",
                d.issue < d.tile_k * DTYPES[a.dtype].bytes // SLICE_BYTES - 1,
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
                d.combine == "st" or (c.dtype == "f32" and direct),
                "parts of k meet in an f32 output, straight from the sums",
                'choose combine "st", or an f32 output and epilogue "direct"',
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

    def program(self, operation: Operation, choose: Any) -> Program:
        """Build the term of a matmul."""
        return AmpereTerm(operation, choose).program()


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
