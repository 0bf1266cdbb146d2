"""A matmul on Hopper: CTAs of a cluster share tiles by multicast, stay, and store by TMA."""

from typing import Any

from tinygpu import Choice, Machine, Operation, Problem, Schedule, load_device, matmul
from tinygpu.codegen.emit import emit
from tinygpu.isa.memory import GMEM, REGISTERS, SMEM
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import require_legal
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import Requirement, instructions


class Cluster(Machine):
    """c = a b, both inputs contiguous along k; two consumers share the rows of a CTA's tile."""

    name = "cluster"
    operations = ("matmul",)
    dtypes = ("f16", "bf16")
    fuses = False
    levels = (GMEM, SMEM, REGISTERS)
    instructions = instructions(
        "cp.async.bulk.tensor", "cp.async.bulk.tensor.global", "mbarrier", "wgmma", "cvt",
        "bar.sync", "barrier.cluster", "stmatrix", "fence.proxy.async",
    )  # fmt: skip
    numeric = True
    tile_m = Choice(128, 256, meaning="rows of c a CTA computes")
    tile_n = Choice(64, 128, 256, meaning="columns of c a CTA computes")
    tile_k = Choice(64, 128, meaning="steps of k in a stage")
    stages = Choice(2, 3, 4, 5, 6, meaning="tiles of the inputs in shared memory")
    in_flight = Choice(0, 1, meaning="groups of products in flight when a stage is released")
    cluster_m = Choice(1, 2, meaning="CTAs of a cluster along m")
    cluster_n = Choice(1, 2, meaning="CTAs of a cluster along n")
    store_n = Choice(32, 64, meaning="columns stored together")
    store_stages = Choice(1, 2, 4, meaning="chunks of c in shared memory")
    raster = Choice(1, 8, meaning="rows of clusters visited together")

    def requires(self, operation: Operation, choose: Any) -> tuple[Requirement, ...]:
        """Keep what the sums need of a thread's registers."""
        held = choose.tile_m // 128 * choose.tile_n // 2 <= 200
        return (Requirement("sums", held, "sums fit a consumer's registers", "lower tile_m"),)

    def forward(self, k: Kernel) -> None:
        """Load ahead for the whole cluster, multiply, give stages back, store in chunks."""
        a, b, c = k.arrays
        at = "m = (bm rank_m tm), n = (bn rank_n tn), k = (step tk)"
        k.launch(persistent=1, raster=self.raster)
        k.grid("bm", "bn")
        k.cluster(rank_m=self.cluster_m, rank_n=self.cluster_n)
        x = k.smem("x", a.dtype, tm=self.tile_m, tk=self.tile_k, stages=self.stages, swizzle=128)
        y = k.smem("y", b.dtype, tn=self.tile_n, tk=self.tile_k, stages=self.stages, swizzle=128)
        full = k.mbarriers("full", self.stages, arrivals=1)
        empty = k.mbarriers("empty", self.stages, arrivals=2 * self.cluster_m * self.cluster_n)

        with k.role("producer", warpgroups=1, registers=40):
            with k.elect():
                for _ in k.tiles():
                    for step in k.loop("step", over="k", by=self.tile_k):
                        k.wait(empty[step - self.stages])
                        k.arrive(full[step], expect=x.stage_bytes + y.stage_bytes)
                        k.tma(x[step], a[at], signal=full[step], share="tm by rank_n")
                        k.tma(y[step], b[at], signal=full[step], share="tn by rank_m")
            k.sync("cluster")  # nobody leaves while others still send here

        with k.role("consumer", warpgroups=1, registers=232, w=2):
            out = k.smem("out", c.dtype, row=self.tile_m // 2, col=self.store_n,
                         stages=self.store_stages, swizzle="line")  # fmt: skip
            k.threads(warp=4, octet=8, quad=4)  # as wgmma shares a product out
            k.values(far=self.tile_m // 128, chunk=self.tile_n // self.store_n,
                     group=self.store_n // 8, half=2, pair=2)  # fmt: skip
            rows, columns = "tm = (w far warp half octet)", "tn = (chunk group quad pair)"
            sums = k.registers("sums", "f32", "far", "chunk", "group", "half", "pair")
            part = "row = (far warp half octet), col = (group quad pair)"
            for _ in k.tiles():
                for step in k.loop("step", over="k", by=self.tile_k):
                    k.wait(full[step])
                    k.wgmma(sums, x[step][rows], y[step][columns], fresh=step.first)
                    k.wait_group("wgmma", self.in_flight)
                    with k.when(step >= self.in_flight), k.elect():
                        k.arrive(empty[step - self.in_flight], to="cluster")
                k.wait_group("wgmma", 0)
                for back in k.unrolled("back", self.in_flight):
                    with k.when(back < step.count), k.elect():
                        k.arrive(empty[step.last - back], to="cluster")
                for chunk in k.each("chunk"):
                    with k.elect():
                        k.wait_group("bulk", self.store_stages - 1, read=True)
                    k.sync("role")
                    k.stmatrix(out[chunk][part], k.cast(sums, c.dtype))
                    k.fence("proxy.async")
                    k.sync("role")
                    with k.elect():
                        k.tma_store(
                            c["m = (bm rank_m w row), n = (bn rank_n chunk col)"], out[chunk]
                        )
                        k.commit("bulk")
            with k.elect():
                k.wait_group("bulk", 0, read=True)
            k.sync("cluster")


if __name__ == "__main__":
    problem = Problem.of(matmul("bf16", layout="nt"), m=8192, n=8192, k=8192)
    values = {
        "tile_m": 128, "tile_n": 256, "tile_k": 64, "stages": 4, "in_flight": 1,
        "cluster_m": 2, "cluster_n": 1, "store_n": 64, "store_stages": 2, "raster": 8,
    }  # fmt: skip
    program = require_legal(Schedule.of(Cluster(), values), Cluster(), problem, load_device("h200"))
    print(program, verdict(program), emit(program), sep="\n\n")
