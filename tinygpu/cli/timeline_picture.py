"""The pictures of timelines: of units, and of roles with the ring between them.

Of roles the upper panel shows all rows until the ring has gone round some times, the lower one who
computes, over all tiles that were followed.  Products and uses of stages have the colour of their
tile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tinygpu.cli.palette import COMPONENTS, pale
from tinygpu.cli.pictures import columns_of
from tinygpu.isa.cp_async import COPIES

if TYPE_CHECKING:
    from tinygpu.devices.device import Device
    from tinygpu.search.time.timeline import Span, Timeline

__all__ = ["asynchronous_figure", "timeline_figure"]

_TILES = tuple(COMPONENTS[part][0] for part in ("tensor", "power", "l2", "fill"))
_TINTS, _HATCHES = (0.0, 0.5), ("", "////", "....", "xxxx")
_STAGE, _EDGE = "#5b6b7b", "#999999"
_UNITS = {
    "shared memory": "smem",
    "global memory": "l1",
    COPIES.name: "l1",
    "alu": "int",
    "loop": "int",
    "wait": "latency",
    "barrier": "latency",
}
"""Rows that show a component under another name."""

_FIXED = {
    "issue": ("#222222", "issue loads"),
    "load": (COMPONENTS["tma"][0], "copy engine busy"),
    "epilogue": (COMPONENTS["epilogue"][0], "epilogue: round, store"),
    "other": ("#d3d3d3", "product of another CTA"),
    "wait": ("#e8eaed", "wait for a barrier"),
    "more": ("#ffffff", "more steps, in the same rhythm"),
}
_ROUNDS = 3.2
"""Turns of the ring that the upper panel shows."""


def timeline_figure(line: Timeline, device: Device, title: str) -> Figure:
    """Draw when each unit works in the first iterations of a CTA, and what is on its way."""
    rows = list(line.rows)
    looks = _looks(line.events)
    ringed = any(map(_of_stage, line.events))
    figure = Figure(figsize=(12, 2.0 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    bars = _Bars(least=line.cycles / 700)
    flown: dict[str, float] = {}  # flights of different copies do not cover one another
    for event in line.events:
        y, name = rows.index(event.row), _verb(event.statement)
        if _of_stage(event):
            bars.stage(y, event, _STAGE)
            continue
        if event.flies and not (ringed and event.row == COPIES.name):  # stages show those
            lower = flown.setdefault(name, y + (-0.19, 0.19)[len(flown) % 2])
            bars.add(lower, event.end_cycles, event.ready_cycles, height=0.28,
                     color=looks[name]["facecolor"], alpha=0.3, linewidth=0)  # fmt: skip
        bars.add(y, event.start_cycles, event.end_cycles, height=0.66, **looks[name])
    bars.draw(axes)
    _frame(axes, rows, line, line.cycles * 1.01)
    handles: list[Artist] = [Patch(label=name, **look) for name, look in looks.items()]
    if flown:
        handles.append(Patch(color="#555555", alpha=0.3, label="in flight (latency)"))
    if ringed:
        handles += [*_stage_legend(_STAGE), Patch(color=_STAGE, label="stage read")]
    return _finished(figure, handles, title, device=device)


def asynchronous_figure(line: Timeline, device: Device, title: str) -> Figure:
    """Draw who does what, and what each stage holds, in the first tiles of a CTA."""
    rows = list(line.rows)
    storing = {event.row for event in line.events if event.statement == "epilogue"}
    below = [row for row in rows if row == "tensor cores" or row in storing] or rows
    tall = [0.30 * len(rows) + 0.35, 0.30 * len(below) + 0.35]
    figure = Figure(figsize=(13, sum(tall) + 2.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=tall)
    for axes, shown, until in ((upper, rows, _first(line)), (lower, below, line.cycles * 1.005)):
        _panel(axes, shown, line, until)
        _frame(axes, shown, line, until)
    handles: list[Artist] = []
    tiles = sorted({_tile(event) for event in line.events if event.iteration})
    for number, colour in enumerate(_TILES[: len(tiles)]):
        text = ", ".join(str(tile) for tile in tiles if tile % len(_TILES) == number)
        handles.append(Patch(color=colour, label=f"product, stage read: tile {shorten(text, 14)}"))
    handles += _stage_legend(_TILES[0])
    used = {_kind(event): event.statement for event in line.events}
    for kind, (colour, text) in _FIXED.items():
        if kind in used:
            edge = _EDGE if kind in ("more", "wait") else colour
            label = text.replace("more steps", used[kind])
            handles.append(Patch(facecolor=colour, edgecolor=edge, label=label))
    return _finished(figure, handles, title, device=device)


def _panel(axes: Axes, rows: Sequence[str], line: Timeline, until: float) -> None:
    """Draw the rows up to a time."""
    bars = _Bars(least=until / 1500)
    for event in _joined(line.events, 2 * bars.least):
        if event.row not in rows or event.start_cycles > until:
            continue
        y, kind, colour = rows.index(event.row), _kind(event), _TILES[_tile(event) % len(_TILES)]
        start, end, behind = event.start_cycles, event.end_cycles, kind in ("more", "wait")
        colour, _ = _FIXED.get(kind, (colour, ""))
        if _of_stage(event):
            bars.stage(y, event, colour)
        else:
            bars.add(y, start, end, height=0.34 if kind == "wait" else 0.74, facecolor=colour,
                     edgecolor=_EDGE if kind == "more" else "white", zorder=2 - behind)  # fmt: skip
    bars.draw(axes)


@dataclass(slots=True)
class _Bars:
    """Bars that are drawn together where they look alike: a figure has thousands.

    What is shorter than ``least`` would not be seen, and has that length.
    """

    least: float
    spans: dict[tuple[Any, ...], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, y: float, start: float, end: float, *, height: float, **look: Any) -> None:
        """Note a bar; a short one has no edge."""
        width = max(end - start, self.least)
        look = {"linewidth": 0.4 * (width > 6 * self.least), "zorder": 2, **look}
        self.spans[y, height, tuple(look.items())].append((start, width))

    def stage(self, y: float, event: Span, colour: str) -> None:
        """Note what a stage of the ring is: hatched while filled, pale while full, then read."""
        look: dict[str, Any] = {"height": 0.74, "color": colour, "linewidth": 0}
        if event.statement == "filling":
            look = {"height": 0.5, "facecolor": "white", "edgecolor": colour, "hatch": "////",
                    "linewidth": 0.3}  # fmt: skip
        elif event.statement == "full":
            look["color"] = pale(colour)
        self.add(y, event.start_cycles, event.end_cycles, **look)

    def draw(self, axes: Axes) -> None:
        """Draw all bars."""
        for (y, height, look), spans in self.spans.items():
            axes.broken_barh(spans, (y - height / 2, height), **dict(look))


def _stage_legend(colour: str) -> list[Artist]:
    return [
        Patch(facecolor="white", edgecolor=colour, hatch="////", label="stage being filled"),
        Patch(color=pale(colour), label="stage full"),
    ]


def _frame(axes: Axes, rows: Sequence[str], line: Timeline, until: float) -> None:
    """Name the rows, and mark where iterations or tiles begin."""
    for name, start in line.begins:
        if start < until:
            axes.axvline(start, color="#777777", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            axes.annotate(name, (start, 1), xycoords=("data", "axes fraction"), xytext=(2, 3),
                          textcoords="offset points", fontsize=8, color="#444444")  # fmt: skip
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(rows)), rows, fontsize=8.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, until)
    axes.grid(axis="x", zorder=0, color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _finished(figure: Figure, handles: list[Artist], title: str, *, device: Device) -> Figure:
    """Add the title and the legend; of marks whose names would collide the first keeps its own."""
    figure.axes[-1].set_xlabel(
        f"cycles since the CTA began (1000 cycles = {1e9 / device.clock_hz:.2f} us, "
        "longer where the power cap lowers the clock)"
    )
    figure.suptitle(fill(title, 110), fontsize=11)
    columns = min(6, columns_of(handles, figure.get_figwidth()))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8.5,
                  frameon=False)  # fmt: skip
    figure.draw_without_rendering()
    for axes in figure.axes:
        free = 0.0
        for text in list(axes.texts):
            box = text.get_window_extent()
            if box.x0 < free:
                text.remove()
            else:
                free = box.x1 + 4
    return figure


def _joined(events: Sequence[Span], gap_cycles: float) -> list[Span]:
    """Join bars of one kind, tile and row that would look like one."""
    found: list[Span] = []
    latest: dict[tuple[str, str, int], int] = {}
    for event in events:
        key = event.row, event.statement, _tile(event)
        last = found[latest[key]] if key in latest else None
        short = event.end_cycles - event.start_cycles < 2 * gap_cycles
        if last and short and event.start_cycles - last.end_cycles < gap_cycles:
            end = max(last.end_cycles, event.end_cycles)
            found[latest[key]] = replace(last, end_cycles=end)
        else:
            latest[key] = len(found)
            found.append(event)
    return found


def _first(line: Timeline) -> float:
    """Return until when the ring has gone round a few times, or all has ended."""
    freed = sorted(
        e.end_cycles for e in line.events if e.row.startswith("stage 0") and e.statement == "read"
    )
    rounds = int(_ROUNDS)
    if len(freed) <= rounds:
        return line.cycles * 1.005
    return freed[rounds - 1] + (_ROUNDS - rounds) * (freed[rounds] - freed[rounds - 1])


def _tile(event: Span) -> int:
    first = event.iteration.partition(" ")[0].partition("=")[2]
    return int(first) if first else 0


def _kind(event: Span) -> str:
    return "more" if event.statement.endswith("more steps") else event.statement.partition(" ")[0]


def _of_stage(event: Span) -> bool:
    return event.statement in ("filling", "full", "read")


def _looks(events: Sequence[Span]) -> dict[str, dict[str, Any]]:
    """Return how each statement looks: its unit's colour, by turns paler, then hatched."""
    looks: dict[str, dict[str, Any]] = {}
    met: dict[str, int] = defaultdict(int)
    for event in events:
        name = _verb(event.statement)
        if name in looks or _of_stage(event):
            continue
        colour, _ = COMPONENTS.get(_UNITS.get(event.row, event.row), (_STAGE, ""))
        turn, tint = divmod(met[colour], len(_TINTS))
        met[colour] += 1
        looks[name] = {"facecolor": pale(colour, _TINTS[tint]), "edgecolor": "white",
                       "hatch": _HATCHES[turn % len(_HATCHES)]}  # fmt: skip
    return looks


def _verb(statement: str) -> str:
    """Return what a statement's picture is called: what it writes, and the instruction."""
    target, equals, rest = statement.partition(" = ")
    if not equals:
        return statement
    name = target.partition("@")[0].partition("[")[0]
    return f"{rest.partition('(')[0]} {name}"
