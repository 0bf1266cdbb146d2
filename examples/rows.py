"""A reduction of your own, on the shipped machine ``rows``: rows of length 1, y = x / |x|.

RMSNorm and softmax are operations that ship: ``tinygpu search softmax -i 16384 -j 4096``.
"""

from tinygpu import MACHINES, Problem, Space, load_device
from tinygpu.codegen.emit import emit
from tinygpu.search.exact.best import rank
from tinygpu.term.expression import parse
from tinygpu.term.operation import Operand, reduce

if __name__ == "__main__":
    x, y = (Operand(name, ("i", "j"), "f32") for name in "xy")
    operation = reduce(parse("x * x"), parse("x * rsqrt(acc)"), inputs=(x,), output=y)
    machine, problem = MACHINES["rows"], Problem.of(operation, i=16384, j=4096)
    best = rank(Space(machine, problem, load_device("h200")), 1).best[0]
    program = best.schedule.program(machine, operation)
    print(f"{best.seconds * 1e6:.1f} us: {best.schedule}", program, emit(program), sep="\n\n")
