"""One instruction at a time, over corner cases and random numbers, against exact arithmetic."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sample import draws
from tinygpu.codegen.emulator import Memory, Module, launch, values
from tinygpu.codegen.emulator.values import TYPES

Array = NDArray[Any]
BITS = {"s": "i", "u": "u", "b": "u", "f": "f"}


def compute(line: str, kinds: str, columns: list[Array], to: str) -> Array:
    """Run ``line`` on registers %x0, %x1, ... and return %y, one thread an element."""
    given_kinds = kinds.split()
    n = len(columns[0])
    memory = Memory()
    out = np.zeros(n, TYPES["u8" if to == "pred" else to])
    arrays = [*(np.ascontiguousarray(c) for c in columns), out]
    names = [f"p{i}" for i in range(len(arrays))]
    body = [".reg .u32 %t; .reg .u64 %at, %base; .reg .pred %p<4>; .reg .b32 %flag;"]
    body.append("mov.u32 %t, %tid.x;")
    for i, kind in enumerate(given_kinds):
        held = {"pred": "pred", "bf16": "b16", "f16": "b16"}.get(kind, kind)
        stored = "u8" if kind == "pred" else kind
        body.append(f".reg .{'b16' if held in ('u8', 's8') else held} %x{i};")
        width = TYPES[stored].itemsize
        body.append(f"ld.param.u64 %base, [p{i}]; mad.wide.u32 %at, %t, {width}, %base;")
        if kind == "pred":
            body.append(f"ld.global.u8 %flag, [%at]; setp.ne.u32 %x{i}, %flag, 0;")
        else:
            word = {"bf16": "b16", "f16": "b16"}.get(kind, kind)
            body.append(f"ld.global.{word} %x{i}, [%at];")
    held = {"bf16": "b16", "f16": "b16"}.get(to, to)
    body.append(f".reg .{held} %y; .reg .{held} %z; {line};")
    body.append(f"ld.param.u64 %base, [p{len(given_kinds)}];")
    body.append(f"mad.wide.u32 %at, %t, {out.itemsize}, %base;")
    if to == "pred":
        body.append("selp.u32 %flag, 1, 0, %y; st.global.u8 [%at], %flag;")
    else:
        body.append(f"st.global.{held} [%at], %y;")
    parameters = ", ".join(f".param .u64 {p}" for p in names)
    text = f".visible .entry k({parameters}) {{ {' '.join(body)} ret; }}"
    places = [memory.allocate(a, p) for a, p in zip(arrays, names, strict=True)]
    report = launch(Module.parse(text), "k", 1, n, places, memory)
    assert report.findings == ()
    return out


def corners(kind: str, seed: int) -> Array:
    """The ends, zeros and random numbers of a type: 96 of them."""
    rng = np.random.default_rng(seed)
    if kind == "pred":
        return rng.integers(0, 2, 96).astype(np.uint8)
    dtype: Any = TYPES[kind]
    if kind[0] in "sub" and kind != "bf16":
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        ends = [low, high, 0, 1, high - 1, high // 2, 31, 32, 33, 63, 64]
        random = rng.integers(limits.min, limits.max, 96 - len(ends), dtype=dtype, endpoint=True)
        small = random >> rng.integers(0, 8 * dtype.itemsize, len(random)).astype(dtype)
        mixed = np.concatenate([np.array([min(e, int(limits.max)) for e in ends], dtype), small])
        return rng.permutation(mixed)
    random = (rng.standard_normal(96) * 10.0 ** rng.integers(-3, 4, 96)).astype(dtype)
    random[:6] = [0.0, 1.0, -1.0, 0.5, 1.5, 2.5]
    return rng.permutation(random)


def wrap(value: int, kind: str) -> int:
    width = 8 * TYPES[kind].itemsize
    value &= (1 << width) - 1
    return value - (1 << width) if kind[0] == "s" and value >> width - 1 else value


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def bits(a: int, width: int = 32) -> str:
    return f"{a & (1 << width) - 1:0{width}b}"


def bfe(a: int, at: int, n: int, width: int, signed: bool) -> int:
    at, n = at & 255, n & 255
    sign = a < 0 if signed else False
    got = [(a >> (at + i) & 1 if at + i < width else int(sign)) for i in range(min(n, width))]
    top = a >> min(at + n - 1, width - 1) & 1 if signed and n else 0
    value = sum(b << i for i, b in enumerate(got))
    return value | (-1 << n if top and n < width else 0)


def bfi(a: int, b: int, at: int, n: int, width: int) -> int:
    if width == 64 and (at & 0xFFFFFFFF) >= width:  # an H200 takes more than 8 bits of it
        return b
    at, n = at & 255, n & 255
    mask = ((1 << min(n, width)) - 1) << at & (1 << width) - 1
    return b & ~mask | a << at & mask


def funnel(low: int, high: int, by: int, left: bool, wraps: bool) -> int:
    n = by & 31 if wraps else min(by, 32)
    both = high << 32 | low
    return both >> (32 - n) if left else both >> n


def look(table: int) -> Callable[[int, int, int], int]:
    def each(a: int, b: int, c: int) -> int:
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
            for i in range(32)
        )

    return each


INTEGERS: list[tuple[str, str, str, Callable[..., Any]]] = [
    *((f"{op}.{k} %y, %x0, %x1", f"{k} {k}", k, f) for k in ("s32", "u64", "s16")
      for op, f in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b),
                    ("mul.lo", lambda a, b: a * b), ("min", min), ("max", max))),
    *((f"{op}.{k} %y, %x0, %x1", f"{k} {k}", k, f) for k in ("s32", "u32", "s64", "u64")
      for op, f in (("div", lambda a, b: quotient(a, b) if b else None),
                    ("rem", lambda a, b: a - b * quotient(a, b) if b else None))),
    ("add.sat.s32 %y, %x0, %x1", "s32 s32", "s32",
     lambda a, b: max(-(1 << 31), min((1 << 31) - 1, a + b))),
    ("mul.hi.u32 %y, %x0, %x1", "u32 u32", "u32", lambda a, b: a * b >> 32),
    ("mul.hi.s32 %y, %x0, %x1", "s32 s32", "s32", lambda a, b: a * b >> 32),
    ("mul.hi.u64 %y, %x0, %x1", "u64 u64", "u64", lambda a, b: a * b >> 64),
    ("mul.hi.s64 %y, %x0, %x1", "s64 s64", "s64", lambda a, b: a * b >> 64),
    ("mul.wide.s32 %y, %x0, %x1", "s32 s32", "s64", lambda a, b: a * b),
    ("mul.wide.u16 %y, %x0, %x1", "u16 u16", "u32", lambda a, b: a * b),
    ("mad.lo.s32 %y, %x0, %x1, %x2", "s32 s32 s32", "s32", lambda a, b, c: a * b + c),
    ("mad.hi.u32 %y, %x0, %x1, %x2", "u32 u32 u32", "u32", lambda a, b, c: (a * b >> 32) + c),
    ("mad.wide.s32 %y, %x0, -4, %x1", "s32 s64", "s64", lambda a, b: -4 * a + b),
    ("sad.s32 %y, %x0, %x1, %x2", "s32 s32 u32", "u32", lambda a, b, c: abs(a - b) + c),
    ("abs.s32 %y, %x0", "s32", "s32", abs),
    ("neg.s64 %y, %x0", "s64", "s64", lambda a: -a),
    ("not.b32 %y, %x0", "b32", "b32", lambda a: ~a),
    ("cnot.b32 %y, %x0", "b32", "b32", lambda a: int(a == 0)),
    ("and.b32 %y, %x0, 0xff00", "b32", "b32", lambda a: a & 0xFF00),
    ("or.b64 %y, %x0, %x1", "b64 b64", "b64", lambda a, b: a | b),
    ("xor.b16 %y, %x0, %x1", "b16 b16", "b16", lambda a, b: a ^ b),
    ("shl.b32 %y, %x0, %x1", "b32 u32", "b32", lambda a, b: a << b if b < 32 else 0),
    ("shr.u32 %y, %x0, %x1", "u32 u32", "u32", lambda a, b: a >> b if b < 32 else 0),
    ("shr.s64 %y, %x0, %x1", "s64 u32", "s64", lambda a, b: a >> min(b, 63)),
    ("shf.l.wrap.b32 %y, %x0, %x1, %x2", "b32 b32 u32", "b32",
     lambda a, b, c: funnel(a, b, c, True, True)),
    ("shf.r.clamp.b32 %y, %x0, %x1, %x2", "b32 b32 u32", "b32",
     lambda a, b, c: funnel(a, b, c, False, False)),
    ("lop3.b32 %y, %x0, %x1, %x2, 0x96", "b32 b32 b32", "b32", look(0x96)),
    ("lop3.b32 %y, %x0, %x1, %x2, 0xca", "b32 b32 b32", "b32", look(0xCA)),
    ("popc.b64 %y, %x0", "b64", "u32", lambda a: a.bit_count()),
    ("clz.b32 %y, %x0", "b32", "u32", lambda a: 32 - a.bit_length()),
    ("clz.b64 %y, %x0", "b64", "u32", lambda a: 64 - a.bit_length()),
    ("brev.b32 %y, %x0", "b32", "b32", lambda a: int(bits(a)[::-1], 2)),
    ("bfind.u32 %y, %x0", "u32", "u32", lambda a: a.bit_length() - 1),
    ("bfind.s32 %y, %x0", "s32", "u32", lambda a: (~a if a < 0 else a).bit_length() - 1),
    ("bfind.shiftamt.u32 %y, %x0", "u32", "u32", lambda a: 32 - a.bit_length() if a else -1),
    ("bfe.u32 %y, %x0, %x1, %x2", "u32 u32 u32", "u32",
     lambda a, b, c: bfe(a, b, c, 32, False)),
    ("bfe.s32 %y, %x0, 5, 9", "s32", "s32", lambda a: bfe(a, 5, 9, 32, True)),
    ("bfe.s64 %y, %x0, 60, 9", "s64", "s64", lambda a: bfe(a, 60, 9, 64, True)),
    ("bfi.b32 %y, %x0, %x1, 7, 11", "b32 b32", "b32", lambda a, b: bfi(a, b, 7, 11, 32)),
    ("bfi.b64 %y, %x0, %x1, %x2, 40", "b64 b64 u32", "b64",
     lambda a, b, c: bfi(a, b, c, 40, 64)),
    ("prmt.b32 %y, %x0, %x1, 0x9a37", "b32 b32", "b32",
     lambda a, b: sum(((0xFF if (a | b << 32) >> 8 * (s & 7) + 7 & 1 else 0) if s & 8
                       else (a | b << 32) >> 8 * (s & 7) & 255) << 8 * n
                      for n, s in enumerate((7, 3, 10, 9)))),
    ("prmt.b32.f4e %y, %x0, %x1, 1", "b32 b32", "b32",
     lambda a, b: (a | b << 32) >> 8 & 0xFFFFFFFF),
    ("selp.s32 %y, %x0, %x1, %x2", "s32 s32 pred", "s32", lambda a, b, p: a if p else b),
    ("slct.s32.s32 %y, %x0, %x1, %x2", "s32 s32 s32", "s32", lambda a, b, c: a if c >= 0 else b),
    ("set.lt.u32.s32 %y, %x0, %x1", "s32 s32", "u32", lambda a, b: -int(a < b)),
    *((f"setp.{t}.{k} %y, %x0, %x1", f"{k} {k}", "pred", f) for k in ("s32", "u64")
      for t, f in (("eq", lambda a, b: a == b), ("ne", lambda a, b: a != b),
                   ("lt", lambda a, b: a < b), ("ge", lambda a, b: a >= b))),
    ("setp.hi.u32 %y, %x0, %x1", "u32 u32", "pred", lambda a, b: a > b),
    ("setp.gt.and.s32 %y, %x0, %x1, %x2", "s32 s32 pred", "pred", lambda a, b, p: a > b and p),
    ("setp.gt.or.s32 %z|%y, %x0, %x1, !%x2", "s32 s32 pred", "pred",
     lambda a, b, p: not a > b or not p),
    ("xor.pred %y, %x0, %x1", "pred pred", "pred", lambda a, b: a ^ b),
    ("cvt.u64.u32 %y, %x0", "u32", "u64", lambda a: a),
    ("cvt.s64.s32 %y, %x0", "s32", "s64", lambda a: a),
    ("cvt.u32.s16 %y, %x0", "s16", "u32", lambda a: a),
    ("cvt.u16.u32 %y, %x0", "u32", "u16", lambda a: a),
    ("cvt.sat.u16.s32 %y, %x0", "s32", "u16", lambda a: max(0, min(65535, a))),
    ("cvt.sat.s16.s32 %y, %x0", "s32", "s16", lambda a: max(-32768, min(32767, a))),
    ("mov.b64 {%flag, %t}, %x0; mov.b64 %y, {%t, %flag}; mov.u32 %t, %tid.x", "b64", "b64",
     lambda a: (a & 0xFFFFFFFF) << 32 | a >> 32),
]  # fmt: skip


@pytest.mark.parametrize("case", INTEGERS, ids=[re.sub(r"\W+", " ", c[0]) for c in INTEGERS])
def test_integers(case: tuple[str, str, str, Callable[..., Any]]) -> None:
    """What Python's integers give, cut to the result's width."""
    line, kinds, to, function = case
    columns = [corners(kind, 10 + i) for i, kind in enumerate(kinds.split())]
    result = compute(line, kinds, columns, to)
    for row, got in zip(zip(*(c.tolist() for c in columns), strict=True), result, strict=True):
        expected = function(*row)
        if expected is not None:
            expected = int(bool(expected)) if to == "pred" else wrap(int(expected), to)
            assert int(got) == expected, row


def rounded(exact: Fraction, mode: str, kind: str) -> float:
    """A rational number in ``kind``, by the mode's name."""
    digits, least = {"f32": (24, -149), "f16": (11, -24), "bf16": (8, -133), "f64": (53, -1074)}[
        kind
    ]
    if exact == 0:
        return 0.0
    power = math.floor(math.log2(abs(exact)))
    power += 1 if abs(exact) >= Fraction(2) ** (power + 1) else 0
    power -= 1 if abs(exact) < Fraction(2) ** power else 0
    quantum = Fraction(2) ** max(power - digits + 1, least)
    ratio = exact / quantum
    turns: dict[str, Callable[[Fraction], int]]
    turns = {"rm": math.floor, "rp": math.ceil, "rz": math.trunc, "rn": round}
    whole = turns[mode](ratio)
    value = float(whole * quantum)
    if kind == "f16" and abs(value) > 65504:
        return math.copysign(math.inf, value)
    return value


MODES = ("rn", "rz", "rm", "rp")
FLOATS: list[tuple[str, str, str, str, Callable[..., Any]]] = [
    *((f"{op}.{m}.{k} %y, %x0, %x1", f"{k} {k}", k, m, f) for m in MODES
      for k, op, f in (("f32", "add", lambda a, b: a + b), ("f32", "sub", lambda a, b: a - b),
                       ("f32", "mul", lambda a, b: a * b),
                       ("f32", "div", lambda a, b: a / b if b else None))),
    *((f"fma.{m}.f32 %y, %x0, %x1, %x2", "f32 f32 f32", "f32", m, lambda a, b, c: a * b + c)
      for m in MODES),
    ("fma.rn.f64 %y, %x0, %x1, %x2", "f64 f64 f64", "f64", "rn", lambda a, b, c: a * b + c),
    ("fma.rn.f16 %y, %x0, %x1, %x2", "f16 f16 f16", "f16", "rn", lambda a, b, c: a * b + c),
    ("fma.rn.bf16 %y, %x0, %x1, %x2", "bf16 bf16 bf16", "bf16", "rn", lambda a, b, c: a * b + c),
    ("add.f16 %y, %x0, %x1", "f16 f16", "f16", "rn", lambda a, b: a + b),
    ("mul.f64 %y, %x0, %x1", "f64 f64", "f64", "rn", lambda a, b: a * b),
    *((f"cvt.{m}.{to}.{of} %y, %x0", of, to, m, lambda a: a)
      for m in MODES for of, to in (("f64", "f32"), ("f32", "f16"), ("s32", "f32"))),
    ("cvt.rn.bf16.f32 %y, %x0", "f32", "bf16", "rn", lambda a: a),
    ("cvt.f32.f16 %y, %x0", "f16", "f32", "rn", lambda a: a),
    ("cvt.f32.bf16 %y, %x0", "bf16", "f32", "rn", lambda a: a),
    ("cvt.rn.f32.u64 %y, %x0", "u64", "f32", "rn", lambda a: a),
    ("abs.f32 %y, %x0", "f32", "f32", "rn", abs),
    ("neg.f64 %y, %x0", "f64", "f64", "rn", lambda a: -a),
    ("min.f32 %y, %x0, %x1", "f32 f32", "f32", "rn", min),
    ("max.f32 %y, %x0, %x1", "f32 f32", "f32", "rn", max),
    ("add.sat.f32 %y, %x0, %x1", "f32 f32", "f32", "rn", lambda a, b: min(max(a + b, 0), 1)),
    ("rcp.rn.f32 %y, %x0", "f32", "f32", "rn", lambda a: 1 / a if a else None),
]  # fmt: skip


@pytest.mark.parametrize("case", FLOATS, ids=[re.sub(r"\W+", " ", c[0]) for c in FLOATS])
def test_floats(case: tuple[str, str, str, str, Callable[..., Any]]) -> None:
    """Exact rational arithmetic, rounded once."""
    line, kinds, to, mode, function = case
    columns = [corners(kind, 20 + i) for i, kind in enumerate(kinds.split())]
    result = compute(line, kinds, columns, to)
    rows = zip(*([Fraction(float(v) if c.dtype.kind not in "iu" else int(v)) for v in c]
                 for c in columns), strict=True)  # fmt: skip
    for row, got in zip(rows, result.astype(np.float64), strict=True):
        expected = function(*row)
        if expected is not None:
            assert float(got) == rounded(Fraction(expected), mode, to), tuple(map(float, row))


@settings(max_examples=draws(24, 60))
@given(st.lists(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3),
                min_size=1, max_size=32))  # fmt: skip
def test_fma_rounds_once(rows: list[tuple[float, float, float]]) -> None:
    """Also where the product is subnormal, or all but cancels the sum."""
    mixed = [*rows, *((a, b, -a * b) for a, b, _ in rows if abs(a * b) < 1e30)]
    columns = [np.array(c, np.float64).astype(np.float32) for c in zip(*mixed, strict=True)]
    result = compute("fma.rn.f32 %y, %x0, %x1, %x2", "f32 f32 f32", columns, "f32")
    for a, b, c, got in zip(*(x.tolist() for x in columns), result.tolist(), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if math.isfinite(got):
            assert got == rounded(exact, "rn", "f32"), (a, b, c)


@pytest.mark.parametrize("scale", [1.0, 2.0**-126])
@pytest.mark.parametrize("sign", [1, -1])
def test_fma_at_ties(scale: float, sign: int) -> None:
    """The sum is off a tie by less than float64 keeps: rounding twice would go wrong."""
    small = 2.0**-12 * np.array([1 + 2.0**-18, 1 - 2.0**-18])
    c = np.array([1, 1 + 2.0**-23, 1 - 2.0**-24 * (scale == 1)])
    if scale < 1:  # the quantum is 2^-149, a tie 2^-150
        small, c = 2.0**-75 * small * 2.0**12, 2.0**-127 + 2.0**-149 * np.arange(3)
    columns = [np.repeat(x, 3) for x in np.meshgrid(small, sign * small)]
    a, b = (x.reshape(-1)[:12].astype(np.float32) for x in columns)
    given_c = np.tile(c, 4).astype(np.float32)
    for signed_c in (given_c, -given_c):
        result = compute("fma.rn.f32 %y, %x0, %x1, %x2", "f32 f32 f32", [a, b, signed_c], "f32")
        for x, y, z, got in zip(a, b, signed_c, result, strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            assert float(got) == rounded(exact, "rn", "f32"), (x, y, z)


def test_float_to_integer() -> None:
    """Rounded by the mode, kept inside the type; NaN is 0, of 64 bits the uppermost bit."""
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.7, -3.7, 1e20, -1e20, np.nan, np.inf], np.float32)
    for mode, turn in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
        for kind in ("s32", "u8", "s64"):
            got = compute(f"cvt.{mode}.{kind}.f32 %y, %x0", "f32", [x], "s64" if kind == "s64"
                          else "s32")  # fmt: skip
            limits = np.iinfo(TYPES[kind])
            nothing = -(1 << 63) if kind == "s64" else 0
            expected = [
                nothing if math.isnan(v) else int(min(max(float(turn(v)), limits.min), limits.max))
                if math.isfinite(v) else (limits.max if v > 0 else limits.min) for v in x
            ]  # fmt: skip
            assert got.tolist() == [min(max(e, limits.min), limits.max) for e in expected]


def test_packed() -> None:
    """Two halves in one register: the first source of a conversion is the upper one."""
    a, b = corners("f32", 1), corners("f32", 2)
    for kind in ("f16", "bf16"):
        got = compute(f"cvt.rn.{kind}x2.f32 %y, %x0, %x1", "f32 f32", [a, b], "b32")
        halves = got.view(TYPES[kind]).reshape(-1, 2)
        np.testing.assert_array_equal(halves[:, 0], b.astype(TYPES[kind]))
        np.testing.assert_array_equal(halves[:, 1], a.astype(TYPES[kind]))
        total = compute(f"add.{kind}x2 %y, %x0, %x1", "b32 b32", [got, got], "b32")
        np.testing.assert_array_equal(
            total.view(TYPES[kind]), got.view(TYPES[kind]) + got.view(TYPES[kind])
        )
    got = compute("cvt.rn.satfinite.e4m3x2.f32 %y, %x0, %x1", "f32 f32", [a, b], "b16")
    low = np.clip(b, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(got & 255, low.view(np.uint8))
    got = compute("cvt.rna.tf32.f32 %y, %x0", "f32", [a], "b32").view(np.float32)
    assert (got.view(np.uint32) & 0x1FFF == 0).all()
    assert (np.abs(got - a) <= np.abs(a) * 2.0**-11).all()


def test_nan() -> None:
    """Comparisons with NaN; the lesser of a number and NaN is the number, unless .NaN."""
    a = np.array([np.nan, 1, np.nan, 2], np.float32)
    b = np.array([1, np.nan, np.nan, 1], np.float32)
    for test, expected in {
        "lt": [0, 0, 0, 0], "gt": [0, 0, 0, 1], "ne": [0, 0, 0, 1], "neu": [1, 1, 1, 1],
        "gtu": [1, 1, 1, 1], "num": [0, 0, 0, 1], "nan": [1, 1, 1, 0], "equ": [1, 1, 1, 0],
    }.items():  # fmt: skip
        got = compute(f"setp.{test}.f32 %y, %x0, %x1", "f32 f32", [a, b], "pred")
        assert got.tolist() == expected, test
    least = compute("min.f32 %y, %x0, %x1", "f32 f32", [a, b], "f32")
    assert least[[0, 1, 3]].tolist() == [1, 1, 1]
    assert np.isnan(compute("min.NaN.f32 %y, %x0, %x1", "f32 f32", [a, b], "f32")[:3]).all()


@pytest.mark.parametrize(
    ("name", "function"),
    [("ex2.approx.f32", np.exp2), ("lg2.approx.f32", np.log2), ("sqrt.rn.f32", np.sqrt),
     ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)), ("sin.approx.f32", np.sin),
     ("cos.approx.f32", np.cos), ("tanh.approx.f32", np.tanh), ("sqrt.rn.f64", np.sqrt)],
)  # fmt: skip
def test_functions(name: str, function: Callable[[Array], Array]) -> None:
    kind = name[-3:]
    x = np.linspace(0.01, 20, 96).astype(TYPES[kind])
    got = compute(f"{name} %y, %x0", kind, [x], kind)
    np.testing.assert_array_equal(got, function(x.astype(np.float64)).astype(TYPES[kind]))


@given(st.integers(0, 2**32), st.booleans())
def test_the_short_way_of_fma_is_the_long_one(seed: int, flush: bool) -> None:
    """One lane at a time: where several do it together, one that may be wrong stops all."""
    rng = np.random.default_rng(seed)
    odd = [0, 1 << 31, 1, 0x800000, 0x7FFFFF, 0x3F800000, 0x7F7FFFFF, 0x33800000, 0x7F800000]
    words = rng.integers(0, 1 << 32, (40, 3), np.uint32)
    words = np.where(rng.random(words.shape) < 0.5, rng.choice(odd, words.shape), words)
    taken = 0
    for a, b, c in words.astype(np.uint32).view(np.float32)[:, :, None]:
        with np.errstate(all="ignore"):
            short = values.single(a, b, c)
            with patch.object(values, "single", lambda *given: None):
                long = values.fma(a, b, c, "rn", "f32", flush=flush)
        if short is not None:
            taken += 1
            assert short.tobytes() == long.tobytes() or np.isnan([short, long]).all()
    assert taken
