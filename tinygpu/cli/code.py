"""Commands that make and run code: ``emit``, ``run``, ``calibrate``, ``doctor``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from tinygpu.cli.console import (
    bar,
    resumable,
    say,
    say_json,
    table,
    time_text,
    working,
    write,
)
from tinygpu.cli.given import JSON, ON, OWN, SCHEDULE, Given, file_of_each, read_schedule
from tinygpu.cli.sizes import SIZES, sizes_of
from tinygpu.deadline import Deadline
from tinygpu.errors import (
    DeviceError,
    LaunchError,
    OperationError,
    ScheduleError,
    TinyGpuError,
    nearest,
)
from tinygpu.search.tuning.climb import measured, why_no_gpu
from tinygpu.term.operation import Operation, Problem

if TYPE_CHECKING:
    from tinygpu.codegen.run.interpretation import Interpretation
    from tinygpu.term.program import Program

__all__ = ["calibrate", "doctor", "emit", "interpreted_text", "run"]


def emit(
    schedules: Annotated[list[Path], typer.Argument(help="Schedule files that search wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The PTX file (else it is printed), or a folder."),
    ] = None,
    arch: Annotated[str, typer.Option(help="ptxas's name of it; else the device's.")] = "",
    cubin: Annotated[
        Path | None, typer.Option(help="Assemble too, into this file, and report.")
    ] = None,
    term: Annotated[
        Path | None,
        typer.Option(help="Write the term too, as a text that tinygpu.term.text.parse reads."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(help="What check --certificate wrote: verify it, and name it in the PTX."),
    ] = None,
    device: ON = "",
    machine: OWN = "",
) -> None:
    """Write a schedule's PTX; of several, in parallel, PTX and cubins into a folder."""
    from tinygpu.codegen.emit import emit as emitted
    from tinygpu.codegen.run.assemble import assemble, check_waits, known_fault
    from tinygpu.term.text import key_of, text_of

    if len(schedules) > 1:
        if output is None or any((cubin, term, certificate)):
            raise ScheduleError(
                "several schedules: they are written into a folder; give -o FOLDER alone"
            )
        _emit_all(
            [read_schedule(path, device, machine=machine) for path in schedules], output, arch
        )
        return
    files = [path for path in (output, cubin, term) if path is not None]
    if twice := [path for path in files if files.count(path) > 1]:
        raise ScheduleError(f"emit: {twice[0]} is written twice; give two files")
    given = read_schedule(schedules[0], device, machine=machine).for_arch(arch)
    meaning = given.computing()
    text = emitted(meaning.program, given.device.arch, given.problem.sizes)
    for program, path in file_of_each(meaning.program, certificate) if certificate else ():
        text = f"{_certified(program, path)}\n{text}"
    for program, path in file_of_each(meaning.program, term) if term else ():
        written = text_of(program)
        write(path, written)
        typer.echo(f"{path}: the term, SHA-256 {key_of(written)}", err=output is None)
    code = None if cubin is None else assemble(text, given.device.arch)
    waits = None if code is None else check_waits(code)
    if output is None:
        say(text.rstrip())
    else:
        write(output, text)
        say(f"{output}: {len(text.splitlines())} lines for {given.device.arch}")
        say(f"it {meaning}")
    if cubin is not None and code is not None:
        write(cubin, code.bytes)
        spilled = code.spill_stores_bytes + code.spill_loads_bytes
        typer.echo(
            f"{cubin}: {len(code.bytes)} B, {code.registers} registers a thread, "
            f"{spilled} B spilled, by ptxas {code.ptxas}; waits of its SASS: {waits}",
            err=output is None,  # PTX that is printed stays pure
        )
        if fault := known_fault():
            typer.echo(fault, err=output is None)


def _certified(program: Program, path: Path) -> str:
    """Return the comment that binds PTX to its term and certificate, which is verified."""
    from tinygpu.checker.written import verified
    from tinygpu.codegen.runtime.bundle import digest
    from tinygpu.term.text import key_of, text_of

    data = path.read_bytes()
    ruling = verified(program, data.decode(errors="replace"))
    if not ruling.accepted:
        raise ScheduleError(f"emit: {path}: {ruling}; write one: tinygpu check --certificate")
    term = key_of(text_of(program))
    return f"// {program.name}: term SHA-256 {term}, certificate SHA-256 {digest(data)}"


def _emit_all(schedules: Sequence[Given], folder: Path, arch: str) -> None:
    """Build each schedule file into ``folder``; say what ptxas said of each."""
    from tinygpu.codegen.run.assemble import known_fault
    from tinygpu.codegen.run.build import build_many
    from tinygpu.meaning.identity import summary

    given = {one.path.stem: one.for_arch(arch) for one in schedules}
    if len(given) < len(schedules):
        raise ScheduleError("several schedules: two files have one name; give them one at a time")
    meanings = [g.computing() for g in given.values()]
    wanted = [
        (found.program, g.device.arch, g.problem.sizes)
        for found, g in zip(meanings, given.values(), strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with bar("emit and assemble") as progress:
        every = build_many(wanted, progress=progress)
    rows: list[tuple[object, ...]] = []
    failed = 0
    for name, built in zip(given, every, strict=True):
        if isinstance(built, TinyGpuError):
            failed += 1
            rows.append((name, "", "", "", str(built)))
            continue
        write(folder / f"{name}.ptx", built.ptx)
        write(folder / f"{name}.cubin", built.cubin.bytes)
        spilled = built.cubin.spill_stores_bytes + built.cubin.spill_loads_bytes
        rows.append((name, len(built.ptx.splitlines()), built.cubin.registers, spilled, ""))
    columns = ("schedule", "#lines", "#registers", "#B spilled", "error")
    table(f"{folder}: PTX and cubins", columns, rows)
    say(summary(meanings))
    if fault := known_fault():
        say(fault)
    if failed:
        raise typer.Exit(1)


_MOST_FLOPS, _MOST_BYTES = 2.0**36, 2.0**30  # of what is interpreted: some minutes


class Backend(StrEnum):
    """Where a kernel is run."""

    GPU = "gpu"
    INTERPRETER = "interpreter"


def run(
    schedule: SCHEDULE,
    backend: Annotated[
        Backend | None, typer.Option(help="The GPU if it can run the kernel, else the interpreter.")
    ] = None,
    sizes: SIZES = None,
    scalar: Annotated[
        list[str] | None, typer.Option(help="name=number, of a scalar (else 0.5); repeatable.")
    ] = None,
    device: ON = "",
    machine: OWN = "",
    seed: Annotated[
        int, typer.Option(min=0, help="Of the random inputs, and of random orders.")
    ] = 0,
    as_json: JSON = False,
) -> None:
    """Run a schedule: validate and time it on a GPU, or run its PTX by the interpreter.

    Sizes that are not given are the schedule's; the interpreter then takes small ones.  It tells of
    hazards, not of time.
    """
    given = read_schedule(schedule, device, machine=machine)
    problem = given.problem
    asked = sizes_of(problem.operation.name, problem.operation.axes, sizes or ())
    scalars = _scalars(problem.operation, scalar or ())
    given = replace(given, problem=Problem.of(problem.operation, **{**problem.sizes, **asked}))
    meaning = str(given.computing())
    why_not = (
        "it was not asked for" if backend == Backend.INTERPRETER else why_no_gpu(given.machine)
    )
    if why_not and backend == Backend.GPU:
        raise LaunchError(f"{why_not}; give --backend interpreter, or leave --backend out")
    if why_not:
        found = _interpreted(given, asked, seed, scalars)
        tree = {"where": "interpreter", "why": why_not, **found}
    else:
        tree = {"where": "GPU", **_on_gpu(given, seed, scalars)}
    tree["meaning"] = meaning
    if as_json:
        say_json(tree)
    else:
        say(tree["text"])
        say(f"it {meaning}")
        if tree["where"] == "interpreter":
            say(f"no run on a GPU: {tree['why']}")
    if not tree["right"]:
        raise typer.Exit(1)


def _scalars(operation: Operation, given: Sequence[str]) -> dict[str, float]:
    """Read ``name=number``.  Raises OperationError for another name, or no finite number."""
    found: dict[str, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in operation.scalars:
            known = nearest(name, operation.scalars) if operation.scalars else "it has none"
            raise OperationError(f"--scalar {text}: {operation.name} has no scalar {name}; {known}")
        try:
            with np.errstate(over="ignore"):
                found[name] = float(np.float32(number))
        except ValueError:
            found[name] = math.nan
        if not math.isfinite(found[name]):
            raise OperationError(f"--scalar {text}: give a finite fp32 number, as {name}=2.0")
    return found


def _interpreted(
    given: Given, asked: Mapping[str, int], seed: int, scalars: Mapping[str, float]
) -> dict[str, Any]:
    """Run the PTX on arrays, at the sizes that were asked for and small ones for the rest."""
    from tinygpu.codegen.run.interpretation import interpret
    from tinygpu.meaning.interpret import reduced

    program = given.program()
    sizes = {**reduced(given.problem, program), **asked}
    operation = given.problem.operation
    if operation.flops(sizes) > _MOST_FLOPS or operation.bytes(sizes) > _MOST_BYTES:
        text = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        raise OperationError(
            f"run: {text} would take the interpreter hours, or more memory than there is; give "
            "smaller sizes, or none: then it takes small ones"
        )
    with working("interpreting the PTX"):
        found = interpret(program, sizes, arch=given.device.arch, seed=seed, scalars=scalars)
    findings = [str(finding) for finding in found.findings]
    return {
        "right": found.right,
        "sizes": sizes,
        "seed": seed,
        "arch": given.device.arch,
        "orders": found.completions,
        "error": found.error,
        "instructions": found.instructions,
        "findings": findings,
        "text": "\n".join([interpreted_text(found), *(f"  {finding}" for finding in findings)]),
    }


def interpreted_text(found: Interpretation) -> str:
    """Return an interpretation's outcome in two lines."""
    shape = " ".join(f"{axis}={size}" for axis, size in found.sizes.items())
    if found.right:
        verdict = f"right: worst error {found.error:.2f} of what rounding allows, no hazards"
    else:
        verdict = (
            f"wrong: worst error {found.error:.2f} of what rounding allows, "
            f"{len(found.findings)} hazards"
        )
    return (
        f"{verdict}\nthe PTX was interpreted, not timed: {shape}, seed {found.seed}, asynchronous "
        f"operations {', '.join(found.completions)}; {found.instructions} instructions of warps"
    )


def _on_gpu(given: Given, seed: int, scalars: Mapping[str, float]) -> dict[str, Any]:
    """Validate and time it on the GPU beside cuBLAS."""
    from tinygpu.codegen.run.measure import Options
    from tinygpu.search.time.cost import cost
    from tinygpu.space.space import Space

    problem = given.problem
    space = Space(given.machine, problem, given.device)
    with working("validating and timing"):
        options = Options(seed=seed, scalars=scalars)
        mine, *others = measured(space, [given.schedule], options=options)
    predicted = float(cost(given.program(), problem.sizes, given.device).seconds)
    tree: dict[str, Any] = {
        "right": mine.ok,
        "seconds": mine.seconds,
        "error": mine.error,
        "reason": mine.reason,
        "predicted_seconds": predicted,
        "cublas_seconds": others[0].seconds if others else None,
        "power_capped": mine.capped,
    }
    if mine.seconds is None:
        return {**tree, "text": f"wrong: {mine.reason}"}
    rate = problem.operation.flops(problem.sizes) / mine.seconds / 1e12
    lines = [
        f"right: worst error {mine.error:.2f} of what rounding allows",
        f"{time_text(mine.seconds)}, {rate:.1f} TFLOP/s on {mine.device}"
        + (" (clock held down by power or heat)" if mine.capped else ""),
        f"predicted for {given.device.name}: {time_text(predicted)}",
    ]
    if others and others[0].seconds:
        ratio = others[0].seconds / mine.seconds
        lines.append(f"cuBLAS: {time_text(others[0].seconds)}; this is {ratio:.2f} times as fast")
    return {**tree, "text": "\n".join(lines)}


def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", help="The device file to write.")],
    name: Annotated[str, typer.Option(help="The device's name; else the driver's.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Only micro-kernels; random kernels are left out.")
    ] = False,
) -> None:
    """Measure this GPU by micro-kernels and random kernels, and write a device file."""
    from tinygpu.cli.calibrating import (
        FITTED_NUMBERS,
        SECONDS,
        expected,
        groups_of,
        refined,
        timings,
    )
    from tinygpu.codegen.run import calibrate as calibrating
    from tinygpu.codegen.run.launch import gpu
    from tinygpu.codegen.run.provenance import device_and_driver
    from tinygpu.devices.device import to_json

    gpu()  # to know first that there is one, and then that the file can be written
    if output.is_dir() or output.suffix != ".json":
        raise DeviceError(f"device file {output}: give the path of a file, NAME.json")
    write(output.with_name(f".{output.name}.probe"), "").unlink()
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    with resumable("nothing was written; the same command starts again"):
        found = calibrating.calibrate(say, date=date, name=name)
    write(output, to_json(found))
    use = f"use it with --device {output}"
    if quick:
        say(f"{output}: {use}; {expected(found, device_and_driver()[0])}")
        return
    until, rng = Deadline.within(SECONDS, time.monotonic), np.random.default_rng(0)
    kept = f"{output} has the micro-kernels' numbers; {use}"
    with resumable(kept), bar("random kernels") as progress:
        timed = list(
            timings(groups_of(found, rng), until=until, progress=lambda done: progress(done, None))
        )
        found = refined(found, timed, rng)
    if not found.errors:
        say(f"{kept}: too few random kernels ran on it to say how far the model is off")
        return
    write(output, to_json(found))
    for field in FITTED_NUMBERS:
        if (number := found.provenance[field]).kind == "fitted":
            say(f"{field} = {number.value:.6g}; {number.source}")
    columns = ("machine", "#kernels", "#error, median", "#bias")
    rows = [(name, e.count, e, f"{100 * math.expm1(e.bias):+.1f} %") for name, e in found.errors]
    table("predicted over measured, of random kernels that were held out", columns, rows)
    say(f"{output}: {use}")


def doctor(as_json: JSON = False) -> None:
    """Say what is installed, what GPU there is, what is missing and how to get it."""
    from tinygpu.codegen.run.doctor import diagnose

    rows = diagnose()
    if as_json:
        say_json([asdict(row) for row in rows])
    else:
        shown = [
            (
                "ok" if r.ok else "missing" if r.needed else "optional",
                r.what,
                r.found,
                f"{r.missing}; {r.how}" if r.missing else "",
            )
            for r in rows
        ]
        table("doctor", ("", "what", "found", "what to do"), shown)
    if not all(r.ok for r in rows if r.needed):
        raise typer.Exit(1)
