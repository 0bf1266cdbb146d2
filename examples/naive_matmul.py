"""The first kernel of everyone: a thread an element of c, straight from global memory.

Builds its term, prints it, asks the laws about it at some sizes, and prints its PTX.
"""

from tinygpu.codegen.emit import emit
from tinygpu.device import load_device
from tinygpu.laws import require_legal
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import Problem, matmul
from tinygpu.schedule import Schedule

if __name__ == "__main__":
    problem = Problem.of(matmul("f32"), m=1000, n=1000, k=1000)
    naive = Schedule.of(Simt(), LADDER["naive"])
    program = require_legal(naive, Simt(), problem, load_device("h200"))
    print(program, emit(program), sep="\n\n")
