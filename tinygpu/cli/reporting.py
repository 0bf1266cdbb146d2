"""The command ``report``: the page of a search."""

from __future__ import annotations

import math
import reprlib
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.console import say, working, write
from tinygpu.cli.given import ON, OWN, Given, machines_with, read_schedule, stored_schedule
from tinygpu.cli.search import row_of
from tinygpu.document import parsed
from tinygpu.errors import DocumentError, ScheduleError, TinyGpuError
from tinygpu.search.store import Store

if TYPE_CHECKING:
    from tinygpu.space.measurement import Measurement
    from tinygpu.term.machine import Machine

__all__ = ["report"]

_ROW = {"rank": int, "predicted_seconds": float, "tflops": float, "bottleneck": str,
        "parts_seconds": dict, "decisions": dict}  # fmt: skip


def report(
    folder: Annotated[
        Path,
        typer.Argument(exists=True, help="What tinygpu search --out wrote."),
    ],
    device: ON = "",
    machine: OWN = "",
) -> None:
    """Write report.html: a search's table, plots, timelines and code, in a page to explore."""
    from tinygpu.cli.report import ReportSection, report_html, section_tree
    from tinygpu.codegen.run.provenance import provenance
    from tinygpu.search.explain.explain import explain

    tree = _search(folder)
    given = [_listed(folder, row, device, machine) for row in tree["best"]]
    chip, searched = given[0].device.name, tree["device"]
    if chip != searched:
        raise ScheduleError(
            f"report {folder}: searched for {searched}, and --device is {chip}; leave it out, or "
            "search for that one"
        )
    listed = len(given)
    timed = _measured(folder, tree, given, machines_with(machine))
    more, first = len(given) - listed, given[0]
    sizes = " x ".join(str(size) for _, size in first.problem.extents)
    if ends := first.problem.ends:
        sizes += f", groups that end at {reprlib.repr(ends)[1:-1]}"
    machines = " and ".join(dict.fromkeys(one.machine.name for one in given))
    told = f" The last {more} were measured on the way and are no finalists." if more else ""
    with working("writing the report"):
        section = ReportSection(
            name=folder.resolve().name,
            title=f"{first.problem.operation.name} {sizes}",
            about=f"Schedules of {machines}, predicted for {first.device.name}.{told}",
            found={name: value for name, value in tree.items() if name != "provenance"},
            given=given,
            explanation=explain(first.schedule, first.machine, first.problem, first.device),
            timed=timed,
            why_not=""
            if any("seconds" in row for row in tree["best"])
            else "--measure was not given",
        )
        runs = {
            "the search": tree.get("provenance", {}),
            "this page": provenance(shlex.join(["tinygpu", *sys.argv[1:]])),
        }
        text = report_html(section.title, section.about, runs, [section_tree(section)])
    say(f"report: {write(folder / 'report.html', text)}")


def _search(folder: Path) -> dict[str, Any]:
    """Read search.json.  Raises ScheduleError if it is not there, or not a search's."""
    path, way = folder / "search.json", f"tinygpu search --out {folder} writes it"
    if not path.is_file():
        raise ScheduleError(f"report {folder}: no search.json in it; {way}")
    try:
        tree: dict[str, Any] = parsed(path.read_text(encoding="utf-8"))
        whole = bool(tree["best"]) and isinstance(tree["device"], str)
        whole &= all(
            isinstance(tree[name], int | float) for name in ("raw", "admissible", "scored")
        )
        for row in tree["best"]:
            whole &= all(isinstance(row[name], kind) for name, kind in _ROW.items())
    except (DocumentError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ScheduleError(f"{path}: not a search that has finished; {way} anew")
    return tree


def _listed(folder: Path, row: Mapping[str, Any], device: str, machine: str) -> Given:
    """Read the schedule file of a row.  Raises ScheduleError if it has another schedule."""
    path = folder / f"{row['rank']:02}.json"
    given = read_schedule(path, device, machine=machine)
    if dict(given.schedule.decisions) != row["decisions"]:
        raise ScheduleError(
            f"{path}: not schedule {row['rank']} of search.json; tinygpu search --out {folder} "
            "writes both anew"
        )
    return replace(given, path=Path(path.name))


def _measured(
    folder: Path, tree: dict[str, Any], given: list[Given], machines: Mapping[str, Machine]
) -> list[Measurement | None]:
    """Return the store's measurements of the schedules, and fill the tree with what it lacks.

    They are of the device, driver and emitter of which there are most.  Rows without a time get
    theirs; schedules that are in the store alone come as further rows, with the model's times.
    """
    from tinygpu.codegen.run.measure import peer_of
    from tinygpu.search.time.cost import cost
    from tinygpu.space.measurement import describe

    if not (folder / "store.db").is_file():
        return []
    problem = describe(given[0].problem, given[0].schedule)[:2]
    with Store(folder / "store.db") as kept:
        every = [one for one in kept if (one.operation, one.sizes) == problem]
    ran = Counter(map(_where, every)).most_common(1)
    known = {one.schedule: one for one in every if _where(one) == ran[0][0]}
    timed = [known.pop(describe(one.problem, one.schedule)[2], None) for one in given]
    rows: list[dict[str, Any]] = tree["best"]
    for row, run in zip(rows, timed, strict=True):
        if run is not None and "seconds" not in row:
            row |= run.told()
    others = sorted(known.values(), key=lambda one: one.seconds or math.inf)
    tree.setdefault(
        "peers",
        [
            {"name": name.rpartition(".")[2], "seconds": one.seconds}
            for one in others
            if one.seconds and (name := peer_of(one))
        ],
    )
    left: list[str] = []
    for one in others:
        if peer_of(one):
            continue
        try:
            extra = Given(Path(), *stored_schedule(one, machines), given[0].device)
            sizes = extra.problem.sizes
            time = cost(extra.program(), sizes, extra.device)
            flops = extra.problem.operation.flops(sizes)
            row = row_of(len(rows) + 1, extra.schedule, time, flops)
        except TinyGpuError as error:  # its decisions are no more, or it is illegal on the device
            left.append(str(error))
            continue
        rows.append({**row, **one.told()})
        given.append(extra)
        timed.append(one)
    if left:
        say(f"left out: {len(left)} measurements in {folder / 'store.db'}; the first: {left[0]}")
    return timed


def _where(one: Measurement) -> tuple[str, str, int]:
    return one.device, one.driver, one.emitter
