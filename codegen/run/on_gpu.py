"""The worker's half of measuring: it validates and times what it is sent.

A request is of ``measure.py``: "hello", "peers" (the names of a module's peers for a problem),
"draw" (the data), "validate" (one candidate, once) or "time" (a batch with its peers); both use the
data that is drawn once for a problem, and again after a candidate that was wrong.  A candidate is a
packed kernel (its contract, its cubin, its unit roundoffs) or the name ``package.module:function``
of a peer: the function is called with the problem, the input arrays, the output array (CuPy's;
bf16 as its bits) and the scalars.  It returns a function that enqueues one run on the current
stream, and that writes that output or returns a tensor of its own.

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import base64
import functools
import importlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from tinygpu.codegen.run.provenance import device_and_driver
from tinygpu.codegen.run.timing import current_stream, time_interleaved
from tinygpu.codegen.run.validation import Output, Trial, trial
from tinygpu.codegen.runtime.function import Function, device_arch, gpu
from tinygpu.errors import TinyGpuError
from tinygpu.meaning.tolerance import usual_narrowing, usual_roundoff
from tinygpu.term.operation import Problem, matmul

__all__ = ["answer_on_gpu"]

_MOST_SETS = 1024
_CHECKED_SETS = 4


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
    if request["do"] == "peers":
        try:
            return {
                "names": list(map(str, importlib.import_module(request["module"]).peers(problem)))
            }
        except (TinyGpuError, ImportError) as error:
            return {"names": [], "why": str(error)}
    if request["do"] == "draw":
        _data(problem, request["seed"], tuple(sorted(scalars.items())))
        return {}
    if request["do"] == "validate":
        data, outputs, _ = _data(problem, request["seed"], tuple(sorted(scalars.items())))
        outputs[0].poison()
        run = _Run.of(request, data[0], outputs[0])
        gpu().cuda.Device().synchronize()  # the data came on another stream
        with current_stream(gpu().cuda.Stream(non_blocking=True)) as stream:
            run.enqueue()
            stream.synchronize()
        worst = run.error()
        if worst > 1:  # what is wrong may have written anywhere
            _data.cache_clear()
        return {"error": worst}
    return _time_on_gpu(request, problem, scalars)


def _time_on_gpu(
    request: dict[str, Any], problem: Problem, scalars: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Time a batch; a candidate that cannot be started fails alone."""
    data, outputs, checked = _data(problem, request["seed"], tuple(sorted(scalars.items())))
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    runs: dict[str, list[_Run]] = {}
    named = {name: {"kernel": packed} for name, packed in request["kernels"].items()}
    named |= {name: {"peer": peer} for name, peer in request["peers"].items()}
    for name, candidate in named.items():
        try:
            runs[name] = [_Run.of(candidate, t, o) for t, o in zip(data, outputs, strict=True)]
        except (TinyGpuError, ImportError) as error:
            failures[name] = str(error)

    @contextmanager
    def around(name: str) -> Iterator[None]:
        """Poison the outputs of the last round, and check those that it wrote."""
        for output in outputs:
            output.poison()
        gpu().cuda.get_current_stream().synchronize()
        yield
        errors[name] = max(runs[name][i].error() for i in checked)

    timings = time_interleaved(
        {name: _rotating(sets_of) for name, sets_of in runs.items()},
        rounds=request["rounds"],
        burst_seconds=request["burst_seconds"],
        warm_seconds=request["warm_seconds"],
        least_launches=len(data),
        against=request["against"],
        around=around,
        failures=failures,
    )
    return {
        "timings": {name: {**asdict(t), "error": errors[name]} for name, t in timings.items()},
        "failures": failures,
    }


@functools.lru_cache(1)
def _data(
    problem: Problem, seed: int, scalars: tuple[tuple[str, float], ...]
) -> tuple[list[Trial], list[Output], list[int]]:
    """Return sets of inputs and outputs that exceed twice the L2, and which of them are checked."""
    l2_bytes = int(gpu().cuda.Device().attributes["L2CacheSize"])
    sets = min(_MOST_SETS, 1 + int(2 * l2_bytes // problem.operation.bytes(problem.sizes)))
    checked = sorted({i * sets // _CHECKED_SETS for i in range(_CHECKED_SETS)})
    trials = {i: trial(problem, seed + i, scalars=dict(scalars)) for i in checked}
    given = [trials[max(c for c in checked if c <= i)] for i in range(sets)]
    data = [
        t if i in trials else replace(t, inputs=tuple(x.copy() for x in t.inputs))
        for i, t in enumerate(given)
    ]
    return data, [Output(problem) for _ in range(sets)], checked


class _Run:
    """A candidate on one set of arrays."""

    def __init__(
        self,
        enqueue: Callable[[], Any],
        data: Trial,
        output: Output,
        roundoffs: tuple[float, Mapping[str, float]],
    ) -> None:
        self._enqueue, self._data, self._output = enqueue, data, output
        self._roundoffs = roundoffs
        self._own: Any = None

    @staticmethod
    def of(candidate: Mapping[str, Any], data: Trial, output: Output) -> _Run:
        """Make the run of a packed kernel, or of a peer by its name."""
        stream, problem = gpu().cuda.get_current_stream, data.problem
        if "peer" in candidate:
            module, _, function = str(candidate["peer"]).partition(":")
            make = getattr(importlib.import_module(module), function)
            run = make(problem, data.inputs, output.array, data.scalars)
            usual = usual_roundoff(problem.operation), usual_narrowing(problem.operation)
            return _Run(run, data, output, usual)
        kernel, roundoffs = _kernel(candidate["kernel"])
        launch = kernel.prepare(*data.inputs, out=output.array, **data.scalars)
        return _Run(lambda: launch(stream().ptr), data, output, roundoffs)

    def enqueue(self) -> None:
        """Enqueue it on the current stream; a peer's own output stays alive for its replays."""
        self._own = self._enqueue()

    def error(self) -> float:
        """Return the worst error ratio of what it wrote last."""
        if self._own is not None:
            torch = importlib.import_module("torch")  # as integers, which every CuPy can take
            raw = self._own.view(getattr(torch, f"int{8 * self._own.element_size()}"))
            self._output.arrays[0].view(f"i{raw.itemsize}")[...] = gpu().from_dlpack(raw)
        return self._data.worst(self._output, *self._roundoffs)


def _rotating(runs: Sequence[_Run]) -> Callable[[int], None]:
    return lambda i: runs[i % len(runs)].enqueue()


@functools.lru_cache(256)
def _kernel(packed: str) -> tuple[Function, tuple[float, Mapping[str, float]]]:
    """Return a candidate's kernel, made once in a process, and its roundoffs."""
    contract, code, roundoffs = _unpack(packed)
    return Function(contract, code), roundoffs


def _unpack(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
