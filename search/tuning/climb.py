"""Measuring: kernels beside cuBLAS, and a climb by measuring from the model's best.

    found = climb(spaces, first, store=store, effort=Effort(seconds=60))
    found.finalists[0]      # the fastest: (schedule, measurement)

``climb`` evaluates what a strategy asks for (``search/strategies``), and compares the fastest with
the peers round robin under sustained load: a short burst ranks kernels that power holds back
wrongly, by up to a tenth.  The store knows
what was evaluated before, so the same search goes on where it was stopped.

The peers are the algorithms of cuBLASLt's heuristic list, each measured
(``codegen/run/cublaslt.py``).

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygpu.deadline import NEVER, Deadline
from tinygpu.errors import IllegalScheduleError, LaunchError, TinyGpuError
from tinygpu.search.ties import median_noise, plainness, ranked
from tinygpu.term.machine import Machine, Value
from tinygpu.term.schedule import Schedule

if TYPE_CHECKING:
    from tinygpu.codegen.run.measure import Base, Campaign, Crew, Options
    from tinygpu.meaning.identity import Meaning
    from tinygpu.search.neighbourhood import Candidate
    from tinygpu.space.measurement import Measurement, Results
    from tinygpu.space.space import Space
    from tinygpu.term.plan import Term

__all__ = ["CUBLASLT", "EFFORT", "Effort", "Tuned", "client_of", "climb", "measured", "why_no_gpu"]

CUBLASLT = "tinygpu.codegen.run.cublaslt"
_PEERS, _BEST_PEERS = 8, 2
"""Algorithms of cuBLASLt that are measured, and that reach the final."""

_FINAL_SECONDS, _FINAL_SHARE = 6.0, 0.4
"""What of a deadline is kept for the final, at most, and as a share of what is left."""
_LATE_SECONDS = 15.0
"""What the model's first gets where the time was over before anything was measured."""
_FINAL_TIMES, _FINAL_LEAST = 1.2, 0.5
"""What is kept for it once a batch was timed: so often as long as that took, and seconds more."""
_ASSEMBLING_SHARE, _LEAST_ASSEMBLING = 0.2, 1.0
"""Of a search's time, what ptxas may take to order the model's best, and the seconds it needs."""
_CROSSED = 32
"""With what so many of the model's best choose the first of them is crossed."""
_TIED = 0.04
"""By how much times of the model tie where a card told values apart: its error at kernels that it
was not made on, of attention, in the median."""
_MOST_AT_ONCE = 16
"""Kernels of the first batch, at most: those of as many cores take as long to build as one."""
_CAPTURE_SECONDS, _LEAST_ROUNDS = 0.08, 5
"""What preparing a candidate of the final takes; the fewest rounds that give quartiles."""

Told = Callable[[int, int | None, float], None]
"""What is told of progress: evaluations, how many may come, the best seconds so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How to search: the strategy, and its seconds or evaluations, whichever is first.

    ``seed`` is of what the strategy draws.
    """

    seconds: float = 60.0
    evaluations: int | None = None
    finalists: int = 10
    strategy: str = "gaussian"
    seed: int = 0


EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search by measuring found.

    ``finalists`` and ``peers`` were timed together under sustained load, the fastest first, those
    that tie by the rule of ``search/ties.py``; those that failed come last.  The model's first
    choice, with the registers that ptxas gives where they decide, is always among them: ``first``,
    which takes ``first_seconds``, None if it failed.  ``meanings`` says what they compute at small
    sizes, as far as there was time, while the GPU measured; ``wrong`` names those that were left
    out because they compute something else.  ``evaluated`` has all that was
    measured, coarsely.  ``settled`` says that nothing left may be faster.
    """

    finalists: tuple[tuple[Candidate, Measurement], ...]
    peers: tuple[Measurement, ...]
    evaluated: Mapping[Schedule, Measurement]
    predicted: Mapping[Schedule, float]
    settled: bool
    first: Schedule | None = None
    first_seconds: float | None = None
    meanings: Mapping[Schedule, Meaning] = field(default_factory=dict, compare=False)
    wrong: tuple[str, ...] = ()


def measured(
    space: Space,
    schedules: Sequence[Schedule],
    *,
    store: Results | None = None,
    options: Options | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Measurement]:
    """Measure schedules, and then the fastest of cuBLASLt's algorithms if it has one that runs."""
    from tinygpu.codegen.run.measure import Campaign, Options

    operation = space.problem.operation
    programs = {s: s.term(space.machine, operation) for s in schedules}
    with Campaign(space.problem, store=store, options=options or Options()) as campaign:
        peers = campaign.peers(CUBLASLT)[:_PEERS]
        found = campaign.measure(programs, peers, progress=progress)
    return [*found[: len(programs)], *_ran(found[len(programs) :])[:1]]


def climb(
    spaces: Sequence[Space],
    first: Sequence[Candidate],
    *,
    store: Results | None = None,
    effort: Effort = EFFORT,
    peers: Sequence[str] = (CUBLASLT,),
    most_peers: int = _PEERS,
    options: Options | None = None,
    tell: Told | None = None,
    crew: Crew | None = None,
    client: Any = None,
    until: Deadline = NEVER,
) -> Tuned:
    """Search by measuring, from ``first``, the schedules of spaces of one problem.

    ``first`` are the model's best, no two alike in more than details, the best first.

    ``client`` is of a fleet of GPUs that measures (``codegen/run/fleet.py``), else this GPU does.
    ``peers`` are modules of peers, of each of which the first ``most_peers`` are measured.  It ends
    by ``until``, whatever the effort: a part of what is left then is kept for the final, which has
    fewer rounds if it must, and without time for it the times are the coarse ones.  Raises
    LaunchError if no worker can use a GPU, or if no schedule runs.
    """
    from tinygpu.codegen.run.fleet import FleetCampaign
    from tinygpu.codegen.run.measure import COARSE, Campaign

    problem, options = spaces[0].problem, options or COARSE
    with (
        FleetCampaign(problem, client, store=store, options=options)
        if client is not None
        else Campaign(problem, store=store, options=options, crew=crew)
    ) as campaign:
        beside = [name for module in peers for name in campaign.peers(module)[:most_peers]]
        campaign.draw()
        search = _Climb(campaign, spaces, first, effort, tell, until)
        search.beside = beside
        return search.run(peers)


@contextmanager
def client_of(scheduler: str) -> Iterator[Any]:
    """Give a client of a scheduler, or of all GPUs here if there are several; else None."""
    from tinygpu.codegen.run.fleet import fleet, gpus_here

    gpus = [] if scheduler else gpus_here()
    if scheduler or (len(gpus) > 1 and find_spec("distributed")):
        with fleet(scheduler, gpus) as client:
            yield client
    else:
        yield None


class _Climb:
    """One call of ``climb``."""

    def __init__(
        self,
        campaign: Campaign,
        spaces: Sequence[Space],
        first: Sequence[Candidate],
        effort: Effort,
        tell: Told | None,
        whole: Deadline,
    ) -> None:
        from tinygpu.search.neighbourhood import Neighbourhood

        self.whole = whole
        self.until = whole.before(min(_FINAL_SECONDS, _FINAL_SHARE * whole.left()))

        self.campaign, self.effort, self.tell = campaign, effort, tell
        self.spaces = {space.machine.name: space for space in spaces}
        asking = _ASSEMBLING_SHARE * min(self.until.left(), effort.seconds)
        self.first = list(first)
        self.near = {n: Neighbourhood(space, self.until) for n, space in self.spaces.items()}
        self.beside_it = ThreadPoolExecutor(1)  # what ptxas is asked meanwhile takes as long
        self.looked: dict[Schedule, Future[list[Candidate]]] = {
            one.schedule: self.beside_it.submit(self.near[one.schedule.machine], one.schedule)
            for one in first[:1]
            if not self.faster(one.schedule.machine)  # else another may come first
        }
        if asking >= _LEAST_ASSEMBLING:
            self.first = self.by_code(first, self.until.sooner(asking))
        self.first = self.crossed(self.first)
        self.predicted = {c.schedule: c.predicted_seconds for c in (*first, *self.first)}
        self.evaluated: dict[Schedule, Measurement] = {}
        self.beside: list[str] = []
        self.peers: list[Measurement] = []
        self.budget = whole
        self.stopped = False

    def run(self, modules: Sequence[str]) -> Tuned:
        """Walk as the strategy wants, and compare the fastest."""
        from tinygpu.cores import cores
        from tinygpu.search.strategies import STRATEGIES, Domain, walk

        self.budget = self.whole.sooner(self.effort.seconds)
        self.until = self.until.sooner(self.effort.seconds)
        for near in self.near.values():
            near.until = self.until
        domain = Domain(
            self.first, self.changes_in_time, self.drawn, self.apart, self.pipelined,
            min(cores(), _MOST_AT_ONCE),
        )  # fmt: skip
        steps = STRATEGIES[self.effort.strategy](domain, np.random.default_rng(self.effort.seed))
        seconds = walk(steps, self.evaluate, go_on=self.go_on)
        self.beside_it.shutdown(wait=False, cancel_futures=True)
        if self.first and not self.evaluated:  # CUDA began late: the model's first alone
            self.whole = self.until = Deadline.within(_LATE_SECONDS, self.whole.clock)
            alone = [self.first[0].schedule]
            seconds = dict(zip(alone, self.evaluate(alone), strict=True))
            self.stopped = True
        right = sorted((s for s in seconds if math.isfinite(seconds[s])), key=seconds.__getitem__)
        if not right:
            none = "there was none to try"
            if self.whole.passed():
                none = "the time was over before it was built; give a longer --budget"
            reason = next((m.reason for m in self.evaluated.values()), none)
            raise LaunchError(
                f"search: none of {len(self.evaluated)} schedules ran; the first: {reason}"
            )
        return self.final(right, modules)

    def crossed(self, first: Sequence[Candidate]) -> list[Candidate]:
        """Add the model's best with what others choose where it ties; the best of each kind stays.

        So is the best that has the tile which measured faster.  Of those of the best's machine that
        tie with it the one which has most of what measured faster comes first.  Of a machine
        without such decisions nothing is added, and nothing reordered.
        """
        more = []
        wait(self.looked.values())  # one looks at a time
        for name, near in self.near.items():
            mine = [one.schedule for one in first if one.schedule.machine == name]
            others = dict.fromkeys(mine[:1], mine[1:_CROSSED])
            for faster in self.faster(name):
                spread = self.spaces[name].machine.spread
                tile = {n: v for n, v in faster.items() if n in spread}
                alike = (one for one in mine if all(one[n] == v for n, v in tile.items()))
                for one in islice(alike, 1):
                    others.setdefault(one, [])
            for one, theirs in others.items():
                more += near.crossed(one, theirs)
        if not more:
            return list(first)
        kinds: dict[object, list[Candidate]] = {}
        for candidate in sorted((*first, *more), key=lambda c: c.predicted_seconds):
            kinds.setdefault(self.apart(candidate.schedule), []).append(candidate)
        found = sorted(
            (min(_tied(kind), key=self.lacks) for kind in kinds.values()),
            key=lambda c: c.predicted_seconds,
        )
        same = [one for one in found if one.schedule.machine == found[0].schedule.machine]
        preferred = min(_tied(same), key=self.lacks)
        return [preferred, *(other for other in found if other is not preferred)]

    def faster(self, machine: str) -> tuple[Mapping[str, Value], ...]:
        """Return sets of values of a machine that measured faster."""
        return self.spaces[machine].machine.measured(self.spaces[machine].problem)

    def lacks(self, one: Candidate) -> tuple[int, int]:
        """Return how many decisions differ from what measured faster: of the tile, and of all."""
        spread, every = self.spaces[one.schedule.machine].machine.spread, []
        for faster in self.faster(one.schedule.machine):
            other = [name for name, value in faster.items() if one.schedule[name] != value]
            every.append((sum(name in spread for name in other), len(other)))
        return min(every, default=(0, 0))

    def by_code(self, first: Sequence[Candidate], until: Deadline) -> list[Candidate]:
        """Order by the time with the registers and spills that ptxas says, as far as it is asked.

        It is asked where the model estimates registers: they decide what fits on an SM.
        """
        from tinygpu.search.time.cost import cost
        from tinygpu.search.time.launch import Assembled, takes_tiles

        problem = self.campaign.problem
        one_each = {one.schedule.machine: one.schedule for one in first}
        of_tiles = {s.machine for s, p in self.programs([*one_each.values()]).items()
                    if takes_tiles(p)}  # fmt: skip
        asked = self.programs([c.schedule for c in first if c.schedule.machine not in of_tiles])
        device = {s: self.spaces[s.machine].device for s in asked}
        wanted = [(program, device[s].arch, problem.sizes) for s, program in asked.items()]
        codes = self.campaign.crew.builders.codes(wanted, until)
        seconds = {one.schedule: one.predicted_seconds for one in first}
        known = {one.schedule for one in first} - set(asked)
        for (schedule, program), code in zip(asked.items(), codes, strict=False):
            known.add(schedule)
            seconds[schedule] = math.inf  # if ptxas does not take it
            if not isinstance(code, TinyGpuError):
                told = cost(program, problem.sizes, device[schedule], code=Assembled(*code))
                seconds[schedule] = float(told.seconds)
        return sorted(first, key=lambda c: (c.schedule not in known, seconds[c.schedule]))

    def apart(self, schedule: Schedule) -> object:
        """Return what tells schedules apart by more than details."""
        names = self.spaces[schedule.machine].machine.apart
        return schedule.machine, *(schedule[n] for n in names or dict(schedule.decisions))

    def changes(self, schedule: Schedule) -> list[Candidate]:
        """Return the single changes of a schedule."""
        wait(self.looked.values())  # one looks at a time
        looked = self.looked.get(schedule)
        found = self.near[schedule.machine](schedule) if looked is None else looked.result()
        for one in found:
            self.predicted.setdefault(one.schedule, one.predicted_seconds)
        return found

    def changes_in_time(self, schedule: Schedule) -> list[Candidate]:
        """Return them as long as something could still be measured."""
        self.stopped = self.stopped or self.until.passed()
        return [] if self.stopped else self.changes(schedule)

    def pipelined(self) -> list[Schedule]:
        """Return the schedules whose loop a solver chose."""
        from tinygpu.search.strategies.smt import chosen

        found = [one for space in self.spaces.values() if (one := chosen(space))]
        self.predict(found)
        return found

    def predict(self, schedules: Sequence[Schedule]) -> None:
        """Note what the model says of schedules that no ranking had."""
        from tinygpu.search.time.cost import cost

        for one, program in self.programs(schedules).items():
            space = self.spaces[one.machine]
            seconds = cost(program, space.problem.sizes, space.device).seconds
            self.predicted.setdefault(one, float(seconds))

    def drawn(self, rng: np.random.Generator, count: int) -> list[Candidate]:
        """Draw legal schedules, of a machine drawn for all of them."""
        from tinygpu.search.neighbourhood import Candidate

        space = list(self.spaces.values())[int(rng.integers(len(self.spaces)))]
        found = [s for s in space.sample(rng, count) if not space.not_asked or space.contains(s)]
        self.predict(found)
        return [Candidate(schedule, self.predicted[schedule]) for schedule in found]

    def go_on(self) -> bool:
        """Say whether the budget allows more."""
        most = self.effort.evaluations
        enough = most is not None and len(self.evaluated) >= most
        self.stopped = self.stopped or enough or self.until.passed()
        return not self.stopped or not (self.evaluated or enough or self.whole.passed())

    def evaluate(self, schedules: Sequence[Schedule]) -> list[float]:
        """Measure coarsely, as many as the budget allows; the others count as failed.

        A schedule that may deadlock or race is refused where it is built.
        """
        from tinygpu.codegen.run.measure import LATE

        most = self.effort.evaluations
        allowed = schedules[: most and most - len(self.evaluated)]
        self.stopped = len(allowed) < len(schedules)
        programs = self.programs(allowed)
        until = self.until if self.evaluated else self.whole
        first = not self.evaluated  # whose batch has the peers, too
        measured = self.campaign.measure(
            programs, self.beside if first else (), until=until, against=self.incumbent()
        )
        if first:
            self.peers = measured[len(programs) :]
        found = {s: m for s, m in zip(programs, measured, strict=False) if m.reason != LATE}
        self.stopped = self.stopped or len(found) < len(programs)
        if first and found:  # so far the final had a share of what was left
            final = _FINAL_TIMES * self.campaign.timing_seconds + _FINAL_LEAST
            self.until = self.whole.before(min(final, _FINAL_SECONDS)).sooner(self.budget.left())
            for near in self.near.values():
                near.until = self.until
        self.evaluated |= found
        if self.tell:
            times = [m.seconds for m in self.evaluated.values() if m.seconds]
            self.tell(len(self.evaluated), most, min(times, default=math.inf))
        seconds = {s: m.seconds for s, m in found.items()}
        return [seconds.get(s) or math.inf for s in schedules]

    def incumbent(self) -> Base | None:
        """Return the fastest so far, which others are timed against."""
        from tinygpu.codegen.run.measure import Base

        ran = {s: m.seconds for s, m in self.evaluated.items() if m.seconds}
        if not ran:
            return None
        best = min(ran, key=ran.__getitem__)
        return Base(best, self.programs([best])[best], ran[best])

    def programs(self, schedules: Sequence[Schedule]) -> dict[Schedule, Term]:
        """Return the terms of schedules."""
        operation = self.campaign.problem.operation
        return {s: s.term(self.spaces[s.machine].machine, operation) for s in schedules}

    def in_order(self, right: Sequence[Schedule]) -> Iterator[Schedule]:
        """Yield those that do not start early, and then such single changes of the fastest."""
        yield from (s for s, program in self.programs(right).items() if not program.early)
        near = sorted(self.changes(right[0]), key=lambda one: one.predicted_seconds)
        for schedule, program in self.programs([one.schedule for one in near]).items():
            if not program.early and self.spaces[schedule.machine].contains(schedule):
                yield schedule

    def final(self, right: Sequence[Schedule], modules: Sequence[str]) -> Tuned:
        """Compare the fastest, one that starts in order and the model's first with the peers.

        Meanwhile small instances of them are executed here.
        """
        from tinygpu.codegen.run.measure import SUSTAINED, peer_of
        from tinygpu.search.neighbourhood import Candidate

        in_order, first = islice(self.in_order(right), 1), self.first[0].schedule
        chosen = list(dict.fromkeys((*right[: self.effort.finalists], *in_order, first)))
        beside: list[str] = []
        for module in modules:
            names = [
                name for m in _ran(self.peers) if (name := peer_of(m)).startswith(f"{module}:")
            ]
            beside += names[:_BEST_PEERS]
        options = self.rounds(SUSTAINED, len(chosen) + len(beside))
        programs = self.programs(chosen)
        with ThreadPoolExecutor(1) as here:
            asked = here.submit(_meanings, programs, self.whole)
            found = self.campaign.measure(
                programs, beside, options=options, anew=True, until=self.whole,
                against=self.incumbent(),
            )  # fmt: skip
        meanings = asked.result()
        mine = dict(zip(chosen, found[: len(chosen)], strict=True))
        theirs = _ran(found[len(chosen) :])
        if not any(m.seconds for m in mine.values()):  # there was no time for it
            mine |= {s: self.evaluated[s] for s in chosen if s in self.evaluated}
            theirs = [m for m in _ran(self.peers) if peer_of(m) in beside]
        registers = self.campaign.registers({s: programs[s] for s in mine}, self.whole)
        order = ranked(
            [m.seconds for m in mine.values()],
            [median_noise(m.spread, m.rounds) for m in mine.values()],
            [plainness(s, registers.get(s, math.inf)) for s in mine],
        )
        every = [(Candidate(s, self.predicted[s]), m) for s, m in mine.items()]
        bad = {s: f"{s} {meaning}" for s, meaning in meanings.items() if meaning.wrong}
        kept, wrong = [every[i] for i in order if every[i][0].schedule not in bad], (*bad.values(),)
        if not kept:
            raise IllegalScheduleError(f"computes: {wrong[0]} (and {len(wrong) - 1} more)")
        return Tuned(
            tuple(kept), tuple(theirs), self.evaluated, self.predicted, not self.stopped, first,
            mine[first].seconds, meanings, wrong,
        )  # fmt: skip

    def rounds(self, options: Options, count: int) -> Options:
        """Return options with as many rounds of ``count`` candidates as there is time for."""
        left = self.whole.left() - options.warm_seconds - _CAPTURE_SECONDS * count
        possible = left / (options.burst_seconds * max(1, count)) - 1
        return replace(options, rounds=int(min(options.rounds, max(_LEAST_ROUNDS, possible))))


def _tied(some: Sequence[Candidate]) -> list[Candidate]:
    """Return those that tie with the first, which takes least."""
    most = (1 + _TIED) * some[0].predicted_seconds
    return [one for one in some if one.predicted_seconds <= most]


def _meanings(programs: Mapping[Schedule, Term], until: Deadline) -> dict[Schedule, Meaning]:
    """Return what terms compute at small sizes, and then as they are emitted.

    None is begun that may end after the deadline.
    """
    from tinygpu.codegen.run.agreement import computes, computes_as_emitted

    found: dict[Schedule, Meaning] = {}
    for ask in (computes, computes_as_emitted):
        longest = 0.0
        for schedule, program in programs.items():
            if until.passed() or until.left() < longest:
                break
            began = until.clock()
            found[schedule] = ask(program)
            longest = max(longest, until.clock() - began)
    return found


def _ran(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return those that ran, the fastest first."""
    return sorted((m for m in measurements if m.seconds), key=lambda m: m.seconds or math.inf)


def why_no_gpu(machine: Machine) -> str:
    """Return why no kernel of a machine can run here, or ""."""
    from tinygpu.codegen.run.launch import device_arch

    try:
        arch = device_arch()
    except LaunchError as error:
        return str(error)
    lacking = [i for i in machine.instructions if not i.runs_on(arch)]
    if lacking:
        needs = f"{lacking[0].name}, which {lacking[0].arch} has"
        return f"GPU: it is {arch}, and kernels of {machine.name} need {needs}"
    return ""
