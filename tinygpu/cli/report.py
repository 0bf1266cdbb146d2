"""The report: one HTML file in which to explore searches, without a network.

A *section* is one problem: what ``search.json`` says of it, its schedules, their measurements.  The
page holds the sections as JSON, the plotting library, and ``report.js``, which draws them;
``report.css`` is its look, in the colours of the pictures (``palette.py``).  JSON and library are
compressed: uncompressed they were three quarters of 11 MB.  Its state is in its address
(``#layer=qkv&a=1&b=3``), so that what is seen can be linked.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from tinygpu.cli.palette import COLOURS, COMPONENTS, GREY, SYMBOLS, css
from tinygpu.cli.standing import breakdown_of, standing
from tinygpu.errors import TinyGpuError

if TYPE_CHECKING:
    from tinygpu.cli.given import Given
    from tinygpu.codegen.run.build import Built
    from tinygpu.search.explain.explain import Explanation
    from tinygpu.search.time.timeline import Timeline
    from tinygpu.space.measurement import Measurement
    from tinygpu.term.plan import Term
    from tinygpu.term.program import Program

__all__ = ["ReportSection", "report_html", "section_tree"]

STUDIED = 20
"""Schedules of a section, the first, that come with PTX, timeline, layouts and comparisons."""

FASTEST = 4
"""Schedules more that do, if they were measured as the fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """A search as the page shows it.

    ``found`` is the tree of ``search.json``; ``given`` are its schedules in that order, with paths
    from the page's folder; ``explanation`` is of the first.  ``timed`` are the measurements of the
    schedules, or nothing, and ``why_not`` says why.
    """

    name: str
    title: str
    about: str
    found: Mapping[str, Any]
    given: Sequence[Given]
    explanation: Explanation
    timed: Sequence[Measurement | None] = ()
    why_not: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def report_html(
    title: str, about: str, runs: Mapping[str, Any], sections: Sequence[Mapping[str, Any]]
) -> str:
    """Return the page of sections' trees; ``runs`` are provenances by what was run."""
    from plotly.offline import get_plotlyjs

    folder = files("tinygpu.cli")
    palette = {
        "colours": COLOURS,
        "components": {part: (paint, SYMBOLS[mark]) for part, (paint, mark) in COMPONENTS.items()},
        "other": (GREY, SYMBOLS["o"]),
    }
    tree = {
        "title": title, "about": about, "runs": runs, "palette": palette,
        "sections": [{**one, "details": _columns(one["details"])} for one in sections],
    }  # fmt: skip
    return Template((folder / "report.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=css() + "\n" + (folder / "report.css").read_text(encoding="utf-8"),
        data=_packed(json.dumps(tree, separators=(",", ":"))),
        plotly=_packed(get_plotlyjs()),
        script=(folder / "report.js").read_text(encoding="utf-8"),
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, None where a row lacks one: what is alike compresses better."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _packed(text: str) -> str:
    """Return a text compressed, as the page unpacks it; equal texts give equal ones."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def section_tree(section: ReportSection) -> dict[str, Any]:
    """Return a section for the page: its search, and what is shown of the studied schedules.

    The rows of the search get the numbers that the code has: registers, spills, shared memory.
    """
    from tinygpu.cli.layouts import layouts

    given = section.given
    rows = [
        {**row, "machine": one.machine.name, "interval_seconds": breakdown_of(row).interval}
        for row, one in zip(section.found["best"], given, strict=True)
    ]
    places, ties = standing(rows)
    for row, place in zip(rows, places, strict=True):
        row["stands"], row["shared"] = place or (None, False)
    studied = _studied(rows)
    programs = {i: given[i].program() for i in studied}
    details: list[dict[str, Any]] = [
        {"file": str(one.path) if one.path.name else ""} for one in given
    ]
    for i, built in zip(studied, _built(given, programs), strict=True):
        kernel, sizes = given[i].kernel()
        rows[i] |= {"threads": int(kernel.threads), "smem_bytes": int(kernel.smem_bytes)}
        details[i] |= {
            "term": str(programs[i]),
            "timeline": _timeline_tree(_timeline(given[i], kernel, sizes)),
            "layouts": layouts(kernel),
        }
        if isinstance(built, TinyGpuError):
            details[i]["failed"] = str(built)
            continue
        spilled = built.cubin.spill_stores_bytes + built.cubin.spill_loads_bytes
        rows[i] |= {"registers": built.cubin.registers, "spilled_bytes": spilled}
        details[i]["ptx"] = built.ptx
    why = section.explanation
    return {
        "name": section.name,
        "title": section.title,
        "about": section.about,
        "facts": dict(section.facts),
        "links": dict(section.links),
        "found": {**section.found, "best": rows},
        "details": details,
        "words": _words(given, studied),
        "explanation": {"text": str(why), "peak": why.peak, "rate": why.rate, "unit": why.unit},
        "measured_on": _measured_on(section.timed),
        "why_not": section.why_not,
        "ties": ties,
    }


def _studied(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return which rows are shown in full."""
    measured = sorted((row["seconds"], i) for i, row in enumerate(rows) if row.get("seconds"))
    return sorted({*range(min(STUDIED, len(rows))), *(i for _, i in measured[:FASTEST])})


def _built(
    given: Sequence[Given], programs: Mapping[int, Term]
) -> tuple[Built | TinyGpuError, ...]:
    from tinygpu.codegen.run.build import build_many

    return build_many(
        [(term, given[i].device.arch, given[i].problem.sizes) for i, term in programs.items()]
    )


def _words(given: Sequence[Given], studied: Sequence[int]) -> dict[str, str]:
    """Return what ``tinygpu explain`` says of each two schedules of one machine, by "i j"."""
    from tinygpu.search.explain.comparisons import comparisons

    found: dict[str, str] = {}
    for machine in {given[i].machine.name: given[i].machine for i in studied}.values():
        mine = [i for i in studied if given[i].machine.name == machine.name]
        one = given[mine[0]]
        texts = comparisons([given[i].schedule for i in mine], machine, one.problem, one.device)
        found |= {f"{mine[i]} {mine[j]}": text for (i, j), text in texts.items()}
    return found


def _measured_on(timed: Sequence[Measurement | None]) -> str:
    """Say on what the measured were, or return ""."""
    ran = [one for one in timed if one is not None and one.seconds]
    if not ran:
        return ""
    held = ", power or heat held the clock down" if any(one.capped for one in ran) else ""
    clocks = sorted({one.clock_mhz for one in ran if one.clock_mhz})  # 0: it was not known
    mhz = " to ".join(dict.fromkeys(map(str, (*clocks[:1], *clocks[-1:]))))
    clock = f", {mhz} MHz" if mhz else ""
    return f"{ran[0].device}, driver {ran[0].driver}{clock}{held}"


def _timeline(given: Given, program: Program, sizes: Mapping[str, int]) -> Timeline:
    from tinygpu.search.time.timeline import timeline

    return timeline(program, sizes, given.device, iterations=3)


def _timeline_tree(line: Timeline) -> dict[str, Any]:
    """Return a timeline with its texts named once, its events as six columns of whole numbers.

    They are the row, the statement, the iteration, the start less that of the event before, the
    duration and the flight, in cycles; -1 where nothing flies.  So they take a quarter of what they
    took as rows, compressed.
    """
    rows = {text: i for i, text in enumerate(line.rows)}
    statements = {t: i for i, t in enumerate(dict.fromkeys(e.statement for e in line.events))}
    iterations = {t: i for i, t in enumerate(dict.fromkeys(e.iteration for e in line.events))}
    starts = [round(e.start_cycles) for e in line.events]
    events = [
        [rows[e.row] for e in line.events],
        [statements[e.statement] for e in line.events],
        [iterations[e.iteration] for e in line.events],
        [start - before for start, before in zip(starts, [0, *starts], strict=False)],
        [round(e.end_cycles - e.start_cycles) for e in line.events],
        [round(e.ready_cycles - e.end_cycles) if e.flies else -1 for e in line.events],
    ]
    return {
        "rows": list(rows),
        "statements": list(statements),
        "iterations": list(iterations),
        "events": events,
        "begins": [[text, round(cycles)] for text, cycles in line.begins],
        "cycles": round(line.cycles),
    }
