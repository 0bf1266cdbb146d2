"""One PTX, run by the PTX interpreter and by a GPU: whether they agree.

    python -m benchmarks.interpreter_agreement [--out DIR] [--cases FILE] [--limit N]
    python -m benchmarks.interpreter_agreement --draw FILE

``agreement_cases.py`` draws the cases, which ``agreement_cases.json`` keeps: a draw needs z3 and no
GPU, a run a GPU and no z3.

A case's kernel is emitted, assembled and interpreted in one of as many processes as there are
cores, with its asynchronous operations completing late, early or at random, and with few CTAs where
CTAs stay.  Then a watched worker runs it on the GPU, on the same inputs, into an output of NaNs
between margins.  A row has both errors against the float64 reference and the largest difference of
the two outputs, all over what rounding allows (``tinygpu/meaning/tolerance.py``).  They agree if
all three are at most 1, the text was the same, and the interpreter found no fault.

A run that was stopped goes on: rows of this emitter are left out.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.agreement_cases import CASES, MACHINES, Case, draw, load_cases
from benchmarks.fuzz import layout_of
from benchmarks.peers import FOLDER, load_rows, write_results
from benchmarks.simt_fuzz import save_cases
from tinygpu.codegen.emit import EMITTER_VERSION, emit
from tinygpu.codegen.emulator import Module, Report
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import execute
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.run.worker import Worker, serve
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines import MACHINES as ALL
from tinygpu.meaning.tolerance import error_ratio, roundoff
from tinygpu.term.program import Program
from tinygpu.term.schedule import from_json, to_json

__all__ = [
    *("FIELDS", "Ask", "Data", "Outcome", "answer_on_gpu", "interpret", "launched", "main", "row"),
    *("run", "summary", "waiting"),
]

FIELDS = (
    *("reason", "layout", "emitter", "completion", "interpreter_error", "difference", "agree"),
    "interpreter_seconds",
)
"""The fields of a row beside the usual ones; the machine is the first word of its case."""
ARCH = "sm_90a"
COMPLETIONS = ("late", "early", "random")
COMMAND = (sys.executable, "-m", "benchmarks.interpreter_agreement", "--serve")
LIMIT_SECONDS = 30.0
CLUSTERS = 3
"""How many clusters the interpreter starts of a kernel whose CTAs take tile after tile."""

Array = NDArray[Any]
Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case came to in one of the two places: its output's bytes, and the text's digest."""

    output: bytes
    digest: str
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """A case's inputs, drawn from the normal distribution and rounded, and the reference."""

    program: Program
    inputs: tuple[Array, ...]
    wanted: Array
    scale: Array

    @staticmethod
    def of(case: Case, number: int) -> Data:
        """Draw them; the same for the same number everywhere."""
        problem, schedule = case
        operation, rng = problem.operation, np.random.default_rng(number)
        shapes = operation.shapes(problem.sizes)
        inputs = tuple(
            DTYPES[o.dtype].round(rng.standard_normal(shapes[o.name])) for o in operation.inputs
        )
        exact = {
            o.name: x.astype(np.float64) for o, x in zip(operation.inputs, inputs, strict=True)
        }
        with np.errstate(over="ignore"):  # an activation's exponential, far out
            found = operation.reference(exact, {})
        program = schedule.program(ALL[schedule.machine], operation)
        name = operation.output.name
        return Data(program, inputs, found[name], found[f"scale of {name}"])

    def over(self, output: Array, wanted: Array, depth: int) -> float:
        """Return the largest difference of an output and another over what rounding allows."""
        dtype = self.program.operation.output.dtype
        unit = roundoff(self.program)
        ratio = error_ratio(output, wanted, self.scale, depth=depth, roundoff=unit, dtype=dtype)
        return float(ratio.max())

    def read(self, output: bytes) -> Array:
        """Return an output's bytes as an array."""
        kind = DTYPES[self.program.operation.output.dtype].numpy
        return np.frombuffer(output, kind).reshape(self.wanted.shape)


def run(
    text: str, program: Program, inputs: Sequence[Array], sizes: Mapping[str, int], **how: Any
) -> tuple[Array, Report]:
    """Interpret a kernel's text; return its output and the report."""
    output = program.operation.output
    held = np.empty([sizes[axis] for axis in output.axes], DTYPES[output.dtype].numpy)
    held.reshape(-1).view(np.uint8)[:] = 0 if program.zeroed else 0xFF
    given = zip(program.operation.inputs, inputs, strict=True)
    arrays = {o.name: x.copy() for o, x in given} | {output.name: held}
    report = execute(program, sizes, arrays, Module.parse(text), clusters=CLUSTERS, **how)
    return held, report


def interpret(case: Case, number: int, *, assembled: bool = True) -> Outcome:
    """Interpret a case; first assemble it, so that the GPU's worker finds its cubin in the cache.

    What is wrong is the outcome's reason.
    """
    problem, start = case[0], time.monotonic()
    data = Data.of(case, number)
    text = emit(data.program, ARCH, problem.sizes)
    try:
        if assembled:
            assemble(text, ARCH)
        start = time.monotonic()
        how = {"completion": COMPLETIONS[number % 3], "seed": number}
        output, report = run(text, data.program, data.inputs, problem.sizes, **how)
        reason = str(report.findings[0].message) if report.findings else ""
        found = output.tobytes()
    except TinyGpuError as error:
        reason, found = str(error), b""
    return Outcome(found, _digest(text), time.monotonic() - start, reason)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def answer_on_gpu(request: dict[str, Any]) -> dict[str, Any]:
    """Run a case in a worker, on a GPU."""
    from tinygpu.codegen.run.launch import Kernel, gpu
    from tinygpu.codegen.run.validation import Output

    cupy = gpu()
    if request["do"] == "hello":
        cupy.zeros(1)
        return {}
    _, problem, schedule = from_json(request["case"], ALL)
    data = Data.of((problem, schedule), request["number"])
    kernel = Kernel(data.program, arch=ARCH, sizes=problem.sizes)
    output = Output(problem)
    inputs = [cupy.asarray(_bits(x)) for x in data.inputs]
    kernel(*inputs, out=output.array)
    found = cupy.asnumpy(output.array).tobytes()
    if not output.untouched():
        return {"failed": "it wrote outside of its output"}
    return {"output": base64.b64encode(found).decode(), "digest": _digest(kernel.ptx)}


def _bits(array: Array) -> Array:
    """Return bf16 as its bits, which any CuPy can hold."""
    return array.view(np.uint16) if array.dtype == DTYPES["bf16"].numpy else array


def launched(case: Case, number: int, ask: Ask) -> Outcome:
    """Run a case on the GPU of the worker that is asked."""
    problem, schedule = case
    request = {"do": "run", "case": to_json(schedule, problem), "number": number}
    answer = ask(request, LIMIT_SECONDS)
    if "failed" in answer:
        return Outcome(b"", "", reason=f"GPU: {answer['failed']}")
    return Outcome(base64.b64decode(answer["output"]), answer["digest"])


def row(case: Case, number: int, interpreted: Outcome, on_gpu: Outcome) -> dict[str, Any]:
    """Hold the two outcomes of a case against the reference and each other."""
    problem, schedule = case
    first = problem.operation.inputs[0]
    data, depth = Data.of(case, number), problem.sizes["k"]
    errors: dict[str, float | None] = {"gpu": None, "interpreter": None, "both": None}
    if on_gpu.output:
        errors["gpu"] = data.over(data.read(on_gpu.output), data.wanted, depth)
    if interpreted.output:
        mine = data.read(interpreted.output).astype(np.float64)
        errors["interpreter"] = data.over(mine, data.wanted, depth)
        if on_gpu.output:
            errors["both"] = data.over(data.read(on_gpu.output), mine, depth)
    reason = interpreted.reason or on_gpu.reason
    if not reason and interpreted.digest != on_gpu.digest:
        reason = "the two ran different texts"
    right = all(error is not None and error <= 1 for error in errors.values())
    return {
        "group": "main",
        "case": f"{schedule.machine} {number}",
        **problem.sizes,
        "dtype": "->".join(dict.fromkeys([first.dtype, problem.operation.output.dtype])),
        "schedule": dict(schedule.decisions),
        "predicted_seconds": None,
        "seconds": None,
        "peer": "",
        "peer_seconds": None,
        "error": _finite(errors["gpu"]),
        "reason": reason,
        "layout": layout_of(problem.operation),
        "emitter": EMITTER_VERSION,
        "completion": COMPLETIONS[number % 3],
        "interpreter_error": _finite(errors["interpreter"]),
        "difference": _finite(errors["both"]),
        "agree": right and not reason,
        "interpreter_seconds": round(interpreted.seconds, 3),
    }


def _finite(number: float | None) -> float | str | None:
    return number if number is None or math.isfinite(number) else str(number)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count cases and those that do not agree; give the worst numbers, machine by machine."""
    found: dict[str, Any] = {}
    for name in MACHINES:
        mine = [r for r in rows if r["case"].split()[0] == name]
        worst = {
            field: max((float(r[field]) for r in mine if r[field] is not None), default=0.0)
            for field in ("error", "interpreter_error", "difference")
        }
        found[name] = {
            "cases": len(mine),
            "disagree": sum(not r["agree"] for r in mine),
            "equal": sum(r["difference"] == 0 for r in mine),
            "reasons": sorted({r["reason"] for r in mine} - {""}),
            **{f"worst {field}": number for field, number in worst.items()},
        }
    return found


def waiting(cases: Sequence[Case], known: Sequence[Mapping[str, Any]]) -> dict[int, Case]:
    """Return the cases that no row of this emitter says agree, by their numbers."""
    there = {
        json.dumps([r["case"], r["schedule"], *(r[axis] for axis in "mnk")])
        for r in known
        if r["emitter"] == EMITTER_VERSION and r["agree"]
    }
    return {
        number: (problem, schedule)
        for number, (problem, schedule) in enumerate(cases)
        if json.dumps(
            [f"{schedule.machine} {number}", dict(schedule.decisions), *problem.sizes.values()]
        )
        not in there
    }


def _run_all(given: argparse.Namespace, record: Mapping[str, Any]) -> None:
    """Interpret in as many processes as there are cores; launch each case as it comes back.

    Raises LaunchError if the worker cannot use a GPU.
    """
    name = "interpreter_agreement"
    left = waiting(load_cases(given.cases), load_rows(name, given.out))
    left = {n: left[n] for n in list(left)[: given.limit]}
    spawn = multiprocessing.get_context("spawn")
    agreed = 0
    with Worker(COMMAND) as worker:
        hello = worker.ask({"do": "hello"}, LIMIT_SECONDS)
        if "failed" in hello:
            raise LaunchError(f"worker: {hello['failed']}")
        pool = ProcessPoolExecutor(mp_context=spawn)
        try:
            jobs = {pool.submit(interpret, case, n): n for n, case in left.items()}
            for done, job in enumerate(as_completed(jobs), 1):
                number = jobs[job]
                case = left[number]
                found = row(case, number, job.result(), launched(case, number, worker.ask))
                old = {"case": found["case"]}
                write_results(name, [found], record, given.out, instead_of=old, fields=FIELDS)
                agreed += found["agree"]
                _show(done, len(jobs), agreed, found)
        finally:
            pool.shutdown(cancel_futures=True)
    told = summary(load_rows(name, given.out))
    write_results(name, [], record, given.out, fields=FIELDS, beside={"summary": told})
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _show(done: int, total: int, agreed: int, found: Mapping[str, Any]) -> None:
    """Write what does not agree, and a bar on a terminal or every tenth case elsewhere."""
    if not found["agree"]:
        said = found["reason"] or f"errors {found['error']}, {found['interpreter_error']}"
        sys.stderr.write(f"{found['case']}: {said}\n")
    filled = 40 * done // total
    line = f"[{'#' * filled}{'.' * (40 - filled)}] {done}/{total}, {agreed} agree"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line}" + "\n" * (done == total))
    elif done % 10 == 0 or done == total:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the arguments say; write ``interpreter_agreement.json``, case by case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interpreter_agreement")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw cases, write, no GPU")
    parser.add_argument("--cases", type=Path, default=CASES, help="what --draw wrote")
    parser.add_argument("--limit", type=int, metavar="N", help="run N cases at most")
    given = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m benchmarks.interpreter_agreement", *words))
    try:
        if given.draw:
            save_cases(given.draw, [(problem, (one,)) for problem, one in draw()], command)
        else:
            _run_all(given, provenance(command))
    except TinyGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(answer_on_gpu)
    else:
        main()
