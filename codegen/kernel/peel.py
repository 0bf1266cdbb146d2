"""Turns of a running loop that guards tell from the others: they are written out.

A guard as a branch costs: around a product ptxas serialises all products of the kernel (C7514).  A
guard on the distance to the loop's start, ``c +- k < number``, is the same from some turn on; one
on the distance to its end, ``k + c < trips``, as long as more than c turns are left.  With s the
largest of the former and q of the latter

    for k in start..s-1          written out, k known
    for k in s..trips-q-1        the loop: each guard is the same in all of its turns
    the last q turns             written out, trips - k known

and where there are fewer than s + q trips, those turns are written out apart, each with k and
trips known.  No guard asks while the kernel runs; ``TurnRange`` has what is known of a turn.

A guard around arrivals alone stays a branch: it serialises nothing, and a second turn's code costs
more than its three instructions (a kernel of 2.8 us took 1.07 of the time on an H100).

>>> for piece in written_out("trips", 0, 1, 1):
...     print(piece)
trips <= 0: nothing more
trips <= 1: k = 0, trips - k = 1
k = 0, trips - k >= 2
the loop: k >= 1, trips - k >= 2
k >= 1, trips - k = 1

Source: ``docs/model.md``, section "Code".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinygpu.codegen.kernel.scope import Scope, TurnRange
from tinygpu.term.program import Arrive, Body, Elect, For, When

__all__ = ["Rest", "Short", "apart", "written_out"]

_FARTHEST = 4
"""Guards that look further from an end stay branches: a turn has some hundred instructions."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The loop itself, which may have no turn."""

    turns: TurnRange

    def __str__(self) -> str:
        return f"the loop: {self.turns}"


@dataclass(frozen=True, slots=True)
class Short:
    """What is done instead of all that follows where there are at most so many trips."""

    trips: int
    turns: tuple[TurnRange, ...]

    def __str__(self) -> str:
        return f"trips <= {self.trips}: {'; '.join(map(str, self.turns)) or 'nothing more'}"


Piece = TurnRange | Rest | Short


def apart(loop: For, scope: Scope) -> tuple[int, int]:
    """Return the first turn from which guards are the same, and how many at the end are not."""
    first, last = loop.start, 0
    for known, factor, bound in _distances(loop.body, loop.var, scope):
        if isinstance(bound, int):
            last_differs = (
                (known - bound) // -factor if factor < 0 else (bound - 1 - known) // factor
            )
            if last_differs + 1 - loop.start <= _FARTHEST:
                first = max(first, last_differs + 1)
        elif bound == loop.trips and factor == 1 and known <= _FARTHEST:
            last = max(last, known)
    return first, last


def written_out(
    trips: int | str, start: int, first: int, last: int, count: int | str = ""
) -> Iterator[Piece]:
    """Yield in order what stands for a loop whose guards differ before ``first``, and in the last.

    A ``Short`` comes where fewer trips have been asked for.  Of ``count`` trips, if that is an int,
    what is not done is left out.
    """

    def all_of(begin: int, end: int) -> tuple[TurnRange, ...]:
        return tuple(TurnRange(trips, k, k, end - k, end - k) for k in range(begin, end))

    if isinstance(count, int) and count < first + last:
        yield from all_of(start, count)
        return
    asked = not isinstance(count, int)
    for few in range(start, start + last if asked else start):
        yield Short(few, all_of(start, few))
    for k in range(start, first):
        if asked:
            yield Short(k + last, all_of(k, k + last))
        yield TurnRange(trips, k, k, last + 1)
    if count != first + last:
        yield Rest(TurnRange(trips, first, None, last + 1))
    for left in range(last, 0, -1):
        yield TurnRange(trips, first, None, left, left)


def _distances(body: Body, name: str, scope: Scope) -> Iterator[tuple[int, int, int | str]]:
    """Yield (c, factor, bound) of each guard ``c + factor * name < bound``, at any depth."""
    for statement in body:
        if isinstance(statement, When) and not _arrives(statement.body):
            match scope.split(statement.index):
                case known, ((variable, int(factor)),) if variable == name:
                    yield known, factor, statement.bound
        for inner in scope.within(statement):
            yield from _distances(statement.body, name, inner)


def _arrives(body: Body) -> bool:
    """Say whether a body does nothing but arrive at barriers."""
    return all(isinstance(s, Arrive) or (isinstance(s, Elect) and _arrives(s.body)) for s in body)
