"""A machine that sums and scales rows: RMSNorm, or y[i,j] = f(sum over j of g(x), x, w) of yours.

A row is read once and stays in the registers of ``warps`` warps.  It is summed by each thread, then
over the lanes by a butterfly of shuffles, then over the warps through shared memory.  CTAs take
``rows * teams`` rows each, or stride over all rows; then two stages of sums save a barrier a turn.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tinygpu import program as term
from tinygpu.arithmetic import compute
from tinygpu.codegen.emit import emit
from tinygpu.expression import Constant, apply, value
from tinygpu.instruction import INSTRUCTIONS
from tinygpu.machine import Choice, Machine, Requirement, instructions
from tinygpu.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.operation import Operand, Operation, reduce
from tinygpu.program import Access, Do
from tinygpu.schedule import Schedule


class Rows(Machine):
    """Rows in registers, summed by shuffles and through shared memory."""

    name = "rows"
    operations = ("rmsnorm", "reduce")
    levels = (GMEM, L2, L1, SMEM, REGISTERS)
    instructions = instructions(
        *("ld.global", "st.global", "fma", "alu", "mufu", "cvt", "mov"),
        *("shfl.sync", "st.shared", "bar.sync", "ld.shared"),
    )
    vector = Choice(1, 2, 4, 8, meaning="elements moved at once")
    chunks = Choice(1, 2, 4, 8, 16, meaning="vectors of a row that a thread holds")
    warps = Choice(1, 2, 4, 8, 16, 32, meaning="warps that share a row")
    rows = Choice(1, 2, 4, meaning="rows that a thread holds parts of")
    teams = Choice(1, 2, 4, 8, meaning="sets of warps in a CTA, each with its own rows")
    ctas = Choice(0, 132, 264, 528, 1056, 2112, meaning="CTAs that stride; 0: one for each tile")

    def requires(self, operation: Operation, choose: Any) -> tuple[Requirement, ...]:
        """Return the law of its own: a CTA's warps."""
        few = choose.warps * choose.teams <= 32
        return (Requirement("cta", few, "a CTA has at most 32 warps", "lower warps or teams"),)

    def program(self, operation: Operation, choose: Any) -> term.Program:
        """Load, sum a thread's part, over lanes, over warps; compute and store."""
        d, threads, tile = choose, (32, choose.warps, choose.teams), choose.rows * choose.teams
        values, side = (d.vector, d.chunks, d.rows), 32 * d.warps * d.vector
        row = term.var("block", tile) + (term.var("t", "stride") if d.ctas else 0)
        turn = term.var("t") if d.ctas else term.Affine()

        def held(name: str, dtype: str, *extents: int) -> Access:
            """Name registers of a thread, one for each value."""
            own = term.registers(name, dtype, *extents[::-1])
            steps = np.eye(len(extents), dtype=int)[::-1] * (np.array(extents)[:, None] > 1)
            return Access(own, tuple(map(tuple, steps.tolist())), ((0,) * len(extents),) * 3)

        def do(name: str, write: Access, read: Access, *extents: int, **more: Any) -> Do:
            return Do(INSTRUCTIONS[name], write, (read,), extents, threads, **more)

        reads: dict[str, Any] = {n: term.Scalar(n) for n in operation.scalars}
        reads |= {n: term.Scalar(n, size=True) for n in operation.axes}
        moves: dict[int, list[term.Statement]] = {1: [], 2: []}  # by the number of axes
        for o in operation.operands:
            n, extents = len(o.axes), (d.vector, d.chunks, d.rows if len(o.axes) == 2 else 1)
            array = term.Buffer(o.name, "gmem", o.dtype, o.axes, (f"ld_{o.name}", 1)[-n:])
            steps = tuple(s[-n:] for s in ((0, 1), (0, side), (1, 0)))
            lanes = tuple(s[-n:] for s in ((0, d.vector), (0, 32 * d.vector), (d.rows, 0)))
            there = Access(array, steps, lanes, (row, term.Affine())[-n:], guard=(True,) * n)
            reads[o.name] = here = held(f"{o.name}_held", o.dtype, *extents)
            name, write, read = (
                ("ld", here, there) if o in operation.inputs else ("st", there, here)
            )
            moves[n].append(do(f"{name}.global", write, read, *extents, vector=d.vector))

        sums, far = held("sums", "f32", d.rows), held("far", "f32", d.rows)
        reads["acc"] = of_row = replace(sums, value=((0,), (0,), (1,)))
        zero = compute(Constant(0.0), {}, sums, values=(d.rows,))
        total = compute(value("acc") + operation.combine, reads, of_row, values=values, name="g")
        body = [*moves[2][:-1], *zero, *total]
        for mask in (16, 8, 4, 2, 1):
            body.append(do("shfl.sync", far, sums, d.rows, across=mask))
            body += compute(value("a") + value("b"), {"a": sums, "b": far}, sums, values=(d.rows,))
        if d.warps > 1:
            stages, size = 2 if d.ctas else 1, tile * d.warps
            smem = term.Buffer("parts", "smem", "f32", (tile, d.warps), (d.warps, 1), stages, size)
            put = Access(smem, ((1, 0),), ((0, 0), (0, 1), (d.rows, 0)), index=turn)
            get = Access(smem, ((0, 1), (1, 0)), ((0, 0), (0, 0), (d.rows, 0)), index=turn)
            parts, each = held("parts_held", "f32", d.warps, d.rows), ((0,), (1,))
            body += [do("st.shared", put, sums, d.rows, lanes=(1, 32, 0)), term.Sync(), *zero]
            body.append(do("ld.shared", parts, get, d.warps, d.rows, vector=min(4, d.warps)))
            over = {"a": replace(sums, value=each), "b": parts}
            body += compute(value("a") + value("b"), over, over["a"], values=(d.warps, d.rows))
        body += compute(operation.epilogue, reads, reads[operation.output.name], values=values)
        body.append(moves[2][-1])
        tiles = value("i").ceildiv(tile)
        trips = (("trips", tiles.ceildiv(d.ctas or 1)), ("stride", Constant(d.ctas * tile)))
        pitches = tuple(
            (f"ld_{o.name}", value("j")) for o in operation.operands if len(o.axes) == 2
        )
        axis = term.Axis("block", Constant(d.ctas) if d.ctas else tiles)
        main = (term.For("t", "trips", tuple(body)),) if d.ctas else tuple(body)
        role = term.Role("all", 32 * d.warps * d.teams, (*moves[1], *main))
        return term.Program(
            self.name, operation, term.buffers_of(role.body), pitches + trips * (d.ctas > 0),
            (axis,), (role,), at_most=(("j", side * d.chunks),),
        )  # fmt: skip


def rmsnorm(dtype: str) -> Operation:
    """Return y = x * rsqrt(mean of x*x over the row + eps) * w."""
    x, w, acc = value("x"), value("w"), value("acc")
    y = x * apply("rsqrt", acc / value("j") + value("eps")) * w
    inputs = Operand("x", ("i", "j"), dtype), Operand("w", ("j",), dtype)
    return reduce(x * x, y, inputs=inputs, output=Operand("y", ("i", "j"), dtype), name="rmsnorm")


if __name__ == "__main__":
    chosen = {"vector": 8, "chunks": 2, "warps": 8, "rows": 1, "teams": 1, "ctas": 0}
    schedule = Schedule.of(Rows(), chosen)
    print(program := schedule.program(Rows(), rmsnorm("bf16")), emit(program), sep="\n")
