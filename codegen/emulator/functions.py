"""Functions: what a kernel calls is put behind it.

A function's names have its own as a suffix, so that a call is a jump.

Source: PTX ISA 9.0, sections 7 (function declarations, ABI) and 9.7.13 (call, ret).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .errors import ProgramError
from .memory import FUNCTION
from .parser import Instruction, Kernel, Parsed, split

__all__ = ["Function", "address_of", "link", "parts_of_call"]


@dataclass(frozen=True, slots=True)
class Function:
    """A function whose names are its own: where it begins, whether its registers are to be kept."""

    kernel: Kernel
    start: int
    calls_itself: bool


def parts_of_call(i: Instruction) -> tuple[tuple[str, ...], str, tuple[str, ...], str]:
    """Return what a call gives to, whom it calls, with what, and by which list of callees."""
    operands = list(i.operands)
    to = split(operands.pop(0)[1:-1]) if operands[0].startswith("(") else ()
    if not operands:
        raise ProgramError(f"PTX {i}: whom it calls is missing")
    name = operands.pop(0)
    given = split(operands.pop(0)[1:-1]) if operands and operands[0].startswith("(") else ()
    return to, name, given, operands.pop(0) if operands else ""


def _callees(kernel: Kernel, parsed: Parsed) -> Iterator[str]:
    for variable in parsed.variables:  # tables of functions
        yield from re.findall(r"[\w$]+", variable.values)
    for i in kernel.instructions:
        if i.opcode in ("call", "call.uni") and i.operands:
            yield parts_of_call(i)[1]
        for name in re.findall(r"[\w$#]+", " ".join(i.operands)):
            if name in parsed.functions:
                yield name


def link(parsed: Parsed, kernel: Kernel) -> tuple[Kernel, dict[str, Function], tuple[str, ...]]:
    """Put the functions that a kernel may reach behind it; says also whose each instruction is."""
    reach: dict[str, set[str]] = {}
    waiting = [kernel]
    while waiting:
        one = waiting.pop()
        reach[one.name] = {n for n in _callees(one, parsed) if n in parsed.functions}
        waiting += [parsed.functions[n] for n in sorted(reach[one.name] - reach.keys())]
    for middle in reach:  # whatever is reached through it, one after the other (Warshall)
        for known in reach.values():
            known |= reach[middle] if middle in known else set()
    end = Instruction(kernel.instructions[-1].line if kernel.instructions else 0, "ret", ())
    instructions = [*kernel.instructions, end]
    owners = [kernel.name] * len(instructions)
    registers, variables = dict(kernel.registers), list(kernel.variables)
    labels, targets, functions = dict(kernel.labels), dict(kernel.targets), {}
    for name in sorted(reach.keys() - {kernel.name}):
        function = parsed.functions[name]
        start = len(instructions)
        formal = (*function.returns, *function.parameters)
        own = function.registers | {v.name: v.type for v in formal if v.space == "reg"}
        registers |= own
        variables += [*function.variables, *(v for v in formal if v.space == "param")]
        labels |= {label: at + start for label, at in function.labels.items()}
        targets |= function.targets
        last = function.instructions[-1].line if function.instructions else end.line
        instructions += [*function.instructions, replace(end, line=last)]
        owners += [name] * (len(function.instructions) + 1)
        functions[name] = Function(replace(function, registers=own), start, name in reach[name])
    merged = replace(
        kernel, registers=registers, variables=tuple(variables), labels=labels, targets=targets,
        instructions=tuple(instructions),
    )  # fmt: skip
    return merged, functions, tuple(owners)


def address_of(parsed: Parsed, name: str) -> int:
    """Return a function's address."""
    return FUNCTION + 16 * (1 + [*parsed.functions].index(name))
