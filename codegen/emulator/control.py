"""Control flow: branches, ends, calls and returns.

Threads keep where they return to.  Parameters of functions lie in a frame, one a thread.  What
calls itself, through others or not, keeps its registers and its parameters by depth.  Each call has
its own local memory.

Source: PTX ISA 9.0, section 9.7.12 (control flow).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .barriers import end
from .decoder import Builder, Control, Decoder, operation
from .functions import Function, address_of, parts_of_call
from .memory import FRAME
from .parser import Instruction, Variable, width_of
from .report import Array
from .run import DEEPEST, LOCAL_MOST, Group, Run

__all__ = ["TABLE"]


def _bra(d: Decoder, i: Instruction) -> Control:
    to = d.target_of_branch(i.operands[0])

    return Control(lambda run, group: run.jump(to, group))


def _brx(d: Decoder, i: Instruction) -> Control:
    """Branch by an index into a list of labels."""
    index, name = d.source(i.operands[0], "u32"), i.operands[1]
    if name not in d.kernel.targets:
        raise d.error(f"no list of labels (.branchtargets) is called {name}")
    to = [d.target_of_branch(label) for label in d.kernel.targets[name]]

    def jump(run: Run, group: Group) -> None:
        chosen = np.broadcast_to(index(run, group), (group.size,))
        for n in np.unique(chosen).tolist():
            here = group.where(chosen == n)
            if n < len(to):
                run.jump(to[n], here)
                continue
            run.find("address", f"index {n} into a list of {len(to)} labels")
            end(run, here)

    return Control(jump)


def _trap(run: Run, group: Group, i: Instruction) -> None:
    run.find("trap", "gave up", who=int(group.threads[0]))
    end(run, group)


def enter(run: Run, group: Group, back: int, keep: tuple[int, ...]) -> Group | None:
    """Note where a group returns to and keep registers; returns who is not too deep."""
    code, most = run.code, DEEPEST
    if code.call_bytes:
        most = min(most, (LOCAL_MOST - code.local_bytes) // code.call_bytes)
    deep = run.depth[group.index] >= most
    if deep.any():
        who, each = int(group.threads[np.argmax(deep)]), code.call_bytes
        run.find("stack", f"is {most} calls deep, each with {each} B of local memory", who=who)
        end(run, group.where(deep))
        if deep.all():
            return None
        group = group.where(~deep)
    depth = run.depth[group.index]
    run.returns[depth, group.threads] = back
    for level in np.unique(depth).tolist() if keep else ():
        here = group.where(depth == level)
        for number in keep:
            source = run.registers[number] if number >= 0 else run.frame
            place = run.kept.setdefault((level, number), np.zeros_like(source))
            place[here.index] = source[here.index]
    run.depth[group.index] += 1
    if code.call_bytes:
        run.clear_frame(group)
    return group


def leave(run: Run, group: Group) -> Iterator[tuple[int, int, Group]]:
    """Yield where threads return to, from which depth, and who."""
    run.depth[group.index] -= 1
    depth = run.depth[group.index]
    keys = run.returns[depth, group.threads] * DEEPEST + depth
    for key in np.unique(keys).tolist():
        yield key // DEEPEST, key % DEEPEST, group.where(keys == key)


def _nothing(run: Run, group: Group, given: list[Array]) -> Any:
    return np.int64(0)


def _malloc(run: Run, group: Group, given: list[Array]) -> Any:
    return np.array(
        [run.memory.allocate(np.zeros(max(1, int(size)), np.uint8), "malloc") for size in given[0]]
    )


def _fail(run: Run, group: Group, given: list[Array]) -> Any:
    run.find("trap", "fails an assertion", who=int(group.threads[0]))
    return np.int64(0)


BUILTINS: Mapping[str, Callable[[Run, Group, list[Array]], Any]] = {
    "vprintf": _nothing,
    "malloc": _malloc,
    "free": _nothing,
    "__assertfail": _fail,
}
"""What the system gives: printf prints nothing here, and free keeps what it is given."""


Read = Callable[[Run, Group], Array]
Write = Callable[[Run, Group, Array], None]


Pairs = list[tuple[Read, Write]]
"""What is read, and what is written with that."""


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
    d: Decoder, formal: tuple[Variable, ...], given: tuple[str, ...], name: str, *, back: bool
) -> Pairs:  # fmt: skip
    """Return how given operands become a function's own, or (``back``) these become those."""
    if len(formal) != len(given):
        raise d.error(f"{len(given)} operands for the {len(formal)} of {name}")
    pairs = []
    for f, g in zip(formal, given, strict=True):
        own, others = _bytes_of(d, f.name, f.bytes), _bytes_of(d, g, f.bytes)
        pairs.append((own[0], others[1]) if back else (others[0], own[1]))
    return pairs


def _fits(d: Decoder, formal: tuple[Variable, ...], given: tuple[str, ...]) -> bool:
    """Say whether operands are as many, and as long, as a function of the module has them."""
    return len(formal) == len(given) and all(
        d.frame.get(g, f.bytes) == f.bytes for f, g in zip(formal, given, strict=True)
    )


def _call(d: Decoder, i: Instruction) -> Control:
    to, name, given, listed = parts_of_call(i)
    if name in BUILTINS and name not in d.functions:
        return _builtin(d, name, to, given)
    if name in d.numbers:
        names = d.kernel.targets.get(listed) or tuple(
            n for n, f in d.functions.items()
            if _fits(d, f.kernel.parameters, given) and _fits(d, f.kernel.returns, to)
        )  # fmt: skip
    elif name in d.functions:
        names = (name,)
    else:
        raise d.error(f"the module has no function {name}; of the system, {', '.join(BUILTINS)}")
    where = d.source(name, "u64") if name in d.numbers else None
    pc = d.pc
    caller = d.functions.get(d.owners[pc])
    keep: tuple[int, ...] = ()
    if caller is not None and caller.calls_itself:
        keep = (*(d.numbers[r] for r in caller.kernel.registers), -1)
    choices: dict[int, tuple[Function, Pairs]] = {}
    for each in names:
        callee = d.functions[each]
        pairs = _pairs(d, callee.kernel.parameters, given, each, back=False)
        choices[address_of(d.parsed, each)] = callee, pairs
        results = _pairs(d, callee.kernel.returns, to, each, back=True)
        d.returns[pc + 1, each] = functools.partial(_give_back, results, keep)

    def call(run: Run, group: Group) -> None:
        held = np.broadcast_to(where(run, group) if where else next(iter(choices)), (group.size,))
        for address in np.unique(held).tolist():
            here = group.where(held == address)
            if address not in choices:
                run.find("address", f"a call of {address:#x}, where no such function is")
                end(run, here)
                continue
            callee, pairs = choices[address]
            values = [read(run, here) for read, _ in pairs]
            inside = enter(run, here, pc + 1, keep)
            if inside is None:
                continue
            mask = np.isin(here.threads, inside.threads)
            for (_, write), value in zip(pairs, values, strict=True):
                write(run, inside, value[mask])
            run.jump(callee.start, inside)

    return Control(call)


def _give_back(
    results: Pairs, keep: tuple[int, ...], run: Run, group: Group, level: int
) -> None:  # fmt: skip
    """Give a caller what a function returns, and its registers back."""
    values = [read(run, group) for read, _ in results]
    for number in keep:
        target = run.registers[number] if number >= 0 else run.frame
        target[group.index] = run.kept[level, number][group.index]
    for (_, write), value in zip(results, values, strict=True):
        write(run, group, value)


def _builtin(d: Decoder, name: str, to: tuple[str, ...], given: tuple[str, ...]) -> Control:
    def size_of(text: str) -> int:
        return d.frame.get(text) or width_of(d.kernel.registers.get(text, "b64"))

    reads = [(_bytes_of(d, g, size_of(g))[0], size_of(g)) for g in given]
    write = _bytes_of(d, to[0], size_of(to[0]))[1] if to else None
    result_bytes = size_of(to[0]) if to else 0

    def call(run: Run, group: Group) -> None:
        values = [
            np.ascontiguousarray(read(run, group)).view(f"u{size}")[:, 0] for read, size in reads
        ]
        result = np.broadcast_to(BUILTINS[name](run, group, values), (group.size,))
        if write is not None:
            narrow = np.ascontiguousarray(result.astype(f"u{result_bytes}"))
            write(run, group, narrow.view(np.uint8).reshape(group.size, result_bytes))
        if name == "__assertfail":
            end(run, group)

    return Control(call)


def _ret(d: Decoder, i: Instruction) -> Control:
    owner, returns = d.owners[d.pc], d.returns
    if owner not in d.functions:
        return Control(end)

    def back(run: Run, group: Group) -> None:
        for pc, level, here in leave(run, group):
            returns[pc, owner](run, here, level)
            run.jump(pc, here)

    return Control(back)


TABLE: Mapping[str, Builder] = {
    "bra": _bra,
    "brx.idx": _brx,
    "exit": lambda d, i: Control(end),
    **dict.fromkeys(("trap", "brkpt"), operation(_trap, unit=1)),
    "call": _call,
    "ret": _ret,
}
"""This family's builders by entry."""
