"""Inputs that show what a kernel does wrong: normal ones, rising and planted ones.

    normal    every element is drawn from the normal distribution
    rising    what a maximum is taken of grows along its axis, from 0 to RISE |normal|: every block
              of a running maximum rescales, and an exponential from which no maximum is subtracted
              overflows fp32
    planted   normal, and in each row of what a maximum is taken of one element is PLANTED higher:
              in row i the one at (i + 1) mod n, where a causal mask begins: at every edge

An operation without a maximum has normal inputs only.

>>> from tinygpu.term.operation import matmul, softmax
>>> kinds(matmul()), kinds(softmax())
(('normal',), ('normal', 'rising', 'planted'))
>>> import numpy as np
>>> x = drawn(softmax(), {"i": 2, "j": 4}, "rising", np.ones)["x"]
>>> x.tolist()[0]
[16.0, 32.0, 48.0, 64.0]

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from tinygpu.numbers import Array
from tinygpu.term.operation import Groups, Operation
from tinygpu.term.pages import POOL, Lengths, Pages

__all__ = [
    *("AGAIN", "EMPTY", "KINDS", "NOWHERE", "PLANTED", "RISE", "drawn", "drawn_ends"),
    *("drawn_indices", "drawn_lengths", "kinds", "with_pool"),
]

KINDS = ("normal", "rising", "planted")
EMPTY = 0.43
"""A third of the normal distribution is nearer to 0: such a group has no rows."""
AGAIN, NOWHERE = 1.4, 2.05
"""One normal number in twelve is below minus the first, one in fifty above the second."""
RISE = 64.0
"""Of 64 |normal| one in six is above 89, whose exponential is beyond fp32; fp16 holds all."""
PLANTED = 16.0
"""The exponential of the planted element is about e^16 times another."""


def kinds(operation: Operation) -> tuple[str, ...]:
    """Return the kinds of inputs that tell terms of the operation apart."""
    return KINDS if any(r.operator == "max" for r in operation.reductions) else KINDS[:1]


def drawn(
    operation: Operation,
    sizes: Mapping[str, int],
    kind: str,
    normal: Callable[[tuple[int, ...]], Array],
) -> dict[str, Array]:
    """Return inputs of a kind, made of ``normal(shape)``: arrays of NumPy, or all of CuPy.

    Groups' ends are those of the sizes, or drawn; an array of NumPy.  So is a table of pages; what
    lies in the pages is of that kind in the order of the table.
    """
    if operation.pages:
        return _in_pages(operation, operation.pages, sizes, kind, normal)
    shapes = operation.shapes(sizes)
    over = {a for r in operation.reductions if r.operator == "max" for a in r.over}
    found = {o.name: normal(shapes[o.name]) for o in operation.inputs}
    if groups := operation.groups:
        given = groups.ends in sizes
        found[groups.ends] = (
            np.asarray(groups.ends_of(sizes), np.int32) if given
            else drawn_ends(groups, sizes, normal((sizes[groups.axis],)))
        )  # fmt: skip
    if operation.lengths:
        found[operation.lengths.name] = drawn_lengths(operation.lengths, sizes, normal)
    if kind == "normal":
        return found
    for operand in operation.inputs:
        if operand.name not in _compared(operation):
            continue
        array = found[operand.name]
        for place, axis in enumerate(operand.axes):
            if axis not in over:
                continue
            size, last = sizes[axis], (1,) * (len(operand.axes) - place - 1)
            along = _counted(array, size).reshape(size, *last)
            if kind == "rising":
                array = abs(array) * ((along + 1) * (RISE / size))
            else:
                before = array.shape[:place]
                row = _counted(array, prod(before)).reshape(*before, 1, *last)
                array = array + PLANTED * ((along - row - 1) % size == 0)
        found[operand.name] = array
    return found


def _in_pages(
    operation: Operation,
    pages: Pages,
    sizes: Mapping[str, int],
    kind: str,
    normal: Callable[[tuple[int, ...]], Array],
) -> dict[str, Array]:
    """Return inputs of a kind, some in pages: of blocks that share a page the last one is there."""
    whole = drawn(replace(operation, pages=None), sizes, kind, normal)
    sizes = with_pool(operation, sizes)
    table = _drawn_table(operation, sizes, normal)
    rows, blocks = np.nonzero((table >= 0) & (table < sizes[POOL]))
    for name in pages.inputs:
        axes = operation.operand(name).axes
        at = axes.index(pages.rows), axes.index(pages.axis)
        dense = np.moveaxis(whole[name], at, (0, 1))
        dense = dense.reshape(len(dense), -1, pages.size, *dense.shape[2:])
        pool = normal(operation.shapes(sizes)[name])
        to, row, block = (np.asarray(x, like=pool) for x in (table[rows, blocks], rows, blocks))
        np.moveaxis(pool, at, (0, 1))[to] = dense[row, block]
        whole[name] = pool
    return {**whole, pages.table: table}


def with_pool(operation: Operation, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Return sizes, with those of a pool of pages: one more than there are blocks."""
    if operation.pages is None:
        return sizes
    return {POOL: operation.shapes(sizes)[operation.pages.inputs[0]][0] + 1, **sizes}


def drawn_indices(
    operation: Operation, sizes: Mapping[str, int], normal: Callable[[tuple[int, ...]], Array]
) -> dict[str, Array]:
    """Return the arrays of integers of an operation: groups' ends, a table of pages, lengths."""
    found, groups, lengths = dict[str, Array](), operation.groups, operation.lengths
    if groups:
        found[groups.ends] = drawn_ends(groups, sizes, normal((sizes[groups.axis],)))
    if operation.pages:
        found[operation.pages.table] = _drawn_table(operation, sizes, normal)
    if lengths:
        found[lengths.name] = drawn_lengths(lengths, sizes, normal)
    return found


def _drawn_table(
    operation: Operation, sizes: Mapping[str, int], normal: Callable[[tuple[int, ...]], Array]
) -> Array:
    """Return a table of pages, made of a normal number for each page of the pool and each entry.

    Blocks take pages in a random order.  One in twelve takes the page of the one before it, and one
    in fifty none: its entry is -1, or beyond the pool.  An array of NumPy, of i32.
    """
    assert operation.pages is not None
    shapes = operation.shapes(sizes)
    many, entries = shapes[operation.pages.inputs[0]][0], shapes[operation.pages.table]
    order, odd = (_on_host(normal(n)) for n in ((many,), entries))
    table = np.resize(order.argsort(), entries)
    table = np.where(odd < -AGAIN, np.roll(table, 1), table)
    table = np.where(odd > NOWHERE, np.where(odd > NOWHERE + 0.2, -1, many), table)
    return table.astype("int32")


def drawn_lengths(
    lengths: Lengths, sizes: Mapping[str, int], normal: Callable[[tuple[int, ...]], Array]
) -> Array:
    """Return a length of each row, those of the sizes or made of a normal number each.

    One in six is 0, one in six full.  An array of NumPy, of i32.
    """
    if lengths.name in sizes:
        return np.asarray(lengths.of(sizes), np.int32)
    many, most = sizes[lengths.rows], sizes[lengths.axis]
    return (most * (_on_host(normal((many,))) + 1) / 2).round().clip(0, most).astype("int32")


def drawn_ends(groups: Groups, sizes: Mapping[str, int], normal: Array) -> Array:
    """Return ends of groups of all rows, made of a normal number each: a third of them is empty.

    The others have rows in proportion to the number's size.  An array of NumPy, of i32.
    """
    normal = _on_host(normal)
    weights = abs(normal) * (abs(normal) > EMPTY)
    total = weights.sum()
    shares = (weights.cumsum() + 1e-9) / (total + 1e-9) if total else normal * 0 + 1.0
    ends = (shares * sizes[groups.rows] + 0.5).astype("int32")
    ends[-1] = sizes[groups.rows]
    return ends.clip(0, sizes[groups.rows])


def _on_host(array: Array) -> Array:
    """Return an array of NumPy, also of one of CuPy."""
    return array.get() if hasattr(array, "get") else array


def _compared(operation: Operation) -> set[str]:
    """Return what the expressions name of which a maximum is taken, also of other reductions."""
    known = {r.name: set(r.expression.names()) for r in operation.reductions}
    found = set().union(*(known[r.name] for r in operation.reductions if r.operator == "max"))
    for r in reversed(operation.reductions):
        if r.name in found:
            found |= known[r.name]
    return found


def _counted(like: Array, size: int) -> Array:
    """Return 0, 1, .. as an array of the library and the type of a larger one."""
    return (like.ravel()[:size] * 0 + 1).cumsum() - 1
