"""The picture of a bundle: how slow the kernel that serves a shape is, against the fastest there.

Every layer, which is a choice of the sizes that are fixed, has a panel: slowdowns over m (the axis
of the bundle's rules), the intervals of the kernels above them, and what cuBLASLt takes below.  Of
more than ``MOST_PANELS`` layers those are drawn in which what serves is slowest.

The times are the second measurement, where there is one; else the first; else the model's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from tinygpu.cli.palette import COLOURS, GREY, GRID, pale
from tinygpu.cli.pictures import columns_of, number_axis
from tinygpu.codegen.runtime.bundle import FIRST_CALL
from tinygpu.search.tuning.dispatching import served_of
from tinygpu.search.tuning.shape import Shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tinygpu.codegen.runtime.bundle import Bundle

__all__ = ["MOST_PANELS", "Panel", "bundle_figure", "panels_of", "seen_in", "spaced"]

MOST_PANELS = 4
_WIDTH = 9.0
_PEER = COLOURS[8]
_DASHES = ("--", ":", "-.")
_NAME_POINTS = 8.0
_LEAST_TOP = 0.05
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Panel:
    """A layer's shapes, in order of m, and the slowdown of each rule at each of them.

    ``upto`` are the last m of the intervals of the drawn rule, and ``kernels`` the names of what
    serves them; ``ahead`` is cuBLASLt's time over the served kernel's, NaN where it was not
    measured.
    """

    title: str
    m: tuple[int, ...]
    slowdowns: Mapping[str, Numbers]
    upto: tuple[int, ...]
    kernels: tuple[str, ...]
    ahead: Numbers


def seen_in(tree: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return where a bundle's rows have times and the least of them, and what these times are."""
    rows = tree["shapes"]
    on = tree.get("measured_on") or {}
    gpu = f"on {on.get('device', 'a GPU')}"
    if all(row.get("scored") and row.get("scored_best") for row in rows):
        return "scored", "scored_best", f"measured a second time {gpu}"
    if all(row["measured"] for row in rows):
        return "measured", "best", f"measured once {gpu}"
    return "predicted", "best", "by the time model, nothing was measured"


def panels_of(bundle: Bundle) -> list[Panel]:
    """Return the panels of a bundle, by the other sizes, with the rule that it was read with."""
    tree = bundle.tree
    others = [axis for axis in bundle.axes if axis != bundle.along]
    rows = sorted(tree["shapes"], key=lambda row: [row[axis] for axis in (*others, bundle.along)])
    where, least, _ = seen_in(tree)
    times = _times([row[where] for row in rows])
    chosen_from = _times([row["measured"] or row["predicted"] for row in rows])
    best = np.array([row[least] or math.nan for row in rows])
    shapes = [Shape(tuple((axis, row[axis]) for axis in bundle.axes), bundle.along) for row in rows]
    served = {rule: served_of(table, shapes, chosen_from) for rule, table in tree["rules"].items()}
    served[FIRST_CALL] = [int(j) for j in chosen_from.argmin(axis=1)]
    at = np.arange(len(rows))
    own = {rule: times[at, numbers] for rule, numbers in served.items()}
    peers = np.array([row.get("peer_seconds") or math.nan for row in rows])
    panels = []
    for pair in dict.fromkeys(shape.at for shape in shapes):
        here = [i for i in at if shapes[i].at == pair]
        here = list({shapes[i].size: i for i in here}.values())  # layers of one size are one
        names = dict.fromkeys(rows[i]["layer"] for i in at if shapes[i].at == pair)
        upto, kernels = _intervals(
            bundle, pair, [shapes[i].size for i in here], [served[bundle.rule][i] for i in here]
        )
        panels.append(
            Panel(
                ": ".join(
                    filter(
                        None,
                        [
                            ", ".join(filter(None, names)),
                            ", ".join(f"{a} = {s}" for a, s in zip(others, pair, strict=True)),
                        ],
                    )
                )
                or tree["operation"].partition(":")[0],
                tuple(shapes[i].size for i in here),
                {rule: _finite(seconds[here] / best[here]) for rule, seconds in own.items()},
                upto,
                tuple(bundle.names[j] for j in kernels),
                _finite(peers[here] / own[bundle.rule][here]),
            )
        )
    return panels


def _intervals(
    bundle: Bundle, pair: tuple[int, ...], m: Sequence[int], served: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ends of the intervals of a layer and their kernels."""
    for row in bundle.tree["rules"].get(bundle.rule, ()):
        if tuple(row["at"]) == pair:
            upto, kernels = row["upto"], row["kernels"]
            break
    else:  # the rule has no table: as it is at the shapes
        upto, kernels = m, served
    last = [i for i in range(len(upto)) if i + 1 == len(upto) or kernels[i + 1] != kernels[i]]
    return tuple(int(upto[i]) for i in last), tuple(int(kernels[i]) for i in last)


def _times(rows: Sequence[Sequence[float | None]]) -> Numbers:
    return np.array([[math.inf if t is None else t for t in row] for row in rows])


def _finite(numbers: Numbers) -> Numbers:
    return np.where(np.isfinite(numbers), numbers, math.nan)


def bundle_figure(bundle: Bundle) -> Figure:
    """Draw the slowdown of what serves each shape, over m, and that of the other rules."""
    every = panels_of(bundle)
    worst = [_worst(panel, bundle.rule) for panel in every]
    slowest = sorted(range(len(every)), key=lambda i: -worst[i])[:MOST_PANELS]
    figure = _panelled(bundle, [every[i] for i in sorted(slowest)])
    tree = bundle.tree
    count = len(bundle.names)
    kernels = f"{count} kernels" if count > 1 else "1 kernel"
    told = f"{kernels} for {tree['device']}, rule {bundle.rule}; {seen_in(tree)[2]}"
    if len(every) > MOST_PANELS:
        told += f"; the {MOST_PANELS} slowest of {len(every)} layers"
    figure.suptitle(f"{fill(tree['operation'], 95)}\n{fill(told, 95)}", fontsize=10.5)
    return figure


def _panelled(bundle: Bundle, panels: Sequence[Panel]) -> Figure:
    """Draw a panel for each layer: names of kernels, slowdowns, cuBLASLt."""
    peers = any(np.isfinite(panel.ahead).any() for panel in panels)
    alone = len(panels) == 1
    upright = any(_across(panel) * len(panel.kernels) > 0.7 * 72 * _WIDTH for panel in panels)
    parts = [0.6 if upright else 0.38, 3.2 if alone else 1.9, *([1.0] if peers else [])]
    heights = parts * len(panels)
    looks = _looks(panels, bundle.rule)
    legend = _legend(looks, panels, peers=peers)
    columns = columns_of(legend, _WIDTH)
    height = sum(heights) + 0.45 * len(panels) + 1.2 + 0.2 * math.ceil(len(legend) / columns)
    close = ConstrainedLayoutEngine(hspace=0.02, h_pad=0.03)
    figure = Figure(figsize=(_WIDTH, height), layout=close)
    every = figure.subplots(len(heights), 1, squeeze=False, sharex=True,
                            gridspec_kw={"height_ratios": heights})[:, 0]  # fmt: skip
    low, high = _span([m for panel in panels for m in panel.m])
    for number, panel in enumerate(panels):
        strip, axes, *below = every[number * len(parts) : (number + 1) * len(parts)]
        strip.set_title(f"{panel.title}; {_summary(panel, bundle.rule)}", loc="left", fontsize=9.5)
        _draw_slowdowns(axes, panel, rule=bundle.rule, looks=looks)
        for one in below:
            _draw_peer(one, panel)
        for one in (axes, *below):
            for end in panel.upto[:-1]:
                one.axvline(end + 0.5, color=GREY, linewidth=0.8, zorder=1)
    _number_m(every[-1], bundle, low=low, high=high)
    figure.legend(handles=legend, loc="outside lower center", ncols=columns, fontsize=8.5,
                  frameon=False, title="a line that leaves its panel at the top is slower still",
                  title_fontsize=8.5)  # fmt: skip
    figure.draw_without_rendering()  # now the panels' widths are known
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(bundle.names)}
    for number, panel in enumerate(panels):
        _draw_names(
            every[number * len(parts)], panel, colours=colours, span=(low, high), upright=upright
        )
    return figure


def _summary(panel: Panel, rule: str) -> str:
    mine = panel.slowdowns[rule]
    mine = mine[np.isfinite(mine)]
    if not len(mine):
        return "no time of what serves it"
    return f"mean {math.exp(np.log(mine).mean()):.4f}, worst {mine.max():.3f}"


def _looks(panels: Sequence[Panel], rule: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a label and a look for each rule that draws a line; equal lines are one."""
    kinds: dict[bytes, list[str]] = {}
    for name in (rule, *(name for name in panels[0].slowdowns if name != rule)):
        line = np.concatenate([panel.slowdowns[name] for panel in panels])
        kinds.setdefault(line.tobytes(), []).append(name)
    found = {}
    for number, (first, *same) in enumerate(kinds.values()):
        label = first + (f" (and {', '.join(same)})" if same else "")
        if not number:
            look: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1.8, "marker": "o"}
            found[first] = label, {**look, "markersize": 4, "zorder": 5}
        else:
            dash = _DASHES[number % len(_DASHES)]
            look = {"color": COLOURS[number], "linestyle": dash, "linewidth": 1.0, "zorder": 3}
            found[first] = label, look
    return found


def _legend(
    looks: Mapping[str, tuple[str, dict[str, Any]]],
    panels: Sequence[Panel],
    *,
    peers: bool,
) -> list[Artist]:
    fastest = "the fastest kernel of each shape"
    handles: list[Artist] = [
        Line2D([], [], **{k: v for k, v in look.items() if k != "zorder"}, label=label)
        for label, look in looks.values()
    ]
    handles.append(Line2D([], [], color="black", linewidth=1.0, label=fastest))
    if any(len(panel.upto) > 1 for panel in panels):
        handles.append(Line2D([], [], color=GREY, linewidth=0.8, marker="|", markersize=9,
                              linestyle="", label="another kernel serves"))  # fmt: skip
    if peers:
        handles.append(Line2D([], [], color=_PEER, marker="s", markersize=3.5, linewidth=1.4,
                              label="cuBLASLt's time over ours"))  # fmt: skip
    return handles


def _draw_slowdowns(
    axes: Axes, panel: Panel, *, rule: str, looks: Mapping[str, tuple[str, dict[str, Any]]]
) -> None:
    for name, (_, look) in looks.items():
        axes.plot(panel.m, panel.slowdowns[name], **look)
    axes.axhline(1.0, color="black", linewidth=1.0, zorder=2)
    top = _top(panel, rule)
    axes.set_ylim(1 - 0.06 * (top - 1), top)
    axes.set_ylabel("slowdown", fontsize=9)
    _plain(axes)


def _top(panel: Panel, rule: str) -> float:
    """Return where a panel ends: above all that serves, and above most of the other rules."""
    mine = panel.slowdowns[rule]
    others = np.concatenate([line for name, line in panel.slowdowns.items() if name != rule])
    most = [1 + _LEAST_TOP]
    most += [float(np.nanmax(mine))] if np.isfinite(mine).any() else []
    most += [float(np.nanquantile(others, 0.9))] if np.isfinite(others).any() else []
    return 1 + 1.12 * (max(most) - 1)


def _draw_peer(axes: Axes, panel: Panel) -> None:
    axes.plot(panel.m, panel.ahead, color=_PEER, marker="s", markersize=3.5, linewidth=1.4,
              zorder=4)  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=1.0, zorder=2)
    known = panel.ahead[np.isfinite(panel.ahead)]
    low, high = min([0.95, *known]), max([1.05, *known])
    room = 0.08 * (high - low)
    axes.set_ylim(low - room, high + room)
    axes.set_ylabel("cuBLASLt\n/ ours", fontsize=9)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(axis="y", zorder=0, color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5)
    axes.locator_params(axis="y", nbins=5)


def _span(m: Sequence[int]) -> tuple[float, float]:
    """Return the ends of the axis of m."""
    room = max((max(m) / min(m)) ** 0.015, 1.02)
    return (min(m) / room, max(m) * room) if max(m) > min(m) else (min(m) / 2, max(m) * 2)


def _number_m(axes: Axes, bundle: Bundle, *, low: float, high: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    number_axis(axes.xaxis, low, high)
    axes.set_xlabel(bundle.along, fontsize=9.5)


def _draw_names(
    strip: Axes,
    panel: Panel,
    *,
    colours: Mapping[str, str],
    span: tuple[float, float],
    upright: bool,
) -> None:
    """Draw the kernels' intervals as a band, and above it their names, none over another."""
    low, high = span
    ends = [low, *(end + 0.5 for end in panel.upto[:-1]), high]
    inch = strip.figure.dpi / strip.get_window_extent().height
    band, text = 0.1 * inch, 0.2 * inch
    strip.set_ylim(0, 1)
    strip.axis("off")
    for name, left, right in zip(panel.kernels, ends[:-1], ends[1:], strict=True):
        strip.axvspan(left, right, 0.0, band, facecolor=pale(colours[name], 0.45),
                      edgecolor="white", linewidth=0.8)  # fmt: skip
    points = strip.get_window_extent().width * 72 / strip.figure.dpi
    each = 1.35 * _NAME_POINTS if upright else _across(panel)
    middles = [_share(math.sqrt(a * b), low, high) for a, b in pairwise(ends)]
    widths = [_share(b, low, high) - _share(a, low, high) for a, b in pairwise(ends)]
    fit = int(points / each)
    named = sorted(sorted(range(len(widths)), key=lambda i: -widths[i])[:fit])
    places = spaced([points * middles[i] for i in named], each, points)
    for i, place in zip(named, places, strict=True):
        strip.plot([middles[i], place / points], [band, text], color=GREY, linewidth=0.6,
                   transform=strip.transAxes, clip_on=False)  # fmt: skip
        strip.text(place / points, text + 0.02 * inch, panel.kernels[i], ha="center", va="bottom",
                   transform=strip.transAxes, rotation=90 if upright else 0,
                   fontsize=_NAME_POINTS)  # fmt: skip


def _across(panel: Panel) -> float:
    """Return the room of a kernel's name, in points."""
    return 0.65 * _NAME_POINTS * max(map(len, panel.kernels)) + 4


def _share(value: float, low: float, high: float) -> float:
    """Return how far along a logarithmic axis a value lies, from 0 to 1."""
    return math.log(value / low) / math.log(high / low)


def spaced(wanted: Sequence[float], each: float, room: float) -> list[float]:
    """Return places near the wanted ones, which are in order, at least ``each`` apart.

    They lie within ``room``, half of ``each`` from its ends.

    >>> spaced([10.0, 12.0, 50.0], 10, 100)
    [6.0, 16.0, 50.0]
    """
    blocks: list[tuple[float, int]] = []  # the sum of where a block's first wants to be, its length
    for place in wanted:
        total, count = place, 1
        while blocks and blocks[-1][0] / blocks[-1][1] + each * blocks[-1][1] > total / count:
            before, many = blocks.pop()
            total, count = before + total - each * many * count, many + count
        blocks.append((total, count))
    places = [total / count + each * i for total, count in blocks for i in range(count)]
    for i in range(len(places)):
        places[i] = max(places[i], each * (i + 0.5))
    for i in range(len(places)):
        places[-1 - i] = min(places[-1 - i], room - each * (i + 0.5))
    return places


def _worst(panel: Panel, rule: str) -> float:
    mine = panel.slowdowns[rule]
    return float(np.nanmax(mine)) if np.isfinite(mine).any() else 1.0
