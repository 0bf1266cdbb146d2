"""Choosing a few kernels for many shapes: candidates, their times, the set, the rules.

*Anchors* are some of the shapes; each is searched as ``tinygpu search`` does, by the model or by
measuring, and gives the candidates.  All of them are timed at all shapes beside cuBLASLt, as far as
they are legal there, or predicted where nothing can be measured; then ``search/selection.py``
chooses.  What was chosen is measured a second time, and the rules are scored on that: a choice is
not judged by the numbers that it was made from.

Where a host has several GPUs, each has a process of its own and takes the next shape.  What fails
is told and left out: a schedule, a process, a GPU.

Source: ``docs/dispatch.md``.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tinygpu.cores import cores
from tinygpu.deadline import Deadline
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import AssemblyError, IllegalScheduleError, LaunchError, TinyGpuError
from tinygpu.machines.file import machine_named
from tinygpu.search.selection import choose, intervals, slowdowns, smooth
from tinygpu.search.store import Store
from tinygpu.search.tuning.climb import CUBLASLT, Effort, climb
from tinygpu.search.tuning.shape import Shape
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Operation, Problem
from tinygpu.term.plan import Term
from tinygpu.term.schedule import Schedule

if TYPE_CHECKING:
    from tinygpu.codegen.run.measure import Crew

__all__ = [
    "RULES",
    "Fleet",
    "Job",
    "Predictor",
    "ShapeTimes",
    "anchors_of",
    "predicted_at",
    "pruned",
    "ranked_at",
    "served_of",
    "tables_of",
    "timed_at",
    "timed_by",
    "tried_at",
]

RULES = {
    "measured": "the fastest measured of the kernels, switching where it gains",
    "intervals": "one interval a kernel, the best such cut (dynamic programming)",
    "nearest": "the kernel whose hint is nearest, by logarithm",
    "round up": "the kernel of the next larger hint",
    "round down": "the kernel of the next smaller hint",
    "model": "the kernel that the time model says is fastest",
}
"""The rules that are tables; beside them the loader has "first call"."""
_FINALISTS, _PEERS = 8, 8
Result = TypeVar("Result")
Times = NDArray[np.float64]
Told = Callable[[int, int | None, str], None]
Model = Callable[[int, Shape], float]
Pair = tuple[Schedule, float]
_STEPS = 12
_SEARCH_SECONDS = 10.0  # of a shape, on two cores: as a search has with --budget 10
_PATIENCE_SECONDS = 0.1  # between signals to processes that are to end
_DIED = (
    "dispatch: a process that searched or measured ended by itself; it may have lacked memory: the "
    "same command goes on"
)
_UNKNOWN = 1.05


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is told: machines and device by name, an operation, a shape, an effort.

    ``spreads``: how many of the model's best to find; ``first``: those to try, and ``seconds`` to
    climb from them; ``schedules``: those to time, by ``anew`` without the store, or to predict at
    ``shapes``.  ``reproducible``: only those that add along k in order.
    """

    machines: tuple[str, ...]
    device: str
    operation: Operation
    shape: Shape
    store: Path | None = None
    spreads: int = 4
    first: tuple[Pair, ...] = ()
    seconds: float = 0.0
    schedules: tuple[Schedule, ...] = ()
    shapes: tuple[Shape, ...] = ()
    peers: tuple[str, ...] | None = None
    anew: bool = False
    rounds: int = 3
    reproducible: bool = False

    @property
    def problems(self) -> list[tuple[Problem, float]]:
        """The operation at the shape, for each of its routings, with the routing's share."""
        return self.shape.problems(self.operation)


@dataclass(frozen=True, slots=True)
class ShapeTimes:
    """Seconds of the schedules (infinite: failed) and of peers by name, on ``device``.

    ``failed`` has for each schedule why it has no time, or "".
    """

    seconds: tuple[float, ...]
    peers: Mapping[str, float]
    device: str
    driver: str
    failed: tuple[str, ...]


class Fleet(ExitStack):
    """Processes that do jobs, one for each GPU of the host or half its cores; a context manager.

    A process that dies fails its job alone, and another takes its place.  ``retired`` has those
    whose jobs failed with them and not with others, by number, and why: a GPU may be out of order.
    """

    def __init__(self, gpus: int) -> None:
        """Start none yet; with 0 ``gpus`` they do what needs none."""
        super().__init__()
        count = gpus or max(1, cores() // 2)
        self.retired: dict[int, str] = {}
        self._gpus, self._jobs = gpus > 0, max(1, cores() // count)
        self._pools: dict[int, ProcessPoolExecutor] = {}
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(count):
            self._free.put(number)
        self._over = False
        ensure_running()  # a thread that starts it does not block Ctrl-C any more
        self._threads = ThreadPoolExecutor(count, initializer=_unheeding)
        self.callback(self._end)

    def each(
        self, do: Callable[[Job], Result], jobs: Iterable[Job], tell: Told | None = None
    ) -> list[Result | TinyGpuError]:
        """Return what ``do`` returns for each job, in order, or why it failed.

        A job fails whose process dies, or that raises LaunchError or AssemblyError; it is tried
        once more, if others did not fail, by a process that did some.  Raises what else a job
        raises, at once: what runs is ended.  Ctrl-C is for this process alone.
        """
        wanted = list(jobs)
        found = self._all(do, wanted, tell)
        ran = {number for number, one in found if not isinstance(one, TinyGpuError)}
        again = [i for i, (_, one) in enumerate(found) if isinstance(one, TinyGpuError)]
        if ran and again:
            suspects = {found[i][0]: str(found[i][1]) for i in again if found[i][0] not in ran}
            for number in [self._free.get() for _ in range(self._free.qsize())]:
                if number not in suspects:
                    self._free.put(number)
            more = dict(zip(again, self._all(do, [wanted[i] for i in again]), strict=True))
            for number, why in suspects.items():
                if any(
                    isinstance(more[i][1], TinyGpuError) for i in again if found[i][0] == number
                ):
                    self._free.put(number)  # it is the job's fault
                else:
                    self.retired[number] = why
            found = [more.get(i, one) for i, one in enumerate(found)]
        return [one for _, one in found]

    def _all(
        self, do: Callable[[Job], Result], jobs: Sequence[Job], tell: Told | None = None
    ) -> list[tuple[int, Result | TinyGpuError]]:
        """Return the result of each job and the number of the process that did it."""
        futures = [self._threads.submit(self._one, do, job) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                if tell:
                    tell(done, len(futures), "")
        except BaseException:
            self._over = True
            for future in futures:
                future.cancel()
            left = True
            while left:  # at least once: a process may go on with what its job has begun
                for process in multiprocessing.active_children():
                    process.terminate()
                left = bool(wait(futures, _PATIENCE_SECONDS).not_done)
            raise
        return [future.result() for future in futures]

    def _one(self, do: Callable[[Job], Result], job: Job) -> tuple[int, Result | TinyGpuError]:
        """Let a free process do a job, in a thread that waits for it."""
        number = self._free.get()
        try:
            return number, self._pool(number).submit(do, job).result()
        except BrokenProcessPool:
            del self._pools[number]
            return number, LaunchError(_DIED)
        except (LaunchError, AssemblyError) as error:
            return number, error
        finally:
            self._free.put(number)

    def _pool(self, number: int) -> ProcessPoolExecutor:
        """Return the pool of one process that has this number, a new one after it died."""
        if self._over:
            raise LaunchError("dispatch: it was ended")
        if number not in self._pools:
            spawned = multiprocessing.get_context("spawn")  # a fork shares the driver's state
            given = (number if self._gpus else None, self._jobs)
            self._pools[number] = ProcessPoolExecutor(1, spawned, _began, given)
        return self._pools[number]

    def _end(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)


def _unheeding() -> None:
    """Block Ctrl-C in a thread, and in the processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


_crew: Crew | None = None
_jobs = 1


def _began(number: int | None, jobs: int) -> None:
    """Take a GPU by its number, in a process of the fleet."""
    global _jobs
    _jobs = jobs
    if number is not None:
        visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)


def _own_crew() -> Crew:
    global _crew
    from tinygpu.codegen.run.measure import Crew

    _crew = _crew or Crew(jobs=_jobs)
    return _crew


def anchors_of(shapes: Sequence[Shape], most: int) -> list[Shape]:
    """Return at most ``most`` of the shapes, those of each rule evenly by their rank."""
    groups, found = _groups(shapes), []
    for group in groups.values():
        few = max(1, min(len(group), most // len(groups)))
        at = {round(i * (len(group) - 1) / max(1, few - 1)) for i in range(few)}
        found += [shapes[group[i]] for i in sorted(at)]
    return found


def ranked_at(job: Job) -> list[Pair]:
    """Return the model's best of every spread at a shape, with their time; none if nothing fits.

    Of several routings, each has its best among them, and its seconds of search.
    """
    from tinygpu.search.tuning.ranking import ranked
    from tinygpu.space.space import Space

    chip, problems = load_device(job.device), job.problems
    machines = [machine_named(name) for name in job.machines]
    best: dict[Schedule, float] = {}
    for problem, _ in problems:
        spaces = [Space(one, problem, chip, fixed=_one_for_all(one, job)) for one in machines]
        try:
            found = ranked(
                spaces, max(1, job.spreads // len(problems)), {m.name: m.spread for m in machines},
                until=Deadline.within(_SEARCH_SECONDS, time.monotonic), share=_jobs / cores(),
            )  # fmt: skip
        except IllegalScheduleError:
            continue
        best |= {one.schedule: one.seconds for one in found.best}
    if problems[1:]:
        timed = predicted_at(replace(job, schedules=(*best,), shapes=(job.shape,)))
        best = {schedule: seconds for schedule, (seconds,) in zip(best, timed, strict=True)}
    return sorted(best.items(), key=lambda pair: pair[1])


def tried_at(job: Job) -> tuple[list[Pair], dict[Schedule, str]]:
    """Measure the job's ``first`` at a shape, and climb from them for ``seconds``.

    Returns those that ran, the fastest first, and why others did not; of several routings, each
    has the seconds.
    """
    from tinygpu.search.neighbourhood import Candidate
    from tinygpu.space.space import Space

    assert job.store is not None
    schedules = [schedule for schedule, _ in job.first]
    if job.first and job.seconds:
        chip, problems = load_device(job.device), job.problems
        first = [Candidate(*pair) for pair in job.first]
        effort = Effort(seconds=job.seconds, finalists=_FINALISTS)
        found: list[Pair] = []
        failed: dict[Schedule, str] = {}
        for problem, _ in problems:
            spaces = [
                Space(machine, problem, chip, fixed=_one_for_all(machine, job))
                for machine in map(machine_named, job.machines)
            ]
            with Store(job.store) as store:
                tuned = climb(spaces, first, store=store, effort=effort, peers=(), crew=_own_crew())
            found += [(one.schedule, run.seconds) for one, run in tuned.finalists if run.seconds]
            failed |= {s: m.reason for s, m in tuned.evaluated.items() if m.reason}
        if not problems[1:]:
            return found, failed
        schedules = [schedule for schedule, _ in found]
    every = tuple(dict.fromkeys(schedules))
    timed = timed_at(replace(job, schedules=every, peers=()))
    ran = (p for p in zip(every, timed.seconds, strict=True) if math.isfinite(p[1]))
    failed = {s: why for s, why in zip(every, timed.failed, strict=True) if why}
    return sorted(ran, key=lambda pair: pair[1]), failed


def _one_for_all(machine: Machine, job: Job) -> dict[str, Value]:
    """Return what is fixed, so that a kernel is not of one shape alone."""
    fixed: dict[str, Value] = dict(machine.in_order or {}) if job.reproducible else {}
    return fixed | ({"specialised": 0} if "specialised" in machine.decisions() else {})


def timed_at(job: Job) -> ShapeTimes:
    """Measure schedules at a shape, and the best of cuBLASLt's algorithms.

    Of several routings it is the mean, by their shares, of what ran with each.
    """
    shares = [share for _, share in job.problems]
    every = [_timed(job, problem) for problem, _ in job.problems]
    peers = [peer for peer in every[0].peers if all(peer in one.peers for one in every)]
    return ShapeTimes(
        tuple(
            _mean(column, shares) for column in zip(*(one.seconds for one in every), strict=True)
        ),
        {peer: _mean([one.peers[peer] for one in every], shares) for peer in peers},
        every[0].device,
        every[0].driver,
        tuple(next(filter(None, why), "") for why in zip(*(o.failed for o in every), strict=True)),
    )


def _mean(seconds: Sequence[float], shares: Sequence[float]) -> float:
    return sum(share * one for share, one in zip(shares, seconds, strict=True))


def _timed(job: Job, problem: Problem) -> ShapeTimes:
    """Measure a job's schedules, and peers, at a problem."""
    from tinygpu.codegen.run.measure import COARSE, Campaign, peer_of

    machines = {m.name: m for m in map(machine_named, job.machines)}
    programs = {s: s.term(machines[s.machine], job.operation) for s in job.schedules}
    with ExitStack() as open_:
        assert job.store is not None
        store = open_.enter_context(Store(job.store))
        options = replace(COARSE, rounds=job.rounds, batch=max(1, len(programs)))
        campaign = open_.enter_context(
            Campaign(problem, store=store, options=options, crew=_own_crew())
        )
        peers = campaign.peers(CUBLASLT)[:_PEERS] if job.peers is None else job.peers
        found = campaign.measure(programs, peers, anew=job.anew)
    mine, theirs = found[: len(programs)], found[len(programs) :]
    return ShapeTimes(
        tuple(m.seconds or math.inf for m in mine),
        {peer_of(m): m.seconds for m in theirs if m.seconds},
        found[0].device if found else "",
        found[0].driver if found else "",
        tuple(m.reason for m in mine),
    )


def timed_by(fleet: Fleet, jobs: Sequence[Job], tell: Told | None = None) -> list[ShapeTimes]:
    """Let a fleet measure; a job that fails is done schedule by schedule, to find which fails.

    Raises what the first job raised if it cannot be done in that way either.
    """
    every: list[ShapeTimes] = []
    lost: dict[Schedule, str] = {}
    for job, one in zip(jobs, fleet.each(timed_at, jobs, tell), strict=True):
        if not isinstance(one, TinyGpuError):
            every.append(one)
            continue
        left = tuple(schedule for schedule in job.schedules if schedule not in lost)
        alone = [replace(job, schedules=(schedule,)) for schedule in left]
        found = dict(zip(left, fleet.each(timed_at, alone), strict=True))
        if all(isinstance(each, TinyGpuError) for each in found.values()) and not every:
            raise one
        lost |= {s: str(each) for s, each in found.items() if isinstance(each, TinyGpuError)}
        every.append(_joined(job, found, lost))
    return every


def _joined(
    job: Job, found: Mapping[Schedule, ShapeTimes | TinyGpuError], lost: Mapping[Schedule, str]
) -> ShapeTimes:
    """Return a job's times of what was measured one by one, and why the lost have none."""
    ran = {s: one for s, one in found.items() if isinstance(one, ShapeTimes)}
    peers: dict[str, float] = {}
    for one in ran.values():
        peers |= {name: min(s, peers.get(name, s)) for name, s in one.peers.items()}
    first = next(iter(ran.values()), ShapeTimes((), {}, "", "", ()))
    return ShapeTimes(
        tuple(ran[s].seconds[0] if s in ran else math.inf for s in job.schedules),
        peers,
        first.device,
        first.driver,
        tuple(ran[s].failed[0] if s in ran else lost[s] for s in job.schedules),
    )


class Predictor:
    """A term's time at shapes under the model, the mean of the routings; infinite if illegal."""

    def __init__(self, program: Term, device: Device) -> None:
        """Derive the term's contract, once."""
        from tinygpu.codegen.run.arguments import contract_of

        self.program, self.device, self.contract = program, device, contract_of(program)

    def __call__(self, shape: Shape) -> float:
        """Return the seconds at a shape."""
        from tinygpu.codegen.run.arguments import dense
        from tinygpu.codegen.runtime.steps import check_steps
        from tinygpu.search.time.cost import cost

        problems = shape.problems(self.program.operation)
        try:
            check_steps(self.contract, dense(problems[0][0]))
        except LaunchError:
            return math.inf
        times = [float(cost(self.program, p.sizes, self.device).seconds) for p, _ in problems]
        return _mean(times, [share for _, share in problems])


def predicted_at(job: Job) -> list[list[float]]:
    """Return for each schedule of a job its time at each of its shapes under the model."""
    chip, machines = load_device(job.device), {m.name: m for m in map(machine_named, job.machines)}
    programs = (s.term(machines[s.machine], job.operation) for s in job.schedules)
    return [[predict(s) for s in job.shapes] for predict in (Predictor(p, chip) for p in programs)]


def pruned(
    predicted: Times,
    found: Mapping[int, Mapping[int, float]],
    count: int,
    most: int,
    weights: Sequence[float],
) -> list[int]:
    """Return at most ``most`` columns: those that seem to serve best together.

    First as many as are asked for (``count``), then twice as many, then ``most``.
    ``found`` has, by shape and column, what was measured.  What was not is taken to err as the
    fastest of its shape did, and by a little more, so that what is known goes first.
    """
    times = predicted.copy()
    for i, known in found.items():
        best = min(known, key=lambda j: known[j])
        times[i] *= known[best] / predicted[i, best] * _UNKNOWN
        for j, seconds in known.items():
            times[i, j] = seconds
    if times.shape[1] <= most:
        return list(range(times.shape[1]))
    few = [c for c in (count, 2 * count) if 2 * c <= most]
    kept = [j for c in (*few, most) for j in choose(times, c, weights).kernels]
    kept += map(int, np.argsort(slowdowns(times).min(axis=0), kind="stable"))
    return sorted(list(dict.fromkeys(kept))[:most])


def tables_of(
    times: Times,
    predicted: Times,
    shapes: Sequence[Shape],
    kernels: Sequence[int],
    aim: str,
    model: Model,
) -> dict[str, list[dict[str, Any]]]:
    """Return each rule of ``RULES`` as the loader's table, of ``kernels`` alone, by their place.

    Where two shapes next to each other have different kernels, the switch between them is after the
    first, or where ``model``, which says what a column takes at a shape, puts it; its errors at
    both shapes are taken out.  Rules by hints switch where they say.
    """
    own, every = times[:, list(kernels)], list(range(len(kernels)))
    foreseen = predicted[:, list(kernels)]
    one = np.isfinite(own).all(axis=0).any()  # a kernel that serves every shape
    default = choose(own, 1, aim=aim).kernels[0] if one else None
    tables: dict[str, list[dict[str, Any]]] = {rule: [] for rule in RULES}
    for others, group in _groups(shapes).items():
        rows, share = [shapes[i].size for i in group], [shapes[i].weight for i in group]
        here = own[group]
        nearest = [int(j) for j in here.argmin(axis=1)]
        measured = list(smooth(here, every, default, share)) if default is not None else nearest
        hints = _hints(rows, measured)
        told = {
            "measured": (rows, measured),
            "intervals": (rows, list(intervals(here, len(kernels), share, aim=aim).served)),
            "model": (rows, [int(j) for j in foreseen[group].argmin(axis=1)]),
            **{rule: _hinted(rule, hints) for rule in ("nearest", "round up", "round down")},
        }
        for rule, (ends, mine) in told.items():
            last = [i for i in range(len(mine)) if i + 1 == len(mine) or mine[i + 1] != mine[i]]
            upto = [ends[i] for i in last]
            if ends is rows:
                seen = foreseen if rule == "model" else own
                for at, i in enumerate(last[:-1]):
                    pair = [group[i], group[i + 1]]
                    upto[at] = _switch(
                        [shapes[j] for j in pair],
                        seen[pair],
                        (mine[i], mine[i + 1]),
                        lambda j, shape: model(kernels[j], shape),
                    )
            tables[rule].append({"at": [*others], "upto": upto, "kernels": [mine[i] for i in last]})
    return tables


def _switch(ends: Sequence[Shape], seen: Times, pair: tuple[int, int], model: Model) -> int:
    """Return the last size between two shapes that the first of a pair of kernels is to serve.

    ``seen`` are the times at both shapes.  What the model errs by at them it errs by in between,
    from the one to the other evenly.
    """
    low, high = (shape.size for shape in ends)
    rows = np.array(sorted({low + round((high - low) * i / _STEPS) for i in range(_STEPS + 1)}))
    foreseen = np.array([[model(j, ends[0].moved(int(m))) for j in pair] for m in rows])
    legal, both = np.isfinite(foreseen).all(axis=1), seen[:, list(pair)]
    if low == high or not (legal[0] and legal[-1] and np.isfinite(both).all()):
        return low
    rows, times = rows[legal], np.log(foreseen[legal])
    error = np.log(both) - times[[0, -1]]
    share = ((rows - low) / (high - low))[:, None]
    times += error[0] + share * (error[1] - error[0])
    gain = times[:, 0] - times[:, 1]  # of the second kernel
    costs = [gain[:i].sum() for i in range(1, len(rows))]  # of serving all up to rows[i - 1]
    return int(rows[int(np.argmin(costs))])


def served_of(
    table: Sequence[Mapping[str, Any]], shapes: Sequence[Shape], times: Times
) -> list[int]:
    """Return the kernel of each shape by a table; of one that is illegal there the next nearest.

    ``times`` are those of the bundle's kernels.
    """
    found = []
    rows = {tuple(row["at"]): row for row in table}
    for shape, here in zip(shapes, times, strict=True):
        row = rows[shape.at]
        at = min(bisect_left(row["upto"], shape.size), len(row["kernels"]) - 1)
        order = sorted(range(len(row["kernels"])), key=lambda i: abs(i - at))
        legal = [row["kernels"][i] for i in order if math.isfinite(here[row["kernels"][i]])]
        found.append(int((*legal, here.argmin())[0]))
    return found


def _hints(rows: Sequence[int], served: Sequence[int]) -> dict[int, int]:
    """Return a size for each kernel: the middle one of those that it serves."""
    found: dict[int, list[int]] = {}
    for m, kernel in zip(rows, served, strict=True):
        found.setdefault(kernel, []).append(m)
    return {sizes[len(sizes) // 2]: kernel for kernel, sizes in sorted(found.items())}


def _hinted(rule: str, hints: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Return where the intervals of hints end, and their kernels."""
    order = sorted(hints)
    mine = [hints[h] for h in order]
    pairs = pairwise(order)
    match rule:
        case "nearest":
            ends = [math.isqrt(low * high) for low, high in pairs]
        case "round up":
            ends = order[:-1]
        case _:
            ends = [high - 1 for _, high in pairs]
    return [*ends, order[-1]], mine


def _groups(shapes: Sequence[Shape]) -> dict[tuple[int, ...], list[int]]:
    """Return the shapes' indices by their other sizes, in order along the axis of the rules."""
    found: dict[tuple[int, ...], list[int]] = {}
    for i in sorted(range(len(shapes)), key=lambda i: shapes[i].size):
        found.setdefault(shapes[i].at, []).append(i)
    return dict(sorted(found.items()))
