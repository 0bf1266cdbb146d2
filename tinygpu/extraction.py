"""Extraction: from a program to its concurrency skeleton.

What cannot change a verdict is left out:

* A read of a register ring at index e that follows, in the same block, a whole write at the same
  affine e sees that write, whatever the variables are; and a register ring that no other read
  touches needs no record.  Fragments of a tile and their products go this way.
* A loop whose body waits for nothing, copies nothing asynchronously and does not mention the
  loop's variable does in its third iteration what it did in its second: two represent it.

>>> from tinygpu.instruction import INSTRUCTIONS
>>> from tinygpu.program import Access, Buffer, For, Sync, registers, var
>>> from tinygpu.skeleton import show
>>> x, r = Buffer("x", "smem", "f32", (32,), (1,), 2, 32), registers("r", "f32", 1)
>>> put = Access(x, ((0,),), ((1,),), index=var("k") + 1)
>>> store = Do(INSTRUCTIONS["st.shared"], put, (Access(r, ((0,),), ((0,),)),), (1,), (32,))
>>> for line in show(body_of((For("k", "trips", (store, Sync())),), 32)):
...     print(line)
for k in 0..trips:
  st.shared: read r, write x@(k + 1)
  bar.sync 0

Source: ``docs/model-concurrency.md``, section "Skeleton".
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from tinygpu.errors import ProgramError
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
from tinygpu.skeleton import (
    Act,
    Guard,
    Leave,
    Loop,
    Node,
    Ring,
    Skeleton,
    Touch,
    names_of,
    nodes,
)

__all__ = ["body_of", "coverage", "meeting", "skeleton_of"]


def skeleton_of(program: Program) -> Skeleton:
    """Extract the skeleton of a program whose numbers are ints (no arrays over a space)."""
    return Skeleton(tuple((r.name, body_of(r.body, r.threads)) for r in program.roles))


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


def _is_repeatable(loop: Loop) -> bool:
    """Say whether every iteration from the second on does what the second did."""
    for node in nodes(loop.body):
        match node:
            case Act(_, touches, copies):
                if copies or any(loop.var in names_of(t.index) for t in touches):
                    return False
            case Guard(index, _, _):
                if loop.var in names_of(index):
                    return False
            case Loop():
                pass
            case _:
                return False
    return True


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
        case Sync(barrier, "cta"):
            return Sync(int(barrier))
        case WaitGroup(pending, "cp.async"):
            return WaitGroup(int(pending))
        case Commit("cp.async"):
            return statement
        case _:
            raise ProgramError(
                f"{statement}: this skeleton has bar.sync and cp.async only; "
                "programs with others are judged by tinygpu.conditions"
            )


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
        whole, overlap = coverage(do, threads)
        touches.append(Touch(_ring(do.write), _normal(do.write.index), True, whole, overlap))
    unique = tuple(dict.fromkeys(touches))
    return Act(do.instruction.name, unique, do.instruction.completion == "commit_group")


def coverage(do: Do, threads: int) -> tuple[bool, bool]:
    """Return whether a write fills its stage, and whether two of the threads share a cell."""
    return _coverage(
        do.write.buffer.level,
        do.write.buffer.shape,
        tuple(_normal(o) for o in do.write.origin),
        (do.write.value, do.values),
        (do.write.thread, do.threads),
        do.lanes,
        threads,
    )


def meeting(
    do: Do, threads: int, around: tuple[tuple[str, int, int], ...]
) -> tuple[bool, tuple[str, ...]]:
    """Return whether two threads of a write share a cell, and the loops that let them.

    ``around``: the loops of constant trips around it, (variable, start, stop), innermost last.  Of
    a tile in a fragment each element is taken to be a thread's of its own.
    """
    write = do.write
    if write.buffer.level == "registers":
        return False, ()
    origin = tuple(_normal(o) for o in write.origin)
    steps, extents = (write.value, do.values), (write.thread, do.threads)
    lanes, count = do.lanes, threads
    if any(access.buffer.fragment for access in do.accesses):
        steps, extents, lanes, count = ((), ()), (write.value, do.values), None, prod(do.values)

    def shared(modes: Modes) -> bool:
        both = (*steps[0], *modes[0]), (*steps[1], *modes[1])
        return _coverage("smem", write.buffer.shape, origin, both, extents, lanes, count)[1]

    overlap = shared(((), ()))
    found: list[str] = []
    modes: Modes = ((), ())
    for name, start, stop in reversed(around):
        coefficients = [dict(form.terms).get(name, 0) for form in origin]
        if found:
            found.append(name)  # and so do all loops around one
        elif any(isinstance(c, str) for c in coefficients):
            found.append(name)
        elif any(coefficients):
            modes = (*modes[0], tuple(map(int, coefficients))), (*modes[1], stop - start)
            if stop > start and shared(modes):
                found.append(name)
    return overlap, tuple(found)


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
    places = np.zeros((0, 1), np.int64)
    if values[1]:
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
                if _is_repeatable(loop):
                    loop = replace(loop, most=2)
                    if isinstance(stop, int):
                        loop = replace(loop, start=0, stop=max(0, min(2, stop - start)), most=None)
                if loop.stop != loop.start:
                    kept.append(loop)
            case Guard():
                if inner := _compressed(node.body, needed):
                    kept.append(replace(node, body=inner))
            case _:
                kept.append(node)
    return tuple(kept)
