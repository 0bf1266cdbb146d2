"""A matmul on Hopper: a producer fills a ring of stages by TMA, a warpgroup multiplies from it."""

from tinygpu import Choice, Machine, Problem, Schedule, load_device, matmul
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS, SMEM
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import require_legal
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import instructions


class Ring(Machine):
    """c = a b, both inputs contiguous along k; a CTA a tile."""

    name = "ring"
    operations = ("matmul",)
    dtypes = ("f16", "bf16")
    fuses = False
    levels = (GMEM, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async.bulk.tensor", "mbarrier", "wgmma", "cvt", "bar.sync", "st.global"
    )
    numeric = True
    tile_m = Choice(64, 128, meaning="rows of c a CTA computes")
    tile_n = Choice(64, 128, 256, meaning="columns of c a CTA computes")
    tile_k = Choice(64, 128, meaning="steps of k in a stage")
    stages = Choice(2, 3, 4, 5, 6, meaning="tiles of the inputs in shared memory")
    in_flight = Choice(0, 1, meaning="groups of products in flight when a stage is released")

    def forward(self, k: Kernel) -> None:
        """Load ahead, multiply, give stages back."""
        a, b, c = k.arrays
        at = "m = (bm tm), n = (bn tn), k = (step tk)"
        k.grid("bm", "bn")
        x = k.smem("x", a.dtype, tm=self.tile_m, tk=self.tile_k, stages=self.stages, swizzle=128)
        y = k.smem("y", b.dtype, tn=self.tile_n, tk=self.tile_k, stages=self.stages, swizzle=128)
        full = k.mbarriers("full", self.stages, arrivals=1)
        empty = k.mbarriers("empty", self.stages, arrivals=1)
        with k.role("producer", warps=1), k.elect():
            for step in k.loop("step", over="k", by=self.tile_k):
                k.wait(empty[step - self.stages])
                k.arrive(full[step], expect=x.stage_bytes + y.stage_bytes)
                k.tma(x[step], a[at], signal=full[step])
                k.tma(y[step], b[at], signal=full[step])
        with k.role("consumer", warpgroups=1):
            k.threads(warp=4, octet=8, quad=4)  # as wgmma shares a product out
            k.values(far=self.tile_m // 64, group=self.tile_n // 8, half=2, pair=2)
            rows, columns = "tm = (far warp half octet)", "tn = (group quad pair)"
            sums = k.registers("sums", "f32", "far", "group", "half", "pair")
            for step in k.loop("step", over="k", by=self.tile_k):
                k.wait(full[step])
                k.wgmma(sums, x[step][rows], y[step][columns], fresh=step.first)
                k.wait_group("wgmma", self.in_flight)
                with k.when(step >= self.in_flight), k.elect():
                    k.arrive(empty[step - self.in_flight])
            k.wait_group("wgmma", 0)
            for _ in k.each("far"):  # 64 rows at a time need fewer registers
                for _ in k.each("half"):  # and row after row they are neighbours in L2
                    k.store(c[f"{at}, {rows}, {columns}"], sums)  # rounds to c's type


if __name__ == "__main__":
    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    values = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 4, "in_flight": 1}
    program = require_legal(Schedule.of(Ring(), values), Ring(), problem, load_device("h200"))
    print(program, verdict(program), emit(program), sep="\n\n")
