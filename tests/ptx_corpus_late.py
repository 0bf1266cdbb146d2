"""Kernels of nvcc that were kept apart: none ran before the corpus beside it ran right.

``tests/ptx/corpus_late.cu`` has them: CUB, libcu++, clusters, codes, pictures and linear algebra.
What each computes is said as in :mod:`tests.ptx_corpus`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from tests.ptx_corpus import F16, F32, F64, I32, I64, U8, U32, U64, Array, Case, rng_of

__all__ = ["CASES"]

CASES: dict[str, Case] = {}
_Expected = Callable[..., Mapping[int, Any]]


def _late(
    name: str, grid: Any, block: Any, make: Callable[[np.random.Generator], list[Any]],
    expected: _Expected, tolerance: float = 0.0, **more: Any,
) -> None:  # fmt: skip
    CASES[name] = Case(
        "corpus_late", name, grid, block, lambda: make(rng_of(name)), expected, tolerance, **more
    )


def _ints(rng: np.random.Generator, *shape: int, dtype: Any = I32, most: int = 100) -> Array:
    return rng.integers(0, most, shape).astype(dtype)


def _floats(rng: np.random.Generator, *shape: int, dtype: Any = F32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


# CUB


def _exchanged(x: Array, y: Array) -> Mapping[int, Any]:
    return {1: x + np.repeat(np.arange(128), 4)}


def _warp_segments(x: Array, head: Array, y: Array) -> Mapping[int, Any]:
    found = np.full(128, -7)
    for i in np.flatnonzero(head):
        more = [j for j in range(i + 1, (i // 32 + 1) * 32) if head[j]]
        found[i] = x[i : min(more, default=(i // 32 + 1) * 32)].sum()
    return {2: found}


def _warp_scan(x: Array, y: Array) -> Mapping[int, Any]:
    rows = x.reshape(-1, 8)
    sums = np.cumsum(rows, 1) + 0
    return {1: ((sums + 3) * 1000 + sums - rows + 3).reshape(-1)}


def _heads(rng: np.random.Generator, n: int) -> Array:
    head = (rng.random(n) < 0.2).astype(I32)
    head[::32] = 1
    return head


_late("cub_reduce", 1, 128, lambda r: [_ints(r, 128), np.zeros(1, I32)], lambda x, y: {1: x.sum()})
_late("cub_reduce_warps", 1, 128, lambda r: [_floats(r, 128), np.zeros(1, F32)],
      lambda x, y: {1: x[:100].max()})  # fmt: skip
_late("cub_arg_max", 1, 128, lambda r: [_floats(r, 128), np.zeros(1, I32)],
      lambda x, y: {1: x.argmax()})  # fmt: skip
_late("cub_scan", 1, 128, lambda r: [_ints(r, 512), np.zeros(513, I32)],
      lambda x, y: {1: [*np.cumsum(x), x.sum()]})  # fmt: skip
_late("cub_scan_max", 1, 128, lambda r: [_ints(r, 128, most=10**6), np.zeros(128, I32)],
      lambda x, y: {1: [-1, *np.maximum.accumulate(x)[:-1]]})  # fmt: skip
_late("cub_radix_sort", 1, 128, lambda r: [_floats(r, 512)], lambda x: {0: np.sort(x)})
_late("cub_radix_pairs", 1, 128, lambda r: [_ints(r, 256, dtype=np.uint16, most=60),
      np.zeros(256, I32)], lambda x, y: {1: np.argsort(-x.astype(I32), kind="stable")})  # fmt: skip
_late("cub_merge_sort", 1, 128, lambda r: [_ints(r, 384, dtype=I64, most=2**50)],
      lambda x: {0: np.sort(x)[::-1]})  # fmt: skip
_late("cub_warp_merge", 1, 64, lambda r: [_ints(r, 128)],
      lambda x: {0: np.sort(x.reshape(-1, 32), 1).reshape(-1)})  # fmt: skip
_late("cub_histogram", 1, 128, lambda r: [_ints(r, 512, dtype=U8, most=256), np.zeros(256, I32)],
      lambda x, y: {1: np.bincount(x, minlength=256)})  # fmt: skip
_late("cub_exchange", 1, 128, lambda r: [_ints(r, 512), np.zeros(512, I32)], _exchanged)
_late("cub_transpose", 1, 64, lambda r: [_floats(r, 250, dtype=F64), np.zeros(250)],
      lambda x, y: {1: 2 * x + np.arange(250) % 4})  # fmt: skip
_late("cub_heads", 1, 128, lambda r: [_ints(r, 256, most=3), np.zeros(256, I32)],
      lambda x, y: {1: [1, *(x[1:] != x[:-1])]})  # fmt: skip
_late("cub_difference", 1, 128, lambda r: [_ints(r, 256), np.zeros(256, I32)],
      lambda x, y: {1: [x[0], *np.diff(x)]})  # fmt: skip
_late("cub_shuffle", 1, 128, lambda r: [_ints(r, 128), np.zeros(128, I32)],
      lambda x, y: {1: np.roll(x, -40)})  # fmt: skip
_late("cub_warp_segments", 1, 128, lambda r: [_ints(r, 128), _heads(r, 128), np.zeros(128, I32)],
      _warp_segments)  # fmt: skip
_late("cub_warp_scan", 1, 128, lambda r: [_ints(r, 128), np.zeros(128, I32)], _warp_scan)
_late("cub_run_decode", 1, 64, lambda r: [_ints(r, 64), 1 + _ints(r, 64, most=9),
      np.full(640, -1, I32)], lambda x, n, y: {
      2: [*np.repeat(x, n), *y[n.sum() :]]})  # fmt: skip

# libcu++


def _butterfly(x: Array, y: Array) -> Mapping[int, Any]:
    v, d = x.astype(I32), 1
    while d < 128:
        v = v * 3 + v[np.arange(128) ^ d]
        d *= 2
    return {1: v}


def _reversed_rows(x: Array, y: Array) -> Mapping[int, Any]:
    found = x[::-1].copy()
    found[:, 0] += np.arange(128, dtype=I32)
    return {1: found}


def _decayed(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    v = np.zeros(128, F32)
    for row in x.reshape(n, 128):
        v = v * F32(0.5) + row[np.arange(128) ^ 1]
    return {1: v}


def _bulk(x: Array, y: Array) -> Mapping[int, Any]:
    return {1: [*(x[:128] + x[128:]), *(2 * x[128:])]}


def _softmax(x: Array, y: Array) -> Mapping[int, Any]:
    rows = x.astype(F64).reshape(-1, 512)
    e = np.exp(rows - rows.max(1, keepdims=True))
    return {1: (e / e.sum(1, keepdims=True)).reshape(-1)}


def _complex(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    v = x.view(np.complex128)
    return {1: ((v * v + 1) / (v - 2j)).view(F64)}


_late("std_barrier", 1, 128, lambda r: [_ints(r, 128), np.zeros(128, I32)], _butterfly)
_late("std_memcpy", 1, 128, lambda r: [_ints(r, 128, 4), np.zeros((128, 4), I32)], _reversed_rows)
_late("std_pipeline", 1, 128, lambda r: [_floats(r, 640), np.zeros(128, F32), 5], _decayed)
_late("std_roles", 1, 64, lambda r: [_ints(r, 160), np.zeros(32, I32), 5],
      lambda x, y, n: {1: (x.reshape(5, 32)[:, ::-1] * np.arange(1, 6)[:, None]).sum(0)},
)  # fmt: skip
_late("std_semaphore", 1, 128, lambda r: [np.zeros(1, I32)], lambda y: {0: 15})
_late("std_complex", 1, 64, lambda r: [_floats(r, 100, dtype=F64), np.zeros(100), 50], _complex,
      1e-13)  # fmt: skip
_late("std_mdspan", 1, 128, lambda r: [_floats(r, 128), np.zeros(128, F32)],
      lambda x, y: {1: 2 * x})  # fmt: skip
_late("std_optional", 1, 64, lambda r: [_ints(r, 50), np.zeros(50, I32), 50],
      lambda x, y, n: {1: np.where(x % 2, x, -1) * 100 + x // 3})  # fmt: skip
_late("std_atomic_double", 2, 64, lambda r: [np.zeros(2), _floats(r, 100, dtype=F64), 100],
      lambda y, x, n: {0: [x.sum(), x.max()]}, 1e-12)  # fmt: skip
_late("std_flag", 1, 64, lambda r: [_ints(r, 32), np.zeros(32, I32)], lambda x, y: {1: 3 * x[::-1]})
_late("ptx_bulk", 1, 128, lambda r: [_ints(r, 256), np.zeros(256, I32)], _bulk)
_late("ptx_reduce", 3, 128, lambda r: [_ints(r, 384), np.zeros(128, I32)],
      lambda x, y: {1: x.reshape(3, 128).sum(0)})  # fmt: skip
_late("cluster_softmax", 8, 128, lambda r: [_floats(r, 1024), np.zeros(1024, F32)], _softmax, 2e-6)
_late("cluster_histogram", 2, 128, lambda r: [_ints(r, 900, dtype=U8, most=256),
      np.zeros(256, I32), 900], lambda x, y, n: {1: np.bincount(x, minlength=256)})  # fmt: skip

# number theory, codes


def _primes() -> list[int]:
    return [p for p in range(2, 312) if all(p % q for q in range(2, math.isqrt(p) + 1))]


def _sha_rounds() -> Array:
    """The constants: the first bits of the fractions of the primes' cube roots."""
    found = []
    for p in _primes()[:64]:
        root = round(p ** (1 / 3) * 2**32)
        root = next(r for r in range(root + 2048, 0, -1) if r**3 <= p << 96)
        found.append(root & 0xFFFFFFFF)
    return np.array(found, U32)


def _sha_padded(rng: np.random.Generator) -> list[Any]:
    texts = [bytes(_ints(rng, i, dtype=U8, most=256)) for i in range(40)]
    blocks = [
        t + b"\x80" + bytes(55 - len(t)) + (8 * len(t)).to_bytes(8, "big") for t in texts
    ]  # fmt: skip
    words = np.frombuffer(b"".join(blocks), U32).copy()
    return [_sha_rounds(), words, np.zeros(8 * 40, U32), 40]


def _sha(k: Array, x: Array, y: Array, n: int) -> Mapping[int, Any]:
    found = []
    for block in x.view(U8).reshape(n, 64):
        raw = bytes(block)
        length = int.from_bytes(raw[56:], "big") // 8
        found += np.frombuffer(hashlib.sha256(raw[:length]).digest(), ">u4").tolist()
    return {2: found}


def _big(a: Array, b: Array, y: Array, n: int) -> Mapping[int, Any]:
    found = []
    for p, q in zip(a.reshape(n, 8), b.reshape(n, 8), strict=True):
        product = int.from_bytes(p.tobytes(), "little") * int.from_bytes(q.tobytes(), "little")
        found += np.frombuffer(product.to_bytes(64, "little"), U32).tolist()
    return {2: found}


def _queens(n: int = 8) -> int:
    rows = itertools.permutations(range(n))
    return sum(
        len({c + i for i, c in enumerate(p)}) == n == len({c - i for i, c in enumerate(p)})
        for p in rows
    )


def _parse(rng: np.random.Generator) -> list[Any]:
    numbers = rng.integers(-(10**6), 10**6, 60).tolist()
    texts = [f"{v};" for v in numbers]
    starts = np.cumsum([0, *map(len, texts[:-1])]).astype(I32)
    return [np.frombuffer("".join(texts).encode(), np.int8).copy(), starts, np.zeros(60, I32), 60]


def _parsed(x: Array, starts: Array, y: Array, n: int) -> Mapping[int, Any]:
    return {2: [int(v) for v in x.tobytes().decode().split(";")[:n]]}


_MODULUS = (1 << 61) - 1
_TEXT = "naïve Größe Ωμέγα 漢字 🙂 " * 20

_late("sha256", 1, 64, _sha_padded, _sha)
_late("mod_power", 1, 32, lambda r: [_ints(r, 30, dtype=U64, most=2**40), np.zeros(30, U64),
      U64(_MODULUS), 30],
      lambda x, y, m, n: {1: np.array([pow(v, v, _MODULUS) for v in x.tolist()], U64)},
)  # fmt: skip
_late("big_multiply", 1, 32, lambda r: [_ints(r, 240, dtype=U32, most=2**32),
      _ints(r, 240, dtype=U32, most=2**32), np.zeros(480, U32), 30], _big)  # fmt: skip
_late("sieve", 1, 128, lambda r: [np.zeros(1, I32), 312], lambda y, n: {0: len(_primes())},
      smem_bytes=320)  # fmt: skip
_late("queens", 1, 128, lambda r: [np.zeros(1, I32)], lambda y: {0: _queens()})
_late("utf8_count", 1, 128, lambda r: [np.frombuffer(_TEXT.encode(), U8).copy(), np.zeros(1, I32),
      len(_TEXT.encode())], lambda x, y, n: {1: len(_TEXT)})  # fmt: skip
_late("parse_ints", 1, 64, _parse, _parsed)

# linear algebra, pictures


def _qr(x: Array) -> Mapping[int, Any]:
    return {0: np.triu(np.abs(np.linalg.qr(x.astype(F64).reshape(8, 8))[1])).reshape(-1)}


def _tridiagonal(a: Array, b: Array, c: Array, d: Array, n: int) -> Mapping[int, Any]:
    matrix = np.diag(b) + np.diag(a[1:], -1) + np.diag(c[:-1], 1)
    return {3: np.linalg.solve(matrix, d.reshape(n, 16).T).T.reshape(-1)}


def _dct(x: Array, y: Array) -> Mapping[int, Any]:
    k, u = np.meshgrid(np.arange(8), np.arange(8))
    basis = np.cos((2 * k + 1) * u * np.pi / 16) * np.where(u, 0.5, math.sqrt(1 / 8))
    return {1: (basis @ x.astype(F64).reshape(8, 8) @ basis.T).reshape(-1)}


def _median(x: Array, y: Array, w: int, h: int) -> Mapping[int, Any]:
    picture = np.pad(x.reshape(h, w), 1, mode="edge")
    stacked = [picture[a : a + h, b : b + w] for a in range(3) for b in range(3)]
    return {1: np.median(stacked, 0).astype(U8).reshape(-1)}


def _equalized(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    return {1: (255 * np.cumsum(np.bincount(x, minlength=256))[x] // n).astype(U8)}


def _relaxed(a: Array, b: Array, n: int, steps: int) -> Mapping[int, Any]:
    for _ in range(steps):
        c = a.copy()
        c[1:-1] = F32(0.5) * (a[:-2] + a[2:])
        a, b = c, a
    return {0: a, 1: b}


def _means(x: Array, c: Array, y: Array, sums: Array, n: int) -> Mapping[int, Any]:
    near = ((x[:, None].astype(F64) - c[None]) ** 2).sum(2).argmin(1)
    each = [[*x[near == k].astype(F64).sum(0), (near == k).sum()] for k in range(4)]
    return {2: near, 3: np.reshape(each, -1)}


def _lstm(gates: Array, c: Array, h: Array, n: int) -> Mapping[int, Any]:
    f, g, o, u = gates.astype(F64).reshape(4, n)

    def s(v: Array) -> Array:
        made: Array = 1 / (1 + np.exp(-v))
        return made

    cell = s(f) * c + s(g) * np.tanh(u)
    return {1: cell, 2: s(o) * np.tanh(cell)}


def _gemv(q: Array, scale: Array, x: Array, y: Array, k: int) -> Mapping[int, Any]:
    nibbles = (q[:, None] >> (4 * np.arange(8, dtype=U32)) & 15).astype(F64).reshape(-1, k) - 8
    return {3: (nibbles * scale[:, None].astype(F64)) @ x.astype(F64)}


def _list(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    found = []
    for i, v in enumerate(x[:n].tolist()):
        total = 0
        for k in range(i % 5, -1, -1):
            total = total * 7 + v + k
        found.append(total)
    return {1: found}


def _near(x: Array, after: Array) -> bool:
    """Whether the pairs' sums are right to a hundred bits."""
    for v, (high, low) in zip(x.tolist(), after.tolist(), strict=True):
        total = Fraction(0)
        for k in range(20):
            total = (total + Fraction(v * (k + 1))) * Fraction(v)
        if abs(Fraction(high) + Fraction(low) - total) > total / 2**90:
            return False
    return True


_BF16 = ml_dtypes.bfloat16
_late("givens_qr", 1, 64, lambda r: [_floats(r, 64)], _qr, 1e-4, least=0.1)
_late("thomas", 1, 32, lambda r: [r.random(16), 3 + r.random(16), r.random(16),
      _floats(r, 480, dtype=F64), 30], _tridiagonal, 1e-12, least=0.1)  # fmt: skip
_late("dct8", 1, 64, lambda r: [_floats(r, 64), np.zeros(64, F32)], _dct, 1e-5, least=1.0)
_late("median9", (3, 2), (8, 8), lambda r: [_ints(r, 20 * 13, dtype=U8, most=256),
      np.zeros(20 * 13, U8), 20, 13], _median)  # fmt: skip
_late("equalize", 1, 256, lambda r: [_ints(r, 900, dtype=U8, most=200), np.zeros(900, U8), 900],
      _equalized)  # fmt: skip
_late("look_back", 4, 128, lambda r: [_ints(r, 512), np.zeros(512, I32), np.zeros(8, I32)],
      lambda x, y, s: {1: np.cumsum(x)})  # fmt: skip
_late("jacobi", 2, 64, lambda r: [_floats(r, 100), np.zeros(100, F32), 100, 7],
      lambda a, b, n, s: {0: _relaxed(a, b, n, s)[1], 1: _relaxed(a, b, n, s)[0]},
      together=True)  # fmt: skip
_late("k_means", 2, 64, lambda r: [_floats(r, 100, 2), _floats(r, 4, 2), np.zeros(100, I32),
      np.zeros(12, F32), 100], _means, 1e-5, least=0.1)  # fmt: skip
_late("lstm_cell", 2, 64, lambda r: [_floats(r, 400, dtype=F16), _floats(r, 100),
      np.zeros(100, F16), 100], _lstm, 2e-3, least=0.01)  # fmt: skip
_late("int4_gemv", 2, 128, lambda r: [_ints(r, 8 * 64, dtype=U32, most=2**32), r.random(8).astype(
      F32), _floats(r, 512), np.zeros(8, F32), 512], _gemv, 1e-5, least=10.0)  # fmt: skip
_late("mma_bf16", 1, 32, lambda r: [_floats(r, 16, 16, dtype=_BF16), _floats(r, 8, 16, dtype=_BF16),
      np.zeros((16, 8), F32)], lambda a, b, c: {2: a.astype(F64) @ b.astype(F64).T + 1}, 1e-5,
      least=1.0)  # fmt: skip
_late("double_double", 1, 32, lambda r: [1 + r.random(30) / 3, np.zeros((30, 2)), 30],
      lambda x, y, n: {}, holds=lambda x, y, n, _, after, __: _near(x, after))  # fmt: skip
_late("linked_list", 1, 32, lambda r: [_ints(r, 30), np.zeros(30, I32), 30], _list)
