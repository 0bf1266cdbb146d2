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
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ptx_agreement import THREADS, differs
from benchmarks.ptx_agreement_cases import interpreted, text_of
from tests.sample import draws
from tinygpu.codegen.emulator.values import TYPES, fma, quotient, root, rounded

GOLDEN = json.loads((Path(__file__).parent / "golden" / "ptx_h200.json").read_text())
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
MODES = ("rn", "rz", "rm", "rp")
BITS = 1400  # of a root, so many that only an exact one is a tie
FORMATS = {
    "f64": (53, -1074, 2.0**1023 * (2 - 2.0**-52)),
    "f32": (24, -149, 2.0**127 * (2 - 2.0**-23)),
    "f16": (11, -24, 65504.0),
    "bf16": (8, -133, 2.0**127 * (2 - 2.0**-7)),
}
LOW = {
    "tf32": (11, -136, 2.0**127 * (2 - 2.0**-10)),
    "e4m3": (4, -9, 448.0),
    "e5m2": (3, -16, 57344.0),
}
"""Bits of precision, the exponent of the least number, and the greatest number."""


def test_what_differed_is_as_on_the_gpu() -> None:
    """Each instruction in a kernel of its own, a case a thread."""
    cases: dict[str, list[Any]] = {}
    for line, words, gpu in GOLDEN["rows"]:
        cases.setdefault(line, []).append((words, int(gpu, 16)))
    wrong = []
    for line, each in cases.items():
        ((result, kind),) = re.findall(r"^[\w.:]+ %((\w+?)_\d+)", line)
        words = np.zeros((THREADS, 8), np.uint64)
        for thread, (given_words, _) in enumerate(each):
            for slot, word in given_words.items():
                words[thread, int(slot)] = int(word, 16)
        store = f"st.global.{kind} [%u64_126+0], %{result};"
        found = interpreted(text_of("sm_90a", [line, store], 1), words, 1)[: len(each), 0].copy()
        wanted = np.array([gpu for _, gpu in each], np.uint64)
        wrong += [(line, each[n]) for n in differs(line, found, wanted)]
    assert wrong == []
    assert len(cases) > 80


def once(value: Fraction, mode: str, kind: str) -> float:
    """Round a ratio that is not 0, by its definition."""
    precision, least, most = (FORMATS | LOW)[kind]
    size, negative = abs(value), value < 0
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top += size >= Fraction(2) ** top
    unit = Fraction(2) ** max(top - precision, least)
    kept, rest = divmod(size / unit, 1)
    out = {"rz": False, "rm": negative, "rp": not negative}.get(mode)
    up = rest > 0 if out else mode == "rn" and rest + Fraction(kept & 1, 1 << 9999) > Fraction(1, 2)
    found = (kept + up) * unit
    largest = most if out is False else math.inf
    return math.copysign(largest if found > Fraction(most) else float(found), -1 if negative else 1)


@st.composite
def numbers(draw: st.DrawFn, kind: str) -> float:
    """Numbers of a type, of all sizes and near to each other."""
    if kind == "f64":
        return draw(DOUBLES | st.builds(math.ldexp, st.floats(-2, 2), st.integers(-1080, 1000)))
    bits = draw(st.integers(0, (1 << 8 * TYPES[kind].itemsize) - 1))
    found = float(np.array(bits, f"u{TYPES[kind].itemsize}").view(TYPES[kind])[()])
    return found if math.isfinite(found) else 1.0


def same(found: Any, value: Fraction, mode: str, kind: str) -> None:
    if value:
        assert float(found[0]) == once(value, mode, kind)
    else:
        assert float(found[0]) == 0


KINDED = pytest.mark.parametrize("kind", FORMATS)


@KINDED
@settings(max_examples=draws(24, 60))
@given(data=st.data())
def test_a_product_and_a_sum_are_rounded_once(kind: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(numbers(kind)) for _ in range(3))
    if data.draw(st.booleans()):  # what nearly cancels, and ties
        c = float(-np.float64(a * b)) * data.draw(st.sampled_from((1.0, 2.0, 0.5, 2.0**53)))
        most = FORMATS[kind][2]
        c = float(np.array(np.clip(c, -most, most)).astype(TYPES[kind]))
    value = Fraction(a) * Fraction(b) + Fraction(c)
    x, y, z = (np.array([v]).astype(TYPES[kind]) for v in (a, b, c))
    for mode in MODES:
        with np.errstate(all="ignore"):
            same(fma(x, y, z, mode, kind), value, mode, kind)


@KINDED
@settings(max_examples=draws(24, 60))
@given(data=st.data())
def test_quotients_and_roots_are_rounded_once(kind: str, data: st.DataObject) -> None:
    a, b = (data.draw(numbers(kind)) for _ in range(2))
    below, above = abs(Fraction(a)).as_integer_ratio()[::-1]
    whole, left = divmod(above << 2 * BITS, below)
    root_bits = math.isqrt(whole)
    exact = Fraction(2 * root_bits + (left > 0 or root_bits**2 != whole), 2 << BITS)
    for mode in MODES:
        with np.errstate(all="ignore"):
            if b:
                found = quotient(np.array([a]), np.array([b]), mode, kind)
                same(found, Fraction(a) / Fraction(b), mode, kind)
            same(root(np.array([abs(a)]), mode, kind), exact, mode, kind)


@pytest.mark.parametrize("kind", FORMATS | LOW)
@given(value=DOUBLES)
def test_a_double_is_rounded_once(kind: str, value: float) -> None:
    most = (FORMATS | LOW)[kind][2]
    for number in (value, math.ldexp(math.frexp(value)[0], 3)):
        inside = min(max(number, -most), most)
        for mode in MODES:
            with np.errstate(all="ignore"):
                same(rounded(np.array([inside]), 0, mode, kind), Fraction(inside), mode, kind)


def test_signs_of_zero_sums() -> None:
    """Of numbers of both signs: negative if it is rounded down; the product's sign stays."""
    for kind in FORMATS:
        for a, c, down, else_ in [(1, -1, -0.0, 0.0), (-0.0, -0.0, -0.0, -0.0), (0, 0, 0.0, 0.0)]:
            for mode in MODES:
                found = float(fma(np.array([float(a)]), 1.0, float(c), mode, kind)[0])
                assert math.copysign(1, found) == math.copysign(1, down if mode == "rm" else else_)


def test_what_is_flushed() -> None:
    """2**-14 less 0.68 steps of numbers below it is flushed, less a hair it is not: as measured."""
    a, b, c = (np.array([v], np.uint16).view(np.float16) for v in (0x8D72, 0x400, 0x400))
    assert fma(a, b, c, "rn", "f16")[0] == c[0]
    assert fma(a, b, c, "rn", "f16", flush=True)[0] == 0
    least, hair = np.float32(2.0**-126), np.float32(2.0**-100)
    assert fma(-hair, hair, np.array([least]), "rn", "f32", flush=True)[0] == least
