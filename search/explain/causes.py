"""Causes: what a term loses time to, each with what it costs.

A *cause* is a way in which the work of a term exceeds an ideal: lanes that touch 32 lines where 1
would hold them, a conversion where there could be none, a round of CTAs that is not full.  It costs
what its removal saves: the work is mended there (``mends.py``), and the time predicted again.  So

    saves = seconds(features) - seconds(features without the cause)   >= 0

and, as the time is a blend of bounds, savings do not add up: what hides behind a greater cause
saves nothing until that one is gone.  Two things show it nevertheless.  ``excess`` is what a cause
adds to the parts before they are blended, and ``peel`` removes one cause after another.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> problem = Problem.of(matmul(), m=4092, n=4092, k=4092)
>>> naive = Simt().program(problem.operation, Chosen(LADDER["naive"]))
>>> view = TimeView.of(naive, problem.sizes, load_device("h200"))
>>> found = {cause.name: cause for cause in causes(view)}
>>> print(found["uncoalesced access"].places[0].measured)
8 cycles of L1 a request

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tinygpu.search.explain.mends import KINDS, Kind, PieceMend, TimeView, TreeNode
from tinygpu.search.time.breakdown import Breakdown
from tinygpu.search.time.cost import Features
from tinygpu.search.time.work import Event, Tree

__all__ = ["Cause", "CausePlace", "ChainStep", "causes", "excesses", "peel"]


_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class CausePlace:
    """Where a cause lies: a statement of the term or a part of the launch; what is, what could be.

    ``saves_seconds`` is what mending this place alone would save.
    """

    subject: str
    measured: str
    ideal: str
    saves_seconds: float


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: its kind's name, the resource it wastes, what its removal saves, where it lies.

    ``excess_seconds`` is what it adds to the parts, before they are blended.
    """

    name: str
    resource: str
    saves_seconds: float
    excess_seconds: float
    places: tuple[CausePlace, ...]


def causes(view: TimeView) -> tuple[Cause, ...]:
    """Return every cause in a term, the most costly first."""
    found = [cause for kind in KINDS.values() if (cause := _cause(kind, view)) is not None]
    return tuple(sorted(found, key=lambda c: (-c.saves_seconds, -c.excess_seconds)))


def excesses(view: TimeView) -> dict[str, float]:
    """Return the seconds that each kind of cause adds to the parts; 0 where there is none."""
    return {
        name: _excess(kind, view, view.time if kind.shown else _removed(kind, view))
        for name, kind in KINDS.items()
    }


def _cause(kind: Kind, view: TimeView) -> Cause | None:
    """Return the cause, with what each of its places costs; None if there is nothing to mend."""
    if kind.whole is not None:
        whole = kind.whole(view)
        if whole is None:
            return None
        time = view.predicted(whole.features)
        saves = view.seconds - float(time.seconds)
        if kind.shown and saves <= 0:
            return None
        places = [CausePlace(whole.subject, whole.measured, whole.ideal, saves)]
    else:
        mends = _mends(kind, view)
        if not mends:
            return None
        time = view.predicted(_mended(view, mends))
        saves = view.seconds - float(time.seconds)
        places = [
            CausePlace(
                node.text,
                mend[1],
                mend[2],
                view.seconds - float(view.predicted(_mended(view, [(node, mend)])).seconds),
            )
            for node, mend in mends
        ]
        places.sort(key=lambda p: -p.saves_seconds)
    return Cause(kind.name, kind.resource, saves, _excess(kind, view, time), tuple(places))


def _removed(kind: Kind, view: TimeView) -> Breakdown:
    """Return the time without the cause: the view's own if there is nothing to mend."""
    if kind.whole is None:
        mends = _mends(kind, view)
        return view.predicted(_mended(view, mends)) if mends else view.time
    whole = kind.whole(view)
    return view.time if whole is None else view.predicted(whole.features)


def _mends(kind: Kind, view: TimeView) -> list[tuple[TreeNode, PieceMend]]:
    assert kind.piece is not None
    found = [(node, kind.piece(node, view)) for node in view.nodes]
    return [(node, mend) for node, mend in found if mend is not None]


def _excess(kind: Kind, view: TimeView, without: Breakdown) -> float:
    """Return what it adds to the parts; of a limit, the part that shows it: the ideal is none."""
    parts = view.time.parts
    if kind.shown:
        return float(parts.get(kind.shown, 0.0))
    return sum(float(s) - float(without.parts.get(name, 0.0)) for name, s in parts.items())


def _mended(view: TimeView, mends: list[tuple[TreeNode, PieceMend]]) -> Features:
    news = {id(node.piece): mend[0] for node, mend in mends}
    agents = tuple(
        agent.with_trees(lambda tree: _exchanged(tree, news)) for agent in view.features.agents
    )
    return replace(view.features, agents=agents)


def _exchanged(tree: Tree, news: Mapping[int, Event]) -> Tree:
    return tuple(
        news.get(id(node), node)
        if isinstance(node, Event)
        else replace(node, body=_exchanged(node.body, news))
        for node in tree
    )


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One cause removed after those before it: what that saves, and the time that is left."""

    name: str
    saves_seconds: float
    left_seconds: float


def peel(view: TimeView) -> tuple[ChainStep, ...]:
    """Remove causes of single statements one after another, the most costly of the moment first.

    So it shows what hides behind a greater cause.  Stops where none saves a hundredth of the time
    that is left.  The savings and the last time sum to the first.
    """
    left = {name: kind for name, kind in KINDS.items() if kind.piece is not None}
    steps: list[ChainStep] = []
    while left:
        views = {name: view.seen(_mended(view, _mends(kind, view))) for name, kind in left.items()}
        best = min(views, key=lambda name: views[name].seconds)
        saves = view.seconds - views[best].seconds
        if saves < _LEAST * view.seconds:
            break
        view = views[best]
        del left[best]
        steps.append(ChainStep(best, saves, view.seconds))
    return tuple(steps)
