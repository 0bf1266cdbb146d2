"""PTX text into kernels: parameters, registers, variables, labels, instructions with their lines.

The text is read, not checked: types and operands are looked at when a kernel is decoded.  Names
that are declared in an inner ``{ }`` get the scope's number, those of a function its name, so that
two may use one name.

>>> kernel = parse(".visible .entry f(.param .u32 n) { .reg .u32 %r<2>; L: mov.u32 %r0, 7; ret; }")
>>> for instruction in kernel.kernels["f"].instructions:
...     print(instruction)
line 1: mov.u32 %r0, 7
line 1: ret

Source: PTX ISA 9.0, sections 4 (syntax), 5 (state spaces, types and variables) and 11 (directives).
"""

from __future__ import annotations

import bisect
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .errors import EmulatorError, LaunchError, ProgramError, TinyGpuError
from .values import TYPES, constant

__all__ = ["Instruction", "Kernel", "Parsed", "Variable", "guarded", "parse", "split"]

_MOST_REGISTERS = 1 << 16  # of one name; nvcc declares as many as it uses
_NAME = r"[\w$%]+"
_LINKAGE = r"(?:\.(?:visible|weak|extern|common)\s+)*"
_VARIABLE = re.compile(
    r"((?:\.(?:extern|visible|weak|common)\s+)*)\.(shared|global|const|local|param|reg)\b"
    r"((?:\s*\.(?:attribute\s*\([^)]*\)|align\s+\d+|v[24]))*)"
    r"\s*\.(\w+)\s+(?:\.ptr(?:\s+\.(?:global|shared|const|local))?(?:\s+\.align\s+\d+)?\s+)?"
    rf"({_NAME})((?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$",
    re.DOTALL,
)
_ATTRIBUTE = r"(?:\.attribute\s*\([^)]*\)\s*)?"
_DEBUG = r"\.(?:file\s+\d+\s+\"[^\"\n]*\"[^\n]*|loc\b[^\n]*)"
_DIRECTIVE = re.compile(
    r"\.(maxntid|reqntid|minnctapersm|maxnctapersm|maxnreg|reqnctapercluster|explicitcluster"
    r"|maxclusterrank|noreturn|pragma|blocksareclusters|abi_preserve\w*)\b([^.{;]*)"
)


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter or variable: ``bytes`` is 0 for an array whose extent the launch gives."""

    name: str
    space: str
    type: str
    bytes: int
    align: int
    values: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its guard (a predicate register), its parts between dots, its operands."""

    line: int
    opcode: str
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode between its dots: ``("ld", "global", "f32")``."""
        return tuple(self.opcode.split("."))

    @property
    def text(self) -> str:
        """The instruction as the source spells it, but for white space."""
        guard = f"@{'!' * self.negated}{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip()

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One ``.entry``, or a ``.func``: ``returns`` are what it gives back, ``callees`` by call."""

    name: str
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    directives: dict[str, tuple[int, ...]]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    targets: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A module: kernels and functions by name, and the variables that they share."""

    version: tuple[int, int]
    target: str
    kernels: dict[str, Kernel]
    functions: dict[str, Kernel]
    variables: tuple[Variable, ...]


def split(text: str) -> tuple[str, ...]:
    """Split operands at the commas outside of brackets.

    >>> split("{%a, %b}, [%r + 4], 1")
    ('{%a, %b}', '[%r + 4]', '1')
    """
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return (*found, last) if last else tuple(found)


def parse(text: str) -> Parsed:
    """Read a module.  Raises ProgramError with the line of what is not PTX."""
    reader = _Reader(text)
    with guarded(lambda: f"PTX line {reader.line()}"):
        return reader.module()


@contextlib.contextmanager
def guarded(where: Callable[[], str]) -> Iterator[None]:
    """Make an EmulatorError that says where of what no error for users should be.

    Raises LaunchError where memory does not suffice.
    """
    try:
        yield
    except TinyGpuError:
        raise
    except MemoryError as error:
        raise LaunchError(f"{where()}: out of memory; launch fewer or smaller CTAs") from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}".rstrip().replace("\n", " ")
        raise EmulatorError(
            f"{where()}: a fault of the interpreter, not of the kernel ({what}); please report it"
        ) from error


def width_of(kind: str) -> int:
    """Return the bytes of a type: 4 of ``f32``; addresses of what has none of its own."""
    return TYPES[kind].itemsize if kind in TYPES else 8


@dataclass(slots=True)
class _Body:
    """A kernel's body in the making: scopes are numbers, the innermost last."""

    suffix: str
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[tuple[Instruction, tuple[int, ...]]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: dict[tuple[int, str], str] = field(default_factory=dict)
    scopes: list[int] = field(default_factory=lambda: [0])
    made: int = 0

    def declare(self, name: str) -> str:
        scope = self.scopes[-1]
        unique = (name if scope == 0 else f"{name}#{scope}") + self.suffix
        self.names[scope, name] = unique
        return unique

    def declared(self, variables: Sequence[Variable]) -> tuple[Variable, ...]:
        return tuple(replace(v, name=self.declare(v.name)) for v in variables)


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        text = text.removeprefix("\ufeff")
        comment = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)  # whose lines stay
        self.text = comment.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
        self.ends = [m.start() for m in re.finditer("\n", self.text)]
        self.at = 0

    def error(self, what: str) -> ProgramError:
        return ProgramError(f"PTX line {self.line()}: {what}")

    def line(self) -> int:
        return bisect.bisect_left(self.ends, self.at) + 1

    def skip(self) -> bool:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at < len(self.text)

    def match(self, pattern: str) -> re.Match[str] | None:
        found = re.compile(pattern).match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def until(self, mark: str) -> str:
        """Return the text before the next ``mark`` outside of braces, and go past it."""
        start, depth = self.at, 0
        for i in range(start, len(self.text)):
            c = self.text[i]
            if c == mark and depth == 0:
                self.at = i + 1
                return self.text[start:i]
            depth += (c in "{(") - (c in "})")
        raise self.error(f"no {mark!r} ends {self.text[start : start + 40].split(chr(10))[0]!r}")

    def module(self) -> Parsed:
        version, target, kernels, variables = (99, 0), "", {}, []
        functions: dict[str, Kernel] = {}
        while self.skip():
            if found := self.match(r"\.target\s+(\w+)(?:\s*,\s*\w+)*"):
                target = found.group(1)
            elif found := self.match(r"\.version\s+(\d+)\.(\d+)"):
                version = (int(found.group(1)), int(found.group(2)))
            elif self.match(r"\.address_size\s+\d+|" + _DEBUG):
                pass
            elif self.match(r"\.section\b[^{]*\{"):
                self.until("}")
            elif self.match(r"\.pragma\b"):
                self.until(";")
            elif found := self.match(_LINKAGE + r"\.entry\s+([\w$%]+)\s*"):
                kernel = self.kernel(found.group(1), (), "")
                if kernel is not None:
                    kernels[kernel.name] = kernel
            elif self.match(_LINKAGE + r"\.func\b\s*" + _ATTRIBUTE):
                function = self.function()
                if function is not None:
                    functions[function.name] = function
            elif self.match(_LINKAGE + r"\.alias\b"):
                raise self.error(".alias is not run")
            else:
                variables += self.variables(self.until(";"))
        if not kernels:
            raise ProgramError("PTX: no .entry in the text; give a whole module")
        return Parsed(version, target, kernels, functions, tuple(variables))

    def variables(self, text: str) -> list[Variable]:
        """Read a declaration of one variable, or of several without values."""
        first, *more = (split(text) if "=" not in text else ()) or (text,)
        found = re.match(rf"(.*?)({_NAME})\s*(?:\[[^]]*\]\s*)*(?:=.*)?$", first.strip(), re.DOTALL)
        start = found.group(1) if found else ""
        return [self.variable(first), *(self.variable(start + each) for each in more)]

    def variable(self, text: str) -> Variable:
        found = _VARIABLE.match(text.strip())
        if not found:
            raise self.error(f"cannot read {text.strip()[:60]!r}")
        _, space, how, kind, name, extents, values = found.groups()
        width = width_of(kind)
        if vector := re.search(r"\.v([24])", how):
            width *= int(vector.group(1))
        align = re.search(r"\.align\s+(\d+)", how)
        if align and int(align.group(1)).bit_count() != 1:
            raise self.error(f"an alignment of {align.group(1)} is no power of two")
        total = width
        for extent in re.findall(r"\[([^]]*)\]", extents):
            count = constant(extent) if extent.strip() else 0
            if count is None:
                raise self.error(f"cannot read the extent {extent!r}")
            total *= count
        aligned = int(align.group(1)) if align else width
        return Variable(name, space, kind, total, aligned, (values or "").strip())

    def parameters(self) -> tuple[Variable, ...]:
        """Read a list of parameters, if there is one."""
        if not self.match(r"\s*\("):
            return ()
        return tuple(self.variable(each) for each in split(self.until(")")))

    def function(self) -> Kernel | None:
        """Read a function; a declaration alone is none."""
        returns = self.parameters()
        name = self.match(rf"\s*({_NAME})\s*")
        if not name:
            raise self.error("a function without a name")
        return self.kernel(name.group(1), returns, f"#{name.group(1)}")

    def kernel(self, name: str, returns: tuple[Variable, ...], suffix: str) -> Kernel | None:
        parameters = self.parameters()
        directives = {}
        while self.skip() and not self.match(r"\{"):
            if self.match(r";"):
                return None
            found = _DIRECTIVE.match(self.text, self.at)
            if not found:
                raise self.error(f"cannot read {self.text[self.at : self.at + 30]!r}")
            self.at = found.end()
            directives[found.group(1)] = tuple(map(int, re.findall(r"\d+", found.group(2))))
            if found.group(1) == "pragma":
                self.match(r"\s*;")
        body = _Body(suffix)
        returns, parameters = body.declared(returns), body.declared(parameters)
        while self.statement(body):
            pass
        return Kernel(
            name, returns, parameters, directives, body.registers, tuple(body.variables),
            tuple(_resolved(body)), body.labels, body.targets,
        )  # fmt: skip

    def statement(self, body: _Body) -> bool:
        """Read one statement; False at the kernel's end."""
        if not self.skip():
            raise self.error("the kernel has no closing brace")
        if self.match(r"\{"):
            body.made += 1
            body.scopes.append(body.made)
        elif self.match(r"\}"):
            body.scopes.pop()
            return bool(body.scopes)
        elif self.match(r";"):
            pass
        elif found := self.match(r"([\w$]+)\s*:\s*\.branchtargets\b"):
            labels = tuple(label + body.suffix for label in split(self.until(";")))
            body.targets[body.declare(found.group(1))] = labels
        elif self.match(r"[\w$]+\s*:\s*\.callprototype\b|\.pragma\b"):
            self.until(";")
        elif found := self.match(r"([\w$]+)\s*:(?!:)"):
            body.labels[body.declare(found.group(1))] = len(body.instructions)
        elif self.match(r"\.reg\b\s*"):
            self.registers(body, self.until(";"))
        elif self.match(_DEBUG):
            pass
        elif self.text[self.at] == ".":
            body.variables += body.declared(self.variables(self.until(";")))
        else:
            self.instruction(body)
        return True

    def registers(self, body: _Body, text: str) -> None:
        found = re.match(r"(?:\.(v[24])\s+)?\.(\w+)\s+(.*)", text.strip(), re.DOTALL)
        if not found or found.group(1):
            raise self.error(f"cannot read the registers {text.strip()!r}")
        for name in found.group(3).split(","):
            ranged = re.match(r"([\w$%]+)\s*<\s*(\d+)\s*>", name.strip())
            if ranged and int(ranged.group(2)) > _MOST_REGISTERS:
                raise self.error(f"{name.strip()}: {_MOST_REGISTERS} registers are the most")
            if ranged:
                for i in range(int(ranged.group(2))):
                    body.registers[body.declare(f"{ranged.group(1)}{i}")] = found.group(2)
            else:
                body.registers[body.declare(name.strip())] = found.group(2)

    def instruction(self, body: _Body) -> None:
        line = self.line()
        text = " ".join(self.until(";").split())
        found = re.match(r"(?:@\s*(!?)\s*([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)", text)
        if not found:
            raise ProgramError(f"PTX line {line}: cannot read {text!r}")
        negated, guard, opcode, operands = found.groups()
        made = Instruction(line, opcode, split(operands), guard or "", bool(negated))
        body.instructions.append((made, tuple(body.scopes)))


def _resolved(body: _Body) -> Iterator[Instruction]:
    """Give every name what its scope and its function add to it."""
    inner = any(name != unique for (_, name), unique in body.names.items())
    for instruction, scopes in body.instructions:
        if not inner:
            yield instruction
            continue

        def unique(match: re.Match[str], scopes: tuple[int, ...] = scopes) -> str:
            for scope in reversed(scopes):
                if (scope, match.group()) in body.names:
                    return body.names[scope, match.group()]
            return match.group()

        operands = tuple(re.sub(r"[A-Za-z_$%][\w$]*", unique, o) for o in instruction.operands)
        guard = re.sub(r"[\w$%]+", unique, instruction.guard)
        yield replace(instruction, operands=operands, guard=guard)
