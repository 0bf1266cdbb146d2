"""y = f(x, ..), an expression of yours: a thread loads vectors of each input, computes, and stores.

tinygpu search elementwise "x*sigmoid(a*x)*z" -i 65536 --machine examples/elementwise.py:Elementwise
"""

from tinygpu import Choice, Machine, Problem, Space, elementwise, load_device
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.search.exact.best import rank
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import instructions


class Elementwise(Machine):
    """Global memory to registers and back; CTAs take a tile each, or stride over the tiles."""

    name = "own_elementwise"
    operations = ("elementwise",)
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "fma", "alu", "mufu", "cvt", "mov", "st.global")
    numeric = True
    vector = Choice(1, 2, 4, 8, meaning="elements moved at once")
    unroll = Choice(1, 2, 4, 8, meaning="vectors of each input that a thread holds")
    threads = Choice(128, 256, 512, meaning="threads of a CTA")
    ctas = Choice(0, 132, 264, structural=True, meaning="CTAs that stride; 0: one a tile")

    def forward(self, k: Kernel) -> None:
        """Declare who counts what, then move a tile."""
        k.threads(thread=self.threads)
        k.values(u=self.unroll, v=self.vector)
        if self.ctas:  # CTAs stay, and stride
            k.grid(block=self.ctas)
            for _ in k.loop("turn"):
                self.tile(k, "i = (turn block u thread v)")
        else:
            k.grid("block")
            self.tile(k, "i = (block u thread v)")

    def tile(self, k: Kernel, at: str) -> None:
        """Load, compute, store: the elements ``at``."""
        held = {x.name: k.load(x[at]) for x in k.inputs}
        k.store(k.output[at], k.compute(k.op.epilogue, held))


if __name__ == "__main__":
    operation = elementwise("x * sigmoid(a*x) * z", dtype="bf16")
    problem = Problem.of(operation, i=1 << 24)
    best = rank(Space(Elementwise(), problem, load_device("h200")), 1).best[0]
    program = best.schedule.program(Elementwise(), operation)
    print(f"{best.seconds * 1e6:.1f} us: {best.schedule}", program, emit(program), sep="\n\n")
