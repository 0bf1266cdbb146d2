"""The exact best k of a whole space under the time model, and scores of many schedules.

The space is a union of batches, one a structural choice, and a batch a product of numeric decisions
cut down by tables.  The search is branch and bound (``branch.py``), all vectorised: a set of
schedules is left out if a lower bound of their times is not below the k-th best time known.  The
time is monotone in its features, so the bound that takes the least of each holds, and the result is
that of scoring every schedule.

Where the steps of each schedule are followed one by one (arithmetic in them: attention), a space of
more than some hundred schedules is climbed in (``steps.py``), and the result is not proven.

Without a proof a large space is searched by many processes, each climbs in parts (``parts.py``).

Source: A. Land and A. Doig, "An Automatic Method of Solving Discrete Programming Problems", 1960.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tinygpu.cores import cores
from tinygpu.deadline import NEVER, Deadline
from tinygpu.errors import IllegalScheduleError, MachineError, ScheduleError, nearest, require_kind
from tinygpu.legality.concurrency.judge import Verdict, verdict
from tinygpu.search.exact.branch import Entry, Key, Progress, Search
from tinygpu.search.exact.parts import PartResult, climb_in_parts, parts_of
from tinygpu.search.exact.process import UnshareableError
from tinygpu.search.time.breakdown import Breakdown
from tinygpu.search.time.cost import cost
from tinygpu.space.batches import waits_at_mbarriers
from tinygpu.space.questions import require
from tinygpu.space.space import Space
from tinygpu.term.schedule import Schedule

__all__ = ["Ranked", "Ranking", "rank"]

_LARGE, _MANY = 10**8, 256
"""Schedules, and structural choices, legal or not, from which on other processes are worth their
start."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A schedule with its predicted seconds and their breakdown, which may be made when asked."""

    seconds: float
    schedule: Schedule
    timed: Breakdown | Callable[[], Breakdown]

    @property
    def breakdown(self) -> Breakdown:
        """What the seconds are made of."""
        return self.timed if isinstance(self.timed, Breakdown) else self.timed()


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best schedules, fastest first, and how many there were: in all, admissible, scored.

    ``scored`` counts what was given a time, or a bound if partly chosen; ``proven``: that no other
    is faster under the model.
    """

    best: tuple[Ranked, ...]
    raw: int
    admissible: int
    scored: int
    proven: bool = True


def rank(
    space: Space,
    k: int = 20,
    *,
    spread: tuple[str, ...] = (),
    exact: bool = True,
    below: float = math.inf,
    progress: Progress | None = None,
    until: Deadline = NEVER,
    share: float = 1.0,
) -> Ranking:
    """Return the k legal schedules with the least predicted time, in a fixed order.

    With a ``spread`` over some decisions, return only the best for each combination of their
    values: schedules that differ in more than details.  Without ``exact``, return the best met by
    improving random schedules of each batch: quick, and not proven.  Those of ``below`` seconds or
    more are left out.  ``progress(done, all)`` counts batches.  Without ``exact`` it ends soon
    after ``until`` with the best met, by a ``share`` of the cores; then whoever makes code of them
    asks the judge.  Raises IllegalScheduleError if nothing is legal, ScheduleError for a decision
    of the spread that there is not.
    """
    require_kind("rank: space", space, Space, MachineError)
    require_kind("rank: k", k, int, ScheduleError)
    if unknown := [name for name in spread if name not in space.values]:
        raise ScheduleError(
            f"spread over {unknown[0]}: it is no decision of {space.machine.name}; "
            f"{nearest(unknown[0], space.values)}"
        )
    if k < 1:
        raise ScheduleError(f"rank: the best {k}; ask for 1 or more")
    choices = math.prod(len(space.values[name]) for name in space.structural)
    large = space.raw >= _LARGE or choices >= _MANY
    search = Search(space, k, spread, below)
    found: PartResult | None = None
    if cores() > 1 and (search.follows_all() if exact and until.open else large and not exact):
        with suppress(UnshareableError):  # one process can search it all
            found = climb_in_parts(space, k, spread, below, progress, until, share, exact=exact)
    if found is None:
        if until.open:
            require(space)
        admissible = search.start(
            exact=exact, progress=None if exact else progress, until=until,
            structures=None if exact else [s for part in parts_of(space) for s in part],
            begin=space.machine.measured(space.problem),
        )  # fmt: skip
        if exact:
            search.finish(progress)
        found = PartResult(search.entries(), admissible, search.scored)
    entries, scored = found.entries, found.scored
    if not found.admissible and not until.passed():
        require(space)
    proven = exact and not search.climbed
    if until.open and entries and not proven:
        scored += search.pairs(min(entries, key=lambda entry: entry[1])[2])
        entries = [*entries, *search.entries()]
    return _ranking(space, k, entries, found.admissible, scored, proven=proven, until=until)


def _ranking(
    space: Space,
    k: int,
    entries: Sequence[Entry],
    admissible: int,
    scored: int,
    *,
    proven: bool = True,
    until: Deadline = NEVER,
) -> Ranking:
    """Predict the k best of the entries; ties stand in the order of the decisions' values.

    Terms with mbarriers are asked for the verdict here, unless there is a deadline.  What is
    illegal or unproved is left out, and then others than the entries might be among the best.
    """
    found: dict[Key, tuple[float, Schedule]] = {}
    for key, seconds, schedule in sorted(entries, key=lambda e: (e[1], _place(space, e[2]))):
        found.setdefault(key, (seconds, schedule))
    best: list[Ranked] = []
    refused: Verdict | None = None
    for seconds, schedule in found.values():
        if len(best) == k:
            break
        if not until.open:  # a hundredth of a second each, and most are never shown
            best.append(Ranked(seconds, schedule, partial(_breakdown, space, schedule)))
            continue
        program = schedule.term(space.machine, space.problem.operation)
        if waits_at_mbarriers(program) and not (judged := verdict(program)).legal:
            refused, proven = judged, False
            continue
        breakdown = cost(program, space.problem.sizes, space.device)
        best.append(Ranked(float(breakdown.seconds), schedule, breakdown))
    if refused and not best:
        raise IllegalScheduleError(
            f"concurrency: {refused.outcome}: {refused.reason}; so are all that the search met: "
            "fix other decisions, or mend the machine"
        )
    best.sort(key=lambda r: (r.seconds, _place(space, r.schedule)))
    return Ranking(tuple(best), space.raw, admissible, scored, proven)


def _breakdown(space: Space, schedule: Schedule) -> Breakdown:
    program = schedule.term(space.machine, space.problem.operation)
    return cost(program, space.problem.sizes, space.device)


def _place(space: Space, schedule: Schedule) -> tuple[int, ...]:
    return tuple(values.index(schedule[name]) for name, values in space.values.items())
