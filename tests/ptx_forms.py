"""One instruction of PTX for each modifier of each form of the interpreter's table."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tinygpu.codegen.emulator.forms import SETS, Form
from tinygpu.codegen.run.assemble import find_ptxas

__all__ = ["instances", "kernel", "rejected"]

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
    types = [*TYPES, "b128"] if any("%b128" in i for i in instructions) else TYPES
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
