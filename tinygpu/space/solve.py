"""Solver: which schedules keep laws, fixed decisions and wishes, and which of these leave none.

The laws of a structural choice are tables over its numeric decisions (``tinygpu.space.batches``),
and so are wishes.  For z3 a decision is one Bool a value, exactly one of which holds, and a table
its *decision diagram*: after the first i decisions, tables with the same rest are one node.  So z3
decides what the tables say, neither more nor less, by propositional logic alone.

A *member* is a law, a fixed decision or a wish.  ``Solver.check`` finds a schedule that keeps some
members, or says which of them leave none; ``Solver.core`` leaves members out of these for as long
as none is left.  What z3 finds is a schedule only when ``check_schedule`` has judged it again, for
``concurrency`` is not in all tables.  ``unknown`` is an answer of its own, limited by z3's resource
count (repeatable) and not by time.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> problem = Problem.of(matmul(), m=64, n=64, k=64)
>>> fixed = {**LADDER["tuned"], "vector_shared": 4, "thread_m": (1, 2)}  # not a whole vector
>>> solver = Solver(Space(Simt(), problem, load_device("h200"), fixed=fixed))
>>> nothing = solver.check()
>>> nothing.outcome
'unsat'
>>> print(*solver.core(nothing).core, sep=", ")
fix thread_m, fix a_from, fix a_layout, fix vector_shared, law chunks

Source: L. de Moura, N. Bjorner, "Z3: An Efficient SMT Solver", 2008; A. Srinivasan, T. Kam,
S. Malik, R. Brayton, "Algorithms for Discrete Function Manipulation", 1990 (the diagrams).
"""

from __future__ import annotations

import operator
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinygpu.legality.laws import LAWS, Places, check_schedule, judged, own_laws
from tinygpu.legality.reach import Case
from tinygpu.numbers import Array, Truth
from tinygpu.smt import z3_module
from tinygpu.space.batches import Builder, Table
from tinygpu.space.quantities import named_values
from tinygpu.space.space import Space
from tinygpu.space.wishes import TooWideError, Wish
from tinygpu.term.machine import Chosen, Requirement, Value
from tinygpu.term.schedule import Schedule

if TYPE_CHECKING:
    from tinygpu.smt import BoolRef, ModelRef

__all__ = ["RESOURCES", "Decided", "Member", "Pipeline", "Solver", "Variant", "pipelined"]

RESOURCES = 1_000_000
"""z3's steps for one structural choice: some seconds."""
_ASKED_MOST = 64
"""Schedules of a structural choice that break ``concurrency`` alone, before it is given up."""


class Member(NamedTuple):
    """What a schedule has to keep: a fixed decision, a wish or a law, by its name."""

    kind: Literal["fix", "wish", "law"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


_CONCURRENCY = Member("law", "concurrency")


@dataclass(frozen=True, slots=True)
class Decided:
    """A schedule that keeps some members, or a ``core`` of them that leaves none, or neither.

    ``minimal``: each member of the core is needed, for without it there is a schedule.
    """

    outcome: Literal["sat", "unsat", "unknown"]
    schedule: Schedule | None = None
    core: tuple[Member, ...] = ()
    minimal: bool = False
    reason: str = ""


@dataclass(slots=True, eq=False)
class _Part:
    """A structural choice and the clauses of its members: False, or a name that z3 knows.

    ``open``: wishes that z3 was not told, and why.  ``refused``: the judge refused schedules that
    keep all else.  ``others``: the choices that differ from it in the order of statements, ``each``
    of them or one of those that are alike.
    """

    structure: Mapping[str, Value]
    chosen: Chosen
    clauses: dict[Member, list[str | bool]] = field(default_factory=dict)
    open: dict[Member, str] = field(default_factory=dict)
    judged: bool = False
    refused: bool = False
    others: list[_Part] | None = None
    each: bool = False

    def add(self, member: Member, clause: str | bool) -> None:
        """Add a clause, unless it always holds."""
        if clause is False:
            self.clauses[member] = [False]
        elif clause is not True:
            self.clauses.setdefault(member, []).append(clause)

    def excluded_by(self, active: Container[Member]) -> Member | None:
        """Return an active member that nothing of this choice keeps."""
        never = (m for m, clauses in self.clauses.items() if clauses[0] is False and m in active)
        return next(never, None)


class Solver:
    """The schedules of a space, and wishes about them.

    What the space fixes is a member like any other, so a core can say that it is to blame; unless
    ``narrowed``, when there are no other values, and tables are smaller.  ``resources`` are z3's
    steps for one structural choice.
    """

    def __init__(
        self,
        space: Space,
        wishes: Sequence[Wish] = (),
        *,
        narrowed: bool = False,
        resources: int = RESOURCES,
    ) -> None:
        """Tell z3 the decisions; the structural choices' terms are built when they are needed."""
        self.space, self.wishes = space, tuple(wishes)
        whole = Space(space.machine, space.problem, space.device)
        self._whole = space if narrowed else whole
        self._builder = Builder(self._whole)
        self._places: Places = {}
        self._resources = resources
        self._solver = z3_module().SolverFor("QF_FD")
        self._solver.set("rlimit", resources)
        self._told: list[str] = []
        self._nodes: dict[str, str] = {}
        self._literals: dict[str, str] = {}
        self._tables: dict[int, tuple[str, Table]] = {}
        self._cores: list[frozenset[str]] = []
        for axis, length in enumerate(self._whole.sums.lengths):
            bits = [_bit(axis, i) for i in range(length)]
            self._told += [f"(declare-const {bit} Bool)" for bit in bits]
            self._told += [f"(assert (not (and {a} {b})))" for a, b in combinations(bits, 2)]
            self._told.append(f"(assert (or {' '.join(bits)}))")
        self.own: dict[str, Requirement] = {}
        self._required: dict[Hashable, list[tuple[str, str | bool]]] = {}
        self._of_terms: dict[Hashable, list[tuple[str, str | bool]]] = {}
        self._asked: dict[Hashable, str | bool] = {}
        self._apart: dict[str, dict[str, Value]] = {}
        with np.errstate(all="ignore"):
            one = {name: space.values[name][:1] for name in space.orders}
            self._parts = [self._part(structure) for structure in self._whole.structures(one)]
        self._likely = [*self._parts]
        self.laws_of = {**LAWS, **own_laws(space.machine.instructions)}
        self.laws = tuple(Member("law", name) for name in {**self.own, **self.laws_of})
        fixed = [Member("fix", name) for name in space.fixed]
        wished = [Member("wish", wish.text) for wish in self.wishes]
        self.members = (*fixed, *wished, *self.laws)
        self._of_orders = {Member("fix", name) for name in space.orders} | {
            Member("wish", w.text) for w in self.wishes if {*w.names} & {*space.orders}
        }

    def check(self, active: Container[Member] | None = None, *, first: bool = False) -> Decided:
        """Look for a schedule that keeps the active members; all of them, if None are given.

        With ``first`` it is the first one: by its structural choice, then by its numbers.
        """
        wanted = self.members if active is None else active
        core: set[Member] = set()
        reason = ""
        for part in self._parts if first else self._likely:
            found = self._in_some_order(part, wanted, first=first)
            if found.outcome == "sat":
                self._likely.remove(part)
                self._likely.insert(0, part)  # the next question may well end here too
                return found
            core.update(found.core)
            reason = reason or found.reason
        if reason:
            return Decided("unknown", reason=reason)
        return Decided("unsat", core=tuple(m for m in self.members if m in core))

    def core(self, found: Decided) -> Decided:
        """Return an ``unsat`` verdict with a core of which no member can be left out.

        Laws are tried first, the later ones before the others; then what is fixed, then wishes.
        """
        left, core, minimal = {*self.members}, found.core, True
        for member in (*reversed(self.laws), *self.members[: -len(self.laws)]):
            left.remove(member)
            if member in core:
                fewer = self.check(left)
                if fewer.outcome == "unsat":
                    core = fewer.core
                else:
                    left.add(member)
                    minimal = minimal and fewer.outcome == "sat"
        return Decided("unsat", core=tuple(m for m in self.members if m in left), minimal=minimal)

    def _in_some_order(self, part: _Part, active: Container[Member], *, first: bool) -> Decided:
        """Look for a schedule of a choice; if its order is to blame, of one in another order."""
        found, orders = self._check(part, active, first=first), self.space.orders
        blamed = (part.refused and _CONCURRENCY in active) or self._of_orders & {*found.core}
        if found.outcome == "sat" or not (orders and blamed):
            return found
        if part.others is None or part.refused != part.each:
            part.others, part.each = self._in_other_orders(part), part.refused
        core, reason = {*found.core}, found.reason
        for other in part.others:
            found = self._check(other, active, first=first)
            if found.outcome == "sat":
                return found
            core.update(found.core)
            reason = reason or found.reason
        outcome: Literal["unsat", "unknown"] = "unknown" if reason else "unsat"
        return Decided(outcome, core=tuple(core), reason=reason)

    def _in_other_orders(self, part: _Part) -> list[_Part]:
        """Return the choices that differ from one in orders, of those that are alike one.

        They are alike if fixed decisions and wishes say the same of them.  That is asked once, if
        wishes about orders are about no other choice and no term, and the judge is not to blame.
        """
        whole, names = self._whole, {*self.space.orders}
        other = {*self.space.structural} - names
        about = [wish for wish in self.wishes if names.intersection(wish.names)]
        mixed = any(wish.quantities or other.intersection(wish.names) for wish in about)
        if part.refused or mixed or not self._apart:
            every = whole.structures({n: (part.structure[n],) for n in other})
            parts = [self._part(one) for one in every]
            if part.refused or mixed:
                return parts
            for one in parts:
                order = {n: one.structure[n] for n in names}
                said = str([one.clauses.get(member) for member in self._of_orders])
                self._apart.setdefault(said, order)
        return [self._part({**part.structure, **order}) for order in self._apart.values()]

    def _part(self, structure: Mapping[str, Value]) -> _Part:
        """Begin with what needs no term: fixed decisions, the machine's laws, some wishes."""
        space, whole, numbers = self.space, self._whole, self._builder.numbers
        part = _Part(structure, Chosen({n: structure.get(n, numbers.get(n)) for n in whole.values}))
        for name in space.fixed:
            asked = None, name, structure.get(name)  # of a number one clause, in every choice
            if asked not in self._asked:
                equal = [getattr(part.chosen, name) == allowed for allowed in space.values[name]]
                self._asked[asked] = self._clause(name, reduce(operator.or_, equal))
            part.add(Member("fix", name), self._asked[asked])
        key = space.but_for_orders(structure)
        if key not in self._required:
            required = space.machine.requirements(space.problem.operation, part.chosen)
            self.own |= {r.name: r for r in required if r.name not in self.own}
            self._required[key] = [(r.name, self._clause(r.name, r.holds)) for r in required]
        for name, clause in self._required[key]:
            part.add(Member("law", name), clause)
        self._wish(part, None)
        return part

    def _judge(self, part: _Part) -> None:
        """Go on with what is said of the term: laws, and wishes about its quantities."""
        space, part.judged = self.space, True
        key = space.but_for_orders(part.structure)
        try:
            if key not in self._of_terms or any(wish.quantities for wish in self.wishes):
                program = space.machine.term(space.problem.operation, part.chosen)
                cases = Case.every(program, space.problem.sizes, space.device)
                every = (
                    one
                    for case in cases
                    for one in judged(case, self._places if space.axes else {})
                )
                self._of_terms[key] = [(name, self._clause(name, holds)) for name, holds in every]
                self._wish(part, cases[0])
            for name, clause in self._of_terms[key]:
                part.add(Member("law", name), clause)
        except ZeroDivisionError:
            part.add(Member("law", "whole_extents"), False)
        except Exception:  # where a law of the machine's own fails, there may be no term
            if not part.excluded_by(self.laws):
                raise

    def _wish(self, part: _Part, case: Case | None) -> None:
        """Add the wishes about a term's quantities, or without a term those about decisions."""
        for wish in self.wishes:
            if bool(wish.quantities) == (case is not None):
                member = Member("wish", wish.text)
                key = wish.text, *map(part.structure.get, wish.names)
                if case is None and key in self._asked:
                    part.add(member, self._asked[key])
                    continue
                values = named_values(wish.names, part.chosen, self.space.problem.sizes, case)
                try:
                    told = wish.told(values, lambda x: _Truth(self._node_of("", x)))
                    self._asked[key] = self._literal(told.text)
                    part.add(member, self._asked[key])
                except TooWideError as error:
                    part.open[member] = str(error)

    def _check(self, part: _Part, active: Container[Member], *, first: bool) -> Decided:
        """Look for a schedule of a structural choice that keeps the active members."""
        for _ in range(_ASKED_MOST):
            if (excluding := part.excluded_by(active)) is not None:
                return Decided("unsat", core=(excluding,))
            kept = ((c, m) for m, here in part.clauses.items() if m in active for c in here)
            clauses = {clause: member for clause, member in kept if isinstance(clause, str)}
            known = next((core for core in self._cores if core <= clauses.keys()), None)
            if known is not None:
                return Decided("unsat", core=tuple({clauses[c] for c in known}))
            outcome = self._outcome(clauses)
            if outcome == "unsat":
                self._cores.append(frozenset(map(str, self._solver.unsat_core())))
                continue
            if outcome == "unknown":
                reason = f"z3 gave up on a structural choice after {self._resources} steps"
                return Decided("unknown", reason=reason)
            if not part.judged:
                with np.errstate(all="ignore"):
                    self._judge(part)
                continue
            for member, reason in part.open.items():
                if member in active:
                    return Decided("unknown", reason=reason)
            at = self._first(clauses) if first else self._model()
            schedule, space = self._schedule(part, at), self.space
            violations = check_schedule(schedule, space.machine, space.problem, space.device)
            broken = [m for v in violations if (m := Member("law", v.law)) in active]
            if not broken:
                return Decided("sat", schedule)
            assert broken == [_CONCURRENCY], f"tables allow {schedule}, which breaks {broken}"
            self._learn(part, at)
        return Decided("unknown", reason=f"{_ASKED_MOST} schedules broke the law concurrency alone")

    def _outcome(self, names: Iterable[str]) -> str:
        """Tell z3 what it has to know, and ask whether all that the names ask for can be."""
        self._solver.from_string("\n".join(self._told))
        self._told.clear()
        return str(self._solver.check(*map(z3_module().Bool, names)))

    def _model(self) -> list[int]:
        """Return which value of each numeric decision z3's model has."""
        model, lengths = self._solver.model(), self._whole.sums.lengths
        return [
            next(
                i
                for i in range(n)
                if model.eval(z3_module().Bool(_bit(a, i)), model_completion=True)
            )
            for a, n in enumerate(lengths)
        ]

    def _first(self, clauses: Iterable[str]) -> list[int]:
        """Go on from a model to the first one, in the order of the decisions."""
        at, kept = self._model(), [*clauses]
        for axis in range(len(at)):
            for i in range(at[axis]):
                if self._outcome((*kept, _bit(axis, i))) == "sat":
                    at = self._model()
                    break
            kept.append(_bit(axis, at[axis]))
        return at

    def _schedule(self, part: _Part, at: Sequence[int]) -> Schedule:
        whole = self._whole
        numbers = {name: whole.values[name][i] for name, i in zip(whole.axes, at, strict=True)}
        return Schedule.of(whole.machine, {**part.structure, **numbers})

    def _learn(self, part: _Part, at: Sequence[int]) -> None:
        """Exclude a schedule that breaks ``concurrency``, with all that break it for its reason.

        These are in the law's table, where a space has one; else it is this schedule alone.
        """
        axes, part.refused = self._whole.axes, True
        table = self._builder.concurrency(part.structure) if axes else None
        if table is not None and not table.holds[tuple(at[a] for a in table.axes)]:
            part.add(_CONCURRENCY, self._literal(self._diagram(table)))
        elif axes:
            bits = " ".join(_bit(axis, i) for axis, i in enumerate(at))
            part.add(_CONCURRENCY, self._literal(f"(not (and {bits}))"))
        else:
            part.add(_CONCURRENCY, False)

    def _clause(self, law: str, holds: Truth) -> str | bool:
        """Return the literal of a law's clause, unless it holds everywhere or nowhere."""
        return self._literal(self._node_of(law, holds))

    def _node_of(self, law: str, holds: Truth) -> str:
        """Return the node of a number or an array that says where something holds."""
        if not isinstance(holds, np.ndarray):
            return "true" if holds else "false"
        table = self._builder.table(law, holds)
        if id(table) not in self._tables:
            self._tables[id(table)] = self._diagram(table), table
        return self._tables[id(table)][0]

    def _diagram(self, table: Table) -> str:
        """Return the first node of a table's decision diagram."""
        below: list[str] = ["false", "true"]
        places: Array = table.holds
        for axis in reversed(table.axes):
            rows, which = _distinct(places.reshape(-1, places.shape[-1]))
            below = [self._branch(axis, [below[i] for i in row]) for row in rows.tolist()]
            places = which.astype(np.int32).reshape(places.shape[:-1])
        return below[int(places)]

    def _branch(self, axis: int, below: Sequence[str]) -> str:
        """Return the node that goes on to ``below[i]`` at value i of an axis."""
        if len({*below}) == 1:
            return below[0]
        values: dict[str, list[str]] = {}
        for i, node in enumerate(below):
            values.setdefault(node, []).append(_bit(axis, i))
        ways = (f"(and (or {' '.join(bits)}) {n})" for n, bits in values.items() if n != "false")
        text = f"(or {' '.join(ways)})"
        if text not in self._nodes:
            self._nodes[text] = f"node{len(self._nodes)}"
            self._told.append(f"(define-fun {self._nodes[text]} () Bool {text})")
        return self._nodes[text]

    def _literal(self, node: str) -> str | bool:
        """Return the name of a Bool that asks for a node."""
        if node in ("true", "false"):
            return node == "true"
        if node not in self._literals:
            name = self._literals[node] = f"ask{len(self._literals)}"
            self._told += [f"(declare-const {name} Bool)", f"(assert (=> {name} {node}))"]
        return self._literals[node]


@dataclass(frozen=True, slots=True)
class _Truth:
    """A condition for z3, as text; ``&``, ``|`` and ``^ True`` join and deny."""

    text: str

    def __and__(self, other: _Truth) -> _Truth:
        if "false" in (self.text, other.text):
            return _Truth("false")
        texts = [text for text in (self.text, other.text) if text != "true"]
        return _Truth(f"(and {' '.join(texts)})" if len(texts) == 2 else (*texts, "true")[0])

    def __or__(self, other: _Truth) -> _Truth:
        return ((self ^ True) & (other ^ True)) ^ True

    def __xor__(self, other: bool) -> _Truth:
        ends = {"true": "false", "false": "true"}
        return _Truth(ends.get(self.text, f"(not {self.text})"))


def _bit(axis: int, i: int) -> str:
    return f"is{axis}_{i}"


_BYTE, _FEW_ROWS = 256, 1 << 16


def _distinct(rows: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the different rows of numbers from 0 on, in order of their bytes, and each's place."""
    most, many = int(rows.max(initial=0)) + 1, rows.shape[1]
    if most <= _BYTE and most**many <= max(len(rows), _FEW_ROWS):  # counted, without a sort
        number = rows @ most ** np.arange(many)[::-1]
        seen = np.zeros(most**many, np.bool_)
        seen[number] = True
        digits = np.unravel_index(np.flatnonzero(seen), (most,) * many)
        return np.stack(digits, axis=-1), (np.cumsum(seen) - 1)[number]
    rows = np.ascontiguousarray(rows)
    words = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
    _, first, which = np.unique(words, return_index=True, return_inverse=True)
    return rows[first], which


@dataclass(frozen=True, slots=True)
class Variant:
    """Tile sizes of a loop: ``busy`` cycles of each statement on its unit, ``stages`` that fit.

    ``work`` multiplies the interval: how many steps the busiest SM does.
    """

    decisions: tuple[tuple[str, Value], ...]
    busy: Mapping[str, int]
    stages: int
    work: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loop in steady state: a step starts ``interval`` cycles after the one before it.

    A statement of step i is issued at ``times[name] + i * interval`` by ``roles[name]``; a step's
    tiles stand in ``stages`` stages, the fewest.  ``proven``: no variant takes fewer cycles in all.
    ``core`` are the rules that forbid this variant one cycle less a step, each of them needed.
    """

    variant: Variant
    interval: int
    stages: int
    times: Mapping[str, int]
    roles: Mapping[str, str]
    proven: bool
    core: tuple[str, ...]

    def distance(self, issued: str, waited: str) -> int:
        """Return how many later steps issue a statement before a wait for this step's one."""
        return (self.times[waited] - self.times[issued]) // self.interval


def pipelined(
    statements: Mapping[str, tuple[str, tuple[str, ...], int]],
    after: Sequence[tuple[str, str, int, str]],
    ring: tuple[Sequence[str], str, int],
    variants: Sequence[Variant],
    *,
    resources: int = 20 * RESOURCES,
) -> Pipeline | None:
    """Return the variant, times, roles and stages of the fewest cycles; None where z3 gives up.

    ``statements`` by name: the unit that it keeps busy, the roles that may issue it, the cycles for
    which it keeps its role busy.  ``after`` has (statement, a later one, cycles between them
    beyond what the first keeps its unit busy, why).  ``ring`` has the statements that fill a stage,
    the one that frees it, the cycles from that to the next fill.
    """
    z3 = z3_module()
    solver = z3.Solver(ctx=z3.Context())
    solver.set("rlimit", resources)
    context = solver.ctx
    interval, stages, total = (z3.Int(name, context) for name in ("interval", "stages", "total"))
    chosen = [z3.Bool(f"variant {i}", context) for i in range(len(variants))]
    start = {name: z3.Int(f"time {name}", context) for name in statements}
    slot = {name: z3.Int(f"slot {name}", context) for name in statements}
    busy = {name: z3.Int(f"busy {name}", context) for name in statements}
    role = {
        (name, one): z3.Bool(f"{name} by {one}", context)
        for name, (_, allowed, _) in statements.items()
        for one in allowed
    }
    most = max(one.stages for one in variants)
    tracked: dict[str, BoolRef] = {}

    def rule(name: str, *clauses: BoolRef) -> None:
        tracked.setdefault(name, z3.Bool(f"rule {name}", context))
        solver.add(*(z3.Implies(tracked[name], clause) for clause in clauses))

    solver.add(z3.PbEq([(one, 1) for one in chosen], 1), interval >= 1, stages >= 1)
    for one, variant in zip(chosen, variants, strict=True):
        told = [busy[name] == variant.busy.get(name, 0) for name in statements]
        solver.add(z3.Implies(one, z3.And(*told, total == interval * variant.work)))
        rule("stages fit shared memory", z3.Implies(one, stages <= variant.stages))
    for name, (_, allowed, issue) in statements.items():
        turns = range(-most, most + 1)  # slots are within a turn of the loop: times, less turns
        solver.add(slot[name] >= 0, slot[name] + max(1, issue) <= interval)
        solver.add(z3.Or(*(start[name] == slot[name] + i * interval for i in turns)))
        solver.add(z3.PbEq([(role[name, one], 1) for one in allowed], 1))
    for (a, (unit, by, spent)), (b, (other, theirs, needs)) in combinations(statements.items(), 2):
        first = slot[a] + max(1, spent) <= slot[b]
        second = slot[b] + max(1, needs) <= slot[a]
        for one in set(by) & set(theirs):
            both = z3.And(role[a, one], role[b, one])
            rule(f"{one} issues one at a time", z3.Implies(both, z3.Or(first, second)))
        if unit and unit == other:  # in the order of issue, all within a turn
            gap, turn = slot[b] - slot[a], interval
            before = z3.And(gap >= busy[a], turn - gap >= busy[b])
            rule(f"unit {unit}", z3.Or(before, z3.And(-gap >= busy[b], turn + gap >= busy[a])))
    for name, (unit, _, _) in statements.items():
        if unit:
            rule(f"unit {unit}", busy[name] <= interval)
    for a, b, cycles, why in after:
        rule(why, start[b] >= start[a] + busy[a] + cycles)
    fills, frees, cycles = ring
    solver.add(start[fills[0]] == 0)  # nothing depends on when all of it starts
    for i in range(1, most + 1):
        full = (start[one] + i * interval >= start[frees] + busy[frees] + cycles for one in fills)
        rule("a stage is filled once it is free", z3.Implies(stages == i, z3.And(*full)))
    rule("stages fit shared memory", stages <= most)
    rules = list(tracked.values())
    names = {str(one): name for name, one in tracked.items()}

    best: ModelRef | None = None
    low, high = min(_fewest(one, statements) for one in variants), 1 << 60
    proven, bound = True, low  # at first the fewest that the units allow
    while low < high:
        solver.push()
        solver.add(total <= bound)
        answer = solver.check(*rules)
        if answer == z3.sat:
            best = solver.model()
            high = best.eval(total).as_long()
        elif answer == z3.unsat:
            low = bound + 1
        solver.pop()
        if answer == z3.unknown or (answer == z3.unsat and bound == 1 << 60):
            proven = False
            break
        bound = 1 << 60 if best is None else (low + high) // 2
    if best is None:
        return None
    number = next(i for i, one in enumerate(chosen) if z3.is_true(best.eval(one)))
    least = best.eval(interval).as_long()
    same = [*rules, chosen[number], interval == least]
    while solver.check(*same, stages < best.eval(stages)) == z3.sat:  # the fewest stages of these
        best = solver.model()
    less = [*rules, chosen[number], interval <= least - 1]
    core: list[str] = []
    if solver.check(*less[:-1], less[-1]) == z3.unsat:
        kept = [one for one in solver.unsat_core() if str(one) in names]
        for one in list(kept):  # each that is left is needed
            fewer = [other for other in kept if other is not one]
            if solver.check(*fewer, *less[-2:]) == z3.unsat:
                kept = fewer
        core = [names[str(one)] for one in kept]
    return Pipeline(
        variants[number], least, best.eval(stages).as_long(),
        {name: best.eval(one).as_long() for name, one in start.items()},
        {name: one for (name, one), by in role.items() if z3.is_true(best.eval(by))},
        proven, tuple(core),
    )  # fmt: skip


def _fewest(variant: Variant, statements: Mapping[str, tuple[str, tuple[str, ...], int]]) -> int:
    """Return a bound of a variant's cycles: what the statements of one unit take together."""
    spent: dict[str, int] = {}
    for name, (unit, _, _) in statements.items():
        spent[unit] = spent.get(unit, 0) + variant.busy.get(name, 0)
    return variant.work * max(1, *spent.values())
