"""The instructions that are run: every form, its operands, the least PTX version and target.

The table is ``forms.txt``.  A line is ``entry modifiers : operands @ version target``.  A modifier
``.a|b`` is one of several, ``?`` means that it may be left out, capitals name a set: ``NAME = a|b``
at the table's beginning, where ``.modifier @ version target`` holds wherever the modifier stands.
An operand is its role, then ``+`` (a register may be wider), ``:type`` (else the last modifier's;
``1`` that of the modifier before, ``w`` twice as wide, ``x`` any), ``?``.  Roles: ``d`` is written,
``dq`` as well with a predicate (``d|p``) or not, ``e`` as ``d|p``, ``dp`` a predicate, ``pq`` as
``p`` or ``p|q``, ``_`` the sink; ``a`` to ``c`` are read, ``p`` is a predicate, ``[a]`` an address,
``#`` a number (``#:0`` that one), ``L`` a name, ``h`` a policy (there with ``.L2::cache_hint``
only), ``{}`` registers in braces, ``*`` whatever the builder reads.

>>> [form] = find("mul.wide.u32")
>>> form.entry, form.operands, find("mul.lo.frob.u32")
('mul', ('d:w', 'a', 'b'), ())
>>> print(why_not("mul.lo.frob.u32"))
.frob is not what follows mul.lo; forms: mul.hi|lo.I

>>> add = Instruction(7, "add.f32", ("%f1", "%f2", "%r1"))
>>> form_of(add, {"%f1": "f32", "%f2": "f32", "%r1": "u32"}, (9, 0), "sm_90")
Traceback (most recent call last):
    ...
tinygpu.errors.ProgramError: PTX line 7: add.f32 %f1, %f2, %r1: %r1 is a .u32, it takes .f32

Source: PTX ISA 9.0, sections 6 (operands), 9.4 (type checking) and 9.7; versions and targets as
ptxas 13.0 takes them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import ProgramError
from .parser import Instruction, split, width_of
from .values import constant

__all__ = [
    "FORMS", "MODIFIERS", "SETS", "Form", "find", "form_of", "roles_of", "runs_on", "why_not",
]  # fmt: skip

_TABLE = Path(__file__).with_name("forms.txt").read_text(encoding="utf-8")
SETS: Mapping[str, str] = dict(re.findall(r"^([A-Z]\w*) = (.+)$", _TABLE, re.MULTILINE))
"""Alternatives by name."""


@dataclass(frozen=True, slots=True)
class Form:
    """One line of the table: its opcode's modifiers and its operands as it spells them."""

    family: str
    entry: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    version: tuple[int, int]
    target: str

    def __str__(self) -> str:
        return self.entry + "".join(
            f"{{.{m[:-1]}}}" if m.endswith("?") else f".{m}" for m in self.modifiers
        )


@functools.cache
def _choices(modifier: str) -> tuple[str, ...]:
    """Return a modifier's alternatives, the sets among them spelt out."""
    return tuple("|".join(SETS.get(p, p) for p in modifier.rstrip("?").split("|")).split("|"))


def _read(table: str) -> Iterator[Form]:
    family = ""
    for line in table.splitlines():
        if line.startswith("#"):
            family = line[2:]
        if not line or family == line[2:]:
            continue
        form, _, least = line.partition(" @ ")
        opcode, _, operands = (form + " ").partition(" : ")
        entries, *modifiers = opcode.split()
        version, target = (*least.split(), "1.0", "0")[:2] if least else ("1.0", "0")
        major, minor = map(int, version.split("."))
        for entry in entries.split("|"):
            names = tuple(m[1:] for m in modifiers)
            yield Form(family, entry, names, tuple(operands.split()), (major, minor), target)


FORMS: tuple[Form, ...] = tuple(_read(_TABLE[_TABLE.index("# ") :]))
"""All of them."""
_BY_ENTRY: dict[str, list[Form]] = {}
for _form in FORMS:
    _BY_ENTRY.setdefault(_form.entry, []).append(_form)


def _starts(opcode: str) -> list[str]:
    parts = opcode.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _ordered(opcode: str) -> str:
    """Return an opcode in the table's order, as ptxas asks for none.

    Semantics, scope and space of an access stand anywhere, layout, shape and space of a ``wmma``
    anywhere behind ``aligned``.
    """
    name, *parts, last = opcode.split(".")
    if name == "wmma" and "aligned" in parts:
        at = parts.index("aligned") + 1
        fixed, shapes = parts[:at], [*_choices("WMMA"), "m16n16k8", "m8n8k4"]
        places = [fixed, SETS["LAYOUT"].split("|"), shapes, SETS["SS"].split("|")]
    elif name in ("atom", "red", "ld", "st") and not {"async", "bulk"} & {*parts}:
        fixed = ["weak", "volatile", "mmio"]
        places = [fixed, *(SETS[s].split("|") for s in ("SEM", "SCOPE", "SS"))]
    else:
        return opcode
    rank = [next((n for n, p in enumerate(places) if part in p), len(places)) for part in parts]
    return ".".join(
        [name, *(parts[n] for n in sorted(range(len(parts)), key=rank.__getitem__)), last]
    )


@functools.lru_cache(4096)
def find(opcode: str) -> tuple[Form, ...]:
    """Return the forms that an opcode has: more than one where their operands tell them apart."""
    opcode = _ordered(opcode) if "." in opcode else opcode
    for start in _starts(opcode):
        parts = opcode.split(".")
        found = tuple(f for f in _BY_ENTRY.get(start, ()) if _fits(f, parts) == (len(parts), True))
        if found:
            return found
    return ()


MODIFIERS: Mapping[str, tuple[tuple[int, int], str]] = {
    name: ((int(major), int(minor)), target)
    for name, major, minor, target in re.findall(
        r"^\.(\S+) @ (\d+)\.(\d+) (\w+)$", _TABLE, re.MULTILINE
    )
}
"""Modifiers that ask for a version and a target wherever they stand."""


def runs_on(needs: str, target: str) -> bool:
    """Whether a target has what a form needs: ``90`` or later, ``90a`` alone, ``90+a``."""
    have = re.fullmatch(r"sm_(\d+)([af]?)", target)
    least = re.fullmatch(r"(\d+)(\+?)([af]?)", needs)
    if have is None or least is None:
        return have is not None
    number, exact = int(have.group(1)), least.group(3)
    if not exact or least.group(2):
        return number >= int(least.group(1)) and (not exact or bool(have.group(2)))
    family = {"100": (100, 101, 103, 110), "120": (120, 121)}
    return number in family.get(least.group(1), (int(least.group(1)),)) and bool(have.group(2))


def why_not(opcode: str) -> str:
    """Say where an opcode leaves all forms, and which forms come nearest."""
    best = -1
    near: list[str] = []
    for start in _starts(opcode):
        for form in _BY_ENTRY.get(start, ()):
            fits, _ = _fits(form, opcode.split("."))
            if fits > best:
                best, near = fits, []
            if fits == best:
                near.append(str(form))
    if not near:
        return f"the instruction {opcode} is not run"
    parts = opcode.split(".")
    forms = f"forms: {', '.join(near[:4])}"
    if best == len(parts):
        return f"a modifier is missing after {opcode}; {forms}"
    return f".{parts[best]} is not what follows {'.'.join(parts[:best])}; {forms}"


def _fits(form: Form, parts: list[str]) -> tuple[int, bool]:
    """Return how many of an opcode's parts a form takes from the left, and whether it may end."""
    at = form.entry.count(".") + 1
    for modifier in form.modifiers:
        choices = _choices(modifier)
        width = choices[0].count(".") + 1
        if ".".join(parts[at : at + width]) in choices:
            at += width
        elif not modifier.endswith("?"):
            return at, False
    return at, True


_UNTYPED = {"tf32", "f16x2", "bf16x2", "f32x2", "u16x2", "s16x2", "e4m3x2", "e5m2x2", "b"}
_LISTS = ("mov", "ldmatrix", "stmatrix", "tcgen05", "clusterlaunchcontrol")
_FRACTION = re.compile(r"0[fF][0-9a-fA-F]{8}|\d*\.\d+")
_TYPE = re.compile(r"(?:[busf]|bf|tf)\d+(?:x2)?|pred|e\dm\dx2")


def form_of(
    instruction: Instruction, registers: Mapping[str, str], version: tuple[int, int], target: str
) -> Form:
    """Return the form that an instruction has.  Raises ProgramError that says why it has none."""
    fault = ""
    for form in find(instruction.opcode):
        fault = _fault(instruction, form, registers)
        if not fault:
            break
    else:
        raise ProgramError(f"PTX {instruction}: {fault or why_not(instruction.opcode)}")
    needs = [(form.version, form.target)]
    needs += [MODIFIERS[p] for p in instruction.parts if p in MODIFIERS]
    for least, machine in needs:
        if version < least:
            raise ProgramError(f"PTX {instruction}: needs .version {least[0]}.{least[1]} or later")
        if target and not runs_on(machine, target):
            raise ProgramError(f"PTX {instruction}: needs .target sm_{machine}, not {target}")
    return form


@dataclass(frozen=True, slots=True)
class _Role:
    """What an operand has to be: its role in the table, its type, whether it may be wider."""

    base: str
    kind: str
    wider: bool


@functools.lru_cache(4096)
def _roles(form: Form, opcode: str, given: int) -> tuple[_Role, ...] | str:
    """Return the roles of so many operands, or what is wrong with their number."""
    parts = opcode.split(".")
    roles = [r for r in form.operands if r != "h" or "L2::cache_hint" in parts]
    spare = given - sum(not r.endswith("?") for r in roles)
    chosen = []
    for role in roles:
        if role.endswith("?"):
            spare -= 1
            if spare < 0:
                continue
        name, _, kind = role.rstrip("?").partition(":")
        kind = _kind("b64" if name == "h" else kind, parts)
        chosen.append(_Role(name.rstrip("+"), kind, name.endswith("+")))
    if len(chosen) == given:
        return tuple(chosen)
    return f"{given} operands; {form} takes {' '.join(roles) or 'none'}"


def roles_of(form: Form, i: Instruction) -> tuple[tuple[str, str], ...]:
    """Return the role and the type of each operand of an instruction of this form."""
    roles = _roles(form, i.opcode, len(i.operands))
    assert not isinstance(roles, str)
    return tuple((r.base, "pred" if r.base in ("dp", "pq", "p") else r.kind) for r in roles)


def _kind(kind: str, parts: list[str]) -> str:
    kinds = [p for p in parts if _TYPE.fullmatch(p)]
    if kind == "1":
        return kinds[-2]
    if kind == "w":
        return f"{kinds[-1][0]}{2 * int(kinds[-1][1:])}"
    return kind or (kinds[-1] if kinds else "x")


def _fault(i: Instruction, form: Form, registers: Mapping[str, str]) -> str:
    """Return what is wrong with the operands, or nothing."""
    roles = _roles(form, i.opcode, len(i.operands))
    if isinstance(roles, str):
        return roles
    for role, text in zip(roles, i.operands, strict=True):
        have = registers.get(text)
        if have is not None and role.base in ("d", "a", "b", "c"):  # most are plain registers
            vector = role.base in "db" and _count(i.opcode)
            if not vector and not _mismatch(have, role.kind, role.wider):
                continue
        if fault := _operand(role, text, i, registers):
            return fault
    return ""


def _operand(role: _Role, text: str, i: Instruction, registers: Mapping[str, str]) -> str:
    base = role.base
    if base in ("*", "L"):
        return ""
    if base in ("_", "{}"):
        good = text == "_" if base == "_" else text.startswith("{") or text in registers
        return "" if good else f"{text} stands where {base} does"
    if base.startswith("["):
        return "" if text.startswith("[") else f"{text} is no address"
    if base == "#":
        if role.kind.isdecimal() and constant(text) not in (None, int(role.kind)):
            return f"{text} stands where {role.kind} has to"
        fraction = i.parts[0] == "createpolicy" and _FRACTION.fullmatch(text)
        return "" if fraction or constant(text) is not None else f"{text} has to be a number"
    if text.startswith("["):
        return f"{text} is an address, and a value is needed"
    if base in ("dp", "pq", "p"):
        names = text.split("|") if base == "pq" else [text]
        return next(filter(None, (_typed(n.strip(), "pred", registers) for n in names)), "")
    first, bar, second = (part.strip() for part in text.partition("|"))
    if base[0] in "abc":
        first, bar = text, ""
    if bar and (base not in ("dq", "e") or _typed(second, "pred", registers)):
        return f"{text} stands where {base} does"
    if base == "e" and not bar:
        return f"{text}: d|p is needed"
    if base[0] in "de" and first not in registers and not first.startswith(("_", "{")):
        return f"{first} is no register of the kernel"
    parts = split(first[1:-1]) if first.startswith("{") else (first,)
    count = _count(i.opcode)
    alone = i.parts[0] in ("ld", "st") and len(parts) == 1  # which braces may stand around
    if first.startswith("{") and not alone and count != len(parts) and i.parts[0] not in _LISTS:
        return f"{len(parts)} registers in braces for {i.opcode}"
    if count and base in "db" and len(parts) != count:
        return f"{len(parts)} operands for a vector of {count}"
    if first.startswith("{") and i.parts[0] == "mov":
        return ""
    faults = (_typed(p, role.kind, registers, wider=role.wider) for p in parts)
    return next(filter(None, faults), "")


@functools.lru_cache(1024)
def _count(opcode: str) -> int:
    """Return how many registers a vector has, 0 if there is none."""
    name, *parts = opcode.split(".")
    found = next((p for p in parts if re.fullmatch(r"v\d+", p)), "v0")
    return int(found[1:]) if name in ("ld", "ldu", "st", "atom", "red") else 0


def _typed(text: str, kind: str, registers: Mapping[str, str], *, wider: bool = False) -> str:
    """Say why an operand is not of a type; what is no register is read later."""
    text = text.lstrip("!") if kind == "pred" else text
    have = registers.get(text)
    if have is None:
        return ""
    return f"{text} is a .{have}, it takes .{kind}" if _mismatch(have, kind, wider) else ""


@functools.lru_cache(4096)
def _mismatch(have: str, kind: str, wider: bool) -> bool:
    """Whether a register of type ``have`` cannot stand where ``kind`` is needed."""
    if kind == "x":
        return have == "b128"
    if have == "pred" or kind == "pred":
        return have != kind
    own, needed = width_of(have), width_of(kind)
    if own < needed or (own > needed and (not wider or own > 8)):
        return True
    classes = {_class(have), _class(kind)}
    return len(classes) > 1 and "b" not in classes and not (wider and own > needed)


def _class(kind: str) -> str:
    """Return b for bits, i for integers, f for floating point."""
    if kind in _UNTYPED or (kind.startswith("b") and not kind.startswith("bf")):
        return "b"
    return "i" if kind[0] in "us" else "f"
