"""Kernels that nvcc made of ordinary CUDA C++ (tests/ptx/cuda.cu), against NumPy and Python."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sample import draws
from tinygpu.codegen.emulator import Memory, Module, Report, launch

Array = NDArray[Any]
MODULE = Module.parse((Path(__file__).parent / "ptx" / "cuda.ptx").read_text(encoding="utf-8"))
WORD = 0xFFFFFFFF


every_order = pytest.mark.parametrize("completion", ["late", "early", "random"])


def run(kernel: str, grid: int, block: int, *arguments: Any, **how: Any) -> Report:
    """Launch with arrays where the kernel takes pointers."""
    memory = Memory()
    given = [memory.allocate(a) if isinstance(a, np.ndarray) else a for a in arguments]
    return launch(MODULE, kernel, grid, block, given, memory, **how)


@every_order
@pytest.mark.parametrize(("rows", "columns", "block"), [(3, 100, 64), (1, 7, 32), (5, 33, 128)])
def test_softmax(rows: int, columns: int, block: int, completion: str) -> None:
    """Shuffles, shared memory, expf, loops that lanes leave one after the other."""
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    y = np.zeros_like(x)
    assert run("softmax", rows, block, x, y, columns, completion=completion).findings == ()
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, wide / wide.sum(1, keepdims=True), rtol=1e-5)


@every_order
def test_histogram(completion: str) -> None:
    """Atomic operations of shared and global memory."""
    x = np.random.default_rng(1).integers(0, 256, 5000).astype(np.uint8)
    counts = np.zeros(256, np.int32)
    assert run("histogram", 5, 96, x, counts, 5000, completion=completion).findings == ()
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=256))


def signed(v: int) -> int:
    return v - (1 << 32) if v >> 31 & 1 else v


def prmt(a: int, b: int, control: int) -> int:
    both = a | b << 32
    return sum((both >> 8 * (control >> 4 * n & 7) & 255) << 8 * n for n in range(4))


@every_order
def test_bits(completion: str) -> None:
    """Integers of 32 and 64 bits, with their bits."""
    n = 300
    x = np.random.default_rng(2).integers(0, 1 << 32, n).astype(np.uint32)
    x[:4] = 0, WORD, 1, 1 << 31
    y = np.zeros((n, 8), np.uint32)
    assert run("bits", 3, 128, x, y, n, completion=completion).findings == ()
    for i in range(n):
        v, w = int(x[i]), int(x[(i + 1) % n])
        q, s = v << 32 | w, i & 31
        left = (w << s | (v >> 32 - s if s else 0)) & WORD
        right = (w << 32 | v) >> min(i & 63, 32) & WORD
        quotient = int(abs(signed(v)) // abs(signed(w | 1)))
        quotient *= -1 if (signed(v) < 0) != (signed(w | 1) < 0) else 1
        expected = [
            v.bit_count() + 100 * (32 - v.bit_length()) + 10000 * ((v & -v).bit_length()),
            int(f"{v:032b}"[::-1], 2) ^ prmt(v, w, 0x3715),
            left + right,
            (v & w) ^ (~v & WORD | w >> 3) ^ (v << 5 & 0xFF00FF00),
            (v * w >> 32) + (signed(v) * signed(w) >> 32),
            quotient + v % (w | 1),
            q // (v | 3) + (q * q % (1 << 64) >> 40) + q.bit_count(),
            abs(signed(v) - signed(w)) + 5 + min(signed(v), signed(w)) + max(v, w) + (v >> 7 & 31),
        ]
        assert [int(e) & WORD for e in expected] == y[i].tolist(), (i, hex(v), hex(w))


@every_order
def test_votes(completion: str) -> None:
    """Votes, matches, reductions and shuffles of a warp, and barriers that count."""
    x = np.random.default_rng(3).integers(-50, 50, 64).astype(np.int32)
    y = np.zeros(64, np.uint32)
    assert run("votes", 1, 64, x, y, completion=completion).findings == ()
    for t in range(64):
        warp = x[t // 32 * 32 : t // 32 * 32 + 32]
        lane, v = t % 32, int(x[t])

        def ballot(which: Array) -> int:
            return sum(1 << i for i in range(32) if which[i])

        up = int(warp[lane - 3]) if lane % 16 >= 3 else v
        part = ballot((warp > 0) & (np.arange(32) % 2 == 1)) if lane & 1 else 16
        total = (
            ballot(warp & 1 == 1) + 3 * ballot(warp & 3 == v & 3) + 5 * bool((warp > -100).all())
            + 7 * bool((warp > 10).any()) + 11 * int(warp.sum()) + 13 * int(warp.max())
            + 17 * up + 19 * int(warp[t * 7 % 32])
            + 23 * (int((x & 1).sum()) + 1000 * int((x == 5).any())) + 29 * part
        )  # fmt: skip
        assert total & WORD == int(y[t]), t


@every_order
def test_locals(completion: str) -> None:
    """Local memory by an index, constants, a structure as parameter, double precision."""
    n, stride = 70, 2
    x = np.random.default_rng(4).standard_normal(n).astype(np.float32)
    y = np.zeros(n * stride, np.float32)
    shape = struct.pack("<ifqd", n, 1.5, stride, 0.125)
    assert run("locals", 2, 64, x, y, shape, completion=completion).findings == ()
    weights = np.array([0.5, -1, 2, 0.25], np.float32)
    for i in range(n):
        held = [x[(i + k) % n] * weights[k & 3] for k in range(8)]
        at = i
        for k in range(3):
            p = at & 7
            held[p], held[(p + 3) & 7] = held[(p + 3) & 7], held[p]
            at = at // 2 + k
        total = 0.125 + sum(float(h) * (k + 1) for k, h in enumerate(held))
        expected = np.float32(np.float32(total) * np.float32(1.5)) + held[at & 7]
        assert abs(y[i * stride] - expected) < 1e-5 * (1 + abs(expected))
    assert (y[1::2] == 0).all()


@every_order
def test_collatz(completion: str) -> None:
    """Loops of different length in one warp."""
    x = np.arange(1, 200, dtype=np.int32)
    y = np.zeros_like(x)
    assert run("collatz", 2, 128, x, y, len(x), completion=completion).findings == ()
    for v, got in zip(x.tolist(), y.tolist(), strict=True):
        steps = 0
        while v != 1:
            v = 3 * v + 1 if v & 1 else v >> 1
            steps += 1
        assert got == (-steps if steps > 100 else steps)


@every_order
def test_halves(completion: str) -> None:
    """Half precision, bf16, double precision, conversions and approximations."""
    n = 90
    rng = np.random.default_rng(5)
    x = rng.standard_normal(n).astype(np.float16)
    b = rng.standard_normal(n).astype(ml_dtypes.bfloat16)
    y, z, w = np.zeros(n, np.float16), np.zeros(n, np.float32), np.zeros(n)
    assert run("halves", 1, 96, x, b, y, z, w, n, completion=completion).findings == ()
    h, f = x.astype(np.float64), x.astype(np.float64)
    product = (h * h + 0.5).astype(np.float16)
    near = b.astype(np.float64).astype(np.float16)
    back = near.astype(np.float64)
    over = np.abs(back) > np.abs(b.astype(np.float64))
    toward = np.where(over, np.nextafter(near, np.float16(0)), near)
    np.testing.assert_array_equal(y, product + toward)
    total = (
        1 / np.sqrt(np.abs(f) + 1) + np.sqrt(np.abs(f)) / (f + 10) + np.floor(f * 3)
        + np.rint(f * 7) + (x + x).astype(np.float64) + f / 3 + np.clip(f, 0, 1)
        + np.copysign(1.5, f) + np.log2(np.abs(f) + 1) + np.exp(f) + np.trunc(f * 5)
        + (np.arange(n) * 37 % 256)
    )  # fmt: skip
    np.testing.assert_allclose(z, total, rtol=1e-5, atol=1e-4)
    wide = f * f + 1 / (2 + (x.astype(np.float32) ** 2).astype(np.float64))
    np.testing.assert_allclose(w, wide + np.rint(f * 9) + np.fmin(f, 0.25), rtol=1e-6, atol=1e-6)


@every_order
@pytest.mark.parametrize("seed", range(draws(1, 2)))
def test_lock(seed: int, completion: str) -> None:
    """A lock that lanes and CTAs wait for: the loop that polls starves nobody."""
    words, totals = np.zeros(4, np.int32), np.zeros(2, np.float32)
    words[2] = 100
    threads = draws(32, 64)  # each polls while another has the lock: the cube of their number
    x = np.arange(2 * threads, dtype=np.float32)
    report = run("lock", 2, threads, words, totals, x, completion=completion, seed=seed)
    assert report.findings == ()
    assert totals.tolist() == [x.sum(), x.sum()]
    assert words.tolist() == [0, 2 * threads % 7, 0, 0]
