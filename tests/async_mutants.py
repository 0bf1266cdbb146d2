"""Faulty asynchronous programs made from good ones, one change of the term at a time.

``mutants(program)`` yields (name, program); the name's first word is the kind of change, the rest
says where.  Not every one is faulty: a wait may stand twice, a copy may be waited for earlier than
it has to be.  What has to be found is said by the tests.

    drop, double      a statement that orders, or a load, store or product
    swap              a statement with the next one of its block
    later, sooner     an index (of a wait, arrival, signal, read, write) one up or down
    count+, count-    the arrivals of a barrier
    bytes+, bytes-    the bytes that an arrival expects
    stages+, stages-  of a barrier (barrier), or of a buffer
    pending+, -       of a wait_group; ``full`` and ``read`` change what a store's wait is for
    bound+, bound-    of a guard
    alone, together   a statement by one thread, by all
    near              an arrival at the own CTA only; ``unsent`` a load that is not multicast
    shared            a buffer of each copy that copies share
    stale             sums that are never started anew

``moved`` yields further ones: ``first`` and ``last``, what orders to the ends of its block, and
``phase+``, ``phase-``, a wait or arrival one phase of its barrier later or sooner.

``changes`` and ``moves`` are the same with the term still to be made, for who takes few of many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tinygpu.term.program import (
    Access,
    Arrive,
    Barrier,
    Block,
    Buffer,
    Commit,
    Do,
    Elect,
    Fence,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
)

__all__ = ["Edit", "changes", "moved", "moves", "mutants", "with_barrier", "with_buffer"]

Body = tuple[Statement, ...]
Edit = tuple[str, Callable[[], Program]]
_ORDER = (Wait, Arrive, Commit, WaitGroup, Fence, Sync)
_LATER = ("mbarrier", "wgmma_group", "bulk_group", "commit_group")


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Every mutant of one change; see the module's text."""
    return ((name, make()) for name, make in changes(program))


def changes(program: Program) -> Iterator[Edit]:
    for r, role in enumerate(program.roles):
        for name, body in _bodies(role.body):
            changed = replace(role, body=body)
            roles = (*program.roles[:r], changed, *program.roles[r + 1 :])
            yield f"{name} of {role.name}", partial(replace, program, roles=roles)
    for barrier in program.barriers:
        for by, sign in ((1, "+"), (-1, "-")):
            counted = replace(barrier, arrivals=barrier.arrivals + by)
            if counted.arrivals:
                yield f"count{sign} {barrier.name}", partial(with_barrier, program, counted)
            staged = replace(barrier, stages=barrier.stages + by)
            if staged.stages:
                yield f"stages{sign} barrier {barrier.name}", partial(with_barrier, program, staged)
    for buffer in program.buffers:
        if buffer.level == "smem":
            for by, sign in ((1, "+"), (-1, "-")):
                if buffer.stages + by:
                    other = replace(buffer, stages=buffer.stages + by)
                    make = partial(with_buffer, program, other)
                    yield f"stages{sign} buffer {buffer.name}", make
            if buffer.copies > 1:
                other = replace(buffer, copies=1)
                yield f"shared {buffer.name}", partial(with_buffer, program, other)


def _bodies(body: Body) -> Iterator[tuple[str, Body]]:
    """Every body with one change, at any depth."""
    for i, statement in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        if isinstance(statement, Block):
            for name, inner in _bodies(statement.body):
                yield name, (*before, replace(statement, body=inner), *after)
        if isinstance(statement, Elect):
            yield f"together {_label(statement.body)}", (*before, *statement.body, *after)
        if isinstance(statement, When):
            for by, sign in ((1, "+"), (-1, "-")):
                moved = replace(statement, index=statement.index + -by)
                yield f"bound{sign} {statement.index}", (*before, moved, *after)
        if _counts(statement):
            yield f"drop {statement}", (*before, *after)
            yield f"double {statement}", (*before, statement, statement, *after)
            if not isinstance(statement, Do):
                yield f"alone {statement}", (*before, Elect((statement,)), *after)
            if after and (_counts(after[0]) or isinstance(after[0], Block)):
                yield f"swap {statement}", (*before, after[0], statement, *after[1:])
        for name, changed in _changes(statement):
            yield f"{name} {statement}", (*before, changed, *after)


def moved(program: Program) -> Iterator[tuple[str, Program]]:
    """Every mutant in which a statement that orders is far from where it was."""
    return ((name, make()) for name, make in moves(program))


def moves(program: Program) -> Iterator[Edit]:
    for r, role in enumerate(program.roles):
        for name, body in _moved(role.body):
            roles = (*program.roles[:r], replace(role, body=body), *program.roles[r + 1 :])
            yield f"{name} of {role.name}", partial(replace, program, roles=roles)


def _moved(body: Body) -> Iterator[tuple[str, Body]]:
    for i, s in enumerate(body):
        rest = (*body[:i], *body[i + 1 :])
        if isinstance(s, Block):
            for name, inner in _moved(s.body):
                yield name, (*body[:i], replace(s, body=inner), *body[i + 1 :])
        if isinstance(s, _ORDER) or (isinstance(s, Elect | When) and len(body) > 1):
            label = _label(s.body) if isinstance(s, Elect | When) else str(s)
            if i > 1:
                yield f"first {label}", (s, *rest)
            if i < len(body) - 2:
                yield f"last {label}", (*rest, s)
        if isinstance(s, Wait | Arrive):
            for by, sign in ((1, "+"), (-1, "-")):
                far = replace(s, index=s.index + by * s.barrier.stages)
                yield f"phase{sign} {s}", (*body[:i], far, *body[i + 1 :])


def _label(body: Body) -> str:
    first = body[0] if body else None
    return type(first).__name__ if isinstance(first, Block) else str(first)


def _counts(statement: Statement) -> bool:
    if isinstance(statement, Do):
        return statement.instruction.completion in _LATER
    return isinstance(statement, _ORDER)


def _changes(s: Statement) -> Iterator[tuple[str, Statement]]:
    """A statement with one number changed."""
    both = ((1, "later", "+"), (-1, "sooner", "-"))
    match s:
        case Wait() | Arrive():
            for by, name, _ in both:
                yield name, replace(s, index=s.index + by)
        case WaitGroup():
            yield "pending+", replace(s, pending=s.pending + 1)
            if s.pending:
                yield "pending-", replace(s, pending=s.pending - 1)
            if s.group == "bulk":
                yield ("full" if s.read else "read"), replace(s, read=not s.read)
        case Do():
            yield from _touching(s)
        case _:
            pass
    if isinstance(s, Arrive):
        if s.bytes:
            yield "bytes+", replace(s, bytes=s.bytes + 16)
            yield "bytes-", replace(s, bytes=s.bytes - 16)
        if s.to == "cluster":
            yield "near", replace(s, to="cta")


def _touching(s: Do) -> Iterator[tuple[str, Statement]]:
    """A Do with an index or a flag changed."""
    for by, name in ((1, "later"), (-1, "sooner")):
        for i, read in enumerate(s.reads):
            if isinstance(read, Access) and read.buffer.level == "smem":
                moved = replace(read, index=read.index + by)
                yield f"{name} read {i}", replace(s, reads=(*s.reads[:i], moved, *s.reads[i + 1 :]))
        if s.write.buffer.level == "smem":
            yield f"{name} write", replace(s, write=replace(s.write, index=s.write.index + by))
        if s.signal:
            yield f"{name} signal", replace(s, signal=(s.signal[0], s.signal[1] + by))
    if s.multicast:
        yield "unsent", replace(s, multicast="")
    if s.fresh is not None:
        yield "stale", replace(s, fresh=s.fresh + 1)


def with_barrier(program: Program, new: Barrier) -> Program:
    """The program with another declaration of a barrier, wherever it is used."""

    def change(s: Statement) -> Statement:
        if isinstance(s, Wait | Arrive) and s.barrier.name == new.name:
            return replace(s, barrier=new)
        if isinstance(s, Do) and s.signal and s.signal[0].name == new.name:
            return replace(s, signal=(new, s.signal[1]))
        return s

    barriers = tuple(new if b.name == new.name else b for b in program.barriers)
    return replace(program, barriers=barriers, roles=_everywhere(program, change))


def with_buffer(program: Program, new: Buffer) -> Program:
    """The program with another declaration of a buffer, wherever it is used."""

    def access(a: Any) -> Any:
        return replace(a, buffer=new) if isinstance(a, Access) and a.buffer.name == new.name else a

    def change(s: Statement) -> Statement:
        if isinstance(s, Do):
            return replace(s, write=access(s.write), reads=tuple(map(access, s.reads)))
        return s

    buffers = tuple(new if b.name == new.name else b for b in program.buffers)
    return replace(program, buffers=buffers, roles=_everywhere(program, change))


def _everywhere(program: Program, change: Callable[[Statement], Statement]) -> tuple[Role, ...]:
    def body(statements: Body) -> Body:
        return tuple(
            replace(s, body=body(s.body)) if isinstance(s, Block) else change(s) for s in statements
        )

    return tuple(replace(r, body=body(r.body)) for r in program.roles)
