"""Layouts: functions from coordinates to offsets, and what a warp's access through one costs.

A layout ``shape:stride`` is a pair of congruent nested tuples of ints.  With leaves ``s_j:d_j`` and
the flat index ``i = c_0 + s_0 (c_1 + s_1 (c_2 + ...))``, leftmost mode fastest, it is the function

    layout(i) = swizzle(c_0 d_0 + c_1 d_1 + c_2 d_2 + ...),      0 <= i < size = s_0 s_1 s_2 ...

where ``swizzle`` is the identity unless one is given.  A stride of 0 is a broadcast.  Layouts
compose: with ``tv`` a thread-value layout ``(lane, value) -> coordinate`` and ``memory`` one from
coordinates to offsets, ``compose(memory, tv)`` says which offset each lane touches, and that decides
coalescing, bank conflicts and vector width.

>>> tile = row_major(32, 32)                             # f32 in shared memory
>>> column = compose(tile, Layout((32, 32), (1, 32)))    # lane i, step j: element (i, j)
>>> print(column, bank_wavefronts(column.in_bytes(4).offsets().reshape(-1, 32), 4)[0])
(32,32):(32,1) 32
>>> swizzled = Layout((32, 32), (32, 1), swizzle=Swizzle(5, 0, 5))
>>> print(swizzled, bank_wavefronts(swizzled.in_bytes(4).offsets().reshape(-1, 32), 4)[0])
(32,32):(32,1) o Sw<5,0,5> 1

Source: CUTLASS, ``media/docs/cpp/cute/01_layout.md`` and ``02_layout_algebra.md``, with one change:
where CuTe's ``composition`` returns a layout that is not the composed function (a carry between
modes, or an offset past the end), ``compose`` raises ``LayoutError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import TinyGpuError

__all__ = [
    "Coordinate",
    "IntTuple",
    "Layout",
    "LayoutError",
    "Swizzle",
    "bank_wavefronts",
    "coalesce",
    "column_major",
    "complement",
    "compose",
    "divide",
    "inverse",
    "is_injective",
    "is_surjective_onto",
    "join",
    "left_inverse",
    "product",
    "row_major",
    "sectors",
    "widest_vector",
]

Integers: TypeAlias = NDArray[np.integer[Any]]
IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"
Coordinate: TypeAlias = "int | Integers | tuple[Coordinate, ...]"
Modes: TypeAlias = tuple[tuple[int, int], ...]

WARP_LANES, BANKS, BANK_BYTES = 32, 32, 4  # spec: CUDA C++ Programming Guide, "Shared Memory"


class LayoutError(TinyGpuError, ValueError):
    """A layout that is no layout, or an operation on layouts that has no layout for its result."""


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``x -> x ^ ((x & mask) >> shift)``, the ``mask`` being ``bits`` ones from ``base + shift`` up.

    A negative shift moves the bits from ``base`` up to ``base - shift``.  An involution, and linear
    over GF(2).  Raises LayoutError unless ``|shift| >= bits``.  Source: CUTLASS, ``swizzle.hpp``.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise LayoutError(f"swizzle {self}: needs bits >= 0, base >= 0 and |shift| >= bits")

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    @overload
    def __call__(self, offset: int) -> int: ...
    @overload
    def __call__(self, offset: Integers) -> NDArray[np.int64]: ...
    @overload
    def __call__(self, offset: int | Integers) -> int | NDArray[np.int64]: ...
    def __call__(self, offset: int | Integers) -> int | NDArray[np.int64]:
        """Swizzle a non-negative offset, or an array of them."""
        x: Any = np.asarray(offset, np.int64) if isinstance(offset, np.ndarray) else offset
        masked = x & ((1 << self.bits) - 1) << (self.base + max(0, self.shift))
        moved = masked >> self.shift if self.shift >= 0 else masked << -self.shift
        return cast("int | NDArray[np.int64]", x ^ moved)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout; see the module's definition.  Offsets count what the user says: elements or bytes.

    Raises LayoutError unless shape and stride are congruent, shapes >= 1 and strides >= 0.
    """

    shape: IntTuple
    stride: IntTuple
    swizzle: Swizzle | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for s, d in _leaves(self.shape, self.stride):
            if s < 1 or d < 0:
                raise LayoutError(f"layout {self}: mode {s}:{d}; needs shape >= 1, stride >= 0")

    def __str__(self) -> str:
        suffix = f" o {self.swizzle}" if self.swizzle else ""
        return f"{_text(self.shape)}:{_text(self.stride)}{suffix}"

    @overload
    def __call__(self, coord: IntTuple) -> int: ...
    @overload
    def __call__(self, coord: Integers) -> NDArray[np.int64]: ...
    @overload
    def __call__(self, coord: Coordinate) -> int | NDArray[np.int64]: ...
    def __call__(self, coord: Coordinate) -> int | NDArray[np.int64]:
        """Return the offset(s) at a flat index, or at a tuple with one coordinate for each mode.

        A coordinate of a nested mode may be flat in its turn; arrays broadcast against each other.
        Raises LayoutError for a coordinate of the wrong structure or out of range.
        """
        offset = _offset(coord, self.shape, self.stride)
        return self.swizzle(offset) if self.swizzle else offset

    def __getitem__(self, mode: int) -> Layout:
        """Return one top-level mode, without the swizzle."""
        if not isinstance(self.shape, tuple) or not isinstance(self.stride, tuple):
            return Layout((self.shape,)[mode], (self.stride,)[mode])
        return Layout(self.shape[mode], self.stride[mode])

    @property
    def flat_modes(self) -> Modes:
        """The leaves ``(shape, stride)`` from left to right."""
        return tuple(_leaves(self.shape, self.stride))

    @property
    def rank(self) -> int:
        """How many top-level modes it has."""
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return prod(s for s, _ in self.flat_modes)

    @property
    def cosize(self) -> int:
        """Its largest offset plus one (with a swizzle, found by enumeration)."""
        if self.swizzle:
            return int(self.offsets().max()) + 1
        return 1 + sum((s - 1) * d for s, d in self.flat_modes)

    def offsets(self) -> NDArray[np.int64]:
        """Return every offset, in the order of the flat index: shape (size,)."""
        return self(np.arange(self.size))

    def in_bytes(self, element_bytes: int) -> Layout:
        """Return the layout with offsets in bytes, given one with offsets in elements.

        Raises LayoutError for a swizzle of elements whose width is not a power of two.
        """
        swizzle = self.swizzle
        if swizzle:
            if element_bytes & (element_bytes - 1):
                raise LayoutError(f"layout {self}: swizzled, but {element_bytes} B is no power of 2")
            swizzle = replace(swizzle, base=swizzle.base + element_bytes.bit_length() - 1)
        return Layout(self.shape, _scale(self.stride, element_bytes), swizzle=swizzle)


def row_major(*shape: int) -> Layout:
    """Return the compact layout whose last mode has stride 1."""
    return Layout(shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))))


def column_major(*shape: int) -> Layout:
    """Return the compact layout whose first mode has stride 1: the identity on flat indices."""
    return Layout(shape, tuple(prod(shape[:i]) for i in range(len(shape))))


def join(*layouts: Layout) -> Layout:
    """Return the layout with these modes: ``join(f, g)((i, j)) = f(i) + g(j)``.

    Raises LayoutError for a swizzled one; swizzle the result.
    """
    for layout in layouts:
        _plain(layout, "join")
    return Layout(tuple(f.shape for f in layouts), tuple(f.stride for f in layouts))


def coalesce(layout: Layout) -> Layout:
    """Return the same function of the flat index with the fewest modes."""
    return replace(_from_modes(_merge(layout.flat_modes)), swizzle=layout.swizzle)


def compose(outer: Layout, inner: Layout) -> Layout:
    """Return ``i -> outer(inner(i))``, with the top-level structure of ``inner``.

    Each leaf ``n:d`` of ``inner`` walks the digits of ``outer``'s mixed radix (its coalesced shape):
    it enters one at a step that divides it, and fills every digit but its last.  The leaves together
    may not carry.  Raises LayoutError where that fails or ``inner`` is swizzled.
    """
    _plain(inner, "compose (inner)")
    radix = _merge(outer.flat_modes)
    reached = [0] * len(radix)

    def leaf(n: int, d: int) -> tuple[IntTuple, IntTuple]:
        if n == 1 or d == 0:
            return n, 0
        parts, rest, step = [], n, d
        for digit, (s, stride) in enumerate(radix):
            if rest == 1:
                break
            if step % s == 0:
                step //= s
                continue
            if (rest - 1) * step < s:
                count = rest
            elif s % step == 0 and rest % (s // step) == 0:
                count = s // step
            else:
                raise LayoutError(
                    f"compose: {n}:{d} of {inner} needs mode {s}:{stride} of {outer} at step {step}; "
                    f"got {rest} steps, allowed are multiples of its share; choose sizes that divide"
                )
            parts.append((count, step * stride))
            reached[digit] += (count - 1) * step
            rest, step = rest // count, 1
        if rest > 1 or any(r >= s for r, (s, _) in zip(reached, radix, strict=True)):
            raise LayoutError(
                f"compose: {inner} at mode {n}:{d} leaves or carries between the modes of {outer}, "
                f"of size {outer.size}; its leaves must address disjoint digits"
            )
        result = _from_modes(tuple(parts))
        return result.shape, result.stride

    def walk(shape: IntTuple, stride: IntTuple) -> tuple[IntTuple, IntTuple]:
        if isinstance(shape, tuple) and isinstance(stride, tuple):
            pairs = [walk(s, d) for s, d in zip(shape, stride, strict=True)]
            return tuple(s for s, _ in pairs), tuple(d for _, d in pairs)
        return leaf(cast("int", shape), cast("int", stride))

    shape, stride = walk(inner.shape, inner.stride)
    return Layout(shape, stride, swizzle=outer.swizzle)


def complement(layout: Layout, size: int) -> Layout:
    """Return the layout of what ``layout`` skips: ``n = a + b`` uniquely, for every n in [0, size).

    Here a is an offset of ``layout``, b one of the result, which is ordered and coalesced; modes of
    stride 0 count for nothing.  Raises LayoutError where a stride is no multiple of the extent of
    the smaller ones, so that no layout does it.
    """
    _plain(layout, "complement")
    gaps, extent = [], 1
    for d, s in sorted((d, s) for s, d in _merge(layout.flat_modes) if d > 0):
        if d % extent:
            raise LayoutError(
                f"complement: {layout} has stride {d} over an extent of {extent}; "
                f"allowed are its multiples"
            )
        gaps.append((d // extent, extent))
        extent = s * d
    gaps.append((-(-size // extent), extent))
    return _from_modes(_merge(gaps))


def divide(layout: Layout, tiler: Layout) -> Layout:
    """Return ``layout`` as ((tile), (rest)): ``compose(layout, (tiler, its complement))``.

    Raises LayoutError where the tiler does not divide the layout.  CuTe: ``logical_divide``.
    """
    return compose(layout, join(tiler, complement(tiler, layout.size)))


def product(block: Layout, tiler: Layout) -> Layout:
    """Return (block, copies): ``block`` repeated, disjointly, in the order that ``tiler`` gives.

    A swizzle of ``block`` applies to the whole.  CuTe: ``logical_product``.
    """
    plain = replace(block, swizzle=None)
    copies = compose(complement(plain, plain.size * tiler.cosize), tiler)
    return replace(join(plain, copies), swizzle=block.swizzle)


def inverse(layout: Layout) -> Layout:
    """Return the right inverse: ``layout(inverse(layout)(k)) = k`` for every k that it takes.

    It takes the run [0, n) that whole modes of ``layout`` cover.  For a bijection onto [0, size)
    that is everything, and it is the left inverse too.  Raises LayoutError for a swizzled one.
    """
    _plain(layout, "inverse")
    modes, index = [], 1
    for s, d in _merge(layout.flat_modes):
        modes.append((d, s, index))
        index *= s
    run, extent = [], 1
    for d, s, index in sorted(modes):
        if d == extent:
            run.append((s, index))
            extent *= s
    return _from_modes(_merge(run))


def left_inverse(layout: Layout) -> Layout:
    """Return g with ``g(layout(i)) = i``, for an injective layout that has a complement.

    Raises LayoutError for any other.
    """
    if not is_injective(layout):
        raise LayoutError(f"left_inverse: {layout} is not injective; inverse gives a right inverse")
    return inverse(join(layout, complement(layout, layout.cosize)))


def is_injective(layout: Layout) -> bool:
    """Return whether distinct coordinates have distinct offsets."""
    extent = 1
    for d, s in sorted((d, s) for s, d in _merge(layout.flat_modes)):
        if d < extent:
            return len(np.unique(layout.offsets())) == layout.size
        extent += (s - 1) * d
    return True


def is_surjective_onto(layout: Layout, n: int) -> bool:
    """Return whether the offsets are exactly [0, n)."""
    return layout.size >= n and np.array_equal(np.unique(layout.offsets()), np.arange(n))


def bank_wavefronts(byte_offsets_of_lanes: Integers, access_bytes: int) -> NDArray[np.int64]:
    """Return how many wavefronts a warp's shared-memory access takes: (..., 32) -> (...).

    Banks are 32 of 4 B, and lanes that touch one word share it.  Accesses of 8 B are served a half
    warp at a time and of 16 B a quarter: the sum, over these phases, of the largest number of
    distinct words in one bank.  Raises LayoutError unless there are 32 aligned lanes of 1 to 16 B.
    Source: CUDA C++ Programming Guide, "Shared Memory"; the phases: Nsight Compute's wavefronts.
    """
    offsets = _accesses(byte_offsets_of_lanes, access_bytes)
    if offsets.shape[-1] != WARP_LANES:
        raise LayoutError(f"bank_wavefronts: {offsets.shape[-1]} lanes; allowed are {WARP_LANES}")
    width = max(1, access_bytes // BANK_BYTES)
    words = offsets[..., None] // BANK_BYTES + np.arange(width)
    words = np.sort(words.reshape(-1, WARP_LANES), axis=-1)  # one row a phase: 32 / width lanes
    row, column = np.nonzero(np.diff(words, axis=-1, prepend=-1))
    bank = row * BANKS + words[row, column] % BANKS
    counts = np.bincount(bank, minlength=len(words) * BANKS).reshape(-1, width, BANKS)
    return counts.max(axis=-1).sum(axis=-1).astype(np.int64).reshape(offsets.shape[:-1])


def sectors(
    byte_offsets_of_lanes: Integers, access_bytes: int, *, sector_bytes: int = 32
) -> NDArray[np.int64]:
    """Return how many distinct sectors the lanes of an access touch: (..., lanes) -> (...).

    Raises LayoutError for an access that is misaligned, wider than 16 B or than a sector.
    Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
    """
    if access_bytes > sector_bytes:
        raise LayoutError(f"sectors: access of {access_bytes} B; allowed are {sector_bytes} B")
    touched = np.sort(_accesses(byte_offsets_of_lanes, access_bytes) // sector_bytes, axis=-1)
    return np.count_nonzero(np.diff(touched, axis=-1, prepend=-1), axis=-1).astype(np.int64)


def widest_vector(layout: Layout, element_bytes: int, *, max_bytes: int = 16) -> int:
    """Return the bytes of the widest vector access along the value mode, the last one.

    ``layout`` maps (lane, ..., value) to elements.  A vector of 2^k values is legal where each group
    of 2^k consecutive values of each lane is contiguous and starts at a multiple of 2^k elements;
    memory itself starts at a multiple of ``max_bytes``.
    Source: PTX ISA, "Addresses as Operands" (natural alignment) and "ld" (``.v2``, ``.v4``).
    """
    values = layout[-1].size if layout.rank else 1
    offsets = layout.offsets().reshape(values, -1).T
    count = 1
    while values % (2 * count) == 0 and 2 * count * element_bytes <= max_bytes:
        groups = offsets.reshape(len(offsets), -1, 2 * count)
        start = groups[..., :1]
        if np.any(start % (2 * count)) or np.any(groups - start != np.arange(2 * count)):
            break
        count *= 2
    return count * element_bytes


def _accesses(byte_offsets: Integers, access_bytes: int) -> NDArray[np.int64]:
    offsets = np.asarray(byte_offsets, np.int64)
    if access_bytes not in (1, 2, 4, 8, 16):
        raise LayoutError(f"access of {access_bytes} B; allowed are 1, 2, 4, 8 and 16 B")
    if np.any(offsets % access_bytes) or np.any(offsets < 0):
        raise LayoutError(f"access of {access_bytes} B: an offset is negative or no multiple of it")
    return offsets


def _leaves(shape: IntTuple, stride: IntTuple) -> Iterator[tuple[int, int]]:
    if isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride):
        for s, d in zip(shape, stride, strict=True):
            yield from _leaves(s, d)
    elif isinstance(shape, tuple) or isinstance(stride, tuple):
        raise LayoutError(f"layout: shape {_text(shape)} is not congruent to {_text(stride)}")
    else:
        yield shape, stride


def _offset(coord: Coordinate, shape: IntTuple, stride: IntTuple) -> int | NDArray[np.int64]:
    if isinstance(coord, tuple):
        if not isinstance(shape, tuple) or len(coord) != len(shape):
            raise LayoutError(f"coordinate of {len(coord)} parts for a mode of shape {_text(shape)}")
        assert isinstance(stride, tuple)
        parts = zip(coord, shape, stride, strict=True)
        return sum((_offset(c, s, d) for c, s, d in parts), start=0)
    modes = tuple(_leaves(shape, stride))
    size = prod(s for s, _ in modes)
    rest: Any = np.asarray(coord, np.int64) if isinstance(coord, np.ndarray) else coord
    if np.any(rest < 0) or np.any(rest >= size):
        raise LayoutError(f"coordinate {coord}: outside [0, {size}), the mode {_text(shape)}")
    offset = rest * 0
    for s, d in modes:
        offset = offset + rest % s * d
        rest = rest // s
    return cast("int | NDArray[np.int64]", offset)


def _merge(modes: Iterable[tuple[int, int]]) -> Modes:
    merged: list[tuple[int, int]] = []
    for s, d in modes:
        if s == 1:
            continue
        if merged and d == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * s, merged[-1][1])
        else:
            merged.append((s, d))
    return tuple(merged)


def _from_modes(modes: Modes) -> Layout:
    if len(modes) < 2:
        return Layout(*(modes[0] if modes else (1, 0)))
    return Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))


def _plain(layout: Layout, operation: str) -> None:
    if layout.swizzle:
        raise LayoutError(
            f"{operation}: {layout} is swizzled, and the result is no layout; "
            f"swizzle the outermost layout, or use the matrices of tinygpu.gf2"
        )


def _scale(stride: IntTuple, factor: int) -> IntTuple:
    return tuple(_scale(d, factor) for d in stride) if isinstance(stride, tuple) else stride * factor


def _text(tree: IntTuple) -> str:
    return f"({','.join(map(_text, tree))})" if isinstance(tree, tuple) else str(tree)
