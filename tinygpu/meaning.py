"""Does a term compute its operation?  It is executed in a prime field, at a few small sizes.

In a prime field (``tinygpu.prime_field``) sums and products are exact: a wrong operand, a step left
out or exchanged scalars give another element, almost surely, however near the floats would be.
What floats alone find is too early a rounding, which ``tinygpu.interpret.check`` asks about.

Sizes that are equal hide exchanged strides, so those of an instance differ pairwise.  Where guards
in a loop reach s steps from its start and q from its end, there is an instance for each number of
trips from 1 to s + q + 1; the last has two tiles along each axis of the grid, and ends that are
not full where the term allows that.  This is a test at these sizes, and no proof for others.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import matmul
>>> found = computes(Simt().program(matmul(), Chosen(LADDER["shared"])))
>>> print(found)
computes its operation: tested at 2 sizes, m, n, k = 32, 31, 17 to 49, 48, 64
>>> print(computes(found.program, {"m": 4, "n": 3, "k": 5}))
computes its operation: tested at 1 size, m, n, k = 4, 3, 5

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tinygpu.interpret import edge_of, interpret, tile_of
from tinygpu.operation import Problem
from tinygpu.prime_field import P, prime_field
from tinygpu.program import Do, For, Program, When, walk
from tinygpu.race import Finding

__all__ = ["Meaning", "computes", "instances"]

_MOST_CTAS = 144
_MOST_ELEMENTS = 2**20


@dataclass(frozen=True, slots=True)
class Meaning:
    """At which sizes it was asked, in order, and the first finding, None if there is none.

    Where no instance is small, it is not asked at all, and says so.
    """

    program: Program
    asked: tuple[Mapping[str, int], ...]
    finding: Finding | None

    def __str__(self) -> str:
        axes = ", ".join(self.program.operation.axes)
        if not self.asked:
            return "not asked whether it computes its operation: no instance is small"
        first, last = (", ".join(map(str, self.asked[i].values())) for i in (0, -1))
        if self.finding is not None:
            return f"does not compute its operation, at {axes} = {last}: {self.finding}"
        many = f"{len(self.asked)} sizes" if self.asked[1:] else "1 size"
        span = f"{first} to {last}" if self.asked[1:] else first
        return f"computes its operation: tested at {many}, {axes} = {span}"


def computes(program: Program, sizes: Mapping[str, int] | None = None, draws: int = 2) -> Meaning:
    """Ask at ``sizes``, or at the term's ``instances``, the last with ``draws`` random inputs.

    Whatever the interpreter finds counts, also a race.  Raises ProgramError for a term that is
    malformed, OperationError for sizes that are not the operation's.
    """
    operation = program.operation
    every = instances(program) if sizes is None else (Problem.of(operation, **sizes).sizes,)
    for number, here in enumerate(every):
        for draw in range(draws if number == len(every) - 1 else 1):
            random = np.random.default_rng((number, draw))
            shapes = operation.shapes(here)
            inputs = {
                o.name: random.integers(P, size=shapes[o.name]).astype(np.float64)
                for o in operation.inputs
            }
            scalars = {n: float(random.integers(P)) for n in operation.scalars}
            seed = number + draw
            found = interpret(
                program, here, inputs, scalars=scalars, seed=seed, algebra=prime_field(seed)
            ).findings
            if found:
                first = next((f for f in found if f.kind == "wrong_result"), found[0])
                return Meaning(program, every[: number + 1], _told(program, first))
    return Meaning(program, every, None)


def _told(program: Program, finding: Finding) -> Finding:
    """Add to a wrong result the statements that write the output."""
    if finding.kind != "wrong_result":
        return finding
    stores = [s for s, _ in walk(program) if isinstance(s, Do)]
    own = [str(s) for s in stores if s.write.buffer.name == program.operation.output.name]
    return replace(
        finding,
        statement=own[0] if own[:1] == own else "",
        message=f"{finding.message} (modulo {P}); written by {' or '.join(dict.fromkeys(own))}",
    )


def instances(program: Program) -> tuple[Mapping[str, int], ...]:
    """Return small sizes that differ pairwise and together meet every situation, if they can.

    A grid of many CTAs whatever the sizes are has none: running it takes minutes.
    """
    steps = {
        axis: (*tile_of(program, axis), *edge_of(program, axis)) for axis in program.operation.axes
    }
    order = sorted(steps, key=lambda axis: not steps[axis][1])  # loops first, the others give way
    last = _window(program) if any(looped for _, looped, _, _ in steps.values()) else 2
    found: list[Mapping[str, int]] = []
    for trips in range(1, last + 1):
        sizes: dict[str, int] = {}
        for axis in order:
            width, looped, unit, guarded = steps[axis]
            most = dict(program.at_most).get(axis, width * last)
            tiles = min(trips if looped else 1 + (trips == last), most // width)
            parts = width // unit
            ragged = guarded and parts > 1 and (trips % 2 if looped else trips == last)
            size = (tiles - 1) * width + (unit * (parts // 2 + (parts > 3)) if ragged else width)
            by = unit if guarded else width
            while size in sizes.values():
                size += -by if guarded and size > by else by
            sizes[axis] = size
        found.append({axis: sizes[axis] for axis in steps})
    return tuple(sizes for sizes in found if _is_small(program, sizes))


def _is_small(program: Program, sizes: Mapping[str, int]) -> bool:
    elements = sum(prod(shape) for shape in program.operation.shapes(sizes).values())
    return prod(program.grid_extents(sizes)) <= _MOST_CTAS and elements <= _MOST_ELEMENTS


def _window(program: Program) -> int:
    """Return s + q + 1: s steps from the start and q from the end of a loop are not as others."""
    start, end = 1, 0
    names = {n for n, _ in program.parameters}
    loops = {s.var for s, _ in walk(program) if isinstance(s, For) and s.trips in names}
    for statement, around in walk(program):
        match statement:
            case When(index, bound) if bound in names:
                end = max(end, abs(index.constant))
                short = [
                    int(f.trips) for f in around if isinstance(f, For) and f.trips not in names
                ]
                start, end = max(start, *short, 0), max(end, *short, 0)
            case When(index) if loops & {name for name, _ in index.terms}:
                start = max(start, abs(index.constant))
            case For(trips=str() as trips, start=first) if trips in names:
                start = max(start, first)
    return start + end + 1
