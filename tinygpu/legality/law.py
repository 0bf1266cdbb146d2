"""A law: one named condition on terms, with its source and its mend.

A law states a condition on a *case* (a term, sizes, a device) as clauses, in arithmetic and
``select``: of an ordinary term they are bools, of the term of a whole space arrays over just the
decisions that matter.

>>> law = Law("nothing", "States that nothing holds.", "here", "give up")
>>> print(law)
nothing: States that nothing holds.

The laws themselves are in ``tinygpu.legality.laws.LAWS``.  Source: ``docs/model.md``, section
"Legality".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinygpu.legality.reach import Case, Clause, Context, Place

__all__ = ["Law"]


@dataclass(frozen=True, slots=True)
class Law:
    """A law: what it states, where that is from, how to mend a violation, and its clauses.

    Decisions stand in the mend in parentheses, ``(stages, edges "guard")``: of a machine those are
    shown that it has.  ``of_case`` gives the clauses of the whole term, ``of_place`` those of one
    statement of it, or of one that is ``of`` an instruction.
    ``of_sizes``: it depends on the sizes, so that a dispatcher or a launch has to ask again.
    ``numeric``: it can be judged for a whole space of numbers at once.
    """

    name: str
    sentence: str
    source: str
    mend: str
    of_case: Callable[[Case], Iterator[Clause]] | None = None
    of_place: Callable[[Context, Place], Iterator[Clause]] | None = None
    of: str = ""
    of_sizes: bool = False
    numeric: bool = True

    def clauses(self, case: Case) -> Iterator[Clause]:
        """Yield every clause of the law on a case."""
        if self.of_case is not None:
            yield from self.of_case(case)
        if self.of_place is None:
            return  # most laws: no need to look at every statement
        for place in case.places:
            yield from self.at(case.context, place)

    def at(self, context: Context, place: Place) -> Iterator[Clause]:
        """Yield the clauses of one statement."""
        if self.of_place is not None and self.of in ("", place.do.instruction.name):
            yield from self.of_place(context, place)

    def __str__(self) -> str:
        """Return the name and the sentence."""
        return f"{self.name}: {self.sentence}"
