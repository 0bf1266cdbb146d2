"""The first kernel of everyone: a thread an element of c, straight from global memory.

Builds its term for a problem, if the laws allow it, and prints it; executes it on NumPy arrays,
where it has to give the product; prints its PTX.
"""

from tinygpu.codegen.emit import emit
from tinygpu.device import load_device
from tinygpu.interpret import check
from tinygpu.laws import require_legal
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import Problem, matmul
from tinygpu.schedule import Schedule

if __name__ == "__main__":
    problem = Problem.of(matmul("f32"), m=1000, n=1000, k=1000)
    naive = Schedule.of(Simt(), LADDER["naive"])
    program = require_legal(naive, Simt(), problem, load_device("h200"))
    findings = check(program, {"m": 40, "n": 50, "k": 60})
    print(program, f"findings: {findings or 'none'}", emit(program), sep="\n\n")
