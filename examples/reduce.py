"""An instruction that the package does not have, and a machine that uses it: split-k by TMA."""

from collections.abc import Iterator
from functools import partial

from tinygpu import Choice, Kernel, Machine, Problem, Schedule, emit, load_device, matmul
from tinygpu.codegen.rules.tma import bulk_tensor
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.memory import GMEM, REGISTERS, SMEM
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import require_legal
from tinygpu.legality.reach import Case, Clause, Place
from tinygpu.term.machine import instructions


def adds_in_f32(case: Case, place: Place) -> Iterator[Clause]:
    """State that parts are added in f32: in 16 bits each addition would round the sum."""
    dtype = place.do.write.buffer.dtype
    yield Clause(dtype == "f32", "parts of k are added in {}; add them in f32", (dtype,))


REDUCE = Instruction(
    "cp.reduce.async.bulk.tensor",
    reads=("smem",),
    writes=("gmem",),
    unit="tma",
    completion="bulk_group",  # what observes its end: a wait for groups of bulk copies
    atomic=True,  # it adds to an array that is cleared before the launch
    issuer="one",
    arch="sm_90",
    lower=partial(bulk_tensor, store="cp.reduce", how=".add"),
    laws=(adds_in_f32,),
)
"""Adds a tile of shared memory to one of global memory.  Source: PTX ISA 9, the same name."""


class SplitK(Machine):
    """c = a b; ``parts`` CTAs share the k of a tile, and TMA adds up what they have."""

    name = "split_k"
    operations = ("matmul",)
    dtypes = ("f16", "bf16", "f32")
    fuses = False
    levels = (GMEM, SMEM, REGISTERS)
    instructions = (
        *instructions("cp.async.bulk.tensor", "mbarrier", "wgmma", "bar.sync"),
        *instructions("st.shared", "cvt", "stmatrix", "fence.proxy.async"),
        REDUCE,
    )
    numeric = True
    tile_n = Choice(64, 128, 256, meaning="columns of c a CTA computes")
    stages = Choice(2, 4, 6, meaning="tiles of the inputs in shared memory")
    parts = Choice(1, 2, 4, 8, 16, meaning="CTAs that share the k of a tile")
    store_n = Choice(16, 32, 64, meaning="columns that are added at once")

    def forward(self, k: Kernel) -> None:
        """Load ahead, multiply, give stages back; then add to c by chunks of columns."""
        a, b, c = k.arrays
        at = "m = (bm row), n = (bn tn), k = (part step tk)"
        k.grid("bm", "bn", part=self.parts)
        x = k.smem("x", a.dtype, row=64, tk=64, stages=self.stages, swizzle=128)
        y = k.smem("y", b.dtype, tn=self.tile_n, tk=64, stages=self.stages, swizzle=128)
        out = k.smem("out", c.dtype, row=64, col=self.store_n, swizzle="line")
        full = k.mbarriers("full", self.stages, arrivals=1)
        empty = k.mbarriers("empty", self.stages, arrivals=1)
        with k.role("producer", warps=1), k.elect():
            for step in k.loop("step"):
                k.wait(empty[step - self.stages])
                k.arrive(full[step], expect=x.stage_bytes + y.stage_bytes)
                k.tma(x[step], a[at], signal=full[step])
                k.tma(y[step], b[at], signal=full[step])
        with k.role("consumer", warpgroups=1):
            k.threads(warp=4, octet=8, quad=4)  # as wgmma shares a product out
            k.values(some=self.tile_n // self.store_n, group=self.store_n // 8, half=2, pair=2)
            rows, columns = "row = (warp half octet)", "tn = (some group quad pair)"
            sums = k.registers("sums", "f32", "some", "group", "half", "pair")
            for step in k.loop("step"):
                k.wait(full[step])
                k.wgmma(sums, x[step][rows], y[step][columns], fresh=step.first)
                k.wait_group("wgmma", 0)
                with k.elect():
                    k.arrive(empty[step])
            for _ in k.each("some"):
                with k.elect():
                    k.wait_group("bulk", 0, read=True)
                k.sync("role")
                k.store(out[f"{rows}, col = (group quad pair)"], k.cast(sums, c.dtype))
                k.fence("proxy.async")
                k.sync("role")
                with k.elect():
                    k.tma_store(c["m = (bm row), n = (bn some col)"], out, by=REDUCE)
                    k.commit("bulk")
            with k.elect():
                k.wait_group("bulk", 0, read=True)


if __name__ == "__main__":
    problem = Problem.of(matmul("bf16", "f32", layout="nt"), m=64, n=4096, k=16384)
    values = {"tile_n": 128, "stages": 4, "parts": 4, "store_n": 32}
    program = require_legal(Schedule.of(SplitK(), values), SplitK(), problem, load_device("h200"))
    print(program, verdict(program), emit(program), sep="\n\n")
