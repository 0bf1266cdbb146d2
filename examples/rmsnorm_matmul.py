"""A chain of one's own: y = rmsnorm(x) b, in one pass over x; the rows' factors come last."""

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

X, W, B = value("x"), value("w"), value("b")
NORMALISED_PRODUCT = Operation(
    name="rmsnorm_matmul",
    axes=("m", "n", "k"),
    inputs=(Operand("x", ("m", "k"), "f32"), Operand("w", ("k",), "f32"),
            Operand("b", ("k", "n"), "f32")),
    output=Operand("y", ("m", "n"), "f32"),
    reductions=(Reduction("squares", "add", X * X, ("k",)),
                Reduction("acc", "add", X * W * B, ("k",))),
    epilogue=ACC * apply("rsqrt", value("squares") / value("k") + value("eps")),
    scalars=("eps",),
)  # fmt: skip


class NormalisedProduct(Machine):
    """A thread an element: it adds products and squares, and scales once."""

    name = "rmsnorm_matmul"
    operations = ("rmsnorm_matmul",)
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "fma", "alu", "mufu", "cvt", "mov", "st.global")
    numeric = True
    tx = Choice(8, 16, 32, meaning="threads of a CTA along n")
    ty = Choice(8, 16, 32, meaning="threads of a CTA along m")

    def forward(self, k: Kernel) -> None:
        """Walk k with both sums."""
        x, w, b, y = k.arrays
        at = "m = (bm ty), n = (bn tx), k = step"
        k.grid("bm", "bn")
        k.threads(ty=self.ty, tx=self.tx)
        k.leave_outside(y[at])
        sums = {r.name: k.zeros(r.name, "f32") for r in k.op.reductions}
        for _ in k.loop("step"):
            read = {"x": k.load(x[at]), "w": k.load(w[at]), "b": k.load(b[at])}
            for r in k.op.reductions:
                k.add(sums[r.name], r.expression, read)
        k.store(y[at], k.compute(k.op.epilogue, sums))


if __name__ == "__main__":
    problem = Problem.of(NORMALISED_PRODUCT, m=1000, n=1000, k=1000)
    schedule = Schedule.of(NormalisedProduct(), {"tx": 32, "ty": 8})
    program = require_legal(schedule, NormalisedProduct(), problem, load_device("h200"))
    run = interpret(program, {"m": 9, "n": 33, "k": 20}, arch="sm_90a")
    print(program, f"it {computes(program)}; its PTX is right: {run.right}", sep="\n\n")
    print(emit(program))
