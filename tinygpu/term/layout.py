"""Layouts: functions from coordinates to offsets, and their algebra.

A layout ``shape:stride`` is a pair of congruent nested tuples of ints.  With leaves ``s_j:d_j`` and
the flat index ``i = c_0 + s_0 (c_1 + s_1 (c_2 + ...))``, leftmost mode fastest, it is the function

    layout(i) = swizzle(c_0 d_0 + c_1 d_1 + c_2 d_2 + ...),      0 <= i < size = s_0 s_1 s_2 ...

where ``swizzle`` is the identity unless one is given.  A stride of 0 is a broadcast.  Layouts
compose: with ``owner`` a thread-value layout ``(lane, value) -> index`` and ``memory`` one from
indices to offsets, ``compose(memory, owner)`` says which offset each lane touches, and that decides
coalescing, bank conflicts and vector width (``tinygpu.term.access``).

>>> memory = row_major(2, 6)                    # index (r, c), r fastest, lies at 6 r + c
>>> owner = Layout((4, (3, 2)), (1, (4, 0)))    # 4 lanes, 3 values each, each value held twice
>>> print(memory, memory.offsets(), compose(memory, owner))
(2,6):(6,1) [ 0  6  1  7  2  8  3  9  4 10  5 11] ((2,2),(3,2)):((6,1),(2,0))
>>> print(complement(Layout(4, 2), 24), divide(memory, Layout(2, 2)), inverse(memory))
(2,3):(1,8) (2,(2,3)):(1,(6,2)) (6,2):(2,1)

Source: CUTLASS, ``media/docs/cpp/cute/01_layout.md`` and ``02_layout_algebra.md``, with one change:
where CuTe's ``composition`` returns a layout that is not the composed function (a carry between
modes, or an offset past the end), ``compose`` raises ``LayoutError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import TinyGpuError
from tinygpu.term.int_tuple import IntTuple, Modes, congruent, leaves, merge, scale, text

__all__ = [
    "Coordinate",
    "IntTuple",
    "Integers",
    "Layout",
    "LayoutError",
    "Swizzle",
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
]

Integers: TypeAlias = NDArray[np.integer[Any]]
Coordinate: TypeAlias = "int | Integers | tuple[Coordinate, ...]"
Offsets: TypeAlias = NDArray[np.int64]


class LayoutError(TinyGpuError, ValueError):
    """A layout that is no layout, or an operation on layouts that has no layout for its result."""


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``x -> x ^ ((x & mask) >> shift)``, the mask being ``bits`` ones from ``base + shift`` up.

    A negative shift moves the bits from ``base`` up to ``base - shift``.  An involution, and linear
    over GF(2).  Raises LayoutError unless ``|shift| >= bits``.  Source: CUTLASS, ``swizzle.hpp``.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        """Check that no bit is moved onto one that is read."""
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise LayoutError(f"swizzle {self}: needs bits >= 0, base >= 0 and |shift| >= bits")

    def __str__(self) -> str:
        """Return CuTe's spelling."""
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    @overload
    def __call__(self, offset: int) -> int: ...
    @overload
    def __call__(self, offset: Integers) -> Offsets: ...
    def __call__(self, offset: int | Integers) -> int | Offsets:
        """Swizzle a non-negative offset, or an array of them."""
        x: Any = np.asarray(offset, np.int64) if isinstance(offset, np.ndarray) else offset
        masked = x & ((1 << self.bits) - 1) << (self.base + max(0, self.shift))
        moved = masked >> self.shift if self.shift >= 0 else masked << -self.shift
        return cast("int | Offsets", x ^ moved)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout; see the module's definition.  Offsets count what the user says: elements or bytes.

    Raises LayoutError unless shape and stride are congruent, shapes >= 1 and strides >= 0.
    """

    shape: IntTuple
    stride: IntTuple
    swizzle: Swizzle | None = None

    def __post_init__(self) -> None:
        """Check that it is a layout."""
        if not congruent(self.shape, self.stride):
            raise LayoutError(f"layout {self}: shape and stride need the same nesting")
        for s, d in leaves(self.shape, self.stride):
            if s < 1 or d < 0:
                raise LayoutError(f"layout {self}: mode {s}:{d}; needs shape >= 1, stride >= 0")

    def __str__(self) -> str:
        """Return CuTe's spelling, as in ``(4,8):(8,1) o Sw<2,0,3>``."""
        suffix = f" o {self.swizzle}" if self.swizzle else ""
        return f"{text(self.shape)}:{text(self.stride)}{suffix}"

    @overload
    def __call__(self, coord: IntTuple) -> int: ...
    @overload
    def __call__(self, coord: Coordinate) -> int | Offsets: ...
    def __call__(self, coord: Coordinate) -> int | Offsets:
        """Return the offset(s) at a flat index, or at a tuple with one coordinate for each mode.

        A coordinate of a nested mode may be flat in its turn; arrays broadcast against each other.
        Raises LayoutError for a coordinate of the wrong structure or out of range.
        """
        offset = _offset(coord, self.shape, self.stride)
        return self.swizzle(offset) if self.swizzle else offset

    def __getitem__(self, mode: int) -> Layout:
        """Return one top-level mode: the layout where all other coordinates are 0."""
        shape, stride = (t if isinstance(t, tuple) else (t,) for t in (self.shape, self.stride))
        return Layout(shape[mode], stride[mode], self.swizzle)

    @property
    def flat_modes(self) -> Modes:
        """The leaves ``(shape, stride)`` from left to right."""
        return tuple(leaves(self.shape, self.stride))

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

    def offsets(self) -> Offsets:
        """Return every offset, in the order of the flat index: shape (size,)."""
        return cast("Offsets", self(np.arange(self.size)))

    def in_bytes(self, element_bytes: int) -> Layout:
        """Return the layout with offsets in bytes, given one with offsets in elements.

        Raises LayoutError for a swizzle of elements whose width is not a power of two.
        """
        swizzle = self.swizzle
        if swizzle:
            if element_bytes.bit_count() != 1:
                raise LayoutError(f"layout {self}: swizzled, needs 2^k bytes, not {element_bytes}")
            swizzle = replace(swizzle, base=swizzle.base + element_bytes.bit_length() - 1)
        return Layout(self.shape, scale(self.stride, element_bytes), swizzle)


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
    """Return the same function of the flat index with the fewest modes.

    Without swizzles it is a normal form: equal functions coalesce to equal layouts.
    """
    return replace(_from_modes(layout.flat_modes), swizzle=layout.swizzle)


def compose(outer: Layout, inner: Layout) -> Layout:
    """Return ``i -> outer(inner(i))``, with the structure of ``inner``, its leaves split as needed.

    Each leaf ``n:d`` of ``inner`` walks the digits of the mixed radix that ``outer``'s coalesced
    shape is: it enters one at a step that divides it, and fills every digit but its last.  The
    leaves together may not carry.  Raises LayoutError where that fails or ``inner`` is swizzled.
    """
    _plain(inner, "compose (inner)")
    radix = merge(outer.flat_modes)
    reached = [0] * len(radix)

    def leaf(n: int, d: int) -> Layout:
        parts, rest, step = [], n, d
        for digit, (s, stride) in enumerate(radix):
            if step % s == 0:
                step //= s
                continue
            full = s // step if s % step == 0 else 0
            count = rest if (rest - 1) * step < s or full == 0 or rest % full else full
            parts.append((count, step * stride))
            reached[digit] += (count - 1) * step
            rest, step = rest // count, 1
            if rest == 1:
                break
        if rest > 1 or any(r >= s for r, (s, _) in zip(reached, radix, strict=True)):
            raise LayoutError(
                f"compose: {n}:{d} of {inner} leaves or carries between the modes of {outer}; "
                f"choose steps that divide a mode, counts that fill it, and no digit twice"
            )
        return _from_modes(parts)

    def walk(mode: Layout) -> Layout:
        if isinstance(mode.shape, tuple):
            return join(*(walk(mode[k]) for k in range(mode.rank)))
        (n, d), *_ = mode.flat_modes
        return leaf(n, d) if n > 1 and d > 0 else Layout(n, 0)

    return replace(walk(inner), swizzle=outer.swizzle)


def complement(layout: Layout, size: int) -> Layout:
    """Return the layout of what ``layout`` skips: ``n = a + b`` uniquely, for every n in [0, size).

    Here a is an offset of ``layout``, b one of the result, which is ordered and coalesced; modes of
    stride 0 count for nothing.  Raises LayoutError where a stride is no multiple of the extent of
    the smaller ones.
    """
    _plain(layout, "complement")
    gaps, extent = [], 1
    for d, s in sorted((d, s) for s, d in merge(layout.flat_modes) if d > 0):
        if d % extent:
            raise LayoutError(
                f"complement: {layout} has stride {d}, no multiple of {extent} below it"
            )
        gaps.append((d // extent, extent))
        extent = s * d
    gaps.append((-(-size // extent), extent))
    return _from_modes(gaps)


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
    for s, d in merge(layout.flat_modes):
        modes.append((d, s, index))
        index *= s
    run, extent = [], 1
    for d, s, index in sorted(modes):
        if d == extent:
            run.append((s, index))
            extent *= s
    return _from_modes(run)


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
    for d, s in sorted((d, s) for s, d in merge(layout.flat_modes)):
        if d == 0:
            return False
        if d < extent:
            return len(np.unique(layout.offsets())) == layout.size
        extent += (s - 1) * d
    return True


def is_surjective_onto(layout: Layout, n: int) -> bool:
    """Return whether the offsets are exactly [0, n)."""
    return layout.size >= n and np.array_equal(np.unique(layout.offsets()), np.arange(n))


def _offset(coord: Coordinate, shape: IntTuple, stride: IntTuple) -> int | Offsets:
    if isinstance(coord, tuple):
        if not isinstance(shape, tuple) or len(coord) != len(shape):
            raise LayoutError(f"coordinate of {len(coord)} parts for a mode of shape {text(shape)}")
        assert isinstance(stride, tuple)
        parts = zip(coord, shape, stride, strict=True)
        return sum((_offset(c, s, d) for c, s, d in parts), start=0)
    modes = tuple(leaves(shape, stride))
    size = prod(s for s, _ in modes)
    rest: Any = np.asarray(coord, np.int64) if isinstance(coord, np.ndarray) else coord
    if np.any(rest < 0) or np.any(rest >= size):
        raise LayoutError(
            f"coordinate {np.min(coord)} to {np.max(coord)}: mode {text(shape)} takes [0, {size})"
        )
    offset = rest * 0
    for s, d in modes:
        offset = offset + rest % s * d
        rest = rest // s
    return cast("int | Offsets", offset)


def _from_modes(modes: Iterable[tuple[int, int]]) -> Layout:
    """Return the coalesced layout with these modes."""
    merged = merge(modes)
    if len(merged) < 2:
        return Layout(*(merged[0] if merged else (1, 0)))
    return Layout(tuple(s for s, _ in merged), tuple(d for _, d in merged))


def _plain(layout: Layout, operation: str) -> None:
    if layout.swizzle:
        raise LayoutError(
            f"{operation}: {layout} is swizzled, and the result is no layout; "
            "swizzle the outermost layout"
        )
