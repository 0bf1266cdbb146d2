"""Functions: what a kernel calls is put behind it, and threads keep where they return to.

A function's names get its own as a suffix, so that a call is a jump.  Parameters of functions lie
in a frame, one a thread.  What calls itself, through others or not, keeps its registers and its
parameters by depth; local variables of such functions are shared by their calls.

Source: PTX ISA 9.0, sections 7 (function declarations, ABI) and 9.7.13 (call, ret).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygpu.codegen.emulator.group import Group
from tinygpu.codegen.emulator.memory import FUNCTION
from tinygpu.codegen.emulator.parser import Instruction, Kernel, Parsed, Variable, split
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run
from tinygpu.codegen.emulator.state import Stack
from tinygpu.errors import ProgramError

__all__ = ["BUILTINS", "DEEPEST", "Function", "Linked", "address_of", "link", "parts_of_call"]

DEEPEST = 64
"""How many calls deep a thread may be: a recursion beyond it is a finding."""


@dataclass(frozen=True, slots=True)
class Function:
    """Where a function begins, what it takes and gives, and what a call from it has to keep."""

    name: str
    start: int
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    registers: tuple[str, ...]
    variables: tuple[Variable, ...]
    calls_itself: bool


@dataclass(frozen=True, slots=True)
class Linked:
    """A kernel with its functions behind it; ``owners`` says whose each instruction is."""

    kernel: Kernel
    functions: Mapping[str, Function]
    owners: tuple[str, ...]


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
        for name in re.findall(r"[\w$]+", " ".join(i.operands)):
            if name in parsed.functions:
                yield name


def link(parsed: Parsed, kernel: Kernel) -> Linked:
    """Put the functions that a kernel may reach behind it."""
    reach: dict[str, set[str]] = {}
    waiting = [kernel]
    while waiting:
        one = waiting.pop()
        reach[one.name] = {n for n in _callees(one, parsed) if n in parsed.functions}
        waiting += [parsed.functions[n] for n in sorted(reach[one.name] - reach.keys())]
    again = True
    while again:
        again = False
        for known in reach.values():
            more = set().union(*(reach[n] for n in known)) if known else set()
            again |= not more <= known
            known |= more
    end = Instruction(kernel.instructions[-1].line if kernel.instructions else 0, "ret", ())
    instructions, owners = (
        [*kernel.instructions, end],
        [kernel.name] * (len(kernel.instructions) + 1),
    )
    registers, variables = dict(kernel.registers), list(kernel.variables)
    labels, targets, functions = dict(kernel.labels), dict(kernel.targets), {}
    for name in sorted(reach.keys() - {kernel.name}):
        function = _renamed(parsed.functions[name])
        start = len(instructions)
        formal = (*function.returns, *function.parameters)
        own = dict(function.registers) | {v.name: v.type for v in formal if v.space == "reg"}
        held = [*function.variables, *(v for v in formal if v.space == "param")]
        registers |= own
        variables += held
        labels |= {label: at + start for label, at in function.labels.items()}
        targets |= function.targets
        instructions += [*function.instructions, replace(end, line=_last(function, end.line))]
        owners += [name] * (len(function.instructions) + 1)
        functions[name] = Function(
            name, start, function.returns, function.parameters, tuple(own),
            tuple(v for v in held if v.space == "param"), name in reach[name],
        )  # fmt: skip
    merged = replace(
        kernel, registers=registers, variables=tuple(variables), labels=labels, targets=targets,
        instructions=tuple(instructions),
    )  # fmt: skip
    return Linked(merged, functions, tuple(owners))


def _last(function: Kernel, line: int) -> int:
    return function.instructions[-1].line if function.instructions else line


def _renamed(function: Kernel) -> Kernel:
    """Give all names that a function declares its own as a suffix."""
    names = {*function.registers, *function.labels, *function.targets}
    names |= {v.name for v in (*function.variables, *function.returns, *function.parameters)}
    suffix = f"#{function.name}"

    def name(match: re.Match[str]) -> str:
        return match.group() + suffix if match.group() in names else match.group()

    def text(given: str) -> str:
        return re.sub(r"[A-Za-z_$%][\w$#]*", name, given)

    def renamed(variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(replace(v, name=v.name + suffix) for v in variables)

    return replace(
        function,
        returns=renamed(function.returns),
        parameters=renamed(function.parameters),
        variables=renamed(function.variables),
        registers={n + suffix: kind for n, kind in function.registers.items()},
        labels={n + suffix: at for n, at in function.labels.items()},
        targets={n + suffix: tuple(map(text, to)) for n, to in function.targets.items()},
        instructions=tuple(
            replace(i, operands=tuple(map(text, i.operands)), guard=text(i.guard))
            for i in function.instructions
        ),
    )


def stack_of(run: Run) -> Stack:
    """Return the stacks of a run's threads."""
    if run.stack is None:
        total = len(run.live)
        run.stack = Stack(np.zeros(total, np.int64), np.zeros((DEEPEST, total), np.int64), {})
    return run.stack


def enter(
    run: Run, group: Group, back: int, keep: tuple[int, ...], end: Callable[[Run, Group], None]
) -> Group | None:
    """Note where a group returns to and keep registers; returns who is not too deep."""
    stack = stack_of(run)
    deep = stack.depth[group.index] >= DEEPEST
    if deep.any():
        thread = int(group.threads[np.argmax(deep)])
        message = f"{run.warp_name(thread)} is {DEEPEST} calls deep"
        run.find("stack", message, thread=thread)
        end(run, group.where(deep))
        if deep.all():
            return None
        group = group.where(~deep)
    depth = stack.depth[group.index]
    stack.returns[depth, group.threads] = back
    for level in np.unique(depth).tolist() if keep else ():
        here = group.where(depth == level)
        for number in keep:
            source = run.registers[number] if number >= 0 else run.frame
            place = stack.kept.setdefault((level, number), np.zeros_like(source))
            place[here.index] = source[here.index]
    stack.depth[group.index] += 1
    return group


def leave(run: Run, group: Group) -> Iterator[tuple[int, int, Group]]:
    """Yield where threads return to, from which depth, and who."""
    stack = stack_of(run)
    stack.depth[group.index] -= 1
    depth = stack.depth[group.index]
    keys = stack.returns[depth, group.threads] * DEEPEST + depth
    for key in np.unique(keys).tolist():
        yield key // DEEPEST, key % DEEPEST, group.where(keys == key)


def restore(run: Run, group: Group, level: int, keep: tuple[int, ...]) -> None:
    """Give a caller its registers back."""
    for number in keep:
        target = run.registers[number] if number >= 0 else run.frame
        target[group.index] = stack_of(run).kept[level, number][group.index]


def _printf(run: Run, group: Group, given: list[Array]) -> Any:
    return np.int64(0)


def _malloc(run: Run, group: Group, given: list[Array]) -> Any:
    return np.array(
        [run.memory.allocate(np.zeros(max(1, int(size)), np.uint8), "malloc") for size in given[0]]
    )


def _fail(run: Run, group: Group, given: list[Array]) -> Any:
    thread = int(group.threads[0])
    run.find("trap", f"{run.warp_name(thread)}: an assertion fails", thread=thread)
    return np.int64(0)


BUILTINS: Mapping[str, Callable[[Run, Group, list[Array]], Any]] = {
    "vprintf": _printf,
    "malloc": _malloc,
    "free": _printf,
    "__assertfail": _fail,
}
"""What the system gives: printf prints nothing here, and free keeps what it is given."""


def address_of(parsed: Parsed, name: str) -> int:
    """Return a function's address."""
    return FUNCTION + 16 * (1 + [*parsed.functions].index(name))
