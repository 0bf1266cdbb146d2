"""Decoding: a kernel's instructions as functions of the run's state, made once.

A *builder* takes the decoder and an instruction, which has one of the forms of ``forms.py``, and
returns the function that executes it for a group, as a *control* if it may let threads wait, jump
or end.

Source: PTX ISA 9.0, section 6 (instruction operands).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ProgramError
from .forms import form_of, roles_of
from .functions import address_of, link
from .memory import FRAME, SHARED
from .parser import Instruction, Kernel, Parsed, guarded, split, width_of
from .report import Array
from .run import FIRST_SHARED, LOCAL_MOST, WARP, Action, Code, Group, Run, Step
from .special import CLOCKS, SPECIAL, special
from .values import TYPES, constant, immediate, wrapped

__all__ = [
    "Act",
    "Action",
    "Builder",
    "Code",
    "Control",
    "Decoder",
    "Source",
    "Step",
    "Target",
    "bound",
    "commits",
    "decode",
    "each_thread",
    "operation",
    "together",
    "waits",
]  # fmt: skip

_MOST_BYTES = {"shared": 1 << 24, "local": LOCAL_MOST, "frame": LOCAL_MOST, "param": 1 << 24}
"""What variables of a space may have together; ``frame`` is the local memory of one call."""

Source = Callable[[Run, Group], Any]
Target = Callable[[Run, Group, Any], None]
Watch = Callable[[Run, Group, tuple[int, ...]], None]


@dataclass(frozen=True, slots=True)
class Control:
    """What a builder returns for an instruction that may stop threads; ``unit`` issue it."""

    action: Action
    unit: int = 1


Builder = Callable[["Decoder", Instruction], Action | Control]


def together(action: Action, unit: int = WARP) -> Control:
    """Return what executes an action for whole warps or warpgroups; others wait for theirs."""

    def act(run: Run, group: Group) -> None:
        here = run.together(group, unit)
        if here is not None:
            action(run, here)

    return Control(act, unit)


def commits(*kinds: str, unit: int = 0) -> Builder:
    """Return the builder of what makes a group of the operations that are in none."""

    def commit(run: Run, group: Group, i: Instruction) -> None:
        for kind in kinds:
            run.committed[kind][group.index] += 1

    return operation(commit, unit=unit)


def waits(*kinds: str, unit: int = 0) -> Builder:
    """Return the builder of what waits for all groups but the last ones, or for everything.

    With ``.read`` it waits for the first kind alone.
    """

    def wait(run: Run, group: Group, i: Instruction, pending: int = -1) -> None:
        run.tick()
        committed = run.committed[kinds[0]]
        for kind in kinds[:1] if "read" in i.parts else kinds:
            run.land(kind, group, lambda one: one.number < committed[one.group.threads] - pending)

    return operation(wait, unit=unit)


def each_thread(run: Run, group: Group, *sources: Source | None) -> Iterator[tuple[int, ...]]:
    """Yield every thread with its values of some operands (0 where there is none)."""
    values = (source(run, group) if source else 0 for source in sources)
    columns = [np.broadcast_to(value, (group.size,)).tolist() for value in values]
    return zip(group.threads.tolist(), *columns, strict=True)


Act = Callable[..., None]
"""What an instruction does: ``act(run, group, instruction, *operands)``."""


def bound(d: Decoder, i: Instruction, act: Act, touches: int = 0) -> Action:
    """Return what calls ``act`` with the operands of an instruction, as its form has them.

    What is read is an array of one value a thread, what is written a function of a group and its
    values, a number an integer.  Addresses are of shared memory, which it ``touches`` in pieces of
    so many bytes, if it does.
    """
    if touches:
        d.touch(touches)
    zipped = zip(d.roles, d.kinds, i.operands, strict=True)
    reads = [d.operand(role, kind, text, shared=touches > 0) for role, kind, text in zipped]

    def do(run: Run, group: Group) -> None:
        act(run, group, i, *(read(run, group) for read in reads))

    return do


def operation(act: Act, *, touches: int = 0, unit: int = 0) -> Builder:
    """Return the builder of what ``bound`` returns; with a ``unit``, of one that issues together.

    With a unit of 1 threads may wait, jump or end.
    """

    def build(d: Decoder, i: Instruction) -> Action | Control:
        do = bound(d, i, act, touches)
        return together(do, unit) if unit > 1 else Control(do) if unit else do

    return build


class Decoder:
    """Names of one kernel: registers by number, symbols by address, labels by instruction."""

    def __init__(self, parsed: Parsed, kernel: Kernel, globals_at: Mapping[str, int]) -> None:
        kernel, self.functions, self.owners = link(parsed, kernel)
        self.parsed, self.kernel, self.pc = parsed, kernel, 0
        self.returns: dict[tuple[int, str], Callable[[Run, Group, int], None]] = {}
        self.frame = {v.name: v.bytes for v in kernel.variables if v.space == "param"}
        self.numbers = {name: i for i, name in enumerate(kernel.registers)}
        self.widths = [0 if k == "pred" else width_of(k) for k in kernel.registers.values()]
        self.instruction = Instruction(0, "", ())
        self.roles, self.kinds = tuple[str, ...](), tuple[str, ...]()
        tensor = any(i.opcode.startswith("tcgen05") for i in kernel.instructions)
        fences = any(i.parts[0] in ("fence", "membar") for i in kernel.instructions)
        asynchronous = r"wgmma|tcgen05|clusterlaunchcontrol|cp\.(reduce\.)?async\.bulk"
        self.code = code = Code(kernel.instructions, self.widths, 2048 * tensor, fences)
        code.target = parsed.target
        code.proxies = any(re.match(asynchronous, i.opcode) for i in kernel.instructions)
        self.symbols: dict[str, tuple[str, int]] = {}
        for parameter in kernel.parameters:
            at = -(-code.parameter_bytes // parameter.align) * parameter.align
            code.parameter_at[parameter.name] = at
            self.symbols[parameter.name] = ("param", at)
            code.parameter_bytes = at + parameter.bytes
        ends = {"shared": 0, "local": 0, "frame": 0, "param": 0}
        variables = (*parsed.variables, *kernel.variables)
        called = {v.name for f in self.functions.values() for v in f.kernel.variables}
        for v in sorted(variables, key=lambda v: v.bytes == 0):  # what the launch sizes comes last
            space = "frame" if v.space == "local" and v.name in called else v.space
            if space in ends:
                start = -(-ends[space] // v.align) * v.align
                first = {"shared": FIRST_SHARED, "param": FRAME}.get(space, 0)
                self.symbols[v.name] = (space, start + first)
                ends[space] = start + v.bytes
            elif v.name in globals_at:
                self.symbols[v.name] = (v.space, globals_at[v.name])
        for name in self.functions:
            self.symbols.setdefault(name, ("function", address_of(parsed, name)))
        for space, end in ends.items():
            if end > (most := _MOST_BYTES[space]):
                raise self.error(f".{space}: {end} B of variables; {most} are the most")
        code.static_bytes, code.local_bytes, call, code.frame_bytes = ends.values()
        if call:  # frames lie one behind the other, each where its variables are aligned
            align = max(16, *(v.align for v in variables if v.space == "local"))
            code.call_bytes = -(-call // align) * align
            code.local_bytes = -(-code.local_bytes // align) * align

    def error(self, what: str) -> ProgramError:
        """Return an error that names the instruction and its line."""
        return ProgramError(f"PTX {self.instruction}: {what}")

    def touch(self, width: int, space: str = "shared") -> None:
        """Note that the kernel touches shared or global memory in pieces of ``width`` bytes."""
        if space in ("shared", "cluster", "generic"):
            self.code.granule = min(self.code.granule, width)
        if space in ("global", "generic"):
            self.code.global_granule = min(self.code.global_granule, width)

    def register(self, name: str) -> int:
        """Return a register's number."""
        if name not in self.numbers:
            raise self.error(f"{name} is no register of {self.kernel.name}")
        return self.numbers[name]

    def matrix(self, text: str, kind: str) -> list[int]:
        """Return the numbers of registers that hold a matrix's elements of a type, 32 bits or more.

        Raises ProgramError for registers of another width.
        """
        width = max(4, TYPES[kind].itemsize)
        numbers = [self.register(name) for name in self.listed(text)]
        for name, number in zip(self.listed(text), numbers, strict=True):
            if self.widths[number] != width:
                raise self.error(f"{name} has {self.widths[number]} B; .{kind} is held in {width}")
        return numbers

    def number(self, text: str, allowed: Sequence[int] = ()) -> int:
        """Return a constant; raises ProgramError if it is none, or not an allowed one."""
        value = constant(text)
        if value is None or (allowed and value not in allowed):
            says = " or ".join(map(str, allowed[:4])) or "a number"
            says = f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 4 else says
            raise self.error(f"{text} stands where {says} has to")
        return value

    def source(self, text: str, kind: str) -> Source:
        """Return the function that reads an operand: an array of a value a thread, or a scalar."""
        dtype = TYPES[kind]
        if kind == "pred" and text.startswith("!"):
            inner = self.source(text[1:], "pred")
            return lambda run, group: ~inner(run, group)
        if text in self.numbers:
            return self._held(self.numbers[text], dtype)
        if text in CLOCKS:
            shift = CLOCKS[text]
            return lambda run, group: np.array(run.now() >> shift).astype(dtype)[()]
        self.code.reserved |= text.startswith("%reserved_smem_offset")
        if text in SPECIAL:
            return lambda run, group: special(run, text)[group.index].astype(dtype, copy=False)
        symbol = re.fullmatch(r"([\w$#]+?)(?:\s*\+\s*(\d+))?", text)
        if symbol and symbol.group(1) in self.symbols:
            space, at = self.symbols[symbol.group(1)]
            value = np.array(at + int(symbol.group(2) or 0), np.uint64)
            if space == "shared":
                window = "smem window"
                return lambda run, group: (special(run, window)[group.index] + value).astype(dtype)
            if space == "frame":
                return lambda run, group: (run.frame_at(group) + int(value)).astype(dtype)
            return lambda run, group: value.astype(dtype)[()]
        try:
            constant = immediate(text, kind)
        except ValueError:
            raise self.error(f"cannot read the operand {text!r}") from None
        return lambda run, group: constant

    def _held(self, number: int, dtype: np.dtype[Any]) -> Source:
        width = self.widths[number]
        if width == 0 or (dtype.kind == "b"):
            return lambda run, group: run.registers[number][group.index]
        if width == dtype.itemsize:
            return lambda run, group: run.registers[number][group.index].view(dtype)
        bits = np.dtype(f"u{dtype.itemsize}")
        return lambda run, group: run.registers[number][group.index].astype(bits).view(dtype)

    def target(self, text: str, kind: str) -> Target:
        """Return the function that writes an operand, widened to its register (``_`` is nobody)."""
        if text == "_":
            return lambda run, group, values: None
        dtype, number = TYPES[kind], self.register(text)
        width = self.widths[number]
        if width == 0:

            def mark(run: Run, group: Group, values: Array) -> None:
                run.registers[number][group.index] = values

            return mark
        if width < dtype.itemsize:
            raise self.error(f"{text} has {width} B, too few for .{kind}")
        same, raw = width == dtype.itemsize, np.dtype(f"u{width}" if width < 16 else "V16")
        bits = dtype if same or dtype.kind == "i" else np.dtype(f"u{dtype.itemsize}")
        wide = np.dtype(f"i{width}") if dtype.kind == "i" and not same else raw

        def write(run: Run, group: Group, values: Array) -> None:
            values = np.asarray(values)
            if values.dtype != dtype:
                values = values.astype(dtype)
            if not same:
                values = values.view(bits).astype(wide)
            run.registers[number][group.index] = values.view(raw)

        return write

    def listed(self, text: str) -> tuple[str, ...]:
        """Return the parts of ``{a, b}``, or the one operand that it is."""
        parts = split(text[1:-1]) if text.startswith("{") else (text,)
        if not parts or (text.startswith("{") and not text.endswith("}")):
            raise self.error(f"cannot read the list {text!r}")
        return parts

    def vector(self, text: str, kind: str) -> Source:
        """Return the function that reads the parts of a vector: (n, parts)."""
        sources, dtype = [self.source(part, kind) for part in self.listed(text)], TYPES[kind]

        def read(run: Run, group: Group) -> Array:
            held = np.empty((group.size, len(sources)), dtype)
            for n, source in enumerate(sources):
                held[:, n] = source(run, group)
            return held

        return read

    def vector_target(self, text: str, kind: str) -> Target:
        """Return the function that writes the parts of a vector, given as (n, parts)."""
        targets = [self.target(part, kind) for part in self.listed(text)]

        def write(run: Run, group: Group, values: Array) -> None:
            for n, target in enumerate(targets):
                target(run, group, values[:, n])

        return write

    def address(self, text: str) -> Source:
        """Return the function that reads ``[base + offset]``: int64 addresses, one a thread."""
        found = re.fullmatch(r"\[\s*([^\s+\-\]]+?)\s*(?:([+-])\s*([^\]]+?)\s*)?\]", text)
        more = constant(found.group(3)) if found and found.group(3) else 0
        if not found or more is None:
            raise self.error(f"cannot read the address {text!r}")
        base, offset = found.group(1), wrapped(-more if found.group(2) == "-" else more)
        if (kind := self.kernel.registers.get(base, "u64")) in ("pred", "b128") or kind[0] == "f":
            raise self.error(f"{base} is a .{kind}; an address is an integer")
        plain = self.source(base, "s64")
        if base in self.numbers:
            return lambda run, group: plain(run, group) + offset
        return lambda run, group: np.full(group.size, 0, np.int64) + plain(run, group) + offset

    def shared_address(self, text: str) -> Source:
        """Return what reads an address of shared memory, as a generic one if that is not named."""
        at, named = self.address(text), any(p.startswith("shared") for p in self.instruction.parts)
        return at if named else lambda run, group: at(run, group) - SHARED

    def operand(self, role: str, kind: str, text: str, *, shared: bool) -> Source:
        """Return what gives an operand to an ``operation``."""
        if role[0] in "de_":
            first, _, second = (part.strip() for part in text.partition("|"))
            write, mark = self.target(first, kind), self.target(second or "_", "pred")

            def both(run: Run, group: Group, values: Array, marks: Any = True) -> None:
                write(run, group, values)
                mark(run, group, marks)

            return lambda run, group: functools.partial(both, run)
        if role == "#":
            number = self.number(text)
            return lambda run, group: number
        if role.startswith("["):
            return self.shared_address(text) if shared else self.address(text)
        read = self.source(text, kind)
        return lambda run, group: np.broadcast_to(read(run, group), (group.size,))

    def target_of_branch(self, name: str) -> int:
        """Return the instruction that a label stands before."""
        if name not in self.kernel.labels:
            raise self.error(f"no label {name}")
        return self.kernel.labels[name]


def decode(
    parsed: Parsed, kernel: Kernel, table: Mapping[str, Builder], globals_at: Mapping[str, int],
    watch: Watch,
) -> Code:  # fmt: skip
    """Decode a kernel.  Raises ProgramError that names an instruction that is not run."""
    decoder = Decoder(parsed, kernel, globals_at)
    kernel = decoder.kernel
    leaders = {*kernel.labels.values(), *(f.start for f in decoder.functions.values())}
    leaders |= {pc + 1 for pc, i in enumerate(kernel.instructions) if i.parts[0] == "call"}
    for pc, instruction in enumerate(kernel.instructions):
        decoder.instruction, decoder.pc = instruction, pc
        form = form_of(instruction, kernel.registers, parsed.version, parsed.target)
        roles = roles_of(form, instruction)
        decoder.roles, decoder.kinds = (tuple(r[n] for r in roles) for n in range(2))
        with guarded(lambda: f"PTX {decoder.instruction}"):
            built = table[form.entry](decoder, instruction)
        guard = decoder.register(instruction.guard) if instruction.guard else -1
        if not isinstance(built, Control):
            built = Control(built, 0)
        leader = pc in leaders or built.unit > 1
        step = Step(built.action, built.unit > 0, guard, instruction.negated, leader)
        decoder.code.steps.append(step)
    _watch(decoder, watch)
    return decoder.code


def _watch(decoder: Decoder, watch: Watch) -> None:
    """Let ordinary instructions on registers of wgmma or tcgen05.ld look whether one owns them."""
    instructions = decoder.code.instructions
    names = [set(re.findall(r"[A-Za-z_$%][\w$#]*", " ".join(i.operands))) for i in instructions]
    products = [i.opcode.startswith(("wgmma.mma_async", "tcgen05.ld.")) for i in instructions]
    owned: set[str] = set()
    for i, here in zip(instructions, products, strict=True):
        if here:
            owned |= set(re.findall(r"%?[\w$#]+", " ".join(o for o in i.operands if "{" in o)))
    for pc, step in enumerate(decoder.code.steps):
        mine = tuple(decoder.numbers[n] for n in sorted(names[pc] & owned) if n in decoder.numbers)
        if mine and not products[pc]:
            step.action = functools.partial(_watched, step.action, watch, mine)


def _watched(
    action: Action, watch: Watch, registers: tuple[int, ...], run: Run, group: Group
) -> None:
    watch(run, group, registers)
    action(run, group)
