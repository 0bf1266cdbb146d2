"""Access maps: where in a buffer each thread's values lie, and which of a ring's values they are.

**Where a value lives.**  An access maps (thread, value) to coordinates of its buffer.  With thread
extents (T0, T1, ..) and value extents (V0, V1, ..), least significant first, thread
t = t0 + T0*(t1 + T1*(..)) and value v alike touch coordinate

    origin + sum_i t_i * thread[i] + sum_j v_j * value[j]

in each dimension.  For on-chip buffers the buffer's strides (and XOR swizzle) turn coordinates
into an offset; for gmem the strides are leading dimensions, and a guarded dimension is compared
with its size: a guarded load gives 0 outside (or another constant, as the identity of a maximum),
a guarded store does nothing.  An unguarded dimension has to lie inside: because the sizes are
multiples of the tile, or because an ``Exit`` has removed the threads outside.

**Which value it is.**  Every buffer below gmem is a *ring*: an access carries an index, affine in
the loop variables, and uses stage ``index mod stages``.  A read of index x means the value written
at index x (the latest of them in program order), and no other.  This is the whole specification
that legality checks.

>>> k = var("k")
>>> print(2 * k + 1)
2*k + 1
>>> (2 * k + 1).evaluate({"k": 3})
7

Source: ``docs/model.md``, section "Terms".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, overload

import numpy as np

from tinygpu.errors import ProgramError, nearest, require_kind
from tinygpu.isa.memory import DTYPES, GMEM, REGISTERS, SMEM, TMEM, DType
from tinygpu.numbers import Number
from tinygpu.term.layout import Layout, Swizzle
from tinygpu.term.pages import Pages

__all__ = [
    "Access",
    "Affine",
    "Buffer",
    "Immediate",
    "Operand",
    "Predicate",
    "Scalar",
    "counted",
    "number_text",
    "registers",
    "span",
    "var",
]

_LEVELS = tuple(level.name for level in (GMEM, SMEM, TMEM, REGISTERS))


def number_text(number: object) -> str:
    """Return a number of a term; over a space, where it is an array, the range of its values.

    >>> number_text(64), number_text(np.array([[64], [256]]))
    ('64', '64 to 256')
    """
    if not (isinstance(number, np.ndarray) and number.size):
        return str(number)
    low, high = number.min(), number.max()
    return f"{low}" if low == high else f"{low} to {high}"


def counted(variable: str, number: str) -> str:
    """Return under which name an environment has the running number ``number * variable``.

    No variable has such a name.
    """
    return f"{number}*{variable}"


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum of coefficient * variable``; a coefficient may name a parameter.

    It may name a tile value too, of the variables of its loop over tiles.  Then the term is the
    *running number*: the sum of that value over the tiles before, which for a parameter, the same
    in all tiles, is the product.
    """

    constant: int = 0
    terms: tuple[tuple[str, int | str], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.constant + other, self.terms)
        return Affine(self.constant + other.constant, self.terms + other.terms)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Affine:
        terms = []
        for name, coefficient in self.terms:
            if isinstance(coefficient, str):
                raise ProgramError(f"index {self}: a parameter's multiple cannot be scaled again")
            terms.append((name, coefficient * factor))
        return Affine(self.constant * factor, tuple(terms))

    __rmul__ = __mul__

    @overload
    def evaluate(self, values: Mapping[str, int]) -> int: ...
    @overload
    def evaluate(self, values: Mapping[str, Number]) -> Number: ...
    def evaluate(self, values: Mapping[str, Number]) -> Number:
        """Evaluate with the variables' and parameters' values, and running numbers (``counted``).

        >>> var("tile", "trips").evaluate({"tile": 2, "trips": 3})
        6
        >>> var("tile", "trips").evaluate({"tile": 2, "trips": 3, counted("tile", "trips"): 4})
        4
        """
        total: Number = self.constant
        for name, coefficient in self.terms:
            if not isinstance(coefficient, str):
                total = total + coefficient * values[name]
            elif (running := counted(name, coefficient)) in values:
                total = total + values[running]
            else:
                total = total + values[coefficient] * values[name]
        return total

    def __str__(self) -> str:
        parts = []
        for name, factor in self.terms:
            text = number_text(factor)
            text = f"({text})" if " " in text else text
            parts.append(name if text == "1" else f"{text}*{name}")
        constant = number_text(self.constant)
        if not parts or constant != "0":
            parts.append(constant)
        return " + ".join(parts)


def var(name: str, coefficient: int | str = 1) -> Affine:
    """Return the variable ``name`` (of a loop or of the grid), times a coefficient."""
    return Affine(0, ((name, coefficient),))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer: for gmem, ``shape`` names sizes and ``stride`` parameters (or 1).

    Strides count elements.  ``stage_elements`` is the distance between a ring's stages.
    ``swizzle`` = (bits, base, shift) of ``tinygpu.term.layout.Swizzle``, on elements; 0 bits: none.
    ``copies`` above 1: shared memory of which each copy of the role that uses it has its own.  With
    ``home`` = a cluster axis's variable, what CTAs along it write goes to the one that the access
    names (``peer``); each reads its own.
    ``pages``: an array of gmem that lies in pages; its stride along ``rows`` is that of pages.
    Tensor memory (level "tmem") has the shape (128 lanes, elements): a column of 32 bits is one
    element, or as many narrower ones as it holds.
    """

    name: str
    level: str
    dtype: str
    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    stages: int = 1
    stage_elements: int = 0
    swizzle: tuple[int, int, int] = (0, 0, 0)
    copies: int = 1
    home: str = ""
    pages: Pages | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ProgramError(f"buffer {self.name}: {self.dtype}; {nearest(self.dtype, DTYPES)}")
        if self.level not in _LEVELS:
            raise ProgramError(f"buffer {self.name}: {self.level}; {nearest(self.level, _LEVELS)}")
        named = [n for n in (*self.shape, *self.stride) if isinstance(n, str)]
        if named and self.level != "gmem":
            raise ProgramError(f"buffer {self.name}: {named[0]} in {self.level}; give a number")
        if len(self.shape) != len(self.stride):
            raise ProgramError(f"buffer {self.name}: shape {self.shape} and stride {self.stride}")
        pages = self.pages
        if pages and (self.level != "gmem" or not {pages.axis, pages.rows} <= {*self.shape}):
            axes = f"{pages.rows} and {pages.axis}"
            raise ProgramError(f"buffer {self.name}: pages; only arrays with {axes} lie in some")

    @property
    def type(self) -> DType:
        """Its data type."""
        return DTYPES[self.dtype]

    @property
    def extents(self) -> tuple[int, ...]:
        """Its shape on chip, where no extent has a name."""
        return cast("tuple[int, ...]", self.shape)

    @property
    def pitch(self) -> tuple[int, ...]:
        """Its strides on chip."""
        return cast("tuple[int, ...]", self.stride)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage; in shared memory every stage starts at a multiple of 16 B."""
        exact = self.stage_elements * self.type.bytes
        return -(-exact // 16) * 16 if self.level == "smem" else exact

    @property
    def bytes(self) -> int:
        """Bytes of all stages (on-chip levels), of all copies."""
        return self.copies * self.stages * self.stage_bytes

    @property
    def layout(self) -> Layout:
        """The layout of one stage, coordinates to element offsets."""
        swizzle = Swizzle(*self.swizzle) if self.swizzle[0] else None
        shape, stride = tuple(map(int, self.shape)), tuple(map(int, self.stride))
        return Layout(shape, stride, swizzle=swizzle)

    def __str__(self) -> str:
        shape = ",".join(map(number_text, self.shape))
        text = f"{self.name:8} {self.level:9} {self.dtype:4} [{shape}]"
        text += f" stride ({','.join(map(number_text, self.stride))})"
        if isinstance(self.swizzle[0], int) and self.swizzle[0]:
            text += f" {Swizzle(*self.swizzle)}"
        text += f" x {number_text(self.stages)} stages" if str(self.stages) != "1" else ""
        text += f", of peers along {self.home}" if self.home else ""
        if self.pages is None:
            return text
        return f"{text}, in pages of {self.pages.size} {self.pages.axis} by {self.pages.table}"


def registers(name: str, dtype: str, *shape: int, stages: int = 1) -> Buffer:
    """Make a buffer of each thread's registers, first dimension slowest."""
    stride: list[int] = []
    size: int = 1
    for extent in reversed(shape):
        stride.insert(0, size)
        size = size * extent
    tile = tuple(shape)
    return Buffer(name, "registers", dtype, tile, tuple(stride), stages, size)


@dataclass(frozen=True, slots=True)
class Access:
    """A map from (thread, value) to coordinates of a buffer, at a ring index.

    ``thread[i]`` and ``value[j]`` are the steps, one a dimension, of the i-th thread and the j-th
    value mode.  ``guard[d]`` says whether dimension d is compared with its size, or names the tile
    value that it is compared with (gmem only); ``outside`` is what ld.global gives there.  With
    ``trimmed`` a TMA load leaves out the lines (value mode 1) that lie outside: what their cells
    hold then is not defined.
    ``peer``: the rank, along the buffer's home, of the CTA into which it writes.
    """

    buffer: Buffer
    value: tuple[tuple[int, ...], ...] = ()
    thread: tuple[tuple[int, ...], ...] = ()
    origin: tuple[Affine, ...] = ()
    index: Affine = Affine()
    guard: tuple[bool | str, ...] = ()
    outside: float = 0.0
    trimmed: bool = False
    peer: int = 0

    def __post_init__(self) -> None:
        require_kind("access: buffer", self.buffer, Buffer, ProgramError)
        require_kind(f"{self.buffer.name}: index", self.index, Affine, ProgramError)
        for one in self.origin:
            require_kind(f"{self.buffer.name}: origin", one, Affine, ProgramError)
        rank = len(self.buffer.shape)
        for steps in (*self.value, *self.thread):
            if len(steps) != rank:
                raise ProgramError(f"{self.buffer.name}: steps {steps} need {rank} dimensions")
        if self.buffer.level == "gmem" and not self.origin:
            object.__setattr__(self, "origin", (Affine(),) * rank)
        for what, parts in (("origin", self.origin), ("guard", self.guard)):
            if parts and len(parts) != rank:
                text = f"{self.buffer.name}: {what} {', '.join(map(str, parts))} is of {len(parts)}"
                raise ProgramError(f"{text} dimensions; the buffer has {rank}: give one for each")

    def limit(self, dimension: int) -> int | str:
        """Return what coordinates of a guarded dimension are below: its size, or a tile value."""
        guard = self.guard[dimension]
        return guard if isinstance(guard, str) else self.buffer.shape[dimension]

    def __str__(self) -> str:
        ring = "" if str(self.index) == "0" and self.buffer.stages == 1 else f"@({self.index})"
        if self.buffer.level == "gmem":
            text = f"{self.buffer.name}[{', '.join(map(str, self.origin))}]"
            return f"{text}, lines inside" if self.trimmed else text
        return f"{self.buffer.name}{ring}"


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant operand."""

    number: float

    def __str__(self) -> str:
        return str(self.number)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A floating-point kernel argument (``size`` False) or a size converted to float."""

    name: str
    size: bool = False

    def __str__(self) -> str:
        return self.name


Operand = Access | Immediate | Scalar


@dataclass(frozen=True, slots=True)
class Predicate:
    """``number < bound``, asked of each value of each thread.

    The number is ``origin + sum_i t_i thread[i] + sum_j v_j value[j]``, with a step for each extent
    of threads and of values; the bound is affine in sizes and parameters.

    >>> key, query = 64 * var("kt"), 16 * var("block")
    >>> print(Predicate(query + -1 * key, (-1,), (1,), bound=var("m") + -1 * var("n")))
    16*block + -64*kt < m + -1*n
    """

    origin: Affine
    value: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    bound: Affine = Affine()

    def __post_init__(self) -> None:
        require_kind("predicate: origin", self.origin, Affine, ProgramError)
        require_kind("predicate: bound", self.bound, Affine, ProgramError)

    def __str__(self) -> str:
        return f"{self.origin} < {self.bound}"


def span(
    access: Access, values: tuple[int, ...], threads: tuple[int, ...], dimension: int
) -> Number:
    """Return how far coordinates reach in a dimension within a tile: last minus first plus one."""
    reach: Number = 1
    modes = (*zip(values, access.value, strict=True), *zip(threads, access.thread, strict=True))
    for extent, steps in modes:
        reach = reach + (extent - 1) * steps[dimension]
    return reach
