"""Pairs: the protocol among two CTAs of a cluster, and among two copies of a crew that are alike.

Every condition but balance speaks of two agents, and a path among two CTAs is a path among all;
so a cluster is legal if its pairs are: two CTAs along one axis, and two that differ in more ranks,
with one copy of a crew in each; and two copies in one CTA.
Balance stays what it was, as counts are scaled: of n CTAs that arrive two do, and a load along an
axis of n brings n / 2 times its bytes and its part of a stage.

Pairs are alike whatever an axis or a ring is called, so they get names of their own.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> from tinygpu.protocol_extraction import protocol_of
>>> values = {**STARTS["cluster"], "cluster_n": 2, "tile_n": 128}
>>> whole = protocol_of(Hopper().program(matmul("bf16", layout="nt"), Chosen(values)))
>>> print([pair.cluster for pair in pairs(whole)], len(set(pairs(whole))))
[(('@pair', 2),), (('@pair', 2),), (('@pair', 2),), ()] 3

Source: ``docs/model-concurrency.md``, section "Parts".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import prod

from tinygpu.images import singled_out
from tinygpu.protocol import (
    Act,
    Body,
    Crew,
    Guard,
    Loop,
    Node,
    One,
    Protocol,
    Tiles,
    every,
    names_in,
)
from tinygpu.protocol_extraction import counted
from tinygpu.synchronization import Arrive, Barrier, Wait

__all__ = ["acts", "pairs"]

Cluster = tuple[tuple[str, int], ...]
_PAIR = "@pair"  # the rank among two CTAs; no name that a term can have


def acts(body: Body) -> Iterator[Act]:
    """Yield the acts of a body."""
    yield from (node for node, _ in every(body) if isinstance(node, Act))


@lru_cache(8192)
def pairs(protocol: Protocol) -> tuple[Protocol, ...]:
    """Return the protocol among two CTAs, of each kind of pair, and among two of alike copies."""
    ranks = {name for name, _ in protocol.cluster}
    if any(names_in(c.body) & ranks or _joined(c.body) for c in protocol.crews):
        return (protocol,)
    wide = [name for name, extent in protocol.cluster if extent > 1]
    ones: Cluster = tuple((name, 1) for name in sorted(ranks))
    shapes: list[Cluster] = [
        tuple((name, 2 if name == axis else 1) for name, _ in ones) for axis in sorted(wide)
    ]
    if len(wide) > 1:
        shapes.append((*ones, (_PAIR, 2)))
    found = [_among(protocol, shape, most=1) for shape in shapes]
    if not wide or any(crew.copies > 1 and _is_alike(crew) for crew in protocol.crews):
        found.append(_among(protocol, ones, most=2))
    return tuple(p for p in found if p is not None) if None not in found else (protocol,)


def _joined(body: Body) -> bool:
    """Say whether CTAs multiply together, have a home, or tell one another along an axis."""
    along = any(isinstance(n, Arrive) and n.to not in ("cta", "cluster") for n, _ in every(body))
    return along or bool(singled_out(body) - {"", "cta", "cluster"})


def _among(protocol: Protocol, shape: Cluster, *, most: int) -> Protocol | None:
    """Return a protocol among the CTAs of a smaller cluster, and at most some of alike copies.

    None if counts do not divide.
    """
    old, new = dict(protocol.cluster), dict(shape)
    ratio = (prod(new.values()), prod(old.values()))
    crews = tuple(
        replace(c, copies=min(c.copies, most)) if _is_alike(c) else c for c in protocol.crews
    )
    scales: dict[str, set[tuple[int, int]]] = {}
    for crew, fewer in zip(protocol.crews, crews, strict=True):
        for node, _ in every(crew.body):
            if isinstance(node, Arrive):
                up, down = ratio if node.to == "cluster" else (1, 1)
                if node.bytes and up != down:
                    return None
                scale = (up * fewer.copies, down * crew.copies)
                scales.setdefault(node.barrier.name, set()).add(scale)

    def scaled(barrier: Barrier) -> Barrier:
        up, down = next(iter(scales.get(barrier.name, {(1, 1)})))
        return replace(barrier, arrivals=barrier.arrivals * up // down)

    barriers = {_barrier(n) for c in protocol.crews for n, _ in every(c.body)} - {None}
    for barrier in barriers:
        by = scales.get(barrier.name, {(1, 1)}) if barrier else {(1, 1)}
        up, down = next(iter(by))
        if len(by) > 1 or (barrier and barrier.arrivals * up % down):
            return None

    def put(body: Body) -> Body:
        out: list[Node] = []
        for node in body:
            match node:
                case Wait() | Arrive():
                    out.append(replace(node, barrier=scaled(node.barrier)))
                case Act() if node.signal:
                    # two CTAs send what all along the axis send
                    landed = node.bytes * old.get(node.multicast, 1)
                    each = landed // new.get(node.multicast, 1)
                    signal = (scaled(node.signal[0]), node.signal[1])
                    along = _PAIR if new.get(node.multicast, 1) > 1 else ""
                    share = Fraction(old.get(node.multicast, 1), new.get(node.multicast, 1))
                    fills = tuple(replace(t, part=t.part * share) for t in node.touches)
                    act = replace(node, touches=fills, signal=signal, bytes=each, multicast=along)
                    out.append(act)
                case Loop() | Guard() | One() | Tiles():
                    out.append(replace(node, body=put(node.body)))
                case _:
                    out.append(node)
        return tuple(out)

    if any(a.bytes * old.get(a.multicast, 1) % new.get(a.multicast, 1)
           for c in crews for a in acts(c.body) if a.signal):  # fmt: skip
        return None
    bodies = tuple(replace(c, body=_sorted(put(c.body))) for c in crews)
    loaded = [t.ring.name for c in bodies for a in acts(c.body) if a.signal for t in a.touches]
    named = {name: f"ring {n}" for n, name in enumerate(dict.fromkeys(loaded))}
    bodies = tuple(replace(c, body=_renamed(c.body, named)) for c in bodies)
    pair: Cluster = ((_PAIR, 2),) if prod(new.values()) > 1 else ()
    return replace(protocol, crews=counted(bodies, dict(pair)), cluster=pair)


def _sorted(body: Body) -> Body:
    """Put loads that follow one another, whose order nothing observes, in that of their kinds."""
    out: list[Node] = []
    for node in body:
        if isinstance(node, Loop | Guard | One | Tiles):
            node = replace(node, body=_sorted(node.body))
        at = len(out)
        while at and _comes_first(node, out[at - 1]):
            at -= 1
        out.insert(at, node)
    return tuple(out)


def _comes_first(node: Node, other: Node) -> bool:
    return (
        isinstance(node, Act)
        and isinstance(other, Act)
        and node.kind == other.kind == "load"
        and node.multicast < other.multicast
    )


def _renamed(body: Body, names: dict[str, str]) -> Body:
    """Call rings otherwise, and put an act's shared ones in the order of their new names."""
    out: list[Node] = []
    for node in body:
        if isinstance(node, Loop | Guard | One | Tiles):
            out.append(replace(node, body=_renamed(node.body, names)))
        elif isinstance(node, Act):
            new = [
                replace(t, ring=replace(t.ring, name=names.get(t.ring.name, t.ring.name)))
                for t in node.touches
            ]
            shared = sorted((t for t in new if t.ring.share != "thread"), key=str)
            own = [t for t in new if t.ring.share == "thread"]
            out.append(replace(node, touches=(*shared, *own)))
        else:
            out.append(node)
    return tuple(out)


def _barrier(node: Node) -> Barrier | None:
    if isinstance(node, Wait | Arrive):
        return node.barrier
    return node.signal[0] if isinstance(node, Act) and node.signal else None


def _is_alike(crew: Crew) -> bool:
    """Say whether a crew's copies do the same, and load nothing."""
    loads = any(
        (isinstance(n, Act) and n.signal) or (isinstance(n, Arrive) and n.bytes)
        for n, _ in every(crew.body)
    )
    return crew.copy not in names_in(crew.body) and not loads
