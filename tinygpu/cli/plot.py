"""The commands ``plot layout | times | timeline | measured``: PNG files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.console import json_text, say, write
from tinygpu.cli.given import DEVICE, ON, OWN, SCHEDULE, Given, machines_with, read_schedule
from tinygpu.device import Device, load_device, names_gpu
from tinygpu.document import parsed
from tinygpu.errors import ScheduleError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from tinygpu.machine import Machine
    from tinygpu.program import Program
    from tinygpu.search.timeline import Timeline

__all__ = ["app", "drawn_timeline", "shape_text"]

app = typer.Typer(no_args_is_help=True, help="Draw a layout, times, a timeline, measurements.")
OUTPUT = Annotated[Path | None, typer.Option("-o", "--output", help="The PNG file.")]


def shape_text(given: Given) -> str:
    """Return what a picture is of, for its title."""
    sizes = " x ".join(str(size) for size in given.problem.sizes.values())
    return f"{given.problem.operation.name} {sizes}, {given.machine.name} on {given.device.name}"


@app.command()
def layout(
    schedule: SCHEDULE,
    buffer: Annotated[str, typer.Option(help="A buffer in shared memory; else the first.")] = "",
    output: OUTPUT = None,
    device: ON = "",
    machine: OWN = "",
) -> None:
    """Draw a tile in shared memory: the bank, the writer and the readers of each element."""
    from tinygpu.cli.layout_picture import layout_figure
    from tinygpu.cli.pictures import png

    given = read_schedule(schedule, device, machine=machine)
    figure = layout_figure(given.program(), buffer)
    _save(output or schedule.with_suffix(".layout.png"), png(figure))


@app.command()
def timeline(
    schedule: SCHEDULE,
    iterations: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="Of the loop over k; of that over tiles, if it has roles."
        ),
    ] = 3,
    trace: Annotated[Path | None, typer.Option(help="A Perfetto trace of it, JSON.")] = None,
    output: OUTPUT = None,
    device: ON = "",
    machine: OWN = "",
) -> None:
    """Draw when each unit works in the first iterations of one CTA, and what its ring holds."""
    from tinygpu.cli.pictures import png
    from tinygpu.search import timeline as timelines

    given = read_schedule(schedule, device, machine=machine)
    program = given.program()
    line = timelines.timeline(program, given.problem.sizes, given.device, iterations=iterations)
    figure = drawn_timeline(line, program, given)
    _save(output or schedule.with_suffix(".timeline.png"), png(figure))
    if trace is not None:
        write(trace, json_text(timelines.trace(line, given.device)))
        say(f"{trace}: open it at https://ui.perfetto.dev")


def drawn_timeline(line: Timeline, program: Program, given: Given) -> Figure:
    """Return the picture of a timeline: of units, or of roles and their ring."""
    from tinygpu.cli.pictures import timeline_figure
    from tinygpu.cli.timeline_picture import asynchronous_figure

    if program.barriers:
        title = f"One CTA of the busy chip: {shape_text(given)}"
        return asynchronous_figure(line, given.device, title)
    return timeline_figure(line, given.device, f"One CTA, alone on an SM: {shape_text(given)}")


@app.command()
def times(
    schedules: Annotated[list[Path], typer.Argument(help="Schedule files of one problem.")],
    output: OUTPUT = None,
    device: ON = "",
    machine: OWN = "",
) -> None:
    """Draw the predicted times of schedules by component."""
    from tinygpu.cli.pictures import png, times_figure
    from tinygpu.search.best import Ranked
    from tinygpu.search.cost import cost

    every = [read_schedule(path, device, machine=machine) for path in schedules]
    for path, one in zip(schedules, every, strict=True):
        if (one.machine, one.problem) != (every[0].machine, every[0].problem):
            raise ScheduleError(
                f"times: {path} is for another problem or machine than {schedules[0]}; "
                "give schedules of one search"
            )
    costs = [cost(one.program(), one.problem.sizes, one.device) for one in every]
    best = [Ranked(float(c.seconds), one.schedule, c) for c, one in zip(costs, every, strict=True)]
    best.sort(key=lambda one: one.seconds)
    figure = times_figure(best, f"Predicted times: {shape_text(every[0])}")
    _save(output or schedules[0].with_suffix(".times.png"), png(figure))


@app.command()
def measured(
    store: Annotated[Path, typer.Argument(help="The store.db of a search with --measure.")],
    output: OUTPUT = None,
    device: DEVICE = "h200",
    machine: OWN = "",
) -> None:
    """Draw predicted against measured times of all schedules in a store."""
    from tinygpu.cli.pictures import measured_figure, png
    from tinygpu.search.store import Store

    if not store.is_file() or not store.stat().st_size:
        raise StoreError(f"store {store}: no such file; tinygpu search --measure --out makes one")
    chip, known = load_device(device), machines_with(machine)
    with Store(store) as kept:
        timed = [one for one in kept if one.seconds]
    mine = [one for one in timed if names_gpu(chip.name, one.device)]
    if timed and not mine:
        others = ", ".join(sorted({one.device for one in timed}))
        raise StoreError(
            f"store {store}: measured on {others}, and the device is {chip.name}; give that GPU's "
            "by --device, tinygpu calibrate writes one"
        )
    points = [p for one in mine if (p := _predicted(one, chip, known)) is not None]
    if not points:
        raise StoreError(f"store {store}: no measured schedule in it; tinygpu search --measure")
    if len(mine) < len(timed):
        say(f"{len(timed) - len(mine)} measurements of other GPUs than {chip.name} are left out")
    figure = measured_figure(points, f"Predicted for {chip.name} and measured")
    _save(output or store.with_suffix(".measured.png"), png(figure))


def _predicted(
    one: Any, device: Device, machines: Mapping[str, Machine]
) -> tuple[float, float] | None:
    """Return (predicted, measured) seconds, or None for a peer."""
    from tinygpu.schedule import VERSION, from_json
    from tinygpu.search.cost import cost

    chosen, operation, sizes = map(parsed, (one.schedule, one.operation, one.sizes))
    if not isinstance(chosen, dict) or "decisions" not in chosen:
        return None
    tree = {
        "format": "tinygpu schedule",
        "version": VERSION,
        "operation": operation,
        "sizes": sizes,
        **chosen,
    }
    machine, problem, schedule = from_json(json.dumps(tree), machines)
    program = schedule.program(machine, problem.operation)
    return float(cost(program, problem.sizes, device).seconds), float(one.seconds)


def _save(path: Path, data: bytes) -> None:
    write(path, data)
    say(path)
