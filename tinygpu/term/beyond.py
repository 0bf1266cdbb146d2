"""A loop that runs on: turns beyond its trips, in which guards say what is still to do.

What a step leaves to later steps, n of them, is said once, under ``when(step >= n)``, where the
loop runs on for n turns and everything else is under ``when(step < trips)``.  In a term these turns
stand after the loop: ``step`` is ``trips + j``, and each guard is decided, or asks for the trips.

    guard                   in the loop     at step trips + j
    step < trips            holds           does not
    step >= n               step >= n       n - 1 - j < trips

>>> from tinygpu.term.program import Elect, For, Wait, When, Barrier
>>> ring = Barrier("full", 4)
>>> loop = For("k", "trips", (
...     When(var("k"), "trips", (Wait(ring, var("k")),)),
...     When(Affine(2, (("k", -1),)), 1, (Wait(ring, var("k") + -2),)),
... ))
>>> print(*within_trips(loop), sep="; ")
wait full@(k); when -1*k + 2 < 1
>>> (guard,) = beyond_trips(loop, "j")
>>> print(guard, "|", *guard.body)
when -1*j + 1 < trips | wait full@(trips + j + -2)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tinygpu.errors import ProgramError
from tinygpu.term.access_map import Affine, var
from tinygpu.term.statement import Block, Body, For, Statement, When

__all__ = ["beyond_trips", "within_trips"]


def within_trips(loop: For) -> Body:
    """Return a loop's body without guards that hold in each of its turns."""

    def of(body: Body) -> Iterator[Statement]:
        for s in body:
            if isinstance(s, When) and _asks_for_trips(s, loop):
                yield from of(s.body)
            elif isinstance(s, Block):
                yield replace(s, body=tuple(of(s.body)))
            else:
                yield s

    return tuple(of(loop.body))


def beyond_trips(loop: For, name: str) -> Body:
    """Return what a loop's body does at step trips + ``name``, a number from 0 on.

    Raises ProgramError for a guard that holds in a turn there only if there are few trips.
    """

    def moved(form: Affine) -> Affine:
        total = Affine(form.constant)
        for variable, factor in form.terms:
            if variable != loop.var:
                total = total + var(variable, factor)
            elif isinstance(factor, str) or isinstance(loop.trips, int):
                raise ProgramError(f"{form}: steps beyond {loop.trips} are not a number of it")
            else:
                total = total + Affine(0, ((loop.trips, factor), (name, factor)))
        return total

    def of(body: Body) -> Iterator[Statement]:
        for s in body:
            if isinstance(s, When) and _asks_for_trips(s, loop):
                continue
            inner = tuple(of(s.body))
            if isinstance(s, When) and any(variable == loop.var for variable, _ in s.index.terms):
                yield replace(guard(s), body=inner)
            elif isinstance(s, Block):
                yield replace(s.with_forms(moved), body=inner)
            else:
                yield s.with_forms(moved)

    def guard(when: When) -> When:
        """Return a guard ``c - step < bound``, asked of the trips."""
        if (loop.var, -1) not in when.index.terms or isinstance(when.bound, str):
            raise ProgramError(
                f"{when}: in turns beyond {loop.trips} only guards step >= n are known"
            )
        rest = (t for t in moved(when.index).terms if t != (loop.trips, -1))
        return When(Affine(when.index.constant - when.bound, tuple(rest)), loop.trips, ())

    return tuple(of(loop.body))


def _asks_for_trips(when: When, loop: For) -> bool:
    """Say whether a guard asks for a step of the loop's own: step < trips."""
    index = when.index
    own = index.terms == ((loop.var, 1),) and when.bound == loop.trips
    return own and isinstance(index.constant, int) and index.constant == 0
