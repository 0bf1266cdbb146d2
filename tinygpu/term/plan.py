"""A plan: several kernels, one after another, and the arrays that lie between them.

A plan does one operation by *steps*.  Each step is a term with an operation of its own, at sizes
that follow from the plan's, and says which array each of its operands is.  An array that is none of
the operation's is a *workspace*: an earlier step writes it, a later one reads it.

    part = PlanStep.of(matmul_of_parts, {"l": 8, "k": value("k").ceildiv(8)},
                   a="a[m, l k]", b="b[n, l k]", c="parts[l, m, n]")
    add = PlanStep.of(sum_over_l, {"l": 8}, parts="parts[l, m, n]", c="c[m, n]")
    Plan("split", operation, (part, add))

``a[m, l k]``: axis for axis of the array the axes of the step that it is cut into, slowest first.
A cut is no copy: the step reads the array by other strides.  It has to be even (law ``even_cuts``).

The boundary between two kernels orders everything: a step begins when all is written that the steps
before it write, so each term is judged alone.  A plan means the composition of what its steps mean,
its time is the sum of theirs, its code is one module with an entry for each.

>>> from tinygpu.term.operation import matmul
>>> from tinygpu.machines.hopper_split import split
>>> first, second = split(matmul("bf16", layout="nt"))
>>> print(first)
matmul: c[l,m,n] f32 = sum over k of (a[l,m,k] bf16 * b[l,n,k] bf16)
>>> print(second)
add_parts: c[m,n] bf16 = sum over l of parts[l,m,n] f32

Source: composition of operations, as of einsum's contraction paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tinygpu.errors import ProgramError, nearest
from tinygpu.term.expression import Constant, Expression, value
from tinygpu.term.operation import Operand, Operation
from tinygpu.term.program import Program

__all__ = ["Plan", "PlanArray", "PlanStep", "Term", "kernels_of", "one_kernel", "steps_of"]

_USE = re.compile(r"(\w+)\[([\w ]+(?:,[\w ]+)*)\]")


@dataclass(frozen=True, slots=True)
class PlanArray:
    """Which array an operand of a step is, and into which of the step's axes each of its is cut."""

    operand: str
    array: str
    axes: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.operand} = {self.array}[{', '.join(map(' '.join, self.axes))}]"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One kernel of a plan: its term, its sizes where they are not the plan's, its arrays."""

    program: Program
    sizes: tuple[tuple[str, Expression], ...]
    uses: tuple[PlanArray, ...]

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int | Expression], **arrays: str) -> PlanStep:
        """Return a step whose operands are arrays, as ``a="a[m, l k]"``; others of their own names.

        Raises ProgramError.
        """
        uses, own = [], program.operation.operands
        for operand, text in {**{o.name: f"{o.name}[{', '.join(o.axes)}]" for o in own},
                              **arrays}.items():  # fmt: skip
            if not (match := _USE.fullmatch(text)):
                raise ProgramError(f"step: {operand} = {text!r}; write it as a[m, l k]")
            axes = tuple(tuple(axis.split()) for axis in match[2].split(","))
            uses.append(PlanArray(operand, match[1], axes))
        given = ((n, e if isinstance(e, Expression) else Constant(e)) for n, e in sizes.items())
        return PlanStep(program, tuple(given), tuple(uses))

    @property
    def fixed(self) -> dict[str, int]:
        """Its sizes that are the same at all of the plan's."""
        return {n: int(e.number) for n, e in self.sizes if isinstance(e, Constant)}

    def sizes_at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return its sizes at those of the plan."""
        own = dict(self.sizes)
        return {
            axis: int(own.get(axis, value(axis)).evaluate(sizes))
            for axis in self.program.operation.axes
        }

    def __str__(self) -> str:
        return "; ".join([*(f"{n} = {e}" for n, e in self.sizes), *map(str, self.uses)])


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels, one after another; see the module's text."""

    name: str
    operation: Operation
    steps: tuple[PlanStep, ...]

    def __post_init__(self) -> None:
        names = [step.program.name for step in self.steps]
        if len(self.steps) < 2 or len({*names}) < len(names):
            raise self._error(f"steps {', '.join(names)}; give two or more of different names")
        known = {o.name: o.dtype for o in self.operation.inputs}
        axes = {o.name: o.axes for o in self.operation.operands}
        left = {o.name: o.dtype for o in self.operation.outputs}
        for step in self.steps:
            own = step.program.operation
            uses = {use.operand: use for use in step.uses}
            if own.groups or self.operation.groups:
                raise self._error("groups have no steps; make a kernel of it")
            if any(o.pages or o.lengths for o in (own, self.operation)):
                raise self._error("pages and lengths have no steps; make a kernel of it")
            if {*uses} != {o.name for o in own.operands}:
                raise self._error(f"{own.name} has {', '.join(o.name for o in own.operands)}, "
                                  f"and arrays are given of {', '.join(uses)}")  # fmt: skip
            if strange := [n for n in own.scalars if n not in self.operation.scalars]:
                raise self._error(f"{own.name} reads {strange[0]}, no scalar of the operation")
            for operand in own.operands:
                use = uses[operand.name]
                if sorted(a for cut in use.axes for a in cut) != sorted(operand.axes):
                    raise self._error(f"{use}: {operand} has other axes")
                if len(use.axes) != len(axes.setdefault(use.array, (*map(" ".join, use.axes),))):
                    raise self._error(f"{use}: {use.array} has {len(axes[use.array])} axes")
                if operand in own.outputs:
                    if use.array in known or left.get(use.array, operand.dtype) != operand.dtype:
                        raise self._error(f"{use}: an input, written before, or of another type")
                elif known.get(use.array) != operand.dtype:
                    raise self._error(f"{use}: it is {known.get(use.array, 'not written yet')}; "
                                      f"{nearest(use.array, known)}")  # fmt: skip
            for output in own.outputs:
                known[uses[output.name].array] = output.dtype
                left.pop(uses[output.name].array, None)
        if left:
            raise self._error(f"no step writes {', '.join(left)}")

    def _error(self, text: str) -> ProgramError:
        return ProgramError(f"plan {self.name}: {text}")

    @property
    def specialised(self) -> bool:
        """Whether sizes are baked into the code of a step."""
        return any(step.program.specialised for step in self.steps)

    @property
    def early(self) -> bool:
        """Whether its first kernel may start while the kernel before it ends."""
        return self.steps[0].program.early

    @property
    def workspaces(self) -> tuple[tuple[int, Operand], ...]:
        """The arrays between steps: the number of the step that writes each, and its operand."""
        given = {o.name for o in self.operation.operands}
        return tuple(
            (number, Operand(use.array, step.program.operation.operand(use.operand).axes, o.dtype))
            for number, step in enumerate(self.steps)
            for o in step.program.operation.outputs
            for use in step.uses
            if use.operand == o.name and use.array not in given
        )

    def cuts(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, str, int, int]]:
        """Yield an array, an axis that is cut, its size, and the number that has to divide it."""
        axes = {o.name: o.axes for o in self.operation.operands}
        for step in self.steps:
            for use in step.uses:
                for axis, cut in zip(axes.get(use.array, ()), use.axes, strict=False):
                    if len(cut) > 1:
                        parts = prod(step.fixed.get(a, 1) for a in cut)
                        yield use.array, axis, sizes[axis], parts

    def __str__(self) -> str:
        lines = [f"plan {self.name}: {self.operation}"]
        for step in self.steps:
            lines += [f"{step.program}", f"  {step}"]
        return "\n".join(lines)


Term = Program | Plan
"""What a schedule builds: one kernel, or several."""


def kernels_of(term: Term) -> tuple[Program, ...]:
    """Return the terms of all kernels."""
    return tuple(step.program for step in term.steps) if isinstance(term, Plan) else (term,)


def one_kernel(term: Term) -> Program:
    """Return the term of the one kernel.  Raises ProgramError for a plan."""
    if isinstance(term, Plan):
        names = ", ".join(step.program.name for step in term.steps)
        raise ProgramError(f"plan {term.name}: it has the kernels {names}; take one of its steps")
    return term


def steps_of(term: Term, sizes: Mapping[str, int]) -> tuple[tuple[Program, dict[str, int]], ...]:
    """Return the terms of all kernels, each with its sizes."""
    if isinstance(term, Plan):
        return tuple((step.program, step.sizes_at(sizes)) for step in term.steps)
    return ((term, dict(sizes)),)
