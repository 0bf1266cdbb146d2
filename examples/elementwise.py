"""An expression of your own, on the shipped machine ``elementwise``: the best schedule, its PTX.

tinygpu search elementwise "x * sigmoid(a*x) * z" -i 16777216 --dtype bf16
"""

from tinygpu import MACHINES, Problem, Space, elementwise, load_device
from tinygpu.codegen.emit import emit
from tinygpu.search.best import rank

if __name__ == "__main__":
    operation = elementwise("x * sigmoid(a*x) * z", dtype="bf16")
    machine, problem = MACHINES["elementwise"], Problem.of(operation, i=1 << 24)
    best = rank(Space(machine, problem, load_device("h200")), 1).best[0]
    program = best.schedule.program(machine, operation)
    print(f"{best.seconds * 1e6:.1f} us: {best.schedule}", program, emit(program), sep="\n\n")
