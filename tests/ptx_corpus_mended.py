"""Kernels of nvcc that the interpreter once ran wrong or not at all, with what each computes.

``tests/ptx/corpus_mended.cu`` has them; cases are as in :mod:`tests.ptx_corpus`.  Beside them are
kernels of PTX: an approximation of all numbers of 16 bits, and the registers of shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.ptx_corpus import F16, F64, I32, I64, Array, Case, rng_of

__all__ = ["APPROXIMATIONS", "CASES", "REGISTERS", "every_number", "registers"]


def _folded(v: list[int], k: int, n: int) -> int:
    own = [v[i] + k for i in range(4)]
    if k == n:
        return own[k & 3]
    s = 0
    for i in range(2):
        own[i] += i
        s += _folded(own, k + 1, n)
    return s + own[0]


def _odd(v: list[int], n: int) -> int:
    own = [v[i] * 2 + n for i in range(3)]
    return (_even(own, n - 1) if n else 0) + own[n % 3]


def _even(v: list[int], n: int) -> int:
    own = [v[i % 3] + i for i in range(5)]
    return (_odd(own, n - 1) if n else 0) + own[n % 5]


def _recursive(x: Array, y: Array) -> Mapping[int, Any]:
    return {1: [_folded(x[i : i + 4].tolist(), 0, 3) for i in range(len(y))]}


def _mutual(x: Array, y: Array) -> Mapping[int, Any]:
    return {1: [_even(x[i : i + 3].tolist(), int(x[i]) & 7) for i in range(len(y))]}


def _groups(x: Array, y: Array) -> Mapping[int, Any]:
    tiles = x.reshape(2, 64)
    sums = np.repeat(tiles.sum(1), 64)
    return {1: [*sums, *(np.cumsum(tiles, 1) - tiles).reshape(-1)]}


def _halves(x: Array, y: Array) -> Mapping[int, Any]:
    a = x.astype(F64)
    b = np.abs(a)
    rows = [np.exp(a), np.log2(b), 1 / np.sqrt(b), np.sin(a), np.trunc(a), np.tanh(a)]
    return {1: np.concatenate(rows)}


def _ints(name: str, n: int, m: int) -> list[Any]:
    return [rng_of(name).integers(0, 100, n).astype(I32), np.zeros(m, I32)]


CASES: dict[str, Case] = {
    "recursive_arrays": Case(
        "corpus_mended", "recursive_arrays", 1, 32,
        lambda: _ints("recursive_arrays", 36, 32), _recursive,
    ),
    "mutual_arrays": Case(
        "corpus_mended", "mutual_arrays", 1, 96, lambda: _ints("mutual_arrays", 98, 96), _mutual
    ),
    "groups_of_warps": Case(
        "corpus_mended", "groups_of_warps", 1, 128,
        lambda: _ints("groups_of_warps", 128, 256), _groups,
    ),
    "halves": Case(
        "corpus_mended", "halves", 1, 32,
        lambda: [rng_of("halves").uniform(-4, 4, 64).astype(F16), np.zeros(384, F16)],
        _halves, tolerance=2**-9, least=1.0,
    ),
    "clocks": Case(
        "corpus_mended", "clocks", 1, 64, lambda: [np.zeros(128, I64)], lambda y: {},
        holds=lambda before, after: bool((after.reshape(-1, 2) > [0, 10_000]).all()),
    ),
}  # fmt: skip

APPROXIMATIONS = {
    "tanh.approx.f16": 2**-10.987, "tanh.approx.bf16": 2**-8,
    "ex2.approx.f16": 2**-9.9, "ex2.approx.ftz.bf16": 2**-7,
}  # fmt: skip
"""The greatest error that PTX allows: absolute of tanh, relative of ex2."""
REGISTERS = (
    "total_smem_size", "aggr_smem_size", "dynamic_smem_size", "reserved_smem_offset_begin",
    "reserved_smem_offset_cap", "reserved_smem_offset_end", "reserved_smem_offset_0",
    "reserved_smem_offset_1",
)  # fmt: skip
"""Those that ``registers`` stores, in this order; what the driver sets comes last."""


def every_number(opcode: str, target: str) -> str:
    """Return a kernel ``k`` that replaces each of the 16-bit numbers at ``y``, or pairs of them."""
    width, kind = (4, "b32") if opcode.endswith("x2") else (2, "b16")
    return f""".version 9.0\n.target {target}\n.address_size 64
    .visible .entry k(.param .u64 y) {{
      .reg .u64 %d0; .reg .u32 %r<3>; .reg .{kind} %h;
      ld.param.u64 %d0, [y]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
      mad.lo.u32 %r0, %r1, 1024, %r0; mad.wide.u32 %d0, %r0, {width}, %d0;
      ld.global.{kind} %h, [%d0]; {opcode} %h, %h; st.global.{kind} [%d0], %h; ret; }}"""


def registers(target: str) -> str:
    """Return a kernel ``k`` with 4 B of static shared memory; it stores its registers at ``y``."""
    stores = "".join(
        f"mov.u32 %r, %{r}; st.global.u32 [%d+{4 * n}], %r;" for n, r in enumerate(REGISTERS)
    )
    return f""".version 9.0\n.target {target}\n.address_size 64
    .visible .entry k(.param .u64 y) {{ .reg .u64 %d; .reg .u32 %r; .shared .b32 held;
      ld.param.u64 %d, [y]; st.shared.u32 [held], 1; {stores} ret; }}"""
