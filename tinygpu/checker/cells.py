"""Cells: which elements of a stage a statement touches, as the bits of an int.

Thread t = t0 + T0*(t1 + ..) and value v = v0 + V0*(v1 + ..) touch the coordinate ``origin + sum_i
t_i thread[i] + sum_j v_j value[j]``.  Bit ``sum_d coordinate_d * weight_d`` stands for a cell, the
weights those of the shape in row-major order, so that moving the origin shifts the bits.

>>> one = box((4, 8), ((0, 1),), (8,), ((1, 0),), (2,), None, 0, 2)   # two threads, a row each
>>> one.apart, bin(placed(one, (4, 8), (2, 0)))
(True, '0b11111111111111110000000000000000')
>>> print(placed(one, (4, 8), (3, 0)))
None
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tinygpu.numbers import Integers
from tinygpu.term.program import Buffer

__all__ = ["Box", "box", "placed", "sound_storage"]

Steps = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Cells relative to their least coordinates; ``apart``: no two threads touch one cell."""

    mask: int
    low: tuple[int, ...]
    high: tuple[int, ...]
    apart: bool


@lru_cache(16384)
def box(
    shape: tuple[int, ...], value: Steps, values: tuple[int, ...], thread: Steps,
    threads: tuple[int, ...], lanes: tuple[int, int, int] | None, first: int, count: int,
) -> Box | None:  # fmt: skip
    """Return the cells that threads ``first``, .. touch with their origin at 0; None: none."""
    numbers = np.arange(first, first + count)
    if lanes is not None:
        numbers = numbers[(numbers // lanes[0]) % lanes[1] == lanes[2]]
    if not len(numbers) or not all(values):
        return None
    modes = [(n, step) for n, step in zip(values, value, strict=True) if any(step)]
    spread = _digits(np.arange(prod(n for n, _ in modes)), tuple(n for n, _ in modes))
    by_value = _sum(spread, [step for _, step in modes], len(shape))
    moved = bool(thread) and bool(threads)
    by_thread = _sum(_digits(numbers, threads), list(thread), len(shape)) if moved else None
    if by_thread is None:
        places = [v[None, :] for v in by_value]
    else:
        places = [t[:, None] + v[None, :] for t, v in zip(by_thread, by_value, strict=True)]
    low = tuple(int(p.min()) for p in places)
    high = tuple(int(p.max()) for p in places)
    flat = np.zeros(np.broadcast_shapes((1, 1), *(p.shape for p in places)), np.int64)
    for p, least, weight in zip(places, low, weights(shape), strict=True):
        flat = flat + (p - least) * weight
    filled = np.zeros(int(flat.max()) + 1, np.uint8)
    filled[flat] = 1
    each = sum(len(np.unique(row)) for row in flat) if len(flat) <= 1 else _each(flat)
    apart = each == int(filled.sum()) and (by_thread is not None or len(numbers) == 1)
    return Box(_bits(filled), low, high, apart)


def _each(flat: Integers) -> int:
    """Return how many cells each thread touches, added up."""
    ordered = np.sort(flat, axis=1)
    return int(ordered.shape[0] + (np.diff(ordered, axis=1) != 0).sum())


def _bits(filled: NDArray[np.uint8]) -> int:
    return int.from_bytes(np.packbits(filled, bitorder="little").tobytes(), "little")


def weights(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return by how many bits a step along each dimension moves."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _digits(numbers: Integers, extents: tuple[int, ...]) -> list[Integers]:
    found = []
    for extent in extents[:-1]:
        found.append(numbers % extent)
        numbers = numbers // extent
    return [*found, numbers] if extents else []


def _sum(digits: list[Integers], steps: list[tuple[int, ...]], rank: int) -> list[Integers]:
    many = len(digits[0]) if digits else 1
    found = [np.zeros(many, np.int64) for _ in range(rank)]
    for digit, step in zip(digits, steps, strict=True):
        for d in range(rank):
            if step[d]:
                found[d] = found[d] + digit * step[d]
    return found


def placed(one: Box, shape: tuple[int, ...], origin: tuple[int, ...]) -> int | None:
    """Return the cells with their origin there, or None if one lies outside of the stage."""
    shift = 0
    for o, low, high, extent, weight in zip(
        origin, one.low, one.high, shape, weights(shape), strict=True
    ):
        if o + low < 0 or o + high >= extent:
            return None
        shift += (o + low) * weight
    return one.mask << shift


@lru_cache(1024)
def sound_storage(buffer: Buffer) -> bool:
    """Say whether no two cells of a stage have one place, and all lie inside of the stage."""
    shape = tuple(int(n) for n in buffer.shape)
    at = np.zeros(shape, np.int64)
    for d, (extent, stride) in enumerate(zip(shape, buffer.stride, strict=True)):
        by = np.arange(extent) * int(stride)
        at = at + by.reshape([-1 if i == d else 1 for i in range(len(shape))])
    bits, base, shift = (int(n) for n in buffer.swizzle)
    if bits:
        taken = (at >> (base + max(0, shift))) & ((1 << bits) - 1)
        at = at ^ (taken << (base + max(0, -shift)))
    inside = at.size == 0 or (int(at.min()) >= 0 and int(at.max()) < int(buffer.stage_elements))
    return inside and len(np.unique(at)) == at.size
