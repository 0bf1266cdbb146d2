"""The page of the PTX interpreter says what it understands, and which kernels have it."""

from __future__ import annotations

import pytest

from tests.ptx_coverage import COLUMNS, PAGE, counts, in_unit_tests, page, table
from tinygpu.codegen.emulator import FAMILIES
from tinygpu.codegen.emulator.forms import FORMS


def test_the_page_is_fresh() -> None:
    """``python -m tests.ptx_coverage`` writes it."""
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
    gone = text.replace("| `wmma.mma` |", "| `wmma.mmm` |")
    assert page(gone) == text != gone


def test_every_instruction_is_tested() -> None:
    """By a kernel or by a small test's PTX; no row says otherwise."""
    assert "not tested" not in table()
    assert not in_unit_tests("no.such")
    assert in_unit_tests("mul24")


@pytest.mark.parametrize("column", COLUMNS)
def test_kernels_have_only_known_instructions(column: str) -> None:
    """No kernel has an opcode without an entry; every column counts some."""
    known = {name for family in FAMILIES.values() for name in family}
    found = set(counts(column)) - {""}
    assert found <= known
    assert counts(column)["ld"] == counts(column)[""] > 3


def test_the_page_has_every_form() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(str(form) in text for form in FORMS)
