"""call and ret.

Source: PTX ISA 9.0, section 9.7.13 (call, ret).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tinygpu.codegen.emulator.control import end
from tinygpu.codegen.emulator.decoder import Builder, Control, Decoder
from tinygpu.codegen.emulator.functions import (
    BUILTINS,
    Function,
    address_of,
    enter,
    leave,
    parts_of_call,
    restore,
)
from tinygpu.codegen.emulator.group import Group
from tinygpu.codegen.emulator.memory import FRAME
from tinygpu.codegen.emulator.parser import Instruction, Variable, width_of
from tinygpu.codegen.emulator.report import Array
from tinygpu.codegen.emulator.run import Run

__all__ = ["TABLE"]

Read = Callable[[Run, Group], Array]
Write = Callable[[Run, Group, Array], None]


def _bytes_of(d: Decoder, text: str, size: int) -> tuple[Read, Write]:
    """Return how the bytes of a register, a number or a parameter are read and written."""
    if text in d.frame:
        at, held = d.symbols[text][1] - FRAME, d.frame[text]
        if held != size:
            raise d.error(f"{text} has {held} B, where {size} are")
        place = slice(at, at + size)

        def fill(run: Run, group: Group, values: Array) -> None:
            run.frame[group.index, place] = values

        return lambda run, group: run.frame[group.index, place].copy(), fill
    kind = f"b{8 * size}"
    source = d.source(text, kind)

    def read(run: Run, group: Group) -> Array:
        values = np.broadcast_to(source(run, group), (group.size,))
        return np.ascontiguousarray(values).view(np.uint8).reshape(group.size, size)

    if text not in d.numbers:
        return read, lambda run, group, values: None
    target = d.target(text, kind)

    def write(run: Run, group: Group, values: Array) -> None:
        target(run, group, np.ascontiguousarray(values).view(f"u{size}")[:, 0])

    return read, write


def _pairs(
    d: Decoder, formal: tuple[Variable, ...], given: tuple[str, ...], name: str
) -> list[tuple[tuple[Read, Write], tuple[Read, Write]]]:
    """Return formal and given operands side by side."""
    if len(formal) != len(given):
        raise d.error(f"{len(given)} operands for the {len(formal)} of {name}")
    return [
        (_bytes_of(d, f.name, f.bytes), _bytes_of(d, g, f.bytes))
        for f, g in zip(formal, given, strict=True)
    ]


def _fits(d: Decoder, formal: tuple[Variable, ...], given: tuple[str, ...]) -> bool:
    """Say whether operands are as many, and as long, as a function of the module has them."""
    return len(formal) == len(given) and all(
        d.frame.get(g, f.bytes) == f.bytes for f, g in zip(formal, given, strict=True)
    )


def _call(d: Decoder, i: Instruction) -> Control:
    to, name, given, listed = parts_of_call(i)
    if name in BUILTINS and name not in d.linked.functions:
        return _builtin(d, name, to, given)
    if name in d.numbers:
        names = d.kernel.targets.get(listed) or tuple(
            n for n, f in d.linked.functions.items()
            if _fits(d, f.parameters, given) and _fits(d, f.returns, to)
        )  # fmt: skip
    elif name in d.linked.functions:
        names = (name,)
    else:
        raise d.error(f"the module has no function {name}; of the system, {', '.join(BUILTINS)}")
    where = d.source(name, "u64") if name in d.numbers else None
    pc = d.pc
    caller = d.linked.functions.get(d.linked.owners[pc])
    keep: tuple[int, ...] = ()
    if caller is not None and caller.calls_itself:
        keep = (*(d.numbers[r] for r in caller.registers), -1)
    choices: dict[int, tuple[Function, list[tuple[tuple[Read, Write], tuple[Read, Write]]]]] = {}
    for each in names:
        callee = d.linked.functions[each]
        choices[address_of(d.parsed, each)] = (
            callee, _pairs(d, callee.parameters, given, each)
        )  # fmt: skip
        results = _pairs(d, callee.returns, to, each)
        d.returns[pc + 1, each] = _returner(results, keep)

    def call(run: Run, group: Group) -> None:
        held = np.broadcast_to(where(run, group) if where else next(iter(choices)), (group.size,))
        for address in np.unique(held).tolist():
            here = group.where(held == address)
            if address not in choices:
                run.find("address", f"a call of {address:#x}, where no such function is")
                end(run, here)
                continue
            callee, pairs = choices[address]
            values = [given_to[0](run, here) for _, given_to in pairs]
            inside = enter(run, here, pc + 1, keep, end)
            if inside is None:
                continue
            mask = np.isin(here.threads, inside.threads)
            for (formal, _), value in zip(pairs, values, strict=True):
                formal[1](run, inside, value[mask])
            run.push(callee.start, inside)

    return Control(call)


def _returner(
    results: list[tuple[tuple[Read, Write], tuple[Read, Write]]], keep: tuple[int, ...]
) -> Callable[[Run, Group, int], None]:
    def back(run: Run, group: Group, level: int) -> None:
        values = [formal[0](run, group) for formal, _ in results]
        restore(run, group, level, keep)
        for (_, target), value in zip(results, values, strict=True):
            target[1](run, group, value)

    return back


def _builtin(d: Decoder, name: str, to: tuple[str, ...], given: tuple[str, ...]) -> Control:
    def size_of(text: str) -> int:
        return d.frame.get(text) or width_of(d.kernel.registers.get(text, "b64"))

    reads = [(_bytes_of(d, g, size_of(g))[0], size_of(g)) for g in given]
    write = _bytes_of(d, to[0], size_of(to[0]))[1] if to else None
    result_bytes = size_of(to[0]) if to else 0

    def call(run: Run, group: Group) -> Group | None:
        values = [
            np.ascontiguousarray(read(run, group)).view(f"u{size}")[:, 0] for read, size in reads
        ]
        result = np.broadcast_to(BUILTINS[name](run, group, values), (group.size,))
        if write is not None:
            narrow = np.ascontiguousarray(result.astype(f"u{result_bytes}"))
            write(run, group, narrow.view(np.uint8).reshape(group.size, result_bytes))
        if name == "__assertfail":
            end(run, group)
            return None
        return group

    return Control(call)


def _ret(d: Decoder, i: Instruction) -> Control:
    owner, returns = d.linked.owners[d.pc], d.returns
    if owner not in d.linked.functions:
        return Control(end)

    def back(run: Run, group: Group) -> None:
        for pc, level, here in leave(run, group):
            returns[pc, owner](run, here, level)
            run.push(pc, here)

    return Control(back)


TABLE: Mapping[str, Builder] = {"call": _call, "ret": _ret}
"""This family's builders by entry."""
