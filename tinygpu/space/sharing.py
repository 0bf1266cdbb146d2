"""Shared arrays: the same arithmetic on the same arrays gives the same array.

A space builds the term of each structural choice, and most of their arithmetic is the same.  A
``Shared`` array remembers, in a memo that all of them have in common, what each elementwise
operation on it gave; equal subexpressions become *one object*, so identity decides equality, and a
law, a table or a message that was worked out once is found again.

>>> memo: Memo = {}
>>> x = share(np.arange(3), memo)
>>> (2 * x + 1) is (2 * x + 1)
True
>>> (2 * x + 1).tolist()
[1, 3, 5]

Source: hash consing (Ershov, 1958).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from tinygpu.numbers import Array

__all__ = ["Memo", "Shared", "narrowed", "remembered", "share"]

Memo = dict[tuple[Hashable, ...], tuple[Any, tuple[object, ...]]]
"""Results by (operation, operands); the operands are kept, so that no identity is used twice."""

_R = TypeVar("_R")
_KEPT_ELEMENTS = 1 << 22
"""Larger results are not kept: they cost more memory than time."""


class Shared(np.ndarray):
    """An array whose elementwise results are remembered; never write into one."""

    memo: Memo

    def __array_finalize__(self, source: object) -> None:
        """Give a view the memo of what it views."""
        self.memo = getattr(source, "memo", {})

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: Any) -> Any:
        """Look the result up, or work it out."""
        if method != "__call__" or options:
            return getattr(ufunc, method)(*map(_plain, inputs), **options)
        return _found_or_made(self.memo, ufunc, inputs)

    def __array_function__(
        self, function: Any, types: Iterable[type], inputs: Any, options: Mapping[str, object]
    ) -> Any:
        """Share ``np.where``, which ``select`` uses; the rest is NumPy's affair."""
        if function is np.where and len(inputs) == 3 and not options:
            return _found_or_made(self.memo, function, inputs)
        return super().__array_function__(function, types, inputs, options)


def share(array: Array, memo: Memo) -> Shared:
    """Return the array as a shared one."""
    shared = array.view(Shared)
    shared.memo = memo
    return shared


def remembered(function: Callable[..., _R], *inputs: object) -> _R:
    """Call a function of numbers and arrays; on inputs that are shared, once for the same ones.

    It may not depend on anything else.  ``np.asanyarray`` keeps an array shared; ``np.asarray``
    makes another of it, for which nothing is remembered.
    """
    memo = next((x.memo for x in inputs if isinstance(x, Shared)), None)
    return function(*inputs) if memo is None else _found_or_made(memo, function, inputs)


def narrowed(array: Array) -> Array:
    """Drop to length 1 every axis along which nothing changes."""
    for axis, length in enumerate(array.shape):
        if length > 1:
            first = array.take([0], axis=axis)
            if (array == first).all():
                array = first
    return array


def _found_or_made(memo: Memo, function: Callable[..., _R], inputs: tuple[object, ...]) -> _R:
    key = (
        function,
        *[id(x) if isinstance(x, np.ndarray) else (x.__class__, x) for x in inputs],
    )
    found = memo.get(key)
    if found is not None:
        known: _R = found[0]
        return known
    result = function(*map(_plain, inputs))
    if not isinstance(result, np.ndarray):
        return result
    shared = share(result, memo)
    if result.size <= _KEPT_ELEMENTS:
        memo[key] = (shared, inputs)
    return cast("_R", shared)


def _plain(x: object) -> object:
    return x.view(np.ndarray) if isinstance(x, Shared) else x
