"""Parts of a protocol: smaller protocols, shared by many, whose legality implies that of the whole.

    stores      what each copy of a crew does on rings of its own (its chunks of results, their bulk
                groups and barriers) apart from the rest; chunks are counted through, so that
                neither their number nor that of the tiles matters
    tiles       a program that is not persistent has one tile, and any number is judged, unless
                crews meet within it
    ranks       along an axis of the cluster whose CTAs do no more than write into one of them, each
                rank, and what they write, are judged apart (``tinygpu.protocol_ranks``)
    pairs       of the CTAs of a cluster, and of copies that are alike, two: every condition but
                balance speaks of two agents, and a path among two is a path among all

A part has fewer paths than the whole, so that its legality says more; if a part is illegal, or
in doubt, the whole is judged itself.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> from tinygpu.protocol_extraction import protocol_of
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> print(parts(protocol_of(program))[0])
consumer x 1:
  for each tile t:
    one thread:
      cp.async.bulk.wait_group.read 1
    bar.sync 1 of the role
    generic: write smem_c@(i)
    fence.proxy.async
    bar.sync 1 of the role
    one thread:
      store: read smem_c@(i)
      cp.async.bulk.commit_group
  one thread:
    cp.async.bulk.wait_group.read 0

Source: ``docs/model-concurrency.md``, section "Parts".
"""

from __future__ import annotations

from dataclasses import replace

from tinygpu.access_map import Affine
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
    Touch,
    every,
    mentioned,
    names_in,
)
from tinygpu.protocol_extraction import normal, shortened
from tinygpu.protocol_pairs import acts, pairs
from tinygpu.protocol_ranks import apart
from tinygpu.synchronization import Arrive, Commit, Fence, Sync, Wait, WaitGroup

__all__ = ["parts"]

Cluster = tuple[tuple[str, int], ...]


def parts(protocol: Protocol) -> tuple[Protocol, ...]:
    """Return protocols that are legal for all numbers only if the given one is.

    Of a protocol that cannot be divided, it alone.
    """
    if not _numbered_apart(protocol):
        return (protocol,)
    if exchange := apart(protocol):
        return (exchange[0], *(part for rank in exchange[1:] for part in parts(rank)))
    if any(_guards_by_rank(crew.body, protocol) for crew in protocol.crews):
        return (protocol,)  # what some CTAs leave out is no part of what all do
    found: list[Protocol] = []
    crews: list[Crew] = []
    for crew in protocol.crews:
        own = _own_rings(protocol, crew)
        if own:
            found.append(_stores(protocol, crew, own))
        stores = any(a.kind == "store" for a in acts(crew.body))
        body = _named_by_kind(_without(crew.body, own) if own or not stores else crew.body)
        asked = {t.ring.name for n, _ in every(body) if isinstance(n, Act) for t in n.touches}
        crews.append(replace(crew, body=shortened(_awake(body), asked)))
    rest = _protocol(tuple(crews), protocol.cluster, protocol)
    return (*found, *pairs(rest))


def _protocol(crews: tuple[Crew, ...], cluster: Cluster, old: Protocol) -> Protocol:
    meets = any(isinstance(n, Sync) and n.scope != "role" for c in crews for t, _ in every(c.body)
                if isinstance(t, Tiles) for n, _ in every(t.body))  # fmt: skip
    return Protocol(crews, cluster, old.persistent or not meets, mentioned(crews, old))


def _guards_by_rank(body: Body, protocol: Protocol) -> bool:
    """Say whether a statement that stores' parts keep stands under a guard on a CTA's rank."""
    ranks = {name for name, _ in protocol.cluster}
    return any(
        isinstance(node, Guard)
        and {name for name, _ in node.index.terms} & ranks
        and any(_of_stores(inner) for inner, _ in every(node.body))
        for node, _ in every(body)
    )


def _of_stores(node: Node) -> bool:
    """Say whether a part of stores may keep a node."""
    match node:
        case Act(_, "generic" | "store", touches):
            return any(touch.ring.share != "thread" for touch in touches)
        case Commit("bulk") | WaitGroup(group="bulk") | Fence("proxy.async"):
            return True
        case Sync(_, "role"):
            return True
        case _:
            return False


def _numbered_apart(protocol: Protocol) -> bool:
    """Say whether no two groups of threads share a barrier's number, and none is one thread's.

    Then bar.sync of a copy's threads can be left out without hiding a deadlock.
    """
    taken: set[int] = set()
    for crew in protocol.crews:
        numbers: set[int] = set()
        for node, _ in every(crew.body):
            if isinstance(node, One) and any(isinstance(n, Sync) for n, _ in every(node.body)):
                return False
            if isinstance(node, Sync) and node.scope == "role":
                mine = {node.barrier + copy for copy in range(crew.copies)}
                if len(numbers | mine) > len(mine):
                    return False  # two numbers, which may meet those of another copy
                numbers |= mine
        cta = {n.barrier for n, _ in every(crew.body) if isinstance(n, Sync) and n.scope == "cta"}
        if taken & numbers or numbers & cta:
            return False
        taken |= numbers
    ctas = {n.barrier for c in protocol.crews for n, _ in every(c.body)
            if isinstance(n, Sync) and n.scope == "cta"}  # fmt: skip
    return not taken & ctas


def _own_rings(protocol: Protocol, crew: Crew) -> set[str]:
    """Return the rings that a copy writes by itself and sends by bulk stores, if all it sends is.

    None is another's, the asynchronous proxy's to write, or read by a product.
    """
    others = {t.ring.name for c in protocol.crews if c is not crew
              for act in acts(c.body) for t in act.touches}  # fmt: skip
    sent = {t.ring.name for a in acts(crew.body) if a.kind == "store" for t in a.touches}
    for act in acts(crew.body):
        for touch in act.touches:
            alone = touch.ring.share == "copy" or (touch.ring.share == "cta" and crew.copies == 1)
            alone = alone and not touch.ring.home
            fine = alone and act.kind in ("generic", "store") and touch.ring.name not in others
            if touch.ring.name in sent and not fine:
                return set()
    return sent


def _named_by_kind(body: Body) -> Body:
    """Give acts the names of their kinds, as they tell nothing more about an order."""
    return tuple(
        replace(n, name=n.kind) if isinstance(n, Act)
        else replace(n, body=_named_by_kind(n.body)) if isinstance(n, Loop | Guard | One | Tiles)
        else n
        for n in body
    )  # fmt: skip


def _without(body: Body, own: set[str]) -> Body:
    """Drop what a copy does with rings of its own, its bulk groups, fences that nobody needs."""
    written = any(
        t.write and t.ring.share != "thread" and t.ring.name not in own
        for a in acts(body)
        if a.kind in ("generic", "copy")
        for t in a.touches
    )

    def kept(block: Body) -> Body:
        out: list[Node] = []
        for node in block:
            match node:
                case Act(_, kind, touches):
                    rest = tuple(t for t in touches if t.ring.name not in own)
                    if kind != "store" and (rest or kind != "generic"):
                        out.append(replace(node, touches=rest))
                case Commit("bulk") | WaitGroup(group="bulk"):
                    pass
                case Fence("proxy.async") if not written:
                    pass
                case Loop() | Guard() | One() | Tiles():
                    if inner := kept(node.body):
                        out.append(replace(node, body=inner))
                case _:
                    out.append(node)
        return tuple(out)

    return kept(body)


def _awake(body: Body) -> Body:
    """Drop a copy's barriers at the end of a block, where only registers are touched."""
    out: list[Node] = []
    idle = True
    for node in reversed(body):
        if isinstance(node, Tiles | Loop):
            node = replace(node, body=_awake(node.body))
        if idle and isinstance(node, Sync) and node.scope == "role":
            continue
        idle = idle and _idle(node)
        if not isinstance(node, Tiles | Loop) or node.body:
            out.append(node)
    return tuple(reversed(out))


def _idle(node: Node) -> bool:
    if isinstance(node, Loop) and not isinstance(node.stop, str):
        return all(map(_idle, node.body))
    return isinstance(node, Act) and node.kind == "generic" and all(
        t.ring.share == "thread" for t in node.touches
    )  # fmt: skip


def _stores(protocol: Protocol, crew: Crew, own: set[str]) -> Protocol:
    """Return what one copy does with rings of its own, in one CTA."""

    def kept(block: Body) -> Body:
        out: list[Node] = []
        for node in block:
            match node:
                case Act(_, _, touches):
                    mine = tuple(t for t in touches if t.ring.name in own)
                    if mine:
                        out.append(replace(node, touches=mine))
                case Commit("bulk") | WaitGroup(group="bulk") | Fence("proxy.async"):
                    out.append(node)
                case Sync(_, "role"):
                    out.append(node)
                case Loop() | Guard() | One() | Tiles():
                    if inner := kept(node.body):
                        out.append(replace(node, body=inner))
                case _:
                    pass
        some = any(isinstance(n, Act) for n in out)
        return tuple(n for n in out if some or not isinstance(n, Sync))

    body = _named_by_kind(kept(crew.body))
    if crew.copy not in names_in(_restarted(body)):
        body = _restarted(body)
        crew = replace(crew, copies=1, copy="")
    return _protocol((replace(crew, body=_flat(body)),), (), protocol)


def _restarted(body: Body) -> Body:
    """Let loops over tiles, if neither tile nor copy is mentioned in them, take all of them."""
    return tuple(
        replace(n, start=Affine(), step=1)
        if isinstance(n, Tiles) and n.tile not in names_in(n.body) - {n.turn}
        else n
        for n in body
    )


def _flat(body: Body) -> Body:
    """Count the iterations of constant loops through all tiles, where indices do so."""
    out: list[Node] = []
    for node in body:
        if isinstance(node, Loop | Tiles):
            node = replace(node, body=_flat(node.body))
            if len(node.body) == 1 and isinstance(inner := node.body[0], Loop):
                node = _joined(node, inner)
        out.append(node)
    return tuple(out)


def _joined(outer: Loop | Tiles, inner: Loop) -> Loop | Tiles:
    """Make one loop of two, if every index is that of the inner one, counted through."""
    start = 0 if isinstance(outer, Tiles) else outer.start
    stop = 0 if isinstance(outer, Tiles) else outer.stop
    if isinstance(inner.stop, str) or isinstance(stop, str) or inner.start or start:
        return outer
    name = outer.turn if isinstance(outer, Tiles) else outer.var
    count = inner.stop

    def through(form: Affine) -> Affine | None:
        terms = dict(form.terms)
        low, high = terms.get(inner.var), terms.get(name)
        if not isinstance(low, int) or not isinstance(high, int) or high != low * count:
            return None
        rest = tuple((n, c) for n, c in form.terms if n not in (inner.var, name))
        return normal(Affine(form.constant, (*rest, (name, low))))

    def put(block: Body) -> Body | None:
        new: list[Node] = []
        for node in block:
            if isinstance(node, Act):
                touches: list[Touch] = []
                for touch in node.touches:
                    index = through(touch.index)
                    if index is None:
                        return None
                    touches.append(replace(touch, index=index))
                new.append(replace(node, touches=tuple(touches)))
            elif isinstance(node, One):
                within = put(node.body)
                if within is None:
                    return None
                new.append(replace(node, body=within))
            elif isinstance(node, Loop | Guard | Tiles | Wait | Arrive):
                return None
            else:
                new.append(node)
        return tuple(new)

    body = put(inner.body)
    if body is None:
        return outer
    if isinstance(outer, Loop):
        return replace(outer, stop=stop * count, body=body)
    return replace(outer, body=body)
