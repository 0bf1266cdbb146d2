"""Check a certificate of order."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tinygpu.checker.invariant import Invariant, advanced, follows
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse
from tinygpu.checker.protocol import Part, Protocol
from tinygpu.checker.rules import MANY, Execution, Node
from tinygpu.term.program import Program

__all__ = ["Certificate", "Place", "check", "executed", "starts", "successors"]

Position = tuple[Part, int, int, int]
"""Part, steps done up to near, steps left up to far + 1, the tile's residue."""


@dataclass(slots=True)
class Certificate:
    near: int
    far: int
    early: bool
    nodes: dict[Position, Invariant]


def starts(protocol: Protocol, far: int) -> Iterator[int]:
    """Yield how many steps a tile may have: exactly so many, or far + 1 for more."""
    if protocol.param:
        yield from range(min(protocol.least, far + 1), far + 2)
    else:
        yield 0


def successors(protocol: Protocol, at: Position, near: int, far: int) -> Iterator[Position]:
    """Yield the positions that may come after one."""
    part, done, left, tile = at
    if part == "start":
        yield from (("head", 0, m, tile) for m in starts(protocol, far))
    elif part == "head":
        yield ("loop", 0, left, tile) if left else ("tail", 0, 0, tile)
    elif part == "loop":
        for m in (left - 1,) if left <= far else (far, far + 1):
            yield ("loop" if m else "tail", min(done + 1, near), m, tile)
    elif part == "tail":
        after = (tile + 1) % protocol.period
        if protocol.tiled:
            yield from (("head", 0, m, after) for m in starts(protocol, far))
        yield ("end", 0, 0, after)


def executed(
    protocol: Protocol, at: Position, near: int, far: int, state: Invariant
) -> Invariant:
    """Execute a node; return what is true after it."""
    part, done, left, tile = at
    node = Node(
        part, (done, MANY if done == near else done), (left, MANY if left > far else left), tile
    )
    after = Execution(protocol, node, state.copy()).run()
    kind = {"loop": "step", "tail": "tile"}.get(part)
    return advanced(protocol, after, kind, tile) if kind else after


def check(program: Program, certificate: Certificate) -> Ruling:
    try:
        protocol = Protocol(program, early=certificate.early)
        near, far = certificate.near, certificate.far
        first: Position = ("start", 0, 0, 0)
        if first not in certificate.nodes:
            refuse("certificate: no start")
        if wrong := follows(protocol, Invariant.first(protocol), certificate.nodes[first]):
            refuse(f"certificate: at the start: {wrong}")
        for at, state in certificate.nodes.items():
            after = executed(protocol, at, near, far, state)
            for to in successors(protocol, at, near, far):
                if to not in certificate.nodes:
                    refuse(f"certificate: no invariant at {to}")
                if wrong := follows(protocol, after, certificate.nodes[to]):
                    refuse(f"certificate: {at} to {to}: {wrong}")
    except RefusedError as error:
        return Ruling("refused", str(error))
    except UncertifiedError as error:
        return Ruling("not certified", str(error))
    return Ruling("accepted", nodes=len(certificate.nodes), believed=tuple(sorted(protocol.believed)))
