"""The machine ``rows``: RMSNorm, softmax, or y[i,j] = f(reductions over j of g(x), x, w) of yours.

A row is read once and stays in the registers of ``warps`` warps.  Each reduction is done by each
thread, over lanes by a butterfly of shuffles, over warps through shared memory.  CTAs take
``rows * teams`` rows each, or stride over them all; two stages of results then save a barrier a
turn.  What a row's last vectors hold beyond its end has no part in a reduction: it is loaded as a
number that the reduction's expression takes to the identity, 0 or (for a maximum) -infinity.

Source: M. Harris, "Optimizing Parallel Reduction in CUDA"; M. Milakov and N. Gimelshein, "Online
normalizer calculation for softmax", 2018, section 2 (the safe form).
"""

from __future__ import annotations

import math

import numpy as np

from tinygpu.errors import OperationError
from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.term.builder import Held, Kernel, LoopIndex, Piece
from tinygpu.term.machine import Choice, Machine, instructions
from tinygpu.term.operation import REDUCERS, Operation

__all__ = ["Rows"]


class Rows(Machine):
    """Rows in registers, reduced by shuffles and through shared memory."""

    name = "rows"
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        "ld.global", "st.global", "fma", "alu", "mufu", "cvt", "mov",
        "shfl.sync", "st.shared", "bar.sync", "ld.shared",
    )  # fmt: skip
    numeric = True
    operations = ("rmsnorm", "softmax", "reduce")
    dtypes = ("f32", "f16", "bf16")
    spread = ("chunks", "warps", "rows", "teams")

    vector = Choice(1, 2, 4, 8, meaning="elements moved at once")
    chunks = Choice(1, 2, 4, 8, 16, meaning="vectors of a row that a thread holds")
    warps = Choice(1, 2, 4, 8, 16, 32, structural=True, meaning="warps that share a row")
    rows = Choice(1, 2, 4, meaning="rows that a thread holds parts of")
    teams = Choice(1, 2, 4, 8, meaning="sets of warps in a CTA, each with its own rows")
    ctas = Choice(
        0, 132, 264, 528, 1056, 2112, structural=True,
        meaning="CTAs that stride; 0: one for each tile",
    )  # fmt: skip

    def check(self, operation: Operation) -> None:
        """Raise OperationError if this machine cannot do the operation."""
        super().check(operation)
        shapes = {o.axes for o in operation.inputs}
        if operation.output.axes != ("i", "j") or not shapes <= {("i", "j"), ("j",)}:
            raise OperationError(
                f"machine {self.name}: {operation}; it reads arrays of i,j and of j, reduces over "
                "j and writes one of i,j"
            )
        if _outside(operation) is None:
            raise OperationError(
                f"machine {self.name}: {operation}; neither 0 nor -infinity beyond a row's end "
                "leaves every reduction as it is: reduce an expression that takes 0 to 0"
            )

    def forward(self, k: Kernel) -> None:
        """Load what all rows share, then do a tile of rows, or every tile of a CTA that stays."""
        k.threads(team=self.teams, warp=self.warps, lane=32)
        k.values(row=self.rows, chunk=self.chunks, v=self.vector)
        along = "j = (chunk warp lane v)"
        shared = {w.name: self.load(k, w[along]) for w in k.inputs if w.axes == ("j",)}
        if self.ctas:
            k.grid(block=self.ctas)
            for t in k.loop("t"):
                self.tile(k, f"i = (t block team row), {along}", shared, t)
        else:
            k.grid("block")
            self.tile(k, f"i = (block team row), {along}", shared)

    def tile(
        self, k: Kernel, at: str, shared: dict[str, Held], turn: LoopIndex | None = None
    ) -> None:
        """Load rows; reduce a thread's part, over lanes, over warps; compute and store."""
        held = {x.name: self.load(k, x[at]) for x in k.inputs if x.name not in shared} | shared
        for r in k.op.reductions:
            result = held[r.name] = k.registers(r.name, "f32", "row")
            k.fill(result, REDUCERS[r.operator])
            k.reduce(r.operator, result, r.expression, held)  # over chunk and v
            k.butterfly(r.operator, result, over="lane")
            if self.warps > 1:
                stages = 2 if self.ctas else None
                parts = k.smem(f"of_{r.name}", "f32", stages=stages, mine=self.teams * self.rows,
                               of=self.warps)  # fmt: skip
                part = parts[turn] if turn else parts
                with k.only(lane=0):
                    k.store(part["mine = (team row), of = warp"], result)
                k.sync()
                others = k.load(part["mine = (team row)"], into="got")
                k.fill(result, REDUCERS[r.operator])
                k.reduce(r.operator, result, others)  # over of
        y = k.compute(k.op.epilogue, held, k.output.dtype, name="y_held")
        k.store(k.output[at], y, vector=self.vector)

    def load(self, k: Kernel, part: Piece) -> Held:
        """Load vectors; beyond a row's end is what no reduction sees."""
        return k.load(part, outside=_outside(k.op) or 0.0, vector=self.vector)


def _outside(operation: Operation) -> float | None:
    """Return what inputs may hold beyond a row's end without a part in any reduction, or None."""
    others = dict.fromkeys((*operation.axes, *operation.scalars), 0.5)
    others |= {r.name: 0.5 for r in operation.reductions}
    for outside in (0.0, -math.inf):
        values = others | {o.name: np.float64(outside) for o in operation.inputs}
        with np.errstate(all="ignore"):
            found = [r.expression.evaluate(values) for r in operation.reductions]
        if found == [REDUCERS[r.operator] for r in operation.reductions]:
            return outside
    return None
