"""The commands ``plot timeline | measured | bundle``: PNG, SVG or PDF files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinygpu.cli.console import json_text, say, write
from tinygpu.cli.given import (
    DEVICE,
    ON,
    OWN,
    SCHEDULE,
    Given,
    device_given,
    machines_with,
    read_schedule,
    stored_schedule,
)
from tinygpu.cli.which import BUNDLE
from tinygpu.devices.device import Device, device_of, label, names_gpu
from tinygpu.document import parsed
from tinygpu.errors import ScheduleError, StoreError
from tinygpu.search.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tinygpu.cli.pictures import Point
    from tinygpu.search.time.timeline import Timeline
    from tinygpu.space.measurement import Measurement
    from tinygpu.term.machine import Machine
    from tinygpu.term.operation import Problem
    from tinygpu.term.program import Program

__all__ = ["app", "drawn_timeline"]

app = typer.Typer(no_args_is_help=True, help="Draw a timeline, measurements, a bundle.")
_FORMS = (".png", ".svg", ".pdf")
_LIBRARIES = {"cublas": "cuBLAS", "torch": "PyTorch", "triton": "Triton"}
"""Libraries by a word in the names of their peers; of each the fastest is shown."""


def _picture(path: Path | None) -> Path | None:
    """Return the path of a picture; its ending says what is written."""
    if path is not None and path.suffix.lower() not in _FORMS:
        raise typer.BadParameter(f"{path}: give a file that ends in {', '.join(_FORMS)}")
    return path


OUTPUT = Annotated[
    Path | None,
    typer.Option("-o", "--output", callback=_picture, help="The file: .png, .svg or .pdf."),
]


def problem_text(problem: Problem) -> str:
    """Return an operation's name, sizes and type."""
    sizes = " x ".join(str(size) for size in problem.sizes.values())
    return f"{problem.operation.name} {sizes} {problem.operation.inputs[0].dtype}"


def shape_text(given: Given) -> str:
    """Return what a picture is of, for its title."""
    return f"{problem_text(given.problem)}, {given.machine.name} on {given.device.name}"


@app.command()
def timeline(
    schedule: SCHEDULE,
    iterations: Annotated[
        int,
        typer.Option(min=1, max=64, help="Of the loop over k; over tiles, if it has roles."),
    ] = 3,
    trace: Annotated[Path | None, typer.Option(help="A Perfetto trace of it, JSON.")] = None,
    output: OUTPUT = None,
    device: ON = "",
    machine: OWN = "",
) -> None:
    """Draw when each unit works in the first iterations of one CTA, and what its ring holds."""
    from tinygpu.search.time import timeline as timelines

    given = read_schedule(schedule, device, machine=machine)
    program, sizes = given.kernel()
    line = timelines.timeline(program, sizes, given.device, iterations=iterations)
    figure = drawn_timeline(line, program, given)
    if trace is not None:
        write(trace, json_text(timelines.trace(line, given.device)))
        say(f"{trace}: open it at https://ui.perfetto.dev")
    _save(figure, output or schedule.with_suffix(".timeline.png"))


def drawn_timeline(line: Timeline, program: Program, given: Given) -> Figure:
    """Return the picture of a timeline: of units, or of roles and their ring."""
    from tinygpu.cli.timeline_picture import asynchronous_figure, timeline_figure

    if program.barriers:
        title = f"One CTA of the busy chip: {shape_text(given)}"
        return asynchronous_figure(line, given.device, title)
    return timeline_figure(line, given.device, f"One CTA, alone on an SM: {shape_text(given)}")


@app.command()
def measured(
    store: Annotated[Path, typer.Argument(help="The store.db of a search with --measure.")],
    output: OUTPUT = None,
    device: DEVICE = "",
    machine: OWN = "",
) -> None:
    """Draw predicted against measured times of all schedules in a store, and its peers' times."""
    from tinygpu.cli.pictures import measured_figure

    if not store.is_file() or not store.stat().st_size:
        raise StoreError(f"store {store}: no such file; tinygpu search --measure --out makes one")
    chip, known = device_given(device), machines_with(machine)
    with Store(store) as kept:
        timed = [one for one in kept if one.seconds]
    mine = [one for one in timed if device.endswith(".json") or names_gpu(chip.name, one.device)]
    if timed and not mine:
        gpus = sorted({one.device for one in timed})
        fit = list(filter(None, map(device_of, gpus)))
        way = " or ".join(fit) if fit else "the file that tinygpu calibrate wrote there"
        raise StoreError(
            f"store {store}: measured on {', '.join(gpus)}, not on {chip.name}; give --device {way}"
        )
    points, peers, left = _shown(mine, chip, machines=known)
    left[f"measured on another GPU than {chip.name}"] = len(timed) - len(mine)
    if not points:
        why = next((why for why, count in left.items() if count), "give --measure to a search")
        raise StoreError(f"store {store}: no measured schedule in it; {why}")
    for why, count in left.items():
        if count:
            say(f"left out: {count}, {why}")
    chips = ", ".join(sorted({one.device for one in mine}))
    drivers = ", ".join(sorted({one.driver for one in mine}))
    title = f"Predicted for {label(chip)}, measured on {chips}, driver {drivers}"
    _save(measured_figure(points, title, peers=peers), output or store.with_suffix(".measured.png"))


@app.command()
def bundle(
    bundle: BUNDLE,
    rule: Annotated[str, typer.Option(help="Another rule than the bundle's.")] = "",
    output: OUTPUT = None,
) -> None:
    """Draw how slow the served kernels are, over m: the bundle's rule, the others, cuBLASLt."""
    from tinygpu.cli.bundle_picture import bundle_figure
    from tinygpu.codegen.runtime.bundle import load_bundle

    opened = load_bundle(bundle, rule=rule)
    own = bundle.resolve()
    name = own.stem if own.suffix == ".zip" else own.name
    beside = bundle.with_name(f"{name}.png") if bundle.name else own.with_name(f"{name}.png")
    _save(bundle_figure(opened), output or beside)


def _shown(
    measurements: Sequence[Measurement], device: Device, *, machines: Mapping[str, Machine]
) -> tuple[list[Point], list[tuple[str, str, float]], Counter[str]]:
    """Return the points of schedules, the times of peers, and why others are left out."""
    from tinygpu.cli.pictures import Point
    from tinygpu.search.time.cost import cost

    problems: dict[tuple[str, str], Problem] = {}
    drawn: list[tuple[tuple[str, str], float, float, str]] = []  # times, and the machine
    peers: dict[tuple[tuple[str, str], str], float] = {}
    left: Counter[str] = Counter()
    for one in measurements:
        key, chosen, seconds = (one.operation, one.sizes), parsed(one.schedule), one.seconds
        assert seconds is not None
        if isinstance(chosen, dict) and "decisions" not in chosen:
            peer = str(chosen.get("peer"))
            named = (name for word, name in _LIBRARIES.items() if word in peer)
            library = key, next(named, peer.rpartition(":")[2])
            peers[library] = min(seconds, peers.get(library, seconds))
            continue
        try:
            machine, problems[key], schedule = stored_schedule(one, machines)
        except ScheduleError as error:  # of a machine or a decision that is no more
            left[str(error).removeprefix("schedule file: ")] += 1
            continue
        program = schedule.term(machine, problems[key].operation)
        predicted = float(cost(program, problems[key].sizes, device).seconds)
        drawn.append((key, predicted, seconds, machine.name))
    texts = {key: problem_text(problem) for key, problem in problems.items()}
    alike = Counter(texts.values())
    for key, problem in problems.items():
        if alike[texts[key]] > 1:
            texts[key] += "".join(f", {operand}" for operand in problem.operation.inputs)
    points = [Point(model, took, machine, texts[key]) for key, model, took, machine in drawn]
    return points, [(texts[k], name, t) for (k, name), t in peers.items() if k in texts], left


def _save(figure: Figure, path: Path) -> None:
    """Write a picture in the form that its name ends in."""
    from tinygpu.cli.pictures import encoded

    write(path, encoded(figure, path.suffix.lower().removeprefix(".")))
    say(path)
