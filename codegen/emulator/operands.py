"""Whether an instruction has a form of the table: its modifiers, operands, version and target.

>>> from tinygpu.codegen.emulator.parser import Instruction
>>> add = Instruction(7, "add.f32", ("%f1", "%f2", "%r1"))
>>> form_of(add, {"%f1": "f32", "%f2": "f32", "%r1": "u32"}, (9, 0), "sm_90")
Traceback (most recent call last):
    ...
tinygpu.errors.ProgramError: PTX line 7: add.f32 %f1, %f2, %r1: %r1 is a .u32, it takes .f32

Source: PTX ISA 9.0, sections 6 (operands) and 9.4 (type checking).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tinygpu.codegen.emulator.forms import MODIFIERS, Form, find, runs_on, why_not
from tinygpu.codegen.emulator.parser import Instruction, split, width_of
from tinygpu.errors import ProgramError

__all__ = ["form_of", "kinds_of"]

_UNTYPED = {"tf32", "f16x2", "bf16x2", "f32x2", "u16x2", "s16x2", "e4m3x2", "e5m2x2", "b"}
_LISTS = ("mov", "ldmatrix", "stmatrix", "tcgen05")
_TYPE = re.compile(r"(?:[busf]|bf|tf)\d+(?:x2)?|pred|e\dm\dx2")


def form_of(
    instruction: Instruction, registers: Mapping[str, str], version: tuple[int, int], target: str
) -> Form:
    """Return the form that an instruction has.  Raises ProgramError that says why it has none."""
    forms = find(instruction.opcode)
    fault = "" if forms else why_not(instruction.opcode)
    chosen = None
    for form in forms:
        fault = _fault(instruction, form, registers)
        if not fault:
            chosen = form
            break
    if chosen is None:
        raise ProgramError(f"PTX {instruction}: {fault}")
    needs = [(chosen.version, chosen.target)]
    needs += [MODIFIERS[p] for p in instruction.parts if p in MODIFIERS]
    for least, machine in needs:
        if version < least:
            raise ProgramError(f"PTX {instruction}: needs .version {least[0]}.{least[1]} or later")
        if target and not runs_on(machine, target):
            raise ProgramError(f"PTX {instruction}: needs .target sm_{machine}, not {target}")
    return chosen


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
        chosen.append(_Role(name.rstrip("+"), _kind(kind, parts), name.endswith("+")))
    if len(chosen) == given:
        return tuple(chosen)
    return f"{given} operands; {form} takes {' '.join(roles) or 'none'}"


def kinds_of(form: Form, i: Instruction) -> tuple[str, ...]:
    """Return the type of each operand of an instruction of this form."""
    roles = _roles(form, i.opcode, len(i.operands))
    assert not isinstance(roles, str)
    return tuple("pred" if role.base in ("dp", "pq", "p") else role.kind for role in roles)


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
        return "" if text not in registers else f"{text} has to be a number"
    if text.startswith("["):
        return f"{text} is an address, and a value is needed"
    if base in ("dp", "pq", "p"):
        names = text.split("|") if base == "pq" else [text]
        return next(filter(None, (_typed(n.strip(), "pred", registers) for n in names)), "")
    if base == "h":
        return _typed(text, "b64", registers)
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
        return False
    if have == "pred" or kind == "pred":
        return have != kind
    own, needed = width_of(have), width_of(kind)
    if own < needed or (own > needed and not wider):
        return True
    classes = {_class(have), _class(kind)}
    return len(classes) > 1 and "b" not in classes and not (wider and own > needed)


def _class(kind: str) -> str:
    """Return b for bits, i for integers, f for floating point."""
    if kind in _UNTYPED or (kind.startswith("b") and not kind.startswith("bf")):
        return "b"
    return "i" if kind[0] in "us" else "f"
