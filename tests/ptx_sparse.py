"""Kernels of sparse and of scaled products, their operands, and what NumPy says they leave.

A's elements are drawn with their places, written out with zeros, and multiplied; how registers and
metadata hold them is spelt out here a lane and an element at a time, as PTX ISA 9.0, sections
9.7.14.3, 9.7.14.6 and 9.7.15.6, has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["SCALED", "SPARSE", "WGMMA", "Case", "metadata", "scaled", "sparse", "warpgroup"]

Array = NDArray[Any]
_TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
          "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8,
          "u8": np.uint8, "s32": np.int32}  # fmt: skip
_NARROW = {"e2m1": (2, 1), "e2m3": (2, 3), "e3m2": (3, 2)}
_ORDERED = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110)
_TURNED = (0b0001, 0b0010, 0b0011, 0b0110, 0b0111, 0b1011)

SPARSE = [
    ("m16n8k16", "f16", "f16", "f16", 3), ("m16n8k16", "f32", "bf16", "bf16", 0),
    ("m16n8k32", "f32", "f16", "f16", 1), ("m16n8k32", "f16", "f16", "f16", 0),
    ("m16n8k8", "f32", "tf32", "tf32", 2), ("m16n8k16", "f32", "tf32", "tf32", 1),
    ("m16n8k64", "f32", "e4m3", "e5m2", 0), ("m16n8k64", "s32", "s8", "u8", 0),
]  # fmt: skip
"""Shape, types of the sums, of A and of B, and the sparsity selector."""
WGMMA = [("f16", "f32", 16, 1), ("f16", "f16", 8, 0), ("bf16", "f32", 24, 0),
         ("tf32", "f32", 8, 1), ("e5m2", "f16", 32, 0), ("u8", "s32", 24, 0)]  # fmt: skip
"""Type of A and B, type of the sums, columns, and the sparsity selector."""
SCALED = [
    *(("mxf8f6f4", "m16n8k32", a, b, "ue8m0", 1) for a, b in
      (("e4m3", "e2m1"), ("e2m1", "e3m2"), ("e2m3", "e5m2"))),
    ("mxf4", "m16n8k64", "e2m1", "e2m1", "ue8m0", 2),
    ("mxf4nvf4", "m16n8k64", "e2m1", "e2m1", "ue8m0", 2),
    ("mxf4nvf4", "m16n8k64", "e2m1", "e2m1", "ue4m3", 4),
    *(("f8f6f4", "m16n8k32", a, b, "", 0) for a, b in (("e2m1", "e2m3"), ("e3m2", "e4m3"))),
]  # fmt: skip
"""Kind, shape, types of A and B, type of the scales, and how many a row has."""


@dataclass(frozen=True)
class Case:
    """A kernel ``k(x, y)``, the words it reads, and what it leaves: (threads, sums of each)."""

    text: str
    x: Array
    y: Array


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> tuple[Array, Array]:
    """Return small numbers, and the bits of a type that stand for them."""
    if kind in _NARROW:
        exponent, fraction = _NARROW[kind]
        codes = rng.integers(0, 1 << 1 + exponent + fraction, shape)
        e, f = codes >> fraction & (1 << exponent) - 1, codes & (1 << fraction) - 1
        size = np.where(e == 0, 2.0 * f, np.ldexp(1.0 * f + (1 << fraction), e))
        size = size / 2.0 ** (fraction + 2 ** (exponent - 1) - 1)
        return np.where(codes >> exponent + fraction & 1, -size, size), codes.astype(np.uint8)
    dtype = np.dtype(_TYPES[kind])
    values = rng.integers(0 if kind == "u8" else -4, 5, shape).astype(np.float64)
    return values, values.astype(dtype).view(f"u{dtype.itemsize}")


def _bytes(bits: Array, kind: str, packed: bool) -> Array:
    """Return elements as they lie in registers, along the last axis."""
    if packed:
        bits = bits[..., ::2] | bits[..., 1::2] << 4
    elif kind == "e2m1":
        bits = bits << 2
    held: Array = np.ascontiguousarray(bits).view(np.uint8)
    return held


def _places(rng: np.random.Generator, rows: int, chunks: int, kind: str, ordered: bool) -> Array:
    """Return four bits for each chunk of each row."""
    if kind == "tf32":
        allowed: tuple[int, ...] = (0b0100, 0b1110)
    else:
        allowed = _ORDERED if ordered else _ORDERED + _TURNED
    places: Array = np.array(allowed)[rng.integers(0, len(allowed), (rows, chunks))]
    return places


def _spread(stored: Array, places: Array, kind: str) -> Array:
    """Return rows with their zeros."""
    rows, chunks = places.shape
    wide = 2 if kind == "tf32" else 4
    full = np.zeros((rows, wide * chunks))
    for row in range(rows):
        for chunk in range(chunks):
            bits = int(places[row, chunk])
            if kind == "tf32":
                full[row, 2 * chunk + (bits == 0b1110)] = stored[row, chunk]
                continue
            for n, at in enumerate((bits & 3, bits >> 2)):
                full[row, 4 * chunk + at] = stored[row, 2 * chunk + n]
    return full


def metadata(places: Array, kind: str, selector: int) -> Array:
    """Return the words of 32 lanes for 16 rows; those of lanes that are not asked mean nothing."""
    words = np.zeros(32, np.uint32)
    chunks = places.shape[1]
    for row in range(16):
        for chunk in range(chunks):
            bits = int(places[row, chunk])
            if kind in ("f16", "bf16", "tf32"):
                lane = 4 * (row % 8) + selector * chunks // 4 + chunk // 4
                words[lane] |= np.uint32(bits << 4 * (chunk % 4) + (16 if row >= 8 else 0))
            else:
                lane = 4 * (row % 8) + (1 if row >= 8 else 0) + (2 if chunk >= 8 else 0)
                words[lane] |= np.uint32(bits << 4 * (chunk % 8))
    return words


def _left(held: Array, size: int) -> Array:
    """Return A's bytes (16, row) as the registers of 32 lanes, ``size`` a register's bytes: 4."""
    words = np.ascontiguousarray(held).view(np.uint32)
    count = 2 * words.shape[1] // 4
    return np.array([[words[lane // 4 + 8 * (n % 2), lane % 4 + size * (n // 2)]
                      for n in range(count)] for lane in range(32)], np.uint32)  # fmt: skip


def _right(held: Array) -> Array:
    """Return B's bytes (8 columns, row after row) as the registers of 32 lanes."""
    words = np.ascontiguousarray(held).view(np.uint32)
    return np.array([[words[lane // 4, lane % 4 + 4 * n] for n in range(words.shape[1] // 4)]
                     for lane in range(32)], np.uint32)  # fmt: skip


def _sums(values: Array) -> Array:
    """Return C or D (rows, columns), 16 rows a warp, as each lane has it: (threads, sums)."""
    rows, columns = values.shape
    return np.array([[values[16 * (t // 32) + t % 32 // 4 + 8 * (n // 2 % 2),
                             8 * (n // 4) + 2 * (t % 4) + n % 2] for n in range(columns // 2)]
                     for t in range(2 * rows)])  # fmt: skip


def _listed(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{n}" for n in range(first, first + count)) + "}"


def _warp(opcode: str, target: str, operands: tuple[Array, ...], tail: str, y: Array) -> Case:
    """Return the kernel of one product of a warp: A, B, C, then words that ``tail`` names."""
    names, first = [], 0
    for held in operands:
        names.append(_listed(first, held.shape[1]))
        first += held.shape[1]
    count = first - sum(held.shape[1] for held in operands[3:])
    loads = "".join(f"ld.global.b32 %r{n}, [%a+{4 * n}];" for n in range(first))
    results = _listed(first, operands[2].shape[1])
    stores = "".join(f"st.global.b32 [%b+{4 * n}], %r{first + n};"
                     for n in range(operands[2].shape[1]))  # fmt: skip
    text = f""".version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {{
  .reg .b32 %r<{first + 4}>, %t; .reg .b64 %a, %b;
  ld.param.u64 %a, [x]; ld.param.u64 %b, [y]; mov.u32 %t, %tid.x;
  mad.wide.u32 %a, %t, {4 * first}, %a; mad.wide.u32 %b, %t, {4 * operands[2].shape[1]}, %b;
  {loads}
  {opcode} {results}, {names[0]}, {names[1]}, {names[2]}{tail.format(*range(count, first))};
  {stores}
  ret;
}}
"""
    return Case(text, np.concatenate(operands, 1), y)


def _operands(c: Array, a: Array, b: Array, to: str) -> tuple[Array, Array]:
    """Return C as 32 lanes hold it, and D."""
    held, exact = (_sums(v).astype(_TYPES[to]) for v in (c, a @ b + c))
    return held.view(np.uint32), exact


def sparse(
    shape: str, to: str, a_kind: str, b_kind: str, selector: int, *, ordered: bool, seed: int = 0
) -> Case:
    """Return a product of a warp with a sparse A, at random places."""
    rng, depth = np.random.default_rng(seed), int(shape.rpartition("k")[2])
    a, a_bits = _drawn(rng, (16, depth // 2), a_kind)
    b, b_bits = _drawn(rng, (8, depth), b_kind)
    places = _places(rng, 16, depth // (2 if a_kind == "tf32" else 4), a_kind, ordered)
    c = rng.integers(-9, 9, (16, 8)).astype(np.float64)
    held, y = _operands(c, _spread(a, places, a_kind), b.T, to)
    words = metadata(places, a_kind, selector)[:, None]
    of_a, of_b = _left(_bytes(a_bits, a_kind, False), 4), _right(_bytes(b_bits, b_kind, False))
    name = "sp::ordered_metadata" if ordered else "sp"
    opcode = f"mma.{name}.sync.aligned.{shape}.row.col.{to}.{a_kind}.{b_kind}.{to}"
    return _warp(opcode, "sm_90a", (of_a, of_b, held, words), f", %r{{}}, {selector}", y)


def scaled(
    kind: str, shape: str, a_kind: str, b_kind: str, of: str, count: int, *, ids: str = "",
    seed: int = 0,
) -> Case:  # fmt: skip
    """Return a product of a warp with types of 4 and 6 bits, and with scales if there are some.

    ``ids`` are the bytes and threads that give A's and B's scales: ``{2, 1} {0, 3}``.
    """
    rng, depth = np.random.default_rng(seed), int(shape.rpartition("k")[2])
    a, a_bits = _drawn(rng, (16, depth), a_kind)
    b, b_bits = _drawn(rng, (8, depth), b_kind)
    c = rng.integers(-9, 9, (16, 8)).astype(np.float64)
    packed = kind.startswith("mxf4")
    of_a, of_b = _left(_bytes(a_bits, a_kind, packed), 4), _right(_bytes(b_bits, b_kind, packed))
    start = f"mma.sync.aligned.{shape}.row.col.kind::{kind}"
    if not count:
        held, y = _operands(c, a, b.T, "f32")
        opcode = f"{start}.f32.{a_kind}.{b_kind}.f32"
        return _warp(opcode, "sm_120a", (of_a, of_b, held), "", y)
    ids = ids or ("{0, 1} {0, 3}" if count == 4 else "{2, 1} {2, 3}")
    a_byte, a_thread, b_byte, b_thread = map(int, re.findall(r"\d", ids))
    low, high = (56, 72) if of == "ue4m3" else (125, 130)
    codes = [rng.integers(low, high, (n, count)) for n in (16, 8)]
    sizes = [(1 + (v & 7) / 8) * 2.0 ** ((v >> 3) - 7) if of == "ue4m3" else 2.0 ** (v - 127)
             for v in codes]  # fmt: skip
    words = np.full((2, 32, 4), 255 if of == "ue8m0" else 127, np.uint8)  # NaN, unless asked for
    for row in range(16):
        lane = 4 * (row % 8) + 2 * a_thread + (1 if row >= 8 else 0)
        words[0, lane, a_byte : a_byte + count] = codes[0][row]
    for column in range(8):
        words[1, 4 * column + b_thread, b_byte : b_byte + count] = codes[1][column]
    a, b = (v * np.repeat(s, depth // count, 1) for v, s in zip((a, b), sizes, strict=True))
    held, y = _operands(c, a, b.T, "f32")
    opcode = f"{start}.block_scale.scale_vec::{count}X.f32.{a_kind}.{b_kind}.f32.{of}"
    first, second = re.findall(r"\{.*?\}", ids)
    tail = f", %r{{}}, {{{first}}}, %r{{}}, {{{second}}}"
    return _warp(opcode, "sm_120a", (of_a, of_b, held, *words.view(np.uint32)), tail, y)


def _cores(held: Array) -> Array:
    """Return rows of bytes as wgmma's cores of 8 rows by 16 B, those of 8 rows one by one."""
    rows, width = held.shape
    return held.reshape(rows // 8, 8, width // 16, 16).swapaxes(1, 2).reshape(-1)


def warpgroup(kind: str, to: str, columns: int, selector: int, *, seed: int = 0) -> Case:
    """Return a product of a warpgroup with a sparse A in shared memory, D = A B, then D += A B."""
    rng, width = np.random.default_rng(seed), np.dtype(_TYPES[kind]).itemsize
    depth = 64 // width
    a, a_bits = _drawn(rng, (64, depth // 2), kind)
    b, b_bits = _drawn(rng, (columns, depth), kind)
    places = _places(rng, 64, depth // (2 if kind == "tf32" else 4), kind, False)
    words = [metadata(places[16 * w : 16 * w + 16], kind, selector) for w in range(4)]
    image = np.concatenate([_cores(_bytes(v, kind, False)) for v in (a_bits, b_bits)])
    y = _sums(2 * _spread(a, places, kind) @ b.T).astype(_TYPES[to])
    count = y.shape[1] // (2 if to == "f16" else 1)
    at = image.size
    flags = ", 1, 1, 0, 0" if width == 2 else "" if to == "s32" else ", 1, 1"
    kinds = f"{kind}.{kind}"
    opcode = f"wgmma.mma_async.sp.sync.aligned.m64n{columns}k{depth}.{to}.{kinds}"
    product = f"{opcode} {_listed(8, count)}, %da, %db, %r4, {selector}"
    stores = "".join(f"st.global.b32 [%b+{4 * n}], %r{8 + n};" for n in range(count))
    text = f""".version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {{
  .reg .b32 %r<{count + 8}>, %t; .reg .b64 %a, %b, %da, %db; .reg .pred %p, %no, %yes;
  .shared .align 1024 .b8 held[{at}];
  ld.param.u64 %a, [x]; ld.param.u64 %b, [y]; mov.u32 %t, %tid.x; mov.u32 %r0, held;
  mad.wide.u32 %b, %t, {4 * count}, %b; mad.wide.u32 %da, %t, 4, %a;
  ld.global.b32 %r4, [%da+{at}];
  mad.lo.u32 %r1, %t, 4, %r0; add.u32 %r2, %r0, {at};
L: ld.global.b32 %r3, [%da]; st.shared.b32 [%r1], %r3; add.u64 %da, %da, 512;
  add.u32 %r1, %r1, 512; setp.lt.u32 %p, %r1, %r2; @%p bra L;
  fence.proxy.async.shared::cta; bar.sync 0;
  shr.u32 %r0, %r0, 4; cvt.u64.u32 %da, %r0;
  add.u64 %db, %da, {2048 >> 4 | 8 << 16 | 4 * 8 << 32:#x};
  add.u64 %da, %da, {8 << 16 | 2 * 8 << 32:#x};
  setp.ne.u32 %no, 0, 0; setp.eq.u32 %yes, 0, 0;
  wgmma.fence.sync.aligned;
  {product}, %no{flags};
  {product}, %yes{flags};
  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
  {stores}
  ret;
}}
"""
    return Case(text, np.concatenate([image.view(np.uint32), *words]), y)
