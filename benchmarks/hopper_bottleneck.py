"""Whether ``explain`` names the true bottleneck: ``python -m benchmarks.hopper_bottleneck``.

The winners of ``hopper_matmul.json`` at 8192 cubed and at 16 x 4096 x 4096 run as they are, and
with the bottleneck relieved that ``explain`` names; what that gains stands beside what the model
says of it (the cause's "saves").

    power   inputs of ones: the same instructions at the same addresses, but no bit of an operand
            changes from product to product, so that the chip needs less power and its clock stays
            up.  Also a cold burst of few launches, before the power's controller acts.
    dram    one set of arrays, launch after launch: the weights (33.5 MB) come from L2.

Rows of the group "reads" are what the chip reads from DRAM at best, into registers, of random
bits: 2 GiB at once, and as many bytes as weights have, from a cold L2.  With ``ncu`` on PATH and
allowed, its counters are rows, too; else a row says why not.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, load_rows, write_results
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.machines.hopper import Hopper
from tinygpu.search.explain.explain import explain
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule

__all__ = ["COUNTERS", "FIELDS", "SHAPES", "main", "winner"]

SHAPES = ((8192, 8192, 8192), (16, 4096, 4096))
SETS = 16
READS = (1 << 31, 117_440_512, 33_554_432)  # B: much, the weights of 14336 x 4096, of 4096 x 4096
COUNTERS = (
    "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.avg.pct_of_peak_sustained_elapsed",
    "sm__cycles_elapsed.avg.per_second",
)
FIELDS = ("clock_mhz", "capped", "bottleneck", "bytes_per_second", "reason")
LIMIT_SECONDS = 60.0


def winner(shape: tuple[int, int, int]) -> tuple[Schedule, Problem]:
    """Return the fastest schedule of a shape, as recorded.  Raises TinyGpuError without one."""
    m, n, k = shape
    for row in load_rows("hopper_matmul", FOLDER):
        if row["group"] == "main" and (row["m"], row["n"], row["k"]) == shape:
            problem = Problem.of(matmul("bf16", layout="nt"), m=m, n=n, k=k)
            return Schedule.of(Hopper(), row["schedule"]), problem
    raise TinyGpuError(f"hopper_matmul.json: no row of {m} x {n} x {k}; measure it first")


def _row(
    schedule: Schedule | None, problem: Problem | None, variant: str, **told: Any
) -> dict[str, Any]:
    return {
        "group": "main" if problem else "reads", "case": variant,
        **(dict(problem.sizes) if problem else {"m": 0, "n": 0, "k": 0}), "dtype": "bf16",
        "schedule": dict(schedule.decisions) if schedule else {}, "predicted_seconds": None,
        "seconds": None, "peer": "", "peer_seconds": None, "error": None,
        "clock_mhz": 0, "capped": False, "bottleneck": "", "bytes_per_second": None, "reason": "",
        **told,
    }  # fmt: skip


def _variants(schedule: Schedule, problem: Problem) -> Iterator[dict[str, Any]]:
    """Yield a row for the winner as it is, and for each way of relieving it."""
    from tinygpu.codegen.run.launch import Kernel, gpu
    from tinygpu.codegen.run.timing import time_interleaved
    from tinygpu.codegen.run.validation import Output, roundoff, trial

    cupy = gpu()
    said = explain(schedule, Hopper(), problem, load_device("h200"))
    saves = {cause.resource: cause.saves_seconds for cause in said.causes}
    kernel = Kernel(schedule.program(Hopper(), problem.operation))
    few = 3 if problem.sizes["m"] > 1024 else SETS  # sets exceed twice the L2 together
    sets = [trial(problem, seed) for seed in range(few)]
    outs = [Output(problem) for _ in sets]
    runs = [kernel.prepare(*t.inputs, out=o.array) for t, o in zip(sets, outs, strict=True)]
    runs[0]()
    cupy.cuda.Device().synchronize()
    error = sets[0].worst(outs[0], roundoff(kernel.program))

    def timed(
        variant: str, runs: Sequence[Any], how: Mapping[str, Any], relieved: str = ""
    ) -> dict[str, Any]:
        def go(i: int) -> None:
            runs[i % len(runs)]()

        time.sleep(1.0)  # the chip cools down, and its clock rises
        t = time_interleaved({"it": go}, **how)["it"]
        return _row(
            schedule, problem, variant, seconds=t.seconds, clock_mhz=t.clock_mhz, capped=t.capped,
            predicted_seconds=said.seconds - saves.get(relieved, 0.0), error=error,
            bottleneck=said.bottleneck,
        )  # fmt: skip

    steady = {"rounds": 15, "warm_seconds": 0.8}
    yield timed("as it is", runs, steady)
    if "power" in said.bottleneck:
        yield timed("a burst of 4 ms", runs, {"rounds": 3, "burst_seconds": 0.004}, "power")
        ones = [x.copy() for x in sets[0].inputs]
        for x in ones:
            x.view(np.uint16)[...] = 0x3F80  # 1.0 in bf16
        hot = [kernel.prepare(*ones, out=outs[0].array)]
        yield timed("inputs of ones", hot, steady, "power")
    else:
        yield timed("weights in L2", runs[:1], steady, "dram")
    yield timed("as it is, again", runs, steady)


def _reads() -> Iterator[dict[str, Any]]:
    """Yield what the chip reads from DRAM, by size."""
    from tinygpu.codegen.run.calibrate import CupyGpu, work_per_second
    from tinygpu.codegen.run.microkernel import stream_kernel

    chip = CupyGpu()
    sms = chip.attributes["MultiProcessorCount"]
    flush = stream_kernel("flush", "read", ctas=sms, total_bytes=READS[0])
    for size in READS:
        for wide in (1, 2, 4, 8):
            one = stream_kernel("read", "read", ctas=sms, total_bytes=size, wide=wide)
            best = 0.0
            for _ in range(5):
                chip.run(flush, ctas=sms)
                best = max(best, work_per_second(chip.run(one, ctas=sms), work=one.work))
            moved = one.work * sms
            yield _row(
                None, None, f"{moved} B, {wide} x 16 B a thread", bytes_per_second=best,
                seconds=moved / best,
            )  # fmt: skip


def _counted(shape: tuple[int, int, int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each counter of ``ncu``, or one that says why there is none."""
    schedule, problem = winner(shape)
    command = (
        *("ncu", "--csv", "--clock-control", "none", "--metrics", ",".join(_there())),
        *("--launch-skip", "2", "--launch-count", "1", "--kernel-name", "regex:matmul"),
        *(sys.executable, "-m", "benchmarks.hopper_bottleneck", "--one", *map(str, shape)),
    )
    if shutil.which("ncu") is None:
        yield _row(schedule, problem, "ncu", reason="ncu is not on PATH")
        return
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        yield _row(schedule, problem, "ncu", reason=f"ncu: no answer in {LIMIT_SECONDS:g} s")
        return
    table = done.stdout[done.stdout.find('"ID"') :] if '"ID"' in done.stdout else ""
    found = list(csv.DictReader(io.StringIO(table)))
    for line in found:
        told = f"{line['Metric Value']} {line['Metric Unit']}"
        yield _row(schedule, problem, f"ncu {line['Metric Name']}", reason=told)
    if not found:
        last = [x for x in (done.stdout + done.stderr).splitlines() if "==" in x]
        yield _row(schedule, problem, "ncu", reason=(last or ["ncu said nothing"])[-1][:200])


def _there() -> list[str]:
    """Return the counters that this chip has."""
    command = ("ncu", "--query-metrics")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return list(COUNTERS)
    known = set(done.stdout.split())
    return [name for name in COUNTERS if name.partition(".")[0] in known] or list(COUNTERS)


def _one(shape: tuple[int, int, int]) -> None:
    """Launch a winner four times, for a profiler."""
    from tinygpu.codegen.run.launch import Kernel, gpu
    from tinygpu.codegen.run.validation import Output, trial

    schedule, problem = winner(shape)
    kernel, data = Kernel(schedule.program(Hopper(), problem.operation)), trial(problem, 0)
    target = Output(problem)
    for _ in range(4):
        kernel(*data.inputs, out=target.array)
    gpu().cuda.Device().synchronize()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything; write ``hopper_bottleneck.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_bottleneck")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        record = provenance(" ".join(("python -m benchmarks.hopper_bottleneck", *words)))
        rows = list(_reads())
        for shape in SHAPES:
            rows += [*_variants(*winner(shape)), *_counted(shape)]
        write_results("hopper_bottleneck", rows, record, given.out, fields=FIELDS)
        for row in rows:
            what = row["seconds"] or row["reason"]
            sys.stdout.write(
                f"{row['m']} {row['case']}: {what} (model {row['predicted_seconds']}), "
                f"{row['clock_mhz']} MHz, {row['bytes_per_second'] or ''} {row['bottleneck']}\n"
            )
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        m, n, k = map(int, sys.argv[2:])
        _one((m, n, k))
    else:
        main()
