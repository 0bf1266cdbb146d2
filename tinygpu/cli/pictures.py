"""The picture of predicted against measured times, and figures as files.

``encoded`` turns a figure into the bytes of a file.  matplotlib is loaded here, so only commands
that draw import this module.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import cycle
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from tinygpu.cli.palette import COLOURS, GREY, GRID, GROUND, MARKS

__all__ = [
    "Point",
    "columns_of",
    "encoded",
    "measured_figure",
    "number_axis",
]

_LINES = ("--", ":", "-.")
_LOOKS = 2 * len(COLOURS)  # problems that look different


class Point(NamedTuple):
    """A measured schedule; its machine has a mark and its problem a colour."""

    predicted_seconds: float
    measured_seconds: float
    machine: str
    problem: str


def encoded(figure: Figure, form: str) -> bytes:
    """Return a figure as a png, svg or pdf: text is text, and equal figures give equal bytes."""
    buffer = io.BytesIO()
    undated: dict[str, None] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tinygpu", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=form, dpi=130, facecolor="white", metadata=undated,
                       bbox_inches="tight")  # fmt: skip
    return buffer.getvalue()


def columns_of(handles: Sequence[Artist], inches: float) -> int:
    """Return how many columns of a legend fit into a width."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    return max(1, min(8, int(72 * inches / (5.2 * longest + 42))))


def measured_figure(
    points: Sequence[Point], title: str, *, peers: Sequence[tuple[str, str, float]] = ()
) -> Figure:
    """Draw measured over predicted seconds, the diagonal, and 15 % on both sides of it.

    ``peers`` are (problem, name, seconds), each a line over the problem's points.
    """
    shown = sorted(points)
    problems = list(dict.fromkeys(point.problem for point in shown))
    machines = list(dict.fromkeys(point.machine for point in shown))
    marks = dict(zip(machines, cycle(MARKS), strict=False))
    lines = dict(zip(dict.fromkeys(name for _, name, _ in peers), cycle(_LINES), strict=False))
    every = [t for p in shown for t in p[:2]] + [seconds for _, _, seconds in peers]
    scale, unit = _unit(min(every))
    low, high = scale * min(every) / 1.15, scale * max(every) * 1.15
    entries = 3 + min(len(problems), _LOOKS + 1) + len(machines) + len(lines)
    widest = max(map(len, [*problems, *machines, *lines, "measured = predicted"]))
    height = max(6.0, 0.19 * entries + 1)
    figure = Figure(figsize=(height + 1.0 + 0.078 * widest, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal",
             xlabel=f"predicted [{unit}]", ylabel=f"measured [{unit}]")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        number_axis(axis, low, high)
    band = axes.fill_between([low, high], [low * 0.85, high * 0.85], [low * 1.15, high * 1.15],
                             color=GROUND, zorder=0, label="within 15 %")  # fmt: skip
    diagonal = axes.plot([low, high], [low, high], color=GREY, label="measured = predicted")
    legend: list[Artist] = [band, *diagonal]
    for number, problem in enumerate(problems):
        look = _look(number)
        own = [point for point in shown if point.problem == problem]
        for machine in machines:
            mine = [point for point in own if point.machine == machine]
            axes.plot(
                [point.predicted_seconds * scale for point in mine],
                [point.measured_seconds * scale for point in mine],
                linestyle="", marker=marks[machine], zorder=3, **look,
            )  # fmt: skip
        if number <= _LOOKS:
            others = f"{len(problems) - _LOOKS} more"
            label = others if number == _LOOKS else problem
            face, edge = look["markerfacecolor"], look["color"]
            legend.append(Patch(facecolor=face, edgecolor=edge, label=label))
        ends = own[0].predicted_seconds * scale / 1.1, own[-1].predicted_seconds * scale * 1.1
        for _, name, seconds in (peer for peer in peers if peer[0] == problem):
            axes.plot((low, high) if len(problems) == 1 else ends, [seconds * scale] * 2,
                      lines[name], color=look["color"], linewidth=1.3)  # fmt: skip
    legend += [Line2D([], [], linestyle="", marker=marks[machine], color=GREY, label=machine)
               for machine in machines]  # fmt: skip
    for name, line in lines.items():
        legend += axes.plot([], [], line, color=GREY, label=name)
    axes.grid(zorder=0, color=GRID, linewidth=0.6)
    within = sum(abs(p.measured_seconds / p.predicted_seconds - 1) <= 0.15 for p in shown)
    figure.suptitle(f"{fill(title, 80)}\n{within} of {len(shown)} within 15 %", fontsize=11)
    axes.legend(handles=legend, loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8.5,
                frameon=False)  # fmt: skip
    return figure


def _look(number: int) -> dict[str, Any]:
    """Return how the points of a problem look: full, then open ones, then all others alike."""
    turn, place = divmod(number, len(COLOURS))
    colour = COLOURS[place] if number < _LOOKS else GREY
    face = "white" if turn == 1 else colour
    edge = "white" if face == colour else colour
    return {"color": colour, "markerfacecolor": face, "markeredgecolor": edge, "markersize": 7}


def number_axis(axis: Axis, low: float, high: float) -> None:
    """Put round numbers on a logarithmic axis."""
    axis.set_major_locator(FixedLocator(_ticks(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers that stand well apart on a logarithmic axis."""
    if high / low < 5:
        found = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [float(t) for t in found if low <= t <= high]
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        every = [digit * 10.0**exponent for exponent in exponents for digit in digits]
        inside = [t for t in every if low <= t <= high]
        if len(inside) <= 8:
            break
    return inside[:: 1 + len(inside) // 9]


def _unit(seconds: float) -> tuple[float, str]:
    """Return the factor and the unit in which a time is 1 or more."""
    for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or math.isclose(factor, 1e6):
            return factor, name
    raise AssertionError(seconds)
