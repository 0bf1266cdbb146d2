"""Kernels that Triton made for three GPUs (``tests/ptx/triton_corpus.py``), and what they compute.

A case runs every build of its kernel.  Arguments are as in :mod:`tests.ptx_corpus`; an array as a
tensor descriptor is a :class:`Described`.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.ptx_corpus import F16, F32, F64, FOLDER, I32, Array, Case, rng_of, wrong
from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch

__all__ = ["BUILDS", "CASES", "Described", "run", "wrong"]

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
_SEED = 1234


@dataclass(frozen=True, slots=True)
class Described:
    """A matrix of halves that a kernel gets as boxes of some rows by 64, swizzled by 128 B."""

    array: Array
    rows: int


@functools.cache
def builds() -> Mapping[str, Mapping[str, Any]]:
    """Return each build's kernel, threads, shared bytes and PTX."""
    raw = (FOLDER / "corpus_triton.json.xz").read_bytes()
    made: Mapping[str, Mapping[str, Any]] = json.loads(lzma.decompress(raw))
    return made


@functools.cache
def module(build: str) -> Module:
    """Return a build, parsed."""
    return Module.parse(builds()[build]["ptx"])


def run(build: str, *, of: Module | None = None, **how: Any) -> tuple[Report, list[Any], list[Any]]:
    """Launch a build; return the report, the arguments before, and after."""
    case, made = CASES[build.rpartition("_")[0]], builds()[build]
    before = case.arguments()
    after, memory, given = [], Memory(), []
    for argument in before:
        if isinstance(argument, Described):
            held = Described(argument.array.copy(), argument.rows)
            at, (height, width) = memory.allocate(held.array), held.array.shape
            tensor = TensorMap(at, "f16", (width, height), (2 * width,), (64, held.rows), 3)
            given += [tensor, height, width, width, 1]
            after.append(held.array)
            continue
        after.append(argument.copy() if isinstance(argument, np.ndarray) else argument)
        whole = isinstance(argument, np.ndarray)
        given.append(memory.allocate(after[-1]) if whole else argument)
    given += [memory.allocate(np.zeros(4096, np.uint8)), 0]  # scratch, profile
    report = launch(
        of or module(build), made["kernel"], case.grid, made["threads"], given, memory,
        smem_bytes=made["shared"], **how,
    )  # fmt: skip
    plain = [a.array if isinstance(a, Described) else a for a in before]
    return report, plain, after


CASES: dict[str, Case] = {}


def _case(
    name: str, grid: Any, make: Callable[[np.random.Generator], list[Any]],
    expected: Callable[..., Mapping[int, Any]], tolerance: float = 0.0, **more: Any,
) -> None:  # fmt: skip
    CASES[name] = Case("", name, grid, 0, lambda: make(rng_of(name)), expected, tolerance, **more)


def _floats(rng: np.random.Generator, *shape: int, dtype: Any = F32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def _ints(rng: np.random.Generator, *shape: int, dtype: Any = I32, most: int = 100) -> Array:
    return rng.integers(0, most, shape).astype(dtype)


def _softmax(x: Array) -> Array:
    e = np.exp(x.astype(F64) - x.astype(F64).max(-1, keepdims=True))
    made: Array = e / e.sum(-1, keepdims=True)
    return made


def _normed(x: Array, w: Array, y: Array, n: int, eps: float) -> Mapping[int, Any]:
    v = x.astype(F64)
    return {2: (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + eps) * w}


def _scanned(a: Array, b: Array, y: Array, s: Array) -> Mapping[int, Any]:
    state, found = 0.0, []
    for p, q in zip(a.tolist(), b.tolist(), strict=True):
        state = state * p + q
        found.append(state)
    return {2: found, 3: np.cumsum(b[::-1].astype(F64))[::-1]}


def _counted(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    return {1: np.bincount(x[:n], minlength=64)}


def _updated(x: Array, y: Array, f: Array, lock: Array) -> Mapping[int, Any]:
    found, rows = y.copy(), x.reshape(-1, 128)
    np.maximum.at(found, np.arange(x.size) % 16, x)
    np.bitwise_xor.at(found, 16 + np.arange(x.size) % 8, x)
    return {1: found, 2: rows[0] * 4 + rows[1] * 2 + rows[2]}


def _entropy(x: Array, label: Array, loss: Array, grad: Array, n: int) -> Mapping[int, Any]:
    p = _softmax(x)
    one = np.eye(n)[label]
    return {2: -np.log((p * one).sum(1)), 3: p - one}


def _active(x: Array, y: Array, n: int) -> Mapping[int, Any]:
    import math

    v = x.astype(F64)
    erf = np.array([math.erf(t * math.sqrt(0.5)) for t in v.tolist()])
    return {1: 0.5 * v * (1 + erf) + np.cos(v) / (1 + np.exp(-v)) - 1 / np.sqrt(1 + v * v)}


def _rearranged(x: Array, y: Array) -> Mapping[int, Any]:
    a, b = x.reshape(-1, 2).T
    w = np.stack([b[::-1], a], 1).reshape(-1)
    return {1: w.reshape(4, -1, 2).transpose(1, 2, 0).reshape(-1)}


def _quantized(x: Array, q: Array, s: Array, n: int) -> Mapping[int, Any]:
    scale = np.abs(x).max(1) / F32(127)
    return {1: np.rint(x / scale[:, None]), 2: scale}


def _adam(p: Array, g: Array, m: Array, v: Array, n: int, rate: float) -> Mapping[int, Any]:
    d = g.astype(F64)
    a, b = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d * d
    return {0: p - rate * a / (np.sqrt(b) + 1e-8), 2: a, 3: b}


def _philox(x: Array, y: Array, n: int, seed: int) -> Mapping[int, Any]:
    """Philox 4x32-10, by Salmon et al., and the upper bits as Triton makes a number of them."""
    found = []
    for at in range(n):
        c, key = [at, 0, 0, 0], [seed, 0]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [q >> 32 ^ c[1] ^ key[0], q & 0xFFFFFFFF, p >> 32 ^ c[3] ^ key[1], p & 0xFFFFFFFF]
            key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
        signed = c[0] - 2**32 if c[0] >> 31 else c[0]
        uniform = (-signed - 1 if signed < 0 else signed) * 4.6566127342e-10
        found.append(2 * x[at] if uniform > 0.5 else 0.0)
    return {1: found}


def _product(a: Array, b: Array, c: Array, *_: int) -> Mapping[int, Any]:
    return {2: a.astype(F64) @ b.astype(F64)}


def _matrices(dtype: Any, to: Any) -> Callable[[np.random.Generator], list[Any]]:
    def make(rng: np.random.Generator) -> list[Any]:
        m, n, k = 70, 144, 112
        if dtype == np.int8:
            a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
        else:
            a, b = _floats(rng, m, k, dtype=dtype), _floats(rng, k, n, dtype=dtype)
        padded = [np.zeros((128, k), dtype), np.zeros((k, 192), dtype)]
        padded[0][:m], padded[1][:, :n] = a, b
        return [padded[0], padded[1], np.zeros((128, 192), to), 128, 192, k]

    return make


def _attended(q: Array, k: Array, v: Array, o: Array, n: int, scale: float) -> Mapping[int, Any]:
    score = q.astype(F64) @ k.astype(F64).T * scale
    p = _softmax(np.where(np.tri(n, dtype=bool), score, -np.inf))
    return {3: p @ v.astype(F64)}


_case("add", 2, lambda r: [_floats(r, 300), _floats(r, 300), np.zeros(300, F32), 300],
      lambda x, y, z, n: {2: x * 2 + y}, 1e-6, least=1.0)  # fmt: skip
_case("softmax", 3, lambda r: [_floats(r, 3, 400), np.zeros((3, 400), F32), 400],
      lambda x, y, n: {1: _softmax(x)}, 2e-6)  # fmt: skip
_case("layer_norm", 3, lambda r: [_floats(r, 3, 400, dtype=BF16), _floats(r, 400),
      np.zeros((3, 400), F16), 400, F32(1e-5)], _normed, 2e-3, least=0.1)  # fmt: skip
_case("welford", 2, lambda r: [3 + _floats(r, 2, 1024), np.zeros((2, 2), F32)],
      lambda x, y: {1: np.stack([x.mean(1), x.var(1)], 1)}, 1e-5)  # fmt: skip
_case("scans", 1, lambda r: [r.random(512).astype(F32), _floats(r, 512), np.zeros(512, F32),
      np.zeros(512, F32)], _scanned, 1e-5, least=1.0)  # fmt: skip
_case("sorts", 1, lambda r: [_ints(r, 256, most=10**6), np.zeros(256, I32), np.zeros(8, I32)],
      lambda x, y, k: {1: np.sort(x), 2: np.sort(x)[:-9:-1]})  # fmt: skip
_case("histograms", 2, lambda r: [_ints(r, 400, most=64), np.zeros(64, I32), 400], _counted)
_case("atomics", 3, lambda r: [_ints(r, 384, most=10**6), np.zeros(24, I32), np.zeros(128, I32),
      np.zeros(1, I32)], _updated)  # fmt: skip
_case("transposes", (3, 2), lambda r: [_floats(r, 80, 100, dtype=F16), np.zeros((100, 80), F16),
      80, 100], lambda x, y, m, n: {1: x.T})  # fmt: skip
_case("cross_entropy", 4, lambda r: [_floats(r, 4, 200, dtype=BF16), _ints(r, 4, dtype=np.int64),
      np.zeros(4, F32), np.zeros((4, 200), F32), 200], _entropy, 1e-5, least=0.01)  # fmt: skip
_case("activations", 2, lambda r: [_floats(r, 400), np.zeros(400, F32), 400], _active, 2e-6,
      least=0.1)  # fmt: skip
_case("gathers", 5, lambda r: [_ints(r, 5, most=9), _floats(r, 9, 100), np.zeros((5, 100), F32),
      100], lambda i, x, y, n: {2: x[i]})  # fmt: skip
_case("arg_reduce", 1, lambda r: [_floats(r, 32, 64), np.zeros(32, I32), np.zeros(64, F32)],
      lambda x, y, m: {1: x.argmax(1), 2: x.min(0)})  # fmt: skip
_case("rearranged", 1, lambda r: [_ints(r, 256), np.zeros(256, I32)], _rearranged)
_case("quantized", 3, lambda r: [_floats(r, 3, 200), np.zeros((3, 200), np.int8), np.zeros(3, F32),
      200], _quantized, 1e-6)  # fmt: skip
_case("adam", 2, lambda r: [_floats(r, 200), _floats(r, 200, dtype=BF16), _floats(r, 200),
      r.random(200).astype(F32), 200, F32(0.01)], _adam, 1e-5, least=0.1)  # fmt: skip
_case("dropped", 3, lambda r: [_floats(r, 300), np.zeros(300, F32), 300, _SEED], _philox)
_case("matmul_fp16", (2, 3), _matrices(F16, F16), _product, 2e-3, least=5.0)
_case("matmul_tf32", (2, 3), _matrices(F32, F32), _product, 2e-3, least=10.0)
_case("matmul_int8", (2, 3), _matrices(np.int8, I32), _product)
_case("matmul_fp8", (2, 3), _matrices(E4M3, F32), _product, 1e-4, least=5.0)
_case("split_k", 4, lambda r: [_floats(r, 32, 256, dtype=BF16), _floats(r, 256, 32, dtype=BF16),
      np.zeros((32, 32), F32), 256], _product, 1e-5, least=5.0)  # fmt: skip
_case("causal", 3, lambda r: [*(_floats(r, 192, 64, dtype=F16) for _ in range(3)),
      np.zeros((192, 64), F16), 192, F32(0.125)], _attended, 4e-3, least=0.3)  # fmt: skip
_case("boxed", (2, 3), lambda r: [Described(_floats(r, 256, 320, dtype=F16), 128),
      Described(_floats(r, 192, 320, dtype=F16), 64), Described(np.zeros((256, 192), F16), 128),
      320], lambda a, b, c, k: {2: np.maximum(a.astype(F64) @ b.astype(F64).T, 0)}, 2e-3,
      least=5.0)  # fmt: skip
_case("persistent", 2, lambda r: [Described(_floats(r, 128, 192, dtype=F16), 64),
      Described(_floats(r, 192, 128, dtype=F16), 64), Described(np.zeros((128, 128), F16), 64),
      128, 128, 192], _product, 2e-3, least=5.0)  # fmt: skip
_case("described", (2, 2), lambda r: [_floats(r, 64, 64), np.zeros((64, 64), F32), 64, 64],
      lambda x, y, m, n: {1: x + 1})  # fmt: skip

BUILDS = tuple(builds())
"""The names of all builds: a case, and the target."""
