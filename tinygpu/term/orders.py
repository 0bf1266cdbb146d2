"""The orders of a loop's body: found from what its parts read and write, and traced.

A body is written as *parts*, each a letter and what it traces in a step, in an order that is right.
Of an asynchronous part (wgmma) the wait for it is a part of its own, with the small letter: what
touches its registers comes before the part or behind that wait.  Two parts that touch a cell, and
do not both read it, depend on each other: the first in a step comes first there, and the second
before the first of the next step.

An order is a permutation of the letters.  A part that stands before one that it depends on is that
of the step before: it is *late* (a modulo schedule of two stages).  So "SsPVv" is a loop without
overlap, and in "SVsvP" the product V of a step is issued when that step's P is long done.

Orders that nothing tells apart are one:

- a loop may begin anywhere: orders begin with the first part;
- a wait that another wait covers stands right behind that one, for its part is over there;
- arithmetic between two waits, products or barriers has no order: ptxas schedules it anew.

Left out are orders in which a product is in flight at the end of a step: in kernels of each ptxas
puts a wait there (C7517), or waits for each product at once (C7514).

>>> loop = Orders("AaBC", {("A", "a", 0), ("a", "B", 0), ("B", "A", 1), ("B", "C", 0),
...                        ("C", "B", 1)}, ends={"a": "A"}, free=frozenset("BC"))
>>> loop.values
('AaBC', 'AaCB', 'ACaB')
>>> [sorted(loop.late(order)) for order in loop.values]
[[], ['C'], ['C']]

Source: B. Rau, "Iterative Modulo Scheduling", 1994; A. Mazurkiewicz, "Trace Theory", 1987.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from tinygpu.errors import ProgramError, ScheduleError
from tinygpu.term.builder import Condition, Kernel, LoopIndex
from tinygpu.term.statement import Body, Commit, Do, each

__all__ = ["Dependence", "LoopPart", "Orders", "orders_of"]

Dependence = tuple[str, str, int]
"""One part, another, and how many steps later the other has to come behind it."""
Turn = Callable[[LoopIndex], None]
_LATEST = 1
"""Steps that a part may be late; it could be more with rings of registers, which there are not."""


@dataclass(frozen=True, slots=True)
class LoopPart:
    """What a part traces in a step; of an asynchronous one what follows the wait for it."""

    do: Turn
    end: Turn | None = None


@dataclass(frozen=True)
class Orders:
    """The orders of parts, by what depends on what.

    ``letters``: the parts in an order that is right; ``ends``: of waits the part that they wait
    for; ``free``: parts of arithmetic alone.  ``group``: what asynchronous parts join.
    """

    letters: str
    dependences: frozenset[Dependence] | set[Dependence]
    ends: Mapping[str, str]
    free: frozenset[str]
    group: str = ""

    @cached_property
    def values(self) -> tuple[str, ...]:
        """One order of those that nothing tells apart, that of the letters first."""
        return tuple(dict.fromkeys(filter(None, self.same.values())))

    def late(self, order: str) -> frozenset[str]:
        """Return the parts that are those of the step before.

        Raises ScheduleError for what is no order of these parts, or needs more steps.
        """
        if sorted(order) != sorted(self.letters) or order[0] != self.letters[0]:
            text = f"the parts are {self.letters}, and {self.letters[0]} comes first"
            raise ScheduleError(f"order {order}: {text}")
        late = self._late(order)
        if late is None:
            raise ScheduleError(f"order {order}: a part comes behind one that needs it")
        return late

    def near(self, order: str) -> tuple[str, ...]:
        """Return the orders to which one exchange of neighbours leads, or more over those left out.

        The last part has the first of the next step as a neighbour: it may go behind that.
        """
        found: dict[str, None] = {}
        waiting = [other for other, same in self.same.items() if same == order]
        seen = {*waiting}
        for other in waiting:
            for near in _exchanged(other):
                if near in self.same and near not in seen:
                    if self.same[near]:
                        found[self.same[near]] = None
                    else:
                        seen.add(near)
                        waiting.append(near)
        found.pop(order, None)
        return tuple(found)

    # what is traced

    def step(
        self, k: Kernel, parts: Mapping[str, LoopPart], order: str, step: LoopIndex,
        issued: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Trace a step; ``issued`` follows the products with which it begins."""
        late, first, later = self.late(order), *self._pending(order)
        begun = next((i for i, letter in enumerate(order) if letter not in self.ends.values()), 0)
        actions: list[tuple[str, Callable[[], None]]] = []
        for i, letter in enumerate(order):
            if i == begun and issued:
                actions.append(("", issued))
            if letter in self.ends:
                actions += _waits(k, self.group, first[letter], later[letter])
            if do := self._of(parts, letter):
                behind = int(letter in late)
                actions.append(("later" * behind, _at(do, step - 1 if behind else step)))
        guards = {"later": step >= 1, "first": step < 1}
        for guard, run in groupby(actions, lambda one: one[0]):
            with k.when(guards[guard]) if guard else nullcontext():
                for _, do_it in run:
                    do_it()

    def rest(
        self, k: Kernel, parts: Mapping[str, LoopPart], order: str, last: LoopIndex,
        any_step: Condition | None = None,
    ) -> None:  # fmt: skip
        """Trace behind the loop what is late of its last step; ``any_step``: if there was one."""
        late = self.late(order)
        if not late:
            return
        fifo = self._in_flight(order)
        with nullcontext() if any_step is None else k.when(any_step):
            for letter in order:
                if letter not in late:
                    continue
                if letter in self.ends:
                    pending = _pop(fifo, self.ends[letter])
                    if pending is not None:
                        k.wait_group(self.group, pending)
                if do := self._of(parts, letter):
                    do(last)
                if letter in self.ends.values():
                    fifo.append(letter)

    def _of(self, parts: Mapping[str, LoopPart], letter: str) -> Turn | None:
        return parts[self.ends[letter]].end if letter in self.ends else parts[letter].do

    # which orders there are

    @cached_property
    def same(self) -> dict[str, str]:
        """Every order with the one that stands for it, none for those that are left out."""
        every = self._every(self.letters[0])
        return {o: "" if self._in_flight(o) else self.standing_for(o) for o in every}

    def _every(self, begun: str) -> Iterator[str]:
        """Yield the orders that begin so: a beginning that is too late stays so."""
        if self._late(begun) is None:
            return
        if len(begun) == len(self.letters):
            yield begun
            return
        for letter in self.letters:
            if letter not in begun:
                yield from self._every(begun + letter)

    def _late(self, order: str) -> frozenset[str] | None:
        """Return the parts of an order's beginning that are late; None: there is no such order.

        Those that are missing come behind it.
        """
        place = {letter: i for i, letter in enumerate(order)}
        stage = dict.fromkeys(self.letters, 0)
        changed = True
        while changed:
            changed = False
            for a, b, distance in self.dependences:
                if a not in place and b not in place:
                    continue
                before = place.get(a, len(order)) < place.get(b, len(order))
                least = stage[a] - distance + (not before)
                if least > stage[b]:
                    if b == self.letters[0] or least > _LATEST:
                        return None
                    stage[b], changed = least, True
        return frozenset(letter for letter in self.letters if stage[letter])

    def standing_for(self, order: str) -> str:
        """Return the order that stands for all that nothing tells from this one."""
        late, covered = self.late(order), self._covered(order)
        for letter, by in covered.items():
            order = order.replace(letter, "").replace(by, by + letter)
        found = ""
        for _, run in groupby(order, lambda letter: letter in self.free or letter):
            left = sorted(run, key=self.letters.index)
            while left:
                taken = next(x for x in left if self._may_begin(x, left, late))
                left.remove(taken)
                found += taken
        return found

    def _may_begin(self, letter: str, others: list[str], late: frozenset[str]) -> bool:
        """Whether none of the others comes first in a step."""
        return not any(
            b == letter and a in others and a != b and (a in late) == (b in late) + distance
            for a, b, distance in self.dependences
        )

    # groups in flight

    def _covered(self, order: str) -> dict[str, str]:
        """Return each wait that has nothing to wait for, and the one that has waited for it."""
        by: dict[str, str] = {}
        fifo = self._in_flight(order)
        for letter in order:
            if letter in self.ends.values():
                fifo.append(letter)
            elif letter in self.ends:
                before = [*fifo]
                if _pop(fifo, self.ends[letter]) is not None:
                    by |= dict.fromkeys(set(before) - set(fifo), letter)
        return {end: by[part] for end, part in self.ends.items() if by[part] != end}

    def _in_flight(self, order: str) -> list[str]:
        """Return what is in flight at the end of a step, the oldest first."""
        fifo: list[str] = []
        for _ in range(3):  # whatever the first step began with
            for letter in order:
                if letter in self.ends.values():
                    fifo.append(letter)
                elif letter in self.ends:
                    _pop(fifo, self.ends[letter])
        return fifo

    def _pending(self, order: str) -> tuple[dict[str, int | None], dict[str, int | None]]:
        """Return how many groups each wait leaves, in the first step and later; None: no wait.

        Where the first step has nothing to wait for it does as later ones do.
        """
        late, fifo = self.late(order), self._in_flight(order)
        later: dict[str, int | None] = {}
        for letter in order:
            if letter in self.ends.values():
                fifo.append(letter)
            elif letter in self.ends:
                later[letter] = _pop(fifo, self.ends[letter])
        first: dict[str, int | None] = {}
        fifo = []
        for letter in order:
            if letter in self.ends.values() and letter not in late:
                fifo.append(letter)
            elif letter in self.ends:
                pending = _pop(fifo, self.ends[letter]) if letter not in late else None
                first[letter] = later[letter] if pending is None else pending
                if pending is None and later[letter] is not None:
                    fifo = fifo[max(0, len(fifo) - (later[letter] or 0)) :]
        return first, later


def orders_of(k: Kernel, parts: Mapping[str, LoopPart], step: LoopIndex) -> Orders:
    """Return the orders of parts, each of which is traced once to see what it touches.

    Raises ProgramError for an asynchronous part without an end, and for another with one.
    """
    bodies: dict[str, Body] = {}
    ends: dict[str, str] = {}
    for letter, part in parts.items():
        with k.aside() as traced:
            part.do(step)
        bodies[letter] = tuple(traced)
        flies = any(isinstance(s, Do) and s.joins for s in each(bodies[letter]))
        if flies != (part.end is not None):
            text = "asynchronous, and has no end" if flies else "over at once, and has an end"
            raise ProgramError(f"part {letter}: is {text}")
        if part.end:
            ends[letter.lower()] = letter
            with k.aside() as traced:
                part.end(step)
            bodies[letter.lower()] = tuple(traced)
    letters = "".join(bodies)
    dependences = {(part, end, 0) for end, part in ends.items()}
    over = {part: end for end, part in ends.items()}
    for i, a in enumerate(letters):
        for j, b in enumerate(letters):
            if a != b and (a, b) not in over.items() and _meet(bodies[a], bodies[b]):
                dependences.add((over.get(a, a), b, int(i > j)))
    free = frozenset(letter for letter in letters if _is_arithmetic(bodies[letter]))
    groups = {s.group for body in bodies.values() for s in each(body) if isinstance(s, Commit)}
    if len(groups) > 1:
        raise ProgramError(f"parts join the groups {', '.join(sorted(groups))}; orders are of one")
    return Orders(letters, frozenset(dependences), ends, free, "".join(groups))


def _meet(one: Body, other: Body) -> bool:
    """Whether two bodies touch a ring or a barrier, and do not both read it."""
    touched = [{(u.ring.name, u.how == "read") for s in each(b) for u in s.uses}
               for b in (one, other)]  # fmt: skip
    return any(a == b and not (read and also) for a, read in touched[0] for b, also in touched[1])


def _is_arithmetic(body: Body) -> bool:
    """Whether it is instructions on a thread's registers alone, over at once."""
    every = [s for s in each(body) if not s.body]
    return bool(every) and all(
        isinstance(s, Do) and not s.joins and all(a.buffer.level == "registers" for a in s.accesses)
        for s in every
    )


def _pop(fifo: list[str], part: str) -> int | None:
    """Take a part and all older ones out; return how many newer ones stay, None if it is over."""
    if part not in fifo:
        return None
    del fifo[: fifo.index(part) + 1]
    return len(fifo)


def _at(do: Turn, step: LoopIndex) -> Callable[[], None]:
    return lambda: do(step)


def _waits(
    k: Kernel, group: str, first: int | None, later: int | None
) -> list[tuple[str, Callable[[], None]]]:
    """Return the waits for a part: one, or one in the first step and another in later ones."""

    def of(pending: int) -> Callable[[], None]:
        return lambda: k.wait_group(group, pending)

    if first == later:
        return [] if later is None else [("", of(later))]
    both = [("later", later), ("first", first)]
    return [(guard, of(pending)) for guard, pending in both if pending is not None]


def _exchanged(order: str) -> Iterator[str]:
    """Yield what one exchange of neighbours makes of an order that begins with the same part."""
    first, rest = order[0], order[1:]
    for i in range(len(rest) - 1):
        yield first + rest[:i] + rest[i + 1] + rest[i] + rest[i + 2 :]
    yield first + rest[-1] + rest[:-1]
    yield first + rest[1:] + rest[0]
