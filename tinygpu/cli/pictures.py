"""Pictures: the predicted times, a timeline, a layout, predicted against measured.

Each function returns a matplotlib figure; ``png`` turns it into the bytes of a file.  matplotlib is
loaded here, so only commands that draw import this module.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # files only: no window system is needed

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tinygpu.cli.console import time_text

if TYPE_CHECKING:
    from tinygpu.device import Device
    from tinygpu.search.best import Ranked
    from tinygpu.search.timeline import Timeline

__all__ = ["measured_figure", "png", "timeline_figure", "times_figure"]

_COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44aa99",
    "#882255", "#999933", "#332288", "#777777",
)  # fmt: skip
_MARKS = "osD^vP*X<>hd"
_NAMED = 5  # decisions in a schedule's name
_COMPONENTS = (
    "fma", "issue", "smem", "l1", "int", "latency", "l2", "dram", "fetch", "fp64", "cvt", "launch",
    "sfu", "shuffle", "spills", "tensor", "power", "fill", "tma", "epilogue",
)  # fmt: skip
"""Components in the order of their colours and marks, which every picture shares."""


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor="white")
    return buffer.getvalue()


def times_figure(best: Sequence[Ranked], title: str) -> Figure:
    """Draw each schedule's predicted time, and the time that each component alone would take.

    A component below a hundredth of the slowest schedule's time is left out.  A schedule's name is
    its values of the first decisions in which the schedules differ.
    """
    scale, unit = _unit(max(float(one.seconds) for one in best))
    totals = [float(one.seconds) * scale for one in best]
    widest = max(totals)
    every = dict.fromkeys(part for one in best for part in one.breakdown.parts)
    largest = {
        part: max(float(one.breakdown.parts.get(part, 0.0)) for one in best) * scale
        for part in every
    }
    parts = sorted((p for p in every if largest[p] >= 0.01 * widest), key=lambda p: -largest[p])
    named = [n for n, _ in best[0].schedule.decisions if len({o.schedule[n] for o in best}) > 1]
    named = named[:_NAMED]
    labels = [" ".join(str(one.schedule[n]) for n in named) for one in best]
    figure = Figure(figsize=(9.5, 1.9 + 0.34 * len(best)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(best))
    axes.barh(places, totals, height=0.62, color="#e3e6ea", zorder=1)
    for place, one in zip(places, best, strict=True):
        for number, part in enumerate(parts):
            mark, colour = _look(part)
            value = float(one.breakdown.parts.get(part, 0.0)) * scale
            is_worst = part == one.breakdown.bottleneck
            axes.plot(
                value,
                place + 0.15 * (number % 3 - 1),  # equal times do not cover one another
                mark,
                color=colour,
                markersize=9 if is_worst else 6.5,
                markeredgecolor="black" if is_worst else "white",
                markeredgewidth=1.1 if is_worst else 0.5,
                zorder=4 if is_worst else 3,
            )
        marked = max(totals[place], *(one.breakdown.parts[p] * scale for p in one.breakdown.parts))
        axes.text(marked + 0.018 * widest, place, time_text(float(one.seconds)), va="center",
                  fontsize=8.5)  # fmt: skip
    numbers = [f"{label}  #{place + 1}" for place, label in enumerate(labels)]
    axes.set_yticks(list(places), numbers, fontsize=8.5)
    axes.set_ylim(len(best) - 0.4, -0.6)
    axes.set_xlim(0, 1.16 * max([widest, *largest.values()]))
    axes.set_xlabel(f"time [{unit}]")
    axes.set_ylabel(f"schedule, best first: {', '.join(named)}" if named else "schedule")
    axes.set_title(title, fontsize=11)
    axes.grid(axis="x", zorder=0, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    handles: list[Patch | Line2D] = [Patch(color="#e3e6ea", label="predicted time")]
    handles += [
        Line2D([], [], linestyle="", marker=_look(part)[0], color=_look(part)[1], markersize=6.5,
               label=part)
        for part in parts
    ]  # fmt: skip
    handles.append(
        Line2D([], [], linestyle="", marker="o", markersize=9, color="white",
               markeredgecolor="black", label="bottleneck")
    )  # fmt: skip
    figure.legend(handles=handles, loc="outside right upper", fontsize=8.5, frameon=False,
                  title="bar: all together\nmark: a part alone", title_fontsize=8.5)  # fmt: skip
    return figure


def timeline_figure(line: Timeline, device: Device, title: str) -> Figure:
    """Draw when each unit works in the first iterations of a CTA, and copies in flight."""
    rows = list(line.rows)
    number = {row: i for i, row in enumerate(rows)}
    names = list(dict.fromkeys(_verb(e.statement) for e in line.events))
    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    figure = Figure(figsize=(12, 1.9 + 0.52 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    least = line.cycles / 700  # what is shorter would not be seen
    axes.set_axisbelow(True)
    flown: dict[str, float] = {}  # flights of different copies do not cover one another
    for event in line.events:
        y, name = number[event.row], _verb(event.statement)
        width = max(event.end_cycles - event.start_cycles, least)
        if event.flies:
            lower = flown.setdefault(name, y + (-0.19, 0.19)[len(flown) % 2])
            axes.barh(lower, event.ready_cycles - event.end_cycles, left=event.end_cycles,
                      height=0.28, color=colour[name], alpha=0.3, linewidth=0)  # fmt: skip
        edge = 0.4 if width > 8 * least else 0.0
        axes.barh(y, width, left=event.start_cycles, height=0.66, color=colour[name],
                  edgecolor="white", linewidth=edge)  # fmt: skip
    for iteration, start in line.begins:
        axes.axvline(start, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        axes.annotate(iteration, (start, 1), xycoords=("data", "axes fraction"), xytext=(3, 3),
                      textcoords="offset points", fontsize=8, color="#555555")  # fmt: skip
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlim(0, line.cycles * 1.01)
    axes.set_xlabel(
        f"cycles since the CTA began (1000 cycles = {1e9 / device.clock_hz:.2f} us, "
        "longer where the power cap lowers the clock)"
    )
    axes.set_title(title, fontsize=11, pad=18)
    axes.grid(axis="x", zorder=0, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=colour[name], label=name) for name in names]
    if flown:
        handles.append(Patch(color="#555555", alpha=0.3, label="in flight (latency)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8.5,
                  frameon=False)  # fmt: skip
    return figure


def measured_figure(
    points: Sequence[tuple[float, float]], title: str, *, peer_seconds: float | None = None
) -> Figure:
    """Draw (predicted, measured) seconds, the diagonal, and 15 % on both sides of it."""
    scale, unit = _unit(max(max(p) for p in points))
    figure = Figure(figsize=(6.8, 6.2), layout="constrained")
    axes = figure.add_subplot()
    every = [t * scale for p in points for t in p]
    if peer_seconds:
        every.append(peer_seconds * scale)
    low, high = min(every) / 1.12, max(every) * 1.12
    axes.fill_between([low, high], [low * 0.85, high * 0.85], [low * 1.15, high * 1.15],
                      color="#dfe6ee", zorder=0, label="within 15 %")  # fmt: skip
    axes.plot([low, high], [low, high], color="#666666", linewidth=1, label="measured = predicted")
    across, up = [p * scale for p, _ in points], [t * scale for _, t in points]
    axes.plot(across, up, "o", color=_COLOURS[0], markersize=6, markeredgecolor="white",
              label="a schedule")  # fmt: skip
    if peer_seconds:
        axes.axhline(peer_seconds * scale, color=_COLOURS[1], linestyle="--", linewidth=1.2,
                     label=f"cuBLAS, {peer_seconds * scale:.3g} {unit}")  # fmt: skip
    if high / low > 5:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    within = sum(abs(t / p - 1) <= 0.15 for p, t in points)
    axes.set_title(f"{title}\n{within} of {len(points)} within 15 %", fontsize=11)
    axes.set_xlabel(f"predicted [{unit}]")
    axes.set_ylabel(f"measured [{unit}]")
    axes.grid(zorder=0, color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8.5, frameon=False, loc="upper left")
    return figure


def _unit(seconds: float) -> tuple[float, str]:
    """Return the factor and the unit in which a time is 1 or more."""
    for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or math.isclose(factor, 1e6):
            return factor, name
    raise AssertionError(seconds)


def _look(component: str) -> tuple[str, str]:
    """Return a component's mark and colour."""
    number = _COMPONENTS.index(component) if component in _COMPONENTS else len(_COMPONENTS)
    turn, colour = divmod(number, len(_COLOURS))
    return _MARKS[(colour + turn) % len(_MARKS)], _COLOURS[colour]


def _verb(statement: str) -> str:
    """Return what a statement's picture is called: what it writes, and the instruction."""
    target, equals, rest = statement.partition(" = ")
    if not equals:
        return statement
    name = target.partition("@")[0].partition("[")[0]
    return f"{rest.partition('(')[0]} {name}"
