"""The guide to tcgen05: its examples say what is true."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from tinygpu.isa.instructions import INSTRUCTIONS

GUIDE = Path(__file__).parent.parent / "docs" / "tcgen05.md"


def test_the_guide_runs() -> None:
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False)
    assert tried > 20
    assert failed == 0


def test_the_guide_names_every_law_of_tensor_memory() -> None:
    from tinygpu.legality.tmem_laws import TMEM_LAWS

    text = GUIDE.read_text(encoding="utf-8")
    assert [law for law in TMEM_LAWS if f"`{law}`" not in text] == []


@pytest.mark.parametrize("name", [n for n in INSTRUCTIONS if n.startswith("tcgen05")])
def test_every_instruction_has_a_section(name: str) -> None:
    """And a smallest program in which it occurs, or that lacks it."""
    sections = GUIDE.read_text(encoding="utf-8").split("\n### ")[1:]
    mine = [s for s in sections if name in s.splitlines()[0]]
    assert len(mine) == 1
    assert ">>> " in mine[0]
