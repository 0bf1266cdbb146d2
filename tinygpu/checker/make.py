"""Make certificates: a fixpoint over the checker's own transfer.  Nothing here is believed.

Nodes begin with what is true where they are first reached; what another way makes of them lowers
the claims, until all follow.  Lags that nobody can ask for any more are forgotten, so that this
ends.
"""

from __future__ import annotations

import numpy as np

from tinygpu.checker.check import START, Certificate, Position, executed, successors
from tinygpu.checker.invariant import Clocks, Contents, Held, Invariant, follows
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse
from tinygpu.checker.protocol import ALL, NONE, PARTS, Protocol
from tinygpu.term.program import Program

__all__ = ["certified"]

_MOST = 4000


def certified(program: Program) -> tuple[Certificate | None, Ruling]:
    """Return a term's certificate, or None and why there is none.

    A refusal is of the maker's first try: it found no invariant, which is no proof of a fault.
    """
    first: Ruling | None = None
    for early in (False, True):
        try:
            protocol = Protocol(program, early=early)
        except RefusedError as error:
            return None, Ruling("refused", str(error))
        except UncertifiedError as error:
            return None, Ruling("not certified", str(error))
        near, far = _spans(protocol)
        deep = near + max((b.stages for b in protocol.barriers), default=1)
        for one, other in ((near, far), (deep, far + 1)):
            try:
                found = _fixpoint(protocol, one, other)
                believed = tuple(sorted(protocol.believed))
                return found, Ruling("accepted", nodes=len(found.nodes), believed=believed)
            except RefusedError as error:
                first = first or Ruling("refused", str(error))
            except UncertifiedError as error:
                first = first or Ruling("not certified", str(error))
    assert first is not None
    return None, first


def _spans(protocol: Protocol) -> tuple[int, int]:
    """Return from how many steps done, and left, on no guard and no start changes."""
    near, far = 0, 1
    for action in protocol.actions:
        for constant, done, left in (*action.guards, *([action.fresh] if action.fresh else [])):
            if done and -constant * done >= 0:
                near = max(near, abs(constant) // abs(done) + 1)
            if left:
                far = max(far, abs(constant) // abs(left))
    return near, far


def _fixpoint(protocol: Protocol, near: int, far: int) -> Certificate:
    """Sweep over the nodes in the order of a run until all claims follow.

    A node that comes after itself is executed until its own claim follows, the ends once.
    """
    floor = _floor(protocol)
    nodes = {START: Invariant.first(protocol)}
    work = {START}
    passes = 0
    while work:
        inner = {at for at in work if at[0] != "end"}
        for at in sorted(inner or work, key=_place):
            while at in work:
                passes += 1
                if passes > _MOST:
                    refuse(f"certificate: none is found in {_MOST} steps")
                work.remove(at)
                after = executed(protocol, at, near, far, nodes[at])
                for to in successors(protocol, at, near, far):
                    if to not in nodes:
                        nodes[to] = after
                    elif follows(protocol, after, nodes[to]):
                        nodes[to] = _both(nodes[to], after, floor)
                    else:
                        continue
                    work.add(to)
    return Certificate(near, far, protocol.early, nodes)


def _place(at: Position) -> tuple[int, int, int, int]:
    part, done, left, tile = at
    return tile, PARTS.index(part), done, -left


def _floor(protocol: Protocol) -> Clocks:
    """Return of each column the least lag that a rule asks for, about; what is below is forgotten.

    Too high a floor only makes the search fail.
    """
    asked = np.full(protocol.width, ALL)
    for barrier in protocol.barriers:
        every = [offset for _, offset in (*barrier.waits, *barrier.arrivals)]
        least = min(every, default=0) - max(every, default=0) - 2 * barrier.stages
        told = [c for action, _ in (*barrier.waits, *barrier.arrivals) for c in action.columns]
        asked[[*told, *barrier.over]] = min(least, -2 * barrier.stages)
    return asked


def _both(one: Invariant, other: Invariant, floor: Clocks) -> Invariant:
    """Return what is true after either of two ways."""
    if one.open != other.open or one.counts != other.counts:
        refuse(f"certificate: two ways to a node leave other phases open: {one.open}, {other.open}")

    def least(x: Clocks, y: Clocks) -> Clocks:
        found = np.minimum(x, y)
        found[(found < floor) & (found < x)] = NONE
        return found

    def held(x: Held, y: Held) -> Held:
        unread = (x.unread if x else 0) | (y.unread if y else 0)
        if x is not None and y is not None and x.index == y.index:
            return Contents(x.index, x.written & y.written, unread)
        return Contents(0, 0, unread) if unread else None

    return Invariant(
        known=least(one.known, other.known),
        own=least(one.own, other.own),
        messages={
            at: least(clock, other.messages[at])
            for at, clock in one.messages.items()
            if at in other.messages
        },
        open=one.open,
        counts=one.counts,
        groups={at: least(clocks, other.groups[at]) for at, clocks in one.groups.items()},
        touched=[x or y for x, y in zip(one.touched, other.touched, strict=True)],
        holds=[
            [held(x, y) for x, y in zip(mine, others, strict=True)]
            for mine, others in zip(one.holds, other.holds, strict=True)
        ],
    )
