"""The instructions that are run: every form, its operands, the least PTX version and target.

The table is ``forms.txt``.  A line is ``entry modifiers : operands @ version target``.  A modifier
``.a|b`` is one of several, ``?`` means that it may be left out, capitals name a set: ``NAME = a|b``
at the table's beginning, where ``.modifier @ version target`` holds wherever the modifier stands.
An operand is its role, then ``+`` (a register may be wider), ``:type`` (else the last modifier's;
``1`` that of the modifier before, ``w`` twice as wide, ``x`` any), ``?``.  Roles: ``d`` is written,
``dq`` as well with a predicate (``d|p``) or not, ``e`` as ``d|p``, ``dp`` a predicate, ``pq`` as
``p`` or ``p|q``, ``_`` the sink; ``a`` to ``c`` are read, ``p`` is a predicate, ``[a]`` an address,
``#`` a number, ``L`` a name, ``h`` a policy (there with ``.L2::cache_hint`` only), ``{}`` registers
in braces, ``*`` whatever the builder reads.

>>> [form] = find("mul.wide.u32")
>>> form.entry, form.operands, find("mul.lo.frob.u32")
('mul', ('d:w', 'a', 'b'), ())
>>> print(why_not("mul.lo.frob.u32"))
.frob is not what follows mul.lo; forms: mul.hi|lo.I

Source: PTX ISA 9.0, section 9.7; versions and targets as ptxas 13.0 takes them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FORMS", "MODIFIERS", "SETS", "Form", "find", "runs_on", "why_not"]

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
    pattern: str

    def __str__(self) -> str:
        return self.entry + "".join(
            f"{{.{m[:-1]}}}" if m.endswith("?") else f".{m}" for m in self.modifiers
        )


def _choice(modifier: str) -> str:
    """Return a modifier's alternatives, the sets among them spelt out."""
    return "|".join(SETS.get(part, part) for part in modifier.rstrip("?").split("|"))


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
            pattern = re.escape(entry)
            for modifier in modifiers:
                choice = "|".join(map(re.escape, _choice(modifier[1:]).split("|")))
                pattern += rf"(?:\.(?:{choice})){'?' * modifier.endswith('?')}"
            yield Form(
                family,
                entry,
                tuple(m[1:] for m in modifiers),
                tuple(operands.split()),
                (major, minor),
                target,
                pattern,
            )


FORMS: tuple[Form, ...] = tuple(_read(_TABLE[_TABLE.index("# ") :]))
"""All of them."""
_BY_ENTRY: dict[str, list[Form]] = {}
for _form in FORMS:
    _BY_ENTRY.setdefault(_form.entry, []).append(_form)


def _starts(opcode: str) -> list[str]:
    parts = opcode.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _ordered(opcode: str) -> str:
    """Return an atomic's opcode in the table's order: semantics, scope and space stand anywhere."""
    name, *parts, last = opcode.split(".")
    if name not in ("atom", "red") or "async" in parts:
        return opcode
    places = [SETS[s].split("|") for s in ("SEM", "SCOPE", "GS")]
    rank = [next((n for n, p in enumerate(places) if part in p), len(places)) for part in parts]
    return ".".join(
        [name, *(parts[n] for n in sorted(range(len(parts)), key=rank.__getitem__)), last]
    )


@functools.lru_cache(4096)
def find(opcode: str) -> tuple[Form, ...]:
    """Return the forms that an opcode has: more than one where their operands tell them apart."""
    opcode = _ordered(opcode) if "." in opcode else opcode
    for start in _starts(opcode):
        if found := tuple(f for f in _BY_ENTRY.get(start, ()) if re.fullmatch(f.pattern, opcode)):
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
    family = {"100": (100, 101, 103, 110)}.get(least.group(1), (int(least.group(1)),))
    return number in family and bool(have.group(2))


def why_not(opcode: str) -> str:
    """Say where an opcode leaves all forms, and which forms come nearest."""
    best = -1
    near: list[str] = []
    for start in _starts(opcode):
        for form in _BY_ENTRY.get(start, ()):
            fits = _fits(form, opcode.split("."))
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


def _fits(form: Form, parts: list[str]) -> int:
    """Return how many of an opcode's parts the form takes, from the left."""
    at = form.entry.count(".") + 1
    for modifier in form.modifiers:
        choices = _choice(modifier).split("|")
        width = choices[0].count(".") + 1
        if ".".join(parts[at : at + width]) in choices:
            at += width
        elif not modifier.endswith("?"):
            break
    return at
