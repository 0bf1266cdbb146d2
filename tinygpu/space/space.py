"""Spaces: the admissible schedules of a machine, counted, sampled, explained.

A *batch* is one choice of every structural decision, with all numbers still open: its term holds
arrays, one axis a numeric decision, and each law comes out as a few *tables* over just the
decisions that it depends on.  A schedule is *admissible* if every table of its batch holds at it.
Batches share arrays (``tinygpu.space.sharing``), counts and samples are sums of products
(``tinygpu.space.counting``), so a space of 10^17 points costs about a second and little memory.
An admissible schedule keeps every law; it is *legal* if the judge proves it, too.  Without
mbarriers the judge's verdict is a table, and all that is admissible is legal.  With mbarriers a
verdict takes milliseconds and there are millions: it is asked of the schedules that somebody wants,
by ``rank`` of the best and by ``check_schedule``.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
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

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product as choices_of
from math import prod

import numpy as np

from tinygpu.legality.laws import check_schedule
from tinygpu.numbers import Integers
from tinygpu.space.batches import Batch, Builder, Choices, Table, waits_at_mbarriers
from tinygpu.term.machine import Value
from tinygpu.term.schedule import Schedule

__all__ = ["Batch", "Space", "Table"]


class Space(Choices):
    """The admissible schedules of a machine for a problem on a device.

    ``fixed`` narrows decisions to one value or a tuple of values.  Raises ScheduleError for a
    decision or value that there is not, OperationError if the machine cannot do the operation.
    """

    def batches(self) -> tuple[Batch, ...]:
        """Return the structural choices that have admissible schedules."""
        return self._batches

    def structures(
        self, among: Mapping[str, tuple[Value, ...]] | None = None
    ) -> list[dict[str, Value]]:
        """Return every structural choice, whether it has admissible schedules or not.

        ``among``: the values of some decisions that are asked for.
        """
        values = {**self.values, **(among or {})}
        every = choices_of(*(values[n] for n in self.structural))
        return [dict(zip(self.structural, values, strict=True)) for values in every]

    def drawn(self) -> list[dict[str, Value]]:
        """Return structural choices, of those that differ in orders alone one, drawn at random."""
        rng, found = np.random.default_rng(0), self.structures(dict.fromkeys(self.orders, (0,)))
        for name in self.orders:
            places = rng.integers(len(self.values[name]), size=len(found))
            for structure, place in zip(found, places, strict=True):
                structure[name] = self.values[name][place]
        return found

    def batch(self, structure: Mapping[str, Value]) -> Batch | None:
        """Return the batch of a structural choice, built once; None if nothing is admissible."""
        key = tuple(structure[n] for n in self.structural)
        if key not in self._built:
            builder = self._builder
            with np.errstate(all="ignore"):
                batch = builder.batch(structure) if self.axes else builder.single(structure)
            self._built[key] = batch if batch is not None and batch.count else None
        return self._built[key]

    def forget(self) -> None:
        """Drop what is remembered of the arithmetic on its numbers; its batches stay."""
        self._builder.forget()

    def count(self) -> int:
        """Return how many schedules are admissible, exactly."""
        if self.orders and not all(waits_at_mbarriers(batch.program) for batch in self._alike):
            return sum(batch.count for batch in self._batches)  # the judge has a table of each
        orders = prod(len(self.values[name]) for name in self.orders)
        return sum(batch.count for batch in self._alike) * orders

    def sample(self, rng: np.random.Generator, n: int) -> list[Schedule]:
        """Return ``n`` different admissible schedules, uniformly; all, if there are no more."""
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
                points = self.sums.sample(batch.tables, rng, int(k))
                drawn += [self.schedule(batch, p) for p in points]
            order = rng.permutation(len(drawn))
            drawn = [drawn[i] for i in order]
            for schedule in drawn:
                if len(found) < n:
                    found.setdefault(schedule)
        return list(found)

    def schedule(self, batch: Batch, point: Integers) -> Schedule:
        """Return the schedule at a point: an index along each of the batch's axes."""
        chosen: dict[str, Value] = dict(batch.structure)
        for name, values, i in zip(batch.axes, batch.values, point, strict=True):
            chosen[name] = values[int(i)]
        return Schedule(self.machine.name, tuple((n, chosen[n]) for n in self.values))

    def points(self, batch: Batch, rng: np.random.Generator, n: int) -> Integers:
        """Return ``n`` points of a batch, uniformly and independently: (n, axes) indices."""
        return self.sums.sample(batch.tables, rng, n)

    def contains(self, schedule: Schedule) -> bool:
        """Say whether a schedule is admissible and within the fixed decisions."""
        inside = all(schedule[n] in v for n, v in self.values.items())
        return inside and not check_schedule(schedule, self.machine, self.problem, self.device)

    @property
    def not_asked(self) -> tuple[str, ...]:
        """The laws that its batches leave to ``check_schedule``."""
        left = any(waits_at_mbarriers(batch.program) for batch in self._alike if self.axes)
        return ("concurrency",) if left else ()

    def __str__(self) -> str:
        sizes = ", ".join(f"{a} = {n}" for a, n in self.problem.sizes.items())
        what = f"{self.problem.operation.name} at {sizes}"
        return f"{self.machine.name} for {what} on {self.device.name}"

    def __iter__(self) -> Iterator[Schedule]:
        """Yield every admissible schedule (for small spaces)."""
        for batch in self._batches:
            for point in self.sums.points(batch.tables):
                yield self.schedule(batch, point)

    @cached_property
    def _batches(self) -> tuple[Batch, ...]:
        return self._of(self.structures())

    @cached_property
    def _alike(self) -> tuple[Batch, ...]:
        """The batches, of those that differ in orders alone the first."""
        return self._of(self.structures({name: self.values[name][:1] for name in self.orders}))

    def _of(self, structures: Iterable[Mapping[str, Value]]) -> tuple[Batch, ...]:
        found = tuple(batch for s in structures if (batch := self.batch(s)))
        self.forget()
        return found

    @cached_property
    def _builder(self) -> Builder:
        return Builder(self)

    @cached_property
    def _built(self) -> dict[tuple[Value, ...], Batch | None]:
        return {}
