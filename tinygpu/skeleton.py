"""The concurrency skeleton: what of a program its legality depends on, and nothing else.

A skeleton keeps the statements that touch on-chip buffers, each as *touches* (a ring, an index
affine in the loop variables, read or write), the barriers, groups, loops and guards.  It has no
tile sizes and no thread maps, so thousands of schedules share one (see ``tinygpu.extraction``).
Of a write two facts of its map remain: whether it is *whole* (fills its stage, or a thread's
registers) and whether two threads of one statement *overlap* (write one cell).

>>> x, k = Ring("x", 2, private=False), Affine(1, (("k", 1),))
>>> loop = Loop("k", 0, "trips", (Act("st.shared", (Touch(x, k, write=True),)), Sync()))
>>> print(Skeleton((("all", (loop,)),)), free_names((loop,)))
all:
  for k in 0..trips:
    st.shared: write x@(k + 1)
    bar.sync 0 {'trips'}

Source: ``docs/model-concurrency.md``, section "Skeleton".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tinygpu.program import Affine, Commit, Sync, WaitGroup

__all__ = [
    "Act",
    "Guard",
    "Leave",
    "Loop",
    "Node",
    "Ring",
    "Skeleton",
    "Touch",
    "free_names",
    "names_of",
    "nodes",
    "show",
    "unnamed",
]


@dataclass(frozen=True, slots=True)
class Ring:
    """An on-chip buffer: its stages, and whether each thread has its own."""

    name: str
    stages: int
    private: bool


@dataclass(frozen=True, slots=True)
class Touch:
    """One access to a ring at an index; ``whole`` and ``overlap`` are about writes."""

    ring: Ring
    index: Affine
    write: bool
    whole: bool = True
    overlap: bool = False

    def __str__(self) -> str:
        at = "" if self.index == Affine() else f"@({self.index})"
        return f"{'write' if self.write else 'read'} {self.ring.name}{at}"


@dataclass(frozen=True, slots=True)
class Act:
    """An instruction with its touches, reads first; ``copies``: its write is a cp.async."""

    name: str
    touches: tuple[Touch, ...]
    copies: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(map(str, self.touches))}"


@dataclass(frozen=True, slots=True)
class Loop:
    """The body for ``start <= var < stop``, of which the first ``most`` iterations matter."""

    var: str
    start: int
    stop: int | str
    body: tuple[Node, ...]
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """The body where ``index < bound``."""

    index: Affine
    bound: int | str
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """An exit; ``divides``: some threads of a CTA may leave while others stay."""

    divides: bool

    def __str__(self) -> str:
        return "exit of some threads" if self.divides else "exit"


Node = Act | Loop | Guard | Leave | Sync | Commit | WaitGroup


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Each role's name and body."""

    roles: tuple[tuple[str, tuple[Node, ...]], ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for name, body in self.roles:
            lines += [f"{name}:", *(f"  {line}" for line in show(body))]
        return "\n".join(lines)


def nodes(body: tuple[Node, ...]) -> Iterator[Node]:
    """Yield every node of a body, at any depth, in order."""
    for node in body:
        yield node
        if isinstance(node, Loop | Guard):
            yield from nodes(node.body)


def unnamed(skeleton: Skeleton) -> Skeleton:
    """Return the skeleton without its instructions' names, which only messages mention."""

    def plain(body: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            replace(node, name="")
            if isinstance(node, Act)
            else replace(node, body=plain(node.body))
            if isinstance(node, Loop | Guard)
            else node
            for node in body
        )

    return Skeleton(tuple((name, plain(body)) for name, body in skeleton.roles))


def free_names(body: tuple[Node, ...], bound: frozenset[str] = frozenset()) -> set[str]:
    """Return the names that no loop of the body binds: parameters, sizes and grid variables."""
    found: set[str] = set()
    for node in body:
        match node:
            case Act(_, touches, _):
                for touch in touches:
                    found |= names_of(touch.index)
            case Loop(var, _, stop, inner):
                found |= {stop} if isinstance(stop, str) else set()
                found |= free_names(inner, bound | {var})
            case Guard(index, limit, inner):
                found |= names_of(index) | ({limit} if isinstance(limit, str) else set())
                found |= free_names(inner, bound)
            case _:
                pass
    return found - bound


def names_of(index: Affine) -> set[str]:
    """Return the variables and parameters of an affine form."""
    return {name for term in index.terms for name in term if isinstance(name, str)}


def show(body: tuple[Node, ...], indent: str = "") -> list[str]:
    """Return a body's lines."""
    lines: list[str] = []
    for node in body:
        match node:
            case Loop(var, start, stop, inner):
                lines += [f"{indent}for {var} in {start}..{stop}:", *show(inner, indent + "  ")]
            case Guard(index, bound, inner):
                lines += [f"{indent}when {index} < {bound}:", *show(inner, indent + "  ")]
            case _:
                lines.append(f"{indent}{node}")
    return lines
