"""A first machine: y = a*x + b, a thread a vector.  It is searched, explained and run as ours are.

tinygpu search elementwise "a*x + b" -i 16777216 --machine examples/first_machine.py:Axpb
"""

from tinygpu import Choice, Machine, Problem, Space, elementwise, load_device
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.meaning.interpret import check
from tinygpu.search.exact.best import rank
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import instructions


class Axpb(Machine):
    """One input to registers, a multiply-add, and back."""

    name = "axpb"
    operations = ("elementwise",)
    dtypes = ("f32",)
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "fma", "st.global")
    vector = Choice(1, 2, 4, meaning="elements that a thread moves at once")
    threads = Choice(128, 256, 512, meaning="threads of a CTA")

    def forward(self, k: Kernel) -> None:
        """Value v of thread t of CTA b is element (b * threads + t) * vector + v of an array."""
        k.grid("block")
        k.threads(thread=self.threads)
        k.values(v=self.vector)
        at = "i = (block thread v)"
        held = {x.name: k.load(x[at]) for x in k.inputs}
        k.store(k.output[at], k.compute(k.op.epilogue, held))


if __name__ == "__main__":
    problem = Problem.of(elementwise("a*x + b"), i=1 << 24)
    best = rank(Space(Axpb(), problem, load_device("h200")), 3).best
    program = best[0].schedule.program(Axpb(), problem.operation)
    print(*(f"{one.seconds * 1e6:.1f} us: {one.schedule}" for one in best), sep="\n")
    print(program, f"findings: {check(program, {'i': 1000}) or 'none'}", emit(program), sep="\n\n")
