"""Pictures of how far the model is right: points, errors by regime, tau by shape, regret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.trust import COUNTS, Evidence, by_regime
from tinygpu.cli.palette import COLOURS, COMPONENTS, GREY, GRID, GROUND
from tinygpu.cli.pictures import number_axis

__all__ = ["figures_of"]

_LEAST = 10
_LOOKS = {
    "the model": (COLOURS[0], "o", "-"), "nvidia-matmul-heuristics": (COLOURS[4], "s", "-"),
    "roofline": (COLOURS[3], "D", "-"), "random": (COLOURS[1], "^", "-"),
    "A/A floor": (GREY, "", "--"),
}  # fmt: skip
Of = Mapping[str, Sequence[Evidence]]


def figures_of(
    of: Of, regrets: Mapping[str, Mapping[str, Mapping[int, float]]]
) -> dict[str, tuple[Figure, str]]:
    """Return the figures by their files' names, each with its title."""
    return {
        "points": (
            _points(of),
            "Predicted against measured, by what the model names as bottleneck",
        ),
        "errors": (_errors(of), "Error by regime"),
        "tau": (_taus(of), "Rank correlation of each shape"),
        "regret": (_regrets(regrets), "Regret against how many were measured"),
    }


def _panels(names: Sequence[str], height: float, **more: Any) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(max(6.0, 4.6 * len(names)), height), layout="constrained")
    panels = list(figure.subplots(1, len(names), squeeze=False, **more)[0])
    for axes, name in zip(panels, names, strict=True):
        axes.set_title(name, loc="left", fontsize=11)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _points(of: Of) -> Figure:
    """Draw each schedule; the band is 10 % on both sides of the diagonal."""
    figure, panels = _panels(list(of), 5.2)
    for axes, cases in zip(panels, of.values(), strict=True):
        slow = max(case.mean.max() for case in cases) > 0.02
        scale, unit = (1e3, "ms") if slow else (1e6, "us")
        x, y = (
            scale * np.concatenate([getattr(c, n) for c in cases]) for n in ("predicted", "mean")
        )
        named = np.array([name for case in cases for name in case.named])
        low, high = min(x.min(), y.min()) / 1.2, max(x.max(), y.max()) * 1.2
        axes.fill_between([low, high], [low / 1.1, high / 1.1], [low * 1.1, high * 1.1],
                          color=GROUND, zorder=0)  # fmt: skip
        axes.plot([low, high], [low, high], color=GREY, linewidth=0.8, zorder=1)
        names, counts = np.unique(named, return_counts=True)
        for name in names[np.argsort(-counts)].tolist():
            colour, mark = COMPONENTS.get(name, (GREY, "o"))
            axes.plot(x[named == name], y[named == name], mark, color=colour, markersize=3.2,
                      alpha=0.75, markeredgewidth=0, label=name)  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal",
                 xlabel=f"predicted [{unit}]", ylabel=f"measured [{unit}]")  # fmt: skip
        number_axis(axes.xaxis, low, high)
        number_axis(axes.yaxis, low, high)
        axes.legend(fontsize=8, markerscale=2, frameon=False, loc="upper left")
    return figure


def _errors(of: Of) -> Figure:
    """Draw the errors of each regime: the median, the middle half, 5th to 95th percentile.

    A regime of fewer than ``_LEAST`` schedules is left to the table.
    """
    most = max(len(by_regime(cases)) for cases in of.values())
    figure, panels = _panels(list(of), 1.4 + 0.33 * most)
    for axes, cases in zip(panels, of.values(), strict=True):
        found = {n: e for n, e in by_regime(cases).items() if len(e) >= _LEAST or n == "all"}
        boxes = [np.exp(errors) for errors in found.values()]
        axes.boxplot(boxes, orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6,
                     medianprops={"color": COLOURS[1]})  # fmt: skip
        names = [f"{name} ({len(errors)})" for name, errors in found.items()]
        axes.set_yticks(range(1, 1 + len(names)), names, fontsize=8.5)
        axes.axvline(1, color=GREY, linewidth=1, zorder=0)
        axes.invert_yaxis()
        low = min(0.7, *(np.percentile(box, 5) / 1.1 for box in boxes))
        high = max(1.4, *(np.percentile(box, 95) * 1.1 for box in boxes))
        axes.set(xscale="log", xlim=(low, high), xlabel="measured / predicted")
        number_axis(axes.xaxis, low, high)
    return figure


def _taus(of: Of) -> Figure:
    """Draw Kendall's tau of each shape: over what was drawn, and among the fast ones."""
    longest = max(map(len, of.values()))
    figure, panels = _panels(list(of), 1.6 + 0.2 * longest)
    for axes, cases in zip(panels, of.values(), strict=True):
        shapes = sorted(cases, key=lambda case: tuple(case.problem.sizes.values()))
        for near, look, told in ((False, "o", "drawn"), (True, "D", "within 1.5 of the fastest")):
            known = [(t, i) for i, c in enumerate(shapes) if (t := c.tau(near=near)) is not None]
            if known:
                values, places = zip(*known, strict=True)
                axes.plot(values, places, look, color=COLOURS[int(near)], markersize=5.5,
                          label=f"{told}: mean {np.mean(values):.2f}")  # fmt: skip
        axes.set_yticks(range(len(shapes)), [case.label for case in shapes], fontsize=8)
        axes.set(xlim=(min(-0.05, axes.get_xlim()[0]), 1.02), ylim=(len(shapes) - 0.5, -0.5),
                 xlabel="Kendall's tau")  # fmt: skip
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.08), frameon=False)
    return figure


def _regrets(regrets: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Draw the mean regret of each ranking."""
    figure, panels = _panels(list(regrets), 4.2)
    for axes, by in zip(panels, regrets.values(), strict=True):
        for name, mine in by.items():
            colour, mark, line = _LOOKS[name]
            axes.plot(COUNTS, [100 * mine[n] for n in COUNTS], line, marker=mark, color=colour,
                      markersize=5, label=name)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
        axes.set_xticks(COUNTS, list(map(str, COUNTS)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_yticks([t for t in (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
                         if t <= axes.get_ylim()[1]])  # fmt: skip
        axes.minorticks_off()
        axes.set(xlabel="schedules measured, in the ranking's order",
                 ylabel="behind the best of all measured [%]")  # fmt: skip
    handles = {h.get_label(): h for axes in panels for h in axes.get_legend_handles_labels()[0]}
    figure.legend(handles=list(handles.values()), loc="outside lower center", frameon=False,
                  ncols=len(handles), fontsize=9)  # fmt: skip
    return figure
