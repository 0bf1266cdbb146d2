"""Signature: the numbers of a term that its concurrency depends on.

The judge decides ordinary terms, one skeleton at a time.  Over a space the question is asked
once for each *key* (statements, buffers, which indices) and each combination of *numbers* (stages,
trips, starts, displacements, pending groups, bounds): tiles, threads and vectors are neither.
What ``tinygpu.legality.concurrency.erase`` leaves out is left out here: registers that are read
only where the same block has just written them; of a loop whose iterations from the second on are
alike, how many more than two there are.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> term = Simt().program(matmul(), Chosen(LADDER["multi-stage"]))
>>> wider = Simt().program(matmul(), Chosen({**LADDER["multi-stage"], "thread_m": 4}))
>>> numbers_of(term) == numbers_of(wider)
True
>>> deeper = Simt().program(matmul(), Chosen({**LADDER["multi-stage"], "tile_k": 32}))
>>> numbers_of(term) == numbers_of(deeper)
True

Source: ``docs/model-concurrency.md``, section "Skeleton".
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

import numpy as np

from tinygpu.legality.reach import structural_key
from tinygpu.numbers import Number
from tinygpu.term.program import (
    Access,
    Block,
    Body,
    Do,
    For,
    Program,
    Statement,
)

__all__ = ["numbers_of"]


def numbers_of(program: Program) -> tuple[Hashable, tuple[Number, ...]]:
    """Return the key and the numbers (ints, or arrays over a space) of a term's concurrency."""
    positions: dict[Hashable, int] = {}
    numbers: list[Number] = []

    def number(value: Number) -> int:
        identity = ("array", id(value)) if isinstance(value, np.ndarray) else int(value)
        if identity not in positions:
            positions[identity] = len(numbers)
            numbers.append(value)
        return positions[identity]

    asked = set().union(*(_asked(role.body) for role in program.roles))

    def touches(statement: Do) -> tuple[Access, ...]:
        return tuple(
            a
            for a in statement.accesses
            if a.buffer.level != "gmem"
            and (a.buffer.level != "registers" or a.buffer.name in asked)
        )

    def repeats(loop: For) -> bool:
        """Say whether every iteration from the second on does what the second did."""
        return all(
            isinstance(s, Do)
            and s.joins is None
            and not any(name == loop.var for a in touches(s) for name, _ in a.index.terms)
            for s in loop.body
        )

    def touched(access: Access) -> Hashable:
        buffer = access.buffer
        return buffer.name, buffer.level, number(buffer.stages), of((access.index, access.peer))

    def key(statement: Statement) -> Hashable:
        own = {f.name: getattr(statement, f.name) for f in fields(statement)}
        own = {name: part for name, part in own.items() if name not in _ELSEWHERE}
        more: tuple[Hashable, ...] = ()
        if isinstance(statement, Do):
            instruction = statement.instruction
            own["instruction"] = instruction.completion, instruction.issuer, instruction.unit
            writes, masked = statement.write.buffer.level != "gmem", statement.where is not None
            more = writes, masked, tuple(map(touched, touches(statement)))
        elif (
            isinstance(statement, For)
            and not isinstance(trips := statement.trips, str)
            and repeats(statement)
        ):
            often = np.minimum(np.maximum(trips - statement.start, 0), 2)
            own = {"var": statement.var, "often": often}
        return type(statement), of(tuple(own.values())), more, tuple(map(key, statement.body))

    def of(part: object) -> Hashable:
        return structural_key(part, number)

    bodies = tuple((role.name, tuple(map(key, role.body))) for role in program.roles)
    return bodies, tuple(numbers)


_ELSEWHERE = frozenset((
    "access", "body", "reads", "threads", "unrolled", "values", "variant", "vector", "where",
    "write",
))  # fmt: skip
"""Fields of statements that order nothing, or are asked for by themselves."""


def _asked(body: Body) -> set[str]:
    """Return the register buffers of which a read is not answered by a write of the same block."""
    found: set[str] = set()
    written: dict[str, Hashable] = {}
    for statement in body:
        if isinstance(statement, Block):
            found |= _asked(statement.body)
            written.clear()
        elif isinstance(statement, Do):
            *reads, write = statement.accesses
            for read in (*reads, write) if statement.where else reads:
                name = read.buffer.name
                own = read.buffer.level == "registers"
                if own and written.get(name) != structural_key(read.index):
                    found.add(name)
            whole = statement.lanes is None
            written[write.buffer.name] = structural_key(write.index) if whole else None
    return found
