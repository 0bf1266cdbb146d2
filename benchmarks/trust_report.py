"""The report of ``benchmarks.time_model``: how far the model is right about what was measured.

The page is one HTML file with its pictures in it; the pictures stand beside it, too.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from benchmarks.heuristics import heuristics
from benchmarks.trust import COUNTS, Evidence, Times, by_regime, habits, regret_at, roofline
from benchmarks.trust_picture import figures_of
from tinygpu.cli.console import say, table, time_text, write
from tinygpu.cli.pictures import encoded
from tinygpu.devices.device import label

__all__ = ["model_report", "rankings"]

WORST = 8
"""How many cases are told of in which the model loses most."""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body {{font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem}}
table {{border-collapse: collapse}} td, th {{padding: .2rem .7rem; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top}} img {{max-width: 100%}}
</style><h1>{title}</h1><p>{about}</p>{parts}</html>
"""


RANKINGS: Mapping[str, Callable[[Evidence], Times | None]] = {
    "the model": lambda case: case.order,
    "nvidia-matmul-heuristics": heuristics,
    "roofline": lambda case: roofline(case) if set("mnk") <= set(case.problem.sizes) else None,
    "random": lambda case: np.ones(len(case.times)),
}
"""What the schedules of a case are ranked by."""


def rankings(cases: Sequence[Evidence]) -> dict[str, dict[int, float]]:
    """Return by ranking, and as A/A floor, the geometric mean of the regret at each count.

    All rankings choose among the same schedules.  One without an answer for some case is left out.
    """
    scores = {name: [of(case) for case in cases] for name, of in RANKINGS.items()}
    found = {
        name: {n: _mean([regret_at(case.mean, one, n)
                         for case, one in zip(cases, mine, strict=True) if one is not None])
               for n in COUNTS}
        for name, mine in scores.items() if all(one is not None for one in mine)
    }  # fmt: skip
    noise = [case.noise for case in cases if case.noise is not None]
    return found | ({"A/A floor": dict.fromkeys(COUNTS, _mean(noise))} if noise else {})


def _mean(regrets: Sequence[float]) -> float:
    return float(np.expm1(np.log1p(regrets).mean()))


def model_report(cases: Sequence[Evidence], out: Path) -> None:
    """Write model.html and its pictures, and print what they say."""
    of: dict[str, list[Evidence]] = defaultdict(list)
    for case in cases:
        of[case.machine].append(case)
    regrets = {machine: rankings(mine) for machine, mine in of.items()}
    out.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, (figure, words) in figures_of(of, regrets).items():
        image = encoded(figure, "png")
        say(write(out / f"model-{name}.png", image))
        code = base64.b64encode(image).decode()
        parts.append(f'<h2>{words}</h2><img alt="{words}" src="data:image/png;base64,{code}">')
    told = {
        "Regret against how many were measured": _regret_table(regrets),
        "Error by regime": _regimes(of),
        "Where the model is worst, and why": _worst(cases),
    }
    for title, (columns, rows) in told.items():
        table(title, columns, rows)
        cells = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>"
                        for row in rows)  # fmt: skip
        head = "".join(f"<th>{escape(name.removeprefix('#'))}</th>" for name in columns)
        parts.append(f"<h2>{title}</h2><table><tr>{head}</tr>{cells}</table>")
    chips = ", ".join(dict.fromkeys(label(case.device) for case in cases))
    title = f"The time model on {sum(len(case.times) for case in cases)} schedules of {chips}"
    about = (
        "Regret at n: the least time among the n that a ranking puts first, over the least of all "
        "that were measured for the shape, less 1. All rankings choose among the same schedules; "
        "where these were the model's best and drawn ones, random is better than in the space."
    )
    text = _PAGE.format(title=title, about=about, parts="".join(parts))
    say(f"report: {write(out / 'model.html', text)}")


Table = tuple[Sequence[str], list[Sequence[object]]]


def _regret_table(regrets: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Table:
    rows: list[Sequence[object]] = [
        (machine, name, *(f"{100 * mine[n]:.1f} %" for n in COUNTS))
        for machine, by in regrets.items()
        for name, mine in by.items()
    ]
    return ("machine", "ranking", *(f"#at {n}" for n in COUNTS)), rows


def _regimes(of: Mapping[str, Sequence[Evidence]]) -> Table:
    """Return by machine and regime the schedules, the median and 90th percentile, the bias."""
    rows: list[Sequence[object]] = []
    for machine, cases in of.items():
        for name, errors in by_regime(cases).items():
            size = np.abs(errors)
            rows.append((machine, name, len(errors), f"{100 * np.median(size):.0f} %",
                         f"{100 * np.percentile(size, 90):.0f} %",
                         f"{100 * np.expm1(np.median(errors)):+.0f} %"))  # fmt: skip
    return ("machine", "regime", "#schedules", "#error, median", "#p90", "#takes longer by"), rows


def _worst(cases: Sequence[Evidence]) -> Table:
    """Return the cases of most regret: the choice and the best, and how far both were promised."""
    known, rows = habits(cases), list[Sequence[object]]()
    for case in sorted(cases, key=lambda c: -regret_at(c.mean, c.order, 1))[:WORST]:
        chosen, best = int(np.argmin(case.order)), int(np.argmin(case.mean))
        mine, other = (dict(case.schedules[i].decisions) for i in (chosen, best))
        differing = [name for name in mine if mine[name] != other[name]]
        usual = {
            name: known.get((case.machine, name, mine[name]), 0)
            - known.get((case.machine, name, other[name]), 0)
            for name in differing
        }
        blamed = max(usual, key=lambda name: usual[name], default="")
        why = ("chosen " + _off(case.errors[chosen]) + f", waits for {case.named[chosen]}; best "
               + _off(case.errors[best]) + f", waits for {case.named[best]}")  # fmt: skip
        if blamed and usual[blamed] > 0.02:
            why += (f"; {blamed} {mine[blamed]} takes {100 * np.expm1(usual[blamed]):.0f} % longer "
                    f"than {other[blamed]} beside the prediction, over all shapes")  # fmt: skip
        rows.append((case.machine, case.label, f"{100 * regret_at(case.mean, case.order, 1):.0f} %",
                     time_text(float(case.mean[best])), why,
                     " ".join(f"{n}={mine[n]}/{other[n]}" for n in differing)))  # fmt: skip
    return ("machine", "shape", "#regret at 1", "#best", "why", "chosen / best"), rows


def _off(error: float) -> str:
    size = 100 * np.expm1(abs(error))
    return f"takes {size:.0f} % {'longer' if error > 0 else 'less'} than said"
