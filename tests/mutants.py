"""Faulty programs made from good ones: one statement, number or step of the term changed at a time.

``mutants(program)`` yields (what was done, program).  Not every one is faulty: a barrier may stand
twice, a narrower vector is only slower.  What has to be found is said by the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tinygpu.term.program import (
    Access,
    Buffer,
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

__all__ = ["mutants", "rewritten"]

Body = tuple[Statement, ...]


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Every mutant of one change, its name first: ``drop``, ``move``, ``stages`` ..."""
    for r, role in enumerate(program.roles):
        for name, body in _bodies(role.body):
            roles = (*program.roles[:r], replace(role, body=body), *program.roles[r + 1 :])
            yield name, replace(program, roles=roles)
    for buffer in program.buffers:
        if buffer.level != "gmem" and buffer.stages > 1:
            fewer = replace(buffer, stages=buffer.stages - 1)
            yield f"stages-1 {buffer.name}", rewritten(program, buffer, fewer)
    if program.zeroed:
        yield "zeroed", replace(program, zeroed=False)


def rewritten(program: Program, old: Buffer, new: Buffer) -> Program:
    """The program with another declaration of a buffer, in all its accesses."""

    def access(a: Any) -> Any:
        if isinstance(a, Access) and a.buffer.name == old.name:
            return replace(a, buffer=new)
        return a

    def statement(s: Statement) -> Statement:
        match s:
            case For() | When():
                return replace(s, body=tuple(map(statement, s.body)))
            case Do():
                return replace(s, write=access(s.write), reads=tuple(map(access, s.reads)))
            case Exit():
                return replace(s, access=access(s.access))
        return s

    roles = tuple(replace(r, body=tuple(map(statement, r.body))) for r in program.roles)
    buffers = tuple(new if b.name == old.name else b for b in program.buffers)
    return replace(program, roles=roles, buffers=buffers)


def _bodies(body: Body) -> Iterator[tuple[str, Body]]:
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        for name, instead in _changes(s):
            yield name, (*before, *instead, *after)
        if isinstance(s, Sync | Commit | WaitGroup):
            yield f"drop {s}", (*before, *after)
            yield f"double {s}", (*before, s, s, *after)
            if after:
                yield f"move {s}", (*before, after[0], s, *after[1:])
            if before:
                yield f"early {s}", (*before[:-1], s, before[-1], *after)
        if isinstance(s, For | When):
            for name, inner in _bodies(s.body):
                yield name, (*before, replace(s, body=inner), *after)


def _changes(s: Statement) -> Iterator[tuple[str, Body]]:
    match s:
        case Do():
            yield f"drop {s}", ()
            yield from _of_do(s)
        case Exit():
            yield f"drop {s}", ()
        case When():
            yield f"always {s.index}", s.body
            yield f"bound+1 {s.index}", (replace(s, index=s.index + -1),)
        case WaitGroup(pending):
            yield f"pending+1 {s}", (WaitGroup(pending + 1),)
            if pending:
                yield f"pending-1 {s}", (WaitGroup(pending - 1),)
        case _:
            pass


def _of_do(do: Do) -> Iterator[tuple[str, Body]]:
    if do.instruction.name not in ("mov", "fma", "cvt"):
        yield f"vector*2 {do}", (replace(do, vector=2 * do.vector),)
        if do.vector > 1:
            yield f"vector/2 {do}", (replace(do, vector=do.vector // 2),)
    for which, access in (("write", do.write), *(("read", r) for r in do.reads)):
        if not isinstance(access, Access):
            continue

        def put(new: Access, old: Access = access, which: str = which) -> Do:
            if which == "write":
                return replace(do, write=new)
            return replace(do, reads=tuple(new if r is old else r for r in do.reads))

        yield from _of_access(do, access, which, put)


def _of_access(
    do: Do, access: Access, which: str, put: Callable[[Access], Do]
) -> Iterator[tuple[str, Body]]:
    for d, guarded in enumerate(access.guard):
        if guarded:
            guard = (*access.guard[:d], False, *access.guard[d + 1 :])
            yield f"unguard {d} of {which} {do}", (put(replace(access, guard=guard)),)
    if access.buffer.level == "smem":
        for by in (1, -1):
            yield f"index{by:+} of {which} {do}", (put(replace(access, index=access.index + by)),)
    for kind in ("thread", "value"):
        modes = getattr(access, kind)
        for i, steps in enumerate(modes):
            moved = next((n for n, step in enumerate(steps) if step), None)
            extents = do.threads if kind == "thread" else do.values
            if moved is None or extents[i] == 1:
                continue
            longer = (*steps[:moved], steps[moved] + 1, *steps[moved + 1 :])
            changed: Any = {kind: (*modes[:i], longer, *modes[i + 1 :])}
            yield f"{kind} step {i} of {which} {do}", (put(replace(access, **changed)),)
