"""Measuring: from schedules to validated times.

    with Campaign(problem, store=store) as campaign:
        for m in campaign.measure({s: s.term(machine, problem.operation) for s in schedules}):
            print(m.seconds, m.reason)

A campaign has one worker process for all its calls.  Every schedule that the store does not know
yet is built, checked against the problem, assembled, and then *validated* in the worker, one at a
time, while others are being built: a candidate that hangs, faults or is wrong is recorded with the
reason, and another worker goes on.  One whose SASS lacks a wait is not run, nor recorded: another
ptxas may make it right.  The ones that are right are timed in batches, a batch interleaved in one
process with the peers.  Inputs rotate through as many sets as exceed twice the L2, and outputs of
the last round of the timed launches are checked again.

A peer is named ``package.module:function`` (``on_gpu.py`` says what it is called with); a peer that
fails is recorded with its reason, like any candidate.

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import base64
import json
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.run.arguments import contract_of, dense
from tinygpu.codegen.run.assemble import DROPPED
from tinygpu.codegen.run.build import Builders, Built
from tinygpu.codegen.run.timing import Timing, time_interleaved
from tinygpu.codegen.run.validation import roundoff, validate
from tinygpu.codegen.run.worker import Worker, lost
from tinygpu.codegen.runtime.steps import check_steps
from tinygpu.deadline import NEVER, Deadline
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.meaning.tolerance import narrowing
from tinygpu.space.measurement import Measurement, Results, canonical, describe
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Problem
from tinygpu.term.plan import Term
from tinygpu.term.schedule import Schedule

__all__ = [
    "COARSE",
    "LATE",
    "SUSTAINED",
    "Base",
    "Campaign",
    "Crew",
    "Options",
    "Timing",
    "measure",
    "peer_of",
    "time_interleaved",
    "validate",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to measure.  ``limit_seconds`` is the watchdog's, for each candidate.

    Before a batch's rounds all of it runs for ``warm_seconds``, as in ``time_interleaved``; a
    candidate's turn takes ``burst_seconds``.  ``worker`` is the command of a worker process, the
    GPU's own if empty.  ``scalars`` not given are 0.5.  With ``retry_lost`` what the store has as
    hung or died is measured again.  A peer may be off by ``peer_error`` times what rounding allows:
    libraries take gelu from ``tanh.approx``.
    """

    rounds: int = 7
    warm_seconds: float = 0.0
    burst_seconds: float = 0.02
    batch: int = 24
    limit_seconds: float = 30.0
    seed: int = 0
    scalars: Mapping[str, float] = field(default_factory=dict)
    worker: tuple[str, ...] = ()
    retry_lost: bool = False
    peer_error: float = 1.0


COARSE = Options(
    rounds=3, warm_seconds=0.3, burst_seconds=0.012, batch=32, limit_seconds=45.0, peer_error=8.0
)
"""Enough to tell which candidates are worth more; under load, as a power cap reorders them."""
SUSTAINED = replace(COARSE, rounds=25, warm_seconds=1.0)
"""Round robin without a pause: what decides between the fastest."""
LATE = "not measured: the time was over"
_TIMING_SECONDS, _TIMING_SHARE, _LEAST_SECONDS = 2.0, 0.5, 3.0
"""What is kept of a deadline to time the first batch, as of others what the last one took, and of
what is left at most; what a request may take that was begun in time."""


@dataclass(frozen=True, slots=True)
class Base:
    """A schedule against which others are timed: what it was found to take, in seconds."""

    schedule: Schedule
    program: Term
    seconds: float


def measure(
    schedules: Sequence[Schedule],
    machine: Machine,
    problem: Problem,
    *,
    store: Results | None = None,
    progress: Callable[[int, int], None] | None = None,
    peers: Sequence[str] = (),
    options: Options = Options(),
) -> list[Measurement]:
    """Measure schedules of one machine, and then peers, in a campaign of their own.

    Raises ScheduleError for a schedule that is not the machine's, LaunchError if no worker can use
    a GPU, and what the store raises.
    """
    programs = {s: s.term(machine, problem.operation) for s in schedules}
    with Campaign(problem, store=store, options=options) as campaign:
        found = campaign.measure(programs, peers, progress=progress)
    mine = dict(zip(programs, found, strict=False))
    return [*(mine[s] for s in schedules), *found[len(programs) :]]


def peer_of(measurement: Measurement) -> str:
    """Return the name of the peer that was measured, or "" for a schedule."""
    return str(json.loads(measurement.schedule or "{}").get("peer", ""))


class Crew(ExitStack):
    """A worker and builders, which campaigns one after another may share; a context manager."""

    def __init__(self, command: Sequence[str] = (), *, jobs: int | None = None) -> None:
        """Start none yet, and at most ``jobs`` builders.  Raises AssemblyError without a ptxas."""
        super().__init__()
        self.worker = self.enter_context(Worker(command))
        self.builders = self.enter_context(Builders(jobs))
        self.built: dict[tuple[str, str], Built] = {}

    def begin(self, limit_seconds: float) -> None:
        """Start all processes beside what the caller does next: CUDA takes seconds to begin."""
        self.worker.begin(limit_seconds)
        self.builders.begin(limit_seconds)


class Campaign(ExitStack):
    """Measurements for one problem; a context manager, which ends a crew of its own."""

    def __init__(
        self,
        problem: Problem,
        *,
        store: Results | None = None,
        options: Options = Options(),
        crew: Crew | None = None,
    ) -> None:
        """Know what ``store`` knows; it keeps what is found."""
        super().__init__()
        self.problem, self.store, self.options = problem, store, options
        self.crew = crew or self.enter_context(Crew(options.worker))
        self.worker = self.crew.worker
        self.errors: dict[str, float] = {}
        self.kernels: dict[str, str] = {}
        self._registers: dict[str, int] = {}
        self._common = {"problem": _pack(problem), "scalars": dict(options.scalars)}
        self._found: dict[str, Measurement] = {}
        self._progress: Callable[[int, int], None] | None = None
        self._total = 0
        self._until = NEVER
        self._base_seconds = 0.0
        self.timing_seconds = _TIMING_SECONDS

    def __enter__(self) -> Campaign:
        """Start the worker.  Raises LaunchError if it cannot use a GPU."""
        hello = self.worker.ask({"do": "hello"}, self.options.limit_seconds)
        if "failed" in hello:
            self.close()
            raise LaunchError(f"worker: {hello['failed']}")
        self.arch = str(hello["arch"])
        operation, sizes, _ = describe(self.problem, Schedule("", ()))
        self.nothing = Measurement(
            operation=operation,
            sizes=sizes,
            schedule="",
            device=str(hello["device"]),
            driver=str(hello["driver"]),
            emitter=EMITTER_VERSION,
        )
        return self

    def peers(self, module: str) -> tuple[str, ...]:
        """Return the names of a module's peers for the problem; none where it has none here."""
        request = {"do": "peers", "module": module, **self._common}
        answer = self.worker.ask(request, self.options.limit_seconds)
        return tuple(f"{module}:{name}" for name in answer.get("names", ()))

    def draw(self) -> None:
        """Draw the data beside what the caller does next: its reference may take seconds."""
        request = {"do": "draw", "seed": self.options.seed, **self._common}
        self.worker.begin(self.options.limit_seconds, request)

    def measure(
        self,
        programs: Mapping[Schedule, Term],
        peers: Sequence[str] = (),
        *,
        options: Options | None = None,
        progress: Callable[[int, int], None] | None = None,
        anew: bool = False,
        until: Deadline = NEVER,
        against: Base | None = None,
    ) -> list[Measurement]:
        """Return a measurement of each schedule's program and then of each peer, in order.

        The rounds are paired with those of ``against``, if it is given: it runs in each batch, and
        seconds are the ratio to it in that batch times its own; where it is one of the programs,
        times what it takes now.

        ``options`` time differently from the campaign's.  With ``anew`` the store is not asked and
        keeps nothing: the times are for a comparison of these.  ``progress(done, all)`` is called
        as they come.  At the deadline nothing more is begun: what was not measured has ``LATE`` as
        its reason, and the store does not keep that.
        """
        self._until = until
        options = options or self.options
        self._found, self._progress, self._total = {}, progress, len(programs) + len(peers)
        self._keeps = not anew
        schedules = {describe(self.problem, s)[2]: p for s, p in programs.items()}
        named = {canonical({"peer": peer}): peer for peer in peers}
        if not anew:
            for name in schedules:
                self._recall(name)
        right = self._validated_schedules(
            {name: p for name, p in schedules.items() if name not in self._found}
        )
        for name in () if right or anew else named:
            self._recall(name)
        beside = {
            name: peer
            for name, peer in named.items()
            if name not in self._found and self._validated(name, {"peer": peer})
        }
        batches = [right[i : i + options.batch] for i in range(0, len(right), options.batch)]
        batches = batches or ([[]] if beside else [])
        base, self._base_seconds = "", 0.0
        if against and batches:
            base = describe(self.problem, against.schedule)[2]
            self._base_seconds = 0.0 if base in schedules else against.seconds
            if base not in self.kernels:  # another campaign measured it
                base = "".join(self._validated_schedules({base: against.program}))
        for batch in batches:
            self._time({name: self.kernels[name] for name in batch}, beside, options, base)
        late = (self._measurement(name, reason=LATE) for name in (*schedules, *named))
        return [self._found.get(one.schedule, one) for one in late]

    def registers(self, programs: Mapping[Schedule, Term], until: Deadline) -> dict[Schedule, int]:
        """Return what ptxas gave a thread of each, as far as it is known by the deadline."""
        names = {describe(self.problem, s)[2]: s for s in programs}
        left = {n: programs[s] for n, s in names.items() if n not in self._registers}
        for name, built in zip(left, self._built(left, until), strict=False):
            if isinstance(built, Built):
                self._registers[name] = built.cubin.registers
        return {s: self._registers[n] for n, s in names.items() if n in self._registers}

    def _recall(self, name: str) -> None:
        """Take what the store has."""
        key = self._measurement(name).key
        known = self.store.get(key) if self.store is not None else None
        if known is not None and not (self.options.retry_lost and lost(known.reason)):
            self._find(name, known)

    def _validated_schedules(self, programs: Mapping[str, Term]) -> list[str]:
        """Check, emit and assemble (in parallel) and validate; return the names of those right."""
        wanted: dict[str, Term] = {}
        for name, program in programs.items():
            try:
                check_steps(contract_of(program, self.problem.sizes), dense(self.problem))
                wanted[name] = program
            except TinyGpuError as error:
                self._fail(name, str(error))
        right = [name for name in wanted if name in self.kernels]
        fresh = [name for name in wanted if name not in self.kernels]
        # what is right is to be timed, too, but where little is left some is built all the same
        early = self._until.before(min(self.timing_seconds, _TIMING_SHARE * self._until.left()))
        every = self._built({n: wanted[n] for n in fresh}, early)
        for name, built in zip(fresh, every, strict=False):
            if early.passed():
                break
            if isinstance(built, TinyGpuError):
                self._fail(
                    name, str(built), keep=DROPPED not in str(built)
                )  # another ptxas may not
                continue
            program = wanted[name]
            contract = contract_of(program, self.problem.sizes)
            packed = _pack((contract, built.cubin.bytes, (roundoff(program), narrowing(program))))
            self._registers[name] = built.cubin.registers
            if self._validated(name, {"kernel": packed}):
                self.kernels[name] = packed
                right.append(name)
        return right

    def _built(
        self, programs: Mapping[str, Term], until: Deadline
    ) -> Iterator[Built | TinyGpuError]:
        """Yield what the crew has built before, or builds now, until the deadline."""
        known, operation = self.crew.built, self.nothing.operation
        wanted = [p for name, p in programs.items() if (operation, name) not in known]
        fresh = self.crew.builders.each([(p, self.arch, self.problem.sizes) for p in wanted], until)
        for name, program in programs.items():
            built = known.get((operation, name)) or next(fresh, None)
            if built is None:
                return
            if isinstance(built, Built) and not program.specialised:
                known[operation, name] = built
            yield built

    def _validated(self, name: str, candidate: Mapping[str, str]) -> bool:
        """Return whether a candidate is right; record the reason if it is not."""
        allowed = self._allowed(candidate)
        if self.errors.get(name, math.inf) <= allowed:
            return True
        seeded = {"seed": self.options.seed, **self._common}
        request = {"do": "validate", "name": name, **candidate, **seeded}
        answer = self._asked_worker(request, self.options.limit_seconds)
        if answer is None:
            return False
        if "failed" in answer:
            self._fail(name, str(answer["failed"]))
            return False
        self.errors[name] = error = float(answer["error"])
        if error > allowed:
            self._fail(name, _wrong(error))
        return error <= allowed

    def _asked_worker(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Return the worker's answer; None if the deadline, and no limit, cut it off."""
        if self._until.passed():
            return None
        limit = min(seconds, max(_LEAST_SECONDS, self._until.left()))
        answer = self.worker.ask(request, limit)
        cut = limit < seconds and lost(str(answer.get("failed", "")))
        return None if cut and self._until.passed() else answer

    def _allowed(self, candidate: Mapping[str, str]) -> float:
        return self.options.peer_error if "peer" in candidate else 1.0

    def _time(
        self, kernels: Mapping[str, str], peers: Mapping[str, str], options: Options, base: str
    ) -> None:
        """Time candidates beside the peers and ``base``, if there is one.

        A batch that fails is halved, to find the one that does; the last is timed alone.
        """
        request = {
            "do": "time",
            "kernels": {**kernels, **({base: self.kernels[base]} if base else {})},
            "against": base,
            "peers": dict(peers),
            "rounds": options.rounds,
            "warm_seconds": options.warm_seconds,
            "burst_seconds": options.burst_seconds,
            "seed": options.seed,
            **self._common,
        }
        count, began = len(kernels) + len(peers), time.monotonic()
        answer = self._asked_worker(request, options.limit_seconds * (1 + count))
        self.timing_seconds = time.monotonic() - began
        if answer is None:
            return
        if "failed" not in answer:
            timings, scale = answer["timings"], 1.0
            if base in timings and base not in kernels:
                now = timings.pop(base)["seconds"]
                scale = self._base_seconds / now or 1.0
            for name, timing in timings.items():
                timing["seconds"] *= scale
                self._timed(name, timing, 1.0 if name in kernels else options.peer_error)
            for name, reason in answer.get("failures", {}).items():
                if name in kernels or name in peers:
                    self._fail(name, str(reason))
        elif base and base not in kernels and count <= 1:  # it may be the base's fault
            self._time(kernels, peers, options, "")
        elif count <= 1:
            for name in (*kernels, *peers):
                self._fail(name, str(answer["failed"]))
        elif peers and kernels:  # it may be a peer's fault: each by itself, and then without them
            for name, peer in peers.items():
                self._time({}, {name: peer}, options, base)
            self._time(kernels, {}, options, base)
        else:
            names = [*kernels, *peers]
            for half in names[: count // 2], names[count // 2 :]:
                mine = _of(half, kernels)
                self._time(mine, _of(half, peers), options, base)

    def _timed(self, name: str, timing: dict[str, Any], allowed: float) -> None:
        """Record a time, unless the runs that were timed were wrong."""
        error = max(self.errors[name], float(timing.pop("error")))
        if error > allowed:
            self._fail(name, _wrong(error))
        elif name not in self._found:  # a peer's first batch counts
            self._find(name, self._measurement(name, error=error, **timing), fresh=True)

    def _fail(self, name: str, reason: str, *, keep: bool = True) -> None:
        error = self.errors.get(name, 0.0)
        self._find(name, self._measurement(name, error=error, reason=reason), fresh=keep)

    def _find(self, name: str, measurement: Measurement, *, fresh: bool = False) -> None:
        self._found[name] = measurement
        if fresh and self._keeps and self.store is not None:
            self.store.put(measurement)
        if self._progress:
            self._progress(len(self._found), self._total)

    def _measurement(self, name: str, **found: Any) -> Measurement:
        return replace(self.nothing, schedule=name, **found)


def _of(names: Sequence[str], candidates: Mapping[str, str]) -> dict[str, str]:
    return {name: candidates[name] for name in names if name in candidates}


def _pack(value: Any) -> str:
    """Write a kernel or a problem for a worker, which is this process's own child."""
    return base64.b64encode(pickle.dumps(value)).decode()


def _wrong(error: float) -> str:
    size = f"{error:.3g} times what rounding allows" if math.isfinite(error) else "not finite"
    return f"it is wrong: its worst error is {size}"
