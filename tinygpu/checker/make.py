"""Make a certificate: a fixpoint over the checker's own transfer."""
from __future__ import annotations

import numpy as np

from tinygpu.checker.check import Certificate, Position, executed, successors
from tinygpu.checker.invariant import Held, Invariant, follows
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse
from tinygpu.checker.protocol import Protocol
from tinygpu.term.program import Program

__all__ = ["certified"]


def fixpoint(protocol: Protocol, near: int, far: int) -> Certificate:
    first: Position = ("start", 0, 0, 0)
    nodes = {first: Invariant.first(protocol)}
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
                nodes[to] = both(nodes[to], after)
            else:
                continue
            if to not in work:
                work.append(to)
    return Certificate(near, far, protocol.early, nodes)


def both(a: Invariant, b: Invariant) -> Invariant:
    if a.open != b.open or a.counts != b.counts:
        refuse(f"phases differ: {a.open} {b.open} {a.counts} {b.counts}")
    def held(x: Held, y: Held) -> Held:
        if x is None or y is None or x[0] != y[0]:
            return None
        return x[0], x[1] & y[1]
    return Invariant(
        np.minimum(a.known, b.known), np.minimum(a.own, b.own),
        {at: np.minimum(m, b.messages[at]) for at, m in a.messages.items() if at in b.messages},
        a.open, a.counts,
        {at: np.minimum(m, b.groups[at]) for at, m in a.groups.items()},
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
            c = fixpoint(protocol, *spans(protocol))
            return c, Ruling("accepted", nodes=len(c.nodes))
        except RefusedError as e:
            last = last or Ruling("refused", str(e))
        except UncertifiedError as e:
            last = last or Ruling("not certified", str(e))
    return None, last
