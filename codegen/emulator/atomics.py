"""Atomic operations of many threads at once, as if they came one after the other, in their order.

Threads of one address are a *run*.  Integer sums and the like are running sums of a run, which are
exact in any order; sums of floating-point numbers are added in the threads' order; a ``cas`` takes
as many rounds as the most successes of one address.

>>> data = np.array([5, 0], np.uint32)
>>> in_turn(data, np.array([0, 1, 0]), "add", np.array([1, 2, 4], np.uint32)), data
(array([5, 0, 6], dtype=uint32), array([10,  2], dtype=uint32))

Source: PTX ISA 9.0, section 9.7.13 (atom, red).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .report import Array

__all__ = ["RUNNING", "UPDATES", "in_turn", "rounds"]

RUNNING: Mapping[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
"""Operations that are associative where numbers are exact."""
UPDATES: Mapping[str, Callable[[Array, Array], Array]] = {
    **RUNNING,
    "exch": lambda old, new: new,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
}
"""What each operation leaves, of what was there and what a thread gives."""
_PADDED = (
    16  # a table of so many times the threads is still the fastest; longer runs, by themselves
)


def _runs(places: Array) -> tuple[Array, Array, Array]:
    """Return threads by address, where each run starts among them, and how long it is."""
    span = places - places.min()
    short = span.max() < 1 << 16  # which NumPy sorts by digits
    order = np.argsort(span.astype(np.uint16) if short else span, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    return order, starts, np.diff(np.append(starts, len(order)))


def rounds(places: Array) -> Iterator[Any]:
    """Yield threads in rounds, each of an address at most once, in thread order."""
    order, starts, counts = _runs(places)
    if len(starts) == len(order):
        yield slice(None)
        return
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(starts, counts)
    for n in range(int(counts.max())):
        yield np.flatnonzero(rank == n)


def in_turn(
    data: Array, places: Array, operation: str, new: Array, other: Array | None = None
) -> Array:
    """Update ``data`` at each thread's place, one after the other; return what each found.

    ``other`` is what a ``cas`` stores where it finds ``new``.
    """
    if operation == "cas":
        assert other is not None
        return _compare(data, places, new, other)
    if (np.diff(places) > 0).all():
        old = data[places]
        data[places] = UPDATES[operation](old, new)
        return old
    order, starts, counts = _runs(places)
    at, given = places[order[starts]], new[order]
    ends, old = starts + counts - 1, data[at]
    if operation == "exch":
        before = np.roll(given, 1)
        before[starts] = old
        data[at] = given[ends]
    elif operation == "add" and new.dtype.kind in "iu":
        sums = np.cumsum(given, dtype=given.dtype)
        before = sums - given
        before += np.repeat(old - before[starts], counts)
        data[at] = before[ends] + given[ends]
    elif operation in ("inc", "dec"):
        bounds, made = given.tolist(), list[int]()
        for first, start, end in zip(old.tolist(), starts.tolist(), ends.tolist(), strict=True):
            made += _wrapping(operation, first, bounds[start : end + 1])
        left = np.frombuffer(array("Q", made), np.uint64).astype(new.dtype)
        lasts = ends + 1 + np.arange(len(ends))
        data[at], before = left[lasts], np.delete(left, lasts)
    else:
        function, most = RUNNING[operation], int(counts.max())
        short: Any = slice(None)
        row = np.repeat(np.arange(len(starts)), counts)
        if len(starts) * most > _PADDED * len(order):
            most, short = _PADDED, counts[row] <= _PADDED
        column = np.arange(len(order)) - starts[row]
        table = np.zeros((len(starts), 1 + most), new.dtype)
        table[:, 0], table[row[short], column[short] + 1] = old, given[short]
        table = function.accumulate(table, axis=1)
        before, last = np.empty_like(given), table[np.arange(len(starts)), np.minimum(counts, most)]
        before[short] = table[row[short], column[short]]
        for n in np.flatnonzero(counts > most).tolist():
            here = slice(starts[n], starts[n] + counts[n])
            running = function.accumulate(np.append(old[n], given[here]), dtype=new.dtype)
            before[here], last[n] = running[:-1], running[-1]
        data[at] = last
    found = np.empty_like(new)
    found[order] = before
    return found


def _wrapping(operation: str, now: int, bounds: list[int]) -> list[int]:
    """Return what each inc or dec finds, as the one before left it, and what the last leaves."""
    if operation == "inc":
        return [now, *[now := 0 if now >= bound else now + 1 for bound in bounds]]
    return [now, *[now := bound if not now or now > bound else now - 1 for bound in bounds]]


def _compare(data: Array, places: Array, wanted: Array, other: Array) -> Array:
    """Do compare-and-swaps: in a round each address has one success at most, the first one."""
    found, left = data[places], np.arange(len(places))
    hit = found == wanted
    words = np.unique(places, return_inverse=True)[1] if hit.any() else left
    while hit.any():
        mine = left[hit][::-1]  # of several stores to one place the last one stays: the first
        data[places[mine]] = other[mine]
        winner = np.full(len(places), len(places))
        winner[words[mine]] = mine
        left = left[left > winner[words[left]]]
        found[left] = data[places[left]]
        hit = found[left] == wanted[left]
    return found
