"""What has to hold of a term so that a few small sizes prove that it computes its operation.

``tinygpu.meaning.identity`` executes a term at the trip counts 1 to s + q + 1.  That this decides
every trip count is the theorem of ``docs/model.md``, section "Meaning".  It assumes

    proved     the term is legal at every trip count, so that each read gets the write of its index
    affine     accesses are affine with constant coefficients, strides are the operands' own, and
               trips and grid are quotients of the sizes by the steps
    steps      reads of global memory step alike along the loop, and the output does not
    carried    a loop carries rings, and sums that are only added to
    guards     guards, bounds and restarts reach a constant number of steps from either end

and, for ends that are not full tiles, ``ends``: what is outside is read as 0, which adds 0, and is
not stored.  Each is one function here, which returns why it does not hold, or nothing.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul(), Chosen(LADDER["multi-stage"]))
>>> window(program), unproved(program), ends(program)
((2, 1), '', '')

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tinygpu.legality.concurrency.blocks import LaidOut, laid_out
from tinygpu.legality.concurrency.erase import plain
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.term.expression import Apply, Constant, Expression, Value
from tinygpu.term.program import (
    Access,
    Affine,
    Axis,
    Block,
    Do,
    Exit,
    For,
    ForTile,
    Program,
    Scalar,
    When,
    each,
    walk,
)

__all__ = ["ASSUMPTIONS", "Assumption", "ends", "unproved", "window"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption of the theorem: its name, what it states, and why a term breaks it, or ""."""

    name: str
    sentence: str
    broken: Callable[[Program], str]

    def __str__(self) -> str:
        """Return the name and the sentence."""
        return f"{self.name}: {self.sentence}"


def unproved(program: Program) -> str:
    """Return the first assumption that a term breaks, and how; "" where none."""
    for assumption in ASSUMPTIONS:
        if why := assumption.broken(program):
            return f"{assumption.name}: {why}"
    return ""


def window(program: Program) -> tuple[int, int]:
    """Return s and q: so many steps from the start and the end of a loop are not as the others.

    Guards, bounds and restarts are those that the judge's blocks tell apart.  What a guard lets a
    ring hold is read as many steps later as the ring is long: both add up.
    """
    plan, history = _plan(program), _history(program)
    start = max(plan.starts.values(), default=0) + (history if isinstance(history, int) else 0)
    end = max(plan.ends.values(), default=0)
    return max(1, start, max(plan.totals.values(), default=0) - end), end


@lru_cache(256)
def _plan(program: Program) -> LaidOut:
    """Return how the judge reads the term: not abstracted, so that no guard is left out."""
    return laid_out(plain(program))


# The assumptions


def _proved(program: Program) -> str:
    found = verdict(program)
    return "" if found.legal else f"it is {found.outcome}: {found.reason}"


def _affine(program: Program) -> str:
    operation, trips, alone = program.operation, _trips(program), _alone(program)
    if own := list(program.tile_values):
        return f"{' and '.join(own)}: each tile's own"
    if len(trips) > 1:
        return f"loops of {' and '.join(sorted(trips))}"
    if program.at_most:
        return f"{program.at_most[0][0]} is covered by statements, by no loop or grid digit"
    over = {a for r in operation.reductions for a in r.over}
    for name in trips:
        if name not in dict(program.parameters):
            return f"{name} is a size, and bounds a loop or a guard"
        steps = _quotient(dict(program.parameters)[name])
        if steps is None or {steps[0]} != over:
            return f"{name} is no quotient of {', '.join(sorted(over)) or 'a reduced axis'}"
    for statement, around in walk(program):
        if isinstance(statement, Do) and statement.where is not None:
            return f"{statement} compares coordinates"
        for read in statement.reads if isinstance(statement, Do) else ():
            if isinstance(read, Scalar) and read.size:
                return f"{statement} reads the size {read.name} as a number"
        for access in statement.accesses:
            if why := _bound(program, access, around):
                return why
            strange = [
                c
                for o in access.origin
                for n, c in o.terms
                if not isinstance(c, int) and n not in alone
            ]
            if strange:
                return f"{access} moves by {strange[0]}, which the sizes decide"
            if access.buffer.level == "gmem" and (why := _foreign(program, access)):
                return why
    return _grid(program)


def _bound(program: Program, access: Access, around: tuple[Block, ...]) -> str:
    """Return whether a place depends on what is no loop, rank or copy, nor a tile in gmem."""
    known = {s.var for s in around if isinstance(s, For)} | _alone(program) | _finite(program)
    if access.buffer.level == "gmem":
        known |= {axis.var for axis in program.grid}
    strange = [n for o in access.origin for n, _ in o.terms if n not in known]
    return f"{access} moves with {strange[0]}" if strange else ""


def _foreign(program: Program, access: Access) -> str:
    """Return whether a buffer in global memory is not laid out as the operand of its name."""
    axes = program.operation.operand(access.buffer.name).axes
    if access.buffer.pages:
        return f"{access.buffer.name} lies in pages"
    if access.buffer.shape != axes:
        return f"{access.buffer.name} has the shape {access.buffer.shape}"
    for d, stride in enumerate(access.buffer.stride):
        factors = [] if stride == 1 else _factors(program, stride)
        if factors is None or sorted(factors) != sorted(axes[d + 1 :]):
            return f"{access.buffer.name} has the stride {stride}, which is not its own"
    return ""


def _factors(program: Program, name: int | str) -> list[str] | None:
    """Return the axes whose product a stride is, or None."""
    known = dict(program.parameters)

    def of(expression: Expression) -> list[str] | None:
        match expression:
            case Value(inner) if inner in known:
                return of(known[inner])
            case Value(inner):
                return [inner]
            case Apply("mul", (left, right)):
                both = of(left), of(right)
                return None if both[0] is None or both[1] is None else [*both[0], *both[1]]
        return None

    return of(Value(name)) if isinstance(name, str) else None


def _grid(program: Program) -> str:
    """Return whether tiles do not follow each other: by the output's step, one grid axis each."""
    operation = program.operation
    outputs = {o.name: o.axes for o in operation.outputs}
    stores = [
        s.write for s, _ in walk(program) if isinstance(s, Do) and s.write.buffer.name in outputs
    ]
    reads = [
        a
        for s, _ in walk(program)
        for a in s.accesses
        if a.buffer.level == "gmem" and a.buffer.name not in outputs
    ]
    moved: set[str] = set()
    for axis in program.grid:
        if axis.var in _alone(program):
            continue
        found = _quotient(axis.extent)
        if found is None:
            return f"the grid along {axis.var} is no quotient of a size"
        name, width = found
        if name in moved:
            return f"two axes of the grid move along {name}"
        moved.add(name)
        for store in stores:
            axes = outputs[store.buffer.name]
            if name not in axes:
                return f"CTAs along {axis.var} share the output"
            if _step(store.origin[axes.index(name)], axis) != width:
                return f"the output does not step by {width} along {axis.var}"
            others = (o for d, o in enumerate(store.origin) if axes[d] != name)
            if any(_step(o, axis) for o in others):
                return f"the output steps along two axes with {axis.var}"
        for read in reads:
            for own, o in zip(operation.operand(read.buffer.name).axes, read.origin, strict=True):
                if _step(o, axis) != (width if own == name else 0):
                    return f"{read} does not step as the output along {axis.var}"
    for loop in (s for s, _ in walk(program) if isinstance(s, ForTile)):
        role = next(r for r in program.roles if any(x is loop for x in each(r.body)))
        plain = loop.start == Affine() and int(loop.step) == 1
        in_turn = loop.start == Affine(0, ((role.copy, 1),)) and int(loop.step) == int(role.copies)
        if not (plain or in_turn):
            return f"tiles from {loop.start} by {loop.step} may not be all"
    return ""


def _steps(program: Program) -> str:
    operation, looped = program.operation, _looped(program)
    trips = _trips(program)
    if not trips:
        return ""
    found = _quotient(dict(program.parameters)[next(iter(trips))])
    assert found is not None  # _affine
    axis, width = found
    for statement, around in walk(program):
        if not isinstance(statement, Do):
            continue
        variables = {n for s in around for n in s.binds} & looped
        for access in statement.accesses:
            moving = {
                d: sum(int(c) for n, c in o.terms if n in looped)
                for d, o in enumerate(access.origin)
            }
            if access.buffer.level != "gmem":
                if any(moving.values()):
                    return f"{access} moves on chip from step to step, but by its index"
                continue
            axes = operation.operand(access.buffer.name).axes
            if access is statement.write:
                if variables or any(moving.values()):
                    return f"{access} is stored in the loop"
                continue
            wanted = {d: width if axes[d] == axis else 0 for d in moving}
            if axis in axes and not variables:
                return f"{access} is read outside of the loop"
            if axis not in axes and variables:
                return f"{access} is read in the loop"
            if moving != wanted:
                return f"{access} does not step by {width} along {axis}"
    return ""


def _carried(program: Program) -> str:
    found = _history(program)
    return found if isinstance(found, str) else ""


def _history(program: Program) -> int | str:
    """Return how many steps before its use a value may have been read, or why it is not known."""
    if not _trips(program):
        return 0
    looped = _looped(program)
    inside = [
        (s, around)
        for s, around in walk(program)
        if isinstance(s, Do) and {n for b in around for n in b.binds} & looped
    ]
    sums = {s.write.buffer.name for s, _ in inside if _adds(s)}
    edges: dict[str, set[str]] = {}
    for s, _ in inside:
        for access in s.accesses:
            name = access.buffer.name
            if name in sums and not (_adds(s) and access == s.write):
                return f"{s} touches the sums {name} in the loop"
        if s.write.buffer.level != "gmem" and s.write.buffer.name not in sums:
            sources = {r.buffer.name for r in s.reads if isinstance(r, Access)}
            edges.setdefault(s.write.buffer.name, set()).update(sources)
    if ring := _cycle(edges):
        return f"{ring} depends on itself from step to step"
    longest: dict[str, int] = {}
    while len(longest) < len(edges):  # no cycle: each round finds one whose sources are known
        for name in edges.keys() - longest.keys():
            if (edges[name] & edges.keys()) <= longest.keys():
                lag = _lag(inside, name, looped)
                if isinstance(lag, str):
                    return lag
                longest[name] = lag + max((longest.get(n, 0) for n in edges[name]), default=0)
    return max(longest.values(), default=0)


def _lag(
    inside: list[tuple[Do, tuple[Block, ...]]], name: str, looped: frozenset[str]
) -> int | str:
    """Return how many steps after its write a ring is read, or why there is no such number.

    Of two indices with the same step one is the other some steps later, or never.
    """
    writes: list[tuple[_Index, int]] = []
    reads: list[tuple[_Index, int]] = []
    for number, (s, around) in enumerate(inside):
        for access in s.accesses:
            if access.buffer.name == name:
                found = _apart(access.index, around, looped)
                (writes if access is s.write else reads).append((found, number))
    most = 0
    for here, number in reads:
        for there, before in writes:
            if (here.step, here.others) != (there.step, there.others):
                return f"{name} is written and read at indices of different steps"
            if here.step < 0 or (here.step == 0 and number <= before):
                return f"{name} is read before it is written"
        if here.step == 0:
            continue
        made = {c for there, _ in writes for c in there.constants}
        for constant in here.constants:
            lags = [
                (c - constant) // here.step
                for c in made
                if c >= constant and (c - constant) % here.step == 0
            ]
            if not lags:
                return f"{name} is read at an index that is not written in the loop before"
            most = max(most, *lags)
    return most


@dataclass(frozen=True, slots=True)
class _Index:
    """A ring index: its step in the loop, what else it depends on, and its possible constants."""

    step: int
    others: tuple[tuple[str, str], ...]
    constants: frozenset[int]


def _apart(index: Affine, around: tuple[Block, ...], looped: frozenset[str]) -> _Index:
    ranges = {
        s.var: range(s.start, int(s.trips))
        for s in around
        if isinstance(s, For) and not isinstance(s.trips, str)
    }
    step, constants, others = 0, {int(index.constant)}, []
    for name, c in index.terms:
        if name in looped:
            step += c if isinstance(c, int) else -(2**20)
        elif name in ranges and isinstance(c, int):
            constants = {x + c * i for x in constants for i in ranges[name]}
        else:
            others.append((name, str(c)))
    return _Index(step, tuple(sorted(others)), frozenset(constants))


def _adds(s: Do) -> bool:
    """Whether a statement adds to what it writes: products, or values."""
    if s.write not in s.reads:
        return False
    at = s.reads.index(s.write)
    if s.instruction.unit == "tensor" or (s.variant or s.instruction.name) == "fma":
        return at == len(s.reads) - 1 and s.reads.count(s.write) == 1 and len(s.reads) > 1 + 1
    return s.variant == "add" and s.reads.count(s.write) == 1


def _cycle(edges: dict[str, set[str]]) -> str:
    """Return a buffer that depends on itself, or ""."""
    for name in edges:
        seen: set[str] = set()
        left = list(edges[name])
        while left:
            one = left.pop()
            if one == name:
                return name
            if one not in seen:
                seen.add(one)
                left += edges.get(one, ())
    return ""


def _guards(program: Program) -> str:
    return "; ".join(_plan(program).failed[:1])


def ends(program: Program) -> str:
    """Return why ends that are not full tiles do not follow from full ones, or ""."""
    operation = program.operation
    guarded: set[str] = set()
    every: list[tuple[Access, str, bool | str, bool]] = []
    for statement, _ in walk(program):
        if isinstance(statement, Exit):
            return "threads leave where the output ends"
        if not isinstance(statement, Do):
            continue
        for access in statement.accesses:
            if access.buffer.level != "gmem":
                continue
            axes = operation.operand(access.buffer.name).axes
            guards = access.guard or (False,) * len(axes)
            written = access is statement.write
            every += [(access, n, g, written) for n, g in zip(axes, guards, strict=True)]
            guarded |= {n for n, g in zip(axes, guards, strict=True) if g}
    for access, name, guard, written in every:
        if name in guarded and not guard:
            return f"{access} is not guarded along {name}"
        if not written and access.outside:
            return f"{access} is {access.outside} outside"
    for name in guarded & {a for r in operation.reductions for a in r.over}:
        if not _vanishes(program, name):
            return f"{operation.reductions[-1].expression} is not 0 where what depends on {name} is"
    return ""


def _vanishes(program: Program, axis: str) -> bool:
    """Whether each reduction's summand is a product with an operand of the axis."""
    operation = program.operation
    along = {o.name for o in operation.inputs if axis in o.axes}

    def of(expression: Expression) -> bool:
        match expression:
            case Value(name):
                return name in along
            case Apply("mul", arguments):
                return any(of(a) for a in arguments)
        return False

    return all(of(r.expression) for r in operation.reductions)


ASSUMPTIONS = (
    Assumption("proved", "the term is legal at every trip count", _proved),
    Assumption("affine", "accesses, strides, trips and grid are affine in the sizes", _affine),
    Assumption("steps", "reads step alike along the loop, the output does not", _steps),
    Assumption("carried", "a loop carries rings, and sums that are only added to", _carried),
    Assumption("guards", "guards reach a constant number of steps from either end", _guards),
)
"""What the theorem assumes, in the order in which it is asked."""


# What a term consists of


def _trips(program: Program) -> frozenset[str]:
    """Return the parameters that count a loop's steps, or bound a guard."""
    found = set()
    for statement, _ in walk(program):
        match statement:
            case For(trips=str() as name) | When(bound=str() as name):
                found.add(name)
    return frozenset(found)


def _looped(program: Program) -> frozenset[str]:
    """Return the variables that count a loop's steps, in the loop and before or after it."""
    found = {s.var for s, _ in walk(program) if isinstance(s, For) and isinstance(s.trips, str)}
    for statement, _ in walk(program):
        if isinstance(statement, When) and isinstance(statement.bound, str):
            found |= {name for name, _ in statement.index.terms}
    return frozenset(found) - _finite(program)


def _finite(program: Program) -> frozenset[str]:
    """Return the variables of ranks and copies."""
    return frozenset({n for n, _ in program.cluster} | {r.copy for r in program.roles} - {""})


def _alone(program: Program) -> frozenset[str]:
    """Return the grid's variables that are always 0."""
    return frozenset(a.var for a in program.grid if a.extent == Constant(1))


def _quotient(expression: Expression) -> tuple[str, int] | None:
    """Return the axis and the number by which a quotient, rounded up, divides it, or None."""
    match expression:
        case Value(name):
            return name, 1
        case Apply("ceildiv", (inner, Constant(by))):
            found = _quotient(inner)
            return None if found is None or by != int(by) else (found[0], found[1] * int(by))
    return None


def _step(index: Affine, axis: Axis) -> int:
    return sum(int(c) for n, c in index.terms if n == axis.var)
