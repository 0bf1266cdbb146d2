"""A matmul by TMA and mma.sync: a producer warp loads, the consumers multiply from their registers.

What ldmatrix has read is fenced before the stage is given back: the arrival says that the thread
has come by, not that the data of its loads have, and TMA would overwrite them.
"""

from tinygpu import Choice, Kernel, Machine, Problem, Schedule, emit, load_device, matmul, verdict
from tinygpu.isa.memory import GMEM, REGISTERS, SMEM
from tinygpu.legality.laws import require_legal
from tinygpu.term.machine import instructions


class TmaWarps(Machine):
    """c = a b, both inputs contiguous along k; each warp a part of a CTA's tile."""

    name = "tma_warps"
    operations = ("matmul",)
    dtypes = ("f16", "bf16", "f32")
    fuses = False
    levels = (GMEM, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async.bulk.tensor", "mbarrier", "ldmatrix", "mma.sync", "mov", "cvt",
        "fence.proxy.async", "st.global",
    )  # fmt: skip
    numeric = True
    tile_m = Choice(64, 128, 256, meaning="rows of c a CTA computes")
    tile_n = Choice(64, 128, 256, meaning="columns of c a CTA computes")
    warps_m = Choice(1, 2, 4, meaning="warps along the rows of a tile")
    warps_n = Choice(1, 2, 4, meaning="warps along the columns of a tile")
    stages = Choice(2, 3, 4, 5, 6, meaning="tiles of the inputs in shared memory")

    def forward(self, k: Kernel) -> None:
        """Load ahead; read slices of 16 steps of k, multiply, give stages back."""
        a, b, c = k.arrays
        warps = self.warps_m * self.warps_n
        at = "m = (bm tm), n = (bn tn), k = (step tk)"
        k.grid("bm", "bn")
        x = k.smem("x", a.dtype, tm=self.tile_m, tk=64, stages=self.stages, swizzle=128)
        y = k.smem("y", b.dtype, tn=self.tile_n, tk=64, stages=self.stages, swizzle=128)
        full = k.mbarriers("full", self.stages, arrivals=1)
        empty = k.mbarriers("empty", self.stages, arrivals=32 * warps)
        with k.role("producer", warps=1), k.elect():
            for step in k.loop("step"):
                k.wait(empty[step - self.stages])
                k.arrive(full[step], expect=x.stage_bytes + y.stage_bytes)
                k.tma(x[step], a[at], signal=full[step], trim=False)
                k.tma(y[step], b[at], signal=full[step], trim=False)
        with k.role("consumer", warps=warps):
            k.threads(warp_m=self.warps_m, warp_n=self.warps_n, group=8, quad=4)
            k.values(far_m=self.tile_m // (16 * self.warps_m))
            k.values(far_n=self.tile_n // (8 * self.warps_n))
            k.values(half_k=2, half=2, pair=2, word=2)
            rows, columns = "tm = (far_m warp_m half group)", "tn = (warp_n far_n quad pair)"
            along = "tk = (slice half_k quad word)"
            sums = k.zeros("sums", "f32", "far_m", "far_n", "half", "pair")
            left = k.registers("left", a.dtype, "far_m", "half", "half_k", "word")
            right = k.registers("right", b.dtype, "far_n", "half_k", "word")
            for step in k.loop("step"):
                k.wait(full[step])
                for part in k.unrolled("slice", 4):
                    k.ldmatrix(left, x[step][part][f"{rows}, {along}"])
                    k.ldmatrix(right, y[step][part][f"tn = (warp_n far_n group), {along}"])
                    k.mma(sums, left, right)
                k.fence("proxy.async")
                k.arrive(empty[step])
            k.store(c[f"m = (bm tm), {rows}, n = (bn tn), {columns}"], sums)


if __name__ == "__main__":
    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    values = {"tile_m": 64, "tile_n": 128, "warps_m": 1, "warps_n": 4, "stages": 4}
    schedule = Schedule.of(TmaWarps(), values)
    program = require_legal(schedule, TmaWarps(), problem, load_device("h100"))
    print(verdict(program))
    print(program)
    print(emit(program, "sm_90a"))
