"""Kernels of Python functions by Numba, right, and without a barrier, fence or atomic they need.

    python -m benchmarks.others.threads FOLDER
    python -m benchmarks.races_of_others FOLDER

Numba's compiler comes by ``pip install numba-cuda nvidia-cuda-nvcc nvidia-cuda-nvrtc numpy``.  An
array is seven parameters: two pointers that are 0, size, bytes an element, address, shape, strides.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# (the compilers read these functions, and their types are the compilers')

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda, float32, int32

from benchmarks.others import Launches

__all__ = ["main"]


def kernels(racy: bool) -> dict[str, Callable[..., None]]:
    """Return the kernels; the compiler takes ``racy`` as a constant."""

    def reduce(x, y):
        held = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        held[t] = x[i] if i < x.size else 0.0
        cuda.syncthreads()
        half = 64
        while half > 0:
            if t < half:
                held[t] += held[t + half]
            if not racy:
                cuda.syncthreads()
            half //= 2
        if t == 0:
            y[cuda.blockIdx.x] = held[0]

    def matmul(a, b, c):
        p, q = cuda.shared.array((16, 16), float32), cuda.shared.array((16, 16), float32)
        column, row = cuda.grid(2)
        s, r = cuda.threadIdx.x, cuda.threadIdx.y
        total = float32(0.0)
        for k in range(a.shape[1] // 16):
            p[r, s] = a[row, 16 * k + s]
            q[r, s] = b[16 * k + r, column]
            cuda.syncthreads()
            for n in range(16):
                total += p[r, n] * q[n, s]
            if not racy:
                cuda.syncthreads()
        c[row, column] = total

    def softmax(x, y):
        held = cuda.shared.array(4, float32)
        t, row = cuda.threadIdx.x, cuda.blockIdx.x
        v = x[row, t]
        most = v
        for n in range(5):
            most = max(most, cuda.shfl_xor_sync(0xFFFFFFFF, most, 1 << n))
        if t % 32 == 0:
            held[t // 32] = most
        cuda.syncthreads()
        most = max(max(held[0], held[1]), max(held[2], held[3]))
        if not racy:
            cuda.syncthreads()
        e = math.exp(v - most)
        total = e
        for n in range(5):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << n)
        if t % 32 == 0:
            held[t // 32] = total
        cuda.syncthreads()
        y[row, t] = e / (held[0] + held[1] + held[2] + held[3])

    def histogram(x, y):
        held = cuda.shared.array(16, int32)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        if t < 16:
            held[t] = 0
        if not racy:
            cuda.syncthreads()
        cuda.atomic.add(held, x[i], 1)
        cuda.syncthreads()
        if t < 16:
            cuda.atomic.add(y, t, held[t])

    def count(x, y):
        if racy:
            y[x[cuda.grid(1)]] += 1
        else:
            cuda.atomic.add(y, x[cuda.grid(1)], 1)

    def warp_scan(x, y):
        held = cuda.shared.array(64, int32)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        held[t] = 0
        held[t + 32] = x[i]
        cuda.syncwarp()
        step = 1
        while step < 32:
            v = held[t + 32 - step]
            if not racy:
                cuda.syncwarp()
            held[t + 32] += v
            cuda.syncwarp()
            step *= 2
        y[i] = held[t + 32]

    def last(x, part, ticket, y):
        held = cuda.shared.array(1, int32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if t == 0:
            total = 0
            for n in range(64):
                total += x[64 * b + n]
            part[b] = total
            if not racy:
                cuda.threadfence()
            held[0] = cuda.atomic.add(ticket, 0, 1)
        cuda.syncthreads()
        if held[0] == cuda.gridDim.x - 1 and t == 0:
            cuda.threadfence()
            total = 0
            for n in range(cuda.gridDim.x):
                total += part[n]
            y[0] = total

    def stencil(x, y):
        held = cuda.shared.array(130, float32)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        held[t + 1] = x[i]
        if t == 0:
            held[0] = x[i - 1] if i > 0 else 0.0
        if t == 127:
            held[129] = x[i + 1] if i + 1 < x.size else 0.0
        if not racy:
            cuda.syncthreads()
        y[i] = held[t] + held[t + 1] + held[t + 2]

    return {f.__name__: f for f in (reduce, matmul, softmax, histogram, count, warp_scan, last,
                                    stencil)}  # fmt: skip


def _array(n: int, array: np.ndarray) -> list[Any]:
    return [0, 0, array.size, array.itemsize, f"&{n}", *array.shape, *array.strides]


def main(arguments: Sequence[str]) -> None:
    """Compile both builds and write the list."""
    launches, rng = Launches(Path(arguments[0])), np.random.default_rng(0)
    x, n = rng.standard_normal(256).astype(np.float32), rng.integers(0, 16, 256).astype(np.int32)
    rows, a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 128), (32, 64), (64, 32)))
    e = np.exp(rows - rows.max(1, keepdims=True), dtype=np.float64)
    padded = np.pad(x, 1)
    zeros = {np.float32: np.zeros(256, np.float32), np.int32: np.zeros(256, np.int32)}
    f, i = zeros[np.float32], zeros[np.int32]
    cases: dict[str, tuple[Any, Any, list[Any], Any]] = {
        "reduce": (2, 128, [x, f[:2]], x.reshape(2, 128).sum(1, dtype=np.float64)),
        "matmul": ([2, 2], [16, 16], [a, b, np.zeros((32, 32), np.float32)], a @ b),
        "softmax": (2, 128, [rows, 0 * rows], e / e.sum(1, keepdims=True)),
        "histogram": (2, 128, [n, i[:16]], np.bincount(n, minlength=16)),
        "count": (2, 128, [n, i[:16]], np.bincount(n, minlength=16)),
        "warp_scan": (8, 32, [n, i], np.cumsum(n.reshape(8, 32), 1).reshape(-1)),
        "last": (4, 64, [n, i[:4], i[:1], i[:1]], n.sum(keepdims=True)),
        "stencil": (2, 128, [x, f], padded[:-2] + padded[1:-1] + padded[2:]),
    }
    for racy in (False, True):
        functions = kernels(racy)
        for name, (grid, block, arrays, result) in cases.items():
            kinds = [{"f": float32, "i": int32}[v.dtype.char] for v in arrays]
            types = tuple(
                k[:, ::1] if v.ndim == 2 else k[::1] for k, v in zip(kinds, arrays, strict=True)
            )
            text, _ = cuda.compile_ptx(functions[name], types, cc=(9, 0), lineinfo=False)
            file = f"{name}{'_racy' if racy else ''}.ptx"
            (launches.folder / file).write_text(text)
            given = [p for at, v in enumerate(arrays) for p in _array(at, v)]
            launches.add(file, "", grid, block, given,
                         {} if racy else {f"&{len(arrays) - 1}": result}, racy=racy,
                         held=arrays, tolerance=1e-4)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
