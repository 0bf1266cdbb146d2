"""Softmax: a warp a row, which stays in registers; its maximum, its sum, its quotients."""

import math

from tinygpu import Choice, Machine, Problem, Space, load_device
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.search.exact.best import rank
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import instructions
from tinygpu.term.operation import softmax


class Softmax(Machine):
    """y = exp(x - top) / sum of exp(x - top); what is beyond a row's end is -infinity."""

    name = "own_softmax"
    operations = ("softmax",)
    levels = (GMEM, REGISTERS)
    instructions = instructions(
        "ld.global", "st.global", "fma", "alu", "mufu", "cvt", "mov", "shfl.sync"
    )
    numeric = True
    vector = Choice(1, 2, 4, 8, meaning="elements moved at once")
    chunks = Choice(1, 2, 4, 8, 16, meaning="vectors of a row that a thread holds")
    warps = Choice(1, 2, 4, 8, meaning="warps of a CTA, each with its own row")

    def forward(self, k: Kernel) -> None:
        """Load; reduce twice; scale and store."""
        x, y = k.arrays
        at = "i = (block warp), j = (chunk lane v)"
        k.grid("block")
        k.threads(warp=self.warps, lane=32)
        k.values(chunk=self.chunks, v=self.vector)
        held = {"x": k.load(x[at], outside=-math.inf)}
        for r in k.op.reductions:  # the maximum `top`, then the sum `acc`
            held[r.name] = k.registers(r.name, "f32")
            k.fill(held[r.name], -math.inf if r.operator == "max" else 0.0)
            k.reduce(r.operator, held[r.name], r.expression, held)  # over chunk and v
            k.butterfly(r.operator, held[r.name], over="lane")
        k.store(y[at], k.compute(k.op.epilogue, held))


if __name__ == "__main__":
    problem = Problem.of(softmax("f32"), i=16384, j=1024)
    best = rank(Space(Softmax(), problem, load_device("h200")), 1).best[0]
    program = best.schedule.program(Softmax(), problem.operation)
    print(f"{best.seconds * 1e6:.1f} us: {best.schedule}", program, emit(program), sep="\n\n")
