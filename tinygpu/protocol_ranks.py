"""Ranks apart: CTAs that only exchange buffers along an axis of their cluster, each by itself.

Where CTAs along an axis of a cluster load nothing for one another and arrive nowhere at each other,
all that is between them is what they write into the one at 0, and ``barrier.cluster``.  Then

    the exchange    who touches such buffers, and the barriers of the cluster, along this axis
    each rank       the rest, at this rank: its guards are decided, and the axis is gone

are legal only if the whole is: ranks that do the same are one part.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> from tinygpu.protocol_extraction import protocol_of
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["shared k"]))
>>> exchange, *ranks = apart(protocol_of(program))
>>> print(exchange, len(ranks))
consumer x 1:
  for each tile t:
    when -1*rank_k < 0:
      st.shared: write parts@(i + rank_k + -1)
    barrier.cluster
    when rank_k < 1:
      ld.shared: read parts@(i)
producer x 1:
  barrier.cluster 2

Source: ``docs/model-concurrency.md``, section "Parts".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from tinygpu.access_map import Affine
from tinygpu.protocol import (
    Act,
    Body,
    Guard,
    Loop,
    Node,
    One,
    Protocol,
    Tiles,
    every,
    mentioned,
    names_in,
)
from tinygpu.synchronization import Arrive, Sync, Wait

__all__ = ["apart"]


def apart(protocol: Protocol) -> tuple[Protocol, ...]:
    """Return the exchange and each rank; nothing if there is no such axis."""
    nodes = [node for crew in protocol.crews for node, _ in every(crew.body)]
    axes = {t.ring.home for n in nodes if isinstance(n, Act) for t in n.touches} - {""}
    if len(axes) != 1:
        return ()
    (axis,) = axes
    ranks = range(dict(protocol.cluster)[axis])
    rest = tuple((name, extent) for name, extent in protocol.cluster if name != axis)
    found = dict.fromkeys(
        _changed(protocol, rest, partial(_at, axis=axis, rank=rank, rest=rest)) for rank in ranks
    )
    exchange = _changed(
        protocol, tuple((n, e if n == axis else 1) for n, e in protocol.cluster), _exchanged
    )
    alone = not any(axis in names_in(crew.body) for part in found for crew in part.crews)
    return (exchange, *found) if alone and not any(_across(n, axis) for n in nodes) else ()


def _across(node: Node, axis: str) -> bool:
    """Say whether a node tells another CTA along the axis something, in any way but the two."""
    match node:
        case Arrive(barrier, _, to=to):
            return barrier.home == axis or to == "cluster" or axis in to.split()
        case Wait(barrier):
            return barrier.home == axis
        case Act(_, kind, touches, signal, multicast):
            late = kind != "generic" and any(t.ring.home for t in touches)
            return late or axis in multicast.split() or bool(signal and signal[0].home)
        case Guard(index, _, body) if axis in {n for n, _ in index.terms}:
            return any(_blocks(n) for n, _ in every(body))
        case _:
            return False


def _blocks(node: Node) -> bool:
    """Say whether others may wait for a node, or it for others, beyond its own copy."""
    return (
        isinstance(node, Wait | Arrive)
        or (isinstance(node, Act) and node.signal is not None)
        or (isinstance(node, Sync) and node.scope != "role")
    )


def _changed(
    protocol: Protocol, cluster: tuple[tuple[str, int], ...], change: Callable[[Body], Body]
) -> Protocol:
    """Return the protocol with other bodies, in another cluster."""
    crews = tuple(replace(crew, body=change(crew.body)) for crew in protocol.crews)
    return replace(protocol, crews=crews, cluster=cluster, parameters=mentioned(crews, protocol))


def _exchanged(body: Body) -> Body:
    """Keep what touches the buffers of the exchange, and barriers of the whole cluster."""
    out: list[Node] = []
    for node in body:
        if isinstance(node, Act):
            touches = tuple(t for t in node.touches if t.ring.home)
            out += [replace(node, touches=touches)] if touches else []
        elif isinstance(node, Loop | Guard | One | Tiles):
            inner = _exchanged(node.body)
            out += [replace(node, body=inner)] if inner else []
        elif isinstance(node, Sync) and node.scope == "cluster":
            out.append(node)
    return tuple(out)


def _at(body: Body, axis: str, rank: int, rest: Iterable[tuple[str, int]]) -> Body:
    """Return what CTAs at a rank do but for the exchange; arrivals at all others go to all."""
    out: list[Node] = []
    wide = {name for name, extent in rest if extent > 1}
    for node in body:
        match node:
            case Guard(Affine(constant, ((name, int(factor)),)), int(bound), inner) if name == axis:
                if constant + factor * rank < bound:
                    out += _at(inner, axis, rank, rest)
            case Loop() | Guard() | One() | Tiles():
                if inner := _at(node.body, axis, rank, rest):
                    out.append(replace(node, body=inner))
            case Act():
                touches = tuple(t for t in node.touches if not t.ring.home)
                if touches or node.kind != "generic":
                    out.append(replace(node, touches=touches))
            case Arrive(to=to) if to != "cta" and wide <= set(to.split()):
                out.append(replace(node, to="cluster"))
            case _:
                out.append(node)
    return tuple(out)
