"""The report of the demo: one HTML page that holds its pictures, and the same as JSON."""

from __future__ import annotations

import base64
import shlex
import sys
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tinygpu.cli.console import count_text, time_text

if TYPE_CHECKING:
    from tinygpu.cli.demo import Layer

__all__ = ["report_html", "results_tree"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; max-width: 1100px; margin: 2em auto;
  padding: 0 1.2em; }
h1 { font-size: 1.7em; margin-bottom: .2em } h2 { margin-top: 2.2em; border-bottom: 1px solid #ccc }
h3 { margin: 1.4em 0 .3em; font-size: 1.05em }
table { border-collapse: collapse; margin: .8em 0; font-size: .92em }
th, td { padding: .25em .8em .25em 0; text-align: left; border-bottom: 1px solid #e4e7eb }
th { font-weight: 600; border-bottom: 1px solid #888 }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f5f6f8; padding: .8em 1em; overflow-x: auto; font-size: .84em; line-height: 1.4 }
img { max-width: 100%; height: auto } figure { margin: .8em 0 } .dim { color: #66707c }
figcaption { color: #66707c; font-size: .9em } summary { cursor: pointer; color: #2a5d9f }
.share { display: inline-block; background: #4477aa; height: .7em; vertical-align: baseline }
.wrong { color: #b00020; font-weight: 600 }
"""
_CAPTIONS = {
    "times": "Each bar is a schedule's predicted time; a mark is what one component alone would "
    "take. The model blends them, so the bar is longer than its longest part. Marks lie at "
    "different heights only to be told apart.",
    "timeline": "Each bar is a statement of the kernel keeping a unit busy, or what a stage of the "
    "ring holds. The same as a trace:",
    "layout": "A tile in shared memory: in which banks its elements lie, so that what is moved "
    "together meets no bank twice.",
    "measured": "Each point is a schedule that was validated and timed here.",
}


def report_html(layers: Sequence[Layer], why_not: str) -> str:
    """Return the page.  ``why_not``: why nothing was measured, or ""."""
    first = layers[0]
    chip, problem = first.space.device, first.space.problem
    run = _provenance()
    facts = ", ".join(
        f"{name} {run[name]}" for name in ("date", "commit", "ptxas", "python") if run.get(name)
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>tinyGPU report</title><style>{_STYLE}</style>",
        "<h1>The linear layers of an 8B-parameter Llama</h1>",
        f"<p>{problem.sizes['m']} tokens, {escape(problem.operation.inputs[0].dtype)}, machine",
        f"<b>{escape(first.space.machine.name)}</b>, predicted for <b>{escape(chip.name)}</b>.",
        f"<span class=dim>{escape(facts)}; <code>{escape(run['command'])}</code></span></p>",
        _summary(layers),
        f"<p>Nothing was measured: {escape(why_not)}</p>" if why_not else _measured_on(layers),
        *(_section(layer) for layer in layers),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def results_tree(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the same for machines."""
    from tinygpu.cli.search import tree_of

    return {
        "provenance": _provenance(),
        "layers": {
            layer.name: {
                **tree_of([layer.space], layer.found, layer.timed),
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
            for layer in layers
        },
    }


def _provenance() -> dict[str, Any]:
    from tinygpu.codegen.provenance import provenance

    return provenance(shlex.join(["tinygpu", *sys.argv[1:]]))


def _summary(layers: Sequence[Layer]) -> str:
    timed = any(layer.timed for layer in layers)
    kinds = {_peak(layer.explanation.unit) for layer in layers}
    head = ["layer", "#m", "#n", "#k", "#schedules", "#legal", "#predicted", "#TFLOP/s",
            f"of the {' or '.join(sorted(kinds))} peak", "bottleneck"]  # fmt: skip
    if timed:
        head += ["#measured", "#TFLOP/s", "#cuBLAS", "#speed-up"]
    rows = []
    for layer in layers:
        one, why = layer.found.best[0], layer.explanation
        seconds = float(one.seconds)
        share = why.rate / why.peak
        row = [
            f"<a href='#{layer.name}'>{escape(layer.name)}</a>",
            *map(str, layer.space.problem.sizes.values()),
            count_text(layer.found.raw),
            count_text(layer.found.legal),
            time_text(seconds),
            f"{layer.flops / seconds / 1e12:.1f}",
            f"<span class=share style='width:{90 * min(share, 1):.0f}px'></span> {share:.0%}",
            escape(one.breakdown.bottleneck),
        ]
        if timed:
            mine, peer = layer.best_measured, layer.cublas_seconds
            took = mine.seconds if mine else None
            row += [time_text(took), f"{layer.flops / took / 1e12:.1f}"] if took else ["", ""]
            row += [time_text(peer) if peer else ""]
            row += [f"{peer / took:.2f}x" if peer and took else ""]
        rows.append(row)
    return _table(head, rows)


def _peak(unit: str) -> str:
    """Return what a rate's peak is called."""
    kind, arithmetic, _ = unit.rpartition("FLOP/s")
    return (kind.strip() or "fp32") if arithmetic else "DRAM"


def _measured_on(layers: Sequence[Layer]) -> str:
    one = next(m for layer in layers for m in layer.timed)
    held = any(m.capped for layer in layers for m in layer.timed)
    note = " Power or heat held the clock down." if held else ""
    return (
        f"<p>Measured on {escape(one.device)}, driver {escape(one.driver)}, {one.clock_mhz} MHz, "
        f"each schedule validated against float64 first.{note}</p>"
    )


def _section(layer: Layer) -> str:
    best, name = layer.found.best, layer.name
    cubin = layer.cubin
    spilled = cubin.spill_stores_bytes + cubin.spill_loads_bytes
    sizes = " ".join(f"{axis}={size}" for axis, size in layer.reduced.items())
    if layer.faults:
        told = "<br>".join(map(escape, layer.faults))
        verdict = f"<span class=wrong>wrong</span> at {escape(sizes)}: {told}"
    else:
        verdict = (
            f"right at {escape(sizes)} against float64: the term in 3 interleavings, the PTX in 3 "
            f"orders of asynchronous operations (worst error {layer.interpreted.error:.2f} of what "
            "rounding allows)"
        )
    counts = [count_text(n) for n in (layer.found.raw, layer.found.legal, layer.found.scored)]
    searched = f"{counts[0]} schedules, {counts[1]} legal, {counts[2]} ranked"
    assembled = f"{cubin.arch}: {cubin.registers} registers a thread, {spilled} B spilled"
    links = {"schedule": f"schedules/{name}-01.json", "PTX": f"ptx/{name}.ptx",
             "cubin": f"ptx/{name}.cubin", "trace": f"traces/{name}.json"}  # fmt: skip
    how = "proven" if layer.found.proven else "met by climbing, not proven; tinygpu search proves"
    facts = [
        ("searched", f"{searched}; the best of each tile under the model, {how}"),
        ("legal", f"every law holds; no deadlock, no race: {escape(layer.proof)}"),
        ("interpreted", verdict),
        ("assembled", f"{assembled}, {layer.program.smem_bytes} B of shared memory a CTA"),
        ("files", ", ".join(f"<a href='{path}'>{what}</a>" for what, path in links.items())),
    ]
    parts = [
        f"<h2 id='{name}'>{escape(layer.title)}</h2><p>{escape(layer.what.capitalize())}.</p>",
        _table([], [[f"<b>{what}</b>", text] for what, text in facts]),
        f"<h3>Why it takes as long as it does</h3><pre>{escape(str(layer.explanation))}</pre>",
        *(_picture(layer, picture) for picture in layer.pictures if picture != "measured"),
    ]
    if "measured" in layer.pictures:
        parts.append(_picture(layer, "measured"))
    parts += [
        f"<details><summary>The {len(best)} best schedules</summary>{_best(layer)}</details>",
        f"<details><summary>The term</summary><pre>{escape(str(layer.program))}</pre></details>",
        f"<details><summary>The PTX ({len(layer.ptx.splitlines())} lines)</summary>",
        f"<pre>{escape(layer.ptx)}</pre></details>",
    ]
    return "\n".join(parts)


def _picture(layer: Layer, picture: str) -> str:
    data = base64.b64encode(layer.pictures[picture]).decode()
    caption = _CAPTIONS[picture.partition("-")[0]]
    if picture == "timeline":
        caption += (
            f" open <a href='traces/{layer.name}.json'>traces/{layer.name}.json</a> in Perfetto."
        )
    return (
        f"<figure><img alt='{escape(picture)} of {escape(layer.title)}' "
        f"src='data:image/png;base64,{data}'><figcaption>{caption}</figcaption></figure>"
    )


def _best(layer: Layer) -> str:
    best = layer.found.best
    names = [name for name, _ in best[0].schedule.decisions]
    same = [n for n in names if len({one.schedule[n] for one in best}) == 1]
    rows = []
    for number, one in enumerate(best, 1):
        row = [f"<a href='schedules/{layer.name}-{number:02}.json'>{number}</a>",
               time_text(float(one.seconds)), escape(one.breakdown.bottleneck)]  # fmt: skip
        if layer.timed:
            mine = layer.timed[number - 1]
            row.append(time_text(mine.seconds) if mine.seconds else escape(mine.reason))
        row.append(escape(" ".join(f"{n}={one.schedule[n]}" for n in names if n not in same)))
        rows.append(row)
    head = ["#", "#predicted", "bottleneck", *(["#measured"] if layer.timed else []), "differs in"]
    common = " ".join(f"{n}={best[0].schedule[n]}" for n in same)
    return f"<p>All have {escape(common)}.</p>" + _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; columns whose name begins with ``#`` are flush right."""
    right = [name.startswith("#") for name in head] or [False] * 99
    lines = ["<table>"]
    if head:
        cells = "".join(
            f"<th{' class=n' * r}>{escape(name.removeprefix('#') or '#')}</th>"
            for name, r in zip(head, right, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    for row in rows:
        cells = "".join(f"<td{' class=n' * r}>{c}</td>" for c, r in zip(row, right, strict=False))
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</table>"])
