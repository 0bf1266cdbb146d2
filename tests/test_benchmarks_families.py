"""The benchmark of families: its mutants are what they say, and outcomes are told apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from benchmarks import families
from tests import hopper_terms
from tests.family_mutants import FAMILIES, mutants
from tinygpu.errors import ProgramError

RING = hopper_terms.term("ring", tile_n=64, store_n=32, stages=2)
SIZES = ({"m": 128, "n": 64, "k": 136},)


def test_mutants_are_of_every_family_and_differ() -> None:
    found: set[str] = set()
    for start in ("cluster", "pingpong"):
        program = hopper_terms.term(start, stages=2)
        for family, text, make in mutants(program):
            assert text
            try:
                assert make() != program, text
            except ProgramError:
                continue
            found.add(family)
    program = families.TERMS["simt naive"][0]()
    found |= {family for family, _, _ in mutants(program)}
    assert found == set(FAMILIES)


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("empty stages -1", None),
        ("proxy.async: wgmma.fence", "illegal"),
        ("not kt 0: wait full", "illegal"),
        ("smem_a a cell less", None),
        ("trips", None),
    ],
)
def test_outcomes_are_told_apart(start: str, wanted: str | None) -> None:
    every = [(text, make) for _, text, make in mutants(RING) if text.startswith(start)]
    assert every
    for text, make in every[:2]:
        word, law, found = families.outcome(make, SIZES, "h200")
        assert word in families.OUTCOMES
        assert word != "missed", (text, found)
        assert wanted is None or (word == wanted and law), text


def test_what_is_right_is_legal_and_what_is_no_term_rejected() -> None:
    assert families.outcome(lambda: RING, SIZES, "h200") == ("legal", "", "")

    def no_term() -> Any:
        raise ProgramError("nothing")

    assert families.outcome(partial(no_term), SIZES, "h200")[0] == "rejected"


def test_a_fragment_in_too_few_cells_is_an_error_of_the_term() -> None:
    """Not an exception of NumPy, whatever the laws say of it."""
    make = dict(families.changed("hopper plain")["storage"])["sums dimension 2 shorter"]
    word, law, found = families.outcome(make, ({"m": 128, "n": 64, "k": 64},), "h200")
    assert (word, law) == ("illegal", "inside")
    assert "touches sums[0, 0, 3, 0, 0], outside of [1, 2, 3, 2, 2]" in found
