"""A transpose, y[i,j] = x[j,i], turned in a padded tile of shared memory.

Both arrays are read and written by whole lines; the pad keeps a column of the tile in 32 banks.
"""

from tinygpu import Choice, Machine, Problem, Space, load_device
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS, SMEM
from tinygpu.search.exact.best import rank
from tinygpu.term.builder import Kernel
from tinygpu.term.expression import value
from tinygpu.term.machine import instructions
from tinygpu.term.operation import Operand, Operation

TRANSPOSE = Operation(
    "transpose", ("i", "j"), (Operand("x", ("j", "i"), "f32"),), Operand("y", ("i", "j"), "f32"),
    epilogue=value("x"),
)  # fmt: skip


class Transpose(Machine):
    """A CTA turns a tile of 32 x 32."""

    name = "transpose"
    levels = (GMEM, SMEM, REGISTERS)
    instructions = instructions("ld.global", "st.shared", "bar.sync", "ld.shared", "st.global")
    numeric = True
    warps = Choice(4, 8, 16, meaning="warps of a CTA")
    pad = Choice(0, 1, meaning="elements added to each line of the tile")

    def forward(self, k: Kernel) -> None:
        """Read lines of x, and write columns of the tile as lines of y."""
        x, y = k.arrays
        k.grid("bi", "bj")
        k.threads(warp=self.warps, lane=32)
        k.values(r=32 // self.warps)
        tile = k.smem("tile", x.dtype, row=32, col=32, pad=self.pad)
        k.store(tile["row = (r warp), col = lane"], k.load(x["j = (bj r warp), i = (bi lane)"]))
        k.sync()
        k.store(y["i = (bi r warp), j = (bj lane)"], k.load(tile["row = lane, col = (r warp)"]))


if __name__ == "__main__":
    problem = Problem.of(TRANSPOSE, i=8192, j=8192)
    best = rank(Space(Transpose(), problem, load_device("h200")), 1).best[0]
    program = best.schedule.program(Transpose(), TRANSPOSE)
    print(f"{best.seconds * 1e6:.1f} us: {best.schedule}", program, emit(program), sep="\n\n")
