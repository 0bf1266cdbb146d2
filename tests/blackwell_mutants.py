"""Faulty programs with tensor memory made from good ones: what ``async_mutants`` does not change.

``tensor_mutants(program)`` yields (name, program); names are as there.  Not every one is faulty.

    drop, double      a product, a load or store of tensor memory
    later, sooner     the index of sums that are read (loads), or multiplied into
    stages+, stages-  of a buffer in tensor memory
    lanes, columns    a load takes the next 32 lanes, eight columns further
    at-once           an arrival that does not wait for products (no tcgen05.commit)
    after-all         an arrival that does, though its thread multiplies nothing
    before, after     a tcgen05.fence that is the other one
    near              an arrival at its own CTA instead of the pair's
    homeless          a barrier of each CTA instead of the pair's first one
    anywhere          what one CTA of a pair does, done by both
    in-first          what stands in the last chunk (the release), in the first
    begin             the wait for others before the end (and the dealloc), at the beginning
    anew              sums that are started anew with each step
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tests.async_mutants import Edit, with_barrier, with_buffer
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Block,
    Do,
    Fence,
    Program,
    Statement,
    Sync,
    When,
    var,
)

__all__ = ["tensor_changes", "tensor_mutants"]

Body = tuple[Statement, ...]
_TENSOR = ("tcgen05_commit", "tcgen05_wait")
_QUARTER, _COLUMNS = 32, 8


def tensor_mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Every mutant of one change; see the module's text."""
    return ((name, make()) for name, make in tensor_changes(program))


def tensor_changes(program: Program) -> Iterator[Edit]:
    ranks = {name for name, _ in program.cluster}

    def change(s: Statement) -> Iterator[tuple[str, Body]]:
        yield from _changes(s, ranks)

    for r, role in enumerate(program.roles):
        bodies = [*_everywhere(role.body, change), *_early_ends(role.body)]
        for name, body in bodies:
            roles = (*program.roles[:r], replace(role, body=body), *program.roles[r + 1 :])
            yield f"{name} of {role.name}", partial(replace, program, roles=roles)
    for barrier in program.barriers:
        if barrier.home:
            lost = replace(barrier, home="")
            yield f"homeless {barrier.name}", partial(with_barrier, program, lost)
    for buffer in program.buffers:
        for by, sign in ((1, "+"), (-1, "-")):
            if buffer.level == "tmem" and buffer.stages + by:
                other = replace(buffer, stages=buffer.stages + by)
                yield f"stages{sign} buffer {buffer.name}", partial(with_buffer, program, other)


def _everywhere(
    body: Body, change: Callable[[Statement], Iterator[tuple[str, Body]]]
) -> Iterator[tuple[str, Body]]:
    """Every body in which one statement, at any depth, is changed."""
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        if isinstance(s, Block):
            for name, inner in _everywhere(s.body, change):
                yield name, (*before, replace(s, body=inner), *after)
        for name, new in change(s):
            yield name, (*before, *new, *after)


def _changes(s: Statement, ranks: set[str]) -> Iterator[tuple[str, Body]]:
    match s:
        case Do() if s.instruction.completion in _TENSOR:
            yield f"drop {s}", ()
            yield f"double {s}", (s, s)
            for name, changed in _touching(s):
                yield f"{name} {s}", (changed,)
        case Arrive():
            other = replace(s, after="" if s.after else "tcgen05")
            yield f"{'at-once' if s.after else 'after-all'} {s}", (other,)
            if s.to in ranks:
                yield f"near {s}", (replace(s, to="cta"),)
        case Fence("tcgen05.before"):
            yield f"after {s}", (Fence("tcgen05.after"),)
        case Fence("tcgen05.after"):
            yield f"before {s}", (Fence("tcgen05.before"),)
        case When(index, _, body) if {name for name, _ in index.terms} <= ranks:
            yield f"anywhere when {index}", body
        case When(index) if index.terms[0] == ("chunk", -1):
            yield f"in-first when {index}", (replace(s, index=var("chunk"), bound=1),)
        case _:
            pass


def _touching(s: Do) -> Iterator[tuple[str, Statement]]:
    """A load, store or product that touches other places of tensor memory."""
    touched = [i for i, r in enumerate(s.reads) if isinstance(r, Access) and _in_tensor(r)]

    def moved(access: Access, by: int) -> Access:
        return replace(access, index=access.index + by)

    for by, name in ((1, "later"), (-1, "sooner")):
        reads = tuple(
            moved(r, by) if isinstance(r, Access) and i in touched else r
            for i, r in enumerate(s.reads)
        )
        write = moved(s.write, by) if _in_tensor(s.write) else s.write
        yield f"{name} sums", replace(s, reads=reads, write=write)
    if s.fresh is not None:
        yield "anew", replace(s, fresh=Affine(0))
    elif touched:
        read = s.reads[0]
        assert isinstance(read, Access)
        lane, column = read.origin or (Affine(), Affine())
        for name, origin in (("lanes", (lane + _QUARTER, column)),
                             ("columns", (lane, column + _COLUMNS))):  # fmt: skip
            yield name, replace(s, reads=(replace(read, origin=origin),))


def _in_tensor(access: Access) -> bool:
    return access.buffer.level == "tmem"


def _early_ends(body: Body) -> Iterator[tuple[str, Body]]:
    """A role that comes to its last barrier first, so that tensor memory may be given back."""
    *rest, last = body
    if isinstance(last, Sync) and last.scope == "cluster" and rest:
        yield f"begin {last}", (last, *rest)
