"""Random schedules under NVIDIA's sanitizer: ``python -m benchmarks.hopper_sanitizer [--out DIR]``.

One schedule of each of the first ``COUNT`` problems of ``benchmarks.fuzz`` (``--cases FILE``, else
drawn) is validated on the GPU under each of ``TOOLS``, in a process of its own with a time limit.
A row says what the tool said: "clean"; "faults", with its first line; or "refused", where the tool
does not work on this machine.

A control shows that a tool is not blind: the same with one fault made in the term (``CONTROLS``).
"""

from __future__ import annotations

import argparse
import base64
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.fuzz import SEED, asked_of, drawn, layout_of
from benchmarks.peers import FOLDER, write_results
from tests.async_mutants import mutants
from tinygpu.codegen.run.provenance import provenance
from tinygpu.errors import TinyGpuError
from tinygpu.machines.hopper import STARTS as HOPPER
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = ["CONTROLS", "FIELDS", "TOOLS", "controls", "main", "said"]

COUNT = 20
TOOLS = ("memcheck", "racecheck", "synccheck")
CONTROLS: tuple[tuple[str, Machine, str, str], ...] = (
    # tool, machine, named point, how the mutant's name begins
    ("racecheck", Hopper(), "tma store", "drop bar.sync 1 of the role"),
    ("racecheck", Hopper(), "tma store", "drop fence.proxy.async"),
    ("racecheck", Simt(), "vectorised", "drop bar.sync 0"),
)
_POINTS = {"hopper": HOPPER, "simt": LADDER}
FIELDS = ("layout", "tool", "outcome", "reason")
JOBS = 4
LIMIT_SECONDS = 90.0

_Job = tuple[str, str, Program, Problem, dict[str, Any]]


def controls() -> Iterator[_Job]:
    """Yield (tool, case, faulty program, problem, schedule).  Raises TinyGpuError if one is not."""
    problem = Problem.of(matmul("bf16"), m=256, n=512, k=512)
    for tool, machine, point, start in CONTROLS:
        values = _POINTS[machine.name][point]
        program = Schedule.of(machine, values).program(machine, problem.operation)
        found = next(((n, p) for n, p in mutants(program) if n.startswith(start)), None)
        if found is None:
            raise TinyGpuError(f"mutant {start!r}: {point} has none")
        yield tool, f"control: {machine.name}, {found[0]}", found[1], problem, dict(values)


def said(code: int, text: str) -> tuple[str, str]:
    """Return what a tool found, from its exit status and its output.

    >>> said(0, "========= ERROR SUMMARY: 0 errors")
    ('clean', '')
    """
    lines = [line.removeprefix("=========").strip() for line in text.splitlines()]
    summary = next((x for x in reversed(lines) if "SUMMARY:" in x), "")
    if code == 0 and (": 0 errors" in summary or ": 0 hazards" in summary):
        return "clean", ""
    first = [x for x in lines if x.startswith(("Error", "Warning", "Invalid", "Barrier", "Race"))]
    if summary and ": 0 " not in summary:
        return "faults", f"{(first or ['?'])[0]}; {summary}"
    return "refused", (lines or ["it said nothing"])[-1]


def _run(job: _Job) -> tuple[str, str]:
    tool, _, program, problem, _ = job
    packed = base64.b64encode(pickle.dumps((program, problem)))
    command = (
        *("compute-sanitizer", "--tool", tool, "--print-limit", "3", "--error-exitcode", "9"),
        *(sys.executable, "-m", "benchmarks.hopper_sanitizer", "--one"),
    )
    try:
        done = subprocess.run(command, input=packed, capture_output=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "refused", f"no answer in {LIMIT_SECONDS:g} s"
    return said(done.returncode, (done.stdout + done.stderr).decode(errors="replace"))


def _one() -> None:
    """Validate what standard input holds, as a child of this script."""
    from tinygpu.codegen.run.launch import Kernel
    from tinygpu.codegen.run.validation import validate

    program, problem = pickle.loads(base64.b64decode(sys.stdin.buffer.read()))
    kernel = Kernel(program, unchecked=True)  # the controls are known to be illegal
    sys.stdout.write(f"error {validate(kernel, problem, 0)}\n")


def _jobs(path: Path | None) -> Iterator[_Job]:
    if path is None:
        cases = [drawn("hopper", number, 1, SEED) for number in range(COUNT)]
    else:
        every = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        cases = [case for case in every if case["machine"] == "hopper"][:COUNT]
    for number, case in enumerate(cases):
        problem, programs = asked_of(case)
        schedule, program = next(iter(programs.items()))
        for tool in TOOLS:
            yield tool, f"shape {number}", program, problem, dict(schedule.decisions)
    yield from controls()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every schedule under every tool; write ``hopper_sanitizer.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hopper_sanitizer")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="what benchmarks.fuzz drew")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    if shutil.which("compute-sanitizer") is None:
        sys.exit("compute-sanitizer: not on PATH; it comes with the CUDA toolkit")
    record = provenance(" ".join(("python -m benchmarks.hopper_sanitizer", *words)))
    try:
        jobs, rows = list(_jobs(given.cases)), []
        with ThreadPoolExecutor(JOBS) as pool:
            for job, (outcome, reason) in zip(jobs, pool.map(_run, jobs), strict=True):
                tool, case, _, problem, schedule = job
                rows.append({
                    "group": "control" if case.startswith("control") else "main",
                    "case": f"{tool}, {case}",
                    **{axis: problem.sizes[axis] for axis in "mnk"},
                    "dtype": problem.operation.output.dtype, "schedule": schedule,
                    "predicted_seconds": None, "seconds": None, "peer": "", "peer_seconds": None,
                    "error": None, "layout": layout_of(problem.operation), "tool": tool,
                    "outcome": outcome, "reason": reason,
                })  # fmt: skip
                sys.stdout.write(f"{case[:60]} {problem.sizes} {tool}: {outcome} {reason}\n")
                sys.stdout.flush()
        write_results("hopper_sanitizer", rows, record, given.out, fields=FIELDS)
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    if sys.argv[1:] == ["--one"]:
        _one()
    else:
        main()
