"""Signature: the numbers of a term that its concurrency depends on.

The event graph judges ordinary terms, one skeleton at a time.  Over a space the question is asked
once for each *key* (statements, buffers, which indices) and each combination of *numbers* (stages,
trips, starts, displacements, pending groups, bounds): tiles, threads and vectors are neither.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import matmul
>>> term = Simt().program(matmul(), Chosen(LADDER["multi-stage"]))
>>> wider = Simt().program(matmul(), Chosen({**LADDER["multi-stage"], "thread_m": 4}))
>>> numbers_of(term) == numbers_of(wider)
True

Source: ``docs/model-concurrency.md``, section "Skeleton".
"""

from __future__ import annotations

from typing import Any

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

__all__ = ["numbers_of"]


def numbers_of(program: Program) -> tuple[Any, tuple[Any, ...]]:
    """Return the key and the numbers (ints, or arrays over a space) of a term's concurrency."""
    positions: dict[Any, int] = {}
    numbers: list[Any] = []

    def number(value: Any) -> Any:
        if isinstance(value, str):
            return value
        identity = value if isinstance(value, int) else ("array", id(value))
        if identity not in positions:
            positions[identity] = len(numbers)
            numbers.append(value)
        return positions[identity]

    def affine(index: Affine) -> Any:
        return number(index.constant), tuple((n, number(c)) for n, c in index.terms)

    def touched(access: Access) -> Any:
        buffer = access.buffer
        return buffer.name, buffer.level, number(buffer.stages), affine(access.index)

    def key(statement: Statement) -> Any:
        match statement:
            case For(name, trips, inner, unrolled, start):
                return "for", name, number(trips), unrolled, number(start), tuple(map(key, inner))
            case When(index, bound, inner):
                return "when", affine(index), number(bound), tuple(map(key, inner))
            case Do():
                on_chip = [a for a in statement.accesses if a.buffer.level != "gmem"]
                writes = statement.write.buffer.level != "gmem"
                how = statement.instruction.completion, statement.lanes is None, statement.across
                return "do", how, writes, tuple(map(touched, on_chip))
            case Exit():
                return ("exit",)
            case Sync(barrier):
                return "sync", number(barrier)
            case Commit():
                return ("commit",)
            case WaitGroup(pending):
                return "wait", number(pending)

    bodies = tuple((role.name, tuple(map(key, role.body))) for role in program.roles)
    return bodies, tuple(numbers)
