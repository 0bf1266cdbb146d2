"""A machine that sums and scales rows: RMSNorm, or y[i,j] = f(sum over j of g(x), x, w) of yours.

A row is read once and stays in the registers of ``warps`` warps.  It is summed by each thread, over
lanes by a butterfly of shuffles, over warps through shared memory.  CTAs take ``rows * teams`` rows
each, or stride over them all; two stages of sums then save a barrier a turn.
"""

from typing import Any

from tinygpu import program as term
from tinygpu.arithmetic import compute
from tinygpu.codegen.emit import emit
from tinygpu.expression import Constant, apply, value
from tinygpu.instruction import INSTRUCTIONS
from tinygpu.machine import Choice, Machine, instructions
from tinygpu.memory import GMEM, L1, L2, REGISTERS, SMEM
from tinygpu.operation import Operand, Operation, reduce
from tinygpu.program import Access, Affine, Buffer, Do, Scalar, registers
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

    def program(self, operation: Operation, choose: Any) -> term.Program:
        """Load, sum a thread's part, over lanes, over warps; compute and store."""
        d, threads, tile = choose, (32, choose.warps, choose.teams), choose.rows * choose.teams
        values, side, axes = (d.vector, d.chunks, d.rows), 32 * d.warps * d.vector, operation.axes
        row = term.var("block", tile) + (term.var("t", "stride") if d.ctas else 0)

        def do(name: str, write: Access, read: Access, *extents: int, **more: Any) -> Do:
            return Do(INSTRUCTIONS[name], write, (read,), extents, threads, **more)

        reads: dict[str, Any] = {n: Scalar(n, size=n in axes) for n in (*axes, *operation.scalars)}
        moves: dict[int, list[term.Statement]] = {1: [], 2: []}  # by the number of axes
        for o in operation.operands:
            n, extents = len(o.axes), (d.vector, d.chunks, d.rows if len(o.axes) == 2 else 1)
            array = Buffer(o.name, "gmem", o.dtype, o.axes, (f"ld_{o.name}", 1)[-n:])
            steps = tuple(s[-n:] for s in ((0, 1), (0, side), (1, 0)))
            lanes = tuple(s[-n:] for s in ((0, d.vector), (0, 32 * d.vector), (d.rows, 0)))
            there = Access(array, steps, lanes, (row, Affine())[-n:], guard=(True,) * n)
            r = registers(f"{o.name}_held", o.dtype, *extents[::-1])
            own = reads[o.name] = Access(r, ((0, 0, 1), (0, 1, 0), (n - 1, 0, 0)), ((0,) * 3,) * 3)
            name, to, of = ("st", there, own) if o == operation.output else ("ld", own, there)
            moves[n].append(do(f"{name}.global", to, of, *extents, vector=d.vector))
        each = (registers(name, "f32", d.rows) for name in ("sums", "far"))
        sums, far = (Access(b, ((1,),), ((0,),) * 3) for b in each)
        total, add = value("acc") + operation.combine, value("acc") + value("more")
        acc = reads["acc"] = Access(sums.buffer, ((0,), (0,), (1,)))
        zero = compute(Constant(0.0), {}, sums, values=(d.rows,))
        body = [*moves[2][:-1], *zero, *compute(total, reads, acc, values=values, name="p")]
        for mask in (16, 8, 4, 2, 1):
            body.append(do("shfl.sync", far, sums, d.rows, across=mask))
            body += compute(add, {"acc": sums, "more": far}, sums, values=(d.rows,))
        if d.warps > 1:
            ring, turn = (2, term.var("t")) if d.ctas else (1, Affine())
            smem = Buffer("sum", "smem", "f32", (tile, d.warps), (d.warps, 1), ring, tile * d.warps)
            put = Access(smem, ((1, 0),), ((0, 0), (0, 1), (d.rows, 0)), index=turn)
            get = Access(smem, ((0, 1), (1, 0)), ((0, 0), (0, 0), (d.rows, 0)), index=turn)
            got = Access(registers("got", "f32", d.rows, d.warps), ((0, 1), (1, 0)), ((0, 0),) * 3)
            row_sum = Access(sums.buffer, ((0,), (1,)))
            body += [do("st.shared", put, sums, d.rows, lanes=(1, 32, 0)), term.Sync(), *zero]
            body.append(do("ld.shared", got, get, d.warps, d.rows, vector=min(4, d.warps)))
            body += compute(add, {"acc": row_sum, "more": got}, row_sum, values=(d.warps, d.rows))
        body += [*compute(operation.epilogue, reads, own, values=values), moves[2][-1]]
        tiles, most = value("i").ceildiv(tile), (("j", side * d.chunks),)
        leading = tuple((f"ld_{o.name}", value("j")) for o in operation.operands if o.axes[1:])
        trips = (("trips", tiles.ceildiv(d.ctas or 1)), ("stride", Constant(d.ctas * tile)))
        loop = (term.For("t", "trips", tuple(body)),) if d.ctas else tuple(body)
        axis = term.Axis("block", Constant(d.ctas) if d.ctas else tiles)
        role = term.Role("all", 32 * d.warps * d.teams, (*moves[1], *loop))
        known = term.buffers_of(role.body), leading + trips * (d.ctas > 0), (axis,), (role,)
        return term.Program(self.name, operation, *known, at_most=most)


def rmsnorm(dtype: str) -> Operation:
    x, w, mean = value("x"), value("w"), value("acc") / value("j")
    y = x * apply("rsqrt", mean + value("eps")) * w
    inputs = Operand("x", ("i", "j"), dtype), Operand("w", ("j",), dtype)
    return reduce(x * x, y, inputs=inputs, output=Operand("y", ("i", "j"), dtype), name="rmsnorm")


if __name__ == "__main__":
    chosen = {"vector": 8, "chunks": 2, "warps": 8, "rows": 1, "teams": 1, "ctas": 0}
    program = Schedule.of(Rows(), chosen).program(Rows(), rmsnorm("bf16"))
    print(program, emit(program), sep="\n")
