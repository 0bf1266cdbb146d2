"""The interpreter's arithmetic against what an H200 gave, and against exact ratios."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.ptx_agreement import THREADS, _differs, _interpreted, _text
from tinygpu.codegen.interpreter.values import fma, quotient_of, ratio, root_of

GOLDEN = json.loads((Path(__file__).parent / "golden" / "ptx_h200.json").read_text())
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
MODES = ("rn", "rz", "rm", "rp")


def test_what_differed_is_as_on_the_gpu() -> None:
    """Each instruction in a kernel of its own, a case a thread."""
    cases: dict[str, list[Any]] = {}
    for line, words, gpu in GOLDEN["rows"]:
        cases.setdefault(line, []).append((words, int(gpu, 16)))
    wrong = []
    for line, each in cases.items():
        kind, result = re.match(r"[\w.:]+ %((\w+?)_\d+)", line).group(2, 1)  # type: ignore[union-attr]
        words = np.zeros((THREADS, 8), np.uint64)
        for thread, (given_words, _) in enumerate(each):
            for slot, word in given_words.items():
                words[thread, int(slot)] = int(word, 16)
        store = f"st.global.{kind} [%u64_126+0], %{result};"
        found = _interpreted(_text("sm_90a", [line, store], 1), words, 1)[: len(each), 0].copy()
        wanted = np.array([gpu for _, gpu in each], np.uint64)
        wrong += [(line, each[n]) for n in _differs(line, found, wanted)]
    assert wrong == []
    assert len(cases) > 80


def between(value: Fraction, found: float, mode: str) -> bool:
    """Whether a double is what a mode makes of a ratio: no other one lies between them."""
    down, up = math.nextafter(found, -math.inf), math.nextafter(found, math.inf)
    if mode == "rz":
        mode = "rm" if value > 0 else "rp"
    if mode == "rm":
        return found <= value < up
    if mode == "rp":
        return down < value <= found
    if math.isinf(found):
        return abs(value) >= 2 * Fraction(2) ** 1023 - Fraction(2) ** 969
    here = Fraction(found)
    return all(math.isinf(x) or abs(value - here) <= abs(value - Fraction(x)) for x in (down, up))


def fused(a: float, b: float, c: float, mode: str) -> float:
    """As the interpreter computes: what overflows is no warning."""
    with np.errstate(all="ignore"):
        return float(fma(np.array([a]), np.array([b]), np.array([c]), mode, "f64")[0])


@given(DOUBLES, DOUBLES, DOUBLES)
@example(5e-324, 0.5, 0.0)
@example(1.0 + 2**-52, 1.0 + 2**-52, -1.0)
@example(1e308, 1e308, -1e308)
def test_fma_of_doubles_is_rounded_once(a: float, b: float, c: float) -> None:
    value = Fraction(a) * Fraction(b) + Fraction(c)
    for mode in MODES:
        found = fused(a, b, c, mode)
        if value:
            assert between(value, found, mode)
        else:
            assert found == 0


@given(st.floats(1, 2), st.floats(1, 2), st.floats(-4, 4), st.integers(-60, 60))
def test_ties_of_fma_are_even(a: float, b: float, c: float, far: int) -> None:
    """Where the product is kept in two parts: as the ratio says."""
    scaled = math.ldexp(c, far)
    found = fused(a, b, scaled, "rn")
    value = Fraction(a) * Fraction(b) + Fraction(scaled)
    assert found == (ratio(value, "rn") if value else 0)


@given(DOUBLES, DOUBLES)
@pytest.mark.parametrize("mode", MODES)
def test_quotients_and_roots(mode: str, a: float, b: float) -> None:
    if a and b:
        assert between(Fraction(a) / Fraction(b), quotient_of(mode, a, b), mode)
    root = root_of(mode, abs(a))
    if a:
        below, above = (Fraction(math.nextafter(root, x)) for x in (-math.inf, math.inf))
        square = Fraction(abs(a))
        assert below**2 < square < above**2
        if mode in ("rz", "rm"):
            assert Fraction(root) ** 2 <= square
        elif mode == "rp":
            assert Fraction(root) ** 2 >= square
