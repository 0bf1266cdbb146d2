"""Commands that make and run code: ``emit``, ``run``, ``calibrate``, ``doctor``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tinygpu.cli.console import say, say_json, table, time_text, working, write
from tinygpu.cli.given import DEVICE, JSON, SCHEDULE, Given, read_schedule
from tinygpu.cli.peers import peers_of, why_no_gpu

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (emit, run, calibrate, doctor):
        app.command()(command)


def emit(
    schedule: SCHEDULE,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The PTX file; else it is printed.")
    ] = None,
    arch: Annotated[str, typer.Option(help="ptxas's name of it; the device's if empty.")] = "",
    cubin: Annotated[
        Path | None, typer.Option(help="Assemble too, into this file, and report.")
    ] = None,
    device: DEVICE = "h200",
) -> None:
    """Write a schedule's PTX."""
    from tinygpu.codegen.assemble import assemble
    from tinygpu.codegen.emit import emit as emitted

    given = read_schedule(schedule, device)
    text = emitted(given.program(), arch or given.device.arch, given.problem.sizes)
    if output is None:
        say(text.rstrip())
    else:
        write(output, text)
        say(f"{output}: {len(text.splitlines())} lines for {arch or given.device.arch}")
    if cubin is not None:
        code = assemble(text, arch or given.device.arch)
        write(cubin, code.bytes)
        spilled = code.spill_stores_bytes + code.spill_loads_bytes
        typer.echo(
            f"{cubin}: {len(code.bytes)} B, {code.registers} registers a thread, "
            f"{spilled} B spilled",
            err=output is None,  # PTX that is printed stays pure
        )


def run(
    schedule: SCHEDULE,
    device: DEVICE = "h200",
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    as_json: JSON = False,
) -> None:
    """Run a schedule: validate and time it on a GPU, or interpret a small instance without one."""
    given = read_schedule(schedule, device)
    given.program()
    if why_not := why_no_gpu(given.machine):
        tree = {"where": "interpreter", "why": why_not, **_interpreted(given, seed)}
    else:
        tree = {"where": "GPU", **_on_gpu(given, seed)}
    if as_json:
        say_json(tree)
    else:
        say(tree["text"])
        if tree["where"] == "interpreter":
            say(f"no run on a GPU: {tree['why']}")
    if not tree["right"]:
        raise typer.Exit(1)


def _interpreted(given: Given, seed: int) -> dict[str, Any]:
    """Execute the term on a small instance, under three orders of what the barriers leave open."""
    from tinygpu.interpret import check, reduced

    program = given.program()
    sizes = reduced(given.problem, program)
    with working("interpreting a reduced instance"):
        found = check(program, sizes, seeds=(seed, seed + 1, seed + 2))
    shape = " ".join(f"{axis}={size}" for axis, size in sizes.items())
    verdict = "right" if not found else "wrong"
    text = f"{verdict}: interpreted at the reduced size {shape}, 3 interleavings, against float64"
    findings = [finding.message for finding in found]
    return {
        "right": not found,
        "sizes": sizes,
        "findings": findings,
        "text": "\n".join([text, *(f"  {finding}" for finding in findings)]),
    }


def _on_gpu(given: Given, seed: int) -> dict[str, Any]:
    """Validate and time it on the GPU beside cuBLAS."""
    from tinygpu.codegen.measure import Options, measure
    from tinygpu.search.cost import cost

    problem = given.problem
    peers = peers_of(problem)
    with working("validating and timing"):
        mine, *others = measure(
            [given.schedule], given.machine, problem, peers=peers, options=Options(seed=seed)
        )
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
    name: Annotated[str, typer.Option(help="The device's name; the driver's if empty.")] = "",
) -> None:
    """Measure this GPU's clocks, rates, latencies and bandwidths, and write a device file."""
    import os

    from tinygpu.codegen import calibrate as calibrating
    from tinygpu.device import save

    output.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    found = calibrating.calibrate(say, date=date, name=name)
    part = output.with_name(f".{output.name}.part")
    save(found, part)
    os.replace(part, output)
    say(f"{output}: use it with --device {output}")


def doctor(as_json: JSON = False) -> None:
    """Say what is installed, what GPU there is, what is missing and how to get it."""
    from tinygpu.codegen.doctor import diagnose

    rows = diagnose()
    if as_json:
        say_json(
            [
                {"what": r.what, "found": r.found, "missing": r.missing, "how": r.how,
                 "needed": r.needed}
                for r in rows
            ]
        )  # fmt: skip
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
