"""The guide to tcgen05: its examples say what is true."""

from __future__ import annotations

import doctest
from pathlib import Path

GUIDE = Path(__file__).parent.parent / "docs" / "tcgen05.md"


def test_the_guide_runs() -> None:
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False)
    assert tried > 20
    assert failed == 0


def test_the_guide_names_every_law_of_tensor_memory() -> None:
    from tinygpu.tmem_laws import TMEM_LAWS

    text = GUIDE.read_text(encoding="utf-8")
    assert [law for law in TMEM_LAWS if f"`{law}`" not in text] == []
