"""The command ``search``: the best schedules under the model, or the fastest on the GPU.

Without ``--measure`` it ranks the legal schedules of every machine that fits, and proves the best.
With it, schedules of the model's best spreads are measured, and it climbs from the fastest
(``measuring.py``).  What it found replaces an earlier search in the folder when it is complete: an
interrupted search leaves the folder as it was, and its measurements in the store.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import json
import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
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
from tinygpu.cli.measuring import Effort, Tuned, client_of, tune, why_no_gpu
from tinygpu.cli.sizes import SizedCommand
from tinygpu.cli.standing import standing
from tinygpu.deadline import NEVER, Deadline
from tinygpu.devices.device import label
from tinygpu.errors import (
    IllegalScheduleError,
    LaunchError,
    ScheduleError,
    TinyGpuError,
    nearest,
)
from tinygpu.term.schedule import to_json

if TYPE_CHECKING:
    from tinygpu.codegen.run.measure import Crew
    from tinygpu.meaning.identity import Meaning
    from tinygpu.search.exact.best import Ranked, Ranking
    from tinygpu.space.measurement import Measurement
    from tinygpu.space.space import Space
    from tinygpu.term.schedule import Schedule

__all__ = ["add_to", "assembled", "computing", "ranked", "tree_of"]

_RANKED = 96
"""Schedules of the model that a search by measuring starts from, one of each spread."""
_ASSEMBLED = 200
"""Schedules of the model that are assembled before one is trusted, one of each spread."""
_BESIDE_SECONDS, _TELLING_SECONDS = 8.4, 1.2
"""What a search by measuring may take beside its budget, less Python's start; then, to tell."""
_RANKING_SHARE = 0.25
"""Of the whole time of a search by measuring, what the model's ranking takes at most."""
_MOST = 100_000
"""Schedules that are ranked at most: more would take minutes and be read by nobody."""


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(cls=SizedCommand)(search)


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
    fix: Annotated[
        list[str] | None, typer.Option(help="decision=value[,value]; may be repeated.")
    ] = None,
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
    from tinygpu.space.space import Space

    until = Deadline.within((budget or 60.0) + _BESIDE_SECONDS, time.monotonic)
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
        why_not = {one.name: "" if scheduler else why_no_gpu(one) for one in chosen}
        spaces = [space for space in spaces if not why_not[space.machine.name]]
        if not spaces:
            raise LaunchError("; ".join(dict.fromkeys(why_not.values())))  # before the search
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
        with resumable(way), ExitStack() as stack:
            spreads = {
                one.name: apart.get(one.name) or (one.spread if measure or assemble else ())
                for one in chosen
            }
            count = max(top, _RANKED if measure else _ASSEMBLED if assemble else 0)
            client = stack.enter_context(client_of(scheduler)) if measure else None
            crew = stack.enter_context(_beginning()) if measure and client is None else None
            soon = until.sooner(_RANKING_SHARE * until.left()) if measure else NEVER
            exact = not (climb or measure or assemble)
            with resumable("nothing is lost; the same command searches again"):
                found = ranked(spaces, count, spreads, exact=exact, until=soon)
            if assemble:
                found = assembled(spaces, found, top)
            if not measure:
                found, meanings = computing(spaces, found)
            elif out is not None:
                effort = Effort(
                    seconds=budget or 60.0,
                    evaluations=evaluations,
                    finalists=top,
                    strategy=strategy,
                )
                end = until.before(_TELLING_SECONDS)
                tuned = _tuned(spaces, found, effort, out / "store.db", client, crew, end)
                stack.close()
                tree = _measured_tree(spaces, found, tuned)
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


def ranked(
    spaces: Sequence[Space],
    top: int,
    spreads: Mapping[str, tuple[str, ...]],
    *,
    exact: bool = False,
    until: Deadline = NEVER,
) -> Ranking:
    """Return the best of spaces of one problem, proven or only climbed to.

    No two are of one machine and alike in its ``spreads``, if it has some.  With a deadline none is
    proven: all spaces are climbed in at once, until soon after it.  Raises IllegalScheduleError,
    which says why, if all spaces are empty.
    """
    from tinygpu.search.exact.best import Ranking

    with _no_collection():
        if until.open:
            every = list(_in_turn(spaces, top, spreads, exact))
        else:
            every = list(_at_once(spaces, top, spreads, until))
    found = [one for one in every if isinstance(one, Ranking)]
    empty = [one for one in every if isinstance(one, IllegalScheduleError)]
    best = sorted((one for of in found for one in of.best), key=lambda one: one.seconds)[:top]
    if not found:
        raise empty[-1]
    return Ranking(
        best=tuple(best),
        raw=sum(space.raw for space in spaces),
        admissible=sum(of.admissible for of in found),
        scored=sum(of.scored for of in found),
        proven=all(of.proven for of in found),
    )


def _in_turn(
    spaces: Sequence[Space], top: int, spreads: Mapping[str, tuple[str, ...]], exact: bool
) -> Iterator[Ranking | IllegalScheduleError]:
    """Yield what is found in each space, the latest machine first: it bounds the others."""
    from tinygpu.search.exact.best import rank

    best: list[float] = []
    for space in reversed(spaces):
        with bar(f"search {space.machine.name}") as progress:
            try:
                found = rank(
                    space, k=top, exact=exact, spread=spreads[space.machine.name],
                    below=best[-1] if len(best) == top else math.inf, progress=progress,
                )  # fmt: skip
            except IllegalScheduleError as error:
                yield error
                continue
        best = sorted((*best, *(one.seconds for one in found.best)))[:top]
        yield found


def _at_once(
    spaces: Sequence[Space], top: int, spreads: Mapping[str, tuple[str, ...]], until: Deadline
) -> Iterator[Ranking | IllegalScheduleError]:
    """Yield what is climbed to in each space until then: all at once, by a share of the cores.

    Machines without tensor cores come after the others, and only if what they need for the
    arithmetic alone may be less than what those found.
    """
    from tinygpu.search.exact.best import Ranking

    least = {space.machine.name: _fma_seconds(space) for space in spaces}
    best: list[float] = []
    for some in (
        [space for space in spaces if not least[space.machine.name]],
        [space for space in spaces if least[space.machine.name]],
    ):
        below = best[-1] if len(best) == top else math.inf
        asked = [space for space in some if least[space.machine.name] < below]
        for one in _climbed(asked, top, spreads, below, until):
            if isinstance(one, Ranking):
                best = sorted((*best, *(found.seconds for found in one.best)))[:top]
            yield one


def _fma_seconds(space: Space) -> float:
    """Return the seconds for a problem's arithmetic by fma; 0 for a machine of tensor cores."""
    if any(one.unit == "tensor" for one in space.machine.instructions):
        return 0.0
    device, problem = space.device, space.problem
    rate = 2 * device.fma_f32_per_cycle_per_sm * device.sms * device.clock_hz
    return problem.operation.flops(problem.sizes) / rate


def _climbed(
    spaces: Sequence[Space],
    top: int,
    spreads: Mapping[str, tuple[str, ...]],
    below: float,
    until: Deadline,
) -> Iterator[Ranking | IllegalScheduleError]:
    from tinygpu.search.exact.best import rank

    if not spaces:
        return
    told: dict[str, tuple[int, int]] = {}
    names = ", ".join(space.machine.name for space in spaces)
    with bar(f"search {names}") as progress, ThreadPoolExecutor(len(spaces)) as pool:

        def begun(space: Space) -> Future[Ranking]:
            def tell(done: int, whole: int) -> None:
                told[space.machine.name] = done, whole
                every = list(told.values())
                progress(sum(done for done, _ in every), sum(whole for _, whole in every))

            return pool.submit(
                rank, space, k=top, exact=False, spread=spreads[space.machine.name],
                below=below, progress=tell, until=until, share=1 / len(spaces),
            )  # fmt: skip

        for one in [begun(space) for space in reversed(spaces)]:
            try:
                yield one.result()
            except IllegalScheduleError as error:
                yield error


def assembled(spaces: Sequence[Space], found: Ranking, top: int) -> Ranking:
    """Return the first few of the best, ordered by their times with ptxas's registers and spills.

    Nothing is run.  What ptxas does not take is left out.  Raises AssemblyError if it takes none.
    """
    from tinygpu.codegen.run.build import Builders
    from tinygpu.search.exact.best import Ranked
    from tinygpu.search.time.cost import cost
    from tinygpu.search.time.launch import Assembled

    machines = {space.machine.name: space.machine for space in spaces}
    problem, device = spaces[0].problem, spaces[0].device
    schedules = [one.schedule for one in found.best]
    programs = [one.program(machines[one.machine], problem.operation) for one in schedules]
    best: list[Ranked] = []
    failed: list[TinyGpuError] = []
    with bar("assemble") as progress, Builders() as builders:
        codes = builders.codes([(p, device.arch, problem.sizes) for p in programs])
        for schedule, program, code in zip(schedules, programs, codes, strict=True):
            if isinstance(code, TinyGpuError):
                failed.append(code)
            else:
                timed = cost(program, problem.sizes, device, code=Assembled(*code))
                best.append(Ranked(float(timed.seconds), schedule, timed))
            progress(len(best) + len(failed), len(programs), "")
    if not best:
        raise failed[0]
    best.sort(key=lambda one: one.seconds)
    return replace(found, best=tuple(best[:top]), proven=False)


def computing(spaces: Sequence[Space], found: Ranking) -> tuple[Ranking, tuple[Meaning, ...]]:
    """Leave out those of the best that do not compute their operation; say what was found.

    Raises IllegalScheduleError if none does.
    """
    from tinygpu.cli.computed import computed

    machines = {space.machine.name: space.machine for space in spaces}
    operation = spaces[0].problem.operation
    kept, meanings, wrong = [], [], []
    programs = [
        one.schedule.program(machines[one.schedule.machine], operation) for one in found.best
    ]
    with bar("execute small instances") as progress:
        progress(0, len(programs), "")
        asked = zip(found.best, computed(programs), strict=True)
        for number, (one, meaning) in enumerate(asked, 1):
            progress(number, len(programs), "")
            if not meaning.wrong:
                kept.append(one)
                meanings.append(meaning)
            else:
                wrong.append(f"{one.schedule} {meaning}")
    if not kept:
        raise IllegalScheduleError(
            f"computes: {wrong[0]} (and {len(wrong) - 1} more); let terms compute {operation}"
        )
    for text in wrong:
        say(f"left out: {text}")
    return replace(found, best=tuple(kept)), tuple(meanings)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Search without the collector: it would look through what a search keeps, a sixth of it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.freeze()  # and back: what is left is old, so that the next collection skips it,
            gc.unfreeze()
            atexit.register(gc.freeze)  # and so does the last: both took a tenth of a second
            gc.enable()


@contextmanager
def _beginning() -> Iterator[Crew]:
    """Give a crew whose worker starts while the model ranks."""
    from tinygpu.codegen.run.measure import COARSE, Crew

    with Crew(COARSE.worker) as crew:
        crew.begin(COARSE.limit_seconds)
        yield crew


def _tuned(
    spaces: Sequence[Space],
    found: Ranking,
    effort: Effort,
    store: Path,
    client: Any,
    crew: Crew | None,
    until: Deadline,
) -> Tuned:
    """Search by measuring from the model's best; what the store knows is not measured again."""
    from tinygpu.search.neighbourhood import Candidate
    from tinygpu.search.store import Store

    first = [Candidate(one.schedule, float(one.seconds)) for one in found.best]
    flops = spaces[0].problem.operation.flops(spaces[0].problem.sizes)
    with Store(store) as kept, bar("measure") as progress:

        def tell(done: int, most: int | None, best: float) -> None:
            told = f"best {time_text(best)}, {_rate(flops, best)} TFLOP/s"
            progress(done, most, told if math.isfinite(best) else "")

        return tune(
            spaces, first, store=kept, effort=effort, tell=tell, crew=crew, client=client,
            until=until,
        )  # fmt: skip


def _row(rank: int, schedule: Schedule, seconds: float, flops: float) -> dict[str, Any]:
    return {
        "rank": rank,
        "machine": schedule.machine,
        "predicted_seconds": seconds,
        "tflops": flops / seconds / 1e12,
        "decisions": dict(schedule.decisions),
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
        {**_row(number, one.schedule, float(one.seconds), flops), **_parts(one)}
        for number, one in enumerate(found.best, 1)
    ]
    for row, run in zip(rows, timed, strict=False):
        row |= run.told()
    peer = {"cublas_seconds": timed[len(rows)].seconds} if len(timed) > len(rows) else {}
    return {**_common(spaces, found), "best": rows, **peer}


def _parts(one: Ranked) -> dict[str, Any]:
    parts = {part: float(t) for part, t in one.breakdown.parts.items()}
    more = {"interval_seconds": list(one.breakdown.interval), "parts_seconds": parts}
    return {"bottleneck": one.breakdown.bottleneck, **more}


def _measured_tree(spaces: Sequence[Space], found: Ranking, tuned: Tuned) -> dict[str, Any]:
    """Return a search by measuring as a tree: the finalists, the fastest first, and the peers.

    ``place`` is the place of a schedule's spread in the model's ranking, if it is among the first;
    ``model_first`` the rank of the model's first choice.
    """
    from tinygpu.codegen.run.measure import peer_of
    from tinygpu.meaning.identity import summary
    from tinygpu.search.exact.best import Ranked
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
        program = schedule.program(machines[schedule.machine], problem.operation)
        told = "small instances were not executed: the time was over"
        if (meaning := tuned.meanings.get(schedule)) is not None:
            if meaning.wrong:
                say(f"left out: {schedule} {meaning}")
                continue
            meanings.append(meaning)
            told = str(meaning)
        model_first = number if schedule == tuned.first else model_first
        predicted = cost(program, problem.sizes, device)
        one = Ranked(float(predicted.seconds), schedule, predicted)
        rows.append(
            {
                **_row(number, schedule, one.seconds, flops),
                **_parts(one),
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
    from tinygpu.term.schedule import Schedule

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
            cells.append(str(row["place"] or f">{_RANKED}"))
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
