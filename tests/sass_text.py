"""SASS as ``nvdisasm -c -hex -plr -lrm narrow`` prints it, of instructions that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Line", "text_of"]

_FILES = (("GPR", "R", 32), ("PRED", "P", 7), ("UGPR", "UR", 8), ("UPRED", "UP", 7))


@dataclass(frozen=True, slots=True)
class Line:
    """An instruction's text, its registers in words, and what it waits for in digits."""

    text: str
    reads: str = ""
    writes: str = ""
    write: int = 7
    read: int = 7
    waits: str = ""


def text_of(lines: Sequence[Line | str]) -> str:
    """Return a text of one function; a string is a label."""
    names = "|".join(name.center(count + 6) for name, _, count in _FILES)
    digits = "|".join(
        "  # " + "".join(str(i % 10) for i in range(count)) + "  " for _, _, count in _FILES
    )
    found = ['\t.section\t.text.k,"ax",@progbits', f"// |{names}|", f"// |{digits}|"]
    number = 0
    for line in lines:
        if isinstance(line, str):
            found.append(line)
            continue
        mask = sum(1 << int(scoreboard) for scoreboard in line.waits)
        word = (mask << 11 | line.read << 8 | line.write << 5) << 41
        marks = "|".join(
            "    " + "".join(_mark(line, f"{prefix}{i}") for i in range(count)) + "  "
            for _, prefix, count in _FILES
        )
        found.append(f" /*{16 * number:04x}*/ {line.text} ; /* 0x{number:016x} */ // |")
        found.append(f" /* 0x{word:016x} */ // |{marks}|")
        number += 1
    return "\n".join(found) + "\n"


def _mark(line: Line, register: str) -> str:
    reads, writes = register in line.reads.split(), register in line.writes.split()
    return "x" if reads and writes else "v" if reads else "^" if writes else " "
