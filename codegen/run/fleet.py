"""Fleets: measuring on several GPUs, of one host or of many, by dask (extra ``dask``).

A fleet is one dask worker a GPU: a local cluster with a worker for each GPU of this host, or the
workers of any scheduler, started there with ``CUDA_VISIBLE_DEVICES`` and one thread each.  The
candidates of a call are split into shares.  A share is measured as on one GPU (``measure.py``):
built, validated and timed in a process under a watchdog, which dask has none of.  dask hands out
the shares, and hands out again those of a worker that is lost.

GPUs of one model differ by some percent.  So each share times the same *reference* kernel beside
its candidates, and its seconds are multiplied by those of the reference when it was first timed
over those in the share.  Finals are one share: what is compared runs on one GPU.

Source: dask.distributed, "Resilience" and "Worker Resources".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from threading import Lock
from typing import Any

from tinygpu.codegen.run.launch import gpu
from tinygpu.codegen.run.measure import Base, Campaign, Crew, Options
from tinygpu.cores import cores
from tinygpu.deadline import NEVER, Deadline
from tinygpu.errors import LaunchError
from tinygpu.space.measurement import Measurement, Results, canonical, describe
from tinygpu.term.operation import Problem
from tinygpu.term.plan import Term
from tinygpu.term.schedule import Schedule

__all__ = ["FleetCampaign", "fleet", "gpus_here"]

Programs = Mapping[Schedule, Term]
_CREWS: dict[tuple[tuple[str, ...], int], Crew] = {}
_ONE = Lock()
_ANSWER = "10s"
"""How long a scheduler may take to answer, in dask's words."""
"""A GPU times one share at once, whatever threads its worker has."""


def gpus_here() -> list[str]:
    """Return the GPUs of this host that may be seen, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        return (
            named.split(",")
            if named
            else list(map(str, range(gpu().cuda.runtime.getDeviceCount())))
        )
    except LaunchError:  # without a GPU there is no fleet
        return []


@contextmanager
def fleet(address: str = "", gpus: Sequence[str] = ()) -> Iterator[Any]:
    """Give a client of a scheduler, or of a local cluster with a worker for each of ``gpus``.

    Raises LaunchError where dask is missing, or where nobody answers.
    """
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise LaunchError("--scheduler: dask is not installed; pip install tinygpu[dask]") from None
    options = {"dashboard_address": ":0", "host": "127.0.0.1", "port": 0}
    one = {"nthreads": 1, "dashboard_address": ":0", "silence_logs": logging.WARNING}
    workers = {
        i: {"cls": distributed.Nanny, "options": {**one, "env": {"CUDA_VISIBLE_DEVICES": name}}}
        for i, name in enumerate(gpus)
    }
    scheduler = {"cls": distributed.Scheduler, "options": options}
    with ExitStack() as stack:
        try:
            cluster: Any = address or stack.enter_context(
                distributed.SpecCluster(
                    workers=workers, scheduler=scheduler, silence_logs=logging.WARNING
                )
            )
            client = stack.enter_context(distributed.Client(cluster, timeout=_ANSWER))
        except (OSError, ValueError) as error:
            raise LaunchError(
                f"--scheduler {address}: {error}; give its address, as tcp://HOST:8786"
            ) from None
        yield client


def _share(
    problem: Problem, programs: Programs, peers: Sequence[str], options: Options, jobs: int,
    known: Schedule | None, against: Base | None,
) -> list[Measurement]:  # fmt: skip
    """Measure in a dask worker.  Raises LaunchError if the ``known`` schedule fails there."""
    with _ONE, Campaign(problem, options=options, crew=_crew(options, jobs)) as campaign:
        found = campaign.measure(programs, peers, against=against)
    for schedule, one in zip(programs, found, strict=False):
        if schedule == known and not one.ok:
            raise LaunchError(f"fleet: the reference fails on {one.device}: {one.reason}")
    return found


def _peers(
    problem: Problem, module: str, options: Options
) -> tuple[tuple[str, ...], Measurement, str]:
    """Return a module's peers, if one is named, what measurements here share, and the GPU."""
    with _ONE, Campaign(problem, options=options, crew=_crew(options, 1)) as campaign:
        return campaign.peers(module) if module else (), campaign.nothing, campaign.arch


def _crew(options: Options, jobs: int) -> Crew:
    """Return this process's crew, which lives as long as it."""
    if (options.worker, jobs) not in _CREWS:
        _CREWS[options.worker, jobs] = Crew(options.worker, jobs=jobs)
    return _CREWS[options.worker, jobs]


class FleetCampaign(Campaign):
    """A campaign whose candidates are measured by a fleet's workers."""

    def __init__(
        self, problem: Problem, client: Any, *, store: Results | None = None,
        options: Options,
    ) -> None:  # fmt: skip
        """Know what ``store`` knows; it keeps what is found."""
        super().__init__(problem, store=store, options=options)
        self.client = client
        self._known: Base | None = None

    def __enter__(self) -> FleetCampaign:
        """Wait for a worker.  Raises LaunchError if there is none, or if they have other GPUs."""
        limit = 4 * self.options.limit_seconds
        try:
            self.client.wait_for_workers(1, timeout=limit)
        except TimeoutError:
            raise LaunchError(f"fleet: no worker in {limit:g} s; start one: dask worker") from None
        futures = [
            self.client.submit(_peers, self.problem, "", self.options, workers=[one], pure=False)
            for one in self.client.scheduler_info(n_workers=-1)["workers"]
        ]
        answers = self.client.gather(futures)
        every = [nothing for _, nothing, _ in answers]
        kinds = {(one.device, one.driver) for one in every}
        if len(kinds) > 1:
            told = ", ".join(" driver ".join(kind) for kind in sorted(kinds))
            raise LaunchError(f"fleet: workers differ: {told}; give a scheduler of equal ones")
        self.nothing, self.arch = every[0], answers[0][2]
        return self

    def peers(self, module: str) -> tuple[str, ...]:
        """Return the names of a module's peers for the problem."""
        names, *_ = self.client.submit(
            _peers, self.problem, module, self.options, pure=False
        ).result()
        return tuple(names)

    def draw(self) -> None:
        """Leave it to the workers, who draw when they measure."""

    def measure(
        self, programs: Programs, peers: Sequence[str] = (), *, options: Options | None = None,
        progress: Callable[[int, int], None] | None = None, anew: bool = False,
        until: Deadline = NEVER, against: Base | None = None,
    ) -> list[Measurement]:  # fmt: skip
        """Return a measurement of each program and then of each peer, as a campaign does.

        What is ``against`` is the reference of the shares.
        Shares that workers have begun are waited for, whatever the deadline.
        """
        options = options or self.options
        self._found, self._progress, self._total = {}, progress, len(programs) + len(peers)
        self._keeps = not anew
        names = {s: describe(self.problem, s)[2] for s in programs}
        every = [*names.values(), *(canonical({"peer": peer}) for peer in peers)]
        for name in () if anew else every:
            self._recall(name)
        if anew or (peers and len(self._found) < len(every)):  # side by side
            for one in self._asked(programs, peers, options, against=against).result():
                self._find(one.schedule, one, fresh=True)
            return [self._found[name] for name in every]
        fresh = {s: p for s, p in programs.items() if names[s] not in self._found}
        self._known = against or self._known
        while fresh and self._known is None:
            schedule = next(iter(fresh))
            program = fresh.pop(schedule)
            (one,) = self._asked({schedule: program}, (), options).result()
            self._find(one.schedule, one, fresh=True)
            if one.seconds:
                self._known = Base(schedule, program, one.seconds)
        if fresh and self._known is not None:
            self._spread(fresh, options, self._known)
        return [self._found[name] for name in every]

    def _spread(self, fresh: Programs, options: Options, base: Base) -> None:
        """Measure shares on all workers, each beside the reference.

        Where the reference is asked for too, it is what it was in the first share.
        """
        distributed, known = import_module("distributed"), base.schedule
        workers = max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))
        every = [schedule for schedule in fresh if schedule != known]
        size = max(1, min(options.batch, -(-len(every) // workers)))
        shares = {}
        for i in range(0, max(1, len(every)), size):
            part = {s: fresh[s] for s in every[i : i + size]}
            asked = {known: base.program, **part}
            shares[self._asked(asked, (), options, known, base)] = list(part)
        for future in distributed.as_completed(list(shares)):
            try:
                reference, *found = future.result()
            except distributed.KilledWorker as error:
                for schedule in shares[future]:
                    reason = f"its process died with {error.allowed_failures + 1} workers in turn"
                    self._fail(describe(self.problem, schedule)[2], reason)
                continue
            factor = base.seconds / reference.seconds
            if known in fresh and reference.schedule not in self._found:
                found.append(reference)
            for one in found:
                seconds = one.seconds and one.seconds * factor
                self._find(one.schedule, replace(one, seconds=seconds), fresh=True)
        name = describe(self.problem, known)[2]
        if known in fresh and name not in self._found:
            self._fail(name, "each share that it was measured in was lost")

    def _asked(
        self, programs: Programs, peers: Sequence[str], options: Options,
        known: Schedule | None = None, against: Base | None = None,
    ) -> Any:  # fmt: skip
        """Return the future of a share."""
        jobs = max(1, cores() // max(1, len(self.client.scheduler_info(n_workers=-1)["workers"])))
        share = self.problem, dict(programs), tuple(peers), options, jobs, known, against
        return self.client.submit(_share, *share, pure=False, retries=2)
