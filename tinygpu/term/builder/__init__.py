"""The tracing builder: a machine is written as ``forward(self, k)``, whose calls append statements.

A *digit* counts from 0.  Its declaration says who counts it, a pattern says where it goes:

    k.grid("bm", "bn")             CTAs          k.threads(warp=8, lane=32)    threads
    k.values(u=4, v=8)             each thread   for step in k.loop("step")    a loop
    k.smem("x", "f32", tm=64, ..)  the dimensions of a tile in shared memory
    k.tmem("sums", "f32", ..)      a tile in tensor memory, of known digits
    k.cluster(rank_m=2)            the CTAs of a cluster
    k.role("consumer", .., w=2)    copies of a role

``x["i = (block thread v)"]`` writes each axis of x in digits, slowest first, as einops does: the
coordinate is the number in mixed radix.  Slowest first too are keywords of declarations.

- An array reads the equations of its own axes alone, so that one pattern serves all operands.
- The slowest digit of an axis may be open (a grid's or loop's without an extent): it covers the
  axis, however long it is.  An axis without one bounds the size.
- CTAs may share out what a loop covers: they stride in ``"i = (turn block u thread v)"``, and each
  has one part of k in ``"k = (part step)"``.  The steps that follow are parameters.
- A dimension of a tile is a digit; ``"m = (bm tm), tm = (warp row)"`` is one equation in another.
  A dimension of a tile that its pattern does not name is counted whole, by each thread.
- Registers keep the digits of their load, and arithmetic goes by digits' names.
- Where the last digit of the contiguous dimension is a thread's own, it moves in vectors of up to
  16 B.
- ``full[step]`` and ``x[step]`` are *uses*: use n of a ring of s stages has stage n mod s.  They go
  on from tile to tile (``k.tiles``): a ring of all roles by tiles, one of a copy by its own turns.

>>> from tinygpu.term.operation import elementwise
>>> def forward(k):
...     k.grid("block")
...     k.threads(thread=128)
...     k.values(v=4)
...     at = "i = (block thread v)"
...     held = {x.name: k.load(x[at]) for x in k.inputs}
...     k.store(k.output[at], k.compute(k.op.epilogue, held))
>>> for statement in trace("scale", forward, elementwise("a*x")).roles[0].body:
...     print(statement)
x_held = ld.global(x[512*block]) x 4 by 4
result = fma.mul(a, x_held) x 4
y[512*block] = st.global(result) x 4 by 4

Source: einops (A. Rogozhnikov, 2022) for patterns; ``docs/tutorial/builder.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygpu.errors import ProgramError, require_kind
from tinygpu.term import program as term
from tinygpu.term.builder.digits import Condition, LoopIndex, Tile, TileValue
from tinygpu.term.builder.memory import Array, Below, Coordinate, Held, Piece
from tinygpu.term.builder.synchronisation import BarrierRing, BarrierUse, Synchronisation
from tinygpu.term.builder.tensor import TensorInstructions
from tinygpu.term.operation import Operation
from tinygpu.term.program import Program
from tinygpu.term.statement import each

__all__ = [
    "Array",
    "BarrierRing",
    "BarrierUse",
    "Below",
    "Condition",
    "Coordinate",
    "Held",
    "Kernel",
    "LoopIndex",
    "Piece",
    "Tile",
    "TileValue",
    "trace",
]


class Kernel(TensorInstructions, Synchronisation):
    """One term in the making; see the module's text.

    A chain of bases, each with its own state: ``Declarations``, ``Scopes``, ``DataMovement``,
    ``Arithmetic``; on top ``Synchronisation`` and ``TensorInstructions``.
    """

    def __init__(self, name: str, operation: Operation) -> None:
        require_kind("kernel: name", name, str, ProgramError)
        require_kind("kernel: operation", operation, Operation, ProgramError)
        super().__init__(name, operation)
        self._options: dict[str, Any] = {}

    def launch(
        self, *, persistent: int = 0, raster: int = 1, ctas_per_sm: int = 1,
        early: int = 0, snake: bool = False, zigzag: bool = False, specialised: int = 0,
        addressing: str = "pointer", guards: str = "each",
    ) -> None:  # fmt: skip
        """Say how the kernel is launched; see ``tinygpu.term.program.Program``."""
        self._options = {
            "persistent": persistent, "raster": raster, "ctas_per_sm": ctas_per_sm, "early": early,
            "snake": snake, "zigzag": zigzag, "specialised": specialised,
            "addressing": addressing, "guards": guards,
        }  # fmt: skip

    def program(self) -> Program:
        """Return the term that was traced.  Raises ProgramError for what is not finished."""
        roles, grid = self._finished(self._options.get("persistent", 0)), self._digits.grid()
        parameters = (*self._pitches, *self._digits.parameters())
        body = tuple(s for role in roles for s in role.body)
        used = term.buffers_of(body)
        arrays = [a.buffer for a in self.arrays if any(a.buffer is b for b in used)]
        held = [b for b in used if b.level == "registers"]
        zeroed = any(isinstance(s, term.Do) and s.instruction.atomic for s in each(body))
        return Program(
            self.name, self.op, (*arrays, *self._on_chip, *held), parameters, grid, roles,
            at_most=tuple(self._bounds.items()), barriers=tuple(self._barriers),
            cluster=self._digits.cluster(), zeroed=zeroed, **self._options,
        )  # fmt: skip


def trace(name: str, forward: Callable[[Kernel], None], operation: Operation) -> Program:
    """Return the term that ``forward`` traces."""
    kernel = Kernel(name, operation)
    forward(kernel)
    return kernel.program()
