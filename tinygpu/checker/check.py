"""The theorem: what an accepted certificate proves, and by which steps.

**Theorem.**  *Let ``check(term, certificate)`` accept.  Then for every number of tiles, of which
there is one at least, and for all trips of each tile, from the least that the parameter's
expression proves, in every order that PTX allows: no agent waits for ever; each arrival and each
landing byte counts for the phase that it names, and each wait passes with the phase that it names;
no two accesses to a cell of shared or tensor memory, one of them a write, and no access to a
register and a product or load that holds it, are unordered; each read of index x finds in its cells
what was written at x last, and no sums of a product are written over before they are read; what the
generic proxy did is fenced before the asynchronous one comes, and what was done in tensor memory
before and after others are told; and nothing is under way when the agents end.*

It says nothing of numbers, of which cells of global memory are written, of resources and of times.

**Nodes.**  A position is a part of the body, the steps done, exactly or ``near`` or more, the steps
left, exactly or more than ``far``, and the tile's number modulo what copies' strides divide.  From
a position the next ones are ``successors``: whatever a run does, its parts are a path of these.

**Proof.**  The agents' parts, one after another, are one order of the run's events.  By induction
on the path, at each node what the certificate claims is true: at the start the checker compares,
and at each node it executes each event once from what is claimed, relative to the counters, and
asks that all claims of all successors follow (``follows``).  A claim says less than what is true,
and knowing less is refused more (*monotonicity*: every rule asks that a lag is at least some
number, and lags change by joins, by shifts, and by being lowered where something is done anew).  A
guard is decided at all counters of a node, or the term is not certified.  So the rules hold at
every event of this order, and by the *order lemma* of every other: in another order take the first
event at which a barrier does otherwise; E and A say that the agent knows the phase before to be
over, so it lies before, where nothing differs yet.  Two events that conflict are ordered, since
the second knows the first.

What has to be believed besides, and a test for each lemma: ``docs/proof.md``.

>>> from tinygpu.checker.make import certified
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.term.operation import matmul
>>> term = Simt().program(matmul(), Chosen(LADDER["shared"]))
>>> certificate, _ = certified(term)
>>> print(check(term, certificate))
accepted: 7 invariants hold for all trips
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinygpu.checker.invariant import Invariant, advanced, follows
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse
from tinygpu.checker.protocol import Part, Protocol
from tinygpu.checker.rules import MANY, Execution, Situation
from tinygpu.term.program import Program

__all__ = ["START", "Certificate", "Position", "check", "executed", "ruled", "successors"]

Position = tuple[Part, int, int, int]
"""Part, steps done up to near, steps left up to far + 1, the tile's residue."""
START: Position = ("start", 0, 0, 0)
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is claimed to be true at each node.

    ``near``, ``far``: from how many steps done, and left, on steps are alike.  ``early``: what an
    agent does beside a loop that it lacks stands before the loop.
    """

    near: int
    far: int
    early: bool
    nodes: dict[Position, Invariant]


def _choices(protocol: Protocol, far: int) -> Iterator[int]:
    """Yield how many steps a tile may have: exactly so many, or far + 1 for more than far."""
    if protocol.param:
        yield from range(min(protocol.least, far + 1), far + 2)
    else:
        yield 0


def successors(protocol: Protocol, at: Position, near: int, far: int) -> Iterator[Position]:
    """Yield the positions that may come after one."""
    part, done, left, tile = at
    match part:
        case "start":
            yield from (("head", 0, m, tile) for m in _choices(protocol, far))
        case "head":
            yield ("loop", 0, left, tile) if left else ("tail", 0, 0, tile)
        case "loop":
            for m in (left - 1,) if left <= far else (far, far + 1):
                yield ("loop" if m else "tail", min(done + 1, near), m, tile)
        case "tail":
            after = (tile + 1) % protocol.period
            if protocol.tiled:
                yield from (("head", 0, m, after) for m in _choices(protocol, far))
            yield ("end", done, 0, after)


def executed(protocol: Protocol, at: Position, near: int, far: int, claim: Invariant) -> Invariant:
    """Execute a node from what is claimed of it; return what is true after it.

    Raises RefusedError where a rule does not hold.
    """
    part, done, left, tile = at
    whole = (done, MANY if done == near else done), (left, MANY if left > far else left)
    after = Execution(protocol, Situation(part, *whole, tile), claim).run()
    kind = {"loop": "step", "tail": "tile"}.get(part)
    return advanced(protocol, after, kind, tile) if kind else after


def check(program: Program, certificate: Certificate) -> Ruling:
    """Check a certificate: each of its nodes once."""
    try:
        return ruled(Protocol(program, early=certificate.early), certificate)
    except RefusedError as error:
        return Ruling("refused", str(error))
    except UncertifiedError as error:
        return Ruling("not certified", str(error))


def ruled(protocol: Protocol, certificate: Certificate) -> Ruling:
    """Check a certificate of a term that has been read.

    Raises RefusedError where a rule or a claim does not hold, UncertifiedError for a class that is
    not certified.
    """
    near, far, nodes = certificate.near, certificate.far, certificate.nodes
    if not (0 <= near <= _DEEPEST and 0 <= far <= _DEEPEST):
        refuse(f"certificate: near {near}, far {far}")
    if START not in nodes:
        refuse("certificate: no invariant at the start")
    if wrong := follows(protocol, Invariant.first(protocol), nodes[START]):
        refuse(f"certificate: at the start: {wrong}")
    for at, claim in nodes.items():
        after = executed(protocol, at, near, far, claim)
        for to in successors(protocol, at, near, far):
            if to not in nodes:
                refuse(f"certificate: no invariant at {to}")
            if wrong := follows(protocol, after, nodes[to]):
                refuse(f"certificate: from {at} to {to}: {wrong}")
    believed = tuple(sorted(protocol.believed))
    return Ruling("accepted", nodes=len(nodes), believed=believed)
