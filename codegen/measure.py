"""Measuring: from schedules to validated times.

    for m in measure(schedules, Simt(), problem, store=store):
        print(m.seconds, m.reason)

Every schedule that the store does not know yet is built, checked against the problem, assembled,
and then *validated* in a worker process, one at a time: a candidate that hangs, faults or is wrong
is recorded with the reason, and another worker goes on.  The ones that are right are timed in
batches, a batch interleaved in one process with the peers.  Inputs rotate through as many sets as
exceed twice the L2, and outputs of the last round of the timed launches are checked again.

A peer is named ``package.module:function``; the worker calls the function with the problem, the
input arrays, the output array (CuPy's; bf16 as its bits) and the scalars, and gets a function that
enqueues one run on the current stream.

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import base64
import importlib
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tinygpu.codegen.arguments import check, dense
from tinygpu.codegen.assemble import Cubin, assemble_many
from tinygpu.codegen.emit import EMITTER_VERSION, emit
from tinygpu.codegen.launch import Kernel, device_arch, gpu
from tinygpu.codegen.provenance import device_and_driver
from tinygpu.codegen.timing import Timing, time_interleaved
from tinygpu.codegen.validation import Output, Trial, roundoff, trial, validate
from tinygpu.codegen.worker import Worker
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.machine import Machine
from tinygpu.measurement import Measurement, Results, canonical, describe
from tinygpu.memory import DTYPES
from tinygpu.operation import Problem, matmul
from tinygpu.program import Program
from tinygpu.schedule import Schedule

__all__ = ["Options", "Timing", "answer_on_gpu", "measure", "time_interleaved", "validate"]

_MOST_SETS = 1024
_CHECKED_SETS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to measure.  ``limit_seconds`` is the watchdog's, for each candidate.

    ``worker`` is the command of a worker process, the GPU's own if empty.  ``scalars`` not given
    are 0.5.
    """

    rounds: int = 7
    batch: int = 24
    limit_seconds: float = 30.0
    seed: int = 0
    scalars: Mapping[str, float] = field(default_factory=dict)
    worker: tuple[str, ...] = ()


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
        known = self.store.get(key) if self.store else None
        if known is not None:
            self._found(name, known)

    def assembled(self, programs: Mapping[str, Program]) -> dict[str, str]:
        """Check, emit and assemble (in parallel); return the programs that have code, packed."""
        texts: dict[str, str] = {}
        for name, program in programs.items():
            try:
                check(program, dense(self.problem))
                texts[name] = emit(program, self.arch, self.problem.sizes)
            except TinyGpuError as error:
                self._failed(name, str(error))
        cubins = assemble_many([(text, self.arch) for text in texts.values()])
        for name, cubin in zip(texts, cubins, strict=True):
            if not isinstance(cubin, Cubin):
                self._failed(name, str(cubin))
        return {name: _pack(programs[name]) for name in texts if name not in self.found}

    def validated(self, name: str, candidate: Mapping[str, str]) -> bool:
        """Return whether a candidate is right; record the reason if it is not."""
        seed = self.options.seed + len(self.errors)
        request = {"do": "validate", "seed": seed, **candidate, **self._common}
        answer = self.worker.ask(request, self.options.limit_seconds)
        if "failed" in answer:
            self._failed(name, str(answer["failed"]))
            return False
        self.errors[name] = error = float(answer["error"])
        if error > 1:
            self._failed(name, _wrong(error))
        return error <= 1

    def timed(self, kernels: Mapping[str, str], peers: Mapping[str, str]) -> None:
        """Time candidates beside the peers; halve a batch that fails, to find the one that does."""
        request = {
            "do": "time",
            "programs": dict(kernels),
            "peers": dict(peers),
            "rounds": self.options.rounds,
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
        if error > 1:
            self._failed(name, _wrong(error))
        elif name not in self.found:  # a peer's first batch counts
            self._found(name, self._measurement(name, error=error, **timing), fresh=True)

    def _failed(self, name: str, reason: str) -> None:
        error = self.errors.get(name, 0.0)
        self._found(name, self._measurement(name, error=error, reason=reason), fresh=True)

    def _found(self, name: str, measurement: Measurement, *, fresh: bool = False) -> None:
        self.found[name] = measurement
        if fresh and self.store:
            self.store.put(measurement)
        if self.progress:
            self.progress(len(self.found), self.total)

    def _measurement(self, name: str, **found: Any) -> Measurement:
        return replace(self._nothing, schedule=name, **found)


def answer_on_gpu(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request of ``measure`` in a worker process.

    Raises LaunchError for a candidate that cannot be launched, CuPy's errors for one that faults.
    """
    if request["do"] == "hello":
        arch = device_arch()
        device, driver = device_and_driver()
        small = Problem.of(matmul(), m=16, n=16, k=16)
        trial(small, 0).worst(Output(small), 1.0)  # what checks a candidate compiles here, once
        return {"arch": arch, "device": device, "driver": driver}
    problem: Problem = _unpack(request["problem"])
    scalars: dict[str, float] = request["scalars"]
    if request["do"] == "validate":
        first = trial(problem, request["seed"], scalars=scalars)
        output = Output(problem)
        run, unit_roundoff = _runner(request, first, output)
        run(0)
        return {"error": first.worst(output, unit_roundoff)}
    return {"timings": _time_on_gpu(request, problem, scalars)}


def _time_on_gpu(
    request: dict[str, Any], problem: Problem, scalars: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    cupy = gpu()
    l2_bytes = int(cupy.cuda.Device().attributes["L2CacheSize"])
    sets = min(_MOST_SETS, 1 + int(2 * l2_bytes // problem.operation.bytes(problem.sizes)))
    checked = sorted({i * sets // _CHECKED_SETS for i in range(_CHECKED_SETS)})
    trials = {i: trial(problem, request["seed"] + i, scalars=scalars) for i in checked}
    given = [trials[max(c for c in checked if c <= i)] for i in range(sets)]
    data = [
        t if i in trials else Trial(problem, _copies(t.inputs), t.scalars, t.wanted, t.scale)
        for i, t in enumerate(given)
    ]
    outputs = [Output(problem) for _ in range(sets)]
    candidates: dict[str, Callable[[int], None]] = {}
    roundoffs: dict[str, float] = {}
    errors: dict[str, float] = {}
    named = {name: {"program": packed} for name, packed in request["programs"].items()}
    named |= {name: {"peer": peer} for name, peer in request["peers"].items()}
    for name, candidate in named.items():
        runs = [_runner(candidate, t, o) for t, o in zip(data, outputs, strict=True)]
        roundoffs[name] = runs[0][1]
        candidates[name] = _rotating([run for run, _ in runs])

    @contextmanager
    def around(name: str) -> Iterator[None]:
        """Poison the outputs of the last round, and check those that it wrote."""
        for output in outputs:
            output.poison()
        yield
        errors[name] = max(data[i].worst(outputs[i], roundoffs[name]) for i in checked)

    timings = time_interleaved(
        candidates, rounds=request["rounds"], least_launches=sets, around=around
    )
    return {name: {**asdict(t), "error": errors[name]} for name, t in timings.items()}


def _copies(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(array.copy() for array in arrays)


def _rotating(runs: Sequence[Callable[[int], None]]) -> Callable[[int], None]:
    return lambda i: runs[i % len(runs)](i)


def _runner(
    candidate: Mapping[str, Any], data: Trial, output: Output
) -> tuple[Callable[[int], None], float]:
    """Return a function that enqueues a candidate on the current stream, and its unit roundoff."""
    stream = gpu().cuda.get_current_stream
    problem = data.problem
    if "peer" in candidate:
        module, _, function = str(candidate["peer"]).partition(":")
        make = getattr(importlib.import_module(module), function)
        run = make(problem, data.inputs, output.array, data.scalars)
        return (lambda _: run()), DTYPES["f32"].roundoff
    kernel = _kernel(candidate["program"], problem)
    launch = kernel.bind(*data.inputs, out=output.array, **data.scalars)
    return (lambda _: launch(stream().ptr)), roundoff(kernel.program)


_KERNELS: dict[tuple[str, Problem], Kernel] = {}


def _kernel(packed: str, problem: Problem) -> Kernel:
    """Return a candidate's kernel, made once in a process."""
    key = (packed, problem)
    if key not in _KERNELS:
        _KERNELS[key] = Kernel(_unpack(packed), sizes=problem.sizes)
    return _KERNELS[key]


def _pack(value: Any) -> str:
    """Write a term or a problem for a worker, which is this process's own child."""
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpack(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def _wrong(error: float) -> str:
    size = f"{error:.3g} times what rounding allows" if math.isfinite(error) else "not finite"
    return f"it is wrong: its worst error is {size}"
