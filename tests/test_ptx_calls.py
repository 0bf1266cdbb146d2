"""Functions, tables of them, locks and flags: what nvcc makes of CUDA C++ (cuda_calls.cu)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tinygpu.codegen.emulator import Memory, Module, Report, launch
from tinygpu.errors import ProgramError

Array = NDArray[Any]
MODULE = Module.parse(
    (Path(__file__).parent / "ptx" / "cuda_calls.ptx").read_text(encoding="utf-8")
)
every_order = pytest.mark.parametrize("completion", ["late", "early", "random"])
WORDS = np.random.default_rng(1).integers(0, 100, 96).astype(np.int32)
REALS = np.random.default_rng(2).uniform(0.1, 6, 96)


def run(kernel: str, x: Array, y: Array, *, grid: int = 1, block: int = 96, **how: Any) -> Report:
    memory = Memory()
    given = [memory.allocate(x.copy()), memory.allocate(y), np.int32(len(x))]
    return launch(MODULE, kernel, grid, block, given, memory, **how)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def switched(v: int) -> int:
    return [v * 3, v ^ 77, v - 9, v << 2, v // 5, -v, v & 31, v | 1024, v + v, v % 7, ~v, 12345][
        v % 12
    ]


INTEGERS: dict[str, Callable[[int], int]] = {
    "rec": lambda v: math.factorial(v % 8) + fibonacci(v % 9),
    "indirect": lambda v: (v + 1, v * 3, v - 7)[v % 3],
    "sw": switched,
    "pf": lambda v: v + 1,
    "heap": lambda v: 2 * v,
}


@every_order
@pytest.mark.parametrize("kernel", INTEGERS)
def test_integers(kernel: str, completion: str) -> None:
    """Recursion, calls through a table, a switch (brx.idx), printf, malloc and free."""
    y = np.zeros_like(WORDS)
    assert run(kernel, WORDS, y, completion=completion).findings == ()
    assert y.tolist() == [INTEGERS[kernel](int(v)) for v in WORDS]


def test_double_functions() -> None:
    """sin and pow of doubles call functions of the mathematical library."""
    x, y = REALS.copy(), np.zeros_like(REALS)
    x[3] = 1e15  # goes the slow way
    assert run("dsin", x, y).findings == ()
    np.testing.assert_allclose(y, np.sin(x) + 1e-3 * np.cos(x), rtol=1e-13)
    x = REALS
    assert run("dpow", x, y).findings == ()
    exact = x**2.5 + np.exp(0.1 * x) + np.log(x + 2) + np.sqrt(x) / 3
    exact += [math.erf(v) + math.gamma(0.1 * v + 1) for v in x]
    np.testing.assert_allclose(y, exact, rtol=1e-12)


def test_structures_and_wide_integers() -> None:
    x = np.random.default_rng(3).uniform(1, 2, (96, 4)).astype(np.float32)
    y, s = np.zeros_like(x), np.arange(1, 97, dtype=np.float32)
    assert run("structs", x, y).findings == ()
    exact = np.stack([x[:, 0] * s, x[:, 1] + s, x[:, 2] - s, x[:, 3] / s], 1)
    np.testing.assert_allclose(y, exact, rtol=1e-6)
    wide = np.random.default_rng(4).integers(1, 2**63, 40).astype(np.uint64)
    out = np.zeros(80, np.uint64)
    assert run("i128", wide, out).findings == ()
    exact_wide = [((a * a + (a << 40)) % 2**128) // 12345 for a in map(int, wide)]
    assert [int(a) + (int(b) << 64) for a, b in out.reshape(-1, 2)] == exact_wide


SHARED = {
    "lockk": (128, 0 + 32 + 64 + 96),
    "flagk": (64, 0),
    "volflag": (64, 0),
    "lastarr": (128, 192),
    "cgred": (128, 128 * 127 // 2),
}


@every_order
@pytest.mark.parametrize("kernel", SHARED)
def test_release_and_acquire(kernel: str, completion: str) -> None:
    """A lock, cuda::atomic and volatile flags, the last arriver, a reduction: no false alarm."""
    block, result = SHARED[kernel]
    x, y = np.arange(block, dtype=np.int32), np.full(1, 0, np.int32)
    assert run(kernel, x, y, block=block, completion=completion).findings == ()
    assert y[0] == result


@every_order
def test_atomics_and_shuffles(completion: str) -> None:
    y = np.zeros(16, np.int32)
    assert run("hist", WORDS, y, completion=completion).findings == ()
    np.testing.assert_array_equal(y, np.bincount(WORDS & 15, minlength=16))
    x, total = REALS.astype(np.float32), np.zeros(1, np.float32)
    assert run("warpred", x, total, completion=completion).findings == ()
    np.testing.assert_allclose(total[0], x.sum(), rtol=1e-5)


@every_order
def test_a_grid_that_synchronises(completion: str) -> None:
    """cooperative_groups::this_grid().sync(): all CTAs are resident, and wait for each other."""
    x, y = np.arange(192, dtype=np.int32), np.zeros(192, np.int32)
    assert run("gridsync", x, y, grid=3, block=64, completion=completion).findings == ()
    np.testing.assert_array_equal(y, 2 * ((x + 64) % 192))


HAND = """.version 8.0 .target sm_90 .address_size 64
.extern .func nobody(.param .b32 v);
.func (.reg .u32 r) twice(.reg .u32 a) {{ add.u32 r, a, a; ret; }}
.func endless(.reg .u32 a) {{ call endless, (a); ret; }}
.visible .entry k(.param .u64 y) {{
  .reg .u64 %d; .reg .u32 %r<3>; ld.param.u64 %d, [y]; mov.u32 %r0, 7;
  {call}
  st.global.u32 [%d], %r1; ret; }}"""


def hand(call: str) -> tuple[Report, Array]:
    memory, y = Memory(), np.zeros(1, np.uint32)
    module = Module.parse("\ufeff" + HAND.format(call=call).replace("\n", " "))  # on one line
    return launch(module, "k", 1, 1, [memory.allocate(y)], memory), y


def test_calls_by_hand() -> None:
    """Parameters in registers; a recursion without end is stopped; the callee has to be there."""
    report, y = hand("call (%r1), twice, (%r0);")
    assert report.findings == ()
    assert y[0] == 14
    report, _ = hand("mov.u32 %r1, 0; call endless, (%r0);")
    assert [f.kind for f in report.findings] == ["stack"]
    with pytest.raises(ProgramError, match="no function nobody"):
        hand("call nobody, (%r0);")
    with pytest.raises(ProgramError, match="2 operands for the 1 of twice"):
        hand("call (%r1), twice, (%r0, %r0);")


@pytest.mark.parametrize(
    ("text", "value"),
    [("(1+2*3)", 7), ("(-7 / 2) + 4", 1), ("1 << 4 | 3", 19), ("(2 > 1) ? 8 : 9", 8), ("0x1F", 31),
     ("010", 8), ("0b101", 5), ("WARP_SZ - 1", 31), ("!0", 1), ("~0xFFFFFFF0", 15)],
)  # fmt: skip
def test_constant_expressions(text: str, value: int) -> None:
    report, y = hand(f"add.u32 %r1, %r0, {text};")
    assert report.findings == ()
    assert y[0] == 7 + value
