"""A term's contract: which arrays its kernel takes, derived from its accesses.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> term = Simt().program(matmul("f32"), Chosen(LADDER["vectorised"]))
>>> for argument in contract_of(term).arguments:
...     print(argument.name, argument.dtype, argument.axes, argument.stride, argument.vector)
a f32 ('m', 'k') ('ld_a', 1) 4
b f32 ('k', 'n') ('ld_b', 1) 4
c f32 ('m', 'n') ('ld_c', 1) 4

Source: ``runtime/contract.py``, which checks arrays against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tinygpu.codegen.emit import signature
from tinygpu.codegen.kernel.smem import smem_plan
from tinygpu.codegen.kernel.tensor_map import tensor_maps
from tinygpu.codegen.runtime.contract import (
    FORMULAS,
    Argument,
    Contract,
    ContractStep,
    Extent,
    Formula,
    Reach,
)
from tinygpu.codegen.runtime.views import View
from tinygpu.errors import ProgramError
from tinygpu.isa.memory import ARRAY_DTYPES
from tinygpu.term.expression import Apply, Constant, Expression, Value
from tinygpu.term.operation import LARGEST_SIZE, Operand, Operation, Problem
from tinygpu.term.plan import Plan, Term
from tinygpu.term.program import Access, Block, Do, Exit, For, Program, When, span, walk

__all__ = ["contract_of", "dense", "vector_of"]


def contract_of(term: Term, sizes: Mapping[str, int] | None = None) -> Contract:
    """Return the contract of a term's kernel, or of a plan; a specialised one is for ``sizes``."""
    if not isinstance(term, Plan):
        return _of_kernel(term, sizes)
    operation, steps = term.operation, []
    for step in term.steps:
        own = dict(step.sizes)
        uses = {use.operand: use for use in step.uses}
        steps.append(
            ContractStep(
                _of_kernel(step.program, step.sizes_at(sizes) if sizes else None),
                tuple((a, _formula(own.get(a, Value(a)))) for a in step.program.operation.axes),
                tuple(
                    (o.name, uses[o.name].array, uses[o.name].axes)
                    for o in step.program.operation.operands
                ),
            )
        )
    return Contract(
        name=term.name,
        operation=operation.name,
        arguments=tuple(
            Argument(o.name, o.dtype, ARRAY_DTYPES[o.dtype].bytes, o.axes, o.axes, (), 1, False)
            for o in operation.operands
        ),
        scalars=operation.scalars,
        parameters=(),
        grid=(),
        integers=(),
        specialised=term.specialised,
        sizes=(),
        at_most=(),
        variables=(),
        reaches=(),
        maps=(),
        threads=0,
        smem_bytes=0,
        cluster=1,
        ctas_per_sm=1,
        persistent=False,
        early=term.early,
        zeroed=False,
        in_place=False,
        addressing="",
        outputs=len(operation.outputs),
        steps=tuple(steps),
    )


def _of_kernel(program: Program, sizes: Mapping[str, int] | None) -> Contract:
    operation, specialised = program.operation, program.specialised
    vectors, guarded = vector_of(program), _guarded(program)
    buffers = {b.name: b for b in program.buffers}
    copies = [(role.copy, role.copies - 1) for role in program.roles if role.copy]
    return Contract(
        name=program.name,
        operation=operation.name,
        arguments=tuple(
            Argument(
                name=o.name,
                dtype=o.dtype,
                width=ARRAY_DTYPES[o.dtype].bytes,
                axes=_extents(operation, o),
                shape=buffers[o.name].shape if o.name in buffers else o.axes,
                stride=buffers[o.name].stride if o.name in buffers else _contiguous(operation, o),
                vector=vectors.get(o.name, 1),
                guarded=o.name in guarded,
            )
            for o in operation.operands
        ),
        scalars=operation.scalars,
        parameters=tuple((name, _formula(e)) for name, e in program.parameters),
        grid=tuple((axis.var, _formula(axis.extent)) for axis in program.grid),
        integers=() if specialised else signature(program),
        specialised=specialised,
        sizes=tuple(sizes.items()) if specialised and sizes else (),
        at_most=program.at_most,
        variables=(*((name, extent - 1) for name, extent in program.cluster), *copies),
        reaches=tuple(dict.fromkeys(_reaches(program))),
        maps=tensor_maps(program),
        threads=program.threads,
        smem_bytes=smem_plan(program).total_bytes,
        cluster=math.prod(extent for _, extent in program.cluster),
        ctas_per_sm=program.ctas_per_sm,
        persistent=program.persistent,
        early=program.early,
        zeroed=program.zeroed,
        in_place=not operation.reductions,
        addressing=program.addressing,
        tile_values=_tile_values(program),
        outputs=len(operation.outputs),
    )


def _extents(operation: Operation, operand: Operand) -> tuple[Extent, ...]:
    """Return how long each dimension of an operand is: of a table a column for each block."""
    pages = operation.pages
    if pages and operand.name == pages.table:
        return (pages.rows, (pages.axis, pages.size))
    return operation.stored(operand)


def _contiguous(operation: Operation, operand: Operand) -> tuple[int | str, ...]:
    """Return the strides of an array of integers."""
    pages = operation.pages
    return (pages.pitch, 1) if pages and operand.name == pages.table else (1,)


def dense(problem: Problem) -> list[View]:
    """Return views of arrays as an allocator gives them: aligned and without gaps."""
    views = []
    for operand in problem.operation.operands:
        shape = problem.operation.shapes(problem.sizes)[operand.name]
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        views.append(View(0, operand.dtype, shape, strides))
    return views


def vector_of(program: Program) -> dict[str, int]:
    """Return for each gmem buffer the widest vector (in elements) that a statement moves.

    TMA wants addresses and leading dimensions that are multiples of 16 B.
    """
    widest: dict[str, int] = {}
    for statement, _ in walk(program):
        if isinstance(statement, Do):
            for access in _global(statement):
                name, tma = access.buffer.name, statement.instruction.unit == "tma"
                vector = 16 // access.buffer.type.bytes if tma else int(statement.vector)
                widest[name] = max(widest.get(name, 1), vector)
    return widest


def _global(statement: Do | Exit) -> Iterator[Access]:
    return (a for a in statement.accesses if a.buffer.level == "gmem")


def _guarded(program: Program) -> set[str]:
    """Return the arrays whose last extent is asked for by the vector.

    TMA stores whole pieces of 16 B, past the end of a line; what it loads from there is zero.
    """
    return {
        a.buffer.name
        for s, _ in walk(program)
        if isinstance(s, Do)
        for a in _global(s)
        if (a is s.write if s.instruction.unit == "tma" else a.guard and bool(a.guard[-1]))
    }


def _formula(expression: Expression) -> Formula:
    match expression:
        case Constant(number) if number == int(number):
            return int(number)
        case Value(name):
            return name
        case Apply(operator, arguments) if operator in FORMULAS:
            return (operator, *map(_formula, arguments))
    raise ProgramError(f"parameter {expression}: sizes are whole; write it with {[*FORMULAS]}")


def _tile_values(program: Program) -> tuple[tuple[str, Formula, Formula], ...]:
    """Return the ends of each tile value, and of each part of its expression, over all tiles.

    Each names the parts before it: ``part`` is the most, ``part least`` the least of it.
    """
    found: dict[str, tuple[Formula, Formula]] = {axis.var: (0, axis.var) for axis in program.grid}
    places, long = {*found}, program.operation.lengths

    def named(name: str) -> tuple[Formula, Formula]:
        return found[name] if name in places else (f"{name} least", name)

    def of(node: Expression) -> tuple[Formula, Formula]:
        if isinstance(node, Value):
            return named(node.name) if node.name in found else (node.name, node.name)
        if isinstance(node, Constant):
            return _formula(node), _formula(node)
        if str(node) not in found:
            found[str(node)] = parts(node)
        return named(str(node))

    def parts(node: Expression) -> tuple[Formula, Formula]:
        assert isinstance(node, Apply)
        match node:
            case Apply("element", (Value(name), _)) if long and name == long.name:
                return 0, LARGEST_SIZE  # whatever it has
            case Apply("element" | "slots_before"):  # an end of a group, or 0; no more blocks
                assert program.operation.groups is not None
                return 0, program.operation.groups.rows
            case Apply("slot_group", (_, count, _, _)):
                return 0, ("sub", _formula(count), 1)
        _formula(replace(node, arguments=(Constant(1),) * len(node.arguments)))  # is known
        (a, b), (c, d) = (of(argument) for argument in node.arguments)
        match node.operator:
            case "sub":
                ends: tuple[Formula, Formula] = ("sub", a, d), ("sub", b, c)
            case "mul":
                p, q, r, s = (("mul", x, y) for x in (a, b) for y in (c, d))
                least: Formula = ("min", ("min", p, q), ("min", r, s))
                ends = least, ("max", ("max", p, q), ("max", r, s))
            case operator:  # monotonic in both; a quotient is by a positive number
                ends = (operator, a, c), (operator, b, d)
        return ends

    for name, expression in program.tile_values.items():
        found[name] = of(expression)
    return tuple((name, *ends) for name, ends in found.items() if name not in places)


def _reaches(program: Program) -> Iterator[Reach]:
    """Yield how far each access to gmem counts, along each axis."""
    left: set[str] = set()  # variables of threads that left where they are outside
    for statement, around in walk(program):
        if isinstance(statement, Exit):
            left |= {v for o in statement.access.origin for v, _ in o.terms}
        if not isinstance(statement, Do):
            continue
        for access in _global(statement):
            for d, axis in enumerate(access.buffer.shape):
                origin = access.origin[d] if access.origin else None
                names = {v for v, _ in origin.terms} if origin else set()
                yield Reach(
                    access=str(access),
                    axis=axis,
                    origin=(origin.constant, *origin.terms) if origin else (0,),
                    span=int(span(access, statement.values, statement.threads, d)),
                    guarded=bool(access.guard and access.guard[d]) or bool(names & left),
                    around=_around(around),
                )


def _around(blocks: tuple[Block, ...]) -> tuple[tuple[str, str, int, int | str], ...]:
    """Return the loops and guards that bound variables, as ``Reach`` has them."""
    found: list[tuple[str, str, int, int | str]] = []
    for block in blocks:
        if isinstance(block, For):
            found.append(("for", block.var, block.start, block.trips))
        elif isinstance(block, When) and [c for _, c in block.index.terms] == [1]:
            found.append(("when", block.index.terms[0][0], block.index.constant, block.bound))
    return tuple(found)
