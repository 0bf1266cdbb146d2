"""RMSNorm: a row in the registers of some warps, summed by shuffles and through shared memory."""

from tinygpu import Choice, Machine, Problem, Space, load_device
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS, SMEM
from tinygpu.search.exact.best import rank
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import instructions
from tinygpu.term.operation import rmsnorm


class RMSNorm(Machine):
    """y = x / sqrt(mean of x * x) * w, a row at a time."""

    name = "own_rmsnorm"
    operations = ("rmsnorm",)
    levels = (GMEM, SMEM, REGISTERS)
    instructions = instructions(
        "ld.global", "st.global", "fma", "alu", "mufu", "cvt", "mov",
        "shfl.sync", "st.shared", "bar.sync", "ld.shared",
    )  # fmt: skip
    numeric = True
    vector = Choice(1, 2, 4, 8, meaning="elements moved at once")
    chunks = Choice(1, 2, 4, 8, 16, meaning="vectors of a row that a thread holds")
    warps = Choice(1, 2, 4, 8, 16, 32, structural=True, meaning="warps that share a row")
    rows = Choice(1, 2, 4, meaning="rows that a thread holds parts of")
    teams = Choice(1, 2, 4, 8, meaning="sets of warps in a CTA, each with its own rows")

    def forward(self, k: Kernel) -> None:
        """Load; sum a thread's part, over lanes, over warps; scale and store."""
        x, w, y = k.arrays
        (acc,) = k.op.reductions
        at = "i = (block team row), j = (chunk warp lane v)"
        k.grid("block")
        k.threads(team=self.teams, warp=self.warps, lane=32)
        k.values(row=self.rows, chunk=self.chunks, v=self.vector)
        held = {"w": k.load(w[at]), "x": k.load(x[at])}  # x keeps row, chunk, v; w chunk, v
        sums = k.zeros("sums", "f32", "row")
        k.add(sums, acc.expression, held)  # over chunk and v
        k.butterfly("add", sums, over="lane")
        if self.warps > 1:
            parts = k.smem("parts", "f32", mine=self.teams * self.rows, of=self.warps)
            with k.only(lane=0):
                k.store(parts["mine = (team row), of = warp"], sums)
            k.sync()
            others = k.load(parts["mine = (team row)"])
            k.fill(sums, 0.0)
            k.add(sums, others)  # over of
        k.store(y[at], k.compute(k.op.epilogue, {**held, "acc": sums}))


if __name__ == "__main__":
    problem = Problem.of(rmsnorm("bf16"), i=16384, j=4096)
    best = rank(Space(RMSNorm(), problem, load_device("h200")), 1).best[0]
    program = best.schedule.program(RMSNorm(), problem.operation)
    print(f"{best.seconds * 1e6:.1f} us: {best.schedule}", program, emit(program), sep="\n\n")
