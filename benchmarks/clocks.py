"""Cycles, clock and power of kernels under load: what of a time is work, and what is the clock.

    python -m benchmarks.clocks [--out DIR] [--shapes 8] [--seconds 0.35]

The kernels are the candidates of ``dispatch/llama.json`` and ``dispatch/4096.json`` (bf16, layout
nt).  Of each shape all run twice:

- *alone*: one kernel for ``--seconds`` without a pause, of which the second half counts, so that
  the clock is the one at which the power cap holds this kernel;
- *together*: slices of 12 ms, round robin, as candidates are timed elsewhere.

After each slice a kernel of one thread reads ``%clock64`` and ``%globaltimer`` twice, 100 us apart:
the clock does not move in that time, so seconds times this clock are the cycles that a launch
takes, whatever the power cap does.  NVML tells the power.  ``clocks.json``: a row a shape and
kernel.

Source: PTX ISA 9, "%clock64", "%globaltimer"; NVML API reference, "nvmlDeviceGetPowerUsage".
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.arguments import contract_of
from tinygpu.codegen.assemble import assemble
from tinygpu.codegen.emit import emit
from tinygpu.codegen.launch import device_arch, gpu
from tinygpu.codegen.provenance import power, provenance
from tinygpu.codegen.runtime.function import Function
from tinygpu.codegen.validation import Output, trial
from tinygpu.errors import TinyGpuError
from tinygpu.machine import Chosen
from tinygpu.machines.hopper import Hopper
from tinygpu.operation import Problem, matmul

__all__ = ["SHAPES", "decisions", "main"]

SHAPES = (
    (4096, 4096, 4096), (8192, 28672, 4096), (6400, 6144, 4096), (4419, 4096, 14336),
    (1024, 28672, 4096), (2107, 6144, 4096), (512, 4096, 14336), (1024, 4096, 4096),
    (3001, 28672, 4096), (256, 28672, 4096), (8192, 8192, 8192), (128, 28672, 4096),
)  # fmt: skip
SLICE_SECONDS, ROUNDS = 0.012, 4
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


def _code(chosen: dict[str, Any], arch: str) -> tuple[Any, bytes, int]:
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(chosen))
    cubin = assemble(emit(program, arch), arch)
    return contract_of(program), cubin.bytes, cubin.registers


class _Bench:
    """Slices of kernels, each with its seconds a launch and the clock after it."""

    def __init__(self) -> None:
        cupy = gpu()
        self.cupy = cupy
        self.probe = cupy.RawKernel(_PROBE, "probe")
        self.out = cupy.zeros(2, np.uint64)
        self.start, self.stop = cupy.cuda.Event(), cupy.cuda.Event()

    def slice(self, launch: Callable[[], Any], count: int) -> tuple[float, float]:
        """Run a kernel ``count`` times; return seconds a launch and the clock in Hz."""
        self.start.record()
        for _ in range(count):
            launch()
        self.stop.record()
        self.probe((1,), (1,), (self.out,))
        cycles, nanoseconds = self.out.get().tolist()
        elapsed = self.cupy.cuda.get_elapsed_time(self.start, self.stop) * 1e-3
        return elapsed / count, cycles / nanoseconds * 1e9


def _row(bench: _Bench, launch: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Run a kernel alone until its clock is its own."""
    once, _ = bench.slice(launch, 3)
    count = max(2, int(SLICE_SECONDS / once))
    begun, found, watts = time.monotonic(), [], []
    while time.monotonic() < begun + seconds:
        found.append(bench.slice(launch, count))
        watts.append(power())
    late = found[len(found) // 2 :]
    each, clocks = (float(np.median([f[i] for f in late])) for i in (0, 1))
    return {
        "alone_seconds": each, "alone_hz": clocks,
        "alone_watts": float(np.median(watts[len(watts) // 2 :])), "launches": count,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write after each shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clocks")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    parser.add_argument("--seconds", type=float, default=0.35, help="of a kernel alone")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    record = provenance(f"python -m benchmarks.clocks --seconds {given.seconds:g}")
    every, arch = decisions(), device_arch()
    with ProcessPoolExecutor() as pool:
        built = list(pool.map(_code, every, [arch] * len(every)))
    kernels = [Function(contract, code) for contract, code, _ in built]
    bench, rows = _Bench(), []
    for shape in SHAPES[: given.shapes]:
        sizes = dict(zip("mnk", shape, strict=True))
        problem = Problem.of(matmul("bf16", layout="nt"), **sizes)
        data, output = trial(problem, 1), Output(problem)
        mine: list[tuple[int, Callable[[], Any]]] = []
        for number, kernel in enumerate(kernels):
            try:
                mine.append((number, kernel.prepare(*data.inputs, out=output.array)))
            except TinyGpuError:
                continue  # it does not take this shape
        found = {number: _row(bench, launch, given.seconds) for number, launch in mine}
        together: dict[int, list[tuple[float, float]]] = {number: [] for number, _ in mine}
        for _ in range(ROUNDS):
            for number, launch in mine:
                together[number].append(bench.slice(launch, found[number]["launches"]))
        for number, row in found.items():
            late = together[number][1:]
            row["together_seconds"], row["together_hz"] = (
                float(np.median([f[i] for f in late])) for i in (0, 1)
            )
            rows.append({"shape": shape, "kernel": number, **row})
        tree = {"provenance": record, "kernels": every, "rows": rows}
        write_tree(given.out / "clocks.json", tree)
        sys.stdout.write(f"{shape}: {len(mine)} kernels\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
