"""The concurrency skeleton: what of a program its legality depends on, and nothing else.

A skeleton keeps the statements that touch on-chip buffers, each as *touches* (a ring, an index affine
in the loop variables, read or write), the barriers, groups, loops and guards.  It has no tile sizes
and no thread maps, so thousands of schedules share one; ``tinygpu.events`` memoises on it.

Of a write two facts of its map remain: whether it is *whole* (fills its stage, or a thread's
registers) and whether two threads of one statement *overlap* (write one cell).

What cannot change a verdict is left out:

* A read of a register ring at index e that follows, in the same block, a whole write at the same
  affine e sees that write, whatever the variables are; and a register ring that no other read
  touches needs no record.  Fragments of a tile and their products go this way.
* A loop whose body waits for nothing, copies nothing asynchronously and does not mention the
  loop's variable does in its third iteration what it did in its second: two represent it.

>>> from tinygpu.instruction import INSTRUCTIONS
>>> from tinygpu.program import Access, Buffer, For, Sync, registers, var
>>> x, r = Buffer("x", "smem", "f32", (32,), (1,), 2, 32), registers("r", "f32", 1)
>>> put = Access(x, ((0,),), ((1,),), index=var("k") + 1)
>>> store = Do(INSTRUCTIONS["st.shared"], put, (Access(r, ((0,),), ((0,),)),), (1,), (32,))
>>> print(*show(body_of((For("k", "trips", (store, Sync())),), 32)), sep="\\n")
for k in 0..trips:
  st.shared: read r, write x@(k + 1)
  bar.sync 0

Source: ``docs/model-concurrency.md``, section "Skeleton".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from tinygpu.program import (
    Access,
    Affine,
    Commit,
    Do,
    Exit,
    For,
    Program,
    Statement,
    Sync,
    WaitGroup,
    When,
)

__all__ = [
    "Act",
    "Guard",
    "Leave",
    "Loop",
    "Node",
    "Ring",
    "Skeleton",
    "Touch",
    "body_of",
    "concurrency_key",
    "is_repeatable",
    "nodes",
    "show",
    "skeleton_of",
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
    """The body for ``start <= var < stop``."""

    var: str
    start: int
    stop: int | str
    body: tuple[Node, ...]


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


def skeleton_of(program: Program) -> Skeleton:
    """Extract the skeleton of a program whose numbers are ints (no arrays over a space)."""
    return Skeleton(tuple((r.name, body_of(r.body, r.threads)) for r in program.roles))


def concurrency_key(program: Program) -> Skeleton:
    """Return a hashable value: programs that have it in common have the same verdict."""
    return skeleton_of(program)


def nodes(body: tuple[Node, ...]) -> Iterator[Node]:
    """Yield every node of a body, at any depth, in order."""
    for node in body:
        yield node
        if isinstance(node, Loop | Guard):
            yield from nodes(node.body)


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


def body_of(body: tuple[Statement, ...], threads: int) -> tuple[Node, ...]:
    """Extract the skeleton of a role's body; the role has ``threads`` threads."""
    justified = _justified(tuple(_node(s, threads) for s in body))
    needed = {
        touch.ring
        for node in nodes(justified)
        if isinstance(node, Act)
        for touch in node.touches
        if not (touch.ring.private and touch.write)
    }
    return _compressed(justified, needed)


def is_repeatable(loop: Loop) -> bool:
    """Say whether every iteration from the second on does what the second did."""
    for node in nodes(loop.body):
        match node:
            case Act(_, touches, copies):
                if copies or any(_mentions(t.index, loop.var) for t in touches):
                    return False
            case Guard(index, _, _):
                if _mentions(index, loop.var):
                    return False
            case Loop():
                pass
            case _:
                return False
    return True


def _mentions(index: Affine, name: str) -> bool:
    return any(name in term for term in index.terms)


def _node(statement: Statement, threads: int) -> Node:
    match statement:
        case For(var, trips, body, _, start):
            inner = tuple(_node(s, threads) for s in body)
            return Loop(var, int(start), _number(trips), inner)
        case When(index, bound, body):
            return Guard(_normal(index), _number(bound), tuple(_node(s, threads) for s in body))
        case Do():
            return _act(statement, threads)
        case Exit(access, _, extents):
            moved = zip(extents, access.thread, strict=True)
            return Leave(any(int(n) > 1 and any(map(int, steps)) for n, steps in moved))
        case Sync(barrier):
            return Sync(int(barrier))
        case WaitGroup(pending):
            return WaitGroup(int(pending))
        case Commit():
            return statement


def _number(trips: int | str) -> int | str:
    return trips if isinstance(trips, str) else int(trips)


@lru_cache(4096)
def _normal(index: Affine) -> Affine:
    """Return the affine form with one term a variable, sorted, none of them zero."""
    whole: dict[str, int] = {}
    scaled: list[tuple[str, int | str]] = []
    for name, coefficient in index.terms:
        if isinstance(coefficient, str):
            scaled.append((name, coefficient))
        else:
            whole[name] = whole.get(name, 0) + int(coefficient)
    terms: list[tuple[str, int | str]] = [(n, c) for n, c in sorted(whole.items()) if c]
    return Affine(int(index.constant), (*terms, *sorted(scaled)))


def _act(do: Do, threads: int) -> Act:
    touches = [
        Touch(_ring(read), _normal(read.index), write=False)
        for read in do.reads
        if isinstance(read, Access) and read.buffer.level != "gmem"
    ]
    if do.write.buffer.level != "gmem":
        whole, overlap = _coverage(
            do.write.buffer.level,
            do.write.buffer.shape,
            tuple(_normal(o) for o in do.write.origin),
            (do.write.value, do.values),
            (do.write.thread, do.threads),
            do.lanes,
            threads,
        )
        touches.append(Touch(_ring(do.write), _normal(do.write.index), True, whole, overlap))
    unique = tuple(dict.fromkeys(touches))
    return Act(do.instruction.name, unique, do.instruction.completion == "commit_group")


def _ring(access: Access) -> Ring:
    buffer = access.buffer
    return Ring(buffer.name, int(buffer.stages), buffer.level == "registers")


Modes = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


@lru_cache(4096)
def _coverage(
    level: str,
    shape: tuple[int, ...],
    origin: tuple[Affine, ...],
    values: Modes,
    threads: Modes,
    lanes: tuple[int, int, int] | None,
    cta: int,
) -> tuple[bool, bool]:
    """Return whether a write fills its stage, and whether two of its threads share a cell."""
    private = level == "registers"
    still = not any(any(steps) for steps in threads[0])
    if private and (lanes is not None or not still):
        return False, False  # the threads differ in what they write
    if any(o.terms for o in origin):
        fixed, known = [0] * len(shape), False
    else:
        fixed, known = [o.constant for o in origin] or [0] * len(shape), True
    number = np.arange(1 if private else cta)
    if lanes is not None:
        number = number[(number // lanes[0]) % lanes[1] == lanes[2]]
    digits = []
    for extent in threads[1][:-1]:
        digits.append(number % extent)
        number = number // extent
    digits.append(number)
    places = np.indices(values[1]).reshape(len(values[1]), -1)
    cells = np.zeros((len(number), places.shape[1]), np.int64)
    if not cells.size:
        return False, False
    inside = known
    for d, extent in enumerate(shape):
        at = np.full_like(cells, fixed[d])
        for digit, steps in zip(digits, threads[0], strict=False):  # no threads: one digit over
            at += (digit * steps[d])[:, None]
        for place, steps in zip(places, values[0], strict=True):
            at += place * steps[d]
        inside = inside and int(at.min()) >= 0 and int(at.max()) < extent
        at -= at.min()
        cells = cells * (int(at.max()) + 1) + at
    cells.sort(axis=1)
    each = len(cells) + np.count_nonzero(np.diff(cells, axis=1))
    distinct = len(np.unique(cells))
    return inside and distinct == prod(map(int, shape)), bool(each > distinct) and not private


def _justified(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Drop the register reads that a write of the same block answers."""
    known: dict[str, Affine] = {}
    kept: list[Node] = []
    for node in body:
        match node:
            case Act(_, touches, _):
                asked = tuple(
                    t for t in touches if t.write or known.get(t.ring.name) != t.index
                    or not t.ring.private
                )  # fmt: skip
                kept.append(replace(node, touches=asked))
                for t in touches:
                    if t.write and t.ring.private:
                        known.pop(t.ring.name, None)
                        if t.whole:
                            known[t.ring.name] = t.index
            case Loop() | Guard():
                kept.append(replace(node, body=_justified(node.body)))
                known.clear()
            case _:
                kept.append(node)
    return tuple(kept)


def _compressed(body: tuple[Node, ...], needed: set[Ring]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in body:
        match node:
            case Act(_, touches, _):
                if touches := tuple(t for t in touches if t.ring in needed):
                    kept.append(replace(node, touches=touches))
            case Loop(_, start, stop, _):
                loop = replace(node, body=_compressed(node.body, needed))
                if not loop.body:
                    continue
                if isinstance(stop, int) and is_repeatable(loop):
                    loop = replace(loop, start=0, stop=max(0, min(2, stop - start)))
                if loop.stop != loop.start:
                    kept.append(loop)
            case Guard():
                if inner := _compressed(node.body, needed):
                    kept.append(replace(node, body=inner))
            case _:
                kept.append(node)
    return tuple(kept)
