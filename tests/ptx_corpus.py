"""Kernels that nvcc made of CUDA C++ for this corpus alone, with what each should compute.

``tests/ptx/corpus_maps.cu`` has elementwise ones, ``corpus_blocks.cu`` those of blocks and warps.
None was looked at while the interpreter was written.  A case makes its arguments and says what
they are afterwards, by the number of the argument; by NumPy, the ``math`` module or plain Python.
"""

from __future__ import annotations

import base64
import binascii
import functools
import lzma
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.emulator import Memory, Module, Report, launch

__all__ = ["CASES", "FOLDER", "Array", "Case", "module", "rng_of", "run", "wrong"]

Array = NDArray[Any]
F32, F64, F16, BF16 = np.float32, np.float64, np.float16, ml_dtypes.bfloat16
I32, U32, I64, U64, U8 = np.int32, np.uint32, np.int64, np.uint64, np.uint8
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FOLDER = Path(__file__).parent / "ptx"


@dataclass(frozen=True)
class Case:
    """A launch: ``arguments()`` in order, ``expected`` of their values before, with tolerances."""

    file: str
    kernel: str
    grid: Any
    block: Any
    arguments: Callable[[], list[Any]]
    expected: Callable[..., Mapping[int, Any]]
    tolerance: float = 0.0
    smem_bytes: int = 0
    least: float = 1e-30
    """Below it a tolerance is of this number, where results cancel."""
    holds: Callable[..., bool] | None = None
    """What else is asked, of the arguments before and then after."""
    together: bool = False
    """A cooperative launch: all CTAs are resident, as ``grid.sync`` needs."""


@functools.cache
def module(file: str) -> Module:
    """Return a file's kernels."""
    packed = FOLDER / f"{file}.ptx.xz"
    if packed.exists():
        return Module.parse(lzma.decompress(packed.read_bytes()).decode())
    return Module.parse((FOLDER / f"{file}.ptx").read_text(encoding="utf-8"))


def run(case: Case, *, of: Module | None = None, **how: Any) -> tuple[Report, list[Any], list[Any]]:
    """Launch a case; return the report, the arguments before, and after."""
    before = case.arguments()
    after = [a.copy() if isinstance(a, np.ndarray) else a for a in before]
    memory = Memory()
    given = [memory.allocate(a) if isinstance(a, np.ndarray) else a for a in after]
    kernels = of or module(case.file)
    report = launch(
        kernels, case.kernel, case.grid, case.block, given, memory, smem_bytes=case.smem_bytes,
        **how,
    )  # fmt: skip
    return report, before, after


def wrong(case: Case, before: list[Any], after: list[Any]) -> str:
    """Return what of the results is not as expected, else ""."""
    if case.holds and not case.holds(*before, *after):
        return "what has to hold does not"
    for number, wanted in case.expected(*before).items():
        got = np.asarray(after[number])
        wanted = np.asarray(wanted)
        if case.tolerance:
            a, b = got.astype(F64), wanted.astype(F64)
            near = np.abs(a - b) <= case.tolerance * np.maximum(np.abs(b), case.least)
            near |= (np.isnan(a) & np.isnan(b)) | (a == b)
        else:
            near = (got == wanted) | ((got != got) & (wanted != wanted))
        if not near.all():
            at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(near))[0])
            got, wanted = np.atleast_1d(got), np.atleast_1d(np.broadcast_to(wanted, got.shape))
            return f"argument {number}{list(at)}: {got[at]} and not {wanted[at]}"
    return ""


CASES: dict[str, Case] = {}
N = 300


def rng_of(name: str) -> np.random.Generator:
    return np.random.default_rng(binascii.crc32(name.encode()))


def add(
    name: str, file: str, grid: Any, block: Any, make: Callable[[np.random.Generator], list[Any]],
    expected: Callable[..., Mapping[int, Any]], tolerance: float = 0.0, smem_bytes: int = 0,
    least: float = 1e-30, holds: Callable[..., bool] | None = None,
) -> None:  # fmt: skip
    """Add a case."""
    CASES[name] = Case(
        file, name, grid, block, lambda: make(rng_of(name)), expected, tolerance, smem_bytes, least,
        holds,
    )  # fmt: skip


def _each(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return a function of floats as one of arrays, in double precision."""

    def of(*values: Array) -> Array:
        rows = zip(*(v.reshape(-1).tolist() for v in values), strict=True)
        return np.array([function(*row) for row in rows], F64)

    return of


def one(
    name: str, dtype: Any, low: float, high: float, function: Callable[..., Any], tolerance: float,
    edges: Sequence[float] = (),
) -> None:  # fmt: skip
    """Add a kernel that maps one array."""

    def make(rng: np.random.Generator) -> list[Any]:
        x = rng.uniform(low, high, N).astype(dtype)
        x[: len(edges)] = edges
        return [x, np.zeros(N, dtype), N]

    add(name, "corpus_maps", 3, 128, make, lambda x, y, n: {1: function(x)}, tolerance)


def two(
    name: str, dtype: Any, low: float, high: float, function: Callable[..., Any], tolerance: float,
    least: float | None = None,
) -> None:  # fmt: skip
    """Add a kernel that maps two arrays."""

    def make(rng: np.random.Generator) -> list[Any]:
        x = rng.uniform(low if least is None else least, high, N).astype(dtype)
        return [x, rng.uniform(low, high, N).astype(dtype), np.zeros(N, dtype), N]

    add(name, "corpus_maps", 3, 128, make, lambda x, z, y, n: {2: function(x, z)}, tolerance)


def words(name: str, dtype: Any, function: Callable[..., int], count: int = 2) -> None:
    """Add a kernel of integers; ``function`` is of Python's, and is reduced to the type."""
    info = np.iinfo(dtype)

    def make(rng: np.random.Generator) -> list[Any]:
        x, z = (rng.integers(info.min, info.max, N, dtype, endpoint=True) for _ in range(2))
        x[:4], z[:6] = (0, info.min, info.max, 1), (0, info.max, 1, 7, 3, info.min)
        return [x, z, np.zeros(N, dtype), N]

    def expected(x: Array, z: Array, y: Array, n: int) -> Mapping[int, Any]:
        bits = info.bits
        made = [function(int(v), int(w)) % (1 << bits) for v, w in zip(x, z, strict=True)]
        unsigned: Any = np.dtype(f"u{bits // 8}")
        return {2: np.array(made, unsigned).view(dtype)}

    add(name, "corpus_maps", 3, 128, make, expected)


# elementwise: floating point

SINGLE = 3e-6  # CUDA Programming Guide: at most some ulp; results are rounded from exact ones here
DOUBLE = 1e-14

one("f_sin", F32, -1e6, 1e6, _each(math.sin), 2e-5, (0.0, 1e-8, 3.1415927))
one("f_cos", F32, -100, 100, _each(math.cos), 2e-5)
one("f_tan", F32, -1.5, 1.5, _each(math.tan), SINGLE)
one("f_asin", F32, -1, 1, _each(math.asin), SINGLE)
one("f_atan", F32, -50, 50, _each(math.atan), SINGLE)
one("f_sinh", F32, -80, 80, _each(math.sinh), SINGLE, (1e-6,))
one("f_tanh", F32, -9, 9, _each(math.tanh), SINGLE)
one("f_atanh", F32, -0.99, 0.99, _each(math.atanh), SINGLE)
one("f_expm1", F32, -20, 80, _each(math.expm1), SINGLE, (1e-7, -1e-7))
one("f_log1p", F32, -0.9, 1e5, _each(math.log1p), SINGLE, (1e-7,))
one("f_log10", F32, 1e-6, 1e9, _each(math.log10), SINGLE, (1.0, 1e-40))
one("f_cbrt", F32, -1e9, 1e9, np.cbrt, SINGLE, (0.0, 1e-42, -8.0))
one("f_rsqrt", F32, 1e-9, 1e9, _each(lambda v: 1 / math.sqrt(v)), SINGLE)
one("f_erf", F32, -3, 3, _each(math.erf), SINGLE)
one("f_erfc", F32, -3, 9, _each(math.erfc), 1e-5)
one("f_lgamma", F32, 3, 60, _each(math.lgamma), SINGLE)
one("f_tgamma", F32, 0.1, 30, _each(math.gamma), 1e-5)
one("f_rint", F32, -9, 9, lambda v: np.rint(v) + 8 * np.trunc(v + np.copysign(0.5, v))
    + 64 * np.trunc(v) + 512 * np.floor(v), 0.0, (0.5, 1.5, -2.5, -0.5))  # fmt: skip
one("f_fast", F32, -3, 3, lambda v: np.exp(v.astype(F64))
    + np.log(1 + v.astype(F64) ** 2) * np.sin(v.astype(F64)), 3e-5)  # fmt: skip
two("f_pow", F32, -8, 8, _each(math.pow), 1e-5, least=1e-3)
two("f_fmod", F32, -100, 100, np.fmod, 0.0)
two("f_remainder", F32, -100, 100, _each(math.remainder), 0.0)
two("f_atan2", F32, -5, 5, _each(math.atan2), SINGLE)
two("f_hypot", F32, -1e20, 1e20, _each(math.hypot), SINGLE)
two("f_nextafter", F32, -5, 5, np.nextafter, 0.0)
two("f_divide", F32, 1, 5, lambda v, w: 2 * v.astype(F64) / w + 1 / w.astype(F64), SINGLE)
add("f_frexp", "corpus_maps", 3, 128,
    lambda r: [r.uniform(-1e9, 1e9, N).astype(F32), np.zeros(N, F32), np.zeros(N, I32), N],
    lambda x, y, e, n: {1: np.frexp(x)[0] * 8, 2: np.frexp(x)[1]})  # fmt: skip
add("f_sincos", "corpus_maps", 3, 128,
    lambda r: [r.uniform(0.01, 0.49, N).astype(F32), np.zeros(N, F32), np.zeros(N, F32), N],
    lambda x, s, c, n: {1: np.sin(np.pi * x.astype(F64)), 2: np.cos(np.pi * x.astype(F64))},
    SINGLE)  # fmt: skip
one("d_exp", F64, -700, 700, _each(math.exp), DOUBLE)
one("d_log", F64, 1e-300, 1e300, _each(math.log), DOUBLE, (5e-324, 1.0))
one("d_cos", F64, -1e9, 1e9, _each(math.cos), 1e-12, (1e15, 0.0))
one("d_cbrt", F64, -1e9, 1e9, np.cbrt, DOUBLE)
one("d_erf", F64, -4, 4, _each(math.erf), DOUBLE)
one("d_lgamma", F64, 3, 100, _each(math.lgamma), DOUBLE)
one("d_sinh", F64, -20, 20, _each(math.sinh), DOUBLE)
one("d_rsqrt", F64, 0.1, 9, _each(lambda v: 1 / math.sqrt(v) + 1 / v + math.sqrt(v)), DOUBLE)
two("d_atan2", F64, -5, 5, _each(math.atan2), DOUBLE)
two("d_fmod", F64, -1e6, 1e6, np.fmod, 0.0)
two("d_fma", F64, 1, 2, lambda v, w: _fused(v, w), 1e-15)


def _fused(v: Array, w: Array) -> Array:
    """Return the rest of each product, plus a sum rounded up, less a product rounded down."""
    from fractions import Fraction

    found = []
    for a, b in zip(v.tolist(), w.tolist(), strict=True):
        near = a * b
        rest = float(Fraction(a) * Fraction(b) - Fraction(near))
        total = a + b
        if Fraction(total) < Fraction(a) + Fraction(b):
            total = math.nextafter(total, math.inf)
        down = near if Fraction(near) <= Fraction(a) * Fraction(b) else math.nextafter(near, 0)
        found.append(rest + total - down)
    return np.array(found)


# elementwise: integers


def _signed(v: int, bits: int = 32) -> int:
    v %= 1 << bits
    return v - (1 << bits) if v >> (bits - 1) else v


def _clz(v: int, bits: int = 32) -> int:
    return bits - v.bit_length()


def _ffs(v: int) -> int:
    return (v & -v).bit_length()


def _reversed(v: int, bits: int = 32) -> int:
    return int(f"{v:0{bits}b}"[::-1], 2)


def _bytes(v: int, size: int = 1) -> list[int]:
    return [v >> (8 * size * i) & ((1 << 8 * size) - 1) for i in range(4 // size)]


def _packed(parts: Sequence[int], size: int = 1) -> int:
    return sum((p & ((1 << 8 * size) - 1)) << (8 * size * i) for i, p in enumerate(parts))


def _funnels(v: int, w: int) -> int:
    left = ((w << 32 | v) << (v & 31)) >> 32
    right = (v << 32 | w) >> min(w & 63, 32)
    return (left ^ right ^ (v << (w & 31))) % (1 << 32)


def _perm(v: int, w: int) -> int:
    both = [*_bytes(v), *_bytes(w)]
    mine = _packed([both[(v & 0x7777) >> (4 * i) & 7] for i in range(4)])
    return mine ^ w  # the bytes of w in their order


def _simd(v: int, w: int) -> int:
    def signed(b: int) -> int:
        return b - 256 if b > 127 else b

    add4 = _packed([a + b for a, b in zip(_bytes(v), _bytes(w), strict=True)])
    max2 = _packed([max(a, b) for a, b in zip(_bytes(v, 2), _bytes(w, 2), strict=True)], 2)
    apart = _packed([abs(signed(a) - signed(b)) for a, b in zip(_bytes(v), _bytes(w), strict=True)])
    more = _packed([255 * (a > b) for a, b in zip(_bytes(v), _bytes(w), strict=True)])
    mean = _packed([(a + b + 1) >> 1 for a, b in zip(_bytes(v, 2), _bytes(w, 2), strict=True)], 2)
    return add4 ^ max2 ^ apart ^ more ^ mean


def _dots(v: int, w: int) -> int:
    def halves(x: int) -> list[int]:
        return [_signed(h, 16) for h in _bytes(x % (1 << 32), 2)]

    def octets(x: int) -> list[int]:
        return [_signed(b, 8) for b in _bytes(x % (1 << 32))]

    four = 9 + sum(a * b for a, b in zip(octets(v), octets(w), strict=True))
    return four + v + sum(a * b for a, b in zip(halves(v), octets(w)[:2], strict=True))


def _divided(v: int, w: int) -> tuple[int, int]:
    """C's quotient and rest."""
    q = abs(v) // abs(w) * (1 if (v < 0) == (w < 0) else -1)
    return q, v - q * w


def _int_divide(v: int, w: int) -> int:
    q, r = _divided(v, w | 1)
    return q + r * 3 + _divided(v, 7)[0] + _divided(w, 10)[1]


def _long_divide(v: int, w: int) -> int:
    q, r = _divided(v, w | 1)
    return q + r + _divided(v, 1000003)[0]


words("i_bits", U32, lambda v, w: v.bit_count() + 100 * _clz(w) + 10000 * _ffs(v & w)
      + (_reversed(v) >> 31))  # fmt: skip
words("i_shift", U32, _funnels)
words("i_perm", U32, _perm)
words("i_high", U32, lambda v, w: (v * w >> 32) ^ ((v & 0xFFFFFF) * (w & 0xFFFFFF))
      ^ (abs(v - w) + 7) ^ (v + w >> 1))  # fmt: skip
words("i_simd", U32, _simd)
words("i_dot", I32, _dots)
words("i_divide", I32, _int_divide)
words("l_divide", I64, _long_divide)
words("u_divide", U64, lambda v, w: v // (w | 1) + v % (w | 1) + (v * w >> 64) + v // 10)
words("l_bits", I64, lambda v, w: (v % 2**64).bit_count() + 100 * _clz(w % 2**64, 64)
      + 10000 * _ffs(v & w) + (v >> (w & 63)) + _reversed(w % 2**64, 64))  # fmt: skip

# elementwise: conversions and narrow types

add("i_saturate", "corpus_maps", 3, 128,
    lambda r: [r.uniform(0, 250, N).astype(F32), np.zeros(N, I32), N],
    lambda x, y, n: {1: np.floor(x).astype(I32) ^ x.astype(U8) ^ x.astype(U32).astype(I32)},
)  # fmt: skip
add("c_types", "corpus_maps", 3, 128,
    lambda r: [r.uniform(-250, 250, N), np.zeros(N, np.int16), np.zeros(N, U8), np.zeros(N, I64),
               np.zeros(N, F32), N],
    lambda x, s, b, w, f, n: {1: x.astype(np.int16), 2: np.abs(x).astype(U8),
                              3: np.ceil(x).astype(I64), 4: _down(x)})  # fmt: skip


def _down(x: Array) -> Array:
    near = x.astype(F32)
    return np.where(near > x, np.nextafter(near, F32(-np.inf)), near)


def _halves(rng: np.random.Generator, *shape: int, dtype: Any = F16) -> Array:
    return rng.standard_normal(shape or (N,)).astype(dtype)


add("h_math", "corpus_maps", 3, 128, lambda r: [_halves(r), np.zeros(N, F16), N],
    lambda x, y, n: {1: np.exp(x.astype(F64)) + np.sqrt(np.abs(x.astype(F64)))
                     * np.sin(x.astype(F64))}, 4e-3, least=1.0)  # fmt: skip


def _compare(x: Array, z: Array, y: Array, n: int) -> Mapping[int, Any]:
    nan = np.isnan(x) | np.isnan(z)
    at_least = nan | (x >= z)
    return {2: (x < z) + 2 * (x == z) + 4 * np.isnan(x) + 8 * at_least}


def _with_nan(rng: np.random.Generator) -> list[Any]:
    x, z = _halves(rng), _halves(rng)
    x[:9], z[5:14] = np.nan, np.nan
    z[20:40] = x[20:40]
    return [x, z, np.zeros(N, I32), N]


add("h_compare", "corpus_maps", 3, 128, _with_nan, _compare)


def _pairs(x: Array, z: Array, y: Array, n: int) -> Mapping[int, Any]:
    made = (x.astype(F64) * z + np.maximum(x, z)).astype(F16)
    made = np.maximum(made, F16(0))
    return {2: np.clip((made.astype(F64) + z[:, :1]).astype(F16), 0, 1)}


add("h_pairs", "corpus_maps", 3, 128,
    lambda r: [_halves(r, N, 2), _halves(r, N, 2), np.zeros((N, 2), F16), N], _pairs)  # fmt: skip
add("b_math", "corpus_maps", 3, 128,
    lambda r: [_halves(r, dtype=BF16), _halves(r, dtype=BF16), np.zeros(N, BF16), np.zeros(N, F32),
               N],
    lambda x, z, y, f, n: {2: x.astype(F64) * z.astype(F64) + np.minimum(x, z).astype(F64),
                           3: np.log(np.abs(x.astype(F64)))}, 2e-2)  # fmt: skip


def _fp8(x: Array, a: Array, b: Array, y: Array, n: int) -> Mapping[int, Any]:
    p, q = np.clip(x, -448, 448).astype(E4M3), np.clip(x, -57344, 57344).astype(E5M2)
    return {1: p.view(U8), 2: q.view(U8), 3: p.astype(F32) - q.astype(F32)}


def _fp8_pairs(x: Array, a: Array, y: Array, n: int) -> Mapping[int, Any]:
    p = np.clip(x, -448, 448).astype(E4M3)
    return {1: p.view(np.uint16)[:, 0], 2: p.astype(F32)}


add("q_fp8", "corpus_maps", 3, 128,
    lambda r: [(r.standard_normal(N) * 200).astype(F32), np.zeros(N, U8), np.zeros(N, U8),
               np.zeros(N, F32), N], _fp8)  # fmt: skip
add("q_pairs", "corpus_maps", 3, 128,
    lambda r: [(r.standard_normal((N, 2)) * 200).astype(F32), np.zeros(N, np.uint16),
               np.zeros((N, 2), F32), N], _fp8_pairs)  # fmt: skip

# blocks: scans, sorts, selections


def block(
    name: str, grid: Any, threads: Any, make: Callable[[np.random.Generator], list[Any]],
    expected: Callable[..., Mapping[int, Any]], tolerance: float = 0.0, **more: Any,
) -> None:  # fmt: skip
    """Add a kernel of blocks."""
    add(name, "corpus_blocks", grid, threads, make, expected, tolerance, **more)


def _ints(rng: np.random.Generator, *shape: int, dtype: Any = I32, most: int = 100) -> Array:
    return rng.integers(0, most, shape).astype(dtype)


def _floats(rng: np.random.Generator, *shape: int, dtype: Any = F32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def _segments(x: Array, head: Array, y: Array) -> Mapping[int, Any]:
    found = x.copy()
    for i in range(len(x)):
        if i % 32 and not head[i]:
            found[i] += found[i - 1]
    return {2: found}


def _compact(keeps: Callable[[Array], Array]) -> Callable[..., Mapping[int, Any]]:
    def expected(x: Array, y: Array, count: Array, n: int) -> Mapping[int, Any]:
        kept = x[:n][keeps(x[:n])]
        return {1: np.concatenate([kept, y[len(kept) :]]), 2: [len(kept)]}

    return expected


def _runs(x: Array, starts: Array, count: Array, n: int) -> Mapping[int, Any]:
    heads = np.flatnonzero(np.concatenate([[True], x[1:n] != x[: n - 1]]))
    return {1: np.concatenate([heads, starts[len(heads) :]]), 2: [len(heads)]}


block("scan_hillis", 1, 256, lambda r: [_ints(r, 256), np.zeros(256, I32)],
      lambda x, y: {1: np.cumsum(x)})  # fmt: skip
block("scan_blelloch", 1, 256, lambda r: [_ints(r, 256), np.zeros(256, I32)],
      lambda x, y: {1: np.cumsum(x) - x})  # fmt: skip
block("scan_segments", 1, 96, lambda r: [_ints(r, 96), _ints(r, 96, most=5) // 4,
      np.zeros(96, I32)], _segments)  # fmt: skip
block("sort_bitonic", 1, 256, lambda r: [_ints(r, 256, most=10**6)], lambda x: {0: np.sort(x)})
block("sort_odd_even", 1, 64, lambda r: [_ints(r, 101, dtype=np.int16), 101],
      lambda x, n: {0: np.sort(x)}, smem_bytes=256)  # fmt: skip
block("sort_radix", 1, 128, lambda r: [_ints(r, 128, dtype=U32, most=2**32)],
      lambda x: {0: np.sort(x)})  # fmt: skip
block("sort_ranks", 2, 96, lambda r: [_floats(r, 150, dtype=F64), np.zeros(150), 150],
      lambda x, y, n: {1: np.sort(x)})  # fmt: skip
block("merge_path", 2, 128, lambda r: [np.sort(_ints(r, 90)), np.sort(_ints(r, 111)),
      np.zeros(201, I32), 90, 111], lambda a, b, y, n, m: {2: np.sort([*a, *b])})  # fmt: skip
block("compact_ballot", 1, 32, lambda r: [_ints(r, 30), np.full(32, -1, I32), np.zeros(1, I32), 30],
      _compact(lambda x: x % 3 == 0))  # fmt: skip
block("compact_coalesced", 1, 32, lambda r: [_ints(r, 32), np.full(32, -1, I32), np.zeros(1, I32),
      31], _compact(lambda x: x & 1 == 1))  # fmt: skip
block("top_k", 1, 32, lambda r: [_floats(r, 333), np.zeros(4, F32), 333],
      lambda x, y, n: {1: np.sort(x)[:-5:-1]})  # fmt: skip
block("arg_max", 1, 64, lambda r: [_floats(r, 500) - F32(9), np.zeros(1, I32), 500],
      lambda x, at, n: {1: [np.argmax(x)]})  # fmt: skip
block("run_lengths", 1, 256, lambda r: [np.repeat(_ints(r, 100, dtype=np.int8, most=4), 2)[:190],
      np.full(200, -1, I32), np.zeros(1, I32), 190], _runs)  # fmt: skip

# cooperative groups, votes, shuffles


def _tiles(x: Array, y: Array) -> Mapping[int, Any]:
    by = x.reshape(-1, 8)
    made = by.sum(1) * 10 + (by > 90).any(1) + 2 * (by > 5).all(1)
    return {1: np.repeat(made, 8)}


def _tile_scans(x: Array, y: Array) -> Mapping[int, Any]:
    by = x.reshape(-1, 16)
    most = np.maximum.accumulate(by, 1)
    before = np.concatenate([np.full((len(by), 1), np.iinfo(I32).min), most[:, :-1]], 1)
    return {1: ((np.cumsum(by, 1) + 1000 * before.astype(I64)).astype(I32)).reshape(-1)}


def _labels(x: Array, y: Array) -> Mapping[int, Any]:
    found = np.zeros_like(x)
    for i in range(len(x)):
        warp = x[i // 32 * 32 : i // 32 * 32 + 32]
        mine = warp[warp % 3 == x[i] % 3]
        found[i] = mine.min() * 100 + len(mine)
    return {1: found}


def _match(x: Array, y: Array) -> Mapping[int, Any]:
    any_ = [sum(1 << j for j in range(32) if x[j] % 5 == v % 5) for v in x]
    return {1: np.array([a ^ ((2**32 - 1 + 1) << 1) % 2**32 for a in any_], U64).astype(U32)}


def _shuffles(x: Array, y: Array) -> Mapping[int, Any]:
    t = np.arange(32)
    down = np.where(t % 8 + 3 < 8, (t + 3) % 32, t)
    up = np.where(t % 16 >= 1, t - 1, t)
    butterfly = t ^ 5
    butterfly = np.where(butterfly // 4 <= t // 4, butterfly, t)
    return {1: x[down] + 2 * x[up] + 4 * x[t * 7 % 32] + 8 * x[butterfly]}


def _rotate(x: Array, y: Array) -> Mapping[int, Any]:
    return {1: np.concatenate([np.roll(x[:, :2], -1, 0), np.roll(x[:, 2:], 1, 0)], 1)}


block("group_tiles", 1, 64, lambda r: [_ints(r, 64), np.zeros(64, I32)], _tiles)
block("group_scan", 1, 64, lambda r: [_ints(r, 64), np.zeros(64, I32)], _tile_scans)
block("group_labels", 1, 64, lambda r: [_ints(r, 64), np.zeros(64, I32)], _labels)
block("warp_reduce", 1, 32, lambda r: [_ints(r, 32), np.zeros(32, U32)], lambda x, y: {
      1: np.full(32, int(x.sum()) ^ int(x.max()) << 8 ^ int(np.bitwise_xor.reduce(x)) << 16)},
)  # fmt: skip
block("warp_match", 1, 32, lambda r: [_ints(r, 32), np.zeros(32, U32)], _match)
block("warp_shuffles", 1, 32, lambda r: [_floats(r, 32, dtype=F64), np.zeros(32)], _shuffles,
      1e-15)  # fmt: skip
block("warp_rotate", 1, 32,
      lambda r: [_ints(r, 32, 4, dtype=np.int16), np.zeros((32, 4), np.int16)],
      _rotate)  # fmt: skip
block("block_votes", 1, 96, lambda r: [_ints(r, 96), np.zeros(96, I32)],
      lambda x, y: {1: np.full(96, (x > 50).sum() * 4 + 2 * (x > 98).any() + 1)})  # fmt: skip
block("named_barriers", 1, 128, lambda r: [_ints(r, 128), np.zeros(128, I32)], lambda x, y: {
      1: [*(x[np.arange(64) ^ 1] * 2), *x[np.arange(64, 128) ^ 63]]})  # fmt: skip

# atomics


def _all_atomics(x: Array, n: int) -> Mapping[int, Any]:
    found = [int(v) for v in x]
    for i in range(n):
        found[0] = 0 if found[0] >= 12 else found[0] + 1
        found[1] = 9 if found[1] == 0 or found[1] > 9 else found[1] - 1
        found[2] &= ~(1 << (i & 31))
        found[3] ^= i
        found[4] |= 1 << (i % 20)
        found[5] = min(_signed(found[5]), 7 - i) % 2**32
        found[6] = 5
        found[7] = (found[7] - i) % 2**32
    return {0: np.array(found, U32)}


def _nothing(*_: Any) -> Mapping[int, Any]:
    return {}


def _hashed(x: Array, empty: Array, n: int, _: Array, table: Array, __: int) -> bool:
    """Each number is in the table once, with a place where it stands, and is found from its own."""
    words = {at: int(w) for at, w in enumerate(table) if w}
    keys = [w >> 32 for w in words.values()]
    places = all(x[(w & 0xFFFFFFFF) - 1] == w >> 32 for w in words.values())
    return places and sorted(keys) == sorted(set(x.tolist()))


def _roots(parent: Array) -> list[int]:
    found = []
    for at in range(len(parent)):
        while parent[at] != at:
            at = int(parent[at])
        found.append(at)
    return found


def _joined(edges: Array, parent: Array, n: int, _: Array, after: Array, __: int) -> bool:
    """Those that a path joins have one root, and others do not."""
    groups = list(range(len(parent)))
    for a, b in edges.tolist():
        groups = [groups[a] if g == groups[b] else g for g in groups]
    pairs = set(zip(groups, _roots(after), strict=True))
    return len(pairs) == len(set(groups)) == len({root for _, root in pairs})


def _refs(x: Array, n: int) -> Mapping[int, Any]:
    found = x.copy()
    found[0] = max(int(x[0]) + sum(range(n)), n - 1)
    for i in range(n):
        found[1 + i // 64] |= 1 << (i % 31)
    return {0: found}


block("atomics_all", 2, 64, lambda r: [_ints(r, 8, dtype=U32), 100], _all_atomics)
block("atomic_float", 2, 64, lambda r: [np.zeros(2, F32), _floats(r, 100), 100],
      lambda y, x, n: {0: [x.max(), x.astype(F64).sum()]}, 1e-5)  # fmt: skip
block("atomic_pairs", 1, 64, lambda r: [_ints(r, 64, 2, dtype=F16, most=9), np.zeros((4, 2), F16),
      np.zeros(2, BF16), 60], lambda x, y, z, n: {
      1: [x[:60][np.arange(60) % 4 == i].sum(0) for i in range(4)], 2: [30, 30]})  # fmt: skip
block("histogram_match", 3, 64, lambda r: [_ints(r, 150, dtype=U8, most=256), np.zeros(16, I32),
      150], lambda x, y, n: {1: np.bincount(x >> 4, minlength=16)})  # fmt: skip
block("hash_insert", 2, 64, lambda r: [_ints(r, 100, dtype=U32, most=60), np.zeros(256, U64), 100],
      _nothing, holds=_hashed)  # fmt: skip
block("union_find", 2, 64, lambda r: [_ints(r, 70, 2, most=90), np.arange(90, dtype=I32), 70],
      _nothing, holds=_joined)  # fmt: skip
block("atomic_ref", 2, 64, lambda r: [_ints(r, 4), 100], _refs)
block("ticket_lock", 5, 32, lambda r: [np.zeros(2, I32), np.zeros(1, I32)],
      lambda words, total: {0: [5, 5], 1: [121]})  # fmt: skip

# linear algebra


def _complex(a: Array, b: Array, c: Array, n: int) -> Mapping[int, Any]:
    x, y = (v[:, 0].astype(F64) + 1j * v[:, 1] for v in (a, b))
    z = x.reshape(8, 8) @ y.reshape(8, 8)
    return {2: np.stack([z.real, z.imag], -1).reshape(-1, 2)}


def _csr(rng: np.random.Generator) -> list[Any]:
    lengths = rng.integers(0, 60, 50)
    rows = np.concatenate([[0], np.cumsum(lengths)]).astype(I32)
    columns = rng.integers(0, 70, rows[-1]).astype(I32)
    return [rows, columns, _floats(rng, rows[-1]), _floats(rng, 70), np.zeros(50, F32), 50]


def _spmv(rows: Array, columns: Array, values: Array, x: Array, y: Array, n: int) -> Any:
    each = [slice(rows[i], rows[i + 1]) for i in range(n)]
    return {4: [(values[e].astype(F64) * x[columns[e]]).sum() for e in each]}


def _definite(rng: np.random.Generator) -> list[Any]:
    a = rng.standard_normal((16, 16))
    return [a @ a.T + 16 * np.eye(16)]


def _fft(x: Array) -> Mapping[int, Any]:
    z = np.fft.fft(x[:, 0].astype(F64) + 1j * x[:, 1])
    return {0: np.stack([z.real, z.imag], -1)}


def _walsh(x: Array) -> Mapping[int, Any]:
    h = np.array([[(-1) ** (i & j).bit_count() for j in range(32)] for i in range(32)])
    return {0: (h @ x.reshape(-1, 32).T).T.reshape(-1)}


def _tf32(x: Array) -> Array:
    bits = x.view(U32) + U32(0x1000)
    return (bits & U32(0xFFFFE000)).view(F32).astype(F64)


block("matmul_tiled", (2, 2), (16, 16), lambda r: [_floats(r, 25, 25), _floats(r, 25, 25),
      np.zeros((25, 25), F32), 25], lambda a, b, c, n: {2: a.astype(F64) @ b}, 3e-4)  # fmt: skip
block("matmul_complex", 1, 64, lambda r: [_floats(r, 64, 2), _floats(r, 64, 2),
      np.zeros((64, 2), F32), 64], _complex, 1e-4)  # fmt: skip
block("matmul_int8", 1, 32, lambda r: [_ints(r, 16, 32, dtype=np.int8) - np.int8(50),
      _ints(r, 16, 32, dtype=np.int8), np.zeros((16, 16), I32)],
      lambda a, b, c: {2: a.astype(I32) @ b.astype(I32).T})  # fmt: skip
block("matmul_tf32", 1, 32, lambda r: [_floats(r, 16, 8), _floats(r, 8, 16),
      np.zeros((16, 16), F32)], lambda a, b, c: {2: _tf32(a) @ _tf32(b)}, 1e-4)  # fmt: skip
block("matmul_fp64", 1, 32, lambda r: [_floats(r, 8, 8, dtype=F64), _floats(r, 8, 8, dtype=F64),
      np.zeros((8, 8))], lambda a, b, c: {2: a @ b.T}, 1e-12)  # fmt: skip
block("matmul_ldmatrix", 1, 32, lambda r: [_floats(r, 16, 16, dtype=F16),
      _floats(r, 8, 16, dtype=F16), np.zeros((16, 8), F32)],
      lambda a, b, c: {2: a.astype(F64) @ b.astype(F64).T}, 1e-4)  # fmt: skip
block("spmv_rows", 1, 64, _csr, _spmv, 1e-3)
block("spmv_warps", 13, 128, _csr, _spmv, 1e-3)
block("cholesky", 1, (16, 16), _definite, lambda x: {0: np.linalg.cholesky(x)}, 1e-10)
block("solve_registers", 2, 32, lambda r: [_floats(r, 40, 4, 4), _floats(r, 40, 4),
      np.zeros((40, 4), F32), 40], lambda a, b, y, n: {
      2: np.linalg.solve(a.astype(F64), b.astype(F64)[..., None])[..., 0]}, 1e-2)  # fmt: skip
block("fft_radix2", 1, 128, lambda r: [_floats(r, 128, 2)], _fft, 1e-3)
block("walsh", 1, 64, lambda r: [_ints(r, 64)], _walsh)

# stencils, images, dynamic programs


def _convolved(x: Array, y: Array, w: int, h: int) -> Mapping[int, Any]:
    wide = np.pad(x.astype(F64), 1, "edge")
    weights = np.outer([1, 2, 1], [1, 2, 1])
    parts = [weights[i, j] * wide[i : i + h, j : j + w] for i in range(3) for j in range(3)]
    return {1: sum(parts) / 16}


def _line(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    wide = np.pad(x.astype(F64), 4)
    return {1: sum(wide[j : j + n] * (j - 4) for j in range(9))}


def _pooled(x: Array, y: Array, w: int, h: int) -> Mapping[int, Any]:
    a, b, d = x[::2, ::2], x[::2, 1::2], x[1::2, ::2]
    made = [np.maximum(np.maximum(a, b), d)[..., 0], np.maximum(a, b)[..., 1],
            np.minimum(a, d)[..., 2], a[..., 3]]  # fmt: skip
    return {1: np.stack(made, -1)}


def _resized(x: Array, y: Array, w: int, h: int, ww: int, hh: int) -> Mapping[int, Any]:
    found = np.zeros((hh, ww), U8)
    for r in range(hh):
        for c in range(ww):
            fx, fy = (c + 0.5) * w / ww - 0.5, (r + 0.5) * h / hh - 0.5
            x0, y0 = math.floor(fx), math.floor(fy)
            ax, ay = fx - x0, fy - y0

            def at(q: int, p: int) -> float:
                return float(x[min(max(p, 0), h - 1), min(max(q, 0), w - 1)])

            top = (1 - ax) * at(x0, y0) + ax * at(x0 + 1, y0)
            low = (1 - ax) * at(x0, y0 + 1) + ax * at(x0 + 1, y0 + 1)
            found[r, c] = int((1 - ay) * top + ay * low + 0.5)
    return {1: found}


def _life(x: Array, y: Array, w: int, h: int) -> Mapping[int, Any]:
    near = sum(np.roll(x.astype(I32), (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - x
    return {1: (near == 3) | ((near == 2) & (x == 1))}


def _edits(a: Array, b: Array, y: Array, n: int, m: int) -> Mapping[int, Any]:
    row = list(range(m + 1))
    for i in range(n):
        last, row = row, [i + 1]
        for j in range(m):
            row.append(min(last[j + 1] + 1, row[j] + 1, last[j] + int(a[i] != b[j])))
    return {2: [row[m]]}


def _paths(d: Array, n: int) -> Mapping[int, Any]:
    found = d.copy()
    for k in range(n):
        found = np.minimum(found, found[:, k : k + 1] + found[k : k + 1])
    return {0: found}


def _sack(w: Array, v: Array, y: Array, n: int) -> Mapping[int, Any]:
    best = [0] * 128
    for i in range(n):
        best = [max(b, best[c - w[i]] + v[i]) if c >= w[i] else b for c, b in enumerate(best)]
    return {2: best}


def _mandelbrot(_: Array, w: int, y: Array, __: int) -> bool:
    """Where the orbit is chaotic, roundoff decides: nearly all counts agree."""
    c = np.arange(w) * 3 / w - 2 + 1j * (np.arange(len(y))[:, None] * 2 / w - 1)
    z, count = np.zeros_like(c), np.zeros(c.shape, I32)
    for _step in range(50):
        inside = np.abs(z) ** 2 < 4
        count += inside
        z = np.where(inside, z * z + c, z)
    return bool((count == y).mean() > 0.97)


def _bodies(p: Array, f: Array, n: int) -> Mapping[int, Any]:
    x, mass = p[:, :3].astype(F64), p[:, 3].astype(F64)
    apart = x[None] - x[:, None]
    near = 1 / np.sqrt((apart**2).sum(-1) + 0.01)
    return {1: (apart * (mass[None] * near**3)[..., None]).sum(1)}


block("convolve", (2, 3), (16, 8), lambda r: [_floats(r, 20, 30), np.zeros((20, 30), F32), 30, 20],
      _convolved, 1e-3)  # fmt: skip
block("convolve_shared", 3, 64, lambda r: [_floats(r, 150), np.zeros(150, F32), 150], _line, 1e-3)
block("max_pool", 5, 32, lambda r: [_ints(r, 10, 12, 4, dtype=U8, most=256),
      np.zeros((5, 6, 4), U8), 12, 10], _pooled)  # fmt: skip
block("resize", (1, 9), 32, lambda r: [_ints(r, 7, 11, dtype=U8, most=256), np.zeros((9, 23), U8),
      11, 7, 23, 9], _resized)  # fmt: skip
block("life", 12, 17, lambda r: [_ints(r, 12, 17, dtype=U8, most=2), np.zeros((12, 17), U8), 17,
      12], _life)  # fmt: skip
block("edit_distance", 1, 64, lambda r: [_ints(r, 40, dtype=np.int8, most=3),
      _ints(r, 33, dtype=np.int8, most=3), np.zeros(1, I32), 40, 33], _edits)  # fmt: skip
block("floyd", 1, (20, 20), lambda r: [_ints(r, 20, 20), 20], _paths)
block("knapsack", 1, 128, lambda r: [_ints(r, 9, most=40) + I32(1), _ints(r, 9),
      np.zeros(128, I32), 9], _sack)  # fmt: skip
block("mandelbrot", 20, 30, lambda r: [np.zeros((20, 30), I32), 30], _nothing, holds=_mandelbrot)
block("n_body", 1, 64, lambda r: [_floats(r, 64, 4), np.zeros((64, 3), F32), 64], _bodies, 2e-2)

# codes, random numbers


def _philox(y: Array, key: int, n: int) -> Mapping[int, Any]:
    found = []
    for i in range(n):
        a, b, c, d, k, m = i, 1, 2, 3, key, key ^ 77
        for _ in range(10):
            p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
            a, b, c, d = (q >> 32) ^ b ^ k, q % 2**32, (p >> 32) ^ d ^ m, p % 2**32
            k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
        found.append([a, b, c, d])
    return {0: np.array(found, U64).astype(U32)}


def _hits(hits: Array, n: int) -> Mapping[int, Any]:
    total = 0
    for i in range(n):
        s = (i * 747796405 + 1) % 2**32
        for _ in range(20):
            s ^= s << 13 & 0xFFFFFFFF
            s ^= s >> 17
            s ^= s << 5 & 0xFFFFFFFF
            t = s * 69069 % 2**32
            a, b = F32((s >> 8) * 2.0**-24), F32((t >> 8) * 2.0**-24)
            total += int(float(a) ** 2 + float(b) ** 2 < 1)
    return {0: [total]}


block("crc32", 1, 64, lambda r: [_ints(r, 50, 7, dtype=U8, most=256), np.zeros(50, U32), 7, 50],
      lambda x, y, each, n: {1: [binascii.crc32(row.tobytes()) for row in x]})  # fmt: skip
block("philox", 1, 64, lambda r: [np.zeros((50, 4), U32), 12345, 50], _philox)
block("xorshift_pi", 2, 64, lambda r: [np.zeros(1, U64), 100], _hits)
block("base64", 1, 64, lambda r: [_ints(r, 150, dtype=U8, most=256), np.zeros(200, U8), 50],
      lambda x, y, n: {1: np.frombuffer(base64.b64encode(x.tobytes()), U8)})  # fmt: skip

# deep learning


def _softmax(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    e = np.exp(x.astype(F64) - x.max(1, keepdims=True).astype(F64))
    return {1: e / e.sum(1, keepdims=True)}


def _rotary(x: Array, table: Array, n: int) -> Mapping[int, Any]:
    v, t = x.astype(F32), table[np.arange(n) % 16]
    first = (v[:, 0] * t[:, 0]).astype(F64) - v[:, 1].astype(F64) * t[:, 1]
    second = (v[:, 0] * t[:, 1]).astype(F64) + v[:, 1].astype(F64) * t[:, 0]
    return {0: np.stack([first, second], -1)}


def _attention(q: Array, k: Array, v: Array, y: Array, n: int) -> Mapping[int, Any]:
    scores = q.astype(F64) @ k.astype(F64).T * 0.17677669
    e = np.exp(scores - scores.max(1, keepdims=True))
    return {3: e / e.sum(1, keepdims=True) @ v.astype(F64)}


def _dropped(x: Array, y: Array, seed: int, n: int) -> Mapping[int, Any]:
    found = np.zeros(x.shape)
    for at, v in enumerate(x.reshape(-1).astype(F64)):
        h = at * 2654435761 % 2**32 ^ seed
        h ^= h >> 15
        h = h * 0x85EBCA6B % 2**32
        h ^= h >> 13
        keep = 2 * v * 0.5 * math.erfc(-v / math.sqrt(2))
        found.reshape(-1)[at] = 0 if h & 1 else keep
    return {1: found}


block("softmax_online", 3, 32, lambda r: [_floats(r, 3, 70, dtype=F16), np.zeros((3, 70), F16), 70],
      _softmax, 3e-3)  # fmt: skip
block("rotary", 1, 64, lambda r: [_halves(r, 50, 2, dtype=BF16), _floats(r, 16, 2), 50],
      _rotary, 5e-2)  # fmt: skip
block("attention", 3, 32, lambda r: [_floats(r, 3, 32), _floats(r, 96, 32), _floats(r, 96, 32),
      np.zeros((3, 32), F32), 96], _attention, 1e-3)  # fmt: skip
block("dropout_gelu", 1, 64, lambda r: [_floats(r, 50, 4), np.zeros((50, 4), F32), 99, 50],
      _dropped, 1e-4)  # fmt: skip

# language


def _areas(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    odd = np.arange(n) % 2
    return {1: np.where(odd, x.astype(F64) ** 2, 3.14159274 * x.astype(F64) ** 2)}


BIG = np.dtype({"names": ["a", "d", "c"], "formats": [("<i4", 20), "<f8", ("i1", 3)],
                "offsets": [0, 80, 88], "itemsize": 96})  # fmt: skip


def _big(rng: np.random.Generator) -> list[Any]:
    one = np.zeros((), BIG)
    one["a"], one["d"], one["c"] = _ints(rng, 20), 1.25, [1, -2, 3]
    return [one.tobytes(), np.zeros(50), 50]


def _bigs(given: bytes, y: Array, n: int) -> Mapping[int, Any]:
    one = np.frombuffer(given, BIG)[0]
    return {1: [one["a"][i % 20] * one["d"] + one["c"][i % 3] for i in range(n)]}


def _stacked(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    found = []
    for v in x[:n].tolist():
        stack, total = [v], 0
        while stack:
            u = stack.pop()
            total += u
            if u > 3 and len(stack) < 30:
                stack += [u // 2, u // 3]
        found.append(total)
    return {1: found}


def _ackermann(m: int, n: int) -> int:
    if m == 0:
        return n + 1
    return _ackermann(m - 1, 1 if n == 0 else _ackermann(m, n - 1))


def _switched(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    found = []
    for byte in x[:n].tolist():
        v = 0
        for k in range(8):
            match byte >> k & 3:
                case 0:
                    v += k
                case 1:
                    v = (v ^ 0x55) * 3
                case 2:
                    v *= 3
                case _:
                    v -= 7
        found.append(v)
    return {1: found}


def _copied(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    found = x.reshape(n, 64, 4)[:, np.arange(64) ^ 1].copy()
    found[..., 0] += np.arange(n)[:, None]
    return {1: found.reshape(-1, 4)}


def _clusters(x: Array, y: Array) -> Mapping[int, Any]:
    sums = x.astype(F64).reshape(-1, 32).sum(1)
    return {1: sums + 2 * sums[np.arange(len(sums)) ^ 1]}


block("virtual_calls", 1, 64, lambda r: [_floats(r, 50), np.zeros(50, F32), 50], _areas, SINGLE)
block("device_globals", 1, 32, lambda r: [np.zeros(30, F32), 30],
      lambda y, n: {0: [3.0, 5.0, 7.0, 9.0] * 7 + [3.0, 5.0]})  # fmt: skip
block("big_argument", 1, 64, _big, _bigs)
block("local_stack", 1, 64, lambda r: [_ints(r, 50, most=40), np.zeros(50, I32), 50], _stacked)
block("lambdas", 2, 32, lambda r: [_ints(r, 50), np.zeros(50, I32), 50],
      lambda x, y, n: {1: x * 6 + 32})  # fmt: skip
block("recursion", 1, 32, lambda r: [np.zeros(24, U32), 24],
      lambda y, n: {0: [_ackermann(i % 3, i % 4) for i in range(n)]})  # fmt: skip
block("switches", 1, 64, lambda r: [_ints(r, 50, dtype=U8, most=256), np.zeros(50, I32), 50],
      _switched)  # fmt: skip
block("async_copies", 1, 64, lambda r: [_ints(r, 320, 4), np.zeros((320, 4), I32), 5], _copied)
block("cluster_sum", 4, 32, lambda r: [_floats(r, 128), np.zeros(4, F32)], _clusters, 1e-4)
