"""Mutants of the families in which faults once hid: guards, scopes, declarations, storage, loops.

``mutants(program)`` yields (family, what was done, how to make it): a mutant that cannot be built
raises ProgramError when it is made.  Not every one is faulty.

    guard         a statement that one rank, copy or step does, or all but the first step
    scope         a barrier of other threads, another barrier, group or fence, another target
    declaration   stages, arrivals, home of a barrier; stages, copies, home of a buffer
    storage       extents, strides, stage sizes, swizzles of a buffer
    loop          writes and reads that a loop moves no more, or otherwise; another count of trips
    exit          threads that leave sooner, later, not at all, or only in a step
    name          a variable called as another one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from tests.async_mutants import with_barrier, with_buffer
from tinygpu.isa.instructions import FENCES, GROUPS
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Block,
    Buffer,
    Commit,
    Do,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    var,
    walk,
)

__all__ = ["FAMILIES", "mutants"]

FAMILIES = ("guard", "scope", "declaration", "storage", "loop", "exit", "name")
Make = Callable[[], Program]
Changed = tuple[Statement, ...]


def mutants(program: Program) -> Iterator[tuple[str, str, Make]]:
    """Yield every mutant of one change."""
    for number, (s, around) in enumerate(walk(program)):
        for name, new in _guarded(program, s, around):
            yield "guard", f"{name}: {_line(s)}", partial(_edited, program, number, new)
        for name, new in _scoped(program, s):
            yield "scope", f"{name}: {_line(s)}", partial(_edited, program, number, new)
        for name, new in _looped(s):
            yield "loop", f"{name}: {_line(s)}", partial(_edited, program, number, new)
    for barrier in program.barriers:
        for name, other in _numbers(barrier, ("stages", "arrivals")):
            yield "declaration", f"{barrier.name} {name}", partial(with_barrier, program, other)
        for axis in ("", *(v for v, _ in program.cluster)):
            if axis != barrier.home:
                new_home = replace(barrier, home=axis)
                yield (
                    "declaration",
                    f"{barrier.name} at {axis}",
                    partial(with_barrier, program, new_home),
                )
    for buffer in program.buffers:
        if buffer.level == "gmem":
            continue
        for name, held in _numbers(buffer, ("stages", "copies")):
            yield "declaration", f"{buffer.name} {name}", partial(with_buffer, program, held)
        for axis in ("", *(v for v, _ in program.cluster)):
            if axis != buffer.home and buffer.level == "smem":
                moved = replace(buffer, home=axis)
                yield (
                    "declaration",
                    f"{buffer.name} at {axis}",
                    partial(with_buffer, program, moved),
                )
        for name, stored in _stored(buffer):
            yield "storage", f"{buffer.name} {name}", partial(with_buffer, program, stored)
    yield from _exits(program)
    yield from _names(program)


def _line(s: Statement) -> str:
    return f"{type(s).__name__} .." if isinstance(s, Block) else str(s)[:80]


def _edited(program: Program, number: int, new: Changed) -> Program:
    """Put statements in the place of the one with a number, in the order of ``walk``."""
    count = iter(range(1 << 30))

    def body(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for s in statements:
            here = next(count) == number
            inside = body(s.body) if isinstance(s, Block) else ()
            if here:
                out += new
            else:
                out.append(replace(s, body=inside) if isinstance(s, Block) else s)
        return tuple(out)

    roles = tuple(replace(role, body=body(role.body)) for role in program.roles)
    return replace(program, roles=roles)


def _guarded(
    program: Program, s: Statement, around: tuple[Statement, ...]
) -> Iterator[tuple[str, Changed]]:
    """Yield a statement under guards by each rank, copy and step that it can name."""
    if isinstance(s, Exit):
        return
    for name, extent in program.cluster:
        if int(extent) > 1:
            yield f"{name} 0 alone", (When(var(name), 1, (s,)),)
            yield f"not {name} 0", (When(var(name, -1), 0, (s,)),)
    for role in program.roles:
        if role.copy and int(role.copies) > 1:
            yield f"{role.copy} 0 alone", (When(var(role.copy), 1, (s,)),)
    for outer in around:
        if isinstance(outer, For):
            yield f"{outer.var} 0 alone", (When(var(outer.var), 1, (s,)),)
            yield f"not {outer.var} 0", (When(var(outer.var, -1), 0, (s,)),)
            yield f"{outer.var} below 2", (When(var(outer.var), 2, (s,)),)
            if isinstance(outer.trips, str):
                last = When(replace(var(outer.var), constant=1), outer.trips, (s,))
                yield f"not the last {outer.var}", (last,)
        elif isinstance(outer, ForTile):
            yield f"{outer.turn} 0 alone", (When(var(outer.turn), 1, (s,)),)


def _scoped(program: Program, s: Statement) -> Iterator[tuple[str, Changed]]:
    """Yield a statement that speaks to others."""
    axes = [v for v, extent in program.cluster if int(extent) > 1]
    match s:
        case Sync(number, scope):
            for other in ("role", "cta", "cluster"):
                if other != scope:
                    yield other, (replace(s, scope=other),)
            yield "the next barrier", (replace(s, barrier=int(number) + 1),)
        case Arrive(to=to):
            for other in ("", "cta", "cluster", *axes):
                if other != to:
                    yield f"to {other or 'none'}", (replace(s, to=other),)
            yield "after the other", (replace(s, after="" if s.after else "tcgen05"),)
        case Do() if s.multicast or s.signal:
            for other in ("", *axes):
                if other != s.multicast:
                    yield f"to {other or 'its own'}", (replace(s, multicast=other),)
            if s.signal:
                for barrier in program.barriers:
                    if barrier.name != s.signal[0].name:
                        yield f"at {barrier.name}", (replace(s, signal=(barrier, s.signal[1])),)
        case Commit(group):
            for other in GROUPS:
                if other != group:
                    yield other, (Commit(other),)
        case WaitGroup(pending, group, read):
            yield "one more", (replace(s, pending=int(pending) + 1),)
            yield "read", (replace(s, read=not read),)
            for other in GROUPS:
                if other != group:
                    yield other, (replace(s, group=other),)
        case Fence(kind):
            for other in FENCES:
                if other != kind:
                    yield other, (Fence(other),)
        case _:
            return


def _looped(s: Statement) -> Iterator[tuple[str, Changed]]:
    """Yield statements whose accesses loops move otherwise, and loops of other lengths."""
    if isinstance(s, For) and not isinstance(s.trips, str):
        for by in (-1, 1):
            yield f"trips {by:+}", (replace(s, trips=int(s.trips) + by),)
        yield "start +1", (replace(s, start=int(s.start) + 1),)
    if not isinstance(s, Do):
        return
    for where, access in (("write", s.write), *((f"read {i}", r) for i, r in enumerate(s.reads))):
        if not isinstance(access, Access) or access.buffer.level == "gmem":
            continue
        for name, new in _elsewhere(access):
            if where == "write":
                yield f"{where} {name}", (replace(s, write=new),)
            else:
                i = int(where.split()[1])
                reads = (*s.reads[:i], new, *s.reads[i + 1 :])
                yield f"{where} {name}", (replace(s, reads=reads),)


def _elsewhere(access: Access) -> Iterator[tuple[str, Access]]:
    for d, origin in enumerate(access.origin):
        for i, (name, factor) in enumerate(origin.terms):
            rest = (*origin.terms[:i], *origin.terms[i + 1 :])
            still = Affine(origin.constant, rest)
            new = (*access.origin[:d], still, *access.origin[d + 1 :])
            yield f"unmoved by {name}", replace(access, origin=new)
            if isinstance(factor, int) and factor > 1:
                less = Affine(origin.constant, (*rest, (name, factor // 2)))
                new = (*access.origin[:d], less, *access.origin[d + 1 :])
                yield f"moved half as far by {name}", replace(access, origin=new)
    for field in ("thread", "value"):
        steps = getattr(access, field)
        for i, step in enumerate(steps):
            if any(map(int, step)):
                none = (*steps[:i], (0,) * len(step), *steps[i + 1 :])
                given: dict[str, Any] = {field: none}
                yield f"{field} {i} in one place", replace(access, **given)
    for i, (name, factor) in enumerate(access.index.terms):
        rest = (*access.index.terms[:i], *access.index.terms[i + 1 :])
        yield f"index without {name}", replace(access, index=Affine(access.index.constant, rest))
        if isinstance(factor, int):
            more = Affine(access.index.constant, (*rest, (name, factor + 1)))
            yield f"index with more {name}", replace(access, index=more)


def _numbers(one: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name in names:
        for by in (-1, 1):
            if (new := int(getattr(one, name)) + by) >= 1:
                yield f"{name} {by:+}", replace(one, **{name: new})


def _stored(buffer: Buffer) -> Iterator[tuple[str, Buffer]]:
    each = int(buffer.stage_elements)
    for name, size in (("half a stage", each // 2), ("a cell less", each - 1), ("more", each + 8)):
        if size >= 1:
            yield name, replace(buffer, stage_elements=size)
    for d, (extent, step) in enumerate(zip(buffer.shape, buffer.stride, strict=True)):
        shape = (*buffer.shape[:d], int(extent) - 1, *buffer.shape[d + 1 :])
        if int(extent) > 1:
            yield f"dimension {d} shorter", replace(buffer, shape=shape)
        for new in {0, int(step) + 1, int(step) - 1, int(step) // 2} - {int(step), -1}:
            stride = (*buffer.stride[:d], new, *buffer.stride[d + 1 :])
            yield f"stride {d} {new}", replace(buffer, stride=stride)
    names = {f.name for f in fields(buffer)}
    if "swizzle" in names and buffer.level == "smem" and not int(buffer.swizzle[0]):
        yield "swizzled", replace(buffer, swizzle=(2, 0, 3))


def _exits(program: Program) -> Iterator[tuple[str, str, Make]]:
    every = list(walk(program))
    gone = [number for number, (s, _) in enumerate(every) if isinstance(s, Exit)]
    for number in gone:
        leave = every[number][0]
        yield "exit", f"dropped: {_line(leave)}", partial(_edited, program, number, ())
        for at, (s, around) in enumerate(every):
            if at == number:
                continue
            yield "exit", f"again before: {_line(s)}", partial(_edited, program, at, (leave, s))
            yield "exit", f"again after: {_line(s)}", partial(_edited, program, at, (s, leave))
            for outer in around:
                if isinstance(outer, For):
                    late = When(var(outer.var, -1), 0, (leave,))
                    text = f"in a later {outer.var} before: {_line(s)}"
                    yield "exit", text, partial(_edited, program, at, (late, s))


def _names(program: Program) -> Iterator[tuple[str, str, Make]]:
    loops = [s for s, _ in walk(program) if isinstance(s, For)]
    names = {s.var for s in loops} | {n for n, _ in program.parameters}
    names |= {v for v, _ in program.cluster} | {r.copy for r in program.roles if r.copy}
    for number, (s, _) in enumerate(walk(program)):
        if isinstance(s, For):
            for other in sorted(names - {s.var}):
                yield (
                    "name",
                    f"{s.var} called {other}",
                    partial(_edited, program, number, (replace(s, var=other),)),
                )
        if isinstance(s, Wait | Arrive | When) and s.index.terms:
            (name, factor), *rest = s.index.terms
            for other in sorted(names - {name}):
                called = replace(s, index=Affine(s.index.constant, ((other, factor), *rest)))
                yield (
                    "name",
                    f"{_line(s)}: {name} called {other}",
                    partial(_edited, program, number, (called,)),
                )
