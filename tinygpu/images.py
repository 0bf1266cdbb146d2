"""Images: CTAs of a cluster that are alike, of which one stands for all.

A step along an axis takes every CTA to the next one along it, the last to the first.  It maps a
program's events, and what they send one another, to themselves if

    no index, guard or trip count mentions the axis        all CTAs along it execute the same
    no barrier and no buffer has its home along it         none of them has what the others lack
    no tcgen05 instruction reaches along it                (this only keeps matters simple)

Multicasts and arrivals along the axis, or at the whole cluster, go on doing so.  Such an axis is
*even*.  Any CTA is taken by steps along even axes to the one with ranks 0 there, its *first*, and
whatever can be said about what happens in it is said, moved, about its first.

>>> from tinygpu.protocol import Crew, Protocol
>>> four = Protocol((Crew("all", 128, 1, "", ()),), (("m", 2), ("n", 2)), False, ())
>>> sorted(even_axes(four))
['m', 'n']
>>> images(four.cluster, even_axes(four)).first, images(four.cluster, frozenset("m")).first
((0, 0, 0, 0), (0, 0, 2, 2))

Source: ``docs/model-concurrency.md``, section "Parts", "CTAs that are alike".
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

from tinygpu.protocol import Act, Body, Protocol, every, names_in
from tinygpu.synchronization import Arrive, Wait

__all__ = ["Cluster", "Images", "along", "even_axes", "homes", "images", "singled_out"]

Cluster = tuple[tuple[str, int], ...]


class Images:
    """The CTAs of a cluster, of which steps along some even axes make images.

    ``first``: of each CTA the one that stands for it.  ``seen[c][b]``: where CTA b is seen when all
    are moved so that c becomes its first.
    """

    def __init__(self, cluster: Cluster, even: frozenset[str]) -> None:
        self.cluster = cluster
        ranks = [tuple(reversed(r)) for r in product(*(range(n) for _, n in reversed(cluster)))]
        numbers = {rank: cta for cta, rank in enumerate(ranks)}

        def moved(rank: tuple[int, ...], back: tuple[int, ...]) -> int:
            steps = (b * (name in even) for b, (name, _) in zip(back, cluster, strict=True))
            moves = zip(rank, steps, cluster, strict=True)
            return numbers[tuple((r - step) % n for r, step, (_, n) in moves)]

        self.seen = tuple(tuple(moved(rank, back) for rank in ranks) for back in ranks)
        self.first = tuple(seen[cta] for cta, seen in enumerate(self.seen))

    def agent(self, number: int, apart: int, cta: int) -> int:
        """Return as whom an agent is seen when ``cta`` becomes its first; CTAs have ``apart``."""
        own, agent = divmod(number, apart)
        return self.seen[cta][own] * apart + agent


@lru_cache(4096)
def images(cluster: Cluster, even: frozenset[str] = frozenset()) -> Images:
    """Return the images among CTAs of a cluster; without an even axis each stands for itself."""
    return Images(cluster, even)


@lru_cache(4096)
def even_axes(protocol: Protocol) -> frozenset[str]:
    """Return the axes of a protocol's cluster along which all CTAs are alike."""
    axes = {name for name, extent in protocol.cluster if extent > 1}
    for crew in protocol.crews if axes else ():
        uneven = names_in(crew.body) | singled_out(crew.body)
        axes = axes - uneven if "cluster" not in uneven else set()
    return frozenset(axes)


def singled_out(body: Body) -> set[str]:
    """Return the axes along which there are homes, or tcgen05 instructions reach."""
    found: set[str] = set()
    for node, _ in every(body):
        if isinstance(node, Act):
            found |= {touch.ring.home for touch in node.touches}
            found |= {node.signal[0].home} if node.signal else set()
            found |= set(node.multicast.split()) if node.kind != "load" else set()
        elif isinstance(node, Arrive | Wait):
            found.add(node.barrier.home)
            found |= set(node.to.split()) if isinstance(node, Arrive) and node.after else set()
    return found


@lru_cache(4096)
def homes(cluster: Cluster, cta: int, reach: str, home: str) -> tuple[int, ...]:
    """Return the CTAs whose barrier is told, by one that tells all along an axis, or them all."""
    every_cta = range(prod(extent for _, extent in cluster))
    ctas = every_cta if reach == "cluster" else along(cluster, cta, reach)
    return tuple(along(cluster, c, home)[0] for c in ctas)


@lru_cache(4096)
def along(cluster: Cluster, cta: int, axis: str) -> tuple[int, ...]:
    """Return the CTAs of a cluster along an axis, or several; itself alone, if it is no axis."""
    found: tuple[int, ...] = (cta,)
    stride = 1
    for name, extent in cluster:
        if name in axis.split():
            apart = range(0, extent * stride, stride)
            found = tuple(c - c // stride % extent * stride + far for far in apart for c in found)
        stride *= extent
    return found
