"""A first machine: y = a*x + b, a thread a vector.  It is searched, explained and run as ours are.

tinygpu search elementwise "a*x + b" --machine examples/first_machine.py:Axpb
"""

from typing import Any

from tinygpu import Choice, Machine, Operation, Problem, Space, elementwise, load_device
from tinygpu import program as term
from tinygpu.arithmetic import compute
from tinygpu.codegen.emit import emit
from tinygpu.expression import value
from tinygpu.instruction import INSTRUCTIONS
from tinygpu.interpret import check
from tinygpu.machine import instructions
from tinygpu.memory import GMEM, REGISTERS
from tinygpu.search.best import rank


class Axpb(Machine):
    """One input to registers, a multiply-add, and back."""

    name = "axpb"
    operations = ("elementwise",)
    dtypes = ("f32",)
    levels = (GMEM, REGISTERS)
    instructions = instructions("ld.global", "fma", "st.global")
    vector = Choice(1, 2, 4, meaning="elements that a thread moves at once")
    threads = Choice(128, 256, 512, meaning="threads of a CTA")

    def program(self, operation: Operation, choose: Any) -> term.Program:
        """Value v of thread t of a CTA is element block * tile + t * vector + v of an array."""
        vector, tile = choose.vector, choose.threads * choose.vector
        extents: Any = {"values": (vector,), "threads": (choose.threads,), "vector": vector}
        reads: dict[str, Any] = {name: term.Scalar(name) for name in operation.scalars}
        loads = []
        for o in operation.operands:
            array = term.Buffer(o.name, "gmem", o.dtype, ("i",), (1,))
            first = term.var("block", tile)
            there = term.Access(array, ((1,),), ((vector,),), (first,), guard=(True,))
            held = term.registers(f"{o.name}_held", o.dtype, vector)
            here = reads[o.name] = term.Access(held, ((1,),), ((0,),))
            loads.append(term.Do(INSTRUCTIONS["ld.global"], here, (there,), **extents))
        store = term.Do(INSTRUCTIONS["st.global"], there, (here,), **extents)  # of y, the last
        body = (*loads[:-1], *compute(operation.combine, reads, here, values=(vector,)), store)
        grid = (term.Axis("block", value("i").ceildiv(tile)),)
        role = term.Role("all", choose.threads, body)
        return term.Program(self.name, operation, term.buffers_of(body), (), grid, (role,))


if __name__ == "__main__":
    problem = Problem.of(elementwise("a*x + b"), i=1 << 24)
    best = rank(Space(Axpb(), problem, load_device("h200")), 3).best
    program = best[0].schedule.program(Axpb(), problem.operation)
    print(*(f"{one.seconds * 1e6:.1f} us: {one.schedule}" for one in best), sep="\n")
    print(program, f"findings: {check(program, {'i': 1000}) or 'none'}", emit(program), sep="\n\n")
