"""How much a test asks about: a part of its corpus; with ``SOAK`` set (``make soak``) all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import chain, cycle, islice, product
from typing import Any, TypeVar

import pytest

__all__ = ["SHARED", "SOAK", "all_by_turns", "by_turns", "draws", "some"]

SOAK = bool(os.environ.get("SOAK"))
SHARED: Mapping[str, str] = {} if SOAK else {"a_from": "smem", "b_from": "smem", "edges": "guard"}
"""Decisions of ``simt``, made in a part of its space; at a soak none."""
S = TypeVar("S")
T = TypeVar("T")


def some(values: Iterable[T], every: int, first: int = 0) -> tuple[T, ...]:
    """Return one of ``every`` so many values, from the ``first`` on; at a soak each."""
    return tuple(values) if SOAK else tuple(values)[first::every]


def draws(few: int, many: int) -> int:
    """Return how many to draw, or a size: few, at a soak many."""
    return many if SOAK else few


def by_turns(values: Iterable[S], others: Iterable[T]) -> tuple[tuple[S, T], ...]:
    """Return pairs in which all values and all others occur, by turns; at a soak every pair."""
    some, more = tuple(values), tuple(others)
    if SOAK:
        return tuple(product(some, more))
    return tuple(islice(zip(cycle(some), cycle(more), strict=False), max(len(some), len(more))))


def all_by_turns(*lists: tuple[str, Iterable[Any]]) -> pytest.MarkDecorator:
    """Parametrise a test by names, one or "a, b", and their values.

    All values of each list occur, by turns; at a soak every combination.
    """
    names = ", ".join(name for name, _ in lists)
    every = [[v if "," in name else (v,) for v in values] for name, values in lists]
    turns = islice(zip(*map(cycle, every), strict=False), max(map(len, every)))
    rows = product(*every) if SOAK else turns
    return pytest.mark.parametrize(names, [tuple(chain(*row)) for row in rows])
