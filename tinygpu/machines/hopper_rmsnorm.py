"""The machine ``hopper_rmsnorm``: a plan of two kernels for RMSNorm and the matmul behind it.

The first kernel reads the rows of a once, and writes of each 1 / sqrt(mean of squares + eps), in
fp32.  The second is ``hopper``'s: it multiplies a as it is, and each row of sums by the row's
number.  So no normalised rows are written, read or rounded.

Source: B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", 2019: the norm is a factor
of a row, so it may come after the product.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tinygpu.errors import OperationError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.hopper import Hopper
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import apply, value
from tinygpu.term.machine import Choice, Chosen, Requirement, instructions
from tinygpu.term.operation import ACC, Operand, Operation, rmsnorm_matmul
from tinygpu.term.plan import Plan, PlanStep

__all__ = ["HopperRmsnorm", "factored"]

_VECTOR_BYTES = 16


class HopperRmsnorm(Hopper):
    """A number of each row, and a matmul by ``hopper`` that ends with it."""

    name, entry = "hopper_rmsnorm", "hopper_normed"
    operations, gates = ("rmsnorm_matmul",), False
    instructions = (*Hopper.instructions, *instructions("shfl.sync"))

    cluster_k = Choice(1, structural=True, meaning="CTAs of a cluster share no k")
    early = Choice(1, meaning="each kernel starts while the one before it ends")
    norm_warps = Choice(1, 2, 4, 8, meaning="rows of a CTA of the first kernel, a warp each")
    norm_chunks = Choice(1, 2, 4, meaning="vectors of a row that a thread of it holds")

    outputs = MappingProxyType({"bf16": ("bf16", "f32"), "f16": ("f16", "f32")})

    def check(self, operation: Operation) -> None:
        """Raise OperationError if this machine cannot do the operation."""
        super().check(operation)
        a = operation.inputs[0]
        known = [rmsnorm_matmul(a.dtype, operation.output.dtype, layout) for layout in ("nn", "nt")]
        if operation not in known:
            raise OperationError(
                f"machine {self.name}: {operation}; it does rmsnorm_matmul(..) of "
                "tinygpu.term.operation, with rows of a along k: choose the layout nt or nn"
            )

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what ``hopper``'s decisions have to agree on, for the second kernel."""
        return super().requires(factored(operation)[1], choose)

    def plan(self, operation: Operation, choose: Chosen) -> Plan:
        """Build both kernels."""
        first, second = factored(operation)
        chosen = self.chosen(choose)
        norm = trace("norms_of_rows", chosen.norms, first)
        multiply = trace(self.entry, chosen.forward, second)
        return Plan(self.entry, operation, (PlanStep.of(norm, {}), PlanStep.of(multiply, {})))

    def norms(self, k: Kernel) -> None:
        """Sum the squares of a row by a warp; its first lane stores the row's number."""
        a, (squares,) = k.inputs[0], k.op.reductions
        k.launch(early=self.early)
        k.grid("block")
        k.threads(warp=self.norm_warps, lane=32)
        k.values(chunk=self.norm_chunks, v=_VECTOR_BYTES // DTYPES[a.dtype].bytes)
        total = k.zeros(squares.name, "f32")
        for _ in k.loop("t"):
            held = k.load(a["m = (block warp), k = (t chunk lane v)"])
            k.add(total, squares.expression, {"a": held})
        k.butterfly("add", total, over="lane")
        made = k.compute(k.op.epilogue, {squares.name: total}, "f32")
        with k.only(lane=0):
            k.store(k.output["m = (block warp)"], made)


def factored(operation: Operation) -> tuple[Operation, Operation]:
    """Return what the two kernels do: a number of each row, and a matmul times it."""
    squares, acc = operation.reductions
    norm = Operand("norm", ("m",), "f32")
    factor = apply("rsqrt", value(squares.name) / value("k") + value("eps"))
    first = Operation(
        "norms_of_rows", ("m", "k"), operation.inputs[:1], norm, (squares,), factor,
        operation.scalars,
    )  # fmt: skip
    second = replace(
        operation, name="matmul", inputs=(*operation.inputs, norm), reductions=(acc,),
        epilogue=ACC * value("norm"), scalars=(),
    )  # fmt: skip
    return first, second
