"""The command ``demo``: the linear layers of a language model, from search to report."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
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
from tinygpu.cli.plot import drawn_timeline, shape_text
from tinygpu.cli.shapes import LAYERS
from tinygpu.devices.device import label
from tinygpu.search.tuning.climb import measured, why_no_gpu
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import to_json

if TYPE_CHECKING:
    from tinygpu.cli.report import ReportSection
    from tinygpu.codegen.run.assemble import Cubin
    from tinygpu.codegen.run.interpretation import Interpretation
    from tinygpu.search.exact.best import Ranking
    from tinygpu.search.explain.explain import Explanation
    from tinygpu.space.measurement import Measurement
    from tinygpu.space.space import Space
    from tinygpu.term.program import Buffer, Program

__all__ = ["Layer", "demo"]

SPREAD = ("tile_m", "tile_n", "consume", "thread_m", "thread_n")
"""What the schedules of a layer differ in: the best of all differ in details alone."""
_PROVABLE = 10**12
"""Schedules up to which the best of every spread are proven: of more, that takes minutes."""


@dataclass(frozen=True, slots=True)
class Layer:
    """All that the report says of one layer.

    ``findings`` are the term's interpreter's, ``interpreted`` is what its PTX did.
    """

    name: str
    what: str
    space: Space
    found: Ranking
    explanation: Explanation
    program: Program
    ptx: str
    cubin: Cubin
    reduced: dict[str, int]
    findings: tuple[str, ...]
    interpreted: Interpretation
    proof: str
    timed: tuple[Measurement, ...]
    why_not: str

    @property
    def flops(self) -> float:
        """The multiplications and additions of the layer."""
        return self.space.problem.operation.flops(self.space.problem.sizes)

    @property
    def faults(self) -> tuple[str, ...]:
        """What either interpreter found wrong."""
        code = self.interpreted
        over = (f"the PTX's output is off by {code.error:.2f} times what rounding allows",)
        return (*self.findings, *map(str, code.findings), *(over if code.error > 1 else ()))

    @property
    def title(self) -> str:
        """The layer in words, with its sizes."""
        sizes = self.space.problem.sizes
        return f"{self.name}: {' x '.join(map(str, sizes.values()))}"

    @property
    def best_measured(self) -> Measurement | None:
        """The fastest that was measured, if any was."""
        mine = [one for one in self.timed[: len(self.found.best)] if one.seconds]
        return min(mine, key=lambda one: one.seconds or 0.0, default=None)

    @property
    def cublas_seconds(self) -> float | None:
        """What cuBLAS took, if it was measured."""
        peer = self.timed[len(self.found.best) :]
        return peer[0].seconds if peer else None


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
    from tinygpu.cli.report import report_html, section_tree
    from tinygpu.codegen.run.assemble import find_ptxas
    from tinygpu.codegen.run.provenance import provenance
    from tinygpu.errors import OperationError, nearest
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
        done, sections = list[Layer](), list[dict[str, Any]]()
        way = "the same command does all again (--layer: one), but measures only what it has not"
        with resumable(f"layers that are done are in {out}; {way}"):
            for number, (name, space) in enumerate(spaces.items(), 1):
                say(f"[{number}/{len(spaces)}] {name}: {LAYERS[name][0]}")
                done.append(_layer(name, space, top, out, why_not=why_not))
                _say_layer(done[-1])
                with working("writing the report"):
                    sections.append(section_tree(_section(done[-1])))
                write(page, report_html(title, about, {"demo": run}, sections))
                layers = {
                    one.name: _results(one, tree) for one, tree in zip(done, sections, strict=True)
                }
                write(out / "results.json", json_text({"provenance": run, "layers": layers}))
    _say_all(done, why_not)
    say(f"report: {page}")
    if any(one.faults for one in done):
        raise typer.Exit(1)


def _layer(name: str, space: Space, top: int, out: Path, *, why_not: str) -> Layer:
    """Do the whole job for one layer and write its files."""
    from tinygpu.cli.look import proof_text
    from tinygpu.codegen.emit import emit
    from tinygpu.codegen.run.assemble import assemble
    from tinygpu.codegen.run.interpretation import interpret
    from tinygpu.meaning.interpret import check, reduced
    from tinygpu.search.explain.explain import explain
    from tinygpu.search.store import Store
    from tinygpu.search.tuning.ranking import ranked
    from tinygpu.term.plan import kernels_of

    problem, chip = space.problem, space.device
    spread = tuple(n for n in SPREAD if n in space.values)
    exact = space.raw <= _PROVABLE
    found = ranked([space], top, {space.machine.name: spread}, exact=exact)
    best = found.best[0].schedule
    (program,) = kernels_of(best.program(space.machine, problem.operation))
    with working("assembling"):
        ptx = emit(program, chip.arch, problem.sizes)
        cubin = assemble(ptx, chip.arch)
    sizes = reduced(problem, program)
    with working("interpreting a reduced instance"):
        findings = tuple(finding.message for finding in check(program, sizes))
    with working("interpreting the PTX"):
        interpreted = interpret(program, sizes, arch=chip.arch)
    for number, one in enumerate(found.best, 1):
        write(
            out / "schedules" / f"{name}-{number:02}.json",
            to_json(one.schedule, problem, device=label(chip)),
        )
    write(out / "ptx" / f"{name}.ptx", ptx)
    write(out / "ptx" / f"{name}.cubin", cubin.bytes)
    timed: list[Measurement] = []
    if not why_not:
        with Store(out / "store.db") as store, bar("measure") as progress:
            schedules = [one.schedule for one in found.best]
            timed = measured(space, schedules, store=store, progress=progress)
    done = Layer(
        name=name,
        what=LAYERS[name][0],
        space=space,
        found=found,
        explanation=explain(best, space.machine, problem, chip),
        program=program,
        ptx=ptx,
        cubin=cubin,
        reduced=sizes,
        findings=findings,
        interpreted=interpreted,
        proof=proof_text(program),
        timed=tuple(timed),
        why_not=why_not,
    )
    with working("drawing"):
        _draw(done, out)
    return done


def _section(layer: Layer) -> ReportSection:
    """Return the layer as the report's page takes it."""
    from tinygpu.cli.report import ReportSection
    from tinygpu.cli.search import tree_of
    from tinygpu.codegen.run.measure import peer_of

    peers = [
        {"name": peer_of(one).rpartition(".")[2], "seconds": one.seconds}
        for one in layer.timed[len(layer.found.best) :]
    ]
    space, cubin, code = layer.space, layer.cubin, layer.interpreted
    sizes = " ".join(f"{axis}={size}" for axis, size in layer.reduced.items())
    right = (
        f"right at {sizes} against float64: the term in 3 interleavings, the PTX in 3 orders of "
        f"asynchronous operations (worst error {code.error:.2f} of what rounding allows)"
    )
    faults = "; ".join(layer.faults)
    spilled = cubin.spill_stores_bytes + cubin.spill_loads_bytes
    return ReportSection(
        name=layer.name,
        title=layer.title,
        about=layer.what,
        found={**tree_of([space], layer.found, layer.timed), "peers": peers},
        given=[
            Given(Path("schedules", f"{layer.name}-{number:02}.json"), space.machine,
                  space.problem, one.schedule, space.device)
            for number, one in enumerate(layer.found.best, 1)
        ],
        explanation=layer.explanation,
        timed=layer.timed[: len(layer.found.best)],
        why_not=layer.why_not,
        facts={
            "legal": f"every law holds; no deadlock, no race: {layer.proof}",
            "interpreted": f"wrong at {sizes}: {faults}" if faults else right,
            "assembled": f"{cubin.arch}: {cubin.registers} registers a thread, {spilled} B "
            f"spilled, {layer.program.smem_bytes} B of shared memory a CTA",
        },
        links={
            "schedule": f"schedules/{layer.name}-01.json",
            "PTX": f"ptx/{layer.name}.ptx",
            "cubin": f"ptx/{layer.name}.cubin",
            "trace for Perfetto": f"traces/{layer.name}.json",
        },
    )  # fmt: skip


def _results(layer: Layer, section: dict[str, Any]) -> dict[str, Any]:
    """Return the layer for machines, its search as the page has it."""
    return {
        **section["found"],
        "ptxas": {
            "arch": layer.cubin.arch,
            "registers": layer.cubin.registers,
            "spill_stores_bytes": layer.cubin.spill_stores_bytes,
            "spill_loads_bytes": layer.cubin.spill_loads_bytes,
        },
        "interpreted": {"sizes": layer.reduced, "findings": list(layer.findings)},
        "ptx_interpreted": {
            "sizes": layer.interpreted.sizes,
            "seed": layer.interpreted.seed,
            "orders": layer.interpreted.completions,
            "error": layer.interpreted.error,
            "instructions": layer.interpreted.instructions,
            "findings": [str(f) for f in layer.interpreted.findings],
        },
        "concurrency": layer.proof,
    }


def _draw(layer: Layer, out: Path) -> None:
    """Draw the layer's plots and write them, and the trace of the timeline."""
    from tinygpu.cli.layout_picture import layout_figure, shared_buffers
    from tinygpu.cli.pictures import measured_figure, png, times_figure
    from tinygpu.search.time.timeline import timeline, trace

    space, best = layer.space, layer.found.best
    given = Given(Path(), space.machine, space.problem, best[0].schedule, space.device)
    text = shape_text(given)
    line = timeline(layer.program, space.problem.sizes, space.device, iterations=3)
    write(
        out / "traces" / f"{layer.name}.json",
        json_text(trace(line, space.device, name=f"one CTA of {layer.title}")),
    )
    figures = {
        "times": times_figure(best, f"Predicted times: {text}"),
        "timeline": drawn_timeline(line, layer.program, given),
    }
    for name in _differing(shared_buffers(layer.program)):
        figures[f"layout-{name}"] = layout_figure(layer.program, name)
    points = [
        (float(one.seconds), float(mine.seconds))
        for one, mine in zip(best, layer.timed, strict=False)
        if mine.seconds
    ]
    if points:
        figures["measured"] = measured_figure(
            points, f"{layer.title} on {layer.timed[0].device}", peer_seconds=layer.cublas_seconds
        )
    for name, figure in figures.items():
        write(out / "plots" / f"{layer.name}-{name}.png", png(figure))


def _differing(buffers: list[Buffer]) -> list[str]:
    """Return the names of buffers whose rows lie differently: one picture for those alike."""
    alike = {(b.dtype, b.shape[1], b.stride[:2], b.swizzle): b.name for b in reversed(buffers)}
    return sorted(alike.values())


def _say_layer(layer: Layer) -> None:
    one = layer.found.best[0]
    verdict = "right" if not layer.faults else f"WRONG: {layer.faults[0]}"
    say(
        f"      {time_text(float(one.seconds))} predicted, waits for {one.breakdown.bottleneck}; "
        f"{layer.cubin.registers} registers; "
        f"term and PTX interpreted: {verdict}"
    )


def _say_all(done: list[Layer], why_not: str) -> None:
    columns = ["layer", "#m", "#n", "#k", "#predicted", "#TFLOP/s", "bottleneck", "#registers"]
    if not why_not:
        columns += ["#measured", "#TFLOP/s", "#cuBLAS"]
    rows: list[list[Any]] = []
    for layer in done:
        one, sizes = layer.found.best[0], layer.space.problem.sizes
        seconds = float(one.seconds)
        row: list[Any] = [layer.name, *sizes.values(), time_text(seconds)]
        row += [f"{layer.flops / seconds / 1e12:.1f}", one.breakdown.bottleneck]
        row.append(layer.cubin.registers)
        if not why_not:
            mine, peer = layer.best_measured, layer.cublas_seconds
            took = mine.seconds if mine else None
            row += [time_text(took), f"{layer.flops / took / 1e12:.1f}"] if took else ["-", "-"]
            row.append(time_text(peer) if peer else "-")
        rows.append(row)
    chip = done[0].space.device.name
    table(f"the best schedule of each layer, predicted for {chip}", columns, rows)
    if why_not:
        say(f"nothing was measured: {why_not}")
