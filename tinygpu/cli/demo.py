"""The command ``demo``: the linear layers of a language model, from search to report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinygpu.cli.asked import Asked, operation_of
from tinygpu.cli.console import bar, json_text, resumable, say, table, time_text, working, write
from tinygpu.cli.folder import claimed
from tinygpu.cli.given import (
    DEVICE,
    DTYPE,
    FIX,
    LAYOUT,
    MACHINE,
    Given,
    device_given,
    fixed_values,
    machines_for,
)
from tinygpu.cli.look import proof_text
from tinygpu.cli.search import tree_of
from tinygpu.cli.shapes import LAYERS
from tinygpu.devices.device import label
from tinygpu.errors import OperationError, nearest
from tinygpu.search.store import Store
from tinygpu.search.tuning.climb import measured, why_no_gpu
from tinygpu.term.operation import Problem
from tinygpu.term.plan import kernels_of
from tinygpu.term.schedule import to_json

if TYPE_CHECKING:
    from tinygpu.space.measurement import Measurement
    from tinygpu.space.space import Space

__all__ = ["demo"]

SPREAD = ("tile_m", "tile_n", "consume", "thread_m", "thread_n")
"""What the schedules of a layer differ in: the best of all differ in details alone."""
_PROVABLE = 10**12
"""Schedules up to which the best of every spread are proven: of more, that takes minutes."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    tokens: Annotated[int, typer.Option(help="Rows of each product.")] = 4096,
    machine: MACHINE = "",
    dtype: DTYPE = "",
    layout: LAYOUT = "nt",
    device: DEVICE = "",
    top: Annotated[int, typer.Option(min=1, max=1000, help="Schedules a layer.")] = 20,
    layer: Annotated[list[str] | None, typer.Option(help="Only this layer; repeatable.")] = None,
    fix: FIX = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Time them if there is a GPU.")
    ] = True,
) -> None:
    """Search, explain, emit and check kernels for an 8B Llama's linear layers; write a report."""
    from tinygpu.cli.report import report_html
    from tinygpu.codegen.run.assemble import find_ptxas
    from tinygpu.codegen.run.provenance import provenance
    from tinygpu.space.space import Space

    chip = device_given(device)
    for name in layer or ():
        if name not in LAYERS:
            raise OperationError(f"layer {name}: {nearest(name, LAYERS)}")
    dtype = dtype or "bf16" * (not machine)
    operation = operation_of(Asked("matmul", dtype=dtype, layout=layout), machine)
    *_, chosen = machines_for(operation, chip, machine)  # the newest that can
    fixed = fixed_values(chosen, fix or ())
    problems = {
        name: Problem.of(operation, m=tokens, n=n, k=k)
        for name, (_, n, k) in LAYERS.items()
        if not layer or name in layer
    }
    spaces = {name: Space(chosen, p, chip, fixed=fixed) for name, p in problems.items()}
    find_ptxas()  # to know before the search that there is none
    why_not = why_no_gpu(chosen) if measure else "it was not asked for"
    with claimed(out):
        page = out / "report.html"  # now, to know that it can be; an older one stays
        nothing = b"<p>The demo has not finished its first layer.</p>\n"
        write(page, page.read_bytes() if page.is_file() else nothing)
        run = provenance(shlex.join(["tinygpu", *sys.argv[1:]]))
        title = "The linear layers of an 8B-parameter Llama"
        about = f"{tokens} tokens; schedules of {chosen.name}, predicted for {chip.name}."
        sections, wrong = list[dict[str, Any]](), list[str]()
        way = "the same command does all again (--layer: one), but measures only what it has not"
        with resumable(f"layers that are done are in {out}; {way}"):
            for number, (name, space) in enumerate(spaces.items(), 1):
                say(f"[{number}/{len(spaces)}] {name}: {LAYERS[name][0]}")
                section, faults = _layer(name, space, top, out, why_not)
                sections.append(section)
                wrong += faults
                write(page, report_html(title, about, {"demo": run}, sections))
    _say_all({one["name"]: one["found"] for one in sections}, chip.name, why_not)
    say(f"report: {page}")
    if wrong:
        raise typer.Exit(1)


def _layer(
    name: str, space: Space, top: int, out: Path, why_not: str
) -> tuple[dict[str, Any], list[str]]:
    """Do the whole job for one layer and write its files; return its section and what is wrong."""
    from tinygpu.cli.report import ReportSection, section_tree
    from tinygpu.codegen.emit import emit
    from tinygpu.codegen.run.assemble import assemble
    from tinygpu.codegen.run.interpretation import interpret
    from tinygpu.codegen.run.measure import peer_of
    from tinygpu.meaning.interpret import check, reduced
    from tinygpu.search.explain.explain import explain
    from tinygpu.search.time.timeline import timeline, trace
    from tinygpu.search.tuning.ranking import ranked

    problem, chip = space.problem, space.device
    spread = tuple(n for n in SPREAD if n in space.values)
    exact = space.raw <= _PROVABLE
    found = ranked([space], top, {space.machine.name: spread}, exact=exact)
    first = found.best[0]
    (program,) = kernels_of(first.schedule.program(space.machine, problem.operation))
    with working("assembling"):
        ptx = emit(program, chip.arch, problem.sizes)
        cubin = assemble(ptx, chip.arch)
    small = reduced(problem, program)
    with working("interpreting a reduced instance"):
        faults = [finding.message for finding in check(program, small)]
    with working("interpreting the PTX"):
        code = interpret(program, small, arch=chip.arch)
    faults += map(str, code.findings)
    if code.error > 1:
        faults.append(f"the PTX's output is off by {code.error:.2f} times what rounding allows")
    title = f"{name}: {' x '.join(map(str, problem.sizes.values()))}"
    line = trace(timeline(program, problem.sizes, chip, iterations=3), chip,
                 name=f"one CTA of {title}")  # fmt: skip
    files = {"PTX": f"ptx/{name}.ptx", "cubin": f"ptx/{name}.cubin",
             "trace for Perfetto": f"traces/{name}.json"}  # fmt: skip
    contents: tuple[str | bytes, ...] = ptx, cubin.bytes, json_text(line)
    for file, content in zip(files.values(), contents, strict=True):
        write(out / file, content)
    given = [
        Given(Path("schedules", f"{name}-{number:02}.json"), space.machine, problem, one.schedule,
              chip)
        for number, one in enumerate(found.best, 1)
    ]  # fmt: skip
    for one in given:
        write(out / one.path, to_json(one.schedule, problem, device=label(chip)))
    timed = [] if why_not else _timed(space, given, out)
    say(
        f"      {time_text(float(first.seconds))} predicted, waits for "
        f"{first.breakdown.bottleneck}; {cubin.registers} registers; term and PTX interpreted: "
        + (f"WRONG: {faults[0]}" if faults else "right")
    )
    mine, peers = timed[: len(given)], timed[len(given) :]
    at = " ".join(f"{axis}={size}" for axis, size in small.items())
    right = (
        f"right at {at} against float64: the term in 3 interleavings, the PTX in 3 orders of "
        f"asynchronous operations (worst error {code.error:.2f} of what rounding allows)"
    )
    spilled = cubin.spill_stores_bytes + cubin.spill_loads_bytes
    told = [{"name": peer_of(one).rpartition(".")[2], "seconds": one.seconds} for one in peers]
    with working("writing the report"):
        section = section_tree(ReportSection(
            name=name,
            title=title,
            about=LAYERS[name][0],
            found={**tree_of([space], found, timed), "peers": told},
            given=given,
            explanation=explain(first.schedule, space.machine, problem, chip),
            timed=mine,
            why_not=why_not,
            facts={
                "legal": f"every law holds; no deadlock, no race: {proof_text(program)}",
                "interpreted": f"wrong at {at}: {'; '.join(faults)}" if faults else right,
                "assembled": f"{cubin.arch}: {cubin.registers} registers a thread, {spilled} B "
                f"spilled, {program.smem_bytes} B of shared memory a CTA",
            },
            links={"schedule": str(given[0].path), **files},
        ))  # fmt: skip
    return section, faults


def _timed(space: Space, given: Sequence[Given], out: Path) -> list[Measurement]:
    """Return what the schedules, and then cuBLAS, take here."""
    with Store(out / "store.db") as store, bar("measure") as progress:
        return measured(space, [one.schedule for one in given], store=store, progress=progress)


def _say_all(layers: Mapping[str, Mapping[str, Any]], chip: str, why_not: str) -> None:
    columns = ["layer", "#m", "#n", "#k", "#predicted", "#TFLOP/s", "bottleneck", "#registers"]
    columns += [] if why_not else ["#measured", "#TFLOP/s", "#cuBLAS"]
    rows: list[list[Any]] = []
    for name, tree in layers.items():
        one, peer = tree["best"][0], tree.get("cublas_seconds")
        flops = one["tflops"] * one["predicted_seconds"]
        row: list[Any] = [name, *tree["sizes"].values(), time_text(one["predicted_seconds"])]
        row += [f"{one['tflops']:.1f}", one["bottleneck"], one["registers"]]
        if not why_not:
            took = min((r["seconds"] for r in tree["best"] if r["seconds"]), default=None)
            row += [time_text(took), f"{flops / took:.1f}"] if took else ["-", "-"]
            row.append(time_text(peer) if peer else "-")
        rows.append(row)
    table(f"the best schedule of each layer, predicted for {chip}", columns, rows)
    if why_not:
        say(f"nothing was measured: {why_not}")
