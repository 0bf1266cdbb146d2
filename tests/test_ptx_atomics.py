"""Atomics of many lanes at once against one lane after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.interpreter_atomics import OPERATIONS, rate
from tests.sample import draws
from tinygpu.codegen.emulator import Memory, Module, launch
from tinygpu.codegen.emulator.atomics import in_turn

THREADS = 64
KINDS = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "cas": ("b32", "b64"),
}
CASES = [(operation, kind) for operation, kinds in KINDS.items() for kind in kinds]


MEANING: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: b if b < old else old,
    "max": lambda old, b, c: b if b > old else old,
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "inc": lambda old, b, c: 0 if old >= b else int(old) + 1,
    "dec": lambda old, b, c: b if old == 0 or old > b else int(old) - 1,
    "cas": lambda old, b, c: c if old == b else old,
}
"""PTX ISA 9.0, section 9.7.13.5, of one thread."""


def _type(kind: str) -> np.dtype[Any]:
    return np.dtype({"b": "u", "s": "i"}.get(kind[0], kind[0]) + str(int(kind[1:]) // 8))


def one_after_the_other(
    data: np.ndarray, places: np.ndarray, operation: str, new: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Update ``data`` a thread at a time; return what each found."""
    found = np.empty_like(new)
    for n, place in enumerate(places):
        found[n] = data[place]
        with np.errstate(all="ignore"):
            data[place] = MEANING[operation](data[place], new[n], other[n])
    return found


def _drawn(seed: int, kind: str, size: int, *, narrow: bool) -> np.ndarray:
    random, dtype = np.random.default_rng(seed), _type(kind)
    if dtype.kind == "f":
        return (random.standard_normal(size) * 10.0 ** random.integers(-6, 7, size)).astype(dtype)
    limits = np.iinfo(dtype)
    low, high = (0, 4) if narrow else (limits.min, limits.max)
    return random.integers(low, high, size, dtype, endpoint=True)


@pytest.mark.parametrize(("operation", "kind"), CASES)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 200),
    words=st.sampled_from([1, 2, 7, 40, 70_000]),
    ordered=st.booleans(),
    narrow=st.booleans(),
)
@settings(max_examples=draws(24, 60), deadline=None)
def test_lanes_at_once(
    operation: str, kind: str, seed: int, size: int, words: int, ordered: bool, narrow: bool
) -> None:
    """What is found and what is left is bit for bit that of one lane after the other."""
    places = np.random.default_rng(seed).integers(0, words, size)
    places = np.sort(places) if ordered else places
    before = _drawn(seed + 1, kind, words, narrow=narrow)
    new, other = (_drawn(seed + n, kind, size, narrow=narrow) for n in (2, 3))
    here, there = before.copy(), before.copy()
    with np.errstate(all="ignore"):
        found = in_turn(here, places, operation, new, other if operation == "cas" else None)
    wanted = one_after_the_other(there, places, operation, new, other)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(here, there)


def kernel(name: str, operation: str, kind: str, space: str) -> str:
    """Each thread does it at the word that ``w`` gives, and keeps what it found."""
    bits = int(kind[1:])
    b, load = f"b{bits}", f"ld.global.b{bits}"
    more = ", %o" if operation == "cas" else ""
    result = "%r, " if name == "atom" else ""
    return f""".version 8.0
.target sm_90
.visible .entry k(.param .u64 x, .param .u64 w, .param .u64 v, .param .u64 u, .param .u64 y) {{
  .reg .u64 %a, %b, %at, %s; .reg .u32 %t, %w; .reg .{b} %v, %o, %r, %h; .reg .pred %p;
  .shared .align 8 .b8 held[512];
  mov.u32 %t, %tid.x; ld.param.u64 %a, [w]; mul.wide.u32 %b, %t, 4; add.u64 %a, %a, %b;
  ld.global.u32 %w, [%a]; mul.wide.u32 %b, %t, {bits // 8};
  ld.param.u64 %a, [v]; add.u64 %a, %a, %b; {load} %v, [%a];
  ld.param.u64 %a, [u]; add.u64 %a, %a, %b; {load} %o, [%a]; mov.b{bits} %r, 0;
  mov.u64 %s, held; add.u64 %s, %s, %b;
  ld.param.u64 %a, [x]; add.u64 %a, %a, %b; {load} %h, [%a]; st.shared.b{bits} [%s], %h;
  bar.sync 0;
  mul.wide.u32 %at, %w, {bits // 8}; ld.param.u64 %a, [x];
  {"mov.u64 %a, held;" if space == "shared" else ""} add.u64 %at, %at, %a;
  {name}.{space}.{operation}.{kind} {result}[%at], %v{more};
  bar.sync 0;
  ld.param.u64 %a, [x]; add.u64 %a, %a, %b;
  ld.shared.b{bits} %h, [%s]; {f"st.global.b{bits} [%a], %h;" if space == "shared" else ""}
  ld.param.u64 %a, [y]; add.u64 %a, %a, %b; st.global.b{bits} [%a], %r; ret; }}"""


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", ["atom", "red"])
@pytest.mark.parametrize(("operation", "kind"), CASES)
def test_a_kernel(operation: str, kind: str, name: str, space: str) -> None:
    """A kernel leaves and finds what one thread after the other does, and nothing is reported."""
    if name == "red" and operation in ("exch", "cas"):
        return
    dtype = _type(kind)
    for seed, words in enumerate((1, 5, THREADS)):
        held = _drawn(seed, kind, THREADS, narrow=seed > 0)
        new, other = (_drawn(seed + n, kind, THREADS, narrow=seed > 0) for n in (7, 8))
        places = np.random.default_rng(seed).integers(0, words, THREADS).astype(np.uint32)
        x, y, memory = held.copy(), np.zeros(THREADS, dtype), Memory()
        given = [memory.allocate(a) for a in (x, places, new.copy(), other.copy(), y)]
        text = kernel(name, operation, kind, space)
        report = launch(Module.parse(text), "k", 1, THREADS, given, memory)
        found = one_after_the_other(held, places, operation, new, other)
        np.testing.assert_array_equal(x, held)
        np.testing.assert_array_equal(y, found if name == "atom" else np.zeros_like(y))
        assert report.findings == ()


WIDE = """.version 8.4
.target sm_90
.visible .entry k(.param .u64 x, .param .u64 w, .param .u64 v, .param .u64 u, .param .u64 y) {{
  .reg .u64 %a, %b, %at, %l<2>; .reg .u32 %t, %w; .reg .b128 %v, %o, %r;
  .shared .align 16 .b8 held[1024];
  mov.u32 %t, %tid.x; ld.param.u64 %a, [w]; mul.wide.u32 %b, %t, 4; add.u64 %a, %a, %b;
  ld.global.u32 %w, [%a]; mul.wide.u32 %b, %t, 16;
  ld.param.u64 %a, [v]; add.u64 %a, %a, %b; ld.global.v2.u64 {{%l0, %l1}}, [%a];
  mov.b128 %v, {{%l0, %l1}};
  ld.param.u64 %a, [u]; add.u64 %a, %a, %b; ld.global.b128 %o, [%a];
  mul.wide.u32 %at, %w, 16; ld.param.u64 %a, [x]; add.u64 %at, %at, %a;
  atom.acq_rel.sys.global.{};
  ld.param.u64 %a, [y]; add.u64 %a, %a, %b; mov.b128 {{%l0, %l1}}, %r;
  st.global.v2.u64 [%a], {{%l0, %l1}}; ret; }}"""


@pytest.mark.parametrize("operation", ["exch", "cas"])
@pytest.mark.parametrize("words", [1, 3, THREADS])
def test_128_bits(operation: str, words: int) -> None:
    """A word of 128 bits is exchanged whole: both halves tell two words apart."""
    random = np.random.default_rng(words)
    held, new, other = random.integers(0, 2, (3, THREADS, 2), np.uint64)
    places = random.integers(0, words, THREADS).astype(np.uint32)
    x, y, memory = held.copy(), np.zeros_like(held), Memory()
    given = [memory.allocate(a) for a in (x, places, new.copy(), other.copy(), y)]
    text = WIDE.format("exch.b128 %r, [%at], %v" if operation == "exch" else
                       "cas.b128 %r, [%at], %v, %o")  # fmt: skip
    assert launch(Module.parse(text), "k", 1, THREADS, given, memory).findings == ()
    for n, place in enumerate(places):
        assert (y[n] == held[place]).all()
        if operation == "exch":
            held[place] = new[n]
        elif (held[place] == new[n]).all():
            held[place] = other[n]
    np.testing.assert_array_equal(x, held)


def test_speed() -> None:
    """Lanes are done at once: ten times what one after the other gives, on a busy machine too."""
    for operation in OPERATIONS:
        assert rate(operation, "bins", lanes=True) > 2


@pytest.mark.parametrize("barrier", [True, False])
def test_a_barrier_orders_strong_reads_before_a_plain_store(barrier: bool) -> None:
    text = f""".version 8.0
    .target sm_90
    .address_size 64
    .visible .entry k() {{
      .reg .u32 %r<4>; .reg .pred %p; .shared .align 4 .b8 flag[4];
      mov.u32 %r0, %tid.x; mov.u32 %r1, flag; setp.eq.u32 %p, %r0, 0;
      @%p st.shared.u32 [%r1], 0;
      bar.sync 0;
      ld.volatile.shared.u32 %r2, [%r1];
      {"bar.sync 0;" * barrier}
      @%p st.shared.u32 [%r1], 1; ret; }}"""
    report = launch(Module.parse(text), "k", 1, 64, [], Memory())
    assert report.kinds == (set() if barrier else {"race"})
