"""Cycles, clock and power of kernels under load: what of a time is work, and what is the clock.

    python -m benchmarks.clocks [--out DIR] [--seconds 0.3]

The kernels are the candidates of ``dispatch/llama.json`` and ``dispatch/4096.json`` (bf16, layout
nt) at twelve shapes.  Of each shape all run twice:

- *alone*: one kernel for ``--seconds`` without a pause, of which the second half counts, so that
  the clock is the one at which the power cap holds this kernel;
- *together*: slices of 12 ms, round robin, as candidates are timed elsewhere.

After each slice a kernel of one thread reads ``%clock64`` and ``%globaltimer`` twice, 100 us apart:
the clock does not move in that time, so seconds times this clock are the cycles that a launch
takes, whatever the power cap does.  NVML tells the power.  ``clocks.json``: a row a shape and
kernel.  A run that was stopped goes on with the next shape.

Source: PTX ISA 9, "%clock64", "%globaltimer"; NVML API reference, "nvmlDeviceGetPowerUsage".
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import device_arch, gpu
from tinygpu.codegen.run.provenance import power, provenance
from tinygpu.codegen.run.timing import captured, current_stream
from tinygpu.codegen.run.validation import Output, Trial, trial
from tinygpu.codegen.runtime.contract import Contract
from tinygpu.codegen.runtime.function import Function
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.hopper import Hopper
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul

__all__ = ["SHAPES", "Bench", "argument_sets", "decisions", "main"]

SHAPES = (
    (4096, 4096, 4096), (8192, 28672, 4096), (6400, 6144, 4096), (4419, 4096, 14336),
    (1024, 28672, 4096), (2107, 6144, 4096), (512, 4096, 14336), (1024, 4096, 4096),
    (3001, 28672, 4096), (256, 28672, 4096), (8192, 8192, 8192), (128, 28672, 4096),
)  # fmt: skip
_Replay = tuple[Any, int, int]
SLICE_SECONDS, ROUNDS = 0.012, 3
_PROBE = r"""
extern "C" __global__ void probe(unsigned long long *out) {
  unsigned long long c0, c1, t0, t1;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t1)); } while (t1 == t0);
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(c0));
  t0 = t1;
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t1)); } while (t1 < t0 + 100000);
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(c1));
  out[0] = c1 - c0; out[1] = t1 - t0;
}"""


def decisions(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the candidates' decisions, each once."""
    found: dict[str, None] = {}
    for part in ("llama", "4096"):
        tree = json.loads((folder / "dispatch" / f"{part}.json").read_text(encoding="utf-8"))
        found.update(dict.fromkeys(tree["kernels"]))
    return [json.loads(text) for text in found]


def _code(chosen: dict[str, Any], arch: str) -> tuple[Contract, bytes]:
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(chosen))
    cubin = assemble(emit(program, arch), arch)
    return contract_of(program), cubin.bytes


class Bench:
    """Slices of kernels on a stream, each with its seconds a launch and the clock after it."""

    def __init__(self, stream: Any) -> None:
        cupy = gpu()
        self.cupy, self.stream = cupy, stream
        self.probe = cupy.RawKernel(_PROBE, "probe")
        self.out = cupy.zeros(2, np.uint64)
        self.start, self.stop = cupy.cuda.Event(), cupy.cuda.Event()

    def replays(
        self, problem: Problem, kernels: Mapping[int, Function], seconds: float
    ) -> dict[int, _Replay]:
        """Capture slices of kernels, if they take this problem; kernels must stay loaded."""
        sets, found = argument_sets(problem), {}
        for number, kernel in kernels.items():
            with suppress(TinyGpuError):  # it does not take this shape
                each = [kernel.prepare(*data.inputs, out=output.array) for data, output in sets]
                found[number] = captured(partial(_turn, each), self.stream, seconds, len(sets))
        return found

    def slice(self, graph: Any, launches: int, times: int) -> tuple[float, float]:
        """Replay a graph of launches; return seconds a launch and the clock in Hz."""
        self.start.record(self.stream)
        for _ in range(times):
            graph.launch(self.stream)
        self.stop.record(self.stream)
        self.probe((1,), (1,), (self.out,), stream=self.stream)
        self.stream.synchronize()
        cycles, nanoseconds = self.out.get().tolist()
        elapsed = self.cupy.cuda.get_elapsed_time(self.start, self.stop) * 1e-3
        return elapsed / (launches * times), cycles / nanoseconds * 1e9

    def alone(self, replay: _Replay, seconds: float) -> dict[str, Any]:
        """Run a kernel alone until its clock is its own."""
        begun, found, watts = time.monotonic(), [], []
        while time.monotonic() < begun + seconds:
            found.append(self.slice(*replay))
            watts.append(power())
        late = found[len(found) // 2 :]
        each, clocks = (float(np.median([f[i] for f in late])) for i in (0, 1))
        drawn = float(np.median(watts[len(watts) // 2 :]))
        return {"alone_seconds": each, "alone_hz": clocks, "alone_watts": drawn}


def measured(
    bench: Bench, shape: Sequence[int], kernels: Mapping[int, Function], seconds: float
) -> list[dict[str, Any]]:
    """Return a row of each kernel that takes this shape."""
    problem = Problem.of(matmul("bf16", layout="nt"), **dict(zip("mnk", shape, strict=True)))
    replays = bench.replays(problem, kernels, SLICE_SECONDS)
    found = {number: bench.alone(replay, seconds) for number, replay in replays.items()}
    together: dict[int, list[tuple[float, float]]] = {number: [] for number in found}
    order = np.random.default_rng(0)
    for _ in range(ROUNDS):
        for number in order.permutation(list(found)).tolist():
            together[number].append(bench.slice(*replays[number]))
    for number, row in found.items():
        row["together_seconds"], row["together_hz"] = (
            float(np.median([f[i] for f in together[number]])) for i in (0, 1)
        )
    return [{"shape": list(shape), "kernel": number, **row} for number, row in found.items()]


def argument_sets(problem: Problem) -> list[tuple[Trial, Output]]:
    """Return sets of arrays that together exceed twice the L2."""
    shapes = problem.operation.shapes(problem.sizes)
    each = sum(math.prod(shapes[o.name]) * DTYPES[o.dtype].bytes for o in problem.operation.inputs)
    count = max(1, math.ceil(2 * load_device("h200").l2_bytes / each))
    return [(trial(problem, seed), Output(problem)) for seed in range(count)]


def _turn(each: Sequence[Callable[[], Any]], number: int) -> None:
    """Do the next of several launches, so that no array is in L2 from the time before."""
    each[number % len(each)]()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write after each shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clocks")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a kernel alone")
    given = parser.parse_args(arguments)
    every = decisions()
    cases = [(list(shape), list(range(len(every)))) for shape in SHAPES]
    path = given.out / "clocks.json"
    given.out.mkdir(parents=True, exist_ok=True)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    known = [row["shape"] for row in rows]
    record = provenance(f"python -m benchmarks.clocks --seconds {given.seconds:g}")
    arch = device_arch()
    with ProcessPoolExecutor() as pool:
        built = list(pool.map(_code, every, [arch] * len(every), chunksize=4))
    kernels = [Function(contract, code) for contract, code in built]
    stream = gpu().cuda.Stream(non_blocking=True)
    with current_stream(stream):
        bench = Bench(stream)
        for shape, numbers in cases:
            if shape in known:
                continue
            mine = {number: kernels[number] for number in numbers}
            rows += measured(bench, shape, mine, given.seconds)
            write_tree(path, {"provenance": record, "kernels": every, "rows": rows})
            sys.stdout.write(f"{shape}: {len(mine)} kernels\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
