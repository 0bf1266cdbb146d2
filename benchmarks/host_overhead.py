"""What a call of a kernel costs the host: ``python -m benchmarks.host_overhead``.

Small problems, so that the GPU is faster than the host.  A time is the host's, for one of 1,000
eager calls in bursts of 100, the least of 15 such samples; before a burst the stream is drained, so
no call waits for a full queue.  Groups of rows, each on CuPy arrays and on PyTorch tensors, beside
what the library has:

- *call*: ``kernel(a, b, out=c)``, at most 10 us;
- *prepared*: ``launch = kernel.prepare(a, b, out=c)``, then ``launch()``, at most 4 us;
- *driver*: one call of the driver that starts an empty kernel, which no launch is faster than.

``error`` is the worst error ratio of eager runs, ``replay_error`` that of replays of a CUDA graph
into which the call was captured, on new data each (``docs/measuring.md``: right where at most 1).
``holds``: both are right and the time is as allowed.  The command fails if a row does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.peers import FOLDER, ROW, tensors, write_results
from tinygpu.codegen.emit import PTX_VERSION
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import Kernel, device_arch, gpu, load
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.validation import Output, Trial, roundoff, trial
from tinygpu.codegen.runtime.driver import reason, starting
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.machines import ampere, hopper, simt
from tinygpu.machines.elementwise import Elementwise
from tinygpu.term.expression import value
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem, elementwise, matmul
from tinygpu.term.schedule import Schedule

__all__ = [
    "Case",
    "captured",
    "cases",
    "driver_row",
    "host_seconds",
    "main",
    "peer_of",
    "rows_of",
]

CALLS, BURST, SAMPLES, REPLAYS = 1000, 100, 15, 3
ALLOWED_SECONDS = {"call": 10e-6, "prepared": 4e-6}
FIELDS = ("library", "allowed_seconds", "replay_error", "holds")
LIBRARIES = ("CuPy", "PyTorch")
NOTHING = """.version {version}
.target {arch}
.address_size 64
.visible .entry nothing(.param .u32 n)
{{
    ret;
}}
"""

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel by its name in the results, and a problem for it."""

    name: str
    machine: Machine
    values: Mapping[str, Value]
    problem: Problem
    scalars: Mapping[str, float] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The kernel's schedule."""
        return Schedule.of(self.machine, self.values)


def cases() -> list[Case]:
    """Return a kernel of each kind: with tensor maps, with a clear before it, early, scalars."""
    fp32 = Problem.of(matmul(), m=128, n=128, k=128)
    bf16 = Problem.of(matmul("bf16", layout="nt"), m=128, n=128, k=128)
    streamed = elementwise(value("a") * value("x") + value("b"), inputs=("x",))
    vectorised = simt.LADDER["vectorised"]
    return [
        Case("simt", simt.Simt(), vectorised, fp32),
        Case("simt, split k", simt.Simt(), {**vectorised, "split_k": 4, "combine": "red"}, fp32),
        Case("ampere", ampere.Ampere(), ampere.STARTS["plain"], bf16),
        Case("hopper", hopper.Hopper(), hopper.STARTS["tma store"], bf16),
        Case("hopper, early", hopper.Hopper(), hopper.STARTS["early"], bf16),
        Case(
            "elementwise",
            Elementwise(),
            {"vector": 4, "unroll": 1, "threads": 256, "ctas": 0},
            Problem.of(streamed, i=2**14),
            {"a": 1.5, "b": 0.25},
        ),
    ]


def host_seconds(run: Run, drain: Run, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the host's seconds for a run: the least of samples of ``CALLS`` runs.

    What else a host does only adds to a sample, and does so for seconds on end.
    Source: Python's ``timeit``.
    """
    samples = []
    for _ in range(SAMPLES):
        spent = 0.0
        for _ in range(CALLS // BURST):
            drain()
            start = clock()
            for _ in range(BURST):
                run()
            spent += clock() - start
        samples.append(spent / CALLS)
    drain()
    return min(samples)


def rows_of(case: Case) -> Iterator[dict[str, Any]]:
    """Yield a case's rows.  Raises LaunchError where it does not run."""
    problem, scalars = case.problem, case.scalars
    kernel = Kernel(case.schedule.program(case.machine, problem.operation))
    data, output = trial(problem, 0, scalars=scalars), Output(problem)
    unit, drain = roundoff(kernel.program), gpu().cuda.Device().synchronize
    seeds, seconds = itertools.count(1), list[float]()

    def worst_of(run: Run) -> float:
        """Draw new data into the arrays, run, and return the worst error ratio."""
        fresh = trial(problem, next(seeds), scalars=scalars)
        for mine, theirs in zip(data.inputs, fresh.inputs, strict=True):
            mine[...] = theirs
        output.poison()
        drain()
        run()
        drain()
        return fresh.worst(output, unit)

    for library in LIBRARIES:
        arrays = (*data.inputs, output.array)
        if library == "PyTorch":
            arrays = tensors(problem, data.inputs, output.array)
        *inputs, out = arrays
        launch = kernel.prepare(*inputs, out=out, **scalars)

        def call(inputs: Sequence[Any] = inputs, out: Any = out) -> None:
            kernel(*inputs, out=out, **scalars)

        peer, other = peer_of(library, problem, data, output)
        peer_seconds = host_seconds(other, drain) if other else None
        for group, run in (("call", call), ("prepared", launch)):
            replay = captured(library, run)  # before its first eager run
            replay_error = max(worst_of(replay) for _ in range(REPLAYS))

            def timed(run: Run = run) -> None:
                seconds.append(host_seconds(run, drain))

            error, allowed = worst_of(timed), ALLOWED_SECONDS[group]
            yield {
                **_row(group, case.name, library),
                "m": problem.sizes.get("m", problem.sizes.get("i")),
                **{axis: problem.sizes.get(axis, 1) for axis in "nk"},
                "dtype": problem.operation.inputs[0].dtype,
                "schedule": dict(case.schedule.decisions),
                "seconds": seconds[-1],
                "peer": peer,
                "peer_seconds": peer_seconds,
                "error": error,
                "allowed_seconds": allowed,
                "replay_error": replay_error,
                "holds": seconds[-1] <= allowed and max(error, replay_error) <= 1,
            }


def driver_row() -> dict[str, Any]:
    """Return the row of an empty kernel, started by one call of the driver."""
    arch = device_arch()
    cubin = assemble(NOTHING.format(version=PTX_VERSION, arch=arch), arch)
    function = load(cubin.bytes, "nothing")
    start = starting(function.ptr, [bytes(4)], ctas=1, threads=32, smem_bytes=0, early=False)
    stream = gpu().cuda.Stream(non_blocking=True)
    if code := start(stream.ptr):
        raise LaunchError(f"an empty kernel: {reason(code)}; run nvidia-smi to see why")
    seconds = host_seconds(lambda: start(stream.ptr), stream.synchronize)
    return {**_row("driver", "an empty kernel", "the driver"), "seconds": seconds, "holds": True}


def captured(library: str, run: Run) -> Run:
    """Capture a run into a CUDA graph, with the library's own means; return its replay."""
    if library == "PyTorch":
        import torch

        theirs = torch.cuda.CUDAGraph()
        with torch.cuda.graph(theirs):
            run()
        replay: Run = theirs.replay
        return replay
    stream = gpu().cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        run()
        graph = stream.end_capture()
    return lambda: graph.launch(stream)


def peer_of(library: str, problem: Problem, data: Trial, output: Output) -> tuple[str, Run | None]:
    """Return what the library has for a problem, by its name."""
    given = (problem, data.inputs, output.array, data.scalars)
    if library == "PyTorch":
        if problem.operation.reductions:
            return "torch.mm", peers.torch_matmul(*given)
        return "torch.add", peers.torch_add(*given)
    if problem.operation.reductions and problem.operation.output.dtype == "f32":
        a, b = data.inputs
        return "cupy.matmul", lambda: gpu().matmul(a, b, out=output.array)
    return "", None


def _row(group: str, case: str, library: str) -> dict[str, Any]:
    told = {"group": group, "case": f"{case}, {library}", "library": library}
    empty = {"m": 1, "n": 1, "k": 1, "dtype": "", "schedule": {}, "peer": ""}
    return {**dict.fromkeys((*ROW, *FIELDS)), **empty, **told}


def _said(row: Mapping[str, Any]) -> str:
    line = f"{row['group']} {row['case']}: {row['seconds'] * 1e6:.2f} us"
    if row["peer_seconds"]:
        line += f", {row['peer']} {row['peer_seconds'] * 1e6:.2f} us"
    if not row["holds"]:
        line += (
            f"; DOES NOT HOLD: at most {row['allowed_seconds'] * 1e6:g} us, error "
            f"{row['error']:.2f}, replayed {row['replay_error']:.2f}"
        )
    return line


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case and write ``host_overhead.json``; fail if a row does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_overhead")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    try:
        rows = [driver_row(), *(row for case in cases() for row in rows_of(case))]
        record = provenance("python -m benchmarks.host_overhead")
        write_results("host_overhead", rows, record, given.out, fields=FIELDS)
    except TinyGpuError as error:
        sys.exit(str(error))
    sys.stdout.writelines(f"{_said(row)}\n" for row in rows)
    if broken := sum(not row["holds"] for row in rows):
        sys.exit(f"host_overhead: {broken} of {len(rows)} rows do not hold")


if __name__ == "__main__":
    main()
