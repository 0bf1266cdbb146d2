"""The machine ``hopper_split``: a plan of two kernels for products with few tiles and a deep k.

The first kernel is ``hopper``'s, a batch of products, each of a part of k, with sums in fp32 of a
workspace.  The second adds the parts, and makes the output of the sum by the epilogue.  Parts are
as many as fill the chip, where CTAs of a cluster (``cluster_k``) are at most 8 and share one tile.

Source: CUTLASS, "Efficient GEMM in CUDA", parallel reduction split-K.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tinygpu.errors import OperationError
from tinygpu.machines.hopper import Hopper
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import value
from tinygpu.term.machine import Choice, Chosen, Requirement
from tinygpu.term.operation import ACC, Operand, Operation, Reduction
from tinygpu.term.plan import Plan, PlanStep

__all__ = ["HopperSplit", "split"]

_PART = "l"  # the axis that counts parts, a batch's


class HopperSplit(Hopper):
    """Parts of k by ``hopper``, and a kernel that adds them."""

    name, entry = "hopper_split", "hopper_parts"
    operations, gates = ("matmul",), False
    spread = ("split_k", "tile_m", "tile_n", "consumers", "cluster_m", "cluster_n")
    in_order = None

    consume = Choice("cooperative", structural=True, meaning="consumers share tiles")
    cluster_k = Choice(1, structural=True, meaning="CTAs of a cluster share no k")
    persistent = Choice(0, meaning="a CTA has one tile of one part")
    split_k = Choice(2, 3, 4, 6, 8, 12, 16, 24, 32, structural=True,
                     meaning="parts of k, which a second kernel adds")  # fmt: skip
    add_vector = Choice(1, 2, 4, meaning="sums that a thread of the second kernel moves at once")

    outputs = MappingProxyType({"bf16": ("bf16", "f32"), "f16": ("f16", "f32")})

    def check(self, operation: Operation) -> None:
        """Raise OperationError if this machine cannot do the operation."""
        super().check(operation)
        if _PART in operation.axes:
            raise OperationError(
                f"machine {self.name}: {operation.name} with a batch, which fills the chip; choose "
                "hopper"
            )

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what ``hopper``'s decisions have to agree on, for the first kernel."""
        return super().requires(split(operation)[0], choose)

    def plan(self, operation: Operation, choose: Chosen) -> Plan:
        """Build both kernels."""
        first, second = split(operation)
        chosen = self.chosen(choose)
        parts = choose.split_k
        uses = {
            o.name: f"{o.name}[{', '.join(f'{_PART} k' if a == 'k' else a for a in o.axes)}]"
            for o in operation.inputs[:2]
        }
        own = f"parts[{_PART}, m, n]"
        sizes = {_PART: parts, "k": value("k").ceildiv(parts)}
        multiply, add = (
            trace(self.entry, chosen.forward, first),
            trace("add_parts", chosen.add, second),
        )
        return Plan(self.entry, operation, (
            PlanStep.of(multiply, sizes, **uses, c=own),
            PlanStep.of(add, {_PART: parts}),
        ))  # fmt: skip

    def add(self, k: Kernel) -> None:
        """Add the parts of a few columns, make c of the sums, and store."""
        k.launch(early=1)
        k.grid("bm", "bn")
        k.threads(row=8, lane=32)
        k.values(v=self.add_vector)
        at = "m = (bm row), n = (bn lane v)"
        parts, *others = k.inputs
        sums = k.zeros("sums", "f32", "v")
        for _ in k.unrolled("part", self.split_k):
            k.add(sums, k.load(parts[f"{_PART} = part, {at}"], vector=self.add_vector))
        held = {x.name: k.load(x[at]) for x in others}
        made = k.compute(k.op.epilogue, {"acc": sums, **held}, k.output.dtype)
        k.store(k.output[at], made, vector=self.add_vector)


def split(operation: Operation) -> tuple[Operation, Operation]:
    """Return what the two kernels of a matmul do: products of parts of k, and their sum."""
    products = tuple(replace(o, axes=(_PART, *o.axes)) for o in operation.inputs[:2])
    axes = (_PART, *operation.axes)
    own = (_PART, *operation.output.axes)
    (acc,) = operation.reductions
    first = replace(
        operation, axes=axes, inputs=products, output=Operand("c", own, "f32"), epilogue=ACC,
        scalars=(),
    )  # fmt: skip
    second = Operation(
        "add_parts", tuple(a for a in axes if a != "k"),
        (Operand("parts", own, "f32"), *operation.inputs[2:]), operation.output,
        (Reduction(acc.name, "add", value("parts"), (_PART,)),), operation.epilogue,
        operation.scalars,
    )  # fmt: skip
    return first, second
