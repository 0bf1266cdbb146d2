"""Mask cover: a term of masked attention sums exactly the pairs that its operation shows.

A tile of rows walks blocks of keys, in turns 0 <= t < T.  T may be the tile's own, so that blocks
without a visible key are skipped; a predicate hides scores, and only in some turns.  With

    visible(r, c)    row r < m and key 0 <= c < n, and the operation's condition holds of them
    key(t, y)        origin + a t + y, the key of column y < B of the block of turn t; of CTAs that
                     share the keys of a tile, CTA p of P has origin + B p and a = B P or -B P
    hidden(t, x, y)  a predicate acts in turn t, and holds of row x and column y of the tile

three sentences hold for all sizes >= 1, all tiles, all rows that exist:

    cover    a visible key lies in a block of a turn 0 <= t < T of one CTA, and in one only
    hidden   what is hidden is not visible
    shown    what is not hidden is visible: all of a block in which no predicate acts

``read`` finds these forms in a term: origins of loads, trips, guards, predicates, and
which row and key each register of each thread holds, by the digits of the product.  A ring may be
filled by several statements, under guards: all of them load the same block at the same index, and
that a block is there when it is read is the judge's affair.  ``read`` also asks
what does not depend on sizes: scores are multiplied, then hidden, then read, and no other statement
touches them.  Values meet the weights of their own turn, each turn once.  ``decide`` asks z3 for a
counterexample to each sentence, in linear integers: a key c lies in the blocks of turn t where
B P q <= c - origin < B P (q + 1), t = q for a = B P and t = -q for a = -B P, so no quantifier is
left.  What CTAs have of one turn they send each other behind their loops, at every size alike.
What ``read`` does not recognise, and what z3 does not decide, is unproved.

>>> from tinygpu.machines.attention import STARTS, Attention
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.term.operation import attention
>>> print(mask_cover(Attention().program(attention(mask="causal"), Chosen(STARTS["fa3"]))))
mask cover proved for every m, n

Source: ``docs/model.md``, section "Mask cover"; L. de Moura, N. Bjorner, "Z3: An Efficient SMT
Solver", 2008.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from tinygpu.isa.algebra import FLOATS
from tinygpu.legality.reach import exactly_once
from tinygpu.legality.warp_products import by_dimension, counted_loops, of_tiles
from tinygpu.smt import z3_module
from tinygpu.term.access_map import Operand
from tinygpu.term.digits import neighbours
from tinygpu.term.expression import Apply, Constant, Expression, Index, Value
from tinygpu.term.fields import unknown
from tinygpu.term.pages import Lengths
from tinygpu.term.program import (
    Access,
    Affine,
    Block,
    Do,
    For,
    ForTile,
    Immediate,
    Program,
    Statement,
    When,
    var,
    walked,
)

if TYPE_CHECKING:
    from tinygpu.smt import ArithRef, BoolRef, ExprRef

__all__ = ["Cover", "Guard", "Hide", "Reading", "Weighted", "decide", "mask_cover", "read"]

RESOURCES = 4_000_000
"""z3's steps for one question: at most about 2 s (measured); the machine's take a hundredth."""
_SHOWN = (16, 256, 4096)
"""Sizes up to which a counterexample is looked for first."""

_WHOLE = ("mbarrier", "commit_group")
"""How copies to shared memory complete that write zeros for what lies outside."""

Guard = tuple[Affine, int | str]


@dataclass(frozen=True, slots=True)
class Hide:
    """A predicate ``number < bound`` that hides scores, with a step a digit, and its guards."""

    number: Affine
    steps: tuple[int, ...]
    bound: Affine
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Weighted:
    """A product of weights and values: the turn of either, and its guards.

    ``loops``: whether it stands in the loop over turns; else it follows the loop.
    """

    weights: Affine
    values: Affine
    guards: tuple[Guard, ...]
    loops: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """What a term does with its mask, in its own names.

    ``sizes``: the axes, of which ``rows`` and ``keys`` are two.  ``condition``: the operation's,
    None where all keys are visible.
    ``places``: the variables of a tile and its threads, each with its extent; ``cluster`` are the
    ranks among them.  ``numbers``: parameters and tile values.  ``turn`` counts to ``trips``.
    ``row`` and ``key`` are the origins of a tile's rows and of a turn's block of ``block`` keys;
    ``values`` those of its values.  ``digits``: (extent, row step, key step) of what a score is
    counted by.  ``others``: where a score is along further axes, of rows that are counted along
    several or that the condition names: the origin and a step for each digit.  ``lengths``: an
    array that the condition and tile values read, of which nothing else is known.
    """

    sizes: tuple[str, ...]
    rows: str
    keys: str
    condition: Expression | None
    places: Mapping[str, Expression]
    numbers: Mapping[str, Expression]
    turn: str
    trips: str
    row: Affine
    key: Affine
    block: int
    digits: tuple[tuple[int, int, int], ...]
    hides: tuple[Hide, ...]
    values: Affine
    uses: tuple[Weighted, ...]
    cluster: tuple[tuple[str, int], ...] = ()
    others: Mapping[str, tuple[Affine, tuple[int, ...]]] = field(default_factory=dict)
    lengths: Lengths | None = None


@dataclass(frozen=True, slots=True)
class Cover:
    """Whether a mask is covered: proved, wrong with a counterexample, or unproved with the reason.

    ``at``: the counterexample's numbers: sizes, the tile's place, row, key, turn.
    """

    outcome: Literal["proved", "wrong", "unproved"]
    reason: str
    at: Mapping[str, int]

    def __bool__(self) -> bool:
        return self.outcome == "proved"

    def __str__(self) -> str:
        if self:
            return f"mask cover proved for every {self.reason}"
        return f"mask cover {self.outcome}: {self.reason}"


class _UnreadError(Exception):
    """A part of a term that this reading does not recognise."""


@lru_cache(1024)
def mask_cover(program: Program) -> Cover:
    """Return whether a term sums exactly the pairs of rows and keys that its operation shows."""
    try:
        return (
            Cover("unproved", strange, {})
            if (strange := unknown(program))
            else decide(read(program))
        )
    except _UnreadError as error:
        return Cover("unproved", str(error), {})


# The question


class _Numbers:
    """A reading's names and expressions as z3's integers."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.z3 = reading, z3_module()
        self.solver = self.z3.Solver(ctx=self.z3.Context())
        self.solver.set("rlimit", RESOURCES)
        self.known: dict[str, ArithRef] = {}
        self.quotients = 0
        whole = self.z3.IntSort(self.solver.ctx)
        self.lengths = self.z3.Function("its length", whole, whole)
        m, n = self.named(reading.rows), self.named(reading.keys)
        self.sizes, self.trips = (m, n), self.named(reading.trips)
        extents = [extent for extent, _, _ in reading.digits]
        self.digits = [self.below(f"digit {i}", extent) for i, extent in enumerate(extents)]
        self.others = {axis: self.counted(*place) for axis, place in reading.others.items()}

    def new(self, name: str) -> ArithRef:
        """Return an unknown integer; a name with a blank is none of a term's."""
        return self.z3.Int(name, self.solver.ctx)

    def below(self, name: str, extent: ArithRef) -> ArithRef:
        """Return an unknown integer from 0 on, below an extent."""
        found = self.new(name)
        self.solver.add(found >= 0, found < extent)
        return found

    def named(self, name: str) -> ArithRef:
        """Return the number of a name: a size is 1 or more, a place is below its extent."""
        reading = self.reading
        if name not in self.known:
            if name in reading.sizes:
                self.known[name] = self.new(name)
                self.solver.add(self.known[name] >= 1)
            elif name in reading.places:
                self.known[name] = self.below(name, self.of(reading.places[name]))
            elif name in reading.numbers:
                self.known[name] = self.of(reading.numbers[name])
            else:
                raise _UnreadError(f"{name} is no size, parameter, tile value or place of a tile")
        return self.known[name]

    def of(self, expression: Expression, point: Mapping[str, ArithRef] | None = None) -> ExprRef:
        """Return an integer expression, or a condition, at the coordinates of a point."""
        long = self.reading.lengths
        match expression:
            case Constant(number) if float(number).is_integer():
                return self.z3.IntVal(int(number), self.solver.ctx)
            case Value(name) if long and name == long.name and point is not None:
                return self.length(point[long.rows])
            case Apply("element", (Value(name), index)) if long and name == long.name:
                return self.length(self.of(index, point))
            case Value(name):
                return self.named(name)
            case Index(axis) if point is not None and axis in point:
                return point[axis]
            case Apply("ceildiv", (inner, Constant(by))) if by == int(by) >= 1:
                number, quotient = self.of(inner, point), self.new(f"quotient {self.quotients}")
                self.quotients += 1
                less = int(by) * (quotient - 1)
                self.solver.add(less < number, number <= less + int(by))
                return quotient
            case Apply("mul", (left, right)) if not {Constant} & {type(left), type(right)}:
                pass
            case Apply(operator, arguments) if operator in _LINEAR:
                return _LINEAR[operator](self.z3, *(self.of(a, point) for a in arguments))
        raise _UnreadError(f"{expression} is not linear in sizes, places and coordinates")

    def length(self, row: ArithRef) -> ArithRef:
        """Return how many of an axis there are in a row of lengths: from 0 to all of them."""
        found, long = self.lengths(row), self.reading.lengths
        assert long is not None
        self.solver.add(found >= 0, found <= self.named(long.axis))
        return found

    def form(self, form: Affine, turn: ArithRef | None = None) -> ArithRef:
        """Return an affine form, in the loop at a turn."""
        total: ArithRef = self.z3.IntVal(form.constant, self.solver.ctx)
        for name, factor in form.terms:
            if not isinstance(factor, int):
                raise _UnreadError(f"{form} counts {factor} over tiles")
            if name == self.reading.turn and turn is None:
                raise _UnreadError(f"{form} has the turn {name} outside of its loop")
            here = self.named(name) if turn is None or name != self.reading.turn else turn
            total = total + factor * here
        return total

    def counted(self, form: Affine, steps: Sequence[int], turn: ArithRef | None = None) -> ArithRef:
        """Return a form, in the loop at a turn, and so many steps of each digit further."""
        total = self.form(form, turn)
        for digit, step in zip(self.digits, steps, strict=True):
            total = total + step * digit
        return total

    def acts(self, guards: Sequence[Guard], turn: ArithRef | None = None) -> BoolRef:
        """Return whether guards hold."""
        every = [self.z3.BoolVal(True, self.solver.ctx)]
        for index, bound in guards:
            most = self.named(bound) if isinstance(bound, str) else bound
            every.append(self.form(index, turn) < most)
        return self.z3.And(*every)

    def seen(self, row: ArithRef, key: ArithRef) -> BoolRef:
        """Return whether the operation shows an existing row a key."""
        reading, (_, n) = self.reading, self.sizes
        every = [*self.exists(row), key >= 0, key < n]
        if reading.condition is not None:
            point = {**self.others, reading.rows: row, reading.keys: key}
            every.append(self.of(reading.condition, point))
        return self.z3.And(*every)

    def exists(self, row: ArithRef) -> list[BoolRef]:
        """Return that a row is one of the array's."""
        inside = [row >= 0, row < self.sizes[0]]
        for axis, at in self.others.items():
            inside += [at >= 0, at < self.named(axis)]
        return inside

    def ask(self, sentence: str, claims: list[BoolRef], shown: dict[str, ArithRef]) -> Cover | None:
        """Return a counterexample, at small sizes if there is one there; None if there is none."""
        solver, model = self.solver, None
        for most in (None, *_SHOWN):
            solver.push()
            solver.add(*claims)
            if most is not None:
                solver.add(*(size <= most for size in self.sizes))
            found = str(solver.check())
            better = solver.model() if found == "sat" else None
            why = solver.reason_unknown() if found == "unknown" else ""
            solver.pop()
            if most is None and better is None:
                text = f"z3 gives up on whether {sentence} ({why})"
                return Cover("unproved", text, {}) if found == "unknown" else None
            model = model if better is None else better
            if most is not None and better is not None:
                break
        assert model is not None
        own = {n: x for n, x in self.known.items() if n not in self.reading.numbers}
        at = {
            n: model.eval(x, model_completion=True).as_long() for n, x in {**own, **shown}.items()
        }
        numbers = ", ".join(f"{name} = {number}" for name, number in at.items())
        return Cover("wrong", f"{sentence}, at {numbers}", at)


_LINEAR: Mapping[str, Callable[..., ExprRef]] = {
    "neg": lambda _, a: -a,
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "max": lambda z3, a, b: z3.If(a < b, b, a),
    "min": lambda z3, a, b: z3.If(a < b, a, b),
    "le": lambda _, a, b: a <= b,
    "lt": lambda _, a, b: a < b,
    "and": lambda z3, a, b: z3.And(a, b),
}


def decide(reading: Reading) -> Cover:
    """Return whether z3 proves the sentences of a reading, or a counterexample to one."""
    try:
        against = next((found for found in _answers(reading) if found is not None), None)
    except _UnreadError as error:
        return Cover("unproved", str(error), {})
    if against is not None:
        return against
    every = {reading.rows, reading.keys, *reading.others}
    return Cover("proved", ", ".join(axis for axis in reading.sizes if axis in every), {})


def _answers(reading: Reading) -> Iterator[Cover | None]:
    """Yield what z3 says against each sentence."""
    step, (block, first_key) = _factor(reading.key, reading.turn), _of_cluster(reading)
    if abs(step) != block:
        raise _UnreadError(f"blocks have {block} keys, and the next one is {step} further")
    asked = _Numbers(reading)
    z3, trips = asked.z3, asked.trips
    turn, quotient, wanted = (asked.new(f"its {name}") for name in ("turn", "block", "key"))
    within = [turn >= 0, turn < trips]
    _, along_rows, along_keys = zip(*reading.digits, strict=True)
    row = asked.counted(reading.row, along_rows)
    key = asked.counted(reading.key, along_keys, turn)
    exists = asked.exists(row)
    shown = {"row": row, "key": key, "turn": turn}

    first = asked.form(first_key, z3.IntVal(0, asked.solver.ctx))
    inside = [block * quotient <= wanted - first, wanted - first < block * (quotient + 1)]
    its = quotient if step > 0 else -quotient
    claims = [*inside, asked.seen(row, wanted), z3.Not(z3.And(its >= 0, its < trips))]
    missed = {"row": row, "key": wanted, "turn": its, "trips": trips}
    yield asked.ask("a visible key lies in no block of the loop", claims, missed)

    hidden = [z3.BoolVal(False, asked.solver.ctx)]
    for hide in reading.hides:
        number = asked.counted(hide.number, hide.steps, turn)
        holds = number < asked.form(hide.bound, turn)
        hidden.append(z3.And(asked.acts(hide.guards, turn), holds))
    gone, seen = z3.Or(*hidden), asked.seen(row, key)
    yield asked.ask("a visible pair is hidden", [*within, gone, seen], shown)
    claims = [*within, *exists, z3.Not(gone), z3.Not(seen)]
    yield asked.ask("a pair that is not visible is left", claims, shown)

    if reading.values != reading.key:
        theirs = asked.form(reading.values, turn)
        claims = [*within, asked.form(reading.key, turn) != theirs]
        yield asked.ask("values are of other keys than scores", claims, {"turn": turn})
    yield from _uses(asked, turn, within)


def _of_cluster(reading: Reading) -> tuple[int, Affine]:
    """Return how many keys the CTAs of a cluster take in a turn, and the first CTA's origin.

    Their blocks lie one after the other, and their rows are the same.
    """
    block, steps = (
        reading.block,
        [(_factor(reading.key, n), n, many) for n, many in reading.cluster],
    )
    apart = sorted(one for one in steps if one[0])
    rows = [reading.row, *(form for form, _ in reading.others.values())]
    for step, name, many in apart:
        if step != block or any(_factor(form, name) for form in rows):
            raise _UnreadError(f"CTAs along {name} have other keys, which do not follow each other")
        block *= many
    names = [name for _, name, _ in apart]
    terms = tuple(term for term in reading.key.terms if term[0] not in names)
    return block, Affine(reading.key.constant, terms)


def _uses(asked: _Numbers, turn: ArithRef, within: list[BoolRef]) -> Iterator[Cover | None]:
    """Yield what z3 says against values that meet their own weights, each turn once."""
    z3, trips, reading = asked.z3, asked.trips, asked.reading
    often: ArithRef = z3.IntVal(0, asked.solver.ctx)
    for use in reading.uses:
        here = turn if use.loops else None
        ahead = use.values + Affine(0, ((reading.turn, -1),))
        late = turn - asked.form(ahead, turn) if use.loops else None
        if use.loops and _factor(use.values, reading.turn) != 1:
            raise _UnreadError(f"values of turn {use.values} in turn {reading.turn}")
        weights, values = asked.form(use.weights, here), asked.form(use.values, here)
        around = [asked.acts(use.guards, here), *(within if use.loops else ())]
        right = z3.And(weights == values, values >= 0, values < trips)
        shown = {"weights' turn": weights, "values' turn": values, "trips": trips}
        yield asked.ask("values meet weights of another turn", [*around, z3.Not(right)], shown)
        now = (
            z3.And(asked.acts(use.guards, late), turn == values)
            if late is None
            else z3.And(asked.acts(use.guards, late), late >= 0, late < trips)
        )
        often = often + z3.If(now, 1, 0)
    claims = [*within, often != 1]
    yield asked.ask("values are not multiplied once", claims, {"turn": turn, "times": often})


def _factor(form: Affine, name: str) -> int:
    """Return the factor of a name in a form."""
    found = [c for n, c in form.terms if n == name]
    if not all(isinstance(c, int) for c in found):
        raise _UnreadError(f"{form} counts {name} over tiles")
    return sum(int(c) for c in found)


# The reading


def read(program: Program) -> Reading:
    """Return what a term does with its mask; raises _UnreadError for what is not recognised."""
    keys, condition = _condition(program)
    loads = _loads(program, keys)
    roles = [r for r in program.roles if any(_rings(s, loads) for s, _ in walked(r.body))]
    if len(roles) != 1:
        raise _UnreadError(f"{len(roles)} roles multiply what is loaded; one is recognised")
    body = of_tiles(list(walked(roles[0].body)), loads)
    products = [(s, b) for s, b in body if isinstance(s, Do) and _rings(s, loads)]
    for s, _ in products:
        if s.instruction.unit != "tensor" or s.lanes or s.multicast or len(s.reads) != 3:
            raise _UnreadError(f"{s} is no product by all threads of the role")
    scores = [(s, b) for s, b in products if len(_rings(s, loads)) == 2]
    if len(scores) != 1:
        raise _UnreadError(f"scores are made by {len(scores)} statements; one is recognised")
    product, around = scores[0]
    tile, loop, inner = _loops(product, around)
    if loop is None or around[:2] != (tile, loop) or not _counted(inner):
        raise _UnreadError(f"{product} stands under a guard, or in other loops")
    layout = _layout(product, inner)
    rows = loads[_name(product.reads[0])]
    (row_axis, row, steps), *further = _of_rows(rows, layout, program)
    key_axis, key, block, along = _of_keys(loads[_name(product.reads[1])], layout)
    walks = _Following(body, tile, loop, loads)
    others = {axis: (walks.own(form, rows), by) for axis, form, by in further}
    long, named = program.operation.lengths, list[str]()
    for node in condition.nodes() if condition else ():
        named += [node.axis] if isinstance(node, Index) else []
        named += [long.rows] if long and node == Value(long.name) else []
    for axis in named:
        if axis not in (row_axis, keys, *others):
            others[axis] = walks.own(_still(rows, axis), rows), (0,) * len(layout.digits)
    if key_axis != keys or keys in (row_axis, *others) or layout.keys != block:
        raise _UnreadError(f"{product} does not multiply rows with a whole block of {keys}")
    if walks.turn(product.reads[0]) is not None or walks.turn(product.reads[1]) != var(loop.var):
        raise _UnreadError(f"{product} does not read the rows of its tile and the keys of its turn")
    hides, last = walks.hides(product, layout, {*_counted(inner)})
    uses, values = [], {}
    for s, b in products:
        if s is not product:
            uses.append(walks.use(s, b, last))
            values[_name(s.reads[1])] = walks.values(_name(s.reads[1]), keys, block)
    if len(values) != 1:
        raise _UnreadError(f"values are of {len(values)} rings; one is recognised")
    places: dict[str, Expression] = {axis.var: axis.extent for axis in program.grid}
    places |= {name: Constant(extent) for name, extent in program.cluster}
    if roles[0].copy:
        places[roles[0].copy] = Constant(roles[0].copies)
    numbers = {**dict(program.parameters), **program.tile_values}
    names = [*program.operation.axes, *places, *numbers, loop.var]
    if len({*names}) != len(names):
        raise _UnreadError(f"two of {', '.join(names)} share a name")
    return Reading(
        sizes=program.operation.axes,
        rows=row_axis,
        keys=keys,
        condition=condition,
        places=places,
        numbers=numbers,
        turn=loop.var,
        trips=str(loop.trips),
        row=row,
        key=walks.own(key, loads[_name(product.reads[1])]),
        block=block,
        digits=tuple(
            (n, row, key) for (n, _, _), row, key in zip(layout.digits, steps, along, strict=True)
        ),
        hides=hides,
        values=next(iter(values.values())),
        uses=tuple(uses),
        cluster=tuple((name, int(many)) for name, many in program.cluster),
        others=others,
        lengths=long,
    )


def _condition(program: Program) -> tuple[str, Expression | None]:
    """Return the axis of the keys, and under which condition a score counts."""
    operation = program.operation
    if len(operation.reductions) < 2 or len(operation.reductions[-1].over) != 1:
        raise _UnreadError(f"{operation.name} reduces no scores along one axis")
    scores, mask, keys = operation.reductions[0], operation.mask, operation.reductions[-1].over[0]
    later = [r.expression for r in operation.reductions[1:]]

    def bare(node: Expression) -> bool:
        """Whether scores count in it that the mask does not show."""
        match node:
            case Value(name):
                return name == scores.name
            case Apply("where", (condition, _, Constant(other))):
                return condition != mask or other != -math.inf
            case Apply(_, arguments):
                return any(map(bare, arguments))
        return False

    ends = [epilogue for _, epilogue in operation.results]
    wheres = [n for e in (scores.expression, *ends, *later) for n in e.nodes()
              if isinstance(n, Apply) and n.operator == "where"]  # fmt: skip
    masked = mask is None and not wheres
    if mask is not None:
        masked = {n.arguments[0] for n in wheres} == {mask} and not any(map(bare, later))
    if keys in scores.over or not masked:
        raise _UnreadError(f"{operation.name} does more with its scores than a mask of -inf")
    return keys, mask


@dataclass(frozen=True, slots=True)
class _Load:
    """A load of lines of an operand into a ring, once a tile or in each turn to ``trips``.

    Its forms count the turn at which it fills the ring by ``var``.
    """

    do: Do
    source: Access
    tile: ForTile
    var: str = ""
    trips: str = ""

    @property
    def modes(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """The extent of each digit of values and threads, its steps in the operand and the ring."""
        do, source, write = self.do, self.source, self.do.write
        return [
            *zip(do.values, source.value, write.value, strict=True),
            *zip(do.threads, source.thread, write.thread, strict=bool(do.threads)),
        ]

    @property
    def same(self) -> object:
        """What loads of one ring have in common."""
        forms = [sorted(_sum(form).items()) for form in (*self.source.origin, self.do.write.index)]
        return self.source.buffer, self.modes, forms, self.tile, self.trips


def _loads(program: Program, keys: str) -> dict[str, _Load]:
    """Return the loads of the operands, by the ring that each fills.

    What threads load that is the same for all keys, as a scale, says nothing of pairs.
    """
    found: dict[str, _Load] = {}
    every = [
        (role, s, around)
        for role in program.roles
        for s, around in walked(role.body)
        if isinstance(s, Do)
    ]
    loads: set[int] = set()
    for role, s, around in every:
        for source in s.reads:
            if not isinstance(source, Access) or source.buffer.level != "gmem":
                continue
            if s.write.buffer.level == "registers" and keys not in source.buffer.shape:
                continue
            load, name = _load(*_gathered(s, around, program)), s.write.buffer.name
            if role.copies != 1 or load.same != found.setdefault(name, load).same:
                raise _UnreadError(f"{s} does not load what others do into its stage")
            loads.add(id(s))
            plain = s.instruction.completion in _WHOLE and not (s.lanes or s.where)
            if not plain or source.trimmed or s.write.buffer.home or s.write.buffer.copies != 1:
                raise _UnreadError(f"{s} is no load of whole boxes, by TMA or by all threads")
            if source.buffer.shape != program.operation.operand(source.buffer.name).axes:
                raise _UnreadError(f"{s} reads an array that is not as its operand")
    for _, s, _ in every:
        if s.write.buffer.name in found and id(s) not in loads:
            raise _UnreadError(f"{s.write.buffer.name} is filled by other statements than loads")
    return found


def _gathered(do: Do, around: Sequence[Block], program: Program) -> tuple[Do, Sequence[Block]]:
    """Return parts as one load, and what is around it.

    Parts are what CTAs along an axis load for each other, all at the same tile and turn, and what
    the turns of a loop load whose number is a constant and which the ring does not count.
    """
    parts: list[tuple[str, int]] = []
    if do.multicast:
        parts.append((do.multicast, dict(program.cluster).get(do.multicast, 0)))
    names = {name for name, _ in do.write.index.terms}
    loops = [b for b in around if isinstance(b, For) and b.var not in names and _counted([b])]
    parts += [(loop.var, _counted([loop])[loop.var]) for loop in loops]
    for name, count in parts:
        do = _joined(do, name, count)
    left = [b for b in around if b not in loops]
    if any(n in dict(parts) for b in left for form, _ in b.guards for n, _ in form.terms):
        raise _UnreadError(f"{do} does not load all parts of what it has")
    return do, left


def _joined(do: Do, name: str, count: int) -> Do:
    """Return the parts that a variable counts as one load by each."""
    (source,) = do.reads
    assert isinstance(source, Access)

    def whole(access: Access) -> tuple[Access, list[int]]:
        steps = tuple(_factor(o, name) for o in access.origin)
        left = (
            Affine(o.constant, tuple(t for t in o.terms if t[0] != name)) for o in access.origin
        )
        value = (*access.value, *[steps] * (count > 1))
        return replace(access, value=value, origin=tuple(left)), [step for step in steps if step]

    (write, to), (read, of) = whole(do.write), whole(source)
    # of a loop, and where lines lie apart, the modes say where each part lies
    same = to == of or name != do.multicast or neighbours(do)
    if count < 1 or (count > 1 and (len(to) != 1 or len(of) != 1 or not same)):
        raise _UnreadError(f"{do} does not load its own part of what all along {name} have")
    values = (*do.values, *[count] * (count > 1))
    return replace(do, values=values, write=write, reads=(read,), multicast="")


def _load(do: Do, around: Sequence[Block]) -> _Load:
    """Return a load whose forms count the turn at which it fills its ring."""
    (source,) = do.reads
    assert isinstance(source, Access)
    match [b for b in around if b.binds or b.guards]:
        case [ForTile() as tile, *inner]:
            pass
        case _:
            raise _UnreadError(f"{do} stands in no loop over tiles")
    loops = [b for b in inner if isinstance(b, For)]
    if not inner:
        return _Load(do, source, tile)
    counts = {factor for _, factor in do.write.index.terms if isinstance(factor, str)}
    if len(loops) != 1 or len(counts) != 1 or _factor(do.write.index, loops[0].var) != 1:
        raise _UnreadError(f"{do} stands under a guard, or in other loops")
    (loop,), (trips,) = loops, counts
    if isinstance(loop.trips, str) and loop.trips != trips:
        raise _UnreadError(f"{do} is counted by {trips}, and {loop} runs to another number")
    begin = do.write.index.constant

    def turned(form: Affine) -> Affine:
        steps = sum(c for n, c in form.terms if n == loop.var and isinstance(c, int))
        return form + -begin * steps

    counted = do.with_forms(turned)
    assert isinstance(counted.reads[0], Access)
    return _Load(counted, counted.reads[0], tile, loop.var, trips)


def _loops(
    statement: Statement, around: Sequence[Block]
) -> tuple[ForTile, For | None, tuple[Block, ...]]:
    """Return the loops over tiles and turns around a statement, and the blocks in them.

    Who elects one thread neither repeats nor leaves out anything.
    """
    match [b for b in around if b.binds or b.guards]:
        case [ForTile() as tile, For(start=0, trips=str()) as loop, *inner]:
            return tile, loop, tuple(inner)
        case [ForTile() as tile, *inner]:
            return tile, None, tuple(inner)
    raise _UnreadError(f"{statement} stands in no loop over tiles")


def _along(load: _Load, dimension: int) -> tuple[str, Affine, int]:
    """Return the axis along which a dimension of a ring moves, its origin there, and its lines."""
    write, source, modes = load.do.write, load.source, load.modes
    axes = {d for _, steps, to in modes if to[dimension] for d, step in enumerate(steps) if step}
    if len(axes) != 1:
        raise _UnreadError(f"{load.do} moves along {len(axes)} axes in one dimension of its ring")
    (axis,) = axes
    once, lines = exactly_once([(extent, to[dimension]) for extent, _, to in modes])
    whole = once and lines == write.buffer.shape[dimension]
    if (
        not whole
        or any(map(_sum, write.origin))
        or any(f[axis] != t[dimension] for extent, f, t in modes if extent > 1)
    ):
        raise _UnreadError(f"{load.do} does not fill its stage line by line")
    return str(source.buffer.shape[axis]), source.origin[axis], int(lines)


def _along_slabs(load: _Load, axis: int) -> tuple[Affine, int]:
    """Return where the lines of a ring begin that go along an axis from slab to slab, how long."""
    write, source = load.do.write, load.source
    _, wide, many = map(int, write.buffer.shape)
    modes = [(n, steps, to[1] + to[2] * wide) for n, steps, to in load.modes if n > 1]
    once, count = exactly_once([(n, to) for n, _, to in modes])
    along = {d for _, steps, to in modes for d, step in enumerate(steps) if step and to}
    same = along == {axis} and all(steps[axis] == to for _, steps, to in modes)
    if not once or count != wide * many or not same or any(map(_sum, write.origin)):
        raise _UnreadError(f"{load.do} does not fill its stage line by line")
    return source.origin[axis], int(count)


def _of_keys(load: _Load, layout: _Layout) -> tuple[str, Affine, int, tuple[int, ...]]:
    """Return the axis of a turn's keys, the first one, how many, and the steps of each digit.

    Lines may be keys in another order, if each digit counts within one mode of the load.
    """
    dimension, source = layout.lines[1], load.source
    modes = [m for m in load.modes if m[2][dimension] and m[0] > 1]
    axes = {d for _, steps, _ in modes for d, step in enumerate(steps) if step}
    if len(axes) != 1 or all(f[d] == t[dimension] for _, f, t in modes for d in axes):
        return *_along(load, dimension), tuple(key for _, _, key in layout.digits)
    (axis,) = axes
    lines = [(n, to[dimension]) for n, _, to in modes]
    keys = [(n, steps[axis]) for n, steps, _ in modes]
    once, many = exactly_once(lines)
    each, block = exactly_once(keys)
    whole = once and each and many == block == load.do.write.buffer.shape[dimension]
    if not whole or any(map(_sum, load.do.write.origin)):
        raise _UnreadError(f"{load.do} does not fill its stage line by line")
    runs: list[tuple[int, int, int]] = []  # extent, lines, keys, of modes that go on as one
    for (n, first), (_, step) in sorted(zip(lines, keys, strict=True), key=lambda x: x[0][1]):
        before = runs[-1] if runs else (0, 0, 0)
        goes_on = (first, step) == (before[0] * before[1], before[0] * before[2])
        runs[-1:] = [(before[0] * n, *before[1:])] if goes_on else [*runs[-1:], (n, first, step)]
    found = []
    for extent, _, line in layout.digits:
        within = [
            line // first * step
            for n, first, step in runs
            if line % first == 0 and first <= line and line * extent <= first * n
        ]
        if line and extent > 1 and len(within) != 1:
            raise _UnreadError(f"{load.do} counts its keys otherwise than the product does")
        found.append(within[0] if line and extent > 1 else 0)
    return str(source.buffer.shape[axis]), source.origin[axis], int(block), tuple(found)


def _of_rows(
    load: _Load, layout: _Layout, program: Program
) -> list[tuple[str, Affine, tuple[int, ...]]]:
    """Return along which axes rows count, the slowest first: where, and a step for each digit.

    Lines of a ring that are all along one axis are its rows.  Else each axis has one mode of lines,
    and each digit of the layout counts within one mode.
    """
    dimension, source = layout.lines[0], load.source
    lines = [(n, to[dimension], steps) for n, steps, to in load.modes if to[dimension] and n > 1]
    axes = [{d for d, step in enumerate(steps) if step} for _, _, steps in lines]
    if len(set().union(*axes)) == 1:
        axis, form, _ = _along(load, dimension)
        return [(axis, form + layout.row, tuple(row for _, row, _ in layout.digits))]
    alone = {name for name, n in program.cluster if n == 1}
    alone |= {role.copy for role in program.roles if role.copies == 1}
    moved = {name for name, _ in layout.row.terms} - alone
    once, many = exactly_once([(n, step) for n, step, _ in lines])
    whole = once and many == load.do.write.buffer.shape[dimension]
    if moved or layout.row.constant or not whole or any(map(_sum, load.do.write.origin)):
        raise _UnreadError(f"{load.do} does not fill its stage line by line")
    if any(len(one) != 1 for one in axes) or len(set().union(*axes)) < len(axes):
        raise _UnreadError(f"{load.do} moves along several axes in one mode, or twice along one")
    found = []
    for (n, line, steps), (d,) in sorted(zip(lines, axes, strict=True), key=lambda x: -x[0][1]):
        by = tuple(
            row // line * steps[d] if line <= row < line * n else 0 for _, row, _ in layout.digits
        )
        found.append((str(source.buffer.shape[d]), source.origin[d], by))
    for extent, row, _ in layout.digits:
        within = [line for n, line, _ in lines if row % line == 0 and row * extent <= line * n]
        if row and extent > 1 and not any(line <= row for line in within):
            raise _UnreadError(f"{load.do} has rows that a digit of the product counts across")
    return found


def _still(load: _Load, axis: str) -> Affine:
    """Return where a load is along an axis that it does not move along."""
    source = load.source
    if axis not in source.buffer.shape:
        raise _UnreadError(f"{load.do} has no {axis}, which the mask asks for")
    dimension = source.buffer.shape.index(axis)
    if any(steps[dimension] for _, steps, _ in load.modes):
        raise _UnreadError(f"{load.do} moves along {axis}, which the mask asks for")
    return source.origin[dimension]


def _rings(statement: object, loads: Mapping[str, _Load]) -> list[str]:
    """Return the loaded rings that a statement reads."""
    reads = statement.reads if isinstance(statement, Do) else ()
    return [_name(r) for r in reads if _name(r) in loads]


def _name(operand: object) -> str:
    return operand.buffer.name if isinstance(operand, Access) else ""


def _sum(form: Affine) -> dict[tuple[str, str], int]:
    """Return a form as factors of variables, (name, ""), and of running numbers, (name, number)."""
    found = {("", ""): form.constant}
    for name, factor in form.terms:
        place, by = ((name, factor), 1) if isinstance(factor, str) else ((name, ""), factor)
        found[place] = found.get(place, 0) + by
    return {place: by for place, by in found.items() if by}


def _counted(blocks: Sequence[Block]) -> dict[str, int]:
    """Return the extents of loops that count to a number from 0 on; {} if there are other blocks.

    A product always has such loops around it: over slabs, slices and blocks.
    """
    return counted_loops(blocks) or {}


def _in_turns(blocks: Sequence[Block]) -> bool:
    """Say whether blocks are loops that count, and guards of these loops' turns alone."""
    guards = [b for b in blocks if isinstance(b, When)]
    loops = counted_loops([b for b in blocks if not isinstance(b, When)])
    of = [{name for name, _ in guard.index.terms} for guard in guards]
    plain = all(isinstance(guard.bound, int) for guard in guards)
    return loops is not None and plain and all(names and names <= {*loops} for names in of)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which row and key a score is: by each dimension of its registers, then by threads.

    ``lines``: the dimension of either factor that has them; ``row``: where this copy's rows begin.
    """

    scores: Access
    threads: tuple[int, ...]
    digits: tuple[tuple[int, int, int], ...]
    lines: tuple[int, int]
    row: Affine
    keys: int


_Mode = tuple[int, tuple[int, ...], int, int]
"""Of a mode: its extent, its steps in the scores' registers, its steps along rows and keys."""


def _layout(product: Do, inner: Sequence[Block]) -> _Layout:
    """Return which row and key each thread's registers hold."""
    rows, keys = (r for r in product.reads[:2] if isinstance(r, Access))
    scores, loops = product.write, _counted(inner)
    none = tuple((0,) * len(scores.buffer.shape) for _ in product.threads)
    if any(map(any, scores.thread or none)):
        raise _UnreadError(f"{scores.buffer.name} is shared by threads")
    lines = tuple(
        {
            d
            for to, steps in (
                *zip(scores.value, one.value, strict=True),
                *zip(product.threads, one.thread, strict=True),
            )
            if to != none[0]
            for d, step in enumerate(steps)
            if step
        }
        for one in (rows, keys)
    )
    if [len(one) for one in lines] != [1, 1]:
        raise _UnreadError(f"{product} counts rows or keys in several dimensions")
    (of_rows,), (of_keys,) = lines
    modes: list[_Mode] = [
        (extent, to, left[of_rows], right[of_keys])
        for extent, to, left, right in zip(
            product.values, scores.value, rows.value, keys.value, strict=True
        )
    ]
    for name, extent in loops.items():
        by = [tuple(_factor(o, name) for o in one.origin) for one in (scores, rows, keys)]
        modes.append((extent, by[0], by[1][of_rows], by[2][of_keys]))
    left = [Affine(o.constant, tuple(t for t in o.terms if t[0] not in loops))
            for o in (rows.origin[of_rows], keys.origin[of_keys], *scores.origin)]  # fmt: skip
    if any(map(_sum, left[1:])):
        raise _UnreadError(f"{product} does not begin at the first key of its block")
    digits = _by_register(product, modes)
    threads = [
        (extent, a[of_rows], b[of_keys])
        for extent, a, b in zip(product.threads, rows.thread, keys.thread, strict=True)
    ]
    found = tuple(
        (extent, row, key)
        for extent, (row, key) in (*digits, *((extent, (row, key)) for extent, row, key in threads))
    )
    mixed = any(extent > 1 and (row == 0) == (key == 0) for extent, row, key in found)
    once, _ = exactly_once([(extent, row) for extent, row, _ in found])
    whole, width = exactly_once([(extent, key) for extent, _, key in found])
    if mixed or not once or not whole:
        raise _UnreadError(f"{product} does not make each score once")
    return _Layout(scores, product.threads, found, (of_rows, of_keys), left[0], int(width))


def _by_register(do: Do, modes: Sequence[_Mode]) -> list[tuple[int, tuple[int, int]]]:
    """Return the extent of each dimension of registers, and its steps along two other things.

    Each register is counted once, and its other steps are multiples of its own.
    """
    apart = [(extent, to, (row, key)) for extent, to, row, key in modes]
    found = by_dimension(do.write.buffer.shape, apart)
    if found is None:
        raise _UnreadError(f"{do} does not count each register of {do.write.buffer.name} once")
    return [(extent, (row, key)) for extent, (row, key) in found]


@dataclass(frozen=True, slots=True)
class _Following:
    """The statements of the role that multiplies, its loops over tiles and turns, and the loads."""

    body: list[tuple[Statement, tuple[Block, ...]]]
    tile: ForTile
    loop: For
    loads: Mapping[str, _Load]

    def own(self, form: Affine, load: _Load) -> Affine:
        """Return a form of a load in this role's names of the tile and the turn."""
        names = {load.tile.tile: self.tile.tile, load.tile.turn: self.tile.turn}
        if load.var:
            if load.trips != self.loop.trips:
                raise _UnreadError(f"{load.do} has other turns than {self.loop}")
            names[load.var] = self.loop.var
        return Affine(form.constant, tuple((names.get(n, n), c) for n, c in form.terms))

    def turn(self, access: Operand, load: _Load | None = None) -> Affine | None:
        """Return the turn, of this tile, in which what is read was loaded; None: in none of them.

        Tiles count the turns of those before, so an index is of one tile and turn alone.
        """
        assert isinstance(access, Access)
        load = load or self.loads[access.buffer.name]
        trips = str(self.loop.trips)
        filled = _sum(self.own(load.do.write.index, load))
        used = _sum(access.index)
        its = (self.tile.tile, self.tile.turn)  # those of the ring's own copy count its turns
        tile = next((t for n in its if (t := (n, trips if load.var else "")) in filled), ("", ""))
        counts = filled.pop((self.loop.var, ""), 0) if load.var else 1
        if counts != 1 or filled.pop(tile, 0) != 1 or used.pop(tile, 0) != 1:
            raise _UnreadError(f"{access} is not counted by tiles and turns")
        start = filled.pop(("", ""), 0)
        constant = used.pop(("", ""), 0) - start
        if filled or used.keys() - ({(self.loop.var, ""), (trips, "")} if load.var else set()):
            raise _UnreadError(f"{access} is not counted by tiles and turns")
        if not load.var:
            if constant:
                raise _UnreadError(f"{access} is of another tile")
            return None
        return Affine(constant, tuple((name, by) for (name, _), by in used.items()))

    def hides(self, product: Do, layout: _Layout, loops: set[str]) -> tuple[tuple[Hide, ...], int]:
        """Return what hides scores, and the place of the last statement that does.

        Scores begin at 0, are multiplied in ``loops``, hidden, and then read, all in the same turn.
        """
        scores, name = layout.scores, layout.scores.buffer.name
        found: list[Hide] = []
        last, stage = -1, "before"
        anew = product.fresh is not None and {n for n, _ in product.fresh.terms} <= loops
        for place, (s, around) in enumerate(self.body):
            if not isinstance(s, Do):
                continue
            touched = [a for a in s.accesses if a.buffer.name == name]
            if s.where is not None and s.write.buffer.name != name:
                raise _UnreadError(f"{s} compares, and does not hide scores")
            if s is product:
                if not anew:
                    raise _UnreadError(f"{product} does not start anew in each turn")
                last, stage = place, "made"
                continue
            if not touched:
                continue
            if stage == "before" and not anew and self.clears(s, around, scores):
                anew = True
                continue
            if stage == "before" or around[:1] != (self.tile,) or around[1:2] != (self.loop,):
                raise _UnreadError(f"{s} touches scores that its turn has not made")
            if any(_sum(a.index) != _sum(scores.index) for a in touched) or s.lanes:
                raise _UnreadError(f"{s} touches scores of another turn, or by some threads alone")
            inner = around[2:]
            if s.where is None:
                if not _in_turns(inner):
                    raise _UnreadError(f"{s} reads scores under a guard")
                stage = "read"
            elif stage == "read":
                raise _UnreadError(f"{s} hides scores after they have been read")
            else:
                found.append(_hide(s, inner, layout))
                last = place
        if stage != "read":
            raise _UnreadError(f"{name} is not read after it is made")
        return tuple(found), last

    def clears(self, do: Do, around: tuple[Block, ...], scores: Access) -> bool:
        """Say whether a statement sets all scores of a turn to 0."""
        inner = around[2:]
        if around[:2] != (self.tile, self.loop) or (inner and not _counted(inner)):
            return False
        plain = do.where is None and do.lanes is None and not any(map(_sum, do.write.origin))
        zero = do.reads == (Immediate(0.0),) and do.result(0.0, algebra=FLOATS) == 0.0
        same = do.write.buffer == scores.buffer and _sum(do.write.index) == _sum(scores.index)
        modes = [(e, to, ()) for e, to in zip(do.values, do.write.value, strict=True)]
        return plain and zero and same and by_dimension(scores.buffer.shape, modes) is not None

    def made(self, weights: Access, last: int) -> dict[int, Do]:
        """Return what makes weights in each turn, by its place, which is behind ``last``.

        Weights in a ring in shared memory are moved there from registers, which are made before.
        """
        found = {}
        for place, (s, blocks) in enumerate(self.body):
            if not isinstance(s, Do) or s.write.buffer.name != weights.buffer.name:
                continue
            here = blocks[:2] == (self.tile, self.loop) and (not blocks[2:] or _counted(blocks[2:]))
            if weights.buffer.level == "registers":
                here = here and _sum(s.write.index) == _sum(weights.index)
            else:
                moved = [self.made(r, last) if isinstance(r, Access) else {} for r in s.reads]
                here = here and all(each and max(each) < place for each in moved)
            if not here or place <= last or s.lanes or s.where:
                raise _UnreadError(f"{s} does not make weights of each turn's scores")
            found[place] = s
        return found

    def use(self, product: Do, around: tuple[Block, ...], last: int) -> Weighted:
        """Return of which turns the weights and values are that a product multiplies."""
        weights, values = product.reads[:2]
        assert isinstance(values, Access)
        if not isinstance(weights, Access) or weights.buffer.name in self.loads:
            raise _UnreadError(f"{product} takes no weights that the role has made")
        made = self.made(weights, last)
        loops = around[1:2] == (self.loop,)
        rest = around[2:] if loops else around[1:]
        guards = tuple((b.index, b.bound) for b in rest if isinstance(b, When))
        plain = all(isinstance(b, When) or _counted([b]) for b in rest)
        if not made or around[:1] != (self.tile,) or not plain:
            raise _UnreadError(f"{product} does not multiply weights of this tile")
        turn = self.made_in(weights, made, product, loops=loops)
        found = self.turn(values)
        if found is None:
            raise _UnreadError(f"{product} multiplies weights with rows")
        return Weighted(turn, found, guards, loops)

    def made_in(
        self, weights: Access, made: Mapping[int, Do], product: Do, *, loops: bool
    ) -> Affine:
        """Return the turn in which weights are made that a product multiplies."""
        if weights.buffer.level != "registers":
            trips = str(self.loop.trips)
            rings = [_Load(s, s.write, self.tile, self.loop.var, trips) for s in made.values()]
            (turn, *others) = [self.turn(weights, ring) for ring in rings]
            if turn is not None and all(other == turn for other in others):
                return turn
            raise _UnreadError(f"{product} multiplies weights of several turns")
        at = next(place for place, (s, _) in enumerate(self.body) if s is product)
        if loops and at > max(made):
            return var(self.loop.var)
        if loops and at < min(made):
            return var(self.loop.var) + -1
        if at > max(i for i, (_, blocks) in enumerate(self.body) if self.loop in blocks):
            return var(str(self.loop.trips)) + -1
        raise _UnreadError(f"{product} multiplies weights of several turns")

    def values(self, ring: str, keys: str, block: int) -> Affine:
        """Return the origin along the keys of the values that a turn loads."""
        load = self.loads[ring]
        along = load.source.buffer.shape.index(keys) if keys in load.source.buffer.shape else None
        moved = {
            d
            for extent, steps, to in load.modes
            for d, step in enumerate(to)
            if extent > 1 and step and along is not None and steps[along]
        }
        if along is None or not moved or not load.var:
            raise _UnreadError(f"{load.do} does not load a block of {keys} in each turn")
        if moved == {1, 2}:
            first, lines = _along_slabs(load, along)
        elif len(moved) == 1:
            _, first, lines = _along(load, *moved)
        else:
            raise _UnreadError(f"{load.do} does not load a block of {keys} in each turn")
        if lines != block:
            raise _UnreadError(f"{load.do} does not load a block of {block} {keys}")
        return self.own(first, load)


def _hide(do: Do, inner: tuple[Block, ...], layout: _Layout) -> Hide:
    """Return the predicate of a statement that sets scores to -inf, by the digits of scores."""
    where = do.where
    assert where is not None
    least = Immediate(-math.inf)
    if do.reads != (least,) or do.result(least.number, algebra=FLOATS) != least.number:
        raise _UnreadError(f"{do} does not set what it hides to -inf")
    if not all(isinstance(b, When) for b in inner):
        raise _UnreadError(f"{do} stands in other loops, or is not done by all threads")
    threads = where.thread or (0,) * len(layout.threads)
    if (where.thread and do.threads != layout.threads) or any(map(_sum, do.write.origin)):
        raise _UnreadError(f"{do} counts other threads, or other registers, than the scores")
    if any(map(any, do.write.thread)):
        raise _UnreadError(f"{do} counts registers by threads")
    steps = where.value or (0,) * len(do.values)
    modes: list[_Mode] = [
        (extent, to, step, 0)
        for extent, to, step in zip(do.values, do.write.value, steps, strict=True)
    ]
    along = [by for _, (by, _) in _by_register(do, modes)]
    guards = tuple((b.index, b.bound) for b in inner if isinstance(b, When))
    return Hide(where.origin, (*along, *threads), where.bound, guards)
