"""A chain of one's own: y = softmax(x w) v, one pass over the columns of w, rescaled on the way."""

from tinygpu import Choice, Machine, Operation, Problem, Schedule, load_device
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.agreement import computes
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.legality.laws import require_legal
from tinygpu.term.builder import Kernel
from tinygpu.term.expression import apply, value
from tinygpu.term.machine import instructions
from tinygpu.term.operation import ACC, Operand, Reduction

S, TOP, V, LOG2_E = value("s"), value("top"), value("v"), 1.4426950408889634
WEIGHT = apply("ex2.ftz", (S - TOP) * LOG2_E)
SHAPES = {"x": ("m", "d"), "w": ("d", "n"), "v": ("n", "e"), "y": ("m", "e")}
*INPUTS, OUTPUT = (Operand(name, axes, "f32") for name, axes in SHAPES.items())
CHAIN = Operation(
    "softmax_of_product", ("m", "n", "d", "e"), tuple(INPUTS), OUTPUT,
    (Reduction("s", "add", value("x") * value("w"), ("d",)), Reduction("top", "max", S, ("n",)),
     Reduction("total", "add", WEIGHT, ("n",)), Reduction("acc", "add", WEIGHT * V, ("n",))),
    ACC * apply("rcp", value("total")),
)  # fmt: skip


class Chain(Machine):
    """A thread an element of y; it holds a row of x, of at most ``depth`` elements."""

    name, operations, levels = "chain", ("softmax_of_product",), (GMEM, REGISTERS)
    instructions = instructions("ld.global", "fma", "alu", "mufu", "cvt", "mov", "st.global")
    depth = Choice(64, 32, 16, structural=True, meaning="elements of a row of x at most")

    def forward(self, k: Kernel) -> None:
        """For each column: its score, the new maximum, the sums shrunk to it and added to."""
        x, w, v, y = k.arrays
        at = "m = bm, n = column, d = inner, e = (be thread)"
        k.grid("bm", "be")
        k.threads(thread=32)
        k.values(inner=self.depth)
        k.leave_outside(y[at])
        s, top, shrink = (k.registers(name, "f32") for name in ("s", "top", "shrink"))
        total, acc = k.zeros("total", "f32"), k.zeros("acc", "f32")
        risen, shrunk = apply("max", S, TOP), value("old") * value("by")
        k.fill(top, -(2.0**100))  # below any score, and finite
        row = k.load(x[at])
        for _ in k.loop("column"):
            k.fill(s, 0.0)
            k.add(s, value("x") * value("w"), {"x": row, "w": k.load(w[at])})  # over inner
            k.set(shrink, apply("ex2.ftz", (TOP - risen) * LOG2_E), {"top": top, "s": s})
            k.set(top, risen, {"s": s, "top": top})
            k.set(s, WEIGHT, {"s": s, "top": top})
            by = {"by": shrink, "s": s}
            k.set(total, shrunk + S, {"old": total, **by})
            k.set(acc, shrunk + S * V, {"old": acc, "v": k.load(v[at]), **by})
        k.store(y[at], k.compute(k.op.epilogue, {"acc": acc, "total": total}))


if __name__ == "__main__":
    made, problem = Schedule.of(Chain(), {"depth": 64}), Problem.of(CHAIN, m=9, n=99, d=64, e=64)
    program = require_legal(made, Chain(), problem, load_device("h200"))
    run = interpret(program, {"m": 3, "n": 9, "d": 8, "e": 33}, arch="sm_90a")
    print(program, f"it {computes(program)}; its PTX is right: {run.right}", emit(program))
