"""The first kernel of everyone: a thread an element of c, straight from global memory.

Executed on NumPy arrays it has to give the product; then it prints its PTX.
"""

from tinygpu import Choice, Machine, Problem, Schedule, load_device, matmul
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.legality.laws import require_legal
from tinygpu.meaning.interpret import check
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import instructions


class Naive(Machine):
    """c = a b: a CTA computes ty x tx elements."""

    name = "naive"
    operations = ("matmul",)
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "fma", "cvt", "mov", "st.global")
    numeric = True
    fuses = False
    tx = Choice(8, 16, 32, meaning="threads of a CTA along n")
    ty = Choice(8, 16, 32, meaning="threads of a CTA along m")

    def forward(self, k: Kernel) -> None:
        """Walk k, add the products."""
        a, b, c = k.arrays
        (acc,) = k.op.reductions
        at = "m = (bm y), n = (bn x), k = step"
        k.grid("bm", "bn")
        k.threads(y=self.ty, x=self.tx)
        k.leave_outside(c[at])
        sums = k.zeros("sums", "f32")
        for _ in k.loop("step"):
            k.add(sums, acc.expression, {"a": k.load(a[at]), "b": k.load(b[at])})
        k.store(c[at], sums)


if __name__ == "__main__":
    problem = Problem.of(matmul("f32"), m=1000, n=1000, k=1000)
    schedule = Schedule.of(Naive(), {"tx": 32, "ty": 8})
    program = require_legal(schedule, Naive(), problem, load_device("h200"))
    findings = check(program, {"m": 40, "n": 50, "k": 60})
    print(program, f"findings: {findings or 'none'}", emit(program), sep="\n\n")
