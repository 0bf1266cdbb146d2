"""Nested tuples of ints: what shapes, strides and coordinates of layouts are made of.

An *int tuple* is an int or a tuple of int tuples.  Two are *congruent* if they have the same
nesting.  The *modes* of a congruent pair (shape, stride) are its leaves ``(s, d)`` from left to
right; as the digits of a mixed radix, leftmost fastest, they define the function

    f(c_0 + s_0 (c_1 + s_1 (c_2 + ...))) = c_0 d_0 + c_1 d_1 + c_2 d_2 + ...

>>> list(leaves((2, (3, 4)), (1, (2, 0)))), text((2, (3, 4)))
([(2, 1), (3, 2), (4, 0)], '(2,(3,4))')
>>> merge([(2, 1), (3, 2), (1, 5), (4, 0)])
((6, 1), (4, 0))

Source: CUTLASS, ``include/cute/int_tuple.hpp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, cast

__all__ = ["IntTuple", "Modes", "congruent", "leaves", "merge", "scale", "text"]

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"
Modes: TypeAlias = tuple[tuple[int, int], ...]


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Return whether both have the same nesting."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def leaves(shape: IntTuple, stride: IntTuple) -> Iterator[tuple[int, int]]:
    """Yield the modes ``(s, d)`` of a congruent pair."""
    if isinstance(shape, tuple):
        for s, d in zip(shape, cast("tuple[IntTuple, ...]", stride), strict=True):
            yield from leaves(s, d)
    else:
        yield shape, cast("int", stride)


def merge(modes: Iterable[tuple[int, int]]) -> Modes:
    """Return the fewest modes that define the same function; none for that of the one index 0.

    They are a normal form: s_0 is the first index i where f(i) differs from i f(1), and so on.
    """
    merged: list[tuple[int, int]] = []
    for s, d in modes:
        if merged and d == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * s, merged[-1][1])
        elif s > 1:
            merged.append((s, d))
    return tuple(merged)


def scale(tree: IntTuple, factor: int) -> IntTuple:
    """Return the int tuple with every leaf multiplied."""
    return tuple(scale(t, factor) for t in tree) if isinstance(tree, tuple) else tree * factor


def text(tree: IntTuple) -> str:
    """Return CuTe's spelling, without spaces."""
    return f"({','.join(map(text, tree))})" if isinstance(tree, tuple) else str(tree)
