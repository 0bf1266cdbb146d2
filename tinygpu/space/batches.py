"""Batches: the term of each structural choice with all numbers open, and the tables of its laws.

A *table* is where one clause of a law holds, over just the decisions that it depends on.  Equal
clauses of different batches are one table, because their terms share arrays; a statement that
occurs in many terms is judged once.  The judge's verdict has no arithmetic: it is asked for
each combination of the numbers that it depends on (``tinygpu.space.signature``), on an ordinary
term. Terms with mbarriers are the exception: their tables leave it out, and it is asked of one
schedule at a time (``tinygpu.legality.laws.check_schedule``).

Source: ``docs/model.md``, section "Spaces".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.errors import (
    DeviceError,
    MachineError,
    OperationError,
    ScheduleError,
    nearest,
    require_kind,
)
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, Places, check_schedule, judged
from tinygpu.legality.reach import Case
from tinygpu.numbers import Booleans, Integers, Number, Truth
from tinygpu.space.counting import Sums
from tinygpu.space.sharing import Memo, narrowed, share
from tinygpu.space.signature import numbers_of
from tinygpu.term.machine import Chosen, Machine, Value, arithmetic
from tinygpu.term.operation import Problem
from tinygpu.term.plan import Term, kernels_of
from tinygpu.term.program import (
    Block,
    Do,
    Program,
    Sync,
    walk,
)
from tinygpu.term.schedule import Schedule

__all__ = ["Batch", "Builder", "Choices", "Table", "waits_at_mbarriers"]

_AT_ONCE = ("at_once", "scoreboard", "barrier", "commit_group")
_BATCHED = ("", "bar.sync", "commit_group")
_PROBES = 64
"""Legal points looked at before the rarer combinations are asked for one by one."""


def waits_at_mbarriers(term: Term) -> bool:
    """Say whether ``concurrency`` is asked of one schedule at a time, not of a batch."""
    return any(
        program.barriers
        or program.cluster
        or any(role.copy for role in program.roles)
        or any(_ordering(program))
        for program in kernels_of(term)
    )


def _ordering(program: Program) -> Iterator[bool]:
    """Yield whether there is more in it than bar.sync and cp.async."""
    for statement, _ in walk(program):
        if isinstance(statement, Do):
            yield statement.instruction.completion not in _AT_ONCE
        else:
            of_one = isinstance(statement, Block) and not statement.numbers  # a thread, a tile
            apart = isinstance(statement, Sync) and statement.scope != "cta"
            yield of_one or apart or statement.needs not in _BATCHED


def _unsigned(program: Program) -> bool:
    """Return whether a loop, guard or index names a parameter that may be negative."""
    least = program.least_values()
    negative = {name for name, number in least.items() if not np.all(number >= 0)}
    for statement, _ in walk(program):
        terms = (term for form in statement.forms for term in form.terms)
        if negative.intersection(x for x in chain(statement.numbers, *terms) if isinstance(x, str)):
            return True
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Where a law holds, over the numeric decisions (by position) that it depends on."""

    law: str
    axes: tuple[int, ...]
    holds: Booleans

    @property
    def array(self) -> Booleans:
        """Its values, as ``Sums`` reads a factor."""
        return self.holds


@dataclass(frozen=True, eq=False)
class Batch:
    """One choice of the structural decisions with all numbers open.

    ``chosen`` and ``program`` hold, for numeric decision i of ``axes``, an array with its values
    along axis i and length 1 along the others; ``values[i]`` are they.  The arrays are shared:
    do not write into them, and work under ``np.errstate(all="ignore")``, for illegal points divide
    by zero.  ``count`` is the number of legal schedules.  The program is built when it is asked
    for: batches that differ in the order of statements have their tables from one of them.
    """

    structure: Mapping[str, Value]
    axes: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    chosen: Chosen
    build: Callable[[], Term]
    tables: tuple[Table, ...]
    count: int

    @cached_property
    def program(self) -> Term:
        """Its term."""
        return self.build()


class Choices:
    """The product of a machine's decisions, for a problem on a device; some are fixed."""

    def __init__(
        self,
        machine: Machine,
        problem: Problem,
        device: Device,
        *,
        fixed: Mapping[str, Value | tuple[Value, ...]] | None = None,
    ) -> None:
        """Narrow the decisions; the batches are built on first use."""
        require_kind("space: machine", machine, Machine, MachineError)
        require_kind("space: problem", problem, Problem, OperationError)
        require_kind("space: device", device, Device, DeviceError)
        require_kind("space: fixed", fixed or {}, Mapping, ScheduleError)
        machine.check(problem.operation)
        self.machine, self.problem, self.device = machine, problem, device
        self.fixed = dict(fixed or {})
        self.values = _narrowed(machine, self.fixed)
        decisions = machine.decisions()
        self.structural = tuple(
            n for n, c in decisions.items() if c.structural or not machine.numeric
        )
        self.axes = tuple(n for n in decisions if n not in self.structural)
        self.orders = tuple(n for n in decisions if decisions[n].reorders)
        self.sums = Sums(tuple(len(self.values[n]) for n in self.axes))

    @cached_property
    def worth(self) -> Mapping[str, tuple[Value, ...]]:
        """The values of each structural decision to which a climb keeps."""
        said = self.machine.worth(self.problem, self.device.sms)
        kept = {n: v for n, v in said.items() if n not in self.fixed}
        return {n: kept.get(n, self.values[n]) for n in self.structural}

    def beside(self, name: str, value: Value, among: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return to which of some values of a structural decision a climb goes from another."""
        others = tuple(v for v in among if v != value)
        orders = self.machine.decisions()[name].orders
        near = orders().near(str(value)) if orders else ()
        return tuple(v for v in near if v in others) or others

    def but_for_orders(self, structure: Mapping[str, Value]) -> tuple[Value, ...]:
        """Return what structural choices have in common that differ in orders alone."""
        return tuple(value for name, value in structure.items() if name not in self.orders)

    @property
    def raw(self) -> int:
        """How many schedules there are, legal or not."""
        return prod(len(v) for v in self.values.values())


class Builder:
    """What the batches of a space have in common while they are built."""

    def __init__(self, space: Choices) -> None:
        """Make the arrays of the space's numeric decisions."""
        self.space = space
        self.memo: Memo = {}
        lengths = space.sums.lengths
        self.numbers = {
            name: share(
                np.array(space.values[name]).reshape(
                    [lengths[i] if i == j else 1 for j in range(len(lengths))]
                ),
                self.memo,
            )
            for i, name in enumerate(space.axes)
        }
        self.values = tuple(space.values[n] for n in space.axes)
        self.tables: dict[tuple[str, int], tuple[Table, Truth]] = {}
        self.places: Places = {}
        self.answers: dict[Hashable, tuple[Table, tuple[Number, ...]]] = {}
        self.equals: dict[tuple[str, tuple[int, ...], bytes], Table] = {}
        self.kinds: dict[int, tuple[bool, bool]] = {}
        self.verdicts: dict[Hashable, dict[tuple[int, ...], bool]] = {}
        self.reordered: dict[Hashable, Batch | None] = {}

    def forget(self) -> None:
        """Drop what only the laws asked for: of a large space a third of a gigabyte."""
        self.memo.clear()

    def single(self, structure: Mapping[str, Value]) -> Batch | None:
        """Judge one schedule of a machine without numeric decisions."""
        space = self.space
        schedule = Schedule.of(space.machine, structure)
        if check_schedule(schedule, space.machine, space.problem, space.device):
            return None
        program = space.machine.term(space.problem.operation, schedule.chosen())
        return Batch(structure, (), (), schedule.chosen(), lambda: program, (), 1)

    def concurrency(self, structure: Mapping[str, Value]) -> Table | None:
        """Return where the judge finds nothing, if it is asked for the whole choice."""
        found: dict[int, Table] = {}
        with np.errstate(all="ignore"):
            self._judged(structure, found)
        return next((t for t in found.values() if t.law == "concurrency"), None)

    def batch(self, structure: Mapping[str, Value]) -> Batch | None:
        """Build a batch, or return None if a law leaves nothing of it."""
        key = self.space.but_for_orders(structure)
        if key in self.reordered:
            known = self.reordered[key]
            return self._in_order(structure, known) if known else None
        found: dict[int, Table] = {}
        term = self._judged(structure, found)
        batch = None
        if term is not None:
            chosen, program = term
            tables, space = tuple(found.values()), self.space
            count = space.sums.count(tables)
            batch = Batch(
                structure, space.axes, self.values, chosen, lambda: program, tables, count
            )
        if self.space.orders and (batch is None or waits_at_mbarriers(batch.program)):
            self.reordered[key] = batch  # the judge's verdict is no table of it
        return batch

    def _in_order(self, structure: Mapping[str, Value], known: Batch) -> Batch:
        """Return a batch of the same statements in another order."""
        machine, operation = self.space.machine, self.space.problem.operation
        chosen = self._chosen(structure)

        def build() -> Term:
            with arithmetic(machine), np.errstate(all="ignore"):
                return machine.term(operation, chosen)

        return replace(known, structure=structure, chosen=chosen, build=build)

    def _chosen(self, structure: Mapping[str, Value]) -> Chosen:
        return Chosen({n: structure.get(n, self.numbers.get(n)) for n in self.space.values})

    def _judged(
        self, structure: Mapping[str, Value], found: dict[int, Table]
    ) -> tuple[Chosen, Term] | None:
        """Add the tables to ``found``; return the term, or None if a law leaves nothing of it."""
        space, chosen = self.space, self._chosen(structure)
        operation = space.problem.operation
        with arithmetic(space.machine):
            requirements = space.machine.requirements(operation, chosen)
        for requirement in requirements:
            if not self._add(found, self.table(requirement.name, requirement.holds)):
                return None
        with arithmetic(space.machine):
            program = space.machine.term(operation, chosen)
        for case in Case.every(program, space.problem.sizes, space.device):
            for name, holds in judged(case, self.places):
                if not self._add(found, self.table(name, holds)):
                    return None
        for number, kernel in enumerate(kernels_of(program)):
            tables = tuple(found.values())
            concurrency = self._concurrency(structure, kernel, number, tables)
            if concurrency is None or not self._add(found, concurrency):
                return None
        return chosen, program

    def table(self, law: str, holds: Truth) -> Table:
        """Return the table of where a law holds: axes along which nothing changes are dropped."""
        key = (law, id(holds)) if isinstance(holds, np.ndarray) else (law, int(bool(holds)))
        if key not in self.tables:
            array = narrowed(np.asarray(holds))
            axes = tuple(i for i, length in enumerate(array.shape) if length > 1)
            table = Table(law, axes, array.reshape([array.shape[i] for i in axes]))
            self.tables[key] = self._kept(table), holds
        return self.tables[key][0]

    def _add(self, found: dict[int, Table], table: Table) -> bool:
        """Add a table unless it always holds; return False if it never does."""
        if id(table) not in self.kinds:
            self.kinds[id(table)] = (bool(table.holds.all()), bool(table.holds.any()))
        always, ever = self.kinds[id(table)]
        if not always:
            found[id(table)] = table
        return ever

    def _concurrency(
        self,
        structure: Mapping[str, Value],
        program: Program,
        number: int,
        tables: tuple[Table, ...],
    ) -> Table | None:
        """Ask the judge about each combination of the numbers that a kernel depends on.

        It is the one of this number of those that the structural choice builds.

        Returns None if the other tables leave nothing to ask about.
        """
        space, sums = self.space, self.space.sums
        law = LAWS["concurrency"]
        if waits_at_mbarriers(program):
            return self.table(law.name, True)  # a proof takes milliseconds, and there are millions
        if _unsigned(program):
            return self.table(law.name, False)  # unproved, whatever the other numbers are
        signature, numbers = numbers_of(program)
        asked = (signature, tuple(map(id, numbers)), frozenset(map(id, tables)))
        if asked in self.answers:
            return self.answers[asked][0]
        axes = tuple(
            i
            for i in range(len(space.axes))
            if any(isinstance(x, np.ndarray) and x.shape[i] > 1 for x in numbers)
        )
        lengths = tuple(sums.lengths[i] for i in axes)
        shape = [n if i in axes else 1 for i, n in enumerate(sums.lengths)]
        columns = [np.broadcast_to(np.asarray(x), shape).reshape(-1) for x in numbers]
        rows = np.stack(columns, axis=-1) if columns else np.zeros((1, 0), np.int64)
        inside = np.ones(lengths, bool)
        for table in tables:
            if set(table.axes) & set(axes):
                others = tuple(i for i, a in enumerate(table.axes) if a not in axes)
                full = [sums.lengths[a] if a in table.axes else 1 for a in axes]
                inside &= table.holds.any(axis=others).reshape(full)
        known = self.verdicts.setdefault(signature, {})
        wanted = {tuple(rows[i].tolist()) for i in np.flatnonzero(inside)} - known.keys()
        if wanted and not sums.count(tables):
            return None
        probes = sums.sample(tables, np.random.default_rng(0), _PROBES) if wanted else None
        near = [t for t in tables if set(t.axes) & set(axes)]
        for flat in np.flatnonzero(inside):
            row = tuple(rows[flat].tolist())
            if probes is None or row in known:
                continue
            pinned = probes.copy()
            pinned[:, axes] = np.unravel_index(flat, lengths)
            legal = np.ones(len(pinned), bool)
            for table in near:
                legal &= table.holds[tuple(pinned[:, a] for a in table.axes)]
            if legal.any():
                known[row] = self._judge(structure, number, pinned[int(np.argmax(legal))])
        for flat in np.flatnonzero(inside):
            row = tuple(rows[flat].tolist())
            if row not in known:
                pins = tuple(
                    self._pin(a, int(i))
                    for a, i in zip(axes, np.unravel_index(flat, lengths), strict=True)
                )
                if sums.count((*tables, *pins)):
                    point = sums.sample((*tables, *pins), np.random.default_rng(0), 1)[0]
                    known[row] = self._judge(structure, number, point)
        holds = np.array([known.get(tuple(row.tolist()), False) for row in rows])
        found = self._kept(Table(law.name, axes, holds.reshape(lengths) | ~inside))
        self.answers[asked] = found, numbers  # whose identities are asked for
        return found

    def _pin(self, axis: int, value: int) -> Table:
        """Return the table that allows one value of an axis."""
        holds = np.arange(self.space.sums.lengths[axis]) == value
        return self._kept(Table("", (axis,), holds))

    def _kept(self, table: Table) -> Table:
        """Return the table that was made of the same values before, if there was one."""
        key = (table.law, table.axes, table.holds.tobytes())
        return self.equals.setdefault(key, table)

    def _judge(self, structure: Mapping[str, Value], number: int, point: Integers) -> bool:
        space = self.space
        values = dict(structure)
        for name, choices, i in zip(space.axes, self.values, point, strict=True):
            values[name] = choices[int(i)]
        built = space.machine.term(space.problem.operation, Chosen(values))
        return verdict(kernels_of(built)[number]).legal


def _narrowed(
    machine: Machine, fixed: Mapping[str, Value | tuple[Value, ...]]
) -> dict[str, tuple[Value, ...]]:
    """Return the values that each decision may take."""
    decisions = machine.decisions()
    values = {n: c.values for n, c in decisions.items()}
    for name, given in fixed.items():
        if name not in decisions:
            raise ScheduleError(
                f"decision {name}: not one of {machine.name}'s; {nearest(name, decisions)}"
            )
        every = given if isinstance(given, tuple) else (given,)
        if not every:
            known = ", ".join(map(str, values[name]))
            raise ScheduleError(f"decision {name}: fixed to no value; give one or more of {known}")
        for value in every:
            decisions[name].require(value)
        values[name] = tuple(dict.fromkeys(every))  # one that is given twice is counted once
    return values
