"""Measuring: from schedules to validated times.

    for m in measure(schedules, Simt(), problem, store=store):
        print(m.seconds, m.reason)

Every schedule that the store does not know yet is built, checked against the problem, assembled,
and then *validated* in a worker process, one at a time: a candidate that hangs, faults or is wrong
is recorded with the reason, and another worker goes on.  The ones that are right are timed in
batches, a batch interleaved in one process with the peers.  Inputs rotate through as many sets as
exceed twice the L2, and outputs of the last round of the timed launches are checked again.

A peer is named ``package.module:function`` (``on_gpu.py`` says what it is called with).

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import base64
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinygpu.codegen.arguments import check, dense
from tinygpu.codegen.build import build_many
from tinygpu.codegen.emit import EMITTER_VERSION
from tinygpu.codegen.timing import Timing, time_interleaved
from tinygpu.codegen.validation import validate
from tinygpu.codegen.worker import Worker, lost
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.machine import Machine
from tinygpu.measurement import Measurement, Results, canonical, describe
from tinygpu.operation import Problem
from tinygpu.program import Program
from tinygpu.schedule import Schedule

__all__ = ["Options", "Timing", "measure", "time_interleaved", "validate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to measure.  ``limit_seconds`` is the watchdog's, for each candidate.

    Before a batch's rounds all of it runs for ``warm_seconds``, as in ``time_interleaved``.
    ``worker`` is the command of a worker process, the GPU's own if empty.  ``scalars`` not given
    are 0.5.  With ``retry_lost`` what the store has as hung or died is measured again.  A peer may
    be off by ``peer_error`` times what rounding allows: libraries take gelu from ``tanh.approx``.
    """

    rounds: int = 7
    warm_seconds: float = 0.0
    batch: int = 24
    limit_seconds: float = 30.0
    seed: int = 0
    scalars: Mapping[str, float] = field(default_factory=dict)
    worker: tuple[str, ...] = ()
    retry_lost: bool = False
    peer_error: float = 1.0


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
    """Return a measurement of each schedule and then of each peer, in order.

    ``store`` gives what is known and keeps what is found; ``progress(done, all)`` is called as they
    come.  Raises ScheduleError for a schedule that is not the machine's, LaunchError if no worker
    can use a GPU, and what the store raises.
    """
    programs: dict[str, Program] = {}
    for schedule in schedules:
        programs.setdefault(
            describe(problem, schedule)[2], schedule.program(machine, problem.operation)
        )
    with Worker(options.worker) as worker:
        campaign = _Campaign(problem, worker, options, store, progress, len(programs) + len(peers))
        for name in programs:
            campaign.recall(name)
        fresh = [name for name in programs if name not in campaign.found]
        kernels = campaign.assembled({name: programs[name] for name in fresh})
        right = [name for name, p in kernels.items() if campaign.validated(name, {"program": p})]
        named = {canonical({"peer": peer}): peer for peer in peers}
        for name in named:
            if not right:
                campaign.recall(name)
        beside = {
            name: peer
            for name, peer in named.items()
            if name not in campaign.found and campaign.validated(name, {"peer": peer})
        }
        batches = [right[i : i + options.batch] for i in range(0, len(right), options.batch)]
        for batch in batches or ([[]] if beside else []):
            campaign.timed({name: kernels[name] for name in batch}, beside)
    order = [describe(problem, schedule)[2] for schedule in schedules] + list(named)
    return [campaign.found[name] for name in order]


class _Campaign:
    """The candidates of one call of ``measure``, by the JSON of their schedules."""

    def __init__(
        self,
        problem: Problem,
        worker: Worker,
        options: Options,
        store: Results | None,
        progress: Callable[[int, int], None] | None,
        total: int,
    ) -> None:
        self.problem, self.worker, self.options = problem, worker, options
        self.store, self.progress, self.total = store, progress, total
        self.found: dict[str, Measurement] = {}
        self.errors: dict[str, float] = {}
        self.allowed: dict[str, float] = {}
        hello = worker.ask({"do": "hello"}, options.limit_seconds)
        if "failed" in hello:
            raise LaunchError(f"worker: {hello['failed']}")
        self.arch = str(hello["arch"])
        operation, sizes, _ = describe(problem, Schedule("", ()))
        self._nothing = Measurement(
            operation=operation,
            sizes=sizes,
            schedule="",
            device=str(hello["device"]),
            driver=str(hello["driver"]),
            emitter=EMITTER_VERSION,
        )
        self._common = {"problem": _pack(problem), "scalars": dict(options.scalars)}

    def recall(self, name: str) -> None:
        """Take what the store has."""
        key = self._measurement(name).key
        known = self.store.get(key) if self.store is not None else None
        if known is not None and not (self.options.retry_lost and lost(known.reason)):
            self._found(name, known)

    def assembled(self, programs: Mapping[str, Program]) -> dict[str, str]:
        """Check, emit and assemble (in parallel); return the programs that have code, packed."""
        wanted: dict[str, Program] = {}
        for name, program in programs.items():
            try:
                check(program, dense(self.problem))
                wanted[name] = program
            except TinyGpuError as error:
                self._failed(name, str(error))
        every = build_many([(p, self.arch, self.problem.sizes) for p in wanted.values()])
        for name, built in zip(wanted, every, strict=True):
            if isinstance(built, TinyGpuError):
                self._failed(name, str(built))
        return {name: _pack(program) for name, program in wanted.items() if name not in self.found}

    def validated(self, name: str, candidate: Mapping[str, str]) -> bool:
        """Return whether a candidate is right; record the reason if it is not."""
        seed = self.options.seed + len(self.errors)
        request = {"do": "validate", "seed": seed, **candidate, **self._common}
        answer = self.worker.ask(request, self.options.limit_seconds)
        if "failed" in answer:
            self._failed(name, str(answer["failed"]))
            return False
        self.errors[name] = error = float(answer["error"])
        self.allowed[name] = self.options.peer_error if "peer" in candidate else 1.0
        if error > self.allowed[name]:
            self._failed(name, _wrong(error))
        return error <= self.allowed[name]

    def timed(self, kernels: Mapping[str, str], peers: Mapping[str, str]) -> None:
        """Time candidates beside the peers; halve a batch that fails, to find the one that does."""
        request = {
            "do": "time",
            "programs": dict(kernels),
            "peers": dict(peers),
            "rounds": self.options.rounds,
            "warm_seconds": self.options.warm_seconds,
            "seed": self.options.seed,
            **self._common,
        }
        count = len(kernels) + len(peers)
        answer = self.worker.ask(request, self.options.limit_seconds * (1 + count))
        if "failed" not in answer:
            for name, timing in answer["timings"].items():
                self._timed(name, timing)
        elif len(kernels) <= 1:
            for name in kernels or peers:
                self._failed(name, str(answer["failed"]))
        else:
            names = list(kernels)
            for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                self.timed({name: kernels[name] for name in half}, peers)

    def _timed(self, name: str, timing: dict[str, Any]) -> None:
        error = max(self.errors[name], float(timing.pop("error")))
        if error > self.allowed[name]:
            self._failed(name, _wrong(error))
        elif name not in self.found:  # a peer's first batch counts
            self._found(name, self._measurement(name, error=error, **timing), fresh=True)

    def _failed(self, name: str, reason: str) -> None:
        error = self.errors.get(name, 0.0)
        self._found(name, self._measurement(name, error=error, reason=reason), fresh=True)

    def _found(self, name: str, measurement: Measurement, *, fresh: bool = False) -> None:
        self.found[name] = measurement
        if fresh and self.store is not None:
            self.store.put(measurement)
        if self.progress:
            self.progress(len(self.found), self.total)

    def _measurement(self, name: str, **found: Any) -> Measurement:
        return replace(self._nothing, schedule=name, **found)


def _pack(value: Any) -> str:
    """Write a term or a problem for a worker, which is this process's own child."""
    return base64.b64encode(pickle.dumps(value)).decode()


def _wrong(error: float) -> str:
    size = f"{error:.3g} times what rounding allows" if math.isfinite(error) else "not finite"
    return f"it is wrong: its worst error is {size}"
