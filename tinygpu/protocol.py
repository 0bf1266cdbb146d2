"""The protocol: what the legality of an asynchronous program depends on, and nothing else.

A program with mbarriers, several copies of a role, or a cluster is reduced to its waits, arrivals,
groups, fences and barriers, and to *acts*: the statements that touch on-chip buffers, each with
its *touches* (a ring, an index, read or write).  Tile sizes are gone, so that many schedules
share one protocol, on which verdicts are remembered (``tinygpu.protocol_extraction``).

>>> from tinygpu.access_map import var
>>> x = Ring("x", 4, "cta")
>>> print(Act("wgmma", "product", (Touch(x, var("k"), write=False),)))
wgmma: read x@(k)

Source: ``docs/model-concurrency.md``, section "Asynchronous programs".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tinygpu.access_map import Affine
from tinygpu.synchronization import Arrive, Barrier, Commit, Fence, Sync, Wait, WaitGroup

__all__ = [
    "Act",
    "Body",
    "Crew",
    "Guard",
    "Kind",
    "Loop",
    "Node",
    "One",
    "Order",
    "Protocol",
    "Ring",
    "Tiles",
    "Touch",
    "every",
    "mentioned",
    "names_in",
]

Kind = Literal["generic", "copy", "load", "product", "store", "mma", "cp", "take", "put"]


@dataclass(frozen=True, slots=True)
class Ring:
    """An on-chip buffer; one for each thread (registers), CTA, or copy of a role.

    What CTAs write along the axis ``home`` goes to the CTA at 0.
    """

    name: str
    stages: int
    share: Literal["thread", "cta", "copy"]
    home: str = ""


@dataclass(frozen=True, slots=True)
class Touch:
    """One access at an index; ``overlap``: two threads of one write share a cell.

    ``part``: how much of a stage a load fills, in each CTA that receives it.  ``meets``: loops of
    constant trips between whose iterations two threads of one write share a cell.
    """

    ring: Ring
    index: Affine
    write: bool
    overlap: bool = False
    part: Fraction = Fraction(1)
    meets: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{'write' if self.write else 'read'} {self.ring.name}@({self.index})"


@dataclass(frozen=True, slots=True)
class Act:
    """A statement that touches on-chip buffers; see ``tinygpu.program.Do`` for the last three.

    "generic" ones are done when issued; the others later: "copy" cp.async, "load" and "store"
    TMA, "product" wgmma, "mma", "cp", "take" and "put" tcgen05.mma, .cp, .ld and .st.  ``bytes`` of
    a load land in each CTA that receives it; an mma touches what it says in each CTA along
    ``multicast``.
    """

    name: str
    kind: Kind
    touches: tuple[Touch, ...]
    signal: tuple[Barrier, Affine] | None = None
    multicast: str = ""
    bytes: int = 0
    fresh: Affine | None = None

    def __str__(self) -> str:
        text = f"{self.name}: {', '.join(map(str, self.touches))}"
        if self.fresh is not None:
            text += f", anew where {self.fresh} == 0"
        return f"{text} at {self.signal[0].name}@({self.signal[1]})" if self.signal else text


@dataclass(frozen=True, slots=True)
class Loop:
    """The body for ``start <= var < stop``."""

    var: str
    start: int
    stop: int | str
    body: Body


@dataclass(frozen=True, slots=True)
class Guard:
    """The body where ``index < bound``."""

    index: Affine
    bound: int | str
    body: Body


@dataclass(frozen=True, slots=True)
class One:
    """The body by the first thread of a copy alone."""

    body: Body


@dataclass(frozen=True, slots=True)
class Tiles:
    """The body for the cluster's tiles start, start + step, ..; ``turn`` counts them."""

    tile: str
    turn: str
    start: Affine
    step: int
    body: Body


Order = Sync | Commit | WaitGroup | Wait | Arrive | Fence
Node = Act | Loop | Guard | One | Tiles | Order
Body = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Crew:
    """A role: ``copies`` sets of ``threads``, numbered by the variable ``copy``."""

    name: str
    threads: int
    copies: int
    copy: str
    body: Body


@dataclass(frozen=True, slots=True)
class Protocol:
    """The crews of each CTA of a cluster.

    ``parameters``: the names that loops, guards and indices mention, and their least values (sizes
    are at least 1).  ``persistent``: a cluster has any number of tiles, else one.
    """

    crews: tuple[Crew, ...]
    cluster: tuple[tuple[str, int], ...]
    persistent: bool
    parameters: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for crew in self.crews:
            lines += [f"{crew.name} x {crew.copies}:", *_show(crew.body, "  ")]
        return "\n".join(lines)


def every(body: Body) -> Iterator[tuple[Node, Body]]:
    """Yield every node with the block that it stands in, in order."""
    for node in body:
        yield node, body
        if isinstance(node, Loop | Guard | One | Tiles):
            yield from every(node.body)


def names_in(body: Body) -> set[str]:
    """Return the names that indices, guards and trip counts mention, and no loop around binds."""
    found: set[str] = set()
    for node in body:
        found |= {name for form in _forms(node) for term in form.terms for name in term
                  if isinstance(name, str)}  # fmt: skip
        match node:
            case Loop(var, _, stop, inner):
                found |= {stop} if isinstance(stop, str) else set()
                found |= names_in(inner) - {var}
            case Guard(_, bound, inner):
                found |= {bound} if isinstance(bound, str) else set()
                found |= names_in(inner)
            case Tiles(tile, turn, _, _, inner):
                found |= names_in(inner) - {tile, turn}
            case One(inner):
                found |= names_in(inner)
            case _:
                pass
    return found


def mentioned(crews: tuple[Crew, ...], protocol: Protocol) -> tuple[tuple[str, int], ...]:
    """Return those of a protocol's parameters that crews mention."""
    names = set[str]().union(*(names_in(crew.body) for crew in crews))
    return tuple((name, least) for name, least in protocol.parameters if name in names)


def _forms(node: Node) -> Iterator[Affine]:
    match node:
        case Act(_, _, touches, signal, _, _, fresh):
            yield from (t.index for t in touches)
            yield from (signal[1],) if signal else ()
            yield from (fresh,) if fresh is not None else ()
        case Guard(index) | Wait(_, index) | Arrive(_, index):
            yield index
        case Tiles(_, _, start):
            yield start
        case _:
            pass


def _show(body: Body, indent: str) -> list[str]:
    lines: list[str] = []
    for node in body:
        match node:
            case Loop(var, start, stop, inner):
                lines += [f"{indent}for {var} in {start}..{stop}:", *_show(inner, indent + "  ")]
            case Guard(index, bound, inner):
                lines += [f"{indent}when {index} < {bound}:", *_show(inner, indent + "  ")]
            case One(inner):
                lines += [f"{indent}one thread:", *_show(inner, indent + "  ")]
            case Tiles(tile, _, start, step, inner):
                each = "" if str(start) == "0" and step == 1 else f" from {start} by {step}"
                lines += [f"{indent}for each tile {tile}{each}:", *_show(inner, indent + "  ")]
            case _:
                lines.append(f"{indent}{node}")
    return lines
