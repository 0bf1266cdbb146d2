"""The machine ``elementwise``: y = a*x + b, or another expression of one-dimensional arrays.

A thread loads ``unroll`` vectors of each input, computes, and stores.  The vectors of a CTA's
threads lie side by side, so that a warp touches whole lines.  CTAs take a tile each, or stride over
the tiles.

Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
"""

from __future__ import annotations

from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS
from tinygpu.term.builder import Kernel
from tinygpu.term.machine import Choice, Machine, instructions

__all__ = ["Elementwise"]


class Elementwise(Machine):
    """Elementwise expressions: global memory to registers and back."""

    name = "elementwise"
    levels = (GMEM, L2, L1, REGISTERS)
    instructions = instructions("ld.global", "st.global", "fma", "alu", "mufu", "cvt", "mov")
    numeric = True
    operations = ("elementwise",)
    dtypes = ("f32", "f16", "bf16")
    fuses = False

    vector = Choice(1, 2, 4, 8, meaning="elements moved at once")
    unroll = Choice(1, 2, 4, 8, meaning="vectors of each input that a thread holds")
    threads = Choice(128, 256, 512, 1024, meaning="threads of a CTA")
    ctas = Choice(
        0, 132, 264, 528, 1056, 2112, 4224, structural=True,
        meaning="CTAs that stride; 0: one a tile",
    )  # fmt: skip

    def forward(self, k: Kernel) -> None:
        """Say who counts the elements, then do a tile, or every tile of a CTA that stays."""
        k.threads(thread=self.threads)
        k.values(u=self.unroll, v=self.vector)
        if self.ctas:
            k.grid(block=self.ctas)
            for _ in k.loop("t"):
                self.tile(k, "i = (t block u thread v)")
        else:
            k.grid("block")
            self.tile(k, "i = (block u thread v)")

    def tile(self, k: Kernel, at: str) -> None:
        """Load every input, compute, store."""
        held = {x.name: k.load(x[at], vector=self.vector) for x in k.inputs}
        y = k.compute(k.op.epilogue, held, k.output.dtype, name="y_held")
        k.store(k.output[at], y, vector=self.vector)
