"""Colours and marks of all pictures and pages: one table for the parts of a time, one for the rest.

The colours are the nine of Tol's scheme "muted" and black: told apart with any colour vision, and
on a light ground.  Where they run out, marks or hatches tell.

Source: P. Tol, "Colour Schemes", SRON/EPS/TN/09-002, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "COLOURS", "COMPONENTS", "GREY", "GRID", "GROUND", "MARKS", "SYMBOLS", "css", "pale",
]  # fmt: skip

_INDIGO, _ROSE, _TEAL, _SAND, _GREEN = "#332288", "#cc6677", "#44aa99", "#ddcc77", "#117733"
_CYAN, _WINE, _OLIVE, _PURPLE, _BLACK = "#88ccee", "#882255", "#999933", "#aa4499", "#000000"

COLOURS = (_INDIGO, _ROSE, _TEAL, _SAND, _GREEN, _CYAN, _WINE, _OLIVE, _PURPLE, _BLACK)
"""For what has no fixed colour, in this order."""

MARKS = "osD^vPX*<>dph8"
"""Marks of matplotlib, in this order."""

SYMBOLS: Mapping[str, str] = {
    "o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down",
    "P": "cross", "X": "x", "*": "star", "<": "triangle-left", ">": "triangle-right",
    "d": "diamond-tall", "p": "pentagon", "h": "hexagon", "8": "octagon", "H": "hexagon2",
}  # fmt: skip
"""The same marks as the report's plotting library names them."""

GREY, GRID, GROUND = "#777777", "#dddddd", "#e3e6ea"
"""Lines and points of no colour; the lines of a grid; bars and bands behind the rest."""

_CSS: Mapping[str, str] = {
    "text": "#1b1f24", "dim": "#5b6570", "page": "#ffffff", "raised": "#f4f6f8", "line": GRID,
    "ground": GROUND, "link": _INDIGO, "a": _INDIGO, "b": _WINE, "less": "#fde3dc",
    "more": "#dcefdc", "wrong": "#b00020",
}  # fmt: skip
"""The custom properties of the pages' style sheets: a light ground, dark text."""

COMPONENTS: Mapping[str, tuple[str, str]] = {
    # of every program
    "tensor": (_INDIGO, "s"),
    "smem": (_GREEN, "D"),
    "l2": (_CYAN, "o"),
    "dram": (_PURPLE, "X"),
    "latency": (_BLACK, "p"),
    "launch": (_WINE, "d"),
    "clear": (_OLIVE, "*"),
    # of those with barriers
    "power": (_ROSE, "P"),
    "fill": (_OLIVE, "v"),
    "tma": (_SAND, "<"),
    "epilogue": (_TEAL, "^"),
    # of those without
    "burst": (_GREEN, "p"),
    "fma": (_ROSE, "H"),
    "l1": (_OLIVE, "h"),
    "issue": (_SAND, ">"),
    "int": (_TEAL, "8"),
    "fp64": (_INDIGO, "^"),
    "cvt": (_CYAN, "v"),
    "sfu": (_GREEN, "s"),
    "shuffle": (_PURPLE, "<"),
    "fetch": (_WINE, "P"),
    "spills": (_BLACK, "D"),
}
"""The colour and the mark of each part of a time, in every picture."""


def css() -> str:
    """Return the pages' colours as a rule of CSS."""
    return ":root { " + " ".join(f"--{name}: {colour};" for name, colour in _CSS.items()) + " }"


def pale(colour: str, share: float = 0.7) -> str:
    """Return a colour mixed with a share of white.

    >>> pale("#000000", 0.5)
    '#808080'
    """
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round((1 - share) * part + share * 255):02x}" for part in parts)
