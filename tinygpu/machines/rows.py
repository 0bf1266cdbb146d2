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
from typing import Any

import numpy as np

from tinygpu.errors import OperationError
from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.term import program as term
from tinygpu.term.arithmetic import compute
from tinygpu.term.expression import Constant, apply, value
from tinygpu.term.machine import Choice, Machine, instructions
from tinygpu.term.operation import REDUCERS, Operation
from tinygpu.term.program import Access, Affine, Buffer, Do, Scalar, registers

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

    def program(self, operation: Operation, choose: Any) -> term.Program:
        """Load; reduce a thread's part, over lanes, over warps; compute and store."""
        d, threads, tile = choose, (32, choose.warps, choose.teams), choose.rows * choose.teams
        values, side, axes = (d.vector, d.chunks, d.rows), 32 * d.warps * d.vector, operation.axes
        row = term.var("block", tile) + (term.var("t", "stride") if d.ctas else 0)
        outside = _outside(operation) or 0.0

        def do(name: str, write: Access, read: Access, *extents: int, **more: Any) -> Do:
            return Do(INSTRUCTIONS[name], write, (read,), extents, threads, **more)

        reads: dict[str, Any] = {n: Scalar(n, size=n in axes) for n in (*axes, *operation.scalars)}
        moves: dict[int, list[term.Statement]] = {1: [], 2: []}  # by the number of axes
        for o in operation.operands:
            n, extents = len(o.axes), (d.vector, d.chunks, d.rows if len(o.axes) == 2 else 1)
            array = Buffer(o.name, "gmem", o.dtype, o.axes, (f"ld_{o.name}", 1)[-n:])
            steps = tuple(s[-n:] for s in ((0, 1), (0, side), (1, 0)))
            lanes = tuple(s[-n:] for s in ((0, d.vector), (0, 32 * d.vector), (d.rows, 0)))
            origin, guard = (row, Affine())[-n:], (True,) * n
            stored = o == operation.output
            there = Access(
                array, steps, lanes, origin, guard=guard, outside=0.0 if stored else outside
            )
            held = registers(f"{o.name}_held", o.dtype, *extents[::-1])
            own = reads[o.name] = Access(
                held, ((0, 0, 1), (0, 1, 0), (n - 1, 0, 0)), ((0,) * 3,) * 3
            )
            name, to, of = ("st", there, own) if stored else ("ld", own, there)
            moves[n].append(do(f"{name}.global", to, of, *extents, vector=d.vector))
        body: list[term.Statement] = moves[2][:-1]
        for r in operation.reductions:
            result = Access(registers(r.name, "f32", d.rows), ((1,),), ((0,),) * 3)
            far = Access(registers("far", "f32", d.rows), ((1,),), ((0,),) * 3)
            acc = reads[r.name] = Access(result.buffer, ((0,), (0,), (1,)))
            start = compute(Constant(REDUCERS[r.operator]), {}, result, values=(d.rows,))
            both = apply(r.operator, value(r.name), value("more"))
            point = apply(r.operator, value(r.name), r.expression)
            body += [*start, *compute(point, reads, acc, values=values, name=f"{r.name}_")]
            for mask in (16, 8, 4, 2, 1):
                body.append(do("shfl.sync", far, result, d.rows, across=mask))
                body += compute(both, {r.name: result, "more": far}, result, values=(d.rows,))
            if d.warps > 1:
                ring, turn = (2, term.var("t")) if d.ctas else (1, Affine())
                shape, each = (tile, d.warps), tile * d.warps
                smem = Buffer(f"of_{r.name}", "smem", "f32", shape, (d.warps, 1), ring, each)
                put = Access(smem, ((1, 0),), ((0, 0), (0, 1), (d.rows, 0)), index=turn)
                get = Access(smem, ((0, 1), (1, 0)), ((0, 0), (0, 0), (d.rows, 0)), index=turn)
                got = registers("got", "f32", d.rows, d.warps)
                every = Access(got, ((0, 1), (1, 0)), ((0, 0),) * 3)
                row_result = Access(result.buffer, ((0,), (1,)))
                body += [do("st.shared", put, result, d.rows, lanes=(1, 32, 0)), term.Sync()]
                body.append(do("ld.shared", every, get, d.warps, d.rows, vector=min(4, d.warps)))
                warps = {r.name: row_result, "more": every}
                body += [*start, *compute(both, warps, row_result, values=(d.warps, d.rows))]
        body += [*compute(operation.epilogue, reads, own, values=values), moves[2][-1]]
        tiles, most = value("i").ceildiv(tile), (("j", side * d.chunks),)
        leading = tuple((f"ld_{o.name}", value("j")) for o in operation.operands if o.axes[1:])
        trips = (("trips", tiles.ceildiv(d.ctas or 1)), ("stride", Constant(d.ctas * tile)))
        loop = (term.For("t", "trips", tuple(body)),) if d.ctas else tuple(body)
        axis = term.Axis("block", Constant(d.ctas) if d.ctas else tiles)
        role = term.Role("all", 32 * d.warps * d.teams, (*moves[1], *loop))
        known = term.buffers_of(role.body), leading + trips * (d.ctas > 0), (axis,), (role,)
        return term.Program(self.name, operation, *known, at_most=most)


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
