"""Products by the tensor cores in double precision: an instruction, and a machine that inherits.

``mma.sync.m16n8k8`` of f64 is nowhere in the package.  Its shape and which lane holds which element
are three fragments; with them the machine ``ampere`` multiplies by it, and the laws, the proofs,
the interpreter, the time model, the emitter and the search read the same value.

    python -m examples.fp64_tensor_cores
    tinygpu search matmul --dtype f64 -m 4096 -n 4096 -k 4096 \
        --machine examples/fp64_tensor_cores.py:Doubles --measure

Source: PTX ISA 9, "Matrix Fragments for mma.m16n8k4, m16n8k8, and m16n8k16 with .f64".
"""

from types import MappingProxyType

from tinygpu import Choice, Problem, Space, check, emit, load_device, matmul, rank, reduced, verdict
from tinygpu.codegen.rules.mma_sync import mma
from tinygpu.isa.fragment import Blocks, Fragment
from tinygpu.isa.instruction import Instruction
from tinygpu.machines.ampere import Ampere
from tinygpu.term.machine import instructions

LANES = ((4, 0, 1), (8, 1, 0))  # quad: neighbours along k; octet: rows of a, columns of b
BLOCKS = Blocks(
    types=("f64",),
    into="f64",
    a=Fragment("f64_a", (16, 8), LANES, ((2, 8, 0), (2, 0, 4))),
    b=Fragment("f64_b", (8, 8), LANES, ((2, 0, 4),)),
    d=Fragment("f64_d", (16, 8), ((4, 0, 2), (8, 1, 0)), ((2, 0, 1), (2, 8, 0))),
    rate=1 / 16 / 0.65,  # spec: 67 of 989 TFLOP/s (H100); of these warps reach 0.65 in 16 bits
)
DMMA = Instruction(
    "mma.sync.f64",
    reads=("registers",),
    writes=("registers",),
    unit="tensor",
    variants=("fma",),
    issuer="warp",
    arch="sm_90",
    blocks=(BLOCKS,),
    lower=mma,
)


class Doubles(Ampere):
    """Matmul in f64 by warps' products, on a Hopper."""

    name, entry = "doubles", "doubles_matmul"
    product = DMMA
    instructions = (
        *(i for i in Ampere.instructions if i.name not in ("mma.sync", "ldmatrix")),
        *instructions("fma"),
        DMMA,
    )
    outputs = MappingProxyType({"f64": ("f64",)})
    tile_k = Choice(16, 32, meaning="steps of k in a stage")
    vector_c = Choice(1, 2, meaning="elements stored at once")


if __name__ == "__main__":
    problem = Problem.of(matmul("f64"), m=4096, n=4096, k=4096)
    space = Space(Doubles(), problem, load_device("h100"))
    best = rank(space, k=1).best[0]
    program = best.schedule.program(space.machine, problem.operation)
    print(best.schedule, f"{best.seconds * 1e6:.0f} us, waits for {best.breakdown.bottleneck}")
    print(verdict(program))
    print("interpreter:", check(program, reduced(problem, program)) or "right")
    print(program)
    print(emit(program))
