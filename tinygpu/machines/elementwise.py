"""The machine ``elementwise``: y = a*x + b, or another expression of one-dimensional arrays.

A thread loads ``unroll`` vectors of each input, computes, and stores.  The vectors of a CTA's
threads lie side by side, so that a warp touches whole lines.  CTAs take a tile each, or stride over
the tiles.

Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
"""

from __future__ import annotations

from typing import Any

from tinygpu.isa.instruction import INSTRUCTIONS
from tinygpu.isa.memory import GMEM, L1, L2, REGISTERS
from tinygpu.term import program as term
from tinygpu.term.arithmetic import compute
from tinygpu.term.expression import Constant, value
from tinygpu.term.machine import Choice, Machine, instructions
from tinygpu.term.operation import Operation

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

    def program(self, operation: Operation, choose: Any) -> term.Program:
        """Load every input, compute, store."""
        d, side = choose, choose.threads * choose.vector
        tile, values = side * d.unroll, (d.vector, d.unroll)
        start = term.var("block", tile) + (term.var("t", "stride") if d.ctas else 0)
        reads: dict[str, Any] = {n: term.Scalar(n) for n in operation.scalars}
        moves: list[term.Do] = []
        for o in operation.operands:
            array = term.Buffer(o.name, "gmem", o.dtype, o.axes, (1,))
            there = term.Access(array, ((1,), (side,)), ((d.vector,),), (start,), guard=(True,))
            own = term.registers(f"{o.name}_held", o.dtype, d.unroll, d.vector)
            here = reads[o.name] = term.Access(own, ((0, 1), (1, 0)), ((0, 0),))
            last = o == operation.output
            name, write, read = ("st", there, here) if last else ("ld", here, there)
            move = INSTRUCTIONS[f"{name}.global"]
            moves.append(term.Do(move, write, (read,), values, (d.threads,), d.vector))
        results = compute(operation.combine, reads, here, values=values)
        body: tuple[term.Statement, ...] = (*moves[:-1], *results, moves[-1])
        tiles, used = value("i").ceildiv(tile), term.buffers_of(body)
        trips = (("trips", tiles.ceildiv(d.ctas or 1)), ("stride", Constant(d.ctas * tile)))
        axis = term.Axis("block", Constant(d.ctas) if d.ctas else tiles)
        role = term.Role("all", d.threads, (term.For("t", "trips", body),) if d.ctas else body)
        return term.Program(self.name, operation, used, trips * (d.ctas > 0), (axis,), (role,))
