"""Which kernels contain which instructions: the table of docs/ptx-interpreter.md, made from them.

``python -m tests.ptx_coverage`` writes it into the page.  All of these kernels are run by tests.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.interpreter_speed import POINTS, SIZES
from tests.ptx_runs import term_of
from tests.ptx_runs import unchecked as emit
from tests.test_ptx_kernels import VARIANTS
from tinygpu.codegen.emulator import FAMILIES
from tinygpu.codegen.emulator.forms import FORMS, SETS, find
from tinygpu.codegen.emulator.parser import parse
from tinygpu.machines import MACHINES
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul

__all__ = ["COLUMNS", "PAGE", "counts", "in_unit_tests", "page", "table"]

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "ptx-interpreter.md"
FILES = {"by hand": "sm*.ptx", "nvcc": "cuda*.ptx", "Triton": "triton*.ptx"}
COLUMNS = (*POINTS, *FILES)
FIRST, LAST = "<!-- made by tests/ptx_coverage.py -->\n", "<!-- end -->\n"


def _texts(column: str) -> Iterator[str]:
    if column in FILES:
        for path in sorted((TESTS / "ptx").glob(FILES[column])):
            yield path.read_text(encoding="utf-8")
        return
    points, dtype, layout, arch = POINTS[column]
    for point in points.values():
        output = "f32" if point.get("combine") == "red" else None  # bf16 cannot be added to
        operation = matmul(dtype, output, layout)
        yield emit(MACHINES[column].program(operation, Chosen(dict(point))), arch, SIZES)
    if column == "simt":
        for point, other in VARIANTS.values():
            yield emit(term_of(column, point, other), arch, SIZES)


@functools.cache
def counts(column: str) -> Mapping[str, int]:
    """Return how many of a column's kernels contain each entry, and under "" how many there are."""
    found: dict[str, int] = {"": 0}
    for text in _texts(column):
        for kernel in parse(text).kernels.values():
            found[""] += 1
            for name in {find(i.opcode)[0].entry for i in kernel.instructions}:
                found[name] = found.get(name, 0) + 1
    return found


@functools.cache
def _unit_tests() -> str:
    """Return all of the tests' code."""
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted(TESTS.glob("test_ptx_*.py")))


def in_unit_tests(name: str) -> bool:
    """Whether a test's PTX has an entry's instruction."""
    return re.search(rf"(?<![\w.%]){re.escape(name)}(?=[. ;])", _unit_tests()) is not None


def _row(name: str, cells: list[str]) -> str:
    cells = [name, *cells, *[""] * (len(COLUMNS) - len(cells))]
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def table() -> str:
    """Return the table: a row an entry, a column where kernels come from."""
    each = {column: counts(column) for column in COLUMNS}
    lines = [_row("", [*COLUMNS]), "|" + "---|" * (len(COLUMNS) + 1)]
    lines.append(_row("kernels", [str(c[""]) for c in each.values()]))
    for family, entries in FAMILIES.items():
        lines.append(_row(f"**{family}**", []))
        for name in sorted(entries):
            numbers = [c.get(name, 0) for c in each.values()]
            alone = ["unit tests" if in_unit_tests(name) else "not tested"]
            lines.append(
                _row(f"`{name}`", [str(n or "") for n in numbers] if any(numbers) else alone)
            )
    return "\n".join(lines) + "\n\n" + forms() + "\n"


def forms() -> str:
    """Return every form that is run, by family, in the spelling of the table."""
    lines = ["A set in capitals stands for its alternatives:", ""]
    shown = (
        (n, s if len(s) < 120 else f"{s[:100].rpartition('|')[0]}|...") for n, s in SETS.items()
    )
    lines += ["```text", *(f"{name} = {text}" for name, text in shown), "```", ""]
    for family in FAMILIES:
        mine = [f for f in FORMS if f.family == family]
        needs = [f"  @ {f.version[0]}.{f.version[1]} sm_{f.target}" for f in mine]
        needs = [n if f.version > (1, 0) else "" for n, f in zip(needs, mine, strict=True)]
        listed = (f"{f} {' '.join(f.operands)}{n}" for f, n in zip(mine, needs, strict=True))
        lines += [f"{family}:", "", "```text", *listed, "```", ""]
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, rest = text.split(FIRST)
    return f"{before}{FIRST}\n{table()}\n{LAST}{rest.split(LAST)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
