"""The command ``search``: the best schedules under the model, and then on the GPU."""

from __future__ import annotations

import atexit
import gc
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.console import (
    bar,
    count_text,
    json_text,
    resumable,
    say,
    say_json,
    table,
    time_text,
    write,
)
from tinygpu.cli.given import DEVICE, DTYPE, JSON, LAYOUT, fixed_values, machine_named, problem_of
from tinygpu.cli.peers import peers_of, why_no_gpu
from tinygpu.device import load_device
from tinygpu.errors import LaunchError, ScheduleError
from tinygpu.schedule import to_json

if TYPE_CHECKING:
    from tinygpu.measurement import Measurement
    from tinygpu.schedule import Schedule
    from tinygpu.search.best import Ranking
    from tinygpu.space import Space

__all__ = ["add_to", "measured", "ranked", "tree_of"]


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(search)


def search(
    operation: Annotated[str, typer.Argument(help="What to compute: matmul.")],
    machine: Annotated[str, typer.Option(help="Whose schedules.")] = "simt",
    m: Annotated[int, typer.Option("-m", help="Rows of c.")] = 4096,
    n: Annotated[int, typer.Option("-n", help="Columns of c.")] = 4096,
    k: Annotated[int, typer.Option("-k", help="Terms of each sum.")] = 4096,
    dtype: DTYPE = "",
    layout: LAYOUT = "nn",
    device: DEVICE = "h200",
    top: Annotated[int, typer.Option(min=1, help="How many schedules to find.")] = 10,
    measure: Annotated[bool, typer.Option("--measure", help="Time them on this GPU.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for schedules and measurements.")] = None,
    fix: Annotated[
        list[str] | None, typer.Option(help="decision=value[,value]; may be repeated.")
    ] = None,
    climb: Annotated[
        bool, typer.Option("--climb", help="Only improve random schedules, without a proof.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Find the best schedules of a machine for an operation under the model."""
    from tinygpu.space import Space

    chosen = machine_named(machine)
    problem = problem_of(operation, chosen, dtype, layout, {"m": m, "n": n, "k": k})
    fixed = fixed_values(chosen, fix or ())
    space = Space(chosen, problem, load_device(device), fixed=fixed)
    if measure and out is None:
        raise ScheduleError("--measure: measurements need a folder to be kept in; give --out DIR")
    if measure and (why_not := why_no_gpu(chosen)):
        raise LaunchError(why_not)  # before the search
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(out / "search.json", json_text({"finished": False}))
    with resumable("nothing is lost; the same command searches again"):
        found = ranked(space, top, exact=not climb)
    files = []
    if out is not None:
        for number, one in enumerate(found.best, 1):
            name = f"{number:02}.json"
            files.append(write(out / name, to_json(one.schedule, problem)))
    timed: list[Measurement] = []
    if measure and out is not None:
        with resumable(f"measurements are kept in {out / 'store.db'}; the same command goes on"):
            timed = measured(space, [one.schedule for one in found.best], out / "store.db")
    tree = tree_of(space, found, timed)
    if out is not None:
        write(out / "search.json", json_text(_with_provenance(tree)))
    if as_json:
        say_json(tree)
        return
    show(space, found, timed)
    if out is not None:
        more = f" to {files[-1].name}" if len(files) > 1 else ""
        say(f"schedules: {files[0]}{more}; why: tinygpu explain {files[0]}")
        if older := sorted(file.name for file in {*out.glob("[0-9]*.json")} - {*files}):
            say(f"of an earlier search, not of this: {', '.join(older)}")


def ranked(
    space: Space, top: int, *, exact: bool = False, distinct: tuple[str, ...] = ()
) -> Ranking:
    """Return the best of a space, proven or only climbed to, that differ in ``distinct`` decisions.

    Raises IllegalScheduleError, which says why, if it is empty.
    """
    from tinygpu.search.best import rank

    collects = gc.isenabled()
    gc.disable()  # a search keeps nearly all that it makes: looking through it took a sixth of it
    try:
        with bar("search") as progress:
            return rank(space, k=top, exact=exact, distinct=distinct, progress=progress)
    finally:
        if collects:
            gc.freeze()  # and back: what is left is old, so that the next collection skips it,
            gc.unfreeze()
            atexit.register(gc.freeze)  # and so does the last: both took a tenth of a second
            gc.enable()


def measured(space: Space, schedules: list[Schedule], store: Path) -> list[Measurement]:
    """Measure schedules beside cuBLAS, which comes last; what the store knows is not run again."""
    from tinygpu.codegen.measure import measure
    from tinygpu.search.store import Store

    peers = peers_of(space.problem)
    with Store(store) as kept, bar("measure") as progress:
        return measure(
            schedules, space.machine, space.problem, store=kept, progress=progress, peers=peers
        )


def tree_of(space: Space, found: Ranking, timed: list[Measurement]) -> dict[str, Any]:
    """Return a search as a tree for JSON: what, how many, and the best with their times."""
    flops = space.problem.operation.flops(space.problem.sizes)
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(found.best, 1):
        row: dict[str, Any] = {
            "rank": number,
            "predicted_seconds": float(one.seconds),
            "tflops": flops / float(one.seconds) / 1e12,
            "bottleneck": one.breakdown.bottleneck,
            "parts_seconds": {part: float(t) for part, t in one.breakdown.parts.items()},
            "decisions": dict(one.schedule.decisions),
        }
        if number <= len(timed):
            row["seconds"], row["reason"] = timed[number - 1].seconds, timed[number - 1].reason
        rows.append(row)
    tree = {
        "operation": str(space.problem.operation),
        "sizes": space.problem.sizes,
        "machine": space.machine.name,
        "device": space.device.name,
        "raw": found.raw,
        "legal": found.legal,
        "scored": found.scored,
        "proven": found.proven,
        "best": rows,
    }
    peer = timed[len(rows) :]
    if peer:
        tree["cublas_seconds"] = peer[0].seconds
    return tree


def show(space: Space, found: Ranking, timed: list[Measurement]) -> None:
    """Print the best as a table, the decisions in which they differ, and the counts."""
    flops = space.problem.operation.flops(space.problem.sizes)
    columns = ["#", "#predicted", "#TFLOP/s", "bottleneck"]
    if timed:
        columns += ["#measured", "#TFLOP/s"]
    differing = [
        name for name in space.values if len({one.schedule[name] for one in found.best}) > 1
    ]
    rows: list[list[str]] = []
    for number, one in enumerate(found.best, 1):
        seconds = float(one.seconds)
        row = [str(number), time_text(seconds), _rate(flops, seconds), one.breakdown.bottleneck]
        if timed:
            took = timed[number - 1].seconds
            row += [time_text(took), _rate(flops, took)] if took else ["failed", ""]
        rows.append([*row, " ".join(f"{n}={one.schedule[n]}" for n in differing)])
    sizes = " ".join(f"{a}={s}" for a, s in space.problem.sizes.items())
    title = f"{space.problem.operation.name} {sizes}, {space.machine.name} on {space.device.name}"
    table(title, [*columns, "where they differ"], rows)
    counts = (found.raw, "schedules"), (found.legal, "legal"), (found.scored, "scored")
    proof = (
        "proven: under the model, none of the others is faster"
        if found.proven
        else "not proven: the best met by single changes of random schedules"
    )
    say(", ".join(f"{count_text(number)} {what}" for number, what in counts) + f"; {proof}")
    same = [n for n in space.values if n not in differing]
    say(f"all have {' '.join(f'{n}={found.best[0].schedule[n]}' for n in same)}")
    for peer in timed[len(found.best) :]:
        if peer.seconds:
            say(f"cuBLAS: {time_text(peer.seconds)}, {_rate(flops, peer.seconds)} TFLOP/s")
    for number, run in enumerate(timed[: len(found.best)], 1):
        if not run.seconds:
            say(f"schedule {number} failed: {run.reason}")


def _rate(flops: float, seconds: float) -> str:
    rate = flops / seconds / 1e12
    return f"{rate:.{max(0, 2 - int(math.log10(max(rate, 1e-9))))}f}"


def _with_provenance(tree: dict[str, Any]) -> dict[str, Any]:
    import shlex
    import sys

    from tinygpu.codegen.provenance import provenance

    return {"provenance": provenance(shlex.join(["tinygpu", *sys.argv[1:]])), **tree}
