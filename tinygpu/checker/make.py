"""Make a certificate: a fixpoint over the checker's own transfer."""
from __future__ import annotations

import numpy as np

from tinygpu.checker.check import Certificate, Position, executed, successors
from tinygpu.checker.invariant import Held, Invariant, follows
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse
from tinygpu.checker.protocol import NONE, Clock, Protocol
from tinygpu.term.program import Program

__all__ = ["certified"]


def fixpoint(protocol: Protocol, near: int, far: int) -> Certificate:
    first: Position = ("start", 0, 0, 0)
    nodes = {first: Invariant.first(protocol)}
    floor = -2 - near - max(
        (-n for ring in protocol.rings for _, one in ring.references for c in one.conflicts
         for n in (c.lag, c.before) if n is not None), default=0)
    floor = min(floor, -2 - near - 2 * max((b.stages for b in protocol.barriers), default=0))
    work = [first]
    passes = 0
    while work:
        at = work.pop(0)
        passes += 1
        if passes > 4000:
            refuse("no fixpoint")
        after = executed(protocol, at, near, far, nodes[at])
        for to in successors(protocol, at, near, far):
            if to not in nodes:
                nodes[to] = after
            elif follows(protocol, after, nodes[to]):
                nodes[to] = both(nodes[to], after, floor)
            else:
                continue
            if to not in work:
                work.append(to)
    return Certificate(near, far, protocol.early, nodes)


def both(a: Invariant, b: Invariant, floor: int) -> Invariant:
    if a.open != b.open or a.counts != b.counts:
        refuse(f"phases differ: {a.open} {b.open} {a.counts} {b.counts}")

    def held(x: Held, y: Held) -> Held:
        if x is None or y is None or x[0] != y[0]:
            return None
        return x[0], x[1] & y[1]

    def least(x: Clock, y: Clock) -> Clock:
        found = np.minimum(x, y)
        found[(found < floor) & (found < x)] = NONE
        return found

    return Invariant(
        least(a.known, b.known), least(a.own, b.own),
        {at: least(m, b.messages[at]) for at, m in a.messages.items() if at in b.messages},
        a.open, a.counts,
        {at: least(m, b.groups[at]) for at, m in a.groups.items()},
        [x or y for x, y in zip(a.touched, b.touched)],
        [[held(x, y) for x, y in zip(m, n)] for m, n in zip(a.holds, b.holds)],
    )


def spans(protocol: Protocol) -> tuple[int, int]:
    """Return from how many steps done, and left, on no guard and no start changes."""
    near = far = 0
    for action in protocol.actions:
        for constant, done, left in (*action.guards, *([action.fresh] if action.fresh else [])):
            if done:
                near = max(near, abs(constant) // abs(done) + 1)
            if left:
                far = max(far, abs(constant) // abs(left))
    return near, far


def certified(program: Program) -> tuple[Certificate | None, Ruling]:
    last = None
    for early in (False, True):
        try:
            protocol = Protocol(program, early=early)
        except RefusedError as e:
            return None, Ruling("refused", str(e))
        except UncertifiedError as e:
            return None, Ruling("not certified", str(e))
        near, far = spans(protocol)
        deep = near + max((b.stages for b in protocol.barriers), default=1)
        for n, f in ((near, far), (deep, far + 1)):
            try:
                c = fixpoint(protocol, n, f)
                return c, Ruling("accepted", nodes=len(c.nodes))
            except RefusedError as e:
                last = last or Ruling("refused", str(e))
            except UncertifiedError as e:
                last = last or Ruling("not certified", str(e))
    return None, last
