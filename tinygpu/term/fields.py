"""The fields of a term that walks know.

A walk that overlooks a field answers as if the field were not there: a wrong term is then called
right.  So every field of every part of a term stands in ``KNOWN``, and a walk that meets another
one does not answer: the judge and ``computes`` call the term unproved, the interpreter, the time
model and the emitter refuse it.  Who adds a field adds it here, and ``tests/test_fields.py`` then
asks of each walk that it reads the field, or says why it need not.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> unknown(Simt().program(matmul(), Chosen(LADDER["shared"])))
''

Source: ``docs/model.md``, section "Terms".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache

from tinygpu.errors import ProgramError
from tinygpu.term.program import Block, Do, Exit, Program, walk

__all__ = ["KNOWN", "require_known", "unknown"]

KNOWN: Mapping[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        "Program": "name operation buffers parameters grid roles raster specialised zeroed "
        "addressing guards ctas_per_sm at_most barriers cluster persistent early snake "
        "zigzag",
        "Role": "name threads body copies copy registers",
        "Axis": "var extent down",
        "Buffer": "name level dtype shape stride stages stage_elements swizzle copies home pages",
        "Access": "buffer value thread origin index guard outside trimmed peer",
        "Affine": "constant terms",
        "Immediate": "number",
        "Scalar": "name size",
        "Predicate": "origin value thread bound",
        "Barrier": "name stages arrivals home number",
        "Instruction": "name reads writes unit completion variants atomic issuer arch lower "
        "meaning laws types blocks folds per_cycle",
        "Do": "instruction write reads values threads vector variant lanes across signal multicast "
        "fresh where",
        "For": "var trips body unrolled start",
        "ForTile": "tile turn body start step values",
        "When": "index bound body",
        "Elect": "body",
        "Exit": "access values threads",
        "Sync": "barrier scope",
        "Commit": "group",
        "WaitGroup": "pending group read",
        "Wait": "barrier index",
        "Arrive": "barrier index bytes to after",
        "Fence": "kind",
    }.items()
}
"""The fields of each part of a term."""


def unknown(program: Program) -> str:
    """Return the first part of a term that no walk knows, or "" if all are known."""
    for kind in dict.fromkeys(_kinds(program)):
        if strange := _strange(kind):
            return strange
    return ""


def require_known(program: Program) -> None:
    """Raise ProgramError for a term with a part that no walk knows."""
    if strange := unknown(program):
        raise ProgramError(f"program {program.name}: {strange}; add it to tinygpu/term/fields.py")


def _kinds(program: Program) -> Iterator[type]:
    """Yield the classes of a term's parts."""
    yield type(program)
    for part in (*program.grid, *program.roles, *program.buffers, *program.barriers):
        yield type(part)
    for statement, _ in walk(program):
        yield type(statement)
        if isinstance(statement, Block):
            continue
        if isinstance(statement, Do):
            yield type(statement.instruction)
            yield from map(type, statement.reads)
            yield from [type(statement.where)] if statement.where is not None else []
        if isinstance(statement, Do | Exit):
            for access in statement.accesses:
                yield type(access)
                yield type(access.buffer)
        for use in statement.uses:
            yield type(use.ring)
            yield type(use.at)


@cache
def _strange(kind: type) -> str:
    known = KNOWN.get(kind.__name__)
    if known is None:
        return f"no walk knows a {kind.__name__}"
    more = sorted({f.name for f in fields(kind)} - known)
    return f"no walk knows the field {more[0]} of {kind.__name__}" if more else ""
