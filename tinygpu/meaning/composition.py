"""What a plan means: its steps one after another, on the arrays that they share.

>>> import numpy as np
>>> from tinygpu.isa.algebra import FLOATS
>>> from tinygpu.machines import MACHINES
>>> from tinygpu.machines.hopper import STARTS
>>> from tinygpu.term.operation import matmul
>>> from tinygpu.term.schedule import Schedule
>>> split = MACHINES["hopper_split"]
>>> point = {**STARTS["ring"], "split_k": 2, "add_vector": 1}
>>> plan = Schedule.of(split, point).term(split, matmul("bf16", layout="nt"))
>>> inputs = {"a": np.arange(12.0).reshape(2, 6), "b": np.ones((3, 6))}
>>> found = composed(plan, {"m": 2, "n": 3, "k": 6}, inputs, by_reference({}, FLOATS))
>>> found["parts"][:, :, 0]
array([[ 3., 21.],
       [12., 30.]])
>>> (found["c"] == inputs["a"] @ inputs["b"].T).all()
np.True_

Source: ``tinygpu/term/plan.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tinygpu.isa.algebra import Algebra
from tinygpu.numbers import Array
from tinygpu.term.plan import Plan, PlanArray
from tinygpu.term.program import Program

__all__ = ["Arrays", "by_reference", "composed", "part_of"]

Arrays = dict[str, Array]
Run = Callable[[Program, Mapping[str, int], Arrays], Mapping[str, Array]]


def by_reference(scalars: Mapping[str, float], algebra: Algebra) -> Run:
    """Return what computes a step as its operation says."""

    def run(program: Program, _: Mapping[str, int], inputs: Arrays) -> Mapping[str, Array]:
        own = {name: scalars[name] for name in program.operation.scalars}
        return program.operation.reference(inputs, own, algebra)

    return run


def composed(plan: Plan, sizes: Mapping[str, int], inputs: Mapping[str, Array], run: Run) -> Arrays:
    """Run the steps in order; return all arrays, the inputs and what was written.

    ``run`` computes the outputs of a step's term, at its sizes, from its inputs.
    """
    arrays: Arrays = {o.name: np.asarray(inputs[o.name]) for o in plan.operation.inputs}
    for step in plan.steps:
        own, operation = step.sizes_at(sizes), step.program.operation
        uses = {use.operand: use for use in step.uses}
        given = {o.name: part_of(arrays[uses[o.name].array], uses[o.name], o.axes, own)
                 for o in operation.inputs}  # fmt: skip
        made = run(step.program, own, given)
        for o in operation.outputs:
            use = uses[o.name]
            shape = tuple(int(np.prod([own[a] for a in cut])) for cut in use.axes)
            array = arrays.setdefault(use.array, np.zeros(shape))
            part_of(array, use, o.axes, own)[...] = made[o.name]
    return arrays


def part_of(array: Array, use: PlanArray, axes: tuple[str, ...], sizes: Mapping[str, int]) -> Array:
    """Return an array as a step sees it, in the order of its operand's axes: a view."""
    names = [axis for cut in use.axes for axis in cut]
    cut = array.reshape([sizes[axis] for axis in names])
    return cut.transpose([names.index(axis) for axis in axes])
