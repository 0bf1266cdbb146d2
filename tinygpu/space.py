"""Spaces: the legal part of the product of a machine's decisions, counted, sampled, explained.

A *batch* is one choice of every structural decision, with all numbers still open: its term holds
arrays, one axis a numeric decision, and each law comes out as a few *tables* over just the
decisions that it depends on.  A schedule is legal if every table of its batch holds at it.  Batches
share arrays (``tinygpu.sharing``), counts and samples are sums of products
(``tinygpu.counting``), so a space of 10^17 points costs about a second and little memory.

>>> from tinygpu.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import Problem, matmul
>>> problem = Problem.of(matmul(), m=64, n=64, k=64)
>>> fixed = {**LADDER["tuned"], "raster": (1, 2, 4), "pad_a": (0, 4), "vector_c": (2, 4)}
>>> space = Space(Simt(), problem, load_device("h200"), fixed=fixed)
>>> space.raw, space.count()
(12, 12)
>>> print(space.sample(np.random.default_rng(0), 1)[0]["tile_m"])
128

Source: ``docs/model.md``, section "Spaces".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product as choices_of
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.counting import Sums
from tinygpu.device import Device
from tinygpu.errors import IllegalScheduleError, ScheduleError, nearest
from tinygpu.laws import LAWS, check_schedule
from tinygpu.machine import Chosen, Machine, Value
from tinygpu.operation import Problem
from tinygpu.program import Program
from tinygpu.reach import Case
from tinygpu.schedule import Schedule
from tinygpu.sharing import Memo, share
from tinygpu.signature import numbers_of

__all__ = ["Batch", "Space", "Table"]

_PROBES = 64
"""Legal points looked at before the rarer combinations are asked for one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Where a law holds, over the numeric decisions (by position) that it depends on."""

    law: str
    axes: tuple[int, ...]
    holds: NDArray[np.bool_]

    @property
    def array(self) -> NDArray[np.bool_]:
        """Its values, as ``Sums`` reads a factor."""
        return self.holds


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One choice of the structural decisions with all numbers open.

    ``chosen`` and ``program`` hold, for numeric decision i of ``axes``, an array with its values
    along axis i and length 1 along the others; ``values[i]`` are they.  The arrays are shared:
    do not write into them, and work under ``np.errstate(all="ignore")``, for illegal points divide
    by zero.  ``count`` is the number of legal schedules.
    """

    structure: Mapping[str, Value]
    axes: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    chosen: Chosen
    program: Program
    tables: tuple[Table, ...]
    count: int


class Space:
    """The legal schedules of a machine for a problem on a device.

    ``fixed`` narrows decisions to one value or a tuple of values.  Raises ScheduleError for a
    decision or value that there is not, OperationError if the machine cannot do the operation.
    """

    def __init__(
        self,
        machine: Machine,
        problem: Problem,
        device: Device,
        *,
        fixed: Mapping[str, Value | tuple[Value, ...]] | None = None,
    ) -> None:
        machine.check(problem.operation)
        self.machine, self.problem, self.device = machine, problem, device
        self.fixed = dict(fixed or {})
        self.values = _narrowed(machine, self.fixed)
        decisions = machine.decisions()
        self.structural = tuple(
            n for n, c in decisions.items() if c.structural or not machine.numeric
        )
        self.axes = tuple(n for n in decisions if n not in self.structural)
        self._sums = Sums(tuple(len(self.values[n]) for n in self.axes))

    @property
    def raw(self) -> int:
        """How many schedules there are, legal or not."""
        return prod(len(v) for v in self.values.values())

    def batches(self) -> tuple[Batch, ...]:
        """Return the structural choices that have legal schedules."""
        return self._batches

    def count(self) -> int:
        """Return how many schedules are legal, exactly."""
        return sum(batch.count for batch in self._batches)

    def sample(self, rng: np.random.Generator, n: int) -> list[Schedule]:
        """Return ``n`` different legal schedules, uniformly; all, if there are no more than n."""
        total = self.count()
        if n >= total:
            return list(self)
        share_of = np.array([float(b.count) for b in self._batches])
        found: dict[Schedule, None] = {}
        while len(found) < n:
            missing = max(n - len(found), 8)
            counts = rng.multinomial(missing, share_of / share_of.sum())
            drawn: list[Schedule] = []
            for batch, k in zip(self._batches, counts, strict=True):
                points = self._sums.sample(batch.tables, rng, int(k))
                drawn += [self._schedule(batch, p) for p in points]
            order = rng.permutation(len(drawn))
            drawn = [drawn[i] for i in order]
            for schedule in drawn:
                if len(found) < n:
                    found.setdefault(schedule)
        return list(found)

    def schedules(self, batch: Batch, points: NDArray[np.int64]) -> list[Schedule]:
        """Return the schedules at flat indices into a batch's axes (C order)."""
        lengths = [len(v) for v in batch.values]
        where = np.unravel_index(np.asarray(points), lengths) if lengths else ()
        table = np.stack(where, axis=-1) if lengths else np.zeros((len(points), 0), np.int64)
        return [self._schedule(batch, p) for p in table]

    def contains(self, schedule: Schedule) -> bool:
        """Say whether a schedule is legal and within the fixed decisions."""
        inside = all(schedule[n] in v for n, v in self.values.items())
        return inside and not check_schedule(schedule, self.machine, self.problem, self.device)

    def require(self) -> None:
        """Raise IllegalScheduleError, which says why, if the space is empty."""
        if not self.count():
            raise IllegalScheduleError(self.explain_empty())

    def explain_empty(self) -> str:
        """Say in a sentence which fixed decisions and laws, as few as may be, exclude everything.

        Returns "" if the space is not empty.
        """
        if self.count():
            return ""
        laws = self._core()
        kept = dict(self.fixed)
        for name in self.fixed:
            fewer = {n: v for n, v in kept.items() if n != name}
            wider = Space(self.machine, self.problem, self.device, fixed=fewer)
            if wider._empty_under(laws):
                kept = fewer
        which = " and ".join(laws)
        if not kept:
            return f"no schedule of {self.machine.name} for {self._what()} keeps {which}"
        narrowed = ", ".join(f"{n} = {_one_of(v)}" for n, v in kept.items())
        return (
            f"with {narrowed} no schedule of {self.machine.name} for {self._what()} keeps {which}"
        )

    def _what(self) -> str:
        sizes = ", ".join(f"{a} = {n}" for a, n in self.problem.sizes.items())
        return f"{self.problem.operation.name} at {sizes} on {self.device.name}"

    def _core(self) -> tuple[str, ...]:
        """Return laws, none of them superfluous, that leave nothing of the space."""
        every = self._all_tables()
        names = list(dict.fromkeys(t.law for tables in every for t in tables))
        for name in reversed(names):
            fewer = [n for n in names if n != name]
            if self._none_left(every, fewer):
                names = fewer
        return tuple(names)

    def _empty_under(self, laws: Container[str]) -> bool:
        return self._none_left(self._all_tables(), laws)

    def _none_left(self, every: Iterable[tuple[Table, ...]], laws: Container[str]) -> bool:
        return not any(
            self._sums.count(tuple(t for t in tables if t.law in laws)) for tables in every
        )

    def _all_tables(self) -> tuple[tuple[Table, ...], ...]:
        """Return each structural choice's tables, those that nothing satisfies among them."""
        builder = _Builder(self)
        with np.errstate(all="ignore"):
            return tuple(
                builder.explained(dict(zip(self.structural, values, strict=True)))
                for values in choices_of(*(self.values[n] for n in self.structural))
            )

    def __iter__(self) -> Iterator[Schedule]:
        """Yield every legal schedule (for small spaces)."""
        for batch in self._batches:
            for point in self._sums.points(batch.tables):
                yield self._schedule(batch, point)

    def _schedule(self, batch: Batch, point: NDArray[np.int64]) -> Schedule:
        chosen: dict[str, Value] = dict(batch.structure)
        for name, values, i in zip(batch.axes, batch.values, point, strict=True):
            chosen[name] = values[int(i)]
        return Schedule(self.machine.name, tuple((n, chosen[n]) for n in self.values))

    @cached_property
    def _batches(self) -> tuple[Batch, ...]:
        builder = _Builder(self)
        found: list[Batch] = []
        with np.errstate(all="ignore"):
            for values in choices_of(*(self.values[n] for n in self.structural)):
                structure = dict(zip(self.structural, values, strict=True))
                batch = builder.batch(structure) if self.axes else builder.single(structure)
                if batch is not None and batch.count:
                    found.append(batch)
        return tuple(found)


class _Builder:
    """What the batches of a space have in common while they are built."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.memo: Memo = {}
        lengths = space._sums.lengths
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
        self.tables: dict[tuple[str, int], tuple[Table, Any]] = {}
        self.places: dict[tuple[str, Any], tuple[tuple[Table, ...], Any]] = {}
        self.answers: dict[Any, Table] = {}
        self.equals: dict[tuple[str, tuple[int, ...], bytes], Table] = {}
        self.kinds: dict[int, tuple[bool, bool]] = {}
        self.verdicts: dict[Any, dict[tuple[int, ...], bool]] = {}

    def single(self, structure: Mapping[str, Value]) -> Batch | None:
        """Judge one schedule of a machine without numeric decisions."""
        space = self.space
        schedule = Schedule.of(space.machine, structure)
        if check_schedule(schedule, space.machine, space.problem, space.device):
            return None
        program = space.machine.program(space.problem.operation, schedule.chosen())
        return Batch(structure, (), (), schedule.chosen(), program, (), 1)

    def explained(self, structure: Mapping[str, Value]) -> tuple[Table, ...]:
        """Return the tables of a structural choice up to the first law that leaves nothing."""
        if not self.space.axes:
            space = self.space
            schedule = Schedule.of(space.machine, structure)
            broken = check_schedule(schedule, space.machine, space.problem, space.device)
            return tuple(self._table(violation.law, False) for violation in broken)
        found: dict[int, Table] = {}
        self._judged(structure, found)
        return tuple(found.values())

    def batch(self, structure: Mapping[str, Value]) -> Batch | None:
        """Build a batch, or return None if a law leaves nothing of it."""
        found: dict[int, Table] = {}
        term = self._judged(structure, found)
        if term is None:
            return None
        chosen, program = term
        tables, space = tuple(found.values()), self.space
        count = space._sums.count(tables)
        return Batch(structure, space.axes, self.values, chosen, program, tables, count)

    def _judged(
        self, structure: Mapping[str, Value], found: dict[int, Table]
    ) -> tuple[Chosen, Program] | None:
        """Add the tables to ``found``; return the term, or None if a law leaves nothing of it."""
        space = self.space
        chosen = Chosen({n: structure.get(n, self.numbers.get(n)) for n in space.values})
        operation = space.problem.operation
        for requirement in space.machine.requires(operation, chosen):
            if not self._add(found, self._table(requirement.name, requirement.holds)):
                return None
        program = space.machine.program(operation, chosen)
        case = Case.of(program, space.problem.sizes, space.device)
        for law in LAWS.values():
            if law.of_case is not None and law.numeric:
                for clause in law.of_case(case):
                    if not self._add(found, self._table(law.name, clause.holds)):
                        return None
        for place in case.places:
            key = place.key
            for law in LAWS.values():
                if law.of_place is None:
                    continue
                if (law.name, key) not in self.places:
                    clauses = law.of_place(case, place)
                    tables = tuple(self._table(law.name, c.holds) for c in clauses)
                    self.places[law.name, key] = tables, (place, case)
                for table in self.places[law.name, key][0]:
                    if not self._add(found, table):
                        return None
        tables = tuple(found.values())
        if not space._sums.count(tables):
            return None
        if not self._add(found, self._concurrency(structure, program, tables)):
            return None
        return chosen, program

    def _table(self, law: str, holds: Any) -> Table:
        """Drop the axes of length 1."""
        key = (law, id(holds)) if isinstance(holds, np.ndarray) else (law, int(bool(holds)))
        if key not in self.tables:
            array = np.asarray(holds)
            axes = tuple(i for i, length in enumerate(array.shape) if length > 1)
            table = Table(law, axes, array.reshape([array.shape[i] for i in axes]))
            self.tables[key] = table, holds
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
        self, structure: Mapping[str, Value], program: Program, tables: tuple[Table, ...]
    ) -> Table:
        """Ask the event graph about each combination of the numbers that it depends on."""
        space, sums = self.space, self.space._sums
        law = LAWS["concurrency"]
        signature, numbers = numbers_of(program)
        asked = (signature, tuple(map(id, numbers)), frozenset(map(id, tables)))
        if asked in self.answers:
            return self.answers[asked]
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
                known[row] = self._judge(structure, pinned[int(np.argmax(legal))])
        for flat in np.flatnonzero(inside):
            row = tuple(rows[flat].tolist())
            if row not in known:
                pins = tuple(
                    self._pin(a, int(i))
                    for a, i in zip(axes, np.unravel_index(flat, lengths), strict=True)
                )
                if sums.count((*tables, *pins)):
                    point = sums.sample((*tables, *pins), np.random.default_rng(0), 1)[0]
                    known[row] = self._judge(structure, point)
        holds = np.array([known.get(tuple(row.tolist()), False) for row in rows])
        self.answers[asked] = self._kept(Table(law.name, axes, holds.reshape(lengths) | ~inside))
        return self.answers[asked]

    def _pin(self, axis: int, value: int) -> Table:
        """Return the table that allows one value of an axis."""
        holds = np.arange(self.space._sums.lengths[axis]) == value
        return self._kept(Table("", (axis,), holds))

    def _kept(self, table: Table) -> Table:
        """Return the table that was made of the same values before, if there was one."""
        key = (table.law, table.axes, table.holds.tobytes())
        return self.equals.setdefault(key, table)

    def _judge(self, structure: Mapping[str, Value], point: NDArray[np.int64]) -> bool:
        space = self.space
        values = dict(structure)
        for name, choices, i in zip(space.axes, self.values, point, strict=True):
            values[name] = choices[int(i)]
        program = space.machine.program(space.problem.operation, Chosen(values))
        case = Case.of(program, space.problem.sizes, space.device)
        return all(clause.holds for clause in LAWS["concurrency"].clauses(case))


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
        values[name] = given if isinstance(given, tuple) else (given,)
        for value in values[name] or ("none",):
            if value not in decisions[name].values or isinstance(value, bool):
                raise ScheduleError(
                    f"decision {name}: no value {value!r}; "
                    f"{nearest(str(value), decisions[name].values)}"
                )
    return values


def _one_of(value: Value | tuple[Value, ...]) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)
