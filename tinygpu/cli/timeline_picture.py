"""The picture of an asynchronous timeline: the ring filling, then the rhythm of the tiles.

The upper panel shows all rows until the ring has gone round some times, the lower one who computes,
over all tiles that were followed.  Products and uses of stages have the colour of their tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from tinygpu.device import Device
    from tinygpu.search.timeline import Event, Timeline

__all__ = ["asynchronous_figure"]

_TILES = ("#4477aa", "#ee6677", "#228833", "#aa3377")
_PALE = ("#b9cfe4", "#f8c7cc", "#b0dbb5", "#e0b8d2")
_FIXED = {
    "issue": ("#222222", "issue loads"),
    "load": ("#66707c", "copy engine busy"),
    "epilogue": ("#ccbb44", "epilogue: round, store"),
    "wait": ("#e8eaed", "wait for a barrier"),
    "more": ("#ffffff", "more steps, in the same rhythm"),
}
_ROUNDS = 3.2
"""Turns of the ring that the upper panel shows."""


def asynchronous_figure(line: Timeline, device: Device, title: str) -> Figure:
    """Draw who does what, and what each stage holds, in the first tiles of a CTA."""
    rows = list(line.rows)
    below = [row for row in rows if row.startswith(("tensor", "consumer", "epilogue"))]
    tall = [0.30 * len(rows) + 0.35, 0.30 * len(below) + 0.35]
    figure = Figure(figsize=(13, sum(tall) + 2.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=tall)
    _panel(upper, rows, line, _first(line))
    _panel(lower, below, line, line.cycles * 1.005)
    upper.set_title(title, fontsize=11, pad=18)
    lower.set_xlabel(
        f"cycles since the CTA began (1000 cycles = {1e9 / device.clock_hz:.2f} us, "
        "longer where the power cap lowers the clock)"
    )
    handles = [Patch(color=_TILES[n], label=f"product, stage read: tile {n}") for n in _shown(line)]
    handles += [Patch(color=_PALE[0], label="stage full"),
                Patch(facecolor="white", edgecolor=_TILES[0], hatch="////",
                      label="stage being filled")]  # fmt: skip
    used = {_kind(e) for e in line.events}
    for kind, (colour, text) in _FIXED.items():
        if kind in used:
            edge = "#999999" if kind in ("more", "wait") else colour
            handles.append(Patch(facecolor=colour, edgecolor=edge, label=text))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8.5,
                  frameon=False)  # fmt: skip
    return figure


def _panel(axes: Axes, rows: Sequence[str], line: Timeline, until: float) -> None:
    """Draw the rows up to a time."""
    number = {row: n for n, row in enumerate(rows)}
    least = until / 1500  # what is shorter would not be seen
    axes.set_axisbelow(True)
    for event in _joined(line.events, 2 * least):
        if event.row not in number or event.start_cycles > until:
            continue
        y, kind, tile = number[event.row], _kind(event), _tile(event) % len(_TILES)
        start, width = event.start_cycles, max(event.end_cycles - event.start_cycles, least)
        edge = 0.4 if width > 5 * least else 0.0
        if kind == "filling":
            axes.barh(y, width, left=start, height=0.5, facecolor="white", edgecolor=_TILES[tile],
                      hatch="////", linewidth=0.3)  # fmt: skip
        elif kind == "more":
            axes.barh(y, width, left=start, height=0.7, facecolor="white", edgecolor="#999999",
                      linewidth=0.5)  # fmt: skip
            if event.row.startswith(("consumer", "tensor")):
                axes.text(start + width / 2, y, event.statement, ha="center", va="center",
                          fontsize=7, color="#555555")  # fmt: skip
        else:
            colour = _FIXED[kind][0] if kind in _FIXED else _TILES[tile]
            colour = _PALE[tile] if kind == "full" else colour
            height = 0.34 if kind == "wait" else 0.74
            axes.barh(y, width, left=start, height=height, color=colour, edgecolor="white",
                      linewidth=edge, zorder=1 if kind == "wait" else 2)  # fmt: skip
    for name, start in line.begins:
        if start < until:
            axes.axvline(start, color="#777777", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            axes.annotate(name, (start, 1), xycoords=("data", "axes fraction"), xytext=(2, 3),
                          textcoords="offset points", fontsize=8, color="#444444")  # fmt: skip
    axes.set_yticks(range(len(rows)), rows, fontsize=8.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, until)
    axes.grid(axis="x", zorder=0, color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _joined(events: Sequence[Event], gap_cycles: float) -> list[Event]:
    """Join bars of one kind, tile and row that would look like one."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else event
        alike = (last.row, last.statement, _tile(last)) == (
            event.row,
            event.statement,
            _tile(event),
        )
        short = event.end_cycles - event.start_cycles < 2 * gap_cycles
        near = event.start_cycles - last.end_cycles < gap_cycles
        if found and alike and short and near and event.iteration:
            found[-1] = replace(last, end_cycles=max(last.end_cycles, event.end_cycles))
        else:
            found.append(event)
    return found


def _first(line: Timeline) -> float:
    """Return until when the ring has gone round a few times, or all has ended."""
    freed = sorted(
        e.end_cycles for e in line.events if e.row == "stage 0" and e.statement == "read"
    )
    rounds = int(_ROUNDS)
    if len(freed) <= rounds:
        return line.cycles * 1.005
    return freed[rounds - 1] + (_ROUNDS - rounds) * (freed[rounds] - freed[rounds - 1])


def _shown(line: Timeline) -> list[int]:
    return sorted({_tile(e) for e in line.events if e.iteration})[: len(_TILES)]


def _tile(event: Event) -> int:
    first = event.iteration.partition(" ")[0].partition("=")[2]
    return int(first) if first else 0


def _kind(event: Event) -> str:
    return "more" if event.statement.endswith("more steps") else event.statement.partition(" ")[0]
