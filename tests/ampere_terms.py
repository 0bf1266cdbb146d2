"""Terms of the machine ampere for tests, and changes of their statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import matmul
from tinygpu.term.program import Access, Do, Program, walk


def term(name: str, layout: str = "nt", dtype: str = "bf16", **changes: Value) -> Program:
    """Return the term of a start."""
    values = {**STARTS[name], **changes}
    if dtype == "tf32":
        values["vector_c"] = min(4, int(values["vector_c"]))
    output = "f32" if values["combine"] == "red" else None
    return Ampere().program(matmul(dtype, output, layout), Chosen(values))


def statements(program: Program, name: str) -> list[Do]:
    """Return the statements of an instruction."""
    return [s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.name == name]


def changed(**changes: Any) -> Callable[[Do], Do]:
    return lambda do: replace(do, **changes)


def of_read(i: int, **changes: Callable[[Any], Any]) -> Callable[[Do], Do]:
    """Change fields of a statement's i-th read."""

    def change(do: Do) -> Do:
        reads = list(do.reads)
        old = reads[i]
        assert isinstance(old, Access)
        reads[i] = replace(old, **{n: f(getattr(old, n)) for n, f in changes.items()})
        return replace(do, reads=tuple(reads))

    return change
