"""One instruction of PTX for each modifier of each form of the interpreter's table."""

from __future__ import annotations

import itertools
import math
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tinygpu.codegen.emulator.forms import SETS, Form
from tinygpu.codegen.run.assemble import find_ptxas

__all__ = ["SWEPT", "instances", "kernel", "rejected", "swept"]

_PLAIN = {"tf32": "b32", "f16x2": "b32", "bf16x2": "b32", "e4m3x2": "b16", "e5m2x2": "b16",
          "f32x2": "b64", "u16x2": "b32", "s16x2": "b32", "f16": "b16", "bf16": "b16",
          "b8": "b16", "u8": "u16", "s8": "s16"}  # fmt: skip
_WIDER = {"u16": "u32", "u32": "u64", "s16": "s32", "s32": "s64"}
_SPECIAL = {
    "cp.async.bulk.prefetch.tensor": ("[%l0, {}]",),
    "createpolicy.cvt": ("0x10000000",),
}
TYPES = ("pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")


def _alternatives(modifier: str) -> list[str]:
    return "|".join(SETS.get(m, m) for m in modifier.rstrip("?").split("|")).split("|")


def _opcodes(form: Form) -> Iterator[str]:
    """Yield opcodes that together have every alternative of every modifier."""
    base = [("" if m.endswith("?") else _alternatives(m)[0]) for m in form.modifiers]
    seen = set()
    for n, modifier in enumerate(form.modifiers):
        for choice in _alternatives(modifier):
            chosen = [*base[:n], choice, *base[n + 1 :]]
            opcode = ".".join([form.entry, *filter(None, chosen)])
            if opcode not in seen:
                seen.add(opcode)
                yield opcode
    if not form.modifiers or "".join(base) == "":
        yield form.entry


def _register(kind: str, n: int) -> str:
    kind = _PLAIN.get(kind, kind)
    return f"%{kind}_{n}"


def _operand(text: str, opcode: str, n: int) -> str | None:
    parts = opcode.split(".")
    if text == "h":
        return "%b64_3" if "L2::cache_hint" in parts else None
    text, optional = text.rstrip("?"), text.endswith("?")
    if optional:
        return None
    role, _, kind = text.partition(":")
    role = role.rstrip("+")
    if role in ("dp", "p", "pq"):
        return f"%pred_{n}"
    if role == "_":
        return "_"
    if role.startswith("["):
        return "[%u64_0]"
    if kind == "b8" and parts[0] == "cvt":
        return f"%b8_{n}"
    if role == "#" and opcode.startswith("tensormap.cp"):
        return "128"
    if role == "#":
        return {"discard": "128", "applypriority": "128", "fence": "128", "setmaxnreg": "64"}.get(
            parts[0], "16" if opcode.startswith("cp.async.c") and "group" not in opcode else "0"
        )
    last = parts[-1]
    kinds = {"": last, "w": _WIDER.get(last, last), "1": parts[-2], "2": last, "x": "u32"}
    kind = kinds.get(kind, kind)
    if role == "d" and text == "d" and parts[0] == "cvt":
        kind = parts[-2]
    if role == "d" and parts[0] in ("cvt", "set", "slct") and not text.partition(":")[2]:
        kind = parts[-2]
    vector = re.search(r"\.[vx](\d+)(?=\.)", opcode)
    if role == "e":
        return f"{_register(kind, n)}|%pred_{n}"
    if not vector or role not in "db" or kind == "L2::cache_hint":
        return _register(kind, n)
    count = int(vector.group(1))
    return "{" + ", ".join(_register(kind, m) for m in range(count)) + "}"


def instances(form: Form) -> Iterator[str]:
    """Yield instructions of a form, without those that need operands of their own."""
    if {"*", "{}", "L"} & set(form.operands) or form.entry.startswith("tcgen05"):
        return
    for opcode in _opcodes(form):
        operands = [_operand(o, opcode, n) for n, o in enumerate(form.operands)]
        if opcode.startswith(("ld.", "atom.", "red.")) and "b8" in opcode:
            pass
        yield f"{opcode} {', '.join(o for o in operands if o)};".replace(" ;", ";")


def kernel(instructions: list[str], version: str, target: str) -> str:
    """Return a module with one kernel of these instructions, the first on line 2 + types."""
    rare = ("b8", "b128")
    types = (*TYPES, *(kind for kind in rare if any(f"%{kind}_" in i for i in instructions)))
    registers = " ".join(f".reg .{t} %{t}_<132>;" for t in types)
    lines = [f".version {version}", f".target {target}", ".address_size 64",
             ".visible .entry k() {", registers, *instructions, "ret; }"]  # fmt: skip
    return "\n".join(lines)


def rejected(instructions: list[str], version: str, target: str) -> dict[str, str]:
    """Return what ptxas says of each instruction that it does not take."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.ptx"
        path.write_text(kernel(instructions, version, target), encoding="utf-8")
        done = subprocess.run(
            [find_ptxas(), f"-arch={target}", "-o", f"{folder}/k.cubin", str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    found: dict[str, str] = {}
    for line, what in re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", done.stderr):
        index = int(line) - 6
        if 0 <= index < len(instructions):
            found.setdefault(instructions[index], what)
        else:
            found.setdefault(f"line {line}", what)
    return found


SWEPT = (*TYPES, "b128")
_ODD = (
    *("1", "-1", "33", "0x7fffffffffffffff", "18446744073709551615", "99999999999999999999999"),
    *("1.5", "1e5", "0f3F800000", "0fFFC00000", "0d3FF0000000000000", "WARP_SZ", "1 << 3", "0x"),
    *("%tid.x", "%tid", "%nosuch.x", "%clock64", "%globaltimer", "%reserved_smem_offset_1"),
    *("held", "held+4", "words", "words+4", "stack", "x", "k", "L", "nosuch", "nan", "", "_"),
    *("%pred_1", "!%pred_1", "-%u32_1", "%u32_1|%pred_1", "%pred_1|%pred_2", "_|%pred_1"),
    *("{}", "{1, 2}", "{%u32_1, %u32_2}", "{%b16_1, %b16_2}", "{_, %b32_1}", "{%b128_1}"),
    *("{%f32_1, %f32_2, %f32_3, %f32_4}", "[%u64_0]", "[held]", "[words-8]", "[stack]", "[x]"),
    *("[%u32_3]", "[%f32_1]", "[%pred_1]", "[5]", "[_]", "[]", "[%u64_0+-4]", "[%u64_0+%u32_1]"),
    *("[%u64_0, {1}]", "[%u64_0, {%u32_1, %u32_2}]", "[%u64_0, %u32_1]"),
    *(f"%{kind}_1" for kind in SWEPT),
)
"""Operands of every sort, also where they make no sense."""


def swept(form: Form, draw: random.Random, *, opcodes: int, operands: int) -> Iterator[str]:
    """Yield instructions of a form: drawn modifiers, right operands, then one or two odd ones."""
    choices = [([""] * m.endswith("?")) + _alternatives(m) for m in form.modifiers]
    every = [".".join([form.entry, *filter(None, c)]) for c in _some(choices, opcodes, draw)]
    for opcode in dict.fromkeys(every):
        right = [_any(o, opcode, n + 1) for n, o in enumerate(form.operands)]
        given = [o for o in right if o]
        yield f"{opcode} {', '.join(given)}".rstrip()
        for _ in range(operands if given else 0):
            odd = list(given)
            odd[draw.randrange(len(odd))] = draw.choice(_ODD)
            if draw.random() < 0.1:
                odd.append(draw.choice(_ODD))
            yield f"{opcode} {', '.join(odd)}".rstrip()


def _some(choices: list[list[str]], most: int, draw: random.Random) -> Iterator[tuple[str, ...]]:
    """Yield all combinations, or so many that are drawn."""
    if math.prod(map(len, choices)) <= most:
        yield from itertools.product(*choices)
    else:
        yield from (tuple(map(draw.choice, choices)) for _ in range(most))


def _any(text: str, opcode: str, n: int) -> str | None:
    """Return an operand also of what ``instances`` leaves out."""
    role = text.rstrip("?")
    if role == "L":
        return "L"
    if role in ("*", "{}"):
        return {"*": "%b64_1", "{}": "{%b32_1, %b32_2, %b32_3, %b32_4}"}[role]
    return _operand(text, opcode, n)
