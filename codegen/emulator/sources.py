"""Where lines of PTX come from: what ``.loc`` and ``.file`` say of them.

A ``.loc`` says it of all instructions up to the next one, or to the end of its function; of what is
inlined it names the place in the function that was.

>>> text = '''.entry k() {
... .loc 1 14 5
... mov.u32 %r0, %tid.x;
... }
... .file 1 "/work/kernel.cu"'''
>>> print(sources(text)[3])
/work/kernel.cu:14:5

Source: PTX ISA 9, 11.5 (".loc", ".file"); nvcc's ``-lineinfo``; GitHub's workflow commands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Source", "annotation", "sources"]

_FILE = re.compile(r"\s*\.file\s+(\d+)\s+\"([^\"\n]*)\"")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_BEGINS = re.compile(r"\s*(?:\.(?:visible|weak|extern)\s+)*\.(?:entry|func)\b")


@dataclass(frozen=True, slots=True)
class Source:
    """A place in a source file; ``column`` is 0 where it is not known."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")


def sources(text: str) -> Mapping[int, Source]:
    """Return where each line of a text of PTX comes from, by its number; none where nothing says.

    A number without a ``.file`` says nothing.
    """
    rows = text.split("\n")
    files = {found[1]: found[2] for row in rows if (found := _FILE.match(row))}
    places: dict[int, Source] = {}
    here: Source | None = None
    for number, row in enumerate(rows, 1):
        if _BEGINS.match(row):
            here = None
        if found := _LOC.match(row):
            line, column = int(found[2]), int(found[3])
            here = Source(files[found[1]], line, column) if found[1] in files and line else None
        elif here is not None:
            places[number] = here
    return places


def annotation(severity: str, title: str, message: str, at: Source) -> str:
    """Return a workflow command by which GitHub shows a message at a place of a pull request.

    >>> print(annotation("error", "race", "100 % wrong", Source("k.cu", 14, 5)))
    ::error file=k.cu,line=14,col=5,title=race::100 %25 wrong
    """
    said = {"file": at.file, "line": str(at.line)}
    said |= {"col": str(at.column)} if at.column else {}
    of = ",".join(
        f"{name}={_escaped(word, ':,')}" for name, word in {**said, "title": title}.items()
    )
    return f"::{severity} {of}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for mark in ("%", "\r", "\n", *more):
        text = text.replace(mark, f"%{ord(mark):02X}")
    return text
