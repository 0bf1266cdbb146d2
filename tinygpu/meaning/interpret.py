"""The meaning of a term: it is executed, thread by thread, on NumPy arrays.

``interpret`` runs every CTA of the grid.  *Agents* are threads of a role that run in step: the
first thread, where one acts alone or waits at mbarriers, and warps (of more than 8 in a CTA, sets
of them).  They take turns between barriers as a *seed* says, copies in flight land as late as they
may, at once or at random, and CTAs come in any order.  A correct term gives the operation's result
whatever the seed; whatever is wrong on the way is a *finding*, the first of each kind.  Values that
nobody wrote are NaN, so they cannot pass for results.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul(), Chosen(LADDER["shared"]))
>>> check(program, {"m": 33, "n": 40, "k": 35})
()

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import numpy as np

from tinygpu.errors import OperationError, ProgramError, require_kind
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.memory import DTYPES
from tinygpu.meaning.cluster import Landing, Run
from tinygpu.meaning.composition import Arrays, composed
from tinygpu.meaning.inputs import drawn, kinds
from tinygpu.meaning.race import Finding, GlobalArray
from tinygpu.meaning.tolerance import ratio_of
from tinygpu.meaning.touched import Toucher
from tinygpu.meaning.turns import run_grid
from tinygpu.numbers import Array, Floats
from tinygpu.term.expression import Expression
from tinygpu.term.fields import require_known
from tinygpu.term.operation import Operation, Problem
from tinygpu.term.pages import POOL
from tinygpu.term.plan import Plan, Term
from tinygpu.term.program import Do, Exit, For, Program, WaitGroup, When, walk

__all__ = [
    "SCALAR",
    "Finding",
    "Result",
    "check",
    "edge_of",
    "interpret",
    "looked_up",
    "reduced",
    "tile_of",
    "unwritten",
    "wrong_result",
]

_LANDINGS: tuple[Landing, ...] = ("late", "random", "early")
SCALAR = 0.5
"""What a scalar is where floats are asked."""
_TMA_BYTES = 16  # spec: the strides of a tensor map are multiples of them


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a program computed, and what was wrong with how it did, the first of each kind."""

    outputs: Mapping[str, Array]
    findings: tuple[Finding, ...]


def interpret(
    term: Term,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    *,
    scalars: Mapping[str, float] | None = None,
    seed: int = 0,
    algebra: Algebra = FLOATS,
) -> Result:
    """Execute a program on ``inputs`` (arrays of the operands' shapes, rounded to their types).

    Of a plan one kernel after another, each on what those before it made.

    Raises OperationError for inputs of the wrong shape or a scalar that is missing, ProgramError
    for a term that is malformed.
    """
    if not isinstance(term, Plan):
        return _interpreted(term, sizes, inputs, scalars or {}, seed, algebra)
    given, findings = scalars or {}, list[Finding]()

    def run(program: Program, own: Mapping[str, int], made: Arrays) -> Mapping[str, Array]:
        found = _interpreted(program, own, made, given, seed, algebra)
        findings.extend(found.findings)
        return found.outputs

    types = {o.name: DTYPES[o.dtype] for o in term.operation.inputs}
    rounded = {name: algebra.round(kind, inputs[name]) for name, kind in types.items()}
    arrays = composed(term, sizes, rounded, run)
    results = {o.name: arrays[o.name] for o in term.operation.outputs}
    exact = {o.name: arrays[o.name] for o in term.operation.inputs}
    findings += wrong_result(term, sizes, exact, given, results, algebra)[0]
    return Result(results, tuple(findings))


def _interpreted(
    program: Program,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    scalars: Mapping[str, float],
    seed: int,
    algebra: Algebra,
) -> Result:
    """Execute one kernel."""
    require_known(program)
    _well_formed(program)
    operation, random = program.operation, np.random.default_rng(seed)
    found = looked_up(operation, inputs)
    pool = {POOL: found[POOL]} if operation.pages else {}
    arrays = _arrays(program, {**sizes, **pool}, inputs, algebra)
    f32 = DTYPES["f32"]
    given = {n: float(algebra.round(f32, np.array(x))) for n, x in scalars.items()}
    if missing := [n for n in operation.scalars if n not in given]:
        raise OperationError(f"{operation.name}: no scalar {missing[0]}; give it in scalars")
    known: dict[str, Any] = dict(sizes)
    if groups := operation.groups:
        known[groups.ends] = tuple(int(x) for x in inputs[groups.ends])
        groups.require(known[groups.ends], sizes)
    values = program.parameter_values(known) | found
    landing = _LANDINGS[(seed + seed // len(_LANDINGS)) % len(_LANDINGS)]
    run = Run(program, values, given, arrays, Toucher(values), random, landing, algebra)
    with np.errstate(all="ignore"):  # as the hardware: infinities and NaN are numbers
        run_grid(run, seed)
    results: dict[str, Array] = {}
    findings = [*run.found.values()]
    for out in operation.outputs:
        array = arrays[out.name]
        results[out.name] = algebra.round(array.dtype, array.flat).reshape(array.shape)
        findings += unwritten(program, out.name, array)
    exact = {o.name: arrays[o.name].flat.reshape(arrays[o.name].shape) for o in operation.inputs}
    exact |= {o.name: inputs[o.name] for o in operation.indices}
    findings += wrong_result(program, sizes, exact, given, results, algebra)[0]
    return Result(results, tuple(findings))


def check(
    term: Term, sizes: Mapping[str, int], *, seeds: tuple[int, ...] = (0, 1, 2)
) -> tuple[Finding, ...]:
    """Interpret at each seed on inputs of each kind; return the first finding of each kind.

    The inputs are those of ``tinygpu.meaning.inputs``, scalars are 0.5.  Seeds s and s + 1
    differ in who runs first and when copies land; three of them have all of each.
    """
    if not isinstance(term, Plan):
        require_kind("check: program", term, Program, ProgramError)
    require_kind("check: sizes", sizes, Mapping, OperationError)
    operation = term.operation
    sizes = Problem.of(operation, **sizes).sizes
    found: dict[str, Finding] = {}
    for seed in seeds:
        for kind in kinds(operation):
            inputs = drawn(operation, sizes, kind, np.random.default_rng(seed).standard_normal)
            scalars = dict.fromkeys(operation.scalars, SCALAR)
            for finding in interpret(term, sizes, inputs, scalars=scalars, seed=seed).findings:
                found.setdefault(finding.kind, finding)
    return tuple(found.values())


def reduced(problem: Problem, term: Term) -> dict[str, int]:
    """Return sizes small enough to interpret at which each kernel meets every situation.

    Two tiles along each axis of the grid; along a loop two more than the most stages; the last one
    not full where a guard or an Exit looks at the axis.  No size exceeds the problem's.
    """
    require_kind("reduced: problem", problem, Problem, OperationError)
    if isinstance(term, Plan):
        return _reduced_plan(problem, term)
    require_kind("reduced: program", term, Program, ProgramError)
    program = term
    stages = max((int(b.stages) for b in program.buffers if b.level == "smem"), default=1)
    sizes = {}
    for axis, size in problem.sizes.items():
        tile, looped = tile_of(program, axis)
        unit, guarded = edge_of(program, axis)
        tiles = 2 + stages if looped else 2
        parts = tile // unit
        rest = unit * (parts // 2 + (parts > 3)) if guarded and parts > 1 else tile
        sizes[axis] = min(size, (tiles - 1) * tile + rest, dict(program.at_most).get(axis, size))
    return program.operation.in_pages(sizes)


_FARTHEST, _LONG = 1 << 20, 1 << 10


def tile_of(program: Program, axis: str) -> tuple[int, bool]:
    """Return how far an axis goes before the grid or a loop grows, and whether a loop does.

    Of a loop that runs to a tile value: in some tile.
    """
    names: list[int | str] = []
    moving: set[int | str] = set()
    for statement, _ in walk(program):
        match statement:
            case For(trips=name) | When(bound=name):
                names.append(name)
        for access in statement.accesses:
            moving |= {*access.guard, *(name for o in access.origin for name, _ in o.terms)}
    known = dict(program.parameters)
    trips = sorted({n for n in names if isinstance(n, str) and n in known})
    most = dict(program.at_most).get(axis, _FARTHEST)

    others = dict.fromkeys(program.operation.axes, 1)
    if program.tile_values:  # which may grow with one axis only where another one is long
        named = _sizes_in(program, program.tile_values.values())
        others |= {a: min(dict(program.at_most).get(a, _LONG), _LONG) for a in named}

    def counts(size: int) -> tuple[tuple[int, ...], tuple[object, ...]]:
        sizes = others | {axis: size}
        values = program.parameter_values(sizes)
        every = program.values_of_tiles(sizes).items()  # of those that are not compared alone
        own = tuple(frozenset(each) for name, each in every if name in {*names, *moving})
        return program.grid_extents(sizes), (*(values[t] for t in trips), *own)

    on_grid = axis in _sizes_in(program, [a.extent for a in program.grid])

    def same(size: int) -> bool:
        """Whether nothing grows; a tile's own numbers may change before the grid grows."""
        here, first = counts(size), counts(1)
        return here[0] == first[0] and (on_grid or here == first)

    low, high = 1, 2
    while high <= most and same(high):
        low, high = high, 2 * high
    if high > most:
        return most, False
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if same(middle) else (low, middle)
    return low, counts(high)[1] != counts(1)[1]


def _sizes_in(program: Program, expressions: Iterable[Expression]) -> set[str]:
    """Return the axes whose sizes expressions depend on, by themselves, parameters and the grid."""
    known = dict(program.parameters) | {axis.var: axis.extent for axis in program.grid}
    left = [name for e in expressions for name in e.names()]
    named: set[str] = set()
    while left:
        name = left.pop()
        if name not in named:
            named.add(name)
            left += known[name].names() if name in known else ()
    return named & set(program.operation.axes)


def _reduced_plan(problem: Problem, plan: Plan) -> dict[str, int]:
    """Return sizes at which each kernel of a plan meets every situation; what is cut stays so."""
    found, units = dict.fromkeys(problem.sizes, 1), dict.fromkeys(problem.sizes, 1)
    axes = {o.name: o.axes for o in plan.operation.operands}
    for step in plan.steps:
        whole = step.sizes_at(problem.sizes)
        small = reduced(Problem.of(step.program.operation, **whole), step.program)
        own = {**small, **step.fixed}
        for use in step.uses:
            for axis, cut in zip(axes.get(use.array, ()), use.axes, strict=False):
                found[axis] = max(found[axis], prod(own[a] for a in cut))
                if len(cut) == 1:
                    units[axis] = lcm(units[axis], edge_of(step.program, cut[0])[0])
    whole = {axis: -(-size // units[axis]) * units[axis] for axis, size in found.items()}
    return {axis: min(size, problem.sizes[axis]) for axis, size in whole.items()}


def edge_of(program: Program, axis: str) -> tuple[int, bool]:
    """Return what a size of the axis has to be a multiple of, and whether it may end in a tile."""
    unit, guarded, leaving = 1, True, False
    if (pages := program.operation.pages) and pages.axis == axis:
        unit = pages.size
    for statement, _ in walk(program):
        if not isinstance(statement, Do | Exit):
            continue
        for access in statement.accesses:
            shape = access.buffer.shape if access.buffer.level == "gmem" else ()
            guards = access.guard or (False,) * len(shape)
            mine = [g for n, g in zip(shape, guards, strict=False) if n == axis]
            if isinstance(statement, Exit):
                leaving |= any(mine)
                continue
            guarded &= all(mine)
            if mine and shape[-1] == axis:
                unit = lcm(unit, int(statement.vector))
            if shape and shape[-1] == axis and statement.instruction.unit == "tma":
                unit = lcm(unit, _TMA_BYTES // access.buffer.type.bytes)
    return unit, guarded or leaving


def looked_up(operation: Operation, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """Return the table of pages, how many the pool has, and the rows' lengths, as far as there are.

    Raises OperationError without one of the arrays.
    """
    pages, long, found = operation.pages, operation.lengths, dict[str, Any]()
    for o in operation.indices:
        if o.name not in inputs:
            raise OperationError(f"{operation.name}: no input {o.name}; give an array of integers")
    sizes = operation.sizes({n: x.shape for n, x in inputs.items()}) if pages or long else {}
    if long:
        found[long.name] = tuple(int(x) for x in inputs[long.name])
        long.require(found[long.name], sizes[long.axis])
    if pages:
        found |= {pages.table: inputs[pages.table].astype(np.int64), POOL: sizes[POOL]}
    return found


def _arrays(
    program: Program,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    algebra: Algebra,
) -> dict[str, GlobalArray]:
    """Hold the inputs, and outputs that are poisoned or cleared."""
    operation = program.operation
    shapes = operation.shapes(sizes)
    arrays: dict[str, GlobalArray] = {}
    for operand in operation.inputs:
        name, dtype = operand.name, DTYPES[operand.dtype]
        if name not in inputs or inputs[name].shape != shapes[name]:
            got = inputs[name].shape if name in inputs else "none"
            raise OperationError(
                f"{operation.name}: input {name} has shape {got}; give an array of {shapes[name]}"
            )
        rounded = algebra.round(dtype, inputs[name])
        arrays[name] = GlobalArray(rounded, dtype, output=False, zeroed=False)
    for out in operation.outputs:
        empty = np.full(shapes[out.name], 0.0 if program.zeroed else np.nan)
        arrays[out.name] = GlobalArray(
            empty, DTYPES[out.dtype], output=True, zeroed=program.zeroed, algebra=algebra
        )
    return arrays


def unwritten(program: Program, name: str, output: GlobalArray) -> list[Finding]:
    """Find the first element of an output that nobody wrote."""
    if output.written.all():
        return []
    place = np.unravel_index(int((~output.written).argmax()), output.shape)
    cell = f"{name}[{', '.join(str(int(p)) for p in place)}]"
    text = f"{program.name}: nobody writes {cell}, one of {int((~output.written).sum())}; store it"
    return [Finding("unwritten", "", text, cell=cell)]


def wrong_result(
    term: Term,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Floats],
    scalars: Mapping[str, float],
    results: Mapping[str, Array],
    algebra: Algebra,
) -> tuple[list[Finding], float]:
    """Compare with the operation's reference, where that is a number; say of which part it is.

    The outputs are compared in order, up to the first that is wrong.
    """
    operation, least = term.operation, 1.0
    with np.errstate(all="ignore"):
        reference = operation.reference(inputs, scalars, algebra)
    if algebra.exact:
        ratios = {n: np.where(x == reference[n], 0.0, np.inf) for n, x in results.items()}
    else:
        ratios = ratio_of(term, inputs, scalars, outputs=results, reference=reference)
    for name, result in results.items():
        strange = np.isnan(reference[name])
        ratio = np.where(strange, 0.0, ratios[name])
        least = min(least, 1.0 - strange.sum() / max(1, strange.size))
        if not ratio.size or ratio.max() <= 1:
            continue
        place = np.unravel_index(int(ratio.argmax()), ratio.shape)
        cell = f"{name}[{', '.join(str(int(p)) for p in place)}]"
        got, wanted = float(result[place]), float(reference[name][place])
        if algebra.exact:
            text = f"{term.name}: {cell} is {got:.0f}, not {wanted:.0f}"
        else:
            text = (
                f"{term.name}: {cell} is {got:.6g}, not {wanted:.6g}: "
                f"{ratio.max():.3g} times the error allowed"
            )
        return [Finding("wrong_result", "", text, cell=cell)], least
    return [], least


def _well_formed(program: Program) -> None:
    """Raise ProgramError for what laws refuse, and for which there is no meaning."""
    for statement, _ in walk(program):
        if isinstance(statement, WaitGroup) and int(statement.pending) < 0:
            raise ProgramError(f"{statement}: pending groups are 0 or more; raise it")
