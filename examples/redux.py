"""Row maxima by ``redux.sync.max.s32``, which reduces the integers of a warp's lanes from sm_80 on.

Types are floats.  Read as integers, floats have the same order once the bits below the sign are
inverted in the negative ones, so that the code does this before and after.

Source: PTX ISA 9, "redux.sync".
"""

import math

from tinygpu import Choice, Kernel, Machine, Operation, Problem, Schedule, emit, load_device
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.memory import GMEM, REGISTERS
from tinygpu.legality.laws import require_legal
from tinygpu.term.expression import value
from tinygpu.term.machine import instructions
from tinygpu.term.operation import Operand, Reduction
from tinygpu.term.program import Do


def lower(kernel: KernelCode, do: Do, scope: Scope) -> None:
    """Emit it between two turns of the order; one is the other's inverse."""
    for top, own in kernel.operands(do, scope):
        bits, below = kernel.text.register("b32"), kernel.text.register("b32")
        turned = (
            f"shr.s32 {below}, {bits}, 31",
            f"and.b32 {below}, {below}, 0x7fffffff",
            f"xor.b32 {bits}, {bits}, {below}",
        )
        redux = f"redux.sync.max.s32 {bits}, {bits}, 0xffffffff"
        for line in (f"mov.b32 {bits}, {own}", *turned, redux, *turned, f"mov.b32 {top}, {bits}"):
            kernel.text.emit(line)


# all lanes of a warp have to take part, and each gets the largest of their values; an SM takes 16
# threads a cycle: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"
REDUX = Instruction(
    "redux.sync.max.s32", reads=("registers",), writes=("registers",), types=(("f32", "f32"),),
    unit="shuffle", issuer="warp", folds="max", per_cycle=16, arch="sm_80", lower=lower,
)  # fmt: skip

AXES = ("i", "j")
X, Y = Operand("x", AXES, "f32"), Operand("y", ("i",), "f32")
TOP = Reduction("top", "max", value("x"), ("j",))
row_max = Operation("row_max", AXES, (X,), Y, (TOP,), value("top"))


class RowMax(Machine):
    """A warp goes along a row; each lane keeps its largest, then ``redux`` finds the warp's."""

    name, operations, levels = "row_max", ("row_max",), (GMEM, REGISTERS)
    instructions = (*instructions("ld.global", "st.global", "mov", "alu"), REDUX)
    warps = Choice(1, 2, 4, 8, meaning="warps of a CTA, each with its own row")
    vector = Choice(1, 2, 4, meaning="elements that a lane moves at once")

    def forward(self, k: Kernel) -> None:
        """Load a row by parts; what is beyond its end is -infinity."""
        (x,) = k.inputs
        k.grid("block")
        k.threads(warp=self.warps, lane=32)
        k.values(v=self.vector)
        top = k.registers("top", "f32")
        k.fill(top, -math.inf)
        for _ in k.loop("turn"):
            k.reduce(
                "max", top, k.load(x["i = (block warp), j = (turn lane v)"], outside=-math.inf)
            )
        top = k.apply(REDUX, top)
        with k.only(lane=0):
            k.store(k.output["i = (block warp)"], top)


if __name__ == "__main__":
    problem = Problem.of(row_max, i=4096, j=4096)
    schedule = Schedule.of(RowMax(), {"warps": 2, "vector": 4})
    program = require_legal(schedule, RowMax(), problem, load_device("a100"))
    print(program, emit(program, "sm_80"), sep="\n\n")
