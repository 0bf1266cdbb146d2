"""The command ``search``: the best schedules under the model, or the fastest on the GPU.

Without ``--measure`` it ranks the legal schedules of every machine that fits, and proves the best.
With it, schedules of the model's best spreads are measured, and it climbs from the fastest
(``search/tuning/tune.py``).  What it found replaces an earlier search in the folder when it is
complete: an interrupted search leaves the folder as it was, and its measurements in the store.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.asked import Asked, asking, problem_of
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
from tinygpu.cli.folder import claimed, require_same
from tinygpu.cli.given import (
    DEVICE,
    FIX,
    JSON,
    MACHINE,
    REPRODUCIBLE,
    SPREAD,
    device_given,
    fixed_for,
    in_order,
    machines_for,
    spread_of,
)
from tinygpu.cli.standing import standing
from tinygpu.deadline import Deadline
from tinygpu.devices.device import label
from tinygpu.errors import ScheduleError, nearest
from tinygpu.search.store import Store
from tinygpu.term.schedule import Schedule, to_json

if TYPE_CHECKING:
    from tinygpu.meaning.identity import Meaning
    from tinygpu.search.exact.best import Ranking
    from tinygpu.search.time.breakdown import Breakdown
    from tinygpu.search.tuning.climb import Tuned
    from tinygpu.space.measurement import Measurement
    from tinygpu.space.space import Space

__all__ = ["row_of", "search", "tree_of"]

_ASSEMBLED = 200
"""Schedules of the model that are assembled before one is trusted, one of each spread."""
_MOST = 100_000
"""Schedules that are ranked at most: more would take minutes and be read by nobody."""


@asking
def search(
    asked: Asked,
    machine: MACHINE = "",
    device: DEVICE = "",
    top: Annotated[int, typer.Option(min=1, max=_MOST, help="How many schedules to find.")] = 10,
    measure: Annotated[
        bool, typer.Option("--measure", help="Search by measuring on this GPU.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=86_400,
            help="Seconds of measuring, 60 if not given; it answers within ten more.",
        ),
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option(min=1, help="Schedules to measure at most.")
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="What is measured next: gaussian, model, random, descent, evolution, smt."
        ),
    ] = "gaussian",
    scheduler: Annotated[
        str, typer.Option(help="Measure on the workers of this dask scheduler, tcp://HOST:PORT.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for schedules and measurements.")] = None,
    fix: FIX = None,
    spread: SPREAD = "",
    assemble: Annotated[
        bool, typer.Option("--assemble", help="Order the best by what ptxas says of their code.")
    ] = False,
    climb: Annotated[
        bool, typer.Option("--climb", help="Only improve random schedules, without a proof.")
    ] = False,
    reproducible: REPRODUCIBLE = False,
    replace_it: Annotated[
        bool, typer.Option("--replace", help="Replace another search's result in the folder.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Find the best schedules of an operation: under the model, or measured on this GPU."""
    from tinygpu.codegen.run.assemble import known_fault
    from tinygpu.meaning.identity import summary
    from tinygpu.search.strategies import STRATEGIES
    from tinygpu.search.tuning.climb import Effort, client_of
    from tinygpu.search.tuning.ranking import assembled, computing, ranked
    from tinygpu.search.tuning.tune import BESIDE_SECONDS, runnable, searched
    from tinygpu.space.space import Space

    until = Deadline.within((budget or 60.0) + BESIDE_SECONDS, time.monotonic)
    chip, problem = device_given(device), problem_of(asked, machine)
    fixed = fixed_for(machines_for(problem.operation, chip, machine, problem.sizes), fix or ())
    fixed = in_order(fixed) if reproducible else fixed
    chosen = list(fixed)
    apart = spread_of(chosen, spread)
    spaces = [Space(one, problem, chip, fixed=values) for one, values in fixed.items()]
    if measure and assemble:
        raise ScheduleError("--assemble: what is measured is assembled anyway; leave it out")
    if not measure and (budget or evaluations or strategy != "gaussian" or scheduler):
        raise ScheduleError(
            "--budget, --evaluations, --strategy, --scheduler: they are of what is measured; "
            "give --measure"
        )
    if strategy not in STRATEGIES:
        raise ScheduleError(
            f"--strategy {strategy}: there is none; {nearest(strategy, STRATEGIES)}"
        )
    if measure and out is None:
        raise ScheduleError("--measure: measurements need a folder to be kept in; give --out DIR")
    if measure:
        spaces = runnable(spaces, scheduler)
    what = {
        "operation": str(problem.operation),
        "sizes": problem.sizes,
        "device": chip.name,
        "machine": [one.name for one in fixed],
        "decisions": {one.name: values for one, values in fixed.items()},
        "spread": spread,
        "way": "measured" if measure else "assembled" if assemble else "climbed" * climb,
    }
    identity = json.loads(json_text(what))
    with claimed(out) if out is not None else nullcontext():
        if out is not None:
            write(out / ".tinygpu", "").unlink()  # to know before the search that files can be
            if not replace_it:
                require_same(out, identity)
        way = "nothing is lost; the same command searches again"
        if measure and out is not None:
            way = f"measurements are kept in {out / 'store.db'}; the same command goes on"
        with resumable(way):
            if measure and out is not None:
                effort = Effort(
                    seconds=budget or 60.0,
                    evaluations=evaluations,
                    finalists=top,
                    strategy=strategy,
                )
                with client_of(scheduler) as client, Store(out / "store.db") as store:
                    found, tuned = searched(
                        spaces, effort, spreads=apart, store=store, client=client, watch=bar,
                        until=until,
                    )  # fmt: skip
                wrong, tree = [*tuned.wrong], _measured_tree(spaces, found, tuned)
            else:
                spreads = {one.name: apart.get(one.name) or one.spread for one in chosen}
                found = ranked(
                    spaces, max(top, _ASSEMBLED if assemble else 0), spreads if assemble else apart,
                    exact=not (climb or assemble), watch=bar,
                )  # fmt: skip
                if assemble:
                    found = assembled(spaces, found, top, watch=bar)
                found, meanings, wrong = computing(spaces, found, watch=bar)
        for text in wrong:
            say(f"left out: {text}")
        if not measure:
            tree = tree_of(spaces, found)
            for row, meaning in zip(tree["best"], meanings, strict=True):
                row["meaning"] = str(meaning)
            tree["meaning"] = summary(meanings)
        files = [] if out is None else _written(out, spaces[0], {"asked": identity, **tree})
        if replace_it and out is not None:
            (out / "report.html").unlink(missing_ok=True)  # of what was replaced
        fault = known_fault()
        if as_json:
            say_json({**tree, "ptxas_fault": fault} if fault else tree)
            return
        show(tree)
        if fault:
            say(fault)
        if files:
            more = f" to {files[-1].name}" if len(files) > 1 else ""
            say(f"schedules: {files[0]}{more}; why: tinygpu explain {files[0]}")


def row_of(rank: int, schedule: Schedule, time: Breakdown, flops: float) -> dict[str, Any]:
    """Return a schedule and its predicted time as a row of ``search.json``."""
    seconds = float(time.seconds)
    return {
        "rank": rank,
        "machine": schedule.machine,
        "predicted_seconds": seconds,
        "tflops": flops / seconds / 1e12,
        "decisions": dict(schedule.decisions),
        "bottleneck": time.bottleneck,
        "interval_seconds": list(time.interval),
        "parts_seconds": {part: float(alone) for part, alone in time.parts.items()},
    }


def _common(spaces: Sequence[Space], found: Ranking) -> dict[str, Any]:
    problem = spaces[0].problem
    return {
        "operation": str(problem.operation),
        "sizes": problem.sizes,
        "machine": ", ".join(space.machine.name for space in spaces),
        "device": spaces[0].device.name,
        "raw": found.raw,
        "admissible": found.admissible,
        "scored": found.scored,
        "proven": found.proven,
    }


def tree_of(
    spaces: Sequence[Space], found: Ranking, timed: Sequence[Measurement] = ()
) -> dict[str, Any]:
    """Return a search under the model as a tree for JSON: what, how many, and the best.

    ``timed``: measurements of the best, and then of the peer, as ``measured`` returns them.
    """
    problem = spaces[0].problem
    flops = problem.operation.flops(problem.sizes)
    rows = [
        row_of(number, one.schedule, one.breakdown, flops)
        for number, one in enumerate(found.best, 1)
    ]
    for row, run in zip(rows, timed, strict=False):
        row |= run.told()
    peer = {"cublas_seconds": timed[len(rows)].seconds} if len(timed) > len(rows) else {}
    return {**_common(spaces, found), "best": rows, **peer}


def _measured_tree(spaces: Sequence[Space], found: Ranking, tuned: Tuned) -> dict[str, Any]:
    """Return a search by measuring as a tree: the finalists, the fastest first, and the peers.

    ``place`` is the place of a schedule's spread in the model's ranking, if it is among the first;
    ``model_first`` the rank of the model's first choice.
    """
    from tinygpu.codegen.run.measure import peer_of
    from tinygpu.meaning.identity import summary
    from tinygpu.search.time.cost import cost

    problem, device = spaces[0].problem, spaces[0].device
    flops = problem.operation.flops(problem.sizes)
    machines = {space.machine.name: space.machine for space in spaces}

    def spread(schedule: Schedule) -> tuple[Any, ...]:
        names = machines[schedule.machine].spread or tuple(dict(schedule.decisions))
        return schedule.machine, *(schedule[name] for name in names)

    places = {spread(one.schedule): number for number, one in enumerate(found.best, 1)}
    rows: list[dict[str, Any]] = []
    meanings: list[Meaning] = []
    model_first: int | None = None
    for candidate, run in tuned.finalists:
        schedule, number = candidate.schedule, len(rows) + 1
        program = schedule.term(machines[schedule.machine], problem.operation)
        told = "small instances were not executed: the time was over"
        if (meaning := tuned.meanings.get(schedule)) is not None:
            meanings.append(meaning)
            told = str(meaning)
        model_first = number if schedule == tuned.first else model_first
        rows.append(
            {
                **row_of(number, schedule, cost(program, problem.sizes, device), flops),
                "place": places.get(spread(schedule)),
                **run.told(),
                "power_capped": run.capped,
                "meaning": told,
            }
        )
    peers = [{"name": peer_of(m).rpartition(".")[2], "seconds": m.seconds} for m in tuned.peers]
    return {
        **_common(spaces, found),
        "measured_on": tuned.finalists[0][1].device,
        "evaluations": len(tuned.evaluated),
        "settled": tuned.settled,
        "model_first": model_first,
        "tied": sum(one is not None and one[0] == 1 for one in standing(rows)[0]),
        "meaning": summary(meanings),
        "failed": sorted({m.reason for m in tuned.evaluated.values() if m.reason}),
        "best": rows,
        "peers": peers,
        "cublas_seconds": peers[0]["seconds"] if peers else None,
    }


def _written(out: Path, space: Space, tree: dict[str, Any]) -> list[Path]:
    """Write a search into its folder instead of what was there of an earlier one.

    The schedules come first and the summary last, so that a summary tells of files that are there.
    """
    from tinygpu.codegen.run.provenance import provenance

    files = []
    for row in tree["best"]:
        schedule = Schedule(row["machine"], tuple(row["decisions"].items()))
        text = to_json(schedule, space.problem, device=label(space.device))
        files.append(write(out / f"{row['rank']:02}.json", text))
    for number in itertools.count(len(files) + 1):  # the earlier search may have found more
        if not (older := out / f"{number:02}.json").exists():
            break
        older.unlink()
    record = {"provenance": provenance(shlex.join(["tinygpu", *sys.argv[1:]]))}
    write(out / "search.json", json_text({**record, **tree}))
    return files


def show(tree: Mapping[str, Any]) -> None:
    """Print the best as a table, the decisions in which they differ, and the counts."""
    from tinygpu.search.tuning.tune import RANKED

    rows, timed = tree["best"], "evaluations" in tree
    machines = {row["machine"] for row in rows}
    names = list(dict.fromkeys(name for row in rows for name in row["decisions"]))
    differing = [n for n in names if len({row["decisions"].get(n) for row in rows}) > 1]
    columns = ["#", *(["machine"] if len(machines) > 1 else []), "#predicted", "#TFLOP/s"]
    columns += ["bottleneck", *(["#place", "#measured", "#TFLOP/s"] if timed else [])]
    shown: list[list[str]] = []
    for row in rows:
        cells = [str(row["rank"]), *([row["machine"]] if len(machines) > 1 else [])]
        seconds, flops = row["predicted_seconds"], row["tflops"] * row["predicted_seconds"] * 1e12
        cells += [time_text(seconds), _rate(flops, seconds), row["bottleneck"]]
        if timed:
            took = row["seconds"]
            cells.append(str(row["place"] or f">{RANKED}"))
            cells += [time_text(took), _rate(flops, took)] if took else ["failed", ""]
        mine = row["decisions"]
        shown.append([*cells, " ".join(f"{n}={mine[n]}" for n in differing if n in mine)])
    sizes = " ".join(f"{axis}={size}" for axis, size in tree["sizes"].items())
    operation = tree["operation"].partition(":")[0]
    table(
        f"{operation} {sizes}, {tree['machine']} on {tree.get('measured_on') or tree['device']}",
        [*columns, "where they differ"],
        shown,
    )
    counts = (
        (tree["raw"], "schedules"),
        (tree["admissible"], "admissible"),
        (tree["scored"], "scored"),
    )
    proof = (
        "proven: under the model, none of the others is faster"
        if tree["proven"]
        else "not proven: the best met by single changes of random schedules"
    )
    if timed:
        proof = f"{tree['evaluations']} measured, " + (
            "until nothing left may be faster than the best"
            if tree["settled"]
            else "until the budget was spent; the same command goes on"
        )
    say(", ".join(f"{count_text(number)} {what}" for number, what in counts) + f"; {proof}")
    if timed and (tied := standing(rows)[1]):
        say(f"{tied}; of these the first has the fewest registers, and then the smallest tile")
    if rows and not timed:
        low, high = rows[0]["interval_seconds"]
        say(f"90 % interval of the first: {time_text(low)} to {time_text(high)}")
    if "meaning" in tree:
        say(tree["meaning"])
    same = [n for n in names if n not in differing]
    if same and len(rows) > 1:
        say("all have " + " ".join(f"{n}={rows[0]['decisions'][n]}" for n in same))
    best = next((row["seconds"] for row in rows if row.get("seconds")), None)
    for peer in tree.get("peers", ())[:1]:
        ratio = f"; the best is {peer['seconds'] / best:.3f} times as fast" if best else ""
        say(f"the best of cuBLASLt ({peer['name']}): {time_text(peer['seconds'])}{ratio}")
    if timed and tree.get("model_first"):
        first = rows[tree["model_first"] - 1]
        took = f", in {time_text(first['seconds'])}" if first["seconds"] else ", which failed"
        say(f"the model's first choice is number {first['rank']} of these{took}")
    for row in rows:
        if timed and not row["seconds"]:
            say(f"schedule {row['rank']} failed: {row['reason']}")


def _rate(flops: float, seconds: float) -> str:
    rate = flops / seconds / 1e12
    return f"{rate:.{max(0, 2 - int(math.log10(max(rate, 1e-9))))}f}"
