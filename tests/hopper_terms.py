"""Terms of hopper, and ways to make them wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tinygpu.devices.device import load_device
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import matmul
from tinygpu.term.program import Access, Block, Buffer, Do, Program, Statement

H200 = load_device("h200")
LARGE = {"m": 4096, "n": 4096, "k": 4096}
LAYOUTS = ("nn", "nt", "tn", "tt")


def term(start: str, layout: str = "nt", output: str | None = None, **changes: Value) -> Program:
    values = {**STARTS[start], **changes}
    return Hopper().program(matmul("bf16", output, layout), Chosen(values))


def broken(program: Program, sizes: Mapping[str, int] = LARGE) -> dict[str, str]:
    """The first broken clause of each law that has arithmetic."""
    case = Case.of(program, sizes, H200)
    found: dict[str, str] = {}
    for law in LAWS.values():
        for clause in law.clauses(case) if law.numeric else ():
            if not clause.holds:
                found.setdefault(law.name, str(clause))
    return found


def rewritten(
    program: Program,
    change: Callable[[Statement], Statement | tuple[Statement, ...]],
    **declared: Any,
) -> Program:
    """The program with each statement replaced, innermost first, and with what it declares."""

    def body(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for statement in statements:
            if isinstance(statement, Block):
                statement = replace(statement, body=body(statement.body))
            new = change(statement)
            found += new if isinstance(new, tuple) else (new,)
        return tuple(found)

    roles = tuple(replace(r, body=body(r.body)) for r in program.roles)
    return replace(program, roles=roles, **declared)


def dos(program: Program, instruction: str, change: Callable[[Do], Any]) -> Program:
    return rewritten(
        program,
        lambda s: change(s) if isinstance(s, Do) and s.instruction.name == instruction else s,
    )


def rebuffered(program: Program, name: str, **changes: Any) -> Program:
    """The program with a buffer changed, wherever it is mentioned."""

    def buffer(old: Buffer) -> Buffer:
        return replace(old, **changes) if old.name == name else old

    def access(old: Any) -> Any:
        return replace(old, buffer=buffer(old.buffer)) if isinstance(old, Access) else old

    def change(statement: Statement) -> Statement:
        if not isinstance(statement, Do):
            return statement
        reads = tuple(map(access, statement.reads))
        return replace(statement, write=access(statement.write), reads=reads)

    return rewritten(program, change, buffers=tuple(map(buffer, program.buffers)))


def role(program: Program, name: str, **changes: Any) -> Program:
    roles = tuple(replace(r, **changes) if r.name == name else r for r in program.roles)
    return replace(program, roles=roles)
