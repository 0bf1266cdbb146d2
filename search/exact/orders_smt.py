"""Orders by z3: the fastest of all orders, tiles and rings of a space, with the proof.

z3 has a place for each part of the loop and whether it is late, so that every dependence is kept,
and an index for each other decision, so that every table is kept (``tinygpu.term.orders``,
``tinygpu.space``).  It knows no times: it names a schedule, is told that this one is done, with the
orders that nothing tells from its own, and names another, until there is none.

So it walks the space that branch and bound walks, but finds it in another way: from dependences
and laws, and not from a list of orders.

Source: L. de Moura, N. Bjorner, "Z3: An Efficient SMT Solver", 2008; R. Soi et al., "Optimal
Software Pipelining and Warp Specialization for Tensor Core GPUs" (Twill), 2025.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from tinygpu.legality.concurrency.judge import verdict
from tinygpu.numbers import Integers
from tinygpu.search.exact.scorer import Scorers
from tinygpu.smt import z3_module
from tinygpu.space.batches import Batch
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.orders import Orders
from tinygpu.term.plan import kernels_of
from tinygpu.term.schedule import Schedule

if TYPE_CHECKING:
    from tinygpu.smt import BoolRef

__all__ = ["fastest"]

_MOST = 400
"""Schedules up to which all are named: each takes z3 some milliseconds, and the model more."""


def fastest(space: Space) -> tuple[Schedule, float] | None:
    """Return the schedule of the least predicted time, and that time in seconds.

    None for a machine without orders, for an empty space, and for one of more than 400 schedules.
    """
    found = {n: c.orders for n, c in space.machine.decisions().items() if c.orders}
    if not found or not 0 < space.count() <= _MOST:
        return None
    ((name, orders),) = found.items()
    told = _Told(space, name, orders())
    every, least = Scorers(space), math.inf
    best: Schedule | None = None
    while (named := told.another()) is not None:
        structure, point = named
        scorer = every.of(structure)
        assert scorer is not None, f"z3 names {structure}, of which nothing is admissible"
        with np.errstate(all="ignore"):
            (seconds,) = scorer.seconds(point[None])
        if seconds < least:
            schedule = space.schedule(scorer.batch, point)
            term = schedule.term(space.machine, space.problem.operation)
            if all(verdict(program).legal for program in kernels_of(term)):
                least, best = float(seconds), schedule
    return None if best is None else (best, least)


class _Told:
    """What z3 is told of a space, and what it names."""

    def __init__(self, space: Space, name: str, orders: Orders) -> None:
        z3 = z3_module()
        self.space, self.name, self.orders = space, name, orders
        self.solver = z3.Solver(ctx=z3.Context())
        of = self.solver.ctx
        self.place = {x: z3.Int(f"place {x}", of) for x in orders.letters}
        self.late = {x: z3.Bool(f"late {x}", of) for x in orders.letters}
        self.index = {n: z3.Int(n, of) for n in space.values if n != name}
        self.same = {one: z3.Bool(one, of) for one in orders.values}
        self._order()
        for n, index in self.index.items():
            self.solver.add(index >= 0, index < len(space.values[n]))
        alike: dict[Hashable, Batch] = {}
        for batch in space.batches():
            alike.setdefault(space.but_for_orders(batch.structure), batch)
        self.solver.add(z3.Or(*(self._keeps(batch) for batch in alike.values())))

    def another(self) -> tuple[dict[str, Value], Integers] | None:
        """Return a structural choice and an index along each axis; None if all are named."""
        z3 = z3_module()
        if (answer := self.solver.check()) != z3.sat:
            assert answer == z3.unsat, f"z3 says {answer} of a finite space"
            return None
        model, space = self.solver.model(), self.space
        at = {x: model.eval(place).as_long() for x, place in self.place.items()}
        order = self.orders.same["".join(sorted(at, key=at.__getitem__))]
        index = {n: model.eval(i, model_completion=True).as_long() for n, i in self.index.items()}
        here = z3.And(*(self.index[n] == i for n, i in index.items()))
        self.solver.add(z3.Not(z3.And(self.same[order], here)))
        structure = {n: order if n == self.name else space.values[n][index[n]]
                     for n in space.structural}  # fmt: skip
        return structure, np.array([index[n] for n in space.axes], np.int64)

    def _order(self) -> None:
        """Say what an order is: places that keep the dependences, nothing in flight at its end."""
        z3, orders, place, late = z3_module(), self.orders, self.place, self.late
        self.solver.add(z3.Distinct(*place.values()), place[orders.letters[0]] == 0)
        self.solver.add(*(z3.And(p >= 0, p < len(place)) for p in place.values()))
        stage = {x: z3.If(one, 1, 0) for x, one in late.items()}
        self.solver.add(stage[orders.letters[0]] == 0)
        for a, b, distance in orders.dependences:
            other = stage[b] + distance
            same = z3.And(stage[a] == other, place[a] < place[b])
            self.solver.add(z3.Or(stage[a] < other, same))
        self.solver.add(*(late[end] == late[part] for end, part in orders.ends.items()))
        for order, one in orders.same.items():
            if one:
                places = (place[x] == i for i, x in enumerate(order))
                self.solver.add(z3.Implies(z3.And(*places), self.same[one]))
        allowed = self.space.values[self.name]
        self.solver.add(*(z3.Not(b) for one, b in self.same.items() if one not in allowed))

    def _keeps(self, batch: Batch) -> BoolRef:
        """Return that the other decisions are those of a batch, and that its tables hold."""
        z3, space = z3_module(), self.space
        clauses = [self.index[n] == space.values[n].index(value)
                   for n, value in batch.structure.items() if n not in space.orders]  # fmt: skip
        for table in batch.tables:
            names = [space.axes[axis] for axis in table.axes]
            for where in np.argwhere(~table.holds.view(np.ndarray)).tolist():
                equal = (self.index[n] == i for n, i in zip(names, where, strict=True))
                clauses.append(z3.Not(z3.And(*equal)))
        return z3.And(*clauses)
