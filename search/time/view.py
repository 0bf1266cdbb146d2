"""Views: a term at given sizes on a device, opened so that a part of it can be exchanged.

A view is the term's features, the time that they give, and its *nodes*: each piece of work with the
text of its statement and how often a thread does it.  A *kind* of waste is a rule that says how a
node, or the launch, would be without it (``mends.py`` has them).

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> naive = Simt().program(matmul(), Chosen(LADDER["naive"]))
>>> view = TimeView.of(naive, {"m": 4096, "n": 4096, "k": 4096}, load_device("h200"))
>>> sum(node.times for node in view.nodes if node.piece.unit == "fma")
4096.0
>>> sorted(view.operands("a_fragment"))
['a']

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tinygpu.devices.device import Device
from tinygpu.search.time.breakdown import Breakdown
from tinygpu.search.time.cost import Features, features, predict
from tinygpu.search.time.work import Tree, Work
from tinygpu.term.program import Program

__all__ = ["Kind", "LaunchMend", "PieceMend", "TimeView", "TreeNode", "duration"]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A piece of work, the text of its statement, how often a thread does it."""

    piece: Work
    text: str
    times: float


@dataclass(frozen=True, slots=True)
class TimeView:
    """A term at given sizes on a device: its features, its time, its pieces of work."""

    program: Program
    features: Features
    time: Breakdown
    nodes: tuple[TreeNode, ...]

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], device: Device) -> TimeView:
        """Account for a term."""
        return TimeView.seen(program, features(program, sizes, device))

    @staticmethod
    def seen(program: Program, found: Features) -> TimeView:
        """Look at features that may have been mended."""
        return TimeView(program, found, predict(found), tuple(_nodes(found.tree, "", 1.0)))

    @property
    def device(self) -> Device:
        """The device."""
        return self.features.launch.device

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return float(self.time.seconds)

    def operands(self, buffer: str, seen: frozenset[str] = frozenset()) -> frozenset[str]:
        """Return the arrays in global memory that a buffer's values were read from."""
        found: frozenset[str] = frozenset()
        for node in self.nodes:
            if node.piece.write == buffer and buffer not in seen:
                for name in node.piece.reads:
                    found |= self.operands(name, seen | {buffer})
        known = {o.name for o in self.program.operation.inputs}
        return found | (known & {buffer})


PieceMend = tuple[Work, str, str]
"""A piece without the waste; what was measured; what is ideal."""

LaunchMend = tuple[Mapping[str, Any], str, str, str]
"""The parts without the waste; where it lies; what was measured; what is ideal."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of waste: either of single statements (``piece``) or of the launch (``launch``)."""

    name: str
    resource: str
    piece: Callable[[TreeNode, TimeView], PieceMend | None] | None = None
    launch: Callable[[TimeView], LaunchMend | None] | None = None


def duration(seconds: float) -> str:
    """Write a time readably.

    >>> duration(0.28139), duration(2.5e-06)
    ('281 ms', '2.50 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size * 0.9995:
            return f"{seconds / size:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _nodes(tree: Tree, loop: str, times: float) -> Iterator[TreeNode]:
    for node in tree:
        if isinstance(node, Work):
            text = f"loop {loop}" if node.statement is None else str(node.statement)
            yield TreeNode(node, text, times)
        else:
            yield from _nodes(node.body, node.var, times * float(node.trips))
